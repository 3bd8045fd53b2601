//! Divergences of two models' distributions over the most likely tokens of one of them, in place of the whole vocabulary (`divergence.rs`).
//! The tokens' probabilities are divided by their sum, or all other tokens together count as one more. Of a teacher, its log-probabilities
//! of these tokens are enough.
//!
//! The derivatives of a row's logits are computed with its value: those of the likely tokens are stored, and those of all others are a factor
//! times their probabilities.

use super::divergence::{DivergenceKind, Predictions, check};
use super::math::exp;
use super::simd::wide;
use super::slices::{read, tensor, write};
use super::tiles::{LANES, LogitGradients, LogitTile};
use super::view::MatrixView;
use super::{Error, Result, logprob, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Largest logarithm of the likely tokens' probability together; the others' would be zero otherwise.
const MOST_LIKELY: f64 = -1e-7;

/// Smallest logarithm of a listed token's probability. Servers say about -9999 for zero.
const LEAST_LOGP: f32 = -1e4;

/// Maximum sum of listed tokens' probabilities, which leaves room for rounding.
const MOST_PROBABILITY: f64 = 1.01;

/// The most likely tokens of a model, over which distributions are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopTokens {
    /// Number of tokens.
    pub count: usize,
    /// Whether all other tokens together count as one more. Otherwise probabilities are divided by their sum.
    pub with_rest: bool,
}

/// A token with its log-probability.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct LikelyToken {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logp: f32,
}

/// Divergence of two models' distributions over likely tokens at each of `M` rows, with its derivatives.
#[derive(Clone, Debug)]
pub struct TopDivergence {
    /// Divergences in nats, `[M]`.
    values: Vec<f32>,
    /// Tokens that are compared at each row, `K` of them.
    tokens: Vec<Vec<u32>>,
    /// Derivatives of each row's divergence with respect to the student's logits of these tokens, `K` of them.
    slopes: Vec<Vec<f32>>,
    /// Factor of the student's probabilities in the derivatives with respect to the logits of all other tokens, `[M]`.
    of_rest: Vec<f32>,
    /// Logarithms of the student's normalisers, `[M]`.
    log_sums: Vec<f32>,
}

/// The likeliest tokens of a row that have been seen.
#[derive(Clone)]
struct RowTop {
    count: usize,
    /// Logits with their tokens, at most twice as many as needed.
    seen: Vec<(f32, u32)>,
    /// Logit above which a token is one of the likeliest.
    least: f32,
}

impl RowTop {
    fn new(count: usize) -> Self {
        Self { count, seen: Vec::with_capacity(2 * count), least: f32::NEG_INFINITY }
    }

    fn push(&mut self, logit: f32, token: u32) {
        self.seen.push((logit, token));
        if self.seen.len() == 2 * self.count {
            self.shrink();
        }
    }

    /// Drops all but the likeliest tokens. Of equal ones, the first are kept.
    fn shrink(&mut self) {
        self.seen.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        self.seen.truncate(self.count);
        if let Some((logit, _)) = self.seen.last().filter(|_| self.seen.len() == self.count) {
            self.least = *logit;
        }
    }
}

/// Returns the likeliest tokens of each row, with their logits.
fn likeliest(of: Predictions<'_>, count: usize) -> Result<Vec<Vec<(f32, u32)>>> {
    let (m, vocab) = (matrix_dims(of.hidden).0, matrix_dims(of.output).0);
    let mut rows = vec![RowTop::new(count); m];
    let mut logits = of.logits()?;
    for tile in LogitTile::all(m, vocab) {
        let (line, first) = (tile.line(), tile.tokens.start as u32);
        let (z, _) = logits.tile_logits(&tile);
        rows[tile.rows.clone()].par_chunks_mut(LANES).enumerate().for_each(|(group, rows)| {
            for (token, z) in (first..).zip(z.chunks_exact(line)) {
                for (row, z) in rows.iter_mut().zip(&z[group * LANES..]) {
                    if *z > row.least {
                        row.push(*z, token);
                    }
                }
            }
        });
    }
    rows.par_iter_mut().for_each(RowTop::shrink);
    Ok(rows.into_iter().map(|row| row.seen).collect())
}

