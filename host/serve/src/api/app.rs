//! What all routes share: the engine, the tokenizer, and the name of the model.

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

/// The served model, as clients know it.
#[derive(Clone, Debug)]
pub struct ModelCard {
    /// Its names; the first is the one in responses.
    pub names: Vec<String>,
    /// Tokens that end a completion.
    pub ends: Vec<u32>,
    /// The program's version.
    pub version: String,
}

/// A served model.
#[derive(Clone)]
pub struct App {
    /// What generates; none for a reward model.
    engine: Option<Arc<InferenceEngine>>,
    /// What scores, for a reward model.
    pub(super) scorer: Option<Arc<RewardModelScorer>>,
    pub(super) tokenizer: Tokenizer,
    pub(super) ends: Arc<[u32]>,
    pub(super) card: Arc<ModelCard>,
    pub(super) created: i64,
    /// Open sessions, if only these may ask.
    sessions: Option<Arc<Sessions>>,
    /// The session that a request belongs to.
    pub(super) session: Option<Arc<AgentSession>>,
    pub(super) weights: Option<Arc<ServedWeights>>,
    /// Episodes for drivers elsewhere, if there may be any.
    pub(super) tasks: Option<Arc<TaskQueue>>,
    /// The name under which a request has reached the server.
    pub(super) host: Option<String>,
}

impl App {
    /// Creates it for a model that generates.
    pub fn new(engine: InferenceEngine, tokenizer: Tokenizer, card: ModelCard) -> Self {
        Self { engine: Some(Arc::new(engine)), ..Self::from_card(tokenizer, card) }
    }

    /// Creates it for sessions, as which requests are recorded. Only their owners may ask, and the sessions' engine answers. If there are
    /// `tasks`, drivers take them.
    pub fn from_sessions(sessions: Arc<Sessions>, tasks: Option<Arc<TaskQueue>>, tokenizer: Tokenizer, card: ModelCard) -> Self {
        Self { sessions: Some(sessions), tasks, ..Self::from_card(tokenizer, card) }
    }

    /// Creates it for a reward model.
    pub fn from_scorer(scorer: RewardModelScorer, tokenizer: Tokenizer, card: ModelCard) -> Self {
        Self { scorer: Some(Arc::new(scorer)), ..Self::from_card(tokenizer, card) }
    }

    fn from_card(tokenizer: Tokenizer, card: ModelCard) -> Self {
        let (engine, scorer, weights, sessions, session) = Default::default();
        let (ends, card, tasks, host) = (card.ends.clone().into(), Arc::new(card), None, None);
        Self { engine, scorer, tokenizer, ends, card, created: unix_time(), weights, sessions, session, tasks, host }
    }

    /// Returns the open sessions, if only these may ask.
    pub(crate) fn sessions(&self) -> Option<&Sessions> {
        self.sessions.as_deref()
    }

    /// Returns the session that a request belongs to.
    pub(crate) fn session(&self) -> Option<&AgentSession> {
        self.session.as_deref()
    }

    /// Returns the same for a request of a session.
    pub(crate) fn for_session(&self, session: Arc<AgentSession>) -> Arc<Self> {
        let engine = self.sessions.as_ref().and_then(|sessions| sessions.engine()).or_else(|| self.engine.clone());
        Arc::new(Self { session: Some(session), engine, ..self.clone() })
    }

    /// Returns the same for a request of a driver, which has reached the server under this name.
    pub(crate) fn for_driver(&self, host: &str) -> Arc<Self> {
        Arc::new(Self { host: Some(host.to_owned()), ..self.clone() })
    }

    /// Returns the same with weights that can change, and adapters.
    pub fn with_weights(self, weights: ServedWeights) -> Self {
        Self { weights: Some(Arc::new(weights)), ..self }
    }

    /// Returns its engine, unless it is a reward model's.
    pub fn engine(&self) -> Option<&InferenceEngine> {
        self.engine.as_deref()
    }

    /// Returns its engine.
    ///
    /// # Errors
    /// If the model is a reward model.
    pub(super) fn generator(&self) -> Result<&InferenceEngine> {
        let detail = "the model is a reward model, which generates nothing; use /classify or /score";
        let refused =
            || if self.sessions.is_some() { ApiError::new(410, "the session has ended") } else { ApiError::invalid(detail) };
        self.engine.as_deref().ok_or_else(refused)
    }

    /// Returns its tokenizer.
    #[cfg(test)]
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the names of the model and of its adapters.
    fn names(&self) -> Vec<String> {
        let adapters = self.weights.iter().flat_map(|weights| weights.names());
        self.card.names.iter().cloned().chain(adapters.map(|(name, _)| name)).collect()
    }

    /// Takes the name of the model, which may be left out.
    pub(super) fn model_of(&self, fields: &mut Fields) -> Result<String> {
        let name = fields.text("model")?;
        match name {
            // In a session there is one model, whatever an agent calls it.
            Some(name) if self.session.is_none() && !self.names().contains(&name) => {
                let served = self.names().join(", ");
                Err(ApiError::field("model", format!("there is no {name:?}; served: {served}")).with_status(404))
            }
            Some(name) => Ok(name),
            None => Ok(self.card.names[0].clone()),
        }
    }

    /// Takes the salt that keeps a request's prefixes from others.
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
