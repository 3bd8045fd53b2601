//! Tests signs on made-up rows, and on hostile folders.

use super::{DiagnosisMonitor, DiagnosisSettings, ReportedFinding, read};
use crate::run::MetricsRow;
use serde_json::{Value, json};
use std::fs;

const CONFIG: &str = "learning_rate = 1e-5\nmax_completion_length = 64\n[loss]\nbeta = 0.04\n[[plugin]]\npath = \"a/right.wasm\"\n\
                      weight = 1.0\nconfig = { column = \"answer\" }\n[[plugin]]\npath = \"long.wasm\"\nweight = 2.0\n";

/// Returns a number between -1 and 1 that depends on the step and the purpose.
fn noise(step: u64, of: u64) -> f64 {
    let mut x = (step * 31 + of).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Returns the row of a run that learns: a reward that rises with noise, and typical lengths, entropy and divergence.
fn healthy(step: u64) -> Value {
    let at = step as f64 / 60.0;
    json!({
        "reward": 0.2 + 0.4 * at + 0.1 * noise(step, 1), "reward_std": 0.4 + 0.05 * noise(step, 2),
        "frac_reward_zero_std": 0.4 + 0.2 * noise(step, 3), "kl": 0.1 * at + 0.01 * noise(step, 4).abs(),
        "entropy": 1.0 - 0.3 * at + 0.1 * noise(step, 5), "completions/mean_length": 40.0 - 10.0 * at + 5.0 * noise(step, 6),
        "completions/clipped_ratio": 0.2 + 0.1 * noise(step, 7), "clip_ratio/region_mean": 0.05 + 0.02 * noise(step, 8),
        "rewards/right/mean": 0.2 + 0.4 * at + 0.1 * noise(step, 9), "rewards/right/std": 0.4 + 0.05 * noise(step, 10),
        "rewards/long/mean": -0.5 + 0.2 * at + 0.1 * noise(step, 11), "rewards/long/std": 0.2 + 0.05 * noise(step, 12),
        "rewards/right/varies": 0.6, "rewards/right/alone": 0.2, "rewards/right/share": 0.6 + 0.1 * noise(step, 14),
        "rewards/long/varies": 0.7, "rewards/long/alone": 0.3, "rewards/long/share": 0.4 - 0.1 * noise(step, 14),
        "loss": 0.01 * noise(step, 13), "grad_norm": 1.0, "time/rollout": 3.0, "eval_reward": 1e9,
    })
}

/// Adds the row of a step.
fn see(watch: &mut DiagnosisMonitor, step: u64, mut row: Value) -> Vec<ReportedFinding> {
    row["step"] = json!(step);
    watch.observe(&MetricsRow::from_line(row.as_object().unwrap()).unwrap())
}

/// Monitors sixty rows, one every `every` steps, of a run with this configuration.
fn watch(config: &str, usual: f64, every: u64, row: impl Fn(u64) -> Value) -> (DiagnosisMonitor, Vec<ReportedFinding>) {
    let mut watch = DiagnosisMonitor::new(DiagnosisSettings::from_config(config, Some(usual)));
    let mut begun = Vec::new();
    for i in 1..=60 {
        begun.extend(see(&mut watch, i * every, row(i)));
    }
    (watch, begun)
}

fn names(held: &[ReportedFinding]) -> Vec<&'static str> {
    held.iter().map(|held| held.finding.name).collect()
}

/// Returns the names of the findings when some metrics of a healthy run are replaced.
fn found(config: &str, usual: f64, change: impl Fn(u64, &mut Value)) -> Vec<&'static str> {
    let row = |step| {
        let mut row = healthy(step);
        change(step, &mut row);
        row
    };
    let (watch, begun) = watch(config, usual, 1, row);
    assert!(begun.iter().all(|held| held.since >= 15 && !held.finding.figures.is_empty() && !held.finding.advice.is_empty()));
    assert_eq!(begun.len(), watch.findings().len());
    names(&begun)
}

#[test]
fn a_run_that_learns_shows_no_sign_however_often_it_logs() {
    for every in [1, 3, 10, 500] {
        let (watch, begun) = watch(CONFIG, 1e-5, every, healthy);
        assert!(begun.is_empty() && watch.has_enough(), "{begun:?}");
    }
}

