//! Opens the teacher of algorithms that learn from another model's predictions.

use super::opened_model::OpenedModel;
use super::plugins::LoadedPlugins;
use super::reference::NamedModel;
use crate::collector::{Teacher, TeacherServers};
use crate::config::{RunConfig, TeacherModelKind};
use crate::dist::World;
use crate::learner::{MovingTeacher, PolicyAverage};
use crate::model::{ComputeBackend, FrozenModel, ModelFolder, PolicyModel, WeightStorage};
use crate::ops::Capability;
use crate::ops::quantized::QuantizationScheme;
use crate::origin::StartMode;
use crate::plugin::NeededInputs;
use crate::plugin::columns::TEACHER_LOGP;
use crate::run::CheckpointFiles;
use crate::sharding::Sharding;
use crate::shared_model::SharedModel;
use crate::{Error, Result, name_resolution};
use std::rc::Rc;

const KEY: &str = "teacher_model";
const SERVER: &str = "teacher_server";
const KIND: &str = "teacher_model_kind";
const TEMPLATE: &str = "teacher_prompt_template";

/// Prefix of the teacher's parameters among those that ranks share.
const TEACHER: &str = "teacher_";

/// A teacher in the run's process.
pub(super) struct FoundTeacher {
    pub folder: ModelFolder,
    /// Name that stays valid wherever the run resumes; none for the model that the run starts with.
    pub name: Option<String>,
    /// Why the model may tokenize texts differently from the policy.
    pub warning: Option<String>,
}

/// Opens the folder of the configured teacher, if the algorithm learns from one, and it is not the policy itself.
///
/// # Errors
/// If there is no such model, it has fewer tokens or a shorter context than the policy, or the algorithm needs one and none is named, or
/// the reverse.
pub(super) fn find(
    config: &RunConfig,
    plugins: &LoadedPlugins,
    opened: &OpenedModel,
    backend: &ComputeBackend,
    (beginning, world): (&StartMode, &World),
) -> Result<Option<FoundTeacher>> {
    let needs = &plugins.info().needs;
    if !needs.has_teacher() && config.teacher_model_kind != TeacherModelKind::Named {
        NamedModel::refuse_unused(KIND, config.teacher_model_kind.name(), "teacher", config, beginning)?;
        return Ok(None);
    }
    if let Some(template) = config.teacher_prompt_template.as_ref().filter(|_| !needs.has_teacher()) {
        NamedModel::refuse_unused(TEMPLATE, &format!("{template:?}"), "teacher", config, beginning)?;
    }
    if needs.divergence().is_some() {
        check_divergence(config, backend)?;
    }
    let reads_others = config.has_teacher_prompts() || plugins.writes_teacher_prompts();
    if !is_in_process(config.teacher_model_kind, needs, reads_others)? {
        return Ok(None);
    }
    if let Some(given) = config.teacher_server.first() {
        check_server(config, plugins, given, beginning)?;
        return Ok(None);
    }
    let given = match config.teacher_model_kind {
        TeacherModelKind::Base => forked(opened, beginning),
        _ => config.teacher_model.clone(),
    };
    let Some(given) = given else {
        if config.teacher_model_kind == TeacherModelKind::Base {
            let folder = held(config, backend, opened.source.without_adapter())?;
            return Ok(Some(FoundTeacher { folder, name: None, warning: None }));
        }
        if needs.has_teacher() {
            let detail = format!(
                "is missing: {} learns from another model's predictions; name that model, as in --teacher-model OWNER/NAME, or its server, \
                 or set teacher_model_kind",
                config.algorithm
            );
            return Err(Error::setting(KEY, detail));
        }
        return Ok(None);
    };
    if !needs.has_teacher() {
        NamedModel::refuse_unused(KEY, &given, "teacher", config, beginning)?;
        return Ok(None);
    }
    let NamedModel { folder, name, warning } =
        NamedModel::open(KEY, &given, opened, opened.source.architecture().vocab_size, world)?;
    Ok(Some(FoundTeacher { folder: held(config, backend, folder)?, name: Some(name), warning }))
}

/// Returns whether a teacher of this kind is a model beside the policy, and checks that it can teach what an algorithm `needs`, given whether
/// it reads other prompts than the policy.
fn is_in_process(kind: TeacherModelKind, needs: &NeededInputs, reads_others: bool) -> Result<bool> {
    match kind {
        TeacherModelKind::Live if !reads_others => {
            let detail = "is live, the policy itself, which has nothing to teach unless it reads another prompt: set \
                          teacher_prompt_template";
            Err(Error::setting(KIND, detail))
        }
        TeacherModelKind::Dataset if needs.has(TEACHER_LOGP) || needs.teacher_tokens().is_none() => {
            let detail = "is dataset, whose rows have the teacher's likeliest tokens and no more; rlhost distillation learns from these \
                          with loss_top_k";
            Err(Error::setting(KIND, detail))
        }
        TeacherModelKind::Live | TeacherModelKind::Ema | TeacherModelKind::Dataset => Ok(false),
        TeacherModelKind::Named | TeacherModelKind::Base => Ok(true),
    }
}

/// Returns the checkpoint whose model a run starts with, if it is a fork that trains all weights.
fn forked(opened: &OpenedModel, beginning: &StartMode) -> Option<String> {
    let StartMode::Fork { origin, .. } = beginning else { return None };
    if opened.lora.is_some() {
        tracing::info!("the teacher is the model without the adapter; {KEY} names another one");
        return None;
    }
    let checkpoint = name_resolution::absolute(&origin.checkpoint.display().to_string());
    tracing::info!("the teacher is {checkpoint}, which this run starts from; {KEY} names another one");
    Some(checkpoint)
}

