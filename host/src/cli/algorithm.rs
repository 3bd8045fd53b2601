//! Loads the algorithm that a command line selects, so that its settings become flags before the command line is parsed.

use super::failure::CommandFailure;
use super::flags::is_latest;
use super::flags::{ScannedArguments, scan};
use super::grant_args;
use crate::config::{BootstrapConfig, ConfigFile, DEFAULT_ALGORITHM, KeyAssignment, Overrides, PluginLimits};
use crate::plugin::{PluginEngine, PluginSource, Setting, settings_of};
use crate::run::{RunFiles, is_checkpoint};
use crate::train::{CheckpointOrigin, StartMode};
use clap::Command;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Configuration that is needed before the arguments are parsed.
#[derive(Default)]
pub(super) struct EarlyConfig {
    /// The settings of the algorithm.
    pub settings: Vec<Setting>,
    /// The configuration file; it may be a pipe, which can be read only once.
    pub file: Option<ConfigFile>,
}

/// Returns the settings of the algorithm selected by the arguments of a `command` that sets some keys `first`. Loads the algorithm only if
/// the arguments ask for help, or have flags or keys that the command does not know.
///
/// # Errors
/// If the algorithm can't be loaded.
pub(super) fn early_config(
    command: &Command,
    first: &[(&str, &str)],
    arguments: &[OsString],
) -> Result<EarlyConfig, CommandFailure> {
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let helps = arguments.iter().any(|argument| argument == "--help" || argument == "-h");
    let scanned = scan(command, &arguments);
    let named = scanned.values("config").pop().filter(|_| !helps);
    let file =
        named.map(|path| ConfigFile::read_file_or_pipe(Path::new(&path))).transpose().map_err(CommandFailure::from_error)?;
    let in_file = file.as_ref().is_some_and(|file| file.unknown_keys().is_ok_and(|keys| !keys.is_empty()));
    let in_sets = sets_of(&scanned).iter().any(|set| set.key().is_none());
    let settings = match helps || in_file || in_sets || scanned.has_others {
        true => of_scanned(&scanned, first, file.as_ref()),
        false => Ok(Vec::new()),
    };
    // Help must work even if the algorithm can't be loaded.
    let settings = if helps { settings.unwrap_or_default() } else { settings? };
    Ok(EarlyConfig { settings, file })
}

/// Returns the settings of a built-in algorithm.
pub(super) fn settings_of_embedded(name: &str) -> Result<Vec<Setting>, CommandFailure> {
    let source = PluginSource::open(name).map_err(CommandFailure::from_error)?;
    let engine = PluginEngine::new().map_err(CommandFailure::from_error)?;
    settings_of(&engine, &source, &PluginLimits::default()).map_err(CommandFailure::from_error)
}

/// Returns the `--set` arguments that can be parsed; mistakes in others are reported when the whole command line is parsed.
fn sets_of(scanned: &ScannedArguments) -> Vec<KeyAssignment> {
    scanned.values("set").iter().flat_map(|set| KeyAssignment::parse(set)).collect()
}

fn of_scanned(
    scanned: &ScannedArguments,
    first: &[(&str, &str)],
    file: Option<&ConfigFile>,
) -> Result<Vec<Setting>, CommandFailure> {
    let last = |key: &str| scanned.values(key).pop().map(|value| (key.to_owned(), value));
    let first = first.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let flags: Vec<(String, String)> =
        first.chain(["algorithm", "num_threads", "output_dir"].into_iter().filter_map(last)).collect();
    let overrides = Overrides { flags, sets: sets_of(scanned), ..Overrides::default() };
    let fresh = overrides.value_of("algorithm").into_iter().collect();
    let beginning = match started_from(scanned, &overrides, file) {
        Some(origin) => StartMode::Fork { origin, fresh },
        None => StartMode::New,
    };
    let base = beginning
        .origin()
        .map(|origin| ConfigFile::read(&origin.config_file()))
        .transpose()
        .map_err(CommandFailure::from_error)?;
    let asked = BootstrapConfig::from_layers(base.iter().chain(file), &overrides).map_err(CommandFailure::from_error)?;
    super::threads::set_configured_threads(&asked)?;
    let source =
        beginning.algorithm(asked.algorithm.as_deref().unwrap_or(DEFAULT_ALGORITHM)).map_err(CommandFailure::from_error)?;
    let engine = PluginEngine::new().map_err(CommandFailure::from_error)?;
    // The run's grants are not known yet.
    let accepts = scanned.flags.iter().any(|(id, _)| id == "accept_grants");
    let limits = match beginning.origin().filter(|_| !accepts) {
        Some(origin) => grant_args::granted_limits(asked.loss_limits, &origin.run),
        None => asked.loss_limits,
    };
    settings_of(&engine, &source, &limits).map_err(CommandFailure::from_error)
}

/// Returns the checkpoint that the run starts from, without verifying it, because only its algorithm is needed.
fn started_from(scanned: &ScannedArguments, overrides: &Overrides, file: Option<&ConfigFile>) -> Option<CheckpointOrigin> {
    let from = scanned.values("resume_from_checkpoint");
    let resumes = scanned.flags.iter().any(|(id, _)| id == "resume_from_checkpoint");
    let in_file = || file.and_then(|file| file.text_of("output_dir").ok().flatten());
    let latest = || overrides.value_of("output_dir").or_else(in_file).filter(|_| resumes);
    let path = from.into_iter().rfind(|path| !is_latest(path)).or_else(latest);
    // The only positional of `eval` is a run.
    let path = path.or_else(|| scanned.positionals.iter().rfind(|path| Path::new(path).is_dir()).cloned()).map(PathBuf::from)?;
    if is_checkpoint(&path) {
        let run = path.parent().unwrap_or(Path::new(".")).to_owned();
        return Some(CheckpointOrigin { run, checkpoint: path, step: 0 });
    }
    let step = RunFiles(&path).steps().ok()?.into_iter().max()?;
    Some(CheckpointOrigin { checkpoint: RunFiles(&path).checkpoint(step), run: path, step })
}
