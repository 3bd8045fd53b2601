//! Plugins that misbehave: contained, named, and what was learned is kept. `hostile_runs.rs` has the whole list of misdeeds.

use rlhost_tests::crafted::{NO_SCORES, core_reward, core_reward_with, deep, long, multiplied};
use rlhost_tests::{CommandOutcome, HOSTILE, STORIES, TestFolder, small, tiny};
use std::fs;
use std::time::{Duration, Instant};

fn hostile(place: &TestFolder, misdeed: &str, more: &[&str]) -> CommandOutcome {
    let misdeed = format!("plugin.hostile.config.misdeed={misdeed:?}");
    let limits = ["--set", "plugin.hostile.limits.memory_mb=32", "--set", "plugin.hostile.limits.call_timeout_s=0.3"];
    let plugins = ["--plugin", "tldr_length_reward.wasm", "--plugin", HOSTILE];
    let run = ["--max-completion-length", "8", "--max-steps", "3", "--logging-steps", "1", "--output-dir", "run"];
    place.run(&[&small()[..], &plugins, &run, &["--set", &misdeed], &limits, more].concat())
}

/// From the second step on, after a dry run and a step that went well.
const LATER: [&str; 2] = ["--set", "plugin.hostile.config.from_step=1"];

const UNSCORABLE: [&str; 2] = ["--set", "plugin.hostile.on_error=unscorable"];

#[test]
fn each_misdeed_leaves_the_other_reward_and_the_run_unharmed_where_errors_cost_rows_alone() {
    for misdeed in ["endless_loop", "memory_bomb", "recursion", "wrong_length", "huge_return", "trap", "exit", "connect"] {
        let place = TestFolder::new();
        let outcome = hostile(&place, misdeed, &[&LATER[..], &UNSCORABLE].concat());
        outcome.succeeded();
        assert_eq!(place.figure("run", "plugins/hostile/errors"), [0.0, 8.0, 8.0], "{misdeed}");
        assert_eq!(place.figure("run", "plugins/tldr_length_reward/errors"), [0.0, 0.0, 0.0], "{misdeed}");
        assert_eq!(place.figure("run", "rewards/tldr_length_reward/mean").len(), 3, "{misdeed}");
        let errors = place.events("run", "plugin_error");
        assert!(errors.len() == 2 && errors[0]["plugin"] == "hostile", "{misdeed}: {errors:?}");
    }
}

#[test]
fn what_fails_in_an_evaluation_alone_costs_nothing_that_was_learned() {
    // After the last of three steps: training has no more to score.
    let evaluated = ["--eval-dataset", STORIES, "--eval-steps", "3", "--set", "plugin.hostile.config.from_step=3"];
    let place = TestFolder::new();
    hostile(&place, "trap", &[&evaluated[..], &UNSCORABLE].concat()).succeeded();
    assert_eq!(place.lines("run/metrics.jsonl").iter().filter(|line| line.get("loss").is_some()).count(), 3);
}

#[test]
fn a_plugin_that_sleeps_wakes_at_once() {
    let place = TestFolder::new();
    hostile(&place, "sleep", &[&LATER[..], &UNSCORABLE].concat()).succeeded();
    assert_eq!(place.figure("run", "plugins/hostile/errors"), [0.0, 0.0, 0.0]);
}

#[test]
fn a_row_that_fails_costs_one_row() {
    let place = TestFolder::new();
    hostile(&place, "trap_on_rows", &[&LATER[..], &UNSCORABLE, &["--log-completions", "all"]].concat()).succeeded();
    let mut unscored = 0;
    for line in place.lines("run/completions.jsonl") {
        let unbearable = line["completion_ids"][0].as_u64().unwrap() % 4 == 0 && line["step"] != 0;
        assert_eq!(line["rewards"]["hostile"].is_null(), unbearable, "{line}");
        unscored += i32::from(unbearable);
    }
    assert!((1..16).contains(&unscored), "choose another seed: {unscored} of 16 rows fail");
    assert_eq!(place.figure("run", "plugins/hostile/errors").iter().sum::<f64>(), f64::from(unscored));
    let events = place.events("run", "plugin_error");
    assert!(events[0]["row_reasons"][0].as_str().unwrap().contains("can't bear"), "{events:?}");

    let strict = TestFolder::new();
    let ended = hostile(&strict, "trap_on_rows", &LATER);
    assert_eq!(ended.code, Some(1));
    assert!(ended.error().contains("is the first that fails on its own"), "{}", ended.error());
}

