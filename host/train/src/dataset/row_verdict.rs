//! Decides which rows of a dataset are usable without storing their tokens. Only rows for which bounds on the length prove nothing are
//! tokenized.

use super::tokenization::{asked_text, is_special, whole_text};
use super::{DatasetReader, Label, LearnedParts, PreparedRow, margin};
use crate::data::{
    self, ChatMessage, CompletionRow, Dataset, LabelledRow, Location, PreferenceRow, PromptRow, RowColumns, TemplateVariables,
    TextOrChat, TokenCountBounds, TokenizedRow,
};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Number of pairs that are always tokenized, to check whether prompts merge with answers.
pub(super) const TRIED_PAIRS: usize = 1024;

/// Kind of a dataset's rows.
#[derive(Clone, Copy, Debug)]
pub enum DatasetKind {
    /// Prompts for generation.
    Prompts,
    /// Prompts for generation that also have a given completion.
    AnsweredPrompts,
    /// A prompt with a chosen and a rejected answer.
    Pairs,
    /// Given completions.
    Completions(LearnedParts),
    /// Given completions with labels. A pair counts as two of them.
    Labelled,
    /// A prompt with a chosen and a rejected answer, for a reward model.
    ValuedPairs,
}

/// Number of rows in which each turn is checked for omission by the chat template. Later rows are checked only if their content is missing
/// from the text.
const TRIED_TURNS: usize = 256;

/// A parsed row.
pub(super) enum ParsedRow {
    Prompt(PromptRow),
    Pair(PreferenceRow),
    /// A completion, with its label if it has one.
    Completion(CompletionRow, Option<bool>),
}

impl DatasetKind {
    /// Returns the dataset, which is optional only for prompts.
    pub(super) fn dataset(self, given: Option<&Dataset>) -> Result<&Dataset> {
        let missing = match self {
            Self::AnsweredPrompts => {
                "is missing: with lmbda below 1, completions of a dataset with \"prompt\" and \"completion\" are learned"
            }
            Self::Completions(_) => {
                "is missing: fine-tuning learns from a dataset with \"prompt\" and \"completion\", \"text\" or \"messages\""
            }
            Self::Labelled => {
                "is missing: this algorithm learns from a dataset with \"prompt\", \"completion\" and \"label\", or pairs"
            }
            _ => "is missing: this algorithm learns from a dataset with \"prompt\", \"chosen\" and \"rejected\"",
        };
        given.ok_or_else(|| Error::setting("dataset", missing))
    }

    /// Returns why rows of this kind have no length limit for prompts alone, in words; none if they have one.
    pub(super) fn lacks_prompt_limit(self) -> Option<&'static str> {
        match self {
            Self::Completions(_) => {
                Some("fine-tuning has no limit for prompts alone; max_length limits a prompt with its completion")
            }
            Self::ValuedPairs => Some("a reward model reads whole texts; longer ones are skipped by max_length"),
            Self::Prompts | Self::AnsweredPrompts | Self::Pairs | Self::Labelled => None,
        }
    }

    /// Parses a row. A pair of labelled completions becomes two. Called by [`DatasetReader::rows_of`], which also forms prompts.
    fn read(self, row: usize, place: &Location, columns: RowColumns) -> data::Result<Vec<ParsedRow>> {
        let one = match self {
            Self::Prompts => ParsedRow::Prompt(PromptRow::from_columns(row, place, columns)?),
            Self::AnsweredPrompts => {
                let row = CompletionRow::from_columns(row, place, columns)?.split_last_turn();
                let missing = "has no prompt with a completion, which is learned of some rows (lmbda is below 1)";
                row.prompt.as_ref().ok_or_else(|| row.place.row_error(missing))?;
                ParsedRow::Completion(row, None)
            }
            Self::Pairs => ParsedRow::Pair(PreferenceRow::from_columns(row, place, columns)?),
            Self::ValuedPairs => ParsedRow::Pair(PreferenceRow::from_whole_texts(row, place, columns)?),
            Self::Completions(_) => ParsedRow::Completion(CompletionRow::from_columns(row, place, columns)?, None),
            Self::Labelled => {
                let read = LabelledRow::from_columns(row, place, columns)?.into_iter();
                return Ok(read.map(|LabelledRow { row, label }| ParsedRow::Completion(row, Some(label))).collect());
            }
        };
        Ok(vec![one])
    }
}

