//! Helpers of the tests: they run the binary in its own folder and read its output.

pub mod checkpoint;
mod child;
pub mod crafted;
pub mod families;
pub mod judge;
pub mod monitor;
pub mod mpi;
mod outcome;
pub mod server;
pub mod sglang;

pub use checkpoint::{flatten, seal};
pub use child::KilledOnDrop;
pub use outcome::{CommandOutcome, answers};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// Path of the plugin that misbehaves on request.
pub const HOSTILE: &str = env!("HOSTILE_WASM");

/// Path of the algorithm that misbehaves on request.
pub const CONTRARY: &str = env!("CONTRARY_WASM");

/// Path of the algorithm that chooses pairs, and misbehaves on request.
pub const CONTRARY_PAIRS: &str = env!("CONTRARY_PAIRS_WASM");

/// Path of the plugin whose scores depend on all that it has seen.
pub const REMEMBERING: &str = env!("REMEMBERING_WASM");

/// Path of the environment that misbehaves on request.
pub const UNRULY: &str = env!("UNRULY_WASM");

/// Path of the plugin that rewards with its version, which [`version`] changes.
pub const VERSIONED: &str = env!("VERSIONED_WASM");

/// Returns the bytes of a version of [`VERSIONED`].
///
/// # Panics
/// If the compiled file lacks the text to replace.
#[must_use]
pub fn version(number: u32) -> Vec<u8> {
    marked(VERSIONED, b"version=00000000", &format!("version={number:08}"))
}

/// Returns the bytes of a version of [`HOSTILE`] that misbehaves without settings; with a trailing `+`, once it has replaced another
/// version.
///
/// # Panics
/// If the compiled file lacks the text to replace.
#[must_use]
pub fn hostile(misdeed: &str) -> Vec<u8> {
    marked(HOSTILE, b"misdeed=none............................", &format!("misdeed={misdeed:.<32}"))
}

/// Returns the bytes of a version of [`CONTRARY`] or [`CONTRARY_PAIRS`] that misbehaves without settings; with a trailing `+`, from a
/// function's second call on.
///
/// # Panics
/// If the compiled file lacks the text to replace.
#[must_use]
pub fn contrary(plugin: &str, misdeed: &str) -> Vec<u8> {
    marked(plugin, b"contrary=none...........................", &format!("contrary={misdeed:.<31}"))
}

/// Returns the bytes of a version of [`UNRULY`] that misbehaves without settings, in episodes of all rows; with a trailing `+`, not in
/// those of a trial.
///
/// # Panics
/// If the compiled file lacks the text to replace.
#[must_use]
pub fn unruly(misdeed: &str) -> Vec<u8> {
    marked(UNRULY, b"unruly=none.....................", &format!("unruly={misdeed:.<25}"))
}

