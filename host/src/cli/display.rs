//! Shows progress: on a terminal as a status line at the bottom, otherwise as a log line when nothing else was printed for a while.

use crate::activity::{self, Activity, ActivityTime, ProgressStatus, ProgressUnit};
use crate::config::words::clock;
use crate::train::Calendar;
use console::Term;
use indicatif::{HumanBytes, HumanCount};
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Polling interval for tasks.
const TICK: Duration = Duration::from_millis(100);

/// Minimum duration of a task outside a run to be shown.
const SHORT: Duration = Duration::from_millis(300);

/// Without a terminal, seconds of silence after which a line is printed: before a run's first step, and later.
const SILENCE: Duration = Duration::from_secs(5);
const SILENCE_OF_STEPS: Duration = Duration::from_secs(30);

/// Widths of the bar. The first that leaves room for the words is used.
const BARS: [usize; 3] = [30, 12, 0];

/// Maximum number of tasks shown: a task and its subtask.
const DEPTH: usize = 2;

struct ProgressDisplay {
    /// Whether standard error is a terminal, to draw the status line on.
    on_terminal: bool,
    state: Mutex<DisplayState>,
}

struct DisplayState {
    run: Option<RunTimer>,
    /// The current status line; empty if there is none.
    line: String,
    /// Time of the last output.
    printed: Instant,
    over: bool,
}

static DISPLAY: OnceLock<ProgressDisplay> = OnceLock::new();

/// Starts the display unless messages are turned off; without a terminal, only if progress should be logged (`log`).
pub(super) fn start(log: bool) {
    if !tracing::enabled!(tracing::Level::INFO) || DISPLAY.get().is_some() {
        return;
    }
    let terminal = std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    if !terminal && !log {
        // Saves a thread, which takes address space that may be limited.
        return;
    }
    let state = DisplayState { run: None, line: String::new(), printed: Instant::now(), over: false };
    let display = ProgressDisplay { on_terminal: terminal, state: Mutex::new(state) };
    if DISPLAY.set(display).is_ok() {
        // If the thread can't start, the run only shows no progress.
        drop(std::thread::Builder::new().name("display".into()).stack_size(512 << 10).spawn(watch));
    }
}

/// Calls `print` with the status line cleared.
pub(super) fn above<T>(print: impl FnOnce() -> T) -> T {
    let Some(display) = DISPLAY.get() else { return print() };
    display.with(|state| {
        state.printed = Instant::now();
        // The next poll redraws the line.
        state.draw(String::new());
        print()
    })
}

/// Removes the status line for good, because the process is about to end.
pub(super) fn end() {
    if let Some(display) = DISPLAY.get() {
        display.with(|state| {
            state.over = true;
            state.draw(String::new());
        });
    }
}

/// Shows the steps of a run; `None` stops that.
pub(super) fn set_run(run: Option<RunTimer>) {
    if let Some(display) = DISPLAY.get() {
        display.with(|state| state.run = run);
    }
}

/// Records that the run completed this step.
pub(super) fn stepped(step: u64) {
    if let Some(display) = DISPLAY.get() {
        display.with(|state| state.run.iter_mut().for_each(|run| run.take(step)));
    }
}

/// Polls the tasks until the process ends.
fn watch() {
    let Some(display) = DISPLAY.get() else { return };
    while !display.with(|state| state.over) {
        std::thread::sleep(TICK);
        let now = Instant::now();
        let tasks = activity::current();
        if display.on_terminal {
            let width = usize::from(Term::stderr().size().1);
            display.with(|state| {
                let text = shown(&tasks, state.run.as_ref(), now, width).filter(|_| !state.over);
                state.draw(text.unwrap_or_default());
            });
            continue;
        }
        let text = display.with(|state| {
            let silence = if state.run.is_some() { SILENCE_OF_STEPS } else { SILENCE };
            (now - state.printed > silence).then(|| shown(&tasks, state.run.as_ref(), now, usize::MAX)).flatten()
        });
        if let Some(text) = text {
            tracing::info!("{text}");
        }
    }
}

