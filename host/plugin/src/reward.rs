//! Reward plugins: take a batch of completions and return a score, or none, for each.

use super::deadline::Deadline;
use super::engine::PluginEngine;
use super::error::LONGEST_TEXT;
use super::instance::{OUT_OF_TIME, Plugin};
use super::loaded_plugin::{LoadedPlugin, PluginCall};
use super::metrics::MetricOrigin;
use super::plugin_instance::CallResult;
use super::sandbox::Sandbox;
use super::script::ExtraColumn;
use super::world::Role;
use super::{Error, Metric, PluginSource, Result};
use super::{columns, contract::reward};
use crate::config::{PluginLimits, RewardErrorAction, printable};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

/// A dataset column: its name and one JSON value per prompt.
pub use super::contract::reward::Column;

/// Completions as reward plugins see them; see `wit/rlhost-plugin.wit`.
pub use super::contract::reward::Batch as RewardBatch;

/// Name of the column with conversational prompts as messages. Scripts see it, since functions written for TRL get such prompts; other
/// plugins get the prompts' text.
const CONVERSATION: &str = "prompt";

/// Returns the column of prompts as messages, if any prompt is a conversation. Each prompt is given by its messages, if it has some, and
/// its text.
pub fn conversations<'a, Messages: Serialize + 'a>(
    prompts: impl Iterator<Item = (Option<&'a Messages>, &'a str)> + Clone,
) -> Option<Column> {
    prompts.clone().find(|(messages, _)| messages.is_some())?;
    let written = |(messages, text): (Option<&Messages>, &str)| messages.map_or_else(|| json!(text), |messages| json!(messages));
    Some(Column { name: CONVERSATION.to_owned(), values: prompts.map(|prompt| written(prompt).to_string()).collect() })
}

/// Minimum number of completions for which another instance is worth its cost.
const ROWS_AN_INSTANCE: usize = 16;

/// Maximum magnitude of a score. With the largest possible weight, sums, differences and squares over a group stay finite as f32.
pub const LARGEST_SCORE: f32 = 1e12;

/// Multiplier of the row number in seeds. The SDK adds it once per row, so a row's seed does not depend on how a batch was split.
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Values that a script logged for a completion: JSON, by name.
pub type CompletionExtra = BTreeMap<String, String>;

/// Maximum size of the values that a call may log for completions, in bytes.
const MOST_EXTRA: usize = 16 << 20;

/// One score or none per completion, the plugin's own metrics, and values logged for the completions.
#[derive(Clone, Debug, Default)]
pub struct RewardScores {
    /// One entry per row.
    pub rewards: Vec<Option<f32>>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
    /// One entry per row; empty if nothing was logged for any row.
    pub extra: Vec<CompletionExtra>,
}

impl RewardScores {
    /// Appends the scores of further rows.
    fn append(&mut self, part: Self) {
        let before = self.rewards.len();
        self.rewards.extend(part.rewards);
        self.metrics.extend(part.metrics);
        append_extra(&mut self.extra, before, part.extra, self.rewards.len() - before);
    }
}

/// Appends the values logged for `more` completions to those of the `before` earlier ones. Either list may be empty, if nothing was logged.
pub fn append_extra(extra: &mut Vec<CompletionExtra>, before: usize, part: Vec<CompletionExtra>, more: usize) {
    if !(extra.is_empty() && part.is_empty()) {
        extra.resize(before, CompletionExtra::new());
        extra.extend(part);
        extra.resize(before + more, CompletionExtra::new());
    }
}

/// The result of scoring a batch.
#[derive(Debug)]
pub struct ScoringOutcome {
    /// The scores; none for rows that failed.
    pub scores: RewardScores,
    /// Why the first attempt failed, if it did.
    pub first_error: Option<Error>,
    /// The rows that failed on their own, each with its error.
    pub failed: Vec<(usize, Error)>,
}

/// A loaded reward.
pub struct RewardPlugin {
    plugin: Plugin,
    /// Rows that failed individually when the last batch failed.
    failed: Vec<usize>,
}

impl Deref for RewardPlugin {
    type Target = Plugin;

