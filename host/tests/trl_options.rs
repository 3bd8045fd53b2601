//! Every option of TRL is a key, another name of one, a setting of an algorithm, or explained; the guide has the table.

use rlhost::config::{self, Limits, Treatment};
use rlhost::plugin::{Engine, Source, settings_of};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The names of TRL's options, read from the fields of its configurations by `tests/fixtures/make_trl_options.py`.
const OPTIONS: &str = include_str!("../../tests/fixtures/trl_options.json");

/// TRL's configurations that rlhost has no algorithm for.
const WITHOUT_ALGORITHM: [&str; 3] = ["script", "model", "launch"];

/// Flags that are no keys.
const FLAGS: [&str; 1] = ["resume_from_checkpoint"];

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/trl.md")
}

/// Options, each with the configurations that have it.
fn options() -> BTreeMap<String, BTreeSet<String>> {
    let data: Value = serde_json::from_str(OPTIONS).unwrap();
    let mut options: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (configuration, names) in data["options"].as_object().unwrap() {
        for name in names.as_array().unwrap() {
            options.entry(name.as_str().unwrap().to_owned()).or_default().insert(configuration.clone());
        }
    }
    options
}

/// The settings of each algorithm.
fn settings(algorithms: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let engine = Engine::new().unwrap();
    let of = |name: &String| {
        let plugin = if name == "reward" { "reward_model" } else { name };
        let settings = settings_of(&engine, &Source::open(plugin).unwrap(), &Limits::default()).unwrap();
        let names = settings.into_iter().flat_map(|setting| std::iter::once(setting.name).chain(setting.aliases));
        (name.clone(), names.collect())
    };
    algorithms.iter().map(of).collect()
}

/// What becomes of an option here; none if nothing is known of it.
fn treatment(name: &str, of: &BTreeSet<String>, settings: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    if config::key(name).is_some() || FLAGS.contains(&name) {
        return Some("yes".to_owned());
    }
    if let Some(key) = config::keys().iter().find(|key| key.aliases.iter().any(|alias| alias == name)) {
        return Some(format!("yes, as `{}`", key.name));
    }
    let with: Vec<&str> =
        settings.iter().filter(|(a, own)| of.contains(*a) && own.contains(name)).map(|(a, _)| a.as_str()).collect();
    if !with.is_empty() {
        return Some(format!("yes, a setting of {}", with.join(", ")));
    }
    let option = config::foreign_option(name)?;
    Some(match option.treatment {
        Treatment::NotNeeded => format!("accepted, not needed: {}", option.why),
        Treatment::AppendedTo(..)
        | Treatment::Sets(_)
        | Treatment::Members(_)
        | Treatment::Switches(..)
        | Treatment::RewardWeights
        | Treatment::RewardFuncs
        | Treatment::RewardModel => {
            format!("yes: {}", option.why)
        }
        Treatment::Only([]) => format!("no: {}", option.why),
        Treatment::Only(values) => format!("only {}: {}", values.join(", "), option.why),
    })
}

/// The table of the guide.
fn table() -> String {
    let options = options();
    let configurations: BTreeSet<String> = options.values().flatten().cloned().collect();
    let algorithms = configurations.iter().filter(|name| !WITHOUT_ALGORITHM.contains(&name.as_str())).cloned().collect();
    let settings = settings(&algorithms);
    let mut table = "| option of TRL | of | here |\n|---|---|---|\n".to_owned();
    let mut unknown = Vec::new();
    for (name, of) in &options {
        let Some(here) = treatment(name, of, &settings) else {
            unknown.push(name);
            continue;
        };
        let of = if of.is_superset(&algorithms) { "all".to_owned() } else { of.iter().cloned().collect::<Vec<_>>().join(", ") };
        assert!(!of.is_empty() && !here.trim_end().ends_with(':'), "the row of {name} has an empty cell");
        writeln!(table, "| `{name}` | {of} | {here} |").unwrap();
    }
    assert!(unknown.is_empty(), "nothing is known of {unknown:?}; add them to host/src/config/foreign.rs");
    table
}

#[test]
fn the_guide_has_every_option_of_trl() {
    let (table, guide) = (table(), guide());
    let text = std::fs::read_to_string(&guide).unwrap();
    let (before, _) = text.split_once("| option of TRL |").expect("a table in host/docs/trl.md");
    let right = format!("{before}{table}");
    if std::env::var_os("RLHOST_WRITE_DOCS").is_some() {
        std::fs::write(&guide, &right).unwrap();
    }
    assert!(text == right, "the table of host/docs/trl.md is out of date; write it with RLHOST_WRITE_DOCS=1 and this test");
}