#[test]
fn each_fault_shows_its_sign() {
    let same = |_: u64, _: &mut Value| {};
    assert_eq!(found(CONFIG, 1e-5, same), [""; 0]);
    let falls = |step: u64, row: &mut Value| row["reward"] = json!(if step < 3 { 0.3 } else { -0.9 });
    assert_eq!(found(CONFIG, 1e-6, falls), ["rate_too_high"]);
    assert_eq!(found(CONFIG, 1e-5, falls), [""; 0], "not at the usual rate");
    let still = |step: u64, row: &mut Value| {
        for (i, (name, level)) in [("reward", 0.2), ("entropy", 1.0), ("completions/mean_length", 30.0)].iter().enumerate() {
            row[*name] = json!(level * (1.0 + 0.1 * noise(step, 20 + i as u64)));
        }
    };
    assert_eq!(found(CONFIG, 1e-2, still), ["rate_too_low"]);
    let moves = |step: u64, row: &mut Value| row["entropy"] = json!(1.0 - 0.01 * step as f64 + 0.05 * noise(step, 5));
    assert_eq!(found(CONFIG, 1e-2, moves), [""; 0], "it moves");
    let cut = |step: u64, row: &mut Value| row["completions/clipped_ratio"] = json!(0.7 + 0.1 * noise(step, 1));
    assert_eq!(found(CONFIG, 1e-5, cut), ["completions_cut_off"]);
    let constant = |_: u64, row: &mut Value| (row["rewards/long/mean"], row["rewards/long/std"]) = (json!(-0.5), json!(1e-9));
    assert_eq!(found(CONFIG, 1e-5, constant), ["reward_constant"]);
    let never = |_: u64, row: &mut Value| (row["rewards/right/mean"], row["rewards/right/std"]) = (json!(0.0), json!(0.0));
    assert_eq!(found(CONFIG, 1e-5, never), ["answers_never_found"]);
    let equal = |_: u64, row: &mut Value| row["frac_reward_zero_std"] = json!(0.9);
    assert_eq!(found(CONFIG, 1e-5, equal), ["groups_without_spread"]);
    let diverges = |step: u64, row: &mut Value| row["kl"] = json!(0.05 * step as f64);
    assert_eq!(found(CONFIG, 1e-5, diverges), ["divergence_runs_away"]);
    let collapses = |step: u64, row: &mut Value| row["entropy"] = json!(0.02f64.max(1.0 - 0.05 * step as f64));
    assert_eq!(found(CONFIG, 1e-5, collapses), ["entropy_collapses"]);
    let short = |step: u64, row: &mut Value| {
        row["completions/mean_length"] = json!(2f64.max(40.0 - 2.0 * step as f64));
        row["reward"] = json!(0.3 + 0.03 * step as f64);
    };
    assert_eq!(found(CONFIG, 1e-5, short), ["length_exploited"]);
    let clipped = |step: u64, row: &mut Value| row["clip_ratio/region_mean"] = json!(0.5 + 0.1 * noise(step, 1));
    assert_eq!(found(CONFIG, 1e-5, clipped), ["ratios_clipped"]);
    let over_tokens = |_: u64, row: &mut Value| {
        row.as_object_mut().unwrap().remove("clip_ratio/region_mean");
        row["ppo_clip_ratio"] = json!(0.9);
    };
    assert_eq!(found(CONFIG, 1e-5, over_tokens), ["ratios_clipped"]);
    let capped = |_: u64, row: &mut Value| row["cispo_clip_ratio"] = json!(0.9);
    assert_eq!(found(CONFIG, 1e-5, capped), [""; 0], "tokens with a capped ratio are learned");
    let sft = |step: u64| json!({ "loss": if step < 3 { 2.0 } else { 6.0 }, "entropy": 0.01, "learning_rate": 1e-5 });
    assert_eq!(names(&watch(CONFIG, 1e-6, 1, sft).1), ["rate_too_high"]);
    // KTO's loss is 0.5 while its baseline follows the rewards.
    let broken = |step: u64| json!({ "loss": 0.5, "logps/chosen": if step < 3 { -23.0 } else { -998.0 } });
    assert_eq!(names(&watch(CONFIG, 1e-6, 1, broken).1), ["rate_too_high"]);
    assert_eq!(names(&watch(CONFIG, 1e-5, 1, broken).1), [""; 0], "not at the usual rate");
    let still = |step: u64| json!({ "loss": 2.0 + 0.1 * noise(step, 1), "grad_norm": 3.0 });
    let sgd = format!("optim = \"sgd\"\n{CONFIG}");
    assert_eq!(names(&watch(&sgd, 1e-5, 1, still).1), ["rate_too_low"]);
    assert_eq!(names(&watch(CONFIG, 1e-5, 1, still).1), [""; 0]);
    let far = sgd.replace("1e-5", "1e-3");
    assert_eq!(names(&watch(&far, 1e-5, 1, still).1), [""; 0], "a noisy loss hides what these steps change");
}

