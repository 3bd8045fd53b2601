//! Matrix products through cuBLAS, with sums in f32.

use super::super::{Error, Result};
use super::array::{DeviceArray, ElementKind};
use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use std::sync::{Mutex, PoisonError};

/// A row-major matrix in an array, or its transpose.
#[derive(Clone, Copy)]
pub(super) struct DeviceMatrix {
    /// Address of the first value.
    at: u64,
    kind: ElementKind,
    pub rows: usize,
    pub cols: usize,
    /// Distance between rows in memory, in values.
    stride: usize,
    transposed: bool,
}

impl DeviceMatrix {
    /// Creates a row-major `[rows, cols]` view.
    pub fn new(array: DeviceArray<'_>, rows: usize, cols: usize) -> Self {
        debug_assert!(rows * cols <= array.len);
        Self { at: array.at, kind: array.kind, rows, cols, stride: cols, transposed: false }
    }

    /// Returns rows `first` to `first + rows`.
    pub fn rows(self, first: usize, rows: usize) -> Self {
        debug_assert!(!self.transposed && first + rows <= self.rows);
        Self { at: self.at + (first * self.stride * self.kind.size()) as u64, rows, ..self }
    }

    /// Returns the transpose, without a copy.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }

    fn operation(self) -> sys::cublasOperation_t {
        if self.transposed { sys::cublasOperation_t::CUBLAS_OP_T } else { sys::cublasOperation_t::CUBLAS_OP_N }
    }
}

fn data_type(kind: ElementKind) -> sys::cudaDataType {
    match kind {
        ElementKind::F32 => sys::cudaDataType_t::CUDA_R_32F,
        ElementKind::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
    }
}

/// Lock that is held during a call of cuBLAS.
static ALONE: Mutex<()> = Mutex::new(());

/// Computes `out = scale * a b + keep * out`. `a` and `b` are of one kind; `out` may be f32 if they are bf16.
///
/// cuBLAS is column-major: it sees the transposes of all three, and computes `out^T = b^T a^T`.
pub(super) fn product(
    device: DeviceArray<'_>,
    out: DeviceMatrix,
    keep: f32,
    a: DeviceMatrix,
    b: DeviceMatrix,
    scale: f32,
) -> Result<()> {
    if a.cols != b.rows || out.rows != a.rows || out.cols != b.cols || a.kind != b.kind || out.transposed {
        let detail = format!("{} x {} = {} x {} by {} x {}", out.rows, out.cols, a.rows, a.cols, b.rows, b.cols);
        return Err(Error::Shape { op: "product", detail });
    }
    if out.rows == 0 || out.cols == 0 {
        return Ok(());
    }
    let blas = device.device.cublas_handle();
    device.device.cuda_stream().context().bind_to_thread().map_err(super::launch::driver_error)?;
    // Only one thread may call at a time: a handle that several threads use at once can choose other kernels, which sum in another order.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the operands are matrices of these sizes in memory of their tensors, which outlive the call, as does the handle;
    // scale and keep are host values, as the handle expects.
    let done = unsafe {
        result::gemm_ex(
            *blas.handle(),
            b.operation(),
            a.operation(),
            out.cols as i32,
            out.rows as i32,
            a.cols as i32,
            (&raw const scale).cast(),
            b.at as *const _,
            data_type(b.kind),
            b.stride.max(1) as i32,
            a.at as *const _,
            data_type(a.kind),
            a.stride.max(1) as i32,
            (&raw const keep).cast(),
            out.at as *mut _,
            data_type(out.kind),
            out.stride as i32,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    };
    done.map_err(|e| candle_core::Error::from(CudaError::from(e)).into())
}
