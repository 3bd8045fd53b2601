//! Runs of episodes with an environment: what is trained on, resuming, environments that misbehave.

use rlhost_tests::{Place, UNRULY, tiny};
use serde_json::Value;

/// Marks turns as most templates do, and drops reasoning from earlier ones.
const CHATML: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}</end>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

fn place() -> Place {
    let place = Place::new();
    let row = |i: u32| format!("{{\"prompt\": \"Guess number {i}.\", \"secret\": {}, \"bad\": {}}}\n", 1 + 13 * i, i % 4 == 3);
    place.write("rows.jsonl", (0..8).map(row).collect::<String>());
    place.write("chat.jinja", CHATML);
    place
}

/// Two prompts a generation, which is trained on in two steps.
fn arguments<'a>(run: &'a str, environment: &'a str) -> Vec<&'a str> {
    let mut all = vec!["train", "--model", tiny(), "--environment", environment, "--dataset", "rows.jsonl", "--output-dir", run];
    all.extend(["--num-generations", "4", "--per-device-train-batch-size", "4", "--steps-per-generation", "2"]);
    all.extend(["--max-completion-length", "5", "--max-turns", "3", "--max-steps", "8", "--save-steps", "1"]);
    all.extend(["--logging-steps", "1", "--learning-rate", "0.002", "--log-completions", "all", "--shuffle-dataset", "false"]);
    all
}

