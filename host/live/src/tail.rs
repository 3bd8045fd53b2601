//! Reads the lines appended to a file since the last read.

use crate::config::files;
use crate::config::json_lines::{BoundedLine, JsonLinesReader};
use crate::run::ensure_own_file;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Number of bytes before the current offset that are compared to detect that the file was rewritten.
const REMEMBERED: usize = 64;

/// Number of lines between two checks of the time.
const AT_ONCE: usize = 32;

/// A result of reading.
pub(super) enum TailEvent<'a> {
    /// The file was replaced or truncated: everything read before is invalid.
    Restart,
    /// A line, and its offset.
    Line(u64, &'a [u8]),
}

/// A file of lines, and the offset up to which it was read.
pub(super) struct FileTail {
    path: PathBuf,
    longest: u64,
    place: u64,
    before: Vec<u8>,
}

impl FileTail {
    pub fn new(path: PathBuf, longest: u64) -> Self {
        Self { path, longest, place: 0, before: Vec::new() }
    }

    /// Returns the fraction of the file that was read, from 0 to 1.
    pub fn share(&self) -> f64 {
        let length = self.path.metadata().map_or(0, |found| found.len());
        if length == 0 { 1.0 } else { (self.place as f64 / length as f64).min(1.0) }
    }

    /// Returns the number of bytes that were read.
    pub fn place(&self) -> u64 {
        self.place
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Calls `take` for each new line until the time limit. Returns whether all were read. A missing file has no lines.
    pub fn advance(&mut self, until: Instant, mut take: impl FnMut(TailEvent<'_>)) -> io::Result<bool> {
        let reader = match open(&self.path, self.longest) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.restart(&mut take);
                return Ok(true);
            }
            reader => reader?,
        };
        if self.place > 0 && !self.is_as_before() {
            self.restart(&mut take);
        }
        let mut reader = reader.with_limit(u64::MAX);
        reader.seek(self.place)?;
        let mut lines = 0;
        loop {
            if lines == AT_ONCE {
                if Instant::now() >= until {
                    return Ok(false);
                }
                lines = 0;
            }
            lines += 1;
            let is_whole = match reader.next_line()? {
                None => return Ok(true),
                Some(line) => line != BoundedLine::TooLong,
            };
            if is_whole {
                let (place, text) = (reader.offset(), reader.text());
                self.place = place + text.len() as u64;
                self.before.clear();
                self.before.extend_from_slice(&text[text.len().saturating_sub(REMEMBERED)..]);
                take(TailEvent::Line(place, text));
            }
        }
    }

    fn restart(&mut self, take: &mut impl FnMut(TailEvent<'_>)) {
        if self.place > 0 {
            (self.place, self.before) = (0, Vec::new());
            take(TailEvent::Restart);
        }
    }

    /// Returns whether the bytes that were last read are unchanged.
    fn is_as_before(&self) -> bool {
        let read = || -> io::Result<Vec<u8>> {
            let (mut file, mut bytes) = (files::open(&self.path)?, vec![0; self.before.len()]);
            file.seek(SeekFrom::Start(self.place - bytes.len() as u64))?;
            file.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        read().is_ok_and(|bytes| bytes == self.before)
    }
}

/// Opens a file of a run's folder, unless it is a link.
pub(super) fn open(path: &Path, longest: u64) -> io::Result<JsonLinesReader> {
    ensure_own_file(path.parent().unwrap_or(path), path)?;
    JsonLinesReader::open(path, longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::Write;
    use std::time::Duration;

    fn look(tail: &mut FileTail) -> Vec<String> {
        let mut seen = Vec::new();
        let all = tail.advance(Instant::now() + Duration::from_secs(60), |piece| {
            seen.push(match piece {
                TailEvent::Restart => "restart".to_owned(),
                TailEvent::Line(place, text) => format!("{place} {}", String::from_utf8_lossy(text).trim()),
            });
        });
        assert!(all.unwrap());
        seen
    }

    #[test]
    fn each_look_reads_whole_lines_that_are_new() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut tail = FileTail::new(path.clone(), 20);
        assert_eq!(look(&mut tail), [""; 0]);
        fs::write(&path, "one\ntw").unwrap();
        assert_eq!(look(&mut tail), ["0 one"]);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"o\nmuch too long for a line here\nthree\n").unwrap();
        assert_eq!(look(&mut tail), ["4 two", "38 three"]);
        assert_eq!((look(&mut tail), tail.share()), (Vec::<String>::new(), 1.0));
        // Truncated, and then written beyond the old length with other lines.
        fs::write(&path, "one\nother lines, and more of them\nthan there were, longer\n").unwrap();
        assert_eq!(look(&mut tail)[..2], ["restart", "0 one"]);
        fs::remove_file(&path).unwrap();
        assert_eq!(look(&mut tail), ["restart"]);
    }

    #[test]
    fn a_late_look_goes_on_where_it_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        fs::write(&path, "a\n".repeat(100)).unwrap();
        let (mut tail, mut seen) = (FileTail::new(path, 20), 0);
        let now = Instant::now();
        assert!(!tail.advance(now, |_| seen += 1).unwrap());
        assert_eq!((seen, tail.share()), (AT_ONCE, 0.32));
        while !tail.advance(now, |_| seen += 1).unwrap() {}
        assert_eq!(seen, 100);
    }
}
