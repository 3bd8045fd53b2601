//! Linear maps of training and scoring: with dropout and magnitudes.

use super::expert_weights::Experts;
use super::layer::LinearMap;
use super::layer_input_weights::LayerInputMaps;
use super::layer_projections::{
    LayerProjections, NUMBER_OF_ROUTER, NUMBERS_OF_END, NUMBERS_OF_LATENT, NUMBERS_OF_OUTPUTS, number_of_input,
};
use super::pass_options::PassOptions;
use super::weights::{LatentProjections, Linear, MlpProjections};
use crate::ops::dropout::DropoutMask;
use crate::ops::experts::{self, Routes};
use crate::ops::low_rank::LowRankAdapter;
use crate::ops::{self, Precision, linear};
use candle_core::Tensor;

/// A linear map of a training or scoring pass.
pub(super) struct MaskedLinear<'a> {
    pub linear: &'a Linear,
    /// Dropout of the adapter's input.
    pub mask: Option<DropoutMask<'a>>,
    /// Lengths of the rows of the weight with its adapter, if the adapter has magnitudes.
    pub lengths: Option<&'a Tensor>,
    pub precision: Precision,
}

impl<'a> MaskedLinear<'a> {
    /// Returns the maps of layer `layer`. In the `last` layer, some maps read only the rows that are needed.
    pub(super) fn for_layer(
        maps: LayerProjections<&'a Linear>,
        precision: Precision,
        how: &'a PassOptions,
        layer: usize,
        last: bool,
    ) -> LayerProjections<Self> {
        let with = |linear: &'a Linear, map: usize, behind: bool| {
            let mask = how.dropout.as_ref().filter(|_| linear.adapter.is_some());
            let mask = mask.map(|d| d.mask(layer, map, behind && last));
            Self { linear, mask, lengths: how.lengths.as_ref().and_then(|all| all.get(layer, map)), precision }
        };
        let all = |maps: Vec<&'a Linear>, first: usize, behind: bool| {
            maps.into_iter().zip(first..).map(|(linear, map)| with(linear, map, behind)).collect()
        };
        LayerProjections {
            qkv: maps.qkv.into_iter().enumerate().map(|(i, linear)| with(linear, number_of_input(i), false)).collect(),
            latent: maps.latent.map(|LatentProjections { queries, keys_and_values }| LatentProjections {
                queries: queries.map(|linear| with(linear, NUMBERS_OF_LATENT[0], false)),
                keys_and_values: with(keys_and_values, NUMBERS_OF_LATENT[1], false),
            }),
            o: maps.o.into_iter().zip(NUMBERS_OF_OUTPUTS).map(|(linear, map)| with(linear, map, true)).collect(),
            unit: maps.unit.map(|unit| MlpProjections {
                wide: all(unit.wide, 4, true),
                down: with(unit.down, 6, true),
                gate: unit.gate.map(|linear| Self { linear, mask: None, lengths: None, precision }),
            }),
            // Adapters of experts have no dropout and no magnitudes. That of a router may, if it is a linear layer.
            experts: maps.experts.map(|Experts { router, wide, down, latent }| {
                let plain = |linear| Self { linear, mask: None, lengths: None, precision };
                Experts {
                    router: with(router, NUMBER_OF_ROUTER, true),
                    wide: plain(wide),
                    down: plain(down),
                    latent: latent.map(|maps| maps.map(plain)),
                }
            }),
            end: maps.end.map(|LayerInputMaps { gate, projection }| LayerInputMaps {
                gate: with(gate, NUMBERS_OF_END[0], true),
                projection: with(projection, NUMBERS_OF_END[1], true),
            }),
        }
    }

    /// Returns the map before the first layer, which counts as that of a layer behind the last.
    pub(super) fn before_layers(linear: &'a Linear, precision: Precision, how: &'a PassOptions, layers: usize) -> Self {
        let mask = how.dropout.as_ref().filter(|_| linear.adapter.is_some()).map(|d| d.mask(layers, 0, false));
        Self { linear, mask, lengths: how.lengths.as_ref().and_then(|all| all.get(layers, 0)), precision }
    }

    /// Returns the adapter, if there is one.
    pub(super) fn adapter(&self) -> Option<LowRankAdapter<'a>> {
        Some(LowRankAdapter { precision: self.precision, ..self.linear.adapter.as_ref()?.low_rank() })
    }
}

pub(super) fn missing() -> ops::Error {
    ops::Error::Shape { op: "linear", detail: "a map without a result".into() }
}

impl LinearMap for MaskedLinear<'_> {
    fn rounds(&self) -> bool {
        // Dropout and magnitudes are computed in f32 first.
        self.precision == Precision::Bf16 && self.mask.is_none() && self.lengths.is_none()
    }

    fn product(&self, x: &Tensor) -> ops::Result<Tensor> {
        if self.magnitude()?.is_some() {
            return self.directed(x);
        }
        Self::products(&[self], x)?.into_iter().next().ok_or_else(missing)
    }

    fn products(maps: &[&Self], x: &Tensor) -> ops::Result<Vec<Tensor>> {
        for map in maps {
            if map.magnitude()?.is_some() {
                return maps.iter().map(|map| map.product(x)).collect();
            }
        }
        let Some(first) = maps.first() else { return Ok(Vec::new()) };
        // Adapters read the same rows as their maps, except those with dropout.
        let adapters: Vec<_> = maps.iter().map(|map| map.adapter()).collect();
        let beside =
            |adapter: &Option<LowRankAdapter<'_>>, map: &Self| adapter.is_some() && map.mask.is_none() && x.device().is_cpu();
        let added = maps.iter().map(|map| map.linear.added()).collect::<ops::Result<Vec<_>>>()?;
        let of_maps = maps.iter().zip(&added).map(|(map, added)| (map.linear.matrix(), added.as_ref()));
        let of_adapters = adapters.iter().zip(maps).filter(|(adapter, map)| beside(adapter, map));
        let read =
            of_maps.chain(of_adapters.filter_map(|(adapter, _)| Some((adapter.as_ref()?.a.into(), None)))).collect::<Vec<_>>();
        let mut results = linear::forward_all(x, &read, first.precision)?;
        let mut inner = results.split_off(maps.len()).into_iter();
        for ((adapter, map), y) in adapters.iter().zip(maps).zip(&results) {
            match (adapter, &map.mask) {
                (Some(found), _) if beside(adapter, map) => found.add_from(&inner.next().ok_or_else(missing)?, y)?,
                (Some(adapter), Some(mask)) => adapter.forward_into(&mask.apply(x)?, y)?,
                (Some(adapter), None) => adapter.forward_into(x, y)?,
                (None, _) => {}
            }
        }
        Ok(results)
    }

    fn grouped(&self, x: &Tensor, routes: &Routes) -> ops::Result<Tensor> {
        let y = experts::forward(x, &self.linear.weight, routes, self.precision)?;
        self.add_grouped(x, &y, routes)?;
        if let Some(biases) = &self.linear.bias {
            routes.add_biases(&y, biases)?;
        }
        Ok(y)
    }
}
