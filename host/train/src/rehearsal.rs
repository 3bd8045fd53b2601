//! A rehearsal shows what a run would do without training: its first prompts, and its rewards' scores of completions.

use super::collector::{CollectionContext, RunHome};
use super::dataset::Prompt;
use super::phase::Phase;
use super::plugins::{BatchScores, ScoringBatch, batch};
use super::trainer::Trainer;
use super::{Error, Result};
use crate::data::TurnEnd;
use crate::experience::RewardScoreColumn;
use crate::rollout::Rollout;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Number of prompts shown.
const PROMPTS: usize = 2;

/// Number of completions per prompt, and of tokens per completion.
const SHORT: (usize, usize) = (2, 48);

/// Usual names of answer columns.
const ANSWERS: [&str; 5] = ["answer", "solution", "completion", "response", "output"];

/// Result of a rehearsal: the run's first prompts, and its rewards' scores of completions.
pub struct Rehearsal {
    /// Number of rows in use.
    pub rows: usize,
    /// The first prompts.
    pub prompts: Vec<RehearsedPrompt>,
    /// Scores of the dataset's answers and of short completions.
    pub scores: Vec<RehearsedCompletion>,
    /// End of a turn in the chat template, if there is one.
    pub turn_end: Option<TurnEnd>,
    /// The tokens that end a completion.
    pub ends: Vec<String>,
}

/// A prompt as the model reads it.
pub struct RehearsedPrompt {
    /// Number of the prompt's row in the dataset.
    pub row: usize,
    /// Text of the prompt.
    pub text: String,
    /// Number of the prompt's tokens.
    pub tokens: usize,
    /// Numbers of tokens of the given answers.
    pub answers: Vec<usize>,
}

/// A completion with its scores.
pub struct RehearsedCompletion {
    /// Row of the prompt.
    pub row: usize,
    /// Name of the dataset's column that it comes from; none if the model generated it.
    pub column: Option<&'static str>,
    /// Text of the completion.
    pub text: String,
    /// Number of the completion's tokens.
    pub tokens: usize,
    /// Whether the completion was truncated earlier than in a run.
    pub is_cut: bool,
    /// Names of the rewards, with their scores.
    pub scores: Vec<(String, Option<f32>)>,
}

impl Trainer {
    /// Returns the first prompts, and scores their answers and short completions of them.
    ///
    /// # Errors
    /// If a reward fails, as in a run.
    pub fn rehearse(mut self) -> Result<Rehearsal> {
        let prompts = self.collector.data().prompts().first(PROMPTS)?;
        let shown = prompts.iter().map(|prompt| self.shown(prompt)).collect::<Result<_>>()?;
        let mut scores = Vec::new();
        if self.plan.batching.groups.is_some() {
            scores.extend(self.scores_of_answers(&prompts)?);
            match self.plan.rollout.is_played_elsewhere() {
                true => tracing::info!("no completions are tried: drivers elsewhere play the episodes, in the run itself"),
                false => scores.extend(self.scores_of_completions(prompts)?),
            }
        }
        let (turn_end, ends) = self.collector.ends()?;
        self.world.barrier("the end of a rehearsal")?;
        Ok(Rehearsal { rows: self.collector.data().prompts().len(), prompts: shown, scores, turn_end, ends })
    }

    fn shown(&self, prompt: &Prompt) -> Result<RehearsedPrompt> {
        let given = prompt.answers.as_ref();
        let of_answers = given.into_iter().flat_map(|given| [&given.chosen, &given.rejected]);
        let answers = of_answers.map(Vec::len).filter(|tokens| *tokens > 0).collect();
        // A text without a prompt counts as an answer.
        let whole = || given.map_or_else(Vec::new, |given| [&prompt.tokens[..], &given.chosen].concat());
        let text = if prompt.text.is_empty() { self.collector.written(&whole())? } else { prompt.text.clone() };
        Ok(RehearsedPrompt { row: prompt.row, text, tokens: prompt.tokens.len(), answers })
    }

