//! Table of runs.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use super::run::status;
use crate::folder::NamedRun;
use crate::store::{PATIENCE, RunFilesStamp, RunTableRow, locked};
use rlhost_live::{LiveRun, RunState};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Settings that differ between all runs by nature.
const OWN: [&str; 2] = ["output_dir", "run_name"];

/// Maximum number of runs whose settings are compared, and of settings that are shown.
const MOST_COMPARED: usize = 200;
const MOST_SETTINGS: usize = 40;

impl PageApi {
    pub(super) fn runs(&self) -> Result<Value> {
        let found = self.listing.runs();
        let until = Instant::now() + 2 * PATIENCE;
        let (mut rows, mut settings, mut complete) = (Vec::new(), Vec::new(), true);
        for run in found.iter() {
            let RunTableRow { mut row, settings: own } = self.store.ended(&run.path).unwrap_or_else(|| self.row(run, until));
            complete &= row["complete"] == true;
            row["name"] = run.name.as_str().into();
            if rows.len() < MOST_COMPARED {
                settings.push((run.name.clone(), own));
            }
            rows.push(row);
        }
        let differing = differing(&settings);
        Ok(json!({ "runs": rows, "complete": complete, "settings": differing }))
    }

    /// Returns the row of a run, as far as it can be read in time.
    fn row(&self, run: &NamedRun, until: Instant) -> RunTableRow {
        if Instant::now() >= until && !self.store.has(&run.path) {
            // The time is up: the run is read in a later request.
            let mut row = status(&LiveRun::new(&run.path));
            (row["error"], row["complete"]) = (Value::Null, false.into());
            return RunTableRow { row, settings: Arc::default() };
        }
        let stamp = RunFilesStamp::read(&run.path);
        let followed = self.store.run(&run.path);
        let mut followed = locked(&followed);
        let read = followed.advance(until);
        let is_read = *read.as_ref().unwrap_or(&true);
        let mut row = status(&followed);
        row["error"] = read.err().map(|error| error.to_string()).into();
        row["complete"] = is_read.into();
        let row = RunTableRow { row, settings: followed.settings() };
        if is_read && !matches!(followed.state(), RunState::Running | RunState::Paused) {
            self.store.end(&run.path, stamp, row.clone());
        }
        row
    }

    /// Answers with the settings that differ between the runs of a query.
    pub(super) fn settings(&self, query: &Query) -> Result<Value> {
        let names: Vec<String> = query.all("run").map(str::to_owned).collect();
        if names.is_empty() {
            return Err(ApiRefusal::invalid("name the runs to compare: run=NAME"));
        }
        let of = |name: String| {
            let run = self.store.run(&self.path(&name)?);
            Ok((name, locked(&run).settings()))
        };
        let runs = names.into_iter().take(MOST_COMPARED).map(of).collect::<Result<Vec<_>>>()?;
        Ok(differing(&runs))
    }
}

/// Returns the settings that differ between runs: the values of each setting by run.
fn differing(all: &[(String, Arc<BTreeMap<String, String>>)]) -> Value {
    let keys: BTreeSet<&String> = all.iter().flat_map(|(_, settings)| settings.keys()).collect();
    // Settings that only some runs have, such as a plugin's own, come last.
    let mut keys: Vec<&String> = keys.into_iter().collect();
    keys.sort_by_key(|key| all.iter().any(|(_, settings)| !settings.contains_key(*key)));
    let mut differing = Map::new();
    for key in keys.into_iter().filter(|key| !OWN.contains(&key.as_str())) {
        let values: BTreeSet<Option<&String>> = all.iter().map(|(_, settings)| settings.get(key)).collect();
        if values.len() > 1 && differing.len() < MOST_SETTINGS {
            let values = all.iter().filter_map(|(name, settings)| Some((name.clone(), settings.get(key)?.as_str().into())));
            differing.insert(key.clone(), Value::Object(values.collect()));
        }
    }
    Value::Object(differing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunFiles;
    use crate::tests::EchoBackend;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn runs_that_have_ended_are_read_once() {
        let root = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..330).map(|i| format!("run-{i:03}")).collect();
        for name in &names {
            let files = root.path().join(name);
            fs::create_dir(&files).unwrap();
            fs::write(RunFiles(&files).events(), "{\"event\":\"started\",\"step\":0}\n{\"event\":\"finished\",\"step\":1}\n")
                .unwrap();
            fs::write(RunFiles(&files).metrics(), "{\"step\":1,\"reward\":2}\n").unwrap();
        }
        let api = PageApi::new(root.path().to_owned(), Box::new(EchoBackend), false);
        while api.runs().unwrap()["complete"] == false {}
        // There are more runs than are cached.
        let path = |name: &String| root.path().join(name);
        assert!(names.iter().any(|name| !api.store.has(&path(name))));
        assert!(names.iter().all(|name| api.store.ended(&path(name)).is_some()));
        let kept: Vec<bool> = names.iter().map(|name| api.store.has(&path(name))).collect();
        let again = api.runs().unwrap();
        assert_eq!(again["runs"][0]["reward"], 2.0);
        assert_eq!(names.iter().map(|name| api.store.has(&path(name))).collect::<Vec<_>>(), kept, "nothing was read again");
        // A run that continues is read again.
        fs::write(RunFiles(&path(&names[0])).metrics(), "{\"step\":1,\"reward\":2}\n{\"step\":2,\"reward\":7}\n").unwrap();
        assert!(api.store.ended(&path(&names[0])).is_none());
        assert_eq!(api.runs().unwrap()["runs"][0]["reward"], 7.0);
    }

    #[test]
    fn a_late_answer_has_all_runs_and_says_that_there_is_more() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("a");
        fs::create_dir(&run).unwrap();
        fs::write(RunFiles(&run).events(), "{\"event\":\"finished\",\"step\":1}\n").unwrap();
        let api = PageApi::new(root.path().to_owned(), Box::new(EchoBackend), false);
        let found = NamedRun { name: "a".into(), path: run };
        let past = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        assert_eq!(api.row(&found, past).row["complete"], false);
        assert!(!api.store.has(&found.path));
    }
}
