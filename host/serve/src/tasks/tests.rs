use super::*;
use crate::ops::sampler::Sampler;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const SAMPLING: Sampler = Sampler { temperature: 0.9, top_p: 1.0, top_k: 0, min_p: 0.0, repetition_penalty: 1.0 };
const SESSION: SessionRules =
    SessionRules { sampling: SAMPLING, logp_temperature: 1.0, max_tokens: 12, max_calls: 6, max_text: 300 };
const LONG: Duration = Duration::from_secs(60);

/// Rejects rewards above 1.
fn check(report: &Map<String, Value>, _: Option<usize>) -> Result<(), String> {
    if report.get("reward").and_then(Value::as_f64) > Some(1.0) { Err("has too much".into()) } else { Ok(()) }
}

fn tasks() -> Arc<TaskQueue> {
    Arc::new(TaskQueue::new(Arc::default(), check, LONG))
}

fn offers(count: usize) -> Vec<EpisodeTask> {
    let offer = |i: usize| EpisodeTask {
        name: format!("e{i}"),
        row: i / 2,
        group: format!("g{}", i / 2),
        key: format!("key{i}"),
        seed: i as u64,
        driver_fields: Map::new(),
    };
    (0..count).map(offer).collect()
}

#[derive(Default)]
struct RecordingObserver {
    ends: BTreeMap<usize, TaskEnd>,
    looks: usize,
    discarded: Arc<AtomicBool>,
}

impl EpisodeObserver for RecordingObserver {
    fn progressed(&mut self, _: EpisodeProgress) {
        self.looks += 1;
    }

    fn is_discarded(&self) -> bool {
        self.discarded.load(Ordering::SeqCst)
    }

    fn ended(&mut self, at: usize, end: TaskEnd) {
        assert!(self.ends.insert(at, end).is_none());
    }
}

/// Plays this many episodes while `drive` acts as the drivers; returns the results, and the number of progress reports.
fn played(tasks: &Arc<TaskQueue>, count: usize, rules: TaskRules, drive: impl FnOnce(&TaskQueue)) -> (Vec<TaskEnd>, usize) {
    let own = Arc::clone(tasks);
    let interval = Duration::from_millis(20);
    let playing = thread::spawn(move || {
        let mut heard = RecordingObserver::default();
        own.play(offers(count), rules, interval, &mut heard);
        assert!(heard.ends.keys().copied().eq(0..count), "each ends once");
        (heard.ends.into_values().collect(), heard.looks)
    });
    while tasks.lock().rules.is_none() {
        thread::yield_now();
    }
    drive(tasks);
    playing.join().unwrap()
}

