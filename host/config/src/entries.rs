//! Plugin entries of a configuration, and their limits.

use super::{Grants, HttpLimits, ScriptPath};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum weight of a reward, positive or negative: with the largest score, sums over a group stay finite as f32.
pub(super) const LARGEST_WEIGHT: f64 = 1e6;

/// What to do when a reward fails, and again on a fresh instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardErrorAction {
    /// The run saves a checkpoint and ends.
    #[default]
    Fail,
    /// Rows that fail on their own get no score.
    Unscorable,
    /// The previous version is restored, at whatever step the current one fails. Without a previous version, this is the same as `fail`.
    Previous,
}

/// What a completion is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonTarget {
    /// The prompt's other completions, or the dataset's column "reference" if there are none.
    Others,
    /// The dataset's column "reference".
    Reference,
}

/// Resource limits of a plugin.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PluginLimits {
    /// Maximum memory of one instance, in MiB.
    pub memory_mb: u64,
    /// Maximum duration of one call, in seconds.
    pub call_timeout_s: f64,
    /// For an environment: maximum duration of all calls for the episodes of one instance in a generation, in seconds; by default
    /// ten times that of a call.
    pub episodes_timeout_s: Option<f64>,
    /// Maximum number of elements of each table.
    pub table_elements: u32,
    /// Amount of printed output kept for error messages, in KiB.
    pub output_kb: u32,
    /// Maximum memory of all its instances together, in MiB.
    pub total_memory_mb: u64,
    /// Maximum address space of the process that compiles it, in MiB.
    pub compile_memory_mb: u64,
    /// Maximum CPU time for compiling it, in seconds; wall-clock time may be four times that.
    pub compile_timeout_s: u64,
}

impl Default for PluginLimits {
    fn default() -> Self {
        Self {
            memory_mb: 512,
            call_timeout_s: 60.0,
            episodes_timeout_s: None,
            table_elements: 100_000,
            output_kb: 16,
            total_memory_mb: 768,
            compile_memory_mb: 4096,
            compile_timeout_s: 300,
        }
    }
}

impl PluginLimits {
    /// Converts MiB to bytes.
    fn bytes(mebibytes: u64) -> usize {
        usize::try_from(mebibytes).unwrap_or(usize::MAX).saturating_mul(1 << 20)
    }

    /// Returns the maximum memory of one instance, in bytes.
    pub fn memory(&self) -> usize {
        Self::bytes(self.memory_mb)
    }

    /// Returns the maximum memory of all instances together, in bytes.
    pub fn total_memory(&self) -> usize {
        Self::bytes(self.total_memory_mb)
    }

    /// Returns the maximum address space of the compiler process, in bytes.
    pub fn compile_memory(&self) -> usize {
        Self::bytes(self.compile_memory_mb)
    }

    /// Returns the maximum duration of a call.
    pub fn call_timeout(&self) -> Duration {
        duration(self.call_timeout_s)
    }

    /// Returns the maximum duration of all calls for the episodes of an instance, in seconds.
    pub fn episodes_seconds(&self) -> f64 {
        self.episodes_timeout_s.unwrap_or(CALLS_OF_EPISODES * self.call_timeout_s)
    }

    /// Returns the maximum duration of all calls for the episodes of an instance.
    pub fn episodes_timeout(&self) -> Duration {
        duration(self.episodes_seconds())
    }

    /// Returns an error that names the limit that is out of range.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.call_timeout_s.is_nan() || self.call_timeout_s <= 0.0 {
            return Err("limits.call_timeout_s must be greater than 0");
        }
        if self.episodes_timeout_s.is_some_and(|seconds| seconds.is_nan() || seconds <= 0.0) {
            return Err("limits.episodes_timeout_s must be greater than 0");
        }
        if self.compile_timeout_s == 0 {
            return Err("limits.compile_timeout_s must be greater than 0");
        }
        Ok(())
    }
}

/// Default time limit of all calls for episodes, as a multiple of a call's.
const CALLS_OF_EPISODES: f64 = 10.0;

/// The longest timeout; longer ones are reduced to it.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// Converts a timeout to a duration.
pub(super) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST)
}

