//! Ranks that divide what training holds of a model: the run of one process, whatever is divided, and checkpoints that any number of
//! ranks goes on from.

use rlhost_tests::mpi::{AlgorithmCase, arguments, interceptor, possible, process, run, same_figures, same_weights, send};
use rlhost_tests::{CommandOutcome, HOSTILE, STORIES, TestFolder, tiny};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Longest that anything here is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Numbers of ranks with the batch size of each, and what they divide.
const CUTS: [(usize, &str, &str); 4] = [(2, "4", "1"), (2, "4", "2"), (2, "4", "3"), (4, "2", "3")];

const STEPS: [&str; 4] = ["--max-steps", "3", "--max-grad-norm", "0.5"];

/// Runs each case as one process, and with each cut, which must come to the same.
fn compare(place: &TestFolder, cases: &[AlgorithmCase<'_>], online: bool, cuts: &[(usize, &str, &str)], more: &[&str]) {
    for (case, own) in cases {
        let (case, algorithm) = case.split_once(':').unwrap_or((case, case));
        let run = |name: &str, ranks: usize, size: &str, stage: &str| {
            let cut = ["--per-device-train-batch-size", size, "--zero-stage", stage];
            run(place, name, ranks, &[&arguments(algorithm, online, own)[..], more, &cut].concat()).succeeded();
        };
        let whole = format!("{case}-whole");
        run(&whole, 1, "8", "0");
        let last = place.checkpoints(&whole).pop().unwrap();
        for (ranks, size, stage) in cuts {
            let name = format!("{case}-{ranks}-{stage}");
            run(&name, *ranks, size, stage);
            same_figures(place, &name, &whole);
            same_weights(place, &name, &whole, last);
            place.run(&["checkpoint", "verify", &name]).succeeded();
        }
    }
}

#[test]
fn a_step_is_the_same_whatever_is_divided() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    let again = [&STEPS[..], &["--num-generations", "2", "--num-iterations", "2"]].concat();
    // With a reference model, a critic of its own or a head on the policy.
    compare(&place, &[("grpo", &["--beta", "0.1"]), ("ppo", &[])], true, &CUTS, &again);
    compare(&place, &[("shared:ppo", &["--value-model", "shared"])], true, &CUTS[2..], &again);
    let offline: [AlgorithmCase<'_>; 3] =
        [("dpo", &[]), ("sft", &["--learn-from", "dataset", "--dataset", "answers.jsonl"]), ("reward_model", &[])];
    compare(&place, &offline, false, &CUTS, &STEPS);
    // Mismatched completions are scored by themselves.
    compare(&place, &[("kto", &[])], false, &CUTS[2..3], &STEPS);
}

#[test]
fn accumulation_and_passes_of_which_a_rank_has_fewer_make_the_same_step() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    let parts = [&STEPS[..], &["--gradient-accumulation-steps", "2", "--max-tokens-per-microbatch", "60"]].concat();
    compare(
        &place,
        &[("dpo", &[]), ("sft", &["--learn-from", "dataset", "--dataset", "answers.jsonl"])],
        false,
        &CUTS[1..],
        &parts,
    );
    // The last batch of 32 rows has two, so that ranks have none; so has that of the evaluation.
    let uneven = [(3, "2", "2"), (3, "2", "3")];
    let evaluated = ["--eval-dataset", "pairs.jsonl", "--eval-steps", "3", "--max-steps", "6"];
    for (case, own) in [("dpo", &[][..]), ("aot:dpo", &["--loss-type", "aot"])] {
        let run = |name: &str, ranks: usize, size: &str, stage: &str| {
            let cut = ["--per-device-train-batch-size", size, "--zero-stage", stage, "--overlap-comm", "false"];
            run(&place, name, ranks, &[&arguments("dpo", false, own)[..], &evaluated, &cut].concat()).succeeded();
        };
        let whole = format!("uneven-{case}");
        run(&whole, 1, "6", "0");
        for (ranks, size, stage) in uneven {
            let name = format!("{whole}-{stage}");
            run(&name, ranks, size, stage);
            same_figures(&place, &name, &whole);
            same_weights(&place, &name, &whole, 6);
        }
    }
}

