//! The algorithm that a command line asks for. Its settings become flags before the command line is parsed.

use super::Failure;
use super::flags::understood;
use super::given::{Given, texts};
use super::train::is_latest;
use crate::checkpoint;
use crate::config::{ConfigFile, Limits};
use crate::plugin::{Engine, Setting, Source, settings_of};
use crate::train::{Beginning, Origin};
use clap::{ArgMatches, Command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What must be known before the arguments are parsed.
#[derive(Default)]
pub(super) struct Known {
    /// The settings of the algorithm.
    pub settings: Vec<Setting>,
    /// The configuration file; it may be a pipe, which can be read only once.
    pub file: Option<ConfigFile>,
}

/// Finds the settings of the algorithm that the arguments of a `command` ask for, which sets some keys `first`. Loads the
/// algorithm only if the arguments ask for help, or have flags or keys that the command does not know.
///
/// # Errors
/// If the algorithm can't be loaded.
pub(super) fn known_of(command: &Command, first: &[(&str, &str)], arguments: &[OsString]) -> Result<Known, Failure> {
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let helps = arguments.iter().any(|argument| argument == "--help" || argument == "-h");
    let (known, others) = understood(command, &arguments);
    // What is wrong here is reported when the arguments are parsed with all flags.
    let Ok(matches) = command.clone().no_binary_name(true).try_get_matches_from(known) else { return Ok(Known::default()) };
    let Ok(given) = Given::of(&matches, first, &Known::default()) else { return Ok(Known::default()) };
    let in_file = given.file.as_ref().is_some_and(|file| file.unknown_keys().is_ok_and(|keys| !keys.is_empty()));
    let settings = match helps || in_file || !others.is_empty() {
        true => of_given(&given, &matches),
        false => Ok(Vec::new()),
    };
    // Help must not fail for another mistake.
    let settings = if helps { settings.unwrap_or_default() } else { settings? };
    Ok(Known { settings, file: given.file })
}

/// Returns the settings of an embedded algorithm.
pub(super) fn settings_of_embedded(name: &str) -> Result<Vec<Setting>, Failure> {
    let source = Source::open(name).map_err(Failure::failed)?;
    let engine = Engine::new().map_err(Failure::failed)?;
    settings_of(&engine, &source, &Limits::default()).map_err(Failure::failed)
}

fn of_given(given: &Given, matches: &ArgMatches) -> Result<Vec<Setting>, Failure> {
    let beginning = match started_from(given, matches) {
        Some(origin) => Beginning::Fork { origin, fresh: given.named_plugins() },
        None => Beginning::New,
    };
    let base = beginning.origin().map(Origin::config_file);
    let config = given.config(base.as_deref(), None)?;
    let source = beginning.plugin(&config.algorithm).map_err(Failure::mistake)?;
    let engine = Engine::new().map_err(Failure::failed)?;
    settings_of(&engine, &source, &config.loss_limits).map_err(Failure::mistake)
}

/// Returns the checkpoint that the run starts from, without verifying it: only its algorithm is of interest.
fn started_from(given: &Given, matches: &ArgMatches) -> Option<Origin> {
    let run = matches.try_get_one::<PathBuf>("run").ok().flatten().cloned();
    let from = texts(matches, "resume_from_checkpoint");
    let latest = || given.output_dir().ok().flatten().filter(|_| !from.is_empty());
    let path = run.or_else(|| from.iter().rfind(|path| !is_latest(path)).cloned().or_else(latest).map(PathBuf::from))?;
    if checkpoint::is_checkpoint(&path) {
        let run = path.parent().unwrap_or(Path::new(".")).to_owned();
        return Some(Origin { run, checkpoint: path, step: 0 });
    }
    let step = checkpoint::steps(&path).ok()?.into_iter().max()?;
    Some(Origin { checkpoint: checkpoint::folder(&path, step), run: path, step })
}
