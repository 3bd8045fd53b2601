//! Tests the view of made-up runs, drawn on a screen in memory.

use crate::backend::{SwapReply, WatchBackend};
use crate::config::is_hidden;
use crate::draw::draw;
use crate::run::{CompletionLine, PluginVersion, RunFiles, RunLock, lock};
use crate::swap_dialog::SwapDialog;
use crate::theme::TerminalTheme;
use crate::view::{Dialog, KeyEffect, View};
use ratatui_core::backend::TestBackend;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any read takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// A text with all kinds of terminal control sequences, and with wide and combining characters.
const HOSTILE: &str = "\x1b[2J\x1b]0;owned\x07\u{9b}31m \u{202e}desrever\u{2066} a\u{200d}\u{301}\u{301}\u{301}\u{301}\u{301}\u{301}\u{301} \
    \u{4e16}\u{754c}\u{1f980} \u{5e9}\u{5dc}\r\n\tx";

const PLAIN: TerminalTheme = TerminalTheme { color: false, braille: true };

/// The folder of a run.
struct WatchTestRun {
    folder: TempDir,
    /// Held while the run is running.
    lock: Option<RunLock>,
}

/// A backend that answers as the file's name says.
struct FakeWatchBackend;

impl WatchBackend for FakeWatchBackend {
    fn swap(&self, _: &Path, name: &str, file: &str) -> Result<SwapReply, String> {
        match file {
            "better.wasm" => {
                Ok(SwapReply::Swapped("at step 9: 01ab -> 02ab\non the last 64 completions: mean 0.1 -> 0.7".into()))
            }
            "worse.py" => Ok(SwapReply::Refused(format!("{name}: Traceback\n  line 1\u{1b}[31m\nZeroDivisionError"))),
            "panic" => panic!("this is expected"),
            other => Err(format!("{other}: there is no such file")),
        }
    }
}

impl WatchTestRun {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), lock: None }
    }

    fn running() -> Self {
        let mut run = Self::new();
        run.lock = Some(lock(run.path()).unwrap());
        run.add_event(&json!({"time": "2026-01-02T03:04:05Z", "event": "started", "step": 0, "max_steps": 400}));
        run.add_event(&json!({"event": "plugin_loaded", "role": "algorithm", "plugin": "grpo", "hash": "aa".repeat(32)}));
        run.add_event(&json!({"event": "plugin_loaded", "role": "reward", "plugin": "length", "hash": "01ab".repeat(16)}));
        fs::write(RunFiles(run.path()).config(), "algorithm = \"grpo\"\nmodel = \"models/tiny\"\n").unwrap();
        run
    }

    /// Creates a run whose reward was swapped at step 100 and rolled back at 200, after 300 steps.
    fn swapped() -> Self {
        let run = Self::running();
        run.add_metrics(1..=300);
        let change = |event: &str, step: u64| json!({"event": event, "plugin": "length", "from": "01ab", "to": "02ab", "step": step, "reason": ""});
        run.add_event(&change("plugin_swapped", 100));
        run.add_event(&change("plugin_rolled_back", 200));
        run.add_completions((1..=300).map(|step| (step, "Once upon a time", "there was a fox")));
        run
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn append(&self, file: &Path, text: &str) {
        File::options().append(true).create(true).open(file).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn add_event(&self, event: &Value) {
        self.append(&RunFiles(self.path()).events(), &format!("{event}\n"));
    }

    fn add_metrics(&self, steps: impl Iterator<Item = u64>) {
        let row = |step: u64| {
            let reward = (step as f64 / 50.0).sin();
            json!({"step": step, "time": step * 2, "epoch": 0.5, "loss": 1.0 / step as f64, "reward": reward, "kl": 0.25,
                "time/reward": 0.125, "rewards/length/mean": reward, "plugins/length/errors": 3})
        };
        let text: String = steps.map(|step| format!("{}\n", row(step))).collect();
        self.append(&RunFiles(self.path()).metrics(), &text);
    }

    fn add_completions<'a>(&self, all: impl Iterator<Item = (u64, &'a str, &'a str)>) {
        let plugins = BTreeMap::from([("length".to_owned(), PluginVersion::parse("01ab01ab01ab01ab+c0ffee"))]);
        let file = File::options().append(true).create(true).open(RunFiles(self.path()).completions()).unwrap();
        let mut file = BufWriter::new(file);
        for (step, prompt, completion) in all {
            let line = CompletionLine {
                step,
                policy_version: None,
                row: 7,
                prompt,
                completion,
                prompt_ids: &[1],
                completion_ids: &[2, 3, 4, 5, 6],
                finished: false,
                rewards: Map::from_iter([("length".to_owned(), json!(0.375))]),
                extra: Map::new(),
                advantage: Some(-1.5),
                plugins: &plugins,
                error: None,
                per_token: None,
                episode: None,
            };
            writeln!(file, "{}", serde_json::to_string(&line).unwrap()).unwrap();
        }
    }

    fn view(&self) -> View {
        self.view_as(PLAIN)
    }

    fn view_as(&self, look: TerminalTheme) -> View {
        let mut view = View::new(self.path(), look, FakeWatchBackend);
        view.refresh(PATIENCE);
        assert!(view.watched.is_read);
        view
    }
}

