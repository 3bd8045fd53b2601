//! A plugin's answers: arbitrary bytes in place of what the contract's functions return.

use super::{choice, refused};
use crate::config::{Limits, OnError, is_hidden};
use crate::plugin::Source;
use crate::plugin::old::{Pairs, PolicyPlugin, PreferencePlugin};
use crate::plugin::old::{Rollouts, Scale, Side, Tokens};
use crate::plugin::{Engine, Metric, Result, RewardBatch, RewardPlugin};
use serde_json::Map;
use std::cell::RefCell;

/// A plugin that answers with what it was sent.
const ECHO: &str = include_str!("answers.wat");

/// Size of an answer in bytes: the number of tokens, so that a column of the right length has this size.
const BYTES: usize = 512;

/// Number of completions that are scored.
const ROWS: usize = 3;

/// Number of answers after which the plugin is loaded again: a run's plugins may only use a limited number of metric names.
const ANSWERS: usize = 500;

struct Echo {
    reward: RewardPlugin,
    policy: PolicyPlugin,
    preference: PreferencePlugin,
    answers: usize,
}

impl Echo {
    fn load() -> Self {
        let bytes = wat::parse_str(ECHO).unwrap_or_else(|e| panic!("{e}"));
        let source = Source::new("echo".into(), bytes.into());
        let (none, limits) = (Map::new(), Limits::default());
        let load = || -> Result<Self> {
            Ok(Self {
                // An engine each: those of one engine don't share names.
                reward: RewardPlugin::load(&Engine::new()?, &source, &none, &limits, 0)?,
                policy: PolicyPlugin::load(&Engine::new()?, &source, &none, &limits, 0)?,
                preference: PreferencePlugin::load(&Engine::new()?, &source, true, &none, &limits, 0)?,
                answers: 0,
            })
        };
        load().unwrap_or_else(|e| panic!("{e}"))
    }

    /// Whether the answer was accepted.
    fn answer(&mut self, function: u8, bytes: &[u8; BYTES]) -> bool {
        match function {
            0 | 1 => self.score(function == 1, bytes),
            2 => checked(self.policy.estimate(&rollouts(bytes).into()), |given| {
                assert!(given.advantages.len() == BYTES && given.advantages.iter().all(|a| a.is_finite()));
                assert!(given.returns.iter().all(|r| r.len() == BYTES && r.iter().all(|r| r.is_finite())));
                assert!(given.mask.len() == BYTES && given.mask.iter().all(|m| *m < 2));
                metrics(&given.metrics);
            }),
            3 => checked(self.preference.choose(&rollouts(bytes)), |given| {
                assert!(given.pairs.len() <= 3);
                assert!(given.pairs.iter().all(|pair| pair.chosen < 2 && pair.rejected == 1 - pair.chosen));
                metrics(&given.metrics);
            }),
            4 => self.loss(bytes),
            _ => self.loss_of_pairs(bytes),
        }
    }

    fn score(&mut self, one_by_one: bool, bytes: &[u8; BYTES]) -> bool {
        let token_ids: Vec<u32> = words(bytes).collect();
        let end = token_ids.len() as u32;
        let batch = RewardBatch {
            step: 1,
            seed: 1,
            prompts: vec!["a".into()],
            columns: Vec::new(),
            prompt_of: vec![0; ROWS],
            completions: vec![String::new(); ROWS],
            finished: vec![true; ROWS],
            offsets: vec![0, end, end, end],
            token_ids,
        };
        let scores = if one_by_one {
            self.reward.score_or(&batch, 0..ROWS, OnError::Unscorable).map(|outcome| outcome.scores)
        } else {
            self.reward.score(&batch)
        };
        checked(scores, |scores| {
            assert_eq!(scores.rewards.len(), ROWS);
            assert!(scores.rewards.iter().flatten().all(|r| r.is_finite()));
            metrics(&scores.metrics);
        })
    }

