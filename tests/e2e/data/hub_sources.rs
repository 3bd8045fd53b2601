//! Models and datasets by their names on the hub, and tables of other people's making, through the binary.

use flate2::{Compression, write::GzEncoder};
use rlhost_tests::{CommandOutcome, TestFolder, binary, tiny};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The branch of the hub's own conversions, which its stand-in asks for.
const CONVERTED: &str = "refs/convert/parquet";

#[path = "../../../host/web/src/hub/server.rs"]
mod server;

use server::{COMMIT, HubTestServer};

const CHAT: &str =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// A hub with the tiny model, pairs as `datasets` writes them, and packed questions.
fn hub() -> HubTestServer {
    let server = HubTestServer::new();
    let file = |name: &str| std::fs::read(Path::new(tiny()).join(name)).unwrap();
    let (config, weights, tokenizer) = (file("config.json"), file("model.safetensors"), file("tokenizer.json"));
    let chat = serde_json::json!({ "chat_template": CHAT, "eos_token": "<|endoftext|>" }).to_string();
    let model: &[(&str, &[u8])] = &[
        ("config.json", &config),
        ("model.safetensors", &weights),
        ("tokenizer.json", &tokenizer),
        ("tokenizer_config.json", chat.as_bytes()),
    ];
    server.hold("models/lab/tiny@main", model);
    let pairs = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/datasets/conversations.parquet")).unwrap();
    server.hold("datasets/lab/pairs@main", &[("data/train-00000-of-00001.parquet", &pairs)]);
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    for i in 0..8 {
        writeln!(packed, "{{\"question\": \"What is {i} and {i}?\", \"level\": {i}}}").unwrap();
    }
    server.hold("datasets/lab/questions@main", &[("train.jsonl.gz", &packed.finish().unwrap())]);
    server
}

fn run(place: &TestFolder, server: &HubTestServer, offline: &str, arguments: &[&str]) -> CommandOutcome {
    let mut command = Command::new(binary());
    command.current_dir(place.path(".")).args(arguments).env_remove("RUST_LOG").env("NO_COLOR", "1");
    command.env("HF_ENDPOINT", &server.endpoint).env("HF_HUB_OFFLINE", offline).env("HF_HUB_CACHE", place.path("hub"));
    command.env("RLHOST_HUB_HOSTS", &server.elsewhere);
    CommandOutcome::new(command.output().unwrap())
}

#[test]
fn pairs_of_a_table_train_a_model_and_both_come_from_the_hub_once() {
    let (place, server) = (TestFolder::new(), hub());
    let arguments = |run: &'static str| {
        let mut all = vec!["--algorithm", "dpo", "--model", "lab/tiny", "--dataset", "lab/pairs", "--output-dir", run];
        all.extend(["--per-device-train-batch-size", "2", "--max-steps", "2", "--logging-steps", "1"]);
        all
    };
    run(&place, &server, "0", &arguments("first")).succeeded();
    // ln 2, since the policy is the reference model yet.
    assert!((place.figure("first", "loss")[0] - std::f64::consts::LN_2).abs() < 1e-6);
    let config = std::fs::read_to_string(place.path("first/config.toml")).unwrap();
    for name in ["lab/tiny", "lab/pairs"] {
        assert!(config.contains(&format!("\"{name}@{COMMIT}\"")), "{config}");
    }
    assert!(!server.asked().is_empty());

    run(&place, &server, "1", &arguments("second")).succeeded();
    assert_eq!(server.asked(), [], "nothing is asked for offline");
    place.assert_same_end("second", "first", 2, "model.safetensors");
}

