//! Reads the dataset in the form that the run uses: tokenized prompts and, for pairs, their two answers.

mod lazy_selection;
mod length_cache;
mod prompts;
mod row_outcome;
mod row_verdict;
mod scan;
mod splitting;
mod tokenization;
mod usable_rows;

pub(super) use lazy_selection::LINES_PREFIX;
pub(super) use prompts::{PromptSet, ROWS_PREFIX};
pub use row_verdict::DatasetKind;
pub(super) use splitting::{split, wrap};
pub use tokenization::LearnedParts;
pub(super) use tokenization::{check_fits, scored_texts, tokenize_whole, valued_at};

use super::{Error, Result};
use crate::config::{AgentEntry, PluginEntry, hex};
use crate::data::{
    self, ChatMessage, CompletionRow, Location, PreferenceRow, PromptForm, PromptRow, RowColumns, TEACHER_LOGPROBS,
    TEACHER_TOKEN_IDS, TaughtTokens, TeacherPrompts, TemplateVariables, TextOrChat, TokenCountBounds, TokenizedRow, Tokenizer,
};
use crate::ops::top_divergence::LikelyToken;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::sync::{Arc, Once, OnceLock};
use tokenization::{TokenizedAnswers, answered, learned_of, tokenize_prompt};

/// Prompts for runs without a dataset, one JSON line each.
pub const BUILT_IN_PROMPTS: &str = include_str!("../../../examples/builtin-model/prompts.jsonl");

/// A prompt of the dataset, ready for generation or training.
#[derive(Clone, Default)]
pub(super) struct Prompt {
    /// Row of the dataset.
    pub row: usize,
    /// Position among the prompts in use.
    pub index: usize,
    pub text: String,
    /// Whether the prompt belongs to a conversation.
    pub chat: bool,
    /// The original conversation, if a reward model or an environment reads it.
    pub messages: Option<Box<(Vec<ChatMessage>, TemplateVariables)>>,
    pub tokens: Vec<u32>,
    /// Tokens that a teacher reads in place of these, if it does.
    pub teacher_tokens: Option<Vec<u32>>,
    /// The dataset's other columns.
    pub columns: Map<String, Value>,
    /// Answers from the dataset, if it has them.
    pub answers: Option<PromptAnswers>,
    /// Log-probabilities of all tokens of the answers under the reference model, if they are precomputed.
    pub ref_logp: OnceLock<Vec<f32>>,
    /// Number of another row, and log-probabilities of all tokens of that row's answer under the reference model, if they are precomputed.
    pub mismatched_ref_logp: OnceLock<(usize, Vec<f32>)>,
}

impl Prompt {
    /// Returns the number of tokens of the prompt as the policy or the teacher reads it, whichever reads more.
    pub(super) fn longest_reading(&self) -> usize {
        self.tokens.len().max(self.teacher_tokens.as_ref().map_or(0, Vec::len))
    }

    fn new(row: usize, asked: &TextOrChat, text: String, columns: Map<String, Value>) -> Self {
        let chat = matches!(asked, TextOrChat::Chat(_));
        Self { row, text, chat, columns, ..Self::default() }
    }

    /// Returns the prompt's conversation; a plain text becomes a user message.
    pub(super) fn conversation(&self) -> Vec<ChatMessage> {
        let plain = || vec![ChatMessage { role: "user".into(), content: self.text.as_str().into(), ..ChatMessage::default() }];
        self.messages.as_deref().map_or_else(plain, |(messages, _)| messages.clone())
    }

    /// Returns the prompt's text, or the last question of a conversation.
    ///
    /// # Errors
    /// If a conversation does not end with a question.
    pub(super) fn question(&self) -> Result<&str> {
        match self.messages.as_deref().and_then(|(messages, _)| messages.last()) {
            None => Ok(&self.text),
            Some(last) if last.role == "user" => Ok(&last.content),
            Some(_) => {
                Err(self.row_error("the prompt must end with a question of the user, in whose place a teacher reads another"))
            }
        }
    }

