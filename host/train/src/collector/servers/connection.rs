//! A connection to one server: loads a version of the policy, verifies that the server computes with it, and requests completions.

use super::publisher::{PolicyNumbers, PublishedPolicy};
use crate::config::RolloutSync;
use rlhost_web::inference::{
    Completion, CompletionRequest, InferenceClient, InferenceFailure, RandomStreamId, RequestTimeout, SamplingParameters,
    ServerDescription, ServerKind,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Largest tolerated difference: a multiple of the one measured first, and a minimum. Both are for one precision.
const NOISE: (f64, f64) = (8.0, 1e-4);

/// A fault of vLLM 0.32 on CPUs: `reload_weights` leaves the packed copy of the output matrix as it was if it is tied to the embeddings.
const TIED: &str = "; vLLM on a CPU keeps the old output matrix of a model with tied embeddings when it loads weights: train an \
                    adapter (rollout_sync = \"lora\"), or use a GPU or another server";

/// Number of tokens that are sampled after each prefix of the probe.
const SAMPLES: usize = 8;

/// Why a server can't be used.
#[derive(Clone, Debug, Error)]
pub(super) enum ServerFault {
    #[error(transparent)]
    Failed(#[from] InferenceFailure),
    #[error("it does not answer")]
    Silent,
    #[error(
        "it computes with other weights than it was sent: the log-probabilities of a text differ from the policy's by {found:.2e} on \
         average, and by at most {allowed:.2e} in its precision{remark}"
    )]
    OtherWeights { found: f64, allowed: f64, remark: &'static str },
    #[error(
        "it serves another model: the log-probabilities of a text differ from the policy's by {found:.2e} on average, and by at most \
         {allowed:.0e} in its precision; start it anew with the model that the run starts with (it keeps the weights of a run that has \
         sent it all of them)"
    )]
    OtherModel { found: f64, allowed: f64 },
    #[error(
        "it serves another model: {differing} of {all} tensors differ from those that it should have, as {first}; start it anew with the \
         model that the run starts with (it keeps the weights of a run that has sent it all of them)"
    )]
    OtherTensors { differing: usize, all: usize, first: String },
    #[error(
        "it reads at most {most} tokens, and the prompt has {prompt} and its completion up to {completion}, which the model could read; \
         start it with a larger --max-model-len, or set max_prompt_length or max_completion_length"
    )]
    TooShort { most: usize, prompt: usize, completion: usize },
    #[error("its tokens were written with weights of version {found:?}, and the policy's are {expected:?}")]
    OtherVersion { found: String, expected: String },
}

impl ServerFault {
    /// Returns whether the request is at fault rather than the server.
    pub(super) fn is_of_the_request(&self) -> bool {
        match self {
            Self::TooShort { .. } => true,
            Self::Failed(failure) => failure.is_of_the_request(),
            _ => false,
        }
    }

    /// Returns whether waiting is useless.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            Self::OtherModel { .. } | Self::OtherTensors { .. } | Self::TooShort { .. } => true,
            Self::Failed(failure) => failure.is_of_the_request(),
            Self::Silent | Self::OtherWeights { .. } | Self::OtherVersion { .. } => false,
        }
    }
}

/// A server that has loaded a version of the policy.
#[derive(Clone, Debug)]
pub(super) struct SyncedServer {
    server: ServerDescription,
    /// Name of the adapter in requests; none if the server has all weights of the version.
    adapter: Option<String>,
    /// The server's own name for the version, which each token must carry; none for a server without version names.
    label: Option<String>,
    published: Arc<PublishedPolicy>,
    /// The version of the policy.
    pub version: u64,
    /// Mean difference of log-probabilities from the policy's.
    pub difference: f64,
}

/// A connection to a server.
pub(super) struct Connection {
    client: InferenceClient,
    /// Time limit of an answer.
    patience: Duration,
    /// Bits of the first measured difference; 0 before it is measured.
    noise: AtomicU64,
    /// Time of the last successful verification.
    proved_at: Mutex<Instant>,
    /// Whether the server's tensors were compared with the trainer's since it was last lost.
    is_compared: AtomicBool,
}

/// Interval of verifying a server without version names while it computes.
const PROOF: Duration = Duration::from_secs(2);

impl Connection {
    pub(super) fn new(client: InferenceClient, patience: Duration) -> Self {
        let (noise, proved_at, is_compared) = (AtomicU64::new(0), Mutex::new(Instant::now()), AtomicBool::new(false));
        Self { client, patience, noise, proved_at, is_compared }
    }

