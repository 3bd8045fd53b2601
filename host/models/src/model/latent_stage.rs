//! The second stage of attention with compressed keys and values: from compressed rows to heads, and the gradient.

use super::backward::{GradientSlot, apply_backward};
use super::decoder::Decoder;
use super::latent::LatentAttention;
use super::layer::{DecoderLayer, LinearMap};
use super::layer_projections::LayerProjections;
use super::masked_linear::MaskedLinear;
use super::mixer::other_kind;
use super::weights::{LatentProjections, LatentWeights, LayerWeights};
use super::{Architecture, Result};
use crate::ops::rope::Positions;
use crate::ops::{self, columns, norm};
use candle_core::Tensor;

/// Results of the projections that compress a layer's input: of queries, `[N, query_rank]`, or query heads that are not compressed; and of
/// keys and values, `[N, rank]`, joined with the rotated part of keys, `[N, R]`.
pub(super) type CompressedRows = [Tensor; 2];

/// Sizes, parameters and maps of the second stage of a layer.
struct LatentStage<'a, P> {
    latent: LatentAttention,
    weights: &'a LatentWeights,
    maps: &'a LatentProjections<&'a P>,
}

impl<P: LinearMap> LatentStage<'_, P> {
    /// Returns normalised rows as a map reads them.
    fn normed(map: &P, x: &Tensor, weight: &Tensor) -> ops::Result<Tensor> {
        norm::forward(x, weight, LatentAttention::NORM_EPS, map.rounds())
    }

    /// Returns the results of the second query projection.
    fn queries(&self, rows: &Tensor) -> ops::Result<Tensor> {
        match (self.maps.queries, &self.weights.query_norm) {
            (Some(map), Some(weight)) => map.product(&Self::normed(map, rows, weight)?),
            _ => Ok(rows.clone()),
        }
    }

    /// Splits joined rows into compressed keys and values, and the rotated part of keys.
    fn split(&self, joined: &Tensor) -> ops::Result<[Tensor; 2]> {
        let both = columns::split(joined, &[self.latent.rank, self.latent.heads.rotated])?;
        both.try_into().map_err(|_| other_kind())
    }

    /// Returns key and value heads as attention reads them, before their rotation.
    fn keys_and_values(&self, joined: &Tensor) -> ops::Result<(Tensor, Tensor)> {
        let ([rows, shared], map) = (self.split(joined)?, self.maps.keys_and_values);
        let projected = map.product(&Self::normed(map, &rows, &self.weights.norm)?)?;
        self.latent.heads.keys_and_values(&projected, &shared)
    }
}

impl<P: LinearMap> DecoderLayer<'_, P> {
    /// Returns the second stage of the layer's attention.
    fn latent_stage(&self) -> ops::Result<LatentStage<'_, P>> {
        let (latent, weights) = (self.architecture.latent, self.norms.attention.latent.as_ref());
        let stage = |((latent, weights), maps)| LatentStage { latent, weights, maps };
        latent.zip(weights).zip(self.maps.latent.as_ref()).map(stage).ok_or_else(other_kind)
    }

    /// Returns query, key and value heads as attention reads them, before their rotation. The rows are first rounded as they are stored.
    pub(super) fn expanded(&self, inputs: Vec<Tensor>) -> Result<(CompressedRows, [Tensor; 3])> {
        let (stage, rows) = (self.latent_stage()?, <[Tensor; 2]>::try_from(inputs).map_err(|_| other_kind())?);
        if self.rounds {
            rows.iter().try_for_each(ops::round_in_place)?;
        }
        let q = stage.latent.heads.queries(&stage.queries(&rows[0])?)?;
        let (k, v) = stage.keys_and_values(&rows[1])?;
        P::prefetch(&self.maps.o, q.dim(0)?)?;
        Ok((rows, [q, k, v]))
    }
}

impl Architecture {
    /// Returns attention's outputs as the projection behind it reads them.
    pub(super) fn narrowed_heads(&self, out: Tensor) -> ops::Result<Tensor> {
        self.latent.map_or(Ok(out.clone()), |latent| latent.heads.outputs(&out))
    }
}

impl Decoder {
    /// Returns key and value heads of layer `i` as attention reads them, from joined compressed rows.
    pub(super) fn expanded_keys<'p>(
        &self,
        i: usize,
        maps: &LayerProjections<MaskedLinear<'_>>,
        joined: &Tensor,
        positions: impl Into<Positions<'p>>,
    ) -> Result<(Tensor, Tensor)> {
        let layer = self.layer_of(i, maps.each());
        let (k, v) = layer.latent_stage()?.keys_and_values(&self.in_f32(joined)?)?;
        Ok((self.attended(layer.placed_one(k, None, positions)?)?, self.attended(v)?))
    }

    /// Returns query heads of layer `i` as attention reads them, from compressed rows or from the projection's results.
    pub(super) fn expanded_queries<'p>(
        &self,
        i: usize,
        maps: &LayerProjections<MaskedLinear<'_>>,
        rows: &Tensor,
        positions: impl Into<Positions<'p>>,
    ) -> Result<Tensor> {
        let layer = self.layer_of(i, maps.each());
        let stage = layer.latent_stage()?;
        let q = stage.latent.heads.queries(&stage.queries(&self.in_f32(rows)?)?)?;
        Ok(self.attended(layer.placed_one(q, None, positions)?)?)
    }

    /// Adds the gradients of the second stage's parameters and returns those of both kinds of rows, given those of the heads before their
    /// rotation.
    pub(super) fn expanded_backward(
        &self,
        i: usize,
        maps: &LayerProjections<MaskedLinear<'_>>,
        rows: &CompressedRows,
        [dq, dk, dv]: [&Tensor; 3],
        g: &LayerWeights<GradientSlot>,
    ) -> Result<Vec<Tensor>> {
        let layer = self.layer_of(i, maps.each());
        let (stage, of_layer) = (layer.latent_stage()?, maps.latent.as_ref().zip(g.attention.latent.as_ref()));
        let ((maps, g), heads) = (of_layer.ok_or_else(other_kind)?, stage.latent.heads);
        let through = |map: &MaskedLinear<'_>, x: &Tensor, weight: &Tensor, dy: &Tensor, (g, d_weight): (_, &GradientSlot)| {
            let d_normed = apply_backward(map, &LatentStage::normed(map, x, weight)?, dy, g)?;
            let dx = ops::zeros_like(x)?;
            norm::backward(x, weight, LatentAttention::NORM_EPS, &d_normed, &dx, d_weight.as_ref())?;
            Ok::<_, ops::Error>(dx)
        };
        let d_projected = heads.queries_backward(dq)?;
        let d_queries = match (&maps.queries, &stage.weights.query_norm, &g.maps.queries, &g.query_norm) {
            (Some(map), Some(weight), Some(of_map), Some(of_norm)) => {
                through(map, &self.in_f32(&rows[0])?, weight, &d_projected, (of_map, of_norm))?
            }
            _ => d_projected,
        };
        let (d_projected, d_shared) = heads.keys_and_values_backward(dk, dv)?;
        let [compressed, _] = stage.split(&self.in_f32(&rows[1])?)?;
        let of_both = (&g.maps.keys_and_values, &g.norm);
        let d_compressed = through(&maps.keys_and_values, &compressed, &stage.weights.norm, &d_projected, of_both)?;
        let d_joined = columns::join(&[&d_compressed, &d_shared], &[stage.latent.rank, heads.rotated])?;
        Ok(vec![d_queries, d_joined])
    }
}
