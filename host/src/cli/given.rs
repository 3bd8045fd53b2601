//! Reads a run's configuration from the command line.

use super::algorithm::Known;
use super::flags::{negatable, negated, setting_id};
use super::{Failure, granted};
use crate::config::{self, Asked, Config, ConfigFile, Foreign, Key, Limits, Overrides, PluginEntry, Set, scalar};
use crate::plugin::{Engine, Setting, Takes, hints_of};
use crate::train::{self, Beginning};
use anyhow::anyhow;
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::iter;
use std::path::{Path, PathBuf};
use toml::Value;

/// The configuration file and everything that overrides it.
pub(super) struct Given {
    /// The configuration file.
    pub file: Option<ConfigFile>,
    pub overrides: Overrides,
    /// Names of the algorithm's settings, which may be keys of the file.
    settings: Vec<String>,
}

/// Returns the texts given for a flag.
pub(super) fn texts(matches: &ArgMatches, id: &str) -> Vec<String> {
    matches.get_many::<String>(id).unwrap_or_default().cloned().collect()
}

impl Given {
    /// Reads the arguments of a command that sets some keys `first`.
    pub(super) fn of(matches: &ArgMatches, first: &[(&str, &str)], known: &Known) -> Result<Self, Failure> {
        let settings = &known.settings;
        let flags = first.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let sets = Set::read_all(&texts(matches, "set")).map_err(Failure::of)?;
        let mut overrides = Overrides {
            flags,
            settings: settings.iter().filter_map(|setting| value_of(setting, matches)).collect(),
            plugins: texts(matches, "plugin"),
            reward_models: texts(matches, "reward_model"),
            sets,
            ..Overrides::default()
        };
        for Key { name, .. } in config::keys().iter().filter(|key| key.has_flag) {
            overrides.flags.extend(texts(matches, name).into_iter().map(|text| (name.clone(), text)));
        }
        let off = negatable().filter(|name| matches.get_flag(&negated(name)) && config::key(name).is_some());
        overrides.flags.extend(off.map(|name| (name.to_owned(), "false".to_owned())));
        let is_off = |option: &Foreign| negatable().any(|name| name == option.name) && matches.get_flag(&negated(option.name));
        overrides.foreign.extend(config::foreign_options().filter(is_off).map(|option| (option, Value::Boolean(false))));
        for option in config::foreign_options() {
            let mut given: Vec<Value> = texts(matches, option.name).iter().map(|text| scalar(text)).collect();
            let value = if given.len() > 1 { Some(Value::Array(given)) } else { given.pop() };
            if let Some(value) = value {
                option.check(&value).map_err(|detail| Failure::mistake(anyhow!("--{}: {detail}", option.name)))?;
                overrides.foreign.push((option, value));
            }
        }
        let read = || matches.get_one::<PathBuf>("config").map(|path| ConfigFile::given(path)).transpose();
        let file = known.file.clone().map_or_else(read, |file| Ok(Some(file))).map_err(Failure::of)?;
        if let (Some(file), Some((_, algorithm))) = (&file, overrides.flags.iter().rfind(|(key, _)| key == "algorithm")) {
            file.check_is_for(algorithm).map_err(Failure::of)?;
        }
        Ok(Self {
            file,
            overrides,
            settings: settings.iter().flat_map(|setting| iter::once(&setting.name).chain(&setting.aliases)).cloned().collect(),
        })
    }

    /// Creates a configuration that only `--set` changes.
    pub(super) fn of_sets(sets: Vec<Set>) -> Self {
        Self { file: None, overrides: Overrides { sets, ..Overrides::default() }, settings: Vec::new() }
    }

    /// Returns the plugins that the command line names.
    pub(super) fn named_plugins(&self) -> Vec<String> {
        self.overrides.plugins.iter().cloned().chain(self.overrides.value_of("algorithm")).collect()
    }

    /// Returns the configuration of a new run.
    pub(super) fn resolve(&self, beginning: &Beginning) -> Result<Config, Failure> {
        let base = beginning.config_file().map_err(Failure::of)?;
        let config = self.config(base.as_deref(), beginning)?;
        match base {
            None => granted::remember_all(&config),
            Some(_) => {
                let own = |table: &str| self.file.as_ref().map_or(Ok(false), |file| file.has(table)).map_err(Failure::of);
                let (plugins, environments) = (own("plugin")?, own("environment")?);
                let only = config.environment.len() == 1;
                granted::check(&config, |table, entry| {
                    (if table == "plugin" { plugins } else { environments }) || self.grants(table, entry, only)
                })?;
            }
        }
        Ok(config)
    }

