//! Completions of one prompt before and after training, to show to the user.

use super::Collector;
use super::local::DecoderSource;
use super::source::{PolicyVersion, RolloutRequest, RolloutSource};
use crate::Result;
use crate::activity::{Activity, ProgressTask};
use crate::model::PolicyModel;
use crate::phase::Phase;

/// Generation number of samples. Both samples use the same random numbers, which training does not use.
const GENERATION: u64 = u64::MAX - 1;

/// A sample of the policy's output.
#[derive(Clone, Debug)]
pub struct CompletionSample {
    /// Number of optimizer steps taken.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// The policy's completion.
    pub completion: String,
    /// Length of the completion in tokens.
    pub tokens: usize,
}

impl Collector {
    /// Generates a completion of the dataset's first prompt after this many steps, if the run generates and prints its output.
    pub(crate) fn sample(&mut self, policy: &PolicyModel, step: u64) -> Result<Option<CompletionSample>> {
        // An episode would need its environment, or its agent.
        let one_turn = self.batching.groups.is_some() && !self.rollout.has_episodes();
        let wanted = one_turn && tracing::enabled!(tracing::Level::INFO);
        let first = if wanted { self.data.prompts().first(1)? } else { Vec::new() };
        let Some(prompt) = first.first() else { return Ok(None) };
        let request = RolloutRequest {
            samples: 1,
            sampling: self.turns.sampling(Phase::Train),
            ..self.request(std::slice::from_ref(prompt), GENERATION, Phase::Eval)
        };
        let _task = ProgressTask::new(Activity::SamplingExample);
        // Only ranks that print get here, so the sample comes from a source without collectives, and is not logged.
        let mut decoder = DecoderSource::new(self.turns.clone());
        let batch = decoder.roll_out(&request, PolicyVersion { policy, version: step })?;
        let Some(rollout) = batch.rollouts.first() else { return Ok(None) };
        let completion = self.turns.text(rollout)?;
        Ok(Some(CompletionSample { step, prompt: prompt.text.clone(), completion, tokens: rollout.tokens.len() }))
    }
}
