//! Compares values and gradients of every loss with the closed form.

use super::closed_form::{LossPoint, loss as closed_form};
use super::*;
use rlhost_plugin_sdk::config::{NoBound, UpperBound};

const TYPES: [GrpoLossType; 8] = [
    GrpoLossType::Grpo,
    GrpoLossType::Bnpo,
    GrpoLossType::DrGrpo,
    GrpoLossType::Dapo,
    GrpoLossType::Cispo,
    GrpoLossType::Sapo,
    GrpoLossType::Luspo,
    GrpoLossType::Vespo,
];

/// Returns all loss types at both levels, with each of these other settings.
fn all_settings() -> Vec<GrpoSettings> {
    let plain = GrpoSettings::default;
    let further = [
        plain(),
        GrpoSettings { epsilon_high: Some(0.28), beta: 0.3, ..plain() },
        GrpoSettings { epsilon_high: Some(0.4), delta: Some(1.5), beta: 0.3, use_bias_correction_kl: false, ..plain() },
        GrpoSettings { delta: Some(1.1), off_policy_mask_threshold: Some(0.02), beta: 0.1, ..plain() },
        GrpoSettings { top_entropy_quantile: 0.4, entropy_coef: 0.05, beta: 0.2, ..plain() },
        GrpoSettings { entropy_coef: -0.02, epsilon_high: Some(1.2), off_policy_mask_threshold: Some(-0.1), ..plain() },
        GrpoSettings { sapo_temperature_pos: 2.0, sapo_temperature_neg: 0.7, vespo_k_pos: 1.0, vespo_lambda_neg: 0.5, ..plain() },
    ];
    let corrected = |mode, least, most| GrpoSettings {
        vllm_importance_sampling_correction: true,
        vllm_importance_sampling_mode: mode,
        vllm_importance_sampling_clip_min: least,
        vllm_importance_sampling_clip_max: most,
        beta: 0.1,
        ..plain()
    };
    let without = UpperBound::Lifted(NoBound::None);
    let by_token = [
        corrected(CorrectionMode::TokenTruncate, None, UpperBound::At(1.2)),
        corrected(CorrectionMode::TokenMask, Some(0.7), UpperBound::At(1.4)),
    ];
    let by_sequence = [
        corrected(CorrectionMode::SequenceTruncate, Some(0.9), without),
        corrected(CorrectionMode::SequenceMask, Some(0.5), UpperBound::At(3.0)),
    ];
    let mut all = Vec::new();
    for loss_type in TYPES {
        for importance_sampling_level in [ImportanceSamplingLevel::Token, ImportanceSamplingLevel::Sequence] {
            let several = if loss_type == GrpoLossType::Vespo { &[][..] } else { &by_sequence };
            all.extend(further.iter().chain(&by_token).chain(several).map(|s| GrpoSettings {
                loss_type,
                importance_sampling_level,
                ..s.clone()
            }));
        }
    }
    all
}

fn loss_of(s: &GrpoSettings, t: &Tokens) -> PolicyGradient {
    Grpo::new(s.clone()).unwrap().loss(t).unwrap()
}

#[test]
fn losses_and_gradients_follow_the_closed_form() {
    for seed in 0..4 {
        let t = batch(&[5, 1, 4, 3, 7, 2], seed);
        let base = LossPoint::from_tokens(&t);
        for s in all_settings() {
            let got = loss_of(&s, &t);
            let what = format!("seed {seed}, {s:?}");
            let want = closed_form(&s, &t, s.entropy_coef, &base, &base);
            assert!((got.loss - want).abs() <= 1e-5 * want.abs().max(0.05), "{what}: {} is not {want}", got.loss);

            let slope = |move_it: &dyn Fn(&mut LossPoint, f64)| {
                let moved = |by: f64| {
                    let mut p = base.clone();
                    move_it(&mut p, by);
                    closed_form(&s, &t, s.entropy_coef, &p, &base)
                };
                (moved(1e-5) - moved(-1e-5)) / 2e-5
            };
            let n = t.mask.len();
            let d_logp: Vec<f64> = (0..n).map(|i| slope(&|p, by| p.logp[i] += by)).collect();
            close(&format!("d_logp, {what}"), &got.d_logp, &d_logp);
            match got.d_entropy {
                Some(d) => {
                    let d_entropy: Vec<f64> = (0..n).map(|i| slope(&|p, by| p.entropy[i] += by)).collect();
                    close(&format!("d_entropy, {what}"), &d, &d_entropy);
                }
                None => assert_eq!(s.entropy_coef, 0.0),
            }
            assert!((0..n).all(|i| t.mask[i] == 1 || got.d_logp[i] == 0.0), "{what}");
        }
    }
}

#[test]
fn micro_batches_add_up_to_the_step() {
    let t = batch(&[5, 1, 4, 3, 7, 2], 11);
    // The quantile of entropies is each micro-batch's own.
    for s in all_settings().into_iter().filter(|s| s.top_entropy_quantile == 1.0) {
        let whole = loss_of(&s, &t);
        for first in [1, 3, 5] {
            let [a, b] = halves(&t, first).map(|half| loss_of(&s, &half));
            assert!((a.loss + b.loss - whole.loss).abs() < 1e-12, "{s:?}");
            assert_eq!([a.d_logp, b.d_logp].concat(), whole.d_logp, "{s:?}");
            if let (Some(a), Some(b), Some(whole)) = (a.d_entropy, b.d_entropy, &whole.d_entropy) {
                let all: Vec<f64> = whole.iter().map(|&d| f64::from(d)).collect();
                close("d_entropy", &[a, b].concat(), &all);
            }
        }
    }
}

