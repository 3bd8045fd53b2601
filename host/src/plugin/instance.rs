//! A plugin with its warm instances: calls under limits, side by side where the plugin is
//! stateless; instances that fail are replaced, and a state outlives them.

use super::deadline::Deadline;
use super::engine::Engine;
use super::loaded::{Call, Info, Loaded, said};
use super::sandbox::Sandbox;
use super::world::{Observing, Remembering, Role, types};
use super::{Metric, Result, Source, schema};
use crate::config::Limits;
use rayon::prelude::*;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

/// Bytes of a plugin's state.
pub const LARGEST_STATE: usize = 64 << 20;

/// State that a plugin has given out of its hands, to have it back in another instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What it gave.
    pub bytes: Arc<[u8]>,
    /// Name and version of the plugin that did.
    pub written_by: String,
}

/// An instance.
pub(super) struct Running {
    pub store: Store<Sandbox>,
    pub linked: Linked,
}

/// What a call into an instance gives: the plugin's answer or its own error.
pub(super) type Answer<R> = wasmtime::Result<std::result::Result<R, types::Error>>;

/// A plugin that has been checked, described and configured.
pub struct Plugin {
    loaded: Arc<Loaded>,
    /// Configured instances that nobody is calling.
    idle: Vec<Running>,
    /// Its state when it was last asked; what a new instance begins with.
    memory: Option<Memory>,
    /// Whether it was called since.
    changed: bool,
}

impl Plugin {
    /// Loads and configures; see [`Loaded::load`].
    pub(super) fn load(
        engine: &Engine,
        source: &Source,
        role: Role,
        config: &Map<String, Value>,
        limits: &Limits,
        seed: u64,
    ) -> Result<Self> {
        let (loaded, running) = Loaded::load(engine, source, role, config, limits, seed)?;
        Ok(Self { loaded: Arc::new(loaded), idle: vec![running], memory: None, changed: false })
    }

    /// The name in configuration, metrics and events.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// SHA-256 of its bytes.
    pub fn hash(&self) -> &str {
        &self.loaded.hash
    }

    /// Its description.
    pub fn info(&self) -> &Info {
        &self.loaded.info
    }

    /// Its configuration, defaults filled in.
    pub fn config(&self) -> Map<String, Value> {
        self.loaded.config.clone()
    }

    /// The settings that do not stand at its defaults: those that another version of it is given.
    pub fn settings_beyond_defaults(&self) -> Map<String, Value> {
        schema::beyond_defaults(&self.loaded.info.config_schema, &self.loaded.config)
    }

    /// What it may use.
    pub fn limits(&self) -> &Limits {
        &self.loaded.limits
    }

    /// The run depends on it from now on, if it was loaded beside one.
    pub fn enter_run(&self) {
        self.loaded.beside.store(false, Ordering::Relaxed);
    }

    /// The figures that it reported, under names that it may use.
    pub(super) fn checked_metrics(&self, given: Vec<Metric>) -> std::result::Result<Vec<Metric>, String> {
        self.loaded.checked_metrics(given)
    }

    pub(super) fn seed(&self) -> u64 {
        self.loaded.seed
    }

    /// Tells it the step's figures, where it wants to hear them.
    pub fn observe(&mut self, step: u64, figures: &[(String, f64)]) -> Result<()> {
        if !self.loaded.observes {
            return Ok(());
        }
        self.call(Call::at("observe", step), |store, linked| {
            Ok(Ok(Observing::new(&mut *store, linked)?.rlhost_plugin_observer().call_observe(&mut *store, step, figures)?))
        })
    }

    /// Whether it exports `observer`.
    pub fn observes(&self) -> bool {
        self.loaded.observes
    }

    /// Bytes of memory that its largest instance has.
    pub fn memory_used(&self) -> usize {
        self.idle.iter().map(|running| running.store.data().ceiling.used()).max().unwrap_or(0)
    }

    /// Whether what it answers depends on earlier calls, in a way that nothing can carry over to
    /// another instance.
    pub fn forgets(&self) -> bool {
        !self.loaded.info.stateless && !self.loaded.remembers
    }

