//! Rows that are trees: the branches of their tokens, and the segments that these define.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A position at which a rollout's tokens don't continue the previous token, but an earlier one or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Branch {
    /// Index of the branch's first token among the rollout's tokens.
    pub start: usize,
    /// Number of tokens of prompt and rollout up to and including the one that the branch continues; 0 if it starts a new text.
    pub after: usize,
}

/// A part of a row (prompt and rollout) that is one segment of a forest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSegment {
    /// Index of the segment's first token in prompt and rollout.
    pub start: usize,
    /// Index after the segment's last token.
    pub end: usize,
    /// Number of tokens up to and including the one that the segment continues; 0 if it starts a new text.
    pub after: usize,
}

/// Splits a row of `prompt` and `tokens` tokens into segments: where one of `branches` starts or attaches, where the rollout starts, and at
/// the positions `others`.
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
