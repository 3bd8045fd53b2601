//! Finding and opening devices.

use super::super::Result;
use super::array::{at, buffer};
use super::launch;
use candle_core::Device;
use candle_core::cuda_backend::cudarc::cublas::sys as cublas;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream, result, sys};
use candle_core::cuda_backend::{CudaDevice, cudarc};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Number of devices, none where there is no driver; an error in words where that is not in order.
pub(crate) fn count() -> std::result::Result<usize, String> {
    match CudaContext::device_count() {
        Ok(count) => Ok(count as usize),
        // What the stand-in for the driver says where there is none, too.
        Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
        Err(e) => Err(format!("the NVIDIA driver says {:?}", e.0)),
    }
}

/// What device number `index` calls itself.
pub(crate) fn name(index: usize) -> String {
    let known = CudaContext::new(index).and_then(|context| context.name());
    known.map_or_else(|_| format!("cuda:{index}"), |name| format!("{name} (cuda:{index})"))
}

/// Device number `index`, the same one each time.
pub(crate) fn open(index: usize) -> Result<Device> {
    static OPENED: OnceLock<Mutex<HashMap<usize, Device>>> = OnceLock::new();
    let mut opened = OPENED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = opened.get(&index) {
        return Ok(device.clone());
    }
    // A stream of its own, since what is put on the default one can't be recorded as a graph.
    let device = CudaDevice::new_with_stream(index)?;
    // SAFETY: all work is put on that one stream, which keeps its order.
    unsafe { device.disable_event_tracking() };
    keep_freed_memory(&device.cuda_stream());
    sum_in_f32(&device.cublas_handle());
    give_workspace(&device);
    launch::accepted(&device)?;
    let device = Device::Cuda(device);
    opened.insert(index, device.clone());
    Ok(device)
}

/// Keeps freed memory in the driver's pool, which otherwise gives it back whenever somebody waits for the
/// device. Without pools there is nothing to keep.
fn keep_freed_memory(stream: &CudaStream) {
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the context's device is a device, and the attribute is a number of 64 bits.
    unsafe {
        if let Ok(pool) = result::device::get_default_mem_pool(stream.context().cu_device()) {
            let _ = sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast());
        }
    }
}

/// The most that the driver's pool has had of the device's memory so far, in bytes. What the context itself takes, some
/// hundred MB, is not in it.
pub(crate) fn peak_memory(device: &CudaDevice) -> Option<u64> {
    let mut most = 0u64;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    // SAFETY: the context's device is a device, and the attribute is a number of 64 bits.
    unsafe {
        let pool = result::device::get_default_mem_pool(device.cuda_stream().context().cu_device()).ok()?;
        sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut most).cast()).result().ok()?;
    }
    Some(most)
}

/// Has cuBLAS add partial sums of a bf16 product in f32, which it may do in bf16 otherwise.
fn sum_in_f32(blas: &cudarc::cublas::CudaBlas) {
    let mode = cublas::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    // SAFETY: the handle is alive. A library that does not know the mode keeps the one it has.
    let _ = unsafe { cublas::cublasSetMathMode(*blas.handle(), mode) };
}

/// Gives cuBLAS memory to work in, as much as NVIDIA recommends for compute capability 9.0. Without, it allocates some for
/// each step of a generation that is recorded.
fn give_workspace(device: &CudaDevice) {
    const BYTES: usize = 32 << 20;
    let Ok(room) = buffer::<u8>(device, BYTES) else { return };
    // SAFETY: the handle is alive and has its stream already, and the memory stays until the process ends.
    let _ = unsafe { cublas::cublasSetWorkspace_v2(*device.cublas_handle().handle(), at(&room) as *mut _, BYTES) };
    std::mem::forget(room);
}
