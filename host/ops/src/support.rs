//! The sampler's support: the tokens that could be sampled, and those whose logits a repetition penalty changed. Scored on its support, a
//! token has the probability with which it was sampled.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The tokens that could be sampled at each position of a text. Positions without an entry are scored on the whole vocabulary.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Support {
    /// Penalty on tokens that have already occurred; 1 for none.
    pub penalty: f32,
    /// End of each position's entry in `words`.
    pub ends: Vec<u32>,
    /// The entries: ascending token ids or, if one bit per token takes no more space, a bit set. An empty entry means the whole vocabulary.
    pub words: Vec<u32>,
}

/// Returns the number of words of a bit set of all tokens.
fn bits(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

impl Support {
    /// Creates the support of an empty text.
    pub fn new(penalty: f32) -> Self {
        Self { penalty, ends: Vec::new(), words: Vec::new() }
    }

    /// Adds a position at which every token with a logit above negative infinity could be sampled.
    pub fn push(&mut self, logits: &[f32]) {
        let mut words = vec![0u32; bits(logits.len())];
        for (word, logits) in words.iter_mut().zip(logits.chunks(32)) {
            *word = logits.iter().rev().fold(0, |word, z| word << 1 | u32::from(*z > f32::NEG_INFINITY));
        }
        self.push_bits(&words, logits.len());
    }

    /// Adds a position at which every token whose bit is set could be sampled. There are `bits(vocab)` words.
    pub fn push_bits(&mut self, words: &[u32], vocab: usize) {
        let kept = words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        if kept < bits(vocab) {
            let tokens = (0..vocab as u32).filter(|token| words[*token as usize / 32] >> (token % 32) & 1 == 1);
            self.words.extend(tokens);
        } else if kept < vocab {
            self.words.extend_from_slice(words);
        }
        self.ends.push(self.words.len() as u32);
    }

    /// Adds positions without an entry until there are `len`.
    pub fn skip_to(&mut self, len: usize) {
        self.ends.resize(len.max(self.ends.len()), self.words.len() as u32);
    }

    /// Returns the entry of a position.
    fn entry(&self, at: usize) -> &[u32] {
        let first = at.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.words[first..self.ends[at] as usize]
    }

    /// Returns why the support is invalid for these tokens, or `None`.
    pub fn fault(&self, tokens: &[u32], vocab: usize) -> Option<&'static str> {
        let rising = self.ends.windows(2).all(|pair| pair[0] <= pair[1]);
        if self.ends.len() != tokens.len() || !rising || self.ends.last().is_some_and(|end| *end as usize != self.words.len()) {
            return Some("has a support that does not fit its tokens");
        }
        let fits = |(at, token): (usize, &u32)| match self.entry(at) {
            [] => true,
            entry if entry.len() == bits(vocab) => {
                entry.get(*token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
            }
            entry => {
                let ids = entry.windows(2).all(|pair| pair[0] < pair[1]) && entry.last().is_some_and(|id| (*id as usize) < vocab);
                ids && entry.contains(token)
            }
        };
        let all_fit = self.penalty.is_finite() && self.penalty > 0.0 && tokens.iter().enumerate().all(fits);
        (!all_fit).then_some("has a support without one of its tokens")
    }
}

/// Effect of a [`Restriction`] on a block of rows, counted from the block's first row. The layout is that of the structures in
/// `host/kernels/logprob.cu`.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub(super) struct BlockRestriction<'a> {
    /// Row, first word and number of words of each restricted row.
    pub restricted: Vec<u32>,
    /// The restricted rows' words.
    pub words: &'a [u32],
    /// Penalty on tokens that have occurred.
    pub penalty: f32,
    /// Token, first row, number of rows and index of the first factor.
    pub penalised: Vec<u32>,
    /// Number of penalised logits.
    pub factors: usize,
}

