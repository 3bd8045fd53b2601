//! `rlhost watch` on a terminal, and where there is none.

use rlhost_tests::{KilledOnDrop, TestFolder, binary, small};
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest that anything here is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Numbers of rows and columns of the terminal.
const ROWS: usize = 30;
const COLUMNS: usize = 100;

/// What leaves the screen of a program and shows the cursor.
const LEFT: &str = "\u{1b}[?1049l";
const SHOWN: &str = "\u{1b}[?25h";

/// A reward that prefers a length.
fn script(target: usize) -> String {
    format!("def my_reward(completions, **columns):\n    return [-abs(len(c) - {target}) for c in completions]\n")
}

/// A terminal in which the view of a run is shown, and which says afterwards how the terminal was left.
struct WatchTerminal {
    script: KilledOnDrop,
    drawn: Arc<Mutex<Vec<u8>>>,
    /// Reads what is drawn until the end.
    reader: Option<JoinHandle<()>>,
    /// A file with the number of its process.
    process: PathBuf,
}

impl WatchTerminal {
    /// Starts it; none, with the reason printed, where there is no `script`.
    fn start(place: &TestFolder, run: &str, kind: &str) -> Option<Self> {
        let process = place.path("process");
        // The number stays the same when the shell becomes the program.
        let own = format!("echo $$ > {}; exec {} watch {run}", process.display(), binary().display());
        let command = format!("stty cols {COLUMNS} rows {ROWS}; sh -c '{own}'; echo ended with $?; stty -a");
        let started = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .current_dir(place.path(""))
            .env_remove("RUST_LOG")
            .env_remove("NO_COLOR")
            .env("TERM", kind)
            .env("RLHOST_STATE_DIR", place.path(".state"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut script = match started {
            Ok(script) => KilledOnDrop(script),
            Err(error) => {
                eprintln!("skipped: no terminal can be made with `script`: {error}");
                return None;
            }
        };
        let drawn = Arc::<Mutex<Vec<u8>>>::default();
        let (mut from, to) = (script.stdout.take().unwrap(), Arc::clone(&drawn));
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap().extend_from_slice(&bytes[..length]);
            }
        });
        Some(Self { script, drawn, reader: Some(reader), process })
    }

    fn drawn(&self) -> String {
        String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned()
    }

    /// Waits until a text is on the screen.
    #[track_caller]
    fn wait(&self, text: &str) {
        let begun = Instant::now();
        while !screen(&self.drawn()).contains(text) {
            assert!(begun.elapsed() < PATIENCE, "no {text:?} on\n{}", screen(&self.drawn()));
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn press(&mut self, keys: &str) {
        let input = self.script.stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Waits for its end, and checks that the terminal is as it was. Returns all that was drawn.
    #[track_caller]
    fn ended(&mut self, code: i32) -> String {
        self.script.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        let drawn = self.drawn();
        assert!(drawn.contains(&format!("ended with {code}")), "{drawn}");
        for raw in ["-icanon", "-isig", "-echo "] {
            assert!(!drawn.contains(raw), "{raw}: {drawn}");
        }
        drawn
    }
}

/// Returns what a terminal shows after all that was drawn on it. Only what differs is drawn, wherever the cursor is put.
fn screen(drawn: &str) -> String {
    let mut cells = vec![vec![' '; COLUMNS]; ROWS];
    let (mut row, mut column) = (0, 0);
    let mut rest = drawn.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' if rest.next_if_eq(&'[').is_some() => {
                let mut numbers = String::new();
                while let Some(c) = rest.next_if(|c| c.is_ascii_digit() || ";?".contains(*c)) {
                    numbers.push(c);
                }
                match (rest.next(), numbers.as_str()) {
                    (Some('H'), numbers) => {
                        let (down, right) = numbers.split_once(';').unwrap_or(("1", "1"));
                        (row, column) = (down.parse().unwrap_or(1) - 1, right.parse().unwrap_or(1) - 1);
                    }
                    (Some('J'), _) | (Some('h'), "?1049") => cells.iter_mut().for_each(|row| row.fill(' ')),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row += 1,
            c => {
                if let Some(cell) = cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = c;
                }
                column += 1;
            }
        }
    }
    cells.into_iter().map(|row| row.into_iter().collect::<String>() + "\n").collect()
}

/// Whether the last that was done to the screen is to give it back.
fn is_restored(drawn: &str) -> bool {
    let place = |part: &str| drawn.rfind(part);
    place(LEFT).is_some_and(|left| Some(left) > place("\u{1b}[?1049h") && place(SHOWN) > place("\u{1b}[?25l"))
}

#[test]
fn a_run_is_watched_and_the_terminal_is_restored_however_it_ends() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "2"]).succeeded();
    for end in ["q", "\u{3}", "TERM"] {
        let Some(mut watching) = WatchTerminal::start(&place, "run", "xterm-256color") else { return };
        for word in ["ended: finished", "reward  ", "completions  ", "prompt: ", "plugins  ", "events  "] {
            watching.wait(word);
        }
        match end {
            "TERM" => {
                let process = fs::read_to_string(&watching.process).unwrap();
                assert!(Command::new("kill").arg(process.trim()).status().unwrap().success());
            }
            keys => watching.press(keys),
        }
        let drawn = watching.ended(0);
        assert!(is_restored(&drawn), "{end:?}: {drawn:?}");
    }
}

