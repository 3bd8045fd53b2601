//! A plugin from bytes to something that can be instantiated: compiled, checked, described, its
//! configuration validated.

use super::engine::{Engine, TICK};
use super::figures::Names;
use super::instance::{Memory, Running};
use super::sandbox::Sandbox;
use super::world::{self, Described, Remembering, Role, plugin, types};
use super::{Error, LONGEST_TEXT, Metric, Needs, Result, Source, schema, wasi, wrap};
use crate::config::{Limits, printable};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::time::Duration;
use wasmtime::component::{Component, Instance as Linked, InstancePre};
use wasmtime::{Store, Trap};

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

/// A plugin without its instances; they share it.
pub(super) struct Loaded {
    pub name: String,
    pub hash: String,
    pub limits: Limits,
    pub seed: u64,
    pub config: Map<String, Value>,
    pub info: Info,
    /// Whether it exports `state`.
    pub remembers: bool,
    /// Whether it exports `observer`.
    pub observes: bool,
    pre: InstancePre<Sandbox>,
    names: Names,
}

/// A call that is about to be made: what an error says of it, and how long it may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub function: &'static str,
    pub step: Option<u64>,
    /// Less time than the plugin's own limit.
    pub within: Option<Duration>,
}

/// Bytes of a configuration schema.
const LONGEST_SCHEMA: usize = 256 << 10;

/// Bytes of the host's memory that what a plugin says in one go may take.
const CARRIED: usize = 128 << 20;

impl Call {
    pub(super) fn new(function: &'static str) -> Self {
        Self { function, step: None, within: None }
    }

    pub(super) fn at(function: &'static str, step: u64) -> Self {
        Self { function, step: Some(step), within: None }
    }
}

