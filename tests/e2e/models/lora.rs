//! Low-rank adapters through the binary: what checkpoints hold, resuming, generation, merging.

use rlhost_tests::{TestFolder, tiny};
use serde_json::Value;
use std::fs;

const STEPS: u64 = 5;

/// Layers of the tiny model.
const LAYERS: usize = 2;

/// GRPO with a reference model, each generation trained on twice.
fn arguments(run: &str) -> Vec<&str> {
    let mut all =
        vec!["--model", tiny(), "--plugin", "tldr_length_reward.wasm", "--dataset", "prompts.jsonl", "--output-dir", run];
    all.extend(["--max-completion-length", "64", "--max-steps", "5", "--save-steps", "1", "--logging-steps", "1"]);
    all.extend(["--num-iterations", "2", "--beta", "0.1", "--learning-rate", "0.02", "--log-completions", "all"]);
    all.extend(["--lora_r", "4", "--lora_alpha", "8", "--lora-dropout", "0"]);
    all
}

fn place() -> TestFolder {
    let place = TestFolder::with_answers();
    place.write("prompts.jsonl", (0..6).map(|i| format!("{{\"prompt\": \"prompt {i}\"}}\n")).collect::<String>());
    place
}

fn assert_same(place: &TestFolder, got: &str, want: &str) {
    place.assert_same_end(got, want, STEPS, "adapter_model.safetensors");
}

/// Names of the tensors in a file.
fn tensors(place: &TestFolder, file: &str) -> Vec<String> {
    place.tensors(file).into_keys().collect()
}

