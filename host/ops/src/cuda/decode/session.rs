//! Device memory of a generation.

use super::super::super::{Error, Result};
use super::super::array::{DeviceArray, ElementKind, at, buffer, unset};
use super::super::launch::driver_error;
use super::state::{DecodeSizes, DecodeState, SEQUENCE, SharedPrompt};
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DeviceRepr};
use candle_core::{Device, Tensor};
use std::ops::Range;

/// All device memory of one generation: `R` rows, `S` slots.
pub struct DecodeSession {
    pub(super) device: CudaDevice,
    pub(super) kind: ElementKind,
    pub(super) sizes: DecodeSizes,
    /// Number of rows in the next step.
    pub(super) rows: usize,
    /// Number of blocks of the next step's attention over prompts.
    pub(super) shares: usize,
    pub(super) state: DecodeState,
    pub(super) values: DecodeActivations,
    /// Keys and values of each sequence's own positions, `[layers, S, room, K * C]`.
    pub(super) own_k: Tensor,
    pub(super) own_v: Tensor,
    /// Attention over each run of positions, `[R, H, runs, C + 2]`.
    pub(super) parts: CudaSlice<f32>,
}

/// Values computed for a step's rows, each `[R, ..]`.
pub(super) struct DecodeActivations {
    pub(super) x: Tensor,
    pub(super) h: Tensor,
    pub(super) qkv: Tensor,
    pub(super) q: Tensor,
    pub(super) attended: Tensor,
    /// Results of the MLP's gate and up projections, and of its activation.
    pub(super) wide: Tensor,
    pub(super) active: Tensor,
    /// A product that is normalised or multiplied before it is added to `x`.
    pub(super) out: Tensor,
    /// Logits, in f32.
    pub(super) logits: Tensor,
}

/// Copies values to an array, from index `first` on.
fn put<T: DeviceRepr + 'static>(device: &CudaDevice, into: &mut CudaSlice<T>, first: usize, values: &[T]) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    let (len, end) = (into.len(), first + values.len());
    let mut view = into
        .try_slice_mut(first..end)
        .ok_or_else(|| Error::Shape { op: "decode", detail: format!("values {first} to {end} of an array of {len}") })?;
    Ok(device.memcpy_htod(values, &mut view)?)
}

