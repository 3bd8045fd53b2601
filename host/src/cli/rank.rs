//! One process of a run.

use super::failure::CommandFailure;
use super::output;
use crate::dist::{self, World};
use std::rc::Rc;

/// Runs one process of a run, which may be the only one. If it fails, it reports its failure to the others, and one of them prints the
/// error.
pub(super) fn on_this_rank(work: impl FnOnce(&Rc<World>) -> Result<(), CommandFailure>) -> Result<(), CommandFailure> {
    let world = match World::join() {
        Ok(world) => Rc::new(world),
        Err(error) if World::prints_output() => return Err(CommandFailure::mistake(error)),
        Err(_) => return Err(CommandFailure::ReportedElsewhere(2)),
    };
    let outcome = work(&world);
    let (error, mistake) = match &outcome {
        Err(CommandFailure::Mistake(error)) => (error, true),
        Err(CommandFailure::Failed(error)) => (error, false),
        _ => return outcome,
    };
    if world.size() == 1 {
        return outcome;
    }
    world.report_failure(&dist::RankFailure { reason: error.to_string(), plugin: None, mistake, of_saving: false });
    // Printed before this process exits, because launchers kill the others when one exits with a failure.
    if world.is_first() {
        output::complain(error);
    }
    Err(CommandFailure::ReportedElsewhere(if mistake { 2 } else { 1 }))
}
