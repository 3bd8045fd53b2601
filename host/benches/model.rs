//! A decoder as a whole: forward and backward, the reference's pass, and what generation is made of.
//!
//!     cargo bench --workspace --profile dev --bench model

#![allow(missing_docs)]

mod common;

use common::{COMPLETION, GROUP, MODELS, PROMPT, architecture, batch, decoder, short, tokens};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rlhost::model::{DecodeBatch, Derivatives, KvCache, PolicyModel};
use rlhost::ops::Forest;
use std::hint::black_box;

/// Prompts of a batch: two with the small model, one with the large one, for the time it takes.
fn prompts(model: &str) -> usize {
    if model == "3.4M" { 2 } else { 1 }
}

fn training(c: &mut Criterion) {
    for (model, config) in MODELS {
        let a = architecture(config);
        let (forest, selected) = batch(prompts(model), a.vocab_size);
        let policy = PolicyModel::new(decoder(&a));
        let (frozen, gradients) = (policy.frozen(), policy.zero_gradients().unwrap());
        let d_logp = vec![1e-3; selected.len()];
        let mut group = c.benchmark_group(format!("model {model}"));
        group.throughput(Throughput::Elements(forest.len() as u64));
        group.bench_function("forward", |b| b.iter(|| drop(black_box(policy.forward(&forest, &selected, 1.0).unwrap()))));
        group.bench_function("forward and backward", |b| {
            b.iter(|| {
                policy.forward(&forest, &selected, 1.0).unwrap().backward(Derivatives::from_logp(&d_logp), &gradients).unwrap();
            });
        });
        group.bench_function("score (the reference's pass)", |b| {
            b.iter(|| black_box(frozen.score(&forest, &selected, 1.0).unwrap()));
        });
        group.bench_function("copy of the weights, as in a checkpoint's snapshot", |b| {
            b.iter(|| drop(black_box(policy.copied_weights().unwrap())));
        });
    }
}

fn generation(c: &mut Criterion) {
    for (model, config) in MODELS {
        let a = architecture(config);
        let frozen = PolicyModel::new(decoder(&a)).frozen();
        let mut group = c.benchmark_group(format!("model {model}"));
        group.bench_function("panels of the weights for decoding", |b| b.iter(|| drop(black_box(frozen.decoding().unwrap()))));
        let decoding = frozen.decoding().unwrap();
        let mut forest = Forest::new();
        for p in 0..prompts(model) {
            forest.push(&tokens(PROMPT, a.vocab_size, p), None);
        }
        group.throughput(Throughput::Elements(forest.len() as u64));
        group.bench_function("prefill", |b| b.iter(|| drop(black_box(decoding.prefill(&forest).unwrap()))));

        let (prefixes, _) = decoding.prefill(&forest).unwrap();
        let prefixes: Vec<_> = prefixes.iter().collect();
        let rows = prompts(model) * GROUP;
        let last = tokens(rows, a.vocab_size, 3);
        let prompt_of: Vec<usize> = (0..rows).map(|row| row / GROUP).collect();
        group.throughput(Throughput::Elements((rows * COMPLETION) as u64));
        group.bench_function(format!("decode, {COMPLETION} tokens of {rows} sequences on one thread"), |b| {
            let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            b.iter(|| {
                one.install(|| {
                    let mut own: Vec<KvCache> = (0..rows).map(|_| decoding.empty_cache(COMPLETION)).collect();
                    for t in 0..COMPLETION {
                        let (positions, counts) = (vec![(PROMPT + t) as u32; rows], vec![1; rows]);
                        let mut own: Vec<&mut KvCache> = own.iter_mut().collect();
                        let step = DecodeBatch {
                            tokens: &last,
                            positions: &positions,
                            counts: &counts,
                            prompt_of: &prompt_of,
                            prompts: &prefixes,
                            own: &mut own,
                        };
                        drop(black_box(decoding.decode(step).unwrap()));
                    }
                });
            });
        });
    }
}

criterion_group!(name = benches; config = short(); targets = training, generation);
criterion_main!(benches);
