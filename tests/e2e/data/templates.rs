//! Chat templates and end tokens of a run's own: what they are told, that checkpoints carry them, and that runs go on with them.

use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};

const TEMPLATE: &str = "\
{% if tools %}[{{ tools[0].name }}]{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}\
{{ strftime_now('%Y') if strftime_now is defined }}{{ mood }}{{ depth }}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Four questions, one with tools and one with variables of its own, and a template in a file.
fn place() -> TestFolder {
    let place = TestFolder::new();
    let asked = |i: usize| json!([{"role": "user", "content": format!("q{i}")}]);
    let rows = [
        json!({"prompt": asked(0)}),
        json!({"prompt": asked(1), "tools": [{"name": "calc"}]}),
        json!({"prompt": asked(2), "chat_template_kwargs": {"depth": 5}}),
        json!({"prompt": asked(3)}),
    ];
    place.write("asked.jsonl", rows.map(|row| format!("{row}\n")).concat());
    place.write("own.jinja", TEMPLATE);
    place
}

fn train(place: &TestFolder, run: &str, more: &[&str]) -> rlhost_tests::CommandOutcome {
    let base = ["--model", tiny(), "--dataset", "asked.jsonl", "--plugin", "tldr_length_reward.wasm", "--output-dir", run];
    let few = ["--max-completion-length", "6", "--per-device-train-batch-size", "8", "--num-generations", "2"];
    let all = ["--log-completions", "all", "--max-steps", "3", "--save-steps", "1", "--chat-template-path", "own.jinja"];
    place.run(&[&base[..], &few, &all, more].concat())
}

#[test]
fn a_run_writes_conversations_as_it_was_told_and_its_checkpoints_carry_that() {
    let place = place();
    let told = ["--chat-template-kwargs", "{\"mood\": \"glad\"}", "--set", "chat_template_kwargs.depth=3"];
    train(&place, "run", &[&told[..], &["--eos-token", "!", "--strftime-now", "2024-07-26"]].concat()).succeeded();
    let completions = place.lines("run/completions.jsonl");
    let prompt = |row: u64| completions.iter().find(|line| line["row"] == row).unwrap()["prompt"].as_str().unwrap();
    assert_eq!(prompt(0), "<user>q0!2024glad3<assistant>");
    assert_eq!(prompt(1), "[calc]<user>q1!2024glad3<assistant>");
    assert_eq!(prompt(2), "<user>q2!2024glad5<assistant>");
    let read = |file: &str| std::fs::read_to_string(place.path("run/checkpoint-3").join(file)).unwrap();
    assert_eq!(read("chat_template.jinja"), TEMPLATE);
    let json = |file: &str| serde_json::from_str::<Value>(&read(file)).unwrap();
    assert_eq!(json("tokenizer_config.json")["eos_token"], "!");
    let ends = json("generation_config.json")["eos_token_id"].clone();
    let tokenizer = json("tokenizer.json");
    assert_eq!(ends, json!([tokenizer["model"]["vocab"]["!"], 0]));
    // The run goes on the same without the file that it began with, and is evaluated with what it had.
    std::fs::remove_file(place.path("own.jinja")).unwrap();
    place.copy("run", "again");
    place.run(&["resume", "again", "--step", "1"]).succeeded();
    place.assert_same_end("again", "run", 3, "model.safetensors");
    place.run(&["eval", "run", "--max-completion-length", "2"]).succeeded();
    // A checkpoint's folder is a tokenizer's folder; a run that names it begins alike.
    let from = ["--chat-template-path", "run/checkpoint-3", "--max-steps", "1"];
    train(&place, "other", &from).succeeded();
    assert_eq!(std::fs::read_to_string(place.path("other/checkpoint-1/chat_template.jinja")).unwrap(), TEMPLATE);
}

#[test]
fn without_a_date_a_template_has_its_own_and_mistakes_are_named() {
    let place = place();
    train(&place, "run", &["--max-steps", "1"]).succeeded();
    assert_eq!(place.lines("run/completions.jsonl")[0]["prompt"].as_str().unwrap().matches("2024").count(), 0);
    let cases: [(&[&str], &[&str]); 5] = [
        (&["--eos-token", "<|nothing|>"], &["eos_token", "no token \"<|nothing|>\""]),
        (&["--strftime-now", "tomorrow"], &["strftime_now", "2024-07-26"]),
        (&["--chat-template-path", "absent.jinja"], &["absent.jinja"]),
        (&["--chat-template-path", "."], &["no chat template"]),
        (&["--chat-template-kwargs", "thinking"], &["chat_template_kwargs", "expected a table"]),
    ];
    for (arguments, expected) in cases {
        let outcome = train(&place, "wrong", arguments);
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {}", outcome.stderr);
        assert!(expected.iter().all(|part| outcome.error().contains(part)), "{arguments:?}: {}", outcome.error());
        assert!(!place.path("wrong").exists(), "{arguments:?}");
    }
}

