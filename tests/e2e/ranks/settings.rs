//! Several processes with what people set: each setting's run is the one of one process.

use rlhost_tests::judge::{JudgeServer, KEY, prompts, step_judge};
use rlhost_tests::mpi::{compare, compare_in, possible, process, same_figures, same_weights, send};
use rlhost_tests::{CommandOutcome, TestFolder, binary, small, tiny, version};
use serde_json::json;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

/// Longest that anything here is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

const TWO: [(usize, &str); 2] = [(1, "8"), (2, "4")];

/// Batches of six, of which an epoch of 32 rows leaves two, so that a rank has none.
const THREE: [(usize, &str); 2] = [(1, "6"), (3, "2")];

/// Asserts that a figure that not every step has came to more than nothing in a run.
fn happened(place: &TestFolder, run: &str, figure: &str) {
    let lines = place.lines(&format!("{run}/metrics.jsonl"));
    assert!(lines.iter().any(|line| line[figure].as_f64() > Some(0.0)), "{run}: no {figure}");
}

/// A folder with 28 labelled rows of unequal lengths, two thirds of them desirable, and ten others.
fn labelled() -> TestFolder {
    let place = TestFolder::new();
    let row = |i: usize| json!({"prompt": format!("row {i} "), "completion": "ab ".repeat(1 + i % 7), "label": i % 3 != 1});
    let lines = |rows: std::ops::Range<usize>| rows.map(|i| format!("{}\n", row(i))).collect::<String>();
    place.write("rows.jsonl", lines(0..28));
    place.write("others.jsonl", lines(28..38));
    place
}

#[test]
fn the_baseline_of_labelled_completions_is_that_of_one_process() {
    if !possible() {
        return;
    }
    let place = labelled();
    let kto = ["--dataset", "rows.jsonl", "--learning-rate", "0.002"];
    let evaluated = ["--eval-dataset", "others.jsonl", "--eval-steps", "4", "--max-steps", "6"];
    let cases: [(&str, Vec<&str>); 3] = [
        ("kto", kto.to_vec()),
        ("known:kto", [&kto[..], &["--precompute-ref-log-probs", "--gradient-accumulation-steps", "2"]].concat()),
        ("apo:kto", [&kto[..], &["--loss-type", "apo_zero_unpaired"]].concat()),
    ];
    for (name, own) in &cases {
        compare_in(&place, &[(name, own)], false, &THREE, &evaluated);
    }
    happened(&place, "kto-1", "kl");
    // One row each is enough for a batch of four.
    compare_in(&place, &[("single:kto", &kto)], false, &[(1, "4"), (4, "1")], &["--max-steps", "3"]);
    happened(&place, "single-1", "kl");
}

/// A folder with a file of JSON lines that is large enough for ranks to share: 41,000 texts of unequal length, the `odd` row among them,
/// and another for evaluations.
fn many(odd: (usize, &str)) -> TestFolder {
    let place = TestFolder::new();
    let row = |i: usize| format!("{{\"text\": \"{i} {}\", \"source\": {i}}}\n", "some words ".repeat(20 + i % 37));
    let rows: String = (0..41_000).map(|i| if i == odd.0 { format!("{}\n", odd.1) } else { row(i) }).collect();
    assert!(rows.len() > 17 << 20, "{}", rows.len());
    place.write("many.jsonl", rows);
    place
}

#[test]
fn rows_that_ranks_share_are_those_of_one_process() {
    if !possible() {
        return;
    }
    let place = many((39_000, "{\"txet\": \"a row without a text\", \"other\": 1}"));
    let own = ["--learn-from", "dataset", "--dataset", "many.jsonl", "--max-length", "96", "--max-steps", "2"];
    for packed in [&[][..], &["--packing"], &["--packing", "--packing-strategy", "wrapped"]] {
        let name = format!("{}:sft", packed.last().map_or("rows", |last| last.trim_start_matches('-')));
        compare_in(&place, &[(&name, &[&own[..], packed].concat())], false, &[(1, "6"), (3, "2")], &[]);
        let run = name.trim_end_matches(":sft");
        let said = |ranks: usize| -> Vec<String> {
            place.events(&format!("{run}-{ranks}"), "warning").iter().map(|event| event["text"].to_string()).collect()
        };
        assert_eq!(said(3), said(1));
        // A dataset that one rank read is the one that three have read.
        let folder = format!("{run}-3");
        place.run(&["resume", &folder, "--set", "max_steps=3", "--set", "per_device_train_batch_size=6"]).succeeded();
    }
}

