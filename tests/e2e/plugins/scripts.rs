//! Scripts as plugins: Python, JavaScript and TypeScript files, without anything installed.

use rlhost_tests::{TestFolder, small, tiny};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// Longest that anything here is waited for; the first test compiles the interpreters.
const PATIENCE: Duration = Duration::from_secs(120);

/// A reward in TRL's form, with a setting.
const WORDS: &str =
    "def words(completions, target: int = 20, **columns):\n    return [-abs(c.count(' ') - target) for c in completions]\n";

/// The rewards of a run's completions, by their names, with the completion.
fn scored(place: &TestFolder, run: &str) -> Vec<(String, Value)> {
    let lines = place.lines(&format!("{run}/completions.jsonl"));
    lines.into_iter().map(|line| (line["completion"].as_str().unwrap_or_default().to_owned(), line["rewards"].clone())).collect()
}

/// What the scripts here count: spaces, of which all languages have the same idea.
fn words(text: &str) -> f64 {
    text.matches(' ').count() as f64
}

#[test]
fn functions_written_for_trl_score_conversations_and_columns_in_three_languages() {
    let place = TestFolder::new();
    let row = |i: usize| {
        let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": format!("say {i} words")}]);
        format!("{}\n", json!({"prompt": messages, "answer": i % 3}))
    };
    place.write("rows.jsonl", (0..16).map(row).collect::<String>());
    place.write("template.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:");
    place.write(
        "batch.py",
        "import asyncio\n\nasync def batch(prompts, completions, completion_ids, answer, trainer_state, log_metric, scale: float = 1.0, **columns):\n    \
             await asyncio.sleep(0)\n    assert prompts[0][0]['role'] == 'system' and prompts[0][1]['content'].startswith('say')\n    \
             log_metric('rows', len(completions))\n    texts = [c[0]['content'] for c in completions]\n    \
             assert len(completion_ids) == len(texts) and trainer_state.global_step >= 0\n    \
             return [scale * (t.count(' ') + a) if t else None for t, a in zip(texts, answer)]\n",
    );
    place.write("row.py", "def row(completion, answer):\n    return completion.count(' ') + answer if completion else None\n");
    place.write(
        "batch.js",
        "export function batch_js({ completions, answer, scale = 1 }) {\n  return completions.map((c, i) => {\n    \
             const text = c[0].content;\n    const n = text.split(' ').length - 1;\n    \
             return text ? scale * (n + answer[i]) : null;\n  });\n}\n",
    );
    place.write(
        "row.ts",
        "interface Row { answer: number }\nexport const row_ts = (completion: string, { answer }: Row): number | null =>\n  \
             completion ? completion.split(' ').length - 1 + answer : null;\n",
    );
    // With its interpreter in a component, it gets conversations, too.
    place.run(&["plugin", "build", "batch.py", "--output", "built.wasm"]).succeeded();
    let rest = "--dataset rows.jsonl --chat-template-path template.jinja --max-steps 3 --max-completion-length 24 --log-completions all \
                --logging-steps 1 --output-dir run --set plugin.batch.config.scale=2";
    let plugins = ["--plugin", "batch.py", "--plugin", "row.py", "--plugin", "batch.js:batch_js", "--plugin", "row_ts=row.ts"];
    let arguments = [&["--model", tiny()][..], &plugins, &rest.split_whitespace().collect::<Vec<_>>()].concat();
    place.run(&arguments).succeeded();
    let lines = place.lines("run/completions.jsonl");
    assert!(lines.len() >= 24);
    for line in &lines {
        let text = line["completion"].as_str().unwrap();
        let plain = (!text.is_empty()).then(|| line["rewards"]["row"].as_f64().unwrap() - words(text));
        let rewards = &line["rewards"];
        match plain {
            None => assert!(["batch", "row", "batch_js", "row_ts"].iter().all(|name| rewards[name].is_null()), "{line}"),
            Some(answer) => {
                assert!((0.0..3.0).contains(&answer), "{line}");
                let expected = words(text) + answer;
                assert_eq!(rewards["batch"].as_f64(), Some(2.0 * expected), "{line}");
                assert_eq!(
                    (rewards["batch_js"].as_f64(), rewards["row_ts"].as_f64()),
                    (Some(expected), Some(expected)),
                    "{line}"
                );
            }
        }
    }
    assert!(place.figure("run", "rows").iter().all(|rows| *rows > 0.0));
    let alone = rest.replace("--output-dir run --set plugin.batch.config.scale=2", "--output-dir alone");
    let built = [&["--model", tiny(), "--plugin", "built.wasm"][..], &alone.split_whitespace().collect::<Vec<_>>()].concat();
    place.run(&built).succeeded();
}

