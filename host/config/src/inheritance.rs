//! Inheritance of configuration by a run that starts from another run's checkpoint.

use super::keys::{ConfigKey, InheritanceRule};
use super::{ConfigFile, Error, Overrides, PluginEntry, Result, RunConfig, keys};
use toml::{Table, Value};

impl ConfigFile {
    /// Returns whether the command line or the `given` file names another algorithm.
    ///
    /// # Errors
    /// If one of the files can't be read.
    pub fn changes_algorithm(&self, overrides: &Overrides, given: Option<&Self>) -> Result<bool> {
        Ok(self.changed("algorithm", overrides, given)?.is_some())
    }

    /// Refuses a file that names another algorithm, because its settings are for that algorithm.
    ///
    /// # Errors
    /// If it does; names the line.
    pub fn check_is_for(&self, algorithm: &str) -> Result<()> {
        let name = |text: &str| PluginEntry::new(text.to_owned()).name().to_owned();
        let (wanted, Some(own)) = (name(algorithm), self.text_of("algorithm")?.map(|own| name(&own))) else { return Ok(()) };
        if own == wanted {
            return Ok(());
        }
        let detail = format!(
            "algorithm: the file is for {own}, not for {wanted}; use `rlhost train --config` with it, or remove the key and the \
             settings of {own}"
        );
        Err(Error::Invalid { place: self.place_of("algorithm"), detail })
    }

    /// Returns the configuration without settings that depend on others that the command line or the `given` file changes: if another
    /// algorithm is named, the former algorithm's settings and values equal to its `own` defaults; and keys that follow a changed key.
    ///
    /// # Errors
    /// If one of the files can't be read.
    pub fn inherited(self, overrides: &Overrides, given: Option<&Self>, own: &[(&str, Value)]) -> Result<Self> {
        let invalid = |detail: String| Error::Invalid { place: self.path.display().to_string(), detail };
        let defaults = Table::try_from(RunConfig::default()).map_err(|e| invalid(e.to_string()))?;
        let mut table = self.table()?;
        let written = table.clone();
        let mut leave = |key: &str| table.remove(key).is_some_and(|value| defaults.get(key) != Some(&value));
        let mut dropped = 0;
        if let Some((was, now)) = self.changed("algorithm", overrides, given)? {
            for (key, _) in own.iter().filter(|(key, value)| written.get(*key) == Some(value)) {
                dropped += usize::from(leave(key));
            }
            let of_algorithm =
                keys().iter().filter(|key| key.inherited == InheritanceRule::WithAlgorithm).map(|key| key.name.as_str());
            let left: Vec<&str> = of_algorithm.filter(|key| leave(key)).collect();
            dropped += left.len();
            if !left.is_empty() {
                let keys = left.join(", ");
                tracing::info!("dropped the settings of {was}: {keys}; {now} uses its own defaults for keys that are not set");
            }
        }
        for ConfigKey { name: following, inherited, .. } in keys() {
            let InheritanceRule::With(key) = inherited else { continue };
            if let Some((was, now)) = self.changed(key, overrides, given)?.filter(|_| leave(following)) {
                tracing::info!("dropped {following}, which followed {key} {was}; {key} is now {now}");
                dropped += 1;
            }
        }
        if dropped == 0 {
            return Ok(self);
        }
        let text = toml::to_string(&table).map_err(|e| invalid(e.to_string()))?;
        Ok(Self { text, ..self })
    }

