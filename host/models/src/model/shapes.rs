//! The shapes of all parameters of a decoder.

use super::expert_weights::{ExpertNorms, ExpertParameters, Experts};
use super::latent::LatentAttention;
use super::layer_input_weights::{LayerEnd, LayerInputMaps, LayerInputStage, LayerInputWeights};
use super::mixture::Mixture;
use super::names::{ExpertNames, TensorNames};
use super::recurrent_weights::RecurrentWeights;
use super::switches::{HeadNorms, NormKind};
use super::weights::{
    AttentionWeights, LatentProjections, LatentWeights, LayerWeights, Linear, MlpProjections, NormWeights, QuantizationScales,
    SCALES, Weights,
};
use super::{Architecture, Result};
use crate::ops::quantized::QuantizationScheme;
use candle_core::Tensor;

/// Returns the shapes of a model's experts.
fn experts(m: &Mixture, a: &Architecture, names: &TensorNames) -> Experts<Linear<Vec<usize>>> {
    let biased = names.experts.is_some_and(ExpertNames::have_biases);
    let (hidden, d, parts) = (a.hidden_size, m.latent.unwrap_or(a.hidden_size), a.wide_parts());
    let through = |out: usize, input: usize| Linear::new(vec![out, input], a.mlp_bias.then(|| vec![out]));
    let bias = |shape: &[usize]| biased.then(|| shape.to_vec());
    Experts {
        router: Linear::new(vec![m.experts, hidden], bias(&[m.experts])),
        wide: Linear::new(vec![m.experts, parts * m.width, d], bias(&[m.experts, parts * m.width])),
        down: Linear::new(vec![m.experts, d, m.width], bias(&[m.experts, d])),
        latent: m.latent.map(|d| [through(d, hidden), through(hidden, d)]),
    }
}

/// Returns the shapes of the further parameters of a layer's experts.
fn expert_parameters(a: &Architecture, layer: usize) -> ExpertParameters<Vec<usize>> {
    let mixture = a.mixture.as_ref().filter(|m| m.sparse[layer]);
    let norms = |m: &Mixture| {
        let [router, input, output, unit] = [(); 4].map(|()| vec![a.hidden_size]);
        ExpertNorms { router, factors: vec![m.experts], input, output, unit }
    };
    ExpertParameters {
        correction: mixture.filter(|m| m.corrected).map(|m| vec![m.experts]),
        norms: mixture.filter(|m| m.normed).map(norms),
    }
}

/// Returns the shapes of a linear map that may be quantized.
fn linear(scheme: Option<QuantizationScheme>, out: usize, input: usize, bias: bool) -> Linear<Vec<usize>> {
    let (weight, scales) = match scheme {
        None => (vec![out, input], None),
        Some(scheme) => {
            let (codes, values) = scheme.shapes(out, input);
            (codes, Some(QuantizationScales { values, scheme }))
        }
    };
    Linear { scales, ..Linear::new(weight, bias.then(|| vec![out])) }
}

/// Returns the shapes of maps from rows of width `d` to these widths, or of the map that joins them.
fn joined(
    scheme: Option<QuantizationScheme>,
    (widths, d): (&[usize], usize),
    bias: bool,
    apart: bool,
) -> Vec<Linear<Vec<usize>>> {
    match apart {
        true => widths.iter().map(|width| linear(scheme, *width, d, bias)).collect(),
        false => vec![linear(scheme, widths.iter().sum(), d, bias)],
    }
}

