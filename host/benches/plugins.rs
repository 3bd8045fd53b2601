//! What the WebAssembly boundary costs: calls of plugins beside the same code called natively, and
//! the same reward in every language that `examples/languages/build.sh` has built; and what running a model's code costs.
//!
//!     cargo bench --workspace --profile dev --bench plugins
//!
//! (the profile in which everything else is built and measured).

#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use grpo::{Grpo, GrpoSettings};
use rlhost::config::PluginLimits;
use rlhost::plugin::algorithm::{self, AlgorithmPlugin, Batch, Scale, Unit};
use rlhost::plugin::{PluginEngine, PluginSource, RewardBatch, RewardPlugin, TextColumn, columns};
use rlhost_plugin_sdk::policy::{self, Policy};
use rlhost_plugin_sdk::reward::testing::Case;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

const WORDS: &str =
    "a completion of some twenty words, as a small model writes them when it is asked for a short story about a cat";

fn batch(rows: usize) -> RewardBatch {
    let tokens = 24;
    RewardBatch {
        step: 0,
        seed: 0,
        prompts: vec!["Tell me a story.".to_owned(); rows.div_ceil(8)],
        columns: Vec::new(),
        prompt_of: (0..rows).map(|row| (row / 8) as u32).collect(),
        completions: vec![WORDS.to_owned(); rows],
        finished: vec![true; rows],
        offsets: (0..=rows).map(|row| (row * tokens) as u32).collect(),
        token_ids: vec![7; rows * tokens],
    }
}

/// Rewards: the embedded one, natively and as a plugin, and what is built of the other languages.
fn rewards(c: &mut Criterion) {
    let engine = PluginEngine::new().unwrap();
    let languages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/languages");
    let files = std::fs::read_dir(languages).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "wasm")).collect();
    files.retain(|path| !path.to_string_lossy().ends_with("-loss.wasm"));
    files.sort();
    let mut group = c.benchmark_group("reward");
    let case = Case { completion: WORDS.to_owned(), token_ids: vec![7; 24], finished: true, ..Case::default() };
    let settings = tldr_length_reward::LengthRewardSettings::default();
    group.bench_function("native tldr_length_reward, 64", |b| {
        b.iter(|| {
            (0..64).map(|_| case.run(|sample| tldr_length_reward::score(&settings, sample)).unwrap().unwrap()).sum::<f32>()
        });
    });
    let sources = std::iter::once("tldr_length_reward".to_owned()).chain(files.iter().map(|f| f.display().to_string()));
    for location in sources {
        let source = PluginSource::open(&location).unwrap();
        let mut plugin = RewardPlugin::load(&engine, &source, &Map::new(), &PluginLimits::default(), 0).unwrap();
        for rows in [8, 64, 512] {
            let batch = batch(rows);
            group.throughput(Throughput::Elements(rows as u64));
            group.bench_with_input(BenchmarkId::new(source.name(), rows), &batch, |b, batch| {
                b.iter(|| plugin.score(batch).unwrap());
            });
        }
    }
}

