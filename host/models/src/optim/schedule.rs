//! Computes the learning rate of each step.

use crate::config::{CosineMinLrArgs, CosineWarmupMinLrArgs, LrShape, PlateauArgs, RampShape, StableDecayArgs};
use std::f64::consts::PI;

/// A learning-rate schedule and its length. Shapes are those of transformers' `get_scheduler`.
#[derive(Clone, Copy, Debug)]
pub struct LearningRateSchedule {
    /// Shape of the schedule.
    pub shape: LrShape,
    /// Highest learning rate.
    pub peak: f64,
    /// Number of warmup steps, in which the rate rises linearly from zero.
    pub warmup: u64,
    /// Number of steps in the run.
    pub total: u64,
    /// Number of times that evaluations have stopped improving.
    pub plateaus: u32,
}

impl LearningRateSchedule {
    /// Returns why the peak is invalid for this shape, or `None`.
    pub fn fault(&self) -> Option<String> {
        match self.shape {
            LrShape::Polynomial(s) if s.lr_end >= self.peak => {
                Some(format!("lr_end is {:e}; it must be smaller than the learning rate, {:e}", s.lr_end, self.peak))
            }
            LrShape::CosineWithMinLr(CosineMinLrArgs { min_lr, min_lr_rate, .. })
            | LrShape::CosineWarmupWithMinLr(CosineWarmupMinLrArgs { min_lr, min_lr_rate, .. })
                if self.minimum(min_lr, min_lr_rate) > 1.0 =>
            {
                let minimum = self.peak * self.minimum(min_lr, min_lr_rate);
                Some(format!("the minimum is {minimum:e}; it can't be greater than the learning rate, {:e}", self.peak))
            }
            LrShape::WarmupStableDecay(StableDecayArgs { num_decay_steps: Some(steps), .. }) if u64::from(steps) > self.total => {
                Some(format!("num_decay_steps is {steps}, and the run has {} steps", self.total))
            }
            _ => None,
        }
    }

    /// Returns the learning rate of the update that follows `step` finished updates.
    pub fn at(&self, step: u64) -> f64 {
        match self.shape {
            LrShape::Constant => self.peak,
            LrShape::ReduceLrOnPlateau(s) => self.reduced(s),
            LrShape::Polynomial(s) if step >= self.warmup => {
                (self.peak - s.lr_end) * (1.0 - self.progress(step)).powf(s.power) + s.lr_end
            }
            LrShape::WarmupStableDecay(s) => self.peak * self.stable_decay(s, step),
            LrShape::CosineWarmupWithMinLr(s) => {
                let warmed = |from: f64| from + (1.0 - from) * step as f64 / self.warmup.saturating_sub(1).max(1) as f64;
                let first = || (step as f64 + 1.0) / self.warmup.max(1) as f64;
                match step < self.warmup {
                    true => self.peak * s.warmup_lr_rate.map_or_else(first, warmed),
                    // The rate reaches the minimum in the last step instead of after it.
                    false => self.peak * to_minimum(s.num_cycles, self.minimum(s.min_lr, s.min_lr_rate), self.progress(step + 1)),
                }
            }
            _ if step < self.warmup => self.peak * step as f64 / self.warmup.max(1) as f64,
            _ => self.peak * self.after_warmup(step),
        }
    }

    /// Returns the rate as a fraction of the peak, after a linear warmup.
    fn after_warmup(&self, step: u64) -> f64 {
        let progress = self.progress(step);
        match self.shape {
            LrShape::Linear => 1.0 - progress,
            LrShape::Cosine(s) => wave(s.num_cycles, progress),
            LrShape::CosineWithRestarts(_) if progress >= 1.0 => 0.0,
            LrShape::CosineWithRestarts(s) => wave(0.5, (s.num_cycles * progress).fract()),
            LrShape::CosineWithMinLr(s) => to_minimum(s.num_cycles, self.minimum(s.min_lr, s.min_lr_rate), progress),
            LrShape::InverseSqrt(s) => {
                let timescale = s.timescale.map_or_else(|| if self.warmup > 0 { self.warmup } else { 10_000 }, u64::from);
                (1.0 + (step - self.warmup) as f64 / timescale as f64).sqrt().recip()
            }
            _ => 1.0,
        }
    }

    /// Returns the fraction of the time after the warmup that has passed.
    fn progress(&self, step: u64) -> f64 {
        let left = self.total.saturating_sub(self.warmup).max(1) as f64;
        (step.saturating_sub(self.warmup) as f64 / left).min(1.0)
    }

    /// Returns the minimum rate as a fraction of the peak.
    fn minimum(&self, min_lr: Option<f64>, rate: Option<f64>) -> f64 {
        match min_lr {
            Some(min_lr) if self.peak > 0.0 => min_lr / self.peak,
            _ => rate.unwrap_or_default(),
        }
    }

