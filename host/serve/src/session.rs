//! Sessions of agents: an agent that has a session's key calls the policy in an episode, and every call is recorded as it was sampled.
//!
//! A session remembers what it wrote. Where a conversation contains the model's own turns, the prompt reuses their recorded tokens, and
//! only new messages are tokenized ([`AgentSession::continuation_prompt`]). A conversation that differs from the recorded ones is tokenized
//! from the start.

use crate::api::ApiError;
use crate::config::printable;
use crate::data::{ChatMessage, TemplateVariables, Tokenizer};
use crate::engine::{EngineRequest, RandomStream, ScoredToken};
use crate::ops::sampler::Sampler;
use rlhost_models::rollout::AgentCall;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum length of a text in a report, in bytes.
const SHOWN: usize = 120;

/// Maximum length of a prompt whose conversation is remembered, in tokens.
const LONGEST_ANNOUNCED: usize = 1 << 18;

/// Rules that all sessions of a server share.
#[derive(Clone, Copy, Debug)]
pub struct SessionRules {
    /// Sampling method, which overrides that of requests.
    pub sampling: Sampler,
    /// Divisor of the logits whose log-probabilities are recorded.
    pub logp_temperature: f32,
    /// Maximum number of tokens per call.
    pub max_tokens: usize,
    /// Maximum number of calls.
    pub max_calls: usize,
    /// Maximum number of tokens of a text, prompt and completion, beyond the first prompt.
    pub max_text: usize,
}

/// Session of an agent in an episode.
#[derive(Debug)]
pub struct AgentSession {
    rules: SessionRules,
    seed: u64,
    state: Mutex<SessionState>,
}

/// Record of a session.
#[derive(Clone, Debug, Default)]
pub struct SessionRecord {
    /// Finished calls, in the order in which they began.
    pub calls: Vec<RecordedCall>,
    /// Reason why the first refused call was refused.
    pub refused: Option<String>,
    /// Whether a request asked for sampling settings other than the run's.
    pub overrode_sampling: bool,
    /// First turn that the agent sent back changed: what the model had written, and what the agent sent.
    pub rewritten: Option<(String, String)>,
    /// First other message that differed from that of an earlier call which a call could have continued: as it was, and as it came.
    pub differing: Option<(String, String)>,
}

/// Finished call.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// Tokens of the call.
    pub call: AgentCall,
    /// Text, as the agent received it.
    pub text: String,
    /// Conversation that the call continues; `None` if the prompt was a text or tokens.
    pub conversation: Option<Arc<ConversationPrompt>>,
}

/// A conversation before the model's turn.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversationPrompt {
    /// Messages of the conversation.
    pub messages: Vec<ChatMessage>,
    /// Variables of the chat template.
    pub extras: TemplateVariables,
}

#[derive(Debug, Default)]
struct SessionState {
    closed: bool,
    /// Number of calls that began; also the number of the next call.
    begun: u64,
    /// Number of calls that count against the limit: those that the engine accepted.
    used: usize,
    /// Number of tokens of the first prompt.
    first: Option<usize>,
    /// Conversations whose prompts are known but whose calls have not begun.
    announced_prompts: Vec<(Vec<u32>, Arc<ConversationPrompt>)>,
    calls: BTreeMap<u64, RecordedCall>,
    record: SessionRecord,
}

/// Records a call when it ends.
#[derive(Debug)]
pub(crate) struct CallRecorder {
    session: Arc<AgentSession>,
    number: u64,
    prompt: Arc<[u32]>,
    conversation: Option<Arc<ConversationPrompt>>,
}

impl AgentSession {
    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a session whose calls have random numbers from this seed.
    pub(crate) fn new(seed: u64, rules: SessionRules) -> Self {
        Self { rules, seed, state: Mutex::default() }
    }

    /// Closes the session: nothing more is recorded. Returns the record.
    pub(crate) fn close(&self) -> SessionRecord {
        let mut state = self.lock();
        state.closed = true;
        let mut record = std::mem::take(&mut state.record);
        record.calls = std::mem::take(&mut state.calls).into_values().collect();
        record
    }

