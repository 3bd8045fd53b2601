//! Reads the dataset as the run uses it: tokenized prompts and, for pairs, their two answers.

mod splitting;

pub(super) use splitting::{split, wrap};

use super::{Error, Result};
use crate::config::PluginEntry;
use crate::data::{
    self, CompletionRow, Dataset, Extras, LabelledRow, Message, Place, PreferenceRow, Prompt as Asked, PromptRow, Refused,
    Scored, Tokenizer,
};
use rayon::prelude::*;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Prompts for runs without a dataset, one JSON line each.
pub const BUILT_IN_PROMPTS: &str = include_str!("../../../examples/builtin-model/prompts.jsonl");

/// Number of rows that justify another tokenizing thread, which takes about ten MB.
const ROWS_A_THREAD: usize = 1024;

/// A prompt of the dataset, ready for generation or training.
pub(super) struct Prompt {
    /// Row of the dataset.
    pub row: usize,
    /// Its position among the prompts that are used.
    pub index: usize,
    pub text: String,
    /// Whether it belongs to a conversation.
    pub chat: bool,
    /// The original conversation, if a reward model or an environment reads it.
    pub messages: Option<Box<(Vec<Message>, Extras)>>,
    pub tokens: Vec<u32>,
    /// The dataset's other columns.
    pub columns: Map<String, Value>,
    /// Its answers, if the dataset has them.
    pub answers: Option<Answers>,
    /// Log-probabilities of all tokens of its answers under the reference model, if they are precomputed.
    pub ref_logp: OnceLock<Vec<f32>>,
    /// The same for another row's answer, with that row.
    pub mismatched_ref_logp: OnceLock<(usize, Vec<f32>)>,
}

impl Prompt {
    fn new(row: usize, asked: &Asked, text: String, columns: Map<String, Value>) -> Self {
        let chat = matches!(asked, Asked::Chat(_));
        let (messages, tokens, answers) = (None, Vec::new(), None);
        let (ref_logp, mismatched_ref_logp) = (OnceLock::new(), OnceLock::new());
        Self { row, index: 0, text, chat, messages, tokens, columns, answers, ref_logp, mismatched_ref_logp }
    }

    /// Returns its conversation; a plain text becomes a user message.
    pub(super) fn conversation(&self) -> Vec<Message> {
        let plain = || vec![Message { role: "user".into(), content: self.text.clone(), ..Message::default() }];
        self.messages.as_deref().map_or_else(plain, |(messages, _)| messages.clone())
    }

    /// Returns which of these environments its row belongs to: the one that its column names, if there are several.
    pub(super) fn acts_in(&self, environments: &[PluginEntry]) -> Option<usize> {
        match environments {
            [] => None,
            [_] => Some(0),
            all => {
                let name = self.columns.get("environment")?.as_str()?;
                all.iter().position(|entry| entry.name() == name.strip_suffix(".wasm").unwrap_or(name))
            }
        }
    }

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
    /// The label of a labelled answer.
    pub label: Option<Label>,
    /// For reward models: in the prompt with each answer, the position of the token whose state has the value.
    pub valued: [usize; 2],
    /// For reward models: by how much the chosen answer is better, if the dataset says so.
    pub margin: Option<f32>,
}

impl Answers {
    fn new(chosen: Vec<u32>, learned: Option<Vec<u8>>, rejected: Vec<u32>) -> Self {
        Self { chosen, learned, rejected, label: None, valued: [0; 2], margin: None }
    }
}

/// The label, and related data, of a labelled answer.
pub(super) struct Label {
    /// Whether the answer is desirable.
    pub desirable: bool,
    /// The answer's tokens beyond `max_length`: after a shorter prompt, there may be room for them.
    pub beyond: Vec<u32>,
}

/// The prompts of a dataset, and a warning that names skipped rows.
pub(super) type Read = (Vec<Arc<Prompt>>, Option<String>);

