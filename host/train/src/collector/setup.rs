//! Creates a collector.

use super::compared_models::ComparedModels;
use super::sequences::sequences_of;
use super::source::RunHome;
use super::{Collector, CollectorCounters, PromptLoader, TurnGenerator, source_of};
use crate::Result;
use crate::dist::World;
use crate::plan::RunPlan;
use crate::shared_model::SharedModel;
use std::collections::VecDeque;
use std::rc::Rc;

impl Collector {
    /// Creates a collector at the beginning of the data, with a reference model if there is one; `longest` is the maximum length of a
    /// prompt with a given completion.
    ///
    /// # Errors
    /// If a log of rollouts can't be read.
    pub(crate) fn new(
        world: Rc<World>,
        plan: &RunPlan,
        data: PromptLoader,
        turns: TurnGenerator,
        home: &RunHome,
        reference: Option<SharedModel>,
        longest: usize,
    ) -> Result<Self> {
        let (pending, counters, turns) = (VecDeque::new(), CollectorCounters::default(), Rc::new(turns));
        let source = source_of(&plan.rollout, &turns, home, &world)?;
        let (batching, rollout) = (plan.batching.clone(), plan.rollout.clone());
        let compared = ComparedModels { reference, plan: plan.reference, teacher: None };
        let sequences = sequences_of(&batching);
        Ok(Self { world, sequences, batching, rollout, data, turns, source, compared, longest, pending, counters })
    }
}
