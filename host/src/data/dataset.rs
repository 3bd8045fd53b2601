//! A dataset as it is named.

use crate::config::printable_path;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a dataset lies, and what its columns are called.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// Its files, read one after another; a folder stands for its shards.
    pub files: Vec<PathBuf>,
    /// Columns that are read under other names: the name that is wanted, and the dataset's own.
    pub columns: Vec<(String, String)>,
}

impl From<&Path> for Dataset {
    fn from(path: &Path) -> Self {
        Self { files: vec![path.to_owned()], columns: Vec::new() }
    }
}

/// The path that names it in errors.
impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.files.as_slice() {
            [] => write!(f, "dataset"),
            [file] => f.write_str(&printable_path(file)),
            [file, rest @ ..] => write!(f, "{} and {} more", printable_path(file), rest.len()),
        }
    }
}
