//! Agents: programs that ask the policy over HTTP, whose calls are trained on.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rlhost_tests::{KilledOnDrop, TestFolder, tiny};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TEMPLATE: &str =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// What agents in Python have in common: `chat` returns a turn of the policy.
const CHAT: &str = r#"
import json, os, sys, time, urllib.request
def ask(path, body, key=os.environ["OPENAI_API_KEY"]):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + key})
    return json.load(urllib.request.urlopen(request))
def chat(messages, **more):
    return ask("/chat/completions", {"model": "policy", "messages": messages, **more})["choices"][0]["message"]
def user(text):
    return {"role": "user", "content": text}
row = json.loads(sys.stdin.readline())
sample = int(os.environ["RLHOST_EPISODE"].rsplit("-", 1)[1])
"#;

/// A folder with prompts, a chat template, and an agent that begins with [`CHAT`].
fn place(agent: &str) -> TestFolder {
    let place = TestFolder::new();
    let rows = (0..8).map(|i| format!("{}\n", json!({"prompt": format!("Question {i}"), "answer": i})));
    place.write("rows.jsonl", rows.collect::<String>());
    place.write("chat.jinja", TEMPLATE);
    place.write("agent.py", format!("{CHAT}\n{agent}"));
    place
}

/// The arguments of a run of GRPO with an agent, eight episodes a step.
fn arguments<'a>(agent: &'a str, run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["grpo", "--agent", agent, "--model", tiny(), "--dataset", "rows.jsonl", "--output-dir", run];
    all.extend(["--chat-template-path", "chat.jinja", "--num-generations", "4", "--per-device-train-batch-size", "8"]);
    all.extend(["--max-completion-length", "12", "--logging-steps", "1", "--log-completions", "all", "--learning-rate", "0.001"]);
    all.extend(more);
    all
}

/// Returns whether a program can be had; says so if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: there is no {program}");
    }
    found
}

const LETTERS: &str = r#"
messages, letters = [user(row["prompt"])], 0
for _ in range(2):
    said = chat(messages)
    letters += said["content"].count("e")
    messages += [said, user("More.")]
print(json.dumps({"reward": letters, "metrics": {"letters": letters}}))
"#;

#[test]
fn a_program_is_trained_on_what_it_was_answered_and_a_resumed_run_is_the_same() {
    if !has("python3") {
        return;
    }
    let place = place(LETTERS);
    place.run(&arguments("python3 agent.py", "whole", &["--max-steps", "4", "--save-steps", "2"])).succeeded();
    assert_eq!(place.figure("whole", "agent/calls"), [2.0; 4]);
    assert_eq!(place.figure("whole", "agent/branches"), [0.0; 4]);
    assert_eq!(place.figure("whole", "agent/letters"), place.figure("whole", "rewards/agent/mean"));
    for line in place.lines("whole/completions.jsonl") {
        let (messages, replies) = (line["messages"].as_array().unwrap(), line["replies"].as_array().unwrap());
        assert_eq!((messages.len(), replies.len()), (4, 1));
        let letters: usize = [1, 3].iter().map(|i| messages[*i]["content"].as_str().unwrap().matches('e').count()).sum();
        assert_eq!(line["rewards"]["agent"], letters as f64);
        assert!(line["agent_output"].as_str().unwrap().contains("\"reward\""), "{line}");
    }
    // The command need not be given again: it is the run's own.
    place.copy_as_after("whole", 2, "half");
    place.run(&["resume", "half", "--max-steps", "4"]).succeeded();
    place.assert_same_end("half", "whole", 4, "model.safetensors");
}