/// Returns the bytes of a compiled plugin after replacing a text.
fn marked(plugin: &str, mark: &[u8], text: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(plugin).expect("the plugin is built");
    let at = bytes.windows(mark.len()).position(|w| w == mark).expect("the compiled plugin has its mark");
    bytes[at..at + mark.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// Returns the path of the binary next to the test's own, which `cargo test` builds along with the host's tests.
///
/// # Panics
/// If it does not exist.
#[must_use]
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test.parent().and_then(Path::parent).expect("a test lies in target/<profile>/deps");
    let binary = profile.join(format!("rlhost{}", std::env::consts::EXE_SUFFIX));
    assert!(binary.exists(), "{} is missing: run `cargo test` from the workspace's root", binary.display());
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host");
    let crates = std::fs::read_dir(&host).expect("the host is there").map(|entry| entry.expect("an entry").path());
    let sources = crates.chain([host]).map(|path| path.join("src")).filter(|source| source.is_dir());
    let stale = sources.map(|source| newest(&source)).any(|newest| modified(&binary) < newest);
    assert!(!stale, "{} is older than its source: run `cargo test` from the workspace's root", binary.display());
    binary
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().and_then(|m| m.modified()).expect("files know when they were modified")
}

/// Returns when the newest file in a folder was modified, except unit tests, which are not part of the binary.
fn newest(folder: &Path) -> SystemTime {
    let entries = std::fs::read_dir(folder).expect("the source is there").map(|e| e.expect("an entry").path());
    entries
        .filter(|path| path.file_stem() != Some("tests".as_ref()))
        .map(|path| if path.is_dir() { newest(&path) } else { modified(&path) })
        .max()
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Short openings of stories, to be continued.
pub const STORIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/stories/prompts.jsonl");

/// Arguments for a tiny model and short prompts.
#[must_use]
pub fn small() -> [&'static str; 4] {
    ["--model", tiny(), "--dataset", STORIES]
}

/// Returns the folder of a model of 120 thousand random weights, with a token for each byte, created once per process.
///
/// # Panics
/// If it can't be created.
#[must_use]
pub fn tiny() -> &'static str {
    static FOLDER: OnceLock<(tempfile::TempDir, String)> = OnceLock::new();
    let make = || {
        let place = TestFolder::new();
        let config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 257,
            "max_position_embeddings": 192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
            "tie_word_embeddings": false, "torch_dtype": "float32",
        });
        place.write("config.json", config.to_string());
        place.write("corpus.jsonl", "{\"text\": \"nothing\"}");
        let from = ["--config", "config.json", "--corpus", "corpus.jsonl", "--vocab-size", "257"];
        place.run(&[&["new-model", "tiny"], &from[..]].concat()).succeeded();
        let path = place.path("tiny").display().to_string();
        (place.folder, path)
    };
    &FOLDER.get_or_init(make).1
}

/// A folder in which the binary runs.
pub struct TestFolder {
    folder: tempfile::TempDir,
}

impl Default for TestFolder {
    fn default() -> Self {
        Self::new()
    }
}

