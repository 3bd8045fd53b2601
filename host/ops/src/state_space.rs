//! A state space layer between its projections (Mamba 2; Dao and Gu 2024, arXiv 2405.21060; Granite 4, Nemotron-H, Falcon-H1): a short
//! convolution of values, keys and queries with SiLU, the rule of `delta_rule.rs` without corrections, a term proportional to the values, a
//! product with SiLU of a gate, and in most models a norm.
//!
//! A token's step size is `s = softplus(s' + dt)`, kept within limits. The token's decay is `exp(-exp(A) s)`, it writes `s` times its value,
//! and `D` times its value is added to what it reads. In the terms of the paper, keys are `B`, queries `C`, and values `x`.

use super::convolution::Convolution;
use super::delta_backward::DeltaRuleGradients;
use super::delta_rule::DeltaHeads;
use super::math::{dot, sigmoid};
use super::network_kind::{
    FinishGradients, NetworkGradient, NetworkKind, NetworkParameters, NetworkTensors, ReadGradients, RuleRows, add_columns, silu,
    softplus,
};
use super::simd::wide;
use super::slices::{ROWS_PER_TASK, read};
use super::{Error, Result};
use candle_core::Tensor;
use rayon::prelude::*;

/// Where a state space normalises its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// After the product with the gates.
    AfterGates,
    /// Before the product with the gates.
    BeforeGates,
    /// Nowhere: there is no norm.
    Absent,
}

/// Parameters of a state space layer, excluding its projections.
#[derive(Clone, Copy, Debug)]
pub struct StateSpace<'a> {
    /// Numbers and sizes of heads: key heads are the groups that share `B` and `C`, `[groups, K]`; value heads have a step size each.
    pub heads: DeltaHeads,
    /// The convolution of values, keys and queries, `[row_width, 1, K]`.
    pub convolution: Convolution<'a>,
    /// `dt`, `[values]`.
    pub dt: &'a Tensor,
    /// `A`, `[values]`.
    pub a_log: &'a Tensor,
    /// `D`, `[values]`.
    pub skip: &'a Tensor,
    /// Weight of the norm, `[value_width]`, if there is one. Each group of heads is normalised by itself.
    pub norm: Option<&'a Tensor>,
    /// Where the norm is.
    pub norm_place: NormPlace,
    /// Smallest and largest step size.
    pub limits: [f32; 2],
    /// Epsilon added to the mean square in the norm.
    pub eps: f64,
}

/// A state space's parameters as operations read them.
pub(super) struct StateSpaceParameters {
    common: NetworkParameters,
    skip: Vec<f32>,
    limits: [f32; 2],
    norm_place: NormPlace,
}

impl StateSpace<'_> {
    /// Reads the parameters.
    pub(super) fn parsed(self) -> Result<StateSpaceParameters> {
        let Self { heads, convolution, dt, a_log, skip, norm, norm_place, limits, eps } = self;
        if skip.dims() != [heads.values] || norm.is_some() == (norm_place == NormPlace::Absent) {
            return Err(Error::shape(
                "state space",
                format!("{heads:?} with D of {:?} and a norm: {norm_place:?}", skip.shape()),
            ));
        }
        let tensors = NetworkTensors { heads, convolution, dt, a_log, norm, eps };
        let common = NetworkParameters::new(tensors, heads.value_width())?;
        Ok(StateSpaceParameters { common, skip: read(skip)?.to_vec(), limits, norm_place })
    }
}

impl StateSpaceParameters {
    /// Returns the width of the part of a row that is normalised together.
    fn group(&self) -> usize {
        self.common.heads.value_width() / self.common.heads.keys
    }

    /// Returns the factor `D` of a column of the result.
    fn skip_of(&self, column: usize) -> f32 {
        self.skip[column / self.common.heads.value_dim]
    }

    /// Adds the term of the values to the rule's outputs of a token.
    fn add_skip(&self, out: &mut [f32], mixed: &[f32]) {
        let v = self.common.heads.value_dim;
        for ((out, x), skip) in out.chunks_exact_mut(v).zip(mixed.chunks_exact(v)).zip(&self.skip) {
            wide!(out.iter_mut().zip(x).for_each(|(out, x)| *out = skip.mul_add(*x, *out)));
        }
    }

