//! `/v1/chat/completions`: the model's turn in a conversation.

use super::app::App;
use super::choice::{ChoiceDelta, CompletionChoice, usage};
use super::completions::MOST_ALTERNATIVES;
use super::error::{ApiError, Result};
use super::events::{ChunkEvents, ChunkWriter, StreamFields};
use super::fields::Fields;
use super::messages::conversation;
use super::reply::Reply;
use super::sampling::{SamplingFields, random};
use super::{logprobs, unix_time};
use crate::engine::EngineRequest;
use serde_json::{Map, Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Hexadecimal digits of a call's id.
const CALL_ID_DIGITS: u32 = 9;

/// Properties of a response besides its completions.
pub(super) struct ChatResponseForm {
    id: String,
    pub model: String,
    pub created: i64,
    pub prompt: Arc<[u32]>,
    /// Tools that the model may call; null if none.
    pub tools: Value,
    logprobs: bool,
    prompt_logprobs: bool,
    return_token_ids: bool,
}

/// Completion as an assistant message.
pub(super) struct AssistantTurn {
    /// Text before the calls.
    pub content: Value,
    pub calls: Vec<Value>,
    /// Reason why the completion ended.
    pub finish: Option<&'static str>,
}

/// Parsed request for `/v1/chat/completions`.
pub(super) struct ChatRequest {
    pub form: ChatResponseForm,
    pub sampling: SamplingFields,
    pub stream: Option<StreamFields>,
    pub requests: Vec<EngineRequest>,
}

/// Removes `logprobs` and `top_logprobs`; returns the number of alternatives per token.
fn alternatives(fields: &mut Fields) -> Result<Option<usize>> {
    let (wanted, top) = (fields.flag("logprobs")?, fields.count("top_logprobs", MOST_ALTERNATIVES)?);
    if !wanted && top.is_some_and(|top| top > 0) {
        return Err(ApiError::field("top_logprobs", "needs logprobs: true"));
    }
    Ok(wanted.then(|| top.unwrap_or(0)))
}

impl ChatRequest {
    /// Parses a request.
    pub(super) fn read(app: &App, mut fields: Fields) -> Result<Self> {
        let model = app.model_of(&mut fields)?;
        let sampling = SamplingFields::take(&mut fields)?;
        let stream = StreamFields::take(&mut fields)?;
        let alternatives = alternatives(&mut fields)?;
        let prompt_logprobs = fields.count("prompt_logprobs", MOST_ALTERNATIVES)?;
        let return_token_ids = fields.flag("return_token_ids")?;
        let salt = app.salt(&mut fields)?;
        let conversation = conversation(app, &mut fields)?;
        fields.only("modalities", &[json!(["text"])])?;
        fields.finish()?;
        if stream.is_some() && prompt_logprobs.is_some() {
            return Err(ApiError::field("prompt_logprobs", "not supported together with stream"));
        }
        let prompt: Arc<[u32]> = conversation.tokens.into();
        // Without a limit, a completion may fill the rest of the context.
        let room = app.max_model_len().saturating_sub(prompt.len());
        let max_tokens = sampling.max_tokens.unwrap_or(room.max(1));
        let mut request = sampling.request(Arc::clone(&prompt), &app.ends, &app.tokenizer, max_tokens);
        request.scoring.alternatives = alternatives.max(prompt_logprobs);
        request.scoring.scores_prompt = prompt_logprobs.is_some();
        (request.salt, request.adapter) = (salt, app.adapter(&model)?);
        let requests = sampling.random.samples(sampling.n).map(|random| EngineRequest { random, ..request.clone() }).collect();
        let form = ChatResponseForm {
            id: format!("chatcmpl-{:016x}", random()),
            model,
            created: unix_time(),
            prompt,
            tools: conversation.tools,
            logprobs: alternatives.is_some(),
            prompt_logprobs: prompt_logprobs.is_some(),
            return_token_ids,
        };
        Ok(Self { form, sampling, stream, requests })
    }

    /// Starts the completions and returns the finished response, or a stream.
    pub(super) async fn answer(self, app: Arc<App>) -> Result<Reply> {
        let Self { form, sampling, stream, requests } = self;
        let mut choices = app.start(requests, &sampling)?;
        if let Some(fields) = stream {
            let (prompt_tokens, begun) = (form.prompt.len(), vec![false; choices.len()]);
            let chunks = ChatChunkWriter { app, form, begun };
            return Ok(Reply::events(ChunkEvents::new(choices, Box::new(chunks), fields, prompt_tokens)));
        }
        for choice in &mut choices {
            choice.complete().await?;
        }
        let written = choices.iter().map(|choice| form.choice(&app, choice)).collect::<Result<Vec<_>>>()?;
        let mut all = form.head("chat.completion");
        all.insert("choices".into(), written.into());
        all.insert("usage".into(), usage(form.prompt.len(), &choices));
        if form.return_token_ids {
            all.insert("prompt_token_ids".into(), json!(&form.prompt[..]));
        }
        if form.prompt_logprobs {
            all.insert("prompt_logprobs".into(), logprobs::of_prompt(&app.tokenizer, &choices[0].scored)?);
        }
        Ok(Reply::json(Value::Object(all)))
    }
}

impl ChatResponseForm {
    /// Returns the unique number of the response, in hexadecimal digits.
    pub(super) fn number(&self) -> &str {
        self.id.rsplit('-').next().unwrap_or_default()
    }

    fn head(&self, object: &str) -> Map<String, Value> {
        let head = json!({"id": self.id, "object": object, "created": self.created, "model": self.model});
        head.as_object().cloned().unwrap_or_default()
    }

    /// Parses a completion into text and tool calls.
    pub(super) fn turn(&self, app: &App, choice: &CompletionChoice) -> Result<AssistantTurn> {
        let plain = || AssistantTurn { content: choice.written.as_str().into(), calls: Vec::new(), finish: choice.finish };
        if self.tools.is_null() {
            return Ok(plain());
        }
        let turn = choice.ids();
        let calls = app.tokenizer.calls(&self.prompt, &turn, &self.tools)?;
        if calls.is_empty() {
            return Ok(plain());
        }
        let text = app.tokenizer.before_calls(&turn, &self.tools)?;
        let content = if text.trim().is_empty() { Value::Null } else { text.trim_end().into() };
        let described = calls.into_iter().enumerate().map(|(i, (name, arguments))| {
            let id = self.call_id(app, &turn, i);
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        });
        Ok(AssistantTurn { content, calls: described.collect(), finish: Some("tool_calls") })
    }

    /// Returns the id of a turn's call. Mistral's templates accept only ids of one length and write them into the next prompt. So a session
    /// derives ids from its tokens; otherwise its conversations could not be reproduced.
    fn call_id(&self, app: &App, turn: &[u32], index: usize) -> String {
        let of_session = || {
            let mut hasher = DefaultHasher::new();
            (&self.prompt[..], turn, index).hash(&mut hasher);
            hasher.finish()
        };
        let number = if app.session.is_some() { of_session() } else { random() };
        format!("{:0width$x}", number >> (u64::BITS - 4 * CALL_ID_DIGITS), width = CALL_ID_DIGITS as usize)
    }

    fn choice(&self, app: &App, choice: &CompletionChoice) -> Result<Value> {
        let AssistantTurn { content, calls, finish } = self.turn(app, choice)?;
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let logprobs = self.logprobs.then(|| logprobs::content(&app.tokenizer, &choice.tokens)).transpose()?;
        let mut all = json!({
            "index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": finish,
            "stop_reason": choice.stopped, "weight_versions": choice.weight_versions(),
        });
        if self.return_token_ids {
            all["token_ids"] = json!(choice.ids());
        }
        Ok(all)
    }
}

/// Writes the chunks of a streamed response.
struct ChatChunkWriter {
    app: Arc<App>,
    form: ChatResponseForm,
    /// Whether the first chunk of each completion has been written.
    begun: Vec<bool>,
}

impl ChatChunkWriter {
    /// Returns the last chunks. A turn that may contain calls is sent in one piece, since what looks like a call may turn out to be text.
    fn last(&self, choice: &CompletionChoice, delta: &ChoiceDelta) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        let AssistantTurn { content, calls, finish } = self.form.turn(&self.app, choice)?;
        let rest = if self.form.tools.is_null() { delta.text.as_str().into() } else { content };
        if rest.as_str().is_some_and(|text| !text.is_empty()) || delta.token.is_some() {
            all.push(self.entry(choice, json!({"content": rest}), delta)?);
        }
        if !calls.is_empty() {
            let numbered = calls.into_iter().zip(0..).map(|(mut call, index)| {
                call["index"] = json!(index);
                call
            });
            let calls: Vec<Value> = numbered.collect();
            all.push(self.entry(choice, json!({"tool_calls": calls}), &ChoiceDelta::default())?);
        }
        let mut end = self.entry(choice, json!({}), &ChoiceDelta::default())?;
        end["finish_reason"] = json!(finish);
        end["stop_reason"] = json!(choice.stopped);
        end["weight_versions"] = choice.weight_versions();
        all.push(end);
        Ok(all)
    }

    fn entry(&self, choice: &CompletionChoice, content: Value, delta: &ChoiceDelta) -> Result<Value> {
        let logprobs = self.form.logprobs && delta.token.is_some();
        let logprobs = logprobs.then(|| logprobs::content(&self.app.tokenizer, &delta.token)).transpose()?;
        let mut all = json!({"index": choice.index, "delta": content, "logprobs": logprobs, "finish_reason": null});
        if self.form.return_token_ids {
            all["token_ids"] = delta.token.iter().map(|token| token.id).collect();
        }
        Ok(all)
    }
}

