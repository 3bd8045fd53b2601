//! Files packed by gzip or zstd.

use super::File;
use crate::data::Result;
use flate2::read::MultiGzDecoder;
use std::io::{ErrorKind, Read};

/// Rows may always take this much memory, and beyond it this many times the size of their file: a
/// dataset is text, which no packing makes a hundred times smaller.
const ALWAYS: u64 = 4 << 30;
const TIMES: u64 = 100;

/// How much a file of so many bytes may become.
pub(super) fn limit(packed: usize) -> u64 {
    ALWAYS.max(TIMES.saturating_mul(packed as u64))
}

/// What a file was before it was packed; one that is not packed stays as it is.
pub(super) fn unpack(file: &File, bytes: Vec<u8>, limit: u64) -> Result<Vec<u8>> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        drain(file, "gzip", MultiGzDecoder::new(bytes.as_slice()), limit)
    } else if bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let decoder = zstd::Decoder::with_buffer(bytes.as_slice()).map_err(|e| file.wrong(format!("zstd: {e}")))?;
        drain(file, "zstd", decoder, limit)
    } else {
        Ok(bytes)
    }
}

fn drain(file: &File, kind: &str, decoder: impl Read, limit: u64) -> Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    let read = decoder.take(limit.saturating_add(1)).read_to_end(&mut unpacked).map_err(|e| {
        file.wrong(match e.kind() {
            ErrorKind::UnexpectedEof => format!("is cut off: its {kind} data has no end; fetch or write it again"),
            _ => format!("is packed by {kind} and damaged ({e}); fetch or write it again"),
        })
    })?;
    if read as u64 > limit { Err(file.wrong(too_large(limit))) } else { Ok(unpacked) }
}

/// What is said of a file that becomes more than [`limit`].
pub(super) fn too_large(limit: u64) -> String {
    let limit = indicatif::HumanBytes(limit);
    format!("becomes more than {limit} when it is unpacked, which is more than its size can hold of text; it may be damaged")
}
