//! Compares the plugin with numbers worked out by hand and closed forms in f64.

use super::*;
use rlhost_plugin_sdk::Metric;
use rlhost_plugin_sdk::policy::testing::{self, TestNoise, close};
use rlhost_plugin_sdk::policy::{RewardColumn, Scale, Turns};

fn figure(metrics: &[Metric], name: &str) -> (f64, f64) {
    testing::find_metric(metrics, name).expect(name)
}

fn near(got: (f64, f64), want: (f64, f64)) {
    assert!((got.0 - want.0).abs() < 1e-6 && (got.1 - want.1).abs() < 1e-9, "{got:?} against {want:?}");
}

/// Returns completions of three, two and one tokens, the second cut off and the third unscorable.
fn rollouts() -> Rollouts {
    Rollouts {
        rewards: vec![RewardColumn { name: "r".into(), weight: 0.5, values: vec![Some(2.0), Some(-4.0), None] }],
        prompt_of: vec![0, 0, 1],
        finished: vec![true, false, true],
        offsets: vec![0, 3, 5, 6],
        mask: vec![1; 6],
        logp: vec![-1.0, -2.0, -0.5, -1.0, -1.5, -9.0],
        ref_logp: Some(vec![-1.5, -2.0, -1.0, -0.75, -1.5, -1.0]),
        values: Some(vec![0.5, 0.25, -0.5, 1.0, -1.0, 7.0]),
        ..Rollouts::default()
    }
}

/// Returns settings for which results can be computed by hand.
fn plain() -> PpoSettings {
    PpoSettings { kl_coef: 0.5, gamma: 0.5, lam: 0.5, ..PpoSettings::default() }
}

fn estimated(s: &PpoSettings, r: &Rollouts) -> Advantages {
    Ppo::new(s.clone()).unwrap().estimate(r).unwrap()
}

/// Subtracts the mean and divides by the deviation.
fn whitened(column: &[f64]) -> Vec<f64> {
    let n = column.len() as f64;
    let mean = column.iter().sum::<f64>() / n;
    let variance = column.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
    column.iter().map(|x| (x - mean) / (variance + 1e-8).sqrt()).collect()
}

#[test]
fn advantages_and_returns_by_hand() {
    let given = estimated(&plain(), &rollouts());
    // Log-ratios 0.5, 0, 0.5 and -0.25, 0: rewards -0.25, 0, -0.25 + 1 and 0.125, 0 - 2.
    // Row 1: delta 0.75 + 0.5; 0 - 0.25 - 0.25; -0.25 + 0.125 - 0.5; advantages carry a quarter on.
    let a2 = 1.25;
    let a1 = -0.5 + 0.25 * a2;
    let a0 = -0.625 + 0.25 * a1;
    // Row 2: -2 + 1; 0.125 - 0.5 - 1.
    let b1 = -1.0;
    let b0 = -1.375 + 0.25 * b1;
    let mut want = whitened(&[a0, a1, a2, b0, b1]);
    want.push(0.0);
    close("advantages", &given.advantages, &want);
    let returns = [a0 + 0.5, a1 + 0.25, a2 - 0.5, b0 + 1.0, b1 - 1.0, 0.0];
    close("returns", &given.returns.unwrap(), &returns);
    assert_eq!(given.mask, Some(vec![1, 1, 1, 1, 1, 0]));

    let m = &given.metrics;
    near(figure(m, "reward"), (-0.5, 2.0));
    near(figure(m, "objective/kl"), ((1.0 - 0.25) / 2.0, 2.0));
    near(figure(m, "kl"), ((1.0 / 3.0 - 0.25 / 2.0) / 2.0, 2.0));
    assert_eq!(figure(m, "episode").0, 3.0);
    near(figure(m, "objective/entropy"), ((3.5 + 2.5) / 2.0, 2.0));
    near(figure(m, "objective/non_score_reward"), (-0.5 * 0.375, 2.0));
    near(figure(m, "objective/scores"), (-0.5, 2.0));
    near(figure(m, "objective/rlhf_reward"), (-0.5 - 0.1875, 2.0));
    near(figure(m, "objective/kl_coef"), (0.5, 2.0));
    near(figure(m, "val/num_eos_tokens"), (2.0, 1.0));
}

