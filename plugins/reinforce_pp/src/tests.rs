//! Compares the plugin with numbers worked out by hand and a closed form in f64.

use super::*;
use rlhost_plugin_sdk::policy::testing::{close, find_metric};
use rlhost_plugin_sdk::policy::{RewardColumn, Scale, Turns};

/// Returns two prompts of two completions, of two, one, one and two tokens; the third is unscorable. The first and the last token are 0.5
/// nats from the reference.
fn rollouts() -> Rollouts {
    Rollouts {
        rewards: vec![RewardColumn { name: "r".into(), weight: 2.0, values: vec![Some(1.0), Some(2.0), None, Some(-3.0)] }],
        prompt_of: vec![0, 0, 1, 1],
        finished: vec![true; 4],
        offsets: vec![0, 2, 3, 4, 6],
        mask: vec![1; 6],
        logp: vec![-1.0, -1.0, -1.0, -9.0, -1.0, -1.0],
        ref_logp: Some(vec![-1.5, -1.0, -1.0, -1.0, -1.0, -1.5]),
        ..Rollouts::default()
    }
}

fn estimated(s: &ReinforcePpSettings, r: &Rollouts) -> Advantages {
    ReinforcePp::new(s.clone()).unwrap().estimate(r).unwrap()
}

/// Subtracts the mean and divides by the deviation (n); adds a zero for the fourth token, which doesn't count.
fn normalized(returns: [f64; 5]) -> Vec<f64> {
    let mean = returns.iter().sum::<f64>() / 5.0;
    let std = (returns.iter().map(|r| (r - mean) * (r - mean)).sum::<f64>() / 5.0).sqrt();
    let mut all: Vec<f64> = returns.iter().map(|r| (r - mean) / std).collect();
    all.insert(3, 0.0);
    all
}

#[test]
fn advantages_are_returns_normalized_over_the_batch() {
    let s = ReinforcePpSettings { kl_coef: 0.2, gamma: 0.5, ..ReinforcePpSettings::default() };
    let given = estimated(&s, &rollouts());
    // Rewards (-0.1, 2), (4) and (0, -6 - 0.1).
    close("plain", &given.advantages, &normalized([-0.1 + 1.0, 2.0, 4.0, -3.05, -6.1]));
    assert_eq!(given.mask, Some(vec![1, 1, 1, 0, 1, 1]));
    assert_eq!(find_metric(&given.metrics, "reward"), Some((0.0, 3.0)));
    assert_eq!(find_metric(&given.metrics, "kl"), Some((0.2, 5.0)));
    let (returned, weight) = find_metric(&given.metrics, "return").unwrap();
    assert!((returned + 0.2 / 3.0).abs() < 1e-9 && weight == 3.0);

    let clipped = estimated(&ReinforcePpSettings { reward_clip_range: Some((-1.0, 3.0)), ..s }, &rollouts());
    close("clipped", &clipped.advantages, &normalized([-0.1 + 1.0, 2.0, 3.0, -0.55, -1.1]));
    let squares = ReinforcePpSettings { kl_estimator: ReinforcePpKlEstimator::K2, ..s };
    let returns = [-0.025 + 1.0, 2.0, 4.0, -3.0125, -6.025];
    close("k2", &estimated(&squares, &rollouts()).advantages, &normalized(returns));
    let k3 = 0.2 * ((-0.5f64).exp() - 0.5);
    let positive = ReinforcePpSettings { kl_estimator: ReinforcePpKlEstimator::K3, ..s };
    let returns = [-k3 + 1.0, 2.0, 4.0, -3.0 - 0.5 * k3, -6.0 - k3];
    close("k3", &estimated(&positive, &rollouts()).advantages, &normalized(returns));
}

#[test]
fn a_tokens_divergence_is_limited_in_rewards_and_in_the_loss() {
    for (estimator, beyond) in [
        (ReinforcePpKlEstimator::K1, [(30.0, 10.0), (-30.0, -10.0)]),
        (ReinforcePpKlEstimator::K2, [(30.0, 10.0), (-5.0, 10.0)]),
        (ReinforcePpKlEstimator::K3, [(30.0, 10.0), (-5000.0, 10.0)]),
    ] {
        for (log_ratio, kl) in beyond {
            let r = Rollouts { ref_logp: Some(vec![-1.0 - log_ratio, -1.0, -1.0, -1.0, -1.0, -1.0]), ..rollouts() };
            let s = ReinforcePpSettings { kl_coef: 0.2, kl_estimator: estimator, ..ReinforcePpSettings::default() };
            let returns = [2.0 - 0.2 * kl, 2.0, 4.0, -6.0, -6.0];
            close("limited", &estimated(&s, &r).advantages, &normalized(returns.map(|r: f32| f64::from(r))));

            let in_loss = estimator.estimate(Dual::variable(log_ratio));
            assert_eq!((in_loss.value, in_loss.slope()), (f64::from(kl), 0.0), "{estimator:?} at {log_ratio}");
        }
    }
    assert_eq!(ReinforcePpKlEstimator::K1.estimate(Dual::variable(9.0f32)).slope(), 1.0);
}

