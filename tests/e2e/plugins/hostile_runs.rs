//! One list of misdeeds, and each of the places in which a plugin is listened to: the start of a run, a step, an evaluation, and a
//! swap into a run under way. Each is refused or contained by name, and takes neither the run's memory nor its files.

// Figures for SECURITY.md.
#![allow(clippy::print_stdout)]

use rlhost_tests::crafted::{NO_SCORES, bomb, core_reward, core_reward_with, deep, long, multiplied};
use rlhost_tests::monitor::{MEMORY, MeasuredOutcome, MonitoredRun, assert_ended, assert_finite, assert_ordinary, run_monitored};
use rlhost_tests::{CommandOutcome, HOSTILE, STORIES, TestFolder, hostile, small};
use std::fs;

/// What a plugin does.
enum PluginMisdeed {
    /// A misdeed of the hostile plugin, by its name, when it scores.
    Scoring(&'static str),
    /// A misdeed of the hostile plugin, by its name, when it is asked for its state.
    State(&'static str),
    /// A misdeed of the hostile plugin, by its name, when it takes over a state, which only a swap or a resume does.
    Restoring(&'static str),
    /// A misdeed of the hostile plugin, by its name, before it is asked for anything.
    Loading(&'static str),
    /// A file that can't be loaded.
    File(fn() -> Vec<u8>),
    /// A file that fails when it is told of figures.
    Observing(fn() -> Vec<u8>),
    /// A deed of the hostile plugin, by its name, that does no harm.
    Harmless(&'static str),
    /// A harmless deed of the hostile plugin, by its name, that fills the log up to its limit.
    Flooding(&'static str),
}

use PluginMisdeed::{File, Flooding, Harmless, Loading, Observing, Restoring, Scoring, State};

/// What is said of a call that takes too long.
const TOO_LONG: &str = "longer than its limit of 0.5 s";

/// Name, misdeed, and a part of what is said of it.
const MISDEEDS: &[(&str, PluginMisdeed, &str)] = &[
    // Time.
    ("computing for ever", Scoring("endless_loop"), TOO_LONG),
    ("asking the host for ever", Scoring("clock_loop"), TOO_LONG),
    ("sleeping for ever", Scoring("sleep_on"), TOO_LONG),
    ("sleeping once", Harmless("sleep"), ""),
    ("polling for ever", Scoring("poll"), TOO_LONG),
    ("a start function for ever", File(endless_start), TOO_LONG),
    ("describing for ever", Loading("describe_loop"), "describe: took longer than its limit of 0.5 s"),
    ("configuring for ever", Loading("configure_loop"), "configure: took longer than its limit of 0.5 s"),
    ("a state for ever", State("snapshot_loop"), TOO_LONG),
    ("taking over a state for ever", Restoring("restore_loop"), TOO_LONG),
    ("observing for ever", Observing(endless_observer), TOO_LONG),
    // Size.
    ("memory", Scoring("memory_bomb"), "more than its 32 MiB of memory (limits.memory_mb)"),
    ("the stack", Scoring("recursion"), ""),
    ("a table", File(large_table), "a table of more than"),
    ("handles", Scoring("handles"), ""),
    ("an answer", Scoring("huge_return"), ""),
    ("random bytes", Scoring("entropy"), "1073741824 random bytes"),
    ("an error", Scoring("long_error"), "bytes more)"),
    ("a line of the log", Harmless("long_log"), ""),
    ("figures", Scoring("many_figures"), "limit of 256 metrics"),
    ("a figure's name", Scoring("long_figure"), "1 to 128 printable bytes"),
    ("a description", Harmless("long_description"), ""),
    ("a schema", File(large_schema), "300013 bytes"),
    ("a state", State("huge_state"), "more than its 32 MiB"),
    ("the file", File(large_file), "larger than the limit of 64 MiB"),
    ("instances that multiply", File(multiplied), "including nested ones"),
    ("instances that refer to their functions", File(bomb), "of memory besides its memories and tables"),
    ("types in types", File(deep), "nested too deeply"),
    ("compiling", File(long), "limits.compile_timeout_s"),
    // Meaning.
    ("too few scores", Scoring("wrong_length"), "rewards for"),
    ("no number", Scoring("nan"), "NaN for row 1"),
    ("an infinite number", Scoring("infinity"), "inf for row 1"),
    ("the run's step", Scoring("take_step"), "\"step\" is reserved for the run"),
    ("the run's loss", Scoring("take_loss"), "\"loss\" is reserved for the run"),
    ("another's score", Scoring("take_score"), "is reserved for the run"),
    ("a figure that is no number", Scoring("nan_figure"), "has value NaN"),
    ("a figure that its weight makes infinite", Scoring("heavy_figure"), "weight 1e300"),
    ("a figure whose sum is infinite", Scoring("huge_figure"), "value 1.7e308 and weight 1.0; the limit of both is 1e100"),
    ("figures whose weights have an infinite sum", Scoring("huge_weight"), "weight 1.7e308; the limit of both is 1e100"),
    ("the share of prompts solved", Scoring("take_pass"), "\"pass@1\" is reserved for the run"),
    ("the algorithm's figure", Scoring("take_entropy"), "\"entropy\" is reserved for the run"),
    ("another plugin's figure", Scoring("take_figure"), "\"frac_reward_zero_std\" is reserved for the run and its algorithm"),
    ("a score too large to add up", Scoring("huge_score"), "3.4028235e38 for row 1"),
    ("a schema that multiplies with its default", File(multiplying_schema), "steps to check this configuration"),
    ("a schema in circles that lead through parts", File(hidden_circle), "refers to itself"),
    ("a choice that is like no other", File(slow_choices), "is not one of"),
    ("patterns that take memory", File(large_patterns), "not a JSON Schema"),
    ("a schema in circles", File(circular_schema), "refers to itself"),
    ("a schema that leads outside", File(foreign_schema), "not in the schema"),
    ("a default that TOML does not hold", File(large_default), "configuration key a"),
    // Output.
    ("an error that draws", Scoring("forge"), "\\u{1b}[2J\\r\\n INFO checkpoint saved\\u{202e}"),
    ("a figure that draws", Scoring("forge_figure"), "1 to 128 printable bytes"),
    ("a line of the log that draws", Harmless("forge_log"), ""),
    ("a log without end", Flooding("flood_log"), ""),
    ("an export that draws", File(drawing_export), "\\u{1b}[2J"),
    // Ending, and reaching outside.
    ("a trap", Scoring("trap"), "the plugin panicked on purpose"),
    ("an exit", Scoring("exit"), "it called exit"),
    ("an error of its own", Scoring("refuse"), "no such batch for me"),
    ("a file's content", Scoring("read_file"), "reading a file gave Err"),
    ("the environment", Scoring("read_environment"), "(0, 0)"),
    ("a connection", Scoring("connect"), "a connection gave Err"),
];

fn endless_start() -> Vec<u8> {
    core_reward("(func $endless (loop $again (br $again))) (start $endless)", NO_SCORES)
}

fn endless_observer() -> Vec<u8> {
    let observe = r#"(func (export "rlhost:plugin/observer@0.1.0#observe") (param i64 i32 i32) (loop $again (br $again)))"#;
    core_reward(observe, NO_SCORES)
}

fn large_table() -> Vec<u8> {
    core_reward("(table 90000000 funcref)", NO_SCORES)
}

fn large_schema() -> Vec<u8> {
    core_reward_with("", NO_SCORES, &format!("{{\"title\": {:?}}}", "x".repeat(300_000)))
}

fn circular_schema() -> Vec<u8> {
    core_reward_with("", NO_SCORES, r##"{"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}}"##)
}

fn multiplying_schema() -> Vec<u8> {
    let nested = format!("{}0{}", "[".repeat(30), "]".repeat(30));
    let both = r##"[{"$ref": "#/$defs/R"}, {"$ref": "#/$defs/R"}]"##;
    let a = format!(r##"{{"$ref": "#/$defs/R", "default": {nested}}}"##);
    let schema = format!(r##"{{"properties": {{"a": {a}}}, "$defs": {{"R": {{"items": {{"allOf": {both}}}}}}}}}"##);
    core_reward_with("", NO_SCORES, &schema)
}

fn hidden_circle() -> Vec<u8> {
    let to = |name: &str| format!(r##"{{"$ref": "#/$defs/{name}"}}"##);
    let (p, x) = (to("P"), to("X"));
    let definitions = format!(r#"{{"P": {x}, "X": {{"items": {p}, "allOf": [{p}]}}}}"#);
    core_reward_with("", NO_SCORES, &format!(r#"{{"properties": {{"a": {x}}}, "$defs": {definitions}}}"#))
}

fn large_patterns() -> Vec<u8> {
    let property = |i: usize| format!(r#""a{i}": {{"type": "string", "default": "x", "pattern": "\\p{{L}}{{200}}a{i}"}}"#);
    let properties: Vec<String> = (0..60).map(property).collect();
    core_reward_with("", NO_SCORES, &format!(r#"{{"properties": {{{}}}}}"#, properties.join(", ")))
}

fn foreign_schema() -> Vec<u8> {
    core_reward_with("", NO_SCORES, r#"{"properties": {"a": {"$ref": "file:///etc/passwd"}}}"#)
}

/// A default that is none of its choices, both as long as a schema can be.
fn slow_choices() -> Vec<u8> {
    let [given, choice] = ["x", "y"].map(|c| c.repeat(120_000));
    core_reward_with("", NO_SCORES, &format!(r#"{{"properties": {{"a": {{"default": "{given}", "enum": ["{choice}"]}}}}}}"#))
}

fn large_default() -> Vec<u8> {
    core_reward_with("", NO_SCORES, r#"{"properties": {"a": {"default": 18446744073709551615}}}"#)
}

fn large_file() -> Vec<u8> {
    [core_reward("", NO_SCORES), vec![0; 65 << 20]].concat()
}

fn drawing_export() -> Vec<u8> {
    core_reward(r#"(func (export "rlhost:plugin/reward@9.0.0#\1b[2J\u{202e}\0a INFO forged"))"#, NO_SCORES)
}

const LIMITS: [&str; 6] = [
    "--set",
    "plugin.hostile.limits.memory_mb=32",
    "--set",
    "plugin.hostile.limits.call_timeout_s=0.5",
    "--set",
    "plugin.hostile.limits.compile_timeout_s=10",
];

/// Arguments of a run of three steps with the plugin in `hostile.wasm`.
fn three_steps(more: &[&str]) -> Vec<String> {
    let plugins = ["--plugin", "tldr_length_reward.wasm", "--plugin", "hostile.wasm"];
    let run = ["--max-completion-length", "8", "--max-steps", "3", "--logging-steps", "1", "--output-dir", "run"];
    [&small()[..], &plugins, &run, &LIMITS, more].concat().into_iter().map(str::to_owned).collect()
}

/// The plugin's file for a misdeed, and the settings that make it misbehave from a step on.
fn file_and_settings(misdeed: &PluginMisdeed, from: u64) -> (Vec<u8>, Vec<String>) {
    let plain = || fs::read(HOSTILE).unwrap();
    match misdeed {
        Scoring(name) | State(name) => {
            let set = |text: String| ["--set".to_owned(), format!("plugin.hostile.config.{text}")];
            (plain(), [set(format!("misdeed={name:?}")), set(format!("from_step={from}"))].concat())
        }
        Loading(name) | Restoring(name) | Harmless(name) | Flooding(name) => (hostile(name), Vec::new()),
        File(make) | Observing(make) => (make(), Vec::new()),
    }
}

/// Does something with each misdeed in a place of its own, and prints the most memory that was taken beyond the same run without
/// any.
fn each(
    place_name: &str,
    from: u64,
    arguments: impl Fn(&PluginMisdeed) -> Option<Vec<String>>,
    check: impl Fn(&str, &PluginMisdeed, &str, &TestFolder, &CommandOutcome),
) {
    let run = |misdeed: &PluginMisdeed, arguments: Vec<String>| {
        let place = TestFolder::new();
        let (file, settings) = file_and_settings(misdeed, from);
        place.write("hostile.wasm", file);
        let prompts = fs::read_to_string(STORIES).unwrap();
        place.write("prompts.jsonl", prompts.lines().take(8).map(|line| format!("{line}\n")).collect::<String>());
        let arguments = [arguments, settings].concat();
        let monitored = run_monitored(&place, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        (place, monitored)
    };
    let none = Scoring("none");
    let (place, calm) = run(&none, arguments(&none).unwrap());
    calm.outcome.succeeded();
    assert_finite(&place, "none");
    let mut most = (0, "", 0, "");
    let mut tried = 0;
    for (what, misdeed, says) in MISDEEDS {
        let Some(arguments) = arguments(misdeed) else { continue };
        let (place, MeasuredOutcome { outcome, peak }) = run(misdeed, arguments);
        tried += 1;
        let beyond = peak.0.saturating_sub(calm.peak.0);
        assert!(beyond < MEMORY, "{what}: {} MiB beyond {} MiB", beyond >> 20, calm.peak.0 >> 20);
        assert!(peak.1 < MEMORY, "{what}: {} MiB to compile it", peak.1 >> 20);
        most = if beyond > most.0 { (beyond, what, most.2, most.3) } else { most };
        most = if peak.1 > most.2 { (most.0, most.1, peak.1, what) } else { most };
        check(what, misdeed, says, &place, &outcome);
        assert_ordinary(&place, what);
    }
    let (beyond, what, compiling, compiled) = (most.0 >> 20, most.1, most.2 >> 20, most.3);
    let calm = calm.peak.0 >> 20;
    println!(
        "{place_name}: {tried} misdeeds; most beyond {calm} MiB: {beyond} MiB ({what}); most to compile: {compiling} MiB ({compiled})"
    );
}

fn assert_harmless(what: &str, place: &TestFolder, outcome: &CommandOutcome) {
    outcome.succeeded();
    assert_finite(place, what);
    let lines = place.lines("run/metrics.jsonl");
    assert!(lines.iter().filter_map(|line| line.get("plugins/hostile/errors")).all(|errors| *errors == 0.0), "{what}");
}

#[test]
fn at_the_start_each_is_refused_before_the_run_has_a_folder() {
    // Nobody asks for a state, hands one over, or tells of figures, before there are some.
    let comes = |misdeed: &PluginMisdeed| !matches!(misdeed, State(_) | Restoring(_) | Observing(_));
    let arguments = |misdeed: &PluginMisdeed| comes(misdeed).then(|| three_steps(&[]));
    each("start", 0, arguments, |what, misdeed, says, place, outcome| match misdeed {
        Harmless(_) | Flooding(_) => assert_harmless(what, place, outcome),
        _ => {
            assert_eq!(outcome.code, Some(2), "{what}: {}", outcome.stderr);
            let call = if matches!(misdeed, Scoring(_)) { "plugin hostile, score in step 1" } else { "hostile" };
            assert!(outcome.error().contains(call) && outcome.error().contains(says), "{what}: {}", outcome.error());
            assert!(!place.path("run").exists(), "{what}");
        }
    });
}

#[test]
fn in_a_step_each_ends_the_run_after_a_checkpoint() {
    // What can't be loaded does not come to a step.
    let comes = |misdeed: &PluginMisdeed| !matches!(misdeed, Loading(_) | Restoring(_) | File(_) | Harmless(_) | Flooding(_));
    let arguments = |misdeed: &PluginMisdeed| comes(misdeed).then(|| three_steps(&[]));
    each("step", 1, arguments, |what, misdeed, says, place, outcome| {
        assert_ended(what, says, place, outcome);
        let score = outcome.error().contains("plugin hostile, score in step 2");
        assert!(score || !matches!(misdeed, Scoring(_)), "{what}: {}", outcome.error());
    });
}

#[test]
fn in_an_evaluation_each_costs_nothing_of_what_was_learned() {
    let arguments = |misdeed: &PluginMisdeed| match misdeed {
        Observing(_) | Restoring(_) => None,
        Loading(_) | File(_) => {
            let plugin = ["eval", "--plugin", "hostile.wasm", "--max-completion-length", "8"];
            Some([&plugin[..], &small(), &LIMITS].concat().into_iter().map(str::to_owned).collect())
        }
        // After the last of three steps: training has no more to score.
        _ => Some(three_steps(&["--eval-dataset", "prompts.jsonl", "--eval-steps", "3"])),
    };
    each("evaluation", 3, arguments, |what, misdeed, says, place, outcome| match misdeed {
        Harmless(_) | Flooding(_) => assert_harmless(what, place, outcome),
        Loading(_) | File(_) => {
            assert_eq!(outcome.code, Some(2), "{what}: {}", outcome.stderr);
            assert!(outcome.error().contains("hostile") && outcome.error().contains(says), "{what}: {}", outcome.error());
        }
        _ => {
            assert_ended(what, says, place, outcome);
            assert!(outcome.error().contains("plugin hostile, s"), "{what}: {}", outcome.error());
            assert_eq!(place.checkpoints("run"), [3], "{what}");
            assert_eq!(place.figure("run", "loss").len(), 3, "{what}");
        }
    });
}

/// A run under way with a plugin that does nothing wrong.
fn running() -> MonitoredRun {
    let place = TestFolder::new();
    place.write("hostile.wasm", fs::read(HOSTILE).unwrap());
    let plugins = ["--plugin", "tldr_length_reward.wasm", "--plugin", "hostile.wasm"];
    let size = ["--max-completion-length", "24", "--per-device-train-batch-size", "16"];
    MonitoredRun::start(place, "hostile", &[&small()[..], &plugins, &size, &LIMITS].concat())
}

#[test]
fn as_a_swap_each_is_refused_in_its_trial() {
    let mut running = running();
    for (what, misdeed, says) in MISDEEDS {
        match misdeed {
            Scoring(name) | State(name) | Restoring(name) | Loading(name) => running.assert_refused(what, &hostile(name), says),
            File(make) => running.assert_refused(what, &make(), says),
            Harmless(_) | Flooding(_) | Observing(_) => {}
        }
    }
    running.end("trials");
}

#[test]
fn as_a_swap_each_that_passed_its_trial_gives_its_place_back() {
    let mut running = running();
    for (what, misdeed, says) in MISDEEDS {
        match misdeed {
            Scoring(name) | State(name) => running.assert_rolled_back(what, &hostile(&format!("{name}+")), says),
            Observing(make) => running.assert_rolled_back(what, &make(), says),
            Harmless(name) | Flooding(name) => {
                running.assert_swapped(what, &hostile(name));
                running.assert_swapped(what, &fs::read(HOSTILE).unwrap());
            }
            Loading(_) | File(_) | Restoring(_) => {}
        }
    }
    running.end("swaps");
}

#[test]
fn a_plugin_that_takes_all_memory_on_many_threads_takes_less_than_a_gigabyte() {
    // By its limits of memory as they are if nobody sets them, and rows enough for eight instances side by side.
    let run = |misdeed: &str| {
        let place = TestFolder::new();
        let plugins = ["--plugin", "tldr_length_reward.wasm", "--plugin", HOSTILE, "--num-threads", "8"];
        let size =
            ["--per-device-train-batch-size", "128", "--max-completion-length", "4", "--max-steps", "2", "--output-dir", "run"];
        let settings = [format!("plugin.hostile.config.misdeed={misdeed:?}"), "plugin.hostile.config.from_step=1".into()];
        // The rows are tried one by one too, and all together have the time of one call.
        let time = "plugin.hostile.limits.call_timeout_s=8";
        let settings = ["--set", &settings[0], "--set", &settings[1], "--set", time];
        let monitored = run_monitored(&place, &[&small()[..], &plugins, &size, &settings].concat());
        (place, monitored)
    };
    let (_, calm) = run("none");
    calm.outcome.succeeded();
    let (place, bomb) = run("memory_bomb");
    assert_ended("memory", "(limits.", &place, &bomb.outcome);
    let beyond = bomb.peak.0.saturating_sub(calm.peak.0);
    println!("{} MiB beyond {} MiB", beyond >> 20, calm.peak.0 >> 20);
    assert!(beyond < 1_000_000_000, "{} MiB beyond {} MiB", beyond >> 20, calm.peak.0 >> 20);
}
