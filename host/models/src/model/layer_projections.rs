//! The linear maps of a layer.

use super::expert_weights::Experts;
use super::layer_input_weights::{LayerEnd, LayerInputMaps};
use super::weights::{LatentProjections, LayerWeights, Linear, MlpProjections};
use crate::ops;

/// The linear maps of a layer; those with the same input may be joined.
pub(super) struct LayerProjections<P> {
    /// The maps that read the layer's input, if it has attention or a recurrence.
    pub qkv: Vec<P>,
    /// The maps of compressed queries, keys and values, if they are compressed.
    pub latent: Option<LatentProjections<P>>,
    /// The map after attention or the recurrence, or the maps after both side by side; none in a layer without either.
    pub o: Vec<P>,
    pub unit: Option<MlpProjections<P>>,
    pub experts: Option<Experts<P>>,
    /// The maps of the stage that reads the layer's own input, if it has one.
    pub end: Option<LayerInputMaps<P>>,
}

impl<P> LayerProjections<P> {
    /// Borrows the maps.
    pub(super) fn each(&self) -> LayerProjections<&P> {
        let (unit, experts) = (self.unit.as_ref().map(MlpProjections::each), self.experts.as_ref().map(Experts::each));
        let latent = self.latent.as_ref().map(LatentProjections::each);
        let end = self.end.as_ref().map(LayerInputMaps::each);
        LayerProjections { qkv: self.qkv.iter().collect(), latent, o: self.o.iter().collect(), unit, experts, end }
    }

    /// Returns whether the layer has an MLP or experts.
    pub(super) fn feed(&self) -> bool {
        self.unit.is_some() || self.experts.is_some()
    }

    /// Returns the maps that the layer applies first, except those of experts.
    pub(super) fn first(&self) -> Vec<&P> {
        let wide = self.unit.iter().filter(|_| self.o.is_empty()).flat_map(|unit| &unit.wide);
        self.qkv.iter().chain(wide).collect()
    }

    /// Applies a function to each map.
    pub(super) fn map<T>(self, f: impl Fn(P) -> ops::Result<T>) -> ops::Result<LayerProjections<T>> {
        Ok(LayerProjections {
            qkv: self.qkv.into_iter().map(&f).collect::<ops::Result<_>>()?,
            latent: self.latent.map(|latent| latent.map(&f)).transpose()?,
            o: self.o.into_iter().map(&f).collect::<ops::Result<_>>()?,
            unit: self.unit.map(|unit| unit.map(&f)).transpose()?,
            experts: self.experts.map(|experts| experts.map(&f)).transpose()?,
            end: self.end.map(|end| end.map(&f)).transpose()?,
        })
    }

    /// Returns the maps that an adapter can apply to, each with its number, which is the same in every layer.
    pub(super) fn numbered(self) -> impl Iterator<Item = (usize, P)> {
        let unit = self.unit.into_iter().flat_map(|unit| (4..).zip(unit.wide).chain([(6, unit.down)]));
        // The numbers of the third and of the fourth projection before attention, of which there are only two then.
        let latent = self.latent.into_iter().flat_map(|LatentProjections { queries, keys_and_values }| {
            let [of_queries, of_both] = NUMBERS_OF_LATENT;
            queries.map(|map| (of_queries, map)).into_iter().chain([(of_both, keys_and_values)])
        });
        let inputs = self.qkv.into_iter().enumerate().map(|(i, map)| (number_of_input(i), map));
        let end = self.end.into_iter().flat_map(|maps| NUMBERS_OF_END.into_iter().zip(maps.all()));
        let router = self.experts.map(|experts| (NUMBER_OF_ROUTER, experts.router));
        let outputs = NUMBERS_OF_OUTPUTS.into_iter().zip(self.o);
        inputs.chain(outputs).chain(unit).chain(latent).chain(end).chain(router)
    }

    /// Returns the maps in one list.
    pub(super) fn all(self) -> impl Iterator<Item = P> {
        let (reading, behind, stacks) = self.in_order();
        reading.into_iter().chain(behind).chain(stacks)
    }

    /// Splits the maps into those before the layer's attention, those after it that every row goes through, and those of experts.
    pub(super) fn in_order(self) -> (Vec<P>, Vec<P>, Vec<P>) {
        let mut behind = self.o;
        behind.extend(self.unit.into_iter().flat_map(|unit| unit.wide.into_iter().chain([unit.down]).chain(unit.gate)));
        behind.extend(self.end.into_iter().flat_map(LayerInputMaps::all));
        let mut stacks = Vec::new();
        if let Some(Experts { router, wide, down, latent }) = self.experts {
            behind.push(router);
            behind.extend(latent.into_iter().flatten());
            stacks.extend([wide, down]);
        }
        let mut before = self.qkv;
        before.extend(self.latent.into_iter().flat_map(LatentProjections::all));
        (before, behind, stacks)
    }
}

/// Numbers of the maps of compressed queries, and of compressed keys and values.
pub(super) const NUMBERS_OF_LATENT: [usize; 2] = [2, 7];

/// Numbers of the maps of the stage that reads a layer's own input.
pub(super) const NUMBERS_OF_END: [usize; 2] = [8, 9];

/// Number of the map of a router.
pub(super) const NUMBER_OF_ROUTER: usize = 10;

/// Numbers of the map after attention or a recurrence, and of that after a state space beside attention.
pub(super) const NUMBERS_OF_OUTPUTS: [usize; 2] = [3, 11];

/// Returns the number of a projection before attention or a recurrence. The fourth is numbered after all other maps.
pub(super) fn number_of_input(i: usize) -> usize {
    if i < 3 { i } else { i + 4 }
}

impl<T> LayerWeights<T> {
    /// Returns the layer's linear maps.
    pub(super) fn maps(&self) -> LayerProjections<&Linear<T>> {
        let Self { qkv, attention, o, unit, experts, end, .. } = self;
        LayerProjections {
            qkv: qkv.iter().collect(),
            latent: attention.latent.as_ref().map(|latent| latent.maps.each()),
            o: o.iter().collect(),
            unit: unit.as_ref().map(MlpProjections::each),
            experts: experts.as_ref().map(Experts::each),
            end: end.as_ref().and_then(LayerEnd::maps),
        }
    }
}
