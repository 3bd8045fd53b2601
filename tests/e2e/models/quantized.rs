//! Weights in fewer bits through the binary: what a run trains, records and resumes does not depend on how its base is held.

use rlhost_tests::{TestFolder, tiny};
use std::fs;

/// SFT of an adapter; nothing is generated, so that every bit follows from passes.
fn sft<'a>(model: &'a str, run: &'a str) -> Vec<&'a str> {
    let mut all = vec!["sft", "--model", model, "--dataset", "answers.jsonl", "--output-dir", run, "--max-steps", "4"];
    all.extend(["--logging-steps", "1", "--save-steps", "1", "--learning-rate", "0.002", "--per-device-train-batch-size", "4"]);
    all.extend(["--lora_r", "4"]);
    all
}

/// GRPO of an adapter with a reference model.
fn grpo<'a>(model: &'a str, run: &'a str) -> Vec<&'a str> {
    let mut all =
        vec!["--model", model, "--plugin", "tldr_length_reward.wasm", "--dataset", "prompts.jsonl", "--output-dir", run];
    all.extend(["--max-completion-length", "24", "--max-steps", "4", "--save-steps", "1", "--logging-steps", "1"]);
    all.extend(["--num-iterations", "2", "--beta", "0.1", "--learning-rate", "0.02", "--lora_r", "4"]);
    all
}

/// A place with a model in bf16.
fn place() -> TestFolder {
    let place = TestFolder::with_answers();
    place.write("prompts.jsonl", (0..6).map(|i| format!("{{\"prompt\": \"prompt {i}\"}}\n")).collect::<String>());
    place.run(&["export", tiny(), "half", "--dtype", "bf16"]).succeeded();
    place
}

#[test]
fn a_base_in_bf16_trains_the_same_adapter_as_in_f32_and_checkpoints_say_which_it_was() {
    let place = place();
    place.run(&sft("half", "auto")).succeeded();
    place.run(&[&sft("half", "wide")[..], &["--dtype", "float32"]].concat()).succeeded();
    let adapter = |run: &str| place.tensors(&format!("{run}/checkpoint-4/adapter_model.safetensors"));
    assert!(adapter("auto") == adapter("wide"));
    assert_eq!(place.figures("auto"), place.figures("wide"));
    let config = |run: &str| fs::read_to_string(place.path(run).join("checkpoint-4/trainer/config.toml")).unwrap();
    assert!(config("auto").contains("dtype = \"bfloat16\""), "{}", config("auto"));
    assert!(config("wide").contains("dtype = \"float32\""));
    // A base whose files have become f32 is rounded to what it was.
    place.run(&[&sft(tiny(), "rounded")[..], &["--dtype", "bfloat16"]].concat()).succeeded();
    assert!(adapter("rounded") == adapter("auto"));
    // Cut otherwise, it is the same up to rounding; on a resume, the precision may not change.
    place.run(&[&sft("half", "cut")[..], &["--max-tokens-per-microbatch", "64"]].concat()).succeeded();
    rlhost_tests::assert_near(&place.figures("cut"), &place.figures("auto"), "cut");
    let other = place.run(&["resume", "auto", "--dtype", "float32"]);
    assert!(other.code == Some(2) && other.error().contains("dtype"), "{}", other.stderr);
}

#[test]
fn runs_over_bases_in_fewer_bits_resume_exactly() {
    let place = place();
    for (run, more) in [("half-precision", &[][..]), ("eight", &["--load-in-8bit"]), ("four", &["--load_in_4bit", "true"])] {
        place.run(&[&grpo("half", run)[..], more].concat()).succeeded();
        for step in 1..4 {
            place.assert_resumes(run, step, 4, "adapter_model.safetensors");
        }
        let divergences = place.figure(run, "kl");
        assert!(divergences[0].abs() < 1e-6 && divergences[3] > 0.0, "{run}: {divergences:?}");
    }
    let rewards = ["half-precision", "eight", "four"].map(|run| place.figure(run, "entropy"));
    assert!(rewards[0] != rewards[1] && rewards[1] != rewards[2], "{rewards:?}");
}

#[test]
fn a_reference_and_a_value_model_are_held_as_they_are_stored_without_a_difference() {
    let place = place();
    for (algorithm, more) in [("grpo", &["--beta", "0.2"][..]), ("ppo", &["--critic-learning-rate", "0.001"])] {
        let run = |name: &str, dtype: &str| {
            let mut all = vec!["--model", "half", "--algorithm", algorithm, "--plugin", "tldr_length_reward.wasm"];
            all.extend(["--dataset", "prompts.jsonl", "--output-dir", name, "--max-completion-length", "16", "--max-steps", "3"]);
            all.extend(["--logging-steps", "1", "--learning-rate", "0.001", "--dtype", dtype]);
            place.run(&[&all[..], more].concat()).succeeded();
            place.tensors(&format!("{name}/checkpoint-3/model.safetensors"))
        };
        assert!(run(&format!("{algorithm}-auto"), "auto") == run(&format!("{algorithm}-wide"), "float32"), "{algorithm}");
    }
}

#[test]
fn weights_in_few_bits_need_an_adapter() {
    let place = place();
    let adapted = sft("half", "none");
    let without = adapted.strip_suffix(&["--lora_r", "4"]).expect("the adapter comes last");
    for (more, wanted) in [
        (&["--load-in-4bit"][..], "load_in_4bit: needs an adapter"),
        (&["--load-in-8bit"], "load_in_8bit: needs an adapter"),
        (&["--use-peft", "--load-in-8bit", "--load-in-4bit"], "choose one"),
        (&["--use-peft", "--load-in-4bit", "--use-bnb-nested-quant", "true"], "scales of 4-bit weights"),
        (&["--use-peft", "--load-in-4bit", "--bnb-4bit-quant-type", "fp4"], "NF4"),
    ] {
        let refused = place.run(&[without, more].concat());
        assert!(refused.code == Some(2) && refused.error().contains(wanted), "{more:?}: {}", refused.stderr);
    }
    assert!(!place.path("none").exists());
}