/// Returns the logits of these tokens, for each row.
fn logits_of(of: Predictions<'_>, tokens: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
    let vocab = matrix_dims(of.output).0;
    let mut found: Vec<Vec<f32>> = tokens.iter().map(|tokens| vec![0.0; tokens.len()]).collect();
    let mut logits = of.logits()?;
    for tile in LogitTile::all(tokens.len(), vocab) {
        let (z, _) = logits.tile_logits(&tile);
        for row in tile.rows.clone() {
            for (to, place) in places(&tile, &tokens[row], row) {
                found[row][to] = z[place];
            }
        }
    }
    Ok(found)
}

/// Returns the places in a tile of a row's tokens, with their positions among them.
fn places<'a>(tile: &'a LogitTile, tokens: &'a [u32], row: usize) -> impl Iterator<Item = (usize, usize)> + 'a {
    let own = tokens.iter().enumerate().filter(|(_, token)| tile.tokens.contains(&(**token as usize)));
    own.map(move |(to, token)| (to, (*token as usize - tile.tokens.start) * tile.line() + row - tile.rows.start))
}

/// Divergence of one row, and its derivatives.
struct RowDivergence {
    value: f64,
    slopes: Vec<f32>,
    of_rest: f64,
}

/// Returns the logarithm of a sum of exponentials.
fn ln_sum(all: &[f64]) -> f64 {
    let top = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + all.iter().map(|x| (x - top).exp()).sum::<f64>().ln()
}

/// Returns the logarithm of the probability that likely tokens leave to the others.
fn ln_rest(likely: &[f64]) -> f64 {
    (-ln_sum(likely).min(MOST_LIKELY).exp_m1()).ln()
}

/// Returns a row's divergence, and its derivatives with respect to the logarithms of the student's probabilities as free variables.
fn of_probabilities(ln_p: &[f64], ln_q: &[f64], kind: DivergenceKind) -> (f64, Vec<f64>) {
    let weighted = |ln: f64, x: f64| if ln.exp() > 0.0 { ln.exp() * x } else { 0.0 };
    let terms = ln_p.iter().zip(ln_q).map(|(&ln_p, &ln_q)| match kind {
        DivergenceKind::Forward => (weighted(ln_q, ln_q - ln_p), -ln_q.exp()),
        DivergenceKind::Reverse => (weighted(ln_p, ln_p - ln_q), weighted(ln_p, ln_p - ln_q + 1.0)),
        DivergenceKind::Mixed { beta, .. } => {
            let beta = f64::from(beta);
            let ln_m = (beta * ln_q.exp() + (1.0 - beta) * ln_p.exp()).ln();
            let own = (1.0 - beta) * weighted(ln_p, ln_p - ln_m);
            (beta * weighted(ln_q, ln_q - ln_m) + own, own)
        }
    });
    let (values, slopes): (Vec<f64>, Vec<f64>) = terms.unzip();
    (values.into_iter().sum(), slopes)
}

impl RowDivergence {
    /// Computes a row's divergence from the logarithms of the likely tokens' probabilities.
    fn new(ln_p: &[f64], ln_q: &[f64], kind: DivergenceKind, with_rest: bool) -> Self {
        if ln_p.is_empty() {
            return Self { value: 0.0, slopes: Vec::new(), of_rest: 0.0 };
        }
        if !with_rest {
            let normalised = |all: &[f64]| {
                let sum = ln_sum(all);
                all.iter().map(|ln| ln - sum).collect::<Vec<f64>>()
            };
            let (p, q) = (normalised(ln_p), normalised(ln_q));
            let (value, slopes) = of_probabilities(&p, &q, kind);
            let total: f64 = slopes.iter().sum();
            let slopes = slopes.iter().zip(&p).map(|(slope, ln)| (slope - ln.exp() * total) as f32).collect();
            return Self { value, slopes, of_rest: 0.0 };
        }
        let more = |all: &[f64]| [all, &[ln_rest(all)]].concat();
        let (value, mut all) = of_probabilities(&more(ln_p), &more(ln_q), kind);
        let likely = ln_sum(ln_p);
        // Where the rest is bounded, it is constant.
        let of_rest = all.pop().filter(|_| likely < MOST_LIKELY).unwrap_or_default();
        let total: f64 = all.iter().sum();
        let slopes = all.iter().zip(ln_p).map(|(slope, ln)| (slope - ln.exp() * (total + of_rest)) as f32).collect();
        let odds = likely.exp() / -likely.min(MOST_LIKELY).exp_m1();
        Self { value, slopes, of_rest: of_rest * odds - total }
    }
}

