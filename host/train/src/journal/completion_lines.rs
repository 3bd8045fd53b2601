//! Formats completions as lines of completions.jsonl and failed.jsonl.

use super::PluginVersions;
use crate::Result;
use crate::data::{TemplateVariables, Tokenizer};
use crate::episode::EpisodeOutcome;
use crate::experience::Experience;
use crate::plugin::columns::{OLD_LOGP, SAMPLING_LOGP};
use crate::run::{CompletionLine, EpisodeLine, TokenValues};
use serde_json::{Value, json};

/// Returns a completion of this step's generation as a line of completions.jsonl.
pub(super) fn line_of<'a>(e: &'a Experience, row: usize, step: u64, plugins: &'a PluginVersions) -> CompletionLine<'a> {
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
        error: None,
        per_token: None,
        episode: e.episodes.get(row).map(|episode| of_episode(e, row, episode)),
    }
}

/// Returns the values of each token of a completion.
///
/// # Errors
/// If the tokens can't be decoded.
pub(super) fn token_values(e: &Experience, row: usize, tokenizer: &Tokenizer) -> Result<TokenValues> {
    let (rollout, tokens) = (&e.rollouts[row], e.tokens(&(row..row + 1)));
    let advantages: Vec<f32> = (0..rollout.tokens.len()).map_while(|token| e.advantage(row, token)).collect();
    let differ = advantages.iter().any(|advantage| *advantage != advantages[0]);
    let ratio = |(old, sampled): (&f32, &f32)| short((f64::from(*old) - f64::from(*sampled)).exp());
    let compared = e.columns.values(OLD_LOGP).zip(e.columns.values(SAMPLING_LOGP));
    Ok(TokenValues {
        text: tokenizer.texts_of(&rollout.tokens)?,
        logp: rollout.logp.iter().map(|logp| short(f64::from(*logp))).collect(),
        advantage: advantages.iter().filter(|_| differ).map(|advantage| short(f64::from(*advantage))).collect(),
        ratio: compared
            .map_or_else(Vec::new, |(old, sampled)| old[tokens.clone()].iter().zip(&sampled[tokens]).map(ratio).collect()),
    })
}

/// Rounds to the digits worth reading.
fn short(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Returns a value that a reward logged for a completion. Invalid JSON becomes text.
fn of_extra((name, value): (&String, &String)) -> (String, Value) {
    (name.clone(), serde_json::from_str(value).unwrap_or_else(|_| json!(value)))
}

/// Returns the keys of a line that only episodes have.
fn of_episode<'a>(e: &'a Experience, row: usize, episode: &'a EpisodeOutcome) -> EpisodeLine<'a> {
    let rollout = &e.rollouts[row];
    // Values of the turns' first tokens.
    let begins = std::iter::once(0).chain(rollout.replies.iter().map(|(_, end)| *end));
    let turn_advantages = begins.map(|at| e.advantage(row, at)).collect();
    EpisodeLine {
        messages: serde_json::from_str(&episode.messages).unwrap_or_default(),
        turn_rewards: &episode.rewards,
        turn_advantages,
        replies: &rollout.replies,
        branches: rollout.branches.iter().map(|branch| (branch.start, branch.after)).collect(),
        turns: &episode.turns,
        seed: episode.seed,
        tools: serde_json::from_str(&episode.extras).map_or(Value::Null, |TemplateVariables { tools, .. }| tools),
        agent_output: episode.output.as_deref(),
        failed: episode.failed.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::columns::ADVANTAGE;
    use crate::plugin::{Column, Unit};
    use rlhost_models::rollout::Rollout;
    use std::path::Path;

    #[test]
    fn each_token_has_its_text_and_what_is_known_of_it() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/builtin-model/model");
        let tokenizer = Tokenizer::open(&model).unwrap();
        // The character takes several tokens if the tokenizer has no token for it.
        let texts = ["the cat \u{1f600} sat", "so"];
        let rollout = |text: &&str| {
            let tokens = tokenizer.encode(text, false).unwrap();
            Rollout { logp: (0..tokens.len()).map(|i| -0.5 * i as f32).collect(), tokens, ..Rollout::default() }
        };
        let rollouts: Vec<Rollout> = texts.iter().map(rollout).collect();
        let lengths: Vec<usize> = rollouts.iter().map(|rollout| rollout.tokens.len()).collect();
        let all: usize = lengths.iter().sum();
        let mut e = Experience::new(Vec::new(), rollouts);
        for (row, text) in texts.iter().enumerate() {
            let values = token_values(&e, row, &tokenizer).unwrap();
            assert_eq!(values.text.concat(), *text);
            assert_eq!((values.text.len(), values.logp.len()), (lengths[row], lengths[row]));
            assert!(values.advantage.is_empty() && values.ratio.is_empty());
        }
        assert!(lengths[0] > lengths[1]);
        e.columns.set(Column::new(ADVANTAGE, Unit::Sequence, vec![1.0, -1.0]));
        assert!(token_values(&e, 1, &tokenizer).unwrap().advantage.is_empty());
        e.columns.set_per_token(ADVANTAGE, Some((0..all).map(|i| i as f32).collect()));
        // Twice as likely as when they were sampled.
        let twice = e.columns.values(SAMPLING_LOGP).unwrap().iter().map(|logp| logp + std::f32::consts::LN_2).collect();
        e.columns.set_per_token(OLD_LOGP, Some(twice));
        let values = token_values(&e, 0, &tokenizer).unwrap();
        assert_eq!(values.advantage, (0..lengths[0]).map(|i| i as f64).collect::<Vec<_>>());
        assert_eq!(values.ratio, vec![2.0; lengths[0]]);
    }
}
