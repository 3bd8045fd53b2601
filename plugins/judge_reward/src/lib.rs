//! Asks a language model how good a completion is, through any server with OpenAI's chat completions API.
//!
//! The score is a number that the judge writes, a field of JSON output that a schema enforces, the mean of answers weighted by
//! the probabilities of their tokens, or the outcome of a comparison with a reference, asked in both orders. It ranges from 0 to
//! 1, or as the judge gave it with `normalize = false`. A completion whose verdict can't be parsed has no score.

mod judge;
mod verdict;

use judge::{Judge, score_batch};
use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::serde_json::{Map, Value};
use std::collections::BTreeMap;

/// How the score is read from the judge's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JudgeScoring {
    /// The number in the last [[...]] of its answer, or else its last number.
    Number,
    /// The number in the field `score` of JSON output, which a schema enforces.
    Json,
    /// The mean of the `answers`, weighted by the probabilities of the first token.
    Logprobs,
    /// 1 if the completion is better than the reference, 0 if it is worse, 0.5 for a tie; the mean of both orders.
    Pairwise,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JudgeRewardSettings {
    /// The server's address, as in http://localhost:8000/v1; the path of chat completions is added.
    pub url: String,
    /// Name of the model on the server.
    pub model: String,
    /// Name of the secret that the server needs as a key; it must be granted.
    pub secret: Option<String>,
    /// How the score is read.
    pub scoring: JudgeScoring,
    /// What to judge; replaces {rubric} in the template.
    pub rubric: String,
    /// The question, with {rubric}, {prompt}, {completion}, {reference}, {min} and {max}; by default, the scoring's own.
    pub template: Option<String>,
    /// The system message.
    pub system: Option<String>,
    /// Lowest score that the judge may give.
    pub min: f64,
    /// Highest score that the judge may give; by default, 9 for logprobs, whose answers are one token each, and 10 otherwise.
    pub max: Option<f64>,
    /// Whether to scale scores to the range from 0 to 1.
    pub normalize: bool,
    /// Dataset column with the reference answer, for {reference} and for comparisons.
    pub reference: Option<String>,
    /// For logprobs: the score of each answer, as in {"yes": 1, "no": 0}; by default, the integers from min to max.
    pub answers: BTreeMap<String, f64>,
    /// Maximum length of the judge's answer, in tokens; by default, 1 for logprobs and 512 otherwise.
    pub max_tokens: Option<u32>,
    /// Sampling temperature of the judge.
    pub temperature: f64,
    /// More fields of the request, as in {"seed": 1}.
    pub extra: Map<String, Value>,
}

impl JudgeRewardSettings {
    /// Returns the highest score.
    pub fn max_score(&self) -> f64 {
        self.max.unwrap_or(if self.scoring == JudgeScoring::Logprobs { 9.0 } else { 10.0 })
    }
}

impl Default for JudgeRewardSettings {
    fn default() -> Self {
        Self {
            url: "http://localhost:8000/v1".into(),
            model: "default".into(),
            secret: None,
            scoring: JudgeScoring::Number,
            rubric:
                "How well does the answer do what the request asks for? Judge whether it is correct, helpful and to the point."
                    .into(),
            template: None,
            system: None,
            min: 1.0,
            max: None,
            normalize: true,
            reference: None,
            answers: BTreeMap::new(),
            max_tokens: None,
            temperature: 0.0,
            extra: Map::new(),
        }
    }
}

asking_reward! {
    config: JudgeRewardSettings,
    prepared: Judge = Judge::new,
    needs: PROMPT_TEXT | COMPLETION_TEXT | DATASET_COLUMNS,
    |judge, samples| score_batch(judge, samples)
}

#[cfg(test)]
mod tests;
