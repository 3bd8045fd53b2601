//! Tests of pages in a single file.

use super::FrozenPage;
use crate::api::{PageApi, PageRoute};
use crate::backend::{PageBackend, PluginChanges, RescoredCompletion, RescoringRequest};
use crate::folder::RunListing;
use crate::report::RunComparison;
use crate::run::{RunAction, RunFiles};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u{202e}\u{1b}\u{9b}";

/// Backend whose plugins are all scripts.
struct ScriptsBackend;

impl PageBackend for ScriptsBackend {
    fn plugin(&self, _: &Path) -> Result<Vec<u8>, String> {
        Err("nothing is sent from a file".into())
    }

    fn source(&self, bytes: &[u8]) -> Option<String> {
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    fn form(&self, _: &Path) -> Result<Value, String> {
        Err("nobody edits a file".into())
    }

    fn swap(&self, _: &Path, _: &str, _: &[u8], _: Option<&Map<String, Value>>) -> Result<String, String> {
        Err("nothing is sent from a file".into())
    }

    fn configure(&self, _: &Path, _: &str, _: &PluginChanges) -> Result<String, String> {
        Err("nothing is sent from a file".into())
    }

    fn request(&self, _: &Path, _: RunAction) -> Result<String, String> {
        Err("nothing is sent from a file".into())
    }

    fn rescore(&self, _: &RescoringRequest<'_>) -> Result<Vec<RescoredCompletion>, String> {
        Err("nothing is scored in a file".into())
    }
}

fn lines(values: impl IntoIterator<Item = Value>) -> String {
    values.into_iter().map(|value| format!("{value}\n")).collect()
}

fn started() -> Value {
    json!({ "time": "2026-01-01T00:00:00Z", "event": "started", "step": 0, "max_steps": 30 })
}

/// Writes a run's files.
fn run(place: &Path, name: &str, events: &str, metrics: &str, completions: &str) -> PathBuf {
    let folder = place.join(name);
    fs::create_dir_all(&folder).unwrap();
    let files = RunFiles(&folder);
    fs::write(files.config(), "seed = 1\n").unwrap();
    fs::write(files.events(), events).unwrap();
    fs::write(files.metrics(), metrics).unwrap();
    fs::write(files.completions(), completions).unwrap();
    folder
}

fn completion(step: u64, row: u64, text: &str, advantage: f64) -> Value {
    json!({ "step": step, "row": row, "prompt": format!("p{row}"), "completion": text, "completion_ids": [1, 2], "finished": false,
            "rewards": { "length": advantage, "other": null }, "advantage": advantage })
}

/// Returns the answers in the file about a run.
fn answers(run: &Path) -> Value {
    embedded(&FrozenPage::from_run(run, ScriptsBackend).unwrap().to_html())
}

/// Returns the answers embedded in a page.
fn embedded(page: &str) -> Value {
    let begin = page.split_once("id=\"frozen\">").unwrap().1;
    serde_json::from_str(begin.split_once("</script>").unwrap().0).unwrap()
}

/// Returns the steps of the groups in a file.
fn steps(answers: &Value, run: &str) -> Vec<u64> {
    let groups = answers["of_runs"]["group"][run]["groups"].as_array().unwrap();
    groups.iter().map(|group| group["step"].as_u64().unwrap()).collect()
}

#[test]
fn a_file_has_the_answers_of_the_live_page() {
    let place = TempDir::new().unwrap();
    let events = lines([started(), json!({ "event": "finished", "step": 3, "seconds": 2 })]);
    let metrics = lines((1..=3).map(|step| json!({ "step": step, "time": step, "reward": step, "loss": 1.0 / step as f64 })));
    let folder = run(place.path(), "a", &events, &metrics, &lines([completion(0, 3, "text", 0.5)]));
    let page = answers(&folder);
    let live = PageApi::new(folder, Box::new(ScriptsBackend), false);
    for (name, route) in [
        ("run", PageRoute::Run),
        ("config", PageRoute::Config),
        ("diagnosis", PageRoute::Diagnosis),
        ("story", PageRoute::Story),
        ("charts", PageRoute::Charts),
        ("metrics", PageRoute::Metrics),
        ("events", PageRoute::Events),
        ("plugins", PageRoute::Plugins),
    ] {
        assert_eq!(page["of_runs"][name]["a"], live.answer(route, "run=a", b"").unwrap(), "{name}");
    }
    assert_eq!(page["runs"], live.answer(PageRoute::Runs, "", b"").unwrap());
    assert_eq!(page["series"]["a"], live.answer(PageRoute::Series, "run=a", b"").unwrap()["runs"]["a"]);
    let own = &page["of_runs"]["group"]["a"];
    let mut group = own["groups"][0].clone();
    // Groups of the same prompt share its history.
    group["history"] = own["histories"]["3"].clone();
    assert_eq!(group, live.answer(PageRoute::Group, "run=a&id=0", b"").unwrap());
    assert_eq!(
        (&page["about"]["frozen"], &page["about"]["control"], &page["about"]["single"]),
        (&json!(true), &json!(false), &json!(true))
    );
    assert_eq!(
        (&page["series"]["a"]["series"]["reward"]["y"], &page["series"]["a"]["x"]),
        (&json!([1.0, 2.0, 3.0]), &json!([1.0, 2.0, 3.0]))
    );
}

#[test]
fn nothing_that_a_run_says_is_more_than_text() {
    let place = TempDir::new().unwrap();
    let metrics = lines([json!({ "step": 1, "reward": 1.0, format!("rewards/{HOSTILE}/mean"): 2.0, HOSTILE: 3.0 })]);
    let failed = json!({ "event": "failed", "step": 1, "reason": HOSTILE });
    let events = lines([started(), json!({ "event": HOSTILE, "step": 1, HOSTILE: HOSTILE }), failed]);
    let mut sample = completion(0, 0, HOSTILE, 0.5);
    sample["prompt"] = HOSTILE.into();
    sample["rewards"] = json!({ HOSTILE: 1.0 });
    let folder = run(place.path(), "a", &events, &metrics, &lines([sample]));
    fs::write(RunFiles(&folder).config(), format!("seed = 1\n# {HOSTILE}\n")).unwrap();
    let page = FrozenPage::from_run(&folder, ScriptsBackend).unwrap().to_html();
    // The page has three scripts: its data, the library and its own.
    assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (3, 3));
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("page/index.html");
    assert_eq!(page.matches("<img").count(), fs::read_to_string(own).unwrap().matches("<img").count(), "a tag came through");
    let data = embedded(&page).to_string();
    assert!(!data.chars().any(|c| matches!(c, '\u{1b}' | '\u{80}'..='\u{9f}' | '\u{202e}')), "a hidden character came through");
    // Prompt, completion, their rewards, events, configuration, metrics and titles.
    let visible = HOSTILE.replace("\u{202e}\u{1b}\u{9b}", r"\\u{202e}\\u{1b}\\u{9b}");
    assert!(data.matches(&visible).count() >= 15, "{}", data.matches(&visible).count());
    let shown = visible.replace(r"\\", r"\");
    assert_eq!(embedded(&page)["series"]["a"]["series"][&shown]["y"], json!([3.0]));
}

#[test]
fn half_a_line_is_left_to_come() {
    let place = TempDir::new().unwrap();
    let metrics = format!("{}not JSON\n{{\"step\":3,\"rew", lines([json!({ "step": 1, "reward": 1.0 })]));
    let mut completions = lines([completion(0, 0, "whole", 1.0)]).into_bytes();
    // The file is truncated within a character.
    completions.extend(b"{\"step\":1,\"completion\":\"half \xf0\x9f");
    let folder = run(place.path(), "a", &lines([started()]), &metrics, "");
    fs::write(RunFiles(&folder).completions(), completions).unwrap();
    let page = answers(&folder);
    assert_eq!(page["series"]["a"]["series"]["reward"]["y"], json!([1.0]));
    let text = page.to_string();
    assert!(text.contains("metrics.jsonl: line 2 is not a JSON object") && text.contains("\"whole\"") && !text.contains("half "));
}

#[test]
fn a_run_that_has_just_begun_has_a_page() {
    let place = TempDir::new().unwrap();
    let folder = run(place.path(), "a", &lines([started()]), "", "");
    fs::remove_file(RunFiles(&folder).completions()).unwrap();
    let page = answers(&folder);
    assert_eq!((&page["series"]["a"]["x"], &page["of_runs"]["group"]["a"]["groups"]), (&json!([]), &json!([])));
    // The configuration alone is enough.
    fs::remove_file(RunFiles(&folder).events()).unwrap();
    fs::remove_file(RunFiles(&folder).metrics()).unwrap();
    assert_eq!(answers(&folder)["of_runs"]["run"]["a"]["status"]["state"], "empty");
}

#[test]
fn completions_that_have_no_room_are_spread_over_the_run_in_whole_groups() {
    let place = TempDir::new().unwrap();
    let swap = json!({ "event": "plugin_swapped", "plugin": "length", "from": "aaaa", "to": "bbbb", "step": 50 });
    let group = |step: u64| {
        [3, 4].into_iter().flat_map(move |row| [0.1, -2.0, 0.7].map(|a| completion(step, row, &"text ".repeat(8000), a)))
    };
    let folder = run(place.path(), "a", &lines([started(), swap]), "", &lines((0..100).flat_map(group)));
    let page = answers(&folder);
    let there: BTreeSet<u64> = steps(&page, "a").into_iter().collect();
    assert!(there.contains(&0) && there.contains(&50) && there.contains(&99) && there.len() <= 17, "{there:?}");
    let own = &page["of_runs"]["group"]["a"];
    assert_eq!((&own["all"], &own["newest"]), (&json!(600), &json!(99)));
    let groups = own["groups"].as_array().unwrap();
    assert!(groups.iter().all(|group| group["items"].as_array().unwrap().len() == 3 && group["size"] == 3));
    assert_eq!(own["shown"], 3 * groups.len());
    // The history of each prompt covers the whole run.
    assert_eq!(own["histories"]["3"].as_array().unwrap().len(), 100);
    assert!(page.to_string().len() < 5 << 20, "{} bytes", page.to_string().len());
    // All completions of a small run are included.
    let few = run(place.path(), "few", &lines([started()]), "", &lines((0..100).map(|step| completion(step, 0, "text", 1.0))));
    assert_eq!(steps(&answers(&few), "few"), (0..100).collect::<Vec<_>>());
}

#[test]
fn an_episode_has_its_turns_told_apart_from_its_prompt() {
    let place = TempDir::new().unwrap();
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let said = [
        message("user", "an example"),
        message("assistant", "of an answer"),
        message("user", "play"),
        message("assistant", "16"),
        message("user", "<higher>"),
        message("assistant", "24"),
    ];
    let mut line = completion(0, 0, "16higher24", 1.5);
    line["messages"] = json!(said);
    line["turns"] = json!([{}, {}]);
    line["turn_rewards"] = json!([null, 1.5]);
    let folder = run(place.path(), "a", &lines([started()]), "", &lines([line]));
    let item = &answers(&folder)["of_runs"]["group"]["a"]["groups"][0]["items"][0];
    let turns: Vec<&Value> = item["messages"].as_array().unwrap().iter().map(|message| &message["turn"]).collect();
    assert_eq!(turns, [&Value::Null, &Value::Null, &Value::Null, &json!(0), &Value::Null, &json!(1)]);
    assert_eq!((&item["turn_rewards"], &item["messages"][4]["content"]), (&json!([null, 1.5]), &json!("<higher>")));
}

#[test]
fn sources_of_versions_are_in_the_file() {
    let place = TempDir::new().unwrap();
    let hash = "ab".repeat(32);
    let loaded = json!({ "event": "plugin_loaded", "role": "reward", "plugin": "r", "hash": hash });
    let folder = run(place.path(), "a", &lines([started(), loaded]), "", "");
    fs::create_dir(RunFiles(&folder).plugins()).unwrap();
    fs::write(RunFiles(&folder).plugin("r", &hash), "def r(): pass").unwrap();
    assert_eq!(answers(&folder)["sources"]["a"]["r abababababab"]["source"], "def r(): pass");
}

#[test]
fn the_report_is_written_in_one_piece_beside_what_it_is_of() {
    let place = TempDir::new().unwrap();
    let folder = run(place.path(), "a", &lines([started()]), &lines([json!({ "step": 1, "reward": 1.0 })]), "");
    fs::write(RunFiles(&folder).report(), "an older one").unwrap();
    let path = FrozenPage::write_report(&folder, ScriptsBackend).unwrap();
    assert_eq!(path, RunFiles(&folder).report());
    let page = fs::read_to_string(&path).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.len() < 350 << 10, "{} bytes", page.len());
    let names: BTreeSet<String> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 5, "something temporary stayed: {names:?}");
    let refused = FrozenPage::write_report(place.path(), ScriptsBackend).unwrap_err().to_string();
    assert!(refused.contains("is not the folder of a run") && refused.contains("such as"), "{refused}");
    let as_folder = FrozenPage::from_run(&folder, ScriptsBackend).unwrap().write(&folder).unwrap_err().to_string();
    assert!(as_folder.contains("it is a folder"), "{as_folder}");
}

