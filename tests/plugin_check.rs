//! `rlhost plugin check`: what it lets pass, and what it finds.

use rlhost_tests::{HOSTILE, Outcome, Place, REMEMBERING};

fn check(plugin: &str, more: &[&str]) -> Outcome {
    Place::new().run(&[&["plugin", "check", plugin], more].concat())
}

#[test]
fn every_algorithm_passes_at_its_defaults() {
    for name in ["grpo", "rloo", "ppo", "reinforce_pp", "dpo", "cpo", "orpo", "kto", "online_dpo", "sft"] {
        let outcome = check(&format!("{name}.wasm"), &[]);
        outcome.succeeded();
        let derivatives = outcome.stdout.lines().filter(|line| line.contains("finite differences")).count();
        assert!(derivatives >= 1, "{name}: {}", outcome.stdout);
    }
}

#[test]
fn rewards_pass_with_and_without_a_state() {
    for plugin in ["tldr_length_reward.wasm", "repetition_reward.wasm", REMEMBERING] {
        check(plugin, &[]).succeeded();
    }
}

#[test]
fn a_loss_that_holds_a_part_of_itself_fixed_is_let_through_when_that_is_said() {
    let dynamic = ["--set", "loss_type=dft"];
    let outcome = check("sft.wasm", &dynamic);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
    let line = outcome.stdout.lines().find(|line| line.starts_with("FAIL")).unwrap_or_default();
    assert!(line.contains("d_logp") && line.contains("--stop-gradient"), "{}", outcome.stdout);
    check("sft.wasm", &[&dynamic[..], &["--stop-gradient"]].concat()).succeeded();
}

#[test]
fn a_reward_that_misbehaves_fails_with_a_line_that_says_how() {
    for (misdeed, expected) in [
        ("wrong_length", "19 rewards for 20 completions"),
        ("nan", "NaN for row 1"),
        ("trap", "panicked on purpose"),
        ("trap_on_call", "statelessness"),
        ("dice", "row independence"),
    ] {
        let outcome = check(HOSTILE, &["--set", &format!("misdeed={misdeed:?}")]);
        assert_eq!(outcome.code, Some(1), "{misdeed}: {}", outcome.stdout);
        let failed = outcome.stdout.lines().any(|line| line.starts_with("FAIL") && line.contains(expected));
        assert!(failed, "{misdeed}: {}{}", outcome.stdout, outcome.stderr);
    }
}
