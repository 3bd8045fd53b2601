//! Takes a plugin from bytes to something that can be instantiated: compiles, checks and describes it, and validates its configuration.

mod script;

pub use script::functions_of;

use super::cells::{CellFactory, Cells};
use super::census::CompileRefusal;
use super::compiler::CompiledPlugin;
use super::contract::types;
use super::deadline::{Deadline, EngineClock};
use super::engine::PluginEngine;
use super::error::LONGEST_TEXT;
use super::exports::{Description, Exports};
use super::folders::Folders;
use super::hints::Hints;
use super::limits::CARRIED;
use super::limits::MOST_HANDLES;
use super::limits::{MemoryRefusal, MemoryShare};
use super::metrics::{MetricOrigin, Reporter};
use super::plugin_instance::PluginInstance;
use super::requests::{self, PluginHttpClient, RequestChannel};
use super::sandbox::Sandbox;
use super::script::{Bytecode, Script};
use super::state::PluginState;
use super::world::{self, Role};
use super::{Error, Metric, NeededInputs, PluginSource, Result, schema, wasi};
use crate::activity::{Activity, ProgressTask};
use crate::config::{PluginLimits, printable};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wasmtime::component::{Component, Instance as Linked, InstancePre, Linker};
use wasmtime::{Store, Trap};

/// Number of lines of a plugin's output that an error message quotes.
const LINES_SHOWN: usize = 6;

/// A plugin's description of itself.
#[derive(Clone, Debug)]
pub struct PluginInfo {
    /// Name that the plugin gives itself.
    pub name: String,
    /// Version that the plugin gives itself.
    pub version: String,
    /// One-line description.
    pub description: String,
    /// JSON Schema of the configuration.
    pub config_schema: String,
    /// Hints to the host in that schema.
    pub hints: Hints,
    /// Columns that the plugin needs with its configuration.
    pub needs: NeededInputs,
    /// Whether each answer is independent of earlier calls and other rows.
    pub stateless: bool,
}

/// The part of a plugin that its instances share.
pub(super) struct LoadedPlugin {
    pub name: String,
    pub hash: String,
    pub limits: PluginLimits,
    pub seed: u64,
    pub config: Map<String, Value>,
    pub info: PluginInfo,
    /// Interfaces that the component exports.
    pub exports: Exports,
    /// Role that the plugin was loaded in.
    role: Role,
    maker: InstanceFactory,
    engine: PluginEngine,
    /// Whether a run continues without the plugin if it hangs.
    pub in_background: AtomicBool,
    /// Client for the plugin's requests.
    pub http_client: Option<Arc<PluginHttpClient>>,
}

/// Creates instances.
struct InstanceFactory {
    pre: InstancePre<Sandbox>,
    /// Memory of each instance besides its memories and tables, in bytes.
    fixed: usize,
    /// Creates cells, if the plugin opens any.
    walls: Option<Arc<CellFactory>>,
    /// Folders that instances may read.
    folders: Option<Arc<Folders>>,
    /// Script that instances run, if they are interpreters.
    script: Option<LoadedScript>,
}

/// A script that is loaded as a plugin.
struct LoadedScript {
    script: Script,
    /// Bytecode of the script's modules; `None` if it has few.
    bytecode: Option<Bytecode>,
    /// Settings that instances are configured with, if the plugin's configuration also has those of a base.
    own_config: Option<Map<String, Value>>,
}

/// A call about to be made, as errors name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PluginCall {
    pub function: &'static str,
    pub step: Option<u64>,
    /// For an environment: the scope in which requests have the same answers, and whether this is the last attempt.
    pub episodes: Option<(u64, bool)>,
}

/// Maximum length of a configuration schema, in bytes.
const LONGEST_SCHEMA: usize = 256 << 10;

impl PluginCall {
    pub(super) fn new(function: &'static str) -> Self {
        Self { function, step: None, episodes: None }
    }

