//! Tests of the page's server over HTTP.

use crate::backend::{PageBackend, PluginChanges, RescoredCompletion, RescoringRequest};
use crate::run::{PluginVersion, RunAction, RunFiles};
use crate::server::{PageServer, PageServerSettings};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Text with markup and hidden characters.
const HOSTILE: &str = "<script>alert(1)</script>\u{202e}\u{1b}[31m";

/// Backend without plugins that echoes what it is sent.
pub(crate) struct EchoBackend;

impl PageBackend for EchoBackend {
    fn plugin(&self, file: &Path) -> Result<Vec<u8>, String> {
        let bytes = fs::read(file).map_err(|error| error.to_string())?;
        if bytes == b"bad" { Err("it is no plugin".into()) } else { Ok(bytes) }
    }

    fn source(&self, bytes: &[u8]) -> Option<String> {
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    fn form(&self, plugin: &Path) -> Result<Value, String> {
        let bytes = self.plugin(plugin)?;
        Ok(json!([{ "name": String::from_utf8_lossy(&bytes) }]))
    }

    fn swap(&self, run: &Path, name: &str, bytes: &[u8], settings: Option<&Map<String, Value>>) -> Result<String, String> {
        let settings = settings.map_or_else(String::new, |settings| format!(" {}", json!(settings)));
        Ok(format!("{name}@{}:{}{settings}", run.file_name().unwrap().to_string_lossy(), String::from_utf8_lossy(bytes)))
    }

    fn configure(&self, run: &Path, name: &str, changes: &PluginChanges) -> Result<String, String> {
        Ok(format!("{name}@{}:{} {:?}", run.file_name().unwrap().to_string_lossy(), json!(changes.settings), changes.weight))
    }

    fn request(&self, run: &Path, action: RunAction) -> Result<String, String> {
        Ok(format!("{}:{}", run.file_name().unwrap().to_string_lossy(), action.name()))
    }

    fn rescore(&self, question: &RescoringRequest<'_>) -> Result<Vec<RescoredCompletion>, String> {
        let row = |step, old| RescoredCompletion {
            step,
            row: 0,
            prompt: "p".into(),
            completion: format!("{} from {}", question.plugin.file_name().unwrap().to_string_lossy(), question.from),
            version: PluginVersion::parse("aa"),
            old: Some(old),
            new: Some(1.0),
        };
        Ok(vec![row(1, 0.0), row(2, 1.0)])
    }
}

/// Folder of runs and its server.
struct ServedRuns {
    root: TempDir,
    page: PageServer,
}

struct PageResponse {
    status: u16,
    head: String,
    body: String,
}

impl PageResponse {
    fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }
}

impl ServedRuns {
    fn new(control: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let settings = PageServerSettings { root: root.path().to_owned(), host: "127.0.0.1".into(), port: 0, control };
        let page = PageServer::start(settings, EchoBackend).unwrap();
        Self { root, page }
    }

    /// Writes a run with these lines in its files.
    fn run(&self, name: &str, events: &[Value], metrics: &[Value], completions: &[Value]) {
        let run = self.root.path().join(name);
        fs::create_dir_all(&run).unwrap();
        let files = RunFiles(&run);
        let lines = |lines: &[Value]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        fs::write(files.events(), lines(events)).unwrap();
        fs::write(files.metrics(), lines(metrics)).unwrap();
        fs::write(files.completions(), lines(completions)).unwrap();
    }

    fn token(&self) -> String {
        self.page.url().split('/').nth(3).unwrap().to_owned()
    }

