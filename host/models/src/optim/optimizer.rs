//! Updates named parameters with one of the optimizers. Moments are stored under the parameters' names, in f32 unless the optimizer has 8
//! bits in its name.

use super::moments::{ParameterMoments, adamw_step, adjusted};
use super::settings::OptimizerSettings;
use crate::config::OptimizerRule;
use crate::ops;
use crate::ops::adamw::{self, Parameter};
use crate::ops::adamw_8bit;
use crate::ops::optimizers::CommonScalars;
use candle_core::{DType, Tensor};
use std::collections::HashMap;

/// Ends of the names of vectors that decay, as they do in transformers, which leaves out norms and biases by their names.
const DECAYED_VECTORS: [&str; 6] = [MAGNITUDE, ".A_log", ".D", ".sinks", "router.scale", "router.per_expert_scale"];

/// Suffix of the names of an adapter's magnitudes, which are vectors but count as weights.
const MAGNITUDE: &str = ".lora_magnitude_vector";

/// Parameters or gradients by name, in a fixed order.
pub type NamedTensors<'a> = [(String, &'a Tensor)];

/// The optimizer and its moments.
pub struct Optimizer {
    settings: OptimizerSettings,
    updates: u64,
    moments: Vec<(String, ParameterMoments)>,
    /// Bounds on the current magnitudes; `None` if they must be recomputed.
    reach: Option<MagnitudeBounds>,
}

/// Bounds on magnitudes. They grow with each update.
#[derive(Clone, Copy, Debug)]
struct MagnitudeBounds {
    /// Bound on the values of all parameters.
    parameters: f64,
    /// Bound on SGD's momentum, or on first moments in 8 bits.
    momentum: f64,
}

/// The result of an update.
#[derive(Clone, Debug, PartialEq)]
pub enum UpdateOutcome {
    /// The update was made. Holds the gradient norm before clipping.
    Made(f64),
    /// The gradient norm, given here, is not finite; nothing was changed.
    NotFinite(f64),
    /// The named parameter would get values that are not finite; nothing was changed.
    Overflow(String),
}

/// An update that is known to stay finite and can be made.
#[derive(Debug)]
pub struct FiniteUpdate {
    /// The gradient norm before clipping.
    pub norm: f64,
    clip: f64,
    /// Bounds on the magnitudes after the update, as in [`Optimizer`].
    reach: Option<MagnitudeBounds>,
}

/// The result of preparing an update, which becomes an [`UpdateOutcome`].
#[derive(Debug)]
pub enum UpdatePreparation {
    /// The update can be made.
    Ready(FiniteUpdate),
    /// The gradient norm is not finite; becomes [`UpdateOutcome::NotFinite`].
    NotFinite(f64),
    /// The named parameter would overflow; becomes [`UpdateOutcome::Overflow`].
    Overflow(String),
}

/// Magnitude up to which an update stays finite without a check of each value. The largest f32 is 3e38.
const SAFE: f64 = 1e30;

/// Gradient norm up to which squares stay finite too.
const SAFE_GRADIENT: f64 = 1e15;

/// Suffixes of tensors that hold mean squares or scales of codes. Negative values there would make updates that are not finite.
const NEVER_NEGATIVE: [&str; 5] = ["v", "v_scales", "m_scales", "rows", "columns"];

/// Returns whether a tensor in host memory has negative values; codes have none.
fn has_negative(t: &Tensor) -> candle_core::Result<bool> {
    if t.dtype() != DType::F32 || t.elem_count() == 0 {
        return Ok(false);
    }
    Ok(t.min_all()?.to_scalar::<f32>()? < 0.0)
}

impl Optimizer {
    /// Creates zero moments for every parameter.
    pub fn new(settings: OptimizerSettings, parameters: &NamedTensors<'_>) -> ops::Result<Self> {
        let moments = parameters.iter().map(|(name, t)| Ok((name.clone(), ParameterMoments::new(settings.rule, name, t)?)));
        Ok(Self { settings, updates: 0, moments: moments.collect::<ops::Result<_>>()?, reach: None })
    }