#[test]
fn a_missing_end_is_a_penalty_and_rewards_can_be_whitened() {
    let s = PpoSettings { missing_eos_penalty: Some(1.5), lam: 0.0, gamma: 0.0, ..plain() };
    // Without future rewards, returns are the rewards.
    let rewards = [-0.25, 0.0, 0.75, 0.125, -3.5];
    let given = estimated(&s, &rollouts());
    close("returns", &given.returns.unwrap()[..5], &rewards);
    near(figure(&given.metrics, "objective/scores"), (-1.25, 2.0));
    near(figure(&given.metrics, "reward"), (-0.5, 2.0));

    let given = estimated(&PpoSettings { whiten_rewards: true, ..s }, &rollouts());
    let mean = rewards.iter().sum::<f64>() / 5.0;
    let want: Vec<f64> = whitened(&rewards).into_iter().map(|r| r + mean).collect();
    close("whitened", &given.returns.unwrap()[..5], &want);
}

#[test]
fn k3_is_taken_off_as_well() {
    let s = PpoSettings { kl_estimator: PpoKlEstimator::K3, lam: 0.0, gamma: 0.0, ..plain() };
    let k3 = |d: f64| (-d).exp() - 1.0 + d;
    let given = estimated(&s, &rollouts());
    let want = [-0.5 * k3(0.5), 0.0, 1.0 - 0.5 * k3(0.5), -0.5 * k3(-0.25), -2.0];
    close("returns", &given.returns.unwrap()[..5], &want);
    near(figure(&given.metrics, "objective/kl"), ((2.0 * k3(0.5) + k3(-0.25)) / 2.0, 2.0));
}

#[test]
fn advantages_are_discounted_sums_of_errors_over_the_tokens_that_count() {
    let mut noise = TestNoise(4);
    let offsets = [0u32, 6, 7, 11];
    let n = 11;
    let r = Rollouts {
        rewards: vec![RewardColumn { name: "r".into(), weight: 1.0, values: vec![Some(0.7), Some(-0.4), Some(1.1)] }],
        prompt_of: vec![0, 1, 2],
        finished: vec![true; 3],
        offsets: offsets.to_vec(),
        // A tool spoke in the first completion, and at the end of the third.
        mask: vec![1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0],
        logp: noise.column(n, -1.0, 0.5),
        ref_logp: Some(noise.column(n, -1.0, 0.5)),
        values: Some(noise.column(n, 0.0, 1.0)),
        ..Rollouts::default()
    };
    let s = PpoSettings { gamma: 0.97, ..PpoSettings::default() };
    let given = estimated(&s, &r);
    let (mut advantages, mut returns) = (Vec::new(), Vec::new());
    for (row, score) in offsets.windows(2).zip([0.7f32, -0.4, 1.1]) {
        let at: Vec<usize> = (row[0] as usize..row[1] as usize).filter(|&i| r.mask[i] == 1).collect();
        let value = |k: usize| at.get(k).map_or(0.0, |&i| f64::from(r.values.as_ref().unwrap()[i]));
        let error = |k: usize| {
            let kl = f64::from(r.logp[at[k]]) - f64::from(r.ref_logp.as_ref().unwrap()[at[k]]);
            let reward = -0.05 * kl + if k + 1 == at.len() { f64::from(score) } else { 0.0 };
            reward + 0.97 * value(k + 1) - value(k)
        };
        for k in 0..at.len() {
            let sum: f64 = (k..at.len()).map(|l| (0.97f64 * 0.95).powi((l - k) as i32) * error(l)).sum();
            advantages.push(sum);
            returns.push(sum + value(k));
        }
    }
    let counted = |column: &[f32]| -> Vec<f32> { (0..n).filter(|&i| r.mask[i] == 1).map(|i| column[i]).collect() };
    close("advantages", &counted(&given.advantages), &whitened(&advantages));
    close("returns", &counted(given.returns.as_ref().unwrap()), &returns);
    assert!(given.advantages[2] == 0.0 && given.advantages[10] == 0.0);
}

#[test]
fn nothing_scorable_is_nothing_to_learn() {
    let mut r = rollouts();
    r.rewards[0].values.fill(None);
    let given = estimated(&plain(), &r);
    assert_eq!((given.advantages, given.mask), (vec![0.0; 6], Some(vec![0; 6])));
    assert!(given.metrics.iter().all(|m| m.value.is_finite()));
    // A single token has no deviation.
    let given = estimated(&plain(), &Rollouts { mask: vec![1, 0, 0, 0, 0, 0], ..rollouts() });
    assert_eq!(given.advantages, [0.0; 6]);
}