#[test]
fn saving_a_script_swaps_it_and_one_with_an_error_is_refused_with_its_line() {
    let place = TestFolder::new();
    place.write("words.py", WORDS);
    let size = ["--max-completion-length", "96", "--per-device-train-batch-size", "16", "--learning-rate", "0"];
    let run = ["--plugin", "words.py", "--output-dir", "run", "--max-steps", "100000", "--logging-steps", "1"];
    let mut child = place.start(&[&small()[..], &run, &size].concat());
    let wait = |done: &dyn Fn() -> bool| place.wait("run", PATIENCE, done);
    wait(&|| place.steps("run") > 1);
    place.write("words.py", "def words(completions, **columns):\n    return [7.0] * len(completions)\n");
    wait(&|| place.figure("run", "rewards/words/mean").last() == Some(&7.0));
    let refused = |number: usize| {
        wait(&|| place.events("run", "plugin_refused").len() == number);
        place.events("run", "plugin_refused")[number - 1]["reason"].as_str().unwrap().to_owned()
    };
    place.write("words.py", "def words(completions, **columns)\n    return 1\n");
    let syntax = refused(1);
    assert!(syntax.contains("File \"words.py\", line 1") && syntax.contains("SyntaxError"), "{syntax}");
    place.write("words.py", "def words(completions, **columns):\n    x = {}\n    return [x['none'] for c in completions]\n");
    let raised = refused(2);
    assert!(raised.contains("line 3, in words") && raised.contains("KeyError: 'none'"), "{raised}");
    assert!(!raised.contains("rlhost_interpreter") && !raised.contains(".rs"), "{raised}");
    // Files that it imports are part of it.
    place.write("helper.py", "SCORE = 8.0\n");
    place.write("words.py", "import helper\ndef words(completions, **columns):\n    return [helper.SCORE] * len(completions)\n");
    wait(&|| place.figure("run", "rewards/words/mean").last() == Some(&8.0));
    place.write("helper.py", "SCORE = 9.0\n");
    wait(&|| place.figure("run", "rewards/words/mean").last() == Some(&9.0));
    // By command, from another file.
    place.write("other.js", "export const words = (completion) => 10;\n");
    place.run(&["swap", "run", "words=other.js"]).succeeded();
    wait(&|| place.figure("run", "rewards/words/mean").last() == Some(&10.0));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(place.events("run", "plugin_swapped").len(), 4);
}

#[test]
fn a_script_that_keeps_state_resumes_with_the_same_bits_without_its_file() {
    let place = TestFolder::new();
    place.write(
        "curriculum.py",
        "seen = 0\nSTATE = 'seen'\n\ndef curriculum(completions, **columns):\n    global seen\n    seen += len(completions)\n    \
             return [(len(c) % 7) / 7 + seen / 1000 for c in completions]\n",
    );
    let rest = ["--max-completion-length", "24", "--logging-steps", "1", "--save-steps", "2", "--log-completions", "all"];
    let run = ["--plugin", "curriculum.py", "--output-dir", "whole", "--max-steps", "6"];
    place.run(&[&small()[..], &rest, &run].concat()).succeeded();
    fs::remove_file(place.path("curriculum.py")).unwrap();
    place.assert_resumes("whole", 2, 6, "model.safetensors");
    let means = place.figure("whole", "rewards/curriculum/mean");
    assert!(means.windows(2).all(|pair| pair[1] > pair[0] - 0.2), "{means:?}");
    // Recorded completions can be scored with another script.
    place.write("words.py", WORDS);
    let replayed = place.run(&["replay", "whole", "--plugin", "words.py", "--set", "target=3"]);
    replayed.succeeded();
    assert!(replayed.stdout.contains("words"), "{}", replayed.stdout);
}

