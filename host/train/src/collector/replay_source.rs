//! Replays rollouts from the log of another run.

use super::fingerprint::Fingerprints;
use super::logging_source::{GenerationIdentity, GenerationSettings};
use super::source::{PolicyVersion, RolloutBatch, RolloutRequest, RolloutSource};
use crate::config::printable_path;
use crate::config::words::counted;
use crate::dataset::Prompt;
use crate::dist::World;
use crate::model::PromptPass;
use crate::plan::RolloutPlan;
use crate::rollout_log::{GenerationKey, LoggedGeneration, RolloutLog};
use crate::run::RunFiles;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Reads completions from the log of a run. It generates nothing, except an evaluation's completions that the log lacks.
pub(super) struct ReplaySource {
    run: PathBuf,
    /// Log of the replayed run, on the first rank.
    log: Option<RolloutLog>,
    world: Rc<World>,
    fingerprints: Fingerprints,
    settings: GenerationSettings,
    /// Differences that were already warned about.
    warned: ReplayWarnings,
    /// Generates the completions of evaluations that the log lacks.
    decoder: Option<Box<dyn RolloutSource>>,
}

/// Differences from the replayed run that were already warned about.
#[derive(Default)]
struct ReplayWarnings {
    weights: bool,
    settings: bool,
}

/// Result of the first rank's look-up in the log.
#[derive(Deserialize, Serialize)]
enum ReplayLookup {
    Generation(LoggedGeneration),
    /// The log ends before this generation; it has this many.
    Missing(u64),
}

impl ReplaySource {
    /// Opens the log of a run.
    ///
    /// # Errors
    /// If the run has no log.
    pub(super) fn new(run: &Path, plan: &RolloutPlan, decoder: Option<Box<dyn RolloutSource>>, world: Rc<World>) -> Result<Self> {
        if world.is_first() && !run.is_dir() {
            return Err(Error::setting("replay_rollouts", format!("there is no folder {}", printable_path(run))));
        }
        let log = world.is_first().then(|| RolloutLog::open(RunFiles(run).rollouts())).transpose()?;
        if log.as_ref().is_some_and(|log| log.generations() == 0) {
            let detail = format!(
                "{} has no log of its completions from the first on; make it with rollout_log = \"all\"",
                printable_path(run)
            );
            return Err(Error::setting("replay_rollouts", detail));
        }
        let settings = GenerationSettings::new(plan);
        let (fingerprints, warned) = (Fingerprints::default(), ReplayWarnings::default());
        Ok(Self { run: run.to_owned(), log, world, fingerprints, settings, warned, decoder })
    }

    /// Looks up a generation. An evaluation matches only if the same weights were evaluated in the same way.
    fn find(
        &mut self,
        identity: &GenerationIdentity,
        request: &RolloutRequest<'_>,
        policy: PolicyVersion<'_>,
    ) -> Result<ReplayLookup> {
        let fingerprint = self.fingerprints.of_version(policy.policy, policy.version)?;
        let Some(log) = &self.log else { return Ok(ReplayLookup::Missing(0)) };
        let Some(entry) = log.find(&identity.key) else { return Ok(ReplayLookup::Missing(log.generations())) };
        let (differ, is_same) = (self.fingerprints.differ(entry), entry.sampling == self.settings.digest(request));
        if matches!(identity.key, GenerationKey::Eval { .. }) {
            let is_own = fingerprint.wrote(entry) && is_same;
            return Ok(if is_own {
                ReplayLookup::Generation(log.read(entry)?)
            } else {
                ReplayLookup::Missing(log.generations())
            });
        }
        if entry.prompts != identity.prompts {
            let detail = format!(
                "{} of {} was written for other prompts: the dataset, its order or the size of batches differs",
                identity.key,
                printable_path(&self.run)
            );
            return Err(Error::setting("replay_rollouts", detail));
        }
        if differ && !std::mem::replace(&mut self.warned.weights, true) {
            tracing::warn!(
                "from step {} on, the weights differ from those that wrote the completions: this run learns from another policy's",
                policy.version + 1
            );
        }
        if !is_same && !std::mem::replace(&mut self.warned.settings, true) {
            tracing::warn!(
                "{}: the completions were written with other settings of sampling, episodes, environments or the agent; they stay as they are, \
                 with the rewards of their episodes",
                identity.key
            );
        }
        Ok(ReplayLookup::Generation(log.read(entry)?))
    }
}

impl RolloutSource for ReplaySource {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        let identity = GenerationIdentity::new(request, policy.version, &self.world)?;
        let world = self.world.clone();
        let found = world.broadcast("a generation of another run", || self.find(&identity, request, policy))?;
        match (found, &mut self.decoder) {
            (ReplayLookup::Generation(generation), _) => {
                let unfit = |detail| Error::unusable(&RunFiles(&self.run).rollouts(), format!("{}: {detail}", identity.key));
                let has_episodes = self.settings.has_episodes();
                identity.own_part(generation, request, policy.policy, has_episodes).map_err(unfit)
            }
            (ReplayLookup::Missing(_), Some(decoder)) if matches!(identity.key, GenerationKey::Eval { .. }) => {
                decoder.roll_out(request, policy)
            }
            (ReplayLookup::Missing(_), None) if matches!(identity.key, GenerationKey::Eval { .. }) => Err(Error::setting(
                "replay_rollouts",
                "the log has no evaluation of this policy, and a replay plays no episodes: set eval_strategy=no, eval_on_start=false",
            )),
            (ReplayLookup::Missing(generations), _) => {
                let has = counted(generations, "generation");
                let run = printable_path(&self.run);
                Err(Error::ReplayEnds(format!("the log of {run} has {has}, and {} is not among them", identity.key)))
            }
        }
    }

    fn take_prompt_pass(&mut self, _: &[Arc<Prompt>], _: u64) -> Option<PromptPass> {
        None
    }
}
