//! The record of answers: one line of JSON for each, with the hash of its request. The lines' offsets are in memory.
//!
//! An answer with a success status is reused for the same request in all later steps. A failure, or an answer with another status, is
//! reused only in its own step: repeating the step gives the same result, and later steps send the request again.

use super::transport::{LONGEST_HEADERS, MOST_HEADERS};
use super::{OutboundRequest, OutboundResponse, OutboundResult};
use crate::config::{files, hex};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

/// Maximum size of a body in bytes: the largest that `http.max_response_kb` allows, with names in place of secrets.
const LARGEST_BODY: usize = 24 << 20;

/// Maximum length of a line in bytes. Each byte of a body takes at most three; see [`AnswerLine`].
const LONGEST_LINE: u64 = 3 * LARGEST_BODY as u64 + (4 << 20);

/// Bytes of another run's lines that are copied at a time.
const ADOPTED_AT_ONCE: u64 = 16 << 20;

/// Maximum length of a failure's reason, in bytes.
const LONGEST_REASON: usize = 8 << 10;

/// Maximum number of answers in a record.
const MOST: usize = 8_000_000;

/// The hash of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey([u8; 32]);

impl RequestKey {
    #[cfg(test)]
    pub(super) fn from_request(request: &OutboundRequest) -> Self {
        Self::new(request, 0)
    }

    /// Returns the key of a request within a scope; scope 0 is for everything without a scope of its own.
    pub(super) fn new(request: &OutboundRequest, scope: u64) -> Self {
        let mut hash = Sha256::new();
        if scope > 0 {
            hash.update(scope.to_le_bytes());
        }
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(request.method.as_bytes());
        part(request.url.as_bytes());
        part(&request.body);
        for (name, value) in &request.headers {
            part(name.as_bytes());
            part(value.as_bytes());
        }
        Self(hash.finalize().into())
    }
}

/// An answer that is not in the record yet.
#[derive(Clone, Debug)]
pub(crate) struct AnswerEntry {
    pub(super) key: RequestKey,
    pub(super) step: u64,
    pub(super) answer: OutboundResult,
}

impl AnswerEntry {
    /// Returns whether the answer is also used in later steps.
    pub(super) fn is_lasting(&self) -> bool {
        self.answer.as_ref().is_ok_and(|answer| is_success(answer.status))
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// A line of the file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    request: String,
    step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "headers")]
    headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// The body in hexadecimal, if it is not text, or is text that takes more space in JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_hex: Option<String>,
}

/// Reads at most as many headers as are ever written.
fn headers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, String)>, D::Error> {
    struct HeadersVisitor;
    impl<'de> Visitor<'de> for HeadersVisitor {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MOST_HEADERS} headers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut headers: Self::Value = Vec::new();
            while let Some(header) = all.next_element()? {
                if headers.len() == MOST_HEADERS {
                    return Err(A::Error::invalid_length(MOST_HEADERS + 1, &self));
                }
                headers.push(header);
            }
            Ok(headers)
        }
    }
    from.deserialize_seq(HeadersVisitor)
}

