//! Splits micro-batches by tokens instead of rows.

use crate::dist::World;
use crate::experience::{Experience, MicroBatch};
use std::ops::Range;
use std::sync::Arc;

/// Splits items, each with the index of its prompt and its number of tokens, into ranges of at most `most` tokens. A prompt counts once for
/// consecutive items that share it. Items of one prompt stay together if they fit; an item that exceeds the limit is alone.
fn cut(items: &[(usize, usize)], prompt: impl Fn(usize) -> usize, most: usize) -> Vec<Range<usize>> {
    let (mut ranges, mut first, mut used, mut at) = (Vec::new(), 0, 0, 0);
    let mut close = |first: &mut usize, used: &mut usize, at: usize| {
        if at > *first {
            ranges.push(*first..at);
        }
        (*first, *used) = (at, 0);
    };
    for group in items.chunk_by(|a, b| a.0 == b.0) {
        let head = prompt(group[0].0);
        let whole = head + group.iter().map(|(_, own)| own).sum::<usize>();
        if used + whole > most && whole <= most {
            close(&mut first, &mut used, at);
        }
        let mut begun = false;
        for (_, own) in group {
            let tokens = |begun: bool| if begun { *own } else { head + own };
            if used + tokens(begun) > most {
                close(&mut first, &mut used, at);
                begun = false;
            }
            used += tokens(begun);
            (begun, at) = (true, at + 1);
        }
    }
    close(&mut first, &mut used, at);
    ranges
}

/// Returns this rank's part of micro-batches as they pass through the model, each with the index of its first micro-batch. They are
/// unchanged or, with a token limit, adjacent ones of an experience are joined and split again.
pub(super) fn packed(micro_batches: &[MicroBatch], world: &World, most: Option<usize>) -> Vec<(usize, MicroBatch)> {
    let Some(most) = most else {
        return micro_batches.iter().map(|micro_batch| micro_batch.rank_share(world)).enumerate().collect();
    };
    let adjoin = |a: &MicroBatch, b: &MicroBatch| Arc::ptr_eq(&a.experience, &b.experience) && a.items.end == b.items.start;
    // Mismatched completions form a column over all rows of a micro-batch.
    let adjoin = |a: &MicroBatch, b: &MicroBatch| adjoin(a, b) && a.experience.mismatched.is_none();
    let (mut place, mut parts) = (0, Vec::new());
    for run in micro_batches.chunk_by(adjoin) {
        let whole = run[0].part(run[0].items.start..run[run.len() - 1].items.end).rank_share(world);
        parts.extend(parted(&whole, most).into_iter().map(|part| (place, part)));
        place += run.len();
    }
    parts
}

fn parted(whole: &MicroBatch, most: usize) -> Vec<MicroBatch> {
    let (e, first) = (&whole.experience, whole.items.start);
    let ranges = cut(&e.lengths(whole.items.clone()), |prompt| e.prompts[prompt].longest_reading(), most);
    ranges.into_iter().map(|r| whole.part(first + r.start..first + r.end)).collect()
}

/// Splits these rows of an experience into groups that pass through a model together, by number of rows or of tokens.
pub(crate) fn batches_of(e: &Experience, rows: Range<usize>, size: usize, most: Option<usize>) -> Vec<Range<usize>> {
    match most {
        None => rows.clone().step_by(size).map(|first| first..(first + size).min(rows.end)).collect(),
        Some(most) => {
            let items: Vec<(usize, usize)> = e.rollouts[rows.clone()].iter().map(|r| (r.prompt, r.tokens.len())).collect();
            let ranges = cut(&items, |prompt| e.prompts[prompt].longest_reading(), most).into_iter();
            ranges.map(|r| rows.start + r.start..rows.start + r.end).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_as_many_tokens_as_they_may_and_keep_groups_together() {
        // Three completions of a prompt of 10 tokens, two of one of 4, one of one of 2.
        let items = [(0, 5), (0, 5), (0, 5), (1, 3), (1, 3), (2, 1)];
        let prompt = |p: usize| [10, 4, 2][p];
        let at_most = |most: usize| cut(&items, prompt, most).iter().map(|r| (r.start, r.end)).collect::<Vec<_>>();
        assert_eq!(at_most(1000), [(0, 6)]);
        assert_eq!(at_most(38), [(0, 6)]);
        assert_eq!(at_most(37), [(0, 5), (5, 6)]);
        // The second group would fit only in part.
        assert_eq!(at_most(32), [(0, 3), (3, 6)]);
        // The first group fits nowhere as a whole, and the range with its rest has no room for another group.
        assert_eq!(at_most(20), [(0, 2), (2, 3), (3, 6)]);
        assert_eq!(at_most(1), [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]);
        assert!(cut(&[], prompt, 5).is_empty());
    }
}
