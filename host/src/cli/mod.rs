//! The command line: arguments in, printed text and an exit code out.
//!
//! Exit codes: 0 success, 2 a user mistake, 1 a failure of the work or the machine, 3 stopped by a signal after saving. The
//! error's kind decides between 1 and 2 (`kind.rs`).

/// Prints a line.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::cli::output::lines(format_args!($($text)*))
    };
}

mod algorithm;
mod bench;
mod checkpoint;
mod columns;
mod compare;
mod completions;
mod consolidate;
mod control;
mod diagnose;
mod display;
mod dry_run;
mod ends;
mod eval;
mod export;
mod export_run;
mod failure;
mod flags;
mod generate;
mod given;
mod granted;
mod help;
mod init;
mod introduction;
mod kind;
mod made;
mod man;
mod merge;
mod models;
mod new_model;
mod output;
mod pager;
mod plan;
mod plugin;
mod progress;
mod rank;
mod reference;
mod replay;
mod replayed_episodes;
mod replayed_training;
mod replayed_versions;
mod report;
mod rescored;
mod resume;
mod rollouts;
mod score;
mod serve;
mod settings;
mod stopping;
mod swap;
mod sweep;
mod threads;
mod train;
mod trainings;
mod ui;
mod unknown;
mod watch;

#[cfg(any(test, fuzzing))]
pub(crate) use replay::read_recorded;
#[cfg(any(test, fuzzing))]
pub(crate) use report::report_text;

use crate::dist::World;
use algorithm::Known;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand};
use failure::Failure;
use flags::command_at;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use trainings::{TRAINING, Training};
use trainings::{takes_keys, training};

#[derive(Subcommand)]
enum Other {
    /// Write a configuration to start from, with comments
    Init(init::Args),
    /// Generate text from a prompt
    Generate(generate::Args),
    /// Serve a model over HTTP, with OpenAI's interface
    Serve(serve::Args),
    /// Create a model with random weights and its own tokenizer
    NewModel(new_model::Args),
    /// Copy a model in another precision, or export it as a GGUF file
    Export(export::Args),
    /// Merge an adapter into its base model
    Merge(merge::Args),
    /// List the supported model families
    Models(models::Args),
    /// Resume a run from its newest intact checkpoint
    Resume(resume::Args),
    /// Run a grid of settings with several seeds, and compare the runs in a table
    Sweep(sweep::Args),
    /// Replace a plugin or reward model of a running run
    Swap(swap::Args),
    /// Have a running run pause, go on, save, evaluate or stop
    Control(control::Args),
    /// Score a run's completions with another reward and compare the scores
    Replay(replay::Args),
    /// Score texts with a reward model
    Score(score::Args),
    /// Show runs in the browser while they train, and swap their rewards there
    Ui(ui::Args),
    /// Show a run in the terminal while it trains, and swap its plugins there
    Watch(watch::Args),
    /// Write the page of a run, or of several compared, to one HTML file
    Report(report::Args),
    /// Compare runs: settings that differ, values, and curves on one page
    Compare(compare::Args),
    /// Export a run's metrics and settings for wandb, MLflow or Trackio
    ExportRun(export_run::Args),
    /// Show a run's completions, by step, prompt, reward or version
    Rollouts(rollouts::Args),
    /// Find out why a run does not learn, and what to try
    Diagnose(diagnose::Args),
    /// Create, inspect, check, time and build plugins
    Plugin(plugin::Args),
    /// List or verify a run's checkpoints
    Checkpoint(checkpoint::Args),
    /// Print shell completions
    Completions(completions::Args),
    /// Print the manual page of rlhost or of a command
    Man(man::Args),
}

fn flag(name: &'static str, short: char, help: &'static str) -> Arg {
    Arg::new(name).long(name).short(short).help(help).global(true)
}

