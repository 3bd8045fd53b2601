//! A gated delta network between its projections (Yang et al. 2025, arXiv 2412.06464; Qwen 3.5): a short convolution of queries, keys and
//! values with SiLU, the gated delta rule, and a norm of each head, multiplied by SiLU of a gate.
//!
//! A token's correction rate is `beta = sigmoid(b)`, and its decay is `exp(-exp(A) softplus(a + dt))`.

use super::convolution::{Convolution, Taps};
use super::delta_backward::DeltaRuleGradients;
use super::delta_rule::DeltaHeads;
use super::math::{dot, exp, sigmoid};
use super::network_kind::{FinishGradients, NetworkGradient, NetworkKind, ReadGradients, RuleRows, add_columns, silu, softplus};
use super::simd::wide;
use super::slices::{ROWS_PER_TASK, read};
use super::{Error, Result};
use candle_core::Tensor;
use rayon::prelude::*;

/// Parameters of a network, excluding its projections.
#[derive(Clone, Copy, Debug)]
pub struct GatedDelta<'a> {
    /// Numbers and sizes of heads.
    pub heads: DeltaHeads,
    /// Kernel of the convolution, `[row_width, 1, K]`.
    pub kernel: &'a Tensor,
    /// `dt`, `[values]`.
    pub dt: &'a Tensor,
    /// `A`, `[values]`.
    pub a_log: &'a Tensor,
    /// Weight of the norm of each head, `[V]`.
    pub norm: &'a Tensor,
    /// Epsilon added to the mean square in the norm.
    pub eps: f64,
}

/// A network's parameters as operations read them.
pub(super) struct GatedDeltaParameters {
    heads: DeltaHeads,
    taps: Taps,
    dt: Vec<f32>,
    /// Decay rates, `-exp(A)`.
    rates: Vec<f32>,
    norm: Vec<f32>,
    eps: f64,
}

impl GatedDelta<'_> {
    /// Reads the parameters.
    pub(super) fn parsed(self) -> Result<GatedDeltaParameters> {
        let Self { heads, kernel, dt, a_log, norm, eps } = self;
        let taps = Taps::new(Convolution { weight: kernel, bias: None })?;
        let vectors = [(dt, heads.values), (a_log, heads.values), (norm, heads.value_dim)];
        let fits = taps.d == heads.row_width()
            && heads.values.is_multiple_of(heads.keys.max(1))
            && vectors.iter().all(|(t, n)| t.dims() == [*n]);
        if !fits {
            return Err(Error::shape("gated delta", format!("{heads:?} with a kernel {:?}", kernel.shape())));
        }
        let rates = read(a_log)?.iter().map(|a| -exp(*a)).collect();
        Ok(GatedDeltaParameters { heads, taps, dt: read(dt)?.to_vec(), rates, norm: read(norm)?.to_vec(), eps })
    }
}

impl GatedDeltaParameters {
    fn inverse_rms(&self, head: &[f32]) -> f32 {
        (1.0 / (f64::from(dot(head, head)) / head.len() as f64 + self.eps).sqrt()) as f32
    }
}

impl NetworkKind for GatedDeltaParameters {
    fn heads(&self) -> DeltaHeads {
        self.heads
    }

    fn taps(&self) -> &Taps {
        &self.taps
    }

    fn corrects(&self) -> bool {
        true
    }

    fn rule_rows(&self, mixed: Vec<f32>, small: &[&[f32]]) -> RuleRows {
        let (h, b, a) = (self.heads.values, small[0], small[1]);
        let decay = |(i, a): (usize, &f32)| self.rates[i % h] * softplus(a + self.dt[i % h]);
        let write_rates = b.iter().map(|b| sigmoid(*b)).collect();
        RuleRows { mixed, ordered: None, decays: a.iter().enumerate().map(decay).collect(), write_rates }
    }

    fn finish(&self, out: &mut [f32], _mixed: &[f32], gates: &[f32]) {
        let v = self.heads.value_dim;
        for (head, gates) in out.chunks_exact_mut(v).zip(gates.chunks_exact(v)) {
            let scale = self.inverse_rms(head);
            wide!(for ((x, w), gate) in head.iter_mut().zip(&self.norm).zip(gates) {
                *x *= scale * w * silu(*gate).0;
            });
        }
    }

    fn finish_backward(&self, mut heads: Vec<f32>, _given: &RuleRows, gates: &[f32], dy: &[f32]) -> FinishGradients {
        let (v, task) = (self.heads.value_dim, ROWS_PER_TASK * self.heads.value_width());
        let (mut d_gates, mut d_norm) = (vec![0f32; gates.len()], Vec::new());
        let all =
            heads.par_chunks_mut(task).zip(d_gates.par_chunks_mut(task)).zip(gates.par_chunks(task).zip(dy.par_chunks(task)));
        all.map(|((heads, d_gates), (gates, dys))| {
            let mut d_norm = vec![0f32; v];
            let each =
                heads.chunks_exact_mut(v).zip(d_gates.chunks_exact_mut(v)).zip(gates.chunks_exact(v).zip(dys.chunks_exact(v)));
            for ((head, d_gate), (gate, dy)) in each {
                let scale = self.inverse_rms(head);
                wide!({
                    let mut along = 0.0;
                    for i in 0..v {
                        let (active, slope) = silu(gate[i]);
                        let normed = head[i] * scale;
                        d_gate[i] = dy[i] * normed * self.norm[i] * slope;
                        d_norm[i] += dy[i] * active * normed;
                        along += dy[i] * active * self.norm[i] * head[i];
                    }
                    along *= scale * scale * scale / v as f32;
                    for i in 0..v {
                        head[i] = dy[i] * silu(gate[i]).0 * self.norm[i] * scale - head[i] * along;
                    }
                });
            }
            d_norm
        })
        .collect_into_vec(&mut d_norm);
        FinishGradients { heads, gates: d_gates, norm: d_norm.concat() }
    }

    fn read_backward(
        &self,
        given: &RuleRows,
        of_rule: DeltaRuleGradients,
        _finish: &FinishGradients,
        small: &[&[f32]],
        gradient: &NetworkGradient<'_>,
    ) -> Result<ReadGradients> {
        let h = self.heads.values;
        let d_b = of_rule.betas.iter().zip(&given.write_rates).map(|(d, beta)| d * beta * (1.0 - beta)).collect();
        let slope = |(i, (d, a)): (usize, (&f32, &f32))| d * self.rates[i % h] * sigmoid(a + self.dt[i % h]);
        let d_a: Vec<f32> = of_rule.decays.iter().zip(small[1]).enumerate().map(slope).collect();
        add_columns(gradient.dt, d_a.iter().copied())?;
        // A decay is proportional to `exp(A)`.
        add_columns(gradient.a_log, of_rule.decays.iter().zip(&given.decays).map(|(d, decay)| d * decay))?;
        Ok(ReadGradients { mixed: of_rule.rows, small: vec![d_b, d_a] })
    }
}
