//! Weights for decoding on a device, prepared once per generation.

use super::architecture::ProjectionLayout;
use super::switches::NormKind;
use super::weights::{LayerWeights, Linear, MlpProjections, NormWeights};
use super::{Architecture, Decoder};
use crate::ops;
use crate::ops::decode::joined;
use candle_core::Tensor;

/// Linear maps of a layer, joined if they have the same input, and its norms. Adapters are merged in.
pub(super) struct FusedLayer {
    pub(super) qkv: Tensor,
    pub(super) qkv_bias: Option<Tensor>,
    pub(super) o: Tensor,
    /// The MLP; `None` if the layer has experts, which tensor operations compute.
    pub(super) mlp: Option<Mlp>,
    pub(super) qk_norm: Option<(Tensor, Tensor)>,
    pub(super) input_norm: Option<NormWeights>,
    pub(super) attended_norm: Option<NormWeights>,
    pub(super) mlp_norm: Option<NormWeights>,
    pub(super) added_norm: Option<NormWeights>,
}

/// Weights that all steps of a generation compute with.
pub(super) struct FusedWeights {
    pub(super) layers: Vec<FusedLayer>,
    pub(super) norm: NormWeights,
}

impl FusedWeights {
    /// Prepares the weights of a decoder.
    pub(super) fn new(decoder: &Decoder) -> ops::Result<Self> {
        let (a, weights) = (&decoder.architecture, &decoder.weights);
        let layers = weights.layers.iter().map(|w| FusedLayer::new(a, w)).collect::<ops::Result<_>>()?;
        Ok(Self { layers, norm: prepared(a, &weights.norm)? })
    }
}

pub(super) struct Mlp {
    pub(super) wide: Tensor,
    /// Biases of the gate projection (or the only one) and of the up projection.
    pub(super) biases: [Option<Tensor>; 2],
    pub(super) down: Tensor,
}

fn biases(parts: &[&Linear]) -> ops::Result<Option<Tensor>> {
    let biases: Vec<&Tensor> = parts.iter().filter_map(|l| l.bias.as_ref()).collect();
    if biases.len() < parts.len() { Ok(None) } else { joined(&biases).map(Some) }
}

/// Returns the projections' matrix and biases: queries, then keys, then values.
fn qkv(a: &Architecture, parts: &[Linear]) -> ops::Result<(Tensor, Option<Tensor>)> {
    let (weight, bias) = match parts {
        [q, k, v] => (joined(&[&q.merged()?, &k.merged()?, &v.merged()?])?, biases(&[q, k, v])?),
        [all] => (all.merged()?, all.bias.clone()),
        _ => return Err(other()),
    };
    if a.projections != ProjectionLayout::JoinedByHead {
        return Ok((weight, bias));
    }
    let (heads, dim) = (a.heads.heads, a.heads.head_dim);
    let of_part = |part: usize| (0..heads).flat_map(move |head| (3 * head + part) * dim..(3 * head + part + 1) * dim);
    let rows: Vec<usize> = (0..3).flat_map(of_part).collect();
    let sorted = |bias: Tensor| Ok::<_, ops::Error>(ops::gather_rows(&bias.reshape(((), 1))?, &rows)?.flatten_all()?);
    Ok((ops::gather_rows(&weight, &rows)?, bias.map(sorted).transpose()?))
}

impl Mlp {
    fn new(unit: &MlpProjections<Linear>) -> ops::Result<Self> {
        let (wide, biases) = match &unit.wide[..] {
            [gate, up] => (joined(&[&gate.merged()?, &up.merged()?])?, [gate.bias.clone(), up.bias.clone()]),
            [all] => (all.merged()?, [all.bias.clone(), None]),
            _ => return Err(other()),
        };
        Ok(Self { wide, biases, down: unit.down.merged()? })
    }
}

impl FusedLayer {
    /// Joins the linear maps of a layer.
    fn new(a: &Architecture, w: &LayerWeights) -> ops::Result<Self> {
        let (qkv, qkv_bias) = qkv(a, &w.qkv)?;
        let unit = w.unit.as_ref().filter(|_| w.experts.is_none());
        let norm = |norm: &Option<NormWeights>| norm.as_ref().map(|norm| prepared(a, norm)).transpose();
        let whole = |weight: &Tensor| prepared(a, &NormWeights { weight: weight.clone(), bias: None }).map(|norm| norm.weight);
        Ok(Self {
            qkv,
            qkv_bias,
            o: w.o.first().ok_or_else(other)?.merged()?,
            mlp: unit.map(Mlp::new).transpose()?,
            qk_norm: w.attention.qk_norm.as_ref().map(|(q, k)| Ok::<_, ops::Error>((whole(q)?, whole(k)?))).transpose()?,
            input_norm: norm(&w.input_norm)?,
            attended_norm: norm(&w.attended_norm)?,
            mlp_norm: norm(&w.mlp_norm)?,
            added_norm: norm(&w.added_norm)?,
        })
    }
}

/// Returns a norm in the form that a step computes: without weights stored as offsets, and with a bias only for layer norms.
fn prepared(a: &Architecture, norm: &NormWeights) -> ops::Result<NormWeights> {
    let weight = if a.norm == NormKind::RmsFromOne { ops::plus_one(&norm.weight)? } else { norm.weight.clone() };
    Ok(NormWeights { weight, bias: norm.bias.clone().filter(|_| a.norm == NormKind::Layer) })
}

pub(super) fn other() -> ops::Error {
    ops::Error::Shape { op: "decode", detail: "a layer without projections".into() }
}
