//! What people request of a running run: files in its folder, which the run takes between two steps; and what comes with a plugin that
//! they send.

use super::RunFiles;
use crate::config::{files, now};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Most requests that are taken at once; the others wait for the next step.
const MOST: usize = 100;

/// Largest file of a request, in bytes.
const LARGEST: u64 = 4096;

/// Ending of the files' names.
const ENDING: &str = ".json";

/// What a run can be requested to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunAction {
    /// Wait after the current step.
    Pause,
    /// Go on after a pause.
    Continue,
    /// Save a checkpoint after the current step.
    Save,
    /// Evaluate after the current step.
    Evaluate,
    /// Stop after the current step, with a checkpoint.
    Stop,
}

impl RunAction {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pause, Self::Continue, Self::Save, Self::Evaluate, Self::Stop];

    /// Returns its name.
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

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// What to do.
    pub action: RunAction,
    /// Who requests it.
    pub by: String,
}

/// A request that a run has taken.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct TakenRequest {
    /// Its name, which the event that answers it has.
    pub name: String,
    /// What it says.
    pub request: RunRequest,
}

/// What comes with a plugin that is sent to a running run, or without one: who sends it, and what is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PluginRequest {
    /// Who sends it.
    pub by: String,
    /// The plugin's settings; one that is missing has the version's default. None: those that the user gave the version before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Map<String, Value>>,
    /// The weight of its scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

impl PluginRequest {
    /// Ending of the file that comes with a plugin's, and has its name otherwise.
    pub const COMPANION_ENDING: &'static str = "about";
    /// Ending of the file of a request that sends no plugin.
    pub const SETTINGS_ENDING: &'static str = "settings";
    /// Largest file of one, in bytes.
    const LARGEST: u64 = 1 << 20;

    /// Reads the file of one.
    ///
    /// # Errors
    /// If it can't be read or understood.
    pub fn load(file: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&files::read(file, Self::LARGEST)?)?)
    }
}

/// Requests something of the run in this folder. Returns the request's name.
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

/// Takes the requests that have come in, oldest first. Those that can't be read are dropped with a warning.
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
        // One that stays would be taken again.
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
