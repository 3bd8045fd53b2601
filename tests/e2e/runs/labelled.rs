//! KTO on labelled completions, through the binary. `check_pairs_step.py` compares its figures with TRL's.

use rlhost_tests::{CommandOutcome, TestFolder, assert_near, tiny};
use serde_json::{Value, json};

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

/// A place with 24 labelled rows, two thirds of them desirable.
fn place() -> TestFolder {
    let place = TestFolder::new();
    let row = |i: usize| json!({"prompt": format!("row {i} "), "completion": "ab ".repeat(1 + i % 7), "label": i % 3 != 1});
    place.write("rows.jsonl", lines(&(0..24).map(row).collect::<Vec<_>>()));
    place
}

fn run(place: &TestFolder, name: &str, more: &[&str]) -> CommandOutcome {
    let base = ["kto", "--model", tiny(), "--dataset", "rows.jsonl", "--output-dir", name, "--logging-steps", "1"];
    place.run(&[&base[..], &["--learning-rate", "0.002", "--per-device-train-batch-size", "4"], more].concat())
}

#[test]
fn every_resume_is_the_uninterrupted_run() {
    let place = place();
    let whole = ["--max-steps", "7", "--save-steps", "1", "--gradient-accumulation-steps", "2"];
    run(&place, "run", &whole).succeeded();
    let kl = place.figure("run", "kl");
    assert!(kl.len() == 7 && kl[0] == 0.0 && kl.iter().any(|kl| *kl > 0.0), "{kl:?}");
    for step in 1..7 {
        place.assert_resumes("run", step, 7, "model.safetensors");
    }
}

#[test]
fn the_baseline_is_that_of_the_micro_batch_however_it_is_cut() {
    let place = place();
    run(&place, "whole", &["--max-steps", "4"]).succeeded();
    run(&place, "cut", &["--max-steps", "4", "--max-tokens-per-microbatch", "20"]).succeeded();
    for name in ["loss", "grad_norm", "kl", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "entropy"] {
        let [whole, cut] =
            ["whole", "cut"].map(|run| vec![place.figure(run, name).into_iter().map(|v| (name.to_owned(), v)).collect()]);
        assert_near(&cut, &whole, name);
    }
    // Another partner, another baseline; the other loss has none.
    run(&place, "pairs", &["--max-steps", "4", "--per-device-train-batch-size", "2", "--gradient-accumulation-steps", "2"])
        .succeeded();
    assert_ne!(place.figure("pairs", "kl")[1..], place.figure("whole", "kl")[1..]);
    run(&place, "without", &["--max-steps", "1", "--loss-type", "apo_zero_unpaired"]).succeeded();
    assert!(place.lines("without/metrics.jsonl").iter().all(|line| line.get("kl").is_none()));
}

#[test]
fn rows_go_in_the_datasets_order_unless_they_are_shuffled() {
    let place = place();
    let first = |name: &str, more: &[&str]| {
        run(&place, name, &[&["--max-steps", "1"], more].concat()).succeeded();
        place.figure(name, "num_tokens")
    };
    let in_order = first("default", &[]);
    assert_eq!(in_order, first("sequential", &["--train_sampling_strategy", "sequential"]));
    assert_ne!(in_order, first("random", &["--train_sampling_strategy", "random"]));
    assert_ne!(in_order, first("shuffled", &["--shuffle-dataset", "true"]));
    let refused = run(&place, "grouped", &["--train_sampling_strategy", "group_by_length"]);
    assert!(refused.error().contains("random or sequential"), "{}", refused.stderr);
}

#[test]
fn pairs_are_taken_apart_and_evaluated_alike() {
    let place = place();
    let pair = |i: usize| json!({"prompt": format!("row {i} "), "chosen": "ab ".repeat(1 + i), "rejected": "c".repeat(1 + i)});
    let apart = |i: usize, chosen: bool| {
        let pair = pair(i);
        json!({"prompt": pair["prompt"], "completion": pair[if chosen { "chosen" } else { "rejected" }], "label": chosen})
    };
    place.write("pairs.jsonl", lines(&(0..4).map(pair).collect::<Vec<_>>()));
    let labelled: Vec<Value> = [true, false].into_iter().flat_map(|chosen| (0..4).map(move |i| apart(i, chosen))).collect();
    place.write("labelled.jsonl", lines(&labelled));
    let evaluated = |dataset: &str| -> Value {
        let outcome = place.run(&["eval", "--algorithm", "kto", "--model", tiny(), "--dataset", dataset, "--json"]);
        let mut figures: Value = serde_json::from_str(&outcome.succeeded().stdout).unwrap();
        figures.as_object_mut().unwrap().retain(|name, _| !name.contains("runtime") && !name.contains("per_second"));
        figures
    };
    let figures = evaluated("pairs.jsonl");
    assert_eq!(figures, evaluated("labelled.jsonl"));
    assert!((figures["eval_loss"].as_f64().unwrap() - 0.5).abs() < 1e-9, "{figures}");
}