#[test]
fn a_group_baseline_knows_no_discount_and_what_is_hardly_meant_is_said() {
    let grouped = |gamma: f64| ReinforcePpSettings { baseline: Baseline::Group, gamma, ..ReinforcePpSettings::default() };
    let [whole, discounted] = [1.0, 0.5].map(|gamma| estimated(&grouped(gamma), &rollouts()).advantages);
    assert_eq!(whole, discounted);
    let plain = |gamma: f64| estimated(&ReinforcePpSettings { gamma, ..ReinforcePpSettings::default() }, &rollouts()).advantages;
    assert_ne!(plain(1.0), plain(0.5));

    let in_loss = |kl_estimator| ReinforcePpSettings { use_kl_loss: true, kl_estimator, ..ReinforcePpSettings::default() };
    let doubted = |s: ReinforcePpSettings| s.warnings().join("; ");
    assert_eq!((doubted(ReinforcePpSettings::default()), doubted(grouped(1.0))), (String::new(), String::new()));
    assert!(doubted(grouped(0.5)).contains("gamma is 0.5"));
    assert!(doubted(in_loss(ReinforcePpKlEstimator::K1)).contains("kl_estimator = k2"));
    assert_eq!(doubted(in_loss(ReinforcePpKlEstimator::K2)), "");
}

#[test]
fn a_baseline_is_the_mean_of_the_group_and_comes_before_clipping() {
    let s = ReinforcePpSettings { baseline: Baseline::Group, kl_coef: 0.2, ..ReinforcePpSettings::default() };
    // Scores (2, 4) and (-6) minus their means.
    let given = estimated(&s, &rollouts());
    close("group", &given.advantages, &normalized([-1.1, -1.0, 1.0, -0.1, -0.1]));
    assert_eq!(find_metric(&given.metrics, "reward"), Some((0.0, 3.0)));
    let clipped = ReinforcePpSettings { reward_clip_range: Some((-0.5, 0.5)), ..s };
    close("clipped", &estimated(&clipped, &rollouts()).advantages, &normalized([-0.6, -0.5, 0.5, -0.1, -0.1]));
    // With the divergence in the loss, rewards don't contain it.
    let in_loss = estimated(&ReinforcePpSettings { use_kl_loss: true, ..s }, &rollouts());
    close("in the loss", &in_loss.advantages, &normalized([-1.0, -1.0, 1.0, 0.0, 0.0]));
    assert_eq!(find_metric(&in_loss.metrics, "kl"), Some((0.2, 5.0)));
}

#[test]
fn what_is_alike_or_unscorable_teaches_nothing() {
    let s = ReinforcePpSettings { kl_coef: 0.0, ..ReinforcePpSettings::default() };
    let mut r = rollouts();
    r.rewards[0].values = vec![Some(1.0); 4];
    assert_eq!(estimated(&s, &r).advantages, [0.0; 6]);
    r.rewards[0].values.fill(None);
    let given = estimated(&s, &r);
    assert_eq!((given.advantages, given.mask), (vec![0.0; 6], Some(vec![0; 6])));
    assert!(given.metrics.is_empty());
    // The score is added to the last token that counts.
    let masked = Rollouts { mask: vec![1, 0, 1, 1, 0, 1], ..rollouts() };
    let given = estimated(&ReinforcePpSettings { gamma: 0.5, ..s }, &masked);
    let std = (56.0f64 / 3.0).sqrt();
    close("masked", &given.advantages, &[2.0 / std, 0.0, 4.0 / std, 0.0, 0.0, -6.0 / std]);
}

