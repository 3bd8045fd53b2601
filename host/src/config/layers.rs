//! A configuration file, flags over it, `--set` over both.

use super::{Config, Error, Key, PluginEntry, Result, files, keys, nearest};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// What the command line says, in the order of its strength.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Flags that name a key: key and the text given.
    pub flags: Vec<(String, String)>,
    /// Flags that name no key of the host; the algorithm's plugin may know them.
    pub loose: Vec<LooseKey>,
    /// Paths of reward plugins.
    pub plugins: Vec<String>,
    /// `--set KEY=VALUE`.
    pub sets: Vec<String>,
}

/// A top-level key or flag that the host does not know: a setting of the algorithm, or a
/// mistake, which only the algorithm's plugin can tell.
#[derive(Clone, Debug, PartialEq)]
pub struct LooseKey {
    /// The key, with underscores.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Where it stands.
    pub place: String,
}

/// Most bytes of a configuration's file.
pub const LARGEST: u64 = 4 << 20;

/// A configuration's file as it was read.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl ConfigFile {
    /// Reads a file that lies somewhere.
    ///
    /// # Errors
    /// On anything but a regular file of text.
    pub fn read(path: &Path) -> Result<Self> {
        Self::of(path, files::read_text(path, LARGEST))
    }

    /// Reads a file that a person names, which may be a pipe.
    ///
    /// # Errors
    /// On a folder, a device, or what is no text.
    pub fn given(path: &Path) -> Result<Self> {
        Self::of(path, files::read_given_text(path, LARGEST))
    }

    fn of(path: &Path, text: io::Result<String>) -> Result<Self> {
        let path = path.to_owned();
        match text {
            Ok(text) => Ok(Self { path, text }),
            Err(source) => Err(Error::Io { path, source }),
        }
    }

    /// The folder that it names for its run.
    ///
    /// # Errors
    /// If it is not TOML.
    pub fn output_dir(&self) -> Result<Option<String>> {
        let place = || self.path.display().to_string();
        let table: Table = toml::from_str(&self.text)
            .map_err(|e: toml::de::Error| Error::Invalid { place: place(), detail: reworded(e.message()) })?;
        Ok(table.get("output_dir").and_then(Value::as_str).map(str::to_owned))
    }
}

/// What a run does that names neither a model nor a dataset.
const BUILT_IN_RUN: &str = include_str!("../../../examples/builtin-model/run.toml");

/// Reads files, the keys of each over those of the ones before, applies the command line, and
/// checks the whole.
///
/// # Errors
/// Names the file and line, or the flag, and what would be right.
pub fn read<'a>(files: impl IntoIterator<Item = &'a Path>, overrides: &Overrides) -> Result<(Config, Vec<LooseKey>)> {
    let files: Vec<ConfigFile> = files.into_iter().map(ConfigFile::read).collect::<Result<_>>()?;
    read_files(&files, overrides)
}

/// The same of files that have been read.
///
/// # Errors
/// As [`read`].
pub fn read_files<'a>(files: impl IntoIterator<Item = &'a ConfigFile>, overrides: &Overrides) -> Result<(Config, Vec<LooseKey>)> {
    let known = keys();
    let aliases = known.iter().filter_map(|key| key.alias.as_deref());
    let known_names: Vec<&str> = known.iter().map(|key| key.name.as_str()).chain(aliases).collect();
    let mut loose = Vec::new();
    let mut table = Table::new();
    for ConfigFile { path, text } in files {
        for (key, value) in parse_file(path, text, &known_names, &mut loose)? {
            let own = known.iter().find(|own| own.alias.as_ref() == Some(&key)).map_or(key, |own| own.name.clone());
            table.insert(own, value);
        }
    }
    let names = |key: &str| table.contains_key(key) || overrides.flags.iter().any(|(flag, _)| flag == key);
    let set = |key: &str| overrides.sets.iter().any(|set| set.trim_start().starts_with(&format!("{key}=")));
    if !["model", "dataset"].iter().any(|key| names(key) || set(key)) {
        let own = parse_file(Path::new("run.toml"), BUILT_IN_RUN, &known_names, &mut loose)?;
        for (key, value) in own {
            table.entry(key).or_insert(value);
        }
    }
    for Key { name: key, kind, .. } in known {
        let given: Vec<&String> = overrides.flags.iter().filter(|(k, _)| k == key).map(|(_, text)| text).collect();
        let Some(last) = given.last() else { continue };
        let value = match *kind {
            "string" => Value::String((*last).clone()),
            "array" => Value::Array(given.into_iter().map(|text| Value::String(text.clone())).collect()),
            _ => scalar(last),
        };
        table.insert(key.clone(), value);
    }
    check_finite(&table)?;
    let mut config = typed(table, &known_names, "command line")?;
    if !overrides.plugins.is_empty() {
        let kept = std::mem::take(&mut config.plugin);
        let entry = |path: &String| {
            let new = PluginEntry::new(path.clone());
            kept.iter().find(|e| e.name() == new.name()).map_or(new, |e| PluginEntry { path: path.clone(), ..e.clone() })
        };
        config.plugin = overrides.plugins.iter().map(entry).collect();
    }
    for set in &overrides.sets {
        config = apply_set(config, set, &known_names)?;
    }
    loose.extend(overrides.loose.iter().cloned());
    config.check().map_err(|(key, detail)| Error::Invalid { place: key.to_owned(), detail })?;
    Ok((config, loose))
}

