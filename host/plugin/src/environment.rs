//! Environments: play episodes with several turns. An [`EnvironmentSession`] is a group of episodes on one instance. Every reply is checked
//! and recorded, so a failed instance can be replaced by a new one on which the calls are replayed.

use super::deadline::{Deadline, EngineClock};
use super::engine::PluginEngine;
use super::exports::EnvironmentExports;
use super::instance::Plugin;
use super::limits::MemoryShare;
use super::loaded_plugin::{LoadedPlugin, PluginCall as Named};
use super::memory_partition::{LEAST_SHARE, MemoryPartition, WAITING};
use super::metrics::MetricOrigin;
use super::plugin_instance::{InstanceSlot, PluginInstance};
use super::reward::{LARGEST_SCORE, is_score};
use super::sandbox::Sandbox;
use super::world::Role;
use super::{Error, Metric, PluginSource, Result};
use crate::config::{PluginLimits, is_shown, printable};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

pub use super::contract::environment::{Call, Message, Opening, Reply, Start, Tool, Turn};

/// Number of calls of a session that may each take the servers' full time of a call.
const CALLS_WITH_SERVERS: u32 = 10;

/// Maximum number of messages of a reply or a prompt.
const MOST_MESSAGES: usize = 256;

/// Maximum size of a prompt's texts, and of its tools, in bytes.
const LONGEST_PROMPT: usize = 1 << 20;

/// Maximum size of a reply's texts, in bytes.
const LONGEST_REPLY: usize = 64 << 10;

/// Maximum size of the texts of all replies of an episode, in bytes. A limit on tokens would not bound it: one token may be a thousand line
/// breaks.
const LONGEST_EPISODE: usize = 256 << 10;

/// Roles that a reply may have: all roles that templates know, except the model's own.
const ROLES: [&str; 11] = [
    "user",
    "tool",
    "tool_response",
    "system",
    "developer",
    "function",
    "ipython",
    "environment",
    "observation",
    "computer",
    "context",
];

/// Names of the model's role in templates.
const OWN_ROLES: [&str; 2] = ["assistant", "model"];

/// Maximum number of tools of an episode.
const MOST_TOOLS: usize = 128;

/// Maximum length of a role, a name or an id, in bytes.
const LONGEST_NAME: usize = 128;

/// A loaded environment.
pub struct EnvironmentPlugin {
    plugin: Plugin,
    room: MemoryPartition,
}

impl Deref for EnvironmentPlugin {
    type Target = Plugin;

    fn deref(&self) -> &Plugin {
        &self.plugin
    }
}

impl DerefMut for EnvironmentPlugin {
    fn deref_mut(&mut self) -> &mut Plugin {
        &mut self.plugin
    }
}

