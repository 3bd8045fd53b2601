//! Builds a configuration from layers: files, flags that override them, and `--set`, which overrides both.

use super::foreign_options::{self, ForeignOption, OptionTreatment};
use super::lines::line_of;
use super::named_keys::{NamedKeys, in_table};
use super::overrides::Overrides;
use super::rewards;
use super::spelling::{coerce_value, own_name, unknown};
use super::values::{UNKNOWN_KEY, insert, not_finite, reworded, scalar};
use super::{ConfigKey, Error, KeyAssignment, PluginLimits, Result, RunConfig, files, keys, sharding, yaml};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Maximum size of a configuration file, in bytes.
pub const LARGEST: u64 = 4 << 20;

/// A configuration file's text.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl ConfigFile {
    /// Reads a regular file.
    ///
    /// # Errors
    /// If it is anything but a regular text file.
    pub fn read(path: &Path) -> Result<Self> {
        Self::from_text(path, files::read_text(path, LARGEST))
    }

    /// Reads a file that a person names, which may be a pipe.
    ///
    /// # Errors
    /// If it is a folder, a device, or not text.
    pub fn read_file_or_pipe(path: &Path) -> Result<Self> {
        Self::from_text(path, files::read_file_or_pipe(path, LARGEST))
    }

    fn from_text(path: &Path, text: io::Result<String>) -> Result<Self> {
        let path = path.to_owned();
        match text {
            Ok(text) => Ok(Self { path, text }),
            Err(source) => Err(Error::Io { path, source }),
        }
    }

    /// Returns the text of a top-level key, if the file has it.
    ///
    /// # Errors
    /// If the file can't be parsed.
    pub fn text_of(&self, key: &str) -> Result<Option<String>> {
        Ok(self.table()?.get(key).and_then(Value::as_str).map(str::to_owned))
    }

    /// Returns whether the file has a top-level key.
    ///
    /// # Errors
    /// If the file can't be parsed.
    pub fn has(&self, key: &str) -> Result<bool> {
        Ok(self.table()?.contains_key(key))
    }

    /// Returns the top-level keys that are not keys of rlhost.
    ///
    /// # Errors
    /// If the file can't be parsed.
    pub fn unknown_keys(&self) -> Result<Vec<String>> {
        Ok(self.table()?.into_iter().map(|(key, _)| key).filter(|key| own_name(key).is_none()).collect())
    }

    /// Parses the file without converting its keys.
    ///
    /// # Errors
    /// If the file can't be parsed; names the line.
    pub fn table(&self) -> Result<Table> {
        let parsed = match self.path.extension().and_then(|ending| ending.to_str()) {
            Some("yaml" | "yml") => yaml::table(&self.text),
            Some("toml") => toml_table(&self.text),
            // A pipe has no extension.
            _ => toml_table(&self.text).or_else(|error| yaml::table(&self.text).map_err(|_| error)),
        };
        parsed.map_err(|(line, detail)| Error::Invalid { place: self.place(line), detail })
    }

    fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }

    /// Returns the place of a top-level key, for error messages.
    pub(super) fn place_of(&self, key: &str) -> String {
        self.place(line_of(&self.text, key, None))
    }

    /// Returns the place of an error in a top-level key's value: that of the nested key that the error names as unknown.
    fn place_within(&self, key: &str, detail: &str) -> String {
        let inner = detail.strip_prefix(UNKNOWN_KEY).and_then(|rest| rest.split('`').next());
        self.place(line_of(&self.text, key, inner))
    }
}

/// Parses TOML; an error includes the line.
fn toml_table(text: &str) -> std::result::Result<Table, (usize, String)> {
    toml::from_str(text).map_err(|e: toml::de::Error| (line_at(text, e.span()), reworded(e.message())))
}

/// Returns the line on which a span of a text begins.
fn line_at(text: &str, span: Option<Range<usize>>) -> usize {
    span.map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1)
}

/// Settings of a run that names neither a model nor a dataset.
const BUILT_IN_RUN: &str = include_str!("../../../examples/builtin-model/run.toml");

