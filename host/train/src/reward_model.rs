//! Reward models for scoring: read-only models that give each text one value.

use super::dataset::{self, valued_at};
use super::{Error, Result};
use crate::config::{self, PluginEntry, RunConfig, printable};
use crate::data::{
    self, ChatMessage, CompletionRow, Dataset, PromptForm, ScorableRow, TemplateVariables, TextOrChat, Tokenizer, UnusableRows,
};
use crate::model::{self, ComputeBackend, FrozenModel, ModelFolder, ValueHeadInit, WeightStorage};
use crate::ops::quantized::QuantizationScheme;
use crate::ops::{Capability, Forest};
use crate::run::CheckpointFiles;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

/// Maximum number of tokens per pass, unless a single text has more.
const MOST_TOKENS: usize = 8192;

/// Maximum length of a separator in an error, in bytes.
const LONGEST_SEPARATOR: usize = 64;

/// Default separator of steps, as in TRL.
const SEPARATOR: &str = "\n";

/// Row numbers of a dataset, with the scores of each row's texts.
pub type ScoredRows = Vec<(usize, Vec<f32>)>;

/// A text to score. Consecutive texts of one `group` should share a prefix, which is computed once.
pub(super) struct ScoringText {
    pub group: usize,
    pub tokens: Vec<u32>,
}

/// A completion with its prompt.
pub(super) struct PromptedCompletion<'a> {
    /// Number of the prompt; completions of one prompt are consecutive.
    pub group: usize,
    /// Text of the prompt.
    pub prompt: &'a str,
    /// The conversation that it answers, if any.
    pub conversation: Option<&'a (Vec<ChatMessage>, TemplateVariables)>,
    /// Text of the completion.
    pub completion: &'a str,
    /// Whether the completion ended by itself.
    pub ended: bool,
}

/// A read-only model that gives each text one value.
pub struct FrozenRewardModel {
    name: String,
    model: FrozenModel,
    tokenizer: Tokenizer,
    /// Hash of the model's files.
    hash: String,
    /// The padding token: a text's value is read at its last token other than this.
    pad: Option<u32>,
    /// For a process reward model: the text that ends a step.
    separator: Option<String>,
}

/// A text, with the positions of the tokens that end its steps.
pub(super) struct SteppedText {
    pub text: ScoringText,
    pub ends: Vec<usize>,
}

impl FrozenRewardModel {
    /// Opens the model in a folder as configured by a reward's entry: a sequence classification model of transformers with one label, or a
    /// token classification model with two. It is not trained, so its weights stay in their stored precision, unless they are to be
    /// quantized.
    ///
    /// # Errors
    /// If it is not such a model, a file can't be read, or the entry requests something unsupported.
    pub fn open(entry: &PluginEntry, folder: &Path, backend: &ComputeBackend) -> Result<Self> {
        let schemes = [(entry.load_in_8bit, QuantizationScheme::Int8), (entry.load_in_4bit, QuantizationScheme::Nf4)];
        let scheme = schemes.into_iter().find(|(asked, _)| *asked).map(|(_, scheme)| scheme);
        let unable = |detail: &str| Err(Error::RewardModel { name: entry.name().to_owned(), detail: detail.to_owned() });
        if let Some(why) = scheme.and_then(|_| Capability::QuantizedWeights.refusal(backend.device())) {
            return unable(&format!("{why}; leave load_in_8bit and load_in_4bit out"));
        }
        let held = if backend.supports(Capability::StoredWeights) {
            WeightStorage { scheme, ..WeightStorage::AS_STORED }
        } else {
            WeightStorage::default()
        };
        let folder = ModelFolder::open(folder)?.with_weight_storage(held);
        let tokenizer = Tokenizer::open(folder.tokenizer())?;
        let (decoder, pad, separator) = if folder.judges_steps()? {
            if entry.compare.is_some() {
                return unable("it values the steps of a completion and can't compare it with another; leave compare out");
            }
            let separator = entry.step_separator.as_deref().unwrap_or(SEPARATOR);
            (folder.step_model()?, None, Some(separator.to_owned()))
        } else if entry.step_separator.is_some() {
            return unable(
                "it scores whole texts; step_separator is for a model that scores each token (ForTokenClassification)",
            );
        } else if folder.value_head()?.is_some() {
            // An adapter's base is not a reward model: it may name another padding token than the adapter was trained with, or none.
            let pad = if folder.lora().is_some() { tokenizer.pad_id() } else { folder.pad_token()? };
            (folder.value_model_over(folder.trunk()?, ValueHeadInit::Zero)?, pad, None)
        } else {
            let detail = "has no score.weight: it is not a reward model. `rlhost reward` trains one";
            return Err(Error::unusable(folder.path(), detail));
        };
        let (model, hash) = (FrozenModel::new(decoder.on_backend(backend)?), hash_of(&folder)?);
        Ok(Self { name: entry.name().to_owned(), model, tokenizer, hash, pad, separator })
    }

