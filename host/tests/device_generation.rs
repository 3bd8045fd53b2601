//! Generation on an NVIDIA device (a real one, or that of `tests/software-cuda`) compared with generation on the CPU.
#![cfg(feature = "cuda")]
#![allow(clippy::print_stdout)]

use candle_core::Tensor;
use replies::TestReplies;
use rlhost::model::{ComputeBackend, Decoder, FrozenModel, ModelFolder, SelectedPredictions, write_random};
use rlhost::ops::sampler::Sampler;
use rlhost::ops::support::Support;
use rlhost::ops::{Forest, device};
use rlhost::rollout::{Generator, PromptRequest, ReplyProvider, Rollout};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "shared/families.rs"]
mod families;
#[path = "shared/replies.rs"]
mod replies;

const MODELS: [&str; 6] = ["llama", "llama_biased", "mistral", "qwen2", "qwen3", "smollm3"];

/// Maximum length of a completion.
const MOST_NEW: usize = 20;

/// Returns prompts of unequal length, one of a single token, with unequal numbers of completions.
fn requests(vocabulary: u32, longest: u32) -> Vec<PromptRequest> {
    let tokens = |n: u32, seed: u32| (0..n.min(longest)).map(|i| (i * i * 7 + i * 3 + seed) % vocabulary).collect();
    [(1, 3), (45, 4), (9, 1), (30, 6), (12, 2)]
        .into_iter()
        .enumerate()
        .map(|(i, (n, samples))| PromptRequest { tokens: tokens(n, i as u32), row: i as u64, first: 0, samples })
        .collect()
}

/// Generates on a backend with the fixture of this name.
fn generate(name: &str, backend: &ComputeBackend, sampling: &Sampler, seqs: usize, ends: &[u32]) -> Vec<Rollout> {
    generate_from(decoder(name), backend, sampling, (seqs, ends), None)
}

fn decoder(name: &str) -> Decoder {
    let folder = ModelFolder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)).unwrap();
    folder.decoder().unwrap()
}

/// Generates on a backend, optionally with replies.
fn generate_from(
    decoder: Decoder,
    backend: &ComputeBackend,
    sampling: &Sampler,
    (seqs, ends): (usize, &[u32]),
    follow: Option<&dyn ReplyProvider>,
) -> Vec<Rollout> {
    let a = FrozenModel::new(decoder.clone()).architecture().clone();
    let requests = requests(a.vocab_size as u32, (a.max_positions - MOST_NEW) as u32);
    answer(decoder, backend, sampling, (seqs, ends, MOST_NEW), follow, &requests)
}

/// Generates up to `most_new` tokens for these requests on a backend.
fn answer(
    decoder: Decoder,
    backend: &ComputeBackend,
    sampling: &Sampler,
    (seqs, ends, most_new): (usize, &[u32], usize),
    follow: Option<&dyn ReplyProvider>,
    requests: &[PromptRequest],
) -> Vec<Rollout> {
    let model = FrozenModel::new(decoder.on_backend(backend).unwrap()).decoding().unwrap();
    let generator = Generator {
        model: &model,
        sampling: *sampling,
        logp_temperature: 0.7,
        keep_support: sampling.changes_support() && sampling.temperature > 0.0,
        max_new_tokens: most_new,
        max_num_seqs: seqs,
        seed: 5,
        generation: 2,
        end_tokens: ends,
        stops: &|tokens| tokens.ends_with(&[1, 2]),
        reply_provider: follow,
    };
    generator.run(requests).unwrap()
}

/// Serializes tests, because work that another thread submits to the stream while a step is recorded would be recorded too.
fn lock_device() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the device in f32; `None` without one, after printing that the test is skipped.
fn in_f32() -> Option<ComputeBackend> {
    match device::count() {
        Ok(n) if n > 0 => Some(ComputeBackend::cuda(0, false).unwrap()),
        found => {
            println!("skipped: no NVIDIA device ({found:?})");
            None
        }
    }
}

/// Returns the supported tokens of each position.
fn supported_tokens(support: &Support) -> Vec<&[u32]> {
    let begins = std::iter::once(0).chain(support.ends.iter().copied());
    begins.zip(&support.ends).map(|(begin, end)| &support.words[begin as usize..*end as usize]).collect()
}

