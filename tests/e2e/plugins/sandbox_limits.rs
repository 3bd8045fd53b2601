//! Plugins that try to get past their limits of memory and stack, or say of themselves what is not so.

// What is not checked on a system, and how much was counted.
#![allow(clippy::print_stdout)]

use rlhost_tests::crafted::{bomb, core_reward, instantiated, references, score_of};
use rlhost_tests::monitor::{MEMORY, run_monitored};
use rlhost_tests::{CommandOutcome, TestFolder, binary, small};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

/// Arguments of a short run with a crafted reward in `made.wasm`.
const CRAFTED: [&str; 6] = ["--plugin", "made.wasm", "--max-completion-length", "8", "--output-dir", "run"];

fn run(place: &TestFolder, bytes: Vec<u8>, more: &[&str]) -> CommandOutcome {
    place.write("made.wasm", bytes);
    place.run(&[&small()[..], &CRAFTED, more].concat())
}

#[test]
fn instances_that_multiply_what_they_refer_to_are_refused_in_one_line() {
    let place = TestFolder::new();
    let bytes = bomb();
    assert!(bytes.len() < 400_000);
    place.write("made.wasm", bytes);
    let monitored = run_monitored(&place, &[&small()[..], &CRAFTED, &["--max-steps", "1"]].concat());
    let outcome = monitored.outcome;
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    let said = "MiB of memory besides its memories and tables; at most 512 MiB are allowed (limits.memory_mb";
    assert!(outcome.error().contains("plugin made") && outcome.error().contains(said), "{}", outcome.error());
    assert!(outcome.complaints().len() < 4, "{}", outcome.stderr);
    assert!(monitored.peak.0 < MEMORY && monitored.peak.1 < MEMORY, "{:?}", monitored.peak);
    assert!(!place.path("run").exists());
}

/// Runs a hidden subcommand of the binary on some bytes.
fn hidden(arguments: &[String], input: &[u8]) -> (Option<i32>, Vec<u8>, String) {
    let mut command = Command::new(binary());
    command.args(arguments).env("RAYON_NUM_THREADS", "2").env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Compiles a component for instances of at most this many bytes. Returns the file.
fn compiled(bytes: &[u8], each: u64) -> Vec<u8> {
    let arguments =
        ["compile-plugin".to_owned(), (4_u64 << 30).to_string(), "300".to_owned(), each.to_string(), "full".to_owned()];
    let (code, file, said) = hidden(&arguments, bytes);
    assert_eq!(code, Some(0), "{said}");
    file
}

/// Makes an instance of compiled code in a process that may write to this many bytes, and a few more.
fn tried(file: &[u8], each: u64) -> (Option<i32>, String) {
    let mebibytes = each.div_ceil(1 << 20);
    let limits = format!("memory_mb = {mebibytes}\ntotal_memory_mb = {mebibytes}\n");
    let (code, _, said) = hidden(&["try-plugin".to_owned(), limits], file);
    (code, said)
}

/// What an instance takes besides memories and tables, as the file has it behind its checksum.
fn counted(file: &[u8]) -> u64 {
    u64::from_le_bytes(file[32..40].try_into().unwrap())
}

/// A file with another number in that place.
fn with_count(file: &[u8], count: u64) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let rest = [&count.to_le_bytes()[..], &file[40..]].concat();
    [Sha256::digest(&rest).as_slice(), &rest].concat()
}

