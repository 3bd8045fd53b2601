//! Request in progress.

use super::jobs::EngineJob;
use super::prefix_cache;
use super::request::{EngineEvent, EngineRequest, FinishReason, RandomStream, ScoredToken};
use crate::model::KvCache;
use crate::ops::logprob::log_sum_exp;
use crate::ops::sampler::stream;
use rand_chacha::ChaCha8Rng;
use std::ops::Range;
use tokio::sync::mpsc::UnboundedSender;

/// Request with its tokens so far, and the keys and values of the tokens that were read.
pub(super) struct EngineSequence {
    pub request: EngineRequest,
    events: UnboundedSender<EngineEvent>,
    /// Prompt and sampled tokens.
    pub tokens: Vec<u32>,
    pub cache: KvCache,
    rng: ChaCha8Rng,
    scored: Vec<ScoredToken>,
    /// Number of prompt tokens found in the cache.
    cached: usize,
    /// Whether the prompt has been read and the client has been notified.
    begun: bool,
    /// Whether some keys and values were computed with weights that have been replaced.
    pub stale: bool,
    /// How the request ended; `None` while it is in progress.
    pub ended: Option<SequenceEnd>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequenceEnd {
    Finished(FinishReason),
    /// The client disconnected.
    Abandoned,
    Failed,
}

impl EngineSequence {
    /// Starts a request whose first tokens were found in the cache.
    pub(super) fn new(job: EngineJob, cache: KvCache) -> Self {
        let EngineJob { request, events } = job;
        let RandomStream { seed, generation, row, sample } = request.random;
        let rng = stream(seed, generation, row, sample);
        let (tokens, cached) = (request.tokens.to_vec(), cache.len());
        Self { request, events, tokens, cache, rng, scored: Vec::new(), cached, begun: false, stale: false, ended: None }
    }

    /// Returns the number of tokens that were read.
    pub(super) fn read(&self) -> usize {
        self.cache.len()
    }

    /// Returns the number of tokens to read before the next one can be sampled.
    pub(super) fn unread(&self) -> usize {
        self.tokens.len() - self.read()
    }

    /// Returns the number of tokens to read before the prefix that other requests can share is complete: the prompt without its last token,
    /// which every request reads itself. None if the prompt is scored, since all of it is read then.
    pub(super) fn unshared(&self) -> Option<usize> {
        let shared = self.request.tokens.len().checked_sub(1).filter(|_| !self.request.scoring.scores_prompt && !self.begun)?;
        shared.checked_sub(self.read())
    }

    /// Returns whether the prefix that other requests can share was just completed.
    pub(super) fn completed_prefix(&self) -> bool {
        self.unshared() == Some(0) && self.cached < self.read() && !self.stale
    }

    /// Returns whether the sequence is reading its prompt, or rereading what it had read before it paused.
    pub(super) fn is_reading(&self) -> bool {
        !self.begun || self.unread() > 1
    }

    /// Returns whether the sequence scores its prompt.
    pub(super) fn is_scoring(&self) -> bool {
        self.request.scoring.scores_prompt && !self.begun
    }

    /// Returns the number of positions that the sequence will soon need.
    pub(super) fn needed_positions(&self) -> usize {
        self.tokens.len() + 1
    }

    /// Drops the keys and values to make room for others. They are recomputed when the sequence continues.
    pub(super) fn pause(&mut self, empty: KvCache) {
        (self.cache, self.stale) = (empty, false);
    }

    /// Returns the length of the prefix that another request could share once it is read.
    pub(super) fn shared_with(&self, request: &EngineRequest) -> usize {
        if self.request.salt == request.salt && !self.stale {
            prefix_cache::common(&self.request.tokens, &request.tokens)
        } else {
            0
        }
    }

    /// Ends the request if its client has disconnected.
    pub(super) fn notice_client(&mut self) {
        if self.ended.is_none() && self.events.is_closed() {
            self.ended = Some(SequenceEnd::Abandoned);
        }
    }

    /// Returns the id of the adapter; 0 for none.
    pub(super) fn adapter(&self) -> u64 {
        self.request.adapter.as_ref().map_or(0, |adapter| adapter.id())
    }

    /// Ends the request with the tokens that it has.
    pub(super) fn abort(&mut self) {
        if self.ended.is_none() {
            self.finish(FinishReason::Abort);
        }
    }