impl EnvironmentPlugin {
    /// Loads and configures a plugin; `seed` is the run's.
    pub fn load(
        engine: &PluginEngine,
        source: &PluginSource,
        config: &Map<String, Value>,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<Self> {
        let mut plugin = Plugin::load(engine, source, Role::Environment, config, limits, seed)?;
        let (loaded, shared) = (plugin.memory_of_idle(), plugin.shared());
        // The first instance is called again only for these interfaces.
        let grows = shared.exports.observes() || shared.exports.has_state();
        let kept = loaded.saturating_add(if grows { LEAST_SHARE } else { 0 }).min(limits.total_memory());
        plugin.limit_total(kept);
        let room = MemoryPartition::new(limits, (loaded, kept), shared.http_client.is_some(), shared.opens_cells());
        Ok(Self { plugin, room })
    }

    /// Returns how many instances may be called in parallel: one per thread, or more if they wait for servers.
    pub fn max_parallel_sessions(&self) -> usize {
        let threads = self.plugin.shared().threads();
        let wanted = if self.plugin.http_client().is_some() { threads.max(WAITING) } else { threads };
        wanted.min(self.room.instances)
    }

    /// Creates a group of episodes on a separate instance, which starts with the first episode. Servers' answers are recorded within a
    /// `scope`: in another scope, the same episodes send their requests again.
    pub fn session(&self, scope: u64) -> EnvironmentSession {
        let loaded = self.plugin.shared();
        let share = MemoryShare::new(self.room.share);
        let of_servers = loaded.time_of_servers().saturating_mul(CALLS_WITH_SERVERS);
        let left = EngineClock::ticks(loaded.limits.episodes_timeout().saturating_add(of_servers));
        EnvironmentSession { loaded, share, running: None, episodes: BTreeMap::new(), scope, last: false, left, broken: None }
    }

    /// Plays episodes with given turns and returns the environment's replies. `says` gets the episode's index, the number of the turn and
    /// the tools. It returns the turn's text, its calls, and whether it ended on its own; or `None` to end the episode.
    ///
    /// # Errors
    /// The first failure.
    pub fn rehearse(
        &self,
        starts: &[Start],
        says: impl Fn(usize, usize, &[Tool]) -> Option<(String, Vec<Call>, bool)>,
    ) -> Result<Vec<RehearsedEpisode>> {
        let mut session = self.session(0);
        let opened = session.begin(starts.to_vec()).into_iter().collect::<Result<Vec<_>>>()?;
        let mut played: Vec<RehearsedEpisode> =
            opened.into_iter().map(|opening| RehearsedEpisode { opening, replies: Vec::new() }).collect();
        let mut open: Vec<usize> = (0..starts.len()).collect();
        for number in 0.. {
            let turn = |&place: &usize| {
                let (text, calls, finished) = says(place, number, &played[place].opening.tools)?;
                Some((place, Turn { episode: starts[place].episode, text, calls, finished }))
            };
            let (places, turns): (Vec<usize>, Vec<Turn>) = open.iter().filter_map(turn).unzip();
            if turns.is_empty() {
                break;
            }
            let replies = session.step(turns).into_iter().collect::<Result<Vec<_>>>()?;
            open.clear();
            for (place, reply) in places.into_iter().zip(replies) {
                if !reply.done {
                    open.push(place);
                }
                played[place].replies.push(reply);
            }
        }
        let all: Vec<u64> = starts.iter().map(|start| start.episode).collect();
        session.finish(&all)?;
        Ok(played)
    }
}

/// Returns the calls of a turn. The id of each combines the number of the turn with that of the call.
pub fn tool_calls(turn: usize, found: &[(String, String)]) -> Vec<Call> {
    // Mistral's templates require nine letters and digits.
    let id = |i: usize| format!("call{:05}", (100 * turn + i) % 100_000);
    let call =
        |(i, (name, arguments)): (usize, &(String, String))| Call { id: id(i), name: name.clone(), arguments: arguments.clone() };
    found.iter().enumerate().map(call).collect()
}

/// The environment's part of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct RehearsedEpisode {
    /// The environment's opening of the episode.
    pub opening: Opening,
    /// The environment's replies, one per turn.
    pub replies: Vec<Reply>,
}

/// An open episode: all calls and replies of its instance.
struct OpenEpisode {
    start: Start,
    opening: Opening,
    turns: Vec<(Turn, Reply)>,
    /// Size of the replies' texts, in bytes.
    reply_bytes: usize,
}

/// A call to an environment about one episode.
enum EnvironmentCall {
    Begin(Start),
    Step(Turn),
}

/// The result of a call to an environment.
enum EnvironmentAnswer {
    Opening(Opening),
    Reply(Reply),
}

/// A group of episodes on one instance. Every reply is checked and recorded, so a failed instance can be replaced by a new one on which the
/// calls are replayed.
pub struct EnvironmentSession {
    loaded: Arc<LoadedPlugin>,
    /// Memory share of the instance and its cells.
    share: MemoryShare,
    running: Option<PluginInstance>,
    episodes: BTreeMap<u64, OpenEpisode>,
    scope: u64,
    /// Whether this is the last attempt at an episode.
    last: bool,
    /// Ticks that all further calls may take in total.
    left: u64,
    /// Why the episodes can't continue, if they can't.
    broken: Option<String>,
}

impl EnvironmentSession {
    /// Opens episodes. An episode that fails is retried on a new instance, and then alone.
    pub fn begin(&mut self, starts: Vec<Start>) -> Vec<Result<Opening>> {
        let answers = self.ask("begin", starts.into_iter().map(EnvironmentCall::Begin).collect());
        let opening = |answer| match answer {
            EnvironmentAnswer::Opening(opening) => Ok(opening),
            EnvironmentAnswer::Reply(_) => Err(self.error("begin", "answered something else".into())),
        };
        answers.into_iter().map(|answer| answer.and_then(opening)).collect()
    }

