//! Reward plugins: a generation batch in, one score or none a completion out.

use super::engine::Engine;
use super::instance::Plugin;
use super::world::{Rewarding, Role, reward};
use super::{Error, Metric, Result, Source};
use crate::config::Limits;
use serde_json::{Map, Value};
use std::ops::{Deref, DerefMut};

/// A dataset column: name and one JSON value a prompt.
pub use super::world::reward::Column;

/// Completions as reward plugins see them; see `wit/rlhost-plugin.wit`.
pub use super::world::reward::Batch as RewardBatch;

/// One score or none a completion, and the plugin's own figures.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// One entry a row.
    pub rewards: Vec<Option<f32>>,
    /// Figures to log.
    pub metrics: Vec<Metric>,
}

/// A loaded reward.
pub struct RewardPlugin {
    plugin: Plugin,
}

impl Deref for RewardPlugin {
    type Target = Plugin;

    fn deref(&self) -> &Plugin {
        &self.plugin
    }
}

impl DerefMut for RewardPlugin {
    fn deref_mut(&mut self) -> &mut Plugin {
        &mut self.plugin
    }
}

impl RewardPlugin {
    /// Loads and configures; `seed` is the run's.
    pub fn load(engine: &Engine, source: &Source, config: &Map<String, Value>, limits: &Limits, seed: u64) -> Result<Self> {
        Ok(Self { plugin: Plugin::load(engine, source, Role::Reward, config, limits, seed)? })
    }

    /// Scores a batch; only the columns that the plugin asks for are sent. The result has one
    /// finite score, or none, for every row.
    pub fn score(&mut self, batch: &RewardBatch) -> Result<Scores> {
        let rows = batch.prompt_of.len();
        let sent = self.columns(batch);
        let step = batch.step;
        let scores = self.plugin.call("score", Some(step), |store, linked| {
            Rewarding::new(&mut *store, linked)?.rlhost_plugin_reward().call_score(&mut *store, &sent)
        })?;
        let wrong = |detail| Error::Call { name: self.name().to_owned(), function: "score", step: Some(step), detail };
        if scores.rewards.len() != rows {
            return Err(wrong(format!("returned {} rewards for {rows} completions", scores.rewards.len())));
        }
        if let Some((row, bad)) =
            scores.rewards.iter().enumerate().find_map(|(i, r)| r.filter(|r| !r.is_finite()).map(|r| (i, r)))
        {
            return Err(wrong(format!(
                "returned {bad} for row {row}; a reward is a finite number, or none where there is nothing to say"
            )));
        }
        let metrics = super::checked_metrics(scores.metrics).map_err(wrong)?;
        Ok(Scores { rewards: scores.rewards, metrics })
    }

    fn columns(&self, batch: &RewardBatch) -> RewardBatch {
        let needs = self.info().needs;
        let texts = |wanted: bool, texts: &[String]| if wanted { texts.to_vec() } else { vec![String::new(); texts.len()] };
        let (offsets, token_ids) = if needs.token_ids {
            (batch.offsets.clone(), batch.token_ids.clone())
        } else {
            (vec![0; batch.offsets.len()], Vec::new())
        };
        reward::Batch {
            step: batch.step,
            seed: self.plugin.seed().wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(batch.step),
            prompts: texts(needs.prompt_text, &batch.prompts),
            columns: if needs.dataset_columns { batch.columns.clone() } else { Vec::new() },
            prompt_of: batch.prompt_of.clone(),
            completions: texts(needs.completion_text, &batch.completions),
            finished: batch.finished.clone(),
            offsets,
            token_ids,
        }
    }
}
