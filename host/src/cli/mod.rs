//! The command line: arguments in, printed text and an exit code out.
//!
//! Exit codes: 0 success, 2 a user mistake, 1 a failure of the work or the machine, 3 stopped by a signal after saving. The
//! error's kind decides between 1 and 2 (`error_kind.rs`).

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
mod config_sources;
mod consolidate;
mod control;
mod diagnose;
mod display;
mod dry_run;
mod error_kind;
mod eval;
mod export;
mod export_run;
mod failure;
mod flags;
mod generate;
mod grant_args;
mod help;
mod init;
mod introduction;
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
mod rescoring;
mod resume;
mod resume_advice;
mod rollouts;
mod score;
mod serve;
mod settings;
mod stop_signals;
mod swap;
mod sweep;
mod threads;
mod train;
mod training_commands;
mod ui;
mod unfinished_output;
mod unknown_flags;
mod watch;

#[cfg(any(test, fuzzing))]
pub(crate) use replay::read_recorded;
#[cfg(any(test, fuzzing))]
pub(crate) use report::report_text;

use crate::dist::World;
use algorithm::EarlyConfig;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand};
use failure::CommandFailure;
use flags::command_at;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use training_commands::{TRAINING, takes_keys, training};

#[derive(Subcommand)]
enum OtherCommand {
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

/// Builds the program's command with all of its subcommands.
pub(super) fn command() -> Command {
    command_with(|_| true)
}

/// Builds the program's command. Of the subcommands with a flag for each key, only those that `has_flags` selects by name have their flags:
/// they are hundreds, and a call needs those of one subcommand or of none.
fn command_with(has_flags: impl Fn(&str) -> bool) -> Command {
    let outlined = |name: &'static str, about: &'static str, build: &dyn Fn() -> Command| {
        if has_flags(name) { build() } else { Command::new(name).about(about) }
    };
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
        .subcommands(TRAINING.iter().map(|training| outlined(training.name, training.about, &|| training.command())))
        .subcommand(outlined("eval", eval::ABOUT, &eval::command))
        .subcommand(outlined("bench", bench::ABOUT, &bench::command))
        .subcommand(outlined("plan", plan::ABOUT, &plan::command));
    OtherCommand::augment_subcommands(root)
}

/// Returns clap's message without its usage lines. For an unknown flag of a `command`, the message suggests the nearest flag.
fn one_line(error: &clap::Error, command: Option<&Command>) -> String {
    if let (ErrorKind::UnknownArgument, Some(ContextValue::String(given)), Some(command)) =
        (error.kind(), error.get(ContextKind::InvalidArg), command)
    {
        let tip =
            Some(given).filter(|given| given.starts_with('-')).and_then(|given| unknown_flags::nearest_flag(command, given));
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

/// Returns a hint to the list of a command's flags.
fn all_flags(command: &Command) -> &'static str {
    match takes_keys(command.get_name()) {
        true => "--help lists all flags, including the algorithm's settings",
        false => "--help lists all flags",
    }
}

/// Builds the commands with the settings of the algorithm that the arguments of the command at `at` select.
fn prepared(arguments: &[OsString], at: usize) -> Result<(Command, EarlyConfig), CommandFailure> {
    let called = arguments.get(at).and_then(|name| name.to_str()).unwrap_or_default().replace('_', "-");
    let root = command_with(|name| name == called);
    let named = arguments.get(at).and_then(|name| root.find_subcommand(name)).filter(|c| takes_keys(c.get_name()));
    let Some(named) = named else { return Ok((root, EarlyConfig::default())) };
    let name = named.get_name().to_owned();
    let sets = training(&name).map_or(&[][..], |training| training.sets);
    let known = algorithm::early_config(named, sets, &arguments[at + 1..])?;
    let root = root.mut_subcommand(name, |command| flags::with_settings(command, &known.settings));
    Ok((root, known))
}

/// Runs the command given by `arguments`, whose first is the program's name.
pub fn run(mut arguments: Vec<OsString>) -> ExitCode {
    stop_signals::report_large_files();
    if let Some(shell) = completions::requesting_shell(&arguments) {
        return exit_code(completions::complete(&shell, &arguments, command()).and_then(|()| output::finish()));
    }
    let at = command_at(&mut arguments);
    if arguments.len() == at {
        // Global flags alone are not a command.
        arguments.truncate(1);
    }
    // Only a command's own `--help` lists the settings of its algorithm.
    if arguments.get(at).is_some_and(|name| name == "help") && arguments.len() == at + 2 {
        arguments.remove(at);
        arguments.push("--help".into());
    }
    let (root, known) = match prepared(&arguments, at) {
        Ok(prepared) => prepared,
        Err(failure) if World::prints_output() => return exit_code(Err(failure)),
        Err(_) => {
            World::wait_for_first_rank();
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
            return exit_code(output::finish());
        }
        Err(error) => {
            if World::prints_output() {
                let line = match error.kind() {
                    ErrorKind::InvalidUtf8 => format!("error: {unreadable}"),
                    _ => one_line(&error, named.as_ref()),
                };
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            World::wait_for_first_rank();
            return ExitCode::from(2);
        }
    };
    start_log(matches.get_flag("quiet"), matches.get_count("verbose"));
    display::start(matches.subcommand_name().is_some_and(|name| takes_keys(name) || name == "resume"));
    let outcome = carry_out(&matches, &known);
    display::end();
    exit_code(outcome.and_then(|()| output::finish()))
}

/// Runs the parsed command.
fn carry_out(matches: &ArgMatches, known: &EarlyConfig) -> Result<(), CommandFailure> {
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
    match OtherCommand::from_arg_matches(matches).map_err(CommandFailure::from_error)? {
        OtherCommand::Init(args) => init::run(&args),
        OtherCommand::Generate(args) => generate::run(&args),
        OtherCommand::Serve(args) => serve::run(&args),
        OtherCommand::Export(args) => export::run(&args),
        OtherCommand::NewModel(args) => new_model::run(&args),
        OtherCommand::Merge(args) => merge::run(&args),
        OtherCommand::Models(args) => models::run(&args),
        OtherCommand::Resume(args) => resume::run(&args),
        OtherCommand::Sweep(args) => sweep::run(&args),
        OtherCommand::Swap(args) => swap::run(&args),
        OtherCommand::Control(args) => control::run(&args),
        OtherCommand::Replay(args) if args.training.train => replayed_training::run(&args),
        OtherCommand::Replay(args) => replay::run(&args),
        OtherCommand::Score(args) => score::run(&args),
        OtherCommand::Ui(args) => ui::run(&args),
        OtherCommand::Watch(args) => watch::run(&args),
        OtherCommand::Report(args) => report::run(&args),
        OtherCommand::Compare(args) => compare::run(&args),
        OtherCommand::Rollouts(args) => rollouts::run(&args),
        OtherCommand::ExportRun(args) => export_run::run(&args),
        OtherCommand::Diagnose(args) => diagnose::run(&args),
        OtherCommand::Plugin(args) => plugin::run(&args),
        OtherCommand::Checkpoint(args) => checkpoint::run(&args),
        OtherCommand::Completions(args) => completions::run(&args),
        OtherCommand::Man(args) => man::run(&args, command()),
    }
}

/// Prints the error and returns the exit code.
fn exit_code(outcome: Result<(), CommandFailure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandFailure::Mistake(error)) => {
            output::complain(&error);
            ExitCode::from(2)
        }
        Err(CommandFailure::Stopped) => ExitCode::from(3),
        Err(CommandFailure::ReportedElsewhere(code)) => ExitCode::from(code),
        Err(CommandFailure::Failed(error)) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Sends log messages to standard error. RUST_LOG overrides the flags, except that --quiet stays quiet.
fn start_log(quiet: bool, verbose: u8) {
    let level = match (quiet, verbose) {
        // Only one process of a run prints.
        _ if !World::prints_output() => "error",
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
        // The `console` library treats an empty variable as set.
        console::set_colors_enabled(
            std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
        );
    }
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || output::LineLog { to: std::io::stderr(), colored, term: terminal.then(console::Term::stderr) })
        .log_internal_errors(false)
        .with_ansi(colored)
        .with_target(false)
        .without_time()
        .init();
}
