//! Evaluation settings of a run: its own sampling, and the criterion by which completions solve their prompt.

use super::{Error, IntervalStrategy, Overrides, PluginEntry, RunConfig, did_you_mean, shortest};

/// Maximum number of completions per prompt in an evaluation.
const MOST: usize = 1 << 16;

impl RunConfig {
    /// Returns whether the run evaluates.
    pub fn evaluates(&self) -> bool {
        self.eval_dataset.is_some() && self.eval_strategy != Some(IntervalStrategy::No)
    }

    /// Returns when a run with an evaluation dataset evaluates.
    pub fn evaluation_strategy(&self) -> IntervalStrategy {
        self.eval_strategy.unwrap_or(IntervalStrategy::Steps)
    }

    /// Sets the evaluation dataset of a new run that has an evaluation strategy but no evaluation dataset. As in TRL, it is the training
    /// dataset, if that has a test split.
    pub(super) fn find_test_split(&mut self, overrides: &Overrides) {
        let Some(has_split) = overrides.has_split else { return };
        if self.eval_dataset.is_some() || self.eval_strategy.is_none_or(|strategy| strategy == IntervalStrategy::No) {
            return;
        }
        self.eval_dataset = self.dataset.clone().filter(|dataset| has_split(dataset, &self.dataset_test_split));
        if self.eval_dataset.is_none() {
            tracing::warn!(
                "eval_strategy: there is no --eval-dataset, so training is not interrupted by evaluations; it may be the training dataset"
            );
        }
    }

    /// Returns the number of completions per prompt in an evaluation.
    pub fn eval_group_size(&self) -> usize {
        self.num_generations_eval.unwrap_or_else(|| self.group_size())
    }

