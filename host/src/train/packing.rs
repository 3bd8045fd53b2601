//! Micro-batches of so many tokens, in place of so many rows.

use super::experience::Experience;
use super::step::Share;
use super::trainer::Trainer;
use crate::plugin::{self, AnyPlugin, Needs, Pairs, Scale, Side, Tokens};
use std::ops::Range;
use std::sync::Arc;

/// Rows or pairs, and tokens of each, on which a loss is tried.
const TRIED: usize = 6;
const LENGTH: usize = 2;

/// Cuts items, each with the number of its prompt and its own tokens, into ranges of at most `most`
/// tokens, in which a prompt counts once for those in a row that continue it. Items of one prompt
/// stay together where they fit; an item that is longer than all goes alone.
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

impl Trainer {
    /// This rank's part of the shares as they go through the model: as they are, or, where a
    /// micro-batch is limited by its tokens, those that adjoin in one experience joined and parted anew.
    pub(super) fn packed(&self, shares: &[Share]) -> Vec<Share> {
        let Some(most) = self.config.max_tokens_per_microbatch else {
            return shares.iter().map(|share| self.own(share)).collect();
        };
        let adjoin = |a: &Share, b: &Share| Arc::ptr_eq(&a.experience, &b.experience) && a.rows.end == b.rows.start;
        let joined = shares.chunk_by(adjoin).filter_map(|run| Some((run.first()?, run.last()?)));
        let whole = |(first, last): (&Share, &Share)| {
            self.own(&Share { experience: first.experience.clone(), rows: first.rows.start..last.rows.end })
        };
        joined.map(whole).flat_map(|share| self.parted(&share.experience, share.rows, most)).collect()
    }

    fn parted(&self, experience: &Arc<Experience>, rows: Range<usize>, most: usize) -> Vec<Share> {
        let length = |row: usize| experience.rollouts[row].tokens.len();
        let items: Vec<(usize, usize)> = if self.learns_from_rows() {
            rows.clone().map(|row| (experience.rollouts[row].prompt, length(row))).collect()
        } else {
            let pairs = experience.pairs[rows.clone()].iter();
            pairs.map(|&(chosen, rejected)| (experience.rollouts[chosen].prompt, length(chosen) + length(rejected))).collect()
        };
        let ranges = cut(&items, |prompt| experience.prompts[prompt].tokens.len(), most);
        let share = |r: Range<usize>| Share { experience: experience.clone(), rows: rows.start + r.start..rows.start + r.end };
        ranges.into_iter().map(share).collect()
    }

    /// These rows of an experience as they are scored together: so many, or so many tokens.
    pub(super) fn scored_together(&self, e: &Experience, rows: Range<usize>) -> Vec<Range<usize>> {
        let size = self.config.per_device_train_batch_size;
        match self.config.max_tokens_per_microbatch {
            None => rows.clone().step_by(size).map(|first| first..(first + size).min(rows.end)).collect(),
            Some(most) => {
                let items: Vec<(usize, usize)> = e.rollouts[rows.clone()].iter().map(|r| (r.prompt, r.tokens.len())).collect();
                let ranges = cut(&items, |prompt| e.prompts[prompt].tokens.len(), most).into_iter();
                ranges.map(|r| rows.start + r.start..rows.start + r.end).collect()
            }
        }
    }
}

/// Tries on made-up completions whether an algorithm's loss is the sum of its rows' losses, as it
/// must be to be cut anywhere. A loss may also compare the rows of a micro-batch with one another,
/// and that the host can't know otherwise. Afterwards the plugin is as if it had never been called.
///
/// # Errors
/// If the plugin's loss fails.
pub(super) fn is_separable(algorithm: &mut AnyPlugin, needs: &Needs) -> plugin::Result<bool> {
    let each = (0..TRIED).map(|row| row..row + 1);
    let mut derivatives = |rows: Range<usize>| -> plugin::Result<Vec<f32>> {
        Ok(match algorithm {
            AnyPlugin::Policy(policy) => policy.loss(&made_up_tokens(rows, needs))?.d_logp,
            AnyPlugin::Preference(preference) => {
                let gradient = preference.loss(&made_up_pairs(rows, needs))?;
                gradient
                    .d_chosen
                    .chunks(LENGTH)
                    .zip(gradient.d_rejected.chunks(LENGTH))
                    .flat_map(|(c, r)| [c, r].concat())
                    .collect()
            }
            AnyPlugin::Reward(_) => Vec::new(),
        })
    };
    let together = derivatives(0..TRIED)?;
    let alone = each.map(derivatives).collect::<plugin::Result<Vec<_>>>()?.concat();
    algorithm.plugin_mut().rewind(None);
    let size = together.iter().fold(1e-6f32, |m, d| m.max(d.abs()));
    Ok(together.iter().zip(&alone).all(|(a, b)| (a - b).abs() <= 1e-4 * size))
}

const SCALE: Scale = Scale { rows: TRIED as u32, tokens: (TRIED * LENGTH) as u64, max_completion_length: LENGTH as u32 };

/// A column of `rows` that goes up and down, at its own pace for each `kind`.
fn wave(rows: &Range<usize>, kind: f32) -> Vec<f32> {
    (rows.start * LENGTH..rows.end * LENGTH).map(|i| (i as f32 * (1.0 + 0.7 * kind)).sin()).collect()
}

/// Log-probabilities that differ from one another by so much.
fn logp(rows: &Range<usize>, kind: f32, by: f32) -> Vec<f32> {
    wave(rows, kind).into_iter().map(|w| -1.5 + by * w).collect()
}

fn offsets(rows: &Range<usize>) -> Vec<u32> {
    (0..=rows.len()).map(|row| (row * LENGTH) as u32).collect()
}

fn made_up_tokens(rows: Range<usize>, needs: &Needs) -> Tokens {
    let critic = |kind: f32| needs.values.then(|| wave(&rows, kind));
    Tokens {
        step: 0,
        offsets: offsets(&rows),
        mask: vec![1; rows.len() * LENGTH],
        advantages: rows.clone().flat_map(|row| [if row % 2 == 0 { 1.0 } else { -0.6 }; LENGTH]).collect(),
        logp: logp(&rows, 1.0, 0.1),
        old_logp: logp(&rows, 2.0, 0.1),
        ref_logp: needs.ref_logp.then(|| logp(&rows, 3.0, 0.1)),
        sampling_logp: Some(logp(&rows, 4.0, 0.1)),
        entropy: Some(wave(&rows, 5.0).into_iter().map(|w| 2.0 + w).collect()),
        values: critic(6.0),
        old_values: critic(7.0),
        returns: critic(8.0),
        scale: SCALE,
    }
}

fn made_up_pairs(rows: Range<usize>, needs: &Needs) -> Pairs {
    // By enough that a loss which is nearly a straight line where the policy is the reference is no line any more.
    let side = |kind: f32| Side {
        offsets: offsets(&rows),
        logp: logp(&rows, kind, 1.0),
        ref_logp: needs.ref_logp.then(|| logp(&rows, kind + 1.0, 1.0)),
        mean_logits: Some(wave(&rows, kind + 2.0)),
    };
    Pairs { step: 0, chosen: side(1.0), rejected: side(4.0), scale: SCALE }
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
        // The second group would fit in part.
        assert_eq!(at_most(32), [(0, 3), (3, 6)]);
        // The first fits nowhere whole, and its rest has room for nobody else.
        assert_eq!(at_most(20), [(0, 2), (2, 3), (3, 6)]);
        assert_eq!(at_most(1), [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]);
        assert!(cut(&[], prompt, 5).is_empty());
    }
}