/// Draws the view on a screen of this size.
fn drawn(view: &mut View, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    terminal
}

/// Returns the rows of the screen.
fn rows(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let terminal = drawn(view, width, height);
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(usize::from(width).max(1));
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
}

fn picture(view: &mut View, width: u16, height: u16) -> String {
    rows(view, width, height).join("\n")
}

fn press(view: &mut View, keys: &[KeyCode]) {
    for key in keys {
        assert_eq!(view.press(KeyEvent::new(*key, KeyModifiers::NONE)), KeyEffect::Stay, "{key:?}");
    }
}

fn write(view: &mut View, text: &str) {
    text.chars().for_each(|c| press(view, &[KeyCode::Char(c)]));
}

/// Waits for the answer to a swap.
fn answered(view: &mut View) -> String {
    while matches!(view.dialog, Dialog::Swap(SwapDialog::Waiting { .. })) {
        std::thread::sleep(Duration::from_millis(2));
        view.refresh(PATIENCE);
    }
    picture(view, 80, 24)
}

fn is_braille(c: char) -> bool {
    ('\u{2801}'..='\u{28ff}').contains(&c)
}

#[test]
fn an_ordinary_terminal_shows_all_parts_of_a_run() {
    let run = WatchTestRun::swapped();
    let shown = rows(&mut run.view(), 80, 24);
    let all = shown.join("\n");
    assert!(shown[0].ends_with("grpo of models/tiny"), "{all}");
    assert!(shown[1].starts_with("running  step 300 of 400 (75%)  3:20 left  2 s a step  epoch 0.5"), "{all}");
    assert!(shown[2].starts_with("reward  -0.2794  1/") && shown[2].contains("loss  0.003333  2/"), "{all}");
    assert!(all.contains("completions  300 of 300") && all.contains("> step 300  5 tokens, cut off  length 0.375"), "{all}");
    assert!(all.contains("  prompt: Once upon a time") && all.contains("  there was a fox"), "{all}");
    assert!(all.contains("plugins  scoring 0.125 s a step") && all.contains("version      mean errors"), "{all}");
    assert!(shown.iter().any(|row| row.ends_with("02ab      -0.2794      3")), "{all}");
    assert!(all.contains("step 200: plugin rolled back  length: 01ab rolled back to 02ab"), "{all}");
    assert!(shown[23].starts_with("? help  q quit  s swap"), "{all}");
    // The curves are continuous, and rise and fall.
    let curve: Vec<&String> = shown[3..10].iter().collect();
    assert!(curve.iter().all(|row| row.chars().any(is_braille)), "{all}");
}

