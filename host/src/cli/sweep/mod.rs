//! `rlhost sweep`: runs a grid of settings with several seeds, one run after another, and compares the runs in a table.

mod children;
mod plan;
mod state;
mod table;

use super::failure::CommandFailure;
use crate::config::words::counted;
use crate::config::{files, printable, printable_path, shell_word};
use crate::run::{RunFiles, lock};
use anyhow::{Context, anyhow};
use children::SweepProcesses;
use plan::{SweepPlan, SweepRun};
use state::SweepRunState;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use table::SweepTable;

/// Maximum number of simultaneous runs.
const MOST_JOBS: usize = 256;

/// Maximum size of a run's settings file, in bytes.
const LARGEST: u64 = 4 << 20;

/// Maximum length of a printed reason, in bytes, and maximum number of names in a message.
const REASON: usize = 300;
const NAMES: usize = 5;

/// Arguments of `sweep`.
#[derive(clap::Args)]
#[command(after_help = "A sweep's file:\n\n    \
                        command = \"grpo\"             # the training command [default: train]\n    \
                        output_dir = \"sweeps/lr\"     # folder of the runs [default: runs/ and the file's name]\n    \
                        seeds = [1, 2, 3]\n    \
                        metric = \"eval_reward\"       # or a list; last = 10 averages the last 10 values of a run\n\n    \
                        [settings]                   # as in a configuration file; config = FILE reads them from one\n    \
                        model = \"HuggingFaceTB/SmolLM2-135M-Instruct\"\n    \
                        max_steps = 100\n\n    \
                        [grid]                       # a list of values each; all combinations run\n    \
                        learning_rate = [1e-6, 1e-5]\n    \
                        \"loss.beta\" = [0.0, 0.04]\n\n\
                        Given again, the command skips finished runs and resumes the others. Ctrl-C stops the current runs after their \
                        step, and saves them. Exit codes: 0 all runs finished, 1 some failed, 2 the file is wrong, 3 stopped.")]
pub(super) struct Args {
    /// File of the sweep, in TOML
    file: PathBuf,
    /// Number of runs at a time [default: jobs in the file, or 1]
    #[arg(long, short = 'j', value_name = "N")]
    jobs: Option<usize>,
    /// Start no further runs after one has failed
    #[arg(long, alias = "fail_fast")]
    fail_fast: bool,
    /// List the runs without starting them
    #[arg(long, alias = "dry_run")]
    dry_run: bool,
    /// Metric of the table, instead of the file's; may be repeated
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let mut plan = SweepPlan::read(&args.file).map_err(CommandFailure::from_error)?;
    if !args.metric.is_empty() {
        plan.metrics.clone_from(&args.metric);
    }
    plan.jobs = args.jobs.unwrap_or(plan.jobs);
    if !(1..=MOST_JOBS).contains(&plan.jobs) {
        return Err(CommandFailure::mistake(anyhow!("--jobs {}: expected a number from 1 to {MOST_JOBS}", plan.jobs)));
    }
    if plan.folder.exists() && !plan.folder.is_dir() {
        return Err(CommandFailure::mistake(anyhow!(
            "{}: is a file; output_dir names the sweep's folder",
            plan.folder.display()
        )));
    }
    if RunFiles(&plan.folder).exist() {
        let advice = "give the sweep a folder of its own with output_dir";
        return Err(CommandFailure::mistake(anyhow!("{}: is the folder of a run; {advice}", plan.folder.display())));
    }
    let states: Vec<SweepRunState> = plan.runs.iter().map(|run| SweepRunState::read(&plan.folder.join(&run.name))).collect();
    check(&plan, &states).map_err(CommandFailure::from_error)?;
    if args.dry_run {
        list(&plan, &states);
        return rehearse(&plan, &states);
    }
    fs::create_dir_all(&plan.folder)
        .map_err(|source| CommandFailure::from_error(crate::train::Error::Write { path: plan.folder.clone(), source }))?;
    // Two processes of the same sweep would start the same runs.
    let _lock = lock(&plan.folder).map_err(|error| match error {
        TryLockError::WouldBlock => {
            CommandFailure::mistake(anyhow!("{}: another process runs this sweep", plan.folder.display()))
        }
        TryLockError::Error(source) => {
            CommandFailure::from_error(crate::train::Error::Write { path: plan.folder.clone(), source })
        }
    })?;
    let mut sweep = Sweep::new(&plan, &states);
    let stopped = sweep.run(args.fail_fast).map_err(CommandFailure::from_error)?;
    sweep.report(&args.file, stopped)
}