/// Refuses what is infinite or not a number, in any key: no setting means anything then.
fn check_finite(table: &Table) -> Result<()> {
    match table.iter().find_map(|(key, value)| Some((key, not_finite(value)?))) {
        Some((key, (inner, number))) => {
            let place = if inner.is_empty() { key.clone() } else { format!("{key}.{inner}") };
            Err(Error::Invalid { place, detail: format!("is {number}; it must be a finite number") })
        }
        None => Ok(()),
    }
}

/// The first number in a value that is not finite, and where it stands.
fn not_finite(value: &Value) -> Option<(String, f64)> {
    let below = |key: String, value: &Value| {
        let (inner, number) = not_finite(value)?;
        Some((if inner.is_empty() { key } else { format!("{key}.{inner}") }, number))
    };
    match value {
        Value::Float(number) if !number.is_finite() => Some((String::new(), *number)),
        Value::Array(all) => all.iter().enumerate().find_map(|(i, value)| {
            let name = value.get("path").and_then(Value::as_str).map(|path| PluginEntry::new(path.to_owned()).name().to_owned());
            below(name.unwrap_or_else(|| i.to_string()), value)
        }),
        Value::Table(table) => table.iter().find_map(|(key, value)| below(key.clone(), value)),
        _ => None,
    }
}

fn parse_file(path: &Path, text: &str, known: &[&str], loose: &mut Vec<LooseKey>) -> Result<Table> {
    let place = |span: Option<Range<usize>>| {
        let line = span.map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
        format!("{}:{line}", path.display())
    };
    let invalid = |e: toml::de::Error| Error::Invalid { place: place(e.span()), detail: reworded(e.message()) };
    let mut table: Table = toml::from_str(text).map_err(invalid)?;
    let unknown: Vec<String> =
        table.iter().filter(|(k, v)| !known.contains(&k.as_str()) && !v.is_table()).map(|(k, _)| k.clone()).collect();
    for key in unknown {
        let line = text.lines().position(|l| l.trim_start().strip_prefix(&key).is_some_and(|r| r.trim_start().starts_with('=')));
        let place = format!("{}:{}", path.display(), line.map_or(1, |l| l + 1));
        loose.extend(table.remove(&key).map(|value| LooseKey { key, value, place }));
    }
    if loose.is_empty() {
        // For its errors alone: those of the text know their line.
        toml::from_str::<Config>(text).map_err(invalid)?;
    }
    Ok(table)
}