/// Computes the divergence that `beta`, from 0 to 1, selects between two models' distributions over the student's likeliest tokens at the
/// same rows; see [`super::divergence::forward`].
///
/// # Errors
/// If sizes differ, no token is compared, or the tensors are on a device.
pub fn forward(
    student: Predictions<'_>,
    stats: &logprob::TokenStats,
    teacher: Predictions<'_>,
    beta: f64,
    top: TopTokens,
) -> Result<TopDivergence> {
    let (m, vocab) = check(&student, &teacher, beta)?;
    let rows = RowComparison { stats, kind: DivergenceKind::new(beta), with_rest: top.with_rest, vocab };
    rows.check(m, top.count)?;
    let likely = likeliest(student, top.count.min(vocab))?;
    let tokens: Vec<Vec<u32>> = likely.iter().map(|row| row.iter().map(|(_, token)| *token).collect()).collect();
    let logits = likely.into_iter().map(|row| row.into_iter().map(|(logit, _)| logit).collect()).collect();
    let of_teacher = logits_of(teacher, &tokens)?;
    let sums = log_sums(teacher)?;
    let of_teacher = of_teacher.iter().zip(&sums).map(|(row, sum)| row.iter().map(|logit| ln(*logit, *sum)).collect());
    Ok(rows.compare(tokens, logits, of_teacher.collect()))
}

/// Computes the divergence over the tokens that a teacher listed with its log-probabilities, each at most once; see [`forward`]. A row
/// without tokens has no divergence.
///
/// # Errors
/// If there is not one list per row, a token is outside the student's vocabulary, or the tensors are on a device.
pub fn listed(
    student: Predictions<'_>,
    stats: &logprob::TokenStats,
    teacher: &[Vec<LikelyToken>],
    beta: f64,
    with_rest: bool,
) -> Result<TopDivergence> {
    let (m, vocab) = check(&student, &student, beta)?;
    let rows = RowComparison { stats, kind: DivergenceKind::new(beta), with_rest, vocab };
    rows.check(m, 1)?;
    let is_outside = |token: &LikelyToken| token.id as usize >= vocab;
    if teacher.len() != m || teacher.iter().flatten().any(is_outside) {
        let detail = format!("{} lists of tokens below {vocab} for {m} rows", teacher.len());
        return Err(Error::Shape { op: "divergence", detail });
    }
    let tokens: Vec<Vec<u32>> = teacher.iter().map(|row| row.iter().map(|token| token.id).collect()).collect();
    let logits = logits_of(student, &tokens)?;
    let of_teacher = teacher.iter().map(|row| row.iter().map(|token| f64::from(token.logp)).collect());
    Ok(rows.compare(tokens, logits, of_teacher.collect()))
}

/// Checks that tokens with their log-probabilities are a part of a distribution, each of them once. The error says what is wrong.
///
/// # Errors
/// If a logarithm is out of range, a token occurs twice, or the probabilities add up to more than 1.
pub fn check_listed(tokens: &[LikelyToken]) -> std::result::Result<(), String> {
    let is_logp = |logp: f32| (LEAST_LOGP..=MOST_PROBABILITY.ln() as f32).contains(&logp);
    if let Some(LikelyToken { id, logp }) = tokens.iter().find(|token| !is_logp(token.logp)) {
        return Err(format!("token {id} has {logp}, which is no log-probability: those are from {LEAST_LOGP} to 0"));
    }
    let mut ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
    ids.sort_unstable();
    if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("token {} occurs twice", twice[0]));
    }
    let sum: f64 = tokens.iter().map(|token| f64::from(token.logp).exp()).sum();
    if sum > MOST_PROBABILITY {
        return Err(format!("the probabilities of its tokens add up to {sum:.3}"));
    }
    Ok(())
}

