//! State of sequences, prompts and rows in device memory; the structures are those of `host/kernels/decode.cuh`.

use super::super::super::heads::Heads;
use super::super::super::{Error, LARGEST_HEAD, Result};
use super::super::array::buffer;
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;

/// Number of values in `struct Sequence`.
pub(super) const SEQUENCE: usize = 4;

/// Maximum number of runs that a prompt's positions, or a sequence's own, are split into.
const MOST_RUNS: usize = 32;

/// Minimum number of positions of a run.
const SHORTEST_RUN: usize = 128;

/// Number of queries that a block of attention processes at once.
pub(super) const QUERIES: usize = 64;

/// Head sizes that kernels are compiled for. Other sizes use the next larger one.
const DIMS: [usize; 3] = [64, 128, LARGEST_HEAD];

/// Number of logits in a part of a row when sampling in parts, as in the kernels.
pub(super) const PART: usize = 4096;

/// Sizes of a generation.
#[derive(Clone, Copy, Debug)]
pub struct DecodeSizes {
    /// Maximum number of sequences decoded in parallel.
    pub slots: usize,
    /// Maximum number of positions of a sequence after its prompt.
    pub max_own_positions: usize,
    /// Number of tokens of the longest prompt.
    pub longest_prompt: usize,
    /// Number of layers.
    pub layers: usize,
    /// Numbers and size of heads.
    pub heads: Heads,
    /// Width of hidden states.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Number of columns of the gate and up projections: twice the MLP's width if it is gated.
    pub wide: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Whether to record the tokens that have occurred.
    pub remembers: bool,
    /// Whether to record the tokens that could be sampled.
    pub keeps_support: bool,
}

impl DecodeSizes {
    /// Returns the number of positions in a run.
    pub(super) fn split(&self) -> usize {
        SHORTEST_RUN * self.longest_prompt.max(self.max_own_positions).div_ceil(SHORTEST_RUN * MOST_RUNS).max(1)
    }

    /// Returns the number of runs of a sequence's own positions.
    pub(super) fn own_runs(&self) -> usize {
        self.max_own_positions.div_ceil(self.split())
    }

    /// Returns the number of runs of a row: of its prompt's positions and its own.
    pub(super) fn runs(&self) -> usize {
        self.longest_prompt.div_ceil(self.split()) + self.own_runs()
    }

    /// Returns the maximum number of prompts at once: one per sequence, and one whose last sequences still wait.
    pub fn places(&self) -> usize {
        self.slots + 1
    }

    /// Returns the head size of the kernel to use.
    pub(super) fn kernel_dim(&self) -> Result<usize> {
        let dim = self.heads.head_dim;
        DIMS.into_iter().find(|d| dim <= *d).ok_or_else(|| Error::Shape {
            op: "decode",
            detail: format!("heads of size {dim}; the limit on a device is {LARGEST_HEAD}"),
        })
    }

    /// Returns the number of rows whose queries fit into one block.
    pub(super) fn rows_of_block(&self) -> usize {
        (QUERIES / self.heads.per_kv()).max(1)
    }

    /// Returns an error if the kernels don't support these heads.
    pub(super) fn check(&self) -> Result<()> {
        self.kernel_dim()?;
        if self.heads.per_kv() > QUERIES {
            let detail = format!("{} query heads per key/value head; the limit on a device is {QUERIES}", self.heads.per_kv());
            return Err(Error::Shape { op: "decode", detail });
        }
        Ok(())
    }

    /// Returns the number of parts of a row of logits.
    pub(super) fn parts(&self) -> usize {
        self.vocabulary.div_ceil(PART)
    }

    /// Returns the number of words in a bit set of the vocabulary.
    pub(super) fn words(&self) -> usize {
        self.vocabulary.div_ceil(32)
    }
}

/// Rows that share a prompt.
#[derive(Clone, Copy, Debug)]
pub struct SharedPrompt {
    /// Index of the prompt.
    pub place: usize,
    /// Length of the prompt, in tokens.
    pub len: usize,
    /// The first row and the number of rows.
    pub rows: (usize, usize),
}

/// Arrays in device memory.
pub(super) struct DecodeState {
    /// Sequences, `struct Sequence`, `[S]`.
    pub sequences: CudaSlice<u32>,
    /// Random numbers for sampling, `[S, room]`.
    pub uniforms: CudaSlice<f64>,
    /// Bits of tokens that have occurred, `[S, words]`; one word if they are not recorded.
    pub seen: CudaSlice<u32>,
    /// Slot of each row.
    pub slots: CudaSlice<u32>,
    /// The step, `struct Step`.
    pub step: CudaSlice<u32>,
    /// Shares of prompts, `struct Share`.
    pub shares: CudaSlice<u32>,
    /// Prompts, `struct Prompt`, `[places, layers]`.
    pub prompts: CudaSlice<u64>,
    /// Length of each prompt.
    pub prompt_lengths: CudaSlice<u32>,
    /// Statistics of each part of a row of logits, `struct Top`, `[R, parts]`.
    pub tops: CudaSlice<u64>,
    /// The mass of each part of a row of logits, `[R, parts]`.
    pub masses: CudaSlice<u64>,
    /// Sampled tokens and the bits of their log-probabilities, `[R, 2]`.
    pub drawn: CudaSlice<u32>,
    /// Bits of the tokens that could be sampled, `[R, words]`; one word if they are not recorded.
    pub support: CudaSlice<u32>,
}

impl DecodeState {
    pub fn new(device: &CudaDevice, sizes: &DecodeSizes) -> Result<Self> {
        Ok(Self {
            sequences: buffer(device, sizes.slots * SEQUENCE)?,
            uniforms: buffer(device, sizes.slots * sizes.max_own_positions)?,
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
