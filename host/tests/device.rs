//! Compares every operation of a device with its counterpart on the CPU, forward and backward, with sizes that divide no tile evenly. Needs
//! the feature `cuda` and a device, a real one or `tests/software-cuda/`.
#![cfg(feature = "cuda")]
#![allow(clippy::print_stdout)]

use candle_core::{DType, Device, Tensor};
use rlhost::ops::Precision::F32;
use rlhost::ops::activation::{self, Activation};
use rlhost::ops::attention::{self, AttentionConfig, Heads};
use rlhost::ops::experts::{self, Routes, Routing};
use rlhost::ops::low_rank::{LowRankAdapter, LowRankGradient};
use rlhost::ops::rope::{self, Rotation};
use rlhost::ops::support::{Restriction, Support};
use rlhost::ops::{self, Forest, adamw, columns, embedding, layer_norm, linear, logprob, norm};

/// Returns the first device; `None` without one, after printing the reason.
fn device() -> Option<Device> {
    match ops::device::count() {
        Ok(count) if count > 0 => Some(ops::device::open(0).unwrap()),
        Ok(_) => {
            println!("skipped: the driver has no device");
            None
        }
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

/// Returns non-repeating numbers of about the size of activations.
fn wave(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) as f32 * 0.618_034).sin() * (1.0 + 0.3 * (i % 5) as f32)).collect()
}

fn on_cpu(shape: &[usize], seed: usize) -> Tensor {
    Tensor::from_vec(wave(shape.iter().product(), seed), shape, &Device::Cpu).unwrap()
}

/// Values on the CPU, with a copy on the device. With bf16, the CPU has the rounded values too.
struct TensorTwins {
    device: Device,
    dtype: DType,
}

impl TensorTwins {
    /// Returns the twins in f32 and in bf16.
    fn for_each_dtype(device: &Device) -> [Self; 2] {
        [DType::F32, DType::BF16].map(|dtype| Self { device: device.clone(), dtype })
    }

    fn pair(&self, shape: &[usize], seed: usize) -> (Tensor, Tensor) {
        let t = on_cpu(shape, seed).to_dtype(self.dtype).unwrap();
        (t.to_dtype(DType::F32).unwrap(), t.to_device(&self.device).unwrap())
    }

    /// Returns values that are f32 whatever the activations' type.
    fn pair_f32(&self, shape: &[usize], seed: usize) -> (Tensor, Tensor) {
        let t = on_cpu(shape, seed);
        (t.clone(), t.to_device(&self.device).unwrap())
    }

    fn zeros(&self, shape: &[usize], dtype: DType) -> (Tensor, Tensor) {
        let zeros = |device: &Device, dtype| Tensor::zeros(shape, dtype, device).unwrap();
        (zeros(&Device::Cpu, DType::F32), zeros(&self.device, dtype))
    }

    /// Returns the rounding tolerance, relative to the largest value.
    fn tolerance(&self) -> f32 {
        if self.dtype == DType::F32 { 2e-5 } else { 2e-2 }
    }

    fn same(&self, what: &str, cpu: &Tensor, device: &Tensor) {
        assert_eq!(cpu.dims(), device.dims(), "{what}");
        self.same_values(what, &ops::to_vec(cpu).unwrap(), &ops::to_vec(device).unwrap());
    }

    fn same_values(&self, what: &str, want: &[f32], got: &[f32]) {
        assert_eq!(want.len(), got.len(), "{what}");
        let size = want.iter().fold(1e-20f32, |m, x| m.max(x.abs()));
        for (i, (w, g)) in want.iter().zip(got).enumerate() {
            assert!((w - g).abs() <= self.tolerance() * size, "{what} in {:?}: {g} at {i}, and {w} on the CPU", self.dtype);
        }
    }
}

