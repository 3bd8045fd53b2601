//! The flags of the commands that train, evaluate and measure: one for each key of the configuration and each setting of the
//! algorithm.

use crate::config::{self, Key, Treatment};
use crate::plugin::{Setting, Takes};
use clap::{Arg, ArgAction, Command, value_parser};
use std::path::PathBuf;

/// Keys that are tables, reached by `--set`.
pub(super) const TABLES: [&str; 3] = ["loss", "loss_limits", "plugin"];

/// Heading of the algorithm's settings in `--help`.
const SETTINGS: &str = "Settings of the algorithm";

/// Builds a command with a flag for each key.
pub(super) fn command(name: &'static str) -> Command {
    let command = Command::new(name).args(own_flags());
    let keys = config::keys().iter().filter(|key| !TABLES.contains(&key.name.as_str()));
    // Understood in scripts and files that were written for TRL, but nothing that a new user should read about.
    let foreign = config::foreign_options().map(|option| {
        let arg = spelled(Arg::new(option.name), option.name).hide(true).help(option.why);
        match option.treatment {
            Treatment::RewardWeights => arg.num_args(1..),
            _ => arg.num_args(0..=1).default_missing_value("true").overrides_with(option.name),
        }
    });
    command.args(keys.map(flag)).args(foreign)
}

/// The flags that are no keys.
fn own_flags() -> [Arg; 5] {
    let resume = "Resume from this checkpoint, or from the newest checkpoint of a run's folder. `latest`, or no value, resumes the \
                  run in --output-dir and starts it if it has no checkpoint. With another --output-dir, start a new run from that \
                  state";
    let set = "Set any key, over files and flags, as in --set loss.beta=0.04 or --set plugin.tldr_length_reward.config.target=30";
    [
        Arg::new("config")
            .long("config")
            .short('c')
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Configuration file with the same keys, in TOML or YAML; flags override it"),
        Arg::new("plugin")
            .long("plugin")
            .value_name("WASM")
            .action(ArgAction::Append)
            .num_args(1..)
            .help("Reward plugins: paths, or file names of embedded plugins; may be repeated"),
        Arg::new("set").long("set").value_name("KEY=VALUE").action(ArgAction::Append).num_args(1..).help(set),
        Arg::new("resume_from_checkpoint")
            .long("resume-from-checkpoint")
            .aliases(["resume_from_checkpoint", "load_checkpoint", "load-checkpoint", "ckpt_path", "ckpt-path"])
            .value_name("PATH")
            .num_args(0..=1)
            .default_missing_value("latest")
            .action(ArgAction::Append)
            .help(resume),
        Arg::new("allow_changed")
            .long("allow-changed")
            .alias("allow_changed")
            .action(ArgAction::SetTrue)
            .help("Allow settings that change results when resuming"),
    ]
}

/// Spells a flag with dashes, and accepts underscores.
fn spelled(arg: Arg, name: &str) -> Arg {
    let dashed = name.replace('_', "-");
    if dashed == name { arg.long(dashed) } else { arg.long(dashed).alias(name.to_owned()) }
}

/// The flag of a key.
fn flag(key: &Key) -> Arg {
    let Key { name, help, kind, aliases, bare, .. } = key;
    let mut arg = spelled(Arg::new(name), name).help(help).allow_hyphen_values(true);
    arg = match *kind {
        // A switch's value may be left out, so that what follows it must not be taken for one.
        "boolean" => arg.value_name("BOOL").num_args(0..=1).default_missing_value("true").allow_hyphen_values(false),
        // As TRL takes lists: all values after one flag. One that begins with a dash is given as --stop=-x.
        "array" => arg.value_name("TEXT").num_args(1..).action(ArgAction::Append).allow_hyphen_values(false),
        "integer" => arg.value_name("N"),
        "number" => arg.value_name("NUMBER"),
        _ => arg.value_name("TEXT"),
    };
    if let Some(bare) = bare {
        arg = arg.num_args(0..=1).default_missing_value(bare).allow_hyphen_values(false);
    }
    if *kind != "array" {
        // The last of several wins.
        arg = arg.overrides_with(name);
    }
    arg.aliases(aliases.iter().flat_map(|alias| [alias.replace('_', "-"), alias.clone()]))
}

/// Adds a flag for each of the algorithm's settings that is not a key of the host.
pub(super) fn with_settings(command: Command, settings: &[Setting]) -> Command {
    let taken = |name: &str| {
        let dashed = name.replace('_', "-");
        command
            .get_arguments()
            .any(|arg| arg.get_long() == Some(&dashed) || arg.get_all_aliases().unwrap_or_default().contains(&name))
    };
    let own: Vec<Arg> = settings.iter().filter(|setting| !taken(&setting.name)).map(setting_flag).collect();
    command.args(own)
}

fn setting_flag(setting: &Setting) -> Arg {
    let Setting { name, help, takes } = setting;
    let arg = spelled(Arg::new(setting_id(name)), name).help(help).help_heading(SETTINGS).action(ArgAction::Append);
    match takes {
        Takes::Switch => arg.value_name("BOOL").num_args(0..=1).default_missing_value("true"),
        Takes::One => arg.value_name("VALUE").allow_hyphen_values(true),
        Takes::Several | Takes::OneOrSeveral => arg.value_name("VALUE").num_args(1..),
    }
}

/// The id of a setting's flag, which may have the name of a key elsewhere.
pub(super) fn setting_id(name: &str) -> String {
    format!("loss.{name}")
}

/// Returns whether an argument is a flag of all commands.
pub(super) fn is_global(argument: &str) -> bool {
    let letters = argument.strip_prefix('-').unwrap_or_default();
    ["--quiet", "--verbose"].contains(&argument) || !letters.is_empty() && letters.chars().all(|letter| "qv".contains(letter))
}

/// Returns the arguments that a command understands, and the names of its other flags, which may be settings of the algorithm.
/// Those that ask for help and those of all commands are left out.
pub(super) fn understood(command: &Command, arguments: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut kept, mut others) = (Vec::new(), Vec::new());
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        if is_global(argument) || argument == "-h" {
            continue;
        }
        let Some(flag) = argument.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
            kept.push(argument.clone());
            continue;
        };
        let name = flag.split('=').next().unwrap_or_default();
        match of_name(command, name) {
            Some(arg) => {
                kept.push(argument.clone());
                // Its value follows; it may look like a flag.
                let takes_one = arg.get_num_args().is_none_or(|n| n.min_values() > 0) && arg.get_action().takes_values();
                if takes_one && !flag.contains('=') {
                    kept.extend(rest.next().cloned());
                }
            }
            None if name == "help" => {}
            None => {
                others.push(name.replace('-', "_"));
                if !flag.contains('=') {
                    rest.next_if(|value| !value.starts_with("--"));
                }
            }
        }
    }
    (kept, others)
}

fn of_name<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let dashed = name.replace('_', "-");
    command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(&dashed) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name)))
}