/// Reads files, each overriding those before it, applies the command line, and checks the result. The files may have only keys of rlhost.
///
/// # Errors
/// If a value is invalid; names the file and line, or the flag, and the valid values.
pub fn read<'a>(files: impl IntoIterator<Item = &'a Path>, overrides: &Overrides) -> Result<RunConfig> {
    let files: Vec<ConfigFile> = files.into_iter().map(ConfigFile::read).collect::<Result<_>>()?;
    read_files(&files, overrides, &[])
}

/// Merges parsed files, each overriding those before it, applies the command line, and checks the result. Top-level keys of the files may
/// also be `settings` of the algorithm.
///
/// # Errors
/// Those of [`read`].
pub fn read_files<'a>(
    files: impl IntoIterator<Item = &'a ConfigFile>,
    overrides: &Overrides,
    settings: &[String],
) -> Result<RunConfig> {
    let (mut table, mut foreign) = (Table::new(), Vec::new());
    let mut sharding = sharding::ShardingRequests::default();
    for file in files {
        let before = foreign.len();
        let own = checked(file, settings, overrides, &mut foreign)?;
        sharding.add(own.get("zero_stage"), &foreign[before..])?;
        merge(&mut table, own);
        without_unused_adapter(&mut table);
    }
    let flag = overrides.flags.iter().rfind(|(key, _)| key == "zero_stage").map(|(_, text)| scalar(text));
    sharding.add(flag.as_ref(), &overrides.foreign)?;
    sharding.put(&mut table)?;
    foreign.extend(overrides.foreign.iter().cloned());
    // TRL's own scripts list the reward model first.
    foreign.sort_by_key(|(option, _)| option.treatment != OptionTreatment::RewardModel);
    let mut by_user = table.clone();
    if !["model", "dataset"].iter().any(|key| table.contains_key(*key) || overrides.value_of(key).is_some()) {
        let own = ConfigFile { path: "run.toml".into(), text: BUILT_IN_RUN.to_owned() };
        // The built-in reward is for runs that name none, and the built-in steps for those that don't set their length.
        let is_given = |key: &str| table.contains_key(key) || overrides.value_of(key).is_some();
        let in_epochs = is_given("num_train_epochs");
        let is_meant = |key: &str| match key {
            "plugin" => overrides.reward_models.is_empty(),
            "max_steps" => !in_epochs,
            _ => true,
        };
        for (key, value) in checked(&own, &[], overrides, &mut foreign)?.into_iter().filter(|(key, _)| is_meant(key)) {
            table.entry(key).or_insert(value);
        }
    }
    for table in [&mut table, &mut by_user] {
        apply_flags(table, overrides)?;
        foreign.iter().for_each(|(option, value)| option.put(value, table));
    }
    let named = NamedKeys::new(set_by_user(&by_user, overrides), &table);
    let mut config = typed(table)?;
    rewards::replace(&mut config, overrides)?;
    for (option, value) in &foreign {
        let invalid = |detail| Error::Invalid { place: option.name.to_owned(), detail };
        if let Some(weights) = option.weights(value, config.plugin.len()).map_err(invalid)? {
            config.plugin.iter_mut().zip(weights).for_each(|(entry, weight)| entry.weight = weight);
        }
    }
    for set in &overrides.sets {
        config = set.apply(config, settings)?;
    }
    config.named = named;
    config.find_test_split(overrides);
    config.check().map_err(|(key, detail)| Error::Invalid { place: key.to_owned(), detail })?;
    sharding.check(&config)?;
    Ok(config)
}

/// Drops the rank of an adapter that is explicitly turned off, as TRL does; otherwise a rank alone turns an adapter on.
fn without_unused_adapter(table: &mut Table) {
    if table.get("use_peft") == Some(&Value::Boolean(false)) {
        table.remove("lora_r");
    }
}

/// Configuration that is needed before the algorithm's settings are known.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct BootstrapConfig {
    /// The algorithm; `None` for the default one.
    pub algorithm: Option<String>,
    /// Resource limits of the algorithm.
    pub loss_limits: PluginLimits,
    /// Number of CPU threads.
    pub num_threads: Option<usize>,
}