#[test]
fn a_failure_that_does_not_come_again_costs_nothing() {
    let (place, calm) = (TestFolder::new(), TestFolder::new());
    let outcome = hostile(&place, "trap_on_call", &[]);
    outcome.succeeded();
    assert!(outcome.stderr.contains("succeeded when retried"), "{}", outcome.stderr);
    hostile(&calm, "none", &[]).succeeded();
    assert_eq!(place.figure("run", "loss"), calm.figure("run", "loss"));
}

#[test]
fn a_run_that_nothing_can_score_ends_after_a_checkpoint() {
    let place = TestFolder::new();
    let alone = ["--plugin", HOSTILE, "--max-completion-length", "8", "--max-steps", "3", "--output-dir", "run"];
    let misdeed = ["--set", "plugin.hostile.config.misdeed=\"trap\""];
    let outcome = place.run(&[&small()[..], &alone, &misdeed, &LATER, &UNSCORABLE].concat());
    assert_eq!(outcome.code, Some(1));
    let reason = "no reward could score any completion in step 2: plugin hostile, score in step 2: ";
    assert!(outcome.error().contains(reason), "{}", outcome.error());
    assert_eq!(place.checkpoints("run"), [1]);
}

#[test]
fn floods_of_output_and_of_log_lines_are_bounded_and_harmless() {
    for misdeed in ["flood", "flood_log"] {
        let place = TestFolder::new();
        let outcome = hostile(&place, misdeed, &["--set", "plugin.hostile.limits.call_timeout_s=20"]);
        outcome.succeeded();
        assert!(outcome.stderr.len() < 100_000, "{misdeed}: {} bytes", outcome.stderr.len());
    }
}

#[test]
fn clock_and_random_numbers_follow_from_the_seed() {
    let rewards = |seed: &str| {
        let place = TestFolder::new();
        // Dice depend on how often they were thrown before.
        hostile(&place, "dice", &["--seed", seed, "--set", "plugin.hostile.config.stateful=true"]).succeeded();
        place.figure("run", "rewards/hostile/mean")
    };
    let first = rewards("1");
    assert!(first[0] != first[1], "the dice fall the same each time: {first:?}");
    assert_eq!(rewards("1"), first);
    assert_ne!(rewards("2"), first);
}

#[test]
fn the_least_positive_number_is_a_reward() {
    let place = TestFolder::new();
    hostile(&place, "denormal", &["--log-completions", "all"]).succeeded();
    let rewards: Vec<f64> =
        place.lines("run/completions.jsonl").iter().map(|l| l["rewards"]["hostile"].as_f64().unwrap()).collect();
    assert!(rewards.iter().any(|r| *r > 0.0 && *r < 1e-40), "{rewards:?}");
}

