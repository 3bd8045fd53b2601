//! Which checkpoints a run makes, keeps and offers; forks; disks without room.

use rlhost_tests::{CommandOutcome, HOSTILE, STORIES, TestFolder, small, tiny};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn mini_batches_epochs_and_accumulation_leave_the_counter_alone() {
    // The setting in which a trainer counted twice an update and saved every other step.
    let place = TestFolder::new();
    let settings = ["--per-device-train-batch-size", "4", "--num-generations", "4", "--gradient-accumulation-steps", "2"];
    let rounds = ["--steps-per-generation", "4", "--num-iterations", "3", "--max-steps", "20", "--save-steps", "5"];
    place.train("run", &[&settings[..], &rounds].concat()).succeeded();
    assert_eq!(place.checkpoints("run"), [5, 10, 15, 20]);
    let saved: Vec<Value> = place.events("run", "checkpoint_saved").iter().map(|e| e["step"].clone()).collect();
    assert_eq!(saved, [5, 10, 15, 20].map(Value::from));
    assert_eq!(place.figure("run", "step"), (1..=20).map(f64::from).collect::<Vec<_>>());
    // Four micro-batches thrice a generation, two of them a step: six steps.
    let rest = json(&place.path("run/checkpoint-20/trainer/snapshot.json"));
    assert_eq!((&rest["optimizer_updates"], &rest["state"]["generation"]), (&json!(20), &json!(4)));
}

#[test]
fn a_period_may_be_a_fraction_of_the_run_and_the_end_is_saved_once() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "10", "--save-steps", "0.25"]).succeeded();
    assert_eq!(place.checkpoints("run"), [3, 6, 9, 10]);
    place.train("even", &["--max-steps", "10", "--save-steps", "0.5"]).succeeded();
    assert_eq!(place.events("even", "checkpoint_saved").len(), 2);
    let refused = place.train("no", &["--save-steps", "1.5"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("save_steps") && refused.error().contains("1.5"), "{}", refused.error());
}

#[test]
fn retention_keeps_the_best_and_goes_on_where_it_was() {
    let place = TestFolder::new();
    let keep =
        ["--seed", "7", "--save-steps", "1", "--max_ckpt_num", "2", "--metric-for-best-model", "reward", "--max-steps", "8"];
    let best_of = |rewards: &[f64]| rewards.iter().copied().enumerate().reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap();
    place.train("whole", &keep).succeeded();
    let (at, reward) = best_of(&place.figure("whole", "reward"));
    let best = at as u64 + 1;
    assert!(best < 7, "choose settings in which an early step is the best, to test its protection; it is {best}");
    assert_eq!(place.checkpoints("whole"), [best, 8]);
    let state = json(&place.path("whole/checkpoint-8/trainer/trainer_state.json"));
    assert_eq!((&state["best_global_step"], &state["best_metric"]), (&json!(best), &json!(reward)));

    // Stopped in the middle, resumed with room for one, and told to end with the best.
    place.train("parts", &[&keep[..], &["--lr-scheduler-type", "constant"]].concat()).succeeded();
    let more = ["resume", "parts", "--max-steps", "12", "--set", "save_total_limit=1", "--set", "load_best_model_at_end=true"];
    let ended = place.run(&more);
    ended.succeeded();
    let (at, _) = best_of(&place.figure("parts", "reward"));
    assert_eq!(place.checkpoints("parts"), [at as u64 + 1, 12]);
    assert!(ended.stdout.contains(&format!("checkpoint: parts/checkpoint-{}\n", at + 1)), "{}", ended.stdout);
    // The best was found before the stop, and a run without one ends the same.
    place.train("straight", &[&keep[..], &["--lr-scheduler-type", "constant", "--max-steps", "12"]].concat()).succeeded();
    assert_eq!(place.checkpoints("straight"), place.checkpoints("parts"));
    let model = |run: &str| fs::read(place.path(run).join("checkpoint-12/model.safetensors")).unwrap();
    assert!(model("straight") == model("parts"));
}

