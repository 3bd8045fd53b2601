//! Rows that can't be used are left out, counted and named; the others are trained on as if they stood alone.

use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

fn warning(place: &TestFolder, run: &str) -> String {
    let events = place.events(run, "warning");
    let texts: Vec<&str> = events.iter().filter_map(|e| e["text"].as_str()).filter(|text| text.contains("skipped")).collect();
    assert_eq!(texts.len(), 1, "{events:?}");
    texts[0].to_owned()
}

#[test]
fn fine_tuning_learns_the_end_of_an_empty_answer_and_leaves_odd_rows_out() {
    let place = TestFolder::new();
    let good = [json!({"prompt": "a", "completion": " b"}), json!({"prompt": "c", "completion": ""})];
    let odd = [
        json!({"prompt": 7, "completion": "x"}),
        json!({"text": ""}),
        json!({"prompt": "k".repeat(300), "completion": "x"}),
        json!({"question": "?"}),
    ];
    place.write("good.jsonl", lines(&good));
    let [first, second] = good;
    let [a, b, c, d] = odd;
    place.write("all.jsonl", lines(&[a, first, b, c, second, d]));
    let sft = |dataset: &str, run: &str, more: &[&str]| {
        let base = ["sft", "--model", tiny(), "--dataset", dataset, "--output-dir", run, "--max-steps", "2"];
        place.run(&[&base[..], &["--logging-steps", "1", "--per-device-train-batch-size", "2"], more].concat())
    };
    sft("good.jsonl", "good", &[]).succeeded();
    let said = sft("all.jsonl", "all", &[]);
    said.succeeded();
    assert_eq!(place.figure("all", "loss"), place.figure("good", "loss"));
    // The end token of either row, and the tokens of " b".
    assert_eq!(place.figure("good", "num_tokens")[0], 6.0);
    let warning = warning(&place, "all");
    assert!(said.stderr.contains("skipped 4 of 6 rows"), "{}", said.stderr);
    for part in
        ["all.jsonl:1: column \"prompt\"", "all.jsonl:3: column \"text\" is empty", "all.jsonl:4: its prompt has 300 tokens"]
    {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    assert!(warning.ends_with("1 more"), "{warning}");
    let refused = sft("all.jsonl", "strict", &["--strict-data"]);
    assert!(refused.code == Some(2) && refused.error().contains("all.jsonl:1: column \"prompt\""), "{}", refused.stderr);
    assert!(!place.path("strict").exists());
}

#[test]
fn prompts_that_are_too_long_are_left_out_or_cut() {
    let place = TestFolder::new();
    let prompts: Vec<Value> =
        (0..6).map(|i| json!({"prompt": if i == 1 { "x".repeat(400) } else { format!("ab {i}") }})).collect();
    place.write("prompts.jsonl", lines(&prompts));
    let kept: Vec<Value> = prompts.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, row)| row.clone()).collect();
    place.write("kept.jsonl", lines(&kept));
    let train = |dataset: &str, run: &str, more: &[&str]| {
        let base = ["--model", tiny(), "--dataset", dataset, "--plugin", "tldr_length_reward.wasm", "--output-dir", run];
        let few = ["--max-steps", "3", "--max-completion-length", "8", "--save-steps", "1", "--logging-steps", "1"];
        let all = ["--log-completions", "all", "--num-iterations", "2", "--steps-per-generation", "2"];
        place.run(&[&base[..], &few, &all, more].concat())
    };
    train("prompts.jsonl", "run", &[]).succeeded();
    assert!(warning(&place, "run").contains("prompts.jsonl:2: the prompt is 400 tokens long"));
    // A completion names the dataset's own row.
    let completions = place.lines("run/completions.jsonl");
    assert!(!completions.is_empty());
    for line in completions {
        let row = line["row"].as_u64().unwrap() as usize;
        assert_eq!(line["prompt"], prompts[row]["prompt"]);
    }
    place.run(&["replay", "run", "--plugin", "tldr_length_reward.wasm"]).succeeded();
    place.copy("run", "again");
    place.run(&["resume", "again", "--step", "1"]).succeeded();
    assert_eq!(place.lines_without_times("run/completions.jsonl"), place.lines_without_times("again/completions.jsonl"));
    // Its last tokens may be kept instead.
    train("prompts.jsonl", "cut", &["--max-prompt-length", "3", "--shuffle-dataset", "false"]).succeeded();
    assert!(place.events("cut", "warning").iter().all(|e| !e["text"].as_str().unwrap().contains("skipped")));
    let lengths: Vec<usize> =
        place.lines("cut/completions.jsonl").iter().map(|line| line["prompt_ids"].as_array().unwrap().len()).collect();
    assert!(lengths.iter().all(|&length| length == 3), "{lengths:?}");
    let none = ["--strict-data", "--per-device-train-batch-size", "8"];
    assert_eq!(train("prompts.jsonl", "strict", &none).code, Some(2));
    let sft = ["sft", "--model", tiny(), "--dataset", "kept.jsonl", "--columns", "text=prompt", "--max-prompt-length", "4"];
    let refused = place.run(&sft);
    assert!(refused.code == Some(2) && refused.error().contains("max_prompt_length"), "{}", refused.stderr);
}

#[test]
fn odd_pairs_are_left_out_and_equal_answers_are_trained_on() {
    let place = TestFolder::new();
    let same = "the same answer";
    let rows = [
        json!({"prompt": "q", "chosen": " a", "rejected": " b"}),
        json!({"prompt": "q", "chosen": " a"}),
        json!({"chosen": same, "rejected": same}),
        json!({"prompt": "q", "chosen": " a", "rejected": ""}),
    ];
    place.write("pairs.jsonl", lines(&rows));
    let dpo = ["--algorithm", "dpo", "--model", tiny(), "--dataset", "pairs.jsonl", "--output-dir", "run", "--max-steps", "1"];
    place.run(&[&dpo[..], &["--per-device-train-batch-size", "3"]].concat()).succeeded();
    let warning = warning(&place, "run");
    assert!(
        warning.contains("skipped 1 of 4 rows") && warning.contains("pairs.jsonl:2: has no column \"rejected\""),
        "{warning}"
    );
}
