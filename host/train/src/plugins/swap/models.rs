//! Swaps of reward models. `rlhost swap` names a folder; the watching thread opens the model and tries it on the newest completions.

use super::changed_hashes;
use super::version::LoadedVersion;
use super::watcher::{Proposal, SwapCandidate, SwapWatcher, Trigger};
use crate::config::printable;
use crate::plugins::{RunPlugins, RunReward, ScoringModel};

/// Maximum length of a path in a log line, in bytes.
const LONGEST_PATH: usize = 4096;

impl SwapWatcher {
    /// Opens and tries a reward model that `rlhost swap` sent for the reward of this name.
    pub(super) fn model_candidate(&self, name: &str, given: &str, trigger: Trigger) -> Proposal {
        let (noticed, trial, entry) = self.with(|board| {
            let entry = board.config.plugin.iter().find(|entry| entry.model && entry.name() == name).cloned();
            (board.step, board.trial.clone(), entry)
        });
        tracing::info!("{name}: rlhost swap named {}; loading and trying it", printable(given, LONGEST_PATH));
        let attempt = || {
            let entry = entry.ok_or("this run has no reward model of that name")?;
            let (asked, path) = self.opener.open(&entry, given).map_err(|e| e.to_string())?;
            if entry.hash.as_deref() == Some(asked.model.hash()) {
                return Err(format!("{path} has the files that it has already"));
            }
            let report = trial.model(&asked).map_err(|e| e.to_string())?;
            Ok(SwapCandidate {
                version: LoadedVersion::Model { model: Box::new(asked), path },
                report,
                trigger: trigger.clone(),
                noticed,
            })
        };
        match self.tried_apart(attempt) {
            Ok(candidate) => Proposal::Swap(Box::new(candidate)),
            Err(reason) => Proposal::Refused { name: name.to_owned(), hash: None, trigger, reason },
        }
    }
}

impl RunPlugins {
    /// Returns the reward model of this name.
    pub(super) fn reward_model(&self, name: &str) -> Option<&ScoringModel> {
        self.rewards.iter().filter(|reward| reward.name() == name).find_map(RunReward::model)
    }

    /// Opens a model for the reward of this name. Its files must have this hash; otherwise the error is the folder followed by `others`.
    pub(super) fn open_model(
        &self,
        name: &str,
        path: &str,
        hash: &str,
        others: &str,
    ) -> std::result::Result<LoadedVersion, String> {
        let Some((_, opener)) = &self.swaps.loaders else { return Err("nothing opens models here".to_owned()) };
        let entry = self.config.plugin.iter().find(|entry| entry.model && entry.name() == name);
        let entry = entry.ok_or("this run has no reward model of that name")?;
        let (asked, path) = opener.open(entry, path).map_err(|e| e.to_string())?;
        if asked.model.hash() == hash {
            Ok(LoadedVersion::Model { model: Box::new(asked), path })
        } else {
            Err(format!("{path} {others}"))
        }
    }

    /// Replaces the reward model of the same name. Returns the previous one with a description of the change.
    pub(super) fn put_model(&mut self, asked: ScoringModel, path: String) -> Option<(LoadedVersion, String)> {
        let (name, hash) = (asked.model.name().to_owned(), asked.model.hash().to_owned());
        let index = self.rewards.iter().position(|reward| reward.name() == name && reward.model().is_some())?;
        let old = self.rewards.get_mut(index).and_then(|reward| reward.exchange_model(asked))?;
        let entry = self.config.plugin.get_mut(index)?;
        let old_path = entry.path.clone();
        entry.move_to(path);
        let changes = changed_hashes(old.model.hash(), &hash);
        entry.hash = Some(hash);
        Some((LoadedVersion::Model { model: Box::new(old), path: old_path }, changes))
    }
}