#[test]
fn all_functions_of_a_file_are_rewards_and_mistakes_are_named() {
    let place = TestFolder::new();
    place.write(
        "rewards.py",
        "from typing import Literal\n\ndef short(completion, most: int = 5):\n    return -max(0, len(completion) - most)\n\n\
             def fixed(completions, unit: Literal['a', 'b'] = 'a', **columns):\n    return [1.0 if unit == 'a' else 2.0] * len(completions)\n\n\
             def _helper(completions):\n    return []\n",
    );
    let run = |run: &str, more: &[&str]| {
        let rest = ["--max-steps", "2", "--max-completion-length", "16", "--log-completions", "all", "--output-dir", run];
        place.run(&[&small()[..], &rest, more].concat())
    };
    run("both", &["--plugin", "rewards.py"]).succeeded();
    for (text, rewards) in scored(&place, "both") {
        let expected = json!({"short": -(text.chars().count() as f64 - 5.0).max(0.0), "fixed": 1.0});
        assert_eq!(rewards["fixed"], expected["fixed"]);
        assert!((rewards["short"].as_f64().unwrap() - expected["short"].as_f64().unwrap()).abs() < 1e-6, "{text:?}: {rewards}");
    }
    run("one", &["--plugin", "unit=rewards.py:fixed,weight=0.5", "--set", "plugin.unit.config.unit=b"]).succeeded();
    assert!(scored(&place, "one").iter().all(|(_, rewards)| *rewards == json!({"unit": 2.0})));
    let trl = run("trl", &["--reward_funcs", "rewards.short", "rewards.fixed", "--reward_weights", "1", "0"]);
    trl.succeeded();
    for (more, needle) in [
        (&["--plugin", "rewards.py:shot"][..], "no public function shot; it has short, fixed; did you mean \"short\"?"),
        (&["--plugin", "a=rewards.py"], "several rewards: short, fixed; name one"),
        (&["--plugin", "rewards.py:fixed", "--set", "plugin.fixed.config.unit=c"], "unit"),
        (&["--plugin", "rewards.py:short", "--set", "plugin.short.config.most=few"], "most"),
        (&["--plugin", "missing.py"], "missing.py"),
        (&["--reward_funcs", "reward.short"], "no file of that name"),
    ] {
        let refused = run("refused", more);
        assert!(refused.code == Some(2) && refused.error().contains(needle), "{more:?}: {}", refused.stderr);
    }
    let (numpy, torch) = ("import numpy as np\n", "from torch import nn\n");
    for (import, name) in [(numpy, "numpy"), (torch, "torch")] {
        place.write("imports.py", format!("{import}{WORDS}"));
        let refused = run("refused", &["--plugin", "imports.py"]);
        assert!(refused.code == Some(2) && refused.stderr.contains(&format!("{name} can't be imported")), "{}", refused.stderr);
    }
    // One that fails when it is tried, whatever becomes of the completions that it can't score.
    place.write("fails.py", "def fails(completions):\n    raise ValueError('no')\n");
    for more in [&["--plugin", "fails.py"][..], &["--plugin", "fails.py", "--set", "plugin.fails.on_error=unscorable"]] {
        let refused = run("refused", more);
        assert!(refused.code == Some(2) && refused.stderr.contains("ValueError: no"), "{more:?}: {}", refused.stderr);
        assert!(refused.stderr.ends_with("\n      | fix fails.py, then start again\n"), "{more:?}: {}", refused.stderr);
    }
}