/// Names and texts of scripts: two rewards in each language, the length of a completion and two regular expressions.
const SCRIPTS: [(&str, &str); 4] = [
    ("length.py", "def length(completions):\n    return [-abs(len(c) - 120) for c in completions]\n"),
    (
        "regex.py",
        r#"import re
PATTERN = re.compile(r"^<think>.*?</think>\s*<answer>(.*?)</answer>$", re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
def regex(completions):
    return [(1.0 if PATTERN.match(c) else 0.0) + 0.1 * len(NUMBER.findall(c)) for c in completions]
"#,
    ),
    ("length.js", "export const length = ({ completions }) => completions.map((c) => -Math.abs(c.length - 120));\n"),
    (
        "regex.js",
        r"const PATTERN = /^<think>.*?<\/think>\s*<answer>(.*?)<\/answer>$/s;
const NUMBER = /-?\d[\d,]*(?:\.\d+)?/g;
export const regex = ({ completions }) => completions.map((c) => (PATTERN.test(c) ? 1 : 0) + 0.1 * (c.match(NUMBER) ?? []).length);
",
    ),
];

/// Rewards as scripts, for 64 completions of 200 tokens: words and numbers, in tags.
fn scripts(c: &mut Criterion) {
    let engine = PluginEngine::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let words = WORDS.split(' ').cycle().enumerate();
    let words = words.map(|(i, word)| if i % 7 == 0 { (i * 37 % 5000).to_string() } else { word.to_owned() });
    let body = words.take(160).collect::<Vec<_>>().join(" ");
    let rows = 64;
    let batch = RewardBatch {
        completions: (0..rows).map(|row| format!("<think>{body} {row}</think>\n<answer>so it is {row}</answer>")).collect(),
        offsets: (0..=rows).map(|row| (row * 200) as u32).collect(),
        token_ids: vec![7; rows * 200],
        ..batch(rows)
    };
    let mut group = c.benchmark_group("script");
    group.throughput(Throughput::Elements(rows as u64));
    for (name, text) in SCRIPTS {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        let source = PluginSource::open(&file.display().to_string()).unwrap();
        let mut plugin = RewardPlugin::load(&engine, &source, &Map::new(), &PluginLimits::default(), 0).unwrap();
        group.bench_function(name, |b| b.iter(|| plugin.score(&batch).unwrap()));
    }
}

/// Rewards that run code: 64 completions with three tests each, the answers of the tests' problems in turn.
fn code(c: &mut Criterion) {
    let engine = PluginEngine::new().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("host/tests/code/problems.jsonl")).unwrap();
    let problems: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).take(64).collect();
    let python = root.join("target/code-rewards/python_reward.wasm");
    let mut group = c.benchmark_group("code");
    group.sample_size(10);
    for (language, location) in [("javascript", "javascript_reward.wasm".into()), ("python", python.display().to_string())] {
        let Ok(source) = PluginSource::open(&location) else { continue };
        let mut plugin = RewardPlugin::load(&engine, &source, &Map::new(), &PluginLimits::default(), 0).unwrap();
        let values = problems.iter().map(|problem| problem[language]["tests"].to_string()).collect();
        let answers = problems.iter().map(|problem| format!("```\n{}\n```", problem[language]["right"].as_str().unwrap()));
        let batch = RewardBatch {
            prompts: vec![String::new(); 64],
            columns: vec![TextColumn { name: "tests".to_owned(), values }],
            prompt_of: (0..64).collect(),
            completions: answers.collect(),
            ..batch(64)
        };
        group.throughput(Throughput::Elements(64));
        group.bench_function(source.name(), |b| b.iter(|| plugin.score(&batch).unwrap()));
    }
}

/// GRPO's loss of 32,768 tokens, natively and as a plugin.
fn losses(c: &mut Criterion) {
    let n = 32_768;
    let wave = |f: f32, low: f32| (0..n).map(|i| (i as f32 * f).sin() * 0.3 + low).collect::<Vec<f32>>();
    let (logp, old_logp, entropy, advantages) = (wave(0.7, -2.0), wave(0.71, -2.0), wave(1.3, 1.0), wave(0.01, 0.1));
    let offsets: Vec<u32> = (0..=64).map(|row| row * 512).collect();
    let column = |name: &str, values: &Vec<f32>| algorithm::Column::new(name, Unit::Token, values.clone());
    let batch = Batch {
        step: 0,
        seed: 0,
        groups: (0..=64).collect(),
        tokens: offsets.clone(),
        prompt_tokens: Vec::new(),
        turns: Vec::new(),
        mask: vec![1; n],
        columns: vec![
            column(columns::LOGP, &logp),
            column(columns::OLD_LOGP, &old_logp),
            column(columns::ENTROPY, &entropy),
            column(columns::ADVANTAGE, &advantages),
        ],
        scale: Scale { items: 64, tokens: n as u64, prompt_tokens: 0, max_completion_length: 512 },
    };
    let native = policy::Tokens {
        step: 0,
        offsets,
        mask: vec![1; n],
        advantages,
        logp,
        old_logp,
        ref_logp: None,
        sampling_logp: None,
        entropy: Some(entropy),
        values: None,
        old_values: None,
        returns: None,
        scale: policy::Scale { items: 64, tokens: n as u64, max_completion_length: 512, ..policy::Scale::default() },
    };
    let engine = PluginEngine::new().unwrap();
    let source = PluginSource::open("grpo").unwrap();
    let mut plugin = AlgorithmPlugin::load(&engine, &source, &Map::new(), &PluginLimits::default(), 0).unwrap();
    let mut grpo = Grpo::new(GrpoSettings::default()).unwrap();
    let mut group = c.benchmark_group("grpo loss, 32768 tokens");
    group.throughput(Throughput::Elements(n as u64));
    group.bench_function("native", |b| b.iter(|| grpo.loss(&native).unwrap()));
    group.bench_function("plugin", |b| b.iter(|| plugin.loss(&batch).unwrap()));
}

criterion_group!(benches, rewards, scripts, code, losses);
criterion_main!(benches);