    /// Asks for its state, where it has one and was called since the last time; the next
    /// instance begins with what this gives.
    pub fn remember(&mut self) -> Result<Option<Memory>> {
        if self.loaded.remembers && self.changed {
            let bytes = self.call(Call::new("snapshot"), |store, linked| {
                Remembering::new(&mut *store, linked)?.rlhost_plugin_state().call_snapshot(&mut *store)
            })?;
            if bytes.len() > LARGEST_STATE {
                let (has, most) = (bytes.len() >> 20, LARGEST_STATE >> 20);
                return Err(self
                    .loaded
                    .error(Call::new("snapshot"), format!("its state has {has} MiB; a plugin's has at most {most}")));
            }
            let info = &self.loaded.info;
            self.memory = Some(Memory { bytes: bytes.into(), written_by: format!("{} {}", info.name, info.version) });
            self.changed = false;
        }
        Ok(self.memory.clone())
    }

    /// Goes back to a state that [`Plugin::remember`] gave; the next call makes a new instance.
    pub fn rewind(&mut self, memory: Option<Memory>) {
        self.memory = memory;
        self.changed = false;
        if !self.loaded.info.stateless {
            self.idle.clear();
        }
    }

    /// Makes do with the state that it gave last, for one that gives none any more.
    pub fn settle_for_known(&mut self) {
        let memory = self.memory.clone();
        self.renew(memory);
    }

    /// Goes back to a state, and throws all instances away.
    pub(super) fn renew(&mut self, memory: Option<Memory>) {
        self.rewind(memory);
        self.idle.clear();
    }

    /// Goes on from a state, in a new instance that is made at once, so that a state which does
    /// not fit is refused here.
    pub fn recall(&mut self, memory: Memory) -> Result<()> {
        self.renew(Some(memory));
        let running = self.loaded.start(self.memory.as_ref(), self.loaded.deadline())?;
        self.idle.push(running);
        Ok(())
    }

    /// The end of the time that a call has which begins now.
    pub(super) fn deadline(&self) -> Deadline {
        self.loaded.deadline()
    }

    /// Whether a call's time is over.
    pub(super) fn is_over(&self, deadline: Deadline) -> bool {
        self.loaded.is_over(deadline)
    }

    /// Instances that may be called side by side: one for each thread, if all their memory together is enough for that.
    pub(super) fn most_side_by_side(&self) -> usize {
        self.loaded.threads().min(self.loaded.room_for(self.memory_used()))
    }

    /// Calls into an instance. One that trapped is thrown away.
    pub(super) fn call<R>(&mut self, call: Call, f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> Answer<R>) -> Result<R> {
        self.call_until(self.deadline(), call, f)
    }

    /// The same by a deadline, which making an instance counts towards.
    pub(super) fn call_until<R>(
        &mut self,
        deadline: Deadline,
        call: Call,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> Answer<R>,
    ) -> Result<R> {
        let ready = self.idle.pop();
        self.changed = true;
        let (running, answer) = self.loaded.ask(ready, self.memory.as_ref(), deadline, call, f);
        self.idle.extend(running);
        answer
    }

    /// As many calls side by side, each into an instance of its own. The first error wins.
    pub(super) fn call_side_by_side<R: Send>(
        &mut self,
        calls: usize,
        call: Call,
        f: impl Fn(usize, &mut Store<Sandbox>, &Linked) -> Answer<R> + Sync,
    ) -> Result<Vec<R>> {
        let ready: Vec<Option<Running>> = (0..calls).map(|_| self.idle.pop()).collect();
        self.changed = true;
        let (loaded, memory) = (&self.loaded, self.memory.as_ref());
        let asked = ready.into_par_iter().enumerate().map(|(i, ready)| {
            let deadline = loaded.deadline();
            loaded.ask(ready, memory, deadline, call, |store, linked| f(i, store, linked))
        });
        let ended: Vec<(Option<Running>, Result<R>)> = asked.collect();
        let mut answers = Vec::with_capacity(calls);
        for (running, answer) in ended {
            self.idle.extend(running);
            answers.push(answer);
        }
        answers.into_iter().collect()
    }
}

impl Loaded {
    /// Calls into an instance that is ready, or else a new one. Also gives the instance, unless the call broke it.
    fn ask<R>(
        &self,
        ready: Option<Running>,
        memory: Option<&Memory>,
        deadline: Deadline,
        call: Call,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> Answer<R>,
    ) -> (Option<Running>, Result<R>) {
        let mut running = match ready.map_or_else(|| self.start(memory, deadline), Ok) {
            Ok(running) => running,
            Err(error) => return (None, Err(error)),
        };
        match self.bounded(&mut running, call, deadline, f) {
            Ok(answer) => {
                running.store.data_mut().printed();
                (Some(running), answer.map_err(|e| self.error(call, said(e))))
            }
            Err(error) => (None, Err(error)),
        }
    }
}
