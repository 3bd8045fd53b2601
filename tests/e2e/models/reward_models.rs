//! Reward models: training them, what their folders hold, and what they say of texts.

use rlhost_tests::{CommandOutcome, STORIES, TestFolder, assert_near, tiny};
use serde_json::{Value, json};
use std::fs;

/// Pairs whose chosen answer has more of a letter, with a margin each.
fn pairs(place: &TestFolder) {
    let row = |i: usize| {
        let (more, less) = ("z".repeat(1 + i % 5), "ab".repeat(1 + i % 4));
        json!({"prompt": format!("post {i}:"), "chosen": format!(" {more}{less}"), "rejected": format!(" {less}"), "margin": i % 3})
    };
    place.write("pairs.jsonl", (0..24).map(|i| format!("{}\n", row(i))).collect::<String>());
}

fn place() -> TestFolder {
    let place = TestFolder::new();
    pairs(&place);
    place
}

const COMMON: [&str; 10] = [
    "--dataset",
    "pairs.jsonl",
    "--logging-steps",
    "1",
    "--learning-rate",
    "0.003",
    "--center-rewards-coefficient",
    "0.01",
    "--per-device-train-batch-size",
    "4",
];

fn train(place: &TestFolder, run: &str, more: &[&str]) -> CommandOutcome {
    place.run(&[&["reward", "--model", tiny(), "--output-dir", run], &COMMON[..], more].concat())
}

/// Each row's scores of the pairs.
fn scores(place: &TestFolder, model: &str) -> Vec<(f64, f64)> {
    let lines = place.score(model, "pairs.jsonl");
    lines.iter().map(|line| (line["chosen"].as_f64().unwrap(), line["rejected"].as_f64().unwrap())).collect()
}

#[test]
fn a_reward_model_learns_its_pairs_and_its_folder_is_one_for_sequence_classification() {
    let place = place();
    let outcome = train(&place, "run", &["--max-steps", "30", "--learning-rate", "0.01"]);
    assert!(outcome.succeeded().stdout.contains("rlhost score"), "{}", outcome.stdout);
    assert!(place.figure("run", "accuracy")[25..].iter().all(|accuracy| *accuracy == 1.0));
    let lines = place.lines("run/metrics.jsonl");
    for line in &lines {
        let figure = |name: &str| line[name].as_f64().unwrap();
        assert!(figure("min_reward") <= figure("mean_reward") && figure("mean_reward") <= figure("max_reward"), "{line}");
    }
    let last = "run/checkpoint-30";
    let tensors = place.tensors(&format!("{last}/model.safetensors"));
    assert!(tensors.contains_key("score.weight") && !tensors.contains_key("lm_head.weight"), "{:?}", tensors.keys());
    let config: Value = serde_json::from_slice(&fs::read(place.path(&format!("{last}/config.json"))).unwrap()).unwrap();
    assert_eq!(config["architectures"][0], "LlamaForSequenceClassification");
    // The ending token, where the tokenizer has no token for padding.
    assert_eq!((config["pad_token_id"].as_u64(), config["id2label"]["0"].as_str()), (Some(0), Some("LABEL_0")));
    let scores = scores(&place, "run");
    assert!(scores.len() == 24 && scores.iter().all(|(chosen, rejected)| chosen > rejected), "{scores:?}");
}

#[test]
fn a_run_resumed_from_any_step_ends_as_the_uninterrupted_one() {
    let place = place();
    for (name, more, weights) in
        [("whole", &[][..], "model.safetensors"), ("adapter", &["--lora-r", "2"], "adapter_model.safetensors")]
    {
        train(&place, name, &[&["--max-steps", "8", "--save-steps", "1", "--logging-steps", "3"], more].concat()).succeeded();
        for step in 1..8 {
            place.assert_resumes(name, step, 8, weights);
        }
    }
    let adapter = place.tensors("adapter/checkpoint-8/adapter_model.safetensors");
    assert!(adapter.contains_key("base_model.model.score.weight"), "{:?}", adapter.keys());
    let config = fs::read_to_string(place.path("adapter/checkpoint-8/adapter_config.json")).unwrap();
    assert!(config.contains("SEQ_CLS") && config.contains("\"score\""), "{config}");
}

