//! Models whose layers carry a state: whole runs, adapters, episodes, agents, serving, resuming and several ranks.

use rlhost_tests::families::{greedy_text, grpo, small_model};
use rlhost_tests::server::ServerProcess;
use rlhost_tests::{TestFolder, mpi};
use serde_json::{Value, json};
use std::process::Command;

/// Families with two recurrent layers, between which one attends or which attend themselves, and how many of a layer's tensors belong to a
/// recurrence.
fn families() -> [(Value, usize); 8] {
    let lfm2 = json!({
        "model_type": "lfm2", "block_multiple_of": 8, "conv_L_cache": 3, "conv_bias": true,
        "layer_types": ["conv", "full_attention", "conv"],
    });
    let qwen = json!({
        "model_type": "qwen3_5_text", "head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    });
    let with = |model: &Value, model_type: &str, more: Value| {
        let mut model = model.clone();
        model["model_type"] = model_type.into();
        model.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        model
    };
    let experts = json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16});
    let mut lfm2_moe = with(&lfm2, "lfm2_moe", experts.clone());
    lfm2_moe["num_dense_layers"] = 1.into();
    lfm2_moe.as_object_mut().expect("an object").remove("block_multiple_of");
    let mut qwen_moe = with(&qwen, "qwen3_5_moe_text", experts);
    qwen_moe["shared_expert_intermediate_size"] = 24.into();
    let mut qwen_next = with(&qwen_moe, "qwen3_next", json!({"mlp_only_layers": [0]}));
    qwen_next["linear_num_key_heads"] = 1.into();
    let granite = json!({
        "model_type": "granitemoehybrid", "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 4, "mamba_d_state": 8,
        "mamba_n_groups": 2, "mamba_proj_bias": true, "num_local_experts": 4, "shared_intermediate_size": 24, "intermediate_size": 16,
    });
    let nemotron = json!({
        "model_type": "nemotron_h", "hybrid_override_pattern": "M*ME-", "num_hidden_layers": 5, "head_dim": 8, "mamba_num_heads": 4,
        "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "use_bias": true, "n_routed_experts": 4, "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 24,
    });
    let falcon = json!({
        "model_type": "falcon_h1", "num_hidden_layers": 2, "mamba_d_ssm": 24, "mamba_n_heads": 4, "mamba_d_state": 8, "mamba_n_groups": 2,
        "mamba_rms_norm": true, "mamba_norm_before_gate": false, "mamba_proj_bias": true, "ssm_multipliers": [0.8, 1.2, 0.9, 1.1, 0.7],
        "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.25, "mlp_multipliers": [0.9, 0.6],
    });
    [(lfm2, 6), (qwen, 9), (lfm2_moe, 6), (qwen_moe, 9), (qwen_next, 7), (granite, 10), (nemotron, 10), (falcon, 9)]
}

/// A folder with a small model of a family as `model`, and rows as `rows.jsonl`.
fn place(family: &Value) -> TestFolder {
    let sizes = json!({"intermediate_size": 72, "num_hidden_layers": 3, "num_key_value_heads": 2});
    small_model(family, &sizes)
}

#[test]
fn a_model_with_recurrent_layers_learns_from_what_it_generates_and_resumes_bit_for_bit() {
    for (family, tensors) in families() {
        let place = place(&family);
        let is_nemotron = family["model_type"] == "nemotron_h";
        let of_mixer =
            |name: &str| is_nemotron && name.contains(".mixer.") && ["layers.0.", "layers.2."].iter().any(|l| name.contains(l));
        let of_recurrence =
            |name: &str| of_mixer(name) || [".conv.", ".linear_attn.", ".mamba."].iter().any(|part| name.contains(part));
        grpo(&place, "whole", &[]);
        let norms = place.figure("whole", "grad_norm");
        assert!(norms.len() == 3 && norms.iter().all(|norm| norm.is_finite() && *norm > 0.0), "{norms:?}");
        place.assert_resumes("whole", 1, 3, "model.safetensors");
        let weights = |run: &str| place.tensors(&format!("{run}/checkpoint-3/model.safetensors"));
        let (before, after) = (place.tensors("model/model.safetensors"), weights("whole"));
        assert!(before.keys().eq(after.keys()));
        let moved = |name: &&String| of_recurrence(name) && before[*name] != after[*name];
        assert_eq!(before.keys().filter(moved).count(), 2 * tensors, "all of two layers: {:?}", before.keys());

        // Running layers again on the way back changes nothing.
        grpo(&place, "again", &["--gradient-checkpointing", "true"]);
        assert!(weights("again") == after);

        grpo(&place, "adapter", &["--use-peft", "--lora-r", "2", "--lora-target-modules", "all-linear"]);
        place.assert_resumes("adapter", 2, 3, "adapter_model.safetensors");
        let adapter = place.tensors("adapter/checkpoint-3/adapter_model.safetensors");
        let refused = is_nemotron || family["model_type"] == "falcon_h1";
        let adapted = |name: &str| name.contains("_proj") && name.ends_with("weight") && !(refused && name.contains("out_proj"));
        let projections = before.keys().filter(|name| of_recurrence(name) && adapted(name));
        assert_eq!(adapter.keys().filter(|name| of_recurrence(name)).count(), 2 * projections.count(), "{:?}", adapter.keys());
        place.run(&["merge", "adapter/checkpoint-3", "merged"]).succeeded();
        assert_eq!(greedy_text(&place, "adapter/checkpoint-3"), greedy_text(&place, "merged"));
    }
}

