//! Routes that manage the served weights, as in vLLM: pausing, reloading and adapters.

use super::app::App;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::reply::Reply;
use super::served_weights::{MOST_ADAPTERS, ServedWeights};
use crate::engine::{EngineAdapter, PauseMode};
use crate::model::IncrementalDecoder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, TryLockError};

/// Maximum length of an adapter's name, in bytes.
const LONGEST_NAME: usize = 256;

impl App {
    /// Returns the weights, if requests may replace them.
    pub(super) fn updatable(&self) -> Result<&ServedWeights> {
        let refused = || ApiError::new(403, "weights can't be changed; start the server with --allow-weight-updates");
        self.weights.as_deref().filter(|weights| weights.updates).ok_or_else(refused)
    }

    /// Returns the adapter of a name returned by [`App::model_of`]; `None` for the model itself.
    pub(super) fn adapter(&self, model: &str) -> Result<Option<Arc<EngineAdapter>>> {
        if self.session.is_some() || self.card.names.iter().any(|name| name == model) {
            return Ok(None);
        }
        let adapter = self.weights.as_ref().and_then(|weights| weights.adapter(model));
        adapter.map(Some).ok_or_else(|| ApiError::field("model", "it has just been unloaded").with_status(404))
    }
}

/// Waits until the engine has executed a command.
async fn done(heard: std::result::Result<tokio::sync::oneshot::Receiver<()>, crate::engine::RequestRefusal>) -> Result<()> {
    heard?.await.map_err(|_| ApiError::new(409, "another request has ended the pause, or the engine has ended"))
}

/// Returns the value of a query parameter.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').filter_map(|pair| pair.split_once('=')).find(|(own, _)| *own == name).map(|(_, value)| value)
}

/// Answers `/pause`.
pub(super) async fn pause(app: &App, query: &str) -> Result<Reply> {
    app.updatable()?;
    let mode = match parameter(query, "mode") {
        None | Some("abort") => PauseMode::Abort,
        Some("wait") => PauseMode::Wait,
        Some("keep") => PauseMode::Keep,
        Some(_) => return Err(ApiError::field("mode", "must be abort, wait or keep")),
    };
    done(app.generator()?.pause(mode)).await?;
    if parameter(query, "clear_cache").is_some_and(|clear| clear.eq_ignore_ascii_case("true")) {
        done(app.generator()?.forget_prefixes()).await?;
    }
    Ok(Reply::json(json!({"status": "paused"})))
}

/// Answers `/resume`.
pub(super) async fn resume(app: &App) -> Result<Reply> {
    app.updatable()?;
    done(app.generator()?.resume()).await?;
    Ok(Reply::json(json!({"status": "resumed"})))
}

/// Answers `/reset_prefix_cache`.
pub(super) async fn reset_prefix_cache(app: &App) -> Result<Reply> {
    app.updatable()?;
    done(app.generator()?.forget_prefixes()).await?;
    Ok(Reply::json(json!({})))
}

/// Answers `/is_paused`.
pub(super) fn is_paused(app: &App) -> Result<Reply> {
    app.updatable()?;
    Ok(Reply::json(json!({"is_paused": app.generator()?.is_paused()})))
}

/// Answers `/weight_info`: returns the weight versions of the model and of each adapter.
pub(super) fn weight_info(app: &App) -> Result<Reply> {
    let weights = app.updatable()?;
    let adapters: BTreeMap<String, String> =
        weights.read().iter().map(|(name, adapter)| (name.clone(), adapter.weights.version().to_string())).collect();
    Ok(Reply::json(json!({"weight_version": app.generator()?.counters().version().to_string(), "adapters": adapters})))
}

/// Answers `/weight_checker`.
pub(super) fn weight_checker(app: &App, mut fields: Fields) -> Result<Reply> {
    let weights = app.updatable()?;
    let (action, baseline) = (fields.text("action")?, fields.object("baseline")?);
    fields.finish()?;
    let sums = || weights.loader.checksums().map_err(ApiError::invalid);
    match (action.as_deref(), baseline) {
        (Some("checksum"), _) => Ok(Reply::json(json!({"checksums": sums()?}))),
        (Some("compare"), Some(baseline)) => {
            let own = sums()?;
            let differs = |name: &&String| baseline.get(*name).and_then(Value::as_str) != own.get(*name).map(String::as_str);
            let names: std::collections::BTreeSet<&String> = own.keys().chain(baseline.keys()).collect();
            let mismatches: Vec<&String> = names.into_iter().filter(differs).collect();
            Ok(Reply::json(json!({"match": mismatches.is_empty(), "mismatches": mismatches})))
        }
        (Some("compare"), None) => Err(ApiError::field("baseline", "is missing")),
        (Some("reset"), _) => {
            Err(ApiError::field("action", "reset is not supported: reload_weights replaces all weights at once"))
        }
        _ => Err(ApiError::field("action", "must be checksum or compare")),
    }
}

/// Weights that have been read and wait to be installed.
pub(super) struct NewWeights {
    weights: Box<IncrementalDecoder>,
    /// Adapter whose weights are replaced; `None` for the model.
    adapter: Option<Arc<EngineAdapter>>,
    answer: Reply,
}