impl DatasetReader {
    /// Parses a row of a kind, with its prompt formed as configured.
    ///
    /// # Errors
    /// If the row is not usable.
    pub(super) fn rows_of(
        &self,
        kind: DatasetKind,
        row: usize,
        place: &Location,
        mut columns: RowColumns,
    ) -> data::Result<Vec<ParsedRow>> {
        let Some(form) = self.form.as_deref() else { return kind.read(row, place, columns) };
        let answers: &[&str] = match kind {
            DatasetKind::Prompts => &[],
            DatasetKind::Completions(_) | DatasetKind::AnsweredPrompts => &["completion"],
            DatasetKind::Pairs | DatasetKind::ValuedPairs => &["chosen", "rejected"],
            DatasetKind::Labelled => &["completion", "chosen", "rejected"],
        };
        form.fill(place, &mut columns, answers)?;
        let asked = |part| {
            Ok(match part {
                ParsedRow::Prompt(row) => ParsedRow::Prompt(form.prompt(row)?),
                ParsedRow::Pair(row) => ParsedRow::Pair(form.pair(row)?),
                ParsedRow::Completion(row, label) => ParsedRow::Completion(form.completion(row)?, label),
            })
        };
        kind.read(row, place, columns)?.into_iter().map(asked).collect()
    }
}

impl ParsedRow {
    /// Returns the row's tokens, if the dataset has them.
    fn tokens(&self) -> Option<&TokenizedRow> {
        if let Self::Completion(row, _) = self { row.tokens.as_ref() } else { None }
    }

    /// Returns whether all tokens are known to be learned without tokenizing.
    pub(super) fn is_plain(&self, kind: DatasetKind) -> bool {
        match (self, kind) {
            (Self::Completion(row, _), DatasetKind::Completions(LearnedParts { includes_prompts: whole, turns: false })) => {
                row.tokens.is_none() && (whole || row.prompt.is_none())
            }
            _ => false,
        }
    }

    fn place(&self) -> &Location {
        match self {
            Self::Prompt(row) => &row.place,
            Self::Pair(row) => &row.place,
            Self::Completion(row, _) => &row.place,
        }
    }

    /// Returns the row's label, if it has one.
    fn label(&self) -> Option<bool> {
        if let Self::Completion(_, label) = self { *label } else { None }
    }

    pub(super) fn columns(&self) -> &RowColumns {
        match self {
            Self::Prompt(row) => &row.columns,
            Self::Pair(row) => &row.columns,
            Self::Completion(row, _) => &row.columns,
        }
    }
}

/// The texts of a row that would be tokenized.
struct RowTexts {
    prompt: Option<String>,
    wholes: Vec<String>,
    /// Whether the tokenizer adds special tokens around the texts.
    special: bool,
    chat: bool,
}

/// Summary of a usable row.
#[derive(Deserialize, Serialize)]
pub(super) struct RowVerdict {
    /// Hash of the row's texts and other columns.
    pub(super) hash: [u8; 32],
    pub(super) chat: bool,
    /// Number of the prompt's tokens, if counted; otherwise it is small enough not to matter.
    pub(super) tokens: usize,
    /// For a pair that was tokenized: whether the prompt's last tokens merge with an answer's first.
    pub(super) cut: bool,
    /// Upper bounds on the number of tokens of the prompt, and of the prompt with an answer; they depend only on the row.
    pub(super) reach: [usize; 2],
    /// For a reward model's pair: whether the pair has a margin.
    pub(super) margin: bool,
    /// Label of the row, if it has one.
    pub(super) label: Option<bool>,
    /// What the chat template omits from the row, in words, if anything.
    pub(super) left_out: Option<String>,
    /// That the row is truncated at `max_length`, in words, if it is.
    pub(super) truncated: Option<String>,
}

