//! Models of strangers: whatever is wrong with a folder is one clear line with exit code 2.

use rlhost_tests::{CommandOutcome, STORIES, TestFolder, binary, tiny};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

const PROMPT: [&str; 6] = ["generate", "--model", "model", "--prompt", "a", "--max-new-tokens"];

/// A folder with a tiny model as `model`.
fn place() -> TestFolder {
    let place = TestFolder::new();
    place.copy(tiny(), "model");
    place
}

fn generate(place: &TestFolder) -> CommandOutcome {
    place.run(&[&PROMPT[..], &["3"]].concat())
}

fn refused(outcome: &CommandOutcome, what: &str, expected: &[&str]) {
    assert_eq!(outcome.code, Some(2), "{what}: {}", outcome.stderr);
    let error = outcome.error();
    for part in expected {
        assert!(error.contains(part), "{what} should mention {part:?}: {error}");
    }
    assert_eq!(outcome.complaints(), [error], "{what}: {}", outcome.stderr);
}

/// A safetensors file of a header and as many bytes.
fn tensors(header: &str, bytes: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; bytes]].concat()
}

/// The weights with a value put in the middle of a tensor.
fn with_value(weights: &[u8], name: &str, value: f32) -> Vec<u8> {
    let begin = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&weights[8..begin]).unwrap();
    let offset = |i: usize| header[name]["data_offsets"][i].as_u64().unwrap() as usize;
    let at = begin + (offset(0) + offset(1)) / 8 * 4;
    let mut weights = weights.to_vec();
    weights[at..at + 4].copy_from_slice(&value.to_le_bytes());
    weights
}

#[test]
fn damaged_weights_are_refused_with_the_file() {
    let place = place();
    let whole = std::fs::read(place.path("model/model.safetensors")).unwrap();
    let norm = "model.norm.weight";
    let one = |shape: &str, kind: &str, offsets: &str| {
        format!("{{\"{norm}\": {{\"dtype\": \"{kind}\", \"shape\": {shape}, \"data_offsets\": {offsets}}}}}")
    };
    let overlapping = "{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}, \
                       \"b\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [4, 12]}}";
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        ("nothing", vec![], &["shorter"]),
        ("seven bytes", vec![1; 7], &["shorter"]),
        ("cut off within its header", whole[..100].to_vec(), &["truncated"]),
        ("cut off", whole[..whole.len() - 1].to_vec(), &["truncated"]),
        ("longer", [&whole[..], b"x"].concat(), &["longer"]),
        (
            "a header of 10^18 bytes",
            [&1_000_000_000_000_000_000u64.to_le_bytes()[..], &[b' '; 99]].concat(),
            &["1000000000000000000"],
        ),
        ("a header of all bytes", [0xff; 64].to_vec(), &["header"]),
        ("no JSON", tensors("{\"a\": ", 0), &["header"]),
        ("a list", tensors("[]", 0), &["header"]),
        ("lists in lists", tensors(&"[".repeat(1_000_000), 0), &["header"]),
        ("overlapping", tensors(overlapping, 12), &["header"]),
        ("a type that is not known", tensors(&one("[2]", "F99\u{1b}[2J", "[0, 8]"), 8), &["header"]),
        ("shape and offsets", tensors(&one("[3]", "F32", "[0, 8]"), 8), &["header"]),
        ("negative", tensors(&one("[-2]", "F32", "[0, 8]"), 8), &["header"]),
        ("a product that overflows", tensors(&one("[4294967296, 4294967296, 2]", "F32", "[0, 8]"), 8), &["header"]),
        ("offsets that overflow", tensors(&one("[2]", "F32", "[0, 18446744073709551615]"), 8), &["header"]),
        ("offsets beyond the file", tensors(&one("[250000000000]", "F32", "[0, 1000000000000]"), 8), &["truncated"]),
        ("no size", tensors(&one("[0]", "F32", "[0, 0]"), 0), &["model.embed_tokens.weight"]),
        ("no tensor", tensors("{}", 0), &["model.embed_tokens.weight"]),
        ("NaN", with_value(&whole, "model.layers.1.mlp.up_proj.weight", f32::NAN), &["model.layers.1.mlp.up_proj.weight", "NaN"]),
        ("infinite", with_value(&whole, norm, f32::INFINITY), &[norm, "infinite"]),
    ];
    for (what, bytes, expected) in cases {
        place.write("model/model.safetensors", bytes);
        let outcome = generate(&place);
        refused(&outcome, what, expected);
        assert!(outcome.error().contains("model"), "{what}: {}", outcome.error());
    }
    let train = ["--plugin", "tldr_length_reward.wasm", "--model", "model", "--output-dir", "run"];
    place.write("model/model.safetensors", with_value(&whole, norm, f32::NAN));
    let outcome = place.run(&[&train[..], &["--dataset", rlhost_tests::STORIES]].concat());
    assert_eq!((outcome.code, outcome.error().contains(norm)), (Some(2), true), "{}", outcome.stderr);
}

