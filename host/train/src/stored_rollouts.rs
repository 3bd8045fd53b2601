//! File format of rollouts in checkpoints and in the rollout log: their numbers are tensors, everything else is a list.

use super::model::Architecture;
use super::ops::support::Support;
use super::ops::top_divergence::LikelyToken;
use super::rollout::Rollout;
use candle_core::{Device, Tensor};
use std::collections::HashMap;
use std::fmt;

/// Tensors by name.
pub(super) type RolloutTensors = HashMap<String, Tensor>;

/// A fault of a stored rollout.
pub(super) enum RolloutFault {
    /// The fault is in the list.
    Listed(String),
    /// The fault is in the numbers.
    Numbers(String),
}

impl fmt::Display for RolloutFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Listed(detail) | Self::Numbers(detail)) = self;
        f.write_str(detail)
    }
}

/// Returns a rollout without the numbers that [`add`] stores, and without log-probabilities.
pub(super) fn without_numbers(rollout: &Rollout) -> Rollout {
    Rollout {
        prompt: rollout.prompt,
        sample: rollout.sample,
        finished: rollout.finished,
        policy_version: rollout.policy_version,
        replies: rollout.replies.clone(),
        opening: rollout.opening.clone(),
        teacher_prompt: rollout.teacher_prompt.clone(),
        branches: rollout.branches.clone(),
        support: rollout.support.as_ref().map(|support| Support::new(support.penalty)),
        likely_tokens: rollout.likely_tokens.as_ref().map(|_| Vec::new()),
        ..Rollout::default()
    }
}

/// Stores the tokens of rollouts, and for each the tokens that could have been sampled instead and a teacher's likeliest ones, under names
/// with this `prefix`.
///
/// # Errors
/// If a tensor can't be created.
pub(super) fn add(rollouts: &[Rollout], prefix: &str, tensors: &mut RolloutTensors) -> candle_core::Result<()> {
    let mut put = |what: &str, values: Vec<u32>| {
        let tensor = Tensor::new(values, &Device::Cpu)?;
        tensors.insert(format!("{prefix}{what}"), tensor);
        Ok::<(), candle_core::Error>(())
    };
    put("tokens", rollouts.iter().flat_map(|rollout| rollout.tokens.iter().copied()).collect())?;
    put("lengths", rollouts.iter().map(|rollout| rollout.tokens.len() as u32).collect())?;
    let of_teacher = || rollouts.iter().filter_map(|rollout| rollout.likely_tokens.as_ref()).flatten();
    if of_teacher().next().is_some() {
        put("teacher/counts", of_teacher().map(|tokens| tokens.len() as u32).collect())?;
        put("teacher/ids", of_teacher().flatten().map(|token| token.id).collect())?;
        put("teacher/logp", of_teacher().flatten().map(|token| token.logp.to_bits()).collect())?;
    }
    let supports = || rollouts.iter().map(|rollout| rollout.support.as_ref());
    if supports().all(|support| support.is_none()) {
        return Ok(());
    }
    let all = |part: fn(&Support) -> &Vec<u32>| supports().flatten().flat_map(|support| part(support).iter().copied()).collect();
    let counts = |part: fn(&Support) -> &Vec<u32>| {
        supports().map(|support| support.map_or(0, |support| part(support).len() as u32)).collect()
    };
    put("support/ends", all(|support| &support.ends))?;
    put("support/words", all(|support| &support.words))?;
    put("support/positions", counts(|support| &support.ends))?;
    put("support/lengths", counts(|support| &support.words))
}

/// Restores what [`add`] stored of rollouts.
///
/// # Errors
/// If it is missing or does not fit.
pub(super) fn fill(rollouts: &mut [Rollout], prefix: &str, tensors: &mut RolloutTensors) -> Result<(), String> {
    let mut numbers = |what: &str| of_u32(take(tensors, &format!("{prefix}{what}"))?);
    let (tokens, lengths) = (numbers("tokens")?, numbers("lengths")?);
    let mut tokens = cut(&tokens, &lengths, rollouts.len())?;
    rollouts.iter_mut().for_each(|rollout| rollout.tokens = tokens.next().unwrap_or_default().to_vec());
    if rollouts.iter().any(|rollout| rollout.likely_tokens.is_some()) {
        let (counts, ids, logp) = (numbers("teacher/counts")?, numbers("teacher/ids")?, numbers("teacher/logp")?);
        fill_likely_tokens(rollouts, &counts, (&ids, &logp))?;
    }
    if rollouts.iter().all(|rollout| rollout.support.is_none()) {
        return Ok(());
    }
    let (ends, positions) = (numbers("support/ends")?, numbers("support/positions")?);
    let (words, lengths) = (numbers("support/words")?, numbers("support/lengths")?);
    let ends = cut(&ends, &positions, rollouts.len())?;
    let words = cut(&words, &lengths, rollouts.len())?;
    for (rollout, (ends, words)) in rollouts.iter_mut().zip(ends.zip(words)) {
        if let Some(support) = &mut rollout.support {
            (support.ends, support.words) = (ends.to_vec(), words.to_vec());
        }
    }
    Ok(())
}

