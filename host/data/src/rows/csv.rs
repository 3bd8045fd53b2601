//! Comma- or tab-separated tables. The first row names the columns, and every value is a string. Quoting follows RFC 4180; files that
//! deviate from it are parsed like Python's csv module does, and so `datasets`.

mod records;

pub(super) use records::{CsvHeader, Records};

use super::Location;
use super::bounds::{FileMemoryBudget, ROW, VALUE, VALUES, long_row, many_values};
use super::row::{DatasetFile, LocatedRow, listed};
use crate::Result;
use crate::config::{json, printable_path};
use crate::message::{begins_conversation, conversation_in};
use csv_core::{ReadRecordResult, ReaderBuilder};
use memchr::memchr_iter;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashSet};
use std::io::BufRead;

/// Reads all rows of a table. Empty lines are skipped.
pub(super) fn rows(
    file: &DatasetFile,
    from: &mut dyn BufRead,
    delimiter: u8,
    budget: &mut FileMemoryBudget,
) -> Result<Vec<LocatedRow>> {
    let mut reader = CsvReader::new(file, from, delimiter);
    let Some(place) = reader.record()? else { return Ok(Vec::new()) };
    let names = reader.header(&place)?;
    let mut no_messages = BTreeSet::new();
    let mut rows = Vec::new();
    while let Some(place) = reader.record()? {
        let (row, bytes) = reader.row(&place, &names, &mut no_messages)?;
        budget.row(file, bytes)?;
        rows.push((place, row));
    }
    if !no_messages.is_empty() {
        warn_of_no_messages(file, no_messages);
    }
    Ok(rows)
}

/// Warns about columns with values that look like lists of messages but can't be parsed as such.
fn warn_of_no_messages(file: &DatasetFile, columns: BTreeSet<&str>) {
    let (file, columns) = (printable_path(&file.0), listed(columns.into_iter()));
    tracing::warn!(
        "{file}: some values in the columns {columns} look like lists of messages but are not, so they are read as text; \
         messages must be JSON, from json.dumps() and not str(), with \"role\" and \"content\""
    );
}

/// Error of a record with an unclosed quote.
const UNCLOSED: &str = "opens a quote that is never closed; a quote within quotes is written twice";

/// Reader of a table's bytes that tracks the position.
struct CsvByteReader<'a> {
    file: &'a DatasetFile,
    from: &'a mut dyn BufRead,
    /// Offset of the next byte.
    at: u64,
    /// Current line, from 1.
    line: usize,
    /// Whether the last byte was a carriage return, which a line feed may follow as part of the same line break.
    returned: bool,
}

impl<'a> CsvByteReader<'a> {
    /// Creates a reader that starts at this offset of the file.
    fn new(file: &'a DatasetFile, from: &'a mut dyn BufRead, at: u64) -> Self {
        Self { file, from, at, line: 1, returned: false }
    }

    /// Returns the next bytes of the file; empty at its end.
    fn seen(&mut self) -> Result<&[u8]> {
        self.from.fill_buf().map_err(|e| self.file.file_error(e.to_string()))
    }

    /// Consumes bytes and counts the line breaks in them.
    fn pass(&mut self, bytes: usize) -> Result<()> {
        let mut returned = self.returned;
        self.line += line_breaks(&self.seen()?[..bytes], &mut returned);
        self.returned = returned;
        self.from.consume(bytes);
        self.at += bytes as u64;
        Ok(())
    }

    /// Skips empty lines. Returns whether the file continues.
    fn skip_empty_lines(&mut self) -> Result<bool> {
        loop {
            let seen = self.seen()?;
            let empty = seen.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            let all = empty == seen.len();
            if all && empty == 0 {
                return Ok(false);
            }
            self.pass(empty)?;
            if !all {
                return Ok(true);
            }
        }
    }
}

/// Returns the number of line breaks in these bytes. `returned` tracks whether the previous byte was a carriage return.
fn line_breaks(bytes: &[u8], returned: &mut bool) -> usize {
    let Some(last) = bytes.last() else { return 0 };
    let feeds = memchr_iter(b'\n', bytes).filter(|at| match at.checked_sub(1) {
        Some(before) => bytes[before] != b'\r',
        None => !*returned,
    });
    let lines = feeds.count() + memchr_iter(b'\r', bytes).count();
    *returned = *last == b'\r';
    lines
}

