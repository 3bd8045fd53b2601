//! `rlhost eval`: computes the metrics of training without training.

use super::algorithm::Known;
use super::given::Given;
use super::made::Unfinished;
use super::{Failure, flags};
use crate::dist::World;
use crate::train::{Beginning, Origin, set_up};
use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::rc::Rc;

/// Returns the command with `train`'s flags, plus an optional run to take the model and settings from.
pub(super) fn command() -> Command {
    flags::command("eval")
        .about("Evaluate a model or a run's checkpoint on a dataset")
        .after_long_help(
            "Prints the metrics of training, prefixed with eval_. With RUN, evaluates the run's newest intact checkpoint with the \
             run's configuration, on --eval-dataset or otherwise on the run's own dataset. Without RUN, evaluates --model; it \
             takes the flags of `rlhost train`.",
        )
        .arg(
            Arg::new("run")
                .value_name("RUN")
                .value_parser(value_parser!(PathBuf))
                .help("Folder of a run or of one of its checkpoints"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the result as one line of JSON"))
}

pub(super) fn run(matches: &ArgMatches, known: &Known) -> Result<(), Failure> {
    super::on_this_rank(|world| evaluate(matches, known, world))
}

fn evaluate(matches: &ArgMatches, known: &Known, world: &Rc<World>) -> Result<(), Failure> {
    // Nothing of an evaluation is kept.
    let temporary = tempfile::tempdir().map_err(Failure::of)?;
    let _unfinished =
        Unfinished::new(temporary.path(), "stopped before the evaluation was complete".into()).map_err(Failure::of)?;
    let folder = temporary.path().join("evaluation").display().to_string();
    let mut given = Given::of(matches, &[], known)?.without_ports();
    given.overrides.force("output_dir", &folder);
    given.overrides.force("hot_reload", "false");
    let beginning = match matches.get_one::<PathBuf>("run") {
        None => Beginning::New,
        Some(path) => {
            let origin = Origin::find(path).map_err(Failure::of)?;
            let fresh = given.named_plugins();
            Beginning::Fork { origin, fresh }
        }
    };
    let config = given.resolve(&beginning, world)?;
    let trainer = set_up(config, &beginning, world.clone()).map_err(Failure::of)?;
    let figures = trainer.evaluate_only().map_err(Failure::of)?;
    if !world.is_first() {
        return Ok(());
    }
    if matches.get_flag("json") {
        let line: Map<String, Value> = figures.into_iter().map(|(name, value)| (name, value.into())).collect();
        say!("{}", serde_json::to_string(&line).map_err(|e| Failure::failed(anyhow!(e)))?);
        return Ok(());
    }
    let width = figures.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in &figures {
        let error = figures.get(&format!("{}/stderr", name.strip_suffix("/mean").unwrap_or(name)));
        let interval = error.map_or_else(String::new, |error| format!("  \u{b1} {:.6} (95%)", 1.96 * error));
        say!("{name:width$}  {value:.6}{interval}");
    }
    Ok(())
}
