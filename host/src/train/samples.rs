//! What the policy writes to one prompt, before training and after, to be shown to a person.

use super::Result;
use super::trainer::Trainer;

/// The number of the generation that samples count as, so that both draw the same random numbers
/// and none those of training.
const GENERATION: u64 = u64::MAX - 1;

/// A completion.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Optimizer steps taken.
    pub step: u64,
    /// What was asked.
    pub prompt: String,
    /// What the policy wrote.
    pub completion: String,
    /// Its length.
    pub tokens: usize,
}

impl Trainer {
    /// A completion of the dataset's first prompt, where the run generates and somebody sees it.
    pub(super) fn sample(&self) -> Result<Option<Sample>> {
        let wanted = self.generates() && tracing::enabled!(tracing::Level::INFO);
        let Some(prompt) = self.prompts.first().filter(|_| wanted) else { return Ok(None) };
        let rollouts = self.roll_out(std::slice::from_ref(prompt), 1, GENERATION)?;
        let Some(rollout) = rollouts.first() else { return Ok(None) };
        let completion = self.tokenizer.decode(&rollout.tokens)?;
        let (step, tokens) = (self.state.global_step, rollout.tokens.len());
        Ok(Some(Sample { step, prompt: prompt.text.clone(), completion, tokens }))
    }
}
