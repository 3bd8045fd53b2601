//! Resolves keys that nobody has set: by the algorithm's own defaults, and by transformers'.

use crate::Result;
use crate::config::{IntervalStrategy, Period, RunConfig};
use crate::origin::StartMode;
use crate::plugin::HintedDefaults;

/// The number of completions per prompt where neither the user nor the algorithm says one: of single completions, and of those that
/// pairs are chosen from.
const GROUP: usize = 8;
const GROUP_FOR_PAIRS: usize = 2;

/// Sets an algorithm's `own` defaults for the completions that it generates. A run that resumes has them in its configuration.
pub(super) fn of_algorithm(config: &mut RunConfig, has_pairs: bool, own: &HintedDefaults) {
    let usual = if has_pairs { GROUP_FOR_PAIRS } else { GROUP };
    config.num_generations.get_or_insert(own.num_generations.unwrap_or(usual));
    if let Some(temperature) = own.temperature.filter(|_| !config.named.contains("temperature")) {
        config.temperature = temperature;
    }
    if let Some(length) = own.max_completion_length.filter(|_| !config.named.contains("max_completion_length")) {
        config.max_completion_length = length;
    }
}

/// Returns the steps between evaluations: as transformers sets them if nobody did and the strategy is its own, to those between log lines. A run that evaluated otherwise before it resumes keeps doing so.
///
/// # Errors
/// If the configuration of the run that resumes can't be read.
pub(super) fn eval_steps(config: &RunConfig, beginning: &StartMode) -> Result<Option<Period>> {
    let asked = |config: &RunConfig| config.eval_dataset.is_some() && config.eval_strategy == Some(IntervalStrategy::Steps);
    if config.eval_steps.is_some() || !asked(config) {
        return Ok(config.eval_steps);
    }
    let evaluated = beginning.origin().map(|origin| origin.written()).transpose()?.is_some_and(|written| asked(&written));
    Ok(Some(config.logging_steps).filter(|_| !evaluated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithms_defaults_give_way_to_what_is_named() {
        let own = HintedDefaults {
            num_generations: Some(2),
            temperature: Some(0.9),
            max_completion_length: Some(64),
            ..HintedDefaults::default()
        };
        let resolved = |config: &RunConfig, own: &HintedDefaults| {
            let mut config = config.clone();
            of_algorithm(&mut config, false, own);
            (config.num_generations, config.temperature, config.max_completion_length)
        };
        let plain = RunConfig::default();
        assert_eq!(resolved(&plain, &own), (Some(2), 0.9, 64));
        assert_eq!(resolved(&plain, &HintedDefaults::default()), (Some(8), 1.0, 512));
        let named = ["temperature", "max_completion_length"].map(str::to_owned).into();
        assert_eq!(resolved(&RunConfig { named, num_generations: Some(8), ..plain }, &own), (Some(8), 1.0, 512));
    }

    #[test]
    fn evaluations_follow_the_log_only_where_the_strategy_is_named() {
        let steps = |strategy, dataset: Option<&str>| {
            let config = RunConfig { eval_strategy: strategy, eval_dataset: dataset.map(str::to_owned), ..RunConfig::default() };
            eval_steps(&config, &StartMode::New).unwrap()
        };
        assert_eq!(steps(Some(IntervalStrategy::Steps), Some("e")), Some(RunConfig::default().logging_steps));
        assert_eq!((steps(Some(IntervalStrategy::Steps), None), steps(Some(IntervalStrategy::Epoch), Some("e"))), (None, None));
        assert_eq!(steps(None, Some("e")), None);
    }
}
