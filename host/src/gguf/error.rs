//! Errors of exporting a model.

use super::GgufPrecision;
use crate::{data, model};
use std::io;
use std::path::PathBuf;

/// Reason why a model can't be exported as a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// llama.cpp does not support this model.
    #[error("{}: {detail}", path.display())]
    Unknown {
        /// The file that describes the model.
        path: PathBuf,
        /// Feature that llama.cpp lacks.
        detail: String,
    },
    /// A weight can't be written in the requested precision.
    #[error("{tensor} has values that are not finite or too large for {}; bf16 and f32 go up to 3e38", precision.name())]
    OutOfRange {
        /// Name of the first such tensor in the file.
        tensor: String,
        /// Requested precision.
        precision: GgufPrecision,
    },
    /// The file can't be written.
    #[error("can't write the file: {0}")]
    Write(#[source] io::Error),
    /// The model can't be read.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The tokenizer can't be read.
    #[error(transparent)]
    Data(#[from] data::Error),
}

impl Error {
    /// Returns whether the user's input is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::OutOfRange { .. } => true,
            Self::Write(source) => crate::config::files::is_path_error(source),
            Self::Model(error) => error.is_mistake(),
            Self::Data(error) => error.is_mistake(),
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Model(error.into())
    }
}

impl From<crate::ops::Error> for Error {
    fn from(error: crate::ops::Error) -> Self {
        Self::Model(error.into())
    }
}

/// Result of writing a GGUF file.
pub type Result<T> = std::result::Result<T, Error>;