#[test]
fn swaps_and_rollbacks_are_marked_where_they_were() {
    let run = WatchTestRun::swapped();
    let mut view = run.view();
    view.metric = Some("kl".to_owned());
    let shown = rows(&mut view, 60, 24);
    let all = shown.join("\n");
    let (top, below) = (shown[3].chars().collect::<Vec<char>>(), shown[4].chars().collect::<Vec<char>>());
    let place = |letter: char| top.iter().position(|c| *c == letter).unwrap_or_else(|| panic!("no {letter}: {all}"));
    let [swap, back] = ['S', 'R'].map(place);
    let start = top.iter().position(|c| !c.is_ascii_digit() && *c != '.').unwrap() + 1;
    let share = |at: usize| (at - start) as f64 / (59 - start) as f64;
    assert!((share(swap) - 99.0 / 299.0).abs() < 0.02 && (share(back) - 199.0 / 299.0).abs() < 0.02, "{swap} {back}: {all}");
    assert_eq!((below[swap], below[back]), ('\u{250a}', '\u{250a}'), "{all}");
    // A change that a resume undid is not marked.
    run.add_event(&json!({"event": "resumed", "step": 150, "max_steps": 400}));
    view.refresh(PATIENCE);
    let top = &rows(&mut view, 60, 24)[3];
    assert!(top.contains('S') && !top.contains('R'), "{top}");
}

#[test]
fn another_metric_is_chosen_by_a_key() {
    let run = WatchTestRun::swapped();
    let mut view = run.view();
    let first = |view: &mut View| rows(view, 60, 24)[2].split("  ").next().unwrap().to_owned();
    assert_eq!(first(&mut view), "reward");
    press(&mut view, &[KeyCode::Right]);
    assert_eq!(first(&mut view), "loss");
    press(&mut view, &[KeyCode::Tab]);
    assert_eq!(first(&mut view), "kl");
    press(&mut view, &[KeyCode::Left, KeyCode::BackTab, KeyCode::Left]);
    assert_eq!(first(&mut view), "time/reward");
    // The metric stays selected when others appear.
    run.append(&RunFiles(run.path()).metrics(), "{\"step\":301,\"aaa\":1,\"zzz\":1,\"time/reward\":0.5}\n");
    assert!(view.refresh(PATIENCE));
    assert_eq!(first(&mut view), "time/reward");
    assert!(!view.refresh(PATIENCE), "nothing is new");
}

#[test]
fn nothing_outside_reaches_the_terminal_as_it_is() {
    let run = WatchTestRun::running();
    let name = format!("re{HOSTILE}");
    run.add_event(&json!({"event": "plugin_loaded", "role": HOSTILE, "plugin": name, "hash": HOSTILE, "version": HOSTILE}));
    run.add_event(&json!({"event": HOSTILE, "step": 3, "plugin": name, "reason": HOSTILE, "a\u{1b}": HOSTILE}));
    run.add_event(&json!({"event": "plugin_refused", "step": 3, "plugin": name, "reason": HOSTILE}));
    fs::write(
        RunFiles(run.path()).config(),
        format!("algorithm = \"grpo\"\nmodel = {}\n", json!(HOSTILE.replace(['\u{7}', '\u{9b}', '\u{1b}'], ""))),
    )
    .unwrap();
    let row = json!({"step": 1, HOSTILE: 3.0, format!("rewards/{name}/mean"): 1.0, "reward": 1.0});
    run.append(&RunFiles(run.path()).metrics(), &format!("{row}\n"));
    run.add_completions([(1, HOSTILE, HOSTILE)].into_iter());
    let line = json!({"step": 2, "prompt": HOSTILE, "completion": HOSTILE, "rewards": {HOSTILE: 1.5}, "plugins": {HOSTILE: HOSTILE},
        "extra": {HOSTILE: HOSTILE}, "error": HOSTILE, "failed": HOSTILE, "agent_output": HOSTILE,
        "messages": [{"role": HOSTILE, "content": HOSTILE, "tool_calls": [HOSTILE]}]});
    run.append(&RunFiles(run.path()).completions(), &format!("{line}\n"));
    let check = |view: &mut View, size: (u16, u16)| {
        let terminal = drawn(view, size.0, size.1);
        for cell in &terminal.backend().buffer().content {
            assert!(!cell.symbol().chars().any(is_hidden) && cell.symbol().chars().count() <= 6, "{:?}", cell.symbol());
        }
    };
    let mut view = run.view();
    for keys in [
        &[][..],
        &[KeyCode::Right],
        &[KeyCode::Right],
        &[KeyCode::Char('3')],
        &[KeyCode::Char('4')],
        &[KeyCode::Esc, KeyCode::Enter],
        &[KeyCode::Right],
        &[KeyCode::Esc, KeyCode::Char('s')],
    ] {
        press(&mut view, keys);
        for size in [(80, 24), (200, 60), (33, 9)] {
            check(&mut view, size);
        }
    }
    press(&mut view, &[KeyCode::Down, KeyCode::Enter]);
    write(&mut view, "\u{202e}\u{1b}x");
    check(&mut view, (80, 24));
    press(&mut view, &[KeyCode::Enter]);
    check(&mut view, (80, 24));
    assert!(answered(&mut view).contains("\\u{202e}\\u{1b}x: there is no such file"));
}