#[test]
fn values_go_to_the_device_and_back() {
    let Some(device) = device() else { return };
    let values = wave(1037, 1);
    let t = ops::from_vec(values.clone(), 1037, &device).unwrap();
    assert_eq!(ops::to_vec(&t).unwrap(), values);
    let rounded = ops::cast(&t, DType::BF16).unwrap();
    let want: Vec<f32> = values.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
    assert_eq!(ops::to_vec(&rounded).unwrap(), want);
    assert_eq!(ops::to_vec(&ops::cast(&rounded, DType::F32).unwrap()).unwrap(), want);
    let copy = ops::copied(&t).unwrap();
    ops::write(&t, |values| values.iter_mut().for_each(|x| *x += 1.0)).unwrap();
    assert_eq!(ops::to_vec(&t).unwrap()[3], values[3] + 1.0);
    assert_eq!(ops::to_vec(&copy).unwrap(), values);
    ops::fill_zero(&t).unwrap();
    assert!(ops::to_vec(&t).unwrap().iter().all(|x| *x == 0.0));
    assert_eq!(ops::to_vec(&ops::on_host(&copy).unwrap()).unwrap(), values);
}

#[test]
fn elementwise_operations() {
    let Some(device) = device() else { return };
    for twins in TensorTwins::for_each_dtype(&device) {
        for shape in [[1, 1], [3, 7], [5, 64], [33, 129]] {
            let ((a, da), (b, db), (dy, ddy)) = (twins.pair(&shape, 1), twins.pair(&shape, 2), twins.pair(&shape, 3));
            for f in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
                for up in [Some((&b, &db)), None] {
                    let (of_cpu, of_device) = (up.map(|up| up.0), up.map(|up| up.1));
                    let (want, got) = (activation::forward(&a, of_cpu, f, false), activation::forward(&da, of_device, f, false));
                    twins.same(&format!("{f:?}"), &want.unwrap(), &got.unwrap());
                    let want = activation::backward(&a, of_cpu, &dy, f, false).unwrap();
                    let got = activation::backward(&da, of_device, &ddy, f, false).unwrap();
                    twins.same(&format!("{f:?}'s gate"), &want.0, &got.0);
                    assert_eq!(want.1.is_some(), got.1.is_some());
                    want.1.iter().zip(&got.1).for_each(|(want, got)| twins.same(&format!("{f:?}'s up"), want, got));
                }
            }
            twins.same("scaled", &ops::scaled(&a, 0.3).unwrap(), &ops::scaled(&da, 0.3).unwrap());
            twins.same("plus one", &ops::plus_one(&a).unwrap(), &ops::plus_one(&da).unwrap());
            twins.same("bounded", &ops::bounded_by(&a, 0.9).unwrap(), &ops::bounded_by(&da, 0.9).unwrap());
            let (_, other) = twins.pair_f32(&shape, 2);
            let want = ops::interpolate(&a, &on_cpu(&shape, 2), 0.6).unwrap();
            twins.same("mixed", &want, &ops::interpolate(&da, &other, 0.6).unwrap());
            ops::add_into(&a, &b).unwrap();
            ops::add_into(&da, &db).unwrap();
            twins.same("add_into", &a, &da);
        }
    }
}

#[test]
fn rows_are_picked_and_added() {
    let Some(device) = device() else { return };
    for twins in TensorTwins::for_each_dtype(&device) {
        for d in [1, 8, 36, 300] {
            let ((table, d_table), (dy, ddy)) = (twins.pair(&[11, d], 1), twins.pair(&[7, d], 2));
            let tokens = [3u32, 0, 10, 3, 3, 7, 0];
            let rows = tokens.map(|t| t as usize);
            twins.same(
                "embedding",
                &embedding::forward(&table, &tokens).unwrap(),
                &embedding::forward(&d_table, &tokens).unwrap(),
            );
            twins.same("gather", &ops::gather_rows(&table, &rows).unwrap(), &ops::gather_rows(&d_table, &rows).unwrap());
            let (grad, d_grad) = twins.pair_f32(&[11, d], 4);
            embedding::backward(&tokens, &dy, &grad).unwrap();
            embedding::backward(&tokens, &ddy, &d_grad).unwrap();
            twins.same("embedding's gradient", &grad, &d_grad);
            ops::scatter_add_rows(&table, &dy, &rows).unwrap();
            ops::scatter_add_rows(&d_table, &ddy, &rows).unwrap();
            twins.same("scatter", &table, &d_table);
            assert!(embedding::forward(&d_table, &[11]).is_err() && ops::gather_rows(&d_table, &[11]).is_err());
            let (none, no_rows) = (ops::gather_rows(&d_table, &[]).unwrap(), [0usize; 0]);
            ops::scatter_add_rows(&d_table, &none, &no_rows).unwrap();
        }
    }
}

