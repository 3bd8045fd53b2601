//! An agent's report on its episode: the last line of its output.

use crate::config::{json, printable};
use crate::episode::sum;
use crate::plugin::LARGEST_SCORE;
use serde_json::{Map, Value};

/// Maximum length of a text in an error, in bytes.
const SHOWN: usize = 200;

/// Maximum number of metrics, and maximum length of a metric's name in bytes.
const METRICS: (usize, usize) = (64, 64);

/// Names of the agents' metrics that the run computes itself.
pub(super) const OWN: [&str; 3] = ["calls", "branches", "reread_tokens"];

/// Checks a driver's report, of an episode with this number of calls once it has ended.
///
/// # Errors
/// As [`AgentReport::parse`] and [`AgentReport::of_calls`].
pub(super) fn check(report: &Map<String, Value>, calls: Option<usize>) -> Result<(), String> {
    let report = AgentReport::from_map(report)?;
    calls.map_or(Ok(()), |calls| report.of_calls(calls).map(drop))
}

/// Report of an agent on its episode.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AgentReport {
    /// Reward of the whole episode.
    pub reward: Option<f32>,
    /// Rewards of the calls instead, in the order in which the calls began.
    pub turn_rewards: Option<Vec<Option<f32>>>,
    /// Metrics that the agent reports.
    pub metrics: Vec<(String, f64)>,
}

impl AgentReport {
    /// Parses the last line of an output, if it is an object with a reward or metrics. Any other line is an empty report.
    ///
    /// # Errors
    /// The fault, if the line looks like a report but is not valid.
    pub(super) fn parse(output: &str) -> Result<Self, String> {
        let Some(line) = output.lines().map(str::trim).rfind(|line| !line.is_empty()).filter(|line| line.starts_with('{')) else {
            return Ok(Self::default());
        };
        let wrong = |detail: String| format!("the agent's last line {detail}: {}", printable(line, SHOWN));
        let all = json::object(line).map_err(|e| wrong(format!("is no JSON ({e})")))?;
        Self::from_map(&all).map_err(wrong)
    }

    fn from_map(all: &Map<String, Value>) -> Result<Self, String> {
        let reward = all.get("reward").map_or(Ok(None), score)?;
        let turn_rewards = match all.get("turn_rewards") {
            None | Some(Value::Null) => None,
            Some(Value::Array(given)) => Some(given.iter().map(score).collect::<Result<Vec<_>, _>>()?),
            Some(_) => return Err("has turn_rewards that are no list".into()),
        };
        if reward.is_some() && turn_rewards.is_some() {
            return Err("has both a reward and turn_rewards, whose sum is the reward; leave one out".into());
        }
        let given = match all.get("metrics") {
            None | Some(Value::Null) => &Map::new(),
            Some(Value::Object(metrics)) => metrics,
            Some(_) => return Err("has metrics that are no object of numbers".into()),
        };
        if given.len() > METRICS.0 {
            return Err(format!("has {} metrics; at most {} are kept", given.len(), METRICS.0));
        }
        let metric = |(name, value): (&String, &Value)| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./@".contains(c);
            let sound = !name.is_empty() && name.len() <= METRICS.1 && name.chars().all(is_plain);
            if OWN.contains(&name.as_str()) {
                return Err(format!("has the metric {name}, which the run has itself; give it another name"));
            }
            match number(value).filter(|value| sound && value.is_finite()) {
                Some(value) => Ok((name.clone(), value)),
                None => Err(format!(
                    "has the metric {}; a name has letters, digits, _, -, ., / and @, and a value is a number",
                    printable(name, METRICS.1)
                )),
            }
        };
        Ok(Self { reward, turn_rewards, metrics: given.iter().map(metric).collect::<Result<_, _>>()? })
    }

    /// Returns the reward of each of an episode's `calls`.
    ///
    /// # Errors
    /// If their number differs, or their sum is too large.
    pub(super) fn of_calls(&self, calls: usize) -> Result<Vec<Option<f32>>, String> {
        let Some(rewards) = &self.turn_rewards else {
            // The reward is of the whole episode, so it belongs to the last call.
            let mut rewards = vec![None; calls];
            if let Some(last) = rewards.last_mut() {
                *last = self.reward;
            }
            return Ok(rewards);
        };
        if rewards.len() != calls {
            return Err(format!("has {} turn_rewards, but {calls} calls were answered", rewards.len()));
        }
        match sum(rewards).filter(|sum| sum.abs() > LARGEST_SCORE) {
            Some(sum) => Err(format!("has turn_rewards with the sum {sum:e}; the limit is {LARGEST_SCORE:e} either way")),
            None => Ok(rewards.clone()),
        }
    }
}

