//! A plugin from bytes to a configured, bounded instance that is replaced when it fails.

use super::capture::Capture;
use super::engine::{Engine, TICK};
use super::limits::Ceiling;
use super::world::{self, Described, Remembering, Role, host, plugin, types};
use super::{Error, Needs, Result, Source, schema};
use crate::config::Limits;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wasmtime::component::{Component, Instance as Linked, InstancePre, ResourceTable};
use wasmtime::{Store, Trap};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView, WasiView};

/// Lines of a plugin's output that an error message repeats.
const LINES_SHOWN: usize = 6;

/// What a plugin says of itself.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One line for people.
    pub description: String,
    /// JSON Schema of its configuration.
    pub config_schema: String,
    /// Columns it asks for under its configuration.
    pub needs: Needs,
    /// Whether no answer depends on an earlier call or a neighbouring row.
    pub stateless: bool,
}

/// State that a plugin has given out of its hands, to have it back in another instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What it gave.
    pub bytes: Arc<[u8]>,
    /// Name and version of the plugin that did.
    pub written_by: String,
}

/// What an instance can reach: a WASI that opens onto nothing, and the run's log.
pub(super) struct Sandbox {
    wasi: WasiCtx,
    table: ResourceTable,
    ceiling: Ceiling,
    output: Capture,
    name: String,
}

/// A clock that advances by a microsecond with each reading, so that runs can be repeated.
struct Ticks(AtomicU64);

impl Ticks {
    fn next(&self) -> u64 {
        self.0.fetch_add(1_000, Ordering::Relaxed)
    }
}

impl HostWallClock for Ticks {
    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.next())
    }
}

impl HostMonotonicClock for Ticks {
    fn resolution(&self) -> u64 {
        1_000
    }

    fn now(&self) -> u64 {
        self.next()
    }
}

impl Sandbox {
    fn new(name: &str, limits: &Limits, seed: u64) -> Self {
        let output = Capture::new(limits.output_kb as usize * 1024);
        let random = |stream: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(stream);
            rng
        };
        let wasi = WasiCtx::builder()
            .stdout(output.clone())
            .stderr(output.clone())
            .secure_random(random(1))
            .insecure_random(random(2))
            .insecure_random_seed(u128::from(seed))
            .wall_clock(Ticks(AtomicU64::new(0)))
            .monotonic_clock(Ticks(AtomicU64::new(0)))
            .build();
        Self { wasi, table: ResourceTable::new(), ceiling: Ceiling::new(limits), output, name: name.to_owned() }
    }
}

impl WasiView for Sandbox {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl types::Host for Sandbox {}

impl host::Host for Sandbox {
    fn log(&mut self, level: host::Level, message: String) {
        const LONGEST: usize = 4096;
        let end = message.char_indices().map(|(i, _)| i).take_while(|&i| i <= LONGEST).last().unwrap_or(0);
        let message = if message.len() > LONGEST { &message[..end] } else { &message };
        match level {
            host::Level::Debug => tracing::debug!(plugin = %self.name, "{message}"),
            host::Level::Info => tracing::info!(plugin = %self.name, "{message}"),
            host::Level::Warn => tracing::warn!(plugin = %self.name, "{message}"),
            host::Level::Error => tracing::error!(plugin = %self.name, "{message}"),
        }
    }
}

/// A plugin that has been checked, described and configured, with one warm instance.
pub struct Plugin {
    name: String,
    hash: String,
    pre: InstancePre<Sandbox>,
    limits: Limits,
    seed: u64,
    /// None until it has been checked against the plugin's schema.
    config: Option<Map<String, Value>>,
    info: Info,
    running: Option<Running>,
    /// Whether it exports `state`.
    remembers: bool,
    /// Its state when it was last asked; what a new instance begins with.
    memory: Option<Memory>,
    /// Whether it was called since.
    changed: bool,
}

struct Running {
    store: Store<Sandbox>,
    linked: Linked,
}

fn needs(flags: plugin::Needs) -> Needs {
    Needs {
        prompt_text: flags.contains(plugin::Needs::PROMPT_TEXT),
        completion_text: flags.contains(plugin::Needs::COMPLETION_TEXT),
        token_ids: flags.contains(plugin::Needs::TOKEN_IDS),
        dataset_columns: flags.contains(plugin::Needs::DATASET_COLUMNS),
        ref_logp: flags.contains(plugin::Needs::REF_LOGP),
        sampling_logp: flags.contains(plugin::Needs::SAMPLING_LOGP),
        values: flags.contains(plugin::Needs::VALUES),
        entropy: flags.contains(plugin::Needs::ENTROPY),
        mean_logits: flags.contains(plugin::Needs::MEAN_LOGITS),
    }
}

impl Plugin {
    /// Compiles, checks against the role, describes, validates the configuration and configures.
    pub(super) fn load(
        engine: &Engine,
        source: &Source,
        role: Role,
        config: &Map<String, Value>,
        limits: &Limits,
        seed: u64,
    ) -> Result<Self> {
        let name = source.name();
        let component = compile(engine, source)?;
        role.check(name, &component, &engine.wasmtime)?;
        let pre = engine.linker.instantiate_pre(&component).map_err(|e| Error::Config {
            name: name.to_owned(),
            detail: format!("its imports don't fit what rlhost offers: {e:#}"),
        })?;
        let info = Info {
            name: name.to_owned(),
            version: String::new(),
            description: String::new(),
            config_schema: "{}".to_owned(),
            needs: Needs::default(),
            stateless: false,
        };
        let mut this = Self {
            name: name.to_owned(),
            hash: source.hash().to_owned(),
            pre,
            limits: limits.clone(),
            seed,
            config: None,
            info,
            running: None,
            remembers: world::exports(&component, &engine.wasmtime, "state"),
            memory: None,
            changed: false,
        };
        this.info = this.describe()?;
        this.config = Some(schema::resolve(name, &this.info.config_schema, config)?);
        this.running = None;
        // What it needs may depend on its configuration.
        this.info = this.describe()?;
        Ok(this)
    }