    /// Returns the replies to turns, in order. An episode that fails is replayed on a new instance, and then alone.
    pub fn step(&mut self, turns: Vec<Turn>) -> Vec<Result<Reply>> {
        let answers = self.ask("step", turns.into_iter().map(EnvironmentCall::Step).collect());
        let reply = |answer| match answer {
            EnvironmentAnswer::Reply(reply) => Ok(reply),
            EnvironmentAnswer::Opening(_) => Err(self.error("step", "answered something else".into())),
        };
        answers.into_iter().map(|answer| answer.and_then(reply)).collect()
    }

    /// Closes episodes, finished or not. Returns the environment's metrics for them.
    ///
    /// # Errors
    /// If that fails. The episodes are closed nevertheless.
    pub fn finish(&mut self, episodes: &[u64]) -> Result<Vec<Metric>> {
        let open: Vec<u64> = episodes.iter().copied().filter(|episode| self.episodes.contains_key(episode)).collect();
        let (began, deadline) = (self.loaded.clock().now(), self.deadline());
        let finished = if open.is_empty() || self.broken.is_some() {
            Ok(Vec::new())
        } else {
            self.ready(deadline).and_then(|()| {
                self.call("finish", deadline, |environment, store, linked| environment.finish(store, linked, &open))
            })
        };
        self.spend(began);
        open.iter().for_each(|episode| drop(self.episodes.remove(episode)));
        let metrics = finished?;
        self.loaded.checked_metrics(MetricOrigin::Scores, metrics).map_err(|detail| self.error("finish", detail))
    }

    fn error(&self, function: &'static str, detail: String) -> Error {
        self.loaded.error(Named::new(function), detail)
    }

    /// Returns the deadline of a call that starts now.
    fn deadline(&self) -> Deadline {
        self.loaded.deadline_within(self.left)
    }

    /// Subtracts the time since a tick from the session's time. With none left, the episodes can't continue.
    fn spend(&mut self, began: u64) {
        self.left = self.left.saturating_sub(self.loaded.clock().now() - began);
        if self.left == 0 {
            let seconds = self.loaded.limits.episodes_seconds();
            let limit = format!("their limit of {seconds} s (limits.episodes_timeout_s)");
            self.broken = Some(format!("all calls for the episodes of an instance together took longer than {limit}"));
        }
    }

    /// Calls the environment about each episode once, like [`EnvironmentSession::ask_anew`], within the session's remaining time. If the
    /// environment requests isolated rows, each episode is a separate call.
    fn ask(&mut self, function: &'static str, asked: Vec<EnvironmentCall>) -> Vec<Result<EnvironmentAnswer>> {
        if self.loaded.info.hints.isolated_rows && asked.len() > 1 {
            return asked.into_iter().flat_map(|one| self.ask(function, vec![one])).collect();
        }
        let count = asked.len();
        if self.broken.is_none() {
            let began = self.loaded.clock().now();
            let answers = self.ask_anew(function, asked);
            self.spend(began);
            // Answers that arrived in time count; a call that was stopped has the same error as all further ones.
            if self.left > 0 || answers.iter().all(Result::is_ok) {
                return answers;
            }
        }
        let detail = self.broken.clone().unwrap_or_default();
        (0..count).map(|_| Err(self.error(function, detail.clone()))).collect()
    }

    /// Calls the environment about each episode once. After a failure, retries on a new instance, then about each episode alone,
    /// all within the time of one call.
    fn ask_anew(&mut self, function: &'static str, asked: Vec<EnvironmentCall>) -> Vec<Result<EnvironmentAnswer>> {
        for _ in 0..2 {
            let deadline = self.deadline();
            match self.ready(deadline).and_then(|()| self.attempt_new(function, &asked, deadline)) {
                Ok(answers) => {
                    return answers.into_iter().zip(asked).map(|(answer, asked)| Ok(self.keep(asked, answer))).collect();
                }
                Err(_) => self.running = None,
            }
        }
        let deadline = self.deadline();
        let mut answers = Vec::with_capacity(asked.len());
        for one in &asked {
            self.running = None;
            answers.push(match self.loaded.is_over(deadline) {
                true => Err(self.error(function, "the call's time ran out before this episode".into())),
                false => self.alone(function, one, deadline),
            });
            self.last = false;
        }
        self.running = None;
        let kept = answers.into_iter().zip(asked).map(|(answer, asked)| match answer {
            Ok(answer) => Ok(self.keep(asked, answer)),
            Err(error) => {
                if let EnvironmentCall::Step(turn) = asked {
                    self.episodes.remove(&turn.episode);
                }
                Err(error)
            }
        });
        let kept: Vec<Result<EnvironmentAnswer>> = kept.collect();
        if let Err(error) = self.ready(self.deadline()) {
            self.broken = Some(format!("its other episodes can't be replayed: {error}"));
        }
        kept
    }

