//! Persistent agents: a program that is started once and plays an episode for each line of its input.

use super::program::{DISCARDED, ProgramOutcome, StreamReader, begin, has_ended, killed, spawned};
use crate::config::AgentEntry;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Longest line of a program's output that can be a report, in bytes.
const LONGEST: u64 = 64 << 10;

/// Number of unread lines after which the program blocks.
const WAITING: usize = 16;

/// Interval between checks whether the episode is still needed, and the program still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Time that a program has to write an error after it has exited.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A program that waits for an episode or plays one. It is killed on drop.
pub(super) struct PersistentProgram {
    child: Child,
    /// Lines for the program's input, which a thread writes, since the program may not read them.
    input: Sender<String>,
    /// Lines of the program's output; disconnected when it has exited.
    lines: Receiver<String>,
    errors: StreamReader,
    /// Whether its status was collected, after which another process may have its id.
    is_gone: bool,
}

impl PersistentProgram {
    /// Starts a program with these environment variables.
    ///
    /// # Errors
    /// The reason, if it can't be started.
    pub(super) fn start(entry: &AgentEntry, variables: &[(&str, String)]) -> Result<Self, String> {
        let (mut child, input) = spawned_with_writer(entry, variables)?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err("has no standard output".into());
        };
        let (sender, lines) = sync_channel(WAITING);
        let reading = begin(move || read_lines(stdout, &sender)).and_then(|()| StreamReader::spawn(stderr));
        let errors = reading.inspect_err(|_| {
            killed(&mut child);
        })?;
        Ok(Self { child, input, lines, errors, is_gone: false })
    }

    /// Returns whether the program is still running.
    pub(super) fn is_running(&mut self) -> bool {
        !has_ended(&mut self.child)
    }

    /// Plays an episode, until it is discarded. Returns its outcome, and the program unless it can't be used again.
    pub(super) fn play(mut self, line: &str, limit: Duration, discarded: &AtomicBool) -> (ProgramOutcome, Option<Self>) {
        // Output after the last report belongs to no episode.
        while self.lines.try_recv().is_ok() {}
        self.errors.forget();
        if self.input.send(line.to_owned()).is_err() {
            return self.failed(String::new(), "reads no more episodes".into());
        }
        let (mut until, mut output, mut ended) = (Instant::now() + limit, String::new(), false);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(CHECK_INTERVAL)) {
                Ok(line) if line.starts_with('{') => {
                    output += &line;
                    let errors = self.errors.text(Instant::now());
                    return (ProgramOutcome { output, errors, failed: None, ended: false }, Some(self));
                }
                Ok(line) if output.len() < LONGEST as usize => output = output + &line + "\n",
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return self.stopped(output),
                Err(RecvTimeoutError::Timeout) if discarded.load(Ordering::SeqCst) => {
                    return self.failed(output, DISCARDED.into());
                }
                // What it has started may hold its output open.
                Err(RecvTimeoutError::Timeout) if !ended && has_ended(&mut self.child) => {
                    (until, ended) = (Instant::now() + LAST_WORDS, true);
                }
                Err(RecvTimeoutError::Timeout) if left > CHECK_INTERVAL => {}
                Err(RecvTimeoutError::Timeout) if ended => return self.stopped(output),
                Err(RecvTimeoutError::Timeout) => {
                    return self.failed(output, format!("took longer than {} s (timeout_s)", limit.as_secs_f64()));
                }
            }
        }
    }

    /// Ends the program after a failure.
    fn failed(self, output: String, reason: String) -> (ProgramOutcome, Option<Self>) {
        let errors = self.errors.text(Instant::now() + LAST_WORDS);
        (ProgramOutcome { output, errors, failed: Some(reason), ended: false }, None)
    }

    /// Ends a program that has ended or closed its output without a report.
    fn stopped(mut self, output: String) -> (ProgramOutcome, Option<Self>) {
        let errors = self.errors.text(Instant::now() + LAST_WORDS);
        // The system closes a program's output a little before it has ended.
        let until = Instant::now() + LAST_WORDS;
        while !has_ended(&mut self.child) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let ended = has_ended(&mut self.child);
        let reason = if ended {
            self.is_gone = true;
            let status = killed(&mut self.child).map_or_else(|| "with an unknown status".to_owned(), |status| status.to_string());
            format!("ended before it reported ({status})")
        } else {
            "closed its output before it reported".to_owned()
        };
        (ProgramOutcome { output, errors, failed: Some(reason), ended }, None)
    }
}

