//! Dropout on an adapter's inputs in training (`lora_dropout`). Generation, scoring and evaluation apply none.

use crate::ops::Forest;
use crate::ops::dropout::{DropoutMask, mixed_bits};

/// Maximum number of linear maps of a layer.
pub(super) const MAPS: usize = 12;

/// Number of linear maps of most layers.
const USUAL: usize = 7;

/// The dropout of a pass.
pub(super) struct Dropout {
    p: f64,
    key: u64,
    /// A number for each packed token, from which its mask is drawn.
    texts: Vec<u64>,
    /// A number for each row that the last layer computes after its attention.
    rows: Vec<u64>,
}

impl Dropout {
    /// Creates the dropout of a pass over `forest`; `None` if the probability is zero.
    pub(super) fn new(p: f64, key: u64, forest: &Forest, rows: &[usize]) -> Option<Self> {
        let texts = (p > 0.0).then(|| forest.texts())?;
        let rows = rows.iter().map(|row| texts[*row]).collect();
        Some(Self { p, key, texts, rows })
    }

    /// Returns the mask of a map of layer `layer`. With `some`, the map reads only the rows that the last layer needs.
    pub(super) fn mask(&self, layer: usize, map: usize, some: bool) -> DropoutMask<'_> {
        let rows = if some { &self.rows } else { &self.texts };
        // The largest number is reserved for the noise on embeddings.
        let further = |map: usize| u64::MAX - 1 - (((map - USUAL) as u64) << 32) - layer as u64;
        let number = if map < USUAL { (layer * USUAL + map) as u64 } else { further(map) };
        DropoutMask { rows, key: mixed_bits(self.key ^ mixed_bits(number)), p: self.p }
    }
}
