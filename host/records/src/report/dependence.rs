//! Determines which plugins a metric depends on. After one of them changes, the same number means something else.

/// Metrics that depend on all rewards and their weights.
const OF_REWARDS: [&str; 6] =
    ["reward", "reward_std", "frac_reward_zero_std", "objective/scores", "objective/rlhf_reward", "objective/scores_margin"];
/// Suffixes of the metrics of a reward's own scores, and of those that also depend on the other rewards.
const OF_ONE: [&str; 4] = ["/mean", "/std", "/stderr", "/varies"];
const AMONG_OTHERS: [&str; 2] = ["/alone", "/share"];

/// The plugins that a metric depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Dependence<'a> {
    Reward(&'a str),
    Rewards,
    Algorithm,
}

impl<'a> Dependence<'a> {
    /// Returns the dependence of a metric of this name.
    pub(super) fn new(metric: &'a str) -> Self {
        let metric = metric.strip_prefix("eval_").unwrap_or(metric);
        let own = metric.strip_suffix("/stderr").unwrap_or(metric);
        if OF_REWARDS.contains(&own) {
            return Self::Rewards;
        }
        let of_scores = metric.strip_prefix("rewards/");
        let ends = |ends: &[&str]| ends.iter().find_map(|end| of_scores?.strip_suffix(end));
        match (ends(&OF_ONE), ends(&AMONG_OTHERS)) {
            (Some(reward), _) => Self::Reward(reward),
            (None, Some(_)) => Self::Rewards,
            (None, None) => Self::Algorithm,
        }
    }

    /// Returns whether a metric's meaning changes after a change of a plugin, which may be the algorithm, or of the weight of its scores.
    pub(super) fn is_affected_by(self, plugin: &str, is_algorithm: bool, of_weight: bool) -> bool {
        match self {
            Self::Reward(name) => plugin == name && !of_weight,
            Self::Rewards => !is_algorithm,
            Self::Algorithm => is_algorithm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_of_one_reward_of_all_or_of_the_algorithm() {
        let of = |metric: &str| {
            let dependence = Dependence::new(metric);
            [("a", false, false), ("a", false, true), ("b", false, false), ("grpo", true, false)]
                .map(|(plugin, is_algorithm, of_weight)| dependence.is_affected_by(plugin, is_algorithm, of_weight))
        };
        for metric in ["rewards/a/mean", "eval_rewards/a/mean", "eval_rewards/a/stderr", "rewards/a/varies"] {
            assert_eq!(of(metric), [true, false, false, false], "{metric}");
        }
        for metric in ["reward", "eval_reward/stderr", "rewards/a/alone"] {
            assert_eq!(of(metric), [true, true, true, false], "{metric}");
        }
        assert_eq!(of("kl"), [false, false, false, true]);
    }
}
