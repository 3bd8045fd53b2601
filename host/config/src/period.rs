//! A period in steps, or as a fraction of the run.

use super::shortest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// A number of steps, or, below 1, a fraction of the run (as transformers reads its `..._steps`).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Period(f64);

impl Period {
    /// Creates a period of this many steps.
    pub const fn from_steps(steps: u32) -> Self {
        Self(steps as f64)
    }

    /// Returns the error in the period, if it is invalid.
    pub(super) fn fault(self) -> Option<String> {
        let fine = self.0 > 0.0 && (self.0 < 1.0 || self.0.fract() == 0.0) && self.0 <= f64::from(u32::MAX);
        let right = "give a number of steps, at least 1, or a fraction of the run between 0 and 1";
        (!fine).then(|| format!("is {}; {right}", shortest(self.0)))
    }

    /// Returns the period in steps, for a run of `total` steps.
    pub fn in_steps(self, total: u64) -> u64 {
        let steps = if self.0 < 1.0 { (self.0 * total as f64).ceil() } else { self.0 };
        (steps as u64).max(1)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 < 1.0 { serializer.serialize_f64(self.0) } else { serializer.serialize_u64(self.0 as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_of_the_run_and_numbers_are_steps() {
        assert_eq!([0.25, 0.3, 1e-9, 1.0, 7.0].map(|p| Period(p).in_steps(10)), [3, 3, 1, 1, 7]);
        assert!([0.0, -1.0, 1.5, f64::NAN, f64::INFINITY].iter().all(|p| Period(*p).fault().is_some()));
        assert!(Period(0.0).fault().is_some_and(|fault| fault.starts_with("is 0; ")));
        assert!(Period(1e300).fault().is_some_and(|fault| fault.starts_with("is 1e300; ")));
        assert_eq!(serde_json::to_string(&[Period(0.5), Period(5.0)]).unwrap(), "[0.5,5]");
    }
}