#[test]
fn tables_are_bounded_and_nothing_is_imported_that_is_not_offered() {
    let place = TestFolder::new();
    let run = |bytes: Vec<u8>| {
        place.write("made.wasm", bytes);
        place.run(&[
            "--model",
            tiny(),
            "--dataset",
            STORIES,
            "--plugin",
            "made.wasm",
            "--max-steps",
            "1",
            "--max-completion-length",
            "8",
            "--output-dir",
            "run",
        ])
    };
    let grow = "(drop (table.grow (ref.null func) (i32.const 90000000))) (unreachable)";
    let bomb = run(core_reward("(table 1 funcref)", grow));
    assert_eq!(bomb.code, Some(2));
    assert!(
        bomb.error().contains("made, score") && bomb.error().contains("table of more than 100000 elements"),
        "{}",
        bomb.error()
    );
    let large = run(core_reward("(table 90000000 funcref)", "(unreachable)"));
    assert!(large.error().contains("made, instantiate"), "{}", large.error());
    let foreign = run(core_reward("(import \"env\" \"system\" (func (param i32) (result i32)))", "(unreachable)"));
    assert_eq!(foreign.code, Some(2));
    assert!(foreign.error().contains("\"system\"") && foreign.error().contains("does not offer"), "{}", foreign.error());
    // A component that asks for the network by its proper name.
    let web = wat::parse_str(r#"(component (import "wasi:http/outgoing-handler@0.2.0" (instance)))"#).unwrap();
    assert!(run(web).error().contains("made can't serve as"), "a component without exports");
    assert!(!place.path("run").exists());
}

#[test]
fn schemas_that_end_nowhere_are_refused_at_the_start() {
    let place = TestFolder::new();
    for (schema, expected) in [
        (r##"{"$ref": "#"}"##.to_owned(), "refers to itself"),
        (
            r##"{"properties": {"a": {"$ref": "#/properties/b"}, "b": {"allOf": [{"$ref": "#/properties/a"}]}}}"##.to_owned(),
            "refers to itself",
        ),
        (r##"{"properties": {"a": {"$ref": "file:///etc/passwd"}}}"##.to_owned(), "not in the schema"),
        (r##"{"properties": {"a": {"default": 18446744073709551615}}}"##.to_owned(), "configuration key a"),
        (format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)), "is not JSON"),
        (format!("{{\"title\": {:?}}}", "x".repeat(300_000)), "300013 bytes"),
    ] {
        place.write("made.wasm", core_reward_with("", "(unreachable)", &schema));
        let outcome = place.run(&[&small()[..], &["--plugin", "made.wasm", "--max-steps", "1", "--output-dir", "run"]].concat());
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.error().contains("plugin made") && outcome.error().contains(expected), "{expected}: {}", outcome.error());
    }
    assert!(!place.path("run").exists());
}

#[test]
fn a_plugin_that_does_not_give_its_state_costs_none_of_what_was_learned() {
    // Scores nothing, and traps when it is asked for its state a second time.
    let state = r#"(global $asked (mut i32) (i32.const 0))
        (func (export "rlhost:plugin/state@0.1.0#snapshot") (result i32)
            (if (global.get $asked) (then (unreachable)))
            (global.set $asked (i32.const 1))
            (i32.const 512))
        (func (export "rlhost:plugin/state@0.1.0#restore") (param i32 i32 i32 i32) (result i32) (i32.const 128))"#;
    let place = TestFolder::new();
    place.write("secretive.wasm", core_reward(state, NO_SCORES));
    let run = ["--max-steps", "6", "--max-completion-length", "8", "--output-dir", "run"];
    let outcome =
        place.run(&[&small()[..], &["--plugin", "tldr_length_reward.wasm", "--plugin", "secretive.wasm"], &run[..]].concat());
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.error().contains("secretive, snapshot"), "{}", outcome.error());
    let last = *place.checkpoints("run").last().unwrap();
    assert!(last >= 1 && place.path(&format!("run/checkpoint-{last}/model.safetensors")).exists());
}

/// Arguments of a short run with a crafted reward in `made.wasm`.
const CRAFTED: [&str; 8] = ["--plugin", "made.wasm", "--max-steps", "2", "--max-completion-length", "8", "--output-dir", "run"];

#[test]
fn what_can_t_be_compiled_in_time_and_memory_is_one_line() {
    let place = TestFolder::new();
    let short = ["--set", "plugin.made.limits.compile_timeout_s=1"];
    let small_memory = ["--set", "plugin.made.limits.compile_memory_mb=64"];
    // Not even enough to read it.
    let least_memory = ["--set", "plugin.made.limits.compile_memory_mb=1"];
    for (what, bytes, more, expected) in [
        ("instances that multiply", multiplied(), &[][..], "instances, including nested ones; at most 10000"),
        ("types in types", deep(), &[], "nested too deeply"),
        ("a compiler's hours", long(), &short, "(limits.compile_timeout_s)"),
        ("a compiler's memory", long(), &small_memory, "64 MiB of memory (limits.compile_memory_mb)"),
        ("a reader's memory", long(), &least_memory, "1 MiB of memory (limits.compile_memory_mb)"),
    ] {
        place.write("made.wasm", bytes);
        let begun = Instant::now();
        let outcome = place.run(&[&small()[..], &CRAFTED, more].concat());
        assert_eq!(outcome.code, Some(2), "{what}: {}", outcome.stderr);
        assert!(outcome.error().contains("plugin made") && outcome.error().contains(expected), "{what}: {}", outcome.error());
        assert!(outcome.complaints().len() < 4 && begun.elapsed() < Duration::from_secs(180), "{what}: {}", outcome.stderr);
    }
    assert!(!place.path("run").exists());
}

