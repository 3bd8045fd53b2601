//! The reference model that is asked once, follows the policy, or is named.

use rlhost_tests::{TestFolder, tiny};
use serde_json::Value;
use std::fs;

#[test]
fn a_reference_that_is_all_policy_leaves_dpo_at_ln_2() {
    let place = TestFolder::with_answers();
    let dpo = ["--model", tiny(), "--algorithm", "dpo", "--dataset", "pairs.jsonl", "--learning-rate", "0.001"];
    let often = ["--logging-steps", "1", "--save-steps", "1", "--max-steps", "6"];
    let sync = ["--sync-ref-model", "--ref-model-sync-steps", "1", "--ref-model-mixup-alpha", "1", "--output-dir", "all"];
    place.run(&[&dpo[..], &often, &sync].concat()).succeeded();
    for loss in place.figure("all", "loss") {
        assert!((loss - std::f64::consts::LN_2).abs() < 1e-6, "{loss}");
    }
    let half = ["--sync-ref-model", "--ref-model-sync-steps", "2", "--output-dir", "half"];
    place.run(&[&dpo[..], &often, &half].concat()).succeeded();
    place.run(&[&dpo[..], &often, &["--output-dir", "none"]].concat()).succeeded();
    let (half, none) = (place.figure("half", "loss"), place.figure("none", "loss"));
    assert_eq!(half[..2], none[..2]);
    assert!(half[2] > none[2] + 1e-4, "{half:?} {none:?}");
    // The reference is the old one, 0.4 parts, and the policy of step 2, 0.6 parts.
    let weights = |file: &str| -> Vec<f32> {
        let bytes = &place.tensors(file)["lm_head.weight"];
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let (old, new) = (weights(&format!("{}/model.safetensors", tiny())), weights("half/checkpoint-2/model.safetensors"));
    for ((mixed, old), new) in weights("half/checkpoint-2/trainer/reference.safetensors").iter().zip(&old).zip(&new) {
        assert!((mixed - (0.4 * old + 0.6 * new)).abs() < 1e-7, "{mixed} of {old} and {new}");
    }
    for step in [1, 2, 3] {
        place.assert_resumes("half", step, 6, "model.safetensors");
    }
}

#[test]
fn a_reference_that_is_asked_once_says_the_same() {
    let place = TestFolder::with_answers();
    let dpo = ["--model", tiny(), "--algorithm", "dpo", "--dataset", "pairs.jsonl", "--learning-rate", "0.001"];
    let steps = ["--logging-steps", "1", "--max-steps", "6", "--eval-dataset", "pairs.jsonl", "--output-dir"];
    place.run(&[&dpo[..], &steps, &["each"]].concat()).succeeded();
    place.run(&[&dpo[..], &steps, &["once", "--precompute-ref-log-probs"]].concat()).succeeded();
    for (once, each) in
        place.lines_without_times("once/metrics.jsonl").iter().zip(place.lines_without_times("each/metrics.jsonl"))
    {
        for (name, each) in each.as_object().unwrap().iter().filter(|(name, _)| *name != "versions") {
            let (once, each) = (once[name].as_f64().unwrap(), each.as_f64().unwrap());
            assert!((once - each).abs() <= 1e-5 * each.abs().max(0.1), "{name}: {once} and {each}");
        }
    }
    place.write("prompts.jsonl", "{\"prompt\": \"a prompt\"}\n".repeat(8));
    let grpo = ["--model", tiny(), "--plugin", "tldr_length_reward.wasm", "--dataset", "prompts.jsonl", "--output-dir", "online"];
    let online = place.run(&[&grpo[..], &["--beta", "0.1", "--precompute-ref-log-probs"]].concat());
    assert!(online.code == Some(2) && online.error().contains("precompute_ref_log_probs"), "{}", online.stderr);
    let both = place.run(&[&dpo[..], &["--precompute-ref-log-probs", "--sync-ref-model"]].concat());
    assert!(both.code == Some(2) && both.error().contains("sync_ref_model"), "{}", both.stderr);
}

/// What an evaluation by an algorithm of given answers says of a model.
fn evaluate(place: &TestFolder, algorithm: &str, model: &str, more: &[&str]) -> Value {
    let base = ["eval", "--model", model, "--algorithm", algorithm, "--json", "--dataset"];
    let data = if algorithm == "kto" { "label.jsonl" } else { "pair.jsonl" };
    serde_json::from_str(&place.run(&[&base[..], &[data], more].concat()).succeeded().stdout).unwrap()
}

/// A place with one pair, one labelled answer, and a model other than the tiny one, in bf16 too.
fn place_of_two() -> TestFolder {
    let place = TestFolder::with_answers();
    place.write("pair.jsonl", "{\"prompt\": \"p\", \"chosen\": \" abab\", \"rejected\": \" xyz\"}\n");
    let labelled =
        |completion: &str, label: bool| format!("{{\"prompt\": \"p\", \"completion\": \"{completion}\", \"label\": {label}}}\n");
    place.write("label.jsonl", labelled(" abab", true) + &labelled(" xyz", false));
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "5", "--learning-rate", "0.005"];
    place.run(&[&sft[..], &["--output-dir", "other"]].concat()).succeeded();
    place.run(&["export", "other/checkpoint-5", "half", "--dtype", "bf16"]).succeeded();
    place
}