#[test]
fn the_system_bounds_what_was_not_counted() {
    if !cfg!(target_os = "linux") {
        println!("not checked: only Linux limits the memory that a process writes to");
        return;
    }
    // 600 MiB of references, said to be none.
    let file = compiled(&instantiated(&references(20_000), 990, 1), 8 << 30);
    assert!(counted(&file) > 600 << 20, "{}", counted(&file));
    let unseen = with_count(&file, 0);
    let (code, said) = tried(&unseen, 256 << 20);
    assert_ne!(code, Some(0));
    assert!(said.contains("memory"), "{said}");
    let (code, said) = tried(&unseen, 2 << 30);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn what_instances_take_is_counted_in_full() {
    if !cfg!(target_os = "linux") {
        println!("not checked: only Linux limits the memory that a process writes to");
        return;
    }
    let elements = "0 ".repeat(20_000);
    for (what, bytes) in [
        ("references", instantiated(&references(10_000), 990, 1)),
        ("passive elements", instantiated(&format!("(func) (elem func {elements})"), 990, 1)),
        ("expressions", instantiated(&format!("(func) (elem funcref {})", "(ref.func 0) ".repeat(20_000)), 990, 1)),
        ("segments", instantiated(&format!("(func) {}", "(elem func 0 0 0 0 0 0 0 0)".repeat(2_000)), 990, 1)),
        ("globals", instantiated(&"(global (mut v128) (v128.const i64x2 1 1))".repeat(2_000), 99, 1)),
        ("data", instantiated(&format!("(memory 0) {}", "(data \"x\")".repeat(5_000)), 90, 1)),
        ("instances", instantiated("(func)", 990, 9)),
        ("tables", instantiated(&"(table 0 funcref)".repeat(10), 90, 1)),
    ] {
        let file = compiled(&bytes, 8 << 30);
        let each = counted(&file);
        let (code, said) = tried(&file, each);
        assert_eq!(code, Some(0), "{what}: {} MiB counted: {said}", each >> 20);
        println!("{what}: {} MiB counted", each >> 20);
    }
}

#[test]
fn tables_that_start_functions_grow_and_doubled_instances_are_bounded() {
    let grow = "(table 0 funcref) (func $start (drop (table.grow (ref.null func) (i32.const 99999)))) (start $start)";
    let doubled: String = (1..24)
        .map(|i| {
            format!(
                "(component (alias outer 1 {} (component $b)) (instance (instantiate $b)) (instance (instantiate $b)))",
                i - 1
            )
        })
        .collect();
    let doubled = wat::parse_str(format!(
        "(component (component (core module $m (func)) (core instance (instantiate $m))) {doubled} (instance (instantiate 23)))"
    ));
    for (what, bytes, expected) in [
        // 763 MiB of tables, in an instance that would be refused for what it exports if it could be made.
        ("tables that grow", instantiated(grow, 100, 9), "made"),
        ("doubled instances", doubled.unwrap(), "instances, including nested ones; at most 10000"),
        ("globals", instantiated(&"(global i32 (i32.const 0))".repeat(19_000), 10, 100), "globals, including nested ones"),
        (
            "elements",
            instantiated(&format!("(func) (elem func {})", "0 ".repeat(50_000)), 900, 1),
            "besides its memories and tables",
        ),
        ("memories", instantiated("(memory 0)", 101, 1), "101 memories"),
    ] {
        let place = TestFolder::new();
        place.write("made.wasm", bytes);
        let monitored = run_monitored(&place, &[&small()[..], &CRAFTED, &["--max-steps", "1"]].concat());
        let error = monitored.outcome.error().to_owned();
        assert_eq!(monitored.outcome.code, Some(2), "{what}: {error}");
        assert!(error.contains(expected), "{what}: {error}");
        assert!(monitored.peak.0 < MEMORY && monitored.peak.1 < MEMORY, "{what}: {:?}", monitored.peak);
    }
}

#[test]
fn an_instance_that_cannot_be_made_on_trial_is_refused_with_the_reason_that_loading_has() {
    if !cfg!(target_os = "linux") {
        println!("not checked: only Linux limits the memory that a process writes to");
        return;
    }
    let trap = instantiated("(func $start (unreachable)) (start $start)", 1, 1);
    let (code, said) = tried(&compiled(&trap, 8 << 30), 64 << 20);
    assert!(code == Some(5) && said.contains("unreachable"), "{code:?} {said}");
}

/// Scores 1 if it got memory in its first call, which is 437 MiB of the 768 that all instances have.
fn takes_memory() -> Vec<u8> {
    let grown = "(if (i32.eq (global.get $got) (i32.const -2)) (then (global.set $got (memory.grow (i32.const 7000)))))";
    let score = score_of(grown, "(select (f32.const 1) (f32.const 0) (i32.ne (global.get $got) (i32.const -1)))");
    core_reward("(global $got (mut i32) (i32.const -2))", &score)
}

#[test]
fn memory_is_granted_whatever_other_instances_do() {
    let rows = ["--per-device-train-batch-size", "64", "--num-generations", "8", "--max-steps", "3", "--logging-steps", "1"];
    for threads in ["1", "2", "4"] {
        let place = TestFolder::new();
        let threads = ["--num-threads", threads, "--log-completions", "all"];
        let plugins = ["--plugin", "tldr_length_reward.wasm"];
        run(&place, takes_memory(), &[&rows[..], &threads, &plugins].concat()).succeeded();
        let scores = place.lines("run/completions.jsonl");
        assert!(scores.len() == 192 && scores.iter().all(|line| line["rewards"]["made"] == 1.0), "{threads:?}");
    }
}

#[test]
fn a_reward_that_recurses_ends_in_one_line_however_small_the_stack_is() {
    let recurse = "(func $r (param i64 i64 i64 i64) (result i64)
        (i64.add (call $r (local.get 1) (local.get 2) (local.get 3) (local.get 0)) (local.get 0)))";
    let score = "(drop (call $r (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4))) (unreachable)";
    let place = TestFolder::new();
    place.write("made.wasm", core_reward(recurse, score));
    let arguments = [&small()[..], &CRAFTED, &["--max-steps", "1", "--num-threads", "2"]].concat();
    for (stack, variable) in [("8192", "2097152"), ("700", "2097152"), ("300", "65536")] {
        let script = format!("ulimit -s {stack} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(binary()).args(&arguments).env("RUST_MIN_STACK", variable).env("NO_COLOR", "1");
        let outcome = CommandOutcome::new(command.current_dir(place.path("")).output().unwrap());
        assert_eq!(outcome.code, Some(2), "{stack}: {}", outcome.stderr);
        assert!(outcome.error().contains("its stack overflowed"), "{stack}: {}", outcome.error());
    }
}

/// A reward that gives 1 and reports a metric of 1e6.
fn reports(name: &str) -> Vec<u8> {
    let bytes: String = name.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let fields = format!(
        "(data (i32.const 70000) \"{bytes}\")
        (data (i32.const 80000) \"\\70\\11\\01\\00\\{:02x}\\00\\00\\00\")
        (data (i32.const 80008) \"\\00\\00\\00\\00\\80\\84\\2e\\41\\00\\00\\00\\00\\00\\00\\f0\\3f\\00\")",
        name.len()
    );
    let score = score_of("", "(f32.const 1)");
    let metrics = "(i32.store (i32.const 268) (i32.const 80000)) (i32.store (i32.const 272) (i32.const 1)) (i32.const 256)";
    core_reward(&fields, &score.replacen("(i32.const 256)", metrics, 1))
}

#[test]
fn no_reward_reports_an_algorithm_s_metric_or_one_that_looks_like_it() {
    let place = TestFolder::new();
    for name in ["kl", "objective/kl", "rewards/accuracies", "objective/scores", "policy/clipfrac_avg", "logps/chosen", "kl/mean"]
    {
        let outcome = run(&place, reports(name), &["--max-steps", "1"]);
        assert_eq!(outcome.code, Some(2), "{name}: {}", outcome.stderr);
        let said =
            format!("metric {name:?} is reserved for the run and its algorithm; choose another name, such as \"made/{name}\"");
        assert!(outcome.error().contains(&said), "{name}: {}", outcome.error());
    }
    for name in ["kl\u{fe0f}", "kl\u{3164}", "k\u{34f}l", "kl\u{e0101}", "kl\u{a0}", "kl ", " kl", "k\u{3000}l", "kl\u{115f}"] {
        let outcome = run(&place, reports(name), &["--max-steps", "1"]);
        assert_eq!(outcome.code, Some(2), "{name:?}: {}", outcome.stderr);
        assert!(outcome.error().contains("1 to 128 printable bytes"), "{name:?}: {}", outcome.error());
    }
    run(&place, reports("made/kl"), &["--max-steps", "1"]).succeeded();
    assert_eq!(place.figure("run", "made/kl"), [1e6]);
}

/// A reward that says it is stateless, and whose scores are the rest of its calls by 8 once they are more than some.
fn counts(from: u32) -> Vec<u8> {
    let count = "(global.set $n (i32.add (global.get $n) (i32.const 1)))";
    let value = format!(
        "(f32.convert_i32_u (i32.mul (i32.and (global.get $n) (i32.const 7)) (i32.gt_u (global.get $n) (i32.const {from}))))"
    );
    core_reward("(global $n (mut i32) (i32.const 0))", &score_of(count, &value))
}

#[test]
fn a_reward_that_is_not_stateless_as_it_says_is_found_out() {
    let said = "made, score in step";
    let why = "it declares stateless: true, but answers the same call differently after other calls: row 0 scores";
    // At once, and when its scores have been the same for some steps.
    let place = TestFolder::new();
    let outcome = run(&place, counts(0), &["--max-steps", "8"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.error().contains(said) && outcome.error().contains(why), "{}", outcome.error());
    assert!(!place.path("run").exists());
    let outcome = run(&place, counts(5), &["--max-steps", "12", "--logging-steps", "1", "--plugin", "tldr_length_reward.wasm"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.error().contains(said) && outcome.error().contains(why), "{}", outcome.error());
    assert!(!place.checkpoints("run").is_empty());
    // Where errors cost rows alone, it is none of them.
    fs::remove_dir_all(place.path("run")).unwrap();
    let lenient = ["--max-steps", "12", "--set", "plugin.made.on_error=unscorable", "--plugin", "tldr_length_reward.wasm"];
    let outcome = run(&place, counts(5), &lenient);
    assert!(outcome.code == Some(1) && outcome.error().contains(why), "{}", outcome.stderr);
}
