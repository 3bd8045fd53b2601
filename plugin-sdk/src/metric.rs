//! Metrics that a plugin reports. The host averages them exactly over micro-batches, ranks and the logging window.

pub use crate::bindings::types::{Metric, Reduction};

impl Metric {
    fn new(name: impl Into<String>, value: f64, weight: f64, reduction: Reduction) -> Self {
        Self { name: name.into(), value, weight, reduction }
    }

    /// Creates a mean over `weight` samples or tokens.
    pub fn mean(name: impl Into<String>, value: f64, weight: f64) -> Self {
        Self::new(name, value, weight, Reduction::Mean)
    }

    /// Creates the mean of an iterator's values, weighted by their number; `None` if there are none.
    pub fn mean_of(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (mut sum, mut count) = (0.0, 0.0);
        for v in values {
            sum += v;
            count += 1.0;
        }
        (count > 0.0).then(|| Self::mean(name, sum / count, count))
    }

    /// Creates the mean of `count` values that sum to `sum`. Without values, the mean is zero, as TRL logs it if a step has none, with a
    /// weight too small to affect the values of other micro-batches.
    pub fn ratio(name: impl Into<String>, sum: f64, count: f64) -> Self {
        if count > 0.0 { Self::mean(name, sum / count, count) } else { Self::mean(name, 0.0, f64::MIN_POSITIVE) }
    }

    /// Creates a sum.
    pub fn sum(name: impl Into<String>, value: f64) -> Self {
        Self::new(name, value, 1.0, Reduction::Sum)
    }

    /// Creates a minimum.
    pub fn min(name: impl Into<String>, value: f64) -> Self {
        Self::new(name, value, 1.0, Reduction::Min)
    }

    /// Creates a maximum.
    pub fn max(name: impl Into<String>, value: f64) -> Self {
        Self::new(name, value, 1.0, Reduction::Max)
    }
}