    fn send(&self, head: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.page.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(format!("{head}content-length: {}\r\n\r\n", body.len()).as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    /// Sends a raw request with additional headers.
    fn raw(&self, line: &str, headers: &str, body: &[u8]) -> PageResponse {
        let host = if headers.contains("host:") { String::new() } else { format!("host: {}\r\n", self.page.address()) };
        let mut text = String::new();
        let head = format!("{line} HTTP/1.1\r\n{host}connection: close\r\n{headers}");
        self.send(&head, body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        PageResponse { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn get(&self, path: &str) -> PageResponse {
        self.raw(&format!("GET /{}/{path}", self.token()), "", b"")
    }

    fn post(&self, path: &str, body: &[u8]) -> PageResponse {
        self.raw(&format!("POST /{}/{path}", self.token()), &format!("x-rlhost-token: {}\r\n", self.token()), body)
    }
}

fn started() -> Value {
    json!({"time": "2026-01-02T03:04:05Z", "event": "started", "step": 0, "max_steps": 9})
}

fn loaded(plugin: &str, hash: &str) -> Value {
    json!({"event": "plugin_loaded", "role": "reward", "plugin": plugin, "hash": hash, "settings": "cd", "config": {"x": 1}})
}

fn completion(step: u64, text: &str, score: f64) -> Value {
    json!({
        "step": step, "row": step % 3, "prompt": format!("prompt {}", step % 3), "completion": text, "completion_ids": [1, 2],
        "finished": true, "rewards": {"r": score}, "advantage": 0.5, "plugins": {"r": "aabbccddeeff0011+12"},
    })
}

#[test]
fn nothing_is_answered_without_the_token() {
    let served = ServedRuns::new(true);
    served.run("a", &[started()], &[], &[]);
    let wrong = "0".repeat(32);
    for path in
        ["/", "/api/runs", "/app.js", &format!("/{wrong}/api/runs"), &format!("/{wrong}/"), &format!("/x/{}/", served.token())]
    {
        let answer = served.raw(&format!("GET {path}"), "", b"");
        assert_eq!(answer.status, 403, "{path}");
        assert!(!answer.body.contains(&served.token()), "{path}");
    }
    assert_eq!(served.get("api/runs").status, 200);
    let without_slash = served.raw(&format!("GET /{}", served.token()), "", b"");
    assert_eq!(without_slash.status, 308);
    assert!(without_slash.head.contains(&format!("location: /{}/", served.token())), "{}", without_slash.head);
    let rebound = served.raw(&format!("GET /{}/api/runs", served.token()), "host: evil.example\r\n", b"");
    assert_eq!(rebound.status, 403);
}

#[test]
fn every_response_has_a_strict_policy() {
    let served = ServedRuns::new(false);
    for path in ["", "app.js", "style.css", "uplot.js", "api/about", "api/nothing", "nothing"] {
        let answer = served.get(path);
        assert!(
            answer.head.contains("content-security-policy: default-src 'none'; script-src 'self'"),
            "{path}: {}",
            answer.head
        );
        assert!(!answer.head.contains("unsafe") && answer.head.contains("nosniff"), "{path}");
        assert_eq!(answer.status == 404, path.ends_with("nothing"), "{path}");
    }
    assert_eq!(served.raw(&format!("POST /{}/api/runs", served.token()), "", b"").status, 405);
    assert_eq!(served.raw(&format!("HEAD /{}/", served.token()), "", b"").body, "");
}

#[test]
fn runs_are_reached_by_the_names_that_are_listed_alone() {
    let served = ServedRuns::new(true);
    served.run("a", &[started()], &[json!({"step": 3, "time": 1.5, "reward": 2.5, "loss": 1})], &[]);
    served.run("b/c", &[started(), json!({"event": "finished", "step": 9, "seconds": 3})], &[], &[]);
    let runs = served.get("api/runs").json();
    let names: Vec<(&str, &str)> = runs["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["name"].as_str().unwrap(), run["state"].as_str().unwrap()))
        .collect();
    assert_eq!(names, [("a", "interrupted"), ("b/c", "finished")]);
    assert_eq!((&runs["runs"][0]["reward"], &runs["runs"][0]["step"]), (&json!(2.5), &json!(3)));
    // A run says how far it came even in steps that were not logged.
    assert_eq!((&runs["runs"][1]["step"], &runs["runs"][1]["logged"]), (&json!(9), &Value::Null));
    for name in ["..", "../a", "a/..", "/etc", "b", "b%2F..%2Fa", "%2e%2e", "b%2Fc%2F", ""] {
        for route in
            ["run", "plugins", "diagnosis", "story", "charts", "metrics", "events", "series", "live", "completions", "source"]
        {
            let answer = served.get(&format!("api/{route}?run={name}"));
            assert!(matches!(answer.status, 400 | 404), "{route} {name}: {}", answer.status);
        }
    }
    assert_eq!(served.get("api/run?run=b%2Fc").json()["status"]["state"], "finished");
}

#[test]
fn hostile_names_and_texts_are_shown_as_they_are() {
    let served = ServedRuns::new(false);
    let events =
        [started(), loaded(HOSTILE, "../../../../etc/passwd"), loaded("../../x", &"ab".repeat(32)), json!({"event": HOSTILE})];
    let mut line = completion(1, HOSTILE, 1.0);
    line["rewards"] = json!({ HOSTILE: 1 });
    line["plugins"] = json!({ HOSTILE: HOSTILE });
    line["messages"] = json!([{"role": HOSTILE, "content": HOSTILE}, 7, null]);
    served.run("a", &events, &[json!({"step": 1, HOSTILE: 1})], &[line]);
    let shown = "<script>alert(1)</script>\\u{202e}\\u{1b}[31m";
    let group = served.get("api/group?run=a&id=0").json();
    assert_eq!((&group["items"][0]["completion"], &group["items"][0]["messages"][0]["role"]), (&json!(shown), &json!(shown)));
    assert_eq!(group["items"][0]["rewards"], json!({ shown: 1.0 }));
    let plugins = served.get("api/plugins?run=a").json();
    assert_eq!((&plugins["plugins"][0]["name"], &plugins["plugins"][1]["now"]["kept"]), (&json!(shown), &json!(false)));
    let series = served.get("api/series?run=a").json();
    assert_eq!(series["runs"]["a"]["series"][shown]["y"], json!([1.0]));
    let all =
        ["api/run?run=a", "api/completions?run=a", "api/plugins?run=a", "api/group?run=a&id=0"].map(|path| served.get(path).body);
    assert!(all.iter().all(|body| !body.contains('\u{202e}') && !body.contains("\\u001b")), "{all:?}");
    // A plugin's name or hash can't name a file outside the run.
    for query in ["plugin=..%2F..%2Fx&hash=abababababab", "plugin=..%2F..%2Fx&hash=..", "plugin=a&hash=0", "plugin=a"] {
        assert!(matches!(served.get(&format!("api/source?run=a&{query}")).status, 400 | 404), "{query}");
    }
}

#[test]
fn a_story_is_told_again_after_an_event() {
    let served = ServedRuns::new(false);
    let rows: Vec<Value> = (1..=4).map(|step| json!({"step": step, "reward": step, "rewards/r/mean": 2 * step})).collect();
    served.run("a", &[started(), loaded("r", "aa")], &rows, &[]);
    let story = served.get("api/story?run=a").json();
    assert_eq!((&story["marks"], &story["key_figures"][0]["last"]), (&json!([]), &json!("4")));
    assert_eq!(
        served.get("api/metrics?run=a").json()["rows"][0],
        json!({"name": "reward", "values": [1.0, 4.0, 1.0, 4.0], "steps": [1, 4]})
    );
    let swapped = json!({"event": "plugin_swapped", "plugin": "r", "from": "aa", "to": "bb", "step": 2});
    let file = RunFiles(&served.root.path().join("a")).events();
    File::options().append(true).open(file).unwrap().write_all(format!("{swapped}\n").as_bytes()).unwrap();
    // The result is cached for twice as long as it took.
    let marks = (0..2000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        let marks = served.get("api/story?run=a").json()["marks"].take();
        (marks != json!([])).then_some(marks)
    });
    assert_eq!(marks.unwrap()[0]["word"], "swapped");
    let charts = served.get("api/charts?run=a").json();
    assert_eq!(charts["sections"][0]["charts"][1]["lines"][0]["breaks"], json!([2]));
    assert_eq!(served.get("api/events?run=a").json()["rows"].as_array().unwrap().len(), 3);
    assert_eq!(served.get("api/series?run=a").json()["runs"]["a"]["breaks"], json!([2]));
    assert_eq!((served.get("api/charts").status, served.get("api/comparison?run=a").status), (400, 400));
}

#[test]
fn completions_are_paged_sorted_and_searched() {
    let served = ServedRuns::new(false);
    let all: Vec<Value> =
        (0..3000).map(|i| completion(i / 3, &format!("text {i} Zebra{}", i % 500), f64::from(i as u32 % 7))).collect();
    served.run("a", &[started()], &[], &all);
    let page = served.get("api/completions?run=a&limit=5").json();
    assert_eq!(
        (&page["all"], &page["selected"], &page["next"], &page["newest"]),
        (&json!(3000), &json!(3000), &json!(5), &json!(999))
    );
    assert_eq!(page["items"][0]["completion"], "text 2999 Zebra499");
    let best = served.get("api/completions?run=a&sort=best&limit=200&step_from=10&step_to=12").json();
    let rewards: Vec<f64> = best["items"].as_array().unwrap().iter().map(|item| item["reward"].as_f64().unwrap()).collect();
    assert!(rewards.len() == 9 && rewards.is_sorted_by(|a, b| a >= b), "{rewards:?}");
    let mut found = Vec::new();
    let mut next = Some(0);
    while let Some(offset) = next {
        let page = served.get(&format!("api/completions?run=a&sort=oldest&text=zebra17&offset={offset}")).json();
        let texts = page["items"].as_array().unwrap().iter().map(|item| item["completion"].as_str().unwrap().to_owned());
        found.extend(texts.filter(|text| text.ends_with("Zebra17")));
        next = page["next"].as_u64();
    }
    assert_eq!(found, (0..6).map(|i| format!("text {} Zebra17", i * 500 + 17)).collect::<Vec<_>>());
    let group = served.get("api/group?run=a&id=4").json();
    assert_eq!((&group["step"], &group["size"]), (&json!(1), &json!(3)));
    assert_eq!(group["items"][0]["plugins"]["r"], "aabbccddeeff+12");
    assert_eq!(served.get("api/group?run=a&id=3000").status, 404);
    assert_eq!(served.get("api/completions?run=a&sort=random").status, 400);
}

#[test]
fn long_runs_are_sent_in_few_points() {
    let served = ServedRuns::new(false);
    let rows: Vec<Value> =
        (1..=5000).map(|step| json!({"step": step, "time": step, "reward": step % 10, "num_tokens": step * 7})).collect();
    served.run("a", &[started()], &rows, &[]);
    let mut sent = served.get("api/series?run=a&metric=reward&points=100").json();
    while !sent["complete"].as_bool().unwrap() {
        sent = served.get("api/series?run=a&metric=reward&points=100").json();
    }
    let run = &sent["runs"]["a"];
    assert_eq!((run["x"].as_array().unwrap().len(), &run["rows"], &run["per_point"]), (100, &json!(5000), &json!(50)));
    assert_eq!((&run["series"]["reward"]["y"][3], &run["series"]["reward"]["hi"][3]), (&json!(4.5), &json!(9.0)));
    let part = served.get("api/series?run=a&x=time&from=10&to=19").json();
    assert_eq!(part["runs"]["a"]["x"].as_array().unwrap().len(), 10);
    assert_eq!(served.get("api/series?run=a&x=nonsense").status, 400);
    assert_eq!(served.get("api/series?points=3").status, 400);
}

#[test]
fn what_is_appended_to_a_run_is_streamed() {
    let served = ServedRuns::new(false);
    served.run("a", &[started()], &[json!({"step": 1, "time": 1, "reward": 1})], &[completion(0, "first", 1.0)]);
    let head = format!("GET /{}/api/live?run=a&rows=1&events=1 HTTP/1.1\r\nhost: {}\r\n", served.token(), served.page.address());
    let mut stream = BufReader::new(served.send(&head, b""));
    let mut next = |what: &str| loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended before {what}");
        let Some(text) = line.strip_prefix("data: ") else { continue };
        let news: Value = serde_json::from_str(text).unwrap();
        if !news[what].is_null() {
            return news[what].clone();
        }
    };
    assert_eq!(next("completions"), json!({"all": 1, "newest": 0}));
    let run = served.root.path().join("a");
    let append = |path: &Path, line: &str| File::options().append(true).open(path).unwrap().write_all(line.as_bytes()).unwrap();
    append(&RunFiles(&run).metrics(), "{\"step\":2,\"time\":2,\"rew");
    append(&RunFiles(&run).metrics(), "ard\":5}\n");
    let rows = next("rows");
    assert_eq!((&rows["from"], &rows["steps"], &rows["values"]["reward"]), (&json!(1), &json!([2]), &json!([5.0])));
    append(&RunFiles(&run).events(), "{\"event\":\"warning\",\"text\":\"careful\"}\n");
    assert_eq!(next("events")[0]["text"], "careful");
    append(&RunFiles(&run).completions(), &format!("{}\n", completion(1, "second", 2.0)));
    assert_eq!(next("completions"), json!({"all": 2, "newest": 1}));
    // A resume has truncated the file.
    fs::write(RunFiles(&run).metrics(), "{\"step\":1,\"time\":9,\"reward\":7}\n").unwrap();
    assert_eq!(next("reload"), json!(true));
}

#[test]
fn acts_need_control_and_come_from_the_page() {
    let reading = ServedRuns::new(false);
    reading.run("a", &[started(), loaded("r", &"ab".repeat(32))], &[], &[completion(0, "c", 1.0)]);
    let refused = reading.post("api/swap?run=a&plugin=r&file=r.py", b"x");
    assert!(refused.status == 403 && refused.body.contains("--control"), "{}", refused.body);

    let served = ServedRuns::new(true);
    served.run("a", &[started(), loaded("r", &"ab".repeat(32))], &[], &[completion(0, "c", 1.0), completion(1, "d", 1.0)]);
    let line = format!("POST /{}/api/swap?run=a&plugin=r&file=r.py", served.token());
    let token = format!("x-rlhost-token: {}\r\n", served.token());
    assert_eq!(served.raw(&line, "", b"x").status, 403);
    assert_eq!(served.raw(&line, &format!("{token}origin: http://evil.example\r\n"), b"x").status, 403);
    assert_eq!(served.raw(&line, &format!("{token}sec-fetch-site: cross-site\r\n"), b"x").status, 403);
    assert_eq!(served.get("api/swap?run=a&plugin=r&file=r.py").status, 405);
    assert_eq!(served.post("api/swap?run=a&plugin=r&file=r.py", b"print").json()["request"], "r@a:print");
    assert_eq!(served.post("api/swap?run=a&plugin=r&file=..%2Fr.py", b"x").status, 400);
    let bad = served.post("api/swap?run=a&plugin=r&file=r.py", b"bad");
    assert!(bad.status == 422 && bad.body.contains("it is no plugin"), "{}", bad.body);

    let answer = served.post("api/what-if?run=a&plugin=r&file=better.py&newest=1", b"x").json();
    let second = completion(0, "c", 1.0).to_string().len() + 1;
    assert_eq!(answer["rows"][0]["completion"], format!("better.py from {second}"));
    assert_eq!((&answer["differing"], &answer["comparison"]["new_mean"]), (&json!(1), &json!(1.0)));
    assert_eq!(served.post("api/what-if?run=a&plugin=r&file=better.py&settings=7", b"x").status, 400);

    // The bytes of a version are sent again, if the run has stored them.
    assert_eq!(served.post("api/roll-back?run=a&plugin=r&hash=abababababab", b"").status, 404);
    let plugins = RunFiles(&served.root.path().join("a")).plugins();
    fs::create_dir(&plugins).unwrap();
    fs::write(plugins.join(format!("r-{}.wasm", "ab".repeat(8))), "older").unwrap();
    let older = |version: &str| served.post(&format!("api/roll-back?run=a&plugin=r&hash=abababababab{version}"), b"");
    assert_eq!(older("").json()["request"], "r@a:older {\"x\":1}");
    // The version's own settings are sent, too.
    let swapped = json!({
        "event": "plugin_swapped", "plugin": "r", "from": "ab".repeat(32), "to": "ab".repeat(32), "from_settings": "cd", "to_settings": "ef",
        "step": 2, "config": {"x": 2, "y": null},
    });
    let file = RunFiles(&served.root.path().join("a")).events();
    File::options().append(true).open(file).unwrap().write_all(format!("{swapped}\n").as_bytes()).unwrap();
    assert_eq!(older("").json()["request"], "r@a:older {\"x\":2}");
    assert_eq!(older("&version=abababababab%2Bcd").json()["request"], "r@a:older {\"x\":1}");
    assert_eq!(older("&version=abababababab%2Bff").status, 404);
    assert_eq!(served.get("api/source?run=a&plugin=r&hash=abababababab").json(), json!({"source": "older", "bytes": 5}));
    assert_eq!(served.post("api/steer?run=a&action=pause", b"").json()["request"], "a:pause");
    let unknown = served.post("api/steer?run=a&action=fly", b"");
    assert!(unknown.status == 400 && unknown.body.contains("pause, continue, save, evaluate, stop"), "{}", unknown.body);
    assert_eq!(
        (served.get("api/steer?run=a&action=stop").status, reading.post("api/steer?run=a&action=stop", b"").status),
        (405, 403)
    );
    // The settings in force are sent with the changes applied.
    let configured = |body: &[u8]| served.post("api/configure?run=a&plugin=r", body);
    assert_eq!(configured(b"{\"weight\": 2}").json()["request"], "r@a:null Some(2.0)");
    assert_eq!(configured(b"{\"settings\": {\"z\": 7}}").json()["request"], "r@a:{\"x\":2,\"z\":7} None");
    assert_eq!((configured(b"{\"weight\": \"x\"}").status, configured(b"7").status), (400, 400));
    assert_eq!(served.post("api/configure?run=a&plugin=nobody", b"{}").status, 404);
}
