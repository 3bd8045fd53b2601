//! The table of runs.

use super::app::Api;
use super::query::Query;
use super::refused::{Refused, Result};
use super::run::status;
use crate::store::{PATIENCE, locked};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Settings that differ between all runs anyway.
const OWN: [&str; 2] = ["output_dir", "run_name"];

/// Most runs whose settings are compared, and most settings that are shown.
const MOST_COMPARED: usize = 200;
const MOST_SETTINGS: usize = 40;

impl Api {
    pub(super) fn runs(&self) -> Result<Value> {
        let found = self.listing.runs();
        let until = Instant::now() + 2 * PATIENCE;
        let (mut rows, mut settings, mut complete) = (Vec::new(), Vec::new(), true);
        for run in found.iter() {
            let followed = self.store.run(&run.path);
            let mut followed = locked(&followed);
            let read = followed.advance(until);
            complete &= *read.as_ref().unwrap_or(&true);
            let mut row = status(&followed);
            row["name"] = run.name.as_str().into();
            row["error"] = read.err().map(|error| error.to_string()).into();
            row["complete"] = (followed.metrics.share() > 0.999).into();
            if rows.len() < MOST_COMPARED {
                settings.push((run.name.clone(), followed.settings()));
            }
            rows.push(row);
        }
        let differing = differing(&settings);
        Ok(json!({ "runs": rows, "complete": complete, "settings": differing }))
    }

    /// Settings in which the runs of a query differ.
    pub(super) fn settings(&self, query: &Query) -> Result<Value> {
        let names: Vec<String> = query.all("run").map(str::to_owned).collect();
        if names.is_empty() {
            return Err(Refused::invalid("name the runs to compare: run=NAME"));
        }
        let of = |name: String| {
            let run = self.store.run(&self.path(&name)?);
            Ok((name, locked(&run).settings()))
        };
        let runs = names.into_iter().take(MOST_COMPARED).map(of).collect::<Result<Vec<_>>>()?;
        Ok(differing(&runs))
    }
}

/// Returns the settings that differ between runs: for each its values by the runs' names.
fn differing(all: &[(String, Arc<BTreeMap<String, String>>)]) -> Value {
    let keys: BTreeSet<&String> = all.iter().flat_map(|(_, settings)| settings.keys()).collect();
    // What only some have, such as a plugin's own settings, comes after what all have.
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
