//! A plugin with its pool of ready instances. Calls run under limits, in parallel if the plugin is stateless. Failed instances are replaced
//! and get the plugin's last state.

use super::deadline::Deadline;
use super::engine::PluginEngine;
use super::limits::MemoryShare;
use super::limits::{CARRIED, carried_by_each};
use super::loaded_plugin::{LoadedPlugin, PluginCall, PluginInfo};
use super::metrics::MetricOrigin;
use super::plugin_instance::{CallResult, InstanceSlot, PluginInstance};
use super::requests::PluginHttpClient;
use super::sandbox::Sandbox;
use super::state::PluginState;
use super::world::Role;
use super::{Error, Metric, PluginSource, Result, schema};
use crate::config::PluginLimits;
use rayon::prelude::*;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

/// Maximum size of a plugin's state, in bytes.
pub const LARGEST_STATE: usize = 64 << 20;

/// Time limit for a batch of rows that are separate calls, as a multiple of one call's limit.
const MOST_CALLS_TIME: usize = 10;

/// The reason why a row was not scored.
pub(super) const OUT_OF_TIME: &str = "the call's time ran out before this row";

/// A plugin that was checked, described and configured.
pub struct Plugin {
    loaded: Arc<LoadedPlugin>,
    /// Configured instances that are not being called.
    idle: Vec<PluginInstance>,
    /// Last exported state; new instances start with it.
    state: Option<PluginState>,
    /// Whether the plugin was called since that state was exported.
    changed: bool,
    /// Limit on the memory of the instances in this pool together, in bytes.
    total: usize,
    /// Number of calls by function, for functions whose answers should not depend on earlier calls.
    answers: BTreeMap<&'static str, u64>,
    /// The plugin that has the loss, if this one only estimates advantages for it. Its state is part of this plugin's state.
    base: Option<Box<Plugin>>,
}

/// Calls of a function whose answer is compared with another instance's: the first `COMPARED`, then powers of two and every
/// `COMPARED_AGAIN`th.
const COMPARED: u64 = 4;
const COMPARED_AGAIN: u64 = 128;

fn is_compared(call: u64) -> bool {
    call <= COMPARED || call.is_power_of_two() || call.is_multiple_of(COMPARED_AGAIN)
}

impl Plugin {
    /// Returns whether the plugin is a script.
    pub fn is_script(&self) -> bool {
        self.loaded.is_script()
    }

