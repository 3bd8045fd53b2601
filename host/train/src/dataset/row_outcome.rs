//! Outcomes of the first look at a dataset's rows.

use super::row_verdict::RowVerdict;
use crate::data::{self};
use serde::{Deserialize, Serialize};

/// Number of unusable rows whose errors are stored: more than are judged at a time, so that the first errors are among them.
pub(super) const NAMED: usize = 1 << 14;

/// Outcome of the first look at a row. Errors are rare and large.
#[derive(Deserialize, Serialize)]
pub(super) enum RowOutcome {
    /// The row is unusable; its error was dropped, since many others are stored.
    Unnamed,
    /// The row was skipped, since an earlier one ends the run.
    Passed,
    /// The row is usable; the names are those of its columns that were not seen before.
    Usable(RowVerdict, Vec<String>),
    /// The row can't be read as one of this kind.
    Unreadable(#[serde(with = "data::error_serde")] Box<data::Error>),
    /// The row can't be used.
    Refused(#[serde(with = "data::error_serde")] Box<data::Error>),
}

/// Outcomes of a row's parts.
#[derive(Deserialize, Serialize)]
pub(super) struct PartOutcomes(pub(super) Vec<RowOutcome>);
