//! Errors of models.

use std::path::PathBuf;

/// The reason why a model can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the folder can't be read.
    #[error("can't read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file of the folder can't be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The folder lacks a required file.
    #[error("{}: no such file; a model folder holds config.json, tokenizer.json and model.safetensors (or model.safetensors.index.json with its shards)", path.display())]
    Missing {
        /// The missing file.
        path: PathBuf,
    },
    /// config.json does not describe a supported model.
    #[error("{}: {detail}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// What is wrong and what is expected.
        detail: String,
    },
    /// The weights don't fit the configuration.
    #[error("{}: {detail}", path.display())]
    Weights {
        /// The weight file or folder.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A weight can't be written in the requested precision.
    #[error("{}: {tensor} has values that are not finite or too large for {dtype}; bfloat16 and float32 go up to 3e38", path.display())]
    OutOfRange {
        /// The model.
        path: PathBuf,
        /// The first tensor with such a weight.
        tensor: String,
        /// The precision.
        dtype: &'static str,
    },
    /// An adapter's bias can't be merged into a linear layer without one.
    #[error("{module} has no bias, so the adapter's lora_bias can't be merged into it; use the adapter with its base model")]
    NoBias {
        /// The linear layer.
        module: String,
    },
    /// The model's log-probabilities are not finite.
    #[error(
        "the model's log-probabilities are infinite or NaN, though its weights are finite: the weights are too large to compute \
         with, or the temperature is too close to 0"
    )]
    NotFinite,
    /// The value model's values are not finite.
    #[error(
        "the value model's values are infinite or NaN, though its weights are finite: the weights are too large to compute with"
    )]
    ValuesNotFinite,
    /// An operation failed.
    #[error(transparent)]
    Op(#[from] crate::ops::Error),
    /// The requested device does not exist.
    #[error("device {0}")]
    Device(String),
}

impl Error {
    /// Returns whether the user's input is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Io { source, .. } | Self::Write { source, .. } => crate::config::files::is_path_error(source),
            Self::Missing { .. } | Self::Config { .. } | Self::Weights { .. } => true,
            Self::OutOfRange { .. } | Self::NoBias { .. } | Self::Device(_) => true,
            Self::NotFinite | Self::ValuesNotFinite | Self::Op(_) => false,
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Op(error.into())
    }
}

/// Result of a model operation.
pub type Result<T> = std::result::Result<T, Error>;
