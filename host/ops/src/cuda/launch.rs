//! Finds kernels by name and launches them.

use super::super::{Error, Result};
use super::array::{DeviceArray, ElementKind};
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use candle_core::cuda_backend::cudarc::driver::sys::cudaError_enum::CUDA_ERROR_INVALID_VALUE;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, DriverError, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::cuda_backend::{CudaDevice, CudaError};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A file of `host/kernels/`: its stem, its PTX, and machine code by the major version of its architecture.
type KernelModule = (&'static str, &'static str, &'static [(i32, &'static [u8])]);

const MODULES: &[KernelModule] = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Number of threads per block for kernels without a preference.
const THREADS: u32 = 256;

/// Maximum number of blocks that grid-stride loops benefit from.
const MOST_BLOCKS: usize = 4096;

/// Shared memory that a block may use without opting in to more, in bytes.
const DEFAULT_SHARED_MEMORY: u32 = 48 << 10;

pub(super) fn driver_error(e: DriverError) -> Error {
    candle_core::Error::from(CudaError::from(e)).into()
}

/// Loads the smallest module. This fails if the driver is older than its PTX, or on a device below compute capability 8.0.
pub(super) fn check_driver(device: &CudaDevice) -> Result<()> {
    function(device, "optimizer", "adamw").map(drop)
}

/// Modules and kernels loaded on each device, by name.
#[derive(Default)]
struct LoadedKernels {
    modules: HashMap<(usize, &'static str), Arc<CudaModule>>,
    kernels: HashMap<(usize, String), CudaFunction>,
}

/// Returns a kernel's function, cached by device.
fn function(device: &CudaDevice, module: &'static str, kernel: &str) -> Result<CudaFunction> {
    static LOADED: OnceLock<Mutex<LoadedKernels>> = OnceLock::new();
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let stream = device.cuda_stream();
    let ordinal = stream.context().ordinal();
    let key = (ordinal, kernel.to_owned());
    if let Some(function) = loaded.kernels.get(&key) {
        return Ok(function.clone());
    }
    let of_module = match loaded.modules.entry((ordinal, module)) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(load(stream.context(), module, kernel)?),
    };
    let function = of_module.load_function(kernel).map_err(driver_error)?;
    loaded.kernels.insert(key, function.clone());
    Ok(function)
}

/// Loads a module with this kernel. Uses its machine code if there is some that the device runs and the driver supports, else its PTX,
/// which the driver compiles. With lazy loading, the driver may reject code only when its first kernel is looked up.
fn load(context: &Arc<CudaContext>, module: &str, kernel: &str) -> Result<Arc<CudaModule>> {
    let Some((_, ptx, machines)) = MODULES.iter().find(|(name, ..)| *name == module) else {
        return Err(Error::Shape { op: "launch", detail: format!("there is no module {module}") });
    };
    let (major, _) = context.compute_capability().map_err(driver_error)?;
    let code = machines.iter().find(|(of_major, _)| *of_major == major);
    let loaded = code.and_then(|(_, code)| context.load_module(Ptx::from_binary(code.to_vec())).ok());
    if let Some(module) = loaded.filter(|module| module.load_function(kernel).is_ok()) {
        return Ok(module);
    }
    context.load_module(Ptx::from_src(*ptx)).map_err(driver_error)
}

/// A kernel launch. Arguments are added in the kernel's order.
pub(crate) struct KernelLaunch<'a> {
    device: &'a CudaDevice,
    module: &'static str,
    kernel: String,
    grid: (u32, u32, u32),
    threads: u32,
    shared: u32,
    /// All arguments, each starting at a word.
    words: Vec<u64>,
    /// The word at which each argument starts.
    begins: Vec<usize>,
}

impl<'a> KernelLaunch<'a> {
    /// Creates a launch of the kernel with this name in `host/kernels/<module>.cu`: one block of 256 threads by default.
    pub fn new(device: &'a CudaDevice, module: &'static str, kernel: &str) -> Self {
        let kernel = kernel.to_owned();
        let (words, begins) = (Vec::new(), Vec::new());
        Self { device, module, kernel, grid: (1, 1, 1), threads: THREADS, shared: 0, words, begins }
    }

