//! Samples one token from a row of logits.

use crate::logprob::{log_sum_exp, weigh};
use crate::math::sum_f64;
use crate::simd::wide;
use crate::support::Support;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Settings of sampling. The filters apply in the order of transformers' logits processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Divisor of the logits; 0 selects the most likely token.
    pub temperature: f32,
    /// Keeps the most likely tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Drops tokens below this fraction of the most likely token's probability.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that have already occurred.
    pub repetition_penalty: f32,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

/// A sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledToken {
    /// The token's id.
    pub token: u32,
    /// Log-probability that the loss compares with: under the model, before filters and penalty, unless the support is recorded.
    pub logp: f32,
}

/// Creates the random number generator of one completion. It depends only on seed, generation, prompt and sample, so neither batching nor
/// the number of processes changes the samples.
pub fn stream(seed: u64, generation: u64, row: u64, sample: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (bytes, word) in key.chunks_mut(8).zip([seed, generation, row, sample]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Returns a number below one from 53 random bits.
pub fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, &z) in logits.iter().enumerate() {
        if z > logits[best] {
            best = i;
        }
    }
    best
}

impl Sampler {
    /// Samples from `logits: [V]`; `seen` are the tokens of the text so far. The log-probability is that of logits divided by
    /// `logp_temperature`. With a `support`, to which the tokens that could be drawn are added, it is that of the draw.
    // Not generic, since a generic function is compiled with its caller, which is not optimised.
    pub fn draw(
        &self,
        logits: &[f32],
        logp_temperature: f32,
        seen: &mut dyn Iterator<Item = u32>,
        rng: &mut ChaCha8Rng,
        support: Option<&mut Support>,
    ) -> SampledToken {
        let adjusted = self.distribution(logits, seen);
        let token = if self.temperature > 0.0 {
            if let Some(support) = support {
                support.push(&adjusted);
                return self.pick(&adjusted, rng);
            }
            choose(adjusted, uniform(rng))
        } else {
            argmax(&adjusted)
        };
        let logp = logits[token] / logp_temperature - log_sum_exp(logits, logp_temperature);
        SampledToken { token: token as u32, logp }
    }

    /// Returns the logits of the distribution that a token is drawn from: the model's, penalised, divided by the temperature and filtered.
    /// At temperature 0 they are only penalised.
    pub fn distribution(&self, logits: &[f32], seen: &mut dyn Iterator<Item = u32>) -> Vec<f32> {
        let mut adjusted: Vec<f32> = logits.to_vec();
        if self.repetition_penalty != 1.0 {
            self.penalise(&mut adjusted, logits, seen);
        }
        if self.temperature > 0.0 {
            if self.temperature != 1.0 {
                wide!(for z in &mut adjusted {
                    *z /= self.temperature;
                });
            }
            self.filter(&mut adjusted);
        }
        adjusted
    }

    /// Draws a token from the logits of [`Sampler::distribution`], or the most likely one at temperature 0, with its log-probability among
    /// them.
    pub fn pick(&self, distribution: &[f32], rng: &mut ChaCha8Rng) -> SampledToken {
        let greedy = self.temperature <= 0.0;
        let token = if greedy { argmax(distribution) } else { choose(distribution.to_vec(), uniform(rng)) };
        SampledToken { token: token as u32, logp: distribution[token] - log_sum_exp(distribution, 1.0) }
    }

    fn penalise(&self, adjusted: &mut [f32], logits: &[f32], seen: &mut dyn Iterator<Item = u32>) {
        for token in seen {
            // Starts from the model's logit, so that a token that occurred twice is penalised once.
            let z = logits[token as usize];
            adjusted[token as usize] = if z > 0.0 { z / self.repetition_penalty } else { z * self.repetition_penalty };
        }
    }

    /// Returns whether sampling changes the model's probabilities at this temperature.
    pub fn changes_support(&self) -> bool {
        self.top_p < 1.0 || self.top_k > 0 || self.min_p > 0.0 || self.repetition_penalty != 1.0
    }

