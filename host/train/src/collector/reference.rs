//! The reference model computes log-probabilities of completions, in each generation or once in advance, and may follow the policy; a
//! teacher computes them each time.

use super::compared_models::{ComparedModels, Teacher};
use super::source::RunHome;
use super::teacher_record::{CompletionScores, TeacherRecord};
use super::teacher_server::TeacherServers;
use super::{CollectionContext, Collector};
use crate::Result;
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::dataset::Prompt;
use crate::experience::Experience;
use crate::model::PolicyModel;
use crate::packed_completions::PromptReader;
use crate::plugin::NeededInputs;
use crate::plugin::columns::{REF_LOGP, TEACHER_LOGP};
use crate::policy_progress::PolicyProgress;
use crate::shared_model::SharedModel;
use crate::step_metrics::StepMetrics;
use std::sync::Arc;

impl Collector {
    /// Returns log-probabilities under the reference model, if there is one or they are precomputed.
    pub(super) fn reference_logp(&self, e: &Experience) -> Result<Option<Vec<f32>>> {
        let Some(reference) = &self.compared.reference else {
            let known = e.prompts.iter().map(|prompt| prompt.ref_logp.get());
            return Ok(known.collect::<Option<Vec<_>>>().map(|columns| columns.into_iter().flatten().copied().collect()));
        };
        let _task = ProgressTask::new(Activity::ReferenceModel);
        self.scored_by(reference, PromptReader::Policy, e).map(Some)
    }

    /// Adds a teacher, if there is one. In training, what servers say is recorded in the run's folder.
    ///
    /// # Errors
    /// If the record can't be read or written.
    pub(crate) fn with_teacher(self, teacher: Option<Teacher>, home: &RunHome) -> Result<Self> {
        let teacher = match teacher {
            Some(Teacher::Servers(servers)) if home.keeps_log => {
                let mut record = TeacherRecord::open(&home.folder, self.world.rank())?;
                if let Some(replayed) = &self.rollout.logs.replayed {
                    record.adopt(replayed)?;
                }
                Some(Teacher::Servers(servers.with_record(record)))
            }
            other => other,
        };
        Ok(Self { compared: ComparedModels { teacher, ..self.compared }, ..self })
    }

    /// Adds what the teacher says of completions, if an algorithm needs it before it learns. Returns whether it did.
    pub(super) fn add_teacher_scores(&self, e: &mut Experience, with: &CollectionContext<'_>) -> Result<bool> {
        let needs = with.plugins.needs();
        if let Some(Teacher::Servers(servers)) = &self.compared.teacher {
            return self.add_served_scores(servers, e, needs);
        }
        if !needs.has(TEACHER_LOGP) {
            return Ok(false);
        }
        let moving = with.learner.moving_teacher().map(SharedModel::new);
        let model = match (&self.compared.teacher, &moving) {
            (Some(Teacher::Model(model)), _) => model,
            (_, Some(model)) => model,
            (_, None) => return Ok(false),
        };
        let _task = ProgressTask::new(Activity::Teacher);
        e.columns.set_per_token(TEACHER_LOGP, Some(self.scored_by(model, PromptReader::Teacher, e)?));
        Ok(true)
    }

    /// Adds what teachers on servers say of completions. Returns whether an algorithm with these needs learns from it.
    fn add_served_scores(&self, servers: &TeacherServers, e: &mut Experience, needs: &NeededInputs) -> Result<bool> {
        let likely = needs.teacher_tokens().unwrap_or(0);
        if likely == 0 && !needs.has(TEACHER_LOGP) {
            return Ok(false);
        }
        let _task = ProgressTask::new(Activity::Teacher);
        let own = servers.scores(e, e.rows(self.world.share(e.prompts.len())), likely)?;
        let all: Vec<CompletionScores> = self.world.concat("a teacher's scores", own)?;
        if needs.has(TEACHER_LOGP) {
            let logp = all.iter().flat_map(|scores| scores.logp.iter().copied()).collect();
            e.columns.set_per_token(TEACHER_LOGP, Some(logp));
        }
        if likely > 0 {
            e.rollouts.iter_mut().zip(all).for_each(|(rollout, scores)| rollout.likely_tokens = Some(scores.likely));
        }
        Ok(true)
    }

    /// Computes the reference model's log-probabilities of all answers in the dataset and in `evaluated`, and of `mismatched`
    /// ones if requested, then frees the model.
    pub(crate) fn precompute_reference(&mut self, evaluated: &[Arc<Prompt>], at: PolicyProgress, mismatched: bool) -> Result<()> {
        if self.compared.reference.is_none() || !self.compared.plan.precomputes {
            return Ok(());
        }
        let rows = self.data.prompts().all()?.len() + evaluated.len();
        let task = ProgressTask::new(Activity::ReferenceModel).with_total(rows as u64, ProgressUnit::Rows);
        let batches = self.data.prompts().all()?.chunks(self.batching.sizes.micro_batch);
        for some in batches.chain(evaluated.chunks(self.batching.prompts_evaluated_together())) {
            let (experience, _) = self.take_answers(some.to_vec(), at, mismatched)?;
            task.add(some.len() as u64);
            // The same row of the same dataset always gets the same values.
            for (prompt, column) in some.iter().zip(by_prompt(&experience)) {
                let _ = prompt.ref_logp.set(column);
            }
            let Some(others) = experience.mismatched.as_deref() else { continue };
            for (i, (prompt, column)) in some.iter().zip(by_prompt(others)).enumerate() {
                let _ = prompt.mismatched_ref_logp.set((some[self.mismatched_row(i, some.len())].row, column));
            }
        }
        self.compared.reference = None;
        Ok(())
    }

    /// Returns whether the reference model follows the policy after this step.
    pub(crate) fn syncs_reference_at(&self, step: u64) -> bool {
        let due = self.compared.plan.sync.is_some_and(|sync| step.is_multiple_of(sync.steps));
        due && self.compared.reference.is_some()
    }

    /// Mixes the policy into the reference model (TRL's `SyncRefModelCallback`).
    pub(crate) fn sync_reference(&mut self, policy: &PolicyModel) -> Result<StepMetrics> {
        let mut figures = StepMetrics::start();
        if let (Some(reference), Some(sync)) = (self.compared.reference.as_mut(), self.compared.plan.sync) {
            *reference = reference.mixed(policy.weights(), sync.alpha)?;
            figures.lap("reference");
        }
        Ok(figures)
    }
}

/// Returns the reference model's log-probabilities, split by prompt.
fn by_prompt(e: &Experience) -> impl Iterator<Item = Vec<f32>> {
    let logp = e.columns.values(REF_LOGP).unwrap_or_default();
    (0..e.prompts.len()).map(move |prompt| logp.get(e.tokens(&e.rows(prompt..prompt + 1))).unwrap_or_default().to_vec())
}
