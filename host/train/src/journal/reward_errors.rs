//! Logs errors of rewards: in full when they are new, rarely and in one line when they repeat.

use std::collections::BTreeMap;

/// The newest error of each reward.
#[derive(Default)]
pub(super) struct RewardErrors(BTreeMap<String, RepeatedError>);

/// An error that a reward may return again.
struct RepeatedError {
    /// The error without its numbers.
    text: String,
    /// Number of the first step that had it.
    first: u64,
    /// How often it came.
    times: u64,
}

impl RewardErrors {
    /// Returns the text to log for an error after this many completed steps: all of it with its traceback, or, if the reward's previous
    /// error differs just in numbers, a line when it has come 2, 4, 8, ... times, and `None` in between.
    pub(super) fn describe(&mut self, reward: &str, error: &str, steps: u64) -> Option<String> {
        let (text, step) = (without_numbers(error), steps + 1);
        let Some(repeated) = self.0.get_mut(reward).filter(|previous| previous.text == text) else {
            self.0.insert(reward.to_owned(), RepeatedError { text, first: step, times: 1 });
            return Some(error.to_owned());
        };
        repeated.times += 1;
        let last = error.trim().lines().next_back().unwrap_or_default().trim();
        // An error of one line begins with the plugin and the step.
        let cause = last.split_once(&format!(" in step {step}: ")).map_or(last, |(_, cause)| cause);
        let RepeatedError { first, times, .. } = repeated;
        times
            .is_power_of_two()
            .then(|| format!("{reward} failed again in step {step}, as in step {first} ({times} times so far): {cause}"))
    }
}

fn without_numbers(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceback_is_logged_in_full_once() {
        let traceback =
            |line: u32, error: &str| format!("my_reward.py failed: Traceback (most recent call last):\n  line {line}\n{error}");
        let mut errors = RewardErrors::default();
        let first = traceback(3, "KeyError: 'answer 12'");
        assert_eq!(errors.describe("a", &first, 1).as_ref(), Some(&first));
        let again = errors.describe("a", &traceback(3, "KeyError: 'answer 7'"), 2);
        assert_eq!(again.unwrap(), "a failed again in step 3, as in step 2 (2 times so far): KeyError: 'answer 7'");
        assert_eq!(errors.describe("b", &first, 2).as_ref(), Some(&first));
        let other = traceback(9, "ZeroDivisionError: division by zero");
        assert_eq!(errors.describe("a", &other, 3).as_ref(), Some(&other));
    }

    #[test]
    fn an_error_that_goes_on_is_logged_ever_more_rarely_with_its_first_step() {
        let mut errors = RewardErrors::default();
        let mut logged = Vec::new();
        for steps in 1..18 {
            let error = format!("plugin a, score in step {}: ValueError: always broken", steps + 1);
            logged.extend(errors.describe("a", &error, steps));
        }
        let again = |step: u64, times: u64| {
            format!("a failed again in step {step}, as in step 2 ({times} times so far): ValueError: always broken")
        };
        let first = "plugin a, score in step 2: ValueError: always broken".to_owned();
        assert_eq!(logged, [first, again(3, 2), again(5, 4), again(9, 8), again(17, 16)]);
    }
}
