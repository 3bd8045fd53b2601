//! `rlhost eval`: computes the metrics of training without training.

use super::algorithm::EarlyConfig;
use super::columns::aligned;
use super::config_sources::ConfigSources;
use super::failure::CommandFailure;
use super::flags;
use super::unfinished_output::UnfinishedOutput;
use crate::config::words::{counted, number};
use crate::config::{RunConfig, printable_path};
use crate::dist::World;
use crate::train::{CheckpointOrigin, Purpose, StartMode, set_up_for};
use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Metrics that say how good a model is, without `eval_`. `*` stands for the name of a reward or a number.
const KEY: [&str; 14] = [
    "reward",
    "rewards/*/mean",
    "pass@*",
    "maj@*",
    "objective/scores",
    "rewards/accuracies",
    "rewards/margins",
    "mean_token_accuracy",
    "loss",
    "kl",
    "objective/kl",
    "completions/mean_length",
    "completions/clipped_ratio",
    "plugins/*/errors",
];

/// What the command does, for the list of commands.
pub(super) const ABOUT: &str = "Evaluate a model or a run's checkpoint on a dataset";

/// Returns the command with `train`'s flags, plus an optional run to take the model and settings from.
pub(super) fn command() -> Command {
    flags::command("eval")
        .about(ABOUT)
        .after_long_help(
            "An evaluation generates completions of each prompt, or reads the given ones, scores them as a run does, and trains nothing. \
             Prints the metrics that say how good the model is, prefixed with eval_, with the standard error as a 95% interval; --all \
             prints all metrics of training. With RUN, evaluates the run's newest intact checkpoint with the \
             run's configuration, on --eval-dataset or otherwise on the run's own dataset. Without RUN, evaluates --model; it \
             takes the flags of `rlhost train`.",
        )
        .arg(
            Arg::new("run")
                .value_name("RUN")
                .value_parser(value_parser!(PathBuf))
                .help("Folder of a run or of one of its checkpoints"),
        )
        .arg(
            Arg::new("all").long("all").action(ArgAction::SetTrue).help("Print all metrics, not only those that say how good the model is"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the result as one line of JSON"))
}

pub(super) fn run(matches: &ArgMatches, known: &EarlyConfig) -> Result<(), CommandFailure> {
    super::rank::on_this_rank(|world| evaluate(matches, known, world))
}

fn evaluate(matches: &ArgMatches, known: &EarlyConfig, world: &Rc<World>) -> Result<(), CommandFailure> {
    // An evaluation leaves no files behind.
    let temporary = tempfile::tempdir().map_err(CommandFailure::from_error)?;
    let _unfinished = UnfinishedOutput::new(temporary.path(), "stopped before the evaluation was complete".into())
        .map_err(CommandFailure::from_error)?;
    let folder = temporary.path().join("evaluation").display().to_string();
    let mut given = ConfigSources::from_matches(matches, &[], known)?.without_ports();
    given.overrides.force("output_dir", &folder);
    given.overrides.force("hot_reload", "false");
    let beginning = match matches.get_one::<PathBuf>("run") {
        None => StartMode::New,
        Some(path) => {
            let origin = CheckpointOrigin::find(path).map_err(CommandFailure::from_error)?;
            let fresh = given.named_plugins();
            StartMode::Fork { origin, fresh }
        }
    };
    let config = given.resolve(&beginning, world)?;
    if world.is_first() {
        introduce(&config, &beginning);
    }
    let trainer = set_up_for(config, &beginning, world.clone(), Purpose::Evaluation).map_err(CommandFailure::from_error)?;
    let figures = trainer.evaluate_only().map_err(CommandFailure::from_error)?;
    if !world.is_first() {
        return Ok(());
    }
    if matches.get_flag("json") {
        let line: Map<String, Value> = figures.into_iter().map(|(name, value)| (name, value.into())).collect();
        say!("{}", serde_json::to_string(&line).map_err(|e| CommandFailure::failed(anyhow!(e)))?);
        return Ok(());
    }
    let shown = if matches.get_flag("all") { figures.keys().map(String::as_str).collect() } else { key_figures(&figures) };
    let row = |name: &&str| vec![(*name).to_owned(), number(figures[*name]), interval(&figures, name)];
    aligned(&shown.iter().map(row).collect::<Vec<_>>()).iter().for_each(|line| say!("{line}"));
    if let more @ 1.. = figures.len() - shown.len() {
        tracing::info!("{}: --all prints them, --json gives all on one line", counted(more as u64, "more metric"));
    }
    Ok(())
}

/// Logs what is evaluated.
fn introduce(config: &RunConfig, beginning: &StartMode) {
    let name = |path: &str| printable_path(Path::new(path));
    let model = config.model.as_deref().map_or_else(|| "the built-in model".to_owned(), name);
    let model = beginning.origin().map_or(model, |origin| printable_path(&origin.checkpoint));
    let dataset = config.eval_dataset.as_deref().or(config.dataset.as_deref()).map(|given| format!(" on {}", name(given)));
    tracing::info!("rlhost {}: evaluation of {model}{}", env!("CARGO_PKG_VERSION"), dataset.unwrap_or_default());
}

/// Returns the metrics that say how good a model is. The loss is one of them only if the model learns from given texts and is not scored.
fn key_figures(figures: &BTreeMap<String, f64>) -> Vec<&str> {
    let is_scored = figures.contains_key("eval_reward");
    let is_meant = |name: &str, pattern: &str| match pattern.split_once('*') {
        None => name == pattern,
        Some((start, end)) => name.len() > start.len() + end.len() && name.starts_with(start) && name.ends_with(end),
    };
    let of = |pattern: &str| {
        let names = figures.iter().map(|(name, value)| (name.as_str(), *value));
        let plain = |name: &str| name.strip_prefix("eval_").is_some_and(|name| is_meant(name, pattern));
        // Names of a plugin's own metrics have one more part.
        let own = |name: &str| pattern == "rewards/*/mean" && name.matches('/').count() > 2;
        let is_shown = move |(name, value): &(&str, f64)| {
            plain(name) && !own(name) && !name.ends_with("/stderr") && (*value != 0.0 || !pattern.ends_with("/errors"))
        };
        names.filter(is_shown).map(|(name, _)| name).collect::<Vec<_>>()
    };
    let wanted = KEY.iter().filter(|pattern| !(is_scored && **pattern == "loss"));
    wanted.flat_map(|pattern| of(pattern)).collect()
}

/// Returns the 95% interval of a mean whose standard error is known.
fn interval(figures: &BTreeMap<String, f64>, name: &str) -> String {
    let error = figures.get(&format!("{}/stderr", name.strip_suffix("/mean").unwrap_or(name)));
    error.map_or_else(String::new, |error| format!("\u{b1} {} (95%)", number(1.96 * error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(names: &[(&str, f64)]) -> BTreeMap<String, f64> {
        names.iter().map(|(name, value)| (format!("eval_{name}"), *value)).collect()
    }

    #[test]
    fn of_a_scored_model_scores_are_shown_and_of_another_its_loss() {
        let scored = figures(&[
            ("reward", 1.0),
            ("rewards/a/mean", 1.0),
            ("rewards/a/stderr", 0.1),
            ("rewards/a/parsed/mean", 1.0),
            ("pass@2", 0.5),
            ("pass@2/stderr", 0.1),
            ("loss", 0.001),
            ("clip_ratio/low_mean", 0.0),
            ("plugins/a/errors", 0.0),
            ("plugins/b/errors", 0.25),
            ("completions/mean_length", 9.0),
            ("runtime", 2.0),
        ]);
        let expected = ["reward", "rewards/a/mean", "pass@2", "completions/mean_length", "plugins/b/errors"];
        assert_eq!(key_figures(&scored), expected.map(|name| format!("eval_{name}")));
        assert_eq!(interval(&scored, "eval_rewards/a/mean"), "\u{b1} 0.196 (95%)");
        let given = figures(&[("loss", 2.0), ("mean_token_accuracy", 0.5), ("runtime", 1.0)]);
        assert_eq!(key_figures(&given), ["eval_mean_token_accuracy", "eval_loss"]);
    }
}