/// Refuses runs that were made with settings other than those in the file now.
fn check(plan: &SweepPlan, states: &[SweepRunState]) -> anyhow::Result<()> {
    for (run, _) in plan.runs.iter().zip(states).filter(|(_, state)| **state != SweepRunState::New) {
        let own = settings_file(plan, run);
        let folder = plan.folder.join(&run.name);
        let advice = || format!("remove {}, or give the sweep another output_dir", shell_word(&folder));
        let text = match files::read_text(&own, LARGEST) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(anyhow!("{}: this run is not of the sweep; {}", folder.display(), advice()));
            }
            read => read.map_err(|source| crate::config::Error::Io { path: own.clone(), source })?,
        };
        if text == run.file(&plan.command) {
            continue;
        }
        let before: toml::Table = text.parse().unwrap_or_default();
        let keys = before.keys().chain(run.settings.keys()).filter(|key| before.get(*key) != run.settings.get(*key));
        let mut keys: Vec<String> = keys.map(|key| printable(key, REASON)).collect();
        keys.sort();
        keys.dedup();
        let keys = if keys.is_empty() { "in its command".to_owned() } else { keys.join(", ") };
        return Err(anyhow!("{}: this run was made with other settings ({keys}); {}", folder.display(), advice()));
    }
    Ok(())
}

/// Prints the runs and the first run's command.
fn list(plan: &SweepPlan, states: &[SweepRunState]) {
    let count = |wanted: SweepRunState| states.iter().filter(|state| **state == wanted).count();
    let counts = [SweepRunState::Finished, SweepRunState::Interrupted, SweepRunState::Running, SweepRunState::New]
        .map(|state| (count(state), state.word()));
    let counts: Vec<String> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    say!("{} in {}: {}", counted(plan.runs.len() as u64, "run"), printable_path(&plan.folder), counts.join(", "));
    for (run, state) in plan.runs.iter().zip(states) {
        say!("{:<12} {}", state.word(), run.name);
    }
    if let Some(run) = plan.runs.first() {
        say!("\nsettings of each:");
        let shown = run.settings.iter().filter(|(key, _)| *key != "seed" && !plan.keys.contains(*key));
        shown.for_each(|(key, value)| say!("    {} = {value}", key));
    }
}

/// Runs each new run's command with `--dry-run`.
///
/// # Errors
/// If some runs could not begin; names them, with the reason of each.
fn rehearse(plan: &SweepPlan, states: &[SweepRunState]) -> Result<(), CommandFailure> {
    let new: Vec<&SweepRun> =
        plan.runs.iter().zip(states).filter(|(_, state)| **state == SweepRunState::New).map(|(run, _)| run).collect();
    let place = tempfile::tempdir().map_err(CommandFailure::from_error)?;
    let program = std::env::current_exe().map_err(CommandFailure::from_error)?;
    let mut wrong = 0;
    for (i, run) in new.iter().enumerate() {
        tracing::info!("[{}/{}] {}: trying its settings", i + 1, new.len(), run.name);
        let settings = place.path().join("settings.toml");
        std::fs::write(&settings, run.file(&plan.command)).map_err(CommandFailure::from_error)?;
        let mut command = Command::new(&program);
        command.arg(&plan.command).arg("--config").arg(&settings).arg("--output-dir").arg(plan.folder.join(&run.name));
        for set in &run.sets {
            command.args(["--set", set]);
        }
        let tried = command.args(["--dry-run", "--quiet"]).stdin(Stdio::null()).output().map_err(CommandFailure::from_error)?;
        if !tried.status.success() {
            wrong += 1;
            let said = String::from_utf8_lossy(&tried.stderr);
            let reason = said.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or("it failed without a word");
            // The file is the sweep's own, so its path is not part of the reason.
            let reason = reason.replace(&format!("{}: ", settings.display()), "");
            tracing::error!("{}: {}", run.name, printable(&reason, REASON));
        }
    }
    match wrong {
        0 if new.is_empty() => Ok(()),
        0 => {
            say!("\n{} can begin; nothing was trained or written", counted(new.len() as u64, "new run"));
            Ok(())
        }
        _ => Err(CommandFailure::mistake(anyhow!("{wrong} of {} could not begin", counted(new.len() as u64, "new run")))),
    }
}

