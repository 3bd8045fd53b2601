//! Renders pages of runs whose plugins were swapped, refused or failed again and again.

use super::eras::Eras;
use super::figures::Figures;
use super::render;
use super::story::Story;
use super::tests::{at, begun, data, lines, loaded, run, swapped};
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

fn chart<'a>(data: &'a Value, name: &str) -> &'a Value {
    let place = data["series"].as_array().unwrap().iter().position(|s| s["name"] == name).unwrap();
    let draws = |chart: &&Value| chart["lines"][0]["series"] == place;
    data["charts"].as_array().unwrap().iter().find(draws).unwrap_or_else(|| panic!("no chart of {name}"))
}

#[test]
fn curves_of_rewards_break_at_a_swap_and_each_version_has_a_colour() {
    let row = |step: u64| {
        json!({ "reward": step, "rewards/length/mean": step, "rewards/other/mean": 1.0, "loss": 0.1,
                "eval_rewards/length/mean": step.is_multiple_of(10).then_some(step) })
    };
    let page = render(twice_swapped(row).path()).unwrap();
    let data = data(&page);
    for name in ["reward", "rewards/length/mean"] {
        let chart = chart(&data, name);
        assert_eq!(chart["lines"][0]["breaks"], json!([10, 20]), "{name}");
        let eras =
            chart["eras"].as_array().unwrap().iter().map(|era| (era["label"].as_str().unwrap(), era["colour"].as_u64().unwrap()));
        assert_eq!(eras.collect::<Vec<_>>(), [("to step 10", 0), ("11 to 20", 1), ("from step 21", 2)], "{name}");
    }
    let evaluation = &chart(&data, "rewards/length/mean")["lines"][1];
    assert_eq!((&evaluation["evaluation"], &evaluation["breaks"]), (&json!(true), &json!([10, 20])));
    for name in ["rewards/other/mean", "loss"] {
        assert!(chart(&data, name)["lines"][0]["breaks"].is_null() && chart(&data, name)["eras"] == json!([]), "{name}");
    }
    assert_eq!(data["breaks"], json!([10, 20]));
    // The headline, the table and the versions.
    assert!(page.contains("<b>30</b> <span>from 21 at step 21, since a swap</span>"));
    assert!(page.contains("<b>0.1</b> <span>from 0.1</span>"));
    let rows: Vec<&str> = page.split("<th scope=\"row\">rewards&#x2f;length&#x2f;mean</th>").skip(1).collect();
    let steps: Vec<&str> = rows.iter().map(|row| row.split("</tr>").next().unwrap()).collect();
    assert!(steps.len() == 3 && steps[0].contains("1 to 10") && steps[1].contains("11 to 20") && steps[2].contains("21 to 30"));
    assert!(page.contains("<td>2.1</td>") && !page.contains("not recorded"));
}

