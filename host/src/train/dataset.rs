//! Reads the dataset as the run uses it: tokenized prompts and, for pairs, their two answers.

use super::{Error, Result};
use crate::data::{self, CompletionRow, Dataset, Extras, Message, PreferenceRow, Prompt as Asked, PromptRow, Tokenizer};
use rayon::prelude::*;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Prompts for runs that name no dataset, one JSON line each.
pub const BUILT_IN_PROMPTS: &str = include_str!("../../../examples/builtin-model/prompts.jsonl");

/// Number of rows that justify another tokenizing thread, which takes about ten MB.
const ROWS_A_THREAD: usize = 1024;

/// A prompt of the dataset, ready for generation or training.
pub(super) struct Prompt {
    /// Row of the dataset.
    pub row: usize,
    pub text: String,
    pub tokens: Vec<u32>,
    /// The dataset's other columns.
    pub columns: Map<String, Value>,
    /// Its answers, if the dataset has them.
    pub answers: Option<Answers>,
    /// Log-probabilities of all tokens of its answers under the reference model, if they are precomputed.
    pub ref_logp: OnceLock<Vec<f32>>,
}

impl Prompt {
    /// Returns the number of tokens of the prompt and its first answer.
    pub(super) fn length(&self) -> usize {
        self.tokens.len() + self.answers.as_ref().map_or(0, |answers| answers.chosen.len())
    }
}

/// Two answers, as token ids.
pub(super) struct Answers {
    pub chosen: Vec<u32>,
    /// Mask of the learned tokens; none if all are learned.
    pub learned: Option<Vec<u8>>,
    pub rejected: Vec<u32>,
}

/// Reads the prompts of a dataset, or the built-in ones. A prompt must be shorter than the model's context.
pub(super) fn prompts(given: Option<&Dataset>, tokenizer: &Tokenizer, context: usize) -> Result<Vec<Arc<Prompt>>> {
    let rows = match given {
        Some(dataset) => data::read_prompts(dataset)?,
        None => data::parse_prompts(Path::new("built-in prompts"), BUILT_IN_PROMPTS.as_bytes())?,
    };
    let prepare = |(index, row): (usize, PromptRow)| {
        let (text, tokens) = asked(&row.prompt, tokenizer).map_err(|e| row.place.wrong(e.to_string()))?;
        if tokens.is_empty() {
            return Err(row.place.wrong("the prompt has no tokens").into());
        }
        if tokens.len() >= context {
            let long = tokens.len();
            let detail = format!("the prompt is {long} tokens long; the model's context is {context}, completion included");
            return Err(row.place.wrong(detail).into());
        }
        Ok(Arc::new(Prompt { row: index, text, tokens, columns: row.columns, answers: None, ref_logp: OnceLock::new() }))
    };
    each(rows, prepare)
}

/// Prepares every row, using all threads for a large dataset, since tokenizing takes most of the startup time. Fails with the
/// first row that fails. Rows after it are not tried, since each may leave a thread behind.
fn each<R: Send, T: Send>(rows: Vec<R>, prepare: impl Fn((usize, R)) -> Result<T> + Sync + Send) -> Result<Vec<T>> {
    let first = AtomicUsize::new(usize::MAX);
    let prepare = |(index, row)| {
        if index > first.load(Ordering::Relaxed) {
            return None;
        }
        Some(prepare((index, row)).inspect_err(|_| {
            first.fetch_min(index, Ordering::Relaxed);
        }))
    };
    let ready: Vec<_> = rows.into_par_iter().with_min_len(ROWS_A_THREAD).enumerate().map(prepare).collect();
    ready.into_iter().flatten().collect()
}

fn asked(prompt: &Asked, tokenizer: &Tokenizer) -> Result<(String, Vec<u32>)> {
    match prompt {
        Asked::Text(text) => Ok((text.clone(), tokenizer.encode(text, true)?)),
        Asked::Chat(messages) => {
            let text = tokenizer.render_chat(messages, true, &Extras::default())?;
            let tokens = tokenizer.encode(&text, false)?;
            Ok((text, tokens))
        }
    }
}

