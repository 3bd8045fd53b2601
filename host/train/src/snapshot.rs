//! Saves and restores everything that determines the future of a run.

mod adaptation;
mod checks;
mod fault;
mod input_hashes;
mod part;
mod waiting_rollouts;

pub(super) use input_hashes::InputHashes;
pub(super) use part::CheckpointPart;

use super::collector::{CollectorCounters, Position, Streaks};
use super::dataset::{LINES_PREFIX, Prompt, ROWS_PREFIX};
use super::evaluation::Evaluation;
use super::experience::{Experience, ExperienceForm, MicroBatch};
use super::journal::{BestCheckpoint, JournalState, Parent, PluginVersions};
use super::learner::Optimizers;
use super::origin::{CheckpointOrigin, ORDER_OF_ALL, StartMode};
use super::patience::EarlyStoppingState;
use super::plugins::{ChosenSettings, HandledHashes, Predecessor, PredecessorEntry, PredecessorKind, Predecessors, Swap};
use super::stored_rollouts::RolloutTensors;
use super::trainer::{Trainer, TrainerState};
use super::{Error, Result};
use crate::activity::{Activity, ProgressTask};
use crate::checkpoint::{JointSave, PartsTimeout};
use crate::config::{PluginEntry, RunConfig, files, same};
use crate::data::Cursor;
use crate::metrics::MetricsWindow;
use crate::model::{self, Architecture, FrozenModel, ModelFolder, Weights};
use crate::optim::PlateauDetector;
use crate::plugin::{LARGEST_STATE, PluginSource, PluginState, read_file};
use crate::run::CheckpointFiles;
use crate::run::step_of;
use candle_core::{Device, Tensor};
use fault::SnapshotFault;
use part::{JointCheckpoint, write_model};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use waiting_rollouts::{ExperienceManifest, WaitingRollouts};

/// Maximum size of the state in bytes; a waiting token takes about a hundred with all its columns.
const LARGEST_REST: u64 = 8 << 30;
/// A copy of a run's state at one step, which training does not change.
pub(super) struct RunSnapshot {
    weights: Weights,
    source: ModelFolder,
    config: String,
    summary: Value,
    /// The plugins in use. The run's folder has them too, but a checkpoint must survive if they are deleted there.
    plugins: Vec<PluginSource>,
    /// Value model, with its folder unless that is `source`.
    value_model: Option<(Weights, Option<ModelFolder>)>,
    /// The joint checkpoint, if each rank writes a part.
    joint: Option<JointCheckpoint>,
    /// State for resuming; none if only the model is saved.
    resumable: Option<ResumableState>,
}

struct ResumableState {
    moments: HashMap<String, Tensor>,
    reference: Option<FrozenModel>,
    /// Parameters of a teacher that averages the policy.
    teacher: Option<Vec<(String, Tensor)>>,
    plugin_states: Vec<(String, PluginState)>,
    predecessors: Predecessors,
    experiences: Vec<Arc<Experience>>,
    rest: SnapshotState,
}

/// A waiting micro-batch: the index of its experience and the range of its items.
type MicroBatchPlace = (usize, usize, usize);

/// Counters, position in the data, metrics not yet logged, and rollouts not yet trained on.
#[derive(Deserialize, Serialize)]
struct SnapshotState {
    state: RunCounts,
    cursor: Cursor,
    #[serde(default)]
    streaks: Streaks,
    /// Hash of the dataset that the cursor and the rollouts belong to.
    dataset: String,
    optimizer_updates: u64,
    #[serde(default)]
    critic_updates: Option<u64>,
    window: MetricsWindow,
    /// Versions of the plugins that the window's metrics come from.
    #[serde(default)]
    versions: PluginVersions,
    since_save: MetricsWindow,
    best: Option<BestCheckpoint>,
    parents: Vec<Parent>,
    swaps: Vec<Swap>,
    /// Hash of each plugin's file as last handled.
    seen: HandledHashes,
    /// The settings that the user chose.
    #[serde(default)]
    chosen: ChosenSettings,
    /// Plugins with a state, each with the name and version of the plugin that wrote it.
    #[serde(rename = "memories")]
    plugin_states: BTreeMap<String, String>,
    /// Plugins and models whose replacements are on trial.
    #[serde(default)]
    replaced: BTreeMap<String, PredecessorEntry>,
    experiences: Vec<ExperienceManifest>,
    pending: Vec<MicroBatchPlace>,
}