/// Returns whether a text takes at most three times its bytes as a JSON string. Control characters take six bytes and other escapes two.
fn is_short(text: &str) -> bool {
    4 * text.bytes().filter(|byte| *byte < b' ').count() <= text.len()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

impl AnswerLine {
    fn from_entry(entry: &AnswerEntry) -> Self {
        let mut line = Self {
            request: hex(&entry.key.0),
            step: entry.step,
            failed: None,
            status: None,
            headers: Vec::new(),
            body: None,
            body_hex: None,
        };
        match &entry.answer {
            Err(reason) => line.failed = Some(reason.clone()),
            Ok(answer) => {
                (line.status, line.headers) = (Some(answer.status), answer.headers.clone());
                match std::str::from_utf8(&answer.body) {
                    Ok(text) if is_short(text) => line.body = Some(text.to_owned()),
                    _ => line.body_hex = Some(hex(&answer.body)),
                }
            }
        }
        line
    }

    fn into_entry(self) -> Option<AnswerEntry> {
        let key = RequestKey(from_hex(&self.request)?.try_into().ok()?);
        let answer = match (self.failed, self.status, self.body, self.body_hex) {
            (Some(reason), None, None, None) if reason.len() <= LONGEST_REASON => Err(reason),
            (None, Some(status), body, other) if (100..600).contains(&status) => {
                let body = match (body, other) {
                    (Some(text), None) => text.into_bytes(),
                    (None, Some(text)) => from_hex(&text)?,
                    _ => return None,
                };
                // Invalid UTF-8 gets longer when it is converted to text.
                let header_bytes: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
                if body.len() > LARGEST_BODY || header_bytes > 4 * LONGEST_HEADERS {
                    return None;
                }
                Ok(Arc::new(OutboundResponse { status, headers: self.headers, body }))
            }
            _ => return None,
        };
        Some(AnswerEntry { key, step: self.step, answer })
    }
}

/// Location of a line.
#[derive(Clone, Copy)]
struct LineExtent {
    /// Whether the line is in the run's file, rather than the temporary one.
    in_run: bool,
    at: u64,
    length: u64,
}

/// The record of a plugin's answers: a line of JSON for each, with the hash of its request.
pub(super) struct AnswerRecord {
    /// File of the run, and the length of its complete lines.
    run: Option<(File, u64)>,
    /// Whether new answers are written to the run's file.
    kept: bool,
    /// Holds new answers until they are written to the run's file.
    temporary: File,
    length: u64,
    /// Locations of answers by request and step; the step is `None` for answers that hold in all steps.
    places: HashMap<(RequestKey, Option<u64>), LineExtent>,
    most: u64,
}

impl AnswerRecord {
    /// Creates an empty record in a temporary file, limited to this many MiB.
    pub(super) fn new(most_mb: u64) -> io::Result<Self> {
        let most = most_mb.saturating_mul(1 << 20);
        Ok(Self { run: None, kept: false, temporary: tempfile::tempfile()?, length: 0, places: HashMap::new(), most })
    }

    /// Reads the lines of a run's file, if it exists. Skips unreadable lines with a warning.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<()> {
        if !files::exists_as_file(path)? {
            return Ok(());
        }
        let file = files::open(path)?;
        let size = file.metadata()?.len();
        if size > self.most {
            let detail = format!("it has {} MiB; the limit is {} (http.max_record_mb)", size >> 20, self.most >> 20);
            return Err(io::Error::other(detail));
        }
        let mut reader = BufReader::new(&file);
        let (mut at, mut unread) = (0, 0);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let length = (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut bytes)? as u64;
            if bytes.last() != Some(&b'\n') {
                // The last line was cut off, or exceeds the maximum length.
                unread += u64::from(length == LONGEST_LINE);
                break;
            }
            match serde_json::from_slice(&bytes).ok().and_then(AnswerLine::into_entry) {
                Some(entry) => self.note(&entry, LineExtent { in_run: true, at, length }).map_err(io::Error::other)?,
                None => unread += 1,
            }
            at += length;
        }
        if unread > 0 {
            tracing::warn!("{}: {unread} lines are damaged; their requests are sent again", path.display());
        }
        self.run = Some((file, at));
        Ok(())
    }

    /// Adds the answers from another run's file that hold in all steps. Requests that failed in that run are sent again.
    pub(super) fn adopt(&mut self, path: &Path) -> io::Result<()> {
        let mut other = Self::new(self.most >> 20)?;
        other.read(path)?;
        let mut places: Vec<LineExtent> =
            other.places.iter().filter(|((_, step), _)| step.is_none()).map(|(_, place)| *place).collect();
        places.sort_by_key(|place| place.at);
        let (mut entries, mut held) = (Vec::new(), 0);
        for place in places {
            entries.extend(other.line_at(place)?);
            held += place.length;
            if held >= ADOPTED_AT_ONCE {
                self.append(std::mem::take(&mut entries)).map_err(io::Error::other)?;
                held = 0;
            }
        }
        self.append(entries).map_err(io::Error::other)
    }

    /// Appends to a run's file from now on, starting with the contents of the temporary file.
    pub(super) fn persist_to(&mut self, path: &Path) -> io::Result<()> {
        let mut file = files::open_for_writing(path, File::options().read(true).write(true))?;
        let whole = self.run.take().map_or(0, |(_, whole)| whole);
        file.set_len(whole)?;
        file.seek(SeekFrom::End(0))?;
        self.temporary.seek(SeekFrom::Start(0))?;
        io::copy(&mut (&mut self.temporary).take(self.length), &mut file)?;
        file.sync_data()?;
        for place in self.places.values_mut().filter(|place| !place.in_run) {
            (place.in_run, place.at) = (true, place.at + whole);
        }
        self.run = Some((file, whole + self.length));
        self.kept = true;
        Ok(())
    }

    fn note(&mut self, entry: &AnswerEntry, place: LineExtent) -> Result<(), String> {
        if self.places.len() >= MOST {
            return Err(format!("its record is full: {MOST} answers is the maximum"));
        }
        // The first answer is the one that was used.
        self.places.entry((entry.key, (!entry.is_lasting()).then_some(entry.step))).or_insert(place);
        Ok(())
    }

    /// Returns the answer to a request in a step, if there is one.
    pub(super) fn find(&mut self, key: RequestKey, step: u64) -> Result<Option<OutboundResult>, String> {
        let place = self.places.get(&(key, Some(step))).or_else(|| self.places.get(&(key, None)));
        let Some(place) = place.copied() else { return Ok(None) };
        let entry = self.line_at(place).map_err(|e| format!("the record of its answers can't be read: {e}"))?;
        // Another process may have written to the file since.
        Ok(entry.filter(|entry| entry.key == key).map(|entry| entry.answer))
    }

    fn line_at(&mut self, place: LineExtent) -> io::Result<Option<AnswerEntry>> {
        let file = match (&mut self.run, place.in_run) {
            (Some((file, _)), true) => file,
            _ => &mut self.temporary,
        };
        file.seek(SeekFrom::Start(place.at))?;
        let mut bytes = Vec::new();
        file.take(place.length).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes).ok().and_then(AnswerLine::into_entry))
    }

    /// Adds new answers: either all of them, or none on failure.
    pub(super) fn append(&mut self, entries: Vec<AnswerEntry>) -> Result<(), String> {
        let base = if self.kept { self.run.as_ref().map_or(0, |(_, whole)| *whole) } else { self.length };
        let is_new = |entry: &AnswerEntry| !self.places.contains_key(&(entry.key, (!entry.is_lasting()).then_some(entry.step)));
        let new: Vec<AnswerEntry> = entries.into_iter().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let (most, in_run) = (self.most, self.kept);
        let file = match (&mut self.run, self.kept) {
            (Some((file, _)), true) => file,
            _ => &mut self.temporary,
        };
        let lengths = match written(file, base, most, &new) {
            Ok(lengths) => lengths,
            Err(error) => {
                let _ = file.set_len(base);
                return Err(error);
            }
        };
        let end = base + lengths.iter().sum::<u64>();
        match (&mut self.run, self.kept) {
            (Some((_, whole)), true) => *whole = end,
            _ => self.length = end,
        }
        let mut at = base;
        for (entry, length) in new.iter().zip(lengths) {
            self.note(entry, LineExtent { in_run, at, length })?;
            at += length;
        }
        Ok(())
    }
}

