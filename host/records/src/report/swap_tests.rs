//! Tests reports of runs whose plugins were swapped, refused or failed repeatedly.

use super::tests::{at, begun, lines, loaded, report, rows, run, swapped};
use crate::run::RunFiles;
use serde_json::{Value, json};
use tempfile::TempDir;

fn metrics(steps: impl IntoIterator<Item = u64>, row: impl Fn(u64) -> Value) -> String {
    lines(steps.into_iter().map(|step| {
        let mut row = row(step);
        row["step"] = json!(step);
        row
    }))
}

/// Creates a run of thirty steps in which `length` was swapped after steps 10 and 20.
fn twice_swapped(row: impl Fn(u64) -> Value) -> TempDir {
    let swap = |step, from, to| {
        let mut event = swapped(step, from, to, 20);
        event["version"] = json!("2.1");
        event
    };
    let events = lines([begun("started", 0), loaded("aaaa", 20), swap(10, "aaaa", "bbbb"), swap(20, "bbbb", "cccc")]);
    run(&events, &metrics(1..=30, row), "")
}

/// Returns the chart whose first line is a metric.
fn chart<'a>(report: &'a Value, name: &str) -> &'a Value {
    let charts = &report["charts"];
    let sections = charts["sections"].as_array().unwrap().iter();
    let in_sections = sections.flat_map(|s| [&s["charts"], &s["zero"]]).chain([&charts["others"]]);
    let mut all = in_sections.flat_map(|charts| charts.as_array().unwrap());
    all.find(|chart| chart["lines"][0]["metric"] == name).unwrap_or_else(|| panic!("no chart of {name}"))
}

/// Returns the first and the last value of a key figure, and the step of the first if a swap came before it.
fn key<'a>(report: &'a Value, label: &str) -> [&'a Value; 3] {
    let figure = report["story"]["key_figures"].as_array().unwrap().iter().find(|figure| figure["label"] == label).unwrap();
    [&figure["first"], &figure["last"], &figure["since"]]
}

#[test]
fn curves_of_rewards_break_at_a_swap_and_each_version_has_a_colour() {
    let row = |step: u64| {
        json!({ "reward": step, "rewards/length/mean": step, "rewards/other/mean": 1.0, "loss": 0.1,
                "eval_rewards/length/mean": step.is_multiple_of(10).then_some(step) })
    };
    let report = report(twice_swapped(row).path());
    for name in ["reward", "rewards/length/mean"] {
        let chart = chart(&report, name);
        assert_eq!(chart["lines"][0]["breaks"], json!([10, 20]), "{name}");
        let eras =
            chart["eras"].as_array().unwrap().iter().map(|era| (era["label"].as_str().unwrap(), era["colour"].as_u64().unwrap()));
        assert_eq!(eras.collect::<Vec<_>>(), [("to step 10", 0), ("11 to 20", 1), ("from step 21", 2)], "{name}");
    }
    let evaluation = &chart(&report, "rewards/length/mean")["lines"][1];
    assert_eq!((&evaluation["evaluation"], &evaluation["breaks"]), (&json!(true), &json!([10, 20])));
    for name in ["rewards/other/mean", "loss"] {
        assert!(chart(&report, name)["lines"][0]["breaks"].is_null() && chart(&report, name)["eras"] == json!([]), "{name}");
    }
    // The headline, the table and the versions.
    assert_eq!(key(&report, "reward"), [&json!("21"), &json!("30"), &json!("21")]);
    assert_eq!(key(&report, "loss"), [&json!("0.1"), &json!("0.1"), &Value::Null]);
    let steps: Vec<&Value> = rows(&report, "rewards/length/mean").into_iter().map(|(_, steps)| steps).collect();
    assert_eq!(steps, [&json!([1, 10]), &json!([11, 20]), &json!([21, 30])]);
    let versions = report["story"]["versions"].as_array().unwrap();
    let stated: Vec<&str> = versions.iter().map(|version| version["version"].as_str().unwrap()).collect();
    assert_eq!(stated, ["1", "2.1", "2.1"]);
}

