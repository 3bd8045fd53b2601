//! `rlhost ui`: a page in the browser that shows runs while they train, and steers them if it may.
//!
//! `api/` answers in JSON what the page asks. It reads runs only through `records`, and only what is new of a file (`live`).
//! The page itself is plain ES modules in `page/`, part of the binary. `frozen/` puts it into one file with the answers inside: the report
//! of a run, and a comparison of several. What changes a run, or needs plugins, is a [`PageBackend`], which
//! the command line implements with what `rlhost swap` and `rlhost replay` do.

mod access;
mod api;
mod assets;
mod backend;
mod folder;
mod frozen;
mod server;
mod store;
#[cfg(test)]
mod tests;

pub use backend::{PageBackend, PluginChanges, RescoredCompletion, RescoringRequest};
pub use frozen::FrozenPage;
pub use server::{PageServer, PageServerSettings};

use rlhost_config as config;
use rlhost_records::{diagnosis, metrics, report, run};