/// Checks that distributions can be compared.
fn check_divergence(config: &RunConfig, backend: &ComputeBackend) -> Result<()> {
    if let Some(detail) = backend.refusal(Capability::Divergences) {
        let key = if config.teacher_model_kind == TeacherModelKind::Named { KEY } else { KIND };
        return Err(Error::setting(key, detail));
    }
    if config.score_sampling_support == Some(true) {
        let detail =
            "scores tokens among those that could be sampled, and a divergence compares whole distributions; set it to false";
        return Err(Error::setting("score_sampling_support", detail));
    }
    Ok(())
}

/// Returns a teacher's folder, whose weights are held as configured.
fn held(config: &RunConfig, backend: &ComputeBackend, folder: ModelFolder) -> Result<ModelFolder> {
    let (scheme, key) = match (config.teacher_load_in_8bit, config.teacher_load_in_4bit) {
        (true, _) => (Some(QuantizationScheme::Int8), "teacher_load_in_8bit"),
        (_, true) => (Some(QuantizationScheme::Nf4), "teacher_load_in_4bit"),
        // The model that the run starts with, which it reads in fewer bits.
        _ if folder.weight_storage().scheme.is_some() => return Ok(folder),
        _ => (None, KEY),
    };
    if let Some(detail) = backend.refusal(Capability::QuantizedWeights).filter(|_| scheme.is_some()) {
        return Err(Error::setting(key, detail));
    }
    let as_stored = backend.supports(Capability::StoredWeights);
    Ok(if as_stored { folder.with_weight_storage(WeightStorage { scheme, ..WeightStorage::AS_STORED }) } else { folder })
}

/// Refuses a server whose answers the algorithm does not learn from.
fn check_server(config: &RunConfig, plugins: &LoadedPlugins, url: &str, beginning: &StartMode) -> Result<()> {
    let needs = &plugins.info().needs;
    if !needs.has_teacher() {
        return NamedModel::refuse_unused(SERVER, url, "teacher", config, beginning);
    }
    let refused = |detail: &str| Err(Error::setting(SERVER, detail));
    if needs.divergence().is_some() && needs.teacher_tokens().is_none() {
        return refused(
            "says the log-probabilities of tokens, and a divergence compares whole distributions: set loss_top_k, for the teacher's likeliest \
             tokens, or loss_type = \"policy_gradient\" or distillation_mode = \"sampled_token\", or name the teacher with teacher_model",
        );
    }
    if config.score_sampling_support == Some(true) {
        return refused("says log-probabilities over the whole vocabulary; leave score_sampling_support out");
    }
    if config.temperature != 1.0 {
        return refused("says log-probabilities at temperature 1; set temperature = 1, or name the teacher with teacher_model");
    }
    Ok(())
}

/// Returns the teacher that scores completions: the model in this process, or those on the configured servers.
///
/// # Errors
/// If a server does not answer, or does not say as many likely tokens as the algorithm compares.
pub(super) fn scoring(model: Option<Rc<SharedModel>>, config: &RunConfig, plugins: &LoadedPlugins) -> Result<Option<Teacher>> {
    if config.teacher_server.is_empty() || !plugins.info().needs.has_teacher() {
        return Ok(model.map(Teacher::Model));
    }
    let servers = TeacherServers::connect(config.teacher_servers(), config.rollout_timeout())?;
    servers.describe().for_each(|teacher| tracing::info!("teacher: {teacher}"));
    if let Some(count) = plugins.info().needs.teacher_tokens() {
        servers.check_likely(count)?;
    }
    Ok(Some(Teacher::Servers(servers)))
}

/// Returns the teacher that moves with the policy, if the algorithm learns from one. An average continues from the checkpoint that the run
/// starts from, if that has one.
///
/// # Errors
/// If the average can't be read or made.
pub(super) fn moving(
    config: &RunConfig,
    plugins: &LoadedPlugins,
    policy: &PolicyModel,
    beginning: &StartMode,
) -> Result<Option<MovingTeacher>> {
    if !plugins.info().needs.has_teacher() {
        return Ok(None);
    }
    match config.teacher_model_kind {
        TeacherModelKind::Named | TeacherModelKind::Base | TeacherModelKind::Dataset => Ok(None),
        TeacherModelKind::Live => Ok(Some(MovingTeacher::Live)),
        TeacherModelKind::Ema => {
            let begun = PolicyAverage::new(policy, config.teacher_update_rate, config.teacher_sync_steps)?;
            begun.check().map_err(|detail| Error::setting(KIND, detail))?;
            let file = beginning.origin().map(|origin| CheckpointFiles::find(&origin.checkpoint).teacher());
            let average = match file.filter(|file| file.exists()) {
                Some(file) => {
                    tracing::info!("the teacher is the average in {}, and follows this policy", file.display());
                    begun.restored(&file)?
                }
                None => begun,
            };
            Ok(Some(MovingTeacher::Average(Box::new(average))))
        }
    }
}

/// Reads the teacher in this folder.
///
/// # Errors
/// If it can't be read.
pub(super) fn open(folder: &ModelFolder, backend: &ComputeBackend, sharding: &mut Sharding) -> Result<SharedModel> {
    // A matrix can only be quantized as a whole.
    let is_whole = folder.weight_storage().scheme.is_some();
    let read = if is_whole { folder.clone() } else { sharding.dividing(TEACHER, folder.clone(), folder.architecture(), false) };
    SharedModel::new(FrozenModel::new(read.decoder()?.on_backend(backend)?)).divided(TEACHER, sharding)
}
