//! `--dry-run`: what a run says of itself before it begins, and that it leaves nothing behind.

use rlhost_tests::{CONTRARY, HOSTILE, TestFolder, tiny};

/// A folder with arithmetic problems and pairs, and what is in it.
fn place() -> (TestFolder, Vec<String>) {
    let place = TestFolder::with_answers();
    place.write(
        "asked.jsonl",
        "{\"question\": \"2 + 3?\", \"answer\": \"#### 5\"}\n{\"question\": \"4 + 4?\", \"answer\": \"#### 8\"}\n",
    );
    place.write("chat.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}<assistant>");
    place.write("open.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}</turn>{% endfor %}");
    let entries = place.entries();
    (place, entries)
}

#[test]
fn a_run_is_shown_and_nothing_is_left_of_it() {
    let (place, entries) = place();
    let base = ["grpo", "--model", tiny(), "--dataset", "asked.jsonl", "--plugin", "answer_reward.wasm", "--dry-run"];
    let few =
        ["--num-generations", "2", "--per-device-train-batch-size", "4", "--max-completion-length", "12", "--max-steps", "3"];
    let form = ["--prompt-template", "{question}", "--system-prompt", "Reckon.", "--chat-template-path", "chat.jinja"];
    let shown = place.run(&[&base[..], &few, &form].concat());
    let said = &shown.succeeded().stdout;
    for words in [
        "row 0 of 2: ",
        "<system>Reckon.<|endoftext|><user>2 + 3?<|endoftext|><assistant>",
        "row 1, column \"answer\" as a completion, 6 tokens: answer_reward 1.000",
        "row 1, completion, ",
        "the chat template writes \"<|endoftext|>",
        "completions end there",
        "nothing was trained or written",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    for words in
        ["steps: 3", "4 completions: 2 prompts x 2", "folder: runs/grpo-", "memory: at least ", " for a micro-batch of up to "]
    {
        assert!(shown.stderr.contains(words), "{words}: {}", shown.stderr);
    }
    let open = place.run(&[&base[..], &few, &form[..4], &["--chat-template-path", "open.jinja"]].concat());
    assert!(
        open.succeeded().stdout.contains("writes \"</turn>\", but completions end with \"<|endoftext|>\""),
        "{}",
        open.stdout
    );
    let model = ["--model", tiny(), "--max-steps", "1", "--per-device-train-batch-size", "2", "--dry-run"];
    for (command, dataset, words) in [
        ("dpo", "pairs.jsonl", " of its answers"),
        ("kto", "pairs.jsonl", " of its answer"),
        ("reward", "pairs.jsonl", " of its answers"),
        ("sft", "answers.jsonl", "a whole text"),
    ] {
        let shown = place.run(&[&[command, "--dataset", dataset], &model[..]].concat());
        assert!(shown.succeeded().stdout.contains(words), "{command}: {}", shown.stdout);
    }
    assert_eq!(place.entries(), entries);
}

#[test]
fn it_fails_as_the_start_would() {
    let (place, _) = place();
    std::fs::create_dir(place.path("mine")).unwrap();
    place.write("mine/file", "x");
    let base = ["grpo", "--plugin"];
    let few =
        ["--num-generations", "2", "--per-device-train-batch-size", "4", "--max-completion-length", "4", "--max-steps", "1"];
    for (more, words) in [
        (&["tldr_length_reward.wasm", "--output-dir", "mine"][..], "is not empty"),
        (&["tldr_length_reward.wasm", "--output-dir", "mine/file/run"], "mine/file/run"),
        (&["tldr_length_reward.wasm", "--dataset", "absent.jsonl"], "absent.jsonl"),
        (&["tldr_length_reward.wasm", "--algorithm", CONTRARY], "trains with grpo"),
        (&[HOSTILE, "--set", "plugin.hostile.config.misdeed=\"nan\""], "NaN"),
        (&["tldr_length_reward.wasm", "--resume-from-checkpoint"], "leave out --resume-from-checkpoint"),
    ] {
        let begun = place.run(&[&base[..], more, &few].concat());
        let shown = place.run(&[&base[..], more, &few, &["--dry-run"]].concat());
        assert!(shown.code.is_some_and(|code| code > 0) && shown.error().contains(words), "{more:?}: {}", shown.stderr);
        assert!(more.contains(&"--resume-from-checkpoint") || begun.code == shown.code, "{more:?}: {}", begun.stderr);
    }
}
