//! Compares the derivatives that a loss plugin returns with finite differences of its loss.

use crate::plugin::Result;
use crate::plugin::old::{Examples, LabelledPlugin, PairGradient, Pairs, PolicyPlugin, PreferencePlugin, Side};
use crate::plugin::old::{RewardModelPlugin, Tokens, ValuedPairs};

/// Step of the central difference to each side.
const STEP: f32 = 1.0 / 512.0;

/// Tolerance between derivative and finite difference, relative to the largest in the column.
const TOLERANCE: f64 = 5e-3;

/// Number of tokens tested.
const TRIED: usize = 48;

/// The result for a column of derivatives.
pub(super) struct Verdict {
    pub column: &'static str,
    /// Largest difference, relative to the largest derivative.
    pub distance: f64,
    /// The token with that difference.
    pub at: usize,
    /// Tokens skipped because the loss has a kink there.
    pub kinks: usize,
}

impl Verdict {
    pub(super) fn good(&self) -> bool {
        self.distance <= TOLERANCE
    }
}

/// Compares a column of derivatives with differences of `loss`, which takes a token and a step.
fn compare(column: &'static str, given: &[f32], mut loss: impl FnMut(usize, f32) -> Result<f64>) -> Result<Verdict> {
    let greatest = given.iter().map(|d| f64::from(d.abs())).fold(0.0, f64::max);
    let mut verdict = Verdict { column, distance: 0.0, at: 0, kinks: 0 };
    let stride = given.len().div_ceil(TRIED).max(1);
    for at in (0..given.len()).step_by(stride) {
        let (low, middle, high) = (loss(at, -STEP)?, loss(at, 0.0)?, loss(at, STEP)?);
        let h = f64::from(STEP);
        let (left, right) = ((middle - low) / h, (high - middle) / h);
        let central = (high - low) / (2.0 * h);
        let scale = greatest.max(central.abs()).max(1e-9);
        // At a kink, the two one-sided slopes differ by more than curvature explains.
        if (left - right).abs() > 0.05 * scale {
            verdict.kinks += 1;
            continue;
        }
        let distance = (f64::from(given[at]) - central).abs() / scale;
        if distance > verdict.distance {
            (verdict.distance, verdict.at) = (distance, at);
        }
    }
    Ok(verdict)
}

/// Compares a policy's derivatives. A loss may treat a ratio as constant (stop-gradient). Its derivative with respect to the
/// log-probability is then the one in which the old log-probability changes too, and the better of the two verdicts counts. The
/// flag says whether that one was better.
pub(super) fn policy(plugin: &mut PolicyPlugin, tokens: &Tokens) -> Result<(Vec<Verdict>, bool)> {
    let given = plugin.loss(tokens)?;
    let mut tokens = tokens.clone();
    let mut by_logp = |along: bool| {
        compare("d_logp", &given.d_logp, |at, by| {
            let kept = (tokens.logp[at], tokens.old_logp[at], tokens.sampling_logp.as_ref().map(|s| s[at]));
            tokens.logp[at] += by;
            if along {
                tokens.old_logp[at] += by;
                if let Some(sampling) = &mut tokens.sampling_logp {
                    sampling[at] += by;
                }
            }
            let loss = plugin.loss(&tokens).map(|g| g.loss);
            (tokens.logp[at], tokens.old_logp[at]) = (kept.0, kept.1);
            if let (Some(sampling), Some(was)) = (&mut tokens.sampling_logp, kept.2) {
                sampling[at] = was;
            }
            loss
        })
    };
    let plain = by_logp(false)?;
    let held = if plain.good() { None } else { Some(by_logp(true)?).filter(Verdict::good) };
    let detached = held.is_some();
    let mut verdicts = vec![held.unwrap_or(plain)];
    if let Some(d_entropy) = &given.d_entropy {
        verdicts.push(compare("d_entropy", d_entropy, |at, by| {
            let mut moved = tokens.clone();
            if let Some(entropy) = &mut moved.entropy {
                entropy[at] += by;
            }
            plugin.loss(&moved).map(|g| g.loss)
        })?);
    }
    if let Some(d_values) = &given.d_values {
        verdicts.push(compare("d_values", d_values, |at, by| {
            let mut moved = tokens.clone();
            if let Some(values) = &mut moved.values {
                values[at] += by;
            }
            plugin.loss(&moved).map(|g| g.loss)
        })?);
    }
    Ok((verdicts, detached))
}

/// Compares the derivatives of an algorithm for labelled completions.
pub(super) fn labelled(plugin: &mut LabelledPlugin, examples: &Examples) -> Result<Verdict> {
    let given = plugin.loss(examples)?;
    let mut examples = examples.clone();
    compare("d_logp", &given.d_logp, |at, by| {
        let was = examples.logp[at];
        examples.logp[at] += by;
        let loss = plugin.loss(&examples).map(|g| g.loss);
        examples.logp[at] = was;
        loss
    })
}

/// Moves a log-probability, and with it the sum of squares that it is compared with: the weight of a pair is a constant in the
/// derivatives.
fn moved(side: &mut Side, at: usize, by: f32) {
    side.logp[at] += by;
    side.log_sum_squares.iter_mut().for_each(|column| column[at] += by);
}

/// Compares a preference algorithm's derivatives.
pub(super) fn preference(plugin: &mut PreferencePlugin, pairs: &Pairs) -> Result<Vec<Verdict>> {
    let PairGradient { d_chosen, d_rejected, d_prompts, .. } = plugin.loss(pairs)?;
    let mut pairs = pairs.clone();
    let chosen = compare("d_chosen", &d_chosen, |at, by| {
        let was = pairs.chosen.clone();
        moved(&mut pairs.chosen, at, by);
        let loss = plugin.loss(&pairs).map(|g| g.loss);
        pairs.chosen = was;
        loss
    })?;
    let rejected = compare("d_rejected", &d_rejected, |at, by| {
        let was = pairs.rejected.clone();
        moved(&mut pairs.rejected, at, by);
        let loss = plugin.loss(&pairs).map(|g| g.loss);
        pairs.rejected = was;
        loss
    })?;
    let mut verdicts = vec![chosen, rejected];
    if let Some(d_prompts) = d_prompts {
        verdicts.push(compare("d_prompts", &d_prompts, |at, by| {
            let mut moved = pairs.clone();
            if let Some(prompts) = &mut moved.prompts {
                prompts.logp[at] += by;
            }
            plugin.loss(&moved).map(|g| g.loss)
        })?);
    }
    Ok(verdicts)
}

/// Compares the derivatives of a reward model's loss.
pub(super) fn reward_model(plugin: &mut RewardModelPlugin, pairs: &ValuedPairs) -> Result<Vec<Verdict>> {
    let given = plugin.loss(pairs)?;
    let mut side = |column: &'static str, given: &[f32], chosen: bool| {
        compare(column, given, |at, by| {
            let mut moved = pairs.clone();
            (if chosen { &mut moved.chosen } else { &mut moved.rejected })[at] += by;
            plugin.loss(&moved).map(|g| g.loss)
        })
    };
    Ok(vec![side("d_chosen", &given.d_chosen, true)?, side("d_rejected", &given.d_rejected, false)?])
}