impl DecodeSession {
    /// Allocates memory for a generation with weights like `like`, which determines device and precision.
    ///
    /// # Errors
    /// If the device has too little memory, or its kernels don't support heads of this size.
    pub fn new(like: &Tensor, sizes: DecodeSizes) -> Result<Self> {
        let kind = ElementKind::from_tensor(like)?;
        let Device::Cuda(device) = like.device() else {
            return Err(Error::Shape { op: "decode", detail: "the weights are not on a device".into() });
        };
        sizes.check()?;
        let (rows, h) = (sizes.slots, sizes.heads);
        let (width, kv_width) = (h.heads * h.head_dim, h.kv_heads * h.head_dim);
        let own = (sizes.layers, sizes.slots, sizes.max_own_positions, kv_width);
        let make = |cols: usize| unset(device, (rows, cols), kind);
        Ok(Self {
            device: device.clone(),
            kind,
            sizes,
            rows: 0,
            shares: 0,
            state: DecodeState::new(device, &sizes)?,
            values: DecodeActivations {
                x: make(sizes.hidden)?,
                h: make(sizes.hidden)?,
                qkv: make(width + 2 * kv_width)?,
                q: make(width)?,
                attended: make(width)?,
                wide: make(sizes.wide)?,
                active: make(sizes.intermediate)?,
                out: make(sizes.hidden)?,
                logits: unset(device, (rows, sizes.vocabulary), ElementKind::F32)?,
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

    /// Registers a prompt's keys and values at an index: rows `rows` of `[N, K * C]` in each layer. The caller keeps the tensors alive
    /// while the prompt's sequences are decoded.
    pub fn put_prompt(&mut self, place: usize, layers: &[(Tensor, Tensor)], rows: Range<usize>) -> Result<()> {
        let width = self.sizes.heads.kv_heads * self.sizes.heads.head_dim;
        let mut addresses = Vec::with_capacity(layers.len() * 2);
        for (k, v) in layers {
            for t in [k, v] {
                let array = DeviceArray::from_tensor_with_kind(t, self.kind)?;
                if rows.end * width > array.len || rows.len() > self.sizes.longest_prompt {
                    return Err(Error::Shape { op: "decode", detail: format!("prompt rows {rows:?} of {:?}", t.shape()) });
                }
                addresses.push(array.at + (rows.start * width * self.kind.size()) as u64);
            }
        }
        put(&self.device, &mut self.state.prompts, place * self.sizes.layers * 2, &addresses)?;
        put(&self.device, &mut self.state.prompt_lengths, place, &[rows.len() as u32])
    }

    /// Starts a sequence in a slot, with its prompt's tokens and its random numbers.
    pub fn begin(&mut self, slot: usize, prompt: &[u32], uniforms: &[f64]) -> Result<()> {
        put(&self.device, &mut self.state.sequences, slot * SEQUENCE, &[0, 0, prompt.len() as u32, 0])?;
        self.renew(slot, 0, uniforms)?;
        self.remember(slot, prompt)
    }

    /// Sets a sequence's random numbers for its tokens from this index on.
    pub fn renew(&mut self, slot: usize, first: usize, uniforms: &[f64]) -> Result<()> {
        if first + uniforms.len() > self.sizes.max_own_positions {
            let detail = format!("{} numbers from {first} on for {}", uniforms.len(), self.sizes.max_own_positions);
            return Err(Error::Shape { op: "decode", detail });
        }
        put(&self.device, &mut self.state.uniforms, slot * self.sizes.max_own_positions + first, uniforms)
    }

    /// Sets the tokens that have occurred in a sequence, if they are recorded.
    pub fn remember(&mut self, slot: usize, tokens: &[u32]) -> Result<()> {
        if !self.sizes.remembers {
            return Ok(());
        }
        let mut seen = vec![0u32; self.sizes.words()];
        for &token in tokens {
            seen[token as usize / 32] |= 1 << (token % 32);
        }
        put(&self.device, &mut self.state.seen, slot * self.sizes.words(), &seen)
    }

    /// Replaces a sequence's newest token, which the model has not read yet.
    pub fn replace(&mut self, slot: usize, token: u32) -> Result<()> {
        put(&self.device, &mut self.state.sequences, slot * SEQUENCE, &[token])
    }

    /// Sets the slot of each row in the following steps. Rows of a share belong to sequences of its prompt.
    pub fn arrange(&mut self, slots: &[u32], shares: &[SharedPrompt]) -> Result<()> {
        let (split, most_rows) = (self.sizes.split(), self.sizes.rows_of_block());
        let mut blocks: Vec<u32> = Vec::new();
        for share in shares {
            let (first, count) = share.rows;
            for row in (first..first + count).step_by(most_rows) {
                for position in (0..share.len).step_by(split) {
                    let rows = most_rows.min(first + count - row);
                    blocks.extend([share.place, row, rows, position].map(|n| n as u32));
                }
            }
        }
        if slots.len() > self.sizes.slots {
            return Err(Error::Shape { op: "decode", detail: format!("{} rows for {} slots", slots.len(), self.sizes.slots) });
        }
        if blocks.len() > self.state.shares.len() {
            // A recorded step uses the old address.
            self.state.shares = buffer(&self.device, blocks.len().next_power_of_two())?;
        }
        (self.rows, self.shares) = (slots.len(), blocks.len() / 4);
        put(&self.device, &mut self.state.slots, 0, slots)?;
        put(&self.device, &mut self.state.shares, 0, &blocks)?;
        put(&self.device, &mut self.state.step, 0, &[self.rows as u32, self.shares as u32])
    }

    /// Returns the addresses of the sequences, of the rows' slots and of the step.
    pub(super) fn tables(&self) -> [u64; 3] {
        [at(&self.state.sequences), at(&self.state.slots), at(&self.state.step)]
    }
}
