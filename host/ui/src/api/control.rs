//! Acts on a run: what another reward would have said, a swap, a roll-back, other settings. The means are those of `rlhost swap` and
//! of an editor: the page can do nothing that they can't.

use super::app::Api;
use super::plugins::{current, kept};
use super::query::Query;
use super::refused::{Refused, Result};
use super::text::shown;
use crate::backend::{Question, Rescored};
use crate::config::{self, PluginEntry, files, printable};
use crate::metrics::Comparison;
use crate::run::{RunAction, RunFiles, is_running};
use crate::store::{PATIENCE, locked};
use rlhost_followed::rounded;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::TryLockError;
use std::time::{Duration, Instant};

/// Completions that a question is about: the newest, in whole steps.
const USUAL_COMPLETIONS: usize = 512;
const MOST_COMPLETIONS: usize = 20_000;

/// Columns of a histogram, and rows that are shown.
const COLUMNS: usize = 24;
const MOST_CHANGED: usize = 12;

/// Longest excerpt of a completion, in bytes.
const LONGEST_EXCERPT: usize = 500;

/// How long the list of completions may take to be read before a question.
const PATIENT: Duration = Duration::from_secs(60);

/// A plugin that was dropped onto the page, in a file for as long as this exists.
struct Dropped {
    _folder: Option<tempfile::TempDir>,
    path: PathBuf,
}

impl Api {
    /// Scores the newest completions with a dropped plugin (the body, `file` its name), or with a version that the run keeps (`hash`).
    pub(super) fn what_if(&self, query: &Query, body: &[u8]) -> Result<Value> {
        let _one = match self.scoring.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Refused::new(429, "another plugin is scoring completions; wait for it")),
        };
        let reward = query.required("plugin")?;
        let count = query.count("newest", USUAL_COMPLETIONS, MOST_COMPLETIONS)?.max(1);
        let settings: Map<String, Value> = match query.get("settings") {
            Some(text) => {
                serde_json::from_str(text).map_err(|e| Refused::invalid(format!("settings must be a JSON object: {e}")))?
            }
            None => Map::new(),
        };
        let followed = self.followed(query)?;
        let (run, dropped, current, from) = {
            let mut run = locked(&followed);
            run.advance(Instant::now() + PATIENCE)?;
            if !run.advance_completions(Instant::now() + PATIENT)? {
                return Err(Refused::new(503, "the list of completions is still being read; try again"));
            }
            let dropped = if query.get("hash").is_some() {
                Dropped { _folder: None, path: kept(&run, query)?.0 }
            } else {
                Dropped::new(query, body)?
            };
            let entries = &run.completions.entries;
            let first = entries.len().saturating_sub(count);
            let step = entries.get(first).ok_or_else(|| Refused::new(404, "the run has no completions yet"))?.step;
            // Rewards see whole generations.
            let first = entries.partition_point(|entry| entry.step < step);
            (run.path.clone(), dropped, current(&run, reward), entries[first].place)
        };
        let current = current.as_deref();
        let question = Question { run: &run, plugin: &dropped.path, reward, current, settings: &settings, from };
        let rescored = self.backend.rescore(&question).map_err(|detail| Refused::new(422, detail))?;
        Ok(answer(rescored, reward))
    }

    /// Sends a dropped plugin to the run.
    pub(super) fn swap(&self, query: &Query, body: &[u8]) -> Result<Value> {
        let (name, run) = (query.required("plugin")?, self.path_of(query)?);
        let dropped = Dropped::new(query, body)?;
        let bytes = self.backend.plugin(&dropped.path).map_err(|detail| Refused::new(422, detail))?;
        self.send(&run, name, &bytes)
    }

    /// Sends a version that the run keeps.
    pub(super) fn roll_back(&self, query: &Query) -> Result<Value> {
        let followed = self.followed(query)?;
        let (run, bytes) = {
            let mut run = locked(&followed);
            run.advance(Instant::now() + PATIENCE)?;
            let (_, bytes) = kept(&run, query)?;
            (run.path.clone(), bytes)
        };
        self.send(&run, query.required("plugin")?, &bytes)
    }

    fn send(&self, run: &Path, name: &str, bytes: &[u8]) -> Result<Value> {
        let request = self.backend.swap(run, name, bytes).map_err(|detail| Refused::new(409, detail))?;
        Ok(json!({ "request": printable(&request, 300) }))
    }

    /// Requests something of the run, as `rlhost control` does.
    pub(super) fn steer(&self, query: &Query) -> Result<Value> {
        let (name, run) = (query.required("action")?, self.path_of(query)?);
        let Some(action) = RunAction::parse(name) else {
            let known = RunAction::ALL.map(RunAction::name).join(", ");
            return Err(Refused::invalid(format!("{:?} is no action; there are {known}", printable(name, 100))));
        };
        let request = self.backend.request(&run, action).map_err(|detail| Refused::new(409, detail))?;
        Ok(json!({ "request": printable(&request, 300) }))
    }

    /// Edits config.toml, as an editor would: the body has `settings` of a plugin, and perhaps its `weight`. The run tries them and
    /// reports in an event.
    pub(super) fn configure(&self, query: &Query, body: &[u8]) -> Result<Value> {
        let (name, run) = (query.required("plugin")?, self.path_of(query)?);
        let invalid = |e: serde_json::Error| Refused::invalid(format!("the settings are not a JSON object: {e}"));
        let body: Map<String, Value> = serde_json::from_slice(body).map_err(invalid)?;
        if is_running(&run) != Some(true) {
            return Err(Refused::new(409, "no rlhost process is running this run"));
        }
        let file = RunFiles(&run).config();
        let text = files::read_text(&file, config::LARGEST)?;
        let edited = edited(&text, name, &body).map_err(|detail| Refused::new(409, detail))?;
        let mut temporary = files::temporary_in(&run)?;
        temporary.write_all(edited.as_bytes())?;
        temporary.persist(&file).map_err(|e| e.error)?;
        Ok(json!({ "edited": true }))
    }
}