#[test]
fn a_limit_of_zero_or_less_keeps_all_checkpoints_as_in_transformers() {
    let place = TestFolder::new();
    for (run, limit) in [("zero", "0"), ("negative", "-1"), ("none", "none")] {
        place.train(run, &["--save-steps", "1", "--max-steps", "3", "--save-total-limit", limit]).succeeded();
        assert_eq!(place.checkpoints(run), [1, 2, 3], "{limit}");
    }
    // A run whose folder says so, too.
    place.run(&["resume", "zero", "--max-steps", "4"]).succeeded();
    assert_eq!(place.checkpoints("zero"), [1, 2, 3, 4]);
    place.run(&["resume", "zero", "--max-steps", "5", "--set", "save_total_limit=1"]).succeeded();
    assert_eq!(place.checkpoints("zero"), [5]);
    // All tokens, for vLLM as for TRL.
    for (run, top_k) in [("all", "0"), ("vllm", "-1")] {
        place.train(run, &["--max-steps", "1", "--top-k", top_k]).succeeded();
    }
    assert_eq!(place.lines_without_times("all/completions.jsonl"), place.lines_without_times("vllm/completions.jsonl"));
    for (key, value, said) in [
        ("--max-completion-length", "none", "completions need a limit"),
        ("--max-completion-length", "0", "at least 1"),
        ("--save-steps", "0", "save_strategy = no"),
        ("--eval-steps", "0", "eval_strategy = no"),
        ("--logging-steps", "-1", "logging_strategy = no"),
        ("--max-steps", "0", "-1 for num_train_epochs"),
        ("--max-grad-norm", "-1", "0 or greater"),
        ("--top-k", "-2", "top_k"),
    ] {
        let refused = place.train("refused", &[key, value]);
        assert!(refused.code == Some(2) && refused.error().contains(said), "{key} {value}: {}", refused.stderr);
    }
    place.write("null.yaml", "max_completion_length: null\n");
    let refused = place.train("refused", &["--config", "null.yaml"]);
    assert!(refused.code == Some(2) && refused.error().contains("completions need a limit"), "{}", refused.stderr);
}

#[test]
fn the_best_can_be_the_least_and_an_unknown_figure_is_refused() {
    let place = TestFolder::new();
    place.train("loss", &["--max-steps", "4", "--save-steps", "1", "--metric-for-best-model", "loss"]).succeeded();
    let losses = place.figure("loss", "loss");
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(json(&place.path("loss/checkpoint-4/trainer/trainer_state.json"))["best_metric"], least);
    let wrong = place.train("wrong", &["--max-steps", "4", "--metric-for-best-model", "rewrd"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.error().contains("did you mean \"reward\""), "{}", wrong.error());
}

#[test]
fn a_model_alone_is_small_and_no_run_goes_on_from_it() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "2", "--save-only-model"]).succeeded();
    assert!(!place.path("run/checkpoint-2/trainer/optimizer.safetensors").exists());
    let generated = place.run(&["generate", "--model", "run/checkpoint-2", "--prompt", "Once", "--max-new-tokens", "3"]);
    generated.succeeded();
    let refused = place.run(&["resume", "run", "--max-steps", "3"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("holds only the model"), "{}", refused.error());
}

