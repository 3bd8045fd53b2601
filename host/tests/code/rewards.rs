//! Rewards that run code, `plugins/javascript_reward/` and `examples/code-rewards/python/`: they judge problems with known right and wrong
//! answers correctly, and code that tries to pass without solving the problem fails.
//!
//! `make_problems.py` writes the problems. `forgeries/` has one attempt per file at the function `square`, and `answers/` has right answers in
//! common styles of programs. `tricks.jsonl` has attempts that target particular tests, each with a right answer.

use rlhost::config::{PluginLimits, RewardErrorAction};
use rlhost::plugin::{PluginEngine, PluginSource, RewardBatch, RewardPlugin, TextColumn};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::time::Instant;

const LANGUAGES: [&str; 2] = ["python", "javascript"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the path of the language's reward, if it is built.
fn location(language: &str) -> Option<String> {
    if language == "javascript" {
        return Some("javascript_reward.wasm".to_owned());
    }
    let file = root().join("target/code-rewards/python_reward.wasm");
    if file.exists() {
        return Some(file.display().to_string());
    }
    println!("skipped {language}: {} is not there; run examples/code-rewards/build.sh", file.display());
    None
}

fn load(engine: &PluginEngine, language: &str, settings: &Value) -> Option<RewardPlugin> {
    let source = PluginSource::open(&location(language)?).unwrap();
    let settings: Map<String, Value> = settings.as_object().unwrap().clone();
    Some(RewardPlugin::load(engine, &source, &settings, &PluginLimits::default(), 7).unwrap())
}

/// Returns a batch of one prompt per completion.
fn batch(rows: &[(&Value, String)]) -> RewardBatch {
    let n = rows.len();
    RewardBatch {
        step: 1,
        seed: 0,
        prompts: vec![String::new(); n],
        columns: vec![TextColumn { name: "tests".to_owned(), values: rows.iter().map(|(tests, _)| tests.to_string()).collect() }],
        prompt_of: (0..n as u32).collect(),
        completions: rows.iter().map(|(_, text)| text.clone()).collect(),
        finished: vec![true; n],
        offsets: vec![0; n + 1],
        token_ids: Vec::new(),
    }
}

fn scores(plugin: &mut RewardPlugin, rows: &[(&Value, String)]) -> Vec<Option<f32>> {
    plugin.score(&batch(rows)).unwrap().rewards
}

fn fenced(language: &str, code: &str) -> String {
    format!("Here is `it`:\n\n```{language}\n{code}\n```\n\nIt works.")
}

#[test]
fn problems_are_judged_rightly() {
    let text = std::fs::read_to_string(root().join("host/tests/code/problems.jsonl")).unwrap();
    let problems: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(problems.len(), 200);
    let engine = PluginEngine::new().unwrap();
    for language in LANGUAGES {
        let Some(mut plugin) = load(&engine, language, &json!({"scoring": "all"})) else { continue };
        let mut rows = Vec::new();
        for problem in &problems {
            for answer in ["right", "wrong"] {
                let code = problem[language][answer].as_str().unwrap();
                rows.push((&problem[language]["tests"], fenced(language, code)));
            }
        }
        let started = Instant::now();
        let given = scores(&mut plugin, &rows);
        let each = started.elapsed().as_secs_f64() * 1e3 / rows.len() as f64;
        for (i, pair) in given.chunks(2).enumerate() {
            assert_eq!(pair, [Some(1.0), Some(0.0)], "{language}: {}", problems[i]);
        }
        let judge = plugin.memory_used() >> 20;
        println!("{language}: {} answers, {each:.2} ms each; {judge} MiB for the judge", given.len());
    }
}

/// Returns tests of `square` in every form, for a language.
fn forms(language: &str) -> Vec<Value> {
    let (assertions, whole) = if language == "python" {
        (json!(["assert square(3) == 9", "assert square(-4) == 16"]), json!("import math\nassert math.isclose(square(5), 25)"))
    } else {
        (json!(["square(3) === 9", "assert.strictEqual(square(-4), 16)"]), json!("assert.deepStrictEqual([square(5)], [25]);"))
    };
    vec![
        assertions,
        whole,
        json!([{"function": "square", "args": [3], "expected": 9}, {"function": "square", "args": [-4], "expected": 16}]),
        json!([{"input": "3\n", "output": "9\n"}]),
        json!({"inputs": [[6]], "outputs": [36], "fn_name": "square"}),
    ]
}

#[test]
fn tests_hold_against_code_that_knows_how_they_are_read() {
    let text = std::fs::read_to_string(root().join("host/tests/code/tricks.jsonl")).unwrap();
    let tricks: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let engine = PluginEngine::new().unwrap();
    for language in LANGUAGES {
        let settings = json!({"extract": "whole", "row_timeout_ms": 3000});
        let Some(mut plugin) = load(&engine, language, &settings) else { continue };
        for trick in tricks.iter().filter(|trick| trick["language"] == language) {
            let code = |which: &str| trick[which].as_str().unwrap().to_owned();
            let mut given = batch(&[(&trick["tests"], code("wrong")), (&trick["tests"], code("right"))]);
            let setup = TextColumn { name: "test_setup_code".to_owned(), values: vec![trick["setup"].to_string(); 2] };
            given.columns.push(setup);
            let rewards = plugin.score(&given).map(|scores| scores.rewards);
            assert_eq!(rewards.unwrap(), [Some(0.0), Some(1.0)], "{trick}");
        }
    }
}

#[test]
fn a_row_has_a_time_limit_for_all_its_tests() {
    let engine = PluginEngine::new().unwrap();
    for language in LANGUAGES {
        let settings = json!({"extract": "whole", "timeout_ms": 60000, "row_timeout_ms": 1000});
        let Some(mut plugin) = load(&engine, language, &settings) else { continue };
        let (slow, right) = match language {
            "python" => ("def f(x):\n    while x: pass\n    return x", "def f(x): return x"),
            _ => ("function f(x) { while (x); return x }", "function f(x) { return x }"),
        };
        let tests = json!([{"function": "f", "args": [0], "expected": 0}, {"function": "f", "args": [1], "expected": 1}]);
        let given = plugin.score(&batch(&[(&tests, slow.to_owned()), (&tests, right.to_owned())])).unwrap();
        assert_eq!(given.rewards, [Some(0.5), Some(1.0)], "{language}");
        let name = format!("{language}_reward/out_of_time");
        assert_eq!(given.metrics.iter().filter(|m| m.name == name).map(|m| m.value).collect::<Vec<_>>(), [1.0, 0.0]);
    }
}

/// Returns names and code of the files in a language in a folder beside this file.
fn codes(folder: &str, language: &str) -> Vec<(String, String)> {
    let folder = root().join("host/tests/code").join(folder).join(language);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn forgeries_are_refused_and_cost_no_other_row() {
    let engine = PluginEngine::new().unwrap();
    for language in LANGUAGES {
        let settings = json!({"timeout_ms": 500, "extract": "whole"});
        let Some(mut plugin) = load(&engine, language, &settings) else { continue };
        let (forgeries, answers) = (codes("forgeries", language), codes("answers", language));
        for tests in forms(language) {
            let mut rows = Vec::new();
            for (i, (_, forgery)) in forgeries.iter().enumerate() {
                rows.push((&tests, forgery.clone()));
                rows.push((&tests, answers[i % answers.len()].1.clone()));
            }
            let outcome = plugin.score_with_retries(&batch(&rows), 0..rows.len(), RewardErrorAction::Fail).unwrap();
            assert!(outcome.first_error.is_none(), "{:?}", outcome.first_error);
            for (i, pair) in outcome.scores.rewards.chunks(2).enumerate() {
                let (forgery, answer) = (&forgeries[i].0, &answers[i % answers.len()].0);
                assert_eq!(pair, [Some(0.0), Some(1.0)], "{forgery} and {answer} against {tests}");
            }
        }
        println!("{language}: {} forgeries, {} answers", forgeries.len(), answers.len());
    }
}

#[test]
fn what_the_code_ran_out_of_is_counted() {
    let engine = PluginEngine::new().unwrap();
    for language in LANGUAGES {
        let Some(mut plugin) = load(&engine, language, &json!({"timeout_ms": 1000, "extract": "whole"})) else { continue };
        let right = if language == "python" { "def f(x): return x" } else { "function f(x) { return x }" };
        let forgeries = codes("forgeries", language);
        let forgery = |name: &str| forgeries.iter().find(|(path, _)| path.contains(name)).unwrap().1.clone();
        let tests = json!([{"function": "f", "args": [1], "expected": 1}]);
        let texts = [forgery("endless_loop"), forgery("gigabytes"), right.to_owned(), "(".to_owned()];
        let given = plugin.score(&batch(&texts.map(|text| (&tests, text)))).unwrap();
        assert_eq!(given.rewards, [Some(0.0), Some(0.0), Some(1.0), Some(0.0)], "{language}");
        let counted = |name: &str| -> Vec<f64> {
            let name = format!("{language}_reward/{name}");
            given.metrics.iter().filter(|m| m.name == name).map(|m| m.value).collect()
        };
        assert_eq!(counted("all_passed"), [0.0, 0.0, 1.0, 0.0]);
        assert_eq!(counted("unparsed"), [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(counted("out_of_time")[0], 1.0);
    }
}

#[test]
fn the_javascript_reward_is_compiled_from_the_source_beside_it() {
    let folder = root().join("plugins/javascript_reward");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let scripts = ["values.js", "compare.js", "script.js", "cell.js", "remote.js", "judge.js", "javascript_reward.js"];
    let sources = [&scripts[..], &["package.json"]].concat().into_iter().flat_map(read).collect::<Vec<u8>>();
    let hash: String = Sha256::digest(&sources).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(String::from_utf8(read("source.sha256")).unwrap().trim(), hash, "run plugins/javascript_reward/build.sh");
}

#[test]
fn settings_change_what_is_scored() {
    let engine = PluginEngine::new().unwrap();
    for language in LANGUAGES {
        let (half, broken, tests) = if language == "python" {
            ("def square(x):\n    return 9", "def square(x:\n", json!(["assert square(3) == 9", "assert square(4) == 16"]))
        } else {
            ("function square(x) { return 9 }", "function square(x { ", json!(["square(3) === 9", "square(4) === 16"]))
        };
        let given = |settings: Value, text: String| {
            load(&engine, language, &settings).map(|mut plugin| scores(&mut plugin, &[(&tests, text)])[0])
        };
        if given(json!({}), String::new()).is_none() {
            continue;
        }
        let score = |settings: Value, text: &str| given(settings, text.to_owned()).unwrap();
        assert_eq!(score(json!({}), &fenced(language, half)), Some(0.5));
        assert_eq!(score(json!({"scoring": "all"}), &fenced(language, half)), Some(0.0));
        assert_eq!(score(json!({"unparsed_score": -0.5}), &fenced(language, broken)), Some(-0.5));
        assert_eq!(score(json!({"unparsed_score": -0.5}), half), Some(-0.5));
        assert_eq!(score(json!({"unparsed_score": -0.5, "extract": "whole"}), half), Some(0.5));
        let last = format!("{}\n{}", fenced(language, broken), fenced(language, half));
        assert_eq!(score(json!({}), &last), Some(0.5));
    }
}

#[test]
fn a_row_without_tests_has_no_score_and_wrong_tests_are_named() {
    let engine = PluginEngine::new().unwrap();
    for language in LANGUAGES {
        let Some(mut plugin) = load(&engine, language, &json!({})) else { continue };
        let text = fenced(language, "x = 1");
        for none in [json!(null), json!(""), json!([])] {
            assert_eq!(scores(&mut plugin, &[(&none, text.clone())]), [None], "{language}: {none}");
        }
        for wrong in [json!(7), json!([{"inputs": 1}]), json!(["assert ("])] {
            let error = plugin.score(&batch(&[(&wrong, text.clone())])).unwrap_err().to_string();
            assert!(error.contains("tests"), "{language}: {wrong}: {error}");
        }
        if language == "javascript" {
            // The code can't trigger the judge's own error with a value that it turned into a method.
            let turned = fenced(language, "class S { n() {} }\nfunction f(x) { return x }");
            assert_eq!(scores(&mut plugin, &[(&json!(["f(new S().n) === 1"]), turned)]), [Some(0.0)]);
        }
        let mut lacking = batch(&[(&json!(null), text.clone())]);
        lacking.columns.clear();
        assert!(plugin.score(&lacking).unwrap_err().to_string().contains("no column"));
    }
}
