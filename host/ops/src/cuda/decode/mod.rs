//! Generation on a device: one new token at a time for each of many sequences.
//!
//! A [`DecodeSession`] owns all the memory for this. Each sequence has a slot with its newest token, its keys and values and its random
//! numbers. Each prompt has a place with the addresses of its keys and values. Each row of a step has the number of its slot. Kernels read
//! everything about a step from device memory, so the launches of a step stay the same and can be recorded ([`RecordedStep`]).
//!
//! The model composes a step from the methods in `layers.rs`, in the order of its layers, and then samples (`sample.rs`).

mod attention;
mod layers;
mod recorded_step;
mod sample;
mod session;
mod state;

pub use layers::{DecodeNorm, joined};
pub use recorded_step::RecordedStep;
pub use sample::DrawOptions;
pub use session::DecodeSession;
pub use state::{DecodeSizes, SharedPrompt};
