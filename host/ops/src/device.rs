//! Which devices there are.

#[cfg(feature = "cuda")]
use super::cuda;
use super::{Result, on_device};
use candle_core::{Device, Tensor};

/// Whether this build has kernels for NVIDIA devices.
pub const BUILT: bool = cfg!(feature = "cuda");

/// Number of NVIDIA devices, none where there is no driver.
///
/// # Errors
/// In words, where the driver is not in order, or nothing in this build could use one.
#[cfg(feature = "cuda")]
pub fn count() -> std::result::Result<usize, String> {
    cuda::count()
}

/// Number of NVIDIA devices, none where there is no driver.
///
/// # Errors
/// In words, where the driver is not in order, or nothing in this build could use one.
#[cfg(not(feature = "cuda"))]
pub fn count() -> std::result::Result<usize, String> {
    Err("this build has no kernels for NVIDIA devices; `cargo build --features rlhost/cuda` makes one that has".into())
}

/// What an NVIDIA device calls itself.
#[cfg(feature = "cuda")]
pub fn name(index: usize) -> String {
    cuda::name(index)
}

/// What an NVIDIA device calls itself.
#[cfg(not(feature = "cuda"))]
pub fn name(index: usize) -> String {
    format!("cuda:{index}")
}

/// NVIDIA device number `index`, the same one each time.
///
/// # Errors
/// If there is none, or none that this build could use.
#[cfg(feature = "cuda")]
pub fn open(index: usize) -> Result<Device> {
    cuda::open(index)
}

/// NVIDIA device number `index`, the same one each time.
///
/// # Errors
/// If there is none, or none that this build could use.
#[cfg(not(feature = "cuda"))]
pub fn open(index: usize) -> Result<Device> {
    Ok(Device::new_cuda(index)?)
}

/// The most memory that this process has taken of a device so far, in bytes; none of the CPU, or where the driver does
/// not say.
pub fn peak_memory(device: &Device) -> Option<u64> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::peak_memory(device),
        _ => None,
    }
}

/// Waits until a tensor's device has done all that it was given. What went wrong there is known then.
pub fn wait_for(t: &Tensor) -> Result<()> {
    on_device!(t, Ok(t.device().synchronize()?));
    let _ = t;
    Ok(())
}
