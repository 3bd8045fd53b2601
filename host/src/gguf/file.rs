//! The layout of a GGUF file, version 3 (ggml's `docs/gguf.md`): a header, the metadata, a table of tensors, and their values.

use super::encode::GgufEncoder;
use super::gguf_tensor::GgufTensor;
use super::{Error, Result};
use std::io::{self, Write};

const MAGIC: &[u8] = b"GGUF";
const VERSION: u32 = 3;

/// The alignment of each tensor's values; the default that readers assume.
const ALIGNMENT: u64 = 32;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GgufValue {
    Count(u32),
    Number(f32),
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<f32>),
    Integers(Vec<i32>),
    Flags(Vec<bool>),
}

/// Metadata, in file order.
pub(super) type GgufMetadata = Vec<(String, GgufValue)>;

/// Writes a file with these metadata and tensors. At most one part of one tensor is in memory in a form other than the model's.
///
/// # Errors
/// If writing fails, or a value is out of the range of its tensor's precision.
pub(super) fn write(to: &mut impl Write, metadata: &GgufMetadata, parts: &[GgufTensor]) -> Result<()> {
    let mut head = GgufHeader(Vec::new());
    head.0.extend(MAGIC);
    head.count(VERSION);
    head.long(parts.len() as u64);
    head.long(metadata.len() as u64);
    for (key, value) in metadata {
        head.text(key);
        head.value(value);
    }
    let mut offset = 0;
    for part in parts {
        head.text(&part.name);
        head.count(part.shape.len() as u32);
        part.shape.iter().rev().for_each(|size| head.long(*size as u64));
        head.count(part.precision.number());
        head.long(offset);
        offset += part.bytes().next_multiple_of(ALIGNMENT);
    }
    let unwritten = Error::Write;
    to.write_all(&head.0).map_err(unwritten)?;
    pad(to, head.0.len() as u64).map_err(unwritten)?;
    let mut encoder = GgufEncoder::default();
    for part in parts {
        encoder.write(part, to)?;
        pad(to, part.bytes()).map_err(unwritten)?;
    }
    to.flush().map_err(unwritten)
}

/// Writes zeros up to a multiple of the alignment.
fn pad(to: &mut impl Write, written: u64) -> io::Result<()> {
    let missing = written.next_multiple_of(ALIGNMENT) - written;
    to.write_all(&[0; ALIGNMENT as usize][..missing as usize])
}

/// Everything before the tensors' values.
struct GgufHeader(Vec<u8>);

impl GgufHeader {
    fn count(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn long(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.long(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    /// Writes the type's number, then the value.
    fn value(&mut self, value: &GgufValue) {
        const COUNT: u32 = 4;
        const INTEGER: u32 = 5;
        const NUMBER: u32 = 6;
        const FLAG: u32 = 7;
        const TEXT: u32 = 8;
        match value {
            GgufValue::Count(count) => {
                self.count(COUNT);
                self.count(*count);
            }
            GgufValue::Number(number) => {
                self.count(NUMBER);
                self.0.extend(number.to_le_bytes());
            }
            GgufValue::Flag(flag) => {
                self.count(FLAG);
                self.0.push((*flag).into());
            }
            GgufValue::Text(text) => {
                self.count(TEXT);
                self.text(text);
            }
            GgufValue::Texts(all) => self.list(TEXT, all, |head, text| head.text(text)),
            GgufValue::Numbers(all) => self.list(NUMBER, all, |head, number| head.0.extend(number.to_le_bytes())),
            GgufValue::Integers(all) => self.list(INTEGER, all, |head, number| head.0.extend(number.to_le_bytes())),
            GgufValue::Flags(all) => self.list(FLAG, all, |head, flag| head.0.push((*flag).into())),
        }
    }

    fn list<T>(&mut self, kind: u32, all: &[T], each: impl Fn(&mut Self, &T)) {
        const LIST: u32 = 9;
        self.count(LIST);
        self.count(kind);
        self.long(all.len() as u64);
        all.iter().for_each(|value| each(self, value));
    }
}
