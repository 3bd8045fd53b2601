//! Tests pairs and metrics against numbers worked out by hand, and the loss against its formula in f64.

use super::*;
use rlhost_plugin_sdk::pairing::RewardColumn;
use rlhost_plugin_sdk::preference::testing::{assert_follows, in_parts, pairs};
use rlhost_plugin_sdk::preference::{PairSide, Scale};

fn algorithm(settings: OnlineDpoSettings) -> OnlineDpo {
    OnlineDpo::new(settings).unwrap()
}

fn rollouts(rewards: &[Option<f32>], prompt_of: &[u32], finished: &[bool]) -> Rollouts {
    let rows = rewards.len();
    Rollouts {
        rewards: vec![RewardColumn { name: "r".into(), weight: 2.0, values: rewards.to_vec() }],
        prompt_of: prompt_of.to_vec(),
        finished: finished.to_vec(),
        offsets: (0..=rows as u32).map(|i| i * 2).collect(),
        mask: vec![1; 2 * rows],
        logp: vec![-1.0; 2 * rows],
        ref_logp: Some(vec![-1.25; 2 * rows]),
        ..Rollouts::default()
    }
}

fn chosen(settings: OnlineDpoSettings, rollouts: &Rollouts) -> Vec<(u32, u32)> {
    algorithm(settings).choose(rollouts).unwrap().pairs.iter().map(|p| (p.chosen, p.rejected)).collect()
}

#[test]
fn the_higher_reward_is_chosen_and_the_first_of_equals() {
    let r = rollouts(&[Some(1.0), Some(3.0), Some(2.0), Some(2.0), Some(0.0), Some(-1.0)], &[0, 0, 1, 1, 2, 2], &[true; 6]);
    assert_eq!(chosen(OnlineDpoSettings::default(), &r), [(1, 0), (2, 3), (4, 5)]);
    // A prompt's completions need not be adjacent.
    let r = rollouts(&[Some(1.0), Some(3.0), Some(2.0), Some(2.0)], &[0, 1, 0, 1], &[true; 4]);
    assert_eq!(chosen(OnlineDpoSettings::default(), &r), [(2, 0), (1, 3)]);
}

#[test]
fn a_completion_that_did_not_end_loses_its_penalty() {
    let r = rollouts(&[Some(1.5), Some(1.0)], &[0, 0], &[false, true]);
    let with = |missing_eos_penalty| chosen(OnlineDpoSettings { missing_eos_penalty, ..OnlineDpoSettings::default() }, &r);
    assert_eq!(with(None), [(0, 1)]);
    // Rewards weigh 2: 3 - 0.9 against 2, and 3 - 1.1.
    assert_eq!(with(Some(0.9)), [(0, 1)]);
    assert_eq!(with(Some(1.1)), [(1, 0)]);
}

#[test]
fn pairs_without_a_reward_are_left_out() {
    let r = rollouts(&[None, Some(3.0), None, None, Some(1.0), Some(2.0)], &[0, 0, 1, 1, 2, 2], &[true; 6]);
    assert_eq!(chosen(OnlineDpoSettings::default(), &r), [(5, 4)]);
}

#[test]
fn two_completions_of_each_prompt_are_needed() {
    let r = rollouts(&[Some(1.0); 3], &[0, 0, 0], &[true; 3]);
    assert!(matches!(algorithm(OnlineDpoSettings::default()).choose(&r), Err(Error::Config(_))));
}

#[test]
fn figures_of_a_generation_are_those_of_trl() {
    let mut r = rollouts(&[Some(1.0), Some(3.0), None, Some(2.0)], &[0, 0, 1, 1], &[true, false, true, true]);
    r.mask[1] = 0;
    let settings = OnlineDpoSettings { beta: 0.5, missing_eos_penalty: Some(1.0), ..OnlineDpoSettings::default() };
    let given = algorithm(settings).choose(&r).unwrap().metrics;
    let figure = |name: &str| given.iter().find(|m| m.name == name).map(|m| (m.value, m.weight)).unwrap();
    // Scores 2, 6 - 1 and 4; log-ratios of 0.25 per token for 1, 2, 2 and 2 tokens.
    assert_eq!(figure("objective/scores"), (11.0 / 3.0, 3.0));
    assert_eq!(figure("objective/scores_margin"), (3.0, 1.0));
    assert_eq!(figure("objective/entropy"), (7.0 / 4.0, 4.0));
    assert_eq!(figure("objective/kl"), (7.0 / 16.0, 4.0));
    assert_eq!(figure("objective/non_score_reward"), (-7.0 / 32.0, 4.0));
    assert_eq!(figure("objective/rlhf_reward"), ((11.0 - 0.5 * 0.25 * 5.0) / 3.0, 3.0));
    assert_eq!(figure("val/contain_eos_token"), (3.0 / 4.0, 4.0));
    assert_eq!(given.len(), 7);
}

