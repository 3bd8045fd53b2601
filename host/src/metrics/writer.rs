//! Files of JSON lines.

use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// One line: keys in the order they are added.
pub type Line = Map<String, Value>;

/// A file to which whole lines are appended.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    /// Opens for appending, creating the file.
    pub fn append(path: PathBuf) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(&path)?;
        Ok(Self { path, file })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one line with a single call, so that a reader never sees half of one.
    pub fn write(&mut self, line: Line) -> io::Result<()> {
        let mut text = Value::Object(line).to_string();
        text.push('\n');
        self.file.write_all(text.as_bytes())
    }
}
