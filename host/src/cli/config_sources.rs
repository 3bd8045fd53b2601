//! Reads a run's configuration from the command line.

use super::algorithm::EarlyConfig;
use super::failure::CommandFailure;
use super::flags::{AGENT_LISTEN, negatable, negated, setting_id};
use super::grant_args;
use crate::config::{
    self, BootstrapConfig, ConfigFile, ConfigKey, ForeignOption, Grant, KeyAssignment, Overrides, PluginEntry, PluginLimits,
    RunConfig, scalar,
};
use crate::dist::World;
use crate::plugin::{PluginEngine, Setting, SettingArity, hints_of};
use crate::run::EffectiveConfig;
use crate::train::{self, StartMode};
use anyhow::anyhow;
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::iter;
use std::path::{Path, PathBuf};
use toml::Value;

/// The configuration file and everything that overrides it.
pub(super) struct ConfigSources {
    /// The configuration file.
    pub file: Option<ConfigFile>,
    pub overrides: Overrides,
    /// Names of the algorithm's settings, which may be keys of the file.
    settings: Vec<String>,
    /// Whether all grants of the originating run are accepted.
    accept_grants: bool,
    /// Whether the configuration is for a run, which may open ports.
    is_of_run: bool,
    /// Whether the run serves a page for the browser.
    pub shows_page: bool,
    /// The run whose configuration and logged completions a replay uses.
    replayed: Option<PathBuf>,
}

/// Returns the texts given for a flag.
pub(super) fn texts(matches: &ArgMatches, id: &str) -> Vec<String> {
    matches.get_many::<String>(id).unwrap_or_default().cloned().collect()
}

impl ConfigSources {
    /// Reads the arguments of a command that sets some keys `first`.
    pub(super) fn from_matches(
        matches: &ArgMatches,
        first: &[(&str, &str)],
        known: &EarlyConfig,
    ) -> Result<Self, CommandFailure> {
        let settings = &known.settings;
        let flags = first.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let sets = KeyAssignment::parse_all(&texts(matches, "set")).map_err(CommandFailure::from_error)?;
        let mut overrides = Overrides {
            flags,
            settings: settings.iter().filter_map(|setting| value_of(setting, matches)).collect(),
            plugins: texts(matches, "plugin"),
            reward_models: texts(matches, "reward_model"),
            sets,
            ..Overrides::default()
        };
        for ConfigKey { name, .. } in config::keys().iter().filter(|key| key.has_flag) {
            overrides.flags.extend(texts(matches, name).into_iter().map(|text| (name.clone(), text)));
        }
        let listening = |address: String| ("agent".to_owned(), format!("{{ listen = {} }}", Value::String(address)));
        overrides.flags.extend(texts(matches, AGENT_LISTEN).into_iter().map(listening));
        let off = negatable().filter(|name| matches.get_flag(&negated(name)) && config::key(name).is_some());
        overrides.flags.extend(off.map(|name| (name.to_owned(), "false".to_owned())));
        let is_off =
            |option: &ForeignOption| negatable().any(|name| name == option.name) && matches.get_flag(&negated(option.name));
        overrides.foreign.extend(config::foreign_options().filter(is_off).map(|option| (option, Value::Boolean(false))));
        for option in config::foreign_options() {
            let mut given: Vec<Value> = texts(matches, option.name).iter().map(|text| scalar(text)).collect();
            let value = if given.len() > 1 { Some(Value::Array(given)) } else { given.pop() };
            if let Some(value) = value {
                option.check(&value).map_err(|detail| CommandFailure::mistake(anyhow!("--{}: {detail}", option.name)))?;
                overrides.foreign.push((option, value));
            }
        }
        let read = || matches.get_one::<PathBuf>("config").map(|path| ConfigFile::read_file_or_pipe(path)).transpose();
        let file = known.file.clone().map_or_else(read, |file| Ok(Some(file))).map_err(CommandFailure::from_error)?;
        if let (Some(file), Some((_, algorithm))) = (&file, overrides.flags.iter().rfind(|(key, _)| key == "algorithm")) {
            file.check_is_for(algorithm).map_err(CommandFailure::from_error)?;
        }
        Ok(Self {
            file,
            overrides,
            settings: settings.iter().flat_map(|setting| iter::once(&setting.name).chain(&setting.aliases)).cloned().collect(),
            is_of_run: true,
            shows_page: matches.try_get_one::<bool>("ui").ok().flatten() == Some(&true),
            accept_grants: matches.try_get_one::<bool>("accept_grants").ok().flatten() == Some(&true),
            replayed: None,
        })
    }

