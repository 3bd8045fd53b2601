//! Command line overrides of a configuration.

use super::foreign_options::ForeignOption;
use super::set::KeyAssignment;
use toml::Value;

/// Command line overrides; each field overrides those before it and files.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Flags of keys: the key and its text.
    pub flags: Vec<(String, String)>,
    /// Flags of the algorithm's settings: the setting's name and value.
    pub settings: Vec<(String, Value)>,
    /// Flags of TRL's options that are not keys of rlhost.
    pub foreign: Vec<(ForeignOption, Value)>,
    /// Paths of reward plugins.
    pub plugins: Vec<String>,
    /// Folders and hub names of reward models.
    pub reward_models: Vec<String>,
    /// Assignments from `--set KEY=VALUE`.
    pub sets: Vec<KeyAssignment>,
    /// For a new run: returns whether a dataset has a split. As in TRL, an evaluation without a dataset uses the test split.
    pub has_split: Option<fn(&str, &str) -> bool>,
}

impl Overrides {
    /// Returns the last value given for a key, by `--set` or else by its flag.
    pub fn value_of(&self, key: &str) -> Option<String> {
        let set = self.sets.iter().rev().find(|set| set.sets(key)).map(KeyAssignment::text);
        set.or_else(|| self.flags.iter().rev().find(|(name, _)| name == key).map(|(_, text)| text.clone()))
    }

    /// Sets a key to this value, overriding everything else.
    pub fn force(&mut self, key: &str, value: &str) {
        self.flags.retain(|(name, _)| name != key);
        self.sets.retain(|set| !set.sets(key));
        self.flags.push((key.to_owned(), value.to_owned()));
    }
}
