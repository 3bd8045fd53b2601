//! The gradient of the gated delta rule, with and without corrections (`delta_rule.rs`).

use super::delta_rule::{ChunkCorrection, DeltaChunk, DeltaHeads, DeltaRuleInputs, EPSILON, decay_factor, product, subtract};
use super::forest::Forest;
use super::gemm::WriteMode;
use super::math::dot;
use super::simd::wide;
use super::slices::SharedPointer;
use super::view::MatrixView;
use rayon::prelude::*;
use std::ops::Range;

/// Gradients of the rule's inputs, in the same layout. Those of correction rates are zero if there are none.
pub(super) struct DeltaRuleGradients {
    pub rows: Vec<f32>,
    pub decays: Vec<f32>,
    pub betas: Vec<f32>,
}

/// A chunk of a segment, and the state from which it starts.
struct SegmentChunk {
    rows: Range<usize>,
    state: Vec<f32>,
    chunk: DeltaChunk,
}

/// Gradients of a chunk of one head.
struct ChunkGradients {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    decays: Vec<f32>,
    betas: Vec<f32>,
}

/// Replaces the gradient of a normalised head with that of the head.
#[inline(always)]
fn normalise_backward(x: &[f32], scale: f32, d: &mut [f32]) {
    let factor = (dot(x, x) + EPSILON).sqrt().recip();
    let along = dot(x, d) * factor * factor;
    d.iter_mut().zip(x).for_each(|(d, x)| *d = factor * scale * (*d - along * x));
}

#[inline(always)]
fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, x)| *to += x);
}

