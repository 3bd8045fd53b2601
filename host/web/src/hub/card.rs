//! Data files declared by a dataset's card: the `configs` in the front matter of its `README.md`, as `datasets` reads them.

use super::patterns::{LONGEST, is_pattern, matching};
use crate::config::{front_matter, printable, yaml_document};
use serde_json::Value;
use std::collections::BTreeSet;

/// File name of the card.
pub(super) const CARD: &str = "README.md";

/// File of a local folder whose keys replace those of the card's front matter.
pub(super) const SETTINGS: &str = ".huggingface.yaml";

/// Maximum number of bytes that are read of a card; its front matter is at the beginning.
pub(super) const READ: u64 = 4 << 20;

/// Maximum number of configs, of a config's splits, and of a split's patterns.
const MOST: usize = 4096;

/// Maximum length of a printed value in bytes.
const SHOWN: usize = 128;

/// Configs (subsets) that a card declares.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DatasetCard {
    configs: Vec<CardConfig>,
}

/// Config (subset) of a dataset.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CardConfig {
    pub(super) name: String,
    is_default: bool,
    /// Folder of the config's files, with a trailing slash; empty for the dataset's own.
    pub(super) folder: String,
    /// File patterns by split; `None` if the files' names determine their splits.
    splits: Option<Vec<(String, Vec<String>)>>,
    /// Keys that set how files are read, which have no effect here.
    unused: Vec<String>,
}

/// Keys that are read, or that don't affect how files are read.
const KEYS: [&str; 6] = ["config_name", "data_dir", "data_files", "default", "description", "version"];

impl DatasetCard {
    /// Parses the text of a card.
    ///
    /// # Errors
    /// Says what is wrong with the configs.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_with(text, "")
    }

    /// Parses the text of a card, and that of a YAML file whose keys replace the card's.
    ///
    /// # Errors
    /// Says what is wrong with the configs.
    pub(super) fn parse_with(text: &str, settings: &str) -> Result<Self, String> {
        let at = |file: &'static str| move |(line, said)| format!("{file} line {line}: {said}");
        let front = front_matter(text).map_err(at(CARD))?;
        let settings = if settings.trim().is_empty() { None } else { Some(yaml_document(settings).map_err(at(SETTINGS))?) };
        let replaced = settings.as_ref().and_then(|settings| settings.get("configs"));
        let wrong = |detail: String| format!("{} {detail}", if replaced.is_some() { SETTINGS } else { CARD });
        let configs = match replaced.or_else(|| front.as_ref().and_then(|front| front.get("configs"))) {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Array(configs)) if configs.len() <= MOST => configs,
            Some(Value::Array(configs)) => return Err(wrong(format!("has {} configs; the maximum is {MOST}", configs.len()))),
            Some(other) => return Err(wrong(format!("has \"configs\" that are not a list: {}", shown(other)))),
        };
        let configs: Vec<CardConfig> =
            configs.iter().map(|config| CardConfig::parse(config).map_err(wrong)).collect::<Result<_, String>>()?;
        Ok(Self { configs })
    }

    /// Returns the names of the configs.
    pub(super) fn names(&self) -> Vec<&str> {
        self.configs.iter().map(|config| config.name.as_str()).collect()
    }

    /// Returns the config of this name, or the default one without a name; `None` if the card has no configs.
    ///
    /// # Errors
    /// If there is no such config, or no default.
    pub(super) fn config(&self, name: Option<&str>) -> Result<Option<&CardConfig>, String> {
        let list = || printable(&self.names().join(", "), 512);
        if self.configs.is_empty() {
            return Ok(None);
        }
        if let Some(name) = name {
            let found = self.configs.iter().find(|config| config.name == name);
            return found.map(Some).ok_or_else(|| format!("has no subset {name:?}; its {CARD} lists {}", list()));
        }
        let is_default = |config: &&CardConfig| self.configs.len() == 1 || config.is_default || config.name == "default";
        let mut defaults = self.configs.iter().filter(is_default);
        match (defaults.next(), defaults.next()) {
            (Some(only), None) => Ok(Some(only)),
            (Some(first), Some(second)) => {
                Err(format!("has several default configs in its {CARD}: {:?} and {:?}; name one", first.name, second.name))
            }
            (None, _) => {
                let first = printable(self.names()[0], SHOWN);
                Err(format!("has several subsets, {}; name one, as in OWNER/NAME/{first} or FOLDER/{first}", list()))
            }
        }
    }
}

impl CardConfig {
    fn parse(config: &Value) -> Result<Self, String> {
        let name = config.get("config_name").and_then(scalar);
        let name = name.ok_or_else(|| format!("has a config without \"config_name\": {}", shown(config)))?;
        let of = |detail: String| format!("has the config {name:?} {detail}");
        let folder = match config.get("data_dir") {
            None | Some(Value::Null) => String::new(),
            Some(folder) => {
                let folder = scalar(folder).ok_or_else(|| of(format!("whose \"data_dir\" is {}", shown(folder))))?;
                let folder = inside(&folder).map_err(of)?.trim_end_matches('/').to_owned();
                if folder.is_empty() { folder } else { folder + "/" }
            }
        };
        let splits = match config.get("data_files") {
            None | Some(Value::Null) => None,
            Some(files) => Some(splits(files).map_err(of)?),
        };
        let is_default = config.get("default").is_some_and(is_yes);
        let keys = config.as_object().into_iter().flat_map(|config| config.keys());
        let unused = keys.filter(|key| !KEYS.contains(&key.as_str())).cloned().collect();
        Ok(Self { name, is_default, folder, splits, unused })
    }

