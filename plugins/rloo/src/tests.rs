//! Compares the plugin with numbers worked out by hand and a closed form in f64.

use super::*;
use rlhost_plugin_sdk::policy::testing::{close, find_metric};
use rlhost_plugin_sdk::policy::{RewardColumn, Scale};

/// Returns groups of three completions of two tokens. The distance of each from the reference, in nats per token, is 0.25 times its index
/// in the group.
fn rollouts(rewards: &[Option<f32>]) -> Rollouts {
    let rows = rewards.len() as u32;
    Rollouts {
        rewards: vec![RewardColumn { name: "r".into(), weight: 2.0, values: rewards.to_vec() }],
        prompt_of: (0..rows).map(|i| i / 3).collect(),
        finished: (0..rows).map(|i| i != 4).collect(),
        offsets: (0..=rows).map(|i| i * 2).collect(),
        mask: vec![1; 2 * rewards.len()],
        logp: vec![-1.0; 2 * rewards.len()],
        ref_logp: Some((0..2 * rows).map(|i| -1.0 - 0.25 * ((i / 2) % 3) as f32).collect()),
        ..Rollouts::default()
    }
}

fn estimated(s: &RlooSettings, r: &Rollouts) -> Advantages {
    Rloo::new(s.clone()).unwrap().estimate(r).unwrap()
}

fn of_rows(given: &Advantages) -> Vec<f32> {
    assert!(given.advantages.chunks(2).all(|pair| pair[0] == pair[1]));
    given.advantages.chunks(2).map(|pair| pair[0]).collect()
}

const REWARDS: [Option<f32>; 6] = [Some(1.0), Some(2.0), Some(6.0), Some(0.0), None, Some(3.0)];

#[test]
fn the_baseline_is_the_mean_of_the_scorable_siblings() {
    let s = RlooSettings { beta: 0.0, ..RlooSettings::default() };
    let r = rollouts(&REWARDS);
    // Weighted by 2: (2, 4, 12) and (0, -, 6).
    let given = estimated(&s, &r);
    close("plain", &of_rows(&given), &[2.0 - 8.0, 4.0 - 7.0, 12.0 - 3.0, -6.0, 0.0, 6.0]);
    assert_eq!(find_metric(&given.metrics, "reward"), Some((24.0 / 5.0, 5.0)));
    assert_eq!(find_metric(&given.metrics, "frac_reward_zero_std"), Some((0.0, 2.0)));
    assert_eq!(find_metric(&given.metrics, "kl"), None);
    assert_eq!(given.mask, Some(vec![1; 12]));

    // Over the five that have one: mean 0 and deviation sqrt((36 + 9 + 81 + 36 + 36) / 4).
    let std = (198f64 / 4.0).sqrt() + 1e-4;
    let normalized = of_rows(&estimated(&RlooSettings { normalize_advantages: true, ..s }, &r));
    close("normalized", &normalized, &[-6.0 / std, -3.0 / std, 9.0 / std, -6.0 / std, 0.0, 6.0 / std]);

    let clipped = of_rows(&estimated(&RlooSettings { reward_clip_range: Some((1.0, 5.0)), ..s }, &r));
    close("clipped", &clipped, &[2.0 - 4.5, 4.0 - 3.5, 5.0 - 3.0, -4.0, 0.0, 4.0]);

    // If only one completion has a score, there is nothing to compare it with.
    let alone = estimated(&s, &rollouts(&[Some(1.0), None, None, Some(2.0), Some(2.0), Some(2.0)]));
    assert_eq!(of_rows(&alone), [0.0; 6]);
    assert_eq!(find_metric(&alone.metrics, "frac_reward_zero_std"), Some((0.5, 2.0)));
    // A prompt's only completion, as evaluations may have, has a deviation of zero in TRL.
    let single = Rollouts { prompt_of: (0..3).collect(), ..rollouts(&[Some(1.0), Some(2.0), Some(0.0)]) };
    assert_eq!(find_metric(&estimated(&s, &single).metrics, "frac_reward_zero_std"), Some((1.0, 3.0)));
    assert_eq!(of_rows(&estimated(&RlooSettings { normalize_advantages: true, ..s }, &rollouts(&[None; 3]))), [0.0; 3]);
}

