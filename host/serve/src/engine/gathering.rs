//! Waiting for calls that follow each other at once, so that they are computed together.
//!
//! The programs of agents often answer within a millisecond. If each of their calls started a round of its own, sequences would fall out of
//! step: more rounds would be needed, each with fewer sequences.

use std::time::Duration;

/// Longest wait for the next call.
pub(super) const LONGEST_WAIT: Duration = Duration::from_millis(2);

/// Number of rounds after which waiting is tried again where it was in vain.
const RETRIED_AFTER: u32 = 32;

/// Whether the engine waits for calls before a round.
#[derive(Debug, Default)]
pub(super) struct CallGathering {
    /// Number of sequences that have finished since the last round, each of which may be followed by a call.
    finished: usize,
    /// Number of calls that the wait began for.
    expected: usize,
    /// Number of waits in a row in which fewer than half of the calls came.
    in_vain: u32,
    /// Number of rounds since the last wait.
    skipped: u32,
}

impl CallGathering {
    /// Records finished sequences.
    pub(super) fn finished(&mut self, count: usize) {
        self.finished += count;
    }

    /// Records a call.
    pub(super) fn came(&mut self) {
        self.finished = self.finished.saturating_sub(1);
    }

    /// Returns whether fewer calls came than sequences finished since the last round.
    pub(super) fn is_missing(&self) -> bool {
        self.finished > 0
    }

    /// Begins a wait before a round. Returns whether calls are missing that may come at once; otherwise they are no longer expected.
    pub(super) fn begin(&mut self) -> bool {
        if !self.is_missing() {
            return false;
        }
        self.skipped += 1;
        if self.in_vain > 2 && self.skipped < RETRIED_AFTER {
            self.skip();
            return false;
        }
        (self.skipped, self.expected) = (0, self.finished);
        true
    }

    /// Expects no more calls before the next round.
    pub(super) fn skip(&mut self) {
        self.finished = 0;
    }

    /// Ends a wait. A call of something else may have come, and one with several choices is followed by none until all of them have
    /// finished, so a few calls don't make waiting worthwhile.
    pub(super) fn end(&mut self) {
        let came = self.expected.saturating_sub(self.finished);
        self.in_vain = if 2 * came >= self.expected { 0 } else { self.in_vain.saturating_add(1) };
        self.skip();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_where_nobody_answers_at_once_and_are_tried_again() {
        let mut gathering = CallGathering::default();
        assert!(!gathering.begin());
        gathering.finished(3);
        gathering.came();
        assert!(gathering.begin());
        gathering.came();
        assert!(gathering.is_missing());
        gathering.came();
        assert!(!gathering.is_missing());
        gathering.end();
        let mut waits = Vec::new();
        for round in 0..100 {
            gathering.finished(1);
            if gathering.begin() {
                waits.push(round);
                gathering.end();
            }
            assert!(!gathering.is_missing());
        }
        assert_eq!(waits, [0, 1, 2, 34, 66, 98]);
        // Once is enough to wait each time again.
        for _ in 0..RETRIED_AFTER {
            gathering.finished(2);
            if gathering.begin() {
                gathering.came();
                gathering.end();
            }
        }
        gathering.finished(1);
        assert!(gathering.begin());
    }

    #[test]
    fn a_few_of_many_calls_do_not_make_waiting_worthwhile() {
        let mut gathering = CallGathering::default();
        for round in 0..4 {
            gathering.finished(4);
            let waits = gathering.begin();
            assert_eq!(waits, round < 3);
            if waits {
                gathering.came();
                gathering.end();
            }
        }
    }
}
