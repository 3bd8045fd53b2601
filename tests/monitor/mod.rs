//! Runs with misbehaving plugins, observed from outside: memory, files, and reports about swaps.

use crate::{CommandOutcome, KilledOnDrop, TestFolder, binary};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Maximum additional memory of a process because of the misdeed, in bytes.
pub const MEMORY: u64 = 1 << 30;

/// Maximum size of any file of a run, in bytes.
const ORDINARY: u64 = 2 << 20;

/// Maximum time to wait.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns the peak memory of a process so far, and the greatest of its children; `None` if the system doesn't report it.
fn peak(process: u32) -> Option<(u64, u64)> {
    let of = |process: &str| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    let own = of(&process.to_string())?;
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<String> = children.flat_map(|all| all.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect();
    Some((own, children.iter().filter_map(|child| of(child)).max().unwrap_or(0)))
}

/// Outcome of an observed process, and the peak memory of it and its children.
pub struct MeasuredOutcome {
    /// Outcome of the process.
    pub outcome: CommandOutcome,
    /// Peak memory of the process itself, and of a child.
    pub peak: (u64, u64),
}

/// Runs the binary in a folder and measures its memory.
///
/// # Panics
/// If it can't be started.
#[must_use]
pub fn run_monitored(place: &TestFolder, arguments: &[&str]) -> MeasuredOutcome {
    let mut child = begin(place, arguments);
    let mut most = (0, 0);
    loop {
        if let Some(now) = peak(child.id()) {
            most = (most.0.max(now.0), most.1.max(now.1));
        }
        if let Some(status) = child.try_wait().expect("what a run has") {
            let text = |name: &str| fs::read_to_string(place.path(name)).expect("what a run has");
            let outcome = CommandOutcome { code: status.code(), stdout: text("stdout"), stderr: text("stderr") };
            return MeasuredOutcome { outcome, peak: most };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts the binary; its output goes to `stdout` and `stderr` in the folder.
fn begin(place: &TestFolder, arguments: &[&str]) -> Child {
    let file = |name: &str| File::create(place.path(name)).expect("what a run has");
    let mut command = Command::new(binary());
    command.current_dir(place.path("")).args(arguments).env_remove("RUST_LOG").env("NO_COLOR", "1").env("HF_HUB_OFFLINE", "1");
    command.stdout(file("stdout")).stderr(file("stderr")).spawn().expect("what a run has")
}

/// Asserts that a misdeed neither drew on the terminal nor made files of the run large.
///
/// # Panics
/// If it did.
pub fn assert_ordinary(place: &TestFolder, what: &str) {
    let hidden = |text: &str| text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}');
    for name in ["stdout", "stderr"] {
        let text = fs::read_to_string(place.path(name)).expect("what a run has");
        assert!(text.len() < 200_000 && !hidden(&text), "{what}: {name}: {} bytes", text.len());
    }
    if place.path("run/metrics.jsonl").exists() {
        place.run(&["report", "run"]).succeeded();
        assert_small(&place.path("run"), what);
    }
}

/// Asserts that no file of a run is large, except checkpoints and stored plugins.
fn assert_small(folder: &Path, what: &str) {
    for entry in fs::read_dir(folder).expect("what a run has").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && !name.starts_with("checkpoint-") && name != "plugins" {
            assert_small(&path, what);
        } else if path.is_file() {
            let bytes = path.metadata().expect("what a run has").len();
            assert!(bytes < ORDINARY, "{what}: {} has {bytes} bytes", path.display());
        }
    }
}

/// Asserts that all metrics of a run are finite. Returns the number of their lines.
///
/// # Panics
/// If one is not.
pub fn assert_finite(place: &TestFolder, what: &str) -> usize {
    let lines = place.figures("run");
    assert!(lines.iter().flatten().all(|(_, value)| value.is_finite()), "{what}: {lines:?}");
    lines.len()
}

/// Asserts that the run failed in a step with an error that contains `says`, after saving a checkpoint.
///
/// # Panics
/// If it did not.
pub fn assert_ended(what: &str, says: &str, place: &TestFolder, outcome: &CommandOutcome) {
    assert_eq!(outcome.code, Some(1), "{what}: {}", outcome.stderr);
    assert!(outcome.error().contains(says), "{what}: {}", outcome.error());
    let last = *place.checkpoints("run").last().unwrap_or_else(|| panic!("{what}: nothing is saved"));
    place.run(&["checkpoint", "verify", &format!("run/checkpoint-{last}")]).succeeded();
    assert!(place.events("run", "failed").iter().any(|event| event["step"] == last), "{what}");
    assert_finite(place, what);
}

/// A running run with a plugin that does nothing wrong.
pub struct MonitoredRun {
    /// Name of the swapped plugin.
    name: &'static str,
    // Dropped before its folder.
    child: KilledOnDrop,
    place: TestFolder,
    /// Peak memory of the children.
    children: u64,
    /// Peak memory before the first swap.
    calm: u64,
}

impl MonitoredRun {
    /// Starts a run with these arguments.
    ///
    /// # Panics
    /// If it does not begin.
    #[must_use]
    pub fn start(place: TestFolder, name: &'static str, arguments: &[&str]) -> Self {
        // On one thread: what counts are the swaps, and its steps take the processor from them and from other tests.
        let run = [
            "--max-steps",
            "100000",
            "--logging-steps",
            "20",
            "--log-completions",
            "none",
            "--num-threads",
            "1",
            "--output-dir",
            "run",
        ];
        let child = KilledOnDrop(begin(&place, &[arguments, &run].concat()));
        let mut this = Self { name, place, child, children: 0, calm: 0 };
        this.wait("the first steps", |this| this.steps() > 0);
        this.calm = peak(this.child.id()).map_or(0, |(own, _)| own);
        this
    }

    fn wait(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            let said = || fs::read_to_string(self.place.path("stderr")).expect("what a run has");
            assert!(begun.elapsed() < PATIENCE, "{what} is waited for: {}", said());
            assert!(self.child.try_wait().expect("what a run has").is_none(), "{what}: the run ended: {}", said());
            self.children = self.children.max(peak(self.child.id()).map_or(0, |(_, children)| children));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn steps(&self) -> usize {
        self.place.steps("run")
    }

    /// Returns the events of a kind; an incomplete last line is skipped.
    #[must_use]
    pub fn events(&self, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.place.path("run/events.jsonl")).unwrap_or_default();
        let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        lines.filter(|e| e["event"] == kind).collect()
    }

    /// Sends a version to the run, and returns the answer.
    fn swap(&mut self, what: &str, file: &[u8]) -> CommandOutcome {
        self.place.write("next.wasm", file);
        let mut swap = Command::new(binary());
        swap.current_dir(self.place.path("")).args(["swap", "run", &format!("{}=next.wasm", self.name)]).env("NO_COLOR", "1");
        let file = |name: &str| File::create(self.place.path(name)).expect("what a run has");
        let mut swap = swap.stdout(file("answer")).stderr(file("refusal")).spawn().expect("what a run has");
        let begun = Instant::now();
        while swap.try_wait().expect("what a run has").is_none() {
            if begun.elapsed() > PATIENCE {
                swap.kill().expect("what a run has");
            }
            self.children = self.children.max(peak(self.child.id()).map_or(0, |(_, children)| children));
            std::thread::sleep(Duration::from_millis(10));
        }
        let code = swap.wait().expect("what a run has").code();
        assert!(begun.elapsed() <= PATIENCE, "{what}: no answer");
        let text = |name: &str| fs::read_to_string(self.place.path(name)).expect("what a run has");
        CommandOutcome { code, stdout: text("answer"), stderr: text("refusal") }
    }

    /// Asserts that the run refuses the version, and says why.
    ///
    /// # Panics
    /// If it does not.
    pub fn assert_refused(&mut self, what: &str, file: &[u8], says: &str) {
        let before = self.events("plugin_refused").len();
        let answer = self.swap(what, file);
        assert!(answer.error().contains(says), "{what}: {}", answer.error());
        if file.len() > 64 << 20 {
            // Such a version is not even sent.
            return assert_eq!(answer.code, Some(2), "{what}: {}{}", answer.stdout, answer.stderr);
        }
        assert_eq!(answer.code, Some(1), "{what}: {}{}", answer.stdout, answer.stderr);
        assert!(answer.error().contains(self.name), "{what}: {}", answer.error());
        let events = self.events("plugin_refused");
        assert_eq!((events.len(), &events[before]["plugin"]), (before + 1, &Value::from(self.name)), "{what}");
        assert!(events[before]["reason"].as_str().expect("what a run has").contains(says), "{what}: {}", events[before]);
    }

    /// Asserts that the version is swapped in, fails in a step, and is rolled back.
    ///
    /// # Panics
    /// If that is not so.
    pub fn assert_rolled_back(&mut self, what: &str, file: &[u8], says: &str) {
        let before = self.events("plugin_rolled_back").len();
        self.swap(what, file).succeeded();
        self.wait(what, |this| this.events("plugin_rolled_back").len() > before);
        let event = &self.events("plugin_rolled_back")[before];
        let reason = event["reason"].as_str().expect("what a run has");
        assert!(event["plugin"] == self.name && reason.contains(self.name) && reason.contains(says), "{what}: {event}");
    }

    /// Asserts that the version is swapped in and stays.
    ///
    /// # Panics
    /// If that is not so.
    pub fn assert_swapped(&mut self, what: &str, file: &[u8]) {
        self.swap(what, file).succeeded();
        let steps = self.steps();
        self.wait(what, |this| this.steps() > steps);
    }

    /// Asserts that the run is unaffected by the swaps, stops it, and resumes it for further steps.
    ///
    /// # Panics
    /// If that is not so.
    #[expect(clippy::print_stdout, reason = "figures for SECURITY.md")]
    pub fn end(mut self, what: &str) {
        let steps = self.steps();
        self.wait("further steps", |this| this.steps() > steps);
        let own = peak(self.child.id()).map_or(0, |(own, _)| own);
        let (beyond, calm, children) = (own.saturating_sub(self.calm), self.calm >> 20, self.children);
        assert!(beyond < MEMORY, "{} MiB beyond {calm} MiB", beyond >> 20);
        assert!(children < MEMORY, "{} MiB to compile", children >> 20);
        self.child.signal("TERM");
        assert_eq!(self.child.wait().expect("what a run has").code(), Some(3), "{what}");
        let place = std::mem::take(&mut self.place);
        let last = *place.checkpoints("run").last().expect("what a run has");
        let on = format!("max_steps={}", last + 4);
        place.run(&["resume", "run", "--set", &on]).succeeded();
        let lines = assert_finite(&place, what);
        let steps = place.figure("run", "step");
        assert!(steps.windows(2).all(|w| w[0] < w[1] && w[1] <= w[0] + 20.0), "{what}: a step was left out: {steps:?}");
        assert_ordinary(&place, what);
        let swaps = place.events("run", "plugin_swapped").len();
        println!(
            "{what}: {swaps} swaps in {last} steps, {lines} lines of figures; {} MiB beyond {calm} MiB, {} MiB to compile",
            beyond >> 20,
            children >> 20
        );
    }
}