#[test]
fn later_turns_continue_the_state_of_earlier_ones() {
    for (family, _) in families() {
        let place = place(&family);
        let row = |i: u32| json!({"prompt": format!("Guess number {i}."), "secret": 1 + 13 * i});
        place.write("numbers.jsonl", (0..4).map(|i| format!("{}\n", row(i))).collect::<String>());
        let base =
            ["train", "--model", "model", "--environment", "guess_number.wasm", "--dataset", "numbers.jsonl", "--output-dir"];
        let sizes =
            ["--num-generations", "4", "--per-device-train-batch-size", "4", "--max-completion-length", "5", "--max-turns", "3"];
        let steps = ["--max-steps", "4", "--save-steps", "1", "--logging-steps", "1", "--learning-rate", "0.002"];
        let twice = ["--steps-per-generation", "2", "--num-iterations", "2"];
        place.run(&[&base[..], &["run"], &sizes, &steps, &twice].concat()).succeeded();
        let figures = place.lines("run/metrics.jsonl");
        let first = |name: &str| figures[0][name].as_f64().unwrap_or_else(|| panic!("no {name} in {}", figures[0]));
        assert!(first("episodes/mean_turns") > 1.0 && first("episodes/tokens_of_replies") > 10.0);
        // What the sequences read and sampled turn by turn has the probabilities of one pass over it.
        assert!(first("sampling/sampling_logp_difference/max") < 1e-4, "{}", first("sampling/sampling_logp_difference/max"));
        place.assert_resumes("run", 1, 4, "model.safetensors");
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
    for (family, _) in families() {
        let place = place(&family);
        let outcome = place.run(&["export", "model", "model.gguf", "--format", "gguf"]);
        assert_ne!(outcome.code, Some(0));
        assert!(outcome.error().contains(family["model_type"].as_str().expect("a name")), "{}", outcome.stderr);
    }
}

/// A program that plays an episode of two calls, the second of which continues the first, and of another conversation.
const AGENT: &str = r#"
import json, os, sys, urllib.request
def chat(messages):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps({"messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
row = json.loads(sys.stdin.readline())
asked = [{"role": "user", "content": row["prompt"]}]
said = chat(asked)
chat(asked + [said, {"role": "user", "content": "More."}])
chat(asked[:1] + [{"role": "user", "content": "Else?"}])
print(json.dumps({"reward": len(set(said["content"]))}))
"#;

#[test]
fn its_states_fork_for_an_agents_calls_and_in_a_server_that_writes_a_runs_completions() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: there is no python3");
        return;
    }
    for (family, _) in families() {
        let place = place(&family);
        place.write("agent.py", AGENT);
        place.write("chat.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:");
        let agent = ["--agent", "python3 agent.py", "--chat-template-path", "chat.jinja", "--old-logp", "recompute"];
        grpo(&place, "played", &agent);
        assert_eq!(place.figure("played", "agent/calls"), [3.0; 3]);
        let server = ServerProcess::start(&place, &["--model", "model", "--allow-weight-updates"]);
        grpo(&place, "served", &["--rollout-server", &format!("http://{}", server.address), "--old-logp", "recompute"]);
        server.terminate();
        assert_eq!(server.wait(), Some(0));
        for run in ["played", "served"] {
            // What the caches give each token is what one forward pass gives it.
            let differences = place.figure(run, "sampling/sampling_logp_difference/max");
            assert!(differences.len() == 3 && differences.iter().all(|difference| *difference < 1e-4), "{run}: {differences:?}");
        }
    }
}
