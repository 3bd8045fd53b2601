//! Episodes: rollouts of several turns with an environment. The model's tokens stay as sampled; the environment's replies are rendered by
//! the chat template and appended.

use super::source::{RolloutBatch, RolloutRequest};
use super::turns::EpisodeRules;
use super::turns::TurnGenerator;
use crate::config::{RewardErrorAction, printable};
use crate::data::{ChatMessage, TemplateVariables, Tokenizer};
use crate::dataset::Prompt;
use crate::episode::{EpisodeOutcome, sum};
use crate::experience::Experience;
use crate::metrics::{Metric, MetricReduction};
use crate::model::IncrementalDecoder;
use crate::ops::sampler::stream;
use crate::plugin::columns::turn_reward;
use crate::plugin::{
    self, Column, EnvironmentPlugin, EnvironmentSession, LARGEST_SCORE, Opening, Reply, ScoredGeneration, Turn, TurnSpan, Unit,
};
use crate::plugins::{Partner, RunEnvironments, start};
use crate::rollout::{EndedTurn, PromptRequest, ReplyProvider, Rollout, TurnReply};
use crate::run::TurnRow;
use crate::{Error, Result};
use rand::RngExt;
use rayon::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Distinguishes the seeds of episodes from those of sampling.
const SEEDS: u64 = 0x6570_6973_6f64_6573;

/// Maximum length of a printed token, in bytes.
const LONGEST_SHOWN: usize = 64;

/// An episode being played.
#[derive(Default)]
struct OngoingEpisode {
    messages: Vec<ChatMessage>,
    extras: TemplateVariables,
    /// Text and tokens of the prompt.
    prompt: (String, Vec<u32>),
    seed: u64,
    turns: Vec<TurnRow>,
    rewards: Vec<Option<f32>>,
    failed: Option<String>,
}

/// Episodes of one environment instance, by number.
struct EnvironmentInstance {
    /// The environment's index in the run.
    environment: usize,
    session: EnvironmentSession,
    playing: BTreeMap<u64, OngoingEpisode>,
    metrics: Vec<plugin::Metric>,
}

/// The episodes of a generation.
struct EpisodeTable<'a> {
    rules: &'a EpisodeRules<'a>,
    /// Number of completions of each row.
    samples: usize,
    /// For each request, the index of its row in the generation.
    rows: Vec<usize>,
    instances: Vec<Mutex<EnvironmentInstance>>,
    /// For each episode, the index of its instance.
    instance_of: Vec<usize>,
}

impl TurnGenerator {
    /// Plays episodes of each prompt, with server sessions in this scope. All episodes of a prompt have the same seed.
    ///
    /// # Errors
    /// If an operation fails. A failed episode carries its own error.
    pub(super) fn play(&self, model: &IncrementalDecoder, request: &RolloutRequest<'_>, scope: u64) -> Result<RolloutBatch> {
        let RolloutRequest { prompts, samples, generation, environments, .. } = *request;
        let RunEnvironments { plugins: environments, entries } = environments;
        let places: Vec<usize> = prompts.iter().map(|prompt| prompt.acts_in(entries).unwrap_or(0)).collect();
        let shares = shares(environments, &places, samples);
        let rules = self.rules(model.architecture().max_positions);
        let open = |(place, episodes): &(usize, Vec<u64>)| {
            let session = environments[*place].session(scope);
            rules.open_instance((*place, session), prompts, samples, generation, episodes)
        };
        let seats: Vec<EnvironmentInstance> = shares.par_iter().map(open).collect();
        let mut seat_of = vec![0; prompts.len() * samples];
        for (seat, (_, episodes)) in shares.iter().enumerate() {
            episodes.iter().for_each(|&episode| seat_of[episode as usize] = seat);
        }
        let requests = requests(prompts, samples, &seats);
        let rows = requests.iter().map(|(row, _)| *row).collect();
        let seats = seats.into_iter().map(Mutex::new).collect();
        let table = EpisodeTable { rules: &rules, samples, rows, instances: seats, instance_of: seat_of };
        let (places, requests): (Vec<usize>, Vec<PromptRequest>) = requests.into_iter().unzip();
        let mut rollouts = self.generator(model, request, Some(&table), |generator| generator.run(&requests))?;
        for rollout in &mut rollouts {
            let row = places[rollout.prompt];
            let tokens = &requests[rollout.prompt].tokens;
            rollout.opening = (*tokens != prompts[row].tokens).then(|| tokens.clone());
            rollout.prompt = row;
        }
        Ok(table.into_batch(rollouts))
    }
}