    /// Replaces the rule's outputs of a token, with the term of the values, with their gradient. Writes those of the gates, and adds those of
    /// the norm.
    fn row_backward(&self, heads: &mut [f32], d_gates: &mut [f32], d_norm: &mut [f32], gates: &[f32], dy: &[f32]) {
        if self.norm_place == NormPlace::Absent {
            wide!(for i in 0..heads.len() {
                let (active, slope) = silu(gates[i]);
                d_gates[i] = dy[i] * heads[i] * slope;
                heads[i] = dy[i] * active;
            });
            return;
        }
        let group = self.group();
        for start in (0..heads.len()).step_by(group) {
            let own = start..start + group;
            let (heads, d_gates, d_norm) = (&mut heads[own.clone()], &mut d_gates[own.clone()], &mut d_norm[own.clone()]);
            let (gates, dy, norm) = (&gates[own.clone()], &dy[own.clone()], &self.common.norm[own]);
            match self.norm_place {
                NormPlace::BeforeGates => self.normed_backward(heads, d_gates, d_norm, (gates, dy, norm)),
                _ => self.gated_backward(heads, d_gates, d_norm, (gates, dy, norm)),
            }
        }
    }

    /// Computes [`StateSpaceParameters::row_backward`] of a group of heads whose products with the gates are normalised.
    fn gated_backward(
        &self,
        heads: &mut [f32],
        d_gates: &mut [f32],
        d_norm: &mut [f32],
        (gates, dy, norm): (&[f32], &[f32], &[f32]),
    ) {
        let group = heads.len();
        let mut gated = vec![0f32; group];
        wide!(for i in 0..group {
            gated[i] = heads[i] * silu(gates[i]).0;
        });
        let scale = self.common.inverse_rms(&gated);
        wide!({
            let mut along = 0.0;
            for i in 0..group {
                d_norm[i] += dy[i] * gated[i] * scale;
                along += dy[i] * norm[i] * gated[i];
            }
            along *= scale * scale * scale / group as f32;
            for i in 0..group {
                let (active, slope) = silu(gates[i]);
                let d = dy[i] * norm[i] * scale - gated[i] * along;
                d_gates[i] = d * heads[i] * slope;
                heads[i] = d * active;
            }
        });
    }

    /// Computes [`StateSpaceParameters::row_backward`] of a group of heads that are normalised before the product with the gates.
    fn normed_backward(
        &self,
        heads: &mut [f32],
        d_gates: &mut [f32],
        d_norm: &mut [f32],
        (gates, dy, norm): (&[f32], &[f32], &[f32]),
    ) {
        let group = heads.len();
        let scale = self.common.inverse_rms(heads);
        wide!({
            let mut along = 0.0;
            for i in 0..group {
                let (active, slope) = silu(gates[i]);
                let normed = heads[i] * scale;
                d_gates[i] = dy[i] * norm[i] * normed * slope;
                d_norm[i] += dy[i] * active * normed;
                along += dy[i] * active * norm[i] * heads[i];
            }
            along *= scale * scale * scale / group as f32;
            for i in 0..group {
                heads[i] = dy[i] * silu(gates[i]).0 * norm[i] * scale - heads[i] * along;
            }
        });
    }
}

impl NetworkKind for StateSpaceParameters {
    fn common(&self) -> &NetworkParameters {
        &self.common
    }

    fn corrects(&self) -> bool {
        false
    }

    fn rule_rows(&self, mixed: Vec<f32>, small: &[&[f32]]) -> RuleRows {
        let h = self.common.heads;
        let steps: Vec<f32> = small[0]
            .iter()
            .enumerate()
            .map(|(i, s)| softplus(s + self.common.dt[i % h.values]).clamp(self.limits[0], self.limits[1]))
            .collect();
        let decays = steps.iter().enumerate().map(|(i, step)| self.common.rates[i % h.values] * step).collect();
        let mut ordered = vec![0f32; mixed.len()];
        let rows = ordered.par_chunks_mut(h.row_width()).zip(mixed.par_chunks(h.row_width())).zip(steps.par_chunks(h.values));
        rows.for_each(|((to, from), steps)| {
            let (values, keys, queries) = parts(from, h);
            let (pair, written) = to.split_at_mut(2 * h.key_width());
            pair[..h.key_width()].copy_from_slice(queries);
            pair[h.key_width()..].copy_from_slice(keys);
            for (i, (to, x)) in written.iter_mut().zip(values).enumerate() {
                *to = steps[i / h.value_dim] * x;
            }
        });
        RuleRows { mixed, ordered: Some(ordered), decays, write_rates: steps }
    }

