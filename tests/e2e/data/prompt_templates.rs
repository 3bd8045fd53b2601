//! Prompts that are built from a dataset's columns, and system messages.

use rlhost_tests::{CommandOutcome, TestFolder, tiny};

const CHAT: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";

/// Questions and answers in plain columns, as GSM8K has them, and a chat template.
fn place() -> TestFolder {
    let place = TestFolder::new();
    let row =
        |i: usize| format!("{{\"question\": \"{i} + 1?\", \"answer\": \"#### {}\", \"choices\": [\"a{i}\", \"b\"]}}\n", i + 1);
    place.write("asked.jsonl", (0..6).map(row).collect::<String>());
    place.write("chat.jinja", CHAT);
    place
}

fn grpo(place: &TestFolder, run: &str, more: &[&str]) -> CommandOutcome {
    let base =
        ["grpo", "--model", tiny(), "--plugin", "tldr_length_reward.wasm", "--dataset", "asked.jsonl", "--output-dir", run];
    let few = ["--max-completion-length", "6", "--num-generations", "2", "--per-device-train-batch-size", "4"];
    let all = ["--log-completions", "all", "--max-steps", "2", "--save-steps", "1"];
    place.run(&[&base[..], &few, &all, more].concat())
}

fn first_prompt(place: &TestFolder, run: &str, row: u64) -> String {
    let completions = place.lines(&format!("{run}/completions.jsonl"));
    completions.iter().find(|line| line["row"] == row).unwrap()["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn plain_columns_are_asked_in_the_chat_template_and_a_run_goes_on_the_same() {
    let place = place();
    let form = ["--prompt-template", "{question} ({choices.0}) {{!}}", "--system-prompt", "Think."];
    let chat = ["--chat-template-path", "chat.jinja", "--shuffle-dataset", "false"];
    let trained = grpo(&place, "run", &[&form[..], &chat].concat());
    assert!(trained.succeeded().stdout.contains("--chat"), "{}", trained.stdout);
    let end = "<|endoftext|>";
    assert_eq!(first_prompt(&place, "run", 1), format!("<system>Think.{end}<user>1 + 1? (a1) {{!}}{end}<assistant>"));
    let config = std::fs::read_to_string(place.path("run/config.toml")).unwrap();
    assert!(
        config.contains("prompt_template = \"{question} ({choices.0}) {{!}}\"") && config.contains("system_prompt"),
        "{config}"
    );
    place.copy("run", "again");
    place.run(&["resume", "again", "--step", "1"]).succeeded();
    place.assert_same_end("again", "run", 2, "model.safetensors");
    let changed = place.run(&["resume", "run", "--max-steps", "3", "--set", "prompt_template={question}"]);
    assert!(changed.code == Some(2) && changed.error().contains("the dataset has changed"), "{}", changed.stderr);
    // Rewards get the columns as they are, also when they are replayed.
    let replayed = place.run(&["replay", "run", "--plugin", "answer_reward.wasm", "--set", "column=answer"]);
    assert!(replayed.succeeded().stdout.contains("8 completions"), "{}", replayed.stdout);
    // Without a chat template, prompts are texts.
    grpo(&place, "plain", &[&form[..], &["--shuffle-dataset", "false"]].concat()).succeeded();
    assert_eq!(first_prompt(&place, "plain", 1), "Think.\n\n1 + 1? (a1) {!}");
}

#[test]
fn given_answers_become_the_assistants() {
    let place = place();
    let chat =
        ["--model", tiny(), "--chat-template-path", "chat.jinja", "--max-steps", "1", "--per-device-train-batch-size", "2"];
    let form = ["--dataset", "asked.jsonl", "--columns", "completion=answer", "--prompt-template", "{question}"];
    place.run(&[&["sft", "--output-dir", "sft", "--assistant-only-loss"], &chat[..], &form].concat()).succeeded();
    let pair = |i: usize| format!("{{\"prompt\": \"q{i}\", \"chosen\": \"{}\", \"rejected\": \"no\"}}\n", "a".repeat(i + 1));
    place.write("pairs.jsonl", (0..4).map(pair).collect::<String>());
    let system = ["--dataset", "pairs.jsonl", "--system-prompt", "Be kind."];
    place.run(&[&["dpo", "--output-dir", "dpo"], &chat[..], &system].concat()).succeeded();
    place.write("texts.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    let text = ["--dataset", "texts.jsonl", "--system-prompt", "Be kind."];
    let refused = place.run(&[&["sft", "--output-dir", "no"], &chat[..], &text].concat());
    assert!(
        refused.code == Some(2) && refused.error().contains("system_prompt has no effect on a column \"text\""),
        "{}",
        refused.stderr
    );
}

#[test]
fn mistakes_are_named_with_the_columns_that_there_are() {
    let place = place();
    for (more, words) in [
        (
            &[][..],
            "has no column \"prompt\"; it has question, answer, choices; to read others as such: --columns prompt=question, or build prompts: --prompt-template '{question}'",
        ),
        (
            &["--prompt-template", "{qestion}"],
            "no column \"qestion\"; the row has question, answer, choices; did you mean \"question\"?",
        ),
        (&["--prompt-template", "{choices}"], "not text but a list; {choices.0}"),
        (&["--prompt-template", "{question"], "is not closed; write {{ for a brace"),
        (&["--prompt-template", "question"], "names no column"),
        (&["--prompt-template", ""], "is empty; leave it out"),
        (&["--system-prompt", " "], "is empty; leave it out"),
    ] {
        let outcome = grpo(&place, "refused", more);
        assert!(outcome.code == Some(2) && outcome.error().contains(words), "{more:?}: {}", outcome.stderr);
        assert!(!place.path("refused").exists());
    }
    let sft = place.run(&["sft", "--model", tiny(), "--dataset", "asked.jsonl", "--output-dir", "refused"]);
    assert!(sft.error().contains("--columns prompt=question,completion=answer"), "{}", sft.stderr);
    let checked = |more: &[&str]| {
        place.run(
            &[&["plugin", "check", "answer_reward.wasm", "--set", "column=answer", "--dataset", "asked.jsonl"], more].concat(),
        )
    };
    assert!(checked(&[]).error().contains("--columns prompt=question"), "{}", checked(&[]).stderr);
    checked(&["--columns", "prompt=question"]).succeeded();
    checked(&["--prompt-template", "{question}!"]).succeeded();
}

#[test]
fn rows_of_a_large_dataset_are_asked_in_the_same_way() {
    let place = place();
    let padding = "x".repeat(1000);
    let row = |i: usize| format!("{{\"question\": \"{i} + 1?\", \"answer\": \"#### {}\", \"padding\": \"{padding}\"}}\n", i + 1);
    place.write("asked.jsonl", (0..6_000).map(row).collect::<String>());
    let form = ["--prompt-template", "{question} Well?", "--chat-template-path", "chat.jinja"];
    grpo(&place, "run", &form).succeeded();
    let prompts: Vec<String> =
        place.lines("run/completions.jsonl").iter().map(|line| line["prompt"].as_str().unwrap().to_owned()).collect();
    assert!(
        !prompts.is_empty() && prompts.iter().all(|prompt| prompt.ends_with("+ 1? Well?<|endoftext|><assistant>")),
        "{prompts:?}"
    );
    let changed = place.run(&["resume", "run", "--max-steps", "3", "--set", "prompt_template={question} Now?"]);
    assert!(changed.code == Some(2) && changed.error().contains("the dataset has changed"), "{}", changed.stderr);
}
