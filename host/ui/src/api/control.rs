//! Actions on a run: scoring its completions with another reward, swapping and rolling back plugins, and changing settings. The page can do
//! nothing that `rlhost swap` and an editor of config.toml can't.

use super::app::PageApi;
use super::plugins::{current, shown_settings, version_file};
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use super::text::shown;
use crate::backend::{PluginChanges, RescoredCompletion, RescoringRequest};
use crate::config::printable;
use crate::metrics::ScoreComparison;
use crate::run::RunAction;
use crate::store::{PATIENCE, locked};
use rlhost_live::rounded;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::TryLockError;
use std::time::{Duration, Instant};

/// Default number of completions to score: the newest, in complete steps.
const USUAL_COMPLETIONS: usize = 512;
const MOST_COMPLETIONS: usize = 20_000;

/// Number of columns in a histogram, and of rows that are shown.
const COLUMNS: usize = 24;
const MOST_CHANGED: usize = 12;

/// Maximum length of a completion's excerpt, in bytes.
const LONGEST_EXCERPT: usize = 500;

/// Maximum time to read the list of completions before scoring.
const PATIENT: Duration = Duration::from_secs(60);

/// Plugin dropped onto the page, in a temporary file that lives as long as this value.
struct DroppedPlugin {
    folder: Option<tempfile::TempDir>,
    path: PathBuf,
}

impl PageApi {
    /// Scores the newest completions with a dropped plugin (the body; `file` is its name), or with a version that the run has stored
    /// (`hash`, `version`) and its settings. Either may be given other `settings`.
    pub(super) fn what_if(&self, query: &Query, body: &[u8]) -> Result<Value> {
        let _one = match self.scoring.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(ApiRefusal::new(429, "another plugin is scoring completions; wait for it"));
            }
        };
        let reward = query.required("plugin")?;
        let count = query.count("newest", USUAL_COMPLETIONS, MOST_COMPLETIONS)?.max(1);
        let mut settings: Map<String, Value> = match query.get("settings") {
            Some(text) => {
                serde_json::from_str(text).map_err(|e| ApiRefusal::invalid(format!("settings must be a JSON object: {e}")))?
            }
            None => Map::new(),
        };
        let followed = self.followed(query)?;
        let (run, dropped, current, from) = {
            let mut run = locked(&followed);
            run.advance(Instant::now() + PATIENCE)?;
            if !run.advance_completions(Instant::now() + PATIENT)? {
                return Err(ApiRefusal::new(503, "the list of completions is still being read; try again"));
            }
            let dropped = if query.get("hash").is_some() {
                let kept = version_file(&run, query)?;
                settings = changed(kept.settings, &settings);
                DroppedPlugin { folder: None, path: kept.path }
            } else {
                DroppedPlugin::new(query, body)?
            };
            let entries = &run.completions.entries;
            let first = entries.len().saturating_sub(count);
            let step = entries.get(first).ok_or_else(|| ApiRefusal::new(404, "the run has no completions yet"))?.step;
            // Rewards score complete generations.
            let first = entries.partition_point(|entry| entry.step < step);
            (run.path.clone(), dropped, current(&run, reward), entries[first].place)
        };
        let current = current.as_deref();
        let question = RescoringRequest { run: &run, plugin: &dropped.path, reward, current, settings: &settings, from };
        let rescored = self.backend.rescore(&question).map_err(|detail| ApiRefusal::new(422, dropped.named_in(&detail)))?;
        let mut answer = answer(rescored, reward);
        answer["settings"] = if query.get("hash").is_some() { json!(shown_settings(&settings)) } else { Value::Null };
        Ok(answer)
    }

    /// Sends a dropped plugin to the run.
    pub(super) fn swap(&self, query: &Query, body: &[u8]) -> Result<Value> {
        let (name, run) = (query.required("plugin")?, self.path_of(query)?);
        let dropped = DroppedPlugin::new(query, body)?;
        let bytes = self.backend.plugin(&dropped.path).map_err(|detail| ApiRefusal::new(422, dropped.named_in(&detail)))?;
        self.send(&run, name, &bytes, None)
    }

    /// Sends a version that the run used before, with its settings at that time.
    pub(super) fn roll_back(&self, query: &Query) -> Result<Value> {
        let followed = self.followed(query)?;
        let (run, kept) = {
            let mut run = locked(&followed);
            run.advance(Instant::now() + PATIENCE)?;
            (run.path.clone(), version_file(&run, query)?)
        };
        self.send(&run, query.required("plugin")?, &kept.bytes, Some(&kept.settings))
    }

    fn send(&self, run: &Path, name: &str, bytes: &[u8], settings: Option<&Map<String, Value>>) -> Result<Value> {
        let request = self.backend.swap(run, name, bytes, settings).map_err(|detail| ApiRefusal::new(409, detail))?;
        Ok(json!({ "request": printable(&request, 300) }))
    }

    /// Sends a control request to the run, as `rlhost control` does.
    pub(super) fn steer(&self, query: &Query) -> Result<Value> {
        let (name, run) = (query.required("action")?, self.path_of(query)?);
        let Some(action) = RunAction::parse(name) else {
            let known = RunAction::ALL.map(RunAction::name).join(", ");
            return Err(ApiRefusal::invalid(format!("{:?} is no action; there are {known}", printable(name, 100))));
        };
        let request = self.backend.request(&run, action).map_err(|detail| ApiRefusal::new(409, detail))?;
        Ok(json!({ "request": printable(&request, 300) }))
    }

    /// Sends changed settings of a plugin to the run. The body holds the `settings` that change (null restores a default) and optionally
    /// the `weight`. The run tries them, writes them to config.toml if they pass, and reports the result in an event.
    pub(super) fn configure(&self, query: &Query, body: &[u8]) -> Result<Value> {
        let name = query.required("plugin")?;
        let invalid = |e: serde_json::Error| ApiRefusal::invalid(format!("the settings are not a JSON object: {e}"));
        let body: Map<String, Value> = serde_json::from_slice(body).map_err(invalid)?;
        let weight = body.get("weight").map(|weight| weight.as_f64().ok_or_else(|| ApiRefusal::invalid("a weight is a number")));
        let changes =
            body.get("settings").map(|own| own.as_object().ok_or_else(|| ApiRefusal::invalid("settings are an object")));
        let (weight, changes) = (weight.transpose()?, changes.transpose()?);
        let followed = self.followed(query)?;
        let (run, now) = {
            let mut run = locked(&followed);
            run.advance(Instant::now() + PATIENCE)?;
            let now = run.events.current(name).map(|now| now.config.clone());
            (run.path.clone(), now.ok_or_else(|| ApiRefusal::new(404, format!("the run has loaded no plugin {name:?}")))?)
        };
        let settings = changes.map(|changes| changed(now, changes));
        let request = self.backend.configure(&run, name, &PluginChanges { settings, weight });
        let request = request.map_err(|detail| ApiRefusal::new(409, detail))?;
        Ok(json!({ "request": printable(&request, 300) }))
    }
}

