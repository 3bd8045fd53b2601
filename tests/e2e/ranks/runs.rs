//! Several processes that train as one: the same run however many there are, and an end, with words,
//! where one of them fails, dies or hangs.

use rlhost_tests::mpi::{arguments, compare, possible, process, run, same_figures, same_weights, send};
use rlhost_tests::{CommandOutcome, HOSTILE, REMEMBERING, STORIES, TestFolder, tiny, version};
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Longest that anything here is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// What `mpirun` may take to end the others after one has died, where the run itself says nothing.
const LAUNCHERS: Duration = Duration::from_secs(30);

const ONLINE: [(&str, &[&str]); 4] =
    [("grpo", &["--beta", "0.1", "--epsilon", "0.1"]), ("rloo", &[]), ("ppo", &[]), ("reinforce_pp", &[])];

const PAIRING: [(&str, &[&str]); 1] = [("online_dpo", &[])];

const OFFLINE: [(&str, &[&str]); 6] = [
    ("sft", &["--learn-from", "dataset", "--dataset", "answers.jsonl"]),
    ("dpo", &[]),
    ("cpo", &[]),
    ("orpo", &[]),
    ("reward_model", &["--center-rewards-coefficient", "0.1"]),
    ("kto", &[]),
];

#[test]
fn a_step_is_the_same_on_however_many_ranks() {
    if !possible() {
        return;
    }
    let cuts = [(1, "8"), (2, "4"), (4, "2")];
    // The second step learns from the first one's completions again, and so finds other ratios than one.
    let again = ["--max-steps", "3", "--num-generations", "2", "--num-iterations", "2"];
    compare(&[&ONLINE[..], &PAIRING].concat(), true, &cuts, &again);
    compare(&[("ppo", &["--value-model", "shared"])], true, &cuts, &again);
    compare(&OFFLINE, false, &cuts, &["--max-steps", "3"]);
    compare(&[("grpo", &["--filter-groups", "--max-num-gen-batches", "50"])], true, &cuts, &again);
    // The third step is the first of the second pass.
    compare(&[("ppo", &["--num-mini-batches", "2"])], true, &cuts, &again);
}

#[test]
fn a_reward_model_and_a_pair_judge_score_the_same_on_however_many_ranks() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    let train = ["reward", "--model", tiny(), "--dataset", "pairs.jsonl", "--output-dir", "rm", "--max-steps", "4"];
    place.run(&[&train[..], &["--learning-rate", "0.01"]].concat()).succeeded();
    let (grpo, ppo, dpo) = (["--beta", "0.1"], ["--critic-learning-rate", "0.0003"], ["--set", "plugin.rm.compare=others"]);
    // A gradient that is next to nothing moves its weight by a step of rounding's choice otherwise.
    let calm = ["--adam-epsilon", "0.001"];
    for (algorithm, own) in [("grpo", &grpo), ("ppo", &ppo), ("online_dpo", &dpo)] {
        for (ranks, size) in [(1, "8"), (2, "4"), (4, "2")] {
            let more =
                ["--reward-model", "rm", "--max-steps", "2", "--num-generations", "2", "--per-device-train-batch-size", size];
            let name = format!("{algorithm}-{ranks}");
            run(&place, &name, ranks, &[&arguments(algorithm, true, own)[..], &calm, &more].concat()).succeeded();
            same_figures(&place, &name, &format!("{algorithm}-1"));
            same_weights(&place, &name, &format!("{algorithm}-1"), 2);
        }
    }
}

#[test]
fn an_adapter_is_the_same_on_however_many_ranks() {
    if !possible() {
        return;
    }
    let (cuts, three) = ([(1, "6"), (2, "3")], [(1, "6"), (3, "2")]);
    let steps = ["--max-steps", "3", "--lora-r", "4"];
    compare(&[ONLINE[0], ("ppo", &[])], true, &cuts, &[&steps[..], &["--num-generations", "2"]].concat());
    compare(&OFFLINE[1..2], false, &three, &steps);
    let kinds = ["--use-dora", "--lora-modules-to-save", "lm_head", "norm"];
    compare(&OFFLINE[1..2], false, &three, &[&steps[..], &kinds].concat());
}

#[test]
fn a_step_parted_by_tokens_is_the_same_on_however_many_ranks() {
    if !possible() {
        return;
    }
    let steps = ["--max-steps", "3", "--gradient-accumulation-steps", "2", "--max-tokens-per-microbatch", "60"];
    compare(&ONLINE[..1], true, &[(1, "6"), (2, "3")], &[&steps[..], &["--num-generations", "2"]].concat());
    compare(&OFFLINE[..2], false, &[(1, "6"), (3, "2")], &steps);
}

