//! Continuous batching on a device: one batch of all sequences, with tokens sampled on the device. Each step returns only the sampled
//! tokens and, if they are recorded, their supports.
//!
//! A sequence that has ended a turn leaves the batch until its reply arrives (`reply_requests.rs`) but keeps its slot. It then reads the
//! reply one token per step; the tokens sampled meanwhile are replaced.

use super::Error;
use super::generator::{Generator, PromptRequest, Rollout, SampleIndex, batches};
use super::reply_provider::TurnReply;
use super::reply_requests::{DecodeProgress, ReplyRequests, SequenceReplies, TurnSequence};
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::model::{DeviceDecoder, DevicePrefix, GenerationCapacity};
use crate::ops::decode::{DrawOptions, SharedPrompt};
use crate::ops::sampler::{stream, uniform};
use crate::ops::support::Support;
use candle_core::Tensor;
use std::collections::VecDeque;
use std::sync::Arc;

/// A prefilled prompt, freed after its last completion is done.
struct DevicePrompt {
    place: usize,
    /// Keeps alive the keys and values whose addresses the device uses.
    _prefix: DevicePrefix,
    /// Logits of all prompts prefilled together, and the row of this one.
    logits: Arc<Tensor>,
    row: u32,
}

/// A sequence that is being generated.
struct DeviceSequence {
    rollout: Rollout,
    slot: u32,
    /// Maximum number of tokens of the sequence after this turn.
    limit: usize,
    /// Index at which the current turn begins.
    turn: usize,
    /// Whether the turn ended with an end token or stop text.
    ended: bool,
    /// Tokens of a reply that have not been uploaded to the device.
    reading: VecDeque<u32>,
    /// Random numbers for all tokens that may be sampled.
    uniforms: Vec<f64>,
}

impl DeviceSequence {
    fn is_at_end(&self) -> bool {
        self.reading.is_empty() && (self.ended || self.rollout.tokens.len() >= self.limit)
    }
}

impl TurnSequence for DeviceSequence {
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

/// New sequences whose prompts' logits are in the same tensor.
struct FirstTokenBatch {
    logits: Arc<Tensor>,
    slots: Vec<u32>,
    rows: Vec<u32>,
    /// Indices of the sequences among the active ones.
    sequences: Vec<usize>,
}

/// A generation in progress.
struct DeviceBatch<'a, 'm> {
    generator: &'a Generator<'a>,
    requests: &'a [PromptRequest],
    model: DeviceDecoder<'m>,
    prompts: Vec<Option<DevicePrompt>>,
    /// Number of unfinished completions of each prompt.
    left: Vec<usize>,
    free_places: Vec<usize>,
    free_slots: Vec<u32>,
    active: Vec<DeviceSequence>,
    /// Sequences that have ended a turn and whose reply has not been requested.
    asking: Vec<DeviceSequence>,
    done: Vec<Rollout>,
    task: ProgressTask,
}

/// Returns all completions in any order, or `None` if the model is not on a device.
pub(super) fn run(generator: &Generator<'_>, requests: &[PromptRequest]) -> Result<Option<Vec<Rollout>>, Error> {
    let total = requests.iter().map(|r| r.samples).sum::<usize>();
    let room = GenerationCapacity {
        sequences: total.min(generator.max_num_seqs).max(1),
        completion: requests.iter().map(|r| generator.limit(r)).max().unwrap_or(1),
        prompt: requests.iter().map(|r| r.tokens.len()).max().unwrap_or(1),
    };
    let Generator { sampling, logp_temperature, keep_support, .. } = *generator;
    let drawing = DrawOptions { sampling, logp_temperature, keep_support };
    let Some(model) = generator.model.on_device(room, drawing)? else { return Ok(None) };
    let batch = DeviceBatch {
        generator,
        requests,
        model,
        prompts: requests.iter().map(|_| None).collect(),
        left: requests.iter().map(|r| r.samples).collect(),
        free_places: (0..=room.sequences).rev().collect(),
        free_slots: (0..room.sequences as u32).rev().collect(),
        active: Vec::new(),
        asking: Vec::new(),
        done: Vec::new(),
        task: ProgressTask::new(Activity::Generating).with_total(total as u64, ProgressUnit::Things),
    };
    std::thread::scope(|scope| batch.run(generator.reply_provider.map(|follow| ReplyRequests::new(scope, follow)))).map(Some)
}

impl DeviceBatch<'_, '_> {
    fn run<'scope>(mut self, mut replies: Option<ReplyRequests<'scope, '_, DeviceSequence>>) -> Result<Vec<Rollout>, Error>
    where
        DeviceSequence: 'scope,
    {
        let mut waiting: VecDeque<SampleIndex> =
            self.requests.iter().enumerate().flat_map(|(p, r)| (0..r.samples).map(move |s| (p, s))).collect();
        let parameters = self.generator.model.architecture().values_of_matrices();
        let (mut changed, mut decoded) = (true, DecodeProgress::default());
        loop {
            let admitted: Vec<SampleIndex> = waiting.drain(..self.free_slots.len().min(waiting.len())).collect();
            if !admitted.is_empty() {
                self.admit(&admitted)?;
                self.retire();
                changed = true;
            }
            if let Some(replies) = &mut replies {
                replies.request(&mut self.asking, decoded, self.active.len());
                while replies.is_due(decoded, self.active.len()) {
                    self.take_replies(replies.read())?;
                    changed = true;
                }
            }
            if self.active.is_empty() {
                if waiting.is_empty() && self.asking.is_empty() && !replies.as_ref().is_some_and(ReplyRequests::are_under_way) {
                    return Ok(self.done);
                }
                continue;
            }
            if changed {
                self.arrange()?;
            }
            self.model.step()?;
            self.task.add_tokens(self.active.len() as u64);
            decoded.add(parameters, self.active.len());
            self.take((0..self.active.len()).collect())?;
            changed = self.retire();
        }
    }

