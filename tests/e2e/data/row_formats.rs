//! What is read of a dataset: the splits of folders, conversations in every spelling, lines of text.

use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};
use std::fs;

/// Returns the loss of the first step on a dataset.
fn first_loss(place: &TestFolder, run: &str, more: &[&str]) -> f64 {
    let base = ["sft", "--model", "chatty", "--max-steps", "1", "--logging-steps", "1", "--output-dir", run];
    place.run(&[&base[..], more].concat()).succeeded();
    place.lines(&format!("{run}/metrics.jsonl"))[0]["loss"].as_f64().unwrap()
}

/// The tiny model with a chat template that knows four roles.
fn chatty(place: &TestFolder) {
    place.copy(tiny(), "chatty");
    let template = "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'tool'] %}<{{ m.role }}>{{ m.content or '' }}\
                    {% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}</>{% endif %}{% endfor %}";
    place.write("chatty/tokenizer_config.json", json!({"eos_token": "<|endoftext|>", "chat_template": template}).to_string());
}

#[test]
fn a_card_says_which_files_are_trained_on() {
    let place = TestFolder::new();
    chatty(&place);
    fs::create_dir(place.path("d")).unwrap();
    place.write("d/a.jsonl", "{\"text\": \"what is learned\"}\n");
    place.write("d/b.jsonl", "{\"text\": \"a test that nobody may train on\"}\n");
    let card = |configs: &str| place.write("d/README.md", format!("---\nconfigs:\n{configs}---\n# Data\n"));
    let splits = |first: &str, second: &str| {
        format!("  data_files:\n  - {{split: train, path: {first}}}\n  - {{split: test, path: {second}}}\n")
    };
    card(&format!(
        "- config_name: one\n  default: true\n{}- config_name: two\n{}",
        splits("a.jsonl", "b.*"),
        splits("b.jsonl", "a.jsonl")
    ));
    let (a, b) = (first_loss(&place, "a", &["--dataset", "d/a.jsonl"]), first_loss(&place, "b", &["--dataset", "d/b.jsonl"]));
    assert!((a - b).abs() > 1e-6);
    assert_eq!(first_loss(&place, "card", &["--dataset", "d"]), a);
    assert_eq!(first_loss(&place, "test", &["--dataset", "d", "--dataset-train-split", "test"]), b);
    assert_eq!(first_loss(&place, "two", &["--dataset", "d/two"]), b);
    assert_eq!(first_loss(&place, "config", &["--dataset_name", "d", "--dataset_config", "two"]), b);
    // Parts of splits, in one batch.
    let both = ["--per-device-train-batch-size", "2", "--dataset-train-split"];
    let sum = first_loss(&place, "sum", &[&["--dataset", "d"][..], &both, &["test[:100%] + train[-1:]"]].concat());
    place.write("both.jsonl", "{\"text\": \"a test that nobody may train on\"}\n{\"text\": \"what is learned\"}\n");
    assert_eq!(sum, first_loss(&place, "both", &[&["--dataset", "both.jsonl"][..], &both[..2]].concat()));
    assert_eq!(first_loss(&place, "half", &["--dataset", "both.jsonl", "--dataset-train-split", "train[50%:]"]), a);
    let sft = ["sft", "--model", "chatty", "--max-steps", "1", "--dataset"];
    let said = place.run(&[&sft[..], &["d", "--output-dir", "said"]].concat());
    said.succeeded();
    assert!(said.stderr.contains("reading a.jsonl for the split train; other splits: test"), "{}", said.stderr);
    let other = place.run(&[&sft[..], &["d/three"]].concat());
    assert!(other.code == Some(2) && other.error().contains("its README.md lists one, two"), "{}", other.stderr);
    let none = place.run(&[&sft[..], &["d", "--dataset-train-split", "train[5:]"]].concat());
    assert!(none.code == Some(2) && none.error().contains("has 1 rows, of which this part has none"), "{}", none.stderr);
    let odd = place.run(&[&sft[..], &["d", "--dataset-train-split", "train[5"]].concat());
    assert!(odd.code == Some(2) && odd.error().contains("dataset_train_split"), "{}", odd.stderr);
    card("- config_name: one\n  data_files: ../a.jsonl\n");
    let outside = place.run(&[&sft[..], &["d"]].concat());
    assert!(outside.code == Some(2) && outside.error().contains("not within the dataset"), "{}", outside.stderr);
}

