//! AdamW with f32 moments, stored under the parameters' names.

use crate::ops;
use crate::ops::adamw::{self, Parameter};
use candle_core::{DType, Tensor};
use std::collections::HashMap;

/// Settings that are constant during a run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; not applied to norms and biases, as in transformers.
    pub weight_decay: f64,
    /// Largest gradient norm; larger gradients are scaled down. 0 for no limit.
    pub max_grad_norm: f64,
}

/// Parameters or gradients by name, in a fixed order.
pub type Named<'a> = [(String, &'a Tensor)];

/// The optimizer and its moments.
pub struct AdamW {
    settings: Settings,
    updates: u64,
    moments: Vec<Moments>,
    /// Bound on every parameter's magnitude; `None` if it must be computed again.
    reach: Option<f64>,
}

/// The moments of a parameter.
struct Moments {
    name: String,
    m: Tensor,
    v: Tensor,
}

/// The result of an update.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The update was made. Holds the gradient norm before clipping.
    Made(f64),
    /// The gradient norm is not finite; nothing was changed.
    NotFinite(f64),
    /// This parameter's values would not be finite; nothing was changed.
    Overflow(String),
}

/// An update that was found to stay finite and can be made.
#[derive(Debug)]
pub struct Ready {
    /// The gradient norm before clipping.
    pub norm: f64,
    clip: f64,
    /// As in [`AdamW`], after the update.
    reach: Option<f64>,
}

/// What was found before an update: as [`Update`], which it becomes.
#[derive(Debug)]
pub enum Prepared {
    /// It can be made.
    Ready(Ready),
    /// As [`Update::NotFinite`].
    NotFinite(f64),
    /// As [`Update::Overflow`].
    Overflow(String),
}

/// Up to this magnitude, an update is known to stay finite without checking each value: f32 ends at 3e38.
const SAFE: f64 = 1e30;

/// Up to this gradient norm, squares stay finite too.
const SAFE_GRADIENT: f64 = 1e15;

impl AdamW {
    /// Creates zero moments for every parameter.
    pub fn new(settings: Settings, parameters: &Named<'_>) -> ops::Result<Self> {
        let zeros = |t: &Tensor| Tensor::zeros(t.shape(), DType::F32, t.device());
        let moments = parameters.iter().map(|(name, t)| Ok(Moments { name: name.clone(), m: zeros(t)?, v: zeros(t)? }));
        Ok(Self { settings, updates: 0, moments: moments.collect::<ops::Result<_>>()?, reach: None })
    }

    /// Returns the number of updates, and copies of the moments in host memory as `<parameter>.m` and `<parameter>.v`.
    pub fn state(&self) -> ops::Result<(u64, HashMap<String, Tensor>)> {
        let mut moments = HashMap::with_capacity(2 * self.moments.len());
        for Moments { name, m, v } in &self.moments {
            moments.insert(format!("{name}.m"), ops::on_host(m)?);
            moments.insert(format!("{name}.v"), ops::on_host(v)?);
        }
        Ok((self.updates, moments))
    }

    /// Restores a state from [`AdamW::state`]; the error names what does not fit.
    pub fn restore(&mut self, updates: u64, mut state: HashMap<String, Tensor>) -> Result<(), String> {
        for Moments { name, m, v } in &mut self.moments {
            for (moment, suffix) in [(m, "m"), (v, "v")] {
                let key = format!("{name}.{suffix}");
                let saved = state.remove(&key).ok_or_else(|| format!("{key} is missing"))?;
                if saved.shape() != moment.shape() || saved.dtype() != DType::F32 {
                    return Err(format!(
                        "{key} is {:?} of shape {:?}; it must be f32 of shape {:?}",
                        saved.dtype(),
                        saved.shape(),
                        moment.shape()
                    ));
                }
                *moment = saved.to_device(moment.device()).map_err(|e| format!("{key}: {}", ops::Error::from(e)))?;
            }
        }
        self.updates = updates;
        Ok(())
    }

