//! What is exported for other programs. `check_trackers.py` reads it with their own clients.

use rlhost_tests::{CommandOutcome, HOSTILE, TestFolder, small};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn an_export_has_every_value_and_replaces_the_one_before() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "3", "--report-to", "mlflow,trackio"]).succeeded();
    let lines = place.lines("run/metrics.jsonl");
    let wanted: BTreeMap<(u64, String), f64> = lines
        .iter()
        .flat_map(|line| {
            let step = line["step"].as_u64().unwrap();
            let values =
                line.as_object().unwrap().iter().filter(|(name, _)| !["step", "time", "versions"].contains(&name.as_str()));
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

/// What a run's folder has for trackers.
fn exported(place: &TestFolder, run: &str) -> Vec<String> {
    let own = ["csv", "py"].map(|ending| format!("{run}-trackio.{ending}"));
    let all = ["tensorboard", "wandb", "mlruns"].map(str::to_owned).into_iter().chain(own);
    all.filter(|name| place.path(run).join(name).exists()).collect()
}

#[test]
fn a_run_is_exported_also_if_it_is_stopped_or_fails() {
    let place = TestFolder::new();
    let arguments = |run: &'static str, to: &'static str| {
        let mut all = small().to_vec();
        all.extend(["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "8", "--logging-steps", "1"]);
        all.extend(["--output-dir", run, "--report-to", to, "--save-steps", "100000", "--max-steps", "100000"]);
        all
    };
    let mut child = place.start_piped(&arguments("run", "all"));
    while place.steps("run") < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(2));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let stopped = CommandOutcome::new(child.wait_with_output().unwrap());
    assert_eq!(stopped.code, Some(3), "{}", stopped.stderr);
    assert_eq!(exported(&place, "run"), ["tensorboard", "wandb", "mlruns", "run-trackio.csv", "run-trackio.py"]);
    for name in ["wandb", "mlflow", "trackio"] {
        let sooner = format!("{name} gets the run when it ends; to export it sooner: rlhost export-run run --format {name}");
        assert!(stopped.stderr.contains(&sooner), "{}", stopped.stderr);
        place.run(&["export-run", "run", "--format", name, "--output", name]).succeeded();
    }
    for command in ["wandb sync run/wandb/offline-run-", "mlflow ui --backend-store-uri run/mlruns", "python run/run-trackio.py"]
    {
        assert!(stopped.stderr.contains(command), "{command}: {}", stopped.stderr);
    }

    let trap =
        ["--plugin", HOSTILE, "--set", "plugin.hostile.config.misdeed=\"trap\"", "--set", "plugin.hostile.config.from_step=2"];
    let failed = place.run(&[&arguments("failed", "trackio"), &trap[..]].concat());
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert_eq!(exported(&place, "failed"), ["failed-trackio.csv", "failed-trackio.py"]);
    let table = fs::read_to_string(place.path("failed/failed-trackio.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + place.steps("failed"), "{table}");
}

#[test]
fn trackers_show_a_run_under_its_name() {
    let place = TestFolder::new();
    let named = ["--report-to", "wandb", "--report-to", "trackio", "--report-to", "mlflow", "--run-name", "lengths, try 3"];
    place.train("run", &[&["--max-steps", "1"], &named[..]].concat()).succeeded();
    let mut files = Vec::new();
    let mut folders = vec![place.path("run/wandb"), place.path("run/mlruns"), place.path("run/run-trackio.py")];
    while let Some(path) = folders.pop() {
        match fs::read_dir(&path) {
            Ok(entries) => folders.extend(entries.map(|entry| entry.unwrap().path())),
            Err(_) => files.push(path),
        }
    }
    let shows = |part: &str| {
        files.iter().filter(|file| file.display().to_string().contains(part)).any(|file| {
            let bytes = fs::read(file).unwrap();
            bytes.windows(14).any(|window| window == b"lengths, try 3")
        })
    };
    assert!(shows("wandb") && shows("mlruns") && shows("run-trackio.py"), "{files:?}");
}

#[test]
fn where_a_run_is_reported_is_none_or_a_list_and_other_trackers_are_named() {
    let place = TestFolder::new();
    place.write("list.yaml", "report_to: [wandb, tensorboard]\n");
    for (run, given, files, said) in [
        ("none", &["--report_to", "none"][..], &[][..], ""),
        ("default", &[], &["tensorboard"], ""),
        ("list", &["--config", "list.yaml"], &["tensorboard", "wandb"], ""),
        ("other", &["--report_to", "azure_ml"], &["tensorboard"], "azure_ml is not supported"),
        ("both", &["--report_to", "comet_ml", "mlflow"], &["mlruns"], "comet_ml is not supported"),
    ] {
        let outcome = place.train(run, &[&["--max-steps", "1"], given].concat());
        assert!(outcome.succeeded().stderr.contains(said), "{}", outcome.stderr);
        assert_eq!(exported(&place, run), files, "{run}");
    }
}

#[test]
fn nothing_of_a_hostile_folder_leads_outside_of_the_export() {
    let place = TestFolder::new();
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
    let place = TestFolder::new();
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
