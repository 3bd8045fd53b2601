//! What of a dataset is learned by fine-tuning, and how its rows are put together.

use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};

/// The figures of the model as it is, on a dataset.
fn evaluated(place: &TestFolder, model: &str, dataset: &str, more: &[&str]) -> Value {
    let base = ["eval", "--model", model, "--algorithm", "sft", "--learn-from", "dataset", "--dataset", dataset, "--json"];
    let outcome = place.run(&[&base[..], more].concat());
    serde_json::from_str(&outcome.succeeded().stdout).unwrap()
}

fn near(a: &Value, b: &Value) {
    for name in ["eval_loss", "eval_entropy", "eval_mean_token_accuracy"] {
        let (a, b) = (a[name].as_f64().unwrap(), b[name].as_f64().unwrap());
        assert!((a - b).abs() < 1e-6, "{name}: {a} and {b}");
    }
}

/// Takes the end token from a model's configuration.
fn without_end(place: &TestFolder, model: &str) {
    for file in ["config.json", "generation_config.json"].map(|name| format!("{model}/{name}")) {
        let Ok(text) = std::fs::read_to_string(place.path(&file)) else { continue };
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config.as_object_mut().unwrap().remove("eos_token_id");
        place.write(&file, config.to_string());
    }
}

/// The tiny model's tokens of a text, one for each byte, and its end token.
fn tokens_of(text: &str) -> Vec<u64> {
    let file = std::fs::read(std::path::Path::new(tiny()).join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_slice(&file).unwrap();
    let id = |token: &str| tokenizer["model"]["vocab"][token].as_u64();
    let end = tokenizer["added_tokens"][0]["id"].as_u64();
    text.chars().map(|c| id(&c.to_string().replace(' ', "\u{120}"))).chain([end]).map(Option::unwrap).collect()
}

#[test]
fn rows_that_are_tokenized_already_are_learned_as_their_texts_are() {
    let place = TestFolder::new();
    let lines = |row: &dyn Fn(usize) -> Value| (0..12).map(|i| format!("{}\n", row(i))).collect::<String>();
    let parts = |i: usize| (format!("row {i} is"), format!(" {}", "ab ".repeat(1 + i % 5)));
    let text = |i: usize| parts(i).0 + &parts(i).1;
    let whole = |i: usize| tokens_of(&text(i));
    place.write("texts.jsonl", lines(&|i| json!({"text": text(i)})));
    place.write("answers.jsonl", lines(&|i| json!({"prompt": parts(i).0, "completion": parts(i).1})));
    place.write(
        "ids.jsonl",
        lines(&|i| json!({"text": "another", "input_ids": whole(i), "attention_mask": vec![1; whole(i).len()]})),
    );
    let learned = |i: usize, at: usize| at >= parts(i).0.len();
    let label = |i: usize, (at, id): (usize, u64)| if learned(i, at) { json!(id) } else { json!(-100) };
    let labels = |i: usize| whole(i).into_iter().enumerate().map(|token| label(i, token)).collect::<Vec<_>>();
    place.write("labels.jsonl", lines(&|i| json!({"input_ids": whole(i), "labels": labels(i)})));
    let mask = |i: usize| (0..whole(i).len()).map(|at| u8::from(learned(i, at))).collect::<Vec<_>>();
    place.write("mask.jsonl", lines(&|i| json!({"input_ids": whole(i), "completion_mask": mask(i)})));
    let of = |dataset: &str, more: &[&str]| evaluated(&place, tiny(), dataset, more);
    near(&of("ids.jsonl", &[]), &of("texts.jsonl", &[]));
    near(&of("labels.jsonl", &[]), &of("answers.jsonl", &[]));
    near(&of("mask.jsonl", &[]), &of("answers.jsonl", &[]));
    let whole = ["--completion-only-loss", "false"];
    near(&of("mask.jsonl", &whole), &of("texts.jsonl", &[]));
    near(&of("labels.jsonl", &whole), &of("answers.jsonl", &[]));

    let sft = |dataset: &str, run: &str, more: &[&str]| {
        let base = ["sft", "--model", tiny(), "--dataset", dataset, "--output-dir", run, "--max-steps", "4", "--save-steps", "1"];
        place.run(&[&base[..], more].concat())
    };
    for (run, more) in
        [("plain", &[][..]), ("packed", &["--packing"]), ("wrapped", &["--packing", "--packing-strategy", "wrapped"])]
    {
        sft("ids.jsonl", run, more).succeeded();
        sft("texts.jsonl", &format!("{run}-texts"), more).succeeded();
        place.assert_same_end(run, &format!("{run}-texts"), 4, "model.safetensors");
        place.assert_resumes(run, 2, 4, "model.safetensors");
    }
    place.write("strange.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 4000000000]}\n");
    let refused = sft("strange.jsonl", "strange", &["--strict-data"]);
    assert!(refused.error().contains("4000000000, which the tokenizer does not know"), "{}", refused.stderr);
}

#[test]
fn texts_that_are_cut_at_the_models_context_or_at_max_length_are_mentioned() {
    let place = TestFolder::new();
    place.write("texts.jsonl", format!("{}\n{}\n", json!({"text": "ab ".repeat(100)}), json!({"text": "ab"})));
    let said = |run: &str, more: &[&str]| {
        let sft = ["sft", "--model", tiny(), "--dataset", "texts.jsonl", "--output-dir", run, "--max-steps", "1"];
        place.run(&[&sft[..], more].concat()).succeeded().stderr.clone()
    };
    let whole = said("whole", &["--max-length", "none"]);
    assert!(
        whole.contains("texts.jsonl:1: has a text of 301 tokens; it and others are cut at the model's context of 192"),
        "{whole}"
    );
    let asked = said("asked", &["--max-length", "100"]);
    let cut =
        "texts.jsonl:1: is longer than 100 tokens (max_length) and cut off there. 1 of 2 rows are affected; raise max_length";
    assert!(asked.contains(cut) && !asked.contains("model's context"), "{asked}");
    let split = said("split", &["--max-length", "100", "--packing", "--packing-strategy", "bfd_split"]);
    assert!(!split.contains("is longer than") && !whole.contains("is longer than"), "{split}");
}

#[test]
fn texts_end_with_the_models_token_if_the_tokenizer_names_none() {
    let place = TestFolder::with_answers();
    place.copy(tiny(), "named");
    place.write("named/tokenizer_config.json", json!({"eos_token": "<|endoftext|>"}).to_string());
    place.copy(tiny(), "unnamed");
    place.write("unnamed/tokenizer_config.json", "{}");
    place.copy("unnamed", "mapped");
    without_end(&place, "mapped");
    place.copy("mapped", "endless");
    place.write("mapped/special_tokens_map.json", json!({"eos_token": {"content": "<|endoftext|>"}}).to_string());
    let sft = |model: &str, steps: &str| {
        let base = ["sft", "--model", model, "--dataset", "answers.jsonl", "--output-dir", &format!("of-{model}")];
        let often = ["--logging-steps", "1", "--save-steps", "1", "--learning-rate", "0.01", "--max-steps", steps];
        place.run(&[&base[..], &often].concat())
    };
    sft("named", "3").succeeded();
    for (model, named) in [("unnamed", true), ("mapped", true), ("endless", false)] {
        let outcome = sft(model, "3");
        let said = &outcome.succeeded().stderr;
        assert_eq!(said.contains("the tokenizer names no end token; texts end with \"<|endoftext|>\""), named, "{said}");
        assert_eq!(said.contains("neither the tokenizer nor the model names an end token"), !named, "{said}");
        let same = place.figure(&format!("of-{model}"), "loss") == place.figure("of-named", "loss");
        assert_eq!(same, named, "{model}");
        place.assert_resumes(&format!("of-{model}"), 2, 3, "model.safetensors");
    }
    let config: Value =
        serde_json::from_slice(&std::fs::read(place.path("of-mapped/checkpoint-3/tokenizer_config.json")).unwrap()).unwrap();
    assert_eq!(config["eos_token"], "<|endoftext|>");
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

#[test]
fn prompts_are_learned_too_where_that_is_asked_for() {
    let place = TestFolder::new();
    let parts: Vec<(String, String)> = (0..6).map(|i| (format!("question {i}:"), format!(" answer {}", "x".repeat(i)))).collect();
    let pairs: Vec<Value> = parts.iter().map(|(p, c)| json!({"prompt": p, "completion": c})).collect();
    let texts: Vec<Value> = parts.iter().map(|(p, c)| json!({"text": format!("{p}{c}")})).collect();
    place.write("pairs.jsonl", lines(&pairs));
    place.write("texts.jsonl", lines(&texts));
    let whole = evaluated(&place, tiny(), "pairs.jsonl", &["--completion-only-loss", "false"]);
    near(&whole, &evaluated(&place, tiny(), "texts.jsonl", &[]));
    let answers = evaluated(&place, tiny(), "pairs.jsonl", &[]);
    assert!((answers["eval_loss"].as_f64().unwrap() - whole["eval_loss"].as_f64().unwrap()).abs() > 1e-4);
}

#[test]
fn of_a_conversation_the_assistants_turns_alone_are_learned_where_that_is_asked_for() {
    let place = TestFolder::new();
    place.copy(tiny(), "chatty");
    let template =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let eos = json!("<|endoftext|>");
    place.write("chatty/tokenizer_config.json", json!({"eos_token": eos, "chat_template": template}).to_string());
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let talk = [said("user", "hi"), said("assistant", "hello you"), said("user", "and?"), said("assistant", "bye")];
    place.write("talk.jsonl", lines(&[json!({"messages": talk})]));
    // The same turns as completions of what was said before them, the template's ends written out.
    let before = "<user>hi</><assistant>";
    let after = format!("{before}hello you</><user>and?</><assistant>");
    let turns = [json!({"prompt": before, "completion": "hello you</>"}), json!({"prompt": after, "completion": "bye</>"})];
    place.write("turns.jsonl", lines(&turns));
    place.copy(tiny(), "endless");
    place.write("endless/tokenizer_config.json", "{}");
    without_end(&place, "endless");
    let asked = evaluated(&place, "chatty", "talk.jsonl", &["--assistant-only-loss"]);
    near(&asked, &evaluated(&place, "endless", "turns.jsonl", &[]));
    // A template that writes everything twice has no turns to find.
    let fickle = "{% for m in messages %}{{ m.content }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}";
    place.write("chatty/tokenizer_config.json", json!({"eos_token": eos, "chat_template": fickle}).to_string());
    let sft = ["sft", "--model", "chatty", "--dataset", "talk.jsonl", "--output-dir", "run", "--assistant-only-loss"];
    let refused = place.run(&sft);
    assert!(refused.code == Some(2) && refused.error().contains("talk.jsonl:1"), "{}", refused.stderr);
}

#[test]
fn a_fork_to_another_algorithm_leaves_the_first_ones_settings_behind() {
    let place = TestFolder::with_answers();
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "2", "--output-dir", "sft", "--packing"];
    place.run(&[&sft[..], &["--loss-type", "dft", "--per-device-train-batch-size", "2"]].concat()).succeeded();
    let grpo = ["--algorithm", "grpo", "--plugin", "tldr_length_reward.wasm", "--dataset", "pairs.jsonl", "--logging-steps", "1"];
    let size = ["--max-steps", "4", "--per-device-train-batch-size", "8", "--max-completion-length", "8"];
    let fork = ["--resume-from-checkpoint", "sft", "--output-dir", "fork"];
    let forked = place.run(&[&fork[..], &grpo, &size].concat());
    forked.succeeded();
    let said: Vec<&str> = forked.stderr.lines().filter(|line| line.contains("dropped the settings")).collect();
    assert!(said.len() == 1 && said[0].contains("of sft: learn_from, packing, learning_rate, loss;"), "{}", forked.stderr);
    assert_eq!(place.figure("fork", "step"), [3.0, 4.0]);
    assert!(place.lines("fork/metrics.jsonl")[0]["rewards/tldr_length_reward/mean"].is_number());
    place.run(&[&["--model", tiny(), "--output-dir", "grpo"], &grpo[..], &size].concat()).succeeded();
    let rate = |run: &str| place.figure(run, "learning_rate");
    assert_eq!(rate("fork"), rate("grpo")[2..]);
    // What the other algorithm would refuse, both ways.
    place
        .run(
            &[
                &sft[..5],
                &["--max-steps", "2", "--output-dir", "smooth"],
                &["--label-smoothing-factor", "0.1", "--neftune-noise-alpha", "5"],
            ]
            .concat(),
        )
        .succeeded();
    place.run(&[&["--resume-from-checkpoint", "smooth", "--output-dir", "rough"], &grpo[..], &size].concat()).succeeded();
    let filtered = [
        "--rollout-dtype",
        "bfloat16",
        "--filter-groups",
        "--max-prompt-length",
        "64",
        "--eval-dataset",
        "pairs.jsonl",
        "--num-generations-eval",
        "2",
    ];
    let two = ["--model", tiny(), "--output-dir", "filtered", "--max-steps", "2"];
    place.run(&[&two[..], &grpo, &size[2..], &filtered, &["--eval-pass-threshold", "-5"]].concat()).succeeded();
    let given = ["--algorithm", "sft", "--dataset", "answers.jsonl", "--eval-dataset", "answers.jsonl", "--max-steps", "3"];
    place.run(&[&["--resume-from-checkpoint", "filtered", "--output-dir", "given"], &given[..]].concat()).succeeded();
    // The algorithm's own remain its own.
    place.run(&[&["--resume-from-checkpoint", "sft", "--output-dir", "longer", "--max-steps", "3"][..]].concat()).succeeded();
    let settings = std::fs::read_to_string(place.path("longer/config.toml")).unwrap();
    assert!(settings.contains("loss_type = \"dft\"") && settings.contains("packing = true"), "{settings}");
}

#[test]
fn marks_in_a_chat_template_say_which_tokens_are_learned() {
    let place = TestFolder::new();
    place.copy(tiny(), "endless");
    place.write("endless/tokenizer_config.json", "{}");
    without_end(&place, "endless");
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    place.write("talk.jsonl", lines(&[json!({"messages": [said("user", "hi"), said("assistant", "hello you")]})]));
    let evaluated_with = |marked: &str| {
        let name = format!("marked-{}", marked.len());
        place.copy(tiny(), &name);
        let other = "<{{ m.role }}>{{ m.content }}</>";
        let template = format!(
            "{{% for m in messages %}}{{% if m.role == 'assistant' %}}<assistant>{marked}{{% else %}}{other}{{% endif %}}{{% endfor %}}"
        );
        place.write(&format!("{name}/tokenizer_config.json"), json!({"chat_template": template}).to_string());
        evaluated(&place, &name, "talk.jsonl", &["--assistant-only-loss"])
    };
    let content = evaluated_with("{% generation %}{{ m.content }}{% endgeneration %}</>");
    let with_end = evaluated_with("{% generation %}{{ m.content }}</>{% endgeneration %}");
    for (figures, completion) in [(&content, "hello you"), (&with_end, "hello you</>")] {
        place.write("same.jsonl", lines(&[json!({"prompt": "<user>hi</><assistant>", "completion": completion})]));
        near(figures, &evaluated(&place, "endless", "same.jsonl", &[]));
    }
    assert!((content["eval_loss"].as_f64().unwrap() - with_end["eval_loss"].as_f64().unwrap()).abs() > 1e-4);
}

#[test]
fn conversations_for_cpo_and_orpo_begin_and_end_as_in_trl_and_those_for_dpo_as_their_template_says() {
    let place = TestFolder::new();
    let template =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let token = "<|endoftext|>";
    place.copy(tiny(), "chatty");
    let named = json!({"bos_token": token, "eos_token": token, "chat_template": template});
    place.write("chatty/tokenizer_config.json", named.to_string());
    place.copy(tiny(), "plain");
    place.write("plain/tokenizer_config.json", "{}");
    without_end(&place, "plain");
    let said = |role: &str, content: &str| json!([{"role": role, "content": content}]);
    let (chosen, rejected) = (said("assistant", "yes, I do"), said("assistant", "no"));
    place.write("talk.jsonl", lines(&[json!({"prompt": said("user", "hi"), "chosen": chosen, "rejected": rejected})]));
    let text = |begin: &str, end: &str| {
        let (chosen, rejected) = (format!("yes, I do</>{end}"), format!("no</>{end}"));
        lines(&[json!({"prompt": format!("{begin}<user>hi</><assistant>"), "chosen": chosen, "rejected": rejected})])
    };
    place.write("written.jsonl", text("", ""));
    place.write("framed.jsonl", text(token, token));
    let figures = |algorithm: &str, model: &str, dataset: &str| -> Vec<f64> {
        let outcome = place.run(&["eval", "--model", model, "--algorithm", algorithm, "--dataset", dataset, "--json"]);
        let figures: Value = serde_json::from_str(&outcome.succeeded().stdout).unwrap();
        let names = ["eval_loss", "eval_logps/chosen", "eval_logps/rejected", "eval_entropy"];
        names.into_iter().map(|name| figures[name].as_f64().unwrap()).collect()
    };
    for (algorithm, same, other) in [
        ("cpo", "framed.jsonl", "written.jsonl"),
        ("orpo", "framed.jsonl", "written.jsonl"),
        ("dpo", "written.jsonl", "framed.jsonl"),
        ("kto", "written.jsonl", "framed.jsonl"),
    ] {
        let talk = figures(algorithm, "chatty", "talk.jsonl");
        assert_eq!(talk, figures(algorithm, "plain", same), "{algorithm}");
        assert_ne!(talk, figures(algorithm, "plain", other), "{algorithm}");
    }
}

#[test]
fn packs_are_filled_and_give_the_same_loss() {
    let place = TestFolder::new();
    let rows: Vec<Value> = (0..24).map(|i| json!({"text": "ab".repeat(3 + i)})).collect();
    place.write("rows.jsonl", lines(&rows));
    // Lengths 7 to 53, the end included: 720 tokens, which fill eleven packs of 66.
    let base = ["sft", "--model", tiny(), "--dataset", "rows.jsonl", "--max-length", "66", "--logging-steps", "1"];
    let all = ["--learning-rate", "0", "--num-train-epochs", "1", "--output-dir"];
    place.run(&[&base[..], &all, &["plain", "--per-device-train-batch-size", "24"]].concat()).succeeded();
    let packs = ["packed", "--packing", "--per-device-train-batch-size", "11", "--eval-dataset", "rows.jsonl"];
    place.run(&[&base[..], &all, &packs, &["--per-device-eval-batch-size", "3"]].concat()).succeeded();
    let evaluated: Vec<f64> = place.lines("packed/metrics.jsonl").iter().filter_map(|line| line["eval_loss"].as_f64()).collect();
    let packed = place.lines("packed/metrics.jsonl").iter().filter_map(|line| line["loss"].as_f64()).collect::<Vec<_>>();
    let plain = place.figure("plain", "loss");
    assert!(plain.len() == 1 && packed.len() == 1, "{} and {} steps", plain.len(), packed.len());
    assert!((plain[0] - packed[0]).abs() < 1e-6, "{plain:?} {packed:?}");
    assert!(evaluated.len() == 1 && (plain[0] - evaluated[0]).abs() < 1e-6, "{plain:?} {evaluated:?}");
    let learning =
        ["--packing", "--per-device-train-batch-size", "3", "--max-steps", "8", "--save-steps", "1", "--output-dir", "run"];
    place.run(&[&base[..], &learning].concat()).succeeded();
    place.copy("run", "again");
    place.run(&["resume", "again", "--step", "3"]).succeeded();
    assert_eq!(place.lines_without_times("run/metrics.jsonl"), place.lines_without_times("again/metrics.jsonl"));
    let reward = ["--plugin", "tldr_length_reward.wasm", "--packing"];
    let refused = place.run(&reward);
    assert!(refused.code == Some(2) && refused.error().contains("packing"), "{}", refused.stderr);
}

#[test]
fn evaluations_are_packed_like_training_unless_that_is_set() {
    let place = TestFolder::new();
    let rows: Vec<Value> = (0..24).map(|i| json!({"text": "abc ".repeat(1 + i)})).collect();
    place.write("rows.jsonl", lines(&rows));
    let losses = |name: &str, more: &[&str]| {
        let base = ["sft", "--model", tiny(), "--dataset", "rows.jsonl", "--eval-dataset", "rows.jsonl", "--max-length", "40"];
        let all = ["--learning-rate", "0", "--max-steps", "1", "--per-device-train-batch-size", "64", "--output-dir", name];
        place.run(&[&base[..], &all, &["--packing-strategy", "wrapped"], more].concat()).succeeded();
        let lines = place.lines(&format!("{name}/metrics.jsonl"));
        ["loss", "eval_loss"].map(|name| lines.iter().find_map(|line| line[name].as_f64()).unwrap())
    };
    let [plain, also_plain] = losses("plain", &[]);
    let [wrapped, also_wrapped] = losses("wrapped", &["--packing"]);
    assert!((plain - wrapped).abs() > 1e-3, "{plain} {wrapped}");
    let same = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
    same(plain, also_plain);
    same(wrapped, also_wrapped);
    for (name, more, [loss, evaluated]) in [
        ("apart", &["--packing", "--eval-packing", "false"][..], [wrapped, plain]),
        ("packed", &["--eval_packing", "True"], [plain, wrapped]),
    ] {
        let [learned, found] = losses(name, more);
        same(loss, learned);
        same(evaluated, found);
    }
    let refused = place.run(&["--plugin", "tldr_length_reward.wasm", "--eval-packing", "true"]);
    assert!(refused.code == Some(2) && refused.error().contains("eval_packing: only for"), "{}", refused.stderr);
}

#[test]
fn an_epoch_ends_with_an_update_on_what_is_left_of_it() {
    let place = TestFolder::new();
    let rows: Vec<Value> =
        (0..10).map(|i| json!({"prompt": format!("{i}:"), "completion": format!(" {}", "ab".repeat(i))})).collect();
    place.write("ten.jsonl", lines(&rows));
    let train = |run: &str, size: &str, accumulated: &str, more: &[&str]| {
        let base = ["sft", "--model", tiny(), "--dataset", "ten.jsonl", "--num-train-epochs", "2", "--learning-rate", "0.01"];
        let batch = ["--per-device-train-batch-size", size, "--gradient-accumulation-steps", accumulated];
        let rest = ["--logging-steps", "1", "--save-steps", "1", "--output-dir", run];
        place.run(&[&base[..], &batch, &rest, more].concat()).succeeded();
    };
    train("at-once", "4", "1", &[]);
    train("in-two", "2", "2", &[]);
    // Three updates an epoch: of four, four and two rows.
    for run in ["at-once", "in-two"] {
        let epochs = place.figure(run, "epoch");
        assert_eq!(epochs.len(), 6, "{run}: {epochs:?}");
        assert!((epochs[2] - 1.0).abs() < 1e-12 && (epochs[5] - 2.0).abs() < 1e-12, "{run}: {epochs:?}");
    }
    for (a, b) in place.figure("at-once", "loss").iter().zip(place.figure("in-two", "loss")) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
    let tokens = place.figure("in-two", "num_tokens");
    assert!((tokens[5] - 2.0 * tokens[2]).abs() < 0.5, "each row counts once an epoch: {tokens:?}");
    // From the epoch's last whole accumulation, and from its end.
    for step in ["2", "3"] {
        place.copy(&place.path("in-two").display().to_string(), &format!("again-{step}"));
        place.run(&["resume", &format!("again-{step}"), "--step", step]).succeeded();
        place.assert_same_end(&format!("again-{step}"), "in-two", 6, "model.safetensors");
    }
}

#[test]
fn smoothed_targets_are_the_given_ones_and_the_whole_vocabulary_by_their_shares() {
    let place = TestFolder::with_answers();
    let loss = |share: &str| {
        let said = evaluated(&place, tiny(), "answers.jsonl", &["--label-smoothing-factor", share]);
        said["eval_loss"].as_f64().unwrap()
    };
    let (own, all) = (loss("0"), loss("1"));
    assert!((own - all).abs() > 1e-4, "{own} {all}");
    for share in ["0.1", "0.75"] {
        let by: f64 = share.parse().unwrap();
        let (got, want) = (loss(share), (1.0 - by) * own + by * all);
        assert!((got - want).abs() < 1e-6, "{share}: {got}, not {want}");
    }
    let train = |run: &str, more: &[&str]| {
        let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--output-dir", run, "--max-steps", "4"];
        let rest = ["--learning-rate", "0.002", "--logging-steps", "1", "--save-steps", "1", "--label-smoothing-factor", "0.2"];
        place.run(&[&sft[..], &rest, more].concat()).succeeded();
    };
    train("whole", &["--per-device-train-batch-size", "8"]);
    for step in 1..4 {
        place.assert_resumes("whole", step, 4, "model.safetensors");
    }
    train("accumulated", &["--per-device-train-batch-size", "2", "--gradient-accumulation-steps", "4"]);
    train("cut", &["--per-device-train-batch-size", "8", "--max-tokens-per-microbatch", "40"]);
    for run in ["accumulated", "cut"] {
        rlhost_tests::assert_near(&place.figures(run), &place.figures("whole"), run);
    }
}

#[test]
fn smoothed_targets_are_refused_where_a_loss_is_no_cross_entropy() {
    let place = TestFolder::with_answers();
    let sft = ["sft", "--dataset", "answers.jsonl"];
    for (given, more, said) in [
        (
            &sft[..],
            &["--label-smoothing-factor", "0.1", "--loss-type", "dft"][..],
            "sft has no cross-entropy loss on given tokens",
        ),
        (&sft, &["--label-smoothing-factor", "1.5"], "between 0 and 1"),
        (&["dpo", "--dataset", "pairs.jsonl"], &["--label-smoothing-factor", "0.1"], "dpo has no cross-entropy loss"),
        (
            &["grpo", "--plugin", "tldr_length_reward.wasm", "--dataset", "pairs.jsonl"],
            &["--label-smoothing-factor", "0.1"],
            "grpo has no cross-entropy loss",
        ),
    ] {
        let refused = place.run(&[given, &["--model", tiny(), "--output-dir", "refused"], more].concat());
        assert!(refused.code == Some(2) && refused.error().contains("label_smoothing_factor"), "{}", refused.stderr);
        assert!(refused.error().contains(said), "{}", refused.stderr);
    }
    // As TRL's files write it, where nothing is smoothed.
    place.write("trl.yaml", "label_smoothing_factor: 0.0\nneftune_noise_alpha: null\nmax_steps: 1\n");
    let dpo = ["dpo", "--model", tiny(), "--dataset", "pairs.jsonl", "--config", "trl.yaml", "--output-dir", "run"];
    place.run(&dpo).succeeded();
}

#[test]
fn a_live_run_with_smoothed_targets_keeps_a_loss_that_takes_them() {
    let place = TestFolder::with_answers();
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--output-dir", "run", "--max-steps", "100000"];
    let mut run = place.start(&[&sft[..], &["--label-smoothing-factor", "0.1", "--save-strategy", "no"]].concat());
    let patience = std::time::Duration::from_secs(60);
    let file = place.path("run/config.toml");
    place.wait("run", patience, || place.steps("run") > 0);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("loss_type = \"nll\""), "{text}");
    std::fs::write(&file, text.replace("loss_type = \"nll\"", "loss_type = \"dft\"")).unwrap();
    place.wait("run", patience, || !place.events("run", "settings_refused").is_empty());
    run.kill().unwrap();
    run.wait().unwrap();
    let refused = &place.events("run", "settings_refused")[0];
    assert!(refused["reason"].as_str().unwrap().contains("smoothed targets (label_smoothing_factor)"), "{refused}");
}