    /// Updates all parameters from their gradients, unless a value would not be finite afterwards. They must be those passed to
    /// `new`, in the same order.
    pub fn step(&mut self, parameters: &[Parameter<'_>], lr: f64) -> ops::Result<Update> {
        let rate = |_: &str| lr;
        Ok(match self.prepare(parameters, rate)? {
            Prepared::Ready(ready) => {
                let norm = ready.norm;
                self.make(parameters, rate, ready)?;
                Update::Made(norm)
            }
            Prepared::NotFinite(norm) => Update::NotFinite(norm),
            Prepared::Overflow(parameter) => Update::Overflow(parameter),
        })
    }

    /// Finds out whether an update can be made, and changes nothing. `rate` is the learning rate of the parameter of each name.
    /// Optimizers that update together prepare first, so that either all of them change something or none.
    pub fn prepare(&self, parameters: &[Parameter<'_>], rate: impl Fn(&str) -> f64) -> ops::Result<Prepared> {
        let s = self.settings;
        if !parameters.iter().map(|p| &p.name).eq(self.moments.iter().map(|moments| &moments.name)) {
            return Err(ops::Error::Shape { op: "adamw", detail: "the parameters are not those it has moments for".into() });
        }
        let norm = ops::sum_of_squares(parameters.iter().map(|p| p.gradient))?.sqrt();
        if !norm.is_finite() {
            return Ok(Prepared::NotFinite(norm));
        }
        // torch.nn.utils.clip_grad_norm_ divides by the norm plus 1e-6.
        let clip = if s.max_grad_norm > 0.0 { (s.max_grad_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        let reach = match self.reach {
            Some(reach) => reach,
            None => ops::sum_of_squares(parameters.iter().map(|p| p.master))?.sqrt(),
        };
        let lr = parameters.iter().map(|p| rate(&p.name).abs()).fold(0.0, f64::max);
        let reach = reach * (1.0 - lr * s.weight_decay).abs().max(1.0) + lr * longest_update(s);
        // The kernel multiplies by the rate before it divides, and below this eps second moments vanish before it counts.
        let product = lr / (1.0 - s.beta1) * SAFE_GRADIENT;
        let safe = reach < SAFE && norm * clip < SAFE_GRADIENT && product < SAFE && s.eps >= 1e-20;
        if !safe {
            for (p, Moments { m, v, .. }) in parameters.iter().zip(&self.moments) {
                if adamw::overflows(p.master, p.gradient, m, v, self.of(p, rate(&p.name), clip))? {
                    return Ok(Prepared::Overflow(p.name.clone()));
                }
            }
        }
        Ok(Prepared::Ready(Ready { norm, clip, reach: safe.then_some(reach) }))
    }

    /// Makes an update that [`AdamW::prepare`] found ready, with the same arguments.
    pub fn make(&mut self, parameters: &[Parameter<'_>], rate: impl Fn(&str) -> f64, ready: Ready) -> ops::Result<()> {
        for (p, Moments { m, v, .. }) in parameters.iter().zip(&self.moments) {
            adamw::update(p.master, p.gradient, m, v, p.rounded, self.of(p, rate(&p.name), ready.clip))?;
        }
        self.updates += 1;
        self.reach = ready.reach;
        Ok(())
    }

    /// Returns a parameter's settings of the next update.
    fn of(&self, p: &Parameter<'_>, lr: f64, clip: f64) -> adamw::Step {
        let Settings { beta1, beta2, eps, weight_decay, .. } = self.settings;
        let decayed = p.master.dims().len() > 1 && !p.name.contains("norm");
        let weight_decay = if decayed { weight_decay } else { 0.0 };
        adamw::Step { lr, beta1, beta2, eps, weight_decay, t: self.updates + 1, grad_scale: clip as f32 }
    }
}

/// Returns the largest change of a parameter per update at learning rate 1. By the Cauchy-Schwarz inequality, a first moment is
/// at most `(1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2))` times the root of the second, and the bias correction is at
/// most `1 / (1 - beta1)`.
fn longest_update(s: Settings) -> f64 {
    let spread = 1.0 - s.beta1 * s.beta1 / s.beta2;
    if spread > 0.0 { ((1.0 - s.beta2) * spread).sqrt().recip() } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::{AdamW, Settings, Update};
    use crate::ops::adamw::{Parameter, Step, update};
    use crate::ops::to_vec;
    use candle_core::{Device, Tensor};

    #[test]
    fn an_update_that_would_not_be_finite_is_not_made() {
        let one = |x: f32| Tensor::new(&[[x]], &Device::Cpu).unwrap();
        let settings = |max_grad_norm: f64| Settings { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, max_grad_norm };
        // A rate beyond f32, a decay that multiplies, a gradient whose square overflows, a weight that is NaN.
        for (weight, gradient, lr, longest, after) in
            [(1.0, 0.5, 1e39, 1.0, 0), (1.0, 0.5, 1e11, 1.0, 3), (1.0, 1e25, 1e-3, 0.0, 0), (f32::NAN, 0.5, 1e-3, 1.0, 0)]
        {
            let (p, g) = (one(weight), one(gradient));
            let mut optimizer = AdamW::new(settings(longest), &[("w".to_owned(), &p)]).unwrap();
            let parameters = [Parameter { name: "w".to_owned(), master: &p, rounded: None, gradient: &g }];
            for step in 0..=after {
                let before = to_vec(&p).unwrap()[0];
                let update = optimizer.step(&parameters, lr).unwrap();
                let now = to_vec(&p).unwrap()[0];
                if step < after {
                    assert!(
                        matches!(update, Update::Made(_)) && now.is_finite() && now != before,
                        "{lr} at {step}: {update:?} {now}"
                    );
                } else {
                    assert_eq!(update, Update::Overflow("w".to_owned()), "{weight} {gradient} {lr}");
                    assert_eq!(now.to_bits(), before.to_bits());
                    assert_eq!(optimizer.state().unwrap().0, after as u64);
                }
            }
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
            let step = Step { lr, beta1: b1, beta2: b2, eps, weight_decay: wd, t: k as u64, grad_scale: 0.5 };
            update(&p, &t(2.0 * g as f32), &m, &v, None, step).unwrap();
        }
        let got = p.to_vec1::<f32>().unwrap()[0];
        assert!((f64::from(got) - want).abs() < 1e-6, "{got} against {want}");
    }
}
