//! `rlhost train`: one flag for each key of the configuration.

use super::Failure;
use crate::config::{self, LooseKey, Overrides};
use crate::train::{self, Trainer};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Keys that are tables, reached by `--set`.
const TABLES: [&str; 2] = ["loss", "loss_limits"];

pub(super) fn command() -> Command {
    let mut command = Command::new("train")
        .about("Train a model (the default command)")
        .after_help(
            "Flags may be written with dashes or underscores. A flag that is not listed goes to the algorithm's plugin: \
             grpo takes --beta, --epsilon, --epsilon-high, --delta, --loss-type, --scale-rewards, --mask-truncated-completions.",
        )
        .arg(
            Arg::new("config")
                .long("config")
                .short('c')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("TOML file with the same keys; flags win over it"),
        )
        .arg(
            Arg::new("plugin")
                .long("plugin")
                .value_name("WASM")
                .action(ArgAction::Append)
                .help("Reward plugin: a path, or the file name of an embedded one; may be given more than once"),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("KEY=VALUE")
                .action(ArgAction::Append)
                .help("Set any key, as in --set loss.beta=0.04 or --set plugin.tldr_length_reward.config.target=30"),
        );
    for (name, description, kind) in config::keys() {
        if name == "plugin" || TABLES.contains(&name.as_str()) {
            continue;
        }
        let flag = name.replace('_', "-");
        let mut arg = Arg::new(name.clone()).long(flag.clone()).help(description).allow_hyphen_values(true);
        if flag != name {
            arg = arg.alias(name.clone());
        }
        arg = match kind {
            "boolean" => arg.value_name("BOOL").num_args(0..=1).default_missing_value("true"),
            "array" => arg.value_name("TEXT").action(ArgAction::Append),
            "integer" => arg.value_name("N"),
            "number" => arg.value_name("NUMBER"),
            _ => arg.value_name("TEXT"),
        };
        if kind != "array" {
            // Of a flag given twice the last holds.
            arg = arg.overrides_with(name.clone());
        }
        if name == "save_total_limit" {
            arg = arg.aliases(["max-ckpt-num", "max_ckpt_num"]);
        }
        command = command.arg(arg);
    }
    command
}

/// Takes flags out of `arguments` that no key of the host has: they may be the algorithm's.
pub(super) fn take_loose(arguments: &mut Vec<OsString>) -> Vec<LooseKey> {
    let command = command();
    let known = |flag: &str| {
        let plain = flag.replace('_', "-");
        let listed = command
            .get_arguments()
            .any(|a| a.get_long() == Some(&plain) || a.get_all_aliases().is_some_and(|l| l.contains(&flag)));
        listed || plain == "help"
    };
    let mut kept = Vec::with_capacity(arguments.len());
    let mut loose = Vec::new();
    let mut rest = std::mem::take(arguments).into_iter().peekable();
    while let Some(argument) = rest.next() {
        let flag = argument.to_str().and_then(|a| a.strip_prefix("--")).filter(|f| !f.is_empty());
        let Some(flag) = flag else {
            kept.push(argument);
            continue;
        };
        let (name, inline) = flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v.to_owned())));
        if known(name) {
            // Its value follows; it may look like a flag (a stop string, say).
            let takes_value = inline.is_none() && !is_switch(&command, name);
            kept.push(argument);
            if takes_value {
                kept.extend(rest.next());
            }
            continue;
        }
        let place = format!("--{name}");
        let value = inline
            .or_else(|| rest.next_if(|v| v.to_str().is_some_and(|v| !v.starts_with("--"))).and_then(|v| v.into_string().ok()));
        let value = value.map_or(toml::Value::Boolean(true), |v| config::scalar(&v));
        loose.push(LooseKey { key: name.replace('-', "_"), value, place });
    }
    *arguments = kept;
    loose
}

fn is_switch(command: &Command, flag: &str) -> bool {
    let plain = flag.replace('_', "-");
    plain == "help"
        || command.get_arguments().any(|a| a.get_long() == Some(&plain) && a.get_num_args().is_some_and(|n| n.min_values() == 0))
}

pub(super) fn run(matches: &ArgMatches, loose: Vec<LooseKey>) -> Result<(), Failure> {
    let texts = |id: &str| matches.get_many::<String>(id).unwrap_or_default().cloned().collect::<Vec<_>>();
    let mut overrides = Overrides { loose, plugins: texts("plugin"), sets: texts("set"), ..Overrides::default() };
    for (name, ..) in config::keys() {
        if name == "plugin" || TABLES.contains(&name.as_str()) {
            continue;
        }
        overrides.flags.extend(texts(&name).into_iter().map(|text| (name.clone(), text)));
    }
    let file = matches.get_one::<PathBuf>("config");
    let (config, loose) = config::read(file.map(PathBuf::as_path), &overrides).map_err(Failure::mistake)?;
    if let Some(threads) = config.num_threads {
        super::set_threads(threads).map_err(Failure::mistake)?;
    }
    let trainer = train::set_up(config, loose, None).map_err(Failure::mistake)?;
    finish(trainer)
}

/// Runs to the end and says where everything is.
pub(super) fn finish(trainer: Trainer) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first asks for a checkpoint and an end; the second ends at once.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stop.clone()).map_err(Failure::failed)?;
        signal_hook::flag::register(signal, stop.clone()).map_err(Failure::failed)?;
    }
    let finished = trainer.run(&stop).map_err(Failure::failed)?;
    if finished.stopped {
        println!("stopped after {} steps; go on with: rlhost resume {}", finished.steps, finished.folder.display());
        return Err(Failure::Stopped);
    }
    println!("done: {} steps", finished.steps);
    println!("checkpoint: {}", finished.checkpoint.display());
    println!("metrics:    {}", finished.folder.join("metrics.jsonl").display());
    Ok(())
}
