//! Resolves unset keys, with the algorithm's own defaults or those of transformers.

use crate::Result;
use crate::config::{IntervalStrategy, Period, RunConfig};
use crate::origin::StartMode;
use crate::plugin::HintedDefaults;

/// Default number of completions per prompt if the algorithm has none: for individual completions, and for those that pairs are chosen
/// from.
const GROUP: usize = 8;
const GROUP_FOR_PAIRS: usize = 2;

/// Sets an algorithm's `own` defaults for generation. A resumed run already has them in its configuration.
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

/// Sets the defaults of an algorithm that learns from a teacher.
pub(super) fn of_teacher(config: &mut RunConfig, own: &HintedDefaults) {
    let is_named = config.teacher_model.is_some() || !config.teacher_server.is_empty();
    if let Some(kind) = own.teacher_model_kind.filter(|_| !is_named && !config.named.contains("teacher_model_kind")) {
        config.teacher_model_kind = kind;
    }
    if !config.named.contains("teacher_prompt_template") {
        config.teacher_prompt_template = config.teacher_prompt_template.take().or_else(|| own.teacher_prompt_template.clone());
    }
}

/// Returns the number of steps between evaluations. If it is not set and `eval_strategy` is `steps`, it is that between log rows, as in
/// transformers. A resumed run that evaluated otherwise keeps doing so.
///
/// # Errors
/// If the configuration of the resumed run can't be read.
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
    use crate::config::TeacherModelKind;

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
        let own = HintedDefaults {
            teacher_model_kind: Some(TeacherModelKind::Ema),
            teacher_prompt_template: Some("{prompt} {hint}".into()),
            ..own
        };
        let taught = |mut config: RunConfig| {
            of_teacher(&mut config, &own);
            (config.teacher_model_kind, config.teacher_prompt_template)
        };
        let template = Some("{prompt} {hint}".to_owned());
        assert_eq!(taught(RunConfig::default()), (TeacherModelKind::Ema, template.clone()));
        let named = ["teacher_model_kind", "teacher_prompt_template"].map(str::to_owned).into();
        assert_eq!(taught(RunConfig { named, ..RunConfig::default() }), (TeacherModelKind::Named, None));
        let other = RunConfig { teacher_model: Some("other".into()), ..RunConfig::default() };
        assert_eq!(taught(other), (TeacherModelKind::Named, template));
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
