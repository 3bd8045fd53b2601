//! Divergences between two models' distributions of the next token over the whole vocabulary. They are computed from hidden states and
//! output matrices in tiles (`tiles.rs`), so neither model's complete `[M, V]` logits ever exist.
//!
//! With the distributions `p` of the student and `q` of the teacher, `beta` selects the divergence of Agarwal et al. 2023 (arXiv
//! 2306.13649), as TRL has it:
//!
//! - 0: the forward divergence `KL(q || p)`
//! - 1: the reverse divergence `KL(p || q)`
//! - between: `beta KL(q || m) + (1 - beta) KL(p || m)` with `m = beta q + (1 - beta) p`, the generalised Jensen-Shannon divergence

use super::math::{exp, ln_1p};
use super::simd::wide;
use super::slices::{read, tensor, write};
use super::tiles::{LANES, LogitGradients, LogitScale, LogitTile, LogitTiles, TOKENS_PER_TASK};
use super::view::MatrixView;
use super::{Capability, Error, Result, logprob, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;

/// A model's predictions, as the inputs of its logits.
#[derive(Clone, Copy)]
pub struct Predictions<'a> {
    /// Hidden states, `[M, D]`.
    pub hidden: &'a Tensor,
    /// Output matrix, `[V, D]`.
    pub output: &'a Tensor,
    /// Scale and soft cap that turn products of both into logits.
    pub scale: LogitScale,
}

impl<'a> Predictions<'a> {
    pub(super) fn logits(&self) -> Result<LogitTiles<'a>> {
        LogitTiles::new(self.hidden, self.output, self.scale)
    }
}

/// Divergence of two models' distributions at each of `M` rows, with what its backward pass needs.
#[derive(Clone, Debug)]
pub struct Divergence {
    kind: DivergenceKind,
    /// Divergences in nats, `[M]`.
    values: Vec<f32>,
    /// Logarithms of the student's and the teacher's normalisers, `[M]` each.
    student_log_sums: Vec<f32>,
    teacher_log_sums: Vec<f32>,
    /// Divergences of the student from the teacher or mixture that it is compared with, `[M]`; zero where the gradient does not need them.
    of_student: Vec<f32>,
}

/// Kind of divergence, selected by `beta`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum DivergenceKind {
    Forward,
    Reverse,
    /// Mixed divergence, with `beta` and the logarithms of `1 - beta` and of `beta`.
    Mixed {
        beta: f32,
        ln_student: f32,
        ln_teacher: f32,
    },
}

impl DivergenceKind {
    /// Returns the kind that `beta` selects.
    pub(super) fn new(beta: f64) -> Self {
        match beta {
            0.0 => Self::Forward,
            1.0 => Self::Reverse,
            _ => Self::Mixed { beta: beta as f32, ln_student: (-beta).ln_1p() as f32, ln_teacher: beta.ln() as f32 },
        }
    }
}

/// Returns the logarithm of the mixture of two probabilities, each given as its logarithm plus that of its weight.
#[inline(always)]
fn ln_mixture(a: f32, b: f32) -> f32 {
    let (top, low) = if a > b { (a, b) } else { (b, a) };
    top + ln_1p(exp(low - top))
}

/// Returns `p * x`, or zero if `p` is zero, even if `x` is infinite.
#[inline(always)]
fn weighted(p: f32, x: f32) -> f32 {
    if p > 0.0 { p * x } else { 0.0 }
}

