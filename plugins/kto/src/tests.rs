//! Compares the plugin with the formulas of the paper and of `kto_pair` in f64.

use super::*;
use rlhost_plugin_sdk::preference::testing::{assert_follows, in_parts, pairs, part};
use rlhost_plugin_sdk::preference::{Scale, Side};

const ALL: [LossType; 2] = [LossType::Kto, LossType::ApoZeroUnpaired];

fn loss(s: &Settings, p: &Pairs) -> Gradient {
    Kto::new(s.clone()).unwrap().loss(p).unwrap()
}

/// Returns the log-ratio of each completion, given its tokens' log-probabilities.
fn ratios(side: &Side, logp: &[f64]) -> Vec<f64> {
    let reference = side.ref_logp.as_ref().unwrap();
    let rows = side.offsets.windows(2).map(|w| w[0] as usize..w[1] as usize);
    rows.map(|row| row.map(|i| logp[i] - f64::from(reference[i])).sum()).collect()
}

fn wide(side: &Side) -> Vec<f64> {
    side.logp.iter().map(|&l| f64::from(l)).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Computes the loss at changed log-probabilities, with the baselines of the original pairs.
fn closed_form(s: &Settings, p: &Pairs, chosen: &[f64], rejected: &[f64]) -> f64 {
    let sigma = |x: f64| 1.0 / (1.0 + (-x).exp());
    let chosen_kl = mean(&ratios(&p.chosen, &wide(&p.chosen))).max(0.0);
    let rejected_kl = mean(&ratios(&p.rejected, &wide(&p.rejected))).max(0.0);
    let of_chosen = ratios(&p.chosen, chosen).into_iter().map(|c| match s.loss_type {
        LossType::Kto => 1.0 - sigma(s.beta * (c - rejected_kl)),
        LossType::ApoZeroUnpaired => 1.0 - sigma(s.beta * c),
    });
    let of_rejected = ratios(&p.rejected, rejected).into_iter().map(|r| match s.loss_type {
        LossType::Kto => 1.0 - sigma(s.beta * (chosen_kl - r)),
        LossType::ApoZeroUnpaired => sigma(s.beta * r),
    });
    let sum = s.desirable_weight * of_chosen.sum::<f64>() + s.undesirable_weight * of_rejected.sum::<f64>();
    sum / (2.0 * f64::from(p.scale.rows))
}

/// Makes pairs whose log-ratios are all shifted, so that each baseline is positive or zero.
fn shifted(seed: u64, by_chosen: f32, by_rejected: f32) -> Pairs {
    let mut p = pairs(seed);
    for (side, by) in [(&mut p.chosen, by_chosen), (&mut p.rejected, by_rejected)] {
        side.ref_logp.as_mut().unwrap().iter_mut().for_each(|r| *r -= by);
    }
    p
}

#[test]
fn loss_and_gradient_follow_the_closed_form_for_every_type() {
    for loss_type in ALL {
        for (seed, (beta, desirable_weight, undesirable_weight)) in
            [(0.1, 1.0, 1.0), (0.7, 1.0, 0.5), (0.3, 1.33, 1.0), (1.5, 0.0, 2.0)].into_iter().enumerate()
        {
            // Each baseline positive, and each cut off at zero.
            for (by_chosen, by_rejected) in [(1.5, 1.5), (1.5, -1.5), (-1.5, 1.5), (-1.5, -1.5)] {
                let p = shifted(seed as u64, by_chosen, by_rejected);
                let baselines = [(&p.chosen, by_chosen), (&p.rejected, by_rejected)];
                assert!(baselines.iter().all(|(side, by)| (mean(&ratios(side, &wide(side))) > 0.0) == (*by > 0.0)));
                let s = Settings { loss_type, beta, desirable_weight, undesirable_weight };
                assert_follows(&loss(&s, &p), &p, &format!("{s:?}"), |c, r| closed_form(&s, &p, c, r));
            }
        }
    }
}

#[test]
fn micro_batches_add_up_to_the_whole_except_where_there_is_a_baseline() {
    let p = shifted(5, 1.5, 1.5);
    for loss_type in ALL {
        let s = Settings { loss_type, ..Settings::default() };
        let (whole, sum) = (loss(&s, &p), in_parts(&p, |p| loss(&s, p)));
        let same = (sum.loss - whole.loss).abs() < 1e-12 && (sum.d_chosen, sum.d_rejected) == (whole.d_chosen, whole.d_rejected);
        assert_eq!(same, loss_type == LossType::ApoZeroUnpaired, "{loss_type:?}");
    }
}

#[test]
fn a_policy_that_is_its_reference_loses_a_half() {
    let mut p = pairs(9);
    p.scale.rows = 5;
    for side in [&mut p.chosen, &mut p.rejected] {
        side.ref_logp = Some(side.logp.clone());
    }
    for loss_type in ALL {
        assert_eq!(loss(&Settings { loss_type, ..Settings::default() }, &p).loss, 0.5);
    }
}

#[test]
fn a_completion_is_held_against_the_other_sides_baseline() {
    // A single chosen completion: its own log-ratio is not part of its baseline.
    let one = part(&shifted(5, 3.0, -3.0), 1..2);
    let of = |loss_type| loss(&Settings { loss_type, undesirable_weight: 0.0, ..Settings::default() }, &one).loss;
    assert_eq!(of(LossType::Kto), of(LossType::ApoZeroUnpaired));
}

fn side(logp: &[f32], ref_logp: &[f32]) -> Side {
    let offsets = (0..=logp.len() as u32).collect();
    let mean_logits = Some(logp.iter().map(|l| 2.0 * l).collect());
    Side { offsets, logp: logp.to_vec(), ref_logp: Some(ref_logp.to_vec()), mean_logits }
}

#[test]
fn huge_log_ratios_stay_finite() {
    let scale = Scale { rows: 1, tokens: 1, max_completion_length: 0 };
    for loss_type in ALL {
        for (chosen, rejected) in [(-1e5, 0.0), (0.0, -1e5), (0.0, 0.0), (-1e5, -1e5)] {
            let p = Pairs { step: 0, chosen: side(&[chosen], &[-5e4]), rejected: side(&[rejected], &[-5e4]), scale };
            let got = loss(&Settings { loss_type, ..Settings::default() }, &p);
            assert!(got.loss.is_finite() && got.d_chosen[0].is_finite() && got.d_rejected[0].is_finite(), "{got:?}");
        }
    }
}

#[test]
fn figures_are_those_of_trl() {
    let (chosen, rejected) = (side(&[-1.0, -4.0], &[-4.0, -2.0]), side(&[-2.0, -3.0], &[-3.0, -4.0]));
    let p = Pairs { step: 0, chosen, rejected, scale: Scale { rows: 2, tokens: 2, max_completion_length: 0 } };
    let given = |loss_type| -> Vec<(String, f64, f64)> {
        let s = Settings { loss_type, beta: 0.5, ..Settings::default() };
        loss(&s, &p).metrics.into_iter().map(|m| (m.name, m.value, m.weight)).collect()
    };
    // Log-ratios 3, -2 of the chosen and 1, 1 of the rejected: baselines 0.5 and 1.
    let wanted = [
        ("rewards/chosen", 0.25, 2.0),
        ("rewards/rejected", 0.5, 2.0),
        ("rewards/accuracies", 0.5, 2.0),
        ("rewards/margins", -0.25, 2.0),
        ("logps/chosen", -2.5, 2.0),
        ("logps/rejected", -2.5, 2.0),
        ("logits/chosen", -5.0, 2.0),
        ("logits/rejected", -5.0, 2.0),
        ("kl", 0.75, 2.0),
    ];
    let wanted: Vec<(String, f64, f64)> = wanted.into_iter().map(|(name, v, w)| (name.to_owned(), v, w)).collect();
    assert_eq!(given(LossType::Kto), wanted);
    assert_eq!(given(LossType::ApoZeroUnpaired), wanted[..8]);
}

#[test]
fn a_missing_reference_and_a_beta_of_zero_are_refused() {
    let mut p = pairs(1);
    p.rejected.ref_logp = None;
    assert!(matches!(Kto::new(Settings::default()).unwrap().loss(&p), Err(Error::Input(_))));
    assert!(matches!(Kto::new(Settings { beta: 0.0, ..Settings::default() }), Err(Error::Config(_))));
}