/// Divides the episodes of each environment's rows among its instances. Returns the environment's index and the numbers of the
/// episodes of each instance.
fn shares(environments: &[EnvironmentPlugin], places: &[usize], samples: usize) -> Vec<(usize, Vec<u64>)> {
    let mut shares = Vec::new();
    for (place, environment) in environments.iter().enumerate() {
        let rows = (0..places.len()).filter(|row| places[*row] == place);
        let own: Vec<u64> = rows.flat_map(|row| row * samples..(row + 1) * samples).map(|episode| episode as u64).collect();
        let count = environment.max_parallel_sessions().min(own.len());
        let cut = |i: usize| own.len() * i / count;
        shares.extend((0..count).map(|i| (place, own[cut(i)..cut(i + 1)].to_vec())));
    }
    shares
}

impl EpisodeRules<'_> {
    /// Opens some of the episodes on one instance.
    fn open_instance(
        &self,
        (place, mut session): (usize, EnvironmentSession),
        prompts: &[Arc<Prompt>],
        samples: usize,
        generation: u64,
        episodes: &[u64],
    ) -> EnvironmentInstance {
        let prompt = |episode: u64| &prompts[episode as usize / samples];
        let seed = |prompt: &Prompt| stream(self.seed ^ SEEDS, generation, prompt.row as u64, 0).random();
        let starts = episodes.iter().map(|&episode| start(prompt(episode), episode, seed(prompt(episode))));
        let mut playing = BTreeMap::new();
        for (&id, opening) in episodes.iter().zip(session.begin(starts.collect())) {
            let opened = opening.map_err(|e| e.to_string());
            let began = opened.and_then(|opening| render_opening(self.tokenizer, prompt(id), opening, self.context));
            let failed = |reason| {
                let prompt = (prompt(id).text.clone(), prompt(id).tokens.clone());
                OngoingEpisode { messages: Vec::new(), prompt, failed: Some(reason), ..OngoingEpisode::default() }
            };
            playing.insert(id, OngoingEpisode { seed: seed(prompt(id)), ..began.unwrap_or_else(failed) });
        }
        EnvironmentInstance { environment: place, session, playing, metrics: Vec::new() }
    }
}

/// Renders the opening of an episode.
fn render_opening(
    tokenizer: &Tokenizer,
    prompt: &Prompt,
    opening: Opening,
    context: usize,
) -> std::result::Result<OngoingEpisode, String> {
    let mut extras = TemplateVariables::from_columns(&prompt.columns)?;
    if !opening.tools.is_empty() {
        extras.tools = opening.tools.iter().map(tool).collect();
    }
    if extras.has_tools() {
        tokenizer.check_tools().map_err(|e| e.to_string())?;
    }
    let own = opening.prompt.is_some() || !opening.tools.is_empty();
    let messages = opening.prompt.map_or_else(|| prompt.conversation(), |messages| messages.into_iter().map(message).collect());
    let as_given = !own && (prompt.chat || !tokenizer.has_chat());
    let prompt = match as_given {
        true => (prompt.text.clone(), prompt.tokens.clone()),
        false => tokenizer.encode_opening(&messages, &extras).map_err(|e| e.to_string())?,
    };
    if prompt.1.is_empty() || prompt.1.len() >= context {
        return Err(format!("its prompt has {} tokens; the model's context is {context}, turns included", prompt.1.len()));
    }
    Ok(OngoingEpisode { messages, extras, prompt, ..OngoingEpisode::default() })
}