/// Counters of a run.
#[derive(Deserialize, Serialize)]
struct RunCounts {
    global_step: u64,
    generation: u64,
    num_tokens: u64,
    moved: bool,
    unscored: u64,
    #[serde(default)]
    passes_left: u64,
    #[serde(default)]
    owes_evaluation: bool,
    #[serde(default)]
    plateau: PlateauDetector,
    #[serde(default)]
    patience: EarlyStoppingState,
    #[serde(default, rename = "given")]
    inputs: InputHashes,
}

impl WaitingRollouts {
    /// Restores the experience; none if a prompt is not in the dataset.
    fn restored(self, run: &ExperienceConstraints<'_>) -> Option<Experience> {
        let prompts = self.prompts.iter().map(|row| run.prompts.1.get(row).cloned()).collect::<Option<Vec<_>>>()?;
        let mut experience = Experience {
            texts: self.texts,
            rewards: self.rewards,
            mask: self.mask,
            pairs: run.form.has_pairs.then_some(self.pairs),
            ..Experience::new(prompts, self.rollouts)
        };
        self.columns.into_iter().for_each(|column| experience.columns.set(column));
        Some(experience)
    }
}

/// The properties of a run that a restored experience must fit.
struct ExperienceConstraints<'a> {
    form: ExperienceForm,
    /// Number of the dataset's prompts, and the needed ones by position.
    prompts: (usize, HashMap<usize, Arc<Prompt>>),
    architecture: &'a Architecture,
}

/// State of a checkpoint that has been read but not applied.
pub(super) struct RestoredState {
    rest: SnapshotState,
    /// Rollouts of the manifests.
    waiting: Vec<WaitingRollouts>,
    /// Moments; none if the optimizer starts without them.
    moments: Option<HashMap<String, Tensor>>,
}

impl RestoredState {
    /// Returns the hashes of what the run read besides its dataset.
    pub(super) fn inputs(&self) -> InputHashes {
        self.rest.state.inputs
    }

    /// Returns whether there are steps that have not been logged yet.
    pub(super) fn has_open_window(&self) -> bool {
        self.rest.window.has_steps()
    }

    /// Returns whether a run with these evaluations begins with the interrupted one.
    pub(super) fn owes_evaluation(&self, evaluation: Option<&Evaluation>) -> bool {
        self.rest.owes_evaluation(evaluation)
    }

