//! Overrides of a model folder's chat template and end token by a run.

use super::special_tokens::{self, ConfiguredTokens};
use super::{Error, Result};
use crate::config::{files, json, printable, printable_path};
use jiff::civil::DateTime;
use serde_json::{Map, Value};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Maximum size of `tokenizer_config.json`, in bytes.
const LARGEST_CONFIG: u64 = 16 << 20;

/// Maximum size of `chat_template.jinja`, in bytes.
const LARGEST_TEMPLATE: u64 = 1 << 20;

/// Maximum size of `tokenizer.json`, in bytes.
const LARGEST_TOKENIZER: u64 = 256 << 20;

/// Maximum length of a printed error, in bytes.
const SHOWN: usize = 500;

/// File name of the tokenizer.
const TOKENIZER: &str = "tokenizer.json";

/// File name of a folder's chat template.
pub(super) const TEMPLATE: &str = "chat_template.jinja";

/// File name of the template for conversations with tools.
pub(super) const TOOL_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";

/// File name of the tokenizer's settings.
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// File name of the special tokens' texts.
const SPECIALS: &str = "special_tokens_map.json";

/// File name of the ids of added tokens, which older versions of transformers write.
const ADDED_TOKENS: &str = "added_tokens.json";

/// Template in place of the default one in a folder that has only one for conversations with tools: it refuses all others.
const ONLY_FOR_TOOLS: &str = "{{ raise_exception('the folder has a template for conversations with tools (\"tool_use\"), but none \
                              for others; name one (chat_template_path)') }}";

/// Chat templates of a folder, of which there is at least one.
#[derive(Clone, Debug)]
pub(super) struct FolderTemplates {
    /// File and text of the default template. Without it, only conversations with tools can be rendered.
    pub default: Option<(PathBuf, String)>,
    /// Template for conversations with tools, if it is a separate one.
    pub tool_use: Option<String>,
}

impl FolderTemplates {
    /// Returns the file and text of the template for conversations without tools, and the text of the other.
    pub(super) fn into_parts(self, folder: &Path) -> (PathBuf, String, Option<String>) {
        let (path, source) = self.default.unwrap_or_else(|| (folder.join(CONFIG), ONLY_FOR_TOOLS.to_owned()));
        (path, source, self.tool_use)
    }
}

/// Overrides of a model's folder.
#[derive(Clone, Debug, Default)]
pub struct TokenizerOverrides {
    /// Path and text of the chat template.
    pub template: Option<(PathBuf, String)>,
    /// Additional variables of the template.
    pub kwargs: Map<String, Value>,
    /// Time that the template sees.
    pub now: Option<DateTime>,
    /// End token.
    pub eos: Option<String>,
    /// Padding token.
    pub pad: Option<String>,
    /// Whether a stock chat template is replaced by its variant for training on the assistant's turns ([`super::stock_templates`]).
    /// Checkpoints still contain the folder's own template.
    pub training: bool,
}

/// Tokens that a cloned chat template needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateTokens {
    /// End token of the template's tokenizer.
    pub end: Option<String>,
    /// Added tokens that the template writes, in order.
    pub written: Vec<String>,
}

impl TokenizerOverrides {
    /// Reads a chat template from a file, or from a folder with a tokenizer's files.
    ///
    /// # Errors
    /// If there is no template.
    pub fn read_template(path: &Path) -> Result<(PathBuf, String)> {
        if path.is_dir() {
            let none = |detail: &str| Error::Tokenizer { path: path.to_owned(), detail: detail.to_owned() };
            let templates = templates_in(path, &config_in(path)?)?.ok_or_else(|| none("the folder has no chat template"))?;
            let has_tool_use = templates.tool_use.is_some();
            let default = templates.default.ok_or_else(|| none("the folder has no default chat template, only \"tool_use\""))?;
            if has_tool_use {
                let path = printable_path(path);
                tracing::warn!("{path}: its chat template \"tool_use\" is not taken over, only its default one");
            }
            return Ok(default);
        }
        let source = files::read_text(path, LARGEST_TEMPLATE).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Ok((path.to_owned(), source))
    }

