//! The device of a model's tensors and the precision it computes in.

use super::{Architecture, Error, LoraSettings, Result, TrainedBiases};
use crate::config;
use crate::ops::processor::{CAP, CpuFeatures, features};
use crate::ops::{self, Capability, LARGEST_HEAD, Precision};
use candle_core::{DType, Device, Tensor};

/// A device and a precision.
#[derive(Clone, Debug)]
pub struct ComputeBackend {
    device: Device,
    dtype: DType,
}

/// The backend that [`ComputeBackend::choose`] found, with warnings about the choice.
#[derive(Clone, Debug)]
pub struct BackendChoice {
    /// The backend.
    pub backend: ComputeBackend,
    /// Warnings about lower speed or precision than requested, with the reason.
    pub warnings: Vec<String>,
}

impl BackendChoice {
    /// Returns the CPU backend, in bf16 if that is requested and the processor supports it.
    fn cpu(bf16: Option<bool>, mut warnings: Vec<String>) -> Self {
        let rounds = bf16 == Some(true) && ops::multiplies_bf16();
        if bf16 == Some(true) && !rounds {
            warnings.push("bf16: this processor has no fast bf16; computing in f32".to_owned());
        }
        if !ops::wide_registers() && features() == CpuFeatures::detect() {
            warnings.push("this processor has no AVX2 and FMA; everything works, but several times slower".to_owned());
        }
        Self { backend: ComputeBackend::cpu_in(if rounds { Precision::Bf16 } else { Precision::F32 }), warnings }
    }

    /// Logs the warnings and returns the backend.
    #[must_use]
    pub fn with_warnings_logged(self) -> ComputeBackend {
        self.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.backend
    }
}

impl ComputeBackend {
    /// Returns the CPU backend with f32 throughout.
    pub fn cpu() -> Self {
        Self::cpu_in(Precision::F32)
    }

    /// Returns the CPU backend with operands of products in this precision. Everything else is f32.
    pub fn cpu_in(precision: Precision) -> Self {
        Self { device: Device::Cpu, dtype: if precision == Precision::Bf16 { DType::BF16 } else { DType::F32 } }
    }

    /// Opens the NVIDIA device of this number, with matrix products in bf16 or f32.
    pub fn cuda(number: usize, bf16: bool) -> Result<Self> {
        Ok(Self { device: ops::device::open(number)?, dtype: if bf16 { DType::BF16 } else { DType::F32 } })
    }

    /// Resolves a run's `device`. An NVIDIA device computes in bf16 unless that is turned off. Without a device number, the processes of a
    /// machine take the devices in turn, each by its `local_rank`.
    ///
    /// # Errors
    /// If the requested device does not exist; the message names what is missing.
    pub fn choose(device: config::Device, bf16: Option<bool>, local_rank: usize) -> Result<BackendChoice> {
        let missing = |detail: String| Err(Error::Device(format!("{device}: {detail}")));
        let count = ops::device::count();
        let mut warnings = Vec::new();
        if let (config::Device::Auto, true, Err(reason)) = (device, ops::device::BUILT, &count) {
            warnings.push(format!("{reason}; computing on the CPU"));
        }
        let number = match (device, count) {
            (config::Device::Cpu, _) | (config::Device::Auto, Err(_) | Ok(0)) => {
                return Ok(BackendChoice::cpu(bf16, warnings));
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
                warnings.push(format!("the NVIDIA device {number} can't be used ({e}); computing on the CPU"));
                Ok(BackendChoice { backend: Self::cpu(), warnings })
            }
            Err(e) => missing(e.to_string()),
            Ok(backend) => Ok(BackendChoice { backend, warnings }),
        }
    }

    /// Logs a hint if bf16, which is not the default on this device, would make a model of this many parameters several times faster.
    pub fn suggest_bf16(&self, given: Option<bool>, parameters: usize) {
        /// Above this size, products take most of a step.
        const WORTH_SAYING: usize = 50_000_000;
        if given.is_none()
            && self.precision() == Precision::F32
            && self.device.is_cpu()
            && parameters >= WORTH_SAYING
            && ops::multiplies_bf16()
        {
            tracing::info!("matrix products are computed in f32; on this processor, --bf16 true is several times faster");
        }
    }