/// Returns rows of unequal lengths with random-looking values, the second completely masked.
fn tokens(seed: u64) -> Tokens {
    let mut noise = TestNoise(seed);
    let n = 14;
    let mask: Vec<u8> = (0..n).map(|i| u8::from(!(5..8).contains(&i) && i != 2)).collect();
    let wild =
        |column: Vec<f32>| -> Vec<f32> { column.iter().zip(&mask).map(|(&x, &m)| if m == 0 { 30.0 } else { x }).collect() };
    let (logp, values) = (noise.column(n, -1.5, 1.0), noise.column(n, 0.0, 1.0));
    let moved = |noise: &mut TestNoise, from: &[f32], by: f32| from.iter().map(|x| x + by * noise.draw()).collect();
    Tokens {
        step: 0,
        offsets: vec![0, 5, 8, 9, 14],
        advantages: noise.column(n, 0.0, 1.5),
        old_logp: moved(&mut noise, &logp, 0.5),
        old_values: Some(moved(&mut noise, &values, 0.5)),
        returns: Some(moved(&mut noise, &values, 1.0)),
        logp: wild(logp),
        values: Some(wild(values)),
        ref_logp: None,
        sampling_logp: None,
        entropy: Some((0..n).map(|i| i as f32).collect()),
        scale: Scale { items: 6, tokens: 25, max_completion_length: 9, ..Scale::default() },
        mask,
    }
}

/// Computes the policy's and the critic's part from the formulas, and the clipped fraction of each.
fn closed_form(s: &PpoSettings, t: &Tokens, logp: &[f64], values: &[f64]) -> [f64; 4] {
    let wide = |column: &Option<Vec<f32>>, i: usize| f64::from(column.as_ref().unwrap()[i]);
    let mut sums = [0.0; 4];
    for i in (0..logp.len()).filter(|&i| t.mask[i] == 1) {
        let (a, ratio) = (f64::from(t.advantages[i]), (logp[i] - f64::from(t.old_logp[i])).exp());
        let clipped = -a * ratio.max(1.0 - s.cliprange).min(1.0 + s.cliprange);
        let limit = s.clip_ratio_c.filter(|_| a < 0.0).map_or(f64::INFINITY, |most| -a * most);
        let (old, target) = (wide(&t.old_values, i), wide(&t.returns, i));
        let bounded = values[i].max(old - s.cliprange_value).min(old + s.cliprange_value);
        let (square, square_clipped) = ((values[i] - target).powi(2), (bounded - target).powi(2));
        sums[0] += (-a * ratio).max(clipped).min(limit);
        sums[1] += 0.5 * square.max(square_clipped);
        sums[2] += f64::from(u8::from(clipped > -a * ratio));
        sums[3] += f64::from(u8::from(square_clipped > square));
    }
    sums
}

#[test]
fn loss_and_gradients_follow_the_closed_form_and_micro_batches_add_up() {
    for seed in 0..20 {
        let t = tokens(seed);
        let wide = |column: &[f32]| -> Vec<f64> { column.iter().map(|&x| f64::from(x)).collect() };
        let (logp, values) = (wide(&t.logp), wide(t.values.as_ref().unwrap()));
        let narrow = PpoSettings { cliprange: 0.1, cliprange_value: 0.4, vf_coef: 1.0, ..PpoSettings::default() };
        let twice = PpoSettings { clip_ratio_c: Some(1.25), ..PpoSettings::default() };
        for s in [PpoSettings::default(), narrow, twice] {
            let got = Ppo::new(s.clone()).unwrap().loss(&t).unwrap();
            let loss_at = |logp: &[f64], values: &[f64]| {
                let [policy, critic, ..] = closed_form(&s, &t, logp, values);
                (policy + s.vf_coef * critic) / 25.0
            };
            let want = loss_at(&logp, &values);
            assert!((got.loss - want).abs() <= 1e-5 * want.abs().max(0.05), "{} is not {want}", got.loss);
            let slopes = |f: &dyn Fn(&[f64]) -> f64, at: &[f64]| -> Vec<f64> {
                let moved = |i: usize, by: f64| f(&[&at[..i], &[at[i] + by], &at[i + 1..]].concat());
                (0..at.len()).map(|i| (moved(i, 1e-5) - moved(i, -1e-5)) / 2e-5).collect()
            };
            close("d_logp", &got.d_logp, &slopes(&|p| loss_at(p, &values), &logp));
            close("d_values", got.d_values.as_ref().unwrap(), &slopes(&|v| loss_at(&logp, v), &values));

            let [policy, critic, clipped, critic_clipped] = closed_form(&s, &t, &logp, &values).map(|sum| sum / 10.0);
            near(figure(&got.metrics, "loss/policy_avg"), (policy, 10.0));
            near(figure(&got.metrics, "loss/value_avg"), (critic, 10.0));
            near(figure(&got.metrics, "policy/clipfrac_avg"), (clipped, 10.0));
            near(figure(&got.metrics, "val/clipfrac_avg"), (critic_clipped, 10.0));

            let half = |of: std::ops::Range<usize>, offsets: &[u32]| {
                let cut = |column: &[f32]| column[of.clone()].to_vec();
                let half = Tokens {
                    offsets: offsets.to_vec(),
                    mask: t.mask[of.clone()].to_vec(),
                    advantages: cut(&t.advantages),
                    logp: cut(&t.logp),
                    old_logp: cut(&t.old_logp),
                    values: t.values.as_deref().map(cut),
                    old_values: t.old_values.as_deref().map(cut),
                    returns: t.returns.as_deref().map(cut),
                    entropy: None,
                    ..t.clone()
                };
                Ppo::new(s.clone()).unwrap().loss(&half).unwrap()
            };
            let (a, b) = (half(0..8, &[0, 5, 8]), half(8..14, &[0, 1, 6]));
            assert!((a.loss + b.loss - got.loss).abs() < 1e-12);
            assert_eq!([a.d_logp, b.d_logp].concat(), got.d_logp);
            assert_eq!([a.d_values.unwrap(), b.d_values.unwrap()].concat(), got.d_values.unwrap());
        }
    }
}

