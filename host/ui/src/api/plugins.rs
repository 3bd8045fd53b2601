//! Plugins of a run: their versions, settings and history, and the source of a version.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use super::text::shown;
use crate::config::{PluginEntry, files, printable};
use crate::run::{RunFiles, ensure_own_file, short_hash};
use crate::store::{PATIENCE, locked};
use rlhost_live::{LiveRun, PluginChange, RunPlugin, config_of};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Instant;

/// Maximum size of a plugin, in bytes.
pub(super) const LARGEST_PLUGIN: u64 = 256 << 20;

/// Maximum number of cached forms.
const MOST_FORMS: usize = 200;

/// Maximum length of a displayed source, in bytes.
const LONGEST_SOURCE: usize = 400_000;

/// Maximum length of a displayed setting, in bytes.
const LONGEST_SETTING: usize = 2000;

/// Maximum number of versions shown per plugin; the newest are kept.
const MOST_VERSIONS: usize = 200;

impl PageApi {
    pub(super) fn plugins(&self, query: &Query) -> Result<Value> {
        let run = self.followed(query)?;
        let mut run = locked(&run);
        run.advance(Instant::now() + PATIENCE)?;
        let config = config_of(&run.path);
        let entries: Vec<PluginEntry> =
            config.map(|config| config.plugin.into_iter().chain(config.environment).collect()).unwrap_or_default();
        let plugin = |RunPlugin { name, role }: RunPlugin| {
            let entry = entries.iter().find(|entry| entry.name() == name);
            let changes: Vec<&PluginChange> = run.events.changes.iter().filter(|change| change.plugin == name).collect();
            let now = run.events.current(&name);
            json!({
                "name": name,
                "role": role,
                "weight": entry.map(|entry| entry.weight),
                "eval_only": entry.is_some_and(|entry| entry.eval_only),
                "file": entry.map(|entry| printable(&entry.path, LONGEST_SETTING)),
                "now": now.map(|change| version(&run.path, change)),
                "mean": run.metrics.last(&format!("rewards/{name}/mean")),
                "std": run.metrics.last(&format!("rewards/{name}/std")),
                "errors": run.metrics.last(&format!("plugins/{name}/errors")),
                "history": changes.iter().rev().take(MOST_VERSIONS).map(|change| version(&run.path, change)).collect::<Vec<_>>(),
            })
        };
        Ok(
            json!({ "plugins": run.events.loaded().into_iter().map(plugin).collect::<Vec<_>>(), "time_reward": run.metrics.last("time/reward") }),
        )
    }

    /// Answers with the source of a version, if it is a script.
    pub(super) fn source(&self, query: &Query) -> Result<Value> {
        let run = self.followed(query)?;
        let mut run = locked(&run);
        run.advance(Instant::now() + PATIENCE)?;
        let bytes = version_file(&run, query)?.bytes;
        let source = self.backend.source(&bytes).map(|source| shown(&source, LONGEST_SOURCE));
        Ok(json!({ "source": source, "bytes": bytes.len() }))
    }

    /// Answers with the settings of a version, as fields of a form.
    pub(super) fn form(&self, query: &Query) -> Result<Value> {
        let run = self.followed(query)?;
        let path = {
            let mut run = locked(&run);
            run.advance(Instant::now() + PATIENCE)?;
            version_file(&run, query)?.path
        };
        let mut forms = self.forms.lock().unwrap_or_else(PoisonError::into_inner);
        if forms.len() >= MOST_FORMS {
            forms.clear();
        }
        let fields = match forms.get(&path) {
            Some(fields) => fields.clone(),
            None => {
                let fields = self.backend.form(&path).map_err(|detail| ApiRefusal::new(422, detail))?;
                forms.insert(path, fields.clone());
                fields
            }
        };
        Ok(json!({ "fields": fields }))
    }
}

/// Version of a plugin that the run has stored.
pub(super) struct PluginVersionFile {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    pub settings: Map<String, Value>,
}

/// Returns the version that a query names by `plugin` and `hash`, and also by `version` if the settings matter. It must occur in the run's
/// events.
pub(super) fn version_file(run: &LiveRun, query: &Query) -> Result<PluginVersionFile> {
    let (name, hash, version) = (query.required("plugin")?, query.required("hash")?, query.get("version"));
    let is_meant = |change: &&PluginChange| {
        let has_settings = || version.is_none_or(|version| change.version.short() == version);
        change.plugin == name && short_hash(change.version.hash()) == short_hash(hash) && has_settings()
    };
    let change = run.events.changes.iter().rev().find(is_meant);
    let change = change.ok_or_else(|| ApiRefusal::new(404, format!("the run has no version {hash:?} of {name:?}")))?;
    let path = path_of(&run.path, change).ok_or_else(|| ApiRefusal::new(404, "the bytes of this version are not in the run"))?;
    let bytes = files::read(&path, LARGEST_PLUGIN)?;
    let mut settings = change.config.clone();
    settings.retain(|_, value| !value.is_null());
    Ok(PluginVersionFile { path, bytes, settings })
}

/// Returns the path of a plugin's current version, if the run has stored it.
pub(super) fn current(run: &LiveRun, name: &str) -> Option<PathBuf> {
    path_of(&run.path, run.events.current(name)?)
}

/// Returns the path of a version's bytes, if the run has stored them.
fn path_of(run: &Path, change: &PluginChange) -> Option<PathBuf> {
    let hash = change.version.hash();
    // Names and hashes come from the run's folder, which is untrusted.
    let is_file_name = !change.plugin.contains(['/', '\\', '\0']) && !change.plugin.starts_with('.');
    let path = (is_file_name && change.version.is_hexadecimal() && hash.len() >= 16)
        .then(|| RunFiles(run).plugin(&change.plugin, hash))?;
    let is_file = ensure_own_file(run, &path).is_ok() && path.is_file();
    is_file.then_some(path)
}

/// Returns a version for display.
fn version(run: &Path, change: &PluginChange) -> Value {
    json!({
        "kind": change.kind,
        "time": change.time,
        "step": change.step,
        "version": printable(&change.version.short(), LONGEST_SETTING),
        "hash": printable(short_hash(change.version.hash()), LONGEST_SETTING),
        "stated": change.stated,
        "config": shown_settings(&change.config),
        "shadow": change.shadow,
        "pause_ms": change.pause_ms,
        "reason": change.reason,
        "undone": change.undone,
        "kept": path_of(run, change).is_some(),
    })
}

/// Returns settings for display.
pub(super) fn shown_settings(settings: &Map<String, Value>) -> Map<String, Value> {
    settings.iter().map(|(key, value)| (printable(key, LONGEST_SETTING), bounded(value))).collect()
}

/// Returns a setting's value; a long one becomes text and is truncated.
fn bounded(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() <= LONGEST_SETTING { value.clone() } else { printable(&text, LONGEST_SETTING).into() }
}
