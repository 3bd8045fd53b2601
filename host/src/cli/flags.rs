//! The flags of the commands that train, evaluate and measure: one for each key of the configuration and each setting of the
//! algorithm.

use super::flags;
use super::help::{self, CONFIGURATION, PLUGINS, SETTINGS};
use crate::config::{self, ConfigKey, OptionTreatment};
use crate::plugin::{Setting, SettingArity};
use clap::{Arg, ArgAction, Command, value_parser};
use std::ffi::OsString;
use std::path::PathBuf;

/// The flag of an agent whose drivers the run does not start itself.
pub(super) const AGENT_LISTEN: &str = "agent_listen";

/// TRL's switches that are on by default in TRL and are not keys of rlhost. Other switches are left out, so that they don't distort
/// suggestions.
const ON_IN_TRL: [&str; 9] = [
    "average_tokens_across_devices",
    "dataloader_pin_memory",
    "disable_dropout",
    "ds3_gather_for_generation",
    "eval_do_concat_batches",
    "log_on_each_node",
    "logging_nan_inf_filter",
    "remove_unused_columns",
    "skip_memory_metrics",
];

/// Options of TRL that take several values.
const SEVERAL: [&str; 4] = ["label_names", "include_for_metrics", "fsdp", "optim_target_modules"];

/// Builds a command with a flag for each key.
pub(super) fn command(name: &'static str) -> Command {
    let keys = config::keys().iter().filter(|key| key.has_flag);
    // Hidden flags: scripts and files written for TRL may use them, but new users need not read about them.
    let foreign = config::foreign_options().map(|option| {
        let arg = spelled(Arg::new(option.name), option.name).hide(true).help(option.why);
        let arg = arg.allow_negative_numbers(true);
        match option.treatment {
            OptionTreatment::RewardWeights | OptionTreatment::RewardFuncs => arg.num_args(1..).action(ArgAction::Append),
            _ if SEVERAL.contains(&option.name) => arg.num_args(0..).default_missing_value("true").overrides_with(option.name),
            _ => arg.num_args(0..=1).default_missing_value("true").overrides_with(option.name),
        }
    });
    let negated = negatable().map(|name| {
        let arg = spelled(Arg::new(negated(name)), &negated(name));
        arg.hide(true).action(ArgAction::SetTrue).overrides_with(name)
    });
    let command = help::arranged(Command::new(name), own_flags().into_iter().chain([agent_listen()]).chain(keys.map(flag)));
    help::with_names(command, &[]).args(foreign).args(negated)
}

/// Returns the switches that TRL's parser also accepts as `--no_NAME`.
pub(super) fn negatable() -> impl Iterator<Item = &'static str> {
    let keys = config::keys().iter().filter(|key| key.kind == "boolean").map(|key| key.name.as_str());
    keys.chain(ON_IN_TRL)
}

/// Returns the name of a switch's opposite.
pub(super) fn negated(name: &str) -> String {
    format!("no_{name}")
}

