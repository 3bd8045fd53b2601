//! Mixtures of experts in whole runs: their auxiliary loss, adapters and checkpoints.

use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};

/// A folder with a small mixture as `mixture` and rows as `rows.jsonl`.
fn place() -> TestFolder {
    let place = TestFolder::new();
    let rows = (0..12).map(|i| json!({"prompt": format!("question {i}"), "completion": format!(" {}", "ab".repeat(i % 5 + 1))}));
    place.write("rows.jsonl", rows.map(|row| format!("{row}\n")).collect::<String>());
    let config = json!({
        "model_type": "mixtral", "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2, "max_position_embeddings": 128,
        "sliding_window": 24, "router_aux_loss_coef": 0.5,
    });
    place.write("config.json", config.to_string());
    let new = ["new-model", "mixture", "--config", "config.json", "--corpus", "rows.jsonl", "--vocab-size", "280"];
    place.run(&new).succeeded();
    place
}

fn figures(place: &TestFolder, run: &str) -> Vec<Value> {
    place.lines(&format!("{run}/metrics.jsonl"))
}

#[test]
fn the_auxiliary_loss_is_added_with_its_coefficient_and_logged() {
    let place = place();
    let run = |name: &str, more: &[&str]| {
        let base = ["sft", "--dataset", "rows.jsonl", "--model", "mixture", "--max-steps", "2", "--logging-steps", "1"];
        let more = [&base[..], &["--per-device-train-batch-size", "3", "--output-dir", name], more].concat();
        place.run(&more).succeeded();
        figures(&place, name)
    };
    let number = |figures: &Value, name: &str| figures[name].as_f64().unwrap();
    let (with, without) = (run("with", &[]), run("without", &["--router-aux-loss-coef", "0"]));
    let aux = number(&with[0], "aux_loss");
    // One for each chosen expert, if all are used alike; a new router sends tokens nearly anywhere.
    assert!((1.9..4.0).contains(&aux), "{aux}");
    let more = number(&with[0], "loss") - number(&without[0], "loss");
    assert!((more - 0.5 * aux).abs() < 1e-5, "{more} and {aux}");
    assert!(without.iter().all(|figures| figures.get("aux_loss").is_none()), "{without:?}");
    assert_ne!(number(&with[1], "grad_norm"), number(&without[1], "grad_norm"));
    // Micro-batches of equal size count alike.
    let accumulated = run("accumulated", &["--gradient-accumulation-steps", "2"]);
    let (loss, aux) = (number(&accumulated[0], "loss"), number(&accumulated[0], "aux_loss"));
    let nll = number(&run("plain", &["--gradient-accumulation-steps", "2", "--router-aux-loss-coef", "0"])[0], "loss");
    assert!((loss - nll - 0.5 * aux).abs() < 1e-5, "{loss}, {nll} and {aux}");
    let evaluate =
        ["eval", "--model", "mixture", "--algorithm", "sft", "--learn-from", "dataset", "--dataset", "rows.jsonl", "--json"];
    let evaluated: Value = serde_json::from_str(&place.run(&evaluate).succeeded().stdout).unwrap();
    assert!((1.9..4.0).contains(&number(&evaluated, "eval_aux_loss")), "{evaluated}");
}

#[test]
fn a_model_without_experts_has_no_auxiliary_loss() {
    let place = place();
    let base = ["sft", "--dataset", "rows.jsonl", "--max-steps", "1", "--output-dir", "run", "--router-aux-loss-coef"];
    for (model, coefficient, named) in [(tiny(), "0.1", "not a mixture"), ("mixture", "-1", "0 or greater")] {
        let outcome = place.run(&[&base[..], &[coefficient, "--model", model]].concat());
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.error().contains("router_aux_loss_coef") && outcome.error().contains(named), "{}", outcome.stderr);
    }
    place.run(&[&base[..], &["0", "--model", tiny()]].concat()).succeeded();
}