impl DeltaRuleInputs<'_> {
    /// Computes the gradients, given that of all outputs, `[N, value_width]`.
    pub(super) fn backward(&self, forest: &Forest, d_out: &[f32]) -> DeltaRuleGradients {
        let h = self.heads;
        let mut gradients = DeltaRuleGradients {
            rows: vec![0f32; self.rows.len()],
            decays: vec![0f32; self.decays.len()],
            betas: vec![0f32; self.decays.len()],
        };
        let to = [&mut gradients.rows, &mut gradients.decays, &mut gradients.betas].map(|all| SharedPointer::new(all));
        let trees = forest.trees();
        // One task owns a key head and its value heads in one tree, so sums need no locks and have a fixed order.
        let tasks: Vec<(&[usize], usize)> =
            trees.iter().flat_map(|tree| (0..h.keys).map(move |head| (tree.as_slice(), head))).collect();
        tasks.into_par_iter().for_each(|(tree, key_head)| {
            for head in h.value_heads(key_head) {
                self.tree_backward(forest, tree, (key_head, head), d_out, to);
            }
            let Some([of_q, of_k]) = self.scales() else { return };
            for row in tree.iter().flat_map(|index| forest.segments()[*index].range()) {
                let at = row * h.row_width() + key_head * h.key_dim;
                // SAFETY: only this task accesses this key head's places in the tree's rows.
                let [dq, dk] =
                    [at, at + h.key_width()].map(|at| unsafe { std::slice::from_raw_parts_mut(to[0].at(at), h.key_dim) });
                wide!({
                    normalise_backward(self.query(row, key_head), of_q, dq);
                    normalise_backward(self.key(row, key_head), of_k, dk);
                });
            }
        });
        gradients
    }

    /// Adds the gradients of a value head in a tree. Those of queries and keys are with respect to what the rule reads.
    fn tree_backward(
        &self,
        forest: &Forest,
        tree: &[usize],
        (key_head, head): (usize, usize),
        d_out: &[f32],
        [to_rows, to_decays, to_betas]: [SharedPointer; 3],
    ) {
        let h = self.heads;
        let mut ends: Vec<Vec<f32>> = vec![Vec::new(); forest.segments().len()];
        let mut started: Vec<Vec<SegmentChunk>> = Vec::with_capacity(tree.len());
        for &index in tree {
            let segment = forest.segments()[index];
            let mut state = segment.prefix.map_or_else(|| vec![0f32; h.state()], |prefix| ends[prefix].clone());
            let mut chunks = Vec::new();
            for rows in Self::chunks(segment.range()) {
                let chunk = self.chunk(rows.clone(), head, &state);
                let before = state.clone();
                chunk.advance(&mut state, h.value_dim);
                chunks.push(SegmentChunk { rows, state: before, chunk });
            }
            ends[index] = state;
            started.push(chunks);
        }
        let mut d_ends: Vec<Option<Vec<f32>>> = vec![None; forest.segments().len()];
        for (&index, chunks) in tree.iter().zip(started).rev() {
            let mut d_state = d_ends[index].take().unwrap_or_else(|| vec![0f32; h.state()]);
            for SegmentChunk { rows, state, chunk } in chunks.into_iter().rev() {
                let gradients = self.chunk_backward(&chunk, rows.clone(), head, (&state, &mut d_state), d_out);
                for (i, row) in rows.enumerate() {
                    let at = row * h.row_width() + key_head * h.key_dim;
                    let at_value = row * h.row_width() + 2 * h.key_width() + head * h.value_dim;
                    // SAFETY: only this task accesses the places of these heads in the tree's rows.
                    unsafe {
                        let part = |at: usize, size: usize| std::slice::from_raw_parts_mut(to_rows.at(at), size);
                        add(part(at, h.key_dim), &gradients.q[i * h.key_dim..]);
                        add(part(at + h.key_width(), h.key_dim), &gradients.k[i * h.key_dim..]);
                        add(part(at_value, h.value_dim), &gradients.v[i * h.value_dim..]);
                        *to_decays.at(row * h.values + head) = gradients.decays[i];
                        *to_betas.at(row * h.values + head) = gradients.betas[i];
                    }
                }
            }
            if let Some(prefix) = forest.segments()[index].prefix {
                match &mut d_ends[prefix] {
                    Some(sum) => add(sum, &d_state),
                    none => *none = Some(d_state),
                }
            }
        }
    }

    /// Returns the gradients of a chunk, and replaces that of the state after it with that of the state before it.
    fn chunk_backward(
        &self,
        chunk: &DeltaChunk,
        rows: Range<usize>,
        head: usize,
        (state, d_state): (&[f32], &mut Vec<f32>),
        d_out: &[f32],
    ) -> ChunkGradients {
        let DeltaHeads { key_dim, value_dim, .. } = self.heads;
        let (len, width) = (chunk.len, self.heads.value_width());
        let left: Vec<f32> = chunk.sums.iter().map(|sum| decay_factor(*sum)).collect();
        let of_row = |row: usize| &d_out[row * width + head * value_dim..][..value_dim];
        let d_out: Vec<f32> = rows.clone().flat_map(|row| of_row(row).iter().copied()).collect();
        // The terms nearly cancel, hence f64.
        let mut d_sums = vec![0f64; len];
        let read = state.iter().zip(&*d_state).map(|(x, d)| f64::from(*x) * f64::from(*d)).sum::<f64>();
        d_sums[len - 1] = f64::from(left[len - 1]) * read;
        let d_right = chunk.written_backward(&d_out, d_state, &mut d_sums);
        let scores = chunk.scores_backward(&d_out, &mut d_sums);

        // Reads of the state before the chunk by queries.
        let mut d_of_q = d_out;
        for (i, (d_of_q, left)) in d_of_q.chunks_exact_mut(value_dim).zip(&left).enumerate() {
            d_sums[i] += f64::from(left * dot(d_of_q, &chunk.of_q[i * value_dim..][..value_dim]));
            d_of_q.iter_mut().for_each(|x| *x *= left);
        }
        let (mut d_q, mut d_k) = (vec![0f32; len * key_dim], vec![0f32; len * key_dim]);
        let (keys, queries, before) =
            (chunk.matrix(&chunk.k), chunk.matrix(&chunk.q), MatrixView::new(state, key_dim, value_dim));
        let (scores, d_of_q) = (chunk.matrix(&scores), chunk.matrix(&d_of_q));
        product(&mut d_q, WriteMode::Replace, d_of_q, before.t());
        product(&mut d_q, WriteMode::Add, scores, keys);
        product(&mut d_k, WriteMode::Replace, scores.t(), queries);
        product(
            &mut d_k,
            WriteMode::Add,
            chunk.matrix(&chunk.decayed_to_end(&chunk.written)),
            MatrixView::new(d_state, key_dim, value_dim).t(),
        );
        d_state.iter_mut().for_each(|x| *x *= left[len - 1]);
        product(d_state, WriteMode::Add, queries.t(), d_of_q);
        let (d_v, betas) = match &chunk.correction {
            None => (d_right, vec![0.0; len]),
            Some(correction) => {
                let of_values = rows.map(|row| self.value(row, head)).collect::<Vec<_>>();
                let CorrectionGradients { system, of_k, values, betas } =
                    chunk.correction_backward(correction, d_right, &of_values, &mut d_sums);
                let (system, d_of_k) = (chunk.matrix(&system), chunk.matrix(&of_k));
                product(&mut d_k, WriteMode::Add, d_of_k, before.t());
                product(&mut d_k, WriteMode::Add, system, keys);
                product(&mut d_k, WriteMode::Add, system.t(), keys);
                product(d_state, WriteMode::Add, keys.t(), d_of_k);
                (values, betas)
            }
        };
        // A sum contains the decays of all tokens up to its own.
        for i in (1..len).rev() {
            d_sums[i - 1] += d_sums[i];
        }
        ChunkGradients { q: d_q, k: d_k, v: d_v, decays: d_sums.into_iter().map(|d| d as f32).collect(), betas }
    }
}

