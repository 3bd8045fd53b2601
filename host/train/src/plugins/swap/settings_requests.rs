//! Settings that the page requests: the current configuration with the changes is checked and tried like an edit of config.toml. A request
//! that fails leaves config.toml unchanged.

use super::watcher::{ConfigEdit, Proposal, SwapWatcher, Trigger, edits_between};
use crate::config::{self, Overrides, PluginEntry, RunConfig, files};
use crate::run::PluginRequest;
use std::io::Write;
use std::path::Path;

impl SwapWatcher {
    /// Returns the proposals for a request to change the settings of this plugin.
    pub(super) fn settings_requested(&self, name: &str, request: &PluginRequest, trigger: &Trigger) -> Vec<Proposal> {
        let refused =
            |reason: String| vec![Proposal::Refused { name: name.to_owned(), hash: None, trigger: trigger.clone(), reason }];
        let (now, run) = self.with(|board| (board.config.clone(), board.run.clone()));
        let edits = changed(&now, name, request).and_then(|new| edits_between(&now, &checked(&new, &run)?));
        let edits: Vec<ConfigEdit> = match edits {
            Ok(edits) => edits,
            Err(reason) => return refused(reason),
        };
        let proposals: Vec<Proposal> = edits.into_iter().filter_map(|edit| self.edited(edit, trigger)).collect();
        if proposals.is_empty() { refused("the run has these settings already".to_owned()) } else { proposals }
    }
}

/// Returns a configuration with the requested changes to this plugin.
fn changed(now: &RunConfig, name: &str, request: &PluginRequest) -> Result<RunConfig, String> {
    let mut new = now.clone();
    let settings = request.settings.clone().map(|mut settings| {
        settings.retain(|_, value| !value.is_null());
        settings
    });
    let mut entries = new.plugin.iter_mut().chain(&mut new.environment);
    let Some(entry) = entries.find(|entry| entry.name() == name) else {
        if PluginEntry::new(new.algorithm.clone()).name() != name {
            return Err("the run's configuration has no plugin of that name".to_owned());
        }
        if request.weight.is_some() {
            return Err("it is the run's algorithm, which has no weight".to_owned());
        }
        new.loss = settings.unwrap_or(new.loss);
        return Ok(new);
    };
    entry.weight = request.weight.unwrap_or(entry.weight);
    match settings {
        Some(_) if entry.model => return Err("it is a reward model, which has no settings".to_owned()),
        Some(settings) => entry.config = settings,
        None => {}
    }
    Ok(new)
}

/// Validates a configuration as if it were read from a file.
fn checked(config: &RunConfig, run: &Path) -> Result<RunConfig, String> {
    let text = toml::to_string(config).map_err(|e| e.to_string())?;
    let write = || {
        let mut file = files::temporary_in(run)?;
        file.write_all(text.as_bytes()).map(|()| file)
    };
    let file = write().map_err(|e| format!("they can't be checked: {e}"))?;
    config::read([file.path()], &Overrides::default()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_are_those_of_one_plugin_and_in_range() {
        let request = |value: serde_json::Value| serde_json::from_value::<PluginRequest>(value).unwrap();
        let place = tempfile::tempdir().unwrap();
        let now = RunConfig { plugin: vec![PluginEntry::new("a.wasm".into())], ..RunConfig::default() };
        let now = checked(&now, place.path()).unwrap();
        let edits = |name: &str, value: serde_json::Value| {
            changed(&now, name, &request(value)).and_then(|new| edits_between(&now, &checked(&new, place.path())?))
        };
        let made = edits("a", json!({"by": "me", "settings": {"x": 1, "gone": null}, "weight": 2})).unwrap();
        let ConfigEdit::Plugin { name, config, .. } = &made[0] else { panic!("{made:?}") };
        assert_eq!((name.as_deref(), json!(config), made.len()), (Some("a"), json!({"x": 1}), 2));
        assert!(edits("a", json!({"by": "me", "weight": 1e300})).unwrap_err().contains("at most 1e6"));
        assert!(edits("b", json!({"by": "me", "weight": 1})).unwrap_err().contains("no plugin of that name"));
        assert!(edits("grpo", json!({"by": "me", "weight": 1})).unwrap_err().contains("no weight"));
        assert_eq!(edits("grpo", json!({"by": "me", "settings": {"beta": 0.5}})).unwrap().len(), 1);
        assert_eq!(edits("a", json!({"by": "me"})), Ok(Vec::new()));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "no file is left");
    }
}