impl Dropped {
    /// Writes a request's body to a file of the name that it had, in a folder of its own.
    fn new(query: &Query, body: &[u8]) -> Result<Self> {
        let name = query.required("file")?;
        let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
        let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-. ".contains(&b));
        if stem.is_empty() || stem.starts_with('.') || name.len() > 120 || !is_plain(name) {
            return Err(Refused::invalid(format!("{name:?} can't be the name of a plugin's file: use letters, digits, - and _")));
        }
        if !["wasm", "py", "js", "ts", "mjs"].contains(&ending) {
            return Err(Refused::invalid(format!("{name:?} is no plugin: drop a .wasm, .py, .js or .ts file")));
        }
        if body.is_empty() {
            return Err(Refused::invalid(format!("{name:?} is empty")));
        }
        let folder = tempfile::Builder::new().prefix("rlhost-ui-").tempdir()?;
        let path = folder.path().join(name);
        std::fs::write(&path, body)?;
        Ok(Self { _folder: Some(folder), path })
    }
}

/// Returns config.toml's text with other settings of a plugin: those of a reward or environment are in its entry, those of the
/// algorithm in the table `loss`.
fn edited(text: &str, name: &str, changes: &Map<String, Value>) -> std::result::Result<String, String> {
    let mut table: toml::Table = text.parse().map_err(|e: toml::de::Error| format!("config.toml: {}", e.message()))?;
    let place = place_of(&table, name).ok_or_else(|| format!("config.toml has no plugin {name:?}"))?;
    let no_table = || "config.toml has an entry that is no table".to_owned();
    if let (Some(weight), Place::Entry { key, at }) = (changes.get("weight"), &place) {
        let weight = weight.as_f64().filter(|weight| weight.is_finite()).ok_or("a weight is a number")?;
        entry(&mut table, key, *at).ok_or_else(no_table)?.insert("weight".into(), weight.into());
    }
    if let Some(settings) = changes.get("settings") {
        let settings = settings.as_object().ok_or("settings are an object")?;
        let (holder, key) = match &place {
            Place::Entry { key, at } => (entry(&mut table, key, *at).ok_or_else(no_table)?, "config"),
            Place::Algorithm => (&mut table, "loss"),
        };
        let own = holder.entry(key).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        let own = own.as_table_mut().ok_or("config.toml: the plugin's settings are no table")?;
        for (key, value) in settings {
            match toml::Value::try_from(value) {
                Ok(value) => drop(own.insert(key.clone(), value)),
                // TOML has no null: the setting takes its default.
                Err(_) => drop(own.remove(key)),
            }
        }
    }
    toml::to_string(&table).map_err(|e| format!("config.toml can't be written: {e}"))
}