impl ProgressDisplay {
    fn with<T>(&self, work: impl FnOnce(&mut DisplayState) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl DisplayState {
    /// Replaces the status line. The cursor stays at its end, so that text echoed by the terminal is overwritten too.
    fn draw(&mut self, line: String) {
        if line != self.line {
            // Without a reader, a failed write loses nothing.
            drop(write!(std::io::stderr(), "\r\x1b[2K{line}"));
            self.line = line;
        }
    }
}

/// Progress of a run's steps, and their durations.
pub(super) struct RunTimer {
    calendar: Calendar,
    began: Instant,
    step: u64,
    /// When the latest step ended.
    stepped: Instant,
    /// Time of evaluations, checkpoints and pauses before the run.
    before: PauseTimes,
    /// Time of evaluations, checkpoints and pauses when the latest step ended.
    pauses: PauseTimes,
}

/// Time between steps.
#[derive(Clone, Copy, Default)]
struct PauseTimes {
    evaluating: ActivityTime,
    saving: ActivityTime,
    /// Time that the run was paused, on request.
    paused: ActivityTime,
}

impl PauseTimes {
    fn now() -> Self {
        let [evaluating, saving, paused] = [Activity::Evaluating, Activity::Saving, Activity::Paused].map(activity::spent);
        Self { evaluating, saving, paused }
    }

    fn since(self, before: Self) -> Self {
        let less = |now: ActivityTime, before: ActivityTime| ActivityTime {
            times: now.times - before.times,
            time: now.time - before.time,
        };
        Self {
            evaluating: less(self.evaluating, before.evaluating),
            saving: less(self.saving, before.saving),
            paused: less(self.paused, before.paused),
        }
    }

    fn total(self) -> Duration {
        self.evaluating.time + self.saving.time + self.paused.time
    }
}

impl RunTimer {
    /// Creates the timer of a run that is about to begin.
    pub(super) fn new(calendar: Calendar) -> Self {
        let (now, before) = (Instant::now(), PauseTimes::now());
        Self { calendar, began: now, step: calendar.first, stepped: now, before, pauses: before }
    }

    fn take(&mut self, step: u64) {
        (self.step, self.stepped, self.pauses) = (step, Instant::now(), PauseTimes::now());
    }

    /// Returns the remaining time, if steps continue at the same speed.
    fn left(&self, tasks: &[ProgressStatus], now: Instant) -> Option<Duration> {
        let pauses = self.pauses.since(self.before);
        let of_steps = (self.stepped - self.began).saturating_sub(pauses.total());
        let taken = self.step.checked_sub(self.calendar.first).filter(|taken| *taken > 0)?;
        let (a_step, pauses) = (of_steps.as_secs_f64() / taken as f64, [pauses.evaluating, pauses.saving].map(mean));
        let left = self.calendar.seconds_left(self.step, a_step, pauses);
        Some(Duration::from_secs_f64(left).saturating_sub(self.since_step(tasks, now)))
    }

    /// Returns the time since the latest step, except that of pauses.
    fn since_step(&self, tasks: &[ProgressStatus], now: Instant) -> Duration {
        let ended = activity::spent(Activity::Paused).time.saturating_sub(self.pauses.paused.time);
        let pause = tasks.iter().find(|status| status.activity == Activity::Paused);
        let paused = ended + pause.map_or(Duration::ZERO, |status| now.saturating_duration_since(status.began));
        now.saturating_duration_since(self.stepped).saturating_sub(paused)
    }

    /// Returns the line without its bar: `3/100  0:12 elapsed, 7:05 left`.
    fn words(&self, tasks: &[ProgressStatus], now: Instant) -> String {
        let left = self
            .left(tasks, now)
            .filter(|_| self.step < self.calendar.last)
            .map(|left| format!(", {} left", clock(left)))
            .unwrap_or_default();
        format!("{}/{}  {} elapsed{left}", self.step, self.calendar.last, clock(now - self.began))
    }

    /// Returns the fraction of completed steps.
    fn share(&self) -> f64 {
        if self.calendar.last == 0 { 1.0 } else { self.step as f64 / self.calendar.last as f64 }
    }
}

/// Returns a bar, filled to this fraction.
fn bar(share: f64, width: usize) -> String {
    let full = ((share * width as f64) as usize).min(width);
    format!("{}{}", "\u{2588}".repeat(full), "\u{2591}".repeat(width - full))
}

/// Prepends the longest bar that leaves room for the words; a log line, whose width is unlimited, has none.
fn with_bar(words: &str, share: f64, width: usize) -> String {
    let fits = |bar: &usize| width < usize::MAX && words.chars().count() + bar + 1 < width;
    match BARS.into_iter().find(fits).unwrap_or(0) {
        0 => words.to_owned(),
        room => format!("{} {words}", bar(share, room)),
    }
}

/// Returns the completed fraction of a task, if its total is known.
fn share(status: &ProgressStatus) -> Option<f64> {
    status.total.filter(|total| *total > 0).map(|total| status.done as f64 / total as f64).filter(|share| *share <= 1.0)
}

/// Returns the mean time of an activity, in seconds.
fn mean(spent: ActivityTime) -> Option<f64> {
    (spent.times > 0).then(|| spent.time.as_secs_f64() / f64::from(spent.times))
}

/// Returns the line for these tasks, at most `width` columns wide; `None` if there is nothing to show.
fn shown(tasks: &[ProgressStatus], run: Option<&RunTimer>, now: Instant, width: usize) -> Option<String> {
    let Some(run) = run else {
        let long = chosen(tasks.iter().filter(|status| now.saturating_duration_since(status.began) >= SHORT));
        return (!long.is_empty()).then(|| cut(&of_tasks(&long, now, width), width));
    };
    let words = chosen(tasks.iter()).into_iter().map(|status| described(status, now));
    let words = [vec![run.words(tasks, now)], words.collect()].concat().join("  ");
    Some(cut(&with_bar(&words, run.share(), width), width))
}

/// Returns the line for tasks outside a run, shortened to leave room for a bar if one of the tasks has one. The tasks share a clock: that of
/// the one with the bar, or else of the outermost.
fn of_tasks(tasks: &[&ProgressStatus], now: Instant, width: usize) -> String {
    // The innermost task progresses fastest.
    let moving = tasks.iter().rev().find_map(|status| Some((*status, share(status)?)));
    let timed = moving.map(|(status, _)| status).or_else(|| tasks.first().copied());
    let words = tasks.iter().map(|status| described(status, now)).collect::<Vec<_>>().join(", ");
    let whole = words + &timed.map(|status| ticking(status, now)).unwrap_or_default();
    // A log line has no bar.
    let Some((moving, share)) = moving.filter(|_| width < usize::MAX) else { return whole };
    let fits = |words: &String| words.chars().count() + BARS[1] + 1 < width;
    let brief = || format!("{}{}", counted(moving), remaining(moving, now));
    with_bar(&Some(whole).filter(fits).unwrap_or_else(brief), share, width)
}

/// Returns the tasks to show: the outermost [`DEPTH`], with nested tasks of one activity as one, by the first whose total is known.
fn chosen<'a>(tasks: impl Iterator<Item = &'a ProgressStatus>) -> Vec<&'a ProgressStatus> {
    let mut shown: Vec<&ProgressStatus> = Vec::new();
    for status in tasks {
        match shown.last_mut().filter(|last| last.activity == status.activity) {
            Some(last) if last.total.is_none() && status.total.is_some() => *last = status,
            Some(_) => {}
            None => shown.push(status),
        }
    }
    shown.truncate(DEPTH);
    shown
}

