//! Renders pages of runs that the tests write.

use super::eras::Eras;
use super::figures::{Figures, MOST_POINTS};
use super::story::Story;
use super::{Error, charts, render, samples, write};
use crate::run::RunFiles;
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

/// Returns what the page's script reads.
pub(super) fn data(page: &str) -> Value {
    let begin = page.split_once("id=\"report-data\">").unwrap().1;
    serde_json::from_str(begin.split_once("</script>").unwrap().0).unwrap()
}

fn series<'a>(data: &'a Value, name: &str) -> &'a Value {
    let all = data["series"].as_array().unwrap();
    all.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("no series {name}"))
}

fn figures(metrics: &str) -> Figures {
    let run = run("", metrics, "");
    Figures::read(run.path(), &mut Vec::new()).unwrap()
}

fn story(events: &str) -> Story {
    let run = run(events, "", "");
    Story::read(&run.path().join("events.jsonl"), &mut Vec::new()).unwrap()
}

#[test]
fn figures_are_on_the_page_as_they_were_logged_and_gaps_stay_gaps() {
    let metrics = lines([
        json!({ "step": 10, "reward": -6.35, "kl": 1e-9, "loss": null }),
        json!({ "step": 20, "reward": null, "kl": 0.1 + 0.2, "loss": 1.0 / 3.0 }),
        json!({ "step": 30, "reward": -1.5e300, "loss": "NaN", "late": 7 }),
    ]);
    let run = run(&lines([begun("started", 0)]), &metrics, "");
    let data = data(&render(run.path()).unwrap());
    assert_eq!(data["steps"], json!([10, 20, 30]));
    assert_eq!(series(&data, "reward")["y"], json!([-6.35, null, -1.5e300]));
    assert_eq!(series(&data, "kl")["y"], json!([1e-9, 0.1 + 0.2, null]));
    assert_eq!(series(&data, "loss")["y"], json!([null, 1.0 / 3.0, null]));
    assert_eq!(series(&data, "late")["y"], json!([null, null, 7.0]));
    assert_eq!((&data["from"], &data["to"]), (&json!(0), &json!(30)));

    // A step taken again counts as it was the second time, and steps are in order.
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
    let run = run(&lines([begun("started", 0)]), RECORDED, "");
    let page = render(run.path()).unwrap();
    let data = data(&page);
    assert_eq!(data["steps"], json!([10, 20, 30, 40, 50, 60]));
    let there = |name: &str| series(&data, name)["y"].as_array().unwrap().iter().map(|v| !v.is_null()).collect::<Vec<_>>();
    assert_eq!((there("loss"), there("grad_norm")), (vec![true; 6], vec![true; 6]));
    assert_eq!(there("eval_loss"), [false, true, false, true, false, true]);
    assert!(page.contains("<dt>loss</dt><dd><b>3.089</b> <span>from 3.767</span>"), "the last step's loss");
    // Whatever comes first: a row replaces only one of its kind.
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
    let completions =
        lines([json!({ "step": 0, "prompt": HOSTILE, "completion": HOSTILE, "rewards": { HOSTILE: 1.0 }, "advantage": 0.5 })]);
    let run = run(&events, &metrics, &completions);
    fs::write(run.path().join("config.toml"), format!("{CONFIG}# {HOSTILE}\n")).unwrap();
    let page = render(run.path()).unwrap();

    // The page itself has its data, the library and the script.
    assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (3, 3));
    assert!(!page.contains("<img") && !page.contains("alert(1)</"), "a tag came through");
    assert!(!page.contains("7819"), "a template was run");
    let visible = |text: &str| text.replace("\u{202e}\u{1b}\u{9b}", r"\u{202e}\u{1b}\u{9b}");
    let escaped = visible(HOSTILE).replace('<', "&lt;").replace('>', "&gt;").replace('/', "&#x2f;");
    assert!(!page.chars().any(|c| matches!(c, '\u{1b}' | '\u{80}'..='\u{9f}' | '\u{202e}')), "a hidden character came through");
    // Prompt, completion, its glance, its reward, events, configuration, metrics and their titles.
    assert!(page.matches(&escaped).count() >= 10, "{}", page.matches(&escaped).count());
    assert_eq!(series(&data(&page), &visible(HOSTILE))["y"], json!([3.0]));
}