#[test]
fn a_checkpoint_is_an_adapter_and_a_run_resumed_from_any_ends_as_the_uninterrupted_one() {
    let place = place();
    place.run(&arguments("whole")).succeeded();
    let entries = place.entries_of("whole/checkpoint-5");
    for name in ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"] {
        assert!(entries.iter().any(|entry| entry == name), "{entries:?}");
    }
    assert!(!entries.iter().any(|entry| entry == "model.safetensors" || entry == "config.json"), "{entries:?}");
    let adapter = tensors(&place, "whole/checkpoint-5/adapter_model.safetensors");
    assert_eq!(adapter.len(), LAYERS * 2 * 7);
    assert!(adapter.contains(&"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".to_owned()), "{adapter:?}");
    let moments = tensors(&place, "whole/checkpoint-5/trainer/optimizer.safetensors");
    assert!(moments.len() == 2 * adapter.len() && moments.iter().all(|name| name.contains(".lora_")), "{moments:?}");
    let config: Value = serde_json::from_slice(&fs::read(place.path("whole/checkpoint-5/adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&config["r"], &config["lora_alpha"]), (&4.into(), &8.into()));
    let divergences = place.figure("whole", "kl");
    assert!(divergences[0] == 0.0 && divergences[4] > 0.0, "the reference is the model without its adapter: {divergences:?}");

    for step in 1..STEPS {
        let name = format!("from-{step}");
        place.copy("whole", &name);
        place.run(&["resume", &name, "--step", &step.to_string()]).succeeded();
        assert_same(&place, &name, "whole");
    }
    let damage = place.path("from-1/checkpoint-5/adapter_model.safetensors");
    fs::write(&damage, &fs::read(&damage).unwrap()[1..]).unwrap();
    let refused = place.run(&["checkpoint", "verify", "from-1"]);
    assert!(refused.stdout.contains("adapter_model.safetensors"), "{}", refused.stdout);
}

#[test]
fn an_adapter_generates_and_evaluates_as_the_merged_model_does_and_learning_goes_on_with_it() {
    let place = place();
    place.run(&arguments("run")).succeeded();
    place.run(&["merge", "run/checkpoint-5", "merged"]).succeeded();
    let continued = |model: &str| {
        let greedy = ["--prompt", "prompt 3", "--temperature", "0", "--max-new-tokens", "24"];
        place.run(&[&["generate", "--model", model], &greedy[..]].concat()).succeeded().stdout.clone()
    };
    assert_eq!(continued("run/checkpoint-5"), continued("merged"));
    assert_ne!(continued("run/checkpoint-5"), continued(tiny()), "the adapter has learned nothing");
    let again = place.run(&["merge", "run/checkpoint-5", "merged"]);
    assert!(again.code == Some(2) && again.error().contains("already exists"), "{}", again.stderr);
    assert!(place.run(&["merge", "merged", "twice"]).error().contains("not an adapter"));

    let evaluated = |model: &str| -> Value {
        let on = ["--algorithm", "sft", "--learn-from", "dataset", "--dataset", "answers.jsonl", "--json"];
        let said = place.run(&[&["eval", "--model", model], &on[..]].concat()).succeeded().stdout.clone();
        serde_json::from_str(&said).unwrap()
    };
    let loss = |model: &str| evaluated(model)["eval_loss"].as_f64().unwrap();
    let (adapter, merged, base) = (loss("run/checkpoint-5"), loss("merged"), loss(tiny()));
    assert!((adapter - merged).abs() < 1e-5 && (adapter - base).abs() > 1e-3, "{adapter} {merged} {base}");

    // With an adapter's folder as the model, that adapter is what the run begins with and measures
    // itself by.
    let mut next = arguments("next");
    next.truncate(next.len() - 4);
    next.extend(["--model", "run/checkpoint-5"]);
    place.run(&next).succeeded();
    assert_eq!(place.figure("next", "kl")[0], 0.0);
    assert!(place.figure("next", "kl")[4] > 0.0);
    let settings = fs::read_to_string(place.path("next/config.toml")).unwrap();
    assert!(settings.contains("lora_r = 4") && settings.contains("use_peft = true"), "{settings}");
    place.copy("next", "resumed");
    place.run(&["resume", "resumed", "--step", "2"]).succeeded();
    assert_same(&place, "resumed", "next");
    let other = place.run(&[&next[..], &["--lora-r", "8", "--output-dir", "other"]].concat());
    assert!(other.code == Some(2) && other.error().contains("lora_r"), "{}", other.stderr);
}

#[test]
fn a_critic_is_trained_beside_an_adapter_and_resumes_with_it() {
    let place = place();
    let mut ppo = arguments("ppo");
    ppo.extend(["--algorithm", "ppo", "--model", tiny(), "--lora-target-modules", "q_proj", "v_proj"]);
    ppo.retain(|argument| *argument != "--beta" && *argument != "0.1");
    let adapted = 2 * 2 * 2;
    for (value_model, file, own, moments) in [
        ("policy", "trainer/value_model/adapter_model.safetensors", adapted + 1, adapted + adapted + 1),
        (tiny(), "trainer/value_model/adapter_model.safetensors", adapted + 1, adapted + adapted + 1),
        ("shared", "trainer/critic.safetensors", 2, adapted + 2),
    ] {
        let of = |run: &str| format!("{run}/checkpoint-5/{file}");
        place.run(&[&ppo[..], &["--value-model", value_model]].concat()).succeeded();
        assert_eq!(tensors(&place, &of("ppo")).len(), own);
        assert_eq!(tensors(&place, "ppo/checkpoint-5/trainer/optimizer.safetensors").len(), 2 * moments);
        place.copy("ppo", "resumed");
        place.run(&["resume", "resumed", "--step", "3"]).succeeded();
        assert_same(&place, "resumed", "ppo");
        assert!(place.tensors(&of("resumed")) == place.tensors(&of("ppo")), "{value_model}");
        for run in ["ppo", "resumed"] {
            fs::remove_dir_all(place.path(run)).unwrap();
        }
    }
}

/// Settings of an adapter with magnitudes and modules that are trained whole; the second is a norm of each layer and the last.
const KINDS: [&str; 6] = ["--use-dora", "--lora-dropout", "0.1", "--lora-modules-to-save", "lm_head", "norm"];

#[test]
fn magnitudes_and_modules_trained_whole_resume_fork_and_merge() {
    let place = place();
    let whole = [&arguments("whole")[..], &KINDS].concat();
    place.run(&whole).succeeded();
    let adapter = tensors(&place, "whole/checkpoint-5/adapter_model.safetensors");
    assert_eq!(adapter.len(), LAYERS * (3 * 7 + 2) + 2, "{adapter:?}");
    for name in ["lm_head.weight", "model.norm.weight", "model.layers.1.mlp.up_proj.lora_magnitude_vector"] {
        assert!(adapter.contains(&format!("base_model.model.{name}")), "{adapter:?}");
    }
    assert_eq!(tensors(&place, "whole/checkpoint-5/trainer/optimizer.safetensors").len(), 2 * adapter.len());
    let config: Value = serde_json::from_slice(&fs::read(place.path("whole/checkpoint-5/adapter_config.json")).unwrap()).unwrap();
    assert_eq!(config["use_dora"], true);
    let modules = config["modules_to_save"].as_array().unwrap();
    assert!(modules.contains(&"lm_head".into()) && modules.contains(&"model.norm".into()), "{modules:?}");
    let divergences = place.figure("whole", "kl");
    // Dropout parts the products, which then round otherwise.
    assert!(divergences[0] < 1e-9 && divergences[4] > 1e-6, "the reference has the base's modules: {divergences:?}");

    for step in [1, 4] {
        let name = format!("from-{step}");
        place.copy("whole", &name);
        place.run(&["resume", &name, "--step", &step.to_string()]).succeeded();
        assert_same(&place, &name, "whole");
    }
    let fork = ["--resume-from-checkpoint", "whole/checkpoint-2", "--max-steps", "3", "--output-dir"];
    place.run(&[&fork[..], &["fork"]].concat()).succeeded();
    let forked = tensors(&place, "fork/checkpoint-3/adapter_model.safetensors");
    assert_eq!(forked, adapter);
    for (given, said) in
        [(&["--use-dora", "false"][..], "DoRA"), (&["--lora-modules-to-save", "embed_tokens"], "beside embed_tokens")]
    {
        let refused = place.run(&[&fork[..], &["refused"], given].concat());
        assert!(refused.code == Some(2) && refused.error().contains(said), "{given:?}: {}", refused.stderr);
    }

    place.run(&["merge", "whole/checkpoint-5", "merged"]).succeeded();
    let config = fs::read_to_string(place.path("merged/config.json")).unwrap();
    assert!(config.contains("\"tie_word_embeddings\": false"), "{config}");
    let continued = |model: &str| {
        let greedy = ["--prompt", "prompt 3", "--temperature", "0", "--max-new-tokens", "24"];
        place.run(&[&["generate", "--model", model], &greedy[..]].concat()).succeeded().stdout.clone()
    };
    assert_eq!(continued("whole/checkpoint-5"), continued("merged"));
    assert_ne!(continued("whole/checkpoint-5"), continued(tiny()), "the adapter has learned nothing");

    // What an adapter's folder has, goes on with it.
    let mut next = arguments("next");
    next.truncate(next.len() - 6);
    next.extend(["--model", "whole/checkpoint-5", "--lora-dropout", "0"]);
    place.run(&next).succeeded();
    assert_eq!(tensors(&place, "next/checkpoint-5/adapter_model.safetensors"), adapter);
    assert_eq!(place.figure("next", "kl")[0], 0.0);
    place.copy("next", "resumed");
    place.run(&["resume", "resumed", "--step", "2"]).succeeded();
    assert_same(&place, "resumed", "next");
}

#[test]
fn magnitudes_and_whole_modules_are_trained_over_quantized_weights_and_beside_a_value_model() {
    let place = place();
    let quantized = [&arguments("quantized")[..], &KINDS, &["--load-in-4bit"]].concat();
    let mut ppo = [&arguments("ppo")[..], &KINDS, &["--algorithm", "ppo"]].concat();
    ppo.retain(|argument| *argument != "--beta" && *argument != "0.1");
    ppo.retain(|argument| *argument != "--lora-dropout" && *argument != "0");
    for (run, arguments) in [("quantized", quantized), ("ppo", ppo)] {
        place.run(&arguments).succeeded();
        place.copy(run, "resumed");
        place.run(&["resume", "resumed", "--step", "3"]).succeeded();
        assert_same(&place, "resumed", run);
        if run == "ppo" {
            let of = |run: &str| format!("{run}/checkpoint-5/trainer/value_model/adapter_model.safetensors");
            let own = tensors(&place, &of("ppo"));
            assert!(
                own.iter().any(|name| name.ends_with("model.norm.weight")) && !own.iter().any(|name| name.contains("lm_head"))
            );
            assert!(place.tensors(&of("resumed")) == place.tensors(&of("ppo")));
        }
        fs::remove_dir_all(place.path("resumed")).unwrap();
    }
}

#[test]
fn an_adapter_learns_ten_times_as_fast_by_default() {
    let place = place();
    let rate = |run: &str, more: &[&str]| -> f64 {
        let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "1", "--output-dir", run];
        place.run(&[&sft[..], more].concat()).succeeded();
        let settings = fs::read_to_string(place.path(run).join("config.toml")).unwrap();
        let line = settings.lines().find_map(|line| line.strip_prefix("learning_rate = ")).unwrap();
        line.parse().unwrap()
    };
    let (all, adapter) = (rate("all", &[]), rate("adapter", &["--use_peft"]));
    assert!((adapter / all - 10.0).abs() < 1e-9, "{adapter} and {all}");
}

#[test]
fn settings_that_no_adapter_can_have_are_refused_by_name() {
    let place = place();
    for (given, key, said) in [
        (&["--lora_dropout", "1"][..], "lora_dropout", "less than 1"),
        (&["--lora-target-modules", "q_porj"], "lora_target_modules", "q_proj"),
        (&["--lora-r", "0"], "lora_r", "at least 1"),
        (&["--sync-ref-model"], "sync_ref_model", "is the base model"),
        (&["--lora-modules-to-save", "q_proj"], "lora_modules_to_save", "has an adapter instead"),
        (&["--lora-modules-to-save", "lm_haed"], "lora_modules_to_save", "lm_head"),
        (&["--lora-modules-to-save", "score"], "lora_modules_to_save", "head of a reward model"),
    ] {
        let refused = place.run(&[&arguments("refused")[..], given].concat());
        assert_eq!(refused.code, Some(2), "{given:?}");
        assert!(refused.error().contains(key) && refused.error().contains(said), "{}", refused.stderr);
    }
    let plain = ["--plugin", "tldr_length_reward.wasm", "--max-steps", "1", "--lora-alpha", "8", "--output-dir", "refused"];
    assert!(place.run(&plain).error().contains("use_peft"));
    assert!(!place.path("refused").exists());

    place.run(&[&arguments("run")[..], &["--max-steps", "1"]].concat()).succeeded();
    let fork = ["--resume-from-checkpoint", "run/checkpoint-1", "--output-dir", "fork", "--max-steps", "2"];
    place.run(&fork).succeeded();
    let wider = place.run(&[&fork[..], &["--output-dir", "wider", "--lora-r", "8"]].concat());
    assert!(wider.code == Some(2) && wider.error().contains("rank 4"), "{}", wider.stderr);
}

#[test]
fn an_adapter_whose_product_is_not_finite_is_not_merged() {
    let place = TestFolder::new();
    place.write("rows.jsonl", "{\"text\": \"some text\"}\n".repeat(8));
    let run = ["sft", "--model", tiny(), "--dataset", "rows.jsonl", "--lora-r", "2", "--max-steps", "1", "--output-dir", "run"];
    place.run(&run).succeeded();
    let file = place.path("run/checkpoint-1/adapter_model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].as_chunks_mut::<4>().0.iter_mut().for_each(|value| *value = 3e38f32.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let exports = ["export", "run/checkpoint-1", "out", "--format", "gguf", "--dtype", "f32"];
    for refused in [&["merge", "run/checkpoint-1", "out"][..], &exports] {
        let outcome = place.run(refused);
        assert!(outcome.code == Some(2) && outcome.stderr.contains(".weight has values "), "{}", outcome.stderr);
        assert!(!place.path("out").exists());
    }
}