    /// Reads the state, for a run whose dataset has this hash; a checkpoint of an older version has the hash `of_tokens`.
    ///
    /// # Errors
    /// If it holds only the model, can't be read, or belongs to another dataset and nothing may have `changed`.
    pub(super) fn read(
        origin: &CheckpointOrigin,
        dataset: &str,
        of_tokens: impl FnOnce() -> Result<String>,
        changed: bool,
        wants: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let checkpoint = origin.checkpoint.as_path();
        let unfit = |detail: String| Error::unusable(checkpoint, detail);
        let file = files::open(&CheckpointFiles::find(checkpoint).rest()).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => unfit("holds only the model (save_only_model); it can't be resumed".into()),
            _ => unfit(format!("snapshot.json: {e}")),
        })?;
        // The file is parsed as it is read, so that a truncated or empty one takes no memory.
        let text = BufReader::with_capacity(1 << 20, file.take(LARGEST_REST));
        let mut rest: SnapshotState = serde_json::from_reader(text).map_err(|e| unfit(format!("snapshot.json: {e}")))?;
        if let Some(fault) = rest.fault(origin.step) {
            return Err(unfit(SnapshotFault::in_rest(fault).to_string()));
        }
        let waiting = rest.read_waiting(&CheckpointFiles::find(checkpoint).rollouts());
        let waiting = waiting.map_err(|fault| unfit(fault.to_string()))?;
        let files = model::shards_in(&CheckpointFiles::find(checkpoint).folder(), "optimizer");
        let task = ProgressTask::new(Activity::ReadingOptimizer);
        let moments = files
            .and_then(|files| model::read_tensors(&files, wants))
            .map_err(|e| unfit(format!("optimizer.safetensors: {e}")))?;
        drop(task);
        let of_older = ![ROWS_PREFIX, LINES_PREFIX].iter().any(|kind| rest.dataset.starts_with(kind));
        if dataset.starts_with(ROWS_PREFIX) && of_older && rest.dataset == of_tokens()? {
            tracing::info!("{} is of an older version; its dataset is the same", checkpoint.display());
            rest.dataset = dataset.to_owned();
        }
        if rest.dataset != dataset {
            if !changed {
                return Err(unfit(
                    "the dataset has changed since it was written; --allow-changed starts the new one from the beginning".into(),
                ));
            }
            tracing::warn!(
                "the dataset is not the one that {} was written with; starting it from the beginning",
                checkpoint.display()
            );
        }
        Ok(Self { rest, waiting, moments: Some(moments) })
    }
}

/// Reads a checkpoint's state for a small model and a few prompts; `pairs` says whether the run learns from pairs.
pub fn read(checkpoint: &Path, pairs: bool) -> Result<()> {
    let step = step_of(checkpoint);
    let origin =
        CheckpointOrigin { run: checkpoint.to_owned(), checkpoint: checkpoint.to_owned(), step: step.unwrap_or_default() };
    let restored = RestoredState::read(&origin, "", || Ok(String::new()), true, |_| true)?;
    let sizes = json!({
        "model_type": "llama", "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1,
        "vocab_size": 300, "max_position_embeddings": 64,
    });
    let unfit = |detail: String| Error::unusable(checkpoint, detail);
    let architecture = Architecture::parse(&sizes.to_string()).map_err(unfit)?;
    let prompt = |index| Arc::new(Prompt { row: index, index, tokens: vec![1, 2, 3], ..Prompt::default() });
    let prompts = (4, (0..4).map(|index| (index, prompt(index))).collect());
    let form = ExperienceForm { is_sampled: true, has_pairs: pairs };
    let run = ExperienceConstraints { form, prompts, architecture: &architecture };
    let position = restored.rest.position(restored.waiting, &run).map_err(|fault| unfit(fault.to_string()))?;
    // Splits them as the learner does.
    for MicroBatch { experience, items } in &position.pending {
        assert!(items.end <= experience.items(), "{items:?} of {}", experience.items());
    }
    Ok(())
}

/// Reads a plugin's state.
fn plugin_state_in(file: &Path, written_by: &str) -> Result<PluginState> {
    let bytes = files::read(file, LARGEST_STATE as u64).map_err(|e| Error::unusable(file, e))?;
    Ok(PluginState { bytes: bytes.into(), written_by: written_by.to_owned() })
}

/// Reads a predecessor.
fn predecessor(checkpoint: &Path, name: &str, replaced: PredecessorEntry) -> Result<Predecessor> {
    let PredecessorKind::Plugin { written_by, .. } = &replaced.what else {
        return Ok(Predecessor { replaced, source: None, state: None });
    };
    let [file, state] = CheckpointFiles::find(checkpoint).replaced_plugin(name);
    let bytes = read_file(&file).map_err(|e| Error::unusable(&file, e))?;
    let source = PluginSource::new(name.to_owned(), bytes.into());
    let state = written_by.as_ref().map(|written_by| plugin_state_in(&state, written_by)).transpose()?;
    Ok(Predecessor { replaced, source: Some(source), state })
}

