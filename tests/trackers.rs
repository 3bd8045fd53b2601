//! What is exported for other programs. `check_trackers.py` reads it with their own clients.

use rlhost_tests::Place;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn an_export_has_every_value_and_replaces_the_one_before() {
    let place = Place::new();
    place.train("run", &["--max-steps", "3", "--report-to", "mlflow,trackio"]).succeeded();
    let lines = place.lines("run/metrics.jsonl");
    let wanted: BTreeMap<(u64, String), f64> = lines
        .iter()
        .flat_map(|line| {
            let step = line["step"].as_u64().unwrap();
            let values = line.as_object().unwrap().iter().filter(|(name, _)| !["step", "time"].contains(&name.as_str()));
            values.map(move |(name, value)| ((step, name.clone()), value.as_f64().unwrap()))
        })
        .collect();
    assert!(!place.path("run/tensorboard").exists() && !place.path("run/wandb").exists(), "only what was asked for");

    // Exported when the run ended, and once more.
    place.run(&["export-run", "run", "--format", "mlflow"]).succeeded();
    let runs: Vec<PathBuf> =
        fs::read_dir(place.path("run/mlruns/100000000000000001")).unwrap().map(|e| e.unwrap().path()).collect();
    let [folder] = &runs.into_iter().filter(|path| path.is_dir()).collect::<Vec<_>>()[..] else { panic!("one run") };
    let metrics = folder.join("metrics");
    let mut got = BTreeMap::new();
    for file in files(&metrics) {
        let name = file.strip_prefix(&metrics).unwrap().display().to_string();
        for line in fs::read_to_string(&file).unwrap().lines() {
            let [_, value, step] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            got.insert((step.parse().unwrap(), name.clone()), value.parse().unwrap());
        }
    }
    assert_eq!(got, wanted);
    assert_eq!(fs::read_to_string(folder.join("params/max_steps")).unwrap(), "3");

    let table = fs::read_to_string(place.path("run/run-trackio.csv")).unwrap();
    let (names, rows) = table.split_once('\n').unwrap();
    let names: Vec<&str> = names.split(',').map(|name| name.trim_matches('"')).collect();
    assert_eq!(names[..2], ["step", "timestamp"]);
    let mut got = BTreeMap::new();
    for row in rows.lines() {
        let cells: Vec<&str> = row.split(',').collect();
        for (name, cell) in names.iter().zip(&cells).skip(2).filter(|(_, cell)| !cell.is_empty()) {
            got.insert((cells[0].parse().unwrap(), (*name).to_owned()), cell.parse().unwrap());
        }
    }
    assert_eq!(got, wanted);

    let said = place.run(&["export-run", "run", "--format", "wandb", "--output", "shared"]).succeeded().stdout.clone();
    let log = files(&place.path(said.trim()));
    let bytes = fs::read(&log[0]).unwrap();
    assert!(log.len() == 1 && bytes.starts_with(b":W&B\xe1\xbe\0"), "{log:?}");
}

#[test]
fn nothing_of_a_hostile_folder_leads_outside_of_the_export() {
    let place = Place::new();
    fs::create_dir(place.path("run")).unwrap();
    place.write("run/config.toml", "\"../../escaped\" = 1\n\"a/b\" = \"\\u001b[2J\"\n[\"..\"]\nx = 1\n");
    place.write("run/events.jsonl", "not json\n{\"event\": \"started\", \"time\": \"never\"}\n");
    let names = ["../../../escaped", "/etc/escaped", "a", "a/b", "..", "\u{1b}[2J", ",\"=1+1", "a.b"];
    let metrics: String = (1..4u64)
        .map(|step| {
            let row: BTreeMap<&str, Value> =
                names.iter().map(|name| (*name, Value::from(1.5))).chain([("step", Value::from(step))]).collect();
            format!("{}\n", serde_json::to_string(&row).unwrap())
        })
        .collect();
    place.write("run/metrics.jsonl", format!("{metrics}{{\"step\": 9, \"rew"));
    for format in ["mlflow", "wandb", "trackio"] {
        let outcome = place.run(&["export-run", "run", "--format", format, "--output", "out"]);
        outcome.succeeded();
        assert!(!outcome.stdout.contains('\u{1b}') && !outcome.stderr.contains('\u{1b}'), "{outcome:?}");
    }
    assert_eq!(place.entries(), ["out", "run"]);
    let metrics =
        files(&place.path("out/mlruns")).into_iter().filter(|path| path.components().any(|c| c.as_os_str() == "metrics"));
    assert_eq!(metrics.count(), names.len(), "each under a name of its own");
    place.write("run/config.toml", "seed = [");
    let damaged = place.run(&["export-run", "run", "--format", "mlflow", "--output", "out"]);
    let said = "config.toml can't be read, so no settings are exported: ";
    assert!(damaged.code == Some(0) && damaged.stderr.contains(said), "{}", damaged.stderr);
    let empty = place.run(&["export-run", "out", "--format", "mlflow"]);
    assert!(empty.code == Some(2) && empty.error().contains("is not the folder of a run"), "{}", empty.stderr);
}

/// Where a run's folder is somebody else's, so is what it calls `mlruns`.
#[cfg(unix)]
#[test]
fn an_export_into_a_strangers_run_does_not_follow_its_links() {
    use std::os::unix::fs::symlink;
    let place = Place::new();
    for folder in ["run", "elsewhere", "elsewhere/100000000000000001"] {
        fs::create_dir(place.path(folder)).unwrap();
    }
    place.write("run/config.toml", "seed = 1\n");
    place.write("run/metrics.jsonl", "{\"step\": 1, \"loss\": 0.5}\n");
    for (format, link, to) in [
        ("mlflow", "run/mlruns", "elsewhere"),
        ("wandb", "run/wandb", "elsewhere"),
        ("mlflow", "run/mlruns/100000000000000001", "elsewhere/100000000000000001"),
    ] {
        if link.contains("/1") {
            fs::create_dir(place.path("run/mlruns")).unwrap();
        }
        symlink(place.path(to), place.path(link)).unwrap();
        let refused = place.run(&["export-run", "run", "--format", format]);
        assert!(refused.code == Some(2) && refused.error().contains("a link"), "{link}: {}", refused.stderr);
        assert_eq!(place.entries_of("elsewhere"), ["100000000000000001"], "{link}");
        assert!(place.entries_of("elsewhere/100000000000000001").is_empty(), "{link}");
        fs::remove_file(place.path(link)).unwrap();
    }
    place.run(&["export-run", "run", "--format", "mlflow"]).succeeded();
}