/// Episodes that a run has stored, as `GENERATION-ROW-SAMPLE`, or as `GENERATION` for all of one.
fn stored(place: &TestFolder, run: &str) -> HashSet<String> {
    let of = |index: &str| std::fs::read_to_string(place.path(&format!("{run}/rollouts/{index}"))).unwrap_or_default();
    let all = of("log.jsonl") + &of("unfinished-0/log.jsonl");
    // A process that is killed leaves half of a line.
    let entries = all.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let name = |entry: Value| match entry["phase"].as_str() {
        Some("episode") => format!("{}-{}-{}", entry["generation"], entry["row"], entry["sample"]),
        _ => entry["generation"].to_string(),
    };
    entries.map(name).collect()
}

#[test]
fn a_run_killed_at_ten_random_moments_neither_loses_nor_repeats_a_finished_episode() {
    if !has("python3") {
        return;
    }
    let begins = "with open(os.environ[\"JOURNAL\"], \"a\") as file: file.write(os.environ[\"RLHOST_EPISODE\"] + \"\\n\")\n";
    let place = place(&format!("{begins}{LETTERS}"));
    let of = |run: &'static str| {
        let given = ["--max-steps", "12", "--save-steps", "3", "--set", "agent.pass_env=[\"JOURNAL\"]"];
        arguments("python3 agent.py", run, &given).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let start = |arguments: &[String], journal: &str| {
        let mut command = place.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        command.env("JOURNAL", place.path(journal)).stdout(Stdio::null()).stderr(Stdio::null());
        KilledOnDrop(command.spawn().unwrap())
    };
    let begun = || -> Vec<String> {
        let text = std::fs::read_to_string(place.path("begun")).unwrap_or_default();
        text.lines().map(|name| name.trim_start_matches("train-").to_owned()).collect()
    };
    let timer = Instant::now();
    assert!(start(&of("whole"), "whole-begun").0.wait().unwrap().success());
    let (whole, mut random) = (timer.elapsed().as_millis() as u64, ChaCha8Rng::seed_from_u64(11));
    let given = [&of("killed")[..], &["--resume-from-checkpoint".to_owned()]].concat();
    let (mut kept, mut played) = (HashSet::new(), 0);
    for kill in 0..=10 {
        let mut child = start(&given, "begun");
        if kill < 10 {
            std::thread::sleep(Duration::from_millis(random.random_range(whole / 12..whole / 3)));
            child.0.kill().unwrap();
        }
        child.0.wait().unwrap();
        for name in &begun()[played..] {
            let generation = name.split('-').next().unwrap();
            assert!(!kept.contains(name) && !kept.contains(generation), "{name} was played again after {kill} kills");
        }
        played = begun().len();
        kept.extend(stored(&place, "killed"));
    }
    let distinct: HashSet<String> = begun().into_iter().collect();
    assert!(distinct.len() == 12 * 8 && played > distinct.len(), "{played} episodes, {} of them distinct", distinct.len());
    place.assert_same_end("killed", "whole", 12, "model.safetensors");
}

#[test]
fn tokens_of_a_tree_are_trained_on_as_they_were_sampled() {
    if !has("python3") {
        return;
    }
    // Parallel calls, a compacted history, another conversation, and a text.
    let place = place(
        r#"
first = [user(row["prompt"])]
both = ask("/chat/completions", {"messages": first, "n": 2})["choices"]
kept = chat(first + [both[0]["message"], user("Go on.")])
chat([user("In short: " + both[1]["message"]["content"][:10]), user("Go on.")])
chat([{"role": "system", "content": "Another."}, user("Else?")])
ask("/completions", {"prompt": "assistant: and", "max_tokens": 5})
print(json.dumps({"reward": sample}))
"#,
    );
    let more = ["--max-steps", "3", "--old-logp", "recompute", "--num-iterations", "2", "--plugin", "tldr_length_reward.wasm"];
    place.run(&arguments("python3 agent.py", "run", &more)).succeeded();
    // Of a step that generates; each generation is trained on twice.
    let first = &place.lines("run/metrics.jsonl")[0];
    assert_eq!(first["agent/calls"], 6.0);
    assert!(first["agent/branches"].as_f64().unwrap() >= 4.0, "{first}");
    // What a forward pass over the tree gives each token is what it was sampled with.
    let differences = place.figure("run", "sampling/sampling_logp_difference/max");
    assert!(!differences.is_empty() && differences.iter().all(|difference| *difference < 1e-3), "{differences:?}");
}