#[test]
fn a_fork_takes_over_the_state_and_says_where_it_came_from() {
    let place = TestFolder::new();
    place.train("parent", &["--max-steps", "6", "--save-steps", "2"]).succeeded();
    let parent = place.path("parent").canonicalize().unwrap();
    let fork = ["--resume-from-checkpoint", "parent/checkpoint-4", "--output-dir", "fork", "--plugin", HOSTILE];
    place.run(&fork).succeeded();
    assert_eq!(place.figure("fork", "step"), [5.0, 6.0]);
    assert!(place.lines("fork/metrics.jsonl")[0]["rewards/hostile/mean"].is_number());
    let forked = &place.events("fork", "forked")[0];
    assert_eq!(forked["step"], 4);
    assert_eq!(forked["changed"]["plugin"], json!([["tldr_length_reward"], ["hostile"]]));
    let state = json(&place.path("fork/checkpoint-6/trainer/trainer_state.json"));
    let recorded = Path::new(state["parents"][0]["checkpoint"].as_str().unwrap()).canonicalize().unwrap();
    assert_eq!(recorded, parent.join("checkpoint-4"));
    assert_eq!(place.checkpoints("parent"), [2, 4, 6], "the parent is left alone");
    let list = place.run(&["checkpoint", "list", "fork"]);
    assert!(list.stdout.contains("forked from"), "{}", list.stdout);
    // A fork that changes nothing is the same run.
    place.run(&["--resume-from-checkpoint", "parent/checkpoint-4", "--output-dir", "twin"]).succeeded();
    let model = |run: &str| fs::read(place.path(run).join("checkpoint-6/model.safetensors")).unwrap();
    assert!(model("twin") == model("parent"));
    // And can be resumed when the parent is gone.
    fs::remove_dir_all(place.path("parent")).unwrap();
    place.run(&["resume", "fork", "--max-steps", "7"]).succeeded();
    assert_eq!(place.checkpoints("fork"), [6, 7]);
}

#[test]
fn a_fork_whose_weights_have_not_moved_is_the_same_run_too() {
    let place = TestFolder::with_answers();
    // No rate, no update: the reference model and the policy stay one.
    let dpo = ["dpo", "--model", tiny(), "--dataset", "pairs.jsonl", "--output-dir", "parent", "--logging-steps", "1"];
    place.run(&[&dpo[..], &["--learning-rate", "0", "--max-steps", "4", "--save-steps", "2"]].concat()).succeeded();
    place.run(&["--resume-from-checkpoint", "parent/checkpoint-2", "--output-dir", "twin"]).succeeded();
    assert_eq!(place.figures("twin"), place.figures("parent")[2..]);
}

#[test]
fn an_evaluation_at_the_start_is_logged_once_by_a_run_that_starts_twice() {
    let place = TestFolder::new();
    let evaluated = ["--eval-dataset", STORIES, "--eval-on-start", "--eval-steps", "2", "--max-steps", "2"];
    let arguments = [&evaluated[..], &["--resume-from-checkpoint", "latest"]].concat();
    place.train("run", &arguments).succeeded();
    let evaluations = || {
        place.lines_without_times("run/metrics.jsonl").into_iter().filter(|line| !line["eval_loss"].is_null()).collect::<Vec<_>>()
    };
    let once = evaluations();
    // Ended before its first checkpoint.
    fs::remove_dir_all(place.path("run/checkpoint-2")).unwrap();
    place.train("run", &arguments).succeeded();
    assert_eq!(evaluations(), once);
    assert_eq!(once.iter().map(|line| &line["step"]).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn going_back_keeps_later_checkpoints_aside() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "6", "--save-steps", "2"]).succeeded();
    place.run(&["resume", "run", "--step", "2", "--max-steps", "4"]).succeeded();
    assert_eq!(place.checkpoints("run"), [2, 4]);
    assert!(place.path("run/superseded-checkpoint-6").exists());
    assert_eq!(place.figure("run", "step"), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn latest_begins_anew_where_there_is_nothing_to_go_on_from() {
    let place = TestFolder::new();
    let arguments = ["--max-steps", "2", "--resume-from-checkpoint", "latest"];
    place.train("run", &arguments).succeeded();
    // Ended before its first checkpoint.
    fs::remove_dir_all(place.path("run/checkpoint-2")).unwrap();
    place.train("run", &arguments).succeeded();
    assert_eq!((place.checkpoints("run"), place.figure("run", "step")), (vec![2], vec![1.0, 2.0]));
    // All that there is, is damaged: that is no reason to begin anew.
    fs::remove_file(place.path("run/checkpoint-2/trainer/manifest.json")).unwrap();
    let refused = place.train("run", &arguments);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("no intact checkpoint") && refused.error().contains("manifest.json"), "{}", refused.error());
    let nowhere = place.run(&["--plugin", "tldr_length_reward.wasm", "--resume-from-checkpoint"]);
    assert!(nowhere.error().contains("--output-dir"), "{}", nowhere.error());
}

