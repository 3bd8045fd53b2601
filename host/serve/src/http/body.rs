//! Bodies of requests, which are read within limits, and of responses.

use crate::api::EventSource;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

/// Body of a response.
pub enum ReplyBody {
    /// Bytes that have not been sent.
    Whole(Option<Bytes>),
    /// Events that are written while they are sent.
    Events(Box<dyn EventSource>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) => bytes.take(),
            Self::Events(source) => ready!(source.poll_next(context)).map(Bytes::from),
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// Reason why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyReadError {
    /// The body exceeds the limit.
    #[error("the body is too large; the maximum is {0} bytes")]
    TooLarge(usize),
    /// The client stopped sending.
    #[error("the body ended early")]
    Truncated,
    /// Other bodies use up the memory for bodies.
    #[error("too many large requests at once; try again later")]
    NoRoom,
}

impl BodyReadError {
    /// Returns the HTTP status of the error.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::TooLarge(_) => 413,
            Self::Truncated => 400,
            Self::NoRoom => 503,
        }
    }
}

/// Memory for bodies that are being read, shared by all connections.
pub struct BodyMemoryBudget {
    used: AtomicUsize,
    most: usize,
}

/// Share of the memory, returned when dropped.
struct BodyMemoryShare<'a> {
    budget: &'a BodyMemoryBudget,
    bytes: usize,
}

impl Drop for BodyMemoryShare<'_> {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl BodyMemoryBudget {
    /// Creates a budget of `most` bytes.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { used: AtomicUsize::new(0), most }
    }

    /// Reads a body of up to `largest` bytes.
    ///
    /// # Errors
    /// If the body is larger, ends early, or exceeds the budget.
    pub async fn read(&self, mut body: Incoming, largest: usize) -> Result<Vec<u8>, BodyReadError> {
        let too_large = || BodyReadError::TooLarge(largest);
        if body.size_hint().lower() > largest as u64 {
            return Err(too_large());
        }
        let mut share = BodyMemoryShare { budget: self, bytes: 0 };
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|_| BodyReadError::Truncated)?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > largest {
                return Err(too_large());
            }
            share.bytes += data.len();
            if self.used.fetch_add(data.len(), Ordering::SeqCst) + data.len() > self.most {
                return Err(BodyReadError::NoRoom);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }
}