/// Reads the pairs of a preference dataset. A prompt with an answer is limited to `longest` tokens: answers are truncated at the
/// end, and pairs whose prompt alone reaches the limit are skipped.
pub(super) fn pairs(given: Option<&Dataset>, tokenizer: &Tokenizer, longest: usize) -> Result<Vec<Arc<Prompt>>> {
    let Some(dataset) = given else {
        let detail = "is missing: this algorithm learns from a dataset with \"prompt\", \"chosen\" and \"rejected\"";
        return Err(Error::Unfit(format!("dataset: {detail}")));
    };
    let rows = data::read_preferences(dataset)?;
    let all = rows.len();
    let mut pairs = Vec::with_capacity(all);
    let mut merged = 0;
    let prepare = |(_, row): (usize, PreferenceRow)| {
        let pair = answered(&row.prompt, [&row.chosen, &row.rejected], tokenizer);
        let pair = pair.map_err(|e| row.place.wrong(e.to_string()))?;
        if pair.tokens.is_empty() || pair.answers.iter().any(Vec::is_empty) {
            return Err(row.place.wrong("its prompt or one of its answers has no tokens").into());
        }
        Ok((pair, row.columns))
    };
    for (Answered { text, tokens, answers: [mut chosen, mut rejected], cut }, columns) in each(rows, prepare)? {
        merged += usize::from(cut);
        let room = longest.saturating_sub(tokens.len());
        if room == 0 {
            continue;
        }
        chosen.truncate(room);
        rejected.truncate(room);
        let answers = Some(Answers { chosen, learned: None, rejected });
        pairs.push(Arc::new(Prompt { row: pairs.len(), text, tokens, columns, answers, ref_logp: OnceLock::new() }));
    }
    if pairs.len() < all {
        tracing::warn!("skipped {} of {all} pairs whose prompts alone have {longest} tokens or more", all - pairs.len());
    }
    if pairs.is_empty() {
        return Err(Error::Unfit(format!("{dataset}: no pair is left; raise max_length")));
    }
    if merged > 0 {
        tracing::warn!(
            "in {merged} pairs the prompt's last tokens merge with an answer's first; there the answer starts earlier"
        );
    }
    Ok(pairs)
}

/// A prompt with `N` answers, as token ids.
struct Answered<const N: usize> {
    text: String,
    tokens: Vec<u32>,
    answers: [Vec<u32>; N],
    /// Whether the answers begin before the end of the prompt's own tokens.
    cut: bool,
}

/// Tokenizes each answer together with its prompt. An answer begins where that differs from the prompt alone, as in TRL.
fn answered<const N: usize>(prompt: &Asked, given: [&Asked; N], tokenizer: &Tokenizer) -> Result<Answered<N>> {
    let (text, mut tokens) = asked(prompt, tokenizer)?;
    let mut answers = [const { Vec::new() }; N];
    for (answer, given) in answers.iter_mut().zip(given) {
        *answer = match (prompt, given) {
            (Asked::Chat(prompt), Asked::Chat(answer)) => {
                let messages = [prompt.clone(), answer.clone()].concat();
                tokenizer.encode(&tokenizer.render_chat(&messages, false, &Extras::default())?, false)?
            }
            (_, Asked::Text(answer)) => {
                let end = tokenizer.eos_text().filter(|eos| !answer.ends_with(eos)).unwrap_or_default();
                tokenizer.encode(&format!("{text}{answer}{end}"), true)?
            }
            // The readers of `data` let no mixture through.
            (Asked::Text(_), Asked::Chat(_)) => Vec::new(),
        };
    }
    let same = |answer: &Vec<u32>| tokens.iter().zip(answer).take_while(|(a, b)| a == b).count();
    let begin = answers.iter().map(same).min().unwrap_or(0);
    answers.iter_mut().for_each(|answer| drop(answer.drain(..begin)));
    let cut = begin < tokens.len();
    tokens.truncate(begin);
    Ok(Answered { text, tokens, answers, cut })
}

/// Which parts of a given text are learned.
#[derive(Clone, Copy)]
pub(super) struct Learned {
    /// Whether prompts are learned too, if both prompt and completion are given.
    pub whole: bool,
    /// Whether only the assistant's turns of a conversation are learned.
    pub turns: bool,
}

/// Reads given completions. A row is limited to `longest` tokens: it is truncated at the end, and rows whose prompt alone reaches
/// the limit are skipped. Without a prompt, the whole text except its first token is learned.
pub(super) fn completions(
    given: Option<&Dataset>,
    tokenizer: &Tokenizer,
    longest: usize,
    what: Learned,
) -> Result<Vec<Arc<Prompt>>> {
    let Some(dataset) = given else {
        let detail = "is missing: fine-tuning learns from a dataset with \"prompt\" and \"completion\", \"text\" or \"messages\"";
        return Err(Error::Unfit(format!("dataset: {detail}")));
    };
    let rows = data::read_completions(dataset)?;
    let all = rows.len();
    let prepare = |(_, row): (usize, CompletionRow)| completion(row, tokenizer, longest, what);
    let kept = each(rows, prepare)?.into_iter().flatten().enumerate();
    let kept: Vec<_> = kept.map(|(row, prompt)| Arc::new(Prompt { row, ..prompt })).collect();
    if kept.len() < all {
        tracing::warn!("skipped {} of {all} rows with nothing to learn within {longest} tokens", all - kept.len());
    }
    if kept.is_empty() {
        return Err(Error::Unfit(format!("{dataset}: no row is left; raise max_length")));
    }
    Ok(kept)
}