    /// Returns an error if this backend can't compute the model or its adapter.
    pub(super) fn check(&self, architecture: &Architecture, lora: Option<LoraSettings>) -> Result<()> {
        let needs = lora.map_or([None; 2], |lora| {
            let biases = lora.biases != TrainedBiases::None || lora.b_bias || lora.stacks.router;
            [lora.use_dora.then_some(Capability::Magnitudes), biases.then_some(Capability::AdapterBiases)]
        });
        if let Some(why) = needs.into_iter().flatten().find_map(|needed| needed.refusal(&self.device)) {
            let detail = format!(
                "this adapter is for the CPU: {why}; set device = \"cpu\", or merge it into its base model with rlhost merge"
            );
            return Err(Error::Device(detail));
        }
        let model_type = architecture.family.description().model_type;
        if let Some(why) = architecture.needs().into_iter().find_map(|needed| needed.refusal(&self.device)) {
            return Err(Error::Device(format!("a model of type {model_type} is for the CPU: {why}; set device = \"cpu\"")));
        }
        if !self.device.is_cpu() && architecture.heads.head_dim > LARGEST_HEAD {
            let size = architecture.heads.head_dim;
            let detail = format!("heads of size {size}; a device supports {LARGEST_HEAD} at most; set device = \"cpu\"");
            return Err(Error::Device(detail));
        }
        Ok(())
    }

    /// Returns whether the backend supports this capability.
    pub fn supports(&self, capability: Capability) -> bool {
        capability.is_on(&self.device)
    }

    /// Returns the error message for a setting that needs an unsupported capability; `None` if it is supported.
    pub fn refusal(&self, capability: Capability) -> Option<String> {
        let why = capability.refusal(&self.device)?;
        Some(format!("is for the CPU: {why}; leave it out, or use --device cpu"))
    }

    /// Returns the device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Describes the backend in words.
    pub fn describe(&self) -> String {
        match self.device.location() {
            candle_core::DeviceLocation::Cuda { gpu_id } => {
                let precision = if self.is_bf16() { "bf16" } else { "f32" };
                format!("{}, in {precision}", ops::device::name(gpu_id))
            }
            _ => {
                let precision = if self.is_bf16() { ", with products in bf16" } else { "" };
                let is_capped = features() < CpuFeatures::detect();
                let cap = if is_capped { format!(", with {CAP}={}", features()) } else { String::new() };
                format!("the CPU{precision}{cap}")
            }
        }
    }

    /// Returns whether products are computed in bf16.
    pub fn is_bf16(&self) -> bool {
        self.dtype == DType::BF16
    }

    /// Returns whether matrices are stored rounded, so that trained weights need a second copy in f32. On the CPU they are not: a product
    /// rounds its inputs.
    pub(super) fn rounds(&self) -> bool {
        self.is_bf16() && !self.device.is_cpu()
    }

    /// Returns the precision of products on the CPU.
    pub(super) fn precision(&self) -> Precision {
        if self.is_bf16() && self.device.is_cpu() { Precision::Bf16 } else { Precision::F32 }
    }

    /// Copies the values to the device, in f32. For freed values, only allocates memory.
    pub(super) fn put(&self, t: &Tensor) -> Result<Tensor> {
        if self.device.is_cpu() && t.dtype() != DType::F32 && !ops::has_values(t) {
            let room = Tensor::zeros(t.shape(), DType::F32, &self.device)?;
            ops::free_values(&room)?;
            return Ok(room);
        }
        Ok(ops::cast(&t.to_device(&self.device)?, DType::F32)?)
    }

    /// Converts the values to the precision of the computation: matrices to the device's precision (unchanged on the CPU), norms and biases
    /// to f32. Shares storage if no conversion is needed.
    pub(super) fn computed(&self, t: &Tensor) -> Result<Tensor> {
        if self.device.is_cpu() {
            return Ok(t.clone());
        }
        let t = t.to_device(&self.device)?;
        Ok(if t.dims().len() > 1 { ops::cast(&t, self.dtype)? } else { t })
    }
}