#[test]
fn several_runs_are_compared_in_a_file() {
    let place = TempDir::new().unwrap();
    for (name, rate, seed, scale) in [("a1", 0.1, 1, 1.0), ("a2", 0.1, 2, 2.0), ("b", 0.02, 10, 5.0)] {
        let metrics = lines((1..=4u32).map(|step| json!({ "step": step, "reward": scale * f64::from(step), "loss": 1.0 })));
        let folder = run(place.path(), name, &lines([started()]), &metrics, &lines([completion(0, 0, name, 1.0)]));
        fs::write(RunFiles(&folder).config(), format!("learning_rate = {rate}\nseed = {seed}\n")).unwrap();
    }
    let paths: Vec<PathBuf> = ["a1", "a2", "b"].iter().map(|name| place.path().join(name)).collect();
    let comparison = RunComparison::load(&paths).unwrap();
    let page = FrozenPage::from_comparison(&comparison, ScriptsBackend).unwrap().to_html();
    assert!(page.contains("<title>Comparison of 3 runs"));
    let answers = embedded(&page);
    assert_eq!(answers["settings"]["learning_rate"], json!({ "a1": "0.1", "a2": "0.1", "b": "0.02" }));
    let groups = answers["comparison"]["groups"].as_array().unwrap();
    assert_eq!((groups.len(), &groups[0]["runs"], &groups[0]["seeds"]), (2, &json!(["a1", "a2"]), &json!("1, 2")));
    assert_eq!(groups[0]["values"]["reward"]["last"], json!({ "mean": 6.0, "deviation": 8.0f64.sqrt() }));
    assert_eq!(groups[1]["values"]["reward"]["best"], json!({ "mean": 20.0, "deviation": null }));
    assert_eq!(groups[0]["curves"]["reward"]["hi"], json!([2.0, 4.0, 6.0, 8.0]));
    let titles: Vec<&str> =
        answers["charts"]["sections"].as_array().unwrap().iter().map(|s| s["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["Rewards", "Optimisation"]);
    assert_eq!(answers["of_runs"]["group"]["b"]["groups"][0]["items"][0]["completion"], "b");
    let names: Vec<&str> = answers["runs"]["runs"].as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a1", "a2", "b"]);
    // The live page gives the same answer.
    let live = PageApi::with_listing(RunListing::new(place.path().to_owned()), Box::new(ScriptsBackend), false);
    assert_eq!(live.answer(PageRoute::Comparison, "run=a1&run=a2&run=b", b"").unwrap(), answers["comparison"]);
    assert_eq!(live.answer(PageRoute::Comparison, "run=a1", b"").unwrap_err().status, 400);
}

#[test]
fn curves_of_long_runs_have_few_points_and_never_cross_a_swap() {
    let place = TempDir::new().unwrap();
    let swap = json!({ "event": "plugin_swapped", "plugin": "length", "from": "aaaa", "to": "bbbb", "step": 2500 });
    let metrics = lines((1..=9000u32).map(|step| json!({ "step": step, "reward": u8::from(step > 2500) })));
    let folder = run(place.path(), "a", &lines([started(), swap]), &metrics, "");
    let series = &answers(&folder)["series"]["a"];
    let (points, y) = (series["x"].as_array().unwrap(), series["series"]["reward"]["y"].as_array().unwrap());
    assert!((1000..=2001).contains(&points.len()) && series["per_point"].as_u64() > Some(1) && points.contains(&json!(2500.0)));
    assert!(y.iter().all(|value| *value == 0.0 || *value == 1.0), "a mean of two versions");
}