    /// Returns the model's name in metrics and errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the hash of the model's files.
    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the model's tokenizer.
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns whether the model scores the steps of texts instead of whole texts.
    pub fn judges_steps(&self) -> bool {
        self.separator.is_some()
    }

    /// Returns how a configuration builds or extends the prompts to score.
    fn form(&self, config: &RunConfig) -> Option<PromptForm> {
        PromptForm::from_config(config, self.tokenizer.has_chat())
    }

    /// Scores the rows of a dataset. Completions, texts and conversations have one score; pairs have one for the chosen and one for the
    /// rejected answer. Returns each row's number with its scores, and a warning that names skipped rows.
    ///
    /// # Errors
    /// If the dataset can't be read.
    pub fn score_dataset(&self, dataset: &Dataset, config: &RunConfig) -> Result<(ScoredRows, Option<String>)> {
        let mut refused = UnusableRows::default();
        let rows = data::read_scorable_rows(dataset, self.form(config).as_ref(), &mut refused)?;
        let read = rows.into_iter().map(|row| {
            let (number, texts) = dataset::scored_texts(row, &self.tokenizer, self.model.architecture().max_positions);
            (number, texts.map(|texts| (number, texts)))
        });
        let rows: Vec<(usize, Vec<Vec<u32>>)> = refused.collect_usable(read)?;
        let texts: Vec<ScoringText> = rows
            .iter()
            .flat_map(|(row, all)| all.iter().map(|tokens| ScoringText { group: *row, tokens: tokens.clone() }))
            .collect();
        let mut values = self.values(&texts)?.into_iter();
        let scored: Vec<_> = rows.iter().map(|(row, texts)| (*row, values.by_ref().take(texts.len()).collect())).collect();
        let warning = refused.warning(scored.len())?;
        Ok((scored, warning))
    }

    /// Returns a prompt with a completion in the model's tokens, as in its training: the conversation in the model's own template, or the
    /// prompt's text followed by the completion and, if it ended, the end token.
    ///
    /// # Errors
    /// If the model has no chat template for a conversation, or a text can't be tokenized.
    pub(super) fn text(&self, said: &PromptedCompletion<'_>) -> Result<ScoringText> {
        let tokens = match said.conversation {
            Some((messages, extras)) => {
                let answer = ChatMessage { role: "assistant".into(), content: said.completion.into(), ..ChatMessage::default() };
                let (prompt, answer) = (TextOrChat::Chat(messages.clone()), TextOrChat::Chat(vec![answer]));
                dataset::tokenize_whole(Some(&prompt), &answer, said.ended, extras, &self.tokenizer)?
            }
            None => {
                let [prompt, completion] = [said.prompt, said.completion].map(|text| TextOrChat::Text(text.to_owned()));
                dataset::tokenize_whole(Some(&prompt), &completion, said.ended, &TemplateVariables::default(), &self.tokenizer)?
            }
        };
        Ok(ScoringText { group: said.group, tokens })
    }

    /// Returns an answer without its prompt in the model's tokens, with the end token if it `ended`.
    ///
    /// # Errors
    /// If it can't be tokenized.
    pub(super) fn answer(&self, text: &str, ended: bool) -> Result<Vec<u32>> {
        let end = self.tokenizer.bos_and_eos_ids().1.filter(|_| ended);
        Ok(self.tokenizer.encode(text, false)?.into_iter().chain(end).collect())
    }

