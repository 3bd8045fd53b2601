//! State of sequences, prompts and rows in device memory; the structures are those of `host/kernels/decode.cuh`.

use super::super::super::attention::Heads;
use super::super::super::{Error, Result};
use super::super::array::{Array, at, buffer};
use super::Session;
use candle_core::Tensor;
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DeviceRepr};
use std::ops::Range;

/// Number of values in `struct Sequence`.
const SEQUENCE: usize = 4;

/// Most runs that a prompt's positions, or a sequence's own, are split into.
const MOST_RUNS: usize = 32;

/// Fewest positions of a run.
const SHORTEST_RUN: usize = 128;

/// Sizes of a generation.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Most sequences decoded in parallel.
    pub slots: usize,
    /// Most positions of a sequence after its prompt.
    pub room: usize,
    /// Tokens of the longest prompt.
    pub longest_prompt: usize,
    /// Number of layers.
    pub layers: usize,
    /// Numbers and size of heads.
    pub heads: Heads,
    /// Width of hidden states.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Columns of its wide products: twice its width if it is gated.
    pub wide: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Whether to remember which tokens occurred.
    pub remembers: bool,
    /// Whether to keep which tokens could be sampled.
    pub keeps_support: bool,
}

impl Sizes {
    /// Returns the number of positions in a run.
    pub(super) fn split(&self) -> usize {
        SHORTEST_RUN * self.longest_prompt.max(self.room).div_ceil(SHORTEST_RUN * MOST_RUNS).max(1)
    }

    /// Returns the number of runs of a sequence's own positions.
    pub(super) fn own_runs(&self) -> usize {
        self.room.div_ceil(self.split())
    }

    /// Returns the number of runs of a row: of its prompt's positions and its own.
    pub(super) fn runs(&self) -> usize {
        self.longest_prompt.div_ceil(self.split()) + self.own_runs()
    }

    /// Returns the most prompts known at once: one per sequence, and one whose last sequences still wait.
    pub fn places(&self) -> usize {
        self.slots + 1
    }

    /// Returns the number of words in a bit set of the vocabulary.
    pub(super) fn words(&self) -> usize {
        self.vocabulary.div_ceil(32)
    }
}

/// Rows that share a prompt.
#[derive(Clone, Copy, Debug)]
pub struct SharedPrompt {
    /// The prompt's place.
    pub place: usize,
    /// The prompt's length.
    pub len: usize,
    /// The first row and the number of rows.
    pub rows: (usize, usize),
}

/// Arrays in device memory.
pub(super) struct State {
    /// `struct Sequence`, `[S]`.
    pub sequences: CudaSlice<u32>,
    /// Random numbers for sampling, `[S, room]`.
    pub uniforms: CudaSlice<f64>,
    /// Bits of tokens that occurred, `[S, words]`; one word if they are not remembered.
    pub seen: CudaSlice<u32>,
    /// Slot of each row.
    pub slots: CudaSlice<u32>,
    /// `struct Step`.
    pub step: CudaSlice<u32>,
    /// `struct Share`.
    pub shares: CudaSlice<u32>,
    /// `struct Prompt`, `[places, layers]`.
    pub prompts: CudaSlice<u64>,
    /// Length of each prompt.
    pub prompt_lengths: CudaSlice<u32>,
    /// What is known of each part of a row of logits, `struct Top` `[R, parts]`.
    pub tops: CudaSlice<u64>,
    /// The mass of each part of a row of logits, `[R, parts]`.
    pub masses: CudaSlice<u64>,
    /// Sampled tokens and the bits of their log-probabilities, `[R, 2]`.
    pub drawn: CudaSlice<u32>,
    /// Bits of the tokens that could be sampled, `[R, words]`; one word if they are not kept.
    pub support: CudaSlice<u32>,
}

impl State {
    pub fn new(device: &CudaDevice, sizes: &Sizes) -> Result<Self> {
        Ok(Self {
            sequences: buffer(device, sizes.slots * SEQUENCE)?,
            uniforms: buffer(device, sizes.slots * sizes.room)?,
            seen: buffer(device, if sizes.remembers { sizes.slots * sizes.words() } else { 1 })?,
            slots: buffer(device, sizes.slots)?,
            step: buffer(device, 2)?,
            shares: buffer(device, 4)?,
            prompts: buffer(device, sizes.places() * sizes.layers * 2)?,
            prompt_lengths: buffer(device, sizes.places())?,
            tops: buffer(device, sizes.slots * sizes.parts() * 2)?,
            masses: buffer(device, sizes.slots * sizes.parts())?,
            drawn: buffer(device, sizes.slots * 2)?,
            support: buffer(device, if sizes.keeps_support { sizes.slots * sizes.words() } else { 1 })?,
        })
    }
}

/// Copies values to an array, from index `first` on.
pub(super) fn put<T: DeviceRepr + 'static>(
    device: &CudaDevice,
    into: &mut CudaSlice<T>,
    first: usize,
    values: &[T],
) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    let (len, end) = (into.len(), first + values.len());
    let mut view = into
        .try_slice_mut(first..end)
        .ok_or_else(|| Error::Shape { op: "decode", detail: format!("values {first} to {end} of an array of {len}") })?;
    Ok(device.memcpy_htod(values, &mut view)?)
}

impl Session {
    /// Registers a prompt's keys and values under a place: rows `rows` of `[N, K * C]` in each layer. The caller keeps the
    /// tensors alive while the prompt's sequences are decoded.
    pub fn put_prompt(&mut self, place: usize, layers: &[(Tensor, Tensor)], rows: Range<usize>) -> Result<()> {
        let width = self.sizes.heads.kv_heads * self.sizes.heads.head_dim;
        let mut addresses = Vec::with_capacity(layers.len() * 2);
        for (k, v) in layers {
            for t in [k, v] {
                let array = Array::of_kind(t, self.kind)?;
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
        if first + uniforms.len() > self.sizes.room {
            let detail = format!("{} numbers from {first} on for {}", uniforms.len(), self.sizes.room);
            return Err(Error::Shape { op: "decode", detail });
        }
        put(&self.device, &mut self.state.uniforms, slot * self.sizes.room + first, uniforms)
    }

    /// Sets the tokens that occurred in a sequence, if they are remembered.
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

    /// Replaces a sequence's newest token, which the model has not seen.
    pub fn replace(&mut self, slot: usize, token: u32) -> Result<()> {
        put(&self.device, &mut self.state.sequences, slot * SEQUENCE, &[token])
    }

    /// Sets the slot of each row in the following steps. Rows of a share belong to sequences of its prompt.
    pub fn arrange(&mut self, slots: &[u32], shares: &[SharedPrompt]) -> Result<()> {
        let (split, most_rows) = (self.sizes.split(), super::attention::rows_of_block(&self.sizes));
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
            // A recorded step has the old address.
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
