//! Large datasets: their rows are judged when they are drawn, unless the run must count them.

use rlhost_tests::{TestFolder, seal, tiny};
use serde_json::{Value, json};
use std::fs;

/// Rows of four kilobytes, most of them in a column that nothing reads. Every fifth can't be used.
fn row(i: usize) -> Value {
    let more = "x".repeat(4 << 10);
    if i % 5 == 3 {
        return json!({"prompt": i, "more": more});
    }
    json!({"prompt": format!("ask {i}"), "completion": format!(" say {i}"), "label": i.is_multiple_of(2), "more": more})
}

fn pair(i: usize) -> Value {
    let mut row = row(i);
    let columns = row.as_object_mut().unwrap();
    columns.remove("label");
    columns.remove("completion");
    row["chosen"] = format!(" yes {i}").into();
    row["rejected"] = " no".into();
    row
}

fn lines(rows: usize, row: impl Fn(usize) -> Value) -> String {
    (0..rows).map(|i| format!("{}\n", row(i))).collect()
}

/// Returns a run of four steps on `rows.jsonl`, by their number or by epochs of so many rows that can be used.
fn four_steps<'a>(run: &'a str, settings: &[&'a str], length: &'a [&'a str]) -> Vec<&'a str> {
    let all =
        ["--model", tiny(), "--dataset", "rows.jsonl", "--learning-rate", "0.01", "--logging-steps", "1", "--save-steps", "1"];
    let batch = ["--per-device-train-batch-size", "8", "--output-dir", run];
    [&all[..], &batch, settings, length].concat()
}

const GRPO: &[&str] = &["--plugin", "tldr_length_reward.wasm", "--num-generations", "2", "--max-completion-length", "4"];

const SFT: &[&str] = &["--algorithm", "sft", "--learn-from", "dataset"];

const ORDER: &str = "dataset_order";

/// Returns what a checkpoint says of the order of its dataset.
fn order(place: &TestFolder, checkpoint: &str) -> Value {
    let text = fs::read(place.path(&format!("{checkpoint}/trainer/trainer_state.json"))).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap()[ORDER].clone()
}

#[test]
fn rows_that_are_judged_when_they_are_drawn_are_those_that_are_judged_at_the_start() {
    type LargeDatasetCase = (&'static str, &'static [&'static str], fn(usize) -> Value, &'static str);
    // Of 1200 rows, 960 can be used: 120 batches, or 240 generations of four prompts; labelled pairs are twice as many.
    let cases: [LargeDatasetCase; 5] = [
        ("grpo", GRPO, row, "0.0166"),
        ("sft", SFT, row, "0.0333"),
        ("dpo", &["--algorithm", "dpo"], pair, "0.0333"),
        ("kto", &["--algorithm", "kto"], pair, "0.0166"),
        ("reward", &["--algorithm", "reward_model"], pair, "0.0333"),
    ];
    for (name, settings, row, epochs) in cases {
        let place = TestFolder::new();
        place.write("rows.jsonl", lines(1200, row));
        place.run(&four_steps("late", settings, &["--max-steps", "4"])).succeeded();
        place.run(&four_steps("counted", settings, &["--num-train-epochs", epochs])).succeeded();
        assert_eq!(place.checkpoints("counted").last(), Some(&4), "{name}");
        place.assert_same_end("late", "counted", 4, "model.safetensors");
        let said = |run: &str| place.events(run, "warning")[0]["text"].as_str().unwrap().to_owned();
        assert!(said("late").contains("; other rows are judged when they are drawn"), "{}", said("late"));
        let all = if name == "kto" { "skipped 240 of 2160 rows" } else { "skipped 240 of 1200 rows" };
        assert!(said("counted").starts_with(all), "{}", said("counted"));
        assert_eq!(
            (order(&place, "late/checkpoint-4"), order(&place, "counted/checkpoint-4")),
            ("all rows".into(), "all rows".into())
        );
        place.assert_resumes("late", 2, 4, "model.safetensors");
        // A row that was not drawn has changed.
        let mut other: Vec<Value> = (0..1200).map(row).collect();
        other[1100]["more"] = "y".repeat(4 << 10).into();
        place.write("rows.jsonl", lines(1200, |i| other[i].clone()));
        let refused = place.run(&["resume", "late", "--max-steps", "5"]);
        assert!(refused.code == Some(2) && refused.error().contains("dataset has changed"), "{name}: {}", refused.stderr);
    }
}

#[test]
fn a_row_that_is_not_json_is_named_when_it_is_drawn_or_where_rows_are_counted_at_the_start() {
    let place = TestFolder::new();
    let text = lines(1200, |i| if i == 401 { json!("ODD") } else { row(5 * i) });
    place.write("rows.jsonl", text.replace("\"ODD\"", "{\"prompt\": "));
    let in_order = [SFT, &["--shuffle-dataset", "false"]].concat();
    let steps = |run: &str, steps: &str| place.run(&four_steps(run, &in_order, &["--max-steps", steps]));
    steps("short", "4").succeeded();
    let long = steps("long", "100");
    assert!(long.code == Some(2) && long.error().contains("rows.jsonl:402: is not a line of JSON"), "{}", long.stderr);
    assert_eq!((place.steps("long"), place.checkpoints("long").last()), (50, Some(&50)), "the steps before it are kept");
    let counted = place.run(&four_steps("counted", &in_order, &["--num-train-epochs", "0.1"]));
    assert!(counted.code == Some(2) && counted.error().contains("rows.jsonl:402: is not a line of JSON"), "{}", counted.stderr);
    assert!(!place.path("counted").exists());
    // Unusable rows are an error when they are drawn, too, and without a usable one the first is named.
    place.write("rows.jsonl", lines(1200, |i| if i == 401 { json!({"prompt": 7}) } else { row(5 * i) }));
    let strict = place.run(&four_steps("strict", &[&in_order[..], &["--strict-data"]].concat(), &["--max-steps", "100"]));
    assert!(strict.code == Some(2) && strict.error().contains("rows.jsonl:402: "), "{}", strict.stderr);
    place.write("rows.jsonl", lines(1200, |_| row(3)));
    let none = steps("none", "4");
    assert!(none.code == Some(2) && none.error().contains("rows.jsonl:1: "), "{}", none.stderr);
    assert!(none.error().contains("none of the 1200 rows can be used; the first: "), "{}", none.stderr);
}

#[test]
fn a_checkpoint_from_before_rows_were_drawn_from_all_keeps_its_order() {
    let place = TestFolder::new();
    let text = lines(950, row);
    assert!(text.len() < 4 << 20);
    place.write("rows.jsonl", &text);
    place.run(&four_steps("whole", SFT, &["--max-steps", "4"])).succeeded();
    assert_eq!(order(&place, "whole/checkpoint-4"), Value::Null);
    // The same rows in more bytes: a new run draws from all of them.
    let longer = text.replace("{\"", &format!("{{{}\"", " ".repeat(512)));
    assert!(longer.len() > 4 << 20);
    place.write("rows.jsonl", &longer);
    place.assert_resumes("whole", 2, 4, "model.safetensors");
    place.run(&four_steps("new", SFT, &["--max-steps", "4"])).succeeded();
    assert_eq!(order(&place, "new/checkpoint-4"), "all rows");
    assert_ne!(place.figure("new", "loss"), place.figure("whole", "loss"), "a fifth of the rows can't be used");
    // A fork keeps the order of its origin.
    let fork = ["--resume-from-checkpoint", "whole/checkpoint-2", "--output-dir", "fork", "--max-steps", "4"];
    place.run(&fork).succeeded();
    assert_eq!(
        (order(&place, "fork/checkpoint-4"), place.figure("fork", "loss")),
        (Value::Null, place.figure("whole", "loss")[2..].to_vec())
    );
    // A checkpoint that lost what it says of its order is refused, not resumed with other rows.
    let file = place.path("new/checkpoint-4/trainer/trainer_state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    state.as_object_mut().unwrap().remove(ORDER);
    fs::write(&file, state.to_string()).unwrap();
    seal(&place.path("new/checkpoint-4"), &[]);
    let refused = place.run(&["resume", "new", "--max-steps", "5"]);
    assert!(refused.code == Some(2) && refused.error().contains("dataset has changed"), "{}", refused.stderr);
}