struct CsvReader<'a> {
    bytes: CsvByteReader<'a>,
    /// Only the core of the crate csv, which reads into our own buffer: the crate's own reader holds a complete record in memory before its
    /// length is known.
    core: csv_core::Reader,
    /// Fields of the record, concatenated, and the end of each; both buffers may be longer than the record.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl<'a> CsvReader<'a> {
    fn new(file: &'a DatasetFile, from: &'a mut dyn BufRead, delimiter: u8) -> Self {
        let core = ReaderBuilder::new().delimiter(delimiter).build();
        Self { bytes: CsvByteReader::new(file, from, 0), core, text: Vec::new(), ends: Vec::new() }
    }

    /// Reads the next record. Returns its location, if there is one.
    fn record(&mut self) -> Result<Option<Location>> {
        if !self.bytes.skip_empty_lines()? {
            return Ok(None);
        }
        let place = self.bytes.file.place(self.bytes.line);
        self.ends.clear();
        let (mut length, mut written) = (0, 0);
        loop {
            let fields = self.ends.len();
            let seen = self.bytes.seen()?;
            let at_end = seen.is_empty();
            // A line break ends the last record of the file, unless a quote is open: then it is part of the text.
            let seen = if at_end { b"\n" } else { seen };
            self.text.resize(self.text.len().max(written + seen.len()), 0);
            self.ends.resize(fields + FIELDS, 0);
            let (result, read, wrote, ended) = self.core.read_record(seen, &mut self.text[written..], &mut self.ends[fields..]);
            self.ends.truncate(fields + ended);
            self.bytes.pass(if at_end { 0 } else { read })?;
            (length, written) = (length + read as u64, written + wrote);
            if length > ROW {
                return Err(place.row_error(format!("{}; are its quotes closed?", long_row())));
            }
            if self.ends.len() as u64 > VALUES {
                return Err(place.row_error(many_values()));
            }
            match result {
                ReadRecordResult::Record => return Ok(Some(place)),
                ReadRecordResult::InputEmpty | ReadRecordResult::End if at_end => {
                    return Err(place.row_error(UNCLOSED));
                }
                _ => {}
            }
        }
    }

    /// Returns the fields of the current record.
    fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.text[begin..*end])
    }

    /// Returns the names of the columns; they must be unique.
    fn header(&self, place: &Location) -> Result<Vec<String>> {
        let (mut names, mut seen) = (Vec::new(), HashSet::new());
        for (i, field) in self.fields().enumerate() {
            let name = text(field).map_err(|what| place.row_error(format!("the name of column {} {what}", i + 1)))?;
            if name.is_empty() {
                return Err(place.row_error(format!(
                    "column {} has no name; the first row names all columns (in pandas, pass index=False)",
                    i + 1
                )));
            }
            if !seen.insert(name) {
                return Err(place.row_error(format!("names the column {name:?} twice; names must be unique")));
            }
            names.push(name.to_owned());
        }
        Ok(names)
    }

    /// Returns the columns of the current record, and their approximate memory. Adds columns that look like lists of messages but can't be
    /// parsed as such to `no_messages`.
    fn row<'n>(
        &self,
        place: &Location,
        names: &'n [String],
        no_messages: &mut BTreeSet<&'n str>,
    ) -> Result<(Map<String, Value>, u64)> {
        let (fields, columns) = (self.ends.len(), names.len());
        if fields != columns {
            let s = |n: usize| if n == 1 { "" } else { "s" };
            return Err(place.row_error(format!(
                "has {fields} value{}, but the first row names {columns} column{}; put values with a separator, a quote or a \
                 line break in quotes",
                s(fields),
                s(columns)
            )));
        }
        let mut row = Map::with_capacity(columns);
        let (mut values, mut bytes) = (0, 0);
        for (name, field) in names.iter().zip(self.fields()) {
            let text = text(field).map_err(|what| place.row_error(format!("column {name:?} {what}")))?;
            let (value, taken) = match conversation_in(text, VALUES) {
                Some(read) => read,
                None => {
                    if begins_conversation(text) {
                        no_messages.insert(name);
                    }
                    (text.into(), json::JsonSize { values: 1, text: text.len() as u64 })
                }
            };
            values += taken.values;
            bytes += taken.values * VALUE + taken.text + name.len() as u64;
            if values > VALUES {
                return Err(place.row_error(many_values()));
            }
            row.insert(name.clone(), value);
        }
        Ok((row, bytes))
    }
}