impl BootstrapConfig {
    /// Reads the bootstrap configuration from files, flags and `--set`, ignoring errors in other keys.
    ///
    /// # Errors
    /// If a file can't be parsed.
    pub fn from_layers<'a>(files: impl IntoIterator<Item = &'a ConfigFile>, overrides: &Overrides) -> Result<Self> {
        let mut table = Table::new();
        for file in files {
            table.extend(file.table()?);
        }
        for (key, text) in &overrides.flags {
            let value = if key == "algorithm" { Value::String(text.clone()) } else { scalar(text) };
            table.insert(key.clone(), value);
        }
        for set in &overrides.sets {
            insert(&mut table, &set.canonical(), set.value());
        }
        table.retain(|key, _| ["algorithm", "loss_limits", "num_threads"].contains(&key));
        // Errors in these values are reported when the complete configuration is read.
        Ok(table.try_into().unwrap_or_default())
    }
}

/// Returns the keys that are set by the user's files, flags and `--set`.
fn set_by_user(by_user: &Table, overrides: &Overrides) -> BTreeSet<String> {
    let of_sets = |set: &KeyAssignment| {
        let path =
            set.key().map(|key| std::iter::once(key.to_owned()).chain(set.path()[1..].iter().cloned()).collect::<Vec<_>>());
        [set.key().map(str::to_owned), path.map(|path| path.join("."))].into_iter().flatten()
    };
    let has_rewards = !overrides.plugins.is_empty() || !overrides.reward_models.is_empty();
    let rewards = has_rewards.then(|| "plugin".to_owned());
    in_table(by_user).chain(overrides.sets.iter().flat_map(of_sets)).chain(rewards).collect()
}

/// Overrides the keys of earlier files with those of a file. Settings of the algorithm are replaced individually.
fn merge(table: &mut Table, mut own: Table) {
    if let (Some(Value::Table(before)), Some(Value::Table(loss))) = (table.get_mut("loss"), own.get_mut("loss")) {
        let after = std::mem::take(loss);
        before.extend(after);
        own.remove("loss");
    }
    table.extend(own);
}

/// Returns a file's keys under their canonical names, with the algorithm's settings in the table `loss`. Adds options of TRL that are not
/// keys to `foreign_options`, except those that flags override.
fn checked(
    file: &ConfigFile,
    settings: &[String],
    overrides: &Overrides,
    foreign: &mut Vec<(ForeignOption, Value)>,
) -> Result<Table> {
    let mut loss = Table::new();
    let mut table = Table::new();
    for (key, value) in file.table()? {
        let invalid = |detail: String| Error::Invalid { place: file.place_of(&key), detail };
        if let Some(own) = own_name(&key) {
            let value = coerce_value(own, value).map_err(|detail| {
                let place = file.place_within(&key, &detail);
                Error::Invalid { place, detail: format!("{key}: {detail}") }
            })?;
            table.insert(own.to_owned(), value);
            continue;
        }
        if settings.contains(&key) {
            loss.insert(key, value);
            continue;
        }
        match foreign_options::option(&key) {
            Some(option) if overrides.foreign.iter().any(|(given, _)| given.name == option.name) => {}
            Some(option) => {
                option.check(&value).map_err(|detail| invalid(format!("{key}: {detail}")))?;
                foreign.push((option, value));
            }
            None if key == "resume_from_checkpoint" && value.as_bool() == Some(false) => {}
            None if key == "env" && value.is_table() => {
                tracing::info!("env is not needed: nothing here reads its variables; set others in the shell");
            }
            None if key == "resume_from_checkpoint" => {
                return Err(invalid(format!("{key} is a flag only: --resume-from-checkpoint")));
            }
            None => return Err(invalid(unknown(&key, settings))),
        }
    }
    for (key, value) in loss {
        insert(&mut table, &["loss".to_owned(), key], value);
    }
    Ok(table)
}