#[test]
fn accumulation_and_a_limit_of_tokens_change_nothing_but_rounding() {
    let place = place();
    let size = |rows: &'static str, steps: &'static str| {
        [
            "--max-steps",
            "4",
            "--learning-rate",
            "3e-4",
            "--per-device-train-batch-size",
            rows,
            "--gradient-accumulation-steps",
            steps,
        ]
    };
    train(&place, "one", &size("8", "1")).succeeded();
    train(&place, "four", &size("2", "4")).succeeded();
    train(&place, "cut", &[&size("8", "1")[..], &["--max-tokens-per-microbatch", "40"]].concat()).succeeded();
    train(&place, "again", &[&size("8", "1")[..], &["--gradient-checkpointing"]].concat()).succeeded();
    let named = ["loss", "grad_norm", "accuracy", "margin", "min_reward", "mean_reward", "max_reward", "num_tokens"];
    let figures = |run: &str| -> Vec<Vec<(String, f64)>> {
        let all = place.figures(run).into_iter();
        all.map(|step| step.into_iter().filter(|(name, _)| named.contains(&name.as_str())).collect()).collect()
    };
    assert_eq!(figures("one")[0].len(), named.len());
    for run in ["four", "cut", "again"] {
        assert_near(&figures(run), &figures("one"), run);
    }
}

#[test]
fn a_text_has_the_same_score_alone_beside_others_and_where_training_began_from_it() {
    let place = place();
    train(&place, "run", &["--max-steps", "2"]).succeeded();
    let together = scores(&place, "run/checkpoint-2");
    let rows = place.lines("pairs.jsonl");
    let one = |i: usize| json!({"prompt": rows[i]["prompt"], "completion": rows[i]["chosen"]});
    let whole = |i: usize| {
        let text = |name: &str| rows[i][name].as_str().unwrap().to_owned();
        json!({"text": text("prompt") + &text("rejected")})
    };
    place.write("alone.jsonl", (0..6).map(|i| format!("{}\n{}\n", one(i), whole(i))).collect::<String>());
    for (i, line) in place.score("run", "alone.jsonl").iter().enumerate() {
        let (chosen, rejected) = together[i / 2];
        let want = if i % 2 == 0 { chosen } else { rejected };
        assert!((line["score"].as_f64().unwrap() - want).abs() < 1e-5, "{line} and {want}");
    }
    // A run that starts from it has its head.
    let from = ["reward", "--model", "run/checkpoint-2", "--output-dir", "next", "--max-steps", "1", "--learning-rate", "0"];
    place.run(&[&from[..], &["--dataset", "pairs.jsonl"]].concat()).succeeded();
    assert!(scores(&place, "next") == together);
}

