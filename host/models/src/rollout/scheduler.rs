//! Continuous batching: sequences decode in parallel, and when one ends, the next takes its place immediately. Each prompt is prefilled
//! once for all its completions.
//!
//! With many sequences, threads divide the sequences, not the matrices: each decodes its own to the end without waiting. With few, all
//! threads share each product. Which sequences are decoded together depends only on the numbers of sequences and threads, and on the
//! tokens.
//!
//! A sequence that waits for a reply yields its place to others and keeps its cache. It reads the reply in the same step in which others
//! generate a token. Replies are requested on other threads while the rest is decoded (`reply_requests.rs`).

use super::Error;
use super::generator::{Generator, PromptRequest, Rollout, SampleIndex, batches};
use super::reply_provider::TurnReply;
use super::reply_requests::{DecodeProgress, ReplyRequests, SequenceReplies, TurnSequence};
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::model::{DecodeBatch, KvCache, Prefix, PromptPass};
use crate::ops::sampler::stream;
use crate::ops::support::Support;
use crate::ops::{self, team};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of tokens that a step reads, unless a single reply is longer.
const STEP_TOKENS: usize = 2048;

/// Minimum number of sequences per thread; with fewer, a thread would spend its time reading weights.
const SEQUENCES_A_THREAD: usize = 8;

/// A prefilled prompt, freed once its last completion has started.
struct PrefilledPrompt {
    cache: Prefix,
    logits: Vec<f32>,
}

/// A sequence that is being generated.
struct ScheduledSequence {
    rollout: Rollout,
    rng: ChaCha8Rng,
    cache: KvCache,
    /// Index at which the current turn begins.
    turn: usize,
    /// Maximum number of tokens of the sequence after this turn.
    limit: usize,
    /// Whether the turn ended with an end token or stop text.
    ended: bool,
    /// Number of the sequence's tokens that are in its cache.
    read: usize,
}

impl ScheduledSequence {
    fn is_at_end(&self) -> bool {
        self.ended || self.rollout.tokens.len() >= self.limit
    }
}

impl TurnSequence for ScheduledSequence {
    fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    fn turn(&self) -> usize {
        self.turn
    }

    fn ended(&self) -> bool {
        self.ended
    }
}

/// The sequences of a thread.
#[derive(Default)]
struct SequenceQueue {
    /// Sequences in the batch.
    active: Vec<ScheduledSequence>,
    /// Sequences that have a reply and wait for a place in the batch.
    replied: VecDeque<ScheduledSequence>,
    /// Sequences that have ended a turn and whose reply has not been requested.
    asking: Vec<ScheduledSequence>,
    done: Vec<Rollout>,
}

