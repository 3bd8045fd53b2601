//! Runs an agent's program for one episode: passes it the row, limits its time and output, and kills what it leaves running.

use super::tail::StreamTail;
use crate::config::AgentEntry;
use crate::ops;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Number of bytes kept from the end of standard output, and of standard error.
pub(super) const OUTPUT_TAIL_BYTES: usize = 16 << 10;

/// Time for reading the remaining output after the program has exited. Its children may hold the output open.
const REST: Duration = Duration::from_millis(500);

/// Time after which a program that was killed is left alone.
const LONGEST_DEATH: Duration = Duration::from_secs(2);

/// Maximum interval between checks whether the program has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Reason why an episode of a discarded generation failed.
pub(super) const DISCARDED: &str = "is no longer needed";

/// Outcome of a program's run.
pub(super) struct ProgramOutcome {
    /// The end of the program's standard output.
    pub output: String,
    /// The end of the program's standard error.
    pub errors: String,
    /// Reason of the failure, if the program failed.
    pub failed: Option<String>,
    /// Whether a persistent program ended before it reported.
    pub ended: bool,
}

/// Starts a program with these environment variables. Its environment has only PATH, these, and those that its entry passes on.
///
/// # Errors
/// The reason, if it can't be started.
pub(super) fn spawned(entry: &AgentEntry, variables: &[(&str, String)]) -> Result<Child, String> {
    let mut command = Command::new(&entry.command[0]);
    command.args(&entry.command[1..]).env_clear();
    let passed = entry.pass_env.iter().map(String::as_str).chain(["PATH"]);
    command.envs(passed.filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The thread that starts it lives as long as the program is used.
    ops::in_own_group(&mut command);
    command.spawn().map_err(|error| format!("{} can't be started: {error}", entry.command[0]))
}

impl ProgramOutcome {
    /// Creates the outcome of a program without output.
    pub(super) fn from_failure(reason: String) -> Self {
        Self { output: String::new(), errors: String::new(), failed: Some(reason), ended: false }
    }
}

/// Runs a program for an episode, with this text as its standard input. It is killed when the episode is discarded.
pub(super) fn run(entry: &AgentEntry, variables: &[(&str, String)], input: String, discarded: &AtomicBool) -> ProgramOutcome {
    match spawned(entry, variables) {
        Ok(child) => followed(child, entry.timeout(), input, discarded),
        Err(reason) => ProgramOutcome::from_failure(reason),
    }
}

/// Waits until a program exits, for at most `limit`.
fn followed(mut child: Child, limit: Duration, input: String, discarded: &AtomicBool) -> ProgramOutcome {
    let begun = Instant::now();
    let streams = ProgramStreams::from_child(&mut child, input);
    let mut pause = Duration::from_millis(1);
    let mut failed = streams.as_ref().err().cloned();
    while failed.is_none() && !has_ended(&mut child) {
        match limit.checked_sub(begun.elapsed()) {
            Some(_) if discarded.load(Ordering::SeqCst) => failed = Some(DISCARDED.to_owned()),
            Some(left) => thread::sleep(pause.min(left)),
            None => failed = Some(format!("took longer than {} s (timeout_s)", limit.as_secs_f64())),
        }
        pause = (2 * pause).min(POLL_INTERVAL);
    }
    let failed = match killed(&mut child) {
        _ if failed.is_some() => failed,
        Some(status) => (!status.success()).then(|| format!("ended with {status}")),
        None => Some("can't be waited for".to_owned()),
    };
    let (output, errors) = streams.map(ProgramStreams::texts).unwrap_or_default();
    ProgramOutcome { output, errors, failed, ended: false }
}

/// Kills a program and its group, also if the program has left the group, and returns its status. None if it can't be killed, as a program
/// with other rights.
pub(super) fn killed(child: &mut Child) -> Option<ExitStatus> {
    // Until its status is collected, its id can't be reused.
    ops::kill_group(child.id());
    // One that has ended can't be killed.
    let _ = child.kill();
    let until = Instant::now() + LONGEST_DEATH;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
            Ok(None) | Err(_) => return None,
        }
    }
}

#[cfg(unix)]
pub(super) fn has_ended(child: &mut Child) -> bool {
    ops::has_ended(child)
}