    /// Creates a configuration that only `--set` changes.
    pub(super) fn from_assignments(sets: Vec<KeyAssignment>, accept_grants: bool) -> Self {
        Self {
            file: None,
            overrides: Overrides { sets, ..Overrides::default() },
            settings: Vec::new(),
            accept_grants,
            is_of_run: true,
            shows_page: false,
            replayed: None,
        }
    }

    /// Creates the configuration of a replay, which trains on the completions that another run logged.
    pub(super) fn from_replayed_run(run: PathBuf, sets: Vec<KeyAssignment>, accept_grants: bool) -> Self {
        Self { replayed: Some(run), ..Self::from_assignments(sets, accept_grants) }
    }

    /// Returns this configuration for a command that is not a run: it opens no ports, in particular not those of the run that it reads, and
    /// contacts no rollout servers.
    pub(super) fn without_ports(self) -> Self {
        if self.overrides.value_of("metrics_port").is_some() {
            tracing::warn!("metrics_port has no effect: this command serves no metrics");
        }
        Self { is_of_run: false, ..self }
    }

    /// Returns the plugins that the command line names, including those in `--set plugin.NAME.path=FILE`.
    pub(super) fn named_plugins(&self) -> Vec<String> {
        let is_path = |set: &&KeyAssignment| match set.path() {
            [table, .., key] => ["plugin", "environment"].contains(&table.as_str()) && key == "path",
            _ => false,
        };
        let by_set = self.overrides.sets.iter().filter(is_path).map(KeyAssignment::text);
        self.overrides.plugins.iter().cloned().chain(self.overrides.value_of("algorithm")).chain(by_set).collect()
    }

    /// Resolves the configuration of a run. Its grants must come from the command line, or carry this user's mark from before.
    pub(super) fn resolve(&self, beginning: &StartMode, world: &World) -> Result<RunConfig, CommandFailure> {
        let base = match &self.replayed {
            Some(run) => Some(EffectiveConfig::path(run)),
            None => beginning.config_file().map_err(CommandFailure::from_error)?,
        };
        let mut config = self.config(base.as_deref(), beginning)?;
        if !self.is_of_run {
            config.generate_locally();
        }
        // A fork of a replay generates its own completions.
        if matches!(beginning, StartMode::Fork { .. }) && self.overrides.value_of("replay_rollouts").is_none() {
            config.replay_rollouts = None;
        }
        if let Some(run) = beginning.origin().map(|origin| &origin.run).or(self.replayed.as_ref()) {
            // Marks are checked by the first process, because the key may exist only on its machine.
            let accepted = || {
                let given = |grant: &Grant| self.accept_grants || self.gives(grant, &config);
                // JSON, because grants hold values of any type.
                anyhow::Ok(serde_json::to_string(&grant_args::accepted(&config, run, given)?)?)
            };
            let accepted = world.broadcast("accepted grants", accepted).map_err(CommandFailure::from_error)?;
            let accepted: Vec<Grant> = serde_json::from_str(&accepted).map_err(CommandFailure::from_error)?;
            grant_args::check_accepted(&config, &accepted, world.rank())?;
        }
        // The original run may still use its port.
        let has_port = self.replayed.is_none() || self.overrides.value_of("metrics_port").is_some();
        if !self.is_of_run || !has_port {
            config.metrics_port = None;
        }
        if world.is_first() {
            grant_args::show(&config);
        }
        Ok(config)
    }