/// Checks that both models' predictions are of as many rows and tokens. Returns these numbers.
pub(super) fn check(student: &Predictions<'_>, teacher: &Predictions<'_>, beta: f64) -> Result<(usize, usize)> {
    Capability::Divergences.require(student.hidden)?;
    let shape = |of: &Predictions<'_>| (matrix_dims(of.hidden), matrix_dims(of.output));
    let (((m, d), (vocab, by)), ((t_m, t_d), (t_vocab, t_by))) = (shape(student), shape(teacher));
    if (m, vocab) != (t_m, t_vocab) || (d, t_d) != (by, t_by) || !(0.0..=1.0).contains(&beta) {
        let detail = format!(
            "hidden {:?} and output {:?} of the student, {:?} and {:?} of the teacher, beta {beta}",
            student.hidden.shape(),
            student.output.shape(),
            teacher.hidden.shape(),
            teacher.output.shape()
        );
        return Err(Error::Shape { op: "divergence", detail });
    }
    Ok((m, vocab))
}

/// Computes the divergence that `beta`, from 0 to 1, selects between two models' distributions at the same rows. Both have the same
/// vocabulary. The student's statistics are those of [`logprob::forward`] for the same predictions over the whole vocabulary.
///
/// # Errors
/// If sizes differ, or the tensors are on a device.
pub fn forward(student: Predictions<'_>, stats: &logprob::TokenStats, teacher: Predictions<'_>, beta: f64) -> Result<Divergence> {
    let (m, vocab) = check(&student, &teacher, beta)?;
    if stats.log_sum.len() != m {
        let detail = format!("statistics of {} rows for {m} predictions", stats.log_sum.len());
        return Err(Error::Shape { op: "divergence", detail });
    }
    // The normaliser does not depend on the target.
    let teacher_log_sums = logprob::forward(teacher.hidden, teacher.output, &vec![0; m], teacher.scale, None)?.log_sum;
    let kind = DivergenceKind::new(beta);
    let mut divergence = Divergence {
        kind,
        values: vec![0.0; m],
        student_log_sums: stats.log_sum.clone(),
        teacher_log_sums,
        of_student: vec![0.0; m],
    };
    let (mut values, mut of_student) = (vec![0f64; m], vec![0f64; m]);
    let (mut of_s, mut of_t) = (student.logits()?, teacher.logits()?);
    for tile in LogitTile::all(m, vocab) {
        let rows = DivergenceRows::new(&tile, &divergence, None);
        let ((s, _), (t, _)) = (of_s.tile_logits(&tile), of_t.tile_logits(&tile));
        let size = TOKENS_PER_TASK * tile.line();
        let parts = s.par_chunks(size).zip(t.par_chunks(size)).map(|(s, t)| rows.sums(s, t));
        for (value, own) in parts.collect::<Vec<_>>() {
            values[tile.rows.clone()].iter_mut().zip(value).for_each(|(sum, part)| *sum += f64::from(part));
            of_student[tile.rows.clone()].iter_mut().zip(own).for_each(|(sum, part)| *sum += f64::from(part));
        }
    }
    divergence.values = values.into_iter().map(|value| value as f32).collect();
    divergence.of_student = of_student.into_iter().map(|value| value as f32).collect();
    Ok(divergence)
}

impl Divergence {
    /// Returns the divergences in nats, one per row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the gradient of the student's hidden states, `[M, D]`, and adds that of its output matrix to the f32 `d_output`, if given.
    /// `d_values` are the loss's derivatives with respect to the divergences. The predictions are those of the forward pass.
    ///
    /// # Errors
    /// If sizes differ, or the tensors are on a device.
    pub fn backward(
        &self,
        student: Predictions<'_>,
        teacher: Predictions<'_>,
        d_values: &[f32],
        d_output: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (m, vocab) = check(&student, &teacher, 0.0)?;
        if d_values.len() != m || self.values.len() != m || d_output.is_some_and(|d| d.shape() != student.output.shape()) {
            return Err(Error::Shape {
                op: "divergence backward",
                detail: format!("{} derivatives for {m} rows", d_values.len()),
            });
        }
        let d = matrix_dims(student.hidden).1;
        let hidden = read(student.hidden)?;
        let mut d_hidden = vec![0f32; m * d];
        let (mut of_s, mut of_t) = (student.logits()?, teacher.logits()?);
        let mut tiles_backward = |d_output: Option<&mut [f32]>| {
            let hidden = MatrixView::new(&hidden, m, d);
            let mut gradients = LogitGradients { hidden, d_hidden: &mut d_hidden, d_output, scale: student.scale };
            for tile in LogitTile::all(m, vocab) {
                let rows = DivergenceRows::new(&tile, self, Some(d_values));
                let ((s, output), (t, _)) = (of_s.tile_logits(&tile), of_t.tile_logits(&tile));
                let slopes = student.scale.slopes(s);
                let size = TOKENS_PER_TASK * tile.line();
                s.par_chunks_mut(size).zip(t.par_chunks(size)).for_each(|(s, t)| rows.gradients(s, t));
                gradients.add(&tile, s, slopes, output);
            }
        };
        match d_output {
            Some(d_output) => write(d_output, |d_output| tiles_backward(Some(d_output)))?,
            None => tiles_backward(None),
        }
        tensor(d_hidden, (m, d))
    }
}

