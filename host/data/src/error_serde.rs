//! Serializes errors for other ranks (for serde's `with`).

use super::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// File and line of a row, if the error is about one, and the message.
type RowErrorParts = (Option<(String, usize)>, String);

/// Serializes an error.
pub fn serialize<S: Serializer>(error: &Error, to: S) -> Result<S::Ok, S::Error> {
    let told: RowErrorParts = match error {
        Error::Row { path, line, detail } => (Some((path.to_string_lossy().into_owned(), *line)), detail.clone()),
        other => (None, other.to_string()),
    };
    told.serialize(to)
}

/// Deserializes an error; one that is not about a row keeps only its message.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Box<Error>, D::Error> {
    Ok(Box::new(match RowErrorParts::deserialize(from)? {
        (Some((path, line)), detail) => Error::Row { path: path.into(), line, detail },
        (None, text) => Error::OfRank { text },
    }))
}