    /// Returns the default chat template in a folder with a tokenizer's files, if there is one.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn template_of(folder: &Path) -> Result<Option<String>> {
        let default = templates_in(folder, &config_in(folder)?)?.and_then(|templates| templates.default);
        Ok(default.map(|(_, source)| source))
    }

    /// Returns the tokens that a folder's chat template needs, as when TRL clones it: the folder's end token, and the added tokens that the
    /// template writes, if they are special or in angle brackets.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn tokens_of(folder: &Path, template: &str) -> Result<TemplateTokens> {
        let config = config_in(folder)?;
        let whole = match read(&folder.join(TOKENIZER), LARGEST_TOKENIZER)? {
            Some(text) => {
                json::value(&text).map_err(|e| Error::Tokenizer { path: folder.join(TOKENIZER), detail: e.to_string() })?
            }
            None => Value::Null,
        };
        let listed = whole["added_tokens"].as_array().into_iter().flatten();
        let added = config["added_tokens_decoder"].as_object().into_iter().flat_map(Map::values).chain(listed);
        // Other added tokens may be ordinary words in the template.
        let is_marker = |token: &&Value| {
            let text = token["content"].as_str().unwrap_or_default();
            token["special"] == true || text.starts_with('<') && text.ends_with('>')
        };
        let mut written: Vec<String> =
            added.filter(is_marker).filter_map(|token| token["content"].as_str()).map(str::to_owned).collect();
        written.retain(|token| !token.trim().is_empty() && template.contains(token.as_str()));
        written.sort_unstable();
        written.dedup();
        let end = Some(token_text(&config, "eos_token")).filter(|text| !text.is_empty());
        Ok(TemplateTokens { end: end.map_or_else(|| mapped_end(folder), |end| Ok(Some(end)))?, written })
    }

    /// Parses a date, or a date with a time.
    ///
    /// # Errors
    /// Says what would be right.
    pub fn read_time(text: &str) -> std::result::Result<DateTime, String> {
        text.parse().map_err(|_| format!("{text:?} is not a date; write it as 2024-07-26 or 2024-07-26T12:00:00"))
    }
}

/// Reads the tokenizer's settings in a folder, with the special tokens of the separate file; null if there are none.
pub(super) fn config_in(folder: &Path) -> Result<Value> {
    let config = object_in(folder, CONFIG)?.map_or(Value::Null, Value::from);
    Ok(special_tokens::with_map(config, object_in(folder, SPECIALS)?))
}

/// Returns the end token that the tokenizer's settings name; empty if they name none.
pub(super) fn own_end(folder: &Path) -> Result<String> {
    Ok(token_text(&object_in(folder, CONFIG)?.map_or(Value::Null, Value::from), "eos_token"))
}

/// Reads the tokens that a folder's files add to its tokenizer.
pub(super) fn added_in(folder: &Path, config: &Value) -> Result<ConfiguredTokens> {
    let added = ConfiguredTokens::from_settings(config, object_in(folder, ADDED_TOKENS)?);
    added.map_err(|detail| Error::Tokenizer { path: folder.join(CONFIG), detail: printable(&detail, SHOWN) })
}

/// Reads a JSON object from an optional file.
fn object_in(folder: &Path, name: &str) -> Result<Option<Map<String, Value>>> {
    let path = folder.join(name);
    let Some(text) = read(&path, LARGEST_CONFIG)? else { return Ok(None) };
    json::object(&text).map(Some).map_err(|e| Error::Tokenizer { path, detail: e.to_string() })
}

/// Reads the chat templates in a folder whose tokenizer has these settings. Template files take precedence over the settings, as in
/// transformers.
pub(super) fn templates_in(folder: &Path, config: &Value) -> Result<Option<FolderTemplates>> {
    let path = folder.join(TEMPLATE);
    let file = read(&path, LARGEST_TEMPLATE)?.map(|source| (path, source));
    let tool_file = read(&folder.join(TOOL_TEMPLATE), LARGEST_TEMPLATE)?;
    let settings = &config["chat_template"];
    let named = |name: &str| match settings {
        Value::Array(all) => all.iter().find(|one| one["name"] == name).and_then(|one| one["template"].as_str()),
        Value::Object(all) => all.get(name).and_then(Value::as_str),
        one => one.as_str().filter(|_| name == "default"),
    };
    let tool_use = if file.is_some() { tool_file } else { tool_file.or_else(|| named("tool_use").map(str::to_owned)) };
    let default = file.or_else(|| Some((folder.join(CONFIG), named("default")?.to_owned())));
    Ok((default.is_some() || tool_use.is_some()).then_some(FolderTemplates { default, tool_use }))
}