#[test]
fn norms() {
    let Some(device) = device() else { return };
    for twins in TensorTwins::for_each_dtype(&device) {
        for (n, d) in [(1, 1), (3, 8), (19, 40), (70, 257), (300, 64)] {
            let ((x, dx), (w, dw)) = (twins.pair(&[n, d], 1), twins.pair_f32(&[d], 2));
            let eps = 1e-5;
            twins.same("norm", &norm::forward(&x, &w, eps, false).unwrap(), &norm::forward(&dx, &dw, eps, false).unwrap());
            let ((dy, ddy), (into, d_into)) = (twins.pair(&[n, d], 3), twins.pair(&[n, d], 4));
            let (of_w, d_of_w) = twins.pair_f32(&[d], 5);
            norm::backward(&x, &w, eps, &dy, &into, Some(&of_w)).unwrap();
            norm::backward(&dx, &dw, eps, &ddy, &d_into, Some(&d_of_w)).unwrap();
            twins.same("norm's input", &into, &d_into);
            twins.same("norm's weight", &of_w, &d_of_w);

            let (b, db) = twins.pair_f32(&[d], 6);
            let (want, got) = (layer_norm::forward(&x, &w, &b, eps, false), layer_norm::forward(&dx, &dw, &db, eps, false));
            // A single value equals its own mean, so only amplified rounding would be left.
            if d == 1 {
                continue;
            }
            twins.same("layer norm", &want.unwrap(), &got.unwrap());
            let (of_b, d_of_b) = twins.pair_f32(&[d], 7);
            layer_norm::backward(&x, &w, eps, &dy, &into, Some((&of_w, &of_b))).unwrap();
            layer_norm::backward(&dx, &dw, eps, &ddy, &d_into, Some((&d_of_w, &d_of_b))).unwrap();
            twins.same("layer norm's input", &into, &d_into);
            twins.same("layer norm's weight", &of_w, &d_of_w);
            twins.same("layer norm's bias", &of_b, &d_of_b);
        }
    }
}

#[test]
fn joined_columns() {
    let Some(device) = device() else { return };
    for twins in TensorTwins::for_each_dtype(&device) {
        for (n, groups, widths) in [(1, 1, [1, 1, 1]), (5, 1, [24, 8, 8]), (7, 3, [4, 4, 4]), (33, 2, [9, 1, 30])] {
            let (x, dx) = twins.pair(&[n, groups * widths.iter().sum::<usize>()], 1);
            let (parts, d_parts) = (columns::split(&x, &widths).unwrap(), columns::split(&dx, &widths).unwrap());
            parts.iter().zip(&d_parts).for_each(|(part, d_part)| twins.same("a part", part, d_part));
            let join = |parts: &[Tensor]| columns::join(&parts.iter().collect::<Vec<_>>(), &widths).unwrap();
            twins.same("joined", &join(&parts), &join(&d_parts));
            twins.same("split and joined", &x, &join(&d_parts));
        }
    }
}