#[test]
fn the_divergence_from_the_reference_is_a_penalty_and_in_the_baseline() {
    let s = RlooSettings { beta: 2.0, ..RlooSettings::default() };
    // Log-ratios sum to 0, 0.5 and 1 per completion: rewards (2, 3, 10) and (0, -, 4).
    let given = estimated(&s, &rollouts(&REWARDS));
    close("penalized", &of_rows(&given), &[2.0 - 6.5, 3.0 - 6.0, 10.0 - 2.5, -4.0, 0.0, 4.0]);
    assert_eq!(find_metric(&given.metrics, "kl"), Some((0.25, 12.0)));
    // The logged reward is the original one.
    assert_eq!(find_metric(&given.metrics, "reward"), Some((24.0 / 5.0, 5.0)));

    let masked = RlooSettings { mask_truncated_completions: true, ..s };
    let mut r = rollouts(&[Some(1.0), Some(2.0), Some(6.0), Some(0.0), Some(1.0), Some(3.0)]);
    let given = estimated(&masked, &r);
    assert_eq!(given.mask.as_ref().unwrap()[6..], [1, 1, 0, 0, 1, 1]);
    // Rewards (0, 2, 4): the truncated one counts in the baseline, without its divergence.
    close("masked", &of_rows(&given)[3..], &[-3.0, 0.0, 3.0]);
    assert_eq!(find_metric(&given.metrics, "kl"), Some((2.5 / 10.0, 10.0)));

    r.ref_logp = None;
    assert!(matches!(Rloo::new(s.clone()).unwrap().estimate(&r), Err(Error::Input(_))));
    assert_eq!(Rloo::needs(&s), Needs::ENTROPY | Needs::REF_LOGP);
    assert_eq!(Rloo::needs(&RlooSettings { beta: 0.0, ..s }), Needs::ENTROPY);
}

