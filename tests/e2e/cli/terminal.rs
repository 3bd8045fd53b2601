//! What a terminal shows while a run works: what the run is, and a line that moves in every phase.

use rlhost_tests::{STORIES, TestFolder, binary, tiny};
use std::process::{Command, Stdio};

/// Number of columns of the terminal.
const COLUMNS: usize = 100;

/// Runs a command on a terminal. Returns all that was drawn on it, or none, with the reason printed, where there is no `script`.
fn drawn(place: &TestFolder, arguments: &[&str]) -> Option<String> {
    let quoted: Vec<String> = arguments.iter().map(|argument| format!("'{argument}'")).collect();
    let command = format!("stty cols {COLUMNS} rows 40; exec {} {}", binary().display(), quoted.join(" "));
    let script = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .current_dir(place.path(""))
        .env_remove("RUST_LOG")
        .env_remove("NO_COLOR")
        .env("TERM", "xterm-256color")
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null())
        .output();
    match script {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}");
            Some(text)
        }
        Err(error) => {
            eprintln!("skipped: no terminal can be made with `script`: {error}");
            None
        }
    }
}

/// Returns what was drawn as lines of text, each drawing of a line by itself, without escape sequences.
fn lines(drawn: &str) -> Vec<String> {
    let mut text = String::new();
    let mut rest = drawn.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' if rest.next_if_eq(&'[').is_some() => {
                let end = rest.by_ref().find(|c| c.is_ascii_alphabetic());
                // Moving or erasing begins another drawing; a colour does not.
                if end != Some('m') {
                    text.push('\n');
                }
            }
            '\r' => text.push('\n'),
            c => text.push(c),
        }
    }
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn a_line_on_the_terminal_moves_in_every_phase_and_is_gone_at_the_end() {
    let place = TestFolder::new();
    let long = ["--num-generations", "8", "--per-device-train-batch-size", "64", "--max-completion-length", "96"];
    let evaluated = ["--eval-dataset", STORIES, "--eval-steps", "2", "--save-steps", "2", "--max-steps", "2"];
    let run = ["grpo", "--model", tiny(), "--dataset", STORIES, "--plugin", "tldr_length_reward.wasm", "--output-dir", "run"];
    // The second step is as long as the first, so that there is time for what is drawn after one step.
    let more = ["--plugin", "repetition_reward.wasm", "--logging-steps", "1"];
    let Some(drawn) = drawn(&place, &[&run[..], &long, &evaluated, &more].concat()) else { return };
    let lines = lines(&drawn);
    let find = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap_or_else(|| panic!("no {part:?} in {drawn}"));
    // What it is comes before the first step, with everything that is known of it.
    let known = [
        "grpo of",
        "algorithm: grpo",
        "rewards: tldr_length_reward",
        "model: ",
        "dataset: ",
        "steps: 2",
        "device: ",
        "folder: run",
    ];
    let places: Vec<usize> = known.iter().map(|part| find(part)).collect();
    let first = find("0/2  0:00 elapsed");
    assert!(places.is_sorted() && places[known.len() - 1] < first, "{places:?}, {first}: {drawn}");
    // The table has a column for each of several rewards.
    let names = &lines[find("repetition_reward  ")];
    assert!(names.contains("tldr_length_reward"), "{names}");
    // What is longer than the terminal goes on below, between words.
    assert!(lines.iter().filter(|line| line.contains("INFO")).all(|line| line.chars().count() <= COLUMNS), "{drawn}");
    assert!(lines[find("grpo of") + 1].starts_with("      /") || lines[find("grpo of")].ends_with(".jsonl"), "{drawn}");
    // Drawings within one phase differ.
    for (phase, at_least) in [("generating ", 2), ("evaluating ", 2)] {
        let mut all: Vec<&String> = lines.iter().filter(|line| line.contains("elapsed") && line.contains(phase)).collect();
        all.dedup();
        assert!(all.len() >= at_least, "{phase}: {all:?}");
    }
    assert!(lines.iter().any(|line| line.contains("1/2") && line.contains(" left")), "{drawn}");
    // A wrapped line could not be drawn over.
    let wide = lines.iter().filter(|line| line.contains("elapsed")).find(|line| line.chars().count() >= COLUMNS);
    assert_eq!(wide, None);
    let last = lines.iter().rposition(|line| line.contains("elapsed")).unwrap();
    assert!(last < find("done: 2 steps") && lines.last().unwrap().starts_with("next:"), "{drawn}");
}

#[test]
fn commands_say_what_takes_their_time_and_leave_nothing_behind() {
    let place = TestFolder::new();
    let texts: String = (0..20_000).map(|i| format!("{{\"text\": \"story {i} of a {} and {}\"}}\n", i * 7919, i % 977)).collect();
    place.write("texts.jsonl", texts);
    place.write(
        "config.json",
        r#"{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 2000, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}"#,
    );
    let new = ["new-model", "made", "--config", "config.json", "--corpus", "texts.jsonl", "--vocab-size", "2000"];
    let Some(drawn) = drawn(&place, &new) else { return };
    let lines = lines(&drawn);
    assert!(lines.iter().any(|line| line.starts_with("training the tokenizer")), "{drawn}");
    assert!(lines.last().is_some_and(|line| line.starts_with("made: 2.50 million")), "{drawn}");
}