    /// Returns a conversation in the model's tokens, rendered with its own template.
    ///
    /// # Errors
    /// If the model has no chat template, or its template refuses the conversation.
    pub(super) fn conversation(
        &self,
        group: usize,
        messages: Vec<ChatMessage>,
        extras: &TemplateVariables,
    ) -> Result<ScoringText> {
        let tokens = dataset::tokenize_whole(None, &TextOrChat::Chat(messages), true, extras, &self.tokenizer)?;
        Ok(ScoringText { group, tokens })
    }

    /// Returns a prompt with the steps of a completion in the model's tokens, in TRL's format: each step, including the last, is tokenized
    /// separately and followed by the separator. Blank steps are skipped.
    pub(super) fn steps(&self, said: &PromptedCompletion<'_>) -> data::Result<SteppedText> {
        let separator = self.separator.as_deref().unwrap_or(SEPARATOR);
        let mut tokens = match said.conversation {
            Some((messages, extras)) => self.tokenizer.encode(&self.tokenizer.render_chat(messages, true, extras)?, false)?,
            None => self.tokenizer.encode(said.prompt, true)?,
        };
        let end = self.tokenizer.encode(separator, false)?;
        let mut ends = Vec::new();
        for step in said.completion.split(separator).filter(|step| !step.trim().is_empty()) {
            tokens.extend(self.tokenizer.encode(step, false)?);
            tokens.extend(&end);
            let last = tokens.len().checked_sub(1).filter(|_| !end.is_empty());
            let missing = || data::Error::Untokenized { text: printable(separator, LONGEST_SEPARATOR) };
            ends.push(last.ok_or_else(missing)?);
        }
        Ok(SteppedText { text: ScoringText { group: said.group, tokens }, ends })
    }

    /// Scores the steps of a dataset's completions. Returns each row's number with the values, and a warning that names skipped rows.
    ///
    /// # Errors
    /// If the dataset can't be read.
    pub fn score_steps(&self, dataset: &Dataset, config: &RunConfig) -> Result<(ScoredRows, Option<String>)> {
        let mut refused = UnusableRows::default();
        let longest = self.model.architecture().max_positions;
        let rows =
            data::read_scorable_rows(dataset, self.form(config).as_ref(), &mut refused)?.into_iter().map(|row| match row {
                ScorableRow::One(row) => {
                    let fit = |steps: SteppedText| {
                        dataset::check_fits(&row.place, steps.text.tokens.len(), longest).map(|()| (row.row, steps))
                    };
                    (row.row, self.steps_of(&row).map_err(|e| row.place.failed(e)).and_then(fit))
                }
                ScorableRow::Pair(pair) => {
                    let detail = "this model scores the steps of completions; pairs need a model that scores whole texts";
                    (pair.row, Err(pair.place.row_error(detail)))
                }
            });
        let (numbers, steps): (Vec<usize>, Vec<SteppedText>) = refused.collect_usable(rows)?.into_iter().unzip();
        let scored: Vec<_> = numbers.into_iter().zip(self.step_values(&steps)?).collect();
        let warning = refused.warning(scored.len())?;
        Ok((scored, warning))
    }

    fn steps_of(&self, row: &CompletionRow) -> data::Result<SteppedText> {
        let said = |prompt, asked, completion| PromptedCompletion {
            group: row.row,
            prompt,
            conversation: asked,
            completion,
            ended: true,
        };
        match (&row.prompt, &row.completion) {
            (Some(TextOrChat::Text(prompt)), TextOrChat::Text(completion)) => self.steps(&said(prompt, None, completion)),
            (_, TextOrChat::Text(completion)) => self.steps(&said("", None, completion)),
            (prompt, TextOrChat::Chat(answer)) => {
                let mut messages = if let Some(TextOrChat::Chat(messages)) = prompt { messages.clone() } else { Vec::new() };
                messages.extend(answer.iter().cloned());
                let answer = messages.pop().map(|last| last.content).unwrap_or_default();
                self.steps(&said("", Some(&(messages, row.extras.clone())), &answer))
            }
        }
    }

