//! What distinguishes one kind of recurrent network (`recurrent_network.rs`) from another, and what the kinds share.

use super::convolution::{Convolution, ConvolutionGradient, Taps};
use super::delta_backward::DeltaRuleGradients;
use super::delta_rule::DeltaHeads;
use super::math::{dot, exp, sigmoid};
use super::slices::{read, write};
use super::{Error, Result};
use candle_core::Tensor;

/// Tensors to which the gradients of a network's parameters are added, if they are trained.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkGradient<'a> {
    /// Gradients of the convolution's parameters.
    pub convolution: ConvolutionGradient<'a>,
    /// Gradient of `dt`.
    pub dt: Option<&'a Tensor>,
    /// Gradient of `A`.
    pub a_log: Option<&'a Tensor>,
    /// Gradient of the norm's weight.
    pub norm: Option<&'a Tensor>,
    /// Gradient of `D`, which a state space has.
    pub skip: Option<&'a Tensor>,
}

/// Parameters that all kinds of networks have, as tensors.
pub(super) struct NetworkTensors<'a> {
    pub heads: DeltaHeads,
    pub convolution: Convolution<'a>,
    pub dt: &'a Tensor,
    pub a_log: &'a Tensor,
    /// Weight of the norm, if there is one.
    pub norm: Option<&'a Tensor>,
    pub eps: f64,
}

/// Parameters that all kinds of networks have, as operations read them.
pub(super) struct NetworkParameters {
    pub heads: DeltaHeads,
    pub taps: Taps,
    pub dt: Vec<f32>,
    /// Decay rates, `-exp(A)`.
    pub rates: Vec<f32>,
    /// Weight of the norm; empty if there is none.
    pub norm: Vec<f32>,
    eps: f64,
}

impl NetworkParameters {
    /// Reads the parameters of a network whose norm, if it has one, has `norm_width` weights.
    pub(super) fn new(tensors: NetworkTensors<'_>, norm_width: usize) -> Result<Self> {
        let NetworkTensors { heads, convolution, dt, a_log, norm, eps } = tensors;
        let taps = Taps::new(convolution)?;
        let vectors = [(dt, heads.values), (a_log, heads.values)].into_iter().chain(norm.map(|norm| (norm, norm_width)));
        let fits = taps.d == heads.row_width()
            && heads.values.is_multiple_of(heads.keys.max(1))
            && vectors.into_iter().all(|(t, n)| t.dims() == [n]);
        if !fits {
            let shape = convolution.weight.shape();
            return Err(Error::shape("recurrent network", format!("{heads:?} with a kernel {shape:?}")));
        }
        let rates = read(a_log)?.iter().map(|a| -exp(*a)).collect();
        let norm = norm.map(|norm| Ok::<_, Error>(read(norm)?.to_vec())).transpose()?.unwrap_or_default();
        Ok(Self { heads, taps, dt: read(dt)?.to_vec(), rates, norm, eps })
    }

    /// Returns the inverse of the root mean square of values that are normalised together.
    pub(super) fn inverse_rms(&self, values: &[f32]) -> f32 {
        (1.0 / (f64::from(dot(values, values)) / values.len() as f64 + self.eps).sqrt()) as f32
    }
}

/// What the rule reads for all rows.
pub(super) struct RuleRows {
    /// Sums of the convolution after SiLU, `[N, row_width]`.
    pub mixed: Vec<f32>,
    /// Queries, keys and values in the rule's order, if `mixed` is in another.
    pub ordered: Option<Vec<f32>>,
    /// Logarithms of decays, `[N, values]`.
    pub decays: Vec<f32>,
    /// Factors of what tokens write: correction rates, or step sizes, `[N, values]`.
    pub write_rates: Vec<f32>,
}

/// Gradients of a network's result with respect to what its last part reads.
pub(super) struct FinishGradients {
    /// Gradients of the rule's outputs, `[N, value_width]`.
    pub heads: Vec<f32>,
    /// Gradients of the gates, `[N, value_width]`.
    pub gates: Vec<f32>,
    /// Gradients of the norm's weight: one after the other, of parts of the rows.
    pub norm: Vec<f32>,
}

/// Gradients of a network with respect to what its rule reads.
pub(super) struct ReadGradients {
    /// Gradients of [`RuleRows::mixed`].
    pub mixed: Vec<f32>,
    /// Gradients of the inputs `[N, values]`, in their order.
    pub small: Vec<Vec<f32>>,
}

/// What distinguishes one kind of network from another.
pub(super) trait NetworkKind: Sync {
    /// Returns the parameters that all kinds have.
    fn common(&self) -> &NetworkParameters;
    /// Whether states are corrected by the rates of [`RuleRows`].
    fn corrects(&self) -> bool;
    /// Returns what the rule reads, given the convolved rows and the inputs `[N, values]`.
    fn rule_rows(&self, mixed: Vec<f32>, small: &[&[f32]]) -> RuleRows;
    /// Replaces the rule's outputs of a token with the network's result, given the token's row of [`RuleRows::mixed`] and its gates.
    fn finish(&self, out: &mut [f32], mixed: &[f32], gates: &[f32]);
    /// Returns the gradients through [`NetworkKind::finish`] of all rows, given the rule's outputs and the gradient of the result.
    fn finish_backward(&self, heads: Vec<f32>, given: &RuleRows, gates: &[f32], dy: &[f32]) -> FinishGradients;
    /// Returns the gradients of what [`NetworkKind::rule_rows`] reads, and adds those of the parameters.
    fn read_backward(
        &self,
        given: &RuleRows,
        of_rule: DeltaRuleGradients,
        finish: &FinishGradients,
        small: &[&[f32]],
        gradient: &NetworkGradient<'_>,
    ) -> Result<ReadGradients>;
}

/// Returns SiLU and its slope.
#[inline(always)]
pub(super) fn silu(x: f32) -> (f32, f32) {
    let s = sigmoid(x);
    (x * s, s + x * s * (1.0 - s))
}

/// Returns `ln(1 + exp(x))`.
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { exp(x).ln_1p() }
}

/// Adds rows of values, one after the other, to a vector, if it is trained.
pub(super) fn add_columns(to: Option<&Tensor>, values: impl Iterator<Item = f32>) -> Result<()> {
    let Some(to) = to else { return Ok(()) };
    write(to, |to| {
        // The terms of many tokens nearly cancel, hence f64.
        let mut sums = vec![0f64; to.len()];
        values.enumerate().for_each(|(i, x)| sums[i % to.len()] += f64::from(x));
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum as f32);
    })
}
