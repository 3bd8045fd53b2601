//! The clipped surrogate, token by token.

use crate::settings::{LossType, Settings};
use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::policy::{Gradient, Tokens, rows};
use rlhost_plugin_sdk::{Error, Metric};

/// The settings as the arithmetic takes them.
struct Bounds {
    low: f32,
    high: f32,
    delta: Option<f32>,
    beta: f32,
    correct_kl: bool,
}

impl Bounds {
    fn of(s: &Settings) -> Self {
        Self {
            low: 1.0 - s.epsilon as f32,
            high: 1.0 + s.epsilon_high.unwrap_or(s.epsilon) as f32,
            delta: s.delta.map(|d| d as f32),
            beta: s.beta as f32,
            correct_kl: s.use_bias_correction_kl,
        }
    }
}

/// `-min(min(ratio, delta) A, clip(ratio) A)` and, with `beta`, the KL estimate
/// `e^d - d - 1`, `d = ref_logp - logp`. Gives the loss and the KL term.
fn token_loss(s: &Bounds, logp: f32, old_logp: f32, ref_logp: Option<f32>, advantage: f32) -> (Dual, Dual) {
    let logp = Dual::variable(logp);
    let ratio = (logp - old_logp).exp();
    let bounded = s.delta.map_or(ratio, |delta| ratio.min(delta));
    let clipped = ratio.clamp(s.low, s.high);
    let mut loss = -(bounded * advantage).min(clipped * advantage);
    let mut kl = Dual::constant(0.0);
    if let Some(ref_logp) = ref_logp {
        let d = -logp + ref_logp;
        kl = d.exp() - d - 1.0;
        if s.correct_kl {
            kl = kl * ratio;
        }
        loss = loss + kl * s.beta;
    }
    (loss, kl)
}

/// Sums over a micro-batch's masked tokens.
#[derive(Default)]
struct Sums {
    tokens: f64,
    kl: f64,
    entropy: f64,
    low: f64,
    high: f64,
    /// Least and greatest share of a completion's tokens that are clipped on either side.
    low_min: Option<f64>,
    high_max: Option<f64>,
}

impl Sums {
    /// Takes the sums of one completion in.
    fn add(&mut self, row: &Sums) {
        if row.tokens == 0.0 {
            return;
        }
        self.tokens += row.tokens;
        self.kl += row.kl;
        self.entropy += row.entropy;
        self.low += row.low;
        self.high += row.high;
        let (low, high) = (row.low / row.tokens, row.high / row.tokens);
        self.low_min = Some(self.low_min.map_or(low, |least| least.min(low)));
        self.high_max = Some(self.high_max.map_or(high, |most| most.max(high)));
    }
}

pub(crate) fn loss(s: &Settings, t: &Tokens) -> Result<Gradient, Error> {
    let ref_logp = if s.beta > 0.0 {
        Some(t.ref_logp.as_deref().ok_or_else(|| Error::Input("beta needs the reference log-probabilities".into()))?)
    } else {
        None
    };
    let entropy = t.entropy.as_deref();
    let bounds = Bounds::of(s);
    let mut d_logp = vec![0.0; t.logp.len()];
    let (mut loss, mut sums) = (0.0f64, Sums::default());
    for row in rows(&t.offsets) {
        let row_tokens = t.mask[row.clone()].iter().filter(|&&m| m != 0).count() as f64;
        let weight = 1.0
            / match s.loss_type {
                LossType::Grpo => row_tokens.max(1.0) * f64::from(t.scale.rows),
                LossType::Bnpo | LossType::Dapo => (t.scale.tokens as f64).max(1.0),
                LossType::DrGrpo => f64::from(t.scale.rows) * f64::from(t.scale.max_completion_length),
            };
        let mut of_row = Sums::default();
        for i in row.filter(|&i| t.mask[i] != 0) {
            let advantage = t.advantages[i];
            let (token, kl) = token_loss(&bounds, t.logp[i], t.old_logp[i], ref_logp.map(|r| r[i]), advantage);
            loss += weight * f64::from(token.value);
            d_logp[i] = (weight * f64::from(token.slope)) as f32;
            let ratio = (t.logp[i] - t.old_logp[i]).exp();
            of_row.tokens += 1.0;
            of_row.kl += f64::from(kl.value);
            of_row.entropy += entropy.map_or(0.0, |e| f64::from(e[i]));
            of_row.low += f64::from(u8::from(ratio < bounds.low && advantage < 0.0));
            of_row.high += f64::from(u8::from(ratio > bounds.high && advantage > 0.0));
        }
        sums.add(&of_row);
    }
    Ok(Gradient { loss, d_logp, d_entropy: None, d_values: None, metrics: sums.metrics(ref_logp.is_some(), entropy.is_some()) })
}

impl Sums {
    fn metrics(&self, kl: bool, entropy: bool) -> Vec<Metric> {
        let n = self.tokens;
        if n == 0.0 {
            return Vec::new();
        }
        let mut all = vec![
            Metric::mean("clip_ratio/low_mean", self.low / n, n),
            Metric::min("clip_ratio/low_min", self.low_min.unwrap_or(0.0)),
            Metric::mean("clip_ratio/high_mean", self.high / n, n),
            Metric::max("clip_ratio/high_max", self.high_max.unwrap_or(0.0)),
            Metric::mean("clip_ratio/region_mean", (self.low + self.high) / n, n),
        ];
        if kl {
            all.push(Metric::mean("kl", self.kl / n, n));
        }
        if entropy {
            all.push(Metric::mean("entropy", self.entropy / n, n));
        }
        all
    }
}