impl Generator<'_> {
    /// Returns all completions, ordered by request and sample.
    ///
    /// # Errors
    /// If an operation fails, or log-probabilities are not finite.
    pub fn run(&self, requests: &[PromptRequest]) -> Result<Vec<Rollout>, Error> {
        Ok(self.run_keeping(requests, false)?.0)
    }

    /// Returns all completions, ordered by request and sample. On the CPU, also returns the pass over the prompts if `keep` is set and a
    /// single pass covered all of them.
    pub fn run_keeping(&self, requests: &[PromptRequest], keep: bool) -> Result<(Vec<Rollout>, Option<PromptPass>), Error> {
        let (mut done, known) = self.completions(requests, keep)?;
        if done.iter().any(|rollout| rollout.logp.iter().any(|logp| !logp.is_finite())) {
            return Err(Error::NotFinite);
        }
        done.sort_by_key(|r| (r.prompt, r.sample));
        Ok((done, known))
    }

    fn completions(&self, requests: &[PromptRequest], keep: bool) -> Result<(Vec<Rollout>, Option<PromptPass>), Error> {
        #[cfg(feature = "cuda")]
        if let Some(done) = super::device::run(self, requests)? {
            return Ok((done, None));
        }
        let all: Vec<SampleIndex> = requests.iter().enumerate().flat_map(|(p, r)| (0..r.samples).map(move |s| (p, s))).collect();
        let threads = rayon::current_num_threads();
        let parts = if all.len().min(self.max_num_seqs) < SEQUENCES_A_THREAD * threads { 1 } else { threads };
        let places = self.max_num_seqs / parts;
        let part = |i: usize| &all[all.len() * i / parts..all.len() * (i + 1) / parts];
        // All threads together prefill the first prompts.
        let mut prompts: Vec<Option<Arc<PrefilledPrompt>>> = vec![None; requests.len()];
        let first = (0..parts).flat_map(|i| part(i).iter().take(places)).map(|(prompt, _)| *prompt);
        let task = ProgressTask::new(Activity::Generating).with_total(all.len() as u64, ProgressUnit::Things);
        let known = self.prefill(requests, first, &mut prompts, keep)?;
        let mut own: Vec<Vec<Option<Arc<PrefilledPrompt>>>> = vec![prompts.clone(); parts - 1];
        own.push(prompts);
        let decode = |(i, prompts)| self.decode(requests, (part(i), places), prompts, parts == 1, &task);
        let decoded = || own.into_par_iter().enumerate().map(decode).collect::<Result<_, _>>();
        // Runs on a thread of the pool even for a single part, since a thread outside the pool would compete with it for a processor. A
        // single part that waits for replies stays outside.
        let done: Vec<Vec<Rollout>> = if self.reply_provider.is_some() { decoded()? } else { rayon::scope(|_| decoded())? };
        Ok((done.concat(), known))
    }

    /// Decodes sequences to the end, up to `most` in parallel, on all threads if `together` is set, or else on this one.
    fn decode(
        &self,
        requests: &[PromptRequest],
        (sequences, most): (&[SampleIndex], usize),
        mut prompts: Vec<Option<Arc<PrefilledPrompt>>>,
        together: bool,
        task: &ProgressTask,
    ) -> Result<Vec<Rollout>, Error> {
        let mut waiting: VecDeque<SampleIndex> = sequences.iter().copied().collect();
        let mut left = vec![0; requests.len()];
        sequences.iter().for_each(|(prompt, _)| left[*prompt] += 1);
        for (prompt, left) in prompts.iter_mut().zip(&left) {
            if *left == 0 {
                *prompt = None;
            }
        }
        std::thread::scope(|scope| {
            let (mut queue, mut decoded) = (SequenceQueue::default(), DecodeProgress::default());
            let parameters = self.model.architecture().values_of_matrices();
            let mut replies = self.reply_provider.map(|follow| ReplyRequests::new(scope, follow));
            while queue.done.len() < sequences.len() {
                let SequenceQueue { active, replied, .. } = &mut queue;
                let places = most.saturating_sub(active.len()).min(replied.len());
                active.extend(replied.drain(..places));
                let places = most.saturating_sub(active.len()).min(waiting.len());
                let admitted: Vec<_> = waiting.drain(..places).collect();
                self.prefill(requests, admitted.iter().map(|(p, _)| *p), &mut prompts, false)?;
                active.extend(self.start(requests, &admitted, &prompts));
                let before = queue.done.len();
                self.sort(&mut queue);
                if let Some(replies) = &mut replies {
                    replies.request(&mut queue.asking, decoded, queue.active.len());
                    let startable = waiting.len().min(most.saturating_sub(queue.active.len()));
                    while replies.is_due(decoded, queue.active.len() + queue.replied.len() + startable) {
                        self.take_replies(requests, replies.read(), &mut queue);
                    }
                }
                for rollout in &queue.done[before..] {
                    left[rollout.prompt] -= 1;
                    if left[rollout.prompt] == 0 {
                        prompts[rollout.prompt] = None;
                    }
                }
                task.add((queue.done.len() - before) as u64);
                let read = self.advance(requests, &prompts, &mut queue.active, together)?;
                task.add_tokens(read as u64);
                decoded.add(parameters, read);
            }
            Ok(queue.done)
        })
    }

    /// Removes sequences that ended a turn from the batch.
    fn sort(&self, queue: &mut SequenceQueue) {
        let (at_end, active): (Vec<ScheduledSequence>, Vec<ScheduledSequence>) =
            std::mem::take(&mut queue.active).into_iter().partition(ScheduledSequence::is_at_end);
        queue.active = active;
        match self.reply_provider {
            Some(_) => queue.asking.extend(at_end),
            None => {
                let over = |sequence: ScheduledSequence| Rollout { finished: sequence.ended, ..sequence.rollout };
                queue.done.extend(at_end.into_iter().map(over));
            }
        }
    }

    /// Processes replies. Sequences with a reply return to the batch; the others are done.
    fn take_replies(&self, requests: &[PromptRequest], replies: SequenceReplies<ScheduledSequence>, queue: &mut SequenceQueue) {
        for (mut sequence, next) in replies {
            let request = &requests[sequence.rollout.prompt];
            match next {
                TurnReply::Read(reply) if self.has_room(request, &sequence.rollout, &reply) => {
                    sequence.turn = sequence.rollout.read(reply);
                    (sequence.limit, sequence.ended) = (self.limit_of_turn(request, sequence.turn), false);
                    queue.replied.push_back(sequence);
                }
                TurnReply::Read(_) => queue.done.push(Rollout { finished: false, ..sequence.rollout }),
                TurnReply::Over(finished) => queue.done.push(Rollout { finished, ..sequence.rollout }),
            }
        }
    }

    /// Prefills those of the `wanted` prompts that have not been. Returns the pass if `keep` is set and it covers all requests.
    fn prefill(
        &self,
        requests: &[PromptRequest],
        wanted: impl Iterator<Item = usize>,
        prompts: &mut [Option<Arc<PrefilledPrompt>>],
        keep: bool,
    ) -> Result<Option<PromptPass>, Error> {
        let mut new: Vec<usize> = wanted.filter(|&p| prompts[p].is_none()).collect();
        new.dedup();
        let batches = batches(requests, &new);
        let (keep, mut known) = (keep && new.len() == requests.len() && batches.len() == 1, None);
        for (forest, together) in batches {
            let (caches, logits) = if keep {
                let (caches, logits, pass) = self.model.prefill_keeping(&forest)?;
                known = Some(pass);
                (caches, logits)
            } else {
                self.model.prefill(&forest)?
            };
            let logits = ops::to_vec(&logits)?;
            let rows = logits.chunks(logits.len() / together.len());
            for ((&p, cache), logits) in together.iter().zip(caches).zip(rows) {
                prompts[p] = Some(Arc::new(PrefilledPrompt { cache, logits: logits.to_vec() }));
            }
        }
        Ok(known)
    }

    /// Starts new sequences with their first token, sampled from their prompts' last logits.
    fn start(
        &self,
        requests: &[PromptRequest],
        admitted: &[SampleIndex],
        prompts: &[Option<Arc<PrefilledPrompt>>],
    ) -> Vec<ScheduledSequence> {
        admitted
            .iter()
            .filter_map(|&(prompt, sample)| {
                let prefilled = prompts[prompt].as_ref()?;
                let request = &requests[prompt];
                let sample = request.first + sample;
                let rng = stream(self.seed, self.generation, request.row, sample as u64);
                let limit = self.limit_of_turn(request, 0);
                let support = self.keep_support.then(|| Support::new(self.sampling.repetition_penalty));
                let (rollout, cache) = (Rollout { prompt, sample, support, ..Rollout::default() }, self.model.empty_cache(limit));
                let mut sequence = ScheduledSequence { rollout, rng, cache, turn: 0, limit, ended: false, read: 0 };
                self.draw(&mut sequence, request, &prefilled.logits);
                Some(sequence)
            })
            .collect()
    }

    fn draw(&self, sequence: &mut ScheduledSequence, request: &PromptRequest, logits: &[f32]) {
        let rollout = &mut sequence.rollout;
        let mut seen = request.tokens.iter().chain(&rollout.tokens).copied();
        let support = rollout.support.as_mut();
        let drawn = self.sampling.draw(logits, self.logp_temperature, &mut seen, &mut sequence.rng, support);
        rollout.tokens.push(drawn.token);
        rollout.logp.push(drawn.logp);
        sequence.ended = self.ends(&rollout.tokens[sequence.turn..]);
    }

    /// Computes the next token of the sequences: of all, unless there are too many tokens to read. Returns the number of tokens read.
    fn advance(
        &self,
        requests: &[PromptRequest],
        prompts: &[Option<Arc<PrefilledPrompt>>],
        active: &mut [ScheduledSequence],
        together: bool,
    ) -> Result<usize, Error> {
        let (least, mut total, mut stepping) = (active.len(), 0, Vec::with_capacity(active.len()));
        for sequence in active.iter_mut() {
            let new = sequence.rollout.tokens.len() - sequence.read;
            if stepping.is_empty() || total + new <= STEP_TOKENS.max(least) {
                total += new;
                stepping.push(sequence);
            }
        }
        if stepping.is_empty() {
            return Ok(0);
        }
        let (mut tokens, mut positions) = (Vec::with_capacity(total), Vec::with_capacity(total));
        for sequence in &stepping {
            let new = sequence.read..sequence.rollout.tokens.len();
            let prompt = requests[sequence.rollout.prompt].tokens.len();
            tokens.extend_from_slice(&sequence.rollout.tokens[new.clone()]);
            positions.extend(new.map(|at| (prompt + at) as u32));
        }
        let counts: Vec<usize> = stepping.iter().map(|s| s.rollout.tokens.len() - s.read).collect();
        let mut shared: Vec<usize> = stepping.iter().map(|s| s.rollout.prompt).collect();
        shared.sort_unstable();
        shared.dedup();
        let caches: Vec<&Prefix> = shared.iter().filter_map(|&p| prompts[p].as_ref().map(|p| &p.cache)).collect();
        let prompt_of: Vec<usize> = stepping.iter().map(|s| shared.partition_point(|&p| p < s.rollout.prompt)).collect();
        let mut own: Vec<&mut KvCache> = stepping.iter_mut().map(|s| &mut s.cache).collect();
        let (tokens, positions, counts, prompt_of) = (&tokens[..], &positions[..], &counts[..], &prompt_of[..]);
        let step = DecodeBatch { tokens, positions, counts, prompt_of, prompts: &caches, own: &mut own };
        let logits = if together { team::with_team(|| self.model.decode(step)) } else { self.model.decode(step) };
        let logits = ops::to_vec(&logits?)?;
        let vocab = logits.len() / stepping.len();
        stepping.par_iter_mut().zip(logits.par_chunks(vocab)).for_each(|(sequence, logits)| {
            sequence.read = sequence.rollout.tokens.len();
            self.draw(sequence, &requests[sequence.rollout.prompt], logits);
        });
        Ok(total)
    }
}
