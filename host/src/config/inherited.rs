//! What a fork with another algorithm inherits from its parent's configuration.

use super::{Config, ConfigFile, Error, Overrides, PluginEntry, Result, scalar};
use toml::{Table, Value};

/// Keys that belong to an algorithm: it defines them, sets their defaults, or is the only one to take them.
const OF_ALGORITHM: [&str; 26] = [
    "loss",
    "learn_from",
    "learning_rate",
    "value_model",
    "ref_model",
    "critic_learning_rate",
    "num_generations",
    "packing",
    "precompute_ref_log_probs",
    "label_smoothing_factor",
    "neftune_noise_alpha",
    "max_prompt_length",
    "rollout_dtype",
    "filter_groups",
    "filter_groups_metric",
    "max_num_gen_batches",
    "metric_for_best_model",
    "greater_is_better",
    "num_generations_eval",
    "eval_temperature",
    "eval_top_p",
    "eval_top_k",
    "eval_pass_threshold",
    "eval_pass_reward",
    "eval_pass_k",
    "eval_answer_after",
];

impl ConfigFile {
    /// Returns the configuration without the settings of its algorithm, if the command line or the `given` file names another
    /// one.
    ///
    /// # Errors
    /// If one of them can't be read.
    pub fn without_other_algorithm(self, overrides: &Overrides, given: Option<&Self>) -> Result<Self> {
        let mut table = self.table()?;
        let name = |algorithm: String| PluginEntry::new(algorithm).name().to_owned();
        let wanted = match overrides.last("algorithm") {
            Some(wanted) => Some(wanted),
            None => given.map(|file| file.text_of("algorithm")).transpose()?.flatten(),
        };
        let (Some(was), Some(now)) = (self.text_of("algorithm")?.map(name), wanted.map(name)) else { return Ok(self) };
        if was == now {
            return Ok(self);
        }
        let invalid = |detail: String| Error::Invalid { place: self.path.display().to_string(), detail };
        let defaults = Table::try_from(Config::default()).map_err(|e| invalid(e.to_string()))?;
        let mut leave = |key: &str| table.remove(key).is_some_and(|value| defaults.get(key) != Some(&value));
        let left: Vec<&str> = OF_ALGORITHM.into_iter().filter(|key| leave(key)).collect();
        if left.is_empty() {
            return Ok(self);
        }
        tracing::info!(
            "dropped the settings of {was}: {}; {now} uses its own defaults for keys that are not set",
            left.join(", ")
        );
        let text = toml::to_string(&table).map_err(|e| invalid(e.to_string()))?;
        Ok(Self { text, ..self })
    }
}

impl Overrides {
    /// Returns the last value that the command line gives for a key, by `--set` or by its flag.
    fn last(&self, key: &str) -> Option<String> {
        let set = self.sets.iter().rev().find_map(|set| set.split_once('=').filter(|(name, _)| name.trim() == key));
        let set = set.map(|(_, text)| match scalar(text) {
            Value::String(text) => text,
            other => other.to_string(),
        });
        set.or_else(|| self.flags.iter().rev().find(|(name, _)| name == key).map(|(_, text)| text.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, LearnFrom, read_files};

    const BASE: &str =
        "model = 'm'\nalgorithm = 'sft'\nlearn_from = 'dataset'\nlearning_rate = 2e-5\nseed = 7\n[loss]\nloss_type = 'nll'\n";

    fn forked(given: Option<&str>, flags: &[(&str, &str)], sets: &[&str]) -> Config {
        let file = |text: &str| ConfigFile { path: "run.toml".into(), text: text.to_owned() };
        let overrides = Overrides {
            flags: flags.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect(),
            sets: sets.iter().map(|set| (*set).to_owned()).collect(),
            ..Overrides::default()
        };
        let given = given.map(file);
        let base = file(BASE).without_other_algorithm(&overrides, given.as_ref()).unwrap();
        read_files([base].iter().chain(&given), &overrides, &[]).unwrap()
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
            assert_eq!((config.loss.len(), config.learn_from, config.learning_rate), (0, LearnFrom::Generation, None));
            assert_eq!(config.seed, 7);
        }
        let anew = forked(None, &[("algorithm", "grpo"), ("learning_rate", "1e-3")], &["loss.beta=0.1"]);
        assert_eq!((anew.learning_rate, &anew.loss["beta"], anew.loss.len()), (Some(1e-3), &0.1.into(), 1));
        for same in [forked(None, &[], &[]), forked(None, &[("algorithm", "my/sft.wasm")], &[])] {
            assert_eq!((&same.loss["loss_type"], same.learning_rate), (&"nll".into(), Some(2e-5)));
        }
    }
}