#[test]
fn of_very_many_unusable_rows_ranks_name_those_that_one_process_names() {
    if !possible() {
        return;
    }
    let place = many((0, ""));
    let rows = fs::read_to_string(place.path("many.jsonl")).unwrap();
    // A block of them holds more than are named.
    let odd: String = (0..60_000).map(|i| format!("{{\"text\": {i}, \"filler\": \"{}\"}}\n", "x".repeat(100))).collect();
    // Counted at the start, since epochs are.
    let own = ["--learn-from", "dataset", "--dataset", "many.jsonl", "--max-length", "64", "--num-train-epochs", "0.00001"];
    for (name, text) in [("first", [&odd[..], &rows].concat()), ("last", [&rows[..], &odd].concat())] {
        place.write("many.jsonl", text);
        compare_in(&place, &[(&format!("{name}:sft"), &own)], false, &[(1, "2"), (2, "1")], &[]);
        let said = |ranks: usize| place.events(&format!("{name}-{ranks}"), "warning")[0]["text"].as_str().unwrap().to_owned();
        assert!(said(1).starts_with("skipped 60000 of 100999 rows"), "{}", said(1));
        assert_eq!(said(2), said(1));
    }
    // Without a usable row, and with a column that no row has.
    place.write("many.jsonl", odd.repeat(3));
    for more in [&[][..], &["--columns", "text=txt"]] {
        let all = [&["--algorithm", "sft", "--model", tiny(), "--output-dir", "none"], &own[..], more].concat();
        let (one, two) = (place.run(&all), place.run_ranks(2, &all));
        assert_eq!((one.code, two.code), (Some(2), Some(2)), "{one:?} {two:?}");
        assert_eq!(two.error(), one.error());
    }
}

#[test]
fn a_row_that_one_rank_refuses_ends_all_of_them() {
    if !possible() {
        return;
    }
    let own = ["--learn-from", "dataset", "--dataset", "many.jsonl", "--num-train-epochs", "0.00001", "--output-dir", "run"];
    for (odd, more, want) in [
        ((39_999, "{\"text\": "), &[][..], "many.jsonl:40000: is not a line of JSON"),
        ((20_000, "{\"txet\": 1}"), &["--strict-data"], "many.jsonl:20001: "),
    ] {
        let place = many(odd);
        let all = [&["--algorithm", "sft", "--model", tiny()], &own[..], more].concat();
        let (one, three) = (place.run(&all), place.run_ranks(3, &all));
        assert_eq!((one.code, three.code), (Some(2), Some(2)), "{one:?} {three:?}");
        for said in [&one.stderr, &three.stderr] {
            assert_eq!(said.matches(want).count(), 1, "{said}");
        }
        assert!(!place.path("run").exists());
    }
}

/// Ten prompts, of whose completions some have one of these letters, and many have none.
fn scarce() -> (TestFolder, Vec<&'static str>) {
    let place = TestFolder::new();
    let line = |i: usize| format!("{{\"prompt\": \"prompt {i} {}\"}}\n", "ab".repeat(i));
    place.write("prompts.jsonl", (0..10).map(line).collect::<String>());
    place.write("held_out.jsonl", (20..25).map(line).collect::<String>());
    let letters = "plugin.keyword_reward.config.allowlist=[\"a\", \"7\", \"k\", \"x\", \"?\", \"w\", \"e\", \"3\"]";
    let all = ["--plugin", "keyword_reward.wasm", "--set", letters, "--set", "plugin.keyword_reward.config.whole_words=false"];
    (place, [&all[..], &["--dataset", "prompts.jsonl", "--num-generations", "4", "--max-completion-length", "3"]].concat())
}

