//! The process and the memory that operations run in: limits on untrusted work, the allocator, and available memory.
//!
//! This module does not depend on tensors. It is in this crate because the crate has all unsafe code, and because its allocator, which
//! every allocation goes through, has to be optimised as fully as the arithmetic.

pub mod bounded;
mod memory;
mod process;

pub use memory::{available_memory, keep_freed_memory, peak_memory, return_freed_memory};
#[cfg(unix)]
pub use process::{has_ended, readable_within};
pub use process::{in_own_group, kill_group, limit_memory, limit_process};