/// Number of fields by which the buffer grows.
const FIELDS: usize = 64;

/// Returns a field's text, or an error if it is not text.
fn text(field: &[u8]) -> std::result::Result<&str, &'static str> {
    let text = std::str::from_utf8(field).map_err(|_| "is not UTF-8 text; save the file as UTF-8")?;
    if text.contains('\0') { Err("has a NUL byte, which is no text; save the file as UTF-8") } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::io::{BufReader, Cursor, Write};
    use std::path::Path;

    /// Returns the rows of a file, or the error.
    fn read(name: &str, bytes: impl AsRef<[u8]>) -> std::result::Result<Vec<Value>, String> {
        let rows = parse(Path::new(name), bytes.as_ref()).map_err(|e| e.to_string())?;
        Ok(rows.into_iter().map(|(_, columns)| Value::Object(columns)).collect())
    }

    #[test]
    fn quotes_and_line_breaks_are_read_as_pythons_csv_reads_them() {
        // Results of list(csv.DictReader(io.StringIO(text, newline=""))) in Python 3.
        let cases = [
            (
                "prompt,answer\r\n\"What is 2 + 3?\r\nSay it, \"\"please\"\".\",5\r\n",
                json!([{"prompt": "What is 2 + 3?\r\nSay it, \"please\".", "answer": "5"}]),
            ),
            ("a,b\nsay \"hi\",x\n", json!([{"a": "say \"hi\"", "b": "x"}])),
            ("a,b\n\"say\" \"hi\",x\n", json!([{"a": "say \"hi\"", "b": "x"}])),
            ("a,b\n 1 , \"2\"\n", json!([{"a": " 1 ", "b": " \"2\""}])),
            ("a,b\n1,\n,2", json!([{"a": "1", "b": ""}, {"a": "", "b": "2"}])),
            ("\n\na,b\n\n1,2\n\r\n\n3,4\n\n", json!([{"a": "1", "b": "2"}, {"a": "3", "b": "4"}])),
            ("a,b\r1,2\r", json!([{"a": "1", "b": "2"}])),
            ("a\n\"\"\n\" \"\n \nx\n", json!([{"a": ""}, {"a": " "}, {"a": " "}, {"a": "x"}])),
            ("a,b\n'1,2'\n", json!([{"a": "'1", "b": "2'"}])),
            ("a,b\n\"1\\\",2\n", json!([{"a": "1\\", "b": "2"}])),
            ("a,b\n\"x\ry\n\r\nz\",2\r\n\"\",\"\"\r\n", json!([{"a": "x\ry\n\r\nz", "b": "2"}, {"a": "", "b": ""}])),
            ("a,b\n\"\"\"\",\"\"\"x\"\"\"\n", json!([{"a": "\"", "b": "\"x\""}])),
            ("\"a,\nb\",höflich\n你好,1.0\n", json!([{"a,\nb": "你好", "höflich": "1.0"}])),
        ];
        for (text, expected) in cases {
            assert_eq!(Value::from(read("t.csv", text).unwrap()), expected, "{text:?}");
            assert_eq!(Value::from(read("T.CSV.gz", format!("\u{feff}{text}")).unwrap()), expected, "{text:?}");
        }
        let tabs = "prompt\tanswer\n\"x\ty\"\t1,2\n";
        assert_eq!(read("t.tsv", tabs).unwrap(), [json!({"prompt": "x\ty", "answer": "1,2"})]);
        assert_eq!(read("t.tsv.zst", zstd::encode_all(tabs.as_bytes(), 3).unwrap()).unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_table_is_named_by_the_line_where_its_row_begins() {
        let cases: [(&[u8], &str); 16] = [
            (b"a,b\n1,2\n\n\"x\ny\"\n", "4: has 1 value, but the first row names 2 columns; put values with a separator"),
            (b"a\n1,2,3\n", "2: has 3 values, but the first row names 1 column;"),
            (b"a,b\r\n\"1\r\n2\",\"3\r4\"\r\n\r\n5\r\n", "6: has 1 value"),
            (b"a,b\r1,2\r3\r", "3: has 1 value"),
            (b"a,b,a\n1,2,3\n", "1: names the column \"a\" twice; names must be unique"),
            (b"\n,prompt\n0,p\n", "2: column 1 has no name; the first row names all columns"),
            (b"a,\"\"\n", "1: column 2 has no name"),
            (b"a,b\n1,2\n3,\"4\n5,6\n", "3: opens a quote that is never closed; a quote within quotes is written twice"),
            (b"a,b\n1,\"", "2: opens a quote"),
            (b"\"", "1: opens a quote"),
            (b"a,b\n1,2\n3,\xff\n", "3: column \"b\" is not UTF-8 text; save the file as UTF-8"),
            // Together, the two bytes would be a letter.
            (b"a,b\n\xc3,\xa9\n", "2: column \"a\" is not UTF-8 text"),
            (b"a,\xfc\n", "1: the name of column 2 is not UTF-8 text"),
            (b"\xff\xfea\0\n\0", "1: the name of column 1 is not UTF-8 text"),
            (b"a\0\n\0", "1: the name of column 1 has a NUL byte, which is no text; save the file as UTF-8"),
            (b"a\n1\0\n", "2: column \"a\" has a NUL byte"),
        ];
        for (bytes, expected) in cases {
            let error = read("t.csv", bytes).unwrap_err();
            assert!(error.starts_with(&format!("t.csv:{expected}")) && !error.contains('\n'), "{bytes:?}: {error}");
        }
        for empty in ["", "\n\r\n", "a,b\n", "a,b", "\u{feff}"] {
            assert_eq!(read("t.csv", empty).unwrap_err(), "t.csv: has no rows", "{empty:?}");
        }
    }

    #[test]
    fn a_cell_that_is_a_json_list_of_messages_is_a_conversation() {
        let cell = |text: &str| {
            let row = format!("a,b\n\"{}\",1\n", text.replace('"', "\"\""));
            read("t.csv", row).unwrap()[0]["a"].clone()
        };
        let turn = json!({"role": "user", "content": "1, \"2\"\n"});
        let shared = json!({"from": "gpt", "value": "a"});
        for conversation in [json!([turn]), json!([turn, turn, shared])] {
            assert_eq!(cell(&conversation.to_string()), conversation);
            assert_eq!(cell(&format!(" {conversation:#}\n")), conversation);
        }
        for text in [
            "",
            "[]",
            "[1, 2]",
            "7",
            "true",
            "{\"role\": \"user\", \"content\": \"a\"}",
            "[{\"role\": \"user\"}]",
            "[{\"role\": \"user\", \"content\": \"a\"}] and more",
            "[{\"role\": \"user\", \"content\": \"a",
            "[{'role': 'user', 'content': 'a'}]",
            "[{\"role\": \"user\", \"content\": \"a\"}, \"b\"]",
        ] {
            assert_eq!(cell(text), text);
        }
        for (text, begins) in [
            ("[{'role': 'user'}]", true),
            (" [ {\"content\": ", true),
            ("[{\"name\": \"role\"}]", false),
            ("[\"role\"]", false),
            ("[", false),
        ] {
            assert_eq!(begins_conversation(text), begins, "{text}");
        }
    }

    #[test]
    fn rows_without_an_end_and_names_that_each_row_repeats_are_bounded() {
        let long = "x".repeat(ROW as usize);
        for (text, line) in [
            (format!("a,b\n1,2\n3,\"{long}"), 3),
            (format!("a,b\n1,{long}\n"), 2),
            (format!("{long}\n"), 1),
            // Only quotes, which are not in the parsed text.
            (format!("a\n{}\n", "\"".repeat(ROW as usize + 2)), 2),
        ] {
            let error = read("t.csv", text).unwrap_err();
            assert!(error.starts_with(&format!("t.csv:{line}: is longer than 16.00 MiB")), "{error}");
        }
        let many = ",".repeat(VALUES as usize);
        for (text, line) in [(format!("{many}\n"), 1), (format!("a\n{many}\n"), 2)] {
            assert_eq!(
                read("t.csv", text).unwrap_err(),
                format!("t.csv:{line}: has more than 1048576 values, the maximum for a row")
            );
        }
        let zeros = "0,".repeat(VALUES as usize / 2);
        let cell = format!("\"[{{\"\"role\"\": \"\"u\"\", \"\"content\"\": \"\"c\"\", \"\"x\"\": [{zeros}0]}}]\"");
        assert!(read("t.csv", format!("a\n{cell}\n")).unwrap()[0]["a"].is_array());
        let error = read("t.csv", format!("a,b\n{cell},{cell}\n")).unwrap_err();
        assert!(error.starts_with("t.csv:2: has more than 1048576 values"), "{error}");
        // A thousand rows of two bytes, each with a copy of a long column name.
        let (file, text) = (DatasetFile::new(Path::new("t.csv")), format!("{}\n{}", "n".repeat(1 << 20), "1\n".repeat(1000)));
        let error = rows(&file, &mut text.as_bytes(), b',', &mut FileMemoryBudget::new(100 << 20)).unwrap_err().to_string();
        assert!(error.contains("takes more than"), "{error}");
    }

    #[test]
    fn a_packed_table_that_is_cut_off_is_named_as_that() {
        let text: String = (0..4000).map(|i| format!("{},\"{}\n\"\n", i * i, i * 7)).collect();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(format!("a,b\n{text}").as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(read("t.csv.gz", &packed).unwrap().len(), 4000);
        let error = read("t.csv.gz", &packed[..packed.len() / 2]).unwrap_err();
        assert!(error.starts_with("t.csv.gz: is truncated"), "{error}");
    }

    /// Generates tables of up to 130 columns, more than one growth of the buffer.
    fn tables() -> impl Strategy<Value = Vec<Vec<String>>> {
        let cell = "[a-z,\"\r\n\té]{0,6}";
        (1..=130_usize, 1..4_usize)
            .prop_flat_map(move |(width, height)| proptest::collection::vec(proptest::collection::vec(cell, width), height))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn what_is_written_with_quotes_is_read_again_in_pieces_of_any_size(table in tables(), piece in 1..40_usize) {
            let names: Vec<String> = (0..table[0].len()).map(|i| format!("n{i}")).collect();
            let mut text = names.join(",") + "\n";
            for row in &table {
                let cells: Vec<String> = row.iter().map(|cell| format!("\"{}\"", cell.replace('"', "\"\""))).collect();
                text += &(cells.join(",") + "\r\n");
            }
            let file = DatasetFile::new(Path::new("t.csv"));
            let mut pieces = BufReader::with_capacity(piece, Cursor::new(text));
            let read = rows(&file, &mut pieces, b',', &mut FileMemoryBudget::new(1 << 30)).unwrap();
            let read: Vec<Vec<String>> = read
                .into_iter()
                .map(|(_, row)| row.into_iter().map(|(_, value)| value.as_str().unwrap().to_owned()).collect())
                .collect();
            prop_assert_eq!(read, table);
        }

        #[test]
        fn no_bytes_make_the_reader_panic_or_go_on_forever(bytes in proptest::collection::vec(
            prop_oneof![any::<u8>(), proptest::sample::select(&b"\",\n\r\t a\xef\xbb\xbf"[..])], 0..60), mark in any::<bool>()) {
            let bytes = [if mark { "\u{feff}".as_bytes() } else { b"" }, &bytes].concat();
            let _ = read("t.csv", &bytes);
            let file = DatasetFile::new(Path::new("t.csv"));
            let _ = rows(&file, &mut &bytes[..], b'\t', &mut FileMemoryBudget::new(1 << 30));
        }
    }
}