impl RunSnapshot {
    /// Writes everything to a checkpoint's folder.
    pub(super) fn write(mut self, to: &Path) -> std::result::Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        let files = CheckpointFiles::new(to);
        let is_joint = self.joint.is_some();
        write_model(&self.weights, &self.source, to, is_joint)?;
        fs::create_dir(files.folder()).map_err(text)?;
        model::write_critic(&self.weights, &files.critic()).map_err(|e| e.to_string())?;
        if let Some((weights, source)) = &self.value_model {
            let folder = files.value_model();
            fs::create_dir(&folder).map_err(text)?;
            write_model(weights, source.as_ref().unwrap_or(&self.source), &folder, is_joint)?;
        }
        fs::write(files.config(), self.config).map_err(text)?;
        fs::write(files.summary(), format!("{:#}\n", self.summary)).map_err(text)?;
        fs::create_dir(files.plugins()).map_err(text)?;
        for source in &self.plugins {
            fs::write(files.plugin(source.name()), source.bytes()).map_err(text)?;
        }
        if let Some(joint) = self.joint.take() {
            joint.write(to)?;
        }
        let Some(resumable) = &mut self.resumable else { return Ok(()) };
        for (name, state) in &resumable.plugin_states {
            fs::write(files.plugin_state(name), &state.bytes).map_err(text)?;
        }
        for (name, kept) in &resumable.predecessors {
            let Some(source) = &kept.source else { continue };
            let [file, state] = files.replaced_plugin(name);
            fs::create_dir_all(files.replaced()).and_then(|()| fs::write(file, source.bytes())).map_err(text)?;
            kept.state.as_ref().map_or(Ok(()), |kept| fs::write(state, &kept.bytes)).map_err(text)?;
        }
        let moments = std::mem::take(&mut resumable.moments).into_iter().collect();
        if !is_joint {
            model::write_tensors(moments, None, &files.optimizer()).map_err(|e| e.to_string())?;
        }
        if let Some(reference) = &resumable.reference {
            model::write_weights(reference.weights(), &files.reference()).map_err(|e| e.to_string())?;
        }
        if let Some(teacher) = resumable.teacher.take() {
            model::write_tensors(teacher, None, &files.teacher()).map_err(|e| e.to_string())?;
        }
        let mut tensors = RolloutTensors::new();
        let manifests = resumable
            .experiences
            .iter()
            .enumerate()
            .map(|(place, e)| ExperienceManifest::from_experience(e, place, &mut tensors));
        resumable.rest.experiences = manifests.collect::<candle_core::Result<_>>().map_err(|e| e.to_string())?;
        if !tensors.is_empty() {
            model::write_tensors(tensors.into_iter().collect(), None, &files.rollouts()).map_err(|e| e.to_string())?;
        }
        fs::write(files.rest(), readable(&resumable.rest)?).map_err(text)
    }
}

/// Returns the JSON of a state that can be parsed again. JSON has no NaN or infinity, and a checkpoint that can't be resumed must not
/// replace an older one.
fn readable<T: Serialize + DeserializeOwned>(state: &T) -> std::result::Result<Vec<u8>, String> {
    let bytes = serde_json::to_vec(state).map_err(|e| e.to_string())?;
    match serde_json::from_slice::<T>(&bytes) {
        Ok(_) => Ok(bytes),
        Err(e) => Err(format!("snapshot.json could not be read again: {e}")),
    }
}

impl SnapshotState {
    /// Returns whether the evaluation after the state's step was interrupted, and a run with these evaluations has one there.
    fn owes_evaluation(&self, evaluation: Option<&Evaluation>) -> bool {
        self.state.owes_evaluation && evaluation.is_some_and(|evaluation| evaluation.is_due(self.state.global_step))
    }

