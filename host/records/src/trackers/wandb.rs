//! Exports an offline run of Weights & Biases: a log of records in LevelDB's framing, each a protobuf message.
//!
//! The fields are those of `wandb/proto/wandb_internal.proto`. Only strings, integers and messages are needed.

use super::run::{Error, ExportedRun, make_anew, write_file};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Sizes of a block of the log and of the header of a record's fragment, in bytes.
const BLOCK: usize = 32768;
const HEADER: usize = 7;
/// Header of the file: a name, a number and a version.
const BEGIN: [u8; HEADER] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];
const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);

/// Writes a run's log to `to/wandb/offline-run-TIME-ID`. Returns that folder.
pub(super) fn write(run: &ExportedRun, to: &Path) -> Result<PathBuf, Error> {
    let id = &run.id[..8];
    let time = Timestamp::from_millisecond(run.started).unwrap_or_default().to_zoned(TimeZone::UTC).strftime("%Y%m%d_%H%M%S");
    let folder = to.join("wandb").join(format!("offline-run-{time}-{id}"));
    make_anew(to, &folder)?;
    let mut log = WandbLog::new();
    log.record(21, &message(1, &[text(1, "rlhost"), text(2, "0.70.0")].concat()));
    log.record(17, &begin(run, id));
    let named = |row: &super::run::ExportedRow| {
        let mut items: Vec<(String, String)> =
            row.values.iter().map(|(metric, value)| (run.metrics[*metric].clone(), format!("{value:?}"))).collect();
        items.push(("_step".into(), row.step.to_string()));
        items.push(("_timestamp".into(), format!("{:.3}", row.time as f64 / 1e3)));
        items.push(("_runtime".into(), format!("{:.3}", (row.time - run.started) as f64 / 1e3)));
        items
    };
    let mut rows = run.rows.iter().peekable();
    let mut summary = std::collections::BTreeMap::new();
    while let Some(row) = rows.next() {
        let mut items = named(row);
        // An evaluation's row has the step of the row before, but a history needs distinct steps.
        while let Some(more) = rows.next_if(|next| next.step == row.step) {
            let more = named(more);
            items.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
            items.extend(more);
        }
        summary.extend(items.clone());
        let items = items.iter().flat_map(|(name, value)| message(1, &[text(2, name), text(16, value)].concat()));
        let body: Vec<u8> = items.chain(message(2, &number(1, row.step))).collect();
        log.record(2, &body);
    }
    let last = summary.iter().flat_map(|(name, value)| message(1, &[text(2, name), text(16, value)].concat()));
    log.record(3, &last.collect::<Vec<u8>>());
    let failed = run.end.as_deref() == Some("failed");
    let seconds = (run.ended - run.started).max(0) as u64 / 1000;
    log.record(18, &[number(1, u64::from(failed)), number(2, seconds.min(i32::MAX as u64))].concat());
    write_file(&folder.join(format!("run-{id}.wandb")), |file| file.write_all(&log.bytes))?;
    Ok(folder)
}

/// Returns the record of the run itself.
fn begin(run: &ExportedRun, id: &str) -> Vec<u8> {
    let own = serde_json::json!({ "cli_version": "0.19.0" });
    let version = ("_wandb".to_owned(), &own);
    let settings = run.settings.iter().map(|(key, value)| (key.clone(), value)).chain([version]);
    let config: Vec<u8> = settings
        .flat_map(|(key, value): (String, &Value)| message(1, &[text(1, &key), text(16, &value.to_string())].concat()))
        .collect();
    let start = [number(1, run.started.max(0) as u64 / 1000), number(2, run.started.max(0) as u64 % 1000 * 1_000_000)].concat();
    [text(1, id), text(3, "rlhost"), message(4, &config), text(8, &run.title), message(17, &start)].concat()
}

/// Encodes a protobuf varint, with seven bits per byte.
fn varint(mut v: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while v >= 0x80 {
        bytes.push(v as u8 | 0x80);
        v >>= 7;
    }
    bytes.push(v as u8);
    bytes
}

fn number(field: u32, v: u64) -> Vec<u8> {
    [varint(u64::from(field) << 3), varint(v)].concat()
}

fn message(field: u32, body: &[u8]) -> Vec<u8> {
    [varint(u64::from(field) << 3 | 2), varint(body.len() as u64), body.to_vec()].concat()
}

fn text(field: u32, text: &str) -> Vec<u8> {
    message(field, text.as_bytes())
}

/// A log file in memory.
struct WandbLog {
    bytes: Vec<u8>,
    records: u64,
}

impl WandbLog {
    fn new() -> Self {
        Self { bytes: BEGIN.to_vec(), records: 0 }
    }

    /// Adds a record whose content is a message in this field.
    fn record(&mut self, field: u32, body: &[u8]) {
        self.records += 1;
        let record = [number(1, self.records), message(field, body)].concat();
        let (mut rest, mut first) = (&record[..], true);
        loop {
            let mut room = BLOCK - self.bytes.len() % BLOCK;
            if room < HEADER {
                self.bytes.extend(std::iter::repeat_n(0, room));
                room = BLOCK;
            }
            let (part, left) = rest.split_at(rest.len().min(room - HEADER));
            // FULL, FIRST, MIDDLE, LAST
            let kind: u8 = match (first, left.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let mut digest = CRC.digest();
            digest.update(&[kind]);
            digest.update(part);
            self.bytes.extend(digest.finalize().to_le_bytes());
            self.bytes.extend((part.len() as u16).to_le_bytes());
            self.bytes.push(kind);
            self.bytes.extend(part);
            (rest, first) = (left, false);
            if rest.is_empty() {
                return;
            }
        }
    }
}
