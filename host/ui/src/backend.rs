//! What the page needs of the rest of the program.

use crate::run::{PluginVersion, RunAction};
use serde_json::{Map, Value};
use std::path::Path;

/// What reads plugins and acts on runs. Errors are messages for the user.
pub trait PageBackend: Send + Sync + 'static {
    /// Reads a file as a plugin: a component, or a script. Returns its bytes as a run keeps them.
    ///
    /// # Errors
    /// If it is neither.
    fn plugin(&self, file: &Path) -> Result<Vec<u8>, String>;

    /// Returns the source of a script in a plugin's bytes; none if they are compiled code.
    fn source(&self, bytes: &[u8]) -> Option<String>;

    /// Returns the settings of a plugin as fields of a form, in JSON.
    ///
    /// # Errors
    /// If it can't be loaded.
    fn form(&self, plugin: &Path) -> Result<Value, String>;

    /// Sends a plugin's bytes to a running run, to replace the plugin of this name. It gets these settings; without any, those that the
    /// user gave the plugin before. Returns the request's name, which the event that answers it has.
    ///
    /// # Errors
    /// If the run is not running, or has no such plugin.
    fn swap(&self, run: &Path, name: &str, bytes: &[u8], settings: Option<&Map<String, Value>>) -> Result<String, String>;

    /// Sends other settings for the plugin of this name to a running run. Returns the request's name, which the events that answer it
    /// have.
    ///
    /// # Errors
    /// If the run is not running, or has no such plugin.
    fn configure(&self, run: &Path, name: &str, changes: &PluginChanges) -> Result<String, String>;

    /// Requests something of a running run. Returns the request's name, which the event that answers it has.
    ///
    /// # Errors
    /// If the run is not running.
    fn request(&self, run: &Path, action: RunAction) -> Result<String, String>;

    /// Scores recorded completions with another reward.
    ///
    /// # Errors
    /// If the plugin can't be loaded or fails, or the completions can't be read.
    fn rescore(&self, question: &RescoringRequest<'_>) -> Result<Vec<RescoredCompletion>, String>;
}

/// Other settings of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginChanges {
    /// All of its settings, if they change; one that is missing has its default.
    pub settings: Option<Map<String, Value>>,
    /// The weight of its scores, if that changes.
    pub weight: Option<f64>,
}

/// What would another reward have said?
pub struct RescoringRequest<'a> {
    /// The run's folder.
    pub run: &'a Path,
    /// The file of the plugin that is tried.
    pub plugin: &'a Path,
    /// The reward of the run that it would replace.
    pub reward: &'a str,
    /// The file of the version that the run has now, if it is kept: a swap takes over the settings that are not its defaults.
    pub current: Option<&'a Path>,
    /// Settings that differ from the run's.
    pub settings: &'a Map<String, Value>,
    /// Where the first completion's line begins in the file.
    pub from: u64,
}

/// A completion with both scores.
#[derive(Clone, Debug)]
pub struct RescoredCompletion {
    /// The step that learned from it first.
    pub step: u64,
    /// The row of the dataset.
    pub row: usize,
    /// Text of the prompt.
    pub prompt: String,
    /// Its text.
    pub completion: String,
    /// The version of the reward that scored it.
    pub version: PluginVersion,
    /// Its score.
    pub old: Option<f32>,
    /// The score of the plugin that is tried.
    pub new: Option<f32>,
}