#[test]
fn an_adapter_is_read_at_the_token_that_training_valued() {
    let place = place();
    // The base names no padding token, and the tokenizer fills up with the token that ends a text.
    let adapter = ["--lora-r", "4", "--max-steps", "6", "--eval-dataset", "pairs.jsonl", "--eval-strategy", "steps"];
    train(&place, "run", &[&adapter[..], &["--eval-steps", "6", "--learning-rate", "0.01"]].concat()).succeeded();
    let lines = place.lines("run/metrics.jsonl");
    let evaluated = lines.iter().find_map(|line| line["eval_mean_reward"].as_f64()).unwrap();
    let of_adapter = scores(&place, "run/checkpoint-6");
    let mean = of_adapter.iter().map(|(a, b)| a + b).sum::<f64>() / (2 * of_adapter.len()) as f64;
    assert!((mean - evaluated).abs() < 1e-4, "{mean} and {evaluated}");
    // Merged, it is the same model.
    place.run(&["merge", "run/checkpoint-6", "merged"]).succeeded();
    let tensors = place.tensors("merged/model.safetensors");
    assert!(tensors.contains_key("score.weight") && !tensors.contains_key("lm_head.weight"), "{:?}", tensors.keys());
    for ((a, b), (c, d)) in of_adapter.into_iter().zip(scores(&place, "merged")) {
        assert!((a - c).abs() < 1e-4 && (b - d).abs() < 1e-4, "{a} {c}, {b} {d}");
    }
    // In another precision, it is nearly the same.
    for from in ["merged", "run/checkpoint-6"] {
        let to = format!("{}-bf16", from.replace('/', "-"));
        place.run(&["export", from, &to]).succeeded();
        let far =
            scores(&place, &to).into_iter().zip(scores(&place, from)).map(|((a, _), (b, _))| (a - b).abs()).fold(0.0, f64::max);
        assert!(far > 0.0 && far < 0.05, "{from}: {far}");
    }
    // A critic can start from it, and from the run's folder, but not from the adapter in a run without one.
    let ppo = ["ppo", "--model", tiny(), "--dataset", STORIES, "--max-steps", "1", "--max-completion-length", "4"];
    let critic = |more: &[&str]| place.run(&[&ppo[..], more].concat());
    critic(&["--output-dir", "p", "--reward-model", "merged"]).succeeded();
    let outcome = critic(&["--output-dir", "q", "--reward-model", "run"]);
    assert!(outcome.succeeded().stderr.contains("the critic does not start from the reward model run"), "{}", outcome.stderr);
    place
        .run(&["reward", "--model", tiny(), "--dataset", "pairs.jsonl", "--max-steps", "1", "--output-dir", "whole"])
        .succeeded();
    critic(&["--output-dir", "r", "--plugin", "tldr_length_reward.wasm", "--value-model", "whole"]).succeeded();
}

#[test]
fn the_padding_token_that_is_named_decides_the_token_that_is_valued() {
    let place = place();
    let text = fs::read_to_string(std::path::Path::new(tiny()).join("tokenizer_config.json")).unwrap();
    let end = serde_json::from_str::<Value>(&text).unwrap()["eos_token"].as_str().unwrap().to_owned();
    let steps = ["--max-steps", "1"];
    let first = |run: &str, more: &[&str]| {
        train(&place, run, &[&steps[..], more].concat()).succeeded();
        place.lines(&format!("{run}/metrics.jsonl"))[0]["mean_reward"].as_f64().unwrap()
    };
    let (own, same, other) = (first("own", &[]), first("same", &["--pad-token", &end]), first("other", &["--pad-token", "z"]));
    assert!(own == same && (own - other).abs() > 1e-4, "{own} {same} {other}");
    // A model's folder says it in config.json, an adapter's with its tokenizer.
    let held_out = ["--eval-dataset", "pairs.jsonl", "--eval-strategy", "steps", "--eval-steps", "1", "--pad-token", "z"];
    for (run, more) in [("whole", &[][..]), ("adapter", &["--lora-r", "4"])] {
        train(&place, run, &[&steps[..], &held_out, more].concat()).succeeded();
        let lines = place.lines(&format!("{run}/metrics.jsonl"));
        let evaluated = lines.iter().find_map(|line| line["eval_mean_reward"].as_f64()).unwrap();
        let scores = scores(&place, &format!("{run}/checkpoint-1"));
        let mean = scores.iter().map(|(a, b)| a + b).sum::<f64>() / (2 * scores.len()) as f64;
        assert!((mean - evaluated).abs() < 1e-4, "{run}: {mean} and {evaluated}");
    }
    let refused = train(&place, "none", &[&steps[..], &["--pad-token", "<nothing>"]].concat());
    assert!(refused.code == Some(2) && refused.error().contains("pad_token"), "{}", refused.stderr);
}

