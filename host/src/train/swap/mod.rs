//! Plugins that are swapped while the run goes on. A thread beside training ([`watching`]) sees
//! changed files, loads and tries what they hold; here, between two steps, what passed takes its
//! place, and what then fails within its first steps gives it back.

mod agreed;
mod slots;
mod trial;
mod watching;

pub(super) use slots::{Seen, Slot};
pub(super) use trial::{Trial, dry_run};
pub(super) use watching::{LIVE, cant_change};

use super::trainer::Trainer;
use super::{Error, Result};
use crate::config::OnError;
use crate::metrics::{Metric, Reduction};
use crate::plugin::{AnyPlugin, Engine, Pairs, Plugin, RewardBatch, RewardColumn, Rollouts, Tokens};
use serde::{Deserialize, Serialize};
use serde_json::json;
use slots::Board;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use watching::{Candidate, Origin, Proposal, Watching};

/// Steps within which a plugin that fails gives its place back to the one before.
const TRIAL_STEPS: u64 = 8;

/// A plugin that took another's place.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct Swap {
    pub step: u64,
    pub plugin: String,
    /// Hash of the plugin before.
    pub from: String,
    /// Hash of the plugin after.
    pub to: String,
    /// Whether it was a return.
    pub rolled_back: bool,
}

/// A plugin that another took the place of, while that one is on trial.
struct Before {
    loaded: AnyPlugin,
    slot: Slot,
    /// The step until which it waits.
    until: u64,
}

/// Where a run stands with swaps.
pub(super) struct Swaps {
    board: Arc<Mutex<Board>>,
    /// What loads plugins that another rank proposes.
    engine: Option<Engine>,
    proposals: Option<Receiver<Proposal>>,
    before: BTreeMap<String, Before>,
    /// All swaps of the run.
    pub history: Vec<Swap>,
}

