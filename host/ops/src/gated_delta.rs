//! A gated delta network between its projections (Yang et al. 2025, arXiv 2412.06464; Qwen 3.5): a short convolution of queries, keys and
//! values with SiLU, the gated delta rule, and a norm of each head, multiplied by SiLU of a gate.
//!
//! A token's correction rate is `beta = sigmoid(b)`, and its decay is `exp(-exp(A) softplus(a + dt))`.

use super::Result;
use super::convolution::Convolution;
use super::delta_backward::DeltaRuleGradients;
use super::delta_rule::DeltaHeads;
use super::math::sigmoid;
use super::network_kind::{
    FinishGradients, NetworkGradient, NetworkKind, NetworkParameters, NetworkTensors, ReadGradients, RuleRows, add_columns, silu,
    softplus,
};
use super::simd::wide;
use super::slices::ROWS_PER_TASK;
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
    common: NetworkParameters,
}

impl GatedDelta<'_> {
    /// Reads the parameters.
    pub(super) fn parsed(self) -> Result<GatedDeltaParameters> {
        let Self { heads, kernel, dt, a_log, norm, eps } = self;
        let convolution = Convolution { weight: kernel, bias: None };
        let tensors = NetworkTensors { heads, convolution, dt, a_log, norm: Some(norm), eps };
        Ok(GatedDeltaParameters { common: NetworkParameters::new(tensors, heads.value_dim)? })
    }
}

impl NetworkKind for GatedDeltaParameters {
    fn common(&self) -> &NetworkParameters {
        &self.common
    }

    fn corrects(&self) -> bool {
        true
    }

    fn rule_rows(&self, mixed: Vec<f32>, small: &[&[f32]]) -> RuleRows {
        let NetworkParameters { heads, dt, rates, .. } = &self.common;
        let (h, b, a) = (heads.values, small[0], small[1]);
        let decay = |(i, a): (usize, &f32)| rates[i % h] * softplus(a + dt[i % h]);
        let write_rates = b.iter().map(|b| sigmoid(*b)).collect();
        RuleRows { mixed, ordered: None, decays: a.iter().enumerate().map(decay).collect(), write_rates }
    }

    fn finish(&self, out: &mut [f32], _mixed: &[f32], gates: &[f32]) {
        let v = self.common.heads.value_dim;
        for (head, gates) in out.chunks_exact_mut(v).zip(gates.chunks_exact(v)) {
            let scale = self.common.inverse_rms(head);
            wide!(for ((x, w), gate) in head.iter_mut().zip(&self.common.norm).zip(gates) {
                *x *= scale * w * silu(*gate).0;
            });
        }
    }

    fn finish_backward(&self, mut heads: Vec<f32>, _given: &RuleRows, gates: &[f32], dy: &[f32]) -> FinishGradients {
        let (v, task) = (self.common.heads.value_dim, ROWS_PER_TASK * self.common.heads.value_width());
        let (mut d_gates, mut d_norm) = (vec![0f32; gates.len()], Vec::new());
        let all =
            heads.par_chunks_mut(task).zip(d_gates.par_chunks_mut(task)).zip(gates.par_chunks(task).zip(dy.par_chunks(task)));
        all.map(|((heads, d_gates), (gates, dys))| {
            let mut d_norm = vec![0f32; v];
            let each =
                heads.chunks_exact_mut(v).zip(d_gates.chunks_exact_mut(v)).zip(gates.chunks_exact(v).zip(dys.chunks_exact(v)));
            for ((head, d_gate), (gate, dy)) in each {
                let scale = self.common.inverse_rms(head);
                wide!({
                    let mut along = 0.0;
                    for i in 0..v {
                        let (active, slope) = silu(gate[i]);
                        let normed = head[i] * scale;
                        d_gate[i] = dy[i] * normed * self.common.norm[i] * slope;
                        d_norm[i] += dy[i] * active * normed;
                        along += dy[i] * active * self.common.norm[i] * head[i];
                    }
                    along *= scale * scale * scale / v as f32;
                    for i in 0..v {
                        head[i] = dy[i] * silu(gate[i]).0 * self.common.norm[i] * scale - head[i] * along;
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
        let NetworkParameters { heads, dt, rates, .. } = &self.common;
        let h = heads.values;
        let d_b = of_rule.betas.iter().zip(&given.write_rates).map(|(d, beta)| d * beta * (1.0 - beta)).collect();
        let slope = |(i, (d, a)): (usize, (&f32, &f32))| d * rates[i % h] * sigmoid(a + dt[i % h]);
        let d_a: Vec<f32> = of_rule.decays.iter().zip(small[1]).enumerate().map(slope).collect();
        add_columns(gradient.dt, d_a.iter().copied())?;
        // A decay is proportional to `exp(A)`.
        add_columns(gradient.a_log, of_rule.decays.iter().zip(&given.decays).map(|(d, decay)| d * decay))?;
        Ok(ReadGradients { mixed: of_rule.rows, small: vec![d_b, d_a] })
    }
}
