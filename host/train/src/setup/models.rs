//! Creates the policy and the reference model of a run, with or without an adapter.

use super::reference;
use super::value_source::StateValueSource;
use crate::activity::{Activity, ProgressTask};
use crate::config::{self, OldLogpSource, RolloutDtype, RunConfig, ZeroStage};
use crate::learner::{POLICY_PREFIX, aux_coefficient};
use crate::model::{
    ComputeBackend, Decoder, ExpertStacks, FrozenModel, LoraSettings, ModelFolder, PolicyModel, TrainedBiases, TrainedModules,
    ValueHeadInit,
};
use crate::ops::Capability;
use crate::origin::StartMode;
use crate::plugin::columns::LOG_SUM_SQUARES;
use crate::plugin::{HintedDefaults, NeededInputs};
use crate::run::CheckpointFiles;
use crate::sharding::Sharding;
use crate::shared_model::SharedModel;
use crate::{Error, Result};
use std::path::Path;

/// Returns the adapter that a run trains, if any: the one in the model's folder, or a new one. Completes its settings.
///
/// # Errors
/// If the configuration requests a different adapter from the folder's, or something that adapters don't support.
pub(super) fn resolve_adapter(config: &mut RunConfig, source: &ModelFolder, resumes: bool) -> Result<Option<LoraSettings>> {
    let invalid = |key: &str, detail: String| Err(config::Error::Invalid { place: key.to_owned(), detail }.into());
    let lora = match source.lora() {
        Some(lora) => lora,
        None if config.asks_for_adapter() => LoraSettings {
            use_rslora: config.use_rslora.unwrap_or(false),
            use_dora: config.use_dora.unwrap_or(false),
            trained_modules: modules_to_save(config, source)?,
            stacks: stacks(config, source)?,
            ..LoraSettings::new(config.lora_r.unwrap_or(16), config.lora_alpha.unwrap_or(32.0))
        },
        None => {
            let given = [
                ("lora_alpha", config.lora_alpha.is_some()),
                ("lora_dropout", config.lora_dropout.is_some_and(|p| p > 0.0)),
                ("lora_target_modules", config.lora_target_modules.is_some()),
                ("lora_modules_to_save", config.whole_modules().next().is_some()),
                ("lora_target_parameters", config.adapted_parameters().next().is_some()),
                ("use_rslora", config.use_rslora == Some(true)),
                ("use_dora", config.use_dora == Some(true)),
            ];
            return match given.into_iter().find(|(_, given)| *given) {
                Some((key, _)) => invalid(key, "needs an adapter; set use_peft or lora_r".into()),
                None => Ok(None),
            };
        }
    };
    if source.architecture().text_part {
        let detail = "is set, but the model is the text part of a multimodal one, whose adapters have other names in peft; \
                      export the text part with rlhost export --dtype f32, and train an adapter on that";
        return invalid("use_peft", detail.to_owned());
    }
    if source.lora().is_some() {
        if let Some((key, own)) = differs(config, lora) {
            return invalid(key, format!("the adapter in {} has {own}, and training continues with it", source.path().display()));
        }
    } else {
        // A run that has already begun with it may continue.
        if !resumes {
            check_rank(lora.r, source)?;
        }
        config.lora_target_modules = Some(targets(config, source)?);
    }
    if config.sync_ref_model {
        let detail = match config.ref_model {
            None => "would change the reference model, which with an adapter is the base model",
            Some(_) => {
                "mixes the policy's weights into the reference model; with an adapter, the policy has few weights of its \
                        own"
            }
        };
        let detail = detail.to_owned();
        return invalid("sync_ref_model", detail);
    }
    config.use_peft = true;
    (config.lora_r, config.lora_alpha, config.use_rslora) = (Some(lora.r), Some(lora.alpha), Some(lora.use_rslora));
    config.use_dora = lora.use_dora.then_some(true);
    Ok(Some(lora))
}