#[test]
fn a_reward_that_dominates_is_judged_by_the_groups() {
    let share = |row: &mut Value, long: f64| {
        (row["rewards/long/share"], row["rewards/right/share"]) = (json!(long), json!(1.0 - long));
    };
    let small = |_: u64, row: &mut Value| {
        (row["rewards/long/mean"], row["rewards/long/std"]) = (json!(-0.002), json!(0.003));
        share(row, 0.002);
    };
    assert_eq!(found(CONFIG, 1e-5, small), ["reward_dominates"]);
    let normalised = CONFIG.replace("beta", "multi_objective_aggregation = \"normalize_then_sum\"\nbeta");
    assert_eq!(found(&normalised, 1e-5, small), [""; 0]);
    let fulfilled = |step: u64, row: &mut Value| {
        small(step, row);
        row["rewards/long/mean"] = json!(0.999);
    };
    assert_eq!(found(CONFIG, 1e-5, fulfilled), [""; 0], "a reward that is nearly always given has little spread");
    let seldom = |step: u64, row: &mut Value| {
        small(step, row);
        row["rewards/long/varies"] = json!(0.1);
    };
    let minor = CONFIG.replace("weight = 2.0", "weight = 0.5");
    assert_eq!(found(&minor, 1e-5, seldom), [""; 0], "a reward that seldom differs is not drowned where it does");
    // As recorded with normalised groups: the answer's scores have the largest spread, and the other reward decides the groups.
    let alone = |_: u64, row: &mut Value| {
        share(row, 0.9);
        (row["rewards/long/alone"], row["rewards/right/varies"]) = (json!(0.9), json!(0.1));
    };
    assert_eq!(found(&CONFIG.replace("weight = 2.0", "weight = 0.1"), 1e-5, alone), ["reward_dominates"]);
    assert_eq!(found(CONFIG, 1e-5, alone), [""; 0], "with the larger weight, it is meant to");
    let learned = |step: u64, row: &mut Value| {
        alone(step, row);
        (row["rewards/right/mean"], row["rewards/right/std"]) = (json!(0.97), json!(0.17));
    };
    assert_eq!(found(&CONFIG.replace("weight = 2.0", "weight = 0.1"), 1e-5, learned), [""; 0], "the others are left to learn");
    let penalty = |step: u64, row: &mut Value| {
        alone(step, row);
        (row["rewards/right/mean"], row["rewards/right/std"]) = (json!(-0.01), json!(0.05));
    };
    assert_eq!(found(&CONFIG.replace("weight = 2.0", "weight = 0.1"), 1e-5, penalty), [""; 0], "a penalty that is seldom due");
    let due = |step: u64, row: &mut Value| {
        alone(step, row);
        (row["rewards/right/mean"], row["rewards/right/std"]) = (json!(-0.7), json!(0.46));
    };
    assert_eq!(
        found(&CONFIG.replace("weight = 2.0", "weight = 0.1"), 1e-5, due),
        ["reward_dominates"],
        "a penalty that most pay"
    );
    let costs = |step: u64, row: &mut Value| {
        alone(step, row);
        (row["rewards/right/mean"], row["rewards/right/std"]) = (json!(0.7), json!(0.46));
    };
    let negative = CONFIG.replace("weight = 2.0", "weight = 0.1").replace("weight = 1.0", "weight = -1.0");
    assert_ne!(negative, CONFIG);
    assert_eq!(found(&negative, 1e-5, costs), ["reward_dominates"], "by a negative weight");
    let by_prompt = |_: u64, row: &mut Value| row["rewards/long/varies"] = json!(0.0);
    assert_eq!(found(CONFIG, 1e-5, by_prompt), ["reward_constant"]);
}

