//! Routes for external drivers, which take episodes of a run and report their results.

use super::app::App;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::reply::Reply;
use crate::session::AgentSession;
use crate::tasks::{NoTaskReason, REWARDS, StartedTask, TaskQueue, TaskSelector};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Default time that a request waits for an episode, in seconds.
const USUAL_WAIT: f64 = 30.0;

/// Maximum time that a request waits for an episode, in seconds.
const LONGEST_WAIT: f64 = 300.0;

/// Maximum index of a row.
const MOST_ROWS: usize = 1 << 48;

impl App {
    /// Returns the run's episodes, if external drivers play them.
    fn tasks(&self) -> Result<&TaskQueue> {
        self.tasks.as_deref().ok_or_else(|| ApiError::new(404, "the run has no episodes for drivers elsewhere (agent.listen)"))
    }

    /// Returns the run's episodes, and the session of the request.
    fn played(&self) -> Result<(&TaskQueue, &AgentSession)> {
        let tasks = self.tasks()?;
        Ok((tasks, self.session.as_deref().ok_or_else(|| ApiError::new(401, "a session's key is needed"))?))
    }
}

/// Parses a request for `/rl/next_task`; returns how long it waits.
pub(super) fn read_wait(_: &App, mut fields: Fields) -> Result<Duration> {
    let seconds = fields.number("timeout_s", 0.0..=LONGEST_WAIT)?.unwrap_or(USUAL_WAIT);
    fields.finish()?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Answers `/rl/next_task`: waits for the first episode that is not taken, and starts it.
pub(super) async fn next_task(app: &App, limit: Duration) -> Result<Reply> {
    match app.tasks()?.next(limit).await {
        Ok(started) => Ok(Reply::json(described(app, started))),
        Err(NoTaskReason::Idle) => Ok(Reply::json(json!({"task": null}))),
        Err(none) => Err(refused(none)),
    }
}

/// Answers `/rl/start_session`: starts an episode of the requested row or group, or else the first that is not taken.
pub(super) fn start_session(app: &App, mut fields: Fields) -> Result<Reply> {
    let wanted = match (fields.count("row", MOST_ROWS)?, fields.text("group")?) {
        (None, None) => TaskSelector::Next,
        (Some(row), None) => TaskSelector::Row(row),
        (None, Some(group)) => TaskSelector::Group(group),
        (Some(_), Some(_)) => return Err(ApiError::field("group", "can't be combined with row")),
    };
    fields.finish()?;
    let started = app.tasks()?.start(wanted).map_err(refused)?;
    Ok(Reply::json(described(app, started)))
}

/// Answers `/rl/set_reward`.
pub(super) fn set_reward(app: &App, mut fields: Fields) -> Result<Reply> {
    let (tasks, session) = app.played()?;
    let report = report(&mut fields);
    fields.finish()?;
    if !REWARDS.iter().any(|name| report.contains_key(*name)) {
        return Err(ApiError::field("reward", "is missing"));
    }
    match tasks.report(session, report) {
        Ok(()) => Ok(Reply::json(json!({"message": "success"}))),
        Err(Some(wrong)) => Err(ApiError::invalid(format!("the report {wrong}"))),
        Err(None) => Err(over()),
    }
}

/// Answers `/rl/end_session`. The session is closed even if the request is invalid.
pub(super) fn end_session(app: &App, body: &[u8]) -> Result<Reply> {
    let (tasks, session) = app.played()?;
    let read = || {
        let mut fields = Fields::parse(body)?;
        let (report, error) = (report(&mut fields), fields.text("error")?);
        fields.finish()?;
        Ok((report, error))
    };
    let (outcome, unreadable) = match read() {
        Ok((report, None)) => (Ok(report), None),
        Ok((_, Some(error))) => (Err(error), None),
        Err(error) => (Err(format!("its last report can't be read: {}", ApiError::message(&error))), Some(error)),
    };
    let finished = tasks.finish_session(session, outcome).ok_or_else(over)?;
    match (unreadable, finished.wrong) {
        (Some(error), _) => Err(error),
        (None, Some(wrong)) => Err(ApiError::invalid(format!("the session has ended and failed: its report {wrong}"))),
        (None, None) => {
            let mut reply = json!({"episode": finished.name, "calls": finished.calls});
            if let Some(reason) = finished.failed {
                reply["failed"] = reason.into();
            }
            Ok(Reply::json(reply))
        }
    }
}

/// Removes the fields with which a driver reports on an episode.
fn report(fields: &mut Fields) -> Map<String, Value> {
    REWARDS.into_iter().chain(["metrics"]).filter_map(|name| Some((name.to_owned(), fields.take(name)?))).collect()
}

/// Returns what the driver of a started episode needs to know.
fn described(app: &App, started: StartedTask) -> Value {
    let StartedTask { key, name, group, driver_fields: mut described, timeout } = started;
    let host = app.host.as_deref().unwrap_or_default();
    let more = json!({
        "episode": name, "session_id": name, "group": group, "api_key": key, "base_url": format!("http://{host}/v1"),
        "timeout_s": timeout.as_secs_f64(),
    });
    described.extend(more.as_object().cloned().unwrap_or_default());
    Value::Object(described)
}

fn refused(none: NoTaskReason) -> ApiError {
    match none {
        NoTaskReason::Idle => ApiError::new(409, "the run needs no episode at the moment; /rl/next_task waits for one"),
        NoTaskReason::Full(open) => ApiError::new(429, format!("{open} sessions are open (max_concurrent); end one first")),
        NoTaskReason::NotNeeded { kind, needed } => {
            ApiError::new(404, format!("no episode of this {kind} is needed; {kind}s that are: {needed}"))
        }
        NoTaskReason::Over => ApiError::new(410, "the run has ended"),
    }
}

fn over() -> ApiError {
    ApiError::new(410, "the session has ended")
}
