//! Files of the host form no import cycles, except those that are named here.

use super::house::host_sources;
use super::imports::Sources;
use std::collections::{BTreeMap, BTreeSet};

/// Cycles that may be, with the reason.
const ALLOWED: [(&[&str], &str); 1] = [(
    &["train::dataset::prompts", "train::dataset::splitting"],
    "texts that are cut into sequences are prompts, and so are the sequences",
)];

#[test]
fn no_two_files_import_each_other_but_those_that_are_named() {
    let (mut cycles, mut files) = (BTreeSet::new(), BTreeMap::new());
    for source in host_sources() {
        // A crate's modules under the name of its folder.
        let folder = source.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let named = |module: &String| if folder == "host" { module.clone() } else { format!("{folder}::{module}") };
        let sources = Sources::read(&source);
        cycles.extend(sources.import_cycles(Sources::imports).iter().map(|cycle| cycle.iter().map(named).collect::<Vec<_>>()));
        let imports = |module: &String| (named(module), sources.imports(module).iter().map(named).collect::<Vec<_>>());
        files.extend(sources.0.keys().map(imports));
    }
    for [file, used] in
        [["train::step", "train::trainer"], ["data::prompts", "data::prompt"], ["cli::train", "cli::training_commands"]]
    {
        assert!(files[file].iter().any(|file| file == used), "{file} imports from {:?}", files[file]);
    }
    let allowed = ALLOWED.map(|(files, _)| files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>());
    assert_eq!(cycles, allowed.into());
}