/// Returns a key that differs from the settings of a model's adapter, with the adapter's value.
fn differs(config: &RunConfig, lora: LoraSettings) -> Option<(&'static str, String)> {
    let all = [
        ("lora_r", config.lora_r.is_some_and(|r| r != lora.r), lora.r.to_string()),
        ("lora_alpha", config.lora_alpha.is_some_and(|alpha| alpha != lora.alpha), lora.alpha.to_string()),
        ("use_rslora", config.use_rslora.is_some_and(|on| on != lora.use_rslora), lora.use_rslora.to_string()),
        ("use_dora", config.use_dora.is_some_and(|on| on != lora.use_dora), lora.use_dora.to_string()),
        ("lora_target_modules", config.lora_target_modules.is_some(), "its own".into()),
        ("lora_modules_to_save", config.whole_modules().next().is_some(), "its own".into()),
        ("lora_target_parameters", config.adapted_parameters().next().is_some(), "its own".into()),
    ];
    all.into_iter().find(|(_, differs, _)| *differs).map(|(key, _, own)| (key, own))
}

/// Name of a reward model's head, which is trained with any adapter.
const SCORE: &str = "score";

/// Returns the modules that are fully trained along with a new adapter.
fn modules_to_save(config: &RunConfig, source: &ModelFolder) -> Result<TrainedModules> {
    let names = config.whole_modules().filter(|name| *name != SCORE);
    TrainedModules::from_names(names, source.architecture()).map_err(|detail| {
        let detail = format!("{detail} ({})", source.base().display());
        config::Error::Invalid { place: "lora_modules_to_save".to_owned(), detail }.into()
    })
}

/// Returns the matrices of experts that a new adapter applies to.
fn stacks(config: &RunConfig, source: &ModelFolder) -> Result<ExpertStacks> {
    let refused = |detail: String| Err(Error::setting("lora_target_parameters", detail));
    let stacks = match ExpertStacks::from_names(config.adapted_parameters(), source.architecture()) {
        Ok(stacks) => stacks,
        Err(detail) => return refused(format!("{detail} ({})", source.base().display())),
    };
    if !stacks.is_empty() && config.use_dora == Some(true) {
        return refused("can't be combined with use_dora, as in peft; leave one out".into());
    }
    if let Some(p) = config.lora_dropout.filter(|p| !stacks.is_empty() && *p > 0.0) {
        return refused(format!("can't be combined with lora_dropout {p}, as in peft; set that to 0"));
    }
    Ok(stacks)
}

/// Refuses an adapter with parts that are applied but not trainable.
pub(super) fn check_trainable(folder: &ModelFolder, decoder: &Decoder) -> Result<()> {
    match decoder.weights().lora.and_then(|lora| lora.fixed) {
        Some(fixed) => {
            let detail = format!(
                "it has {fixed}, which can be used and merged but not trained; `rlhost merge` creates a full model that a new run \
                 can start from"
            );
            Err(Error::unusable(folder.path(), detail))
        }
        None => Ok(()),
    }
}

/// Refuses fully trained modules that a run's model lacks.
fn check_whole(
    config: &RunConfig,
    lora: Option<LoraSettings>,
    values: &StateValueSource,
    backend: &ComputeBackend,
) -> Result<()> {
    let refused = |detail: &str| Err(Error::setting("lora_modules_to_save", detail));
    let whole = lora.map_or(TrainedModules::NONE, |lora| lora.trained_modules);
    if matches!(values, StateValueSource::Trained) && whole.has_head() {
        return refused("names the output matrix, which a reward model does not have; leave it out");
    }
    if !matches!(values, StateValueSource::Trained) && config.whole_modules().any(|name| name == SCORE) {
        return refused("names score, the head of a reward model, and this run trains none; leave it out");
    }
    match backend.refusal(Capability::WholeModules).filter(|_| !whole.is_empty()) {
        Some(detail) => refused(&detail),
        None => Ok(()),
    }
}

/// TRL's default of `lora_dropout`.
const DROPOUT: f64 = 0.05;

/// Returns the dropout probability of an adapter's input in training; without an adapter, the configured value.
///
/// # Errors
/// If the backend does not support dropout.
pub(super) fn dropout(config: &RunConfig, source: &ModelFolder, backend: &ComputeBackend) -> Result<Option<f64>> {
    if !config.use_peft {
        return Ok(config.lora_dropout);
    }
    if let Some(detail) = backend.refusal(Capability::Magnitudes).filter(|_| config.use_dora == Some(true)) {
        return Err(Error::setting("use_dora", detail));
    }
    if let Some(detail) = backend.refusal(Capability::Dropout).filter(|_| config.lora_dropout.is_some_and(|p| p > 0.0)) {
        return Err(Error::setting("lora_dropout", detail));
    }
    let stacked = source.lora().is_some_and(|lora| !lora.stacks.is_empty());
    if let Some(p) = config.lora_dropout.filter(|p| stacked && *p > 0.0) {
        let detail = format!(
            "is {p}, and the adapter in {} has experts' matrices, which peft gives none; set it to 0",
            source.path().display()
        );
        return Err(Error::setting("lora_dropout", detail));
    }
    let without = !backend.supports(Capability::Dropout) || config.adapted_parameters().next().is_some();
    let by_default = || if without { 0.0 } else { source.lora().map_or(DROPOUT, |lora| lora.dropout) };
    Ok(Some(config.lora_dropout.unwrap_or_else(by_default)))
}

