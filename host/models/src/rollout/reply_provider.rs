//! Rollouts with several turns: a [`ReplyProvider`] from the caller provides what sequences read between their turns.

use std::ops::Range;

/// Continues sequences that have ended a turn.
pub trait ReplyProvider: Sync {
    /// Returns what each of these sequences, all of one [instance](ReplyProvider::instance), reads next, or that it is over. Several
    /// threads may call it at once, each with its own sequences. An answer must not depend on which sequences are passed together.
    fn next_turns(&self, ended: &[EndedTurn<'_>]) -> Vec<TurnReply>;

    /// Returns the number of what answers a sequence, from the index of its request and its own among the completions of the row.
    fn instance(&self, request: usize, sample: usize) -> usize;

    /// Maximum number of tokens of a sequence after its prompt.
    fn max_tokens(&self) -> usize;
}

/// A sequence that has ended a turn.
pub struct EndedTurn<'a> {
    /// Index of its request.
    pub request: usize,
    /// Its index among the completions of the dataset's row.
    pub sample: usize,
    /// All its tokens after the prompt.
    pub tokens: &'a [u32],
    /// The tokens of its newest turn.
    pub turn: Range<usize>,
    /// Whether the turn ended on its own rather than at a limit.
    pub finished: bool,
}

/// What follows a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnReply {
    /// The sequence reads these tokens and generates another turn. If they leave no room for one, it is over.
    Read(Vec<u32>),
    /// It is over; whether it ended on its own.
    Over(bool),
}
