//! The figures that plugins report, under names of their own.

use super::Metric;
use crate::config::{is_hidden, printable};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Figures with different names that a plugin may report in a run.
const MOST_NAMES: usize = 256;

/// Bytes of a name.
const LONGEST_NAME: usize = 128;

/// What a run writes itself, beside what begins or ends as below.
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

const RESERVED_PREFIXES: [&str; 5] = ["eval_", "time/", "perf/", "plugins/", "completions/"];

/// Which plugin of a process reports which figure. Clones know the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<BTreeMap<String, String>>>);

impl Names {
    /// Refuses figures that can't be averaged, that are named like another's, and more of them than anybody reads.
    pub(super) fn checked(&self, plugin: &str, given: Vec<Metric>) -> Result<Vec<Metric>, String> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new: Vec<&String> = Vec::new();
        for Metric { name, value, weight, .. } in &given {
            if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(is_hidden) {
                let shown = printable(name, LONGEST_NAME);
                return Err(format!("a metric's name is of 1 to {LONGEST_NAME} visible bytes, and not {shown:?}"));
            }
            if !(value.is_finite() && weight.is_finite() && *weight >= 0.0 && (value * weight).is_finite()) {
                // `{}` writes 1e300 with all its zeros.
                return Err(format!("metric {name:?} has value {value:?} and weight {weight:?}"));
            }
            if is_reserved(name) {
                return Err(format!(
                    "metric {name:?} is the run's own; name it otherwise, as in {:?}",
                    format!("{plugin}/{name}")
                ));
            }
            match names.get(name) {
                Some(owner) if owner == plugin => {}
                Some(owner) => {
                    let own = format!("{plugin}/{name}");
                    return Err(format!(
                        "metric {name:?} is reported by plugin {owner} already; name it otherwise, as in {own:?}"
                    ));
                }
                None => new.push(name),
            }
        }
        new.sort_unstable();
        new.dedup();
        if !new.is_empty() && new.len() + names.values().filter(|owner| *owner == plugin).count() > MOST_NAMES {
            return Err(format!("reports metric {:?} and more than the {MOST_NAMES} that a plugin may report", new[0]));
        }
        names.extend(new.into_iter().map(|name| (name.clone(), plugin.to_owned())));
        Ok(given)
    }
}

fn is_reserved(name: &str) -> bool {
    // A reward's own scores, `rewards/NAME/mean`; `rewards/chosen` and its kin are an algorithm's.
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
            assert!(said("a", name).unwrap().contains("the run's own"), "{name}");
        }
        for name in ["kl", "rewards/chosen", "losses", "epochs/x"] {
            assert_eq!(said("a", name), None, "{name}");
            assert_eq!(said("a", name), None, "{name} again");
            assert!(said("b", name).unwrap().contains("by plugin a already"), "{name}");
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
