//! The plugin against closed forms written from the papers' formulas.

use super::*;
use rlhost_plugin_sdk::policy::{RewardColumn, Scale};

fn rollouts(rewards: &[Option<f32>], group: usize, finished: &[bool]) -> Rollouts {
    let rows = rewards.len() as u32;
    Rollouts {
        step: 0,
        rewards: vec![RewardColumn { name: "r".into(), weight: 2.0, values: rewards.to_vec() }],
        prompt_of: (0..rows).map(|i| i / group as u32).collect(),
        finished: finished.to_vec(),
        offsets: (0..=rows).map(|i| i * 2).collect(),
        mask: vec![1; 2 * rewards.len()],
        logp: vec![-1.0; 2 * rewards.len()],
        ref_logp: None,
        values: None,
        entropy: None,
    }
}

fn advantages(settings: Settings, rollouts: &Rollouts) -> Vec<f32> {
    let all = Grpo::new(settings).unwrap().estimate(rollouts).unwrap().advantages;
    assert!(all.chunks(2).all(|pair| pair[0] == pair[1]), "all tokens of a completion have its advantage");
    all.chunks(2).map(|pair| pair[0]).collect()
}

fn close(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((f64::from(*g) - w).abs() <= 1e-5 * w.abs().max(1.0), "{got:?} against {want:?}");
    }
}

#[test]
fn advantages_follow_each_scaling() {
    let r = rollouts(&[Some(1.0), Some(2.0), Some(6.0), Some(0.0), Some(0.0), Some(3.0)], 3, &[true; 6]);
    // Weighted by 2: groups (2, 4, 12) with mean 6 and (0, 0, 6) with mean 2.
    let centred = [-4.0, -2.0, 6.0, -2.0, -2.0, 4.0];
    let std = |squares: f64, n: f64| (squares / (n - 1.0)).sqrt() + 1e-4;
    let (a, b) = (std(16.0 + 4.0 + 36.0, 3.0), std(4.0 + 4.0 + 16.0, 3.0));
    // The whole: mean 4.
    let whole = std(4.0 + 0.0 + 64.0 + 16.0 + 16.0 + 4.0, 6.0);
    let with = |scale_rewards| advantages(Settings { scale_rewards, ..Settings::default() }, &r);
    close(&with(ScaleRewards::None), &centred);
    close(&with(ScaleRewards::Group), &[-4.0 / a, -2.0 / a, 6.0 / a, -2.0 / b, -2.0 / b, 4.0 / b]);
    close(&with(ScaleRewards::Batch), &centred.map(|c| c / whole));
}

