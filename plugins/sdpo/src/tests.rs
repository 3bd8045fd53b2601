use super::*;
use rlhost_plugin_sdk::algorithm::Scale;
use rlhost_plugin_sdk::algorithm::testing::batch;
use rlhost_plugin_sdk::bindings::contract::teacher_prompts::Column as TextColumn;
use rlhost_plugin_sdk::columns::{OLD_LOGP, TEACHER_LOGP};
use rlhost_plugin_sdk::config::parse;

/// Returns two prompts with two and three completions, of which the second, and the fourth and the last are successful.
fn generation() -> TaughtGeneration {
    let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
    TaughtGeneration {
        step: 0,
        seed: 0,
        questions: texts(&["1 + 1?", "2 + 2?"]),
        columns: vec![TextColumn { name: "privileged_context".into(), values: texts(&["\"Too {large}.\"", "\" \""]) }],
        prompt_of: vec![0, 0, 1, 1, 1],
        completions: texts(&["3", "<think>a</think> 2 <think>b", "5", "4", "four"]),
        finished: vec![true; 5],
        rewards: vec![Some(0.0), Some(1.0), None, Some(2.0), Some(1.0)],
    }
}

fn settings() -> SdpoSettings {
    SdpoSettings {
        reprompt_template: "{prompt}|{solution}|{feedback}".into(),
        solution_template: "{{{successful_previous_attempt}}}".into(),
        feedback_template: "<{feedback_raw}>".into(),
        ..SdpoSettings::default()
    }
}

fn questions(settings: SdpoSettings) -> Vec<Option<String>> {
    Sdpo::new(settings).unwrap().teacher_prompts(&generation()).unwrap().questions
}

#[test]
fn the_teacher_reads_another_success_or_feedback() {
    let some = |text: &str| Some(text.to_owned());
    let first = "1 + 1?|{<think>a</think> 2 <think>b}|";
    let of_second = [some("2 + 2?|{4}|"), some("2 + 2?|{four}|"), some("2 + 2?|{4}|")];
    let all = questions(settings());
    assert_eq!((&all[..2], &all[2..]), (&[some(first), None][..], &of_second[..]));
    let with_self = questions(SdpoSettings { dont_reprompt_on_self_success: false, ..settings() });
    assert_eq!((with_self[1].as_deref(), with_self[3].as_deref()), (Some(first), Some("2 + 2?|{4}|")));
    let thoughtless = questions(SdpoSettings { remove_thinking_from_demonstration: true, ..settings() });
    assert_eq!(thoughtless[0].as_deref(), Some("1 + 1?|{2 <think>b}|"));
    let fed_back = SdpoSettings { include_environment_feedback: true, ..settings() };
    let both = questions(fed_back.clone());
    assert_eq!(both[0], some(&format!("{first}<Too {{large}}.>")));
    assert_eq!((both[1].as_deref(), &both[2]), (Some("1 + 1?||<Too {large}.>"), &of_second[0]));
    let only = questions(SdpoSettings { environment_feedback_only_without_solution: true, ..fed_back });
    assert_eq!((only[0].as_deref(), only[1].as_deref()), (Some(first), Some("1 + 1?||<Too {large}.>")));
    let hard = SdpoSettings { success_reward_threshold: 2.0, ..settings() };
    assert_eq!(questions(hard), [None, None, of_second[0].clone(), None, of_second[2].clone()]);
}

#[test]
fn prompts_with_something_to_teach_are_counted() {
    let mut sdpo = Sdpo::new(SdpoSettings { success_reward_threshold: 2.0, ..settings() }).unwrap();
    let given = sdpo.teacher_prompts(&generation()).unwrap();
    assert_eq!(given.max_length, 10240);
    let found: Vec<(&str, f64)> = given
        .metrics
        .iter()
        .map(|metric| (metric.name.strip_prefix("self_distillation/").unwrap().strip_suffix("_fraction").unwrap(), metric.value))
        .collect();
    let wanted = [
        ("success_group", 0.5),
        ("success_sample", 0.4),
        ("feedback_available", 0.4),
        ("feedback_used", 0.0),
        ("reprompt_sample", 0.4),
    ];
    assert_eq!(found, wanted);
}

const LOGPS: [f32; 5] = [-1.0, -2.0, -9.0, -0.5, -1.5];

/// Returns two completions of three and two tokens in a step of two sequences, whose second has a teacher's prompt. The third token does
/// not count.
fn completions() -> Batch {
    let mut made = batch(&[&[3, 2]]).with_column(Column::new(HAS_TEACHER_PROMPT, Unit::Sequence, vec![0.0, 1.0]));
    let columns = [
        ("entropy", [1.0; 5]),
        (LOGP, LOGPS),
        (OLD_LOGP, LOGPS),
        (TEACHER_LOGP, [-0.5, -3.0, -1.0, -0.25, -2.5]),
        (ADVANTAGE, [1.0, 1.0, 1.0, -2.0, -2.0]),
    ];
    made.columns.extend(columns.iter().map(|(name, values)| Column::new(*name, Unit::Token, values.to_vec())));
    let scale = Scale { items: 2, tokens: 4, max_completion_length: 10, ..Scale::default() };
    Batch { mask: vec![1, 1, 0, 1, 1], scale, ..made }
}

fn learned(settings: SdpoSettings) -> (f64, Vec<f32>) {
    let gradient = Sdpo::new(settings).unwrap().loss(&completions()).unwrap();
    let [own] = <[_; 1]>::try_from(gradient.derivatives).ok().unwrap();
    assert_eq!(own.name, LOGP);
    (gradient.loss, own.values)
}

