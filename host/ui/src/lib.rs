//! `rlhost ui`: a page in the browser that shows runs while they train and, if allowed, controls them.
//!
//! `api/` answers the page's requests in JSON. It reads runs only through `records`, and only the new parts of files (`live`). The page
//! consists of plain ES modules in `page/`, embedded in the binary. `frozen/` writes it with its data into one file: the report of a run,
//! or a comparison of several. Changing a run and loading plugins is left to a [`PageBackend`], which the command line implements with the
//! code of `rlhost swap` and `rlhost replay`.

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
