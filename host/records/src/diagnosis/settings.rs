//! The settings of a run that signs use.

use crate::config::PluginEntry;
use toml::{Table, Value};

/// Maximum number of a run's rewards that are monitored.
const MOST_REWARDS: usize = 64;

/// Metrics of each reward that signs use: over all completions, and in the groups that the algorithm compares.
const OF_REWARDS: [&str; 5] = ["mean", "std", "varies", "alone", "share"];

/// A reward of the run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DiagnosedReward {
    pub name: String,
    pub weight: f64,
    /// Column of the dataset that the reward compares completions with.
    pub column: Option<String>,
    /// Whether the reward comes from an environment, which need not give any.
    pub of_environment: bool,
}

/// Returns the name of a metric of a reward's scores.
pub(super) fn metric_of(reward: &str, what: &str) -> String {
    format!("rewards/{reward}/{what}")
}

/// The settings of a run that signs use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiagnosisSettings {
    pub(super) learning_rate: Option<f64>,
    /// Default learning rate of the run.
    pub(super) usual_learning_rate: Option<f64>,
    pub(super) max_completion_length: Option<u64>,
    pub(super) beta: Option<f64>,
    pub(super) rewards: Vec<DiagnosedReward>,
    /// Whether a step's size is proportional to the gradient, so that no learning rate is typical.
    pub(super) steps_by_gradient: bool,
    /// Whether each reward is normalised before the rewards are added.
    pub(super) normalised: bool,
}

impl DiagnosisSettings {
    /// Parses the settings from the text of config.toml; skips anything it can't parse.
    #[must_use]
    pub fn from_config(config: &str, usual_learning_rate: Option<f64>) -> Self {
        let table: Table = config.parse().unwrap_or_default();
        let number = |table: &Table, key: &str| match table.get(key)? {
            Value::Float(v) => Some(*v).filter(|v| v.is_finite()),
            Value::Integer(v) => Some(*v as f64),
            _ => None,
        };
        let loss = table.get("loss").and_then(Value::as_table).cloned().unwrap_or_default();
        let of_loss = |key: &str| loss.get(key).and_then(Value::as_str).unwrap_or_default();
        let entries = |key: &str| table.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table);
        let reward = |plugin: &Table, of_environment: bool| {
            if plugin.get("eval_only").and_then(Value::as_bool) == Some(true) {
                return None;
            }
            let mut entry = PluginEntry::new(plugin.get("path")?.as_str()?.to_owned());
            entry.name = plugin.get("name").and_then(Value::as_str).map(str::to_owned);
            entry.model = plugin.get("model").and_then(Value::as_bool) == Some(true);
            let config = plugin.get("config").and_then(Value::as_table);
            let column = config.and_then(|config| config.get("column")?.as_str()).map(str::to_owned);
            let weight = number(plugin, "weight").unwrap_or(1.0);
            Some(DiagnosedReward { name: entry.name().to_owned(), weight, column, of_environment })
        };
        let rewards = entries("plugin").filter_map(|plugin| reward(plugin, false));
        let rewards = rewards.chain(entries("environment").filter_map(|environment| reward(environment, true)));
        Self {
            learning_rate: number(&table, "learning_rate"),
            usual_learning_rate: usual_learning_rate.filter(|rate| *rate > 0.0 && rate.is_finite()),
            max_completion_length: number(&table, "max_completion_length").map(|v| v as u64),
            beta: number(&loss, "beta"),
            rewards: rewards.take(MOST_REWARDS).collect(),
            steps_by_gradient: table.get("optim").and_then(Value::as_str) == Some("sgd"),
            normalised: of_loss("multi_objective_aggregation").starts_with("normalize"),
        }
    }

    /// Returns whether a metric is of the scores of one of the run's rewards, and used by signs.
    pub(super) fn has_reward_metric(&self, name: &str) -> bool {
        let of = name.strip_prefix("rewards/").and_then(|rest| rest.rsplit_once('/'));
        of.is_some_and(|(name, what)| OF_REWARDS.contains(&what) && self.rewards.iter().any(|r| r.name == name))
    }

    /// Returns the learning rate divided by the default one.
    pub(super) fn rate_ratio(&self) -> Option<f64> {
        Some(self.learning_rate? / self.usual_learning_rate?)
    }
}
