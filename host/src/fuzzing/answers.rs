//! A plugin's responses: arbitrary bytes in place of the results of the contract's functions.

use super::{choice, refused};
use crate::config::{PluginLimits, RewardErrorAction, is_hidden};
use crate::plugin::algorithm::{
    AlgorithmPlugin, Batch, Column, Estimates, MicroBatchLoss, PairSelection, Scale, ScoredGeneration, Unit,
};
use crate::plugin::{Metric, PluginEngine, PluginSource, Result, RewardBatch, RewardPlugin, columns};
use serde_json::Map;
use std::cell::RefCell;

/// A plugin that returns arbitrary bytes: a reward of version 0.1, and an algorithm that chooses pairs or, with [`OF_PAIRS`] renamed, one
/// over completions.
const ECHO: &str = include_str!("answers.wat");
const OF_PAIRS: [&str; 2] = ["rlhost:plugin/pairing@0.1.0#choose", "rlhost:plugin/preference@0.1.0#loss"];

/// An algorithm of version 1.0 that returns arbitrary bytes.
const CURRENT: &str = include_str!("current.wat");

/// Size of a result in bytes, which is also the number of tokens, so that a column of the right length has this size.
const BYTES: usize = 512;

/// Number of scored completions.
const ROWS: usize = 3;

/// Number of results after which the plugin is reloaded, because a run's plugins may use only a limited number of metric names.
const ANSWERS: usize = 500;

struct EchoPlugins {
    reward: RewardPlugin,
    policy: AlgorithmPlugin,
    preference: AlgorithmPlugin,
    current: AlgorithmPlugin,
    answers: usize,
}

fn source(text: &str) -> PluginSource {
    let bytes = wat::parse_str(text).unwrap_or_else(|e| panic!("{e}"));
    PluginSource::new("echo".into(), bytes.into())
}

impl EchoPlugins {
    fn load() -> Self {
        let of_completions = OF_PAIRS.iter().fold(ECHO.to_owned(), |text, name| text.replace(name, &name[name.len() - 6..]));
        let (none, limits) = (Map::new(), PluginLimits::default());
        // Each plugin has its own engine, because plugins of one engine can't share metric names.
        let algorithm = |text: &str| AlgorithmPlugin::load(&PluginEngine::new()?, &source(text), &none, &limits, 0);
        let load = || -> Result<Self> {
            Ok(Self {
                reward: RewardPlugin::load(&PluginEngine::new()?, &source(ECHO), &none, &limits, 0)?,
                policy: algorithm(&of_completions)?,
                preference: algorithm(ECHO)?,
                current: algorithm(CURRENT)?,
                answers: 0,
            })
        };
        load().unwrap_or_else(|e| panic!("{e}"))
    }

    /// Returns whether the host accepted the plugin's result.
    fn answer(&mut self, function: u8, bytes: &[u8; BYTES]) -> bool {
        let old = |columns: Vec<Column>| ScoredGeneration { batch: Batch { columns, ..batch(bytes) }, rewards: Vec::new() };
        // Columns that the interfaces of version 0.1 always have.
        let generated = || {
            let old_logp = Column::new(columns::OLD_LOGP, Unit::Token, Vec::new());
            old(vec![old_logp, Column::new(columns::FINISHED, Unit::Sequence, vec![1.0; 3])])
        };
        let logp = || vec![Column::new(columns::LOGP, Unit::Token, Vec::new())];
        match function {
            0 | 1 => self.score(function == 1, bytes),
            2 => checked(self.policy.estimate(&generated()), |given| check_estimates(&given, bytes)),
            3 => checked(self.preference.choose(&generated()), |given| check_choice(&given)),
            4 => {
                let of_one = Batch { groups: vec![0, 1], tokens: vec![0, BYTES as u32], columns: logp(), ..batch(bytes) };
                checked(self.policy.loss(&of_one), |given| check_gradient(&given, Some(bytes)))
            }
            5 => {
                let logp: Vec<f32> = words(bytes).map(f32::from_bits).chain(vec![0.0; BYTES / 4]).collect();
                let pair = Batch {
                    groups: vec![0, 2],
                    tokens: vec![0, BYTES as u32 / 4, BYTES as u32 / 2],
                    mask: vec![1; logp.len()],
                    columns: vec![Column::new(columns::LOGP, Unit::Token, logp)],
                    ..batch(bytes)
                };
                checked(self.preference.loss(&pair), |given| check_gradient(&given, None))
            }
            6 => checked(self.current.estimate(&old(Vec::new())), |given| check_estimates(&given, bytes)),
            7 => checked(self.current.choose(&old(Vec::new())), |given| check_choice(&given)),
            _ => checked(self.current.loss(&batch(bytes)), |given| check_gradient(&given, Some(bytes))),
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
            self.reward.score_with_retries(&batch, 0..ROWS, RewardErrorAction::Unscorable).map(|outcome| outcome.scores)
        } else {
            self.reward.score(&batch)
        };
        checked(scores, |scores| {
            assert_eq!(scores.rewards.len(), ROWS);
            assert!(scores.rewards.iter().flatten().all(|r| r.is_finite()));
            metrics(&scores.metrics);
        })
    }
}