#[test]
fn every_optimizer_and_an_adapter_make_the_same_step() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    let optimizers: [AlgorithmCase<'_>; 4] = [
        ("8bit:dpo", &["--optim", "adamw_8bit"]),
        ("muon:dpo", &["--optim", "muon"]),
        ("adafactor:dpo", &["--optim", "adafactor"]),
        ("sgd:dpo", &["--optim", "sgd"]),
    ];
    compare(&place, &optimizers, false, &CUTS[1..3], &STEPS);
    // An optimizer without moments has a state, too.
    place.run_ranks(2, &["resume", "sgd-2-3", "--max-steps", "4"]).succeeded();
    let lora = [&STEPS[..], &["--lora-r", "4", "--lora-dropout", "0.1"]].concat();
    compare(&place, &[("lora:dpo", &[]), ("whole:dpo", &["--lora-modules-to-save", "lm_head"])], false, &CUTS[1..], &lora);
    let online = [&STEPS[..], &["--lora-r", "4", "--num-generations", "2"]].concat();
    // The critic's adapter is over the policy's model.
    compare(&place, &[("lora-ppo:ppo", &[]), ("lora-grpo:grpo", &["--beta", "0.1"])], true, &CUTS[2..], &online);
}

#[test]
fn models_that_are_not_trained_are_divided_at_any_stage() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    made(&place, "other", json!({"model_type": "qwen2", "hidden_act": "silu", "tie_word_embeddings": true}));
    let alone = [&STEPS[..], &["--shard-frozen", "true"]].concat();
    let cuts = [(2, "4", "0"), (2, "4", "2"), (4, "2", "0")];
    let reference = ["--ref-model", "other", "--max-tokens-per-microbatch", "90"];
    compare(&place, &[("dpo", &reference), ("lora:dpo", &["--lora-r", "4", "--lora-dropout", "0.1"])], false, &cuts, &alone);
    let precomputed = ["--precompute-ref-log-probs", "true"];
    compare(&place, &[("before:dpo", &precomputed)], false, &CUTS[2..3], &STEPS);
    let online = [&alone[..], &["--num-generations", "2"]].concat();
    let lora = ["--lora-r", "4", "--beta", "0.1", "--num-iterations", "2"];
    compare(&place, &[("lora-grpo:grpo", &lora), ("lora-ppo:ppo", &["--lora-r", "4"])], true, &cuts[..2], &online);
    // One that follows the policy is whole.
    let follows = ["--beta", "0.1", "--sync-ref-model", "true", "--ref-model-sync-steps", "1", "--num-generations", "2"];
    compare(&place, &[("follows:grpo", &follows)], true, &CUTS[2..3], &STEPS);
    // A teacher's predictions are compared within the policy's passes, or scored before.
    let teacher = ["--teacher-model", "other"];
    let gradient = ["--teacher-model", "other", "--loss-type", "policy_gradient"];
    let cases: [AlgorithmCase<'_>; 2] = [("distillation", &teacher), ("gradient:distillation", &gradient)];
    compare(&place, &cases, true, &[cuts[0], CUTS[2], CUTS[3]], &alone);
    let uneven = [&arguments("distillation", true, &teacher)[..], &["--max-steps", "2", "--shard-frozen", "true"]].concat();
    let sizes = |size: &'static str| ["--per-device-train-batch-size", size, "--max-tokens-per-microbatch", "70"];
    run(&place, "even", 1, &[&uneven[..], &sizes("9")].concat()).succeeded();
    run(&place, "uneven", 3, &[&uneven[..], &sizes("3")].concat()).succeeded();
    same_figures(&place, "uneven", "even");
    let dora = ["--lora-r", "4", "--use-dora", "true", "--shard-frozen", "true", "--num-generations", "2"];
    let refused = run(&place, "dora", 2, &arguments("grpo", true, &dora));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.error().contains("shard_frozen: is true, but a pass with DoRA"), "{}", refused.error());
}

/// Writes the configuration of a small model and makes the model.
fn made(place: &TestFolder, name: &str, own: serde_json::Value) {
    let mut config = json!({
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 257, "max_position_embeddings": 192, "torch_dtype": "float32",
    });
    config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    place.write("config.json", config.to_string());
    place.write("corpus.jsonl", "{\"text\": \"nothing\"}");
    place.run(&["new-model", name, "--config", "config.json", "--corpus", "corpus.jsonl", "--vocab-size", "257"]).succeeded();
}