/// Distributes a teacher's likeliest tokens, with the bits of their log-probabilities, over rollouts that have some.
fn fill_likely_tokens(rollouts: &mut [Rollout], counts: &[u32], (ids, logp): (&[u32], &[u32])) -> Result<(), String> {
    let mut lists = cut(ids, counts, counts.len())?.zip(cut(logp, counts, counts.len())?);
    for rollout in rollouts.iter_mut().filter(|rollout| rollout.likely_tokens.is_some()) {
        let own = lists.by_ref().take(rollout.tokens.len()).map(|(ids, logp)| {
            ids.iter().zip(logp).map(|(id, bits)| LikelyToken { id: *id, logp: f32::from_bits(*bits) }).collect()
        });
        rollout.likely_tokens = Some(own.collect());
    }
    Ok(())
}

/// Distributes flat log-probabilities at sampling over rollouts, in order.
///
/// # Errors
/// If their number is not that of the tokens.
pub(super) fn divide(rollouts: &mut [Rollout], logp: &[f32]) -> Result<(), String> {
    let lengths: Vec<u32> = rollouts.iter().map(|rollout| rollout.tokens.len() as u32).collect();
    let mut parts = cut(logp, &lengths, rollouts.len())?;
    rollouts.iter_mut().for_each(|rollout| rollout.logp = parts.next().unwrap_or_default().to_vec());
    Ok(())
}

/// Returns the fault of a rollout that continues this prompt, if any: its numbers are used as indices.
pub(super) fn fault_of(rollout: &Rollout, prompt: &[u32], architecture: &Architecture) -> Option<RolloutFault> {
    let listed = |detail: String| Some(RolloutFault::Listed(detail));
    let wrong = |detail: String| Some(RolloutFault::Numbers(detail));
    let (vocabulary, context) = (architecture.vocab_size, architecture.max_positions);
    if let Some(token) = rollout.tokens.iter().find(|token| **token as usize >= vocabulary) {
        return wrong(format!("has token {token}, but the model has {vocabulary} tokens"));
    }
    let opening = rollout.opening.as_deref().unwrap_or(prompt);
    let taught = rollout.teacher_prompt.as_deref().unwrap_or_default();
    if let Some(token) = opening.iter().chain(taught).find(|token| **token as usize >= vocabulary) {
        return listed(format!("has token {token} in its prompt, but the model has {vocabulary} tokens"));
    }
    if rollout.teacher_prompt.is_some() && (taught.is_empty() || taught.len() + rollout.tokens.len() > context) {
        return listed(format!("has {} tokens after a teacher's prompt of {}", rollout.tokens.len(), taught.len()));
    }
    let fault = |support: &Support| support.fault(&rollout.tokens, vocabulary);
    if rollout.likely_tokens.as_ref().is_some_and(|lists| lists.len() != rollout.tokens.len()) {
        return wrong(format!("lacks a teacher's tokens in place of some of its {}", rollout.tokens.len()));
    }
    if let Some(fault) = rollout.support.as_ref().and_then(fault) {
        return wrong(fault.to_owned());
    }
    let mut at = 0;
    for &(begin, end) in &rollout.replies {
        if begin < at || end < begin || end > rollout.tokens.len() {
            return listed(format!("has a reply from token {begin} to {end} of {}", rollout.tokens.len()));
        }
        at = end;
    }
    if !rollout.has_sound_branches(opening.len()) {
        return listed(format!("has branches {:?} among {} tokens", rollout.branches, rollout.tokens.len()));
    }
    let length = rollout.longest_text(opening.len());
    if opening.is_empty() || rollout.tokens.is_empty() || length > context {
        return wrong(format!("has {} tokens after a prompt of {}", rollout.tokens.len(), opening.len()));
    }
    None
}

/// Splits flat values into one part per rollout.
fn cut<'a, T>(values: &'a [T], lengths: &'a [u32], rollouts: usize) -> Result<impl Iterator<Item = &'a [T]>, String> {
    let whole: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    if lengths.len() != rollouts || whole != values.len() as u64 {
        return Err(format!("{} values in {} parts for {rollouts} completions", values.len(), lengths.len()));
    }
    let mut rest = values;
    Ok(lengths.iter().map(move |length| {
        let (part, others) = rest.split_at(*length as usize);
        rest = others;
        part
    }))
}

/// Takes the tensor of this name.
///
/// # Errors
/// If there is none.
pub(super) fn take(tensors: &mut RolloutTensors, name: &str) -> Result<Tensor, String> {
    tensors.remove(name).ok_or_else(|| format!("it has no tensor {name}"))
}

/// Returns the values of a flat u32 tensor.
///
/// # Errors
/// If it is another kind of tensor.
pub(super) fn of_u32(tensor: Tensor) -> Result<Vec<u32>, String> {
    tensor.to_vec1::<u32>().map_err(|e| e.to_string())
}

/// Returns the values of a flat u8 tensor.
///
/// # Errors
/// If it is another kind of tensor.
pub(super) fn of_u8(tensor: Tensor) -> Result<Vec<u8>, String> {
    tensor.to_vec1::<u8>().map_err(|e| e.to_string())
}