/// How a run reads its datasets.
pub(super) struct Reader<'a> {
    pub tokenizer: &'a Tokenizer,
    /// Length of the model's context.
    pub context: usize,
    /// Maximum length of a text, or of a prompt with a given answer.
    pub longest: usize,
    /// Maximum length of a prompt, which keeps its last tokens.
    pub longest_prompt: Option<usize>,
    /// Whether an unusable row is an error.
    pub strict: bool,
    /// Whether pairs begin and end with the tokenizer's begin and end tokens, whatever a chat template writes.
    pub framed: bool,
    /// Whether prompts keep their conversations.
    pub messages: bool,
}

impl Reader<'_> {
    /// Reads the prompts of a dataset, or the built-in ones. A prompt must be shorter than the model's context.
    pub(super) fn prompts(&self, given: Option<&Dataset>) -> Result<Read> {
        let mut refused = Refused::new(self.strict);
        let rows = match given {
            Some(dataset) => data::read_prompts(dataset, &mut refused)?,
            None => data::parse_prompts(Path::new("built-in prompts"), BUILT_IN_PROMPTS.as_bytes())?,
        };
        let prepare = |PromptRow { row, place, prompt, extras, columns }| {
            let (text, mut tokens) = asked(&prompt, &extras, self.tokenizer).map_err(|e| place.failed(e))?;
            self.shorten(&mut tokens);
            if tokens.is_empty() {
                return Err(place.wrong("the prompt has no tokens"));
            }
            if tokens.len() >= self.context {
                let (long, context) = (tokens.len(), self.context);
                let detail = format!("the prompt is {long} tokens long; the model's context is {context}, completion included");
                return Err(place.wrong(format!("{detail}; max_prompt_length keeps a prompt's last tokens")));
            }
            let new = Prompt::new(row, &prompt, text, columns);
            let messages = match prompt {
                Asked::Chat(messages) if self.messages => Some(Box::new((messages, extras))),
                _ => None,
            };
            Ok(Prompt { tokens, messages, ..new })
        };
        all(rows, prepare, refused)
    }

    /// Truncates a prompt to its last tokens.
    fn shorten(&self, prompt: &mut Vec<u32>) {
        let most = self.longest_prompt.unwrap_or(usize::MAX);
        prompt.drain(..prompt.len().saturating_sub(most));
    }

    /// Opens a preference dataset.
    fn preferences(&self, given: Option<&Dataset>, refused: &mut Refused) -> Result<Vec<PreferenceRow>> {
        let Some(dataset) = given else {
            let detail = "is missing: this algorithm learns from a dataset with \"prompt\", \"chosen\" and \"rejected\"";
            return Err(Error::setting("dataset", detail));
        };
        Ok(data::read_preferences(dataset, refused)?)
    }

    /// Reads the pairs of a preference dataset. A prompt with an answer is limited to `longest` tokens: answers are truncated at
    /// the end, and pairs whose prompt alone reaches the limit are skipped.
    pub(super) fn pairs(&self, given: Option<&Dataset>) -> Result<Read> {
        let mut refused = Refused::new(self.strict);
        let rows = self.preferences(given, &mut refused)?;
        let merged = AtomicUsize::new(0);
        let prepare = |PreferenceRow { row, place, prompt, chosen, rejected, extras, columns }| {
            let pair = answered(&prompt, [&chosen, &rejected], &extras, self.tokenizer).map_err(|e| place.failed(e))?;
            let Answered { text, mut tokens, answers: [mut chosen, mut rejected], cut } = pair;
            if self.framed {
                self.frame(&mut tokens, [&mut chosen, &mut rejected]);
            }
            if tokens.is_empty() || chosen.is_empty() || rejected.is_empty() {
                return Err(place.wrong("its prompt or one of its answers has no tokens"));
            }
            self.shorten(&mut tokens);
            let room = self.room(&place, &tokens)?;
            chosen.truncate(room);
            rejected.truncate(room);
            merged.fetch_add(usize::from(cut), Ordering::Relaxed);
            let answers = Some(Answers::new(chosen, None, rejected));
            Ok(Prompt { tokens, answers, ..Prompt::new(row, &prompt, text, columns) })
        };
        let read = all(rows, prepare, refused)?;
        match merged.into_inner() {
            0 => {}
            merged => tracing::warn!(
                "in {merged} pairs the prompt's last tokens merge with an answer's first; there the answer starts earlier"
            ),
        }
        Ok(read)
    }

    /// Reads the pairs of a preference dataset for a reward model. Pairs with a text of more than `longest` tokens are skipped,
    /// as in TRL.
    pub(super) fn valued_pairs(&self, given: Option<&Dataset>) -> Result<Read> {
        if self.longest_prompt.is_some() {
            let detail = "a reward model reads whole texts; longer ones are skipped by max_length";
            return Err(Error::setting("max_prompt_length", detail));
        }
        let mut refused = Refused::new(self.strict);
        let rows = self.preferences(given, &mut refused)?;
        let (pairs, warning) = all(rows, |row| self.valued_pair(row), refused)?;
        let with = pairs.iter().filter(|pair| pair.answers.as_ref().is_some_and(|answers| answers.margin.is_some())).count();
        if with > 0 && with < pairs.len() {
            let (without, all) = (pairs.len() - with, pairs.len());
            return Err(Error::setting(
                "dataset",
                format!("{without} of its {all} pairs have no \"margin\"; either all pairs must have one or none"),
            ));
        }
        Ok((pairs, warning))
    }

    fn valued_pair(&self, row: PreferenceRow) -> data::Result<Prompt> {
        let PreferenceRow { row, place, prompt, chosen, rejected, extras, columns } = row;
        let pair = answered(&prompt, [&chosen, &rejected], &extras, self.tokenizer).map_err(|e| place.failed(e))?;
        let Answered { text, mut tokens, answers: [mut chosen, mut rejected], .. } = pair;
        if chosen.is_empty() || rejected.is_empty() {
            // One text is the beginning of the other, or the same.
            let Some(last) = tokens.pop() else { return Err(place.wrong("one of its texts has no tokens")) };
            chosen.insert(0, last);
            rejected.insert(0, last);
        }
        let length = tokens.len() + chosen.len().max(rejected.len());
        if length > self.longest {
            let longest = self.longest;
            return Err(place.wrong(format!("has a text of {length} tokens; the maximum is {longest} (max_length)")));
        }
        let pad = self.tokenizer.pad_id();
        let valued = [&chosen, &rejected].map(|answer| valued_at(&tokens, answer, pad));
        let margin = match columns.get("margin") {
            None | Some(Value::Null) => None,
            Some(margin) => {
                let number = margin.as_f64().map(|margin| margin as f32).filter(|margin| margin.is_finite());
                Some(number.ok_or_else(|| place.wrong("has a \"margin\" that is not a number"))?)
            }
        };
        let answers = Some(Answers { valued, margin, ..Answers::new(chosen, None, rejected) });
        Ok(Prompt { tokens, answers, ..Prompt::new(row, &prompt, text, columns) })
    }

    /// Adds the begin token to a prompt and the end token to its answers if they lack it, like TRL's CPO.
    fn frame(&self, prompt: &mut Vec<u32>, answers: [&mut Vec<u32>; 2]) {
        let (begin, end) = self.tokenizer.frame();
        if prompt.first() != begin.as_ref() {
            prompt.splice(0..0, begin);
        }
        for answer in answers.into_iter().filter(|answer| answer.last() != end.as_ref()) {
            answer.extend(end);
        }
    }

    /// Returns how many tokens may follow a prompt.
    fn room(&self, place: &Place, prompt: &[u32]) -> data::Result<usize> {
        let (length, longest) = (prompt.len(), self.longest);
        longest.checked_sub(length).filter(|&room| room > 0).ok_or_else(|| {
            place.wrong(format!("its prompt has {length} tokens, which leaves no room for an answer in {longest} (max_length)"))
        })
    }

    /// Reads given completions. A row is limited to `longest` tokens: it is truncated at the end, and rows whose prompt alone
    /// reaches the limit are skipped. Without a prompt, the whole text except its first token is learned.
    pub(super) fn completions(&self, given: Option<&Dataset>, what: Learned) -> Result<Read> {
        let Some(dataset) = given else {
            let detail =
                "is missing: fine-tuning learns from a dataset with \"prompt\" and \"completion\", \"text\" or \"messages\"";
            return Err(Error::setting("dataset", detail));
        };
        if self.longest_prompt.is_some() {
            let detail = "fine-tuning has no limit for prompts alone; max_length limits a prompt with its completion";
            return Err(Error::setting("max_prompt_length", detail));
        }
        let mut refused = Refused::new(self.strict);
        let rows = data::read_completions(dataset, &mut refused)?;
        all(rows, |row| self.completion(row, what).map(|(prompt, _)| prompt), refused)
    }

    /// Reads labelled completions, which are limited and truncated like unlabelled ones.
    pub(super) fn labelled(&self, given: Option<&Dataset>) -> Result<Read> {
        let Some(dataset) = given else {
            let detail =
                "is missing: this algorithm learns from a dataset with \"prompt\", \"completion\" and \"label\", or pairs";
            return Err(Error::setting("dataset", detail));
        };
        let mut refused = Refused::new(self.strict);
        let rows = data::read_labelled(dataset, &mut refused)?;
        let prepare = |LabelledRow { row, label }: LabelledRow| {
            let (mut prompt, beyond) = self.completion(row, Learned { whole: false, turns: false })?;
            prompt
                .answers
                .iter_mut()
                .for_each(|answers| answers.label = Some(Label { desirable: label, beyond: beyond.clone() }));
            Ok(prompt)
        };
        let desirable = rows.iter().filter(|row| row.label).count();
        let one_sided = match desirable {
            0 => Some("undesirable"),
            most if most == rows.len() => Some("desirable"),
            _ => None,
        };
        let warning = one_sided.map(|kind| {
            format!(
                "dataset: all of its {} completions are {kind}; the algorithm needs both kinds to learn from their difference",
                rows.len()
            )
        });
        let (prompts, left_out) = all(rows, prepare, refused)?;
        Ok((prompts, left_out.into_iter().chain(warning).reduce(|a, b| format!("{a}; {b}"))))
    }

    /// Prepares a row of given completions. Also returns the tokens for which there is no room.
    fn completion(&self, row: CompletionRow, what: Learned) -> data::Result<(Prompt, Vec<u32>)> {
        let (tokenizer, place) = (self.tokenizer, row.place.clone());
        let parts = match &row.prompt {
            Some(prompt) => answered(prompt, [&row.completion], &row.extras, tokenizer)
                .map(|Answered { text, tokens, answers: [a], .. }| (text, tokens, a)),
            None => whole(None, &row.completion, true, &row.extras, tokenizer).map(|tokens| (String::new(), Vec::new(), tokens)),
        };
        let (text, mut tokens, mut chosen) = parts.map_err(|e| place.failed(e))?;
        let mut learned = learned_of(&row, &tokens, &chosen, tokenizer, what).map_err(|e| place.failed(e))?;
        if what.whole {
            chosen.splice(0..0, tokens.drain(..));
        }
        self.shorten(&mut tokens);
        if tokens.is_empty() && !chosen.is_empty() {
            tokens.push(chosen.remove(0));
            learned = learned.map(|mask| mask[1..].to_vec());
        }
        let room = self.room(&place, &tokens)?;
        let beyond = chosen.split_off(room.min(chosen.len()));
        learned.iter_mut().for_each(|mask| mask.truncate(room));
        if chosen.is_empty() {
            return Err(place.wrong("has no tokens to learn"));
        }
        if learned.as_ref().is_some_and(|mask| !mask.contains(&1)) {
            let all = if self.longest == usize::MAX { String::new() } else { format!(" in its first {} tokens", self.longest) };
            return Err(place.wrong(format!("the assistant says nothing{all}")));
        }
        let answers = Some(Answers::new(chosen, learned, Vec::new()));
        Ok((Prompt { tokens, answers, ..Prompt::new(row.row, &row.completion, text, row.columns) }, beyond))
    }
}

