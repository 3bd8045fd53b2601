//! Logits in tiles of rows and vocabulary, so that the complete `[M, V]` logits never exist.
//!
//! Tiles go through the vocabulary in blocks, and all rows use a block before the next one, so the output matrix, by far the largest
//! operand, is read from memory once per pass. Tiles are transposed, with one line per token, so that no product has to rearrange the
//! output matrix.

use super::gemm::{WriteMode, matmul};
use super::math::tanh;
use super::simd::wide;
use super::slices::read;
use super::support::Restriction;
use super::view::{MatrixView, Precision};
use super::weight_storage::RowBlocks;
use super::{Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;
use std::ops::Range;

/// Scale and soft cap that turn products of hidden states with the output matrix into logits: `bound(product / divisor) / temperature`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitScale {
    /// Divisor of the capped logits.
    pub temperature: f32,
    /// Divisor of the products.
    pub divisor: f32,
    /// Soft cap of the logits, `cap * tanh(logit / cap)`; none if `None`.
    pub cap: Option<f32>,
    /// Precision of the products on the CPU.
    pub precision: Precision,
}

impl From<f32> for LogitScale {
    fn from(temperature: f32) -> Self {
        Self { temperature, divisor: 1.0, cap: None, precision: Precision::F32 }
    }
}

impl LogitScale {
    /// Returns the factor that turns products into logits without a cap.
    pub(super) fn factor(self) -> f32 {
        1.0 / (self.temperature * self.divisor)
    }

    /// Applies the soft cap to a tile's logits, if there is one.
    fn bound(self, logits: &mut [f32]) {
        let Some(cap) = self.cap() else { return };
        logits.par_chunks_mut(1 << 14).for_each(|logits| {
            wide!(for z in logits.iter_mut() {
                *z = cap * tanh(*z / cap);
            });
        });
    }

    /// Returns the slopes of the soft cap at capped logits; `None` without a cap.
    pub(super) fn slopes(self, logits: &[f32]) -> Option<Vec<f32>> {
        let cap = self.cap()?;
        Some(logits.iter().map(|z| 1.0 - (z / cap) * (z / cap)).collect())
    }

    /// Returns the soft cap at this temperature.
    pub(super) fn cap(self) -> Option<f32> {
        self.cap.map(|cap| cap / self.temperature)
    }
}

/// Maximum numbers of rows and tokens of a tile, at most 8 MiB of logits.
pub(super) const ROWS: usize = 512;
pub(super) const TOKENS: usize = 4096;

/// Number of tokens whose logits one task computes: a share of a tile that fits into a core's own cache.
pub(super) const TOKENS_PER_TASK: usize = 256;

/// Number of values in a vector register, to a multiple of which lines are padded.
pub(super) const LANES: usize = 16;

/// Logits of some rows for a block of the vocabulary, with one line of rows for each token.
pub(super) struct LogitTile {
    pub rows: Range<usize>,
    pub tokens: Range<usize>,
}

/// Logits of a model, one tile at a time.
pub(super) struct LogitTiles<'a> {
    output: RowBlocks<'a>,
    /// The hidden states, transposed.
    turned: Vec<f32>,
    room: Vec<f32>,
    scale: LogitScale,
}

impl<'a> LogitTiles<'a> {
    /// Prepares the logits of `hidden: [M, D]` with the output matrix `output: [V, D]`.
    pub(super) fn new(hidden: &Tensor, output: &'a Tensor, scale: LogitScale) -> Result<Self> {
        let ((m, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(output));
        let turned = transpose(&read(hidden)?, d);
        Ok(Self { output: RowBlocks::new(output, scale.precision)?, turned, room: LogitTile::room(m, vocab), scale })
    }

    /// Returns a tile's logits and the corresponding rows of the output matrix.
    pub(super) fn tile_logits(&mut self, tile: &LogitTile) -> (&mut [f32], MatrixView<'_>) {
        let rows = self.output.rows(&tile.tokens);
        (tile.logits(&mut self.room, rows, &self.turned, self.scale), rows)
    }
}

/// Gradients of hidden states, `[M, D]`, and of an output matrix, if it is trained, to which tiles add.
pub(super) struct LogitGradients<'a> {
    pub hidden: MatrixView<'a>,
    pub d_hidden: &'a mut [f32],
    pub d_output: Option<&'a mut [f32]>,
    pub scale: LogitScale,
}

