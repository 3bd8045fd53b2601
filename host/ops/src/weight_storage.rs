//! Weights in their stored precision, for products that compute in f32.
//!
//! Half-precision and quantized weights are widened in parts, where a product reads them. Widening is exact, and parts are split such that
//! no sum changes its order. So a product's result is bit-identical to that with the same weights in f32.

#[cfg(feature = "cuda")]
use super::Capability;
use super::codes::{QuantizationScheme, QuantizedWeight};
use super::simd::wide;
use super::slices::{TensorSlice, filled, read, read_as, tensor, unsupported};
use super::team::share;
use super::view::{MatrixView, Precision};
use super::{Result, matrix_dims};
use candle_core::{DType, Tensor};
use half::{bf16, f16};
use rayon::prelude::*;
use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Maximum number of values that are widened together: 16 MiB in f32.
const MOST: usize = 1 << 22;

/// Minimum number of rows or columns of a part. The matrix product sums small products in a different order.
const FEWEST: usize = 128;

/// Number of values that one task widens.
const TASK: usize = 1 << 14;

/// A weight `[out, in]` in its stored form.
#[derive(Clone, Copy, Debug)]
pub enum WeightMatrix<'a> {
    /// In f32, bf16 or f16; on a device, in the device's precision.
    Plain(&'a Tensor),
    /// In 8 or 4 bits.
    Quantized(QuantizedWeight<'a>),
}

impl<'a> From<&'a Tensor> for WeightMatrix<'a> {
    fn from(t: &'a Tensor) -> Self {
        Self::Plain(t)
    }
}

impl<'a> From<QuantizedWeight<'a>> for WeightMatrix<'a> {
    fn from(q: QuantizedWeight<'a>) -> Self {
        Self::Quantized(q)
    }
}

impl<'a> WeightMatrix<'a> {
    /// Returns the numbers of outputs and inputs.
    pub fn dims(self) -> (usize, usize) {
        match self {
            Self::Plain(t) => matrix_dims(t),
            Self::Quantized(q) => q.dims(),
        }
    }

    /// Returns whether the weight is stored in f32.
    pub fn is_f32(self) -> bool {
        matches!(self, Self::Plain(t) if t.dtype() == DType::F32)
    }

    /// Returns the values in f32, as a new tensor on the CPU.
    pub fn in_f32(self) -> Result<Tensor> {
        let (d_out, d_in) = self.dims();
        tensor(WeightValues::open(self)?.widened(0..d_out * d_in), (d_out, d_in))
    }

    /// Returns the tensor of a weight that is not quantized. Devices support only these.
    #[cfg(feature = "cuda")]
    pub(super) fn plain(self) -> Result<&'a Tensor> {
        match self {
            Self::Plain(t) => Ok(t),
            Self::Quantized(q) => Err(unsupported(Capability::QuantizedWeights.name(), q.codes)),
        }
    }
}