    fn loss(&mut self, bytes: &[u8; BYTES]) -> bool {
        let tokens = Tokens {
            step: 1,
            offsets: vec![0, BYTES as u32],
            mask: bytes.to_vec(),
            advantages: Vec::new(),
            logp: Vec::new(),
            old_logp: Vec::new(),
            ref_logp: None,
            sampling_logp: None,
            entropy: None,
            values: None,
            old_values: None,
            returns: None,
            scale: scale(),
        };
        checked(self.policy.loss(&tokens), |given| {
            let masked =
                |d: &[f32]| d.len() == BYTES && d.iter().zip(bytes).all(|(d, m)| d.is_finite() && (*m != 0 || *d == 0.0));
            assert!(given.loss.is_finite() && masked(&given.d_logp));
            assert!([&given.d_entropy, &given.d_values].into_iter().flatten().all(|d| masked(d)));
            metrics(&given.metrics);
        })
    }

    fn loss_of_pairs(&mut self, bytes: &[u8; BYTES]) -> bool {
        let side = |logp: Vec<f32>| Side { offsets: vec![0, logp.len() as u32], logp, ..Side::default() };
        let chosen = side(words(bytes).map(f32::from_bits).collect());
        let pairs = Pairs { step: 1, rejected: side(vec![0.0; chosen.logp.len()]), chosen, prompts: None, scale: scale() };
        checked(self.preference.loss(&pairs), |given| {
            let fine = |d: &[f32]| d.len() == BYTES / 4 && d.iter().all(|d| d.is_finite());
            assert!(given.loss.is_finite() && fine(&given.d_chosen) && fine(&given.d_rejected));
            metrics(&given.metrics);
        })
    }
}

fn words(bytes: &[u8; BYTES]) -> impl Iterator<Item = u32> {
    bytes.chunks(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// Returns three completions, the first two of one prompt.
fn rollouts(mask: &[u8; BYTES]) -> Rollouts {
    Rollouts {
        step: 1,
        rewards: Vec::new(),
        prompt_of: vec![0, 0, 1],
        finished: vec![true; 3],
        offsets: vec![0, BYTES as u32, BYTES as u32, BYTES as u32],
        mask: mask.to_vec(),
        logp: Vec::new(),
        ref_logp: None,
        values: None,
        entropy: None,
    }
}

fn scale() -> Scale {
    Scale { rows: 1, tokens: BYTES as u64, max_completion_length: BYTES as u32 }
}

/// Checks what was accepted, or how it was refused; returns which of the two.
fn checked<T>(given: Result<T>, check: impl FnOnce(T)) -> bool {
    match given {
        Ok(given) => {
            check(given);
            true
        }
        Err(error) => {
            refused(&error);
            false
        }
    }
}

fn metrics(given: &[Metric]) {
    for metric in given {
        assert!(!metric.name.is_empty() && !metric.name.chars().any(is_hidden), "{:?}", metric.name);
        assert!((metric.value * metric.weight).is_finite() && metric.weight >= 0.0);
    }
}

/// Returns a function of the contract, selected by the first byte, and its result.
pub fn plugin_answers(input: &[u8]) {
    thread_local! {
        static LOADED: RefCell<Option<Echo>> = const { RefCell::new(None) };
    }
    let Some((function, input)) = choice(input, 6) else { return };
    let mut bytes = [0; BYTES];
    bytes.iter_mut().zip(input).for_each(|(byte, given)| *byte = *given);
    LOADED.with_borrow_mut(|loaded| {
        let echo = loaded.get_or_insert_with(Echo::load);
        echo.answer(function, &bytes);
        echo.answers += 1;
        if echo.answers == ANSWERS {
            *loaded = None;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_right_are_taken() {
        let mut echo = Echo::load();
        for (function, seed) in [
            (0, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/score")[1..]),
            (1, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/score")[1..]),
            (2, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/estimate")[1..]),
            (3, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/choose")[1..]),
            (4, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/loss")[1..]),
            (5, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/pairs")[1..]),
        ] {
            let mut bytes = [0; BYTES];
            bytes[..seed.len()].copy_from_slice(seed);
            assert!(echo.answer(function, &bytes), "function {function}");
        }
    }
}