/// A reward of the run: a plugin, or a model. The attribute `reach` is as in [`RunConfig`](super::RunConfig).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginEntry {
    /// Path of the plugin, or the file name of a built-in one; or a reward model's folder or name on the hub.
    #[schemars(extend("reach" = "read"))]
    pub path: String,
    /// Name in metrics and events, if not that of the plugin's file or of the reward model's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it is a reward model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub model: bool,
    /// Hash of the reward model's files; the run sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Weight of its rewards in the sum.
    #[serde(default = "one")]
    pub weight: f64,
    /// The plugin's own settings.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// What to do if it fails: fail (save and end the run), unscorable (give its rows no score) or previous (return to the version
    /// before the last swap).
    #[serde(default)]
    pub on_error: RewardErrorAction,
    /// Score by comparing each completion with others (the prompt's other completions) or reference (the dataset's column of that
    /// name): a plugin sees both answers, one in its column "reference"; a reward model gives the probability of being better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare: Option<ComparisonTarget>,
    /// For a process reward model: the text that ends a step [default: a line break].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_separator: Option<String>,
    /// For a reward model: hold its linear maps in 8 bits, as the key of the same name does for an adapter's base model; CPU only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub load_in_8bit: bool,
    /// For a reward model: hold its linear maps in 4 bits (NF4); CPU only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub load_in_4bit: bool,
    /// Score only in evaluations: its scores are logged and never reach the algorithm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub eval_only: bool,
    /// Its resource limits.
    #[serde(default)]
    #[schemars(extend("reach" = "granted"))]
    pub limits: PluginLimits,
    /// Servers that it may send requests to, as in ["judge.internal:8000"].
    #[serde(default, deserialize_with = "super::grants::one_or_several", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("reach" = "granted"))]
    pub hosts: Vec<String>,
    /// Secrets that are put into the headers of its requests, as in { JUDGE_KEY = "env:JUDGE_KEY" }.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("reach" = "granted"))]
    pub secrets: BTreeMap<String, String>,
    /// Limits on its requests.
    #[serde(default, skip_serializing_if = "HttpLimits::is_default")]
    #[schemars(extend("reach" = "granted"))]
    pub http: HttpLimits,
    /// Folders that it may read, under names of their own: it sees { words = "lists/words" } as /words. They are read when the plugin
    /// is loaded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("reach" = "granted"))]
    pub folders: BTreeMap<String, String>,
    /// Hash of all that is in the folders; the run sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folders_hash: Option<String>,
}

fn one() -> f64 {
    1.0
}

