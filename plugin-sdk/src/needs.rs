//! The inputs that a plugin reads. The host sends no others.

use crate::columns;
use std::fmt::{Debug, Formatter};
use std::ops::{BitOr, BitOrAssign};

/// A set of names: columns for an algorithm, parts of a batch for a reward.
///
/// ```
/// use rlhost_plugin_sdk::Needs;
///
/// let mut needs = Needs::REF_LOGP | Needs::ENTROPY;
/// needs |= Needs::column("advantage");
/// assert!(needs.has("entropy") && needs.has("advantage") && !needs.has("value"));
/// assert_eq!(Needs::column("ref_logp"), Needs::REF_LOGP);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Bit set of the names in [`KNOWN`], by index.
    known: u32,
    /// All others, sorted.
    others: Vec<String>,
}

macro_rules! known {
    ($($(#[$meta:meta])* $constant:ident = $name:expr;)+) => {
        /// The names that have a constant.
        const KNOWN: &[&str] = &[$($name),+];

        impl Needs {
            $($(#[$meta])* pub const $constant: Self = Self::known($name);)+
        }
    };
}

known! {
    /// Needs, for a reward, the prompts' texts.
    PROMPT_TEXT = "prompt_text";
    /// Needs, for a reward, the completions' texts.
    COMPLETION_TEXT = "completion_text";
    /// Needs, for a reward, the completions' tokens.
    TOKEN_IDS = "token_ids";
    /// Needs, for a reward or an environment, the dataset's columns.
    DATASET_COLUMNS = "dataset_columns";
    /// Needs the column [`columns::LOGP`].
    LOGP = columns::LOGP;
    /// Needs the column [`columns::OLD_LOGP`].
    OLD_LOGP = columns::OLD_LOGP;
    /// Needs the column [`columns::REF_LOGP`].
    REF_LOGP = columns::REF_LOGP;
    /// Needs the column [`columns::TEACHER_LOGP`].
    TEACHER_LOGP = columns::TEACHER_LOGP;
    /// Needs the column [`columns::HAS_TEACHER_PROMPT`].
    HAS_TEACHER_PROMPT = columns::HAS_TEACHER_PROMPT;
    /// Needs the column [`columns::SAMPLING_LOGP`].
    SAMPLING_LOGP = columns::SAMPLING_LOGP;
    /// Needs the column [`columns::ENTROPY`].
    ENTROPY = columns::ENTROPY;
    /// Needs the column [`columns::MEAN_LOGITS`].
    MEAN_LOGITS = columns::MEAN_LOGITS;
    /// Needs the column [`columns::LOG_SUM_SQUARES`].
    LOG_SUM_SQUARES = columns::LOG_SUM_SQUARES;
    /// Needs the column [`columns::PROMPT_LOGP`].
    PROMPT_LOGP = columns::PROMPT_LOGP;
    /// Needs the column [`columns::VALUE`].
    VALUE = columns::VALUE;
    /// Needs the column [`columns::OLD_VALUE`].
    OLD_VALUE = columns::OLD_VALUE;
    /// Needs the column [`columns::SEQUENCE_VALUE`].
    SEQUENCE_VALUE = columns::SEQUENCE_VALUE;
    /// Needs the column [`columns::LABEL`].
    LABEL = columns::LABEL;
    /// Needs the column [`columns::MARGIN`].
    MARGIN = columns::MARGIN;
    /// Needs the column [`columns::FINISHED`].
    FINISHED = columns::FINISHED;
    /// Needs the column [`columns::MICRO_BATCH_LABEL`].
    MICRO_BATCH_LABEL = columns::MICRO_BATCH_LABEL;
    /// Needs the column [`columns::MISMATCHED_LOGP`].
    MISMATCHED_LOGP = columns::MISMATCHED_LOGP;
    /// Needs the column [`columns::MISMATCHED_REF_LOGP`].
    MISMATCHED_REF_LOGP = columns::MISMATCHED_REF_LOGP;
    /// Needs the column [`columns::TURN_REWARD`].
    TURN_REWARD = columns::TURN_REWARD;
    /// Needs the column [`columns::ADVANTAGE`].
    ADVANTAGE = columns::ADVANTAGE;
    /// Needs the column [`columns::RETURN`].
    RETURN = columns::RETURN;
}

impl Needs {
    /// Returns an empty set.
    #[must_use]
    pub const fn empty() -> Self {
        Self { known: 0, others: Vec::new() }
    }

    /// Returns a set of one column with this name.
    #[must_use]
    pub fn column(name: &str) -> Self {
        match KNOWN.iter().position(|known| *known == name) {
            Some(place) => Self { known: 1 << place, others: Vec::new() },
            None => Self { known: 0, others: vec![name.to_owned()] },
        }
    }

    /// Returns whether a name is in the set.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match KNOWN.iter().position(|known| *known == name) {
            Some(place) => self.known & (1 << place) != 0,
            None => self.others.iter().any(|other| other == name),
        }
    }

    /// Returns the names, in a fixed order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let known = KNOWN.iter().enumerate().filter(|(place, _)| self.known & (1 << place) != 0);
        known.map(|(_, name)| (*name).to_owned()).chain(self.others.iter().cloned()).collect()
    }

    /// Returns the set of one name, which must be in [`KNOWN`].
    const fn known(name: &str) -> Self {
        let mut place = 0;
        while !equal(KNOWN[place], name) {
            place += 1;
        }
        Self { known: 1 << place, others: Vec::new() }
    }
}

const fn equal(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

impl BitOr for Needs {
    type Output = Self;

    fn bitor(mut self, other: Self) -> Self {
        self |= other;
        self
    }
}

impl BitOrAssign for Needs {
    fn bitor_assign(&mut self, other: Self) {
        self.known |= other.known;
        for name in other.others {
            if let Err(place) = self.others.binary_search(&name) {
                self.others.insert(place, name);
            }
        }
    }
}

impl Debug for Needs {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_constant_is_its_own_name() {
        for name in KNOWN {
            assert_eq!(Needs::known(name).names(), [*name]);
            assert_eq!(Needs::column(name), Needs::known(name));
        }
        assert_eq!(Needs::RETURN.names(), ["return"]);
        assert_eq!(Needs::PROMPT_LOGP.names(), ["prompt_logp"]);
    }

    #[test]
    fn sets_unite() {
        let both = Needs::column("surprise") | Needs::VALUE | Needs::empty() | Needs::VALUE;
        assert_eq!(both.names(), ["value", "surprise"]);
        let more = both.clone() | Needs::column("doubt") | Needs::column("surprise");
        assert_eq!(more.names(), ["value", "doubt", "surprise"]);
        assert_eq!(both, Needs::VALUE | Needs::column("surprise"));
        assert!(both.has("surprise") && !both.has("old_value") && !both.has("surprise2"));
        assert_eq!(format!("{both:?}"), r#"{"value", "surprise"}"#);
    }
}