#[test]
fn a_new_head_is_drawn_from_the_seed_with_the_deviation_of_the_configuration() {
    let place = place();
    let head = |run: &str, model: &str, seed: &str| -> Vec<f32> {
        let more = ["reward", "--model", model, "--output-dir", run, "--dataset", "pairs.jsonl", "--max-steps", "1"];
        place.run(&[&more[..], &["--learning-rate", "0", "--seed", seed]].concat()).succeeded();
        let bytes = place.tensors(&format!("{run}/checkpoint-1/model.safetensors")).remove("score.weight").unwrap();
        bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    let (one, other) = (head("one", tiny(), "1"), head("other", tiny(), "2"));
    assert!(one != other && one.len() == 64);
    let deviation = |head: &[f32]| (head.iter().map(|w| w * w).sum::<f32>() / head.len() as f32).sqrt();
    assert!((0.014..0.026).contains(&deviation(&one)), "{}", deviation(&one));
    place.copy(tiny(), "wide");
    let config = fs::read_to_string(place.path("wide/config.json")).unwrap();
    place.write("wide/config.json", config.replacen('{', "{\"initializer_range\": 0.5,", 1));
    let wide: Vec<f32> = head("wider", "wide", "1").iter().map(|w| w / 25.0).collect();
    assert!(wide.iter().zip(&one).all(|(a, b)| (a - b).abs() < 1e-6));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let place = place();
    let refused = |arguments: &[&str], words: &[&str]| {
        let outcome = place.run(arguments);
        assert!(outcome.code == Some(2) && words.iter().all(|word| outcome.error().contains(word)), "{}", outcome.stderr);
    };
    let reward = ["reward", "--model", tiny(), "--output-dir", "run", "--dataset"];
    let with = |more: &[&'static str]| [&reward[..], more].concat();
    refused(&with(&["pairs.jsonl", "--max-prompt-length", "5"]), &["max_prompt_length", "max_length"]);
    refused(&with(&["pairs.jsonl", "--plugin", "tldr_length_reward.wasm"]), &["nothing scored"]);
    let row = |margin: Value| format!("{}\n", json!({"prompt": "p", "chosen": "c", "rejected": "r", "margin": margin}));
    place.write("some.jsonl", row(json!(1)) + &row(Value::Null));
    refused(&with(&["some.jsonl"]), &["1 of its 2 pairs have no \"margin\""]);
    place.write("words.jsonl", row(json!("much")));
    refused(&with(&["words.jsonl"]), &["words.jsonl", "margin", "not a number"]);
    // Both texts are longer than 4 tokens.
    refused(&with(&["pairs.jsonl", "--max-length", "4"]), &["max_length", "tokens"]);
    refused(&["score", tiny(), "--dataset", "pairs.jsonl"], &["score.weight", "rlhost reward"]);
    place.write("long.jsonl", format!("{}\n", json!({"text": "x".repeat(400)})));
    train(&place, "good", &["--max-steps", "1"]).succeeded();
    refused(&["score", "good", "--dataset", "long.jsonl"], &["401 tokens", "context of 192"]);
    // Beside another it is left out, by name.
    let rows = ["x".repeat(400), "x".repeat(4)].map(|text| format!("{}\n", json!({"text": text})));
    place.write("both.jsonl", rows.concat());
    let both = place.run(&["score", "good", "--dataset", "both.jsonl", "--json"]);
    assert_eq!(both.succeeded().stdout.lines().count(), 1, "{}", both.stdout);
    assert!(both.stderr.contains("both.jsonl:1") && both.stderr.contains("401 tokens"), "{}", both.stderr);
    assert!(!place.path("run").exists());
}

/// Trains a reward model for some steps and returns its folder.
fn judge(place: &TestFolder) -> String {
    train(place, "judge", &["--max-steps", "12", "--learning-rate", "0.01"]).succeeded();
    place.path("judge/checkpoint-12").display().to_string()
}

/// A short run with a reward model beside a plugin.
fn asks<'a>(algorithm: &'a str, judge: &'a str, run: &'a str) -> Vec<&'a str> {
    let mut all = vec!["--algorithm", algorithm, "--model", tiny(), "--dataset", STORIES, "--output-dir", run];
    all.extend(["--reward-model", judge, "--plugin", "tldr_length_reward.wasm", "--max-completion-length", "8"]);
    all.extend(["--max-steps", "4", "--save-steps", "1", "--logging-steps", "1", "--log-completions", "all"]);
    all.extend(["--learning-rate", "0.001", "--per-device-train-batch-size", "8"]);
    all
}

