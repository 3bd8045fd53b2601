//! Runs of episodes with an environment: what is trained on, resuming, environments that misbehave.

use rlhost_tests::{TestFolder, UNRULY, tiny};
use serde_json::Value;
use std::time::Duration;

/// Marks turns as most templates do, and drops reasoning from earlier ones.
const CHATML: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}</end>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

fn place() -> TestFolder {
    let place = TestFolder::new();
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
fn first(place: &TestFolder, run: &str, name: &str) -> f64 {
    let lines = place.lines(&format!("{run}/metrics.jsonl"));
    lines[0][name].as_f64().unwrap_or_else(|| panic!("no {name} in {}", lines[0]))
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

/// Checks that each completion is its turns, as they were sampled, with what follows each between them.
fn assert_never_encoded_again(place: &TestFolder, run: &str, following: impl Fn(&str) -> String) {
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
        let more = ["--algorithm", algorithm, "--max-steps", "2", "--plugin", "tldr_length_reward.wasm"];
        place.run(&[&arguments(algorithm, UNRULY)[..], &more].concat()).succeeded();
        // Half a point for each of the first two turns, and one for the third.
        assert_eq!(first(&place, algorithm, "rewards/unruly/mean"), 2.0, "{algorithm}");
        assert!(first(&place, algorithm, "rewards/tldr_length_reward/mean") < 0.0, "{algorithm}");
        assert!(first(&place, algorithm, "grad_norm") > 0.0, "{algorithm}");
    }
    let pairs = place.run(&[&arguments("pairs", UNRULY)[..], &["--algorithm", "online_dpo"]].concat());
    assert!(pairs.error().contains("environment: this algorithm compares completions in pairs"), "{}", pairs.error());
}

/// A list's numbers, 0 where it has none.
fn floats(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|n| n.as_f64().unwrap_or(0.0)).collect()
}

#[test]
fn turns_may_have_their_own_advantages() {
    let place = place();
    let by_turn = ["--turn-advantages", "turn", "--turn-discount", "0.5", "--scale-rewards", "none"];
    let harsh = ["--set", "environment.config.no_number=-1", "--save-steps", "1", "--max-steps", "4"];
    place.run(&[&arguments("run", "guess_number.wasm")[..], &harsh, &by_turn].concat()).succeeded();
    let lines = place.lines("run/completions.jsonl");
    assert_eq!(lines.len(), 16);
    let returns = |line: &Value| {
        let mut rewards = floats(&line["turn_rewards"]);
        (0..rewards.len() - 1).rev().for_each(|turn| rewards[turn] += 0.5 * rewards[turn + 1]);
        rewards
    };
    let mut odd = 0;
    for group in lines.chunks(4) {
        let returns: Vec<Vec<f64>> = group.iter().map(returns).collect();
        for (line, own) in group.iter().zip(&returns) {
            let given = floats(&line["turn_advantages"]);
            assert_eq!(given.len(), own.len(), "{line}");
            for (turn, (given, own)) in given.iter().zip(own).enumerate() {
                let all: Vec<f64> = returns.iter().filter_map(|row| row.get(turn)).copied().collect();
                let want = own - all.iter().sum::<f64>() / all.len() as f64;
                assert!((given - want).abs() < 1e-6, "{given} and {want} in turn {turn} of {line}");
            }
            odd += usize::from(given.iter().any(|advantage| (advantage - given[0]).abs() > 1e-3));
        }
    }
    assert!(odd > 0, "all turns of each episode have the same advantage");
    assert!(first(&place, "run", "grad_norm") > 0.0);
    place.copy_as_after("run", 2, "again");
    place.run(&["resume", "again"]).succeeded();
    place.assert_same_end("again", "run", 4, "model.safetensors");
    // Without it, the first token's advantage is every token's.
    place.run(&[&arguments("whole", "guess_number.wasm")[..], &harsh].concat()).succeeded();
    for line in place.lines("whole/completions.jsonl") {
        assert!(floats(&line["turn_advantages"]).iter().all(|a| line["advantage"] == *a), "{line}");
    }
}

