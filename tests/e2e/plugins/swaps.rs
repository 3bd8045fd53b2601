//! Plugins that change while the run goes on.

use rlhost_tests::crafted::{NO_SCORES, core_reward, deep, long, multiplied};
use rlhost_tests::{HOSTILE, KilledOnDrop, REMEMBERING, TestFolder, VERSIONED, small, version};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

/// Longest that anything here is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run in `run` with steps of a tenth of a second, or what it is, and a good plugin in a file.
struct PluginSwapRun {
    // Ended before its folder goes.
    child: KilledOnDrop,
    place: TestFolder,
}

impl PluginSwapRun {
    fn start(more: &[&str]) -> Self {
        let place = TestFolder::new();
        place.write("versioned.wasm", version(1));
        Self::start_in(place, more)
    }

    fn start_in(place: TestFolder, more: &[&str]) -> Self {
        let plugin = ["--plugin", "versioned.wasm", "--output-dir", "run", "--max-steps", "100000", "--logging-steps", "1"];
        // On one thread: what counts are the swaps.
        let size = [
            "--max-completion-length",
            "96",
            "--per-device-train-batch-size",
            "16",
            "--learning-rate",
            "0",
            "--num-threads",
            "1",
        ];
        let child = KilledOnDrop(place.start(&[&small()[..], &plugin, &size, more].concat()));
        let this = Self { child, place };
        this.wait(|| this.steps() > 1);
        this
    }

    #[track_caller]
    fn wait(&self, done: impl Fn() -> bool) {
        self.place.wait("run", PATIENCE, done);
    }

    fn steps(&self) -> usize {
        self.place.steps("run")
    }

    /// Waits for some further steps.
    fn wait_for_steps(&self, steps: usize) {
        let now = self.steps();
        self.wait(|| self.steps() >= now + steps);
    }

    fn count(&self, kind: &str) -> usize {
        self.events(kind).len()
    }

    /// Events of a kind; half a line at the end is not there yet.
    fn events(&self, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.place.path("run/events.jsonl")).unwrap_or_default();
        let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        lines.filter(|e| e["event"] == kind).collect()
    }

    /// Waits for one more event of a kind than there were.
    fn next(&self, kind: &str, before: usize) -> Value {
        self.wait(|| self.count(kind) > before);
        self.events(kind).swap_remove(before)
    }

    fn reward(&self) -> f64 {
        *self.place.figure("run", "rewards/versioned/mean").last().unwrap()
    }

    /// Ends the run as a user would, and asserts that it was well until then.
    fn stop(mut self) -> TestFolder {
        self.child.signal("TERM");
        assert_eq!(self.child.wait().unwrap().code(), Some(3));
        self.place
    }
}

#[test]
fn a_hundred_swaps_from_outside_each_land_within_two_steps() {
    let running = PluginSwapRun::start(&["--per-device-train-batch-size", "64"]);
    let swap = |file: &str| running.place.run(&["swap", "run", &format!("versioned={file}")]);
    let mut last_good = 1;
    for number in 2..=101u32 {
        if number == 50 {
            running.place.write("bad.wasm", b"\0asm\x0d\0\x01\0rubbish");
            let refused = swap("bad.wasm");
            assert_eq!(refused.code, Some(1));
            assert!(refused.error().contains("versioned was not swapped"), "{}", refused.error());
            running.wait_for_steps(2);
            assert_eq!(running.reward(), f64::from(last_good));
        }
        running.place.write("next.wasm", version(number));
        // Compiled here: how many steps go by meanwhile would be the machine's affair.
        running.place.run(&["plugin", "inspect", "next.wasm"]).succeeded();
        let outcome = swap("next.wasm");
        outcome.succeeded();
        assert!(outcome.stdout.contains("was swapped at step"), "{}", outcome.stdout);
        last_good = number;
    }
    running.wait_for_steps(1);
    let swaps = running.events("plugin_swapped");
    assert_eq!((swaps.len(), running.count("plugin_refused"), running.count("plugin_rolled_back")), (100, 1, 0));
    for swap in &swaps {
        let (noticed, step) = (swap["noticed_at_step"].as_u64().unwrap(), swap["step"].as_u64().unwrap());
        assert!(step <= noticed + 2, "{swap}");
        assert!(swap["pause_ms"].is_number() && swap["shadow"]["rows"] == 64, "{swap}");
    }
    let place = running.stop();
    // Every version was in its place for a step at least, and in order.
    let mut seen = place.figure("run", "rewards/versioned/mean");
    seen.dedup();
    assert_eq!(seen, (1..=101).map(f64::from).collect::<Vec<_>>());
    let steps = place.figure("run", "step");
    assert!(steps.windows(2).all(|w| w[1] == w[0] + 1.0), "a step was left out");
}