#[test]
fn a_named_reference_model_is_what_the_policy_is_compared_with() {
    let place = place_of_two();
    let number = |of: &Value, name: &str| of[name].as_f64().unwrap_or_else(|| panic!("no {name} in {of}"));
    let margin = |model: &str| {
        let own = evaluate(&place, "dpo", model, &[]);
        number(&own, "eval_logps/chosen") - number(&own, "eval_logps/rejected")
    };
    for (reference, more) in [("other/checkpoint-5", &[][..]), ("half", &[]), ("half", &["--lora-r", "2"])] {
        let got = evaluate(&place, "dpo", tiny(), &[&["--ref-model", reference, "--beta", "0.5"], more].concat());
        let logit = 0.5 * (margin(tiny()) - margin(reference));
        // -ln sigmoid
        let want = (1.0 + (-logit).exp()).ln();
        assert!(logit.abs() > 1e-3 && (number(&got, "eval_loss") - want).abs() < 1e-6, "{reference}: {got}, not {want}");
    }
    // Between a model and itself there is nothing but rounding, though it is asked twice.
    let dpo = ["--model", tiny(), "--algorithm", "dpo", "--dataset", "pairs.jsonl", "--learning-rate", "0.001"];
    let steps = ["--logging-steps", "1", "--max-steps", "4", "--output-dir"];
    place.run(&[&dpo[..], &steps, &["default"]].concat()).succeeded();
    for (run, more) in [("itself", &[][..]), ("asked-once", &["--precompute-ref-log-probs"])] {
        place.run(&[&dpo[..], &["--ref_model_name_or_path", tiny()], &steps, &[run], more].concat()).succeeded();
        for (got, want) in place.figure(run, "loss").iter().zip(place.figure("default", "loss")) {
            assert!((got - want).abs() < 1e-6, "{run}: {got} and {want}");
        }
    }
    // KTO's rewards are beta times the log-ratios.
    let (policy, reference) = (evaluate(&place, "kto", tiny(), &[]), evaluate(&place, "kto", "half", &[]));
    let got = evaluate(&place, "kto", tiny(), &["--ref-model", "half", "--beta", "0.5"]);
    for side in ["chosen", "rejected"] {
        let logps = format!("eval_logps/{side}");
        let want = 0.5 * (number(&policy, &logps) - number(&reference, &logps));
        let got = number(&got, &format!("eval_rewards/{side}"));
        assert!((got - want).abs() < 1e-5, "{side}: {got}, not {want}");
    }
}

