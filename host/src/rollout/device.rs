//! The scheduler on a device: one batch of all sequences, with tokens sampled where the logits are. Each step only returns the
//! sampled tokens and, where they are kept, their supports.

use super::Error;
use super::scheduler::{Generator, Request, Rollout, Sequence, batches};
use crate::model::{DeviceDecoding, DevicePrefix, Room};
use crate::ops::decode::{Drawing, SharedPrompt};
use crate::ops::sampler::{stream, uniform};
use crate::ops::support::Support;
use candle_core::Tensor;
use std::collections::VecDeque;
use std::sync::Arc;

/// A prefilled prompt, kept until its last completion is done.
struct Prefilled {
    place: usize,
    /// Keeps alive the keys and values whose addresses the device has.
    _prefix: DevicePrefix,
    /// Logits of all prompts prefilled together, and this one's row.
    logits: Arc<Tensor>,
    row: u32,
}

/// A sequence in the batch.
struct Active {
    rollout: Rollout,
    slot: u32,
    limit: usize,
}

/// New sequences whose prompts' logits are in one tensor.
struct First {
    logits: Arc<Tensor>,
    slots: Vec<u32>,
    rows: Vec<u32>,
    /// Their indices among the active sequences.
    sequences: Vec<usize>,
}

/// A generation in progress.
struct Batch<'a, 'm> {
    generator: &'a Generator<'a>,
    requests: &'a [Request],
    model: DeviceDecoding<'m>,
    prompts: Vec<Option<Prefilled>>,
    /// Unfinished completions of each prompt.
    left: Vec<usize>,
    free_places: Vec<usize>,
    free_slots: Vec<u32>,
    active: Vec<Active>,
    done: Vec<Rollout>,
}

/// Returns all completions in any order, or `None` if the model is not on a device.
pub(super) fn run(generator: &Generator<'_>, requests: &[Request]) -> Result<Option<Vec<Rollout>>, Error> {
    let total = requests.iter().map(|r| r.samples).sum::<usize>();
    let room = Room {
        sequences: total.min(generator.max_num_seqs).max(1),
        completion: requests.iter().map(|r| generator.limit_of_turn(r, 0)).max().unwrap_or(1),
        prompt: requests.iter().map(|r| r.tokens.len()).max().unwrap_or(1),
    };
    let Generator { sampling, logp_temperature, keep_support, .. } = *generator;
    let drawing = Drawing { sampling, logp_temperature, keep_support };
    let Some(model) = generator.model.on_device(room, drawing)? else { return Ok(None) };
    let batch = Batch {
        generator,
        requests,
        model,
        prompts: requests.iter().map(|_| None).collect(),
        left: requests.iter().map(|r| r.samples).collect(),
        free_places: (0..=room.sequences).rev().collect(),
        free_slots: (0..room.sequences as u32).rev().collect(),
        active: Vec::new(),
        done: Vec::new(),
    };
    batch.run().map(Some)
}

impl Batch<'_, '_> {
    fn run(mut self) -> Result<Vec<Rollout>, Error> {
        let mut waiting: VecDeque<Sequence> =
            self.requests.iter().enumerate().flat_map(|(p, r)| (0..r.samples).map(move |s| (p, s))).collect();
        let mut changed = true;
        while !self.active.is_empty() || !waiting.is_empty() {
            let admitted: Vec<Sequence> = waiting.drain(..self.free_slots.len().min(waiting.len())).collect();
            if !admitted.is_empty() {
                self.admit(&admitted)?;
                self.retire();
                changed = true;
            }
            if self.active.is_empty() {
                continue;
            }
            if changed {
                self.arrange()?;
            }
            self.model.step()?;
            self.take((0..self.active.len()).collect())?;
            changed = self.retire();
        }
        Ok(self.done)
    }

