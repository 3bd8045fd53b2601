//! What all routes share: the engine, the tokenizer, and the name of the model.

use super::error::{ApiError, Result};
use super::fields::Fields;
use super::unix_time;
use super::weights::ServedWeights;
use crate::data::Tokenizer;
use crate::engine::Engine;
use crate::session::{Session, Sessions};
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
    pub(super) engine: Arc<Engine>,
    pub(super) tokenizer: Tokenizer,
    pub(super) ends: Arc<[u32]>,
    pub(super) card: Arc<ModelCard>,
    pub(super) created: i64,
    /// Open sessions, if only these may ask.
    sessions: Option<Arc<Sessions>>,
    /// The session that a request belongs to.
    pub(super) session: Option<Arc<Session>>,
    pub(super) weights: Option<Arc<ServedWeights>>,
}

impl App {
    /// Creates it.
    pub fn new(engine: Engine, tokenizer: Tokenizer, card: ModelCard) -> Self {
        let (ends, card) = (card.ends.clone().into(), Arc::new(card));
        Self { engine: Arc::new(engine), tokenizer, ends, card, created: unix_time(), sessions: None, session: None, weights: None }
    }

    /// Answers only requests with the keys of these sessions, as which they are recorded.
    pub fn with_sessions(self, sessions: Arc<Sessions>) -> Self {
        Self { sessions: Some(sessions), ..self }
    }

    /// Returns the open sessions, if only these may ask.
    pub(crate) fn sessions(&self) -> Option<&Sessions> {
        self.sessions.as_deref()
    }

    /// Returns the same for a request of a session.
    pub(crate) fn of_session(&self, session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self { session: Some(session), ..self.clone() })
    }

    /// Returns the same with weights that can change, and adapters.
    pub fn with_weights(self, weights: ServedWeights) -> Self {
        Self { weights: Some(Arc::new(weights)), ..self }
    }

    /// Returns its engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
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
        self.engine.options().max_model_len
    }
}
