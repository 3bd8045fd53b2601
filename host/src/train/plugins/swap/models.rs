//! Swaps of reward models. `rlhost swap` names a folder; the watching thread opens it and tries it on the newest completions.

use super::watching::{Proposal, Trigger, Watching};
use super::{How, Refusal, Swap, TRIAL_STEPS};
use crate::train::journal::Journal;
use crate::train::plugins::{AskedModel, Plugins, Reward};
use crate::train::{Error, Result};
use serde_json::{Map, Value};
use std::time::Instant;

/// A reward model that passed its trial.
pub(super) struct ModelCandidate {
    /// Name of the reward.
    pub name: String,
    pub asked: AskedModel,
    /// Its folder.
    pub path: String,
    /// How its scores differ from the current model's.
    pub report: Value,
    pub origin: Trigger,
    /// The step during which it was noticed.
    pub noticed: u64,
}

/// The previous model, kept while its replacement is on trial.
pub(super) struct ModelBefore {
    pub asked: AskedModel,
    pub path: String,
    /// The step until which it is kept.
    pub until: u64,
}

impl Watching {
    /// Opens and tries a reward model that `rlhost swap` sent for the reward of that name.
    pub(super) fn model_candidate(&self, name: &str, given: &str, origin: Trigger) -> Proposal {
        let (noticed, trial, entry) = self.with(|board| {
            let entry = board.config.plugin.iter().find(|entry| entry.model && entry.name() == name).cloned();
            (board.step, board.trial.clone(), entry)
        });
        let attempt = || {
            let entry = entry.ok_or("this run has no reward model of that name")?;
            let (asked, path) = self.opener.open(&entry, given).map_err(|e| e.to_string())?;
            if entry.hash.as_deref() == Some(asked.model.hash()) {
                return Err(format!("{path} has the files that it has already"));
            }
            let report = trial.model(&asked).map_err(|e| e.to_string())?;
            Ok(ModelCandidate { name: name.to_owned(), asked, path, report, origin: origin.clone(), noticed })
        };
        match self.tried_apart(attempt) {
            Ok(candidate) => Proposal::Model(Box::new(candidate)),
            Err(reason) => Proposal::Refused { name: name.to_owned(), hash: None, origin, reason },
        }
    }
}

impl Plugins {
    /// Opens on another rank what the first one proposes.
    pub(super) fn heard_model(&self, name: &str, path: &str, hash: &str) -> std::result::Result<AskedModel, String> {
        let Some((_, opener)) = &self.swaps.loads else { return Err("nothing opens models here".to_owned()) };
        let entry = self.config.plugin.iter().find(|entry| entry.model && entry.name() == name);
        let entry = entry.ok_or("this run has no reward model of that name")?;
        let (asked, _) = opener.open(entry, path).map_err(|e| e.to_string())?;
        match asked.model.hash() == hash {
            true => Ok(asked),
            false => Err(format!("{path} has other files here than for the first process")),
        }
    }

    /// Swaps in a reward model that passed its trial.
    pub(super) fn take_in_model(&mut self, candidate: ModelCandidate, step: u64, journal: &mut Journal) -> Result<()> {
        let begun = Instant::now();
        let ModelCandidate { name, asked, path, report, origin, noticed } = candidate;
        let to = asked.model.hash().to_owned();
        let current = self.rewards.iter().filter(|reward| reward.name() == name).find_map(Reward::model);
        if current.is_some_and(|current| current.model.judges_steps() != asked.model.judges_steps()) {
            let reason = "one of the two models values steps, and the other texts";
            return self.refuse(&Refusal { name: &name, hash: Some(&to), origin: &origin, reason }, step, journal);
        }
        let Some((old, old_path)) = self.put_model(&name, asked, path) else {
            let reason = "there is no reward model of that name to replace";
            return self.refuse(&Refusal { name: &name, hash: Some(&to), origin: &origin, reason }, step, journal);
        };
        let from = old.model.hash().to_owned();
        let before = ModelBefore { asked: old, path: old_path, until: step + TRIAL_STEPS };
        let older = self.swaps.models_before.insert(name.clone(), before);
        self.swaps.earlier.remove(&name);
        // Giving a large model's memory back takes time.
        std::thread::spawn(move || drop(older));
        let (changes, config) = (format!("{} -> {}", &from[..12], &to[..12]), self.model_settings(&name));
        let how = How { begun, changes, noticed, origin: &origin, config: &config, handed_over: false, report };
        self.swapped(&Swap { step, plugin: name, from, to, rolled_back: false }, how, journal)
    }

    /// Puts the model back that the one at fault replaced; the failed step is undone.
    pub(super) fn roll_back_model(&mut self, name: &str, error: &Error, step: u64, journal: &mut Journal) -> Result<bool> {
        let Some(ModelBefore { asked, path, .. }) = self.swaps.models_before.remove(name) else { return Ok(false) };
        let to = asked.model.hash().to_owned();
        let Some((failed, _)) = self.put_model(name, asked, path) else { return Ok(false) };
        let from = failed.model.hash().to_owned();
        self.rolled_back(&Swap { step, plugin: name.to_owned(), from, to, rolled_back: true }, error, journal)?;
        Ok(true)
    }

    /// Puts a model in the place of the reward model of that name. Returns the one before with its folder.
    fn put_model(&mut self, name: &str, asked: AskedModel, path: String) -> Option<(AskedModel, String)> {
        let index = self.rewards.iter().position(|reward| reward.name() == name && reward.model().is_some())?;
        let hash = asked.model.hash().to_owned();
        let old = self.rewards.get_mut(index).and_then(|reward| reward.exchange_model(asked))?;
        let entry = self.config.plugin.get_mut(index)?;
        let old_path = entry.path.clone();
        entry.move_to(path);
        entry.hash = Some(hash);
        Some((old, old_path))
    }

    /// Returns what events say of a reward model's settings.
    fn model_settings(&self, name: &str) -> Map<String, Value> {
        let entry = self.config.plugin.iter().find(|entry| entry.model && entry.name() == name);
        entry.map(|entry| ("path".to_owned(), entry.path.clone().into())).into_iter().collect()
    }
}
