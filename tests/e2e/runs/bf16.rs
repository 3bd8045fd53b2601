//! Runs whose products are computed in bf16, through the binary. On processors without instructions for that they compute in f32,
//! and say so.

use rlhost_tests::{TestFolder, tiny};
use std::fs;

/// GRPO with a reference model, and generations that two updates learn from.
fn grpo<'a>(model: &'a str, run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all =
        vec!["--model", model, "--plugin", "tldr_length_reward.wasm", "--dataset", "prompts.jsonl", "--output-dir", run];
    all.extend(["--max-completion-length", "24", "--max-steps", "4", "--save-steps", "1", "--logging-steps", "1"]);
    all.extend(["--num-iterations", "2", "--beta", "0.1", "--learning-rate", "0.002", "--bf16", "true"]);
    all.extend(more);
    all
}

fn place() -> TestFolder {
    let place = TestFolder::with_answers();
    place.write("prompts.jsonl", (0..6).map(|i| format!("{{\"prompt\": \"prompt {i}\"}}\n")).collect::<String>());
    place
}

#[test]
fn runs_in_bf16_resume_exactly() {
    let place = place();
    place.run(&["export", tiny(), "half", "--dtype", "bf16"]).succeeded();
    for (run, model, more, weights) in [
        ("whole", tiny(), &[][..], "model.safetensors"),
        ("adapted", "half", &["--lora_r", "4"], "adapter_model.safetensors"),
        ("recomputed", tiny(), &["--gradient-checkpointing", "true"], "model.safetensors"),
    ] {
        place.run(&grpo(model, run, more)).succeeded();
        for step in 1..4 {
            place.assert_resumes(run, step, 4, weights);
        }
        let config = fs::read_to_string(place.path(run).join("checkpoint-4/trainer/config.toml")).unwrap();
        assert!(config.contains("bf16 = true"), "{config}");
        // What samples rounds otherwise than what learns.
        let computes = !place.events(run, "warning").iter().any(|w| w["text"].to_string().contains("bf16"));
        assert_eq!(config.contains("old_logp = \"recompute\""), computes, "{config}");
    }
    let sampling = grpo(tiny(), "sampling", &["--old-logp", "sampling", "--num-iterations", "1"]);
    place.run(&sampling).succeeded();
    let computes = place.events("sampling", "warning").iter().all(|w| !w["text"].to_string().contains("bf16"));
    let compared = place
        .lines("sampling/metrics.jsonl")
        .iter()
        .filter(|line| line["sampling/sampling_logp_difference/mean"].is_f64())
        .count();
    assert_eq!(compared, if computes { 4 } else { 0 }, "sampling rounds otherwise than training");
    let mut dpo = vec!["dpo", "--model", tiny(), "--dataset", "pairs.jsonl", "--output-dir", "pairs", "--max-steps", "4"];
    dpo.extend(["--save-steps", "1", "--logging-steps", "1", "--learning-rate", "0.002", "--bf16", "true"]);
    place.run(&dpo).succeeded();
    for step in 1..4 {
        place.assert_resumes("pairs", step, 4, "model.safetensors");
    }
    assert!(place.tensors("whole/checkpoint-4/model.safetensors") == place.tensors("recomputed/checkpoint-4/model.safetensors"));
}

#[test]
fn only_the_first_update_after_a_generation_of_one_micro_batch_continues_the_pass_over_its_prompts() {
    let place = place();
    let continued = |run: &str, more: &[&str]| {
        let run = place.run_with(&grpo(tiny(), run, more), &[("RUST_LOG", "rlhost=debug")]);
        run.succeeded();
        run.stderr.matches("continues the pass over").count()
    };
    let first = continued("first", &["--eval-dataset", "prompts.jsonl", "--eval-steps", "2"]);
    if first == 0 {
        assert!(place.events("first", "warning").iter().any(|w| w["text"].to_string().contains("bf16")));
        eprintln!("skipped: this processor can't multiply in bf16, and no pass is continued");
        return;
    }
    assert_eq!(first, 2, "two generations, each learned from twice");
    for (run, more) in [
        ("recomputed", &["--gradient-checkpointing", "true"][..]),
        ("accumulated", &["--gradient-accumulation-steps", "2"]),
        ("cut", &["--max-tokens-per-microbatch", "64"]),
        ("parallel", &["--max-num-seqs", "1", "--num-generations", "4", "--per-device-train-batch-size", "8"]),
    ] {
        assert_eq!(continued(run, more), 0, "{run}");
    }
    // Two prompts of four completions.
    assert_eq!(continued("prompts", &["--num-generations", "4", "--per-device-train-batch-size", "8"]), 2);
    let weights = |run: &str| place.tensors(&format!("{run}/checkpoint-4/model.safetensors"));
    assert!(weights("first") == weights("recomputed"), "a continued pass has the same bits");
}

#[test]
fn a_curve_in_bf16_lies_beside_that_in_f32_however_batches_are_cut() {
    let place = place();
    let sft = |run: &str, more: &[&str]| {
        let mut all = vec!["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--output-dir", run, "--max-steps", "200"];
        // A rate at which it does not learn the answers by heart: the way there is chaotic.
        all.extend(["--logging-steps", "1", "--learning-rate", "0.0003", "--per-device-train-batch-size", "4"]);
        place.run(&[&all[..], more].concat()).succeeded();
        place.figure(run, "loss")
    };
    let wide = sft("wide", &[]);
    for (run, more) in [("half", &["--bf16", "true"][..]), ("cut", &["--bf16", "true", "--max-tokens-per-microbatch", "64"])] {
        let half = sft(run, more);
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        for (wide, half) in wide.chunks(20).zip(half.chunks(20)) {
            let (wide, half) = (mean(wide), mean(half));
            assert!((wide - half).abs() < 0.02 * wide, "{run}: {half} beside {wide}");
        }
    }
}