/// Returns `alpha` of the noise that training adds to embeddings; 0 for no noise.
///
/// # Errors
/// If the backend does not support noise.
pub(super) fn noise(config: &RunConfig, backend: &ComputeBackend) -> Result<f64> {
    let alpha = config.neftune_alpha().max(0.0);
    match backend.refusal(Capability::Noise).filter(|_| alpha > 0.0) {
        Some(detail) => Err(Error::setting("neftune_noise_alpha", detail)),
        None => Ok(alpha),
    }
}

/// Refuses what a backend does not support: sums of squared probabilities that the algorithm needs, smoothed targets, and generation in
/// another precision.
pub(super) fn check_precisions(config: &RunConfig, needs: &NeededInputs, backend: &ComputeBackend) -> Result<()> {
    if let Some(detail) = backend.refusal(Capability::RolloutPrecision).filter(|_| rounds(config)) {
        return Err(Error::setting("rollout_dtype", detail));
    }
    if let Some(detail) = backend.refusal(Capability::SquaredProbabilities).filter(|_| needs.has(LOG_SUM_SQUARES)) {
        return Err(Error::setting(LOG_SUM_SQUARES, format!("a column that the algorithm needs, {detail}")));
    }
    match backend.refusal(Capability::SmoothedTargets).filter(|_| config.label_smoothing_factor > 0.0) {
        Some(detail) => Err(Error::setting("label_smoothing_factor", detail)),
        None => Ok(()),
    }
}

/// Refuses to shard a model where that is not supported, and warns if there is only one process.
pub(super) fn check_stage(config: &RunConfig, lora: Option<LoraSettings>, backend: &ComputeBackend, ranks: usize) -> Result<()> {
    let frozen = config.shard_frozen == Some(true);
    let (key, value) = match frozen {
        true => ("shard_frozen", "true".to_owned()),
        false => ("zero_stage", config.zero_stage.to_string()),
    };
    if !frozen && ZeroStage::new(config.zero_stage) == ZeroStage::NOTHING {
        return Ok(());
    }
    if let Some(detail) = backend.refusal(Capability::DividedModels) {
        return Err(Error::setting(key, detail));
    }
    if ranks == 1 {
        tracing::warn!("{key} is {value}, but there is one process, so nothing is divided");
    } else if config.shards_frozen() && lora.is_some_and(|lora| lora.use_dora) {
        let detail = "a pass with DoRA begins with the lengths of all adapted weights, so each process needs them; set shard_frozen to false";
        return Err(Error::setting(key, format!("is {value}, but {detail}")));
    }
    Ok(())
}

/// Returns whether generation in training has another precision than training.
fn rounds(config: &RunConfig) -> bool {
    config.rollout_dtype != RolloutDtype::Auto
}

/// Returns the source of the log-probabilities that later updates compare completions with.
pub(super) fn old_logp(config: &RunConfig, backend: &ComputeBackend) -> OldLogpSource {
    let differs = backend.is_bf16() || rounds(config) || !config.rollout_server.is_empty() || config.max_staleness > 0;
    let old_logp = config.old_logp.unwrap_or(if differs { OldLogpSource::Recompute } else { OldLogpSource::Sampling });
    // Chosen by the user, or left from a start in f32.
    if differs && old_logp == OldLogpSource::Sampling {
        tracing::warn!(
            "old_logp is \"sampling\", but sampling and training round differently here, or use different weights: their \
             log-probabilities differ by some thousandths or more; set it to \"recompute\", the default here, if several updates learn from a generation"
        );
    }
    old_logp
}

