//! Dispatches requests by path and method.

use super::anthropic::{self, MessagesRequest};
use super::app::App;
use super::chat::ChatRequest;
use super::completions::TextCompletionRequest;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::generate::GenerateRequest;
use super::reply::Reply;
use super::responses::ResponsesRequest;
use super::scores::ScoreRequest;
use super::{drivers, metrics, tokens, weights};
use crate::engine::InferenceEngine;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// Route of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InferenceRoute {
    Completions,
    Chat,
    Responses,
    Messages,
    CountTokens,
    Generate,
    Tokenize,
    Detokenize,
    Models,
    Health,
    Version,
    Metrics,
    Classify,
    Score,
    Pause,
    Resume,
    ResetPrefixCache,
    IsPaused,
    WeightInfo,
    WeightChecker,
    CollectiveRpc,
    LoadAdapter,
    UnloadAdapter,
    NextTask,
    StartSession,
    SetReward,
    EndSession,
}

/// Maximum size of a driver's request, in bytes, and of one that ends a session, whose error may be a long traceback.
const LARGEST_REPORT: usize = 16 << 10;
const LARGEST_END: usize = 1 << 20;

/// Paths that other servers have and this one rejects, with the reason.
const REFUSED: [(&str, &str); 1] = [("/v1/embeddings", "embeddings are not served")];

impl InferenceRoute {
    /// Returns the route for a path and a method.
    ///
    /// # Errors
    /// If there is no such route.
    pub(crate) fn find(method: &str, path: &str) -> Result<Self> {
        let (route, expected) = match path {
            "/v1/completions" => (Self::Completions, "POST"),
            "/v1/chat/completions" => (Self::Chat, "POST"),
            "/v1/responses" => (Self::Responses, "POST"),
            "/v1/messages" => (Self::Messages, "POST"),
            "/v1/messages/count_tokens" => (Self::CountTokens, "POST"),
            "/inference/v1/generate" => (Self::Generate, "POST"),
            "/tokenize" => (Self::Tokenize, "POST"),
            "/detokenize" => (Self::Detokenize, "POST"),
            "/v1/models" => (Self::Models, "GET"),
            "/health" => (Self::Health, "GET"),
            "/version" => (Self::Version, "GET"),
            "/metrics" => (Self::Metrics, "GET"),
            "/classify" => (Self::Classify, "POST"),
            "/score" | "/v1/score" => (Self::Score, "POST"),
            "/pause" => (Self::Pause, "POST"),
            "/resume" => (Self::Resume, "POST"),
            "/reset_prefix_cache" => (Self::ResetPrefixCache, "POST"),
            "/is_paused" => (Self::IsPaused, "GET"),
            "/weight_info" => (Self::WeightInfo, "GET"),
            "/weight_checker" => (Self::WeightChecker, "POST"),
            "/collective_rpc" => (Self::CollectiveRpc, "POST"),
            "/v1/load_lora_adapter" => (Self::LoadAdapter, "POST"),
            "/v1/unload_lora_adapter" => (Self::UnloadAdapter, "POST"),
            "/rl/next_task" => (Self::NextTask, "POST"),
            "/rl/start_session" => (Self::StartSession, "POST"),
            "/rl/set_reward" => (Self::SetReward, "POST"),
            "/rl/end_session" => (Self::EndSession, "POST"),
            _ => {
                let known = REFUSED.into_iter().find(|(refused, _)| *refused == path);
                let detail = known.map_or("there is no such route", |(_, detail)| detail);
                return Err(ApiError::new(404, format!("{path}: {detail}")));
            }
        };
        if method != expected && !(expected == "GET" && method == "HEAD") {
            return Err(ApiError::new(405, format!("{path} takes {expected} requests only")));
        }
        Ok(route)
    }

    /// Returns whether the route takes a body.
    pub(crate) fn takes_body(self) -> bool {
        let without = [Self::Models, Self::Health, Self::Version, Self::Metrics, Self::IsPaused, Self::WeightInfo];
        !without.contains(&self) && !self.acts_without_body()
    }

    /// Returns whether a request without a body changes state.
    pub(crate) fn acts_without_body(self) -> bool {
        matches!(self, Self::Pause | Self::Resume | Self::ResetPrefixCache)
    }

    /// Returns whether the route needs no API key: monitors send none.
    pub(crate) fn is_open(self) -> bool {
        self == Self::Health
    }

    /// Returns whether the route is for drivers, whose key is the run's. In a server of sessions, all other routes need the key of a
    /// session.
    pub(crate) fn is_of_drivers(self) -> bool {
        matches!(self, Self::NextTask | Self::StartSession)
    }