#[test]
fn files_without_a_split_are_not_read_beside_those_of_one() {
    let place = TestFolder::new();
    chatty(&place);
    fs::create_dir(place.path("d")).unwrap();
    place.write("d/train.jsonl", "{\"text\": \"what is learned\"}\n");
    place.write("d/old.jsonl", "{\"text\": \"what was learned once\"}\n");
    let train = first_loss(&place, "train", &["--dataset", "d/train.jsonl", "--per-device-train-batch-size", "2"]);
    assert_eq!(first_loss(&place, "folder", &["--dataset", "d", "--per-device-train-batch-size", "2"]), train);
    let sft = ["sft", "--model", "chatty", "--max-steps", "1", "--output-dir", "said", "--dataset", "d"];
    let said = place.run(&sft);
    said.succeeded();
    assert!(said.stderr.contains("not read, since the split train does not have them: old.jsonl"), "{}", said.stderr);
    // A folder of tests is not trained on by chance.
    fs::create_dir(place.path("tests")).unwrap();
    place.write("tests/test.jsonl", "{\"text\": \"a test\"}\n");
    let tests = place.run(&["sft", "--model", "chatty", "--max-steps", "1", "--dataset", "tests"]);
    assert!(tests.code == Some(2) && tests.error().contains("has no split \"train\"; it has test"), "{}", tests.stderr);
}

#[test]
fn a_subset_that_the_card_lists_comes_before_a_folder_of_its_name() {
    let place = TestFolder::new();
    chatty(&place);
    fs::create_dir_all(place.path("d/de")).unwrap();
    let files = "[{split: train, path: de/a.jsonl}, {split: test, path: de/b.jsonl}]";
    place.write("d/README.md", format!("---\nconfigs:\n- config_name: de\n  sep: ';'\n  data_files: {files}\n---\n"));
    place.write("d/de/a.jsonl", "{\"text\": \"one row\"}\n");
    place.write("d/de/b.jsonl", "{\"text\": \"a test\"}\n");
    let said = place.run(&["sft", "--model", "chatty", "--max-steps", "1", "--dataset", "d/de", "--output-dir", "said"]);
    assert!(said.succeeded().stderr.contains("reading de/a.jsonl for the split train"), "{}", said.stderr);
    assert!(said.stderr.contains("its card sets sep for the config \"de\", without effect"), "{}", said.stderr);
}

fn talk() -> Value {
    json!([
        {"role": "user", "content": "add one and two"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "three of them"}, {"role": "assistant", "content": "it is three"},
    ])
}