#[test]
fn uneven_shares_make_the_same_step_too() {
    if !possible() {
        return;
    }
    // Two prompts for three ranks, of which one generates nothing.
    compare(&ONLINE, true, &[(1, "12"), (3, "4")], &["--max-steps", "3", "--num-generations", "6"]);
    // Two micro-batches of three pairs, of which each rank has one.
    compare(&PAIRING, true, &[(1, "3"), (3, "1")], &["--max-steps", "3", "--gradient-accumulation-steps", "2"]);
    // The last batch of 32 rows has two for three ranks, and so has that of the evaluation.
    let evaluated = ["--eval-dataset", "pairs.jsonl", "--eval-steps", "3"];
    compare(&OFFLINE[1..], false, &[(1, "6"), (3, "2")], &[&["--max-steps", "6"], &evaluated[..]].concat());
    compare(&OFFLINE[..1], false, &[(1, "6"), (3, "2")], &["--max-steps", "6"]);
}

#[test]
fn accuracies_are_of_all_ranks_and_not_of_the_first() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    // In every third pair the other answer is the better one, so that not all can be right.
    let turned = place.lines("pairs.jsonl").into_iter().enumerate().map(|(i, mut pair)| {
        if i % 3 == 0 {
            (pair["chosen"], pair["rejected"]) = (pair["rejected"].take(), pair["chosen"].take());
        }
        format!("{pair}\n")
    });
    place.write("pairs.jsonl", turned.collect::<String>());
    let more = ["--max-steps", "8"];
    for (ranks, size) in [(1, "8"), (4, "2")] {
        let all = [&arguments("dpo", false, &more)[..], &["--per-device-train-batch-size", size]].concat();
        run(&place, &format!("{ranks}"), ranks, &all).succeeded();
    }
    same_figures(&place, "4", "1");
    let accuracies = place.figure("4", "rewards/accuracies");
    // Two pairs a rank can't make an eighth.
    assert!(accuracies.iter().any(|a| ![0.0, 0.5, 1.0].contains(a)), "{accuracies:?}");
}

#[test]
fn a_loss_that_compares_rows_compares_those_of_all_ranks() {
    if !possible() {
        return;
    }
    let cuts = [(1, "8"), (2, "4"), (4, "2")];
    let again = ["--max-steps", "3", "--num-generations", "2", "--num-iterations", "2"];
    compare(&[("grpo", &["--top-entropy-quantile", "0.5", "--entropy-coef", "0.01"])], true, &cuts, &again);
    // The last batch of 32 rows has two, so that the third rank has none.
    let epoch = [(1, "6"), (3, "2")];
    compare(&[("dpo", &["--loss-type", "aot"])], false, &epoch, &["--max-steps", "6", "--gradient-accumulation-steps", "1"]);
}

#[test]
fn a_reward_that_remembers_sees_the_calls_of_one_process() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let plugin = ["--plugin", REMEMBERING, "--dataset", STORIES];
    let more = [&plugin[..], &["--max-completion-length", "12", "--num-generations", "2", "--max-steps", "4"]].concat();
    run(&place, "one", 1, &[&more[..], &["--per-device-train-batch-size", "8"]].concat()).succeeded();
    run(&place, "two", 2, &[&more[..], &["--per-device-train-batch-size", "4"]].concat()).succeeded();
    same_figures(&place, "two", "one");
}

#[test]
fn a_checkpoint_goes_on_at_another_number_of_ranks_if_the_batch_stays() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    // A generation serves two steps, twice, so that completions wait in the checkpoint.
    let rounds = ["--steps-per-generation", "2", "--num-iterations", "2", "--save-steps", "3", "--max-steps", "6"];
    let size = ["--per-device-train-batch-size", "4", "--num-generations", "2"];
    run(&place, "two", 2, &[&arguments("ppo", true, &rounds)[..], &size].concat()).succeeded();
    for (ranks, size) in [(1, 8), (2, 4), (4, 2)] {
        let name = format!("on-{ranks}");
        place.copy("two", &name);
        let set = format!("per_device_train_batch_size={size}");
        let resume = ["resume", &name, "--step", "3", "--set", &set];
        let outcome = if ranks == 1 { place.run(&resume) } else { place.run_ranks(ranks, &resume) };
        outcome.succeeded();
        same_figures(&place, &name, "two");
        same_weights(&place, &name, "two", 6);
    }
    let refused = place.run(&["resume", "two", "--step", "3"]);
    assert_eq!(refused.code, Some(2));
    let words = "2 processes x per_device_train_batch_size 4 = 8 and would become 1 process x per_device_train_batch_size 4 = 4";
    assert!(refused.error().contains(words), "{}", refused.error());
    assert!(refused.error().contains("per_device_train_batch_size=8 keeps it"), "{}", refused.error());
}

