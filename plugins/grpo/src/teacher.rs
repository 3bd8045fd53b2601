//! Adds a teacher's evaluation of each sampled token to its advantage: the sampled tokens' estimate of the reverse divergence (Lu et al.
//! 2025, "On-policy distillation").

use crate::settings::GrpoSettings;
use rlhost_plugin_sdk::policy::{Advantages, Rollouts};
use rlhost_plugin_sdk::rows::counted;
use rlhost_plugin_sdk::{Error, Metric};

/// Adds `teacher_kl_coef (ln teacher - ln policy)` to the advantages of tokens, with the metric `teacher_kl`.
pub(crate) fn add(s: &GrpoSettings, rollouts: &Rollouts, mut estimated: Advantages) -> Result<Advantages, Error> {
    if s.teacher_kl_coef == 0.0 {
        return Ok(estimated);
    }
    let missing = || Error::Input("the settings need log-probabilities of a teacher, which the generation does not have".into());
    let teacher = rollouts.teacher_logp.as_ref().ok_or_else(missing)?;
    let mask = estimated.mask.as_ref().unwrap_or(&rollouts.mask);
    let distance = |i: usize| f64::from(rollouts.logp[i]) - f64::from(teacher[i]);
    for i in counted(mask, 0..mask.len()) {
        estimated.advantages[i] -= (s.teacher_kl_coef * distance(i)) as f32;
    }
    estimated.metrics.extend(Metric::mean_of("teacher_kl", counted(mask, 0..mask.len()).map(distance)));
    Ok(estimated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_the_teacher_finds_more_likely_gain() {
        let rollouts = Rollouts {
            mask: vec![1, 1, 0],
            logp: vec![-1.0, -2.0, -1.0],
            teacher_logp: Some(vec![-0.5, -4.0, 0.0]),
            ..Rollouts::default()
        };
        let estimated = || Advantages { advantages: vec![1.0; 3], returns: None, mask: None, metrics: Vec::new() };
        let with = |coef, rollouts: &Rollouts| {
            add(&GrpoSettings { teacher_kl_coef: coef, ..GrpoSettings::default() }, rollouts, estimated())
        };
        let got = with(2.0, &rollouts).unwrap();
        assert_eq!(got.advantages, [2.0, -3.0, 1.0]);
        assert_eq!((got.metrics[0].name.as_str(), got.metrics[0].value), ("teacher_kl", 0.75));
        assert_eq!(with(0.0, &rollouts).unwrap().advantages, [1.0; 3]);
        assert!(with(1.0, &Rollouts { teacher_logp: None, ..rollouts }).is_err());
    }
}