#[test]
fn calls_may_have_rewards_of_their_own() {
    if !has("python3") {
        return;
    }
    let two = |report: &str| {
        let calls = "said = [chat([user(row[\"prompt\"])]), chat([user(\"Else?\")])]\n";
        format!("{calls}e = [one[\"content\"].count(\"e\") for one in said]\nprint(json.dumps({report}))")
    };
    let place = place(&two("{\"turn_rewards\": e}"));
    place.write("whole.py", format!("{CHAT}\n{}", two("{\"reward\": sum(e)}")));
    place.write("few.py", format!("{CHAT}\n{}", two("{\"turn_rewards\": e[:1]}")));
    let run = |name: &'static str, agent: &str, more: &[&str]| {
        let command = format!("python3 {agent}");
        place.run(&arguments(&command, name, &[&["--max-steps", "2"], more].concat())).succeeded();
        place.tensors(&format!("{name}/checkpoint-2/model.safetensors"))
    };
    // Their sum is the episode's reward, from which every call has its advantage, unless each gets its own.
    let by_episode = run("episode", "agent.py", &[]);
    assert!(by_episode == run("whole", "whole.py", &[]));
    assert!(by_episode != run("turns", "agent.py", &["--turn-advantages", "turn"]));
    for line in place.lines("turns/completions.jsonl") {
        let rewards: Vec<f64> = line["turn_rewards"].as_array().unwrap().iter().map(|reward| reward.as_f64().unwrap()).collect();
        assert_eq!((rewards.len(), rewards.iter().sum::<f64>()), (2, line["rewards"]["agent"].as_f64().unwrap()), "{line}");
    }
    let command = ["--max-steps", "1", "--plugin", "tldr_length_reward.wasm"];
    let few = place.run(&arguments("python3 few.py", "few", &command));
    assert!(few.stderr.contains("has 1 turn_rewards, but 2 calls were answered"), "{}", few.stderr);
}

#[test]
fn a_bad_agent_costs_its_row_and_a_line() {
    if !has("python3") {
        return;
    }
    let place = place(
        r#"
said = None if sample == 1 else chat([user(row["prompt"])])
if sample == 0:
    if row["answer"] % 2: time.sleep(1000)
    os.fork() or time.sleep(1000)
if sample == 2:
    if row["answer"] % 2: print("{\"reward\": NaN}")
    else: sys.exit("gave up")
if sample == 3:
    while True:
        try: chat([user(row["prompt"])])
        except urllib.error.HTTPError as error: refused = error.read().decode(); break
    try: ask("/chat/completions", {"messages": [user("x")]}, "rlhost-" + "0" * 32)
    except urllib.error.HTTPError as error: assert error.code == 401
    sys.stdout.write("x" * 3000000 + "\n")
    assert "max_turns" in refused, refused
    print(json.dumps({"reward": 1}))
"#,
    );
    place.write("agent.toml", "[[agent]]\ncommand = [\"python3\", \"agent.py\"]\ntimeout_s = 3\nmax_concurrent = 8\n");
    let run: Vec<&str> = arguments("", "run", &["--max-steps", "1", "--config", "agent.toml", "--max-turns", "3"]);
    let run: Vec<&str> = run.iter().copied().filter(|word| !["--agent", ""].contains(word)).collect();
    let outcome = place.run(&run);
    outcome.succeeded();
    assert_eq!(place.figure("run", "episodes/failed"), [6.0]);
    let lines = place.lines("run/completions.jsonl");
    assert_eq!(lines.len(), 8);
    for (i, line) in lines.iter().enumerate() {
        let failed = line["failed"].as_str().unwrap_or_default();
        match i % 4 {
            0 => assert!(failed.contains("took longer than 3 s"), "{failed}"),
            1 => assert!(failed.contains("ended without a call"), "{failed}"),
            2 => assert!(failed.contains("gave up") || failed.contains("is no JSON"), "{failed}"),
            _ => assert_eq!((failed, &line["rewards"]["agent"]), ("", &json!(1.0))),
        }
    }
}