#[test]
fn a_version_that_comes_back_has_its_number_and_its_colour_again() {
    let weight = at(25, "settings_changed", json!({ "plugin": "length", "from": { "weight": 1.0 }, "to": { "weight": 0.5 } }));
    // The last swap loads the same again.
    let swaps = [swapped(10, "aaaa", "bbbb", 20), swapped(20, "bbbb", "aaaa", 20), weight, swapped(27, "aaaa", "aaaa", 20)];
    let events = [begun("started", 0), loaded("aaaa", 20)].into_iter().chain(swaps);
    let row = |step: u64| json!({ "reward": step, "rewards/length/mean": 2 * step });
    let page = render(run(&lines(events), &metrics(1..=30, row), "").path()).unwrap();
    let data = data(&page);
    let colours = |name: &str| {
        chart(&data, name)["eras"].as_array().unwrap().iter().map(|era| era["colour"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    // Another weight makes another total, and leaves the reward's own scores.
    assert_eq!((colours("rewards/length/mean"), colours("reward")), (vec![0, 1, 0], vec![0, 1, 0, 2]));
    assert_eq!(page.matches("<td class=\"number\">1</td><td>1</td>").count(), 3);
}

#[test]
fn rows_name_the_versions_that_they_were_made_with() {
    // The events are lost, or say otherwise.
    let hash = |step: u64| if step <= 12 { "aaaa" } else { "bbbb" };
    let row =
        |step: u64| json!({ "reward": step, "rewards/length/mean": step, "versions": { "length": hash(step), "grpo": "ffff" } });
    let run = run(&lines([begun("started", 0)]), &metrics(1..=30, row), "");
    let data = data(&render(run.path()).unwrap());
    assert_eq!(chart(&data, "rewards/length/mean")["lines"][0]["breaks"], json!([12]));
    assert!(data["series"].as_array().unwrap().iter().all(|s| s["name"] != "versions"));
}

#[test]
fn settings_that_are_rolled_back_are_named_and_break_curves() {
    let settings = |step: u64| if (11..=20).contains(&step) { "aaaa+0b" } else { "aaaa+0a" };
    let row = |step: u64| json!({ "rewards/length/mean": step, "versions": { "length": settings(step) } });
    let back = json!({ "plugin": "length", "from": "bbbb", "to": "bbbb", "reason": "trap", "config": { "target": 20 } });
    let events = [begun("started", 0), loaded("bbbb", 20), swapped(10, "bbbb", "bbbb", 3), at(20, "plugin_rolled_back", back)];
    // The rows alone tell settings apart, and so do the events.
    for events in [lines([begun("started", 0)]), lines(events)] {
        let page = render(run(&events, &metrics(1..=30, row), "").path()).unwrap();
        assert_eq!(chart(&data(&page), "rewards/length/mean")["lines"][0]["breaks"], json!([10, 20]), "{events}");
        if events.contains("rolled_back") {
            let text = data(&page)["marks"][1]["text"].as_str().unwrap().to_owned();
            assert!(text.ends_with("; trap; target 3 \u{2192} 20") && !text.contains("bbbb rolled back to bbbb;"), "{text}");
        }
    }
}

#[test]
fn no_mean_of_thousands_of_steps_crosses_a_swap() {
    let row = |step: u64| json!({ "reward": if step <= 2500 { 0.0 } else { 1.0 } });
    let folder = run("", &metrics(1..=9000, row), "");
    let figures = Figures::read(folder.path(), &mut Vec::new()).unwrap();
    let mut story = Story::default();
    story.changes.push(super::story::Change { step: 2500, plugin: "length".into(), of_weight: false });
    let thinned = figures.thinned(&Eras::new(&figures, &story).all());
    assert!(thinned.per_point > 1 && thinned.steps.contains(&2500));
    assert!(thinned.values("reward").iter().flatten().all(|v| [0.0, 1.0].contains(v)), "a mean of two versions");
    let starts = Eras::new(&thinned, &story).starts("reward");
    assert_eq!((thinned.steps[starts[0] - 1], starts.len()), (2500, 1));
}

#[test]
fn evaluations_are_compared_since_the_last_swap() {
    let row = |step: u64| match step % 5 {
        0 => json!({ "eval_reward": step, "eval_reward/stderr": 0.1, "eval_loss": step, "eval_loss/stderr": 0.1 }),
        _ => json!({ "reward": step }),
    };
    let page = render(twice_swapped(row).path()).unwrap();
    let of = |name: &str| page.split(&format!("<th scope=\"row\">{name}</th>")).nth(1).unwrap().split("</tr>").next().unwrap();
    assert!(of("eval_reward").contains("25 to 30") && of("eval_loss").contains("5 to 30"));
    // A step without an evaluation is no gap in the evaluations' curve.
    let rows = &data(&page)["rows"];
    assert_eq!((&rows[0], &rows[4]), (&json!(1), &json!(2)));
}

#[test]
fn evaluations_have_their_reward_in_the_table_with_an_interval_or_without() {
    let row = |step: u64| json!({ "eval_reward": step, "eval_rewards/length/mean": step, "eval_rewards/length/stderr": 0.1, "eval_entropy": 1.0 });
    let page = render(run(&lines([begun("started", 0)]), &metrics([5, 10], row), "").path()).unwrap();
    let table = page.split("<h2 id=\"evaluations\">").nth(1).unwrap().split("</table>").next().unwrap();
    let of = |name: &str| {
        table.split(&format!("<th scope=\"row\">{name}</th>")).nth(1).map(|rest| rest.split("</tr>").next().unwrap())
    };
    let reward = of("eval_reward").unwrap();
    assert!(reward.contains(">5<") && reward.contains(">10<") && reward.contains("5 to 10"), "{reward}");
    assert!(of("eval_rewards&#x2f;length").unwrap().contains("5 \u{b1} 0.196") && of("eval_entropy").is_none());
}

#[test]
fn what_is_only_evaluated_has_its_chart() {
    let run =
        run(&lines([begun("started", 0)]), &metrics([0], |_| json!({ "eval_loss": 2.0, "eval_rewards/judge/mean": 0.5 })), "");
    let page = render(run.path()).unwrap();
    let data = data(&page);
    for name in ["eval_loss", "eval_rewards/judge/mean"] {
        assert_eq!(chart(&data, name)["lines"][0]["evaluation"], true, "{name}");
    }
    assert!(page.contains("id=\"rewards\"") && !page.contains("No metrics have been logged yet."));
}

#[test]
fn refused_versions_are_marked_and_errors_that_repeat_are_counted() {
    let refused = |step, hash: &str, reason: &str| {
        at(step, "plugin_refused", json!({ "plugin": "length", "hash": hash, "request": null, "reason": reason }))
    };
    let error = |step: u64| {
        at(step, "plugin_error", json!({ "plugin": "length", "reason": "it trapped", "rows": [1, 2], "row_reasons": ["x", "x"] }))
    };
    let mut events = vec![begun("started", 0), loaded("aaaa", 20), refused(3, "0123456789abcdef", &"no\n".repeat(500))];
    events.extend((4..24).map(error));
    events.push(at(9, "settings_refused", json!({ "reason": "line 3: not a number" })));
    let run = run(&lines(events), &metrics(1..=30, |step| json!({ "reward": step })), "");
    let page = render(run.path()).unwrap();
    let data = data(&page);
    let marks: Vec<(&str, u64)> =
        data["marks"].as_array().unwrap().iter().map(|m| (m["word"].as_str().unwrap(), m["step"].as_u64().unwrap())).collect();
    assert_eq!(marks, [("refused", 3), ("refused", 9)]);
    let text = data["marks"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("length 0123456789ab: no no") && text.chars().count() < 300, "{text}");
    assert_eq!(page.matches("it trapped").count(), 1);
    assert!(page.contains("\u{d7} 20</b>") && page.contains("it trapped; 40 rows without a score"));
    assert!(page.contains("(20 times, to step 23)"));
}

#[test]
fn charts_of_nothing_but_zeros_are_folded_away() {
    let row =
        |step: u64| json!({ "reward": 0.0, "loss": 0.5, "clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": 0.0, "kl": step });
    let run = run(&lines([begun("started", 0)]), &metrics(1..=3, row), "");
    let page = render(run.path()).unwrap();
    assert!(page.contains("Always 0: Reward<") && page.contains("Always 0: Clipped ratios<"));
    // They are drawn when they are unfolded.
    assert_eq!(chart(&data(&page), "clip_ratio/low_mean")["lines"].as_array().unwrap().len(), 2);
}

#[test]
fn a_healthy_run_is_not_asked_why_it_does_not_learn() {
    let page = |cut: f64| {
        let row =
            |step: u64| json!({ "loss": 1.0 / step as f64, "completions/clipped_ratio": cut, "completions/mean_length": 20.0 });
        render(run(&lines([begun("started", 0)]), &metrics(1..=30, row), "").path()).unwrap()
    };
    let healthy = page(0.1);
    assert!(!healthy.contains("Why does it not learn?") && healthy.contains("<h2 id=\"diagnosis\">Diagnosis</h2>"));
    assert!(healthy.contains("The metrics of 30 rows up to step 30 show no sign of trouble."));
    assert!(page(0.9).contains("<h2 id=\"diagnosis\">Why does it not learn?</h2>"));
}

#[test]
fn the_configuration_shows_what_the_user_set() {
    let mut start = begun("started", 0);
    start["set"] = json!(["seed", "plugin", "plugin.length.weight"]);
    let folder = run(&lines([start]), "", "");
    let config = "seed = 42\nmax_steps = 30\n\n[[plugin]]\npath = \"a/length.wasm\"\nweight = 0.5\n\n[plugin.config]\ntarget = 20\n\n\
                  [loss]\nbeta = 0.0\n";
    std::fs::write(RunFiles(folder.path()).config(), config).unwrap();
    let page = render(folder.path()).unwrap();
    let own = page.split("aria-label=\"Keys that were set\">").nth(1).unwrap().split("</pre>").next().unwrap();
    assert_eq!(own, "seed = 42\n[[plugin]]\npath = &quot;a&#x2f;length.wasm&quot;\nweight = 0.5\n");
    assert_eq!(page.matches("<mark>").count(), 3);
    assert!(page.contains("max_steps = 30\n\n<mark>") || page.contains("max_steps = 30\n\n[[plugin]]\n<mark>path"), "all keys");
    // A run of an older version does not say.
    let older = render(run(&lines([begun("started", 0)]), "", "").path()).unwrap();
    assert!(!older.contains("<mark>") && older.contains("max_steps = 30"));
}
