//! Compares the plugin with the formulas of the paper in f64.

use super::*;
use rlhost_plugin_sdk::labelled::testing::{assert_follows, examples};
use rlhost_plugin_sdk::labelled::{MismatchedLogps, Scale};

const ALL: [KtoLossType; 2] = [KtoLossType::Kto, KtoLossType::ApoZeroUnpaired];

fn loss(s: &KtoSettings, e: &Examples) -> LabelledGradient {
    Kto::new(s.clone()).unwrap().loss(e).unwrap()
}

fn kl(e: &Examples) -> f64 {
    let m = e.mismatched.as_ref().unwrap();
    let ratios: Vec<f64> = m.logp.iter().zip(&m.ref_logp).map(|(l, r)| f64::from(*l) - f64::from(*r)).collect();
    ratios.iter().sum::<f64>() / ratios.len() as f64
}

fn closed_form(s: &KtoSettings, e: &Examples, logp: &[f64]) -> f64 {
    let sigma = |x: f64| 1.0 / (1.0 + (-x).exp());
    let z = if s.loss_type == KtoLossType::Kto { kl(e).max(0.0) } else { 0.0 };
    let reference = e.ref_logp.as_ref().unwrap();
    let of_row = |row: usize| {
        let tokens = e.offsets[row] as usize..e.offsets[row + 1] as usize;
        let ratio: f64 = tokens.map(|i| logp[i] - f64::from(reference[i])).sum();
        match (e.labels[row], s.loss_type) {
            (true, _) => s.desirable_weight * (1.0 - sigma(s.beta * (ratio - z))),
            (false, KtoLossType::Kto) => s.undesirable_weight * (1.0 - sigma(s.beta * (z - ratio))),
            (false, KtoLossType::ApoZeroUnpaired) => s.undesirable_weight * sigma(s.beta * ratio),
        }
    };
    (0..e.labels.len()).map(of_row).sum::<f64>() / f64::from(e.scale.items)
}

/// Shifts the reference's log-probabilities of mismatched completions.
fn with_baseline(seed: u64, by: f32) -> Examples {
    let mut e = examples(seed);
    e.mismatched.as_mut().unwrap().ref_logp.iter_mut().for_each(|r| *r -= by);
    e
}

#[test]
fn loss_and_gradient_follow_the_closed_form_for_every_type() {
    for loss_type in ALL {
        for (seed, (beta, desirable_weight, undesirable_weight)) in
            [(0.1, 1.0, 1.0), (0.7, 1.0, 0.5), (0.3, 1.33, 1.0), (1.5, 0.0, 2.0)].into_iter().enumerate()
        {
            for by in [5.0, -5.0] {
                let e = with_baseline(seed as u64, by);
                assert_eq!(kl(&e) > 0.0, by > 0.0);
                let s = KtoSettings { loss_type, beta, desirable_weight, undesirable_weight };
                assert_follows(&loss(&s, &e), &e, &format!("{s:?}"), |logp| closed_form(&s, &e, logp));
            }
        }
    }
}

#[test]
fn a_policy_that_is_its_reference_loses_a_half() {
    let mut e = examples(9);
    e.scale.items = 5;
    e.ref_logp = Some(e.logp.clone());
    e.mismatched = e.mismatched.map(|m| MismatchedLogps { ref_logp: m.logp.clone(), ..m });
    for loss_type in ALL {
        assert_eq!(loss(&KtoSettings { loss_type, ..KtoSettings::default() }, &e).loss, 0.5);
    }
}

#[test]
fn huge_log_ratios_stay_finite() {
    for loss_type in ALL {
        for (logp, reference) in [(-1e5, 0.0), (0.0, -1e5), (-1e5, -1e5)] {
            let mut e = examples(3);
            e.logp = vec![logp; 16];
            e.ref_logp = Some(vec![reference; 16]);
            e.mismatched = Some(MismatchedLogps { logp: vec![logp; 5], ref_logp: vec![reference; 5] });
            let got = loss(&KtoSettings { loss_type, ..KtoSettings::default() }, &e);
            assert!(got.loss.is_finite() && got.d_logp.iter().all(|d| d.is_finite()), "{got:?}");
        }
    }
}

#[test]
fn figures_are_those_of_trl() {
    let mut e = examples(0);
    (e.labels, e.offsets) = (vec![true, false, true], vec![0, 1, 3, 4]);
    (e.desirable, e.undesirable) = (2, 1);
    (e.logp, e.ref_logp) = (vec![-1.0, -2.0, -3.0, -4.0], Some(vec![-4.0, -3.0, -4.0, -2.0]));
    e.mean_logits = Some(vec![1.0, 2.0, 4.0, 8.0]);
    e.mismatched = Some(MismatchedLogps { logp: vec![-1.0, -2.0], ref_logp: vec![-2.0, -2.0] });
    e.scale = Scale { items: 3, tokens: 4, ..Scale::default() };
    let given = |e: &Examples, loss_type| -> Vec<(String, f64, f64)> {
        let s = KtoSettings { loss_type, beta: 0.5, ..KtoSettings::default() };
        loss(&s, e).metrics.into_iter().map(|m| (m.name, m.value, m.weight)).collect()
    };
    // Log-ratios 3 and -2 of the desirable ones, 2 of the other.
    let wanted = [
        ("rewards/chosen", 0.25, 2.0),
        ("logps/chosen", -2.5, 2.0),
        ("logits/chosen", 4.5, 2.0),
        ("rewards/rejected", 1.0, 1.0),
        ("logps/rejected", -5.0, 1.0),
        ("logits/rejected", 3.0, 2.0),
        ("rewards/margins", -0.75, 3.0),
        ("kl", 0.5, 3.0),
    ];
    let wanted: Vec<(String, f64, f64)> = wanted.into_iter().map(|(name, v, w)| (name.to_owned(), v, w)).collect();
    assert_eq!(given(&e, KtoLossType::Kto), wanted);
    assert_eq!(given(&e, KtoLossType::ApoZeroUnpaired), wanted[..7]);
    // With desirable rows alone, the others have no metrics.
    (e.labels, e.desirable, e.undesirable) = (vec![true; 3], 3, 0);
    assert!(given(&e, KtoLossType::Kto).iter().all(|(name, ..)| !name.ends_with("rejected") && name != "rewards/margins"));
}

#[test]
fn missing_columns_and_a_beta_of_zero_are_refused() {
    let kto = |e: &Examples| Kto::new(KtoSettings::default()).unwrap().loss(e);
    assert!(matches!(kto(&Examples { ref_logp: None, ..examples(1) }), Err(Error::Input(_))));
    assert!(matches!(kto(&Examples { mismatched: None, ..examples(1) }), Err(Error::Input(_))));
    assert!(matches!(Kto::new(KtoSettings { beta: 0.0, ..KtoSettings::default() }), Err(Error::Config(_))));
}
