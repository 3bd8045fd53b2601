//! Checks for invalid values and combinations.

use super::entries::LARGEST_WEIGHT;
use super::entries::is_name;
use super::{Error, Period, PluginEntry, PromptTemplate, ReportTarget, RunConfig, ZeroStage, did_you_mean, shortest};

/// Maximum of any count: products of a few of them still fit into an integer.
const MOST: usize = 1 << 20;

/// Maximum length of a system message and of a prompt template, in bytes.
const LONGEST_ASKING: usize = 64 << 10;

/// Maximum number of threads.
const MOST_THREADS: usize = 1024;

impl RunConfig {
    /// Checks the configuration. The error is the first invalid key and the valid values.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        self.check_counts()?;
        self.check_values()?;
        self.check_together()?;
        self.check_columns()?;
        self.check_asking()?;
        self.check_evaluation()?;
        self.check_adapter()?;
        self.check_optimizer()?;
        self.check_rule()?;
        self.check_schedule()?;
        self.check_agents()?;
        self.check_plugins()
    }

    /// Checks for counts that are zero or too large.
    fn check_counts(&self) -> Result<(), (&'static str, String)> {
        let at_least_one: [(&'static str, usize); 14] = [
            ("max_turns", self.max_turns),
            ("max_episode_tokens", self.max_episode_tokens.unwrap_or(1)),
            ("num_generations", self.num_generations.unwrap_or(2)),
            ("max_length", self.max_length.unwrap_or(1)),
            ("max_prompt_length", self.max_prompt_length.unwrap_or(1)),
            ("max_completion_length", self.max_completion_length),
            ("max_num_seqs", self.max_num_seqs),
            ("per_device_train_batch_size", self.per_device_train_batch_size),
            ("per_device_eval_batch_size", self.per_device_eval_batch_size.unwrap_or(1)),
            ("gradient_accumulation_steps", self.gradient_accumulation_steps),
            ("steps_per_generation", self.steps_per_generation.unwrap_or(1)),
            ("num_iterations", self.num_iterations),
            ("num_mini_batches", self.num_mini_batches.unwrap_or(1)),
            ("max_tokens_per_microbatch", self.max_tokens_per_microbatch.unwrap_or(1)),
        ];
        for (key, value) in at_least_one {
            if value == 0 {
                return Err((key, "must be at least 1".into()));
            }
        }
        let periods = [
            ("logging_steps", Some(self.logging_steps), "logging_strategy = no logs only the last step"),
            ("save_steps", Some(self.save_steps), "save_strategy = no saves only the last step"),
            ("eval_steps", self.eval_steps, "eval_strategy = no makes no evaluations in training"),
        ];
        for (key, period, otherwise) in periods {
            if let Some(fault) = period.and_then(Period::fault) {
                return Err((key, format!("{fault}; {otherwise}")));
            }
        }
        for (key, count) in [
            ("per_device_train_batch_size", Some(self.per_device_train_batch_size)),
            ("per_device_eval_batch_size", self.per_device_eval_batch_size),
            ("gradient_accumulation_steps", Some(self.gradient_accumulation_steps)),
            ("steps_per_generation", self.steps_per_generation),
            ("generation_batch_size", self.generation_batch_size),
            ("num_iterations", Some(self.num_iterations)),
            ("num_mini_batches", self.num_mini_batches),
            ("num_generations", self.num_generations),
            ("lora_r", self.lora_r),
        ] {
            if let Some(count) = count.filter(|count| *count > MOST) {
                return Err((key, format!("is {count}; the maximum is {MOST}")));
            }
        }
        Ok(())
    }

    /// Checks the settings that build prompts.
    fn check_asking(&self) -> Result<(), (&'static str, String)> {
        for (key, given) in [("system_prompt", &self.system_prompt), ("prompt_template", &self.prompt_template)] {
            let Some(text) = given else { continue };
            if text.trim().is_empty() {
                return Err((key, "is empty; leave it out".into()));
            }
            if text.len() > LONGEST_ASKING {
                return Err((key, format!("has {} bytes; the maximum is {LONGEST_ASKING}", text.len())));
            }
        }
        let template = self.prompt_template.as_deref().map(PromptTemplate::parse).transpose();
        template.map(drop).map_err(|detail| ("prompt_template", detail))
    }

    /// Checks for values out of range.
    fn check_values(&self) -> Result<(), (&'static str, String)> {
        if self.output_dir.as_deref() == Some("") {
            return Err(("output_dir", "is empty; name a new folder or leave it out".into()));
        }
        let named = [
            ("model", &self.model, "name a model, or leave it out for the built-in one"),
            ("dataset", &self.dataset, "name a dataset, or leave it out for the built-in one"),
            ("eval_dataset", &self.eval_dataset, "name a dataset, or leave it out for no evaluation"),
        ];
        if let Some((key, _, advice)) = named.into_iter().find(|(_, given, _)| given.as_deref() == Some("")) {
            return Err((key, format!("is empty; {advice}")));
        }
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            return Err(("temperature", format!("is {}; training needs a temperature above 0", shortest(self.temperature))));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(("top_p", format!("is {}; it must be above 0 and at most 1", shortest(self.top_p))));
        }
        if self.min_p.is_some_and(|p| !(0.0..=1.0).contains(&p)) {
            return Err(("min_p", "must be between 0 and 1".into()));
        }
        if !(0.0..=1.0).contains(&self.skip_groups) {
            return Err(("skip_groups", format!("is {}; it is a probability, from 0 to 1", shortest(self.skip_groups))));
        }
        if self.skip_groups_after == 0 {
            return Err(("skip_groups_after", "must be at least 1".into()));
        }
        if !(0.0..=1.0).contains(&self.label_smoothing_factor) {
            return Err((
                "label_smoothing_factor",
                format!("is {}; it must be between 0 and 1", shortest(self.label_smoothing_factor)),
            ));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return Err(("repetition_penalty", format!("is {}; it must be greater than 0", shortest(self.repetition_penalty))));
        }
        if self.max_steps == 0 || self.max_steps < -1 {
            return Err(("max_steps", format!("is {}; give a number of steps, or -1 for num_train_epochs", self.max_steps)));
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(("stop", "contains an empty string, which would end every completion".into()));
        }
        if self.zero_stage > ZeroStage::LAST {
            return Err(("zero_stage", format!("must be between 0 and {}", ZeroStage::LAST)));
        }
        if self.num_threads.is_some_and(|threads| threads == 0 || threads > MOST_THREADS) {
            return Err(("num_threads", format!("must be between 1 and {MOST_THREADS}")));
        }
        self.check_servers()?;
        self.check_mixture()?;
        if self.dist_timeout_s.is_nan() || self.dist_timeout_s <= 0.0 {
            return Err(("dist_timeout_s", format!("is {}; it must be greater than 0", shortest(self.dist_timeout_s))));
        }
        Ok(())
    }

    /// Checks for incompatible keys.
    fn check_together(&self) -> Result<(), (&'static str, String)> {
        if self.generation_batch_size.is_some() && self.steps_per_generation.is_some() {
            return Err(("generation_batch_size", "sets the same as steps_per_generation; use one of them".into()));
        }
        let of_evaluation = self.metric_for_best_model.as_deref().filter(|name| name.starts_with("eval_"));
        if let Some(name) = of_evaluation.filter(|_| !self.evaluates()) {
            return Err(("metric_for_best_model", format!("{name} is an evaluation metric; set eval_dataset")));
        }
        self.check_teacher()?;
        if self.ref_model.as_deref() == Some("") {
            return Err(("ref_model", "is empty; name a model, or leave it out for the one that training starts from".into()));
        }
        if !(0.0..=1.0).contains(&self.ref_model_mixup_alpha) {
            return Err((
                "ref_model_mixup_alpha",
                format!("is {}; it must be between 0 and 1", shortest(self.ref_model_mixup_alpha)),
            ));
        }
        if self.ref_model_sync_steps == 0 {
            return Err(("ref_model_sync_steps", "must be at least 1".into()));
        }
        if self.report_to.len() > 1 && self.report_to.contains(&ReportTarget::None) {
            return Err(("report_to", "combines none with others; give one or the other".into()));
        }
        let of_episodes = [
            ("max_turns", self.max_turns != Self::default().max_turns),
            ("max_episode_tokens", self.max_episode_tokens.is_some()),
        ];
        if let Some((key, _)) = of_episodes.into_iter().find(|(_, given)| *given && !self.has_episodes()) {
            return Err((key, "limits episodes; name an environment or an agent, or leave it out".into()));
        }
        if self.sync_ref_model && self.precompute_ref_log_probs {
            return Err(("precompute_ref_log_probs", "needs a fixed reference model; sync_ref_model changes it".into()));
        }
        Ok(())
    }

    /// Returns whether anything scores completions in training.
    fn has_reward(&self) -> bool {
        self.plugin.iter().any(|entry| !entry.eval_only) || self.has_episodes()
    }

    /// Refuses keys that compare scores in a run without rewards.
    fn check_unscored(&self) -> Result<(), (&'static str, String)> {
        let by_reward = [
            ("filter_groups", self.filter_groups),
            ("skip_groups", self.skip_groups > 0.0),
            ("eval_pass_threshold", self.eval_pass_threshold.is_some()),
        ];
        match by_reward.into_iter().find(|(_, given)| *given && !self.has_reward()) {
            Some((key, _)) => Err((key, "compares rewards, and this run has none; name one with --plugin".to_owned())),
            None => Ok(()),
        }
    }

    /// Checks the additional requirements of a run that generates completions, whether it makes `pairs` of them and whether it learns from
    /// their scores (`scored`).
    ///
    /// # Errors
    /// If a key is invalid; names it, and the valid values.
    pub fn check_generation(&self, pairs: bool, scored: bool, ranks: usize) -> Result<(), Error> {
        let invalid = |key: &str, detail: String| Err(Error::Invalid { place: key.to_owned(), detail });
        if pairs && self.has_episodes() {
            let detail = "this algorithm compares completions in pairs, and its loss can't mask replies; for episodes, use one \
                          that learns from single completions: grpo, rloo, ppo, reinforce_pp";
            return invalid(if self.agent.is_empty() { "environment" } else { "agent" }, detail.into());
        }
        // An algorithm may have its own defaults of them.
        self.check_teacher().or_else(|(key, detail)| invalid(key, detail))?;
        if !scored {
            self.check_unscored().or_else(|(key, detail)| invalid(key, detail))?;
        } else if !self.has_reward() {
            let detail = "is missing: name at least one reward, as in --plugin tldr_length_reward.wasm, or --reward-model. To learn \
                          from the \
                          dataset's own completions, as `rlhost sft` does, use --learn-from dataset";
            return invalid("plugin", detail.into());
        }
        let batches = self.batches(ranks);
        let size = batches.completions_per_generation();
        if let Some(size) = self.generation_batch_size.filter(|size| !size.is_multiple_of(batches.micro_batch)) {
            let detail = format!("is {size}; it must be a multiple of the {} completions of a micro-batch", batches.micro_batch);
            return invalid("generation_batch_size", detail);
        }
        if !pairs && !size.is_multiple_of(self.group_size()) {
            let ranks = if ranks > 1 { format!(" x {ranks} processes") } else { String::new() };
            let detail = format!(
                "{} must divide the number of completions in a generation, per_device_train_batch_size {}{ranks} x \
                 steps_per_generation {} = {size}",
                self.group_size(),
                self.per_device_train_batch_size,
                batches.steps_per_generation,
            );
            return invalid("num_generations", detail);
        }
        let fits = |parts: usize| size.is_multiple_of(parts) && size / parts >= self.gradient_accumulation_steps;
        if let Some(parts) = self.num_mini_batches.filter(|parts| !fits(*parts)) {
            let detail = format!(
                "{parts} must divide the {size} completions of a generation into mini-batches of at least \
                 gradient_accumulation_steps {}",
                self.gradient_accumulation_steps
            );
            return invalid("num_mini_batches", detail);
        }
        self.check_filter().or_else(|(key, detail)| invalid(key, detail))?;
        self.check_eval_generation(pairs).or_else(|(key, detail)| invalid(key, detail))
    }

    /// Checks the keys of dynamic sampling.
    fn check_filter(&self) -> Result<(), (&'static str, String)> {
        if !self.filters_prompts() {
            return match &self.filter_groups_metric {
                Some(_) => Err(("filter_groups_metric", "needs filter_groups or skip_groups".into())),
                None => Ok(()),
            };
        }
        if self.max_num_gen_batches == 0 {
            return Err(("max_num_gen_batches", "must be at least 1".into()));
        }
        if self.num_generations == Some(1) {
            let key = if self.filter_groups { "filter_groups" } else { "skip_groups" };
            return Err((key, "compares the completions of a prompt; num_generations must be at least 2".into()));
        }
        let plugins = || self.plugin.iter().filter(|entry| !entry.eval_only).chain(&self.environment).map(PluginEntry::name);
        let rewards = || plugins().chain(self.agent.iter().map(|agent| agent.name.as_str()));
        match &self.filter_groups_metric {
            Some(name) if rewards().all(|reward| reward != name) => {
                let detail = format!("no reward is named {name:?}{}", did_you_mean(name, rewards()));
                Err(("filter_groups_metric", detail))
            }
            _ => Ok(()),
        }
    }

    fn check_columns(&self) -> Result<(), (&'static str, String)> {
        let pairs = self.columns();
        for part in self.columns.iter().flat_map(|given| given.split(',')) {
            let whole = part.split_once('=').is_some_and(|(name, own)| !name.trim().is_empty() && !own.trim().is_empty());
            if !whole {
                return Err(("columns", format!("{:?}: expected NAME=COLUMN, as in prompt=question", part.trim())));
            }
        }
        for (i, (name, _)) in pairs.iter().enumerate() {
            if pairs[..i].iter().any(|(other, _)| other == name) {
                return Err(("columns", format!("maps two columns to {name:?}")));
            }
        }
        if !pairs.is_empty() && self.dataset.is_none() {
            return Err(("columns", "needs a dataset".into()));
        }
        Ok(())
    }

    fn check_optimizer(&self) -> Result<(), (&'static str, String)> {
        let not_negative = [
            ("learning_rate", self.learning_rate.unwrap_or(0.0)),
            ("critic_learning_rate", self.critic_learning_rate.unwrap_or(0.0)),
            ("weight_decay", self.weight_decay),
            ("max_grad_norm", self.max_grad_norm),
            ("neftune_noise_alpha", self.neftune_alpha()),
            ("router_aux_loss_coef", self.router_aux_loss_coef.unwrap_or(0.0)),
            ("warmup_ratio", self.warmup_ratio),
            ("warmup_steps", self.warmup_steps),
        ];
        for (key, value) in not_negative {
            if !(value >= 0.0 && value.is_finite()) {
                return Err((key, format!("is {}; it must be 0 or greater", shortest(value))));
            }
        }
        for (key, value) in [("adam_beta1", self.adam_beta1), ("adam_beta2", self.adam_beta2)] {
            if !(0.0..1.0).contains(&value) {
                return Err((key, format!("is {}; it must be at least 0 and less than 1", shortest(value))));
            }
        }
        if self.adam_epsilon.is_nan() || self.adam_epsilon <= 0.0 {
            return Err(("adam_epsilon", format!("is {}; it must be greater than 0", shortest(self.adam_epsilon))));
        }
        if self.max_steps < 0 && !(self.num_train_epochs > 0.0 && self.num_train_epochs.is_finite()) {
            return Err(("num_train_epochs", format!("is {}; it must be greater than 0", shortest(self.num_train_epochs))));
        }
        if self.warmup_ratio > 1.0 {
            return Err(("warmup_ratio", format!("is {}; it is a fraction of the run, at most 1", shortest(self.warmup_ratio))));
        }
        Ok(())
    }

    /// Checks the entries of rewards and environments. The error is the invalid key, and the valid values.
    pub fn check_plugins(&self) -> Result<(), (&'static str, String)> {
        self.loss_limits.check().map_err(|wrong| ("loss_limits", wrong.replace("limits.", "loss_limits.")))?;
        if self.loss_limits.episodes_timeout_s.is_some() {
            return Err(("loss_limits", "episodes_timeout_s is for environments; leave it out".into()));
        }
        let rewards = self.plugin.iter().map(|entry| ("plugin", entry));
        let all: Vec<_> = rewards.chain(self.environment.iter().map(|entry| ("environment", entry))).collect();
        for (i, &(key, entry)) in all.iter().enumerate() {
            if !(-LARGEST_WEIGHT..=LARGEST_WEIGHT).contains(&entry.weight) {
                let detail = format!("{}: weight must be a number of at most {LARGEST_WEIGHT:e} either way", entry.name());
                return Err((key, detail));
            }
            entry.limits.check().map_err(|wrong| (key, format!("{}: {wrong}", entry.name())))?;
            if key == "plugin" && entry.limits.episodes_timeout_s.is_some() {
                return Err((key, format!("{}: limits.episodes_timeout_s is for environments; leave it out", entry.name())));
            }
            entry.grants().check().map_err(|wrong| (key, format!("{}: {wrong}", entry.name())))?;
            if let Some(name) = entry.name.as_deref().filter(|name| !is_name(name)) {
                let detail = "it may contain letters, digits, _, - and .";
                return Err((key, format!("{}: name is {name:?}; {detail}", entry.path)));
            }
            // Checkpoints store plugins under their names, and some file systems ignore case.
            let is_same = |other: &str| other.eq_ignore_ascii_case(entry.name());
            if all[..i].iter().any(|(_, other)| is_same(other.name())) {
                let detail = match entry.model {
                    true => "give one another name, as in --reward-model NAME=FOLDER",
                    false => "give one another name, as in --plugin another=FILE, or name = \"another\" in its table",
                };
                return Err((key, format!("{} is listed twice; {detail}", entry.name())));
            }
            if key == "environment" && (entry.eval_only || entry.model) {
                return Err((key, format!("{}: eval_only and model are for rewards; leave them out", entry.name())));
            }
            if let Some(text) = entry.step_separator.as_deref().filter(|text| !entry.model || text.is_empty()) {
                let detail = "step_separator is for process reward models and must not be empty";
                return Err((key, format!("{}: {detail}; it is {text:?}", entry.name())));
            }
            if !entry.model && (entry.load_in_8bit || entry.load_in_4bit) {
                let detail = "load_in_8bit and load_in_4bit are for reward models; a plugin has no weights";
                return Err((key, format!("{}: {detail}", entry.name())));
            }
            if entry.load_in_8bit && entry.load_in_4bit {
                return Err((key, format!("{}: load_in_8bit and load_in_4bit are both set; choose one", entry.name())));
            }
            if entry.model && !(entry.config.is_empty() && entry.grants().is_empty() && entry.secrets.is_empty()) {
                let name = entry.name();
                return Err((
                    "plugin",
                    format!("{name} is a reward model, which has no settings, sends no requests and reads no folders"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_one_with_which_scores_add_up() {
        let weighted = |weight| {
            let entry = PluginEntry { weight, ..PluginEntry::new("a.wasm".into()) };
            RunConfig { plugin: vec![entry], ..RunConfig::default() }.check()
        };
        assert_eq!(weighted(-1e6), Ok(()));
        for weight in [1e7, -1e300, f64::INFINITY, f64::NAN] {
            let (key, said) = weighted(weight).unwrap_err();
            assert!(key == "plugin" && said.contains("a: weight must be a number of at most 1e6"), "{said}");
        }
    }

    #[test]
    fn plugins_have_names_of_their_own_whatever_their_case() {
        let with = |entries: &[&str]| {
            let plugin = entries.iter().map(|path| PluginEntry::new((*path).to_owned())).collect();
            RunConfig { plugin, ..RunConfig::default() }.check()
        };
        assert_eq!(with(&["a.wasm", "b/rloo.wasm"]), Ok(()));
        for entries in [["a.wasm", "b/a.wasm"], ["a.wasm", "b/A.wasm"]] {
            let (key, detail) = with(&entries).unwrap_err();
            assert!(key == "plugin" && detail.contains(" is listed twice"), "{detail}");
        }
    }

    #[test]
    fn columns_are_pairs_of_names() {
        let said = |columns: &[&str]| {
            let columns = columns.iter().map(|c| (*c).to_owned()).collect();
            RunConfig { columns, dataset: Some("d".into()), ..RunConfig::default() }
        };
        let good = said(&["prompt=question, completion=answer", "id=a=b"]);
        assert!(good.check().is_ok());
        let pairs = [("prompt", "question"), ("completion", "answer"), ("id", "a=b")];
        assert_eq!(good.columns(), pairs.map(|(name, own)| (name.to_owned(), own.to_owned())));
        for (bad, expected) in [("prompt", "NAME=COLUMN"), ("prompt=", "NAME=COLUMN"), ("a=b,a=c", "two columns")] {
            let (key, detail) = said(&[bad]).check().unwrap_err();
            assert!(key == "columns" && detail.contains(expected), "{detail}");
        }
        assert!(RunConfig { dataset: None, ..good }.check().unwrap_err().1.contains("needs a dataset"));
    }
}
