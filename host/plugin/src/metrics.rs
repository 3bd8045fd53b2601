//! Checks the names and values of metrics that plugins report.

use super::Metric;
use crate::config::{is_shown, printable};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of distinct metrics that a plugin may report in a run.
const MOST_NAMES: usize = 256;

/// Maximum number of metrics in one answer, which may repeat names.
const MOST_METRICS: usize = 1024;

/// Maximum length of a metric name, in bytes.
const LONGEST_NAME: usize = 128;

/// Maximum magnitude of a value, and maximum weight. Sums of their products stay finite for as many products as any run has.
pub(super) const LARGEST: f64 = 1e100;

/// Names of the run's own metrics, besides those with the prefixes and suffixes below.
const RESERVED: [&str; 19] = [
    "step",
    "epoch",
    "time",
    "versions",
    "loss",
    "aux_loss",
    "grad_norm",
    "critic_grad_norm",
    "critic_learning_rate",
    "mean_token_accuracy",
    "learning_rate",
    "lr",
    "eps",
    "num_tokens",
    "global_step",
    "max_steps",
    "step_time",
    "samples_per_second",
    "runtime",
];

const RESERVED_PREFIXES: [&str; 11] = [
    "eval_",
    "time/",
    "perf/",
    "plugins/",
    "rollout/",
    "completions/",
    "episodes/",
    "filter_groups/",
    "skip_groups/",
    "pass@",
    "maj@",
];

/// Names that algorithms may report, as TRL's do. The terminal, the report and the diagnosis read them. They are reserved for algorithms,
/// since a reward's or environment's numbers would be mistaken for the algorithm's.
const OF_ALGORITHMS: [&str; 9] = [
    "episode",
    "reward",
    "reward_std",
    "kl",
    "kl_coef",
    "frac_reward_zero_std",
    "nll_loss",
    "cispo_clip_ratio",
    "ppo_clip_ratio",
];

/// Suffixes of the metrics of a reward's scores.
const OF_SCORES: [&str; 6] = ["/mean", "/std", "/stderr", "/varies", "/alone", "/share"];

/// Prefixes of further names that only algorithms may report.
const OF_ALGORITHMS_PREFIXES: [&str; 9] =
    ["rewards/", "objective/", "policy/", "val/", "loss/", "logps/", "logits/", "clip_ratio/", "kl/"];

/// A name that the host reports for pairs and labelled completions. An algorithm for single completions may report it itself.
const ENTROPY: &str = "entropy";

/// A prefix of names that the host reports for single completions. An algorithm may report such names too: TRL's sampling corrections do.
const SAMPLING: &str = "sampling/";

/// Maps each metric to the plugin that reports it. Clones share this map.
#[derive(Clone, Debug, Default)]
pub(super) struct MetricOwners(Arc<Mutex<BTreeMap<String, String>>>);

impl MetricOwners {
    /// Returns the names that have been reported.
    pub(super) fn reported(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Rejects metrics that can't be averaged, have a name of the run's own or of another plugin's, or are too many. Records the names if
    /// the plugin is `in_run`; a version that is only on trial reserves none.
    pub(super) fn checked(&self, reporter: &Reporter<'_>, given: Vec<Metric>) -> Result<Vec<Metric>, String> {
        let Reporter { plugin, metrics: of, in_run } = *reporter;
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new: Vec<&String> = Vec::new();
        for Metric { name, value, weight, .. } in &given {
            if !is_shown(name, LONGEST_NAME) {
                let shown = printable(name, LONGEST_NAME);
                return Err(format!(
                    "a metric's name must have 1 to {LONGEST_NAME} printable bytes, with no space at either end and none but the usual one \
                     inside, not {shown:?}"
                ));
            }
            // Both comparisons are false for NaN.
            if !(value.abs() <= LARGEST && (0.0..=LARGEST).contains(weight)) {
                // `{}` would write 1e300 with all its zeros.
                return Err(format!(
                    "metric {name:?} has value {value:?} and weight {weight:?}; the limit of both is {LARGEST:?}, and a weight can't \
                     be negative"
                ));
            }
            match names.get(name) {
                _ if is_reserved(name, of) => {
                    let own = [format!("{plugin}/{name}"), format!("{plugin}_{name}")];
                    let free = own.into_iter().find(|name| !is_reserved(name, of)).unwrap_or_default();
                    return Err(format!(
                        "metric {name:?} is reserved for the run and its algorithm; choose another name, such as {free:?}"
                    ));
                }
                Some(owner) if owner != plugin => {
                    let own = format!("{plugin}/{name}");
                    return Err(format!(
                        "metric {name:?} is already reported by plugin {owner}; choose another name, such as {own:?}"
                    ));
                }
                Some(_) => {}
                None => new.push(name),
            }
        }
        new.sort_unstable();
        new.dedup();
        if !new.is_empty() && new.len() + names.values().filter(|owner| *owner == plugin).count() > MOST_NAMES {
            return Err(format!("reports metric {:?}, which exceeds the limit of {MOST_NAMES} metrics per plugin", new[0]));
        }
        if given.len() > MOST_METRICS {
            // Answers of many calls are collected before they are used, so each must be small.
            return Err(format!("returned {} metrics in one answer; the limit is {MOST_METRICS}", given.len()));
        }
        if in_run {
            names.extend(new.into_iter().map(|name| (name.clone(), plugin.to_owned())));
        }
        Ok(given)
    }
}

/// The kind of plugin that reports metrics, which determines the allowed names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricOrigin {
    /// A reward or an environment.
    Scores,
    /// An algorithm for pairs or labelled completions, whose entropies the host reports.
    Pairs,
    /// An algorithm for single completions.
    Completions,
}

