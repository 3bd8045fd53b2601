//! What a plugin is tried on before it gets its place: completions made up at the beginning, and
//! the run's own from then on.

use crate::metrics::Comparison;
use crate::plugin::{AnyPlugin, Pairs, Result, RewardBatch, RewardColumn, RewardPlugin, Rollouts, Scale, Side, Tokens};
use crate::rollout::Rollout;
use crate::train::scoring;
use crate::train::trainer::Prompt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Made-up completions of a prompt.
const COMPLETIONS: usize = 2;

/// The newest batch of each kind.
#[derive(Clone)]
pub(in crate::train) struct Trial {
    /// Completions, and how each reward scored them.
    pub(super) scored: (Arc<RewardBatch>, BTreeMap<String, Vec<Option<f32>>>),
    pub(super) rollouts: Arc<Rollouts>,
    pub(super) tokens: Arc<Tokens>,
    pub(super) pairs: Arc<Pairs>,
}

impl Trial {
    /// Completions made up from the dataset's first prompts: one empty, one as long as the prompt's
    /// first tokens. `with_reference` adds log-probabilities of a reference model,
    /// `with_critic` values.
    pub(in crate::train) fn made_up(
        prompts: &[Arc<Prompt>],
        columns: &[String],
        with_reference: bool,
        with_critic: bool,
    ) -> Self {
        let prompts = &prompts[..prompts.len().min(2)];
        let rollout = |prompt: usize, sample: usize| {
            let tokens: Vec<u32> = prompts[prompt].tokens.iter().take(1 + 3 * sample).copied().collect();
            Rollout { prompt, sample, logp: vec![-1.0; tokens.len()], tokens, finished: sample == 0 }
        };
        let rollouts: Vec<Rollout> =
            (0..prompts.len()).flat_map(|p| (0..COMPLETIONS).map(move |s| (p, s))).map(|(p, s)| rollout(p, s)).collect();
        let texts: Vec<String> =
            rollouts.iter().map(|r| if r.sample == 0 { String::new() } else { prompts[r.prompt].text.clone() }).collect();
        let batch = scoring::batch(0, prompts, columns, &rollouts, &texts);
        let (offsets, logp) = (batch.offsets.clone(), vec![-1.0; batch.token_ids.len()]);
        let ref_logp = with_reference.then(|| vec![-1.1; logp.len()]);
        let values_of_critic = with_critic.then(|| vec![0.0; logp.len()]);
        let mask = vec![1; logp.len()];
        let values = (0..rollouts.len()).map(|row| Some(row as f32)).collect();
        let seen = Rollouts {
            step: 0,
            rewards: vec![RewardColumn { name: "made_up".to_owned(), weight: 1.0, values }],
            prompt_of: batch.prompt_of.clone(),
            finished: batch.finished.clone(),
            offsets: offsets.clone(),
            mask: mask.clone(),
            logp: logp.clone(),
            ref_logp: ref_logp.clone(),
            values: values_of_critic.clone(),
            entropy: Some(vec![1.0; logp.len()]),
        };
        let scale = Scale { rows: rollouts.len() as u32, tokens: logp.len() as u64, max_completion_length: 4 };
        let tokens = Tokens {
            step: 0,
            offsets,
            mask,
            advantages: logp.iter().enumerate().map(|(i, _)| if i % 2 == 0 { 1.0 } else { -1.0 }).collect(),
            logp: logp.clone(),
            old_logp: vec![-1.05; logp.len()],
            ref_logp,
            sampling_logp: Some(logp.clone()),
            entropy: Some(vec![1.0; logp.len()]),
            values: values_of_critic.clone(),
            old_values: values_of_critic,
            returns: with_critic.then(|| vec![0.1; logp.len()]),
            scale,
        };
        let side = |logp: f32, tokens: usize| Side {
            offsets: vec![0, tokens as u32],
            logp: vec![logp; tokens],
            ref_logp: with_reference.then(|| vec![logp - 0.1; tokens]),
            mean_logits: Some(vec![0.0; tokens]),
        };
        let scale = Scale { rows: 1, tokens: 3, max_completion_length: 4 };
        let pairs = Pairs { step: 0, chosen: side(-1.0, 3), rejected: side(-1.5, 2), scale };
        let (scored, rollouts) = ((Arc::new(batch), BTreeMap::new()), Arc::new(seen));
        Self { scored, rollouts, tokens: Arc::new(tokens), pairs: Arc::new(pairs) }
    }

    /// Tries a plugin, and says how it differs from the one whose place it wants. Afterwards it is
    /// as if it had never been called.
    pub(super) fn run(&self, any: &mut AnyPlugin) -> Result<Value> {
        let report = match any {
            AnyPlugin::Reward(plugin) => self.reward(plugin),
            AnyPlugin::Policy(plugin) => {
                plugin.estimate(&self.rollouts).and_then(|_| plugin.loss(&self.tokens)).map(|_| Value::Null)
            }
            AnyPlugin::Preference(plugin) => plugin.loss(&self.pairs).map(|_| Value::Null),
        };
        let kept = report.and_then(|report| any.plugin_mut().remember().map(|_| report));
        any.plugin_mut().rewind(None);
        kept
    }

    fn reward(&self, plugin: &mut RewardPlugin) -> Result<Value> {
        let (batch, scores) = &self.scored;
        let new = plugin.score(batch)?.rewards;
        Ok(match scores.get(plugin.name()) {
            Some(old) => json!(Comparison::of(old, &new)),
            None => Value::Null,
        })
    }
}

/// Tries the plugins that a run begins with.
pub(in crate::train) fn dry_run<'a>(
    trial: &Trial,
    algorithm: &mut AnyPlugin,
    rewards: impl Iterator<Item = &'a mut RewardPlugin>,
) -> Result<()> {
    trial.run(algorithm)?;
    for reward in rewards {
        trial.reward(reward)?;
        reward.rewind(None);
    }
    Ok(())
}