/// Writes a line for each entry. Returns the lines' lengths.
fn written(file: &mut File, base: u64, most: u64, entries: &[AnswerEntry]) -> Result<Vec<u64>, String> {
    let fail = |e: io::Error| format!("the record of its answers can't be written: {e}");
    file.seek(SeekFrom::Start(base)).map_err(fail)?;
    let (mut end, mut lengths, mut line) = (base, Vec::with_capacity(entries.len()), Vec::new());
    let mut out = io::BufWriter::new(&mut *file);
    for entry in entries {
        line.clear();
        serde_json::to_writer(&mut line, &AnswerLine::from_entry(entry)).map_err(|e| fail(e.into()))?;
        line.push(b'\n');
        end += line.len() as u64;
        if end > most {
            return Err(format!("the record of its answers would have more than {} MiB (http.max_record_mb)", most >> 20));
        }
        out.write_all(&line).map_err(fail)?;
        lengths.push(line.len() as u64);
    }
    out.flush().map_err(fail)?;
    drop(out);
    file.sync_data().map_err(fail)?;
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn request(body: &str) -> OutboundRequest {
        OutboundRequest { method: "POST".into(), url: "http://a/".into(), headers: Vec::new(), body: body.into(), timeout_ms: 0 }
    }

    fn entry(of: &str, step: u64, answer: OutboundResult) -> AnswerEntry {
        AnswerEntry { key: RequestKey::from_request(&request(of)), step, answer }
    }

    fn said(status: u16, body: &[u8]) -> OutboundResult {
        let headers = vec![("content-type".into(), "text/plain".into())];
        Ok(Arc::new(OutboundResponse { status, headers, body: body.to_vec() }))
    }

    fn find(record: &mut AnswerRecord, of: &str, step: u64) -> Option<OutboundResult> {
        record.find(RequestKey::from_request(&request(of)), step).unwrap()
    }

    #[test]
    fn an_answer_lasts_and_a_failure_is_its_steps() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("judge.jsonl");
        let mut record = AnswerRecord::new(1).unwrap();
        record.append(vec![entry("a", 1, said(200, b"one")), entry("b", 1, Err("hung".into()))]).unwrap();
        record.persist_to(&file).unwrap();
        record.append(vec![entry("b", 2, said(503, b"\xff")), entry("c", 2, said(201, b"\xfe\x00"))]).unwrap();
        record.append(vec![entry("a", 3, said(200, b"another")), entry("b", 3, said(200, b"late"))]).unwrap();
        let check = |record: &mut AnswerRecord| {
            for step in 0..5 {
                assert_eq!(find(record, "a", step), Some(said(200, b"one")));
                assert_eq!(find(record, "c", step), Some(said(201, b"\xfe\x00")));
            }
            assert_eq!(find(record, "b", 1), Some(Err("hung".into())));
            assert_eq!(find(record, "b", 2), Some(said(503, b"\xff")));
            assert_eq!(find(record, "b", 4), Some(said(200, b"late")));
            assert_eq!(find(record, "d", 1), None);
        };
        check(&mut record);
        let mut again = AnswerRecord::new(1).unwrap();
        again.read(&file).unwrap();
        check(&mut again);
        again.append(vec![entry("d", 9, said(200, b"new"))]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 5, "a record that is only read is not written to");
        again.persist_to(&file).unwrap();
        assert_eq!(find(&mut again, "d", 1), Some(said(200, b"new")));
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 6);
    }

    #[test]
    fn a_line_has_no_more_than_is_written() {
        let key = hex(&RequestKey::from_request(&request("b")).0);
        let line = |rest: &str| format!("{{\"request\":\"{key}\",\"step\":1,{rest}}}");
        let read = |line: &str| serde_json::from_str(line).ok().and_then(AnswerLine::into_entry);
        let headers = |count: usize| {
            let all = vec!["[\"\",\"\"]"; count].join(",");
            line(&format!("\"status\":200,\"body\":\"\",\"headers\":[{all}]"))
        };
        assert!(read(&headers(MOST_HEADERS)).is_some() && read(&headers(MOST_HEADERS + 1)).is_none());
        let long = "x".repeat(4 * LONGEST_HEADERS + 1);
        assert!(read(&line(&format!("\"status\":200,\"body\":\"\",\"headers\":[[\"a\",\"{long}\"]]"))).is_none());
        assert!(read(&line(&format!("\"failed\":\"{long}\""))).is_none() && read(&line("\"failed\":\"hung\"")).is_some());
        let body = "x".repeat(LARGEST_BODY + 1);
        assert!(read(&line(&format!("\"status\":200,\"body\":\"{body}\""))).is_none());
        for body in [&b"\0"[..], b"\"", b"\n\"\"\"", b"\xff"] {
            let given = entry("b", 1, said(200, &body.repeat(3000)));
            let text = serde_json::to_string(&AnswerLine::from_entry(&given)).unwrap();
            assert!(text.len() < 3 * 3000 * body.len() + 300, "{} bytes", text.len());
            assert_eq!(read(&text).unwrap().answer, given.answer);
        }
    }

    #[test]
    fn a_strangers_record_is_checked_and_bounded() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("judge.jsonl");
        let mut record = AnswerRecord::new(1).unwrap();
        record.append(vec![entry("a", 1, said(200, b"one"))]).unwrap();
        record.persist_to(&file).unwrap();
        let good = fs::read_to_string(&file).unwrap();
        let key = hex(&RequestKey::from_request(&request("b")).0);
        let lines = [
            "no json".to_owned(),
            format!("{{\"request\":\"{}\",\"step\":1,\"status\":200,\"body\":\"\"}}", &key[2..]),
            format!("{{\"request\":\"{key}\",\"step\":1,\"status\":20000,\"body\":\"\"}}"),
            format!("{{\"request\":\"{key}\",\"step\":1,\"status\":200,\"body_hex\":\"abc\"}}"),
            format!("{{\"request\":\"{key}\",\"step\":1,\"status\":200,\"body\":\"\",\"failed\":\"x\"}}"),
            format!("{{\"request\":\"{key}\",\"step\":-1,\"failed\":\"x\"}}"),
            good.trim_end().to_owned(),
        ];
        // The last line was cut off when the process died.
        let text = lines.join("\n") + "\n" + &good[..good.len() / 2];
        fs::write(&file, &text).unwrap();
        let mut record = AnswerRecord::new(1).unwrap();
        record.read(&file).unwrap();
        assert_eq!((find(&mut record, "a", 1), find(&mut record, "b", 1)), (Some(said(200, b"one")), None));
        record.persist_to(&file).unwrap();
        record.append(vec![entry("b", 1, said(200, b"two"))]).unwrap();
        let mut again = AnswerRecord::new(1).unwrap();
        again.read(&file).unwrap();
        assert_eq!(find(&mut again, "b", 1), Some(said(200, b"two")));
        let large = entry("c", 1, said(200, &vec![b'x'; 1 << 20]));
        assert!(again.append(vec![large]).unwrap_err().contains("http.max_record_mb"));
        File::options().write(true).open(&file).unwrap().set_len(2 << 20).unwrap();
        assert!(AnswerRecord::new(1).unwrap().read(&file).unwrap_err().to_string().contains("http.max_record_mb"));
        #[cfg(unix)]
        {
            fs::remove_file(&file).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
            assert!(
                AnswerRecord::new(1).unwrap().read(&file).is_err() && AnswerRecord::new(1).unwrap().persist_to(&file).is_err()
            );
        }
    }
}