#[test]
fn completions_without_a_teachers_prompt_are_not_distilled_but_weigh() {
    let (loss, slopes) = learned(SdpoSettings::default());
    let distances = [0.0, 0.0, 0.0, -0.25, 1.0];
    let want: f64 = distances.iter().zip(LOGPS).map(|(d, logp)| d * f64::from(logp) / 4.0).sum();
    assert!((loss - want).abs() < 1e-6, "{loss} {want}");
    assert_eq!(slopes, distances.map(|d| d as f32 / 4.0));
}

#[test]
fn a_policy_gradient_is_mixed_in_by_weight() {
    // At a ratio of 1, the loss is minus the mean of the advantages, and its derivatives are minus the advantages.
    let policy = |loss_type| SdpoSettings { distillation_weight: 0.0, loss_type, ..SdpoSettings::default() };
    for (loss_type, loss, weights) in [
        (SdpoLossType::Dapo, 0.5, [0.25; 2]),
        (SdpoLossType::Bnpo, 0.5, [0.25; 2]),
        (SdpoLossType::Grpo, 0.5, [0.25; 2]),
        (SdpoLossType::DrGrpo, 0.1, [0.05; 2]),
    ] {
        let (found, slopes) = learned(policy(loss_type));
        assert!((found - loss).abs() < 1e-6, "{loss_type:?}: {found}");
        let want = [-weights[0], -weights[0], 0.0, 2.0 * weights[1], 2.0 * weights[1]];
        assert!(
            slopes.iter().zip(want).all(|(slope, want): (&f32, f32)| (slope - want).abs() < 1e-6),
            "{loss_type:?}: {slopes:?}"
        );
        let by_sequence = SdpoSettings { importance_sampling_level: RatioLevel::Sequence, ..policy(loss_type) };
        let (found, of_sequence) = learned(by_sequence);
        assert!((found - loss).abs() < 1e-6 && of_sequence.iter().zip(&slopes).all(|(a, b)| (a - b).abs() < 1e-6));
    }
    let (policy, distilled) = (learned(policy(SdpoLossType::Dapo)), learned(SdpoSettings::default()));
    let (mixed, slopes) = learned(SdpoSettings { distillation_weight: 0.25, ..SdpoSettings::default() });
    assert!((mixed - (0.75 * policy.0 + 0.25 * distilled.0)).abs() < 1e-6);
    let want = policy.1.iter().zip(distilled.1).map(|(policy, distilled)| 0.75 * policy + 0.25 * distilled);
    assert!(slopes.iter().zip(want).all(|(slope, want)| (slope - want).abs() < 1e-6));
}

#[test]
fn advantages_are_centred_and_scaled() {
    let scores = [Some(1.0), Some(3.0), None, Some(5.0)];
    let of = |scaling| policy::advantages(scaling, &[0, 0, 0, 1], &scores);
    let close = |found: Vec<f64>, want: [f64; 4]| found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9);
    let group = 2f64.sqrt() + 1e-4;
    assert!(close(of(AdvantageScaling::None), [-1.0 / 1.0001, 1.0 / 1.0001, 0.0, 0.0]));
    assert!(close(of(AdvantageScaling::Group), [-1.0 / group, 1.0 / group, 0.0, 0.0]));
    assert!(close(of(AdvantageScaling::Batch), [-1.0 / 2.0001, 1.0 / 2.0001, 0.0, 0.0]));
}

#[test]
fn names_and_defaults_are_those_of_trl() {
    let s = parse::<SdpoSettings>("{}").unwrap();
    assert_eq!((s.distillation_alpha, s.distillation_topk, s.distillation_weight), (1.0, None, 1.0));
    assert_eq!((s.success_reward_threshold, s.max_reprompt_len, s.epsilon), (1.0, 10240, 0.2));
    assert_eq!(s.reprompt_template, "{prompt}{solution}{feedback}\n\nCorrectly solve the original question.\n");
    let needs = |s: &SdpoSettings| Sdpo::needs(s).names();
    assert_eq!(needs(&s), ["logp", "old_logp", "teacher_logp", "has_teacher_prompt", "entropy", "finished"]);
    let policy = SdpoSettings { distillation_weight: 0.0, ..s };
    assert_eq!(needs(&policy), ["logp", "old_logp", "entropy", "finished", "advantage"]);
}

#[test]
fn what_is_wrong_with_settings_is_named() {
    let refused = |json: &str| match parse::<SdpoSettings>(json).and_then(Sdpo::new) {
        Err(Error::Config(detail)) => detail,
        other => panic!("{json}: {:?}", other.err()),
    };
    for (json, expected) in [
        (r#"{"distillation_alpha": 0.5}"#, "distillation_alpha must be 1"),
        (r#"{"distillation_mode": "topk_logits"}"#, "distillation_topk must be set"),
        (
            r#"{"reprompt_template": "{prompt} {hint}"}"#,
            "reprompt_template has {hint}; known are {prompt}, {solution}, {feedback}",
        ),
        (r#"{"reprompt_template": "{prompt"}"#, "reprompt_template has a brace"),
        (r#"{"solution_template": "}"}"#, "solution_template has a brace"),
        (r#"{"feedback_template": "{}"}"#, "feedback_template has {}"),
    ] {
        let found = refused(json);
        assert!(found.contains(expected), "{json}: {found}");
    }
}
