//! Checks that generation does not depend on the number of threads, whether threads share products or sequences.

use candle_core::{Device, Tensor};
use rlhost::model::{Architecture, Decoder, FrozenModel, SelectedPredictions, Weights};
use rlhost::ops::Forest;
use rlhost::ops::sampler::Sampler;
use rlhost::rollout::{EndedTurn, Generator, PromptRequest, ReplyProvider, Rollout, TurnReply};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::replies::TestReplies;

/// Returns a model whose products are large enough to be shared, with an odd number of heads.
fn model() -> FrozenModel {
    let config = r#"{"model_type": "qwen2", "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 3, "intermediate_size": 500, "vocab_size": 1111, "max_position_embeddings": 256}"#;
    let architecture = Architecture::parse(config).unwrap();
    // Deterministic weights: with random ones, a draw near the boundary of two tokens would sometimes change by rounding.
    let scattered = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5;
    let scattered = |name: &str, shape: &[usize]| {
        let first = 1_000_003 * name.len() as u32;
        let values: Vec<f32> = (0..shape.iter().product::<usize>() as u32).map(|i| 0.28 * scattered(first + i)).collect();
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    };
    let weights = Weights::build(&architecture, scattered).unwrap();
    FrozenModel::new(Decoder::new(architecture, weights))
}

/// Generates `samples` completions of each of three prompts on this many threads.
fn generate(model: &FrozenModel, samples: usize, max_num_seqs: usize, threads: usize) -> Vec<Rollout> {
    generate_with(model, samples, max_num_seqs, threads, None)
}

fn prompt(i: usize) -> Vec<u32> {
    (0..20 + 31 * i).map(|t| (t * t * 7 + i) as u32 % 1111).collect()
}

fn generate_with(
    model: &FrozenModel,
    samples: usize,
    max_num_seqs: usize,
    threads: usize,
    follow: Option<&dyn ReplyProvider>,
) -> Vec<Rollout> {
    generate_telling(model, samples, max_num_seqs, threads, follow, &AtomicUsize::new(0))
}

