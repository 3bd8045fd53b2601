//! Opens a reference model other than the run's initial model.

use super::named_model::{check_sizes, open_named};
use super::opened_model::OpenedModel;
use super::plugins::LoadedPlugins;
use crate::config::{CompletionSource, RunConfig};
use crate::data::Tokenizer;
use crate::dist::World;
use crate::model::{ComputeBackend, FrozenModel, ModelFolder, PolicyModel, WeightStorage, Weights};
use crate::ops::Capability;
use crate::origin::StartMode;
use crate::plan::Batching;
use crate::plugin::columns::REF_LOGP;
use crate::ranks::after_the_first;
use crate::run::CheckpointFiles;
use crate::sharding::Sharding;
use crate::shared_model::SharedModel;
use crate::{Error, Result, name_resolution};
use std::collections::BTreeMap;
use std::path::PathBuf;

const KEY: &str = "ref_model";

/// Prefix of the reference model's parameters among those that ranks share.
pub(super) const REFERENCE: &str = "reference_";

/// A model that a key names, to be compared with the policy.
pub(super) struct NamedModel {
    pub folder: ModelFolder,
    /// Name that stays valid wherever the run resumes.
    pub name: String,
    /// Why the model may tokenize texts differently from the policy.
    pub warning: Option<String>,
}

impl NamedModel {
    /// Opens the folder of the model that this key names, which must have at least `tokens` tokens.
    ///
    /// # Errors
    /// If there is no such model, or it has fewer tokens or a shorter context than the policy.
    pub(super) fn open(key: &'static str, given: &str, opened: &OpenedModel, tokens: usize, world: &World) -> Result<Self> {
        let named = after_the_first(world, || Ok(open_named(given)))?;
        let (folder, name) = named.map_err(|detail| Error::setting(key, detail))?;
        check_sizes(key, &folder, opened, tokens)?;
        let warning = other_tokenizer(key, &folder, opened);
        Ok(Self { folder, name, warning })
    }

    /// Refuses a model that a key names but nothing uses; `what` is its role. A run that continues from a checkpoint may have had another
    /// version of its algorithm.
    pub(super) fn refuse_unused(
        key: &'static str,
        given: &str,
        what: &str,
        config: &RunConfig,
        beginning: &StartMode,
    ) -> Result<()> {
        let reason = format!("{} has no {what} with these settings", config.algorithm);
        if beginning.origin().is_some() {
            tracing::info!("{key} {given} is ignored: {reason}");
            return Ok(());
        }
        Err(Error::setting(key, format!("{reason}; leave it out")))
    }
}

/// Opens the folder of the reference model that the configuration names, or that a fork starts from, if any.
///
/// # Errors
/// If there is no such model, it has fewer tokens or a shorter context than the policy, or the algorithm uses none.
pub(super) fn find(
    config: &RunConfig,
    plugins: &LoadedPlugins,
    batching: &Batching,
    opened: &OpenedModel,
    (beginning, world): (&StartMode, &World),
) -> Result<Option<NamedModel>> {
    if !plugins.info().needs.has(REF_LOGP) {
        let unused = config.ref_model.as_ref();
        unused.map_or(Ok(()), |given| NamedModel::refuse_unused(KEY, given, "reference model", config, beginning))?;
        return Ok(None);
    }
    let given = config.ref_model.clone().map_or_else(|| fine_tuned(config, opened, beginning), |given| Ok(Some(given)))?;
    let Some(given) = given else { return Ok(None) };
    // It scores the tokenizer's tokens in given texts, and any token of the policy in generated ones.
    let written = opened.source.architecture().vocab_size;
    let tokens = batching.groups.map_or(opened.tokenizer.vocab_size(), |_| written);
    NamedModel::open(KEY, &given, opened, tokens, world).map(Some)
}

/// Returns a warning if the model that a key names may tokenize texts differently from the policy.
fn other_tokenizer(key: &str, folder: &ModelFolder, opened: &OpenedModel) -> Option<String> {
    let what = match Tokenizer::open(folder.tokenizer()) {
        Ok(own) if own.is_same_as(&opened.tokenizer) => return None,
        Ok(_) => "has another tokenizer.json than the policy",
        Err(_) => "has no tokenizer to compare with the policy's",
    };
    let meaning = "it reads the policy's tokens, so it needs the same tokenizer";
    Some(format!("{key}: {} {what}; {meaning}", folder.path().display()))
}

