//! Computes a micro-batch's part of the loss and its derivatives from the losses of its tokens.

use crate::correction::Correction;
use crate::entropy::{EntropyControl, bonus};
use crate::masks::{high_entropy, near_policy};
use crate::metrics::{MicroBatchSums, RowSums};
use crate::settings::{GrpoLossType, GrpoSettings, ImportanceSamplingLevel};
use crate::surrogate::{TokenLossInputs, sequence_log_ratio, token_loss};
use rlhost_plugin_sdk::Error;
use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::policy::{PolicyGradient, Scale, Tokens};
use rlhost_plugin_sdk::rows::{counted, masked_mean, rows, spread};

/// Returns the weight of a token's loss in the step's loss. Upstream, `bnpo` divides by the tokens of each micro-batch; here it divides by
/// those of the step, like all types, and equals `dapo`.
fn weight(loss_type: GrpoLossType, scale: &Scale, row_tokens: usize) -> f64 {
    let (rows, tokens) = (f64::from(scale.items.max(1)), (scale.tokens as f64).max(1.0));
    match loss_type {
        GrpoLossType::Grpo | GrpoLossType::Sapo => 1.0 / (row_tokens.max(1) as f64 * rows),
        GrpoLossType::Bnpo | GrpoLossType::Dapo | GrpoLossType::Cispo | GrpoLossType::Vespo => 1.0 / tokens,
        GrpoLossType::DrGrpo => 1.0 / (rows * f64::from(scale.max_completion_length.max(1))),
        GrpoLossType::Luspo => 1.0 / rows,
    }
}

fn require_column<'a>(column: &'a Option<Vec<f32>>, needed: bool, what: &str) -> Result<Option<&'a [f32]>, Error> {
    match column.as_deref() {
        None if needed => Err(Error::Input(format!("the settings need {what}, which the batch does not have"))),
        column => Ok(column),
    }
}

pub(crate) fn loss(s: &GrpoSettings, control: &EntropyControl, t: &Tokens) -> Result<PolicyGradient, Error> {
    let ref_logp = require_column(&t.ref_logp, s.beta > 0.0, "reference log-probabilities")?.filter(|_| s.beta > 0.0);
    let entropy = require_column(&t.entropy, s.top_entropy_quantile < 1.0 || s.has_entropy_bonus(), "entropies")?;
    let top = entropy.filter(|_| s.top_entropy_quantile < 1.0);
    let top = top.map(|entropy| high_entropy(entropy, &t.mask, 1.0 - s.top_entropy_quantile));
    let correction = Correction::new(s, t)?;
    let factors = &correction.factors;
    let log_ratio = |i: usize| f64::from(t.logp[i]) - f64::from(t.old_logp[i]);

    let mut d_logp = vec![0.0; t.logp.len()];
    let (mut policy, mut figures) = (0.0f64, MicroBatchSums::default());
    for row in rows(&t.offsets) {
        let tokens = counted(&t.mask, row.clone());
        let n = tokens.clone().count();
        let weight = weight(s.loss_type, &t.scale, n);
        let mean_log_ratio = masked_mean(&t.mask, row.clone(), log_ratio);
        let sequence_log_ratio = sequence_log_ratio(s, tokens.clone().map(log_ratio), tokens.clone().map(|i| factors[i].ln()));
        let near = s.off_policy_mask_threshold.is_none_or(|threshold| {
            let sampling_logp = t.sampling_logp.as_ref().unwrap_or(&t.old_logp);
            near_policy(&t.logp, sampling_logp, &t.mask, row.clone(), threshold)
        });
        // Derivative with respect to the row's mean log-ratio, on which all its tokens depend if ratios are per sequence.
        let mut by_mean = 0.0;
        let mut sums = RowSums::default();
        for i in tokens {
            let in_top = top.as_ref().is_none_or(|top| top[i]);
            let token = |logp: Dual, log_ratio: Dual| TokenLossInputs {
                logp,
                log_ratio,
                ref_logp: ref_logp.map(|r| r[i]),
                advantage: t.advantages[i],
                kept: in_top && (near || t.advantages[i] >= 0.0),
                factor: if s.loss_type == GrpoLossType::Vespo { 1.0 } else { factors[i] },
                sequence_log_ratio,
            };
            let logp = Dual::variable(t.logp[i]);
            let lost = match s.importance_sampling_level {
                ImportanceSamplingLevel::Token => token_loss(s, &token(logp, logp - t.old_logp[i])),
                ImportanceSamplingLevel::Sequence => {
                    by_mean += weight * token_loss(s, &token(logp.detach(), Dual::variable(mean_log_ratio))).loss.slope();
                    token_loss(s, &token(logp, Dual::constant(mean_log_ratio)))
                }
            };
            policy += weight * lost.loss.value;
            d_logp[i] = (weight * lost.loss.slope()) as f32;
            sums.add(&lost, entropy.map_or(0.0, |e| e[i]), in_top);
        }
        spread(by_mean / n.max(1) as f64, &t.mask, row, &mut d_logp);
        figures.add(s, &sums);
    }

    let mut metrics = figures.metrics(s, control, policy, t.scale.items);
    metrics.extend(correction.metrics(s, t));
    let coef = if s.has_entropy_bonus() { control.effective_coef(s) } else { 0.0 };
    let (bonus, d_entropy) = match entropy.filter(|_| coef != 0.0) {
        Some(entropy) => {
            let (bonus, d_entropy) = bonus(coef, t, entropy, top.as_deref());
            (bonus, Some(d_entropy))
        }
        None => (0.0, None),
    };
    Ok(PolicyGradient { loss: policy + bonus, d_logp, d_entropy, d_values: None, metrics })
}
