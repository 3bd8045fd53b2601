//! Writes TensorBoard event files.
//!
//! The crates for this (tensorboard-rs, tboard, tfrecord) had their last releases in 2022 to 2024, bring 30 to 100 dependencies,
//! and none can remove the steps that a resumed run undoes.

mod record;

use super::host_name;
use crate::config::files;
use prost::Message;
use record::{
    DataClass, DataType, EventProto, EventStep, FRAME, PluginData, SessionLog, SessionStatus, SummaryMetadata, SummaryProto,
    SummaryValue, TensorProto,
};
use record::{next_message, record};
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const PREFIX: &str = "events.out.tfevents.";

/// Truncates a file before its first record of a later step. Also truncates before an unreadable record, because TensorBoard
/// stops there too.
fn cut(file: &Path, step: u64) -> io::Result<()> {
    let own = files::open_for_writing(file, File::options().read(true).write(true))?;
    let mut records = BufReader::new(&own);
    let mut kept = 0;
    while let Some(message) = next_message(&mut records)?
        && EventStep::decode(&*message).is_ok_and(|event| event.step <= saturated(step))
    {
        kept += FRAME + message.len() as u64;
    }
    if kept < own.metadata()?.len() { own.set_len(kept) } else { Ok(()) }
}

fn saturated(step: u64) -> i64 {
    step.try_into().unwrap_or(i64::MAX)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the tag that transformers' callback gives a metric, so that its curve shares a chart with those of TRL runs.
fn tag(figure: &str) -> String {
    match (figure.strip_prefix("eval_"), figure.strip_prefix("test_")) {
        (Some(name), _) => format!("eval/{name}"),
        (_, Some(name)) => format!("test/{name}"),
        _ => format!("train/{figure}"),
    }
}

/// Formats any text as a Markdown code block, which shows it literally.
pub fn code_block(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{}\n{fence}\n", text.trim_end_matches('\n'))
}

/// An event file that is written during a run.
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl TensorBoard {
    /// Starts a new file in `run/tensorboard/`. If the run resumes `from_step`, later steps are removed from older files.
    ///
    /// # Errors
    /// If the folder or a file can't be read or written.
    pub fn create(run: &Path, from_step: Option<u64>) -> io::Result<Self> {
        let folder = run.join("tensorboard");
        files::create_folder(&folder)?;
        // TensorBoard reads files in the order of their names and never returns to one. So the newest must sort last, even if two start in
        // the same second or the clock was set back.
        let mut seconds = since_1970().as_secs();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let begun = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok());
            let Some(begun) = begun else { continue };
            seconds = seconds.max(begun.saturating_add(1));
            if let Some(step) = from_step {
                let of_file = |e: io::Error| io::Error::new(e.kind(), format!("tensorboard/{}: {e}", name.display()));
                cut(&entry.path(), step).map_err(of_file)?;
            }
        }
        let host = host_name().replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
        let path = folder.join(format!("{PREFIX}{seconds:010}.{host}.{}", std::process::id()));
        let file = File::options().append(true).create_new(true).open(&path)?;
        let mut this = Self { path, file, bytes: 0 };
        this.write(0, EventProto { file_version: Some("brain.Event:2".into()), ..EventProto::default() })?;
        // Except at the first start, this makes a TensorBoard that has already read the older files forget this step and later ones. Its
        // fast loader instead forgets each tag when an earlier step appears again.
        let session_log = Some(SessionLog { status: SessionStatus::Start.into() });
        this.write(from_step.map_or(0, |step| step.saturating_add(1)), EventProto { session_log, ..EventProto::default() })?;
        Ok(this)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes metrics as scalars. Omits values that are not finite as f32, which is TensorBoard's type, and `step` and `time`, which its
    /// axes show.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn scalars(&mut self, step: u64, figures: &Map<String, Value>) -> io::Result<()> {
        let shown = figures.iter().filter(|(name, _)| !matches!(name.as_str(), "step" | "time"));
        let finite = shown.filter_map(|(name, value)| Some((name, value.as_f64()? as f32))).filter(|(_, v)| v.is_finite());
        let values: Vec<SummaryValue> = finite
            .map(|(name, value)| SummaryValue { tag: tag(name), simple_value: Some(value), ..SummaryValue::default() })
            .collect();
        if values.is_empty() {
            return Ok(());
        }
        self.write(step, EventProto { summary: Some(SummaryProto { values }), ..EventProto::default() })
    }

    /// Writes a text, which TensorBoard shows as Markdown; use [`code_block`] to show it literally. Its step should be that of the metrics
    /// it belongs to: resuming a run also removes the texts of later steps.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn text(&mut self, step: u64, tag: &str, text: &str) -> io::Result<()> {
        let value = SummaryValue {
            tag: tag.into(),
            tensor: Some(TensorProto { dtype: DataType::String.into(), string_val: vec![text.into()] }),
            metadata: Some(SummaryMetadata {
                plugin: Some(PluginData { plugin_name: "text".into() }),
                data_class: DataClass::Tensor.into(),
            }),
            ..SummaryValue::default()
        };
        self.write(step, EventProto { summary: Some(SummaryProto { values: vec![value] }), ..EventProto::default() })
    }

    /// Writes a record with a single call. A record that does not fit on the disk is removed completely, because readers stop at the first
    /// damaged record of a file.
    fn write(&mut self, step: u64, event: EventProto) -> io::Result<()> {
        let wall_time = since_1970().as_secs_f64();
        let record = record(&EventProto { wall_time, step: saturated(step), ..event });
        let written = self.file.write_all(&record);
        match written {
            Ok(()) => self.bytes += record.len() as u64,
            Err(_) => self.file.set_len(self.bytes)?,
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A field of a message: its number, and the bytes of its number or content.
    type ProtoField = (u64, Vec<u8>);

    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = take(bytes, 1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    fn take<'a>(bytes: &mut &'a [u8], n: usize) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(n);
        *bytes = rest;
        taken
    }

    /// Parses protocol buffers by their specification, without a schema.
    fn fields(mut bytes: &[u8]) -> Vec<ProtoField> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let content = match key & 7 {
                0 => varint(&mut bytes).to_le_bytes().to_vec(),
                1 => take(&mut bytes, 8).to_vec(),
                2 => {
                    let n = varint(&mut bytes) as usize;
                    take(&mut bytes, n).to_vec()
                }
                5 => take(&mut bytes, 4).to_vec(),
                kind => panic!("wire type {kind}"),
            };
            fields.push((key >> 3, content));
        }
        fields
    }

    /// Returns the content of a field that occurs once.
    fn field(message: &[u8], path: &[u64]) -> Vec<u8> {
        path.iter().fold(message.to_vec(), |message, number| {
            let found: Vec<ProtoField> = fields(&message).into_iter().filter(|(n, _)| n == number).collect();
            assert_eq!(found.len(), 1, "field {number} of {path:?}");
            found[0].1.clone()
        })
    }

    /// Computes the masked CRC-32C bit by bit.
    fn slow_masked_crc(bytes: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(*byte);
            (0..8).for_each(|_| crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 });
        }
        (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
    }

    fn messages(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let length = take(&mut bytes, 8);
            assert_eq!(take(&mut bytes, 4), slow_masked_crc(length).to_le_bytes());
            let message = take(&mut bytes, u64::from_le_bytes(length.try_into().unwrap()) as usize);
            assert_eq!(take(&mut bytes, 4), slow_masked_crc(message).to_le_bytes());
            messages.push(message.to_vec());
        }
        messages
    }

    fn step(message: &[u8]) -> u64 {
        let number = fields(message).into_iter().find(|(n, _)| *n == 2);
        number.map_or(0, |(_, bytes)| u64::from_le_bytes(bytes.try_into().unwrap()))
    }

    fn read(board: &TensorBoard) -> Vec<Vec<u8>> {
        messages(&fs::read(board.path()).unwrap())
    }

    #[test]
    fn figures_and_texts_come_back_from_their_records() {
        let run = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::create(run.path(), None).unwrap();
        let line = json!({
            "step": 300, "epoch": 0.5, "time": 2.0, "loss": 0.0, "rewards/x/mean": -1.5, "eval_reward": 3,
            "undefined": null, "name": "x", "too_great": 1e300,
        });
        let before = since_1970().as_secs_f64();
        board.scalars(300, line.as_object().unwrap()).unwrap();
        board.scalars(301, &Map::from_iter([("loss".into(), Value::Null)])).unwrap();
        board.text(302, "config", "a = \"ü\"").unwrap();

        let [version, start, scalars, text] = read(&board).try_into().unwrap();
        assert_eq!((step(&version), step(&scalars), step(&text)), (0, 300, 302));
        assert_eq!(field(&version, &[3]), b"brain.Event:2");
        assert_eq!((step(&start), field(&start, &[7, 1])), (0, 1u64.to_le_bytes().to_vec()));
        let wall_time = f64::from_le_bytes(field(&scalars, &[1]).try_into().unwrap());
        assert!((before..=since_1970().as_secs_f64()).contains(&wall_time));
        let written: Vec<(String, f32)> = fields(&field(&scalars, &[5]))
            .iter()
            .map(|(_, v)| (String::from_utf8(field(v, &[1])).unwrap(), f32::from_le_bytes(field(v, &[2]).try_into().unwrap())))
            .collect();
        let expected = [("train/epoch", 0.5), ("train/loss", 0.0), ("train/rewards/x/mean", -1.5), ("eval/reward", 3.0)];
        assert_eq!(written, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(field(&text, &[5, 1, 1]), b"config");
        assert_eq!(field(&text, &[5, 1, 8, 8]), "a = \"ü\"".as_bytes());
        assert_eq!(field(&text, &[5, 1, 8, 1]), 7u64.to_le_bytes());
        assert_eq!(field(&text, &[5, 1, 9, 1, 1]), b"text");
        assert_eq!(field(&text, &[5, 1, 9, 4]), 2u64.to_le_bytes());
    }

    #[test]
    fn a_run_that_goes_on_takes_later_steps_back() {
        let run = tempfile::tempdir().unwrap();
        let mut first = TensorBoard::create(run.path(), None).unwrap();
        let loss = Map::from_iter([("loss".into(), 1.into())]);
        (498..=502).for_each(|step| first.scalars(step, &loss).unwrap());
        // As left by a process that was killed.
        first.file.write_all(&record(&EventProto::default())[..15]).unwrap();

        let resumed = TensorBoard::create(run.path(), Some(500)).unwrap();
        assert_eq!(read(&first).iter().map(|m| step(m)).collect::<Vec<_>>(), [0, 0, 498, 499, 500]);
        let [_, start] = read(&resumed).try_into().unwrap();
        assert_eq!((step(&start), field(&start, &[7, 1])), (501, 1u64.to_le_bytes().to_vec()));

        // The readable part of a damaged file stays.
        let mut bytes = fs::read(first.path()).unwrap();
        let end = bytes.len() - 1;
        bytes[end] ^= 1;
        fs::write(first.path(), bytes).unwrap();
        TensorBoard::create(run.path(), Some(600)).unwrap();
        assert_eq!(read(&first).iter().map(|m| step(m)).collect::<Vec<_>>(), [0, 0, 498, 499]);
    }

    #[test]
    fn a_newer_file_sorts_last() {
        let run = tempfile::tempdir().unwrap();
        let first = TensorBoard::create(run.path(), None).unwrap();
        let second = TensorBoard::create(run.path(), Some(0)).unwrap();
        assert!(second.path() > first.path(), "in one second");
        let ahead = second.path().with_file_name("events.out.tfevents.9999999998.elsewhere.1");
        fs::write(&ahead, "").unwrap();
        let third = TensorBoard::create(run.path(), Some(0)).unwrap();
        assert!(third.path() > ahead.as_path(), "after a clock that ran ahead");
    }

    #[test]
    fn a_code_block_ends_where_its_text_ends() {
        assert_eq!(code_block("a = 1\n"), "```\na = 1\n```\n");
        assert_eq!(code_block("```\n````x\n"), "`````\n```\n````x\n`````\n");
    }
}
