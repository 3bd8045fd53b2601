//! Distillation on a mixture of the policy's completions and the dataset's.

use super::distillation::place_of_teachers;
use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};

/// A place with a teacher, and rows with a completion that no policy writes.
fn place() -> TestFolder {
    let place = place_of_teachers();
    let row = |i: usize| json!({"prompt": format!("q{i}:"), "completion": format!(" {}.", "ab".repeat(1 + i % 4))});
    place.write("rows.jsonl", (0..24).map(|i| format!("{}\n", row(i))).collect::<String>());
    place
}

fn arguments<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base = ["distillation", "--model", tiny(), "--dataset", "rows.jsonl", "--teacher-model", "taught/checkpoint-30"];
    let steps = ["--per-device-train-batch-size", "4", "--max-steps", "6", "--save-steps", "3", "--logging-steps", "1"];
    let rest = ["--max-completion-length", "16", "--learning-rate", "0.003", "--log-completions", "all", "--output-dir", run];
    [&base[..], &steps, &rest, more].concat()
}

/// Returns whether a line of `completions.jsonl` is the dataset's completion of its prompt.
fn is_given(line: &Value) -> bool {
    let (prompt, text) = (line["prompt"].as_str().unwrap(), line["completion"].as_str().unwrap());
    let row: usize = prompt.trim_start_matches(|c: char| !c.is_ascii_digit()).trim_end_matches(':').parse().unwrap();
    text.starts_with(&format!(" {}.", "ab".repeat(1 + row % 4)))
}

#[test]
fn each_row_has_the_policys_completion_or_its_own_by_chance() {
    let place = place();
    place.run(&arguments("mixed", &["--lmbda", "0.5"])).succeeded();
    let lines = place.lines("mixed/completions.jsonl");
    let given = lines.iter().filter(|line| is_given(line)).count();
    assert!(lines.len() == 24 && (4..=20).contains(&given), "{given} of {} are given", lines.len());
    let shares = place.figure("mixed", "rollout/own_share");
    assert_eq!(shares.iter().map(|share| 4.0 * (1.0 - share)).sum::<f64>(), given as f64);
    assert!(place.figure("mixed", "loss").iter().all(|loss| loss.is_finite() && *loss > 0.0));
    place.assert_resumes("mixed", 3, 6, "model.safetensors");
    // Nearly all of one kind are that kind.
    for (share, alone, own) in [("1e-9", "0", 0.0), ("0.999999999", "1", 1.0)] {
        let (run, other) = (format!("share-{alone}"), format!("alone-{alone}"));
        place.run(&arguments(&run, &["--lmbda", share])).succeeded();
        place.run(&arguments(&other, &["--lmbda", alone])).succeeded();
        assert_eq!(place.figure(&run, "rollout/own_share"), [own; 6]);
        for name in ["loss", "grad_norm"] {
            let (got, want) = (place.figure(&run, name), place.figure(&other, name));
            let near = got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs());
            assert!(got.len() == 6 && want.len() == 6 && near, "{share} {name}: {got:?} {want:?}");
        }
    }
}

#[test]
fn rows_without_a_completion_and_algorithms_that_cannot_mix_are_refused() {
    let place = place();
    place.write("bare.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    place.write("text.jsonl", "{\"text\": \"a text\"}\n{\"text\": \"another\"}\n");
    let messages = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    place.write("chat.jsonl", format!("{messages}\n").repeat(8));
    place.write(
        "chat.jinja",
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
    );
    for (more, expected) in [
        (&["--lmbda", "0.5", "--dataset", "bare.jsonl", "--strict-data"][..], "bare.jsonl:1: has neither"),
        (&["--lmbda", "0.5", "--dataset", "text.jsonl", "--strict-data"], "has no prompt with a completion"),
        (&["--lmbda", "0.5", "--loss-type", "policy_gradient"], "learns from one of them only"),
        (&["--lmbda", "0.5", "--learn-from", "dataset"], "leave one of them out"),
        (&["--lmbda", "0.5", "--num-generations", "2"], "set num_generations = 1"),
        (&["--lmbda", "1.5"], "it is a share, from 0 to 1"),
    ] {
        let refused = place.run(&arguments("refused", more));
        assert!(refused.code != Some(0) && refused.error().contains(expected), "{more:?}: {}", refused.stderr);
    }
    let scored = ["grpo", "--model", tiny(), "--dataset", "rows.jsonl", "--plugin", "tldr_length_reward.wasm", "--lmbda", "0.5"];
    let scored = place.run(&[&scored[..], &["--num-generations", "1", "--max-steps", "1"]].concat());
    assert!(scored.code != Some(0) && !scored.stderr.contains("panicked"), "{}", scored.stderr);
    // The last turn of a conversation is its completion.
    let chat = ["--lmbda", "0.5", "--dataset", "chat.jsonl", "--chat-template-path", "chat.jinja", "--max-steps", "2"];
    place.run(&arguments("chat", &chat)).succeeded();
    let lines = place.lines("chat/completions.jsonl");
    assert!(lines.iter().all(|line| line["prompt"].as_str().unwrap().contains("assistant: ")), "{}", lines[0]);
    let given = lines.iter().filter(|line| line["completion"] == "b\n").count();
    assert!((1..8).contains(&given), "{given} of {}", lines.len());
}
