//! The commands that train.

use super::algorithm::Known;
use super::ends::Ended;
use super::failure::Failure;
use super::flags::is_latest;
use super::given::{Given, texts};
use super::help::{self, CONFIGURATION};
use super::introduction::introduce;
use super::progress::Progress;
use super::stopping::Stopping;
use super::trainings::Training;
use super::{dry_run, export_run};
use crate::config::words::counted;
use crate::config::{Config, ReportTo, Set, printable_path, shell_word};
use crate::dist::World;
use crate::run::RunFiles;
use crate::trackers::Format;
use crate::train::{self, Beginning, Finished, Origin, Terms, Trainer};
use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command};
use indicatif::HumanDuration;
use rlhost_ui::FrozenPage;
use std::path::{Path, PathBuf};
use std::rc::Rc;

impl Training {
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
            // A flag that says otherwise would make the command mean something else.
            [(_, algorithm)] => command.mut_arg("algorithm", |arg| arg.hide(true)).after_long_help(format!(
                "Runs `rlhost train --algorithm {algorithm}`. Flags can be written with dashes or underscores."
            )),
            _ => command.after_long_help(
                "Runs `rlhost train --algorithm sft --learn-from dataset`. The default learning rate is 2e-5, as in TRL, for \
                 models of 100 million parameters and more; see --learning-rate.",
            ),
        }
    }

    /// Runs it.
    pub(super) fn run(&self, matches: &ArgMatches, known: &Known) -> Result<(), Failure> {
        let by_set = texts(matches, "set").iter().flat_map(|set| Set::read(set)).rfind(|set| set.sets("algorithm"));
        let asked = by_set.map(|set| set.text()).or_else(|| texts(matches, "algorithm").pop());
        if let ([(_, own)], Some(other)) = (self.sets, asked.filter(|asked| self.sets.iter().all(|(_, own)| asked != own))) {
            let advice = format!(
                "`rlhost {}` trains with {own}; for another algorithm, use `rlhost train --algorithm {other}`",
                self.name
            );
            return Err(Failure::mistake(anyhow!(advice)));
        }
        let given = Given::of(matches, self.sets, known)?;
        let stopping = Stopping::listen()?;
        let from = texts(matches, "resume_from_checkpoint");
        let terms = Terms { allow_changed: matches.get_flag("allow_changed"), ..Terms::default() };
        let dries = matches.get_flag("dry_run");
        super::rank::on_this_rank(|world| {
            if from.iter().any(String::is_empty) {
                let detail = "--resume-from-checkpoint: the path is empty; leave it out to resume the run in --output-dir";
                return Err(Failure::mistake(anyhow!(detail)));
            }
            if dries && !from.is_empty() {
                let detail = "--dry-run shows how a run begins; leave out --resume-from-checkpoint";
                return Err(Failure::mistake(anyhow!(detail)));
            }
            if dries {
                return dry_run::run(&given, world);
            }
            if from.is_empty() {
                return start(&given, &Beginning::New, &stopping, world);
            }
            // OpenRLHF's --load_checkpoint says that, and its --ckpt_path where from.
            match from.iter().rfind(|path| !is_latest(path)) {
                Some(path) => {
                    let origin = Origin::find(Path::new(path)).map_err(Failure::of)?;
                    go_on(&given, origin, terms.clone(), (&stopping, world))
                }
                None => go_on_with_latest(&given, terms.clone(), (&stopping, world)),
            }
        })
    }
}

/// Resumes the run in the output directory, or starts it if it has no checkpoint.
fn go_on_with_latest(given: &Given, terms: Terms, (stopping, world): (&Stopping, &Rc<World>)) -> Result<(), Failure> {
    let Some(run) = given.output_dir().map_err(Failure::of)? else {
        let detail = "--resume-from-checkpoint needs a path, or --output-dir to find the latest checkpoint in";
        return Err(Failure::mistake(anyhow!(detail)));
    };
    let run = PathBuf::from(run);
    if RunFiles(&run).steps().is_ok_and(|steps| !steps.is_empty()) {
        return go_on(given, Origin::find(&run).map_err(Failure::of)?, terms, (stopping, world));
    }
    tracing::info!("{} has no checkpoint; starting from the first step", run.display());
    // The lock is the first thing that a run puts into its folder.
    start(given, if RunFiles(&run).lock().exists() { &Beginning::Over } else { &Beginning::New }, stopping, world)
}

/// Resumes a run, or starts a new one from its state if another folder is given.
pub(super) fn go_on(
    given: &Given,
    origin: Origin,
    terms: Terms,
    (stopping, world): (&Stopping, &Rc<World>),
) -> Result<(), Failure> {
    let same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    let fork = given.output_dir().map_err(Failure::of)?.filter(|folder| !same(Path::new(folder), &origin.run));
    if world.is_first() {
        let how = if fork.is_some() { "forking" } else { "resuming" };
        say!("{how} {} from step {}", printable_path(&origin.run), origin.step);
    }
    let beginning = if fork.is_some() {
        Beginning::Fork { origin, fresh: given.named_plugins() }
    } else {
        Beginning::Resume { origin, terms: Terms { named: given.named_plugins(), ..terms } }
    };
    start(given, &beginning, stopping, world)
}