#[test]
fn without_a_cache_plugins_are_compiled_all_the_same() {
    let place = TestFolder::new();
    place.write("file", "in the way");
    place.write("made.wasm", core_reward("", NO_SCORES));
    let nowhere = [("RLHOST_CACHE_DIR", "file/below"), ("TMPDIR", "missing")];
    let run = [&small()[..], &["--plugin", "tldr_length_reward.wasm"], &CRAFTED].concat();
    place.run_with(&run, &nowhere).succeeded();
}

#[test]
fn plugins_are_compiled_where_there_are_many_threads() {
    let place = TestFolder::new();
    let run = [&small()[..], &["--plugin", "tldr_length_reward.wasm", "--num-threads", "128"], &CRAFTED].concat();
    place.write("made.wasm", core_reward("", NO_SCORES));
    // As many arenas as glibc has on so many processors, each of which reserves address space.
    place.run_with(&run, &[("RLHOST_CACHE_DIR", "compiled"), ("MALLOC_ARENA_MAX", "1024")]).succeeded();
}

#[test]
fn making_and_configuring_an_instance_count_towards_the_time_of_a_call() {
    // Whoever computes for ever in its start function is ended like one that does in a call.
    let place = TestFolder::new();
    let endless = "(func $endless (loop $again (br $again))) (start $endless)";
    place.write("made.wasm", core_reward(endless, NO_SCORES));
    let limit = ["--set", "plugin.made.limits.call_timeout_s=0.3"];
    let outcome = place.run(&[&small()[..], &CRAFTED, &limit].concat());
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.error().contains("longer than its limit of 0.3 s"), "{}", outcome.error());
}

#[test]
fn all_instances_of_a_plugin_have_a_limit_together() {
    let place = TestFolder::new();
    // Its 16 pages are as much as all may have; memory for a second page is asked for in a call.
    let more = "(if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then (unreachable)))";
    place.write("made.wasm", core_reward("", &format!("{more} {NO_SCORES}")));
    let limits = ["--set", "plugin.made.limits.total_memory_mb=2", "--set", "plugin.made.on_error=unscorable"];
    let run = [&small()[..], &["--plugin", "tldr_length_reward.wasm"], &CRAFTED].concat();
    place.run(&[&run[..], &limits].concat()).succeeded();
    let tight = ["--set", "plugin.made.limits.total_memory_mb=1"];
    fs::remove_dir_all(place.path("run")).unwrap();
    let outcome = place.run(&[&run[..], &tight].concat());
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.error().contains("more than 1 MiB of memory in total (limits.total_memory_mb)"), "{}", outcome.error());
}

#[test]
fn a_state_is_bounded() {
    // 65 MiB, from address 0 on.
    let state = r#"
        (func (export "rlhost:plugin/state@0.1.0#snapshot") (result i32)
            (drop (memory.grow (i32.const 1040)))
            (i32.store (i32.const 512) (i32.const 0))
            (i32.store (i32.const 516) (i32.const 0))
            (i32.store (i32.const 520) (i32.const 68157440))
            (i32.const 512))
        (func (export "rlhost:plugin/state@0.1.0#restore") (param i32 i32 i32 i32) (result i32) (i32.const 128))"#;
    let place = TestFolder::new();
    place.write("made.wasm", core_reward(state, NO_SCORES));
    let outcome = place.run(&[&small()[..], &["--plugin", "tldr_length_reward.wasm"], &CRAFTED].concat());
    assert_ne!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.error().contains("made, snapshot: its state has 65 MiB"), "{}", outcome.error());
}

#[test]
fn names_in_a_module_can_t_draw_on_the_terminal() {
    let place = TestFolder::new();
    let strange = r#"(func (export "rlhost:plugin/reward@9.0.0#\1b[2J\u{202e}\0a INFO forged"))"#;
    place.write("made.wasm", core_reward(strange, "(unreachable)"));
    let outcome = place.run(&[&small()[..], &CRAFTED].concat());
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains(['\u{1b}', '\u{202e}']) && outcome.complaints().len() == 1, "{}", outcome.stderr);
}