#[test]
fn a_clip_range_must_be_one() {
    let with = |range| Rloo::new(RlooSettings { reward_clip_range: Some(range), ..RlooSettings::default() }).is_ok();
    assert!(with((-1.0, 1.0)) && !with((1.0, -1.0)) && !with((f64::NAN, 1.0)));
    let given = rlhost_plugin_sdk::config::parse::<RlooSettings>(r#"{"reward_clip_range": [-1, 1]}"#);
    assert_eq!(given.unwrap().reward_clip_range, Some((-1.0, 1.0)));
}

/// Returns five rows of unequal lengths with random-looking values; the third is completely masked, the fourth has no advantage, and some
/// tokens of the others are masked.
fn tokens(seed: u64) -> Tokens {
    let mut state = seed;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let offsets = vec![0u32, 4, 5, 8, 10, 15];
    let n = 15;
    let mask: Vec<u8> = (0..n).map(|i| u8::from(!(5..8).contains(&i) && i != 1 && i != 12)).collect();
    let mut advantages = Vec::new();
    for (row, w) in offsets.windows(2).enumerate() {
        advantages.extend(vec![if row == 3 { 0.0 } else { 2.0 * noise() }; (w[1] - w[0]) as usize]);
    }
    let logp: Vec<f32> = (0..n).map(|i| if mask[i] == 0 { -40.0 } else { -1.5 + noise() }).collect();
    Tokens {
        step: 0,
        mask,
        advantages,
        old_logp: logp.iter().map(|l| l.max(-3.0) + 0.3 * noise()).collect(),
        entropy: Some((0..n).map(|i| i as f32).collect()),
        logp,
        offsets,
        ref_logp: None,
        sampling_logp: None,
        values: None,
        old_values: None,
        returns: None,
        scale: Scale { items: 7, tokens: 40, max_completion_length: 9, ..Scale::default() },
    }
}

/// Computes a row's ratio and advantage directly from the formula.
fn ratio(t: &Tokens, logp: &[f64], row: &[u32]) -> (f64, f64) {
    let counted = (row[0] as usize..row[1] as usize).filter(|&i| t.mask[i] == 1);
    let (new, old) = counted.fold((0.0, 0.0), |(new, old), i| (new + logp[i], old + f64::from(t.old_logp[i])));
    ((new - old).exp(), f64::from(t.advantages[row[0] as usize]))
}

fn closed_form(s: &RlooSettings, t: &Tokens, logp: &[f64]) -> f64 {
    let high = 1.0 + s.epsilon_high.unwrap_or(s.epsilon);
    let of_row = |row: &[u32]| {
        let (ratio, a) = ratio(t, logp, row);
        -(ratio * a).min(ratio.clamp(1.0 - s.epsilon, high) * a)
    };
    t.offsets.windows(2).map(of_row).sum::<f64>() / f64::from(t.scale.items)
}

#[test]
fn loss_and_gradient_follow_the_closed_form_and_micro_batches_add_up() {
    for seed in 0..20 {
        let t = tokens(seed);
        let at: Vec<f64> = t.logp.iter().map(|&x| f64::from(x)).collect();
        for s in [RlooSettings::default(), RlooSettings { epsilon: 0.1, epsilon_high: Some(0.4), ..RlooSettings::default() }] {
            let got = Rloo::new(s.clone()).unwrap().loss(&t).unwrap();
            let want = closed_form(&s, &t, &at);
            assert!((got.loss - want).abs() <= 1e-5 * want.abs().max(0.05), "{} is not {want}", got.loss);
            let slope = |i: usize| {
                let moved = |by: f64| closed_form(&s, &t, &[&at[..i], &[at[i] + by], &at[i + 1..]].concat());
                (moved(1e-5) - moved(-1e-5)) / 2e-5
            };
            close(&format!("seed {seed}"), &got.d_logp, &(0..at.len()).map(slope).collect::<Vec<_>>());
            assert!((0..15).all(|i| t.mask[i] == 1 || got.d_logp[i] == 0.0));

            let part = |rows: std::ops::Range<usize>| {
                let of = t.offsets[rows.start] as usize..t.offsets[rows.end] as usize;
                let cut = |column: &[f32]| column[of.clone()].to_vec();
                let half = Tokens {
                    offsets: t.offsets[rows.start..=rows.end].iter().map(|o| o - t.offsets[rows.start]).collect(),
                    mask: t.mask[of.clone()].to_vec(),
                    advantages: cut(&t.advantages),
                    logp: cut(&t.logp),
                    old_logp: cut(&t.old_logp),
                    entropy: None,
                    ..t.clone()
                };
                Rloo::new(s.clone()).unwrap().loss(&half).unwrap()
            };
            let (a, b) = (part(0..2), part(2..5));
            assert!((a.loss + b.loss - got.loss).abs() < 1e-12);
            assert_eq!([a.d_logp, b.d_logp].concat(), got.d_logp);
        }
    }
}

#[test]
fn figures_count_completions() {
    let mut t = tokens(1);
    t.advantages = [[1.0; 4].as_slice(), &[-1.0], &[-1.0; 3], &[1.0; 2], &[-1.0; 5]].concat();
    t.old_logp = t.logp.clone();
    // Of each completion: e^0.3, e^-0.4, nothing, e^-0.3 and e^0.5.
    for (i, by) in [(0, 0.1), (2, 0.1), (3, 0.1), (4, -0.4), (5, 9.0), (8, -0.3), (14, 0.5)] {
        t.old_logp[i] -= by;
    }
    let m = Rloo::new(RlooSettings::default()).unwrap().loss(&t).unwrap().metrics;
    assert_eq!(find_metric(&m, "clip_ratio/low_mean"), Some((0.2, 5.0)));
    assert_eq!(find_metric(&m, "clip_ratio/high_mean"), Some((0.2, 5.0)));
    assert_eq!(find_metric(&m, "clip_ratio/region_mean"), Some((0.4, 5.0)));
    assert_eq!(find_metric(&m, "clip_ratio/low_min"), Some((0.0, 1.0)));
    assert_eq!(find_metric(&m, "clip_ratio/high_max"), Some((1.0, 1.0)));
    let counted = [0, 2, 3, 4, 8, 9, 10, 11, 13, 14];
    assert_eq!(find_metric(&m, "entropy"), Some((f64::from(counted.iter().sum::<i32>()) / 10.0, 10.0)));
    // Nothing counts: the mean of -A remains, and has no gradient.
    t.mask.fill(0);
    let got = Rloo::new(RlooSettings::default()).unwrap().loss(&t).unwrap();
    assert!((got.loss - 1.0 / 7.0).abs() < 1e-7 && got.d_logp == [0.0; 15]);
    assert_eq!(find_metric(&got.metrics, "entropy").unwrap().0, 0.0);
}
