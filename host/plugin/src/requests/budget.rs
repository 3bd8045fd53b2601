//! Limits the memory that the answers of one call may take. Everything that receives an answer first reserves memory for it.

use super::OutboundResponse;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum size of all answers of a call, in bytes.
pub(super) const MOST_CARRIED: usize = 96 << 20;

/// Bytes that an answer, and each of its headers, counts in addition to its text.
const OVERHEAD: usize = 64;

/// Remaining answer memory of a call.
pub(super) struct AnswerBudget(AtomicUsize);

impl Default for AnswerBudget {
    fn default() -> Self {
        Self(AtomicUsize::new(MOST_CARRIED))
    }
}

/// A reservation, which is released unless it is kept.
pub(super) struct AnswerReservation<'a> {
    room: &'a AnswerBudget,
    taken: usize,
}

impl AnswerBudget {
    /// Creates a budget of this many bytes.
    #[cfg(test)]
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    /// Creates an empty reservation.
    pub(super) fn share(&self) -> AnswerReservation<'_> {
        AnswerReservation { room: self, taken: 0 }
    }
}

impl AnswerReservation<'_> {
    /// Reserves this many more bytes.
    ///
    /// # Errors
    /// If the budget has fewer bytes left.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), String> {
        let left = |left: usize| left.checked_sub(bytes);
        self.room.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).map_err(|_| too_much())?;
        self.taken += bytes;
        Ok(())
    }

    /// Adjusts the reservation to an answer's size.
    pub(super) fn fit(&mut self, answer: &OutboundResponse) -> Result<(), String> {
        let size = size(answer);
        if let Some(spare) = self.taken.checked_sub(size) {
            self.room.0.fetch_add(spare, Ordering::Relaxed);
            self.taken = size;
            return Ok(());
        }
        self.take(size - self.taken)
    }

    /// Keeps the memory reserved until the call ends.
    pub(super) fn keep(mut self) {
        self.taken = 0;
    }
}

impl Drop for AnswerReservation<'_> {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.taken, Ordering::Relaxed);
    }
}

/// Returns the size that headers count as.
pub(super) fn size_of_headers<'a>(headers: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> usize {
    headers.map(|(name, value)| name.len() + value.len() + OVERHEAD).sum()
}

/// Returns the size that an answer counts as.
pub(super) fn size(answer: &OutboundResponse) -> usize {
    let headers = answer.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    answer.body.len() + size_of_headers(headers) + OVERHEAD
}

/// Returns the error for an answer that does not fit.
pub(super) fn too_much() -> String {
    format!("the answers of this call have more than {} MiB together", MOST_CARRIED >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_is_given_back() {
        let room = AnswerBudget::with_capacity(1000);
        let answer =
            |bytes: usize| OutboundResponse { status: 200, headers: vec![("a".into(), "b".into())], body: vec![0; bytes] };
        let mut kept = room.share();
        kept.take(900).unwrap();
        assert!(room.share().take(101).unwrap_err().contains("96 MiB"));
        kept.fit(&answer(100)).unwrap();
        kept.keep();
        let left = 1000 - size(&answer(100));
        let mut lost = room.share();
        lost.take(left).unwrap();
        assert!(lost.fit(&answer(1000)).is_err() && room.share().take(1).is_err());
        drop(lost);
        assert!(room.share().take(left).is_ok() && room.share().take(left + 1).is_err());
    }
}
