//! Chooses the source of state values for an algorithm that needs them: a head on the policy, or a value model, which is opened here.

use super::models::{check_trainable, same_place, same_settings, targets};
use super::named_model::{check_sizes, open_named};
use super::opened_model::OpenedModel;
use super::value_source::{COPY, SHARED, StateValueSource};
use crate::config::{self, PluginEntry, RunConfig};
use crate::data::Tokenizer;
use crate::dist::World;
use crate::learner::{CRITIC_PREFIX, InitialCritic};
use crate::model::{ComputeBackend, LoraSettings, ModelFolder, PolicyModel, TrainedBiases, ValueHeadInit};
use crate::ops::Capability;
use crate::origin::{CheckpointOrigin, StartMode};
use crate::plugin::NeededInputs;
use crate::plugin::columns::{OLD_VALUE, SEQUENCE_VALUE, VALUE};
use crate::ranks::after_the_first;
use crate::run::CheckpointFiles;
use crate::sharding::Sharding;
use crate::{Error, Result};
use std::path::PathBuf;

/// Chooses the source, for an algorithm with these needs. Also returns the value of `value_model`: a name that stays valid wherever the run
/// resumes.
pub(super) fn choose(
    config: &RunConfig,
    needs: &NeededInputs,
    opened: &OpenedModel,
    beginning: &StartMode,
    world: &World,
) -> Result<(StateValueSource, Option<String>)> {
    if !(needs.has(VALUE) || needs.has(OLD_VALUE)) {
        // A run that continues from a checkpoint may have had another version of its algorithm.
        let given =
            [("value_model", config.value_model.is_some()), ("critic_learning_rate", config.critic_learning_rate.is_some())];
        let trained = if needs.has(SEQUENCE_VALUE) { StateValueSource::Trained } else { StateValueSource::None };
        return match given.into_iter().find(|(_, given)| *given && beginning.origin().is_none()) {
            None => Ok((trained, config.value_model.clone())),
            Some((key, _)) => Err(invalid(key, format!("{} has no critic; leave it out", config.algorithm))),
        };
    }
    let has_critic = |origin: &&CheckpointOrigin| CheckpointFiles::find(&origin.checkpoint).critic().exists();
    if let (None, Some(origin)) = (&config.value_model, beginning.origin().filter(has_critic)) {
        let checkpoint = origin.checkpoint.display();
        tracing::info!("{checkpoint} has its critic as a head on the policy and names no value_model: it stays \"{SHARED}\"");
        return Ok((StateValueSource::Shared, None));
    }
    let from_reward = || of_reward_model(config, opened).unwrap_or_else(|| COPY.to_owned());
    let name = config.value_model.clone().unwrap_or_else(from_reward);
    match name.as_str() {
        COPY => Ok((StateValueSource::Model(None), Some(name))),
        SHARED => Ok((StateValueSource::Shared, Some(name))),
        given => {
            let (folder, name) = after_the_first(world, || Ok(open_named(given)))?.map_err(|detail| {
                let detail =
                    format!("{detail}; for a copy of the policy's model, set {COPY:?}, and for a head on it, {SHARED:?}");
                invalid("value_model", detail)
            })?;
            Ok((StateValueSource::Model(Some(Box::new(folder))), Some(name)))
        }
    }
}

/// Returns the first reward model that the critic can start from, as in OpenRLHF: one with the policy's tokenizer.
fn of_reward_model(config: &RunConfig, opened: &OpenedModel) -> Option<String> {
    for entry in config.plugin.iter().filter(|entry| entry.model) {
        match fits(entry, opened) {
            Ok(()) => {
                let name = entry.name();
                tracing::info!(
                    "the critic starts from the reward model {name}; value_model = {COPY:?} starts it from the policy"
                );
                return Some(entry.path.clone());
            }
            Err(reason) => tracing::warn!("the critic does not start from the reward model {}: {reason}", entry.name()),
        }
    }
    None
}

