//! Thread of the engine: admits requests and computes them in rounds.

use super::adapters::{EngineAdapter, EngineWeights};
use super::counters::CounterKind;
use super::gathering::{CallGathering, LONGEST_WAIT};
use super::jobs::{EngineCommand, EngineJob, EngineOptions, SharedEngineState};
use super::pause::{PauseMode, PauseState};
use super::prefill_budget::PrefillBudget;
use super::prefix_cache::{PrefixCache, SHORTEST, common};
use super::request::{EngineEvent, FinishReason};
use super::round_parts::parts_of_threads;
use super::sequence::{EngineSequence, SequenceEnd};
use crate::model::{self, DecodeBatch, IncrementalDecoder, KvCache, Prefix};
use crate::ops::{self, team};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot::Sender;

/// Maximum number of prompt logits that a round computes; scored prompts are therefore read in smaller parts.
const MOST_LOGITS: usize = 1 << 24;

/// Positions of a completion that must fit into memory when its request is admitted. Longer completions may have to pause.
const SPARE: usize = 256;

/// Interval at which a paused engine checks for disconnected clients.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Tokens of a sequence in a round.
struct SequenceStep<'a> {
    sequence: &'a mut EngineSequence,
    /// Number of tokens.
    count: usize,
    logits: Vec<f32>,
    /// Number of tokens read before.
    read: usize,
}

/// State of the engine's thread.
pub(super) struct EngineWorker {
    own: Arc<EngineWeights>,
    options: EngineOptions,
    shared: Arc<SharedEngineState>,
    pausing: PauseState,
    waiting: VecDeque<EngineJob>,
    active: Vec<EngineSequence>,
    /// Sequences that paused to make room for others; the first in the queue continues first.
    paused: VecDeque<EngineSequence>,
    prefixes: PrefixCache,
    chunks: PrefillBudget,
    calls: CallGathering,
    /// How long the last round took.
    round_time: Duration,
}

impl EngineWorker {
    pub(super) fn new(model: IncrementalDecoder, version: u64, options: EngineOptions, shared: Arc<SharedEngineState>) -> Self {
        shared.counters.set_version(version);
        let (waiting, active, paused, prefixes, chunks) = Default::default();
        let calls = CallGathering::default();
        let (own, pausing) = (Arc::new(EngineWeights::new(model, version)), PauseState::No);
        Self { own, options, shared, pausing, waiting, active, paused, prefixes, chunks, calls, round_time: Duration::ZERO }
    }

