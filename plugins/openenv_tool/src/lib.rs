//! Plays episodes on an OpenEnv server over plain HTTP.
//!
//! An environment with tools (`MCPEnvironment`) has sessions at `/mcp`: each episode opens a session, the model's calls become its
//! `tools/call`, and the episode ends with the session, when the model makes no call. An environment of one action has `/step`: the model's
//! text is that action, and the observation and the reward end the episode. OpenEnv's environments of several actions keep their state
//! behind a WebSocket, which this plugin can't open.

mod server;

use rlhost_plugin_sdk::environment::{BatchEnvironment, Message, Opening, Reply, Start, Tool, Turn};
use rlhost_plugin_sdk::http::Response;
use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::serde_json::{Map, Value, json};
use server::{OpenEnvServer, OpenEnvStep};

/// How the server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Sessions with tools, at /mcp.
    Mcp,
    /// One action an episode, at /step.
    Step,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenEnvSettings {
    /// The server's address, as in http://localhost:8000; its host must be granted.
    pub url: String,
    /// How the server is asked: mcp (tools) or step (one action an episode).
    pub protocol: Protocol,
    /// Name of the secret that the server needs as a bearer token; it must be granted.
    pub secret: Option<String>,
    /// With mcp: where a tool's JSON result has the reward of the call, as in /reward. A turn without one has 0; without
    /// this setting, the environment gives no rewards.
    pub reward: Option<String>,
    /// With mcp: where a tool's JSON result says that the episode is over, as in /done.
    pub done: Option<String>,
    /// With mcp: added for each call that fails.
    pub bad_call: f32,
    /// With step: the field of the action that gets the model's text.
    pub field: String,
    /// With step: further fields of the action.
    pub action: Map<String, Value>,
    /// Longest text of a reply, in bytes; the rest is left out.
    pub longest_output: usize,
    /// With step: where the observation has the text of the reply, as in /text; by default, the reply is all of it, in JSON.
    pub observation: Option<String>,
}

impl Default for OpenEnvSettings {
    fn default() -> Self {
        Self {
            url: "http://localhost:8000".into(),
            protocol: Protocol::Mcp,
            secret: None,
            reward: None,
            done: None,
            bad_call: 0.0,
            field: "message".into(),
            action: Map::new(),
            longest_output: 4000,
            observation: None,
        }
    }
}

/// The environment.
pub struct OpenEnv {
    settings: OpenEnvSettings,
    server: OpenEnvServer,
}

/// An episode.
pub struct OpenEnvEpisode {
    /// Id of the session; empty without one.
    session: String,
    /// Seed of the episode, which all samples of its prompt share, and its number, which is unique.
    name: (u64, u64),
    turns: u32,
    calls: u32,
    failed: u32,
    rewarded: u32,
}

impl BatchEnvironment for OpenEnv {
    type Config = OpenEnvSettings;
    type Episode = OpenEnvEpisode;

    fn new(settings: OpenEnvSettings) -> Result<Self, Error> {
        let pointers = [("reward", &settings.reward), ("done", &settings.done), ("observation", &settings.observation)];
        for (name, pointer) in pointers {
            if let Some(pointer) = pointer.as_ref().filter(|pointer| !pointer.starts_with('/')) {
                return Err(Error::Config(format!("{name} is {pointer:?}; it must be a path in JSON, as in /{name}")));
            }
        }
        let server = OpenEnvServer::new(&settings.url, settings.secret.as_deref())?;
        Ok(Self { settings, server })
    }

    fn begin(&self, starts: &[Start]) -> Result<Vec<(OpenEnvEpisode, Opening)>, Error> {
        let episode =
            |start: &Start, session| OpenEnvEpisode { session, name: name(start), turns: 0, calls: 0, failed: 0, rewarded: 0 };
        if self.settings.protocol == Protocol::Step {
            return Ok(starts.iter().map(|start| (episode(start, String::new()), Opening::plain())).collect());
        }
        let ids: Vec<String> = starts.iter().map(|start| id(name(start), 0, "open")).collect();
        let opened = self.server.rpc(ids.iter().map(|id| (id.as_str(), "openenv/session/create", json!({}))));
        let sessions = opened.into_iter().map(|opened| session_in(opened?)).collect::<Result<Vec<String>, Error>>()?;
        let ids: Vec<String> = starts.iter().map(|start| id(name(start), 0, "list")).collect();
        let asked = ids.iter().zip(&sessions).map(|(id, session)| (id.as_str(), "tools/list", json!({ "session_id": session })));
        let listed = self.server.rpc(asked);
        let openings = listed.into_iter().map(|listed| Ok(Opening::plain().with_tools(tools_in(&listed?)?)));
        let openings = openings.collect::<Result<Vec<Opening>, Error>>()?;
        let episodes = starts.iter().zip(sessions).map(|(start, session)| episode(start, session));
        Ok(episodes.zip(openings).collect())
    }