/// Generates like [`generate_with`], counting the sampled tokens.
fn generate_telling(
    model: &FrozenModel,
    samples: usize,
    max_num_seqs: usize,
    threads: usize,
    follow: Option<&dyn ReplyProvider>,
    sampled: &AtomicUsize,
) -> Vec<Rollout> {
    let generator = Generator {
        model: &model.decoding().unwrap(),
        sampling: Sampler { top_p: 0.9, ..Sampler::default() },
        logp_temperature: 1.0,
        keep_support: false,
        max_new_tokens: 24,
        max_num_seqs,
        seed: 3,
        generation: 1,
        end_tokens: &[7, 8, 9, 10],
        stops: &|tokens| {
            sampled.fetch_add(1, Ordering::Relaxed);
            tokens.len() > 5 && tokens[tokens.len() - 1] % 16 == 0
        },
        reply_provider: follow,
    };
    let requests: Vec<PromptRequest> =
        (0..3).map(|i| PromptRequest { tokens: prompt(i), row: i as u64, first: 0, samples }).collect();
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

#[test]
fn episodes_are_what_a_pass_over_their_tokens_says_and_keep_the_tokens_of_turns_and_replies() {
    let model = model();
    let replies = TestReplies::new(usize::MAX, 1111);
    let rollouts = generate_with(&model, 4, 64, 1, Some(&replies));
    assert!(rollouts.iter().any(|r| r.replies.len() > 2) && rollouts.iter().any(|r| r.finished));
    for r in &rollouts {
        let (mut forest, mut selected) = (Forest::new(), SelectedPredictions::default());
        let asked = forest.push(&prompt(r.prompt), None);
        let said = forest.push(&r.tokens, Some(asked));
        selected.push_segment(&forest, said);
        let scored = model.score(&forest, &selected, 1.0).unwrap();
        let mask = r.mask();
        assert_eq!((mask.len(), r.logp.len()), (r.tokens.len(), r.tokens.len()));
        assert_eq!(mask.iter().filter(|m| **m == 1).count(), r.sampled());
        for (i, (&own, &scored)) in r.logp.iter().zip(&scored.logp).enumerate() {
            // Sampled tokens depend on everything before them, including replies; replies are not sampled.
            let want = if mask[i] == 1 { scored } else { 0.0 };
            assert!((own - want).abs() < 1e-4, "prompt {}, sample {}, token {i}: {own} and {want}", r.prompt, r.sample);
        }
        let kind = r.prompt + 2 * r.sample;
        for &(begin, end) in &r.replies {
            let sent: Vec<u32> = (0..end - begin).map(|i| replies.token(kind, begin, i)).collect();
            assert_eq!(r.tokens[begin..end], sent, "the reply stands as it came");
            assert!(end < r.tokens.len(), "a reply is followed by a turn");
        }
    }
}

#[test]
fn episodes_do_not_depend_on_who_waits_beside_them() {
    let model = model();
    let replies = TestReplies::new(usize::MAX, 1111);
    let alone = generate_with(&model, 4, 64, 1, Some(&replies));
    assert!(replies.most_together.load(Ordering::Relaxed) > 0);
    for (places, threads) in [(1, 1), (3, 1), (64, 2), (2, 3)] {
        let other = generate_with(&model, 4, places, threads, Some(&TestReplies::new(usize::MAX, 1111)));
        for (a, b) in alone.iter().zip(&other) {
            let apart = a.logp.iter().zip(&b.logp).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let same = (&a.tokens, &a.replies, a.finished) == (&b.tokens, &b.replies, b.finished);
            assert!(
                same && apart < 1e-4,
                "{places} places, {threads} threads: prompt {}, sample {}: {apart}",
                a.prompt,
                a.sample
            );
        }
        assert_eq!(
            generate_with(&model, 4, places, threads, Some(&TestReplies::new(usize::MAX, 1111))),
            other,
            "to the bit, again"
        );
    }
}

/// Replies late: it waits until other sequences have progressed during a call. On a busy machine, a call may begin after all others have
/// done everything possible without its reply, so the wait is limited.
struct LateReplies<'a> {
    replies: TestReplies,
    sampled: &'a AtomicUsize,
    overtaken: AtomicBool,
}

impl ReplyProvider for LateReplies<'_> {
    fn next_turns(&self, ended: &[EndedTurn<'_>]) -> Vec<TurnReply> {
        let (before, begun) = (self.sampled.load(Ordering::Relaxed), Instant::now());
        while !self.overtaken.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(2) {
            if self.sampled.load(Ordering::Relaxed) > before {
                self.overtaken.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.replies.next_turns(ended)
    }

    fn instance(&self, request: usize, sample: usize) -> usize {
        self.replies.instance(request, sample)
    }

    fn max_tokens(&self) -> usize {
        self.replies.max_tokens()
    }
}

#[test]
fn others_go_on_while_an_episode_waits_and_nothing_else_changes() {
    let model = model();
    for threads in [1, 2] {
        let sampled = AtomicUsize::new(0);
        let late =
            LateReplies { replies: TestReplies::new(usize::MAX, 1111), sampled: &sampled, overtaken: AtomicBool::new(false) };
        let slow = generate_telling(&model, 4, 64, threads, Some(&late), &sampled);
        assert!(late.overtaken.load(Ordering::Relaxed), "nobody went on while an episode waited");
        assert_eq!(generate_with(&model, 4, 64, threads, Some(&TestReplies::new(usize::MAX, 1111))), slow);
    }
}

#[test]
fn episodes_end_at_their_limit_of_tokens_and_at_the_context() {
    let model = model();
    for r in generate_with(&model, 6, 64, 1, Some(&TestReplies::new(30, 1111))) {
        assert!(r.tokens.len() <= 30 && r.sampled() > 0, "{} tokens", r.tokens.len());
        assert!(r.replies.iter().all(|(_, end)| *end < r.tokens.len()));
    }
    for r in generate_with(&model, 6, 64, 1, Some(&TestReplies::new(usize::MAX, 1111))) {
        assert!(prompt(r.prompt).len() + r.tokens.len() <= 256);
    }
}
