//! AdamW with f32 moments under the parameters' names.

use crate::ops::{self, adamw};
use candle_core::{DType, Tensor};
use std::collections::HashMap;

/// Settings that don't change during a run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; norms and biases are spared, as in transformers.
    pub weight_decay: f64,
    /// Longest gradient; 0 for no limit.
    pub max_grad_norm: f64,
}

/// Parameters or gradients by name, in a fixed order.
pub type Named<'a> = [(String, &'a Tensor)];

/// The optimizer and its moments.
pub struct AdamW {
    settings: Settings,
    updates: u64,
    moments: Vec<(String, Tensor, Tensor)>,
}

impl AdamW {
    /// Zero moments for every parameter.
    pub fn new(settings: Settings, parameters: &Named<'_>) -> ops::Result<Self> {
        let zeros = |t: &Tensor| Tensor::zeros(t.shape(), DType::F32, t.device());
        let moments = parameters.iter().map(|(name, t)| Ok((name.clone(), zeros(t)?, zeros(t)?)));
        Ok(Self { settings, updates: 0, moments: moments.collect::<ops::Result<_>>()? })
    }

    /// Number of updates, and copies of the moments in host memory as `<parameter>.m` and `<parameter>.v`.
    pub fn state(&self) -> ops::Result<(u64, HashMap<String, Tensor>)> {
        let mut moments = HashMap::with_capacity(2 * self.moments.len());
        for (name, m, v) in &self.moments {
            moments.insert(format!("{name}.m"), ops::on_host(m)?);
            moments.insert(format!("{name}.v"), ops::on_host(v)?);
        }
        Ok((self.updates, moments))
    }

    /// Takes a state that [`AdamW::state`] gave; the error names what does not fit.
    pub fn restore(&mut self, updates: u64, mut state: HashMap<String, Tensor>) -> Result<(), String> {
        for (name, m, v) in &mut self.moments {
            for (moment, suffix) in [(m, "m"), (v, "v")] {
                let key = format!("{name}.{suffix}");
                let saved = state.remove(&key).ok_or_else(|| format!("there is no {key}"))?;
                if saved.shape() != moment.shape() || saved.dtype() != DType::F32 {
                    return Err(format!("{key} is {:?} of {:?}, not f32 of {:?}", saved.dtype(), saved.shape(), moment.shape()));
                }
                *moment = saved.to_device(moment.device()).map_err(|e| format!("{key}: {}", ops::Error::from(e)))?;
            }
        }
        self.updates = updates;
        Ok(())
    }

    /// Updates all parameters from the gradients and gives the gradient's norm before clipping
    /// (`grad_norm`), which a number that is not finite leaves without an update. `rounded` are the copies of
    /// the parameters that a model computes with, where it does, and follow them.
    pub fn step(
        &mut self,
        parameters: &Named<'_>,
        rounded: &[Option<&Tensor>],
        gradients: &Named<'_>,
        lr: f64,
    ) -> ops::Result<f64> {
        let s = self.settings;
        let norm = ops::sum_of_squares(gradients.iter().map(|(_, g)| *g))?.sqrt();
        if !norm.is_finite() {
            return Ok(norm);
        }
        // torch.nn.utils.clip_grad_norm_ divides by the norm plus 1e-6.
        let clip = if s.max_grad_norm > 0.0 { (s.max_grad_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        self.updates += 1;
        for ((((name, p), copy), (_, g)), (_, m, v)) in parameters.iter().zip(rounded).zip(gradients).zip(&self.moments) {
            let decayed = p.dims().len() > 1 && !name.contains("norm");
            let weight_decay = if decayed { s.weight_decay } else { 0.0 };
            let step = adamw::Step {
                lr,
                beta1: s.beta1,
                beta2: s.beta2,
                eps: s.eps,
                weight_decay,
                t: self.updates,
                grad_scale: clip as f32,
            };
            adamw::update(p, g, m, v, *copy, step)?;
        }
        Ok(norm)
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::adamw::{Step, update};
    use candle_core::{Device, Tensor};

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
