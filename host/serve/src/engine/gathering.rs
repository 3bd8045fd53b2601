//! Waiting for calls that follow each other at once, so that they are computed together.
//!
//! The programs of agents often answer within a millisecond. If each of their calls started a round of its own, sequences would fall out of
//! step: more rounds would be needed, each with fewer sequences.

use std::time::Duration;

/// Longest wait for the next call.
const LONGEST: Duration = Duration::from_millis(2);

/// Number of rounds after which waiting is tried again where it was in vain.
const RETRIED_AFTER: u32 = 32;

/// How long the engine waits for the next call before a round.
#[derive(Debug, Default)]
pub(super) struct CallGathering {
    /// Number of sequences that have finished since the last round, each of which may be followed by a call.
    finished: usize,
    /// Number of waits in a row in which no call came.
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

    /// Returns for how long to wait for each missing call before a round; `None` if none is missing, or waiting is not worthwhile.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        if !self.is_missing() {
            return None;
        }
        self.skipped += 1;
        if self.in_vain > 2 && self.skipped < RETRIED_AFTER {
            self.finished = 0;
            return None;
        }
        self.skipped = 0;
        // Waits become shorter where nobody answers at once.
        Some(LONGEST / 2u32.saturating_pow(self.in_vain.min(5)))
    }

    /// Ends a wait, in which some calls came or none.
    pub(super) fn end(&mut self, came: bool) {
        self.finished = 0;
        self.in_vain = if came { 0 } else { self.in_vain.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_where_nobody_answers_at_once_and_are_tried_again() {
        let mut gathering = CallGathering::default();
        assert_eq!(gathering.begin(), None);
        gathering.finished(3);
        gathering.came();
        assert_eq!(gathering.begin(), Some(LONGEST));
        gathering.came();
        assert!(gathering.is_missing());
        gathering.came();
        assert!(!gathering.is_missing());
        gathering.end(true);
        let mut waits = Vec::new();
        for round in 0..100 {
            gathering.finished(1);
            if let Some(wait) = gathering.begin() {
                waits.push((round, wait));
                gathering.end(false);
            }
            assert!(!gathering.is_missing());
        }
        let rounds: Vec<u32> = waits.iter().map(|(round, _)| *round).collect();
        assert_eq!(rounds, [0, 1, 2, 34, 66, 98]);
        assert!(waits[3].1 <= LONGEST / 8 && waits[5].1 == LONGEST / 32);
        gathering.end(true);
        gathering.finished(2);
        assert_eq!(gathering.begin(), Some(LONGEST));
    }
}
