//! Reads files of JSON lines that may be damaged, still growing, larger than memory, or somebody else's. Lines and files are read
//! up to a limit, and unreadable lines are counted.

use super::files;
use serde_json::{Map, Value};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Maximum length of a line, and maximum part of a file that is read.
const LONGEST_LINE: u64 = 1 << 20;
const MOST: u64 = 4 << 30;

/// What was not read from a file.
#[derive(Debug, Default)]
pub struct Unread {
    lines: u64,
    cut: bool,
}

impl Unread {
    /// Describes what was not read from the file of this name.
    pub fn notes(&self, file: &str) -> Vec<String> {
        let lines = match self.lines {
            0 => None,
            1 => Some(format!("{file}: 1 line is not a JSON object and is ignored")),
            lines => Some(format!("{file}: {lines} lines are not JSON objects and are ignored")),
        };
        let cut = self.cut.then(|| format!("{file}: only the first {} GiB are read", MOST >> 30));
        lines.into_iter().chain(cut).collect()
    }
}

/// Calls `take` with each object among a file's lines. Skips an unterminated last line, which is still being written.
///
/// # Errors
/// If it is not a regular file or can't be read.
pub fn each(path: &Path, mut take: impl FnMut(Map<String, Value>)) -> io::Result<Unread> {
    let file = files::open(path)?;
    let mut unread = Unread { lines: 0, cut: file.metadata()?.len() > MOST };
    let mut reader = BufReader::with_capacity(1 << 16, file.take(MOST));
    let mut line = Vec::new();
    loop {
        line.clear();
        (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(unread);
        }
        if line.ends_with(b"\n") {
            match serde_json::from_slice(&line) {
                Ok(object) => take(object),
                Err(_) => unread.lines += 1,
            }
        } else if line.len() as u64 == LONGEST_LINE {
            unread.lines += 1;
            skip_line(&mut reader)?;
        }
    }
}

/// Skips the rest of a line.
fn skip_line(reader: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let (length, ended) = (end.map_or(buffer.len(), |end| end + 1), end.is_some() || buffer.is_empty());
        reader.consume(length);
        if ended {
            return Ok(());
        }
    }
}