/// Reads the text of an optional file.
fn read(path: &Path, limit: u64) -> Result<Option<String>> {
    match files::read_text(path, limit) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { path: path.to_owned(), source }),
    }
}

/// Returns the end token in a folder's `special_tokens_map.json`, where older versions of transformers name it, if there is one.
pub(super) fn mapped_end(folder: &Path) -> Result<Option<String>> {
    let map = object_in(folder, SPECIALS)?.map(Value::from).unwrap_or_default();
    Ok(Some(token_text(&map, "eos_token")).filter(|text| !text.is_empty()))
}

/// Returns the text of a special token, given as a string or as an object with `content`.
pub(super) fn token_text(config: &Value, key: &str) -> String {
    let value = &config[key];
    value.as_str().or_else(|| value["content"].as_str()).unwrap_or_default().to_owned()
}

/// Returns names and texts of the files of a model's folder that a checkpoint holds in a changed form. `ends` are the model's end tokens,
/// the new one first.
pub(super) fn changed_files(wording: &TokenizerOverrides, folder: &Path, ends: &[u32]) -> Result<Vec<(&'static str, String)>> {
    let template = wording.template.iter().map(|(_, source)| (TEMPLATE, source.clone()));
    let mut changed: Vec<(&'static str, String)> = template.collect();
    let tokens = [("eos_token", &wording.eos), ("pad_token", &wording.pad)];
    let tokens: Vec<(&str, Value)> = tokens.into_iter().filter_map(|(key, text)| Some((key, text.as_deref()?.into()))).collect();
    let ids = wording.eos.iter().map(|_| ("eos_token_id", Value::from(ends))).collect();
    for (name, values, made) in [(CONFIG, tokens.clone(), true), (SPECIALS, tokens, false), ("generation_config.json", ids, true)]
    {
        let path = folder.join(name);
        let text = read(&path, LARGEST_CONFIG)?;
        if values.is_empty() || text.is_none() && !made {
            continue;
        }
        let fail = |detail: String| Error::Tokenizer { path: path.clone(), detail };
        let mut whole: Map<String, Value> =
            text.map_or(Ok(Map::new()), |text| json::object(&text)).map_err(|e| fail(e.to_string()))?;
        whole.extend(values.into_iter().map(|(key, value)| (key.to_owned(), value)));
        changed.push((name, serde_json::to_string_pretty(&whole).map_err(|e| fail(e.to_string()))? + "\n"));
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_found_by_name_and_files_replace_those_of_the_settings() {
        let place = tempfile::tempdir().unwrap();
        let found = |settings: &Value| {
            let templates = templates_in(place.path(), settings).unwrap();
            templates.map(|templates| (templates.default.map(|(_, text)| text), templates.tool_use))
        };
        let text = |text: &str| Some(text.to_owned());
        let list = serde_json::json!({"chat_template": [
            {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"},
        ]});
        assert_eq!(found(&Value::Null), None);
        assert_eq!(found(&serde_json::json!({"chat_template": "one"})), Some((text("one"), None)));
        assert_eq!(found(&list), Some((text("d"), text("t"))));
        assert_eq!(found(&serde_json::json!({"chat_template": {"default": "d", "tool_use": "t"}})), Some((text("d"), text("t"))));
        assert_eq!(
            found(&serde_json::json!({"chat_template": [{"name": "tool_use", "template": "t"}]})),
            Some((None, text("t")))
        );
        assert_eq!(found(&serde_json::json!({"chat_template": [{"name": "rag", "template": "r"}]})), None);
        std::fs::write(place.path().join(TEMPLATE), "file").unwrap();
        assert_eq!(found(&list), Some((text("file"), None)));
        std::fs::create_dir(place.path().join("additional_chat_templates")).unwrap();
        std::fs::write(place.path().join(TOOL_TEMPLATE), "tools").unwrap();
        assert_eq!(found(&list), Some((text("file"), text("tools"))));
    }

    #[test]
    fn a_time_is_a_date_or_a_date_with_a_time() {
        let [date, midnight] = ["2024-07-26", "2024-07-26T00:00:00"].map(|text| TokenizerOverrides::read_time(text).unwrap());
        assert_eq!(date, midnight);
        assert!(TokenizerOverrides::read_time("26 Jul 2024").unwrap_err().contains("2024-07-26"));
    }
}