#[test]
fn a_tied_model_and_one_of_experts_are_divided_too() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    made(&place, "tied", json!({"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": true}));
    made(&place, "experts", json!({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}));
    for model in ["tied", "experts"] {
        let train = |name: &str, ranks: usize, size: &str, stage: &str| {
            let cut =
                ["--per-device-train-batch-size", size, "--zero-stage", stage, "--output-dir", name, "--logging-steps", "1"];
            // How evenly experts are used is measured over the rows of a rank.
            let own = ["--model", model, "--router-aux-loss-coef", "0"];
            let own = if model == "experts" { &own[..] } else { &own[..2] };
            let all = [&arguments("dpo", false, &STEPS)[..], own, &cut].concat();
            let outcome = if ranks == 1 { place.run(&all) } else { place.run_ranks(ranks, &all) };
            outcome.succeeded();
        };
        let whole = format!("{model}-whole");
        train(&whole, 1, "8", "0");
        for (ranks, size, stage) in &CUTS[1..] {
            let name = format!("{model}-{ranks}-{stage}");
            train(&name, *ranks, size, stage);
            same_figures(&place, &name, &whole);
            same_weights(&place, &name, &whole, 3);
        }
        // Its folder is a model that anybody opens.
        let checkpoint = format!("{model}-4-3/checkpoint-3");
        place.run(&["generate", "--model", &checkpoint, "--prompt", "once", "--max-completion-length", "4"]).succeeded();
        place.run(&["checkpoint", "verify", &checkpoint]).succeeded();
    }
}

#[test]
fn a_divided_run_repeats_to_the_bit_and_goes_on_however_many_ranks_divide_it() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    // A generation serves two steps, twice, so that completions wait in the checkpoint.
    let rounds = ["--steps-per-generation", "2", "--num-iterations", "2", "--save-steps", "3", "--max-steps", "6"];
    let four = ["--per-device-train-batch-size", "2", "--num-generations", "2", "--zero-stage", "3"];
    let all = [&arguments("ppo", true, &rounds)[..], &four].concat();
    run(&place, "four", 4, &all).succeeded();
    run(&place, "again", 4, &all).succeeded();
    let files = |number: usize| ["model", "trainer/value_model/model"].map(|f| format!("{f}-{number:05}-of-00004.safetensors"));
    for file in (1..=4).flat_map(files) {
        place.assert_same_end("again", "four", 6, &file);
    }
    consolidate(&place, "four", "joined");
    for (ranks, size, stage) in [(4, 2, 3), (4, 2, 1), (2, 4, 3), (2, 4, 2), (2, 4, 0), (1, 8, 3)] {
        let name = format!("on-{ranks}-{stage}");
        place.copy(if ranks == 2 { "joined" } else { "four" }, &name);
        let sets = [format!("per_device_train_batch_size={size}"), format!("zero_stage={stage}")];
        let resume = ["resume", &name, "--step", "3", "--set", &sets[0], "--set", &sets[1]];
        let outcome = if ranks == 1 { place.run(&resume) } else { place.run_ranks(ranks, &resume) };
        outcome.succeeded();
        same_figures(&place, &name, "four");
        same_weights(&place, &name, "four", 6);
        if (ranks, stage) == (4, 3) {
            (1..=4).flat_map(files).for_each(|file| place.assert_same_end(&name, "four", 6, &file));
        }
    }
    // And back.
    place.copy("on-1-3", "back");
    let set = ["--set", "per_device_train_batch_size=4", "--set", "zero_stage=2", "--max-steps", "8"];
    place.run_ranks(2, &[&["resume", "back", "--step", "6"][..], &set].concat()).succeeded();
    assert_eq!(place.checkpoints("back").last(), Some(&8));
}

