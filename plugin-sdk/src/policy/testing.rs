//! Random numbers and comparisons for an algorithm's own tests.

use crate::Metric;

/// A reproducible random number generator.
pub struct TestNoise(pub u64);

impl TestNoise {
    /// Returns a number from 0 to 1.
    pub fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Returns a number between -1 and 1.
    pub fn draw(&mut self) -> f32 {
        2.0 * self.unit() - 1.0
    }

    /// Returns numbers up to `width` away from `middle`.
    pub fn column(&mut self, n: usize, middle: f32, width: f32) -> Vec<f32> {
        (0..n).map(|_| middle + width * self.draw()).collect()
    }
}

/// Asserts that a column is as expected: each entry to 1e-5 relative or, where terms cancel, to 1e-6 of the column's largest entry.
///
/// # Panics
/// If it is not.
pub fn close(what: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let greatest = want.iter().fold(0.0f64, |most, w| most.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let allowed = (1e-5 * w.abs()).max(1e-6 * greatest);
        assert!((f64::from(*g) - w).abs() <= allowed, "{what}: entry {i} is {g}, not {w}");
    }
}

/// Returns the value and weight of the metric with this name.
#[must_use]
pub fn find_metric(metrics: &[Metric], name: &str) -> Option<(f64, f64)> {
    metrics.iter().find(|m| m.name == name).map(|m| (m.value, m.weight))
}
