//! Opens the teacher of algorithms that learn from another model's predictions.

use super::opened::Opened;
use super::plugins::Loaded;
use super::reference::other_tokenizer;
use super::value_model::{check_sizes, open_named};
use crate::config::Config;
use crate::dist::World;
use crate::model::{Backend, Frozen, Held, ModelFolder};
use crate::ops::Capability;
use crate::ops::quantized::Scheme;
use crate::origin::Beginning;
use crate::ranks::after_the_first;
use crate::{Error, Result};

const KEY: &str = "teacher_model";

/// A teacher's files.
pub(super) struct Teacher {
    pub folder: ModelFolder,
    /// A name that stays valid wherever the run resumes.
    pub name: String,
    /// Why the model may tokenize texts differently from the policy.
    pub warning: Option<String>,
}

/// Opens the folder of the teacher that the configuration names, if the algorithm learns from one.
///
/// # Errors
/// If there is no such model, it reads fewer tokens or shorter texts than the policy, or the algorithm needs one and none is named, or
/// the reverse.
pub(super) fn find(
    config: &Config,
    plugins: &Loaded,
    opened: &Opened,
    backend: &Backend,
    (beginning, world): (&Beginning, &World),
) -> Result<Option<Teacher>> {
    let needs = &plugins.about().needs;
    let Some(given) = &config.teacher_model else {
        if needs.has_teacher() {
            let detail = format!(
                "is missing: {} learns from another model's predictions; name that model, as in --teacher-model OWNER/NAME",
                config.algorithm
            );
            return Err(Error::setting(KEY, detail));
        }
        return Ok(None);
    };
    if !needs.has_teacher() {
        // A run that continues may have had another version of its algorithm.
        if beginning.origin().is_some() {
            tracing::info!("{KEY} {given} is ignored: {} has no teacher with these settings", config.algorithm);
            return Ok(None);
        }
        return Err(Error::setting(KEY, format!("{} has no teacher with these settings; leave it out", config.algorithm)));
    }
    let named = after_the_first(world, || Ok(open_named(given)))?;
    let (folder, name) = named.map_err(|detail| Error::setting(KEY, detail))?;
    check_sizes(KEY, &folder, opened, opened.source.architecture().vocab_size)?;
    if needs.divergence().is_some() {
        if let Some(detail) = backend.refusal(Capability::Divergences) {
            return Err(Error::setting(KEY, detail));
        }
        if config.score_sampling_support == Some(true) {
            let detail =
                "scores tokens among those that could be sampled, and a divergence compares whole distributions; leave it out";
            return Err(Error::setting("score_sampling_support", detail));
        }
    }
    let (scheme, key) = match (config.teacher_load_in_8bit, config.teacher_load_in_4bit) {
        (true, _) => (Some(Scheme::Int8), "teacher_load_in_8bit"),
        (_, true) => (Some(Scheme::Nf4), "teacher_load_in_4bit"),
        _ => (None, KEY),
    };
    if let Some(detail) = backend.refusal(Capability::QuantizedWeights).filter(|_| scheme.is_some()) {
        return Err(Error::setting(key, detail));
    }
    let warning = other_tokenizer(KEY, &folder, opened);
    let as_stored = backend.supports(Capability::StoredWeights);
    let folder = if as_stored { folder.holding(Held { scheme, ..Held::AS_STORED }) } else { folder };
    Ok(Some(Teacher { folder, name, warning }))
}

/// Reads the teacher in this folder.
///
/// # Errors
/// If it can't be read.
pub(super) fn open(folder: &ModelFolder, backend: &Backend) -> Result<Frozen> {
    Ok(Frozen::new(folder.decoder()?.at(backend)?))
}
