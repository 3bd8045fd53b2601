//! Suggests what was meant by a location that looks like a script's but is invalid.

use crate::config::{PluginEntry, ScriptPath};
use std::path::Path;

/// Extensions of files in these languages that can't be scripts.
const OTHERS: [&str; 5] = ["pyw", "cjs", "jsx", "tsx", "cts"];

/// Explains what is wrong with a location that resembles that of an existing script.
pub fn location_mistake(location: &str) -> Option<String> {
    let extension = location.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default();
    if OTHERS.contains(&extension.as_str()) && Path::new(location).is_file() {
        return Some("a script's file ends in .py, .js, .mjs, .ts or .mts".to_owned());
    }
    let is_there = |script: ScriptPath<'_>| Path::new(script.file).exists();
    if Path::new(location).exists() || ScriptPath::parse(location).is_some_and(is_there) {
        return None;
    }
    ScriptPath::EXTENSIONS.iter().find_map(|extension| near(location, extension))
}

/// Explains what is wrong with a location, if it nearly names an existing script with this extension.
fn near(location: &str, extension: &str) -> Option<String> {
    let is_file = |file: &str| Path::new(file).is_file();
    if let Some((stem, rest)) = location.split_once(&format!(".{extension}")) {
        let file = format!("{stem}.{extension}");
        let is_good = rest.strip_prefix(':').is_some_and(ScriptPath::is_function);
        if is_file(&file) && rest.starts_with([',', ':']) && !is_good {
            return Some(match rest.split_once(",weight=") {
                Some((_, weight)) => format!("the weight {weight:?} is no number"),
                None => format!(
                    "after {file} may come one function, as in {file}:NAME, and ,weight=NUMBER; {}",
                    own_key(&stem[stem.rfind(['/', '\\']).map_or(0, |at| at + 1)..], rest)
                ),
            });
        }
    }
    // `rewards`, `rewards:name` and `rewards.name`, as Python names a module.
    let name = location.rfind(['/', '\\']).map_or(0, |at| at + 1);
    let end = location[name..].find([':', '.']).map(|at| name + at);
    let (stem, function) = end.map_or((location, ""), |at| location.split_at(at));
    let file = format!("{stem}.{extension}");
    let function = function.get(1..).map(|function| format!(":{function}")).unwrap_or_default();
    is_file(&file).then(|| format!("there is no such file; did you mean {file}{function}?"))
}

/// Returns the flag for a key that was written after the location of a script of this name, as in `:function,on_error=previous`; if there is
/// none, that for settings.
fn own_key(name: &str, rest: &str) -> String {
    let (function, assignment) = rest.split_once(',').unwrap_or((rest, ""));
    let name = function.strip_prefix(':').unwrap_or(name);
    match assignment.split_once('=').filter(|(key, _)| PluginEntry::OWN_KEYS.contains(key)) {
        Some((key, value)) => format!("{key} is --set plugin.{name}.{key}={value}"),
        None => "a setting is --set plugin.NAME.config.KEY=VALUE".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_script_is_explained_if_one_is_there() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["words.py", "other.tsx", "a.b.js"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let said = |name: &str| location_mistake(&folder.path().join(name).display().to_string()).unwrap_or_default();
        for good in ["words.py", "words.py:f", "a.b.js", "missing", "missing.py:a,b", "grpo"] {
            assert_eq!(said(good), "", "{good}");
        }
        for (given, needle) in [
            ("other.tsx", "ends in .py"),
            ("words", "words.py?"),
            ("words:f", "words.py:f?"),
            ("words.py:a,b", "one function"),
            ("words.py,most=5", "a setting is --set plugin.NAME.config.KEY=VALUE"),
            ("words.py,on_error=previous", "and ,weight=NUMBER; on_error is --set plugin.words.on_error=previous"),
            ("words.py:a,on_error=previous", "on_error is --set plugin.a.on_error=previous"),
            ("words.py::a", "one function"),
            ("words.py:a()", "one function"),
            ("words.py:a,weight=b", "the weight \"b\" is no number"),
        ] {
            assert!(said(given).contains(needle), "{given}: {}", said(given));
        }
    }
}
