//! The log of a run's rollouts: what agents and servers wrote is trained on once, however often the run is interrupted, and a replay trains
//! on it again.

use rlhost_tests::server::ServerProcess;
use rlhost_tests::{KilledOnDrop, TestFolder, small, tiny};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A time limit of what should take seconds.
const PATIENCE: Duration = Duration::from_secs(120);

const WEIGHTS: &str = "model.safetensors";

const TEMPLATE: &str =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// An agent that nobody can repeat: it asks something else each time, and its reward is drawn. It notes each episode that it ends.
const UNREPEATABLE: &str = r#"
import json, os, sys, time, urllib.request
row = json.loads(sys.stdin.readline())
def chat(messages):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps({"messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
asked = [{"role": "user", "content": row["prompt"] + " " + os.urandom(3).hex()}]
said = chat(asked)
chat(asked + [said, {"role": "user", "content": os.urandom(2).hex()}])
time.sleep(os.urandom(1)[0] / 2000)
print(json.dumps({"reward": os.urandom(1)[0] / 256}), flush=True)
with open("ended", "a") as ended:
    ended.write(os.environ["RLHOST_EPISODE"] + "\n")
"#;

/// Arguments of a run of GRPO with such an agent, eight episodes a step.
fn agent_run<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["grpo", "--agent", "python3 agent.py", "--model", tiny(), "--dataset", "rows.jsonl", "--output-dir", run];
    all.extend(["--chat-template-path", "chat.jinja", "--num-generations", "4", "--per-device-train-batch-size", "8"]);
    all.extend(["--max-completion-length", "12", "--logging-steps", "1", "--log-completions", "all", "--learning-rate", "0.001"]);
    all.extend(more);
    all
}

/// A folder with prompts and the agent.
fn place_of_agent() -> TestFolder {
    let place = TestFolder::new();
    let rows = (0..8).map(|i| format!("{}\n", json!({"prompt": format!("Question {i}")})));
    place.write("rows.jsonl", rows.collect::<String>());
    place.write("chat.jinja", TEMPLATE);
    place.write("agent.py", UNREPEATABLE);
    place
}

fn has_python() -> bool {
    let found = std::process::Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: there is no python3");
    }
    found
}

/// The completions of each step: tokens and rewards.
fn written(place: &TestFolder, run: &str) -> Vec<(u64, Value, Value)> {
    let lines = place.lines(&format!("{run}/completions.jsonl"));
    let of = |line: Value| (line["step"].as_u64().unwrap(), line["completion_ids"].clone(), line["rewards"].clone());
    lines.into_iter().map(of).collect()
}

/// The generation of an episode's name.
fn generation_of(name: &str) -> usize {
    name.split('-').nth(1).unwrap().parse().unwrap()
}

/// The files of generations in a log.
fn files(place: &TestFolder, log: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(place.path(log)).into_iter().flatten().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")).collect()
}

#[test]
fn a_killed_run_goes_on_with_the_episodes_that_have_ended_and_a_replay_repeats_it_without_the_agent() {
    if !has_python() {
        return;
    }
    let place = place_of_agent();
    let all = ["--max-steps", "6", "--save-steps", "4", "--rollout-log", "all", "--num-iterations", "2"];
    let arguments = agent_run("run", &all);
    let ended = || fs::read_to_string(place.path("ended")).unwrap_or_default();
    // Episodes that ended so far, and the first generation of which some may have been lost.
    let (mut seen, mut first) = (0, 0);
    let check = |seen: usize, first: usize| {
        let again = ended().lines().skip(seen).filter(|line| generation_of(line) < first).count();
        assert_eq!(again, 0, "episodes of generations before {first} were played again");
    };
    // Some moments are in the middle of a generation, others in an update or a checkpoint. The first two have no checkpoint before.
    for (steps, wait) in [(1, 150), (2, 700), (4, 300), (5, 30)] {
        let resumes = [&arguments[..], &["--resume-from-checkpoint"]].concat();
        let run = KilledOnDrop(place.start(&resumes));
        place.wait("run", PATIENCE, || place.steps("run") >= steps);
        std::thread::sleep(Duration::from_millis(wait));
        drop(run);
        check(seen, first);
        (seen, first) = (ended().lines().count(), place.steps("run") / 2);
    }
    let before = written(&place, "run");
    let outcome = place.run(&[&arguments[..], &["--resume-from-checkpoint"]].concat());
    outcome.succeeded();
    let after = written(&place, "run");
    let kept: Vec<_> = before.iter().filter(|(step, ..)| after.iter().any(|(other, ..)| other == step)).collect();
    assert!(kept.iter().all(|line| after.contains(line)), "completions of a step were written again");
    check(seen, first);

    // Nobody is there to play.
    fs::remove_file(place.path("agent.py")).unwrap();
    place.run(&["replay", "run", "--train", "--output-dir", "again"]).succeeded();
    place.assert_same_end("again", "run", 6, WEIGHTS);
    assert_eq!(written(&place, "again"), after);
}

