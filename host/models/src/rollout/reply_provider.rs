//! Rollouts with several turns: the caller's [`ReplyProvider`] provides the replies that sequences read between turns.

use std::ops::Range;

/// Provides replies to sequences that have ended a turn.
pub trait ReplyProvider: Sync {
    /// Returns the reply to each of these sequences, all of one [instance](ReplyProvider::instance). Threads may call it concurrently with
    /// different sequences. A reply must not depend on which sequences are passed together.
    fn next_turns(&self, ended: &[EndedTurn<'_>]) -> Vec<TurnReply>;

    /// Returns the number of the instance that replies to a sequence, given the index of its request and its own
    /// among the completions of the row.
    fn instance(&self, request: usize, sample: usize) -> usize;

    /// Maximum number of tokens of a sequence after its prompt.
    fn max_tokens(&self) -> usize;
}

/// A sequence that has ended a turn.
pub struct EndedTurn<'a> {
    /// Index of the sequence's request.
    pub request: usize,
    /// Index of the sequence among the completions of the dataset's row.
    pub sample: usize,
    /// All tokens of the sequence after the prompt.
    pub tokens: &'a [u32],
    /// Range of the newest turn's tokens.
    pub turn: Range<usize>,
    /// Whether the turn ended on its own rather than at a limit.
    pub finished: bool,
}

/// The reply to a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnReply {
    /// The sequence reads these tokens and generates another turn. It ends if they leave no room for one.
    Read(Vec<u32>),
    /// The sequence ends; holds whether it ended on its own.
    Over(bool),
}