#[test]
fn imports_within_a_function_work_as_those_at_the_top() {
    let place = TestFolder::new();
    place.write("beside.py", "SCORE = 3.0\n");
    fs::create_dir_all(place.path("lib/pack")).unwrap();
    place.write("lib/pack/__init__.py", "SCORE = 4.0\n");
    fs::create_dir_all(place.path("lib/pack_age-1.2.dist-info")).unwrap();
    place.write("lib/pack_age-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: pack-age\nVersion: 1.2\n\nLong.\n");
    place.write(
        "late.py",
        "def late(completions, **columns):\n    import datetime, html.parser, importlib.metadata, beside, pack\n    \
             when = datetime.datetime.strptime('2026-11-28', '%Y-%m-%d')\n    'x'.encode('cp1252')\n    \
             assert importlib.metadata.version('pack_age') == '1.2'\n    \
             return [float(when.day) + beside.SCORE + pack.SCORE] * len(completions)\n",
    );
    let sizes = ["--max-steps", "2", "--max-completion-length", "12", "--logging-steps", "1", "--output-dir", "run"];
    place.run(&[&small()[..], &["--plugin", "late.py", "--python-path", "lib"], &sizes].concat()).succeeded();
    assert_eq!(place.figure("run", "rewards/late/mean"), [35.0, 35.0]);
    place.write("native.py", "def native(completion):\n    import numpy\n    return 1.0\n");
    let refused = place.run(&["plugin", "check", "native.py"]);
    assert!(refused.stdout.contains("numpy can't be imported by a script: use lists"), "{}", refused.stdout);
}

#[test]
fn large_packages_are_compiled_once_and_a_damaged_cache_is_compiled_again() {
    let place = TestFolder::new();
    fs::create_dir_all(place.path("lib")).unwrap();
    // As large as packages are for which bytecode is kept; the text of a line is in its traceback however it was imported.
    let table: String = (0..20_000).map(|i| format!("value_{i} = {i}\n")).collect();
    place.write(
        "lib/large.py",
        format!("{table}def score(text):\n    return text.missing if text is None else float(text.count(' '))\n"),
    );
    place.write("big.py", "import large\n\ndef big(completion):\n    return large.score(completion) + large.value_19999\n");
    let run = |run: &str| {
        let sizes = ["--max-steps", "2", "--max-completion-length", "12", "--log-completions", "all", "--output-dir", run];
        let more = ["--plugin", "big.py", "--python-path", "lib"];
        place.run_with(&[&small()[..], &more, &sizes].concat(), &[("RLHOST_CACHE_DIR", "cache")]).succeeded();
        let lines = place.lines(&format!("{run}/completions.jsonl"));
        lines.into_iter().map(|line| (line["completion"].clone(), line["rewards"].clone())).collect::<Vec<_>>()
    };
    let first = run("first");
    let kept = || place.entries_of("cache/bytecode").into_iter().map(|name| place.path(&format!("cache/bytecode/{name}")));
    let [file] = kept().collect::<Vec<_>>().try_into().expect("one file for the modules");
    let bytes = fs::read(&file).unwrap();
    assert!(bytes.len() > 10_000, "{} bytes", bytes.len());
    assert_eq!(run("second"), first);
    let mut damaged = bytes.clone();
    damaged[5_000] ^= 1;
    fs::write(&file, damaged).unwrap();
    assert_eq!(run("third"), first);
    assert_eq!(fs::read(&file).unwrap(), bytes, "it was compiled again");
    for (text, rewards) in &first {
        assert_eq!(rewards["big"].as_f64(), Some(words(text.as_str().unwrap()) + 19_999.0), "{text}");
    }
    place.write("big.py", "import large\n\ndef big(completion):\n    return large.score(None)\n");
    let checked = place.run_with(&["plugin", "check", "big.py", "--python-path", "lib"], &[("RLHOST_CACHE_DIR", "cache")]);
    assert!(checked.stdout.contains("large.py\", line 20002") && checked.stdout.contains("text.missing"), "{}", checked.stdout);
}