#[track_caller]
fn assert_same(device: &[Rollout], cpu: &[Rollout], what: &str) {
    assert_eq!(device.len(), cpu.len(), "{what}");
    for (d, c) in device.iter().zip(cpu) {
        assert_eq!((d.prompt, d.sample, d.finished), (c.prompt, c.sample, c.finished), "{what}");
        assert_eq!(d.tokens, c.tokens, "{what}: prompt {}, sample {}", c.prompt, c.sample);
        assert_eq!(d.replies, c.replies, "{what}: prompt {}, sample {}", c.prompt, c.sample);
        let apart = d.logp.iter().zip(&c.logp).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(d.logp.len() == c.logp.len() && apart < 1e-4, "{what}: log-probabilities {apart} apart");
        let Some([d, c]) = d.support.as_ref().zip(c.support.as_ref()).map(|(d, c)| [d, c].map(supported_tokens)) else {
            assert_eq!(d.support, c.support, "{what}");
            continue;
        };
        // Rounding may include or exclude a token at the boundary.
        let others = d.iter().zip(&c).filter(|(d, c)| d != c).count();
        assert!(d.len() == c.len() && others * 50 <= c.len(), "{what}: {others} of {} supports differ", c.len());
    }
}

#[test]
fn the_likeliest_tokens_are_those_of_the_cpu() {
    let _alone = lock_device();
    let Some(backend) = in_f32() else { return };
    let greedy = Sampler { temperature: 0.0, ..Sampler::default() };
    for name in MODELS.into_iter().chain(families::of_devices()) {
        let of = |backend| generate(name, backend, &greedy, 64, &[3]);
        assert_same(&of(&backend), &of(&ComputeBackend::cpu()), name);
    }
}

#[test]
fn the_same_seed_draws_the_same_tokens_with_every_filter() {
    let _alone = lock_device();
    let Some(backend) = in_f32() else { return };
    let settings = [
        Sampler::default(),
        Sampler { temperature: 1.3, top_k: 7, ..Sampler::default() },
        Sampler { temperature: 0.8, top_p: 0.8, ..Sampler::default() },
        Sampler { min_p: 0.2, ..Sampler::default() },
        Sampler { repetition_penalty: 1.4, ..Sampler::default() },
        Sampler { temperature: 1.1, top_k: 20, top_p: 0.9, min_p: 0.05, repetition_penalty: 0.8 },
    ];
    for name in MODELS.into_iter().chain(families::of_devices()) {
        for sampling in &settings {
            let of = |backend| generate(name, backend, sampling, 64, &[]);
            assert_same(&of(&backend), &of(&ComputeBackend::cpu()), &format!("{name} with {sampling:?}"));
        }
    }
}

#[test]
fn a_place_that_comes_free_is_taken_by_the_next_sequence() {
    let _alone = lock_device();
    let Some(backend) = in_f32() else { return };
    let ends: Vec<u32> = (0..12).collect();
    let cpu = generate("qwen2", &ComputeBackend::cpu(), &Sampler::default(), 64, &ends);
    assert!(cpu.iter().any(|r| r.tokens.len() > 5) && cpu.iter().any(|r| r.tokens.len() < 5), "lengths vary");
    for seqs in [1, 3, 5, 64] {
        assert_same(&generate("qwen2", &backend, &Sampler::default(), seqs, &ends), &cpu, &format!("{seqs} side by side"));
    }
}

#[test]
fn episodes_have_the_turns_and_replies_of_the_cpu() {
    let _alone = lock_device();
    let Some(backend) = in_f32() else { return };
    let ends: Vec<u32> = (0..12).collect();
    for name in ["qwen2", "gemma3", "qwen3_moe"] {
        // Texts longer than the fixtures allow.
        let long = || {
            let decoder = decoder(name);
            let mut architecture = FrozenModel::new(decoder.clone()).architecture().clone();
            architecture.max_positions = 256;
            Decoder::new(architecture, decoder.weights().clone())
        };
        let vocabulary = FrozenModel::new(long()).architecture().vocab_size as u32;
        for sampling in [Sampler::default(), Sampler { top_k: 20, repetition_penalty: 1.4, ..Sampler::default() }] {
            let of = |backend: &ComputeBackend, seqs: usize, most: usize| {
                let replies = TestReplies::new(most, vocabulary);
                generate_from(long(), backend, &sampling, (seqs, &ends), Some(&replies))
            };
            let cpu = of(&ComputeBackend::cpu(), 64, usize::MAX);
            assert!(cpu.iter().any(|r| r.replies.len() > 2), "several turns");
            for seqs in [1, 3, 64] {
                assert_same(&of(&backend, seqs, usize::MAX), &cpu, &format!("{name}, {seqs} side by side"));
            }
            assert_same(&of(&backend, 64, 40), &of(&ComputeBackend::cpu(), 64, 40), &format!("{name}, of forty tokens"));
        }
    }
}

