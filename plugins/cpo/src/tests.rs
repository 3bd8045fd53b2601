//! Compares the plugin with closed forms in f64, written from the papers' formulas.

use super::*;
use rlhost_plugin_sdk::preference::testing::{assert_follows, in_parts, pairs};
use rlhost_plugin_sdk::preference::{PairSide, Scale};

const ALL: [CpoLossType; 5] =
    [CpoLossType::Sigmoid, CpoLossType::Hinge, CpoLossType::Ipo, CpoLossType::Simpo, CpoLossType::Alphapo];

fn loss(s: &CpoSettings, p: &PreferencePairs) -> PreferenceGradient {
    Cpo::new(s.clone()).unwrap().loss(p).unwrap()
}

fn ln_sigma(x: f64) -> f64 {
    (1.0 / (1.0 + (-x).exp())).ln()
}

/// Computes the loss directly from the formulas.
fn closed_form(s: &CpoSettings, p: &PreferencePairs, chosen: &[f64], rejected: &[f64]) -> f64 {
    let averaged = [CpoLossType::Ipo, CpoLossType::Simpo, CpoLossType::Alphapo].contains(&s.loss_type);
    let values = |side: &PairSide, logp: &[f64]| -> Vec<f64> {
        let rows = side.offsets.windows(2).map(|w| &logp[w[0] as usize..w[1] as usize]);
        let worth = rows.map(|row| row.iter().sum::<f64>() / if averaged { row.len() as f64 } else { 1.0 });
        worth.map(|v| if s.alpha == 0.0 { v } else { (1.0 - v.exp().powf(-s.alpha)) / s.alpha }).collect()
    };
    let (b, e) = (s.beta, s.label_smoothing);
    let smoothed = |x: f64| -(1.0 - e) * ln_sigma(b * x) - e * ln_sigma(-b * x);
    let pairs = values(&p.chosen, chosen).into_iter().zip(values(&p.rejected, rejected)).map(|(c, r)| match s.loss_type {
        CpoLossType::Sigmoid => smoothed(c - r),
        CpoLossType::Hinge => (1.0 - b * (c - r)).max(0.0),
        CpoLossType::Ipo => (c - r - 1.0 / (2.0 * b)).powi(2),
        CpoLossType::Simpo | CpoLossType::Alphapo => smoothed(c - r - s.simpo_gamma / b),
    });
    let nll = if s.loss_type == CpoLossType::Alphapo { 0.0 } else { -s.cpo_alpha * chosen.iter().sum::<f64>() };
    pairs.sum::<f64>() / f64::from(p.scale.items) + nll / p.scale.tokens as f64
}

#[test]
fn loss_and_gradient_follow_the_closed_form_for_every_type() {
    for loss_type in ALL {
        for (seed, (beta, label_smoothing, cpo_alpha, simpo_gamma, alpha)) in
            [(0.1, 0.0, 1.0, 0.5, 0.0), (0.7, 0.2, 0.3, 1.4, 0.0), (2.0, 0.1, 0.0, 0.5, 0.25), (0.5, 0.0, 1.0, 0.5, -0.3)]
                .into_iter()
                .enumerate()
        {
            let (p, s) = (pairs(seed as u64), CpoSettings { loss_type, beta, label_smoothing, cpo_alpha, simpo_gamma, alpha });
            assert_follows(&loss(&s, &p), &p, &format!("{s:?}"), |chosen, rejected| closed_form(&s, &p, chosen, rejected));
        }
    }
}

#[test]
fn micro_batches_add_up_to_the_whole() {
    let p = pairs(5);
    for loss_type in ALL {
        let s = CpoSettings { loss_type, ..CpoSettings::default() };
        let (whole, sum) = (loss(&s, &p), in_parts(&p, |p| loss(&s, p)));
        assert!((sum.loss - whole.loss).abs() < 1e-12, "{loss_type:?}");
        assert_eq!((sum.d_chosen, sum.d_rejected), (whole.d_chosen, whole.d_rejected), "{loss_type:?}");
    }
}

