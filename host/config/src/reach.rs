//! The grants that a configuration needs: servers, secrets, folders, ports, and more of the machine's resources than the default limits
//! allow. A run's folder can't give grants by itself.

use super::agents::agent_entries;
use super::{AgentEntry, HttpLimits, PluginEntry, PluginLimits, RunConfig, shell_word};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::path::Path;

/// What a grant allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum GrantKind {
    /// Requests of a plugin to servers, with secrets.
    Requests,
    /// Folders that a plugin reads.
    Folders,
    /// A limit above its default.
    Limit,
    /// A port to listen on.
    Port,
    /// Inference servers that generate completions, and the folder through which they get weights.
    Servers,
    /// A program to start, and the variables that it gets.
    Program,
}

/// A permission that the person who starts a run has to give.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Grant {
    kind: GrantKind,
    /// The keys that need the grant, in the form of `--set`, with their values. They are allowed together or not at all.
    parts: Vec<(String, Value)>,
}

impl Grant {
    /// Returns the limits in a table that are above their defaults.
    pub fn from_limits(table: &str, limits: &PluginLimits) -> Vec<Self> {
        let usual = PluginLimits::default();
        let usual = PluginLimits { episodes_timeout_s: Some(usual.episodes_seconds()), ..usual };
        Self::from_excess(table, limits, &usual)
    }

    /// Returns the grants of an entry; `asks` says whether it may send its requests.
    pub fn from_entry(table: &str, entry: &PluginEntry, asks: bool) -> Vec<Self> {
        let place = |key: &str| format!("{table}.{}.{key}", entry.name());
        let mut all = Self::from_limits(&place("limits"), &entry.limits);
        if !entry.folders.is_empty() {
            all.push(Self { kind: GrantKind::Folders, parts: vec![(place("folders"), json(&entry.folders))] });
        }
        if !entry.hosts.is_empty() && !asks {
            // The recorded answers are read even if no requests are sent.
            let HttpLimits { max_record_mb, .. } = entry.http;
            let record = HttpLimits { max_record_mb, ..HttpLimits::default() };
            all.extend(Self::from_excess(&place("http"), &record, &HttpLimits::default()));
        } else if !entry.hosts.is_empty() {
            let mut parts = vec![(place("hosts"), json(&entry.hosts))];
            if !entry.secrets.is_empty() {
                parts.push((place("secrets"), json(&entry.secrets)));
            }
            parts.extend(entry.http.ca_file.iter().map(|file| (place("http.ca_file"), json(file))));
            all.push(Self { kind: GrantKind::Requests, parts });
            all.extend(Self::from_excess(&place("http"), &entry.http, &HttpLimits::default()));
        }
        all
    }

    /// Returns the numbers in a table that are above the `usual` ones.
    fn from_excess<T: Serialize>(table: &str, limits: &T, usual: &T) -> Vec<Self> {
        let (Value::Object(limits), usual) = (json(limits), json(usual)) else { return Vec::new() };
        let is_above = |(key, value): &(String, Value)| value.as_f64() > usual[key].as_f64();
        let limit = |(key, value)| Self { kind: GrantKind::Limit, parts: vec![(format!("{table}.{key}"), value)] };
        limits.into_iter().filter(is_above).map(limit).collect()
    }

    /// Returns whether this grant includes `other`: an equal one, or a lower limit.
    pub fn covers(&self, other: &Self) -> bool {
        let lower = |own: &Value, other: &Value| other.as_f64().is_some_and(|other| own.as_f64() >= Some(other));
        let fits = |((key, own), (other_key, other)): (&(String, Value), &(String, Value))| {
            key == other_key && (own == other || (self.kind == GrantKind::Limit && lower(own, other)))
        };
        self.kind == other.kind && self.parts.len() == other.parts.len() && self.parts.iter().zip(&other.parts).all(fits)
    }

    /// Returns whether all keys of the grant are given again. `is_given` decides that for a key; it receives a function that compares a
    /// given value with the key's.
    pub fn is_given(&self, is_given: impl Fn(&str, &dyn Fn(&toml::Value) -> bool) -> bool) -> bool {
        let same = |value: &Value, given: &Value| match (value, given) {
            // A single host may be written without brackets.
            (Value::Array(all), Value::String(_)) => all.len() == 1 && all[0] == *given,
            (Value::Array(granted), Value::Array(agents)) if self.is_of_agents() => {
                let none = Value::Array(Vec::new());
                let has = |agent: &Value, (key, value): (&String, &Value)| agent.get(key).unwrap_or(&none) == value;
                let is = |(granted, agent): (&Value, &Value)| {
                    granted.as_object().is_some_and(|granted| granted.iter().all(|part| has(agent, part)))
                };
                granted.len() == agents.len() && granted.iter().zip(agents).all(is)
            }
            _ => value == given || value.as_f64().is_some_and(|value| given.as_f64() == Some(value)),
        };
        let read = |given: &toml::Value| match self.is_of_agents() {
            // A program may be given as a command line.
            true => agent_entries("agent", given.clone()).map_or_else(|_| json(given), |entries| json(&entries)),
            false => json(given),
        };
        self.parts.iter().all(|(key, value)| is_given(key, &|given| same(value, &read(given))))
    }