/// Values of a tile's rows, padded like its lines.
struct DivergenceRows {
    kind: DivergenceKind,
    student_log_sums: Vec<f32>,
    teacher_log_sums: Vec<f32>,
    of_student: Vec<f32>,
    d_values: Vec<f32>,
}

impl DivergenceRows {
    fn new(tile: &LogitTile, divergence: &Divergence, d_values: Option<&[f32]>) -> Self {
        let padded = |values: &[f32]| {
            let mut values = values[tile.rows.clone()].to_vec();
            values.resize(tile.line(), 0.0);
            values
        };
        Self {
            kind: divergence.kind,
            student_log_sums: padded(&divergence.student_log_sums),
            teacher_log_sums: padded(&divergence.teacher_log_sums),
            of_student: padded(&divergence.of_student),
            d_values: d_values.map(padded).unwrap_or_default(),
        }
    }

    /// Returns the terms that some lines of both models' logits add to each row's divergence, and to that of the student alone.
    fn sums(&self, student: &[f32], teacher: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let line = self.student_log_sums.len();
        let (mut values, mut own) = (vec![0f32; line], vec![0f32; line]);
        let sums = (values.as_chunks_mut::<LANES>().0, own.as_chunks_mut::<LANES>().0);
        match self.kind {
            DivergenceKind::Forward => self.each(student, teacher, sums, |ln_p, ln_q| (weighted(exp(ln_q), ln_q - ln_p), 0.0)),
            DivergenceKind::Reverse => self.each(student, teacher, sums, |ln_p, ln_q| {
                let term = weighted(exp(ln_p), ln_p - ln_q);
                (term, term)
            }),
            DivergenceKind::Mixed { beta, ln_student, ln_teacher } => self.each(student, teacher, sums, |ln_p, ln_q| {
                let ln_m = ln_mixture(ln_p + ln_student, ln_q + ln_teacher);
                let own = weighted(exp(ln_p), ln_p - ln_m);
                (beta * weighted(exp(ln_q), ln_q - ln_m) + (1.0 - beta) * own, own)
            }),
        }
        (values, own)
    }

    /// Adds both terms of each pair of log-probabilities to its row's sums.
    #[inline(always)]
    fn each(
        &self,
        student: &[f32],
        teacher: &[f32],
        (values, own): (&mut [[f32; LANES]], &mut [[f32; LANES]]),
        terms: impl Fn(f32, f32) -> (f32, f32),
    ) {
        let line = self.student_log_sums.len();
        let log_sums = || self.student_log_sums.as_chunks::<LANES>().0.iter().zip(self.teacher_log_sums.as_chunks::<LANES>().0);
        wide!(for (s, t) in student.chunks_exact(line).zip(teacher.chunks_exact(line)) {
            let logits = s.as_chunks::<LANES>().0.iter().zip(t.as_chunks::<LANES>().0);
            let sums = values.iter_mut().zip(own.iter_mut());
            for (((value, own), (s, t)), (s_log_sum, t_log_sum)) in sums.zip(logits).zip(log_sums()) {
                for lane in 0..LANES {
                    let (term, of_own) = terms(s[lane] - s_log_sum[lane], t[lane] - t_log_sum[lane]);
                    value[lane] += term;
                    own[lane] += of_own;
                }
            }
        });
    }