#[test]
fn a_mistake_is_said_once_and_by_the_rank_that_made_it() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    let wrong = place.run_ranks(3, &["--algorithm", "dpo", "--dataset", "pairs.jsonl", "--model", tiny(), "--lerning-rate", "1"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.error().contains("lerning-rate"), "{}", wrong.error());
    let common = ["--algorithm", "dpo", "--model", tiny(), "--output-dir", "run", "--max-steps", "1", "--dataset"];
    for (own, words) in [
        (&["pairs.jsonl", "--seed", "7"][..], "rank 1 was started with different settings from rank 0: seed"),
        (&["pairs.jsonl", "--eval-dataset", "pairs.jsonl"], "rank 1 was started with different settings from rank 0: "),
        (&["few.jsonl"], "rank 1 has read a different dataset"),
        (&["none.jsonl"], "rank 1: can't read "),
    ] {
        place.write("few.jsonl", fs::read_to_string(place.path("pairs.jsonl")).unwrap().lines().next().unwrap());
        let mut command = place.ranks(1, &[&common[..], &["pairs.jsonl"]].concat());
        command.args([":", "-n", "1"]).arg(rlhost_tests::binary()).args(common).args(own);
        let outcome = CommandOutcome::new(command.output().unwrap());
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.error().contains(words), "{words}: {}", outcome.error());
        let _ = fs::remove_dir_all(place.path("run"));
    }
}

#[test]
fn a_plugin_that_fails_on_one_rank_ends_the_run_after_a_checkpoint() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let misdeed = ["--set", "plugin.hostile.config.misdeed=trap_on_rows", "--set", "plugin.hostile.config.from_step=2"];
    let more = ["--plugin", HOSTILE, "--max-completion-length", "8", "--per-device-train-batch-size", "8", "--max-steps", "9"];
    let outcome = run(&place, "run", 3, &[&more[..], &misdeed, &["--dataset", STORIES]].concat());
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.error().contains("plugin hostile, score in step 3"), "{}", outcome.error());
    assert_eq!(place.checkpoints("run"), [2]);
    assert_eq!(place.events("run", "failed").len(), 1);
}

/// A run under `mpirun`, of steps that take a moment.
struct MpiRun {
    place: TestFolder,
    child: Child,
}

impl MpiRun {
    fn start(ranks: usize, more: &[&str]) -> Self {
        let place = TestFolder::new();
        place.write("versioned.wasm", version(1));
        let plugin = ["--plugin", "versioned.wasm", "--output-dir", "run", "--max-steps", "100000", "--logging-steps", "1"];
        let size = ["--max-completion-length", "32", "--per-device-train-batch-size", "8", "--learning-rate", "0"];
        let all = [
            &plugin[..],
            &size,
            &["--model", tiny(), "--dataset", STORIES, "--save-steps", "5", "--save-total-limit", "2"],
            more,
        ]
        .concat();
        let mut command = place.ranks(ranks, &all);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let this = Self { place, child };
        this.wait(|| this.steps() > 6);
        this
    }

    #[track_caller]
    fn wait(&self, done: impl Fn() -> bool) {
        self.place.wait("run", PATIENCE, done);
    }

    fn steps(&self) -> usize {
        self.place.steps("run")
    }

    fn signal(&self, rank: usize, signal: &str) {
        send(&process(&self.child, rank), signal);
    }