#[test]
fn every_size_has_a_picture_and_the_smallest_says_something() {
    let run = WatchTestRun::swapped();
    let mut view = run.view();
    let small = rows(&mut view, 20, 6);
    assert!(small[0].starts_with("300/400  running"), "{small:?}");
    assert!(small[1].starts_with("reward  -0.2794  1/6") && small[2].starts_with("-0.9988 to 0.9981"), "{small:?}");
    let help = [KeyCode::Esc, KeyCode::Char('?')];
    let stages: [&[KeyCode]; 7] = [
        &[],
        &help,
        &[KeyCode::Esc, KeyCode::Enter],
        &[KeyCode::Esc, KeyCode::Char('s')],
        &[KeyCode::Enter, KeyCode::Char('\u{4e16}')],
        &[KeyCode::Esc, KeyCode::Char('3')],
        &[KeyCode::Char('4')],
    ];
    for keys in stages {
        press(&mut view, keys);
        for width in [0, 1, 3, 20, 30, 38, 72, 120] {
            for height in [0, 1, 2, 4, 6, 7, 9, 14, 28] {
                drawn(&mut view, width, height);
            }
        }
    }
    for panel in ['1', '2'] {
        press(&mut view, &[KeyCode::Char(panel)]);
        (1..30).for_each(|size| drop(drawn(&mut view, 3 * size, size)));
    }
}

#[test]
fn a_run_is_followed_from_before_its_first_step_to_its_end() {
    let mut run = WatchTestRun::running();
    let mut view = run.view();
    let all = picture(&mut view, 80, 24);
    assert!(all.contains("running, no step yet") && all.contains("Waiting for the run's first step."), "{all}");
    run.add_metrics(1..=1);
    assert!(view.refresh(PATIENCE));
    let all = picture(&mut view, 80, 24);
    assert!(all.contains("step 1 of 400 (0%)") && all.chars().any(is_braille), "{all}");
    run.add_event(&json!({"event": "requested", "action": "pause", "step": 1}));
    assert!(view.refresh(PATIENCE));
    assert!(rows(&mut view, 80, 24)[1].starts_with("paused  step 1 of 400"));
    run.add_event(&json!({"event": "finished", "step": 1, "seconds": 2.0}));
    run.lock = None;
    assert!(view.refresh(PATIENCE));
    let all = picture(&mut view, 80, 24);
    assert!(all.contains("ended: finished") && all.contains("took 0:02") && all.contains("step 1: finished  after 2 s"), "{all}");
    press(&mut view, &[KeyCode::Char('s')]);
    assert!(picture(&mut view, 80, 24).contains("No process is running this run."));
    fs::remove_dir_all(run.path()).unwrap();
    assert!(view.refresh(PATIENCE));
    assert!(picture(&mut view, 80, 24).contains("its folder is gone"));
}