#[test]
fn a_token_that_goes_over_http_is_warned_of() {
    let place = TestFolder::new();
    let asked = |token: &str, endpoint: &str| {
        let mut command = Command::new(binary());
        let generate = ["generate", "--model", "lab/tiny", "--prompt", "a", "--max-new-tokens", "1"];
        command.current_dir(place.path(".")).args(generate).env_remove("RUST_LOG").env("NO_COLOR", "1");
        command.env("HF_ENDPOINT", endpoint).env("HF_HUB_OFFLINE", "0").env("HF_HUB_CACHE", place.path("hub"));
        if token.is_empty() {
            command.env_remove("HF_TOKEN")
        } else {
            command.env("HF_TOKEN", token)
        };
        command.env("HF_HOME", place.path("home"));
        CommandOutcome::new(command.output().unwrap()).stderr
    };
    let server = hub();
    // Leads to this machine, and does not say so.
    let elsewhere = server.endpoint.replace("127.0.0.1", "0.0.0.0");
    let warned = asked("hf_secret", &elsewhere);
    assert_eq!(warned.matches(&format!("the token goes to {elsewhere} in plain text")).count(), 1, "{warned}");
    assert!(!warned.contains("hf_secret") && !asked("", &elsewhere).contains("plain text"));
    assert!(!asked("hf_secret", &server.endpoint).contains("plain text"));
}

#[test]
fn columns_of_other_names_in_packed_lines_are_prompts_and_a_missing_one_is_named_with_those_there_are() {
    let (place, server) = (TestFolder::new(), hub());
    let mut arguments = vec!["--plugin", "tldr_length_reward.wasm", "--model", "lab/tiny", "--dataset", "lab/questions"];
    arguments.extend(["--max-steps", "1", "--max-completion-length", "8", "--output-dir", "run"]);
    let refused = run(&place, &server, "0", &arguments);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let error = refused.error();
    assert!(error.contains("prompt") && error.contains("question") && error.contains("level"), "{error}");
    assert!(!place.path("run").exists());

    arguments.extend(["--columns", "prompt=question"]);
    run(&place, &server, "0", &arguments).succeeded();
    let completions = place.lines("run/completions.jsonl");
    assert!(completions.iter().all(|line| line["prompt"].as_str().unwrap().starts_with("What is ")), "{completions:?}");
}

#[test]
fn what_the_hub_does_not_have_is_named() {
    let (place, server) = (TestFolder::new(), hub());
    let train = |model: &'static str, dataset: &'static str| {
        ["--plugin", "tldr_length_reward.wasm", "--model", model, "--dataset", dataset, "--output-dir", "run"]
    };
    for (arguments, missing) in [(train("lab/tinny", "lab/pairs"), "lab/tinny"), (train("lab/tiny", "lab/pears"), "lab/pears")] {
        let refused = run(&place, &server, "0", &arguments);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.error().contains(missing), "{}", refused.stderr);
    }
    // By commit, as a run's config.toml has it.
    let mut pinned = vec!["generate", "--model"];
    let name = format!("lab/tiny@{COMMIT}");
    pinned.extend([&name, "--prompt", "a", "--max-completion-length", "4"]);
    run(&place, &server, "0", &pinned).succeeded();
}

