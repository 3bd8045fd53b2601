//! Which path is answered by what.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use crate::run::RunFiles;
use rlhost_live::folder_name;
use serde_json::{Value, json};

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageRoute {
    /// What is shown, and whether it may be acted on.
    About,
    /// The table of runs.
    Runs,
    /// Settings in which runs differ.
    Settings,
    /// Runs side by side.
    Comparison,
    /// Curves, and which share a chart.
    Series,
    Charts,
    /// A run: its state and events, its settings, and the signs of why it does not learn.
    Run,
    Config,
    Diagnosis,
    /// What a report says of a run.
    Story,
    Metrics,
    Events,
    /// Completions in pages, one, and those of its prompt and step.
    Completions,
    Completion,
    Group,
    /// Plugins with their versions, and the source of one.
    Plugins,
    Source,
    /// The settings of a plugin's version, as fields of a form.
    Form,
    /// The command that forks a run.
    Fork,
    /// What is new, as server-sent events.
    Live,
    /// Acts.
    WhatIf,
    Swap,
    RollBack,
    Configure,
    Steer,
}

impl PageRoute {
    /// Returns the route of a path below `api/`.
    pub fn find(path: &str) -> Option<Self> {
        Some(match path {
            "about" => Self::About,
            "runs" => Self::Runs,
            "settings" => Self::Settings,
            "comparison" => Self::Comparison,
            "series" => Self::Series,
            "charts" => Self::Charts,
            "run" => Self::Run,
            "config" => Self::Config,
            "diagnosis" => Self::Diagnosis,
            "story" => Self::Story,
            "metrics" => Self::Metrics,
            "events" => Self::Events,
            "completions" => Self::Completions,
            "completion" => Self::Completion,
            "group" => Self::Group,
            "plugins" => Self::Plugins,
            "source" => Self::Source,
            "form" => Self::Form,
            "fork" => Self::Fork,
            "live" => Self::Live,
            "what-if" => Self::WhatIf,
            "swap" => Self::Swap,
            "roll-back" => Self::RollBack,
            "configure" => Self::Configure,
            "steer" => Self::Steer,
            _ => return None,
        })
    }

    /// Returns whether it has a body and needs `--control`.
    pub fn acts(self) -> bool {
        matches!(self, Self::WhatIf | Self::Swap | Self::RollBack | Self::Configure | Self::Steer)
    }
}

impl PageApi {
    /// Answers a request with its query and body. [`PageRoute::Live`] is answered by [`LiveUpdateStream::start`](super::LiveUpdateStream::start).
    pub fn answer(&self, route: PageRoute, query: &str, body: &[u8]) -> Result<Value> {
        let query = Query::parse(query)?;
        match route {
            PageRoute::About => Ok(self.about()),
            PageRoute::Runs => self.runs(),
            PageRoute::Settings => self.settings(&query),
            PageRoute::Comparison => self.comparison(&query),
            PageRoute::Series => self.series(&query),
            PageRoute::Charts => self.charts(&query),
            PageRoute::Run => self.run(&query),
            PageRoute::Config => self.config(&query),
            PageRoute::Diagnosis => self.diagnosis(&query),
            PageRoute::Story => self.story(&query),
            PageRoute::Metrics => self.metrics(&query),
            PageRoute::Events => self.events(&query),
            PageRoute::Completions => self.completions(&query),
            PageRoute::Completion => self.completion(&query),
            PageRoute::Group => self.group(&query),
            PageRoute::Plugins => self.plugins(&query),
            PageRoute::Source => self.source(&query),
            PageRoute::Form => self.form(&query),
            PageRoute::Fork => self.fork(&query),
            PageRoute::Live => Err(ApiRefusal::invalid("live is a stream of events")),
            PageRoute::WhatIf => self.what_if(&query, body),
            PageRoute::Swap => self.swap(&query, body),
            PageRoute::RollBack => self.roll_back(&query),
            PageRoute::Configure => self.configure(&query, body),
            PageRoute::Steer => self.steer(&query),
        }
    }

    fn about(&self) -> Value {
        json!({
            "control": self.control,
            "folder": folder_name(self.listing.root()),
            "single": RunFiles(self.listing.root()).exist(),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }
}