#[test]
fn the_key_of_an_episode_that_has_ended_opens_nothing() {
    if !has("python3") {
        return;
    }
    let place = place(
        r#"
if os.path.exists("old_key"):
    try: ask("/chat/completions", {"messages": [user("x")]}, open("old_key").read())
    except urllib.error.HTTPError as error: sys.exit(f"status {error.code}")
chat([user(row["prompt"])])
open("old_key", "w").write(os.environ["OPENAI_API_KEY"])
print(json.dumps({"reward": 1}))
"#,
    );
    let given = ["--max-steps", "1", "--set", "agent.max_concurrent=1"];
    let outcome = place.run(&arguments("python3 agent.py", "run", &given));
    let warning = "a request with the key of an episode that has ended was refused";
    assert_eq!(outcome.succeeded().stderr.matches(warning).count(), 1, "{}", outcome.stderr);
    let lines = place.lines("run/completions.jsonl");
    let failed: Vec<&str> = lines.iter().map(|line| line["failed"].as_str().unwrap_or_default()).collect();
    assert!(failed[0].is_empty() && failed[1..].iter().all(|reason| reason.contains("status 410")), "{failed:?}");
}

#[test]
fn rows_and_evaluations_that_fail_do_not_end_a_run_and_agents_that_always_fail_do() {
    if !has("python3") {
        return;
    }
    let fails = |when: &str| {
        let name = "phase, generation = os.environ[\"RLHOST_EPISODE\"].split(\"-\")[:2]";
        format!("{name}\nif {when}:\n    sys.exit(5)\n{LETTERS}")
    };
    let place = place(&fails("phase == \"eval\" or generation == \"2\""));
    place.write("ever.py", format!("{CHAT}\n{}", fails("int(generation) >= 2")));
    // A generation is a row.
    let one = ["--per-device-train-batch-size", "4", "--max-steps", "6", "--eval-dataset", "rows.jsonl", "--eval-steps", "2"];
    let run = place.run(&arguments("python3 agent.py", "run", &[&one[..], &["--num-generations-eval", "2"]].concat()));
    assert!(run.succeeded().stderr.contains("exit status: 5"), "{}", run.stderr);
    let failed: Vec<f64> = place.lines("run/metrics.jsonl").iter().filter_map(|row| row["episodes/failed"].as_f64()).collect();
    assert_eq!(failed.iter().filter(|count| **count == 4.0).count(), 1, "{failed:?}");
    let ever = place.run(&arguments("python3 ever.py", "ever", &one[..4]));
    assert!(ever.code == Some(1) && ever.error().contains("3 generations in a row"), "{}", ever.stderr);
    // Whoever has fixed the agent goes on, and what failed is played again.
    place.write("ever.py", format!("{CHAT}\n{LETTERS}"));
    place.run(&["resume", "ever", "--max-steps", "6"]).succeeded();
    assert_eq!(place.figure("ever", "episodes/failed").last(), Some(&0.0));
}

#[test]
fn programs_that_stay_end_with_a_run_that_is_killed() {
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: only Linux ends a program with the run");
        return;
    }
    if !has("python3") {
        return;
    }
    let place = place("");
    place.write("stays.py", "import os, time\nopen(f\"pid-{os.getpid()}\", \"w\").close()\ntime.sleep(100000)\n");
    let given = ["--max-steps", "1", "--set", "agent.persistent=true"];
    let mut run = KilledOnDrop(place.start(&arguments("python3 stays.py", "run", &given)));
    let pids = || -> Vec<String> {
        let names = std::fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter_map(|name| name.strip_prefix("pid-").map(str::to_owned)).collect()
    };
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("no program was started", &|| !pids().is_empty());
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    // One that has ended may wait to be collected.
    let lives = |pid: &String| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    until("a program lives on", &|| !pids().iter().any(lives));
}