#[test]
fn a_tokenizer_that_was_saved_with_a_length_gives_texts_as_they_are() {
    let place = TestFolder::new();
    place.copy(tiny(), "cut");
    let read = std::fs::read(place.path("cut/tokenizer.json")).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&read).unwrap();
    tokenizer["truncation"] = serde_json::json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    tokenizer["padding"] = serde_json::json!({"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    place.write("cut/tokenizer.json", tokenizer.to_string());
    let said = |model: &str| {
        let text = ["generate", "--model", model, "--prompt", "hello there, you", "--max-new-tokens", "5", "--temperature", "0"];
        place.run(&text).succeeded().stdout.clone()
    };
    assert_eq!(said("cut"), said(tiny()));
}

#[test]
fn a_mark_at_a_files_beginning_is_no_part_of_its_first_row() {
    let place = TestFolder::new();
    place.write("marked.jsonl", "\u{feff}{\"prompt\": \"a\"}\r\n{\"prompt\": \"b\"}\r\n");
    let run = ["--plugin", "tldr_length_reward.wasm", "--model", tiny(), "--dataset", "marked.jsonl", "--max-steps", "1"];
    place.run(&[&run[..], &["--max-completion-length", "4"]].concat()).succeeded();
}

#[test]
fn tables_of_commas_and_tabs_are_prompts_and_conversations() {
    let place = TestFolder::new();
    std::fs::create_dir(place.path("shards")).unwrap();
    place.write("shards/train-0.csv", "\u{feff}question,level\r\n\"Is \"\"1, 2\"\"\r\nmore?\",1\r\n\r\n");
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(b"level\tquestion\n2\tIs 3, 4 less?\n").unwrap();
    place.write("shards/train-1.tsv.gz", packed.finish().unwrap());
    let prompts =
        ["--plugin", "tldr_length_reward.wasm", "--model", tiny(), "--dataset", "shards", "--columns", "prompt=question"];
    let short = [
        "--log-completions",
        "all",
        "--max-steps",
        "1",
        "--per-device-train-batch-size",
        "16",
        "--max-completion-length",
        "4",
        "--output-dir",
        "run",
    ];
    place.run(&[&prompts[..], &short].concat()).succeeded();
    let completions = place.lines("run/completions.jsonl");
    let asked: BTreeSet<&str> = completions.iter().map(|line| line["prompt"].as_str().unwrap()).collect();
    assert_eq!(asked, ["Is \"1, 2\"\r\nmore?", "Is 3, 4 less?"].into());

    // The same conversation in a table and in JSON lines is learned alike.
    place.copy(tiny(), "model");
    place.write("model/chat_template.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}");
    let messages = serde_json::json!([{"role": "user", "content": "well?"}, {"role": "assistant", "content": "a \"b\", c"}]);
    place.write("chat.jsonl", serde_json::json!({ "messages": messages }).to_string());
    place.write("chat.csv", format!("id,messages\n7,\"{}\"\n", messages.to_string().replace('"', "\"\"")));
    let cell = messages.to_string().replace("\"role\"", "'role'");
    place.write("python.csv", format!("messages\n\"{}\"\n", cell.replace('"', "\"\"")));
    let learn = |data: &str, run: &str| {
        let sft = ["sft", "--model", "model", "--dataset", data, "--max-steps", "1", "--logging-steps", "1", "--output-dir", run];
        place.run(&sft)
    };
    learn("chat.jsonl", "lines").succeeded();
    learn("chat.csv", "table").succeeded();
    assert_eq!(place.figure("table", "loss"), place.figure("lines", "loss"));
    let refused = learn("python.csv", "python");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    for part in ["python.csv:2", "\"messages\"", "json.dumps"] {
        assert!(refused.error().contains(part), "{}", refused.error());
    }
}

#[test]
fn turns_are_learned_alone_of_answers_that_are_messages_and_of_strings_that_is_refused() {
    let place = TestFolder::new();
    place.copy(tiny(), "model");
    place.write(
        "model/chat_template.jinja",
        "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
    );
    let turn = |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
    let row = |inner: &str| {
        let completion = [turn("assistant", "yes"), turn("user", inner), turn("assistant", "no")];
        serde_json::json!({"prompt": [turn("user", "well")], "completion": completion}).to_string()
    };
    place.write("long.jsonl", row("and then, what became of it?"));
    place.write("strings.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    let sft = |run: &str, data: &str, more: &[&str]| {
        let base =
            ["sft", "--model", "model", "--dataset", data, "--max-steps", "1", "--logging-steps", "1", "--output-dir", run];
        place.run(&[&base[..], more].concat())
    };
    sft("all", "long.jsonl", &[]).succeeded();
    sft("turns", "long.jsonl", &["--assistant-only-loss"]).succeeded();
    assert_ne!(place.figure("all", "loss"), place.figure("turns", "loss"));
    let refused = sft("refused", "strings.jsonl", &["--assistant-only-loss"]);
    assert!(refused.code == Some(2) && refused.error().contains("strings.jsonl:1"), "{}", refused.stderr);
}
