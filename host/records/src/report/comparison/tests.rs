use super::*;
use std::fmt::Write;

/// Writes a run's folder.
fn run(place: &Path, name: &str, config: &str, metrics: &str, events: &str) -> PathBuf {
    let folder = place.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(RunFiles(&folder).config(), config).unwrap();
    fs::write(RunFiles(&folder).metrics(), metrics).unwrap();
    fs::write(RunFiles(&folder).events(), events).unwrap();
    folder
}

/// Rows whose reward grows with the step.
fn rows(steps: u64, scale: f64) -> String {
    let row = |step: u64| format!("{{\"step\":{step},\"reward\":{},\"loss\":{}}}\n", scale * step as f64, 1.0 / (step as f64));
    (1..=steps).map(row).collect()
}

const FINISHED: &str = "{\"event\":\"started\",\"step\":0}\n{\"event\":\"finished\",\"step\":4}\n";

#[test]
fn runs_that_differ_in_their_seed_only_are_one_group_with_a_spread() {
    let place = tempfile::tempdir().unwrap();
    for (name, rate, seed, scale) in [("a1", 0.1, 1, 1.0), ("a2", 0.1, 2, 2.0), ("b10", 0.02, 10, 5.0)] {
        let config = format!(
            "learning_rate = {rate}\nseed = {seed}\nnum_threads = {seed}\n[[plugin]]\npath = \"x/r.wasm\"\nweight = 1.0\n"
        );
        run(place.path(), name, &config, &rows(4, scale), FINISHED);
    }
    let whole = RunComparison::load(&[place.path().to_owned()]).unwrap();
    assert_eq!(whole.groups[0].name, "learning_rate 0.02", "in the order of the values");
    let both = RunComparison::load(&[place.path().to_owned(), place.path().join("a1")]).unwrap();
    assert_eq!(both.runs.len(), 3, "each run once");
    let names: Vec<&str> = both.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["learning_rate 0.1", "learning_rate 0.02"]);
    assert_eq!(
        (both.seeds(&both.groups[0]), both.states(&both.groups[0]), both.steps(&both.groups[0])),
        ("1, 2".into(), "finished".into(), "4".into())
    );
    let difference = |key: &str| both.differences.iter().find(|difference| difference.key == key).unwrap();
    assert_eq!((difference("learning_rate").divides, difference("num_threads").divides), (true, false));
    assert_eq!(difference("num_threads").values, ["1, 2", "10"]);
    let deviation = Some(8.0f64.sqrt());
    assert_eq!(both.last(&both.groups[0], "reward"), Some(SeedSpread { mean: 6.0, deviation }));
    assert_eq!(both.best(&both.groups[1], "reward"), Some(SeedSpread { mean: 20.0, deviation: None }));
    assert_eq!((&both.metrics[..], both.key_metrics), (&["reward".to_owned(), "loss".to_owned()][..], 2));
    let line = both.curve(&both.groups[0], "reward", 100);
    assert_eq!((line.x, line.y), (vec![1.0, 2.0, 3.0, 4.0], vec![Some(1.5), Some(3.0), Some(4.5), Some(6.0)]));
    assert_eq!((line.lo[3], line.hi[3]), (Some(4.0), Some(8.0)));
}

#[test]
fn a_curve_breaks_where_plugins_change_and_only_there() {
    let place = tempfile::tempdir().unwrap();
    let events = "{\"event\":\"started\",\"step\":0}\n{\"event\":\"plugin_loaded\",\"plugin\":\"r\",\"hash\":\"aa11\"}\n\
                  {\"event\":\"plugin_swapped\",\"plugin\":\"r\",\"to\":\"ee55\",\"step\":6}\n{\"event\":\"resumed\",\"step\":4}\n\
                  {\"event\":\"plugin_loaded\",\"plugin\":\"r\",\"hash\":\"aa11\"}\n\
                  {\"event\":\"plugin_swapped\",\"plugin\":\"r\",\"to\":\"bb22\",\"step\":5}\n\
                  {\"event\":\"plugin_swapped\",\"plugin\":\"r\",\"to\":\"bb22\",\"step\":6}\n";
    let old = run(place.path(), "old", "seed = 1\n", &rows(8, 1.0), events);
    let mut metrics = String::new();
    for step in 1..=8 {
        let version = if step > 3 { "bb" } else { "aa" };
        writeln!(metrics, "{{\"step\":{step},\"reward\":{step},\"versions\":{{\"r\":\"{version}\"}}}}").unwrap();
    }
    let loaded = format!("{{\"event\":\"plugin_loaded\",\"plugin\":\"r\",\"hash\":\"aa11\"}}\n{FINISHED}");
    let new = run(place.path(), "new", "seed = 1\n", &metrics, &loaded);
    let both = RunComparison::load(&[old, new]).unwrap();
    assert_eq!((both.runs[0].breaks("reward"), both.runs[1].breaks("reward")), (vec![5], vec![3]));
    assert_eq!(both.runs[0].settings["version of r"], "aa11 \u{2192} bb22");
    assert_eq!((both.runs[0].state, both.groups.len()), ("interrupted", 2));
    let line = both.curve(&both.groups[0], "reward", 100);
    assert_eq!((line.x[4..7].to_vec(), line.y[5]), (vec![5.0, 5.5, 6.0], None));
    assert!(line.lo.is_empty(), "one run has no band");
    // A point never combines steps from both sides.
    let thinned = both.curve(&both.groups[1], "reward", 2);
    assert_eq!((thinned.x, thinned.y), (vec![3.0, 3.5, 7.0, 8.0], vec![Some(2.0), None, Some(5.5), Some(8.0)]));
}