#[cfg(not(unix))]
pub(super) fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

/// Output streams of a program, read by threads.
struct ProgramStreams {
    output: StreamReader,
    errors: StreamReader,
}

impl ProgramStreams {
    /// Writes a program's input and reads its output.
    fn from_child(child: &mut Child, input: String) -> Result<Self, String> {
        if let Some(mut stdin) = child.stdin.take() {
            // The input may be larger than the pipe's buffer, and the program need not read it.
            begin(move || drop(stdin.write_all(input.as_bytes())))?;
        }
        let none = || "has no output".to_owned();
        let output = StreamReader::spawn(child.stdout.take().ok_or_else(none)?)?;
        Ok(Self { output, errors: StreamReader::spawn(child.stderr.take().ok_or_else(none)?)? })
    }

    /// Returns the ends of standard output and standard error, once the program has exited.
    fn texts(self) -> (String, String) {
        let until = Instant::now() + REST;
        (self.output.text(until), self.errors.text(until))
    }
}

/// A stream that a thread reads; the thread stops when this is dropped.
pub(super) struct StreamReader {
    tail: Arc<Mutex<StreamTail>>,
    /// Disconnected at the end of the stream.
    ended: Receiver<()>,
    stop: Arc<AtomicBool>,
}

impl StreamReader {
    /// Reads a stream to its end and keeps the last bytes.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn spawn(mut stream: impl UnixPipe) -> Result<Self, String> {
        let (tail, stop) = (Arc::new(Mutex::new(StreamTail::new(OUTPUT_TAIL_BYTES))), Arc::<AtomicBool>::default());
        let (sender, ended) = channel::<()>();
        let (kept, stopped) = (Arc::clone(&tail), Arc::clone(&stop));
        begin(move || {
            let _sender = sender;
            let mut part = [0; 8192];
            while !stopped.load(Ordering::Relaxed) {
                match is_readable(&stream) {
                    Ok(false) => continue,
                    Ok(true) => {}
                    Err(_) => return,
                }
                match stream.read(&mut part) {
                    Ok(count @ 1..) => kept.lock().unwrap_or_else(PoisonError::into_inner).push(&part[..count]),
                    Ok(0) | Err(_) => return,
                }
            }
        })?;
        Ok(Self { tail, ended, stop })
    }

    /// Forgets what was read until now.
    pub(super) fn forget(&self) {
        *self.tail.lock().unwrap_or_else(PoisonError::into_inner) = StreamTail::new(OUTPUT_TAIL_BYTES);
    }

    /// Returns the end of what was read, once the stream has ended or at `until`. A program's children may hold its output open.
    pub(super) fn text(&self, until: Instant) -> String {
        let _ = self.ended.recv_timeout(until.saturating_duration_since(Instant::now()));
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).text()
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// An output stream of a program.
#[cfg(unix)]
pub(super) trait UnixPipe: Read + std::os::fd::AsRawFd + Send + 'static {}
#[cfg(unix)]
impl<T: Read + std::os::fd::AsRawFd + Send + 'static> UnixPipe for T {}

/// An output stream of a program.
#[cfg(not(unix))]
pub(super) trait Pipe: Read + Send + 'static {}
#[cfg(not(unix))]
impl<T: Read + Send + 'static> UnixPipe for T {}

/// Waits briefly for data; returns whether there is some.
#[cfg(unix)]
fn is_readable(stream: &impl UnixPipe) -> std::io::Result<bool> {
    ops::readable_within(stream, REST)
}

#[cfg(not(unix))]
fn is_readable(_: &impl UnixPipe) -> std::io::Result<bool> {
    Ok(true)
}