#[test]
fn a_dual_clip_limits_the_loss_of_what_was_bad_and_has_become_likely() {
    let (mut t, s) = (tokens(3), PpoSettings { clip_ratio_c: Some(3.0), ..PpoSettings::default() });
    t.old_logp = t.logp.clone();
    t.advantages.fill(-2.0);
    // Of three tokens five times as likely as before, one was good; a fourth is twice as likely.
    for (i, ratio) in [(0, 5f32), (1, 5.0), (3, 5.0), (4, 2.0)] {
        t.old_logp[i] -= ratio.ln();
    }
    t.advantages[3] = 2.0;
    let got = Ppo::new(s).unwrap().loss(&t).unwrap();
    near(figure(&got.metrics, "policy/clipfrac_lower_avg"), (0.2, 10.0));
    // Twice the limit of 3, the clipped gain of 1.2, the loss of 2, and six at a ratio of one, times the advantage.
    near(figure(&got.metrics, "loss/policy_avg"), (2.0 * (2.0 * 3.0 - 1.2 + 2.0 + 6.0) / 10.0, 10.0));
    assert_eq!([0, 1, 3].map(|i| got.d_logp[i]), [0.0; 3]);
    assert!((got.d_logp[4] - 2.0 * 2.0 / 25.0).abs() < 1e-6, "{}", got.d_logp[4]);
    let plain = Ppo::new(PpoSettings::default()).unwrap().loss(&t).unwrap();
    assert!((plain.d_logp[0] - 2.0 * 5.0 / 25.0).abs() < 1e-6);
    assert!(testing::find_metric(&plain.metrics, "policy/clipfrac_lower_avg").is_none());
}

#[test]
fn an_entropy_bonus_is_a_share_of_the_mean_entropy() {
    let (t, s) = (tokens(5), PpoSettings { entropy_coef: 0.3, ..PpoSettings::default() });
    let (plain, got) =
        (Ppo::new(PpoSettings::default()).unwrap().loss(&t).unwrap(), Ppo::new(s.clone()).unwrap().loss(&t).unwrap());
    let counted = [0, 1, 3, 4, 8, 9, 10, 11, 12, 13];
    let sum = f64::from(counted.iter().sum::<i32>());
    assert!((got.loss - (plain.loss - 0.3 * sum / 25.0)).abs() < 1e-9, "{} {}", got.loss, plain.loss);
    let bonus: Vec<f32> = (0..14).map(|i| if counted.contains(&i) { -0.3 / 25.0 } else { 0.0 }).collect();
    assert_eq!((got.d_entropy, plain.d_entropy), (Some(bonus), None));
    assert_eq!((got.d_logp, got.d_values), (plain.d_logp, plain.d_values));
    assert!(matches!(Ppo::new(s).unwrap().loss(&Tokens { entropy: None, ..t }), Err(Error::Input(_))));
}