    /// Returns the number of updates.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Returns the names of the moments in [`Optimizer::state`].
    pub fn names(&self) -> impl Iterator<Item = String> {
        let all =
            self.moments.iter().flat_map(|(name, moments)| moments.named().into_iter().map(move |(suffix, _)| (name, suffix)));
        all.map(|(name, suffix)| format!("{name}.{suffix}"))
    }

    /// Returns the number of updates and copies of the moments in host memory, named `<parameter>.m`, `<parameter>.v` and so on.
    pub fn state(&self) -> ops::Result<(u64, HashMap<String, Tensor>)> {
        let mut moments = HashMap::with_capacity(2 * self.moments.len());
        for (name, of_parameter) in &self.moments {
            for (suffix, moment) in of_parameter.named() {
                moments.insert(format!("{name}.{suffix}"), ops::on_host(moment)?);
            }
        }
        Ok((self.updates, moments))
    }

    /// Restores a state from [`Optimizer::state`]. On an error, which names what does not fit, nothing is changed.
    pub fn restore(&mut self, updates: u64, mut state: HashMap<String, Tensor>) -> Result<(), String> {
        let mut restored = Vec::new();
        for (name, of_parameter) in &self.moments {
            for (suffix, moment) in of_parameter.named() {
                let key = format!("{name}.{suffix}");
                let saved = state.remove(&key).ok_or_else(|| format!("{key} is missing"))?;
                if saved.shape() != moment.shape() || saved.dtype() != moment.dtype() {
                    let described = |t: &Tensor| format!("{} of shape {:?}", t.dtype().as_str(), t.shape());
                    return Err(format!("{key} is {}; it must be {}", described(&saved), described(moment)));
                }
                if NEVER_NEGATIVE.contains(&suffix) && has_negative(&saved).map_err(|e| format!("{key}: {e}"))? {
                    return Err(format!("{key} has values below zero, which it can't have"));
                }
                restored.push(saved.to_device(moment.device()).map_err(|e| format!("{key}: {}", ops::Error::from(e)))?);
            }
        }
        let moments = self.moments.iter_mut().flat_map(|(_, of_parameter)| of_parameter.named_mut());
        for ((_, moment), restored) in moments.zip(restored) {
            *moment = restored;
        }
        self.updates = updates;
        self.reach = None;
        Ok(())
    }

