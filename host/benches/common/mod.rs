//! The models that all benchmarks are of, with random weights, and a batch of GRPO's shape.

#![allow(dead_code, missing_docs)]

use candle_core::{Device, Tensor};
use criterion::Criterion;
use rlhost::model::{Architecture, Decoder, SelectedPredictions, Weights};
use rlhost::ops::Forest;
use std::time::Duration;

/// Name, and what config.json says: the model of `compare_trl.py`, and SmolLM2-135M's shape.
pub const MODELS: [(&str, &str); 2] = [
    (
        "3.4M",
        r#"{"model_type": "qwen2", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 688, "vocab_size": 2048, "max_position_embeddings": 2048,
            "tie_word_embeddings": true}"#,
    ),
    (
        "135M",
        r#"{"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
            "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "max_position_embeddings": 8192,
            "rope_theta": 100000.0, "tie_word_embeddings": true}"#,
    ),
];

/// Completions of each prompt, their tokens, and those of a prompt.
pub const GROUP: usize = 8;
pub const COMPLETION: usize = 64;
pub const PROMPT: usize = 580;

/// Benchmarks of a few hundred milliseconds each, since there are many and some are slow.
pub fn short() -> Criterion {
    rlhost::ops::keep_freed_memory();
    let quick = Criterion::default().sample_size(10).without_plots();
    quick.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_millis(1500))
}

pub fn architecture(config: &str) -> Architecture {
    Architecture::parse(config).unwrap()
}

/// Small values that no two places share.
pub fn values(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let data: Vec<f32> = (0..n).map(|i| ((i as f32) * 0.7311).sin() * 0.05).collect();
    Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
}

pub fn decoder(architecture: &Architecture) -> Decoder {
    let weights = Weights::build(architecture, |_, shape| Ok(values(shape)));
    Decoder::new(architecture.clone(), weights.unwrap())
}

pub fn tokens(count: usize, vocab: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729 + 13) % vocab) as u32).collect()
}

/// So many prompts with a group of completions each.
pub fn batch(prompts: usize, vocab: usize) -> (Forest, SelectedPredictions) {
    let (mut forest, mut selected) = (Forest::new(), SelectedPredictions::default());
    for p in 0..prompts {
        let prompt = forest.push(&tokens(PROMPT, vocab, p), None);
        for c in 0..GROUP {
            let completion = forest.push(&tokens(COMPLETION, vocab, 100 * p + c), Some(prompt));
            selected.push_segment(&forest, completion);
        }
    }
    (forest, selected)
}
