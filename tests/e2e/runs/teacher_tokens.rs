//! Distillation by a teacher's likeliest tokens, which a model in the run's process, one on a server, or columns of the dataset say.

use super::distillation::{distillation, place_of_teachers};
use rlhost_tests::server::ServerProcess;
use rlhost_tests::{TestFolder, tiny};
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// Writes `rows.jsonl`, whose rows are tokenized and have the likeliest tokens of this server's model as columns, with the script of the
/// guide.
fn write_rows(place: &TestFolder, url: &str) {
    let row = |i: usize| match i % 3 {
        0 => json!({"text": format!("a text of {} words", i)}),
        _ => json!({"prompt": format!("q{i}:"), "completion": format!(" {}.", "ab".repeat(1 + i % 5))}),
    };
    place.write("plain.jsonl", (0..16).map(|i| format!("{}\n", row(i))).collect::<String>());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/distillation/teacher_rows.py");
    let mut command = Command::new("python3");
    command.arg(script).args([url, "plain.jsonl", "rows.jsonl", "--count", "5", "--end", "."]).current_dir(place.path("."));
    let written = command.output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let first = &place.lines("rows.jsonl")[1];
    let (ids, mask) = (first["input_ids"].as_array().unwrap(), first["completion_mask"].as_array().unwrap());
    assert!(ids.len() == mask.len() && mask[0] == 0 && mask.last().unwrap() == 1, "{first}");
    assert_eq!((&first["teacher_token_ids"][0], first["teacher_logprobs"][1].as_array().unwrap().len()), (&json!([]), 5));
}

fn given<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base = ["distillation", "--model", tiny(), "--dataset", "rows.jsonl", "--lmbda", "0", "--learning-rate", "0.003"];
    let steps = ["--per-device-train-batch-size", "4", "--max-steps", "3", "--save-steps", "1", "--logging-steps", "1"];
    [&base[..], &steps, &["--loss-top-k", "5", "--output-dir", run], more].concat()
}

fn close(place: &TestFolder, what: &str, [one, other]: [&str; 2], tolerance: f64) {
    for name in ["loss", "grad_norm", "entropy"] {
        let (got, want) = (place.figure(one, name), place.figure(other, name));
        let near = got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= tolerance * b.abs());
        assert!(got.len() == want.len() && near && want.iter().all(|value| *value > 0.0), "{what}, {name}: {got:?} {want:?}");
    }
}

#[test]
fn a_model_a_server_and_the_dataset_say_the_same_of_a_teachers_likeliest_tokens() {
    let place = place_of_teachers();
    let server = ServerProcess::start(&place, &["--model", "taught/checkpoint-30"]);
    let url = format!("http://{}", server.address);
    write_rows(&place, &url);
    let model = ["--teacher-model", "taught/checkpoint-30"];
    for (beta, tail) in [("0", "true"), ("0", "false"), ("0.5", "true"), ("1", "true"), ("1", "false")] {
        let names = ["model", "server", "dataset"].map(|from| format!("{from}-{beta}-{tail}"));
        let [here, there, rows] = names.each_ref().map(String::as_str);
        let settings = ["--beta", beta, "--loss-add-tail", tail];
        place.run(&given(here, &[&model[..], &settings].concat())).succeeded();
        place.run(&given(there, &[&["--teacher-server", &url], &settings[..]].concat())).succeeded();
        place.run(&given(rows, &[&["--teacher-model-kind", "dataset"], &settings[..]].concat())).succeeded();
        close(&place, "server", [there, here], 1e-4);
        close(&place, "dataset", [rows, here], 1e-4);
    }
    let whole = |run: &str, more: &[&str]| {
        place.run(&given(run, &[&model[..], &["--beta", "0.5"], more].concat())).succeeded();
    };
    // All tokens are the whole vocabulary, however others count, and fewer compare less.
    whole("all", &["--loss-top-k", "257"]);
    whole("whole", &["--loss-top-k", "0"]);
    close(&place, "all tokens", ["all", "whole"], 1e-4);
    assert!(place.figure("model-0.5-true", "loss")[0] < place.figure("whole", "loss")[0]);
    for run in ["dataset-0-true", "server-0-true"] {
        place.assert_resumes(run, 1, 3, "model.safetensors");
    }
}

