//! The training commands.

use super::algorithm::EarlyConfig;
use super::config_sources::{ConfigSources, texts};
use super::failure::CommandFailure;
use super::flags::is_latest;
use super::help::{self, CONFIGURATION};
use super::introduction::introduce;
use super::progress::ProgressPrinter;
use super::resume_advice::ResumeAdvice;
use super::stop_signals::StopSignals;
use super::training_commands::TrainingCommand;
use super::{dry_run, export_run};
use crate::config::words::{count, counted, followed_by};
use crate::config::{KeyAssignment, ReportTarget, RunConfig, printable_path, shell_word};
use crate::dist::World;
use crate::run::RunFiles;
use crate::trackers::TrackerFormat;
use crate::train::{self, CheckpointOrigin, ResumeTerms, RunOutcome, StartMode, Trainer};
use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command};
use indicatif::HumanDuration;
use rlhost_ui::FrozenPage;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

impl TrainingCommand {
    /// Builds the command, without the algorithm's settings.
    pub(super) fn command(&self) -> Command {
        let dry_run = Arg::new("dry_run").long("dry-run").alias("dry_run").help_heading(CONFIGURATION).action(ArgAction::SetTrue);
        let dry_run = dry_run.help(
            "Show what the run would do, and begin nothing: its plan, its first prompts with their tokens, and what its rewards say of \
             answers and short completions",
        );
        let page = Arg::new("ui").long("ui").help_heading(CONFIGURATION).action(ArgAction::SetTrue);
        let page = page.help("Show the run in the browser while it goes on, at the address that is printed; see rlhost ui");
        let command = super::flags::command(self.name).about(self.about).args([help::on_page(dry_run), help::on_page(page)]);
        let command = match self.name.contains('-') {
            true => command.alias(self.name.replace('-', "_")),
            false => command,
        };
        match self.sets {
            [] => command.after_long_help(
                "Flags can be written with dashes or underscores. The algorithm's settings are flags too; `rlhost dpo --help` \
                 lists those of dpo.",
            ),
            // The flag could contradict the command's name.
            [(_, algorithm)] => command.mut_arg("algorithm", |arg| arg.hide(true)).after_long_help(format!(
                "Runs `rlhost train --algorithm {algorithm}`. Flags can be written with dashes or underscores."
            )),
            _ => command.after_long_help(
                "Runs `rlhost train --algorithm sft --learn-from dataset`. The default learning rate is 2e-5, as in TRL, for \
                 models of 100 million parameters and more; see --learning-rate.",
            ),
        }
    }

    /// Runs the command.
    pub(super) fn run(&self, matches: &ArgMatches, known: &EarlyConfig) -> Result<(), CommandFailure> {
        let by_set = texts(matches, "set").iter().flat_map(|set| KeyAssignment::parse(set)).rfind(|set| set.sets("algorithm"));
        let asked = by_set.map(|set| set.text()).or_else(|| texts(matches, "algorithm").pop());
        if let ([(_, own)], Some(other)) = (self.sets, asked.filter(|asked| self.sets.iter().all(|(_, own)| asked != own))) {
            let advice = format!(
                "`rlhost {}` trains with {own}; for another algorithm, use `rlhost train --algorithm {other}`",
                self.name
            );
            return Err(CommandFailure::mistake(anyhow!(advice)));
        }
        let given = ConfigSources::from_matches(matches, self.sets, known)?;
        let stopping = StopSignals::listen()?;
        let from = texts(matches, "resume_from_checkpoint");
        let terms = ResumeTerms { allow_changed: matches.get_flag("allow_changed"), ..ResumeTerms::default() };
        let dries = matches.get_flag("dry_run");
        super::rank::on_this_rank(|world| {
            if from.iter().any(String::is_empty) {
                let detail = "--resume-from-checkpoint: the path is empty; leave it out to resume the run in --output-dir";
                return Err(CommandFailure::mistake(anyhow!(detail)));
            }
            if dries && !from.is_empty() {
                let detail = "--dry-run shows how a run begins; leave out --resume-from-checkpoint";
                return Err(CommandFailure::mistake(anyhow!(detail)));
            }
            if dries {
                return dry_run::run(&given, world);
            }
            if from.is_empty() {
                return start(&given, &StartMode::New, &stopping, world);
            }
            // OpenRLHF's --load_checkpoint requests resuming, and its --ckpt_path names the folder.
            match from.iter().rfind(|path| !is_latest(path)) {
                Some(path) => {
                    let origin = CheckpointOrigin::find(Path::new(path)).map_err(CommandFailure::from_error)?;
                    resume_from(&given, origin, terms.clone(), (&stopping, world))
                }
                None => resume_latest(&given, terms.clone(), (&stopping, world)),
            }
        })
    }
}

