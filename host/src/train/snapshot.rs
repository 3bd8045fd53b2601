//! All that decides a run's future: into a checkpoint and back.

mod checks;

use super::experience::Experience;
use super::origin::{Origin, Parent};
use super::pairs::Pair;
use super::saving::Best;
use super::step::Share;
use super::swap::{Seen, Swap};
use super::trainer::{State, Trainer};
use super::{Error, Result};
use crate::checkpoint;
use crate::data::Cursor;
use crate::metrics::Window;
use crate::model::{self, Frozen, ModelFolder, Weights};
use crate::plugin::{Advantages, Memory, RewardColumn};
use crate::rollout::Rollout;
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const REST: &str = "snapshot.json";
/// The reference model, where it is not the one that the run began with.
pub(super) const REFERENCE: &str = "reference.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";

/// A run at one step, in memory: nothing in it changes while training goes on.
pub(super) struct Snapshot {
    weights: Weights,
    source: ModelFolder,
    config: String,
    summary: Value,
    /// Name and file of each plugin in use.
    plugins: Vec<(String, PathBuf)>,
    /// None where the model alone is saved.
    resumable: Option<Resumable>,
}

struct Resumable {
    moments: HashMap<String, Tensor>,
    reference: Option<Frozen>,
    memories: Vec<(String, Memory)>,
    experiences: Vec<Arc<Experience>>,
    rest: Rest,
}

/// Counters, position in the data, figures not yet logged, and rollouts not yet trained on.
#[derive(Deserialize, Serialize)]
struct Rest {
    state: State,
    cursor: Cursor,
    /// Hash of the dataset that the cursor and the rollouts are of.
    dataset: String,
    optimizer_updates: u64,
    window: Window,
    since_save: Window,
    best: Option<Best>,
    parents: Vec<Parent>,
    swaps: Vec<Swap>,
    /// What of each plugin's file was dealt with.
    seen: Seen,
    /// Name of each plugin with a state, and who wrote it.
    memories: BTreeMap<String, String>,
    experiences: Vec<Saved>,
    /// Index of the experience and its rows, for each micro-batch that waits.
    pending: Vec<(usize, usize, usize)>,
}

/// An [`Experience`] without what the dataset or its own columns give again.
#[derive(Deserialize, Serialize)]
struct Saved {
    generated_at: u64,
    /// Rows of the dataset.
    prompts: Vec<usize>,
    rollouts: Vec<Rollout>,
    texts: Vec<String>,
    /// Name, weight and scores.
    rewards: Vec<(String, f32, Vec<Option<f32>>)>,
    ref_logp: Option<Vec<f32>>,
    values: Option<Vec<f32>>,
    advantages: Vec<f32>,
    returns: Option<Vec<f32>>,
    mask: Vec<u8>,
    pairs: Vec<Pair>,
}

impl Saved {
    fn of(e: &Experience) -> Self {
        Self {
            generated_at: e.generated_at,
            prompts: e.prompts.iter().map(|p| p.row).collect(),
            rollouts: e.rollouts.clone(),
            texts: e.texts.clone(),
            rewards: e.rewards.iter().map(|r| (r.name.clone(), r.weight, r.values.clone())).collect(),
            ref_logp: e.ref_logp.clone(),
            values: e.values.clone(),
            advantages: e.advantages.advantages.clone(),
            returns: e.advantages.returns.clone(),
            mask: e.advantages.mask.clone(),
            pairs: e.pairs.clone(),
        }
    }

    /// None where a prompt is not in the dataset.
    fn restored(self, trainer: &Trainer) -> Option<Experience> {
        let prompts = self.prompts.iter().map(|&row| trainer.prompts.get(row).cloned()).collect::<Option<Vec<_>>>()?;
        Some(Experience {
            generated_at: self.generated_at,
            prompts,
            offsets: super::experience::offsets(&self.rollouts),
            logp: self.rollouts.iter().flat_map(|r| r.logp.iter().copied()).collect(),
            rollouts: self.rollouts,
            texts: self.texts,
            rewards: self.rewards.into_iter().map(|(name, weight, values)| RewardColumn { name, weight, values }).collect(),
            ref_logp: self.ref_logp,
            values: self.values,
            advantages: Advantages { advantages: self.advantages, returns: self.returns, mask: self.mask, metrics: Vec::new() },
            pairs: self.pairs,
        })
    }
}