#[test]
fn an_agent_whose_calls_never_continue_is_told_why() {
    if !has("python3") {
        return;
    }
    let place = place(
        r#"
messages = [user(row["prompt"])]
for turn in range(3):
    messages += [chat([{"role": "system", "content": f"It is {turn} o'clock."}] + messages), user("More.")]
print(json.dumps({"reward": 1}))
"#,
    );
    let run = place.run(&arguments("python3 agent.py", "run", &["--max-steps", "1"]));
    let warned = run.succeeded().stderr.matches("none of the 3 calls of an episode extends an earlier one").count();
    assert!(warned == 1 && run.stderr.contains("It is 0 o'clock.") && run.stderr.contains("It is 1 o'clock."), "{}", run.stderr);
}

#[test]
fn a_program_that_stays_plays_one_episode_after_another() {
    if !has("python3") {
        return;
    }
    let place = place("");
    let agent = r#"
played = 0
for line in sys.stdin:
    episode = json.loads(line)
    os.environ["OPENAI_BASE_URL"], key = episode["base_url"], episode["api_key"]
    said = ask("/chat/completions", {"messages": [user(episode["row"]["prompt"])]}, key)["choices"][0]["message"]["content"]
    played += 1
    print("thinking of", episode["episode"], flush=True)
    print(json.dumps({"reward": said.count("e"), "metrics": {"played": played}}), flush=True)
"#;
    let common = CHAT.split("row = ").next().unwrap().replace("key=os.environ[\"OPENAI_API_KEY\"]", "key=None");
    place.write("agent.py", format!("{common}\n{agent}"));
    place.write("agent.toml", "[[agent]]\ncommand = [\"python3\", \"agent.py\"]\npersistent = true\nmax_concurrent = 2\n");
    let run: Vec<&str> = arguments("", "run", &["--max-steps", "3", "--config", "agent.toml"]);
    let run: Vec<&str> = run.iter().copied().filter(|word| !["--agent", ""].contains(word)).collect();
    place.run(&run).succeeded();
    assert_eq!(place.figure("run", "episodes/failed"), [0.0; 3]);
    // Two programs have played all of 24 episodes.
    let played = place.figure("run", "agent/played");
    assert!(played[2] > 8.0 && played.is_sorted(), "{played:?}");
    for line in place.lines("run/completions.jsonl") {
        let letters = line["messages"][1]["content"].as_str().unwrap().matches('e').count();
        assert_eq!(line["rewards"]["agent"], letters as f64);
    }
}