/// Copies a run and joins the files that its ranks wrote of each checkpoint.
fn consolidate(place: &TestFolder, from: &str, to: &str) {
    place.copy(from, to);
    let files = |run: &str| {
        let names = |folder: &str| place.entries_of(&format!("{run}/checkpoint-6/{folder}"));
        ["", "trainer", "trainer/value_model"].map(names)
    };
    // A file that somebody has put there would be lost.
    place.write(&format!("{to}/checkpoint-6/notes.txt"), "mine");
    let refused = place.run(&["checkpoint", "consolidate", to]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.error().contains("it contains notes.txt, which the run did not write"), "{}", refused.error());
    std::fs::remove_file(place.path(&format!("{to}/checkpoint-6/notes.txt"))).unwrap();
    let done = place.run(&["checkpoint", "consolidate", to]);
    done.succeeded();
    assert!(done.stdout.contains("checkpoint-6: 12 files joined into 3"), "{done:?}");
    let whole = |names: &[String]| names.iter().filter(|name| name.ends_with(".safetensors")).cloned().collect::<Vec<_>>();
    let [model, trainer, value_model] = files(to);
    assert_eq!([whole(&model), whole(&value_model)], [["model.safetensors"]; 2]);
    assert!(trainer.contains(&"optimizer.safetensors".to_owned()) && !trainer.iter().any(|name| name.contains("-of-")));
    assert!(!model.iter().any(|name| name.ends_with(".index.json")));
    same_weights(place, to, from, 6);
    place.run(&["checkpoint", "verify", to]).succeeded();
    let again = place.run(&["checkpoint", "consolidate", &format!("{to}/checkpoint-3")]);
    assert!(again.stdout.contains("every file of it is whole"), "{again:?}");
}

#[test]
fn a_plugin_that_fails_on_one_rank_ends_a_divided_run_after_a_checkpoint() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let misdeed = ["--set", "plugin.hostile.config.misdeed=trap_on_rows", "--set", "plugin.hostile.config.from_step=2"];
    let more = ["--plugin", HOSTILE, "--max-completion-length", "8", "--per-device-train-batch-size", "8", "--max-steps", "9"];
    let stage = ["--dataset", STORIES, "--zero-stage", "3"];
    let outcome = run(&place, "run", 3, &[&more[..], &misdeed, &stage].concat());
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.error().contains("plugin hostile, score in step 3"), "{}", outcome.error());
    assert_eq!(place.checkpoints("run"), [2]);
    place.run(&["checkpoint", "verify", "run"]).succeeded();
}