    /// Assigns each sequence a slot and samples its first token.
    fn admit(&mut self, admitted: &[SampleIndex]) -> Result<(), Error> {
        self.prefill(admitted)?;
        let mut drawn_together: Vec<FirstTokenBatch> = Vec::new();
        for &(prompt, sample) in admitted {
            let (Some(known), Some(slot)) = (&self.prompts[prompt], self.free_slots.pop()) else { continue };
            let (request, generator) = (&self.requests[prompt], self.generator);
            let limit = generator.limit_of_turn(request, 0);
            let sample = request.first + sample;
            let mut numbers = stream(generator.seed, generator.generation, request.row, sample as u64);
            let uniforms: Vec<f64> = (0..generator.limit(request)).map(|_| uniform(&mut numbers)).collect();
            self.model.session.begin(slot as usize, &request.tokens, &uniforms)?;
            // Prompts that were prefilled together are adjacent.
            if !drawn_together.last().is_some_and(|first| Arc::ptr_eq(&first.logits, &known.logits)) {
                let logits = Arc::clone(&known.logits);
                drawn_together.push(FirstTokenBatch { logits, slots: vec![], rows: vec![], sequences: vec![] });
            }
            if let Some(first) = drawn_together.last_mut() {
                first.slots.push(slot);
                first.rows.push(known.row);
                first.sequences.push(self.active.len());
            }
            let support = generator.keep_support.then(|| Support::new(generator.sampling.repetition_penalty));
            let rollout = Rollout { prompt, sample, support, ..Rollout::default() };
            self.active.push(DeviceSequence { rollout, slot, limit, turn: 0, ended: false, reading: VecDeque::new(), uniforms });
        }
        for first in drawn_together {
            self.model.draw_first(&first.logits, &first.slots, &first.rows)?;
            self.take(first.sequences)?;
        }
        Ok(())
    }

    /// Appends the tokens sampled for these active sequences, in this order, or the tokens of replies in their place.
    fn take(&mut self, sequences: Vec<usize>) -> Result<(), Error> {
        let drawn = self.model.session.drawn(sequences.len())?;
        let supports = if self.generator.keep_support { self.model.session.supports(sequences.len())? } else { Vec::new() };
        for (i, (index, drawn)) in sequences.into_iter().zip(drawn).enumerate() {
            let sequence = &mut self.active[index];
            let (slot, rollout) = (sequence.slot as usize, &mut sequence.rollout);
            if let Some(token) = sequence.reading.pop_front() {
                self.model.session.replace(slot, token)?;
                if sequence.reading.is_empty() {
                    self.model.session.remember(slot, &[&self.requests[rollout.prompt].tokens[..], &rollout.tokens].concat())?;
                }
                continue;
            }
            rollout.tokens.push(drawn.token);
            rollout.logp.push(drawn.logp);
            if let (Some(support), Some(bits)) = (&mut rollout.support, supports.get(i)) {
                support.push_bits(bits, self.model.vocabulary());
            }
            sequence.ended = self.generator.ends(&rollout.tokens[sequence.turn..]);
        }
        Ok(())
    }

