//! The critic of PPO: a value model of its own, or a head on the policy.

use rlhost_tests::{CommandOutcome, STORIES, TestFolder, seal, tiny};
use std::collections::BTreeMap;
use std::fs;

/// Steps of a run that trains on one generation alone, so that what the critic learns can reach the policy only by its gradient.
const ONE_GENERATION: [&str; 4] = ["--num-iterations", "3", "--max-steps", "3"];

fn run(place: &TestFolder, name: &str, more: &[&str]) -> CommandOutcome {
    let mut arguments = vec!["--algorithm", "ppo", "--model", tiny(), "--output-dir", name, "--logging-steps", "1"];
    arguments.extend(["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "12", "--num-generations", "2"]);
    arguments.extend(["--dataset", STORIES, "--learning-rate", "0.002", "--per-device-train-batch-size", "4"]);
    arguments.extend(more);
    place.run(&arguments)
}

/// The tensors of a checkpoint's policy.
fn policy(place: &TestFolder, run: &str, step: u64) -> BTreeMap<String, Vec<u8>> {
    place.tensors(&format!("{run}/checkpoint-{step}/model.safetensors"))
}

/// Those of its value model.
fn value_model(place: &TestFolder, run: &str, step: u64) -> BTreeMap<String, Vec<u8>> {
    place.tensors(&format!("{run}/checkpoint-{step}/trainer/value_model/model.safetensors"))
}

#[test]
fn the_value_loss_trains_the_value_model_and_not_the_policy() {
    let place = TestFolder::new();
    let with = |name: &str, vf_coef: &str, own: &[&str]| {
        run(&place, name, &[&ONE_GENERATION[..], &["--vf-coef", vf_coef], own].concat()).succeeded();
    };
    with("little", "0.1", &[]);
    with("much", "5", &[]);
    assert!(policy(&place, "little", 3) == policy(&place, "much", 3), "the value loss changes the policy");
    assert_eq!(place.figure("little", "grad_norm"), place.figure("much", "grad_norm"));
    assert!(value_model(&place, "little", 3) != value_model(&place, "much", 3));
    assert_ne!(place.figure("little", "critic_grad_norm"), place.figure("much", "critic_grad_norm"));
    // The same with a head on the policy is another policy.
    with("little-shared", "0.1", &["--value-model", "shared"]);
    with("much-shared", "5", &["--value-model", "shared"]);
    assert!(policy(&place, "little-shared", 3) != policy(&place, "much-shared", 3));
    assert!(!place.path("little-shared/checkpoint-3/trainer/value_model").exists());
}

#[test]
fn a_critic_has_its_own_rate() {
    let place = TestFolder::new();
    // All parameters but its head are the policy's first.
    let still = ["--critic-learning-rate", "0", "--max-steps", "2"];
    run(&place, "still", &still).succeeded();
    let (before, after) = (place.tensors(&format!("{}/model.safetensors", tiny())), value_model(&place, "still", 2));
    assert!(after.iter().filter(|(name, _)| *name != "score.weight").all(|(name, bytes)| before[name] == *bytes));
    assert!(after["score.weight"].iter().all(|byte| *byte == 0), "its head values everything at zero");
    assert!(after.keys().all(|name| name != "lm_head.weight") && after.len() == before.len());
    assert!(policy(&place, "still", 2) != before);
    assert_eq!(place.figure("still", "critic_learning_rate"), [0.0, 0.0]);

    run(&place, "shared", &[&still[..], &["--value-model", "shared"]].concat()).succeeded();
    assert!(place.tensors("shared/checkpoint-2/trainer/critic.safetensors").values().flatten().all(|byte| *byte == 0));
    assert_eq!(place.figure("shared", "critic_learning_rate"), [0.0, 0.0]);

    // As the policy's own, by the number of parameters: OpenRLHF's is three times TRL's.
    let size = ["--algorithm", "ppo", "--plugin", "tldr_length_reward.wasm", "--dataset", STORIES, "--model", tiny()];
    let more =
        ["--max-steps", "1", "--per-device-train-batch-size", "2", "--num-generations", "2", "--max-completion-length", "4"];
    place.run(&[&size[..], &more, &["--output-dir", "default"]].concat()).succeeded();
    let settings = fs::read_to_string(place.path("default/config.toml")).unwrap();
    let rate = |key: &str| {
        let line = settings.lines().find_map(|line| line.strip_prefix(&format!("{key} = "))).unwrap();
        line.parse::<f64>().unwrap()
    };
    let times = rate("critic_learning_rate") / rate("learning_rate");
    // It has no output matrix, and so fewer parameters.
    let fewer = 1.0 - after.values().map(Vec::len).sum::<usize>() as f64 / before.values().map(Vec::len).sum::<usize>() as f64;
    assert!((times * (1.0 - fewer) / 3.0 - 1.0).abs() < 0.01, "{times} {fewer}");
}

#[test]
fn the_values_are_those_of_the_saved_model_and_a_folders_head_is_used() {
    let place = TestFolder::new();
    // Without a divergence in the rewards, nothing depends on where a run began.
    let evaluated = ["--eval-dataset", STORIES, "--kl-coef", "0", "--save-steps", "1"];
    run(&place, "first", &[&evaluated[..], &["--max-steps", "2", "--eval-steps", "1"]].concat()).succeeded();
    let losses = |run: &str| -> Vec<f64> {
        place.lines(&format!("{run}/metrics.jsonl")).iter().filter_map(|line| line["eval_loss/value_avg"].as_f64()).collect()
    };
    // The first step's weights, in a run of their own: the same completions and the same values of them.
    let checkpoint = place.path("first/checkpoint-1").display().to_string();
    let (model, value_model_of) = (["--model", &checkpoint], format!("{checkpoint}/trainer/value_model"));
    let begun = [&evaluated[..], &model, &["--eval-on-start", "--max-steps", "1", "--critic-learning-rate", "0"]].concat();
    run(&place, "other", &[&begun[..], &["--value-model", &value_model_of]].concat()).succeeded();
    run(&place, "zero", &begun).succeeded();
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-5;
    assert!(near(losses("other")[0], losses("first")[0]), "{:?} {:?}", losses("other"), losses("first"));
    assert!(!near(losses("zero")[0], losses("first")[0]), "{:?} {:?}", losses("zero"), losses("first"));
    assert!(value_model(&place, "other", 1) == value_model(&place, "first", 1));
    assert!(value_model(&place, "zero", 1)["score.weight"].iter().all(|byte| *byte == 0));
    let config = fs::read_to_string(place.path("first/checkpoint-1/trainer/value_model/config.json")).unwrap();
    assert!(config.contains("LlamaForSequenceClassification") && config.contains("\"0\": \"LABEL_0\""), "{config}");
}

#[test]
fn a_step_that_fails_for_the_critic_leaves_the_policy_as_it_was() {
    let place = TestFolder::new();
    // The first step's rate is zero.
    let more = ["--critic-learning-rate", "1e39", "--warmup-steps", "1", "--max-steps", "3"];
    let failed = run(&place, "run", &more);
    assert!(failed.code == Some(1) && failed.error().contains("critic_learning_rate"), "{}", failed.stderr);
    assert!(policy(&place, "run", 1) == place.tensors(&format!("{}/model.safetensors", tiny())));
    place.run(&["checkpoint", "verify", "run/checkpoint-1"]).succeeded();
}

#[test]
fn a_run_from_before_there_were_value_models_keeps_its_head_to_the_bit() {
    let place = TestFolder::new();
    let more = ["--max-steps", "4", "--save-steps", "1", "--value-model", "shared"];
    run(&place, "whole", &more).succeeded();
    place.copy("whole", "old");
    // Older versions left the first one.
    for file in ["old/.config.toml", "old/config.toml", "old/checkpoint-2/trainer/config.toml"] {
        let text = fs::read_to_string(place.path(&file.replace("/.", "/"))).unwrap();
        assert!(text.contains("value_model = \"shared\"\n"));
        fs::write(place.path(file), text.replace("value_model = \"shared\"\n", "")).unwrap();
    }
    seal(&place.path("old/checkpoint-2"), &[]);
    let resumed = place.run(&["resume", "old", "--step", "2"]);
    resumed.succeeded();
    assert!(resumed.stderr.contains("stays \"shared\""), "{}", resumed.stderr);
    place.assert_same_end("old", "whole", 4, "model.safetensors");
    place.assert_same_end("old", "whole", 4, "trainer/critic.safetensors");
}

#[test]
fn a_fork_continues_with_the_value_model_or_begins_with_another() {
    let place = TestFolder::new();
    run(&place, "run", &["--max-steps", "2", "--save-steps", "1"]).succeeded();
    let fork = |name: &str, more: &[&str]| {
        let all = [
            "--resume-from-checkpoint",
            "run/checkpoint-2",
            "--output-dir",
            name,
            "--max-steps",
            "3",
            "--critic-learning-rate",
            "0",
        ];
        place.run(&[&all[..], more].concat()).succeeded();
    };
    fork("same", &[]);
    assert!(value_model(&place, "same", 3) == value_model(&place, "run", 2));
    fork("anew", &["--value-model", tiny()]);
    assert!(value_model(&place, "anew", 3)["score.weight"].iter().all(|byte| *byte == 0));
    fork("shorter", &["--value-model", "run/checkpoint-1/trainer/value_model", "--save-only-model", "true"]);
    assert!(value_model(&place, "shorter", 3) == value_model(&place, "run", 1));
    assert!(!place.path("shorter/checkpoint-3/trainer/optimizer.safetensors").exists());
}

#[test]
fn value_models_that_do_not_fit_are_refused_by_name() {
    let place = TestFolder::new();
    let refused = |more: &[&str], words: &[&str]| {
        let outcome = run(&place, "run", more);
        assert!(outcome.code == Some(2) && words.iter().all(|word| outcome.error().contains(word)), "{}", outcome.stderr);
        assert!(!place.path("run").exists());
    };
    refused(&["--value-model", "nowhere"], &["value_model", "nowhere", "shared"]);
    refused(&["--critic-learning-rate", "-1"], &["critic_learning_rate", "0 or greater"]);
    for key in ["--value-model", "--critic-learning-rate"] {
        refused(&["--algorithm", "grpo", key, "0.5"], &[&key[2..].replace('-', "_"), "grpo has no critic"]);
    }
    // One of fewer tokens, and one with two outputs.
    let config = fs::read_to_string(format!("{}/config.json", tiny())).unwrap().replace("257", "200");
    fs::create_dir(place.path("few")).unwrap();
    fs::write(place.path("few/config.json"), config).unwrap();
    refused(&["--value-model", "few"], &["value_model", "200 tokens", "257"]);
}
