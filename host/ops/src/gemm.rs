//! Matrix products over strided views, through the `gemm` crate.

use super::cpu::filled;
use gemm::Parallelism;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A matrix inside a slice: element `(i, j)` is at `i * row_stride + j * col_stride`.
#[derive(Clone, Copy)]
pub(super) struct Mat<'a> {
    data: &'a [f32],
    pub rows: usize,
    pub cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Mat<'a> {
    /// Creates a row-major `[rows, cols]` view.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// Creates a view of rows of `cols` values, `row_stride` apart.
    pub fn strided(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(rows == 0 || cols == 0 || (rows - 1) * row_stride + cols <= data.len(), "matrix view out of bounds");
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// Returns a view of some of the rows.
    pub fn some_rows(self, rows: &Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows outside of the matrix");
        let data = if rows.is_empty() { &[] } else { &self.data[rows.start * self.row_stride..] };
        Self { data, rows: rows.len(), ..self }
    }

    /// Returns the transpose, without a copy.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// Whether a product replaces its destination or is added to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dst {
    Replace,
    Add,
}

/// Below this many multiplications, waking a second thread costs more than it saves.
const WORTH_SHARING: usize = 1 << 22;

/// Returns all threads of the pool, for products large enough for them.
pub(super) fn all_threads() -> Parallelism {
    Parallelism::Rayon(rayon::current_num_threads())
}

/// Computes `out (+)= scale * a b` for a row-major `out` with rows `out_stride` apart.
pub(super) fn matmul(out: &mut [f32], out_stride: usize, dst: Dst, a: Mat<'_>, b: Mat<'_>, scale: f32, par: Parallelism) {
    assert!(a.rows == 0 || b.cols == 0 || (a.rows - 1) * out_stride + b.cols <= out.len(), "destination too small");
    // SAFETY: the destination holds a.rows rows of b.cols values, as just checked, and is borrowed mutably.
    unsafe { matmul_raw(out.as_mut_ptr(), out_stride, dst, a, b, scale, par) }
}

/// Returns `scale * a b` as new row-major values.
pub(super) fn product(a: Mat<'_>, b: Mat<'_>, scale: f32, par: Parallelism) -> Vec<f32> {
    // SAFETY: the product sets every value of its destination.
    unsafe {
        filled(a.rows * b.cols, |out| {
            if a.cols == 0 {
                out.fill(MaybeUninit::new(0.0));
            }
            matmul_raw(out.as_mut_ptr().cast(), b.cols, Dst::Replace, a, b, scale, par);
        })
    }
}

/// [`matmul`] into memory that several tasks share.
///
/// # Safety
/// `out` points to `a.rows` rows of `b.cols` values, `out_stride` apart, that nothing else reads or writes during the call.
pub(super) unsafe fn matmul_raw(
    out: *mut f32,
    out_stride: usize,
    dst: Dst,
    a: Mat<'_>,
    b: Mat<'_>,
    scale: f32,
    par: Parallelism,
) {
    assert_eq!(a.cols, b.rows, "inner dimensions differ");
    if a.rows == 0 || b.cols == 0 {
        return;
    }
    let par = if a.rows * a.cols * b.cols < WORTH_SHARING { Parallelism::None } else { par };
    // SAFETY: both operands were bounds-checked when their views were made; the caller guarantees the destination.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            out,
            1,
            out_stride as isize,
            dst == Dst::Add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            par,
        );
    }
}