/// Returns the path of a run's settings file.
fn settings_file(plan: &SweepPlan, run: &SweepRun) -> PathBuf {
    plan.folder.join(format!("{}.toml", run.name))
}

/// Outcome of a run in this sweep.
#[derive(Clone, Debug, PartialEq)]
enum SweepRunEnd {
    /// The run was not started.
    None,
    Finished,
    Stopped,
    Failed(String),
}

/// A running sweep.
struct Sweep<'a> {
    plan: &'a SweepPlan,
    states: &'a [SweepRunState],
    ends: Vec<SweepRunEnd>,
}

impl<'a> Sweep<'a> {
    fn new(plan: &'a SweepPlan, states: &'a [SweepRunState]) -> Self {
        let end =
            |state: &SweepRunState| if *state == SweepRunState::Finished { SweepRunEnd::Finished } else { SweepRunEnd::None };
        Self { plan, states, ends: states.iter().map(end).collect() }
    }

    /// Runs everything that is not finished. Returns whether a signal stopped the sweep.
    fn run(&mut self, fail_fast: bool) -> anyhow::Result<bool> {
        let mut children = SweepProcesses::listen()?;
        let mut waiting: Vec<usize> = (0..self.ends.len()).rev().filter(|&i| self.ends[i] != SweepRunEnd::Finished).collect();
        let skipped = self.ends.len() - waiting.len();
        if skipped > 0 {
            tracing::info!("{} of {} are finished and skipped", skipped, counted(self.ends.len() as u64, "run"));
        }
        loop {
            let failed = fail_fast && self.ends.iter().any(|end| matches!(end, SweepRunEnd::Failed(_)));
            let more = !failed && !children.is_stopping();
            match waiting.pop().filter(|_| more) {
                Some(run) if children.running() < self.plan.jobs => self.start(&mut children, run),
                next => {
                    waiting.extend(next);
                    if children.running() == 0 {
                        return Ok(children.is_stopping());
                    }
                    let (run, status) = children.wait()?;
                    self.ends[run] = self.end(run, status);
                    self.say(run, &self.ends[run]);
                }
            }
        }
    }

    fn folder(&self, run: usize) -> PathBuf {
        self.plan.folder.join(&self.plan.runs[run].name)
    }

    /// Starts a run, or reports why it can't be started.
    fn start(&mut self, children: &mut SweepProcesses, run: usize) {
        if self.states[run] == SweepRunState::Running {
            self.ends[run] = SweepRunEnd::Failed("another process runs it".to_owned());
        } else if let Err(error) = self.command(run).and_then(|mut command| Ok(children.start(run, &mut command)?)) {
            self.ends[run] = SweepRunEnd::Failed(format!("can't start it: {error:#}"));
        } else {
            let how = if self.states[run] == SweepRunState::Interrupted { "resuming" } else { "starting" };
            let log =
                if self.plan.jobs > 1 { format!("; it writes to {}", printable_path(&self.log(run))) } else { String::new() };
            tracing::info!("{}: {how}{log}", self.title(run));
            return;
        }
        self.say(run, &self.ends[run]);
    }

    /// Returns a run's position in the sweep and its name.
    fn title(&self, run: usize) -> String {
        format!("[{}/{}] {}", run + 1, self.ends.len(), self.plan.runs[run].name)
    }

    fn say(&self, run: usize, end: &SweepRunEnd) {
        match end {
            SweepRunEnd::Failed(reason) => tracing::error!("{}: {reason}", self.title(run)),
            SweepRunEnd::Stopped => tracing::info!("{}: stopped", self.title(run)),
            SweepRunEnd::Finished | SweepRunEnd::None => tracing::info!("{}: finished", self.title(run)),
        }
    }

