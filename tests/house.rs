//! The house's own rules: rooms open only the doors they may, and no file grows too long.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Room and the rooms that it may use.
const DOORS: &[(&str, &[&str])] = &[
    ("config", &[]),
    ("hub", &["config"]),
    ("metrics", &["config"]),
    ("data", &["config", "ops"]),
    ("optim", &["config", "ops"]),
    ("model", &["config", "ops"]),
    ("rollout", &["config", "ops", "model"]),
    ("plugin", &["config"]),
    ("checkpoint", &["config"]),
    ("dist", &["config", "ops"]),
    ("report", &[]),
    ("train", &["config", "ops", "hub", "metrics", "data", "optim", "model", "rollout", "plugin", "checkpoint", "dist"]),
    ("fuzzing", &["config", "hub", "data", "model", "plugin", "checkpoint", "report", "train"]),
    ("cli", &["config", "data", "dist", "model", "plugin", "rollout", "train", "checkpoint", "metrics", "report"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut files = Vec::new();
    for path in entries {
        if path.is_dir() {
            if !path.ends_with("target") {
                files.extend(rust_files(&path));
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}

/// Rooms that a source names after `crate::`.
fn rooms_used(source: &str) -> BTreeSet<String> {
    let word = |s: &str| s.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut rooms = BTreeSet::new();
    for part in source.split("crate::").skip(1) {
        match part.strip_prefix('{') {
            // `use crate::{a, b::c}`
            Some(list) => rooms.extend(list.split('}').next().unwrap_or_default().split(',').map(word)),
            None => {
                rooms.insert(word(part));
            }
        }
    }
    rooms
}

#[test]
fn rooms_open_only_the_doors_they_may() {
    let source = root().join("host/src");
    // The operations are a crate of their own, which knows no room.
    let names: BTreeSet<&str> = DOORS.iter().map(|(name, _)| *name).chain(["ops"]).collect();
    for entry in fs::read_dir(&source).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
        let room = entry.file_name().unwrap().to_str().unwrap().to_owned();
        let (_, allowed) =
            DOORS.iter().find(|(name, _)| *name == room).unwrap_or_else(|| panic!("{room} is a room without rules"));
        for file in rust_files(&entry) {
            for used in rooms_used(&fs::read_to_string(&file).unwrap()) {
                let fine = used == room || !names.contains(used.as_str()) || allowed.contains(&used.as_str());
                assert!(fine, "{} opens the door to {used}", file.display());
            }
        }
    }
    assert_eq!(
        rooms_used("use crate::{checkpoint, model};\ncrate::ops::x"),
        ["checkpoint", "model", "ops"].map(String::from).into()
    );
}

#[test]
fn configuration_knows_neither_tensors_nor_plugins_and_only_operations_and_compiled_plugins_are_unsafe() {
    for file in rust_files(&root().join("host/src")) {
        let text = fs::read_to_string(&file).unwrap();
        let inside = |room: &str| file.components().any(|c| c.as_os_str() == room);
        if inside("config") {
            assert!(!text.contains("candle") && !text.contains("wasmtime"), "{}", file.display());
        }
        let compiled = file.ends_with("plugin/cache.rs");
        assert!(compiled || !text.contains("unsafe {"), "{} has unsafe code", file.display());
    }
}

#[test]
fn no_file_is_longer_than_about_six_hundred_lines() {
    for folder in ["host", "plugin-sdk", "plugins", "tests"] {
        for file in rust_files(&root().join(folder)).into_iter().filter(|file| !file.ends_with("bindings/generated.rs")) {
            let lines = fs::read_to_string(&file).unwrap().lines().count();
            assert!(lines <= 620, "{} has {lines} lines", file.display());
        }
    }
}