/// Runs work on a new thread.
///
/// # Errors
/// If no thread can be started.
pub(super) fn begin(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let begun = thread::Builder::new().name("agent".into()).spawn(work);
    begun.map(drop).map_err(|error| format!("can't be followed: no thread can be had ({error})"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn agent(script: &str, timeout_s: f64) -> ProgramOutcome {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let entry = serde_json::json!({"command": command, "timeout_s": timeout_s, "pass_env": ["RLHOST_TEST_UNSET"]});
        let entry: AgentEntry = serde_json::from_value(entry).unwrap();
        run(&entry, &[("RLHOST_SEED", "7".into())], "{\"a\": 1}\n".into(), &AtomicBool::new(false))
    }

    #[test]
    fn a_program_gets_its_input_and_variables_and_nothing_else() {
        let outcome = agent("cat; echo $RLHOST_SEED; env | sed 's/=.*//' | sort | tr '\\n' ' '; echo lost >&2", 60.0);
        assert_eq!(outcome.failed, None);
        assert!(outcome.output.starts_with("{\"a\": 1}\n7\n"), "{}", outcome.output);
        let names: Vec<&str> = outcome.output.lines().last().unwrap().split_whitespace().collect();
        assert!(names.iter().all(|name| ["PATH", "PWD", "RLHOST_SEED", "SHLVL", "_", "OLDPWD"].contains(name)), "{names:?}");
        assert_eq!(outcome.errors, "lost\n");
    }

    #[test]
    fn a_program_that_hangs_or_fails_says_so_and_leaves_nothing_running() {
        let folder = tempfile::tempdir().unwrap();
        let marker = folder.path().join("alive");
        let loops = format!("(while :; do date +%s%N > '{}'; sleep 0.02; done) & sleep 1000", marker.display());
        let hanging = agent(&loops, 0.5).failed.unwrap();
        assert!(hanging.contains("took longer than 0.5 s"), "{hanging}");
        thread::sleep(Duration::from_millis(100));
        let before = std::fs::read(&marker).unwrap();
        thread::sleep(Duration::from_millis(200));
        assert_eq!(std::fs::read(&marker).unwrap(), before, "a process of its group goes on");
        assert!(agent("exit 3", 60.0).failed.unwrap().contains("exit status: 3"));
        let missing: AgentEntry = serde_json::from_value(serde_json::json!({"command": ["/no/such/program"]})).unwrap();
        assert!(
            run(&missing, &[], String::new(), &AtomicBool::new(false))
                .failed
                .unwrap()
                .contains("/no/such/program can't be started")
        );
    }

    #[test]
    fn a_program_that_leaves_its_group_is_killed_all_the_same() {
        // The group that the program was started with is gone, so that a signal to it reaches nobody.
        let script = "import os, time\nchild = os.fork()\nif child == 0:\n    os.setpgid(0, 0)\n    time.sleep(20)\n\
                      time.sleep(0.2)\nos.setpgid(0, child)\ntime.sleep(1000)\n";
        let entry = serde_json::json!({"command": ["python3", "-c", script], "timeout_s": 1.0});
        let entry: AgentEntry = serde_json::from_value(entry).unwrap();
        let begun = Instant::now();
        let outcome = run(&entry, &[], String::new(), &AtomicBool::new(false));
        assert!(outcome.failed.unwrap().contains("took longer than 1 s") && begun.elapsed() < Duration::from_secs(500));
    }

    #[test]
    fn the_program_of_a_discarded_episode_is_killed() {
        let command = ["sh", "-c", "sleep 1000"].map(str::to_owned);
        let entry: AgentEntry = serde_json::from_value(serde_json::json!({"command": command})).unwrap();
        let discarded = AtomicBool::new(false);
        thread::scope(|scope| {
            let running = scope.spawn(|| run(&entry, &[], String::new(), &discarded));
            thread::sleep(Duration::from_millis(50));
            discarded.store(true, Ordering::SeqCst);
            assert_eq!(running.join().unwrap().failed.unwrap(), DISCARDED);
        });
    }

    #[test]
    fn of_endless_output_only_the_end_is_kept_and_one_that_reads_nothing_gets_no_further() {
        let outcome = agent("yes 0123456789 | head -c 10000000; echo end", 60.0);
        assert_eq!(outcome.failed, None);
        assert!(outcome.output.len() <= OUTPUT_TAIL_BYTES && outcome.output.ends_with("end\n"));
        let command = ["sh", "-c", "echo done"].map(str::to_owned);
        let entry: AgentEntry = serde_json::from_value(serde_json::json!({"command": command})).unwrap();
        assert_eq!(run(&entry, &[], "x".repeat(1 << 20), &AtomicBool::new(false)).output, "done\n");
    }
}
