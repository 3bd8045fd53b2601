//! The lines of completions.jsonl, as written and as each reader parses them.

use super::PluginVersion;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Approximate memory of a value excluding its text, in bytes.
const VALUE: usize = 96;

/// A completion, as a run writes it.
#[derive(Serialize)]
pub struct CompletionLine<'a> {
    /// First step that trains on the completion.
    pub step: u64,
    /// Number of updates of the policy that generated the completion, if it differs from the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<u64>,
    /// Row of the dataset.
    pub row: usize,
    /// Text of the prompt.
    pub prompt: &'a str,
    /// Text of the completion.
    pub completion: &'a str,
    /// Tokens of the prompt.
    pub prompt_ids: &'a [u32],
    /// Tokens of the completion.
    pub completion_ids: &'a [u32],
    /// Whether the completion ended on its own rather than at a limit.
    pub finished: bool,
    /// Scores by reward name.
    pub rewards: Map<String, Value>,
    /// Values that rewards logged for the completion (`log_extra`), by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// Advantage of the completion, or of its first token.
    pub advantage: Option<f32>,
    /// Versions of the plugins in use, by name.
    pub plugins: &'a BTreeMap<String, PluginVersion>,
    /// Why a reward failed on the completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
    /// Values of each token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_token: Option<TokenValues>,
    /// Additional values of an episode.
    #[serde(flatten)]
    pub episode: Option<EpisodeLine<'a>>,
}

/// Values of each token of a completion, for inspecting single tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TokenValues {
    /// Text that the token adds; empty if it ends within a character.
    pub text: Vec<String>,
    /// Log-probability of the token when it was sampled; 0 in replies.
    pub logp: Vec<f64>,
    /// Advantage of the token, if a completion's tokens have different ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advantage: Vec<f64>,
    /// Probability of the token under the trained policy, as computed before training, divided by the probability with which it was
    /// sampled. Empty if the two were not compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ratio: Vec<f64>,
}

/// An episode, as a run writes it.
#[derive(Serialize)]
pub struct EpisodeLine<'a> {
    /// Full conversation.
    pub messages: Value,
    /// Reward of each turn.
    pub turn_rewards: &'a [Option<f32>],
    /// Advantage of each turn's first token.
    pub turn_advantages: Vec<Option<f32>>,
    /// Token ranges of the replies.
    pub replies: &'a [(usize, usize)],
    /// Branches of the token sequence, as pairs: the index of a branch's first token, and the earlier position that it continues, among the
    /// tokens of prompt and completion.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<(usize, usize)>,
    /// Turns of the episode, without their texts.
    pub turns: &'a [TurnRow],
    /// Random seed of the episode.
    pub seed: u64,
    /// Tools that the environment offered.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub tools: Value,
    /// End of the output of an agent's program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_output: Option<&'a str>,
    /// Why the episode failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<&'a str>,
}

/// A turn of an episode as it was passed to the environment, without its text.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct TurnRow {
    /// Whether the turn ended on its own rather than at a limit.
    pub finished: bool,
    /// Name and arguments of each call.
    pub calls: Vec<(String, String)>,
}

/// A completion, as read for scoring it again. Fields that a run always writes are required.
#[derive(Deserialize)]
pub struct RecordedCompletion {
    /// First step that trains on the completion.
    pub step: u64,
    /// Row of the dataset.
    pub row: usize,
    /// Text of the prompt.
    pub prompt: String,
    /// Text of the completion.
    pub completion: String,
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_ids: Vec<u32>,
    /// Tokens of the completion.
    pub completion_ids: Vec<u32>,
    /// Whether the completion ended on its own rather than at a limit.
    pub finished: bool,
    /// Scores by reward name.
    pub rewards: BTreeMap<String, Option<f32>>,
    /// Versions of the plugins that produced and scored the completion, by name.
    #[serde(default)]
    pub plugins: BTreeMap<String, PluginVersion>,
    /// Additional values of an episode.
    #[serde(flatten)]
    pub episode: Option<RecordedEpisode>,
}

/// An episode, as read for replaying it.
#[derive(Deserialize)]
pub struct RecordedEpisode {
    /// Full conversation.
    pub messages: Value,
    /// Reward of each turn.
    pub turn_rewards: Value,
    /// Tools that the environment offered.
    #[serde(default)]
    pub tools: Value,
    /// Turns of the episode, without their texts.
    pub turns: Vec<TurnRow>,
    /// Random seed of the episode.
    pub seed: u64,
    /// Why the episode failed, if it did.
    #[serde(default)]
    pub failed: Option<String>,
}

impl RecordedCompletion {
    /// Reads a line.
    ///
    /// # Errors
    /// Names the key whose value has the wrong type.
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
            // The parser adds a line number, but there is only one line.
            let said = error.to_string();
            let said = || said.rsplit_once(" at line ").map_or_else(|| said.clone(), |(said, _)| said.to_owned());
            misfit().unwrap_or_else(said)
        })
    }

    /// Returns the approximate memory of the completion, read from a line of `bytes`.
    pub fn memory(&self, bytes: usize) -> usize {
        let values = self.episode.as_ref().map_or(0, RecordedEpisode::values) + self.rewards.len() + self.plugins.len();
        2 * bytes + VALUE * (1 + values)
    }
}

/// Describes why a key's value does not have a type, if it does not.
fn misfit<T: DeserializeOwned>(line: &Map<String, Value>, key: &str) -> Option<String> {
    T::deserialize(line.get(key)?).err().map(|error| format!("{key}: {error}"))
}

impl RecordedEpisode {
    /// Returns the number of JSON values of the episode.
    fn values(&self) -> usize {
        let calls: usize = self.turns.iter().map(|turn| 1 + turn.calls.len()).sum();
        [&self.messages, &self.turn_rewards, &self.tools].into_iter().map(count).sum::<usize>() + calls
    }
}

/// Returns the number of values in a value, including itself.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(entries) => entries.values().map(count).sum(),
        _ => 0,
    }
}

/// A completion, as read by a diagnosis: its scores and its advantage.
#[derive(Deserialize)]
pub struct ScoredCompletion {
    /// First step that trains on the completion.
    pub step: u64,
    /// Row of the dataset.
    pub row: usize,
    /// Scores by reward name.
    pub rewards: BTreeMap<String, Option<f32>>,
    /// Advantage of the completion, or of its first token.
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
        // The page reads the line without a parser of the host.
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
