//! Dispatches requests by path.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use crate::run::RunFiles;
use rlhost_live::folder_name;
use serde_json::{Value, json};

/// Route of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageRoute {
    /// Folder of the runs, and whether the page may control them.
    About,
    /// The table of runs.
    Runs,
    /// Settings that differ between runs.
    Settings,
    /// Comparison of runs.
    Comparison,
    /// Curves, and the grouping of metrics into charts.
    Series,
    Charts,
    /// State and events of a run, its settings, and signs of why it does not learn.
    Run,
    Config,
    Diagnosis,
    /// Contents of a run's report.
    Story,
    Metrics,
    Events,
    /// Completions: a page, one, and those of the same prompt and step.
    Completions,
    Completion,
    Group,
    /// Plugins with their versions, and the source of a version.
    Plugins,
    Source,
    /// Settings of a plugin's version, as fields of a form.
    Form,
    /// Command that forks a run.
    Fork,
    /// Updates as server-sent events.
    Live,
    /// Actions.
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

    /// Returns whether the route takes a body and needs `--control`.
    pub fn acts(self) -> bool {
        matches!(self, Self::WhatIf | Self::Swap | Self::RollBack | Self::Configure | Self::Steer)
    }
}

impl PageApi {
    /// Answers a request. [`PageRoute::Live`] is answered by [`LiveUpdateStream::start`](super::LiveUpdateStream::start) instead.
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
