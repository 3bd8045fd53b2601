//! Interfaces of version 0.1: algorithms for completions with advantages, for given pairs, and for pairs that they select.

use super::types::{OldRewardColumn, Rollouts, Scale};
use super::{pairing, policy, preference};
use crate::algorithm::{Column, ConversionResult, SentBatch, Unit, check_values};
use crate::columns;
use crate::contract::algorithm::Gradient;
use crate::contract::estimator::Estimates;
use crate::contract::pairing::{Choice, Pair};
use crate::contract::types::WeightedReward;

/// Returns the column of this name, which the old interface requires.
pub(super) fn present<'a>(sent: &SentBatch<'a>, name: &str) -> ConversionResult<&'a Column> {
    sent.column(name).ok_or_else(|| format!("it asks for {name}, which this batch does not have"))
}

pub(super) fn scale(sent: &SentBatch<'_>) -> Scale {
    let scale = sent.scale;
    Scale { rows: scale.items, tokens: scale.tokens, max_completion_length: scale.max_completion_length }
}

/// Returns a generation as estimators and pairings see it.
pub(super) fn rollouts(sent: &SentBatch<'_>, rewards: &[WeightedReward]) -> ConversionResult<Rollouts> {
    let reward = |WeightedReward { name, weight }: &WeightedReward| {
        let values = present(sent, &columns::reward(name))?.entries().collect();
        Ok(OldRewardColumn { name: name.clone(), weight: *weight, values })
    };
    let of_group = |(group, ends): (usize, &[u32])| std::iter::repeat_n(group as u32, (ends[1] - ends[0]) as usize);
    Ok(Rollouts {
        step: sent.step,
        rewards: rewards.iter().map(reward).collect::<ConversionResult<_>>()?,
        prompt_of: sent.groups.windows(2).enumerate().flat_map(of_group).collect(),
        finished: present(sent, columns::FINISHED)?.values.iter().map(|&finished| finished != 0.0).collect(),
        offsets: sent.tokens.to_vec(),
        mask: sent.mask.to_vec(),
        logp: present(sent, columns::OLD_LOGP)?.values.clone(),
        ref_logp: sent.values(columns::REF_LOGP),
        values: sent.values(columns::OLD_VALUE),
        entropy: None,
    })
}

/// Converts an estimator's answer for this many tokens.
pub(super) fn estimates(given: policy::Advantages, tokens: usize) -> ConversionResult<Estimates> {
    check_values("advantages", "token", &given.advantages, tokens)?;
    let mut columns = vec![Column::new(columns::ADVANTAGE, Unit::Token, given.advantages)];
    if let Some(returns) = given.returns {
        check_values("returns", "token", &returns, tokens)?;
        columns.push(Column::new(columns::RETURN, Unit::Token, returns));
    }
    let mask = |mask: Vec<u8>| Column::new(columns::MASK, Unit::Token, mask.into_iter().map(f32::from).collect());
    columns.extend(given.mask.map(mask));
    Ok(Estimates { columns, metrics: given.metrics })
}

/// Converts the pairs of an answer.
pub(super) fn choice(given: pairing::Choice) -> Choice {
    let pair = |pairing::Pair { chosen, rejected }| Pair { chosen, rejected };
    Choice { pairs: given.pairs.into_iter().map(pair).collect(), metrics: given.metrics }
}

/// Returns a micro-batch of completions. A dataset's completions were not sampled, and all have the same weight.
pub(super) fn tokens(sent: &SentBatch<'_>) -> ConversionResult<policy::Tokens> {
    let logp = present(sent, columns::LOGP)?.values.clone();
    Ok(policy::Tokens {
        step: sent.step,
        offsets: sent.tokens.to_vec(),
        mask: sent.mask.to_vec(),
        advantages: sent.values(columns::ADVANTAGE).unwrap_or_else(|| vec![1.0; logp.len()]),
        old_logp: sent.values(columns::OLD_LOGP).unwrap_or_else(|| logp.clone()),
        logp,
        ref_logp: sent.values(columns::REF_LOGP),
        sampling_logp: sent.values(columns::SAMPLING_LOGP),
        entropy: sent.values(columns::ENTROPY),
        values: sent.values(columns::VALUE),
        old_values: sent.values(columns::OLD_VALUE),
        returns: sent.values(columns::RETURN),
        scale: scale(sent),
    })
}

