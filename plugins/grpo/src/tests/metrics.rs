//! Tests the metrics of a loss against numbers worked out by hand.

use super::*;

/// Returns three completions of 4, 1 and 4 tokens, one token masked, with ratios of e^0.5, e^-0.5 and 1.
fn tokens() -> Tokens {
    let mut t = batch(&[4, 1, 4], 2);
    t.mask = vec![1, 1, 0, 1, 1, 1, 1, 1, 1];
    t.advantages = [[1.3; 4].as_slice(), &[-0.7], &[-1.1; 4]].concat();
    t.logp = vec![-1.0; 9];
    t.old_logp = [0.5, -0.5, 0.5, 0.0, -0.5, 0.5, 0.0, 0.0, -0.5].map(|r| -1.0 - r).to_vec();
    t.ref_logp = Some((0..9).map(|i| -1.0 + 0.1 * i as f32).collect());
    t.entropy = Some((0..9).map(|i| i as f32).collect());
    t
}

fn figures(s: GrpoSettings, t: &Tokens) -> Vec<Metric> {
    Grpo::new(s).unwrap().loss(t).unwrap().metrics
}

fn assert_near(got: Option<(f64, f64)>, want: (f64, f64)) {
    let got = got.expect("the figure");
    assert!((got.0 - want.0).abs() < 1e-6 && (got.1 - want.1).abs() < 1e-9, "{got:?} against {want:?}");
}

#[test]
fn clipping_is_counted_by_side_and_token() {
    let m = figures(GrpoSettings { beta: 0.1, use_bias_correction_kl: false, ..GrpoSettings::default() }, &tokens());
    // Eight tokens count; token 0 rises with a positive advantage, 4 and 8 fall with a negative one.
    assert_eq!(find_metric(&m, "clip_ratio/high_mean"), Some((1.0 / 8.0, 8.0)));
    assert_eq!(find_metric(&m, "clip_ratio/low_mean"), Some((2.0 / 8.0, 8.0)));
    assert_eq!(find_metric(&m, "clip_ratio/region_mean"), Some((3.0 / 8.0, 8.0)));
    // For the three completions, over tokens that count: low 0/3, 1/1, 1/4 and high 1/3, 0, 0.
    assert_eq!(find_metric(&m, "clip_ratio/low_min"), Some((0.0, 1.0)));
    assert_eq!(find_metric(&m, "clip_ratio/high_max"), Some((1.0 / 3.0, 1.0)));
    assert_eq!(find_metric(&m, "entropy"), Some(((36.0 - 2.0) / 8.0, 8.0)));
    let k3 = |i: i32| (0.1 * f64::from(i)).exp() - 0.1 * f64::from(i) - 1.0;
    assert_near(find_metric(&m, "kl"), ((0..9).filter(|&i| i != 2).map(k3).sum::<f64>() / 8.0, 8.0));
    assert_eq!(find_metric(&m, "policy_loss"), None);
    // With a cap below the clipping range, nothing exceeds the range, as TRL counts.
    let m = figures(GrpoSettings { delta: Some(1.1), ..GrpoSettings::default() }, &tokens());
    assert_eq!(find_metric(&m, "clip_ratio/high_mean"), Some((0.0, 8.0)));
}

#[test]
fn a_completion_with_one_ratio_is_counted_once() {
    let mut t = tokens();
    // Mean log-ratios of 0, -0.5 and 0, the first then 0.4.
    t.old_logp[..4].fill(-1.4);
    let level = ImportanceSamplingLevel::Sequence;
    let s =
        GrpoSettings { importance_sampling_level: level, beta: 0.1, loss_type: GrpoLossType::Grpo, ..GrpoSettings::default() };
    let m = figures(s.clone(), &t);
    assert_near(find_metric(&m, "clip_ratio/high_mean"), (1.0 / 3.0, 3.0));
    assert_near(find_metric(&m, "clip_ratio/low_mean"), (1.0 / 3.0, 3.0));
    assert_near(find_metric(&m, "clip_ratio/high_max"), (1.0, 1.0));
    assert_near(find_metric(&m, "clip_ratio/low_min"), (0.0, 1.0));
    let k3 = |i: i32| (0.1 * f64::from(i)).exp() - 0.1 * f64::from(i) - 1.0;
    // Corrected by each completion's ratio.
    let of = |tokens: &[i32], log_ratio: f64| log_ratio.exp() * tokens.iter().map(|&i| k3(i)).sum::<f64>();
    assert_near(find_metric(&m, "kl"), ((of(&[0, 1, 3], 0.4) + of(&[4], -0.5) + of(&[5, 6, 7, 8], 0.0)) / 8.0, 8.0));
    // A completion without tokens counts too, and is not clipped.
    t.mask[4] = 0;
    assert_near(find_metric(&figures(s, &t), "clip_ratio/low_mean"), (0.0, 3.0));
}

