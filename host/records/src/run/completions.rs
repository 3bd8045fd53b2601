//! The lines of completions.jsonl, as they are written and as each reader takes them.

use super::PluginVersion;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Memory that a value takes beside its text, roughly.
const VALUE: usize = 96;

/// A completion, as a run writes it.
#[derive(Serialize)]
pub struct CompletionLine<'a> {
    /// The step that learns from it first.
    pub step: u64,
    /// Number of updates of the policy that wrote it, if those are not as many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<u64>,
    /// The row of the dataset.
    pub row: usize,
    /// Text of the prompt.
    pub prompt: &'a str,
    /// Its text.
    pub completion: &'a str,
    /// Tokens of the prompt.
    pub prompt_ids: &'a [u32],
    /// Its tokens.
    pub completion_ids: &'a [u32],
    /// Whether it ended on its own rather than at a limit.
    pub finished: bool,
    /// Its scores, by the names of the rewards.
    pub rewards: Map<String, Value>,
    /// What rewards logged beside it (`log_extra`), by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// Its advantage, or that of its first token.
    pub advantage: Option<f32>,
    /// Versions of the plugins in use, by their names.
    pub plugins: &'a BTreeMap<String, PluginVersion>,
    /// Why a reward failed on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
    /// What is known of each of its tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_token: Option<TokenValues>,
    /// What it has besides if it is an episode.
    #[serde(flatten)]
    pub episode: Option<EpisodeLine<'a>>,
}

/// What is known of each token of a completion, for readers who look at single tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TokenValues {
    /// The text that it adds; empty if it ends within a character.
    pub text: Vec<String>,
    /// Its log-probability when it was sampled; 0 in replies.
    pub logp: Vec<f64>,
    /// Its advantage, if a completion's tokens have different ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advantage: Vec<f64>,
    /// Its probability under the policy that is trained, as computed before training, divided by that with which it was sampled.
    /// Empty if the two were not compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ratio: Vec<f64>,
}

/// An episode, as a run writes it.
#[derive(Serialize)]
pub struct EpisodeLine<'a> {
    /// The whole conversation.
    pub messages: Value,
    /// The reward of each turn.
    pub turn_rewards: &'a [Option<f32>],
    /// The advantage of each turn's first token.
    pub turn_advantages: Vec<Option<f32>>,
    /// Ranges of the tokens that are replies.
    pub replies: &'a [(usize, usize)],
    /// Where its tokens continue an earlier place, as pairs: the index of their first token, and that place among the tokens of prompt and
    /// completion.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<(usize, usize)>,
    /// Its turns, without their texts.
    pub turns: &'a [TurnRow],
    /// Its random seed.
    pub seed: u64,
    /// The tools that it offered.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub tools: Value,
    /// The end of what an agent's program wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_output: Option<&'a str>,
    /// Why it failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<&'a str>,
}

/// A turn of an episode as it was passed to the environment, without its text.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct TurnRow {
    /// Whether it ended on its own rather than at a limit.
    pub finished: bool,
    /// Name and arguments of each call.
    pub calls: Vec<(String, String)>,
}

/// A completion, as it is scored again. What a run always writes must be there.
#[derive(Deserialize)]
pub struct RecordedCompletion {
    /// The step that learns from it first.
    pub step: u64,
    /// The row of the dataset.
    pub row: usize,
    /// Text of the prompt.
    pub prompt: String,
    /// Its text.
    pub completion: String,
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_ids: Vec<u32>,
    /// Its tokens.
    pub completion_ids: Vec<u32>,
    /// Whether it ended on its own rather than at a limit.
    pub finished: bool,
    /// Its scores.
    pub rewards: BTreeMap<String, Option<f32>>,
    /// Versions of the plugins that it was made and scored with, by their names.
    #[serde(default)]
    pub plugins: BTreeMap<String, PluginVersion>,
    /// The rest of it, if it is an episode.
    #[serde(flatten)]
    pub episode: Option<RecordedEpisode>,
}

/// An episode, as it is played again.
#[derive(Deserialize)]
pub struct RecordedEpisode {
    /// The whole conversation.
    pub messages: Value,
    /// The reward of each turn.
    pub turn_rewards: Value,
    /// The tools that it offered.
    #[serde(default)]
    pub tools: Value,
    /// Its turns, without their texts.
    pub turns: Vec<TurnRow>,
    /// Its random seed.
    pub seed: u64,
    /// Why it failed, if it did.
    #[serde(default)]
    pub failed: Option<String>,
}

impl RecordedCompletion {
    /// Reads a line.
    ///
    /// # Errors
    /// Names the key whose value is of another kind.
    pub fn read(line: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(line).map_err(|error| {
            let misfit = || {
                let line: Map<String, Value> = serde_json::from_slice(line).ok()?;
                let of_texts = || misfit::<String>(&line, "prompt").or_else(|| misfit::<String>(&line, "completion"));
                let of_ids = || misfit::<Vec<u32>>(&line, "prompt_ids").or_else(|| misfit::<Vec<u32>>(&line, "completion_ids"));
                let of_scores = || misfit::<BTreeMap<String, Option<f32>>>(&line, "rewards");
                let of_plugins = || misfit::<BTreeMap<String, String>>(&line, "plugins");
                let of_numbers = || misfit::<u64>(&line, "step").or_else(|| misfit::<usize>(&line, "row"));
                of_numbers()
                    .or_else(of_texts)
                    .or_else(of_ids)
                    .or_else(|| misfit::<bool>(&line, "finished"))
                    .or_else(of_scores)
                    .or_else(of_plugins)
            };
            // The parser counts lines too, but there is only one here.
            let said = error.to_string();
            let said = || said.rsplit_once(" at line ").map_or_else(|| said.clone(), |(said, _)| said.to_owned());
            misfit().unwrap_or_else(said)
        })
    }

