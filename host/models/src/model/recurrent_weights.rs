//! Parameters of recurrent layers.

use super::Architecture;
use super::names::{NetworkNames, RecurrentNames};
use super::recurrence::RecurrenceKind;
use super::short_convolution::ShortConvolution;
use crate::ops::{GatedDelta, NetworkGradient, NormPlace, StateSpace, recurrent_network::RecurrentNetwork};
use candle_core::Tensor;

/// Parameters of a recurrent layer in place of attention, excluding its projections.
#[derive(Clone, Debug)]
pub struct RecurrentWeights<T = Tensor> {
    /// The convolution.
    pub convolution: ShortConvolution<T>,
    /// Further parameters of a gated delta network or a state space, if the layer is one.
    pub network: Option<NetworkWeights<T>>,
}

/// Parameters of a gated delta network or a state space, excluding its projections and its convolution.
#[derive(Clone, Debug)]
pub struct NetworkWeights<T = Tensor> {
    /// `dt_bias`, added before a token's decay or step size, `[values]`.
    pub dt: T,
    /// `A_log`, logarithm of the decay rate, `[values]`.
    pub a_log: T,
    /// `D`, factor of the values that a state space adds to its results, `[values]`; a gated delta network has none.
    pub skip: Option<T>,
    /// Weight of the norm: of each value head, or of all of a state space's heads, which may have none.
    pub norm: Option<T>,
}

impl<T> RecurrentWeights<T> {
    pub(super) fn map<'a, U, E>(
        &'a self,
        name: impl Fn(&str) -> String,
        names: &RecurrentNames,
        f: &mut impl FnMut(String, &'a T) -> Result<U, E>,
    ) -> Result<RecurrentWeights<U>, E> {
        let convolution = self.convolution.map(&name(names.convolution), f)?;
        let network = self.network.as_ref().zip(names.network.as_ref());
        Ok(RecurrentWeights { convolution, network: network.map(|(own, names)| own.map(name, names, f)).transpose()? })
    }
}

impl<T> NetworkWeights<T> {
    fn map<'a, U, E>(
        &'a self,
        name: impl Fn(&str) -> String,
        names: &NetworkNames,
        f: &mut impl FnMut(String, &'a T) -> Result<U, E>,
    ) -> Result<NetworkWeights<U>, E> {
        Ok(NetworkWeights {
            dt: f(name(names.dt), &self.dt)?,
            a_log: f(name(names.a_log), &self.a_log)?,
            skip: self.skip.as_ref().zip(names.skip).map(|(skip, own)| f(name(own), skip)).transpose()?,
            norm: self.norm.as_ref().map(|norm| f(name(names.norm), norm)).transpose()?,
        })
    }
}

impl RecurrentWeights {
    /// Returns the operation of a layer that is a network; `None` for a short convolution alone.
    pub(super) fn operation(&self, a: &Architecture) -> Option<RecurrentNetwork<'_>> {
        let Self { convolution, network } = self;
        let (NetworkWeights { dt, a_log, skip, norm }, eps) = (network.as_ref()?, a.norm_eps);
        match a.recurrence.as_ref()?.kind {
            RecurrenceKind::Convolution { .. } => None,
            RecurrenceKind::GatedDelta { heads, .. } => {
                let norm = norm.as_ref()?;
                Some(RecurrentNetwork::GatedDelta(GatedDelta { heads, kernel: &convolution.weight, dt, a_log, norm, eps }))
            }
            RecurrenceKind::StateSpace { heads, limits, norm: norm_place, .. } => {
                let (convolution, skip, norm) = (convolution.operation(), skip.as_ref()?, norm.as_ref());
                let own = StateSpace { heads, convolution, dt, a_log, skip, norm, norm_place, limits, eps };
                Some(RecurrentNetwork::StateSpace(own))
            }
        }
    }
}

impl RecurrentWeights<Option<Tensor>> {
    /// Returns the tensors to which the gradients of a network's operation are added.
    pub(super) fn gradient(&self) -> Option<NetworkGradient<'_>> {
        let NetworkWeights { dt, a_log, skip, norm } = self.network.as_ref()?;
        Some(NetworkGradient {
            convolution: self.convolution.gradient(),
            dt: dt.as_ref(),
            a_log: a_log.as_ref(),
            norm: norm.as_ref().and_then(Option::as_ref),
            skip: skip.as_ref().and_then(Option::as_ref),
        })
    }
}

impl Architecture {
    /// Returns the shapes of the parameters of networks, if there are any.
    pub(super) fn network(&self) -> Option<NetworkWeights<Vec<usize>>> {
        let kind = self.recurrence.as_ref()?.kind;
        let heads = kind.heads()?;
        let each = || vec![heads.values];
        Some(match kind {
            RecurrenceKind::StateSpace { norm, .. } => {
                let norm = (norm != NormPlace::Absent).then(|| vec![heads.value_width()]);
                NetworkWeights { dt: each(), a_log: each(), skip: Some(each()), norm }
            }
            _ => NetworkWeights { dt: each(), a_log: each(), skip: None, norm: Some(vec![heads.value_dim]) },
        })
    }
}
