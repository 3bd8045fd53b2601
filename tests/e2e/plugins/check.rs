//! `rlhost plugin check`: what it lets pass, and what it finds.

use rlhost_tests::{CommandOutcome, HOSTILE, REMEMBERING, TestFolder, UNRULY, tiny};
use std::process::Command;

fn check(plugin: &str, more: &[&str]) -> CommandOutcome {
    TestFolder::new().run(&[&["plugin", "check", plugin], more].concat())
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

#[test]
fn environments_play_random_episodes_and_one_that_mixes_them_fails() {
    for environment in ["guess_number.wasm", "grid_walk.wasm", "calculator_tool.wasm", "javascript_tool.wasm", UNRULY] {
        let outcome = check(environment, &[]);
        assert!(outcome.succeeded().stdout.contains("each episode goes the same alone"), "{}", outcome.stdout);
    }
    let place = TestFolder::new();
    place.write("rows.jsonl", "{\"prompt\": \"a\", \"bad\": true}\n");
    let outcome = place.run(&["plugin", "check", UNRULY, "--dataset", "rows.jsonl", "--set", "misdeed=\"gossip\""]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("answers must not depend on other episodes"), "{}", outcome.stdout);
    let timed = place.run(&["plugin", "bench", "guess_number.wasm"]);
    assert!(timed.succeeded().stdout.contains("64 episodes"), "{}", timed.stdout);
}

#[test]
fn algorithms_are_checked_with_the_turns_that_they_ask_for() {
    for (algorithm, by_turn) in
        [("grpo", "turn_advantages=group"), ("ppo", "turn_rewards=true"), ("reinforce_pp", "turn_rewards=true")]
    {
        let file = format!("{algorithm}.wasm");
        assert!(!check(&file, &[]).succeeded().stdout.contains("by turn"), "{algorithm}");
        assert!(check(&file, &["--set", by_turn]).succeeded().stdout.contains("tokens, by turn"), "{algorithm}");
    }
}

#[test]
fn a_new_environment_is_a_script_or_a_component() {
    let place = TestFolder::new();
    place.run(&["plugin", "new", "my-game", "--environment"]).succeeded();
    assert!(std::fs::read_to_string(place.path("my-game/Cargo.toml")).unwrap().contains("name = \"my-game\""));
    assert!(std::fs::read_to_string(place.path("my-game/src/lib.rs")).unwrap().contains("environment_plugin!"));
    place.run(&["plugin", "new", "my-tool", "--environment", "--lang", "py"]).succeeded();
    place.run(&["plugin", "check", "my-tool/my_tool.py"]).succeeded();
    place.run(&["plugin", "new", "my-component", "--environment", "--lang", "python-component"]).succeeded();
    let script = std::fs::read_to_string(place.path("my-component/build.sh")).unwrap();
    let wit = std::fs::read_to_string(place.path("my-component/wit/rlhost-plugin.wit")).unwrap();
    assert!(script.contains("--world environment-plugin") && wit.contains("package rlhost:plugin@1.0.0;"), "{script}");
    let refused = place.run(&["plugin", "new", "other", "--environment", "--lang", "zig"]);
    assert!(refused.error().contains("the languages of environments are python-component, python, rust"), "{}", refused.error());
}

#[test]
fn a_new_agent_passes_its_test_and_trains() {
    let place = TestFolder::new();
    let refused = place.run(&["plugin", "new", "other", "--agent", "--lang", "rust"]);
    assert!(refused.error().contains("the languages of agents are python"), "{}", refused.error());
    place.run(&["plugin", "new", "my-agent", "--agent", "--lang", "py"]).succeeded();
    place.run(&["plugin", "new", "second", "--agent"]).succeeded();
    assert!(place.path("second/agent.py").exists());
    let about = std::fs::read_to_string(place.path("my-agent/README.md")).unwrap();
    assert!(about.starts_with("# my-agent\n\nAn agent") && about.contains("python3 test_agent.py"), "{about}");
    let Ok(tested) = Command::new("python3").arg(place.path("my-agent/test_agent.py")).output() else {
        eprintln!("skipped: there is no python3");
        return;
    };
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stderr));
    let template = "{% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    place.write("chat.jinja", template);
    let agent = [
        "grpo",
        "--agent",
        "python3 my-agent/agent.py",
        "--dataset",
        "my-agent/rows.jsonl",
        "--chat-template-path",
        "chat.jinja",
    ];
    let rest = ["--model", tiny(), "--max-completion-length", "8", "--max-steps", "1", "--output-dir", "run"];
    place.run(&[&agent[..], &rest].concat()).succeeded();
    assert_eq!(place.figure("run", "episodes/failed"), [0.0]);
    assert!(place.figure("run", "agent/looked_up")[0] >= 0.0);
}

#[test]
fn what_is_missing_is_named_with_its_flag_and_settings_are_listed_with_their_values() {
    let lacking = check("answer_reward.wasm", &[]);
    assert!(
        lacking.stdout.contains("has a column \"answer\"") && lacking.stdout.contains("--dataset FILE"),
        "{}",
        lacking.stdout
    );
    let server = check("judge_reward.wasm", &[]);
    assert!(server.stdout.contains("--host HOST:PORT") && !server.stdout.contains("--dataset"), "{}", server.stdout);
    let place = TestFolder::new();
    place.write("reads.py", "def reads(completions):\n    return [float(len(open('/words/k').read())) for _ in completions]\n");
    let folder = place.run(&["plugin", "check", "reads.py"]);
    assert!(folder.stdout.contains("plugin reads, score: Traceback"), "a check has no step: {}", folder.stdout);
    let advice = "'/words/k'\nno folder words is granted to it: --folder words=FOLDER\n";
    assert!(folder.stdout.contains(advice) && folder.error().ends_with("error: 1 check failed"), "{folder:?}");
    let setting = check("keyword_reward.wasm", &[]);
    assert!(setting.error().contains("--set KEY=VALUE") && setting.error().contains("plugin inspect"), "{}", setting.stderr);
    let listed = TestFolder::new().run(&["plugin", "inspect", "dpo.wasm"]).succeeded().stdout.clone();
    let line = listed.lines().find(|line| line.contains("loss_type =")).unwrap();
    assert!(line.contains("sigmoid, hinge, ipo") && line.contains("[default: sigmoid]"), "{line}");
}