    /// Takes the manifests and reads their rollouts, from this file if it has their numbers.
    fn read_waiting(&mut self, file: &Path) -> std::result::Result<Vec<WaitingRollouts>, SnapshotFault> {
        let mut tensors = RolloutTensors::new();
        if self.experiences.iter().any(ExperienceManifest::has_tensors) {
            let size = fs::metadata(file).map_err(|e| SnapshotFault::in_rollouts(e.to_string()))?.len();
            if size > LARGEST_REST {
                return Err(SnapshotFault::in_rollouts(format!("it has {size} bytes; the limit is {LARGEST_REST}")));
            }
            tensors =
                candle_core::safetensors::load(file, &Device::Cpu).map_err(|e| SnapshotFault::in_rollouts(e.to_string()))?;
        }
        let read = |(place, manifest): (usize, ExperienceManifest)| manifest.read(place, &mut tensors);
        std::mem::take(&mut self.experiences).into_iter().enumerate().map(read).collect()
    }

    /// Returns the run's position in the data, with these waiting rollouts.
    fn position(
        self,
        waiting: Vec<WaitingRollouts>,
        run: &ExperienceConstraints<'_>,
    ) -> std::result::Result<Position, SnapshotFault> {
        if let Some(fault) = waiting.iter().find_map(|waiting| waiting.fault(run)) {
            return Err(fault);
        }
        let restored = waiting.into_iter().map(|waiting| waiting.restored(run).map(Arc::new));
        let experiences: Option<Vec<Arc<Experience>>> = restored.collect();
        let experiences = experiences.ok_or_else(|| SnapshotFault::in_rest("rollouts without their prompts"))?;
        let micro_batch = |(index, start, end): MicroBatchPlace| {
            let experience = experiences.get(index).filter(|e| start <= end && end <= e.items());
            let experience = experience.ok_or_else(|| SnapshotFault::in_rest("a micro-batch without its rollouts"))?.clone();
            Ok::<_, SnapshotFault>(MicroBatch { experience, items: start..end })
        };
        let pending = self.pending.into_iter().map(micro_batch).collect::<std::result::Result<_, _>>()?;
        Ok(Position { cursor: self.cursor, streaks: self.streaks, pending, counters: self.state.collected() })
    }
}

impl RunCounts {
    fn collected(&self) -> CollectorCounters {
        let Self { generation, num_tokens, unscored, passes_left, .. } = *self;
        CollectorCounters { generation, num_tokens, unscored, passes_left }
    }
}

impl Trainer {
    /// Copies the run's current state for a checkpoint.
    pub(super) fn snapshot(&mut self, joint: Option<(JointSave, PartsTimeout)>) -> Result<RunSnapshot> {
        let resumable = if self.settings.save_only_model { None } else { Some(self.resumable()?) };
        // These names are those of transformers' trainer state.
        let mut summary = json!({
            "global_step": self.state.global_step,
            "epoch": self.epoch(),
            "max_steps": self.plan.max_steps,
            "world_size": self.world.size(),
            "num_input_tokens_seen": self.collector.counters().num_tokens,
        });
        for (name, value) in self.journal.best_in_words() {
            summary[name] = value;
        }
        summary["parents"] = json!(self.journal.parents());
        if self.collector.data().prompts().are_drawn() {
            summary["dataset_order"] = ORDER_OF_ALL.into();
        }
        Ok(RunSnapshot {
            weights: self.learner.copied_weights()?,
            source: self.source.clone(),
            config: self.journal.config().to_owned(),
            summary,
            plugins: self.journal.plugins().to_vec(),
            value_model: self.learner.value_model()?,
            joint: joint.map(|(save, timeout)| self.joint(save, timeout)).transpose()?,
            resumable,
        })
    }

    /// Returns the first rank's role in a joint checkpoint.
    fn joint(&self, save: JointSave, timeout: PartsTimeout) -> Result<JointCheckpoint> {
        Ok(JointCheckpoint { save, own: self.part()?, run: self.journal.path().to_owned(), timeout })
    }

