//! Updates of a run as server-sent events.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use super::run::status;
use crate::store::{PATIENCE, locked};
use rlhost_live::LiveRun;
use rlhost_serve::EventSource;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Polling interval of the files.
const LOOK: Duration = Duration::from_millis(300);

/// Number of polls without news before a keep-alive comment, which detects that the browser has left.
const QUIET: usize = 30;

/// Maximum number of open streams.
const MOST_STREAMS: usize = 64;

/// Maximum number of rows sent individually; a page that lacks more requests its curves again.
const MOST_ROWS: usize = 500;
const MOST_EVENTS: usize = 500;

/// Number of open streams.
static STREAMS: AtomicUsize = AtomicUsize::new(0);

/// Stream of a run's updates.
pub(crate) struct LiveUpdateStream(Receiver<String>);

impl EventSource for LiveUpdateStream {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<String>> {
        self.0.poll_recv(context)
    }
}

/// Position up to which a stream has sent updates.
#[derive(Default)]
struct LiveCursor {
    rows: usize,
    metrics: u64,
    events: usize,
    /// Generation of the events; `None` before the first poll.
    changes: Option<u64>,
    completions: usize,
    status: Value,
}

/// Permit of an open stream, which counts it while it exists.
struct LiveStreamPermit;

impl Drop for LiveStreamPermit {
    fn drop(&mut self) {
        STREAMS.fetch_sub(1, Ordering::SeqCst);
    }
}

impl LiveUpdateStream {
    /// Starts to follow the run named by a query: `rows` and `events` are the numbers that the page has, of `generation`.
    pub fn start(api: &PageApi, query: &str) -> Result<Self> {
        let query = Query::parse(query)?;
        let run = api.followed(&query)?;
        if STREAMS.fetch_add(1, Ordering::SeqCst) >= MOST_STREAMS {
            drop(LiveStreamPermit);
            return Err(ApiRefusal::new(503, format!("there are {MOST_STREAMS} pages already; close one")));
        }
        let place = LiveStreamPermit;
        let told = LiveCursor {
            rows: query.count("rows", 0, usize::MAX)?,
            metrics: query.count("generation", 0, usize::MAX)? as u64,
            events: query.count("events", 0, usize::MAX)?,
            ..LiveCursor::default()
        };
        let (sender, receiver) = channel(16);
        let work = move || {
            follow(&run, told, &sender);
            drop(place);
        };
        thread::Builder::new().name("page".into()).spawn(work).map_err(|error| ApiRefusal::new(503, error.to_string()))?;
        Ok(Self(receiver))
    }
}

/// Polls a run until the page disconnects.
fn follow(run: &Mutex<LiveRun>, mut told: LiveCursor, sender: &Sender<String>) {
    let mut quiet = 0;
    while !sender.is_closed() {
        let message = next_update(&mut locked(run), &mut told);
        let text = match message {
            Some(message) => format!("data: {message}\n\n"),
            None if quiet == QUIET => ": still here\n\n".to_owned(),
            None => String::new(),
        };
        quiet = if text.is_empty() { quiet + 1 } else { 0 };
        if !text.is_empty() && sender.blocking_send(text).is_err() {
            return;
        }
        thread::sleep(LOOK);
    }
}

/// Returns what is new; `None` if nothing is.
fn next_update(run: &mut LiveRun, told: &mut LiveCursor) -> Option<Value> {
    let until = Instant::now() + PATIENCE;
    // Files that can't be read now may be readable later.
    let _ = run.advance(until);
    let _ = run.advance_completions(until);
    let mut message = serde_json::Map::new();
    let (rows, generation) = (run.metrics.steps.len(), run.metrics.generation);
    if generation != told.metrics || rows < told.rows || rows - told.rows > MOST_ROWS {
        message.insert("reload".into(), true.into());
    } else if rows > told.rows {
        let mut appended = run.metrics.appended(told.rows);
        appended["from"] = told.rows.into();
        message.insert("rows".into(), appended);
    }
    (told.rows, told.metrics) = (rows, generation);
    let (events, changes) = (run.events.all.len(), run.events.generation);
    let is_other = told.changes.is_some_and(|told| told != changes);
    if is_other || events < told.events || events - told.events > MOST_EVENTS {
        message.insert("reload".into(), true.into());
    } else if events > told.events {
        message.insert("events".into(), json!(run.events.all[told.events..]));
    }
    (told.events, told.changes) = (events, Some(changes));
    let completions = run.completions.entries.len();
    if completions != told.completions {
        told.completions = completions;
        let newest = run.completions.entries.last().map(|entry| entry.step);
        message.insert("completions".into(), json!({ "all": completions, "newest": newest }));
    }
    let status = status(run);
    if status != told.status {
        message.insert("status".into(), status.clone());
        told.status = status;
    }
    (!message.is_empty()).then_some(Value::Object(message))
}