#[test]
fn the_same_prompts_are_passed_over_as_by_one_process() {
    if !possible() {
        return;
    }
    let (place, scarce) = scarce();
    let filter = ["--filter-groups", "--max-num-gen-batches", "200", "--filter-groups-metric", "keyword_reward"];
    let skip = ["--skip-groups", "0.7", "--skip-groups-after", "1", "--filter-groups-metric", "keyword_reward"];
    let again = ["--num-iterations", "2", "--beta", "0.1"];
    let cases: [(&str, Vec<&str>); 3] = [
        ("filter:grpo", [&scarce[..], &filter, &again].concat()),
        ("skip:grpo", [&scarce[..], &skip].concat()),
        ("both:grpo", [&scarce[..], &filter, &skip[..4], &again].concat()),
    ];
    for (name, own) in &cases {
        compare_in(&place, &[(name, own)], true, &[(1, "12"), (3, "4")], &["--max-steps", "6"]);
    }
    for (run, figure) in [
        ("filter-1", "filter_groups/num_filtered"),
        ("skip-1", "skip_groups/skipped_ratio"),
        ("both-1", "skip_groups/skipped_ratio"),
    ] {
        happened(&place, run, figure);
    }
}

#[test]
fn an_evaluation_decides_as_that_of_one_process() {
    if !possible() {
        return;
    }
    let (place, scarce) = scarce();
    let protocol =
        ["--eval-dataset", "held_out.jsonl", "--eval-steps", "1", "--num-generations-eval", "6", "--eval-temperature", "0.8"];
    let solved = ["--eval-pass-threshold", "1", "--eval-pass-reward", "keyword_reward", "--eval-pass-k", "1", "3", "6"];
    let alone = ["--plugin", "repetition_reward.wasm", "--set", "plugin.repetition_reward.eval_only=true"];
    let early = ["--metric-for-best-model", "eval_reward", "--early-stopping-patience", "4", "--early-stopping-threshold", "9"];
    let plateau = ["--lr-scheduler-type", "reduce_lr_on_plateau", "--lr-scheduler-kwargs", "{\"patience\": 1, \"factor\": 0.5}"];
    let own = [&scarce[..], &protocol, &solved, &alone, &early, &plateau].concat();
    // Five prompts are no whole number for each of three.
    compare_in(&place, &[("grpo", &own)], true, &[(1, "12"), (3, "4")], &["--max-steps", "9"]);
    happened(&place, "grpo-1", "eval_pass@3/stderr");
    happened(&place, "grpo-1", "eval_maj@6");
    for run in ["grpo-1", "grpo-3"] {
        assert_eq!(place.events(run, "stopped_early").len(), 1, "{run}");
        let rates = place.lines(&format!("{run}/metrics.jsonl"));
        let rates: Vec<f64> = rates.iter().filter_map(|line| line["learning_rate"].as_f64()).collect();
        assert!(rates.first() > rates.last(), "{rates:?}");
    }
}

#[test]
fn texts_are_packed_smoothed_and_disturbed_as_by_one_process() {
    if !possible() {
        return;
    }
    let sft = ["--learn-from", "dataset", "--dataset", "answers.jsonl"];
    let evaluated = ["--eval-dataset", "answers.jsonl", "--eval-steps", "3", "--max-steps", "6"];
    let cases = ["bfd", "bfd_split", "wrapped"].map(|strategy| {
        let packing = ["--packing", "--packing-strategy", strategy, "--max-length", "24"];
        [&sft[..], &packing, &["--label-smoothing-factor", "0.1", "--neftune-noise-alpha", "5"]].concat()
    });
    for own in &cases {
        compare(&[("sft", own)], false, &[(1, "3"), (3, "1")], &evaluated);
    }
    let loose = ["--label-smoothing-factor", "0.1", "--neftune-noise-alpha", "5", "--gradient-accumulation-steps", "2"];
    compare(&[("sft", &[&sft[..], &loose].concat())], false, &THREE, &evaluated);
}

