//! `rlhost train`: one flag for each key of the configuration.

use super::Failure;
use super::progress::Progress;
use crate::checkpoint;
use crate::config::{self, Config, ConfigFile, Key, LooseKey, Overrides};
use crate::dist::World;
use crate::report;
use crate::train::{self, Beginning, Finished, Origin, Trainer};
use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use indicatif::HumanDuration;
#[cfg(unix)]
use signal_hook::consts::SIGUSR1;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Keys that are tables, reached by `--set`.
const TABLES: [&str; 2] = ["loss", "loss_limits"];

pub(super) fn command() -> Command {
    let mut command = Command::new("train")
        .about("Train a model (the default command)")
        .after_help(
            "Flags can be written with dashes or underscores. Flags not listed here are passed to the algorithm's plugin: \
             grpo takes --beta, --epsilon, --epsilon-high, --delta, --loss-type, --scale-rewards, --mask-truncated-completions.",
        )
        .arg(
            Arg::new("config")
                .long("config")
                .short('c')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("TOML configuration file with the same keys; flags override it"),
        )
        .arg(
            Arg::new("plugin")
                .long("plugin")
                .value_name("WASM")
                .action(ArgAction::Append)
                .help("Reward plugin: a path, or the file name of an embedded plugin; may be repeated"),
        )
        .arg(Arg::new("set").long("set").value_name("KEY=VALUE").action(ArgAction::Append).help(
            "Set any key, over files and flags, as in --set loss.beta=0.04 or --set plugin.tldr_length_reward.config.target=30",
        ));
    command = command.arg(
        Arg::new("resume_from_checkpoint")
            .long("resume-from-checkpoint")
            .aliases(["resume_from_checkpoint", "load_checkpoint", "load-checkpoint", "ckpt_path", "ckpt-path"])
            .value_name("PATH")
            .num_args(0..=1)
            .default_missing_value("latest")
            .action(ArgAction::Append)
            .help(
                "Resume from this checkpoint, or from the newest checkpoint of a run's folder. `latest`, or no value, resumes \
                 the run in --output-dir and starts it if it has no checkpoint. With another --output-dir, start a new run \
                 from that state",
            ),
    );
    command = command.arg(
        Arg::new("allow_changed")
            .long("allow-changed")
            .alias("allow_changed")
            .action(ArgAction::SetTrue)
            .help("Allow settings that change results when resuming"),
    );
    command.args(config::keys().iter().filter(|key| key.name != "plugin" && !TABLES.contains(&key.name.as_str())).map(flag))
}

/// The flag of a key.
fn flag(key: &Key) -> Arg {
    let Key { name, help, kind, alias, .. } = key;
    let flag = name.replace('_', "-");
    // A switch's value may be left out, so that what follows it must not be taken for one.
    let mut arg = Arg::new(name).long(flag.clone()).help(help).allow_hyphen_values(*kind != "boolean");
    if flag != *name {
        arg = arg.alias(name);
    }
    arg = match *kind {
        "boolean" => arg.value_name("BOOL").num_args(0..=1).default_missing_value("true"),
        "array" => arg.value_name("TEXT").action(ArgAction::Append),
        "integer" => arg.value_name("N"),
        "number" => arg.value_name("NUMBER"),
        _ => arg.value_name("TEXT"),
    };
    if name == "lora_target_modules" {
        // As TRL takes them, after one flag.
        arg = arg.num_args(1..).allow_hyphen_values(false);
    }
    if *kind != "array" {
        // Of a flag given twice the last holds.
        arg = arg.overrides_with(name);
    }
    match alias {
        Some(alias) => arg.aliases([alias.replace('_', "-"), alias.clone()]),
        None => arg,
    }
}