/// Returns the shapes of the projections before a layer's attention or recurrence.
fn inputs(a: &Architecture, layer: usize, scheme: Option<QuantizationScheme>) -> Vec<Linear<Vec<usize>>> {
    let d = a.hidden_size;
    if let Some(latent) = &a.latent {
        // Query heads have no biases, and compressed rows have them if configured.
        let [queries, keys] = latent.input_widths();
        let has_bias = a.qkv_bias && latent.query_rank.is_some();
        return vec![linear(scheme, queries, d, has_bias), linear(scheme, keys, d, a.qkv_bias)];
    }
    if let Some(widths) = a.varied_widths(layer) {
        return joined(scheme, (&widths, d), a.qkv_bias, true);
    }
    match a.is_recurrent(layer) {
        true => {
            let widths = a.input_widths(true);
            let apart = a.family.description().names.inputs(true).len() == widths.len();
            joined(scheme, (&widths, d), a.recurrent_biases()[0], apart)
        }
        false => {
            let widths = [a.query_outputs(), a.kv_width(), a.kv_width()];
            let mut all = joined(scheme, (&widths, d), a.qkv_bias, a.family.description().names.attention.qkv.len() >= 3);
            if a.side_by_side().is_some() {
                all.extend(joined(scheme, (&a.input_widths(true), d), a.recurrent_biases()[0], false));
            }
            all
        }
    }
}

/// Returns the shapes of the projections after a layer's attention or recurrence.
fn outputs(a: &Architecture, layer: usize, scheme: Option<QuantizationScheme>) -> Vec<Linear<Vec<usize>>> {
    let recurrent = a.is_recurrent(layer);
    let width = a.varied_widths(layer).map_or_else(|| a.mixed_width(recurrent), |widths| widths[0]);
    let own = linear(scheme, a.hidden_size, width, if recurrent { a.recurrent_biases()[1] } else { a.output_bias });
    let beside = a.side_by_side().map(|_| linear(scheme, a.hidden_size, a.mixed_width(true), a.recurrent_biases()[1]));
    std::iter::once(own).chain(beside).collect()
}

/// Returns the shapes of the projections of compressed rows.
fn second(latent: &LatentAttention, scheme: Option<QuantizationScheme>) -> LatentWeights<Vec<usize>> {
    let queries = latent.query_rank.map(|rank| linear(scheme, latent.query_width(), rank, false));
    let keys_and_values = linear(scheme, latent.key_value_width(), latent.rank, false);
    LatentWeights {
        maps: LatentProjections { queries, keys_and_values },
        query_norm: latent.query_rank.map(|rank| vec![rank]),
        norm: vec![latent.rank],
    }
}

/// Returns the shapes of the parameters at the end of a layer.
fn end(a: &Architecture, scheme: Option<QuantizationScheme>) -> Option<LayerEnd<Linear<Vec<usize>>, Vec<usize>>> {
    a.varied.as_ref()?;
    let stage = |width: usize| LayerInputStage {
        maps: LayerInputMaps {
            gate: linear(scheme, width, a.hidden_size, false),
            projection: linear(scheme, a.hidden_size, width, false),
        },
        norm: vec![a.hidden_size],
    };
    Some(LayerEnd { stage: a.layer_input_width().map(stage), scalar: vec![1] })
}

/// Returns the shapes of the parameters of layers' own inputs, if they have some.
fn layer_inputs(
    a: &Architecture,
    scheme: Option<QuantizationScheme>,
) -> Option<LayerInputWeights<Linear<Vec<usize>>, Vec<usize>>> {
    let sizes = a.varied.as_ref()?.inputs?;
    let all = a.layers * sizes.width;
    let projection = linear(scheme, all, a.hidden_size, false);
    Some(LayerInputWeights { table: vec![sizes.tokens, all], projection, norm: vec![sizes.width] })
}

/// Returns the shapes of the norms of a layer's query heads and key heads, if they have weights.
fn head_norms(a: &Architecture, layer: usize) -> Option<(Vec<usize>, Vec<usize>)> {
    match a.head_norms {
        HeadNorms::None | HeadNorms::Unweighted => None,
        HeadNorms::Each | HeadNorms::Rotated => Some((vec![a.heads_of(layer).head_dim], vec![a.heads_of(layer).head_dim])),
        HeadNorms::All => Some((vec![a.query_width()], vec![a.kv_width()])),
    }
}