    /// Returns the tokens of the prompt with another question in place of its own.
    ///
    /// # Errors
    /// If it can't be tokenized, or has no tokens.
    pub(super) fn with_question(&self, question: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let (prompt, extras) = match self.messages.as_deref() {
            None => (TextOrChat::Text(question.to_owned()), TemplateVariables::default()),
            Some((messages, extras)) => {
                let before = &messages[..messages.len().saturating_sub(1)];
                let last = ChatMessage { role: "user".into(), content: question.into(), ..ChatMessage::default() };
                (TextOrChat::Chat([before, &[last]].concat()), extras.clone())
            }
        };
        let (_, tokens) = tokenize_prompt(&prompt, &extras, tokenizer).map_err(|e| self.row_error(e))?;
        if tokens.is_empty() { Err(self.row_error("the teacher's prompt has no tokens")) } else { Ok(tokens) }
    }

    fn row_error(&self, detail: impl std::fmt::Display) -> Error {
        Error::setting("dataset", format!("row {}: {detail}", self.row + 1))
    }

    /// Returns which of these environments the prompt's row belongs to: the one named in its column, if there are several.
    pub(super) fn acts_in(&self, environments: &[PluginEntry]) -> Option<usize> {
        self.named_in("environment", environments, |entry, name| entry.name() == name.strip_suffix(".wasm").unwrap_or(name))
    }

    /// Returns which of these agents plays the row's episodes: the one named in its column, if there are several.
    pub(super) fn played_by(&self, agents: &[AgentEntry]) -> Option<usize> {
        self.named_in("agent", agents, |entry, name| entry.name == name)
    }

    /// Returns which of these teachers scores the row's completions: the one named in its column, if there are several.
    pub(super) fn taught_by<N: AsRef<str>>(&self, names: &[N]) -> Option<usize> {
        self.named_in("teacher", names, |own, name| own.as_ref() == name)
    }

    /// Returns the index of the entry that a column of the row names. The only entry needs no column.
    fn named_in<E>(&self, column: &str, entries: &[E], has_name: impl Fn(&E, &str) -> bool) -> Option<usize> {
        match entries {
            [] => None,
            [_] => Some(0),
            all => {
                let name = self.columns.get(column)?.as_str()?;
                all.iter().position(|entry| has_name(entry, name))
            }
        }
    }

    /// Returns the number of tokens of the prompt and its first answer.
    pub(super) fn length(&self) -> usize {
        self.tokens.len() + self.answers.as_ref().map_or(0, |answers| answers.chosen.len())
    }
}

/// Two answers, as token ids.
#[derive(Clone)]
pub(super) struct PromptAnswers {
    pub chosen: Vec<u32>,
    /// Mask of the learned tokens; none if all are learned.
    pub learned: Option<Vec<u8>>,
    pub rejected: Vec<u32>,
    /// The label of a labelled answer.
    pub label: Option<Label>,
    /// For reward models: in the prompt with each answer, the position of the token at which the value is read.
    pub value_positions: [usize; 2],
    /// For reward models: the margin of the chosen answer, if the dataset has one.
    pub margin: Option<f32>,
    /// A teacher's likeliest tokens in place of each token of the chosen answer, if the dataset has them.
    pub likely_tokens: Option<Vec<Vec<LikelyToken>>>,
}

impl PromptAnswers {
    fn new(chosen: Vec<u32>, learned: Option<Vec<u8>>, rejected: Vec<u32>) -> Self {
        Self { chosen, learned, rejected, label: None, value_positions: [0; 2], margin: None, likely_tokens: None }
    }
}

/// The label, and related data, of a labelled answer.
#[derive(Clone)]
pub(super) struct Label {
    /// Whether the answer is desirable.
    pub desirable: bool,
    /// The answer's tokens beyond `max_length`, which may fit after a shorter prompt.
    pub beyond: Vec<u32>,
}

/// A row, prepared.
struct PreparedRow {
    prompt: Prompt,
    /// Whether the last tokens of a pair's prompt merge with an answer's first.
    merges: bool,
    /// Whether an answer is truncated at the maximum length of a text.
    truncated: bool,
}