    fn stable_decay(&self, s: StableDecayArgs, step: u64) -> f64 {
        let (step, warmup) = (step as f64, self.warmup as f64);
        let decay = f64::from(s.num_decay_steps.unwrap_or_default());
        let stable = s.num_stable_steps.map_or(self.total as f64 - warmup - decay, f64::from);
        let raised = |factor: f64| (factor * (1.0 - s.min_lr_ratio) + s.min_lr_ratio).max(0.0);
        if step < warmup {
            let progress = step / warmup;
            return raised(match s.warmup_type {
                RampShape::Linear => progress,
                RampShape::Cosine => wave(0.5, 1.0 - progress),
                RampShape::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
            });
        }
        if step < warmup + stable {
            return 1.0;
        }
        if step >= warmup + stable + decay {
            return s.min_lr_ratio;
        }
        let progress = (step - warmup - stable) / decay.max(1.0);
        raised(match s.decay_type {
            RampShape::Linear => 1.0 - progress,
            RampShape::Cosine => wave(s.num_cycles, progress),
            RampShape::OneMinusSqrt => 1.0 - progress.sqrt(),
        })
    }

    fn reduced(&self, s: PlateauArgs) -> f64 {
        let mut rate = self.peak;
        for _ in 0..self.plateaus {
            let lower = (rate * s.factor).max(s.min_lr);
            if rate - lower <= s.eps {
                break;
            }
            rate = lower;
        }
        rate
    }
}

/// Returns the value of a cosine that starts at one, at this fraction of its waves.
fn wave(num_cycles: f64, progress: f64) -> f64 {
    (0.5 * (1.0 + (PI * num_cycles * 2.0 * progress).cos())).max(0.0)
}

fn to_minimum(num_cycles: f64, minimum: f64, progress: f64) -> f64 {
    (wave(num_cycles, progress) * (1.0 - minimum) + minimum).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LrSchedule, RunConfig};
    use crate::optim::PlateauDetector;
    use serde_json::Value;

    /// Results of transformers' schedulers; written by `tests/fixtures/make_schedules.py`.
    const REFERENCE: &str = include_str!("../../../../tests/fixtures/schedules.json");

    fn shape(case: &Value) -> LrShape {
        let Value::Object(lr_scheduler_kwargs) = case["kwargs"].clone() else { panic!("{case}") };
        let lr_scheduler_type: LrSchedule = serde_json::from_value(case["name"].clone()).unwrap();
        RunConfig { lr_scheduler_type, lr_scheduler_kwargs, ..RunConfig::default() }.lr_shape().unwrap()
    }

    #[test]
    fn fifty_steps_of_every_schedule_are_those_of_transformers() {
        let reference: Value = serde_json::from_str(REFERENCE).unwrap();
        let cases = reference["schedules"].as_array().unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let whole = |key: &str| case[key].as_u64().unwrap();
            let (warmup, total) = (whole("warmup"), whole("total"));
            let schedule =
                LearningRateSchedule { shape: shape(case), peak: case["peak"].as_f64().unwrap(), warmup, total, plateaus: 0 };
            assert_eq!(schedule.fault(), None);
            let rates = case["rates"].as_array().unwrap();
            assert_eq!(rates.len(), 50);
            for (step, rate) in rates.iter().enumerate() {
                let (got, want) = (schedule.at(step as u64), rate.as_f64().unwrap());
                assert!(
                    (got - want).abs() <= 1e-12 * schedule.peak,
                    "{} {} at {step}: {got} {want}",
                    case["name"],
                    case["kwargs"]
                );
            }
        }
    }

    #[test]
    fn fifty_evaluations_reduce_the_rate_as_torch_does() {
        let reference: Value = serde_json::from_str(REFERENCE).unwrap();
        let mut reductions = 0;
        for case in reference["plateaus"].as_array().unwrap() {
            let LrShape::ReduceLrOnPlateau(settings) = shape(case) else { panic!("{case}") };
            let (mut plateau, mut last) = (PlateauDetector::default(), 0.0);
            let values = case["values"].as_array().unwrap();
            assert_eq!(values.len(), 50);
            for (value, rate) in values.iter().zip(case["rates"].as_array().unwrap()) {
                plateau.observe(value.as_f64().unwrap(), settings, false);
                let peak = case["peak"].as_f64().unwrap();
                let schedule =
                    LearningRateSchedule { shape: shape(case), peak, warmup: 3, total: 50, plateaus: plateau.plateaus };
                let (got, want) = (schedule.at(7), rate.as_f64().unwrap());
                assert!((got - want).abs() <= 1e-12 * peak, "{}: {got} {want}", case["kwargs"]);
                reductions += usize::from(last > got);
                last = got;
            }
        }
        assert!(reductions > 5);
    }

    #[test]
    fn a_schedule_that_would_rise_to_its_end_is_a_fault() {
        let shape = LrShape::Polynomial(crate::config::PolynomialArgs { lr_end: 1e-5, power: 1.0 });
        let fault = |peak| LearningRateSchedule { shape, peak, warmup: 0, total: 5, plateaus: 0 }.fault();
        assert!(fault(1e-6).unwrap().contains("lr_end is 1e-5") && fault(1e-4).is_none());
        let minimum = |min_lr, min_lr_rate| {
            let shape = LrShape::CosineWithMinLr(CosineMinLrArgs { num_cycles: 0.5, min_lr, min_lr_rate });
            LearningRateSchedule { shape, peak: 1e-4, warmup: 0, total: 10, plateaus: 0 }.fault()
        };
        assert!(minimum(Some(5.0), None).unwrap().contains("greater than the learning rate, 1e-4"));
        assert!(minimum(None, Some(1.5)).is_some() && minimum(Some(1e-5), None).is_none() && minimum(None, Some(1.0)).is_none());
    }
}