#[test]
fn completions_are_learned_from_what_a_server_finds_likely_and_a_checkpoint_keeps_it() {
    let place = place_of_teachers();
    let server = ServerProcess::start(&place, &["--model", "taught/checkpoint-30"]);
    let url = format!("http://{}", server.address);
    let settings = ["--beta", "0", "--loss-top-k", "8", "--max-steps", "4", "--save-steps", "1", "--learning-rate", "0.003"];
    let twice = ["--num-iterations", "2", "--steps-per-generation", "2"];
    place.run(&distillation("here", &[&settings[..], &twice, &["--teacher-model", "taught/checkpoint-30"]].concat())).succeeded();
    place.run(&distillation("there", &[&settings[..], &twice, &["--teacher-server", &url]].concat())).succeeded();
    close(&place, "server", ["there", "here"], 1e-3);
    // The first and third step are within a generation, whose rollouts are in the checkpoint.
    for step in [1, 2, 3] {
        place.assert_resumes("there", step, 4, "model.safetensors");
    }
}

#[test]
fn what_a_teacher_that_is_not_here_can_not_say_is_refused() {
    let place = place_of_teachers();
    let server = ServerProcess::start(&place, &["--model", "taught/checkpoint-30"]);
    let url = format!("http://{}", server.address);
    write_rows(&place, &url);
    let kind = ["--teacher-model-kind", "dataset"];
    place.write("bare.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    place.write(
        "short.jsonl",
        "{\"prompt\": \"a\", \"completion\": \"bcd\", \"teacher_token_ids\": [[1]], \"teacher_logprobs\": [[-1]]}\n",
    );
    // Lists that are about the next token each, and lists of none.
    let rows = json!({"input_ids": [1, 2, 3], "teacher_token_ids": [[2], [3]], "teacher_logprobs": [[-1], [-1]]});
    place.write("shifted.jsonl", rows.to_string());
    let rows = json!({"input_ids": [1, 2, 3], "teacher_token_ids": [[5], [], []], "teacher_logprobs": [[-1], null, []]});
    place.write("silent.jsonl", rows.to_string());
    for (more, expected) in [
        (&["--teacher-server", &url, "--loss-top-k", "0"][..], "set loss_top_k"),
        (&["--teacher-server", &url, "--loss-top-k", "101"], "was asked for the 101 likeliest tokens"),
        (&[kind[0], kind[1], "--temperature", "0.5"], "set temperature = 1"),
        (&[kind[0], kind[1], "--completion-only-loss", "false"], "set completion_only_loss = true"),
        (&[kind[0], kind[1], "--eval-packing", "true"], "not possible with packing"),
        (&[kind[0], kind[1], "--dataset", "shifted.jsonl", "--strict-data"], "2 and 2 lists for 3 tokens"),
        (&[kind[0], kind[1], "--dataset", "silent.jsonl", "--strict-data"], "says nothing of any token"),
        (&[kind[0], kind[1], "--loss-top-k", "0"], "rlhost distillation learns from these with loss_top_k"),
        (&[kind[0], kind[1], "--lmbda", "1"], "set learn_from = \"dataset\""),
        (&[kind[0], kind[1], "--dataset", "bare.jsonl", "--strict-data"], "no column \"teacher_token_ids\""),
        (&[kind[0], kind[1], "--dataset", "short.jsonl", "--strict-data"], "1 and 1 lists for 4 of the completion's tokens"),
        (&["--teacher-model", tiny(), "--loss-top-k", "1", "--loss-add-tail", "false"], "both find it certain"),
        (&["--teacher-model", tiny(), "--loss-type", "policy_gradient", "--lmbda", "1"], "loss_top_k is about"),
        (&["--teacher-model", tiny(), "--use-uld-loss", "true"], "losses across tokenizers"),
        (&["--teacher-model", tiny(), "--seq-kd", "true"], "write the teacher's completions first"),
    ] {
        let refused = place.run(&given("refused", more));
        assert!(refused.code != Some(0) && refused.error().contains(expected), "{more:?}: {}", refused.stderr);
    }
}