impl PluginEntry {
    /// Keys that users set, besides the plugin's own settings in `config`.
    pub const OWN_KEYS: [&'static str; 9] =
        ["weight", "on_error", "compare", "eval_only", "limits", "hosts", "secrets", "http", "folders"];

    /// Creates a plugin's entry with default settings.
    pub fn new(path: String) -> Self {
        Self {
            path,
            name: None,
            model: false,
            hash: None,
            weight: one(),
            config: Map::new(),
            on_error: RewardErrorAction::Fail,
            compare: None,
            step_separator: None,
            load_in_8bit: false,
            load_in_4bit: false,
            eval_only: false,
            limits: PluginLimits::default(),
            hosts: Vec::new(),
            secrets: BTreeMap::new(),
            http: HttpLimits::default(),
            folders: BTreeMap::new(),
            folders_hash: None,
        }
    }

    /// Creates a reward model's entry from a command line argument: its folder or hub name, optionally after `NAME=`.
    pub fn from_model_argument(given: String) -> Self {
        let named = given.split_once('=').filter(|(name, path)| is_name(name) && !path.is_empty());
        let (name, path) = named.map(|(name, path)| (Some(name.to_owned()), path.to_owned())).unwrap_or((None, given));
        Self { name, model: true, ..Self::new(path) }
    }

    /// Creates a plugin's entry from a command line argument: its file, optionally after `NAME=`; `,weight=NUMBER` may follow.
    pub fn from_plugin_argument(given: String) -> Self {
        let (rest, weight) = match given.rsplit_once(",weight=").map(|(rest, weight)| (rest, weight.parse())) {
            Some((rest, Ok(weight))) => (rest, Some(weight)),
            _ => (given.as_str(), None),
        };
        let named = rest.split_once('=').filter(|(name, path)| is_name(name) && !path.is_empty());
        let (name, path) = named.map_or((None, rest), |(name, path)| (Some(name.to_owned()), path));
        Self { name, weight: weight.unwrap_or_else(one), ..Self::new(path.to_owned()) }
    }

    /// Changes the path, keeping the name.
    pub fn move_to(&mut self, path: String) {
        let name = self.name().to_owned();
        self.path = path;
        self.name = None;
        if self.name() != name {
            self.name = Some(name);
        }
    }

    /// Returns the keys that can't change during a run or when it resumes, because they determine how the entry scores.
    pub fn fixed(&self) -> [(&'static str, Value); 5] {
        [
            ("eval_only", self.eval_only.into()),
            ("compare", serde_json::to_value(self.compare).unwrap_or_default()),
            ("step_separator", self.step_separator.clone().into()),
            ("load_in_8bit", self.load_in_8bit.into()),
            ("load_in_4bit", self.load_in_4bit.into()),
        ]
    }

    /// Returns the grants of the entry.
    pub fn grants(&self) -> Grants {
        let (hosts, secrets) = (self.hosts.clone(), self.secrets.clone());
        Grants { hosts, secrets, http: self.http.clone(), folders: self.folders.clone() }
    }

    /// Returns the name used in metrics and in `--set plugin.NAME...`: the entry's own name; otherwise a plugin's file name without its
    /// extension, a reward model's folder name, or the name of the run whose checkpoint that folder is.
    pub fn name(&self) -> &str {
        if let Some(name) = &self.name {
            return name;
        }
        let mut parts = self.path.trim_end_matches(['/', '\\']).rsplit(['/', '\\']);
        let file = parts.next().unwrap_or(&self.path);
        if !self.model {
            let script = ScriptPath::parse(file).map(|script| script.name());
            return script.unwrap_or_else(|| file.strip_suffix(".wasm").unwrap_or(file));
        }
        let of_run = file.strip_prefix("checkpoint-").is_some_and(|step| step.bytes().all(|byte| byte.is_ascii_digit()));
        let named = if of_run { parts.next().unwrap_or(file) } else { file };
        named.split('@').next().unwrap_or(named)
    }
}

/// Returns whether a text can be the name of a reward: letters, digits, `_`, `-` and `.`.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_may_be_given_a_name_and_a_weight() {
        let of = |given: &str| {
            let entry = PluginEntry::from_plugin_argument(given.into());
            (entry.name().to_owned(), entry.path, entry.weight)
        };
        assert_eq!(of("a/b.wasm"), ("b".into(), "a/b.wasm".into(), 1.0));
        assert_eq!(of("short=a/b.wasm,weight=0.5"), ("short".into(), "a/b.wasm".into(), 0.5));
        assert_eq!(of("b.py:length,weight=2"), ("length".into(), "b.py:length".into(), 2.0));
        // Names of files may contain `=`.
        assert_eq!(of("./a=b.wasm"), ("a=b".into(), "./a=b.wasm".into(), 1.0));
        assert_eq!(of("a,weight=x.wasm").1, "a,weight=x.wasm");
    }

    #[test]
    fn a_reward_model_has_the_name_that_it_is_given_or_that_of_its_folder() {
        let of = |given: &str| PluginEntry::from_model_argument(given.into());
        assert_eq!(of("runs/rm/checkpoint-12").name(), "rm");
        assert_eq!((of("a=runs/rm").name(), of("a=runs/rm").path.as_str()), ("a", "runs/rm"));
        // A folder rather than a name.
        assert_eq!(of("./a=b").path, "./a=b");
        let mut moved = of("runs/rm");
        moved.move_to("runs/better".into());
        assert_eq!((moved.name(), moved.path.as_str()), ("rm", "runs/better"));
        moved.move_to("others/rm/checkpoint-2".into());
        assert_eq!((moved.name(), moved.name.as_deref()), ("rm", None));
    }
}
