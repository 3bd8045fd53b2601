//! A teacher on an inference server, which says the log-probabilities of completions' tokens.

use super::servers::client;
use crate::config::words::counted;
use crate::experience::Experience;
use crate::{Error, Result};
use rlhost_web::inference::{InferenceClient, InferenceFailure, RequestTimeout, ServerDescription};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Number of texts that the server gets at a time, so that it can compute them together.
const CONCURRENT: usize = 16;

/// Interval between attempts to reach the server.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A teacher on an inference server.
pub(crate) struct TeacherServer {
    client: InferenceClient,
    server: ServerDescription,
    /// Time limit for an answer, and for waiting until the server can be reached.
    timeout: Duration,
}

impl TeacherServer {
    /// Connects to a server, waiting until it answers.
    ///
    /// # Errors
    /// If the URL is not that of an inference server, or none answers within `timeout`.
    pub(crate) fn connect(url: &str, timeout: Duration) -> Result<Self> {
        let client = client(url)?;
        let server = retried(&client, timeout, || client.describe()).map_err(|e| Error::setting("teacher_server", e))?;
        Ok(Self { client, server, timeout })
    }

    /// Returns a description of the server and its model.
    pub(crate) fn describe(&self) -> String {
        format!("{} with {} at {}", self.server.kind.name(), self.server.model, self.client.server())
    }

    /// Returns the log-probabilities of the tokens of these rows' completions, in the order of the experience's flat token columns.
    ///
    /// # Errors
    /// If the server refuses a text, or can't be reached for too long.
    pub(super) fn logp(&self, e: &Experience, rows: Range<usize>) -> Result<Vec<f32>> {
        let (first, count) = (rows.start, rows.len());
        let (next, scored) = (AtomicUsize::new(0), Mutex::new(vec![Ok(Vec::new()); count]));
        let work = || {
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                if place >= count {
                    return;
                }
                let own = self.logp_of_row(e, first + place);
                if own.is_err() {
                    // The other rows are of no use.
                    next.store(count, Ordering::Relaxed);
                }
                scored.lock().unwrap_or_else(PoisonError::into_inner)[place] = own;
            }
        };
        thread::scope(|scope| {
            for _ in 1..CONCURRENT.min(count) {
                // If no more threads can be started, the running ones do the rest.
                let _ = thread::Builder::new().name("teacher".into()).spawn_scoped(scope, work);
            }
            work();
        });
        let scored = scored.into_inner().unwrap_or_else(PoisonError::into_inner);
        let rows = scored.into_iter().collect::<std::result::Result<Vec<_>, InferenceFailure>>();
        Ok(rows.map_err(|failure| Error::TeacherServer(failure.to_string()))?.concat())
    }

    fn logp_of_row(&self, e: &Experience, row: usize) -> std::result::Result<Vec<f32>, InferenceFailure> {
        let (prompt, completion) = (e.prompt_of(row), &e.rollouts[row].tokens);
        let tokens = [prompt, completion].concat();
        let all =
            retried(&self.client, self.timeout, || self.client.score(&tokens, &self.server, RequestTimeout::For(self.timeout)))?;
        // Nothing predicts the first token of a text.
        let mut own = all[prompt.len().saturating_sub(1)..].to_vec();
        own.splice(0..0, std::iter::repeat_n(0.0, completion.len() - own.len()));
        Ok(own)
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