    /// Ends the request with an error.
    pub(super) fn fail(&mut self, detail: String) {
        self.ended = Some(SequenceEnd::Failed);
        // The client may have disconnected.
        let _ = self.events.send(EngineEvent::Failed(detail));
    }

    /// Returns which tokens need their logits, as a range within the next `count` tokens, which a round reads.
    pub(super) fn rows(&self, count: usize) -> Range<usize> {
        if self.is_scoring() { 0..count } else { count - 1..count }
    }

    /// Processes the logits that [`EngineSequence::rows`] requested for the newest tokens; `read` tokens were read before them.
    pub(super) fn accept(&mut self, read: usize, logits: &[f32], version: u64) {
        let vocabulary = logits.len() / self.rows(self.read() - read).len().max(1);
        if self.is_scoring() {
            for (row, logits) in logits.chunks_exact(vocabulary).enumerate() {
                if let Some(&next) = self.request.tokens.get(read + row + 1) {
                    self.scored.push(described(next, logits, self.request.scoring.alternatives, version));
                }
            }
        }
        if self.unread() > 0 {
            return;
        }
        if !std::mem::replace(&mut self.begun, true) {
            let scored = std::mem::take(&mut self.scored);
            let _ = self.events.send(EngineEvent::Prompt { scored, cached: self.cached });
        }
        if self.request.max_tokens == 0 {
            return self.finish(FinishReason::Length);
        }
        self.sample(&logits[logits.len() - vocabulary..], version);
    }

    fn sample(&mut self, logits: &[f32], version: u64) {
        let EngineRequest { sampling, logit_bias, max_tokens, scoring, .. } = &self.request;
        let mut biased = Vec::new();
        let logits = if logit_bias.is_empty() {
            logits
        } else {
            biased.extend_from_slice(logits);
            logit_bias.iter().for_each(|&(token, bias)| biased[token as usize] += bias);
            &biased
        };
        let distribution = sampling.distribution(logits, &mut self.tokens.iter().copied());
        let drawn = sampling.pick(&distribution, &mut self.rng);
        if !drawn.logp.is_finite() {
            return self.fail("the model's output is not finite".into());
        }
        let mut token = ScoredToken { id: drawn.token, logp: drawn.logp, rank: 0, top: Vec::new(), version };
        if let Some(most) = scoring.alternatives {
            token = described(drawn.token, &distribution, Some(most), version);
        }
        if let Some(temperature) = scoring.logp_temperature {
            token.logp = logits[drawn.token as usize] / temperature - log_sum_exp(logits, temperature);
        }
        self.tokens.push(drawn.token);
        if self.events.send(EngineEvent::Token(token)).is_err() {
            self.ended = Some(SequenceEnd::Abandoned);
            return;
        }
        let completion = &self.tokens[self.request.tokens.len()..];
        if self.request.ends.contains(&drawn.token) {
            self.finish(FinishReason::End);
        } else if self.request.stop.as_ref().is_some_and(|stop| stop(completion)) {
            self.finish(FinishReason::Stop);
        } else if completion.len() >= *max_tokens {
            self.finish(FinishReason::Length);
        }
    }

    fn finish(&mut self, finish: FinishReason) {
        self.ended = Some(SequenceEnd::Finished(finish));
        // The client may have disconnected.
        let _ = self.events.send(EngineEvent::Finished(finish));
    }
}

/// Returns a token with its log-probability under these logits.
fn described(id: u32, logits: &[f32], alternatives: Option<usize>, version: u64) -> ScoredToken {
    let normaliser = log_sum_exp(logits, 1.0);
    let own = logits[id as usize];
    let mut token = ScoredToken { id, logp: own - normaliser, rank: 0, top: Vec::new(), version };
    if let Some(most) = alternatives {
        token.rank = 1 + logits.iter().filter(|z| **z > own).count() as u32;
        token.top = likeliest(logits, most).into_iter().map(|id| (id, logits[id as usize] - normaliser)).collect();
    }
    token
}

/// Returns the ids of the greatest finite logits in descending order; ties go to the lower id.
fn likeliest(logits: &[f32], most: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|&id| logits[id as usize] > f32::NEG_INFINITY).collect();
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if most > 0 && most < ids.len() {
        ids.select_nth_unstable_by(most - 1, order);
    }
    ids.truncate(most);
    ids.sort_unstable_by(order);
    ids
}
