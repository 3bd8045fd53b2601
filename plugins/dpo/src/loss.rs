//! Losses over pairs, each written once as in its paper; derivatives are automatic.

use crate::settings::{DpoLossType, DpoSettings, FDivergence};
use rlhost_plugin_sdk::Error;
use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::preference::{PairSide, PreferenceGradient, PreferenceLossSum, PreferencePairs, pair_metrics, rows};

/// Maximum exponent in a score; beyond it, f32 overflows. TRL has the same for the alpha divergence.
const MAX_EXPONENT: f64 = 80.0;

/// Weighted log-probabilities of the completions of one side.
struct WeightedLogps {
    /// Weight of each token: 1, or `ld_alpha` beyond the other completion's length.
    weights: Vec<f64>,
    /// Weighted sum of each completion's log-probabilities.
    logps: Vec<f64>,
    /// Weighted sum of each completion's log-probabilities under the reference model.
    ref_logps: Vec<f64>,
    lengths: Vec<f64>,
}

impl WeightedLogps {
    fn new(s: &DpoSettings, side: &PairSide, other: &PairSide) -> Result<Self, Error> {
        let mut weights = vec![1.0; side.logp.len()];
        if let Some(alpha) = s.ld_alpha {
            for (tokens, others) in rows(&side.offsets).zip(rows(&other.offsets)) {
                weights[tokens].iter_mut().skip(others.len()).for_each(|w| *w = alpha);
            }
        }
        let sums = |values: &[f32]| -> Vec<f64> {
            rows(&side.offsets).map(|tokens| tokens.map(|i| weights[i] * f64::from(values[i])).sum()).collect()
        };
        let logps = sums(&side.logp);
        let ref_logps = if s.has_reference() {
            let missing = || Error::Input("the reference log-probabilities are missing; reference_free needs none".into());
            sums(side.ref_logp.as_deref().ok_or_else(missing)?)
        } else {
            vec![0.0; logps.len()]
        };
        Ok(Self { logps, ref_logps, lengths: side.lengths(), weights })
    }

    fn log_ratios(&self) -> Vec<f64> {
        self.logps.iter().zip(&self.ref_logps).map(|(logp, reference)| logp - reference).collect()
    }
}

/// Applies the f-divergence to a log-ratio: `f'` of the ratio (f-DPO, Wang et al. 2023).
fn score(s: &DpoSettings, log_ratio: Dual<2>) -> Dual<2> {
    match s.f_divergence_type {
        FDivergence::ReverseKl => log_ratio,
        FDivergence::ForwardKl => -(-log_ratio).min(MAX_EXPONENT).exp() + 1.0,
        FDivergence::JsDivergence => log_ratio.log_sigmoid() + std::f64::consts::LN_2,
        FDivergence::AlphaDivergence => {
            let power = s.f_alpha_divergence_coef - 1.0;
            if power.abs() < 1e-6 { log_ratio } else { ((log_ratio * power).min(MAX_EXPONENT).exp() - 1.0) / power }
        }
    }
}

/// Returns the loss of one pair from the log-ratios `c` and `r` and the lengths of its completions.
fn pair_loss(s: &DpoSettings, kind: DpoLossType, [c, r]: [Dual<2>; 2], [c_length, r_length]: [f64; 2]) -> Dual<2> {
    let (s_c, s_r) = (score(s, c), score(s, r));
    let x = (s_c - s_r) * s.beta;
    let per_token = s_c / c_length.max(1.0) - s_r / r_length.max(1.0);
    let (c_reward, r_reward) = (c * s.beta, r * s.beta);
    let flipped = s.label_smoothing;
    let target = 0.5 / s.beta;
    match kind {
        DpoLossType::Sigmoid => -x.log_sigmoid(),
        DpoLossType::Hinge => (-x + 1.0).max(0.0),
        DpoLossType::Ipo => (per_token - target).square(),
        DpoLossType::SigmoidNorm => -(per_token * s.beta).log_sigmoid(),
        DpoLossType::ExoPair => {
            x.sigmoid() * (x.log_sigmoid() - (-flipped).ln_1p()) + (-x).sigmoid() * ((-x).log_sigmoid() - flipped.ln())
        }
        DpoLossType::NcaPair => -c_reward.log_sigmoid() - (-c_reward).log_sigmoid() * 0.5 - (-r_reward).log_sigmoid() * 0.5,
        DpoLossType::Robust => ((-x).log_sigmoid() * flipped - x.log_sigmoid() * (1.0 - flipped)) / (1.0 - 2.0 * flipped),
        DpoLossType::BcoPair => -c_reward.log_sigmoid() - (-r_reward).log_sigmoid(),
        DpoLossType::SppoHard => (c - target).square() + (r + target).square(),
        DpoLossType::Aot | DpoLossType::AotUnpaired => -x.log_sigmoid() * (1.0 - flipped) - (-x).log_sigmoid() * flipped,
        DpoLossType::ApoZero => r_reward.sigmoid() - c_reward.sigmoid() + 1.0,
        DpoLossType::ApoDown => c_reward.sigmoid() - (c_reward - r_reward).sigmoid() + 1.0,
        DpoLossType::Discopop => {
            let mix = x / s.discopop_tau;
            // One exponent for the mix and e^-x, because separately they could be 0 times infinity.
            (mix.log_sigmoid() - x).exp() - (-mix).sigmoid() * x.log_sigmoid()
        }
        // The sft term is per token, not per pair.
        DpoLossType::Sft => Dual::constant(0.0),
    }
}

