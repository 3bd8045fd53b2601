//! The shape of the schedule, with its settings from `lr_scheduler_kwargs`.

use super::RunConfig;
use super::schedule::PlateauArgs;
use super::schedule::{
    CosineMinLrArgs, CosineWarmupMinLrArgs, InverseSqrtArgs, LrSchedule, LrShape, PolynomialArgs, StableDecayArgs,
};
use super::shortest;
use super::values::reworded;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum number of cycles of a cosine; with more, a cycle would be shorter than a step of any run.
const MOST_CYCLES: f64 = 1e6;

impl RunConfig {
    /// Returns the shape of the schedule.
    ///
    /// # Errors
    /// If `lr_scheduler_kwargs` does not fit `lr_scheduler_type`; the error is the key, and the valid values.
    pub fn lr_shape(&self) -> Result<LrShape, ScheduleFault> {
        self.check_cycles()?;
        let shape = match self.lr_scheduler_type {
            LrSchedule::Linear => self.without_kwargs(LrShape::Linear),
            LrSchedule::Constant => self.without_kwargs(LrShape::Constant),
            LrSchedule::ConstantWithWarmup => self.without_kwargs(LrShape::ConstantWithWarmup),
            LrSchedule::Cosine => self.kwargs().map(LrShape::Cosine),
            LrSchedule::CosineWithRestarts => self.kwargs().map(LrShape::CosineWithRestarts),
            LrSchedule::CosineWithMinLr => self.kwargs().and_then(|s: CosineMinLrArgs| {
                one_minimum(s.min_lr, s.min_lr_rate)?;
                Ok(LrShape::CosineWithMinLr(s))
            }),
            LrSchedule::CosineWarmupWithMinLr => self.kwargs().and_then(|s: CosineWarmupMinLrArgs| {
                one_minimum(s.min_lr, s.min_lr_rate)?;
                a_share("warmup_lr_rate", s.warmup_lr_rate)?;
                Ok(LrShape::CosineWarmupWithMinLr(s))
            }),
            LrSchedule::Polynomial => self.kwargs().and_then(|s: PolynomialArgs| {
                not_negative("lr_end", Some(s.lr_end))?;
                not_negative("power", Some(s.power))?;
                Ok(LrShape::Polynomial(s))
            }),
            LrSchedule::InverseSqrt => self.kwargs().and_then(|s: InverseSqrtArgs| match s.timescale {
                Some(0) => Err("timescale is 0; it must be at least 1".to_owned()),
                _ => Ok(LrShape::InverseSqrt(s)),
            }),
            LrSchedule::WarmupStableDecay => self.kwargs().and_then(|s: StableDecayArgs| {
                a_share("min_lr_ratio", Some(s.min_lr_ratio))?;
                match s.num_decay_steps {
                    None => Err("num_decay_steps is missing; set the number of decay steps at the end".to_owned()),
                    Some(_) => Ok(LrShape::WarmupStableDecay(s)),
                }
            }),
            LrSchedule::ReduceLrOnPlateau => self.kwargs().and_then(on_plateau),
        };
        shape.map_err(|detail| ("lr_scheduler_kwargs", detail))
    }

    /// Refuses a number of cycles for which the cosine is undefined.
    fn check_cycles(&self) -> Result<(), ScheduleFault> {
        let given = self.lr_scheduler_kwargs.get("num_cycles").and_then(Value::as_f64);
        match given.filter(|cycles| !(0.0..=MOST_CYCLES).contains(cycles)) {
            Some(cycles) => Err(("lr_scheduler_kwargs", format!("num_cycles is {cycles:?}; it must be from 0 to {MOST_CYCLES}"))),
            None => Ok(()),
        }
    }

    /// Checks the keys of the schedule.
    pub(super) fn check_schedule(&self) -> Result<(), ScheduleFault> {
        let shape = self.lr_shape()?;
        if matches!(shape, LrShape::ReduceLrOnPlateau(_)) && !self.evaluates() {
            let detail =
                "reduce_lr_on_plateau follows the evaluations; set eval_dataset, and an eval_strategy other than no".to_owned();
            return Err(("lr_scheduler_type", detail));
        }
        Ok(())
    }

    fn without_kwargs(&self, shape: LrShape) -> Result<LrShape, String> {
        match self.lr_scheduler_kwargs.keys().next() {
            None => Ok(shape),
            Some(key) => Err(format!("{key}: {} has no settings of its own", self.schedule_name())),
        }
    }

    fn kwargs<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_value(Value::Object(self.lr_scheduler_kwargs.clone())).map_err(|e| {
            let said = reworded(&e.to_string());
            format!("{}: {said}", self.schedule_name())
        })
    }

    fn schedule_name(&self) -> String {
        let name = serde_json::to_value(self.lr_scheduler_type).unwrap_or_default();
        name.as_str().unwrap_or_default().to_owned()
    }
}