#[test]
fn unscorable_rows_have_no_advantage_and_count_in_no_baseline() {
    let r = rollouts(&[Some(1.0), None, Some(3.0), None, None, Some(5.0)], 3, &[true; 6]);
    let none = Settings { scale_rewards: ScaleRewards::None, ..Settings::default() };
    close(&advantages(none, &r), &[-2.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
    // A group with a single score has no spread; it must not become NaN.
    assert!(advantages(Settings::default(), &r).iter().all(|a| a.is_finite()));
}

#[test]
fn figures_are_those_of_trl() {
    let figures = |rewards: &[Option<f32>], group: usize, scale_rewards| {
        let r = rollouts(rewards, group, &vec![true; rewards.len()]);
        let given = Grpo::new(Settings { scale_rewards, ..Settings::default() }).unwrap().estimate(&r).unwrap();
        move |name: &str| given.metrics.iter().find(|m| m.name == name).map(|m| m.value)
    };
    // Weighted by 2: (2, 6) and (4, 4). The deviation is that of all four, whatever the scaling.
    for scaling in [ScaleRewards::Group, ScaleRewards::Batch, ScaleRewards::None] {
        let of = figures(&[Some(1.0), Some(3.0), Some(2.0), Some(2.0)], 2, scaling);
        assert_eq!((of("reward"), of("reward_std")), (Some(4.0), Some((8.0f64 / 3.0).sqrt())));
        let zero = if scaling == ScaleRewards::Batch { 0.0 } else { 0.5 };
        assert_eq!(of("frac_reward_zero_std"), Some(zero));
    }
    // A group with one score has no deviation.
    let of = figures(&[Some(1.0), None, Some(2.0), Some(2.0)], 2, ScaleRewards::Group);
    assert_eq!(of("frac_reward_zero_std"), Some(0.5));
}

#[test]
fn truncated_rows_leave_the_loss_and_stay_in_the_baseline() {
    let r = rollouts(&[Some(1.0), Some(3.0)], 2, &[true, false]);
    let settings = Settings { mask_truncated_completions: true, scale_rewards: ScaleRewards::None, ..Settings::default() };
    let given = Grpo::new(settings).unwrap().estimate(&r).unwrap();
    assert_eq!(given.mask, Some(vec![1, 1, 0, 0]));
    close(&given.advantages, &[-2.0, -2.0, 2.0, 2.0]);
}

/// Made-up columns for three rows of unequal lengths, one token of them masked.
fn tokens() -> Tokens {
    let n = 9;
    let wave = |i: usize, f: f32| (i as f32 * f).sin();
    let logp: Vec<f32> = (0..n).map(|i| -1.5 + wave(i, 1.1)).collect();
    Tokens {
        step: 0,
        offsets: vec![0, 4, 5, 9],
        mask: vec![1, 1, 0, 1, 1, 1, 1, 1, 1],
        advantages: [[1.3; 4].as_slice(), &[-0.7], &[-1.1; 4]].concat(),
        old_logp: (0..n).map(|i| logp[i] - 0.5 * wave(i, 2.3)).collect(),
        ref_logp: Some((0..n).map(|i| logp[i] + 0.4 * wave(i, 0.9)).collect()),
        logp,
        sampling_logp: None,
        entropy: None,
        values: None,
        old_values: None,
        returns: None,
        scale: Scale { rows: 5, tokens: 20, max_completion_length: 7 },
    }
}

/// The loss in f64, straight from the formulas.
fn closed_form(s: &Settings, t: &Tokens, logp: &[f64]) -> f64 {
    let mut total = 0.0;
    for row in t.offsets.windows(2) {
        let row: Vec<usize> = (row[0] as usize..row[1] as usize).filter(|&i| t.mask[i] == 1).collect();
        let mut sum = 0.0;
        for &i in &row {
            let ratio = (logp[i] - f64::from(t.old_logp[i])).exp();
            let a = f64::from(t.advantages[i]);
            let unclipped = s.delta.map_or(ratio, |d| ratio.min(d)) * a;
            let clipped = ratio.clamp(1.0 - s.epsilon, 1.0 + s.epsilon_high.unwrap_or(s.epsilon)) * a;
            let d = f64::from(t.ref_logp.as_ref().unwrap()[i]) - logp[i];
            let kl = (d.exp() - d - 1.0) * if s.use_bias_correction_kl { ratio } else { 1.0 };
            sum += -unclipped.min(clipped) + s.beta * kl;
        }
        total += match s.loss_type {
            LossType::Grpo => sum / row.len() as f64 / 5.0,
            LossType::Bnpo | LossType::Dapo => sum / 20.0,
            LossType::DrGrpo => sum / (5.0 * 7.0),
        };
    }
    total
}

#[test]
fn loss_and_gradient_follow_the_closed_form_for_every_type() {
    let t = tokens();
    let at: Vec<f64> = t.logp.iter().map(|&x| f64::from(x)).collect();
    for loss_type in [LossType::Grpo, LossType::Bnpo, LossType::DrGrpo, LossType::Dapo] {
        for (epsilon_high, delta, beta, use_bias_correction_kl) in
            [(None, None, 0.0, true), (Some(0.28), None, 0.3, true), (Some(0.4), Some(1.5), 0.3, false)]
        {
            let s = Settings { loss_type, epsilon_high, delta, beta, use_bias_correction_kl, ..Settings::default() };
            let got = Grpo::new(s.clone()).unwrap().loss(&t).unwrap();
            let want = closed_form(&s, &t, &at);
            assert!((got.loss - want).abs() < 1e-6, "{s:?}: {} against {want}", got.loss);
            for i in 0..at.len() {
                let h = 1e-5;
                let moved = |by: f64| closed_form(&s, &t, &[&at[..i], &[at[i] + by], &at[i + 1..]].concat());
                let slope = (moved(h) - moved(-h)) / (2.0 * h);
                assert!((f64::from(got.d_logp[i]) - slope).abs() < 1e-5, "{s:?}: token {i}: {} against {slope}", got.d_logp[i]);
            }
        }
    }
}

#[test]
fn clipping_is_counted_by_side_and_kl_is_averaged_over_tokens() {
    let mut t = tokens();
    t.old_logp = t.logp.iter().enumerate().map(|(i, l)| l - [0.5, -0.5, 0.5, 0.0, -0.5, 0.5, 0.0, 0.0, -0.5][i]).collect();
    let got = Grpo::new(Settings { beta: 0.1, use_bias_correction_kl: false, ..Settings::default() }).unwrap().loss(&t).unwrap();
    let figure = |name: &str| got.metrics.iter().find(|m| m.name == name).map(|m| (m.value, m.weight)).unwrap();
    // Eight tokens count; token 0 rises with a positive advantage, 4 and 8 fall with a negative one.
    assert_eq!(figure("clip_ratio/high_mean"), (1.0 / 8.0, 8.0));
    assert_eq!(figure("clip_ratio/low_mean"), (2.0 / 8.0, 8.0));
    assert_eq!(figure("clip_ratio/region_mean"), (3.0 / 8.0, 8.0));
    // Of the three completions, by tokens that count: low 0/3, 1/1, 1/4 and high 1/3, 0, 0.
    assert_eq!(figure("clip_ratio/low_min"), (0.0, 1.0));
    assert_eq!(figure("clip_ratio/high_max"), (1.0 / 3.0, 1.0));
    let kl: f64 = (0..9)
        .filter(|i| t.mask[*i] == 1)
        .map(|i| {
            let d = f64::from(t.ref_logp.as_ref().unwrap()[i] - t.logp[i]);
            d.exp() - d - 1.0
        })
        .sum();
    assert!((figure("kl").0 - kl / 8.0).abs() < 1e-6);
}

#[test]
fn delta_must_exceed_the_clipping_range() {
    assert!(matches!(Grpo::new(Settings { delta: Some(1.1), ..Settings::default() }), Err(Error::Config(_))));
}
