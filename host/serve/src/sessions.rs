//! Open sessions of a server, and the engine that answers them.

use crate::engine::InferenceEngine;
use crate::session::{AgentSession, SessionRecord, SessionRules};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of closed sessions whose keys are remembered, to report to their agents that they are closed.
const REMEMBERED: usize = 4096;

/// Open sessions of a server, by key.
#[derive(Default)]
pub struct Sessions {
    state: Mutex<SessionTable>,
}

#[derive(Default)]
struct SessionTable {
    open: HashMap<String, Arc<AgentSession>>,
    /// Keys of the most recently closed sessions.
    closed: VecDeque<String>,
    /// Whether a request came with the key of a closed session, which is logged once.
    was_warned: bool,
    /// Engine that answers; `None` while the weights change.
    engine: Option<Arc<InferenceEngine>>,
}

/// Owner of a key.
pub(crate) enum KeyOwner {
    /// An open session.
    Open(Arc<AgentSession>),
    /// Closed session.
    Closed,
    /// No session, or one that is no longer remembered.
    Nobody,
}

impl Sessions {
    /// Answers with this engine from now on.
    pub fn answer_with(&self, engine: InferenceEngine) {
        self.lock().engine = Some(Arc::new(engine));
    }

    /// Ends the engine with all requests in progress, and closes all sessions. The weights may change afterwards.
    pub fn stop(&self) {
        let engine = {
            let mut state = self.lock();
            let keys: Vec<String> = state.open.keys().cloned().collect();
            keys.iter().for_each(|key| drop(state.close(key)));
            state.engine.take()
        };
        // A request in progress may hold a reference, too.
        engine.iter().for_each(|engine| engine.end());
    }

    /// Opens a session under this key.
    pub fn open(&self, key: String, seed: u64, rules: SessionRules) -> Arc<AgentSession> {
        let session = Arc::new(AgentSession::new(seed, rules));
        self.lock().open.insert(key, Arc::clone(&session));
        session
    }

    /// Closes a session: its key is no longer valid. Returns the session's record.
    pub fn close(&self, key: &str) -> SessionRecord {
        let session = self.lock().close(key);
        session.map(|session| session.close()).unwrap_or_default()
    }

    /// Returns the owner of a key.
    pub(crate) fn find(&self, key: &[u8]) -> KeyOwner {
        let mut state = self.lock();
        let Ok(key) = std::str::from_utf8(key) else { return KeyOwner::Nobody };
        if let Some(session) = state.open.get(key) {
            return KeyOwner::Open(Arc::clone(session));
        }
        if !state.closed.iter().any(|closed| closed == key) {
            return KeyOwner::Nobody;
        }
        if !std::mem::replace(&mut state.was_warned, true) {
            tracing::warn!(
                "a request with the key of an episode that has ended was refused: it came too late, or has another's key"
            );
        }
        KeyOwner::Closed
    }

    /// Returns the engine, unless the weights are changing.
    pub(crate) fn engine(&self) -> Option<Arc<InferenceEngine>> {
        self.lock().engine.clone()
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionTable {
    fn close(&mut self, key: &str) -> Option<Arc<AgentSession>> {
        let session = self.open.remove(key)?;
        if self.closed.len() >= REMEMBERED {
            self.closed.pop_front();
        }
        self.closed.push_back(key.to_owned());
        Some(session)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.stop();
    }
}