    /// Replaces some lines of the student's logits with the loss's derivatives with respect to them.
    fn gradients(&self, student: &mut [f32], teacher: &[f32]) {
        match self.kind {
            DivergenceKind::Forward => self.replace(student, teacher, |ln_p, ln_q, _| exp(ln_p) - exp(ln_q)),
            DivergenceKind::Reverse => self.replace(student, teacher, |ln_p, ln_q, own| weighted(exp(ln_p), ln_p - ln_q - own)),
            DivergenceKind::Mixed { beta, ln_student, ln_teacher } => self.replace(student, teacher, |ln_p, ln_q, own| {
                let ln_m = ln_mixture(ln_p + ln_student, ln_q + ln_teacher);
                (1.0 - beta) * weighted(exp(ln_p), ln_p - ln_m - own)
            }),
        }
    }

    /// Replaces each of the student's logits with a slope times its row's derivative. The slope depends on both log-probabilities and the
    /// student's divergence.
    #[inline(always)]
    fn replace(&self, student: &mut [f32], teacher: &[f32], slope: impl Fn(f32, f32, f32) -> f32) {
        let line = self.student_log_sums.len();
        let log_sums = || self.student_log_sums.as_chunks::<LANES>().0.iter().zip(self.teacher_log_sums.as_chunks::<LANES>().0);
        let rows = || self.of_student.as_chunks::<LANES>().0.iter().zip(self.d_values.as_chunks::<LANES>().0);
        wide!(for (s, t) in student.chunks_exact_mut(line).zip(teacher.chunks_exact(line)) {
            let logits = s.as_chunks_mut::<LANES>().0.iter_mut().zip(t.as_chunks::<LANES>().0);
            for (((s, t), (s_log_sum, t_log_sum)), (own, d)) in logits.zip(log_sums()).zip(rows()) {
                for lane in 0..LANES {
                    s[lane] = d[lane] * slope(s[lane] - s_log_sum[lane], t[lane] - t_log_sum[lane], own[lane]);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiles::{ROWS, TOKENS};
    use crate::{Precision, to_vec};
    use candle_core::{DType, Device};

    const BETAS: [f64; 4] = [0.0, 0.3, 0.5, 1.0];
    const SCALES: [LogitScale; 2] = [
        LogitScale { temperature: 0.7, divisor: 1.0, cap: None, precision: Precision::F32 },
        LogitScale { temperature: 1.3, divisor: 1.5, cap: Some(2.5), precision: Precision::F32 },
    ];

    fn values(n: usize, seed: u32, scale: f32) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            scale * ((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    fn matrix(values: &[f32], cols: usize) -> Tensor {
        Tensor::from_vec(values.to_vec(), (values.len() / cols, cols), &Device::Cpu).unwrap()
    }

    fn close(what: &str, got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len(), "{what}");
        let largest = want.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((f64::from(*got) - want).abs() < 1e-5 * largest, "{what}, value {i}: {got} instead of {want}");
        }
    }

    /// Logits of a row in double precision.
    fn logits(h: &[f32], w: &[f32], scale: LogitScale) -> Vec<f64> {
        let bound = |z: f64| scale.cap.map_or(z, |cap| f64::from(cap) * (z / f64::from(cap)).tanh());
        let product = |w: &[f32]| h.iter().zip(w).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        w.chunks(h.len()).map(|w| bound(product(w) / f64::from(scale.divisor)) / f64::from(scale.temperature)).collect()
    }

    fn log_softmax(z: &[f64]) -> Vec<f64> {
        let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let ln_sum = top + z.iter().map(|z| (z - top).exp()).sum::<f64>().ln();
        z.iter().map(|z| z - ln_sum).collect()
    }

    /// Computes the definition over complete rows.
    fn naive(p: &[f64], q: &[f64], beta: f64) -> f64 {
        let kl = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a.exp() * (a - b)).sum::<f64>();
        if beta == 0.0 {
            return kl(q, p);
        }
        if beta == 1.0 {
            return kl(p, q);
        }
        let m: Vec<f64> = p.iter().zip(q).map(|(p, q)| ((1.0 - beta) * p.exp() + beta * q.exp()).ln()).collect();
        beta * kl(q, &m) + (1.0 - beta) * kl(p, &m)
    }

    struct DivergenceCase {
        h: [Vec<f32>; 2],
        w: [Vec<f32>; 2],
        d: [usize; 2],
        scales: [LogitScale; 2],
    }

    impl DivergenceCase {
        fn new(m: usize, vocab: usize, scales: [LogitScale; 2]) -> Self {
            let d = [5, 8];
            let of = |which: usize, rows: usize, seed: u32| values(rows * d[which], seed, 1.5);
            Self { h: [of(0, m, 1), of(1, m, 2)], w: [of(0, vocab, 3), of(1, vocab, 4)], d, scales }
        }

        /// Divergences of rows whose student has these hidden states and output matrix.
        fn wanted(&self, h: &[f32], w: &[f32], beta: f64) -> Vec<f64> {
            let rows = h.chunks(self.d[0]).zip(self.h[1].chunks(self.d[1]));
            rows.map(|(h, t)| {
                let p = log_softmax(&logits(h, w, self.scales[0]));
                let q = log_softmax(&logits(t, &self.w[1], self.scales[1]));
                naive(&p, &q, beta)
            })
            .collect()
        }
    }

    fn run(case: &DivergenceCase, beta: f64, d_values: &[f32], dtype: DType) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let tensors: Vec<(Tensor, Tensor)> =
            (0..2).map(|i| (matrix(&case.h[i], case.d[i]), matrix(&case.w[i], case.d[i]).to_dtype(dtype).unwrap())).collect();
        let of = |i: usize| Predictions { hidden: &tensors[i].0, output: &tensors[i].1, scale: case.scales[i] };
        let targets = vec![0; d_values.len()];
        let stats = logprob::forward(of(0).hidden, of(0).output, &targets, case.scales[0], None).unwrap();
        let divergence = forward(of(0), &stats, of(1), beta).unwrap();
        let d_output = matrix(&vec![1.0; case.w[0].len()], case.d[0]);
        let d_hidden = divergence.backward(of(0), of(1), d_values, Some(&d_output)).unwrap();
        let frozen = divergence.backward(of(0), of(1), d_values, None).unwrap();
        let d_hidden = to_vec(&d_hidden).unwrap();
        assert_eq!(d_hidden, to_vec(&frozen).unwrap());
        (divergence.values, d_hidden, to_vec(&d_output).unwrap())
    }

    #[test]
    fn divergences_are_those_of_whole_rows_in_double_precision() {
        for (m, vocab) in [(1, 3), (7, 300), (3, TOKENS + 9), (ROWS + 3, 40)] {
            for (beta, scales) in BETAS.into_iter().flat_map(|b| [(b, SCALES), (b, [SCALES[1], SCALES[0]])]) {
                let case = DivergenceCase::new(m, vocab, scales);
                let (got, ..) = run(&case, beta, &vec![0.0; m], DType::F32);
                close(&format!("{m} rows, {vocab} tokens, beta {beta}"), &got, &case.wanted(&case.h[0], &case.w[0], beta));
            }
        }
    }

    #[test]
    fn gradients_are_the_slopes_of_the_definition() {
        let (m, vocab, step) = (3, 11, 1e-3f32);
        for (beta, scales) in BETAS.into_iter().flat_map(|b| [(b, SCALES), (b, [SCALES[1], SCALES[0]])]) {
            let case = DivergenceCase::new(m, vocab, scales);
            let d_values = values(m, 9, 1.0);
            let loss = |h: &[f32], w: &[f32]| -> f64 {
                case.wanted(h, w, beta).iter().zip(&d_values).map(|(value, d)| value * f64::from(*d)).sum()
            };
            let slopes = |of: &[f32], loss: &dyn Fn(&[f32]) -> f64| -> Vec<f64> {
                let moved = |i: usize, by: f32| {
                    let mut of = of.to_vec();
                    of[i] += by;
                    (f64::from(of[i]), loss(&of))
                };
                (0..of.len())
                    .map(|i| {
                        let ((high, up), (low, down)) = (moved(i, step), moved(i, -step));
                        (up - down) / (high - low)
                    })
                    .collect()
            };
            let (_, d_hidden, d_output) = run(&case, beta, &d_values, DType::F32);
            close(&format!("d hidden, beta {beta}"), &d_hidden, &slopes(&case.h[0], &|h| loss(h, &case.w[0])));
            // Gradients are added to the existing values.
            let own: Vec<f32> = d_output.iter().map(|d| d - 1.0).collect();
            let largest = own.iter().fold(0f32, |most, x| most.max(x.abs()));
            let want = slopes(&case.w[0], &|w| loss(&case.h[0], w));
            assert!(
                own.iter().zip(&want).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5 * f64::from(1.0 + largest)),
                "beta {beta}"
            );
        }
    }

    #[test]
    fn weights_in_bf16_give_the_bits_of_their_values_in_f32() {
        let mut case = DivergenceCase::new(5, TOKENS + 3, SCALES);
        for w in &mut case.w {
            w.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
        }
        let d_values = values(5, 9, 1.0);
        for beta in BETAS {
            assert!(run(&case, beta, &d_values, DType::F32) == run(&case, beta, &d_values, DType::BF16), "beta {beta}");
        }
    }

    #[test]
    fn equal_models_have_no_divergence_and_no_gradient() {
        let mut case = DivergenceCase::new(4, 500, [SCALES[0], SCALES[0]]);
        case.d = [5, 5];
        (case.h[1], case.w[1]) = (case.h[0].clone(), case.w[0].clone());
        for beta in BETAS {
            let (got, d_hidden, _) = run(&case, beta, &[1.0; 4], DType::F32);
            assert!(got.iter().chain(&d_hidden).all(|x| x.abs() < 1e-6), "beta {beta}: {got:?}");
        }
    }

    #[test]
    fn impossible_tokens_have_no_weight_and_what_does_not_fit_is_refused() {
        let (scale, ones) = (LogitScale::from(1.0), matrix(&[1.0], 1));
        let student = matrix(&[0.0, 0.0, -1e30], 1);
        let teacher = matrix(&[1.0, 0.0, -1e30], 1);
        let of = |output| Predictions { hidden: &ones, output, scale };
        let stats = logprob::forward(&ones, &student, &[0], scale, None).unwrap();
        for beta in BETAS {
            let divergence = forward(of(&student), &stats, of(&teacher), beta).unwrap();
            let q = [std::f64::consts::E.ln() - (std::f64::consts::E + 1.0).ln(), -(std::f64::consts::E + 1.0).ln()];
            close("divergence", divergence.values(), &[naive(&[0.5f64.ln(); 2], &q, beta)]);
            let d = to_vec(&divergence.backward(of(&student), of(&teacher), &[1.0], None).unwrap()).unwrap();
            assert!(d.iter().all(|d| d.is_finite()), "{d:?}");
        }
        let smaller = matrix(&[1.0, 2.0], 1);
        assert!(forward(of(&student), &stats, of(&smaller), 0.5).is_err());
        assert!(forward(of(&student), &stats, of(&teacher), 1.5).is_err());
    }
}