/// Truncates a line to less than a terminal's width, to prevent wrapping.
fn cut(line: &str, width: usize) -> String {
    match width.saturating_sub(1) {
        0 => String::new(),
        room => console::truncate_str(line, room, "\u{2026}").into_owned(),
    }
}

/// Describes a task: `generating 37/128, 8,192 tokens (512/s)`.
fn described(status: &ProgressStatus, now: Instant) -> String {
    let seconds = now.saturating_duration_since(status.began).as_secs_f64();
    let speed = match (status.tokens, status.unit) {
        (0, ProgressUnit::Bytes) if status.done > 0 && seconds > 0.5 => {
            format!(" ({}/s)", HumanBytes((status.done as f64 / seconds) as u64))
        }
        (tokens, _) if tokens > 0 && seconds > 0.5 => {
            format!(", {} tokens ({}/s)", HumanCount(tokens), HumanCount((tokens as f64 / seconds).round() as u64))
        }
        _ => String::new(),
    };
    format!("{}{speed}", counted(status))
}

/// Describes a task's progress: `generating 37/128`.
fn counted(status: &ProgressStatus) -> String {
    let mut text = status.activity.name().to_owned();
    if !status.subject.is_empty() {
        text.push_str(&format!(" {}", status.subject));
    }
    let count = |n: u64| match status.unit {
        ProgressUnit::Bytes => HumanBytes(n).to_string(),
        _ => HumanCount(n).to_string(),
    };
    let counted = match status.total {
        Some(total) => format!(" {}/{}", count(status.done), count(total)),
        None if status.done > 0 => format!(" {}", count(status.done)),
        None => String::new(),
    };
    let rows = if status.unit == ProgressUnit::Rows && !counted.is_empty() { " rows" } else { "" };
    format!("{text}{counted}{rows}")
}

