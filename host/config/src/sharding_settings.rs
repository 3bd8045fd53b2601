//! Settings of DeepSpeed and FSDP, and functions to parse them.

use super::json;
use super::spelling::coerce_value;
use super::values::{from_json, switched};
use super::{did_you_mean, files, printable, printable_path};
use std::path::Path;
use toml::{Table, Value};

/// Maximum size of a file of settings, in bytes.
const LARGEST: u64 = 1 << 20;

/// Maximum length of untrusted text in an error message, in bytes.
pub(super) const LONGEST_SHOWN: usize = 256;

/// Reason why a model can't be divided in other ways.
pub(super) const DIVIDED: &str = "there is no tensor or context parallelism; --zero-stage divides a model among the processes";

/// Reason why nothing is offloaded.
pub(super) const NOT_OFFLOADED: &str = "nothing is offloaded; leave it out: zero_stage 3 divides everything among the processes";

/// A key's value that is repeated by an option's setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RepeatedKey {
    /// Name of the setting in the option.
    pub setting: String,
    /// The key.
    pub key: &'static str,
    /// The value of both.
    pub value: Value,
}

/// The settings of an option about sharding.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ShardingSettings {
    /// Whether FSDP is on, if the option says so.
    pub is_on: Option<bool>,
    /// The stage of ZeRO, if the option sets it.
    pub stage: Option<u8>,
    /// Batch size of an update over all processes.
    pub train_batch_size: Option<i64>,
    /// Settings that repeat keys.
    pub repeated: Vec<RepeatedKey>,
    /// Settings that have no effect.
    pub unused: Vec<String>,
}

impl ShardingSettings {
    /// Adds a setting that repeats a key.
    ///
    /// # Errors
    /// If the key can't have this value.
    pub(super) fn repeats(&mut self, setting: &str, key: &'static str, value: &Value) -> Result<(), String> {
        if is_auto(value) {
            return Ok(());
        }
        let value = coerce_value(key, value.clone()).map_err(|detail| format!("{setting} is {}: {detail}", shown(value)))?;
        self.repeated.push(RepeatedKey { setting: setting.to_owned(), key, value });
        Ok(())
    }
}

/// Returns whether a value is left to the trainer.
pub(super) fn is_auto(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("auto"))
}

/// Returns whether a switch is on; `None` if the value is not a switch.
pub(super) fn is_on(value: &Value) -> Option<bool> {
    value.as_bool().or_else(|| switched(&text(value)))
}

/// Returns a value as text, without quotes.
pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Formats an untrusted value for an error message.
pub(super) fn shown(value: &Value) -> String {
    printable(&value.to_string(), LONGEST_SHOWN)
}

/// Returns the error about an unknown setting.
pub(super) fn unknown<'a>(setting: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = did_you_mean(setting.rsplit('.').next().unwrap_or(setting), known);
    let near = if near.is_empty() { "; leave it out if it only concerns speed or memory" } else { &near };
    format!("has {}, which is not known here{near}", printable(setting, LONGEST_SHOWN))
}

/// Parses an option's settings with `parse`.
///
/// # Errors
/// If something is wrong; names the file, if there is one.
pub(super) fn read(
    value: &Value,
    parse: impl FnOnce(&Table) -> Result<ShardingSettings, String>,
) -> Result<ShardingSettings, String> {
    parse(&settings(value)?).map_err(|detail| match value {
        Value::String(path) => format!("{}: {detail}", printable_path(Path::new(path))),
        _ => detail,
    })
}

/// Returns an option's settings: the table itself, or that of the JSON file that it names.
///
/// # Errors
/// If the value or its file can't be used; names the file.
fn settings(value: &Value) -> Result<Table, String> {
    let path = match value {
        Value::Table(settings) => return Ok(settings.clone()),
        Value::String(path) => Path::new(path),
        other => return Err(format!("is {}; it must be the path of a JSON file, or its settings as a table", shown(other))),
    };
    let invalid = |detail: String| format!("{}: {detail}", printable_path(path));
    let read = files::read_text(path, LARGEST).map_err(|e| invalid(format!("it can't be read: {e}")))?;
    let object = json::object(&read).map_err(|e| invalid(format!("it must be a JSON object: {e}")))?;
    match from_json(serde_json::Value::Object(object)) {
        Some(Value::Table(settings)) => Ok(settings),
        _ => Err(invalid("it must be a JSON object".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn settings_are_a_table_or_a_json_file_of_bounded_size() {
        let error = |value: &str| settings(&Value::String(value.to_owned())).unwrap_err();
        assert!(error("none/x.json").starts_with("none/x.json: it can't be read: "));
        for (text, words) in [
            ("{\"a\": 1, }", "line 1 column 10"),
            ("[]", "not a JSON object"),
            ("{\"a\": 1, \"a\": 2}", "twice in one object"),
            ("a: 1", "line 1"),
        ] {
            let json = file(text);
            let path = json.path().to_str().unwrap();
            let said = error(path);
            assert!(said.starts_with(&format!("{path}: it must be a JSON object: ")) && said.contains(words), "{said}");
        }
        let large = file(&" ".repeat(LARGEST as usize + 1));
        assert!(error(large.path().to_str().unwrap()).contains("larger than the limit of 1 MiB"));
        assert!(error(std::env::temp_dir().to_str().unwrap()).contains("not a regular file"));
        assert!(settings(&Value::Integer(3)).unwrap_err().starts_with("is 3; it must be the path"));
    }
}
