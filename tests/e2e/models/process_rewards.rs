//! Process reward models: a value at each token that ends a step, as a reward and as a column that plugins see.

use rlhost_tests::judge::{BIAS, step_judge};
use rlhost_tests::{STORIES, TestFolder, tiny};
use serde_json::{Value, json};
use std::fs;

/// What the process reward model must say of a completion: the reward model's values of the text up to the end of each step.
fn steps_of(place: &TestFolder, prompt: &str, completion: &str, separator: &str) -> Vec<f64> {
    let mut text = prompt.to_owned();
    let texts: Vec<String> = completion
        .split(separator)
        .filter(|step| !step.trim().is_empty())
        .map(|step| {
            text.push_str(step);
            text.push_str(separator);
            format!("{}\n", json!({"text": text}))
        })
        .collect();
    if texts.is_empty() {
        return Vec::new();
    }
    place.write("texts.jsonl", texts.concat());
    let scores = place.score("rm", "texts.jsonl");
    let values = scores.iter().map(|line| line["score"].as_f64().unwrap());
    values.map(|value| 1.0 / (1.0 + (-value - BIAS).exp())).collect()
}

#[test]
fn a_dataset_is_valued_step_by_step() {
    let place = step_judge();
    let rows = [("a question:", "one step\nanother\n\na third"), ("q", "alone"), ("q", " \n")];
    let line = |(prompt, completion): &(&str, &str)| format!("{}\n", json!({"prompt": prompt, "completion": completion}));
    place.write("said.jsonl", rows.iter().map(line).collect::<String>());
    let lines = place.score("prm", "said.jsonl");
    assert_eq!(lines.len(), 3);
    for (line, ((prompt, completion), count)) in lines.iter().zip(rows.iter().zip([3, 1, 0])) {
        let (got, want) = (line["steps"].as_array().unwrap(), steps_of(&place, prompt, completion, "\n"));
        assert!(got.len() == count && want.len() == count, "{line}");
        assert!(got.iter().zip(&want).all(|(a, b)| (a.as_f64().unwrap() - b).abs() < 1e-5), "{line} {want:?}");
    }
    // Steps that end otherwise.
    let (prompt, completion) = ("q", "one<s>two");
    place.write("said.jsonl", line(&(prompt, completion)));
    let apart = ["score", "prm", "--dataset", "said.jsonl", "--json", "--step-separator"];
    let outcome = place.run(&[&apart[..], &["<s>"]].concat());
    let got: Value = serde_json::from_str(outcome.stdout.trim()).unwrap();
    let want = steps_of(&place, prompt, completion, "<s>");
    let got = got["steps"].as_array().unwrap();
    assert!(got.len() == 2 && got.iter().zip(&want).all(|(a, b)| (a.as_f64().unwrap() - b).abs() < 1e-5), "{got:?} {want:?}");
    for (wrong, word) in [("", "--step-separator"), ("x", "scores whole texts")] {
        let model = if wrong.is_empty() { "prm" } else { "rm" };
        let refused = place.run(&["score", model, "--dataset", "said.jsonl", "--step-separator", wrong]);
        assert!(refused.code == Some(2) && refused.error().contains(word), "{}", refused.stderr);
    }
    let refused = place.run(&["score", "prm", "--dataset", "pairs.jsonl", "--json"]);
    assert!(refused.code == Some(2) && refused.error().contains("scores the steps"), "{}", refused.stderr);
}

#[test]
fn the_values_of_steps_are_a_reward_and_reach_a_plugin_as_a_column() {
    let place = step_judge();
    // A policy that writes lines of letters.
    let line = |i: usize| format!("{}\n", json!({"prompt": format!("p{i}"), "completion": "ab\ncd\n".repeat(1 + i % 3)}));
    place.write("lines.jsonl", (0..16).map(line).collect::<String>());
    let learn = ["sft", "--model", tiny(), "--dataset", "lines.jsonl", "--output-dir", "lines", "--max-steps", "40"];
    place.run(&[&learn[..], &["--learning-rate", "0.01"]].concat()).succeeded();
    let mut all = vec!["grpo", "--model", "lines/checkpoint-40", "--dataset", "lines.jsonl", "--output-dir", "asked"];
    all.extend(["--plugin", "process_reward.wasm", "--set", "plugin.process_reward.config.combine=mean"]);
    all.extend(["--reward-model", "prm"]);
    all.extend(["--set", "plugin.prm.step_separator=\"d\"", "--max-completion-length", "16", "--learning-rate", "0.0001"]);
    all.extend(["--max-steps", "3", "--save-steps", "1", "--logging-steps", "1", "--log-completions", "all"]);
    place.run(&all).succeeded();
    let said = place.lines("asked/completions.jsonl").into_iter().filter(|row| row["step"] == 0);
    let said = said.filter(|row| !row["completion"].as_str().unwrap().contains('\u{fffd}'));
    let (mut most, mut rows) = (0, 0);
    for row in said {
        let want = steps_of(&place, row["prompt"].as_str().unwrap(), row["completion"].as_str().unwrap(), "d");
        let scores = ["prm", "process_reward"].map(|name| row["rewards"][name].as_f64());
        let (least, mean) = (want.iter().copied().reduce(f64::min), want.iter().sum::<f64>() / want.len() as f64);
        let near = |got: Option<f64>, want: Option<f64>| match (got, want) {
            (Some(got), Some(want)) => (got - want).abs() < 1e-4,
            (got, want) => got == want,
        };
        assert!(near(scores[0], least) && near(scores[1], least.map(|_| mean)), "{row} {want:?}");
        (most, rows) = (most.max(want.len()), rows + 1);
    }
    assert!(rows > 0 && most > 1, "{rows} rows, at most {most} steps");
    for step in [1, 2] {
        place.assert_resumes("asked", step, 3, "model.safetensors");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let place = step_judge();
    let run = ["grpo", "--model", tiny(), "--dataset", STORIES, "--output-dir", "none", "--max-steps", "1"];
    let refused = |more: &[&str], words: &[&str]| {
        let outcome = place.run(&[&run[..], more].concat());
        assert!(outcome.code == Some(2) && words.iter().all(|word| outcome.error().contains(word)), "{}", outcome.stderr);
    };
    refused(
        &["--reward-model", "rm", "--set", "plugin.rm.step_separator=x"],
        &["rm", "step_separator", "ForTokenClassification"],
    );
    refused(&["--plugin", "process_reward.wasm"], &["process_reward", "prm"]);
    refused(&["--reward-model", "prm", "--set", "plugin.prm.compare=others"], &["prm", "compare", "steps"]);
    let language_model = ["generate", "--model", "prm", "--prompt", "a"];
    let outcome = place.run(&language_model);
    assert!(
        outcome.error().contains("ForTokenClassification") && outcome.error().contains("predicts no tokens"),
        "{}",
        outcome.stderr
    );
    // One output is no judgement of steps.
    place.copy("rm", "one");
    let config = fs::read_to_string(place.path("prm/config.json")).unwrap();
    place.write("one/config.json", config);
    refused(&["--reward-model", "one"], &["score.weight", "[1, 64]"]);
}
