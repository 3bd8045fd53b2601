//! Caches the token counts of a dataset's rows, which packing needs before the first step, in the user's cache folder. The key is a hash of
//! everything that determines them.

use crate::Result;
use crate::config::{files, hex};
use crate::dist::World;
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Minimum number of rows for caching; fewer are counted in less than a second.
const MIN_CACHED_ROWS: usize = 4096;

/// Maximum size of the cache in bytes; beyond it, the least recently used files are deleted.
const ROOM: u64 = 256 << 20;

const EXTENSION: &str = "lengths";

/// Size of the checksum at the start of a file, in bytes.
const CHECKSUM: usize = 32;

/// Returns the `N` counts of each row from the cache, or computes them with `count`. Ranks with the same rows divide the work.
///
/// # Errors
/// Those of `count`, and those of other ranks.
pub(super) fn counted<const N: usize>(
    fingerprint: &str,
    rows: usize,
    world: &World,
    count: impl FnOnce(Range<usize>) -> Result<Vec<[usize; N]>>,
) -> Result<Vec<[usize; N]>> {
    let file = files::cache_folder().filter(|_| rows >= MIN_CACHED_ROWS).map(|cache| place(&cache, fingerprint));
    let before = file.as_deref().and_then(|file| kept(file, rows));
    // Ranks may have different caches, and different files.
    let all = world.gather("counted rows", (fingerprint.to_owned(), rows, before.is_some()))?;
    let are_same = all.iter().all(|(other, count, _)| (other.as_str(), *count) == (fingerprint, rows));
    let all_have = all.iter().all(|(.., has)| *has);
    let share = if are_same { world.share(rows) } else { 0..rows };
    let (is_new, own) = match before {
        Some(counts) if all_have || !are_same => return Ok(counts),
        Some(counts) => (false, counts[share].to_vec()),
        None => (true, count(share)?),
    };
    let counts = if are_same { of_all(world, own)? } else { own };
    if let Some(file) = file.filter(|_| is_new)
        && let Err(e) = keep(&file, &counts)
    {
        tracing::debug!("{}: {e}", file.display());
    }
    Ok(counts)
}

/// Returns the counts of all ranks' rows.
fn of_all<const N: usize>(world: &World, own: Vec<[usize; N]>) -> Result<Vec<[usize; N]>> {
    let all = world.concat("counts of rows", own.into_flattened())?;
    Ok(all.as_chunks().0.to_vec())
}

/// Returns the cache file for rows with this fingerprint.
fn place(cache: &Path, fingerprint: &str) -> PathBuf {
    let counted_by = Sha256::new_with_prefix(env!("CARGO_PKG_VERSION")).chain_update(fingerprint).finalize();
    cache.join("lengths").join(hex(&counted_by)).with_extension(EXTENSION)
}

/// Returns the counts in a file, if it is intact and has as many rows.
fn kept<const N: usize>(file: &Path, rows: usize) -> Option<Vec<[usize; N]>> {
    let bytes = files::read(file, (CHECKSUM + rows * N * size_of::<u32>()) as u64).ok()?;
    let (checksum, values) = bytes.split_at_checked(CHECKSUM)?;
    let (values, rest) = values.as_chunks::<4>();
    if values.len() != rows * N || !rest.is_empty() || *checksum != *Sha256::digest(values.as_flattened()) {
        return None;
    }
    files::mark_used(file);
    tracing::debug!("counts of {rows} rows: {}", file.display());
    let numbers: Vec<usize> = values.iter().map(|value| u32::from_le_bytes(*value) as usize).collect();
    Some(numbers.as_chunks().0.to_vec())
}

/// Writes counts to a file, atomically.
fn keep<const N: usize>(file: &Path, counts: &[[usize; N]]) -> io::Result<()> {
    let of_row = |number: &usize| u32::try_from(*number).map_err(io::Error::other);
    let values = counts.as_flattened().iter().map(of_row).collect::<io::Result<Vec<u32>>>()?;
    let bytes: Vec<u8> = values.into_iter().flat_map(u32::to_le_bytes).collect();
    fs::create_dir_all(file.parent().ok_or(io::ErrorKind::NotFound)?)?;
    files::write_to_cache(&[Sha256::digest(&bytes).as_slice(), &bytes].concat(), file, ROOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_back_unless_a_byte_or_their_number_differs() {
        let cache = tempfile::tempdir().unwrap();
        let (file, lengths) = (place(cache.path(), "rows:1"), vec![[3], [0], [70_000], [5]]);
        assert!(kept::<1>(&file, 4).is_none());
        keep(&file, &lengths).unwrap();
        assert_eq!(kept(&file, 4), Some(lengths));
        assert!(kept::<1>(&file, 3).is_none() && kept::<1>(&file, 5).is_none());
        assert_eq!(kept(&file, 2), Some(vec![[3, 0], [70_000, 5]]));
        assert!(kept::<1>(&place(cache.path(), "rows:2"), 4).is_none());
        let whole = fs::read(&file).unwrap();
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 4;
            fs::write(&file, &damaged).unwrap();
            assert!(kept::<1>(&file, 4).is_none(), "byte {place}");
        }
        fs::write(&file, &whole[..whole.len() - 4]).unwrap();
        assert!(kept::<1>(&file, 4).is_none());
    }

    #[test]
    fn a_length_that_has_no_place_is_an_error_and_leaves_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let file = place(cache.path(), "rows:1");
        assert!(keep(&file, &[[1 << 40]]).is_err());
        assert!(!file.exists());
    }
}