/// Returns a model's likeliest tokens at each row, the likeliest first; all, if there are fewer than `count`.
///
/// # Errors
/// If the tensors are on a device.
pub fn likeliest_tokens(of: Predictions<'_>, count: usize) -> Result<Vec<Vec<LikelyToken>>> {
    let vocab = check(&of, &of, 0.0)?.1;
    let (likely, sums) = (likeliest(of, count.clamp(1, vocab))?, log_sums(of)?);
    let row = |(row, sum): (Vec<(f32, u32)>, f32)| {
        row.into_iter().map(|(logit, id)| LikelyToken { id, logp: ln(logit, sum) as f32 }).collect()
    };
    Ok(likely.into_iter().zip(sums).map(row).collect())
}

/// Returns the logarithm of a token's probability.
fn ln(logit: f32, log_sum: f32) -> f64 {
    f64::from(logit) - f64::from(log_sum)
}

/// Returns the logarithms of a model's normalisers.
fn log_sums(of: Predictions<'_>) -> Result<Vec<f32>> {
    let targets = vec![0; matrix_dims(of.hidden).0];
    Ok(logprob::forward(of.hidden, of.output, &targets, of.scale, None)?.log_sum)
}

/// How rows are compared.
struct RowComparison<'a> {
    /// Statistics of the student's predictions.
    stats: &'a logprob::TokenStats,
    kind: DivergenceKind,
    with_rest: bool,
    vocab: usize,
}

impl RowComparison<'_> {
    fn check(&self, rows: usize, count: usize) -> Result<()> {
        if self.stats.log_sum.len() == rows && count > 0 {
            return Ok(());
        }
        let detail = format!("statistics of {} rows for {rows} predictions of {count} tokens", self.stats.log_sum.len());
        Err(Error::Shape { op: "divergence", detail })
    }

    /// Compares the models at each row, by the student's logits and the logarithms of the teacher's probabilities of these tokens.
    fn compare(&self, tokens: Vec<Vec<u32>>, logits: Vec<Vec<f32>>, of_teacher: Vec<Vec<f64>>) -> TopDivergence {
        let rows = logits.par_iter().zip(&of_teacher).zip(&self.stats.log_sum).map(|((logits, ln_q), sum)| {
            let ln_p: Vec<f64> = logits.iter().map(|logit| ln(*logit, *sum)).collect();
            RowDivergence::new(&ln_p, ln_q, self.kind, self.with_rest && ln_p.len() < self.vocab)
        });
        let rows: Vec<RowDivergence> = rows.collect();
        TopDivergence {
            values: rows.iter().map(|row| row.value as f32).collect(),
            of_rest: rows.iter().map(|row| row.of_rest as f32).collect(),
            slopes: rows.into_iter().map(|row| row.slopes).collect(),
            tokens,
            log_sums: self.stats.log_sum.clone(),
        }
    }
}