#[test]
fn a_divided_run_whose_ranks_are_killed_goes_on_to_the_bit() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let long = ["--max-steps", "40", "--save-steps", "1", "--save-total-limit", "4", "--num-generations", "2"];
    let cut = ["--per-device-train-batch-size", "4", "--zero-stage", "3", "--resume-from-checkpoint"];
    let all = [&arguments("grpo", true, &long)[..], &cut, &["--model", tiny(), "--logging-steps", "1"]].concat();
    let of = |run: &'static str| [&all[..], &["--output-dir", run]].concat();
    place.run_ranks(2, &of("whole")).succeeded();
    for (after, rank) in [(2, 1), (7, 0), (12, 1), (20, 1)] {
        let mut child = place.ranks(2, &of("killed")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        place.wait("killed", PATIENCE, || place.steps("killed") >= after && !place.checkpoints("killed").is_empty());
        send(&process(&child, rank), "-KILL");
        assert!(!child.wait().unwrap().success(), "it had not ended before");
        place.run(&["checkpoint", "verify", "killed"]).succeeded();
    }
    place.run_ranks(2, &["resume", "killed"]).succeeded();
    for number in 1..=2 {
        place.assert_same_end("killed", "whole", 40, &format!("model-{number:05}-of-00002.safetensors"));
    }
    let left = std::fs::read_dir(place.path("killed")).unwrap().filter_map(Result::ok);
    let left: Vec<_> = left.filter(|entry| entry.file_name().to_string_lossy().starts_with(".checkpoint")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Starts ranks of which one waits for so many milliseconds in each call of a function.
fn delayed(place: &TestFolder, ranks: usize, library: &str, delay: &str, arguments: &[&str]) -> Child {
    let mut command = place.ranks(ranks, arguments);
    command.env("LD_PRELOAD", library).env("DELAY_AT", delay).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// How often rank 1 called each function in the run that wrote this file.
fn counted(place: &TestFolder, file: &str) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(place.path(file)).unwrap();
    let line = |line: &str| line.split_once(' ').map(|(name, count)| (name.to_owned(), count.parse().unwrap())).unwrap();
    text.lines().map(line).collect()
}

#[test]
fn a_rank_that_dies_in_any_phase_of_a_step_leaves_a_run_that_goes_on_to_the_bit() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    let Some(library) = interceptor(&place) else { return };
    let steps: usize = 12;
    let own = ["--max-steps", "12", "--save-steps", "1", "--save-total-limit", "3", "--zero-stage", "3", "--model", tiny()];
    let more = ["--per-device-train-batch-size", "4", "--resume-from-checkpoint", "--logging-steps", "1"];
    let all = [&arguments("dpo", false, &own)[..], &more].concat();
    let of = |run: &'static str| [&all[..], &["--output-dir", run]].concat();
    let counts = place.path("counts").display().to_string();
    let mut whole = place.ranks(2, &of("whole"));
    CommandOutcome::new(whole.env("LD_PRELOAD", &library).env("COUNT_CALLS", counts).output().unwrap()).succeeded();
    let calls = counted(&place, "counts");
    let [broadcasts, reductions] = ["MPI_Bcast", "MPI_Reduce"].map(|name| calls[name]);
    assert!(broadcasts >= 4 * steps && reductions >= 2 * steps && calls["rename"] >= steps, "{calls:?}");
    // Of a step's reductions and gathers.
    let (of_step, third) = (reductions / steps, broadcasts / steps / 3);
    let phases = [
        ("forward", 1, format!("MPI_Reduce={},MPI_Bcast={third}", 2 * of_step)),
        ("gather", 1, format!("MPI_Reduce={},MPI_Bcast={}", 2 * of_step, 2 * third)),
        ("reduce", 1, format!("MPI_Reduce={}", of_step + of_step / 2)),
        ("update", 1, format!("MPI_Reduce={of_step},MPI_Send=2")),
        ("save", 1, "rename=1".to_owned()),
        ("collect", 0, format!("MPI_Reduce={of_step},rename=2")),
    ];
    for (phase, rank, at) in phases {
        let mut killed = place.ranks(2, &of("killed"));
        let outcome = killed.env("LD_PRELOAD", &library).env("KILL_AT", format!("{rank}:{at}")).output().unwrap();
        let outcome = CommandOutcome::new(outcome);
        let within = at.rsplit(',').next().and_then(|last| last.split('=').next()).unwrap();
        assert!(outcome.stderr.contains(&format!("killed in {within}")), "{phase}: {outcome:?}");
        assert!(outcome.code != Some(0) && outcome.stderr.contains(&format!("rank {rank}")), "{phase}: {outcome:?}");
        if !place.checkpoints("killed").is_empty() {
            place.run(&["checkpoint", "verify", "killed"]).succeeded();
        }
    }
    place.run_ranks(2, &of("killed")).succeeded();
    for number in 1..=2 {
        place.assert_same_end("killed", "whole", 12, &format!("model-{number:05}-of-00002.safetensors"));
    }
}

#[test]
fn a_failure_while_a_checkpoint_is_being_written_loses_neither_that_nor_the_last() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let Some(library) = interceptor(&place) else { return };
    let misdeed = ["--set", "plugin.hostile.config.misdeed=trap_on_rows", "--set", "plugin.hostile.config.from_step=1"];
    let more = ["--plugin", HOSTILE, "--max-completion-length", "8", "--per-device-train-batch-size", "8", "--max-steps", "9"];
    let saves = ["--dataset", STORIES, "--zero-stage", "3", "--save-steps", "1", "--dist-timeout-s", "40"];
    let own = ["--output-dir", "run", "--model", tiny()];
    // The first rank is still collecting the parts of step 1 when the plugin fails.
    let child = delayed(&place, 3, &library, "0:rename=2000", &[&more[..], &misdeed, &saves, &own].concat());
    let outcome = CommandOutcome::new(child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("plugin hostile, score in step"), "{outcome:?}");
    assert!(!outcome.stderr.contains("has not appeared"), "{outcome:?}");
    assert!(!place.checkpoints("run").is_empty());
    place.run(&["checkpoint", "verify", "run"]).succeeded();
}