/// The tokens of a text, one a byte.
fn ids(text: &str) -> Vec<u64> {
    let file = std::fs::read_to_string(std::path::Path::new(tiny()).join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_str(&file).unwrap();
    let of = |c: char| match c {
        ' ' => 'Ġ',
        '\n' => 'Ċ',
        c => c,
    };
    text.chars().map(|c| tokenizer["model"]["vocab"][of(c).to_string()].as_u64().unwrap()).collect()
}

/// A figure of a run's first step, which has a generation.
fn first(place: &Place, run: &str, name: &str) -> f64 {
    let lines = place.lines(&format!("{run}/metrics.jsonl"));
    lines[0][name].as_f64().unwrap_or_else(|| panic!("no {name} in {}", lines[0]))
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

/// Checks that each completion is its turns, as they were sampled, with what follows each between them.
fn assert_never_encoded_again(place: &Place, run: &str, following: impl Fn(&str) -> String) {
    let lines = place.lines(&format!("{run}/completions.jsonl"));
    let mut odd = 0;
    for line in &lines {
        let (all, replies) = (numbers(&line["completion_ids"]), line["replies"].as_array().unwrap());
        let messages = line["messages"].as_array().unwrap();
        let said: Vec<&Value> = messages.iter().filter(|m| m["role"] == "assistant").collect();
        assert_eq!(replies.len() + 1, said.len(), "{line}");
        let asked = messages.iter().position(|m| m["role"] == "assistant").unwrap();
        for (i, reply) in replies.iter().enumerate() {
            let range = numbers(reply);
            let heard = messages[asked + 1 + 2 * i]["content"].as_str().unwrap();
            let got = &all[range[0] as usize..range[1] as usize];
            let whole = ids(&following(heard));
            // A turn that a line break ended has its own.
            assert!(got == whole || got == &whole[1..], "{line}");
        }
        // Bytes that are no text: decoded and encoded again, these ids would be others.
        odd += usize::from(said.iter().any(|m| m["content"].as_str().unwrap().contains('\u{FFFD}')));
    }
    assert!(odd > 0, "the model wrote nothing that decoding changes");
}

#[test]
fn trained_tokens_are_sampled_ones_with_what_follows_a_turn() {
    let place = place();
    place.run(&[&arguments("plain", "guess_number.wasm")[..], &["--max-steps", "2"]].concat()).succeeded();
    assert_never_encoded_again(&place, "plain", |heard| format!("\n{heard}\n"));
    let with_template = ["--max-steps", "2", "--chat-template-path", "chat.jinja"];
    place.run(&[&arguments("chat", "guess_number.wasm")[..], &with_template].concat()).succeeded();
    assert_never_encoded_again(&place, "chat", |heard| format!("</end>\n<user>{heard}</end>\n<assistant>"));
    let lines = place.lines("chat/completions.jsonl");
    assert!(
        lines.iter().all(|line| line["prompt"] == "<user>Guess my number between 1 and 100.</end>\n<assistant>"),
        "{lines:?}"
    );
    let sampled = |line: &Value| {
        let replies: u64 = line["replies"].as_array().unwrap().iter().map(|r| numbers(r)[1] - numbers(r)[0]).sum();
        numbers(&line["completion_ids"]).len() as f64 - replies as f64
    };
    let mean = lines.iter().map(sampled).sum::<f64>() / lines.len() as f64;
    let logged = first(&place, "chat", "completions/mean_length");
    assert!((logged - mean).abs() < 1e-6, "{logged} and {mean}");
    assert!(first(&place, "chat", "episodes/mean_turns") > 1.0);
    assert!(first(&place, "chat", "episodes/tokens_of_replies") > 10.0);
    // The policy has not moved since it sampled: no ratio is clipped.
    assert_eq!(first(&place, "chat", "clip_ratio/region_mean"), 0.0);
}

#[test]
fn every_algorithm_of_completions_learns_from_episodes() {
    let place = place();
    for algorithm in ["grpo", "rloo", "ppo", "reinforce_pp"] {
        let more = ["--algorithm", algorithm, "--max-steps", "2", "--environment", UNRULY, "--plugin", "tldr_length_reward.wasm"];
        place.run(&[&arguments(algorithm, UNRULY)[..], &more].concat()).succeeded();
        // Half a point for each of the first two turns, and one for the third.
        assert_eq!(first(&place, algorithm, "rewards/unruly/mean"), 2.0, "{algorithm}");
        assert!(first(&place, algorithm, "rewards/tldr_length_reward/mean") < 0.0, "{algorithm}");
        assert!(first(&place, algorithm, "grad_norm") > 0.0, "{algorithm}");
    }
    let pairs = place.run(&[&arguments("pairs", UNRULY)[..], &["--algorithm", "online_dpo"]].concat());
    assert!(pairs.error().contains("environment: this algorithm compares completions in pairs"), "{}", pairs.error());
}

#[test]
fn a_run_of_episodes_resumed_from_any_step_ends_as_the_uninterrupted_one() {
    let place = place();
    place.run(&arguments("whole", "guess_number.wasm")).succeeded();
    for step in [1, 2, 3, 6] {
        let name = format!("from-{step}");
        place.copy("whole", &name);
        for later in step + 1..=8 {
            std::fs::remove_dir_all(place.path(&name).join(format!("checkpoint-{later}"))).unwrap();
        }
        place.run(&["resume", &name]).succeeded();
        place.assert_same_end(&name, "whole", 8, "model.safetensors");
    }
    assert!(place.path("whole/checkpoint-1/plugins/guess_number.wasm").is_file());
}

#[test]
fn an_environment_that_misbehaves_costs_its_rows() {
    let place = place();
    for (misdeed, said) in [
        ("hang", "longer than its limit of 2 s"),
        ("trap", "the table is turned over"),
        ("refuse", "I won't"),
        ("few", "answers for"),
        ("nan", "NaN"),
        ("flood", "2097156 bytes"),
        ("assistant", "the model's own"),
        ("begin", "it can't begin"),
    ] {
        let set = format!("environment.config.misdeed=\"{misdeed}\"");
        let mut all = arguments(misdeed, UNRULY);
        all.extend(["--max-steps", "4", "--set", &set]);
        if misdeed == "hang" {
            all.extend(["--set", "environment.limits.call_timeout_s=2"]);
        }
        let failed = place.run(&all);
        assert!(failed.error().contains("plugin unruly") && failed.error().contains(said), "{misdeed}: {}", failed.error());
        let run = format!("{misdeed}-survived");
        let at = all.iter().position(|a| *a == misdeed).unwrap();
        all[at] = &run;
        all.extend(["--set", "environment.on_error=\"unscorable\""]);
        place.run(&all).succeeded();
        // Two generations of two prompts; the fourth row is bad.
        let lines = place.lines(&format!("{run}/completions.jsonl"));
        assert_eq!(lines.len(), 16);
        for line in &lines {
            let bad = line["row"] == 3;
            assert_eq!(line["failed"].is_string(), bad, "{misdeed}: {line}");
            assert_eq!(line["rewards"]["unruly"].is_null(), bad, "{misdeed}: {line}");
        }
        assert!(!place.events(&run, "plugin_error").is_empty(), "{misdeed}");
    }
}