#[test]
fn episodes_that_ended_before_a_kill_in_the_first_generation_after_a_checkpoint_are_not_played_again() {
    if !has_python() {
        return;
    }
    let place = place_of_agent();
    // Of the second generation, two of eight end at once; the others wait until the run resumes.
    let waits = UNREPEATABLE.replace(
        "print(json.dumps",
        "while os.environ[\"RLHOST_EPISODE\"].split(\"-\")[1] == \"1\" and not os.path.exists(\"go\") and int(os.environ[\"RLHOST_EPISODE\"][-1]) > 0:\n    time.sleep(0.02)\nprint(json.dumps",
    );
    place.write("agent.py", waits);
    let arguments = agent_run("run", &["--max-steps", "2", "--save-steps", "1"]);
    let run = KilledOnDrop(place.start(&arguments));
    let ended = || fs::read_to_string(place.path("ended")).unwrap_or_default();
    place.wait("run", PATIENCE, || ended().lines().filter(|line| line.starts_with("train-1-")).count() == 2);
    // The note is the last that an agent does, and the run keeps its episode after that.
    let kept = || fs::read_to_string(place.path("run/rollouts/unfinished-0/log.jsonl")).unwrap_or_default().lines().count();
    place.wait("run", PATIENCE, || kept() == 2);
    drop(run);
    place.write("go", "");
    let outcome = place.run(&["resume", "run"]);
    outcome.succeeded();
    assert!(outcome.stderr.contains("generation 1: 2 episodes had ended before"), "{}", outcome.stderr);
    let all = ended();
    let again: Vec<&str> = all.lines().filter(|line| line.starts_with("train-1-")).collect();
    assert_eq!(again.len(), 8, "each of the generation has ended once: {again:?}");
    assert_eq!((kept(), files(&place, "run/rollouts/unfinished-0").len()), (0, 0), "no episode is left");
}

