//! Teachers on inference servers, which say the log-probabilities of completions' tokens.

use super::servers::client;
use super::teacher_record::{CompletionScores, ScoredText, TeacherRecord};
use crate::config::TeacherServerEntry;
use crate::config::words::counted;
use crate::experience::Experience;
use crate::ops::top_divergence::{LikelyToken, check_listed};
use crate::{Error, Result};
use rlhost_web::inference::{InferenceClient, InferenceFailure, RequestTimeout, ServerDescription, TokenScore};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Number of texts that servers get at a time, so that they can compute them together.
const CONCURRENT: usize = 16;

/// Interval between attempts to reach the server.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A teacher on an inference server.
struct ServedTeacher {
    /// Name by which rows choose it; empty for the only one.
    name: String,
    client: InferenceClient,
    server: ServerDescription,
}

/// The teachers of a run on inference servers.
pub(crate) struct TeacherServers {
    all: Vec<ServedTeacher>,
    /// Time limit for an answer, and for waiting until a server can be reached.
    timeout: Duration,
    /// Record of their answers; none outside of training.
    record: Option<Mutex<TeacherRecord>>,
}

impl AsRef<str> for ServedTeacher {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl TeacherServers {
    /// Connects to the servers, waiting until each answers.
    ///
    /// # Errors
    /// If a URL is not that of an inference server, or none answers within `timeout`.
    pub(crate) fn connect<'a>(entries: impl Iterator<Item = TeacherServerEntry<'a>>, timeout: Duration) -> Result<Self> {
        let connected = |entry: TeacherServerEntry<'_>| {
            let client = client(entry.url)?;
            let server = retried(&client, timeout, || client.describe()).map_err(|e| Error::setting("teacher_server", e))?;
            Ok(ServedTeacher { name: entry.name.unwrap_or_default().to_owned(), client, server })
        };
        Ok(Self { all: entries.map(connected).collect::<Result<_>>()?, timeout, record: None })
    }

    /// Returns a description of each server and its model.
    pub(crate) fn describe(&self) -> impl Iterator<Item = String> {
        self.all.iter().map(|ServedTeacher { name, client, server }| {
            let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
            format!("{name}{} with {} at {}", server.kind.name(), server.model, client.server())
        })
    }

    /// Returns the teacher of a row's completions.
    fn of_row(&self, e: &Experience, row: usize) -> &ServedTeacher {
        let prompt = &e.prompts[e.rollouts[row].prompt];
        // Rows that name no teacher are refused when the run starts.
        &self.all[prompt.taught_by(&self.all).unwrap_or(0)]
    }

    /// Records answers, and gives recorded ones instead of asking again.
    pub(super) fn with_record(self, record: TeacherRecord) -> Self {
        Self { record: Some(Mutex::new(record)), ..self }
    }

    /// Checks that each server says this number of likely tokens.
    ///
    /// # Errors
    /// If one does not; says why.
    pub(crate) fn check_likely(&self, count: usize) -> Result<()> {
        // Tokens that every model has.
        const TEXT: [u32; 2] = [0, 1];
        for ServedTeacher { client, server, .. } in &self.all {
            let asked = retried(client, self.timeout, || client.score(&TEXT, count, server, RequestTimeout::For(self.timeout)));
            asked.map_err(|failure| {
                let detail = format!("was asked for the {count} likeliest tokens, for which vLLM has --max-logprobs: {failure}");
                Error::setting("teacher_server", detail)
            })?;
        }
        Ok(())
    }

    /// Returns what the servers say of these rows' completions, with this number of likeliest tokens in place of each token.
    ///
    /// # Errors
    /// If a server refuses a text, can't be reached for too long, or says what is no distribution; or if its answers can't be recorded.
    pub(super) fn scores(&self, e: &Experience, rows: Range<usize>, likely: usize) -> Result<Vec<CompletionScores>> {
        let Some(record) = &self.record else { return self.asked(e, &rows.collect::<Vec<_>>(), likely) };
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        let key = |row: usize| {
            let prompt = e.teacher_prompt_of(row);
            let tokens = [prompt, &e.rollouts[row].tokens].concat();
            ScoredText { teacher: &self.of_row(e, row).server.model, tokens: &tokens, first: prompt.len(), likely }.key()
        };
        let keys: Vec<String> = rows.clone().map(key).collect();
        let mut all = keys.iter().map(|key| record.find(key)).collect::<Result<Vec<_>>>()?;
        let missing: Vec<usize> = (0..keys.len()).filter(|&place| all[place].is_none()).collect();
        let new = self.asked(e, &missing.iter().map(|place| rows.start + place).collect::<Vec<_>>(), likely)?;
        record.append(missing.iter().map(|&place| keys[place].clone()).zip(new.iter().cloned()))?;
        missing.into_iter().zip(new).for_each(|(place, scored)| all[place] = Some(scored));
        Ok(all.into_iter().flatten().collect())
    }

    /// Asks the servers what they say of these rows' completions.
    fn asked(&self, e: &Experience, rows: &[usize], likely: usize) -> Result<Vec<CompletionScores>> {
        let (next, scored) = (AtomicUsize::new(0), Mutex::new(vec![Ok(CompletionScores::default()); rows.len()]));
        let take = || {
            let place = next.fetch_add(1, Ordering::Relaxed);
            rows.get(place).map(|&row| (place, row))
        };
        let work = || {
            while let Some((place, row)) = take() {
                let own = self.scored_row(e, row, likely);
                if own.is_err() {
                    // The other rows are of no use.
                    next.store(rows.len(), Ordering::Relaxed);
                }
                scored.lock().unwrap_or_else(PoisonError::into_inner)[place] = own;
            }
        };
        thread::scope(|scope| {
            for _ in 1..CONCURRENT.min(rows.len()) {
                // If no more threads can be started, the running ones do the rest.
                let _ = thread::Builder::new().name("teacher".into()).spawn_scoped(scope, work);
            }
            work();
        });
        let scored = scored.into_inner().unwrap_or_else(PoisonError::into_inner);
        let all = scored.into_iter().collect::<std::result::Result<Vec<_>, InferenceFailure>>();
        let all = all.map_err(|failure| Error::TeacherServer(failure.to_string()))?;
        let faults = all.iter().flat_map(|scores| &scores.likely).filter_map(|tokens| check_listed(tokens).err());
        match faults.into_iter().next() {
            None => Ok(all),
            Some(fault) => Err(Error::TeacherServer(format!("said what is no distribution: {fault}"))),
        }
    }

    fn scored_row(&self, e: &Experience, row: usize, likely: usize) -> std::result::Result<CompletionScores, InferenceFailure> {
        let (prompt, completion) = (e.teacher_prompt_of(row), &e.rollouts[row].tokens);
        let tokens = [prompt, completion].concat();
        let ServedTeacher { client, server, .. } = self.of_row(e, row);
        let all = retried(client, self.timeout, || client.score(&tokens, likely, server, RequestTimeout::For(self.timeout)))?;
        let own = &all[prompt.len().saturating_sub(1)..];
        // Nothing predicts the first token of a text.
        let unknown = completion.len() - own.len();
        let tokens_of = |token: &TokenScore| token.likely.iter().map(|&(id, logp)| LikelyToken { id, logp }).collect();
        let likely_tokens = std::iter::repeat_n(Vec::new(), unknown).chain(own.iter().map(tokens_of));
        Ok(CompletionScores {
            logp: std::iter::repeat_n(0.0, unknown).chain(own.iter().map(|token| token.logp)).collect(),
            likely: if likely == 0 { Vec::new() } else { likely_tokens.collect() },
        })
    }
}

/// Sends a request again until the server can be reached, for at most `limit`.
fn retried<T>(
    client: &InferenceClient,
    limit: Duration,
    request: impl Fn() -> std::result::Result<T, InferenceFailure>,
) -> std::result::Result<T, InferenceFailure> {
    let begun = Instant::now();
    let mut waits = false;
    loop {
        match request() {
            Err(InferenceFailure::Unreachable { .. }) if begun.elapsed() < limit => {
                if !std::mem::replace(&mut waits, true) {
                    let seconds = counted(limit.as_secs(), "second");
                    tracing::info!("waiting for the teacher at {}, for at most {seconds} (rollout_timeout_s)", client.server());
                }
                sleep(RETRY_INTERVAL.min(limit));
            }
            other => return other,
        }
    }
}
