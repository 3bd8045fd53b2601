//! Prompts that a teacher reads before scored completions, as the algorithm writes them.

use super::totals::totals;
use super::{CollectionContext, Collector};
use crate::Result;
use crate::dataset::Prompt;
use crate::experience::Experience;
use crate::ops::dropout::mixed_bits;
use crate::plugin::columns::HAS_TEACHER_PROMPT;
use crate::plugin::{Column, TaughtColumn, TaughtGeneration, TeacherQuestions, Unit};
use crate::plugins::from_plugin;
use crate::policy_progress::PolicyProgress;
use crate::step_metrics::StepMetrics;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Distinguishes the seeds of these calls from those of estimates, losses and dropout.
const SEEDS: u64 = 0x7465_6163;

impl Collector {
    /// Lets the algorithm write what a teacher reads before each completion, if it does.
    ///
    /// # Errors
    /// If the call fails, or a prompt is no question.
    pub(super) fn write_teacher_prompts(&self, e: &mut Experience, with: &mut CollectionContext<'_>) -> Result<StepMetrics> {
        let mut figures = StepMetrics::start();
        if !with.plugins.writes_teacher_prompts() {
            return Ok(figures);
        }
        let Some(written) = with.plugins.teacher_questions(self.taught_generation(e, with.at)?)? else { return Ok(figures) };
        let TeacherQuestions { questions, max_length, metrics } = written;
        let context = with.learner.policy().architecture().max_positions;
        // Completions of a prompt often get the same question.
        let mut known: HashMap<(usize, &str), Vec<u32>> = HashMap::new();
        for (row, question) in questions.iter().enumerate() {
            let Some(question) = question else { continue };
            let rollout = &mut e.rollouts[row];
            let read = match known.get(&(rollout.prompt, question.as_str())) {
                Some(read) => read,
                None => {
                    let prompt = &e.prompts[rollout.prompt];
                    let read = prompt.with_question(question, self.turns.tokenizer())?;
                    known.entry((rollout.prompt, question)).or_insert(read)
                }
            };
            let room = context.saturating_sub(rollout.tokens.len()).min(max_length.unwrap_or(usize::MAX));
            rollout.teacher_prompt = Some(read[read.len().saturating_sub(room)..].to_vec());
        }
        let has_prompt = questions.iter().map(|question| f32::from(u8::from(question.is_some()))).collect();
        e.columns.set(Column::new(HAS_TEACHER_PROMPT, Unit::Sequence, has_prompt));
        figures.add(self.world.once(from_plugin(metrics)));
        figures.lap("teacher_prompts");
        Ok(figures)
    }

    /// Returns a scored generation as the algorithm sees it.
    fn taught_generation(&self, e: &Experience, at: PolicyProgress) -> Result<TaughtGeneration> {
        let rewards: Vec<Option<f32>> =
            totals(&e.rewards, None).into_iter().map(|total| total.map(|total| total.sum as f32)).collect();
        let question = |prompt: &Arc<Prompt>| prompt.question().map(str::to_owned);
        let column = |name: String| {
            let values = e.prompts.iter().map(|prompt| prompt.columns.get(&name).unwrap_or(&Value::Null).to_string()).collect();
            TaughtColumn { name, values }
        };
        Ok(TaughtGeneration {
            step: at.step,
            seed: mixed_bits(self.rollout.seed ^ mixed_bits(at.step ^ SEEDS)),
            questions: e.prompts.iter().map(question).collect::<Result<_>>()?,
            columns: self.data.columns_with(&e.prompts).into_iter().map(column).collect(),
            prompt_of: e.rollouts.iter().map(|rollout| rollout.prompt as u32).collect(),
            completions: e.texts.clone(),
            finished: e.rollouts.iter().map(|rollout| rollout.finished).collect(),
            rewards: (0..e.rollouts.len()).map(|row| rewards.get(row).copied().flatten()).collect(),
        })
    }
}