/// Checks accepted estimates.
fn check_estimates(given: &Estimates, mask: &[u8; BYTES]) {
    for column in &given.columns {
        let count = if column.unit == Unit::Token { BYTES } else { 3 };
        assert!(column.values.len() == count && column.values.iter().all(|value| value.is_finite()), "{column:?}");
        assert!(column.entries().filter(Option::is_none).count() == column.missing.len(), "{column:?}");
    }
    assert!(given.mask.len() == BYTES && given.mask.iter().zip(mask).all(|(given, own)| given <= own));
    metrics(&given.metrics);
}

/// Checks accepted pairs.
fn check_choice(given: &PairSelection) {
    assert!(given.pairs.len() <= 3);
    assert!(given.pairs.iter().all(|pair| pair.chosen < 2 && pair.rejected == 1 - pair.chosen));
    metrics(&given.metrics);
}

/// Checks accepted derivatives: of completions if there is a mask, otherwise of a pair.
fn check_gradient(given: &MicroBatchLoss, mask: Option<&[u8; BYTES]>) {
    assert!(given.loss.is_finite());
    for column in &given.derivatives {
        let count = mask.map_or(BYTES / 2, |mask| mask.len());
        assert!(column.values.len() == count && column.values.iter().all(|d| d.is_finite()), "{column:?}");
        let beside = mask.into_iter().flat_map(|mask| mask.iter().zip(&column.values)).any(|(m, d)| *m == 0 && *d != 0.0);
        assert!(!beside, "{column:?}");
    }
    metrics(&given.metrics);
}

fn words(bytes: &[u8; BYTES]) -> impl Iterator<Item = u32> {
    bytes.chunks(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// Returns three completions, the first two of one prompt. The first has all tokens.
fn batch(mask: &[u8; BYTES]) -> Batch {
    let end = BYTES as u32;
    Batch {
        step: 1,
        seed: 1,
        groups: vec![0, 2, 3],
        tokens: vec![0, end, end, end],
        prompt_tokens: Vec::new(),
        turns: Vec::new(),
        mask: mask.to_vec(),
        columns: Vec::new(),
        scale: Scale { items: 1, tokens: BYTES as u64, prompt_tokens: 0, max_completion_length: end },
    }
}

/// Checks an accepted value or the error of a refused one; returns whether it was accepted.
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

/// Fuzzes the result of a function of the contract. The first byte selects the function.
pub fn plugin_answers(input: &[u8]) {
    thread_local! {
        static LOADED: RefCell<Option<EchoPlugins>> = const { RefCell::new(None) };
    }
    let Some((function, input)) = choice(input, 9) else { return };
    let mut bytes = [0; BYTES];
    bytes.iter_mut().zip(input).for_each(|(byte, given)| *byte = *given);
    LOADED.with_borrow_mut(|loaded| {
        let echo = loaded.get_or_insert_with(EchoPlugins::load);
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
        let mut echo = EchoPlugins::load();
        for (function, seed) in [
            (0, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/score")[1..]),
            (1, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/score")[1..]),
            (2, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/estimate")[1..]),
            (3, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/choose")[1..]),
            (4, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/loss")[1..]),
            (5, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/pairs")[1..]),
            (6, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/current_estimate")[1..]),
            (7, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/current_choose")[1..]),
            (8, &include_bytes!("../../../tests/fuzz/seeds/plugin_answers/current_loss")[1..]),
        ] {
            let mut bytes = [0; BYTES];
            bytes[..seed.len()].copy_from_slice(seed);
            assert!(echo.answer(function, &bytes), "function {function}");
        }
    }
}