#[test]
fn a_state_that_a_plugin_does_not_give_keeps_no_rank_waiting() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let misdeed = ["--set", "plugin.hostile.config.misdeed=huge_state", "--set", "plugin.hostile.config.from_step=2"];
    let more = ["--plugin", HOSTILE, "--max-completion-length", "8", "--per-device-train-batch-size", "8", "--max-steps", "4"];
    let stage = ["--dataset", STORIES, "--zero-stage", "1", "--dist-timeout-s", "40"];
    let outcome = run(&place, "run", 2, &[&more[..], &misdeed, &stage].concat());
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(!outcome.stderr.contains("has not appeared"), "{outcome:?}");
    assert!(!place.checkpoints("run").is_empty(), "{outcome:?}");
    place.run(&["checkpoint", "verify", "run"]).succeeded();
}

#[test]
fn a_signal_during_the_last_checkpoint_leaves_a_finished_run() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let Some(library) = interceptor(&place) else { return };
    let own = ["--max-steps", "2", "--num-generations", "2", "--per-device-train-batch-size", "4", "--zero-stage", "3"];
    let all = [&arguments("grpo", true, &own)[..], &["--output-dir", "run", "--model", tiny(), "--logging-steps", "1"]].concat();
    let child = delayed(&place, 2, &library, "0:rename=1000", &all);
    place.wait("run", PATIENCE, || place.steps("run") >= 2);
    send(&process(&child, 0), "-TERM");
    let outcome = CommandOutcome::new(child.wait_with_output().unwrap());
    assert!(matches!(outcome.code, Some(0 | 3)) && !outcome.stderr.contains("bug"), "{outcome:?}");
    assert_eq!(place.checkpoints("run"), [2]);
}

#[test]
fn rehearsals_and_measurements_gather_what_they_read() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let own = ["--num-generations", "2", "--per-device-train-batch-size", "4", "--zero-stage", "3", "--model", tiny()];
    let outcome = place.run_ranks(2, &[&arguments("grpo", true, &own)[..], &["--dry-run"]].concat());
    outcome.succeeded();
    assert!(outcome.stdout.contains("tldr_length_reward"), "{outcome:?}");
    let bench = ["bench", "--steps", "1", "--json", "--per-device-train-batch-size", "4", "--num-generations", "2"];
    let bytes = |ranks: usize, stage: &str| {
        let all = [&bench[..], &["--max-completion-length", "8", "--zero-stage", stage]].concat();
        let outcome = place.run_ranks(ranks, &all);
        let summary: serde_json::Value = serde_json::from_str(outcome.succeeded().stdout.trim()).unwrap();
        summary["memory_mb"]["weights"].as_f64().unwrap_or_else(|| panic!("{summary}"))
    };
    // Half of the matrices, and all vectors.
    let [whole, half] = ["0", "3"].map(|stage| bytes(2, stage));
    assert!(half > 0.3 * whole && half < 0.8 * whole, "{half} of {whole}");
}

#[test]
fn an_optimizer_starts_anew_on_all_ranks_or_on_none() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let sizes = ["--num-generations", "2", "--per-device-train-batch-size", "4", "--model", tiny()];
    let begun = [&arguments("grpo", true, &["--max-steps", "2", "--zero-stage", "1"])[..], &sizes, &["--output-dir", "begun"]];
    place.run_ranks(2, &begun.concat()).succeeded();
    // The head of the critic has no moments there.
    for stage in ["0", "1"] {
        let name = format!("fork-{stage}");
        let own = ["--max-steps", "4", "--zero-stage", stage, "--value-model", "shared"];
        let fork = ["--resume-from-checkpoint", "begun", "--output-dir", &name, "--logging-steps", "1"];
        place.run_ranks(2, &[&arguments("ppo", true, &own)[..], &sizes, &fork].concat()).succeeded();
    }
    same_figures(&place, "fork-1", "fork-0");
    same_weights(&place, "fork-1", "fork-0", 4);
}

#[test]
fn a_stage_that_there_is_not_is_refused() {
    let place = TestFolder::new();
    let refused = place.run(&["grpo", "--zero-stage", "4", "--model", tiny()]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("zero_stage") && refused.error().contains("between 0 and 3"), "{}", refused.error());
}
