//! Scores texts with a reward model: the score of a text is the value at its last token that is not padding.

use crate::model::{self, FrozenModel};
use crate::ops::Forest;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// Maximum number of tokens that pass through the model at once, unless one text alone has more.
const MOST_TOKENS: usize = 8192;

/// Reward model that scores one part of a request at a time, so that a long request does not block others.
pub struct RewardModelScorer {
    model: Arc<FrozenModel>,
    pad: Option<u32>,
    /// Locked while texts are scored, even if their client has disconnected.
    permit: Arc<Mutex<()>>,
    /// Number of requests that are being scored or wait.
    waiting: AtomicUsize,
    most_waiting: usize,
    pub(crate) max_model_len: usize,
    /// Numbers of texts and of tokens scored so far.
    pub(crate) scored: [AtomicU64; 2],
}

/// Reason why texts are not scored.
pub(crate) enum ScoringError {
    /// The waiting queue is full.
    Full,
    Failed(String),
}

/// Counts a request while it waits or is being scored.
struct WaitingRequestGuard<'a>(&'a AtomicUsize);

impl Drop for WaitingRequestGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RewardModelScorer {
    /// Creates a scorer for a model with a value head. Texts have at most `max_model_len` tokens, and at most `most_waiting` requests wait.
    pub fn new(model: FrozenModel, pad: Option<u32>, max_model_len: usize, most_waiting: usize) -> Self {
        let (place, waiting, scored) = Default::default();
        Self { model: Arc::new(model), pad, permit: place, waiting, most_waiting, max_model_len, scored }
    }

    /// Returns the size of the model's vocabulary.
    pub(crate) fn vocabulary(&self) -> usize {
        self.model.architecture().vocab_size
    }

    /// Returns the number of requests that wait or are being scored.
    pub(crate) fn pending_requests(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Scores texts, none of which may be empty or have unknown tokens.
    pub(crate) async fn values(&self, mut texts: Vec<Vec<u32>>) -> Result<Vec<f32>, ScoringError> {
        let before = self.waiting.fetch_add(1, Ordering::SeqCst);
        let _counted = WaitingRequestGuard(&self.waiting);
        if before > self.most_waiting {
            return Err(ScoringError::Full);
        }
        let mut values = Vec::with_capacity(texts.len());
        // If the client disconnects, this future is dropped between two parts.
        while !texts.is_empty() {
            let part: Vec<Vec<u32>> = texts.drain(..first_part(&texts)).collect();
            let tokens: usize = part.iter().map(Vec::len).sum();
            self.scored[0].fetch_add(part.len() as u64, Ordering::SeqCst);
            self.scored[1].fetch_add(tokens as u64, Ordering::SeqCst);
            let (model, pad, place) = (Arc::clone(&self.model), self.pad, Arc::clone(&self.permit).lock_owned().await);
            let work = spawn_blocking(move || {
                let _place = place;
                score(&model, &part, pad)
            });
            let work = work.await;
            // A panic has already been printed.
            let work = work.map_err(|_| ScoringError::Failed("scoring failed; the server's log says why".into()))?;
            values.extend(work.map_err(|e| ScoringError::Failed(e.to_string()))?);
        }
        Ok(values)
    }
}

/// Returns how many of the first texts pass through the model next.
fn first_part(texts: &[Vec<u32>]) -> usize {
    let mut tokens = 0;
    let fitting = texts.iter().take_while(|text| {
        tokens += text.len();
        tokens <= MOST_TOKENS
    });
    fitting.count().max(1)
}

fn score(model: &FrozenModel, texts: &[Vec<u32>], pad: Option<u32>) -> model::Result<Vec<f32>> {
    let (mut forest, mut rows) = (Forest::new(), Vec::with_capacity(texts.len()));
    for text in texts {
        let segment = forest.push(text, None);
        let last = text.iter().rposition(|token| Some(*token) != pad).unwrap_or(0);
        rows.push(forest.segments()[segment].start + last);
    }
    Ok(model.values(&forest, &rows)?.unwrap_or_default())
}
