//! Reads files of JSON lines that may be damaged, still growing, larger than memory, or untrusted. Lines and files are read up to a limit,
//! and unreadable lines are counted.

use super::files;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Maximum length of a line that [`for_each_object`] reads, in bytes. Parsed values can take forty times as much.
const LONGEST_LINE: u64 = 1 << 20;

/// Maximum length of a line with a completion, in bytes.
pub const LONGEST_COMPLETION: u64 = 8 << 20;

/// Default maximum number of bytes read of a file.
const MOST: u64 = 4 << 30;

/// Parts of a file that were not read.
#[derive(Debug, Default)]
pub struct UnreadLines {
    lines: u64,
    /// Number of the first line that is not an object.
    first: u64,
    /// Number of lines that are too long, the number of the first, and their limit.
    long: u64,
    first_long: u64,
    longest: u64,
    /// Offset at which reading stopped because of the file's limit, in bytes.
    cut: Option<u64>,
}

impl UnreadLines {
    /// Describes what was not read from the file of this name.
    pub fn notes(&self, file: &str) -> Vec<String> {
        let first = self.first;
        let lines = match self.lines {
            0 => None,
            1 => Some(format!("{file}: line {first} is not a JSON object and is ignored")),
            n => Some(format!("{file}: {n} lines are not JSON objects and are ignored; the first is line {first}")),
        };
        let cut = self.cut.map(|most| match most >> 30 {
            0 => format!("{file}: only the first {} MiB are read", most >> 20),
            gib => format!("{file}: only the first {gib} GiB are read"),
        });
        let mib = self.longest as f64 / f64::from(1 << 20);
        let (limit, first) = (format!("the limit of {mib} MiB for a line"), self.first_long);
        let long = match self.long {
            0 => None,
            1 => Some(format!("{file}: line {first} is over {limit} and is ignored")),
            n => Some(format!("{file}: {n} lines are over {limit} and are ignored; the first is line {first}")),
        };
        lines.into_iter().chain(long).chain(cut).collect()
    }
}

/// A line of a file.
#[derive(Debug, PartialEq)]
pub enum BoundedLine<'a> {
    /// A complete line, including its line end.
    Whole(&'a [u8]),
    /// The line is longer than the limit.
    TooLong,
}

/// Reads a file line by line.
pub struct JsonLinesReader {
    from: BufReader<File>,
    longest: u64,
    most: u64,
    length: u64,
    text: Vec<u8>,
    /// Offset of the last line, in bytes, and its number, from 1.
    begin: u64,
    end: u64,
    number: u64,
    /// Whether the rest of the last line remains to be skipped.
    is_within: bool,
    unread: UnreadLines,
}

impl JsonLinesReader {
    /// Opens a file with lines of up to `longest` bytes.
    ///
    /// # Errors
    /// If it is not a regular file or can't be read.
    pub fn open(path: &Path, longest: u64) -> io::Result<Self> {
        let file = files::open(path)?;
        let length = file.metadata()?.len();
        let from = BufReader::with_capacity(1 << 16, file);
        let (text, unread) = (Vec::new(), UnreadLines::default());
        Ok(Self { from, longest, most: MOST, length, text, begin: 0, end: 0, number: 0, is_within: false, unread })
    }

    /// Sets the maximum number of bytes read.
    #[must_use]
    pub fn with_limit(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Returns the next line; `None` at the end of the file, and before an unterminated last line, which is still being written.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn next_line(&mut self) -> io::Result<Option<BoundedLine<'_>>> {
        self.text.clear();
        if std::mem::take(&mut self.is_within) {
            self.end += skip_line(&mut (&mut self.from).take(self.most.saturating_sub(self.end)))?;
        }
        (self.begin, self.number) = (self.end, self.number + 1);
        let mut rest = (&mut self.from).take(self.most.saturating_sub(self.end));
        let length = (&mut rest).take(self.longest).read_until(b'\n', &mut self.text)? as u64;
        self.end += length;
        if self.text.ends_with(b"\n") {
            return Ok(Some(BoundedLine::Whole(&self.text)));
        }
        if length < self.longest {
            return Ok(None);
        }
        self.is_within = true;
        Ok(Some(BoundedLine::TooLong))
    }