#[test]
fn without_colour_none_is_used_and_without_braille_curves_have_dots() {
    let run = WatchTestRun::swapped();
    let colors = |view: &mut View| {
        let terminal = drawn(view, 80, 24);
        let cells = terminal.backend().buffer().content.iter();
        cells.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert_eq!(colors(&mut run.view()), 0);
    assert!(colors(&mut run.view_as(TerminalTheme { color: true, braille: true })) > 50);
    let all = picture(&mut run.view_as(TerminalTheme { color: false, braille: false }), 80, 24);
    assert!(all.contains('\u{2022}') && !all.chars().any(is_braille), "{all}");
}

#[test]
fn a_hundred_thousand_completions_are_browsed_from_the_newest_to_the_oldest() {
    let run = WatchTestRun::running();
    run.add_metrics(1..=50_000);
    run.add_completions((0..100_000).map(|i| (1 + i / 2, "Once", if i == 0 { "the very first" } else { "another" })));
    let mut view = View::new(run.path(), PLAIN, FakeWatchBackend);
    // The first read is short, and has something to show.
    view.refresh(Duration::ZERO);
    let all = picture(&mut view, 80, 24);
    assert!(!view.watched.is_read && all.contains("reading: 0%") && all.chars().any(is_braille), "{all}");
    view.refresh(PATIENCE);
    let all = picture(&mut view, 80, 24);
    assert!(all.contains("100,000 of 100,000") && all.contains("> step 50,000") && all.contains("means of"), "{all}");
    press(&mut view, &[KeyCode::Down; 3]);
    let all = picture(&mut view, 80, 24);
    assert!(
        all.contains("99,997 of 100,000") && all.contains("> step 49,999") && !all.contains("step 50,000  5 tokens"),
        "{all}"
    );
    // The selection stays where it is while more completions arrive.
    run.add_completions([(50_001, "Once", "later")].into_iter());
    view.refresh(PATIENCE);
    assert!(picture(&mut view, 80, 24).contains("99,997 of 100,001"));
    press(&mut view, &[KeyCode::End, KeyCode::Enter]);
    let all = picture(&mut view, 80, 24);
    assert!(all.contains("completion  1 of 100,001  seen 100%") && all.contains("the very first"), "{all}");
    press(&mut view, &[KeyCode::Esc, KeyCode::Home]);
    assert!(picture(&mut view, 80, 24).contains("> step 50,001"));
    // A resume repeats the last steps.
    run.add_completions([(49_000, "Once", "again")].into_iter());
    view.refresh(PATIENCE);
    assert!(picture(&mut view, 80, 24).contains("97,999 of 97,999"));
}

#[test]
fn a_completion_is_read_whole() {
    let run = WatchTestRun::running();
    let text: String = (0..100).map(|i| format!("line {i} of a long story\n")).collect();
    run.add_completions([(1, "first", "short"), (2, "Once\nupon", text.as_str())].into_iter());
    let mut view = run.view();
    press(&mut view, &[KeyCode::Enter]);
    let shown = rows(&mut view, 80, 24);
    let all = shown.join("\n");
    assert!(shown[2].starts_with("completion  2 of 2  seen 1") && all.contains("advantage -1.5  row 7 of the dataset"), "{all}");
    assert!(
        all.contains("length: 0.375  (01ab01ab01ab+c0ffee)") && all.contains("Once\nupon") && all.contains("line 9 of"),
        "{all}"
    );
    press(&mut view, &[KeyCode::Down, KeyCode::PageDown]);
    let all = picture(&mut view, 80, 24);
    assert!(!all.contains("line 9 of") && all.contains("line 20 of"), "{all}");
    press(&mut view, &[KeyCode::End]);
    assert!(picture(&mut view, 80, 24).contains("line 99 of"));
    press(&mut view, &[KeyCode::Down, KeyCode::Up, KeyCode::Home]);
    assert!(picture(&mut view, 80, 24).contains("line 9 of"));
    press(&mut view, &[KeyCode::Right]);
    assert!(picture(&mut view, 80, 24).contains("completion  1 of 2"));
    press(&mut view, &[KeyCode::Left, KeyCode::Esc]);
    assert!(matches!(view.dialog, Dialog::None));
}

#[test]
fn a_plugin_is_swapped_refused_or_not_sent() {
    let run = WatchTestRun::swapped();
    let mut view = run.view();
    let ask = |view: &mut View, file: &str| {
        press(view, &[KeyCode::Char('s')]);
        let all = picture(view, 80, 24);
        assert!(all.contains("> length") && all.contains("  grpo"), "{all}");
        press(view, &[KeyCode::Enter, KeyCode::Enter]);
        write(view, file);
        let all = picture(view, 80, 24);
        assert!(all.contains("The file that replaces length") && all.contains(&format!("> {file}")), "{all}");
        press(view, &[KeyCode::Enter]);
        let waiting = picture(view, 80, 24);
        let answer = answered(view);
        press(view, &[KeyCode::Enter]);
        assert!(matches!(view.dialog, Dialog::None));
        (waiting, answer)
    };
    let (waiting, answer) = ask(&mut view, "better.wasm");
    assert!(waiting.contains("better.wasm was sent to replace length"), "{waiting}");
    assert!(answer.contains("length was swapped in.") && answer.contains("mean 0.1 -> 0.7"), "{answer}");
    let (_, answer) = ask(&mut view, "worse.py");
    assert!(answer.contains("The run refused the new length.") && answer.contains("ZeroDivisionError"), "{answer}");
    assert!(answer.contains("line 1\\u{1b}[31m"), "{answer}");
    let (_, answer) = ask(&mut view, "q.wasm");
    assert!(answer.contains("length was not swapped.") && answer.contains("q.wasm: there is no such file"), "{answer}");
    let (_, answer) = ask(&mut view, "panic");
    assert!(answer.contains("it ended without an answer"), "{answer}");
}

#[test]
fn a_swap_is_cancelled_at_any_stage() {
    let run = WatchTestRun::swapped();
    let mut view = run.view();
    for stage in [&[][..], &[KeyCode::Down, KeyCode::Enter], &[KeyCode::Enter, KeyCode::Char('x'), KeyCode::Enter]] {
        press(&mut view, &[KeyCode::Char('s')]);
        press(&mut view, stage);
        assert!(matches!(view.dialog, Dialog::Swap(_)));
        press(&mut view, &[KeyCode::Esc]);
        assert!(matches!(view.dialog, Dialog::None));
        view.refresh(PATIENCE);
        assert!(matches!(view.dialog, Dialog::None));
    }
    press(&mut view, &[KeyCode::Char('s'), KeyCode::Down, KeyCode::Down, KeyCode::Enter]);
    write(&mut view, "a\u{4e16}b");
    press(&mut view, &[KeyCode::Backspace, KeyCode::Backspace]);
    let typed = |view: &View| match &view.dialog {
        Dialog::Swap(SwapDialog::Typing { name, file }) => (name.clone(), file.clone()),
        _ => panic!("nothing is typed"),
    };
    assert_eq!(typed(&view), ("grpo".to_owned(), "a".to_owned()));
    view.press(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL));
    view.press(KeyEvent::new(KeyCode::Char('x'), KeyModifiers::CONTROL));
    assert_eq!(typed(&view).1, "");
    write(&mut view, &"y".repeat(5000));
    assert_eq!(typed(&view).1.len(), 4096);
    assert_eq!(view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), KeyEffect::Quit);
}

