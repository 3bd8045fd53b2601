//! `/v1/completions`: continues texts or token ids.

use super::app::App;
use super::choice::{ChoiceDelta, CompletionChoice, usage};
use super::error::{ApiError, Result};
use super::events::{ChunkEvents, ChunkWriter, StreamFields};
use super::fields::Fields;
use super::reply::Reply;
use super::sampling::{CompletionPrompt, SamplingFields, prompts, random};
use super::{logprobs, unix_time};
use crate::engine::ScoredToken;
use crate::text::TextStream;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Maximum number of alternatives per token.
pub(super) const MOST_ALTERNATIVES: usize = 100;

/// Default of `max_tokens`, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;

/// Properties of a response besides its completions.
#[derive(Clone)]
struct TextCompletionForm {
    id: String,
    model: String,
    created: i64,
    prompts: Vec<Arc<[u32]>>,
    /// Number of completions per prompt.
    n: usize,
    echo: bool,
    logprobs: bool,
    prompt_logprobs: bool,
    return_token_ids: bool,
}

/// Parsed request for `/v1/completions`.
pub(super) struct TextCompletionRequest {
    form: TextCompletionForm,
    sampling: SamplingFields,
    stream: Option<StreamFields>,
    requests: Vec<crate::engine::EngineRequest>,
}

impl TextCompletionRequest {
    /// Parses a request.
    pub(super) fn read(app: &App, mut fields: Fields) -> Result<Self> {
        let model = app.model_of(&mut fields)?;
        let sampling = SamplingFields::take(&mut fields)?;
        let stream = StreamFields::take(&mut fields)?;
        let logprobs = fields.count("logprobs", MOST_ALTERNATIVES)?;
        let prompt_logprobs = fields.count("prompt_logprobs", MOST_ALTERNATIVES)?;
        let echo = fields.flag("echo")?;
        let special = fields.flag_or("add_special_tokens", true)?;
        let return_token_ids = fields.flag("return_token_ids")?;
        let salt = app.salt(&mut fields)?;
        fields.only("suffix", &[json!("")])?;
        let prompts: Vec<Arc<[u32]>> = prompts(&mut fields)?
            .into_iter()
            .map(|prompt| match prompt {
                CompletionPrompt::Text(text) => Ok(app.tokenizer.encode(&text, special)?.into()),
                CompletionPrompt::Tokens(ids) => Ok(ids.into()),
            })
            .collect::<Result<_>>()?;
        fields.finish()?;
        if stream.is_some() && (echo || prompt_logprobs.is_some()) {
            return Err(ApiError::field(if echo { "echo" } else { "prompt_logprobs" }, "not supported together with stream"));
        }
        let max_tokens = sampling.max_tokens.unwrap_or(DEFAULT_TOKENS);
        let mut requests = Vec::new();
        for tokens in &prompts {
            let mut request = sampling.request(Arc::clone(tokens), &app.ends, &app.tokenizer, max_tokens);
            request.scoring.alternatives = logprobs.max(prompt_logprobs);
            request.scoring.scores_prompt = prompt_logprobs.is_some() || echo && logprobs.is_some();
            (request.salt, request.adapter) = (salt, app.adapter(&model)?);
            let one = |random| crate::engine::EngineRequest { random, ..request.clone() };
            requests.extend(sampling.random.samples(sampling.n).map(one));
        }
        let (id, created) = (format!("cmpl-{:016x}", random()), unix_time());
        let (logprobs, prompt_logprobs) = (logprobs.is_some(), prompt_logprobs.is_some());
        let form =
            TextCompletionForm { id, model, created, prompts, n: sampling.n, echo, logprobs, prompt_logprobs, return_token_ids };
        Ok(Self { form, sampling, stream, requests })
    }

    /// Starts the completions and returns the finished response, or a stream.
    pub(super) async fn answer(self, app: Arc<App>) -> Result<Reply> {
        let Self { form, sampling, stream, requests } = self;
        let mut choices = app.start(requests, &sampling)?;
        if let Some(fields) = stream {
            let prompt_tokens = form.prompt_tokens();
            let chunks = TextCompletionChunkWriter { app, form };
            return Ok(Reply::events(ChunkEvents::new(choices, Box::new(chunks), fields, prompt_tokens)));
        }
        for choice in &mut choices {
            choice.complete().await?;
        }
        let written = choices.iter().map(|choice| form.choice(&app, choice)).collect::<Result<Vec<_>>>()?;
        Ok(Reply::json(json!({
            "id": form.id, "object": "text_completion", "created": form.created, "model": form.model, "choices": written,
            "usage": usage(form.prompt_tokens(), &choices),
        })))
    }
}

