//! A plugin's settings on the command line.

use crate::config::KeyAssignment;
use serde_json::{Map, Value};

/// Returns a plugin's settings from all `--set KEY=VALUE`. `plugin.NAME.config.KEY` works too, as for `train`.
pub(super) fn settings_given(sets: &[KeyAssignment]) -> anyhow::Result<Map<String, Value>> {
    let pair = |set: &KeyAssignment| {
        // The last part is the setting's own name.
        let above = &set.path()[..set.path().len() - 1];
        let within = above.iter().rposition(|part| part == "config").filter(|_| above[0] == "plugin");
        let key = &set.path()[within.map_or(0, |config| config + 1)..];
        Ok((key.join("."), serde_json::to_value(set.value())?))
    };
    sets.iter().map(pair).collect()
}