#[test]
fn what_is_logged_beside_completions_is_with_each_of_them() {
    let place = TestFolder::new();
    // Divided over instances, each logs those of its own rows.
    place.write(
        "beside.py",
        "STATELESS = True\n\ndef beside(completions, log_extra, **columns):\n    log_extra('spaces', [c.count(' ') for c in completions])\n    \
             log_extra('found', [{'length': len(c), 'codes': [ord(x) for x in c]} if c else float('nan') for c in completions])\n    \
             return [float(len(c)) for c in completions]\n",
    );
    place.write(
        "also.js",
        "export function also({ completions, log_extra }) {\n  log_extra('reversed', completions.map((c) => [...c].reverse().join('')));\n  \
             return completions.map((c) => c.length);\n}\n",
    );
    let sizes = ["--max-steps", "2", "--max-completion-length", "12", "--log-completions", "all", "--output-dir", "run"];
    let rows = ["--num-generations", "32", "--per-device-train-batch-size", "64"];
    place.run(&[&small()[..], &["--plugin", "beside.py", "--plugin", "also.js"], &rows, &sizes].concat()).succeeded();
    let lines = place.lines("run/completions.jsonl");
    assert!(lines.len() >= 128, "{} completions", lines.len());
    for line in &lines {
        let text = line["completion"].as_str().unwrap();
        let codes: Vec<u32> = text.chars().map(u32::from).collect();
        let found = if text.is_empty() { Value::Null } else { json!({"length": codes.len(), "codes": codes}) };
        let reversed: String = text.chars().rev().collect();
        assert_eq!(line["extra"], json!({"spaces": words(text) as u64, "found": found, "reversed": reversed}), "{line}");
    }
    let shown = place.run(&["rollouts", "run", "--full"]);
    assert!(shown.stdout.contains("spaces: ") && shown.stdout.contains("reversed: "), "{}", shown.stdout);
    place.write("wrong.py", "def wrong(completions, log_extra):\n    log_extra('a', [1])\n    return [1.0] * len(completions)\n");
    let refused = place.run(&[&small()[..], &["--plugin", "wrong.py", "--output-dir", "none"]].concat());
    assert!(refused.stderr.contains("log_extra('a', ...) got 1 values for") && refused.code == Some(2), "{}", refused.stderr);
}

#[test]
fn a_run_that_goes_on_elsewhere_or_with_more_functions_keeps_its_script() {
    let place = TestFolder::new();
    place.write("words.py", WORDS);
    let sizes = ["--max-steps", "2", "--max-completion-length", "12", "--logging-steps", "1", "--output-dir", "run"];
    place.run(&[&small()[..], &["--plugin", "words.py", "--save-steps", "2"], &sizes].concat()).succeeded();
    // Another file of that name, where the run goes on, is not the run's.
    fs::create_dir(place.path("other")).unwrap();
    place.write("other/words.py", "def words(completions):\n    return [999.0] * len(completions)\n");
    let (run, binary) = (place.path("run").display().to_string(), rlhost_tests::binary());
    let mut command = std::process::Command::new(binary);
    command
        .current_dir(place.path("other"))
        .args(["resume", &run, "--max-steps", "3"])
        .env("RLHOST_STATE_DIR", place.path(".state"));
    assert!(command.output().unwrap().status.success());
    assert!(place.figure("run", "rewards/words/mean").iter().all(|mean| *mean <= 0.0));
    // A second function is refused by name, and the checkpoint's script goes on.
    place.write("words.py", format!("{WORDS}\ndef more(completions):\n    return [1.0] * len(completions)\n"));
    let resumed = place.run(&["resume", "run", "--max-steps", "4"]);
    resumed.succeeded();
    assert!(resumed.stderr.contains("2 functions that could be a reward: words, more"), "{}", resumed.stderr);
    place.write("row.py", "def row(completion, trainer_state):\n    return 1.0\n");
    let checked = place.run(&["plugin", "check", "row.py"]);
    assert!(checked.stdout.contains("trainer_state, which is given to functions of a whole batch"), "{}", checked.stdout);
    for (given, needle) in [
        ("words", "did you mean words.py?"),
        ("words:words", "did you mean words.py:words?"),
        ("words.py:a,b", "after words.py may come one function"),
        ("words.py:words,weight=x", "the weight \"x\" is no number"),
        ("words.py:words,on_error=previous", "on_error is --set plugin.words.on_error=previous"),
    ] {
        let refused = place.run(&[&small()[..], &["--plugin", given, "--output-dir", "none"]].concat());
        assert!(refused.code == Some(2) && refused.stderr.contains(needle), "{given}: {}", refused.stderr);
    }
    let built = place.run(&["plugin", "build", "words.py"]);
    assert!(built.code == Some(2) && built.stderr.contains("2 functions"), "{}", built.stderr);
}