    /// Gives sequences a slot and their first token.
    fn admit(&mut self, admitted: &[Sequence]) -> Result<(), Error> {
        self.prefill(admitted)?;
        let mut drawn_together: Vec<First> = Vec::new();
        for &(prompt, sample) in admitted {
            let (Some(known), Some(slot)) = (&self.prompts[prompt], self.free_slots.pop()) else { continue };
            let (request, generator) = (&self.requests[prompt], self.generator);
            let limit = generator.limit_of_turn(request, 0);
            let sample = request.first + sample;
            let mut numbers = stream(generator.seed, generator.generation, request.row, sample as u64);
            let uniforms: Vec<f64> = (0..limit).map(|_| uniform(&mut numbers)).collect();
            self.model.session.begin(slot as usize, &request.tokens, &uniforms)?;
            // Prompts that were prefilled together are adjacent.
            if !drawn_together.last().is_some_and(|first| Arc::ptr_eq(&first.logits, &known.logits)) {
                let logits = Arc::clone(&known.logits);
                drawn_together.push(First { logits, slots: vec![], rows: vec![], sequences: vec![] });
            }
            if let Some(first) = drawn_together.last_mut() {
                first.slots.push(slot);
                first.rows.push(known.row);
                first.sequences.push(self.active.len());
            }
            let support = generator.keep_support.then(|| Support::new(generator.sampling.repetition_penalty));
            let rollout = Rollout { prompt, sample, support, ..Rollout::default() };
            self.active.push(Active { rollout, slot, limit });
        }
        for first in drawn_together {
            self.model.draw_first(&first.logits, &first.slots, &first.rows)?;
            self.take(first.sequences)?;
        }
        Ok(())
    }

    /// Appends the tokens that were sampled for these active sequences, in this order.
    fn take(&mut self, sequences: Vec<usize>) -> Result<(), Error> {
        let drawn = self.model.session.drawn(sequences.len())?;
        let supports = if self.generator.keep_support { self.model.session.supports(sequences.len())? } else { Vec::new() };
        for (i, (index, drawn)) in sequences.into_iter().zip(drawn).enumerate() {
            let rollout = &mut self.active[index].rollout;
            rollout.tokens.push(drawn.token);
            rollout.logp.push(drawn.logp);
            if let (Some(support), Some(bits)) = (&mut rollout.support, supports.get(i)) {
                support.push_bits(bits, self.model.vocabulary());
            }
            rollout.finished = self.generator.ends(&rollout.tokens);
        }
        Ok(())
    }

    /// Prefills the prompts of these sequences that are not yet.
    fn prefill(&mut self, admitted: &[Sequence]) -> Result<(), Error> {
        let mut new: Vec<usize> = admitted.iter().map(|(prompt, _)| *prompt).filter(|&p| self.prompts[p].is_none()).collect();
        new.dedup();
        for (forest, together) in batches(self.requests, &new) {
            let (prefixes, logits) = self.model.prefill(&forest)?;
            let logits = Arc::new(logits);
            for (row, (&prompt, prefix)) in together.iter().zip(prefixes).enumerate() {
                let Some(place) = self.free_places.pop() else { continue };
                self.model.put_prompt(place, &prefix)?;
                self.prompts[prompt] = Some(Prefilled { place, _prefix: prefix, logits: Arc::clone(&logits), row: row as u32 });
            }
        }
        Ok(())
    }

    /// Removes finished sequences from the batch. Returns whether there were any.
    fn retire(&mut self) -> bool {
        let before = self.active.len();
        for sequence in std::mem::take(&mut self.active) {
            if !sequence.rollout.finished && sequence.rollout.tokens.len() < sequence.limit {
                self.active.push(sequence);
                continue;
            }
            let prompt = sequence.rollout.prompt;
            self.free_slots.push(sequence.slot);
            self.left[prompt] -= 1;
            if self.left[prompt] == 0 {
                self.free_places.extend(self.prompts[prompt].take().map(|p| p.place));
            }
            self.done.push(sequence.rollout);
        }
        self.active.len() < before
    }

    /// Uploads the sequences of the next steps. Those of a prompt are adjacent, as they were admitted.
    fn arrange(&mut self) -> Result<(), Error> {
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
