//! The built-in plugins compute bit-identical results to their builds for contract versions 0.1 and 0.2.

use super::super::algorithm::{AlgorithmPlugin, Batch, Column, Scale, ScoredGeneration, TurnSpan, Unit, WeightedReward};
use super::super::{Metric, PluginEngine, PluginSource, columns};
use crate::config::PluginLimits;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Returns an algorithm's archived build for an old version, and its current one.
fn both(name: &str, settings: &Value) -> [AlgorithmPlugin; 2] {
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/contract").join(name).with_extension("wasm");
    [old.display().to_string(), format!("{name}.wasm")].map(|file| {
        let settings: Map<String, Value> = serde_json::from_value(settings.clone()).unwrap();
        let source = PluginSource::open(&file).unwrap();
        AlgorithmPlugin::load(&PluginEngine::new().unwrap(), &source, &settings, &PluginLimits::default(), 0).unwrap()
    })
}

/// Returns pseudorandom numbers.
fn noise(count: usize, kind: u64, middle: f32, width: f32) -> Vec<f32> {
    let mut state = kind.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| middle + width * next()).collect()
}

/// Returns three groups of two sequences, with all columns.
fn batch(seed: u64, masked: bool) -> Batch {
    let tokens = vec![0, 7, 12, 13, 22, 28, 31];
    let mask = (0..31).map(|i| u8::from(!masked || i % 5 != 3)).collect();
    let mut batch = Batch {
        step: 3,
        seed: 0,
        groups: vec![0, 2, 4, 6],
        tokens,
        prompt_tokens: vec![0, 4, 4, 9],
        turns: Vec::new(),
        mask,
        columns: Vec::new(),
        scale: Scale { items: 9, tokens: 57, prompt_tokens: 21, max_completion_length: 12 },
    };
    let logp = noise(31, seed, -1.5, 1.2);
    let moved =
        |kind: u64, by: f32| -> Vec<f32> { logp.iter().zip(noise(31, seed + kind, 0.0, by)).map(|(l, n)| l + n).collect() };
    let of_tokens = [
        (columns::OLD_LOGP, moved(1, 0.5)),
        (columns::REF_LOGP, moved(2, 0.7)),
        (columns::SAMPLING_LOGP, moved(3, 0.3)),
        (columns::ENTROPY, noise(31, seed + 4, 1.0, 0.9)),
        (columns::MEAN_LOGITS, noise(31, seed + 5, 0.0, 3.0)),
        (columns::LOG_SUM_SQUARES, moved(6, 0.4)),
        (columns::VALUE, noise(31, seed + 7, 0.0, 1.0)),
        (columns::OLD_VALUE, noise(31, seed + 8, 0.0, 1.0)),
        (columns::ADVANTAGE, noise(31, seed + 9, 0.0, 1.5)),
        (columns::RETURN, noise(31, seed + 10, 0.0, 1.5)),
        (columns::LOGP, logp.clone()),
    ];
    batch.columns = of_tokens.into_iter().map(|(name, values)| Column::new(name, Unit::Token, values)).collect();
    let label = vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
    batch.columns.extend([
        Column::new(columns::PROMPT_LOGP, Unit::PromptToken, noise(9, seed + 11, -1.0, 0.9)),
        Column::new(columns::SEQUENCE_VALUE, Unit::Sequence, noise(6, seed + 12, 0.0, 2.0)),
        Column::new(columns::LABEL, Unit::Sequence, label.clone()),
        Column::new(columns::FINISHED, Unit::Sequence, vec![1.0, 0.0, 1.0, 1.0, 1.0, 0.0]),
        Column::new(columns::MARGIN, Unit::Group, vec![0.5, 0.0, 1.25]),
        Column::new(columns::MICRO_BATCH_LABEL, Unit::MicroBatch, [label, vec![0.0, 1.0]].concat()),
        Column::new(columns::MISMATCHED_LOGP, Unit::MicroBatch, noise(8, seed + 13, -12.0, 3.0)),
        Column::new(columns::MISMATCHED_REF_LOGP, Unit::MicroBatch, noise(8, seed + 14, -14.0, 3.0)),
    ]);
    batch
}

/// Returns a batch with rewards and with an environment's turns.
fn generation(seed: u64) -> ScoredGeneration {
    let mut batch = batch(seed, true);
    let turn = |(sequence, start, end): (u32, u32, u32)| TurnSpan { sequence, start, end };
    batch.turns =
        [(0, 0, 3), (0, 3, 7), (1, 7, 12), (2, 12, 13), (3, 13, 16), (3, 16, 22), (4, 22, 28), (5, 28, 31)].map(turn).to_vec();
    let of_turns = [Some(0.5), None, Some(-1.5), Some(0.25), Some(1.0), Some(0.75), None, Some(2.0)];
    batch.columns.extend([
        Column::sparse(columns::reward("judge"), Unit::Sequence, [Some(0.3), None, Some(-1.0), Some(0.7), None, Some(0.1)]),
        Column::sparse(columns::reward("game"), Unit::Sequence, [Some(0.5), Some(-1.5), Some(0.25), Some(1.75), None, Some(2.0)]),
        Column::sparse(columns::turn_reward("game"), Unit::Turn, of_turns),
    ]);
    let reward = |name: &str, weight| WeightedReward { name: name.into(), weight };
    ScoredGeneration { batch, rewards: vec![reward("judge", 0.5), reward("game", 2.0)] }
}