/// What a checkpoint says of the run that wrote it, read and not yet taken over.
pub(super) struct Restored {
    rest: Rest,
    moments: HashMap<String, Tensor>,
}

impl Restored {
    /// Reads it, for a run whose dataset has this hash.
    ///
    /// # Errors
    /// If it holds the model alone, can't be read, or is of another dataset and nothing may have
    /// `changed`.
    pub(super) fn read(origin: &Origin, dataset: &str, changed: bool) -> Result<Self> {
        let checkpoint = origin.checkpoint.as_path();
        let unfit = |detail: String| Error::Unfit(format!("{}: {detail}", checkpoint.display()));
        let text = fs::read(checkpoint.join(REST)).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => unfit("holds the model alone (save_only_model); no run can go on from it".into()),
            _ => unfit(format!("{REST}: {e}")),
        })?;
        let rest: Rest = serde_json::from_slice(&text).map_err(|e| unfit(format!("{REST}: {e}")))?;
        if let Some(fault) = rest.fault(origin.step) {
            return Err(unfit(format!("{REST}: {fault}")));
        }
        let moments = candle_core::safetensors::load(checkpoint.join(OPTIMIZER), &Device::Cpu);
        let moments = moments.map_err(|e| unfit(format!("{OPTIMIZER}: {e}")))?;
        if rest.dataset != dataset {
            if !changed {
                return Err(unfit(
                    "the dataset has changed since it was written; --allow-changed begins the new one anew".into(),
                ));
            }
            tracing::warn!("the dataset is not the one that {} was written with: it begins anew", checkpoint.display());
        }
        Ok(Self { rest, moments })
    }
}

/// Reads a checkpoint, for a dataset that it is not of.
#[cfg(any(test, fuzzing))]
pub(crate) fn read(checkpoint: &Path) -> Result<()> {
    let step = checkpoint.file_name().and_then(|name| name.to_str()?.strip_prefix("checkpoint-")?.parse().ok());
    let origin = Origin { run: checkpoint.to_owned(), checkpoint: checkpoint.to_owned(), step: step.unwrap_or_default() };
    Restored::read(&origin, "", true).map(drop)
}

fn memory_file(checkpoint: &Path, plugin: &str) -> PathBuf {
    checkpoint.join("plugins").join(format!("{plugin}.state"))
}

impl Snapshot {
    /// Puts everything into the folder of a checkpoint.
    pub(super) fn write(mut self, to: &Path) -> std::result::Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        model::save(&self.weights, &self.source, to).map_err(|e| e.to_string())?;
        fs::write(to.join("config.toml"), self.config).map_err(text)?;
        fs::write(to.join("trainer_state.json"), format!("{:#}\n", self.summary)).map_err(text)?;
        fs::create_dir(to.join("plugins")).map_err(text)?;
        for (name, file) in &self.plugins {
            fs::copy(file, to.join("plugins").join(format!("{name}.wasm"))).map_err(text)?;
        }
        let Some(resumable) = &mut self.resumable else { return Ok(()) };
        for (name, memory) in &resumable.memories {
            fs::write(memory_file(to, name), &memory.bytes).map_err(text)?;
        }
        let moments = std::mem::take(&mut resumable.moments).into_iter().collect();
        model::write_tensors(moments, None, &to.join(OPTIMIZER)).map_err(|e| e.to_string())?;
        if let Some(reference) = &resumable.reference {
            model::write_weights(reference.weights(), &to.join(REFERENCE)).map_err(|e| e.to_string())?;
        }
        resumable.rest.experiences = resumable.experiences.iter().map(|e| Saved::of(e)).collect();
        fs::write(to.join(REST), serde_json::to_vec(&resumable.rest).map_err(|e| e.to_string())?).map_err(text)
    }
}

impl Trainer {
    /// Copies what a checkpoint of this moment holds.
    pub(super) fn snapshot(&mut self) -> Result<Snapshot> {
        let resumable = if self.config.save_only_model { None } else { Some(self.resumable()?) };
        let best = self.saves.best;
        let best_folder = best.map(|best| checkpoint::folder(self.folder.path(), best.step).display().to_string());
        // The names that transformers' own trainer state has.
        let summary = json!({
            "global_step": self.state.global_step,
            "epoch": self.epoch(),
            "max_steps": self.max_steps,
            "world_size": self.world.size(),
            "num_input_tokens_seen": self.state.num_tokens,
            "best_metric": best.map(|best| best.value),
            "best_global_step": best.map(|best| best.step),
            "best_model_checkpoint": best_folder,
            "parents": self.parents,
        });
        Ok(Snapshot {
            weights: self.policy.copied_weights()?,
            source: self.source.clone(),
            config: self.folder.config().to_owned(),
            summary,
            plugins: self.folder.plugin_files(),
            resumable,
        })
    }