    fn deref(&self) -> &Plugin {
        &self.plugin
    }
}

impl DerefMut for RewardPlugin {
    fn deref_mut(&mut self) -> &mut Plugin {
        &mut self.plugin
    }
}

/// Returns whether a number is a valid score.
pub(super) fn is_score(number: f32) -> bool {
    (-LARGEST_SCORE..=LARGEST_SCORE).contains(&number)
}

/// A checked answer, or what is wrong with it.
type ScoreCheck = std::result::Result<RewardScores, String>;

/// Rejects an answer of the wrong length, or with numbers that are not finite or too large to add up. `rows` are the sent rows, numbered as
/// in the batch.
fn checked(loaded: &LoadedPlugin, (given, extra): RewardAnswer, rows: Range<usize>) -> ScoreCheck {
    let count = rows.len();
    if given.rewards.len() != rows.len() {
        return Err(format!("returned {} rewards for {} completions", given.rewards.len(), rows.len()));
    }
    let bad = given.rewards.iter().zip(rows).find_map(|(reward, row)| reward.filter(|r| !is_score(*r)).map(|r| (row, r)));
    if let Some((row, bad)) = bad {
        return Err(format!(
            "returned {bad:e} for row {row}; a reward must be a number of at most {LARGEST_SCORE:e} either way, or none to abstain"
        ));
    }
    let metrics = loaded.checked_metrics(MetricOrigin::Scores, given.metrics)?;
    Ok(RewardScores { rewards: given.rewards, metrics, extra: extra_of_rows(extra, count)? })
}

/// Returns the values logged for each of `rows` rows.
fn extra_of_rows(columns: Vec<ExtraColumn>, rows: usize) -> std::result::Result<Vec<CompletionExtra>, String> {
    let bytes: usize = columns.iter().flat_map(|column| &column.values).map(String::len).sum();
    if bytes > MOST_EXTRA {
        return Err(format!("logged {} MiB beside completions; the limit is {} MiB", bytes >> 20, MOST_EXTRA >> 20));
    }
    let mut extra = vec![CompletionExtra::new(); if columns.is_empty() { 0 } else { rows }];
    for ExtraColumn { name, values } in columns {
        if values.len() != rows {
            return Err(format!("logged {} values of {name:?} for {rows} completions", values.len()));
        }
        let name = printable(&name, LONGEST_TEXT);
        extra.iter_mut().zip(values).for_each(|(extra, value)| drop(extra.insert(name.clone(), value)));
    }
    Ok(extra)
}

/// Scores as a plugin returns them, and the values a script logged for completions.
type RewardAnswer = (reward::Scores, Vec<ExtraColumn>);

fn ask(loaded: &LoadedPlugin, batch: &RewardBatch, store: &mut Store<Sandbox>, linked: &Linked) -> CallResult<RewardAnswer> {
    Ok(match loaded.exports.score(store, linked, batch)? {
        Ok(scores) => Ok((scores, loaded.extra(store, linked)?)),
        Err(error) => Err(error),
    })
}

