//! Compares the plugin with closed forms in f64, written from the papers' formulas.

use super::*;
use rlhost_plugin_sdk::preference::testing::{assert_follows, in_parts, pairs, part};
use rlhost_plugin_sdk::preference::{PairSide, Scale};

const ALL: [DpoLossType; 15] = [
    DpoLossType::Sigmoid,
    DpoLossType::Hinge,
    DpoLossType::Ipo,
    DpoLossType::SigmoidNorm,
    DpoLossType::ExoPair,
    DpoLossType::NcaPair,
    DpoLossType::Robust,
    DpoLossType::BcoPair,
    DpoLossType::SppoHard,
    DpoLossType::Aot,
    DpoLossType::AotUnpaired,
    DpoLossType::ApoZero,
    DpoLossType::ApoDown,
    DpoLossType::Discopop,
    DpoLossType::Sft,
];

/// The losses of the difference of both completions.
const WITH_DIVERGENCE: [DpoLossType; 8] = [
    DpoLossType::Sigmoid,
    DpoLossType::SigmoidNorm,
    DpoLossType::Hinge,
    DpoLossType::Ipo,
    DpoLossType::ExoPair,
    DpoLossType::Robust,
    DpoLossType::Discopop,
    DpoLossType::Sft,
];

fn with(kinds: &[DpoLossType]) -> DpoSettings {
    DpoSettings { loss_type: DpoLossTypes::Several(kinds.to_vec()), ..DpoSettings::default() }
}

fn loss(s: &DpoSettings, p: &PreferencePairs) -> PreferenceGradient {
    Dpo::new(s.clone()).unwrap().loss(p).unwrap()
}

fn ln_sigma(x: f64) -> f64 {
    (1.0 / (1.0 + (-x).exp())).ln()
}