#[test]
fn experts_of_sorted_rows() {
    let Some(device) = device() else { return };
    for twins in TensorTwins::for_each_dtype(&device) {
        for (n, d_in, d_out, count, chosen, normalised) in
            [(1, 8, 8, 3, 1, false), (9, 16, 24, 4, 2, true), (40, 24, 7, 8, 3, false)]
        {
            let (logits, d_logits) = twins.pair(&[n, count], 1);
            let routing = Routing::new(chosen, normalised);
            let (routes, d_routes) =
                (Routes::new(&logits, routing, None).unwrap(), Routes::new(&d_logits, routing, None).unwrap());
            assert_eq!(routes.tokens(), d_routes.tokens());
            let rows = n * chosen;
            let ((x, dx), (w, dw)) = (twins.pair(&[rows, d_in], 2), twins.pair(&[count, d_out, d_in], 3));
            let (y, d_y) = (experts::forward(&x, &w, &routes, F32).unwrap(), experts::forward(&dx, &dw, &d_routes, F32).unwrap());
            twins.same("experts", &y, &d_y);
            let (dy, ddy) = twins.pair(&[rows, d_out], 4);
            let back = |dy: &Tensor, w: &Tensor, routes: &Routes| experts::backward_input(dy, w, routes, F32).unwrap();
            twins.same("experts' input", &back(&dy, &w, &routes), &back(&ddy, &dw, &d_routes));
            let (of_w, d_of_w) = twins.pair_f32(&[count, d_out, d_in], 5);
            experts::backward_weight(&x, &dy, &of_w, &routes, F32).unwrap();
            experts::backward_weight(&dx, &ddy, &d_of_w, &d_routes, F32).unwrap();
            twins.same("experts' weights", &of_w, &d_of_w);
            twins.same("weighed rows", &routes.weighted(&dy).unwrap(), &d_routes.weighted(&ddy).unwrap());
            twins.same_values("dots", &experts::dots(&y, &dy).unwrap(), &experts::dots(&d_y, &ddy).unwrap());
            for weighted in [false, true] {
                let (into, d_into) = twins.pair(&[n, d_out], 6);
                routes.gather_into(&into, &dy, weighted).unwrap();
                d_routes.gather_into(&d_into, &ddy, weighted).unwrap();
                twins.same("gathered rows", &into, &d_into);
            }
            let slopes = wave(rows, 7);
            let (want, got) = (routes.backward(&slopes, None, &x).unwrap(), d_routes.backward(&slopes, None, &dx).unwrap());
            assert_eq!((got.dtype(), got.device().is_cuda()), (dx.dtype(), true));
            twins.same("the router's logits", &want, &got);
        }
    }
}