/// A row that knows its number in the dataset.
trait Numbered {
    fn number(&self) -> usize;
}

impl Numbered for PromptRow {
    fn number(&self) -> usize {
        self.row
    }
}

impl Numbered for PreferenceRow {
    fn number(&self) -> usize {
        self.row
    }
}

impl Numbered for CompletionRow {
    fn number(&self) -> usize {
        self.row
    }
}

impl Numbered for LabelledRow {
    fn number(&self) -> usize {
        self.row.row
    }
}

/// Prepares every row, using all threads for a large dataset, since tokenizing takes most of the startup time. Fails with the
/// first row whose failure is final. Rows after it are not tried, since each may leave a thread behind.
fn all<R: Numbered + Send>(
    rows: Vec<R>,
    prepare: impl Fn(R) -> data::Result<Prompt> + Sync + Send,
    mut refused: Refused,
) -> Result<Read> {
    let first = AtomicUsize::new(usize::MAX);
    let prepare = |row: R| {
        let number = row.number();
        if number > first.load(Ordering::Relaxed) {
            return None;
        }
        let prepared = prepare(row);
        if prepared.as_ref().is_err_and(|error| refused.is_final(error)) {
            first.fetch_min(number, Ordering::Relaxed);
        }
        Some((number, prepared))
    };
    let ready: Vec<_> = rows.into_par_iter().with_min_len(ROWS_A_THREAD).map(prepare).collect();
    let kept = refused.sort(ready.into_iter().flatten())?.into_iter().enumerate();
    let kept: Vec<_> = kept.map(|(index, prompt)| Arc::new(Prompt { index, ..prompt })).collect();
    let warning = refused.warning(kept.len())?;
    Ok((kept, warning))
}