#[test]
fn the_scores_in_a_run_are_those_that_the_model_gives_the_texts() {
    let place = place();
    let judge = judge(&place);
    // Of a single byte, which is mostly a text.
    place.run(&[&asks("grpo", &judge, "run")[..], &["--max-completion-length", "1"]].concat()).succeeded();
    let completions = place.lines("run/completions.jsonl");
    let rows = completions.iter().filter(|row| row["finished"] == false);
    // One that did not end has no ending token, and no text says so: `score` adds one, but that is padding here.
    let texts = rows.clone().map(|row| format!("{}\n", json!({"prompt": row["prompt"], "completion": row["completion"]})));
    place.write("said.jsonl", texts.collect::<String>());
    let lines = place.score(&judge, "said.jsonl");
    assert!(lines.len() > 8 && lines.len() == rows.clone().count());
    let mut same = 0;
    for (line, row) in lines.iter().zip(rows) {
        // Bytes that are no text can't be read again.
        if row["completion"].as_str().unwrap().contains('\u{fffd}') {
            continue;
        }
        let (alone, in_run) = (line["score"].as_f64().unwrap(), row["rewards"]["judge"].as_f64().unwrap());
        assert!((alone - in_run).abs() < 1e-4, "{alone} and {in_run}");
        same += 1;
    }
    assert!(same > 0, "no completion is a text");
    for line in place.lines("run/metrics.jsonl") {
        let sum = line["rewards/judge/mean"].as_f64().unwrap() + line["rewards/tldr_length_reward/mean"].as_f64().unwrap();
        assert!((line["reward"].as_f64().unwrap() - sum).abs() < 1e-4, "{line}");
    }
    let config = fs::read_to_string(place.path("run/checkpoint-4/trainer/config.toml")).unwrap();
    assert!(config.contains("model = true") && config.contains("hash = \""), "{config}");
    let replayed = place.run(&["replay", "run", "--reward-model", &judge, "--with", "judge"]);
    let shown = &replayed.succeeded().stdout;
    let line = shown.lines().find(|line| line.starts_with("judge ")).expect("a line for the run's reward");
    let ranks: f64 = line.split_whitespace().last().unwrap().parse().unwrap();
    assert!(ranks > 0.9, "{shown}");
}

#[test]
fn every_algorithm_that_scores_takes_a_reward_model_and_resumes_to_the_bit() {
    let place = place();
    let judge = judge(&place);
    for algorithm in ["grpo", "rloo", "ppo", "online_dpo"] {
        place.run(&asks(algorithm, &judge, algorithm)).succeeded();
        for step in 1..4 {
            place.assert_resumes(algorithm, step, 4, "model.safetensors");
        }
    }
    // The critic starts from the reward model, as in OpenRLHF, unless another is named.
    let config = fs::read_to_string(place.path("ppo/config.toml")).unwrap();
    assert!(config.contains(&format!("value_model = \"{judge}\"")), "{config}");
    let frozen = |run: &str, more: &[&str]| {
        place.run(&[&asks("ppo", &judge, run)[..], &["--critic-learning-rate", "0"], more].concat()).succeeded();
        place.tensors(&format!("{run}/checkpoint-1/trainer/value_model/model.safetensors"))["score.weight"].clone()
    };
    assert!(frozen("its", &[]) == place.tensors("judge/checkpoint-12/model.safetensors")["score.weight"]);
    assert!(frozen("policys", &["--value-model", "policy"]).iter().all(|byte| *byte == 0));
}