    /// Computes the value of each step: the probability that it is correct.
    ///
    /// # Errors
    /// As [`FrozenRewardModel::values`].
    pub(super) fn step_values(&self, all: &[SteppedText]) -> Result<Vec<Vec<f32>>> {
        all.iter().filter(|steps| !steps.ends.is_empty()).try_for_each(|steps| self.check(&steps.text))?;
        let (texts, ends): (Vec<&ScoringText>, Vec<&[usize]>) =
            all.iter().filter(|steps| !steps.ends.is_empty()).map(|steps| (&steps.text, &steps.ends[..])).unzip();
        let mut values = Vec::new();
        for part in batches(&texts) {
            let (forest, rows) = packed_at(&texts[part.clone()], &ends[part]);
            values.extend(self.model.values(&forest, &rows)?.unwrap_or_default());
        }
        let mut values = values.into_iter().map(|difference| 1.0 / (1.0 + (-difference).exp()));
        Ok(all.iter().map(|steps| values.by_ref().take(steps.ends.len()).collect()).collect())
    }

    /// Computes the values of texts.
    ///
    /// # Errors
    /// If one is empty, longer than the model's context, or has tokens outside the model's vocabulary.
    pub(super) fn values(&self, texts: &[ScoringText]) -> Result<Vec<f32>> {
        texts.iter().try_for_each(|text| self.check(text))?;
        let mut values = Vec::with_capacity(texts.len());
        let texts: Vec<&ScoringText> = texts.iter().collect();
        for part in batches(&texts) {
            let (forest, rows) = packed(&texts[part], self.pad);
            values.extend(self.model.values(&forest, &rows)?.unwrap_or_default());
        }
        Ok(values)
    }

    /// Checks that a text can be scored.
    ///
    /// # Errors
    /// As [`FrozenRewardModel::values`].
    pub(super) fn check(&self, text: &ScoringText) -> Result<()> {
        let a = self.model.architecture();
        let wrong = |detail: String| Err(Error::RewardModel { name: self.name.clone(), detail });
        if text.tokens.is_empty() {
            return wrong("a text has no tokens".into());
        }
        if text.tokens.len() > a.max_positions {
            let (length, most) = (text.tokens.len(), a.max_positions);
            return wrong(format!("a text of {length} tokens exceeds the model's context of {most}"));
        }
        match text.tokens.iter().find(|token| **token as usize >= a.vocab_size) {
            Some(token) => wrong(format!("its tokenizer gives token {token}, and the model has {}", a.vocab_size)),
            None => Ok(()),
        }
    }
}