/// Resumes the run in the output directory, or starts it if it has no checkpoint.
fn resume_latest(
    given: &ConfigSources,
    terms: ResumeTerms,
    (stopping, world): (&StopSignals, &Rc<World>),
) -> Result<(), CommandFailure> {
    let Some(run) = given.output_dir().map_err(CommandFailure::from_error)? else {
        let detail = "--resume-from-checkpoint needs a path, or --output-dir to find the latest checkpoint in";
        return Err(CommandFailure::mistake(anyhow!(detail)));
    };
    let run = PathBuf::from(run);
    if RunFiles(&run).steps().is_ok_and(|steps| !steps.is_empty()) {
        return resume_from(given, CheckpointOrigin::find(&run).map_err(CommandFailure::from_error)?, terms, (stopping, world));
    }
    tracing::info!("{} has no checkpoint; starting from the first step", run.display());
    // The lock is the first file of a run's folder.
    start(given, if RunFiles(&run).lock().exists() { &StartMode::Restart } else { &StartMode::New }, stopping, world)
}

/// Resumes a run, or starts a new one from its state if another folder is given.
pub(super) fn resume_from(
    given: &ConfigSources,
    origin: CheckpointOrigin,
    terms: ResumeTerms,
    (stopping, world): (&StopSignals, &Rc<World>),
) -> Result<(), CommandFailure> {
    let same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    let fork = given.output_dir().map_err(CommandFailure::from_error)?.filter(|folder| !same(Path::new(folder), &origin.run));
    if world.is_first() {
        let how = if fork.is_some() { "forking" } else { "resuming" };
        say!("{how} {} from step {}", printable_path(&origin.run), origin.step);
    }
    let beginning = if fork.is_some() {
        StartMode::Fork { origin, fresh: given.named_plugins() }
    } else {
        StartMode::Resume { origin, terms: ResumeTerms { named: given.named_plugins(), ..terms } }
    };
    start(given, &beginning, stopping, world)
}

/// Sets up a run and trains.
pub(super) fn start(
    given: &ConfigSources,
    beginning: &StartMode,
    stopping: &StopSignals,
    world: &Rc<World>,
) -> Result<(), CommandFailure> {
    let set_up = || {
        let config = given.resolve(beginning, world)?;
        if world.is_first() {
            introduce(&config);
        }
        let trainer = train::set_up(config.clone(), beginning, world.clone());
        let trainer = trainer.map_err(|error| not_begun(error, beginning, &config))?;
        Ok((config, trainer))
    };
    let (config, trainer) = set_up().map_err(|failure| match (failure, beginning.without_edits()) {
        // The edit may not be the cause, but without it the run can continue.
        (CommandFailure::Mistake(error), Some(advice)) => {
            let said = followed_by(&error.to_string(), &advice);
            CommandFailure::Mistake(error.context(said))
        }
        (other, _) => other,
    })?;
    // Serves the page until the run ends.
    let _page = (given.shows_page && world.is_first()).then(|| super::ui::serve_run_page(trainer.folder()));
    finish(trainer, stopping, &config, world)
}