#[test]
fn scores_are_normalized_by_all_scores_so_far() {
    let s = PpoSettings { normalize_reward: true, kl_coef: 0.0, lam: 0.0, gamma: 0.0, ..PpoSettings::default() };
    let mut ppo = Ppo::new(s.clone()).unwrap();
    let next = |ppo: &mut Ppo, scores: [Option<f32>; 3]| {
        let rewards = vec![RewardColumn { name: "r".into(), weight: 1.0, values: scores.to_vec() }];
        let given = ppo.estimate(&Rollouts { rewards, ..rollouts() }).unwrap();
        // Without future rewards, the return of a last token is its completion's score.
        let returns = given.returns.unwrap();
        (
            [2, 4, 5].map(|i| f64::from(returns[i])),
            ["objective/score_mean", "objective/score_std"].map(|name| figure(&given.metrics, name).0),
        )
    };
    let check = |got: ([f64; 3], [f64; 2]), scores: [f64; 3], (mean, std): (f64, f64)| {
        for (got, score) in got.0.iter().zip(scores) {
            assert!((got - (score - mean) / std).abs() < 1e-5, "{got} {score}");
        }
        assert!((got.1[0] - mean).abs() < 1e-12 && (got.1[1] - std).abs() < 1e-12, "{:?} {mean} {std}", got.1);
    };
    check(next(&mut ppo, [Some(1.0), Some(3.0), Some(5.0)]), [1.0, 3.0, 5.0], (3.0, 2.0));
    // 1, 3, 5, 11, 15: 7 on average, and squares of 36, 16, 4, 16 and 64.
    let snapshot = rlhost_plugin_sdk::stateful::snapshot(ppo.state()).unwrap();
    let mut resumed = Ppo::new(s).unwrap();
    *resumed.state() = rlhost_plugin_sdk::stateful::restored(&snapshot).unwrap();
    for ppo in [&mut ppo, &mut resumed] {
        check(next(ppo, [Some(11.0), Some(15.0), None]), [11.0, 15.0, 7.0], (7.0, 34f64.sqrt()));
    }
    // Equal scores have no deviation.
    let mut equal = Ppo::new(PpoSettings { normalize_reward: true, ..plain() }).unwrap();
    let given = next(&mut equal, [Some(4.0); 3]);
    assert!(given.0.iter().all(|x| x.is_finite()) && given.1 == [4.0, 0.0], "{given:?}");
}

#[test]
fn figures_of_ratios_are_means_over_tokens() {
    let mut t = tokens(3);
    t.old_logp = t.logp.clone();
    t.old_logp[0] -= 2f32.ln();
    t.old_logp[8] += 2f32.ln();
    let m = Ppo::new(PpoSettings::default()).unwrap().loss(&t).unwrap().metrics;
    near(figure(&m, "policy/approxkl_avg"), (0.5 * 2.0 * 2f64.ln().powi(2) / 10.0, 10.0));
    near(figure(&m, "val/ratio"), (10.5 / 10.0, 10.0));
    near(figure(&m, "val/ratio_var"), ((1.0 + 0.25) / 10.0, 10.0));
    let counted = [0, 1, 3, 4, 8, 9, 10, 11, 12, 13];
    near(figure(&m, "policy/entropy_avg"), (f64::from(counted.iter().sum::<i32>()) / 10.0, 10.0));
    t.mask.fill(0);
    let got = Ppo::new(PpoSettings::default()).unwrap().loss(&t).unwrap();
    assert_eq!((got.loss, got.d_logp, got.d_values), (0.0, vec![0.0; 14], Some(vec![0.0; 14])));
    assert!(got.metrics.iter().all(|m| m.value == 0.0));
}

