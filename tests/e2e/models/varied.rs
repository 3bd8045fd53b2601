//! Gemma 4, whose layers differ: whole runs, adapters, episodes, serving, few bits and several ranks.

use rlhost_tests::families::{assert_cache_is_cut_and_shared, greedy_text, grpo, small_model};
use rlhost_tests::{TestFolder, mpi};
use serde_json::{Value, json};

/// A small model with an embedding for each layer and last layers that read others' keys; one whose keys serve as values; and one with experts.
fn families() -> [Value; 3] {
    let types = |kinds: &str| -> Value {
        kinds.chars().map(|kind| if kind == 's' { "sliding_attention" } else { "full_attention" }).collect()
    };
    let small = json!({
        "model_type": "gemma4_text", "num_hidden_layers": 4, "layer_types": types("fssf"), "num_kv_shared_layers": 2,
        "use_double_wide_mlp": true, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 280,
    });
    let large = json!({
        "model_type": "gemma4_unified_text", "num_hidden_layers": 3, "layer_types": types("fsf"), "attention_k_eq_v": true,
        "num_global_key_value_heads": 1, "final_logit_softcapping": 20.0,
    });
    let mixed = json!({
        "model_type": "gemma4_text", "num_hidden_layers": 3, "layer_types": types("sff"), "hidden_size_per_layer_input": 0,
        "enable_moe_block": true, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 12,
    });
    [small, large, mixed]
}

/// A folder with a small model of a family as `model`, and rows as `rows.jsonl`.
fn place(family: &Value) -> TestFolder {
    let sizes = json!({
        "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "sliding_window": 7,
    });
    small_model(family, &sizes)
}

#[test]
fn a_model_whose_layers_differ_learns_from_what_it_generates_and_resumes_bit_for_bit() {
    for family in families() {
        let place = place(&family);
        grpo(&place, "whole", &["--old-logp", "recompute"]);
        let norms = place.figure("whole", "grad_norm");
        assert!(norms.len() == 3 && norms.iter().all(|norm| norm.is_finite() && *norm > 0.0), "{norms:?}");
        // What the cache gives each token is what one forward pass gives it.
        let differences = place.figure("whole", "sampling/sampling_logp_difference/max");
        assert!(differences.iter().all(|difference| *difference < 1e-4), "{differences:?}");
        place.assert_resumes("whole", 1, 3, "model.safetensors");
        let weights = |run: &str| place.tensors(&format!("{run}/checkpoint-3/model.safetensors"));
        let (before, after) = (place.tensors("model/model.safetensors"), weights("whole"));
        assert!(before.keys().eq(after.keys()));
        // All parameters are trained but the layers' factors.
        for name in before.keys() {
            assert_eq!(before[name] == after[name], name.ends_with("layer_scalar"), "{name}");
        }

        // Running layers again on the way back changes nothing.
        grpo(&place, "again", &["--old-logp", "recompute", "--gradient-checkpointing", "true"]);
        assert!(weights("again") == after);
    }
}

#[test]
fn an_adapter_on_it_has_pefts_names_and_is_merged_into_it() {
    for family in families() {
        let place = place(&family);
        for (run, bits) in [("adapter", &[][..]), ("eight", &["--load-in-8bit"]), ("four", &["--load-in-4bit"])] {
            grpo(&place, run, &[&["--use-peft", "--lora-r", "2", "--lora-target-modules", "all-linear"][..], bits].concat());
        }
        grpo(&place, "dropped", &["--use-peft", "--lora-r", "2", "--lora-dropout", "0.1", "--use-dora"]);
        place.assert_resumes("adapter", 2, 3, "adapter_model.safetensors");
        let adapter = place.tensors("adapter/checkpoint-3/adapter_model.safetensors");
        let of_inputs = ["layers.3.per_layer_input_gate", "layers.3.per_layer_projection", "per_layer_model_projection"];
        let of_inputs = of_inputs.iter().filter(|_| family["hidden_size_per_layer_input"] == 8);
        let of_experts = ["layers.2.router.proj"].iter().filter(|_| family["enable_moe_block"] == true);
        for part in ["layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj"].iter().chain(of_inputs).chain(of_experts) {
            let name = format!("base_model.model.model.{part}.lora_A.weight");
            assert!(adapter.contains_key(&name), "{name}: {:?}", adapter.keys());
        }
        place.run(&["merge", "adapter/checkpoint-3", "merged"]).succeeded();
        assert_eq!(greedy_text(&place, "adapter/checkpoint-3"), greedy_text(&place, "merged"));
    }
}

#[test]
fn its_cache_is_cut_and_shared_in_a_server_and_between_turns() {
    for family in families() {
        let place = place(&family);
        assert_cache_is_cut_and_shared(&place);
    }
}

#[test]
fn two_ranks_train_it_as_one_does() {
    if !mpi::possible() {
        return;
    }
    for family in families() {
        let place = place(&family);
        let run = |ranks: usize, name: &str, size: &str, more: &[&str]| {
            let base = ["sft", "--dataset", "rows.jsonl", "--model", "model", "--output-dir", name, "--max-steps", "2"];
            let steps =
                ["--per-device-train-batch-size", size, "--logging-steps", "1", "--save-steps", "2", "--adam-epsilon", "0.001"];
            let arguments = [&base[..], &steps, more].concat();
            let outcome = if ranks > 1 { place.run_ranks(ranks, &arguments) } else { place.run(&arguments) };
            outcome.succeeded();
            place.lines(&format!("{name}/metrics.jsonl"))
        };
        let one = run(1, "one", "4", &[]);
        for (name, more) in [("two", &[][..]), ("divided", &["--zero-stage", "3"])] {
            let two = run(2, name, "2", more);
            for (one, two) in one.iter().zip(&two) {
                for name in ["loss", "grad_norm"] {
                    let number = |figures: &Value| figures[name].as_f64().unwrap();
                    assert!((number(one) - number(two)).abs() <= 1e-5 * number(one), "{name}: {one} and {two}");
                }
            }
            assert_eq!((one.len(), two.len()), (2, 2));
        }
    }
}

#[test]
fn what_is_not_supported_of_it_is_refused_by_name() {
    let [family, ..] = families();
    let place = place(&family);
    let outcome = place.run(&["export", "model", "model.gguf", "--format", "gguf"]);
    assert_ne!(outcome.code, Some(0));
    assert!(outcome.error().contains("gemma4_text"), "{}", outcome.stderr);
    let sft = ["sft", "--dataset", "rows.jsonl", "--model", "model", "--output-dir", "run", "--use-peft"];
    let outcome = place.run(&[&sft[..], &["--lora-modules-to-save", "post_per_layer_input_norm"]].concat());
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.error().contains("post_per_layer_input_norm"), "{}", outcome.stderr);
    let mut config: Value = serde_json::from_slice(&std::fs::read(place.path("model/config.json")).unwrap()).unwrap();
    for (key, value) in [("use_bidirectional_attention", json!("all")), ("enable_moe_block", json!(true))] {
        let before = config.as_object_mut().unwrap().insert(key.to_owned(), value);
        place.write("model/config.json", config.to_string());
        let outcome = place.run(&["models", "model"]);
        // Experts need their numbers.
        let named = if key == "enable_moe_block" { "moe_intermediate_size" } else { key };
        assert!(outcome.stdout.contains(named) || outcome.stderr.contains(named), "{key}: {} {}", outcome.stdout, outcome.stderr);
        config[key] = before.unwrap_or_default();
    }
}
