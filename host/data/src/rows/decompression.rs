//! Decompresses gzip and zstd files while reading.

use super::bounds::too_large;
use super::row::DatasetFile;
use crate::Result;
use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

/// Bytes that are inspected to detect a file's format.
const BEGIN: usize = 4;

/// Decompressed content of a file, and whether it was compressed.
pub(super) struct DecompressedFile<'a> {
    pub(super) stream: Box<dyn BufRead + 'a>,
    pub(super) packed: bool,
    /// First bytes of the content.
    pub(super) begin: Vec<u8>,
}

/// Decompresses a stream while reading, up to `limit` bytes; passes an uncompressed one through.
pub(super) fn unpack<'a>(file: &DatasetFile, raw: impl Read + 'a, limit: u64) -> Result<DecompressedFile<'a>> {
    let (begin, raw) = peek(file, raw)?;
    let (kind, unpacked): (_, Box<dyn Read + 'a>) = if begin.starts_with(&GZIP) {
        ("gzip", Box::new(GzipMembers { decoder: Some(GzDecoder::new(BufReader::new(raw))) }))
    } else if begin.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let decoder = zstd::Decoder::new(raw).map_err(|e| file.file_error(format!("zstd: {e}")))?;
        ("zstd", Box::new(decoder))
    } else {
        return Ok(DecompressedFile { stream: Box::new(BufReader::with_capacity(BUFFER, raw)), packed: false, begin });
    };
    let (begin, stream) = peek(file, SizeLimitedReader { inner: unpacked, kind, limit, left: limit })?;
    Ok(DecompressedFile { stream: Box::new(BufReader::with_capacity(BUFFER, stream)), packed: true, begin })
}

const BUFFER: usize = 1 << 16;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Returns the first bytes of a stream, and the stream with them still included.
fn peek<'a>(file: &DatasetFile, mut stream: impl Read + 'a) -> Result<(Vec<u8>, impl Read + 'a)> {
    let mut begin = Vec::with_capacity(BEGIN);
    (&mut stream).take(BEGIN as u64).read_to_end(&mut begin).map_err(|e| file.file_error(e.to_string()))?;
    Ok((begin.clone(), io::Cursor::new(begin).chain(stream)))
}

/// Stream that fails if it exceeds a size, and describes errors in compressed data.
struct SizeLimitedReader<R> {
    inner: R,
    kind: &'static str,
    limit: u64,
    left: u64,
}

impl<R: Read> Read for SizeLimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let kind = self.kind;
        let read = self.inner.read(buffer).map_err(|e| match e.kind() {
            ErrorKind::Interrupted => e,
            ErrorKind::UnexpectedEof => {
                io::Error::other(format!("is truncated: its {kind} data has no end; download or write it again"))
            }
            _ if e.get_ref().is_some_and(|e| e.is::<TrailingBytes>()) => io::Error::other(TrailingBytes),
            _ => io::Error::other(format!("is compressed with {kind} and damaged ({e}); download or write it again")),
        })?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| io::Error::other(too_large(self.limit)))?;
        Ok(read)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("is compressed with gzip, but other bytes follow its gzip data; remove them, or download or write it again")]
struct TrailingBytes;

/// All members of a gzip file in sequence: `cat` joins compressed shards in this way. Only zero padding may follow the last member, as
/// written by tapes and accepted by Python's gzip.
struct GzipMembers<R: BufRead> {
    /// Decoder of the current member; `None` at the end.
    decoder: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let read = decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(mut rest) = self.decoder.take().map(GzDecoder::into_inner) else { break };
            match rest.fill_buf()? {
                [] => {}
                [0, ..] => zeros(&mut rest)?,
                // The second byte may not be buffered yet; the decoder checks it.
                [first, ..] if *first == GZIP[0] => self.decoder = Some(GzDecoder::new(rest)),
                _ => return Err(io::Error::other(TrailingBytes)),
            }
        }
        Ok(0)
    }
}

fn zeros(rest: &mut impl BufRead) -> io::Result<()> {
    loop {
        let seen = match rest.fill_buf()? {
            [] => return Ok(()),
            seen if seen.iter().all(|b| *b == 0) => seen.len(),
            _ => return Err(io::Error::other(TrailingBytes)),
        };
        rest.consume(seen);
    }
}