    fn step(&self, turns: &mut [(&mut OpenEnvEpisode, &Turn)]) -> Result<Vec<Reply>, Error> {
        turns.iter_mut().for_each(|(episode, _)| episode.turns += 1);
        match self.settings.protocol {
            Protocol::Mcp => self.call_tools(turns),
            Protocol::Step => self.act(turns),
        }
    }

    fn finish(&self, episodes: Vec<OpenEnvEpisode>) -> Vec<Metric> {
        let open: Vec<(String, &String)> = episodes
            .iter()
            .filter(|episode| !episode.session.is_empty())
            .map(|episode| (id(episode.name, episode.turns, "close"), &episode.session))
            .collect();
        let closing = |(id, session): &(String, &String)| (id.clone(), json!({ "session_id": session }));
        let closing: Vec<(String, Value)> = open.iter().map(closing).collect();
        let closed = self.server.rpc(closing.iter().map(|(id, p)| (id.as_str(), "openenv/session/close", p.clone())));
        for error in closed.into_iter().filter_map(Result::err).take(1) {
            rlhost_plugin_sdk::warn(&format!("a session could not be closed: {error}"));
        }
        let metrics = |episode: &OpenEnvEpisode| {
            let count = |name: &str, value: u32| Metric::mean(format!("openenv_tool/{name}"), f64::from(value), 1.0);
            [count("calls", episode.calls), count("failed_calls", episode.failed), count("rewarded_calls", episode.rewarded)]
        };
        episodes.iter().filter(|_| self.settings.protocol == Protocol::Mcp).flat_map(metrics).collect()
    }
}

impl OpenEnv {
    /// Sends the calls of all turns in parallel. A turn without calls ends its episode.
    fn call_tools(&self, turns: &mut [(&mut OpenEnvEpisode, &Turn)]) -> Result<Vec<Reply>, Error> {
        let mut asked = Vec::new();
        for (episode, turn) in turns.iter() {
            for (place, call) in turn.calls.iter().enumerate() {
                // Arguments that are not JSON are not sent; the model gets the error below.
                let arguments: Result<Map<String, Value>, String> = call.arguments_as();
                let params = |arguments| json!({ "session_id": episode.session, "name": call.name, "arguments": arguments });
                asked.push((id(episode.name, episode.turns, &format!("call-{place}")), arguments.map(params)));
            }
        }
        let sent = asked.iter().filter_map(|(id, params)| Some((id.as_str(), "tools/call", params.as_ref().ok()?.clone())));
        let mut results = self.server.rpc(sent).into_iter();
        let mut told = asked.iter().map(|(_, params)| match params {
            Ok(_) => results.next().unwrap_or_else(|| Err(server::RequestFailure::Server("no answer".into()))),
            Err(wrong) => Err(server::RequestFailure::Refused(wrong.clone())),
        });
        let mut replies = Vec::with_capacity(turns.len());
        for (episode, turn) in turns.iter_mut() {
            let mut reply = Reply::say(Vec::with_capacity(turn.calls.len()));
            reply.done = turn.calls.is_empty();
            // If calls are rewarded, a turn without calls gets a reward of 0 rather than none.
            reply.reward = self.settings.reward.as_ref().map(|_| 0.0);
            for (call, result) in turn.calls.iter().zip(&mut told) {
                let ToolCallResult { text, reward, done, failed } = self.tool_call_result(result)?;
                episode.rewarded += u32::from(reward.is_some() && !failed);
                (episode.calls, episode.failed) = (episode.calls + 1, episode.failed + u32::from(failed));
                reply.messages.push(Message::tool(call, server::readable(&text, self.settings.longest_output)));
                reply.reward = add(reply.reward, reward);
                reply.done |= done;
            }
            replies.push(reply);
        }
        Ok(replies)
    }