    /// The name in configuration, metrics and events.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of its bytes.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Its description.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Its configuration, defaults filled in.
    pub fn config(&self) -> Map<String, Value> {
        self.config.clone().unwrap_or_default()
    }

    /// Whether what it answers depends on earlier calls, in a way that nothing can carry over to
    /// another instance.
    pub fn forgets(&self) -> bool {
        !self.info.stateless && !self.remembers
    }

    /// Asks for its state, where it has one and was called since the last time; the next
    /// instance begins with what this gives.
    pub fn remember(&mut self) -> Result<Option<Memory>> {
        if self.remembers && self.changed {
            let bytes = self.call("snapshot", None, |store, linked| {
                Remembering::new(&mut *store, linked)?.rlhost_plugin_state().call_snapshot(&mut *store)
            })?;
            self.memory = Some(Memory { bytes: bytes.into(), written_by: format!("{} {}", self.info.name, self.info.version) });
            self.changed = false;
        }
        Ok(self.memory.clone())
    }

    /// Goes back to a state that [`Plugin::remember`] gave; the next call makes a new instance.
    pub fn rewind(&mut self, memory: Option<Memory>) {
        self.memory = memory;
        self.running = None;
        self.changed = false;
    }

    /// Goes on from a state, in a new instance that is made at once, so that a state which does
    /// not fit is refused here.
    pub fn recall(&mut self, memory: Memory) -> Result<()> {
        self.rewind(Some(memory));
        self.running = Some(self.start()?);
        Ok(())
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    fn describe(&mut self) -> Result<Info> {
        let info = self.call("describe", None, |store, linked| {
            Ok(Ok(Described::new(&mut *store, linked)?.rlhost_plugin_plugin().call_describe(&mut *store)?))
        })?;
        Ok(Info {
            name: info.name,
            version: info.version,
            description: info.description,
            config_schema: info.config_schema,
            needs: needs(info.needs),
            stateless: info.stateless,
        })
    }

    /// Calls into the instance under the limits. An instance that trapped is thrown away; the
    /// next call makes and configures a new one.
    pub(super) fn call<R>(
        &mut self,
        function: &'static str,
        step: Option<u64>,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> wasmtime::Result<std::result::Result<R, types::Error>>,
    ) -> Result<R> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.start()?,
        };
        self.changed = true;
        let outcome = self.bounded(&mut running, function, step, f);
        match outcome {
            Ok(Ok(result)) => {
                running.store.data().output.take();
                self.running = Some(running);
                Ok(result)
            }
            Ok(Err(error)) => {
                self.running = Some(running);
                Err(self.call_error(function, step, said(error)))
            }
            Err(error) => Err(error),
        }
    }