    /// Works until all senders of commands are dropped.
    pub(super) fn run(&mut self, commands: &Receiver<EngineCommand>) {
        loop {
            while !self.has_work() {
                let Some(command) = self.next_command(commands) else { return };
                self.handle_command(command);
            }
            loop {
                match commands.try_recv() {
                    Ok(command) => self.handle_command(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            if self.has_work() && self.options.favours_throughput && !self.gather(commands) {
                return;
            }
            if self.has_work() {
                // Runs on a thread of the pool: an additional thread would take a processor from one of them.
                rayon::scope(|_| self.round());
            }
            self.end_draining();
        }
    }

    /// Waits for calls that follow finished sequences at once, if they could begin in the next round, and for no longer than a round takes.
    /// Returns whether there are still senders of commands.
    fn gather(&mut self, commands: &Receiver<EngineCommand>) -> bool {
        if self.active.len() + self.paused.len() + self.waiting.len() >= self.options.max_num_seqs {
            self.calls.skip();
            return true;
        }
        if !self.calls.begin() {
            return true;
        }
        let deadline = Instant::now() + self.round_time;
        while self.calls.is_missing() {
            let left = deadline.saturating_duration_since(Instant::now());
            match commands.recv_timeout(LONGEST_WAIT.min(left)) {
                Ok(command) => self.handle_command(command),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        self.calls.end();
        true
    }

    fn has_work(&self) -> bool {
        let under_way = !self.active.is_empty() || !self.paused.is_empty();
        match self.pausing {
            PauseState::No => under_way || !self.waiting.is_empty(),
            PauseState::Draining(_) => under_way,
            PauseState::Paused => false,
        }
    }

    /// Waits for a command; `None` if all senders are dropped.
    fn next_command(&mut self, commands: &Receiver<EngineCommand>) -> Option<EngineCommand> {
        loop {
            if self.waiting.is_empty() && self.active.is_empty() && self.paused.is_empty() {
                return commands.recv().ok();
            }
            match commands.recv_timeout(CLIENT_CHECK_INTERVAL) {
                Ok(command) => return Some(command),
                Err(RecvTimeoutError::Disconnected) => return None,
                // Disconnected clients free their places during a pause, too.
                Err(RecvTimeoutError::Timeout) => self.drop_abandoned(),
            }
        }
    }

    fn handle_command(&mut self, command: EngineCommand) {
        let done = match command {
            EngineCommand::Generate(job) => {
                self.calls.came();
                return self.waiting.push_back(*job);
            }
            EngineCommand::Pause(mode, done) => return self.pause(mode, done),
            EngineCommand::Resume(done) => {
                self.set_pausing(PauseState::No);
                done
            }
            EngineCommand::ClearPrefixCache(done) => {
                self.prefixes.clear();
                done
            }
            EngineCommand::Replace { adapter, model, version, done } => {
                self.replace(adapter.as_deref(), EngineWeights::new(*model, version));
                done
            }
        };
        // The caller may have stopped waiting.
        let _ = done.send(());
    }

    /// Replaces the weights of an adapter or of the engine. Prefixes computed with the old weights are no longer shared.
    fn replace(&mut self, adapter: Option<&EngineAdapter>, loaded: EngineWeights) {
        self.prefixes.clear();
        let id = adapter.map_or(0, EngineAdapter::id);
        let of_it = self.active.iter_mut().chain(&mut self.paused).filter(|sequence| sequence.adapter() == id);
        of_it.filter(|sequence| sequence.read() > 0).for_each(|sequence| sequence.stale = true);
        match adapter {
            Some(adapter) => adapter.set(loaded),
            None => {
                self.shared.counters.set_version(loaded.version);
                self.own = Arc::new(loaded);
            }
        }
    }

    fn pause(&mut self, mode: PauseMode, done: Sender<()>) {
        let mut waiting = match std::mem::take(&mut self.pausing) {
            PauseState::Draining(waiting) => waiting,
            PauseState::No => Vec::new(),
            PauseState::Paused => {
                self.pausing = PauseState::Paused;
                Vec::new()
            }
        };
        waiting.push(done);
        if mode == PauseMode::Abort {
            self.abort();
        }
        if mode == PauseMode::Wait && !matches!(self.pausing, PauseState::Paused) {
            self.pausing = PauseState::Draining(waiting);
            return self.end_draining();
        }
        self.set_pausing(PauseState::Paused);
        answer(waiting);
    }

    /// Pauses once all requests in progress are finished.
    fn end_draining(&mut self) {
        if let PauseState::Draining(waiting) = &mut self.pausing
            && self.active.is_empty()
            && self.paused.is_empty()
        {
            let waiting = std::mem::take(waiting);
            self.set_pausing(PauseState::Paused);
            answer(waiting);
        }
    }

    fn set_pausing(&mut self, pausing: PauseState) {
        self.shared.paused.store(matches!(pausing, PauseState::Paused), Ordering::SeqCst);
        self.pausing = pausing;
    }

    /// Ends all requests with the tokens that they have.
    fn abort(&mut self) {
        for job in self.waiting.drain(..) {
            self.shared.counters.leave_queue();
            self.shared.counters.add(CounterKind::Aborted, 1);
            // The client may have disconnected.
            let _ = job.events.send(EngineEvent::Finished(FinishReason::Abort));
        }
        self.active.extend(self.paused.drain(..));
        self.active.iter_mut().for_each(EngineSequence::abort);
        self.release();
        self.shared.counters.set_running(0);
    }

    /// Admits requests, computes the next tokens of sequences, and releases finished ones.
    fn round(&mut self) {
        let begun = Instant::now();
        self.drop_abandoned();
        self.make_room();
        self.resume();
        self.admit();
        if let Err(error) = self.advance() {
            let detail = error.to_string();
            tracing::error!("a round failed, and its requests with it: {detail}");
            self.active.iter_mut().for_each(|sequence| sequence.fail(detail.clone()));
        }
        self.release();
        self.shared.counters.set_running(self.active.len() + self.paused.len());
        self.shared.counters.set_cached_bytes(self.prefixes.bytes());
        self.round_time = begun.elapsed();
    }

    fn drop_abandoned(&mut self) {
        let counters = &self.shared.counters;
        self.waiting.retain(|job| {
            if job.events.is_closed() {
                counters.leave_queue();
                counters.add(CounterKind::Abandoned, 1);
            }
            !job.events.is_closed()
        });
        self.active.iter_mut().chain(&mut self.paused).for_each(EngineSequence::notice_client);
        // Sequences that ended while paused have nothing to cache.
        let (ended, paused): (VecDeque<_>, _) = std::mem::take(&mut self.paused).into_iter().partition(|s| s.ended.is_some());
        self.paused = paused;
        self.active.extend(ended);
        self.release();
    }

    /// Returns the bytes of keys, values and states after this round, with room for `more` positions of another sequence.
    fn used(&self, more: usize) -> usize {
        let positions: usize = self.active.iter().map(EngineSequence::needed_positions).sum();
        let sequences = self.active.len() + usize::from(more > 0);
        (positions + more) * self.own.model.bytes_per_position() + sequences * self.own.model.bytes_of_states()
    }

    /// Returns whether the state of a text can't be cut to a prefix, so that prefixes to share are cached when they are complete.
    fn carries_state(&self) -> bool {
        self.own.model.architecture().has_recurrent_layers()
    }

    /// Pauses the newest sequences if they don't all fit into memory; the oldest always fits.
    fn make_room(&mut self) {
        while self.active.len() > 1 && self.used(0) > self.options.cache_bytes {
            let Some(mut newest) = self.active.pop() else { return };
            newest.pause(self.own.model.empty_cache(0));
            self.paused.push_front(newest);
        }
    }

    /// Resumes paused sequences if they fit into memory with some to spare.
    fn resume(&mut self) {
        while let Some(first) = self.paused.front() {
            let fits = self.used(first.needed_positions() + SPARE) <= self.options.cache_bytes;
            if !(fits || self.active.is_empty()) || self.active.len() >= self.options.max_num_seqs {
                return;
            }
            self.active.extend(self.paused.pop_front());
        }
    }

    /// Admits waiting requests in order. A request that shares a longer prefix with a prompt being read than with the cache waits for that
    /// prompt, and later requests may overtake it.
    fn admit(&mut self) {
        if !matches!(self.pausing, PauseState::No) {
            return;
        }
        let mut at = 0;
        while at < self.waiting.len() && self.active.len() < self.options.max_num_seqs && self.paused.is_empty() {
            let request = &self.waiting[at].request;
            let used = self.used(request.tokens.len() + request.max_tokens.min(SPARE));
            if !self.active.is_empty() && used > self.options.cache_bytes {
                return;
            }
            if self.shares_with_a_prompt(at) {
                at += 1;
                continue;
            }
            let Some(job) = self.waiting.remove(at) else { return };
            self.shared.counters.leave_queue();
            let cache = self.cached_prefix(&job);
            self.prefixes.shrink(self.options.cache_bytes.saturating_sub(used));
            self.shared.counters.add(CounterKind::PromptTokens, job.request.tokens.len());
            self.shared.counters.add(CounterKind::CachedTokens, cache.len());
            self.active.push(EngineSequence::new(job, cache));
        }
    }

    /// Returns whether a waiting request would recompute what a sequence is about to compute.
    fn shares_with_a_prompt(&self, at: usize) -> bool {
        let request = &self.waiting[at].request;
        if request.scoring.scores_prompt {
            return false;
        }
        let carries_state = self.carries_state();
        let shared = |sequence: &EngineSequence| {
            let common = sequence.shared_with(request).min(request.tokens.len() - 1);
            // Of a state, only the whole prefix that will be cached.
            let whole = sequence.unshared().is_some() && common + 1 >= sequence.request.tokens.len();
            if !carries_state || whole { common } else { 0 }
        };
        let soon = self.active.iter().filter(|s| s.is_reading()).map(shared).max().unwrap_or(0);
        if soon < SHORTEST {
            return false;
        }
        let read = |sequence: &EngineSequence| if carries_state { 0 } else { shared(sequence).min(sequence.read()) };
        let now = self.active.iter().map(read).max().unwrap_or(0);
        soon >= SHORTEST + now.max(self.prefixes.covered(&request.tokens, request.salt))
    }

    /// Returns the cache of the longest cached prefix of a request's prompt. The last token is always read again, since its logits are not
    /// cached.
    fn cached_prefix(&mut self, job: &EngineJob) -> KvCache {
        let request = &job.request;
        let (tokens, room) = (&request.tokens[..request.tokens.len() - 1], request.tokens.len() + request.max_tokens);
        if request.scoring.scores_prompt {
            return self.own.model.empty_cache(room);
        }
        let of_active = self.active.iter().filter(|s| s.request.salt == request.salt && !s.stale && s.cache.can_be_cut());
        let longest = of_active.map(|s| (common(&s.tokens[..s.read()], tokens), s)).max_by_key(|(length, _)| *length);
        if let Some((length, sequence)) = longest
            && length >= SHORTEST.max(self.prefixes.covered(tokens, request.salt))
            && let Some(cache) = sequence.cache.prefix(length, room)
        {
            return cache;
        }
        self.prefixes.take(tokens, request.salt, room).unwrap_or_else(|| self.own.model.empty_cache(room))
    }

    /// Computes the steps of a round.
    fn advance(&mut self) -> model::Result<()> {
        let begun = Instant::now();
        let generating = !self.options.favours_throughput && self.active.iter().any(|sequence| !sequence.is_reading());
        let (mut budget, most_scored) = (self.chunks.budget(generating), scored_part(&self.own.model));
        let carries_state = self.carries_state();
        // Group the steps by weights.
        let mut groups: Vec<(Arc<EngineWeights>, Vec<SequenceStep<'_>>)> = Vec::new();
        for sequence in &mut self.active {
            let most = if sequence.is_reading() { budget } else { 1 };
            let most = if sequence.is_scoring() { most.min(most_scored) } else { most };
            let most = sequence.unshared().filter(|left| carries_state && *left > 0).map_or(most, |left| most.min(left));
            let (read, count) = (sequence.read(), sequence.unread().min(most));
            if count > 0 {
                budget -= if sequence.is_reading() { count } else { 0 };
                let weights =
                    sequence.request.adapter.as_ref().map_or_else(|| Arc::clone(&self.own), |adapter| adapter.current());
                let step = SequenceStep { sequence, count, logits: Vec::new(), read };
                match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &weights)) {
                    Some((_, steps)) => steps.push(step),
                    None => groups.push((weights, vec![step])),
                }
            }
        }
        let prompts: usize = groups.iter_mut().map(|(weights, steps)| compute(weights, steps)).sum::<model::Result<_>>()?;
        if prompts > 0 {
            self.chunks.timed(prompts, begun.elapsed());
        }
        if carries_state {
            for sequence in self.active.iter().filter(|sequence| sequence.completed_prefix()) {
                self.prefixes.keep(&sequence.tokens[..sequence.read()], sequence.request.salt, sequence.cache.clone());
            }
        }
        self.shared.counters.add(CounterKind::Rounds, 1);
        Ok(())
    }

    /// Releases finished sequences and caches their keys and values.
    fn release(&mut self) {
        let counters = &self.shared.counters;
        for mut sequence in self.active.extract_if(.., |sequence| sequence.ended.is_some()) {
            let stage = match sequence.ended {
                Some(SequenceEnd::Finished(FinishReason::Length)) => CounterKind::AtLength,
                Some(SequenceEnd::Finished(FinishReason::Abort)) => CounterKind::Aborted,
                Some(SequenceEnd::Finished(_)) => CounterKind::Stopped,
                Some(SequenceEnd::Abandoned) | None => CounterKind::Abandoned,
                Some(SequenceEnd::Failed) => CounterKind::Failed,
            };
            counters.add(stage, 1);
            self.calls.finished(usize::from(matches!(sequence.ended, Some(SequenceEnd::Finished(_)))));
            counters.add(CounterKind::SampledTokens, sequence.tokens.len() - sequence.request.tokens.len());
            if stage != CounterKind::Failed && !sequence.stale {
                let (read, cache) = (sequence.read(), std::mem::take(&mut sequence.cache));
                self.prefixes.keep(&sequence.tokens[..read], sequence.request.salt, cache);
            }
        }
        self.prefixes.shrink(self.options.cache_bytes.saturating_sub(self.used(0)));
    }
}

/// Returns the number of tokens of a scored prompt that a round reads.
fn scored_part(model: &IncrementalDecoder) -> usize {
    (MOST_LOGITS / model.architecture().vocab_size.max(1)).max(1)
}

/// Notifies those who wait for a command.
fn answer(waiting: Vec<Sender<()>>) {
    for done in waiting {
        // The caller may have stopped waiting.
        let _ = done.send(());
    }
}

/// Computes the steps of a round that use the same weights. Returns the number of prompt tokens read.
fn compute(weights: &EngineWeights, steps: &mut [SequenceStep<'_>]) -> model::Result<usize> {
    let threads = rayon::current_num_threads();
    let prompts: usize = steps.iter().filter(|step| step.sequence.is_reading()).map(|step| step.count).sum();
    let computing = RoundModel { model: &weights.model, none: &weights.none };
    let accept = |step: &mut SequenceStep<'_>| step.sequence.accept(step.read, &step.logits, weights.version);
    let counts: Vec<usize> = steps.iter().map(|step| step.count).collect();
    match parts_of_threads(&counts, threads) {
        Some(lengths) => {
            let (mut parts, mut rest) = (Vec::with_capacity(threads), &mut *steps);
            for length in lengths {
                let (part, others) = rest.split_at_mut(length);
                parts.push(part);
                rest = others;
            }
            parts.into_par_iter().try_for_each(|part| {
                computing.run(part)?;
                part.iter_mut().for_each(accept);
                Ok::<_, model::Error>(())
            })?;
        }
        None => {
            team::with_team(|| computing.run(steps))?;
            steps.par_iter_mut().for_each(accept);
        }
    }
    Ok(prompts)
}

/// Model of a round.
struct RoundModel<'a> {
    model: &'a IncrementalDecoder,
    none: &'a Prefix,
}

impl RoundModel<'_> {
    /// Reads the tokens of the steps, and stores the logits that their sequences need.
    fn run(&self, steps: &mut [SequenceStep<'_>]) -> model::Result<()> {
        let counts: Vec<usize> = steps.iter().map(|step| step.count).collect();
        let (mut tokens, mut positions, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        let mut wanted: Vec<Range<usize>> = Vec::with_capacity(steps.len());
        for step in steps.iter() {
            let first = tokens.len();
            let new = step.read..step.read + step.count;
            tokens.extend_from_slice(&step.sequence.tokens[new.clone()]);
            positions.extend(new.map(|at| at as u32));
            let needed = step.sequence.rows(step.count);
            wanted.push(rows.len()..rows.len() + needed.len());
            rows.extend(needed.map(|row| first + row));
        }
        let prompt_of = vec![0; steps.len()];
        let mut own: Vec<&mut KvCache> = steps.iter_mut().map(|step| &mut step.sequence.cache).collect();
        let step = DecodeBatch {
            tokens: &tokens,
            positions: &positions,
            counts: &counts,
            prompt_of: &prompt_of,
            prompts: &[self.none],
            own: &mut own,
        };
        let logits = ops::to_vec(&self.model.decode_at(step, &rows)?)?;
        let vocabulary = logits.len() / rows.len().max(1);
        for (step, wanted) in steps.iter_mut().zip(wanted) {
            step.logits = logits[wanted.start * vocabulary..wanted.end * vocabulary].to_vec();
        }
        Ok(())
    }
}