#[test]
fn a_page_loads_nothing() {
    let run = run(&lines([begun("started", 0)]), &lines([json!({ "step": 1, "reward": 1.0 })]), "");
    let page = render(run.path()).unwrap();
    for loading in ["src=", "@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "sendBeacon", "import("] {
        assert!(!page.contains(loading), "{loading}");
    }
    let targets: Vec<&str> = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(targets.iter().all(|t| t.starts_with('#') || *t == "data:,"), "{targets:?}");
    assert!(page.contains("default-src 'none'") && page.contains("uPlot (v1.6.32)"));
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
    let mut completions = lines([json!({ "step": 0, "prompt": "p", "completion": "whole" })]).into_bytes();
    // Cut off in the middle of a character.
    completions.extend(b"{\"step\":1,\"completion\":\"half \xf0\x9f");
    let run = run(&events, &metrics, "");
    fs::write(run.path().join("completions.jsonl"), completions).unwrap();
    let page = render(run.path()).unwrap();
    assert_eq!(series(&data(&page), "reward")["y"], json!([1.0, 2.0]));
    assert!(page.contains("metrics.jsonl: line 2 is not a JSON object"));
    assert_eq!(page.matches("is not a JSON object").count(), 1);
    assert!(
        page.contains("moon rose") && page.contains("phase: 0.25; names: [&quot;a&quot;,&quot;b&quot;]"),
        "the unknown event"
    );
    assert!(page.contains(">whole<") && !page.contains("half "));
}

#[test]
fn a_run_that_has_just_begun_has_a_page() {
    let run = run(&lines([begun("started", 0), loaded("abcdef0123456789", 20)]), "", "");
    let page = render(run.path()).unwrap();
    assert!(page.contains("No metrics have been logged yet.") && page.contains("abcdef012345"));
    assert!(!page.contains("id=\"samples\"") && !page.contains("class=\"chart\""));
    assert_eq!(data(&page)["steps"], json!([]));
    // There is no lock that tells whether it is still running.
    assert!(page.contains("<strong>unfinished</strong>"));
    fs::write(run.path().join(".lock"), "").unwrap();
    assert!(render(run.path()).unwrap().contains("<strong>interrupted</strong>"));
    let lock = fs::File::open(run.path().join(".lock")).unwrap();
    lock.lock().unwrap();
    assert!(render(run.path()).unwrap().contains("<strong>running</strong>"));

    // A configuration alone is enough, even one that is being edited.
    for file in ["events.jsonl", "metrics.jsonl", "completions.jsonl"] {
        fs::remove_file(run.path().join(file)).unwrap();
    }
    fs::write(run.path().join("config.toml"), "algorithm = \"gr").unwrap();
    let page = render(run.path()).unwrap();
    assert!(page.contains("config.toml can&#x27;t be understood") && page.contains("algorithm = &quot;gr"));
}

#[test]
fn thousands_of_steps_become_means_with_their_extremes() {
    let steps = 2 * MOST_POINTS as u64 + 1;
    let figures =
        figures(&lines((1..=steps).map(|step| json!({ "step": step, "reward": step, "rare": (step == 5).then_some(9.0) }))));
    let thinned = figures.thinned(&[]);
    let n = thinned.steps.len();
    assert_eq!((thinned.per_point, n), (3, steps.div_ceil(3) as usize));
    assert!(n <= MOST_POINTS && thinned.steps[..2] == [3, 6] && thinned.steps[n - 1] == steps);
    let reward = &thinned.series[0];
    let ends = |values: &[Option<f64>]| (values[0], values[1]);
    assert_eq!(ends(&reward.values), (Some(2.0), Some(5.0)));
    assert_eq!(
        (ends(reward.lo.as_ref().unwrap()), ends(reward.hi.as_ref().unwrap())),
        ((Some(1.0), Some(4.0)), (Some(3.0), Some(6.0)))
    );
    assert_eq!(thinned.series[1].values.iter().flatten().collect::<Vec<_>>(), [&9.0]);
    let run = run("", &lines((1..=steps).map(|step| json!({ "step": step, "reward": step }))), "");
    assert!(render(run.path()).unwrap().contains("Each point is the mean of 3 of the 4,001 logged steps"));
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
    let story = Story::default();
    let (sections, others) = charts::arrange(&figures, &Eras::new(&figures, &story), &[("a".into(), 2.0)]);
    let shown: Vec<&charts::Chart> = sections.iter().flat_map(|s| &s.charts).chain(&others).collect();
    let places = shown
        .iter()
        .flat_map(|c| &c.lines)
        .flat_map(|l| [Some(l.series), l.around, l.between.map(|b| b.0), l.between.map(|b| b.1)].into_iter().flatten());
    let places: BTreeSet<usize> = places.collect();
    let drawn: BTreeSet<&str> = places.iter().map(|&p| figures.series[p].name.as_str()).collect();
    assert_eq!(drawn, names.into_iter().collect());
    let others: Vec<&str> = others.iter().map(|c| c.title.as_str()).collect();
    assert_eq!(others, ["epoch", "something/new", "time/values"]);
    let titles: Vec<&str> = sections[0].charts.iter().map(|c| c.title.as_str()).collect();
    assert_eq!(titles, ["Reward", "a", "b"]);
    assert_eq!(sections[0].charts[1].note, "weight 2");
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
    let kinds = |story: &Story| story.marks.iter().map(|m| m.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&events("bbbb")), ["swap", "failure", "resume"]);
    assert_eq!(events("bbbb").versions.len(), 2);
    assert_eq!(kinds(&events("aaaa")), ["failure", "resume"]);
    assert_eq!(events("aaaa").versions.len(), 1);
    assert_eq!(events("aaaa").state(Some(true), Some(10)).word, "running");
}