/// Parses a reward; `null` is none.
fn score(given: &Value) -> Result<Option<f32>, String> {
    let is_score = |reward: &f64| (*reward as f32).abs() <= LARGEST_SCORE;
    match number(given).filter(is_score) {
        Some(reward) => Ok(Some(reward as f32)),
        None if given.is_null() => Ok(None),
        None => Err(format!("has a reward that is no number of at most {LARGEST_SCORE:e} either way")),
    }
}

/// Parses a number; booleans are 1 and 0.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or(value.as_bool().map(|value| f64::from(u8::from(value))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_report_if_it_is_an_object() {
        let said = |output: &str| AgentReport::parse(output).unwrap();
        assert_eq!(said(""), AgentReport::default());
        assert_eq!(said("thinking\n{\"reward\": 1}\nbye"), AgentReport::default());
        assert_eq!(said("thinking\n{\"reward\": 0.5}\n\n").reward, Some(0.5));
        assert_eq!(said("{\"reward\": true}").reward, Some(1.0));
        let both = said("{\"reward\": null, \"metrics\": {\"a/b\": 2, \"won\": true}}");
        assert_eq!((both.reward, both.metrics), (None, vec![("a/b".into(), 2.0), ("won".into(), 1.0)]));
    }

    #[test]
    fn each_call_may_have_a_reward_of_its_own() {
        let of = |line: &str, calls: usize| AgentReport::parse(line).unwrap().of_calls(calls);
        assert_eq!(of("{\"turn_rewards\": [0.5, null, true]}", 3), Ok(vec![Some(0.5), None, Some(1.0)]));
        assert_eq!(of("{\"reward\": 2}", 3), Ok(vec![None, None, Some(2.0)]));
        assert_eq!(of("{}", 2), Ok(vec![None; 2]));
        assert!(of("{\"turn_rewards\": [1]}", 2).unwrap_err().contains("has 1 turn_rewards, but 2 calls were answered"));
        assert!(of("{\"turn_rewards\": [9e11, 9e11]}", 2).unwrap_err().contains("the sum 1.8e12"));
    }

    #[test]
    fn what_is_no_report_is_refused_with_the_line() {
        for (line, part) in [
            ("{\"turn_rewards\": 1}", "turn_rewards that are no list"),
            ("{\"turn_rewards\": [1, \"a\"]}", "no number of at most 1e12"),
            ("{\"reward\": 1, \"turn_rewards\": [1]}", "both a reward and turn_rewards"),
            ("{\"reward\": 1e38}", "no number of at most 1e12"),
            ("{\"reward\": NaN}", "is no JSON"),
            ("{\"reward\": \"1\"}", "no number"),
            ("{\"reward\": 1", "is no JSON"),
            ("{\"metrics\": {\"calls\": 1}}", "which the run has itself"),
            ("{\"metrics\": [1]}", "no object of numbers"),
            ("{\"metrics\": {\"a b\": 1}}", "the metric a b"),
            ("{\"metrics\": {\"a\": \"x\"}}", "a value is a number"),
        ] {
            let refused = AgentReport::parse(line).unwrap_err();
            assert!(refused.contains(part) && refused.contains("the agent's last line"), "{line}: {refused}");
        }
    }
}