#[test]
fn the_coefficient_follows_the_divergence() {
    let s = PpoSettings { kl_coef: 0.1, kl_target: Some(2.0), kl_horizon: 100.0, ..PpoSettings::default() };
    let mut ppo = Ppo::new(s.clone()).unwrap();
    let coef = |ppo: &mut Ppo| figure(&ppo.estimate(&rollouts()).unwrap().metrics, "objective/kl_coef").0;
    let heard = |ppo: &mut Ppo, kl: f64| ppo.observe(0, &[("kl".into(), kl), ("objective/kl".into(), 50.0)]);
    assert_eq!(coef(&mut ppo), 0.1);
    // A tenth too much, over three completions of a hundred.
    heard(&mut ppo, 2.2);
    let mut want = 0.1 * (1.0 + 0.1 * 3.0 / 100.0);
    assert!((coef(&mut ppo) - want).abs() < 1e-12);
    // Steps without a generation change nothing; a large deviation counts as a fifth.
    ppo.observe(1, &[("loss".into(), 9.0)]);
    assert!((coef(&mut ppo) - want).abs() < 1e-12);
    heard(&mut ppo, 0.0);
    want *= 1.0 - 0.2 * 6.0 / 100.0;

    let snapshot = rlhost_plugin_sdk::stateful::snapshot(ppo.state()).unwrap();
    let mut resumed = Ppo::new(s.clone()).unwrap();
    *resumed.state() = rlhost_plugin_sdk::stateful::restored(&snapshot).unwrap();
    assert_eq!((&resumed.control, ppo.control.episode), (&ppo.control, 9));
    assert!((coef(&mut resumed) - want).abs() < 1e-12);
    // Without a target, the coefficient is its setting, whatever was learned before.
    let mut fixed = Ppo::new(PpoSettings { kl_target: None, kl_coef: 0.3, ..s }).unwrap();
    *fixed.state() = rlhost_plugin_sdk::stateful::restored(&snapshot).unwrap();
    heard(&mut fixed, 9.0);
    assert_eq!(coef(&mut fixed), 0.3);
}

#[test]
fn what_it_needs_must_be_there() {
    let needs = Ppo::needs(&PpoSettings::default());
    let critic = Needs::VALUE | Needs::OLD_VALUE | Needs::RETURN | Needs::ENTROPY;
    assert_eq!(needs, critic.clone() | Needs::REF_LOGP);
    let free = PpoSettings { kl_coef: 0.0, ..PpoSettings::default() };
    assert_eq!(Ppo::needs(&free), critic);
    assert!(Ppo::new(free).unwrap().estimate(&Rollouts { ref_logp: None, ..rollouts() }).is_ok());
    let refused = |r: &Rollouts| matches!(Ppo::new(plain()).unwrap().estimate(r), Err(Error::Input(_)));
    assert!(refused(&Rollouts { ref_logp: None, ..rollouts() }) && refused(&Rollouts { values: None, ..rollouts() }));
    let refused = |t: &Tokens| matches!(Ppo::new(plain()).unwrap().loss(t), Err(Error::Input(_)));
    assert!(refused(&Tokens { values: None, ..tokens(1) }));
    assert!(refused(&Tokens { old_values: None, ..tokens(1) }));
    assert!(refused(&Tokens { returns: None, ..tokens(1) }));
}

#[test]
fn each_turn_of_an_episode_may_earn_its_own_reward() {
    // The first episode has turns of one and two tokens, which earn 0.5 * 6 and 0.5 * -4; the third can't be scored.
    let rewards = vec![Some(6.0), Some(-4.0), Some(-4.0), None];
    let turns = Turns { offsets: vec![0, 2, 3, 4], ends: vec![1, 3, 5, 6], rewards, columns: vec![Some(0), Some(0), None] };
    let rollouts = Rollouts { turns: Some(turns), ..rollouts() };
    let s = PpoSettings { kl_coef: 0.0, turn_rewards: true, missing_eos_penalty: Some(1.0), ..plain() };
    let given = Ppo::new(s.clone()).unwrap().estimate(&rollouts).unwrap();
    // Row 1: deltas -2 + 0.5; -0.25 - 0.25; 3 + 0.125 - 0.5; advantages carry a quarter on.
    let a2 = -1.5;
    let a1 = -0.5 + 0.25 * a2;
    let a0 = 2.625 + 0.25 * a1;
    // Row 2: -2 - 1 + 1; -0.5 - 1.
    let b1 = -2.0;
    let b0 = -1.5 + 0.25 * b1;
    let mut want = whitened(&[a0, a1, a2, b0, b1]);
    want.push(0.0);
    close("advantages", &given.advantages, &want);
    close("returns", &given.returns.unwrap(), &[a0 + 0.5, a1 + 0.25, a2 - 0.5, b0 + 1.0, b1 - 1.0, 0.0]);
    near(figure(&given.metrics, "objective/scores"), ((1.0 - 2.0 - 1.0) / 2.0, 2.0));
    assert!(Ppo::needs(&s).has("turn_reward") && !Ppo::needs(&plain()).has("turn_reward"));
    let refused = Ppo::new(PpoSettings { normalize_reward: true, ..s }).err();
    assert!(matches!(&refused, Some(Error::Config(text)) if text.contains("turn_rewards")), "{refused:?}");
}