    /// Scores the dataset's answers to these prompts as completions, if every prompt has one and no reward compares completions.
    fn scores_of_answers(&mut self, prompts: &[Arc<Prompt>]) -> Result<Vec<RehearsedCompletion>> {
        let text = |prompt: &Arc<Prompt>, name: &str| prompt.columns.get(name).and_then(Value::as_str).map(str::to_owned);
        let of_all = |name: &str| prompts.iter().map(|prompt| text(prompt, name)).collect::<Option<Vec<String>>>();
        let found = ANSWERS.into_iter().find_map(|name| Some((name, of_all(name)?)));
        let is_alone = self.settings.environment.is_empty() && self.settings.plugin.iter().all(|entry| entry.compare.is_none());
        let Some((name, texts)) = found.filter(|_| is_alone && !prompts.is_empty()) else {
            return Ok(Vec::new());
        };
        let rollout = |(prompt, text): (usize, &String)| {
            let tokens = self.collector.tokens(text)?;
            Ok(Rollout { prompt, tokens, finished: true, ..Rollout::default() })
        };
        let rollouts = texts.iter().enumerate().map(rollout).collect::<Result<Vec<Rollout>>>()?;
        let batch = batch(0, prompts, self.collector.data().columns(), &rollouts, &texts);
        let judged = ScoringBatch { batch, prompts: prompts.to_vec(), episodes: Vec::new() };
        let BatchScores { columns, for_evaluation, .. } = self.plugins.score(judged, Phase::Eval)?;
        let columns: Vec<RewardScoreColumn> = columns.into_iter().chain(for_evaluation).collect();
        let scored = |(at, text): (usize, String)| RehearsedCompletion {
            row: prompts[at].row,
            column: Some(name),
            text,
            tokens: rollouts[at].tokens.len(),
            is_cut: false,
            scores: at_row(&columns, at),
        };
        Ok(texts.into_iter().enumerate().map(scored).collect())
    }

    /// Scores short completions of these prompts.
    fn scores_of_completions(&mut self, prompts: Vec<Arc<Prompt>>) -> Result<Vec<RehearsedCompletion>> {
        let is_shortened = self.plan.rollout.max_completion_length > SHORT.1;
        let (model, folder) = (self.source.clone(), self.journal.path().to_owned());
        let home = RunHome { model, folder, first_step: 0, keeps_log: false };
        self.collector.shorten(SHORT, &home)?;
        let at = self.moment();
        let (learner, phase) = (&self.learner, Phase::Train);
        let mut with = CollectionContext { learner, plugins: &mut self.plugins, journal: &mut self.journal, at, phase };
        let _whole = learner.gather_policy()?;
        let (experience, _) = self.collector.roll_out_and_score(prompts, 0, &mut with)?;
        let scored = |at: usize| {
            let rollout = &experience.rollouts[at];
            RehearsedCompletion {
                row: experience.prompts[rollout.prompt].row,
                column: None,
                text: experience.texts[at].clone(),
                tokens: rollout.sampled(),
                is_cut: is_shortened && !rollout.finished,
                scores: at_row(&experience.rewards, at),
            }
        };
        Ok((0..experience.rollouts.len()).map(scored).collect())
    }
}

fn at_row(columns: &[RewardScoreColumn], at: usize) -> Vec<(String, Option<f32>)> {
    columns.iter().map(|column| (column.name.clone(), column.values.get(at).copied().flatten())).collect()
}

/// Checks that a folder can be created, by creating and deleting one next to it or, if its parent is missing, further up.
///
/// # Errors
/// If it can't be created.
pub(super) fn check_can_make(folder: &Path) -> Result<()> {
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let there = whole.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let made = if there.is_dir() { tempfile::tempdir_in(there).map(drop) } else { Err(ErrorKind::NotADirectory.into()) };
    // The error must not name the temporary folder.
    made.map_err(|source| Error::Write { path: folder.to_owned(), source: source.kind().into() })
}
