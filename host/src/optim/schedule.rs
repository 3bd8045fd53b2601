//! Computes the learning rate of each step.

use crate::config::LrSchedule;

/// A schedule with its length, with the shapes of transformers' `get_scheduler`.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Shape.
    pub kind: LrSchedule,
    /// Highest learning rate.
    pub peak: f64,
    /// Warmup steps, which rise linearly from zero.
    pub warmup: u64,
    /// Steps in the run.
    pub total: u64,
}

impl Schedule {
    /// Returns the learning rate of the update after `step` finished updates.
    pub fn at(&self, step: u64) -> f64 {
        if self.kind == LrSchedule::Constant {
            return self.peak;
        }
        if step < self.warmup {
            return self.peak * step as f64 / self.warmup.max(1) as f64;
        }
        let left = self.total.saturating_sub(self.warmup).max(1) as f64;
        let progress = ((step - self.warmup) as f64 / left).min(1.0);
        match self.kind {
            LrSchedule::Linear => self.peak * (1.0 - progress),
            LrSchedule::Cosine => self.peak * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
            LrSchedule::Constant | LrSchedule::ConstantWithWarmup => self.peak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_their_known_points() {
        let s = |kind| Schedule { kind, peak: 2.0, warmup: 4, total: 12 };
        let linear = s(LrSchedule::Linear);
        assert_eq!([0, 2, 4, 8, 12, 99].map(|i| linear.at(i)), [0.0, 1.0, 2.0, 1.0, 0.0, 0.0]);
        let cosine = s(LrSchedule::Cosine);
        assert!((cosine.at(8) - 1.0).abs() < 1e-12 && (cosine.at(6) - 2.0 * 0.853_553_390_593).abs() < 1e-9);
        assert_eq!(s(LrSchedule::Constant).at(0), 2.0);
        assert_eq!(s(LrSchedule::ConstantWithWarmup).at(1), 0.5);
        assert_eq!(s(LrSchedule::ConstantWithWarmup).at(12), 2.0);
    }
}
