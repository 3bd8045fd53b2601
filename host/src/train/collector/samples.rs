//! Completions of one prompt before and after training, to show to the user.

use super::Collector;
use crate::model::Policy;
use crate::train::Result;

/// The generation number of samples: both use the same random numbers, which training does not use.
const GENERATION: u64 = u64::MAX - 1;

/// A completion.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Number of optimizer steps taken.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// The policy's completion.
    pub completion: String,
    /// Its length in tokens.
    pub tokens: usize,
}

impl Collector {
    /// Generates a completion of the dataset's first prompt after this many steps, if the run generates and prints its output.
    pub(in crate::train) fn sample(&self, policy: &Policy, step: u64) -> Result<Option<Sample>> {
        // An episode would need its environment.
        let one_turn = self.flow.generates() && self.settings.environment.is_empty();
        let wanted = one_turn && tracing::enabled!(tracing::Level::INFO);
        let first = if wanted { self.data.prompts().first(1)? } else { Vec::new() };
        let Some(prompt) = first.first() else { return Ok(None) };
        let (rollouts, _) = self.turns.roll_out(
            &self.turns.decoding(policy, true)?,
            (std::slice::from_ref(prompt), 1),
            self.turns.sampling(false),
            GENERATION,
            self.temperature(),
            false,
        )?;
        let Some(rollout) = rollouts.first() else { return Ok(None) };
        let completion = self.turns.text(rollout)?;
        Ok(Some(Sample { step, prompt: prompt.text.clone(), completion, tokens: rollout.tokens.len() }))
    }
}
