//! Versions of a run's plugins.

use crate::run::PluginVersion;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Versions of plugins and reward models, by name.
pub(crate) type PluginVersions = BTreeMap<String, PluginVersion>;

/// Returns versions in the format of a metrics row.
pub(super) fn shown(versions: &PluginVersions) -> Value {
    Value::Object(versions.iter().map(|(name, version)| (name.clone(), version.short().into())).collect::<Map<_, _>>())
}

/// Returns whether two sets of versions may be equal: older checkpoints have no digests of settings.
pub(super) fn are_same(a: &PluginVersions, b: &PluginVersions) -> bool {
    let mut pairs = a.iter().zip(b);
    a.len() == b.len() && pairs.all(|((name, version), (other, of_other))| name == other && version.is_same(of_other))
}
