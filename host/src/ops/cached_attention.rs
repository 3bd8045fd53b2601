//! Attention of one new token a sequence over cached keys and values, where sequences that
//! continue the same prompt share its cache and its matrix products.

use super::attention::Heads;
use super::cpu::{Shared, read, tensor};
use super::gemm::{Dst, Mat, matmul};
use super::math::{dot, exp, max, sum_by};
use super::{Error, Result, matrix_dims};
use candle_core::Tensor;
use gemm::Parallelism;
use rayon::prelude::*;
use std::ops::Range;

/// Keys and values of a prompt in one layer. Keys stand as `[K, C, P]`, so that scores are a
/// product of matrices that need no rearranging; values as `[P, K * C]`.
#[derive(Clone, Debug, Default)]
pub struct PromptCache {
    len: usize,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// Keys and values of a growing sequence in one layer, rows of `K * C` values.
#[derive(Clone, Debug, Default)]
pub struct SequenceCache {
    k: Vec<f32>,
    v: Vec<f32>,
}

fn check_rows(k: &Tensor, v: &Tensor, rows: &Range<usize>) -> Result<usize> {
    let (n, width) = matrix_dims(k);
    if rows.end > n || matrix_dims(v) != (n, width) {
        return Err(Error::Shape { op: "key/value cache", detail: format!("rows {rows:?} of {:?}", k.shape()) });
    }
    Ok(width)
}

impl PromptCache {
    /// From rows `rows` of packed `k, v: [N, K * C]`.
    pub fn new(k: &Tensor, v: &Tensor, rows: Range<usize>) -> Result<Self> {
        let width = check_rows(k, v, &rows)?;
        let (len, range) = (rows.len(), rows.start * width..rows.end * width);
        let keys = read(k)?;
        let keys = &keys[range.clone()];
        let mut turned = vec![0f32; keys.len()];
        for (position, row) in keys.chunks(width).enumerate() {
            for (dimension, &x) in row.iter().enumerate() {
                turned[dimension * len + position] = x;
            }
        }
        Ok(Self { len, k: turned, v: read(v)?[range].to_vec() })
    }
}

impl SequenceCache {
    /// Appends row `row` of packed `k, v: [N, K * C]`.
    pub fn push(&mut self, k: &Tensor, v: &Tensor, row: usize) -> Result<()> {
        let width = check_rows(k, v, &(row..row + 1))?;
        self.k.extend_from_slice(&read(k)?[row * width..(row + 1) * width]);
        self.v.extend_from_slice(&read(v)?[row * width..(row + 1) * width]);
        Ok(())
    }
}

/// Sequences that continue one prompt.
pub struct Group<'a> {
    /// The prompt's cache.
    pub prompt: &'a PromptCache,
    /// Row of the batch and own cache (the new token included) of each sequence.
    pub sequences: Vec<(usize, &'a SequenceCache)>,
}

/// `q: [B, H * C]` to the heads' outputs `[B, H * C]`. Every row of the batch is in one group.
pub fn forward(q: &Tensor, groups: &[Group<'_>], h: Heads) -> Result<Tensor> {
    let (b, width) = matrix_dims(q);
    let rows: usize = groups.iter().map(|g| g.sequences.len()).sum();
    if width != h.heads * h.head_dim || rows != b {
        return Err(Error::Shape { op: "cached attention", detail: format!("{:?} for {rows} sequences and {h:?}", q.shape()) });
    }
    let qs = read(q)?;
    let mut out = vec![0f32; b * width];
    let out_at = Shared::new(&mut out);
    let tasks: Vec<(&Group<'_>, usize)> = groups.iter().flat_map(|g| (0..h.kv_heads).map(move |kv| (g, kv))).collect();
    tasks.into_par_iter().for_each_init(Scratch::default, |scratch, (group, kv)| {
        scratch.attend(&qs, group, kv, h);
        let (c, per_kv) = (h.head_dim, h.per_kv());
        for (i, (row, _)) in group.sequences.iter().enumerate() {
            let from = &scratch.out[i * per_kv * c..(i + 1) * per_kv * c];
            // SAFETY: this sequence's heads of this key/value head belong to this task alone.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out_at.at(row * width + kv * per_kv * c), from.len()) };
        }
    });
    tensor(out, (b, width))
}

#[derive(Default)]
struct Scratch {
    q: Vec<f32>,
    /// Probabilities of the prompt's positions, `[heads, P]`.
    shared: Vec<f32>,
    /// Probabilities of own positions, head after head.
    own: Vec<f32>,
    out: Vec<f32>,
}

impl Scratch {
    /// Fills `self.out` with the outputs of key/value head `kv`'s query heads, sequence by
    /// sequence.
    fn attend(&mut self, qs: &[f32], group: &Group<'_>, kv: usize, h: Heads) {
        let (c, per_kv, width, kv_width) = (h.head_dim, h.per_kv(), h.heads * h.head_dim, h.kv_heads * h.head_dim);
        let (heads, prompt_len) = (group.sequences.len() * per_kv, group.prompt.len);
        self.q.clear();
        for (row, _) in &group.sequences {
            let at = row * width + kv * per_kv * c;
            self.q.extend_from_slice(&qs[at..at + per_kv * c]);
        }
        self.shared.resize(heads * prompt_len, 0.0);
        self.out.resize(heads * c, 0.0);
        let q = Mat::new(&self.q, heads, c);
        let k = Mat::new(&group.prompt.k[kv * c * prompt_len..], c, prompt_len);
        matmul(&mut self.shared, prompt_len, Dst::Replace, q, k, h.scale(), Parallelism::None);

        self.own.clear();
        for (i, (_, cache)) in group.sequences.iter().enumerate() {
            for index in i * per_kv..(i + 1) * per_kv {
                let q = &self.q[index * c..(index + 1) * c];
                let first = self.own.len();
                self.own.extend(cache.k.chunks(kv_width).map(|k| dot(q, &k[kv * c..][..c]) * h.scale()));
                normalise(&mut self.shared[index * prompt_len..(index + 1) * prompt_len], &mut self.own[first..]);
            }
        }

        let v = Mat::strided(&group.prompt.v[kv * c..], prompt_len, c, kv_width);
        matmul(&mut self.out, c, Dst::Replace, Mat::new(&self.shared, heads, prompt_len), v, 1.0, Parallelism::None);
        let mut probs = self.own.iter();
        for (index, out) in self.out.chunks_mut(c).enumerate() {
            let cache = group.sequences[index / per_kv].1;
            for (v, &p) in cache.v.chunks(kv_width).zip(&mut probs) {
                for (o, v) in out.iter_mut().zip(&v[kv * c..][..c]) {
                    *o += p * v;
                }
            }
        }
    }
}

/// Softmax over two runs of scores taken together.
fn normalise(a: &mut [f32], b: &mut [f32]) {
    let top = max(a).max(max(b));
    let mut sum = 0.0;
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
