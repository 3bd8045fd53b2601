//! All that decides a run's future, beside the weights: into a checkpoint and back.

use super::experience::Experience;
use super::step::Share;
use super::trainer::{State, Trainer};
use super::{Error, Result};
use crate::data::Cursor;
use crate::metrics::Window;
use crate::model;
use crate::plugin::{Advantages, RewardColumn};
use crate::rollout::Rollout;
use candle_core::Device;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

const SNAPSHOT: &str = "snapshot.json";
const OPTIMIZER: &str = "optimizer.safetensors";

/// Counters, position in the data, figures not yet logged, and rollouts not yet trained on.
#[derive(Deserialize, Serialize)]
struct Snapshot {
    state: State,
    cursor: Cursor,
    optimizer_updates: u64,
    window: Window,
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
    advantages: Vec<f32>,
    returns: Option<Vec<f32>>,
    mask: Vec<u8>,
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
            advantages: e.advantages.advantages.clone(),
            returns: e.advantages.returns.clone(),
            mask: e.advantages.mask.clone(),
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
            advantages: Advantages { advantages: self.advantages, returns: self.returns, mask: self.mask, metrics: Vec::new() },
        })
    }
}

impl Trainer {
    /// Puts everything into the folder of a checkpoint.
    pub(super) fn write_checkpoint(&self, to: &Path) -> std::result::Result<(), String> {
        model::save(self.policy.weights(), &self.source, to).map_err(|e| e.to_string())?;
        let (optimizer_updates, moments) = self.optimizer.state();
        let moments: HashMap<String, _> = moments.into_iter().collect();
        candle_core::safetensors::save(&moments, to.join(OPTIMIZER)).map_err(|e| e.to_string())?;

        let mut known: Vec<Arc<Experience>> = Vec::new();
        let mut pending = Vec::with_capacity(self.pending.len());
        for share in &self.pending {
            let index = known.iter().position(|e| Arc::ptr_eq(e, &share.experience)).unwrap_or_else(|| {
                known.push(share.experience.clone());
                known.len() - 1
            });
            pending.push((index, share.rows.start, share.rows.end));
        }
        let snapshot = Snapshot {
            state: self.state.clone(),
            cursor: self.loader.cursor(),
            optimizer_updates,
            window: self.window.clone(),
            experiences: known.iter().map(|e| Saved::of(e)).collect(),
            pending,
        };
        let text = serde_json::to_vec(&snapshot).map_err(|e| e.to_string())?;
        std::fs::write(to.join(SNAPSHOT), text).map_err(|e| e.to_string())?;
        let summary = json!({ "global_step": self.state.global_step, "epoch": self.epoch(), "max_steps": self.max_steps });
        std::fs::write(to.join("trainer_state.json"), format!("{summary:#}\n")).map_err(|e| e.to_string())?;
        self.folder.copy_into(to).map_err(|e| e.to_string())
    }

    /// Goes back to the state of a checkpoint, whose weights the policy has already.
    pub(super) fn restore(&mut self, checkpoint: &Path) -> Result<()> {
        let unfit = |detail: String| Error::Unfit(format!("{}: {detail}", checkpoint.display()));
        let text = std::fs::read(checkpoint.join(SNAPSHOT)).map_err(|e| unfit(format!("{SNAPSHOT}: {e}")))?;
        let snapshot: Snapshot = serde_json::from_slice(&text).map_err(|e| unfit(format!("{SNAPSHOT}: {e}")))?;
        let moments = candle_core::safetensors::load(checkpoint.join(OPTIMIZER), &Device::Cpu);
        let moments = moments.map_err(|e| unfit(format!("{OPTIMIZER}: {e}")))?;
        self.optimizer.restore(snapshot.optimizer_updates, moments).map_err(|e| unfit(format!("{OPTIMIZER}: {e}")))?;

        let changed = || unfit("the dataset has fewer rows than when it was written".into());
        let restored = snapshot.experiences.into_iter().map(|saved| saved.restored(self).map(Arc::new));
        let experiences: Vec<Arc<Experience>> = restored.collect::<Option<_>>().ok_or_else(changed)?;
        for (index, start, end) in snapshot.pending {
            let experience = experiences.get(index).filter(|e| start <= end && end <= e.rollouts.len());
            let experience = experience.ok_or_else(|| unfit(format!("{SNAPSHOT}: a micro-batch without its rollouts")))?.clone();
            self.pending.push_back(Share { experience, rows: start..end });
        }
        self.loader.seek(snapshot.cursor);
        self.state = snapshot.state;
        self.window = snapshot.window;
        Ok(())
    }
}
