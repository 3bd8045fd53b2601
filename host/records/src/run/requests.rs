//! Requests to a running run: files in its folder, which the run reads between two steps. Also the files that accompany a plugin sent to
//! it.

use super::RunFiles;
use crate::config::{files, now};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Maximum number of requests taken at a time; the others wait for the next step.
const MOST: usize = 100;

/// Maximum size of a request's file, in bytes.
const LARGEST: u64 = 4096;

/// Suffix of the files' names.
const ENDING: &str = ".json";

/// An action that a run can be requested to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunAction {
    /// Wait after the current step.
    Pause,
    /// Continue after a pause.
    Continue,
    /// Save a checkpoint after the current step.
    Save,
    /// Evaluate after the current step.
    Evaluate,
    /// Stop after the current step, with a checkpoint.
    Stop,
}

impl RunAction {
    /// All actions.
    pub const ALL: [Self; 5] = [Self::Pause, Self::Continue, Self::Save, Self::Evaluate, Self::Stop];

    /// Returns the name of the action.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Continue => "continue",
            Self::Save => "save",
            Self::Evaluate => "evaluate",
            Self::Stop => "stop",
        }
    }

    /// Returns the action of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// A request to a run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// Requested action.
    pub action: RunAction,
    /// Who made the request.
    pub by: String,
}

/// A request that a run has taken from its folder.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct TakenRequest {
    /// Name of the request, which the answering event repeats.
    pub name: String,
    /// Contents of the request.
    pub request: RunRequest,
}

/// Settings that are sent with a plugin, or without one, to a running run, and who sent them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PluginRequest {
    /// Who sent the request.
    pub by: String,
    /// Settings of the plugin; a missing one has the version's default. `None` keeps the settings that the user gave the previous version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Map<String, Value>>,
    /// Weight of the plugin's scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

impl PluginRequest {
    /// Suffix of the file that accompanies a plugin's file of the same name.
    pub const COMPANION_ENDING: &'static str = "about";
    /// Suffix of a request's file that sends settings without a plugin.
    pub const SETTINGS_ENDING: &'static str = "settings";
    /// Maximum size of such a file, in bytes.
    const LARGEST: u64 = 1 << 20;

    /// Reads a request's file.
    ///
    /// # Errors
    /// If the file can't be read or parsed.
    pub fn load(file: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&files::read(file, Self::LARGEST)?)?)
    }
}

/// Sends a request to the run in this folder. Returns the request's name.
///
/// # Errors
/// If the file can't be written.
pub fn send_request(run: &Path, request: &RunRequest) -> io::Result<String> {
    let folder = RunFiles(run).requests();
    files::create_folder(&folder)?;
    // Later requests sort later by name.
    let name = format!("{}-{}", now().as_nanosecond(), std::process::id());
    let mut temporary = tempfile::Builder::new().prefix(".request-").tempfile_in(run)?;
    temporary.write_all(&serde_json::to_vec(request)?)?;
    temporary.persist(folder.join(format!("{name}{ENDING}"))).map_err(|e| e.error)?;
    Ok(name)
}

/// Takes the requests that have arrived, oldest first. Unreadable ones are dropped with a warning.
pub fn take_requests(run: &Path) -> Vec<TakenRequest> {
    let Ok(entries) = std::fs::read_dir(RunFiles(run).requests()) else { return Vec::new() };
    let named = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(ENDING)?.to_owned();
        let made: u128 = name.split('-').next()?.parse().ok()?;
        Some((made, name, path))
    };
    let mut all: Vec<_> = entries.filter_map(Result::ok).filter_map(|entry| named(entry.path())).collect();
    all.sort();
    let mut taken = Vec::new();
    for (_, name, path) in all.into_iter().take(MOST) {
        let read = files::read(&path, LARGEST).and_then(|text| Ok(serde_json::from_slice(&text)?));
        // A file that stays would be taken again.
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!("{}: it can't be removed, so this request is not followed: {error}", path.display());
            continue;
        }
        match read {
            Ok(request) => taken.push(TakenRequest { name, request }),
            Err(error) => tracing::warn!("{}: this request is dropped: {error}", path.display()),
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_once_in_the_order_in_which_they_were_made() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(take_requests(run.path()), []);
        let all = RunAction::ALL.map(|action| RunRequest { action, by: "me".into() });
        let names = all.each_ref().map(|request| send_request(run.path(), request).unwrap());
        let folder = RunFiles(run.path()).requests();
        for (name, text) in [("1-1.json", "{"), ("2-1.json", r#"{"action":"fly","by":"x"}"#), ("3-1.json", &"x".repeat(5000))] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        std::fs::write(folder.join("notes.txt"), "mine").unwrap();
        let taken = take_requests(run.path());
        assert_eq!(taken.iter().map(|taken| &taken.name).collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
        assert!(taken.iter().zip(&all).all(|(taken, sent)| taken.request == *sent));
        assert_eq!(take_requests(run.path()), []);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn each_action_has_a_name() {
        for action in RunAction::ALL {
            assert_eq!(RunAction::parse(action.name()), Some(action));
            assert_eq!(serde_json::to_value(action).unwrap(), action.name());
        }
        assert_eq!(RunAction::parse("fly"), None);
    }
}