impl DatasetReader {
    /// Prepares a row.
    pub(super) fn prepare(&self, kind: DatasetKind, row: ParsedRow) -> data::Result<PreparedRow> {
        let what =
            if let DatasetKind::Completions(what) = kind { what } else { LearnedParts { includes_prompts: false, turns: false } };
        match row {
            ParsedRow::Prompt(row) => self.prompt(row).map(PreparedRow::from),
            ParsedRow::Pair(row) if matches!(kind, DatasetKind::ValuedPairs) => self.valued_pair(row).map(PreparedRow::from),
            ParsedRow::Pair(row) => self.pair(row),
            ParsedRow::Completion(row, _) if matches!(kind, DatasetKind::AnsweredPrompts) => {
                self.answered_prompt(row).map(PreparedRow::from)
            }
            ParsedRow::Completion(row, label) => {
                let (mut prompt, beyond) = self.completion(row, what)?;
                let truncated = !beyond.is_empty();
                if let (Some(desirable), Some(answers)) = (label, &mut prompt.answers) {
                    answers.label = Some(Label { desirable, beyond });
                }
                Ok(PreparedRow { prompt, merges: false, truncated })
            }
        }
    }

    /// Decides whether a row is usable.
    ///
    /// # Errors
    /// Those of preparing the row.
    pub(super) fn judge(&self, kind: DatasetKind, number: usize, row: ParsedRow) -> data::Result<RowVerdict> {
        let texts = match self.texts(&row) {
            Ok(texts) => texts,
            // Prepare the row to get its error message.
            Err(error) => {
                let error = row.place().failed(error);
                return self.prepare(kind, row).and(Err(error));
            }
        };
        let left_out = self.left_out(&row, &texts, number < TRIED_TURNS)?;
        if let Some(detail) = left_out.as_ref().filter(|_| self.strict) {
            return Err(row.place().row_error(detail.as_str()));
        }
        let left_out = left_out.map(|detail| row.place().row_error(detail).to_string());
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(&[u8::from(texts.special), u8::from(texts.prompt.is_some())]);
        texts.prompt.iter().chain(&texts.wholes).for_each(|text| add(text.as_bytes()));
        let columns = serde_json::to_vec(row.columns()).map_err(|e| row.place().row_error(e.to_string()))?;
        add(&columns);
        let label = row.label();
        if let Some(label) = label {
            add(&[u8::from(label)]);
        }
        let margin = margin(row.columns()).map(|margin| margin.is_some());
        let known = row.tokens().map(|tokens| [0, tokens.ids.len()]);
        let (chat, reach) = (texts.chat, known.unwrap_or_else(|| self.reach(&texts)));
        let (mut tokens, mut cut) = (0, false);
        let valued = matches!(kind, DatasetKind::ValuedPairs);
        // A teacher's prompts are longer than the texts that are judged, and its tokens are not among them.
        let tried = known.is_some()
            || self.taught.is_some()
            || self.likely_tokens
            || matches!(kind, DatasetKind::Pairs) && number < TRIED_PAIRS;
        let is_usable = |lengths: &TokenCountBounds| self.is_usable(kind, &texts, lengths) && (!valued || margin.is_ok());
        let mut truncated = if tried { None } else { self.is_truncated(kind, &texts, reach[1]) };
        let place = row.place().clone();
        if truncated.is_none() || !self.lengths.as_deref().is_some_and(is_usable) {
            let prepared = self.prepare(kind, row)?;
            (tokens, cut) = (prepared.prompt.tokens.len(), prepared.merges);
            truncated = Some(prepared.truncated && self.longest < self.context);
            add(prepared.prompt.answers.as_ref().and_then(|answers| answers.learned.as_deref()).unwrap_or_default());
        } else {
            add(&[]);
        }
        Ok(RowVerdict {
            hash: hash.finalize().into(),
            chat,
            tokens,
            cut,
            reach,
            margin: valued && margin == Ok(true),
            label,
            left_out,
            truncated: truncated.filter(|is| *is).map(|_| self.truncation_at(&place)),
        })
    }

