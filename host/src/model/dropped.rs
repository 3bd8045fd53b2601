//! Dropout on the inputs of an adapter in training (`lora_dropout`), as a layer applies it. Generation, scoring and evaluation
//! have none.

use super::decoder::How;
use super::layer::{Maps, Product};
use super::weights::{Experts, Linear, Unit};
use crate::ops::dropout::{Mask, mixed_bits};
use crate::ops::experts::{self, Routes};
use crate::ops::low_rank::LowRank;
use crate::ops::{self, Forest, Precision, linear};
use candle_core::Tensor;

/// The largest number of linear maps of a layer.
pub(super) const MAPS: usize = 7;

/// The dropout of a pass.
pub(super) struct Dropout {
    p: f64,
    key: u64,
    /// A number for each packed token.
    texts: Vec<u64>,
    /// The same for the rows that the last layer computes after its attention.
    rows: Vec<u64>,
}

impl Dropout {
    /// Creates it for a pass over `forest`; none if the probability is zero.
    pub(super) fn new(p: f64, key: u64, forest: &Forest, rows: &[usize]) -> Option<Self> {
        let texts = (p > 0.0).then(|| forest.texts())?;
        let rows = rows.iter().map(|row| texts[*row]).collect();
        Some(Self { p, key, texts, rows })
    }

    /// Returns the mask of a map of layer `layer`, which reads all rows or only those that the last layer needs.
    fn mask(&self, layer: usize, map: usize, some: bool) -> Mask<'_> {
        let rows = if some { &self.rows } else { &self.texts };
        Mask { rows, key: mixed_bits(self.key ^ mixed_bits((layer * MAPS + map) as u64)), p: self.p }
    }
}

/// A linear map as training and scoring apply it.
pub(super) struct Masked<'a> {
    pub linear: &'a Linear,
    /// The dropout of its adapter's input.
    pub mask: Option<Mask<'a>>,
    /// The lengths of its rows with its adapter, if that has magnitudes.
    pub lengths: Option<&'a Tensor>,
    pub precision: Precision,
}

impl<'a> Masked<'a> {
    /// Returns the maps of layer `layer`; in the `last` one, some maps read only the rows that are needed.
    pub(super) fn of(maps: Maps<&'a Linear>, precision: Precision, how: &'a How, layer: usize, last: bool) -> Maps<Self> {
        let with = |linear: &'a Linear, map: usize, behind: bool| {
            let mask = how.dropout.as_ref().filter(|_| linear.adapter.is_some());
            let mask = mask.map(|d| d.mask(layer, map, behind && last));
            Self { linear, mask, lengths: how.lengths.as_ref().and_then(|all| all.get(layer, map)), precision }
        };
        let all = |maps: Vec<&'a Linear>, first: usize, behind: bool| {
            maps.into_iter().zip(first..).map(|(linear, map)| with(linear, map, behind)).collect()
        };
        Maps {
            qkv: all(maps.qkv, 0, false),
            o: with(maps.o, 3, true),
            unit: maps.unit.map(|unit| Unit { wide: all(unit.wide, 4, true), down: with(unit.down, 6, true) }),
            // Their adapters have no dropout and no magnitudes.
            experts: maps.experts.map(|Experts { router, wide, down }| {
                let [router, wide, down] =
                    [router, wide, down].map(|linear| Self { linear, mask: None, lengths: None, precision });
                Experts { router, wide, down }
            }),
        }
    }

    /// Returns the adapter, if there is one.
    pub(super) fn adapter(&self) -> Option<LowRank<'a>> {
        Some(LowRank { precision: self.precision, ..self.linear.adapter.as_ref()?.low_rank() })
    }
}

impl Product for Masked<'_> {
    fn product(&self, x: &Tensor) -> ops::Result<Tensor> {
        if self.magnitude()?.is_some() {
            return self.directed(x);
        }
        let y = linear::forward(x, self.linear.matrix(), self.linear.bias.as_ref(), self.precision)?;
        match (self.adapter(), &self.mask) {
            (Some(adapter), Some(mask)) => adapter.forward_into(&mask.apply(x)?, &y)?,
            (Some(adapter), None) => adapter.forward_into(x, &y)?,
            (None, _) => {}
        }
        Ok(y)
    }

    fn grouped(&self, x: &Tensor, routes: &Routes) -> ops::Result<Tensor> {
        let y = experts::forward(x, &self.linear.weight, routes, self.precision)?;
        self.add_grouped(x, &y, routes)?;
        Ok(y)
    }
}