impl TopDivergence {
    /// Returns the divergences in nats, one per row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the gradient of the student's hidden states, `[M, D]`, and adds that of its output matrix to the f32 `d_output`, if given; see
    /// [`super::divergence::Divergence::backward`].
    ///
    /// # Errors
    /// If sizes differ, or the tensors are on a device.
    pub fn backward(&self, student: Predictions<'_>, d_values: &[f32], d_output: Option<&Tensor>) -> Result<Tensor> {
        let (m, vocab) = check(&student, &student, 0.0)?;
        if d_values.len() != m || self.values.len() != m || d_output.is_some_and(|d| d.shape() != student.output.shape()) {
            let detail = format!("{} derivatives for {m} rows", d_values.len());
            return Err(Error::Shape { op: "divergence backward", detail });
        }
        let d = matrix_dims(student.hidden).1;
        let hidden = read(student.hidden)?;
        let mut d_hidden = vec![0f32; m * d];
        let mut logits = student.logits()?;
        let mut tiles_backward = |d_output: Option<&mut [f32]>| {
            let hidden = MatrixView::new(&hidden, m, d);
            let mut gradients = LogitGradients { hidden, d_hidden: &mut d_hidden, d_output, scale: student.scale };
            for tile in LogitTile::all(m, vocab) {
                let (z, output) = logits.tile_logits(&tile);
                let slopes = student.scale.slopes(z);
                self.replace(&tile, z, d_values);
                gradients.add(&tile, z, slopes, output);
            }
        };
        match d_output {
            Some(d_output) => write(d_output, |d_output| tiles_backward(Some(d_output)))?,
            None => tiles_backward(None),
        }
        tensor(d_hidden, (m, d))
    }

