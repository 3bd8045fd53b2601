//! What a run does when: saving, evaluating and logging by epochs, the order and number of its rows, and how texts are packed.

use rlhost_tests::{TestFolder, tiny};
use std::fs;

/// A run of SFT over 32 rows, of which each step takes eight.
fn sft(run: &str) -> Vec<&str> {
    let mut all = vec!["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--output-dir", run, "--learning-rate", "0.002"];
    all.extend(["--per-device-train-batch-size", "8", "--num-train-epochs", "2", "--logging-steps", "1"]);
    all
}

/// Steps of a run's log that have a figure.
fn steps_with(place: &TestFolder, run: &str, figure: &str) -> Vec<u64> {
    let lines = place.lines(&format!("{run}/metrics.jsonl"));
    lines.iter().filter(|line| line[figure].is_number()).map(|line| line["step"].as_u64().unwrap()).collect()
}

#[test]
fn what_is_done_by_epochs_is_done_at_their_ends() {
    let place = TestFolder::with_answers();
    let evaluated = ["--eval-dataset", "answers.jsonl"];
    let by_epoch = ["--save-strategy", "epoch", "--eval_strategy", "epoch", "--logging-strategy", "epoch"];
    place.run(&[&sft("epochs")[..], &evaluated, &by_epoch, &["--per-device-train-batch-size", "5"]].concat()).succeeded();
    assert_eq!(place.checkpoints("epochs"), [7, 14], "seven steps of five rows each, of which the last has two");
    assert_eq!(steps_with(&place, "epochs", "eval_loss"), [7, 14]);
    assert_eq!(steps_with(&place, "epochs", "grad_norm"), [7, 14]);

    place.write("never.yaml", "save_strategy: no\neval_strategy: \"no\"\nlogging_strategy: \"no\"\n");
    place.run(&[&sft("never")[..], &evaluated, &["--config", "never.yaml"]].concat()).succeeded();
    assert_eq!(place.checkpoints("never"), [8]);
    assert_eq!(steps_with(&place, "never", "grad_norm"), [8], "the last step is always logged");
    assert!(steps_with(&place, "never", "eval_loss").is_empty());
    let evaluated_at_last = place.run(&["eval", "never", "--json"]);
    assert!(evaluated_at_last.succeeded().stdout.contains("eval_loss"));

    for (strategy, said) in [("weekly", "\"weekly\" is not one of"), ("best", "--metric-for-best-model keeps only the best")] {
        let wrong = place.run(&[&sft("wrong")[..], &["--save-strategy", strategy]].concat());
        assert!(wrong.code == Some(2) && wrong.error().contains(said), "{}", wrong.stderr);
    }
    let early = ["--eval-strategy", "no", "--early-stopping-patience", "1", "--metric-for-best-model", "eval_loss"];
    let early = place.run(&[&sft("early")[..], &evaluated, &early].concat());
    assert!(early.code == Some(2) && early.error().contains("eval_dataset"), "{}", early.stderr);
}

#[test]
fn rows_have_a_seed_of_their_own_and_the_last_may_be_left_out() {
    let place = TestFolder::with_answers();
    let with = |run: &str, more: &[&str]| place.run(&[&sft(run)[..], more].concat());
    with("plain", &[]).succeeded();
    with("same", &["--data-seed", "42"]).succeeded();
    with("other", &["--data-seed", "43"]).succeeded();
    place.assert_same_end("same", "plain", 8, "model.safetensors");
    assert_ne!(place.figure("other", "loss")[0], place.figure("plain", "loss")[0]);
    with("dropped", &["--dataloader-drop-last", "--per-device-train-batch-size", "5"]).succeeded();
    assert_eq!(place.checkpoints("dropped"), [12], "six whole batches of five");
    let none = with("none", &["--dataloader-drop-last", "--per-device-train-batch-size", "33"]);
    assert!(none.code == Some(2) && none.error().contains("has 32 rows, but a batch takes 33"), "{}", none.stderr);
}

#[test]
fn every_way_of_packing_learns_and_resumes() {
    let place = TestFolder::with_answers();
    let mut tokens = Vec::new();
    for strategy in ["bfd", "bfd_split", "wrapped"] {
        let mut given = sft(strategy);
        given.extend(["--packing", "--packing-strategy", strategy, "--max-length", "12", "--save-steps", "1"]);
        given.extend(["--max-steps", "4"]);
        given.extend(["--per-device-train-batch-size", "4", "--eval-dataset", "answers.jsonl", "--eval-steps", "4"]);
        place.run(&given).succeeded();
        tokens.push(place.lines(&format!("{strategy}/metrics.jsonl"))[0]["num_tokens"].as_f64().unwrap());
        for step in 1..4 {
            place.assert_resumes(strategy, step, 4, "model.safetensors");
        }
        let one = place.run(&[&sft("one")[..], &["--packing", "--packing-strategy", strategy, "--max-length", "1"]].concat());
        assert!(one.code == Some(2) && one.error().contains("max_length: is 1; with packing"), "{}", one.stderr);
    }
    assert_eq!(tokens[2], 48.0, "four whole sequences of twelve");
    let losses = |run: &str| place.lines(&format!("{run}/metrics.jsonl"))[0]["loss"].as_f64();
    assert!(losses("bfd") != losses("bfd_split") && losses("bfd_split") != losses("wrapped"));
    let dpo = ["dpo", "--model", tiny(), "--dataset", "pairs.jsonl", "--packing", "--packing-strategy", "wrapped"];
    let dpo = place.run(&dpo);
    assert!(dpo.code == Some(2) && dpo.error().contains("packing: only for"), "{}", dpo.stderr);
}

#[test]
fn a_generation_may_be_given_by_its_size_and_its_settings_by_one_table() {
    let place = TestFolder::with_answers();
    let generated = |run: &str, more: &[&str]| {
        let kwargs = r#"{"top_p": 0.9, "min_p": 0.1, "max_new_tokens": 5, "do_sample": true}"#;
        let size = ["--max-steps", "2", "--per-device-train-batch-size", "4", "--num-generations", "4"];
        place.train(run, &[&size[..], more, &["--generation-kwargs", kwargs]].concat())
    };
    generated("sized", &["--generation-batch-size", "8", "--log-completions", "all"]).succeeded();
    assert_eq!(place.lines("sized/completions.jsonl").len(), 8, "both steps learn from one generation");
    let config = fs::read_to_string(place.path("sized/config.toml")).unwrap();
    for expected in ["top_p = 0.9", "min_p = 0.1", "max_completion_length = 5"] {
        assert!(config.contains(expected), "{config}");
    }
    let uneven = generated("uneven", &["--generation-batch-size", "6"]);
    assert!(uneven.code == Some(2) && uneven.error().contains("a multiple of the 4 completions"), "{}", uneven.stderr);
    let both = generated("both", &["--generation-batch-size", "8", "--steps-per-generation", "2"]);
    assert!(both.code == Some(2) && both.error().contains("use one of them"), "{}", both.stderr);
    let beams = place.train("beams", &["--generation-kwargs", "{\"num_beams\": 4}"]);
    assert!(beams.code == Some(2) && beams.error().contains("num_beams = 4"), "{}", beams.stderr);
}