/// Sets up a run and trains.
pub(super) fn start(given: &Given, beginning: &Beginning, stopping: &Stopping, world: &Rc<World>) -> Result<(), Failure> {
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
        // Whether the edit is at fault is not known, but without it the run can go on.
        (Failure::Mistake(error), Some(advice)) => {
            let said = format!("{error}; {advice}");
            Failure::Mistake(error.context(said))
        }
        (other, _) => other,
    })?;
    // Until the run has ended.
    let _page = (given.shows_page && world.is_first()).then(|| super::ui::beside(trainer.folder()));
    finish(trainer, stopping, &config, world)
}

/// Runs to the end and prints where everything is.
fn finish(trainer: Trainer, stopping: &Stopping, config: &Config, world: &World) -> Result<(), Failure> {
    let (max_steps, folder) = (trainer.max_steps(), trainer.folder().to_owned());
    let trackers = Trackers::of(&config.report_to, &folder, world);
    trackers.announce();
    let mut progress = Progress::new(trainer.calendar(), world.is_first());
    let stop = stopping.begin(&folder, trainer.steps_done());
    let finished = trainer.run(stop, &mut progress).map_err(|error| {
        trackers.export();
        ended_by(error, &Ended { folder: &folder, config })
    })?;
    if finished.stopped {
        stopping.confirm_once();
    }
    if !world.is_first() {
        return if finished.stopped { Err(Failure::Said(3)) } else { Ok(()) };
    }
    trackers.export();
    let report = FrozenPage::write_report(&finished.folder, super::ui::Plugins);
    if let Err(error) = &report {
        tracing::warn!("{error}; no report was written");
    }
    if tracing::enabled!(tracing::Level::INFO) {
        let ended = Ended { folder: &finished.folder, config };
        summary(&finished, &ended, max_steps, report.ok().as_deref());
    }
    if finished.stopped { Err(Failure::Stopped) } else { Ok(()) }
}

/// Classifies an error of the set-up, and says what to do about a plugin at fault.
fn not_begun(error: train::Error, beginning: &Beginning, config: &Config) -> Failure {
    let folder = beginning.origin().map_or_else(PathBuf::new, |origin| origin.run.clone());
    match (Ended { folder: &folder, config }).before_first_step(&error) {
        None => Failure::of(error),
        Some(advice) => {
            let said = format!("{error}; {advice}");
            Failure::of(anyhow::Error::new(error).context(said))
        }
    }
}

/// Classifies an error that ended a run after its set-up, and says how the run can go on. The run could write its files before, so one
/// that it can't write now is no mistake of the user.
fn ended_by(error: train::Error, ended: &Ended<'_>) -> Failure {
    let said = format!("{error}; {}", ended.after(&error));
    match error {
        train::Error::Write { .. } => Failure::failed(anyhow!(said)),
        other => Failure::of(anyhow::Error::new(other).context(said)),
    }
}

/// The trackers that the first process exports a run for when it ends, however it ends.
struct Trackers {
    folder: PathBuf,
    formats: Vec<Format>,
}

impl Trackers {
    fn of(report_to: &[ReportTo], folder: &Path, world: &World) -> Self {
        let format = |to: &ReportTo| match to {
            ReportTo::None | ReportTo::Tensorboard => None,
            ReportTo::Wandb => Some(Format::Wandb),
            ReportTo::Mlflow => Some(Format::Mlflow),
            ReportTo::Trackio => Some(Format::Trackio),
        };
        let formats = if world.is_first() { report_to.iter().filter_map(format).collect() } else { Vec::new() };
        Self { folder: folder.to_owned(), formats }
    }

    /// Says when they get the run: a tracker's own users expect to see it while it goes on.
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

/// Prints where everything is, and what to try next.
fn summary(finished: &Finished, ended: &Ended<'_>, max_steps: u64, report: Option<&Path>) {
    let (folder, checkpoint) = (shell_word(&finished.folder), shell_word(&finished.checkpoint));
    let took = HumanDuration(finished.took);
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
        say!("{}", ended.stopped(finished.steps));
        return;
    }
    if let [before, after] = &finished.samples[..] {
        say!("\nprompt:\n{}", indented(&before.prompt));
        for sample in [before, after] {
            say!("after {}, {} tokens:\n{}", counted(sample.step, "step"), sample.tokens, indented(&sample.completion));
        }
        say!("");
    }
    say!("done: {} in {took}", counted(finished.steps, "step"));
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
    fn a_run_that_can_no_longer_write_has_failed_but_a_mistake_stays_one() {
        let ended = Ended { folder: Path::new("nowhere"), config: &Config::default() };
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::StaleNetworkFileHandle] {
            let error = train::Error::Write { path: PathBuf::from("run/metrics.jsonl"), source: kind.into() };
            assert!(matches!(ended_by(error, &ended), Failure::Failed(_)), "{kind}");
        }
        let mistake = train::Error::Setting { key: "temperature", detail: "is too high".into() };
        let Failure::Mistake(said) = ended_by(mistake, &ended) else { panic!("it is a mistake") };
        assert_eq!(
            said.to_string(),
            "temperature: is too high; nothing was saved; start the run over: give its command again, with --resume-from-checkpoint"
        );
    }
}