#[test]
fn linear_layers_with_and_without_adapters() {
    let Some(device) = device() else { return };
    for twins in TensorTwins::for_each_dtype(&device) {
        for (n, d_in, d_out) in [(1, 1, 1), (5, 3, 9), (33, 64, 40), (70, 129, 31)] {
            let ((x, dx), (w, dw)) = (twins.pair(&[n, d_in], 1), twins.pair(&[d_out, d_in], 2));
            let ((b, db), (dy, ddy)) = (twins.pair_f32(&[d_out], 3), twins.pair(&[n, d_out], 4));
            for (b, db) in [(None, None), (Some(&b), Some(&db))] {
                twins.same("linear", &linear::forward(&x, &w, b, F32).unwrap(), &linear::forward(&dx, &dw, db, F32).unwrap());
                let wide = linear::forward_f32(&dx, &dw, db).unwrap();
                assert_eq!(wide.dtype(), DType::F32);
                twins.same("linear in f32", &linear::forward(&x, &w, b, F32).unwrap(), &wide);
            }
            let (want, got) = (linear::backward_input(&dy, &w, F32).unwrap(), linear::backward_input(&ddy, &dw, F32).unwrap());
            twins.same("linear's input", &want, &got);
            linear::backward_input_into(&want, &dy, &w, F32).unwrap();
            linear::backward_input_into(&got, &ddy, &dw, F32).unwrap();
            twins.same("linear's input, added", &want, &got);
            let ((of_w, d_of_w), (of_b, d_of_b)) = (twins.pair_f32(&[d_out, d_in], 5), twins.pair_f32(&[d_out], 6));
            linear::backward_weight(&x, &dy, &of_w, Some(&of_b), F32).unwrap();
            linear::backward_weight(&dx, &ddy, &d_of_w, Some(&d_of_b), F32).unwrap();
            twins.same("linear's weight", &of_w, &d_of_w);
            twins.same("linear's bias", &of_b, &d_of_b);

            let r = 3;
            let ((a, da), (b, db)) = (twins.pair(&[r, d_in], 7), twins.pair(&[d_out, r], 8));
            let (cpu, on) = (
                LowRankAdapter { a: &a, b: &b, scale: 0.7, precision: F32 },
                LowRankAdapter { a: &da, b: &db, scale: 0.7, precision: F32 },
            );
            let (y, d_y) = twins.pair(&[n, d_out], 9);
            cpu.forward_into(&x, &y).unwrap();
            on.forward_into(&dx, &d_y).unwrap();
            twins.same("low rank", &y, &d_y);
            twins.same("merged", &cpu.merged(&w).unwrap(), &on.merged(&dw).unwrap());
            let ((of_a, d_of_a), (of_b, d_of_b)) = (twins.pair_f32(&[r, d_in], 10), twins.pair_f32(&[d_out, r], 11));
            let (into, d_into) = twins.pair(&[n, d_in], 12);
            cpu.backward(&x, &dy, Some(LowRankGradient { a: &of_a, b: &of_b }), Some(&into)).unwrap();
            on.backward(&dx, &ddy, Some(LowRankGradient { a: &d_of_a, b: &d_of_b }), Some(&d_into)).unwrap();
            for (what, want, got) in [("A", &of_a, &d_of_a), ("B", &of_b, &d_of_b), ("input", &into, &d_into)] {
                twins.same(&format!("low rank's {what}"), want, got);
            }
        }
    }
}

/// Returns a forest of prompts with completions, completions of completions, segments between them, and lengths around a tile's.
fn forest() -> Forest {
    let mut forest = Forest::new();
    let tokens = |n: usize| (0..n as u32).map(|i| i % 13).collect::<Vec<u32>>();
    let first = forest.push(&tokens(70), None);
    let a = forest.push(&tokens(33), Some(first));
    let other = forest.push(&tokens(1), None);
    forest.push(&tokens(64), Some(first));
    forest.push(&tokens(5), Some(other));
    forest.push(&tokens(9), Some(a));
    forest.push(&tokens(32), Some(other));
    forest.push(&tokens(2), None);
    forest
}

#[test]
fn rotations() {
    let Some(device) = device() else { return };
    let forest = forest();
    for twins in TensorTwins::for_each_dtype(&device) {
        for (heads, half, dim) in [(1, 1, 2), (3, 4, 8), (2, 32, 64), (2, 3, 16), (3, 16, 40)] {
            let frequencies: Vec<f32> = (0..half).map(|i| 100f32.powf(-(i as f32) / half as f32)).collect();
            let rotation = Rotation::new(&frequencies, 200, 1.1).with_head_dim(dim);
            let (x, dx) = twins.pair(&[forest.len(), heads * dim], 1);
            rope::forward(&x, &rotation, forest.positions()).unwrap();
            rope::forward(&dx, &rotation, &forest).unwrap();
            twins.same("rope", &x, &dx);
            rope::backward(&x, &rotation, forest.positions()).unwrap();
            rope::backward(&dx, &rotation, forest.positions()).unwrap();
            twins.same("rope back", &x, &dx);
        }
    }
}