/// Supports of the rows of a matrix of logits.
#[derive(Clone, Debug, Default)]
pub struct Restriction {
    penalty: Option<f32>,
    /// Tokens that precede each of these rows.
    penalised: Vec<(u32, Range<usize>)>,
    /// The restricted rows, ascending, each with the end of its entry.
    rows: Vec<(usize, usize)>,
    words: Vec<u32>,
}

impl Restriction {
    /// Adds the positions of a text with a known support, in the rows from `first` on, after a `prompt`.
    pub fn push(&mut self, first: usize, support: &Support, prompt: &[u32], tokens: &[u32]) {
        for at in 0..tokens.len() {
            let entry = support.entry(at);
            if !entry.is_empty() {
                self.words.extend_from_slice(entry);
                self.rows.push((first + at, self.words.len()));
            }
        }
        if support.penalty == 1.0 {
            return;
        }
        self.penalty = Some(support.penalty);
        let from = |at: usize| (at + 1).saturating_sub(prompt.len());
        let mut seen: Vec<(u32, usize)> = prompt.iter().chain(tokens).enumerate().map(|(at, token)| (*token, from(at))).collect();
        seen.sort_unstable();
        seen.dedup_by_key(|(token, _)| *token);
        let seen = seen.into_iter().filter(|(_, from)| *from < tokens.len());
        self.penalised.extend(seen.map(|(token, from)| (token, first + from..first + tokens.len())));
    }