#[test]
fn samples_are_spread_over_the_run_and_go_from_the_best_to_the_worst() {
    let line = |step: u64, row: u64, advantage: f64| {
        json!({ "step": step, "row": row, "prompt": format!("p{row}"), "completion": format!("worth {advantage}"), "completion_ids": [1, 2],
                "finished": false, "rewards": { "length": advantage, "other": null }, "advantage": advantage })
    };
    let text = lines(
        (0..100).flat_map(|step| [0.1, -2.0, 0.7, 0.3, -0.5].map(|a| line(step, 3, a)).into_iter().chain([line(step, 4, 9.0)])),
    );
    let folder = run("", "", &text);
    let path = folder.path().join("completions.jsonl");
    let samples = samples::read(&path, &[50], &mut Vec::new()).unwrap();
    let steps: Vec<u64> = samples.iter().map(|s| s.step).collect();
    assert_eq!(steps, [0, 14, 28, 42, 50, 56, 70, 84, 99]);
    let first = &samples[0];
    let shown: Vec<&str> = first.completions.iter().map(|c| c.text.shown.as_str()).collect();
    assert_eq!((first.prompt.shown.as_str(), first.of), ("p3", 5), "the other prompt's are not mixed in");
    assert_eq!(shown, ["worth 0.7", "worth 0.3", "worth 0.1", "worth -2.0"].map(|s| s.trim_end_matches(".0")));
    assert_eq!((first.completions[0].tokens, first.completions[0].finished), (2, false));
    assert_eq!(first.completions[0].rewards, [Some("0.7".to_owned()), None]);
    assert!(samples::read(Path::new("no/such/file"), &[], &mut Vec::new()).unwrap().is_empty());
}