#[test]
fn a_file_may_be_replaced_in_any_way_and_never_runs_half_loaded() {
    let running = PluginSwapRun::start(&[]);
    let file = running.place.path("versioned.wasm");
    let swapped_to = |number: u32, before: usize| {
        running.next("plugin_swapped", before);
        running.wait_for_steps(1);
        running.wait(|| running.reward() == f64::from(number));
    };
    // Renamed over.
    running.place.write("new", version(2));
    fs::rename(running.place.path("new"), &file).unwrap();
    swapped_to(2, 0);
    // Copied over slowly.
    let bytes = version(3);
    let mut out = fs::File::create(&file).unwrap();
    for part in bytes.chunks(bytes.len() / 8) {
        out.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(120));
    }
    drop(out);
    swapped_to(3, 1);
    // Deleted, which changes nothing, and put back as something else.
    fs::remove_file(&file).unwrap();
    running.wait_for_steps(3);
    assert_eq!(running.reward(), 3.0);
    running.place.write("versioned.wasm", version(4));
    swapped_to(4, 2);
    // Ten times a second, for a while.
    for number in 10..30 {
        running.place.write("new", version(number));
        fs::rename(running.place.path("new"), &file).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    running.wait(|| running.reward() == 29.0);
    assert_eq!((running.count("plugin_refused"), running.count("plugin_rolled_back")), (0, 0));
    running.stop();
}

#[test]
fn what_does_not_fit_is_refused_by_name_and_the_old_one_stays() {
    let running = PluginSwapRun::start(&["--set", "plugin.versioned.config.plus=0.5"]);
    let grpo = {
        running.place.train("other", &["--max-steps", "1"]).succeeded();
        let kept = running.place.entries_of("other/plugins").into_iter().find(|n| n.starts_with("grpo-")).unwrap();
        fs::read(running.place.path("other/plugins").join(kept)).unwrap()
    };
    let cases: [(&str, Vec<u8>, &str); 4] = [
        ("rubbish", b"rubbish".to_vec(), "magic bytes"),
        ("nothing", Vec::new(), "empty"),
        ("another world", grpo, "rlhost:plugin/reward@1.0.0"),
        ("another configuration", fs::read(HOSTILE).unwrap(), "plus"),
    ];
    for (i, (what, bytes, expected)) in cases.into_iter().enumerate() {
        // In one go: a file that is empty for a while, on a busy machine, would be refused once more.
        running.place.write("next.wasm", bytes);
        fs::rename(running.place.path("next.wasm"), running.place.path("versioned.wasm")).unwrap();
        let refused = running.next("plugin_refused", i);
        assert!(refused["reason"].as_str().unwrap().contains(expected), "{what}: {refused}");
        running.wait_for_steps(1);
        assert_eq!(running.reward(), 1.5, "{what}");
    }
    running.place.write("versioned.wasm", version(2));
    running.next("plugin_swapped", 0);
    running.stop();
}

