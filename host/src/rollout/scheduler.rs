//! Continuous batching: sequences decode in parallel, and when one ends, the next takes its place immediately. A prompt is
//! prefilled once for all its completions.
//!
//! With many sequences, threads divide the sequences, not the matrices: each decodes some of them to the end without waiting.
//! With few, all threads work on each product. Which sequences are decoded together depends only on the numbers of sequences and
//! threads.

use super::Error;
use crate::model::{Cache, Decode, Decoding, Prefix};
use crate::ops::sampler::{Sampling, stream};
use crate::ops::{self, Forest, team};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most prompt tokens per prefill (a longer prompt is prefilled alone).
const PREFILL_TOKENS: usize = 8192;

/// Below this many sequences, a thread of its own would spend its time reading weights.
const SEQUENCES_A_THREAD: usize = 8;

/// A prompt to complete.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its tokens, at least one.
    pub tokens: Vec<u32>,
    /// Row of the dataset, which seeds the random numbers.
    pub row: u64,
    /// Number of completions.
    pub samples: usize,
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Rollout {
    /// Index of its request.
    pub prompt: usize,
    /// Its index among the prompt's completions.
    pub sample: usize,
    /// Its tokens, including the end token.
    pub tokens: Vec<u32>,
    /// Log-probability of each token when it was sampled.
    pub logp: Vec<f32>,
    /// Whether it ended on its own rather than at the length limit.
    pub finished: bool,
}

/// Settings of a generation.
pub struct Generator<'a> {
    /// The model.
    pub model: &'a Decoding,
    /// How tokens are sampled.
    pub sampling: Sampling,
    /// Temperature of the recorded log-probabilities.
    pub logp_temperature: f32,
    /// Longest completion in tokens; the model's context may end it earlier.
    pub max_new_tokens: usize,
    /// Most sequences decoded in parallel.
    pub max_num_seqs: usize,
    /// The run's seed.
    pub seed: u64,
    /// Index of this generation in the run.
    pub generation: u64,
    /// Ids of tokens that end a completion.
    pub ends: &'a [u32],
    /// Whether the newest token completes a stop string.
    pub stops: &'a (dyn Fn(&[u32]) -> bool + Sync),
}

/// Indices of a prompt and of one of its completions.
pub(super) type Sequence = (usize, usize);

/// A prefilled prompt, kept until its last completion has started.
struct Prefilled {
    cache: Prefix,
    logits: Vec<f32>,
}

/// A sequence in the batch.
struct Active {
    rollout: Rollout,
    rng: ChaCha8Rng,
    cache: Cache,
    limit: usize,
}