/// Returns the elapsed time of a task, and its estimated remaining time if known.
fn ticking(status: &ProgressStatus, now: Instant) -> String {
    let elapsed = clock(now.saturating_duration_since(status.began));
    left(status, now).map_or_else(|| format!("  {elapsed}"), |left| format!("  {elapsed} elapsed, {} left", clock(left)))
}

/// Returns the estimated remaining time of a task, or its elapsed time.
fn remaining(status: &ProgressStatus, now: Instant) -> String {
    left(status, now).map_or_else(|| ticking(status, now), |left| format!("  {} left", clock(left)))
}

fn left(status: &ProgressStatus, now: Instant) -> Option<Duration> {
    let elapsed = now.saturating_duration_since(status.began);
    let share = share(status).filter(|share| *share > 0.02 && elapsed > Duration::from_secs(2))?;
    Some(elapsed.mul_f64(1.0 / share - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    fn status(activity: Activity, done: u64, total: Option<u64>) -> ProgressStatus {
        let (subject, unit) = (Cow::Borrowed(""), ProgressUnit::Things);
        ProgressStatus { activity, subject, began: Instant::now(), done, total, unit, tokens: 0 }
    }

    #[test]
    fn a_task_is_described_with_what_is_known_of_it() {
        let mut generating = status(Activity::Generating, 37, Some(128));
        let now = generating.began + Duration::from_secs(4);
        assert_eq!(described(&generating, now), "generating 37/128");
        generating.tokens = 8192;
        assert_eq!(described(&generating, now), "generating 37/128, 8,192 tokens (2,048/s)");
        let rows = ProgressStatus { unit: ProgressUnit::Rows, ..status(Activity::ReadingDataset, 40123, None) };
        assert_eq!(described(&rows, rows.began), "reading the dataset 40,123 rows");
        let compiling = ProgressStatus { subject: "answer_reward.wasm".into(), ..status(Activity::CompilingPlugin, 0, None) };
        assert_eq!(described(&compiling, compiling.began), "compiling answer_reward.wasm");
        let file = ProgressStatus {
            unit: ProgressUnit::Bytes,
            subject: "a.safetensors".into(),
            ..status(Activity::Downloading, 1 << 20, Some(4 << 20))
        };
        let now = file.began + Duration::from_secs(2);
        assert_eq!(described(&file, now), "downloading a.safetensors 1.00 MiB/4.00 MiB (512.00 KiB/s)");
        assert_eq!(ticking(&file, file.began + Duration::from_secs(3)), "  0:03 elapsed, 0:09 left");
        let phases = [Activity::UpdatingWeights, Activity::SamplingExample, Activity::CheckingRows];
        let named = phases.map(|phase| counted(&status(phase, 0, None)));
        assert_eq!(named, ["updating weights", "sampling an example", "checking the dataset's rows"]);
    }

    #[test]
    fn the_time_left_stands_still_while_the_run_is_paused() {
        let mut run = RunTimer::new(Calendar { first: 0, last: 10, ..Calendar::default() });
        (run.step, run.stepped) = (5, run.began + Duration::from_secs(50));
        let after = |seconds: u64| run.stepped + Duration::from_secs(seconds);
        let left = |tasks: &[ProgressStatus], now: Instant| run.left(tasks, now).unwrap().as_secs_f64().round();
        assert_eq!([0, 30].map(|seconds| left(&[], after(seconds))), [50.0, 20.0]);
        let pause = [ProgressStatus { began: after(10), ..status(Activity::Paused, 0, None) }];
        assert_eq!([10, 30, 3000].map(|seconds| left(&pause, after(seconds))), [40.0; 3]);
        assert!(shown(&pause, Some(&run), after(30), 120).unwrap().ends_with("5/10  1:20 elapsed, 0:40 left  paused"));
    }

    #[test]
    fn a_line_fits_the_terminal_and_short_tasks_are_not_shown() {
        let mut run = RunTimer::new(Calendar { first: 0, last: 200, ..Calendar::default() });
        run.take(50);
        let tasks = [status(Activity::Evaluating, 120, Some(408)), status(Activity::Generating, 3, Some(64))];
        let now = run.began + Duration::from_secs(71);
        let line = |width| shown(&tasks, Some(&run), now, width).unwrap();
        assert!(line(120).starts_with("\u{2588}") && line(120).contains("50/200  1:11 elapsed"), "{}", line(120));
        assert!(line(120).ends_with("evaluating 120/408  generating 3/64"), "{}", line(120));
        assert!(line(usize::MAX).starts_with("50/200  1:11 elapsed"), "a log file has no bar: {}", line(usize::MAX));
        for width in [0, 1, 20, 40, 60, 90, 120] {
            assert!(line(width).chars().count() < width.max(1), "{width}: {}", line(width));
        }
        let task = status(Activity::LoadingModel, 0, None);
        assert_eq!(shown(std::slice::from_ref(&task), None, task.began + SHORT / 2, 80), None);
        let after = task.began + Duration::from_secs(65);
        assert_eq!(shown(std::slice::from_ref(&task), None, after, 80).unwrap(), "loading the model  1:05");
        // Of two tasks of the same activity, the one with progress is shown, with a bar.
        let inner = ProgressStatus { unit: ProgressUnit::Bytes, ..status(Activity::LoadingModel, 3 << 20, Some(4 << 20)) };
        let line = shown(&[task.clone(), inner], None, task.began + Duration::from_secs(1), 120).unwrap();
        let bar = "\u{2588}".repeat(22) + &"\u{2591}".repeat(8);
        assert!(line.starts_with(&format!("{bar} loading the model 3.00 MiB/4.00 MiB")), "{line}");
        // A task and its subtask share a clock.
        let words = ProgressStatus { unit: ProgressUnit::Bytes, ..status(Activity::CountingWords, 1 << 20, Some(40 << 20)) };
        let training = ProgressStatus { began: words.began, ..status(Activity::TrainingTokenizer, 0, None) };
        let logged = shown(&[training.clone(), words.clone()], None, words.began + Duration::from_secs(1), usize::MAX).unwrap();
        assert_eq!(logged, "training the tokenizer, counting words 1.00 MiB/40.00 MiB (1.00 MiB/s)  0:01");
        let reading = ProgressStatus { began: words.began, ..status(Activity::ReadingDataset, 0, None) };
        let logged = shown(&[training, reading], None, words.began + Duration::from_secs(65), usize::MAX).unwrap();
        assert_eq!(logged, "training the tokenizer, reading the dataset  1:05");
        // At the usual width, the words are shortened rather than the bar dropped.
        let of_bytes =
            |done| ProgressStatus { unit: ProgressUnit::Bytes, ..status(Activity::VerifyingCheckpoint, done, Some(600 << 20)) };
        let verifying = ProgressStatus { subject: "checkpoint-200".into(), ..of_bytes(150 << 20) };
        let line = shown(std::slice::from_ref(&verifying), None, verifying.began + Duration::from_secs(4), 80).unwrap();
        let bar = "\u{2588}".repeat(3) + &"\u{2591}".repeat(9);
        assert_eq!(line, format!("{bar} verifying checkpoint-200 150.00 MiB/600.00 MiB  0:12 left"));
        let logged = shown(&[task], None, after, usize::MAX).unwrap();
        assert_eq!(logged, "loading the model  1:05");
    }
}
