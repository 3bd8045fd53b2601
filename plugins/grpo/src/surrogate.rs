//! Computes the loss of one token.

use crate::settings::{GrpoLossType, GrpoSettings};
use rlhost_plugin_sdk::dual::Dual;

/// A token with all inputs of its loss.
#[derive(Clone, Copy)]
pub(crate) struct TokenLossInputs {
    pub logp: Dual,
    /// Logarithm of the importance ratio, of the token or of its completion.
    pub log_ratio: Dual,
    pub ref_logp: Option<f32>,
    pub advantage: f32,
    /// Whether the masks keep the token in the policy's loss. The KL term always includes it.
    pub kept: bool,
    /// Factor of the policy's loss.
    pub factor: f64,
    /// [`sequence_log_ratio`] of the token's completion, for vespo.
    pub sequence_log_ratio: f64,
}

/// The loss of a token, and the parts that are logged.
pub(crate) struct TokenLoss {
    pub loss: Dual,
    pub kl: f32,
    pub phi: f32,
    pub clipped_low: bool,
    pub clipped_high: bool,
}

/// Computes the policy's loss, by loss type:
///
/// - grpo, bnpo, dr_grpo, dapo, luspo: `-min(min(ratio, delta) A, clip(ratio, 1 - epsilon,
///   1 + epsilon_high) A)` (PPO's, Schulman et al. 2017; delta from INTELLECT-2, arXiv 2505.07291)
/// - cispo: `-sg(min(ratio, epsilon_high)) A logp` (MiniMax-M1, arXiv 2506.13585)
/// - sapo: `-4/tau sigmoid(tau (ratio - 1)) A`, tau by the sign of A (arXiv 2511.20347)
/// - vespo: `-sg(phi) A logp` (arXiv 2602.10693)
///
/// With `beta`, it adds the KL estimate `e^d - d - 1`, where `d = ref_logp - logp` (Schulman's k3), multiplied by the ratio with
/// `use_bias_correction_kl` (DeepSeek-V3.2, arXiv 2512.02556).
pub(crate) fn token_loss(s: &GrpoSettings, t: &TokenLossInputs) -> TokenLoss {
    let (low, high) = (1.0 - s.epsilon, 1.0 + s.high());
    let ratio = t.log_ratio.exp();
    let mut lost = TokenLoss { loss: Dual::constant(0.0), kl: 0.0, phi: 1.0, clipped_low: false, clipped_high: false };
    let policy = match s.loss_type {
        GrpoLossType::Grpo | GrpoLossType::Bnpo | GrpoLossType::DrGrpo | GrpoLossType::Dapo | GrpoLossType::Luspo => {
            let bounded = s.delta.map_or(ratio, |delta| ratio.min(delta));
            lost.clipped_low = bounded.value < low && t.advantage < 0.0;
            lost.clipped_high = bounded.value > high && t.advantage > 0.0;
            -(bounded * t.advantage).min(ratio.clamp(low, high) * t.advantage)
        }
        GrpoLossType::Cispo => {
            let cap = s.high();
            lost.clipped_high = ratio.value > cap && t.advantage > 0.0;
            -(ratio.min(cap).detach() * t.advantage * t.logp)
        }
        GrpoLossType::Sapo => {
            let tau = if t.advantage > 0.0 { s.sapo_temperature_pos } else { s.sapo_temperature_neg };
            -(((ratio - 1.0) * tau).sigmoid() * (4.0 / tau) * t.advantage)
        }
        GrpoLossType::Vespo => {
            lost.phi = phi(s, t.sequence_log_ratio, t.advantage);
            -(t.logp * (lost.phi * t.advantage))
        }
    };
    if t.kept {
        lost.loss = policy * t.factor;
    }
    if let Some(ref_logp) = t.ref_logp {
        let d = -t.logp + ref_logp;
        let estimate = d.exp_m1() - d;
        let kl = if s.use_bias_correction_kl { estimate * ratio } else { estimate };
        lost.kl = kl.value as f32;
        lost.loss = lost.loss + kl * s.beta;
    }
    lost
}

/// Range of the logarithm of a completion's ratio in vespo.
const LOG_RATIO_RANGE: (f64, f64) = (-18.420_680_743_952_367, 20.0);

/// Returns the logarithm of a completion's ratio for vespo: the sum over its tokens, each clamped to -20..20, clamped to the range from
/// `ln 1e-8` to 20. A correction's factors are included, each clamped to that range. Returns 0 for other loss types, which don't use it.
pub(crate) fn sequence_log_ratio(
    s: &GrpoSettings,
    log_ratios: impl Iterator<Item = f64>,
    log_factors: impl Iterator<Item = f64>,
) -> f64 {
    if s.loss_type != GrpoLossType::Vespo {
        return 0.0;
    }
    let (least, most) = LOG_RATIO_RANGE;
    let factors: f64 = log_factors.map(|r| r.clamp(least, most)).sum();
    (log_ratios.map(|r| r.clamp(-20.0, 20.0)).sum::<f64>() + factors).clamp(least, most)
}

/// Returns vespo's weight of a completion, `w^k e^(lambda (1 - w))`, which is 1 at a ratio w of 1.
fn phi(s: &GrpoSettings, log_w: f64, advantage: f32) -> f32 {
    let (k, lambda) = if advantage >= 0.0 { (s.vespo_k_pos, s.vespo_lambda_pos) } else { (s.vespo_k_neg, s.vespo_lambda_neg) };
    let lambda = lambda.max(1e-4);
    let phi = (lambda + k * log_w - lambda * log_w.exp()).exp() as f32;
    if phi.is_finite() { phi } else { 0.0 }
}
