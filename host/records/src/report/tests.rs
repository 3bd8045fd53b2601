//! Tests reports of runs that the tests write.

use super::eras::Eras;
use super::series::ReportMetrics;
use super::timeline::RunTimeline;
use super::{Error, RunReport, charts, visible_json};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const CONFIG: &str = "algorithm = \"grpo\"\nseed = 42\nmax_steps = 30\n\n[[plugin]]\npath = \"a/length.wasm\"\nweight = 0.5\n";
const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u{202e}\u{1b}\u{9b}{{ 1117 * 7 }}";

pub(super) fn lines(values: impl IntoIterator<Item = Value>) -> String {
    values.into_iter().fold(String::new(), |mut text, value| {
        writeln!(text, "{value}").unwrap();
        text
    })
}

pub(super) fn begun(kind: &str, step: u64) -> Value {
    json!({ "time": "2026-01-01T00:00:00Z", "event": kind, "step": step, "checkpoint": null, "max_steps": 30, "version": "0.1.0", "model": "models/small" })
}

pub(super) fn loaded(hash: &str, target: u64) -> Value {
    json!({ "time": "2026-01-01T00:00:00Z", "event": "plugin_loaded", "role": "reward", "plugin": "length", "version": "1", "hash": hash, "config": { "target": target } })
}

pub(super) fn at(step: u64, event: &str, mut fields: Value) -> Value {
    fields["time"] = "2026-01-01T00:01:00Z".into();
    fields["event"] = event.into();
    fields["step"] = step.into();
    fields
}

pub(super) fn swapped(step: u64, from: &str, to: &str, target: u64) -> Value {
    at(
        step,
        "plugin_swapped",
        json!({ "plugin": "length", "from": from, "to": to, "config": { "target": target }, "shadow": null }),
    )
}

/// Creates a run with these events, metrics and completions.
pub(super) fn run(events: &str, metrics: &str, completions: &str) -> TempDir {
    let run = TempDir::new().unwrap();
    fs::write(run.path().join("config.toml"), CONFIG).unwrap();
    fs::write(run.path().join("events.jsonl"), events).unwrap();
    fs::write(run.path().join("metrics.jsonl"), metrics).unwrap();
    fs::write(run.path().join("completions.jsonl"), completions).unwrap();
    run
}

/// Returns the report of a run as JSON.
pub(super) fn report(run: &Path) -> Value {
    visible_json(&RunReport::load(run).unwrap())
}

/// Returns the rows of the table of metrics: first, last, minimum, maximum, and the steps.
pub(super) fn rows<'a>(report: &'a Value, name: &str) -> Vec<(&'a Value, &'a Value)> {
    let all = report["metrics"].as_array().unwrap().iter().filter(|row| row["name"] == name);
    all.map(|row| (&row["values"], &row["steps"])).collect()
}

fn figures(metrics: &str) -> ReportMetrics {
    let run = run("", metrics, "");
    ReportMetrics::read(run.path(), &mut Vec::new()).unwrap()
}

fn story(events: &str) -> RunTimeline {
    let run = run(events, "", "");
    RunTimeline::read(&run.path().join("events.jsonl"), &mut Vec::new()).unwrap()
}

#[test]
fn figures_are_as_they_were_logged_and_gaps_stay_gaps() {
    let metrics = lines([
        json!({ "step": 10, "reward": -6.35, "kl": 1e-9, "loss": null }),
        json!({ "step": 20, "reward": null, "kl": 0.1 + 0.2, "loss": 1.0 / 3.0 }),
        json!({ "step": 30, "reward": -1.5e300, "loss": "NaN", "late": 7 }),
    ]);
    let all = figures(&metrics);
    assert_eq!(all.steps, [10, 20, 30]);
    assert_eq!(all.values("reward"), [Some(-6.35), None, Some(-1.5e300)]);
    assert_eq!(all.values("kl"), [Some(1e-9), Some(0.1 + 0.2), None]);
    assert_eq!(all.values("loss"), [None, Some(1.0 / 3.0), None]);
    assert_eq!(all.values("late"), [None, None, Some(7.0)]);
    let report = report(run(&lines([begun("started", 0)]), &metrics, "").path());
    assert_eq!(rows(&report, "reward"), [(&json!([-6.35, -1.5e300, -1.5e300, -6.35]), &json!([10, 30]))]);
    assert_eq!(report["story"]["logged"], json!({ "from": 10, "to": 30, "rows": 3 }));

    // A repeated step counts with its second values, and steps are sorted.
    let again = figures(&lines([(4, 1.0), (8, 2.0), (6, 3.0), (8, 4.0)].map(|(step, kl)| json!({ "step": step, "kl": kl }))));
    assert_eq!(
        (again.steps.as_slice(), again.values("kl")),
        ([4, 6, 8].as_slice(), [Some(1.0), Some(3.0), Some(4.0)].as_slice())
    );
}