    /// Creates a call about episodes, whose servers' answers are recorded within a `scope`. A failure of the `last` attempt is recorded
    /// too, since it decides the episode.
    pub(super) fn with_episodes(function: &'static str, scope: u64, last: bool) -> Self {
        Self { episodes: Some((scope, last)), ..Self::new(function) }
    }

    /// Returns the step and the scope of the call's requests, if it may send any.
    fn asks(self) -> Option<(u64, u64)> {
        match self.episodes {
            Some((scope, _)) => Some((scope, scope)),
            None => self.step.filter(|_| self.function == "score").map(|step| (step, 0)),
        }
    }

    pub(super) fn with_step(function: &'static str, step: u64) -> Self {
        Self { function, step: Some(step), episodes: None }
    }
}

/// Returns a number derived from the name, by which the seeds of a run's plugins differ.
fn of_its_own(name: &str) -> u64 {
    Sha256::digest(name).iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl LoadedPlugin {
    /// Compiles the plugin, checks it against the role, describes it, validates the configuration and configures it. Then describes it
    /// again, since a plugin's needs may depend on its configuration. Also returns the instance used.
    pub(super) fn load(
        engine: &PluginEngine,
        source: &PluginSource,
        role: Role,
        config: &Map<String, Value>,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<(Self, PluginInstance)> {
        let (mut this, plain) = Self::load_with_instance(engine, source, role, limits, seed)?;
        this.config = schema::resolve_for(source.name(), Some(role), &this.info.config_schema, config)?;
        let deadline = this.deadline();
        // Describing a script has run its top level, which may take long, so the same interpreter is configured without running it again.
        let mut running = match this.is_script() {
            true => this.configure_instance(plain, None, deadline)?,
            false => {
                // Frees the memory before the other instance is created.
                drop(plain);
                this.start(None, &this.whole_share(), deadline)?
            }
        };
        this.info = this.describe(&mut running, deadline)?;
        if matches!(role, Role::Reward | Role::Environment) {
            let wrong = |detail| Error::Config { name: this.name.clone(), detail };
            this.info.needs.check(role, &[]).map_err(wrong)?;
        }
        Ok((this, running))
    }

    /// Compiles the plugin, checks it against the role, and has it describe itself without a configuration.
    pub(super) fn load_unconfigured(
        engine: &PluginEngine,
        source: &PluginSource,
        role: Role,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<Self> {
        Ok(Self::load_with_instance(engine, source, role, limits, seed)?.0)
    }

    /// Loads and describes a plugin like [`load_unconfigured`](Self::load_unconfigured). Also returns the instance, which is not
    /// configured.
    fn load_with_instance(
        engine: &PluginEngine,
        source: &PluginSource,
        role: Role,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<(Self, PluginInstance)> {
        let (mut this, unmade) = Self::compile(engine, source, role, limits, seed)?;
        let deadline = this.deadline();
        if let Some(detail) = unmade {
            return Err(this.error(PluginCall::new("instantiate"), detail));
        }
        let mut plain = this.instantiate(&this.whole_share(), deadline, false)?;
        this.info = this.describe(&mut plain, deadline)?;
        Ok((this, plain))
    }

    /// Compiles a plugin and checks it against the role. Also returns why the trial instance could not be created, if it failed.
    fn compile(
        engine: &PluginEngine,
        source: &PluginSource,
        role: Role,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<(Self, Option<String>)> {
        let name = source.name();
        let CompiledPlugin { component, fixed, trial_error: unmade } = compile(engine, source, limits)?;
        role.check(name, &component, &engine.wasmtime)?;
        let asker = asker_for(engine, name, role, &component)?;
        let pre = linked(&engine.linker, &component, asker.is_some()).map_err(|e| Error::Config {
            name: name.to_owned(),
            detail: printable(&format!("its imports don't fit what rlhost offers: {e:#}"), LONGEST_TEXT),
        })?;
        let exports = Exports::from_instance_pre(&pre).map_err(|e| Error::WrongWorld {
            name: name.to_owned(),
            wanted: role.name(),
            detail: printable(&format!("{e:#}"), LONGEST_TEXT),
        })?;
        let seed = seed ^ of_its_own(name);
        let at = (engine.clock.clone(), engine.logged.clone());
        let walls =
            exports.answer().map(|answer| Arc::new(CellFactory::new((pre.clone(), answer), at, name, limits, fixed, seed)));
        // An algorithm may have the same name as a reward.
        let may_read = matches!(role, Role::Reward | Role::Environment);
        let folders = engine.folders.get(name).filter(|_| may_read).cloned();
        let script = source.script().cloned().zip(source.interpreter());
        let script = script.map(|(script, interpreter)| LoadedScript {
            bytecode: Bytecode::load(&script, interpreter),
            script,
            own_config: None,
        });
        let info = PluginInfo {
            name: name.to_owned(),
            version: String::new(),
            description: String::new(),
            config_schema: "{}".to_owned(),
            hints: Hints::default(),
            needs: NeededInputs::default(),
            stateless: false,
        };
        let this = Self {
            name: name.to_owned(),
            hash: source.hash().to_owned(),
            limits: limits.clone(),
            seed,
            config: Map::new(),
            info,
            exports,
            role,
            maker: InstanceFactory { pre, fixed, walls, folders, script },
            engine: engine.clone(),
            in_background: AtomicBool::new(engine.in_background),
            http_client: asker,
        };
        Ok((this, unmade))
    }

    /// Returns the deadline of a call that starts now.
    pub(super) fn deadline(&self) -> Deadline {
        self.engine.clock.after(self.limits.call_timeout())
    }

    /// Returns the deadline of a call that starts now, including the servers' time, at most this many ticks from now.
    pub(super) fn deadline_within(&self, ticks: u64) -> Deadline {
        self.deadline_of_calls(1).min(self.engine.clock.in_ticks(ticks))
    }

    /// Returns the clock for time limits.
    pub(super) fn clock(&self) -> &EngineClock {
        &self.engine.clock
    }

    /// Returns the time that servers may take in a call, in addition to the plugin's own.
    pub(super) fn time_of_servers(&self) -> Duration {
        self.http_client.as_ref().map_or(Duration::ZERO, |asker| asker.grants().http.call_timeout())
    }

    /// Returns the deadline of calls that start now and together have the time of `count` calls.
    pub(super) fn deadline_of_calls(&self, count: u32) -> Deadline {
        self.engine.clock.after(self.limits.call_timeout().saturating_mul(count).saturating_add(self.time_of_servers()))
    }

    /// Records the servers' answers of a call, unless it was only a background trial.
    pub(super) fn commit_answers(&self, call: PluginCall, running: &mut PluginInstance, succeeded: bool) -> Result<()> {
        let entries = running.store.data_mut().request_channel.as_mut().map(RequestChannel::take_entries).unwrap_or_default();
        match &self.http_client {
            Some(asker) if !entries.is_empty() && !self.in_background.load(Ordering::Relaxed) => asker
                .commit(entries, succeeded || call.episodes.is_some_and(|(_, last)| last))
                .map_err(|detail| self.error(call, detail)),
            _ => Ok(()),
        }
    }

    /// Returns whether a deadline has passed.
    pub(super) fn is_over(&self, deadline: Deadline) -> bool {
        self.engine.clock.until(deadline) == 0
    }

    /// Returns how many instances of this size, each with its cells, fit into the plugin's total memory.
    pub(super) fn room_for(&self, bytes: usize) -> usize {
        (self.limits.total_memory() / bytes.saturating_add(self.memory_of_cells()).max(1)).max(1)
    }

    /// Returns the memory that an instance's cells may take, in bytes; 0 if the plugin opens no cells.
    fn memory_of_cells(&self) -> usize {
        self.maker.walls.as_ref().map_or(0, |walls| walls.size())
    }

    /// Returns whether the plugin opens cells.
    pub(super) fn opens_cells(&self) -> bool {
        self.maker.walls.is_some()
    }

    /// Returns the most memory that an instance and its cells can use, in bytes.
    pub(super) fn most_useful(&self) -> usize {
        match self.maker.walls {
            Some(_) => self.limits.total_memory(),
            None => self.limits.memory().min(self.limits.total_memory()),
        }
    }

    /// Returns the memory share of an instance that is the only one.
    pub(super) fn whole_share(&self) -> MemoryShare {
        MemoryShare::new(self.limits.total_memory())
    }

    /// Returns how many threads calls may be spread over.
    pub(super) fn threads(&self) -> usize {
        self.engine.threads
    }

    /// Checks the metrics that the plugin reported.
    pub(super) fn checked_metrics(&self, metrics: MetricOrigin, given: Vec<Metric>) -> std::result::Result<Vec<Metric>, String> {
        let in_run = !self.in_background.load(Ordering::Relaxed);
        self.engine.names.checked(&Reporter { plugin: &self.name, metrics, in_run }, given)
    }

    fn describe(&self, running: &mut PluginInstance, deadline: Deadline) -> Result<PluginInfo> {
        if let Some(LoadedScript { script, .. }) = &self.maker.script {
            return self.describe_script(script, running, deadline);
        }
        let described = self.call_bounded(running, PluginCall::new("describe"), deadline, |store, linked| {
            self.exports.describe(self.role, store, linked)
        })?;
        let of_schema = |detail: String| Error::Config {
            name: self.name.clone(),
            detail: printable(&format!("its configuration schema {detail}"), LONGEST_TEXT),
        };
        let info: Description = described.map_err(of_schema)?;
        if info.config_schema.len() > LONGEST_SCHEMA {
            let detail =
                format!("its configuration schema has {} bytes; the limit is {LONGEST_SCHEMA}", info.config_schema.len());
            return Err(Error::Config { name: self.name.clone(), detail });
        }
        let mut hints = Hints::from_schema(&info.config_schema).map_err(of_schema)?;
        hints.derived_metrics.extend(info.derived_metrics);
        Ok(PluginInfo {
            name: printable(&info.name, LONGEST_TEXT),
            version: printable(&info.version, LONGEST_TEXT),
            description: printable(&info.description, LONGEST_TEXT),
            config_schema: info.config_schema,
            hints,
            needs: info.needs,
            stateless: info.stateless,
        })
    }

    /// Creates an instance; `muted` drops its log lines.
    fn instantiate(&self, share: &MemoryShare, deadline: Deadline, muted: bool) -> Result<PluginInstance> {
        let call = PluginCall::new("instantiate");
        let mut sandbox = Sandbox::new(&self.name, &self.limits, share.clone(), self.engine.logged.clone(), self.seed);
        sandbox.muted = muted;
        if !sandbox.ceiling.take(self.maker.fixed) {
            let refused = sandbox.ceiling.refused.map(|refused| too_much_memory(&self.limits, refused));
            return Err(self.error(call, refused.unwrap_or_default()));
        }
        sandbox.request_channel = self.http_client.clone().map(|asker| RequestChannel::new(asker, self.engine.clock.clone()));
        self.maker.folders.iter().for_each(|folders| sandbox.wasi().grant(folders.clone()));
        sandbox.cells = self.maker.walls.clone().map(|walls| Box::new(Cells::new(walls, share.clone())) as Box<_>);
        let mut store = Store::new(self.maker.pre.engine(), sandbox);
        store.set_hostcall_fuel(CARRIED);
        store.set_max_component_handles(MOST_HANDLES);
        store.limiter(|sandbox| &mut sandbox.ceiling);
        let linked = self.timed(&mut store, call, deadline, |store| self.maker.pre.instantiate(store))?;
        Ok(PluginInstance { store, linked })
    }

    /// Creates a configured instance that starts with a state and takes memory from `share`.
    pub(super) fn start(&self, state: Option<&PluginState>, share: &MemoryShare, deadline: Deadline) -> Result<PluginInstance> {
        self.configure_instance(self.instantiate(share, deadline, false)?, state, deadline)
    }

    /// Creates an instance like [`LoadedPlugin::start`], but drops its log lines, since another instance has logged them.
    pub(super) fn start_silently(
        &self,
        state: Option<&PluginState>,
        share: &MemoryShare,
        deadline: Deadline,
    ) -> Result<PluginInstance> {
        self.configure_instance(self.instantiate(share, deadline, true)?, state, deadline)
    }

    /// Configures a new instance and restores a state in it.
    fn configure_instance(
        &self,
        mut running: PluginInstance,
        state: Option<&PluginState>,
        deadline: Deadline,
    ) -> Result<PluginInstance> {
        let json = self.configuration();
        let configured = self.call_bounded(&mut running, PluginCall::new("configure"), deadline, |store, linked| {
            self.exports.configure(store, linked, &json)
        })?;
        configured.map_err(|e| Error::Config { name: self.name.clone(), detail: self.error_text(e) })?;
        if let Some(PluginState { bytes, written_by }) = state.filter(|_| self.exports.has_state()) {
            let call = PluginCall::new("restore");
            let restored = self.call_bounded(&mut running, call, deadline, |store, linked| {
                self.exports.restore(store, linked, bytes, written_by)
            })?;
            restored
                .map_err(|e| self.error(call, format!("it can't restore the state of {written_by}: {}", self.error_text(e))))?;
        }
        Ok(running)
    }

    /// Calls an instance under the limits. After an error, the instance is unusable.
    pub(super) fn call_bounded<R>(
        &self,
        running: &mut PluginInstance,
        call: PluginCall,
        deadline: Deadline,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> wasmtime::Result<R>,
    ) -> Result<R> {
        let linked = running.linked;
        self.timed(&mut running.store, call, deadline, |store| f(store, &linked))
    }

    fn timed<R>(
        &self,
        store: &mut Store<Sandbox>,
        call: PluginCall,
        deadline: Deadline,
        f: impl FnOnce(&mut Store<Sandbox>) -> wasmtime::Result<R>,
    ) -> Result<R> {
        if let Some(cells) = &mut store.data_mut().cells {
            cells.until(deadline);
        }
        // One tick more, because part of the first has already passed.
        store.set_epoch_deadline(self.engine.clock.until(deadline) + 1);
        if let Some(line) = &mut store.data_mut().request_channel {
            line.begin(deadline, call.asks());
        }
        let what = format!("plugin {}, {}", self.name, call.function);
        let limit = self.limits.call_timeout().saturating_add(self.time_of_servers());
        let watched = self.engine.watchdog.watch(what, limit, self.in_background.load(Ordering::Relaxed));
        let answer = f(store);
        drop(watched);
        store.data_mut().write_log();
        answer.map_err(|e| self.explain(store, call, &e))
    }

    /// Returns a call's error, which names the plugin.
    pub(super) fn error(&self, call: PluginCall, detail: String) -> Error {
        Error::Call { name: self.name.clone(), function: call.function, step: call.step, detail }
    }

    /// Explains a trap or host error, with the plugin's last output.
    fn explain(&self, store: &mut Store<Sandbox>, call: PluginCall, error: &wasmtime::Error) -> Error {
        let mut detail = cause(&self.limits, store.data(), error);
        if call.function == "instantiate" && detail.contains("Cannot allocate memory") {
            detail.push_str("; an instance reserves address space, which `ulimit -v` or the system's settings may limit");
        }
        self.error(call, with_output(detail, store.data_mut()))
    }
}

/// Describes the memory that an instance was refused.
fn too_much_memory(limits: &PluginLimits, refused: MemoryRefusal) -> String {
    let PluginLimits { memory_mb, total_memory_mb, table_elements, .. } = limits;
    match refused {
        MemoryRefusal::InstanceMemory => format!("needed more than its {memory_mb} MiB of memory (limits.memory_mb)"),
        MemoryRefusal::TotalMemory => {
            format!("its instances needed more than {total_memory_mb} MiB of memory in total (limits.total_memory_mb)")
        }
        MemoryRefusal::Elements => {
            format!("needed a table of more than {table_elements} elements (limits.table_elements)")
        }
    }
}

/// Returns the cause of a trap or host error.
pub(super) fn cause(limits: &PluginLimits, sandbox: &Sandbox, error: &wasmtime::Error) -> String {
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => format!("took longer than its limit of {} s (limits.call_timeout_s)", limits.call_timeout_s),
        Some(Trap::StackOverflow) => "its stack overflowed: the recursion is too deep".to_owned(),
        trap => match (sandbox.ceiling.refused, trap) {
            (Some(refused), _) => too_much_memory(limits, refused),
            (None, Some(trap)) => trap.to_string(),
            (None, None) => printable(&error.root_cause().to_string(), LONGEST_TEXT),
        },
    }
}

/// Appends the last output of an instance to the detail of its error.
pub(super) fn with_output(mut detail: String, sandbox: &mut Sandbox) -> String {
    let printed = sandbox.printed();
    let lines: Vec<&str> = printed.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("note: ")).collect();
    if !lines.is_empty() {
        detail.push_str("; its output: ");
        detail.push_str(&printable(&lines[lines.len().saturating_sub(LINES_SHOWN)..].join(" "), LONGEST_TEXT));
    }
    detail
}

/// Returns the request client for a plugin that imports `http`.
fn asker_for(engine: &PluginEngine, name: &str, role: Role, component: &Component) -> Result<Option<Arc<PluginHttpClient>>> {
    let Some(interface) = world::imported(component, &engine.wasmtime, &requests::INTERFACES) else { return Ok(None) };
    match engine.http_clients.get(name) {
        _ if !matches!(role, Role::Reward | Role::Environment) => Err(Error::WrongWorld {
            name: name.to_owned(),
            wanted: role.name(),
            detail: format!("it imports {interface}; only rewards and environments may send requests"),
        }),
        None => Err(Error::NotGranted { name: name.to_owned(), interface }),
        some => Ok(some.cloned()),
    }
}

/// Links a component's imports, including requests, to the host.
pub(super) fn linked(
    linker: &Linker<Sandbox>,
    component: &Component,
    with_requests: bool,
) -> wasmtime::Result<InstancePre<Sandbox>> {
    let mut linker = linker.clone();
    if with_requests {
        requests::add_to_linker(&mut linker)?;
    }
    wasi::add_to_linker(&mut linker, component)?;
    linker.instantiate_pre(component)
}

/// Returns the text of a plugin's own error.
fn error_text(error: types::Error) -> String {
    let shown = |text: String| printable(&text, LONGEST_TEXT);
    match error {
        types::Error::Config(text) => format!("wrong configuration: {}", shown(text)),
        types::Error::Input(text) => format!("it can't work on this batch: {}", shown(text)),
        types::Error::Unsupported(text) => format!("it does not support this: {}", shown(text)),
        types::Error::Internal(text) => shown(text),
    }
}

pub(super) fn compile(engine: &PluginEngine, source: &PluginSource, limits: &PluginLimits) -> Result<CompiledPlugin> {
    let what = match source.script() {
        Some(script) if source.own_interpreter().is_none() => format!("the {} interpreter", script.language().name()),
        _ => source.name().to_owned(),
    };
    let _task = ProgressTask::new(Activity::CompilingPlugin).with_subject(what);
    let compiled = match source.script() {
        Some(script) if source.own_interpreter().is_none() => engine.interpreter(script.language(), limits),
        _ => engine.component(source.own_interpreter().unwrap_or(source.bytes()), limits),
    };
    compiled.map_err(|refusal| {
        let (name, shown) = (source.name().to_owned(), |detail: &str| printable(detail, LONGEST_TEXT));
        match refusal {
            CompileRefusal::Damaged(detail) => Error::NotComponent { name, detail: shown(&detail) },
            CompileRefusal::TooMuch(detail) => Error::Uncompiled { name, detail: shown(&detail) },
        }
    })
}

#[cfg(test)]
mod tests {

    use crate::limits::carried_by_each;

    #[test]
    fn calls_side_by_side_share_what_one_may_carry() {
        let mebibytes = |calls: usize| carried_by_each(calls) >> 20;
        assert_eq!([0, 1, 4, 16, 1000].map(mebibytes), [128, 128, 32, 8, 8]);
    }
}