    /// Waits for the end, no longer than `limit`.
    fn end(mut self, limit: Duration) -> (TestFolder, CommandOutcome) {
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if begun.elapsed() >= limit {
                let _ = self.child.kill();
                panic!("the run did not end within {limit:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        (self.place, CommandOutcome::new(self.child.wait_with_output().unwrap()))
    }
}

#[test]
fn mpirun_told_to_stop_leaves_a_checkpoint_of_the_last_step() {
    if !possible() {
        return;
    }
    let run = MpiRun::start(3, &[]);
    send(&run.child.id().to_string(), "-USR1");
    let (place, outcome) = run.end(PATIENCE);
    assert_eq!(place.events("run", "stopped").len(), 1, "{}", outcome.stderr);
    let last = place.checkpoints("run").pop().unwrap();
    assert_eq!(place.lines("run/metrics.jsonl").len() as u64, last);
    place.run(&["checkpoint", "verify", "run"]).succeeded();
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
}

#[test]
fn sums_beside_the_backward_pass_are_the_same_to_the_bit() {
    if !possible() {
        return;
    }
    let place = TestFolder::with_answers();
    // Two pairs for three ranks: one has no backward pass. A critic has groups of its own, an adapter makes small ones.
    let lora = ["--lora-r", "4"];
    for (algorithm, online, size, own, file) in [
        ("ppo", true, "4", &["--num-generations", "2"][..], "model.safetensors"),
        ("ppo", true, "4", &["--value-model", "shared", "--num-generations", "2"], "model.safetensors"),
        ("dpo", false, "2", &["--reduce-dtype", "bfloat16"], "model.safetensors"),
        ("dpo", false, "2", &lora, "adapter_model.safetensors"),
    ] {
        let name = |overlap: &str| format!("{algorithm}-{}-{overlap}", own[0]);
        for overlap in ["true", "false"] {
            let how = ["--overlap-comm", overlap, "--max-steps", "6", "--per-device-train-batch-size", size];
            run(&place, &name(overlap), 3, &[&arguments(algorithm, online, &how)[..], own].concat()).succeeded();
        }
        place.assert_same_end(&name("true"), &name("false"), 6, file);
    }
}

#[test]
fn a_swap_happens_at_one_step_on_all_ranks() {
    if !possible() {
        return;
    }
    let run = MpiRun::start(3, &[]);
    let swaps = |run: &MpiRun| fs::read_to_string(run.place.path("run/events.jsonl")).unwrap().matches("plugin_swapped").count();
    run.place.write("new.wasm", version(2));
    fs::rename(run.place.path("new.wasm"), run.place.path("versioned.wasm")).unwrap();
    run.wait(|| swaps(&run) == 1);
    let now = run.steps();
    run.wait(|| run.steps() > now + 2);
    // One that can't be used changes nothing.
    run.place.write("bad.wasm", b"\0asm\x0d\0\x01\0 and no more");
    fs::rename(run.place.path("bad.wasm"), run.place.path("versioned.wasm")).unwrap();
    let refused = |run: &MpiRun| fs::read_to_string(run.place.path("run/events.jsonl")).unwrap().contains("plugin_refused");
    run.wait(|| refused(&run));
    // Any rank may be told to stop.
    run.signal(2, "-TERM");
    let (place, outcome) = run.end(PATIENCE);
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    let step = place.events("run", "plugin_swapped")[0]["step"].as_u64().unwrap();
    for line in place.lines("run/metrics.jsonl") {
        // Of all ranks' completions: a mean of both versions would be neither.
        let want = if line["step"].as_u64().unwrap() <= step { 1.0 } else { 2.0 };
        let got = line["rewards/versioned/mean"].as_f64().unwrap();
        assert_eq!(got, want, "{line}");
    }
    let last = place.checkpoints("run").pop().unwrap();
    assert_eq!(place.lines("run/metrics.jsonl").len() as u64, last);
}

#[test]
fn a_rank_that_dies_takes_the_others_along() {
    if !possible() {
        return;
    }
    let run = MpiRun::start(3, &[]);
    run.signal(1, "-KILL");
    let (place, outcome) = run.end(LAUNCHERS);
    assert!(outcome.code.is_none_or(|code| code != 0), "{outcome:?}");
    assert!(outcome.stderr.contains("rank 1"), "{}", outcome.stderr);
    // What was saved is whole.
    place.run(&["checkpoint", "verify", "run"]).succeeded();
}

#[test]
fn a_rank_that_hangs_ends_the_run_after_the_stated_time() {
    if !possible() {
        return;
    }
    let run = MpiRun::start(3, &["--dist-timeout-s", "4"]);
    run.signal(2, "-STOP");
    let (_, outcome) = run.end(Duration::from_secs(4) + LAUNCHERS);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    // Whom, it knows unless the rank hangs between saying that it is there and saying what it has.
    let said = |whom: &str| outcome.stderr.contains(&format!("rank 0 has waited 4 s for {whom} ("));
    assert!(said("rank 2") || said("the other ranks"), "{}", outcome.stderr);
}
