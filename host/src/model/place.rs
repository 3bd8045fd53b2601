//! The device of a model's tensors and the precision it computes in.

use super::{Architecture, Error, Result};
use crate::config;
use crate::ops;
use candle_core::{DType, Device, Tensor};

/// A device and a precision.
#[derive(Clone, Debug)]
pub struct Place {
    device: Device,
    dtype: DType,
}

impl Place {
    /// Returns the CPU, where everything is computed in f32.
    pub fn cpu() -> Self {
        Self { device: Device::Cpu, dtype: DType::F32 }
    }

    /// Opens the NVIDIA device of this number, with matrix products in bf16 or f32.
    pub fn cuda(number: usize, bf16: bool) -> Result<Self> {
        Ok(Self { device: ops::device::open(number)?, dtype: if bf16 { DType::BF16 } else { DType::F32 } })
    }

    /// Resolves a run's `device`. An NVIDIA device computes in bf16 unless that is turned off. If no device number is given, the
    /// processes of a machine take the devices in turn, this one by its `local_rank`.
    ///
    /// # Errors
    /// If the requested device does not exist; the message says what is missing.
    pub fn choose(device: config::Device, bf16: Option<bool>, local_rank: usize) -> Result<Self> {
        let missing = |detail: String| Err(Error::Device(format!("{device}: {detail}")));
        let count = ops::device::count();
        if let (config::Device::Auto, true, Err(reason)) = (device, ops::device::BUILT, &count) {
            tracing::warn!("{reason}; computing on the CPU");
        }
        let number = match (device, count) {
            (config::Device::Cpu, _) | (config::Device::Auto, Err(_) | Ok(0)) => {
                if bf16 == Some(true) {
                    tracing::warn!("bf16: on the CPU everything is computed in f32");
                }
                if !ops::wide_registers() {
                    tracing::warn!("this processor has no AVX2 and FMA; everything works, but several times slower");
                }
                return Ok(Self::cpu());
            }
            (config::Device::Cuda(_), Err(reason)) => return missing(reason),
            (config::Device::Cuda(_), Ok(0)) => {
                return missing("there is no NVIDIA driver (libcuda.so.1), or it has no device".into());
            }
            (config::Device::Cuda(Some(number)), Ok(count)) if number >= count => {
                return missing(format!("the driver has {count} device(s), numbered 0 to {}", count - 1));
            }
            (config::Device::Cuda(Some(number)), _) => number,
            (config::Device::Cuda(None) | config::Device::Auto, Ok(count)) => local_rank % count,
        };
        match Self::cuda(number, bf16.unwrap_or(true)) {
            Err(e) if device == config::Device::Auto => {
                tracing::warn!("the NVIDIA device {number} can't be used ({e}); computing on the CPU");
                Ok(Self::cpu())
            }
            Err(e) => missing(e.to_string()),
            chosen => chosen,
        }
    }

    /// Returns an error if this place can't compute the model.
    pub(super) fn check(&self, architecture: &Architecture) -> Result<()> {
        if self.device.is_cpu() {
            return Ok(());
        }
        let missing = architecture.without_kernels();
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.join(", ");
        Err(Error::Device(format!("this model has {missing}, which only the CPU computes; set device = \"cpu\"")))
    }

    /// Returns the device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Describes the place in words.
    pub fn describe(&self) -> String {
        match self.device.location() {
            candle_core::DeviceLocation::Cuda { gpu_id } => {
                let precision = if self.rounds() { "bf16" } else { "f32" };
                format!("{}, in {precision}", ops::device::name(gpu_id))
            }
            _ => "the CPU".to_owned(),
        }
    }

    /// Returns whether matrices are rounded for computing, so that trained weights need a second copy in f32.
    pub fn rounds(&self) -> bool {
        self.dtype != DType::F32
    }

    /// Copies the values to the device, in f32.
    pub(super) fn put(&self, t: &Tensor) -> Result<Tensor> {
        Ok(ops::cast(&t.to_device(&self.device)?, DType::F32)?)
    }

    /// Converts the values to what the model computes with: matrices in a device's precision and on the CPU in the one that they have,
    /// norms and biases in f32. Shares storage if no conversion is needed.
    pub(super) fn computed(&self, t: &Tensor) -> Result<Tensor> {
        if self.device.is_cpu() {
            return Ok(t.clone());
        }
        let t = t.to_device(&self.device)?;
        Ok(if t.dims().len() > 1 { ops::cast(&t, self.dtype)? } else { t })
    }
}
