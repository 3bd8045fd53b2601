//! Compares the plugin with the formula in f64, and its derivatives with finite differences.

use super::*;
use rlhost_plugin_sdk::reward_model::Scale;

fn pairs(margin: bool) -> RewardModelPairs {
    let scale = Scale { items: 7, tokens: 0, ..Scale::default() };
    let margin = margin.then(|| vec![0.5, 0.0, -1.25, 3.0]);
    RewardModelPairs { step: 0, chosen: vec![1.5, -0.25, 0.0, 4.0], rejected: vec![0.5, 0.75, 0.0, -3.0], margin, scale }
}

fn loss(coefficient: Option<f64>, pairs: &RewardModelPairs) -> RewardModelGradient {
    BradleyTerry::new(BradleyTerrySettings { center_rewards_coefficient: coefficient }).unwrap().loss(pairs).unwrap()
}

/// Computes the formula from probabilities.
fn closed_form(coefficient: f64, pairs: &RewardModelPairs, chosen: &[f64], rejected: &[f64]) -> f64 {
    let term = |row: usize| {
        let margin = pairs.margin.as_ref().map_or(0.0, |margin| f64::from(margin[row]));
        let wins = 1.0 / (1.0 + (rejected[row] + margin - chosen[row]).exp());
        coefficient * (chosen[row] + rejected[row]).powi(2) - wins.ln()
    };
    (0..chosen.len()).map(term).sum::<f64>() / 7.0
}

#[test]
fn loss_and_gradient_follow_the_closed_form() {
    for (margin, coefficient) in [(false, None), (true, None), (false, Some(0.01)), (true, Some(0.3))] {
        let p = pairs(margin);
        let got = loss(coefficient, &p);
        let wide = |column: &[f32]| column.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
        let sides = [wide(&p.chosen), wide(&p.rejected)];
        let at = |sides: &[Vec<f64>; 2]| closed_form(coefficient.unwrap_or(0.0), &p, &sides[0], &sides[1]);
        assert!((got.loss - at(&sides)).abs() < 1e-12, "{} against {}", got.loss, at(&sides));
        for (side, given) in [&got.d_chosen, &got.d_rejected].into_iter().enumerate() {
            for (row, d) in given.iter().enumerate() {
                let moved = |by: f64| {
                    let mut sides = sides.clone();
                    sides[side][row] += by;
                    at(&sides)
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!((f64::from(*d) - slope).abs() < 1e-6, "{margin} {coefficient:?}: {d} against {slope}");
            }
        }
    }
}

#[test]
fn a_coefficient_of_zero_centers_nothing_and_values_of_any_size_stay_finite() {
    let p = pairs(true);
    assert_eq!(loss(Some(0.0), &p).loss, loss(None, &p).loss);
    let huge = RewardModelPairs { chosen: vec![-1e30, 1e30, 0.0, 0.0], ..p };
    let got = loss(None, &huge);
    assert!(got.loss.is_finite() && got.d_chosen.iter().chain(&got.d_rejected).all(|d| d.is_finite()), "{got:?}");
}

#[test]
fn micro_batches_add_up_to_the_whole() {
    let p = pairs(true);
    let part = |rows: std::ops::Range<usize>| {
        let margin = p.margin.as_ref().map(|margin| margin[rows.clone()].to_vec());
        loss(
            Some(0.1),
            &RewardModelPairs {
                chosen: p.chosen[rows.clone()].to_vec(),
                rejected: p.rejected[rows].to_vec(),
                margin,
                ..p.clone()
            },
        )
    };
    let (whole, first, second) = (loss(Some(0.1), &p), part(0..1), part(1..4));
    assert!((whole.loss - first.loss - second.loss).abs() < 1e-12);
    assert_eq!(whole.d_chosen, [first.d_chosen, second.d_chosen].concat());
}

#[test]
fn figures_are_those_of_trl() {
    let figures = loss(None, &pairs(false)).metrics;
    let given: Vec<(&str, f64, f64)> = figures.iter().map(|m| (m.name.as_str(), m.value, m.weight)).collect();
    let wanted = [
        // Equal values are no success.
        ("accuracy", 0.5, 4.0),
        ("margin", 1.75, 4.0),
        ("min_reward", -3.0, 1.0),
        ("mean_reward", 0.4375, 8.0),
        ("max_reward", 4.0, 1.0),
    ];
    assert_eq!(given, wanted);
}