    /// Returns whether the restriction has no effect.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.penalty.is_none()
    }

    /// Returns the restriction of a block of rows in the form that a device reads.
    #[cfg(feature = "cuda")]
    pub(super) fn of_rows(&self, rows: &Range<usize>) -> BlockRestriction<'_> {
        let (first, last) = (self.before(rows.start), self.before(rows.end));
        let begin = |i: usize| i.checked_sub(1).map_or(0, |before| self.rows[before].1);
        let mut of_rows = BlockRestriction { words: &self.words[begin(first)..begin(last)], ..BlockRestriction::default() };
        for i in first..last {
            let (row, end) = self.rows[i];
            of_rows.restricted.extend([row - rows.start, begin(i) - begin(first), end - begin(i)].map(|n| n as u32));
        }
        let Some(penalty) = self.penalty else { return of_rows };
        of_rows.penalty = penalty;
        for (token, of) in &self.penalised {
            let (start, end) = (of.start.max(rows.start), of.end.min(rows.end));
            if start < end {
                of_rows.penalised.extend([*token, (start - rows.start) as u32, (end - start) as u32, of_rows.factors as u32]);
                of_rows.factors += end - start;
            }
        }
        of_rows
    }

    /// Applies the restriction to the logits of some rows and tokens, with a line of `line` rows for each token. Returns the logits that
    /// the penalty multiplied, each with its factor.
    pub(super) fn apply(
        &self,
        logits: &mut [f32],
        line: usize,
        (rows, tokens): (&Range<usize>, &Range<usize>),
        vocab: usize,
    ) -> Vec<(usize, f32)> {
        let multiplied = self.penalise(logits, line, rows, tokens);
        let (first, last) = (self.before(rows.start), self.before(rows.end));
        let restricted = &self.rows[first..last];
        if restricted.is_empty() {
            return multiplied;
        }
        let mut kept = Vec::new();
        for (i, (row, end)) in restricted.iter().enumerate() {
            let begin = (first + i).checked_sub(1).map_or(0, |before| self.rows[before].1);
            let mut keep = |token: usize| {
                let place = (token - tokens.start) * line + row - rows.start;
                kept.push((place, logits[place]));
            };
            let entry = &self.words[begin..*end];
            if entry.len() == bits(vocab) {
                tokens.clone().filter(|token| entry[token / 32] >> (token % 32) & 1 == 1).for_each(&mut keep);
            } else {
                let from = entry.partition_point(|id| (*id as usize) < tokens.start);
                entry[from..].iter().map(|id| *id as usize).take_while(|id| *id < tokens.end).for_each(&mut keep);
            }
        }
        let columns: Vec<usize> = restricted.iter().map(|(row, _)| row - rows.start).collect();
        for values in logits.chunks_exact_mut(line) {
            columns.iter().for_each(|column| values[*column] = f32::NEG_INFINITY);
        }
        kept.into_iter().for_each(|(place, logit)| logits[place] = logit);
        multiplied
    }

    /// Returns the number of restricted rows before this one.
    fn before(&self, row: usize) -> usize {
        self.rows.partition_point(|(known, _)| *known < row)
    }

    fn penalise(&self, logits: &mut [f32], line: usize, rows: &Range<usize>, tokens: &Range<usize>) -> Vec<(usize, f32)> {
        let Some(penalty) = self.penalty else { return Vec::new() };
        let mut multiplied = Vec::new();
        for (token, of) in self.penalised.iter().filter(|(token, _)| tokens.contains(&(*token as usize))) {
            for row in of.start.max(rows.start)..of.end.min(rows.end) {
                let place = (*token as usize - tokens.start) * line + row - rows.start;
                let factor = if logits[place] > 0.0 { 1.0 / penalty } else { penalty };
                logits[place] *= factor;
                multiplied.push((place, factor));
            }
        }
        multiplied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logprob::{LogitScale, backward, forward};
    use crate::sampler::{Sampler, stream};
    use candle_core::{Device, Tensor};

    const VOCAB: usize = 70;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            4.0 * ((state >> 40) as f32 / (1 << 24) as f32) - 2.0
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    fn matrix(values: &[f32], cols: usize) -> Tensor {
        Tensor::from_slice(values, (values.len() / cols, cols), &Device::Cpu).unwrap()
    }

    /// Returns texts sampled from the logits of hidden states and an output matrix, with their supports.
    fn drawn(sampling: &Sampler, hidden: &[f32], w: &[f32], prompt: &[u32], seed: u64) -> (Vec<u32>, Vec<f32>, Support) {
        let (mut tokens, mut logp, mut support) = (Vec::new(), Vec::new(), Support::new(sampling.repetition_penalty));
        let mut rng = stream(seed, 0, 0, 0);
        for h in hidden.chunks(3) {
            let logits: Vec<f32> = w.chunks(3).map(|w| h.iter().zip(w).map(|(a, b)| a * b).sum()).collect();
            let mut seen = prompt.iter().chain(&tokens).copied().collect::<Vec<_>>().into_iter();
            let token = sampling.draw(&logits, sampling.temperature, &mut seen, &mut rng, Some(&mut support));
            tokens.push(token.token);
            logp.push(token.logp);
        }
        (tokens, logp, support)
    }

    #[test]
    fn scored_on_its_support_a_token_has_the_probability_with_which_it_was_drawn() {
        let plain = Sampler { temperature: 0.8, ..Sampler::default() };
        let (hidden, w, prompt) = (noise(3 * 40, 1), noise(3 * VOCAB, 2), [3, 9, 3]);
        for (case, sampling) in [
            Sampler { top_p: 0.7, ..plain },
            // Supports as bits, as lists, and as both.
            Sampler { top_k: 40, ..plain },
            Sampler { top_k: 2, ..plain },
            Sampler { min_p: 0.05, ..plain },
            Sampler { repetition_penalty: 1.5, ..plain },
            Sampler { repetition_penalty: 0.7, top_p: 0.9, ..plain },
        ]
        .iter()
        .enumerate()
        {
            let (first, second) = hidden.split_at(3 * 15);
            let (one, two) = (drawn(sampling, first, &w, &prompt, 5), drawn(sampling, second, &w, &prompt, 6));
            let mut restriction = Restriction::default();
            restriction.push(0, &one.2, &prompt, &one.0);
            restriction.push(15, &two.2, &prompt, &two.0);
            for (tokens, _, support) in [&one, &two] {
                assert_eq!(support.fault(tokens, VOCAB), None, "case {case}");
            }
            let (tokens, logp) = ([one.0, two.0].concat(), [one.1, two.1].concat());
            let (h, w) = (matrix(&hidden, 3), matrix(&w, 3));
            let scored = |restriction| forward(&h, &w, &tokens, 0.8.into(), restriction).unwrap();
            let stats = scored(Some(&restriction));
            for (at, (scored, drawn)) in stats.logp.iter().zip(&logp).enumerate() {
                assert!((scored - drawn).abs() < 1e-5, "case {case}, token {at}: {scored} instead of {drawn}");
            }
            assert!(scored(None).logp.iter().zip(&logp).any(|(all, drawn)| (all - drawn).abs() > 1e-2), "case {case}");
        }
    }

    #[test]
    fn derivatives_of_restricted_scores_are_those_of_finite_differences() {
        let sampling = Sampler { temperature: 0.8, top_p: 0.9, repetition_penalty: 1.4, ..Sampler::default() };
        let (hidden, w, prompt) = (noise(3 * 12, 1), noise(3 * VOCAB, 2), [3, 9, 3]);
        let (tokens, _, support) = drawn(&sampling, &hidden, &w, &prompt, 5);
        let mut restriction = Restriction::default();
        restriction.push(0, &support, &prompt, &tokens);
        for scale in [LogitScale::from(0.8), LogitScale { cap: Some(3.0), ..LogitScale::from(0.8) }] {
            let (by_logp, by_entropy) = (noise(12, 3), noise(12, 4));
            let loss = |hidden: &[f32], w: &[f32]| {
                let stats = forward(&matrix(hidden, 3), &matrix(w, 3), &tokens, scale, Some(&restriction)).unwrap();
                let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                dot(&stats.logp, &by_logp) + dot(&stats.entropy, &by_entropy)
            };
            let (h, wt) = (matrix(&hidden, 3), matrix(&w, 3));
            let stats = forward(&h, &wt, &tokens, scale, Some(&restriction)).unwrap();
            let dw = matrix(&vec![0.0; w.len()], 3);
            let dh =
                backward(&h, &wt, &tokens, scale, Some(&restriction), &stats, &by_logp, Some(&by_entropy), Some(&dw)).unwrap();
            let (dh, dw) = (crate::to_vec(&dh).unwrap(), crate::to_vec(&dw).unwrap());
            let slope = |values: &[f32], i: usize, loss: &dyn Fn(&[f32]) -> f64| {
                let moved = |by: f32| {
                    let mut values = values.to_vec();
                    values[i] += by;
                    loss(&values)
                };
                (moved(1e-2) - moved(-1e-2)) / 2e-2
            };
            for (i, got) in dh.iter().enumerate() {
                let want = slope(&hidden, i, &|hidden| loss(hidden, &w));
                assert!((f64::from(*got) - want).abs() < 1e-2 * want.abs().max(0.5), "hidden {i}: {got} instead of {want}");
            }
            for (i, got) in dw.iter().enumerate() {
                let want = slope(&w, i, &|w| loss(&hidden, w));
                assert!((f64::from(*got) - want).abs() < 1e-2 * want.abs().max(0.5), "output {i}: {got} instead of {want}");
            }
        }
    }

    #[test]
    fn a_support_must_fit_its_tokens() {
        let mut support = Support::new(1.0);
        let mut logits = vec![f32::NEG_INFINITY; VOCAB];
        (logits[5], logits[60]) = (1.0, 2.0);
        support.push(&logits);
        support.skip_to(2);
        support.push(&vec![0.0; VOCAB]);
        assert_eq!(support.fault(&[60, 1, 2], VOCAB), None);
        assert!(support.fault(&[60, 1], VOCAB).is_some());
        assert!(support.fault(&[6, 1, 2], VOCAB).is_some());
        assert!(support.fault(&[60, 1, 2], 60).is_some());
        for broken in [
            Support { ends: vec![2, 1, 2], ..support.clone() },
            Support { ends: vec![2, 2, 9], ..support.clone() },
            Support { words: vec![60, 5], ..support.clone() },
            Support { penalty: f32::NAN, ..support.clone() },
        ] {
            assert!(broken.fault(&[60, 1, 2], VOCAB).is_some(), "{broken:?}");
        }
    }
}
