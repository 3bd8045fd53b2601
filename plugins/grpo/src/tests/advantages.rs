//! Tests advantages against numbers worked out by hand.

use super::*;

fn rollouts(rewards: &[(f32, &[Option<f32>])], group: usize, finished: &[bool]) -> Rollouts {
    let rows = rewards[0].1.len() as u32;
    let column =
        |(weight, values): &(f32, &[Option<f32>])| RewardColumn { name: "r".into(), weight: *weight, values: values.to_vec() };
    Rollouts {
        rewards: rewards.iter().map(column).collect(),
        prompt_of: (0..rows).map(|i| i / group as u32).collect(),
        finished: finished.to_vec(),
        offsets: (0..=rows).map(|i| i * 2).collect(),
        mask: vec![1; 2 * rows as usize],
        logp: vec![-1.0; 2 * rows as usize],
        ..Rollouts::default()
    }
}

fn estimated(settings: GrpoSettings, rollouts: &Rollouts) -> Advantages {
    Grpo::new(settings).unwrap().estimate(rollouts).unwrap()
}

fn advantages(settings: GrpoSettings, rollouts: &Rollouts) -> Vec<f32> {
    let all = estimated(settings, rollouts).advantages;
    assert!(all.chunks(2).all(|pair| pair[0] == pair[1]), "all tokens of a completion have its advantage");
    all.chunks(2).map(|pair| pair[0]).collect()
}

fn scaled(scale_rewards: ScaleRewards) -> GrpoSettings {
    GrpoSettings { scale_rewards, ..GrpoSettings::default() }
}

const SIX: [Option<f32>; 6] = [Some(1.0), Some(2.0), Some(6.0), Some(0.0), Some(0.0), Some(3.0)];

#[test]
fn advantages_follow_each_scaling() {
    let r = rollouts(&[(2.0, &SIX)], 3, &[true; 6]);
    // Weighted by 2: groups (2, 4, 12) with mean 6 and (0, 0, 6) with mean 2.
    let centred = [-4.0, -2.0, 6.0, -2.0, -2.0, 4.0];
    let std = |squares: f64, n: f64| (squares / (n - 1.0)).sqrt() + 1e-4;
    let (a, b) = (std(16.0 + 4.0 + 36.0, 3.0), std(4.0 + 4.0 + 16.0, 3.0));
    // Over all: mean 4.
    let whole = std(4.0 + 0.0 + 64.0 + 16.0 + 16.0 + 4.0, 6.0);
    close("none", &advantages(scaled(ScaleRewards::None), &r), &centred);
    let by_group = [-4.0 / a, -2.0 / a, 6.0 / a, -2.0 / b, -2.0 / b, 4.0 / b];
    close("group", &advantages(scaled(ScaleRewards::Group), &r), &by_group);
    close("batch", &advantages(scaled(ScaleRewards::Batch), &r), &centred.map(|c| c / whole));
}