#[test]
fn one_that_fails_on_real_data_gives_its_place_back() {
    // Odd versions trap from a step on that only comes after the swap's trial, and within the steps in which one is
    // taken back. Steps are long, so that the trial, on a busy machine too, has a batch of an earlier one.
    let long = "plugin.versioned.config.additions=10000000";
    let saved = ["--save-steps", "1", "--save-total-limit", "1000"];
    let running = PluginSwapRun::start(&[&["--set", "plugin.versioned.config.trap_at=40", "--set", long], &saved[..]].concat());
    running.place.write("versioned.wasm", version(2));
    running.next("plugin_swapped", 0);
    running.wait(|| running.steps() >= 33);
    running.place.write("versioned.wasm", version(3));
    let swapped = running.next("plugin_swapped", 1);
    let first_trap = swapped["step"].as_u64().unwrap().max(40);
    let back = running.next("plugin_rolled_back", 0);
    assert!(back["reason"].as_str().unwrap().contains("version 3 on real data"), "{back}");
    assert_eq!((&back["step"], &back["to"]), (&Value::from(first_trap), &swapped["from"]));
    running.wait_for_steps(2);
    assert_eq!(running.reward(), 2.0);
    let place = running.stop();
    let steps = place.figure("run", "step");
    assert!(steps.windows(2).all(|w| w[1] == w[0] + 1.0), "a step was left out");
    // From the checkpoint that the signal made, with the plugin that was in place.
    let last = *steps.last().unwrap() as u64;
    let on = format!("max_steps={}", last + 2);
    place.run(&["resume", "run", "--set", &on]).succeeded();
    assert_eq!(place.figure("run", "rewards/versioned/mean").last(), Some(&2.0));
    let rest: Value =
        serde_json::from_slice(&fs::read(place.path(&format!("run/checkpoint-{}/trainer/snapshot.json", last + 2))).unwrap())
            .unwrap();
    assert_eq!(rest["swaps"].as_array().unwrap().len(), 3);
    // One that resumes before the trap goes back too, although its process never had the version that was replaced.
    let swapped = swapped["step"].as_u64().unwrap();
    place.copy("run", "again");
    place.run(&["resume", "again", "--step", &(swapped + 1).to_string(), "--set", &on]).succeeded();
    let again = place.lines("again/events.jsonl").into_iter().filter(|event| event["event"] == "plugin_rolled_back");
    assert_eq!(again.map(|event| event["step"].clone()).collect::<Vec<_>>(), vec![back["step"].clone(); 2]);
    assert_eq!(place.lines_without_times("again/metrics.jsonl"), place.lines_without_times("run/metrics.jsonl"));
}

#[test]
fn a_version_that_fails_at_any_later_step_gives_way_to_the_one_before_if_its_on_error_says_so() {
    let place = TestFolder::new();
    place.write("versioned.wasm", version(2));
    let own =
        ["--plugin", "versioned.wasm", "--output-dir", "run", "--max-steps", "2", "--logging-steps", "7", "--save-steps", "5"];
    let size = ["--max-completion-length", "12", "--per-device-train-batch-size", "16", "--learning-rate", "0"];
    let trap = ["--set", "plugin.versioned.config.trap_at=20", "--set", "plugin.versioned.on_error=previous"];
    place.run(&[&small()[..], &own, &size, &trap].concat()).succeeded();
    // Swapped in before the next step, and fails eighteen steps later.
    place.write("versioned.wasm", version(3));
    place.copy("run", "ends");
    let on = ["--max-steps", "30"];
    place.run(&[&["resume", "run"], &on[..]].concat()).succeeded();
    let [swapped, back] = ["plugin_swapped", "plugin_rolled_back"].map(|kind| place.events("run", kind).remove(0));
    assert_eq!((&swapped["step"], &back["step"], &back["to"]), (&2.into(), &20.into(), &swapped["from"]));
    let mut rewards = place.figure("run", "rewards/versioned/mean");
    let steps = place.figure("run", "step");
    assert_eq!(steps, [2.0, 7.0, 14.0, 20.0, 21.0, 28.0, 30.0]);
    assert_eq!(rewards, [2.0, 3.0, 3.0, 3.0, 2.0, 2.0, 2.0]);
    // The checkpoint of step 15, eight steps and more after the swap, has the version before.
    place.copy_as_after("run", 15, "again");
    place.run(&["resume", "again"]).succeeded();
    assert_eq!(place.lines_without_times("again/metrics.jsonl"), place.lines_without_times("run/metrics.jsonl"));
    // Without the setting, the run ends there.
    let fails = ["--set", "plugin.versioned.on_error=fail"];
    let ended = place.run(&[&["resume", "ends"], &on[..], &fails].concat());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    rewards = place.figure("ends", "rewards/versioned/mean");
    assert_eq!(rewards.last(), Some(&3.0));
    assert!(place.events("ends", "plugin_rolled_back").is_empty());
}

