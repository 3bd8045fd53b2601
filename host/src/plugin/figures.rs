//! Checks the metrics that plugins report and their names.

use super::Metric;
use crate::config::{is_hidden, printable};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Most distinct metrics that a plugin may report in a run.
const MOST_NAMES: usize = 256;

/// Longest metric name, in bytes.
const LONGEST_NAME: usize = 128;

/// Names of the run's own metrics, besides those with the prefixes and suffixes below.
const RESERVED: [&str; 13] = [
    "step",
    "epoch",
    "time",
    "loss",
    "grad_norm",
    "mean_token_accuracy",
    "learning_rate",
    "num_tokens",
    "global_step",
    "max_steps",
    "step_time",
    "samples_per_second",
    "runtime",
];

const RESERVED_PREFIXES: [&str; 6] = ["eval_", "time/", "perf/", "plugins/", "completions/", "episodes/"];

/// Which plugin of a process reports which metric. Clones share this.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<BTreeMap<String, String>>>);

impl Names {
    /// Returns the names that have been reported.
    pub(super) fn reported(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Rejects metrics that can't be averaged, have another plugin's name, or are too many to read.
    pub(super) fn checked(&self, plugin: &str, given: Vec<Metric>) -> Result<Vec<Metric>, String> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new: Vec<&String> = Vec::new();
        for Metric { name, value, weight, .. } in &given {
            if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(is_hidden) {
                let shown = printable(name, LONGEST_NAME);
                return Err(format!("a metric's name must have 1 to {LONGEST_NAME} printable bytes, not {shown:?}"));
            }
            if !(value.is_finite() && weight.is_finite() && *weight >= 0.0 && (value * weight).is_finite()) {
                // `{}` would write 1e300 with all its zeros.
                return Err(format!("metric {name:?} has value {value:?} and weight {weight:?}"));
            }
            if is_reserved(name) {
                return Err(format!(
                    "metric {name:?} is reserved for the run; choose another name, such as {:?}",
                    format!("{plugin}/{name}")
                ));
            }
            match names.get(name) {
                Some(owner) if owner == plugin => {}
                Some(owner) => {
                    let own = format!("{plugin}/{name}");
                    return Err(format!(
                        "metric {name:?} is already reported by plugin {owner}; choose another name, such as {own:?}"
                    ));
                }
                None => new.push(name),
            }
        }
        new.sort_unstable();
        new.dedup();
        if !new.is_empty() && new.len() + names.values().filter(|owner| *owner == plugin).count() > MOST_NAMES {
            return Err(format!("reports metric {:?}, which exceeds the limit of {MOST_NAMES} metrics per plugin", new[0]));
        }
        names.extend(new.into_iter().map(|name| (name.clone(), plugin.to_owned())));
        Ok(given)
    }
}

fn is_reserved(name: &str) -> bool {
    // A reward's own scores, `rewards/NAME/mean`. `rewards/chosen` and the like belong to an algorithm.
    let of_scores = name.strip_prefix("rewards/").is_some_and(|rest| rest.ends_with("/mean") || rest.ends_with("/std"));
    of_scores || RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Reduction;

    fn metric(name: &str, value: f64, weight: f64) -> Metric {
        Metric { name: name.to_owned(), value, weight, reduction: Reduction::Mean }
    }

    #[test]
    fn nothing_takes_a_name_of_the_runs_or_of_anothers() {
        let names = Names::default();
        let said = |plugin: &str, name: &str| names.checked(plugin, vec![metric(name, 1.0, 1.0)]).err();
        for name in [
            "step",
            "loss",
            "eval_reward",
            "time/backward",
            "perf/x",
            "plugins/a/errors",
            "rewards/a/mean",
            "completions/mean_length",
        ] {
            assert!(said("a", name).unwrap().contains("reserved"), "{name}");
        }
        for name in ["kl", "rewards/chosen", "losses", "epochs/x"] {
            assert_eq!(said("a", name), None, "{name}");
            assert_eq!(said("a", name), None, "{name} again");
            assert!(said("b", name).unwrap().contains("already reported by plugin a"), "{name}");
        }
    }

    #[test]
    fn names_and_numbers_are_bounded() {
        let names = Names::default();
        for name in ["", "a\nb", "\u{1b}[2J", &"x".repeat(129)] {
            assert!(names.checked("a", vec![metric(name, 0.0, 0.0)]).is_err(), "{name:?}");
        }
        for (value, weight) in [(f64::NAN, 1.0), (1.0, f64::INFINITY), (1.0, -1.0), (1e300, 1e300)] {
            assert!(names.checked("a", vec![metric("x", value, weight)]).is_err(), "{value} {weight}");
        }
        let said = names.checked("a", vec![metric("x", 1e300, 1e300)]).unwrap_err();
        assert_eq!(said, "metric \"x\" has value 1e300 and weight 1e300");
        let many = |n: usize| (0..n).map(|i| metric(&i.to_string(), 0.0, 0.0)).collect::<Vec<_>>();
        names.checked("a", many(256)).unwrap();
        assert!(names.checked("a", many(257)).unwrap_err().contains("256"));
        names.checked("b", vec![metric("other", 0.0, 0.0)]).unwrap();
    }
}
