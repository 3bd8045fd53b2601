//! Errors in data.

use crate::config::printable_path;
use std::path::{Path, PathBuf};

/// Error in the data: what is wrong, where, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("can't read {}: {source}", printable_path(path))]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A row of a dataset can't be used.
    #[error("{}:{line}: {detail}", printable_path(path))]
    Row {
        /// Path of the dataset.
        path: PathBuf,
        /// Line of the file, or index in the array or table, from 1.
        line: usize,
        /// What is wrong with the row.
        detail: String,
    },
    /// Several rows were read, and none of them can be used.
    #[error("none of the {rows} rows can be used; the first: {first}")]
    NoUsableRow {
        /// Number of rows.
        rows: usize,
        /// What is wrong with the first row.
        first: Box<Error>,
    },
    /// A dataset as a whole can't be used.
    #[error("{}: {detail}", printable_path(path))]
    Dataset {
        /// Path of the dataset.
        path: PathBuf,
        /// What is wrong with the dataset.
        detail: String,
    },
    /// A text takes too much time or memory to render or to tokenize; other texts would, too.
    #[error("{place}: {detail}")]
    Unbounded {
        /// Tokenizer or row.
        place: String,
        /// Which limit was exceeded.
        detail: String,
    },
    /// A text has no tokens, but a value at its last token is needed.
    #[error("{text:?} has no tokens in the model's tokenizer")]
    Untokenized {
        /// The text.
        text: String,
    },
    /// Another rank found an error that is not about a single row.
    #[error("{text}")]
    OfRank {
        /// Error message of the other rank.
        text: String,
    },
    /// The tokenizer's files can't be used, or a text can't be tokenized.
    #[error("{}: {detail}", printable_path(path))]
    Tokenizer {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

impl Error {
    /// Returns this error without the path of `folder`, the temporary folder of the built-in model.
    #[must_use]
    pub fn without_built_in_folder(self, folder: &Path) -> Self {
        match self {
            Self::Tokenizer { path, detail } if path.starts_with(folder) => {
                let file = path.strip_prefix(folder).unwrap_or(&path);
                Self::Tokenizer { path: Path::new("the built-in model").join(file), detail }
            }
            other => other,
        }
    }

    /// Returns whether the user's input is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Io { source, .. } => crate::config::files::is_path_error(source),
            Self::Row { .. }
            | Self::NoUsableRow { .. }
            | Self::Dataset { .. }
            | Self::Unbounded { .. }
            | Self::Untokenized { .. }
            | Self::OfRank { .. }
            | Self::Tokenizer { .. } => true,
        }
    }
}

/// Result of reading data.
pub type Result<T> = std::result::Result<T, Error>;