/// Sums values by completion; tokens beyond the other completion's length count `alpha`.
fn sums(side: &PairSide, values: &[f64], other: &PairSide, alpha: f64) -> Vec<f64> {
    let (ends, others) = (&side.offsets, &other.offsets);
    let mut all = Vec::new();
    for row in 0..ends.len() - 1 {
        let shared = (others[row + 1] - others[row]) as usize;
        let values = &values[ends[row] as usize..ends[row + 1] as usize];
        all.push(values.iter().enumerate().map(|(t, v)| if t < shared { *v } else { alpha * v }).sum());
    }
    all
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Computes the loss of one kind directly from the formulas.
fn closed_form(kind: DpoLossType, s: &DpoSettings, p: &PreferencePairs, chosen: &[f64], rejected: &[f64]) -> f64 {
    let wide = |values: &Option<Vec<f32>>| -> Vec<f64> {
        values.as_ref().unwrap().iter().map(|&v| if s.reference_free { 0.0 } else { f64::from(v) }).collect()
    };
    let alpha = s.ld_alpha.unwrap_or(1.0);
    let pi_c = sums(&p.chosen, chosen, &p.rejected, alpha);
    let pi_r = sums(&p.rejected, rejected, &p.chosen, alpha);
    let ref_c = sums(&p.chosen, &wide(&p.chosen.ref_logp), &p.rejected, alpha);
    let ref_r = sums(&p.rejected, &wide(&p.rejected.ref_logp), &p.chosen, alpha);
    let n = pi_c.len();
    let minus = |a: &[f64], b: &[f64]| -> Vec<f64> { (0..n).map(|i| a[i] - b[i]).collect() };
    let (c, r) = (minus(&pi_c, &ref_c), minus(&pi_r, &ref_r));
    let (b, e) = (s.beta, s.label_smoothing);
    let smoothed = |d: f64| -(1.0 - e) * ln_sigma(b * d) - e * ln_sigma(-b * d);
    let score = |x: f64| match s.f_divergence_type {
        FDivergence::ReverseKl => x,
        FDivergence::ForwardKl => 1.0 - (-x).exp(),
        FDivergence::JsDivergence => 2.0f64.ln() + ln_sigma(x),
        FDivergence::AlphaDivergence => {
            let a = s.f_alpha_divergence_coef;
            (((a - 1.0) * x).exp() - 1.0) / (a - 1.0)
        }
    };
    let mut sum = 0.0;
    for i in 0..n {
        let (s_c, s_r) = (score(c[i]), score(r[i]));
        let n_c = f64::from(p.chosen.offsets[i + 1] - p.chosen.offsets[i]);
        let n_r = f64::from(p.rejected.offsets[i + 1] - p.rejected.offsets[i]);
        let d = s_c - s_r;
        sum += match kind {
            DpoLossType::Sigmoid => -ln_sigma(b * d),
            DpoLossType::Hinge => (1.0 - b * d).max(0.0),
            DpoLossType::Ipo => (s_c / n_c - s_r / n_r - 1.0 / (2.0 * b)).powi(2),
            DpoLossType::SigmoidNorm => -ln_sigma(b * (s_c / n_c - s_r / n_r)),
            DpoLossType::ExoPair => {
                let (q, other) = (ln_sigma(b * d).exp(), ln_sigma(-b * d).exp());
                q * (q.ln() - (1.0 - e).ln()) + other * (other.ln() - e.ln())
            }
            DpoLossType::NcaPair => -ln_sigma(b * c[i]) - 0.5 * ln_sigma(-b * c[i]) - 0.5 * ln_sigma(-b * r[i]),
            DpoLossType::Robust => (-(1.0 - e) * ln_sigma(b * d) + e * ln_sigma(-b * d)) / (1.0 - 2.0 * e),
            DpoLossType::BcoPair => -ln_sigma(b * c[i]) - ln_sigma(-b * r[i]),
            DpoLossType::SppoHard => (c[i] - 0.5 / b).powi(2) + (r[i] + 0.5 / b).powi(2),
            DpoLossType::Aot => smoothed(sorted(minus(&pi_c, &pi_r))[i] - sorted(minus(&ref_c, &ref_r))[i]),
            DpoLossType::AotUnpaired => smoothed(sorted(c.clone())[i] - sorted(r.clone())[i]),
            DpoLossType::ApoZero => 1.0 - ln_sigma(b * c[i]).exp() + ln_sigma(b * r[i]).exp(),
            DpoLossType::ApoDown => ln_sigma(b * c[i]).exp() + 1.0 - ln_sigma(b * (c[i] - r[i])).exp(),
            DpoLossType::Discopop => {
                let (x, g) = (b * d, ln_sigma(b * d / s.discopop_tau).exp());
                -(1.0 - g) * ln_sigma(x) + g * (-x).exp()
            }
            DpoLossType::Sft => 0.0,
        };
    }
    if kind == DpoLossType::Sft {
        return -chosen.iter().sum::<f64>() / p.scale.tokens as f64;
    }
    sum / f64::from(p.scale.items)
}

fn compare(s: &DpoSettings, p: &PreferencePairs) {
    assert_follows(&loss(s, p), p, &format!("{s:?}"), |chosen, rejected| {
        s.terms().into_iter().map(|(kind, weight)| weight * closed_form(kind, s, p, chosen, rejected)).sum()
    });
}

#[test]
fn loss_and_gradient_follow_the_closed_form_for_every_type() {
    for kind in ALL {
        for (seed, (beta, label_smoothing, ld_alpha, reference_free)) in
            [(0.1, 0.1, None, false), (0.7, 0.2, None, false), (0.3, 0.01, Some(0.4), false), (0.2, 0.1, Some(0.0), true)]
                .into_iter()
                .enumerate()
        {
            compare(&DpoSettings { beta, label_smoothing, ld_alpha, reference_free, ..with(&[kind]) }, &pairs(seed as u64));
        }
    }
}

#[test]
fn loss_and_gradient_follow_the_closed_form_for_every_divergence() {
    for kind in WITH_DIVERGENCE {
        for f_divergence_type in [FDivergence::ForwardKl, FDivergence::JsDivergence, FDivergence::AlphaDivergence] {
            for (seed, f_alpha_divergence_coef) in [(11, 0.5), (12, 1.3)] {
                let divergence = DpoSettings { f_divergence_type, f_alpha_divergence_coef, ..with(&[kind]) };
                compare(&DpoSettings { beta: 0.4, label_smoothing: 0.1, ..divergence }, &pairs(seed));
            }
        }
    }
    // At an alpha of 1, the limit is reverse KL.
    let p = pairs(13);
    let limit =
        DpoSettings { f_divergence_type: FDivergence::AlphaDivergence, f_alpha_divergence_coef: 1.0, ..DpoSettings::default() };
    assert_eq!(loss(&limit, &p).loss, loss(&DpoSettings::default(), &p).loss);
}

#[test]
fn several_losses_add_up_by_their_weights() {
    let p = pairs(3);
    let kinds = [DpoLossType::Sigmoid, DpoLossType::BcoPair, DpoLossType::AotUnpaired, DpoLossType::Sft];
    compare(&with(&kinds), &p);
    compare(&DpoSettings { loss_weights: Some(vec![0.8, 0.2, 0.0, 1.5]), ld_alpha: Some(0.5), ..with(&kinds) }, &p);
}

#[test]
fn micro_batches_add_up_to_the_whole_except_where_pairs_are_sorted() {
    let p = pairs(5);
    for kind in ALL {
        let s = DpoSettings { label_smoothing: 0.1, ld_alpha: Some(0.6), ..with(&[kind]) };
        let whole = loss(&s, &p);
        let sum = in_parts(&p, |p| loss(&s, p));
        let same = (sum.loss - whole.loss).abs() < 1e-12 && (sum.d_chosen, sum.d_rejected) == (whole.d_chosen, whole.d_rejected);
        assert_eq!(same, !matches!(kind, DpoLossType::Aot | DpoLossType::AotUnpaired), "{kind:?}");
    }
}

#[test]
fn a_single_pair_has_no_order_and_aot_is_the_logistic_loss() {
    let one = part(&pairs(5), 1..2);
    let of = |kind| loss(&with(&[kind]), &one);
    for kind in [DpoLossType::Aot, DpoLossType::AotUnpaired] {
        assert!((of(kind).loss - of(DpoLossType::Sigmoid).loss).abs() < 1e-12, "{kind:?}");
    }
}

#[test]
fn a_policy_that_is_its_reference_loses_ln_2() {
    let mut p = pairs(9);
    p.scale.items = 5;
    for side in [&mut p.chosen, &mut p.rejected] {
        side.ref_logp = Some(side.logp.clone());
    }
    for kind in [DpoLossType::Sigmoid, DpoLossType::SigmoidNorm, DpoLossType::Aot, DpoLossType::AotUnpaired] {
        assert!((loss(&with(&[kind]), &p).loss - std::f64::consts::LN_2).abs() < 1e-12, "{kind:?}");
    }
}

#[test]
fn huge_margins_stay_finite() {
    let side = |logp: f32| PairSide { offsets: vec![0, 1], logp: vec![logp], ref_logp: Some(vec![-5e4]), ..PairSide::default() };
    let scale = Scale { items: 1, tokens: 1, ..Scale::default() };
    let finite = |s: &DpoSettings| {
        for (chosen, rejected) in [(-1e5, 0.0), (0.0, -1e5), (0.0, 0.0), (-1e5, -1e5)] {
            let got =
                loss(s, &PreferencePairs { chosen: side(chosen), rejected: side(rejected), scale, ..PreferencePairs::default() });
            assert!(got.loss.is_finite() && got.d_chosen[0].is_finite() && got.d_rejected[0].is_finite(), "{s:?} {got:?}");
        }
    };
    for kind in ALL {
        finite(&DpoSettings { label_smoothing: 0.1, ..with(&[kind]) });
    }
    for f_divergence_type in [FDivergence::ForwardKl, FDivergence::JsDivergence, FDivergence::AlphaDivergence] {
        finite(&DpoSettings { f_divergence_type, ..DpoSettings::default() });
    }
}

#[test]
fn figures_are_those_of_trl() {
    let side = |offsets: &[u32], logp: &[f32], ref_logp: &[f32]| PairSide {
        offsets: offsets.to_vec(),
        logp: logp.to_vec(),
        ref_logp: Some(ref_logp.to_vec()),
        mean_logits: Some(logp.iter().map(|l| 2.0 * l).collect()),
        log_sum_squares: None,
    };
    let p = PreferencePairs {
        chosen: side(&[0, 2, 3], &[-1.0, -2.0, -4.0], &[-1.5, -3.5, -2.0]),
        rejected: side(&[0, 1, 2], &[-3.0, -2.0], &[-2.0, -1.0]),
        scale: Scale { items: 2, tokens: 3, ..Scale::default() },
        ..PreferencePairs::default()
    };
    let given = |s: &DpoSettings| -> Vec<(String, f64, f64)> {
        loss(s, &p).metrics.into_iter().map(|m| (m.name, m.value, m.weight)).collect()
    };
    // Log-ratios: chosen 2 and -2, rejected -1 and -1.
    let wanted = [
        ("rewards/chosen", 0.0, 2.0),
        ("rewards/rejected", -0.5, 2.0),
        ("rewards/accuracies", 0.5, 2.0),
        ("rewards/margins", 0.5, 2.0),
        ("logps/chosen", -3.5, 2.0),
        ("logps/rejected", -2.5, 2.0),
        ("logits/chosen", -14.0 / 3.0, 3.0),
        ("logits/rejected", -5.0, 2.0),
    ];
    let wanted: Vec<(String, f64, f64)> = wanted.into_iter().map(|(name, v, w)| (name.to_owned(), v, w)).collect();
    assert_eq!(given(&DpoSettings { beta: 0.5, ..DpoSettings::default() }), wanted);
    // Without a reference model, sft has no rewards.
    assert_eq!(given(&with(&[DpoLossType::Sft])), wanted[4..]);
}

#[test]
fn the_reference_model_is_asked_for_where_the_loss_has_one() {
    assert!(Dpo::needs(&DpoSettings::default()).has("ref_logp"));
    assert!(Dpo::needs(&with(&[DpoLossType::Sft, DpoLossType::Aot])).has("ref_logp"));
    let mut p = pairs(1);
    p.chosen.ref_logp = None;
    assert!(matches!(Dpo::new(DpoSettings::default()).unwrap().loss(&p), Err(rlhost_plugin_sdk::Error::Input(_))));
    for s in [with(&[DpoLossType::Sft]), DpoSettings { reference_free: true, ..DpoSettings::default() }] {
        assert!(!Dpo::needs(&s).has("ref_logp"));
        assert!(loss(&s, &p).loss.is_finite());
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let refused = |s: DpoSettings| matches!(Dpo::new(s), Err(rlhost_plugin_sdk::Error::Config(_)));
    assert!(refused(with(&[])));
    assert!(refused(DpoSettings { loss_weights: Some(vec![1.0, 1.0]), ..DpoSettings::default() }));
    assert!(refused(DpoSettings { beta: 0.0, ..DpoSettings::default() }));
    assert!(refused(DpoSettings { label_smoothing: 0.5, ..with(&[DpoLossType::Robust]) }));
    assert!(refused(with(&[DpoLossType::ExoPair])));
    for kind in ALL {
        let s = DpoSettings { f_divergence_type: FDivergence::ForwardKl, label_smoothing: 0.1, ..with(&[kind]) };
        assert_eq!(refused(s), !WITH_DIVERGENCE.contains(&kind), "{kind:?}");
    }
}

#[test]
fn one_name_or_a_list_of_names_is_read() {
    use rlhost_plugin_sdk::config::parse;
    let one: DpoSettings = parse(r#"{"loss_type": "sppo_hard"}"#).unwrap();
    assert_eq!(one.loss_type, DpoLossTypes::One(DpoLossType::SppoHard));
    let several: DpoSettings = parse(r#"{"loss_type": ["sigmoid", "sft"], "loss_weights": [1, 0.5]}"#).unwrap();
    assert_eq!(several.terms(), [(DpoLossType::Sigmoid, 1.0), (DpoLossType::Sft, 0.5)]);
    assert!(parse::<DpoSettings>(r#"{"use_weights": true}"#).is_err());
}

#[test]
fn a_pair_is_weighted_by_how_likely_the_model_writes_it_relative_to_its_own_samples() {
    let (mut p, rows) = (pairs(7), 5);
    let squares =
        |side: &PairSide| side.logp.iter().enumerate().map(|(i, l)| l - 0.3 + 0.2 * (i as f32).sin()).collect::<Vec<f32>>();
    p.chosen.log_sum_squares = Some(squares(&p.chosen));
    p.rejected.log_sum_squares = Some(squares(&p.rejected));
    let s = DpoSettings { use_weighting: true, ..with(&[DpoLossType::Sigmoid, DpoLossType::Ipo]) };
    let whole = loss(&s, &p);
    let mut want = 0.0;
    for row in 0..rows {
        let aligned = |side: &PairSide| {
            let squares = side.log_sum_squares.as_ref().unwrap();
            let tokens = side.offsets[row] as usize..side.offsets[row + 1] as usize;
            let n = tokens.len() as f64;
            tokens.map(|i| f64::from(side.logp[i]) - f64::from(squares[i])).sum::<f64>() / n
        };
        let weight = aligned(&p.chosen).exp() * aligned(&p.rejected).exp();
        let alone = loss(&DpoSettings { use_weighting: false, ..s.clone() }, &part(&p, row..row + 1));
        want += weight * alone.loss;
        let tokens = p.chosen.offsets[row] as usize..p.chosen.offsets[row + 1] as usize;
        for (got, plain) in whole.d_chosen[tokens].iter().zip(alone.d_chosen) {
            assert!((f64::from(*got) - weight * f64::from(plain)).abs() < 1e-6, "pair {row}: {got} and {plain}, weight {weight}");
        }
    }
    assert!((whole.loss - want).abs() < 1e-9, "{} instead of {want}", whole.loss);
    assert!(Dpo::needs(&s).has("log_sum_squares") && !Dpo::needs(&DpoSettings::default()).has("log_sum_squares"));
    for kind in [DpoLossType::Aot, DpoLossType::AotUnpaired, DpoLossType::Sft] {
        assert!(Dpo::new(DpoSettings { use_weighting: true, ..with(&[DpoLossType::Sigmoid, kind]) }).is_err(), "{kind:?}");
    }
    p.rejected.log_sum_squares = None;
    assert!(matches!(Dpo::new(s).unwrap().loss(&p), Err(Error::Input(_))));
}
