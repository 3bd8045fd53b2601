//! The table of runs.

use super::query::Query;
use super::run::status;
use super::{Api, Refused, Result};
use crate::followed::{PATIENCE, locked};
use crate::{folder, report};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

/// Settings that differ between all runs anyway.
const OWN: [&str; 2] = ["output_dir", "run_name"];

/// Most runs whose settings are compared, and most settings that are shown.
const MOST_COMPARED: usize = 200;
const MOST_SETTINGS: usize = 40;

impl Api {
    pub(super) fn runs(&self) -> Result<Value> {
        let found = folder::runs(&self.root);
        let until = Instant::now() + 2 * PATIENCE;
        let (mut rows, mut complete) = (Vec::new(), true);
        for run in &found {
            let followed = self.store.run(&run.path);
            let mut followed = locked(&followed);
            let read = followed.advance(until);
            complete &= *read.as_ref().unwrap_or(&true);
            let mut row = status(&followed);
            row["name"] = run.name.as_str().into();
            row["error"] = read.err().map(|error| error.to_string()).into();
            row["complete"] = (followed.metrics.share() > 0.999).into();
            rows.push(row);
        }
        let differing = differing(found.iter().map(|run| (run.name.clone(), run.path.clone())));
        Ok(json!({ "runs": rows, "complete": complete, "settings": differing, "most": found.len() >= 2000 }))
    }

    /// Settings in which the runs of a query differ.
    pub(super) fn settings(&self, query: &Query) -> Result<Value> {
        let names: Vec<String> = query.all("run").map(str::to_owned).collect();
        if names.is_empty() {
            return Err(Refused::invalid("name the runs to compare: run=NAME"));
        }
        let runs = names.into_iter().map(|name| Ok((name.clone(), self.path(&name)?))).collect::<Result<Vec<_>>>()?;
        Ok(differing(runs.into_iter()))
    }
}

/// Returns the settings that differ between runs: for each its values by the runs' names.
fn differing(runs: impl Iterator<Item = (String, PathBuf)>) -> Value {
    let of = |(name, path): (String, PathBuf)| (name, report::settings_of(&path).unwrap_or_default());
    let all: Vec<(String, BTreeMap<String, String>)> = runs.take(MOST_COMPARED).map(of).collect();
    let keys: BTreeSet<&String> = all.iter().flat_map(|(_, settings)| settings.keys()).collect();
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
