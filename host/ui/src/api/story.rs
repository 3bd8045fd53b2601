//! Report of a run: its story, charts, table of metrics, and events, with repeated ones merged.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use crate::report::{self, Error, RunReport, visible_json};
use crate::store::{CachedReport, ExpiringValue, PATIENCE, locked};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Cache lifetime of a report: a fixed time, plus a multiple of the time that it took. After a new event, only a smaller multiple.
const FRESH: Duration = Duration::from_secs(3);
const REST: u32 = 20;
const REST_AFTER_EVENT: u32 = 2;

impl PageApi {
    /// Answers with what happened in a run, and its key figures.
    pub(super) fn story(&self, query: &Query) -> Result<Value> {
        Ok(self.report(&self.path_of(query)?)?["story"].clone())
    }

    /// Answers with the first, last, least and greatest value of each metric.
    pub(super) fn metrics(&self, query: &Query) -> Result<Value> {
        Ok(json!({ "rows": self.report(&self.path_of(query)?)?["metrics"] }))
    }

    /// Answers with a run's events; repeated events are merged.
    pub(super) fn events(&self, query: &Query) -> Result<Value> {
        Ok(json!({ "rows": self.report(&self.path_of(query)?)?["events"] }))
    }

    /// Answers with the charts of a run or, for several runs, with one chart per metric.
    pub(super) fn charts(&self, query: &Query) -> Result<Value> {
        let names: Vec<&str> = query.all("run").collect();
        if let [name] = names[..] {
            return Ok(self.report(&self.path(name)?)?["charts"].clone());
        }
        if names.is_empty() {
            return Err(ApiRefusal::invalid("name the runs: run=NAME"));
        }
        let mut metrics = BTreeSet::new();
        for name in names {
            let run = self.store.run(&self.path(name)?);
            metrics.extend(locked(&run).metrics.names().filter(|name| *name != "epoch").cloned());
        }
        Ok(visible_json(&report::charts_of(&metrics)))
    }

    /// Returns the report of the run in a folder.
    pub(super) fn report(&self, path: &Path) -> Result<Arc<Value>> {
        self.cached_report(path).map_err(|error| ApiRefusal::new(500, error.to_string()))
    }

    /// Returns the report of the run in a folder, from the cache unless that has expired; it expires earlier if there are new events or
    /// metrics.
    pub fn cached_report(&self, path: &Path) -> std::result::Result<Arc<Value>, Error> {
        let (events, metrics) = {
            let run = self.store.run(path);
            let mut run = locked(&run);
            let read = run.advance(Instant::now() + PATIENCE);
            read.map_err(|source| Error::Read { path: path.to_owned(), source })?;
            (run.events.place(), run.metrics.names().count())
        };
        let kept = self.store.report(path);
        // A report reads all metrics, so only one is made at a time, and the result is cached.
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_fresh = |told: &ExpiringValue<CachedReport>| {
            let known = &told.value;
            let is_known = (known.events, known.metrics) == (events, metrics);
            told.expires_at > now && (is_known || known.begun + known.took * REST_AFTER_EVENT > now)
        };
        if let Some(told) = kept.as_ref().filter(|told| is_fresh(told)) {
            return Ok(Arc::clone(&told.value.value));
        }
        let value = Arc::new(visible_json(&RunReport::load(path)?));
        let took = now.elapsed();
        let told = CachedReport { value: Arc::clone(&value), events, metrics, begun: now, took };
        *kept = Some(ExpiringValue { value: told, expires_at: Instant::now() + took * REST + FRESH });
        Ok(value)
    }
}
