//! Runs an agent's program for one episode: gives it the row, bounds its time and its output, and ends what it leaves behind.

use super::tail::Tail;
use crate::config::AgentEntry;
use crate::ops;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of standard output, and of standard error, that are kept: their ends.
const KEPT: usize = 16 << 10;

/// Time for reading the rest of the output when the program has ended. What it started may hold its output open.
const REST: Duration = Duration::from_millis(500);

/// Longest time between two looks at whether it has ended.
const LOOKED: Duration = Duration::from_millis(20);

/// What a program left.
pub(super) struct Outcome {
    /// The end of its standard output.
    pub output: String,
    /// The end of its standard error.
    pub errors: String,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// Runs a program with these variables, and this text as its standard input. It has only PATH, these, and those that its entry passes on.
pub(super) fn run(entry: &AgentEntry, variables: &[(&str, String)], input: String) -> Outcome {
    let mut command = Command::new(&entry.command[0]);
    command.args(&entry.command[1..]).env_clear();
    let passed = entry.pass_env.iter().map(String::as_str).chain(["PATH"]);
    command.envs(passed.filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ops::in_own_group(&mut command);
    match command.spawn() {
        Ok(child) => followed(child, entry.timeout(), input),
        Err(error) => {
            let failed = Some(format!("{} can't be started: {error}", entry.command[0]));
            Outcome { output: String::new(), errors: String::new(), failed }
        }
    }
}

/// Waits for a program's end, at most for so long.
fn followed(mut child: Child, limit: Duration, input: String) -> Outcome {
    let begun = Instant::now();
    if let Some(mut stdin) = child.stdin.take() {
        // It may be longer than a pipe takes, and the program need not read it.
        let writing = move || drop(stdin.write_all(input.as_bytes()));
        thread::spawn(writing);
    }
    let (ended, rest) = channel();
    let output = child.stdout.take().map(|stream| tail_of(stream, ended.clone()));
    let errors = child.stderr.take().map(|stream| tail_of(stream, ended.clone()));
    drop(ended);
    let (mut pause, id) = (Duration::from_millis(1), child.id());
    let failed = loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break None,
            Ok(Some(status)) => break Some(format!("ended with {status}")),
            Ok(None) if begun.elapsed() < limit => {
                thread::sleep(pause.min(limit.saturating_sub(begun.elapsed())));
                pause = (2 * pause).min(LOOKED);
            }
            Ok(None) => break Some(format!("took longer than {} s (timeout_s)", limit.as_secs_f64())),
            Err(error) => break Some(format!("can't be waited for: {error}")),
        }
    };
    ops::kill_group(id);
    // Of a program that has ended already there is nothing to wait for.
    let _ = child.wait();
    let text = |tail: Option<Arc<Mutex<Tail>>>| tail.map(|tail| lock(&tail).text()).unwrap_or_default();
    wait_for(&rest);
    Outcome { output: text(output), errors: text(errors), failed }
}

fn lock(tail: &Mutex<Tail>) -> std::sync::MutexGuard<'_, Tail> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until both streams are read to their ends, if that is soon.
fn wait_for(rest: &Receiver<()>) {
    let until = Instant::now() + REST;
    // Disconnected when both are.
    while rest.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
}

/// Reads a stream to its end, keeping the last of it.
fn tail_of(mut stream: impl Read + Send + 'static, ended: Sender<()>) -> Arc<Mutex<Tail>> {
    let tail = Arc::new(Mutex::new(Tail::new(KEPT)));
    let kept = Arc::clone(&tail);
    thread::spawn(move || {
        let mut part = [0; 8192];
        while let Ok(count @ 1..) = stream.read(&mut part) {
            lock(&kept).push(&part[..count]);
        }
        drop(ended);
    });
    tail
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn agent(script: &str, timeout_s: f64) -> Outcome {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let entry = serde_json::json!({"command": command, "timeout_s": timeout_s, "pass_env": ["RLHOST_TEST_UNSET"]});
        let entry: AgentEntry = serde_json::from_value(entry).unwrap();
        run(&entry, &[("RLHOST_SEED", "7".into())], "{\"a\": 1}\n".into())
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
        assert!(run(&missing, &[], String::new()).failed.unwrap().contains("/no/such/program can't be started"));
    }

    #[test]
    fn of_endless_output_only_the_end_is_kept_and_one_that_reads_nothing_gets_no_further() {
        let outcome = agent("yes 0123456789 | head -c 10000000; echo end", 60.0);
        assert_eq!(outcome.failed, None);
        assert!(outcome.output.len() <= KEPT && outcome.output.ends_with("end\n"));
        let command = ["sh", "-c", "echo done"].map(str::to_owned);
        let entry: AgentEntry = serde_json::from_value(serde_json::json!({"command": command})).unwrap();
        assert_eq!(run(&entry, &[], "x".repeat(1 << 20)).output, "done\n");
    }
}
