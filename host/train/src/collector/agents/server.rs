//! The agents' server. It keeps running, and keeps its address, for the whole run; each generation has its own engine.

use crate::config::AgentEntry;
use crate::data::Tokenizer;
use crate::model::IncrementalDecoder;
use crate::plan::RolloutPlan;
use crate::run::RunFiles;
use crate::{Error, Result};
use rand::TryRng;
use rand::rngs::SysRng;
use rlhost_serve::engine::{EngineOptions, InferenceEngine};
use rlhost_serve::sessions::Sessions;
use rlhost_serve::tasks::TaskQueue;
use rlhost_serve::{App, ConnectionLimits, InferenceServer, InferenceServerSettings, ModelCard, check_key, read_keys};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Host for the run's own programs: reachable only from this machine.
const HOST: &str = "127.0.0.1";

/// Environment variable with the API key of external drivers.
const KEY: &str = "RLHOST_AGENT_KEY";

/// Maximum time that a driver's request waits for an episode.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Time that open requests get when the run ends.
const DRAINING: Duration = Duration::from_millis(500);

/// A running server for agents.
pub(super) struct AgentServer {
    server: InferenceServer,
    pub sessions: Arc<Sessions>,
    /// Episodes for external drivers, if these play.
    pub tasks: Option<Arc<TaskQueue>>,
}

impl AgentServer {
    /// Starts the server, at the address for external drivers if there is one, or else on a free local port.
    ///
    /// # Errors
    /// If it can't listen there, or has no key for drivers.
    pub(super) fn start(agents: &[AgentEntry], (tokenizer, ends): (&Tokenizer, &[u32]), folder: &Path) -> Result<Self> {
        let sessions = Arc::<Sessions>::default();
        let (mut tasks, mut keys, mut host, mut port) = (None, Vec::new(), HOST, 0);
        if let Some((entry, address)) = agents.iter().find_map(|entry| Some((entry, entry.address()?))) {
            let wait = LONGEST_WAIT.min(entry.timeout() / 2);
            (host, port) = address;
            keys = keys_of(entry, folder)?;
            tasks = Some(Arc::new(TaskQueue::new(Arc::clone(&sessions), super::report::check, wait)));
        }
        let (names, version) = (vec!["policy".to_owned()], env!("CARGO_PKG_VERSION").to_owned());
        let card = ModelCard { names, ends: ends.to_vec(), version, dtype: None };
        let app = App::from_sessions(Arc::clone(&sessions), tasks.clone(), tokenizer.clone(), card);
        let answer_time = agents.iter().map(AgentEntry::timeout).max().unwrap_or_default();
        let limits = ConnectionLimits { answer_time, ..ConnectionLimits::default() };
        let settings = InferenceServerSettings { host: host.to_owned(), port, keys, limits };
        let server = InferenceServer::start(app, settings).map_err(failed)?;
        if tasks.is_some() {
            tracing::info!("drivers take episodes from http://{}/rl/next_task", server.address());
        }
        Ok(Self { server, sessions, tasks })
    }

    /// Starts an engine with a policy's weights.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn answer_with(&self, model: IncrementalDecoder, version: u64, plan: &RolloutPlan) -> Result<()> {
        let episodes = plan.agents.iter().map(|entry| entry.max_concurrent).fold(0, usize::saturating_add);
        let options = EngineOptions {
            max_model_len: model.architecture().max_positions,
            max_num_seqs: plan.max_num_seqs,
            // Each episode may have as many requests in flight as it has calls.
            max_waiting: episodes.saturating_mul(plan.episode_limits.turns).saturating_mul(2),
            cache_bytes: usize::try_from(EngineOptions::default_cache_bytes()).unwrap_or(usize::MAX),
            // Training waits for all episodes, and nobody for a single token.
            favours_throughput: true,
        };
        self.sessions.answer_with(InferenceEngine::start(model, version, options).map_err(failed)?);
        Ok(())
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address()
    }
}

impl Drop for AgentServer {
    fn drop(&mut self) {
        if let Some(tasks) = &self.tasks {
            tasks.finish();
            self.server.drain(DRAINING);
        }
    }
}

fn failed(error: io::Error) -> Error {
    Error::setting("agent", format!("can't be answered: {error}"))
}

/// Returns the API keys of drivers: from a file, from the environment, or a new one in the run's folder.
fn keys_of(entry: &AgentEntry, folder: &Path) -> Result<Vec<String>> {
    let wrong = |detail: String| Error::setting("agent", detail);
    if let Some(file) = &entry.api_key_file {
        return read_keys(Path::new(file)).map_err(|error| wrong(format!("api_key_file: {error}")));
    }
    if let Some(key) = std::env::var_os(KEY) {
        let key = key.into_string().unwrap_or_default();
        check_key(&key).map_err(|detail| wrong(format!("{KEY}: {detail}")))?;
        return Ok(vec![key]);
    }
    let file = RunFiles(folder).agent_key();
    let made = new_key().map_err(io::Error::other).and_then(|key| {
        // Only the owner can read this file.
        let mut made = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(made, "{key}")?;
        made.persist(&file)?;
        Ok(key)
    });
    let key = made.map_err(|error| wrong(format!("the key of drivers can't be written to {}: {error}", file.display())))?;
    tracing::info!("the key of drivers is in {}", file.display());
    Ok(vec![key])
}

/// Returns a new random key.
pub(super) fn new_key() -> std::result::Result<String, rand::rngs::SysError> {
    let [a, b] = [SysRng.try_next_u64()?, SysRng.try_next_u64()?];
    Ok(format!("rlhost-{a:016x}{b:016x}"))
}
