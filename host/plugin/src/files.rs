//! Reads plugins' files.

use crate::config::files;
use std::io;
use std::path::Path;

/// Maximum size of a plugin's file, in bytes.
pub(super) const LARGEST: u64 = 64 << 20;

/// Reads a plugin's file. Rejects files larger than a plugin may be, devices, and pipes, which may never end.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    files::read(path, LARGEST)
}
