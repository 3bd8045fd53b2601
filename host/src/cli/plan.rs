//! `rlhost plan`: estimates the memory that each process of a run takes and the data that it sends, without loading anything.

use super::algorithm::EarlyConfig;
use super::columns::aligned;
use super::config_sources::ConfigSources;
use super::failure::CommandFailure;
use super::flags;
use crate::config::{RunConfig, ZeroStage};
use crate::dist::World;
use crate::hub;
use crate::model::{self, ModelFolder};
use crate::train::{self, Requirements, StartMode, requirements};
use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::{Path, PathBuf};

/// Bytes of a (decimal) gigabyte.
const GB: f64 = 1e9;

/// What the command does, for the list of commands.
pub(super) const ABOUT: &str = "Show what a run would take of each process's memory";

/// Returns the command with `train`'s flags and its own.
pub(super) fn command() -> Command {
    flags::command("plan")
        .about(ABOUT)
        .after_long_help(
            "Computes what each process of `rlhost train` with the same flags will hold: weights, gradients, moments, a critic, a \
             reference model, what layers keep, what a generation holds, and copies for checkpoints; and what it receives from others \
             in a step. Reads the model's config.json and nothing else of it, so that the model need not fit, nor its weights be there. \
             Without --zero-stage, all stages are shown.",
        )
        .arg(
            Arg::new("model-config")
                .long("model-config")
                .alias("model_config")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("model")
                .help("A config.json with the sizes of the model"),
        )
        .arg(
            Arg::new("ranks")
                .long("ranks")
                .value_name("N")
                .default_value("1")
                .value_parser(value_parser!(u32).range(1..=65536))
                .help("Number of processes"),
        )
        .arg(
            Arg::new("memory")
                .long("memory")
                .value_name("GB")
                .value_parser(value_parser!(f64))
                .help("Memory of each process, in gigabytes: says whether the run fits"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the result as one line of JSON"))
}

pub(super) fn run(matches: &ArgMatches, known: &EarlyConfig) -> Result<(), CommandFailure> {
    let given = ConfigSources::from_matches(matches, &[], known)?.without_ports();
    let config = given.resolve(&StartMode::New, &World::single_process())?;
    let ranks = matches.get_one::<u32>("ranks").copied().unwrap_or(1) as usize;
    let memory = matches.get_one::<f64>("memory").copied();
    if memory.is_some_and(|gigabytes| !(gigabytes > 0.0 && gigabytes.is_finite())) {
        return Err(CommandFailure::mistake(anyhow!("--memory must be a number of gigabytes above 0")));
    }
    let (_place, folder) = model(matches, &config)?;
    let folder = ModelFolder::open(&folder).map_err(|error| in_file(error, matches, &folder))?;
    let tokens = tokens(&config);
    let of = |stage: u8| {
        let config = RunConfig { zero_stage: stage, ..config.clone() };
        let planned =
            requirements(&config, &folder, ranks, config.bf16 == Some(true), tokens).map_err(CommandFailure::from_error)?;
        Ok::<_, CommandFailure>((stage, planned))
    };
    let is_chosen = config.named.contains("zero_stage") || ranks == 1;
    let stages = if is_chosen { config.zero_stage..=config.zero_stage } else { 0..=ZeroStage::LAST };
    let all = stages.map(of).collect::<Result<Vec<_>, CommandFailure>>()?;
    if matches.get_flag("json") {
        let line = match &all[..] {
            [(_, one)] => serde_json::to_string(one),
            several => serde_json::to_string(&several.iter().map(|(_, planned)| planned).collect::<Vec<_>>()),
        };
        say!("{}", line.map_err(|e| CommandFailure::failed(anyhow!(e)))?);
        return Ok(());
    }
    print(&all, (ranks, tokens), memory);
    Ok(())
}

/// Returns an error about the model's config.json that names the user's file, not its temporary copy.
fn in_file(error: model::Error, matches: &ArgMatches, folder: &Path) -> CommandFailure {
    let Some(given) = matches.get_one::<PathBuf>("model-config") else { return CommandFailure::from_error(error) };
    let copy = folder.join("config.json").display().to_string();
    CommandFailure::mistake(anyhow!("{}", error.to_string().replace(&copy, &given.display().to_string())))
}

/// Returns the folder of the model's config.json, and its temporary folder, if any, which must outlive its use.
fn model(matches: &ArgMatches, config: &RunConfig) -> Result<(Option<tempfile::TempDir>, PathBuf), CommandFailure> {
    if let Some(file) = matches.get_one::<PathBuf>("model-config") {
        let place = tempfile::tempdir().map_err(CommandFailure::from_error)?;
        let text = crate::config::files::read(file, crate::config::LARGEST);
        let text = text.map_err(|e| CommandFailure::mistake(anyhow!("{}: {e}", file.display())))?;
        std::fs::write(place.path().join("config.json"), text).map_err(CommandFailure::from_error)?;
        let folder = place.path().to_owned();
        return Ok((Some(place), folder));
    }
    if let Some(named) = config.model.as_deref().filter(|named| hub::looks_like_name(named)) {
        return Ok((None, hub::model_config(named).map_err(CommandFailure::from_error)?.folder));
    }
    if let Some(named) = &config.model {
        return Ok((None, train::model_of(named).map_err(CommandFailure::from_error)?.0));
    }
    let place = tempfile::tempdir().map_err(CommandFailure::from_error)?;
    model::builtin::write(place.path()).map_err(CommandFailure::from_error)?;
    let folder = place.path().to_owned();
    Ok((Some(place), folder))
}

/// Returns the maximum number of tokens of a text: a prompt and a completion, or a dataset's text.
fn tokens(config: &RunConfig) -> usize {
    match config.max_length {
        Some(length) if config.max_prompt_length.is_none() => length,
        _ => config.max_prompt_length.unwrap_or(config.max_completion_length) + config.max_completion_length,
    }
}

fn print(all: &[(u8, Requirements)], (ranks, tokens): (usize, usize), memory: Option<f64>) {
    let gigabytes = |bytes: f64| format!("{:.2}", bytes / GB);
    let Some((_, first)) = all.first() else { return };
    let (parameters, trained) = (first.parameters / 1e6, first.trained / 1e6);
    say!(
        "{parameters:.1}M parameters, {trained:.1}M trained; {ranks} processes; texts of {tokens} tokens; GB of the process that holds most"
    );
    type Part = (&'static str, fn(&Requirements) -> f64);
    let parts: [Part; 9] = [
        ("weights", |r| r.weights),
        ("gradients", |r| r.gradients),
        ("moments", |r| r.moments),
        ("critic", |r| r.critic),
        ("reference", |r| r.reference),
        ("program", |r| r.program),
        ("training adds", |r| r.activations),
        ("generating adds", |r| r.generation),
        ("saving adds", |r| r.checkpoint),
    ];
    let row = |name: &str, of: &dyn Fn(&Requirements) -> String| {
        std::iter::once(name.to_owned()).chain(all.iter().map(|(_, planned)| of(planned))).collect::<Vec<_>>()
    };
    let stages = std::iter::once("zero_stage".to_owned()).chain(all.iter().map(|(stage, _)| stage.to_string())).collect();
    let mut rows = vec![stages];
    let is_used = |part: &Part| all.iter().any(|(_, planned)| part.1(planned) > 0.0);
    rows.extend(parts.iter().filter(|part| is_used(part)).map(|(name, of)| row(name, &|planned| gigabytes(of(planned)))));
    rows.push(row("at most", &|planned| gigabytes(planned.peak)));
    if ranks > 1 {
        rows.push(row("received a step", &|planned| gigabytes(planned.received)));
    }
    if let Some(memory) = memory {
        let fits = |planned: &Requirements| if planned.peak <= memory * GB { "yes" } else { "no" }.to_owned();
        rows.push(row(&format!("fits into {memory} GB"), &fits));
    }
    aligned(&rows).iter().for_each(|line| say!("{line}"));
}
