//! Opens the reward models of a run, and scores completions with them.

use super::scoring_batch::{RewardResults, ScoringBatch};
use crate::config::{PluginEntry, RewardErrorAction};
use crate::data::Tokenizer;
use crate::model::ComputeBackend;
use crate::name_resolution::model_of;
use crate::reward_model::{FrozenRewardModel, PromptedCompletion, ScoringText, SteppedText};
use crate::{Error, Result};
use std::ops::Range;
use std::path::Path;

/// A reward model, with the properties of the policy that it depends on.
pub(crate) struct ScoringModel {
    pub model: FrozenRewardModel,
    /// Whether the model reads the policy's tokens directly.
    shares_tokens: bool,
    /// Whether the policy has a chat template, so that episodes are conversations.
    of_chat: bool,
}

/// Opens reward models during a run.
#[derive(Clone)]
pub(crate) struct Opener {
    pub backend: ComputeBackend,
    /// Tokenizer of the policy.
    pub tokenizer: Tokenizer,
}

impl Opener {
    /// Opens a reward's model. Also returns a name of its folder that stays valid wherever the run resumes.
    pub(super) fn open(&self, entry: &PluginEntry, given: &str) -> Result<(ScoringModel, String)> {
        let (folder, path) = model_of(given)?;
        let mut asked = ScoringModel::open(entry, &folder, &self.backend)?;
        asked.set_policy_tokenizer(&self.tokenizer);
        Ok((asked, path))
    }
}

impl ScoringModel {
    /// Opens a reward's model as configured by its entry; the policy's tokenizer is set later.
    ///
    /// # Errors
    /// As [`FrozenRewardModel::open`].
    pub(crate) fn open(entry: &PluginEntry, folder: &Path, backend: &ComputeBackend) -> Result<Self> {
        Ok(Self { model: FrozenRewardModel::open(entry, folder, backend)?, shares_tokens: false, of_chat: false })
    }

    /// Sets the policy's tokenizer.
    pub(crate) fn set_policy_tokenizer(&mut self, policys: &Tokenizer) {
        self.shares_tokens = self.model.tokenizer().is_same_as(policys);
        self.of_chat = policys.has_chat();
    }

    /// Scores some rows of a generation. Errors name the model, which may be rolled back.
    pub(super) fn score(&self, judged: &ScoringBatch, rows: Range<usize>, on_error: RewardErrorAction) -> Result<RewardResults> {
        self.score_rows(judged, rows, on_error).map_err(|error| match error {
            Error::RewardModel { .. } => error,
            other => Error::RewardModel { name: self.model.name().to_owned(), detail: other.to_string() },
        })
    }

    fn score_rows(&self, judged: &ScoringBatch, rows: Range<usize>, on_error: RewardErrorAction) -> Result<RewardResults> {
        if self.model.judges_steps() {
            return self.score_steps(judged, rows, on_error);
        }
        let (mut texts, mut answers) = (Vec::with_capacity(rows.len()), RewardResults::default());
        let mut scored = Vec::with_capacity(rows.len());
        for row in rows.clone().filter(|row| !has_failed(judged, *row)) {
            let text = self.text(judged, row).and_then(|text| self.model.check(&text).map(|()| text));
            match text {
                Ok(text) => {
                    scored.push(row);
                    texts.push(text);
                }
                Err(error) => answers.note_failure(row, error, on_error)?,
            }
        }
        answers.values = vec![None; rows.len()];
        for (row, value) in scored.into_iter().zip(self.model.values(&texts)?) {
            answers.values[row - rows.start] = Some(value);
        }
        Ok(answers)
    }

    /// Computes the values of the steps of some rows; a row's score is the minimum. A row without steps has none.
    fn score_steps(&self, judged: &ScoringBatch, rows: Range<usize>, on_error: RewardErrorAction) -> Result<RewardResults> {
        let mut answers = RewardResults::default();
        let mut all = Vec::with_capacity(rows.len());
        let none = |row: usize| SteppedText { text: ScoringText { group: row, tokens: Vec::new() }, ends: Vec::new() };
        for row in rows {
            if has_failed(judged, row) {
                all.push(none(row));
                continue;
            }
            let steps = self.model.steps(&prompted_completion(judged, row));
            let steps = steps.map_err(Error::from).and_then(|steps| self.model.check(&steps.text).map(|()| steps));
            all.push(match steps {
                Ok(steps) => steps,
                Err(error) => {
                    answers.note_failure(row, error, on_error)?;
                    none(row)
                }
            });
        }
        answers.steps = self.model.step_values(&all)?;
        answers.values = answers.steps.iter().map(|steps| steps.iter().copied().reduce(f32::min)).collect();
        Ok(answers)
    }

    /// Returns a completion with its prompt in the model's tokens: the policy's own tokens, if the tokenizers are the same and the prompt
    /// is a text. A conversation, and a whole episode, is rendered with the model's own template.
    fn text(&self, judged: &ScoringBatch, row: usize) -> Result<ScoringText> {
        let ScoringBatch { batch, prompts, episodes } = judged;
        let group = batch.prompt_of[row] as usize;
        let (prompt, told) = (&prompts[group], episodes.get(row));
        let chat = if told.is_some() { self.of_chat || self.model.tokenizer().has_chat() } else { prompt.chat };
        let own = &batch.token_ids[batch.offsets[row] as usize..batch.offsets[row + 1] as usize];
        // Only text that the policy wrote has recorded tokens; references follow the same prompt.
        let has_tokens = !own.is_empty() || batch.completions[row].is_empty();
        if self.shares_tokens && !chat {
            let opening = told.map_or(&prompt.tokens[..], |told| &told.opening);
            let given = if has_tokens { Vec::new() } else { self.model.answer(&batch.completions[row], batch.finished[row])? };
            return Ok(ScoringText { group, tokens: [opening, own, &given].concat() });
        }
        if let Some(told) = told.filter(|_| chat) {
            let (messages, extras) = told.episode.conversation();
            return self.model.conversation(group, messages, &extras);
        }
        self.model.text(&prompted_completion(judged, row))
    }
}

/// Returns whether a row is a failed episode, which has no score and possibly no text.
fn has_failed(judged: &ScoringBatch, row: usize) -> bool {
    judged.episodes.get(row).is_some_and(|told| told.episode.failed.is_some())
}

/// Returns a completion with the prompt that it answers.
fn prompted_completion(ScoringBatch { batch, prompts, episodes }: &ScoringBatch, row: usize) -> PromptedCompletion<'_> {
    let (group, told) = (batch.prompt_of[row] as usize, episodes.get(row));
    let prompt = &prompts[group];
    PromptedCompletion {
        group,
        prompt: told.map_or(&prompt.text, |told| &told.episode.prompt),
        conversation: prompt.messages.as_deref().filter(|_| told.is_none()),
        completion: &batch.completions[row],
        ended: batch.finished[row],
    }
}
