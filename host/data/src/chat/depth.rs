//! Limit on how deep values lie within each other.

use super::arguments::error;
use minijinja::Error;

/// Maximum depth of a value that is written; Python's own limit is similar.
pub(super) const DEEPEST_VALUE: usize = 500;

/// Returns the error of a value that is nested too deeply.
pub(super) fn too_deep() -> Error {
    error(format!("a value has more than {DEEPEST_VALUE} levels within each other"))
}