impl From<Prompt> for PreparedRow {
    fn from(prompt: Prompt) -> Self {
        Self { prompt, merges: false, truncated: false }
    }
}

/// How a run reads its datasets.
#[derive(Clone)]
pub(super) struct DatasetReader {
    pub tokenizer: Tokenizer,
    /// Bounds on the tokens of texts, if there are any.
    pub lengths: Option<Arc<TokenCountBounds>>,
    /// Length of the model's context.
    pub context: usize,
    /// Maximum length of a text, or of a prompt with a given answer.
    pub longest: usize,
    /// Maximum length of a prompt; longer ones keep their last tokens.
    pub longest_prompt: Option<usize>,
    /// Maximum length of a generated completion; 0 if none are generated.
    pub completion: usize,
    /// Whether an unusable row is an error.
    pub strict: bool,
    /// Whether pairs begin and end with the tokenizer's begin and end tokens, whatever a chat template writes.
    pub framed: bool,
    /// Whether prompts keep their conversations.
    pub messages: bool,
    /// How settings build or extend prompts, if any do.
    pub form: Option<Arc<PromptForm>>,
    /// How prompts for a teacher are built, if it reads others than the policy.
    pub taught: Option<Arc<TeacherPrompts>>,
    /// Whether rows have a teacher's likeliest tokens.
    pub likely_tokens: bool,
}

impl DatasetReader {
    /// Prepares a prompt, which must be shorter than the model's context.
    fn prompt(&self, row: PromptRow) -> data::Result<Prompt> {
        let PromptRow { row, place, prompt, extras, columns } = row;
        let (text, mut tokens) = tokenize_prompt(&prompt, &extras, &self.tokenizer).map_err(|e| place.failed(e))?;
        self.shorten(&mut tokens);
        if tokens.is_empty() {
            return Err(place.row_error("the prompt has no tokens"));
        }
        if tokens.len() >= self.context {
            let (long, context) = (tokens.len(), self.context);
            let detail = format!("the prompt is {long} tokens long; the model's context is {context}, completion included");
            return Err(place.row_error(format!("{detail}; max_prompt_length keeps a prompt's last tokens")));
        }
        let teacher_tokens = match &self.taught {
            Some(taught) => Some(self.teacher_tokens(taught, (&prompt, &extras, &columns), tokens.len(), &place)?),
            None => None,
        };
        let new = Prompt::new(row, &prompt, text, columns);
        let messages = match prompt {
            TextOrChat::Chat(messages) if self.messages => Some(Box::new((messages, extras))),
            _ => None,
        };
        Ok(Prompt { tokens, teacher_tokens, messages, ..new })
    }

    /// Prepares a prompt with a given completion, of which no more is kept than may be generated.
    fn answered_prompt(&self, row: CompletionRow) -> data::Result<Prompt> {
        let CompletionRow { row, place, prompt, completion, extras, columns, .. } = row;
        let asked = prompt.ok_or_else(|| place.row_error("has no prompt"))?;
        let failed = |e| place.failed(e);
        let (_, before) = tokenize_prompt(&asked, &extras, &self.tokenizer).map_err(failed)?;
        let whole = tokenize_whole(Some(&asked), &completion, true, &extras, &self.tokenizer).map_err(failed)?;
        let Some(given) = whole.strip_prefix(&before[..]) else {
            let detail = "the tokens of the prompt with its completion do not begin with those of the prompt alone, after which the \
                          policy would write (lmbda is below 1)";
            return Err(place.row_error(detail));
        };
        if given.is_empty() {
            return Err(place.row_error("the completion has no tokens"));
        }
        let given = given[..given.len().min(self.completion)].to_vec();
        let prompt = self.prompt(PromptRow { row, place, prompt: asked, extras, columns })?;
        Ok(Prompt { answers: Some(PromptAnswers::new(given, None, Vec::new())), ..prompt })
    }