/// Starts a program from a thread that writes its input, and that stays as long as the program is used: the system kills the program with
/// the thread that has started it, and so with the run.
fn spawned_with_writer(entry: &AgentEntry, variables: &[(&str, String)]) -> Result<(Child, Sender<String>), String> {
    let (entry, variables) = (entry.clone(), variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    let variables: Vec<(String, String)> = variables.collect();
    let (started, starting) = channel();
    let (input, lines) = channel::<String>();
    begin(move || {
        let variables: Vec<(&str, String)> = variables.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let mut child = spawned(&entry, &variables);
        let stdin = child.as_mut().ok().and_then(|child| child.stdin.take());
        if started.send(child).is_err() {
            return;
        }
        let Some(mut stdin) = stdin else { return };
        let mut write = |line: String| stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_ok();
        // A program that no longer reads is noticed by its output or its time. This thread stays until the program is dropped.
        let mut reads = true;
        lines.into_iter().for_each(|line| reads = reads && write(line));
    })?;
    let child = starting.recv().map_err(|_| "can't be started: its thread has ended".to_owned())??;
    Ok((child, input))
}

impl Drop for PersistentProgram {
    fn drop(&mut self) {
        if !self.is_gone {
            killed(&mut self.child);
        }
    }
}

/// Forwards the lines of a stream, truncating those that are too long.
fn read_lines(stream: impl Read, sender: &SyncSender<String>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match stream.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        let whole = line.ends_with(b"\n");
        if sender.send(String::from_utf8_lossy(&line).trim().to_owned()).is_err() {
            return;
        }
        if !whole && stream.skip_until(b'\n').is_err() {
            return;
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn entry(script: &str) -> AgentEntry {
        serde_json::from_value(serde_json::json!({"command": ["sh", "-c", script], "persistent": true})).unwrap()
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_plays_an_episode_for_each_line() {
        let script = "n=0; while read -r line; do n=$((n + 1)); echo \"got $line\"; echo \"{\\\"reward\\\": $n}\"; done";
        let mut program = PersistentProgram::start(&entry(script), &[]).unwrap();
        for n in 1..4 {
            let (outcome, left) = program.play("a line\n", MINUTE, &AtomicBool::new(false));
            assert_eq!((outcome.output, outcome.failed), (format!("got a line\n{{\"reward\": {n}}}"), None));
            program = left.unwrap();
        }
    }

    #[test]
    fn what_a_program_prints_belongs_to_its_episode() {
        let script = "while read -r line; do echo \"err $line\" >&2; echo \"out $line\"; case $line in b) sleep 1000;; esac; \
                      sleep 0.3; echo '{}'; done";
        let program = PersistentProgram::start(&entry(script), &[]).unwrap();
        let (outcome, left) = program.play("a\n", MINUTE, &AtomicBool::new(false));
        assert_eq!((outcome.output.as_str(), outcome.errors.as_str()), ("out a\n{}", "err a\n"));
        let (outcome, _) = left.unwrap().play("b\n", Duration::from_millis(600), &AtomicBool::new(false));
        assert_eq!((outcome.output.as_str(), outcome.errors.as_str()), ("out b\n", "err b\n"));
        assert!(outcome.failed.unwrap().contains("took longer"));
    }

    #[test]
    fn a_program_that_ends_or_hangs_is_of_no_more_use() {
        let play = |script: &str, limit| {
            let (outcome, left) =
                PersistentProgram::start(&entry(script), &[]).unwrap().play("x\n", limit, &AtomicBool::new(false));
            assert!(left.is_none());
            (outcome.failed.unwrap(), outcome.errors)
        };
        let (reason, errors) = play("read -r line; echo lost >&2", MINUTE);
        assert_eq!((reason.as_str(), errors.as_str()), ("ended before it reported (exit status: 0)", "lost\n"));
        // Its output is held open by what it has started.
        let (reason, _) = play("read -r line; sleep 1000 & exit 9", MINUTE);
        assert_eq!(reason, "ended before it reported (exit status: 9)");
        let (reason, _) = play("read -r line; exec 1>&-; sleep 1000", MINUTE);
        assert_eq!(reason, "closed its output before it reported");
        assert!(play("read -r line; sleep 1000", Duration::from_millis(300)).0.contains("took longer than 0.3 s"));
        // A program that does not read, with a line that no pipe holds.
        let long = "x".repeat(1 << 20) + "\n";
        let hangs = PersistentProgram::start(&entry("sleep 1000"), &[]).unwrap();
        let (outcome, _) = hangs.play(&long, Duration::from_millis(300), &AtomicBool::new(false));
        assert!(outcome.failed.unwrap().contains("took longer than 0.3 s"));
        // Endless output without a report.
        assert!(play("yes", Duration::from_millis(300)).0.contains("took longer than 0.3 s"));
        assert!(
            play("head -c 10000000 /dev/zero | tr '\\0' x; sleep 1000", Duration::from_millis(500)).0.contains("took longer")
        );
        let missing: AgentEntry = serde_json::from_value(serde_json::json!({"command": ["/no/such"]})).unwrap();
        assert!(PersistentProgram::start(&missing, &[]).err().unwrap().contains("/no/such can't be started"));
    }
}
