//! Finds and opens devices.

use super::super::{Error, Result};
use super::array::{at, buffer};
use super::launch;
use candle_core::Device;
use candle_core::cuda_backend::cudarc::cublas::sys as cublas;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream, result, sys};
use candle_core::cuda_backend::{CudaDevice, cudarc};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Returns the number of devices, 0 without a driver, or a message if the driver does not work.
pub(crate) fn count() -> std::result::Result<usize, String> {
    match CudaContext::device_count() {
        Ok(count) => Ok(count as usize),
        // The driver's stub also returns this status if there is no driver.
        Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
        Err(e) => Err(format!("the NVIDIA driver returned {:?}", e.0)),
    }
}

/// Returns the name of device number `index`.
pub(crate) fn name(index: usize) -> String {
    let known = CudaContext::new(index).and_then(|context| context.name());
    known.map_or_else(|_| format!("cuda:{index}"), |name| format!("{name} (cuda:{index})"))
}

/// Returns device number `index`, the same one each time.
pub(crate) fn open(index: usize) -> Result<Device> {
    static OPENED: OnceLock<Mutex<HashMap<usize, Device>>> = OnceLock::new();
    let mut opened = OPENED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = opened.get(&index) {
        return Ok(device.clone());
    }
    // Uses a separate stream, since work on the default one can't be recorded as a graph.
    let device = CudaDevice::new_with_stream(index).map_err(explained)?;
    // SAFETY: all work is on that one stream, which keeps its order.
    unsafe { device.disable_event_tracking() };
    keep_freed_memory(&device.cuda_stream());
    sum_in_f32(&device.cublas_handle());
    give_workspace(&device);
    launch::check_driver(&device)?;
    let device = Device::Cuda(device);
    opened.insert(index, device.clone());
    Ok(device)
}

/// Libraries that opening a device needs, by the status that their stubs return if they are missing.
const LIBRARIES: [(&str, &str); 2] = [
    ("CUBLAS_STATUS_NOT_INITIALIZED", "libcublas.so.13 or, with a driver before 580, libcublas.so.12"),
    ("CURAND_STATUS_INITIALIZATION_FAILED", "libcurand.so.10"),
];

/// Returns an error that names the missing library, without a backtrace.
fn explained(e: candle_core::Error) -> Error {
    let text = match Error::from(e) {
        Error::Candle(e) => e.to_string(),
        known => return known,
    };
    let first = text.lines().next().unwrap_or_default();
    let missing = LIBRARIES.iter().find(|(status, _)| first.contains(status));
    let detail = missing.map_or_else(
        || first.to_owned(),
        |(status, library)| {
            format!(
                "{library} is missing, does not fit the driver, or finds the device's memory full ({status}); install the CUDA \
                 toolkit or PyTorch, or name the folder of the library in LD_LIBRARY_PATH (host/cuda/README.md)"
            )
        },
    );
    Error::Device(detail)
}

/// Keeps freed memory in the driver's pool, which otherwise releases it at each synchronisation with the device. No-op on devices without
/// pools.
fn keep_freed_memory(stream: &CudaStream) {
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the context's device is valid, and the attribute is a 64-bit number.
    unsafe {
        if let Ok(pool) = result::device::get_default_mem_pool(stream.context().cu_device()) {
            let _ = sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast());
        }
    }
}

/// Returns the peak size of the driver's memory pool so far, in bytes. This excludes the context itself, some hundred MB.
pub(crate) fn peak_memory(device: &CudaDevice) -> Option<u64> {
    let mut most = 0u64;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    // SAFETY: the context's device is valid, and the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_default_mem_pool(device.cuda_stream().context().cu_device()).ok()?;
        sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut most).cast()).result().ok()?;
    }
    Some(most)
}

/// Makes cuBLAS add partial sums of bf16 products in f32. Otherwise it may use bf16.
fn sum_in_f32(blas: &cudarc::cublas::CudaBlas) {
    let mode = cublas::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    // SAFETY: the handle is alive. A library that does not know the mode keeps its own.
    let _ = unsafe { cublas::cublasSetMathMode(*blas.handle(), mode) };
}

/// Gives cuBLAS a workspace of the size that NVIDIA recommends for compute capability 9.0. Otherwise it allocates one for each recorded
/// generation step.
fn give_workspace(device: &CudaDevice) {
    const BYTES: usize = 32 << 20;
    let Ok(room) = buffer::<u8>(device, BYTES) else { return };
    // SAFETY: the handle is alive and has its stream, and the memory stays until the process ends.
    let _ = unsafe { cublas::cublasSetWorkspace_v2(*device.cublas_handle().handle(), at(&room) as *mut _, BYTES) };
    std::mem::forget(room);
}