/// Returns rows of unequal lengths with random-looking values, the second completely masked.
fn tokens(seed: u64) -> Tokens {
    let mut state = seed;
    let mut column = |middle: f32, width: f32| -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..14).map(|_| middle + width * next()).collect()
    };
    let mask: Vec<u8> = (0..14).map(|i| u8::from(!(5..8).contains(&i) && i != 2)).collect();
    let logp = column(-1.5, 1.0);
    let old_logp = column(0.0, 0.5).iter().zip(&logp).map(|(by, l)| l + by).collect();
    let ref_logp = column(0.0, 0.6).iter().zip(&logp).map(|(by, l)| l + by).collect();
    Tokens {
        step: 0,
        offsets: vec![0, 5, 8, 9, 14],
        advantages: column(0.0, 1.5),
        old_logp,
        ref_logp: Some(ref_logp),
        logp: logp.iter().zip(&mask).map(|(&l, &m)| if m == 0 { 30.0 } else { l }).collect(),
        mask,
        sampling_logp: None,
        entropy: Some((0..14).map(|i| i as f32).collect()),
        values: None,
        old_values: None,
        returns: None,
        scale: Scale { items: 6, tokens: 25, max_completion_length: 9, ..Scale::default() },
    }
}

fn closed_form(s: &ReinforcePpSettings, t: &Tokens, logp: &[f64]) -> f64 {
    let high = 1.0 + s.epsilon_high.unwrap_or(s.epsilon);
    let of_token = |i: usize| {
        let (a, ratio) = (f64::from(t.advantages[i]), (logp[i] - f64::from(t.old_logp[i])).exp());
        let d = logp[i] - f64::from(t.ref_logp.as_ref().unwrap()[i]);
        let kl = match s.kl_estimator {
            ReinforcePpKlEstimator::K1 => d,
            ReinforcePpKlEstimator::K2 => d.powi(2) / 2.0,
            ReinforcePpKlEstimator::K3 => (-d).exp() + d - 1.0,
        };
        -(ratio * a).min(ratio.max(1.0 - s.epsilon).min(high) * a) + if s.use_kl_loss { s.kl_coef * kl } else { 0.0 }
    };
    (0..logp.len()).filter(|&i| t.mask[i] == 1).map(of_token).sum::<f64>() / 25.0
}

#[test]
fn loss_and_gradient_follow_the_closed_form_and_micro_batches_add_up() {
    let loss_of = |s: &ReinforcePpSettings, t: &Tokens| ReinforcePp::new(s.clone()).unwrap().loss(t).unwrap();
    let in_loss =
        |kl_estimator| ReinforcePpSettings { kl_estimator, use_kl_loss: true, kl_coef: 0.3, ..ReinforcePpSettings::default() };
    for seed in 0..20 {
        let t = tokens(seed);
        let at: Vec<f64> = t.logp.iter().map(|&x| f64::from(x)).collect();
        for s in [
            ReinforcePpSettings::default(),
            ReinforcePpSettings { epsilon: 0.1, epsilon_high: Some(0.3), ..ReinforcePpSettings::default() },
            in_loss(ReinforcePpKlEstimator::K1),
            in_loss(ReinforcePpKlEstimator::K2),
            in_loss(ReinforcePpKlEstimator::K3),
        ] {
            let got = loss_of(&s, &t);
            let want = closed_form(&s, &t, &at);
            assert!((got.loss - want).abs() <= 1e-5 * want.abs().max(0.05), "{} is not {want}", got.loss);
            let moved = |i: usize, by: f64| closed_form(&s, &t, &[&at[..i], &[at[i] + by], &at[i + 1..]].concat());
            let slopes: Vec<f64> = (0..14).map(|i| (moved(i, 1e-5) - moved(i, -1e-5)) / 2e-5).collect();
            close(&format!("seed {seed}, {s:?}"), &got.d_logp, &slopes);

            let half = |of: std::ops::Range<usize>, offsets: &[u32]| {
                let cut = |column: &[f32]| column[of.clone()].to_vec();
                let half = Tokens {
                    offsets: offsets.to_vec(),
                    mask: t.mask[of.clone()].to_vec(),
                    advantages: cut(&t.advantages),
                    logp: cut(&t.logp),
                    old_logp: cut(&t.old_logp),
                    ref_logp: t.ref_logp.as_deref().map(cut),
                    entropy: None,
                    ..t.clone()
                };
                loss_of(&s, &half)
            };
            let (a, b) = (half(0..8, &[0, 5, 8]), half(8..14, &[0, 1, 6]));
            assert!((a.loss + b.loss - got.loss).abs() < 1e-12);
            assert_eq!([a.d_logp, b.d_logp].concat(), got.d_logp);
        }
    }
}