#[test]
fn rewards_of_turns_change_what_ppo_and_reinforce_pp_learn_and_need_an_environment() {
    let place = place();
    for algorithm in ["ppo", "reinforce_pp"] {
        let mut ends = Vec::new();
        for turns in ["false", "true"] {
            let run = format!("{algorithm}-{turns}");
            let more = ["--algorithm", algorithm, "--turn-rewards", turns, "--max-steps", "2", "--gamma", "0.5"];
            place.run(&[&arguments(&run, UNRULY)[..], &more].concat()).succeeded();
            ends.push(std::fs::read(place.path(&format!("{run}/checkpoint-2/model.safetensors"))).unwrap());
        }
        assert!(ends[0] != ends[1], "{algorithm}");
    }
    let rows = "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n";
    place.write("plain.jsonl", rows);
    let mut alone = vec!["train", "--model", tiny(), "--dataset", "plain.jsonl", "--plugin", "tldr_length_reward.wasm"];
    alone.extend([
        "--max-steps",
        "1",
        "--num-generations",
        "2",
        "--per-device-train-batch-size",
        "4",
        "--turn-advantages",
        "turn",
    ]);
    let refused = place.run(&alone);
    assert!(refused.error().contains("rewards of turns, which only episodes have"), "{}", refused.error());
    let both = ["--turn-advantages", "turn", "--multi-objective-aggregation", "normalize_then_sum"];
    let refused = place.run(&[&arguments("both", UNRULY)[..], &both].concat());
    assert!(refused.error().contains("sum_then_normalize"), "{}", refused.error());
}

