//! What the page asks, answered in JSON.

mod completions;
mod control;
mod live;
mod plugins;
mod query;
mod run;
mod runs;
mod series;

pub(crate) use live::Live;

use crate::backend::Backend;
use crate::config::printable_lines;
use crate::config::{Config, Overrides, read};
use crate::folder;
use crate::followed::{Followed, Store};
use crate::run::ConfigInForce;
use query::Query;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Longest message, in bytes.
const LONGEST_MESSAGE: usize = 4000;

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// What is wrong; for 308, where to go.
    pub message: String,
}

impl Refused {
    pub fn new(status: u16, message: impl AsRef<str>) -> Self {
        Self { status, message: printable_lines(message.as_ref(), LONGEST_MESSAGE) }
    }

    fn invalid(message: impl AsRef<str>) -> Self {
        Self::new(400, message)
    }

    pub fn to_json(&self) -> Value {
        json!({ "error": self.message })
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::new(500, format!("can't read the run's files: {error}"))
    }
}

pub(crate) type Result<T> = std::result::Result<T, Refused>;

/// What all routes share.
pub(crate) struct Api {
    /// The folder of a run or of runs.
    pub root: PathBuf,
    pub backend: Box<dyn Backend>,
    /// Whether runs may be acted on.
    pub control: bool,
    pub store: Store,
    /// Held while a plugin scores completions: one at a time.
    scoring: Mutex<()>,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// What is shown, and whether it may be acted on.
    About,
    /// The table of runs.
    Runs,
    /// Settings in which runs differ.
    Settings,
    /// Curves.
    Series,
    /// A run: its state and events, and the signs of why it does not learn.
    Run,
    Diagnosis,
    /// Completions in pages, one, and those of its prompt and step.
    Completions,
    Completion,
    Group,
    /// Plugins with their versions, and the source of one.
    Plugins,
    Source,
    /// What is new, as server-sent events.
    Live,
    /// Acts.
    WhatIf,
    Swap,
    RollBack,
    Configure,
}

impl Route {
    /// Returns the route of a path below `api/`.
    pub fn find(path: &str) -> Option<Self> {
        Some(match path {
            "about" => Self::About,
            "runs" => Self::Runs,
            "settings" => Self::Settings,
            "series" => Self::Series,
            "run" => Self::Run,
            "diagnosis" => Self::Diagnosis,
            "completions" => Self::Completions,
            "completion" => Self::Completion,
            "group" => Self::Group,
            "plugins" => Self::Plugins,
            "source" => Self::Source,
            "live" => Self::Live,
            "what-if" => Self::WhatIf,
            "swap" => Self::Swap,
            "roll-back" => Self::RollBack,
            "configure" => Self::Configure,
            _ => return None,
        })
    }

    /// Returns whether it has a body and needs `--control`.
    pub fn acts(self) -> bool {
        matches!(self, Self::WhatIf | Self::Swap | Self::RollBack | Self::Configure)
    }
}

impl Api {
    pub fn new(root: PathBuf, backend: Box<dyn Backend>, control: bool) -> Self {
        Self { root, backend, control, store: Store::default(), scoring: Mutex::new(()) }
    }

    /// Answers a request with its query and body. [`Route::Live`] is answered by [`Live::start`].
    pub fn answer(&self, route: Route, query: &str, body: &[u8]) -> Result<Value> {
        let query = Query::parse(query)?;
        match route {
            Route::About => Ok(self.about()),
            Route::Runs => self.runs(),
            Route::Settings => self.settings(&query),
            Route::Series => self.series(&query),
            Route::Run => self.run(&query),
            Route::Diagnosis => self.diagnosis(&query),
            Route::Completions => self.completions(&query),
            Route::Completion => self.completion(&query),
            Route::Group => self.group(&query),
            Route::Plugins => self.plugins(&query),
            Route::Source => self.source(&query),
            Route::Live => Err(Refused::invalid("live is a stream of events")),
            Route::WhatIf => self.what_if(&query, body),
            Route::Swap => self.swap(&query, body),
            Route::RollBack => self.roll_back(&query),
            Route::Configure => self.configure(&query, body),
        }
    }

    fn about(&self) -> Value {
        json!({
            "control": self.control,
            "folder": folder::own_name(&self.root),
            "single": crate::run::RunFiles(&self.root).are_there(),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    /// Returns the folder of the run that a query names.
    fn path_of(&self, query: &Query) -> Result<PathBuf> {
        self.path(query.required("run")?)
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        folder::find(&self.root, name).ok_or_else(|| Refused::new(404, format!("there is no run {name:?} in this folder")))
    }

    /// Returns the run that a query names.
    pub fn followed(&self, query: &Query) -> Result<Arc<Mutex<Followed>>> {
        Ok(self.store.run(&self.path_of(query)?))
    }
}

/// Returns the configuration of a run, as far as it can be read.
fn config_of(run: &Path) -> Option<Config> {
    read([ConfigInForce::path(run).as_path()], &Overrides::default()).ok()
}

/// Returns the current time, in seconds since 1970.
fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