impl Swaps {
    /// The run's plugins as they are at its beginning; `trial` is what a new one is tried on
    /// before there is anything else.
    pub(super) fn new(slots: Vec<Slot>, trial: Trial) -> Self {
        let board = Arc::new(Mutex::new(Board::new(slots, trial)));
        Self { board, engine: None, proposals: None, before: BTreeMap::new(), history: Vec::new() }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Board) -> R) -> R {
        f(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The newest completions with their scores.
    pub(super) fn saw_scores(&self, batch: Arc<RewardBatch>, rewards: &[RewardColumn]) {
        let scores = rewards.iter().map(|r| (r.name.clone(), r.values.clone())).collect();
        self.with(|board| board.trial.scored = (batch, scores));
    }

    /// The newest generation as the algorithm saw it.
    pub(super) fn saw_rollouts(&self, rollouts: Arc<Rollouts>) {
        self.with(|board| board.trial.rollouts = rollouts);
    }

    /// The newest micro-batch as the algorithm saw it.
    pub(super) fn saw_tokens(&self, tokens: Arc<Tokens>) {
        self.with(|board| board.trial.tokens = tokens);
    }

    /// The newest micro-batch of pairs.
    pub(super) fn saw_pairs(&self, pairs: Arc<Pairs>) {
        self.with(|board| board.trial.pairs = pairs);
    }

    /// What of each plugin's file has been taken note of.
    pub(super) fn seen(&self) -> Seen {
        self.with(|board| board.seen.clone())
    }

    /// Takes note of what an earlier part of the run has seen: only what differs from that is new.
    pub(super) fn begin_at(&mut self, history: Vec<Swap>, seen: Seen) {
        self.history = history;
        self.with(|board| board.seen.extend(seen));
    }

    /// What came from a plugin's own file has been dealt with, this way or that.
    fn settle(&self, name: &str, origin: &Origin, hash: Option<&str>) {
        if let (Origin::File, Some(hash)) = (origin, hash) {
            self.with(|board| board.seen.insert(name.to_owned(), hash.to_owned()));
        }
    }
}

impl Trainer {
    /// Begins to watch the files of the plugins, the run's config.toml, and what `rlhost swap`
    /// sends; the first rank does, for all.
    pub(super) fn watch(&mut self, engine: Engine) -> Result<()> {
        if !self.world.is_first() {
            self.swaps.engine = Some(engine);
            return Ok(());
        }
        if !self.config.hot_reload {
            return Ok(());
        }
        let inbox = self.folder.open_inbox()?;
        let (sender, proposals) = channel();
        self.swaps.with(|board| board.config = self.config.clone());
        let watching = Watching::new(engine, self.swaps.board.clone(), self.folder.path().to_owned(), inbox, sender);
        match watching.and_then(Watching::begin) {
            Ok(()) => self.swaps.proposals = Some(proposals),
            Err(error) => tracing::warn!("changes of plugins won't be seen: {error}"),
        }
        Ok(())
    }

    /// Between two steps: puts in place what has been proposed since the last time.
    pub(super) fn swap_plugins(&mut self) -> Result<()> {
        let step = self.state.global_step;
        self.swaps.with(|board| board.step = step);
        self.swaps.before.retain(|_, before| before.until > step);
        let proposals: Vec<Proposal> = self.swaps.proposals.iter().flat_map(Receiver::try_iter).collect();
        for proposal in self.agreed(proposals)? {
            match proposal {
                Proposal::Plugin(candidate) => self.take_in(*candidate)?,
                Proposal::Settings { name, weight, on_error } => self.take_settings(&name, weight, on_error)?,
                Proposal::Refused { name, hash, origin, reason } => self.refuse(&name, hash.as_deref(), &origin, &reason)?,
            }
        }
        Ok(())
    }

    fn refuse(&mut self, name: &str, hash: Option<&str>, origin: &Origin, reason: &str) -> Result<()> {
        self.swaps.settle(name, origin, hash);
        tracing::warn!("{name} is not swapped: {reason}");
        let step = self.state.global_step;
        let details = json!({ "plugin": name, "hash": hash, "step": step, "request": origin.request(), "reason": reason });
        self.folder.event("plugin_refused", details)
    }

    /// Puts a plugin that passed its trial into its place.
    fn take_in(&mut self, candidate: Candidate) -> Result<()> {
        let begun = Instant::now();
        let Candidate { slot, mut loaded, report, origin, noticed } = candidate;
        let Some(place) = self.place(&slot.name) else { return Ok(()) };
        let from = place.hash().to_owned();
        // The state goes over, where both have one.
        let handed_over = match place.remember() {
            Ok(Some(memory)) => loaded.plugin_mut().recall(memory).map(|()| true),
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        let handed_over = match self.all_agree(handed_over.map_err(|e| e.to_string()))? {
            Ok(handed_over) => handed_over,
            Err(reason) => return self.refuse(&slot.name, Some(slot.source.hash()), &origin, &reason),
        };
        let (name, to, step) = (slot.name.clone(), slot.source.hash().to_owned(), self.state.global_step);
        self.swaps.settle(&name, &origin, Some(&to));
        let old_slot = self.swaps.with(|board| board.replace(slot.clone()));
        let old = self.exchange(loaded, &slot);
        if let Some(old_slot) = old_slot {
            let older = self.swaps.before.insert(name.clone(), Before { loaded: old, slot: old_slot, until: step + TRIAL_STEPS });
            // Giving a large plugin's memory back takes time.
            std::thread::spawn(move || drop(older));
        }
        self.note_swap(&slot, Swap { step, plugin: name.clone(), from: from.clone(), to: to.clone(), rolled_back: false })?;
        let pause = begun.elapsed().as_secs_f64() * 1e3;
        tracing::info!("{name} is swapped at step {step}: {} -> {}", &from[..12], &to[..12]);
        let details = json!({
            "plugin": name, "from": from, "to": to, "step": step, "noticed_at_step": noticed, "request": origin.request(),
            "config": slot.config, "state_handed_over": handed_over, "shadow": report, "pause_ms": pause,
        });
        self.folder.event("plugin_swapped", details)
    }

    /// After a step that failed and was undone: whether the one at fault was new in its place, and
    /// has given it back, so that the step can be taken again.
    pub(super) fn roll_back(&mut self, error: &Error) -> Result<bool> {
        let Some(name) = error.plugin_at_fault() else { return Ok(false) };
        let Some(Before { mut loaded, slot, .. }) = self.swaps.before.remove(name) else { return Ok(false) };
        let Some(place) = self.place(name) else { return Ok(false) };
        let (from, to) = (place.hash().to_owned(), loaded.plugin().hash().to_owned());
        // The newer state is the better one, if the older plugin can read it.
        let newer = place.remember().ok().flatten();
        let own = loaded.plugin_mut().remember().ok().flatten();
        if newer.is_some_and(|memory| loaded.plugin_mut().recall(memory).is_err()) {
            loaded.plugin_mut().rewind(own);
        }
        self.swaps.with(|board| board.replace(slot.clone()));
        self.exchange(loaded, &slot);
        let step = self.state.global_step;
        self.note_swap(&slot, Swap { step, plugin: name.to_owned(), from: from.clone(), to: to.clone(), rolled_back: true })?;
        tracing::warn!("{error}; {name} is taken back to {}", &to[..12]);
        let details = json!({ "plugin": name, "from": from, "to": to, "step": step, "reason": error.to_string() });
        self.folder.event("plugin_rolled_back", details)?;
        self.world.go_on();
        Ok(true)
    }

    /// What an attempt outside of a step gives. Where it fails by a plugin that is new in its place, that gives the place back,
    /// and the attempt is made again.
    pub(super) fn or_roll_back<T>(&mut self, attempt: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        loop {
            match attempt(self).map_err(|error| self.known_to_all(error)) {
                Err(error) if self.roll_back(&error)? => {}
                outcome => return outcome,
            }
        }
    }

    /// Weight and error policy of a reward, changed in config.toml.
    fn take_settings(&mut self, name: &str, weight: f64, on_error: OnError) -> Result<()> {
        let Some(index) = self.rewards.iter().position(|r| r.plugin.name() == name) else { return Ok(()) };
        let entry = &mut self.config.plugin[index];
        let was = json!({ "weight": entry.weight, "on_error": entry.on_error });
        (entry.weight, entry.on_error) = (weight, on_error);
        (self.rewards[index].weight, self.rewards[index].on_error) = (weight as f32, on_error);
        self.swaps.with(|board| board.config = self.config.clone());
        self.folder.set_config(&self.config)?;
        let step = self.state.global_step;
        tracing::info!("{name} has weight {weight} from step {step} on");
        let now = json!({ "weight": weight, "on_error": on_error });
        self.folder.event("settings_changed", json!({ "plugin": name, "step": step, "from": was, "to": now }))
    }

    /// The plugin of that name.
    fn place(&mut self, name: &str) -> Option<&mut Plugin> {
        self.plugins_mut().find(|plugin| plugin.name() == name)
    }

    /// Puts a plugin into its place, with its slot's settings, and gives the one that was there.
    fn exchange(&mut self, loaded: AnyPlugin, slot: &Slot) -> AnyPlugin {
        loaded.plugin().enter_run();
        match loaded {
            AnyPlugin::Reward(new) => {
                let index = self.rewards.iter().position(|r| r.plugin.name() == slot.name).unwrap_or_default();
                let entry = &mut self.config.plugin[index];
                (entry.config, entry.limits) = (new.config(), new.limits().clone());
                AnyPlugin::Reward(Box::new(std::mem::replace(&mut self.rewards[index].plugin, *new)))
            }
            new @ (AnyPlugin::Policy(_) | AnyPlugin::Preference(_)) => {
                (self.config.loss, self.config.loss_limits) = (new.plugin().config(), new.plugin().limits().clone());
                std::mem::replace(&mut self.algorithm, new)
            }
        }
    }

    /// Everything that a swap changes beside the plugin itself.
    fn note_swap(&mut self, slot: &Slot, swap: Swap) -> Result<()> {
        self.folder.use_plugin(&slot.source);
        self.swaps.history.push(swap);
        self.swaps.with(|board| board.config = self.config.clone());
        self.folder.set_config(&self.config)
    }

    /// How often each plugin has been swapped, for those that were.
    pub(super) fn swap_figures(&mut self) {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for swap in &self.swaps.history {
            *counts.entry(&swap.plugin).or_default() += 1;
        }
        let figures = counts.into_iter();
        let figures = figures.map(|(name, n)| Metric::new(format!("plugins/{name}/swaps"), n as f64, Reduction::Last));
        self.figures.extend(figures.collect::<Vec<_>>());
    }
}