/// A number that two plugins of a run do not share.
fn of_its_own(name: &str) -> u64 {
    Sha256::digest(name).iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
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

impl Loaded {
    /// Compiles, checks against the role, describes, validates the configuration, configures, and
    /// describes again, since what a plugin needs may depend on its configuration. Also gives the
    /// instance that was asked.
    pub(super) fn load(
        engine: &Engine,
        source: &Source,
        role: Role,
        config: &Map<String, Value>,
        limits: &Limits,
        seed: u64,
    ) -> Result<(Self, Running)> {
        let name = source.name();
        let component = compile(engine, source)?;
        role.check(name, &component, &engine.wasmtime)?;
        let mut linker = engine.linker.clone();
        let linked = wasi::offer(&mut linker, &component).and_then(|()| linker.instantiate_pre(&component));
        let pre = linked.map_err(|e| Error::Config {
            name: name.to_owned(),
            detail: printable(&format!("its imports don't fit what rlhost offers: {e:#}"), LONGEST_TEXT),
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
            limits: limits.clone(),
            seed: seed ^ of_its_own(name),
            config: Map::new(),
            info,
            remembers: world::exports(&component, &engine.wasmtime, "state"),
            observes: world::exports(&component, &engine.wasmtime, "observer"),
            pre,
            names: engine.names.clone(),
        };
        let mut plain = this.instantiate()?;
        let described = this.describe(&mut plain)?;
        this.config = schema::resolve(name, &described.config_schema, config)?;
        let mut running = this.start(None)?;
        this.info = this.describe(&mut running)?;
        Ok((this, running))
    }

    /// The figures that it reported, under names that it may use.
    pub(super) fn checked_metrics(&self, given: Vec<Metric>) -> std::result::Result<Vec<Metric>, String> {
        self.names.checked(&self.name, given)
    }

    fn describe(&self, running: &mut Running) -> Result<Info> {
        let info = self.bounded(running, Call::new("describe"), |store, linked| {
            Described::new(&mut *store, linked)?.rlhost_plugin_plugin().call_describe(&mut *store)
        })?;
        if info.config_schema.len() > LONGEST_SCHEMA {
            let detail =
                format!("its configuration schema has {} bytes; there are at most {LONGEST_SCHEMA}", info.config_schema.len());
            return Err(Error::Config { name: self.name.clone(), detail });
        }
        Ok(Info {
            name: printable(&info.name, LONGEST_TEXT),
            version: printable(&info.version, LONGEST_TEXT),
            description: printable(&info.description, LONGEST_TEXT),
            config_schema: info.config_schema,
            needs: needs(info.needs),
            stateless: info.stateless,
        })
    }

    fn instantiate(&self) -> Result<Running> {
        let mut store = Store::new(self.pre.engine(), Sandbox::new(&self.name, &self.limits, self.seed));
        store.set_hostcall_fuel(CARRIED);
        store.limiter(|sandbox| &mut sandbox.ceiling);
        let call = Call::new("instantiate");
        self.wind_up(&mut store, call);
        let linked = self.pre.instantiate(&mut store).map_err(|e| self.explain(&mut store, call, &e))?;
        Ok(Running { store, linked })
    }

    /// A configured instance that goes on from a state.
    pub(super) fn start(&self, memory: Option<&Memory>) -> Result<Running> {
        let mut running = self.instantiate()?;
        let json = Value::Object(self.config.clone()).to_string();
        let configured = self.bounded(&mut running, Call::new("configure"), |store, linked| {
            Described::new(&mut *store, linked)?.rlhost_plugin_plugin().call_configure(&mut *store, &json)
        })?;
        configured.map_err(|e| Error::Config { name: self.name.clone(), detail: said(e) })?;
        if let Some(Memory { bytes, written_by }) = memory.filter(|_| self.remembers) {
            let call = Call::new("restore");
            let restored = self.bounded(&mut running, call, |store, linked| {
                Remembering::new(&mut *store, linked)?.rlhost_plugin_state().call_restore(&mut *store, bytes, written_by)
            })?;
            restored.map_err(|e| self.error(call, format!("the state that {written_by} left does not fit it: {}", said(e))))?;
        }
        Ok(running)
    }

    fn wind_up(&self, store: &mut Store<Sandbox>, call: Call) {
        let own = self.limits.call_timeout_s;
        let seconds = call.within.map_or(own, |within| own.min(within.as_secs_f64()));
        let ticks = (seconds / TICK.as_secs_f64()).ceil().clamp(1.0, 1e12) as u64;
        store.set_epoch_deadline(ticks + 1);
        store.data_mut().begin_call();
    }

    /// Calls under the limits. After an error the instance is of no more use.
    pub(super) fn bounded<R>(
        &self,
        running: &mut Running,
        call: Call,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> wasmtime::Result<R>,
    ) -> Result<R> {
        self.wind_up(&mut running.store, call);
        f(&mut running.store, &running.linked).map_err(|e| self.explain(&mut running.store, call, &e))
    }

    /// An error of a call, in the plugin's name.
    pub(super) fn error(&self, call: Call, detail: String) -> Error {
        Error::Call { name: self.name.clone(), function: call.function, step: call.step, detail }
    }

    /// What a trap or a host error means, in words, with what the plugin printed last.
    fn explain(&self, store: &mut Store<Sandbox>, call: Call, error: &wasmtime::Error) -> Error {
        let sandbox = store.data_mut();
        let mut detail = match error.downcast_ref::<Trap>() {
            Some(Trap::Interrupt) => {
                format!("took longer than its limit of {} s (limits.call_timeout_s)", self.limits.call_timeout_s)
            }
            Some(Trap::StackOverflow) => "its stack overflowed: recursion too deep".to_owned(),
            _ if sandbox.ceiling.refused => {
                format!("needed more than its {} MiB of memory (limits.memory_mb)", self.limits.memory_mb)
            }
            Some(trap) => trap.to_string(),
            None => printable(&error.root_cause().to_string(), LONGEST_TEXT),
        };
        let printed = sandbox.printed();
        let lines: Vec<&str> = printed.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("note: ")).collect();
        if !lines.is_empty() {
            detail.push_str("; it printed: ");
            detail.push_str(&printable(&lines[lines.len().saturating_sub(LINES_SHOWN)..].join(" "), LONGEST_TEXT));
        }
        self.error(call, detail)
    }
}

pub(super) fn said(error: types::Error) -> String {
    let shown = |text: String| printable(&text, LONGEST_TEXT);
    match error {
        types::Error::Config(text) => format!("wrong configuration: {}", shown(text)),
        types::Error::Input(text) => format!("it can't work on this batch: {}", shown(text)),
        types::Error::Unsupported(text) => format!("it does not support this: {}", shown(text)),
        types::Error::Internal(text) => shown(text),
    }
}

pub(super) fn compile(engine: &Engine, source: &Source) -> Result<Component> {
    let fail = |detail: &str| Error::NotComponent { name: source.name().to_owned(), detail: printable(detail, LONGEST_TEXT) };
    let bytes = component_bytes(source)?;
    engine.component(&bytes).map_err(|e| fail(&format!("{:#}", e.root_cause())))
}

/// The bytes of a component: the plugin's own, or those that a core module is wrapped into.
pub(super) fn component_bytes(source: &Source) -> Result<Cow<'_, [u8]>> {
    let fail = |detail: &str| Error::NotComponent { name: source.name().to_owned(), detail: printable(detail, LONGEST_TEXT) };
    // The preamble's fifth byte tells a core module (1) from a component.
    match source.bytes() {
        core @ [b'\0', b'a', b's', b'm', 1, ..] => wrap::component(core).map(Cow::Owned).map_err(|e| fail(&e)),
        component @ [b'\0', b'a', b's', b'm', ..] => Ok(Cow::Borrowed(component)),
        [] => Err(fail("the file is empty")),
        _ => Err(fail("the file does not begin with WebAssembly's magic bytes")),
    }
}