    /// Copies this rank's shards of the trained models and of their moments.
    pub(super) fn part(&self) -> Result<CheckpointPart> {
        let shard = self.learner.shard(!self.settings.save_only_model)?;
        Ok(CheckpointPart { rank: self.world.rank(), ranks: self.world.size(), shard })
    }

    fn resumable(&mut self) -> Result<ResumableState> {
        let Optimizers { updates: optimizer_updates, critic_updates, moments } =
            if self.learner.is_divided() { self.learner.updates() } else { self.learner.optimizers()? };
        let plugin_states = self.plugins.snapshots()?.into_iter();
        let plugin_states: Vec<(String, PluginState)> = plugin_states.filter_map(|(name, state)| Some((name, state?))).collect();
        let predecessors = self.plugins.predecessors()?;
        let Position { cursor, streaks, pending, counters } = self.collector.position();
        let (experiences, pending) = distinct_experiences(&pending);
        let CollectorCounters { generation, num_tokens, unscored, passes_left } = counters;
        let TrainerState { global_step, moved, owes_evaluation, plateau, patience, inputs } = self.state;
        let JournalState { window, versions, since_save, best, parents } = self.journal.state();
        let rest = SnapshotState {
            state: RunCounts {
                global_step,
                generation,
                num_tokens,
                moved,
                unscored,
                passes_left,
                owes_evaluation,
                plateau,
                patience,
                inputs,
            },
            cursor,
            streaks,
            dataset: self.collector.data().fingerprint().to_owned(),
            optimizer_updates,
            critic_updates,
            window,
            versions,
            since_save,
            best,
            parents,
            swaps: self.plugins.swaps().to_vec(),
            seen: self.plugins.seen(),
            chosen: self.plugins.chosen(),
            plugin_states: plugin_states.iter().map(|(name, state)| (name.clone(), state.written_by.clone())).collect(),
            replaced: predecessors.iter().map(|(name, kept)| (name.clone(), kept.replaced.clone())).collect(),
            experiences: Vec::new(),
            pending,
        };
        // The writing thread must not use the device: a generation may be recording a step there.
        let reference = self.collector.reference().filter(|_| self.state.inputs.keeps_reference);
        let reference = reference.map(|reference| reference.model().on_host()).transpose()?;
        let teacher = self.learner.averaged_weights()?;
        Ok(ResumableState { moments, reference, teacher, plugin_states, predecessors, experiences, rest })
    }