#[test]
fn all_batches_of_an_evaluation_but_the_last_are_full() {
    let place = place();
    let rows = std::fs::read_to_string(place.path("rows.jsonl")).unwrap();
    let rows: Vec<&str> = rows.lines().collect();
    let loss = |part: std::ops::Range<usize>| {
        let name = format!("rows-{}-{}", part.start, part.end);
        place.write(&format!("{name}.jsonl"), rows[part].join("\n"));
        let evaluated = ["--max-steps", "3", "--eval-steps", "3", "--eval-dataset", &format!("{name}.jsonl")];
        run(&place, &name, &evaluated).succeeded();
        let lines = place.lines(&format!("{name}/metrics.jsonl"));
        lines.iter().find_map(|line| line.get("eval_loss")).and_then(Value::as_f64).unwrap()
    };
    // Each batch has a baseline of its own.
    let [whole, first, second, last] = [0..10, 0..4, 4..8, 8..10].map(loss);
    let mean = 0.4 * first + 0.4 * second + 0.2 * last;
    assert!((whole - mean).abs() < 1e-7 && (first - second).abs() > 1e-4, "{whole} instead of {mean}");
    assert!((0.3 * loss(0..3) + 0.3 * loss(3..6) + 0.4 * loss(6..10) - whole).abs() > 1e-6);
}

#[test]
fn what_does_not_fit_is_refused() {
    let place = place();
    let refused = |more: &[&str], words: &[&str]| {
        let outcome = run(&place, "refused", more);
        let error = outcome.error();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(!place.path("refused").exists());
    };
    refused(&["--precompute-ref-log-probs", "--shuffle-dataset", "true"], &["precompute_ref_log_probs", "shuffle_dataset"]);
    refused(&["--per-device-train-batch-size", "1"], &["per_device_train_batch_size", "at least 2 rows"]);
    place.write("unlabelled.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    refused(&["--dataset", "unlabelled.jsonl"], &["label"]);
    refused(&["--plugin", "tldr_length_reward.wasm"], &["kto", "nothing scored"]);
    let none = place.run(&["kto", "--model", tiny(), "--output-dir", "refused"]);
    assert!(none.error().contains("\"completion\" and \"label\""), "{}", none.stderr);
}

#[test]
fn another_loss_may_bring_a_baseline_with_it() {
    let place = place();
    run(&place, "run", &["--max-steps", "3", "--loss-type", "apo_zero_unpaired", "--save-steps", "1"]).succeeded();
    place.run(&["resume", "run", "--step", "1", "--set", "loss.loss_type=kto", "--allow-changed"]).succeeded();
    let with_baseline: Vec<bool> = place.lines("run/metrics.jsonl").iter().map(|line| line.get("kl").is_some()).collect();
    assert_eq!(with_baseline, [false, true, true]);
}

#[test]
fn the_reference_may_be_computed_in_advance_for_either_loss() {
    let place = place();
    let rows = std::fs::read_to_string(place.path("rows.jsonl")).unwrap();
    place.write("few.jsonl", rows.lines().take(6).map(|line| format!("{line}\n")).collect::<String>());
    for loss in ["kto", "apo_zero_unpaired"] {
        // Two passes, each of which ends with a smaller batch.
        let more = ["--loss-type", loss, "--num-train-epochs", "2", "--eval-dataset", "few.jsonl", "--eval-steps", "2"];
        let (each, once) = (format!("{loss}-each"), format!("{loss}-once"));
        run(&place, &each, &more).succeeded();
        run(&place, &once, &[&more[..], &["--precompute-ref-log-probs", "--save-steps", "2"]].concat()).succeeded();
        let kept = |run: &str| {
            let lines = place.lines(&format!("{run}/metrics.jsonl")).into_iter();
            let is_kept = |name: &str| ["loss", "kl"].contains(&name) || name.contains("rewards") || name.starts_with("eval_l");
            let kept =
                |line: Value| line.as_object().unwrap().clone().into_iter().filter(|(name, _)| is_kept(name)).collect::<Vec<_>>();
            lines.map(kept).collect::<Vec<_>>()
        };
        assert_eq!(kept(&each), kept(&once), "{loss}");
        place.run(&["resume", &once, "--step", "2"]).succeeded();
        assert_eq!(kept(&each), kept(&once), "{loss}, resumed");
    }
}

#[test]
fn labels_of_one_kind_alone_are_noticed() {
    let place = place();
    place.write(
        "good.jsonl",
        lines(&[json!({"prompt": "a", "completion": "b", "label": true}), json!({"prompt": "a", "completion": "c", "label": 1})]),
    );
    let outcome = run(&place, "run", &["--dataset", "good.jsonl", "--max-steps", "1"]);
    assert!(outcome.succeeded().stderr.contains("all of its 2 completions are desirable"));
}