    /// Returns the model's view of a call's result. A server that does not answer ends the episode, because that is not the model's fault.
    fn tool_call_result(&self, result: Result<Value, server::RequestFailure>) -> Result<ToolCallResult, Error> {
        let bad = (self.settings.bad_call != 0.0).then_some(self.settings.bad_call);
        let failed = |text: String| ToolCallResult { text: format!("error: {text}"), reward: bad, done: false, failed: true };
        let result = match result {
            Ok(result) => result,
            Err(server::RequestFailure::Refused(reason)) => return Ok(failed(reason)),
            Err(lost @ server::RequestFailure::Server(_)) => return Err(lost.into()),
        };
        let (text, value) = server::result_text(&result);
        if server::is_error(&result) {
            return Ok(failed(text));
        }
        let at = |pointer: &Option<String>| value.as_ref()?.pointer(pointer.as_deref()?).cloned();
        let wrong = |what: &str, found: &Value| Err(Error::Internal(format!("a tool's {what} is {found}, which is none")));
        let reward = match at(&self.settings.reward) {
            None | Some(Value::Null) => None,
            Some(found) => match found.as_f64() {
                Some(reward) => Some(reward as f32),
                None => return wrong("reward", &found),
            },
        };
        let done = match at(&self.settings.done) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(done)) => done,
            Some(found) => return wrong("end of an episode", &found),
        };
        Ok(ToolCallResult { text, reward, done, failed: false })
    }

    /// Sends each turn's text as the action of its episode, which then ends unless the server says otherwise.
    fn act(&self, turns: &[(&mut OpenEnvEpisode, &Turn)]) -> Result<Vec<Reply>, Error> {
        let action = |turn: &Turn| {
            let mut action = self.settings.action.clone();
            action.insert(self.settings.field.clone(), turn.text.clone().into());
            action
        };
        let bodies: Vec<Value> = turns
            .iter()
            .map(|(episode, turn)| json!({ "action": action(turn), "request_id": id(episode.name, episode.turns, "step") }))
            .collect();
        let reply = |answer: Result<Response, String>| {
            let OpenEnvStep { observation, reward, done } = server::step_in(answer)?;
            let text = match &self.settings.observation {
                Some(pointer) => observation.pointer(pointer).map(server::text_of).unwrap_or_default(),
                None => observation.to_string(),
            };
            let text = server::readable(&text, self.settings.longest_output);
            Ok(Reply { messages: vec![Message::user(text)], done: done.unwrap_or(true), reward })
        };
        self.server.steps(&bodies).into_iter().map(reply).collect()
    }
}

/// Outcome of a call.
struct ToolCallResult {
    text: String,
    reward: Option<f32>,
    done: bool,
    failed: bool,
}

fn add(sum: Option<f32>, reward: Option<f32>) -> Option<f32> {
    reward.map_or(sum, |reward| Some(sum.unwrap_or(0.0) + reward))
}

/// Returns the id of a request, which is unique in a run: answers are recorded by request, and the same call in the same session may have
/// another answer.
fn id((seed, number): (u64, u64), turn: u32, what: &str) -> String {
    format!("{seed:016x}-{number}-{turn}-{what}")
}

fn name(start: &Start) -> (u64, u64) {
    (start.seed, start.episode)
}

fn session_in(opened: Value) -> Result<String, Error> {
    match opened["session_id"].as_str() {
        Some(session) => Ok(session.to_owned()),
        None => Err(Error::Internal(format!("the server opened no session: {opened}"))),
    }
}

/// Returns the tools of a list. The name of their schema differs between versions.
fn tools_in(listed: &Value) -> Result<Vec<Tool>, Error> {
    let Some(tools) = listed["tools"].as_array() else {
        return Err(Error::Internal(format!("the server listed no tools: {listed}")));
    };
    let tool = |tool: &Value| {
        let text = |name: &str| tool[name].as_str().unwrap_or_default().to_owned();
        let schema = ["inputSchema", "input_schema"].into_iter().map(|name| &tool[name]).find(|schema| schema.is_object());
        let parameters = schema.cloned().unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
        Tool { name: text("name"), description: text("description"), parameters: parameters.to_string() }
    };
    Ok(tools.iter().map(tool).collect())
}

environment_plugin!(OpenEnv, asking);

#[cfg(test)]
mod tests;