    /// Replaces a tile's logits with the loss's derivatives with respect to them.
    fn replace(&self, tile: &LogitTile, z: &mut [f32], d_values: &[f32]) {
        let line = tile.line();
        let padded = |of_row: &dyn Fn(usize) -> f32| {
            let mut values: Vec<f32> = tile.rows.clone().map(of_row).collect();
            values.resize(line, 0.0);
            values
        };
        let (factors, sums) = (padded(&|row| d_values[row] * self.of_rest[row]), padded(&|row| self.log_sums[row]));
        z.par_chunks_mut(line).for_each(|z| {
            wide!(for ((z, factor), sum) in z.iter_mut().zip(&factors).zip(&sums) {
                *z = if *factor == 0.0 { 0.0 } else { factor * exp(*z - sum) };
            });
        });
        for row in tile.rows.clone() {
            for (own, place) in places(tile, &self.tokens[row], row) {
                z[place] = d_values[row] * self.slopes[row][own];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiles::{LogitScale, ROWS, TOKENS};
    use crate::{Precision, to_vec};
    use candle_core::Device;

    const BETAS: [f64; 4] = [0.0, 0.3, 0.5, 1.0];
    const SCALE: LogitScale = LogitScale { temperature: 0.7, divisor: 1.3, cap: Some(2.5), precision: Precision::F32 };

    fn values(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            1.5 * ((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    fn matrix(values: &[f32], cols: usize) -> Tensor {
        Tensor::from_vec(values.to_vec(), (values.len() / cols, cols), &Device::Cpu).unwrap()
    }

    /// Log-probabilities of a row in double precision.
    fn log_softmax(h: &[f32], w: &[f32]) -> Vec<f64> {
        let product = |w: &[f32]| h.iter().zip(w).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        let z: Vec<f64> = w.chunks(h.len()).map(|w| 2.5 * (product(w) / 1.3 / 2.5).tanh() / 0.7).collect();
        let sum = ln_sum(&z);
        z.iter().map(|z| z - sum).collect()
    }

    /// Whose likeliest tokens are compared.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum TopOf {
        Student,
        Teacher,
    }

    /// The definition over a whole row, by sorting.
    fn defined(p: &[f64], q: &[f64], beta: f64, (top, of): (TopTokens, TopOf)) -> f64 {
        let mut order: Vec<usize> = (0..p.len()).collect();
        let sorted = if of == TopOf::Student { p } else { q };
        order.sort_by(|a, b| sorted[*b].total_cmp(&sorted[*a]));
        let chosen = |of: &[f64]| -> Vec<f64> {
            let likely: Vec<f64> = order[..top.count].iter().map(|i| of[*i].exp()).collect();
            let sum: f64 = likely.iter().sum();
            if top.with_rest { [likely, vec![1.0 - sum]].concat() } else { likely.iter().map(|x| x / sum).collect() }
        };
        let (p, q) = (chosen(p), chosen(q));
        let kl = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * (a / b).ln()).sum::<f64>();
        let m: Vec<f64> = p.iter().zip(&q).map(|(p, q)| (1.0 - beta) * p + beta * q).collect();
        match beta {
            0.0 => kl(&q, &p),
            1.0 => kl(&p, &q),
            _ => beta * kl(&q, &m) + (1.0 - beta) * kl(&p, &m),
        }
    }

    struct TopDivergenceCase {
        h: [Vec<f32>; 2],
        w: [Vec<f32>; 2],
    }

    const D: [usize; 2] = [5, 8];

    impl TopDivergenceCase {
        fn new(m: usize, vocab: usize) -> Self {
            Self { h: [values(m * D[0], 1), values(m * D[1], 2)], w: [values(vocab * D[0], 3), values(vocab * D[1], 4)] }
        }

        fn wanted(&self, h: &[f32], w: &[f32], beta: f64, top: (TopTokens, TopOf)) -> Vec<f64> {
            let rows = h.chunks(D[0]).zip(self.h[1].chunks(D[1]));
            rows.map(|(h, t)| defined(&log_softmax(h, w), &log_softmax(t, &self.w[1]), beta, top)).collect()
        }

        fn run(&self, beta: f64, (top, whose): (TopTokens, TopOf), d_values: &[f32]) -> [Vec<f32>; 3] {
            let tensors: Vec<(Tensor, Tensor)> = (0..2).map(|i| (matrix(&self.h[i], D[i]), matrix(&self.w[i], D[i]))).collect();
            let of = |i: usize| Predictions { hidden: &tensors[i].0, output: &tensors[i].1, scale: SCALE };
            let stats = logprob::forward(of(0).hidden, of(0).output, &vec![0; d_values.len()], SCALE, None).unwrap();
            let divergence = match whose {
                TopOf::Student => forward(of(0), &stats, of(1), beta, top),
                TopOf::Teacher => listed(of(0), &stats, &likeliest_tokens(of(1), top.count).unwrap(), beta, top.with_rest),
            };
            let divergence = divergence.unwrap();
            let d_output = matrix(&vec![0.0; self.w[0].len()], D[0]);
            let d_hidden = divergence.backward(of(0), d_values, Some(&d_output)).unwrap();
            [divergence.values, to_vec(&d_hidden).unwrap(), to_vec(&d_output).unwrap()]
        }
    }

    fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
        assert_eq!(got.len(), want.len(), "{what}");
        let largest = want.iter().fold(1e-2, |most: f64, x| most.max(x.abs()));
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((f64::from(*got) - want).abs() < tolerance * largest, "{what}, value {i}: {got} instead of {want}");
        }
    }

    /// Returns each combination of a divergence, whether the rest counts, and whose tokens are compared.
    fn variants() -> impl Iterator<Item = (f64, bool, TopOf)> {
        let of_beta = |beta| [false, true].map(|with_rest| [TopOf::Student, TopOf::Teacher].map(|of| (beta, with_rest, of)));
        BETAS.into_iter().flat_map(of_beta).flatten()
    }

    #[test]
    fn divergences_are_those_of_the_likeliest_tokens_of_whole_rows() {
        for (m, vocab, count) in [(1, 3, 1), (7, 300, 40), (3, TOKENS + 9, 100), (ROWS + 3, 40, 5), (2, 20, 19)] {
            for (beta, with_rest, of) in variants() {
                let (case, top) = (TopDivergenceCase::new(m, vocab), (TopTokens { count, with_rest }, of));
                let [got, ..] = case.run(beta, top, &vec![0.0; m]);
                let what = format!("{m} rows, {count} of {vocab} tokens of the {of:?}, beta {beta}, rest {with_rest}");
                close(&what, &got, &case.wanted(&case.h[0], &case.w[0], beta, top), 2e-5);
            }
        }
    }

    #[test]
    fn gradients_are_the_slopes_of_the_definition() {
        let (m, vocab, step) = (3, 11, 1e-3f32);
        for (beta, with_rest, of) in variants() {
            let (case, top, d_values) = (TopDivergenceCase::new(m, vocab), (TopTokens { count: 4, with_rest }, of), values(m, 9));
            let loss = |h: &[f32], w: &[f32]| -> f64 {
                case.wanted(h, w, beta, top).iter().zip(&d_values).map(|(value, d)| value * f64::from(*d)).sum()
            };
            let slopes = |of: &[f32], loss: &dyn Fn(&[f32]) -> f64| -> Vec<f64> {
                let moved = |i: usize, by: f32| {
                    let mut of = of.to_vec();
                    of[i] += by;
                    (f64::from(of[i]), loss(&of))
                };
                let slope = |i: usize| {
                    let ((high, up), (low, down)) = (moved(i, step), moved(i, -step));
                    (up - down) / (high - low)
                };
                (0..of.len()).map(slope).collect()
            };
            let [_, d_hidden, d_output] = case.run(beta, top, &d_values);
            let what = format!("beta {beta}, rest {with_rest}, tokens of the {of:?}");
            close(&format!("d hidden, {what}"), &d_hidden, &slopes(&case.h[0], &|h| loss(h, &case.w[0])), 1e-4);
            close(&format!("d output, {what}"), &d_output, &slopes(&case.w[0], &|w| loss(&case.h[0], w)), 1e-4);
        }
    }

    #[test]
    fn all_tokens_give_the_divergence_over_the_vocabulary_and_none_are_refused() {
        let case = TopDivergenceCase::new(4, 50);
        for beta in BETAS {
            let of = |count, with_rest, of| case.run(beta, (TopTokens { count, with_rest }, of), &[1.0; 4]);
            let whole = case.wanted(&case.h[0], &case.w[0], beta, (TopTokens { count: 50, with_rest: false }, TopOf::Student));
            for whose in [TopOf::Student, TopOf::Teacher] {
                for top in [of(50, false, whose), of(50, true, whose), of(1000, true, whose)] {
                    close(&format!("beta {beta}"), &top[0], &whole, 2e-5);
                }
            }
        }
        let (hidden, output) = (matrix(&case.h[0], D[0]), matrix(&case.w[0], D[0]));
        let of = Predictions { hidden: &hidden, output: &output, scale: SCALE };
        let stats = logprob::forward(&hidden, &output, &[0; 4], SCALE, None).unwrap();
        assert!(forward(of, &stats, of, 0.5, TopTokens { count: 0, with_rest: false }).is_err());
        assert!(forward(of, &stats, of, 1.5, TopTokens { count: 3, with_rest: false }).is_err());
    }

    #[test]
    fn rows_without_tokens_have_no_divergence_and_unknown_tokens_are_refused() {
        let case = TopDivergenceCase::new(3, 20);
        let (hidden, output) = (matrix(&case.h[0], D[0]), matrix(&case.w[0], D[0]));
        let of = Predictions { hidden: &hidden, output: &output, scale: SCALE };
        let stats = logprob::forward(&hidden, &output, &[0; 3], SCALE, None).unwrap();
        let mut teacher = likeliest_tokens(of, 4).unwrap();
        teacher.iter_mut().flatten().for_each(|token| token.logp -= 0.5);
        teacher[1].clear();
        for (beta, with_rest) in BETAS.into_iter().flat_map(|beta| [(beta, false), (beta, true)]) {
            let divergence = listed(of, &stats, &teacher, beta, with_rest).unwrap();
            let values = divergence.values();
            assert_eq!((values[1], values[0] > 1e-4), (0.0, with_rest), "beta {beta}: {values:?}");
            let d_hidden = to_vec(&divergence.backward(of, &[1.0; 3], None).unwrap()).unwrap();
            assert!(d_hidden[D[0]..2 * D[0]].iter().all(|d| *d == 0.0) && d_hidden.iter().all(|d| d.is_finite()));
        }
        assert!(listed(of, &stats, &teacher[..2], 0.5, true).is_err());
        teacher[2][0].id = 20;
        assert!(listed(of, &stats, &teacher, 0.5, true).is_err());
    }
}