#[test]
fn an_era_begins_right_after_its_swap_however_seldom_rows_are_logged() {
    let swaps = [swapped(110, "aaaa", "bbbb", 20), swapped(116, "bbbb", "cccc", 20), swapped(268, "cccc", "dddd", 20)];
    let events = [begun("started", 0), loaded("aaaa", 20)].into_iter().chain(swaps);
    let report = report(run(&lines(events), &metrics((20..=400).step_by(20), |step| json!({ "reward": step })), "").path());
    let reward = chart(&report, "reward");
    assert_eq!(reward["lines"][0]["breaks"], json!([100, 260]));
    let labels: Vec<&Value> = reward["eras"].as_array().unwrap().iter().map(|era| &era["label"]).collect();
    assert_eq!(labels, ["to step 116", "117 to 268", "from step 269"]);
}

#[test]
fn a_version_that_comes_back_has_its_number_and_its_colour_again() {
    let weight = at(25, "settings_changed", json!({ "plugin": "length", "from": { "weight": 1.0 }, "to": { "weight": 0.5 } }));
    // The last swap loads the same version again.
    let swaps = [swapped(10, "aaaa", "bbbb", 20), swapped(20, "bbbb", "aaaa", 20), weight, swapped(27, "aaaa", "aaaa", 20)];
    let events = [begun("started", 0), loaded("aaaa", 20)].into_iter().chain(swaps);
    let row = |step: u64| json!({ "reward": step, "rewards/length/mean": 2 * step });
    let report = report(run(&lines(events), &metrics(1..=30, row), "").path());
    let colours = |name: &str| {
        chart(&report, name)["eras"].as_array().unwrap().iter().map(|era| era["colour"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    // Another weight changes the total, but not the reward's own scores.
    assert_eq!((colours("rewards/length/mean"), colours("reward")), (vec![0, 1, 0], vec![0, 1, 0, 2]));
    let numbers: Vec<u64> =
        report["story"]["versions"].as_array().unwrap().iter().map(|version| version["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 1, 1]);
}

#[test]
fn what_begins_at_the_same_swap_has_the_same_colour_in_all_charts() {
    let other = |hash: &str| {
        let mut event = loaded(hash, 20);
        event["plugin"] = json!("other");
        event
    };
    let mut second = swapped(20, "cccc", "dddd", 20);
    second["plugin"] = json!("other");
    let events = [begun("started", 0), loaded("aaaa", 20), other("cccc"), swapped(10, "aaaa", "bbbb", 20), second];
    let row = |step: u64| json!({ "reward": step, "rewards/length/mean": step, "rewards/other/mean": step });
    let report = report(run(&lines(events), &metrics(0..=30, row), "").path());
    let colours = |name: &str| {
        chart(&report, name)["eras"].as_array().unwrap().iter().map(|era| era["colour"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(colours("reward"), [0, 1, 2]);
    assert_eq!((colours("rewards/length/mean"), colours("rewards/other/mean")), (vec![0, 1], vec![0, 2]));
}

#[test]
fn rows_name_the_versions_that_they_were_made_with() {
    // The events are lost, or contradict the rows.
    let hash = |step: u64| if step <= 12 { "aaaa" } else { "bbbb" };
    let row =
        |step: u64| json!({ "reward": step, "rewards/length/mean": step, "versions": { "length": hash(step), "grpo": "ffff" } });
    let run = run(&lines([begun("started", 0)]), &metrics(1..=30, row), "");
    let report = report(run.path());
    assert_eq!(chart(&report, "rewards/length/mean")["lines"][0]["breaks"], json!([12]));
    assert!(rows(&report, "versions").is_empty());
}

#[test]
fn settings_that_are_rolled_back_are_named_and_break_curves() {
    let settings = |step: u64| if (11..=20).contains(&step) { "aaaa+0b" } else { "aaaa+0a" };
    let row = |step: u64| json!({ "rewards/length/mean": step, "versions": { "length": settings(step) } });
    let back = json!({ "plugin": "length", "from": "bbbb", "to": "bbbb", "reason": "trap", "config": { "target": 20 } });
    let events = [begun("started", 0), loaded("bbbb", 20), swapped(10, "bbbb", "bbbb", 3), at(20, "plugin_rolled_back", back)];
    // The rows alone distinguish settings, and so do the events.
    for events in [lines([begun("started", 0)]), lines(events)] {
        let report = report(run(&events, &metrics(1..=30, row), "").path());
        assert_eq!(chart(&report, "rewards/length/mean")["lines"][0]["breaks"], json!([10, 20]), "{events}");
        if events.contains("rolled_back") {
            let text = report["story"]["marks"][1]["text"].as_str().unwrap();
            assert!(text.ends_with("; trap; target 3 \u{2192} 20") && !text.contains("bbbb rolled back to bbbb;"), "{text}");
        }
    }
}

#[test]
fn evaluations_are_compared_since_the_last_swap() {
    let row = |step: u64| match step % 5 {
        0 => json!({ "eval_reward": step, "eval_reward/stderr": 0.1, "eval_loss": step, "eval_loss/stderr": 0.1 }),
        _ => json!({ "reward": step }),
    };
    let report = report(twice_swapped(row).path());
    let of = |name: &str| evaluation(&report, name).unwrap()["steps"].clone();
    assert_eq!((of("eval_reward"), of("eval_loss")), (json!("25 to 30"), json!("5 to 30")));
}

/// Returns a row of the table of evaluations.
fn evaluation<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    report["story"]["evaluations"].as_array().unwrap().iter().find(|row| row["name"] == name)
}

#[test]
fn evaluations_have_their_reward_in_the_table_with_an_interval_or_without() {
    let row = |step: u64| json!({ "eval_reward": step, "eval_rewards/length/mean": step, "eval_rewards/length/stderr": 0.1, "eval_entropy": 1.0 });
    let report = report(run(&lines([begun("started", 0)]), &metrics([5, 10], row), "").path());
    let of = |name: &str| evaluation(&report, name);
    let reward = of("eval_reward").unwrap();
    assert_eq!((&reward["first"], &reward["last"], &reward["steps"]), (&json!("5"), &json!("10"), &json!("5 to 10")));
    assert_eq!(of("eval_rewards/length").unwrap()["first"], "5 \u{b1} 0.196");
    assert!(of("eval_entropy").is_none());
}

#[test]
fn what_is_only_evaluated_has_its_chart() {
    let run =
        run(&lines([begun("started", 0)]), &metrics([0], |_| json!({ "eval_loss": 2.0, "eval_rewards/judge/mean": 0.5 })), "");
    let report = report(run.path());
    for name in ["eval_loss", "eval_rewards/judge/mean"] {
        assert_eq!(chart(&report, name)["lines"][0]["evaluation"], true, "{name}");
    }
    assert_eq!(report["charts"]["sections"][0]["title"], "Rewards");
}

#[test]
fn refused_versions_are_marked_and_errors_that_repeat_are_counted() {
    let refused = |step, hash: &str, reason: &str| {
        at(step, "plugin_refused", json!({ "plugin": "length", "hash": hash, "request": null, "reason": reason }))
    };
    let error = |step: u64| {
        let reason = format!("it trapped in step {step}");
        at(step, "plugin_error", json!({ "plugin": "length", "reason": reason, "rows": [1, 2], "row_reasons": ["x", "x"] }))
    };
    let mut events = vec![begun("started", 0), loaded("aaaa", 20), refused(3, "0123456789abcdef", &"no\t ".repeat(500))];
    let traceback =
        "it failed: Traceback (most recent call last):\n  File \"a.py\", line 2\n    1 / 0\nZeroDivisionError: division\n";
    events.push(refused(5, "1123456789abcdef", traceback));
    events.extend((4..24).map(error));
    events.push(at(9, "settings_refused", json!({ "reason": "line 3: not a number" })));
    let run = run(&lines(events), &metrics(1..=30, |step| json!({ "reward": step })), "");
    let report = report(run.path());
    let story = &report["story"];
    let marks: Vec<(&str, u64)> =
        story["marks"].as_array().unwrap().iter().map(|m| (m["word"].as_str().unwrap(), m["step"].as_u64().unwrap())).collect();
    assert_eq!(marks, [("refused", 3), ("refused", 5), ("refused", 9)]);
    let text = story["marks"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("length 0123456789ab: no no") && text.chars().count() < 300, "{text}");
    let text = story["marks"][1]["text"].as_str().unwrap();
    assert_eq!(text, "length 1123456789ab: it failed: Traceback (most recent call last): \u{2026} ZeroDivisionError: division");
    let trapped: Vec<&Value> =
        report["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "plugin_error").collect();
    let [trapped] = trapped[..] else { panic!("{trapped:?}") };
    assert_eq!((&trapped["count"], &trapped["until"]), (&json!(20), &json!("to step 23")));
    // After a start, a plugin and two refusals, twenty errors.
    assert_eq!((&trapped["step"], &trapped["latest"]), (&json!(4), &json!(23)));
    assert_eq!(trapped["text"], "length: it trapped in step 4; 40 rows without a score");
}

#[test]
fn charts_of_nothing_but_zeros_are_folded_away() {
    let row = |step: u64| {
        json!({ "reward": 0.0, "loss": 0.5, "clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": 0.0, "kl": step,
            "clip_ratio/high_max": 0.0, "new": step })
    };
    let run = run(&lines([begun("started", 0)]), &metrics(1..=3, row), "");
    let report = report(run.path());
    let zero: Vec<&str> = report["charts"]["sections"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|section| section["zero"].as_array().unwrap())
        .map(|chart| chart["title"].as_str().unwrap())
        .collect();
    assert_eq!(zero, ["Reward", "Clipped ratios", "clip_ratio/high_max"]);
    let others: Vec<&Value> = report["charts"]["others"].as_array().unwrap().iter().map(|chart| &chart["title"]).collect();
    assert_eq!(others, ["new"]);
    assert_eq!(report["charts"]["sections"].as_array().unwrap().last().unwrap()["title"], "Other metrics");
    // They can still be drawn.
    assert_eq!(chart(&report, "clip_ratio/low_mean")["lines"].as_array().unwrap().len(), 2);
}

#[test]
fn the_configuration_shows_what_the_user_set() {
    let mut start = begun("started", 0);
    start["set"] = json!(["seed", "plugin", "plugin.length.weight"]);
    let folder = run(&lines([start]), "", "");
    let config = "seed = 42\nmax_steps = 30\n\n[[plugin]]\npath = \"a/length.wasm\"\nweight = 0.5\n\n[plugin.config]\ntarget = 20\n\n\
                  [loss]\nbeta = 0.0\n";
    std::fs::write(RunFiles(folder.path()).config(), config).unwrap();
    let configuration = &report(folder.path())["configuration"];
    assert_eq!(configuration["own"], json!(["seed = 42", "[[plugin]]", "path = \"a/length.wasm\"", "weight = 0.5"]));
    assert_eq!(configuration["keys"], json!(["seed", "plugin.length.path", "plugin.length.weight"]));
    let lines_of = |configuration: &Value, set: bool| {
        let lines = configuration["lines"].as_array().unwrap().iter().filter(|line| line["set"] == set);
        lines.map(|line| line["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(lines_of(configuration, true), ["seed = 42", "path = \"a/length.wasm\"", "weight = 0.5"]);
    assert_eq!(lines_of(configuration, false)[..3], ["max_steps = 30", "", "[[plugin]]"], "all keys");
    // The required keys of an entry that nobody chose are not the user's.
    let mut start = begun("started", 0);
    start["set"] = json!(["max_steps"]);
    let built_in = &report(run(&lines([start]), "", "").path())["configuration"];
    assert_eq!(built_in["own"], json!(["max_steps = 30"]));
    let mut resumed = begun("resumed", 10);
    resumed["set"] = json!(["algorithm", "seed", "max_steps", "plugin"]);
    resumed["changed"] = json!({ "seed": [1, 42] });
    let resumed = &report(run(&lines([begun("started", 0), resumed]), "", "").path())["configuration"];
    assert_eq!(resumed["own"], json!(["seed = 42"]), "what changed, not what the checkpoint has");
    // A run of an older version does not record it.
    let older = &report(run(&lines([begun("started", 0)]), "", "").path())["configuration"];
    assert!(lines_of(older, true).is_empty() && lines_of(older, false).contains(&"max_steps = 30".to_owned()));
}