/// The plugin that reports metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reporter<'a> {
    pub plugin: &'a str,
    pub metrics: MetricOrigin,
    /// Whether the run depends on the plugin; false for a version on trial.
    pub in_run: bool,
}

/// Returns whether a plugin of this kind may not report a metric of this name.
pub fn is_reserved(name: &str, of: MetricOrigin) -> bool {
    // A reward's own scores, `rewards/NAME/mean`. `rewards/chosen` and the like belong to an algorithm.
    let suffixed = |rest: &str| OF_SCORES.iter().any(|suffix| rest.ends_with(suffix));
    let of_scores = name.strip_prefix("rewards/").is_some_and(suffixed);
    let starts_with = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let of_algorithms = (OF_ALGORITHMS.contains(&name) || starts_with(&OF_ALGORITHMS_PREFIXES)) && of == MetricOrigin::Scores;
    let of_policies = (name == ENTROPY || name.starts_with(SAMPLING)) && of != MetricOrigin::Completions;
    let of_host = RESERVED.contains(&name) || starts_with(&RESERVED_PREFIXES);
    of_scores || of_host || of_algorithms || of_policies
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reduction;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn metric(name: &str, value: f64, weight: f64) -> Metric {
        Metric { name: name.to_owned(), value, weight, reduction: Reduction::Mean }
    }

    fn reporter(plugin: &str, metrics: MetricOrigin) -> Reporter<'_> {
        Reporter { plugin, metrics, in_run: true }
    }

    #[test]
    fn nothing_takes_a_name_of_the_runs_or_of_anothers() {
        let names = MetricOwners::default();
        let said = |plugin, name| names.checked(&reporter(plugin, MetricOrigin::Completions), vec![metric(name, 1.0, 1.0)]).err();
        for name in [
            "step",
            "loss",
            "eval_reward",
            "time/backward",
            "perf/x",
            "plugins/a/errors",
            "rewards/a/mean",
            "rewards/a/stderr",
            "rewards/a/share",
            "completions/mean_length",
            "pass@1",
            "maj@8/stderr",
            "lr",
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
        let names = MetricOwners::default();
        let look_alikes = ["kl\u{fe0f}", "kl\u{3164}", "k\u{34f}l", "kl\u{e0101}", "kl\u{a0}", "kl ", " kl", "k\u{2060}l"];
        for name in ["", "a\nb", "\u{1b}[2J", &"x".repeat(129)].into_iter().chain(look_alikes) {
            assert!(names.checked(&reporter("a", MetricOrigin::Scores), vec![metric(name, 0.0, 0.0)]).is_err(), "{name:?}");
        }
        let wrong = [
            (f64::NAN, 1.0),
            (1.0, f64::NAN),
            (1.0, f64::INFINITY),
            (1.0, -1.0),
            (1e300, 1e300),
            (-1.7e308, 1.0),
            (0.0, 1.7e308),
        ];
        for (value, weight) in wrong {
            assert!(
                names.checked(&reporter("a", MetricOrigin::Scores), vec![metric("x", value, weight)]).is_err(),
                "{value} {weight}"
            );
        }
        let said = names.checked(&reporter("a", MetricOrigin::Scores), vec![metric("x", 1e300, 1e300)]).unwrap_err();
        assert!(said.starts_with("metric \"x\" has value 1e300 and weight 1e300; the limit of both is 1e100"), "{said}");
        let many = |n: usize| (0..n).map(|i| metric(&i.to_string(), 0.0, 0.0)).collect::<Vec<_>>();
        names.checked(&reporter("a", MetricOrigin::Scores), many(256)).unwrap();
        assert!(names.checked(&reporter("a", MetricOrigin::Scores), many(257)).unwrap_err().contains("256"));
        let again = |n: usize| vec![metric("0", 1.0, 1.0); n];
        assert_eq!(names.checked(&reporter("a", MetricOrigin::Scores), again(1024)).unwrap().len(), 1024);
        assert!(
            names.checked(&reporter("a", MetricOrigin::Scores), again(1025)).unwrap_err().contains("1025 metrics in one answer")
        );
        names.checked(&reporter("b", MetricOrigin::Scores), vec![metric("other", 0.0, 0.0)]).unwrap();
    }

    #[test]
    fn what_is_accepted_adds_up_to_finite_numbers() {
        let names = MetricOwners::default();
        let (mut total, mut weights) = (0.0, 0.0);
        for _ in 0..1000 {
            // A name may be given twice in one answer.
            let given = vec![metric("x", -LARGEST, LARGEST), metric("x", -LARGEST, LARGEST)];
            for m in names.checked(&reporter("a", MetricOrigin::Scores), given).unwrap() {
                total += m.value * m.weight;
                weights += m.weight;
            }
        }
        assert!((total / weights / -LARGEST - 1.0_f64).abs() < 1e-9);
    }

    #[test]
    fn some_names_are_for_algorithms_alone() {
        let names = MetricOwners::default();
        let said = |name, of| names.checked(&reporter("a", of), vec![metric(name, 1.0, 1.0)]).err();
        for (name, allowed) in [
            ("entropy", [MetricOrigin::Completions].as_slice()),
            ("rollout/staleness/max", &[]),
            ("sampling/importance_sampling_ratio/mean", &[MetricOrigin::Completions]),
            ("reward", &[MetricOrigin::Completions, MetricOrigin::Pairs]),
            ("episode", &[MetricOrigin::Completions, MetricOrigin::Pairs]),
            ("kl", &[MetricOrigin::Completions, MetricOrigin::Pairs]),
            ("objective/kl", &[MetricOrigin::Completions, MetricOrigin::Pairs]),
            ("rewards/accuracies", &[MetricOrigin::Completions, MetricOrigin::Pairs]),
            ("policy/approxkl_avg", &[MetricOrigin::Completions, MetricOrigin::Pairs]),
            ("a/kl", &[MetricOrigin::Completions, MetricOrigin::Pairs, MetricOrigin::Scores]),
        ] {
            for of in [MetricOrigin::Completions, MetricOrigin::Pairs, MetricOrigin::Scores] {
                let refused = said(name, of).is_some_and(|said| said.contains("reserved"));
                assert_eq!(refused, !allowed.contains(&of), "{name} {of:?}");
            }
        }
    }

    #[test]
    fn a_version_that_is_only_tried_takes_no_names() {
        let names = MetricOwners::default();
        let many = || (0..256).map(|i| metric(&i.to_string(), 0.0, 0.0)).collect::<Vec<_>>();
        names.checked(&Reporter { in_run: false, ..reporter("a", MetricOrigin::Scores) }, many()).unwrap();
        assert_eq!(names.reported(), [""; 0]);
        names.checked(&reporter("a", MetricOrigin::Scores), vec![metric("x", 0.0, 0.0)]).unwrap();
        names.checked(&reporter("b", MetricOrigin::Scores), vec![metric("0", 0.0, 0.0)]).unwrap();
    }

    /// Returns the names of the host's metrics that occur as string literals in a Rust source, with `x` for inserted values, and the number
    /// of metrics whose name is made elsewhere.
    fn named_in(source: &str) -> (Vec<String>, usize) {
        let code = source.split("#[cfg(test)]").next().unwrap();
        let (mut found, mut unnamed) = (Vec::new(), 0);
        for making in ["Metric::mean(", "Metric::new("] {
            for rest in code.split(making).skip(1) {
                let rest = rest.trim_start().trim_start_matches("format!(");
                match rest.strip_prefix('"').and_then(|rest| rest.split('"').next()) {
                    Some(text) => {
                        let parts = text.split(['{', '}']).enumerate();
                        found.push(parts.map(|(i, part)| if i % 2 == 0 { part } else { "x" }).collect());
                    }
                    None => unnamed += 1,
                }
            }
        }
        (found, unnamed)
    }

    fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.extension().is_some_and(|end| end == "rs") {
                into.push(path);
            }
        }
    }

    #[test]
    fn every_name_that_the_host_reports_is_reserved() {
        let (mut files, train) = (Vec::new(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/src"));
        sources(&train, &mut files);
        let mut names = Vec::new();
        // Names that are made elsewhere than the metric. An evaluation's names are those of a step.
        let made = [
            (
                "learner/training_state.rs",
                1,
                ["grad_norm", "learning_rate", "critic_grad_norm", "critic_learning_rate"].as_slice(),
            ),
            ("learner/columns.rs", 1, &["sampling/sampling_logp_difference/mean"]),
            ("pass_at_k.rs", 2, &["pass@1", "pass@1/stderr", "maj@4", "maj@4/stderr", "rewards/x/stderr"]),
            ("step_metrics.rs", 1, &["perf/throughput", "perf/rollout_throughput"]),
            ("step.rs", 1, &["perf/peak_memory_mb", "perf/peak_device_memory_mb"]),
            ("journal/mod.rs", 1, &["eval_x", "eps", "lr"]),
        ];
        for file in files {
            let (found, unnamed) = named_in(&fs::read_to_string(&file).unwrap());
            names.extend(found);
            let known = made.iter().find(|(inside, ..)| file.strip_prefix(&train) == Ok(Path::new(inside)));
            assert_eq!(unnamed, known.map_or(0, |(_, count, _)| *count), "{}: what are their names?", file.display());
            names.extend(known.into_iter().flat_map(|(_, _, own)| own.iter().map(|name| (*name).to_owned())));
        }
        assert!(names.len() > 40 && names.contains(&"rewards/x/mean".to_owned()), "{names:?}");
        for name in names {
            assert!(is_reserved(&name, MetricOrigin::Scores), "{name} is the host's");
        }
    }
}