impl TestFolder {
    /// Creates an empty folder.
    ///
    /// # Panics
    /// If it can't be created.
    #[must_use]
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// Runs a shell script on a disk of this size (`64k`, `4m`), in its own mount namespace; `RLHOST` is the binary. Returns `None` if such
    /// namespaces are unavailable.
    ///
    /// # Panics
    /// If no shell can be started.
    #[must_use]
    pub fn on_disk(&self, room: &str, script: &str) -> Option<CommandOutcome> {
        let run = |script: &str| {
            let script = format!("mount -t tmpfs -o size={room} none . && cd \"$PWD\" && {script}");
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).env("RLHOST", binary());
            command.env("NO_COLOR", "1").env_remove("RUST_LOG").current_dir(self.path("")).output().ok().map(CommandOutcome::new)
        };
        run("true").filter(|tried| tried.code == Some(0)).and_then(|_| run(script))
    }

    /// Creates a folder with 32 pairs in `pairs.jsonl` and 32 answers in `answers.jsonl`, of unequal lengths.
    ///
    /// # Panics
    /// If it can't be created.
    #[must_use]
    pub fn with_answers() -> Self {
        let place = Self::new();
        let pair = |i: usize| {
            let (chosen, rejected) = ("ab".repeat(1 + i % 5), "xyz".repeat(1 + i % 3));
            format!("{{\"prompt\": \"q{i} {}\", \"chosen\": \" {chosen}\", \"rejected\": \" {rejected}\"}}\n", "k".repeat(i % 7))
        };
        place.write("pairs.jsonl", (0..32).map(pair).collect::<String>());
        let answer = |i: usize| match i % 2 {
            0 => format!("{{\"prompt\": \"q{i}\", \"completion\": \" {}\"}}\n", "ab".repeat(1 + i % 5)),
            _ => format!("{{\"text\": \"a whole text {}\"}}\n", "cd".repeat(i % 7)),
        };
        place.write("answers.jsonl", (0..32).map(answer).collect::<String>());
        place
    }

    /// Returns a path in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the sorted names of the folder's entries.
    ///
    /// # Panics
    /// If the folder can't be read.
    #[must_use]
    pub fn entries(&self) -> Vec<String> {
        names(self.folder.path())
    }

    /// Returns the sorted names of a subfolder's entries.
    ///
    /// # Panics
    /// If the folder can't be read.
    #[must_use]
    pub fn entries_of(&self, folder: &str) -> Vec<String> {
        names(&self.path(folder))
    }

    /// Writes a file.
    ///
    /// # Panics
    /// If it can't be written.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).expect("the file can be written");
    }

    /// Runs the binary with these arguments.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> CommandOutcome {
        self.run_with(arguments, &[])
    }

    /// Runs the binary with these arguments and environment variables.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> CommandOutcome {
        let mut command = Command::new(binary());
        command.current_dir(self.folder.path()).args(arguments).env_remove("RUST_LOG").env("NO_COLOR", "1");
        command.env("RLHOST_STATE_DIR", self.path(".state"));
        command.envs(variables.iter().copied());
        command.env("HF_HUB_OFFLINE", "1").env("HF_HUB_CACHE", self.path("hub"));
        CommandOutcome::new(command.output().expect("the binary starts"))
    }

    /// Trains a tiny model briefly on short prompts; `more` is appended to the arguments.
    ///
    /// # Panics
    /// If the binary can't be started.
    #[must_use]
    pub fn train(&self, run: &str, more: &[&str]) -> CommandOutcome {
        let mut arguments = small().to_vec();
        arguments.extend(["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "24", "--logging-steps", "1"]);
        arguments.extend(["--output-dir", run]);
        arguments.extend(more);
        self.run(&arguments)
    }

    /// Trains a tiny reward model for two steps. Its checkpoints are in `run`, its pairs in `pairs.jsonl`.
    ///
    /// # Panics
    /// If that fails.
    pub fn train_reward_model(&self, run: &str, more: &[&str]) {
        let pair = |i: usize| {
            let (chosen, rejected) = ("z".repeat(1 + i % 5), "ab".repeat(1 + i % 3));
            format!("{}\n", serde_json::json!({"prompt": format!("p{i}"), "chosen": chosen, "rejected": rejected}))
        };
        self.write("pairs.jsonl", (0..16).map(pair).collect::<String>());
        let train = ["reward", "--model", tiny(), "--dataset", "pairs.jsonl", "--output-dir", run, "--max-steps", "2"];
        self.run(&[&train[..], &["--learning-rate", "0.01"], more].concat()).succeeded();
    }

    /// Returns the output of `rlhost score` for each row.
    ///
    /// # Panics
    /// If that fails or is not JSON.
    #[must_use]
    pub fn score(&self, model: &str, dataset: &str) -> Vec<Value> {
        let outcome = self.run(&["score", model, "--dataset", dataset, "--json"]);
        outcome.succeeded().stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Starts the binary without waiting for it.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().expect("the binary starts")
    }

    /// Returns the command that runs the binary in this folder, without output.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.current_dir(self.folder.path()).args(arguments).env_remove("RUST_LOG").env("NO_COLOR", "1");
        command.env("RLHOST_STATE_DIR", self.path(".state"));
        command.env("HF_HUB_OFFLINE", "1").env("HF_HUB_CACHE", self.path("hub"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts the binary without waiting for it; the caller reads its output.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start_piped(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    }

    /// Starts the binary repeatedly, and kills it after each of these durations.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn kill_after_each(&self, arguments: &[&str], times: impl IntoIterator<Item = Duration>) {
        for time in times {
            let mut child = self.start(arguments);
            std::thread::sleep(time);
            child.kill().expect("a child can be killed");
            child.wait().expect("a child ends");
        }
    }

    /// Returns the command that runs the binary as this many processes of one run.
    #[must_use]
    pub fn ranks(&self, ranks: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new("mpirun");
        command.current_dir(self.folder.path()).env_remove("RUST_LOG").env("NO_COLOR", "1").env("RAYON_NUM_THREADS", "1");
        command.env("RLHOST_STATE_DIR", self.path(".state"));
        // In a container, a process may not read another's memory, about which Open MPI would print a message.
        command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
        // Two mpiruns that start at the same time can't both create the folder that they would share.
        command.env("OMPI_MCA_orte_tmpdir_base", self.folder.path());
        // A waiting rank must not keep the one that it waits for from a processor.
        command.env("OMPI_MCA_mpi_yield_when_idle", "1").args(["--bind-to", "none"]);
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]).arg(binary()).args(arguments);
        command
    }

    /// Runs the binary as this many processes of one run.
    ///
    /// # Panics
    /// If there is no `mpirun`.
    #[must_use]
    pub fn run_ranks(&self, ranks: usize, arguments: &[&str]) -> CommandOutcome {
        CommandOutcome::new(self.ranks(ranks, arguments).output().expect("mpirun starts"))
    }

    /// Copies a folder recursively.
    ///
    /// # Panics
    /// If it can't be read or written.
    pub fn copy(&self, from: &str, to: &str) {
        copy(&self.path(from), &self.path(to));
    }

    /// Copies a run in the state of its process dying after a step.
    ///
    /// # Panics
    /// If it can't be read or written.
    pub fn copy_as_after(&self, run: &str, step: u64, to: &str) {
        self.copy(run, to);
        for later in self.checkpoints(to).into_iter().filter(|later| *later > step) {
            let folder = self.path(to).join(format!("checkpoint-{later}"));
            std::fs::remove_dir_all(folder).expect("a checkpoint can be removed");
        }
    }

    /// Returns the steps of a run's current checkpoints.
    ///
    /// # Panics
    /// If its folder can't be read.
    #[must_use]
    pub fn checkpoints(&self, run: &str) -> Vec<u64> {
        let entries = std::fs::read_dir(self.path(run)).expect("the run has a folder").map(|e| e.expect("an entry").file_name());
        let mut steps: Vec<u64> = entries.filter_map(|name| name.to_str()?.strip_prefix("checkpoint-")?.parse().ok()).collect();
        steps.sort_unstable();
        steps
    }

    /// Returns the number of steps that a run has logged so far.
    #[must_use]
    pub fn steps(&self, run: &str) -> usize {
        let log = std::fs::read(self.path(run).join("metrics.jsonl")).unwrap_or_default();
        log.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Waits until a running run satisfies `done`.
    ///
    /// # Panics
    /// If that takes longer than `patience`; the message has the run's events so far.
    #[track_caller]
    pub fn wait(&self, run: &str, patience: Duration, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            let events = || std::fs::read_to_string(self.path(run).join("events.jsonl")).unwrap_or_default();
            assert!(begun.elapsed() < patience, "{}", events());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the events of one kind in a run, which may still be writing its last line.
    ///
    /// # Panics
    /// If the file is missing or has anything else.
    #[must_use]
    pub fn events(&self, run: &str, kind: &str) -> Vec<Value> {
        let mut events = self.finished_lines(&format!("{run}/events.jsonl"));
        events.retain(|e| e["event"] == kind);
        events
    }

    /// Returns the complete lines of a growing file of JSON lines.
    ///
    /// # Panics
    /// If it is missing or has anything else.
    #[must_use]
    pub fn finished_lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(name)).expect("the file is there");
        let finished = text.rfind('\n').map_or("", |end| &text[..end]);
        finished.lines().map(|l| serde_json::from_str(l).expect("a line of JSON")).collect()
    }

    /// Returns the lines of a file of JSON lines.
    ///
    /// # Panics
    /// If it is missing or has anything else.
    #[must_use]
    pub fn lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(name)).expect("the file is there");
        text.lines().map(|l| serde_json::from_str(l).expect("a line of JSON")).collect()
    }

    /// Returns the lines of a run's file without times.
    ///
    /// # Panics
    /// If it is missing or has anything but objects.
    #[must_use]
    pub fn lines_without_times(&self, file: &str) -> Vec<Value> {
        let mut lines = self.lines(file);
        for line in &mut lines {
            let of_time = |name: &str| ["step_time", "eps", "eval_runtime", "eval_samples_per_second"].contains(&name);
            let line = line.as_object_mut().expect("an object");
            line.retain(|name, _| !of_time(name) && !name.starts_with("time") && !name.starts_with("perf/"));
        }
        lines
    }

    /// Returns all metrics of a run's logged steps that are not times.
    ///
    /// # Panics
    /// If there are none, or one is not a number.
    #[must_use]
    pub fn figures(&self, run: &str) -> Vec<Vec<(String, f64)>> {
        let line = |line: &Value| {
            let figures = line.as_object().expect("an object").iter().filter(|(name, _)| *name != "versions");
            figures.map(|(name, v)| (name.clone(), v.as_f64().expect("a number"))).collect()
        };
        self.lines_without_times(&format!("{run}/metrics.jsonl")).iter().map(line).collect()
    }

    /// Returns the bytes of each tensor of a safetensors file.
    ///
    /// # Panics
    /// If it is missing or is not such a file.
    #[must_use]
    pub fn tensors(&self, file: &str) -> BTreeMap<String, Vec<u8>> {
        let bytes = std::fs::read(self.path(file)).expect("the file is there");
        let (length, rest) = bytes.split_at(8);
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
        let (header, data) = rest.split_at(length);
        let header: BTreeMap<String, Value> = serde_json::from_slice(header).expect("a header of JSON");
        let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
        let at = |tensor: &Value, i: usize| tensor["data_offsets"][i].as_u64().expect("an offset") as usize;
        tensors.map(|(name, tensor)| (name, data[at(&tensor, 0)..at(&tensor, 1)].to_vec())).collect()
    }

    /// Asserts that a run ended bit-identically to another: the file of its weights at a step, the moments, and everything logged except
    /// times.
    ///
    /// # Panics
    /// If it did not.
    pub fn assert_same_end(&self, got: &str, want: &str, step: u64, weights: &str) {
        let checkpoint = |run: &str| self.path(run).join(format!("checkpoint-{step}"));
        let trainer = std::fs::read_dir(checkpoint(want).join("trainer")).expect("the checkpoint is there");
        let names = trainer.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned());
        let moments: Vec<String> =
            names.filter(|name| name.starts_with("optimizer")).map(|name| format!("trainer/{name}")).collect();
        assert!(!moments.is_empty(), "{want}: no moments");
        for file in std::iter::once(weights).chain(moments.iter().map(String::as_str)) {
            let bytes = |run: &str| std::fs::read(checkpoint(run).join(file)).expect("the file is there");
            assert!(bytes(got) == bytes(want), "{got}: {file} differs");
        }
        for file in ["metrics.jsonl", "completions.jsonl"] {
            assert_eq!(
                self.lines_without_times(&format!("{got}/{file}")),
                self.lines_without_times(&format!("{want}/{file}")),
                "{got}: {file}"
            );
        }
    }

    /// Asserts that a copy of a run, resumed from its checkpoint of a step, ends as the run did. See [`Self::assert_same_end`].
    ///
    /// # Panics
    /// If it does not.
    pub fn assert_resumes(&self, run: &str, step: u64, end: u64, weights: &str) {
        let again = format!("{run}-from-{step}");
        self.copy(run, &again);
        self.run(&["resume", &again, "--step", &step.to_string()]).succeeded();
        self.assert_same_end(&again, run, end, weights);
    }

    /// Returns one metric of every logged step of a run.
    ///
    /// # Panics
    /// If a step lacks it.
    #[must_use]
    pub fn figure(&self, run: &str, name: &str) -> Vec<f64> {
        self.lines(&format!("{run}/metrics.jsonl"))
            .iter()
            .map(|l| l[name].as_f64().unwrap_or_else(|| panic!("no {name} in {l}")))
            .collect()
    }
}

/// Asserts that the metrics of two runs are equal to 1e-5.
///
/// # Panics
/// If one differs, or is missing in either.
pub fn assert_near(got: &[Vec<(String, f64)>], want: &[Vec<(String, f64)>], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want.iter()) {
        let names = |line: &[(String, f64)]| line.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
        assert_eq!(names(got), names(want), "{what}");
        for ((name, got), (_, want)) in got.iter().zip(want) {
            // Small values are compared absolutely, because they may be differences of nearly equal numbers.
            let near = (got - want).abs() <= 1e-5 * want.abs().max(0.1);
            assert!(near, "{what}: {name} is {got} and not {want}");
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<String> = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the folder can be made");
    for entry in std::fs::read_dir(from).expect("the folder is there").map(|e| e.expect("an entry")) {
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("the file can be copied");
        }
    }
}