    /// Tokenizes the prompt of a row as a teacher reads it, with as much room for a completion as after the policy's `length` tokens.
    fn teacher_tokens(
        &self,
        taught: &TeacherPrompts,
        (prompt, extras, columns): (&TextOrChat, &TemplateVariables, &RowColumns),
        length: usize,
        place: &Location,
    ) -> data::Result<Vec<u32>> {
        let built = taught.prompt(prompt, columns).map_err(|detail| place.row_error(detail))?;
        let (_, mut tokens) = tokenize_prompt(&built, extras, &self.tokenizer).map_err(|e| place.failed(e))?;
        self.shorten(&mut tokens);
        let room = self.completion.min(self.context - length);
        if tokens.is_empty() || tokens.len() + room > self.context {
            let (long, context) = (tokens.len(), self.context);
            let detail = format!(
                "the teacher's prompt is {long} tokens long, and a completion may have {room}; the model's context is {context}"
            );
            return Err(place.row_error(detail));
        }
        Ok(tokens)
    }

    /// Truncates a prompt to its last `longest_prompt` tokens.
    fn shorten(&self, prompt: &mut Vec<u32>) {
        let most = self.longest_prompt.unwrap_or(usize::MAX);
        prompt.drain(..prompt.len().saturating_sub(most));
    }

    /// Prepares a pair. A prompt with an answer is limited to `longest` tokens: answers are truncated at the end, and pairs whose prompt
    /// alone reaches the limit are refused.
    fn pair(&self, row: PreferenceRow) -> data::Result<PreparedRow> {
        let PreferenceRow { row, place, prompt, chosen, rejected, extras, columns } = row;
        let pair = answered(&prompt, [&chosen, &rejected], &extras, &self.tokenizer).map_err(|e| place.failed(e))?;
        let TokenizedAnswers { text, mut tokens, answers: [mut chosen, mut rejected], cut } = pair;
        if self.framed {
            self.frame(&mut tokens, [&mut chosen, &mut rejected]);
        }
        if tokens.is_empty() || chosen.is_empty() || rejected.is_empty() {
            return Err(place.row_error("its prompt or one of its answers has no tokens"));
        }
        self.shorten(&mut tokens);
        let room = self.room(&place, &tokens)?;
        self.mention_cut(&place, tokens.len() + chosen.len().max(rejected.len()));
        let truncated = chosen.len().max(rejected.len()) > room;
        chosen.truncate(room);
        rejected.truncate(room);
        let answers = Some(PromptAnswers::new(chosen, None, rejected));
        let prompt = Prompt { tokens, answers, ..Prompt::new(row, &prompt, text, columns) };
        Ok(PreparedRow { prompt, merges: cut, truncated })
    }

    /// Prepares a pair for a reward model. Pairs with a text of more than `longest` tokens are refused, as in TRL.
    fn valued_pair(&self, row: PreferenceRow) -> data::Result<Prompt> {
        let PreferenceRow { row, place, prompt, chosen, rejected, extras, columns } = row;
        let pair = answered(&prompt, [&chosen, &rejected], &extras, &self.tokenizer).map_err(|e| place.failed(e))?;
        let TokenizedAnswers { text, mut tokens, answers: [mut chosen, mut rejected], .. } = pair;
        if chosen.is_empty() || rejected.is_empty() {
            // One text is a prefix of the other, or equal to it.
            let Some(last) = tokens.pop() else { return Err(place.row_error("one of its texts has no tokens")) };
            chosen.insert(0, last);
            rejected.insert(0, last);
        }
        let length = tokens.len() + chosen.len().max(rejected.len());
        if length > self.longest {
            let longest = self.longest;
            return Err(place.row_error(format!("has a text of {length} tokens; the maximum is {longest} (max_length)")));
        }
        let pad = self.tokenizer.pad_id();
        let valued = [&chosen, &rejected].map(|answer| valued_at(&tokens, answer, pad));
        let margin = margin(&columns).map_err(|detail| place.row_error(detail))?;
        let answers = Some(PromptAnswers { value_positions: valued, margin, ..PromptAnswers::new(chosen, None, rejected) });
        Ok(Prompt { tokens, answers, ..Prompt::new(row, &prompt, text, columns) })
    }