    /// Sets the logits of excluded tokens to negative infinity.
    fn filter(&self, z: &mut [f32]) {
        if self.top_k > 0 && self.top_k < z.len() {
            let mut sorted = z.to_vec();
            let (_, kth, _) = sorted.select_nth_unstable_by(self.top_k - 1, |a, b| b.total_cmp(a));
            let kth = *kth;
            z.iter_mut().filter(|z| **z < kth).for_each(|z| *z = f32::NEG_INFINITY);
        }
        if self.top_p < 1.0 {
            self.keep_nucleus(z);
        }
        if self.min_p > 0.0 {
            let floor = z[argmax(z)] + self.min_p.ln();
            z.iter_mut().filter(|z| **z < floor).for_each(|z| *z = f32::NEG_INFINITY);
        }
    }

    /// Excludes all but the most likely tokens that together reach `top_p`.
    fn keep_nucleus(&self, z: &mut [f32]) {
        let normaliser = log_sum_exp(z, 1.0);
        // All tokens below this threshold together have at most half of the excluded probability. They are excluded without sorting, which
        // would take most of the time.
        let unlikely = normaliser + (0.5 * (1.0 - self.top_p) / z.len() as f32).ln();
        let mut order: Vec<u64> = Vec::new();
        for (i, z) in z.iter_mut().enumerate() {
            if *z < unlikely {
                *z = f32::NEG_INFINITY;
            } else {
                order.push(rank(*z, i));
            }
        }
        // A few of the most likely tokens nearly always suffice, so the rest need not be sorted either.
        let (mut above, mut first, mut rest, mut size) = (0.0, true, &mut order[..], 256);
        while !rest.is_empty() {
            if size < rest.len() {
                rest.select_nth_unstable(size);
            }
            let (next, others) = rest.split_at_mut(size.min(rest.len()));
            if above < self.top_p {
                next.sort_unstable();
            }
            for &mut ranked in next {
                let z = &mut z[ranked as u32 as usize];
                if !first && above >= self.top_p {
                    *z = f32::NEG_INFINITY;
                } else {
                    above += (*z - normaliser).exp();
                }
                first = false;
            }
            (rest, size) = (others, if above < self.top_p { 4 * size } else { usize::MAX });
        }
    }
}

/// Returns a sort key that orders tokens by descending logit, then by id.
fn rank(logit: f32, id: usize) -> u64 {
    let bits = logit.to_bits();
    let rising = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!rising) << 32 | id as u64
}

/// Number of weights that are summed together. Only one such block is searched for the token.
const BLOCK: usize = 512;