/// Checks that a critic can start from this reward model.
///
/// # Errors
/// The reason, if it can't.
fn fits(entry: &PluginEntry, opened: &OpenedModel) -> std::result::Result<(), String> {
    let (folder, _) = open_named(&entry.path)?;
    if folder.judges_steps().map_err(|e| e.to_string())? {
        return Err("it values the steps of texts".to_owned());
    }
    match Tokenizer::open(folder.tokenizer()).map_err(|e| e.to_string())?.is_same_as(&opened.tokenizer) {
        true => check(&folder, opened).map_err(|e| e.to_string()),
        false => Err("its tokenizer is not the policy's".to_owned()),
    }
}

fn invalid(key: &str, detail: String) -> Error {
    config::Error::Invalid { place: key.to_owned(), detail }.into()
}

/// Opens the value model in this folder, or a copy of the policy's initial model; if the checkpoint has a value model, opens that. With an
/// adapter, it has an adapter with the same settings, and shares the storage of frozen weights with a policy of the same base.
///
/// # Errors
/// If it has fewer tokens or a shorter context than the policy, or holds an adapter with different settings.
pub(super) fn open(
    own: Option<Box<ModelFolder>>,
    opened: &OpenedModel,
    config: &RunConfig,
    beginning: &StartMode,
    backend: &ComputeBackend,
    policy: &PolicyModel,
    sharding: &mut Sharding,
) -> Result<InitialCritic> {
    let own = own.map(|own| own.with_companions()).transpose()?;
    let start = own.as_ref().unwrap_or(&opened.source);
    let kept = beginning.origin().map(|origin| checkpoint_folder(origin, config)).transpose()?.flatten();
    let folder = match (&kept, opened.lora) {
        (None, _) => start.clone(),
        (Some(kept), None) => ModelFolder::open(kept)?,
        (Some(kept), Some(_)) => start.with_adapter_in(kept)?,
    };
    check(&folder, opened)?;
    let folder = if backend.supports(Capability::StoredWeights) && opened.lora.is_some() {
        folder.with_weight_storage(opened.source.weight_storage())
    } else {
        folder
    };
    // The policy's adapter may train modules or biases, which only its folder shows.
    let is_plain = |lora: &LoraSettings| lora.trained_modules.is_empty() && lora.biases == TrainedBiases::None;
    let base = opened.lora.filter(|lora| is_plain(lora) && same_place(folder.base(), opened.source.base()));
    let trunk = match base {
        Some(_) => policy.shared_trunk(),
        None if opened.lora.is_none() => {
            sharding.dividing(CRITIC_PREFIX, folder.clone(), &folder.architecture().trunk(), true).trunk()?
        }
        None => folder.trunk()?,
    };
    let mut decoder = folder.value_model_over(trunk, ValueHeadInit::Zero)?;
    if let Some(lora) = opened.lora.filter(|_| folder.lora().is_none()) {
        decoder = decoder.with_new_adapter(lora, &targets(config, &folder)?, config.seed)?;
    }
    check_trainable(&folder, &decoder)?;
    let model = PolicyModel::new(decoder).on_backend(backend)?.with_gradient_checkpointing(config.gradient_checkpointing);
    Ok(InitialCritic { model, source: own, continued: kept.is_some() })
}

/// Returns the checkpoint's folder of the value model, if the run continues with it.
fn checkpoint_folder(origin: &CheckpointOrigin, config: &RunConfig) -> Result<Option<PathBuf>> {
    let written = origin.written()?;
    let folder = CheckpointFiles::find(&origin.checkpoint).value_model();
    Ok((written.value_model == config.value_model && folder.exists()).then_some(folder))
}

fn check(folder: &ModelFolder, opened: &OpenedModel) -> Result<()> {
    check_sizes("value_model", folder, opened, opened.source.architecture().vocab_size)?;
    if folder.lora().is_some()
        && !same_settings(folder.lora().map(LoraSettings::for_value_model), opened.lora.map(LoraSettings::for_value_model))
    {
        let detail = "holds an adapter of other settings than the policy's; `rlhost merge` creates a full model to start from";
        return Err(Error::setting("value_model", format!("{} {detail}", folder.path().display())));
    }
    Ok(())
}