/// Where config.toml has a plugin's settings.
enum Place {
    /// In an entry of this list.
    Entry { key: &'static str, at: usize },
    /// In the table of the algorithm's.
    Algorithm,
}

/// Finds a plugin by its name.
fn place_of(table: &toml::Table, name: &str) -> Option<Place> {
    let own_name = |entry: &toml::Value| {
        let text = |key: &str| entry.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        text("name").or_else(|| Some(PluginEntry::new(text("path")?).name().to_owned()))
    };
    let in_list = |key: &'static str| {
        let at = table.get(key)?.as_array()?.iter().position(|entry| own_name(entry).as_deref() == Some(name))?;
        Some(Place::Entry { key, at })
    };
    let algorithm = table.get("algorithm").and_then(toml::Value::as_str).unwrap_or(config::DEFAULT_ALGORITHM);
    let is_algorithm = PluginEntry::new(algorithm.to_owned()).name() == name;
    ["plugin", "environment"].into_iter().find_map(in_list).or(is_algorithm.then_some(Place::Algorithm))
}

fn entry<'a>(table: &'a mut toml::Table, key: &str, at: usize) -> Option<&'a mut toml::Table> {
    table.get_mut(key)?.as_array_mut()?.get_mut(at)?.as_table_mut()
}

/// Compares both scores: those of the version that scored last, since other versions had other scales.
fn answer(mut rescored: Vec<Rescored>, reward: &str) -> Value {
    let version = rescored.last().map(|last| last.version.clone()).unwrap_or_default();
    let all = rescored.len();
    rescored.retain(|row| row.version == version);
    let (old, new): (Vec<Option<f32>>, Vec<Option<f32>>) = rescored.iter().map(|row| (row.old, row.new)).unzip();
    let comparison = Comparison::of(&old, &new);
    let mut changed: Vec<&Rescored> = rescored.iter().filter(|row| distance(row) > 1e-5).collect();
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

fn distance(row: &Rescored) -> f32 {
    match (row.old, row.new) {
        (Some(old), Some(new)) => (old - new).abs(),
        _ => 0.0,
    }
}

/// Counts both scores in the same columns.
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
            Dropped::new(&Query::parse(&format!("file={query}")).unwrap(), body).map(|dropped| dropped.path.as_path().to_owned())
        };
        let path = dropped("my-reward_2.py", b"x").unwrap();
        assert!(path.ends_with("my-reward_2.py") && !path.exists());
        for name in ["../a.py", "a/b.py", ".py", "..py", "a.sh", "a", "", "a\u{202e}.py", "a\0.py", "a\\b.wasm", &"a".repeat(200)]
        {
            assert_eq!(dropped(name, b"x").unwrap_err().status, 400, "{name:?}");
        }
        assert!(dropped("a.py", b"").unwrap_err().message.contains("is empty"));
    }

    #[test]
    fn settings_of_one_plugin_are_edited_and_nothing_else() {
        let text = "seed = 3\n\n[[plugin]]\npath = \"a.wasm\"\n\n[[plugin]]\npath = \"dir/b.py\"\nweight = 1.0\n[plugin.config]\nx = 1\n";
        let changes = json!({ "weight": 0.5, "settings": { "x": 2, "y": "z", "gone": null } });
        let new = edited(text, "b", changes.as_object().unwrap()).unwrap();
        let table: toml::Table = new.parse().unwrap();
        assert_eq!(table["plugin"][0].as_table().unwrap().len(), 1);
        assert_eq!(table["plugin"][1]["weight"].as_float(), Some(0.5));
        assert_eq!(table["plugin"][1]["config"].to_string(), "{ x = 2, y = \"z\" }");
        assert_eq!(table["seed"].as_integer(), Some(3));
        assert_eq!(edited(text, "c", &Map::new()).unwrap_err(), "config.toml has no plugin \"c\"");
        let loss = json!({ "settings": { "beta": 0.1 } });
        let algorithm = edited(&format!("algorithm = \"dir/mine.wasm\"\n{text}"), "mine", loss.as_object().unwrap()).unwrap();
        let table: toml::Table = algorithm.parse().unwrap();
        assert_eq!((table["loss"]["beta"].as_float(), table["plugin"].as_array().map(Vec::len)), (Some(0.1), Some(2)));
        assert!(edited(text, "grpo", loss.as_object().unwrap()).unwrap().contains("[loss]"));
        assert!(edited(text, "a", json!({"weight": "x"}).as_object().unwrap()).is_err());
    }

    #[test]
    fn both_scores_are_compared_over_the_version_that_scored_last() {
        let row = |version: &str, old: Option<f32>, new: Option<f32>| Rescored {
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
