//! Dropout on the inputs of an adapter in training (`lora_dropout`), as a layer applies it. Generation, scoring and evaluation
//! have none.

use super::layer::{Maps, Product};
use super::weights::{Experts, Linear, Unit};
use crate::ops::dropout::{Mask, mixed_bits};
use crate::ops::experts::Routes;
use crate::ops::{self, Forest};
use candle_core::Tensor;

/// The largest number of linear maps of a layer.
const MAPS: u64 = 7;

/// What a pass drops.
pub(super) struct Dropout {
    p: f64,
    key: u64,
    /// A number for each packed token.
    texts: Vec<u64>,
    /// The same of the rows that the last layer computes after its attention.
    rows: Vec<u64>,
}

impl Dropout {
    /// Creates it for a pass over `forest`; none if nothing is to be dropped.
    pub(super) fn new(p: f64, key: u64, forest: &Forest, rows: &[usize]) -> Option<Self> {
        let texts = (p > 0.0).then(|| forest.texts())?;
        let rows = rows.iter().map(|row| texts[*row]).collect();
        Some(Self { p, key, texts, rows })
    }

    /// Returns the mask of a map of layer `layer`, which reads all rows or only those that the last layer needs.
    fn mask(&self, layer: usize, map: u64, some: bool) -> Mask<'_> {
        let rows = if some { &self.rows } else { &self.texts };
        Mask { rows, key: mixed_bits(self.key ^ mixed_bits(layer as u64 * MAPS + map)), p: self.p }
    }
}

/// A linear map with what is dropped of its adapter's input.
pub(super) struct Masked<'a> {
    pub linear: &'a Linear,
    pub mask: Option<Mask<'a>>,
}

impl<'a> Masked<'a> {
    /// Returns the maps of layer `layer`; in the `last` one, some maps read only the rows that are needed.
    pub(super) fn of(maps: Maps<&'a Linear>, dropout: Option<&'a Dropout>, layer: usize, last: bool) -> Maps<Self> {
        let with = |linear: &'a Linear, map: u64, behind: bool| {
            let mask = dropout.filter(|_| linear.adapter.is_some());
            let mask = mask.map(|d| d.mask(layer, map, behind && last));
            Self { linear, mask }
        };
        let all = |maps: Vec<&'a Linear>, first: u64, behind: bool| {
            maps.into_iter().zip(first..).map(|(linear, map)| with(linear, map, behind)).collect()
        };
        Maps {
            qkv: all(maps.qkv, 0, false),
            o: with(maps.o, 3, true),
            unit: maps.unit.map(|unit| Unit { wide: all(unit.wide, 4, true), down: with(unit.down, 6, true) }),
            // They have no adapters.
            experts: maps.experts.map(|Experts { router, wide, down }| {
                let [router, wide, down] = [router, wide, down].map(|linear| Self { linear, mask: None });
                Experts { router, wide, down }
            }),
        }
    }
}

impl Product for Masked<'_> {
    fn product(&self, x: &Tensor) -> ops::Result<Tensor> {
        let (Some(mask), Some(adapter)) = (&self.mask, &self.linear.adapter) else { return self.linear.product(x) };
        let y = self.linear.plain(x)?;
        adapter.low_rank().forward_into(&mask.apply(x)?, &y)?;
        Ok(y)
    }

    fn grouped(&self, x: &Tensor, routes: &Routes) -> ops::Result<Tensor> {
        self.linear.grouped(x, routes)
    }
}