/// A flag's text as the value it looks like.
pub fn scalar(text: &str) -> Value {
    toml::from_str::<Table>(&format!("v = {text}"))
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

fn typed(table: Table, known: &[&str], place: &str) -> Result<Config> {
    if let Some(key) = table.keys().find(|k| !known.contains(&k.as_str())) {
        return Err(Error::Invalid { place: place.to_owned(), detail: unknown(key, known) });
    }
    for (key, value) in &table {
        // Key by key first, so that the error can name the key.
        let one = Table::from_iter([(key.clone(), value.clone())]);
        if let Err(e) = one.try_into::<Config>() {
            return Err(Error::Invalid { place: key.clone(), detail: reworded(e.message()) });
        }
    }
    table.try_into().map_err(|e: toml::de::Error| Error::Invalid { place: place.to_owned(), detail: reworded(e.message()) })
}

fn unknown(key: &str, known: &[&str]) -> String {
    match nearest(key, known.iter().copied()) {
        Some(near) => format!("unknown key `{key}`; did you mean `{near}`?"),
        None => format!("unknown key `{key}`; `rlhost train --help` lists all keys"),
    }
}

/// serde's "unknown field `x`, expected one of `a`, `b`" with the nearest name alone.
fn reworded(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((key, known)) if message.starts_with("unknown field") => unknown(key, known),
        _ => message.trim().to_owned(),
    }
}

/// Applies one `KEY=VALUE`; `plugin.NAME.KEY` reaches a reward by its name.
fn apply_set(config: Config, set: &str, known: &[&str]) -> Result<Config> {
    let place = format!("--set {set}");
    let invalid = |detail: String| Error::Invalid { place: place.clone(), detail };
    let (path, text) = set.split_once('=').ok_or_else(|| invalid("expected KEY=VALUE".into()))?;
    let value = scalar(text);
    if let Some((_, number)) = not_finite(&value) {
        return Err(invalid(format!("is {number}; it must be a finite number (put text in quotes)")));
    }
    let mut parts: Vec<String> = path.trim().split('.').map(|p| p.replace('-', "_")).collect();
    let mut config = config;
    if parts.len() > 2 && parts[0] == "plugin" {
        let names: Vec<String> = config.plugin.iter().map(|e| e.name().to_owned()).collect();
        let below = path.trim().split_once('.').map_or("", |(_, below)| below);
        let within = |name: &str| below.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        // A name may have dots, and begin with another one.
        let entry = config.plugin.iter_mut().filter(|e| within(e.name())).max_by_key(|e| e.name().len());
        let Some(entry) = entry else {
            let wanted = below.split('.').next().unwrap_or_default();
            return Err(invalid(format!("no reward plugin is named {wanted:?}; this run has {}", names.join(", "))));
        };
        let mut table = Table::try_from(&*entry).map_err(|e| invalid(e.to_string()))?;
        insert(&mut table, &parts[1 + entry.name().split('.').count()..], value);
        *entry = table.try_into().map_err(|e: toml::de::Error| invalid(reworded(e.message())))?;
        return Ok(config);
    }
    if parts.len() > 1 && parts[0] != "loss" && parts[0] != "loss_limits" {
        return Err(invalid(format!("no table is named `{}`; the tables are loss, loss_limits and plugin.NAME", parts[0])));
    }
    if parts.len() == 1 && !known.contains(&parts[0].as_str()) {
        return Err(invalid(unknown(&parts[0], known)));
    }
    let mut table = Table::try_from(&config).map_err(|e| invalid(e.to_string()))?;
    let last = std::mem::take(&mut parts);
    insert(&mut table, &last, value);
    table.try_into().map_err(|e: toml::de::Error| invalid(reworded(e.message())))
}

fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [key] => {
            table.insert(key.clone(), value);
        }
        [key, rest @ ..] => {
            let inner = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            if !inner.is_table() {
                *inner = Value::Table(Table::new());
            }
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn overrides(flags: &[(&str, &str)], sets: &[&str]) -> Overrides {
        Overrides {
            flags: flags.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            plugins: vec!["dir/tldr_length_reward.wasm".into()],
            sets: sets.iter().map(|s| (*s).into()).collect(),
            ..Overrides::default()
        }
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut f = tempfile::NamedTempFile::new().unwrap();
        f.write_all(text.as_bytes()).unwrap();
        f
    }

    #[test]
    fn flags_win_over_the_file_and_sets_over_both() {
        let f = file("learning_rate = 1e-3\nmax_steps = 7\nstop = ['x']\nbeta = 0.1\n[loss]\nepsilon = 0.3\n");
        let o = overrides(
            &[("max_steps", "9"), ("stop", "."), ("stop", "!")],
            &["plugin.tldr_length_reward.config.target=8", "max_steps=11", "loss.loss_type=bnpo"],
        );
        let (config, loose) = read([f.path()], &o).unwrap();
        assert_eq!(config.learning_rate, Some(1e-3));
        assert_eq!(config.max_steps, 11);
        assert_eq!(config.stop, [".", "!"]);
        assert_eq!(config.plugin[0].config["target"], 8);
        assert_eq!((config.loss["epsilon"].as_f64(), config.loss["loss_type"].as_str()), (Some(0.3), Some("bnpo")));
        assert_eq!(loose[0].key, "beta");
        assert!(loose[0].place.ends_with(":4"), "{}", loose[0].place);
    }

    #[test]
    fn a_reward_is_reached_whatever_dots_its_name_has() {
        let mut o = overrides(&[], &["plugin.a.weight=2", "plugin.a.b-1.2.weight=3", "plugin.a.b-1.2.config.some-key=4"]);
        o.plugins = vec!["x/a.wasm".into(), "y/a.b-1.2.wasm".into()];
        let (config, _) = read([], &o).unwrap();
        let [short, long] = &config.plugin[..] else { panic!("{:?}", config.plugin) };
        assert_eq!((short.weight, long.weight, &long.config["some_key"]), (2.0, 3.0, &4.into()));
        assert!(short.config.is_empty());
        o.sets = vec!["plugin.a.b-1.weight=3".into()];
        assert!(read([], &o).unwrap_err().to_string().contains("unknown key `b_1`"), "{:?}", read([], &o));
    }

    #[test]
    fn a_later_file_wins_key_by_key_under_any_name_of_a_key() {
        let (first, second) = (file("seed = 1\nsave_total_limit = 2\n"), file("max_ckpt_num = 5\n"));
        let (config, _) = read([first.path(), second.path()], &overrides(&[], &[])).unwrap();
        assert_eq!((config.seed, config.save_total_limit), (1, Some(5)));
    }

    #[test]
    fn no_number_is_infinite_or_none() {
        let with = |text: &str| format!("[[plugin]]\npath = 'a/b.wasm'\n{text}\n");
        for (text, key) in [
            ("adam_epsilon = inf".to_owned(), "adam_epsilon"),
            ("lora_alpha = nan".to_owned(), "lora_alpha"),
            ("dist_timeout_s = inf".to_owned(), "dist_timeout_s"),
            ("num_train_epochs = inf\nmax_steps = 3".to_owned(), "num_train_epochs"),
            ("[loss_limits]\ncall_timeout_s = inf".to_owned(), "loss_limits.call_timeout_s"),
            (with("weight = -inf"), "plugin.b.weight"),
            (with("limits.call_timeout_s = inf"), "plugin.b.limits.call_timeout_s"),
            (with("config.target = nan"), "plugin.b.config.target"),
        ] {
            let error = read([file(&text).path()], &Overrides::default()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{key}: is ")) && error.contains("finite"), "{text}: {error}");
        }
        read([file("adam_epsilon = 1e-3").path()], &Overrides::default()).unwrap();
        let sets = ["plugin.tldr_length_reward.config.target=nan", "plugin.tldr_length_reward.weight=2"];
        let error = read([], &overrides(&[], &sets)).unwrap_err().to_string();
        assert!(error.starts_with("--set plugin.tldr_length_reward.config.target=nan: is NaN"), "{error}");
    }

    #[test]
    fn mistakes_are_named_with_their_place_and_the_nearest_key() {
        let say = |text: &str, flags: &[(&str, &str)], sets: &[&str]| {
            read([file(text).path()], &overrides(flags, sets)).unwrap_err().to_string()
        };
        let line = say("seed = 1\nmax_steps = 'many'\n", &[], &[]);
        assert!(line.contains(":2:") && line.contains("invalid type"), "{line}");
        let flag = say("", &[("learning_rate", "fast")], &[]);
        assert!(flag.contains("learning_rate") && flag.contains("fast"), "{flag}");
        let set = say("", &[], &["lerning_rate=1"]);
        assert!(set.contains("did you mean `learning_rate`"), "{set}");
        let plugin = say("", &[], &["plugin.tldr.config.target=8"]);
        assert!(plugin.contains("tldr_length_reward"), "{plugin}");
        let nested = say("[[plugin]]\npath = 'a.wasm'\nwieght = 2\n", &[], &[]);
        assert!(nested.contains("`weight`"), "{nested}");
    }
}
