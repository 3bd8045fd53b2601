//! The kernels of older processors: `RLHOST_CPU_FEATURES` caps what a run uses. CI runs other modules under each cap.

use rlhost_tests::{CommandOutcome, TestFolder, tiny};

fn capped(place: &TestFolder, run: &str, cap: &str, more: &[&str]) -> CommandOutcome {
    let mut arguments = vec!["--model", tiny(), "--plugin", "tldr_length_reward.wasm", "--dataset", "prompts.jsonl"];
    arguments.extend(["--output-dir", run, "--max-steps", "3", "--max-completion-length", "24", "--logging-steps", "1"]);
    arguments.extend(["--learning-rate", "0.002", "--beta", "0.1"]);
    arguments.extend(more);
    place.run_with(&arguments, &[("RLHOST_CPU_FEATURES", cap)])
}

fn place() -> TestFolder {
    let place = TestFolder::new();
    place.write("prompts.jsonl", (0..6).map(|i| format!("{{\"prompt\": \"prompt {i}\"}}\n")).collect::<String>());
    place
}

#[test]
fn runs_in_f32_are_the_same_but_for_rounding_with_the_kernels_of_every_processor() {
    let place = place();
    let weights = |run: &str| place.tensors(&format!("{run}/checkpoint-3/model.safetensors"));
    for cap in ["none", "avx2", "avx512", "amx"] {
        let again = format!("{cap}-again");
        capped(&place, cap, cap, &[]).succeeded();
        capped(&place, &again, cap, &[]).succeeded();
        assert!(weights(cap) == weights(&again), "{cap} gives other bits each time");
        for name in ["loss", "grad_norm", "reward"] {
            for (a, b) in place.figure(cap, name).iter().zip(place.figure("none", name)) {
                assert!((a - b).abs() < 1e-4 * b.abs().max(1.0), "{cap}, {name}: {a} instead of {b}");
            }
        }
    }
}

#[test]
fn bf16_that_the_processor_lacks_is_a_warning_that_the_run_records() {
    let place = place();
    let run = capped(&place, "run", "avx2", &["--bf16", "true"]);
    assert!(run.succeeded().stderr.contains("no fast bf16"), "{}", run.stderr);
    let recorded = place.events("run", "warning");
    assert!(recorded.iter().any(|warning| warning["text"].to_string().contains("no fast bf16")), "{recorded:?}");
}

#[test]
fn an_unknown_cap_is_refused_with_the_names_there_are() {
    let place = place();
    let refused = capped(&place, "run", "avx1024", &[]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    for part in ["RLHOST_CPU_FEATURES", "avx1024", "avx2", "none"] {
        assert!(refused.error().contains(part), "{}", refused.error());
    }
    assert_eq!(place.entries(), ["prompts.jsonl"]);
}
