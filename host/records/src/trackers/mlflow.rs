//! MLflow's file store: a folder for each experiment and run, and a file for each metric and setting.

use super::run::{Error, ExportedRun, make, make_anew, write_file};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Id and name of the experiment that runs belong to.
const EXPERIMENT: (&str, &str) = ("100000000000000001", "rlhost");

/// Returns whether a character may be in a metric's or a setting's name.
fn keeps(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-. /".contains(c)
}

/// Writes a run into `to/mlruns`, next to others. Returns that folder.
pub(super) fn write(run: &ExportedRun, to: &Path) -> Result<PathBuf, Error> {
    let (id, name) = EXPERIMENT;
    let store = to.join("mlruns");
    let experiment = store.join(id);
    let folder = experiment.join(&run.id);
    make(to, &experiment)?;
    let artifacts = |folder: &Path| format!("file://{}", std::path::absolute(folder).unwrap_or(folder.to_owned()).display());
    if !experiment.join("meta.yaml").exists() {
        let meta = [
            ("artifact_location", Value::from(artifacts(&experiment))),
            ("creation_time", run.started.into()),
            ("experiment_id", id.into()),
            ("last_update_time", run.started.into()),
            ("lifecycle_stage", "active".into()),
            ("name", name.into()),
        ];
        meta_file(&experiment, &meta)?;
    }
    make_anew(to, &folder)?;
    meta_file(&folder, &about(run, &artifacts(&folder.join("artifacts"))))?;
    for kind in ["artifacts", "metrics", "params", "tags"] {
        make(to, &folder.join(kind))?;
    }
    contents(run, &folder)?;
    Ok(store)
}

/// Returns the fields of a run's meta.yaml.
fn about(run: &ExportedRun, artifacts: &str) -> [(&'static str, Value); 14] {
    // RUNNING, FINISHED, FAILED, KILLED
    let status = match run.end.as_deref() {
        Some("finished") => 3,
        Some("failed") => 4,
        Some(_) => 5,
        None => 1,
    };
    [
        ("artifact_uri", artifacts.into()),
        ("end_time", if run.end.is_some() { run.ended.into() } else { Value::Null }),
        ("entry_point_name", "".into()),
        ("experiment_id", EXPERIMENT.0.into()),
        ("lifecycle_stage", "active".into()),
        ("run_id", run.id.clone().into()),
        ("run_name", run.title.clone().into()),
        ("source_name", "rlhost".into()),
        ("source_type", 4.into()),
        ("source_version", env!("CARGO_PKG_VERSION").into()),
        ("start_time", run.started.into()),
        ("status", status.into()),
        ("tags", Value::Array(Vec::new())),
        ("user_id", "".into()),
    ]
}

/// Writes a run's tags, settings and metrics.
fn contents(run: &ExportedRun, folder: &Path) -> Result<(), Error> {
    for (key, text) in [("mlflow.runName", run.title.as_str()), ("mlflow.source.name", "rlhost")] {
        write_file(&folder.join("tags").join(key), |file| file.write_all(text.as_bytes()))?;
    }
    for (key, value) in &run.settings {
        let key: String = key.chars().map(|c| if keeps(c) && c != '/' { c } else { '_' }).collect();
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if !["", ".", ".."].contains(&key.as_str()) {
            write_file(&folder.join("params").join(key), |file| file.write_all(text.as_bytes()))?;
        }
    }
    let mut texts = vec![String::new(); run.metrics.len()];
    for row in &run.rows {
        for (metric, value) in &row.values {
            // Writing to a string can't fail.
            let _ = writeln!(texts[*metric], "{} {value:?} {}", row.time, row.step);
        }
    }
    for (name, text) in run.names(keeps).iter().zip(&texts) {
        write_file(&folder.join("metrics").join(name), |file| file.write_all(text.as_bytes()))?;
    }
    Ok(())
}

/// Writes meta.yaml; every JSON value is valid YAML.
fn meta_file(folder: &Path, entries: &[(&str, Value)]) -> Result<(), Error> {
    let text: String = entries.iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
    write_file(&folder.join("meta.yaml"), |file| file.write_all(text.as_bytes()))
}