    /// Returns whether a row is truncated at `max_length`, where its `reach` may exceed it; `None` if the row must be tokenized to know.
    /// Truncation at the model's context is mentioned when the row is prepared.
    fn is_truncated(&self, kind: DatasetKind, texts: &RowTexts, reach: usize) -> Option<bool> {
        let is_cut = matches!(kind, DatasetKind::Pairs | DatasetKind::Completions(_) | DatasetKind::Labelled);
        if !is_cut || self.longest >= self.context || reach <= self.longest {
            return Some(false);
        }
        // Otherwise the texts are not all that counts.
        let lengths = self.lengths.as_deref().filter(|_| self.longest_prompt.is_none() && !self.framed)?;
        let counts = texts.wholes.iter().map(|whole| lengths.count(whole, texts.special)).collect::<Option<Vec<usize>>>()?;
        Some(counts.into_iter().any(|tokens| tokens > self.longest))
    }

    /// Says that a row is truncated at `max_length`.
    fn truncation_at(&self, place: &Location) -> String {
        place.row_error(format!("is longer than {} tokens (max_length) and cut off there", self.longest)).to_string()
    }

    /// Describes what the chat template omits from a row's conversations.
    fn left_out(&self, row: &ParsedRow, texts: &RowTexts, thorough: bool) -> data::Result<Option<String>> {
        let check = |parts: &[&TextOrChat], text: Option<&String>, generate: bool, extras: &TemplateVariables| {
            let mut messages: Vec<ChatMessage> = Vec::new();
            for part in parts {
                match part {
                    TextOrChat::Chat(own) => messages.extend_from_slice(own),
                    TextOrChat::Text(_) => return Ok(None),
                }
            }
            let Some(text) = text.filter(|_| !messages.is_empty()) else { return Ok(None) };
            self.tokenizer.find_omission((&messages, generate), text, thorough, extras).map_err(|e| row.place().failed(e))
        };
        match row {
            ParsedRow::Prompt(row) => check(&[&row.prompt], texts.prompt.as_ref(), true, &row.extras),
            ParsedRow::Pair(row) => match check(&[&row.prompt, &row.chosen], texts.wholes.first(), false, &row.extras)? {
                None => check(&[&row.prompt, &row.rejected], texts.wholes.get(1), false, &row.extras),
                found => Ok(found),
            },
            ParsedRow::Completion(CompletionRow { tokens: Some(_), .. }, _) => Ok(None),
            ParsedRow::Completion(row, _) => {
                let parts: Vec<&TextOrChat> = row.prompt.iter().chain([&row.completion]).collect();
                check(&parts, texts.wholes.first(), false, &row.extras)
            }
        }
    }

    fn texts(&self, row: &ParsedRow) -> data::Result<RowTexts> {
        let tokenizer = &self.tokenizer;
        let (asked, wholes, special) = match row {
            ParsedRow::Prompt(row) => (Some((&row.prompt, &row.extras)), Vec::new(), is_special(&row.prompt)),
            ParsedRow::Pair(row) => {
                let whole = |answer| whole_text(Some(&row.prompt), answer, true, &row.extras, tokenizer);
                let wholes = vec![whole(&row.chosen)?, whole(&row.rejected)?];
                (Some((&row.prompt, &row.extras)), wholes, is_special(&row.prompt))
            }
            // These rows are not tokenized, but their hashes must differ.
            ParsedRow::Completion(CompletionRow { tokens: Some(tokens), .. }, _) => (None, vec![format!("{tokens:?}")], true),
            ParsedRow::Completion(row, _) => {
                let whole = whole_text(row.prompt.as_ref(), &row.completion, true, &row.extras, tokenizer)?;
                (row.prompt.as_ref().map(|prompt| (prompt, &row.extras)), vec![whole], is_special(&row.completion))
            }
        };
        let asked = asked.map(|(prompt, extras)| asked_text(prompt, extras, tokenizer)).transpose()?;
        Ok(RowTexts { prompt: asked, wholes, special, chat: !special })
    }

    fn reach(&self, texts: &RowTexts) -> [usize; 2] {
        let most = |text: &String| self.lengths.as_ref().map_or(usize::MAX, |lengths| lengths.at_most(text, texts.special));
        let longest = texts.wholes.iter().map(most).max().unwrap_or(0);
        [texts.prompt.as_ref().map_or(0, most), longest.saturating_add(if self.framed { 2 } else { 0 })]
    }

