//! What `rlhost compare` says of runs.

use rlhost_tests::TestFolder;
use serde_json::Value;

/// Two rates with two seeds each in `runs`.
fn trained() -> TestFolder {
    let place = TestFolder::new();
    std::fs::create_dir(place.path("runs")).unwrap();
    for rate in ["0.001", "0.01"] {
        for seed in ["1", "2"] {
            let run = format!("runs/{rate}-{seed}");
            place.train(&run, &["--learning-rate", rate, "--seed", seed, "--max-steps", "3"]).succeeded();
        }
    }
    place
}

/// The last reward of a run, and its best.
fn rewards(place: &TestFolder, run: &str) -> (f64, f64) {
    let rewards: Vec<f64> =
        place.lines(&format!("runs/{run}/metrics.jsonl")).iter().filter_map(|line| line["reward"].as_f64()).collect();
    (*rewards.last().unwrap(), rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

#[test]
fn runs_are_compared_in_a_table_on_a_page_and_as_json() {
    let place = trained();
    let said = place.run(&["compare", "runs"]).succeeded().stdout.clone();
    let words = |line: usize| said.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(0)[..6], ["learning_rate", "seeds", "steps", "state", "reward", "best"], "{said}");
    assert_eq!(words(1)[..5], ["0.001", "1,", "2", "3", "finished"], "{said}");
    assert!(said.lines().count() == 5 && said.ends_with("curves: runs/comparison.html\n"), "{said}");

    let json: Value = serde_json::from_str(&place.run(&["compare", "runs", "--json"]).succeeded().stdout).unwrap();
    for (group, rate) in json["groups"].as_array().unwrap().iter().zip(["0.001", "0.01"]) {
        let (one, two) = (rewards(&place, &format!("{rate}-1")), rewards(&place, &format!("{rate}-2")));
        assert_eq!(group["settings"]["learning_rate"], rate);
        let mean = |of: &str| group["metrics"]["reward"][of]["mean"].as_f64().unwrap();
        assert!(
            (mean("last") - (one.0 + two.0) / 2.0).abs() < 1e-9 && (mean("best") - (one.1 + two.1) / 2.0).abs() < 1e-9,
            "{group}"
        );
    }

    let page = std::fs::read_to_string(place.path("runs/comparison.html")).unwrap();
    assert!(page.contains("<title>Comparison of 4 runs"));
    let answers = rlhost_tests::answers(&page);
    assert!(answers["settings"]["learning_rate"].is_object(), "{}", answers["settings"]);
    let groups = answers["comparison"]["groups"].as_array().unwrap();
    assert_eq!(groups.iter().map(|group| group["runs"].as_array().unwrap().len()).collect::<Vec<_>>(), [2, 2]);
    assert!(!["src=", "href=\"http", "@import", "url("].iter().any(|loads| page.contains(loads)), "the page loads nothing");
    // Single runs, with the page elsewhere.
    let two = ["compare", "runs/0.001-1", "runs/0.01-1", "--metric", "grad_norm", "--output", "two.html"];
    let said = place.run(&two).succeeded().stdout.clone();
    assert!(said.lines().next().unwrap().ends_with("state     grad_norm") && said.ends_with("curves: two.html\n"), "{said}");
    assert!(place.path("two.html").is_file());
}

#[test]
fn what_can_not_be_compared_is_named() {
    let place = TestFolder::new();
    place.train("a", &["--max-steps", "1"]).succeeded();
    place.train("b", &["--max-steps", "1", "--seed", "7"]).succeeded();
    place.write("file", "");
    let cases: [(&[&str], &str); 8] = [
        (&["a"], "a: is one run; give the folders of two or more"),
        (&["a", "./a"], "is one run"),
        (&["a", "nowhere"], "nowhere: there is no such folder"),
        (&["a", "file"], "file: is a file"),
        (&["a", "b/checkpoint-1"], "is a checkpoint; give its run's folder, b"),
        (&["a", "b/plugins"], "is not the folder of a run"),
        (&["a", "b", "--metric", "rewart"], "did you mean \"reward\"?"),
        (&["a", "b", "--output", "a"], "it is a folder"),
    ];
    for (arguments, words) in cases {
        let outcome = place.run(&[&["compare"], arguments].concat());
        assert!(outcome.code == Some(2) && outcome.error().contains(words), "{arguments:?}: {}", outcome.stderr);
    }
    assert!(!place.path("comparison.html").exists());
    // A run with nothing logged, and another that is damaged.
    std::fs::write(place.path("a/metrics.jsonl"), format!("{{\"step\":1,\"reward\":1}}\n{}\n", "x".repeat(1 << 21))).unwrap();
    std::fs::remove_file(place.path("b/metrics.jsonl")).unwrap();
    let outcome = place.run(&["compare", "a", "b"]);
    assert!(outcome.succeeded().stderr.contains("a: metrics.jsonl: line 2 is over the limit"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("seeds") && place.path("comparison.html").is_file(), "{}", outcome.stdout);
}