#[test]
fn a_mixture_is_trained_from_what_it_generates_whole_and_as_an_adapter() {
    let place = place();
    let base = ["--plugin", "tldr_length_reward.wasm", "--dataset", "rows.jsonl", "--max-steps", "2", "--save-steps", "2"];
    let more =
        ["--per-device-train-batch-size", "4", "--num-generations", "4", "--max-completion-length", "12", "--logging-steps", "1"];
    for (name, adapter) in [("whole", &[][..]), ("adapter", &["--use-peft", "--lora-r", "2"][..])] {
        let of_run = ["--model", "mixture", "--output-dir", name];
        place.run(&[&base[..], &more[..], &of_run[..], adapter].concat()).succeeded();
        let aux = figures(&place, name)[0]["aux_loss"].as_f64().unwrap();
        assert!((1.9..4.0).contains(&aux), "{name}: {aux}");
        let checkpoint = format!("{name}/checkpoint-2");
        place.run(&["generate", "--model", &checkpoint, "--prompt", "question", "--max-new-tokens", "8"]).succeeded();
    }
    let stacks = ["--lora-target-parameters", "mlp.experts.gate_up_proj", "experts.down_proj", "--learning-rate", "0.05"];
    let stacks = [&["--use-peft", "--lora-r", "2", "--save-steps", "1"][..], &stacks].concat();
    place.run(&[&base[..], &more[..], &["--model", "mixture", "--output-dir", "stacks"], &stacks[..]].concat()).succeeded();
    let adapter = place.tensors("stacks/checkpoint-2/adapter_model.safetensors");
    for part in ["experts.lora_B.weight", "experts.base_layer.lora_A.weight"] {
        assert!(adapter.keys().any(|name| name.ends_with(part)), "{:?}", adapter.keys());
    }
    place.copy("stacks", "resumed");
    place.run(&["resume", "resumed", "--step", "1"]).succeeded();
    place.assert_same_end("resumed", "stacks", 2, "adapter_model.safetensors");
    place.run(&["merge", "stacks/checkpoint-2", "merged"]).succeeded();
    let continued = |model: &str| {
        let greedy = ["--prompt", "question", "--temperature", "0", "--max-new-tokens", "16"];
        place.run(&[&["generate", "--model", model], &greedy[..]].concat()).succeeded().stdout.clone()
    };
    assert_eq!(continued("stacks/checkpoint-2"), continued("merged"));
    assert_ne!(continued("stacks/checkpoint-2"), continued("mixture"), "the adapter has learned nothing");

    let targets = ["sft", "--dataset", "rows.jsonl", "--model", "mixture", "--output-dir", "run", "--use-peft"];
    for (given, said) in [
        (&["--lora-target-parameters", "down_proj", "--lora-dropout", "0.1"][..], "lora_dropout"),
        (&["--lora-target-parameters", "down_proj", "--use-dora"], "use_dora"),
        (&["--lora-target-parameters", "q_proj"], "mlp.experts.down_proj"),
        (&["--lora-target-parameters", "down_proj", "--model", tiny()], "has none"),
    ] {
        let outcome = place.run(&[&targets[..], given].concat());
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.error().contains("lora_target_parameters") && outcome.error().contains(said), "{}", outcome.stderr);
    }
    let outcome = place.run(&[&targets[..], &["--lora-target-modules", "gate_proj"]].concat());
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.error().contains("gate_proj") && outcome.error().contains("q_proj"), "{}", outcome.stderr);
}

#[test]
fn algorithms_whose_options_in_trl_have_no_coefficient_add_no_auxiliary_loss_unless_it_is_asked_for() {
    let place = place();
    let pairs = (0..12).map(|i| json!({"prompt": format!("question {i}"), "chosen": " ab", "rejected": " abab"}));
    place.write("pairs.jsonl", pairs.map(|row| format!("{row}\n")).collect::<String>());
    let run = |algorithm: &str, name: &str, more: &[&str]| {
        let base = [algorithm, "--dataset", "pairs.jsonl", "--model", "mixture", "--max-steps", "1", "--output-dir", name];
        place.run(&[&base[..], more].concat()).succeeded();
        figures(&place, name).remove(0)
    };
    for algorithm in ["cpo", "orpo"] {
        let plain = run(algorithm, &format!("{algorithm}-plain"), &[]);
        assert!(plain.get("aux_loss").is_none(), "{plain}");
        let asked = run(algorithm, &format!("{algorithm}-asked"), &["--router-aux-loss-coef", "0.5"]);
        let more = asked["loss"].as_f64().unwrap() - plain["loss"].as_f64().unwrap();
        assert!((more - 0.5 * asked["aux_loss"].as_f64().unwrap()).abs() < 1e-5, "{asked} and {plain}");
    }
    // DPO has one in TRL too.
    assert!(run("dpo", "dpo", &[]).get("aux_loss").is_some());
}