impl NewWeights {
    /// Installs the weights, and answers once no token is computed with the old ones any more.
    pub(super) async fn install(self, app: &App) -> Result<Reply> {
        let version = app.updatable()?.next_version();
        done(match self.adapter {
            Some(adapter) => app.generator()?.replace_adapter(adapter, *self.weights, version),
            None => app.generator()?.replace(*self.weights, version),
        })
        .await?;
        Ok(self.answer)
    }
}

/// Locks out other requests that read weights.
fn begin_reading(weights: &ServedWeights) -> Result<MutexGuard<'_, ()>> {
    match weights.updating.try_lock() {
        Ok(guard) => Ok(guard),
        // A panic while weights were read has changed nothing.
        Err(TryLockError::Poisoned(guard)) => Ok(guard.into_inner()),
        Err(TryLockError::WouldBlock) => Err(ApiError::new(409, "other weights are being read; try again when that is done")),
    }
}

/// Parses a request for `/collective_rpc`, and reads the weights that it names.
pub(super) fn collective_rpc(app: &App, mut fields: Fields) -> Result<NewWeights> {
    let weights = app.updatable()?;
    fields.only("method", &[json!("reload_weights")])?;
    fields.only("args", &[json!([])])?;
    let mut kwargs = Fields::from_object(fields.object("kwargs")?.unwrap_or_default(), "kwargs.");
    let path = kwargs.text("weights_path")?;
    kwargs.only("is_checkpoint_format", &[json!(true)])?;
    kwargs.finish()?;
    fields.ignore(&["timeout"]);
    fields.finish()?;
    let _updating = begin_reading(weights)?;
    if !weights.read().is_empty() {
        return Err(ApiError::new(409, "adapters are loaded, which belong to the present weights; unload them first"));
    }
    let read = weights.loader.reload(path.as_deref().map(Path::new));
    let read = read.map_err(|e| ApiError::field("kwargs.weights_path", format!("{e}; the present weights stay")))?;
    Ok(NewWeights { weights: Box::new(read), adapter: None, answer: Reply::json(json!({"results": [null]})) })
}

/// Outcome of a request for `/v1/load_lora_adapter`.
pub(super) enum AdapterLoadOutcome {
    /// The adapter is new.
    Added(Reply),
    /// The adapter replaces one of the same name.
    Replacing(NewWeights),
}

/// Handles `/v1/load_lora_adapter` up to the point where the engine takes over.
pub(super) fn load_adapter(app: &App, mut fields: Fields) -> Result<AdapterLoadOutcome> {
    let weights = app.updatable()?;
    let (name, path, inplace) = (name(&mut fields)?, fields.text("lora_path")?, fields.flag("load_inplace")?);
    fields.ignore(&["base_model_name"]);
    fields.finish()?;
    let path = PathBuf::from(path.ok_or_else(|| ApiError::field("lora_path", "is missing"))?);
    if app.card.names.contains(&name) {
        return Err(ApiError::field("lora_name", "is the name of the model itself"));
    }
    let _updating = begin_reading(weights)?;
    let present = weights.adapter(&name);
    if present.is_some() && !inplace {
        return Err(ApiError::field("lora_name", "has already been loaded; load_inplace: true replaces it"));
    }
    if present.is_none() && weights.read().len() >= MOST_ADAPTERS {
        return Err(ApiError::new(409, format!("{MOST_ADAPTERS} adapters are loaded, which is the maximum; unload one first")));
    }
    let read = weights.loader.adapter(&path).map_err(|e| ApiError::field("lora_path", e.to_string()))?;
    let answer = Reply::text(format!("Success: LoRA adapter '{name}' added successfully."));
    let Some(adapter) = present else {
        weights.add(&name, &path, read);
        return Ok(AdapterLoadOutcome::Added(answer));
    };
    if let Some(known) = weights.write().get_mut(&name) {
        known.path = path;
    }
    Ok(AdapterLoadOutcome::Replacing(NewWeights { weights: Box::new(read), adapter: Some(adapter), answer }))
}

impl AdapterLoadOutcome {
    /// Installs the new weights in the engine.
    pub(super) async fn install(self, app: &App) -> Result<Reply> {
        match self {
            Self::Added(answer) => Ok(answer),
            Self::Replacing(weights) => weights.install(app).await,
        }
    }
}

/// Answers `/v1/unload_lora_adapter`. Requests in progress keep the adapter until they end.
pub(super) fn unload_adapter(app: &App, mut fields: Fields) -> Result<Reply> {
    let weights = app.updatable()?;
    let name = name(&mut fields)?;
    fields.ignore(&["lora_int_id"]);
    fields.finish()?;
    match weights.write().remove(&name) {
        Some(_) => Ok(Reply::text(format!("Success: LoRA adapter '{name}' removed successfully."))),
        None => Err(ApiError::field("lora_name", "no adapter of this name is loaded").with_status(404)),
    }
}

fn name(fields: &mut Fields) -> Result<String> {
    let name = fields.text("lora_name")?.ok_or_else(|| ApiError::field("lora_name", "is missing"))?;
    let fits = !name.is_empty() && name.len() <= LONGEST_NAME && !name.chars().any(char::is_control);
    fits.then_some(name)
        .ok_or_else(|| ApiError::field("lora_name", format!("must have 1 to {LONGEST_NAME} bytes, all printable")))
}

#[cfg(test)]
pub(super) mod tests;