#[test]
fn a_plugin_is_swapped_from_the_terminal_while_the_run_goes_on() {
    let place = TestFolder::new();
    place.write("my_reward.py", script(20));
    fs::create_dir(place.path("next")).unwrap();
    place.write("next/my_reward.py", script(5));
    let size = ["--max-completion-length", "24", "--per-device-train-batch-size", "8", "--save-strategy", "no"];
    let run = ["--plugin", "my_reward.py", "--output-dir", "run", "--max-steps", "100000", "--logging-steps", "1"];
    let _run = KilledOnDrop(place.start(&[&small()[..], &run, &size].concat()));
    place.wait("run", PATIENCE, || place.steps("run") > 2);
    let Some(mut watching) = WatchTerminal::start(&place, "run", "xterm-256color") else { return };
    watching.wait("running");
    // Which plugin: the first, which is the reward.
    watching.press("s");
    watching.wait("Which plugin is to be replaced?");
    watching.press("\r");
    watching.wait("The file that replaces my_reward");
    watching.press("nowhere.py\r");
    watching.wait("my_reward was not swapped.");
    watching.press("\rs\rnext/my_reward.py\r");
    watching.wait("my_reward was swapped in.");
    let swapped = place.events("run", "plugin_swapped");
    assert_eq!((swapped.len(), swapped[0]["plugin"].as_str()), (1, Some("my_reward")), "{swapped:?}");
    watching.press("\rq");
    assert!(is_restored(&watching.ended(0)));
}

#[test]
fn what_can_not_be_watched_is_refused() {
    let place = TestFolder::new();
    fs::create_dir(place.path("empty")).unwrap();
    place.write("file", "");
    for (run, said) in [("nowhere", "there is no such folder"), ("empty", "is not the folder of a run"), ("file", "is a file")] {
        let outcome = place.run(&["watch", run]);
        assert!(outcome.code == Some(2) && outcome.stderr.contains(said), "{run}: {}", outcome.stderr);
    }
    fs::create_dir(place.path("run")).unwrap();
    place.write("run/events.jsonl", "");
    let outcome = place.run(&["watch", "run"]);
    let said = &outcome.stderr;
    assert!(outcome.code == Some(2) && said.contains("rlhost report") && said.contains("rlhost ui"), "{said}");
    assert_eq!(outcome.stdout, "");
    let Some(mut watching) = WatchTerminal::start(&place, "run", "dumb") else { return };
    let drawn = watching.ended(2);
    assert!(drawn.contains("needs a terminal") && !drawn.contains('\u{1b}'), "{drawn:?}");
}