#[test]
fn an_episode_is_shown_turn_by_turn_without_its_prompt() {
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let said = [
        message("user", "an example"),
        message("assistant", "of an answer"),
        message("user", "play"),
        message("assistant", "16"),
        message("user", "<higher>"),
        message("assistant", "24"),
    ];
    let line = json!({ "step": 0, "row": 0, "prompt": "play", "completion": "16higher24", "completion_ids": [1], "finished": true,
                       "rewards": { "game": 1.5 }, "messages": said, "turns": [{}, {}], "turn_rewards": [null, 1.5] });
    let folder = run("", "", &format!("{line}\n"));
    let samples = samples::read(&folder.path().join("completions.jsonl"), &[], &mut Vec::new()).unwrap();
    let turns = &samples[0].completions[0].turns;
    let shown: Vec<_> = turns.iter().map(|t| (t.role.as_deref(), t.text.shown.as_str(), t.reward.as_deref())).collect();
    assert_eq!(shown, [(None, "16", None), (Some("user"), "<higher>", None), (None, "24", Some("1.5"))]);
    let page = render(folder.path()).unwrap();
    assert!(page.contains("class=\"turn reply\"") && page.contains("&lt;higher&gt;"));
}

#[test]
fn of_very_many_events_the_ends_are_shown() {
    let errors = (1..=1000)
        .map(|step| at(step, "plugin_error", json!({ "plugin": "length", "reason": format!("error {step}."), "rows": [1] })));
    let run = run(&lines([begun("started", 0)].into_iter().chain(errors)), "", "");
    let page = render(run.path()).unwrap();
    assert!(page.contains("501 events omitted"));
    assert_eq!(page.matches("1 row without a score").count(), 499);
    assert!(
        page.contains("error 149.")
            && !page.contains("error 150.")
            && !page.contains("error 650.")
            && page.contains("error 651.")
    );
}

#[test]
fn the_report_is_written_in_one_piece_beside_what_it_is_of() {
    let run = run(&lines([begun("started", 0)]), &lines([json!({ "step": 1, "reward": 1.0 })]), "");
    fs::create_dir(run.path().join("checkpoint-1")).unwrap();
    fs::write(RunFiles(run.path()).report(), "an older one").unwrap();
    let path = write(run.path()).unwrap();
    assert_eq!(path, RunFiles(run.path()).report());
    let page = fs::read_to_string(&path).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(data(&page)["checkpoints"], json!([1]));
    let names: BTreeSet<String> =
        fs::read_dir(run.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 6, "something temporary stayed: {names:?}");
}

#[test]
fn what_is_no_run_is_refused_with_a_word_on_what_would_be() {
    let outer = TempDir::new().unwrap();
    let run = outer.path().join("grpo-1");
    fs::create_dir_all(run.join("checkpoint-5")).unwrap();
    let refused = |path: &Path| match write(path) {
        Err(error @ Error::NotARun { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused(&outer.path().join("none")).ends_with("there is no such folder; give the folder of a run"));
    assert!(refused(&run).ends_with("is not the folder of a run, which contains config.toml and events.jsonl"));
    fs::write(run.join("config.toml"), CONFIG).unwrap();
    assert!(refused(outer.path()).ends_with(&format!("it contains some, such as {}", run.display())));
    assert!(refused(&run.join("config.toml")).ends_with("is a file; give the folder of a run"));
    fs::write(run.join("checkpoint-5/config.toml"), CONFIG).unwrap();
    fs::write(run.join("checkpoint-5/trainer_state.json"), "{}").unwrap();
    assert!(refused(&run.join("checkpoint-5")).ends_with(&format!("is a checkpoint; give its run's folder, {}", run.display())));
    write(&run).unwrap();
}
