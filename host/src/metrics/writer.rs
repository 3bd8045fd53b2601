//! Files of JSON lines.

use crate::config::files;
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
    bytes: u64,
}

impl Lines {
    /// Opens for appending, creating the file; not through a link.
    pub fn append(path: PathBuf) -> io::Result<Self> {
        let file = files::own(&path, File::options().append(true))?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, file, bytes })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one line with a single call, so that a reader never sees half of one. Of a line that
    /// found no room nothing stays.
    pub fn write(&mut self, line: Line) -> io::Result<()> {
        let mut text = Value::Object(line).to_string();
        text.push('\n');
        let written = self.file.write_all(text.as_bytes());
        match written {
            Ok(()) => self.bytes += text.len() as u64,
            Err(_) => self.file.set_len(self.bytes)?,
        }
        written
    }
}
