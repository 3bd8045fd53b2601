//! Short convolutions of layers, and the sizes of layers with them.

use super::Architecture;
use super::recurrence::RecurrenceKind;
use crate::ops::convolution::{Convolution, ConvolutionGradient};
use crate::ops::{self, DeltaHeads, columns};
use candle_core::Tensor;

/// The parameters of a short convolution.
#[derive(Clone, Debug)]
pub struct ShortConvolution<T = Tensor> {
    /// Weight, `[D, 1, K]`.
    pub weight: T,
    /// Bias, `[D]`, if the model's convolutions have one.
    pub bias: Option<T>,
}

impl<T> ShortConvolution<T> {
    pub(super) fn map<'a, U, E>(
        &'a self,
        name: &str,
        f: &mut impl FnMut(String, &'a T) -> Result<U, E>,
    ) -> Result<ShortConvolution<U>, E> {
        let weight = f(format!("{name}.weight"), &self.weight)?;
        Ok(ShortConvolution { weight, bias: self.bias.as_ref().map(|bias| f(format!("{name}.bias"), bias)).transpose()? })
    }
}

impl ShortConvolution {
    /// Returns the convolution as an operation.
    pub(super) fn operation(&self) -> Convolution<'_> {
        Convolution { weight: &self.weight, bias: self.bias.as_ref() }
    }
}

impl ShortConvolution<Option<Tensor>> {
    /// Returns the tensors to which the operation's gradients are added.
    pub(super) fn gradient(&self) -> ConvolutionGradient<'_> {
        ConvolutionGradient { weight: self.weight.as_ref(), bias: self.bias.as_ref().and_then(Option::as_ref) }
    }
}

impl Architecture {
    /// Returns whether a layer has a recurrence, in the place of attention or beside it.
    pub(super) fn has_recurrence(&self, layer: usize) -> bool {
        self.recurrence.as_ref().is_some_and(|recurrence| recurrence.layers[layer])
    }

    /// Returns whether a layer has a recurrence in the place of attention.
    pub fn is_recurrent(&self, layer: usize) -> bool {
        self.has_recurrence(layer) && self.side_by_side().is_none()
    }

    /// Returns whether any layer has a recurrence.
    pub fn has_recurrent_layers(&self) -> bool {
        (0..self.layers).any(|layer| self.has_recurrence(layer))
    }

    /// Returns the number of layers that attend.
    pub fn attending(&self) -> usize {
        (0..self.layers).filter(|&layer| self.attends(layer)).count()
    }

    /// Returns the number of layers that have a recurrence.
    pub fn recurring(&self) -> usize {
        (0..self.layers).filter(|&layer| self.has_recurrence(layer)).count()
    }

    /// Returns the width of a convolution.
    fn convolved(&self) -> usize {
        self.recurrent_heads().map_or(self.hidden_size, DeltaHeads::row_width)
    }

    /// Returns the bytes of a sequence's states in all recurrent layers.
    pub(super) fn state_bytes(&self) -> f64 {
        let of_layer = self.recurrence.as_ref().map_or(0, |recurrence| {
            let of_heads = recurrence.kind.heads().map_or(0, |heads| heads.values * heads.state());
            (recurrence.width - 1) * self.convolved() + of_heads
        });
        (self.recurring() * of_layer * size_of::<f32>()) as f64
    }

    /// Returns the operations per token of a recurrent layer, excluding its projections: those on the state, which is decayed, read and
    /// written, and in a gated delta network read twice. A convolution alone needs few.
    pub(super) fn operations_of_state(&self) -> f64 {
        let of_value = match self.recurrence.as_ref().map(|recurrence| recurrence.kind) {
            Some(RecurrenceKind::GatedDelta { .. }) => 6.0,
            _ => 4.0,
        };
        self.recurrent_heads().map_or(0.0, |heads| of_value * (heads.values * heads.state()) as f64)
    }

    /// Returns the heads of gated delta networks or state spaces, if there are any.
    fn recurrent_heads(&self) -> Option<DeltaHeads> {
        self.recurrence.as_ref()?.kind.heads()
    }

    /// Returns the sum of the widths that a layer's projections read and write around attention or a recurrence.
    pub(super) fn mixer_width(&self, layer: usize) -> usize {
        if !self.mixes(layer) {
            return 0;
        }
        if self.side_by_side().is_some() {
            let both = [false, true].into_iter();
            return both
                .map(|recurrent| self.input_widths(recurrent).into_iter().sum::<usize>() + self.mixed_width(recurrent))
                .sum();
        }
        if self.is_recurrent(layer) || self.latent.is_some() {
            let recurrent = self.is_recurrent(layer);
            self.input_widths(recurrent).into_iter().sum::<usize>() + self.mixed_width(recurrent)
        } else if let Some(widths) = self.varied_widths(layer) {
            widths[0] + widths.into_iter().sum::<usize>()
        } else {
            self.query_outputs() + 2 * self.kv_width() + self.query_width()
        }
    }

