//! Rules for the sources, beside those that the crates' dependencies enforce.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the host, in crates of one or of several.
const MODULES: &[&str] = &[
    "config",
    "net",
    "hub",
    "run",
    "metrics",
    "diagnosis",
    "data",
    "optim",
    "model",
    "rollout",
    "gguf",
    "plugin",
    "checkpoint",
    "dist",
    "report",
    "trackers",
    "train",
    "fuzzing",
    "cli",
];

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folders with sources of the host's crates, except the operations and the table of words, which know none of the modules.
pub(super) fn host_sources() -> Vec<PathBuf> {
    let host = root().join("host");
    let crates = fs::read_dir(&host).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.join("Cargo.toml").is_file());
    let crates = crates.filter(|path| !["ops", "words"].iter().any(|name| path.ends_with(name)));
    crates.chain([host]).map(|path| path.join("src")).filter(|source| source.is_dir()).collect()
}

/// The sources of those crates.
fn host_files() -> Vec<PathBuf> {
    host_sources().iter().flat_map(|source| rust_files(source)).collect()
}

/// Whether a file belongs to a module.
fn is_in(file: &Path, module: &str) -> bool {
    file.strip_prefix(root()).unwrap().components().any(|c| c.as_os_str() == module)
}

pub(super) fn rust_files(folder: &Path) -> Vec<PathBuf> {
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

#[test]
fn configuration_knows_neither_tensors_nor_plugins_and_only_operations_and_compiled_plugins_are_unsafe() {
    for file in host_files() {
        let text = fs::read_to_string(&file).unwrap();
        if is_in(&file, "config") {
            assert!(!text.contains("candle") && !text.contains("wasmtime"), "{}", file.display());
        }
        let compiled = is_in(&file, "plugin") && file.ends_with("cache.rs");
        assert!(compiled || !text.contains("unsafe {"), "{} has unsafe code", file.display());
    }
}

#[test]
fn only_the_guarded_agent_makes_requests() {
    let others = [
        "with_parts(",
        "new_agent(",
        "Agent::new",
        "ureq::get",
        "ureq::head",
        "ureq::post",
        "ureq::agent",
        "ureq::run",
        "config.into()",
        "build().into()",
        "TcpStream::connect",
    ];
    for file in host_files() {
        if is_in(&file, "net") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        // Tests connect to their own servers.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let made = others.iter().find(|made| code.contains(*made));
        assert!(made.is_none() || file.ends_with("tests.rs"), "{} has {made:?}: requests go through net", file.display());
    }
}

#[test]
fn no_file_is_longer_than_about_six_hundred_lines() {
    for folder in ["host", "plugin-sdk", "plugins", "tests"] {
        for file in rust_files(&root().join(folder)).into_iter().filter(|file| {
            // What a generator wrote.
            !["bindings/generated.rs", "bindings/newer.rs"].iter().any(|kept| file.ends_with(kept))
        }) {
            let lines = fs::read_to_string(&file).unwrap().lines().count();
            assert!(lines <= 620, "{} has {lines} lines", file.display());
        }
    }
}

/// Only the SDK's are run as tests: the other crates set `doctest = false`, which saves going over each of them once more.
#[test]
fn doc_comments_have_examples_in_the_sdk_only() {
    for file in ["host", "plugins", "tests"].iter().flat_map(|folder| rust_files(&root().join(folder))) {
        let text = fs::read_to_string(&file).unwrap();
        let docs =
            text.lines().filter_map(|line| line.trim_start().strip_prefix("///").or(line.trim_start().strip_prefix("//!")));
        let fences: Vec<&str> = docs.filter_map(|doc| doc.trim_start().strip_prefix("```")).collect();
        let is_example = |opening: &&str| ["", "rust", "no_run", "should_panic", "compile_fail"].contains(opening);
        let example = fences.iter().step_by(2).find(|opening| is_example(opening));
        assert!(example.is_none(), "{} has an example that no test runs; mark other text as ```text", file.display());
    }
}

/// In several parts, its small functions are not inlined, and generation takes twice as long.
#[test]
fn the_operations_are_compiled_in_one_part() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, section) = manifest.split_once("[profile.dev.package.rlhost-ops]").unwrap();
    let section = section.split("\n\n").next().unwrap();
    assert!(section.contains("opt-level = 3\n") && section.contains("codegen-units = 1\n"), "{section}");
}

#[test]
fn the_files_of_a_run_have_their_names_in_one_module() {
    let names = [
        "metrics.jsonl",
        "events.jsonl",
        "completions.jsonl",
        "config.toml",
        ".lock",
        "trainer_state.json",
        "snapshot.json",
        "manifest.json",
    ];
    let (mut found, mut seen) = (Vec::new(), 0);
    for file in host_files() {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let named = names.iter().filter(|name| code.contains(&format!("\"{name}\"")));
        if is_in(&file, "run") {
            seen += named.count();
        } else if !is_in(&file, "fuzzing") && !file.ends_with("tests.rs") {
            found.extend(named.map(|name| format!("{}: {name}", file.display())));
        }
    }
    assert!(found.is_empty() && seen == names.len(), "{seen}, {found:?}");
}