    /// Prefills the prompts of these sequences that have not been prefilled.
    fn prefill(&mut self, admitted: &[SampleIndex]) -> Result<(), Error> {
        let mut new: Vec<usize> = admitted.iter().map(|(prompt, _)| *prompt).filter(|&p| self.prompts[p].is_none()).collect();
        new.dedup();
        for (forest, together) in batches(self.requests, &new) {
            let (prefixes, logits) = self.model.prefill(&forest)?;
            let logits = Arc::new(logits);
            for (row, (&prompt, prefix)) in together.iter().zip(prefixes).enumerate() {
                let Some(place) = self.free_places.pop() else { continue };
                self.model.put_prompt(place, &prefix)?;
                self.prompts[prompt] =
                    Some(DevicePrompt { place, _prefix: prefix, logits: Arc::clone(&logits), row: row as u32 });
            }
        }
        Ok(())
    }

    /// Removes sequences that have ended a turn from the batch. Returns whether there were any.
    fn retire(&mut self) -> bool {
        let (at_end, active): (Vec<DeviceSequence>, Vec<DeviceSequence>) =
            std::mem::take(&mut self.active).into_iter().partition(DeviceSequence::is_at_end);
        self.active = active;
        let changed = !at_end.is_empty();
        match self.generator.reply_provider {
            Some(_) => self.asking.extend(at_end),
            None => at_end.into_iter().for_each(|sequence| {
                let finished = sequence.ended;
                self.close(sequence, finished);
            }),
        }
        changed
    }

    /// Processes replies. Sequences with a reply return to the batch; the others are done.
    fn take_replies(&mut self, replies: SequenceReplies<DeviceSequence>) -> Result<(), Error> {
        for (mut sequence, next) in replies {
            let request = &self.requests[sequence.rollout.prompt];
            match next {
                TurnReply::Read(reply) if self.generator.has_room(request, &sequence.rollout, &reply) => {
                    let sampled = sequence.rollout.sampled();
                    sequence.reading = reply.iter().copied().collect();
                    sequence.turn = sequence.rollout.read(reply);
                    (sequence.limit, sequence.ended) = (self.generator.limit_of_turn(request, sequence.turn), false);
                    let most = (sequence.limit - sequence.turn).min(sequence.uniforms.len() - sampled);
                    let uniforms = &sequence.uniforms[sampled..sampled + most];
                    self.model.session.renew(sequence.slot as usize, sequence.turn, uniforms)?;
                    self.active.push(sequence);
                }
                TurnReply::Read(_) => self.close(sequence, false),
                TurnReply::Over(finished) => self.close(sequence, finished),
            }
        }
        Ok(())
    }

    /// Ends a sequence and frees its resources.
    fn close(&mut self, sequence: DeviceSequence, finished: bool) {
        let prompt = sequence.rollout.prompt;
        self.free_slots.push(sequence.slot);
        self.left[prompt] -= 1;
        if self.left[prompt] == 0 {
            self.free_places.extend(self.prompts[prompt].take().map(|p| p.place));
        }
        self.done.push(Rollout { finished, ..sequence.rollout });
        self.task.add(1);
    }

    /// Uploads the sequences of the next steps, grouped by prompt.
    fn arrange(&mut self) -> Result<(), Error> {
        self.active.sort_by_key(|sequence| (sequence.rollout.prompt, sequence.rollout.sample));
        let slots: Vec<u32> = self.active.iter().map(|s| s.slot).collect();
        let mut shares: Vec<SharedPrompt> = Vec::new();
        let mut last = None;
        for (row, sequence) in self.active.iter().enumerate() {
            let prompt = sequence.rollout.prompt;
            match shares.last_mut() {
                Some(share) if last == Some(prompt) => share.rows.1 += 1,
                _ => {
                    let Some(known) = &self.prompts[prompt] else { continue };
                    shares.push(SharedPrompt { place: known.place, len: self.requests[prompt].tokens.len(), rows: (row, 1) });
                }
            }
            last = Some(prompt);
        }
        Ok(self.model.session.arrange(&slots, &shares)?)
    }
}