#[test]
fn each_type_has_its_own_figure() {
    let of = |loss_type, epsilon_high| figures(GrpoSettings { loss_type, epsilon_high, ..GrpoSettings::default() }, &tokens());
    let cispo = of(GrpoLossType::Cispo, Some(1.5));
    // Tokens 0 and, with a negative advantage, 5 are above 1.5.
    assert_eq!(find_metric(&cispo, "cispo_clip_ratio"), Some((1.0 / 8.0, 8.0)));
    assert_eq!(find_metric(&cispo, "clip_ratio/low_mean"), None);
    let vespo = of(GrpoLossType::Vespo, None);
    // Log-ratios summed over the tokens that count: 0, -0.5 and 0; phi is 1 where w is 1.
    let w = (-0.5f64).exp();
    assert_near(find_metric(&vespo, "vespo/phi_seq_mean"), ((2.0 + w.powi(3) * (2.0 * (1.0 - w)).exp()) / 3.0, 3.0));
    let names: Vec<String> = of(GrpoLossType::Sapo, None).into_iter().map(|m| m.name).collect();
    assert_eq!(names, ["entropy"]);
}

#[test]
fn a_step_without_tokens_logs_zeros_and_loses_nothing() {
    // TRL's `test_train_with_mask_truncated_completions_all_masked`.
    let mut t = tokens();
    t.mask.fill(0);
    t.scale.tokens = 0;
    for loss_type in [
        GrpoLossType::Grpo,
        GrpoLossType::Bnpo,
        GrpoLossType::DrGrpo,
        GrpoLossType::Dapo,
        GrpoLossType::Luspo,
        GrpoLossType::Sapo,
    ] {
        let s = GrpoSettings { loss_type, beta: 0.1, entropy_coef: 0.1, top_entropy_quantile: 0.5, ..GrpoSettings::default() };
        let got = Grpo::new(s).unwrap().loss(&t).unwrap();
        assert_eq!(got.loss, 0.0);
        assert!(got.d_logp.iter().chain(got.d_entropy.iter().flatten()).all(|&d| d == 0.0));
        for name in ["kl", "entropy"] {
            let (value, weight) = find_metric(&got.metrics, name).unwrap();
            assert!(value == 0.0 && weight > 0.0 && weight < 1e-300, "{name}");
        }
        if loss_type != GrpoLossType::Sapo {
            assert_eq!(find_metric(&got.metrics, "clip_ratio/region_mean").unwrap().0, 0.0);
        }
        assert_eq!(find_metric(&got.metrics, "clip_ratio/low_min"), None);
    }
}

#[test]
fn doubtful_settings_are_taken_with_a_warning() {
    let doubts = |s: GrpoSettings| {
        let count = s.warnings().len();
        assert!(Grpo::new(s).is_ok());
        count
    };
    let (sequence, plain) = (ImportanceSamplingLevel::Sequence, GrpoSettings::default);
    assert_eq!(doubts(plain()), 0);
    assert_eq!(doubts(GrpoSettings { delta: Some(1.2), ..plain() }), 1);
    assert_eq!(doubts(GrpoSettings { delta: Some(1.3), ..plain() }), 0);
    assert_eq!(doubts(GrpoSettings { loss_type: GrpoLossType::Cispo, ..plain() }), 1);
    assert_eq!(doubts(GrpoSettings { loss_type: GrpoLossType::Luspo, ..plain() }), 1);
    assert_eq!(doubts(GrpoSettings { loss_type: GrpoLossType::Luspo, importance_sampling_level: sequence, ..plain() }), 0);
    assert_eq!(doubts(GrpoSettings { loss_type: GrpoLossType::Vespo, importance_sampling_level: sequence, ..plain() }), 1);
    assert_eq!(doubts(GrpoSettings { importance_sampling_level: sequence, ..plain() }), 1);
}