/// Returns the flags that are not keys.
fn own_flags() -> [Arg; 7] {
    let resume = "Resume from this checkpoint, or from the newest checkpoint of a run's folder. `latest`, or no value, resumes the \
                  run in --output-dir, or starts it if it has no checkpoint. With another --output-dir, a new run starts from \
                  that state";
    let set = "Set any key, overriding files and flags: --set loss.beta=0.04 or --set plugin.tldr_length_reward.config.target=30";
    [
        Arg::new("config")
            .long("config")
            .help_heading(CONFIGURATION)
            .short('c')
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Configuration file with the same keys, in TOML or YAML; flags override it"),
        Arg::new("plugin")
            .long("plugin")
            .help_heading(PLUGINS)
            .value_name("WASM")
            .action(ArgAction::Append)
            .num_args(1..)
            .help("Reward plugins: paths, or file names of built-in plugins; may be repeated"),
        spelled(Arg::new("reward_model"), "reward_model")
            .help_heading(PLUGINS)
            .value_name("MODEL")
            .action(ArgAction::Append)
            .num_args(1..)
            .help(
                "Reward models: folders of sequence classification models with one label, folders of runs that trained one, or \
                 names on the hub; may be repeated",
            ),
        Arg::new("set")
            .long("set")
            .help_heading(CONFIGURATION)
            .value_name("KEY=VALUE")
            .action(ArgAction::Append)
            .num_args(1..)
            .help(set),
        Arg::new("resume_from_checkpoint")
            .long("resume-from-checkpoint")
            .help_heading(CONFIGURATION)
            .aliases(["resume_from_checkpoint", "load_checkpoint", "load-checkpoint", "ckpt_path", "ckpt-path"])
            .value_name("PATH")
            .num_args(0..=1)
            .default_missing_value("latest")
            .action(ArgAction::Append)
            .help(resume),
        Arg::new("allow_changed")
            .long("allow-changed")
            .help_heading(CONFIGURATION)
            .alias("allow_changed")
            .action(ArgAction::SetTrue)
            .help("Allow settings that change results when resuming"),
        Arg::new("accept_grants")
            .long("accept-grants")
            .help_heading(CONFIGURATION)
            .alias("accept_grants")
            .action(ArgAction::SetTrue)
            .help(
                "Allow what the folder of the run to start from sets beyond the defaults: servers, secrets, folders, ports and \
                 limits of plugins",
            ),
    ]
}

fn agent_listen() -> Arg {
    spelled(Arg::new(AGENT_LISTEN), AGENT_LISTEN)
        .help_heading(PLUGINS)
        .value_name("ADDRESS")
        .conflicts_with("agent")
        .help("Let drivers elsewhere play the model's episodes: address at which they take them, as in 127.0.0.1:8300")
}

/// Spells a flag with dashes, accepting underscores too.
fn spelled(arg: Arg, name: &str) -> Arg {
    let dashed = name.replace('_', "-");
    if dashed == name { arg.long(dashed) } else { arg.long(dashed).alias(name.to_owned()) }
}