#[test]
fn pairs_are_weighted_and_compared_with_another_reference_as_by_one_process() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    let learn = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--output-dir", "other", "--max-steps", "2"];
    place.run(&[&learn[..], &["--learning-rate", "0.001"]].concat()).succeeded();
    let weighted = ["--use-weighting", "--ref-model", "other/checkpoint-2"];
    let noisy = ["--neftune-noise-alpha", "5", "--max-tokens-per-microbatch", "40"];
    let cases: [(&str, Vec<&str>); 2] =
        [("dpo", weighted.to_vec()), ("known:dpo", [&weighted[..], &noisy, &["--precompute-ref-log-probs"]].concat())];
    for (name, own) in &cases {
        compare_in(&place, &[(name, own)], false, &THREE, &["--max-steps", "6"]);
    }
}

#[test]
fn adapters_drop_the_same_inputs_as_in_one_process() {
    if !possible() {
        return;
    }
    let lora = ["--lora-r", "4", "--lora-dropout", "0.2", "--use-dora", "--lora-modules-to-save", "lm_head", "norm"];
    compare(&[("dpo", &lora)], false, &THREE, &["--max-steps", "6"]);
    let sft = ["--learn-from", "dataset", "--dataset", "answers.jsonl", "--lora-r", "4", "--lora-dropout", "0.2"];
    compare(&[("sft", &sft)], false, &THREE, &["--max-steps", "3", "--gradient-accumulation-steps", "2"]);
    let ppo = ["--lora-r", "4", "--lora-dropout", "0.2", "--num-generations", "2"];
    compare(&[("ppo", &ppo)], true, &TWO, &["--max-steps", "3"]);
}

#[test]
fn generations_are_normalised_corrected_and_shuffled_as_by_one_process() {
    if !possible() {
        return;
    }
    let again = ["--max-steps", "4", "--num-generations", "2", "--num-iterations", "2"];
    let ppo = ["--normalize-reward", "--num-mini-batches", "2", "--clip-ratio-c", "3", "--entropy-coef", "0.01"];
    compare(&[("ppo", &ppo)], true, &[(1, "12"), (3, "4")], &again);
    let corrected = ["--old-logp", "recompute", "--vllm-importance-sampling-correction", "true", "--top-k", "20"];
    let followed = ["--sync-ref-model", "--ref-model-sync-steps", "2", "--beta", "0.1", "--steps-per-generation", "2"];
    compare(&[("grpo", &[&corrected[..], &followed].concat())], true, &TWO, &again);
}

#[test]
fn every_optimizer_makes_the_updates_of_one_process() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    for optim in ["sgd", "rmsprop", "adafactor", "muon", "lion_32bit", "adamw_8bit"] {
        let name = format!("{optim}:dpo");
        compare_in(&place, &[(&name, &["--optim", optim])], false, &TWO, &["--max-steps", "3"]);
    }
}

/// Arguments of a run on scarce prompts whose steps filter and skip groups, and train on each generation several times.
fn filtering<'a>(scarce: &[&'a str], run: &'a str, size: &'a str) -> Vec<&'a str> {
    let mut all = [&["grpo", "--model", tiny(), "--output-dir", run, "--per-device-train-batch-size", size], scarce].concat();
    all.extend(["--filter-groups", "--max-num-gen-batches", "200", "--skip-groups", "0.5", "--skip-groups-after", "1"]);
    all.extend(["--num-iterations", "2", "--steps-per-generation", "2", "--gradient-accumulation-steps", "2", "--beta", "0.1"]);
    all.extend(["--max-steps", "16", "--save-steps", "1", "--logging-steps", "1"]);
    all.extend(["--learning-rate", "0.0003", "--log-completions", "all"]);
    all
}

