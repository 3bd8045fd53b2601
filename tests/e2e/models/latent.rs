//! Models with compressed keys and values: whole runs, adapters, episodes, serving, few bits and several ranks.

use rlhost_tests::families::{assert_cache_is_cut_and_shared, greedy_text, grpo, small_model};
use rlhost_tests::{TestFolder, mpi};
use serde_json::{Value, json};

/// Families with compressed keys and values, with queries that are compressed or not, and how many tensors of a layer belong to that.
fn families() -> [(Value, usize); 3] {
    let heads =
        json!({"num_key_value_heads": 4, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12});
    let with = |more: Value| {
        let mut model = heads.clone();
        model.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        model
    };
    let experts =
        json!({"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1});
    let mut second = with(experts.clone());
    let own = json!({"model_type": "deepseek_v2", "q_lora_rank": null, "first_k_dense_replace": 1, "topk_method": "group_limited_greedy"});
    second.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
    let mut third = with(experts);
    let own = json!({"model_type": "deepseek_v3", "q_lora_rank": 20, "first_k_dense_replace": 1, "attention_bias": true});
    third.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
    let dense = with(json!({"model_type": "deepseek_v3", "q_lora_rank": 20, "first_k_dense_replace": 2}));
    [(second, 3), (third, 8), (dense, 6)]
}

/// A folder with a small model of a family as `model`, and rows as `rows.jsonl`.
fn place(family: &Value) -> TestFolder {
    let sizes = json!({"intermediate_size": 48, "num_hidden_layers": 2});
    small_model(family, &sizes)
}

/// Whether a tensor belongs to the compression, or to a projection of compressed rows.
fn is_of_latents(name: &str) -> bool {
    ["q_a_", "q_b_", "kv_a_", "kv_b_"].iter().any(|part| name.contains(&format!(".self_attn.{part}")))
}

#[test]
fn an_export_in_bf16_keeps_the_correction_of_a_router_as_it_is() {
    let place = TestFolder::new();
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/deepseek_v3");
    std::fs::create_dir(place.path("model")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.join(file), place.path("model").join(file)).unwrap();
    }
    place.run(&["export", "model", "half", "--dtype", "bf16"]).succeeded();
    let [whole, half] = ["model", "half"].map(|folder| place.tensors(&format!("{folder}/model.safetensors")));
    let corrections: Vec<&String> = whole.keys().filter(|name| name.ends_with("e_score_correction_bias")).collect();
    assert_eq!(corrections.len(), 2);
    assert!(corrections.iter().all(|name| whole[*name] == half[*name]));
    let norm = "model.norm.weight";
    assert_eq!(whole[norm].len(), 2 * half[norm].len());
}

#[test]
fn a_model_with_compressed_keys_and_values_learns_from_what_it_generates_and_resumes_bit_for_bit() {
    for (family, tensors) in families() {
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
        let moved = |name: &&String| is_of_latents(name) && before[*name] != after[*name];
        assert_eq!(before.keys().filter(moved).count(), 2 * tensors, "{:?}", before.keys());

        // Running layers again on the way back changes nothing.
        grpo(&place, "again", &["--old-logp", "recompute", "--gradient-checkpointing", "true"]);
        assert!(weights("again") == after);
    }
}

#[test]
fn an_adapter_on_it_has_pefts_names_and_is_merged_into_it() {
    for (family, _) in families() {
        let place = place(&family);
        for (run, bits) in [("adapter", &[][..]), ("eight", &["--load-in-8bit"]), ("four", &["--load-in-4bit"])] {
            grpo(&place, run, &[&["--use-peft", "--lora-r", "2", "--lora-target-modules", "all-linear"][..], bits].concat());
        }
        place.assert_resumes("adapter", 2, 3, "adapter_model.safetensors");
        let adapter = place.tensors("adapter/checkpoint-3/adapter_model.safetensors");
        let queries = if family["q_lora_rank"].is_null() { &["q_proj"][..] } else { &["q_a_proj", "q_b_proj"] };
        for part in queries.iter().chain(&["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]) {
            let name = format!("base_model.model.model.layers.1.self_attn.{part}.lora_A.weight");
            assert!(adapter.contains_key(&name), "{name}: {:?}", adapter.keys());
        }
        place.run(&["merge", "adapter/checkpoint-3", "merged"]).succeeded();
        assert_eq!(greedy_text(&place, "adapter/checkpoint-3"), greedy_text(&place, "merged"));
    }
}

#[test]
fn its_cache_is_cut_and_shared_in_a_server_and_between_turns() {
    for (family, _) in families() {
        let place = place(&family);
        assert_cache_is_cut_and_shared(&place);
    }
}

#[test]
fn two_ranks_train_it_as_one_does() {
    if !mpi::possible() {
        return;
    }
    for (family, _) in families() {
        let place = place(&family);
        let run = |ranks: usize, name: &str, size: &str| {
            let base = ["sft", "--dataset", "rows.jsonl", "--model", "model", "--output-dir", name, "--max-steps", "2"];
            let more =
                ["--per-device-train-batch-size", size, "--logging-steps", "1", "--save-steps", "2", "--adam-epsilon", "0.001"];
            let arguments = [&base[..], &more].concat();
            let outcome = if ranks > 1 { place.run_ranks(ranks, &arguments) } else { place.run(&arguments) };
            outcome.succeeded();
            place.lines(&format!("{name}/metrics.jsonl"))
        };
        let (one, two) = (run(1, "one", "4"), run(2, "two", "2"));
        for (one, two) in one.iter().zip(&two) {
            for name in ["loss", "grad_norm"] {
                let number = |figures: &Value| figures[name].as_f64().unwrap();
                assert!((number(one) - number(two)).abs() <= 1e-5 * number(one), "{name}: {one} and {two}");
            }
        }
        assert_eq!((one.len(), two.len()), (2, 2));
    }
}

#[test]
fn what_is_not_supported_of_it_is_refused_by_name() {
    let (family, _) = &families()[1];
    let place = place(family);
    let outcome = place.run(&["export", "model", "model.gguf", "--format", "gguf"]);
    assert_ne!(outcome.code, Some(0));
    assert!(outcome.error().contains("deepseek_v3"), "{}", outcome.stderr);
    let sft = ["sft", "--dataset", "rows.jsonl", "--model", "model", "--output-dir", "run", "--router-aux-loss-coef", "0.1"];
    let outcome = place.run(&sft);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.error().contains("router_aux_loss_coef"), "{}", outcome.stderr);
}
