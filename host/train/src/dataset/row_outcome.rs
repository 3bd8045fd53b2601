//! What was seen of a dataset's rows before they are used.

use super::row_verdict::RowVerdict;
use crate::data::{self};
use serde::{Deserialize, Serialize};

/// Number of unusable rows whose errors are kept. More than are judged at once, so the first ones are among them.
pub(super) const NAMED: usize = 1 << 14;

/// What the first look at a row found. Errors are rare and large.
#[derive(Deserialize, Serialize)]
pub(super) enum RowOutcome {
    /// It is unusable, like many before it.
    Unnamed,
    /// An earlier row ends the run anyway.
    Passed,
    /// It can be used; with the names of other columns that were not seen before it.
    Usable(RowVerdict, Vec<String>),
    /// The row can't be read as one of this kind.
    Unreadable(#[serde(with = "data::error_serde")] Box<data::Error>),
    /// The row can't be used.
    Refused(#[serde(with = "data::error_serde")] Box<data::Error>),
}

/// What was found of each of a row's parts.
#[derive(Deserialize, Serialize)]
pub(super) struct PartOutcomes(pub(super) Vec<RowOutcome>);