impl Generator<'_> {
    /// Returns all completions, ordered by request and sample.
    ///
    /// # Errors
    /// If an operation fails, or log-probabilities are not finite.
    pub fn run(&self, requests: &[Request]) -> Result<Vec<Rollout>, Error> {
        let mut done = self.completions(requests)?;
        if done.iter().any(|rollout| rollout.logp.iter().any(|logp| !logp.is_finite())) {
            return Err(Error::NotFinite);
        }
        done.sort_by_key(|r| (r.prompt, r.sample));
        Ok(done)
    }

    fn completions(&self, requests: &[Request]) -> Result<Vec<Rollout>, Error> {
        #[cfg(feature = "cuda")]
        if let Some(done) = super::device::run(self, requests)? {
            return Ok(done);
        }
        let all: Vec<Sequence> = requests.iter().enumerate().flat_map(|(p, r)| (0..r.samples).map(move |s| (p, s))).collect();
        let threads = rayon::current_num_threads();
        let parts = if all.len().min(self.max_num_seqs) < SEQUENCES_A_THREAD * threads { 1 } else { threads };
        let places = self.max_num_seqs / parts;
        let part = |i: usize| &all[all.len() * i / parts..all.len() * (i + 1) / parts];
        // All threads together prefill the first prompts.
        let mut prompts: Vec<Option<Arc<Prefilled>>> = vec![None; requests.len()];
        let first = (0..parts).flat_map(|i| part(i).iter().take(places)).map(|(prompt, _)| *prompt);
        self.prefill(requests, first, &mut prompts)?;
        let mut own: Vec<Vec<Option<Arc<Prefilled>>>> = vec![prompts.clone(); parts - 1];
        own.push(prompts);
        let decode = |(i, prompts)| self.decode(requests, part(i), places, prompts, parts == 1);
        let done: Vec<Vec<Rollout>> = own.into_par_iter().enumerate().map(decode).collect::<Result<_, _>>()?;
        Ok(done.concat())
    }

    /// Returns the most tokens that a completion of this request may have.
    pub(super) fn limit(&self, request: &Request) -> usize {
        let context = self.model.architecture().max_positions;
        self.max_new_tokens.min(context.saturating_sub(request.tokens.len())).max(1)
    }

    /// Returns whether the newest of these tokens ends the completion.
    pub(super) fn ends(&self, tokens: &[u32]) -> bool {
        tokens.last().is_some_and(|newest| self.ends.contains(newest)) || (self.stops)(tokens)
    }

    /// Decodes sequences to their ends, up to the given number in parallel, on all threads `together` or on this one.
    fn decode(
        &self,
        requests: &[Request],
        sequences: &[Sequence],
        most: usize,
        mut prompts: Vec<Option<Arc<Prefilled>>>,
        together: bool,
    ) -> Result<Vec<Rollout>, Error> {
        let mut waiting: VecDeque<Sequence> = sequences.iter().copied().collect();
        let mut left = vec![0; requests.len()];
        sequences.iter().for_each(|(prompt, _)| left[*prompt] += 1);
        for (prompt, left) in prompts.iter_mut().zip(&left) {
            if *left == 0 {
                *prompt = None;
            }
        }
        let (mut active, mut done): (Vec<Active>, Vec<Rollout>) = (Vec::new(), Vec::new());
        while !active.is_empty() || !waiting.is_empty() {
            let places = most.saturating_sub(active.len()).min(waiting.len());
            let admitted: Vec<_> = waiting.drain(..places).collect();
            self.prefill(requests, admitted.iter().map(|(p, _)| *p), &mut prompts)?;
            active.extend(self.start(requests, &admitted, &prompts));
            let running = std::mem::take(&mut active);
            for sequence in running {
                if sequence.rollout.finished || sequence.rollout.tokens.len() >= sequence.limit {
                    let prompt = sequence.rollout.prompt;
                    left[prompt] -= 1;
                    if left[prompt] == 0 {
                        prompts[prompt] = None;
                    }
                    done.push(sequence.rollout);
                } else {
                    active.push(sequence);
                }
            }
            self.advance(requests, &prompts, &mut active, together)?;
        }
        Ok(done)
    }

    fn prefill(
        &self,
        requests: &[Request],
        wanted: impl Iterator<Item = usize>,
        prompts: &mut [Option<Arc<Prefilled>>],
    ) -> Result<(), Error> {
        let mut new: Vec<usize> = wanted.filter(|&p| prompts[p].is_none()).collect();
        new.dedup();
        for (forest, together) in batches(requests, &new) {
            let (caches, logits) = self.model.prefill(&forest)?;
            let logits = ops::to_vec(&logits)?;
            let rows = logits.chunks(logits.len() / together.len());
            for ((&p, cache), logits) in together.iter().zip(caches).zip(rows) {
                prompts[p] = Some(Arc::new(Prefilled { cache, logits: logits.to_vec() }));
            }
        }
        Ok(())
    }

    /// Starts new sequences with their first token, sampled from their prompts' last logits.
    fn start(&self, requests: &[Request], admitted: &[Sequence], prompts: &[Option<Arc<Prefilled>>]) -> Vec<Active> {
        admitted
            .iter()
            .filter_map(|&(prompt, sample)| {
                let prefilled = prompts[prompt].as_ref()?;
                let request = &requests[prompt];
                let rng = stream(self.seed, self.generation, request.row, sample as u64);
                let limit = self.limit(request);
                let rollout = Rollout { prompt, sample, tokens: Vec::new(), logp: Vec::new(), finished: false };
                let mut sequence = Active { rollout, rng, cache: self.model.empty_cache(limit), limit };
                self.draw(&mut sequence, request, &prefilled.logits);
                Some(sequence)
            })
            .collect()
    }

    fn draw(&self, sequence: &mut Active, request: &Request, logits: &[f32]) {
        let rollout = &mut sequence.rollout;
        let mut seen = request.tokens.iter().chain(&rollout.tokens).copied();
        let drawn = self.sampling.draw(logits, self.logp_temperature, &mut seen, &mut sequence.rng);
        rollout.tokens.push(drawn.token);
        rollout.logp.push(drawn.logp);
        rollout.finished = self.ends(&rollout.tokens);
    }

    /// Computes the next token of each sequence.
    fn advance(
        &self,
        requests: &[Request],
        prompts: &[Option<Arc<Prefilled>>],
        active: &mut [Active],
        together: bool,
    ) -> Result<(), Error> {
        if active.is_empty() {
            return Ok(());
        }
        let tokens: Vec<u32> = active.iter().filter_map(|s| s.rollout.tokens.last().copied()).collect();
        let positions: Vec<u32> =
            active.iter().map(|s| (requests[s.rollout.prompt].tokens.len() + s.rollout.tokens.len() - 1) as u32).collect();
        let mut shared: Vec<usize> = active.iter().map(|s| s.rollout.prompt).collect();
        shared.sort_unstable();
        shared.dedup();
        let caches: Vec<&Prefix> = shared.iter().filter_map(|&p| prompts[p].as_ref().map(|p| &p.cache)).collect();
        let prompt_of: Vec<usize> = active.iter().map(|s| shared.partition_point(|&p| p < s.rollout.prompt)).collect();
        let mut own: Vec<&mut Cache> = active.iter_mut().map(|s| &mut s.cache).collect();
        let step = Decode { tokens: &tokens, positions: &positions, prompt_of: &prompt_of, prompts: &caches, own: &mut own };
        let logits = if together { team::together(|| self.model.decode(step)) } else { self.model.decode(step) };
        let logits = ops::to_vec(&logits?)?;
        let vocab = logits.len() / active.len();
        active.par_iter_mut().zip(logits.par_chunks(vocab)).for_each(|(sequence, logits)| {
            self.draw(sequence, &requests[sequence.rollout.prompt], logits);
        });
        Ok(())
    }
}

/// Groups prompts that are prefilled together, each group with its forest.
pub(super) fn batches<'a>(requests: &[Request], prompts: &'a [usize]) -> Vec<(Forest, &'a [usize])> {
    let mut rest = prompts;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let mut forest = Forest::new();
        let mut taken = 0;
        while taken < rest.len() && (taken == 0 || forest.len() + requests[rest[taken]].tokens.len() <= PREFILL_TOKENS) {
            forest.push(&requests[rest[taken]].tokens, None);
            taken += 1;
        }
        all.push((forest, &rest[..taken]));
        rest = &rest[taken..];
    }
    all
}
