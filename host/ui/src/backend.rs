//! Interface through which the page uses the rest of the program.

use crate::run::{PluginVersion, RunAction};
use serde_json::{Map, Value};
use std::path::Path;

/// Backend that loads plugins and acts on runs. Errors are messages for the user.
pub trait PageBackend: Send + Sync + 'static {
    /// Reads a plugin file: a component or a script. Returns the bytes that a run stores.
    ///
    /// # Errors
    /// If the file is neither.
    fn plugin(&self, file: &Path) -> Result<Vec<u8>, String>;

    /// Returns the source of a script in a plugin's bytes; `None` for compiled code.
    fn source(&self, bytes: &[u8]) -> Option<String>;

    /// Returns the settings of a plugin as fields of a form, in JSON.
    ///
    /// # Errors
    /// If the plugin can't be loaded.
    fn form(&self, plugin: &Path) -> Result<Value, String>;

    /// Sends a plugin's bytes to a running run, to replace the plugin of this name. The new plugin gets these settings or, if none are
    /// given, those that the user gave the plugin before. Returns the request's name, which the event with the outcome carries.
    ///
    /// # Errors
    /// If the run is not running, or has no such plugin.
    fn swap(&self, run: &Path, name: &str, bytes: &[u8], settings: Option<&Map<String, Value>>) -> Result<String, String>;

    /// Sends changed settings of the plugin of this name to a running run. Returns the request's name, which the events with the outcome
    /// carry.
    ///
    /// # Errors
    /// If the run is not running, or has no such plugin.
    fn configure(&self, run: &Path, name: &str, changes: &PluginChanges) -> Result<String, String>;

    /// Sends a control request to a running run. Returns the request's name, which the event with the outcome carries.
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

/// Changes to a plugin's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginChanges {
    /// New settings, which replace all earlier ones; missing ones get their defaults. `None` to leave them unchanged.
    pub settings: Option<Map<String, Value>>,
    /// New weight of the plugin's scores; `None` to leave it unchanged.
    pub weight: Option<f64>,
}

/// Request to score recorded completions with another reward.
pub struct RescoringRequest<'a> {
    /// Folder of the run.
    pub run: &'a Path,
    /// File of the plugin to try.
    pub plugin: &'a Path,
    /// Name of the reward in the run that the plugin would replace.
    pub reward: &'a str,
    /// File of the run's current version, if it is stored: a swap takes over its settings that differ from the defaults.
    pub current: Option<&'a Path>,
    /// Settings that differ from the run's.
    pub settings: &'a Map<String, Value>,
    /// Offset of the first completion's line in the file.
    pub from: u64,
}

/// A completion with both scores.
#[derive(Clone, Debug)]
pub struct RescoredCompletion {
    /// Step that first learned from the completion.
    pub step: u64,
    /// Row of the dataset.
    pub row: usize,
    /// Text of the prompt.
    pub prompt: String,
    /// Text of the completion.
    pub completion: String,
    /// Version of the reward that scored the completion.
    pub version: PluginVersion,
    /// Recorded score.
    pub old: Option<f32>,
    /// Score by the plugin that is tried.
    pub new: Option<f32>,
}