/// Compares attention over a forest, forward and backward.
fn compare_attention(twins: &TensorTwins, how: AttentionConfig) {
    let (forest, what) = (forest(), format!("{how:?}"));
    let (n, h) = (forest.len(), how.heads);
    let (width, kv_width) = (h.heads * h.head_dim, h.kv_heads * h.head_dim);
    let ((q, dq), (k, dk), (v, dv)) = (twins.pair(&[n, width], 1), twins.pair(&[n, kv_width], 2), twins.pair(&[n, kv_width], 3));
    let (want, want_log) = attention::forward(&q, &k, &v, &forest, how).unwrap();
    let (got, got_log) = attention::forward(&dq, &dk, &dv, &forest, how).unwrap();
    twins.same(&format!("attention: {what}"), &want, &got);
    twins.same(&format!("log-sums: {what}"), &want_log, &got_log);
    let (d_out, dd_out) = twins.pair(&[n, width], 4);
    let kept = attention::AttentionTensors { q: &q, k: &k, v: &v, out: &want, log_sum: &want_log };
    let want = attention::backward(&kept, &d_out, &forest, how).unwrap();
    let kept = attention::AttentionTensors { q: &dq, k: &dk, v: &dv, out: &got, log_sum: &got_log };
    let got = attention::backward(&kept, &dd_out, &forest, how).unwrap();
    for (of, want, got) in [("q", &want.0, &got.0), ("k", &want.1, &got.1), ("v", &want.2, &got.2)] {
        twins.same(&format!("attention's {of}: {what}"), want, got);
    }
}

#[test]
fn attention_over_a_forest() {
    let Some(device) = device() else { return };
    for twins in TensorTwins::for_each_dtype(&device) {
        for (heads, kv_heads, head_dim) in [(2, 1, 8), (3, 3, 16), (4, 2, 64), (2, 2, 80), (3, 1, 128), (2, 1, 200)] {
            compare_attention(&twins, Heads { heads, kv_heads, head_dim }.into());
        }
    }
}

#[test]
fn attention_with_windows_bounds_and_other_scales() {
    let Some(device) = device() else { return };
    for twins in TensorTwins::for_each_dtype(&device) {
        // Head sizes for each set of kernels.
        for (heads, kv_heads, head_dim) in [(2, 1, 16), (2, 2, 72), (2, 1, 132)] {
            let plain = AttentionConfig::from(Heads { heads, kv_heads, head_dim });
            // Windows of two tokens, within a tile, of a tile, over several segments, and longer than any text.
            for window in [2, 7, 32, 64, 90, 500] {
                compare_attention(&twins, AttentionConfig { window: Some(window), ..plain });
            }
            compare_attention(&twins, AttentionConfig { scale: 0.21, ..plain });
            compare_attention(&twins, AttentionConfig { cap: Some(1.5), ..plain });
            compare_attention(&twins, AttentionConfig { cap: Some(2.0), scale: 0.3, window: Some(40), ..plain });
        }
    }
}

#[test]
fn log_probabilities_and_their_gradients() {
    let Some(device) = device() else { return };
    for twins in TensorTwins::for_each_dtype(&device) {
        for (m, d, vocab) in [(1, 8, 5), (7, 16, 300), (7, 16, 301), (40, 24, 5000)] {
            let ((h, dh), (w, dw)) = (twins.pair(&[m, d], 1), twins.pair(&[vocab, d], 2));
            let targets: Vec<u32> = (0..m).map(|i| (i * 37 % vocab) as u32).collect();
            let want = logprob::forward(&h, &w, &targets, 0.8.into(), None).unwrap();
            let got = logprob::forward(&dh, &dw, &targets, 0.8.into(), None).unwrap();
            // Products of the same bf16 numbers are computed and accumulated in f32.
            let exact = TensorTwins { device: device.clone(), dtype: DType::F32 };
            exact.same_values("logp", &want.logp, &got.logp);
            exact.same_values("entropy", &want.entropy, &got.entropy);
            assert_eq!(want.top, got.top);
            twins.same_values(
                "mean logits",
                &logprob::mean_logits(&h, &w, 1.0.into()).unwrap(),
                &logprob::mean_logits(&dh, &dw, 1.0.into()).unwrap(),
            );
            for d_entropy in [None, Some(wave(m, 4))] {
                let (d_logp, d_entropy) = (wave(m, 3), d_entropy.as_deref());
                let (of_w, d_of_w) = twins.pair_f32(&[vocab, d], 5);
                let backward = |h: &Tensor, w: &Tensor, stats: &_, dw: &Tensor| {
                    logprob::backward(h, w, &targets, 0.8.into(), None, stats, &d_logp, d_entropy, Some(dw)).unwrap()
                };
                twins.same("hidden", &backward(&h, &w, &want, &of_w), &backward(&dh, &dw, &got, &d_of_w));
                twins.same("output matrix", &of_w, &d_of_w);
            }
        }
    }
}