impl DroppedPlugin {
    /// Writes a request's body to a file with its original name, in a new folder.
    fn new(query: &Query, body: &[u8]) -> Result<Self> {
        let given = query.required("file")?;
        let name = &without_number(given);
        let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
        let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-. ".contains(&b));
        if stem.is_empty() || stem.starts_with('.') || name.len() > 120 || !is_plain(name) {
            return Err(ApiRefusal::invalid(format!(
                "{name:?} can't be the name of a plugin's file: use letters, digits, - and _"
            )));
        }
        if !["wasm", "py", "js", "ts", "mjs"].contains(&ending) {
            return Err(ApiRefusal::invalid(format!("{name:?} is no plugin: drop a .wasm, .py, .js or .ts file")));
        }
        if body.is_empty() {
            return Err(ApiRefusal::invalid(format!("{name:?} is empty")));
        }
        let folder = tempfile::Builder::new().prefix("rlhost-ui-").tempdir()?;
        let path = folder.path().join(name);
        std::fs::write(&path, body)?;
        Ok(Self { folder: Some(folder), path })
    }

    /// Returns a message with the plugin's name in place of its temporary path, which means nothing to the user.
    fn named_in(&self, message: &str) -> String {
        let folder = self.folder.as_ref().map(|folder| format!("{}/", folder.path().display()));
        folder.map_or_else(|| message.to_owned(), |folder| message.replace(&folder, ""))
    }
}

/// Returns a file's name without the number that a browser added to make it unique, as in `my_reward (1).py`.
fn without_number(name: &str) -> String {
    let parts = || {
        let (stem, ending) = name.rsplit_once('.')?;
        let (stem, number) = stem.strip_suffix(')')?.rsplit_once('(')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| format!("{}.{ending}", stem.trim_end()))
    };
    parts().unwrap_or_else(|| name.to_owned())
}

/// Returns a plugin's settings with these changes applied.
fn changed(mut now: Map<String, Value>, changes: &Map<String, Value>) -> Map<String, Value> {
    now.extend(changes.clone());
    now.retain(|_, value| !value.is_null());
    now
}