    /// Returns the memory that it takes, roughly, read from so many bytes.
    pub fn memory(&self, bytes: usize) -> usize {
        let values = self.episode.as_ref().map_or(0, RecordedEpisode::values) + self.rewards.len() + self.plugins.len();
        2 * bytes + VALUE * (1 + values)
    }
}

/// Says why a key's value is not of a type, if it is not.
fn misfit<T: DeserializeOwned>(line: &Map<String, Value>, key: &str) -> Option<String> {
    T::deserialize(line.get(key)?).err().map(|error| format!("{key}: {error}"))
}

impl RecordedEpisode {
    /// Returns how many values it has.
    fn values(&self) -> usize {
        let calls: usize = self.turns.iter().map(|turn| 1 + turn.calls.len()).sum();
        [&self.messages, &self.turn_rewards, &self.tools].into_iter().map(count).sum::<usize>() + calls
    }
}

/// Returns how many values a value is, with those within it.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(entries) => entries.values().map(count).sum(),
        _ => 0,
    }
}

/// A completion, as far as a diagnosis reads it: what the rewards and the algorithm made of it.
#[derive(Deserialize)]
pub struct ScoredCompletion {
    /// The step that learns from it first.
    pub step: u64,
    /// The row of the dataset.
    pub row: usize,
    /// Its scores, by the names of the rewards.
    pub rewards: BTreeMap<String, Option<f32>>,
    /// Its advantage, or that of its first token.
    #[serde(default)]
    pub advantage: Option<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_run_writes_is_read_by_all() {
        let turns = [TurnRow { finished: true, calls: vec![("add".into(), "{}".into())] }];
        let episode = EpisodeLine {
            messages: json!([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]),
            turn_rewards: &[Some(0.5)],
            turn_advantages: vec![Some(-1.0)],
            replies: &[(2, 3)],
            branches: Vec::new(),
            turns: &turns,
            seed: u64::MAX,
            tools: Value::Null,
            agent_output: None,
            failed: Some("it stopped"),
        };
        let plugins = BTreeMap::from([("r".to_owned(), PluginVersion::parse("abc+de"))]);
        let mut row = CompletionLine {
            step: 3,
            policy_version: None,
            row: 7,
            prompt: "2+2?",
            completion: "4",
            prompt_ids: &[1, 2],
            completion_ids: &[5, 6, 7],
            finished: false,
            rewards: Map::from_iter([("r".to_owned(), json!(0.1f32))]),
            extra: Map::new(),
            advantage: Some(0.25),
            plugins: &plugins,
            error: None,
            per_token: Some(TokenValues { text: vec!["4".into()], logp: vec![-0.5], ..TokenValues::default() }),
            episode: Some(episode),
        };
        let line = serde_json::to_string(&row).unwrap();
        assert!(line.contains("\"per_token\":{\"text\":[\"4\"],\"logp\":[-0.5]}"), "{line}");
        let recorded: RecordedCompletion = serde_json::from_str(&line).unwrap();
        assert_eq!((recorded.step, recorded.row, recorded.completion_ids.as_slice()), (3, 7, &[5, 6, 7][..]));
        assert_eq!((recorded.rewards["r"], recorded.finished), (Some(0.1), false));
        assert_eq!((&recorded.plugins, plugins["r"].hash()), (&plugins, "abc"));
        let played = recorded.episode.unwrap();
        assert_eq!((played.seed, played.failed.as_deref(), played.turns[0].calls.len()), (u64::MAX, Some("it stopped"), 1));
        let scored: ScoredCompletion = serde_json::from_str(&line).unwrap();
        assert_eq!((scored.step, scored.row, scored.rewards["r"], scored.advantage), (3, 7, Some(0.1), Some(0.25)));
        // The page reads the line as it is.
        let shown: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&shown["messages"][1]["content"], shown["turns"].as_array().unwrap().len()), (&json!("4"), 1));
        assert_eq!((&shown["completion_ids"], &shown["finished"]), (&json!([5, 6, 7]), &json!(false)));
        assert_eq!((&shown["turn_rewards"], &shown["advantage"]), (&json!([0.5]), &json!(0.25)));
        let wrong = |from: &str, to: &str| RecordedCompletion::read(line.replace(from, to).as_bytes()).err().unwrap();
        assert_eq!(wrong("\"step\":3", "\"step\":\"x\""), "step: invalid type: string \"x\", expected u64");
        assert_eq!(wrong("[5,6,7]", "[5,-6,7]"), "completion_ids: invalid value: integer `-6`, expected u32");
        assert_eq!(wrong("\"row\":7,", ""), "missing field `row`");
        assert_eq!(wrong("\"step\"", "step"), "key must be a string");
        row.episode = None;
        let line = serde_json::to_string(&row).unwrap();
        assert!(serde_json::from_str::<RecordedCompletion>(&line).unwrap().episode.is_none());
        assert!(serde_json::from_str::<Value>(&line).unwrap().get("messages").is_none());
    }
}
