//! Agents of a configuration: programs that send requests to the model over HTTP, started by the run or by somebody else.

use super::entries::{LARGEST_WEIGHT, RewardErrorAction, duration, is_name};
use super::{printable, scalar};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use toml::{Table, Value};

/// Prefixes of metrics of runs and of algorithms.
const OF_RUNS: [&str; 18] = [
    "clip_ratio",
    "completions",
    "episodes",
    "filter_groups",
    "kl",
    "logits",
    "logps",
    "loss",
    "objective",
    "perf",
    "plugins",
    "policy",
    "rewards",
    "rollout",
    "sampling",
    "skip_groups",
    "time",
    "val",
];

/// Maximum length of a command in an error message, in bytes.
const SHOWN: usize = 200;

/// An agent: a program that asks the policy over HTTP, whose episodes are trained on. It is started by the run, or drivers elsewhere
/// take episodes from the run. The attribute `reach` is as in [`RunConfig`](super::RunConfig).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentEntry {
    /// The program and its arguments. Without one, drivers elsewhere play the episodes, and listen is needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Address at which drivers elsewhere take episodes, as in "127.0.0.1:8300".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// File with the keys of drivers, one in a line; without one, RLHOST_AGENT_KEY, or a new key in the run's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<String>,
    /// Name of its rewards in metrics and events.
    #[serde(default = "agent")]
    pub name: String,
    /// Weight of its rewards in the sum.
    #[serde(default = "one")]
    pub weight: f64,
    /// Maximum duration of an episode, and of waiting for a driver to begin one, in seconds.
    #[serde(default = "ten_minutes")]
    pub timeout_s: f64,
    /// Maximum number of episodes at a time.
    #[serde(default = "sixteen")]
    pub max_concurrent: usize,
    /// Whether it stays and plays an episode for each line that it reads, rather than being started for each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub persistent: bool,
    /// Environment variables of the run that it gets, besides PATH.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pass_env: Vec<String>,
    /// What to do if an episode fails: fail (save and end the run) or unscorable (give it no score).
    #[serde(default = "unscorable")]
    pub on_error: RewardErrorAction,
}

fn agent() -> String {
    "agent".to_owned()
}

fn one() -> f64 {
    1.0
}

fn ten_minutes() -> f64 {
    600.0
}

fn sixteen() -> usize {
    16
}

fn unscorable() -> RewardErrorAction {
    RewardErrorAction::Unscorable
}

impl AgentEntry {
    /// Returns the maximum duration of an episode.
    pub fn timeout(&self) -> Duration {
        duration(self.timeout_s)
    }

    /// Checks the entry.
    ///
    /// # Errors
    /// If a value is out of range; the message says which values are valid.
    pub fn check(&self) -> Result<(), String> {
        self.check_who_plays()?;
        if let Some(part) = self.command.iter().find(|part| part.contains('\0')) {
            return Err(format!("command has a NUL byte in {:?}", printable(part, SHOWN)));
        }
        if OF_RUNS.contains(&self.name.as_str()) {
            return Err(format!("name is {:?}, but metrics that begin so are the run's own; choose another", self.name));
        }
        if !is_name(&self.name) {
            return Err(format!("name is {:?}; it may contain letters, digits, _, - and .", printable(&self.name, SHOWN)));
        }
        if !(-LARGEST_WEIGHT..=LARGEST_WEIGHT).contains(&self.weight) {
            return Err(format!("weight must be a number of at most {LARGEST_WEIGHT:e} either way"));
        }
        if self.timeout_s.is_nan() || self.timeout_s <= 0.0 {
            return Err(format!("timeout_s is {}; it must be greater than 0", self.timeout_s));
        }
        if self.max_concurrent == 0 {
            return Err("max_concurrent must be at least 1".into());
        }
        if self.on_error == RewardErrorAction::Previous {
            return Err("on_error is previous, but an agent has no earlier version; use fail or unscorable".into());
        }
        let wrong = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        match self.pass_env.iter().find(wrong) {
            Some(name) => Err(format!("pass_env has {:?}, which can't be the name of a variable", printable(name, SHOWN))),
            None => Ok(()),
        }
    }

    /// Checks that episodes are played either by a program or by drivers, with the keys that each needs.
    fn check_who_plays(&self) -> Result<(), String> {
        let Some(listen) = &self.listen else {
            if self.command.first().is_none_or(String::is_empty) {
                let listens = "or set listen, for drivers elsewhere";
                return Err(format!("command must name a program, as in [\"python\", \"agent.py\"], {listens}"));
            }
            return match self.api_key_file {
                Some(_) => Err("api_key_file is for drivers elsewhere; set listen, or leave it out".into()),
                None => Ok(()),
            };
        };
        if self.address().is_none() {
            return Err(format!(
                "listen is {:?}; it must be an address with a port, as in \"127.0.0.1:8300\"",
                printable(listen, SHOWN)
            ));
        }
        let of_programs =
            [("command", !self.command.is_empty()), ("persistent", self.persistent), ("pass_env", !self.pass_env.is_empty())];
        match of_programs.into_iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => {
                Err(format!("{key} is for a program that the run starts, and listen for drivers elsewhere; leave one out"))
            }
            None => Ok(()),
        }
    }

    /// Returns the host and port on which external drivers take episodes, if they do.
    pub fn address(&self) -> Option<(&str, u16)> {
        let (host, port) = self.listen.as_deref()?.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Some((host, port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
    }
}

/// Converts a key's value to a list of agents: a command line, a table, also as text, or a list of either.
pub(super) fn agent_entries(key: &str, given: Value) -> Result<Value, String> {
    let items = match given {
        Value::Array(items) => items,
        one => vec![one],
    };
    let read = |item: Value| match item {
        Value::String(line) if line.trim_start().starts_with('{') => scalar(&line),
        other => other,
    };
    let entry = |item: Value| match read(item) {
        Value::String(line) => {
            let words = shlex::split(&line).ok_or_else(|| format!("{:?} has an open quote", printable(&line, SHOWN)))?;
            let command = words.into_iter().map(Value::String).collect();
            Ok(Value::Table(Table::from_iter([("command".to_owned(), Value::Array(command))])))
        }
        table @ Value::Table(_) => Ok(table),
        other => Err(format!("contains {other}; it must be a command, or [[{key}]] tables with a command")),
    };
    items.into_iter().map(entry).collect::<Result<Vec<_>, _>>().map(Value::Array)
}
