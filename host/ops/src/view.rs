//! Views of matrices inside slices, as operands of products.

use half::bf16;
use std::ops::Range;

/// Precision to which operands of products are rounded. Sums are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// No rounding.
    #[default]
    F32,
    /// bf16, which processors with AVX-512 BF16 or AMX multiply several times faster.
    Bf16,
}

/// Values of an operand.
#[derive(Clone, Copy)]
pub(super) enum OperandValues<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl OperandValues<'_> {
    /// Returns the values from an index on.
    pub(super) fn starting_at(self, place: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[place..]),
            Self::Bf16(values) => Self::Bf16(&values[place..]),
        }
    }

    /// Returns a value rounded to bf16.
    pub(super) fn rounded(self, place: usize) -> f32 {
        match self {
            Self::F32(values) => bf16::from_f32(values[place]).to_f32(),
            Self::Bf16(values) => values[place].to_f32(),
        }
    }
}

/// A matrix inside a slice: element `(i, j)` is at `i * row_stride + j * col_stride`. One of the strides is one.
#[derive(Clone, Copy)]
pub(super) struct MatrixView<'a> {
    pub data: OperandValues<'a>,
    pub rows: usize,
    pub cols: usize,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl<'a> MatrixView<'a> {
    /// Creates a row-major `[rows, cols]` view.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::with_row_stride(data, rows, cols, cols)
    }

    /// Creates a view of rows of `cols` values, `row_stride` apart.
    pub fn with_row_stride(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(rows == 0 || cols == 0 || (rows - 1) * row_stride + cols <= data.len(), "matrix view out of bounds");
        Self { data: OperandValues::F32(data), rows, cols, row_stride, col_stride: 1 }
    }

    /// Creates a row-major `[rows, cols]` view of values in bf16.
    pub fn from_bf16(data: &'a [bf16], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "matrix view out of bounds");
        Self { data: OperandValues::Bf16(data), rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// Returns a view of some of the rows.
    pub fn some_rows(self, rows: &Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows outside of the matrix");
        let data = if rows.is_empty() { OperandValues::F32(&[]) } else { self.data.starting_at(rows.start * self.row_stride) };
        Self { data, rows: rows.len(), ..self }
    }

    /// Returns a view of some of the columns.
    pub fn some_columns(self, columns: &Range<usize>) -> Self {
        assert!(columns.start <= columns.end && columns.end <= self.cols, "columns outside of the matrix");
        let data = if self.rows == 0 { self.data } else { self.data.starting_at(columns.start * self.col_stride) };
        Self { data, cols: columns.len(), ..self }
    }

    /// Returns the transpose, without a copy.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// Returns the values rounded to bf16, row by row in f32.
    pub fn rounded(self) -> Vec<f32> {
        let places = (0..self.rows).flat_map(|i| (0..self.cols).map(move |j| i * self.row_stride + j * self.col_stride));
        places.map(|place| self.data.rounded(place)).collect()
    }
}