#[test]
fn conversations_in_every_spelling_are_the_same() {
    let place = TestFolder::new();
    chatty(&place);
    let loss = |name: &str, row: Value| {
        place.write(&format!("{name}.jsonl"), format!("{row}\n"));
        first_loss(&place, name, &["--dataset", &format!("{name}.jsonl")])
    };
    let plain = loss("plain", json!({"messages": talk()}));
    let shared = json!([
        {"from": "HUMAN", "value": "add one and two"},
        {"from": "function_call", "value": "{\"name\": \"add\", \"arguments\": {\"a\": 1}}"},
        {"from": "observation", "value": "three of them"}, {"from": "GPT", "value": "it is three"},
    ]);
    assert_eq!(loss("shared", json!({"conversations": shared})), plain);
    assert_eq!(loss("text", json!({"messages": talk().to_string()})), plain);
    assert_eq!(loss("shared-text", json!({"conversations": shared.to_string()})), plain);
    let turns: Vec<String> = talk().as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(loss("turns", json!({"messages": turns})), plain);
    let mut older = talk();
    older[1] = json!({"role": "assistant", "content": null, "function_call": {"name": "add", "arguments": "{\"a\": 1}"}});
    older[2] = json!({"role": "function", "name": "add", "content": "three of them"});
    assert_eq!(loss("older", json!({"messages": older})), plain);
    // A number that Python writes, in a column that nothing reads.
    place.write("nan.jsonl", format!("{{\"messages\": {}, \"score\": NaN, \"x\": [-Infinity]}}\n", talk()));
    assert_eq!(first_loss(&place, "nan", &["--dataset", "nan.jsonl"]), plain);
    let said = place.run(&["sft", "--model", "chatty", "--max-steps", "1", "--dataset", "nan.jsonl", "--output-dir", "said"]);
    assert!(said.succeeded().stderr.contains("nan.jsonl:1: has NaN or infinite numbers"), "{}", said.stderr);
    let system = json!({"role": "system", "content": "be brief"});
    let with_system: Vec<Value> = std::iter::once(system).chain(talk().as_array().unwrap().clone()).collect();
    let column = json!({"system": "be brief", "conversations": shared});
    assert_eq!(loss("column", column), loss("turn", json!({"messages": with_system})));
    // What is not a conversation is refused by name.
    place.write("odd.jsonl", "{\"messages\": \"[{'role': 'user', 'content': 'q'}]\"}\n");
    let odd = place.run(&["sft", "--model", "chatty", "--max-steps", "1", "--dataset", "odd.jsonl"]);
    assert!(
        odd.code == Some(2) && odd.error().contains("column \"messages\" is text, but not a list of messages"),
        "{}",
        odd.stderr
    );
}

#[test]
fn a_turn_that_the_template_leaves_out_is_named() {
    let place = TestFolder::new();
    chatty(&place);
    let critic = json!({"messages": [{"role": "user", "content": "q"}, {"role": "critic", "content": "c"}, {"role": "assistant", "content": "a"}]});
    place.write("rows.jsonl", format!("{}\n{critic}\n{critic}\n", json!({"messages": talk()})));
    let sft = ["sft", "--model", "chatty", "--max-steps", "1", "--dataset", "rows.jsonl", "--output-dir"];
    let said = place.run(&[&sft[..], &["warned"]].concat());
    said.succeeded();
    let warning = "rows.jsonl:2: the chat template leaves out turn 2, whose role is \"critic\"";
    assert!(said.stderr.contains(warning) && said.stderr.contains("2 of 3 rows are affected"), "{}", said.stderr);
    let strict = place.run(&[&sft[..], &["strict", "--strict-data"]].concat());
    assert!(strict.code == Some(2) && strict.error().contains(warning), "{}", strict.stderr);
}

#[test]
fn lines_of_a_text_file_are_rows() {
    let place = TestFolder::new();
    chatty(&place);
    place.write("lines.txt", "one line\n\nanother line\n");
    place.write("lines.jsonl", "{\"text\": \"one line\"}\n{\"text\": \"another line\"}\n");
    let two = |run: &str, file: &str| first_loss(&place, run, &["--dataset", file, "--per-device-train-batch-size", "2"]);
    assert_eq!(two("a", "lines.txt"), two("b", "lines.jsonl"));
    let said = place.run(&["sft", "--model", "chatty", "--max-steps", "1", "--dataset", "lines.txt", "--output-dir", "said"]);
    assert!(said.succeeded().stderr.contains("each of its 2 lines is a row, without 1 blank ones"), "{}", said.stderr);
    place.write("whole.txt", "one line\n\nanother line\n<|endoftext|>");
    place.write("whole.jsonl", "{\"text\": \"one line\\n\\nanother line\"}\n");
    assert_eq!(first_loss(&place, "c", &["--dataset", "whole.txt"]), first_loss(&place, "d", &["--dataset", "whole.jsonl"]));
}