#[test]
fn figures_are_means_over_tokens() {
    let mut t = tokens(3);
    t.advantages.fill(1.0);
    t.old_logp = t.logp.clone();
    t.old_logp[0] -= 0.5;
    t.old_logp[8] += 0.25;
    let s = ReinforcePpSettings { use_kl_loss: true, kl_estimator: ReinforcePpKlEstimator::K2, ..ReinforcePpSettings::default() };
    let m = ReinforcePp::new(s.clone()).unwrap().loss(&t).unwrap().metrics;
    let near = |name: &str, want: f64| {
        let (value, weight) = find_metric(&m, name).unwrap();
        assert!((value - want).abs() < 1e-6 && weight == 10.0, "{name}: {value} against {want}");
    };
    // One exceeds the range; the one that falls is not clipped with a positive advantage.
    near("policy_loss", -(8.0 + 1.2 + (-0.25f64).exp()) / 10.0);
    near("ppo_clip_ratio", 0.1);
    near("ppo_kl", (-0.5 + 0.25) / 10.0);
    near("entropy", f64::from([0, 1, 3, 4, 8, 9, 10, 11, 12, 13].iter().sum::<i32>()) / 10.0);
    t.mask.fill(0);
    let got = ReinforcePp::new(s).unwrap().loss(&t).unwrap();
    assert_eq!((got.loss, got.d_logp), (0.0, vec![0.0; 14]));
    assert!(got.metrics.iter().all(|m| m.value == 0.0));
}

#[test]
fn what_it_needs_must_be_there() {
    let s = ReinforcePpSettings::default();
    assert_eq!(ReinforcePp::needs(&s), Needs::ENTROPY | Needs::REF_LOGP);
    assert_eq!(ReinforcePp::needs(&ReinforcePpSettings { kl_coef: 0.0, ..ReinforcePpSettings::default() }), Needs::ENTROPY);
    let mut plugin = ReinforcePp::new(ReinforcePpSettings { use_kl_loss: true, ..s }).unwrap();
    assert!(matches!(plugin.estimate(&Rollouts { ref_logp: None, ..rollouts() }), Err(Error::Input(_))));
    assert!(matches!(plugin.loss(&Tokens { ref_logp: None, ..tokens(1) }), Err(Error::Input(_))));
    let range = ReinforcePpSettings { reward_clip_range: Some((1.0, 0.0)), ..ReinforcePpSettings::default() };
    assert!(matches!(ReinforcePp::new(range), Err(Error::Config(_))));
}

#[test]
fn each_turn_of_an_episode_may_earn_its_own_reward() {
    // The first episode has two turns of a token, which earn 2 * 1.5 and 2 * -0.5; the third can't be scored.
    let rewards = vec![Some(1.5), Some(-0.5), Some(2.0), None, Some(-3.0)];
    let turns = Turns {
        offsets: vec![0, 2, 3, 4, 5],
        ends: vec![1, 2, 3, 4, 6],
        rewards,
        columns: vec![Some(0), Some(0), None, Some(0)],
    };
    let r = Rollouts { ref_logp: None, turns: Some(turns), ..rollouts() };
    let s = ReinforcePpSettings { kl_coef: 0.0, gamma: 0.5, turn_rewards: true, ..ReinforcePpSettings::default() };
    let by_turn = |s: &ReinforcePpSettings| ReinforcePp::new(s.clone()).unwrap().estimate(&r).unwrap();
    let given = by_turn(&s);
    close("by turn", &given.advantages, &normalized([3.0 - 0.5, -1.0, 4.0, -3.0, -6.0]));
    assert_eq!(
        (find_metric(&given.metrics, "reward"), find_metric(&given.metrics, "return")),
        (Some((0.0, 3.0)), Some((0.0, 3.0)))
    );
    let clipped = by_turn(&ReinforcePpSettings { reward_clip_range: Some((-2.0, 2.5)), ..s });
    close("clipped", &clipped.advantages, &normalized([2.5 - 0.5, -1.0, 2.5, -1.0, -2.0]));
    assert!(ReinforcePp::needs(&s).has("turn_reward") && !ReinforcePp::needs(&ReinforcePpSettings::default()).has("turn_reward"));
    let refused = ReinforcePp::new(ReinforcePpSettings { baseline: Baseline::Group, ..s }).err();
    assert!(matches!(&refused, Some(Error::Config(text)) if text.contains("turn_rewards")), "{refused:?}");
}
