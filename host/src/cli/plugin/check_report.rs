//! The report of `rlhost plugin check`.

use super::super::output;

/// Prints the report and counts failures.
pub(super) struct CheckReport {
    pub(super) failures: usize,
    /// Whether the plugin reads a dataset's columns, but no dataset is given.
    pub(super) lacks_dataset: bool,
    /// Whether the algorithm's derivatives may differ from the loss's.
    pub(super) stop_gradient: bool,
}

impl CheckReport {
    pub(super) fn line(&mut self, good: bool, what: &str, detail: &str) {
        self.failures += usize::from(!good);
        output::row(&format!("{} {what:<24} {detail}", if good { "ok  " } else { "FAIL" }), 30);
    }

    /// Returns a call's value, or prints its error.
    pub(super) fn call<T>(&mut self, what: &str, outcome: crate::plugin::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let error = error.to_string();
                let advice = if self.lacks_dataset && error.contains("column") { "; give a dataset: --dataset FILE" } else { "" };
                self.line(false, what, &format!("{error}{advice}"));
                None
            }
        }
    }
}
