//! The built-in model: three million parameters, trained to write short summaries of forum posts. `examples/builtin-model/README.md`
//! describes how it was made.

use super::{Error, Result};
use std::path::Path;

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../../examples/builtin-model/model/", $name)))
    };
}

const FILES: [(&str, &[u8]); 4] =
    [file!("config.json"), file!("tokenizer.json"), file!("tokenizer_config.json"), file!("model.safetensors")];

/// Writes the model's folder.
///
/// # Errors
/// If a file can't be written.
pub fn write(folder: &Path) -> Result<()> {
    for (name, bytes) in FILES {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(|source| Error::Write { path, source })?;
    }
    Ok(())
}
