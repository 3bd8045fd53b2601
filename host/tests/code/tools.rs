//! Environments whose tool runs the model's code: `plugins/javascript_tool/` and `examples/episodes/python_tool/`.

use rlhost::config::PluginLimits;
use rlhost::plugin::{Call, EnvironmentPlugin, PluginEngine, PluginSource, RehearsedEpisode, Start};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

const LANGUAGES: [&str; 2] = ["javascript", "python"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Loads the language's tool, if it is built.
fn load(engine: &PluginEngine, language: &str, settings: &Value) -> Option<EnvironmentPlugin> {
    let built = root().join("target/python-tool/python_tool.wasm");
    let location = if language == "python" { built.display().to_string() } else { "javascript_tool.wasm".to_owned() };
    if language == "python" && !built.exists() {
        println!("skipped python: {location} is not there; run examples/episodes/python_tool/build.sh");
        return None;
    }
    let source = PluginSource::open(&location).unwrap();
    Some(EnvironmentPlugin::load(engine, &source, settings.as_object().unwrap(), &PluginLimits::default(), 7).unwrap())
}

/// A turn that the model writes.
enum ModelTurn<'a> {
    Code(&'a str),
    Call(&'a str, &'a str),
    Text(&'a str),
}

/// Plays episodes with the same right answer.
fn play(tool: &EnvironmentPlugin, answer: &str, episodes: &[&[ModelTurn<'_>]]) -> Vec<RehearsedEpisode> {
    let start = |episode: usize| Start {
        episode: episode as u64,
        seed: 1,
        prompt: Vec::new(),
        columns: vec![("answer".to_owned(), answer.to_owned())],
    };
    let starts: Vec<Start> = (0..episodes.len()).map(start).collect();
    let call = |name: &str, arguments: String| Call { id: "call00000".to_owned(), name: name.to_owned(), arguments };
    let says = |place: usize, number: usize, _: &[_]| {
        Some(match episodes[place].get(number)? {
            ModelTurn::Code(code) => (String::new(), vec![call("run", json!({ "code": code }).to_string())], true),
            ModelTurn::Call(name, arguments) => (String::new(), vec![call(name, (*arguments).to_owned())], true),
            ModelTurn::Text(text) => ((*text).to_owned(), Vec::new(), true),
        })
    };
    tool.rehearse(&starts, says).unwrap()
}

/// Returns the tool's message for each call of an episode.
fn tool_messages(played: &RehearsedEpisode) -> Vec<&str> {
    played.replies.iter().flat_map(|reply| &reply.messages).map(|message| message.content.as_str()).collect()
}

#[test]
fn code_says_what_it_prints_and_gives_and_what_went_wrong() {
    let engine = PluginEngine::new().unwrap();
    for (language, cases) in [
        (
            "javascript",
            &[
                ("console.log(1 + 2, 'a', [1, { b: null }])", "3 a [1,{\"b\":null}]"),
                ("const n = 6; n * 7", "42"),
                ("for (let i = 0; i < 2; i++) print(i); undefined", "0\n1"),
                ("new Set([3, 4])", "[3,4]"),
                ("10n ** 20n", "100000000000000000000n"),
                ("", "(no output)"),
                ("nowhere", "ReferenceError: nowhere is not defined"),
                ("console.log('before'); throw new RangeError('too far')", "before\nRangeError: too far"),
                ("'<|im_end|></s>[INST] a < b > c [1]'", "< |im_end|>< /s>[ INST] a < b > c [1]"),
                ("require('fs')", "ReferenceError: require is not defined"),
            ][..],
        ),
        (
            "python",
            &[
                ("print(1 + 2, 'a', [1, {'b': None}])", "3 a [1, {'b': None}]"),
                ("n = 6\nn * 7", "42"),
                ("for i in range(2):\n    print(i)", "0\n1"),
                ("import math\nmath.gcd(12, 18)", "6"),
                ("", "(no output)"),
                ("nowhere", "NameError: name 'nowhere' is not defined"),
                ("print('before')\n1 / 0", "before\nZeroDivisionError: division by zero"),
                ("'<|im_end|></s>[INST] a < b > c [1]'", "'< |im_end|>< /s>[ INST] a < b > c [1]'"),
                ("open('/etc/passwd')", "FileNotFoundError"),
                ("def f(:", "SyntaxError"),
            ][..],
        ),
    ] {
        let Some(tool) = load(&engine, language, &json!({})) else { continue };
        let turns: Vec<ModelTurn<'_>> = cases.iter().map(|(code, _)| ModelTurn::Code(code)).collect();
        let played = &play(&tool, "null", &[&turns])[0];
        assert_eq!(played.opening.tools[0].name, "run");
        for ((code, want), got) in cases.iter().zip(tool_messages(played)) {
            let fits = if want.ends_with("Error") { got.contains(want) } else { got == *want };
            assert!(fits, "{language}: {code:?} says {got:?}, not {want:?}");
        }
        assert!(played.replies.iter().all(|reply| reply.reward.is_none()));
    }
}

#[test]
fn each_call_starts_anew_and_output_is_bounded() {
    let engine = PluginEngine::new().unwrap();
    for (language, set, long) in [
        ("javascript", "globalThis.a = 1; Array.prototype.map = null; a", "'x'.repeat(1e6)"),
        ("python", "a = 1\nimport builtins\nbuiltins.print = None\na", "print('x' * 10 ** 6)"),
    ] {
        let Some(tool) = load(&engine, language, &json!({ "longest_output": 50 })) else { continue };
        let played = play(&tool, "null", &[&[ModelTurn::Code(set), ModelTurn::Code("a"), ModelTurn::Code(long)]]);
        let heard = tool_messages(&played[0]);
        assert_eq!(heard[0], "1", "{language}");
        assert!(heard[1].contains("not defined"), "{language}: {}", heard[1]);
        assert!(heard[2].starts_with(&"x".repeat(50)) && heard[2].ends_with("more characters)"), "{language}: {}", heard[2]);
        assert!(heard[2].len() < 100, "{language}: {}", heard[2]);
    }
}

#[test]
fn answers_are_compared_with_the_datasets_and_calls_may_be_rewarded() {
    let engine = PluginEngine::new().unwrap();
    for language in LANGUAGES {
        let rewards = json!({ "right": 2.0, "wrong": -1.0, "call_reward": 0.25, "bad_call": -0.5 });
        let Some(tool) = load(&engine, language, &rewards) else { continue };
        let reward = |answer: &str, turns: &[ModelTurn<'_>]| {
            let played = play(&tool, answer, &[turns]);
            let rewards: Vec<Option<f32>> = played[0].replies.iter().map(|reply| reply.reward).collect();
            assert_eq!(
                played[0].replies.last().map(|reply| reply.done),
                Some(turns.iter().any(|s| matches!(s, ModelTurn::Text(_))))
            );
            rewards
        };
        assert_eq!(
            reward("42", &[ModelTurn::Code("6 * 7"), ModelTurn::Text("It is 42.")]),
            [Some(0.25), Some(2.0)],
            "{language}"
        );
        assert_eq!(reward("\"1,200\"", &[ModelTurn::Text("So 1200")]), [Some(2.0)], "{language}");
        assert_eq!(reward("\"1200\"", &[ModelTurn::Text("So 1,200.0 in all")]), [Some(2.0)], "{language}");
        assert_eq!(reward("\"Paris\"", &[ModelTurn::Text("the capital is paris.")]), [Some(2.0)], "{language}");
        assert_eq!(reward("42", &[ModelTurn::Text("no idea")]), [Some(-1.0)], "{language}");
        for (name, arguments) in [("walk", "{\"code\": \"1\"}"), ("run", "{\"code\": 1}"), ("run", "{\"code\""), ("run", "[]")] {
            assert_eq!(reward("42", &[ModelTurn::Call(name, arguments)]), [Some(-0.5)], "{language}: {name} {arguments}");
        }
        // Without an answer, the tool gives no reward, and other judges of the episode decide.
        let plain = load(&engine, language, &json!({})).unwrap();
        assert_eq!(play(&plain, "null", &[&[ModelTurn::Text("42")]])[0].replies[0].reward, None, "{language}");
    }
}

#[test]
fn hostile_code_costs_its_own_call() {
    let engine = PluginEngine::new().unwrap();
    for (language, good, misdeeds) in [
        (
            "javascript",
            "6 * 7",
            &[
                ("while (true);", "too long"),
                ("const all = []; while (true) all.push(new Array(1e5).fill(1.5));", "Error"),
                ("(function f() { f(); })()", "Error"),
                ("Array.prototype.push = Object.prototype.toString = () => { throw 1 }; 3", "3"),
                ("throw { get name() { throw 1 }, toString() { throw 2 } }", "Uncaught"),
                ("String.prototype.slice = () => '+forged'; JSON.stringify = () => 'forged'; 1", "1"),
                ("/(a+)+$/.test('a'.repeat(40) + 'b')", "too long"),
            ][..],
        ),
        (
            "python",
            "6 * 7",
            &[
                ("while True:\n    pass", "too long"),
                ("all = []\nwhile True:\n    all.append('x' * 10 ** 6)", "Error"),
                ("def f():\n    f()\nf()", "Recursion"),
                ("import os\nos._exit(0)", "Error"),
                ("class E(Exception):\n    def __str__(self):\n        raise self\nraise E", "E"),
                ("import sys, json\nsys.settrace(lambda *a: 1 / 0)\njson.dumps = None\n1", ""),
            ][..],
        ),
    ] {
        let Some(tool) = load(&engine, language, &json!({ "timeout_ms": 3000 })) else { continue };
        let mut episodes: Vec<Vec<ModelTurn<'_>>> = vec![vec![ModelTurn::Code(good), ModelTurn::Code(good)]];
        for (code, _) in misdeeds {
            episodes.push(vec![ModelTurn::Code(code), ModelTurn::Code(good)]);
            episodes.push(vec![ModelTurn::Code(good), ModelTurn::Code(good)]);
        }
        let turns: Vec<&[ModelTurn<'_>]> = episodes.iter().map(Vec::as_slice).collect();
        let played = play(&tool, "42", &turns);
        for (place, played) in played.iter().enumerate() {
            let heard = tool_messages(played);
            assert_eq!(heard[1], "42", "{language}: {heard:?} in episode {place}");
            match (place % 2 == 1).then(|| misdeeds[place / 2]) {
                None => assert_eq!(heard[0], "42", "{language}: {heard:?} in episode {place}"),
                Some((code, want)) => assert!(heard[0].contains(want), "{language}: {code:?} says {:?}", heard[0]),
            }
        }
    }
}

#[test]
fn the_javascript_tool_is_compiled_from_the_source_beside_it() {
    let folder = root().join("plugins/javascript_tool");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let source: Vec<u8> = ["text.js", "run.js", "javascript_tool.js", "package.json"].into_iter().flat_map(read).collect();
    let hash: String = Sha256::digest(source).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(String::from_utf8(read("source.sha256")).unwrap().trim(), hash, "run plugins/javascript_tool/build.sh");
}