fn asked(prompt: &Asked, extras: &Extras, tokenizer: &Tokenizer) -> data::Result<(String, Vec<u32>)> {
    match prompt {
        Asked::Text(text) => Ok((text.clone(), tokenizer.encode(text, true)?)),
        Asked::Chat(messages) => {
            let text = tokenizer.render_chat(messages, true, extras)?;
            let tokens = tokenizer.encode(&text, false)?;
            Ok((text, tokens))
        }
    }
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
fn answered<const N: usize>(
    prompt: &Asked,
    given: [&Asked; N],
    extras: &Extras,
    tokenizer: &Tokenizer,
) -> data::Result<Answered<N>> {
    let (text, mut tokens) = asked(prompt, extras, tokenizer)?;
    let mut answers = [const { Vec::new() }; N];
    for (answer, given) in answers.iter_mut().zip(given) {
        *answer = whole(Some(prompt), given, true, extras, tokenizer)?;
    }
    let same = |answer: &Vec<u32>| tokens.iter().zip(answer).take_while(|(a, b)| a == b).count();
    let begin = answers.iter().map(same).min().unwrap_or(0);
    answers.iter_mut().for_each(|answer| drop(answer.drain(..begin)));
    let cut = begin < tokens.len();
    tokens.truncate(begin);
    Ok(Answered { text, tokens, answers, cut })
}

/// Returns the position of the last non-padding token of a prompt with an answer: the one whose state has the value, as in
/// transformers.
pub(super) fn valued_at(prompt: &[u32], answer: &[u32], pad: Option<u32>) -> usize {
    let all = prompt.iter().chain(answer);
    all.enumerate().filter(|(_, token)| Some(**token) != pad).last().map_or(0, |(place, _)| place)
}

/// Which parts of a given text are learned.
#[derive(Clone, Copy)]
pub(super) struct Learned {
    /// Whether prompts are learned too, if both prompt and completion are given.
    pub whole: bool,
    /// Whether only the assistant's turns of a conversation are learned.
    pub turns: bool,
}

/// Returns the mask of a row's learned tokens, or none if all are learned.
fn learned_of(
    row: &CompletionRow,
    asked: &[u32],
    answered: &[u32],
    tokenizer: &Tokenizer,
    what: Learned,
) -> data::Result<Option<Vec<u8>>> {
    match (&row.prompt, &row.completion) {
        _ if !what.turns => Ok(None),
        (None, Asked::Chat(messages)) => assistant_turns(row, messages, answered, tokenizer).map(Some),
        (Some(Asked::Chat(prompt)), Asked::Chat(completion)) => {
            let (messages, all) = ([&prompt[..], completion].concat(), [asked, answered].concat());
            let mut mask = assistant_turns(row, &messages, &all, tokenizer)?;
            if !what.whole {
                mask.drain(..asked.len());
            }
            Ok(Some(mask))
        }
        _ => Err(row.place.wrong("assistant_only_loss needs messages, which say who speaks; this is a plain string")),
    }
}

/// Returns the mask of the assistant's tokens in a row's conversation, whose tokens are `all`.
fn assistant_turns(row: &CompletionRow, messages: &[Message], all: &[u32], tokenizer: &Tokenizer) -> data::Result<Vec<u8>> {
    let (tokens, said) = tokenizer.encode_spoken(messages, &row.extras)?;
    if tokens != all {
        let detail = "the chat template or the tokenizer gives different tokens the second time";
        return Err(row.place.wrong(format!("assistant_only_loss: {detail}")));
    }
    Ok(said)
}

/// Tokenizes a whole text with its prompt, if it has one, and its end token, if it `ended`; or a whole conversation.
pub(super) fn whole(
    prompt: Option<&Asked>,
    text: &Asked,
    ended: bool,
    extras: &Extras,
    tokenizer: &Tokenizer,
) -> data::Result<Vec<u32>> {
    match (prompt, text) {
        (prompt, Asked::Text(text)) => {
            // The readers of `data` let no mixture through.
            let before = if let Some(Asked::Text(before)) = prompt { before } else { "" };
            let end = tokenizer.eos_text().filter(|eos| ended && !text.ends_with(eos)).unwrap_or_default();
            tokenizer.encode(&format!("{before}{text}{end}"), true)
        }
        (prompt, Asked::Chat(messages)) => {
            let before = if let Some(Asked::Chat(before)) = prompt { &before[..] } else { &[] };
            tokenizer.encode(&tokenizer.render_chat(&[before, messages].concat(), false, extras)?, false)
        }
    }
}

/// Returns the number of a row to score, and the tokens of its texts: one, or those of a pair.
pub(super) fn scored_texts(row: Scored, tokenizer: &Tokenizer, longest: usize) -> (usize, data::Result<Vec<Vec<u32>>>) {
    let (number, place, prompt, texts, extras) = match row {
        Scored::One(CompletionRow { row, place, prompt, completion, extras, .. }) => {
            (row, place, prompt, vec![completion], extras)
        }
        Scored::Pair(PreferenceRow { row, place, prompt, chosen, rejected, extras, .. }) => {
            (row, place, Some(prompt), vec![chosen, rejected], extras)
        }
    };
    let tokens = texts.iter().map(|text| whole(prompt.as_ref(), text, true, &extras, tokenizer));
    let tokens = tokens.collect::<data::Result<Vec<_>>>().map_err(|e| place.failed(e));
    let fit = |texts: Vec<Vec<u32>>| {
        let all = texts.iter().try_for_each(|tokens| check_fits(&place, tokens.len(), longest));
        all.map(|()| texts)
    };
    (number, tokens.and_then(fit))
}

/// Refuses a row with a text of this many tokens if it exceeds a reward model's context.
pub(super) fn check_fits(place: &Place, tokens: usize, longest: usize) -> data::Result<()> {
    if tokens > longest {
        return Err(place.wrong(format!("a text of {tokens} tokens exceeds the model's context of {longest}")));
    }
    Ok(())
}

/// Computes the SHA-256 of all prompts with their columns and answers.
pub(super) fn fingerprint(prompts: &[Arc<Prompt>]) -> Result<String> {
    let mut hash = Sha256::new();
    for prompt in prompts {
        let answers = prompt.answers.as_ref().map(|a| (&a.chosen, &a.learned, &a.rejected));
        let label = prompt.answers.as_ref().and_then(|a| a.label.as_ref()).map(|label| (label.desirable, &label.beyond));
        // A dataset without labels keeps the hash that it had before there were any.
        let row = match label {
            None => serde_json::to_vec(&(&prompt.tokens, &prompt.columns, answers)),
            Some(label) => serde_json::to_vec(&(&prompt.tokens, &prompt.columns, answers, label)),
        };
        let row = row.map_err(|e| Error::encoding("a row", &e))?;
        hash.update((row.len() as u64).to_le_bytes());
        hash.update(&row);
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}