#[test]
fn weights_apply_and_an_evaluation_scores_too() {
    let place = place();
    let judge = judge(&place);
    let weights = ["--reward-weights", "0.5", "2"];
    place
        .run(&[&asks("grpo", &judge, "run")[..], &weights, &["--eval-dataset", STORIES, "--max-steps", "1"]].concat())
        .succeeded();
    let lines = place.lines("run/metrics.jsonl");
    let weighed = |line: &Value, of: &str| {
        let mean = |name: &str| line[format!("{of}rewards/{name}/mean")].as_f64().unwrap();
        0.5 * mean("tldr_length_reward") + 2.0 * mean("judge")
    };
    assert!((lines[0]["reward"].as_f64().unwrap() - weighed(&lines[0], "")).abs() < 1e-4, "{}", lines[0]);
    assert!((lines[1]["eval_reward"].as_f64().unwrap() - weighed(&lines[1], "eval_")).abs() < 1e-4, "{}", lines[1]);
    // Two of one folder name have names of their own.
    place.copy(&judge, "other/judge");
    place
        .run(&[&asks("grpo", &judge, "two")[..], &["--reward-model", "second=other/judge", "--max-steps", "1"]].concat())
        .succeeded();
    let line = &place.lines("two/metrics.jsonl")[0];
    assert_eq!(line["rewards/second/mean"], line["rewards/judge/mean"]);
    // The built-in run's own reward is for runs that name none.
    let alone = ["--reward-model", &judge, "--max-steps", "1", "--output-dir", "alone", "--max-completion-length", "8"];
    place.run(&[&alone[..], &["--model", tiny(), "--dataset", STORIES]].concat()).succeeded();
    assert!(place.lines("alone/metrics.jsonl")[0]["rewards/tldr_length_reward/mean"].is_null());
}

#[test]
fn a_model_compares_answers_by_the_probability_of_being_better() {
    let place = place();
    let judge = judge(&place);
    place.run(&[&asks("online_dpo", &judge, "plain")[..], &["--max-steps", "1"]].concat()).succeeded();
    let compare = ["--set", "plugin.judge.compare=others"];
    place.run(&[&asks("online_dpo", &judge, "run")[..], &compare, &["--max-steps", "1"]].concat()).succeeded();
    let scores = |run: &str| -> Vec<f64> {
        let rows = place.lines(&format!("{run}/completions.jsonl"));
        rows.iter().map(|row| row["rewards"]["judge"].as_f64().unwrap()).collect()
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (plain, compared) = (scores("plain"), scores("run"));
    assert_eq!(plain.len(), compared.len());
    for (values, wins) in plain.chunks(2).zip(compared.chunks(2)) {
        let want = sigmoid(values[0] - values[1]);
        assert!((wins[0] - want).abs() < 1e-5 && (wins[1] - (1.0 - want)).abs() < 1e-5, "{values:?} {wins:?}");
    }
    // In an evaluation, the dataset's own answers.
    let row = |i: usize| format!("{}\n", json!({"prompt": format!("post {i}:"), "reference": " zzzzzz"}));
    place.write("posts.jsonl", (0..4).map(row).collect::<String>());
    let of = ["eval", "--model", tiny(), "--dataset", "posts.jsonl", "--eval-dataset", "posts.jsonl", "--reward-model", &judge];
    let settings = ["--set", "plugin.judge.compare=reference", "--max-completion-length", "8", "--json"];
    let figures: Value = serde_json::from_str(&place.run(&[&of[..], &settings].concat()).succeeded().stdout).unwrap();
    let wins = figures["eval_rewards/judge/mean"].as_f64().unwrap();
    assert!(wins > 0.0 && wins < 0.5, "it prefers the letter that the references have: {figures}");
    let alone = [&of[..2], &["tiny", "--dataset", "alone.jsonl", "--reward-model", &judge]].concat();
    let alone: Vec<&str> = alone.into_iter().map(|argument| if argument == "tiny" { tiny() } else { argument }).collect();
    place.write("alone.jsonl", (0..4).map(|i| format!("{}\n", json!({"prompt": format!("post {i}:")}))).collect::<String>());
    let one = ["--set", "plugin.judge.compare=others", "--num-generations-eval", "1", "--max-completion-length", "8"];
    let idle = place.run(&[&alone[..], &one].concat());
    assert!(idle.code == Some(2) && idle.error().contains("nothing to compare with"), "{}", idle.stderr);
    // How a model scores is not changed by an edit, whether the run is live or resumed.
    let file = place.path("run/config.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, config.replace("compare = \"others\"", "compare = \"reference\"")).unwrap();
    let edited = place.run(&["resume", "run", "--max-steps", "2"]);
    assert!(edited.code == Some(2) && edited.error().contains("plugin.judge.compare"), "{}", edited.stderr);
    let acting = [&asks("grpo", &judge, "none")[..], &["--set", "plugin.judge.compare=reference"]].concat();
    let acting = [&acting[..], &["--environment", "guess_number.wasm", "--dataset", "posts.jsonl"]].concat();
    let refused = place.run(&acting);
    assert!(refused.code == Some(2) && refused.error().contains("is no conversation"), "{}", refused.stderr);
    let without = [&asks("grpo", &judge, "none")[..], &["--set", "plugin.judge.compare=reference"]].concat();
    let refused = place.run(&without);
    assert!(refused.code == Some(2) && refused.error().contains("plugin.judge.compare"), "{}", refused.stderr);
}