/// Builds the flag of a key.
fn flag(key: &ConfigKey) -> Arg {
    let ConfigKey { name, help, kind, aliases, bare, .. } = key;
    let heading = config::shown(name).map_or("", |shown| &*shown.heading);
    let mut arg = spelled(Arg::new(name), name).help(help).help_heading(heading).allow_hyphen_values(true);
    arg = match *kind {
        // The value of a switch is optional, so a following argument must not be taken for it.
        "boolean" => arg.value_name("BOOL").num_args(0..=1).default_missing_value("true").allow_hyphen_values(false),
        // TRL's form of lists: all values after one flag. A value that begins with a dash is given as --stop=-x.
        "array" => {
            let arg = arg.value_name("TEXT").num_args(1..).action(ArgAction::Append);
            arg.allow_hyphen_values(false).allow_negative_numbers(true)
        }
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
    let own: Vec<&Setting> = settings.iter().filter(|s| of_name(&command, &s.name).is_none()).collect();
    let names: Vec<&str> = own.iter().map(|setting| setting.name.as_str()).collect();
    help::with_names(command, &names).args(own.into_iter().map(|setting| help::on_page(setting_flag(setting))))
}

fn setting_flag(setting: &Setting) -> Arg {
    let Setting { name, help, arity: takes, aliases, .. } = setting;
    let arg = spelled(Arg::new(setting_id(name)), name).help(help).help_heading(SETTINGS).action(ArgAction::Append);
    let arg = arg.aliases(aliases.iter().flat_map(|alias| [alias.replace('_', "-"), alias.clone()]));
    match takes {
        SettingArity::Switch => arg.value_name("BOOL").num_args(0..=1).default_missing_value("true"),
        SettingArity::One => arg.value_name("VALUE").allow_hyphen_values(true),
        SettingArity::Several | SettingArity::OneOrSeveral => arg.value_name("VALUE").num_args(1..).allow_negative_numbers(true),
    }
}

/// Returns the id of a setting's flag. The prefix prevents a clash with a key of the same name.
pub(super) fn setting_id(name: &str) -> String {
    format!("loss.{name}")
}

/// Returns whether an argument is a global flag.
pub(super) fn is_global(argument: &str) -> bool {
    let letters = argument.strip_prefix('-').unwrap_or_default();
    ["--quiet", "--verbose"].contains(&argument) || !letters.is_empty() && letters.chars().all(|letter| "qv".contains(letter))
}

/// Information read from the arguments before the algorithm's settings are known.
#[derive(Default)]
pub(super) struct ScannedArguments {
    /// Flags of the command, by their ids, with their values.
    pub flags: Vec<(String, Vec<String>)>,
    /// Arguments that belong to no flag.
    pub positionals: Vec<String>,
    /// Whether there are unknown flags, which may be settings of the algorithm.
    pub has_others: bool,
}

impl ScannedArguments {
    /// Returns the values of a flag.
    pub(super) fn values(&self, id: &str) -> Vec<String> {
        self.flags.iter().filter(|(given, _)| given == id).flat_map(|(_, values)| values.clone()).collect()
    }
}

/// Scans the arguments of a command. Unlike a parser, it tolerates mistakes.
pub(super) fn scan(command: &Command, arguments: &[String]) -> ScannedArguments {
    let mut scanned = ScannedArguments::default();
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        if is_global(argument) || ["-h", "--help"].contains(&argument.as_str()) {
            continue;
        }
        let flag = argument.strip_prefix("--").or_else(|| (argument == "-c").then_some("config"));
        let Some(flag) = flag.filter(|flag| !flag.is_empty()) else {
            scanned.positionals.push(argument.clone());
            continue;
        };
        let (name, inline) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value.to_owned())));
        let known = of_name(command, name);
        // A flag may have several values; surplus ones do no harm among the positionals.
        let most = known.map_or(1, most_values);
        let mut values: Vec<String> = inline.into_iter().collect();
        let switch = known.is_some_and(is_switch);
        while values.len() < most && !argument.contains('=') {
            match rest.next_if(|value| !value.starts_with("--") && (!switch || config::switched(value).is_some())) {
                Some(value) => values.push(value.clone()),
                None => break,
            }
        }
        match known {
            Some(arg) => scanned.flags.push((arg.get_id().to_string(), values)),
            None => scanned.has_others = true,
        }
    }
    scanned
}

/// Returns the maximum number of values of a flag.
fn most_values(arg: &Arg) -> usize {
    let one = usize::from(arg.get_action().takes_values());
    arg.get_num_args().map_or(one, |count| count.max_values())
}

fn is_switch(arg: &Arg) -> bool {
    arg.get_value_names().is_some_and(|names| names.iter().any(|name| name == "BOOL"))
}

/// Writes out a switch's value if the next argument is not one, so that it is not taken for one.
pub(super) fn with_plain_switches(command: &Command, arguments: &mut [OsString]) {
    for i in 0..arguments.len() {
        let next = arguments.get(i + 1).and_then(|next| next.to_str());
        let next_is_value = next.is_none_or(|next| next.starts_with('-') || config::switched(next).is_some());
        let Some(flag) = arguments[i].to_str().and_then(|argument| argument.strip_prefix("--")) else { continue };
        if !next_is_value && of_name(command, flag).is_some_and(is_switch) {
            arguments[i].push("=true");
        }
    }
}

fn of_name<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let dashed = name.replace('_', "-");
    command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(&dashed) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name)))
}

/// Returns whether this value of --resume-from-checkpoint means the newest checkpoint of the output directory.
pub(super) fn is_latest(path: &str) -> bool {
    ["latest", "true", "True"].contains(&path)
}

/// Returns the position of the command's name among the arguments, after the global flags. Inserts `train` if there is no command.
pub(super) fn command_at(arguments: &mut Vec<OsString>) -> usize {
    let at = 1 + arguments.iter().skip(1).take_while(|argument| argument.to_str().is_some_and(flags::is_global)).count();
    let next = arguments.get(at).and_then(|argument| argument.to_str());
    let of_train = next.is_some_and(|a| a.starts_with('-') && !["--help", "-h", "--version", "-V"].contains(&a));
    if of_train {
        arguments.insert(at, "train".into());
    }
    at
}
