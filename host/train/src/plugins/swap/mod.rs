//! Swaps plugins during a run. A thread that runs alongside training ([`watcher`]) detects changed files, loads them and tries them. This
//! module swaps in those that pass, between steps, and rolls back those that fail within their first steps.

mod agreement;
mod models;
mod predecessor;
mod predecessor_store;
mod requests;
mod settings_requests;
mod slots;
mod swaps;
mod trial;
mod version;
mod watcher;

pub(crate) use predecessor::{Predecessor, PredecessorEntry, PredecessorKind, Predecessors};
pub(crate) use slots::{ChosenSettings, HandledHashes, PluginSlot};
pub(crate) use swaps::Swap;
pub(super) use swaps::Swaps;
pub(crate) use trial::{PluginTrial, dry_run};

use super::{Opener, RunPlugins};
use crate::config::words::followed_by;
use crate::config::{PluginEntry, RewardErrorAction, printable};
use crate::journal::{Journal, StepRecorder};
use crate::metrics::{Metric, MetricReduction, ScoreComparison};
use crate::origin::StartMode;
use crate::plugin::{AnyPlugin, Plugin, PluginEngine, PluginFile, PluginSource};
use crate::run::{RunEvent, RunFiles, ScoringSettings, SwapVersions, short_hash};
use crate::{Error, Result};
use predecessor::{PreviousVersion, TRIAL_STEPS};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;
use swaps::NamedPluginFiles;
use version::LoadedVersion;
use watcher::{Proposal, SwapCandidate, SwapWatcher, Trigger};

/// A rejected swap.
struct SwapRefusal<'a> {
    name: &'a str,
    hash: Option<&'a str>,
    trigger: &'a Trigger,
    reason: &'a str,
}

/// Details of a swap, for the log and events.
struct SwapContext<'a> {
    /// When the swap began.
    begun: Instant,
    /// Description of the change.
    changes: String,
    /// Step during which the change was noticed.
    noticed: u64,
    trigger: &'a Trigger,
    config: &'a Map<String, Value>,
    /// Version number that the new plugin states.
    stated: String,
    /// Whether the new plugin has taken over the old one's state.
    handed_over: bool,
    /// Difference of the new plugin's results on the newest batch.
    report: Value,
}

impl RunPlugins {
    /// Starts watching the plugins' files, the run's config.toml and the inbox of `rlhost swap`; only the first rank does. A resumed run
    /// first tries files that have changed since its checkpoint, so that no step uses the old ones.
    ///
    /// # Errors
    /// If the inbox can't be created, or a file that the user named can't be used.
    pub(crate) fn watch(
        &mut self,
        (engine, opener): (PluginEngine, Opener),
        journal: &Journal,
        beginning: &StartMode,
    ) -> Result<()> {
        self.swaps.loaders = Some((engine.clone(), opener.clone()));
        if !self.world.is_first() {
            return Ok(());
        }
        self.swaps.named = beginning.named(&self.config);
        if !self.config.hot_reload {
            return self.check_named();
        }
        journal.open_inbox()?;
        let (sender, proposals) = channel();
        self.swaps.with(|board| (board.config, board.run) = (self.config.clone(), journal.path().to_owned()));
        let watching = SwapWatcher::new((engine, opener), self.swaps.board.clone(), sender);
        match watching.and_then(|watching| watching.begin(beginning.origin().is_some())) {
            Ok(()) => self.swaps.proposals = Some(proposals),
            Err(error) => tracing::warn!("plugin changes won't be detected: {error}"),
        }
        Ok(())
    }

    /// Refuses to resume if a file that the user named is ignored: without `hot_reload`, the run keeps its checkpoint's version.
    fn check_named(&mut self) -> Result<()> {
        let hashes = self.hashes();
        for (name, file) in &self.swaps.named {
            let is_new = |file: &str| {
                PluginSource::open(file).is_ok_and(|source| hashes.get(name).is_some_and(|own| own != source.hash()))
            };
            if PluginFile::parse(file).file().is_file() && is_new(file) {
                let advice =
                    format!("{file} has another version of {name} than the checkpoint, which only hot_reload=true takes in");
                return Err(Error::setting("hot_reload", advice));
            }
        }
        Ok(())
    }

    /// Watches the run's folder at its new path.
    pub(crate) fn follow(&self, run: &Path) {
        self.swaps.with(|board| board.run = run.to_owned());
    }