/// The values of a weight on the CPU.
pub(super) enum WeightValues<'a> {
    F32(TensorSlice<'a>),
    Bf16(TensorSlice<'a, bf16>),
    F16(TensorSlice<'a, f16>),
    Quantized { codes: TensorSlice<'a, u8>, scales: TensorSlice<'a>, scheme: QuantizationScheme, d_in: usize },
}

impl<'a> WeightValues<'a> {
    /// Opens a weight for reading.
    pub(super) fn open(matrix: WeightMatrix<'a>) -> Result<Self> {
        Ok(match matrix {
            WeightMatrix::Plain(t) => match t.dtype() {
                DType::F32 => Self::F32(read(t)?),
                DType::BF16 => Self::Bf16(read_as(t)?),
                DType::F16 => Self::F16(read_as(t)?),
                _ => return Err(unsupported("read", t)),
            },
            WeightMatrix::Quantized(q) => {
                Self::Quantized { codes: read_as(q.codes)?, scales: read(q.scales)?, scheme: q.scheme, d_in: q.dims().1 }
            }
        })
    }

    /// Writes the values starting with `first`, in row-major order.
    pub(super) fn widen(&self, first: usize, out: &mut [MaybeUninit<f32>]) {
        let range = first..first + out.len();
        match self {
            Self::F32(values) => {
                out.write_copy_of_slice(&values[range]);
            }
            Self::Bf16(values) => {
                let values = &values[range];
                wide!(for (o, x) in out.iter_mut().zip(values) {
                    o.write(f32::from_bits(u32::from(x.to_bits()) << 16));
                });
            }
            Self::F16(values) => {
                let values = &values[range];
                wide!(for (o, x) in out.iter_mut().zip(values) {
                    o.write(widened_f16(x.to_bits()));
                });
            }
            Self::Quantized { codes, scales, scheme, d_in } => scheme.widen(codes, scales, *d_in, first, out),
        }
    }

    /// Returns some values: borrowed if f32, otherwise widened.
    pub(super) fn values(&self, range: Range<usize>) -> Cow<'_, [f32]> {
        match self {
            Self::F32(values) => Cow::Borrowed(&values[range]),
            _ => Cow::Owned(self.widened(range)),
        }
    }

    /// Returns a copy of some values.
    pub(super) fn widened(&self, range: Range<usize>) -> Vec<f32> {
        // SAFETY: all values are written.
        unsafe { filled(range.len(), |out| self.widen(range.start, out)) }
    }

    /// Returns a copy of the first `n` values, made by all threads.
    pub(super) fn all(&self, n: usize) -> Vec<f32> {
        // SAFETY: all values are written.
        unsafe { filled(n, |out| out.par_chunks_mut(TASK).enumerate().for_each(|(task, part)| self.widen(task * TASK, part))) }
    }

    /// Returns the block of these rows and columns of a matrix with rows of `width` values, row by row.
    pub(super) fn block(&self, rows: &Range<usize>, columns: &Range<usize>, width: usize) -> Vec<f32> {
        let line = columns.len().max(1);
        let lines = TASK.div_ceil(line);
        // SAFETY: all rows are written.
        unsafe {
            filled(rows.len() * columns.len(), |out| {
                out.par_chunks_mut(lines * line).enumerate().for_each(|(task, part)| {
                    for (i, out) in part.chunks_mut(line).enumerate() {
                        self.widen((rows.start + task * lines + i) * width + columns.start, out);
                    }
                });
            })
        }
    }

    /// Returns a `[rows, width]` matrix as an operand of a product in this precision; `None` if a value would have to be widened.
    pub(super) fn as_operand(&self, (rows, width): (usize, usize), precision: Precision) -> Option<MatrixView<'_>> {
        match (self, precision) {
            (Self::F32(values), _) => Some(MatrixView::new(values, rows, width)),
            (Self::Bf16(values), Precision::Bf16) => Some(MatrixView::from_bf16(values, rows, width)),
            _ => None,
        }
    }

    /// Returns the rows of a tensor as an operand of a product in this precision: f32, or bf16 for products in bf16.
    ///
    /// # Errors
    /// If values would have to be widened.
    pub(super) fn rows(&self, t: &Tensor, precision: Precision) -> Result<MatrixView<'_>> {
        self.as_operand(matrix_dims(t), precision).ok_or_else(|| unsupported("product", t))
    }

    /// Calls `each` with parts of the rows of a `[rows, width]` matrix, in order.
    pub(super) fn by_rows(
        &self,
        (rows, width): (usize, usize),
        precision: Precision,
        mut each: impl FnMut(Range<usize>, MatrixView<'_>),
    ) {
        if let Some(matrix) = self.as_operand((rows, width), precision) {
            return each(0..rows, matrix);
        }
        for part in parts(rows, width) {
            let values = self.block(&part, &(0..width), width);
            each(part.clone(), MatrixView::new(&values, part.len(), width));
        }
    }

    /// Calls `each` with parts of the columns of a `[rows, width]` matrix, in order.
    pub(super) fn by_columns(
        &self,
        (rows, width): (usize, usize),
        precision: Precision,
        mut each: impl FnMut(Range<usize>, MatrixView<'_>),
    ) {
        if let Some(matrix) = self.as_operand((rows, width), precision) {
            return each(0..width, matrix);
        }
        for part in parts(width, rows) {
            let values = self.block(&(0..rows), &part, width);
            each(part.clone(), MatrixView::new(&values, rows, part.len()));
        }
    }
}

/// A matrix `[rows, width]` whose rows are read in blocks, each several times in succession.
pub(super) struct RowBlocks<'a> {
    stored: WeightValues<'a>,
    width: usize,
    precision: Precision,
    /// Rows of the last block, if it was widened.
    rows: Range<usize>,
    values: Vec<f32>,
}

impl<'a> RowBlocks<'a> {
    pub(super) fn new(matrix: &'a Tensor, precision: Precision) -> Result<Self> {
        let width = matrix_dims(matrix).1;
        Ok(Self { stored: WeightValues::open(matrix.into())?, width, precision, rows: 0..0, values: Vec::new() })
    }

    /// Returns some rows.
    pub(super) fn rows(&mut self, rows: &Range<usize>) -> MatrixView<'_> {
        let place = rows.start * self.width..rows.end * self.width;
        match &self.stored {
            WeightValues::F32(values) => return MatrixView::new(&values[place], rows.len(), self.width),
            WeightValues::Bf16(values) if self.precision == Precision::Bf16 => {
                return MatrixView::from_bf16(&values[place], rows.len(), self.width);
            }
            _ => {}
        }
        if self.rows != *rows {
            self.rows = rows.clone();
            self.values = self.stored.block(rows, &(0..self.width), self.width);
        }
        MatrixView::new(&self.values, rows.len(), self.width)
    }
}

/// Divides lines of this length into parts of nearly equal size.
fn parts(lines: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    let count = (lines * length).div_ceil(MOST).min(lines / FEWEST).max(1);
    (0..count).map(move |i| share(lines, i, count))
}

/// Converts the bits of a finite f16. The exponent bias is 15 for f16 and 127 for f32.
#[inline(always)]
fn widened_f16(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let size = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 127 - 15) << 23);
    // Infinite and NaN values have the maximum exponent and keep it.
    let top = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(size.to_bits() | top | (bits & 0x8000) << 16)
}
