//! Logs errors of rewards: in full when they are new, in one line when they repeat.

use std::collections::BTreeMap;

/// The newest error of each reward, with its step.
#[derive(Default)]
pub(super) struct RewardErrors(BTreeMap<String, (u64, String)>);

impl RewardErrors {
    /// Returns the text to log for an error: all of it with its traceback, or only its last line if the reward's previous error differs
    /// just in numbers.
    pub(super) fn describe(&mut self, reward: &str, error: &str, step: u64) -> String {
        let without_numbers = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
        let previous = self.0.insert(reward.to_owned(), (step, error.to_owned()));
        match previous {
            Some((before, previous)) if without_numbers(&previous) == without_numbers(error) && error.trim().contains('\n') => {
                let last = error.trim().lines().next_back().unwrap_or_default().trim();
                format!("{reward} failed as at step {before}: {last}")
            }
            _ => error.to_owned(),
        }
    }
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
        assert_eq!(errors.describe("a", &first, 1), first);
        assert_eq!(errors.describe("a", &traceback(3, "KeyError: 'answer 7'"), 2), "a failed as at step 1: KeyError: 'answer 7'");
        assert_eq!(errors.describe("b", &first, 2), first);
        let other = traceback(9, "ZeroDivisionError: division by zero");
        assert_eq!(errors.describe("a", &other, 3), other);
        assert_eq!([errors.describe("c", "trap", 3), errors.describe("c", "trap", 4)], ["trap"; 2]);
    }
}
