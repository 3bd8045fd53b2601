//! Plugins that try to get past their limits of memory and stack, or say of themselves what is not so.

use rlhost_tests::crafted::{core_reward, score_of};
use rlhost_tests::{Outcome, Place, binary, small};
use std::process::Command;

/// Arguments of a short run with a crafted reward in `made.wasm`.
const CRAFTED: [&str; 6] = ["--plugin", "made.wasm", "--max-completion-length", "8", "--output-dir", "run"];

fn run(place: &Place, bytes: Vec<u8>, more: &[&str]) -> Outcome {
    place.write("made.wasm", bytes);
    place.run(&[&small()[..], &CRAFTED, more].concat())
}

#[test]
fn a_reward_that_recurses_ends_in_one_line_however_small_the_stack_is() {
    let recurse = "(func $r (param i64 i64 i64 i64) (result i64)
        (i64.add (call $r (local.get 1) (local.get 2) (local.get 3) (local.get 0)) (local.get 0)))";
    let score = "(drop (call $r (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4))) (unreachable)";
    let place = Place::new();
    place.write("made.wasm", core_reward(recurse, score));
    let arguments = [&small()[..], &CRAFTED, &["--max-steps", "1", "--num-threads", "2"]].concat();
    for (stack, variable) in [("8192", "2097152"), ("700", "2097152"), ("300", "65536")] {
        let script = format!("ulimit -s {stack} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(binary()).args(&arguments).env("RUST_MIN_STACK", variable).env("NO_COLOR", "1");
        let outcome = Outcome::new(command.current_dir(place.path("")).output().unwrap());
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
    let place = Place::new();
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