#[test]
fn a_conversation_goes_through_the_models_own_template() {
    let place = place();
    let judge = judge(&place);
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let template = |open: &str| {
        let turns = format!("{{% for m in messages %}}{open}{{{{ m.role }}}}:{{{{ m.content }}}};{{% endfor %}}");
        json!({"eos_token": "<|endoftext|>", "chat_template": turns}).to_string()
    };
    for (from, to, open) in [(tiny(), "policy", "<"), (judge.as_str(), "critic", "[")] {
        place.copy(from, to);
        place.write(&format!("{to}/tokenizer_config.json"), template(open));
    }
    let prompts: String = (0..4).map(|i| format!("{}\n", json!({"prompt": [said("user", &format!("hi {i}"))]}))).collect();
    place.write("chats.jsonl", prompts);
    let run = ["grpo", "--model", "policy", "--dataset", "chats.jsonl", "--reward-model", "critic", "--output-dir", "run"];
    let size = ["--max-steps", "1", "--max-completion-length", "4", "--log-completions", "all"];
    place.run(&[&run[..], &size].concat()).succeeded();
    let rows = place.lines("run/completions.jsonl");
    let texts = rows.iter().map(|row| {
        let asked = row["prompt"].as_str().unwrap().trim_start_matches("<user:").trim_end_matches(';').to_owned();
        format!("{}\n", json!({"messages": [said("user", &asked), said("assistant", row["completion"].as_str().unwrap())]}))
    });
    place.write("said.jsonl", texts.collect::<String>());
    for (line, row) in place.score("critic", "said.jsonl").iter().zip(&rows) {
        let (alone, in_run) = (line["score"].as_f64().unwrap(), row["rewards"]["critic"].as_f64().unwrap());
        assert!((alone - in_run).abs() < 1e-4, "{alone} and {in_run}");
    }
}