#[test]
fn weights_and_settings_in_the_runs_configuration_change_it_too() {
    let running = PluginSwapRun::start(&[]);
    let file = running.place.path("run/config.toml");
    let edit = |from: &str, to: &str| {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{from:?} is not in {text}");
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
    };
    edit("weight = 1.0", "weight = 3.0");
    let changed = running.next("settings_changed", 0);
    assert_eq!((&changed["from"]["weight"], &changed["to"]["weight"]), (&Value::from(1.0), &Value::from(3.0)));
    running.wait_for_steps(2);
    assert_eq!(*running.place.figure("run", "reward").last().unwrap(), 3.0);
    edit("plus = 0.0", "plus = 0.25");
    running.next("plugin_swapped", 0);
    running.wait_for_steps(2);
    assert_eq!(running.reward(), 1.25);
    edit("beta = 0.0", "beta = 0.0\nepsilon_high = 0.4");
    assert_eq!(running.next("plugin_swapped", 1)["plugin"], "grpo");
    edit("temperature = 1.0", "temperature = 0.5");
    let refused = running.next("settings_refused", 0);
    assert!(refused["reason"].as_str().unwrap().contains("temperature can't change"), "{refused}");
    assert!(refused.get("plugin").is_none() && running.count("plugin_refused") == 0, "{refused}");
    edit("temperature = 0.5", "temperature = 1.0");
    edit("plus = 0.25", "puls = 0.25");
    let refused = running.next("settings_refused", 1);
    assert!(refused["reason"].as_str().unwrap().contains("puls") && refused["plugin"] == "versioned", "{refused}");
    running.stop();
}

#[test]
fn a_state_goes_over_to_the_next_version() {
    let place = TestFolder::new();
    let bytes = fs::read(REMEMBERING).unwrap();
    place.write("remembering.wasm", &bytes);
    place.write("versioned.wasm", version(1));
    let running = PluginSwapRun::start_in(place, &["--plugin", "remembering.wasm"]);
    // The same program under another hash: an empty custom section more.
    running.place.write("remembering.wasm", [&bytes[..], b"\0\x02\x01x"].concat());
    let swapped = running.next("plugin_swapped", 0);
    assert_eq!(swapped["state_handed_over"], true, "{swapped}");
    running.wait_for_steps(2);
    let place = running.stop();
    let last = *place.checkpoints("run").last().unwrap();
    let state: Value = serde_json::from_slice(
        &fs::read(place.path(&format!("run/checkpoint-{last}/trainer/plugins/remembering.state"))).unwrap(),
    )
    .unwrap();
    assert_eq!(state["batches"], last, "a batch was forgotten, or counted twice");
}