#[test]
fn a_hostile_script_costs_rows_and_not_the_run() {
    let place = TestFolder::new();
    let misdeeds = [
        ("loop", "while True: pass", "call_timeout_s"),
        ("memory", "x = [0]\n    while True: x = x + x", "memory"),
        ("recursion", "f = lambda n: f(n + 1)\n    f(0)", "recursion"),
        ("exit", "import sys; sys.exit(3)", "SystemExit"),
        ("process", "import os; os.system('true'); os.fork()", "os."),
        ("file", "open('/etc/passwd').read()", "passwd"),
        ("socket", "import socket; socket.create_connection(('127.0.0.1', 80))", "socket"),
    ];
    for (name, misdeed, needle) in misdeeds {
        // From the second step on, since a run does not begin with a script that fails its trial.
        let text = format!(
            "def bad(completions, trainer_state, **columns):\n    if not trainer_state.global_step or not any(c[:1] < '@' for c in completions):\n        \
                 return [1.0] * len(completions)\n    {misdeed}\n    return [2.0] * len(completions)\n"
        );
        place.write("bad.py", text);
        let run = format!("run-{name}");
        // Only the loop is meant to meet the limit of time, which is that of a wall clock.
        let time = format!("plugin.bad.limits.call_timeout_s={}", if name == "loop" { 1 } else { 60 });
        let limits = ["--set", &time, "--set", "plugin.bad.limits.memory_mb=128"];
        let rest =
            ["--plugin", "bad.py", "--set", "plugin.bad.on_error=unscorable", "--max-steps", "2", "--log-completions", "all"];
        let sizes = ["--max-completion-length", "12", "--per-device-train-batch-size", "8", "--output-dir", &run];
        let outcome = place.run(&[&small()[..], &limits, &rest, &sizes].concat());
        outcome.succeeded();
        assert!(outcome.stderr.contains(needle), "{name}: {}", outcome.stderr);
        let mut lost = 0;
        for line in place.lines(&format!("{run}/completions.jsonl")) {
            let text = line["completion"].as_str().unwrap();
            let fails = line["step"] != 0 && text.chars().next().is_none_or(|c| c < '@');
            lost += usize::from(fails);
            let score = &line["rewards"]["bad"];
            // Rows after those that take all of the call's time have none left.
            let out_of_time = name == "loop" && line["step"] != 0 && score.is_null();
            assert!(out_of_time || *score == if fails { Value::Null } else { json!(1.0) }, "{name}: {line}");
        }
        assert!(lost > 0, "{name}: no row was to fail");
    }
    // What a script does to the built-in functions in one batch is undone before the next.
    place.write(
        "patch.py",
        "import builtins\ndef patch(completions, **columns):\n    n = len(completions)\n    builtins.len = lambda x: 99\n    \
             builtins.zip = None\n    return [float(n)] * n\n",
    );
    let rest = ["--plugin", "patch.py", "--max-steps", "3", "--logging-steps", "1", "--output-dir", "patched"];
    place.run(&[&small()[..], &rest, &["--max-completion-length", "12"]].concat()).succeeded();
    let means = place.figure("patched", "rewards/patch/mean");
    assert!(means.iter().all(|mean| *mean == means[0] && *mean < 99.0), "{means:?}");
}

