//! Checks that every option of TRL is a key, an alias of one, a setting of an algorithm, or explained; the guide has the tables.

use rlhost::config::{self, OptionTreatment, PluginLimits};
use rlhost::plugin::{PluginEngine, PluginSource, settings_of};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The names of TRL's options, read from the fields of its configurations by `tests/fixtures/make_trl_options.py`.
const OPTIONS: &str = include_str!("../../tests/fixtures/trl_options.json");

/// TRL's configurations that rlhost has no algorithm for.
const WITHOUT_ALGORITHM: [&str; 3] = ["script", "model", "launch"];

/// Keys with TRL's names that mean something slightly different.
const NOTES: [(&str, &str); 4] = [
    ("lora_r", "alone it asks for an adapter, where TRL needs `use_peft` too"),
    ("optim", "AdamW by each of its names, adamw_8bit, sgd, rmsprop, lion_32bit, adafactor, muon; others are refused"),
    ("save_strategy", "no, steps or epoch; instead of best, save_total_limit keeps the best checkpoint"),
    ("shuffle_dataset", "for sft, false keeps the order of the file, where TRL, whose default it is, still draws rows at random"),
];

/// Flags that are not keys.
const FLAGS: [&str; 1] = ["resume_from_checkpoint"];

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/trl.md")
}

fn names(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned())
}

/// Returns the options, each with the configurations that have it.
fn options(data: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut options: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (configuration, list) in data["options"].as_object().unwrap() {
        for name in names(list) {
            options.entry(name).or_default().insert(configuration.clone());
        }
    }
    options
}

/// Returns the settings of each algorithm.
fn settings(algorithms: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let engine = PluginEngine::new().unwrap();
    let of = |name: &String| {
        let plugin = if name == "reward" { "reward_model" } else { name };
        let settings = settings_of(&engine, &PluginSource::open(plugin).unwrap(), &PluginLimits::default()).unwrap();
        let names = settings.into_iter().flat_map(|setting| std::iter::once(setting.name).chain(setting.aliases));
        (name.clone(), names.collect())
    };
    algorithms.iter().map(of).collect()
}

/// Describes the treatment of an option in rlhost; `None` if it is unknown.
fn treatment(name: &str, of: &BTreeSet<String>, settings: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    if config::key(name).is_some() || FLAGS.contains(&name) {
        let note = NOTES.iter().find(|(key, _)| *key == name).map(|(_, note)| format!(": {note}"));
        return Some(format!("yes{}", note.unwrap_or_default()));
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
        OptionTreatment::NotNeeded => format!("accepted, not needed: {}", option.why),
        OptionTreatment::AppendedTo(..)
        | OptionTreatment::Sets(_)
        | OptionTreatment::Members(_)
        | OptionTreatment::Selects(..)
        | OptionTreatment::Server
        | OptionTreatment::Shards
        | OptionTreatment::RewardWeights
        | OptionTreatment::RewardFuncs
        | OptionTreatment::RewardModel => {
            format!("yes: {}", option.why)
        }
        OptionTreatment::Only([]) => format!("no: {}", option.why),
        OptionTreatment::Only(values) => format!("only {}: {}", values.join(", "), option.why),
    })
}

/// Writes table rows of an option, the configurations that have it, if known, and its treatment.
fn rows(table: &mut String, rows: impl IntoIterator<Item = (String, Option<String>, Option<String>)>) {
    let mut unknown = Vec::new();
    for (name, of, here) in rows {
        let Some(here) = here else {
            unknown.push(name);
            continue;
        };
        let of = of.map(|of| format!(" {of} |"));
        let empty = of.as_deref() == Some("  |") || here.trim().is_empty() || here.trim_end().ends_with(':');
        assert!(!empty, "the row of {name} has an empty cell");
        writeln!(table, "| `{name}` |{} {here} |", of.unwrap_or_default()).unwrap();
    }
    assert!(unknown.is_empty(), "nothing is known of {unknown:?}; add them to host/config/src/foreign_options.rs");
}

/// Returns the tables of the guide.
fn tables() -> String {
    let data: Value = serde_json::from_str(OPTIONS).unwrap();
    let options = options(&data);
    let configurations: BTreeSet<String> = options.values().flatten().cloned().collect();
    let algorithms: BTreeSet<String> =
        configurations.iter().filter(|name| !WITHOUT_ALGORITHM.contains(&name.as_str())).cloned().collect();
    let own = settings(&algorithms);
    let mut tables = "| option of TRL | of | here |\n|---|---|---|\n".to_owned();
    let row = |(name, of): (&String, &BTreeSet<String>)| {
        let all = of.is_superset(&algorithms);
        let shown = if all { "all".to_owned() } else { of.iter().cloned().collect::<Vec<_>>().join(", ") };
        (name.clone(), Some(shown), treatment(name, of, &own))
    };
    rows(&mut tables, options.iter().map(row));

    // PPO's options are those of an older version. Options common to all are listed above.
    let ppo = BTreeSet::from(["ppo".to_owned()]);
    let own = settings(&ppo);
    let above = |name: &String| options.get(name).is_some_and(|of| of.is_superset(&algorithms));
    let version = data["ppo"]["version"].as_str().unwrap();
    writeln!(tables, "\n## Options of PPO\n\nThe last version of TRL with PPO is {version}. It also has the options that are of \"all\" above.\n")
        .unwrap();
    tables += "| option of TRL's PPO | here |\n|---|---|\n";
    let fields: BTreeSet<String> = names(&data["ppo"]["options"]).filter(|name| !above(name)).collect();
    assert!(fields.contains("cliprange") && !fields.contains("max_steps"), "{fields:?}");
    rows(&mut tables, fields.into_iter().map(|name| (name.clone(), None, treatment(&name, &ppo, &own))));
    tables
}

#[test]
fn the_guide_has_every_option_of_trl() {
    let (tables, guide) = (tables(), guide());
    let text = std::fs::read_to_string(&guide).unwrap();
    let (before, _) = text.split_once("| option of TRL |").expect("a table in host/docs/trl.md");
    let right = format!("{before}{tables}");
    if std::env::var_os("RLHOST_WRITE_GENERATED").is_some_and(|v| v == "1") {
        std::fs::write(&guide, &right).unwrap();
    }
    assert!(
        text == right,
        "the tables of host/docs/trl.md are out of date; write them with RLHOST_WRITE_GENERATED=1 and this test"
    );
}