/// Computes the loss directly from the formulas.
fn closed_form(s: &OnlineDpoSettings, p: &PreferencePairs, chosen: &[f64], rejected: &[f64]) -> f64 {
    let log_ratios = |side: &PairSide, logp: &[f64]| -> Vec<f64> {
        let reference = side.ref_logp.as_ref().unwrap();
        let rows = side.offsets.windows(2).map(|w| w[0] as usize..w[1] as usize);
        rows.map(|row| row.map(|i| logp[i] - f64::from(reference[i])).sum()).collect()
    };
    let x = log_ratios(&p.chosen, chosen).into_iter().zip(log_ratios(&p.rejected, rejected)).map(|(c, r)| c - r);
    let losses = x.map(|x| match s.loss_type {
        OnlineDpoLossType::Sigmoid => (1.0 + (-s.beta * x).exp()).ln(),
        OnlineDpoLossType::Ipo => (x - 1.0 / (2.0 * s.beta)).powi(2),
    });
    losses.sum::<f64>() / f64::from(p.scale.items)
}

#[test]
fn loss_and_gradient_follow_the_closed_form_and_add_up_over_micro_batches() {
    for loss_type in [OnlineDpoLossType::Sigmoid, OnlineDpoLossType::Ipo] {
        for (seed, beta) in [0.1, 0.8].into_iter().enumerate() {
            let (s, p) = (OnlineDpoSettings { loss_type, beta, ..OnlineDpoSettings::default() }, pairs(seed as u64));
            let loss = |p: &PreferencePairs| algorithm(s.clone()).loss(p).unwrap();
            let whole = loss(&p);
            assert_follows(&whole, &p, &format!("{s:?}"), |chosen, rejected| closed_form(&s, &p, chosen, rejected));
            let sum = in_parts(&p, loss);
            assert!((sum.loss - whole.loss).abs() < 1e-12);
            assert_eq!((sum.d_chosen, sum.d_rejected), (whole.d_chosen, whole.d_rejected));
        }
    }
}

#[test]
fn a_policy_that_is_its_reference_loses_ln_2_and_huge_margins_stay_finite() {
    let side = |logp: f32, ref_logp: f32| PairSide {
        offsets: vec![0, 1],
        logp: vec![logp],
        ref_logp: Some(vec![ref_logp]),
        ..PairSide::default()
    };
    let scale = Scale { items: 1, tokens: 1, ..Scale::default() };
    let of = |chosen, rejected, loss_type| {
        let p = PreferencePairs { chosen, rejected, scale, ..PreferencePairs::default() };
        algorithm(OnlineDpoSettings { loss_type, ..OnlineDpoSettings::default() }).loss(&p).unwrap()
    };
    let equal = of(side(-3.0, -3.0), side(-9.0, -9.0), OnlineDpoLossType::Sigmoid);
    assert!((equal.loss - std::f64::consts::LN_2).abs() < 1e-12);
    for loss_type in [OnlineDpoLossType::Sigmoid, OnlineDpoLossType::Ipo] {
        for (c, r) in [(-1e5, 0.0), (0.0, -1e5)] {
            let got = of(side(c, -1.0), side(r, -1.0), loss_type);
            assert!(got.loss.is_finite() && got.d_chosen[0].is_finite() && got.d_rejected[0].is_finite(), "{got:?}");
        }
    }
}

#[test]
fn figures_of_a_step_are_those_of_trl() {
    let side = |logp: [f32; 2], ref_logp: [f32; 2]| PairSide {
        offsets: vec![0, 1, 2],
        logp: logp.to_vec(),
        ref_logp: Some(ref_logp.to_vec()),
        ..PairSide::default()
    };
    let scale = Scale { items: 2, tokens: 2, ..Scale::default() };
    let p = PreferencePairs {
        chosen: side([-1.0, -2.0], [-2.0, -1.0]),
        rejected: side([-3.0, -4.0], [-2.0, -1.0]),
        scale,
        ..PreferencePairs::default()
    };
    let given = algorithm(OnlineDpoSettings { beta: 0.5, ..OnlineDpoSettings::default() }).loss(&p).unwrap().metrics;
    let given: Vec<(&str, f64, f64)> = given.iter().map(|m| (m.name.as_str(), m.value, m.weight)).collect();
    let wanted = [
        ("rewards/chosen", 0.0, 2.0),
        ("rewards/rejected", -1.0, 2.0),
        ("rewards/accuracies", 1.0, 2.0),
        ("rewards/margins", 1.0, 2.0),
        ("logps/chosen", -1.5, 2.0),
        ("logps/rejected", -3.5, 2.0),
        ("beta", 0.5, 2.0),
    ];
    assert_eq!(given, wanted);
}