#[test]
fn one_process_works_in_a_run_at_a_time() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "1"]).succeeded();
    let lock = fs::File::create(place.path("run/.lock")).unwrap();
    lock.lock().unwrap();
    let refused = place.run(&["resume", "run", "--max-steps", "2"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("another rlhost"), "{}", refused.error());
    drop(lock);
    place.run(&["resume", "run", "--max-steps", "2"]).succeeded();
}

/// Trains with saves at steps 2, 4 and 6, the second of which finds its place taken.
fn blocked(place: &TestFolder, on_save_error: &str) -> CommandOutcome {
    // Steps long enough for the place to be taken in time.
    let slow = ["--max-completion-length", "150", "--per-device-train-batch-size", "32"];
    let saves = ["--max-steps", "6", "--save-steps", "2", "--on-save-error", on_save_error];
    std::thread::scope(|scope| {
        let run = scope.spawn(|| place.train("run", &[&slow[..], &saves].concat()));
        while !place.path("run/metrics.jsonl").exists() && !run.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        fs::create_dir(place.path("run/checkpoint-4")).unwrap();
        place.write("run/checkpoint-4/of-somebody", "else");
        run.join().unwrap()
    })
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_one_clear_error_and_the_old_ones_stay() {
    let place = TestFolder::new();
    let failed = blocked(&place, "fail");
    assert_eq!(failed.code, Some(1));
    assert!(failed.error().contains("can't write checkpoint run/checkpoint-4"), "{}", failed.error());
    assert_eq!(place.run(&["checkpoint", "verify", "run/checkpoint-2"]).code, Some(0));
    assert_eq!(place.entries_of("run/checkpoint-4"), ["of-somebody"]);
}

#[test]
fn a_run_that_is_told_to_goes_on_to_the_next_save() {
    let place = TestFolder::new();
    let went_on = blocked(&place, "continue");
    went_on.succeeded();
    assert!(went_on.stderr.contains("continuing to the next save"), "{}", went_on.stderr);
    assert_eq!(place.events("run", "checkpoint_failed")[0]["step"], 4);
    assert_eq!(place.run(&["checkpoint", "verify", "run/checkpoint-6"]).code, Some(0));
}

#[allow(clippy::print_stdout)]
#[test]
fn a_full_disk_ends_a_run_with_one_line_and_leaves_what_was_saved() {
    let place = TestFolder::new();
    let model = small().join(" ");
    let plugin = "--plugin tldr_length_reward.wasm --max-completion-length 24";
    // A checkpoint that finds no room is known by the next save, two steps before the end.
    let run = format!("$RLHOST {model} {plugin} --max-steps 8 --save-steps 2 --output-dir run");
    for (how, to_the_end) in [("fail", false), ("continue", true)] {
        // A line that finds no room is left out, and not in half.
        let after = "code=$?; $RLHOST checkpoint verify run; cat run/metrics.jsonl; exit $code";
        let script = format!("{run} --on-save-error {how} --logging-steps 1; {after}");
        let Some(CommandOutcome { code, stdout, stderr, .. }) = place.on_disk("4m", &script) else {
            return println!("skipped: no mount namespaces here");
        };
        assert_eq!(code, Some(1), "{stderr}");
        let errors: Vec<&str> = stderr.lines().filter(|l| l.starts_with("error:")).collect();
        assert!(errors.len() == 1 && errors[0].contains("No space left"), "{stderr}");
        assert!(stdout.contains("run/checkpoint-2: intact"), "{stdout}");
        let lines = stdout.lines().filter(|l| l.starts_with('{')).map(|l| serde_json::from_str::<Value>(l).unwrap());
        assert!(lines.count() >= 2, "{how}: {stdout}");
        assert_eq!(stdout.contains("8/8 "), to_the_end, "{how}: {stdout}");
    }
}