    /// Lists the keys without effect, if there are any.
    pub(super) fn unused(&self) -> Option<String> {
        let named = || printable(&self.unused.join(", "), SHOWN);
        (!self.unused.is_empty()).then(|| format!("its card sets {} for the config {:?}, without effect", named(), self.name))
    }

    /// Returns which of these files belong to each split; `None` if the files' names determine their splits.
    pub(super) fn files(&self, files: &[&str]) -> Option<Vec<(String, Vec<String>)>> {
        let splits = self.splits.as_ref()?;
        let found = |(split, patterns): &(String, Vec<String>)| {
            // A file that several patterns match counts once.
            let mut seen = BTreeSet::new();
            let all = patterns.iter().flat_map(|pattern| matching(&format!("{}{pattern}", self.folder), files));
            (split.clone(), all.filter(|file| seen.insert(*file)).map(str::to_owned).collect())
        };
        Some(splits.iter().map(found).collect())
    }

    /// Rejects a split if the config names a file of it that is not among these.
    pub(super) fn check(&self, split: &str, files: &[&str]) -> Result<(), String> {
        let own = self.splits.iter().flatten().filter(|(name, _)| name == split).flat_map(|(_, patterns)| patterns);
        for pattern in own.filter(|pattern| !is_pattern(pattern)) {
            let whole = format!("{}{pattern}", self.folder);
            if matching(&whole, files).is_empty() {
                let config = &self.name;
                return Err(format!(
                    "has no file {whole:?}, which its {CARD} names for the split {split:?} of the config {config:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Parses `data_files`: one pattern or a list of them for the training split, a list of splits with their paths, or an object.
fn splits(files: &Value) -> Result<Vec<(String, Vec<String>)>, String> {
    let wrong = |what: &Value| {
        let form = "a path, a list of paths, or a list of {split: NAME, path: PATH}";
        format!("whose \"data_files\" are not {form}: {}", shown(what))
    };
    let mut splits: Vec<(String, Vec<String>)> = Vec::new();
    match files {
        Value::String(path) => splits.push(("train".into(), vec![whole_folders(inside(path)?)?.to_owned()])),
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
            splits.push(("train".into(), paths(files).ok_or_else(|| wrong(files))??));
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let split = item.get("split").and_then(scalar).ok_or_else(|| wrong(item))?;
                splits.push((split, item.get("path").and_then(paths).ok_or_else(|| wrong(item))??));
            }
        }
        Value::Object(items) if !items.is_empty() => {
            for (split, path) in items {
                splits.push((split.clone(), paths(path).ok_or_else(|| wrong(files))??));
            }
        }
        _ => return Err(wrong(files)),
    }
    if splits.len() > MOST {
        return Err(format!("with {} splits; the maximum is {MOST}", splits.len()));
    }
    for (i, (split, _)) in splits.iter().enumerate() {
        if !is_split(split) {
            return Err(format!("with the split {split:?}; a split's name has letters, digits, _ and dots between them"));
        }
        if splits[..i].iter().any(|(other, _)| other == split) {
            return Err(format!("with the split {split:?} twice"));
        }
    }
    Ok(splits)
}

/// Parses one path or a list of paths; `None` for other values.
fn paths(value: &Value) -> Option<Result<Vec<String>, String>> {
    let all: Vec<&str> = match value {
        Value::String(path) => vec![path],
        Value::Array(items) if !items.is_empty() && items.len() <= MOST => {
            items.iter().map(Value::as_str).collect::<Option<_>>()?
        }
        _ => return None,
    };
    Some(all.into_iter().map(|path| inside(path).and_then(whole_folders).map(str::to_owned)).collect())
}

/// Rejects a pattern in which two stars are only part of a path component, as `datasets` does.
fn whole_folders(pattern: &str) -> Result<&str, String> {
    match pattern.split('/').any(|part| part.contains("**") && part != "**") {
        true => Err(format!("with the path {}, in which ** is only a part of a name", printable(&format!("{pattern:?}"), SHOWN))),
        false => Ok(pattern),
    }
}

/// Returns whether a value is true, including the spellings of older YAML versions.
fn is_yes(value: &Value) -> bool {
    let is_word = |text: &str| ["yes", "on", "true"].iter().any(|word| text.eq_ignore_ascii_case(word));
    value.as_bool().unwrap_or_else(|| value.as_str().is_some_and(is_word))
}

/// Returns a path within the dataset, without leading dots.
fn inside(path: &str) -> Result<&str, String> {
    let own = path.trim_start_matches("./");
    let leaves =
        own.starts_with(['/', '~']) || own.contains('\\') || own.contains("://") || own.split('/').any(|part| part == "..");
    match leaves || own.is_empty() || own.len() > LONGEST {
        true => Err(format!("with the path {}, which is not within the dataset", printable(&format!("{path:?}"), SHOWN))),
        false => Ok(own),
    }
}

/// Returns whether a text can name a split.
pub(super) fn is_split(name: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    name.len() <= 128 && name.split('.').all(part)
}

/// Returns a string, number or boolean as text.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

fn shown(value: &Value) -> String {
    printable(&value.to_string(), SHOWN)
}

#[cfg(test)]
mod tests;