impl LogitGradients<'_> {
    /// Adds a tile's contribution, given the derivatives with respect to its logits, the `slopes` of their cap and the corresponding rows
    /// of the output matrix.
    pub(super) fn add(&mut self, tile: &LogitTile, d_logits: &mut [f32], slopes: Option<Vec<f32>>, output: MatrixView<'_>) {
        if let Some(slopes) = slopes {
            d_logits.iter_mut().zip(slopes).for_each(|(d, slope)| *d *= slope);
        }
        let (d, factor, run) = (self.hidden.cols, self.scale.factor(), self.scale.precision.on_all_threads());
        let d_logits = MatrixView::with_row_stride(d_logits, tile.tokens.len(), tile.rows.len(), tile.line());
        matmul(&mut self.d_hidden[tile.rows.start * d..], d, WriteMode::Add, d_logits.t(), output, factor, run);
        if let Some(d_output) = &mut self.d_output {
            let hidden = self.hidden.some_rows(&tile.rows);
            matmul(&mut d_output[tile.tokens.start * d..], d, WriteMode::Add, d_logits, hidden, factor, run);
        }
    }
}

impl LogitTile {
    /// Returns all tiles, block by block of the vocabulary. Their sizes depend only on those of the matrices, so sums over them have the
    /// same order with any number of threads.
    pub(super) fn all(m: usize, vocab: usize) -> impl Iterator<Item = Self> {
        let ranges = |total: usize, size: usize| (0..total).step_by(size).map(move |first| first..total.min(first + size));
        ranges(vocab, TOKENS).flat_map(move |tokens| ranges(m, ROWS).map(move |rows| Self { rows, tokens: tokens.clone() }))
    }

    /// Allocates memory for the logits of the largest tile.
    fn room(m: usize, vocab: usize) -> Vec<f32> {
        vec![0f32; m.min(ROWS).next_multiple_of(LANES) * vocab.min(TOKENS)]
    }

    /// Returns the number of values in a line.
    pub(super) fn line(&self) -> usize {
        self.rows.len().next_multiple_of(LANES)
    }

    /// Computes the tile's logits from the transposed hidden states and its tokens' rows of the output matrix.
    fn logits<'a>(&self, room: &'a mut [f32], w: MatrixView<'_>, turned: &[f32], scale: LogitScale) -> &'a mut [f32] {
        let logits = &mut room[..self.tokens.len() * self.line()];
        let h = MatrixView::with_row_stride(&turned[self.rows.start..], w.cols, self.rows.len(), turned.len() / w.cols.max(1));
        matmul(logits, self.line(), WriteMode::Replace, w, h, scale.factor(), scale.precision.on_all_threads());
        scale.bound(logits);
        logits
    }

    /// Restricts each row to the tokens of its support. Returns the logits that a penalty multiplied, each with its factor.
    pub(super) fn restrict(&self, logits: &mut [f32], restriction: Option<&Restriction>, vocab: usize) -> Vec<(usize, f32)> {
        restriction.map_or_else(Vec::new, |r| r.apply(logits, self.line(), (&self.rows, &self.tokens), vocab))
    }

    /// Returns the positions of the targets in this tile, each with its row.
    pub(super) fn targets<'a>(&'a self, targets: &'a [u32]) -> impl Iterator<Item = (usize, usize)> + 'a {
        let rows = self.rows.clone().filter(|&row| self.tokens.contains(&(targets[row] as usize)));
        rows.map(|row| ((targets[row] as usize - self.tokens.start) * self.line() + row - self.rows.start, row))
    }
}

/// Returns the transpose of `values: [M, D]`.
fn transpose(values: &[f32], d: usize) -> Vec<f32> {
    transpose_padded(values, d, values.len() / d.max(1))
}

/// Returns the transpose of `values: [M, D]` with lines of `line` values. Values from `M` on are zero.
pub(super) fn transpose_padded(values: &[f32], d: usize, line: usize) -> Vec<f32> {
    let mut turned = vec![0f32; d * line];
    turned.par_chunks_mut(LANES * line.max(1)).enumerate().for_each(|(i, lines)| {
        for (row, values) in values.chunks_exact(d).enumerate() {
            for (line, x) in lines.chunks_exact_mut(line).zip(&values[i * LANES..]) {
                line[row] = *x;
            }
        }
    });
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_everything_once_and_the_vocabulary_in_one_go() {
        let (m, vocab) = (2 * ROWS + 1, 3 * TOKENS + 5);
        let tiles: Vec<LogitTile> = LogitTile::all(m, vocab).collect();
        assert!(tiles.windows(2).all(|pair| pair[0].tokens.start <= pair[1].tokens.start));
        let covered: usize = tiles.iter().map(|tile| tile.rows.len() * tile.tokens.len()).sum();
        assert_eq!((covered, tiles.len()), (m * vocab, 3 * 4));
        assert!(LogitTile::room(1_000_000, 200_000).len() <= 1 << 21);
    }
}