/// Prepares a row of given completions; returns none if nothing in it is left to learn.
fn completion(row: CompletionRow, tokenizer: &Tokenizer, longest: usize, what: Learned) -> Result<Option<Prompt>> {
    let parts = match &row.prompt {
        Some(prompt) => {
            answered(prompt, [&row.completion], tokenizer).map(|Answered { text, tokens, answers: [a], .. }| (text, tokens, a))
        }
        None => whole(&row.completion, tokenizer).map(|tokens| (String::new(), Vec::new(), tokens)),
    };
    let (text, mut tokens, mut chosen) = parts.map_err(|e| row.place.wrong(e.to_string()))?;
    let mut learned = learned_of(&row, &tokens, &chosen, tokenizer, what).map_err(|detail| row.place.wrong(detail))?;
    if what.whole {
        chosen.splice(0..0, tokens.drain(..));
    }
    if tokens.is_empty() && !chosen.is_empty() {
        tokens.push(chosen.remove(0));
        learned = learned.map(|mask| mask[1..].to_vec());
    }
    let room = longest.saturating_sub(tokens.len());
    chosen.truncate(room);
    learned.iter_mut().for_each(|mask| mask.truncate(room));
    if chosen.is_empty() || learned.as_ref().is_some_and(|mask| !mask.contains(&1)) {
        return Ok(None);
    }
    let answers = Some(Answers { chosen, learned, rejected: Vec::new() });
    Ok(Some(Prompt { row: 0, text, tokens, columns: row.columns, answers, ref_logp: OnceLock::new() }))
}

/// Returns the mask of a row's learned tokens, or none if all are learned; the error says why it can't be determined.
fn learned_of(
    row: &CompletionRow,
    asked: &[u32],
    answered: &[u32],
    tokenizer: &Tokenizer,
    what: Learned,
) -> std::result::Result<Option<Vec<u8>>, String> {
    match (&row.prompt, &row.completion) {
        _ if !what.turns => Ok(None),
        (None, Asked::Chat(messages)) => assistant_turns(messages, answered, tokenizer).map(Some),
        (Some(Asked::Chat(prompt)), Asked::Chat(completion)) => {
            let mut mask = assistant_turns(&[&prompt[..], completion].concat(), &[asked, answered].concat(), tokenizer)?;
            if !what.whole {
                mask.drain(..asked.len());
            }
            Ok(Some(mask))
        }
        _ => Err("assistant_only_loss needs messages, which say who speaks; this is a plain string".into()),
    }
}

/// Returns the mask of the assistant's tokens in a conversation, whose tokens are `all`.
fn assistant_turns(messages: &[Message], all: &[u32], tokenizer: &Tokenizer) -> std::result::Result<Vec<u8>, String> {
    let (tokens, said) = tokenizer.encode_spoken(messages, &Extras::default()).map_err(|e| e.to_string())?;
    if tokens != all {
        return Err("assistant_only_loss: the chat template or the tokenizer gives other tokens a second time".into());
    }
    Ok(said)
}

/// Tokenizes a whole text with its end token, or a whole conversation.
fn whole(text: &Asked, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    Ok(match text {
        Asked::Text(text) => {
            let end = tokenizer.eos_text().filter(|eos| !text.ends_with(eos)).unwrap_or_default();
            tokenizer.encode(&format!("{text}{end}"), true)?
        }
        Asked::Chat(messages) => tokenizer.encode(&tokenizer.render_chat(messages, false, &Extras::default())?, false)?,
    })
}

/// Computes the SHA-256 of all prompts with their columns and answers.
pub(super) fn fingerprint(prompts: &[Arc<Prompt>]) -> Result<String> {
    let mut hash = Sha256::new();
    for prompt in prompts {
        let answers = prompt.answers.as_ref().map(|a| (&a.chosen, &a.learned, &a.rejected));
        let row = serde_json::to_vec(&(&prompt.tokens, &prompt.columns, answers)).map_err(|e| Error::Unfit(e.to_string()))?;
        hash.update((row.len() as u64).to_le_bytes());
        hash.update(&row);
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}
