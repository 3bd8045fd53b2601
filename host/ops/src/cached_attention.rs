//! Attention of the new tokens of sequences, mostly one each, over cached keys and values. Sequences that continue the same prompt share
//! its cache and matrix products.

use super::attention::{AttentionConfig, Heads};
use super::caches::{PromptCache, SequenceCache};
use super::elementwise::to_vec;
use super::math::{exp, max, sum_by};
use super::simd::wide;
use super::slices::{SharedPointer, read, tensor};
use super::team::share;
use super::{Error, Result, matrix_dims, team};
use candle_core::Tensor;

/// Minimum number of query rows per task, if rows that continue a prompt are split.
const FEWEST_ROWS: usize = 6;

/// Maximum number of parts that rows are split into.
const MOST_PARTS: usize = 8;

/// A common multiple of all these numbers of parts.
const UNITS: usize = 840;

/// Rows of sequences that continue the same prompt.
pub struct SharedPromptGroup<'a> {
    /// The prompt's cache.
    pub prompt: &'a PromptCache,
    /// For each row of the batch: its index, the cache of its sequence, which includes all new tokens, and the number of the cache's
    /// positions that it sees, including its own.
    pub sequences: Vec<CachedSequenceRow<'a>>,
}

/// Computes the heads' outputs `[B, H * C]` from `q: [B, H * C]`. Every row of the batch is in exactly one group.
pub fn forward(q: &Tensor, groups: &[SharedPromptGroup<'_>], attention: AttentionConfig) -> Result<Tensor> {
    forward_with_sinks(q, groups, attention, None)
}

/// Computes the outputs of [`forward`] with an additional logit in the softmax of each head, `sinks: [H]`, if given.
pub fn forward_with_sinks(
    q: &Tensor,
    groups: &[SharedPromptGroup<'_>],
    attention: AttentionConfig,
    sinks: Option<&Tensor>,
) -> Result<Tensor> {
    let h = attention.heads;
    let sinks = sinks.map(to_vec).transpose()?;
    if let Some(sinks) = sinks.as_ref().filter(|sinks| sinks.len() != h.heads) {
        return Err(Error::Shape { op: "cached attention", detail: format!("{} sinks of {h:?}", sinks.len()) });
    }
    let (b, width) = matrix_dims(q);
    let rows: usize = groups.iter().map(|g| g.sequences.len()).sum();
    if width != h.heads * h.head_dim || rows != b {
        return Err(Error::Shape { op: "cached attention", detail: format!("{:?} for {rows} sequences and {h:?}", q.shape()) });
    }
    let qs = read(q)?;
    let mut out = vec![0f32; b * width];
    let out_at = SharedPointer::new(&mut out);
    let tasks = tasks(groups, h);
    team::for_each_part(tasks.len(), |task| {
        let ((prompt, sequences, kv), mut scratch) = (tasks[task], CachedAttentionScratch::default());
        let (c, per_kv) = (h.head_dim, h.per_kv());
        let sinks = sinks.as_ref().map(|sinks| &sinks[kv * per_kv..(kv + 1) * per_kv]);
        scratch.attend(&qs, (prompt, sequences), kv, (attention, sinks));
        for (i, (row, ..)) in sequences.iter().enumerate() {
            let from = &scratch.out[i * per_kv * c..(i + 1) * per_kv * c];
            // SAFETY: only this task writes this sequence's heads of this key/value head.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out_at.at(row * width + kv * per_kv * c), from.len()) };
        }
    });
    tensor(out, (b, width))
}

/// Maximum number of rows of a sequence that read its cache together.
const MOST_ROWS: usize = 32;

/// Splits rows by sequence.
fn runs<'a>(rows: &'a [CachedSequenceRow<'a>]) -> impl Iterator<Item = &'a [CachedSequenceRow<'a>]> {
    rows.chunk_by(|a, b| std::ptr::eq(a.1, b.1)).flat_map(|run| run.chunks(MOST_ROWS))
}

/// Returns the largest number of positions that one of these rows sees.
fn most_seen(run: &[CachedSequenceRow<'_>]) -> usize {
    run.iter().map(|(_, _, seen)| *seen).max().unwrap_or(0)
}

/// Index of a row in the batch, the cache of its sequence and the number of positions that it sees.
pub type CachedSequenceRow<'a> = (usize, &'a SequenceCache, usize);

/// Divides the work into tasks: rows that continue a prompt, and a key/value head. If threads would get unequal numbers of these, the rows
/// are split too.
fn tasks<'a>(groups: &'a [SharedPromptGroup<'a>], h: Heads) -> Vec<(&'a PromptCache, &'a [CachedSequenceRow<'a>], usize)> {
    let (whole, threads) = (groups.len() * h.kv_heads, team::threads());
    let rows = groups.iter().map(|g| g.sequences.len()).max().unwrap_or(0);
    let most = |rows: usize| (rows * h.per_kv() / FEWEST_ROWS).min(rows).clamp(1, MOST_PARTS);
    let longest = |parts: &usize| (whole * parts).div_ceil(threads) * (UNITS / parts);
    let parts = (1..=most(rows)).min_by_key(longest).unwrap_or(1);
    let of_group = |g: &'a SharedPromptGroup<'a>| {
        let parts = parts.min(most(g.sequences.len()));
        (0..parts).flat_map(move |part| {
            (0..h.kv_heads).map(move |kv| (g.prompt, &g.sequences[share(g.sequences.len(), part, parts)], kv))
        })
    };
    groups.iter().flat_map(of_group).collect()
}

#[derive(Default)]
struct CachedAttentionScratch {
    q: Vec<f32>,
    /// Probabilities of the prompt's positions, `[heads, P]`, padded.
    shared: Vec<f32>,
    /// Probabilities of the sequence's own positions, head by head.
    own: Vec<f32>,
    out: Vec<f32>,
}

impl CachedAttentionScratch {
    /// Fills `self.out` with the outputs of key/value head `kv`'s query heads, sequence by sequence.
    fn attend(
        &mut self,
        qs: &[f32],
        (prompt, sequences): (&PromptCache, &[CachedSequenceRow<'_>]),
        kv: usize,
        (attention, sinks): (AttentionConfig, Option<&[f32]>),
    ) {
        let h: Heads = attention.heads;
        let (c, per_kv, width, kv_width) = (h.head_dim, h.per_kv(), h.heads * h.head_dim, h.kv_heads * h.head_dim);
        let (heads, prompt_len) = (sequences.len() * per_kv, prompt.len());
        self.q.clear();
        for (row, ..) in sequences {
            let at = row * width + kv * per_kv * c;
            self.q.extend_from_slice(&qs[at..at + per_kv * c]);
        }
        let padded = prompt.padded();
        self.shared.resize(heads * padded, 0.0);
        self.out.resize(heads * c, 0.0);
        prompt.scores(&self.q, c, kv, attention.scale, &mut self.shared);

        // Rows of a sequence read its keys together; keys that a row does not see get no weight.
        let runs: Vec<&[CachedSequenceRow<'_>]> = runs(sequences).collect();
        self.own.clear();
        let mut q = &self.q[..];
        for run in &runs {
            let (of_run, rest) = q.split_at(run.len() * per_kv * c);
            run[0].1.scores(most_seen(run), (of_run, c), kv, kv_width, attention.scale, &mut self.own);
            q = rest;
        }
        let mut first = 0;
        let widths = runs.iter().flat_map(|run| std::iter::repeat_n(most_seen(run), run.len()));
        wide!(for (i, ((_, _, seen), width)) in sequences.iter().zip(widths).enumerate() {
            for index in i * per_kv..(i + 1) * per_kv {
                let (own, unseen) = self.own[first..first + width].split_at_mut(*seen);
                unseen.fill(0.0);
                let shared = &mut self.shared[index * padded..][..prompt_len];
                first += width;
                let hidden = attention.hidden(prompt_len + seen - 1);
                let (far, shared) = shared.split_at_mut(hidden.min(prompt_len));
                let (far_own, own) = own.split_at_mut(hidden.saturating_sub(prompt_len));
                far.fill(0.0);
                far_own.fill(0.0);
                attention.bound(shared);
                attention.bound(own);
                normalise(shared, own, sinks.map(|sinks| sinks[index % per_kv]));
            }
        });

        prompt.weighted(&self.shared, c, kv, &mut self.out);
        let (mut own, mut out) = (&self.own[..], &mut self.out[..]);
        for run in runs {
            let (rows, seen) = (run.len() * per_kv, most_seen(run));
            let (of_run, rest) = std::mem::take(&mut out).split_at_mut(rows * c);
            let together = if run.len() > 1 { rows } else { 1 };
            for (out, p) in of_run.chunks_mut(together * c).zip(own.chunks(together * seen.max(1))) {
                run[0].1.add_weighted(out, (p, seen), c, kv, kv_width);
            }
            (own, out) = (&own[rows * seen..], rest);
        }
    }
}

/// Replaces two runs of scores with the softmax over both together and over the sink, if there is one.
#[inline(always)]
fn normalise(a: &mut [f32], b: &mut [f32], sink: Option<f32>) {
    let top = max(a).max(max(b)).max(sink.unwrap_or(f32::NEG_INFINITY));
    let mut sum = sink.map_or(0.0, |sink| exp(sink - top));
    for run in [&mut *a, &mut *b] {
        for s in run.iter_mut() {
            *s = exp(*s - top);
        }
        sum += sum_by(run, |p| p);
    }
    let inverse = sum.recip();
    for run in [a, b] {
        for s in run {
            *s *= inverse;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;
    use crate::view::Precision;
    use half::bf16;

    /// Returns values as a cache stores them.
    fn held(t: &Tensor, precision: Precision) -> Vec<f32> {
        let round = |x: f32| if precision == Precision::Bf16 { bf16::from_f32(x).to_f32() } else { x };
        crate::to_vec(t).unwrap().into_iter().map(round).collect()
    }

    /// Computes attention of one query over rows of keys and values, in f64. For the first `rounded` rows, queries and weights are rounded
    /// to bf16.
    fn attended(q: &[f32], keys: &[&[f32]], values: &[&[f32]], scale: f32, rounded: usize) -> Vec<f64> {
        let round = |x: f32| bf16::from_f32(x).to_f32();
        let query = |i: usize| q.iter().map(move |x| f64::from(if i < rounded { round(*x) } else { *x }));
        let dot = |(i, k): (usize, &&[f32])| query(i).zip(*k).map(|(a, b)| a * f64::from(*b)).sum::<f64>();
        let weights: Vec<f64> = keys.iter().enumerate().map(|key| (dot(key) * f64::from(scale)).exp()).collect();
        let total: f64 = weights.iter().sum();
        let weight = |(i, w): (usize, &f64)| if i < rounded { f64::from(round((w / total) as f32)) } else { w / total };
        let of_place = |i: usize| weights.iter().enumerate().zip(values).map(|(w, v)| weight(w) * f64::from(v[i])).sum::<f64>();
        (0..q.len()).map(of_place).collect()
    }

    /// A prompt of some tokens and two sequences that continue it, with their own keys and values.
    type CachedCase = (Tensor, Tensor, PromptCache, Vec<(Tensor, Tensor, SequenceCache)>);

    fn cached(h: Heads, prompt: usize, own: [usize; 2], precision: Precision) -> CachedCase {
        let width = h.kv_heads * h.head_dim;
        let (pk, pv) = (random(&[prompt, width]), random(&[prompt, width]));
        let of_prompt = PromptCache::new(&pk, &pv, 0..prompt, h.head_dim, precision).unwrap();
        let sequence = |&n: &usize| {
            let (k, v) = (random(&[n, width]), random(&[n, width]));
            let mut cache = SequenceCache::with_capacity(4, width, precision);
            (0..n).for_each(|row| cache.push(&k, &v, row).unwrap());
            (k, v, cache)
        };
        (pk, pv, of_prompt, own.iter().map(sequence).collect())
    }

    #[test]
    fn new_tokens_attend_to_the_prompt_and_to_their_own_positions_as_cached() {
        // Heads that are a multiple of a block and not, more query heads for a key head than a tile has rows, and prompts of no and of many
        // blocks.
        for (heads, kv_heads, c, prompt, own) in [
            (4, 2, 64, 70, [1, 33]),
            (20, 2, 80, 5, [40, 2]),
            (3, 3, 16, 0, [3, 64]),
            (14, 2, 32, 64, [65, 1]),
            (6, 2, 32, 71, [1, 40]),
            (4, 4, 64, 1, [2, 3]),
            (2, 1, 32, 0, [1, 2]),
        ] {
            for precision in [Precision::F32, Precision::Bf16] {
                let shape = Heads { heads, kv_heads, head_dim: c };
                let attention = AttentionConfig { scale: 0.3, ..shape.into() };
                let (width, kv_width) = (heads * c, kv_heads * c);
                let (pk, pv, of_prompt, sequences) = cached(shape, prompt, own, precision);
                let q = random(&[2, width]);
                let rows = sequences.iter().enumerate().map(|(row, (.., cache))| (row, cache, cache.len())).collect();
                let group = SharedPromptGroup { prompt: &of_prompt, sequences: rows };
                let groups = [group];
                let outputs = || crate::to_vec(&forward(&q, &groups, attention).unwrap()).unwrap();
                let got = outputs();
                for threads in [2, 3, 8] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    assert_eq!(pool.install(|| team::with_team(outputs)), got, "{heads} {c} {prompt}: {threads} threads");
                }
                let qs = crate::to_vec(&q).unwrap();
                let [pk, pv] = [&pk, &pv].map(|t| held(t, precision));
                for (row, (k, v, _)) in sequences.iter().enumerate() {
                    let (k, v) = (held(k, precision), held(v, precision));
                    for head in 0..heads {
                        let kv = head / (heads / kv_heads) * c..(head / (heads / kv_heads) + 1) * c;
                        let of = |a: &'_ [f32], b: &'_ [f32]| -> Vec<Vec<f32>> {
                            a.chunks(kv_width).chain(b.chunks(kv_width)).map(|row| row[kv.clone()].to_vec()).collect()
                        };
                        let (keys, values) = (of(&pk, &k), of(&pv, &v));
                        let (keys, values): (Vec<&[f32]>, Vec<&[f32]>) =
                            (keys.iter().map(Vec::as_slice).collect(), values.iter().map(Vec::as_slice).collect());
                        let at = row * width + head * c;
                        let want = attended(
                            &qs[at..at + c],
                            &keys,
                            &values,
                            attention.scale,
                            if of_prompt.in_pairs() { prompt } else { 0 },
                        );
                        let tolerance = if of_prompt.in_pairs() { 1e-3 } else { 2e-5 };
                        for (got, want) in got[at..at + c].iter().zip(want) {
                            assert!(
                                (f64::from(*got) - want).abs() < tolerance,
                                "{heads} {c} {prompt}, {precision:?}: {got}, not {want}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_copied_or_truncated_cache_is_one_of_those_positions_alone() {
        let shape = Heads { heads: 4, kv_heads: 2, head_dim: 16 };
        let width = shape.kv_heads * shape.head_dim;
        for precision in [Precision::F32, Precision::Bf16] {
            let (k, v, q) = (random(&[90, width]), random(&[90, width]), random(&[1, shape.heads * shape.head_dim]));
            let cache_of = |rows: std::ops::Range<usize>, mut cache: SequenceCache| {
                rows.for_each(|row| cache.push(&k, &v, row).unwrap());
                cache
            };
            let empty = || SequenceCache::with_capacity(8, width, precision);
            let attended = |cache: &SequenceCache| {
                let prompt = PromptCache::default();
                let group = SharedPromptGroup { prompt: &prompt, sequences: vec![(0, cache, cache.len())] };
                crate::to_vec(&forward(&q, &[group], AttentionConfig { scale: 0.3, ..shape.into() }).unwrap()).unwrap()
            };
            let whole = cache_of(0..80, empty());
            for length in [0, 1, 31, 32, 33, 64, 80, 99] {
                let alone = cache_of(0..length.min(80), empty());
                let mut truncated = whole.clone();
                truncated.truncate(length);
                for cache in [whole.prefix(length, 100), truncated] {
                    assert_eq!((cache.len(), cache.bytes()), (alone.len(), alone.bytes()), "{length}");
                    // Positions are appended that differ from the truncated ones.
                    let [longer, wanted] = [cache, alone.clone()].map(|cache| cache_of(85..90, cache));
                    assert_eq!(attended(&longer), attended(&wanted), "{length}, {precision:?}");
                }
            }
        }
    }

    #[test]
    fn rows_of_a_sequence_give_the_same_bits_together_and_alone() {
        for (heads, kv_heads, c, prompt) in [(6, 2, 32, 0), (6, 2, 80, 7), (4, 4, 16, 0), (8, 1, 64, 40)] {
            for precision in [Precision::F32, Precision::Bf16] {
                let shape = Heads { heads, kv_heads, head_dim: c };
                let (_, _, of_prompt, sequences) = cached(shape, prompt, [75, 3], precision);
                let q = random(&[50, heads * c]);
                let attention = AttentionConfig { scale: 0.3, ..shape.into() };
                let cache = &sequences[0].2;
                let attended = |q: &Tensor, rows: Vec<CachedSequenceRow<'_>>| {
                    crate::to_vec(&forward(q, &[SharedPromptGroup { prompt: &of_prompt, sequences: rows }], attention).unwrap())
                        .unwrap()
                };
                let together = attended(&q, (0..50).map(|row| (row, cache, 26 + row)).collect());
                for (row, together) in together.chunks(heads * c).enumerate() {
                    let alone = attended(&q.narrow(0, row, 1).unwrap().contiguous().unwrap(), vec![(0, cache, 26 + row)]);
                    assert_eq!(together, alone, "{heads} {c} {precision:?}: row {row}");
                }
            }
        }
    }
}
