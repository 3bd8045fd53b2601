//! Interfaces added in version 0.2: algorithms for labelled completions and for reward models, pair losses with more inputs, and advantages
//! from turn rewards.

use super::bindings::prompted_preference;
use super::prompted_preference::Prompts;
use super::v0_1::{self, check_pairs, present, scale, side_of};
use super::{labelled, preference, reward_model, turn_policy, weighted_preference};
use crate::algorithm::{Column, ConversionResult, SentBatch, Unit, check_values};
use crate::columns;
use crate::contract::algorithm::Gradient;
use crate::contract::types::WeightedReward;

/// Returns a generation's turns, with the rewards of each episode's environment: the one that rewarded any of its turns, or else the first.
pub(super) fn turns(sent: &SentBatch<'_>, rewards: &[WeightedReward]) -> ConversionResult<turn_policy::Turns> {
    // The index of each environment among the rewards, and the rewards of its turns.
    let place = |reward: &WeightedReward| sent.column(&columns::turn_reward(&reward.name));
    let environments: Vec<(usize, Vec<Option<f32>>)> = rewards
        .iter()
        .enumerate()
        .filter_map(|(place_of, reward)| Some((place_of, place(reward)?.entries().collect())))
        .collect();
    let Some(first) = environments.first() else {
        return Err("it asks for the rewards of turns, which this generation's rewards do not have".to_owned());
    };
    let mut turns = turn_policy::Turns { offsets: vec![0], ends: Vec::new(), rewards: Vec::new(), columns: Vec::new() };
    let mut at = 0;
    for sequence in 0..sent.sequences() {
        let count = sent.turns[at..].iter().take_while(|turn| turn.sequence as usize == sequence).count();
        let own = at..at + count;
        let rewarded = |(_, values): &&(usize, Vec<Option<f32>>)| values[own.clone()].iter().any(Option::is_some);
        let (place, values) = environments.iter().find(rewarded).unwrap_or(first);
        turns.ends.extend(sent.turns[own.clone()].iter().map(|turn| turn.end));
        turns.rewards.extend(&values[own]);
        turns.offsets.push(turns.ends.len() as u32);
        turns.columns.push(*place as u32);
        at += count;
    }
    Ok(turns)
}

/// Returns the additional inputs of a pair loss. Only those that the plugin requests are sent.
pub(super) fn preference_extra(sent: &SentBatch<'_>) -> PreferenceExtra {
    if let Some(column) = sent.column(columns::LOG_SUM_SQUARES) {
        let [chosen, rejected] = [0, 1].map(|side| side_of(sent, side, &column.values));
        return PreferenceExtra::Squares(weighted_preference::LogSumSquares { chosen, rejected });
    }
    let Some(logp) = sent.values(columns::PROMPT_LOGP) else { return PreferenceExtra::Nothing };
    PreferenceExtra::Prompts(Prompts { offsets: sent.prompt_tokens.to_vec(), logp, tokens: sent.scale.prompt_tokens })
}

/// Converts the derivatives of pairs, and those of their prompts, if there are any.
pub(super) fn pair_gradient(
    given: preference::Gradient,
    d_prompts: Option<Vec<f32>>,
    sent: &SentBatch<'_>,
) -> ConversionResult<Gradient> {
    let mut gradient = v0_1::pair_gradient(given, sent)?;
    if let Some(d_prompts) = d_prompts {
        let tokens = sent.prompt_tokens.last().map_or(0, |end| *end as usize);
        check_values("d_prompts", "token", &d_prompts, tokens)?;
        gradient.derivatives.push(Column::new(columns::PROMPT_LOGP, Unit::PromptToken, d_prompts));
    }
    Ok(gradient)
}

/// Returns a micro-batch of labelled completions.
pub(super) fn examples(sent: &SentBatch<'_>) -> ConversionResult<labelled::Examples> {
    let desirable = |column: &Column| column.values.iter().filter(|label| **label != 0.0).count() as u32;
    let label = present(sent, columns::LABEL)?;
    let all = sent.column(columns::MICRO_BATCH_LABEL).unwrap_or(label);
    let mismatched = sent.values(columns::MISMATCHED_LOGP).zip(sent.values(columns::MISMATCHED_REF_LOGP));
    Ok(labelled::Examples {
        step: sent.step,
        labels: label.values.iter().map(|&label| label != 0.0).collect(),
        desirable: desirable(all),
        undesirable: all.values.len() as u32 - desirable(all),
        offsets: sent.tokens.to_vec(),
        logp: present(sent, columns::LOGP)?.values.clone(),
        ref_logp: sent.values(columns::REF_LOGP),
        mean_logits: sent.values(columns::MEAN_LOGITS),
        mismatched: mismatched.map(|(logp, ref_logp)| labelled::Mismatched { logp, ref_logp }),
        scale: scale(sent),
    })
}

/// Converts the derivatives of labelled completions with this many tokens.
pub(super) fn labelled_gradient(given: labelled::Gradient, tokens: usize) -> ConversionResult<Gradient> {
    check_values("d_logp", "token", &given.d_logp, tokens)?;
    let derivatives = vec![Column::new(columns::LOGP, Unit::Token, given.d_logp)];
    Ok(Gradient { loss: given.loss, derivatives, metrics: given.metrics })
}

/// Returns a micro-batch of pairs with a value for each sequence.
pub(super) fn valued_pairs(sent: &SentBatch<'_>) -> ConversionResult<reward_model::Pairs> {
    check_pairs(sent)?;
    let values = &present(sent, columns::SEQUENCE_VALUE)?.values;
    let side = |first: usize| values.iter().skip(first).step_by(2).copied().collect();
    let margin = sent.column(columns::MARGIN).filter(|column| column.missing.is_empty());
    Ok(reward_model::Pairs {
        step: sent.step,
        chosen: side(0),
        rejected: side(1),
        margin: margin.map(|column| column.values.clone()),
        scale: scale(sent),
    })
}

/// Converts the derivatives of this many pairs of values, in the order of their sequences.
pub(super) fn value_gradient(given: reward_model::Gradient, pairs: usize) -> ConversionResult<Gradient> {
    check_values("d_chosen", "pair", &given.d_chosen, pairs)?;
    check_values("d_rejected", "pair", &given.d_rejected, pairs)?;
    let pairs = given.d_chosen.into_iter().zip(given.d_rejected);
    let values = pairs.flat_map(|(chosen, rejected)| [chosen, rejected]).collect();
    let derivatives = vec![Column::new(columns::SEQUENCE_VALUE, Unit::Sequence, values)];
    Ok(Gradient { loss: given.loss, derivatives, metrics: given.metrics })
}

/// Additional inputs of a pair loss.
pub(crate) enum PreferenceExtra {
    Nothing,
    Squares(weighted_preference::LogSumSquares),
    Prompts(prompted_preference::Prompts),
}