/// Returns the shape of every parameter. The layers' linear maps may be quantized; routers and experts are not.
fn shapes(a: &Architecture, scheme: Option<QuantizationScheme>) -> Weights<Vec<usize>> {
    let (d, names) = (a.hidden_size, a.family.description().names);
    let joined = |widths: &[usize], bias: bool, apart: bool| joined(scheme, (widths, d), bias, apart);
    let norm = || NormWeights { weight: vec![d], bias: (a.norm == NormKind::Layer).then(|| vec![d]) };
    let [input_norm, attended_norm, mlp_norm, added_norm] = names.norms.map(|name| (!name.is_empty()).then(norm));
    let unit = |l: usize| {
        let (width, sparse) = (a.unit_width(l), a.mixture.as_ref().is_some_and(|m| m.sparse[l]));
        MlpProjections {
            wide: joined(&vec![width; a.mlp_widths().len()], a.mlp_bias, names.unit(sparse).0.len() == 2),
            down: linear(scheme, d, width, a.mlp_bias),
            gate: (sparse && a.has_shared_gate()).then(|| Linear::new(vec![1, d], None)),
        }
    };
    let recurrent = || a.convolution().map(|convolution| RecurrentWeights { convolution, network: a.network() });
    let layer = |l: usize| LayerWeights {
        qkv: if a.mixes(l) { inputs(a, l, scheme) } else { Vec::new() },
        o: if a.mixes(l) { outputs(a, l, scheme) } else { Vec::new() },
        attention: AttentionWeights {
            sinks: names.attention.sinks.filter(|_| a.attends(l)).map(|_| vec![a.heads.heads]),
            qk_norm: head_norms(a, l).filter(|_| a.attends(l) && a.key_source(l).is_none()),
            query_norm: a.key_source(l).map(|_| vec![a.heads_of(l).head_dim]),
            latent: a.latent.as_ref().map(|latent| second(latent, scheme)),
        },
        recurrent: recurrent().filter(|_| a.has_recurrence(l)),
        unit: a.has_unit(l).then(|| unit(l)),
        experts: a.mixture.as_ref().filter(|m| m.sparse[l]).map(|m| experts(m, a, names)),
        routing: expert_parameters(a, l),
        input_norm: input_norm.clone().filter(|_| a.mixes(l)),
        attended_norm: attended_norm.clone(),
        mlp_norm: mlp_norm.clone().filter(|_| a.feeds(l)),
        added_norm: added_norm.clone(),
        end: end(a, scheme),
    };
    Weights {
        embedding: vec![a.vocab_size, d],
        positions: names.positions.map(|_| vec![a.max_positions, d]),
        layer_inputs: layer_inputs(a, scheme),
        layers: (0..a.layers).map(layer).collect(),
        norm: norm(),
        head: (!a.tied).then(|| vec![a.vocab_size, d]),
        value_head: None,
        lora: None,
        names,
    }
}

impl Architecture {
    /// Returns the name and shape of every parameter, in the order of [`Weights::map`].
    pub fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        shapes(self, None).named().into_iter().map(|(name, shape)| (name, shape.clone())).collect()
    }

    /// Returns the names of the weights that quantization applies to.
    pub(super) fn quantizable(&self) -> Vec<String> {
        let shapes = shapes(self, Some(QuantizationScheme::Int8));
        shapes.named().iter().filter_map(|(name, _)| name.strip_suffix(SCALES).map(str::to_owned)).collect()
    }
}

impl Weights {
    /// Builds the weights, calling `make` with each parameter's name and shape in a fixed order.
    pub fn build(a: &Architecture, make: impl FnMut(&str, &[usize]) -> Result<Tensor>) -> Result<Self> {
        Self::build_in(a, None, make)
    }

    /// Builds the weights of layers whose linear maps may be quantized. Calls `make` for a weight's codes under the weight's name, directly
    /// before its scales.
    pub(super) fn build_in(
        a: &Architecture,
        scheme: Option<QuantizationScheme>,
        mut make: impl FnMut(&str, &[usize]) -> Result<Tensor>,
    ) -> Result<Self> {
        shapes(a, scheme).map(|name, shape| make(&name, shape))
    }
}