    /// Restores the state of the checkpoint that a run begins with; the policy already has its weights. If settings may change, plugins
    /// that can't adopt their predecessors' state, and parameters without moments, are allowed.
    pub(super) fn restore(&mut self, beginning: &StartMode, origin: &CheckpointOrigin, state: RestoredState) -> Result<()> {
        let (checkpoint, changed) = (origin.checkpoint.as_path(), beginning.may_change());
        let unfit = |detail: String| Error::unusable(checkpoint, detail);
        let RestoredState { mut rest, waiting, moments } = state;
        let moments = moments.map(|moments| self.learner.agreed_moments(moments)).transpose()?;
        let state = |moments| Optimizers { updates: rest.optimizer_updates, critic_updates: rest.critic_updates, moments };
        for fault in moments.map(|moments| self.learner.restore(state(moments))).unwrap_or_default() {
            if !changed {
                return Err(unfit(format!("optimizer.safetensors: {fault}")));
            }
            tracing::info!(
                "the optimizer starts without moments, since those of the checkpoint are for other parameters: {fault}"
            );
        }
        let saved = |name: &str| {
            Some(plugin_state_in(&CheckpointFiles::find(checkpoint).plugin_state(name), rest.plugin_states.get(name)?))
        };
        self.plugins.adopt(saved, changed)?;

        let RunCounts { global_step, moved, plateau, patience, .. } = rest.state;
        let owes_evaluation = rest.owes_evaluation(self.evaluation.as_ref());
        self.state = TrainerState { global_step, moved, owes_evaluation, plateau, patience, ..self.state };
        self.learner.reduce_rates(plateau.plateaus);
        // Entries of unknown plugins are meaningless, and their names could be paths.
        let now = self.plugins.hashes();
        let named = std::mem::take(&mut rest.replaced).into_iter().filter(|(name, replaced)| now.get(name) == Some(&replaced.by));
        let earlier = named.map(|(name, replaced)| Ok((name.clone(), predecessor(checkpoint, &name, replaced)?)));
        let earlier = earlier.collect::<Result<Predecessors>>()?;
        // The hash of the parent's file says nothing about the file that a fork names instead.
        rest.seen.retain(|name, _| !beginning.opens_anew(name, &self.settings));
        self.plugins.begin_at(std::mem::take(&mut rest.swaps), std::mem::take(&mut rest.seen), &rest.chosen, earlier);
        let (window, since_save) = (std::mem::take(&mut rest.window), std::mem::take(&mut rest.since_save));
        let (versions, parents) = (std::mem::take(&mut rest.versions), std::mem::take(&mut rest.parents));
        let kept = JournalState { window, versions, since_save, best: rest.best, parents };
        let is_changed = !scores_alike(&origin.written()?, &self.settings);
        self.journal.restore(self.state.global_step, kept, is_changed);
        let data = self.collector.data();
        // With another dataset, neither the position nor the prompts apply.
        let position = if rest.dataset == data.fingerprint() {
            let architecture = self.learner.policy().architecture();
            let all = data.prompts();
            let mut needed: Vec<usize> = waiting.iter().flat_map(|waiting| &waiting.prompts).copied().collect();
            needed.retain(|index| *index < all.len());
            needed.sort_unstable();
            needed.dedup();
            let prompts = (all.len(), needed.iter().copied().zip(all.get(&needed)?).collect());
            let run = ExperienceConstraints { form: self.collector.form(), prompts, architecture };
            rest.position(waiting, &run).map_err(|fault| unfit(fault.to_string()))?
        } else {
            Position { counters: rest.state.collected(), ..self.collector.position() }
        };
        self.collector.go_to(position);
        Ok(())
    }
}

/// Returns whether two configurations have the same plugin weights and settings, so that their rewards are comparable.
fn scores_alike(was: &RunConfig, now: &RunConfig) -> bool {
    let settings = |config: &serde_json::Map<String, Value>| Value::Object(config.clone());
    let alike = |was: &PluginEntry, now: &PluginEntry| {
        (was.name(), was.weight, was.on_error, was.compare) == (now.name(), now.weight, now.on_error, now.compare)
            && same(&settings(&was.config), &settings(&now.config))
    };
    let all_alike = |was: &[PluginEntry], now: &[PluginEntry]| {
        was.len() == now.len() && was.iter().zip(now).all(|(was, now)| alike(was, now))
    };
    all_alike(&was.plugin, &now.plugin)
        && all_alike(&was.environment, &now.environment)
        && same(&settings(&was.loss), &settings(&now.loss))
}

/// Returns the distinct experiences of the micro-batches, and for each micro-batch the index of its experience and its items.
fn distinct_experiences<'a>(
    micro_batches: impl IntoIterator<Item = &'a MicroBatch>,
) -> (Vec<Arc<Experience>>, Vec<MicroBatchPlace>) {
    let (mut experiences, mut places): (Vec<Arc<Experience>>, Vec<_>) = (Vec::new(), Vec::new());
    for MicroBatch { experience, items } in micro_batches {
        let index = experiences.iter().position(|e| Arc::ptr_eq(e, experience)).unwrap_or_else(|| {
            experiences.push(experience.clone());
            experiences.len() - 1
        });
        places.push((index, items.start, items.end));
    }
    (experiences, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        assert_eq!(readable(&vec![1.5f32]).unwrap(), b"[1.5]");
        let said = readable(&vec![1.5f32, f32::NAN]).unwrap_err();
        assert!(said.contains("snapshot.json could not be read again"), "{said}");
    }
}