    /// Calls the environment about one episode, on a new instance without other episodes.
    fn alone(&mut self, function: &'static str, asked: &EnvironmentCall, deadline: Deadline) -> Result<EnvironmentAnswer> {
        self.running = Some(self.loaded.start(None, &self.share, deadline)?);
        if let EnvironmentCall::Step(turn) = asked {
            self.play_again(&[turn.episode], deadline)?;
        }
        self.last = true;
        let answers = self.attempt_new(function, std::slice::from_ref(asked), deadline)?;
        answers.into_iter().next().ok_or_else(|| self.error(function, "no answer".into()))
    }

    /// Adds a reply to its episode's record.
    fn keep(&mut self, asked: EnvironmentCall, answer: EnvironmentAnswer) -> EnvironmentAnswer {
        match (asked, &answer) {
            (EnvironmentCall::Begin(start), EnvironmentAnswer::Opening(opening)) => {
                let opening = opening.clone();
                self.episodes.insert(start.episode, OpenEpisode { start, opening, turns: Vec::new(), reply_bytes: 0 });
            }
            (EnvironmentCall::Step(turn), EnvironmentAnswer::Reply(reply)) => {
                if let Some(record) = self.episodes.get_mut(&turn.episode) {
                    record.reply_bytes += bytes_of(&reply.messages);
                    record.turns.push((turn, reply.clone()));
                }
            }
            _ => {}
        }
        answer
    }

    /// Ensures that there is an instance with all open episodes.
    fn ready(&mut self, deadline: Deadline) -> Result<()> {
        if self.running.is_none() {
            self.running = Some(self.loaded.start(None, &self.share, deadline)?);
            let all: Vec<u64> = self.episodes.keys().copied().collect();
            self.play_again(&all, deadline).inspect_err(|_| self.running = None)?;
        }
        Ok(())
    }

    /// Replays the calls of these episodes on the instance. The replies must be identical.
    fn play_again(&mut self, episodes: &[u64], deadline: Deadline) -> Result<()> {
        let differs = |this: &Self, function| this.error(function, "it answers differently when an episode is replayed".into());
        let records: Vec<&OpenEpisode> = episodes.iter().filter_map(|episode| self.episodes.get(episode)).collect();
        let starts: Vec<EnvironmentCall> = records.iter().map(|record| EnvironmentCall::Begin(record.start.clone())).collect();
        let openings: Vec<Opening> = records.iter().map(|record| record.opening.clone()).collect();
        let most = records.iter().map(|record| record.turns.len()).max().unwrap_or(0);
        let rounds: Vec<Vec<(Turn, Reply)>> =
            (0..most).map(|i| records.iter().filter_map(|record| record.turns.get(i).cloned()).collect()).collect();
        let same =
            |(answer, before): (EnvironmentAnswer, Opening)| matches!(answer, EnvironmentAnswer::Opening(now) if now == before);
        if !self.attempt("begin", &starts, deadline)?.into_iter().zip(openings).all(same) {
            return Err(differs(self, "begin"));
        }
        for round in rounds {
            let (turns, replies): (Vec<EnvironmentCall>, Vec<Reply>) =
                round.into_iter().map(|(turn, reply)| (EnvironmentCall::Step(turn), reply)).unzip();
            let same =
                |(answer, before): (EnvironmentAnswer, Reply)| matches!(answer, EnvironmentAnswer::Reply(now) if now == before);
            if !self.attempt("step", &turns, deadline)?.into_iter().zip(replies).all(same) {
                return Err(differs(self, "step"));
            }
        }
        Ok(())
    }

    /// Makes new calls to the instance, and checks the state of its episodes after the replies.
    fn attempt_new(
        &mut self,
        function: &'static str,
        asked: &[EnvironmentCall],
        deadline: Deadline,
    ) -> Result<Vec<EnvironmentAnswer>> {
        let answers = self.attempt(function, asked, deadline)?;
        let heard = |(asked, answer): (&EnvironmentCall, &EnvironmentAnswer)| match (asked, answer) {
            (EnvironmentCall::Step(turn), EnvironmentAnswer::Reply(reply)) => {
                self.episodes.get(&turn.episode).map_or(0, |record| record.reply_bytes) + bytes_of(&reply.messages)
            }
            _ => 0,
        };
        match asked.iter().zip(&answers).map(heard).find(|bytes| *bytes > LONGEST_EPISODE) {
            Some(bytes) => {
                let detail = format!("the replies of an episode have {bytes} bytes together; the limit is {LONGEST_EPISODE}");
                Err(self.error(function, detail))
            }
            None => Ok(answers),
        }
    }