#[test]
fn episodes_are_played_while_training_goes_on_by_the_weights_that_began_them() {
    if !has("python3") {
        return;
    }
    // Lengths differ, so that the first step learns something.
    let place = place(&LETTERS.replace("said[\"content\"].count(\"e\")", "len(said[\"content\"])"));
    let run = |name: &'static str, more: &[&str]| {
        let given = [&["--max-steps", "4", "--save-steps", "2", "--max-staleness", "1"], more].concat();
        place.run(&arguments("python3 agent.py", name, &given)).succeeded();
        let tokens = |step: u64| -> Vec<Value> {
            let lines = place.lines(&format!("{name}/completions.jsonl"));
            lines.iter().filter(|line| line["step"] == step).map(|line| line["completion_ids"].clone()).collect()
        };
        [0, 1, 2, 3].map(tokens)
    };
    let (ahead, frozen) = (run("ahead", &["--learning-rate", "0.01"]), run("frozen", &["--learning-rate", "0"]));
    // The second generation began before the first update, and its agents may have asked after it.
    assert_eq!(place.figure("ahead", "rollout/staleness/max"), [0.0, 1.0, 1.0, 1.0]);
    assert!(ahead[..2] == frozen[..2] && ahead[2] != frozen[2] && ahead[0] != ahead[1]);
    assert_eq!(place.figure("ahead", "agent/calls"), [2.0; 4]);
    // Log-probabilities are those of sampling where the weights are the same.
    let differences = place.figure("frozen", "sampling/sampling_logp_difference/max");
    assert!(differences.len() == 4 && differences.iter().all(|difference| *difference < 1e-3), "{differences:?}");
    // Evaluations in between change nothing, and discard nothing.
    let evaluated =
        ["--learning-rate", "0.01", "--eval-dataset", "rows.jsonl", "--eval-steps", "1", "--num-generations-eval", "2"];
    assert!(run("evaluated", &evaluated) == ahead);
    let rows = place.lines("evaluated/metrics.jsonl");
    let of = |name: &str| rows.iter().filter_map(|row| row[name].as_f64()).collect::<Vec<f64>>();
    assert_eq!((of("rollout/staleness/max"), of("eval_agent/calls")), (vec![0.0, 1.0, 1.0, 1.0], vec![2.0; 4]));
    // A run that resumes trains on the completions that the log has, whatever weights it would begin them with.
    place.copy_as_after("ahead", 2, "half");
    place.run(&["resume", "half", "--max-steps", "4"]).succeeded();
    place.assert_same_end("half", "ahead", 4, "model.safetensors");
    // Without the log it plays what was under way again, with the weights that it has.
    place.copy_as_after("ahead", 2, "anew");
    std::fs::remove_dir_all(place.path("anew/rollouts")).unwrap();
    place.run(&["resume", "anew", "--max-steps", "4"]).succeeded();
    assert_eq!(place.figure("anew", "rollout/staleness/max"), [0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn a_run_that_ends_kills_the_programs_that_play_ahead() {
    if !has("python3") {
        return;
    }
    let hangs = "if os.environ[\"RLHOST_EPISODE\"].startswith(\"train-3\"):\n    open(\"ahead\", \"w\").close()\n    time.sleep(100000)\n";
    let place = place(&format!("{hangs}{LETTERS}"));
    let given = ["--max-steps", "2", "--max-staleness", "1", "--set", "agent.timeout_s=100000"];
    place.run(&arguments("python3 agent.py", "run", &given)).succeeded();
    assert_eq!(place.figure("run", "agent/calls"), [2.0; 2]);
}

#[test]
fn rows_name_the_agent_that_plays_them() {
    if !has("python3") {
        return;
    }
    let place = place(LETTERS);
    let rows = |names: [&str; 2]| {
        let row = |i: usize| format!("{}\n", json!({"prompt": format!("Question {i}"), "agent": names[i % 2]}));
        (0..8).map(row).collect::<String>()
    };
    place.write("rows.jsonl", rows(["shop", "maths"]));
    place.write("maths.py", format!("{CHAT}\nprint(json.dumps({{\"reward\": len(chat([user(\"1+1\")])[\"content\"])}}))"));
    let tables = |maths: &str| {
        let table = |name: &str, script: &str, more: &str| {
            format!("[[agent]]\nname = \"{name}\"\ncommand = [\"python3\", \"{script}\"]\n{more}\n")
        };
        table("shop", "agent.py", "max_concurrent = 3") + &table("maths", maths, "weight = 0.5")
    };
    place.write("two.toml", tables("maths.py"));
    place.write("twice.toml", tables("agent.py").replace("0.5", "1.0"));
    let run = |name: &'static str, more: &[&str]| {
        let mut given = arguments("", name, &["--max-steps", "4", "--save-steps", "2"]);
        given.splice(1..3, more.iter().copied());
        place.run(&given)
    };
    run("two", &["--config", "two.toml"]).succeeded();
    // A step may have rows of one agent only.
    for (metric, calls) in [("shop/calls", 2.0), ("maths/calls", 1.0)] {
        let all: Vec<f64> = place.lines("two/metrics.jsonl").iter().filter_map(|row| row[metric].as_f64()).collect();
        assert!(!all.is_empty() && all.iter().all(|number| *number == calls), "{metric}: {all:?}");
    }
    let by_agent: Vec<(bool, bool)> = place
        .lines("two/completions.jsonl")
        .iter()
        .map(|line| (line["rewards"]["shop"].is_number(), line["rewards"]["maths"].is_number()))
        .collect();
    assert_eq!(by_agent.iter().filter(|row| **row == (true, false)).count(), 16, "{by_agent:?}");
    assert_eq!(by_agent.iter().filter(|row| **row == (false, true)).count(), 16, "{by_agent:?}");
    place.copy_as_after("two", 2, "half");
    place.run(&["resume", "half", "--max-steps", "4"]).succeeded();
    place.assert_same_end("half", "two", 4, "model.safetensors");
    // The same program under two names is the same as under one.
    run("twice", &["--config", "twice.toml"]).succeeded();
    run("once", &["--agent", "python3 agent.py"]).succeeded();
    let weights = |run: &str| place.tensors(&format!("{run}/checkpoint-4/model.safetensors"));
    assert!(weights("twice") == weights("once"), "other weights");
    place.write("rows.jsonl", rows(["shop", "Maths"]));
    let unknown = run("unknown", &["--config", "two.toml"]);
    assert!(unknown.error().contains("row 1: its column \"agent\" must be one of shop, maths"), "{}", unknown.stderr);
}

#[test]
fn an_agent_that_cannot_be_started_and_models_without_chat_say_so() {
    let place = place("");
    let outcome = place.run(&arguments("/no/such/agent", "run", &["--max-steps", "1"]));
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("/no/such/agent can't be started"), "{}", outcome.stderr);
    let both = place.run(&arguments("a", "run", &["--environment", "calculator_tool.wasm"]));
    assert!(both.code == Some(2) && both.stderr.contains("both an agent and an environment"), "{}", both.stderr);
}