pub(super) fn command() -> Command {
    let root = Command::new("rlhost")
        .version(env!("CARGO_PKG_VERSION"))
        .about("RL post-training of language models, with rewards and losses as WebAssembly plugins")
        .long_about(
            "RL post-training of language models, with rewards and losses as WebAssembly plugins.\n\n\
             Without a subcommand, `rlhost` runs `rlhost train`:\n    rlhost --plugin tldr_length_reward.wasm",
        )
        .arg(flag("quiet", 'q', "Print only warnings and errors").action(ArgAction::SetTrue))
        .arg(flag("verbose", 'v', "Print debug messages; twice for everything").action(ArgAction::Count))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(TRAINING.iter().map(Training::command))
        .subcommand(eval::command())
        .subcommand(bench::command())
        .subcommand(plan::command());
    Other::augment_subcommands(root)
}

/// Returns clap's message without its usage lines, and for an unknown flag of a `command` with the one that was probably meant.
fn one_line(error: &clap::Error, command: Option<&Command>) -> String {
    if let (ErrorKind::UnknownArgument, Some(ContextValue::String(given)), Some(command)) =
        (error.kind(), error.get(ContextKind::InvalidArg), command)
    {
        let tip = Some(given).filter(|given| given.starts_with('-')).and_then(|given| unknown::meant(command, given));
        let tip = tip.map(|near| format!("tip: a similar argument exists: '{near}'"));
        let tip = tip.unwrap_or_else(|| all_flags(command).to_owned());
        return format!("error: unexpected argument '{given}' found; {tip}");
    }

    let text = error.render().to_string();
    let said = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let said = said.take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more information"));
    let said = said.collect::<Vec<_>>().join(" ").replace(" tip: ", "; tip: ");
    if error.kind() == ErrorKind::UnknownArgument && !said.contains("tip: ") {
        return format!("{said}; {}", command.map_or("--help lists all flags", all_flags));
    }
    said
}

/// Says where a command's flags are listed.
fn all_flags(command: &Command) -> &'static str {
    match takes_keys(command.get_name()) {
        true => "--help lists all flags, including the algorithm's settings",
        false => "--help lists all flags",
    }
}

/// Builds the commands with the settings of the algorithm that the arguments of the command at `at` select.
fn prepared(arguments: &[OsString], at: usize) -> Result<(Command, Known), Failure> {
    let root = command();
    let named = arguments.get(at).and_then(|name| root.find_subcommand(name)).filter(|c| takes_keys(c.get_name()));
    let Some(named) = named else { return Ok((root, Known::default())) };
    let name = named.get_name().to_owned();
    let sets = training(&name).map_or(&[][..], |training| training.sets);
    let known = algorithm::known_of(named, sets, &arguments[at + 1..])?;
    let root = root.mut_subcommand(name, |command| flags::with_settings(command, &known.settings));
    Ok((root, known))
}

/// Runs the command that `arguments` (the program's name first) ask for.
pub fn run(mut arguments: Vec<OsString>) -> ExitCode {
    stopping::report_large_files();
    if let Some(shell) = completions::asking(&arguments) {
        return ended(completions::complete(&shell, &arguments, command()).and_then(|()| output::finish()));
    }
    let at = command_at(&mut arguments);
    if arguments.len() == at {
        // Flags that are for any command don't make one.
        arguments.truncate(1);
    }
    // Only a command's own help has the settings of its algorithm.
    if arguments.get(at).is_some_and(|name| name == "help") && arguments.len() == at + 2 {
        arguments.remove(at);
        arguments.push("--help".into());
    }
    let (root, known) = match prepared(&arguments, at) {
        Ok(prepared) => prepared,
        Err(failure) if World::speaks() => return ended(Err(failure)),
        Err(_) => {
            World::let_the_first_speak();
            return ExitCode::from(2);
        }
    };
    let named = arguments.get(at).and_then(|name| root.find_subcommand(name)).cloned();
    if let Some(command) = named.as_ref().filter(|command| takes_keys(command.get_name())) {
        flags::with_plain_switches(command, &mut arguments[at + 1..]);
    }
    let unreadable = output::unreadable(&arguments[1..]);
    let matches = match root.try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand || !error.use_stderr() => {
            let printed = error.print();
            if error.use_stderr() {
                return ExitCode::from(2);
            }
            output::note(printed);
            return ended(output::finish());
        }
        Err(error) => {
            if World::speaks() {
                let line = match error.kind() {
                    ErrorKind::InvalidUtf8 => format!("error: {unreadable}"),
                    _ => one_line(&error, named.as_ref()),
                };
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            World::let_the_first_speak();
            return ExitCode::from(2);
        }
    };
    start_log(matches.get_flag("quiet"), matches.get_count("verbose"));
    display::start(matches.subcommand_name().is_some_and(|name| takes_keys(name) || name == "resume"));
    let outcome = carry_out(&matches, &known);
    display::end();
    ended(outcome.and_then(|()| output::finish()))
}