impl RewardPlugin {
    /// Loads and configures a plugin; `seed` is the run's.
    pub fn load(
        engine: &PluginEngine,
        source: &PluginSource,
        config: &Map<String, Value>,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<Self> {
        Ok(Self { plugin: Plugin::load(engine, source, Role::Reward, config, limits, seed)?, failed: Vec::new() })
    }

    /// Returns the rows of the last batch that failed individually, if that batch failed.
    pub fn failed_rows(&self) -> &[usize] {
        &self.failed
    }

    /// Returns whether a batch may be split. A plugin that sends requests gets it whole: its requests run in parallel anyway, and equal
    /// requests share one answer.
    pub fn is_divisible(&self) -> bool {
        self.info().stateless && self.http_client().is_none()
    }

    /// Scores a batch. Sends only the columns that the plugin requests. Returns one finite score, or none, for each row. The rows of a
    /// stateless plugin are split among threads and scored in parallel.
    pub fn score(&mut self, batch: &RewardBatch) -> Result<RewardScores> {
        let rows = 0..batch.prompt_of.len();
        let until = self.plugin.deadline_of_rows(rows.len());
        Ok(self.score_rows(batch, rows, until)?.0)
    }

    /// Scores a batch. For a stateless plugin, scores its first rows again and compares the answers.
    pub fn score_on_trial(&mut self, batch: &RewardBatch) -> Result<RewardScores> {
        let rows = 0..batch.prompt_of.len();
        let until = self.plugin.deadline_of_rows(rows.len());
        let (scores, first) = self.score_rows(batch, rows, until)?;
        self.compare_again(batch, first, &scores)?;
        Ok(scores)
    }

    /// Scores rows; `until` is the deadline for rows that are separate calls. Also returns the range of the first rows scored in one call.
    fn score_rows(&mut self, batch: &RewardBatch, rows: Range<usize>, until: Deadline) -> Result<(RewardScores, Range<usize>)> {
        if rows.is_empty() {
            return Ok((RewardScores::default(), rows));
        }
        let apart = self.info().hints.isolated_rows && self.is_divisible();
        let parts = match self.is_divisible() {
            _ if apart => rows.len(),
            true => (rows.len() / ROWS_AN_INSTANCE).clamp(1, self.plugin.most_side_by_side()),
            false => 1,
        };
        let first = rows.start..rows.start + rows.len() / parts;
        let scores = if apart { self.score_apart(batch, rows, until)? } else { self.score_parts(batch, rows, parts)? };
        Ok((scores, first))
    }

    /// Repeats the call that scored the first rows, if it is due, and compares the scores.
    fn compare_again(&mut self, batch: &RewardBatch, rows: Range<usize>, scores: &RewardScores) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let call = PluginCall::with_step("score", batch.step);
        let sent = self.columns(batch, rows.clone());
        let loaded = self.plugin.shared();
        let again = self.plugin.answer_again(call, true, |store, linked| ask(&loaded, &sent, store, linked));
        let Some((again, _)) = again else { return Ok(()) };
        let shown = |score: Option<f32>| score.map_or_else(|| "none".to_owned(), |score| score.to_string());
        let different =
            scores.rewards.iter().zip(&again.rewards).position(|(one, other)| one.map(f32::to_bits) != other.map(f32::to_bits));
        if let Some(at) = different {
            let [before, now] = [scores.rewards[at], again.rewards[at]].map(shown);
            return Err(self.plugin.not_stateless(call, &format!("row {} scores {before} and {now}", rows.start + at)));
        }
        let same = |(one, other): (&Metric, &Metric)| one.name == other.name && one.value.to_bits() == other.value.to_bits();
        if !scores.metrics.iter().zip(&again.metrics).all(same) {
            return Err(self.plugin.not_stateless(call, "its metrics differ"));
        }
        Ok(())
    }

    /// Scores rows in this many calls.
    fn score_parts(&mut self, batch: &RewardBatch, rows: Range<usize>, parts: usize) -> Result<RewardScores> {
        let (call, loaded) = (PluginCall::with_step("score", batch.step), self.plugin.shared());
        if parts == 1 {
            let sent = self.columns(batch, rows.clone());
            let given = self.plugin.call(call, |store, linked| ask(&loaded, &sent, store, linked))?;
            return self.checked(call, given, rows);
        }
        let cut = |i: usize| rows.start + rows.len() * i / parts;
        let ranges: Vec<Range<usize>> = (0..parts).map(|i| cut(i)..cut(i + 1)).collect();
        let sent: Vec<RewardBatch> = ranges.iter().map(|range| self.columns(batch, range.clone())).collect();
        let given = self.plugin.call_side_by_side(parts, call, |i, store, linked| {
            Ok(ask(&loaded, &sent[i], store, linked)?.map(|given| checked(&loaded, given, ranges[i].clone())))
        })?;
        self.joined(call, given)
    }