#[test]
fn a_script_becomes_a_component_that_scores_the_same() {
    let place = TestFolder::new();
    place.write("words.py", WORDS);
    place.run(&["plugin", "build", "words.py", "--output", "built.wasm"]).succeeded();
    let settings = ["--set", "plugin.words.config.target=3", "--set", "plugin.built.config.target=3"];
    let rest = ["--max-steps", "2", "--max-completion-length", "24", "--log-completions", "all", "--output-dir", "run"];
    place.run(&[&small()[..], &["--plugin", "words.py", "--plugin", "built.wasm"], &settings, &rest].concat()).succeeded();
    let all = scored(&place, "run");
    assert!(all.iter().all(|(text, rewards)| {
        rewards["words"] == rewards["built"] && rewards["words"].as_f64() == Some(-(words(text) - 3.0).abs())
    }));
    for language in ["python", "javascript", "typescript"] {
        place.run(&["plugin", "new", &format!("my-{language}"), "--lang", language]).succeeded();
        let (folder, extension) = (
            format!("my-{language}"),
            ["py", "js", "ts"][["python", "javascript", "typescript"].iter().position(|l| *l == language).unwrap()],
        );
        place.run(&["plugin", "check", &format!("{folder}/my_{language}.{extension}")]).succeeded();
    }
}