    /// Updates all parameters from their gradients, unless a value would not be finite afterwards. The parameters must be those passed to
    /// `new`, in the same order.
    pub fn step(&mut self, parameters: &[Parameter<'_>], lr: f64) -> ops::Result<UpdateOutcome> {
        let rate = |_: &str| lr;
        let squares = ops::sum_of_squares(parameters.iter().map(|p| p.gradient))?;
        Ok(match self.prepare(parameters, rate, squares)? {
            UpdatePreparation::Ready(ready) => {
                let norm = ready.norm;
                self.apply(parameters, rate, ready)?;
                UpdateOutcome::Made(norm)
            }
            UpdatePreparation::NotFinite(norm) => UpdateOutcome::NotFinite(norm),
            UpdatePreparation::Overflow(parameter) => UpdateOutcome::Overflow(parameter),
        })
    }

    /// Determines whether an update can be made, without changing anything. `rate` returns the learning rate for a parameter's name, and
    /// `squares` is the sum of squares of all gradients, including those of parameters that other optimizers update. Optimizers that update
    /// together prepare first, so that either all or none of them change parameters.
    pub fn prepare(
        &self,
        parameters: &[Parameter<'_>],
        rate: impl Fn(&str) -> f64,
        squares: f64,
    ) -> ops::Result<UpdatePreparation> {
        let s = self.settings;
        let paired = self.paired(parameters)?;
        let norm = squares.sqrt();
        if !norm.is_finite() {
            return Ok(UpdatePreparation::NotFinite(norm));
        }
        // torch.nn.utils.clip_grad_norm_ divides by the norm plus 1e-6.
        let clip = if s.max_grad_norm > 0.0 { (s.max_grad_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        let lr = parameters.iter().map(|p| rate(&p.name).abs()).fold(0.0, f64::max);
        let after = |reach: MagnitudeBounds| {
            Some(self.after(reach, parameters, (lr, longest_update(s)), norm * clip)).filter(MagnitudeBounds::is_safe)
        };
        // The kernel multiplies by the learning rate before it divides, and second moments underflow below this eps before it matters.
        let product = lr / (1.0 - s.beta1) * SAFE_GRADIENT;
        let has_adamw = matches!(s.rule, OptimizerRule::AdamW | OptimizerRule::AdamW8Bit | OptimizerRule::Muon(_));
        let plain = norm * clip < SAFE_GRADIENT && (!has_adamw || product < SAFE && s.eps >= 1e-20);
        let known = match self.reach {
            Some(reach) => after(reach),
            None => None,
        };
        let reach = match known {
            Some(reach) => Some(reach),
            None => after(self.measured(parameters)?),
        };
        if let Some(reach) = reach.filter(|_| plain) {
            return Ok(UpdatePreparation::Ready(FiniteUpdate { norm, clip, reach: Some(reach) }));
        }
        // For other optimizers only the bounds are known, which only absurd learning rates exceed.
        let others = self.after(self.measured(parameters)?, parameters, (lr, 0.0), norm * clip);
        for (p, moments) in paired {
            let lost = match moments {
                ParameterMoments::AdamW { m, v } => {
                    let step = adamw_step(s, self.update_scalars(p, rate(&p.name), clip));
                    adamw::overflows(p.master, p.gradient, m, v, step)?
                }
                ParameterMoments::AdamW8Bit { m, v } => {
                    let step = adamw_step(s, self.update_scalars(p, rate(&p.name), clip));
                    adamw_8bit::overflows(p.master, p.gradient, m.moment(), v.moment(), step)?
                }
                _ => !(norm * clip < SAFE_GRADIENT && others.is_safe()),
            };
            if lost {
                return Ok(UpdatePreparation::Overflow(p.name.clone()));
            }
        }
        Ok(UpdatePreparation::Ready(FiniteUpdate { norm, clip, reach: None }))
    }

    /// Makes an update that [`Optimizer::prepare`] returned as ready. Takes the same arguments.
    pub fn apply(&mut self, parameters: &[Parameter<'_>], rate: impl Fn(&str) -> f64, ready: FiniteUpdate) -> ops::Result<()> {
        for (p, moments) in self.paired(parameters)? {
            moments.update(p, self.settings, self.update_scalars(p, rate(&p.name), ready.clip))?;
        }
        self.updates += 1;
        self.reach = ready.reach;
        Ok(())
    }

    /// Returns each parameter with its moments.
    fn paired<'a>(&'a self, parameters: &'a [Parameter<'a>]) -> ops::Result<Vec<(&'a Parameter<'a>, &'a ParameterMoments)>> {
        if !parameters.iter().map(|p| &p.name).eq(self.moments.iter().map(|(name, _)| name)) {
            return Err(ops::Error::Shape { op: "optimizer", detail: "the parameters are not those it has moments for".into() });
        }
        Ok(parameters.iter().zip(self.moments.iter().map(|(_, moments)| moments)).collect())
    }

    /// Returns the scalars of a parameter's next update.
    fn update_scalars(&self, p: &Parameter<'_>, lr: f64, clip: f64) -> CommonScalars {
        let matrix = p.master.dims().len() > 1 && !p.name.contains("norm");
        let decayed = matrix || DECAYED_VECTORS.iter().any(|end| p.name.ends_with(end));
        let weight_decay = if decayed { self.settings.weight_decay } else { 0.0 };
        CommonScalars { lr, weight_decay, grad_scale: clip as f32, t: self.updates + 1 }
    }

    /// Computes bounds on the magnitudes from the tensors' current values.
    fn measured(&self, parameters: &[Parameter<'_>]) -> ops::Result<MagnitudeBounds> {
        let buffers = self.moments.iter().filter_map(|(_, moments)| match moments {
            ParameterMoments::Sgd(buffer) => buffer.as_ref(),
            ParameterMoments::AdamW8Bit { m, .. } => Some(m.moment().scales),
            _ => None,
        });
        let momentum = ops::sum_of_squares(buffers)?.sqrt();
        Ok(MagnitudeBounds { parameters: ops::sum_of_squares(parameters.iter().map(|p| p.master))?.sqrt(), momentum })
    }

    /// Computes bounds on the magnitudes after an update with a gradient norm of at most `gradient`, where AdamW changes a value by at most
    /// `adamw` times the learning rate.
    fn after(
        &self,
        reach: MagnitudeBounds,
        parameters: &[Parameter<'_>],
        (lr, adamw): (f64, f64),
        gradient: f64,
    ) -> MagnitudeBounds {
        let MagnitudeBounds { parameters: p, momentum } = reach;
        let s = self.settings;
        let decayed = p * (1.0 - lr * s.weight_decay).abs().max(1.0);
        let largest = |of: &dyn Fn(&Tensor) -> f64| parameters.iter().map(|p| of(p.master)).fold(0.0, f64::max);
        match s.rule {
            OptimizerRule::AdamW => MagnitudeBounds { parameters: decayed + lr * adamw, momentum },
            OptimizerRule::AdamW8Bit => {
                // A second moment may be rounded to zero under any first moment, which is bounded by its scale.
                let momentum = s.beta1 * momentum + (1.0 - s.beta1) * gradient;
                let update = momentum / (1.0 - s.beta1) / s.eps;
                MagnitudeBounds { parameters: decayed + lr * update.max(adamw), momentum }
            }
            OptimizerRule::Lion => MagnitudeBounds { parameters: decayed + lr, momentum },
            OptimizerRule::Sgd(args) => {
                let gradient = gradient + s.weight_decay * p;
                let momentum = if args.momentum > 0.0 { args.momentum * momentum + gradient } else { 0.0 };
                MagnitudeBounds { parameters: p + lr * (gradient + momentum), momentum }
            }
            OptimizerRule::RmsProp(args) => {
                // The mean has each squared gradient with at least this weight; the buffer sums them.
                let update = (1.0 - args.alpha).sqrt().recip() / (1.0 - args.momentum);
                MagnitudeBounds { parameters: p + lr * update, momentum }
            }
            OptimizerRule::Adafactor(args) => {
                // The root mean square of an update is at most this.
                let update = args.clip_threshold * largest(&|t| t.elem_count() as f64).sqrt();
                let lr = if args.scale_parameter { lr * p.max(1.0) } else { lr };
                MagnitudeBounds { parameters: p * (1.0 - lr * s.weight_decay).abs().max(1.0) + lr * update, momentum }
            }
            OptimizerRule::Muon(args) => {
                // The iteration leaves singular values below two.
                let update = 2.0 * largest(&|t| adjusted(args.adjust_lr_fn, t));
                MagnitudeBounds { parameters: decayed + lr * update.max(adamw), momentum }
            }
        }
    }
}

impl MagnitudeBounds {
    fn is_safe(&self) -> bool {
        self.parameters < SAFE && self.momentum < SAFE
    }
}

/// Returns the largest change of a parameter per update of AdamW at learning rate 1. By the Cauchy-Schwarz inequality, a first moment is at
/// most `(1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2))` times the root of the second, and the bias correction is at most `1 / (1 -
/// beta1)`.
fn longest_update(s: OptimizerSettings) -> f64 {
    let spread = 1.0 - s.beta1 * s.beta1 / s.beta2;
    if spread > 0.0 { ((1.0 - s.beta2) * spread).sqrt().recip() } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::super::settings::OptimizerSettings;
    use super::{Optimizer, UpdateOutcome};
    use crate::config::{AdafactorArgs, MuonArgs, OptimizerName, OptimizerRule, RmsPropArgs, RunConfig, SgdArgs};
    use crate::ops::adamw::{AdamWStep, Parameter, update};
    use crate::ops::to_vec;
    use candle_core::{DType, Device, Tensor};
    use serde_json::Value;

    #[test]
    fn an_update_that_would_not_be_finite_is_not_made() {
        let settings = |rule: OptimizerRule, max_grad_norm: f64| OptimizerSettings {
            rule,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.1,
            max_grad_norm,
        };
        // Cases: a rate beyond f32, a decay that multiplies, a gradient whose square overflows, a weight that is NaN.
        let cases =
            [(1.0, 0.5, 1e39, 1.0, 0), (1.0, 0.5, 1e11, 1.0, 3), (1.0, 1e25, 1e-3, 0.0, 0), (f32::NAN, 0.5, 1e-3, 1.0, 0)];
        // Parameters of this size have moments in 8 bits.
        for (rule, size) in [(OptimizerRule::AdamW, 1), (OptimizerRule::AdamW8Bit, 64)] {
            for (weight, gradient, lr, longest, after) in cases {
                let all = |x: f32| Tensor::full(x, (size, size), &Device::Cpu).unwrap();
                let (p, g) = (all(weight), all(gradient));
                let mut optimizer = Optimizer::new(settings(rule, longest), &[("w".to_owned(), &p)]).unwrap();
                let parameters = [Parameter { name: "w".to_owned(), master: &p, rounded: None, gradient: &g }];
                for step in 0..=after {
                    let before = to_vec(&p).unwrap()[0];
                    let update = optimizer.step(&parameters, lr).unwrap();
                    let now = to_vec(&p).unwrap()[0];
                    if step < after {
                        assert!(
                            matches!(update, UpdateOutcome::Made(_)) && now.is_finite() && now != before,
                            "{rule:?} {lr} at {step}: {update:?} {now}"
                        );
                    } else {
                        assert_eq!(update, UpdateOutcome::Overflow("w".to_owned()), "{rule:?} {weight} {gradient} {lr}");
                        assert_eq!(now.to_bits(), before.to_bits());
                        assert_eq!(optimizer.state().unwrap().0, after as u64);
                    }
                }
            }
        }
    }

    #[test]
    fn parameters_decay_by_their_names_as_in_transformers() {
        for (name, shape, decays) in [
            ("self_attn.q_proj.weight", &[2, 3][..], true),
            ("self_attn.q_proj.bias", &[2], false),
            ("self_attn.sinks", &[2], true),
            ("input_layernorm.weight", &[2], false),
            ("mamba.conv1d.weight", &[2, 1, 3], true),
            ("mamba.conv1d.bias", &[2], false),
            ("mamba.dt_bias", &[2], false),
            ("mamba.A_log", &[2], true),
            ("mamba.D", &[2], true),
            ("mamba.norm.weight", &[2], false),
            ("router.scale", &[2], true),
            ("router.per_expert_scale", &[2], true),
            ("pre_feedforward_layernorm_2.weight", &[2], false),
        ] {
            let name = format!("model.layers.0.{name}");
            let (p, g) = (Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap(), Tensor::zeros(shape, DType::F32, &Device::Cpu));
            let settings = OptimizerSettings {
                rule: OptimizerRule::AdamW,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay: 0.1,
                max_grad_norm: 0.0,
            };
            let mut optimizer = Optimizer::new(settings, &[(name.clone(), &p)]).unwrap();
            let parameters = [Parameter { name: name.clone(), master: &p, rounded: None, gradient: &g.unwrap() }];
            optimizer.step(&parameters, 0.5).unwrap();
            let want = if decays { 1.0 - 0.5 * 0.1 } else { 1.0 };
            assert!(to_vec(&p).unwrap().iter().all(|x| (x - want).abs() < 1e-6), "{name}");
        }
    }

    /// Results of torch and of the optimizers' authors; written by `tests/fixtures/make_optimizers.py`.
    const REFERENCE: &str = include_str!("../../../../tests/fixtures/optimizers.json");

    /// Results of bitsandbytes with moments in 8 bits, and of its formula; written by `tests/fixtures/make_adamw_8bit.py`.
    const IN_8_BITS: &str = include_str!("../../../../tests/fixtures/adamw_8bit.json");

    /// Returns a parameter's initial value, or its gradient at a step, as in the fixtures' scripts.
    fn wave(parameter: usize, i: usize, step: usize, decades: usize) -> f32 {
        let (parameter, at, step) = (parameter as f64, i as f64, step as f64);
        let value = (0.7 * at + 1.3 * parameter + 0.31 * step * (1.0 + parameter)).sin() * 0.5 + 0.05;
        (value * 0.1f64.powi((i % decades) as i32)) as f32
    }

    fn rule(case: &Value) -> OptimizerSettings {
        let Value::Object(optim_args) = case["args"].clone() else { panic!("{case}") };
        let optim: OptimizerName = serde_json::from_value(case["optim"].clone()).unwrap();
        let rule = RunConfig { optim, optim_args, ..RunConfig::default() }.rule().unwrap();
        let beta2 = case["beta2"].as_f64().unwrap_or(0.999);
        OptimizerSettings { rule, beta1: 0.9, beta2, eps: 1e-8, weight_decay: 0.1, max_grad_norm: 1.0 }
    }

    /// Runs steps `from..to` of a case.
    fn steps(case: &Value, parameters: &[(String, Tensor)], optimizer: &mut Optimizer, from: usize, to: usize) {
        let decades = case["decades"].as_u64().unwrap_or(1) as usize;
        for step in from..to {
            let gradient = |(at, (_, t)): (usize, &(String, Tensor))| {
                let values: Vec<f32> = (0..t.elem_count()).map(|i| wave(at, i, step + 1, decades)).collect();
                Tensor::from_vec(values, t.shape(), &Device::Cpu).unwrap()
            };
            let gradients: Vec<Tensor> = parameters.iter().enumerate().map(gradient).collect();
            let named = parameters.iter().zip(&gradients);
            let named: Vec<Parameter<'_>> = named
                .map(|((name, master), gradient)| Parameter { name: name.clone(), master, rounded: None, gradient })
                .collect();
            let rate = case["lr"].as_f64().unwrap() * (1.0 - step as f64 / 100.0);
            assert!(matches!(optimizer.step(&named, rate).unwrap(), UpdateOutcome::Made(_)));
        }
    }

    #[test]
    fn fifty_steps_of_every_optimizer_are_those_of_its_reference_and_go_on_from_their_state() {
        let [reference, in_8_bits] = [REFERENCE, IN_8_BITS].map(|text| serde_json::from_str::<Value>(text).unwrap());
        let cases = [&reference, &in_8_bits].map(|of| of["cases"].as_array().unwrap().iter().map(move |case| (of, case)));
        let cases: Vec<(&Value, &Value)> = cases.into_iter().flatten().collect();
        assert!(cases.len() > 15);
        for (of, case) in cases {
            let shapes = of["shapes"].as_object().unwrap();
            let begin = || -> Vec<(String, Tensor)> {
                let parameter = |(at, (name, shape)): (usize, (&String, &Value))| {
                    let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
                    let values: Vec<f32> = (0..shape.iter().product()).map(|i| wave(at, i, 0, 1)).collect();
                    (name.clone(), Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
                };
                shapes.iter().enumerate().map(parameter).collect()
            };
            let new = |parameters: &[(String, Tensor)]| {
                let named: Vec<(String, &Tensor)> = parameters.iter().map(|(name, t)| (name.clone(), t)).collect();
                Optimizer::new(rule(case), &named).unwrap()
            };
            let parameters = begin();
            let mut optimizer = new(&parameters);
            steps(case, &parameters, &mut optimizer, 0, 20);
            let (updates, state) = optimizer.state().unwrap();
            let mut resumed = new(&parameters);
            resumed.restore(updates, state).unwrap();
            steps(case, &parameters, &mut resumed, 20, 50);

            let whole = begin();
            steps(case, &whole, &mut new(&whole), 0, 50);
            for ((name, got), (_, whole)) in parameters.iter().zip(&whole) {
                let (got, whole) = (to_vec(got).unwrap(), to_vec(whole).unwrap());
                assert!(got.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{case}: {name} does not resume");
                let want: Vec<f64> = serde_json::from_value(case["after"][name].clone()).unwrap();
                let got: Vec<f32> = got.into_iter().step_by(case["every"].as_u64().unwrap_or(1) as usize).collect();
                let length = want.iter().map(|w| w * w).sum::<f64>().sqrt();
                let off = got.iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>().sqrt();
                let near = case["near"].as_f64().unwrap();
                assert!(
                    off <= near * length,
                    "{} {}: {name} is {} off: {got:?} {want:?}",
                    case["optim"],
                    case["args"],
                    off / length
                );
            }
        }
    }

    #[test]
    fn moments_in_8_bits_take_two_bytes_a_value_and_leave_tables_and_small_parameters_in_32() {
        let names = ["model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight"];
        let parameters = [(64, 65), (64, 65), (64, 63)].map(|shape| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap());
        let named: Vec<(String, &Tensor)> = names.iter().map(|name| (*name).to_owned()).zip(&parameters).collect();
        let rule = OptimizerRule::AdamW8Bit;
        let settings = OptimizerSettings { rule, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, max_grad_norm: 0.0 };
        let mut optimizer = Optimizer::new(settings, &named).unwrap();
        let (updates, mut state) = optimizer.state().unwrap();
        let bytes = |name: &str| -> usize {
            let of =
                |(key, t): (&String, &Tensor)| if key.starts_with(name) { t.elem_count() * t.dtype().size_in_bytes() } else { 0 };
            state.iter().map(of).sum()
        };
        // 4160 values are 17 blocks.
        assert_eq!(names.map(bytes), [2 * (4160 + 4 * 17), 8 * 4160, 8 * 4032]);
        let key = format!("{}.m", names[0]);
        state.insert(key.clone(), parameters[0].clone());
        let refused = optimizer.restore(updates, state).unwrap_err();
        assert_eq!(refused, format!("{key} is f32 of shape [64, 65]; it must be u8 of shape [64, 65]"));
    }

    #[test]
    fn every_optimizer_refuses_an_update_beyond_its_bounds_and_names_the_parameter() {
        let rules = [
            OptimizerRule::Sgd(SgdArgs { momentum: 0.9, ..SgdArgs::default() }),
            OptimizerRule::RmsProp(RmsPropArgs { momentum: 0.9, ..RmsPropArgs::default() }),
            OptimizerRule::Lion,
            OptimizerRule::Adafactor(AdafactorArgs::default()),
            OptimizerRule::Muon(MuonArgs::default()),
        ];
        for rule in rules {
            let one = |x: f32| Tensor::new(&[[x, 1.0]], &Device::Cpu).unwrap();
            let (p, g) = (one(1.0), one(0.5));
            let settings = OptimizerSettings { rule, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, max_grad_norm: 0.0 };
            let mut optimizer = Optimizer::new(settings, &[("layers.0.w".to_owned(), &p)]).unwrap();
            let parameters = [Parameter { name: "layers.0.w".to_owned(), master: &p, rounded: None, gradient: &g }];
            let before = to_vec(&p).unwrap();
            assert_eq!(optimizer.step(&parameters, 1e35).unwrap(), UpdateOutcome::Overflow("layers.0.w".to_owned()), "{rule:?}");
            assert_eq!(to_vec(&p).unwrap(), before);
            assert!(matches!(optimizer.step(&parameters, 1e-3).unwrap(), UpdateOutcome::Made(_)), "{rule:?}");
        }
    }

    #[test]
    fn two_updates_follow_the_published_rule() {
        let t = |x: f32| Tensor::new(&[x], &Device::Cpu).unwrap();
        let (p, m, v) = (t(1.0), t(0.0), t(0.0));
        let (lr, b1, b2, eps, wd) = (0.1, 0.9, 0.99, 1e-8, 0.5);
        let (mut want, mut wm, mut wv) = (1.0f64, 0.0f64, 0.0f64);
        for (i, g) in [0.3f64, -0.7].into_iter().enumerate() {
            let k = i as i32 + 1;
            wm = b1 * wm + (1.0 - b1) * g;
            wv = b2 * wv + (1.0 - b2) * g * g;
            want = want * (1.0 - lr * wd) - lr * (wm / (1.0 - b1.powi(k))) / ((wv / (1.0 - b2.powi(k))).sqrt() + eps);
            let step = AdamWStep { lr, beta1: b1, beta2: b2, eps, weight_decay: wd, t: k as u64, grad_scale: 0.5 };
            update(&p, &t(2.0 * g as f32), &m, &v, None, step).unwrap();
        }
        let got = p.to_vec1::<f32>().unwrap()[0];
        assert!((f64::from(got) - want).abs() < 1e-6, "{got} against {want}");
    }
}