#[test]
fn a_run_of_episodes_resumed_from_any_step_ends_as_the_uninterrupted_one() {
    let place = place();
    place.run(&arguments("whole", "guess_number.wasm")).succeeded();
    for step in [1, 2, 3, 6] {
        let name = format!("from-{step}");
        place.copy_as_after("whole", step, &name);
        place.run(&["resume", &name]).succeeded();
        place.assert_same_end(&name, "whole", 8, "model.safetensors");
    }
    assert!(place.path("whole/checkpoint-1/trainer/plugins/guess_number.wasm").is_file());
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

#[test]
fn calls_that_each_keep_their_limit_have_one_together() {
    let place = place();
    let slow = ["--set", "environment.config.misdeed=\"slow\"", "--set", "environment.limits.episodes_timeout_s=0.05"];
    let failed = place.run(&[&arguments("slow", UNRULY)[..], &slow].concat());
    assert!(failed.error().contains("limit of 0.05 s (limits.episodes_timeout_s)"), "{}", failed.error());
    let of_reward = ["--plugin", "tldr_length_reward.wasm", "--set", "plugin.tldr_length_reward.limits.episodes_timeout_s=1"];
    let refused = place.run(&[&arguments("refused", UNRULY)[..], &of_reward].concat());
    assert!(refused.error().contains("episodes_timeout_s is for environments"), "{}", refused.error());
}

#[test]
fn limits_of_episodes_need_an_environment() {
    let place = place();
    for (flag, key) in [("--max-turns", "max_turns"), ("--max-episode-tokens", "max_episode_tokens")] {
        let alone = ["train", "--model", tiny(), "--dataset", "rows.jsonl", "--plugin", "tldr_length_reward.wasm", flag, "3"];
        let refused = place.run(&alone);
        assert!(refused.error().contains(&format!("{key}: limits episodes")), "{}", refused.error());
    }
}

/// Trains a reward model for a step and returns its folder.
fn judge(place: &TestFolder, name: &str, more: &[&str]) -> String {
    let pair = |i: usize| format!("{{\"prompt\": \"{i}:\", \"chosen\": \" {}\", \"rejected\": \" b\"}}\n", "a".repeat(1 + i));
    place.write("pairs.jsonl", (0..4).map(pair).collect::<String>());
    let train = ["reward", "--model", tiny(), "--dataset", "pairs.jsonl", "--output-dir", name, "--max-steps", "1"];
    place.run(&[&train[..], &["--per-device-train-batch-size", "4", "--learning-rate", "0.01"], more].concat()).succeeded();
    format!("{name}/checkpoint-1")
}

#[test]
fn a_reward_model_judges_whole_conversations_beside_the_environment() {
    let place = place();
    let chat = ["--chat-template-path", "chat.jinja"];
    let (talking, plain) = (judge(&place, "talking", &chat), judge(&place, "plain", &[]));
    let run = arguments("run", "guess_number.wasm");
    let short = ["--reward-weights", "0.5", "--max-steps", "4", "--max-turns", "2", "--max-completion-length", "3"];
    let short = [&chat[..], &short].concat();
    place.run(&[&run[..], &short, &["--reward-model", &talking]].concat()).succeeded();
    let lines = place.lines("run/completions.jsonl");
    let rows = lines.iter().map(|line| format!("{}\n", serde_json::json!({"messages": line["messages"]})));
    place.write("conversations.jsonl", rows.collect::<String>());
    let scores = place.score(&talking, "conversations.jsonl");
    assert_eq!(scores.len(), lines.len());
    for (line, score) in lines.iter().zip(&scores) {
        let (given, want) = (line["rewards"]["talking"].as_f64().unwrap(), score["score"].as_f64().unwrap());
        assert!((given - want).abs() < 1e-4, "{given} and {want}: {line}");
        assert!(line["rewards"]["guess_number"].is_number(), "{line}");
    }
    place.copy_as_after("run", 2, "again");
    place.run(&["resume", "again"]).succeeded();
    place.assert_same_end("again", "run", 4, "model.safetensors");
    // A line of the game is a text, for a model that has learned texts.
    let text = arguments("text", "guess_number.wasm");
    place.run(&[&text[..], &["--max-steps", "2", "--reward-model", &plain]].concat()).succeeded();
    assert!(first(&place, "text", "rewards/plain/std") > 0.0);
    let refused = place.run(&[&arguments("refused", "guess_number.wasm")[..], &chat, &["--reward-model", &plain]].concat());
    assert!(refused.error().contains("reward model plain: it has no chat template"), "{}", refused.error());
    let failing = ["--set", "environment.config.misdeed=\"refuse\"", "--set", "environment.on_error=\"unscorable\""];
    let survived = [&arguments("failing", UNRULY)[..], &["--max-steps", "4", "--reward-model", &plain], &failing].concat();
    place.run(&survived).succeeded();
    let lines = place.lines("failing/completions.jsonl");
    assert!(lines.iter().all(|line| line["rewards"]["plain"].is_null() == (line["row"] == 3)), "{lines:?}");
}

/// A row of the dataset for an environment.
fn row_for(i: u32, environment: &str) -> String {
    format!("{{\"prompt\": \"Guess number {i}.\", \"secret\": {}, \"environment\": \"{environment}\"}}\n", 1 + 13 * i)
}

#[test]
fn several_environments_share_a_run_by_a_column() {
    let place = place();
    let named = ["guess_number", "unruly", "unruly.wasm"];
    place.write("mixed.jsonl", (0..6).map(|i| row_for(i, named[i as usize % 3])).collect::<String>());
    let mut all = arguments("mixed", "guess_number.wasm");
    all.extend(["--environment", UNRULY, "--dataset", "mixed.jsonl", "--set", "environment.guess_number.config.high=70"]);
    all.extend(["--set", "environment.unruly.weight=2", "--max-steps", "6"]);
    place.run(&all).succeeded();
    let lines = place.lines("mixed/completions.jsonl");
    assert_eq!(lines.len(), 24);
    for line in &lines {
        let of_game = line["row"].as_u64().unwrap() % 3 == 0;
        let rewards = &line["rewards"];
        assert_eq!((rewards["guess_number"].is_number(), rewards["unruly"].is_number()), (of_game, !of_game), "{line}");
        let asked = line["messages"][0]["content"].as_str().unwrap();
        assert_eq!(asked == "Guess my number between 1 and 70.", of_game, "{line}");
    }
    // A generation has its rows of the dataset, each with its whole group, whoever plays them.
    let rows: Vec<u64> = lines.iter().map(|line| line["row"].as_u64().unwrap()).collect();
    for (generation, first) in rows.chunks(8).zip([0, 2, 4]) {
        let mut groups: Vec<&[u64]> = generation.chunks(4).collect();
        groups.sort_unstable();
        assert_eq!(groups, [[first; 4], [first + 1; 4]], "{rows:?}");
    }
    place.copy_as_after("mixed", 3, "again");
    place.run(&["resume", "again"]).succeeded();
    place.assert_same_end("again", "mixed", 6, "model.safetensors");
    let refused = place.run(&["resume", "again", "--step", "3", "--set", "environment.unruly.weight=1"]);
    assert!(refused.error().contains("environment.unruly.weight"), "{}", refused.error());
    place.write("mixed.jsonl", (0..6).map(|i| row_for(i, ["guess_number", "chess"][i as usize % 2])).collect::<String>());
    all[8] = "refused";
    let refused = place.run(&all);
    let wanted = "dataset: row 1: its column \"environment\" must be one of guess_number, unruly";
    assert!(refused.error().contains(wanted), "{}", refused.error());
    all.extend(["--set", "environment.config.high=3"]);
    assert!(place.run(&all).error().contains("no environment is named \"config\""));
}

#[test]
fn recorded_turns_are_played_again_with_another_environment_or_reward() {
    let place = place();
    place.run(&[&arguments("run", "guess_number.wasm")[..], &["--max-steps", "4"]].concat()).succeeded();
    let replayed = |more: &[&str]| place.run(&[&["replay", "run"], more].concat()).succeeded().stdout.clone();
    let line = |text: &str| text.lines().find(|line| line.starts_with("guess_number")).unwrap().to_owned();
    let figures = |text: &str| line(text).split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let same = replayed(&["--environment", "guess_number.wasm"]);
    assert!(same.contains("0 of 16 episodes get replies that differ") && figures(&same)[3] == "0.0000", "{same}");
    // A turn without a number costs nothing there.
    // It may be granted a folder, which must be there.
    let folder = place.run(&["replay", "run", "--environment", "guess_number.wasm", "--folder", "words=nowhere"]);
    assert!(folder.error().contains("nowhere"), "{}", folder.stderr);
    let kinder = replayed(&["--environment", "guess_number.wasm", "--set", "no_number=0.25"]);
    assert!(kinder.contains("0 of 16 episodes get replies that differ") && figures(&kinder)[3] != "0.0000", "{kinder}");
    let other = replayed(&["--environment", UNRULY]);
    assert!(other.contains("16 of 16 episodes get replies that differ"), "{other}");
    let by_length = replayed(&["--plugin", "tldr_length_reward.wasm"]);
    assert!(by_length.contains("16 completions of"), "{by_length}");
    place.run(&["report", "run"]).succeeded();
    let item = &place.report("run")["of_runs"]["group"]["run"]["groups"][0]["items"][0];
    let messages = item["messages"].as_array().unwrap();
    assert!(
        messages.iter().any(|message| message["turn"] == 0) && messages.iter().any(|message| message["turn"].is_null()),
        "{item}"
    );
    place.write("plain.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    let mut plain = vec!["train", "--model", tiny(), "--dataset", "plain.jsonl", "--plugin", "tldr_length_reward.wasm"];
    plain.extend(["--max-steps", "1", "--num-generations", "2", "--per-device-train-batch-size", "4", "--output-dir", "plain"]);
    place.run(&plain).succeeded();
    let refused = place.run(&["replay", "plain", "--environment", UNRULY]);
    assert!(refused.error().contains("not episodes with recorded turns"), "{}", refused.error());
}

#[test]
fn a_run_killed_at_random_moments_of_episodes_ends_as_the_uninterrupted_one() {
    let place = place();
    let of = |run: &'static str| [&arguments(run, "guess_number.wasm")[..], &["--max-steps", "24", "--max-turns", "6"]].concat();
    place.run(&of("whole")).succeeded();
    let mut given = of("killed");
    given.push("--resume-from-checkpoint");
    place.kill_after_each(&given, (0..12).map(|kill| Duration::from_millis(150 + 97 * kill % 700)));
    place.run(&given).succeeded();
    place.assert_same_end("killed", "whole", 24, "model.safetensors");
}

#[test]
fn an_environment_is_swapped_while_its_run_goes_on() {
    let place = place();
    let bytes = std::fs::read(UNRULY).unwrap();
    place.write("game.wasm", &bytes);
    let long = ["--max-steps", "100000", "--save-steps", "100000", "--log-completions", "none"];
    let mut child = place.start(&[&arguments("run", "game.wasm")[..], &long].concat());
    let patience = Duration::from_secs(120);
    place.wait("run", patience, || place.steps("run") > 1);
    // The same but for its hash: with a section that nobody reads.
    place.write("game.wasm", [&bytes[..], &[0, 2, 1, b'x']].concat());
    let events = || std::fs::read_to_string(place.path("run/events.jsonl")).unwrap_or_default();
    place.wait("run", patience, || events().matches("\"plugin_swapped\"").count() == 1);
    let before = place.steps("run");
    place.wait("run", patience, || place.steps("run") > before + 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(place.events("run", "plugin_swapped")[0]["plugin"], "game");
}