/// Returns a tool in the form that chat templates read.
fn tool(tool: &plugin::Tool) -> Value {
    // It was validated when the episode was opened.
    let parameters: Value = serde_json::from_str(&tool.parameters).unwrap_or_default();
    json!({"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": parameters}})
}

/// Returns the texts of a message that a template may write.
fn texts(message: &plugin::Message) -> impl Iterator<Item = &str> {
    [Some(&message.content), message.name.as_ref(), message.tool_call_id.as_ref()].into_iter().flatten().map(String::as_str)
}

fn message(message: plugin::Message) -> ChatMessage {
    let rest = [("name", message.name), ("tool_call_id", message.tool_call_id)];
    let rest = rest.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into()))).collect();
    ChatMessage { role: message.role, content: message.content.into(), rest }
}

/// Returns the requests, each with its row's index: completions of a row share a request if their opening is the same.
fn requests(prompts: &[Arc<Prompt>], samples: usize, seats: &[EnvironmentInstance]) -> Vec<(usize, PromptRequest)> {
    let mut requests: Vec<(usize, PromptRequest)> = Vec::with_capacity(prompts.len());
    let mut all: Vec<(&u64, &OngoingEpisode)> = seats.iter().flat_map(|seat| &seat.playing).collect();
    all.sort_by_key(|(episode, _)| **episode);
    for (&episode, playing) in all {
        let (row, sample) = (episode as usize / samples, episode as usize % samples);
        match requests.last_mut().filter(|(of, request)| *of == row && request.tokens == playing.prompt.1) {
            Some((_, request)) => request.samples += 1,
            None => {
                let tokens = playing.prompt.1.clone();
                requests.push((row, PromptRequest { tokens, row: prompts[row].row as u64, first: sample, samples: 1 }));
            }
        }
    }
    requests
}

impl EpisodeTable<'_> {
    /// Returns the number of an episode.
    fn number(&self, request: usize, sample: usize) -> usize {
        self.rows[request] * self.samples + sample
    }
}

