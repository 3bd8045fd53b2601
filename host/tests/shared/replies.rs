//! Replies between turns in tests of generation.

use rlhost::rollout::{EndedTurn, ReplyProvider, TurnReply};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Replies to the first turns of a sequence, depending on its request, sample and tokens, and records the maximum number of turns per call.
pub struct TestReplies {
    vocabulary: u32,
    most_tokens: usize,
    pub most_together: AtomicUsize,
}

impl TestReplies {
    pub fn new(most_tokens: usize, vocabulary: u32) -> Self {
        Self { vocabulary, most_tokens, most_together: AtomicUsize::new(0) }
    }

    /// Returns token `i` of the reply at position `begin` of a sequence of this kind.
    pub fn token(&self, kind: usize, begin: usize, i: usize) -> u32 {
        (kind * 97 + begin * 13 + i * 7) as u32 % self.vocabulary
    }
}

impl ReplyProvider for TestReplies {
    fn next_turns(&self, ended: &[EndedTurn<'_>]) -> Vec<TurnReply> {
        self.most_together.fetch_max(ended.len(), Ordering::Relaxed);
        let mut instances = ended.iter().map(|one| self.instance(one.request, one.sample));
        let first = instances.next();
        assert!(instances.all(|instance| Some(instance) == first), "a call is about one instance's sequences");
        let next = |ended: &EndedTurn<'_>| {
            assert!(!ended.turn.is_empty() && ended.turn.end == ended.tokens.len());
            let (kind, seen) = (ended.request + 2 * ended.sample, ended.tokens.len());
            // A reply of one token, of a few, and of more than a cache block.
            let length = [1, 5, 40][kind % 3];
            if ended.tokens.len() > 70 || kind % 5 == 4 && ended.turn.start > 0 {
                return TurnReply::Over(ended.finished);
            }
            TurnReply::Read((0..length).map(|i| self.token(kind, seen, i)).collect())
        };
        ended.iter().map(next).collect()
    }

    fn instance(&self, request: usize, sample: usize) -> usize {
        (request + sample) % 3
    }

    fn max_tokens(&self) -> usize {
        self.most_tokens
    }
}
