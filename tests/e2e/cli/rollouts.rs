//! What `rlhost rollouts` shows of a run's completions.

use rlhost_tests::TestFolder;
use serde_json::{Value, json};
use std::fmt::Write;

/// Trains with two rewards for four steps.
fn trained() -> TestFolder {
    let place = TestFolder::new();
    let weight = ["--plugin", "repetition_reward.wasm", "--set", "plugin.repetition_reward.weight=0.5"];
    place.train("run", &[&weight[..], &["--max-steps", "4", "--num-generations", "4"]].concat()).succeeded();
    place
}

fn shown(place: &TestFolder, more: &[&str]) -> String {
    place.run(&[&["rollouts", "run"], more].concat()).succeeded().stdout.clone()
}

fn selected(place: &TestFolder, more: &[&str]) -> Vec<Value> {
    let lines = shown(place, &[more, &["--json"]].concat());
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The weighted sum of a completion's scores.
fn total(line: &Value) -> f64 {
    let score = |name: &str| line["rewards"][name].as_f64().unwrap();
    score("tldr_length_reward") + 0.5 * score("repetition_reward")
}

#[test]
fn completions_are_found_by_step_prompt_reward_and_version() {
    let place = trained();
    let all = place.lines("run/completions.jsonl");
    let newest = all.last().unwrap()["step"].as_u64().unwrap();
    assert_eq!(selected(&place, &["--step", ".."]), all);
    assert!(selected(&place, &[]).iter().all(|line| line["step"] == newest));
    let of = |keep: &dyn Fn(&Value) -> bool| all.iter().filter(|line| keep(line)).cloned().collect::<Vec<_>>();
    assert_eq!(selected(&place, &["--step", "1..2"]), of(&|line| (1..=2).contains(&line["step"].as_u64().unwrap())));
    let row = all[0]["row"].as_u64().unwrap();
    assert_eq!(selected(&place, &["--row", &row.to_string()]), of(&|line| line["row"] == row));
    let prompt = all[0]["prompt"].as_str().unwrap();
    assert_eq!(selected(&place, &["--prompt", &prompt.to_uppercase()]), of(&|line| line["prompt"] == prompt));
    let hash = all[0]["plugins"]["grpo"].as_str().unwrap();
    assert_eq!(selected(&place, &["--version", &format!("grpo={}", &hash[..8])]), all);
    let limit = all.iter().map(total).fold(f64::NEG_INFINITY, f64::max);
    assert_eq!(selected(&place, &["--reward", &format!(">={limit}")]), of(&|line| total(line) >= limit));
    let mut best = all.clone();
    best.sort_by(|a, b| total(b).total_cmp(&total(a)));
    assert_eq!(selected(&place, &["--top", "3"]), best[..3]);
    best.sort_by(|a, b| total(a).total_cmp(&total(b)));
    assert_eq!(selected(&place, &["--bottom", "3"]), best[..3]);
    assert_eq!(selected(&place, &["--step", "..", "--limit", "5"]), all[..5]);

    let text = shown(&place, &["--step", "0"]);
    assert!(text.starts_with(&format!("-- step 0, row {row}, 4 completions\n")), "{text}");
    let names = "tldr_length_reward  repetition_reward  reward  advantage  tokens\n";
    assert!(text.contains(&format!("     {prompt}\n")) && text.contains(names), "{text}");
    assert!(!text.contains('\u{1b}'), "no escape sequences in a file: {text}");
}

#[test]
fn mistakes_are_named_with_what_there_is() {
    let place = trained();
    place.write("file", "");
    let cases: [(&[&str], &str); 10] = [
        (&["nowhere"], "there is no such folder"),
        (&["file"], "is a file"),
        (&["run/checkpoint-4"], "is a checkpoint; give its run's folder, run"),
        (&["."], "it contains some, such as"),
        (&["run", "--step", "3..1"], "the first step is after the last"),
        (&["run", "--step", "soon"], "expected a step"),
        (&["run", "--reward", "repetition_rewart>=0"], "did you mean \"repetition_reward\"?"),
        (&["run", "--top", "2", "--by", "length"], "they have repetition_reward, tldr_length_reward"),
        (&["run", "--version", "ffff"], "there are grpo="),
        (&["run", "--version", "grpo"], "the beginning of a plugin's hash"),
    ];
    for (arguments, words) in cases {
        let outcome = place.run(&[&["rollouts"], arguments].concat());
        assert!(outcome.code == Some(2) && outcome.error().contains(words), "{arguments:?}: {}", outcome.stderr);
    }
    let nothing = place.run(&["rollouts", "run", "--step", "77"]);
    assert!(nothing.succeeded().stdout.is_empty() && nothing.stderr.contains("no completions of step 77"), "{}", nothing.stderr);
    std::fs::remove_file(place.path("run/completions.jsonl")).unwrap();
    let outcome = place.run(&["rollouts", "run"]);
    assert!(outcome.code == Some(2) && outcome.error().contains("log_completions = none"), "{}", outcome.stderr);
    assert!(std::process::Command::new("mkfifo").arg(place.path("run/completions.jsonl")).status().unwrap().success());
    let outcome = place.run(&["rollouts", "run"]);
    assert!(outcome.code == Some(2) && outcome.error().contains("a pipe"), "{}", outcome.stderr);
}

#[test]
fn an_old_damaged_file_is_read_as_far_as_it_goes() {
    let place = TestFolder::new();
    std::fs::create_dir(place.path("run")).unwrap();
    place.write("run/config.toml", "");
    let mut text = String::new();
    // An early run's lines, one whose resume took a step again, hidden characters, and a line of more than 8 MiB.
    for (step, completion) in [(0, "first"), (1, "undone"), (1, "again \u{202e}\u{1b}[2J"), (0, "third")] {
        let line =
            json!({"step": step, "row": 1, "prompt": "Q", "completion": completion, "completion_ids": [1], "rewards": {"r": 1}});
        writeln!(text, "{line}").unwrap();
    }
    writeln!(text, "{{\"step\": 1, \"row\": torn").unwrap();
    writeln!(text, "{{\"step\":1,\"completion\":\"{}\"}}", "x".repeat(9 << 20)).unwrap();
    writeln!(text, "{}", json!({"step": 1, "prompt": "Q", "completion": "last", "rewards": {}})).unwrap();
    text.push_str("{\"step\":1,\"completion\":\"still being wri");
    place.write("run/completions.jsonl", text);
    let outcome = place.run(&["rollouts", "run", "--step", "..", "--json"]);
    let found: Vec<Value> = outcome.succeeded().stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let completions: Vec<&str> = found.iter().map(|line| line["completion"].as_str().unwrap()).collect();
    assert_eq!(completions, ["third", "last"]);
    for words in ["line 5 is not a JSON object", "line 6 is over the limit of 8 MiB"] {
        assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    }
    place.write("run/completions.jsonl", "{\"step\":0,\"completion\":\"\u{202e}\u{1b}[2J\\u001b\\n\"}\n".replace('\u{1b}', ""));
    let text = place.run(&["rollouts", "run"]).succeeded().stdout.clone();
    assert!(text.contains("     \\u{202e}[2J\\u{1b}\n"), "{text}");
}

#[test]
fn a_terminal_gets_colours_its_width_and_a_pager() {
    let place = trained();
    let shown = |pager: &str, command: &str| {
        let mut script = std::process::Command::new("script");
        let line = format!("stty rows 24 cols 60; {} {command}", rlhost_tests::binary().display());
        script.args(["-qec", &line, "/dev/null"]).current_dir(place.path("."));
        script.env("PAGER", pager).env("TERM", "xterm").env_remove("NO_COLOR").stdin(std::process::Stdio::null());
        script.output().ok().map(|out| String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let Some(plain) = shown("", "rollouts run --step 0") else {
        return eprintln!("skipped: there is no `script`, which makes a terminal");
    };
    assert!(plain.contains("\u{1b}["), "{plain}");
    // Narrower than the table of scores, so they are words.
    assert!(plain.contains("1. tldr_length_reward "), "{plain}");
    assert!(plain.lines().all(|line| console_width(line) <= 60), "{plain}");
    let said = shown("cat > paged", "rollouts run --step 0").unwrap();
    let paged = std::fs::read_to_string(place.path("paged")).unwrap();
    assert!(!said.contains("step 0") && paged.contains("step 0, row"), "{said}");
    // A pager that ends early ends the command, without a complaint.
    let said = shown("head -n 1", "rollouts run --step ..").unwrap();
    assert!(said.contains("step 0, row") && !said.contains("error") && said.lines().count() < 4, "{said}");
    let said = shown("cat > paged", "rollouts run --step 0 --json").unwrap();
    assert!(said.starts_with("{\"step\":0") && !said.contains("\u{1b}["), "{said}");
}

/// The number of characters of a line of a terminal, without its colours.
fn console_width(line: &str) -> usize {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default();
    let rest: usize = parts.map(|part| part.split_once('m').map_or(part, |(_, text)| text).trim_end().chars().count()).sum();
    first.trim_end().chars().count() + rest
}