/// Takes flags out of a command's `arguments` that it does not have: they may be the algorithm's.
pub(super) fn take_loose(command: &Command, arguments: &mut Vec<OsString>) -> Vec<LooseKey> {
    let known = |flag: &str| {
        let plain = flag.replace('_', "-");
        if ["help", "quiet", "verbose"].contains(&plain.as_str()) {
            return true;
        }
        command.get_arguments().any(|a| a.get_long() == Some(&plain) || a.get_all_aliases().is_some_and(|l| l.contains(&flag)))
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
            let takes_value = inline.is_none() && !is_switch(command, name);
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
    ["help", "quiet", "verbose"].contains(&plain.as_str())
        || command.get_arguments().any(|a| a.get_long() == Some(&plain) && a.get_num_args().is_some_and(|n| n.min_values() == 0))
}

/// Builds `rlhost sft`: the flags of `train` with other defaults.
pub(super) fn sft_command() -> Command {
    command().name("sft").about("Fine-tune a model on given completions, texts or conversations (SFT)").after_help(
        "Runs `rlhost train --algorithm sft --learn-from dataset`. The default learning rate is 2e-5, TRL's, for models of 100 \
             million parameters and more; see --learning-rate.",
    )
}

/// Runs `rlhost sft`, which sets two keys before its flags.
pub(super) fn sft(matches: &ArgMatches, loose: Vec<LooseKey>) -> Result<(), Failure> {
    let first = [("algorithm", "sft"), ("learn_from", "dataset")];
    run_with(matches, loose, first.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec())
}

pub(super) fn run(matches: &ArgMatches, loose: Vec<LooseKey>) -> Result<(), Failure> {
    run_with(matches, loose, Vec::new())
}

fn run_with(matches: &ArgMatches, loose: Vec<LooseKey>, first: Vec<(String, String)>) -> Result<(), Failure> {
    let given = Given::of(matches, loose, first)?;
    let from = texts(matches, "resume_from_checkpoint");
    let allow_changed = matches.get_flag("allow_changed");
    super::together(|world| {
        if from.is_empty() {
            return start(&given, &Beginning::New, world);
        }
        // OpenRLHF's --load_checkpoint says that, and its --ckpt_path where from.
        match from.iter().rfind(|path| !["latest", "true", "True"].contains(&path.as_str())) {
            Some(path) => go_on(&given, Origin::find(Path::new(path)).map_err(Failure::mistake)?, allow_changed, world),
            None => go_on_with_latest(&given, allow_changed, world),
        }
    })
}

/// What the command line says of a run's configuration.
pub(super) struct Given {
    /// The configuration's file.
    pub file: Option<ConfigFile>,
    pub overrides: Overrides,
}

fn texts(matches: &ArgMatches, id: &str) -> Vec<String> {
    matches.get_many::<String>(id).unwrap_or_default().cloned().collect()
}

impl Given {
    /// What stands in the arguments, after `first`.
    pub(super) fn of(matches: &ArgMatches, loose: Vec<LooseKey>, first: Vec<(String, String)>) -> Result<Self, Failure> {
        let mut overrides = Overrides { loose, plugins: texts(matches, "plugin"), sets: texts(matches, "set"), flags: first };
        for Key { name, .. } in config::keys() {
            if name == "plugin" || TABLES.contains(&name.as_str()) {
                continue;
            }
            overrides.flags.extend(texts(matches, name).into_iter().map(|text| (name.clone(), text)));
        }
        let file = matches.get_one::<PathBuf>("config").map(|path| ConfigFile::given(path));
        Ok(Self { file: file.transpose().map_err(Failure::mistake)?, overrides })
    }

    /// Plugins that it names itself.
    pub(super) fn named_plugins(&self) -> Vec<String> {
        let algorithm = self.overrides.flags.iter().filter(|(key, _)| key == "algorithm").map(|(_, value)| value);
        self.overrides.plugins.iter().chain(algorithm).cloned().collect()
    }

    /// The configuration of a run that begins so, with the threads that it asks for.
    pub(super) fn settle(&self, beginning: &Beginning) -> Result<(Config, Vec<LooseKey>), Failure> {
        let base = beginning.config_file().map_err(Failure::mistake)?;
        let (config, loose) = self.config(base.as_deref()).map_err(Failure::mistake)?;
        if let Some(threads) = config.num_threads {
            super::set_threads(threads).map_err(Failure::mistake)?;
        }
        Ok((config, loose))
    }

    fn config(&self, base: Option<&Path>) -> Result<(Config, Vec<LooseKey>), config::Error> {
        let read = |path: &Path| ConfigFile::read(path)?.without_other_algorithm(&self.overrides, self.file.as_ref());
        let base = base.map(read).transpose()?;
        config::read_files(base.iter().chain(&self.file), &self.overrides)
    }

    /// The output directory that it names.
    fn output_dir(&self) -> Result<Option<String>, config::Error> {
        // A complete configuration is not asked for, when the rest is a checkpoint's.
        let flag = self.overrides.flags.iter().rev().find(|(key, _)| key == "output_dir").map(|(_, value)| value.clone());
        let set = self.overrides.sets.iter().rev().find_map(|s| s.strip_prefix("output_dir=").map(str::to_owned));
        match set.or(flag) {
            Some(given) => Ok(Some(given)),
            None => self.file.as_ref().map_or(Ok(None), ConfigFile::output_dir),
        }
    }
}

/// Goes on with the run of the output directory, or begins it if there is nothing to go on from.
fn go_on_with_latest(given: &Given, allow_changed: bool, world: &Rc<World>) -> Result<(), Failure> {
    let Some(run) = given.output_dir().map_err(Failure::mistake)? else {
        let detail = "--resume-from-checkpoint needs a path, or --output-dir to find the latest checkpoint in";
        return Err(Failure::mistake(anyhow!(detail)));
    };
    let run = PathBuf::from(run);
    if checkpoint::steps(&run).is_ok_and(|steps| !steps.is_empty()) {
        return go_on(given, Origin::find(&run).map_err(Failure::mistake)?, allow_changed, world);
    }
    tracing::info!("{} has no checkpoint; starting from the first step", run.display());
    // The lock is the first thing that a run puts into its folder.
    start(given, if run.join(".lock").exists() { &Beginning::Over } else { &Beginning::New }, world)
}

/// Goes on with a run, or begins another from its state where another folder is named for it.
pub(super) fn go_on(given: &Given, origin: Origin, allow_changed: bool, world: &Rc<World>) -> Result<(), Failure> {
    let same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    let fork = given.output_dir().map_err(Failure::mistake)?.filter(|folder| !same(Path::new(folder), &origin.run));
    if world.is_first() {
        say!("{} {} from step {}", if fork.is_some() { "forking" } else { "resuming" }, origin.run.display(), origin.step);
    }
    let beginning = if fork.is_some() {
        Beginning::Fork { origin, fresh: given.named_plugins() }
    } else {
        Beginning::Resume { origin, allow_changed }
    };
    start(given, &beginning, world)
}

/// Sets a run up and trains.
fn start(given: &Given, beginning: &Beginning, world: &Rc<World>) -> Result<(), Failure> {
    let (config, loose) = given.settle(beginning)?;
    let trainer = train::set_up(config, loose, beginning, world.clone()).map_err(Failure::mistake)?;
    finish(trainer, world)
}

/// Runs to the end and says where everything is.
fn finish(trainer: Trainer, world: &World) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first asks for a checkpoint and an end; the second ends at once.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stop.clone()).map_err(Failure::failed)?;
        signal_hook::flag::register(signal, stop.clone()).map_err(Failure::failed)?;
    }
    // What mpirun passes on to its processes, where SIGINT makes it kill them after a while.
    #[cfg(unix)]
    signal_hook::flag::register(SIGUSR1, stop.clone()).map_err(Failure::failed)?;
    let mut progress = Progress::new(trainer.max_steps(), world.is_first());
    let finished = trainer.run(&stop, &mut progress).map_err(Failure::failed)?;
    if !world.is_first() {
        return if finished.stopped { Err(Failure::Said(3)) } else { Ok(()) };
    }
    let report = report::write(&finished.folder);
    if let Err(error) = &report {
        tracing::warn!("{error}; no report was written");
    }
    if tracing::enabled!(tracing::Level::INFO) {
        summary(&finished, report.ok().as_deref());
    }
    if finished.stopped { Err(Failure::Stopped) } else { Ok(()) }
}