#[test]
fn ranks_that_are_killed_go_on_to_the_bit_on_as_many_and_to_rounding_on_one() {
    if !possible() {
        return;
    }
    let (place, scarce) = scarce();
    place.run_ranks(2, &filtering(&scarce, "whole", "4")).succeeded();
    happened(&place, "whole", "filter_groups/num_filtered");
    happened(&place, "whole", "skip_groups/skipped_ratio");
    for (kill, rank) in [(2, 0), (5, 1)] {
        let again = ["--resume-from-checkpoint"];
        let mut command = place.ranks(2, &[&filtering(&scarce, "killed", "4")[..], &again].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        place.wait("killed", PATIENCE, || place.steps("killed") >= kill && !place.checkpoints("killed").is_empty());
        send(&process(&child, rank), "-KILL");
        assert!(!child.wait().unwrap().success(), "it had not ended before");
        if kill == 2 {
            place.copy("killed", "alone");
        }
    }
    place.run_ranks(2, &["resume", "killed"]).succeeded();
    place.assert_same_end("killed", "whole", 16, "model.safetensors");
    place.run(&["resume", "alone", "--set", "per_device_train_batch_size=8"]).succeeded();
    same_figures(&place, "alone", "whole");
    same_weights(&place, "alone", "whole", 16);
}

/// Runs a judged run as two processes, of which the first alone has the judge's key.
fn with_one_key(place: &TestFolder, arguments: &[String]) -> CommandOutcome {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = place.ranks(1, &arguments);
    command.env("JUDGE_KEY", KEY).env("RLHOST_STATE_DIR", place.path("cache"));
    command.args([":", "-n", "1", "env", "-u", "JUDGE_KEY"]).arg(binary()).args(arguments);
    CommandOutcome::new(command.output().unwrap())
}

#[test]
fn a_judge_is_asked_by_the_first_of_several_processes_and_scores_as_for_one() {
    if !possible() {
        return;
    }
    let (place, judge) = (prompts(), JudgeServer::steady());
    let pairwise = ["compare=others", "config.scoring=pairwise", "config.reference=reference"];
    let pairwise = pairwise.map(|set| ["--set".to_owned(), format!("plugin.judge_reward.{set}")]).concat();
    let paired = [vec!["--algorithm".to_owned(), "online_dpo".to_owned()], pairwise].concat();
    for (name, size, more) in [("grpo", ["8", "4"], Vec::new()), ("online_dpo", ["4", "2"], paired)] {
        let asked = judge.request_count();
        let arguments = |run: &str, size: &str| {
            let own = ["--per-device-train-batch-size", size, "--max-steps", "3", "--learning-rate", "0.0003"];
            [judge.arguments(run), more.clone(), own.map(str::to_owned).to_vec()].concat()
        };
        let (one, two) = (format!("{name}-1"), format!("{name}-2"));
        let alone: Vec<String> = arguments(&one, size[0]);
        let alone: Vec<&str> = alone.iter().map(String::as_str).collect();
        let cache = place.path("cache").display().to_string();
        place.run_with(&alone, &[("JUDGE_KEY", KEY), ("RLHOST_STATE_DIR", &cache)]).succeeded();
        let by_one = judge.request_count() - asked;
        with_one_key(&place, &arguments(&two, size[1])).succeeded();
        assert_eq!(judge.request_count() - asked, 2 * by_one, "{name}");
        assert!(by_one > 0);
        same_figures(&place, &two, &one);
        same_weights(&place, &two, &one, 3);
    }
    // What was answered is there when the run goes on, on two processes or on one.
    let asked = judge.request_count();
    place.copy_as_after("grpo-2", 1, "again");
    let resume = ["resume", "again"].map(str::to_owned).to_vec();
    with_one_key(&place, &resume).succeeded();
    place.assert_same_end("again", "grpo-2", 3, "model.safetensors");
    assert_eq!(judge.request_count(), asked, "nothing is asked again");
}

#[test]
fn the_values_of_steps_are_those_of_one_process() {
    if !possible() {
        return;
    }
    let place = step_judge();
    let line = |i: usize| format!("{}\n", json!({"prompt": format!("p{i}"), "completion": "ab\ncd\n".repeat(1 + i % 3)}));
    place.write("lines.jsonl", (0..16).map(line).collect::<String>());
    let learn = ["sft", "--model", tiny(), "--dataset", "lines.jsonl", "--output-dir", "lines", "--max-steps", "40"];
    place.run(&[&learn[..], &["--learning-rate", "0.01"]].concat()).succeeded();
    for (ranks, size) in [(1, "12"), (3, "4")] {
        let name = ranks.to_string();
        let mut all = vec!["grpo", "--model", "lines/checkpoint-40", "--dataset", "lines.jsonl", "--output-dir", &name];
        all.extend(["--plugin", "process_reward.wasm", "--set", "plugin.process_reward.config.combine=mean"]);
        all.extend(["--reward-model", "prm", "--set", "plugin.prm.step_separator=\"d\"", "--max-completion-length", "16"]);
        all.extend(["--learning-rate", "0.0001", "--max-steps", "3", "--logging-steps", "1", "--num-generations", "4"]);
        all.extend(["--per-device-train-batch-size", size]);
        let outcome = if ranks == 1 { place.run(&all) } else { place.run_ranks(ranks, &all) };
        outcome.succeeded();
    }
    assert!(place.figure("1", "rewards/process_reward/std").iter().any(|std| *std > 0.0));
    same_figures(&place, "3", "1");
    same_weights(&place, "3", "1", 3);
}

#[test]
fn granted_folders_are_read_by_every_process_and_must_hold_the_same() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    place.write("versioned.wasm", version(1));
    std::fs::create_dir_all(place.path("lists")).unwrap();
    std::fs::create_dir_all(place.path("other/lists")).unwrap();
    place.write("lists/words.txt", "one\ntwo\nthree\n");
    let plugin = ["--plugin", "versioned.wasm", "--set", "plugin.versioned.config.folder=/words"];
    let grant = ["--set", "plugin.versioned.folders={ words = \"lists\" }", "--max-steps", "2", "--logging-steps", "1"];
    let all = |run: &'static str, size: &'static str| {
        let sizes = ["--num-generations", "4", "--max-completion-length", "4", "--per-device-train-batch-size", size];
        [&small()[..], &plugin, &grant, &sizes, &["--output-dir", run]].concat()
    };
    place.run(&all("one", "8")).succeeded();
    place.run_ranks(2, &all("two", "4")).succeeded();
    // Its version and three lines.
    assert_eq!(place.figure("two", "rewards/versioned/mean"), [4.0; 2]);
    same_figures(&place, "two", "one");
    // The second process finds another folder under the same name.
    let elsewhere = |run: &'static str| {
        let arguments = all(run, "4");
        let mut command = place.ranks(1, &arguments);
        command.args([":", "-n", "1", "--wdir"]).arg(place.path("other")).arg(binary()).args(&arguments);
        CommandOutcome::new(command.output().unwrap())
    };
    place.write("other/versioned.wasm", version(1));
    place.write("other/lists/words.txt", "one\ntwo\nfour\n");
    let refused = elsewhere("three");
    assert!(refused.stderr.contains("its folders hold other files on rank 1 than on the first"), "{}", refused.stderr);
    assert!(refused.code != Some(0) && !place.path("three").exists());
}