    /// Creates a launch of the kernel with this name for values of a kind.
    pub fn with_kind(device: &'a CudaDevice, module: &'static str, kernel: &str, kind: ElementKind) -> Self {
        Self::new(device, module, &format!("{kernel}_{}", kind.suffix()))
    }

    /// Sets the number of blocks, in one dimension.
    pub fn blocks(self, blocks: usize) -> Self {
        self.grid(blocks, 1, 1)
    }

    /// Sets the blocks in up to three dimensions. The last two are at most 65,535.
    pub fn grid(mut self, x: usize, y: usize, z: usize) -> Self {
        self.grid = (x as u32, y as u32, z as u32);
        self
    }

    /// Sets the threads per block.
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = threads;
        self
    }

    /// Sets the number of blocks for `n` values, for a kernel with a grid-stride loop.
    pub fn over(self, n: usize) -> Self {
        let blocks = n.div_ceil(self.threads as usize).min(MOST_BLOCKS);
        self.blocks(blocks)
    }

    /// Sets the bytes of dynamic shared memory per block.
    pub fn shared(mut self, bytes: usize) -> Self {
        self.shared = bytes as u32;
        self
    }

    /// Adds a tensor's address.
    pub fn array(self, array: DeviceArray<'_>) -> Self {
        self.address(array.at)
    }

    /// Adds a structure as eight-byte words. The last word may be half used.
    pub fn structure(mut self, words: &[u64]) -> Self {
        self.begins.push(self.words.len());
        self.words.extend_from_slice(words);
        self
    }

    /// Adds an address.
    pub fn address(self, at: u64) -> Self {
        self.structure(&[at])
    }

    /// Adds a `size_t`.
    pub fn size(self, n: usize) -> Self {
        self.structure(&[n as u64])
    }

    /// Adds an `int`.
    pub fn int(self, n: usize) -> Self {
        self.structure(&[n as u32 as u64])
    }

    /// Adds a `float`.
    pub fn float(self, x: f32) -> Self {
        self.structure(&[u64::from(x.to_bits())])
    }

    /// Returns the error for a device that has less shared memory than the kernel needs.
    fn too_much(&self) -> Error {
        let (kernel, kilobytes) = (&self.kernel, self.shared.div_ceil(1 << 10));
        let detail = format!(
            "a block of {kernel} needs {kilobytes} KiB of shared memory, more than this device has; heads of more than 128 values need as \
             much as A100 and H100 have; set device = \"cpu\" here"
        );
        Error::Shape { op: "launch", detail }
    }

    /// Launches the kernel on the device's stream. No-op without blocks.
    ///
    /// The caller guarantees that the arguments fit the kernel, and that addresses point to memory that is large enough and lives until
    /// this call returns. Memory freed later is freed on the same stream.
    pub fn run(self) -> Result<()> {
        if self.grid.0 == 0 || self.grid.1 == 0 || self.grid.2 == 0 {
            return Ok(());
        }
        let function = function(self.device, self.module, &self.kernel)?;
        if self.shared > DEFAULT_SHARED_MEMORY {
            let asked = function.set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, self.shared as i32);
            asked.map_err(|e| if e.0 == CUDA_ERROR_INVALID_VALUE { self.too_much() } else { driver_error(e) })?;
        }
        let stream = self.device.cuda_stream();
        let mut builder = stream.launch_builder(&function);
        for &begin in &self.begins {
            // The driver reads as many bytes from this address as the argument has.
            builder.arg(&self.words[begin]);
        }
        let config = LaunchConfig { grid_dim: self.grid, block_dim: (self.threads, 1, 1), shared_mem_bytes: self.shared };
        // SAFETY: guaranteed by the callers as documented; all of them are in this module.
        unsafe { builder.launch(config) }.map_err(driver_error)?;
        Ok(())
    }
}