#[test]
fn what_can_not_be_asked_is_refused_by_name_and_changed_files_are_noticed() {
    let place = place();
    let judge = judge(&place);
    let refused = |arguments: &[&str], words: &[&str]| {
        let outcome = place.run(arguments);
        assert!(outcome.code == Some(2) && words.iter().all(|word| outcome.error().contains(word)), "{}", outcome.stderr);
    };
    refused(&asks("grpo", tiny(), "none"), &["score.weight", "rlhost reward"]);
    refused(&asks("grpo", "nowhere", "none"), &["nowhere"]);
    refused(&[&asks("grpo", &judge, "none")[..], &["--reward-model", "other/judge"]].concat(), &["judge", "twice"]);
    let pairs = ["dpo", "--model", tiny(), "--dataset", "pairs.jsonl", "--output-dir", "none", "--reward-model", &judge];
    refused(&pairs, &["nothing scored"]);
    place.write("file.wasm", "no model");
    refused(&asks("grpo", "file.wasm", "none"), &["file.wasm: is a file", "--plugin"]);
    let one_name = [&asks("grpo", &judge, "none")[..], &["--reward-model", "other/judge"]].concat();
    refused(&one_name, &["NAME=FOLDER"]);
    // A model without an output matrix of its own is no language model, though the embedding could stand in for it.
    for command in [&["dpo", "--dataset", "pairs.jsonl", "--output-dir", "none"][..], &["generate", "--prompt", "a"]] {
        let arguments = [command, &["--model", &judge]].concat();
        refused(&arguments, &["LlamaForSequenceClassification", "predicts no tokens", "--reward-model"]);
    }
    assert!(!place.path("none").exists());

    place.run(&asks("grpo", &judge, "run")).succeeded();
    let file = place.path("judge/checkpoint-12/model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    place.copy("run", "again");
    refused(&["resume", "again", "--step", "2"], &["reward model judge", "have changed", "--allow-changed"]);
    let allowed = ["train", "--resume-from-checkpoint", "again/checkpoint-2", "--output-dir", "again", "--allow-changed"];
    place.run(&allowed).succeeded();
}

#[test]
fn pairs_without_a_common_beginning_are_read_as_whole_texts_and_plain_prompts_beside_conversations_as_theirs() {
    let place = TestFolder::new();
    let text = |i: usize, more: &str| format!("{}{more}", ["one ", "two ", "six "][i % 3]);
    let rows = (0..6).map(|i| json!({"chosen": text(i, "zz"), "rejected": text(i + 1, "ab")}));
    place.write("pairs.jsonl", rows.map(|row| format!("{row}\n")).collect::<String>());
    train(&place, "run", &["--max-steps", "20", "--learning-rate", "0.01"]).succeeded();
    assert_eq!(place.figure("run", "accuracy").last(), Some(&1.0));
    let apart = scores(&place, "run/checkpoint-20");
    // The same texts, each alone.
    let alone = |texts: Vec<String>| -> Vec<f64> {
        let rows: String = texts.into_iter().map(|text| format!("{}\n", json!({"text": text}))).collect();
        place.write("alone.jsonl", rows);
        place.score("run/checkpoint-20", "alone.jsonl").iter().map(|line| line["score"].as_f64().unwrap()).collect()
    };
    let (chosen, rejected) = (alone((0..6).map(|i| text(i, "zz")).collect()), alone((0..6).map(|i| text(i + 1, "ab")).collect()));
    for (i, (c, r)) in apart.into_iter().enumerate() {
        assert!((c - chosen[i]).abs() < 1e-5 && (r - rejected[i]).abs() < 1e-5, "row {i}: {c} {r}");
    }
    // DPO learns the answers to a prompt, so it needs one.
    let refused = place.run(&["dpo", "--model", tiny(), "--dataset", "pairs.jsonl", "--max-steps", "1", "--output-dir", "dpo"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("no common beginning"), "{}", refused.stderr);

    let said = |answer: &str| json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]);
    let steps = |name: &str, prompt: Value| {
        let row = json!({"prompt": prompt, "chosen": said("a"), "rejected": said("b")});
        place.write("chats.jsonl", format!("{row}\n").repeat(4));
        place.write("template.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
        let more = ["--dataset", "chats.jsonl", "--max-steps", "2", "--chat-template-path", "template.jinja"];
        train(&place, name, &more).succeeded();
        place.figures(name)
    };
    assert_eq!(steps("plain", json!("q")), steps("none", Value::Null));
}
