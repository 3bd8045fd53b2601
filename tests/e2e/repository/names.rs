//! Names that somebody can search for: one type for each, nouns, and constructors that are called as Rust's are.

use super::house::{root, rust_files};
use std::collections::BTreeMap;
use std::path::Path;

/// Names that each module may use for its own: what fails, what a function gives, a command's flags.
const SHARED: [&str; 3] = ["Error", "Result", "Args"];

/// The sources with their text, without those whose names the contract gives.
fn sources() -> Vec<(String, String)> {
    let bindings = ["plugin-sdk/src/bindings/generated.rs", "host/plugin/src/adapters/bindings.rs"];
    let files = ["host", "plugin-sdk", "plugins", "tests", "examples"].map(|folder| rust_files(&root().join(folder)));
    let own = files.into_iter().flatten().filter(|file| !bindings.iter().any(|binding| file.ends_with(binding)));
    own.map(|file| (file.display().to_string(), std::fs::read_to_string(file).unwrap())).collect()
}

/// The keyword and the name of the type that a line defines: a struct, an enum, a trait, a union, or an alias that is no associated type.
fn defined(line: &str) -> Option<(&str, &str)> {
    let code = line.trim_start();
    let code = code.strip_prefix("pub").map_or(code, |rest| rest.trim_start_matches("(crate)").trim_start_matches("(super)"));
    let code = code.trim_start().trim_start_matches("unsafe ");
    let (keyword, rest) = code.split_once(' ')?;
    let alias = keyword == "type" && !line.starts_with(' ');
    if !alias && !["struct", "enum", "trait", "union"].contains(&keyword) {
        return None;
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    rest.starts_with(|c: char| c.is_ascii_uppercase()).then(|| (keyword, &rest[..end]))
}

/// The places of each type, by name. Traits may be left out: theirs may be adjectives, as in `Sized`.
fn types(traits: bool) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if let Some((keyword, name)) = defined(line).filter(|(keyword, _)| traits || *keyword != "trait") {
                found.entry(name.to_owned()).or_default().push(format!("{keyword} in {file}:{}", number + 1));
            }
        }
    }
    found
}

#[test]
fn no_two_types_share_a_name() {
    let types = types(true);
    assert!(types.len() > 1000 && types.contains_key("RunConfig"), "{} types", types.len());
    let shared: Vec<_> = types.iter().filter(|(name, places)| places.len() > 1 && !SHARED.contains(&name.as_str())).collect();
    assert!(shared.is_empty(), "{shared:#?}");
    assert_eq!(defined("pub(crate) struct Batch<T> {"), Some(("struct", "Batch")));
    assert_eq!(defined("type Reply = u8;"), Some(("type", "Reply")));
    assert_eq!([defined("    type Target = u8;"), defined("let type_ = structure;"), defined("// struct Batch")], [None; 3]);
}

/// What has been done to a thing does not say what it is.
#[test]
fn types_are_nouns() {
    let verbs = [
        "Asked", "Chosen", "Drawn", "Found", "Given", "Held", "Kept", "Known", "Read", "Said", "Seen", "Taken", "Told", "Written",
    ];
    let others = ["Beside", "Elsewhere", "Few", "Here", "How", "Next", "Whole", "With"];
    let is_no_noun = |name: &str| {
        let one_word = !name[1..].contains(|c: char| c.is_ascii_uppercase());
        one_word && (name.ends_with("ed") && !name.ends_with("eed") || verbs.contains(&name) || others.contains(&name))
    };
    let found: Vec<_> = types(false).into_iter().filter(|(name, _)| is_no_noun(name)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn constructors_have_the_names_of_rusts() {
    let is_of = |line: &str| {
        let code = line.trim_start().trim_start_matches("pub").trim_start_matches("(crate)").trim_start_matches("(super)");
        let code = code.trim_start().trim_start_matches("const ");
        code.strip_prefix("fn of").is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    let mut found = Vec::new();
    for (file, text) in sources() {
        let functions = text.lines().enumerate().filter(|(_, line)| is_of(line));
        found.extend(functions.map(|(number, _)| format!("{file}:{}", number + 1)));
    }
    assert!(found.is_empty(), "`new`, `from_...`, `parse` or `load` instead of `of`: {found:#?}");
    assert!(is_of("    pub(super) fn of<T>(x: T) -> Self {") && !is_of("fn offset() {"));
}

/// A check that nothing runs is out of date without anybody knowing.
#[test]
fn every_check_is_run_by_the_runner() {
    let folder = root().join("tests/parity");
    let tables = std::fs::read_to_string(folder.join("checks.toml")).unwrap();
    // Given a run's folder, by other checks and by a test.
    let tools = ["check_grpo_step", "check_tensorboard"];
    let scripts = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let names = scripts.filter(|path| path.extension().is_some_and(|e| e == "py")).filter_map(|path| stem(&path));
    let checks: Vec<_> = names.filter(|name| name.starts_with("check_") && !tools.contains(&name.as_str())).collect();
    let missing: Vec<_> = checks.iter().filter(|name| !tables.contains(&format!("[{name}]\n"))).collect();
    assert!(checks.len() > 20 && missing.is_empty(), "{missing:?} of {}", checks.len());
}

fn stem(path: &Path) -> Option<String> {
    Some(path.file_stem()?.to_string_lossy().into_owned())
}