/// Gradients of what the corrections of a chunk read.
struct CorrectionGradients {
    /// Gradients of products of keys and keys, `[L, L]`.
    system: Vec<f32>,
    /// Gradients of the keys' reads of the state before the chunk, `[L, V]`.
    of_k: Vec<f32>,
    /// Gradients of the values, `[L, V]`.
    values: Vec<f32>,
    betas: Vec<f32>,
}

impl DeltaChunk {
    /// Returns the gradient of the right side of the triangular system, whose solution is the written values, or of the written values if
    /// there is no system, and adds those of the sums of decays. Later tokens of the chunk and the state after it read the written values.
    fn written_backward(&self, d_out: &[f32], d_state: &[f32], d_sums: &mut [f64]) -> Vec<f32> {
        let (len, value_dim) = (self.len, self.written.len() / self.len);
        let mut d_written = vec![0f32; self.written.len()];
        product(
            &mut d_written,
            WriteMode::Replace,
            self.matrix(&self.k),
            MatrixView::new(d_state, d_state.len() / value_dim, value_dim),
        );
        for (i, d_written) in d_written.chunks_exact_mut(value_dim).enumerate() {
            let left = decay_factor(self.last() - self.sums[i]);
            d_written.iter_mut().for_each(|x| *x *= left);
            let along = f64::from(dot(d_written, &self.written[i * value_dim..][..value_dim]));
            d_sums[i] -= along;
            d_sums[len - 1] += along;
        }
        product(&mut d_written, WriteMode::Add, self.matrix(&self.scores).t(), self.matrix(d_out));
        let Some(ChunkCorrection { betas, system, .. }) = &self.correction else { return d_written };
        // The system, transposed.
        for i in (1..len).rev() {
            let (before, own) = d_written.split_at_mut(i * value_dim);
            let own = &own[..value_dim];
            wide!(for (j, other) in before.chunks_exact_mut(value_dim).enumerate() {
                subtract(other, betas[i] * system[i * len + j], own);
            });
        }
        d_written
    }

    /// Returns the gradients of products of queries and keys, `[L, L]`, given those of the outputs, and adds those of the sums of decays.
    fn scores_backward(&self, d_out: &[f32], d_sums: &mut [f64]) -> Vec<f32> {
        let mut d_scores = vec![0f32; self.len * self.len];
        product(&mut d_scores, WriteMode::Replace, self.matrix(d_out), self.matrix(&self.written).t());
        for (i, line) in d_scores.chunks_exact_mut(self.len).enumerate() {
            for (j, d) in line.iter_mut().enumerate() {
                if j > i {
                    *d = 0.0;
                    continue;
                }
                let along = f64::from(*d * self.scores[i * self.len + j]);
                *d *= decay_factor(self.sums[i] - self.sums[j]);
                d_sums[i] += along;
                d_sums[j] -= along;
            }
        }
        d_scores
    }

    /// Returns the gradients through corrections, given those of the right side of the triangular system, and adds those of the sums of
    /// decays.
    fn correction_backward(
        &self,
        correction: &ChunkCorrection,
        d_right: Vec<f32>,
        values: &[&[f32]],
        d_sums: &mut [f64],
    ) -> CorrectionGradients {
        let (len, value_dim) = (self.len, d_right.len() / self.len);
        let mut gradients =
            CorrectionGradients { system: vec![0f32; len * len], of_k: d_right.clone(), values: d_right, betas: vec![0f32; len] };
        product(&mut gradients.system, WriteMode::Replace, self.matrix(&gradients.values), self.matrix(&self.written).t());
        for (i, line) in gradients.system.chunks_exact_mut(len).enumerate() {
            let beta = correction.betas[i];
            for (j, d) in line.iter_mut().enumerate() {
                if j >= i {
                    *d = 0.0;
                    continue;
                }
                let pair = correction.system[i * len + j];
                gradients.betas[i] -= *d * pair;
                *d *= -beta;
                let along = f64::from(*d * pair);
                *d *= decay_factor(self.sums[i] - self.sums[j]);
                d_sums[i] += along;
                d_sums[j] -= along;
            }
            let own = i * value_dim..(i + 1) * value_dim;
            let (left, of_k) = (decay_factor(self.sums[i]), &correction.of_k[own.clone()]);
            let d_right = &gradients.of_k[own.clone()];
            let corrected = left * dot(d_right, of_k);
            d_sums[i] -= f64::from(beta * corrected);
            gradients.betas[i] += dot(d_right, values[i]) - corrected;
            gradients.of_k[own.clone()].iter_mut().for_each(|x| *x *= -beta * left);
            gradients.values[own].iter_mut().for_each(|x| *x *= beta);
        }
        gradients
    }
}