    /// Scores rows with a separate call for each.
    fn score_apart(&mut self, batch: &RewardBatch, rows: Range<usize>, until: Deadline) -> Result<RewardScores> {
        let call = PluginCall::with_step("score", batch.step);
        let sent: Vec<RewardBatch> = rows.clone().map(|row| self.columns(batch, row..row + 1)).collect();
        let loaded = self.plugin.shared();
        let given = self.plugin.call_apart(sent.len(), until, call, |i, store, linked| {
            let row = rows.start + i;
            Ok(ask(&loaded, &sent[i], store, linked)?.map(|given| checked(&loaded, given, row..row + 1)))
        })?;
        self.joined(call, given)
    }

    /// Scores some rows of a batch. If that fails, retries on new instances, then scores row by row, so that one bad row does not cost the
    /// others.
    ///
    /// # Errors
    /// If the retry fails and `on_error` is set to end the run; the error names the row. Also if a plugin that declares itself stateless is
    /// not.
    pub fn score_with_retries(
        &mut self,
        batch: &RewardBatch,
        rows: Range<usize>,
        on_error: RewardErrorAction,
    ) -> Result<ScoringOutcome> {
        let state = self.plugin.snapshot()?;
        // For rows that are separate calls, the retry has the time that the first attempt left over. Scoring row by row has the full time
        // again.
        let until = self.plugin.deadline_of_rows(rows.len());
        let first = match self.score_rows(batch, rows.clone(), until) {
            Ok((scores, first)) => {
                self.compare_again(batch, first, &scores)?;
                return Ok(ScoringOutcome { scores, first_error: None, failed: Vec::new() });
            }
            Err(error) => error,
        };
        self.plugin.reset_to(state.clone());
        let second = match self.score_rows(batch, rows.clone(), until) {
            Ok((scores, _)) => return Ok(ScoringOutcome { scores, first_error: Some(first), failed: Vec::new() }),
            Err(error) => error,
        };
        self.plugin.reset_to(state);
        let (scores, failed) = self.row_by_row(batch, rows);
        self.failed = failed.iter().map(|(row, _)| *row).collect();
        if on_error == RewardErrorAction::Unscorable {
            return Ok(ScoringOutcome { scores, first_error: Some(first), failed });
        }
        let alone = match failed.first() {
            Some((row, _)) => format!("completion {row} of the generation is the first that fails on its own"),
            None => "no row fails on its own".to_owned(),
        };
        Err(match second {
            Error::Call { name, function, step, detail } => {
                Error::Call { name, function, step, detail: format!("{detail} ({alone})") }
            }
            other => other,
        })
    }

    /// Scores row by row, all within the time of one call, or of several if each row is a separate call.
    fn row_by_row(&mut self, batch: &RewardBatch, rows: Range<usize>) -> (RewardScores, Vec<(usize, Error)>) {
        let deadline = match self.info().hints.isolated_rows {
            true => self.plugin.deadline_of_rows(rows.len()),
            false => self.plugin.deadline_of_several(),
        };
        let (mut scores, mut failed) = (RewardScores::default(), Vec::new());
        let loaded = self.plugin.shared();
        for row in rows {
            let call = PluginCall::with_step("score", batch.step);
            let sent = self.columns(batch, row..row + 1);
            let outcome = if self.plugin.is_over(deadline) {
                Err(self.error(call, OUT_OF_TIME.into()))
            } else {
                let own = deadline.min(self.plugin.deadline());
                let given = self.plugin.call_until(own, call, |store, linked| ask(&loaded, &sent, store, linked));
                given.and_then(|given| self.checked(call, given, row..row + 1))
            };
            match outcome {
                Ok(given) => scores.append(given),
                Err(error) => {
                    scores.append(RewardScores { rewards: vec![None], ..RewardScores::default() });
                    failed.push((row, error));
                }
            }
        }
        (scores, failed)
    }

    fn error(&self, call: PluginCall, detail: String) -> Error {
        Error::Call { name: self.name().to_owned(), function: call.function, step: call.step, detail }
    }

    fn checked(&self, call: PluginCall, given: RewardAnswer, rows: Range<usize>) -> Result<RewardScores> {
        checked(&self.plugin.shared(), given, rows).map_err(|detail| self.error(call, detail))
    }