/// Runs to the end and prints where the results are.
fn finish(trainer: Trainer, stopping: &StopSignals, config: &RunConfig, world: &World) -> Result<(), CommandFailure> {
    let (max_steps, folder) = (trainer.max_steps(), trainer.folder().to_owned());
    let trackers = TrackerExports::new(&config.report_to, &folder, world);
    trackers.announce();
    let mut progress = ProgressPrinter::new(trainer.calendar(), world.is_first());
    let stop = stopping.begin(&folder, trainer.steps_done());
    let finished = trainer.run(stop, &mut progress).map_err(|error| {
        trackers.export();
        run_failure(error, &ResumeAdvice { folder: &folder, config })
    })?;
    if finished.stopped {
        stopping.confirm_once();
    }
    if !world.is_first() {
        return if finished.stopped { Err(CommandFailure::ReportedElsewhere(3)) } else { Ok(()) };
    }
    trackers.export();
    let report = FrozenPage::write_report(&finished.folder, super::ui::PagePlugins);
    if let Err(error) = &report {
        tracing::warn!("{error}; no report was written");
    }
    if tracing::enabled!(tracing::Level::INFO) {
        let ended = ResumeAdvice { folder: &finished.folder, config };
        summary(&finished, &ended, max_steps, report.ok().as_deref());
    }
    if finished.stopped { Err(CommandFailure::Stopped) } else { Ok(()) }
}

/// Classifies an error of the set-up, and says how to fix a plugin at fault.
fn not_begun(error: train::Error, beginning: &StartMode, config: &RunConfig) -> CommandFailure {
    let folder = beginning.origin().map_or_else(PathBuf::new, |origin| origin.run.clone());
    match (ResumeAdvice { folder: &folder, config }).before_first_step(&error) {
        None => CommandFailure::from_error(error),
        Some(advice) => {
            let said = followed_by(&error.to_string(), &advice);
            CommandFailure::from_error(anyhow::Error::new(error).context(said))
        }
    }
}

/// Classifies an error that ended a run after its set-up, and says how to continue. The run could write its files before, so a failed write
/// is not a mistake of the user.
fn run_failure(error: train::Error, ended: &ResumeAdvice<'_>) -> CommandFailure {
    let said = followed_by(&error.to_string(), &ended.after_error(&error));
    match error {
        train::Error::Write { .. } => CommandFailure::failed(anyhow!(said)),
        other => CommandFailure::from_error(anyhow::Error::new(other).context(said)),
    }
}

/// The trackers to which the first process exports a run when it ends, for whatever reason.
struct TrackerExports {
    folder: PathBuf,
    formats: Vec<TrackerFormat>,
}

impl TrackerExports {
    fn new(report_to: &[ReportTarget], folder: &Path, world: &World) -> Self {
        let format = |to: &ReportTarget| match to {
            ReportTarget::None | ReportTarget::Tensorboard => None,
            ReportTarget::Wandb => Some(TrackerFormat::Wandb),
            ReportTarget::Mlflow => Some(TrackerFormat::Mlflow),
            ReportTarget::Trackio => Some(TrackerFormat::Trackio),
        };
        let formats = if world.is_first() { report_to.iter().filter_map(format).collect() } else { Vec::new() };
        Self { folder: folder.to_owned(), formats }
    }

    /// Logs when the trackers receive the run, because their users expect to see it during the run.
    fn announce(&self) {
        for format in &self.formats {
            let (name, folder) = (format.name(), shell_word(&self.folder));
            tracing::info!("{name} gets the run when it ends; to export it sooner: rlhost export-run {folder} --format {name}");
        }
    }

    fn export(&self) {
        for format in &self.formats {
            match export_run::export(&self.folder, *format, &self.folder) {
                Ok((path, command)) => tracing::info!("exported {}; to show it: {command}", path.display()),
                Err(error) => tracing::warn!("{error}; nothing was exported for {}", format.name()),
            }
        }
    }
}

/// Maximum length of a printed prompt or completion, in characters.
const SHOWN: usize = 400;

