//! Evaluations on prompts that are not trained on. Their metrics are those of training, prefixed with `eval_`.

use super::dataset::PromptSet;
use super::periods::Periods;
use super::plan::StepPlan;
use crate::config::RunConfig;

/// The prompts and schedule of a run's evaluations.
pub(super) struct Evaluation {
    pub(super) prompts: PromptSet,
    /// Number of steps between evaluations; none if training has none.
    every: Option<u64>,
    /// Minimum number of steps before the first evaluation in training.
    from: u64,
    /// The last step, after which there is always an evaluation.
    last: u64,
}

impl Evaluation {
    /// Creates the evaluation on these prompts, for a run with these steps.
    pub(super) fn new(prompts: PromptSet, config: &RunConfig, steps: StepPlan) -> Self {
        let Periods { evaluate, evaluate_from, .. } = steps.periods;
        Self { prompts, every: config.evaluates().then_some(evaluate), from: evaluate_from, last: steps.max_steps }
    }

    /// Returns whether an evaluation is due after this step.
    pub(super) fn is_due(&self, step: u64) -> bool {
        self.every.is_some_and(|every| step.is_multiple_of(every) && step >= self.from || step == self.last)
    }

    /// Returns whether evaluations are made during training, and not only after the last step.
    pub(super) fn is_regular(&self) -> bool {
        self.every.is_some()
    }

    /// Returns the prompts.
    pub(super) fn prompts(&self) -> &PromptSet {
        &self.prompts
    }
}