    /// Joins the checked answers of several calls, in their order.
    fn joined(&self, call: PluginCall, given: Vec<ScoreCheck>) -> Result<RewardScores> {
        let mut scores = RewardScores::default();
        for part in given {
            scores.append(part.map_err(|detail| self.error(call, detail))?);
        }
        Ok(scores)
    }

    /// Returns whether the plugin gets a column of the dataset.
    fn sees(&self, column: &Column) -> bool {
        self.info().needs.has(columns::DATASET_COLUMNS) && (column.name != CONVERSATION || self.is_script())
    }

    /// Returns the batch to send for these rows: their prompts, and the columns that the plugin requests.
    fn columns(&self, batch: &RewardBatch, rows: Range<usize>) -> RewardBatch {
        let needs = &self.info().needs;
        let texts = |wanted: bool, texts: &[String]| if wanted { texts.to_vec() } else { vec![String::new(); texts.len()] };
        let all = rows.len() == batch.prompt_of.len();
        // Rows are ordered by prompt.
        let named = &batch.prompt_of[rows.clone()];
        let (first, last) = if all {
            (0, batch.prompts.len())
        } else {
            let (least, most) = (named.iter().min(), named.iter().max());
            (least.map_or(0, |&p| p as usize), most.map_or(0, |&p| p as usize + 1))
        };
        let column = |c: &Column| Column { name: c.name.clone(), values: c.values.get(first..last).unwrap_or_default().to_vec() };
        let range = batch.offsets[rows.start]..batch.offsets[rows.end];
        let (offsets, token_ids) = if needs.has(columns::TOKEN_IDS) {
            let offsets = batch.offsets[rows.start..=rows.end].iter().map(|o| o - range.start).collect();
            (offsets, batch.token_ids[range.start as usize..range.end as usize].to_vec())
        } else {
            (vec![0; rows.len() + 1], Vec::new())
        };
        reward::Batch {
            step: batch.step,
            seed: (self.plugin.seed().wrapping_add(rows.start as u64)).wrapping_mul(ODD).wrapping_add(batch.step),
            prompts: texts(needs.has(columns::PROMPT_TEXT), &batch.prompts[first..last]),
            columns: batch.columns.iter().filter(|column| self.sees(column)).map(column).collect(),
            prompt_of: named.iter().map(|p| p - first as u32).collect(),
            completions: texts(needs.has(columns::COMPLETION_TEXT), &batch.completions[rows.clone()]),
            finished: batch.finished[rows].to_vec(),
            offsets,
            token_ids,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, values: &[&str]) -> ExtraColumn {
        ExtraColumn { name: name.to_owned(), values: values.iter().map(|value| (*value).to_owned()).collect() }
    }

    #[test]
    fn what_is_logged_beside_rows_stays_with_them_where_parts_log_different_things() {
        let part = |columns, rewards: &[f32]| RewardScores {
            rewards: rewards.iter().map(|reward| Some(*reward)).collect(),
            metrics: Vec::new(),
            extra: extra_of_rows(columns, rewards.len()).unwrap(),
        };
        let mut all = RewardScores::default();
        all.append(part(vec![], &[1.0]));
        assert!(all.extra.is_empty());
        all.append(part(vec![column("a", &["1", "2"]), column("b", &["\"x\"", "null"])], &[2.0, 3.0]));
        all.append(part(vec![], &[4.0]));
        all.append(part(vec![column("b", &["5"])], &[5.0]));
        let shown: Vec<String> = all.extra.iter().map(|extra| serde_json::to_string(extra).unwrap()).collect();
        assert_eq!(shown, ["{}", r#"{"a":"1","b":"\"x\""}"#, r#"{"a":"2","b":"null"}"#, "{}", r#"{"b":"5"}"#]);
    }

    #[test]
    fn columns_of_another_length_or_of_too_many_bytes_are_refused() {
        assert_eq!(extra_of_rows(vec![column("a", &["1"])], 2).unwrap_err(), "logged 1 values of \"a\" for 2 completions");
        let long = "x".repeat(MOST_EXTRA);
        assert!(extra_of_rows(vec![column("a", &[&long, "1"])], 2).unwrap_err().contains("the limit is 16 MiB"));
    }
}