    fn is_of_agents(&self) -> bool {
        self.keys().eq(["agent"])
    }

    /// Returns the keys of the grant.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(key, _)| key.as_str())
    }

    /// Returns whether the grant is about servers or folders, which are logged when the plugin is loaded.
    pub fn is_of_a_plugin(&self) -> bool {
        matches!(self.kind, GrantKind::Requests | GrantKind::Folders)
    }

    /// Returns the parts as `KEY=VALUE`.
    fn assignments(&self, between: &str) -> Vec<String> {
        let text = |value: &Value| match toml::Value::try_from(value) {
            // Only texts that could be read as another type need quotes.
            Ok(toml::Value::String(text)) if super::scalar(&text).as_str() == Some(&text) => text,
            Ok(value) => value.to_string(),
            Err(_) => value.to_string(),
        };
        self.parts.iter().map(|(key, value)| format!("{key}{between}{}", text(value))).collect()
    }

    /// Returns the flags that give the grant, to be pasted into a shell.
    pub fn flags(&self) -> String {
        let flags: Vec<String> =
            self.assignments("=").iter().map(|set| format!("--set {}", shell_word(Path::new(set)))).collect();
        flags.join(" ")
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.assignments(" = ").join(" with "))
    }
}

/// Returns a value as JSON. Values of configurations can always be serialized.
fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