#[test]
fn a_conversations_model_is_asked_as_it_was_trained() {
    let place = place();
    let told = ["--chat-template-kwargs", "{\"mood\": \"glad\"}", "--strftime-now", "2024-07-26"];
    let trained = train(&place, "run", &told);
    assert!(trained.succeeded().stdout.contains("/checkpoint-3 --chat --prompt"), "{}", trained.stdout);
    let said = |more: &[&str]| {
        let greedy = ["generate", "--temperature", "0", "--max-new-tokens", "12"];
        place.run(&[&greedy[..], more].concat()).succeeded().stdout.clone()
    };
    let end = "<|endoftext|>";
    // What a template writes is a text's beginning; of an answer to it nothing else is printed.
    let same = |model: &str, chat: &[&str], written: &str| {
        let answer = said(&[&["--model", model, "--prompt", "hi"], chat].concat());
        let continued = said(&["--model", "run/checkpoint-3", "--prompt", written]);
        assert_eq!(format!("{}{answer}", written.replace(end, "")), continued, "{chat:?}");
    };
    same("run", &["--chat"], &format!("<user>hi{end}2024glad<assistant>"));
    same("run/checkpoint-3", &["--system", "be"], &format!("<system>be{end}<user>hi{end}2024glad<assistant>"));
    let own = ["--chat", "--chat-template-kwargs", "{\"mood\": \"sad\", \"depth\": 1}"];
    same("run/checkpoint-3", &own, &format!("<user>hi{end}2024sad1<assistant>"));
    assert_ne!(said(&["--model", "run", "--prompt", "hi"]), said(&["--model", "run", "--chat", "--prompt", "hi"]));
    let without = place.run(&["generate", "--model", tiny(), "--chat", "--prompt", "hi"]);
    assert!(without.code == Some(2) && without.error().contains("no chat template"), "{}", without.stderr);
    std::fs::create_dir(place.path("begun")).unwrap();
    place.write("begun/events.jsonl", "");
    let begun = place.run(&["generate", "--model", "begun", "--prompt", "hi"]);
    assert!(begun.code == Some(2) && begun.error().contains("begun"), "{}", begun.stderr);
}

#[test]
fn a_folders_template_brings_its_end_token_and_is_refused_where_the_model_lacks_its_tokens() {
    let place = place();
    let source = |name: &str, template: &str, end: &str, added: &str| {
        let settings = json!({"chat_template": template, "eos_token": end, "added_tokens_decoder": {"9": {"content": added, "special": true}, "10": {"content": "for m"}}});
        std::fs::create_dir(place.path(name)).unwrap();
        place.write(&format!("{name}/tokenizer_config.json"), settings.to_string());
    };
    let run = |name: &str, more: &[&str]| {
        let from = ["--chat-template-path", name, "--max-steps", "1"];
        train(&place, &format!("with-{name}"), &[&from[..], more].concat())
    };
    let plain = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    // An added token that the template does not write is not needed.
    source("taken", plain, "!", "<|unused|>");
    run("taken", &[]).succeeded();
    let file = |run: &str| std::fs::read_to_string(place.path(run).join("checkpoint-1/tokenizer_config.json")).unwrap();
    let end = |run: &str| serde_json::from_str::<Value>(&file(run)).unwrap()["eos_token"].clone();
    assert_eq!(end("with-taken"), "!");
    place.run(&["resume", "with-taken", "--max-steps", "2"]).succeeded();
    run("taken", &["--eos-token", "?", "--output-dir", "named"]).succeeded();
    assert_eq!(end("named"), "?");

    source("written", &format!("<|turn|>{plain}"), "!", "<|turn|>");
    let refused = run("written", &[]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("written writes <|turn|>, which the model's tokenizer does not have"), "{}", refused.stderr);
    source("ended", plain, "<|stop|>", "<|unused|>");
    let refused = run("ended", &[]);
    assert!(refused.stderr.contains("<|stop|>, which the model's tokenizer does not have"), "{}", refused.stderr);
    // Another end token is enough.
    run("ended", &["--eos-token", "!"]).succeeded();
    // The file alone is text.
    place.write("written.jinja", format!("<|turn|>{plain}"));
    run("written.jinja", &[]).succeeded();
}

/// Copies a model's folder into the place, with other files beside its weights.
fn copied(place: &TestFolder, name: &str, files: &[(&str, Value)]) {
    std::fs::create_dir(place.path(name)).unwrap();
    for entry in std::fs::read_dir(tiny()).unwrap().map(|entry| entry.unwrap()) {
        std::fs::copy(entry.path(), place.path(name).join(entry.file_name())).unwrap();
    }
    for (file, value) in files {
        place.write(&format!("{name}/{file}"), value.to_string());
    }
}

