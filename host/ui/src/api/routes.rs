//! Which path is answered by what.

use super::app::Api;
use super::query::Query;
use super::refused::{Refused, Result};
use crate::run::RunFiles;
use rlhost_followed::own_name;
use serde_json::{Value, json};

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
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

impl Route {
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

impl Api {
    /// Answers a request with its query and body. [`Route::Live`] is answered by [`Live::start`](super::Live::start).
    pub fn answer(&self, route: Route, query: &str, body: &[u8]) -> Result<Value> {
        let query = Query::parse(query)?;
        match route {
            Route::About => Ok(self.about()),
            Route::Runs => self.runs(),
            Route::Settings => self.settings(&query),
            Route::Comparison => self.comparison(&query),
            Route::Series => self.series(&query),
            Route::Charts => self.charts(&query),
            Route::Run => self.run(&query),
            Route::Config => self.config(&query),
            Route::Diagnosis => self.diagnosis(&query),
            Route::Story => self.story(&query),
            Route::Metrics => self.metrics(&query),
            Route::Events => self.events(&query),
            Route::Completions => self.completions(&query),
            Route::Completion => self.completion(&query),
            Route::Group => self.group(&query),
            Route::Plugins => self.plugins(&query),
            Route::Source => self.source(&query),
            Route::Form => self.form(&query),
            Route::Fork => self.fork(&query),
            Route::Live => Err(Refused::invalid("live is a stream of events")),
            Route::WhatIf => self.what_if(&query, body),
            Route::Swap => self.swap(&query, body),
            Route::RollBack => self.roll_back(&query),
            Route::Configure => self.configure(&query, body),
            Route::Steer => self.steer(&query),
        }
    }

    fn about(&self) -> Value {
        json!({
            "control": self.control,
            "folder": own_name(self.listing.root()),
            "single": RunFiles(self.listing.root()).are_there(),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }
}
