//! Each operation forward and backward, at the sizes of one layer, for two prompts with eight
//! completions each.
//!
//!     cargo bench --workspace --profile dev --bench ops

#![allow(missing_docs)]

mod common;

use candle_core::{DType, Tensor};
use common::{MODELS, architecture, batch, short, values};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rlhost::model::Architecture;
use rlhost::ops::Precision::{Bf16, F32};
use rlhost::ops::activation::{self, Activation};
use rlhost::ops::adamw::{AdamWStep, update};
use rlhost::ops::low_rank::{LowRankAdapter, LowRankGradient};
use rlhost::ops::panels::Panels;
use rlhost::ops::quantized::{QuantizationScheme, QuantizedWeight};
use rlhost::ops::rope::Rotation;
use rlhost::ops::{self, attention, embedding, linear, logprob, norm, rope, team};
use std::hint::black_box;

/// Makes a benchmark whose rate is of so many elements.
fn bench(c: &mut Criterion, model: &str, name: &str, elements: usize, mut run: impl FnMut()) {
    let mut group = c.benchmark_group(format!("ops {model}"));
    group.throughput(Throughput::Elements(elements as u64));
    group.bench_function(name, |b| b.iter(&mut run));
}

fn all(c: &mut Criterion) {
    for (model, config) in MODELS {
        let a = architecture(config);
        let (forest, selected) = batch(2, a.vocab_size);
        products(c, model, &a, forest.len());
        elementwise(c, model, &a, forest.len());
        let (n, h) = (forest.len(), a.heads);
        let (q, k, v) = (values(&[n, a.query_width()]), values(&[n, a.kv_width()]), values(&[n, a.kv_width()]));
        bench(c, model, "attention, forward", n, || drop(black_box(attention::forward(&q, &k, &v, &forest, h.into()).unwrap())));
        let (out, log_sum) = attention::forward(&q, &k, &v, &forest, h.into()).unwrap();
        let d_out = values(&[n, a.query_width()]);
        bench(c, model, "attention, backward", n, || {
            let kept = attention::AttentionTensors { q: &q, k: &k, v: &v, out: &out, log_sum: &log_sum };
            drop(black_box(attention::backward(&kept, &d_out, &forest, h.into()).unwrap()));
        });
        predictions(c, model, &a, &selected.targets);
        let table = values(&[a.vocab_size, a.hidden_size]);
        bench(c, model, "embedding, forward", n, || drop(black_box(embedding::forward(&table, forest.tokens()).unwrap())));
        let (dy, d_table) = (values(&[n, a.hidden_size]), values(&[a.vocab_size, a.hidden_size]));
        bench(c, model, "embedding, backward", n, || embedding::backward(forest.tokens(), &dy, &d_table).unwrap());
        let rotation = Rotation::new(&vec![0.1; a.heads.head_dim / 2], 1024, 1.0);
        bench(c, model, "rope, forward", n, || rope::forward(&q, &rotation, forest.positions()).unwrap());
        bench(c, model, "rope, backward", n, || rope::backward(&q, &rotation, forest.positions()).unwrap());
    }
}

/// The gated unit's products, which are the largest; and an adapter of rank 16 beside them.
fn products(c: &mut Criterion, model: &str, a: &Architecture, n: usize) {
    let (d, i) = (a.hidden_size, a.intermediate_size);
    let (x, w, dy, dw) = (values(&[n, d]), values(&[i, d]), values(&[n, i]), values(&[i, d]));
    bench(c, model, "linear, forward", 2 * n * d * i, || drop(black_box(linear::forward(&x, &w, None, F32).unwrap())));
    bench(c, model, "linear, backward to the input", 2 * n * d * i, || {
        drop(black_box(linear::backward_input(&dy, &w, F32).unwrap()));
    });
    bench(c, model, "linear, backward to the weight", 2 * n * d * i, || {
        linear::backward_weight(&x, &dy, &dw, None, F32).unwrap();
    });
    let (panels, few) = (Panels::new(&w, None, F32).unwrap(), values(&[16, d]));
    bench(c, model, "panels, 16 rows, as in decoding", 2 * 16 * d * i, || drop(black_box(panels.forward(&few).unwrap())));
    bench(c, model, "panels of a weight", d * i, || drop(black_box(Panels::new(&w, None, F32).unwrap())));
    let half = w.to_dtype(DType::BF16).unwrap();
    bench(c, model, "linear, forward, bf16", 2 * n * d * i, || {
        drop(black_box(linear::forward(&x, &half, None, Bf16).unwrap()));
    });
    bench(c, model, "linear, backward to the input, bf16", 2 * n * d * i, || {
        drop(black_box(linear::backward_input(&dy, &half, Bf16).unwrap()));
    });
    let (stored, few) = (Panels::new(&half, None, Bf16).unwrap(), values(&[8, d]));
    bench(c, model, "panels, 8 rows, bf16", 2 * 8 * d * i, || drop(black_box(stored.forward(&few).unwrap())));

    let (low, high, y) = (values(&[16, d]), values(&[i, 16]), values(&[n, i]));
    let (d_low, d_high, dx) = (values(&[16, d]), values(&[i, 16]), values(&[n, d]));
    let adapter = LowRankAdapter { a: &low, b: &high, scale: 2.0, precision: F32 };
    let elements = 2 * n * 16 * (d + i);
    bench(c, model, "low rank, forward", elements, || adapter.forward_into(&x, &y).unwrap());
    bench(c, model, "low rank, backward", 2 * elements, || {
        adapter.backward(&x, &dy, Some(LowRankGradient { a: &d_low, b: &d_high }), Some(&dx)).unwrap();
    });
}