#[test]
fn a_resumed_run_has_the_plugin_it_had_and_sees_what_changed_meanwhile() {
    let running = PluginSwapRun::start(&[]);
    running.place.write("sent.wasm", version(7));
    running.place.run(&["swap", "run", "versioned=sent.wasm"]).succeeded();
    running.wait_for_steps(1);
    let place = running.stop();
    let more = |place: &TestFolder| {
        let last = *place.checkpoints("run").last().unwrap();
        place.run(&["resume", "run", "--max-steps", &format!("{}", last + 12)])
    };
    // The file still holds version 1, which was there before the swap and is no news.
    more(&place).succeeded();
    assert_eq!(place.figure("run", "rewards/versioned/mean").last(), Some(&7.0));
    place.write("versioned.wasm", version(8));
    more(&place).succeeded();
    assert_eq!(place.figure("run", "rewards/versioned/mean").last(), Some(&8.0));
    let refused = place.run(&["swap", "run", "versioned=sent.wasm"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("no rlhost process is running"), "{}", refused.error());
}

#[test]
fn the_folder_of_new_versions_may_have_been_removed_and_the_same_version_may_come_again() {
    let running = PluginSwapRun::start(&[]);
    fs::remove_dir_all(running.place.path("run/swap")).unwrap();
    running.place.write("sent.wasm", version(7));
    running.place.run(&["swap", "run", "versioned=sent.wasm"]).succeeded();
    running.wait(|| running.reward() == 7.0);
    let again = running.place.run(&["swap", "run", "versioned=sent.wasm"]);
    again.succeeded();
    assert_eq!(running.count("plugin_swapped"), 2);
    running.stop();
}

#[test]
fn mistakes_in_a_swap_are_named() {
    let running = PluginSwapRun::start(&[]);
    let say = |arguments: &[&str]| {
        let outcome = running.place.run(&[&["swap"], arguments].concat());
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        outcome.error().to_owned()
    };
    assert!(say(&["nowhere", &format!("versioned={VERSIONED}")]).contains("not the folder of a run"));
    assert!(say(&["run", "versioned"]).contains("NAME=FILE"));
    let near = say(&["run", &format!("version={VERSIONED}")]);
    assert!(near.contains("did you mean \"versioned\"") && near.contains("grpo"), "{near}");
    assert!(say(&["run", "versioned=nowhere.wasm"]).contains("nowhere.wasm"));
    // By the name of one that ships with the host.
    running.place.run(&["swap", "run", "versioned=tldr_length_reward.wasm"]).succeeded();
    let hash = running.next("plugin_swapped", 0)["to"].clone();
    let of_file = running.place.entries_of("run/plugins").into_iter().filter_map(|name| Some(name.split_once('-')?.1.to_owned()));
    assert!(of_file.into_iter().any(|name| hash.as_str().unwrap().starts_with(name.trim_end_matches(".wasm"))), "{hash}");
    running.stop();
}

#[test]
fn a_version_with_other_settings_has_its_own_defaults_beside_what_the_user_chose() {
    let begin = |more: &[&str]| {
        let place = TestFolder::new();
        fs::copy(HOSTILE, place.path("versioned.wasm")).unwrap();
        PluginSwapRun::start_in(place, more)
    };
    // It knows none of the settings that the one before has by default.
    let run = begin(&[]);
    run.place.write("versioned.wasm", version(2));
    run.wait(|| run.count("plugin_swapped") == 1);
    drop(run);
    // Nor one that was chosen and is the default.
    let run = begin(&["--set", "plugin.versioned.config.misdeed=none"]);
    run.place.write("versioned.wasm", version(2));
    run.wait(|| run.count("plugin_swapped") == 1);
    drop(run);
    // Nor the one that was chosen otherwise, which is said.
    let run = begin(&["--set", "plugin.versioned.config.from_step=100000000"]);
    run.place.write("versioned.wasm", version(2));
    run.wait(|| run.count("plugin_refused") == 1);
    let reason = run.events("plugin_refused")[0]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("from_step") && !reason.contains("misdeed"), "{reason}");
}

