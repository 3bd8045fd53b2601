//! Models: what they compute and generate, their gradients, and what adapters, precisions and noise change of it.
//!
//! One program, because each would hold all of rlhost: they take ten times their size on disk, and as long to link.

#[path = "../shared/families.rs"]
mod families;
#[path = "../shared/packed.rs"]
mod packed;
#[path = "../shared/replies.rs"]
mod replies;

mod adapters;
mod bf16;
mod forest;
mod frozen_weights;
mod generation;
mod logits;
mod lora;
mod noise;