#[test]
fn keys_show_one_panel_help_and_the_way_out() {
    let run = WatchTestRun::swapped();
    let mut view = run.view();
    press(&mut view, &[KeyCode::Char('?')]);
    assert!(picture(&mut view, 80, 24).contains("older and newer completions"));
    press(&mut view, &[KeyCode::Char('x'), KeyCode::Char('4')]);
    let all = picture(&mut view, 80, 24);
    assert!(all.contains("step 0: started") && !all.contains("plugins"), "{all}");
    press(&mut view, &[KeyCode::Up]);
    let all = picture(&mut view, 80, 24);
    assert!(all.contains("events  4 of 5") && !all.contains("rolled back"), "{all}");
    press(&mut view, &[KeyCode::Down, KeyCode::Char('4')]);
    assert!(picture(&mut view, 80, 24).contains("plugins  scoring"));
    assert_eq!(view.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)), KeyEffect::Quit);
}

#[test]
fn numbers_of_any_size_are_drawn() {
    let run = WatchTestRun::running();
    run.add_event(&json!({"event": "resumed", "step": 0, "max_steps": u64::MAX}));
    let row = |step: u64, value: f64| json!({"step": step, "time": value.abs(), "reward": value, "epoch": value, "time/reward": -value});
    let rows = [row(0, -1e38), row(1, 1e-320), row(u64::MAX, 3e38)].map(|row| format!("{row}\n"));
    run.append(&RunFiles(run.path()).metrics(), &rows.concat());
    run.add_event(&json!({"event": "plugin_swapped", "plugin": "length", "step": u64::MAX}));
    run.append(
        &RunFiles(run.path()).completions(),
        &format!("{}\n", json!({"step": u64::MAX, "row": u64::MAX, "rewards": {"a": 1e308}})),
    );
    let all = picture(&mut run.view(), 80, 24);
    assert!(all.contains("reward  3e38") && all.contains("step 18,446,744,073,709,551,615") && all.contains("(100%)"), "{all}");
}
