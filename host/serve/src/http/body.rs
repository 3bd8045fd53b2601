//! Bodies: of requests, read within limits, and of responses.

use crate::api::{ApiError, Source};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

/// The body of a response.
pub(super) enum ReplyBody {
    /// What has not been sent.
    Whole(Option<Bytes>),
    /// Events that are made while they are sent.
    Events(Box<dyn Source>),
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

/// Memory for bodies that are being read, of all connections together.
pub(super) struct Budget {
    used: AtomicUsize,
    most: usize,
}

/// A part of it, returned when dropped.
struct Share<'a> {
    budget: &'a Budget,
    bytes: usize,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl Budget {
    pub(super) fn new(most: usize) -> Self {
        Self { used: AtomicUsize::new(0), most }
    }

    /// Reads a body of up to `largest` bytes.
    pub(super) async fn read(&self, mut body: Incoming, largest: usize) -> Result<Vec<u8>, ApiError> {
        let too_large = || ApiError::new(413, format!("the body is too large; the maximum is {largest} bytes"));
        if body.size_hint().lower() > largest as u64 {
            return Err(too_large());
        }
        let mut share = Share { budget: self, bytes: 0 };
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|_| ApiError::invalid("the body ended early"))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > largest {
                return Err(too_large());
            }
            share.bytes += data.len();
            if self.used.fetch_add(data.len(), Ordering::SeqCst) + data.len() > self.most {
                return Err(ApiError::new(503, "too many large requests at once; try again later"));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }
}