    /// Returns the widths of a layer's projections before attention or a recurrence, or of the parts of a joined projection.
    pub(super) fn input_widths(&self, recurrent: bool) -> Vec<usize> {
        match self.recurrence.as_ref().filter(|_| recurrent).map(|recurrence| recurrence.kind) {
            None => self.latent.map_or_else(|| self.qkv_widths().to_vec(), |latent| latent.input_widths().to_vec()),
            // The convolution reads the parts in place.
            Some(RecurrenceKind::Convolution { .. }) => vec![3 * self.hidden_size],
            Some(RecurrenceKind::GatedDelta { heads: h, grouped: true }) => vec![h.row_width() + h.value_width(), 2 * h.values],
            Some(RecurrenceKind::GatedDelta { heads: h, .. }) => vec![h.row_width(), h.value_width(), h.values, h.values],
            Some(RecurrenceKind::StateSpace { heads: h, .. }) => vec![h.value_width(), h.row_width(), h.values],
        }
    }

    /// Returns the width of the input of the projection after attention or a recurrence.
    pub(super) fn mixed_width(&self, recurrent: bool) -> usize {
        match self.recurrence.as_ref().filter(|_| recurrent).map(|recurrence| recurrence.kind) {
            None => self.latent.map_or_else(|| self.query_width(), |latent| latent.value_width()),
            Some(RecurrenceKind::Convolution { .. }) => self.hidden_size,
            Some(RecurrenceKind::GatedDelta { heads, .. } | RecurrenceKind::StateSpace { heads, .. }) => heads.value_width(),
        }
    }

    /// Returns the number of values of a token that attention or a recurrence in a layer keeps for its gradient: heads, compressed rows or
    /// inputs, and the result.
    pub fn kept_of_mixer(&self, layer: usize) -> usize {
        match &self.latent {
            _ if !self.attends(layer) || self.side_by_side().is_some() => self.mixer_width(layer),
            Some(latent) => latent.input_widths().into_iter().sum::<usize>() + latent.value_width(),
            None => self.varied_widths(layer).map_or_else(
                || 2 * (self.query_width() + self.kv_width()),
                |widths| widths[0] + 2 * widths.into_iter().sum::<usize>(),
            ),
        }
    }

    /// Returns whether the projections before recurrences have biases, and whether those behind do.
    pub(super) fn recurrent_biases(&self) -> [bool; 2] {
        match self.recurrence.as_ref().map(|all| all.kind) {
            Some(RecurrenceKind::Convolution { bias }) => [bias; 2],
            Some(RecurrenceKind::StateSpace { projection_bias, output_bias, .. }) => [projection_bias, output_bias],
            Some(RecurrenceKind::GatedDelta { .. }) | None => [false; 2],
        }
    }

    /// Returns the results of a layer's projections as a recurrence reads them. Where projections group the inputs of each key head, these
    /// are taken apart.
    pub(super) fn ungrouped(&self, results: Vec<Tensor>, recurrent: bool) -> ops::Result<Vec<Tensor>> {
        let (Some(h), [joined, rates]) = (self.grouped_heads(recurrent), &results[..]) else { return Ok(results) };
        let parts = columns::split(joined, &group_widths(h))?;
        let [q, k, v, gates] = &parts[..] else { return Err(misfit()) };
        let rows = columns::join(&[q, k, v], &[h.key_width(), h.key_width(), h.value_width()])?;
        let rates = columns::split(rates, &[h.values / h.keys; 2])?;
        Ok([vec![rows, gates.clone()], rates].concat())
    }

    /// Returns the gradients of the results of a layer's projections, given those of [`Architecture::ungrouped`].
    pub(super) fn grouped(&self, gradients: Vec<Tensor>, recurrent: bool) -> ops::Result<Vec<Tensor>> {
        let (Some(h), [rows, gates, b, a]) = (self.grouped_heads(recurrent), &gradients[..]) else { return Ok(gradients) };
        let parts = columns::split(rows, &[h.key_width(), h.key_width(), h.value_width()])?;
        let [q, k, v] = &parts[..] else { return Err(misfit()) };
        Ok(vec![columns::join(&[q, k, v, gates], &group_widths(h))?, columns::join(&[b, a], &[h.values / h.keys; 2])?])
    }

    fn grouped_heads(&self, recurrent: bool) -> Option<DeltaHeads> {
        match self.recurrence.as_ref().filter(|_| recurrent)?.kind {
            RecurrenceKind::GatedDelta { heads, grouped: true } => Some(heads),
            _ => None,
        }
    }

    /// Returns the width of the query projection, which includes a gate for each value if outputs are gated.
    pub(super) fn query_outputs(&self) -> usize {
        self.query_width() * if self.output_gate { 2 } else { 1 }
    }

    /// Returns the shapes of the parameters of convolutions, if there are any.
    pub(super) fn convolution(&self) -> Option<ShortConvolution<Vec<usize>>> {
        let (d, recurrence) = (self.convolved(), self.recurrence.as_ref()?);
        let biased = match recurrence.kind {
            RecurrenceKind::Convolution { bias } | RecurrenceKind::StateSpace { convolution_bias: bias, .. } => bias,
            RecurrenceKind::GatedDelta { .. } => false,
        };
        Some(ShortConvolution { weight: vec![d, 1, recurrence.width], bias: biased.then(|| vec![d]) })
    }
}

/// Returns the widths of a key head's queries, keys, values and gates in a projection that groups them.
fn group_widths(h: DeltaHeads) -> [usize; 4] {
    let values = h.value_width() / h.keys;
    [h.key_dim, h.key_dim, values, values]
}

fn misfit() -> ops::Error {
    ops::Error::Shape { op: "layer", detail: "a joined projection with other parts".into() }
}