/// Computes the SHA-256 of the files of a model, in the order of their names.
fn hash_of(folder: &ModelFolder) -> Result<String> {
    let read = |path: &Path| std::fs::read_dir(path).map_err(|source| model::Error::Io { path: path.to_owned(), source });
    let mut files = Vec::new();
    for from in BTreeSet::from([folder.base(), folder.path(), folder.tokenizer()]) {
        let paths = read(from)?.filter_map(std::result::Result::ok).map(|entry| entry.path());
        files.extend(paths.filter(|path| is_of_model(path)));
    }
    files.sort_by(|a, b| (a.file_name(), a).cmp(&(b.file_name(), b)));
    let mut hash = Sha256::new();
    for path in &files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let fail = |source| model::Error::Io { path: path.clone(), source };
        let mut file = config::files::open(path).map_err(fail)?;
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update(file.metadata().map_err(fail)?.len().to_le_bytes());
        std::io::copy(&mut file, &mut HashWriter(&mut hash)).map_err(fail)?;
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Returns whether a file may belong to a model, its adapter or its tokenizer.
fn is_of_model(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let read = ["config.json", "adapter_config.json", "model.safetensors.index.json"].contains(&name);
    let of_tokenizer = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"].contains(&name);
    read || of_tokenizer || name.ends_with(".safetensors") && !CheckpointFiles::NOT_OF_MODEL.contains(&name)
}

struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Splits texts into batches that pass through the model together.
fn batches(texts: &[&ScoringText]) -> Vec<Range<usize>> {
    let (mut parts, mut first, mut tokens) = (Vec::new(), 0, 0);
    for (at, text) in texts.iter().enumerate() {
        if at > first && tokens + text.tokens.len() > MOST_TOKENS {
            parts.push(first..at);
            (first, tokens) = (at, 0);
        }
        tokens += text.tokens.len();
    }
    if first < texts.len() {
        parts.push(first..texts.len());
    }
    parts
}

/// Packs texts, and returns the packed positions at which their values are read.
fn packed(texts: &[&ScoringText], pad: Option<u32>) -> (Forest, Vec<usize>) {
    let at: Vec<[usize; 1]> = texts.iter().map(|text| [valued_at(&text.tokens, &[], pad)]).collect();
    packed_at(texts, &at.iter().map(<[usize; 1]>::as_slice).collect::<Vec<_>>())
}

/// Packs texts, and returns the packed positions of these places in each.
fn packed_at(texts: &[&ScoringText], places: &[&[usize]]) -> (Forest, Vec<usize>) {
    let (mut forest, mut rows) = (Forest::new(), Vec::with_capacity(texts.len()));
    let mut places = places.iter();
    for group in texts.chunk_by(|a, b| a.group == b.group) {
        let common = common_beginning(group);
        let beginning = (common > 0).then(|| forest.push(&group[0].tokens[..common], None));
        for (ScoringText { tokens, .. }, at) in group.iter().zip(&mut places) {
            let own = forest.push(&tokens[common..], beginning);
            let start = |segment: usize| forest.segments()[segment].start;
            rows.extend(at.iter().map(|&at| match beginning {
                Some(beginning) if at < common => start(beginning) + at,
                _ => start(own) + at - common,
            }));
        }
    }
    (forest, rows)
}

/// Returns the length of the texts' common prefix in tokens; every text continues after it.
fn common_beginning(texts: &[&ScoringText]) -> usize {
    let [first, others @ ..] = texts else { return 0 };
    let same = |other: &&ScoringText| first.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    let shortest = texts.iter().map(|text| text.tokens.len()).min().unwrap_or(0);
    others.iter().map(same).min().map_or(0, |common| common.min(shortest.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(all: &[(usize, &[u32])]) -> Vec<ScoringText> {
        all.iter().map(|(group, tokens)| ScoringText { group: *group, tokens: tokens.to_vec() }).collect()
    }

    #[test]
    fn a_common_beginning_is_packed_once_and_each_text_goes_on_after_it() {
        let all = texts(&[(0, &[1, 2, 3, 4]), (0, &[1, 2, 5]), (1, &[1, 2]), (2, &[7, 7]), (2, &[7, 7])]);
        let (forest, rows) = packed(&all.iter().collect::<Vec<_>>(), None);
        assert_eq!(forest.tokens(), [1, 2, 3, 4, 5, 1, 2, 7, 7, 7]);
        assert_eq!(forest.positions(), [0, 1, 2, 3, 2, 0, 1, 0, 1, 1]);
        assert_eq!(rows, [3, 4, 6, 8, 9]);
    }

    #[test]
    fn a_value_is_that_of_the_last_token_that_is_not_padding() {
        let all = texts(&[(0, &[1, 2, 9, 4, 9, 9]), (0, &[1, 2, 9, 9]), (1, &[9, 9]), (2, &[9, 5])]);
        let (forest, rows) = packed(&all.iter().collect::<Vec<_>>(), Some(9));
        assert_eq!(forest.tokens(), [1, 2, 9, 4, 9, 9, 9, 9, 9, 9, 5]);
        assert_eq!(rows, [3, 1, 7, 10]);
    }

    #[test]
    fn steps_have_places_in_what_is_common_and_beyond() {
        let all = texts(&[(0, &[1, 2, 3, 4]), (0, &[1, 2, 5])]);
        let (forest, rows) = packed_at(&all.iter().collect::<Vec<_>>(), &[&[1, 3], &[1, 2]]);
        assert_eq!((forest.tokens(), rows), (&[1, 2, 3, 4, 5][..], vec![1, 3, 1, 4]));
    }

    #[test]
    fn texts_go_together_up_to_a_number_of_tokens() {
        let long = vec![0; MOST_TOKENS + 1];
        let half = vec![0; MOST_TOKENS / 2];
        let all = texts(&[(0, &half), (0, &half), (1, &[1]), (2, &long), (3, &[1])]);
        assert_eq!(batches(&all.iter().collect::<Vec<_>>()), [0..2, 2..3, 3..4, 4..5]);
        assert!(batches(&[]).is_empty());
    }
}