#[test]
fn scale_rewards_is_a_name_or_a_flag() {
    let read = |json: &str| rlhost_plugin_sdk::config::parse::<GrpoSettings>(json).map(|s| s.scale_rewards).ok();
    for (given, want) in [
        ("true", ScaleRewards::Group),
        ("false", ScaleRewards::None),
        ("\"group\"", ScaleRewards::Group),
        ("\"batch\"", ScaleRewards::Batch),
        ("\"none\"", ScaleRewards::None),
    ] {
        assert_eq!(read(&format!("{{\"scale_rewards\": {given}}}")), Some(want));
    }
    assert_eq!(read("{\"scale_rewards\": \"row\"}"), None);
    let schema = rlhost_plugin_sdk::config::schema::<GrpoSettings>();
    assert!(schema.contains(r#"["group","batch","none",true,false]"#), "{schema}");
}

#[test]
fn unscorable_rows_have_no_advantage_and_count_in_no_baseline() {
    let r = rollouts(&[(2.0, &[Some(1.0), None, Some(3.0), None, None, Some(5.0)])], 3, &[true; 6]);
    close("none", &advantages(scaled(ScaleRewards::None), &r), &[-2.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
    // A group with a single score has a deviation of zero; it must not become NaN.
    for scaling in [ScaleRewards::Group, ScaleRewards::Batch] {
        let all = advantages(scaled(scaling), &r);
        assert!(all.iter().all(|a| a.is_finite()) && all[1] == 0.0 && all[3..] == [0.0; 3], "{all:?}");
    }
    let nothing = rollouts(&[(1.0, &[None; 4])], 2, &[true; 4]);
    let given = estimated(GrpoSettings::default(), &nothing);
    assert_eq!(given.advantages, [0.0; 8]);
    assert_eq!(find_metric(&given.metrics, "reward"), None);
    assert_eq!(find_metric(&given.metrics, "frac_reward_zero_std"), Some((0.0, 4.0)));
}

#[test]
fn several_rewards_are_normalized_one_by_one_and_summed() {
    let (a, b) = ([Some(1.0), Some(3.0), Some(2.0), Some(2.0)], [Some(0.0), None, Some(5.0), Some(1.0)]);
    let r = rollouts(&[(1.0, &a), (0.5, &b)], 2, &[true; 4]);
    let settings =
        GrpoSettings { multi_objective_aggregation: MultiObjectiveAggregation::NormalizeThenSum, ..GrpoSettings::default() };
    // Groups of a: (1, 3), deviation sqrt(2), and (2, 2); of b: (0) alone, and (5, 1), deviation sqrt(8).
    let (za, zb) = (1.0 / (2f64.sqrt() + 1e-4), 2.0 / (8f64.sqrt() + 1e-4));
    let sums = [-za, za, 0.5 * zb, -0.5 * zb];
    let std = (sums.iter().map(|s| s * s).sum::<f64>() / 3.0).sqrt() + 1e-4;
    close("normalized", &advantages(settings.clone(), &r), &sums.map(|s| s / std));
    let figures = estimated(settings.clone(), &r).metrics;
    // The logged reward is the plain sum: 1, 3, 4.5 and 2.5.
    assert_eq!(find_metric(&figures, "reward"), Some((2.75, 4.0)));
    assert_eq!(find_metric(&figures, "frac_reward_zero_std"), Some((0.0, 4.0)));

    let unscorable = rollouts(&[(1.0, &[Some(1.0), Some(3.0), Some(2.0), None]), (0.5, &[None; 4])], 2, &[true; 4]);
    let sums = [-za, za, 0.0];
    let std = (2.0 * za * za / 2.0).sqrt() + 1e-4;
    close("a row without", &advantages(settings, &unscorable), &[sums[0] / std, sums[1] / std, 0.0, 0.0]);
}

#[test]
fn figures_are_those_of_trl() {
    let figures = |rewards: &[Option<f32>], group: usize, scaling| {
        let r = rollouts(&[(2.0, rewards)], group, &vec![true; rewards.len()]);
        let given = estimated(scaled(scaling), &r);
        move |name: &str| find_metric(&given.metrics, name).map(|(value, _)| value)
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
fn reward_weights_reach_the_reward_that_is_logged() {
    // TRL's `test_reward_metric_reflects_reward_weights`.
    let r = rollouts(&[(0.7, &[Some(1.0); 4]), (0.3, &[Some(0.0); 4])], 2, &[true; 4]);
    let (reward, _) = find_metric(&estimated(GrpoSettings::default(), &r).metrics, "reward").unwrap();
    assert!((reward - 0.7).abs() < 1e-6);
}

#[test]
fn truncated_rows_leave_the_loss_and_stay_in_the_baseline() {
    let r = rollouts(&[(2.0, &[Some(1.0), Some(3.0)])], 2, &[true, false]);
    let given = estimated(GrpoSettings { mask_truncated_completions: true, ..scaled(ScaleRewards::None) }, &r);
    assert_eq!(given.mask, Some(vec![1, 1, 0, 0]));
    close("masked", &given.advantages, &[-2.0, -2.0, 2.0, 2.0]);
}