impl ReplyProvider for EpisodeTable<'_> {
    fn next_turns(&self, ended: &[EndedTurn<'_>]) -> Vec<TurnReply> {
        let Some(first) = ended.first() else { return Vec::new() };
        let seat = &self.instances[self.instance(first.request, first.sample)];
        let asked: Vec<(u64, &EndedTurn<'_>)> =
            ended.iter().map(|one| (self.number(one.request, one.sample) as u64, one)).collect();
        seat.lock().unwrap_or_else(PoisonError::into_inner).follow(self.rules, &asked)
    }

    fn instance(&self, request: usize, sample: usize) -> usize {
        self.instance_of[self.number(request, sample)]
    }

    fn max_tokens(&self) -> usize {
        self.rules.most_tokens
    }
}

impl EnvironmentInstance {
    /// Passes turns to the environment; see [`ReplyProvider::next_turns`].
    fn follow(&mut self, rules: &EpisodeRules<'_>, ended: &[(u64, &EndedTurn<'_>)]) -> Vec<TurnReply> {
        let mut next: BTreeMap<u64, TurnReply> = BTreeMap::new();
        let mut asked = Vec::with_capacity(ended.len());
        for (episode, ended) in ended {
            let Some(playing) = self.playing.get_mut(episode).filter(|playing| playing.failed.is_none()) else { continue };
            match playing.turn(*episode, ended, rules.tokenizer) {
                Ok(turn) => asked.push(turn),
                Err(error) => playing.failed = Some(error.to_string()),
            }
        }
        let order: Vec<u64> = asked.iter().map(|turn| turn.episode).collect();
        for (episode, reply) in order.into_iter().zip(self.session.step(asked)) {
            let of = ended.iter().find(|(of, _)| *of == episode);
            let (Some(playing), Some((_, ended))) = (self.playing.get_mut(&episode), of) else { continue };
            match reply.map_err(|e| e.to_string()).and_then(|reply| playing.apply_reply(reply, ended, rules)) {
                Ok(answer) => drop(next.insert(episode, answer)),
                Err(reason) => playing.failed = Some(reason),
            }
        }
        let answers: Vec<TurnReply> = ended.iter().map(|(of, _)| next.remove(of).unwrap_or(TurnReply::Over(false))).collect();
        let over: Vec<u64> = ended
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| matches!(answer, TurnReply::Over(_)))
            .map(|((of, _), _)| *of)
            .collect();
        self.close(&over);
        answers
    }

    /// Closes episodes.
    fn close(&mut self, episodes: &[u64]) {
        match self.session.finish(episodes) {
            Ok(metrics) => self.metrics.extend(metrics),
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

impl OngoingEpisode {
    /// Returns the turn that the model has just ended, and adds it to the conversation.
    fn turn(&mut self, episode: u64, ended: &EndedTurn<'_>, tokenizer: &Tokenizer) -> Result<Turn> {
        let tokens = &ended.tokens[ended.turn.clone()];
        let text = tokenizer.decode(tokens)?;
        let (number, finished) = (self.rewards.len(), ended.finished);
        let before = if ended.turn.start == 0 { &self.prompt.1 } else { &ended.tokens[..ended.turn.start] };
        let written = TurnRow { finished, calls: tokenizer.calls(before, tokens, &self.extras.tools)? };
        let calls = plugin::tool_calls(number, &written.calls);
        self.turns.push(written);
        self.messages.push(ChatMessage { role: "assistant".into(), content: text.as_str().into(), ..ChatMessage::default() });
        Ok(Turn { episode, text, calls, finished })
    }

    /// Records a turn's reward.
    fn reward(&mut self, reward: Option<f32>) -> std::result::Result<(), String> {
        self.rewards.push(reward);
        match sum(&self.rewards).filter(|sum| sum.abs() > LARGEST_SCORE) {
            None => Ok(()),
            Some(sum) => {
                self.rewards.pop();
                Err(format!("the rewards of its turns have the sum {sum:e}; the limit is {LARGEST_SCORE:e} either way"))
            }
        }
    }

    /// Records a reply and returns what the model reads next.
    fn apply_reply(
        &mut self,
        reply: Reply,
        ended: &EndedTurn<'_>,
        rules: &EpisodeRules<'_>,
    ) -> std::result::Result<TurnReply, String> {
        for text in reply.messages.iter().flat_map(texts) {
            if let Some(special) = rules.tokenizer.special_in(text) {
                let shown = printable(special, LONGEST_SHOWN);
                return Err(format!("replied with the tokenizer's special token {shown:?}, which is not text"));
            }
        }
        self.reward(reply.reward)?;
        let replies: Vec<ChatMessage> = reply.messages.into_iter().map(message).collect();
        let before = self.messages.len() - 1;
        self.messages.extend(replies);
        if reply.done {
            return Ok(TurnReply::Over(true));
        }
        if self.rewards.len() >= rules.max_turns {
            return Ok(TurnReply::Over(false));
        }
        let (asked, replies) = (&self.messages[..before], &self.messages[before + 1..]);
        let turn = &ended.tokens[ended.turn.clone()];
        rules.tokenizer.encode_following(asked, turn, replies, &self.extras).map(TurnReply::Read).map_err(|e| e.to_string())
    }
}

impl EpisodeTable<'_> {
    /// Collects the outcomes of the episodes.
    fn into_batch(self, rollouts: Vec<Rollout>) -> RolloutBatch {
        let (mut played, mut metrics) = (BTreeMap::new(), Vec::new());
        for seat in self.instances {
            let mut seat = seat.into_inner().unwrap_or_else(PoisonError::into_inner);
            // The open episodes ran out of tokens.
            let all: Vec<u64> = seat.playing.keys().copied().collect();
            seat.close(&all);
            metrics.extend(seat.metrics);
            played.extend(seat.playing.into_iter().map(|(episode, playing)| (episode, (seat.environment, playing))));
        }
        let episodes = rollouts.iter().map(|rollout| {
            let number = (rollout.prompt * self.samples + rollout.sample) as u64;
            let (environment, playing) = played.remove(&number).unwrap_or_default();
            let OngoingEpisode { messages, extras, prompt, seed, turns, rewards, failed } = playing;
            let messages = serde_json::to_string(&messages).unwrap_or_else(|_| "[]".to_owned());
            let extras = serde_json::to_string(&extras).unwrap_or_default();
            EpisodeOutcome { environment, prompt: prompt.0, messages, extras, seed, turns, rewards, output: None, failed }
        });
        RolloutBatch { episodes: episodes.collect(), rollouts, metrics, ..RolloutBatch::default() }
    }
}

/// Returns the first failure as the error that ends a run, if the `on_error` of its environment or agent says so.
pub(super) fn fatal(episodes: &[EpisodeOutcome], partners: &[Partner]) -> Option<Error> {
    let failed = |episode: &EpisodeOutcome| Some((partners.get(episode.environment)?, episode.failed.clone()?));
    let (partner, detail) =
        episodes.iter().filter_map(failed).find(|(partner, _)| partner.on_error != RewardErrorAction::Unscorable)?;
    let name = partner.name.clone();
    Some(plugin::Error::Call { name, function: "an episode", step: None, detail }.into())
}

/// Adds the turns of episodes to a generation, with a column of rewards for each environment or agent.
pub(super) fn add_turns(generation: &mut ScoredGeneration, e: &Experience, partners: &[Partner]) {
    let batch = &mut generation.batch;
    let mut rewards: Vec<Vec<Option<f32>>> = vec![Vec::new(); partners.len()];
    for (row, episode) in e.episodes.iter().enumerate() {
        let rollout = &e.rollouts[row];
        let mut start = e.offsets[row];
        let ends = rollout.replies.iter().map(|(begin, _)| *begin).chain([rollout.tokens.len()]);
        for (number, end) in ends.enumerate() {
            let end = e.offsets[row] + end as u32;
            batch.turns.push(TurnSpan { sequence: row as u32, start, end });
            start = end;
            let given = episode.rewards.get(number).copied().flatten().filter(|_| episode.failed.is_none());
            for (place, column) in rewards.iter_mut().enumerate() {
                column.push(given.filter(|_| place == episode.environment));
            }
        }
    }
    for (partner, rewards) in partners.iter().zip(rewards) {
        batch.columns.push(Column::sparse(turn_reward(&partner.name), Unit::Turn, rewards));
    }
}

/// Returns the metrics of episodes.
pub(super) fn metrics(episodes: &[EpisodeOutcome], rollouts: &[Rollout]) -> Vec<Metric> {
    let n = episodes.len() as f64;
    if episodes.is_empty() {
        return Vec::new();
    }
    let turns = |episode: &EpisodeOutcome| episode.rewards.len() as f64;
    let replies: usize = rollouts.iter().map(|rollout| rollout.tokens.len() - rollout.sampled()).sum();
    let failed = episodes.iter().filter(|episode| episode.failed.is_some()).count() as f64;
    vec![
        Metric::mean("episodes/mean_turns", episodes.iter().map(turns).sum::<f64>() / n, n),
        Metric::new("episodes/max_turns", episodes.iter().map(turns).fold(0.0, f64::max), MetricReduction::Max),
        Metric::mean("episodes/tokens_of_replies", replies as f64 / n, n),
        Metric::new("episodes/failed", failed, MetricReduction::Sum),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_rewards_that_is_too_large_is_a_failure() {
        let mut playing = OngoingEpisode::default();
        assert_eq!(sum(&playing.rewards), None);
        for reward in [Some(LARGEST_SCORE), None, Some(-LARGEST_SCORE), Some(LARGEST_SCORE)] {
            playing.reward(reward).unwrap();
        }
        assert!(playing.reward(Some(LARGEST_SCORE)).unwrap_err().contains("the sum 2e12"));
        assert_eq!(sum(&playing.rewards), Some(LARGEST_SCORE));
        assert!(playing.reward(Some(-1.0)).is_ok());
    }
}
