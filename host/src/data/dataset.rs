//! The location of a dataset.

use crate::config::printable_path;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a dataset is, and how its columns are renamed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// Its files, read one after another; a folder means its shards.
    pub files: Vec<PathBuf>,
    /// Renamed columns: the wanted name, and the dataset's own.
    pub columns: Vec<(String, String)>,
}

impl From<&Path> for Dataset {
    fn from(path: &Path) -> Self {
        Self { files: vec![path.to_owned()], columns: Vec::new() }
    }
}

/// Its path, for errors.
impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.files.as_slice() {
            [] => write!(f, "dataset"),
            [file] => f.write_str(&printable_path(file)),
            [file, rest @ ..] => write!(f, "{} and {} more", printable_path(file), rest.len()),
        }
    }
}
