//! Writes files of JSON lines.

use crate::config::files;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A log line; keys stay in the order in which they are added.
pub type LogLine = Map<String, Value>;

/// A file to which complete lines are appended.
#[derive(Debug)]
pub struct JsonLinesWriter {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl JsonLinesWriter {
    /// Opens a file for appending, creating it if needed. Does not follow a link.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let file = files::open_for_writing(&path, File::options().append(true))?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, file, bytes })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one line with a single call, so that a reader never sees half of it. A line that does not fit on the disk is removed
    /// completely.
    pub fn write(&mut self, line: LogLine) -> io::Result<()> {
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