#[test]
fn log_probabilities_of_logits_that_are_divided_and_bounded() {
    let Some(device) = device() else { return };
    let scale = logprob::LogitScale { temperature: 0.8, divisor: 1.7, cap: Some(3.0), precision: F32 };
    for twins in TensorTwins::for_each_dtype(&device) {
        let (m, d, vocab) = (40, 24, 5000);
        let ((h, dh), (w, dw)) = (twins.pair(&[m, d], 1), twins.pair(&[vocab, d], 2));
        let targets: Vec<u32> = (0..m).map(|i| (i * 37 % vocab) as u32).collect();
        let want = logprob::forward(&h, &w, &targets, scale, None).unwrap();
        let got = logprob::forward(&dh, &dw, &targets, scale, None).unwrap();
        let exact = TensorTwins { device: device.clone(), dtype: DType::F32 };
        exact.same_values("logp", &want.logp, &got.logp);
        exact.same_values("entropy", &want.entropy, &got.entropy);
        exact.same_values(
            "mean logits",
            &logprob::mean_logits(&h, &w, scale).unwrap(),
            &logprob::mean_logits(&dh, &dw, scale).unwrap(),
        );
        let (d_logp, d_entropy) = (wave(m, 3), wave(m, 4));
        let (of_w, d_of_w) = twins.pair_f32(&[vocab, d], 5);
        let backward = |h: &Tensor, w: &Tensor, stats: &_, dw: &Tensor| {
            logprob::backward(h, w, &targets, scale, None, stats, &d_logp, Some(&d_entropy), Some(dw)).unwrap()
        };
        twins.same("hidden", &backward(&h, &w, &want, &of_w), &backward(&dh, &dw, &got, &d_of_w));
        twins.same("output matrix", &of_w, &d_of_w);
    }
}

