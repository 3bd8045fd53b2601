//! Compares the plugin with the paper's formula in f64.

use super::*;
use rlhost_plugin_sdk::preference::testing::{assert_follows, in_parts, pairs};
use rlhost_plugin_sdk::preference::{PairPrompts, PairSide, Scale};

fn loss(beta: f64, p: &PreferencePairs) -> PreferenceGradient {
    Orpo::new(OrpoSettings { beta, prompt_likelihood: false }).unwrap().loss(p).unwrap()
}

/// Computes equations 4 to 7 of the paper, from probabilities.
fn closed_form(beta: f64, p: &PreferencePairs, chosen: &[f64], rejected: &[f64]) -> f64 {
    let odds = |side: &PairSide, logp: &[f64]| -> Vec<f64> {
        let rows = side.offsets.windows(2).map(|w| &logp[w[0] as usize..w[1] as usize]);
        let probabilities = rows.map(|row| (row.iter().sum::<f64>() / row.len() as f64).exp());
        probabilities.map(|p| p / (1.0 - p)).collect()
    };
    let ratios = odds(&p.chosen, chosen).into_iter().zip(odds(&p.rejected, rejected)).map(|(c, r)| c / r);
    let log_sigmas = ratios.map(|ratio| (1.0 / (1.0 + (-ratio.ln()).exp())).ln());
    -chosen.iter().sum::<f64>() / p.scale.tokens as f64 - beta * log_sigmas.sum::<f64>() / f64::from(p.scale.items)
}

#[test]
fn loss_and_gradient_follow_the_closed_form() {
    for (seed, beta) in [0.0, 0.1, 1.3].into_iter().enumerate() {
        let p = pairs(seed as u64);
        assert_follows(&loss(beta, &p), &p, &format!("beta {beta}"), |c, r| closed_form(beta, &p, c, r));
    }
}

#[test]
fn the_likelihood_includes_the_prompts_as_in_trl() {
    let mut p = pairs(7);
    // Prompts of 3, 0, 2, 1 and 4 tokens after the first, in a step whose prompts have 14.
    let logp: Vec<f32> = (0..10).map(|i| -0.1 - 0.3 * i as f32).collect();
    let of_prompts: Vec<f64> = logp.iter().map(|&l| f64::from(l)).collect();
    p.prompts = Some(PairPrompts { offsets: vec![0, 3, 3, 5, 6, 10], logp });
    p.scale.prompt_tokens = 14;
    let mut orpo = Orpo::new(OrpoSettings { beta: 0.4, ..OrpoSettings::default() }).unwrap();
    let got = orpo.loss(&p).unwrap();
    let wanted = |of_prompts: &[f64], chosen: &[f64], rejected: &[f64]| {
        let odds = closed_form(0.4, &p, chosen, rejected) + chosen.iter().sum::<f64>() / p.scale.tokens as f64;
        odds - of_prompts.iter().chain(chosen).sum::<f64>() / (31.0 + 14.0)
    };
    assert_follows(&got, &p, "with prompts", |chosen, rejected| wanted(&of_prompts, chosen, rejected));
    let d_prompts = got.d_prompts.unwrap();
    assert!(d_prompts.iter().all(|d| (d + 1.0 / 45.0).abs() < 1e-9) && d_prompts.len() == 10);
    let nll = got.metrics.iter().find(|m| m.name == "nll_loss").unwrap();
    let all: Vec<f64> = of_prompts.into_iter().chain(p.chosen.logp.iter().map(|&l| f64::from(l))).collect();
    assert!((nll.value + all.iter().sum::<f64>() / 26.0).abs() < 1e-12 && nll.weight == 26.0);

    assert!(Orpo::needs(&OrpoSettings::default()).has("prompt_logp"));
    assert!(!Orpo::needs(&OrpoSettings { prompt_likelihood: false, ..OrpoSettings::default() }).has("prompt_logp"));
    assert!(matches!(orpo.loss(&PreferencePairs { prompts: None, ..p }), Err(Error::Input(_))));
}

#[test]
fn micro_batches_add_up_to_the_whole() {
    let p = pairs(5);
    let (whole, sum) = (loss(0.1, &p), in_parts(&p, |p| loss(0.1, p)));
    assert!((sum.loss - whole.loss).abs() < 1e-12);
    assert_eq!((sum.d_chosen, sum.d_rejected), (whole.d_chosen, whole.d_rejected));
}

fn pair(chosen: &[f32], rejected: &[f32]) -> PreferencePairs {
    let side = |logp: &[f32]| PairSide { offsets: vec![0, logp.len() as u32], logp: logp.to_vec(), ..PairSide::default() };
    let scale = Scale { items: 1, tokens: chosen.len() as u64, ..Scale::default() };
    PreferencePairs { chosen: side(chosen), rejected: side(rejected), scale, ..PreferencePairs::default() }
}

#[test]
fn certain_and_impossible_completions_stay_finite() {
    for (chosen, rejected) in [(0.0, 0.0), (-1e5, 0.0), (0.0, -1e5), (-1e5, -1e5), (-1e-9, -1.0), (-1.0, -1e-9)] {
        let got = loss(0.1, &pair(&[chosen], &[rejected]));
        let finite = got.metrics.iter().all(|m| m.value.is_finite());
        assert!(finite && got.loss.is_finite() && got.d_chosen[0].is_finite() && got.d_rejected[0].is_finite(), "{got:?}");
    }
}

#[test]
fn figures_are_those_of_trl() {
    let ln = |p: f32| p.ln();
    let p = pair(&[ln(0.8), ln(0.8)], &[ln(0.5)]);
    let figures = loss(0.1, &p).metrics;
    let figure = |name: &str| figures.iter().find(|m| m.name == name).map(|m| (m.value, m.weight)).unwrap();
    let close = |name: &str, value: f64, weight: f64| {
        let (got, by) = figure(name);
        assert!((got - value).abs() < 1e-6 && by == weight, "{name}: {got} against {value}");
    };
    // Odds 4 against 1.
    close("log_odds_chosen", 4.0f64.ln(), 1.0);
    close("log_odds_ratio", 0.8f64.ln(), 1.0);
    close("nll_loss", -0.8f64.ln(), 2.0);
    close("logps/chosen", 0.8f64.ln(), 1.0);
    close("rewards/chosen", 0.1 * 0.8f64.ln(), 1.0);
    close("rewards/rejected", 0.1 * 0.5f64.ln(), 1.0);
    close("rewards/accuracies", 1.0, 1.0);
    close("rewards/margins", 0.1 * 1.6f64.ln(), 1.0);
}

#[test]
fn equal_completions_lose_ln_2_at_the_weight_of_the_odds() {
    let p = pair(&[-0.7], &[-0.7, -0.7]);
    let odds = loss(1.0, &p).loss - loss(0.0, &p).loss;
    assert!((odds - std::f64::consts::LN_2).abs() < 1e-7);
}