/// Decoding with Qwen3-0.6B's matrices: more of them than the caches hold, as a generation reads them. The rate is of their bytes.
fn stored(c: &mut Criterion) {
    for (width, outputs) in [(1024, 3072), (3072, 1024)] {
        let few = values(&[8, width]);
        let half = || values(&[outputs, width]).to_dtype(DType::BF16).unwrap();
        let quantized = |scheme: QuantizationScheme| {
            let (codes, scales) = scheme.quantize(&half()).unwrap();
            Panels::new(QuantizedWeight { codes: &codes, scales: &scales, scheme }, None, Bf16).unwrap()
        };
        let of_bf16 = || Panels::new(&half(), None, Bf16).unwrap();
        let kinds: [(&str, usize, &dyn Fn() -> Panels); 3] = [
            ("bf16", 16, &of_bf16),
            ("int8", 8, &|| quantized(QuantizationScheme::Int8)),
            ("nf4", 4, &|| quantized(QuantizationScheme::Nf4)),
        ];
        let mut group = c.benchmark_group("ops Qwen3-0.6B");
        for (name, bits, make) in kinds {
            let bytes = width * outputs * bits / 8;
            let matrices: Vec<Panels> = (0..200_000_000 / bytes).map(|_| make()).collect();
            group.throughput(Throughput::Bytes((matrices.len() * bytes) as u64));
            let read = || matrices.iter().for_each(|matrix| drop(black_box(matrix.forward(&few).unwrap())));
            group.bench_function(format!("8 rows, {outputs} by {width}, {name}"), |b| b.iter(|| team::with_team(read)));
        }
        let matrix = half();
        let bytes = 2 * width * outputs;
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("quantize {outputs} by {width} to int8"), |b| {
            b.iter(|| drop(black_box(QuantizationScheme::Int8.quantize(&matrix).unwrap())));
        });
    }
}

fn elementwise(c: &mut Criterion, model: &str, a: &Architecture, n: usize) {
    let (d, i, eps) = (a.hidden_size, a.intermediate_size, a.norm_eps);
    let (x, w, dy, dx, dw) = (values(&[n, d]), values(&[d]), values(&[n, d]), values(&[n, d]), values(&[d]));
    bench(c, model, "norm, forward", n * d, || drop(black_box(norm::forward(&x, &w, eps, false).unwrap())));
    bench(c, model, "norm, backward", n * d, || norm::backward(&x, &w, eps, &dy, &dx, Some(&dw)).unwrap());
    let (gate, up, d_gated) = (values(&[n, i]), values(&[n, i]), values(&[n, i]));
    bench(c, model, "swiglu, forward", n * i, || {
        drop(black_box(activation::forward(&gate, Some(&up), Activation::Silu, false).unwrap()));
    });
    bench(c, model, "swiglu, backward", n * i, || {
        drop(black_box(activation::backward(&gate, Some(&up), &d_gated, Activation::Silu, false).unwrap()));
    });
    bench(c, model, "add into", n * d, || ops::add_into(&dx, &dy).unwrap());
    let [p, gradient, m]: [Tensor; 3] = std::array::from_fn(|_| values(&[i, d]));
    // Second moments are never below zero.
    let v = gradient.sqr().unwrap();
    let step = AdamWStep { lr: 1e-6, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, t: 10, grad_scale: 1.0 };
    bench(c, model, "adamw", i * d, || update(&p, &gradient, &m, &v, None, step).unwrap());
    bench(c, model, "sum of squares", i * d, || assert!(black_box(ops::sum_of_squares([&gradient]).unwrap()) > 0.0));
}

fn predictions(c: &mut Criterion, model: &str, a: &Architecture, targets: &[u32]) {
    let (m, d, vocab) = (targets.len(), a.hidden_size, a.vocab_size);
    let (hidden, w, dw) = (values(&[m, d]), values(&[vocab, d]), values(&[vocab, d]));
    bench(c, model, "logprob, forward", 2 * m * d * vocab, || {
        drop(black_box(logprob::forward(&hidden, &w, targets, 1.0.into(), None).unwrap()));
    });
    let stats = logprob::forward(&hidden, &w, targets, 1.0.into(), None).unwrap();
    let d_logp = vec![1e-3; m];
    bench(c, model, "logprob, backward", 4 * m * d * vocab, || {
        drop(black_box(logprob::backward(&hidden, &w, targets, 1.0.into(), None, &stats, &d_logp, None, Some(&dw)).unwrap()));
    });
}

criterion_group!(name = benches; config = short(); targets = all, stored);
criterion_main!(benches);