    fn finish(&self, out: &mut [f32], mixed: &[f32], gates: &[f32]) {
        self.add_skip(out, mixed);
        if self.norm_place != NormPlace::BeforeGates {
            wide!(out.iter_mut().zip(gates).for_each(|(x, gate)| *x *= silu(*gate).0));
        }
        if self.norm_place != NormPlace::Absent {
            let group = self.group();
            for (out, norm) in out.chunks_exact_mut(group).zip(self.common.norm.chunks_exact(group)) {
                let scale = self.common.inverse_rms(out);
                wide!(out.iter_mut().zip(norm).for_each(|(x, w)| *x *= scale * w));
            }
        }
        if self.norm_place == NormPlace::BeforeGates {
            wide!(out.iter_mut().zip(gates).for_each(|(x, gate)| *x *= silu(*gate).0));
        }
    }

    fn finish_backward(&self, mut heads: Vec<f32>, given: &RuleRows, gates: &[f32], dy: &[f32]) -> FinishGradients {
        let (h, width) = (self.common.heads, self.common.heads.value_width());
        let (mut d_gates, mut norm) = (vec![0f32; gates.len()], Vec::new());
        let task = ROWS_PER_TASK * width;
        let rows = heads.par_chunks_mut(task).zip(d_gates.par_chunks_mut(task));
        let rows = rows.zip(given.mixed.par_chunks(ROWS_PER_TASK * h.row_width()));
        rows.zip(gates.par_chunks(task).zip(dy.par_chunks(task)))
            .map(|(((heads, d_gates), mixed), (gates, dy))| {
                let mut d_norm = vec![0f32; width];
                for (row, heads) in heads.chunks_exact_mut(width).enumerate() {
                    let own = row * width..(row + 1) * width;
                    self.add_skip(heads, &mixed[row * h.row_width()..]);
                    self.row_backward(heads, &mut d_gates[own.clone()], &mut d_norm, &gates[own.clone()], &dy[own]);
                }
                d_norm
            })
            .collect_into_vec(&mut norm);
        FinishGradients { heads, gates: d_gates, norm: norm.concat() }
    }

    fn read_backward(
        &self,
        given: &RuleRows,
        of_rule: DeltaRuleGradients,
        finish: &FinishGradients,
        small: &[&[f32]],
        gradient: &NetworkGradient<'_>,
    ) -> Result<ReadGradients> {
        let (h, width) = (self.common.heads, self.common.heads.value_width());
        let (mut mixed, mut d_steps) = (vec![0f32; given.mixed.len()], of_rule.decays.clone());
        d_steps.iter_mut().enumerate().for_each(|(i, d)| *d *= self.common.rates[i % h.values]);
        let mut d_skip = vec![0f32; d_steps.len()];
        for (row, to) in mixed.chunks_exact_mut(h.row_width()).enumerate() {
            let of_row = row * h.row_width()..(row + 1) * h.row_width();
            let (from, x) = (&of_rule.rows[of_row.clone()], parts(&given.mixed[of_row], h).0);
            let d_out = &finish.heads[row * width..][..width];
            let (d_queries, rest) = from.split_at(h.key_width());
            let (d_keys, d_written) = rest.split_at(h.key_width());
            let (d_values, pair) = to.split_at_mut(width);
            pair[..h.key_width()].copy_from_slice(d_keys);
            pair[h.key_width()..].copy_from_slice(d_queries);
            for head in 0..h.values {
                let (at, own) = (row * h.values + head, head * h.value_dim..(head + 1) * h.value_dim);
                d_steps[at] += dot(&d_written[own.clone()], &x[own.clone()]);
                d_skip[at] = dot(&d_out[own.clone()], &x[own]);
            }
            for (i, d) in d_values.iter_mut().enumerate() {
                *d = given.write_rates[row * h.values + i / h.value_dim] * d_written[i] + self.skip_of(i) * d_out[i];
            }
        }
        let is_limited = |step: f32| step <= self.limits[0] || step >= self.limits[1];
        let d_small: Vec<f32> = d_steps
            .iter()
            .zip(&given.write_rates)
            .zip(small[0])
            .enumerate()
            .map(|(i, ((d, step), s))| if is_limited(*step) { 0.0 } else { d * sigmoid(s + self.common.dt[i % h.values]) })
            .collect();
        add_columns(gradient.dt, d_small.iter().copied())?;
        // A decay is proportional to `exp(A)`.
        add_columns(gradient.a_log, of_rule.decays.iter().zip(&given.decays).map(|(d, decay)| d * decay))?;
        add_columns(gradient.skip, d_skip.into_iter())?;
        Ok(ReadGradients { mixed, small: vec![d_small] })
    }
}

/// Splits a convolved row into values, keys and queries.
fn parts(row: &[f32], h: DeltaHeads) -> (&[f32], &[f32], &[f32]) {
    let (values, pair) = row.split_at(h.value_width());
    let (keys, queries) = pair.split_at(h.key_width());
    (values, keys, queries)
}