#[test]
fn a_run_with_a_named_reference_model_resumes_exactly_and_may_have_it_follow_the_policy() {
    let place = place_of_two();
    let run = |name: &str, algorithm: &str, more: &[&str]| {
        let base = ["--model", tiny(), "--algorithm", algorithm, "--dataset", "pairs.jsonl", "--ref-model", "half"];
        let steps = ["--learning-rate", "0.001", "--logging-steps", "1", "--save-steps", "1", "--max-steps", "4"];
        place.run(&[&base[..], &steps, &["--output-dir", name], more].concat()).succeeded();
    };
    run("plain", "dpo", &[]);
    run("labelled", "kto", &[]);
    run("adapted", "dpo", &["--lora-r", "2"]);
    run("synced", "dpo", &["--sync-ref-model", "--ref-model-sync-steps", "2"]);
    for name in ["plain", "labelled", "adapted", "synced"] {
        let weights = if name == "adapted" { "adapter_model.safetensors" } else { "model.safetensors" };
        for step in 1..4 {
            place.assert_resumes(name, step, 4, weights);
        }
    }
    let config = fs::read_to_string(place.path("plain/checkpoint-4/trainer/config.toml")).unwrap();
    assert!(config.contains(&format!("ref_model = \"{}\"", place.path("half").display())), "{config}");
    let other = place.run(&["--resume-from-checkpoint", "plain/checkpoint-2", "--output-dir", "plain", "--ref-model", tiny()]);
    assert!(other.code == Some(2) && other.error().contains("ref_model"), "{}", other.stderr);
    // A fork that names another begins with that, whatever the first has become.
    place.copy("half", "same-weights");
    let fork = |name: &str, reference: &str| {
        let fork = ["--resume-from-checkpoint", "synced/checkpoint-3", "--output-dir", name, "--ref-model", reference];
        place.run(&fork).succeeded();
        place.figure(name, "rewards/margins")[0]
    };
    let (followed, anew, whole) =
        (fork("followed", "half"), fork("anew", "same-weights"), place.figure("synced", "rewards/margins"));
    assert!(followed == whole[3] && (anew - followed).abs() > 1e-4, "{followed} {anew} {whole:?}");
    // One that no longer follows stays what it was, also when that run goes on.
    let fork = ["--resume-from-checkpoint", "synced/checkpoint-2", "--output-dir", "still", "--set", "sync_ref_model=false"];
    place.run(&fork).succeeded();
    place.assert_resumes("still", 3, 4, "model.safetensors");
}

#[test]
fn what_a_resumed_run_reads_again_must_be_what_it_was() {
    let place = place_of_two();
    let other = place.path("other/checkpoint-5");
    let begin = |name: &str, algorithm: &str, more: &[&str]| {
        let base = ["--algorithm", algorithm, "--max-steps", "2", "--save-steps", "1", "--output-dir", name];
        place.run(&[&base[..], more].concat()).succeeded();
        fs::remove_dir_all(place.path(&format!("{name}/checkpoint-2"))).unwrap();
    };
    let resume = |name: &str, more: &[&str]| place.run(&[&["resume", name], more].concat());
    let own = |name: &str| {
        let export = ["export", tiny(), name];
        place.run(&export).succeeded();
        name.to_owned()
    };
    let answers = fs::read_to_string(place.path("answers.jsonl")).unwrap();
    place.write("evaluated.jsonl", &answers);
    let (reference, start, base) = (own("reference"), own("start"), own("base"));
    begin("named", "dpo", &["--dataset", "pairs.jsonl", "--model", tiny(), "--ref-model", &reference]);
    begin("own", "dpo", &["--dataset", "pairs.jsonl", "--model", &start]);
    begin("adapter", "dpo", &["--dataset", "pairs.jsonl", "--model", &base, "--lora-r", "2"]);
    let learned = ["--learn-from", "dataset", "--model", tiny(), "--eval-dataset", "evaluated.jsonl"];
    begin("evaluated", "sft", &[&learned[..], &["--dataset", "answers.jsonl"]].concat());
    for name in ["named", "own", "adapter", "evaluated"] {
        place.copy(name, &format!("{name}-same"));
        resume(&format!("{name}-same"), &[]).succeeded();
    }
    for folder in ["reference", "start", "base"] {
        fs::copy(other.join("model.safetensors"), place.path(folder).join("model.safetensors")).unwrap();
    }
    place.write("evaluated.jsonl", answers.replace("ab", "ba"));
    // Another dataset by its name may be meant.
    place.copy("evaluated", "elsewhere");
    resume("elsewhere", &["--set", "eval_dataset=answers.jsonl"]).succeeded();
    for (name, what) in [
        ("named", "the reference model's weights"),
        ("own", "the reference model's weights"),
        ("adapter", "the model's weights under what is trained"),
        ("evaluated", "the rows of eval_dataset"),
    ] {
        let refused = resume(name, &[]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.error().contains(&format!("{what} have changed since the run began")), "{}", refused.error());
        resume(name, &["--allow-changed"]).succeeded();
    }
}

