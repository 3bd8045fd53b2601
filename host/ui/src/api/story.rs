//! What a report says of a run: its story, which metrics share a chart, the table of all metrics, events that repeat as one.

use super::app::Api;
use super::query::Query;
use super::refused::{Refused, Result};
use crate::report::{self, Error, Report, visible_json};
use crate::store::{Cached, PATIENCE, Told, locked};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long a report stays as it is, and for how many times as long as it took to put it together. A new event shortens the rest.
const FRESH: Duration = Duration::from_secs(3);
const REST: u32 = 20;
const REST_AFTER_EVENT: u32 = 2;

impl Api {
    /// Answers with what happened to a run, and the figures that say most.
    pub(super) fn story(&self, query: &Query) -> Result<Value> {
        Ok(self.report(&self.path_of(query)?)?["story"].clone())
    }

    /// Answers with the first, last, least and greatest value of each metric.
    pub(super) fn metrics(&self, query: &Query) -> Result<Value> {
        Ok(json!({ "rows": self.report(&self.path_of(query)?)?["metrics"] }))
    }

    /// Answers with a run's events, those that say the same as one.
    pub(super) fn events(&self, query: &Query) -> Result<Value> {
        Ok(json!({ "rows": self.report(&self.path_of(query)?)?["events"] }))
    }

    /// Answers with the charts of a run, or, of several, with a chart for each metric.
    pub(super) fn charts(&self, query: &Query) -> Result<Value> {
        let names: Vec<&str> = query.all("run").collect();
        if let [name] = names[..] {
            return Ok(self.report(&self.path(name)?)?["charts"].clone());
        }
        if names.is_empty() {
            return Err(Refused::invalid("name the runs: run=NAME"));
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
        self.told(path).map_err(|error| Refused::new(500, error.to_string()))
    }

    /// Returns the report of the run in a folder, put together again after a while, after an event, or when there are
    /// other metrics.
    pub fn told(&self, path: &Path) -> std::result::Result<Arc<Value>, Error> {
        let (events, metrics) = {
            let run = self.store.run(path);
            let mut run = locked(&run);
            let read = run.advance(Instant::now() + PATIENCE);
            read.map_err(|source| Error::Read { path: path.to_owned(), source })?;
            (run.events.place(), run.metrics.names().count())
        };
        let kept = self.store.report(path);
        // It reads all metrics: one at a time, and not again at once.
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_fresh = |told: &Cached<Told>| {
            let known = &told.value;
            let is_known = (known.events, known.metrics) == (events, metrics);
            told.until > now && (is_known || known.begun + known.took * REST_AFTER_EVENT > now)
        };
        if let Some(told) = kept.as_ref().filter(|told| is_fresh(told)) {
            return Ok(Arc::clone(&told.value.value));
        }
        let value = Arc::new(visible_json(&Report::load(path)?));
        let took = now.elapsed();
        let told = Told { value: Arc::clone(&value), events, metrics, begun: now, took };
        *kept = Some(Cached { value: told, until: Instant::now() + took * REST + FRESH });
        Ok(value)
    }
}