    /// Returns the tokens of a conversation that continues a recorded one; `None` if it continues none. In either case, the caller passes
    /// the prompt to [`AgentSession::announce_prompt`].
    ///
    /// # Errors
    /// If the chat template rejects the conversation.
    pub(crate) fn continuation_prompt(
        &self,
        tokenizer: &Tokenizer,
        new: &ConversationPrompt,
    ) -> Result<Option<Vec<u32>>, ApiError> {
        let known: Vec<RecordedCall> = self.lock().calls.values().cloned().collect();
        let mut longest: Option<(&RecordedCall, &ConversationPrompt)> = None;
        let (mut rewritten, mut differing) = (None, None);
        for call in &known {
            let Some(before) = call.conversation.as_deref() else { continue };
            let length = before.messages.len();
            if new.messages.len() < length + 2 {
                continue;
            }
            if let Some((was, is)) = first_difference(&before.messages, &new.messages) {
                let shown = |message: &ChatMessage| printable(message.content.trim(), SHOWN);
                differing = Some((shown(was), shown(is)));
                continue;
            }
            if before.extras != new.extras {
                continue;
            }
            match changed(tokenizer, call, &new.messages[length])? {
                None if longest.is_none_or(|(_, other)| other.messages.len() <= length) => longest = Some((call, before)),
                None => {}
                Some(change) => rewritten = Some((length, change)),
            }
        }
        if let Some((length, change)) = rewritten
            && longest.is_none_or(|(_, before)| before.messages.len() < length)
        {
            self.lock().record.rewritten.get_or_insert(change);
        }
        let Some((call, before)) = longest else {
            if let Some(difference) = differing {
                self.lock().record.differing.get_or_insert(difference);
            }
            return Ok(None);
        };
        let (asked, replies) = (&before.messages, &new.messages[before.messages.len() + 1..]);
        let Ok(following) = tokenizer.encode_following(asked, &call.call.tokens, replies, &new.extras) else { return Ok(None) };
        Ok(Some([&call.call.prompt[..], &call.call.tokens, &following].concat()))
    }

    /// Announces that these tokens are a conversation's prompt.
    pub(crate) fn announce_prompt(&self, tokens: &[u32], conversation: ConversationPrompt) {
        if tokens.len() > LONGEST_ANNOUNCED {
            return;
        }
        let mut state = self.lock();
        // A request that is rejected later leaves its prompt behind.
        let most = 2 * self.rules.max_calls.max(1);
        let extra = (state.announced_prompts.len() + 1).saturating_sub(most);
        state.announced_prompts.drain(..extra);
        state.announced_prompts.push((tokens.to_vec(), Arc::new(conversation)));
    }

    /// Applies the session's rules to requests: the run's sampling settings, random numbers and limits. Returns the recorder of each
    /// request.
    ///
    /// # Errors
    /// If the session has ended, or has no calls or tokens left for all of them.
    pub(crate) fn begin(self: &Arc<Self>, requests: &mut [EngineRequest]) -> Result<Vec<CallRecorder>, ApiError> {
        let mut state = self.lock();
        if let Some(detail) = limit_of(&self.rules, &state, requests) {
            return Err(ApiError::invalid(detail));
        }
        state.used += requests.len();
        Ok(requests.iter_mut().map(|request| self.begin_one(&mut state, request)).collect())
    }

    fn begin_one(self: &Arc<Self>, state: &mut SessionState, request: &mut EngineRequest) -> CallRecorder {
        let rules = &self.rules;
        let first = *state.first.get_or_insert(request.tokens.len());
        let room = (first.saturating_add(rules.max_text)).saturating_sub(request.tokens.len());
        request.max_tokens = request.max_tokens.min(rules.max_tokens).min(room);
        state.record.overrode_sampling |= request.sampling != rules.sampling && request.sampling != Sampler::default();
        (request.sampling, request.scoring.logp_temperature) = (rules.sampling, Some(rules.logp_temperature));
        let number = state.begun;
        state.begun += 1;
        request.random = RandomStream { sample: number, ..RandomStream::from_seed(self.seed) };
        let place = state.announced_prompts.iter().rposition(|(tokens, _)| tokens[..] == request.tokens[..]);
        let conversation = place.map(|place| Arc::clone(&state.announced_prompts[place].1));
        CallRecorder { session: Arc::clone(self), number, prompt: Arc::clone(&request.tokens), conversation }
    }

    /// Gives back calls that the engine did not accept.
    pub(crate) fn return_calls(&self, count: usize) {
        let mut state = self.lock();
        state.used = state.used.saturating_sub(count);
        if state.used == 0 {
            state.first = None;
        }
    }

