//! Finds and opens devices.

#[cfg(feature = "cuda")]
use super::cuda;
use super::{Result, on_device};
use candle_core::{Device, Tensor};

/// Whether this build has kernels for NVIDIA devices.
pub const BUILT: bool = cfg!(feature = "cuda");

/// Returns the number of NVIDIA devices, 0 without a driver.
///
/// # Errors
/// A message if the driver does not work, or this build can't use any device.
#[cfg(feature = "cuda")]
pub fn count() -> std::result::Result<usize, String> {
    cuda::count()
}

/// Returns the number of NVIDIA devices, 0 without a driver.
///
/// # Errors
/// A message if the driver does not work, or this build can't use any device.
#[cfg(not(feature = "cuda"))]
pub fn count() -> std::result::Result<usize, String> {
    Err("this build has no kernels for NVIDIA devices; build with `cargo build --features rlhost/cuda`".into())
}

/// Returns an NVIDIA device's name.
#[cfg(feature = "cuda")]
pub fn name(index: usize) -> String {
    cuda::name(index)
}

/// Returns an NVIDIA device's name.
#[cfg(not(feature = "cuda"))]
pub fn name(index: usize) -> String {
    format!("cuda:{index}")
}

/// Returns NVIDIA device number `index`, the same one each time.
///
/// # Errors
/// If it does not exist, or this build can't use it.
#[cfg(feature = "cuda")]
pub fn open(index: usize) -> Result<Device> {
    cuda::open(index)
}

/// Returns NVIDIA device number `index`, the same one each time.
///
/// # Errors
/// If it does not exist, or this build can't use it.
#[cfg(not(feature = "cuda"))]
pub fn open(index: usize) -> Result<Device> {
    Ok(Device::new_cuda(index)?)
}

/// Returns the peak device memory of this process so far, in bytes; `None` for the CPU, or if the driver does not report it.
pub fn peak_memory(device: &Device) -> Option<u64> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::peak_memory(device),
        _ => None,
    }
}

/// Waits until a tensor's device has finished all its work, and reports its errors.
pub fn wait_for(t: &Tensor) -> Result<()> {
    on_device!(t, Ok(t.device().synchronize()?));
    let _ = t;
    Ok(())
}