/// Applies the flags of keys and of the algorithm's settings.
fn apply_flags(table: &mut Table, overrides: &Overrides) -> Result<()> {
    for ConfigKey { name: key, kind, of_numbers, .. } in keys() {
        let given: Vec<&String> = overrides.flags.iter().filter(|(k, _)| k == key).map(|(_, text)| text).collect();
        let Some(last) = given.last() else { continue };
        let value = match *kind {
            "string" => Value::String((*last).clone()),
            "array" if *of_numbers => Value::Array(given.into_iter().map(|text| scalar(text)).collect()),
            "array" => Value::Array(given.into_iter().map(|text| Value::String(text.clone())).collect()),
            _ => scalar(last),
        };
        let invalid = |detail| Error::Invalid { place: key.clone(), detail };
        table.insert(key.clone(), coerce_value(key, value).map_err(invalid)?);
    }
    if overrides.flags.iter().any(|(key, _)| key == "use_peft") {
        without_unused_adapter(table);
    }
    for (name, value) in &overrides.settings {
        insert(table, &["loss".to_owned(), name.clone()], value.clone());
    }
    check_finite(table)
}

/// Rejects infinite numbers and NaN, which are invalid for every key.
fn check_finite(table: &Table) -> Result<()> {
    match table.iter().find_map(|(key, value)| Some((key, not_finite(value)?))) {
        Some((key, (inner, number))) => {
            let place = if inner.is_empty() { key.clone() } else { format!("{key}.{inner}") };
            Err(Error::Invalid { place, detail: format!("is {number}; it must be a finite number") })
        }
        None => Ok(()),
    }
}

fn typed(table: Table) -> Result<RunConfig> {
    let place = "command line".to_owned();
    table.try_into().map_err(|e: toml::de::Error| Error::Invalid { place, detail: reworded(e.message()) })
}

#[cfg(test)]
mod tests {
    use super::super::KeyAssignment;
    use super::*;
    use std::io::Write;

    fn overrides(flags: &[(&str, &str)], sets: &[&str]) -> Overrides {
        Overrides {
            flags: flags.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            plugins: vec!["dir/tldr_length_reward.wasm".into()],
            sets: sets.iter().map(|set| KeyAssignment::parse(set).unwrap()).collect(),
            ..Overrides::default()
        }
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut f = tempfile::NamedTempFile::new().unwrap();
        f.write_all(text.as_bytes()).unwrap();
        f
    }

    #[test]
    fn a_built_in_run_that_says_its_epochs_has_no_steps_of_its_own() {
        let steps = |flags: &[(&str, &str)]| {
            let none: [&Path; 0] = [];
            read(none, &Overrides { plugins: Vec::new(), ..overrides(flags, &[]) }).unwrap().max_steps
        };
        assert!(steps(&[]) > 0);
        assert_eq!(steps(&[("num_train_epochs", "0.5")]), -1);
        assert_eq!(steps(&[("num_train_epochs", "0.5"), ("max_steps", "3")]), 3);
    }

    #[test]
    fn what_the_built_in_run_names_is_not_the_users() {
        let none: [&Path; 0] = [];
        let flags = overrides(&[("logging_steps", "1")], &["max_steps=2"]);
        let named = |overrides: &Overrides| read(none, overrides).unwrap().named;
        let own = named(&Overrides { plugins: Vec::new(), ..flags.clone() });
        assert_eq!(own.iter().collect::<Vec<_>>(), ["logging_steps", "max_steps"]);
        assert!(own.contains("temperature") && own.contains("max_steps") && !own.contains("seed"));
        let with_rewards = named(&Overrides { plugins: vec!["a.wasm".into()], ..flags });
        assert_eq!(with_rewards.iter().collect::<Vec<_>>(), ["logging_steps", "max_steps", "plugin"]);
        let f = file("model = 'm'\n[[plugin]]\npath = 'x/r.py'\nweight = 2\n");
        let named = read([f.path()], &Overrides::default()).unwrap().named;
        assert_eq!(named.iter().collect::<Vec<_>>(), ["model", "plugin", "plugin.r.path", "plugin.r.weight"]);
        assert!(!named.contains("temperature"));
    }