/// Returns the token at which the cumulative probability exceeds `uniform`.
fn choose(mut z: Vec<f32>, uniform: f64) -> usize {
    weigh(&mut z);
    let sums: Vec<f64> = z.chunks(BLOCK).map(sum_f64).collect();
    let threshold = uniform * sums.iter().sum::<f64>();
    // The block that contains the token, and the sum of the blocks before it.
    let (mut block, mut before, mut sum) = (0, 0.0, 0.0);
    for (i, of_block) in sums.into_iter().enumerate() {
        if of_block > 0.0 {
            (block, before) = (i, sum);
            sum += of_block;
            if sum > threshold {
                break;
            }
        }
    }
    let (mut sum, mut last) = (before, 0);
    for (i, &w) in z.iter().enumerate().skip(block * BLOCK).take(BLOCK) {
        if w > 0.0 {
            sum += f64::from(w);
            last = i;
            if sum > threshold {
                break;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draws(sampling: &Sampler, logits: &[f32], n: usize) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        let mut rng = stream(1, 2, 3, 4);
        for _ in 0..n {
            counts[sampling.draw(logits, 1.0, &mut [].into_iter(), &mut rng, None).token as usize] += 1;
        }
        counts
    }

    #[test]
    fn frequencies_follow_the_probabilities_at_the_temperature() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p: &f32| p.ln() * 2.0).collect();
        let counts = draws(&Sampler { temperature: 2.0, ..Sampler::default() }, &logits, 100_000);
        for (count, p) in counts.iter().zip([0.5f64, 0.3, 0.2]) {
            // Five standard deviations of a binomial count.
            let deviation = (100_000.0 * p * (1.0 - p)).sqrt() * 5.0;
            assert!((*count as f64 - 100_000.0 * p).abs() < deviation, "{counts:?}");
        }
    }

    #[test]
    fn filters_keep_what_transformers_keeps() {
        let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].iter().map(|p: &f32| p.ln()).collect();
        let kept = |s: Sampler| draws(&s, &logits, 4000).iter().map(|&c| c > 0).collect::<Vec<_>>();
        assert_eq!(kept(Sampler { top_k: 2, ..Sampler::default() }), [true, true, false, false]);
        // 0.4 + 0.3 reach 0.7, so the third is dropped; at 0.75 it is not.
        assert_eq!(kept(Sampler { top_p: 0.69, ..Sampler::default() }), [true, true, false, false]);
        assert_eq!(kept(Sampler { top_p: 0.75, ..Sampler::default() }), [true, true, true, false]);
        assert_eq!(kept(Sampler { min_p: 0.45, ..Sampler::default() }), [true, true, true, false]);
        assert_eq!(kept(Sampler { temperature: 0.0, ..Sampler::default() }), [true, false, false, false]);
    }

    #[test]
    fn the_nucleus_of_many_tokens_is_that_of_sorting_them_all() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        for (spread, top_p) in [(0.0, 0.5), (1.0, 0.9), (4.0, 0.1), (10.0, 0.9), (10.0, 0.999), (30.0, 0.95)] {
            let logits: Vec<f32> = (0..3000).map(|_| spread * next()).collect();
            let mut kept = logits.clone();
            Sampler { top_p, ..Sampler::default() }.filter(&mut kept);
            let mut sorted: Vec<(usize, f64)> = logits.iter().map(|&z| f64::from(z).exp()).enumerate().collect();
            let whole: f64 = sorted.iter().map(|(_, w)| w).sum();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            let mut above = 0.0;
            let nucleus = sorted.iter().take_while(|(_, w)| {
                above += w / whole;
                above - w / whole < f64::from(top_p)
            });
            let wanted: std::collections::BTreeSet<usize> = nucleus.map(|(i, _)| *i).collect();
            let got: std::collections::BTreeSet<usize> = (0..3000).filter(|&i| kept[i].is_finite()).collect();
            // Sums in f32 may end the nucleus one token earlier or later.
            let odd = wanted.symmetric_difference(&got).count();
            assert!(odd <= 1 + wanted.len() / 1000, "{spread} {top_p}: {} tokens instead of {}", got.len(), wanted.len());
        }
    }

    #[test]
    fn the_chosen_token_is_that_of_summing_one_by_one() {
        for possible in [1, 7, BLOCK, 997] {
            let z: Vec<f32> = (0..5 * BLOCK + 3)
                .map(|i| if i % possible == 0 { ((i * 7919) % 1013) as f32 / 100.0 } else { f32::NEG_INFINITY })
                .collect();
            let top = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f64> = z.iter().map(|z| f64::from(z - top).exp()).collect();
            let whole: f64 = weights.iter().sum();
            for step in 0..1000 {
                let uniform = f64::from(step) / 1000.0 + 1e-4;
                let mut sum = 0.0;
                let want = weights.iter().position(|w| {
                    sum += w;
                    sum > uniform * whole
                });
                assert_eq!(Some(choose(z.clone(), uniform)), want, "{possible} {uniform}");
            }
            let last = weights.iter().rposition(|w| *w > 0.0);
            assert_eq!(Some(choose(z, 1.0)), last);
        }
    }

    #[test]
    fn a_token_that_occurred_twice_is_penalised_once_and_logp_ignores_it() {
        let sampling = Sampler { temperature: 0.0, repetition_penalty: 1.5, ..Sampler::default() };
        let logits = [2.0f32, 1.5, -1.0];
        let mut rng = stream(0, 0, 0, 0);
        // 2 / 1.5 = 1.33 is less than 1.5, and so would be 2 / 1.5 / 1.5.
        let drawn = sampling.draw(&logits, 1.0, &mut [0, 0].into_iter(), &mut rng, None);
        assert_eq!(drawn.token, 1);
        let want = 1.5 - logits.iter().map(|z| z.exp()).sum::<f32>().ln();
        assert!((drawn.logp - want).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn any_logits_give_a_token_of_the_vocabulary(
            logits in prop::collection::vec(-50f32..50.0, 1..40), seed: u64, top_k in 0usize..50, top_p in 0.01f32..1.0, min_p in 0f32..1.0,
        ) {
            let sampling = Sampler { top_k, top_p, min_p, ..Sampler::default() };
            let drawn = sampling.draw(&logits, 1.0, &mut [].into_iter(), &mut stream(seed, 0, 0, 0), None);
            prop_assert!((drawn.token as usize) < logits.len());
            prop_assert!(drawn.logp <= 1e-5);
        }
    }
}
