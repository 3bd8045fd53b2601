//! A plugin's file, up to its compilation, and the schema of its settings.

use super::{parts, refused};
use crate::plugin::{PluginSource, as_component, is_compilable, resolve_settings};
use serde_json::{Map, Value};

/// Fuzzes a plugin's file.
pub fn plugin_bytes(input: &[u8]) {
    // Adds the magic bytes, so that fuzzers need not guess them.
    let bytes = if input.starts_with(b"\0asm") { input.to_vec() } else { [b"\0asm", input].concat() };
    match as_component(&PluginSource::new("p".into(), bytes.into())) {
        Ok(component) => drop((is_compilable(&component), wasmparser::validate(&component))),
        Err(error) => refused(&error),
    }
}

/// Fuzzes a schema, and settings in JSON to validate against it.
pub fn plugin_schema(input: &[u8]) {
    let mut parts = parts(input).map(String::from_utf8_lossy);
    let schema = parts.next().unwrap_or_default();
    let given: Map<String, Value> = serde_json::from_str(&parts.next().unwrap_or_default()).unwrap_or_default();
    match resolve_settings("p", &schema, &given) {
        Err(error) => refused(&error),
        Ok(settings) => {
            // A run writes its settings to config.toml, and a resumed run reads them.
            let written = toml::to_string(&settings).unwrap_or_else(|e| panic!("{e}: {settings:?}"));
            let read: Map<String, Value> = toml::from_str(&written).unwrap_or_else(|e| panic!("{e}: {written}"));
            assert_eq!(read, settings);
            let again = resolve_settings("p", &schema, &read);
            assert_eq!(again.as_ref().map_err(ToString::to_string), Ok(&settings), "settings that are their own");
        }
    }
}