    /// Adds the begin token to a prompt and the end token to its answers where they are missing, like TRL's CPO.
    fn frame(&self, prompt: &mut Vec<u32>, answers: [&mut Vec<u32>; 2]) {
        let (begin, end) = self.tokenizer.bos_and_eos_ids();
        if prompt.first() != begin.as_ref() {
            prompt.splice(0..0, begin);
        }
        for answer in answers.into_iter().filter(|answer| answer.last() != end.as_ref()) {
            answer.extend(end);
        }
    }

    /// Returns how many tokens may follow a prompt.
    fn room(&self, place: &Location, prompt: &[u32]) -> data::Result<usize> {
        let (length, longest) = (prompt.len(), self.longest);
        let advice = if longest < self.context { "; a larger --max-length makes room" } else { "" };
        longest.checked_sub(length).filter(|&room| room > 0).ok_or_else(|| {
            place.row_error(format!(
                "its prompt has {length} tokens, which leaves no room for an answer in {longest} (max_length){advice}"
            ))
        })
    }

    /// Warns once that texts are truncated at the model's context, which no setting asked for.
    fn mention_cut(&self, place: &Location, length: usize) {
        static SAID: Once = Once::new();
        let context = self.context;
        if length > context && self.longest >= context {
            let detail = format!("has a text of {length} tokens; it and others are cut at the model's context of {context}");
            SAID.call_once(|| tracing::warn!("{}", place.row_error(detail)));
        }
    }

    /// Returns a row's own tokens. They must be in the tokenizer's vocabulary and, if only the assistant's are learned, the row must mark
    /// those.
    fn known(&self, place: &Location, tokenized: &TokenizedRow, what: LearnedParts) -> data::Result<Vec<u32>> {
        if what.turns && !tokenized.has_learned_mask() {
            return Err(place.row_error("assistant_only_loss needs \"assistant_masks\" or \"labels\" beside \"input_ids\""));
        }
        match tokenized.ids.iter().find(|id| !self.tokenizer.has_token_id(**id)) {
            Some(id) => Err(place.row_error(format!("column \"input_ids\" has {id}, which the tokenizer does not know"))),
            None => Ok(tokenized.ids.clone()),
        }
    }

    /// Prepares a row with a given completion. It is limited to `longest` tokens: it is truncated at the end, and rows whose prompt alone
    /// reaches the limit are refused. Without a prompt, the whole text except its first token is learned. Also returns the tokens beyond
    /// the limit.
    fn completion(&self, mut row: CompletionRow, what: LearnedParts) -> data::Result<(Prompt, Vec<u32>)> {
        let (tokenizer, place) = (&self.tokenizer, row.place.clone());
        let parts = match &row.prompt {
            _ if row.tokens.is_some() => Ok((String::new(), Vec::new(), Vec::new())),
            Some(prompt) => answered(prompt, [&row.completion], &row.extras, tokenizer)
                .map(|TokenizedAnswers { text, tokens, answers: [a], .. }| (text, tokens, a)),
            None => tokenize_whole(None, &row.completion, true, &row.extras, tokenizer)
                .map(|tokens| (String::new(), Vec::new(), tokens)),
        };
        let (text, mut tokens, mut chosen) = parts.map_err(|e| place.failed(e))?;
        let mut learned = match &row.tokens {
            Some(tokenized) => {
                chosen = self.known(&place, tokenized, what)?;
                tokenized.learned(what.includes_prompts)
            }
            None => learned_of(&row, &tokens, &chosen, tokenizer, what).map_err(|e| place.failed(e))?,
        };
        let mut likely_tokens = self.likely_tokens.then(|| self.take_likely_tokens(&mut row, chosen.len())).transpose()?;
        if what.includes_prompts {
            likely_tokens.iter_mut().for_each(|lists| drop(lists.splice(0..0, vec![Vec::new(); tokens.len()])));
            chosen.splice(0..0, tokens.drain(..));
        }
        self.shorten(&mut tokens);
        if tokens.is_empty() && !chosen.is_empty() {
            tokens.push(chosen.remove(0));
            learned = learned.map(|mask| mask[1..].to_vec());
            likely_tokens.iter_mut().for_each(|lists| drop(lists.remove(0)));
        }
        let room = self.room(&place, &tokens)?;
        self.mention_cut(&place, tokens.len() + chosen.len());
        let beyond = chosen.split_off(room.min(chosen.len()));
        learned.iter_mut().for_each(|mask| mask.truncate(room));
        likely_tokens.iter_mut().for_each(|lists| lists.truncate(room));
        if chosen.is_empty() {
            return Err(place.row_error("has no tokens to learn"));
        }
        if learned.as_ref().is_some_and(|mask| !mask.contains(&1)) {
            let all = if self.longest == usize::MAX { String::new() } else { format!(" in its first {} tokens", self.longest) };
            let nothing = if row.tokens.is_some() { "nothing is learned" } else { "the assistant says nothing" };
            return Err(place.row_error(format!("{nothing}{all}")));
        }
        if likely_tokens.as_ref().is_some_and(|lists| !is_taught(lists, learned.as_deref())) {
            return Err(place.row_error("the teacher says nothing of any token that is learned"));
        }
        let answers = Some(PromptAnswers { likely_tokens, ..PromptAnswers::new(chosen, learned, Vec::new()) });
        Ok((Prompt { tokens, answers, ..Prompt::new(row.row, &row.completion, text, row.columns) }, beyond))
    }