/// Longest part of a prompt or completion that is shown, in characters.
const SHOWN: usize = 400;

/// Where everything is, and what to try next.
fn summary(finished: &Finished, report: Option<&Path>) {
    let folder = finished.folder.display();
    let took = HumanDuration(finished.took);
    if finished.stopped {
        say!("stopped after {} steps; resume with: rlhost resume {folder}", finished.steps);
        return;
    }
    if let [before, after] = &finished.samples[..] {
        say!("\nprompt:\n{}", indented(&before.prompt));
        for sample in [before, after] {
            say!("after {} steps, {} tokens:\n{}", sample.step, sample.tokens, indented(&sample.completion));
        }
        say!("");
    }
    say!("done: {} steps in {took}", finished.steps);
    say!("checkpoint: {}", finished.checkpoint.display());
    say!("metrics:    {}  (or: tensorboard --logdir {folder})", finished.folder.join("metrics.jsonl").display());
    if let Some(report) = report {
        say!("report:     {}", report.display());
    }
    say!("next:       rlhost generate --model {} --prompt \"...\"", finished.checkpoint.display());
}

/// A text's end, each line moved to the right.
fn indented(text: &str) -> String {
    let text = text.trim();
    let cut = text.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
    let (mark, shown) = if cut > 0 { ("...", &text[cut..]) } else { ("", text) };
    let lines: Vec<String> = format!("{mark}{shown}").lines().map(|line| format!("    {line}")).collect();
    lines.join("\n")
}