#[test]
fn the_first_process_checks_the_marks_of_grants_for_all() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let limits = ["--set", "plugin.tldr_length_reward.limits.memory_mb=600", "--plugin", "tldr_length_reward.wasm"];
    let size = ["--num-generations", "4", "--max-completion-length", "4", "--per-device-train-batch-size", "4"];
    let steps = ["--max-steps", "2", "--save-steps", "1", "--output-dir", "run"];
    place.run_ranks(2, &[&small()[..], &limits, &size, &steps].concat()).succeeded();
    place.copy_as_after("run", 1, "resumed");
    let resume = |keys: [&str; 2]| {
        let [first, second] = keys.map(|folder| place.path(folder).display().to_string());
        let mut command = place.ranks(1, &["resume", "resumed"]);
        command.env("RLHOST_STATE_DIR", first);
        command.args([":", "-n", "1", "env", &format!("RLHOST_STATE_DIR={second}")]).arg(binary()).args(["resume", "resumed"]);
        CommandOutcome::new(command.output().unwrap())
    };
    let refused = resume(["another", ".state"]);
    assert!(
        refused.code != Some(0) && refused.stderr.contains("limits.memory_mb = 600, but you have not granted"),
        "{}",
        refused.stderr
    );
    resume([".state", "another"]).succeeded();
    place.assert_same_end("resumed", "run", 2, "model.safetensors");
}