/// Returns the model that a fork from fine-tuning starts with: its policy should stay near that one, not near the parent's initial model.
///
/// # Errors
/// If the parent's configuration can't be read.
pub(super) fn fine_tuned(config: &RunConfig, opened: &OpenedModel, beginning: &StartMode) -> Result<Option<String>> {
    let StartMode::Fork { origin, .. } = beginning else { return Ok(None) };
    let written = origin.written()?;
    if written.completion_source() != CompletionSource::Dataset
        || config.completion_source() == CompletionSource::Dataset
        || written.model != config.model
    {
        return Ok(None);
    }
    if opened.lora.is_some() {
        tracing::info!("the reference model is the one without the adapter, as before fine-tuning; {KEY} names another one");
        return Ok(None);
    }
    let checkpoint = name_resolution::absolute(&origin.checkpoint.display().to_string());
    tracing::info!("the reference model is {checkpoint}, which this run starts from; {KEY} names another one");
    Ok(Some(checkpoint))
}

/// Reads the reference model in this folder in its stored precision, or from the checkpoint that the run starts from.
///
/// # Errors
/// If it can't be read, or should follow a policy with parameters of other sizes.
pub(super) fn open(
    folder: &ModelFolder,
    config: &RunConfig,
    beginning: &StartMode,
    backend: &ComputeBackend,
    policy: &PolicyModel,
    sharding: &mut Sharding,
) -> Result<SharedModel> {
    let as_stored = || folder.clone().with_weight_storage(WeightStorage::AS_STORED);
    let folder = &if backend.supports(Capability::StoredWeights) { as_stored() } else { folder.clone() };
    let reference = initial(folder, config, beginning, backend, sharding)?;
    let (own, policys) = (sizes(reference.model().weights()), sizes(policy.weights()));
    // A policy may have additional parameters, such as a critic's head.
    if config.sync_ref_model && own.iter().any(|(name, shape)| policys.get(name) != Some(shape)) {
        let detail =
            format!("mixes the policy into {}, a model of different sizes; leave it or {KEY} out", folder.path().display());
        return Err(Error::setting("sync_ref_model", detail));
    }
    Ok(reference)
}

/// Reads the model in this folder, or that of the checkpoint that the run starts from, as the reference model. Ranks share it unless it
/// follows the policy.
///
/// # Errors
/// If it can't be read.
pub(super) fn initial(
    folder: &ModelFolder,
    config: &RunConfig,
    beginning: &StartMode,
    backend: &ComputeBackend,
    sharding: &mut Sharding,
) -> Result<SharedModel> {
    if keeps_reference(config, beginning)? {
        let decoder = match moved(beginning, config)? {
            Some(file) => folder.decoder_in(&file)?,
            None => folder.decoder()?,
        };
        return Ok(SharedModel::new(FrozenModel::new(decoder.on_backend(backend)?)));
    }
    let decoder = sharding.dividing(REFERENCE, folder.clone(), folder.architecture(), false).decoder()?;
    SharedModel::new(FrozenModel::new(decoder.on_backend(backend)?)).divided(REFERENCE, sharding)
}

/// Returns whether checkpoints store the reference model, because it follows the policy or has followed it.
pub(super) fn keeps_reference(config: &RunConfig, beginning: &StartMode) -> Result<bool> {
    Ok(config.sync_ref_model || moved(beginning, config)?.is_some())
}

/// Returns the checkpoint's file of a reference model that has followed the policy, if the run continues with it.
///
/// # Errors
/// If the checkpoint's configuration can't be read.
fn moved(beginning: &StartMode, config: &RunConfig) -> Result<Option<PathBuf>> {
    let Some(origin) = beginning.origin() else { return Ok(None) };
    let file = CheckpointFiles::find(&origin.checkpoint).reference();
    if !file.exists() {
        return Ok(None);
    }
    let written = origin.written()?;
    Ok((written.ref_model == config.ref_model).then_some(file))
}

/// Returns the shape of each parameter.
fn sizes(weights: &Weights) -> BTreeMap<String, Vec<usize>> {
    weights.named().into_iter().map(|(name, weight)| (name, weight.dims().to_vec())).collect()
}