/// Rows for tools and for pairs.
fn fixture(name: &str) -> String {
    format!("{}/fixtures/scripts/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_script_estimates_advantages_over_the_loss_of_a_built_in_algorithm() {
    let place = TestFolder::new();
    // RLOO's advantages, which leave its loss as it is.
    place.write(
        "mine.py",
        "def advantages(rewards, groups, base: str = 'rloo'):\n    found = [0.0] * len(rewards)\n    for group in groups:\n        \
             total = sum(rewards[i] for i in group)\n        for i in group:\n            \
             found[i] = rewards[i] - (total - rewards[i]) / (len(group) - 1)\n    return found\n",
    );
    let rest = ["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "24", "--logging-steps", "1", "--beta", "0"];
    let train = |run: &str, algorithm: &str, steps: &str| {
        let run = [
            "--algorithm",
            algorithm,
            "--output-dir",
            run,
            "--max-steps",
            steps,
            "--save-steps",
            "2",
            "--log-completions",
            "all",
        ];
        place.run(&[&small()[..], &rest, &run].concat())
    };
    train("mine", "mine.py", "4").succeeded();
    train("theirs", "rloo", "4").succeeded();
    for name in ["reward", "loss", "grad_norm"] {
        for (mine, theirs) in place.figure("mine", name).iter().zip(place.figure("theirs", name)) {
            assert!((mine - theirs).abs() <= 1e-4 * theirs.abs().max(1.0), "{name}: {mine} and {theirs}");
        }
    }
    place.assert_resumes("mine", 2, 4, "model.safetensors");
    // The base keeps a state, and its settings are the run's.
    place.write("centered.py", fs::read_to_string(fixture("baseline.py")).unwrap());
    train("centered", "centered.py", "4").succeeded();
    place.assert_resumes("centered", 2, 4, "model.safetensors");
    for (set, needle) in [
        ("loss.base=dpo", "its base can't be dpo"),
        ("loss.base=none", "it must be a built-in algorithm"),
        ("loss.epsilom=1", "epsilom"),
    ] {
        let run = ["--algorithm", "centered.py", "--set", set, "--output-dir", "refused", "--max-steps", "1"];
        let refused = place.run(&[&small()[..], &rest[..6], &run].concat());
        assert!(refused.code == Some(2) && refused.stderr.contains(needle), "{set}: {}", refused.stderr);
    }
}

#[test]
fn a_script_has_the_loss_and_trains_as_the_built_in_one() {
    let place = TestFolder::with_answers();
    let figures = |run: &str, names: &[&str]| -> Vec<Vec<f64>> { names.iter().map(|name| place.figure(run, name)).collect() };
    let near = |mine: Vec<Vec<f64>>, theirs: Vec<Vec<f64>>, what: &str| {
        for (mine, theirs) in mine.iter().flatten().zip(theirs.iter().flatten()) {
            assert!((mine - theirs).abs() <= 2e-4 * theirs.abs().max(1.0), "{what}: {mine} and {theirs}");
        }
    };
    let pairs =
        ["--model", tiny(), "--dataset", "pairs.jsonl", "--max-steps", "3", "--logging-steps", "1", "--learning-rate", "1e-3"];
    let dpo = |run: &str, algorithm: &str| {
        place.run(&[&["--algorithm", algorithm, "--output-dir", run][..], &pairs].concat()).succeeded();
    };
    dpo("mine", &fixture("preferred.py"));
    dpo("theirs", "dpo");
    near(figures("mine", &["loss", "grad_norm"]), figures("theirs", &["loss", "grad_norm"]), "dpo");
    let grpo = |run: &str, algorithm: &str, more: &[&str]| {
        let rest =
            ["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "24", "--logging-steps", "1", "--max-steps", "3"];
        let loss = ["--num-iterations", "2", "--set", "loss.beta=0.04", "--learning-rate", "1e-3", "--algorithm", algorithm];
        place.run(&[&small()[..], &rest, &loss, &["--output-dir", run], more].concat()).succeeded();
    };
    grpo("own", &fixture("clipped.py"), &[]);
    grpo("grpo", "grpo", &[]);
    near(figures("own", &["loss", "grad_norm"]), figures("grpo", &["loss", "grad_norm"]), "grpo");
    // Its rewards are reported as those of a built-in algorithm are.
    let reward =
        |run: &str| ["reward", "reward_std"].map(|name| place.lines(&format!("{run}/metrics.jsonl"))[0][name].as_f64().unwrap());
    near(vec![reward("own").to_vec()], vec![reward("grpo").to_vec()], "rewards");
}

#[test]
fn a_class_is_an_environment_and_functions_are_tools() {
    let place = TestFolder::new();
    let row = |i: usize| format!("{}\n", json!({"prompt": format!("buy {i}"), "wanted": ["apple", "bread"]}));
    place.write("rows.jsonl", (0..8).map(row).collect::<String>());
    let template = "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}{% for m in messages %}{{ m.role }}: \
                    {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    place.write("template.jinja", template);
    place.run(&["plugin", "check", &format!("{}:Shop", fixture("shop.py")), "--dataset", "rows.jsonl"]).succeeded();
    place.run(&["plugin", "check", &fixture("calculator.py")]).succeeded();
    for (run, environment) in [("shop", format!("{}:Shop", fixture("shop.py"))), ("tools", fixture("calculator.py"))] {
        let rest = ["--dataset", "rows.jsonl", "--chat-template-path", "template.jinja", "--max-steps", "2", "--max-turns", "2"];
        let sizes = ["--max-completion-length", "16", "--max-episode-tokens", "96", "--logging-steps", "1", "--output-dir", run];
        let mut more = vec!["--model", tiny(), "--environment", &environment];
        if run == "tools" {
            more.extend(["--plugin", "tldr_length_reward.wasm"]);
        }
        place.run(&[&more[..], &rest, &sizes].concat()).succeeded();
        assert_eq!(place.steps(run), 2);
    }
}
