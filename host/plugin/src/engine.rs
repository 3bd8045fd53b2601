//! The WebAssembly engine: compilation with a cache on disk, the clock for time limits, and what plugins may import.

use super::asking::Asker;
use super::census::Refusal;
use super::compiler::Compiled;
use super::components::Components;
use super::configuration::{Effort, configuration};
use super::deadline::{Clock, Watchdog};
use super::figures::Names;
use super::folders::Folders;
use super::logged::Logged;
use super::sandbox::Sandbox;
use super::script::Language;
use super::world::PACKAGE;
use super::{Error, Result, contract};
use crate::config::{Limits, STACK};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::Arc;
use wasmtime::component::{HasSelf, Linker};

/// One per process; cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(super) wasmtime: wasmtime::Engine,
    pub(super) linker: Linker<Sandbox>,
    components: Components,
    pub(super) names: Names,
    pub(super) logged: Logged,
    pub(super) clock: Clock,
    pub(super) watchdog: Watchdog,
    /// Number of threads that calls may be spread over.
    pub(super) threads: usize,
    /// Whether a run continues if a call made through this engine hangs.
    pub(super) beside: bool,
    /// Senders of rewards' requests, by the reward's name.
    pub(super) askers: BTreeMap<String, Arc<Asker>>,
    /// What plugins may read, by the plugin's name.
    pub(super) folders: BTreeMap<String, Arc<Folders>>,
}

impl Engine {
    /// Starts the engine. Compiled plugins are cached in `RLHOST_CACHE_DIR` or the user's cache directory; without either, they
    /// are compiled each time.
    pub fn new() -> Result<Self> {
        let fail = |e: wasmtime::Error| Error::Engine(format!("{e:#}"));
        let wasmtime = wasmtime::Engine::new(&configuration(Effort::Full)).map_err(fail)?;
        let mut linker = Linker::new(&wasmtime);
        offer(&mut linker).map_err(fail)?;
        let (clock, watchdog, weak) = (Clock::default(), Watchdog::default(), wasmtime.weak());
        let tick = move || weak.upgrade().map(|engine| engine.increment_epoch()).is_some();
        clock.begin(tick).and_then(|()| watchdog.begin()).map_err(|e| Error::Engine(e.to_string()))?;
        let threads = threads().map_err(|e| Error::Engine(format!("can't start a thread for each processor: {e}")))?;
        let components = Components::open(threads);
        let (names, logged) = (Names::default(), Logged::default());
        Ok(Self {
            wasmtime,
            linker,
            components,
            names,
            logged,
            clock,
            watchdog,
            threads,
            beside: false,
            askers: BTreeMap::new(),
            folders: BTreeMap::new(),
        })
    }

    /// Returns the same engine for background work: it compiles with this many threads, and a call that hangs does not end the
    /// run.
    #[must_use]
    pub fn beside(&self, threads: usize) -> Self {
        Self { components: self.components.compiling_with(threads), beside: true, ..self.clone() }
    }

    /// Returns a plugin's component, compiled now or cached. An instance of it is made on trial within these limits, unless one was.
    pub(super) fn component(&self, bytes: &[u8], limits: &Limits) -> std::result::Result<Compiled, Refusal> {
        self.components.of_plugin(&self.wasmtime, bytes, limits)
    }

    /// Returns the carried interpreter of a language, compiled once per machine and read once per process.
    pub(super) fn interpreter(&self, language: Language, limits: &Limits) -> std::result::Result<Compiled, Refusal> {
        self.components.interpreter(&self.wasmtime, language, limits)
    }

    /// Returns the names of the metrics that plugins have reported.
    pub fn reported(&self) -> Vec<String> {
        self.names.reported()
    }

    /// Lets the reward of this name, in all its versions, send requests.
    pub fn grant(&mut self, name: &str, asker: Arc<Asker>) {
        self.askers.insert(name.to_owned(), asker);
    }

    /// Lets the plugin of this name, in all its versions, read folders.
    pub fn grant_folders(&mut self, name: &str, folders: Arc<Folders>) {
        self.folders.insert(name.to_owned(), folders);
    }
}

/// Adds to a linker what every plugin may import. All versions of these interfaces are the same.
fn offer(linker: &mut Linker<Sandbox>) -> wasmtime::Result<()> {
    for version in ["0.1.0", "1.0.0"] {
        let mut host = linker.instance(&format!("{PACKAGE}host@{version}"))?;
        contract::host::add_to_linker_instance::<_, HasSelf<Sandbox>>(&mut host, |sandbox| sandbox)?;
    }
    for version in ["0.2.0", "1.0.0"] {
        let mut cells = linker.instance(&format!("{PACKAGE}cells@{version}"))?;
        contract::cells::add_to_linker_instance::<_, HasSelf<Sandbox>>(&mut cells, |sandbox| sandbox)?;
    }
    Ok(())
}

/// Returns the number of threads of the pool. It would be started at its first use, and panic where the system has no room for threads.
fn threads() -> std::io::Result<usize> {
    let started = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    match started.err().and_then(|error| error.source().map(ToString::to_string)) {
        Some(error) => Err(std::io::Error::other(error)),
        // It is started, now or before.
        None => Ok(rayon::current_num_threads()),
    }
}