    /// Returns whether bounds prove that a row is usable and that its length needs no warning.
    fn is_usable(&self, kind: DatasetKind, texts: &RowTexts, lengths: &TokenCountBounds) -> bool {
        let asked = texts.prompt.as_deref().unwrap_or_default();
        // A prompt that is truncated only has to be non-empty.
        let is_below = |most: usize| {
            let shortened = self.longest_prompt.is_some_and(|longest| longest > 0 && longest < most);
            lengths.fits(asked, texts.special, if shortened { usize::MAX } else { most })
        };
        let goes_on = || texts.wholes.iter().all(|whole| lengths.ends_beyond(asked, whole));
        match kind {
            DatasetKind::Prompts => is_below((self.context.saturating_sub(self.completion) + 1).min(self.context)),
            DatasetKind::Pairs => {
                let room = self.longest.saturating_sub(usize::from(self.framed));
                let alike = || texts.wholes.iter().all(|whole| lengths.begin_alike(asked, whole));
                is_below(room) && alike() && goes_on()
            }
            DatasetKind::Completions(LearnedParts { turns: true, .. }) | DatasetKind::AnsweredPrompts => false,
            DatasetKind::Completions(_) | DatasetKind::Labelled => {
                let whole = matches!(kind, DatasetKind::Completions(LearnedParts { includes_prompts: true, .. }))
                    || texts.prompt.is_none();
                self.longest > 1 && (whole || is_below(self.longest)) && goes_on()
            }
            DatasetKind::ValuedPairs => {
                let is_read = asked.is_empty() || lengths.fits(asked, texts.special, usize::MAX);
                let most = self.longest.saturating_add(1);
                is_read && texts.wholes.iter().all(|whole| lengths.fits(whole, texts.special, most))
            }
        }
    }

    /// Returns the number of tokens of a usable row's prompt and first answer, tokenizing only part of the text if possible.
    ///
    /// # Errors
    /// Those of preparing the row.
    pub(super) fn length(&self, kind: DatasetKind, row: ParsedRow) -> data::Result<usize> {
        let counted = match (kind, &row, &self.lengths) {
            (DatasetKind::Completions(_), ParsedRow::Completion(row, _), Some(lengths)) if row.tokens.is_none() => {
                let whole = whole_text(row.prompt.as_ref(), &row.completion, true, &row.extras, &self.tokenizer);
                lengths.count(&whole.map_err(|e| row.place.failed(e))?, is_special(&row.completion))
            }
            _ => None,
        };
        match counted {
            Some(tokens) => Ok(tokens.min(self.longest)),
            None => Ok(self.prepare(kind, row)?.prompt.length()),
        }
    }

    /// Returns the settings that determine the tokens of rows with this reach.
    pub(super) fn shape(&self, kind: DatasetKind, reach: [usize; 2]) -> String {
        let limit = |limit: usize, reach: usize| if reach > limit { limit.to_string() } else { String::new() };
        let prompt = limit(self.longest_prompt.unwrap_or(usize::MAX), reach[0]);
        let text = limit(self.longest, reach[1]);
        let frame = if self.framed { format!("{:?}", self.tokenizer.bos_and_eos_ids()) } else { String::new() };
        let shape = match kind {
            DatasetKind::Prompts => format!("prompts {prompt}"),
            DatasetKind::AnsweredPrompts => format!("answered prompts {prompt}"),
            DatasetKind::Pairs => format!("pairs {prompt} {text} {frame}"),
            DatasetKind::Completions(LearnedParts { includes_prompts: whole, turns }) => {
                format!("completions {text} {whole} {turns}")
            }
            DatasetKind::Labelled => format!("labelled {prompt} {text}"),
            // Longer texts are skipped, not truncated.
            DatasetKind::ValuedPairs => "valued pairs".to_owned(),
        };
        // If no setting forms prompts, nothing is added, as before such settings existed.
        match &self.form {
            Some(form) => format!("{shape} {}", form.settings()),
            None => shape,
        }
    }
}