    /// Returns whether the command line or the configuration file gives a grant with the configuration's values.
    fn gives(&self, grant: &Grant, config: &RunConfig) -> bool {
        // A single environment needs no name.
        let only = config.environment.first().filter(|_| config.environment.len() == 1).map(PluginEntry::name);
        let unnamed = |key: &str| Some(format!("environment{}", key.strip_prefix("environment.")?.strip_prefix(only?)?));
        let in_file = |key: &str| {
            let table = key.split('.').next().unwrap_or(key);
            self.file.as_ref().is_some_and(|file| file.has(table).unwrap_or(false))
        };
        grant.is_given(|key, is_value| {
            let Overrides { flags, sets, .. } = &self.overrides;
            let is_text = config::key(key).is_some_and(|key| key.kind == "string");
            let value = |text: &String| if is_text { Value::String(text.clone()) } else { scalar(text) };
            let by_flag = flags.iter().any(|(name, text)| name == key && is_value(&value(text)));
            let unnamed = unnamed(key);
            let by_set = |set: &KeyAssignment| set.value_for(key).or_else(|| set.value_for(unnamed.as_deref()?));
            by_flag || sets.iter().filter_map(by_set).any(|value| is_value(&value)) || in_file(key)
        })
    }

    /// Returns the configuration, with that of a `base` file as its defaults, and sets the number of threads.
    fn config(&self, base: Option<&Path>, beginning: &StartMode) -> Result<RunConfig, CommandFailure> {
        let base = base.map(ConfigFile::read).transpose().map_err(CommandFailure::from_error)?;
        super::threads::set_configured_threads(
            &BootstrapConfig::from_layers(base.iter().chain(&self.file), &self.overrides).map_err(CommandFailure::from_error)?,
        )?;
        let read = |base: ConfigFile| {
            let own = match base.changes_algorithm(&self.overrides, self.file.as_ref()).map_err(CommandFailure::from_error)? {
                true => own_defaults(&base, beginning)?,
                false => Vec::new(),
            };
            base.inherited(&self.overrides, self.file.as_ref(), &own).map_err(CommandFailure::from_error)
        };
        let base = base.map(read).transpose()?;
        let has_split: fn(&str, &str) -> bool = train::has_split;
        let overrides = Overrides { has_split: base.is_none().then_some(has_split), ..self.overrides.clone() };
        let files = base.iter().chain(&self.file);
        let config = config::read_files(files, &overrides, &self.settings).map_err(CommandFailure::from_error)?;
        if let Some(threads) = config.num_threads {
            super::threads::set_threads(threads).map_err(CommandFailure::from_error)?;
        }
        Ok(config)
    }

    /// Returns the output directory, if one is given.
    pub(super) fn output_dir(&self) -> Result<Option<String>, config::Error> {
        // Other keys may be incomplete, if they are to come from a checkpoint.
        match self.overrides.value_of("output_dir") {
            Some(given) => Ok(Some(given)),
            None => self.file.as_ref().map_or(Ok(None), |file| file.text_of("output_dir")),
        }
    }
}

/// Returns the run defaults of the algorithm that a run's configuration names.
fn own_defaults(config: &ConfigFile, beginning: &StartMode) -> Result<Vec<(&'static str, Value)>, CommandFailure> {
    let Some(algorithm) = config.text_of("algorithm").map_err(CommandFailure::from_error)? else { return Ok(Vec::new()) };
    let source = beginning.algorithm(&algorithm).map_err(CommandFailure::from_error)?;
    let engine = PluginEngine::new().map_err(CommandFailure::from_error)?;
    let hints = hints_of(&engine, &source, &PluginLimits::default()).map_err(CommandFailure::from_error)?;
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
    let value = match setting.arity {
        // A list may also be given as one value.
        SettingArity::Several if values.len() == 1 && values[0].is_array() => values.remove(0),
        SettingArity::Several => Value::Array(values),
        SettingArity::OneOrSeveral if values.len() > 1 => Value::Array(values),
        SettingArity::OneOrSeveral | SettingArity::One | SettingArity::Switch => values.pop()?,
    };
    Some((setting.name.clone(), value))
}