/// Converts the derivatives of completions with this many tokens.
pub(super) fn gradient(given: policy::Gradient, tokens: usize) -> ConversionResult<Gradient> {
    let policy::Gradient { loss, d_logp, d_entropy, d_values, metrics } = given;
    let mut derivatives = Vec::new();
    let columns = [
        ("d_logp", columns::LOGP, Some(d_logp)),
        ("d_entropy", columns::ENTROPY, d_entropy),
        ("d_values", columns::VALUE, d_values),
    ];
    for (own, name, values) in columns {
        let Some(values) = values else { continue };
        check_values(own, "token", &values, tokens)?;
        derivatives.push(Column::new(name, Unit::Token, values));
    }
    Ok(Gradient { loss, derivatives, metrics })
}

/// Sides of a pair: 0 for the chosen sequences, 1 for the rejected ones.
const SIDES: [(usize, &str); 2] = [(0, "d_chosen"), (1, "d_rejected")];

/// Checks that all groups are pairs.
pub(super) fn check_pairs(sent: &SentBatch<'_>) -> ConversionResult<()> {
    match sent.groups.windows(2).position(|ends| ends[1] - ends[0] != 2) {
        Some(group) => Err(format!("group {group} of the batch has {} sequences; it learns from pairs", {
            sent.groups[group + 1] - sent.groups[group]
        })),
        None => Ok(()),
    }
}

/// Returns one side's part of a column per token.
pub(super) fn side_of(sent: &SentBatch<'_>, side: usize, column: &[f32]) -> Vec<f32> {
    let of_sequence = |sequence: usize| &column[sent.tokens[sequence] as usize..sent.tokens[sequence + 1] as usize];
    (side..sent.sequences()).step_by(2).flat_map(of_sequence).copied().collect()
}

fn side(sent: &SentBatch<'_>, side: usize) -> ConversionResult<preference::Side> {
    let mut offsets = vec![0];
    for sequence in (side..sent.sequences()).step_by(2) {
        offsets.push(offsets[offsets.len() - 1] + sent.length(sequence) as u32);
    }
    let of_side = |column: &Column| side_of(sent, side, &column.values);
    Ok(preference::Side {
        offsets,
        logp: of_side(present(sent, columns::LOGP)?),
        ref_logp: sent.column(columns::REF_LOGP).map(of_side),
        mean_logits: sent.column(columns::MEAN_LOGITS).map(of_side),
    })
}

/// Returns a micro-batch of pairs.
pub(super) fn pairs(sent: &SentBatch<'_>) -> ConversionResult<preference::Pairs> {
    check_pairs(sent)?;
    Ok(preference::Pairs { step: sent.step, chosen: side(sent, 0)?, rejected: side(sent, 1)?, scale: scale(sent) })
}

/// Converts the derivatives of pairs, in the order of their sequences.
pub(super) fn pair_gradient(given: preference::Gradient, sent: &SentBatch<'_>) -> ConversionResult<Gradient> {
    let mut values = vec![0.0; sent.mask.len()];
    for ((first, own), derivatives) in SIDES.into_iter().zip([&given.d_chosen, &given.d_rejected]) {
        let sequences = (first..sent.sequences()).step_by(2);
        check_values(own, "token", derivatives, sequences.clone().map(|sequence| sent.length(sequence)).sum())?;
        let mut at = 0;
        for sequence in sequences {
            let length = sent.length(sequence);
            let first = sent.tokens[sequence] as usize;
            values[first..first + length].copy_from_slice(&derivatives[at..at + length]);
            at += length;
        }
    }
    let derivatives = vec![Column::new(columns::LOGP, Unit::Token, values)];
    Ok(Gradient { loss: given.loss, derivatives, metrics: given.metrics })
}