impl RunConfig {
    /// Returns all grants that the configuration needs.
    pub fn grants(&self) -> Vec<Grant> {
        let mut all = Grant::from_limits("loss_limits", &self.loss_limits);
        let entries = self.plugin.iter().map(|entry| ("plugin", entry));
        for (table, entry) in entries.chain(self.environment.iter().map(|entry| ("environment", entry))) {
            all.extend(Grant::from_entry(table, entry, !self.replay_only));
        }
        // A replay contacts no servers.
        let writes = self.replay_rollouts.is_none();
        if let Some(agent) = self.agent.first().filter(|_| writes) {
            let kind = if agent.listen.is_some() { GrantKind::Port } else { GrantKind::Program };
            let part = |agent: &AgentEntry| match (&agent.listen, &agent.api_key_file) {
                (None, _) => serde_json::json!({"command": agent.command, "pass_env": agent.pass_env}),
                (Some(listen), None) => serde_json::json!({"listen": listen}),
                (Some(listen), Some(file)) => serde_json::json!({"listen": listen, "api_key_file": file}),
            };
            let agents = self.agent.iter().map(part).collect();
            all.push(Grant { kind, parts: vec![("agent".to_owned(), agents)] });
        }
        if writes && !self.rollout_server.is_empty() {
            let mut parts = vec![("rollout_server".to_owned(), json(&self.rollout_server))];
            parts.extend(self.rollout_sync_dir.iter().map(|folder| ("rollout_sync_dir".to_owned(), json(folder))));
            all.push(Grant { kind: GrantKind::Servers, parts });
        }
        if !self.teacher_server.is_empty() {
            all.push(Grant { kind: GrantKind::Servers, parts: vec![("teacher_server".to_owned(), json(&self.teacher_server))] });
        }
        if let Some(port) = self.metrics_port {
            let mut parts = vec![("metrics_port".to_owned(), json(&port))];
            if self.metrics_address != Self::default().metrics_address {
                parts.push(("metrics_address".to_owned(), json(&self.metrics_address)));
            }
            all.push(Grant { kind: GrantKind::Port, parts });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::schema_for;
    use serde_json::json;
    use std::collections::BTreeSet;

    /// Keys that neither name anything outside the run nor limit a plugin's resources. A new key must be listed here, or its declaration
    /// must have `reach`.
    const COMPUTES: &str = "dataset_train_split dataset_test_split columns system_prompt prompt_template strict_data eos_token pad_token strftime_now learn_from lmbda \
        seed data_seed device bf16 dtype load_in_8bit load_in_4bit num_threads dist_timeout_s reduce_dtype overlap_comm zero_stage shard_frozen \
        num_generations max_prompt_length max_completion_length temperature top_p top_k min_p repetition_penalty \
        score_sampling_support old_logp rollout_dtype stop max_num_seqs rollout_sync rollout_timeout_s max_staleness rollout_log filter_groups filter_groups_metric max_num_gen_batches \
        skip_groups skip_groups_after sync_ref_model ref_model_mixup_alpha ref_model_sync_steps precompute_ref_log_probs max_length \
        completion_only_loss assistant_only_loss packing packing_strategy eval_packing per_device_train_batch_size \
        per_device_eval_batch_size gradient_accumulation_steps steps_per_generation generation_batch_size num_iterations \
        num_mini_batches max_tokens_per_microbatch neftune_noise_alpha label_smoothing_factor gradient_checkpointing \
        router_aux_loss_coef max_steps num_train_epochs shuffle_dataset dataloader_drop_last teacher_load_in_8bit teacher_load_in_4bit teacher_model_kind teacher_update_rate teacher_sync_steps teacher_prompt_template use_peft lora_r lora_alpha use_rslora \
        use_dora lora_target_modules lora_modules_to_save lora_target_parameters lora_dropout learning_rate critic_learning_rate \
        lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args weight_decay adam_beta1 adam_beta2 \
        adam_epsilon max_grad_norm logging_strategy logging_steps logging_first_step eval_strategy eval_steps eval_on_start \
        eval_delay num_generations_eval eval_temperature eval_top_p eval_top_k eval_min_p eval_pass_threshold eval_pass_reward \
        eval_pass_k eval_answer_after save_strategy save_steps save_total_limit save_only_model on_save_error \
        load_best_model_at_end metric_for_best_model greater_is_better early_stopping_patience early_stopping_threshold \
        log_completions chat_template_kwargs replay_only hot_reload loss max_turns max_episode_tokens run_name";

    /// Keys of a reward's or environment's entry that neither name anything outside the run nor limit its resources. `config` is the
    /// plugin's own.
    const COMPUTES_OF_ENTRY: &str =
        "name model hash weight config on_error compare step_separator load_in_8bit load_in_4bit eval_only folders_hash";

    #[test]
    fn every_key_has_a_decision_about_what_it_reaches() {
        for (schema, computes) in [(schema_for!(RunConfig), COMPUTES), (schema_for!(PluginEntry), COMPUTES_OF_ENTRY)] {
            let schema = schema.to_value();
            let keys = schema["properties"].as_object().unwrap();
            let computes: BTreeSet<&str> = computes.split_whitespace().collect();
            for (name, property) in keys {
                // Values: what a run's folder may not set by itself; data to read; paths to write.
                let reaches = property["reach"].as_str().is_some_and(|reach| ["granted", "read", "written"].contains(&reach));
                let advice = "say what it reaches, in its declaration or in this test";
                assert!(computes.contains(name.as_str()) != reaches, "{name}: {advice}");
            }
            assert!(computes.iter().all(|name| keys.contains_key(*name)));
        }
    }

    #[test]
    fn an_agent_is_granted_as_what_is_started_or_listened_on() {
        let grant = |agent: Value| {
            RunConfig { agent: vec![serde_json::from_value(agent).unwrap()], ..RunConfig::default() }.grants().remove(0)
        };
        let given = |grant: &Grant, text: &str| grant.is_given(|key, is| key == "agent" && is(&crate::scalar(text)));
        let program = grant(json!({"command": ["python", "my agent.py"], "timeout_s": 9.0}));
        assert!(given(&program, "python 'my agent.py'") && !given(&program, "python agent.py"));
        assert!(!given(&program, "{command = [\"python\", \"my agent.py\"], pass_env = [\"HOME\"]}"));
        let listens = grant(json!({"listen": "0.0.0.0:8300"}));
        assert!(given(&listens, "{ listen = \"0.0.0.0:8300\" }") && !given(&listens, "{ listen = \"0.0.0.0:80\" }"));
        assert!(!given(&listens, "python agent.py") && !program.covers(&listens) && listens.covers(&listens));
        let with_keys = grant(json!({"listen": "0.0.0.0:8300", "api_key_file": "keys"}));
        assert!(!listens.covers(&with_keys) && !given(&with_keys, "{ listen = \"0.0.0.0:8300\" }"));
        assert_eq!(listens.to_string(), "agent = [{ listen = \"0.0.0.0:8300\" }]");
    }

    fn limited(key: &str, value: Value) -> PluginLimits {
        serde_json::from_value(json!({ key: value })).unwrap()
    }

    #[test]
    fn every_key_that_needs_a_grant_gives_one() {
        let entry = PluginEntry {
            hosts: vec!["judge:8".into()],
            secrets: [("KEY".to_owned(), "env:KEY".to_owned())].into(),
            folders: [("words".to_owned(), "/lists".to_owned())].into(),
            limits: limited("memory_mb", 4000.into()),
            http: HttpLimits { retries: 9, ca_file: Some("ca.pem".into()), ..HttpLimits::default() },
            ..PluginEntry::new("dir/a.wasm".into())
        };
        let config = RunConfig {
            metrics_port: Some(9000),
            metrics_address: "0.0.0.0".into(),
            loss_limits: limited("memory_mb", 4000.into()),
            plugin: vec![entry.clone()],
            environment: vec![entry],
            agent: vec![serde_json::from_value(json!({"command": ["python", "agent.py"]})).unwrap()],
            rollout_server: vec!["http://node1:8000".into()],
            rollout_sync_dir: Some("/shared".into()),
            teacher_server: vec!["http://node2:8000".into()],
            ..RunConfig::default()
        };
        let grants = config.grants();
        let given: BTreeSet<&str> = grants.iter().flat_map(Grant::keys).collect();
        for (name, property) in schema_for!(RunConfig).to_value()["properties"].as_object().unwrap() {
            let is_given = given.iter().any(|given| given.split('.').next() == Some(name));
            assert_eq!(property["reach"] == "granted", is_given, "{name}");
        }
        let schema = schema_for!(PluginEntry).to_value();
        for (name, property) in schema["properties"].as_object().unwrap() {
            let is_given = given.iter().any(|given| given.starts_with(&format!("plugin.a.{name}")));
            assert_eq!(property["reach"] == "granted", is_given, "{name}");
        }
        assert_eq!(RunConfig::default().grants(), []);
        // A plugin that sends no requests needs no grant for them.
        let silent = RunConfig { replay_only: true, ..config }.grants();
        assert!(!silent.iter().flat_map(Grant::keys).any(|key| key.contains(".hosts") || key.contains(".http")), "{silent:?}");
        let recorded = HttpLimits { max_record_mb: 1 << 20, ..HttpLimits::default() };
        let recorded = PluginEntry { http: recorded, hosts: vec!["a".into()], ..PluginEntry::new("a.wasm".into()) };
        assert_eq!(Grant::from_entry("plugin", &recorded, false).len(), 1);
    }

    #[test]
    fn every_limit_above_its_default_is_a_grant() {
        for (name, property) in schema_for!(PluginLimits).to_value()["properties"].as_object().unwrap() {
            assert_eq!(Grant::from_limits("loss_limits", &limited(name, 2_000_000.into())).len(), 1, "{name} {property}");
            assert_eq!(Grant::from_limits("loss_limits", &limited(name, 1.into())), [], "{name}");
        }
        for name in schema_for!(HttpLimits).to_value()["properties"].as_object().unwrap().keys().filter(|name| *name != "ca_file")
        {
            let http = serde_json::from_value(json!({ name.as_str(): 2_000_000 })).unwrap();
            let entry = PluginEntry { http, hosts: vec!["a".into()], ..PluginEntry::new("a.wasm".into()) };
            assert_eq!(Grant::from_entry("plugin", &entry, true).len(), 2, "{name}");
        }
        let above = limited("call_timeout_s", json!(60.5));
        assert_eq!(Grant::from_limits("loss_limits", &above)[0].to_string(), "loss_limits.call_timeout_s = 60.5");
    }

    #[test]
    fn a_grant_covers_lower_limits_and_nothing_else() {
        let of = |value: u64| Grant::from_limits("loss_limits", &limited("memory_mb", value.into())).remove(0);
        assert!(of(4000).covers(&of(4000)) && of(4000).covers(&of(3999)) && !of(4000).covers(&of(4001)));
        let other = Grant::from_limits("plugin.a.limits", &limited("memory_mb", 600.into())).remove(0);
        assert!(!of(4000).covers(&other));
        let serves = |port: u16, address: &str| {
            RunConfig { metrics_port: Some(port), metrics_address: address.into(), ..RunConfig::default() }.grants().remove(0)
        };
        assert!(!serves(9000, "127.0.0.1").covers(&serves(80, "127.0.0.1")));
        assert!(!serves(9000, "127.0.0.1").covers(&serves(9000, "0.0.0.0")));
        assert!(!serves(9000, "0.0.0.0").covers(&serves(9000, "::")));
        assert_eq!(serves(9000, "0.0.0.0").to_string(), "metrics_port = 9000 with metrics_address = 0.0.0.0");
        assert_eq!(serves(9000, "::").flags(), "--set 'metrics_port=9000' --set 'metrics_address=::'");
    }

    #[test]
    fn flags_can_be_pasted_into_a_shell_whatever_they_hold() {
        let entry = PluginEntry {
            folders: [("words".to_owned(), "/a'; rm -rf ~ #".to_owned())].into(),
            ..PluginEntry::new("a.wasm".into())
        };
        let flags = Grant::from_entry("plugin", &entry, true)[0].flags();
        let out = std::process::Command::new("sh").args(["-c", &format!("printf '%s|' {flags}")]).output().unwrap();
        let expected = "--set|plugin.a.folders={ words = \"/a'; rm -rf ~ #\" }|";
        assert_eq!(String::from_utf8(out.stdout).unwrap(), expected);
    }
}