    fn call_error(&self, function: &'static str, step: Option<u64>, detail: String) -> Error {
        Error::Call { name: self.name.clone(), function, step, detail }
    }

    /// A fresh instance, configured where the configuration is known.
    fn start(&self) -> Result<Running> {
        let mut store = Store::new(self.pre.engine(), Sandbox::new(&self.name, &self.limits, self.seed));
        store.limiter(|sandbox| &mut sandbox.ceiling);
        self.wind_up(&mut store);
        let linked = self.pre.instantiate(&mut store).map_err(|e| self.explain(&store, "instantiate", None, &e))?;
        let mut running = Running { store, linked };
        if let Some(config) = &self.config {
            let json = Value::Object(config.clone()).to_string();
            let configured = self.bounded(&mut running, "configure", None, |store, linked| {
                Described::new(&mut *store, linked)?.rlhost_plugin_plugin().call_configure(&mut *store, &json)
            })?;
            configured.map_err(|e| Error::Config { name: self.name.clone(), detail: said(e) })?;
        }
        if let Some(Memory { bytes, written_by }) = self.memory.as_ref().filter(|_| self.remembers) {
            let restored = self.bounded(&mut running, "restore", None, |store, linked| {
                Remembering::new(&mut *store, linked)?.rlhost_plugin_state().call_restore(&mut *store, bytes, written_by)
            })?;
            let said = |e| format!("the state that {written_by} left does not fit it: {}", said(e));
            restored.map_err(|e| self.call_error("restore", None, said(e)))?;
        }
        Ok(running)
    }

    fn wind_up(&self, store: &mut Store<Sandbox>) {
        let ticks = (self.limits.call_timeout_s / TICK.as_secs_f64()).ceil().clamp(1.0, 1e12) as u64;
        store.set_epoch_deadline(ticks + 1);
    }

    fn bounded<R>(
        &self,
        running: &mut Running,
        function: &'static str,
        step: Option<u64>,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> wasmtime::Result<R>,
    ) -> Result<R> {
        self.wind_up(&mut running.store);
        f(&mut running.store, &running.linked).map_err(|e| self.explain(&running.store, function, step, &e))
    }

    /// What a trap or a host error means, in words, with what the plugin printed last.
    fn explain(&self, store: &Store<Sandbox>, function: &'static str, step: Option<u64>, error: &wasmtime::Error) -> Error {
        let sandbox = store.data();
        let trap = error.downcast_ref::<Trap>();
        let mut detail = match trap {
            Some(Trap::Interrupt) => {
                format!("took longer than its limit of {} s (limits.call_timeout_s)", self.limits.call_timeout_s)
            }
            Some(Trap::StackOverflow) => "its stack overflowed: recursion too deep".to_owned(),
            _ if sandbox.ceiling.refused => {
                format!("needed more than its {} MiB of memory (limits.memory_mb)", self.limits.memory_mb)
            }
            Some(trap) => trap.to_string(),
            None => error.root_cause().to_string(),
        };
        let printed = sandbox.output.take();
        let lines: Vec<&str> = printed.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("note: ")).collect();
        if !lines.is_empty() {
            detail.push_str("; it printed: ");
            detail.push_str(&lines[lines.len().saturating_sub(LINES_SHOWN)..].join(" "));
        }
        self.call_error(function, step, detail)
    }
}

fn said(error: types::Error) -> String {
    match error {
        types::Error::Config(text) => format!("wrong configuration: {text}"),
        types::Error::Input(text) => format!("it can't work on this batch: {text}"),
        types::Error::Unsupported(text) => format!("it does not support this: {text}"),
        types::Error::Internal(text) => text,
    }
}

fn compile(engine: &Engine, source: &Source) -> Result<Component> {
    let bytes = source.bytes();
    let fail = |detail: &str| Error::NotComponent { name: source.name().to_owned(), detail: detail.to_owned() };
    // The preamble's fifth byte tells a core module (1) from a component.
    match bytes {
        [b'\0', b'a', b's', b'm', 1, ..] => {
            return Err(fail(
                "it is a core module; build it for wasm32-wasip2, or make a component of it with wasm-tools component new",
            ));
        }
        [b'\0', b'a', b's', b'm', ..] => {}
        [] => return Err(fail("the file is empty")),
        _ => return Err(fail("the file does not begin with WebAssembly's magic bytes")),
    }
    Component::new(&engine.wasmtime, bytes).map_err(|e| fail(&format!("{:#}", e.root_cause())))
}
