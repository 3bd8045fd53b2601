//! Reads the texts of scripts and of the files that they import.

use crate::config::files;
use std::io;
use std::path::Path;

/// Maximum size of a script's file, in bytes.
const LARGEST_SCRIPT: u64 = 4 << 20;

/// Reads a script's text.
pub(super) fn text(file: &Path) -> io::Result<String> {
    let bytes = files::read(file, LARGEST_SCRIPT)?;
    let not_text =
        |at| io::Error::new(io::ErrorKind::InvalidData, format!("it is not text in UTF-8, from byte {at} on; save it as UTF-8"));
    let text = String::from_utf8(bytes).map_err(|e| not_text(e.utf8_error().valid_up_to()))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