    /// Removes a teacher's likeliest tokens in place of each of a completion's `count` tokens from a row's columns.
    fn take_likely_tokens(&self, row: &mut CompletionRow, count: usize) -> data::Result<Vec<Vec<LikelyToken>>> {
        // Only there, an end token is added to what the teacher may have read.
        let added_end = row.prompt.is_some() && row.tokens.is_none();
        let is_known = |id| self.tokenizer.has_token_id(id);
        let read = data::read_teacher_tokens(&row.columns, TaughtTokens { count, added_end }, is_known);
        let lists = read.map_err(|detail| row.place.row_error(detail))?;
        [TEACHER_TOKEN_IDS, TEACHER_LOGPROBS].into_iter().for_each(|name| drop(row.columns.shift_remove(name)));
        Ok(lists)
    }
}

/// Returns whether a teacher says something of a learned token.
fn is_taught(lists: &[Vec<LikelyToken>], learned: Option<&[u8]>) -> bool {
    lists.iter().enumerate().any(|(place, list)| !list.is_empty() && learned.is_none_or(|mask| mask[place] == 1))
}

/// Returns the margin of a pair's chosen answer, if its columns have one.
fn margin(columns: &RowColumns) -> std::result::Result<Option<f32>, &'static str> {
    match columns.get("margin") {
        None | Some(Value::Null) => Ok(None),
        Some(margin) => {
            let number = margin.as_f64().map(|margin| margin as f32).filter(|margin| margin.is_finite());
            number.map(Some).ok_or("has a \"margin\" that is not a number")
        }
    }
}

/// The SHA-256 of prepared prompts with their columns and answers.
#[derive(Default)]
struct PromptDigest(Sha256);

impl PromptDigest {
    fn add(&mut self, prompt: &Prompt) -> Result<()> {
        let answers = prompt.answers.as_ref().map(|a| (&a.chosen, &a.learned, &a.rejected));
        let label = prompt.answers.as_ref().and_then(|a| a.label.as_ref()).map(|label| (label.desirable, &label.beyond));
        // A dataset without labels keeps its hash from before labels existed.
        let taught = prompt.answers.as_ref().and_then(|a| a.likely_tokens.as_ref());
        let row = match (label, taught) {
            (None, None) => serde_json::to_vec(&(&prompt.tokens, &prompt.columns, answers)),
            (None, Some(taught)) => serde_json::to_vec(&(&prompt.tokens, &prompt.columns, answers, taught)),
            (Some(label), _) => serde_json::to_vec(&(&prompt.tokens, &prompt.columns, answers, label)),
        };
        let row = row.map_err(|e| Error::encoding("a row", &e))?;
        self.0.update((row.len() as u64).to_le_bytes());
        self.0.update(&row);
        Ok(())
    }

    fn done(self) -> String {
        hex(&self.0.finalize())
    }
}
