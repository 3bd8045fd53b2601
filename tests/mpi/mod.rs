//! Runs of several processes, compared with runs of one.

#![allow(clippy::print_stdout)]

use crate::{CommandOutcome, STORIES, TestFolder, assert_near, tiny};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// An algorithm, or a run's name and the algorithm after a colon, with its own arguments.
pub type AlgorithmCase<'a> = (&'a str, &'a [&'a str]);

/// Number of processes, and the batch size of each.
pub type RankLayout<'a> = (usize, &'a str);

/// Returns the reason why multi-process tests can't run, if they can't: no `mpirun`, or a binary without the feature, which is then checked
/// to say so.
fn missing() -> Option<String> {
    if Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_err() {
        return Some("there is no mpirun".into());
    }
    let place = TestFolder::new();
    let outcome = place.run_ranks(2, &["--plugin", "no_such_reward.wasm"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    if outcome.stderr.contains("no_such_reward") {
        return None;
    }
    assert!(outcome.stderr.contains("built without MPI"), "{}", outcome.stderr);
    Some("the binary was built without MPI".into())
}

/// Returns whether multi-process tests can run; prints the reason if not.
///
/// # Panics
/// If `mpirun` can't start the binary, or if they can't run and `RLHOST_REQUIRE_RANKS` is set.
#[must_use]
pub fn possible() -> bool {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let missing = MISSING.get_or_init(missing);
    if let Some(reason) = missing {
        assert!(std::env::var_os("RLHOST_REQUIRE_RANKS").is_none(), "the tests of several processes are required: {reason}");
        println!("skipped: {reason}");
    }
    missing.is_none()
}

/// Runs the binary with `ranks` processes, or, for one, without `mpirun`.
///
/// # Panics
/// If it can't be started.
#[must_use]
pub fn run(place: &TestFolder, name: &str, ranks: usize, arguments: &[&str]) -> CommandOutcome {
    let common = ["--output-dir", name, "--model", tiny(), "--logging-steps", "1"];
    let all = [arguments, &common[..]].concat();
    if ranks == 1 { place.run(&all) } else { place.run_ranks(ranks, &all) }
}

/// Returns the arguments of a short run of an algorithm, on prompts if it is `online` and otherwise on pairs.
#[must_use]
pub fn arguments<'a>(algorithm: &'a str, online: bool, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["--algorithm", algorithm, "--learning-rate", "0.0003"];
    if algorithm == "ppo" {
        all.extend(["--critic-learning-rate", "0.0003"]);
    }
    if online {
        all.extend(["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "12", "--dataset", STORIES]);
        // Some completions end earlier.
        all.extend(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"].iter().flat_map(|stop| ["--stop", stop]));
    } else {
        all.extend(["--dataset", "pairs.jsonl"]);
    }
    all.extend(more);
    all
}

/// Asserts that two runs logged the same metrics.
///
/// # Panics
/// If they did not.
pub fn same_figures(place: &TestFolder, run: &str, wanted: &str) {
    assert_near(&place.figures(run), &place.figures(wanted), run);
}

/// Returns the tensors, by name, of a safetensors file given without its extension, or of the files that ranks wrote instead.
fn all_tensors(place: &TestFolder, stem: &str) -> BTreeMap<String, Vec<u8>> {
    let (folder, name) = stem.rsplit_once('/').expect("a file in a folder");
    let is_part = |file: &str| file == format!("{name}.safetensors") || file.starts_with(&format!("{name}-0"));
    let files = fs::read_dir(place.path(folder)).into_iter().flatten().filter_map(Result::ok);
    let files = files.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|file| is_part(file));
    files.flat_map(|file| place.tensors(&format!("{folder}/{file}"))).collect()
}

/// Asserts that two runs have the same weights after a step, to 1e-5.
///
/// # Panics
/// If they don't.
pub fn same_weights(place: &TestFolder, run: &str, wanted: &str, step: u64) {
    let read = |run: &str| -> Vec<f32> {
        let checkpoint = format!("{run}/checkpoint-{step}");
        let stems =
            ["adapter_model", "model", "trainer/value_model/adapter_model", "trainer/value_model/model", "trainer/critic"];
        let tensors: Vec<_> = stems.iter().flat_map(|stem| all_tensors(place, &format!("{checkpoint}/{stem}"))).collect();
        tensors
            .iter()
            .map(|(_, bytes)| bytes)
            .flat_map(|bytes| bytes.as_chunks().0)
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect()
    };
    let (got, want) = (read(run), read(wanted));
    assert_eq!(got.len(), want.len());
    let furthest = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest < 1e-5, "{run}: a weight is {furthest} away");
}

/// Runs each case with each layout, and compares it with the first layout, which has one process.
///
/// # Panics
/// If a run fails, or differs.
pub fn compare(cases: &[AlgorithmCase<'_>], online: bool, cuts: &[RankLayout<'_>], more: &[&str]) {
    compare_in(&TestFolder::with_answers(), cases, online, cuts, more);
}

/// Runs each case with each layout in a folder with data, and compares it with the first layout. The run of one process has the case's name
/// with the suffix `-1`.
///
/// # Panics
/// If a run fails, or differs.
pub fn compare_in(place: &TestFolder, cases: &[AlgorithmCase<'_>], online: bool, cuts: &[RankLayout<'_>], more: &[&str]) {
    for (case, own) in cases {
        let (case, algorithm) = case.split_once(':').unwrap_or((case, case));
        let name = |ranks: usize| format!("{case}-{ranks}");
        for (ranks, size) in cuts {
            let cut = ["--per-device-train-batch-size", size];
            let all = [&arguments(algorithm, online, own)[..], more, &cut].concat();
            run(place, &name(*ranks), *ranks, &all).succeeded();
            if *ranks > 1 {
                same_figures(place, &name(*ranks), &name(1));
                let last = place.checkpoints(&name(1)).pop().expect("a run leaves a checkpoint");
                same_weights(place, &name(*ranks), &name(1), last);
            }
        }
    }
}

/// Returns the process id of a rank that `mpirun` started.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn process(mpirun: &Child, rank: usize) -> String {
    let is_ours = |status: &str| status.lines().any(|line| line == format!("PPid:\t{}", mpirun.id()));
    for entry in fs::read_dir("/proc").expect("Linux has it").filter_map(Result::ok) {
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let variable = format!("OMPI_COMM_WORLD_RANK={rank}");
        let named = read("environ").split(|byte| *byte == 0).any(|v| v == variable.as_bytes());
        if named && is_ours(&String::from_utf8_lossy(&read("status"))) {
            return entry.file_name().to_string_lossy().into_owned();
        }
    }
    panic!("rank {rank} has no process");
}

/// Sends a signal, such as `-TERM`, to a process.
///
/// # Panics
/// If there is no such process.
pub fn send(process: &str, signal: &str) {
    assert!(Command::new("kill").args([signal, process]).status().expect("there is a kill").success());
}

/// Compiles the library that kills or delays a rank within a call, if there is a C compiler; otherwise prints why not.
///
/// # Panics
/// If it can't be compiled and `RLHOST_REQUIRE_RANKS` is set.
#[must_use]
pub fn interceptor(place: &TestFolder) -> Option<String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/mpi/kill_at.c");
    let library = place.path("kill_at.so").display().to_string();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, source, "-ldl"]).status();
    match compiled {
        Ok(status) if status.success() => Some(library),
        failed => {
            assert!(std::env::var_os("RLHOST_REQUIRE_RANKS").is_none(), "cc can't compile {source}: {failed:?}");
            println!("skipped: cc can't compile {source}: {failed:?}");
            None
        }
    }
}
