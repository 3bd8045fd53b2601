//! Generation as a step has it, and the drawing of tokens alone.
//!
//!     cargo bench --workspace --profile dev --bench rollout

#![allow(missing_docs)]

mod common;

use common::{COMPLETION, GROUP, MODELS, PROMPT, architecture, decoder, short, tokens, values};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rlhost::model::FrozenModel;
use rlhost::ops;
use rlhost::ops::sampler::{Sampler, stream};
use rlhost::rollout::{Generator, PromptRequest};
use std::hint::black_box;

fn generation(c: &mut Criterion) {
    for (model, config) in MODELS {
        let a = architecture(config);
        let decoding = FrozenModel::new(decoder(&a)).decoding().unwrap();
        let prompts = if model == "3.4M" { 2 } else { 1 };
        let request =
            |p: usize| PromptRequest { tokens: tokens(PROMPT, a.vocab_size, p), row: p as u64, first: 0, samples: GROUP };
        let requests: Vec<PromptRequest> = (0..prompts).map(request).collect();
        let generator = Generator {
            model: &decoding,
            sampling: Sampler::default(),
            logp_temperature: 1.0,
            keep_support: false,
            max_new_tokens: COMPLETION,
            max_num_seqs: 256,
            seed: 1,
            generation: 0,
            end_tokens: &[],
            stops: &|_| false,
            reply_provider: None,
        };
        let mut group = c.benchmark_group(format!("rollout {model}"));
        group.throughput(Throughput::Elements((prompts * GROUP * COMPLETION) as u64));
        group.bench_function(format!("{prompts} x {GROUP} completions of {COMPLETION} tokens"), |b| {
            b.iter(|| black_box(generator.run(&requests).unwrap()));
        });
    }
}

fn sampler(c: &mut Criterion) {
    for vocab in [2048, 49_152, 151_936] {
        let logits = ops::to_vec(&values(&[vocab])).unwrap();
        let mut group = c.benchmark_group(format!("sampler, {vocab} tokens"));
        let cases = [
            ("plain", Sampler::default()),
            ("greedy", Sampler { temperature: 0.0, ..Sampler::default() }),
            ("top-k 50", Sampler { top_k: 50, ..Sampler::default() }),
            ("top-p 0.9", Sampler { top_p: 0.9, ..Sampler::default() }),
            ("min-p 0.05", Sampler { min_p: 0.05, ..Sampler::default() }),
            ("repetition penalty", Sampler { repetition_penalty: 1.1, ..Sampler::default() }),
        ];
        for (name, sampling) in cases {
            let (mut rng, seen) = (stream(1, 2, 3, 4), tokens(PROMPT, vocab, 1));
            group.bench_function(name, |b| b.iter(|| sampling.draw(&logits, 1.0, &mut seen.iter().copied(), &mut rng, None)));
        }
    }
}

criterion_group!(name = benches; config = short(); targets = generation, sampler);
criterion_main!(benches);
