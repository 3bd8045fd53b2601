//! Tests the entropy bonus and its coefficient.

use super::*;

fn adaptive() -> Grpo {
    let settings = GrpoSettings {
        use_adaptive_entropy: true,
        entropy_coef: 0.02,
        entropy_coef_delta: 0.01,
        entropy_coef_max: 0.035,
        entropy_target: 1.0,
        ..GrpoSettings::default()
    };
    Grpo::new(settings).unwrap()
}

fn heard(grpo: &mut Grpo, entropy: f64) {
    grpo.observe(1, &[("reward".into(), 3.0), ("entropy".into(), entropy)]);
}

/// Returns the coefficient that a step's loss and metrics imply: as applied and as logged.
fn shown(grpo: &mut Grpo, t: &Tokens) -> (f64, f64) {
    let got = grpo.loss(t).unwrap();
    let figure = |name: &str| find_metric(&got.metrics, name).unwrap();
    let share = figure("entropy").1 / t.scale.tokens as f64;
    // TRL's `test_entropy_bonus_scale`: difference of the loss from the policy's.
    let policy = figure("policy_loss").0 * figure("policy_loss").1 / f64::from(t.scale.items);
    ((policy - got.loss) / (figure("entropy").0 * share), figure("entropy_coef").0)
}

#[test]
fn the_bonus_is_the_mean_entropy_times_the_coefficient() {
    let t = batch(&[5, 2, 1, 3], 9);
    for loss_type in [GrpoLossType::Grpo, GrpoLossType::Dapo, GrpoLossType::DrGrpo, GrpoLossType::Luspo] {
        let mut grpo = Grpo::new(GrpoSettings { loss_type, entropy_coef: 0.3, ..GrpoSettings::default() }).unwrap();
        let (applied, logged) = shown(&mut grpo, &t);
        assert!((applied - 0.3).abs() < 1e-6 && logged == 0.3, "{loss_type:?}: {applied}");
    }
}

#[test]
fn the_coefficient_moves_once_a_step_and_acts_below_the_target() {
    let t = batch(&[5, 2, 1, 3], 9);
    let mut grpo = adaptive();
    let expect = |grpo: &mut Grpo, applied: f64, coef: f64| {
        let (a, c) = shown(grpo, &t);
        assert!((a - applied).abs() < 1e-6 && (c - coef).abs() < 1e-12, "{a} and {c} for {applied} and {coef}");
    };
    // No bonus before the first observed entropy, however many micro-batches there are.
    expect(&mut grpo, 0.0, 0.02);
    expect(&mut grpo, 0.0, 0.02);
    heard(&mut grpo, 1.0);
    expect(&mut grpo, 0.03, 0.03);
    heard(&mut grpo, 0.5);
    expect(&mut grpo, 0.035, 0.035);
    heard(&mut grpo, 1.2);
    expect(&mut grpo, 0.0, 0.025);
    for _ in 0..5 {
        heard(&mut grpo, 1.2);
    }
    expect(&mut grpo, 0.0, 0.0);
    // A step without the metric changes nothing.
    grpo.observe(9, &[("reward".into(), 0.0)]);
    heard(&mut grpo, 0.9);
    expect(&mut grpo, 0.01, 0.01);
}

#[test]
fn the_entropy_is_that_of_the_tokens_that_the_bonus_acts_on() {
    let t = batch(&[5, 2, 1, 3], 9);
    let mut grpo = adaptive();
    grpo.settings.top_entropy_quantile = 0.3;
    let metrics = grpo.loss(&t).unwrap().metrics;
    let (kept, n) = find_metric(&metrics, "entropy_of_kept").unwrap();
    let (all, tokens) = find_metric(&metrics, "entropy").unwrap();
    assert!(n < tokens && kept > all);
    heard(&mut grpo, 0.5);
    assert_eq!(grpo.control, EntropyControl::default());
    grpo.observe(1, &[("entropy".into(), 0.5), ("entropy_of_kept".into(), 2.0)]);
    assert!((grpo.control.coef(&grpo.settings) - 0.01).abs() < 1e-12);
}

#[test]
fn a_restored_state_goes_on_as_the_old_one() {
    let t = batch(&[5, 2, 1, 3], 9);
    let mut grpo = adaptive();
    heard(&mut grpo, 0.5);
    let snapshot = rlhost_plugin_sdk::stateful::snapshot(grpo.state()).unwrap();
    let mut other = adaptive();
    *other.state() = rlhost_plugin_sdk::stateful::restored(&snapshot).unwrap();
    assert_eq!(shown(&mut grpo, &t), shown(&mut other, &t));
    // State of a fixed coefficient, which never adapted, starts at the setting.
    let mut fixed = Grpo::new(GrpoSettings { entropy_coef: 0.5, ..GrpoSettings::default() }).unwrap();
    heard(&mut fixed, 0.0);
    *other.state() = std::mem::take(fixed.state());
    assert_eq!(shown(&mut other, &t), (0.0, 0.02));
}