/// Returns, for each entry of `a`, the index of the entry of `b` with the same rank.
fn of_equal_rank(a: &[f64], b: &[f64]) -> Vec<usize> {
    let order = |values: &[f64]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
        order
    };
    let mut partners = vec![0; a.len()];
    for (i, j) in order(a).into_iter().zip(order(b)) {
        partners[i] = j;
    }
    partners
}

fn differences(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// Returns each pair's weight: the likelihoods of both completions per token, relative to the model's own samples (WPO, Zhou et al.
/// 2024, arXiv 2406.11827, equation 2). They are constants in the derivatives.
fn weights(p: &PreferencePairs) -> Result<Vec<f64>, Error> {
    let aligned = |side: &PairSide| -> Result<Vec<f64>, Error> {
        let missing =
            || Error::Input("use_weighting needs the sums of squared probabilities, which the batch does not have".into());
        let squares = side.log_sum_squares.as_ref().ok_or_else(missing)?;
        let mean = |tokens: std::ops::Range<usize>| {
            let count = tokens.len().max(1) as f64;
            tokens.map(|i| f64::from(side.logp[i]) - f64::from(squares[i])).sum::<f64>() / count
        };
        Ok(rows(&side.offsets).map(mean).collect())
    };
    let (chosen, rejected) = (aligned(&p.chosen)?, aligned(&p.rejected)?);
    Ok(chosen.iter().zip(&rejected).map(|(c, r)| (c + r).exp()).collect())
}

/// Returns the loss of pairs, each weighted with `use_weighting`.
pub(crate) fn loss(s: &DpoSettings, p: &PreferencePairs) -> Result<PreferenceGradient, Error> {
    let chosen = WeightedLogps::new(s, &p.chosen, &p.rejected)?;
    let rejected = WeightedLogps::new(s, &p.rejected, &p.chosen)?;
    let ref_margins = differences(&chosen.ref_logps, &rejected.ref_logps);
    let (chosen_ratios, rejected_ratios) = (chosen.log_ratios(), rejected.log_ratios());

    let pair_weights = s.use_weighting.then(|| weights(p)).transpose()?;
    let mut total = PreferenceLossSum::new(p);
    let mut sft = 0.0;
    for (kind, weight) in s.terms() {
        let partners = match kind {
            DpoLossType::Aot => of_equal_rank(&differences(&chosen.logps, &rejected.logps), &ref_margins),
            DpoLossType::AotUnpaired => of_equal_rank(&chosen_ratios, &rejected_ratios),
            DpoLossType::Sft => {
                sft += weight / (p.scale.tokens as f64).max(1.0);
                continue;
            }
            _ => (0..chosen.logps.len()).collect(),
        };
        for (row, partner) in partners.into_iter().enumerate() {
            // For `aot`, each pair's partner is another pair's reference margin, whose two completions stay together.
            let (other, ref_chosen, ref_rejected) = match kind {
                DpoLossType::Aot => (row, ref_margins[partner], 0.0),
                _ => (partner, chosen.ref_logps[row], rejected.ref_logps[partner]),
            };
            let [c, r] = Dual::variables([chosen.logps[row], rejected.logps[other]]);
            let ratios = [c - ref_chosen, r - ref_rejected];
            let lengths = [chosen.lengths[row], rejected.lengths[other]];
            let weight = weight * pair_weights.as_ref().map_or(1.0, |weights| weights[row]) / f64::from(p.scale.items);
            total.add(row, other, pair_loss(s, kind, ratios, lengths) * weight);
        }
    }
    let all_tokens: f64 = p.chosen.logp.iter().map(|&logp| f64::from(logp)).sum();
    let spread = |side: &PairSide, of: &WeightedLogps, by_row: &[f64], by_token: f64| -> Vec<f32> {
        let rows = rows(&side.offsets).zip(by_row);
        rows.flat_map(|(tokens, slope)| tokens.map(move |i| (slope * of.weights[i] + by_token) as f32)).collect()
    };
    let scaled = |ratios: &[f64]| -> Vec<f64> { ratios.iter().map(|ratio| s.beta * ratio).collect() };
    let rewards = [scaled(&chosen_ratios), scaled(&rejected_ratios)];
    // With sft alone there are no rewards, because no reference model was requested.
    let rewards = (s.has_reference() || s.reference_free).then_some([rewards[0].as_slice(), &rewards[1]]);
    Ok(PreferenceGradient {
        loss: total.loss - sft * all_tokens,
        d_chosen: spread(&p.chosen, &chosen, &total.by_chosen, -sft),
        d_rejected: spread(&p.rejected, &rejected, &total.by_rejected, 0.0),
        d_prompts: None,
        metrics: pair_metrics(p, rewards, [&chosen.logps, &rejected.logps]),
    })
}
