//! Completions as lines of completions.jsonl and failed.jsonl.

use super::Versions;
use crate::data::Extras;
use crate::episode::Episode;
use crate::experience::Experience;
use crate::run::{CompletionLine, EpisodeLine};
use serde_json::{Value, json};

/// Returns a completion of this step's generation as completions.jsonl has it; `error` is why a reward failed on it.
pub(super) fn line_of<'a>(
    e: &'a Experience,
    row: usize,
    step: u64,
    plugins: &'a Versions,
    error: Option<&'a str>,
) -> CompletionLine<'a> {
    let rollout = &e.rollouts[row];
    let prompt = &e.prompts[rollout.prompt];
    CompletionLine {
        step,
        policy_version: Some(rollout.policy_version).filter(|version| *version != step),
        row: prompt.row,
        prompt: e.episodes.get(row).map_or(&prompt.text, |episode| &episode.prompt),
        completion: &e.texts[row],
        prompt_ids: e.prompt_of(row),
        completion_ids: &rollout.tokens,
        finished: rollout.finished,
        rewards: e.rewards.iter().map(|r| (r.name.clone(), json!(r.values[row]))).collect(),
        extra: e.extra.get(row).map(|extra| extra.iter().map(of_extra).collect()).unwrap_or_default(),
        advantage: e.advantage(row, 0),
        plugins,
        error,
        episode: e.episodes.get(row).map(|episode| of_episode(e, row, episode)),
    }
}

/// Returns a value that a reward logged beside a completion. What is no JSON is text.
fn of_extra((name, value): (&String, &String)) -> (String, Value) {
    (name.clone(), serde_json::from_str(value).unwrap_or_else(|_| json!(value)))
}

/// Returns what a line has of an episode besides a completion's keys.
fn of_episode<'a>(e: &'a Experience, row: usize, episode: &'a Episode) -> EpisodeLine<'a> {
    let rollout = &e.rollouts[row];
    // Those of the turns' first tokens.
    let begins = std::iter::once(0).chain(rollout.replies.iter().map(|(_, end)| *end));
    let turn_advantages = begins.map(|at| e.advantage(row, at)).collect();
    EpisodeLine {
        messages: serde_json::from_str(&episode.messages).unwrap_or_default(),
        turn_rewards: &episode.rewards,
        turn_advantages,
        replies: &rollout.replies,
        turns: &episode.turns,
        seed: episode.seed,
        tools: serde_json::from_str(&episode.extras).map_or(Value::Null, |Extras { tools, .. }| tools),
        agent_output: episode.output.as_deref(),
        failed: episode.failed.as_deref(),
    }
}
