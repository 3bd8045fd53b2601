//! Generation on a device: one new token at a time for each of many sequences.
//!
//! A [`Session`] owns all the memory for this. Each sequence has a slot with its newest token, its keys and values and its random
//! numbers; each prompt has a place with the addresses of its keys and values; each row of a step has the number of its slot.
//! Kernels read everything about a step from device memory, so the launches of a step stay the same and can be recorded
//! ([`Recorded`]).
//!
//! The model composes a step from the methods in `layers.rs`, in the order of its layers, and then samples (`sample.rs`).

mod attention;
mod layers;
mod recorded;
mod sample;
mod state;

pub use layers::{Norm, joined};
pub use recorded::Recorded;
pub use sample::Drawing;
pub use state::{SharedPrompt, Sizes};

use super::super::{Error, Result};
use super::array::{Kind, buffer, unset};
use super::launch::driver_error;
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{Device, Tensor};

/// All memory of one generation: `R` rows, `S` slots.
pub struct Session {
    device: CudaDevice,
    kind: Kind,
    sizes: Sizes,
    /// Number of rows in the next step.
    rows: usize,
    /// Blocks of the next step's attention over prompts.
    shares: usize,
    state: state::State,
    values: Values,
    /// Keys and values of each sequence's own positions, `[layers, S, room, K * C]`.
    own_k: Tensor,
    own_v: Tensor,
    /// Attention over each run of positions, `[R, H, runs, C + 2]`.
    parts: CudaSlice<f32>,
}

/// Values computed for a step's rows, each `[R, ..]`.
struct Values {
    x: Tensor,
    h: Tensor,
    qkv: Tensor,
    q: Tensor,
    attended: Tensor,
    /// The MLP's wide products, and what its activation makes of them.
    wide: Tensor,
    active: Tensor,
    /// A product that is normalised or multiplied before it is added to `x`.
    out: Tensor,
    /// In f32.
    logits: Tensor,
}

impl Session {
    /// Allocates memory for a generation with weights like `like`, which determines device and precision.
    ///
    /// # Errors
    /// If the device has not enough memory, or its kernels don't support heads of this size.
    pub fn new(like: &Tensor, sizes: Sizes) -> Result<Self> {
        let kind = Kind::of(like)?;
        let Device::Cuda(device) = like.device() else {
            return Err(Error::Shape { op: "decode", detail: "the weights are not on a device".into() });
        };
        attention::check(&sizes)?;
        let (rows, h) = (sizes.slots, sizes.heads);
        let (width, kv_width) = (h.heads * h.head_dim, h.kv_heads * h.head_dim);
        let own = (sizes.layers, sizes.slots, sizes.room, kv_width);
        let make = |cols: usize| unset(device, (rows, cols), kind);
        Ok(Self {
            device: device.clone(),
            kind,
            sizes,
            rows: 0,
            shares: 0,
            state: state::State::new(device, &sizes)?,
            values: Values {
                x: make(sizes.hidden)?,
                h: make(sizes.hidden)?,
                qkv: make(width + 2 * kv_width)?,
                q: make(width)?,
                attended: make(width)?,
                wide: make(sizes.wide)?,
                active: make(sizes.intermediate)?,
                out: make(sizes.hidden)?,
                logits: unset(device, (rows, sizes.vocabulary), Kind::F32)?,
            },
            own_k: unset(device, own, kind)?,
            own_v: unset(device, own, kind)?,
            parts: buffer(device, rows * h.heads * sizes.runs() * (h.head_dim + 2))?,
        })
    }

    /// Waits until the device has finished all its work.
    pub fn synchronize(&self) -> Result<()> {
        self.device.cuda_stream().synchronize().map_err(driver_error)
    }
}