    /// Returns the next line that is an object of this type; other lines are counted.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn next_object<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        while let Some(line) = self.next_line()? {
            let is_long = line == BoundedLine::TooLong;
            if let BoundedLine::Whole(text) = line
                && let Ok(object) = serde_json::from_slice(text)
            {
                return Ok(Some(object));
            }
            self.count(is_long);
        }
        Ok(None)
    }

    /// Counts the last line as unreadable.
    pub fn count_unread(&mut self) {
        self.count(self.is_within);
    }

    fn count(&mut self, is_long: bool) {
        let unread = &mut self.unread;
        let (lines, first) =
            if is_long { (&mut unread.long, &mut unread.first_long) } else { (&mut unread.lines, &mut unread.first) };
        if *lines == 0 {
            *first = self.number;
        }
        *lines += 1;
    }

    /// Returns the last line, or its beginning if it is too long.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Returns the offset of the last line, in bytes.
    pub fn offset(&self) -> u64 {
        self.begin
    }

    /// Returns the last line's number, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Seeks to a line that begins at offset `place`.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn seek(&mut self, place: u64) -> io::Result<()> {
        self.from.seek(SeekFrom::Start(place))?;
        (self.begin, self.end, self.is_within) = (place, place, false);
        Ok(())
    }

    /// Seeks to the line with this number, which begins at offset `place`.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn seek_line(&mut self, place: u64, number: u64) -> io::Result<()> {
        self.seek(place)?;
        self.number = number - 1;
        Ok(())
    }

    /// Returns the parts that were not read.
    pub fn unread(self) -> UnreadLines {
        UnreadLines { cut: (self.length > self.most).then_some(self.most), longest: self.longest, ..self.unread }
    }
}

/// Calls `take` with each object in a file. Skips an unterminated last line, which is still being written.
///
/// # Errors
/// If it is not a regular file or can't be read.
pub fn for_each_object(path: &Path, mut take: impl FnMut(Map<String, Value>)) -> io::Result<UnreadLines> {
    let mut reader = JsonLinesReader::open(path, LONGEST_LINE)?;
    while let Some(object) = reader.next_object()? {
        take(object);
    }
    Ok(reader.unread())
}

/// Skips the rest of a line; returns its length in bytes.
fn skip_line(reader: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = reader.fill_buf()?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let (length, ended) = (end.map_or(buffer.len(), |end| end + 1), end.is_some() || buffer.is_empty());
        reader.consume(length);
        skipped += length as u64;
        if ended {
            return Ok(skipped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write;

    #[test]
    fn lines_that_are_too_long_or_no_objects_are_passed_over_and_counted() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(100));
        write!(file, "{{\"a\": 1}}\n[]\n{long}\n{{\"a\": 2}}\n{{\"a\": 3").unwrap();
        let mut reader = JsonLinesReader::open(file.path(), 32).unwrap();
        let (mut found, mut places) = (Vec::new(), Vec::new());
        while let Some(object) = reader.next_object::<Map<String, Value>>().unwrap() {
            found.push(object["a"].clone());
            places.push((reader.offset(), reader.number()));
        }
        assert_eq!(found, [json!(1), json!(2)]);
        assert_eq!(places, [(0, 1), (12 + long.len() as u64 + 1, 4)]);
        reader.seek(places[1].0).unwrap();
        assert_eq!(reader.next_object::<Value>().unwrap().unwrap()["a"], 2);
        reader.seek(0).unwrap();
        assert_eq!(reader.next_line().unwrap(), Some(BoundedLine::Whole(b"{\"a\": 1}\n")));
        let notes = reader.unread().notes("x");
        let [no_object, long] = &notes[..] else { panic!("{notes:?}") };
        assert_eq!(no_object, "x: line 2 is not a JSON object and is ignored");
        assert!(long.starts_with("x: line 3 is over the limit of") && long.ends_with("MiB for a line and is ignored"), "{long}");
    }

    #[test]
    fn a_file_without_an_end_is_read_without_taking_its_memory() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"{}\n").unwrap();
        file.as_file().set_len(1 << 30).unwrap();
        let mut reader = JsonLinesReader::open(file.path(), 64).unwrap();
        assert_eq!(reader.next_object::<Value>().unwrap(), Some(json!({})));
        assert_eq!(reader.next_line().unwrap(), Some(BoundedLine::TooLong));
        assert!(reader.text.capacity() < 1 << 20 && reader.next_line().unwrap().is_none());
    }
}