#[test]
fn a_curve_breaks_at_new_settings_of_what_decides_it_and_at_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let loaded = |role: &str, plugin: &str, hash: &str| {
        format!(
            "{{\"event\":\"plugin_loaded\",\"role\":\"{role}\",\"plugin\":\"{plugin}\",\"hash\":\"{hash}\",\"config\":{{\"k\":1}}}}\n"
        )
    };
    let swapped = |plugin: &str, hash: &str, k: u64, step: u64| {
        format!(
            "{{\"event\":\"plugin_swapped\",\"plugin\":\"{plugin}\",\"from\":\"{hash}\",\"to\":\"{hash}\",\"config\":{{\"k\":{k}}},\"step\":{step}}}\n"
        )
    };
    let events = [
        "{\"event\":\"started\",\"step\":0}\n".to_owned(),
        loaded("algorithm", "grpo", "ff"),
        loaded("reward", "a", "aa"),
        loaded("reward", "b", "bb"),
        swapped("a", "aa", 2, 3),
        swapped("b", "bb", 2, 5),
        swapped("grpo", "ff", 2, 6),
        // The same version again.
        swapped("b", "bb", 2, 7),
    ]
    .concat();
    let one = run(place.path(), "one", "seed = 1\n", &rows(8, 1.0), &events);
    let two = run(place.path(), "two", "seed = 1\n", &rows(8, 1.0), FINISHED);
    let both = RunComparison::load(&[one, two]).unwrap();
    let breaks = |metric: &str| both.runs[0].breaks(metric);
    assert_eq!((breaks("rewards/a/mean"), breaks("eval_rewards/b/mean")), (vec![3], vec![5]));
    assert_eq!((breaks("reward"), breaks("kl")), (vec![3, 5], vec![6]));
}

#[test]
fn settings_of_a_plugin_that_not_all_runs_have_set_the_others_apart() {
    let place = tempfile::tempdir().unwrap();
    let with = |name: &str, k: u64| {
        let config = format!("a = 1\n[[plugin]]\npath = \"x/r.wasm\"\nweight = 0.5\n[plugin.config]\nk = {k}\nm = 7\n");
        let hash = format!("{{\"event\":\"plugin_loaded\",\"plugin\":\"r\",\"hash\":\"{k}{k}\"}}\n");
        run(place.path(), name, &config, "", &hash)
    };
    let runs = [with("one", 1), with("two", 2), run(place.path(), "three", "a = 1\n", "", "")];
    let all = RunComparison::load(&runs).unwrap();
    let shown: Vec<(&str, Vec<&str>)> =
        all.differences.iter().map(|d| (d.key.as_str(), d.values.iter().map(String::as_str).collect())).collect();
    assert_eq!(
        shown,
        [
            ("plugin.r", vec!["weight 0.5", "weight 0.5", "none"]),
            ("plugin.r.config.k", vec!["1", "2", "not set"]),
            ("version of r", vec!["11", "22", "not set"])
        ]
    );
}