    #[test]
    fn flags_win_over_the_file_and_sets_over_both() {
        let f = file("learning_rate = 1e-3\nmax_steps = 7\nstop = ['x']\nbeta = 0.1\n[loss]\nepsilon = 0.3\n");
        let o = overrides(
            &[("max_steps", "9"), ("stop", "."), ("stop", "!")],
            &["plugin.tldr_length_reward.config.target=8", "max_steps=11", "loss.loss_type=bnpo"],
        );
        let settings = ["beta".to_owned(), "epsilon".to_owned()];
        let file = ConfigFile::read(f.path()).unwrap();
        let config = read_files([&file], &o, &settings).unwrap();
        assert_eq!(config.learning_rate, Some(1e-3));
        assert_eq!(config.max_steps, 11);
        assert_eq!(config.stop, [".", "!"]);
        assert_eq!(config.plugin[0].config["target"], 8);
        assert_eq!((config.loss["epsilon"].as_f64(), config.loss["loss_type"].as_str()), (Some(0.3), Some("bnpo")));
        assert_eq!(config.loss["beta"], 0.1);
        let unknown = read_files([&file], &o, &settings[1..]).unwrap_err().to_string();
        assert!(unknown.contains(":4: unknown key `beta`"), "{unknown}");
        assert_eq!(BootstrapConfig::from_layers([&file], &o).unwrap().algorithm, None);
        let asked =
            BootstrapConfig::from_layers([&file], &overrides(&[("algorithm", "rloo")], &["loss_limits.memory_mb=7"])).unwrap();
        assert_eq!((asked.algorithm.as_deref(), asked.loss_limits.memory_mb), (Some("rloo"), 7));
    }

    #[test]
    fn a_reward_is_reached_whatever_dots_its_name_has() {
        let mut o = overrides(&[], &["plugin.a.weight=2", "plugin.a.b-1.2.weight=3", "plugin.a.b-1.2.config.some-key=4"]);
        o.plugins = vec!["x/a.wasm".into(), "y/a.b-1.2.wasm".into()];
        let config = read([], &o).unwrap();
        let [short, long] = &config.plugin[..] else { panic!("{:?}", config.plugin) };
        assert_eq!((short.weight, long.weight, &long.config["some_key"]), (2.0, 3.0, &4.into()));
        assert!(short.config.is_empty());
        let sets = |given: &[&str]| given.iter().map(|set| KeyAssignment::parse(set).unwrap()).collect();
        o.sets = sets(&["plugin.\"a.b-1.2\".weight=5", "plugin.'a'.weight=6"]);
        assert_eq!(read([], &o).unwrap().plugin.iter().map(|entry| entry.weight).collect::<Vec<_>>(), [6.0, 5.0]);
        o.sets = sets(&["plugin.a.b-1.weight=3"]);
        assert!(read([], &o).unwrap_err().to_string().contains("unknown key `b_1`"), "{:?}", read([], &o));
    }

    #[test]
    fn a_later_file_wins_key_by_key_under_any_name_of_a_key() {
        let (first, second) = (file("seed = 1\nsave_total_limit = 2\n"), file("max_ckpt_num = 5\n"));
        let config = read([first.path(), second.path()], &overrides(&[], &[])).unwrap();
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
            assert!(error.contains(&format!("{key}: is ")) && error.contains("finite"), "{text}: {error}");
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
        assert!(set.contains("did you mean \"learning_rate\""), "{set}");
        let plugin = say("", &[], &["plugin.tldr.config.target=8"]);
        assert!(plugin.contains("tldr_length_reward"), "{plugin}");
        let nested = say("[[plugin]]\npath = 'a.wasm'\nwieght = 2\n", &[], &[]);
        assert!(nested.contains("\"weight\"") && nested.contains(":3: plugin: "), "{nested}");
        let header = say("seed = 1\n\n[los]\nbeta = 2\n", &[], &[]);
        assert!(header.contains(":3: unknown key `los`"), "{header}");
        let alone = say("seed = 1\n[plugin.limits]\nmemory_mb = 9\n", &[], &[]);
        assert!(
            alone.ends_with(":2: plugin: [plugin.limits] belongs to no entry; put [[plugin]] with a path before it"),
            "{alone}"
        );
        let kind = say("learning_rate = 'fast'\n", &[], &[]);
        assert!(kind.contains("expected a number"), "{kind}");
        let quoted = say("seed = 'seven'\n", &[], &[]);
        assert!(quoted.contains("expected a whole number"), "{quoted}");
        assert_eq!(read([file("seed = '7'\n").path()], &Overrides::default()).unwrap().seed, 7);
        let schedule = say("lr_scheduler_type = 'cosin'\n", &[], &[]);
        assert!(
            schedule.contains("\"cosin\" is not one of linear, cosine") && schedule.contains("did you mean \"cosine\""),
            "{schedule}"
        );
    }

