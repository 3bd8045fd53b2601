//! Records of an event file and their messages, to the extent needed, with field numbers from TensorFlow's `event.proto` and
//! `summary.proto`.

use prost::Message;
use std::io::{self, Read};

const CRC32C: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);

#[derive(Clone, PartialEq, Message)]
pub(super) struct EventProto {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    // An event has exactly one of this field and the next two.
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub summary: Option<SummaryProto>,
    #[prost(message, optional, tag = "7")]
    pub session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SummaryProto {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<SummaryValue>,
}

/// The message `Summary.Value`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SummaryValue {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    pub tensor: Option<TensorProto>,
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<SummaryMetadata>,
}

/// The message `TensorProto`; without a shape, it is a scalar.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorProto {
    #[prost(enumeration = "DataType", tag = "1")]
    pub dtype: i32,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub string_val: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
pub(super) enum DataType {
    Invalid = 0,
    String = 7,
}

/// The message `SummaryMetadata`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SummaryMetadata {
    #[prost(message, optional, tag = "1")]
    pub plugin: Option<PluginData>,
    #[prost(enumeration = "DataClass", tag = "4")]
    pub data_class: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PluginData {
    #[prost(string, tag = "1")]
    pub plugin_name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
pub(super) enum DataClass {
    Unknown = 0,
    Tensor = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    #[prost(enumeration = "SessionStatus", tag = "1")]
    pub status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
pub(super) enum SessionStatus {
    Unspecified = 0,
    Start = 1,
}

/// Masks a checksum by rotating and adding, as the record format requires: the CRC of bytes that contain CRCs is weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    CRC32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Encodes a `TFRecord`: length, its checksum, the message, its checksum.
pub(super) fn record(event: &EventProto) -> Vec<u8> {
    let message = event.encode_to_vec();
    let length = (message.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(message.len() + 16);
    bytes.extend(length);
    bytes.extend(masked_crc(&length).to_le_bytes());
    bytes.extend(&message);
    bytes.extend(masked_crc(&message).to_le_bytes());
    bytes
}

/// Size of a record excluding its message, in bytes.
pub(super) const FRAME: u64 = 16;

/// Maximum length of a message that is read, in bytes. The longest message written contains a run's configuration.
const LONGEST: u64 = 64 << 20;

/// The step of an event; other fields are skipped.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventStep {
    #[prost(int64, tag = "2")]
    pub step: i64,
}

/// Returns the next record's message; `None` if the record is truncated or damaged.
pub(super) fn next_message(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 12];
    if !read_whole(from, &mut head)? {
        return Ok(None);
    }
    let (length, crc) = head.split_at(8);
    let bytes = u64::from_le_bytes(length.try_into().unwrap_or_default());
    if crc != masked_crc(length).to_le_bytes() || bytes > LONGEST {
        return Ok(None);
    }
    let (mut message, mut crc) = (Vec::new(), [0; 4]);
    from.take(bytes).read_to_end(&mut message)?;
    let whole = read_whole(from, &mut crc)? && crc == masked_crc(&message).to_le_bytes();
    Ok(whole.then_some(message))
}

/// Fills a buffer. Returns whether there were enough bytes.
fn read_whole(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_and_frames_are_those_of_known_files() {
        assert_eq!(CRC32C.checksum(b"123456789"), 0xe306_9283);
        // RFC 3720, B.4.
        assert_eq!(CRC32C.checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(CRC32C.checksum(&[0xff; 32]), 0x62a8_ab43);
        // The length that starts every event file of TensorFlow and PyTorch.
        assert_eq!(masked_crc(&24u64.to_le_bytes()).to_le_bytes(), [0xa3, 0x7f, 0x4b, 0x22]);
    }
}
