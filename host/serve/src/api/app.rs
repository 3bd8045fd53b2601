//! State shared by all routes: the engine, the tokenizer, and the names of the model.

use super::error::{ApiError, Result};
use super::fields::Fields;
use super::served_weights::ServedWeights;
use super::unix_time;
use crate::data::Tokenizer;
use crate::engine::InferenceEngine;
use crate::scorer::RewardModelScorer;
use crate::session::AgentSession;
use crate::sessions::Sessions;
use crate::tasks::TaskQueue;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Description of the served model for clients.
#[derive(Clone, Debug)]
pub struct ModelCard {
    /// Names of the model; responses use the first.
    pub names: Vec<String>,
    /// Tokens that end a completion.
    pub ends: Vec<u32>,
    /// Version of the program.
    pub version: String,
    /// Precision in which a model that generates computes, if its weights are as they are stored.
    pub dtype: Option<&'static str>,
}

/// State of a server for one model.
#[derive(Clone)]
pub struct App {
    /// Engine that generates; `None` for a reward model.
    engine: Option<Arc<InferenceEngine>>,
    /// Scorer of a reward model; `None` for a model that generates.
    pub(super) scorer: Option<Arc<RewardModelScorer>>,
    pub(super) tokenizer: Tokenizer,
    pub(super) ends: Arc<[u32]>,
    pub(super) card: Arc<ModelCard>,
    pub(super) created: i64,
    /// Open sessions, if only their agents may send requests.
    sessions: Option<Arc<Sessions>>,
    /// Session of the current request.
    pub(super) session: Option<Arc<AgentSession>>,
    pub(super) weights: Option<Arc<ServedWeights>>,
    /// Episodes for external drivers, if the run accepts any.
    pub(super) tasks: Option<Arc<TaskQueue>>,
    /// Host name by which the current request reached the server.
    pub(super) host: Option<String>,
}

impl App {
    /// Creates the state of a server for a model that generates.
    pub fn new(engine: InferenceEngine, tokenizer: Tokenizer, card: ModelCard) -> Self {
        Self { engine: Some(Arc::new(engine)), ..Self::from_card(tokenizer, card) }
    }

    /// Creates the state of a server for sessions: it answers only requests of open sessions, with the sessions' engine, and records them.
    /// External drivers take their episodes from `tasks`.
    pub fn from_sessions(sessions: Arc<Sessions>, tasks: Option<Arc<TaskQueue>>, tokenizer: Tokenizer, card: ModelCard) -> Self {
        Self { sessions: Some(sessions), tasks, ..Self::from_card(tokenizer, card) }
    }

    /// Creates the state of a server for a reward model.
    pub fn from_scorer(scorer: RewardModelScorer, tokenizer: Tokenizer, card: ModelCard) -> Self {
        Self { scorer: Some(Arc::new(scorer)), ..Self::from_card(tokenizer, card) }
    }

    fn from_card(tokenizer: Tokenizer, card: ModelCard) -> Self {
        let (engine, scorer, weights, sessions, session) = Default::default();
        let (ends, card, tasks, host) = (card.ends.clone().into(), Arc::new(card), None, None);
        Self { engine, scorer, tokenizer, ends, card, created: unix_time(), weights, sessions, session, tasks, host }
    }

    /// Returns the open sessions, if only their agents may send requests.
    pub(crate) fn sessions(&self) -> Option<&Sessions> {
        self.sessions.as_deref()
    }

    /// Returns the session of the current request.
    pub(crate) fn session(&self) -> Option<&AgentSession> {
        self.session.as_deref()
    }

    /// Returns this state for a request of a session.
    pub(crate) fn for_session(&self, session: Arc<AgentSession>) -> Arc<Self> {
        let engine = self.sessions.as_ref().and_then(|sessions| sessions.engine()).or_else(|| self.engine.clone());
        Arc::new(Self { session: Some(session), engine, ..self.clone() })
    }

    /// Returns this state for a request of a driver that reached the server by this host name.
    pub(crate) fn for_driver(&self, host: &str) -> Arc<Self> {
        Arc::new(Self { host: Some(host.to_owned()), ..self.clone() })
    }

    /// Returns this state with adapters and with weights that can be replaced.
    pub fn with_weights(self, weights: ServedWeights) -> Self {
        Self { weights: Some(Arc::new(weights)), ..self }
    }

    /// Returns the engine; `None` for a reward model.
    pub fn engine(&self) -> Option<&InferenceEngine> {
        self.engine.as_deref()
    }

    /// Returns the engine.
    ///
    /// # Errors
    /// If the model is a reward model.
    pub(super) fn generator(&self) -> Result<&InferenceEngine> {
        let detail = "the model is a reward model, which generates nothing; use /classify or /score";
        let refused =
            || if self.sessions.is_some() { ApiError::new(410, "the session has ended") } else { ApiError::invalid(detail) };
        self.engine.as_deref().ok_or_else(refused)
    }

    /// Returns the tokenizer.
    #[cfg(test)]
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the names of the model and of its adapters.
    fn names(&self) -> Vec<String> {
        let adapters = self.weights.iter().flat_map(|weights| weights.names());
        self.card.names.iter().cloned().chain(adapters.map(|(name, _)| name)).collect()
    }

    /// Removes and returns the `model` field, which is optional.
    pub(super) fn model_of(&self, fields: &mut Fields) -> Result<String> {
        let name = fields.text("model")?;
        match name {
            // A session has only one model, whatever name an agent uses.
            Some(name) if self.session.is_none() && !self.names().contains(&name) => {
                let served = self.names().join(", ");
                Err(ApiError::field("model", format!("there is no {name:?}; served: {served}")).with_status(404))
            }
            Some(name) => Ok(name),
            None => Ok(self.card.names[0].clone()),
        }
    }

    /// Removes `cache_salt` and returns the salt: requests share cached prefixes only if their salts are equal.
    pub(super) fn salt(&self, fields: &mut Fields) -> Result<u64> {
        let hash = |salt: String| {
            let mut hasher = DefaultHasher::new();
            salt.hash(&mut hasher);
            hasher.finish()
        };
        Ok(fields.text("cache_salt")?.map_or(0, hash))
    }

    /// Returns the maximum number of tokens of a prompt and its completion.
    pub(super) fn max_model_len(&self) -> usize {
        let of_engine = self.engine.as_ref().map(|engine| engine.options().max_model_len);
        of_engine.or(self.scorer.as_ref().map(|scorer| scorer.max_model_len)).unwrap_or_default()
    }
}