impl ChunkWriter for ChatChunkWriter {
    fn head(&self) -> Map<String, Value> {
        let mut head = self.form.head("chat.completion.chunk");
        if self.form.return_token_ids && !self.begun.iter().all(|begun| *begun) {
            head.insert("prompt_token_ids".into(), json!(&self.form.prompt[..]));
        }
        head
    }

    fn chunk(&mut self, choice: &CompletionChoice, delta: &ChoiceDelta) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        if !std::mem::replace(&mut self.begun[choice.index], true) {
            all.push(self.entry(choice, json!({"role": "assistant", "content": ""}), &ChoiceDelta::default())?);
        }
        if choice.finish.is_some() {
            all.extend(self.last(choice, delta)?);
        } else if delta.token.is_some() {
            let shown = if self.form.tools.is_null() { delta.text.as_str() } else { "" };
            if !shown.is_empty() || self.form.logprobs || self.form.return_token_ids {
                all.push(self.entry(choice, json!({"content": shown}), delta)?);
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{WITH_TOOLS, app, said};
    use super::*;
    use crate::ops::sampler::Sampler;
    use crate::session::SessionRules;
    use crate::sessions::Sessions;

    impl ChatResponseForm {
        /// Returns the form of a response in a conversation with these tools.
        pub(in super::super) fn with_tools(tools: Value) -> Self {
            let (id, model, prompt) = ("id".into(), "m".into(), Arc::new([]));
            Self { id, model, created: 0, prompt, tools, logprobs: false, prompt_logprobs: false, return_token_ids: false }
        }
    }

    #[test]
    fn calls_are_fields_of_a_message_and_of_a_stream_if_there_are_tools() {
        let app = app(Some(WITH_TOOLS));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {}}}]);
        let call = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
        let both = format!("Let me see.\n{call}{call}");
        for (tools, words, content, calls) in [
            (&tools, both.as_str(), json!("Let me see."), 2),
            (&tools, call, Value::Null, 1),
            (&tools, "No <tool_call>{</tool_call>", json!("No <tool_call>{</tool_call>"), 0),
            (&Value::Null, call, json!(call), 0),
        ] {
            let mut choice = said(&app, words);
            runtime.block_on(choice.complete()).unwrap();
            let whole = ChatResponseForm::with_tools(tools.clone()).choice(&app, &choice).unwrap();
            assert_eq!(whole["message"]["content"], content);
            let found = whole["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            assert_eq!(found.len(), calls);
            assert!(found.iter().all(|call| call["function"] == json!({"name": "add", "arguments": "{\"a\":1}"})), "{whole}");
            let finish = if calls > 0 { "tool_calls" } else { "stop" };
            assert_eq!(whole["finish_reason"], finish);

            let chunks =
                ChatChunkWriter { app: Arc::clone(&app), form: ChatResponseForm::with_tools(tools.clone()), begun: vec![false] };
            let mut events = ChunkEvents::new(vec![said(&app, words)], Box::new(chunks), StreamFields::default(), 0);
            let mut streamed = String::new();
            while let Some(more) =
                runtime.block_on(std::future::poll_fn(|context| crate::api::EventSource::poll_next(&mut events, context)))
            {
                streamed += &more;
            }
            let chunks: Vec<Value> =
                streamed.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
            let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
            let text: String = deltas().filter_map(|delta| delta["content"].as_str()).collect();
            assert_eq!(text, content.as_str().unwrap_or_default());
            assert_eq!(deltas().filter_map(|delta| delta["tool_calls"].as_array()).flatten().count(), calls);
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], finish);
        }
    }

    #[test]
    fn ids_of_calls_are_what_mistral_takes_and_in_a_session_follow_from_the_tokens() {
        let (app, runtime) = (app(Some(WITH_TOOLS)), tokio::runtime::Builder::new_current_thread().build().unwrap());
        let call = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
        let ids = |app: &App| {
            let mut choice = said(app, &format!("{call}{call}"));
            runtime.block_on(choice.complete()).unwrap();
            let turn = ChatResponseForm::with_tools(json!([{"type": "function", "function": {"name": "add", "parameters": {}}}]))
                .turn(app, &choice);
            let ids = turn.unwrap().calls.into_iter().map(|call| call["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
            assert!(ids.iter().all(|id| id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric())), "{ids:?}");
            assert_ne!(ids[0], ids[1]);
            ids
        };
        assert_ne!(ids(&app), ids(&app));
        let rules =
            SessionRules { sampling: Sampler::default(), logp_temperature: 1.0, max_tokens: 9, max_calls: 9, max_text: 9 };
        let of_session = |key: &str, seed| app.for_session(Sessions::default().open(key.to_owned(), seed, rules));
        assert_eq!(ids(&of_session("a", 1)), ids(&of_session("b", 2)));
    }
}