    /// Returns the numbers of completions for which pass@k is computed.
    pub fn pass_k(&self) -> Vec<usize> {
        let group = self.eval_group_size();
        let mut all = self.eval_pass_k.clone();
        if all.is_empty() {
            all = std::iter::successors(Some(1), |k| Some(2 * k)).take_while(|k| *k < group).chain([group]).collect();
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the keys of evaluations in order of declaration, each with whether it is set.
    pub(super) fn protocol(&self) -> [(&'static str, bool); 9] {
        [
            ("num_generations_eval", self.num_generations_eval.is_some()),
            ("eval_temperature", self.eval_temperature.is_some()),
            ("eval_top_p", self.eval_top_p.is_some()),
            ("eval_top_k", self.eval_top_k.is_some()),
            ("eval_min_p", self.eval_min_p.is_some()),
            ("eval_pass_threshold", self.eval_pass_threshold.is_some()),
            ("eval_pass_reward", self.eval_pass_reward.is_some()),
            ("eval_pass_k", !self.eval_pass_k.is_empty()),
            ("eval_answer_after", self.eval_answer_after.is_some()),
        ]
    }

    /// Returns the first invalid value.
    pub(super) fn check_evaluation(&self) -> Result<(), (&'static str, String)> {
        self.check_early_stopping()?;
        if !(self.eval_delay >= 0.0 && self.eval_delay.is_finite()) {
            return Err(("eval_delay", format!("is {}; it must be 0 or greater", shortest(self.eval_delay))));
        }
        if self.num_generations_eval.is_some_and(|n| n == 0 || n > MOST) {
            return Err(("num_generations_eval", format!("must be between 1 and {MOST}")));
        }
        if let Some(t) = self.eval_temperature.filter(|t| !(*t >= 0.0 && t.is_finite())) {
            return Err(("eval_temperature", format!("is {}; it must be 0 or greater", shortest(t))));
        }
        if let Some(p) = self.eval_top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            return Err(("eval_top_p", format!("is {}; it must be above 0 and at most 1", shortest(p))));
        }
        if let Some(p) = self.eval_min_p.filter(|p| !(0.0..=1.0).contains(p)) {
            return Err(("eval_min_p", format!("is {}; it must be between 0 and 1", shortest(p))));
        }
        if self.eval_pass_threshold.is_some_and(|v| !v.is_finite()) {
            return Err(("eval_pass_threshold", "must be a finite number".into()));
        }
        if self.eval_answer_after.as_deref() == Some("") {
            return Err(("eval_answer_after", "is empty; leave it out to take the whole completion as the answer".into()));
        }
        if let Some(k) = self.eval_pass_k.iter().find(|k| **k == 0 || **k > MOST) {
            return Err(("eval_pass_k", format!("has {k}; each must be between 1 and {MOST}")));
        }
        let needy = self.protocol().into_iter().skip_while(|(key, _)| *key != "eval_pass_reward");
        if let Some((key, _)) = needy.into_iter().find(|(_, given)| *given && self.eval_pass_threshold.is_none()) {
            return Err((key, "needs eval_pass_threshold, the reward from which a completion counts as solved".into()));
        }
        let Some(name) = &self.eval_pass_reward else { return Ok(()) };
        if self.plugin.iter().all(|entry| entry.name() != name) {
            let meant = did_you_mean(name, self.plugin.iter().map(PluginEntry::name));
            return Err(("eval_pass_reward", format!("no reward is named {name:?}{meant}")));
        }
        Ok(())
    }

    fn check_early_stopping(&self) -> Result<(), (&'static str, String)> {
        let threshold = self.early_stopping_threshold;
        if !(threshold >= 0.0 && threshold.is_finite()) {
            return Err(("early_stopping_threshold", format!("is {}; it must be 0 or greater", shortest(threshold))));
        }
        let Some(patience) = self.early_stopping_patience else {
            let alone = threshold > 0.0;
            return if alone { Err(("early_stopping_threshold", "needs early_stopping_patience".into())) } else { Ok(()) };
        };
        let fault = if patience == 0 {
            "must be at least 1"
        } else if !self.evaluates() {
            "needs evaluations; set eval_dataset"
        } else if self.metric_for_best_model.is_none() && !self.load_best_model_at_end {
            "needs metric_for_best_model, such as eval_reward or eval_loss"
        } else {
            return Ok(());
        };
        Err(("early_stopping_patience", fault.into()))
    }

    /// Returns whether an evaluation may have a metric with this name (without `eval_`) that no training step has.
    pub fn is_evaluation_metric(&self, name: &str) -> bool {
        let of_k = |prefix: &str| {
            let k = name.strip_suffix("/stderr").unwrap_or(name).strip_prefix(prefix).and_then(|k| k.parse().ok());
            k.is_some_and(|k| self.eval_pass_threshold.is_some() && self.pass_k().contains(&k))
        };
        let reward = |entry: &PluginEntry| {
            let rest = name.strip_prefix("rewards/").and_then(|rest| rest.strip_prefix(entry.name()));
            rest.is_some_and(|rest| rest == "/stderr" || entry.eval_only && rest.starts_with('/'))
                || entry.eval_only && name.starts_with(&format!("plugins/{}/", entry.name()))
        };
        ["runtime", "samples_per_second"].contains(&name)
            || name.starts_with("completions/")
            || of_k("pass@")
            || of_k("maj@")
            || self.plugin.iter().any(reward)
    }

    /// Checks the evaluation keys of a run that generates, either `pairs` or single completions.
    pub(super) fn check_eval_generation(&self, pairs: bool) -> Result<(), (&'static str, String)> {
        if pairs && self.eval_group_size() != self.group_size() {
            let detail =
                format!("is {}; this algorithm makes pairs of {} completions", self.eval_group_size(), self.group_size());
            return Err(("num_generations_eval", detail));
        }
        let group = self.eval_group_size();
        match self.eval_pass_k.iter().find(|k| **k > group) {
            Some(k) => {
                Err(("eval_pass_k", format!("has {k}, more than the {group} completions per prompt (num_generations_eval)")))
            }
            None => Ok(()),
        }
    }

    /// Checks that the evaluation keys for completions are unset in a run that generates none.
    ///
    /// # Errors
    /// If such a key is set; names it.
    pub fn check_no_generation(&self) -> Result<(), Error> {
        let Some((key, _)) = self.protocol().into_iter().find(|(_, given)| *given) else { return Ok(()) };
        let detail = "is for algorithms that generate completions; this one evaluates the dataset's".to_owned();
        Err(Error::Invalid { place: key.to_owned(), detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_completions_are_powers_of_two_and_all() {
        let of = |group, given: &[usize]| {
            RunConfig { num_generations_eval: Some(group), eval_pass_k: given.to_vec(), ..RunConfig::default() }.pass_k()
        };
        assert_eq!(
            [of(1, &[]), of(8, &[]), of(10, &[]), of(10, &[5, 1, 5])],
            [vec![1], vec![1, 2, 4, 8], vec![1, 2, 4, 8, 10], vec![1, 5]]
        );
        assert_eq!(RunConfig { num_generations: Some(4), ..RunConfig::default() }.pass_k(), [1, 2, 4]);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let named = PluginEntry::new("right.wasm".into());
        let base = RunConfig { plugin: vec![named], eval_pass_threshold: Some(1.0), ..RunConfig::default() };
        let fault =
            |config: &RunConfig| config.check_evaluation().and_then(|()| config.check_eval_generation(false)).unwrap_err().0;
        assert!(base.check_evaluation().is_ok());
        assert_eq!(fault(&RunConfig { num_generations_eval: Some(0), ..base.clone() }), "num_generations_eval");
        assert_eq!(fault(&RunConfig { eval_temperature: Some(-1.0), ..base.clone() }), "eval_temperature");
        assert_eq!(fault(&RunConfig { eval_top_p: Some(0.0), ..base.clone() }), "eval_top_p");
        assert_eq!(fault(&RunConfig { eval_min_p: Some(1.5), ..base.clone() }), "eval_min_p");
        assert_eq!(fault(&RunConfig { eval_pass_threshold: Some(f64::NAN), ..base.clone() }), "eval_pass_threshold");
        assert_eq!(fault(&RunConfig { eval_pass_reward: Some("rigth".into()), ..base.clone() }), "eval_pass_reward");
        assert_eq!(fault(&RunConfig { eval_pass_k: vec![9], ..base.clone() }), "eval_pass_k");
        assert_eq!(fault(&RunConfig { eval_pass_k: vec![0], ..base.clone() }), "eval_pass_k");
        assert_eq!(fault(&RunConfig { eval_answer_after: Some(String::new()), ..base.clone() }), "eval_answer_after");
        let without = RunConfig { eval_pass_threshold: None, eval_answer_after: Some("####".into()), ..base.clone() };
        assert_eq!(fault(&without), "eval_answer_after");
        let pairs = RunConfig { num_generations: Some(2), num_generations_eval: Some(4), ..base.clone() };
        assert_eq!(pairs.check_eval_generation(true).unwrap_err().0, "num_generations_eval");
        assert!(base.check_no_generation().unwrap_err().to_string().contains("eval_pass_threshold"));
        assert!(RunConfig::default().check_no_generation().is_ok());
    }
}