impl TextCompletionForm {
    fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.len()).sum()
    }

    /// Returns the prompt of a completion.
    fn prompt_of(&self, index: usize) -> &Arc<[u32]> {
        &self.prompts[index / self.n]
    }

    fn choice(&self, app: &App, choice: &CompletionChoice) -> Result<Value> {
        let prompt = self.prompt_of(choice.index);
        let echoed = if self.echo { app.tokenizer.decode(prompt)? } else { String::new() };
        let own = choice.tokens.iter().map(|token| (token.id, Some(token)));
        let tokens: Vec<(u32, Option<&ScoredToken>)> = if self.echo {
            let scored = prompt.iter().zip([None].into_iter().chain(choice.scored.iter().map(Some)));
            scored.map(|(id, token)| (*id, token)).chain(own).collect()
        } else {
            own.collect()
        };
        let logprobs = self.logprobs.then(|| logprobs::legacy(&app.tokenizer, &tokens, 0)).transpose()?;
        let mut all = json!({
            "index": choice.index, "text": echoed + &choice.written, "logprobs": logprobs, "finish_reason": choice.finish,
            "stop_reason": choice.stopped, "weight_versions": choice.weight_versions(),
        });
        if self.prompt_logprobs {
            all["prompt_logprobs"] = super::logprobs::of_prompt(&app.tokenizer, &choice.scored)?;
        }
        if self.return_token_ids {
            all["prompt_token_ids"] = json!(&prompt[..]);
            all["token_ids"] = json!(choice.ids());
        }
        Ok(all)
    }
}

/// Writes the chunks of a streamed response.
struct TextCompletionChunkWriter {
    app: Arc<App>,
    form: TextCompletionForm,
}

impl ChunkWriter for TextCompletionChunkWriter {
    fn head(&self) -> Map<String, Value> {
        let form = &self.form;
        let head = json!({"id": form.id, "object": "text_completion", "created": form.created, "model": form.model});
        head.as_object().cloned().unwrap_or_default()
    }

    fn chunk(&mut self, choice: &CompletionChoice, delta: &ChoiceDelta) -> Result<Vec<Value>> {
        let form = &self.form;
        if delta.text.is_empty() && choice.finish.is_none() && !(form.logprobs || form.return_token_ids) || delta.begins {
            return Ok(Vec::new());
        }
        let tokens: Vec<_> = delta.token.iter().map(|token| (token.id, Some(token))).collect();
        let offset = choice.written.chars().count() - delta.text.chars().count();
        let logprobs = form.logprobs.then(|| logprobs::legacy(&self.app.tokenizer, &tokens, offset)).transpose()?;
        let mut all = json!({"index": choice.index, "text": delta.text, "logprobs": logprobs, "finish_reason": choice.finish});
        if choice.finish.is_some() {
            all["stop_reason"] = json!(choice.stopped);
            all["weight_versions"] = choice.weight_versions();
        }
        if form.return_token_ids {
            if choice.tokens.len() <= 1 {
                all["prompt_token_ids"] = json!(&form.prompt_of(choice.index)[..]);
            }
            all["token_ids"] = delta.token.iter().map(|token| token.id).collect();
        }
        Ok(vec![all])
    }
}

impl App {
    /// Starts completions.
    pub(super) fn start(
        &self,
        mut requests: Vec<crate::engine::EngineRequest>,
        sampling: &SamplingFields,
    ) -> Result<Vec<CompletionChoice>> {
        let (session, count) = (self.session.as_ref(), requests.len());
        let recorders = session.map(|session| session.begin(&mut requests)).transpose()?;
        let text = |request: &crate::engine::EngineRequest| {
            TextStream::new(self.tokenizer.clone(), sampling.rules(request), &request.tokens)
        };
        let texts: Vec<TextStream> = requests.iter().map(text).collect();
        let submitted = self.generator().and_then(|engine| Ok(engine.submit(requests)?));
        let streams = submitted.inspect_err(|_| session.into_iter().for_each(|session| session.return_calls(count)))?;
        let mut recorders = recorders.into_iter().flatten();
        let choice = |(i, (stream, text))| CompletionChoice::new(i, stream, text).with_recorder(recorders.next());
        Ok(streams.into_iter().zip(texts).enumerate().map(choice).collect())
    }

    /// Starts the only completion of a request.
    pub(super) fn start_one(
        &self,
        requests: Vec<crate::engine::EngineRequest>,
        sampling: &SamplingFields,
    ) -> Result<CompletionChoice> {
        self.start(requests, sampling)?.pop().ok_or_else(|| ApiError::new(500, "the request has no completion"))
    }
}