#[test]
fn log_probabilities_and_gradients_among_the_tokens_that_could_be_sampled() {
    let Some(device) = device() else { return };
    // Entries of ids, of bits, and none; two texts, one in rows between others.
    let (m, d, vocab) = (23, 16, 300);
    let mut restriction = Restriction::default();
    let targets: Vec<u32> = (0..m as u32).map(|i| i * 37 % vocab as u32).collect();
    for (first, rows, prompt) in [(2, 9, vec![5, 111, 5]), (14, 7, vec![0, 299, 37 * 15 % 300])] {
        let tokens = &targets[first..first + rows];
        let mut support = Support::new(1.7);
        for (at, token) in tokens.iter().enumerate() {
            let step = [2, 90, 1][at % 3];
            let could_be = |i: usize| i == *token as usize || i.is_multiple_of(step);
            let logits: Vec<f32> = (0..vocab).map(|i| if could_be(i) { 0.0 } else { f32::NEG_INFINITY }).collect();
            support.push(&logits);
        }
        restriction.push(first, &support, &prompt, tokens);
    }
    let restriction = Some(&restriction);
    for twins in TensorTwins::for_each_dtype(&device) {
        let ((h, dh), (w, dw)) = (twins.pair(&[m, d], 1), twins.pair(&[vocab, d], 2));
        let want = logprob::forward(&h, &w, &targets, 0.8.into(), restriction).unwrap();
        let got = logprob::forward(&dh, &dw, &targets, 0.8.into(), restriction).unwrap();
        let exact = TensorTwins { device: device.clone(), dtype: DType::F32 };
        exact.same_values("logp", &want.logp, &got.logp);
        exact.same_values("entropy", &want.entropy, &got.entropy);
        assert_eq!(want.top, got.top);
        let whole = logprob::forward(&h, &w, &targets, 0.8.into(), None).unwrap();
        let differs: Vec<bool> = want.logp.iter().zip(&whole.logp).map(|(some, all)| some != all).collect();
        assert!(differs.iter().enumerate().all(|(row, differs)| !differs || (2..11).contains(&row) || (14..21).contains(&row)));
        assert!(differs.iter().filter(|differs| **differs).count() > 10, "{differs:?}");
        let (d_logp, d_entropy) = (wave(m, 3), wave(m, 4));
        let (of_w, d_of_w) = twins.pair_f32(&[vocab, d], 5);
        let backward = |h: &Tensor, w: &Tensor, stats: &_, dw: &Tensor| {
            logprob::backward(h, w, &targets, 0.8.into(), restriction, stats, &d_logp, Some(&d_entropy), Some(dw)).unwrap()
        };
        twins.same("hidden", &backward(&h, &w, &want, &of_w), &backward(&dh, &dw, &got, &d_of_w));
        twins.same("output matrix", &of_w, &d_of_w);
    }
}

#[test]
fn a_likelihood_that_is_no_number_does_not_pass_unseen() {
    let Some(device) = device() else { return };
    let hidden = Tensor::new(&[[1f32, f32::NAN], [1.0, 0.0]], &device).unwrap();
    let w = on_cpu(&[700, 2], 1).to_device(&device).unwrap();
    let stats = logprob::forward(&hidden, &w, &[3, 3], 1.0.into(), None).unwrap();
    assert!(stats.logp[0].is_nan() && stats.logp[1].is_finite());
}

#[test]
fn updates_and_sums() {
    let Some(device) = device() else { return };
    let twins = TensorTwins { device, dtype: DType::F32 };
    for n in [1, 300, 70_001] {
        let ((p, dp), (g, dg)) = (twins.pair(&[n], 1), twins.pair(&[n], 2));
        let ((m, dm), (v, dv)) = (twins.zeros(&[n], DType::F32), twins.zeros(&[n], DType::F32));
        let rounded = ops::cast(&dp, DType::BF16).unwrap();
        for t in 1..4 {
            let s = adamw::AdamWStep { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, t, grad_scale: 0.5 };
            adamw::update(&p, &g, &m, &v, None, s).unwrap();
            adamw::update(&dp, &dg, &dm, &dv, Some(&rounded), s).unwrap();
        }
        for (what, want, got) in [("parameter", &p, &dp), ("first moment", &m, &dm), ("second moment", &v, &dv)] {
            twins.same(what, want, got);
        }
        assert_eq!(ops::to_vec(&rounded).unwrap(), ops::to_vec(&ops::cast(&dp, DType::BF16).unwrap()).unwrap());

        let (want, got) = (ops::sum_of_squares([&p, &g]).unwrap(), ops::sum_of_squares([&dp, &dg]).unwrap());
        assert!((want - got).abs() <= 1e-5 * want, "{got} and {want} on the CPU");
        let sum = ops::checksum(&dp).unwrap();
        assert_eq!(sum, ops::checksum(&ops::copied(&dp).unwrap()).unwrap());
        ops::write(&dp, |values| values[n / 2] = f32::from_bits(values[n / 2].to_bits() ^ 1)).unwrap();
        assert_ne!(sum, ops::checksum(&dp).unwrap());
    }
}
