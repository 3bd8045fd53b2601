//! Mini-batches: a generation is trained on in parts, which are other ones in each pass.

use rlhost_tests::{TestFolder, assert_near, tiny};

/// A run of PPO on generations of 16 completions of 8 prompts, that logs and saves every step.
fn ppo<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["ppo", "--model", tiny(), "--dataset", "answers.jsonl", "--plugin", "tldr_length_reward.wasm"];
    all.extend(["--output-dir", run, "--max-completion-length", "8", "--num-generations", "2", "--save-steps", "1"]);
    all.extend(["--learning-rate", "0.002", "--critic-learning-rate", "0.002", "--lr-scheduler-type", "constant"]);
    all.extend(more);
    all
}

const ENTROPY: &str = "policy/entropy_avg";

#[test]
fn every_pass_takes_the_whole_generation_in_other_mini_batches() {
    let place = TestFolder::with_answers();
    let still =
        ["--learning-rate", "0", "--critic-learning-rate", "0", "--per-device-train-batch-size", "16", "--max-steps", "12"];
    let parts = ["--num-mini-batches", "4", "--num-ppo-epochs", "3", "--logging-steps"];
    place.run(&ppo("steps", &[&still[..], &parts, &["1"]].concat())).succeeded();
    place.run(&ppo("passes", &[&still[..], &parts, &["4"]].concat())).succeeded();
    // Of weights that stay the same, each pass finds the same.
    for name in [ENTROPY, "loss/value_avg", "policy/approxkl_avg"] {
        let passes = place.figure("passes", name);
        assert!(
            passes.len() == 3 && passes.iter().all(|of| (of - passes[0]).abs() <= 1e-6 * of.abs().max(1e-3)),
            "{name}: {passes:?}"
        );
    }
    let steps: Vec<Vec<f64>> = place.figure("steps", ENTROPY).chunks(4).map(<[f64]>::to_vec).collect();
    let sorted = |pass: &Vec<f64>| {
        let mut pass = pass.clone();
        pass.sort_by(f64::total_cmp);
        pass
    };
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        assert_ne!(sorted(&steps[a]), sorted(&steps[b]), "passes {a} and {b} have the same mini-batches");
    }
    // One generation, of which a completion is logged for each of all.
    let generations: Vec<u64> = place.lines("steps/completions.jsonl").iter().filter_map(|line| line["step"].as_u64()).collect();
    assert!(generations.windows(2).all(|pair| pair[0] == pair[1]), "{generations:?}");
}

#[test]
fn the_first_pass_is_that_of_smaller_steps() {
    let place = TestFolder::with_answers();
    let steps = ["--max-steps", "8", "--logging-steps", "1"];
    let parts = ["--per-device-train-batch-size", "16", "--num-mini-batches", "4"];
    place.run(&ppo("parts", &[&steps[..], &parts].concat())).succeeded();
    let small = ["--per-device-train-batch-size", "4", "--steps-per-generation", "4"];
    place.run(&ppo("small", &[&steps[..], &small].concat())).succeeded();
    place.assert_same_end("parts", "small", 8, "model.safetensors");
    // The same updates of four completions, of which each accumulates two parts.
    let parts = ["--per-device-train-batch-size", "8", "--gradient-accumulation-steps", "2", "--num-mini-batches", "4"];
    place.run(&ppo("accumulated", &[&steps[..], &parts].concat())).succeeded();
    assert_near(&place.figures("accumulated"), &place.figures("parts"), "accumulated");
}

#[test]
fn a_run_resumes_exactly_in_the_middle_of_any_pass() {
    let place = TestFolder::with_answers();
    // Two generations of three passes of two updates, the first with an accumulation.
    for (run, algorithm, size, accumulation) in
        [("ppo", "ppo", "16", "1"), ("accumulated", "grpo", "8", "2"), ("pairs", "online_dpo", "4", "1")]
    {
        let mut all = ppo(run, &["--per-device-train-batch-size", size, "--gradient-accumulation-steps", accumulation]);
        all[0] = algorithm;
        all.extend(["--num-mini-batches", "2", "--num-iterations", "3", "--max-steps", "12", "--logging-steps", "1"]);
        if algorithm != "ppo" {
            let at = all.iter().position(|given| *given == "--critic-learning-rate").unwrap();
            all.drain(at..at + 2);
        }
        place.run(&all).succeeded();
        for step in 1..if algorithm == "ppo" { 12 } else { 7 } {
            let name = format!("{run}-from-{step}");
            place.copy_as_after(run, step, &name);
            place.run(&["resume", &name]).succeeded();
            place.assert_same_end(&name, run, 12, "model.safetensors");
        }
    }
}

#[test]
fn a_number_that_does_not_divide_a_generation_is_refused() {
    let place = TestFolder::with_answers();
    for (given, expected) in [
        (&["--num-mini-batches", "3"][..], "3 must divide the 16 completions of a generation"),
        (&["--num-mini-batches", "8", "--gradient-accumulation-steps", "4", "--steps-per-generation", "1"], "at least"),
        (&["--num-mini-batches", "0"], "must be at least 1"),
        (&["--stop-token-id", "5"], "--eos-token"),
    ] {
        let refused = place.run(&ppo("refused", &[&["--per-device-train-batch-size", "16"], given].concat()));
        assert!(refused.code == Some(2) && refused.error().contains(expected), "{given:?}: {}", refused.stderr);
    }
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--num-mini-batches", "2"];
    let refused = place.run(&sft);
    assert!(refused.code == Some(2) && refused.error().contains("num_mini_batches"), "{}", refused.stderr);
    let all = ["--per-device-train-batch-size", "16", "--max-steps", "1", "--stop-token", "eos"];
    place.run(&ppo("stopped", &all)).succeeded();
}