    /// Loads and configures a plugin; see [`LoadedPlugin::load`].
    pub(super) fn load(
        engine: &PluginEngine,
        source: &PluginSource,
        role: Role,
        config: &Map<String, Value>,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<Self> {
        let (loaded, running) = LoadedPlugin::load(engine, source, role, config, limits, seed)?;
        let total = limits.total_memory();
        Ok(Self {
            loaded: Arc::new(loaded),
            idle: vec![running],
            state: None,
            changed: false,
            total,
            answers: BTreeMap::new(),
            base: None,
        })
    }

    /// Adds the algorithm that this script estimates advantages for. The plugin's info then covers both, with a joint `schema`; its
    /// instances keep being configured with the script's own settings.
    pub(super) fn join_base(&mut self, base: Self, schema: String) {
        if let Some(loaded) = Arc::get_mut(&mut self.loaded) {
            loaded.join_base(base.info(), base.config(), schema, base.name());
        }
        self.base = Some(Box::new(base));
    }

    /// Returns the plugin that has the loss: the base, or this plugin.
    pub(super) fn loss_plugin(&self) -> &Self {
        self.base.as_deref().unwrap_or(self)
    }

    /// Returns the plugin that has the loss, to be called.
    pub(super) fn loss_plugin_mut(&mut self) -> &mut Self {
        match self.base {
            Some(ref mut base) => base,
            None => self,
        }
    }

    /// Returns the plugin's name in configuration, metrics and events.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// Returns the SHA-256 of the plugin's bytes.
    pub fn hash(&self) -> &str {
        &self.loaded.hash
    }

    /// Returns the plugin's description of itself.
    pub fn info(&self) -> &PluginInfo {
        &self.loaded.info
    }

    /// Returns the plugin's configuration, including defaults.
    pub fn config(&self) -> Map<String, Value> {
        self.loaded.config.clone()
    }

    /// Returns the settings that differ from the plugin's defaults. A new version inherits them.
    pub fn non_default_settings(&self) -> Map<String, Value> {
        schema::beyond_defaults(&self.loaded.info.config_schema, &self.loaded.config)
    }

    /// Returns the plugin's limits.
    pub fn limits(&self) -> &PluginLimits {
        &self.loaded.limits
    }

    /// Marks a plugin that was loaded in the background as one that the run depends on.
    pub fn enter_run(&self) {
        self.loaded.in_background.store(false, Ordering::Relaxed);
        self.base.iter().for_each(|base| base.enter_run());
    }

    /// Returns the client for the plugin's requests, if it sends any.
    pub fn http_client(&self) -> Option<&PluginHttpClient> {
        self.loaded.http_client.as_deref()
    }

    /// Checks the metrics that the plugin reported.
    pub(super) fn checked_metrics(&self, of: MetricOrigin, given: Vec<Metric>) -> std::result::Result<Vec<Metric>, String> {
        self.loaded.checked_metrics(of, given)
    }

    /// Returns the part that the instances share.
    pub(super) fn shared(&self) -> Arc<LoadedPlugin> {
        self.loaded.clone()
    }

    pub(super) fn seed(&self) -> u64 {
        self.loaded.seed
    }

    /// Passes a step's metrics to the plugin, if it observes them.
    pub fn observe(&mut self, step: u64, figures: &[(String, f64)]) -> Result<()> {
        if let Some(base) = &mut self.base {
            base.observe(step, figures)?;
        }
        if !self.loaded.exports.observes() {
            return Ok(());
        }
        let loaded = self.loaded.clone();
        self.call(PluginCall::with_step("observe", step), |store, linked| loaded.exports.observe(store, linked, step, figures))
    }

    /// Returns whether the plugin exports `observer`.
    pub fn observes(&self) -> bool {
        self.loaded.exports.observes() || self.base.as_deref().is_some_and(Self::observes)
    }

    /// Returns the memory of the largest instance, in bytes.
    pub fn memory_used(&self) -> usize {
        self.idle.iter().map(|running| running.store.data().ceiling.used()).max().unwrap_or(0)
    }

    /// Returns whether the plugin's answers depend on earlier calls and it exports no state that could be moved to another instance.
    pub fn loses_state(&self) -> bool {
        let base = self.base.as_deref().is_some_and(Self::loses_state);
        base || !self.loaded.info.stateless && !self.loaded.exports.has_state()
    }

    /// Exports the plugin's state, if it has one and was called since the last export. The next instance starts with it.
    pub fn snapshot(&mut self) -> Result<Option<PluginState>> {
        let own = self.own_snapshot()?;
        match &mut self.base {
            Some(base) => Ok(PluginState::join(own, base.snapshot()?)),
            None => Ok(own),
        }
    }

    fn own_snapshot(&mut self) -> Result<Option<PluginState>> {
        if self.loaded.exports.has_state() && self.changed {
            let loaded = self.loaded.clone();
            let bytes = self.call(PluginCall::new("snapshot"), |store, linked| loaded.exports.snapshot(store, linked))?;
            if bytes.len() > LARGEST_STATE {
                let (has, most) = (bytes.len() >> 20, LARGEST_STATE >> 20);
                return Err(self
                    .loaded
                    .error(PluginCall::new("snapshot"), format!("its state has {has} MiB; the limit is {most}")));
            }
            let info = &self.loaded.info;
            self.state = Some(PluginState { bytes: bytes.into(), written_by: format!("{} {}", info.name, info.version) });
            self.changed = false;
        }
        Ok(self.state.clone())
    }

    /// Restores a state that [`Plugin::snapshot`] returned; the next call creates a new instance.
    pub fn restore(&mut self, state: Option<PluginState>) {
        let state = match &mut self.base {
            Some(base) => {
                let [own, of_base] = state.map_or_else(Default::default, |state| state.divide(&base.info().name));
                base.restore(of_base);
                own
            }
            None => state,
        };
        self.state = state;
        self.changed = false;
        if !self.loaded.info.stateless {
            self.idle.clear();
        }
    }

    /// Returns to the last exported state, for a plugin that no longer exports one.
    pub fn restart_from_exported(&mut self) {
        let state = match &self.base {
            Some(base) => PluginState::join(self.state.clone(), base.state.clone()),
            None => self.state.clone(),
        };
        self.reset_to(state);
    }

    /// Restores a state and drops all instances.
    pub(super) fn reset_to(&mut self, state: Option<PluginState>) {
        self.restore(state);
        self.idle.clear();
        self.base.iter_mut().for_each(|base| base.idle.clear());
    }

    /// Releases the instances that a later call can recreate, for a plugin that is not called for a while. Returns them, since dropping
    /// them takes time. A plugin whose answers depend on earlier calls and that exports no state keeps its instance.
    pub fn release(&mut self) -> impl Send + use<> {
        if self.loses_state() {
            return Vec::new();
        }
        let of_base = self.base.iter_mut().flat_map(|base| std::mem::take(&mut base.idle));
        std::mem::take(&mut self.idle).into_iter().chain(of_base).collect()
    }

    /// Restores a state in a new instance right away, so that an incompatible state is rejected now and not at the next call.
    pub fn adopt(&mut self, state: PluginState) -> Result<()> {
        self.reset_to(Some(state));
        let running = self.loaded.start(self.state.as_ref(), &self.loaded.whole_share(), self.loaded.deadline())?;
        self.idle.push(running);
        match &mut self.base {
            Some(base) if base.state.is_some() => {
                let running = base.loaded.start(base.state.as_ref(), &base.loaded.whole_share(), base.loaded.deadline())?;
                base.idle.push(running);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the deadline of a call that starts now.
    pub(super) fn deadline(&self) -> Deadline {
        self.loaded.deadline()
    }

    /// Returns the deadline of several calls that start now and together have one call's time.
    pub(super) fn deadline_of_several(&self) -> Deadline {
        self.loaded.deadline_of_calls(1)
    }

    /// Returns the deadline of this many rows that are separate calls: as much time as that many calls have, up to a maximum.
    pub(super) fn deadline_of_rows(&self, rows: usize) -> Deadline {
        self.loaded.deadline_of_calls(rows.clamp(1, MOST_CALLS_TIME) as u32)
    }

    /// Returns whether a deadline has passed.
    pub(super) fn is_over(&self, deadline: Deadline) -> bool {
        self.loaded.is_over(deadline)
    }

    /// Returns the memory of the instances that are not being called, including their cells, in bytes.
    pub(super) fn memory_of_idle(&self) -> usize {
        self.idle.iter().map(|running| running.share().used()).sum()
    }

    /// Limits the memory of the instances in this pool together, in bytes.
    pub(super) fn limit_total(&mut self, bytes: usize) {
        self.total = bytes;
    }

    /// Returns how many instances may be called in parallel: one per thread, if they fit into the plugin's total memory.
    pub(super) fn most_side_by_side(&self) -> usize {
        self.loaded.threads().min(self.loaded.room_for(self.memory_used()))
    }

    /// Returns slots for this many instances, ready ones first. All get equal shares of the memory that other idle instances leave; those
    /// are dropped if the shares would be too small.
    fn slots(&mut self, count: usize) -> Vec<InstanceSlot> {
        let ready: Vec<Option<PluginInstance>> = (0..count).map(|_| self.idle.pop()).collect();
        let total = self.total;
        let largest = ready.iter().flatten().map(|running| running.share().used()).max().unwrap_or(0);
        let enough = if count == 1 { self.loaded.most_useful() } else { largest };
        if (total.saturating_sub(self.memory_of_idle())) / count.max(1) < enough {
            self.idle.clear();
        }
        let each = total.saturating_sub(self.memory_of_idle()) / count.max(1);
        let slot = |running: Option<PluginInstance>| {
            let share = running.as_ref().map_or_else(|| MemoryShare::new(each), |running| running.share().clone());
            share.set_most(each);
            InstanceSlot { running, share }
        };
        ready.into_iter().map(slot).collect()
    }

    /// Calls an instance. An instance that trapped is dropped.
    pub(super) fn call<R>(
        &mut self,
        call: PluginCall,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> CallResult<R>,
    ) -> Result<R> {
        self.call_until(self.deadline(), call, f)
    }

    /// Calls an instance, with a deadline that covers creating the instance too.
    pub(super) fn call_until<R>(
        &mut self,
        deadline: Deadline,
        call: PluginCall,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> CallResult<R>,
    ) -> Result<R> {
        let slot = self.slots(1).remove(0);
        self.changed = true;
        let (running, answer) = self.loaded.ask(slot, self.state.as_ref(), deadline, call, |store, linked| {
            store.set_hostcall_fuel(CARRIED);
            f(store, linked)
        });
        self.idle.extend(running);
        answer
    }

    /// Repeats a call that was just answered, if it is due, to verify a plugin that declares itself stateless. Returns the answer of a new
    /// instance, which must be identical. After a function's first call, it calls the instance that answered if `counts` is set, and
    /// otherwise none. A failed call proves nothing, since it would fail in a resumed run too.
    ///
    /// Plugins that send requests or open cells are not verified: their answers may depend on the time that servers and cells take.
    ///
    /// The repeated call has no effect on a plugin that really is stateless, so it need not happen at the same calls in a resumed run.
    pub(super) fn answer_again<R>(
        &mut self,
        call: PluginCall,
        counts: bool,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> CallResult<R>,
    ) -> Option<R> {
        if !self.loaded.info.stateless || self.loaded.http_client.is_some() || self.loaded.opens_cells() {
            return None;
        }
        let calls = self.answers.entry(call.function).or_default();
        *calls += 1;
        let calls = *calls;
        if !is_compared(calls) || (calls == 1 && !counts) {
            return None;
        }
        if calls == 1 {
            let slot = self.slots(1).remove(0);
            let (running, answer) = self.loaded.ask_silently(slot, self.state.as_ref(), self.deadline(), call, f);
            self.idle.extend(running);
            return answer.ok();
        }
        let total = self.loaded.limits.total_memory();
        if total.saturating_sub(self.memory_of_idle()) < self.loaded.most_useful() {
            self.idle.clear();
        }
        let share = MemoryShare::new(total.saturating_sub(self.memory_of_idle()));
        let slot = InstanceSlot { running: None, share };
        self.loaded.ask_silently(slot, self.state.as_ref(), self.deadline(), call, f).1.ok()
    }

    /// Returns the error for a plugin that answered the same call differently; `what` describes the difference.
    pub(super) fn not_stateless(&self, call: PluginCall, what: &str) -> Error {
        let detail = format!(
            "it declares stateless: true, but answers the same call differently after other calls: {what}. A resumed run would differ; \
             keep nothing between calls, or declare stateless: false and export the state"
        );
        self.loaded.error(call, detail)
    }

    /// Makes this many calls in parallel, each to its own instance. Returns the first error. All answers are collected before any is
    /// returned, so `f` must return checked and bounded values.
    ///
    /// Whether a call gets memory must not depend on the calls next to it. So if an instance needed more than its share, all calls are
    /// repeated, each on a new instance, with only as many at once as can have the full memory of an instance.
    pub(super) fn call_side_by_side<R: Send>(
        &mut self,
        calls: usize,
        call: PluginCall,
        f: impl Fn(usize, &mut Store<Sandbox>, &Linked) -> CallResult<R> + Sync,
    ) -> Result<Vec<R>> {
        let slots = self.slots(calls);
        let (answers, enough) = self.call_each(0, slots, call, &f);
        if enough {
            return answers;
        }
        let at_once = self.loaded.room_for(self.loaded.most_useful());
        let mut all = Vec::with_capacity(calls);
        for first in (0..calls).step_by(at_once) {
            self.idle.clear();
            let slots = self.slots(at_once.min(calls - first));
            all.extend(self.call_each(first, slots, call, &f).0?);
        }
        Ok(all)
    }

    /// Makes calls in parallel, numbered from `first`. Also returns whether each instance's share of the memory was enough.
    fn call_each<R: Send>(
        &mut self,
        first: usize,
        slots: Vec<InstanceSlot>,
        call: PluginCall,
        f: &(impl Fn(usize, &mut Store<Sandbox>, &Linked) -> CallResult<R> + Sync),
    ) -> (Result<Vec<R>>, bool) {
        self.changed = true;
        let (loaded, state, carried) = (&self.loaded, self.state.as_ref(), carried_by_each(slots.len()));
        let shares: Vec<MemoryShare> = slots.iter().map(|slot| slot.share.clone()).collect();
        let asked = slots.into_par_iter().enumerate().map(|(i, slot)| {
            let deadline = loaded.deadline();
            loaded.ask(slot, state, deadline, call, |store, linked| {
                store.set_hostcall_fuel(carried);
                f(first + i, store, linked)
            })
        });
        let (running, answers): (Vec<Option<PluginInstance>>, Vec<Result<R>>) = asked.unzip();
        self.idle.extend(running.into_iter().flatten());
        (answers.into_iter().collect(), !shares.iter().any(MemoryShare::was_too_small))
    }

    /// Makes this many calls of a stateless plugin, each with its own time limit and all until a deadline, on several instances in
    /// parallel. Returns the first error, after which no further call begins. Repeats them on fewer instances if one needed more than its
    /// share of the memory, like [`Plugin::call_side_by_side`].
    pub(super) fn call_apart<R: Send>(
        &mut self,
        calls: usize,
        until: Deadline,
        call: PluginCall,
        f: impl Fn(usize, &mut Store<Sandbox>, &Linked) -> CallResult<R> + Sync,
    ) -> Result<Vec<R>> {
        let slots = self.slots(self.most_side_by_side().min(calls));
        let (answers, enough) = self.call_in_turn(calls, slots, until, call, &f);
        if enough {
            return answers;
        }
        self.idle.clear();
        let slots = self.slots(self.loaded.room_for(self.loaded.most_useful()).min(calls));
        self.call_in_turn(calls, slots, until, call, &f).0
    }

    /// Makes calls on several instances in parallel. Also returns whether each instance's share of the memory was enough.
    fn call_in_turn<R: Send>(
        &mut self,
        calls: usize,
        slots: Vec<InstanceSlot>,
        until: Deadline,
        call: PluginCall,
        f: &(impl Fn(usize, &mut Store<Sandbox>, &Linked) -> CallResult<R> + Sync),
    ) -> (Result<Vec<R>>, bool) {
        self.changed = true;
        let (loaded, state, next) = (&self.loaded, self.state.as_ref(), AtomicUsize::new(0));
        let carried = carried_by_each(slots.len());
        let shares: Vec<MemoryShare> = slots.iter().map(|slot| slot.share.clone()).collect();
        let working = slots.into_par_iter().map(|InstanceSlot { mut running, share }| {
            let mut answers = Vec::new();
            // Calls differ widely in length, so each worker takes the next one.
            while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < calls) {
                if loaded.is_over(until) {
                    answers.push((i, Err(loaded.error(call, OUT_OF_TIME.into()))));
                    break;
                }
                let own = loaded.deadline().min(until);
                let slot = InstanceSlot { running: running.take(), share: share.clone() };
                let (left, answer) = loaded.ask(slot, state, own, call, |store, linked| {
                    store.set_hostcall_fuel(carried);
                    f(i, store, linked)
                });
                running = left;
                if answer.is_err() {
                    // All calls before this one have begun, so the first error is among theirs and this one's.
                    next.store(calls, Ordering::Relaxed);
                }
                answers.push((i, answer));
            }
            (running, answers)
        });
        let (left, answered): (Vec<Option<PluginInstance>>, Vec<Vec<_>>) = working.unzip();
        self.idle.extend(left.into_iter().flatten());
        let mut answers: Vec<(usize, Result<R>)> = answered.into_iter().flatten().collect();
        answers.sort_by_key(|(i, _)| *i);
        (answers.into_iter().map(|(_, answer)| answer).collect(), !shares.iter().any(MemoryShare::was_too_small))
    }
}

impl LoadedPlugin {
    /// Makes a call whose log lines are dropped, since an earlier call logged them.
    fn ask_silently<R>(
        &self,
        slot: InstanceSlot,
        state: Option<&PluginState>,
        deadline: Deadline,
        call: PluginCall,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> CallResult<R>,
    ) -> (Option<PluginInstance>, Result<R>) {
        let InstanceSlot { running, share } = slot;
        let mut running = match running.map_or_else(|| self.start_silently(state, &share, deadline), Ok) {
            Ok(running) => running,
            Err(error) => return (None, Err(error)),
        };
        running.store.data_mut().muted = true;
        let (mut running, answer) =
            self.ask(InstanceSlot { running: Some(running), share }, state, deadline, call, |store, linked| {
                store.set_hostcall_fuel(CARRIED);
                f(store, linked)
            });
        running.iter_mut().for_each(|running| running.store.data_mut().muted = false);
        (running, answer)
    }

    /// Calls a ready instance, or else a new one. Also returns the instance, unless the call broke it.
    pub(super) fn ask<R>(
        &self,
        slot: InstanceSlot,
        state: Option<&PluginState>,
        deadline: Deadline,
        call: PluginCall,
        f: impl FnOnce(&mut Store<Sandbox>, &Linked) -> CallResult<R>,
    ) -> (Option<PluginInstance>, Result<R>) {
        let InstanceSlot { running, share } = slot;
        let mut running = match running.map_or_else(|| self.start(state, &share, deadline), Ok) {
            Ok(running) => running,
            Err(error) => return (None, Err(error)),
        };
        let answer = self.call_bounded(&mut running, call, deadline, f);
        let committed = self.commit_answers(call, &mut running, matches!(answer, Ok(Ok(_))));
        match answer {
            Ok(answer) => {
                running.store.data_mut().printed();
                (Some(running), committed.and_then(|()| answer.map_err(|e| self.error(call, self.error_text(e)))))
            }
            Err(error) => (None, Err(error)),
        }
    }
}
