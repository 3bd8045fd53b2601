//! Mixing of a text's tokens in a layer: attention, or a recurrence that carries a state.

use super::Result;
use crate::ops;
use crate::ops::convolution::Convolution;
use crate::ops::recurrent_network::RecurrentNetwork;
use crate::ops::sinks;
use candle_core::{DType, Tensor};

/// Number of a network's inputs that are rounded where activations are. The others are small and determine how a state decays.
pub(super) const ROUNDED_INPUTS: usize = 2;

/// Result of attention.
pub(super) struct AttentionOutput {
    /// The heads' outputs, `[N, H * C]`.
    pub out: Tensor,
    /// Logarithms of the normalisers, which the gradient needs, if one will be computed.
    pub log_sum: Option<Tensor>,
}

impl AttentionOutput {
    /// Creates the output of attention in a layer that may have sinks.
    pub(super) fn with_sinks(out: Tensor, log_sum: Tensor, logits: Option<&Tensor>) -> ops::Result<Self> {
        if let Some(logits) = logits {
            sinks::absorb(&out, &log_sum, logits)?;
        }
        Ok(Self { out, log_sum: Some(log_sum) })
    }
}

/// Access to the earlier tokens of a text: in a forest, or in the caches of their sequences.
pub(super) trait TokenMixer {
    /// Computes attention of queries over keys and values.
    fn attend(&mut self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionOutput>;

    /// Computes attention of queries over the keys and values of the layer that this one shares them with.
    fn attend_to_shared(&mut self, q: &Tensor) -> Result<AttentionOutput>;

    /// Runs a gated short convolution over the rows of its projection, `[N, 3 D]`.
    fn convolve(&mut self, joined: &Tensor, convolution: Convolution<'_>) -> Result<Tensor>;

    /// Runs a gated delta network or a state space over the rows of its projections.
    fn run_network(&mut self, inputs: &[Tensor], network: RecurrentNetwork<'_>) -> Result<Tensor>;
}

/// Attention or a recurrence as its gradient reads it.
#[derive(Clone, Copy)]
pub(super) struct MixerResult<'a> {
    pub mixed: &'a MixerActivations,
    /// The result.
    pub out: &'a Tensor,
}

/// Activations that the gradient of a layer's attention or recurrence needs, besides the result.
pub(super) enum MixerActivations {
    /// Activations of attention.
    Attention(AttentionActivations),
    /// Activations of attention to another layer's keys and values.
    Borrowing(BorrowingActivations),
    /// Rows of the projection of a gated short convolution.
    Convolution(Tensor),
    /// Rows of the projections of a gated delta network or a state space.
    Network(Vec<Tensor>),
    /// Activations of attention and of a recurrence side by side.
    SideBySide(Box<[Self; 2]>),
    /// Nothing, in a layer that has neither attention nor a recurrence.
    Absent,
}

/// Activations that the gradient of attention to another layer's keys and values needs.
pub(super) struct BorrowingActivations {
    /// Query heads as their norm reads them.
    pub unnormed: Tensor,
    /// The logarithms of the normalisers, if a gradient will be computed.
    pub log_sum: Option<Tensor>,
}

/// Activations that the gradient of attention needs.
pub(super) struct AttentionActivations {
    /// Query and key heads as their norms read them, if the family has them.
    pub unnormed: Option<(Tensor, Tensor)>,
    /// Query and key heads as attention reads them. Not stored if they can be computed from those before their norms
    /// ([`super::layer::DecoderLayer::placed`]).
    pub heads: Option<(Tensor, Tensor)>,
    /// Value heads as their norm reads them, if they have one and are not the keys before theirs.
    pub unnormed_v: Option<Tensor>,
    /// Value heads. Not stored if they can be computed from compressed ones.
    pub v: Option<Tensor>,
    /// The logarithms of the normalisers, if a gradient will be computed.
    pub log_sum: Option<Tensor>,
    /// Gates of the output, if there are any, and the output before gating.
    pub gated: Option<(Tensor, Tensor)>,
    /// Results of the projections that compress queries, keys and values, if they are compressed. Heads are not stored then.
    pub compressed: Option<[Tensor; 2]>,
}

fn both(pair: Option<(Tensor, Tensor)>, to: impl Fn(Tensor) -> ops::Result<Tensor>) -> ops::Result<Option<(Tensor, Tensor)>> {
    pair.map(|(q, k)| Ok((to(q)?, to(k)?))).transpose()
}

/// Applies a function to both of two tensors.
fn two(pair: Option<[Tensor; 2]>, to: impl Fn(Tensor) -> ops::Result<Tensor>) -> ops::Result<Option<[Tensor; 2]>> {
    pair.map(|[a, b]| Ok([to(a)?, to(b)?])).transpose()
}

impl MixerActivations {
    /// Removes what can be recomputed from the rest.
    pub(super) fn reduced(self) -> Self {
        match self {
            Self::Attention(AttentionActivations { unnormed, heads, unnormed_v, v, log_sum, gated, compressed }) => {
                let heads = heads.filter(|_| unnormed.is_none() && compressed.is_none());
                let v = v.filter(|_| compressed.is_none());
                Self::Attention(AttentionActivations { unnormed, heads, unnormed_v, v, log_sum, gated, compressed })
            }
            Self::SideBySide(both) => Self::SideBySide(Box::new(both.map(Self::reduced))),
            other => other,
        }
    }

    /// Applies a function to both of two parts.
    fn each_of(both: [Self; 2], to: impl Fn(Self) -> ops::Result<Self>) -> ops::Result<Self> {
        let [attention, recurrence] = both;
        Ok(Self::SideBySide(Box::new([to(attention)?, to(recurrence)?])))
    }

    /// Converts to f32 what only f32 operations read.
    pub(super) fn in_f32(self) -> ops::Result<Self> {
        match self {
            Self::Attention(AttentionActivations { unnormed, heads, unnormed_v, v, log_sum, gated, compressed }) => {
                let to = |t: Tensor| ops::cast(&t, DType::F32);
                let (unnormed, compressed) = (both(unnormed, to)?, two(compressed, to)?);
                let unnormed_v = unnormed_v.map(to).transpose()?;
                Ok(Self::Attention(AttentionActivations { unnormed, heads, unnormed_v, v, log_sum, gated, compressed }))
            }
            Self::Borrowing(BorrowingActivations { unnormed, log_sum }) => {
                Ok(Self::Borrowing(BorrowingActivations { unnormed: ops::cast(&unnormed, DType::F32)?, log_sum }))
            }
            Self::SideBySide(both) => Self::each_of(*both, Self::in_f32),
            other => Ok(other),
        }
    }

    /// Converts all parts except the normalisers.
    pub(super) fn cast(self, dtype: DType) -> ops::Result<Self> {
        let to = |t: Tensor| ops::cast(&t, dtype);
        Ok(match self {
            Self::Attention(AttentionActivations { unnormed, heads, unnormed_v, v, log_sum, gated, compressed }) => {
                Self::Attention(AttentionActivations {
                    unnormed: both(unnormed, to)?,
                    heads: both(heads, to)?,
                    unnormed_v: unnormed_v.map(to).transpose()?,
                    v: v.map(to).transpose()?,
                    log_sum,
                    gated: both(gated, to)?,
                    compressed: two(compressed, to)?,
                })
            }
            Self::Borrowing(BorrowingActivations { unnormed, log_sum }) => {
                Self::Borrowing(BorrowingActivations { unnormed: to(unnormed)?, log_sum })
            }
            Self::Convolution(joined) => Self::Convolution(to(joined)?),
            Self::Network(mut inputs) => {
                for input in inputs.iter_mut().take(ROUNDED_INPUTS) {
                    *input = ops::cast(input, dtype)?;
                }
                Self::Network(inputs)
            }
            Self::SideBySide(both) => Self::each_of(*both, |part| part.cast(dtype))?,
            Self::Absent => Self::Absent,
        })
    }

    /// Returns all parts.
    pub(super) fn parts(&self) -> Vec<&Tensor> {
        match self {
            Self::Attention(AttentionActivations { unnormed, heads, unnormed_v, v, log_sum, gated, compressed }) => {
                let heads = unnormed.iter().chain(heads).chain(gated).flat_map(|(q, k)| [q, k]);
                heads.chain(unnormed_v).chain(v).chain(compressed.iter().flatten()).chain(log_sum).collect()
            }
            Self::Borrowing(BorrowingActivations { unnormed, log_sum }) => std::iter::once(unnormed).chain(log_sum).collect(),
            Self::Convolution(joined) => vec![joined],
            Self::Network(inputs) => inputs.iter().collect(),
            Self::SideBySide(both) => both.iter().flat_map(Self::parts).collect(),
            Self::Absent => Vec::new(),
        }
    }

    /// Joins the parts of two passes by their rows.
    pub(super) fn joined(&self, new: &Self, rows: &dyn Fn(&Tensor, &Tensor) -> ops::Result<Tensor>) -> ops::Result<Self> {
        let one = |known: &Option<Tensor>, new: &Option<Tensor>| {
            known.as_ref().zip(new.as_ref()).map(|(known, new)| rows(known, new)).transpose()
        };
        let two = |known: &Option<(Tensor, Tensor)>, new: &Option<(Tensor, Tensor)>| {
            let both = known.as_ref().zip(new.as_ref());
            both.map(|(known, new)| Ok::<_, ops::Error>((rows(&known.0, &new.0)?, rows(&known.1, &new.1)?))).transpose()
        };
        match (self, new) {
            (Self::Attention(known), Self::Attention(new)) => {
                let compressed = known.compressed.as_ref().zip(new.compressed.as_ref());
                let compressed =
                    compressed.map(|([q, kv], [new_q, new_kv])| Ok::<_, ops::Error>([rows(q, new_q)?, rows(kv, new_kv)?]));
                Ok(Self::Attention(AttentionActivations {
                    unnormed: two(&known.unnormed, &new.unnormed)?,
                    heads: two(&known.heads, &new.heads)?,
                    unnormed_v: one(&known.unnormed_v, &new.unnormed_v)?,
                    v: one(&known.v, &new.v)?,
                    log_sum: one(&known.log_sum, &new.log_sum)?,
                    gated: two(&known.gated, &new.gated)?,
                    compressed: compressed.transpose()?,
                }))
            }
            (Self::Borrowing(known), Self::Borrowing(new)) => Ok(Self::Borrowing(BorrowingActivations {
                unnormed: rows(&known.unnormed, &new.unnormed)?,
                log_sum: one(&known.log_sum, &new.log_sum)?,
            })),
            (Self::Convolution(known), Self::Convolution(new)) => Ok(Self::Convolution(rows(known, new)?)),
            (Self::Network(known), Self::Network(new)) => {
                Ok(Self::Network(known.iter().zip(new).map(|(known, new)| rows(known, new)).collect::<ops::Result<_>>()?))
            }
            (Self::SideBySide(known), Self::SideBySide(new)) => {
                let part = |i: usize| known[i].joined(&new[i], rows);
                Ok(Self::SideBySide(Box::new([part(0)?, part(1)?])))
            }
            (Self::Absent, Self::Absent) => Ok(Self::Absent),
            _ => Err(other_kind()),
        }
    }

    /// Returns the activations of attention.
    pub(super) fn attention(&self) -> ops::Result<&AttentionActivations> {
        match self {
            Self::Attention(kept) => Ok(kept),
            Self::SideBySide(both) => both[0].attention(),
            _ => Err(other_kind()),
        }
    }

    /// Returns the activations of a convolution.
    pub(super) fn convolution(&self) -> ops::Result<&Tensor> {
        match self {
            Self::Convolution(joined) => Ok(joined),
            _ => Err(other_kind()),
        }
    }

    /// Returns the activations of a gated delta network or a state space.
    pub(super) fn network(&self) -> ops::Result<&[Tensor]> {
        match self {
            Self::Network(inputs) => Ok(inputs),
            Self::SideBySide(both) => both[1].network(),
            _ => Err(other_kind()),
        }
    }
}

impl AttentionActivations {
    /// Returns key and value heads as attention reads them, unless they were left out.
    pub(super) fn keys_and_values(&self) -> ops::Result<[Tensor; 2]> {
        let keys = self.heads.as_ref().map(|(_, k)| k).ok_or_else(other_kind)?;
        Ok([keys.clone(), self.values()?.clone()])
    }

    /// Returns the value heads.
    pub(super) fn values(&self) -> ops::Result<&Tensor> {
        let missing = || ops::Error::Shape { op: "attention", detail: "a forward pass that kept no values".into() };
        self.v.as_ref().ok_or_else(missing)
    }

    /// Returns the logarithms of the normalisers.
    pub(super) fn log_sum(&self) -> ops::Result<&Tensor> {
        let missing =
            || ops::Error::Shape { op: "attention", detail: "a forward pass that kept nothing for its gradient".into() };
        self.log_sum.as_ref().ok_or_else(missing)
    }
}

/// Returns the error for activations of another kind of layer.
pub(super) fn other_kind() -> ops::Error {
    ops::Error::Shape {
        op: "layer",
        detail: "attention in the place of a recurrence, or a recurrence in that of attention".into(),
    }
}
