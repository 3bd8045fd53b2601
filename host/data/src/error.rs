//! What can be wrong with data.

use crate::config::printable_path;
use std::path::{Path, PathBuf};

/// An error in the data: what is wrong, where, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("can't read {}: {source}", printable_path(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A dataset's row can't be used.
    #[error("{}:{line}: {detail}", printable_path(path))]
    Row {
        /// The dataset.
        path: PathBuf,
        /// The line, or the place in its array or table, from 1.
        line: usize,
        /// What is wrong with it.
        detail: String,
    },
    /// A dataset as a whole can't be used.
    #[error("{}: {detail}", printable_path(path))]
    Dataset {
        /// The dataset.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A text takes too much time or memory to render or to tokenize; others would, too.
    #[error("{place}: {detail}")]
    Unbounded {
        /// The tokenizer, or the row.
        place: String,
        /// What was too much.
        detail: String,
    },
    /// A text has no tokens, where something is read at its last one.
    #[error("{text:?} has no tokens in the model's tokenizer")]
    Untokenized {
        /// The text.
        text: String,
    },
    /// Another rank found something wrong that is not a row's alone.
    #[error("{text}")]
    OfRank {
        /// What it said.
        text: String,
    },
    /// The tokenizer's files can't be used, or a text can't be tokenized.
    #[error("{}: {detail}", printable_path(path))]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

impl Error {
    /// Returns the error of a file in the `folder` of the built-in model, which is temporary, without the folder's path.
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

    /// Returns whether something that the user gave is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Io { source, .. } => crate::config::files::is_path_error(source),
            Self::Row { .. }
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