    /// Returns the maximum size of the body in bytes, where `usual` is that of requests to a model.
    pub(crate) fn largest_body(self, usual: usize) -> usize {
        match self {
            Self::NextTask | Self::StartSession | Self::SetReward => usual.min(LARGEST_REPORT),
            Self::EndSession => usual.min(LARGEST_END),
            _ => usual,
        }
    }

    /// Answers a request with this body, or with this query if the route takes no body.
    ///
    /// # Errors
    /// If the request is rejected or fails.
    pub(crate) async fn answer(self, app: Arc<App>, body: Vec<u8>) -> Result<Reply> {
        match self {
            Self::Completions => read_blocking(&app, body, TextCompletionRequest::read).await?.answer(app).await,
            Self::Chat => read_blocking(&app, body, ChatRequest::read).await?.answer(app).await,
            Self::Responses => read_blocking(&app, body, ResponsesRequest::read).await?.answer(app).await,
            Self::Messages => read_blocking(&app, body, MessagesRequest::read).await?.answer(app).await,
            Self::CountTokens => read_blocking(&app, body, anthropic::count_tokens).await,
            Self::Generate => read_blocking(&app, body, GenerateRequest::read).await?.answer(app).await,
            Self::Tokenize => read_blocking(&app, body, tokens::tokenize).await,
            Self::Detokenize => read_blocking(&app, body, tokens::detokenize).await,
            Self::Models => Ok(Reply::json(models(&app))),
            Self::Health if app.engine().is_none_or(InferenceEngine::is_running) => Ok(Reply::json(json!({"status": "ok"}))),
            Self::Health => Err(ApiError::new(503, "the engine has ended after an error; restart the server")),
            Self::Version => Ok(Reply::json(json!({"version": app.card.version}))),
            Self::Metrics => Ok(Reply::text(metrics::text(&app))),
            Self::Classify => read_blocking(&app, body, ScoreRequest::classify).await?.answer(app).await,
            Self::Score => read_blocking(&app, body, ScoreRequest::score).await?.answer(app).await,
            Self::Pause => weights::pause(&app, &String::from_utf8_lossy(&body)).await,
            Self::Resume => weights::resume(&app).await,
            Self::ResetPrefixCache => weights::reset_prefix_cache(&app).await,
            Self::IsPaused => weights::is_paused(&app),
            Self::WeightInfo => weights::weight_info(&app),
            Self::WeightChecker => read_blocking(&app, body, weights::weight_checker).await,
            Self::CollectiveRpc => read_blocking(&app, body, weights::collective_rpc).await?.install(&app).await,
            Self::LoadAdapter => read_blocking(&app, body, weights::load_adapter).await?.install(&app).await,
            Self::UnloadAdapter => read_blocking(&app, body, weights::unload_adapter).await,
            Self::NextTask => {
                let limit = read_blocking(&app, body, drivers::read_wait).await?;
                drivers::next_task(&app, limit).await
            }
            Self::StartSession => read_blocking(&app, body, drivers::start_session).await,
            Self::SetReward => read_blocking(&app, body, drivers::set_reward).await,
            Self::EndSession => drivers::end_session(&app, &body),
        }
    }
}

/// Parses a body on a blocking thread, since chat templates and tokenizers may take long.
async fn read_blocking<T: Send + 'static>(
    app: &Arc<App>,
    body: Vec<u8>,
    read: impl FnOnce(&App, Fields) -> Result<T> + Send + 'static,
) -> Result<T> {
    let app = Arc::clone(app);
    let work = spawn_blocking(move || Fields::parse(&body).and_then(|fields| read(&app, fields)));
    // A panic has already been printed.
    work.await.unwrap_or_else(|_| Err(ApiError::new(500, "reading the request failed; the server's log says why")))
}

fn models(app: &App) -> Value {
    let model = |name: &str, root: &str, parent: Option<&str>| {
        json!({
            "id": name, "object": "model", "created": app.created, "owned_by": "rlhost", "root": root, "parent": parent,
            "max_model_len": app.max_model_len(), "dtype": app.card.dtype,
        })
    };
    let own = app.card.names[0].as_str();
    let adapters = app.weights.iter().flat_map(|weights| weights.names());
    let mut all: Vec<Value> = app.card.names.iter().map(|name| model(name, own, None)).collect();
    all.extend(adapters.map(|(name, root)| model(&name, &root, Some(own))));
    json!({"object": "list", "data": all})
}