    /// Returns the server's scheme, name and port.
    pub(super) fn name(&self) -> &str {
        self.client.server()
    }

    /// Returns whether the server answers at all.
    pub(super) fn is_alive(&self) -> bool {
        self.client.is_alive()
    }

    /// Has the server's tensors compared when it is next brought up: it may be another process by then.
    pub(super) fn was_lost(&self) {
        self.is_compared.store(false, Ordering::Relaxed);
    }

    /// Has the server load a version, whatever it has loaded now, and verifies that it computes with it. `before` is what it served until
    /// now.
    pub(super) fn bring_up(
        &self,
        published: &Arc<PublishedPolicy>,
        before: Option<&SyncedServer>,
    ) -> Result<SyncedServer, ServerFault> {
        let server = self.client.describe()?;
        let (adapter, label) = match published.sync {
            RolloutSync::Lora => (Some(published.name.clone()), self.load_adapter(&server, published, before)?),
            RolloutSync::Disk => {
                let label = self.client.replace_weights(server.kind, &published.folder, &published.name, self.patience())?;
                (None, Some(label))
            }
        };
        let (version, published) = (published.version, Arc::clone(published));
        let serving = SyncedServer { server, adapter, label, published, version, difference: 0.0 };
        match self.compare_tensors(&serving).and_then(|()| self.prove(&serving)) {
            Ok(difference) => Ok(SyncedServer { difference, ..serving }),
            Err(trouble) => {
                self.forget(&serving);
                Err(trouble)
            }
        }
    }

