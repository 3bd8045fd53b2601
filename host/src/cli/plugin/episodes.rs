//! Random episodes for testing environments.

use super::check_report::CheckReport;
use crate::data::{PromptRow, TextOrChat};
use crate::plugin::{Call, EnvironmentPlugin, Message, RehearsedEpisode, Result, Start, Tool};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// Maximum number of turns in an episode.
const TURNS: usize = 12;

/// Texts that a model may write.
const TEXTS: [&str; 9] = [
    "",
    "50",
    "I guess 7.",
    "The answer is 12.5",
    "yes",
    "<tool_call>{\"name\": \"x\", \"arguments\": </tool_call>",
    "höflich, 你好 🙂 – wirklich\u{0} \u{202e}",
    "no no no no no no no no no no no no no no no no",
    "-3",
];

/// Returns the starts of `count` episodes, from a dataset's rows if they are given.
pub(super) fn starts(given: &[PromptRow], count: usize) -> Vec<Start> {
    let plain = |role: &str, content: &str| Message {
        role: role.to_owned(),
        content: content.to_owned(),
        name: None,
        tool_call_id: None,
    };
    let start = |i: usize| {
        let row = given.get(i % given.len().max(1));
        let prompt = match row.map(|row| &row.prompt) {
            None => vec![plain("user", "Begin.")],
            Some(TextOrChat::Text(text)) => vec![plain("user", text)],
            Some(TextOrChat::Chat(messages)) => messages.iter().map(|m| plain(&m.role, &m.content)).collect(),
        };
        let columns = row.into_iter().flat_map(|row| &row.columns).map(|(name, value)| (name.clone(), value.to_string()));
        Start { episode: i as u64, seed: 1000 + i as u64, prompt, columns: columns.collect() }
    };
    (0..count).map(start).collect()
}

/// Returns a value that roughly fits a JSON Schema.
fn value_of(schema: &Value, random: &mut ChaCha8Rng) -> Value {
    if let Some(one) = schema["enum"].as_array().and_then(|all| all.first()) {
        return one.clone();
    }
    match schema["type"].as_str() {
        Some("integer" | "number") => json!(random.random_range(-9..100)),
        Some("boolean") => json!(random.random_range(0..2) == 0),
        Some("array") => json!([]),
        Some("object") => {
            let properties = schema["properties"].as_object().into_iter().flatten();
            Value::Object(properties.map(|(name, inner)| (name.clone(), value_of(inner, random))).collect())
        }
        _ => json!(["2 + 3", "word", "", "Paris"][random.random_range(0..4)]),
    }
}

/// Returns a random turn. Every other one calls a tool, sometimes with invalid arguments.
fn turn(place: usize, number: usize, tools: &[Tool]) -> Option<(String, Vec<Call>, bool)> {
    if number >= TURNS {
        return None;
    }
    let mut random = ChaCha8Rng::seed_from_u64((place * TURNS + number) as u64);
    let text = TEXTS[random.random_range(0..TEXTS.len())].to_owned();
    let Some(tool) = tools.get(random.random_range(0..tools.len().max(1))).filter(|_| random.random_range(0..2) == 0) else {
        return Some((text, Vec::new(), true));
    };
    let schema = serde_json::from_str(&tool.parameters).unwrap_or_default();
    let arguments = match random.random_range(0..6) {
        0 => "{\"broken".to_owned(),
        _ => value_of(&schema, &mut random).to_string(),
    };
    Some((text, vec![Call { id: format!("call_{number}"), name: tool.name.clone(), arguments }], true))
}

/// Plays random episodes.
pub(super) fn play(plugin: &EnvironmentPlugin, starts: &[Start]) -> Result<Vec<RehearsedEpisode>> {
    plugin.rehearse(starts, turn)
}

/// Plays random episodes on two instances, in one batch and alone, and compares them.
pub(super) fn check(report: &mut CheckReport, plugin: &EnvironmentPlugin, other: &EnvironmentPlugin, starts: &[Start]) {
    let Some(first) = report.call("episodes", play(plugin, starts)) else { return };
    let turns: usize = first.iter().map(|played| played.replies.len()).sum();
    let over = first.iter().filter(|played| played.replies.last().is_some_and(|reply| reply.done)).count();
    let rewarded = first.iter().filter(|played| played.replies.iter().any(|reply| reply.reward.is_some())).count();
    let count = starts.len();
    let detail = format!("{turns} random turns; {over} of {count} episodes ended within {TURNS} turns, {rewarded} have a reward");
    report.line(true, "episodes", &detail);
    let Some(again) = report.call("determinism", play(other, starts)) else { return };
    let detail = match first.iter().zip(&again).position(|(a, b)| a != b) {
        None => "a second instance answers the same".to_owned(),
        Some(i) => {
            format!("a second instance answers differently in episode {i}; random numbers must come from the start's seed")
        }
    };
    report.line(first == again, "determinism", &detail);
    for (i, start) in starts.iter().enumerate() {
        let alone = plugin.rehearse(std::slice::from_ref(start), |_, number, tools| turn(i, number, tools));
        let Some(alone) = report.call("independence", alone) else { return };
        if alone.first() != first.get(i) {
            let detail = format!(
                "episode {i} goes differently alone than together with others; answers must not depend on other episodes"
            );
            return report.line(false, "independence", &detail);
        }
    }
    report.line(true, "independence", "each episode goes the same alone as together with others");
}