#[test]
fn a_discarded_generation_ends_at_once_and_the_next_one_is_played() {
    let (tasks, discarded) = (tasks(), Arc::<AtomicBool>::default());
    let (own, flag) = (Arc::clone(&tasks), Arc::clone(&discarded));
    let playing = thread::spawn(move || {
        let mut heard = RecordingObserver { discarded: flag, ..RecordingObserver::default() };
        own.play(offers(4), rules(LONG, 4), LONG, &mut heard);
        heard.ends
    });
    while tasks.start(TaskSelector::Next).is_err() {
        thread::yield_now();
    }
    discarded.store(true, Ordering::SeqCst);
    tasks.wake();
    let ends = playing.join().unwrap();
    assert!(ends.len() == 4 && ends.values().all(|end| end.failed.as_deref() == Some("is no longer needed")), "{ends:?}");
    assert_eq!(tasks.start(TaskSelector::Next).unwrap_err(), NoTaskReason::Idle);
    let (ends, _) = played(&tasks, 1, rules(LONG, 1), |tasks| {
        while tasks.start(TaskSelector::Next).is_err() {
            thread::yield_now();
        }
        assert!(tasks.finish_session(&session(tasks, "key0"), Ok(object(json!({"reward": 1})))).is_some());
    });
    assert_eq!(ends[0].failed, None);
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn rules(timeout: Duration, max_open: usize) -> TaskRules {
    TaskRules { session: SESSION, timeout, max_open }
}

/// Returns the open session of a key.
fn session(tasks: &TaskQueue, key: &str) -> Arc<AgentSession> {
    match tasks.sessions.find(key.as_bytes()) {
        crate::sessions::KeyOwner::Open(session) => session,
        _ => panic!("{key} is not open"),
    }
}

#[test]
fn episodes_come_in_order_or_by_row_and_end_with_their_reports() {
    let tasks = tasks();
    let (ends, _) = played(&tasks, 4, rules(LONG, 3), |tasks| {
        let row = tasks.start(TaskSelector::Row(1)).unwrap();
        assert_eq!((row.key.as_str(), row.timeout), ("key2", LONG));
        assert_eq!(tasks.start(TaskSelector::Next).unwrap().name, "e0");
        assert_eq!(
            tasks.start(TaskSelector::Row(7)).unwrap_err(),
            NoTaskReason::NotNeeded { kind: "row", needed: "0, 1".into() }
        );
        let unknown = tasks.start(TaskSelector::Group("g9".into())).unwrap_err();
        assert_eq!(unknown, NoTaskReason::NotNeeded { kind: "group", needed: "g0, g1".into() });
        assert_eq!(tasks.start(TaskSelector::Next).unwrap().name, "e1");
        assert_eq!(tasks.start(TaskSelector::Next).unwrap_err(), NoTaskReason::Full(3));
        let first = session(tasks, "key0");
        tasks.report(&first, object(json!({"turn_rewards": [0.5]}))).unwrap();
        tasks.report(&first, object(json!({"reward": 0.5}))).unwrap();
        let end = tasks.finish_session(&first, Ok(object(json!({"metrics": {"a": 1}})))).unwrap();
        assert_eq!((end.name.as_str(), end.calls, end.wrong, end.failed.as_deref()), ("e0", 0, None, Some(NO_CALL)));
        // An episode can't end twice, nor be reported on after its end.
        assert!(tasks.finish_session(&first, Ok(Map::new())).is_none());
        assert_eq!(tasks.report(&first, Map::new()), Err(None));
        assert!(matches!(tasks.sessions.find(b"key0"), crate::sessions::KeyOwner::Closed));
        let second = session(tasks, "key1");
        let wrong = tasks.finish_session(&second, Ok(object(json!({"reward": 2})))).unwrap().wrong;
        assert_eq!(wrong.as_deref(), Some("has too much"));
        // A wrong report can be corrected; otherwise it counts.
        let third = session(tasks, "key2");
        assert_eq!(tasks.report(&third, object(json!({"reward": 2}))), Err(Some("has too much".into())));
        tasks.report(&third, object(json!({"reward": 1}))).unwrap();
        tasks.finish_session(&third, Ok(Map::new())).unwrap();
        let last = tasks.start(TaskSelector::Group("g1".into())).unwrap();
        assert_eq!((last.name.as_str(), last.group.as_str()), ("e3", "g1"));
        assert_eq!(tasks.start(TaskSelector::Next).unwrap_err(), NoTaskReason::Idle);
        tasks.report(&session(tasks, &last.key), object(json!({"reward": 3}))).unwrap_err();
        tasks.finish_session(&session(tasks, &last.key), Ok(Map::new())).unwrap();
    });
    // Of an episode that has failed, the report does not count.
    let (failed, _) = played(&tasks, 1, rules(LONG, 3), |tasks| {
        let one = loop {
            match tasks.start(TaskSelector::Next) {
                Ok(one) => break one,
                Err(_) => thread::yield_now(),
            }
        };
        tasks.report(&session(tasks, &one.key), object(json!({"reward": 3}))).unwrap_err();
        let end = tasks.finish_session(&session(tasks, &one.key), Err("lost".into())).unwrap();
        assert_eq!((end.wrong, end.failed.as_deref()), (None, Some("failed: lost")));
    });
    assert_eq!(failed[0].failed.as_deref(), Some("failed: lost"));
    let ended: Vec<(&str, Option<&str>)> = ends.iter().map(|end| (end.report.as_str(), end.failed.as_deref())).collect();
    let wrong = Some("sent a report that has too much");
    assert_eq!(ended, [(r#"{"reward":0.5,"metrics":{"a":1}}"#, None), ("", wrong), (r#"{"reward":1}"#, None), ("", wrong)]);
}

#[test]
fn what_is_never_begun_or_ended_fails_and_others_wait_for_it_no_longer() {
    let tasks = tasks();
    let short = rules(Duration::from_millis(200), 2);
    let (ends, looks) = played(&tasks, 3, short, |tasks| {
        tasks.start(TaskSelector::Next).unwrap();
        tasks.start(TaskSelector::Next).unwrap();
        tasks.finish_session(&session(tasks, "key1"), Err("lost\n it".into())).unwrap();
    });
    let failed: Vec<&str> = ends.iter().map(|end| end.failed.as_deref().unwrap()).collect();
    let unbegun = "has no driver: none began the episode within 0.2 s (timeout_s)";
    assert_eq!(failed, ["took longer than 0.2 s (timeout_s)", "failed: lost\\n it", unbegun]);
    assert!(looks > 3, "{looks}");
    assert!(tasks.lock().offered.is_empty() && tasks.lock().open == 0);
}

#[test]
fn a_driver_waits_for_the_next_generation_and_for_the_end_of_the_run() {
    let tasks = tasks();
    let waits = |tasks: &Arc<TaskQueue>, limit: Duration| {
        let tasks = Arc::clone(tasks);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(tasks.next(limit)).map(|started| started.name)
        })
    };
    assert_eq!(waits(&tasks, Duration::from_millis(10)).join().unwrap(), Err(NoTaskReason::Idle));
    let drivers: Vec<_> = (0..2).map(|_| waits(&tasks, LONG)).collect();
    played(&tasks, 2, rules(LONG, 1), |tasks| {
        // The second gets its own when the first has ended.
        for key in ["key0", "key1"] {
            while !matches!(tasks.sessions.find(key.as_bytes()), crate::sessions::KeyOwner::Open(_)) {
                thread::yield_now();
            }
            tasks.finish_session(&session(tasks, key), Ok(Map::new())).unwrap();
        }
    });
    let mut names: Vec<String> = drivers.into_iter().map(|driver| driver.join().unwrap().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["e0", "e1"]);
    let last = waits(&tasks, LONG);
    tasks.finish();
    assert_eq!(last.join().unwrap(), Err(NoTaskReason::Over));
}
