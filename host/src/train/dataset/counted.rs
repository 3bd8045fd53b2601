//! The numbers of tokens of a dataset's rows, which packing needs before the first step. They are kept in the user's cache, under a
//! hash of everything that determines them.

use crate::config::{files, hex};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Fewer rows are counted in less than a second.
const WORTH: usize = 4096;

/// Most bytes that all files take; beyond, the least recently used are removed.
const ROOM: u64 = 256 << 20;

const EXTENSION: &str = "lengths";

/// Bytes of a file's checksum, which come first.
const CHECKSUM: usize = 32;

/// Returns what `count` returns, or what it returned for the same rows before.
///
/// # Errors
/// Those of `count`.
pub(super) fn counted<E>(fingerprint: &str, rows: usize, count: impl FnOnce() -> Result<Vec<usize>, E>) -> Result<Vec<usize>, E> {
    let Some(file) = files::cache_folder().filter(|_| rows >= WORTH).map(|cache| place(&cache, fingerprint)) else {
        return count();
    };
    if let Some(lengths) = kept(&file, rows) {
        tracing::debug!("lengths of {rows} rows: {}", file.display());
        return Ok(lengths);
    }
    let lengths = count()?;
    if let Err(e) = keep(&file, &lengths) {
        tracing::debug!("{}: {e}", file.display());
    }
    Ok(lengths)
}

/// Returns the file in a cache for rows with this fingerprint.
fn place(cache: &Path, fingerprint: &str) -> PathBuf {
    let counted_by = Sha256::new_with_prefix(env!("CARGO_PKG_VERSION")).chain_update(fingerprint).finalize();
    cache.join("lengths").join(hex(&counted_by)).with_extension(EXTENSION)
}

/// Returns the lengths in a file, if it is intact and has as many.
fn kept(file: &Path, rows: usize) -> Option<Vec<usize>> {
    let bytes = files::read(file, (CHECKSUM + rows * size_of::<u32>()) as u64).ok()?;
    let (checksum, values) = bytes.split_at_checked(CHECKSUM)?;
    let (values, rest) = values.as_chunks::<4>();
    if values.len() != rows || !rest.is_empty() || *checksum != *Sha256::digest(values.as_flattened()) {
        return None;
    }
    files::mark_used(file);
    Some(values.iter().map(|value| u32::from_le_bytes(*value) as usize).collect())
}

/// Writes lengths, atomically.
fn keep(file: &Path, lengths: &[usize]) -> io::Result<()> {
    let of_row = |length: &usize| u32::try_from(*length).map_err(io::Error::other);
    let values = lengths.iter().map(of_row).collect::<io::Result<Vec<u32>>>()?;
    let bytes: Vec<u8> = values.into_iter().flat_map(u32::to_le_bytes).collect();
    fs::create_dir_all(file.parent().ok_or(io::ErrorKind::NotFound)?)?;
    files::keep(&[Sha256::digest(&bytes).as_slice(), &bytes].concat(), file, ROOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_back_unless_a_byte_or_their_number_differs() {
        let cache = tempfile::tempdir().unwrap();
        let (file, lengths) = (place(cache.path(), "rows:1"), vec![3, 0, 70_000, 5]);
        assert!(kept(&file, 4).is_none());
        keep(&file, &lengths).unwrap();
        assert_eq!(kept(&file, 4), Some(lengths));
        assert!(kept(&file, 3).is_none() && kept(&file, 5).is_none());
        assert!(kept(&place(cache.path(), "rows:2"), 4).is_none());
        let whole = fs::read(&file).unwrap();
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 4;
            fs::write(&file, &damaged).unwrap();
            assert!(kept(&file, 4).is_none(), "byte {place}");
        }
        fs::write(&file, &whole[..whole.len() - 4]).unwrap();
        assert!(kept(&file, 4).is_none());
    }

    #[test]
    fn a_length_that_has_no_place_is_an_error_and_leaves_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let file = place(cache.path(), "rows:1");
        assert!(keep(&file, &[1 << 40]).is_err());
        assert!(!file.exists());
    }
}
