//! Checkpoint folders of a run. They are written under a temporary name, checksummed, and then renamed, so a folder with a checkpoint's
//! name is either complete or detectably damaged. Only this module writes them.

mod error;
mod finite_checker;
mod folder;
mod manifest;
mod parts;
mod required_files;
mod retention;
mod writer;

pub use error::Error;
pub use folder::{newest, replace, save, set_aside, sweep};
pub use manifest::{Manifest, verify};
pub use parts::{JointSave, PartsTimeout, collect_parts, discard_parts, write_part};
pub use retention::{RetentionOutcome, retain};
pub use writer::{CheckpointWriter, SaveOutcome};
