//! Precomputed answers to the page's requests.

use super::completions;
use super::queries::query;
use crate::api::{ApiRefusal, PageApi, PageRoute};
use crate::folder::NamedRun;
use crate::report::Error;
use crate::run::RunFiles;
use crate::store::locked;
use rlhost_config::now;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum time to read a run: unlike the live page, a file can't be completed later.
const PATIENT: Duration = Duration::from_secs(3600);

/// Limits on points: per curve, and in all curves together. A band adds two more curves.
const MOST_POINTS: usize = 2000;
const LEAST_POINTS: usize = 20;
const MOST_IN_ALL: usize = 1_000_000;

/// Maximum number of runs with full views rather than only curves.
const MOST_VIEWS: usize = 32;

/// Maximum number of versions per plugin whose source is included, and their maximum total size in bytes.
const MOST_SOURCES: usize = 20;
const MOST_SOURCE_BYTES: usize = 1 << 20;

/// Routes whose answers are included for each run; curves and completions are added separately.
const OF_A_RUN: [(&str, PageRoute); 9] = [
    ("run", PageRoute::Run),
    ("config", PageRoute::Config),
    ("diagnosis", PageRoute::Diagnosis),
    ("story", PageRoute::Story),
    ("charts", PageRoute::Charts),
    ("metrics", PageRoute::Metrics),
    ("events", PageRoute::Events),
    ("plugins", PageRoute::Plugins),
    ("group", PageRoute::Group),
];

/// Returns all answers that a file about these runs contains.
pub(super) fn read(api: &PageApi, runs: &[NamedRun]) -> Result<Value, Error> {
    for run in runs {
        advance(api, &run.path)?;
    }
    let all = query(runs.iter().map(|run| ("run", run.name.as_str())));
    let single = runs.len() == 1;
    let mut of_runs: Map<String, Value> = Map::new();
    for (route, _) in OF_A_RUN {
        of_runs.insert(route.to_owned(), Value::Object(Map::new()));
    }
    let (mut series, mut sources) = (Map::new(), Map::new());
    for (i, run) in runs.iter().enumerate() {
        series.insert(run.name.clone(), curves(api, run, runs.len()));
        if i >= MOST_VIEWS {
            continue;
        }
        // If a run can't be read, no file is written.
        api.cached_report(&run.path)?;
        let one = query([("run", run.name.as_str())]);
        for (route, asked) in OF_A_RUN.iter().filter(|(_, asked)| *asked != PageRoute::Group) {
            of_runs[*route][&run.name] = answer_or_refusal(api.answer(*asked, &one, b""));
        }
        of_runs["group"][&run.name] = completions::read(api, run, runs.len());
        sources.insert(run.name.clone(), scripts(api, &run.name, &of_runs["plugins"][&run.name]));
    }
    let asked = |route: PageRoute| answer_or_refusal(api.answer(route, &all, b""));
    let several = |route: PageRoute| if single { Value::Null } else { asked(route) };
    Ok(json!({
        "about": {
            "control": false,
            "frozen": true,
            "folder": "",
            "single": single,
            "version": env!("CARGO_PKG_VERSION"),
            "written": now().as_second(),
        },
        "runs": asked(PageRoute::Runs),
        "settings": several(PageRoute::Settings),
        "comparison": several(PageRoute::Comparison),
        "charts": several(PageRoute::Charts),
        "series": series,
        "of_runs": of_runs,
        "sources": sources,
    }))
}

/// Reads all of a run's files.
fn advance(api: &PageApi, path: &Path) -> Result<(), Error> {
    let run = api.store.run(path);
    let mut run = locked(&run);
    let until = Instant::now() + PATIENT;
    let read = |file, source| Error::Read { path: file, source };
    let files = RunFiles(path);
    run.events.advance(until).map_err(|source| read(files.events(), source))?;
    run.metrics.advance(until).map_err(|source| read(files.metrics(), source))?;
    run.advance_completions(until).map_err(|source| read(files.completions(), source))?;
    Ok(())
}

/// Returns an answer, or the error that the page would receive.
fn answer_or_refusal(answer: Result<Value, ApiRefusal>) -> Value {
    answer.unwrap_or_else(|refused| refused.to_json())
}

/// Returns the curves of one of `runs` runs.
fn curves(api: &PageApi, run: &NamedRun, runs: usize) -> Value {
    let series = locked(&api.store.run(&run.path)).metrics.names().count();
    let points = (MOST_IN_ALL / (series * runs).max(1)).clamp(LEAST_POINTS, MOST_POINTS);
    let asked = format!("{}&points={points}", query([("run", run.name.as_str())]));
    match api.answer(PageRoute::Series, &asked, b"") {
        Ok(mut answer) => answer["runs"][&run.name].take(),
        Err(refused) => refused.to_json(),
    }
}

/// Returns the sources of stored versions, by the plugin's name and hash.
fn scripts(api: &PageApi, run: &str, plugins: &Value) -> Value {
    let (mut sources, mut room) = (Map::new(), MOST_SOURCE_BYTES);
    for plugin in plugins["plugins"].as_array().into_iter().flatten() {
        let name = plugin["name"].as_str().unwrap_or_default();
        let history = plugin["history"].as_array().into_iter().flatten();
        for version in history.filter(|version| version["kept"] == true).take(MOST_SOURCES) {
            let hash = version["hash"].as_str().unwrap_or_default();
            let key = format!("{name} {hash}");
            if sources.contains_key(&key) {
                continue;
            }
            let asked = query([("run", run), ("plugin", name), ("hash", hash)]);
            let Ok(answer) = api.answer(PageRoute::Source, &asked, b"") else { continue };
            if let Some(left) = room.checked_sub(answer.to_string().len()) {
                room = left;
                sources.insert(key, answer);
            }
        }
    }
    Value::Object(sources)
}
