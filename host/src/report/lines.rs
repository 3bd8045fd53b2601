//! Reads files of JSON lines, which may still be growing or be truncated.

use super::Error;
use serde_json::{Map, Value};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// Returns a file's name for a note.
pub(super) fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Calls `take` with each object in a file; a missing file has none. Skips an unterminated last line, which is still being
/// written. Lines that are not objects are reported in `notes`.
pub(super) fn each(path: &Path, notes: &mut Vec<String>, mut take: impl FnMut(Map<String, Value>)) -> Result<(), Error> {
    let fail = |source| Error::Read { path: path.to_owned(), source };
    let file = match super::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(fail)?,
    };
    let mut reader = BufReader::new(file);
    let (mut unread, mut line) = (Unread::default(), Vec::new());
    for at in 0.. {
        line.clear();
        reader.read_until(b'\n', &mut line).map_err(fail)?;
        if !line.ends_with(b"\n") {
            break;
        }
        match serde_json::from_slice(&line) {
            Ok(object) => take(object),
            Err(_) => unread.saw(at),
        }
    }
    unread.note(path, notes);
    Ok(())
}

/// Lines that were not JSON objects.
#[derive(Default)]
pub(super) struct Unread {
    count: usize,
    first: usize,
}

impl Unread {
    /// Counts such a line; `at` is the number of lines before it.
    pub(super) fn saw(&mut self, at: usize) {
        if self.count == 0 {
            self.first = at + 1;
        }
        self.count += 1;
    }

    /// Adds a note if there were any.
    pub(super) fn note(&self, path: &Path, notes: &mut Vec<String>) {
        let file = name(path);
        match self.count {
            0 => {}
            1 => notes.push(format!("{file}: line {} is not a JSON object and is ignored", self.first)),
            n => notes.push(format!("{file}: {n} lines are not JSON objects and are ignored; the first is line {}", self.first)),
        }
    }
}