/// Runs the command that was parsed.
fn carry_out(matches: &ArgMatches, known: &Known) -> Result<(), Failure> {
    if let Some((name, of_command)) = matches.subcommand() {
        if let Some(training) = training(name) {
            return training.run(of_command, known);
        }
        match name {
            "eval" => return eval::run(of_command, known),
            "bench" => return bench::run(of_command, known),
            "plan" => return plan::run(of_command, known),
            _ => {}
        }
    }
    match Other::from_arg_matches(matches).map_err(Failure::of)? {
        Other::Init(args) => init::run(&args),
        Other::Generate(args) => generate::run(&args),
        Other::Serve(args) => serve::run(&args),
        Other::Export(args) => export::run(&args),
        Other::NewModel(args) => new_model::run(&args),
        Other::Merge(args) => merge::run(&args),
        Other::Models(args) => {
            models::run(&args);
            Ok(())
        }
        Other::Resume(args) => resume::run(&args),
        Other::Sweep(args) => sweep::run(&args),
        Other::Swap(args) => swap::run(&args),
        Other::Control(args) => control::run(&args),
        Other::Replay(args) if args.training.train => replayed_training::run(&args),
        Other::Replay(args) => replay::run(&args),
        Other::Score(args) => score::run(&args),
        Other::Ui(args) => ui::run(&args),
        Other::Watch(args) => watch::run(&args),
        Other::Report(args) => report::run(&args),
        Other::Compare(args) => compare::run(&args),
        Other::Rollouts(args) => rollouts::run(&args),
        Other::ExportRun(args) => export_run::run(&args),
        Other::Diagnose(args) => diagnose::run(&args),
        Other::Plugin(args) => plugin::run(&args),
        Other::Checkpoint(args) => checkpoint::run(&args),
        Other::Completions(args) => completions::run(&args),
        Other::Man(args) => man::run(&args, command()),
    }
}

/// Prints the error and returns the exit code.
fn ended(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Mistake(error)) => {
            output::complain(&error);
            ExitCode::from(2)
        }
        Err(Failure::Stopped) => ExitCode::from(3),
        Err(Failure::Said(code)) => ExitCode::from(code),
        Err(Failure::Failed(error)) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Sends log messages to standard error. RUST_LOG overrides the flags, except that --quiet stays quiet.
fn start_log(quiet: bool, verbose: u8) {
    let level = match (quiet, verbose) {
        // One process of a run speaks.
        _ if !World::speaks() => "error",
        (true, _) => "warn",
        (false, 0) => "info",
        (false, 1) => "info,rlhost=debug",
        (false, _) => "trace",
    };
    let asked = if quiet { None } else { EnvFilter::try_from_default_env().ok() };
    let filter = asked.unwrap_or_else(|| EnvFilter::new(level));
    let terminal = std::io::stderr().is_terminal();
    let colored = terminal && !output::is_plain();
    if std::env::var_os("NO_COLOR").is_some() && !output::is_plain() {
        // The library takes an empty one for a set one.
        console::set_colors_enabled(
            std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
        );
    }
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || output::Log { to: std::io::stderr(), colored, term: terminal.then(console::Term::stderr) })
        .log_internal_errors(false)
        .with_ansi(colored)
        .with_target(false)
        .without_time()
        .init();
}