#[test]
fn rows_with_tools_are_rendered_with_the_template_for_tools_and_checkpoints_keep_it() {
    let place = place();
    let template = |name: &str| {
        let text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ bos_token }}{% endfor %}{% if tools %}{{ tools[0].name }}{% endif %}";
        json!({"name": name, "template": format!("({name}){text}")})
    };
    let settings = json!({"chat_template": [template("default"), template("tool_use")], "eos_token": "<|endoftext|>"});
    copied(
        &place,
        "model",
        &[("tokenizer_config.json", settings), ("special_tokens_map.json", json!({"bos_token": {"content": "!"}}))],
    );
    let run = |model: &str, run: &str| {
        let base = ["--model", model, "--dataset", "asked.jsonl", "--plugin", "tldr_length_reward.wasm", "--output-dir", run];
        let few = ["--max-completion-length", "4", "--per-device-train-batch-size", "8", "--num-generations", "2"];
        place.run(&[&base[..], &few, &["--log-completions", "all", "--max-steps", "1"]].concat()).succeeded();
        let lines = place.lines(&format!("{run}/completions.jsonl"));
        let prompt = |row: u64| lines.iter().find(|line| line["row"] == row).unwrap()["prompt"].as_str().unwrap().to_owned();
        assert_eq!((prompt(0).as_str(), prompt(1).as_str()), ("(default)<user>q0!", "(tool_use)<user>q1!calc"));
    };
    run("model", "run");
    run("run/checkpoint-1", "again");
    // Templates in files.
    let name = "additional_chat_templates";
    let files =
        [("chat_template.jinja", template("default")), ("additional_chat_templates/tool_use.jinja", template("tool_use"))];
    copied(&place, "files", &[("tokenizer_config.json", json!({"bos_token": "!", "eos_token": "<|endoftext|>"}))]);
    std::fs::create_dir(place.path("files").join(name)).unwrap();
    for (file, template) in files {
        place.write(&format!("files/{file}"), template["template"].as_str().unwrap());
    }
    run("files", "filed");
    run("filed/checkpoint-1", "filed-again");
}

#[test]
fn a_folder_with_a_template_for_tools_alone_renders_rows_with_tools_and_skips_others() {
    let place = place();
    let text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ tools[0].name }}";
    let settings = json!({"chat_template": [{"name": "tool_use", "template": text}], "eos_token": "<|endoftext|>"});
    copied(&place, "model", &[("tokenizer_config.json", settings)]);
    let base = ["--model", "model", "--dataset", "asked.jsonl", "--plugin", "tldr_length_reward.wasm", "--output-dir", "run"];
    let few = ["--max-completion-length", "4", "--per-device-train-batch-size", "2", "--num-generations", "2"];
    let trained = place.run(&[&base[..], &few, &["--log-completions", "all", "--max-steps", "1"]].concat());
    let stderr = &trained.succeeded().stderr;
    assert!(stderr.contains("3 of 4 rows") && stderr.contains("none for others"), "{stderr}");
    for line in place.lines("run/completions.jsonl") {
        assert_eq!((line["row"].as_u64(), line["prompt"].as_str()), (Some(1), Some("<user>q1calc")));
    }
}

#[test]
fn an_environment_with_tools_refuses_a_template_whose_calls_cannot_be_read() {
    let place = place();
    let template = |call: &str| {
        format!(
            "{{% for t in tools or [] %}}{{{{ t | tojson }}}}{{% endfor %}}{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}{call}{{% endfor %}}\n{{% endfor %}}{{% if add_generation_prompt %}}<assistant>{{% endif %}}"
        )
    };
    place.write("odd.jinja", template("<|call>{{ c.function.name }}:{{ c.function.arguments | tojson }}<call|>"));
    place.write("known.jinja", template("<tool_call>{{ c.function | tojson }}</tool_call>"));
    let run = |file: &str, run: &str| {
        let base = ["--model", tiny(), "--dataset", "asked.jsonl", "--environment", "calculator_tool.wasm", "--output-dir", run];
        let few =
            ["--max-completion-length", "4", "--per-device-train-batch-size", "2", "--num-generations", "2", "--max-steps", "1"];
        place.run(&[&base[..], &few, &["--chat-template-path", file, "--max-turns", "2"]].concat())
    };
    let refused = run("odd.jinja", "odd");
    assert_eq!((refused.code, place.path("odd").exists()), (Some(2), false), "{}", refused.stderr);
    for part in [
        "calculator_tool can't be used: ",
        "odd.jinja",
        "calls of tools in a format that can't be read",
        "<|call>probe_of_calls:",
        "chat_template_path",
    ] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    // The tiny model's context is too short for the tool's description, which is found later.
    let read = run("known.jinja", "known");
    assert!(read.stderr.contains("the model's context is 192") && !read.stderr.contains("can't be read"), "{}", read.stderr);
}

#[test]
fn a_template_that_would_hold_itself_is_refused() {
    let place = place();
    place.write("cycle.jinja", "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x|tojson }}");
    let refused = train(&place, "run", &["--chat-template-path", "cycle.jinja", "--max-steps", "1"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.error().contains("a namespace can't hold a namespace"), "{}", refused.stderr);
}