    /// Returns the old and the new value of a key that the command line or the `given` file changes.
    fn changed(&self, key: &str, overrides: &Overrides, given: Option<&Self>) -> Result<Option<(String, String)>> {
        let wanted = match overrides.value_of(key) {
            Some(wanted) => Some(wanted),
            None => given.map(|file| file.text_of(key)).transpose()?.flatten(),
        };
        // An algorithm is identified by its name, wherever its file is.
        let value = |text: String| if key == "algorithm" { PluginEntry::new(text).name().to_owned() } else { text };
        Ok(self.text_of(key)?.zip(wanted).map(|(was, now)| (value(was), value(now))).filter(|(was, now)| was != now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompletionSource, KeyAssignment, OldLogpSource, RunConfig, read_files};

    const BASE: &str =
        "model = 'm'\nalgorithm = 'sft'\nlearn_from = 'dataset'\nlearning_rate = 2e-5\nseed = 7\n[loss]\nloss_type = 'nll'\n";

    fn forked(given: Option<&str>, flags: &[(&str, &str)], sets: &[&str]) -> RunConfig {
        let file = |text: &str| ConfigFile { path: "run.toml".into(), text: text.to_owned() };
        let overrides = Overrides {
            flags: flags.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect(),
            sets: sets.iter().map(|set| KeyAssignment::parse(set).unwrap()).collect(),
            ..Overrides::default()
        };
        let given = given.map(file);
        let base = file(BASE).inherited(&overrides, given.as_ref(), &[]).unwrap();
        read_files([base].iter().chain(&given), &overrides, &[]).unwrap()
    }

    #[test]
    fn what_follows_from_a_changed_key_is_left_to_follow_the_new_value() {
        let base = |text: &str| ConfigFile { path: "run.toml".into(), text: format!("model = 'm'\nalgorithm = 'grpo'\n{text}") };
        let config = |text: &str, flags: &[(&str, &str)]| {
            let flags = flags.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
            let overrides = Overrides { flags, ..Overrides::default() };
            read_files([base(text).inherited(&overrides, None, &[]).unwrap()].iter(), &overrides, &[]).unwrap()
        };
        let sampled = "rollout_dtype = 'auto'\nold_logp = 'sampling'\n";
        assert_eq!(config(sampled, &[("rollout_dtype", "int8")]).old_logp, None);
        assert_eq!(config(sampled, &[("rollout_dtype", "auto")]).old_logp, Some(OldLogpSource::Sampling));
        assert_eq!(
            config(sampled, &[("rollout_dtype", "int8"), ("old_logp", "sampling")]).old_logp,
            Some(OldLogpSource::Sampling)
        );
        let rounded = "rollout_dtype = 'int8'\nold_logp = 'recompute'\n";
        assert_eq!(config(rounded, &[("rollout_dtype", "auto")]).old_logp, None);
        let sgd = "optim = 'sgd'\n[optim_args]\nmomentum = 0.9\n";
        assert_eq!(config(sgd, &[("optim", "adamw_torch")]).optim_args.len(), 0);
        assert_eq!(config(sgd, &[]).optim_args.len(), 1);
    }

    #[test]
    fn a_fork_with_another_algorithm_takes_over_no_metric_that_is_not_its_own() {
        let best = "model = 'm'\nalgorithm = 'grpo'\nload_best_model_at_end = true\nmetric_for_best_model = 'eval_reward'\n\
                    eval_dataset = 'e.jsonl'\neval_steps = 5\neval_top_p = 0.5\nearly_stopping_patience = 2\n";
        let overrides = Overrides { flags: vec![("algorithm".to_owned(), "dpo".to_owned())], ..Overrides::default() };
        let base = ConfigFile { path: "run.toml".into(), text: best.to_owned() }.inherited(&overrides, None, &[]).unwrap();
        let config = read_files([base].iter(), &overrides, &[]).unwrap();
        assert_eq!((config.metric_for_best_model, config.early_stopping_patience, config.eval_top_p), (None, None, None));
        assert_eq!((config.load_best_model_at_end, config.eval_steps.is_some()), (true, true));
    }

    #[test]
    fn the_former_algorithms_own_defaults_stay_behind_and_other_values_are_taken_over() {
        let own = [("temperature", Value::Float(0.9)), ("max_completion_length", Value::Integer(64))];
        let fork = |now: &str| {
            let text = "model = 'm'\nalgorithm = 'online_dpo'\ntemperature = 0.9\nmax_completion_length = 32\n";
            let overrides = Overrides { flags: vec![("algorithm".to_owned(), now.to_owned())], ..Overrides::default() };
            let base = ConfigFile { path: "run.toml".into(), text: text.to_owned() }.inherited(&overrides, None, &own).unwrap();
            let config = read_files([base].iter(), &overrides, &[]).unwrap();
            (config.temperature, config.named.contains("temperature"), config.max_completion_length)
        };
        assert_eq!(fork("grpo"), (1.0, false, 32));
        assert_eq!(fork("online_dpo"), (0.9, true, 32));
    }

    #[test]
    fn settings_of_another_algorithm_stay_behind_and_all_others_are_taken_over() {
        let configs = [
            forked(None, &[("algorithm", "grpo")], &[]),
            forked(None, &[("algorithm", "sft"), ("algorithm", "dir/grpo.wasm")], &[]),
            forked(None, &[], &["algorithm=grpo"]),
            forked(Some("algorithm = 'grpo'"), &[], &[]),
        ];
        for config in configs {
            assert_eq!((config.loss.len(), config.learn_from, config.learning_rate), (0, CompletionSource::Generation, None));
            assert_eq!(config.seed, 7);
        }
        let anew = forked(None, &[("algorithm", "grpo"), ("learning_rate", "1e-3")], &["loss.beta=0.1"]);
        assert_eq!((anew.learning_rate, &anew.loss["beta"], anew.loss.len()), (Some(1e-3), &0.1.into(), 1));
        for same in [forked(None, &[], &[]), forked(None, &[("algorithm", "my/sft.wasm")], &[])] {
            assert_eq!((&same.loss["loss_type"], same.learning_rate), (&"nll".into(), Some(2e-5)));
        }
    }
}