    /// Calls the instance, which must exist, and checks its replies.
    fn attempt(
        &mut self,
        function: &'static str,
        asked: &[EnvironmentCall],
        deadline: Deadline,
    ) -> Result<Vec<EnvironmentAnswer>> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let (mut starts, mut turns) = (Vec::new(), Vec::new());
        for one in asked {
            match one {
                EnvironmentCall::Begin(start) => starts.push(start.clone()),
                EnvironmentCall::Step(turn) => turns.push(turn.clone()),
            }
        }
        let answers: Vec<EnvironmentAnswer> = if turns.is_empty() {
            let given = self.call(function, deadline, |environment, store, linked| environment.begin(store, linked, &starts))?;
            given.into_iter().map(|opening| checked_opening(opening).map(EnvironmentAnswer::Opening)).collect::<CheckResult<_>>()
        } else {
            let given = self.call(function, deadline, |environment, store, linked| environment.step(store, linked, &turns))?;
            given.into_iter().map(|reply| checked_reply(reply).map(EnvironmentAnswer::Reply)).collect::<CheckResult<_>>()
        }
        .map_err(|detail| self.error(function, printable(&detail, super::error::LONGEST_TEXT)))?;
        if answers.len() != asked.len() {
            return Err(self.error(function, format!("returned {} answers for {} episodes", answers.len(), asked.len())));
        }
        Ok(answers)
    }

    fn call<R>(
        &mut self,
        function: &'static str,
        deadline: Deadline,
        f: impl FnOnce(EnvironmentExports, &mut Store<Sandbox>, &Linked) -> super::plugin_instance::CallResult<R>,
    ) -> Result<R> {
        let call = Named::with_episodes(function, self.scope, self.last);
        let slot = InstanceSlot { running: self.running.take(), share: self.share.clone() };
        let (running, answer) =
            self.loaded.ask(slot, None, deadline, call, |store, linked| f(self.loaded.exports.environment()?, store, linked));
        self.running = running;
        answer
    }
}

type CheckResult<T> = std::result::Result<T, String>;

fn is_name(text: &str) -> bool {
    is_shown(text, LONGEST_NAME)
}

/// Returns the total size of messages' texts, in bytes.
fn bytes_of(messages: &[Message]) -> usize {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let bytes = |m: &Message| m.role.len() + m.content.len() + length(&m.name) + length(&m.tool_call_id);
    messages.iter().map(bytes).sum()
}

/// Checks messages of at most `most` bytes; `own` names their owner in errors.
fn checked_messages(messages: &[Message], own: &str, most: usize) -> CheckResult<()> {
    if messages.len() > MOST_MESSAGES {
        return Err(format!("{own} has {} messages; the limit is {MOST_MESSAGES}", messages.len()));
    }
    let bytes = bytes_of(messages);
    if bytes > most {
        return Err(format!("the messages of {own} have {bytes} bytes; the limit is {most}"));
    }
    for Message { role, name, tool_call_id, .. } in messages {
        if let Some(bad) = [Some(role), name.as_ref(), tool_call_id.as_ref()].into_iter().flatten().find(|text| !is_name(text)) {
            let shown = printable(bad, LONGEST_NAME);
            return Err(format!(
                "a message of {own} has {shown:?}; roles, names and ids have 1 to {LONGEST_NAME} printable bytes"
            ));
        }
    }
    Ok(())
}

