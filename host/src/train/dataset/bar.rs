//! Shows how many rows of a dataset have been treated: a bar on a terminal, and a line every few seconds in a log.

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressFinish, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time between two lines of a log, and before the first.
const BETWEEN_LINES: Duration = Duration::from_secs(3);

/// Time between two drawings of a bar, whether rows have been treated or not.
const BETWEEN_DRAWINGS: Duration = Duration::from_millis(250);

/// The rows that have been treated so far. What it shows disappears from a terminal when it is dropped.
pub(super) struct Progress {
    bar: ProgressBar,
    log: Option<Log>,
}

/// Lines for a log.
struct Log {
    what: &'static str,
    rows: Option<usize>,
    done: AtomicUsize,
    begun: Instant,
    /// Number of lines so far.
    lines: AtomicU64,
}

impl Progress {
    /// Shows a bar for this many rows, or a count if their number is not known.
    pub(super) fn new(what: &'static str, rows: Option<usize>) -> Self {
        if !tracing::enabled!(tracing::Level::INFO) {
            return Self { bar: ProgressBar::hidden(), log: None };
        }
        if !std::io::stderr().is_terminal() {
            let (done, begun, lines) = (AtomicUsize::new(0), Instant::now(), AtomicU64::new(0));
            return Self { bar: ProgressBar::hidden(), log: Some(Log { what, rows, done, begun, lines }) };
        }
        let (bar, template) = match rows {
            Some(rows) => (ProgressBar::new(rows as u64), "{msg} {wide_bar} {human_pos}/{human_len} rows, {eta} left"),
            None => (ProgressBar::no_length(), "{msg}: {human_pos} rows, {elapsed}"),
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = bar.with_style(style).with_message(what).with_finish(ProgressFinish::AndClear);
        bar.enable_steady_tick(BETWEEN_DRAWINGS);
        Self { bar, log: None }
    }

    /// Counts further rows.
    pub(super) fn add(&self, rows: usize) {
        self.bar.inc(rows as u64);
        let line = self.log.as_ref().and_then(|log| log.add(rows, log.begun.elapsed()));
        line.iter().for_each(|line| tracing::info!("{line}"));
    }
}

impl Log {
    /// Counts further rows, this long after the beginning. Returns a line if one is due.
    fn add(&self, rows: usize, elapsed: Duration) -> Option<String> {
        let done = self.done.fetch_add(rows, Ordering::Relaxed) + rows;
        let due = (elapsed.as_millis() / BETWEEN_LINES.as_millis()) as u64;
        // Of several threads, one writes it.
        if self.lines.fetch_max(due, Ordering::Relaxed) >= due {
            return None;
        }
        let (what, count) = (self.what, HumanCount(done as u64));
        let Some(all) = self.rows.filter(|all| *all >= done && done > 0) else { return Some(format!("{what}: {count} rows")) };
        let left = elapsed.mul_f64((all - done) as f64 / done as f64);
        Some(format!("{what}: {count} of {} rows, {} left", HumanCount(all as u64), HumanDuration(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_a_line_every_few_seconds() {
        let log = |rows| {
            let (done, lines) = (AtomicUsize::new(0), AtomicU64::new(0));
            Log { what: "judging rows", rows, done, begun: Instant::now(), lines }
        };
        let (known, unknown) = (log(Some(40_000)), log(None));
        let line = |log: &Log, seconds| log.add(2000, Duration::from_secs(seconds));
        assert_eq!((line(&known, 0), line(&known, 2)), (None, None));
        assert_eq!(line(&known, 4).unwrap(), "judging rows: 6,000 of 40,000 rows, 23 seconds left");
        assert_eq!(line(&known, 5), None);
        assert_eq!(line(&known, 13).unwrap(), "judging rows: 10,000 of 40,000 rows, 39 seconds left");
        assert_eq!(line(&unknown, 3).unwrap(), "judging rows: 2,000 rows");
        assert_eq!(line(&unknown, 3), None);
    }
}