/// Returns the bits of columns, by name, and metrics.
fn bits(columns: &[Column], metrics: &[Metric]) -> (Vec<(String, Vec<u32>)>, String) {
    let mut all: Vec<(String, Vec<u32>)> =
        columns.iter().map(|column| (column.name.clone(), column.values.iter().map(|value| value.to_bits()).collect())).collect();
    all.sort();
    (all, format!("{metrics:?}"))
}

/// Metric that grpo reports since the kept version.
const ADDED: &str = "sampling/importance_sampling_ratio/clipped";

#[test]
fn losses_are_the_same_to_the_bit() {
    for (name, settings, masked) in [
        ("grpo", json!({}), true),
        ("grpo", json!({"beta": 0.1, "loss_type": "grpo", "importance_sampling_level": "sequence", "delta": 1.5}), true),
        ("grpo", json!({"vllm_importance_sampling_correction": true, "off_policy_mask_threshold": 0.2}), true),
        ("grpo", json!({"loss_type": "vespo", "entropy_coef": 0.01, "top_entropy_quantile": 0.5}), true),
        ("grpo", json!({"loss_type": "sapo"}), true),
        ("ppo", json!({"entropy_coef": 0.02, "clip_ratio_c": 1.5}), true),
        ("rloo", json!({}), true),
        ("dpo", json!({}), false),
        ("dpo", json!({"use_weighting": true, "loss_type": ["sigmoid", "ipo"], "ld_alpha": 0.5}), false),
        ("dpo", json!({"loss_type": ["aot", "sft"], "loss_weights": [1.0, 0.3]}), false),
        ("orpo", json!({}), false),
        ("orpo", json!({"prompt_likelihood": false}), false),
        ("online_dpo", json!({"loss_type": "ipo"}), false),
        ("kto", json!({}), false),
        ("kto", json!({"loss_type": "apo_zero_unpaired"}), false),
        ("reward_model", json!({"center_rewards_coefficient": 0.01}), false),
        ("sft", json!({}), true),
        ("sft", json!({"loss_type": "dft"}), true),
    ] {
        for seed in [1, 100] {
            let mut batch = batch(seed, masked);
            if name == "sft" {
                batch.columns.retain(|column| column.name != columns::ADVANTAGE);
            }
            let [old, mut new] = both(name, &settings).map(|mut algorithm| algorithm.loss(&batch).unwrap());
            new.metrics.retain(|metric| metric.name != ADDED);
            assert_eq!(old.loss.to_bits(), new.loss.to_bits(), "{name} {settings}");
            assert_eq!(bits(&old.derivatives, &old.metrics), bits(&new.derivatives, &new.metrics), "{name} {settings}");
            assert!(old.derivatives[0].values.iter().any(|d| *d != 0.0), "{name} {settings}");
        }
    }
}

#[test]
fn estimates_are_the_same_to_the_bit() {
    for (name, settings) in [
        ("grpo", json!({})),
        ("grpo", json!({"mask_truncated_completions": true, "multi_objective_aggregation": "normalize_then_sum"})),
        ("grpo", json!({"turn_advantages": "turn", "turn_discount": 0.9, "scale_rewards": "batch"})),
        ("grpo", json!({"turn_advantages": "group"})),
        ("ppo", json!({"missing_eos_penalty": 1.0, "whiten_rewards": true})),
        ("ppo", json!({"turn_rewards": true})),
        ("ppo", json!({"normalize_reward": true})),
        ("rloo", json!({"normalize_advantages": true, "mask_truncated_completions": true})),
    ] {
        for seed in [1, 100] {
            let [old, new] = both(name, &settings).map(|mut algorithm| algorithm.estimate(&generation(seed)).unwrap());
            assert_eq!(old.mask, new.mask, "{name} {settings}");
            assert_eq!(bits(&old.columns, &old.metrics), bits(&new.columns, &new.metrics), "{name} {settings}");
        }
    }
    let [old, new] =
        both("online_dpo", &json!({"missing_eos_penalty": 0.5})).map(|mut algorithm| algorithm.choose(&generation(7)).unwrap());
    assert!(!old.pairs.is_empty());
    assert_eq!(old.pairs, new.pairs);
    assert_eq!(format!("{:?}", old.metrics), format!("{:?}", new.metrics));
}
