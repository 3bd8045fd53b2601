//! The optimizer, with its settings from `optim_args`.

use super::optimizer::{AdafactorArgs, MuonArgs, OptimizerName, OptimizerRule, RmsPropArgs, SgdArgs};
use super::values::reworded;
use super::{RunConfig, shortest};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum number of iterations of an orthogonalization.
const MOST_NS_STEPS: usize = 99;

impl RunConfig {
    /// Returns the optimizer with its settings.
    ///
    /// # Errors
    /// If `optim_args` does not fit `optim`; the error is the key, and the valid values.
    pub fn rule(&self) -> Result<OptimizerRule, OptimizerFault> {
        let adamw = |rule: OptimizerRule| self.without_args("--adam-beta1, --adam-beta2 and --adam-epsilon").map(|()| rule);
        let rule = match self.optim {
            OptimizerName::AdamwTorch => adamw(OptimizerRule::AdamW),
            OptimizerName::Adamw8Bit => adamw(OptimizerRule::AdamW8Bit),
            OptimizerName::Lion32Bit => self.without_args("--adam-beta1 and --adam-beta2").map(|()| OptimizerRule::Lion),
            OptimizerName::Sgd => self.args().and_then(|s: SgdArgs| {
                below_one("momentum", s.momentum)?;
                below_one("dampening", s.dampening)?;
                match s.nesterov && (s.momentum == 0.0 || s.dampening != 0.0) {
                    true => Err("nesterov needs momentum and no dampening".to_owned()),
                    false => Ok(OptimizerRule::Sgd(s)),
                }
            }),
            OptimizerName::Rmsprop => self.args().and_then(|s: RmsPropArgs| {
                below_one("alpha", s.alpha)?;
                below_one("momentum", s.momentum)?;
                match s.eps.is_finite() && s.eps as f32 > 0.0 {
                    true => Ok(OptimizerRule::RmsProp(s)),
                    false => Err(format!("eps is {}; it must be greater than 0", shortest(s.eps))),
                }
            }),
            OptimizerName::Adafactor => self.args().and_then(|s: AdafactorArgs| {
                s.beta1.map_or(Ok(()), |beta1| below_one("beta1", beta1))?;
                if s.clip_threshold.is_nan() || s.clip_threshold <= 0.0 {
                    return Err(format!("clip_threshold is {}; it must be greater than 0", shortest(s.clip_threshold)));
                }
                match (-1.0..0.0).contains(&s.decay_rate) {
                    true => Ok(OptimizerRule::Adafactor(s)),
                    false => Err(format!("decay_rate is {}; it must be at least -1 and less than 0", shortest(s.decay_rate))),
                }
            }),
            OptimizerName::Muon => self.args().and_then(|s: MuonArgs| {
                below_one("momentum", s.momentum)?;
                match s.ns_steps > MOST_NS_STEPS {
                    true => Err(format!("ns_steps is {}; the maximum is {MOST_NS_STEPS}", s.ns_steps)),
                    false => Ok(OptimizerRule::Muon(s)),
                }
            }),
        };
        rule.map_err(|detail| ("optim_args", detail))
    }

    /// Checks the optimizer's keys, and that no key is set that it does not use.
    pub(super) fn check_rule(&self) -> Result<(), OptimizerFault> {
        let rule = self.rule()?;
        let default = Self::default();
        let betas = !matches!(rule, OptimizerRule::Sgd(_) | OptimizerRule::RmsProp(_) | OptimizerRule::Adafactor(_));
        let epsilon = betas && rule != OptimizerRule::Lion;
        for (key, has, differs) in [
            ("adam_beta1", betas, self.adam_beta1 != default.adam_beta1),
            ("adam_beta2", betas, self.adam_beta2 != default.adam_beta2),
            ("adam_epsilon", epsilon, self.adam_epsilon != default.adam_epsilon),
        ] {
            if differs && !has {
                return Err((key, format!("is not a setting of {}; leave it out", self.optim_name())));
            }
        }
        Ok(())
    }

    /// Returns the optimizer's name.
    pub fn optim_name(&self) -> String {
        let name = serde_json::to_value(self.optim).unwrap_or_default();
        name.as_str().unwrap_or_default().to_owned()
    }

    fn without_args(&self, keys: &str) -> Result<(), String> {
        match self.optim_args.keys().next() {
            None => Ok(()),
            Some(key) => Err(format!("{key}: {} is set by {keys}", self.optim_name())),
        }
    }

    fn args<T: DeserializeOwned>(&self) -> Result<T, String> {
        if self.optim_args.contains_key("weight_decay") {
            return Err("weight_decay: use the key weight_decay, as for every optimizer".into());
        }
        let args = serde_json::from_value(Value::Object(self.optim_args.clone()));
        args.map_err(|e| format!("{}: {}", self.optim_name(), reworded(&e.to_string())))
    }
}

type OptimizerFault = (&'static str, String);

fn below_one(key: &str, value: f64) -> Result<(), String> {
    match (0.0..1.0).contains(&value) {
        true => Ok(()),
        false => Err(format!("{key} is {}; it must be at least 0 and less than 1", shortest(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_that_an_optimizer_does_not_have_are_named() {
        for (optim, args, expected) in [
            (OptimizerName::AdamwTorch, json!({"momentum": 0.9}), "momentum: adamw_torch is set by --adam-beta1"),
            (OptimizerName::Adamw8Bit, json!({"momentum": 0.9}), "momentum: adamw_8bit is set by --adam-beta1"),
            (OptimizerName::Sgd, json!({"nesterov": true}), "nesterov needs momentum"),
            (OptimizerName::Sgd, json!({"momentum": 1}), "less than 1"),
            (OptimizerName::Rmsprop, json!({"alpha": 1}), "less than 1"),
            (OptimizerName::Rmsprop, json!({"eps": 0}), "greater than 0"),
            (OptimizerName::Sgd, json!({"momentun": 0.9}), "unknown key `momentun`"),
            (OptimizerName::Sgd, json!({"weight_decay": 0.9}), "use the key weight_decay"),
            (OptimizerName::Adafactor, json!({"decay_rate": 0.8}), "less than 0"),
            (OptimizerName::Muon, json!({"ns_steps": 100}), "the maximum is 99"),
            (OptimizerName::Muon, json!({"adjust_lr_fn": "spectral"}), "not one of original, match_rms_adamw"),
        ] {
            let Value::Object(optim_args) = args else { panic!("{args}") };
            let (key, detail) = RunConfig { optim, optim_args, ..RunConfig::default() }.check().unwrap_err();
            assert!(key == "optim_args" && detail.contains(expected), "{detail}");
        }
        let beta = RunConfig { optim: OptimizerName::Sgd, adam_beta1: 0.8, ..RunConfig::default() }.check().unwrap_err();
        assert_eq!(beta, ("adam_beta1", "is not a setting of sgd; leave it out".to_owned()));
        assert!(RunConfig { optim: OptimizerName::Muon, adam_beta1: 0.8, ..RunConfig::default() }.check().is_ok());
    }
}