/// Refuses a rank above the largest width of a layer.
fn check_rank(rank: usize, source: &ModelFolder) -> Result<()> {
    let widest = source.architecture().widest();
    if rank <= widest {
        return Ok(());
    }
    let detail = format!("is {rank}, and no linear layer of the model has more than {widest} inputs or outputs; lower it");
    Err(Error::setting("lora_r", detail))
}

/// Returns the linear layers of a model that a new adapter applies to.
///
/// # Errors
/// If the model lacks a named layer.
pub(super) fn targets(config: &RunConfig, model: &ModelFolder) -> Result<Vec<String>> {
    let refused = |detail: String| config::Error::Invalid {
        place: "lora_target_modules".to_owned(),
        detail: format!("{detail} ({})", model.base().display()),
    };
    Ok(config.lora_targets(&model.architecture().modules()).map_err(refused)?)
}

/// Returns the coefficient of the auxiliary loss of experts: the algorithm's own, if the model has experts and the user sets none.
pub(super) fn aux_loss_coef(config: &RunConfig, own: &HintedDefaults, source: &ModelFolder) -> Option<f64> {
    let mixture = source.architecture().mixture.as_ref().filter(|mixture| mixture.has_aux_loss);
    let by_default = mixture.and(own.router_aux_loss_coef);
    config.router_aux_loss_coef.or(by_default)
}

/// Returns an error if an auxiliary loss of experts is requested for a model without experts.
fn check_aux_loss(config: &RunConfig, source: &ModelFolder) -> Result<()> {
    match config.router_aux_loss_coef.filter(|coefficient| *coefficient > 0.0) {
        Some(coefficient) if source.architecture().mixture.is_none() => {
            let detail = format!("is {coefficient}, but {} is not a mixture of experts; remove it", source.base().display());
            Err(config::Error::Invalid { place: "router_aux_loss_coef".to_owned(), detail }.into())
        }
        Some(coefficient) if source.architecture().mixture.as_ref().is_some_and(|mixture| !mixture.has_aux_loss) => {
            let model_type = source.architecture().family.description().model_type;
            let detail = format!("is {coefficient}, but a model of type {model_type} has no such loss; remove it");
            Err(config::Error::Invalid { place: "router_aux_loss_coef".to_owned(), detail }.into())
        }
        _ => Ok(()),
    }
}

/// Describes what is trained of a model.
fn describe(lora: Option<LoraSettings>, of: &ModelFolder) -> String {
    let Some(lora) = lora else { return "a full model".to_owned() };
    let dora = if lora.use_dora { " with DoRA" } else { "" };
    let whole = lora.trained_modules.listed(of.architecture());
    let whole = if whole.is_empty() { String::new() } else { format!(" beside {}", whole.join(", ")) };
    let biases = match lora.biases {
        TrainedBiases::None => "",
        TrainedBiases::Adapted => ", with the biases of its layers",
        TrainedBiases::All => ", with all biases",
    };
    format!("an adapter of rank {} and alpha {}{dora}{whole}{biases} for {}", lora.r, lora.alpha, of.base().display())
}

/// Returns whether reading the model requires all of its values: for magnitudes, for quantized matrices, or for modules that are trained
/// along with an adapter.
fn reads_all(lora: Option<LoraSettings>, source: &ModelFolder) -> bool {
    lora.is_some_and(|lora| lora.use_dora || !lora.trained_modules.is_empty() || source.weight_storage().scheme.is_some())
}

/// Returns the folder of the policy's model, set up so that a rank only reads what it owns if ranks share the model.
fn dividing(
    folder: &ModelFolder,
    (lora, source): (Option<LoraSettings>, &ModelFolder),
    values: &StateValueSource,
    sharding: &mut Sharding,
) -> ModelFolder {
    if reads_all(lora, source) {
        return folder.clone();
    }
    let sizes = folder.architecture();
    let sizes = if matches!(values, StateValueSource::Trained) { &sizes.trunk() } else { sizes };
    sharding.dividing(POLICY_PREFIX, folder.clone(), sizes, lora.is_none())
}