/// An invalid key of a schedule, and the reason.
type ScheduleFault = (&'static str, String);

fn one_minimum(min_lr: Option<f64>, min_lr_rate: Option<f64>) -> Result<(), String> {
    not_negative("min_lr", min_lr)?;
    not_negative("min_lr_rate", min_lr_rate)?;
    match (min_lr, min_lr_rate) {
        (None, None) => Err("set min_lr, or min_lr_rate, the minimum as a fraction of the peak".into()),
        (Some(_), Some(_)) => Err("min_lr and min_lr_rate set the same minimum; set one of them".into()),
        _ => Ok(()),
    }
}

fn on_plateau(s: PlateauArgs) -> Result<LrShape, String> {
    if !(0.0..1.0).contains(&s.factor) {
        return Err(format!("factor is {}; it must be at least 0 and less than 1", shortest(s.factor)));
    }
    for (key, value) in [("threshold", s.threshold), ("min_lr", s.min_lr), ("eps", s.eps)] {
        not_negative(key, Some(value))?;
    }
    Ok(LrShape::ReduceLrOnPlateau(s))
}

fn a_share(key: &str, value: Option<f64>) -> Result<(), String> {
    match value.filter(|value| !(0.0..=1.0).contains(value)) {
        Some(value) => Err(format!("{key} is {}; it is a fraction of the peak rate, from 0 to 1", shortest(value))),
        None => Ok(()),
    }
}

fn not_negative(key: &str, value: Option<f64>) -> Result<(), String> {
    match value.filter(|value| !(*value >= 0.0 && value.is_finite())) {
        Some(value) => Err(format!("{key} is {}; it must be 0 or greater", shortest(value))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(kind: LrSchedule, kwargs: Value) -> RunConfig {
        let Value::Object(lr_scheduler_kwargs) = kwargs else { panic!("{kwargs}") };
        RunConfig { lr_scheduler_type: kind, lr_scheduler_kwargs, ..RunConfig::default() }
    }

    #[test]
    fn settings_that_a_schedule_does_not_have_or_needs_are_named() {
        for (kind, kwargs, expected) in [
            (LrSchedule::Linear, json!({"num_cycles": 2}), "num_cycles: linear has no settings"),
            (LrSchedule::Cosine, json!({"num_cycle": 2}), "unknown key `num_cycle`"),
            (LrSchedule::CosineWithMinLr, json!({}), "set min_lr, or min_lr_rate"),
            (LrSchedule::CosineWithMinLr, json!({"min_lr": 1e-6, "min_lr_rate": 0.1}), "set one of them"),
            (LrSchedule::CosineWarmupWithMinLr, json!({"min_lr": -1.0}), "min_lr is -1; it must be 0 or greater"),
            (LrSchedule::WarmupStableDecay, json!({}), "num_decay_steps is missing"),
            (LrSchedule::WarmupStableDecay, json!({"decay_type": "sqrt"}), "\"sqrt\" is not one of linear, cosine, 1-sqrt"),
            (
                LrSchedule::WarmupStableDecay,
                json!({"num_decay_steps": 2, "min_lr_ratio": 50}),
                "min_lr_ratio is 50; it is a fraction",
            ),
            (
                LrSchedule::CosineWarmupWithMinLr,
                json!({"min_lr_rate": 0.1, "warmup_lr_rate": 1e9}),
                "a fraction of the peak rate",
            ),
            (LrSchedule::Cosine, json!({"num_cycles": 1e308}), "num_cycles is 1e308; it must be from 0 to 1000000"),
            (LrSchedule::CosineWithRestarts, json!({"num_cycles": -1}), "num_cycles is -1.0; it must be from 0"),
            (LrSchedule::InverseSqrt, json!({"timescale": 0}), "at least 1"),
            (LrSchedule::ReduceLrOnPlateau, json!({"factor": 1}), "less than 1"),
            (LrSchedule::ReduceLrOnPlateau, json!({"mode": "most"}), "is not one of min, max"),
        ] {
            let (key, detail) = with(kind, kwargs).lr_shape().unwrap_err();
            assert!(key == "lr_scheduler_kwargs" && detail.contains(expected), "{detail}");
        }
        let (key, detail) = with(LrSchedule::ReduceLrOnPlateau, json!({})).check().unwrap_err();
        assert!(key == "lr_scheduler_type" && detail.contains("eval_dataset"), "{detail}");
        let shape = with(LrSchedule::Polynomial, json!({"power": 2})).lr_shape();
        assert_eq!(shape, Ok(LrShape::Polynomial(PolynomialArgs { lr_end: 1e-7, power: 2.0 })));
    }
}