/// Compares both scores. Only completions scored by the latest version count, since other versions had other scales.
fn answer(mut rescored: Vec<RescoredCompletion>, reward: &str) -> Value {
    let version = rescored.last().map(|last| last.version.clone()).unwrap_or_default();
    let all = rescored.len();
    rescored.retain(|row| row.version == version);
    let (old, new): (Vec<Option<f32>>, Vec<Option<f32>>) = rescored.iter().map(|row| (row.old, row.new)).unzip();
    let comparison = ScoreComparison::new(&old, &new);
    let mut changed: Vec<&RescoredCompletion> = rescored.iter().filter(|row| distance(row) > 1e-5).collect();
    let differing = changed.len();
    changed.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
    let rows = changed.into_iter().take(MOST_CHANGED).map(|row| {
        json!({
            "step": row.step,
            "row": row.row,
            "prompt": shown(&row.prompt, LONGEST_EXCERPT),
            "completion": shown(&row.completion, LONGEST_EXCERPT),
            "old": row.old.map(rounded),
            "new": row.new.map(rounded),
        })
    });
    let points = rescored.iter().filter_map(|row| Some([rounded(row.old?), rounded(row.new?)]));
    json!({
        "reward": printable(reward, 200),
        "version": printable(&version.short(), 100),
        "completions": rescored.len(),
        "other_versions": all - rescored.len(),
        "from_step": rescored.first().map(|row| row.step),
        "to_step": rescored.last().map(|row| row.step),
        "comparison": comparison,
        "differing": differing,
        "rows": rows.collect::<Vec<_>>(),
        "points": points.take(2000).collect::<Vec<_>>(),
        "histogram": histogram(&old, &new),
    })
}

fn distance(row: &RescoredCompletion) -> f32 {
    match (row.old, row.new) {
        (Some(old), Some(new)) => (old - new).abs(),
        _ => 0.0,
    }
}

/// Counts both scores in the same histogram columns.
fn histogram(old: &[Option<f32>], new: &[Option<f32>]) -> Value {
    let finite = |all: &[Option<f32>]| all.iter().flatten().copied().filter(|v| v.is_finite()).collect::<Vec<f32>>();
    let (old, new) = (finite(old), finite(new));
    let both = || old.iter().chain(&new).copied();
    let (low, high) = (both().fold(f32::INFINITY, f32::min), both().fold(f32::NEG_INFINITY, f32::max));
    if low > high {
        return json!({ "low": 0, "high": 1, "old": [], "new": [] });
    }
    let width = if high > low { f64::from(high - low) / COLUMNS as f64 } else { 1.0 };
    let counts = |all: &[f32]| {
        let mut counts = [0u32; COLUMNS];
        for value in all {
            let column = (f64::from(value - low) / width) as usize;
            counts[column.min(COLUMNS - 1)] += 1;
        }
        counts.to_vec()
    };
    json!({ "low": rounded(low), "high": rounded(if high > low { high } else { low + 1.0 }), "old": counts(&old), "new": counts(&new) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::PluginVersion;

    #[test]
    fn dropped_files_have_harmless_names() {
        let dropped = |name: &str, body: &[u8]| {
            let query: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
            DroppedPlugin::new(&Query::parse(&format!("file={query}")).unwrap(), body)
                .map(|dropped| dropped.path.as_path().to_owned())
        };
        let path = dropped("my-reward_2.py", b"x").unwrap();
        assert!(path.ends_with("my-reward_2.py") && !path.exists());
        assert!(dropped("my_reward (12).py", b"x").unwrap().ends_with("my_reward.py"));
        for name in [
            "../a.py",
            "a/b.py",
            ".py",
            "..py",
            "a.sh",
            "(1).py",
            "a (b).py",
            "a",
            "",
            "a\u{202e}.py",
            "a\0.py",
            "a\\b.wasm",
            &"a".repeat(200),
        ] {
            assert_eq!(dropped(name, b"x").unwrap_err().status, 400, "{name:?}");
        }
        assert!(dropped("a.py", b"").unwrap_err().message.contains("is empty"));
    }

    #[test]
    fn settings_that_change_take_the_place_of_those_in_force() {
        let map = |value: Value| value.as_object().cloned().unwrap();
        let now = map(json!({ "x": 1, "y": 2, "z": null }));
        assert_eq!(changed(now, &map(json!({ "x": 3, "y": null }))), map(json!({ "x": 3 })));
    }

    #[test]
    fn both_scores_are_compared_over_the_version_that_scored_last() {
        let row = |version: &str, old: Option<f32>, new: Option<f32>| RescoredCompletion {
            step: 1,
            row: 0,
            prompt: String::new(),
            completion: "c".into(),
            version: PluginVersion::parse(version),
            old,
            new,
        };
        let all = vec![
            row("aa", Some(100.0), Some(0.0)),
            row("bb", Some(0.0), Some(1.0)),
            row("bb", Some(1.0), Some(1.0)),
            row("bb", None, Some(3.0)),
        ];
        let answer = answer(all, "r");
        assert_eq!((&answer["completions"], &answer["other_versions"], &answer["differing"]), (&json!(3), &json!(1), &json!(1)));
        assert_eq!((&answer["comparison"]["rows"], &answer["comparison"]["one_sided"]), (&json!(2), &json!(1)));
        assert_eq!((&answer["histogram"]["old"][0], &answer["histogram"]["new"][8]), (&json!(1), &json!(2)));
        assert_eq!(histogram(&[None], &[Some(f32::NAN)])["old"], json!([]));
        assert_eq!(histogram(&[Some(2.0)], &[Some(2.0)])["new"][0], json!(1));
    }
}
