//! The location of a dataset.

use super::Slice;
use crate::config::printable_path;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where a dataset is, and how its columns are renamed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// Its files, read one after another; a folder means its shards.
    pub files: Vec<PathBuf>,
    /// Parts of the files, read one after another; none to read all rows.
    pub parts: Vec<FilePart>,
    /// Renamed columns: the wanted name, and the dataset's own.
    pub columns: Vec<(String, String)>,
}

/// Some rows of a dataset's files.
#[derive(Clone, Debug, PartialEq)]
pub struct FilePart {
    /// Which files, such as those of a split.
    pub files: Range<usize>,
    /// Which of their rows together; none for all.
    pub slice: Option<Slice>,
}

impl From<&Path> for Dataset {
    fn from(path: &Path) -> Self {
        Self { files: vec![path.to_owned()], ..Self::default() }
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