#[test]
fn in_bf16_log_probabilities_are_those_of_f32_to_its_precision() {
    let _alone = lock_device();
    if in_f32().is_none() {
        return;
    }
    for name in MODELS.into_iter().chain(families::of_devices()) {
        let rounded = generate(name, &ComputeBackend::cuda(0, true).unwrap(), &Sampler::default(), 64, &[]);
        let exact = generate(name, &ComputeBackend::cpu(), &Sampler::default(), 64, &[]);
        // Both have the same text until a draw selects another token.
        let (mut compared, mut squares) = (0, 0.0);
        for (r, e) in rounded.iter().zip(&exact) {
            let same = r.tokens.iter().zip(&e.tokens).take_while(|(a, b)| a == b).count();
            squares += r.logp[..same].iter().zip(&e.logp).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
            compared += same;
        }
        let (all, apart) = (exact.iter().map(|r| r.tokens.len()).sum::<usize>(), (squares / compared as f32).sqrt());
        assert!(compared * 3 > all && apart < 0.05, "{name}: {compared} of {all} tokens alike, {apart} apart");
        println!("{name}: {compared} of {all} tokens alike, log-probabilities {apart} apart");
    }
}

/// Returns a model with heads of this size, with weights large enough for distinct outputs at each position.
fn with_heads((heads, kv_heads, head_dim): (usize, usize, usize), hidden: usize, window: Option<usize>) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "model_type": "mistral", "hidden_size": hidden, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": 5001, "max_position_embeddings": 512,
        "sliding_window": window, "tie_word_embeddings": false
    });
    write_random(&config, folder.path(), 3).unwrap();
    let decoder = ModelFolder::open(folder.path()).unwrap().decoder().unwrap();
    let larger = |_, t: &Tensor| if t.rank() > 1 { t * 8.0 } else { t.copy() };
    Decoder::new(FrozenModel::new(decoder.clone()).architecture().clone(), decoder.weights().map(larger).unwrap())
}

/// Returns the largest difference between a generation's log-probabilities and the CPU's scores of its texts.
fn from_scores(decoder: Decoder, rollouts: &[Rollout], requests: &[PromptRequest]) -> f32 {
    let (mut forest, mut selected) = (Forest::new(), SelectedPredictions::default());
    for rollout in rollouts {
        let prompt = forest.push(&requests[rollout.prompt].tokens, None);
        let completion = forest.push(&rollout.tokens, Some(prompt));
        selected.push_segment(&forest, completion);
    }
    let want = FrozenModel::new(decoder).score(&forest, &selected, 0.7).unwrap().logp;
    let got: Vec<f32> = rollouts.iter().flat_map(|rollout| rollout.logp.iter().copied()).collect();
    assert_eq!(got.len(), want.len());
    got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn heads_of_every_size_read_long_prompts_and_texts() {
    let _alone = lock_device();
    let Some(in_f32) = in_f32() else { return };
    // Queries of a prompt that fill one, two and more tiles of 16, in prompts and texts of several tiles and runs.
    let prompt = |n: u32, row: u64, samples: usize| {
        let tokens = (0..n).map(|i| (i * i * 7 + i * 3 + row as u32) % 5000).collect();
        PromptRequest { tokens, row, first: 0, samples }
    };
    let requests = [prompt(140, 0, 2), prompt(200, 1, 5), prompt(70, 2, 9)];
    let in_bf16 = ComputeBackend::cuda(0, true).unwrap();
    let greedy = Sampler { temperature: 0.0, ..Sampler::default() };
    // The second width is not a multiple of the number of values read at a time.
    for (heads, hidden, window) in
        [((4, 1, 64), 32, None), ((8, 2, 128), 36, Some(90)), ((2, 1, 256), 32, None), ((3, 1, 40), 32, Some(150))]
    {
        let model = || with_heads(heads, hidden, window);
        let of = |backend: &ComputeBackend, sampling: &Sampler, most_new: usize| {
            answer(model(), backend, sampling, (64, &[], most_new), None, &requests)
        };
        let what = format!("{heads:?} with windows of {window:?}");
        assert_same(&of(&in_f32, &greedy, 20), &of(&ComputeBackend::cpu(), &greedy, 20), &what);
        // Some of the draws among thousands of tokens select other tokens, so the drawn tokens are scored.
        for (backend, tolerance) in [(&in_f32, 1e-4), (&in_bf16, 0.2)] {
            let drawn = of(backend, &Sampler::default(), 80);
            let apart = from_scores(model(), &drawn, &requests);
            println!("{what} on {}: log-probabilities at most {apart} apart", backend.describe());
            assert!(apart < tolerance, "{what} on {}: log-probabilities {apart} apart", backend.describe());
        }
    }
}
