//! The WebAssembly engine: compilation with a cache on disk, the clock for time limits, and what plugins may import.

use super::census::CompileRefusal;
use super::compiler::CompiledPlugin;
use super::components::Components;
use super::configuration::{CompileEffort, configuration};
use super::deadline::{CallWatchdog, EngineClock};
use super::folders::Folders;
use super::log_line_counts::LogLineCounts;
use super::metrics::MetricOwners;
use super::requests::PluginHttpClient;
use super::sandbox::Sandbox;
use super::script::Language;
use super::world::PACKAGE;
use super::{Error, Result, contract};
use crate::config::{PluginLimits, STACK};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::Arc;
use wasmtime::component::{HasSelf, Linker};

/// The engine of a process; cheap to clone.
#[derive(Clone)]
pub struct PluginEngine {
    pub(super) wasmtime: wasmtime::Engine,
    pub(super) linker: Linker<Sandbox>,
    components: Components,
    pub(super) names: MetricOwners,
    pub(super) logged: LogLineCounts,
    pub(super) clock: EngineClock,
    pub(super) watchdog: CallWatchdog,
    /// Number of threads that calls may be spread over.
    pub(super) threads: usize,
    /// Whether a run continues if a call made through this engine hangs.
    pub(super) in_background: bool,
    /// Senders of rewards' requests, by the reward's name.
    pub(super) http_clients: BTreeMap<String, Arc<PluginHttpClient>>,
    /// Folders that plugins may read, by the plugin's name.
    pub(super) folders: BTreeMap<String, Arc<Folders>>,
}

impl PluginEngine {
    /// Starts the engine. Compiled plugins are cached in `RLHOST_CACHE_DIR` or the user's cache directory; without either, they
    /// are compiled each time.
    pub fn new() -> Result<Self> {
        let fail = |e: wasmtime::Error| Error::Engine(format!("{e:#}"));
        let wasmtime = wasmtime::Engine::new(&configuration(CompileEffort::Full)).map_err(fail)?;
        let mut linker = Linker::new(&wasmtime);
        add_to_linker(&mut linker).map_err(fail)?;
        let (clock, watchdog, weak) = (EngineClock::default(), CallWatchdog::default(), wasmtime.weak());
        let tick = move || weak.upgrade().map(|engine| engine.increment_epoch()).is_some();
        clock.begin(tick).and_then(|()| watchdog.begin()).map_err(|e| Error::Engine(e.to_string()))?;
        let threads = threads().map_err(|e| Error::Engine(format!("can't start a thread for each processor: {e}")))?;
        let components = Components::open(threads);
        let (names, logged) = (MetricOwners::default(), LogLineCounts::default());
        Ok(Self {
            wasmtime,
            linker,
            components,
            names,
            logged,
            clock,
            watchdog,
            threads,
            in_background: false,
            http_clients: BTreeMap::new(),
            folders: BTreeMap::new(),
        })
    }

    /// Returns this engine for background work: it compiles with this many threads, and a hanging call does not end the run.
    #[must_use]
    pub fn for_background(&self, threads: usize) -> Self {
        Self { components: self.components.with_threads(threads), in_background: true, ..self.clone() }
    }

    /// Returns a plugin's component, compiled or from the cache. Creates a trial instance of it within these limits, unless one was created
    /// before.
    pub(super) fn component(&self, bytes: &[u8], limits: &PluginLimits) -> std::result::Result<CompiledPlugin, CompileRefusal> {
        self.components.load_plugin(&self.wasmtime, bytes, limits)
    }

    /// Returns the built-in interpreter of a language, compiled once per machine and read once per process.
    pub(super) fn interpreter(
        &self,
        language: Language,
        limits: &PluginLimits,
    ) -> std::result::Result<CompiledPlugin, CompileRefusal> {
        self.components.interpreter(&self.wasmtime, language, limits)
    }

    /// Returns the names of the metrics that plugins have reported.
    pub fn reported_metrics(&self) -> Vec<String> {
        self.names.reported()
    }

    /// Lets all versions of the reward of this name send requests.
    pub fn grant(&mut self, name: &str, asker: Arc<PluginHttpClient>) {
        self.http_clients.insert(name.to_owned(), asker);
    }

    /// Lets all versions of the plugin of this name read folders.
    pub fn grant_folders(&mut self, name: &str, folders: Arc<Folders>) {
        self.folders.insert(name.to_owned(), folders);
    }
}

/// Adds the interfaces that every plugin may import to a linker. They are identical in all versions of the contract.
fn add_to_linker(linker: &mut Linker<Sandbox>) -> wasmtime::Result<()> {
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

/// Returns the number of threads of the pool, and starts it if needed. Its lazy start would panic where the system has no room for threads.
fn threads() -> std::io::Result<usize> {
    let started = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    match started.err().and_then(|error| error.source().map(ToString::to_string)) {
        Some(error) => Err(std::io::Error::other(error)),
        // The pool is running already.
        None => Ok(rayon::current_num_threads()),
    }
}