#[test]
fn rewards_are_known_by_the_names_of_their_metrics() {
    let constant = |name: &str, config: &str| {
        let names_and_rewards = |_: u64, row: &mut Value| {
            (row[format!("rewards/{name}/mean")], row[format!("rewards/{name}/std")]) = (json!(0.0), json!(0.0));
            if config.contains("environment") && !config.contains("plugin") {
                row["frac_reward_zero_std"] = json!(1.0);
            }
        };
        found(config, 1e-5, names_and_rewards)
    };
    assert_eq!(constant("never", "[[plugin]]\npath = \"a/right.wasm\"\nname = \"never\"\n"), ["reward_constant"]);
    let column = "config = { column = \"answer\" }\n";
    assert_eq!(
        constant("correct", &format!("[[plugin]]\npath = \"right.wasm\"\nname = \"correct\"\n{column}")),
        ["answers_never_found"]
    );
    assert_eq!(constant("rm", "[[plugin]]\npath = \"runs/rm/checkpoint-10\"\nmodel = true\n"), ["reward_constant"]);
    assert_eq!(constant("calculator", "[[environment]]\npath = \"calculator.wasm\"\n"), ["reward_constant"]);
    // An environment that leaves the reward to a plugin.
    assert_eq!(constant("calculator", &format!("{CONFIG}[[environment]]\npath = \"calculator.wasm\"\n")), [""; 0]);
}

#[test]
fn too_few_rows_for_a_finding_are_said_to_be_too_few() {
    let few = |rows: u64| {
        let mut watch = DiagnosisMonitor::new(DiagnosisSettings::from_config(CONFIG, Some(1e-5)));
        (1..=rows).for_each(|step| drop(see(&mut watch, step, healthy(step))));
        watch.has_enough()
    };
    assert_eq!([few(14), few(15), few(16), few(17)], [false, false, false, true]);
}

#[test]
fn a_finding_is_told_once_and_knows_when_it_ended() {
    let cut = |again: u64| {
        let row = |step: u64| {
            let mut row = healthy(step);
            row["completions/clipped_ratio"] = json!(if (10..30).contains(&step) || step >= again { 0.9 } else { 0.1 });
            row
        };
        let (watch, begun) = watch(CONFIG, 1e-5, 1, row);
        assert_eq!(names(&begun), ["completions_cut_off"]);
        assert!((17..30).contains(&begun[0].since), "{begun:?}");
        assert_eq!(watch.findings()[0].since, begun[0].since);
        watch.findings()[0].until
    };
    assert!(cut(99).is_some_and(|until| (30..45).contains(&until)));
    assert_eq!(cut(45), None, "it holds again, and is not told again");
}

#[test]
fn metrics_before_a_swap_are_not_compared_with_those_after() {
    let falls = |step: u64| {
        let mut row = healthy(step);
        row["reward"] = json!(if step <= 30 { 0.3 } else { -9.0 });
        row
    };
    for swapped in [false, true] {
        let mut watch = DiagnosisMonitor::new(DiagnosisSettings::from_config(CONFIG, Some(1e-6)));
        for step in 1..=60 {
            if swapped && step == 31 {
                watch.restart_with(DiagnosisSettings::from_config(CONFIG, Some(1e-6)));
            }
            see(&mut watch, step, falls(step));
        }
        assert_eq!(watch.findings().is_empty(), swapped, "{:?}", watch.findings());
    }
}