    fn resumable(&mut self) -> Result<Resumable> {
        let (optimizer_updates, moments) = self.optimizer.state()?;
        let memories: Vec<(String, Memory)> =
            self.memories()?.into_iter().filter_map(|(name, memory)| Some((name, memory?))).collect();
        let mut experiences: Vec<Arc<Experience>> = Vec::new();
        let mut pending = Vec::with_capacity(self.pending.len());
        for share in &self.pending {
            let index = experiences.iter().position(|e| Arc::ptr_eq(e, &share.experience)).unwrap_or_else(|| {
                experiences.push(share.experience.clone());
                experiences.len() - 1
            });
            pending.push((index, share.rows.start, share.rows.end));
        }
        let rest = Rest {
            state: self.state.clone(),
            cursor: self.loader.cursor(),
            dataset: self.dataset.clone(),
            optimizer_updates,
            window: self.window.clone(),
            since_save: self.saves.window.clone(),
            best: self.saves.best,
            parents: self.parents.clone(),
            swaps: self.swaps.history.clone(),
            seen: self.swaps.seen(),
            memories: memories.iter().map(|(name, memory)| (name.clone(), memory.written_by.clone())).collect(),
            experiences: Vec::new(),
            pending,
        };
        // The thread that writes must leave the device alone: a generation may be recording a step there.
        let reference = self.reference.as_ref().filter(|_| self.config.sync_ref_model).map(Frozen::on_host).transpose()?;
        Ok(Resumable { moments, reference, memories, experiences, rest })
    }

    /// Goes back to the state of a checkpoint, whose weights the policy has already. `changed`
    /// allows plugins that can't take the state of their forerunners.
    pub(super) fn restore(&mut self, checkpoint: &Path, state: Restored, changed: bool) -> Result<()> {
        let unfit = |detail: String| Error::Unfit(format!("{}: {detail}", checkpoint.display()));
        let Restored { rest, moments } = state;
        self.optimizer.restore(rest.optimizer_updates, moments).map_err(|e| unfit(format!("{OPTIMIZER}: {e}")))?;
        self.recall(checkpoint, &rest.memories, changed)?;

        // Of another dataset neither the position nor the prompts mean anything.
        if rest.dataset == self.dataset {
            if let Some(fault) = rest.experiences.iter().find_map(|saved| saved.fault(self)) {
                return Err(unfit(format!("{REST}: {fault}")));
            }
            let restored = rest.experiences.into_iter().map(|saved| saved.restored(self).map(Arc::new));
            let experiences: Option<Vec<Arc<Experience>>> = restored.collect();
            let experiences = experiences.ok_or_else(|| unfit(format!("{REST}: rollouts without their prompts")))?;
            for (index, start, end) in rest.pending {
                let experience = experiences.get(index).filter(|e| start <= end && end <= self.items(e));
                let experience = experience.ok_or_else(|| unfit(format!("{REST}: a micro-batch without its rollouts")))?.clone();
                self.pending.push_back(Share { experience, rows: start..end });
            }
            self.loader.seek(rest.cursor);
        }
        self.state = rest.state;
        self.window = rest.window;
        self.parents = rest.parents;
        self.swaps.begin_at(rest.swaps, rest.seen);
        self.saves.begin_at(self.state.global_step, rest.best, rest.since_save);
        Ok(())
    }

    fn recall(&mut self, checkpoint: &Path, memories: &BTreeMap<String, String>, changed: bool) -> Result<()> {
        for plugin in self.plugins_mut() {
            let Some(written_by) = memories.get(plugin.name()) else { continue };
            let file = memory_file(checkpoint, plugin.name());
            let bytes = fs::read(&file).map_err(|e| Error::Unfit(format!("{}: {e}", file.display())))?;
            match plugin.recall(Memory { bytes: bytes.into(), written_by: written_by.clone() }) {
                Ok(()) => {}
                Err(error) if changed => {
                    tracing::warn!("{error}; it begins without one");
                    plugin.rewind(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
