//! The two origins of sequences: the policy and the dataset.

use super::{CollectionContext, Collector, SequenceSource};
use crate::Result;
use crate::dataset::Prompt;
use crate::experience::Experience;
use crate::plan::Batching;
use crate::step_metrics::StepMetrics;
use std::rc::Rc;
use std::sync::Arc;

/// Sequences that the policy writes.
struct PolicySequences;

impl SequenceSource for PolicySequences {
    fn collect(
        &self,
        collector: &mut Collector,
        prompts: Vec<Arc<Prompt>>,
        generation: u64,
        with: &mut CollectionContext<'_>,
    ) -> Result<(Experience, StepMetrics)> {
        let (mut experience, mut figures) = collector.roll_out_and_score(prompts, generation, with)?;
        figures.merge(collector.compute_columns(&mut experience, with)?);
        Ok((experience, figures))
    }

    fn prepare(
        &self,
        collector: &Collector,
        experience: &mut Experience,
        with: &mut CollectionContext<'_>,
    ) -> Result<StepMetrics> {
        collector.estimate_advantages(experience, with)
    }

    fn prepare_waiting(&self, collector: &mut Collector, with: &mut CollectionContext<'_>) -> Result<()> {
        collector.estimate_anew(with)
    }

    fn record(
        &self,
        collector: &mut Collector,
        experience: &Experience,
        with: &mut CollectionContext<'_>,
    ) -> Result<StepMetrics> {
        let mut figures = StepMetrics::start();
        with.journal.completions(experience, with.at.step, collector.turns.tokenizer())?;
        figures.lap("log");
        collector.counters.generation += 1;
        Ok(figures)
    }
}

/// Sequences of the dataset.
struct DatasetSequences;

impl SequenceSource for DatasetSequences {
    fn collect(
        &self,
        collector: &mut Collector,
        prompts: Vec<Arc<Prompt>>,
        _: u64,
        with: &mut CollectionContext<'_>,
    ) -> Result<(Experience, StepMetrics)> {
        let (mut experience, mut figures) = collector.take_answers(prompts, with.at, with.plugins.needs_mismatched())?;
        if collector.add_teacher_scores(&mut experience, with)? {
            figures.lap("teacher");
        }
        Ok((experience, figures))
    }

    fn prepare(&self, collector: &Collector, experience: &mut Experience, _: &mut CollectionContext<'_>) -> Result<StepMetrics> {
        collector.pair_or_mask(experience);
        Ok(StepMetrics::start())
    }

    fn prepare_waiting(&self, _: &mut Collector, _: &mut CollectionContext<'_>) -> Result<()> {
        Ok(())
    }

    fn record(&self, _: &mut Collector, _: &Experience, _: &mut CollectionContext<'_>) -> Result<StepMetrics> {
        Ok(StepMetrics::start())
    }
}

/// Returns the origin of the sequences that a run with these batches learns from.
pub(super) fn sequences_of(batching: &Batching) -> Rc<dyn SequenceSource> {
    match batching.groups {
        Some(_) => Rc::new(PolicySequences),
        None => Rc::new(DatasetSequences),
    }
}