/// Returns the policy, initial or from the checkpoint, with a critic's head if it has one, and the reference model if the algorithm needs
/// it. With an adapter, both share the storage of everything that is not trained.
///
/// # Errors
/// If the checkpoint holds a different adapter from `lora`, or one for another model.
pub(super) fn policy_and_reference(
    source: &ModelFolder,
    lora: Option<LoraSettings>,
    config: &RunConfig,
    (with_reference, values): (bool, &StateValueSource),
    sharding: &mut Sharding,
    beginning: &StartMode,
    backend: &ComputeBackend,
) -> Result<(PolicyModel, Option<SharedModel>)> {
    let head = ValueHeadInit::Drawn(config.seed);
    let mut whole = |folder: &ModelFolder| {
        let folder = dividing(folder, (lora, source), values, sharding);
        match values {
            StateValueSource::Trained => folder.value_model_over(folder.trunk()?, head),
            _ => folder.decoder(),
        }
    };
    let over = |folder: &ModelFolder, base: Decoder| match values {
        StateValueSource::Trained => folder.value_model_over(base, head),
        _ => folder.decoder_over(base),
    };
    let policy = |folder: &ModelFolder, decoder: Decoder| -> Result<PolicyModel> {
        check_trainable(folder, &decoder)?;
        let decoder = match values {
            StateValueSource::Shared => folder.with_critic(decoder, &CheckpointFiles::find(folder.path()).critic())?,
            _ => decoder,
        };
        let policy = PolicyModel::new(decoder).on_backend(backend)?;
        let balances = aux_coefficient(config.router_aux_loss_coef, policy.architecture()) > 0.0;
        Ok(policy.with_gradient_checkpointing(config.gradient_checkpointing).with_aux_loss(balances))
    };
    let _task = ProgressTask::new(Activity::LoadingModel);
    check_aux_loss(config, source)?;
    check_whole(config, lora, values, backend)?;
    let Some(origin) = beginning.origin() else {
        let began = whole(source)?;
        if let Some(lora) = lora.filter(|_| source.lora().is_none()) {
            let began = began.on_backend(backend)?;
            let adapted = began.clone().with_new_adapter(lora, &targets(config, source)?, config.seed)?;
            return Ok((policy(source, adapted)?, with_reference.then(|| SharedModel::new(FrozenModel::new(began)))));
        }
        if with_reference && (sharding.shares(true) || sharding.shares(false)) {
            // Each is read separately, so that no rank ever holds a whole model.
            return Ok((policy(source, began)?, Some(reference::initial(source, config, beginning, backend, sharding)?)));
        }
        // On the CPU the reference model stays in its stored precision. If that is f32, the policy starts in the same storage.
        let own = backend.device().is_cpu() && with_reference;
        let stored = own.then(|| began.clone());
        let policy = policy(source, began)?;
        let reference = match stored {
            Some(stored) => Some(FrozenModel::new(stored.unshared()?.on_backend(backend)?)),
            None => with_reference.then(|| policy.frozen_copy()).transpose()?,
        };
        return Ok((policy, reference.map(SharedModel::new)));
    };

    let kept = match (beginning, lora) {
        // The run's own model, wherever it is now.
        (StartMode::Resume { .. }, Some(_)) => source.with_adapter_in(&origin.checkpoint)?,
        _ => ModelFolder::open(&origin.checkpoint)?,
    };
    check_kept(&kept, lora, source, &origin.checkpoint)?;
    if lora.is_some() {
        let began = whole(source)?.on_backend(backend)?;
        let policy = policy(&kept, over(&kept, began.clone())?)?;
        return Ok((policy, with_reference.then(|| SharedModel::new(FrozenModel::new(began)))));
    }
    let policy = policy(&kept, whole(&kept)?)?;
    let reference = with_reference.then(|| reference::initial(source, config, beginning, backend, sharding)).transpose()?;
    Ok((policy, reference))
}

/// Refuses a checkpoint's model that does not match what the run trains.
fn check_kept(kept: &ModelFolder, lora: Option<LoraSettings>, source: &ModelFolder, checkpoint: &Path) -> Result<()> {
    if !same_settings(kept.lora(), lora) || lora.is_some() && !same_place(kept.base(), source.base()) {
        let (has, wanted) = (describe(kept.lora(), kept), describe(lora, source));
        let detail = format!(
            "it holds {has}, but this run trains {wanted}; `rlhost merge` creates a full model that a new run can start from"
        );
        return Err(Error::unusable(checkpoint, detail));
    }
    Ok(())
}

/// Returns whether both are full models, or adapters with the same settings.
pub(super) fn same_settings(a: Option<LoraSettings>, b: Option<LoraSettings>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.fits(&b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

pub(super) fn same_place(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