#[test]
fn absurd_sizes_are_refused_with_file_and_key() {
    let place = place();
    let config: Value = serde_json::from_slice(&std::fs::read(place.path("model/config.json")).unwrap()).unwrap();
    let keys =
        ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"];
    let absurd = [json!(1_000_000_000u64), json!(1_000_000_000_000u64), json!(u64::MAX), json!(-1), json!(0.5), json!("x")];
    let cases = keys.iter().zip(absurd.iter().cycle()).chain(keys.iter().map(|key| (key, &absurd[1])));
    for (key, value) in cases {
        let mut config = config.clone();
        config[*key] = value.clone();
        place.write("model/config.json", config.to_string());
        refused(&generate(&place), &format!("{key} = {value}"), &["config.json", key]);
    }
    place.write("absurd.json", json!({"model_type": "llama", "num_hidden_layers": 4_000_000_000u64}).to_string());
    let new = ["new-model", "new", "--config", "absurd.json", "--tokenizer", "model"];
    refused(&place.run(&new), "new-model", &["absurd.json", "hidden_size"]);
    assert!(!place.path("new").exists());

    // Ten million positions are allowed, and cost what is used.
    let mut long = config.clone();
    long["max_position_embeddings"] = 10_000_000.into();
    place.write("model/config.json", config.to_string());
    let short = generate(&place);
    place.write("model/config.json", long.to_string());
    assert_eq!(generate(&place).succeeded().stdout, short.succeeded().stdout);
    let most = place.run(&[&PROMPT[..], &["18446744073709551615", "--stop", "a", "--stop", "e", "--stop", " "]].concat());
    assert_ne!(most.code, None, "{}", most.stderr);
}

#[test]
fn what_a_model_says_beyond_what_is_computed_is_refused_by_name() {
    let place = place();
    let config: Value = serde_json::from_slice(&std::fs::read(place.path("model/config.json")).unwrap()).unwrap();
    let with = |more: Value| {
        let mut config = config.clone();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        place.write("model/config.json", config.to_string());
        generate(&place)
    };
    let linear = json!({ "rope_type": "linear", "factor": 2.0 });
    for (more, named) in [
        (json!({ "num_hidden_layers": 1 }), "model.layers.1"),
        (json!({ "tie_word_embeddings": true }), "lm_head.weight"),
        (json!({ "quantization_config": { "bits": 4 } }), "quantization_config"),
        (json!({ "sliding_window": 16 }), "sliding_window"),
        (json!({ "layer_types": ["full_attention"] }), "layer_types"),
        (json!({ "rope_parameters": { "rope_type": "default" }, "rope_scaling": linear }), "rope_scaling"),
        (json!({ "is_encoder_decoder": true }), "is_encoder_decoder"),
        (json!({ "a_new_key\u{1b}": 1 }), "a_new_key"),
    ] {
        refused(&with(more), named, &["model", named]);
    }
    // What changes nothing here is no reason to refuse; what other programs would do is said.
    let harmless = json!({
        "use_cache": true, "_name_or_path": "x", "is_decoder": false, "pretraining_tp": 1, "top_k": 50, "sliding_window": null,
        "attention_dropout": 0.1,
    });
    let outcome = with(harmless);
    assert!(outcome.succeeded().stderr.contains("attention_dropout"), "{}", outcome.stderr);

    // An output matrix that is the embedding is no other.
    let mut weights = std::fs::read(place.path("model/model.safetensors")).unwrap();
    let begin = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&weights[8..begin]).unwrap();
    let range = |name: &str| {
        let at = |i: usize| begin + header[name]["data_offsets"][i].as_u64().unwrap() as usize;
        at(0)..at(1)
    };
    weights.copy_within(range("model.embed_tokens.weight"), range("lm_head.weight").start);
    place.write("model/model.safetensors", weights);
    with(json!({ "tie_word_embeddings": true })).succeeded();
}

