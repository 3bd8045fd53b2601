//! Parameters of gated delta networks and other recurrent layers.

use super::Architecture;
use super::names::RecurrentNames;
use super::recurrence::RecurrenceKind;
use super::short_convolution::ShortConvolution;
use crate::ops::gated_delta::{GatedDelta, GatedDeltaGradient};
use candle_core::Tensor;

/// Parameters of a recurrent layer in place of attention, excluding its projections.
#[derive(Clone, Debug)]
pub struct RecurrentWeights<T = Tensor> {
    /// The convolution.
    pub convolution: ShortConvolution<T>,
    /// Further parameters of a gated delta network, if the layer is one.
    pub network: Option<DeltaNetwork<T>>,
}

impl<T> RecurrentWeights<T> {
    pub(super) fn map<'a, U, E>(
        &'a self,
        name: impl Fn(&str) -> String,
        names: &RecurrentNames,
        f: &mut impl FnMut(String, &'a T) -> Result<U, E>,
    ) -> Result<RecurrentWeights<U>, E> {
        let convolution = self.convolution.map(&name(names.convolution), f)?;
        let network = self.network.as_ref().zip(names.network);
        Ok(RecurrentWeights { convolution, network: network.map(|(own, names)| own.map(name, names, f)).transpose()? })
    }
}

/// Parameters of a gated delta network, excluding its projections and its convolution.
#[derive(Clone, Debug)]
pub struct DeltaNetwork<T = Tensor> {
    /// `dt_bias`, added before a token's decay, `[values]`.
    pub dt: T,
    /// `A_log`, logarithm of the decay rate, `[values]`.
    pub a_log: T,
    /// Weight of the norm of each value head.
    pub norm: T,
}

impl<T> DeltaNetwork<T> {
    pub(super) fn map<'a, U, E>(
        &'a self,
        name: impl Fn(&str) -> String,
        [dt, a_log, norm]: [&str; 3],
        f: &mut impl FnMut(String, &'a T) -> Result<U, E>,
    ) -> Result<DeltaNetwork<U>, E> {
        Ok(DeltaNetwork { dt: f(name(dt), &self.dt)?, a_log: f(name(a_log), &self.a_log)?, norm: f(name(norm), &self.norm)? })
    }
}

impl DeltaNetwork {
    /// Returns the operation of a layer with this convolution; `None` if the architecture has no such networks.
    pub(super) fn operation<'a>(&'a self, convolution: &'a ShortConvolution, a: &Architecture) -> Option<GatedDelta<'a>> {
        let RecurrenceKind::GatedDelta(heads) = a.recurrence.as_ref()?.kind else { return None };
        let Self { dt, a_log, norm } = self;
        Some(GatedDelta { heads, kernel: &convolution.weight, dt, a_log, norm, eps: a.norm_eps })
    }
}

impl DeltaNetwork<Option<Tensor>> {
    /// Returns the tensors to which the operation's gradients are added.
    pub(super) fn gradient<'a>(&'a self, convolution: &'a ShortConvolution<Option<Tensor>>) -> GatedDeltaGradient<'a> {
        let Self { dt, a_log, norm } = self;
        GatedDeltaGradient { kernel: convolution.weight.as_ref(), dt: dt.as_ref(), a_log: a_log.as_ref(), norm: norm.as_ref() }
    }
}

impl Architecture {
    /// Returns the shapes of the parameters of gated delta networks, if there are any.
    pub(super) fn delta_network(&self) -> Option<DeltaNetwork<Vec<usize>>> {
        let RecurrenceKind::GatedDelta(heads) = self.recurrence.as_ref()?.kind else { return None };
        Some(DeltaNetwork { dt: vec![heads.values], a_log: vec![heads.values], norm: vec![heads.value_dim] })
    }
}
