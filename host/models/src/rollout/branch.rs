//! Rows that are trees: where their tokens leave the token before them, and the segments that follow from it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A place at which a rollout's tokens do not continue the token before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Branch {
    /// Index of its first token among the rollout's.
    pub start: usize,
    /// Number of tokens of prompt and rollout up to the one that it continues, including that; 0 if it begins a text.
    pub after: usize,
}

/// A part of a row, prompt and rollout, that is a segment of a forest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSegment {
    /// Index of its first token along prompt and rollout.
    pub start: usize,
    /// Index after its last token.
    pub end: usize,
    /// Number of tokens up to the one that it continues, including that; 0 if it begins a text.
    pub after: usize,
}

/// Divides prompt and rollout, of `prompt` and `tokens` tokens, where one of `branches` begins or leaves, where the rollout begins, and at
/// these other places.
pub fn pieces(prompt: usize, tokens: usize, branches: &[Branch], others: impl IntoIterator<Item = usize>) -> Vec<RowSegment> {
    let all = prompt + tokens;
    let mut cuts: BTreeSet<usize> = others.into_iter().chain([0, prompt, all]).filter(|cut| *cut <= all).collect();
    for branch in branches {
        cuts.extend([prompt + branch.start, branch.after]);
    }
    let cuts: Vec<usize> = cuts.into_iter().collect();
    let piece = |cut: &[usize]| {
        let (start, end) = (cut[0], cut[1]);
        let branch = branches.iter().rev().find(|branch| prompt + branch.start == start);
        RowSegment { start, end, after: branch.map_or(start, |branch| branch.after) }
    };
    cuts.windows(2).map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_row_and_continue_what_their_texts_continue() {
        assert_eq!(pieces(2, 3, &[], []), [RowSegment { start: 0, end: 2, after: 0 }, RowSegment { start: 2, end: 5, after: 2 }]);
        assert_eq!(pieces(0, 3, &[], []), [RowSegment { start: 0, end: 3, after: 0 }]);
        let branches = [Branch { start: 2, after: 1 }, Branch { start: 4, after: 0 }];
        let found = pieces(3, 5, &branches, [2]);
        let ends: Vec<(usize, usize, usize)> = found.iter().map(|piece| (piece.start, piece.end, piece.after)).collect();
        assert_eq!(ends, [(0, 1, 0), (1, 2, 1), (2, 3, 2), (3, 5, 3), (5, 7, 1), (7, 8, 0)]);
    }
}