#[cfg(unix)]
#[test]
fn what_is_no_file_in_a_plugins_place_is_said_once_and_holds_nothing_up() {
    let run = PluginSwapRun::start(&[]);
    let (pipe, file) = (run.place.path("pipe"), run.place.path("versioned.wasm"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::rename(&pipe, &file).unwrap();
    run.wait(|| run.count("plugin_refused") == 1);
    // As large as no plugin is, without a byte on the disk.
    let huge = fs::File::create(run.place.path("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    fs::rename(run.place.path("huge"), &file).unwrap();
    run.wait(|| run.count("plugin_refused") == 2);
    let said: Vec<String> = run.events("plugin_refused").iter().map(|e| e["reason"].to_string()).collect();
    assert!(said.iter().all(|reason| reason.contains("can't be read")) && said[0] != said[1], "{said:?}");
    // What was there before is no news when it comes back.
    run.place.write("versioned.wasm", version(1));
    run.wait_for_steps(5);
    assert_eq!((run.count("plugin_refused"), run.count("plugin_swapped")), (2, 0));
    run.place.write("versioned.wasm", version(2));
    run.wait(|| run.count("plugin_swapped") == 1);
}

#[test]
fn what_can_t_be_compiled_ends_no_run() {
    let running = PluginSwapRun::start(&["--set", "plugin.versioned.limits.compile_timeout_s=3"]);
    for (i, (bytes, expected)) in
        [(multiplied(), "including nested ones"), (deep(), "nested too deeply"), (long(), "limits.compile_timeout_s")]
            .into_iter()
            .enumerate()
    {
        running.place.write("next.wasm", bytes);
        fs::rename(running.place.path("next.wasm"), running.place.path("versioned.wasm")).unwrap();
        let refused = running.next("plugin_refused", i);
        assert!(refused["reason"].as_str().unwrap().contains(expected), "{expected}: {refused}");
        running.wait_for_steps(1);
    }
    running.place.write("versioned.wasm", version(2));
    running.next("plugin_swapped", 0);
    running.stop();
}

#[test]
fn a_version_that_tries_out_badly_neither_ends_the_run_nor_takes_its_threads() {
    // It computes for ever in its trial, up to a limit of many steps.
    let place = TestFolder::new();
    place.write("versioned.wasm", core_reward("", NO_SCORES));
    let running = PluginSwapRun::start_in(place, &["--plugin", "tldr_length_reward.wasm"]);
    running.place.write("next.wasm", core_reward("", "(loop $again (br $again)) (unreachable)"));
    fs::rename(running.place.path("next.wasm"), running.place.path("versioned.wasm")).unwrap();
    running.wait_for_steps(30);
    assert_eq!((running.count("plugin_refused"), running.count("plugin_swapped")), (0, 0));
    running.stop();
}

#[test]
fn a_version_that_fails_beside_its_score_gives_its_place_back() {
    let counted = r#"(global $asked (mut i32) (i32.const 0))
        (func $count (global.set $asked (i32.add (global.get $asked) (i32.const 1)))
            (if (i32.gt_u (global.get $asked) (i32.const 2)) (then (unreachable))))"#;
    let state = r#"
        (func (export "rlhost:plugin/state@0.1.0#snapshot") (result i32) (call $count) (i32.const 512))
        (func (export "rlhost:plugin/state@0.1.0#restore") (param i32 i32 i32 i32) (result i32) (i32.const 128))"#;
    let observer = r#"
        (func (export "rlhost:plugin/observer@0.1.0#observe") (param i64 i32 i32) (call $count))"#;
    for (more, function) in [(state, "snapshot"), (observer, "observe")] {
        let place = TestFolder::new();
        place.write("versioned.wasm", core_reward("", NO_SCORES));
        let running = PluginSwapRun::start_in(place, &["--plugin", "tldr_length_reward.wasm"]);
        running.place.write("next.wasm", core_reward(&format!("{counted}{more}"), NO_SCORES));
        fs::rename(running.place.path("next.wasm"), running.place.path("versioned.wasm")).unwrap();
        let back = running.next("plugin_rolled_back", 0);
        assert!(back["reason"].as_str().unwrap().contains(&format!("versioned, {function}")), "{back}");
        running.wait_for_steps(2);
        let place = running.stop();
        let steps = place.figure("run", "step");
        assert!(steps.windows(2).all(|w| w[1] == w[0] + 1.0), "{function}: a step was left out: {steps:?}");
    }
}

#[test]
fn of_thousands_of_requests_the_newest_is_taken_and_the_rest_named_once() {
    let running = PluginSwapRun::start(&[]);
    let refused = running.count("plugin_refused");
    let inbox = running.place.path("run/swap");
    for i in 1..3000 {
        fs::write(inbox.join(format!("versioned@{i}.wasm")), "no plugin").unwrap();
    }
    fs::write(inbox.join("versioned@3000.part"), version(3)).unwrap();
    fs::rename(inbox.join("versioned@3000.part"), inbox.join("versioned@3000.wasm")).unwrap();
    running.wait(|| running.count("plugin_swapped") > 0);
    assert_eq!(running.events("plugin_swapped")[0]["request"], "versioned@3000");
    running.wait_for_steps(2);
    let named = running.events("plugin_refused").split_off(refused);
    // It may have looked a few times while they came.
    assert!(
        named.len() < 200 && named.iter().any(|e| e["reason"].as_str().unwrap().contains("newer one came")),
        "{}",
        named.len()
    );
    assert!(running.place.entries_of("run/swap").is_empty());
    running.stop();
}
