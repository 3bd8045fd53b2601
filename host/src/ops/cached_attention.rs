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

/// Keys and values of consecutive tokens in one layer, rows of `K * C` values each.
#[derive(Clone, Debug, Default)]
pub struct KeyValues {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl KeyValues {
    /// Appends rows `rows` of packed `k, v: [N, K * C]`.
    pub fn append(&mut self, k: &Tensor, v: &Tensor, rows: std::ops::Range<usize>) -> Result<()> {
        let (n, width) = matrix_dims(k);
        if rows.end > n || matrix_dims(v) != (n, width) {
            return Err(Error::Shape { op: "key/value cache", detail: format!("rows {rows:?} of {:?}", k.shape()) });
        }
        let range = rows.start * width..rows.end * width;
        self.k.extend_from_slice(&read(k)?[range.clone()]);
        self.v.extend_from_slice(&read(v)?[range]);
        Ok(())
    }
}

/// Sequences that continue one prompt.
pub struct Group<'a> {
    /// The prompt's cache.
    pub prompt: &'a KeyValues,
    /// Row of the batch and own cache (the new token included) of each sequence.
    pub sequences: Vec<(usize, &'a KeyValues)>,
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
    shared: Vec<f32>,
    own: Vec<f32>,
    out: Vec<f32>,
}

impl Scratch {
    /// Fills `self.out` with the outputs of key/value head `kv`'s query heads, sequence by
    /// sequence.
    fn attend(&mut self, qs: &[f32], group: &Group<'_>, kv: usize, h: Heads) {
        let (c, per_kv, width, kv_width) = (h.head_dim, h.per_kv(), h.heads * h.head_dim, h.kv_heads * h.head_dim);
        let heads = group.sequences.len() * per_kv;
        self.q.clear();
        for (row, _) in &group.sequences {
            let at = row * width + kv * per_kv * c;
            self.q.extend_from_slice(&qs[at..at + per_kv * c]);
        }
        let prompt_len = group.prompt.k.len() / kv_width;
        self.shared.resize(heads * prompt_len, 0.0);
        self.out.resize(heads * c, 0.0);
        let q = Mat::new(&self.q, heads, c);
        if prompt_len > 0 {
            let k = Mat::strided(&group.prompt.k[kv * c..], prompt_len, c, kv_width);
            matmul(&mut self.shared, prompt_len, Dst::Replace, q, k.t(), h.scale(), Parallelism::None);
        }
        // Own scores and the normalisation; the prompt's probabilities stay in `shared`.
        let mut own_probs = Vec::with_capacity(heads);
        for (i, (_, cache)) in group.sequences.iter().enumerate() {
            let own_len = cache.k.len() / kv_width;
            for j in 0..per_kv {
                let index = i * per_kv + j;
                let q = &self.q[index * c..(index + 1) * c];
                self.own.clear();
                self.own.extend((0..own_len).map(|t| dot(q, &cache.k[t * kv_width + kv * c..][..c]) * h.scale()));
                let shared = &mut self.shared[index * prompt_len..(index + 1) * prompt_len];
                let top = max(shared).max(max(&self.own));
                for s in shared.iter_mut().chain(&mut self.own) {
                    *s = exp(*s - top);
                }
                let inverse = (sum_by(shared, |p| p) + sum_by(&self.own, |p| p)).recip();
                for s in shared.iter_mut().chain(&mut self.own) {
                    *s *= inverse;
                }
                own_probs.push(self.own.clone());
            }
        }
        if prompt_len > 0 {
            let v = Mat::strided(&group.prompt.v[kv * c..], prompt_len, c, kv_width);
            matmul(&mut self.out, c, Dst::Replace, Mat::new(&self.shared, heads, prompt_len), v, 1.0, Parallelism::None);
        } else {
            self.out.fill(0.0);
        }
        for (index, probs) in own_probs.iter().enumerate() {
            let cache = group.sequences[index / per_kv].1;
            let out = &mut self.out[index * c..(index + 1) * c];
            for (t, &p) in probs.iter().enumerate() {
                for (o, v) in out.iter_mut().zip(&cache.v[t * kv_width + kv * c..][..c]) {
                    *o += p * v;
                }
            }
        }
    }
}
