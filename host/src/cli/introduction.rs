//! The first line of a run's log.

use crate::config::{RunConfig, printable_path};
use std::path::Path;

/// Logs the requested model and dataset at once; the resolved plan follows when they are read.
pub(super) fn introduce(config: &RunConfig) {
    let name =
        |given: Option<&str>, built_in: &str| given.map_or_else(|| built_in.to_owned(), |name| printable_path(Path::new(name)));
    let algorithm = name(Some(&config.algorithm), "");
    let model = name(config.model.as_deref(), "the built-in model");
    // Whether there is a built-in dataset depends on the algorithm, which is not loaded yet.
    let dataset = config.dataset.as_deref().map(|given| format!(" on {}", name(Some(given), ""))).unwrap_or_default();
    tracing::info!("rlhost {}: {algorithm} of {model}{dataset}", env!("CARGO_PKG_VERSION"));
}