#[test]
fn a_run_with_agents_says_what_it_cannot_repeat() {
    if !has("python3") {
        return;
    }
    let place = place(LETTERS);
    let outcome = place.run(&arguments("python3 agent.py", "run", &["--max-steps", "1"]));
    for part in ["agents: agent", "what agents do by chance, time or network can't be repeated"] {
        assert!(outcome.succeeded().stderr.contains(part), "{part}: {}", outcome.stderr);
    }
}

/// The examples, in every language that can be had.
#[test]
fn the_examples_are_agents_in_three_languages() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/agents");
    let place = place("");
    let shown = |name: &str| folder.join(name).display().to_string();
    for (command, programs) in [
        (format!("python3 {}", shown("agent.py")), vec!["python3"]),
        (format!("node {}", shown("agent.mjs")), vec!["node"]),
        (format!("bash {}", shown("agent.sh")), vec!["bash", "curl", "jq"]),
    ] {
        if !programs.iter().all(|program| has(program)) {
            continue;
        }
        let run = programs[0];
        place.run(&arguments(&command, run, &["--max-steps", "1"])).succeeded();
        assert_eq!(place.figure(run, "agent/calls"), [3.0], "{command}");
        assert_eq!(place.figure(run, "episodes/failed"), [0.0], "{command}");
        let pages = |line: &Value| {
            let said = line["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "assistant");
            said.filter(|said| said["content"].as_str().unwrap().contains(|c: char| c.is_ascii_digit())).count()
        };
        for line in place.lines(&format!("{run}/completions.jsonl")) {
            let wanted = pages(&line) as f64 / 3.0;
            assert!((line["rewards"]["agent"].as_f64().unwrap() - wanted).abs() < 1e-6, "{command}: {line}");
        }
    }
}
