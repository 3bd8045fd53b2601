//! The inputs that a plugin reads, by name.

use super::Role;
use super::columns::{self, DivergenceColumn};
use super::error::LONGEST_TEXT;
use crate::config::{did_you_mean, printable};
use std::collections::BTreeSet;

/// The names of the inputs that a plugin reads; see [`columns`]. The host computes and sends only these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeededInputs(BTreeSet<String>);

impl<Name: Into<String>> FromIterator<Name> for NeededInputs {
    fn from_iter<Names: IntoIterator<Item = Name>>(names: Names) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

impl NeededInputs {
    /// Returns whether the plugin reads the input of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Returns all names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns the needs without the input of this name.
    #[must_use]
    pub fn without(&self, name: &str) -> Self {
        self.names().filter(|own| *own != name).collect()
    }

    /// Returns the name of the teacher divergence that the plugin reads, and which it is.
    pub fn divergence(&self) -> Option<(&str, DivergenceColumn)> {
        self.names().find_map(|name| Some((name, columns::divergence_of(name)?)))
    }

    /// Returns the number of the teacher's likeliest tokens at which distributions are compared, if they are compared at those.
    pub fn teacher_tokens(&self) -> Option<usize> {
        let (_, DivergenceColumn { top, .. }) = self.divergence()?;
        top.filter(|top| top.of_teacher).map(|top| top.count)
    }

    /// Returns whether the plugin reads the teacher's predictions.
    pub fn has_teacher(&self) -> bool {
        self.has(columns::TEACHER_LOGP) || self.divergence().is_some()
    }

    /// Checks the names for a plugin in this role; an algorithm also reads its own `estimates`. The error is a sentence about the plugin.
    pub(super) fn check(&self, role: Role, estimates: &[String]) -> Result<(), String> {
        let known: Vec<&str> = match role {
            Role::Reward | Role::Environment => columns::REWARD_INPUTS.to_vec(),
            _ => columns::HOST_COLUMNS.iter().map(|known| known.name).collect(),
        };
        let own = estimates.iter().map(String::as_str);
        let is_known = |name: &str| match role {
            Role::Reward | Role::Environment => known.contains(&name),
            _ => columns::HostColumn::find(name).is_some(),
        };
        let Some(unknown) = self.names().find(|name| !is_known(name) && !own.clone().any(|own| own == *name)) else {
            return self.check_divergence();
        };
        if unknown.split('/').next() == Some(columns::TEACHER_DIVERGENCE) && !matches!(role, Role::Reward | Role::Environment) {
            let text = format!(
                "it needs {unknown:?}, which names no divergence: add a number from 0 (forward) to 1 (reverse), as in \"{0}/0.5\", and \
                 at most how many likely tokens are compared, as in \"{0}/0.5/top100\"",
                columns::TEACHER_DIVERGENCE
            );
            return Err(printable(&text, LONGEST_TEXT));
        }
        let meant = did_you_mean(unknown, known.iter().copied().chain(own));
        let own = match estimates {
            [] => String::new(),
            some => format!(", and it estimates {}", some.join(", ")),
        };
        let what = if matches!(role, Role::Reward | Role::Environment) { "input" } else { "column" };
        let text = format!("it needs {unknown:?}, which is no {what}; there are {}{own}{meant}", known.join(", "));
        Err(printable(&text, LONGEST_TEXT))
    }
}

impl NeededInputs {
    /// Rejects several divergences, since each would take as long as the first.
    fn check_divergence(&self) -> Result<(), String> {
        let all: Vec<&str> = self.names().filter(|name| columns::divergence_of(name).is_some()).collect();
        match all[..] {
            [first, second, ..] => {
                Err(printable(&format!("it needs {first:?} and {second:?}; a loss has one divergence"), LONGEST_TEXT))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_need_is_named_with_the_nearest_known_one() {
        let check = |role, names: &[&str]| names.iter().copied().collect::<NeededInputs>().check(role, &["advantage".to_owned()]);
        assert_eq!(check(Role::Algorithm, &["logp", "ref_logp", "micro_batch/label", "turn_reward", "advantage"]), Ok(()));
        let wrong = check(Role::Algorithm, &["ref_lopg"]).unwrap_err();
        assert!(wrong.starts_with("it needs \"ref_lopg\", which is no column; there are logp, old_logp, "), "{wrong}");
        assert!(wrong.ends_with("and it estimates advantage; did you mean \"ref_logp\"?"), "{wrong}");
        assert_eq!(check(Role::Algorithm, &["teacher_logp", "teacher_divergence/0.25"]), Ok(()));
        let vague = check(Role::Algorithm, &["teacher_divergence"]).unwrap_err();
        assert!(vague.contains("as in \"teacher_divergence/0.5\""), "{vague}");
        let two = check(Role::Algorithm, &["teacher_divergence/0", "teacher_divergence/1"]).unwrap_err();
        assert!(two.ends_with("a loss has one divergence"), "{two}");
        assert!(check(Role::Algorithm, &["prompt_text"]).unwrap_err().contains("\"prompt_text\""));
        assert_eq!(check(Role::Reward, &["prompt_text", "completion_text", "token_ids", "dataset_columns"]), Ok(()));
        let wrong = check(Role::Reward, &["logp"]).unwrap_err();
        assert!(wrong.contains("no input") && wrong.contains("there are prompt_text"), "{wrong}");
        assert!(check(Role::Algorithm, &["\u{1b}[2J"]).is_err_and(|wrong| !wrong.contains('\u{1b}')));
    }

    #[test]
    fn a_name_can_be_left_out() {
        let needs: NeededInputs = ["logp", "ref_logp"].into_iter().collect();
        assert!(needs.has("ref_logp") && !needs.without("ref_logp").has("ref_logp"));
        assert_eq!(needs.without("ref_logp").names().collect::<Vec<_>>(), ["logp"]);
    }
}