/// Prints where the results are, and what to try next.
fn summary(finished: &RunOutcome, ended: &ResumeAdvice<'_>, max_steps: u64, report: Option<&Path>) {
    let (folder, checkpoint) = (shell_word(&finished.folder), shell_word(&finished.checkpoint));
    if finished.idle {
        let steps = counted(finished.steps, "step");
        let over = match finished.steps < max_steps {
            true => format!(
                "the run has stopped early after {steps}; to continue, resume with --set early_stopping_patience=NUMBER --allow-changed"
            ),
            false => format!("the run has already taken its {steps}; to continue, set a larger --max-steps"),
        };
        tracing::info!("nothing left to do: {over}");
        say!("checkpoint: {}", printable_path(&finished.checkpoint));
        return;
    }
    if finished.stopped {
        say!("{}", ended.after_stop(finished.steps));
        return;
    }
    if let [before, after] = &finished.samples[..] {
        say!("\nprompt:\n{}", indented(&before.prompt));
        for sample in [before, after] {
            say!("after {}, {} tokens:\n{}", counted(sample.step, "step"), sample.tokens, indented(&sample.completion));
        }
        say!("");
    }
    say!("done: {}", taken(finished.steps, finished.own_steps, finished.took));
    say!("checkpoint: {}", printable_path(&finished.checkpoint));
    let metrics = printable_path(&RunFiles(&finished.folder).metrics());
    say!("metrics:    {metrics}  (or: tensorboard --logdir {folder})");
    if let Some(report) = report {
        say!("report:     {}", printable_path(report));
    }
    if let Some(more) = ended.more(finished, max_steps) {
        say!("train on:   {more}");
    }
    if finished.scores {
        say!("next:       rlhost score {checkpoint} --dataset FILE");
        return;
    }
    let chat = if finished.chat { " --chat" } else { "" };
    say!("next:       rlhost generate --model {checkpoint}{chat} --prompt \"...\"");
}

/// Describes the steps of a run and the time that this process took for its own: `9 steps, the last 4 in 25 seconds`.
fn taken(steps: u64, own_steps: u64, took: Duration) -> String {
    let (steps_in_all, took) = (counted(steps, "step"), HumanDuration(took));
    match own_steps {
        0 => steps_in_all,
        own if own == steps => format!("{steps_in_all} in {took}"),
        1 => format!("{steps_in_all}, the last in {took}"),
        own => format!("{steps_in_all}, the last {} in {took}", count(own)),
    }
}

/// Returns the end of a text, with each line indented.
fn indented(text: &str) -> String {
    let text = text.trim();
    let cut = text.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
    let (mark, shown) = if cut > 0 { ("...", &text[cut..]) } else { ("", text) };
    let lines: Vec<String> = format!("{mark}{shown}").lines().map(|line| format!("    {line}")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_time_is_that_of_the_steps_since_the_run_was_resumed() {
        let cases = [(9, 9), (9, 4), (9, 1), (1, 1), (9, 0), (3000, 1200)];
        let said = cases.map(|(steps, own)| taken(steps, own, Duration::from_secs(25)));
        let expected = [
            "9 steps in 25 seconds",
            "9 steps, the last 4 in 25 seconds",
            "9 steps, the last in 25 seconds",
            "1 step in 25 seconds",
            "9 steps",
            "3,000 steps, the last 1,200 in 25 seconds",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_traceback_that_ends_a_run_stands_apart_from_the_advice() {
        let ended = ResumeAdvice { folder: Path::new("nowhere"), config: &RunConfig::default() };
        let detail = "Traceback (most recent call last):\nValueError: no score".to_owned();
        let error = crate::plugin::Error::Call { name: "f2".into(), function: "score", step: Some(3), detail };
        let CommandFailure::Failed(said) = run_failure(error.into(), &ended) else { panic!("it fails while it works") };
        assert_eq!(
            said.to_string(),
            "plugin f2, score in step 4: Traceback (most recent call last):\nValueError: no score\nnothing was saved; fix what makes f2 \
             fail, then start the run over: give its command again, with --resume-from-checkpoint"
        );
    }

    #[test]
    fn a_run_that_can_no_longer_write_has_failed_but_a_mistake_stays_one() {
        let ended = ResumeAdvice { folder: Path::new("nowhere"), config: &RunConfig::default() };
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::StaleNetworkFileHandle] {
            let error = train::Error::Write { path: PathBuf::from("run/metrics.jsonl"), source: kind.into() };
            assert!(matches!(run_failure(error, &ended), CommandFailure::Failed(_)), "{kind}");
        }
        let mistake = train::Error::Setting { key: "temperature", detail: "is too high".into() };
        let CommandFailure::Mistake(said) = run_failure(mistake, &ended) else { panic!("it is a mistake") };
        assert_eq!(
            said.to_string(),
            "temperature: is too high; nothing was saved; start the run over: give its command again, with --resume-from-checkpoint"
        );
    }
}
