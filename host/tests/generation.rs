//! Generation is the same on any number of threads, whether these share products or sequences.

use candle_core::{Device, Tensor};
use rlhost::model::{Architecture, Decoder, Decoding, Frozen, Weights};
use rlhost::ops::sampler::Sampling;
use rlhost::rollout::{Generator, Request, Rollout};

/// A model whose products are large enough to be shared, with heads of which there is no even number.
fn model() -> Decoding {
    let config = r#"{"model_type": "qwen2", "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 3, "intermediate_size": 500, "vocab_size": 1111, "max_position_embeddings": 256}"#;
    let architecture = Architecture::parse(config).unwrap();
    // The same at any time: a draw between two tokens would fall to another by rounding now and then.
    let scattered = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5;
    let scattered = |name: &str, shape: &[usize]| {
        let first = 1_000_003 * name.len() as u32;
        let values: Vec<f32> = (0..shape.iter().product::<usize>() as u32).map(|i| 0.28 * scattered(first + i)).collect();
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    };
    let weights = Weights::build(&architecture, scattered).unwrap();
    Frozen::new(Decoder::new(architecture, weights)).decoding().unwrap()
}

/// Three prompts' completions, so many of each, on so many threads.
fn generate(model: &Decoding, samples: usize, max_num_seqs: usize, threads: usize) -> Vec<Rollout> {
    let generator = Generator {
        model,
        sampling: Sampling { top_p: 0.9, ..Sampling::default() },
        logp_temperature: 1.0,
        max_new_tokens: 24,
        max_num_seqs,
        seed: 3,
        generation: 1,
        ends: &[7, 8, 9, 10],
        stops: &|tokens| tokens.len() > 5 && tokens[tokens.len() - 1] % 16 == 0,
    };
    let prompt = |i: usize| (0..20 + 31 * i).map(|t| (t * t * 7 + i) as u32 % 1111).collect();
    let requests: Vec<Request> = (0..3).map(|i| Request { tokens: prompt(i), row: i as u64, samples }).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| generator.run(&requests).unwrap())
}

#[test]
fn few_sequences_are_the_same_to_the_bit_on_any_number_of_threads() {
    let model = model();
    for (samples, max_num_seqs) in [(1, 8), (2, 8), (5, 4)] {
        let alone = generate(&model, samples, max_num_seqs, 1);
        assert!(alone.iter().any(|r| r.finished) || samples == 1, "some end early and leave their place to others");
        for threads in [2, 3, 7] {
            assert_eq!(generate(&model, samples, max_num_seqs, threads), alone, "{samples} samples on {threads} threads");
        }
    }
}

#[test]
fn many_sequences_are_the_same_but_for_rounding_and_to_the_bit_at_one_number_of_threads() {
    let model = model();
    let alone = generate(&model, 12, 64, 1);
    for threads in [2, 4] {
        let shared = generate(&model, 12, 64, threads);
        assert_eq!(generate(&model, 12, 64, threads), shared);
        for (a, b) in alone.iter().zip(&shared) {
            let apart = a.logp.iter().zip(&b.logp).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(a.tokens == b.tokens && apart < 1e-4, "prompt {}, sample {}: {apart}", a.prompt, a.sample);
        }
    }
}