#[test]
fn on_policy_every_type_pushes_by_the_advantage() {
    let mut t = batch(&[3, 3, 1, 1, 4], 3);
    t.old_logp = t.logp.clone();
    let tokens = t.scale.tokens as f64;
    for loss_type in [GrpoLossType::Bnpo, GrpoLossType::Dapo, GrpoLossType::Cispo, GrpoLossType::Vespo] {
        let s = GrpoSettings {
            loss_type,
            epsilon_high: (loss_type == GrpoLossType::Cispo).then_some(5.0),
            ..GrpoSettings::default()
        };
        let want: Vec<f64> = (0..t.mask.len()).map(|i| -f64::from(t.mask[i]) * f64::from(t.advantages[i]) / tokens).collect();
        close(&format!("{loss_type:?}"), &loss_of(&s, &t).d_logp, &want);
    }
}

#[test]
fn ratios_far_out_stay_finite() {
    let mut t = batch(&[6, 4, 2, 2], 5);
    for (i, old) in t.old_logp.iter_mut().enumerate() {
        *old = t.logp[i] + if i % 2 == 0 { 30.0 } else { -30.0 };
    }
    for s in all_settings() {
        let got = loss_of(&s, &t);
        assert!(got.loss.is_finite() && got.d_logp.iter().all(|d| d.is_finite()), "{s:?}");
    }
}

#[test]
fn what_the_settings_need_must_be_there() {
    let t = batch(&[2, 2], 1);
    let refused = |s: GrpoSettings, t: &Tokens| matches!(Grpo::new(s).unwrap().loss(t), Err(Error::Input(_)));
    assert!(refused(GrpoSettings { beta: 0.1, ..GrpoSettings::default() }, &Tokens { ref_logp: None, ..t.clone() }));
    let without = Tokens { entropy: None, ..t };
    assert!(refused(GrpoSettings { top_entropy_quantile: 0.5, ..GrpoSettings::default() }, &without));
    assert!(refused(GrpoSettings { entropy_coef: 0.1, ..GrpoSettings::default() }, &without));
    assert!(!refused(GrpoSettings::default(), &without));
    let needs = |s: &GrpoSettings| Grpo::needs(s);
    assert_eq!(needs(&GrpoSettings::default()), Needs::ENTROPY);
    let corrected = GrpoSettings { vllm_importance_sampling_correction: true, ..GrpoSettings::default() };
    assert_eq!(needs(&corrected), Needs::ENTROPY | Needs::SAMPLING_LOGP);
    assert!(refused(corrected, &Tokens { sampling_logp: None, ..without }));
    let all = GrpoSettings { beta: 0.1, off_policy_mask_threshold: Some(0.5), ..GrpoSettings::default() };
    assert_eq!(needs(&all), Needs::ENTROPY | Needs::REF_LOGP | Needs::SAMPLING_LOGP);
}

#[test]
fn a_correction_that_cannot_be_made_is_refused() {
    let on = || GrpoSettings { vllm_importance_sampling_correction: true, ..GrpoSettings::default() };
    let truncate = CorrectionMode::TokenTruncate;
    let none = UpperBound::Lifted(NoBound::None);
    for (s, said) in [
        (GrpoSettings { loss_type: GrpoLossType::Vespo, ..on() }, "token_truncate or token_mask"),
        (GrpoSettings { vllm_importance_sampling_clip_min: Some(3.0), ..on() }, "below clip_max, 3"),
        (GrpoSettings { vllm_importance_sampling_mode: truncate, vllm_importance_sampling_clip_max: none, ..on() }, "it clips"),
    ] {
        let Err(Error::Config(refused)) = Grpo::new(s) else { panic!("accepted: {said}") };
        assert!(refused.contains(said.trim_start_matches("it ")), "{refused}");
    }
    assert!(Grpo::new(on()).is_ok());
}

#[test]
fn the_correction_logs_what_it_multiplies_by() {
    let mut t = batch(&[2, 2], 1);
    (t.mask, t.old_logp) = (vec![1, 1, 1, 0], vec![0.0; 4]);
    t.sampling_logp = Some([2.0f32, 0.5, 1.0, 9.0].map(|ratio: f32| -ratio.ln()).to_vec());
    let figures = |mode| {
        let s = GrpoSettings {
            vllm_importance_sampling_correction: true,
            vllm_importance_sampling_mode: mode,
            vllm_importance_sampling_clip_max: UpperBound::At(1.5),
            ..GrpoSettings::default()
        };
        let metrics = loss_of(&s, &t).metrics;
        ["min", "mean", "max", "clipped"].map(|which| {
            let (value, _) = find_metric(&metrics, &format!("sampling/importance_sampling_ratio/{which}")).unwrap();
            (value * 1e5).round() / 1e5
        })
    };
    assert_eq!(figures(CorrectionMode::TokenTruncate), [0.5, 1.0, 1.5, 0.33333]);
    assert_eq!(figures(CorrectionMode::TokenMask), [0.0, 0.5, 1.0, 0.33333]);
    assert_eq!(figures(CorrectionMode::SequenceMask), [1.0, 1.0, 1.0, 0.0]);
}
