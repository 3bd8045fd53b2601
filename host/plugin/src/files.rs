//! Reads plugins' files.

use crate::config::files;
use std::io;
use std::path::Path;

/// Largest size of a plugin's file, in bytes.
pub(super) const LARGEST: u64 = 64 << 20;

/// Reads a plugin's file. Rejects files larger than a plugin may be, pipes, which may never end, and devices.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    files::read(path, LARGEST)
}