#[test]
fn a_recorded_run_is_judged_by_its_groups_whether_it_logged_them_or_not() {
    // Two rewards, with weights of 1 and 0.1. Over all completions, the answer has 96% of the weighted standard deviation.
    let run = tempfile::tempdir().unwrap();
    let rewards = "[[plugin]]\npath = \"answer.wasm\"\n[[plugin]]\npath = \"style.wasm\"\nweight = 0.1\n";
    fs::write(run.path().join("config.toml"), rewards).unwrap();
    let metrics = include_str!("recorded/metrics.jsonl");
    let found = |metrics: &str| {
        fs::write(run.path().join("metrics.jsonl"), metrics).unwrap();
        read(run.path()).findings.into_iter().map(|held| held.finding).collect::<Vec<_>>()
    };
    let live = found(metrics);
    let [finding] = &live[..] else { panic!("{live:?}") };
    let said = "style makes up 89% of the advantages although its weight is smaller than that of answer, which differs in 10% of the groups.";
    assert_eq!((finding.name, finding.sentence.as_str()), ("reward_dominates", said));
    assert_eq!(finding.figures[1].value, "90% of the groups that teach, in which no other reward differs");
    let older = |line: &str| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        let of_groups = |name: &str| ["/varies", "/alone", "/share"].iter().any(|end| name.ends_with(end));
        row.as_object_mut().unwrap().retain(|name, _| !of_groups(name));
        format!("{row}\n")
    };
    let older: String = metrics.lines().map(older).collect();
    assert_eq!(found(&older), [], "without completions, nothing is known of groups");
    fs::write(run.path().join("completions.jsonl"), include_str!("recorded/completions.jsonl")).unwrap();
    assert_eq!(found(&older), live);
}

#[test]
fn rows_of_evaluations_are_not_counted_as_rows_of_training() {
    let run = tempfile::tempdir().unwrap();
    fs::write(run.path().join("metrics.jsonl"), include_str!("../run/recorded/sft.jsonl")).unwrap();
    let found = read(run.path());
    assert_eq!((found.rows, found.last_step, found.enough), (6, 60, true));
}

#[test]
fn a_folder_that_is_damaged_empty_huge_or_hostile_is_read_up_to_a_size() {
    let run = tempfile::tempdir().unwrap();
    let empty = read(run.path());
    assert_eq!((empty.rows, empty.enough, empty.notes.len()), (0, false, 3), "{:?}", empty.notes);
    fs::write(run.path().join("config.toml"), b"learning_rate = \xff\n[[plugin]]\npath = 3").unwrap();
    fs::write(run.path().join("events.jsonl"), "[]\n{\"event\": 7, \"usual_learning_rate\": 1e999}\n").unwrap();
    let mut metrics = String::from("nonsense\n\0\n{\"step\": -1}\n{\"step\": \"1\"}\n");
    metrics.push_str(&"[".repeat(100_000));
    metrics.push('\n');
    // A line longer than allowed, and one whose values are not numbers.
    metrics.push_str(&format!("{{\"step\": 1, \"reward\": 1, \"x\": \"{}\"}}\n", "y".repeat(3 << 20)));
    metrics.push_str("{\"step\": 2, \"reward\": null, \"entropy\": \"\\u001b[2J\", \"kl\": 1e308}\n");
    for step in 3..60u64 {
        let mut row = healthy(step);
        row["step"] = json!(if step == 40 { u64::MAX } else { step });
        row["completions/clipped_ratio"] = json!(0.9);
        metrics.push_str(&format!("{row}\n"));
    }
    metrics.push_str("{\"step\": 61, \"rew");
    fs::write(run.path().join("metrics.jsonl"), metrics).unwrap();
    let found = read(run.path());
    assert_eq!(names(&found.findings), ["completions_cut_off"], "{found:?}");
    assert_eq!(found.rows, 58);
    assert!(found.notes.iter().any(|note| note.contains("metrics.jsonl: 3 lines")), "{:?}", found.notes);
    let long = "metrics.jsonl: line 6 is over the limit of 1 MiB for a line and is ignored";
    assert!(found.notes.iter().any(|note| note == long), "{:?}", found.notes);
    let named = "path = \"\u{1b}[2J\u{202e}.wasm\"\nconfig = { column = \"\\u001b[2J\" }";
    let settings = DiagnosisSettings::from_config(&format!("[[plugin]]\n{}", named.replace('\u{1b}', "\\u001b")), None);
    let mut watch = DiagnosisMonitor::new(settings);
    for step in 1..=40 {
        let row = json!({ "rewards/\u{1b}[2J\u{202e}/mean": 0.0, "rewards/\u{1b}[2J\u{202e}/std": 0.0 });
        see(&mut watch, step, row);
    }
    let [held] = &watch.findings()[..] else { panic!("{:?}", watch.findings()) };
    assert!(!held.finding.sentence.chars().any(crate::config::is_hidden), "{held:?}");
}