fn checked_opening(opening: Opening) -> CheckResult<Opening> {
    if let Some(prompt) = &opening.prompt {
        checked_messages(prompt, "a prompt", LONGEST_PROMPT)?;
        if prompt.last().is_none_or(|last| OWN_ROLES.contains(&last.role.as_str())) {
            return Err("opened an episode with a prompt that has no messages, or ends with one of the model".into());
        }
    }
    if opening.tools.len() > MOST_TOOLS {
        return Err(format!("opened an episode with {} tools; the limit is {MOST_TOOLS}", opening.tools.len()));
    }
    let mut bytes = 0;
    for Tool { name, description, parameters } in &opening.tools {
        bytes += description.len() + parameters.len();
        if !is_name(name) {
            let shown = printable(name, LONGEST_NAME);
            return Err(format!("a tool has the name {shown:?}; a name has 1 to {LONGEST_NAME} printable bytes"));
        }
        if !serde_json::from_str::<Value>(parameters).is_ok_and(|schema| schema.is_object()) {
            return Err(format!("the parameters of tool {name} are not a JSON Schema, which is an object"));
        }
        if bytes > LONGEST_PROMPT {
            return Err(format!("the tools of an episode have more than {LONGEST_PROMPT} bytes"));
        }
    }
    Ok(opening)
}

fn checked_reply(mut reply: Reply) -> CheckResult<Reply> {
    checked_messages(&reply.messages, "a reply", LONGEST_REPLY)?;
    if let Some(Message { role, .. }) = reply.messages.iter().find(|message| !ROLES.contains(&message.role.as_str())) {
        return Err(match OWN_ROLES.contains(&role.as_str()) {
            true => format!("replied with a message of the role {role}, which is the model's own"),
            false => format!("replied with a message of the role {role:?}; a reply's roles are {}", ROLES.join(", ")),
        });
    }
    if let Some(bad) = reply.reward.filter(|reward| !is_score(*reward)) {
        return Err(format!(
            "returned the reward {bad:e}; a reward must be a number of at most {LARGEST_SCORE:e} either way, or none"
        ));
    }
    // Without a message, the model has nothing to answer.
    reply.done |= reply.messages.is_empty();
    Ok(reply)
}

/// Checks a reply and an opening made of these messages, tools and reward.
pub fn check_answers(messages: Vec<Message>, tools: Vec<Tool>, reward: Option<f32>) -> [std::result::Result<(), String>; 2] {
    let reply = Reply { messages: messages.clone(), done: false, reward };
    [checked_reply(reply).map(drop), checked_opening(Opening { prompt: Some(messages), tools }).map(drop)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into(), name: None, tool_call_id: None }
    }

    #[test]
    fn replies_are_bounded_finite_and_not_the_models() {
        let reply = |messages: Vec<Message>, reward| checked_reply(Reply { messages, done: false, reward });
        assert!(!reply(vec![message("user", "a")], Some(1.0)).unwrap().done);
        assert!(reply(Vec::new(), None).unwrap().done);
        assert!(reply(vec![message("user", "a")], Some(f32::NAN)).unwrap_err().contains("NaN"));
        assert!(reply(vec![message("assistant", "a")], None).unwrap_err().contains("assistant"));
        assert!(reply(vec![message("model", "a")], None).unwrap_err().contains("the model's own"));
        assert!(reply(vec![message("Assistant", "a")], None).unwrap_err().contains("a reply's roles are user, tool"));
        assert!(ROLES.iter().all(|role| reply(vec![message(role, "a")], None).is_ok()));
        assert!(reply(vec![message("us\u{202e}er", "a")], None).unwrap_err().contains("printable"));
        assert!(reply(vec![message("user", ""); 257], None).unwrap_err().contains("257"));
        let long = |bytes: usize| reply(vec![message("user", &"\n".repeat(bytes - 4)); 2], None);
        assert!(long(LONGEST_REPLY / 2).is_ok());
        assert!(long(LONGEST_REPLY / 2 + 1).unwrap_err().contains("65538 bytes; the limit is 65536"));
    }

    #[test]
    fn openings_end_with_something_to_answer_and_their_tools_have_schemas() {
        let opening = |prompt: Option<Vec<Message>>, parameters: &str| {
            let tool = Tool { name: "f".into(), description: String::new(), parameters: parameters.into() };
            checked_opening(Opening { prompt, tools: vec![tool] })
        };
        assert!(opening(None, "{}").is_ok());
        assert!(opening(Some(vec![message("user", "a")]), "{}").is_ok());
        assert!(opening(Some(Vec::new()), "{}").is_err());
        assert!(opening(Some(vec![message("user", "a"), message("assistant", "b")]), "{}").is_err());
        assert!(opening(Some(vec![message("user", "a"), message("model", "b")]), "{}").is_err());
        assert!(opening(None, "[]").unwrap_err().contains("schema") || opening(None, "[]").unwrap_err().contains("Schema"));
        assert!(opening(None, "{").is_err());
    }
}