    /// Returns whether flags give everything that an entry of this table is granted, each key as a whole. An `only` environment needs
    /// no name.
    fn grants(&self, table: &str, entry: &PluginEntry, only: bool) -> bool {
        let given = |key: &str| {
            let alone = format!("{table}.{key}");
            let is_alone = |set: &Set| table == "environment" && only && set.sets(&alone);
            self.overrides.sets.iter().any(|set| set.sets_of_entry(table, entry.name(), key) || is_alone(set))
        };
        let all =
            [(entry.hosts.is_empty(), "hosts"), (entry.secrets.is_empty(), "secrets"), (entry.folders.is_empty(), "folders")];
        all.into_iter().all(|(nothing, key)| nothing || given(key))
    }

    /// Returns the configuration with that of a file below it, and sets the requested number of threads.
    fn config(&self, base: Option<&Path>, beginning: &Beginning) -> Result<Config, Failure> {
        let base = base.map(ConfigFile::read).transpose().map_err(Failure::of)?;
        super::set_asked_threads(&Asked::of(base.iter().chain(&self.file), &self.overrides).map_err(Failure::of)?)?;
        let read = |base: ConfigFile| {
            let own = match base.changes_algorithm(&self.overrides, self.file.as_ref()).map_err(Failure::of)? {
                true => own_defaults(&base, beginning)?,
                false => Vec::new(),
            };
            base.inherited(&self.overrides, self.file.as_ref(), &own).map_err(Failure::of)
        };
        let base = base.map(read).transpose()?;
        let has_split: fn(&str, &str) -> bool = train::has_split;
        let overrides = Overrides { has_split: base.is_none().then_some(has_split), ..self.overrides.clone() };
        let files = base.iter().chain(&self.file);
        let config = config::read_files(files, &overrides, &self.settings).map_err(Failure::of)?;
        if let Some(threads) = config.num_threads {
            super::set_threads(threads).map_err(Failure::of)?;
        }
        Ok(config)
    }

    /// Returns the output directory, if one is given.
    pub(super) fn output_dir(&self) -> Result<Option<String>, config::Error> {
        // The rest may be incomplete, if it is to come from a checkpoint.
        match self.overrides.value_of("output_dir") {
            Some(given) => Ok(Some(given)),
            None => self.file.as_ref().map_or(Ok(None), |file| file.text_of("output_dir")),
        }
    }
}

/// Returns the own defaults of the algorithm that a run's configuration names.
fn own_defaults(config: &ConfigFile, beginning: &Beginning) -> Result<Vec<(&'static str, Value)>, Failure> {
    let Some(algorithm) = config.text_of("algorithm").map_err(Failure::of)? else { return Ok(Vec::new()) };
    let source = beginning.algorithm(&algorithm).map_err(Failure::of)?;
    let engine = Engine::new().map_err(Failure::of)?;
    let hints = hints_of(&engine, &source, &Limits::default()).map_err(Failure::of)?;
    let own = hints.defaults.keys().into_iter();
    Ok(own.filter_map(|(key, value)| Some((key, Value::try_from(value).ok()?))).collect())
}

/// Returns the name and value of a setting, if its flag was given.
fn value_of(setting: &Setting, matches: &ArgMatches) -> Option<(String, Value)> {
    let id = setting_id(&setting.name);
    let given = matches
        .try_get_many::<String>(&id)
        .ok()
        .flatten()
        .filter(|_| matches.value_source(&id) == Some(ValueSource::CommandLine))?;
    let mut values: Vec<Value> = given.map(|text| scalar(text)).collect();
    let value = match setting.takes {
        // A list may also be given whole.
        Takes::Several if values.len() == 1 && values[0].is_array() => values.remove(0),
        Takes::Several => Value::Array(values),
        Takes::OneOrSeveral if values.len() > 1 => Value::Array(values),
        Takes::OneOrSeveral | Takes::One | Takes::Switch => values.pop()?,
    };
    Some((setting.name.clone(), value))
}