    fn log(&self, run: usize) -> PathBuf {
        self.plan.folder.join(format!("{}.log", self.plan.runs[run].name))
    }

    /// Writes a run's settings and returns its command.
    fn command(&self, run: usize) -> anyhow::Result<Command> {
        let own = &self.plan.runs[run];
        let settings = settings_file(self.plan, own);
        let written = files::temporary_in(&self.plan.folder).and_then(|mut file| {
            file.write_all(own.file(&self.plan.command).as_bytes())?;
            file.persist(&settings).map_err(|error| error.error)?;
            Ok(())
        });
        written.with_context(|| format!("can't write {}", settings.display()))?;
        let mut command = Command::new(std::env::current_exe().context("can't find this program's file")?);
        command.arg(&self.plan.command).arg("--config").arg(&settings).arg("--output-dir").arg(self.folder(run));
        for set in &own.sets {
            command.args(["--set", set]);
        }
        if !tracing::enabled!(tracing::Level::INFO) {
            command.arg("--quiet");
        }
        if self.states[run] == SweepRunState::Interrupted {
            command.arg("--resume-from-checkpoint");
        } else if self.plan.jobs > 1 && !own.settings.keys().any(|key| key.replace('-', "_") == "num_threads") {
            // Otherwise each run would use all processors.
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            command.args(["--num-threads", &(processors / self.plan.jobs).max(1).to_string()]);
        }
        command.stdin(Stdio::null());
        if self.plan.jobs > 1 {
            let path = self.log(run);
            let log = files::open_for_writing(&path, File::options().append(true))
                .with_context(|| format!("can't write {}", path.display()))?;
            command.stdout(log.try_clone()?).stderr(log);
        } else {
            // Standard output is reserved for the table.
            command.stdout(io::stderr());
        }
        Ok(command)
    }

    /// Returns how a run's process ended.
    fn end(&self, run: usize, status: ExitStatus) -> SweepRunEnd {
        match status.code() {
            Some(0) => SweepRunEnd::Finished,
            Some(3 | 130 | 143) => SweepRunEnd::Stopped,
            code => {
                let how = code.map_or_else(|| status.to_string(), |code| format!("exit code {code}"));
                let reason = state::reason(&self.folder(run)).map(|reason| format!(": {}", printable(&reason, REASON)));
                let log = if self.plan.jobs > 1 { format!("; see {}", printable_path(&self.log(run))) } else { String::new() };
                SweepRunEnd::Failed(format!("failed with {how}{}{log}", reason.unwrap_or_default()))
            }
        }
    }

    /// Prints the table, and the remaining work.
    fn report(&self, file: &Path, stopped: bool) -> Result<(), CommandFailure> {
        let finished: Vec<bool> = self.ends.iter().map(|end| *end == SweepRunEnd::Finished).collect();
        let table = SweepTable::read(self.plan, &finished);
        table.lines.iter().for_each(|line| say!("{line}"));
        table.note.iter().for_each(|note| tracing::warn!("{note}"));
        let again = format!("rlhost sweep {}", shell_word(file));
        let failed: Vec<&str> = self
            .ends
            .iter()
            .zip(&self.plan.runs)
            .filter(|(end, _)| matches!(end, SweepRunEnd::Failed(_)))
            .map(|(_, run)| run.name.as_str())
            .collect();
        let open = finished.iter().filter(|finished| !**finished).count();
        if stopped {
            say!("stopped with {open} of {} to do; resume with: {again}", counted(finished.len() as u64, "run"));
            return Err(CommandFailure::Stopped);
        }
        if !failed.is_empty() {
            let more = if failed.len() > NAMES { format!(" and {} more", failed.len() - NAMES) } else { String::new() };
            let names = failed.iter().take(NAMES).copied().collect::<Vec<_>>().join(", ");
            let runs = counted(finished.len() as u64, "run");
            return Err(CommandFailure::failed(anyhow!(
                "{} of {runs} failed: {names}{more}; to try again: {again}",
                failed.len()
            )));
        }
        if open > 0 {
            let runs = counted(finished.len() as u64, "run");
            return Err(CommandFailure::failed(anyhow!("{open} of {runs} were stopped; to resume them: {again}")));
        }
        Ok(())
    }
}
