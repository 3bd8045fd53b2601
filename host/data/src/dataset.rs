//! Location of a dataset.

use super::Slice;
use crate::config::printable_path;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Location of a dataset, and how its columns are renamed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// Files, read one after another; a folder stands for its shards.
    pub files: Vec<PathBuf>,
    /// Parts of the files, read one after another; empty to read all rows.
    pub parts: Vec<FilePart>,
    /// Renamed columns: new name and original name.
    pub columns: Vec<(String, String)>,
}

/// Part of a dataset: some rows of some files.
#[derive(Clone, Debug, PartialEq)]
pub struct FilePart {
    /// Indices of the files, such as those of a split.
    pub files: Range<usize>,
    /// Slice of the files' rows; `None` for all rows.
    pub slice: Option<Slice>,
}

impl From<&Path> for Dataset {
    fn from(path: &Path) -> Self {
        Self { files: vec![path.to_owned()], ..Self::default() }
    }
}

/// Formats the path of the dataset, for errors.
impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.files.as_slice() {
            [] => write!(f, "dataset"),
            [file] => f.write_str(&printable_path(file)),
            [file, rest @ ..] => write!(f, "{} and {} more", printable_path(file), rest.len()),
        }
    }
}