    /// Compares the checksums of the server's tensors with those of the trainer's, once until the server is lost. Servers other than
    /// `rlhost serve` lay out tensors of their own.
    fn compare_tensors(&self, serving: &SyncedServer) -> Result<(), ServerFault> {
        if serving.server.kind != ServerKind::Rlhost || self.is_compared.load(Ordering::Relaxed) {
            return Ok(());
        }
        let theirs = self.client.tensor_checksums(self.patience())?;
        // The trainer reads all weights for its own, so only if there are some to compare, and not where they may not fit.
        let is_quantized = serving.published.numbers == PolicyNumbers::Quantized;
        if let Some(theirs) = theirs.filter(|_| !is_quantized)
            && let Some(ours) = serving.published.tensors.checksums()
        {
            let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
            let (all, mut differing) = (names.len(), names.into_iter().filter(|name| theirs.get(*name) != ours.get(*name)));
            if let Some(first) = differing.next().cloned() {
                return Err(ServerFault::OtherTensors { differing: 1 + differing.count(), all, first });
            }
        }
        self.is_compared.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the difference between a server's log-probabilities and the trainer's, if the server's precision explains it.
    fn prove(&self, serving: &SyncedServer) -> Result<f64, ServerFault> {
        let published = &serving.published;
        let difference = published.probe.difference(|beginning| self.sample(serving, beginning))?;
        let noise = f64::from_bits(self.noise.load(Ordering::Relaxed));
        let allowed = (NOISE.0 * noise).max(NOISE.1);
        let most = most_difference(published.numbers, &serving.server);
        let is_first = noise == 0.0;
        if !difference.is_finite() || is_first && difference > most {
            return Err(ServerFault::OtherModel { found: difference, allowed: most });
        }
        if is_first {
            // Zero means that nothing was measured.
            self.noise.store(difference.max(f64::MIN_POSITIVE).to_bits(), Ordering::Relaxed);
        } else if difference > allowed {
            let is_reloaded = serving.server.kind == ServerKind::Vllm && serving.adapter.is_none();
            return Err(ServerFault::OtherWeights { found: difference, allowed, remark: if is_reloaded { TIED } else { "" } });
        }
        *self.proved_at() = Instant::now();
        Ok(difference)
    }

    /// Samples tokens after a text, each with its log-probability under the model's plain logits.
    fn sample(&self, serving: &SyncedServer, text: &[u32]) -> Result<Vec<(u32, f32)>, InferenceFailure> {
        let parameters = SamplingParameters {
            max_tokens: 1,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            ends: Vec::new(),
            stop: Vec::new(),
        };
        let request = CompletionRequest {
            model: serving.server.model.clone(),
            adapter: serving.adapter.clone(),
            prompt: text.to_vec(),
            samples: SAMPLES,
            parameters,
            logp_temperature: 1.0,
            random: RandomStreamId { seed: 0, generation: serving.version, row: 0, sample: 0 },
            salt: serving.published.name.clone(),
        };
        let completions = self.client.complete(&request, serving.server.kind, self.patience())?;
        Ok(completions.iter().flat_map(|one| one.tokens.iter().copied().zip(one.logp.iter().copied())).collect())
    }

    fn proved_at(&self) -> MutexGuard<'_, Instant> {
        self.proved_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the server load a version as an adapter, and returns the server's name of it, if it has one.
    fn load_adapter(
        &self,
        server: &ServerDescription,
        published: &PublishedPolicy,
        before: Option<&SyncedServer>,
    ) -> Result<Option<String>, InferenceFailure> {
        let kind = server.kind;
        // It may have been loaded before the connection was lost.
        let _ = self.client.unload_adapter(kind, &published.name);
        self.client.load_adapter(kind, &published.name, &published.folder, self.patience())?;
        if let Some(before) = before.and_then(|before| before.adapter.as_ref()).filter(|before| **before != published.name) {
            // A server that has been restarted does not know the adapter.
            if self.client.unload_adapter(kind, before).is_err() {
                self.was_lost();
            }
        }
        match kind {
            // Names are never reused, so they serve as versions.
            ServerKind::Vllm | ServerKind::Sglang => Ok(None),
            ServerKind::Rlhost => Ok(self.client.weight_info(kind)?.adapters.remove(&published.name)),
        }
    }

    /// Requests completions, all of whose tokens were written with this version.
    pub(super) fn complete(&self, serving: &SyncedServer, request: &CompletionRequest) -> Result<Vec<Completion>, ServerFault> {
        let mut request = request.clone();
        request.parameters.max_tokens = room_of(serving, &request)?;
        request.salt = format!("{} {:?}", serving.adapter.as_ref().unwrap_or(&serving.server.model), serving.label);
        request.model.clone_from(&serving.server.model);
        request.adapter.clone_from(&serving.adapter);
        let completions = self.client.complete(&request, serving.server.kind, self.patience())?;
        let Some(expected) = &serving.label else {
            if self.proved_at().elapsed() > PROOF {
                self.prove(serving)?;
            }
            return Ok(completions);
        };
        let wrong = |found: &str| Err(ServerFault::OtherVersion { found: found.to_owned(), expected: expected.clone() });
        for completion in &completions {
            let (mut at, spans) = (0, &completion.versions);
            for span in spans {
                if span.version != *expected || span.start != at {
                    return wrong(&span.version);
                }
                at = span.end;
            }
            if !spans.is_empty() && at != completion.tokens.len() {
                return wrong("nothing");
            }
        }
        if completions.iter().any(|completion| completion.versions.is_empty()) {
            // The server does not say which weights wrote a token, but whether new ones were loaded since.
            let now = self.client.weight_info(serving.server.kind)?.model;
            if now != *expected {
                return wrong(&now);
            }
        }
        Ok(completions)
    }

    /// Unloads what the run loaded on the server.
    pub(super) fn forget(&self, serving: &SyncedServer) {
        if let Some(adapter) = &serving.adapter {
            // A server that is gone has nothing loaded.
            let _ = self.client.unload_adapter(serving.server.kind, adapter);
        }
    }

    fn patience(&self) -> RequestTimeout {
        RequestTimeout::For(self.patience)
    }
}

/// Returns the mean difference of log-probabilities above which a server must have another model than a policy of this precision.
fn most_difference(policy: PolicyNumbers, server: &ServerDescription) -> f64 {
    match policy {
        PolicyNumbers::F32 if server.computes_in_f32 => 1e-3,
        // In bf16, a model's own are about 0.01.
        PolicyNumbers::F32 | PolicyNumbers::Bf16 => 0.05,
        // The server may have the weights whole.
        PolicyNumbers::Quantized => 0.25,
    }
}

/// Returns the number of tokens that a completion may have: as many as in the run's own process.
fn room_of(serving: &SyncedServer, request: &CompletionRequest) -> Result<usize, ServerFault> {
    let (prompt, completion) = (request.prompt.len(), request.parameters.max_tokens);
    let wanted = completion.min(serving.published.context.saturating_sub(prompt)).max(1);
    match serving.server.max_model_len {
        Some(most) if prompt + wanted > most => Err(ServerFault::TooShort { most, prompt, completion }),
        _ => Ok(wanted),
    }
}