fn side(offsets: &[u32], logp: &[f32]) -> PairSide {
    let mean_logits = Some(logp.iter().map(|l| 2.0 * l).collect());
    PairSide { offsets: offsets.to_vec(), logp: logp.to_vec(), mean_logits, ..PairSide::default() }
}

#[test]
fn equally_likely_completions_lose_ln_2() {
    let scale = Scale { items: 1, tokens: 2, ..Scale::default() };
    let p = PreferencePairs {
        chosen: side(&[0, 2], &[-1.0, -2.0]),
        rejected: side(&[0, 1], &[-3.0]),
        scale,
        ..PreferencePairs::default()
    };
    let s = CpoSettings { cpo_alpha: 0.0, ..CpoSettings::default() };
    assert!((loss(&s, &p).loss - std::f64::consts::LN_2).abs() < 1e-12);
}

#[test]
fn huge_margins_stay_finite() {
    let scale = Scale { items: 1, tokens: 1, ..Scale::default() };
    for loss_type in ALL {
        for alpha in [0.0, 0.5, -0.5] {
            for (chosen, rejected) in [(-1e5, 0.0), (0.0, -1e5), (0.0, 0.0)] {
                let p = PreferencePairs {
                    chosen: side(&[0, 1], &[chosen]),
                    rejected: side(&[0, 1], &[rejected]),
                    scale,
                    ..PreferencePairs::default()
                };
                // The square of such a large reward exceeds f32, whatever the margin.
                let alpha = if loss_type == CpoLossType::Ipo { 0.0 } else { alpha };
                let got = loss(&CpoSettings { loss_type, alpha, ..CpoSettings::default() }, &p);
                assert!(got.loss.is_finite() && got.d_chosen[0].is_finite() && got.d_rejected[0].is_finite(), "{got:?}");
            }
        }
    }
}

#[test]
fn figures_are_those_of_trl() {
    let scale = Scale { items: 2, tokens: 3, ..Scale::default() };
    let p = PreferencePairs {
        chosen: side(&[0, 2, 3], &[-1.0, -2.0, -4.0]),
        rejected: side(&[0, 1, 3], &[-5.0, -2.0, -1.0]),
        scale,
        ..PreferencePairs::default()
    };
    let given = |loss_type| -> Vec<(String, f64, f64)> {
        let s = CpoSettings { loss_type, beta: 0.5, ..CpoSettings::default() };
        loss(&s, &p).metrics.into_iter().map(|m| (m.name, m.value, m.weight)).collect()
    };
    let wanted = |logps: [f64; 2]| -> Vec<(String, f64, f64)> {
        let [chosen, rejected] = logps.map(|logp| 0.5 * logp);
        let named = [
            ("rewards/chosen", chosen, 2.0),
            ("rewards/rejected", rejected, 2.0),
            ("rewards/accuracies", 0.5, 2.0),
            ("rewards/margins", chosen - rejected, 2.0),
            ("logps/chosen", logps[0], 2.0),
            ("logps/rejected", logps[1], 2.0),
            ("logits/chosen", -14.0 / 3.0, 3.0),
            ("logits/rejected", -16.0 / 3.0, 3.0),
            ("nll_loss", 7.0 / 3.0, 3.0),
        ];
        named.into_iter().map(|(name, v, w)| (name.to_owned(), v, w)).collect()
    };
    // Sums -3, -4 against -5, -3; means -1.5, -4 against -5, -1.5.
    assert_eq!(given(CpoLossType::Sigmoid), wanted([-3.5, -4.0]));
    assert_eq!(given(CpoLossType::Simpo), wanted([-2.75, -3.25]));
}

#[test]
fn beta_must_be_positive() {
    assert!(matches!(Cpo::new(CpoSettings { beta: 0.0, ..CpoSettings::default() }), Err(Error::Config(_))));
}
