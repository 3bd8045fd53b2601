//! The two sources of sequences: the policy, and the dataset.

use super::{Collector, Sequences, With};
use crate::Result;
use crate::dataset::Prompt;
use crate::experience::Experience;
use crate::figures::Figures;
use crate::plan::Batching;
use std::rc::Rc;
use std::sync::Arc;

/// The policy writes the sequences.
struct FromPolicy;

impl Sequences for FromPolicy {
    fn collect(
        &self,
        collector: &mut Collector,
        prompts: Vec<Arc<Prompt>>,
        generation: u64,
        with: &mut With<'_>,
    ) -> Result<(Experience, Figures)> {
        let (mut experience, mut figures) = collector.roll_out_and_score(prompts, generation, with)?;
        figures.merge(collector.compute_columns(&mut experience, with)?);
        Ok((experience, figures))
    }

    fn prepare(&self, collector: &Collector, experience: &mut Experience, with: &mut With<'_>) -> Result<Figures> {
        collector.estimate_advantages(experience, with)
    }

    fn prepare_waiting(&self, collector: &mut Collector, with: &mut With<'_>) -> Result<()> {
        collector.estimate_anew(with)
    }

    fn record(&self, collector: &mut Collector, experience: &Experience, with: &mut With<'_>) -> Result<Figures> {
        let mut figures = Figures::begin();
        with.journal.completions(experience, with.at.step, collector.turns.tokenizer())?;
        figures.lap("log");
        collector.counters.generation += 1;
        Ok(figures)
    }
}

/// The dataset has the sequences.
struct FromDataset;

impl Sequences for FromDataset {
    fn collect(
        &self,
        collector: &mut Collector,
        prompts: Vec<Arc<Prompt>>,
        _: u64,
        with: &mut With<'_>,
    ) -> Result<(Experience, Figures)> {
        let (mut experience, mut figures) = collector.take_answers(prompts, with.at, with.plugins.needs_mismatched())?;
        if collector.add_teacher_logp(&mut experience, with.plugins.needs())? {
            figures.lap("teacher");
        }
        Ok((experience, figures))
    }

    fn prepare(&self, collector: &Collector, experience: &mut Experience, _: &mut With<'_>) -> Result<Figures> {
        collector.pair_or_mask(experience);
        Ok(Figures::begin())
    }

    fn prepare_waiting(&self, _: &mut Collector, _: &mut With<'_>) -> Result<()> {
        Ok(())
    }

    fn record(&self, _: &mut Collector, _: &Experience, _: &mut With<'_>) -> Result<Figures> {
        Ok(Figures::begin())
    }
}

/// Returns the source of the sequences that a run with these batches learns from.
pub(super) fn sequences_of(batching: &Batching) -> Rc<dyn Sequences> {
    match batching.groups {
        Some(_) => Rc::new(FromPolicy),
        None => Rc::new(FromDataset),
    }
}
