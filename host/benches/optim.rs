//! An optimizer step over a whole model, and the copy of its moments that a checkpoint's snapshot is.
//!
//!     cargo bench --workspace --profile dev --bench optim

#![allow(missing_docs)]

mod common;

use common::{MODELS, architecture, decoder, short};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rlhost::config::OptimizerRule;
use rlhost::model::PolicyModel;
use rlhost::ops;
use rlhost::optim::{Optimizer, OptimizerSettings};
use std::hint::black_box;

fn steps(c: &mut Criterion) {
    for (model, config) in MODELS {
        let policy = PolicyModel::new(decoder(&architecture(config)));
        let gradients = policy.zero_gradients().unwrap();
        for (_, gradient) in gradients.named() {
            ops::write(gradient, |g| g.fill(1e-3)).unwrap();
        }
        let settings = OptimizerSettings {
            rule: OptimizerRule::AdamW,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
        };
        let trained = policy.weights().trained();
        let mut optimizer = Optimizer::new(settings, &trained).unwrap();
        let mut group = c.benchmark_group(format!("optim {model}"));
        group.throughput(Throughput::Elements(policy.weights().parameters() as u64));
        group.bench_function("step, with clipping", |b| {
            b.iter(|| optimizer.step(&policy.parameters(&gradients), 1e-6).unwrap());
        });
        group.bench_function("gradients to zero", |b| {
            b.iter(|| gradients.named().iter().for_each(|(_, gradient)| ops::fill_zero(gradient).unwrap()));
        });
        group.bench_function("copy of the moments", |b| b.iter(|| drop(black_box(optimizer.state().unwrap()))));
    }
}

criterion_group!(name = benches; config = short(); targets = steps);
criterion_main!(benches);