    /// Applies the proposals since the last call; called between steps.
    pub(crate) fn swap(&mut self, recorder: &mut StepRecorder<'_>) -> Result<()> {
        let step = recorder.step;
        self.swaps.with(|board| board.step = step);
        let entries = self.config.plugin.iter().chain(&self.config.environment);
        let goes_back: Vec<&str> =
            entries.filter(|entry| entry.on_error == RewardErrorAction::Previous).map(PluginEntry::name).collect();
        let stays = |name: &String, until: u64| until > step || goes_back.contains(&name.as_str());
        self.swaps.previous.retain(|name, before| stays(name, before.until));
        self.swaps.earlier.retain(|name, kept| stays(name, kept.replaced.until));
        // Named files matter only in proposals before the first step.
        let named = std::mem::take(&mut self.swaps.named);
        let proposals: Vec<Proposal> = self.swaps.proposals.iter().flat_map(Receiver::try_iter).collect();
        for proposal in self.agree_on(proposals, step)? {
            match proposal {
                Proposal::Swap(candidate) => self.swap_in(*candidate, &named, recorder)?,
                Proposal::Settings { name, weight, on_error, trigger } => {
                    self.take_settings(&name, ScoringSettings { weight, on_error }, &trigger, recorder)?;
                }
                Proposal::Refused { name, hash, trigger, reason } => {
                    refuse_named(&named, &name, &trigger, &reason)?;
                    self.refuse(
                        &SwapRefusal { name: &name, hash: hash.as_deref(), trigger: &trigger, reason: &reason },
                        recorder,
                    )?;
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, refusal: &SwapRefusal<'_>, recorder: &mut StepRecorder<'_>) -> Result<()> {
        let SwapRefusal { name, hash, trigger, reason } = refusal;
        self.swaps.handled(name, trigger, *hash);
        let step = recorder.step;
        let in_use = self.hashes().get(*name).map_or_else(|| "the run".to_owned(), |hash| short_hash(hash).to_owned());
        if **trigger == Trigger::Settings {
            tracing::warn!(
                "the edit of {} was refused: {reason}; the run keeps its settings. Undo the edit: a resumed run reads the file again, unless it \
                 resumes with --discard-edits",
                RunFiles::CONFIG
            );
            let plugin = Some(*name).filter(|name| *name != RunFiles::CONFIG);
            return recorder.journal.event(&RunEvent::SettingsRefused { plugin, step, reason });
        }
        let version = hash.map_or_else(String::new, |hash| format!("version {} was refused: ", short_hash(hash)));
        match reason.contains('\n') {
            // The reason is a script's traceback.
            true => tracing::warn!("{name} was not swapped, and {in_use} keeps running; {version}{reason}"),
            false => tracing::warn!("{name} was not swapped: {version}{reason}; {in_use} keeps running"),
        }
        recorder.journal.event(&RunEvent::PluginRefused {
            plugin: name,
            hash: *hash,
            step,
            request: trigger.request(),
            by: trigger.by(),
            reason,
        })
    }

    /// Swaps in a version that passed its trial.
    fn swap_in(&mut self, candidate: SwapCandidate, named: &NamedPluginFiles, recorder: &mut StepRecorder<'_>) -> Result<()> {
        let (begun, step) = (Instant::now(), recorder.step);
        let SwapCandidate { mut version, report, trigger, noticed } = candidate;
        let (name, to, config) = (version.name().to_owned(), version.identity(), version.settings());
        let stated = version.stated_version();
        let handed_over = match self.prepared(&mut version)? {
            Ok(handed_over) => handed_over,
            Err(reason) => {
                refuse_named(named, &name, &trigger, &reason)?;
                let refusal = SwapRefusal { name: &name, hash: Some(to.hash()), trigger: &trigger, reason: &reason };
                return self.refuse(&refusal, recorder);
            }
        };
        recorder.end_window()?;
        if let Some(source) = version.source() {
            self.swaps.handled(&name, &trigger, Some(to.hash()));
            recorder.journal.use_plugin(source);
        }
        let Some((mut before, changes)) = self.put(version)? else { return Ok(()) };
        let (from, idle) = (before.identity(), before.release());
        self.swaps.earlier.remove(&name);
        let older = self.swaps.previous.insert(name.clone(), PreviousVersion { version: before, until: step + TRIAL_STEPS });
        // Freeing the memory of a large plugin or model takes time.
        std::thread::spawn(move || drop((older, idle)));
        let how = SwapContext { begun, changes, noticed, trigger: &trigger, config: &config, stated, handed_over, report };
        self.swapped(&Swap { step, plugin: name, from, to, rolled_back: false }, how, recorder)
    }

    /// Prepares a version to replace the current one, and returns whether it has taken over the state; or the reason why it can't, which is
    /// the same on all ranks.
    fn prepared(&mut self, version: &mut LoadedVersion) -> Result<std::result::Result<bool, String>> {
        let none = |what: &str| Ok(Err(format!("there is no {what} of that name to replace")));
        match version {
            LoadedVersion::Plugin { loaded, slot } => {
                let Some(place) = self.place(&slot.name) else { return none("plugin") };
                // The state is handed over if both have one.
                let handed_over = match place.snapshot() {
                    Ok(Some(state)) => loaded.plugin_mut().adopt(state).map(|()| true),
                    Ok(None) => Ok(false),
                    Err(error) => Err(error),
                };
                self.all_agree(handed_over.map_err(|e| e.to_string()))
            }
            LoadedVersion::Model { model: asked, .. } => match self.reward_model(asked.model.name()) {
                None => none("reward model"),
                Some(current) if current.model.judges_steps() != asked.model.judges_steps() => {
                    Ok(Err("one of the two models values steps, and the other texts".to_owned()))
                }
                Some(_) => Ok(Ok(false)),
            },
        }
    }

    /// Puts a version in place. Returns the previous one with a description of the change; none if there is nothing to replace.
    fn put(&mut self, version: LoadedVersion) -> Result<Option<(LoadedVersion, String)>> {
        match version {
            LoadedVersion::Plugin { loaded, slot } => {
                let Some(old) = self.exchange(loaded, &slot)? else { return Ok(None) };
                let Some(old_slot) = self.swaps.with(|board| board.replace((*slot).clone())) else { return Ok(None) };
                let changes = changes(&old_slot, &slot);
                Ok(Some((LoadedVersion::Plugin { loaded: old, slot: Box::new(old_slot) }, changes)))
            }
            LoadedVersion::Model { model: asked, path } => Ok(self.put_model(*asked, path)),
        }
    }

    /// Rolls back the plugin or model at fault after a failed and undone step, if it is on trial. Returns whether it did, so that the step
    /// can be retried.
    pub(crate) fn roll_back(&mut self, error: &Error, recorder: &mut StepRecorder<'_>) -> Result<bool> {
        let Some(name) = error.plugin_at_fault() else { return Ok(false) };
        self.open_earlier(name, recorder.journal)?;
        let Some(PreviousVersion { mut version, .. }) = self.swaps.previous.remove(name) else { return Ok(false) };
        recorder.end_window()?;
        if let LoadedVersion::Plugin { loaded, slot } = &mut version {
            self.hand_back(loaded);
            recorder.journal.use_plugin(&slot.source);
        }
        let (to, step, config) = (version.identity(), recorder.step, version.settings());
        let Some((failed, changes)) = self.put(version)? else { return Ok(false) };
        let swap = Swap { step, plugin: name.to_owned(), from: failed.identity(), to, rolled_back: true };
        self.rolled_back(&swap, &changes, &config, error, recorder)?;
        Ok(true)
    }

    /// Gives an older plugin the state of the newer one that it replaces, which is preferred if the older plugin can read it.
    fn hand_back(&mut self, older: &mut AnyPlugin) {
        let newer = self.place(older.plugin().name()).and_then(|place| place.snapshot().ok().flatten());
        let own = older.plugin_mut().snapshot().ok().flatten();
        if newer.is_some_and(|state| older.plugin_mut().adopt(state).is_err()) {
            older.plugin_mut().restore(own);
        }
    }

    /// Applies a reward's changed weight and error policy.
    fn take_settings(
        &mut self,
        name: &str,
        to: ScoringSettings,
        trigger: &Trigger,
        recorder: &mut StepRecorder<'_>,
    ) -> Result<()> {
        let ScoringSettings { weight, on_error } = to;
        let step = recorder.step;
        let index = self.rewards.iter().position(|r| r.name() == name);
        let of_environment = self.config.environment.iter_mut().find(|entry| entry.name() == name);
        let Some(entry) = index.map(|index| &mut self.config.plugin[index]).or(of_environment) else { return Ok(()) };
        let from = ScoringSettings { weight: entry.weight, on_error: entry.on_error };
        recorder.end_window()?;
        (entry.weight, entry.on_error) = (weight, on_error);
        if let Some(index) = index {
            self.rewards[index].set(weight as f32, on_error);
        }
        self.record_config(recorder)?;
        tracing::info!("{name}: {} from step {step} on", changed_scoring(&from, &to));
        recorder.journal.event(&RunEvent::SettingsChanged {
            plugin: name,
            step,
            from,
            to,
            request: trigger.request(),
            by: trigger.by(),
        })
    }

    /// Returns the plugin of this name.
    fn place(&mut self, name: &str) -> Option<&mut Plugin> {
        self.all_mut().find(|plugin| plugin.name() == name)
    }

    /// Puts a plugin in place with its slot's settings, and returns the previous one.
    fn exchange(&mut self, loaded: AnyPlugin, slot: &PluginSlot) -> Result<Option<AnyPlugin>> {
        loaded.plugin().enter_run();
        Ok(match loaded {
            AnyPlugin::Reward(new) => {
                let Some(index) = self.rewards.iter().position(|r| r.name() == slot.name) else { return Ok(None) };
                let entry = &mut self.config.plugin[index];
                (entry.config, entry.limits) = (new.config(), new.limits().clone());
                Some(AnyPlugin::Reward(Box::new(self.rewards[index].exchange(*new))))
            }
            AnyPlugin::Environment(new) => {
                let Some(index) = self.environments.iter().position(|e| e.name() == slot.name) else { return Ok(None) };
                let entry = &mut self.config.environment[index];
                (entry.config, entry.limits) = (new.config(), new.limits().clone());
                let old = std::mem::replace(&mut self.environments[index], *new);
                Some(AnyPlugin::Environment(Box::new(old)))
            }
            AnyPlugin::Algorithm(new) => {
                (self.config.loss, self.config.loss_limits) = (new.config(), new.limits().clone());
                let old = std::mem::replace(&mut self.algorithm, *new);
                self.see_algorithm()?;
                Some(AnyPlugin::Algorithm(Box::new(old)))
            }
        })
    }

    /// Records that a plugin or a model was swapped in.
    fn swapped(&mut self, swap: &Swap, how: SwapContext<'_>, recorder: &mut StepRecorder<'_>) -> Result<()> {
        self.note_swap(swap, recorder)?;
        let Swap { step, plugin, from, to, .. } = swap;
        let pause_ms = how.begun.elapsed().as_secs_f64() * 1e3;
        tracing::info!("{plugin} was swapped at step {step}: {}", how.changes);
        if let Ok(compared) = serde_json::from_value::<ScoreComparison>(how.report.clone()) {
            tracing::info!("{plugin} {compared}");
        }
        recorder.journal.event(&RunEvent::PluginSwapped {
            plugin,
            versions: SwapVersions::new(from, to),
            step: *step,
            noticed_at_step: how.noticed,
            request: how.trigger.request(),
            by: how.trigger.by(),
            version: &how.stated,
            config: how.config,
            state_handed_over: how.handed_over,
            shadow: how.report,
            pause_ms,
        })
    }

    /// Records that a plugin or a model was rolled back, and tells the ranks to retry the step.
    fn rolled_back(
        &mut self,
        swap: &Swap,
        changes: &str,
        config: &Map<String, Value>,
        error: &Error,
        recorder: &mut StepRecorder<'_>,
    ) -> Result<()> {
        self.note_swap(swap, recorder)?;
        let Swap { step, plugin, from, to, .. } = swap;
        tracing::warn!("{}", followed_by(&error.to_string(), &format!("{plugin} is rolled back: {changes}")));
        let (step, versions, reason) = (*step, SwapVersions::new(from, to), error.to_string());
        recorder.journal.event(&RunEvent::PluginRolledBack { plugin, versions, step, config, reason })?;
        self.world.clear_failure();
        Ok(())
    }

    /// Records a swap in the run's history, with the configuration that the run has after it.
    fn note_swap(&mut self, swap: &Swap, recorder: &mut StepRecorder<'_>) -> Result<()> {
        self.swaps.history.push(swap.clone());
        recorder.use_versions(self.versions())?;
        recorder.journal.derive(self.derived_metrics());
        self.record_config(recorder)
    }

    /// Writes the configuration that the run has now to its folder. The watcher learns of it at the same time: it would take an older file
    /// for an edit by the user.
    fn record_config(&self, recorder: &mut StepRecorder<'_>) -> Result<()> {
        self.swaps.with(|board| {
            board.config = self.config.clone();
            recorder.journal.set_config(&self.config)
        })
    }

    /// Returns the number of swaps of each swapped plugin.
    pub(crate) fn swap_figures(&self) -> Vec<Metric> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        // A checkpoint may come from another run with other plugins.
        for swap in self.swaps.history.iter().filter(|swap| self.has(&swap.plugin)) {
            *counts.entry(&swap.plugin).or_default() += 1;
        }
        let figures = counts.into_iter();
        figures.map(|(name, n)| Metric::new(format!("plugins/{name}/swaps"), n as f64, MetricReduction::Last)).collect()
    }

    /// Returns all swaps of the run.
    pub(crate) fn swaps(&self) -> &[Swap] {
        &self.swaps.history
    }

    /// Returns the names of the settings that the user chose.
    pub(crate) fn chosen(&self) -> ChosenSettings {
        self.swaps.with(|board| board.chosen())
    }

    /// Returns the hash of each plugin's file as last handled.
    pub(crate) fn seen(&self) -> HandledHashes {
        self.swaps.with(|board| board.seen.clone())
    }

    /// Restores the swaps and handled files of an earlier part of the run; only files that differ from these count as new.
    pub(crate) fn begin_at(&mut self, history: Vec<Swap>, seen: HandledHashes, chosen: &ChosenSettings, earlier: Predecessors) {
        (self.swaps.history, self.swaps.earlier) = (history, earlier);
        self.swaps.with(|board| {
            board.seen.extend(seen);
            board.choose(chosen);
        });
    }
}

/// Ends a run if a file that the user named is rejected, before it trains with the version that it had.
fn refuse_named(named: &NamedPluginFiles, name: &str, trigger: &Trigger, reason: &str) -> Result<()> {
    match named.get(name).filter(|_| *trigger == Trigger::File) {
        None => Ok(()),
        Some(file) => Err(Error::unusable(Path::new(file), format!("it can't take the place of {name}: {reason}"))),
    }
}

/// Describes how a plugin differs from the previous one: by its hash or, if the bytes are the same, by its settings or limits.
fn changes(before: &PluginSlot, slot: &PluginSlot) -> String {
    match before.source.hash() == slot.source.hash() {
        true => match changed_settings(&before.config, &slot.config) {
            settings if !settings.is_empty() => settings,
            _ if before.limits != slot.limits => "its limits changed".to_owned(),
            _ => format!("it has version {} again, which was reloaded", short_hash(slot.source.hash())),
        },
        false => changed_hashes(before.source.hash(), slot.source.hash()),
    }
}

fn changed_hashes(from: &str, to: &str) -> String {
    format!("{} -> {}", short_hash(from), short_hash(to))
}

/// Describes how a weight or an error policy changes, as in "weight 1 -> 3".
fn changed_scoring(from: &ScoringSettings, to: &ScoringSettings) -> String {
    let policy = |policy: RewardErrorAction| {
        serde_json::to_value(policy).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let weight = (from.weight != to.weight).then(|| format!("weight {} -> {}", from.weight, to.weight));
    let on_error =
        (from.on_error != to.on_error).then(|| format!("on_error {} -> {}", policy(from.on_error), policy(to.on_error)));
    weight.into_iter().chain(on_error).collect::<Vec<_>>().join(", ")
}

/// Describes the settings that differ, as in "target 20 -> 3".
fn changed_settings(old: &Map<String, Value>, new: &Map<String, Value>) -> String {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let shown = |settings: &Map<String, Value>, key: &str| settings.get(key).map_or_else(|| "none".to_owned(), Value::to_string);
    let differs = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    let changes: Vec<String> = differs.map(|key| format!("{key} {} -> {}", shown(old, key), shown(new, key))).collect();
    printable(&changes.join(", "), LONGEST_CHANGES)
}

/// Maximum length of the description of changed settings, in bytes.
const LONGEST_CHANGES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PluginLimits;
    use crate::plugin::Role;
    use serde_json::json;

    fn slot(plugin: &str, target: u64, limits: PluginLimits) -> PluginSlot {
        PluginSlot {
            name: "a".to_owned(),
            role: Role::Algorithm,
            file: None,
            source: PluginSource::open(plugin).unwrap(),
            config: json!({ "target": target }).as_object().cloned().unwrap_or_default(),
            beyond_defaults: Map::new(),
            chosen: Map::new(),
            limits,
        }
    }

    #[test]
    fn a_swap_is_described_by_what_changed_and_a_reloaded_version_by_its_hash() {
        let before = slot("grpo", 20, PluginLimits::default());
        let hash = short_hash(before.source.hash()).to_owned();
        let other = slot("rloo", 20, PluginLimits::default());
        assert_eq!(changes(&before, &other), format!("{hash} -> {}", short_hash(other.source.hash())));
        assert_eq!(changes(&before, &slot("grpo", 3, PluginLimits::default())), "target 20 -> 3");
        let limits = PluginLimits { memory_mb: 1, ..PluginLimits::default() };
        assert_eq!(changes(&before, &slot("grpo", 20, limits)), "its limits changed");
        let same = slot("grpo", 20, PluginLimits::default());
        assert_eq!(changes(&before, &same), format!("it has version {hash} again, which was reloaded"));
    }
}