    /// Records why a request was rejected.
    pub(crate) fn refuse(&self, error: &ApiError) {
        self.lock().record.refused.get_or_insert_with(|| error.message().to_owned());
    }
}

/// Returns which limit of a session the requests exceed, if any.
fn limit_of(rules: &SessionRules, state: &SessionState, requests: &[EngineRequest]) -> Option<String> {
    if state.closed {
        return Some("the episode has ended".into());
    }
    if state.used + requests.len() > rules.max_calls {
        let left = rules.max_calls.saturating_sub(state.used);
        return Some(format!(
            "the episode has {left} of its {} calls left (max_turns); this takes {}",
            rules.max_calls,
            requests.len()
        ));
    }
    let first = state.first.or(requests.first().map(|request| request.tokens.len())).unwrap_or_default();
    if requests.iter().any(|request| request.tokens.len() >= first.saturating_add(rules.max_text)) {
        return Some(format!("the episode has had its {} tokens (max_episode_tokens)", rules.max_text));
    }
    let biased = "logit_bias: not supported in training, since the sampled tokens are to be the policy's";
    requests.iter().any(|request| !request.logit_bias.is_empty()).then(|| biased.to_owned())
}

impl CallRecorder {
    /// Records the call's tokens and text.
    pub(crate) fn finish(self, tokens: &[ScoredToken], text: &str, finished: bool) {
        if tokens.is_empty() {
            return;
        }
        let call = AgentCall {
            prompt: self.prompt.to_vec(),
            tokens: tokens.iter().map(|token| token.id).collect(),
            logp: tokens.iter().map(|token| token.logp).collect(),
            finished,
        };
        let mut state = self.session.lock();
        if !state.closed {
            state.calls.insert(self.number, RecordedCall { call, text: text.to_owned(), conversation: self.conversation });
        }
    }
}

impl RecordedCall {
    /// Returns the text before the tool calls, and the name and arguments of each call.
    ///
    /// # Errors
    /// If the tokens can't be decoded.
    pub fn text_and_calls(&self, tokenizer: &Tokenizer) -> Result<(String, Vec<(String, String)>), crate::data::Error> {
        let tools = self.conversation.as_ref().map_or(&Value::Null, |conversation| &conversation.extras.tools);
        if tools.is_null() {
            return Ok((self.text.clone(), Vec::new()));
        }
        let calls = tokenizer.calls(&self.call.prompt, &self.call.tokens, tools)?;
        if calls.is_empty() {
            Ok((self.text.clone(), calls))
        } else {
            Ok((tokenizer.before_calls(&self.call.tokens, tools)?, calls))
        }
    }
}

/// Returns what a call had written and what the agent sent back in its place, if they differ.
fn changed(tokenizer: &Tokenizer, call: &RecordedCall, back: &ChatMessage) -> Result<Option<(String, String)>, ApiError> {
    let (text, calls) = call.text_and_calls(tokenizer)?;
    let arguments = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| text.into());
    let written: Vec<(String, Value)> = calls.iter().map(|(name, text)| (name.clone(), arguments(text))).collect();
    if back.role == "assistant" && back.content.trim() == text.trim() && calls_of(back) == written {
        return Ok(None);
    }
    let shown = |text: &str, calls: &[(String, Value)]| {
        let calls: String = calls.iter().map(|(name, arguments)| format!(" {name}({arguments})")).collect();
        printable(format!("{}{calls}", text.trim()).trim(), SHOWN)
    };
    Ok(Some((shown(&text, &written), shown(&back.content, &calls_of(back)))))
}

/// Returns the first message that differs in content from the one at its place, ignoring other fields that clients add.
fn first_difference<'m>(before: &'m [ChatMessage], new: &'m [ChatMessage]) -> Option<(&'m ChatMessage, &'m ChatMessage)> {
    before.iter().zip(new).find(|(a, b)| a.role != b.role || a.content.trim() != b.content.trim() || calls_of(a) != calls_of(b))
}

/// Returns the names and arguments of a message's tool calls.
fn calls_of(message: &ChatMessage) -> Vec<(String, Value)> {
    let calls = message.rest.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let call = |call: &Value| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
            Value::Null => Value::Object(serde_json::Map::new()),
            other => other.clone(),
        };
        (function["name"].as_str().unwrap_or_default().to_owned(), arguments)
    };
    calls.map(call).collect()
}

#[cfg(test)]
mod tests;