/// The metrics of an SFT run that logged every 10 steps and evaluated every 20.
const RECORDED: &str = include_str!("../run/recorded/sft.jsonl");

#[test]
fn a_step_with_an_evaluation_keeps_its_training_row() {
    let recorded = figures(RECORDED);
    assert_eq!(recorded.steps, [10, 20, 30, 40, 50, 60]);
    let there = |name: &str| recorded.values(name).iter().map(Option::is_some).collect::<Vec<_>>();
    assert_eq!((there("loss"), there("grad_norm")), (vec![true; 6], vec![true; 6]));
    assert_eq!(there("eval_loss"), [false, true, false, true, false, true]);
    let report = report(run(&lines([begun("started", 0)]), RECORDED, "").path());
    let loss = report["story"]["key_figures"].as_array().unwrap().iter().find(|figure| figure["label"] == "loss").unwrap();
    assert_eq!((&loss["last"], &loss["first"]), (&json!("3.089"), &json!("3.767")), "the last step's loss");
    // In either order, a row replaces only one of its own kind.
    let again = figures(&lines([
        json!({ "step": 4, "eval_loss": 1.0, "eval_old": 1.0 }),
        json!({ "step": 4, "loss": 2.0, "old": 2.0 }),
        json!({ "step": 4, "eval_loss": 3.0 }),
        json!({ "step": 4, "loss": 4.0 }),
    ]));
    let values = ["loss", "eval_loss", "old", "eval_old"].map(|name| again.values(name)[0]);
    assert_eq!((again.steps.as_slice(), values), ([4].as_slice(), [Some(4.0), Some(3.0), None, None]));
}

#[test]
fn nothing_that_a_run_says_is_more_than_text() {
    let metrics = lines([json!({ "step": 1, "reward": 1.0, format!("rewards/{HOSTILE}/mean"): 2.0, HOSTILE: 3.0 })]);
    let events =
        lines([begun("started", 0), at(1, HOSTILE, json!({ HOSTILE: HOSTILE })), at(1, "failed", json!({ "reason": HOSTILE }))]);
    let run = run(&events, &metrics, "");
    fs::write(run.path().join("config.toml"), format!("{CONFIG}# {HOSTILE}\n")).unwrap();
    let text = report(run.path()).to_string();
    assert!(!text.contains("7819"), "a template was run");
    assert!(!text.chars().any(|c| matches!(c, '\u{1b}' | '\u{80}'..='\u{9f}' | '\u{202e}')), "a hidden character came through");
    let visible = HOSTILE.replace("\u{202e}\u{1b}\u{9b}", r"\\u{202e}\\u{1b}\\u{9b}");
    // The reason, the event, the configuration, metrics and the titles of their charts.
    assert!(text.matches(&visible).count() >= 8, "{}", text.matches(&visible).count());
}

#[test]
fn half_a_line_is_left_to_come_and_a_broken_one_is_named() {
    let metrics = format!(
        "{}not JSON\n{}{{\"step\":3,\"rew",
        lines([json!({ "step": 1, "reward": 1.0 })]),
        lines([json!({ "step": 2, "reward": 2.0 })])
    );
    let events =
        format!("{}{}", lines([begun("started", 0), at(2, "moon_rose", json!({ "phase": 0.25, "names": ["a", "b"] }))]), "{\"ti");
    let report = report(run(&events, &metrics, "").path());
    assert_eq!(rows(&report, "reward"), [(&json!([1.0, 2.0, 1.0, 2.0]), &json!([1, 2]))]);
    let notes = report["story"]["notes"].as_array().unwrap();
    assert!(notes.len() == 1 && notes[0].as_str().unwrap().contains("metrics.jsonl: line 2 is not a JSON object"), "{notes:?}");
    let unknown = report["events"].as_array().unwrap().iter().find(|event| event["kind"] == "moon_rose").unwrap();
    assert_eq!(unknown["text"], "phase: 0.25; names: [\"a\",\"b\"]");
}