/// Structs that have more than a dozen fields, and why each may.
const LARGE: [(&str, &str); 14] = [
    ("RunConfig", "a field for each key"),
    ("PluginEntry", "a field for each key"),
    ("Architecture", "a field for each size and switch of config.json"),
    ("ExperienceManifest", "a file, field by field, with those of older versions"),
    ("Tokens", "a field for each column that a policy's loss may read"),
    ("SnapshotState", "a file, field by field"),
    ("BenchSummary", "a line of JSON, field by field"),
    ("CompletionLine", "a line of JSON, field by field"),
    ("Requirements", "a line of JSON, field by field"),
    ("LoggedRollout", "a line of JSON, field by field"),
    ("GrpoSettings", "a field for each setting"),
    ("SdpoSettings", "a field for each setting"),
    ("PpoSettings", "a field for each setting"),
    ("JudgeRewardSettings", "a field for each setting"),
];

/// Structs of a source, with the number of their fields.
fn structs(source: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let Some((before, after)) = line.split_once("struct ") else { continue };
        if !(before.trim().is_empty() || before.trim().starts_with("pub")) || !line.ends_with('{') {
            continue;
        }
        let name: String = after.chars().take_while(|c| c.is_alphanumeric()).collect();
        let inside = lines.by_ref().take_while(|line| line.trim_end() != format!("{}}}", " ".repeat(indent)));
        let is_field = |line: &str| {
            let text = line.trim_start();
            line.len() - text.len() == indent + 4 && !text.starts_with(['/', '#', '}', ')']) && text.contains(':')
        };
        found.push((name, inside.filter(|line| is_field(line)).count()));
    }
    found
}

#[test]
fn no_struct_has_more_than_about_a_dozen_fields() {
    let mut large = BTreeSet::new();
    for folder in ["host", "plugin-sdk", "plugins", "tests"] {
        for file in rust_files(&root().join(folder)).into_iter().filter(|file| !file.ends_with("bindings/generated.rs")) {
            let found = structs(&fs::read_to_string(&file).unwrap());
            large.extend(found.into_iter().filter(|(_, fields)| *fields > 12).map(|(name, _)| name));
        }
    }
    assert_eq!(large, LARGE.iter().map(|(name, _)| (*name).to_owned()).collect());
    let counted = structs("pub struct A<T> {\n    /// x: y\n    pub a: T,\n    b: Vec<(u8, u8)>,\n}\nstruct B(u8);\n");
    assert_eq!(counted, [("A".to_owned(), 2)]);
}

#[test]
fn modules_reexport_nothing_of_another_module() {
    for file in host_files() {
        let others = || MODULES.iter().copied().filter(|module| !is_in(&file, module));
        for line in fs::read_to_string(&file).unwrap().lines().filter_map(|line| line.trim().strip_prefix("pub use crate::")) {
            let named = line.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            assert!(!others().any(|module| module == named), "{}: {line}", file.display());
        }
    }
}

#[test]
fn the_trainer_is_known_by_those_alone_who_compose_it() {
    let composing = [
        "trainer.rs",
        "step.rs",
        "evaluation_loop.rs",
        "measure.rs",
        "rehearsal.rs",
        "requests.rs",
        "saving.rs",
        "snapshot.rs",
        "setup/mod.rs",
    ];
    for file in host_files().iter().filter(|file| is_in(file, "train")) {
        let text = fs::read_to_string(file).unwrap();
        let composes = composing.iter().any(|name| file.ends_with(name));
        assert!(composes || !text.contains("trainer::Trainer") && !text.contains("impl Trainer"), "{}", file.display());
    }
}

/// Somebody who looks up one item has read neither the one before it nor the top of the file.
#[test]
fn doc_comments_say_what_they_describe() {
    let openings = ["Does the same", "The same", "Same as", "See the module documentation"];
    let mut found = Vec::new();
    for folder in ["host", "plugin-sdk", "plugins", "tests"] {
        for file in rust_files(&root().join(folder)) {
            let text = fs::read_to_string(&file).unwrap();
            let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
            let firsts = std::iter::once(&"").chain(&lines).zip(&lines).filter(|(before, _)| !before.starts_with("///"));
            for said in firsts.filter_map(|(_, line)| line.strip_prefix("/// ")) {
                if openings.iter().any(|opening| said.starts_with(opening)) {
                    found.push(format!("{}: {said}", file.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_file_of_these_tests_is_a_module_of_them() {
    let folder = root().join("tests/e2e");
    let main = fs::read_to_string(folder.join("main.rs")).unwrap();
    let mut missing = Vec::new();
    for theme in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
        let begin = main.find(&format!("mod {} {{", name(&theme))).map(|at| &main[at..]).unwrap_or_default();
        let block = begin.split_once('}').map_or("", |(block, _)| block);
        let files = fs::read_dir(&theme).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        missing.extend(files.filter(|file| !block.contains(&format!("mod {};", name(file)))));
    }
    assert!(missing.is_empty(), "they are not compiled: {missing:?}");
}
