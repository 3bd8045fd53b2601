//! Finds and opens the model that a run starts with.

use super::frozen_precision;
use super::models::resolve_adapter;
use super::opened_model::OpenedModel;
use super::opened_model::UnstoredModel;
use crate::config::RunConfig;
use crate::data::{TemplateTokens, Tokenizer, TokenizerOverrides};
use crate::dist::World;
use crate::model::{ComputeBackend, ModelFolder, builtin};
use crate::origin::StartMode;
use crate::ranks::after_the_first;
use crate::run::RunFiles;
use crate::{Error, Result, name_resolution};
use std::path::{Path, PathBuf};

/// Opens the configuration's model for a run in this folder, on this backend. Sets in the configuration a name that stays valid wherever
/// the run resumes, all adapter settings, the precision of the base model, and the end token.
pub(super) fn open(
    config: &mut RunConfig,
    folder: &Path,
    beginning: &StartMode,
    (backend, world): (&ComputeBackend, &World),
) -> Result<OpenedModel> {
    // If the configuration names a run, its later checkpoints don't matter to a run that began with an earlier one.
    let recorded = match beginning {
        StartMode::Resume { origin, .. } => origin.written()?.model,
        _ => None,
    };
    let begun = |given: &str| {
        recorded.clone().filter(|model| Path::new(model).parent() == Some(Path::new(&name_resolution::absolute(given))))
    };
    let named_model = || {
        let given = config.model.as_deref();
        given.map(|given| name_resolution::model_of(begun(given).as_deref().unwrap_or(given))).transpose()
    };
    let (model, name) = after_the_first(world, named_model)?.unzip();
    config.model = name;
    let (source, made) = open_model(model, beginning, RunFiles(folder).made_model())?;
    let source = source.with_companions()?;
    let lora = resolve_adapter(config, &source, matches!(beginning, StartMode::Resume { .. }))?;
    let (source, dtype) = frozen_precision::resolve_precision(config, source, backend)?;
    config.dtype = dtype;
    let mut wording = wording(config, &source, beginning, world)?;
    let made_in = made.as_ref().filter(|made| matches!(made, UnstoredModel::BuiltIn(_))).map(UnstoredModel::path);
    let open = |wording: &TokenizerOverrides| {
        Tokenizer::open_with(source.tokenizer(), wording).map_err(|error| match made_in {
            Some(folder) => error.without_built_in_folder(folder),
            None => error,
        })
    };
    let mut tokenizer = open(&wording)?;
    if !tokenizer.has_named_end() && !matches!(beginning, StartMode::Resume { .. }) {
        config.eos_token = named_end(&source, &tokenizer)?;
        wording.eos.clone_from(&config.eos_token);
        tokenizer = open(&wording)?;
    }
    if let Some(name) = tokenizer.stock_template() {
        tracing::info!(
            "assistant_only_loss: {name}'s chat template is replaced by TRL's variant for training; to keep it, name a copy with \
             another comment in it as chat_template_path"
        );
    }
    let (tokens, rows) = (tokenizer.vocab_size(), source.architecture().vocab_size);
    if tokens > rows {
        let detail = format!("the tokenizer has {tokens} tokens and the model only {rows}");
        return Err(Error::unusable(source.path(), detail));
    }
    Ok(OpenedModel { source, unstored: made, lora, reference: None, teacher: None, tokenizer, wording })
}

/// Returns the end token of a model whose tokenizer names none. A run records it, so that it stays the same after resuming.
fn named_end(source: &ModelFolder, tokenizer: &Tokenizer) -> Result<Option<String>> {
    let end = tokenizer.unnamed_end(&source.architecture().eos_token_ids)?;
    match &end {
        Some(end) => tracing::info!("the tokenizer names no end token; texts end with {end:?}, as the model's do"),
        None => tracing::warn!(
            "neither the tokenizer nor the model names an end token: texts are learned without one, and completions end only at \
             max_completion_length; name one with --eos-token"
        ),
    }
    Ok(end)
}

/// Returns the model that a run starts or started with: the named one, or the built-in one, which the run stores.
fn open_model(named: Option<PathBuf>, beginning: &StartMode, kept: PathBuf) -> Result<(ModelFolder, Option<UnstoredModel>)> {
    if let Some(path) = named {
        return Ok((ModelFolder::open(path)?, None));
    }
    if let StartMode::Resume { .. } = beginning {
        return Ok((ModelFolder::open(kept)?, None));
    }
    if let StartMode::Fork { origin, .. } = beginning {
        let parents = RunFiles(&origin.run).made_model();
        return Ok((ModelFolder::open(&parents)?, Some(UnstoredModel::Parents(parents))));
    }
    let temporary = tempfile::tempdir().map_err(|source| Error::Write { path: std::env::temp_dir(), source })?;
    builtin::write(temporary.path())?;
    Ok((ModelFolder::open(temporary.path())?, Some(UnstoredModel::BuiltIn(temporary))))
}

/// Returns the configuration's overrides of templates and end tokens. Sets the template's full path; a run that continues from a checkpoint
/// keeps the checkpoint's template.
fn wording(config: &mut RunConfig, model: &ModelFolder, beginning: &StartMode, world: &World) -> Result<TokenizerOverrides> {
    let now = config.strftime_now.as_deref().map(TokenizerOverrides::read_time).transpose();
    let now = now.map_err(|detail| Error::setting("strftime_now", detail))?;
    let given = config.chat_template_path.as_deref();
    let named_template = |given: &str| {
        for name in [given.to_owned(), name_resolution::absolute(given)] {
            if let Some(kept) = beginning.kept_template(&name)? {
                return Ok((kept, name));
            }
        }
        name_resolution::template_of(given)
    };
    let (template, given) = after_the_first(world, || given.map(named_template).transpose())?.unzip();
    let folder = template.clone().filter(|path| path.is_dir());
    let template = template.map(|path| TokenizerOverrides::read_template(&path)).transpose()?;
    config.chat_template_path = given;
    if let Some((folder, (_, source))) = folder.zip(template.as_ref()) {
        let TemplateTokens { end, mut written } = TokenizerOverrides::tokens_of(&folder, source)?;
        if config.eos_token.is_none() {
            written.extend(end.clone());
        }
        check_written(&written, &folder, &Tokenizer::open(model.tokenizer())?)?;
        config.eos_token = config.eos_token.take().or(end);
    }
    let (kwargs, eos, pad) = (config.chat_template_kwargs.clone(), config.eos_token.clone(), config.pad_token.clone());
    Ok(TokenizerOverrides { template, now, kwargs, eos, pad, training: config.assistant_only_loss })
}

/// Refuses a chat template that writes tokens which the model lacks: as text, each would become several meaningless tokens.
fn check_written(written: &[String], folder: &Path, tokenizer: &Tokenizer) -> Result<()> {
    let missing: Vec<&str> = written.iter().map(String::as_str).filter(|token| !tokenizer.has_token(token)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "{} writes {}, which the model's tokenizer does not have, and embeddings are not enlarged; use a model that has them, or name \
         the template's file alone to write them as ordinary text",
        folder.display(),
        missing.join(", ")
    );
    Err(Error::setting("chat_template_path", detail))
}