#[test]
fn what_can_not_be_compared_is_named() {
    let place = tempfile::tempdir().unwrap();
    let one = run(place.path(), "one", "a = 1", "", "");
    let error = |paths: &[&Path]| {
        RunComparison::load(&paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>()).unwrap_err().to_string()
    };
    assert!(error(&[&one]).contains("is one run; give the folders of two or more"));
    assert!(error(&[&one, &one]).contains("is one run"));
    assert!(error(&[&one, &place.path().join("none")]).contains("there is no such folder"));
    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(error(&[&one, &empty]).contains("is not the folder of a run"));
    // A plugin that only one of the runs has is one setting.
    let plugin = "[[plugin]]\npath = \"x/r.wasm\"\nweight = 0.5\n[plugin.config]\nk = 1\n";
    let with = run(place.path(), "with", &format!("a = 1\n{plugin}"), "", "");
    let both = RunComparison::load(&[one, with]).unwrap();
    let [difference] = &both.differences[..] else { panic!("{:?}", both.differences) };
    assert_eq!(
        (difference.key.as_str(), &difference.values[..]),
        ("plugin.r", &["none".to_owned(), "weight 0.5".to_owned()][..])
    );
    // Damage is named, and texts from others are shown unchanged.
    let odd = run(place.path(), "odd", "a = [", "garbage\n", "garbage\n");
    let other = run(place.path(), "other", "a = \"</script><u>\\u001b[2J\"", &rows(2, 1.0), FINISHED);
    let both = RunComparison::load(&[odd, other]).unwrap();
    assert!(both.notes[0].starts_with("odd: config.toml can't be understood"), "{:?}", both.notes);
    assert_eq!(both.runs[1].settings["a"], "</script><u>\\u{1b}[2J");
}

#[test]
fn a_loss_has_a_best_value_where_it_is_not_computed_from_rewards() {
    let place = tempfile::tempdir().unwrap();
    let losses = |of_runs: [&str; 2], metrics: &str| {
        let folders = of_runs.map(|name| run(place.path(), name, &format!("a = \"{name}\"\n"), metrics, FINISHED));
        RunComparison::load(&folders).unwrap()
    };
    let given = losses(["sft1", "sft2"], "{\"step\":1,\"loss\":0.25}\n{\"step\":2,\"loss\":0.5}\n");
    assert_eq!(given.best(&given.groups[1], "loss"), Some(SeedSpread { mean: 0.25, deviation: None }));
    let sampled = losses(["grpo1", "grpo2"], &rows(4, 1.0));
    for name in ["loss", "eval_loss", "policy_loss"] {
        assert_eq!((given.goal(name), sampled.goal(name)), (Some(MetricGoal::Least), None), "{name}");
    }
    assert_eq!(sampled.best(&sampled.groups[0], "loss"), None);
    assert_eq!(sampled.goal("reward"), Some(MetricGoal::Greatest));
}

#[test]
fn equal_values_have_no_deviation() {
    let values = [-0.1842; 3];
    assert_eq!(SeedSpread::from_values(&values).unwrap().deviation, Some(0.0));
    assert_eq!(SeedSpread::from_values(&[0.0; 3]).unwrap().deviation, Some(0.0));
    let apart = SeedSpread::from_values(&[1.0, 1.0 + 1e-9]).unwrap().deviation.unwrap();
    assert!((apart / 1e-9 - 0.5f64.sqrt()).abs() < 1e-3, "{apart}");
}

#[test]
fn metrics_have_a_better_end_or_none() {
    for name in ["reward", "eval_reward", "rewards/a/mean", "eval_pass@8", "rewards/accuracies", "mean_token_accuracy"] {
        assert_eq!(MetricGoal::from_metric(name), Some(MetricGoal::Greatest), "{name}");
    }
    assert_eq!(
        (MetricGoal::from_metric("eval_loss"), MetricGoal::from_metric("nll_loss")),
        (Some(MetricGoal::Least), Some(MetricGoal::Least))
    );
    for name in ["reward_std", "kl", "grad_norm", "rewards/a/std", "loss/policy_avg"] {
        assert_eq!(MetricGoal::from_metric(name), None, "{name}");
    }
}

#[test]
fn keys_of_a_plugin_have_the_name_that_it_has_in_the_run() {
    let place = tempfile::tempdir().unwrap();
    let with = |folder: &str, weight: f64| {
        let entry = |path: &str, more: &str| format!("[[plugin]]\npath = \"{path}\"\n{more}weight = {weight}\n");
        let entries = [
            entry("x/rw.py", ""),
            entry("rw.py:long", ""),
            entry("a/b.wasm", "name = \"own\"\n"),
            entry("runs/judge/checkpoint-3", "model = true\n"),
        ];
        run(place.path(), folder, &entries.concat(), "", "")
    };
    let both = RunComparison::load(&[with("one", 0.5), with("two", 1.0)]).unwrap();
    let keys: Vec<&str> = both.differences.iter().map(|difference| difference.key.as_str()).collect();
    assert_eq!(keys, ["plugin.judge.weight", "plugin.long.weight", "plugin.own.weight", "plugin.rw.weight"]);
}