/// A run that generates for itself, with evaluations and a reference model.
fn own_run<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = small().to_vec();
    all.extend(["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "24", "--num-generations", "4"]);
    all.extend(["--logging-steps", "1", "--per-device-train-batch-size", "16", "--learning-rate", "0.003"]);
    all.extend(["--log-completions", "all", "--output-dir", run]);
    all.extend(more);
    all
}

#[test]
fn a_replay_of_a_run_that_generates_is_the_run_and_may_have_another_reward() {
    let place = TestFolder::new();
    let evaluations = ["--eval-dataset", rlhost_tests::STORIES, "--eval-strategy", "steps", "--eval-steps", "2"];
    let more = ["--beta", "0.04", "--num-iterations", "2", "--max-steps", "4", "--save-steps", "2", "--top-p", "0.9"];
    place.run(&own_run("run", &[&more[..], &evaluations, &["--rollout-log", "all"]].concat())).succeeded();
    let outcome = place.run(&["replay", "run", "--train"]);
    outcome.succeeded();
    assert!(!outcome.stderr.contains("the weights differ"), "{}", outcome.stderr);
    place.assert_same_end("run-replay", "run", 4, WEIGHTS);
    assert_eq!(written(&place, "run-replay"), written(&place, "run"));
    // A replay resumes like any run.
    place.copy_as_after("run-replay", 2, "half");
    place.run(&["resume", "half", "--max-steps", "4"]).succeeded();
    place.assert_same_end("half", "run", 4, WEIGHTS);

    let other =
        place.run(&["replay", "run", "--train", "--output-dir", "other", "--set", "plugin.tldr_length_reward.config.target=3"]);
    other.succeeded();
    assert!(other.stderr.contains("from step 3 on, the weights differ"), "{}", other.stderr);
    let tokens = |run: &str| written(&place, run).into_iter().map(|(step, tokens, _)| (step, tokens)).collect::<Vec<_>>();
    assert_eq!(tokens("other"), tokens("run"));
    assert_ne!(written(&place, "other"), written(&place, "run"), "other rewards");
}

#[test]
fn a_run_that_generates_ahead_resumes_with_what_was_written_ahead() {
    let place = TestFolder::new();
    let server = ServerProcess::start(&place, &["--model", tiny(), "--allow-weight-updates"]);
    let url = format!("http://{}", server.address);
    let ahead =
        ["--rollout-server", &url, "--max-staleness", "2", "--max-steps", "8", "--save-steps", "2", "--rollout-log", "all"];
    let arguments = own_run("run", &ahead);
    let run = KilledOnDrop(place.start(&arguments));
    place.wait("run", PATIENCE, || place.steps("run") >= 5);
    drop(run);
    let before = written(&place, "run");
    place.run(&[&arguments[..], &["--resume-from-checkpoint"]].concat()).succeeded();
    let after = written(&place, "run");
    // Those of completed steps, whatever the version of the policy that wrote them.
    let steps = before.iter().map(|(step, ..)| *step).max().unwrap();
    assert!(before.iter().filter(|(step, ..)| *step < steps).all(|line| after.contains(line)));
    drop(server);
    place.run(&["replay", "run", "--train", "--output-dir", "again"]).succeeded();
    place.assert_same_end("again", "run", 8, WEIGHTS);
}

#[test]
fn generations_that_a_checkpoint_has_are_forgotten_unless_all_are_kept() {
    let place = TestFolder::new();
    place.run(&own_run("run", &["--max-steps", "5", "--save-steps", "1", "--rollout-log", "unsaved"])).succeeded();
    let left = place.lines("run/rollouts/log.jsonl");
    let generations: Vec<u64> = left.iter().filter_map(|line| line["generation"].as_u64()).collect();
    assert!(left.len() <= 4 && generations.iter().all(|generation| *generation >= 3), "{left:?}");
    assert_eq!(files(&place, "run/rollouts").len(), left.len());
    // By default, a run that can be repeated keeps none.
    place.run(&own_run("none", &["--max-steps", "1"])).succeeded();
    assert!(!place.path("none/rollouts").exists());
    let said = place.run(&["replay", "none", "--train"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.error().contains("replay_rollouts") && said.error().contains("rollout_log = \"all\""), "{}", said.stderr);
}

#[test]
fn what_does_not_fit_a_replay_is_said() {
    let place = TestFolder::new();
    place.run(&own_run("run", &["--max-steps", "2", "--save-steps", "1", "--rollout-log", "all"])).succeeded();
    let replay = |more: &[&str]| {
        let _ = fs::remove_dir_all(place.path("run-replay"));
        place.run(&[&["replay", "run", "--train"], more].concat())
    };
    let expect = |more: &[&str], code: i32, parts: &[&str]| {
        let outcome = replay(more);
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
        assert!(parts.iter().all(|part| outcome.error().contains(part)), "{parts:?}: {}", outcome.stderr);
    };
    expect(&["--set", "seed=7"], 2, &["generation 0 of", "written for other prompts"]);
    expect(&["--set", "num_generations=8"], 2, &["generation 0"]);
    expect(&["--set", "max_steps=3"], 1, &["has 2 generations", "generation 2 is not among them"]);
    expect(&["--set", "output_dir=x"], 2, &["--output-dir"]);
    let lines = fs::read_to_string(place.path("run/rollouts/log.jsonl")).unwrap();
    let second = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|line| line["generation"] == 1);
    let file = place.path("run/rollouts").join(format!("{}.safetensors", second.unwrap()["sha256"].as_str().unwrap()));
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&file, &damaged).unwrap();
    expect(&[], 2, &["damaged or changed"]);
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    expect(&[], 2, &["damaged or changed"]);
    // A run of its own writes them again.
    place.copy_as_after("run", 1, "half");
    let outcome = place.run(&["resume", "half", "--max-steps", "2"]);
    outcome.succeeded();
    assert!(outcome.stderr.contains("its completions are written again"), "{}", outcome.stderr);
}