#[test]
fn layers_that_an_adapter_names_must_be_the_models() {
    let place = place();
    place.write("answers.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    let sft =
        ["sft", "--dataset", "answers.jsonl", "--model", "model", "--output-dir", "run", "--lora-target-modules", "qkv_proj"];
    refused(&place.run(&[&sft[..], &["--use_peft"]].concat()), "qkv_proj", &["lora_target_modules", "qkv_proj", "q_proj"]);
}

#[test]
fn the_families_are_listed_as_the_program_knows_them() {
    let place = TestFolder::new();
    let listed = place.run(&["models"]).succeeded().stdout.clone();
    for family in ["gemma3_text", "gpt_neox", "llama", "phi3", "starcoder2"] {
        assert!(listed.lines().any(|line| line.starts_with(&format!("{family} "))), "{family}: {listed}");
    }
    assert!(listed.lines().all(|line| line.len() <= 120), "{listed}");
    let guide = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/docs/data.md")).unwrap();
    let table = place.run(&["models", "--markdown"]).succeeded().stdout.clone();
    assert!(guide.contains(&table), "host/docs/data.md does not have the table of rlhost models --markdown:\n{table}");
}

#[test]
fn a_model_is_judged_by_its_configuration_alone() {
    let place = TestFolder::new();
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/granitemoehybrid/config.json");
    let text = std::fs::read_to_string(fixture).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::create_dir(place.path(name)).unwrap();
        place.write(&format!("{name}/config.json"), text);
    };
    write("granite", &text);
    let said = place.run(&["models", "granite"]).succeeded().stdout.clone();
    for part in ["Granite 4, which is supported", "3 layers, 2 of them recurrent", "no kernels for recurrent layers"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(place.run(&["models", "granite/config.json"]).succeeded().stdout.lines().count(), said.lines().count());
    assert!(place.run(&["models", "qwen3_next"]).succeeded().stdout.starts_with("qwen3_next "));

    // All keys that are not known are named, and a layer of another kind.
    let other = text.replacen('{', "{\"use_mystery\": 1, \"hidden_mystery\": \"x\",", 1);
    write("other", &other);
    let refused = place.run(&["models", "other"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("use_mystery") && refused.stderr.contains("hidden_mystery"), "{}", refused.stderr);
    write("layers", &text.replacen("full_attention", "moe", 1));
    let refused = place.run(&["models", "layers"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("layer_types"), "{}", refused.stderr);
    write("unknown", &text.replacen("\"granitemoehybrid\"", "\"mamba9\"", 1));
    let refused = place.run(&["models", "unknown"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("mamba9"), "{}", refused.stderr);
    assert_eq!(place.run(&["models", "nothing-here"]).code, Some(2));
}

#[test]
#[cfg(unix)]
fn files_that_are_none_and_shards_elsewhere_are_refused() {
    use std::os::unix::fs::symlink;
    let place = place();
    let at = |name: &str| place.path("model").join(name);
    std::fs::rename(at("model.safetensors"), at("one.safetensors")).unwrap();
    std::fs::copy(at("one.safetensors"), place.path("outside.safetensors")).unwrap();
    let index = |file: &str| {
        place.write("model/model.safetensors.index.json", json!({"weight_map": {"model.norm.weight": file}}).to_string());
    };
    index("one.safetensors");
    generate(&place).succeeded();
    for outside in ["../outside.safetensors", &place.path("outside.safetensors").display().to_string(), "/dev/zero", "", "."] {
        index(outside);
        refused(&generate(&place), outside, &["model.safetensors.index.json", "outside the folder"]);
    }
    // As the hub's cache has it.
    symlink("../outside.safetensors", at("linked.safetensors")).unwrap();
    index("linked.safetensors");
    generate(&place).succeeded();
    symlink("../gone", at("dangling.safetensors")).unwrap();
    index("dangling.safetensors");
    refused(&generate(&place), "dangling", &["dangling.safetensors", "a link to"]);
    index("one.safetensors");

    let pipe = |name: &str| {
        let _ = std::fs::remove_file(at(name));
        assert!(std::process::Command::new("mkfifo").arg(at(name)).status().unwrap().success());
    };
    let optional = ["generation_config.json", "chat_template.jinja", "tokenizer_config.json"];
    for name in ["one.safetensors", "model.safetensors.index.json", "config.json", "tokenizer.json"].iter().chain(&optional) {
        let whole = std::fs::read(at(name)).ok();
        pipe(name);
        refused(&generate(&place), name, &[name, "a pipe"]);
        std::fs::remove_file(at(name)).unwrap();
        symlink("/dev/zero", at(name)).unwrap();
        refused(&generate(&place), name, &[name, "a device"]);
        std::fs::remove_file(at(name)).unwrap();
        if let Some(whole) = whole {
            std::fs::write(at(name), whole).unwrap();
        }
    }
    pipe("vocab.json");
    let export = place.run(&["export", "model", "exported", "--dtype", "bf16"]);
    assert!(matches!(export.code, Some(1 | 2)) && export.error().contains("vocab.json"), "{}", export.stderr);
}

#[test]
fn a_key_that_comes_twice_is_refused_in_every_file_and_at_every_level() {
    let place = place();
    let at = |name: &str| place.path("model").join(name);
    let config = std::fs::read_to_string(at("config.json")).unwrap();
    let nested = "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2.0, \"factor\": 4.0},";
    let index = "{\"weight_map\": {\"a\": \"one.safetensors\", \"a\": \"model.safetensors\"}}";
    let cases = [
        ("config.json", config.replacen('{', nested, 1), "factor"),
        ("model.safetensors.index.json", index.to_owned(), "a"),
        ("tokenizer_config.json", "{\"eos_token\": {\"content\": \"a\", \"content\": \"b\"}}".to_owned(), "content"),
        ("generation_config.json", "{\"x\": [{\"eos_token_id\": 1, \"eos_token_id\": 2}]}".to_owned(), "eos_token_id"),
    ];
    for (name, text, key) in cases {
        let before = std::fs::read(at(name)).ok();
        place.write(&format!("model/{name}"), text);
        refused(&generate(&place), name, &[name, &format!("the key \"{key}\" twice in one object")]);
        match before {
            Some(before) => std::fs::write(at(name), before).unwrap(),
            None => std::fs::remove_file(at(name)).unwrap(),
        }
    }
    generate(&place).succeeded();
}

/// What a checkpoint needs is read before there is anything to lose, and once.
#[cfg(unix)]
#[test]
fn files_beside_the_weights_are_refused_at_the_start_and_may_be_gone_at_a_save() {
    let place = place();
    let train = |run: &'static str, steps: &'static str| {
        let mut all = vec!["--model", "model", "--plugin", "tldr_length_reward.wasm", "--dataset", STORIES, "--output-dir", run];
        all.extend(["--max-completion-length", "8", "--max-steps", steps, "--save-steps", "1"]);
        all
    };
    for name in ["merges.txt", "special_tokens_map.json", "tokenizer.model"] {
        let path = place.path("model").join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        refused(&place.run(&train("refused", "1")), name, &[name, "a pipe"]);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        refused(&place.run(&train("refused", "1")), name, &[name, "a link to a file that does not exist"]);
        std::fs::remove_file(path).unwrap();
    }
    assert!(!place.path("refused").exists());

    let mut child = place.start(&train("run", "40"));
    place.wait("run", Duration::from_secs(120), || place.path("run/checkpoint-1").exists());
    std::fs::rename(place.path("model"), place.path("gone")).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(place.checkpoints("run").len(), 40);
    for name in ["config.json", "tokenizer.json"] {
        let [first, last] = ["1", "40"].map(|step| std::fs::read(place.path(&format!("run/checkpoint-{step}/{name}"))).unwrap());
        assert!(first == last, "{name}");
    }
}

#[test]
fn tokenizers_and_templates_that_panic_hang_or_grow_are_refused() {
    let place = place();
    let whole: Value = serde_json::from_slice(&std::fs::read(place.path("model/tokenizer.json")).unwrap()).unwrap();
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let grow = json!({"type": "Sequence", "normalizers": vec![replace(json!({"String": "a"}), "aaaaaaaaaa"); 40]});
    let decode = |pattern: &str, content: &str| json!({"type": "Sequence", "decoders": vec![replace(json!({"String": pattern}), content); 40]});
    let cases: &[(&str, &str, Value, bool)] = &[
        ("tokens that grow", "decoder", decode("a", "aaaaaaaaaa"), true),
        ("a map of nothing", "normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}), true),
        ("a map cut off", "normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAD///8="}), true),
        ("a text that grows", "normalizer", grow, true),
        ("no pattern", "pre_tokenizer", split("("), true),
        ("a deep pattern", "pre_tokenizer", split(&"(".repeat(200_000)), true),
        ("a large pattern", "pre_tokenizer", split("((((a{999}){999}){999}){999}){999}"), true),
        ("a pattern that backtracks", "pre_tokenizer", split(r"(?=a)(a+)+$|(a|a)*b\1"), false),
        ("a replacement that backtracks", "normalizer", replace(json!({"Regex": r"(?=a)(a|a)*(a|a)*\1$"}), "b"), false),
        (
            "a decoder that goes beyond a token",
            "decoder",
            json!({"type": "Strip", "content": "a", "start": 0, "stop": 99}),
            false,
        ),
    ];
    let prompt = "a".repeat(100);
    let run = || place.run(&["generate", "--model", "model", "--prompt", &prompt, "--max-new-tokens", "3"]);
    for (what, key, value, refuses) in cases {
        let mut tokenizer = whole.clone();
        tokenizer[*key] = value.clone();
        place.write("model/tokenizer.json", tokenizer.to_string());
        let outcome = run();
        if *refuses {
            refused(&outcome, what, &["tokenizer.json"]);
        } else {
            assert!(matches!(outcome.code, Some(0..=2)) && !outcome.stderr.contains("panicked"), "{what}: {}", outcome.stderr);
        }
    }
    place.write("model/tokenizer.json", format!("{{\"model\": {}", "[".repeat(1_000_000)));
    refused(&run(), "lists in lists", &["tokenizer.json"]);
    place.write("model/tokenizer.json", whole.to_string());

    place.write("chat.jsonl", "{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
    let doubled = "{% set ns = namespace(x='0123456789') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
    let long = "x".repeat(2 << 20);
    for template in ["{{ 'a\nb' | indent(99999999999) }}", doubled, "{{ raise_exception('\u{1b}[2Jgone') }}", &long] {
        place.write("model/chat_template.jinja", template);
        let train = ["--plugin", "tldr_length_reward.wasm", "--model", "model", "--dataset", "chat.jsonl", "--output-dir", "run"];
        let outcome = place.run(&train);
        assert_eq!(outcome.code, Some(2), "{template:.60}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains('\u{1b}') && outcome.error().len() < 3000, "{template:.60}: {}", outcome.stderr);
    }
}

/// Where address space is limited, texts are read on smaller stacks; where there is none left, that is one line.
#[cfg(target_os = "linux")]
#[test]
fn little_address_space_is_enough_or_one_line() {
    let place = TestFolder::new();
    let generate = |kibibytes: u64| {
        let script = format!("ulimit -v {kibibytes} && exec \"$0\" generate --model \"$1\" --prompt abc --max-new-tokens 4");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(binary()).arg(tiny()).current_dir(place.path("")).env("NO_COLOR", "1");
        CommandOutcome::new(command.output().unwrap())
    };
    let outcomes: Vec<(u64, CommandOutcome)> =
        (100..1500).step_by(100).map(|mebibytes| (mebibytes, generate(mebibytes << 10))).collect();
    // It takes some itself, and a library that is refused memory may end the process.
    let least = outcomes.iter().position(|(_, outcome)| outcome.code == Some(0)).expect("that is enough");
    for (mebibytes, outcome) in &outcomes[least..] {
        if outcome.code != Some(0) {
            assert_eq!(outcome.code, Some(2), "{mebibytes} MiB: {}", outcome.stderr);
            assert!(outcome.error().contains("ulimit -v"), "{mebibytes} MiB: {}", outcome.stderr);
        }
    }
    generate(900 << 10).succeeded();
    generate(1400 << 10).succeeded();
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_no_half_of_a_new_model() {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 257,
        "max_position_embeddings": 192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": false, "torch_dtype": "float32",
    });
    // The signal comes while the weights are drawn, and while the tokenizer is trained.
    for rows in [1, 50_000] {
        let place = TestFolder::new();
        place.write("config.json", config.to_string());
        place.write(
            "corpus.jsonl",
            (0..rows).map(|i| format!("{{\"text\": \"story {i} of {}\"}}\n", i * 7919)).collect::<String>(),
        );
        let from = ["new-model", "models/large", "--config", "config.json", "--corpus", "corpus.jsonl", "--vocab-size", "257"];
        let child = place.start_piped(&from);
        let begun = std::time::Instant::now();
        while !place.path("models").exists() || place.entries_of("models").is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!place.path("models/large").exists(), "it has its name once it is complete");
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let outcome = CommandOutcome::new(child.wait_with_output().unwrap());
        assert_eq!(outcome.code, Some(130), "{rows} rows: {}", outcome.stderr);
        assert_eq!(outcome.error(), "error: stopped; nothing was written to models/large");
        assert!(place.entries_of("models").is_empty(), "{:?}", place.entries_of("models"));
    }
}