    #[test]
    fn rewards_may_be_listed_by_path_or_by_name() {
        let plugins = |text: &str| read([file(text).path()], &Overrides::default()).map(|config| config.plugin);
        let names = |text: &str| plugins(text).unwrap().iter().map(|e| e.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names("plugin = 'a/x.wasm'\n"), ["x"]);
        assert_eq!(names("plugin = ['a/x.wasm', 'y.wasm']\n"), ["x", "y"]);
        let named = plugins("[plugin.x]\nweight = 2\n[plugin.x.config]\ntarget = 3\n").unwrap();
        assert_eq!((named[0].path.as_str(), named[0].weight, &named[0].config["target"]), ("x.wasm", 2.0, &serde_json::json!(3)));
        let wrong = plugins("plugin = [3]\n").unwrap_err().to_string();
        assert!(wrong.contains("a path or a table with a path"), "{wrong}");
    }

    #[test]
    fn a_set_takes_json() {
        let sets = vec![KeyAssignment::parse(r#"plugin.v1.config={"a": [1, null, {"b": true}], "c": null}"#).unwrap()];
        let json = read([], &Overrides { plugins: vec!["dir/v1.wasm".into()], sets, ..Overrides::default() }).unwrap();
        assert_eq!(serde_json::to_value(&json.plugin[0].config).unwrap(), serde_json::json!({"a": [1, {"b": true}]}));
    }

    #[test]
    fn the_names_and_files_of_trl_are_understood() {
        let mut yaml = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        let text = "model_name_or_path: lab/m\nmodel_revision: v2\ndataset_name: lab/d\ndataset_config: de\nlearning_rate: 5.0e-6\n\
                    attn_implementation: sdpa\npush_to_hub: false\nbeta: 0.2\n";
        yaml.write_all(text.as_bytes()).unwrap();
        let file = ConfigFile::read(yaml.path()).unwrap();
        let config = read_files([&file], &Overrides::default(), &["beta".to_owned()]).unwrap();
        assert_eq!((config.model.as_deref(), config.dataset.as_deref()), (Some("lab/m@v2"), Some("lab/d/de")));
        assert_eq!((config.learning_rate, &config.loss["beta"]), (Some(5e-6), &serde_json::json!(0.2)));
        let weighted = |weights: Value| {
            let foreign = vec![(foreign_options::option("reward_weights").unwrap(), weights)];
            let plugins = vec!["a.wasm".to_owned(), "b.wasm".to_owned()];
            read([], &Overrides { foreign, plugins, ..Overrides::default() })
        };
        let config = weighted(scalar("[0.5, 2]")).unwrap();
        assert_eq!((config.plugin[0].weight, config.plugin[1].weight), (0.5, 2.0));
        assert!(weighted(scalar("[1]")).unwrap_err().to_string().contains("2 numbers"));
        yaml.write_all(b"deepspeed: zero3.json\n").unwrap();
        let file = ConfigFile::read(yaml.path()).unwrap();
        let error = read_files([&file], &Overrides::default(), &["beta".to_owned()]).unwrap_err().to_string();
        assert!(error.contains(".yaml:9: deepspeed: zero3.json: it can't be read"), "{error}");
    }
}
