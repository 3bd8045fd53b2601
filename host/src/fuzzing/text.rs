//! Texts: configuration and chat templates.

use super::{choice, parts, put};
use crate::config::{self, Overrides, RunConfig};
use crate::data::{ChatMessage, ChatTemplate, TemplateVariables};

/// Fuzzes a configuration file, then command line arguments: `--set KEY=VALUE`, `--plugin PATH` or `--KEY VALUE`.
pub fn config(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut parts = text.split('\0');
    let file = put("run.toml", parts.next().unwrap_or_default().as_bytes());
    let mut overrides = Overrides::default();
    for part in parts {
        match part.split_once(' ').unwrap_or_default() {
            ("--set", set) => overrides.sets.extend(config::KeyAssignment::parse(set)),
            ("--plugin", path) => overrides.plugins.push(path.to_owned()),
            (flag, value) => {
                let key = flag.trim_start_matches('-').replace('-', "_");
                overrides.flags.push((key, value.to_owned()));
            }
        }
    }
    // Errors may have several lines, as TOML's own errors do.
    let _ = config::ConfigFile::read(&file).and_then(|file| file.text_of("output_dir")).map_err(|e| e.to_string());
    let yaml = put("run.yaml", text.split('\0').next().unwrap_or_default().as_bytes());
    for file in [file, yaml] {
        let Ok(config) = config::read([file.as_path()], &overrides) else { continue };
        // A resumed run must read what a run writes.
        let Ok(written) = toml::to_string(&config) else { continue };
        let read: RunConfig = toml::from_str(&written).unwrap_or_else(|e| panic!("{e} in {written}"));
        let changes = config::changes(&config, &read).unwrap_or_else(|e| panic!("{e}"));
        assert!(changes.is_empty(), "read back with changes: {changes:?}");
    }
}

/// Fuzzes a chat template; a conversation in JSON; the beginning token; the ending token.
pub fn template(input: &[u8]) {
    let Some((generate, input)) = choice(input, 2) else { return };
    let mut parts = parts(input).map(String::from_utf8_lossy);
    let mut next = || parts.next().unwrap_or_default().into_owned();
    let (source, messages) = (next(), next());
    let Ok(chat) = ChatTemplate::new(source, next(), next()) else { return };
    let messages: Vec<ChatMessage> = serde_json::from_str(&messages).unwrap_or_else(|_| {
        let turn = |role: &str| ChatMessage { role: role.into(), content: " Hello. ".into(), ..ChatMessage::default() };
        vec![turn("system"), turn("user"), turn("assistant"), turn("user")]
    });
    let _ = chat.render(&messages, generate == 1, &TemplateVariables::default());
}
