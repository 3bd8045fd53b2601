//! The best checkpoint.

use serde::{Deserialize, Serialize};

/// The best checkpoint so far.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub(in crate::train) struct Best {
    pub step: u64,
    /// Its value of `metric_for_best_model`.
    pub value: f64,
}
