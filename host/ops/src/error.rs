//! Errors of operations.

/// An error of an operation. Shapes are the callers' invariants, so all variants but [`Error::OutOfMemory`] and [`Error::Device`] indicate
/// a bug or a device that lacks an implementation, not a user's mistake.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of candle (allocation, dtype, device).
    #[error(transparent)]
    Candle(candle_core::Error),
    /// The device is out of memory.
    #[error(
        "the device's memory is full; lower per_device_train_batch_size, max_tokens_per_microbatch, max_completion_length, \
         max_num_seqs or, with an environment, max_episode_tokens, or set gradient_checkpointing"
    )]
    OutOfMemory,
    /// A device can't be opened.
    #[error("{0}")]
    Device(String),
    /// An operation has no kernel for a tensor.
    #[error("{op}: no kernel for a {dtype:?} tensor with this layout on {device}")]
    Unsupported {
        /// The operation or access that failed.
        op: &'static str,
        /// The tensor's element type.
        dtype: candle_core::DType,
        /// The tensor's device.
        device: String,
    },
    /// Two tensors don't fit together.
    #[error("{op}: {detail}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// What does not fit.
        detail: String,
    },
}

impl Error {
    /// Creates an error about tensors that don't fit together.
    pub(super) fn shape(op: &'static str, detail: String) -> Self {
        Self::Shape { op, detail }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        // Errors of the driver are text.
        let said = error.to_string();
        let full = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"].iter().any(|status| said.contains(status));
        if full { Self::OutOfMemory } else { Self::Candle(error) }
    }
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Error>;