#[test]
fn a_run_that_has_just_begun_has_a_report() {
    let run = run(&lines([begun("started", 0), loaded("abcdef0123456789", 20)]), "", "");
    let state = || report(run.path())["story"]["state"]["word"].clone();
    let begun = report(run.path());
    assert_eq!((&begun["story"]["logged"], &begun["story"]["key_figures"]), (&Value::Null, &json!([])));
    assert_eq!((&begun["charts"]["sections"], &begun["metrics"]), (&json!([]), &json!([])));
    assert_eq!(begun["story"]["versions"][0]["short"], "abcdef012345");
    // There is no lock that shows whether the run is still running.
    assert_eq!(state(), "unfinished");
    fs::write(run.path().join(".lock"), "").unwrap();
    assert_eq!(state(), "interrupted");
    let lock = fs::File::open(run.path().join(".lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(state(), "running");

    // A configuration alone is enough, even while it is being edited.
    for file in ["events.jsonl", "metrics.jsonl", "completions.jsonl"] {
        fs::remove_file(run.path().join(file)).unwrap();
    }
    fs::write(run.path().join("config.toml"), "algorithm = \"gr").unwrap();
    let edited = report(run.path());
    assert!(edited["story"]["notes"][0].as_str().unwrap().starts_with("config.toml can't be understood"));
    assert_eq!(edited["configuration"]["lines"][0]["text"], "algorithm = \"gr");
}

#[test]
fn every_logged_figure_has_its_place() {
    let names = [
        "reward",
        "reward_std",
        "rewards/a/mean",
        "rewards/a/std",
        "rewards/b/mean",
        "completions/mean_length",
        "completions/min_length",
        "completions/max_length",
        "kl",
        "loss",
        "clip_ratio/low_mean",
        "rewards/accuracies",
        "logps/chosen",
        "step_time",
        "time/rollout",
        "time/forward",
        "time/values",
        "time/checkpoint",
        "perf/throughput",
        "perf/rollout_throughput",
        "perf/peak_memory_mb",
        "epoch",
        "something/new",
    ];
    let line = |step: u64| {
        let mut line = json!({ "step": step, "never": null });
        for (i, name) in names.iter().enumerate() {
            line[name] = json!(i as f64 + step as f64);
        }
        line["time/values"] = json!(1e-6);
        line
    };
    let figures = figures(&lines([line(1), line(2)]));
    let story = RunTimeline::default();
    let charts = charts::arrange(&figures, &Eras::new(&figures, &story), &[("a".into(), 2.0)]);
    let shown: Vec<&charts::Chart> = charts.sections.iter().flat_map(|s| &s.charts).chain(&charts.others).collect();
    let drawn = shown
        .iter()
        .flat_map(|c| &c.lines)
        .flat_map(|l| std::iter::once(&l.metric).chain(&l.around).chain(l.between.iter().flatten()).map(String::as_str));
    assert_eq!(drawn.collect::<BTreeSet<&str>>(), names.into_iter().collect());
    let others: Vec<&str> = charts.others.iter().map(|c| c.title.as_str()).collect();
    assert_eq!(others, ["epoch", "something/new", "time/values"]);
    let sections = charts.sections;
    let titles: Vec<&str> = sections[0].charts.iter().map(|c| c.title.as_str()).collect();
    assert_eq!(titles, ["Reward", "a", "b"]);
    assert_eq!(sections[0].charts[1].note, "weight 2");

    // In a comparison of several runs, each metric has its own chart.
    let all: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let charts = super::charts_of(&all);
    let of_each: Vec<&str> =
        charts.sections.iter().flat_map(|s| &s.charts).chain(&charts.others).map(|c| c.lines[0].metric.as_str()).collect();
    assert_eq!((of_each.len(), of_each.iter().copied().collect()), (names.len(), names.into_iter().collect::<BTreeSet<&str>>()));
    let titles: Vec<&str> = charts.sections[0].charts.iter().map(|c| c.title.as_str()).collect();
    assert_eq!(titles, ["Reward", "a", "b"]);
}

#[test]
fn a_run_that_went_back_has_one_past() {
    let story = story(&lines([
        begun("started", 0),
        loaded("aaaa", 20),
        swapped(5, "aaaa", "aaaa", 30),
        at(10, "checkpoint_saved", json!({ "seconds": 1.0 })),
        swapped(12, "aaaa", "bbbb", 30),
        at(15, "checkpoint_saved", json!({})),
        begun("resumed", 10),
        loaded("aaaa", 30),
        swapped(14, "aaaa", "cccc", 30),
        at(16, "plugin_rolled_back", json!({ "plugin": "length", "from": "cccc", "to": "aaaa", "reason": "trap" })),
        at(20, "settings_changed", json!({ "plugin": "length", "from": { "weight": 1.0 }, "to": { "weight": 0.5 } })),
        at(30, "finished", json!({ "seconds": 9.0 })),
    ]));
    let undone: Vec<Option<u64>> = story.events.iter().filter(|e| e.undone).map(|e| e.event.step).collect();
    assert_eq!(undone, [Some(12), Some(15)]);
    assert_eq!(story.checkpoints, [10]);
    let marks: Vec<(usize, u64, &str)> = story.marks.iter().map(|m| (m.number, m.step, m.kind)).collect();
    assert_eq!(marks, [(1, 5, "settings"), (2, 10, "resume"), (3, 14, "swap"), (4, 16, "rollback"), (5, 20, "settings")]);
    assert_eq!(story.marks[0].text, "length: target 20 \u{2192} 30");
    assert_eq!(story.marks[4].text, "length: weight 1 \u{2192} 0.5");
    let versions: Vec<(&str, u64, Option<u64>)> = story.versions.iter().map(|v| (v.hash.as_str(), v.since, v.until)).collect();
    assert_eq!(versions, [("aaaa", 0, Some(5)), ("aaaa", 5, Some(14)), ("cccc", 14, Some(16)), ("aaaa", 16, None)]);
    // A minute for the process that crashed, plus what the last one reports.
    assert_eq!(story.seconds(None, Some(9.0)), 69.0);
    assert_eq!(story.state(None, Some(30)).word, "finished");
}

#[test]
fn a_swap_at_the_very_step_that_a_run_goes_on_from_is_in_its_checkpoint_or_not() {
    let events = |resumed_with: &str| {
        story(&lines([
            begun("started", 0),
            loaded("aaaa", 20),
            swapped(10, "aaaa", "bbbb", 20),
            at(10, "failed", json!({ "reason": "no luck" })),
            begun("resumed", 10),
            loaded(resumed_with, 20),
        ]))
    };
    let kinds = |story: &RunTimeline| story.marks.iter().map(|m| m.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&events("bbbb")), ["swap", "failure", "resume"]);
    assert_eq!(events("bbbb").versions.len(), 2);
    assert_eq!(kinds(&events("aaaa")), ["failure", "resume"]);
    assert_eq!(events("aaaa").versions.len(), 1);
    assert_eq!(events("aaaa").state(Some(true), Some(10)).word, "running");
}

#[test]
fn of_very_many_events_the_ends_are_shown() {
    let errors = (1..=1000)
        .map(|step| at(step, "plugin_error", json!({ "plugin": "length", "reason": format!("error x{step}."), "rows": [1] })));
    let run = run(&lines([begun("started", 0)].into_iter().chain(errors)), "", "");
    let report = report(run.path());
    let events = report["events"].as_array().unwrap();
    assert_eq!(events.iter().map(|event| event["left_out"].as_u64().unwrap()).sum::<u64>(), 501);
    let texts: Vec<&str> = events.iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(texts.iter().filter(|text| text.contains("1 row without a score")).count(), 499);
    let has = |number: u64| texts.iter().any(|text| text.contains(&format!("error x{number}.")));
    assert!(has(149) && !has(150) && !has(650) && has(651));
}

#[test]
fn checkpoints_that_are_there_are_told_without_an_event() {
    let run = run(&lines([begun("started", 0)]), &lines([json!({ "step": 1, "reward": 1.0 })]), "");
    fs::create_dir(run.path().join("checkpoint-1")).unwrap();
    assert_eq!(report(run.path())["story"]["checkpoints"], json!([1]));
}

#[test]
fn what_is_no_run_is_refused_with_a_word_on_what_would_be() {
    let outer = TempDir::new().unwrap();
    let run = outer.path().join("grpo-1");
    fs::create_dir_all(run.join("checkpoint-5")).unwrap();
    let refused = |path: &Path| match RunReport::load(path) {
        Err(error @ Error::NotARun { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("{} is a run", path.display()),
    };
    assert!(refused(&outer.path().join("none")).ends_with("there is no such folder; give the folder of a run"));
    assert!(refused(&run).ends_with("is not the folder of a run, which contains config.toml and events.jsonl"));
    fs::write(run.join("config.toml"), CONFIG).unwrap();
    assert!(refused(outer.path()).ends_with(&format!("it contains some, such as {}", run.display())));
    assert!(refused(&run.join("config.toml")).ends_with("is a file; give the folder of a run"));
    fs::write(run.join("checkpoint-5/config.toml"), CONFIG).unwrap();
    fs::write(run.join("checkpoint-5/trainer_state.json"), "{}").unwrap();
    assert!(refused(&run.join("checkpoint-5")).ends_with(&format!("is a checkpoint; give its run's folder, {}", run.display())));
    RunReport::load(&run).unwrap();
}