#[test]
fn a_reference_model_that_does_not_fit_is_refused_in_one_line() {
    let place = place_of_two();
    let small = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 257, "rms_norm_eps": 1e-5,
        "max_position_embeddings": CONTEXT, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}"#;
    place.write("corpus.jsonl", "{\"text\": \"nothing\"}");
    for (name, context) in [("small", "192"), ("short", "100")] {
        place.write("config.json", small.replace("CONTEXT", context));
        let corpus = ["--config", "config.json", "--corpus", "corpus.jsonl", "--vocab-size", "257"];
        place.run(&[&["new-model", name], &corpus[..]].concat()).succeeded();
    }
    let sync = ["--sync-ref-model", "--ref-model", "small"];
    for (algorithm, given, key, expected) in [
        ("dpo", &["--ref-model", "nowhere"][..], "ref_model", "nowhere"),
        ("dpo", &["--ref-model", ""], "ref_model", "is empty"),
        ("dpo", &["--ref-model", "short"], "ref_model", "context of 100 tokens and the policy one of 192"),
        ("orpo", &["--ref-model", "half"], "ref_model", "orpo has no reference model"),
        ("dpo", &sync, "sync_ref_model", "a model of different sizes"),
        ("dpo", &["--sync-ref-model", "--ref-model", "half", "--lora-r", "2"], "sync_ref_model", "with an adapter"),
    ] {
        let base = ["--model", tiny(), "--algorithm", algorithm, "--dataset", "pairs.jsonl", "--output-dir", "refused"];
        let refused = place.run(&[&base[..], given].concat());
        assert!(refused.code == Some(2) && refused.error().contains(key), "{given:?}: {}", refused.stderr);
        assert!(refused.error().contains(expected), "{given:?}: {}", refused.stderr);
    }
    assert!(!place.path("refused").exists());
    // One of other sizes is only compared with; a tokenizer of another text is said aloud.
    let base = ["--model", tiny(), "--algorithm", "dpo", "--dataset", "pairs.jsonl", "--max-steps", "1", "--ref-model", "small"];
    let tokenizer = fs::read_to_string(place.path("small/tokenizer.json")).unwrap();
    fs::write(place.path("small/tokenizer.json"), tokenizer + "\n").unwrap();
    let run = place.run(&[&base[..], &["--output-dir", "run"]].concat());
    assert!(run.succeeded().stderr.contains("has another tokenizer.json than the policy"), "{}", run.stderr);
    let warnings = place.events("run", "warning");
    assert!(warnings.iter().any(|event| event["text"].as_str().unwrap().starts_with("ref_model: ")), "{warnings:?}");
}
