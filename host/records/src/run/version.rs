//! The identity of a plugin version: its bytes and its settings. Everything that writes, compares or shows versions uses [`PluginVersion`].

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fmt;

/// Separator between the hash and the digest of the settings.
const JOINT: char = '+';

/// Number of digits of a settings digest.
const DIGITS: usize = 6;

/// A version of a plugin or of a reward model: the hash of its bytes and a digest of its settings, as text `HASH+DIGEST`.
///
/// Models have no settings, and runs of older versions did not record digests.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PluginVersion {
    hash: String,
    settings: Option<String>,
}

impl PluginVersion {
    /// Returns the version of a plugin with these settings.
    pub fn new(hash: &str, settings: &Map<String, Value>) -> Self {
        Self { hash: hash.to_owned(), settings: Some(digest(settings)) }
    }

    /// Returns the version of something without settings, or whose settings are not known.
    pub fn from_hash(hash: &str) -> Self {
        Self { hash: hash.to_owned(), settings: None }
    }

    /// Parses a version as written, with the full hash or its first digits.
    pub fn parse(text: &str) -> Self {
        match text.split_once(JOINT) {
            Some((hash, settings)) => Self { hash: hash.to_owned(), settings: Some(settings.to_owned()) },
            None => Self::from_hash(text),
        }
    }

    /// Returns the version with this digest of its settings.
    pub(super) fn with_digest(self, digest: Option<&str>) -> Self {
        Self { settings: digest.map(str::to_owned), ..self }
    }

    /// Returns the hash of the bytes, or its first digits.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the digest of the settings, if there is one.
    pub fn settings(&self) -> Option<&str> {
        self.settings.as_deref()
    }

    /// Returns whether the version is unknown.
    pub fn is_unknown(&self) -> bool {
        self.hash.is_empty()
    }

    /// Returns whether the version consists of hexadecimal digits, like all that a run writes.
    pub fn is_hexadecimal(&self) -> bool {
        let digits = self.hash.bytes().chain(self.settings.iter().flat_map(|settings| settings.bytes()));
        digits.into_iter().all(|byte| byte.is_ascii_hexdigit())
    }

    /// Returns whether two versions may be identical. One of them may have only the first digits of the hash, or no settings.
    pub fn is_same(&self, other: &Self) -> bool {
        let begins = self.hash.starts_with(&other.hash) || other.hash.starts_with(&self.hash);
        let settings = self.settings.as_ref().zip(other.settings.as_ref()).is_none_or(|(own, other)| own == other);
        begins && self.is_unknown() == other.is_unknown() && settings
    }

    /// Returns whether the version matches a prefix given by a user: the first digits of the hash, those of the digest after a `+`, or
    /// both.
    pub fn matches_prefix(&self, given: &str) -> bool {
        let (hash, settings) = given.split_once(JOINT).unwrap_or((given, ""));
        self.hash.starts_with(hash) && self.settings.as_deref().unwrap_or_default().starts_with(settings)
    }

    /// Returns the version with the first digits of its hash, as in rows of metrics and wherever it is shown.
    pub fn short(&self) -> String {
        Self { hash: short_hash(&self.hash).to_owned(), settings: self.settings.clone() }.to_string()
    }
}

impl fmt::Display for PluginVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hash)?;
        self.settings.as_ref().map_or(Ok(()), |settings| write!(f, "{JOINT}{settings}"))
    }
}

impl Serialize for PluginVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PluginVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::parse(&text))
    }
}

/// Returns the first digits of a hash, as shown.
pub fn short_hash(hash: &str) -> &str {
    hash.char_indices().nth(12).map_or(hash, |(end, _)| &hash[..end])
}

/// Returns the digest of settings, which is identical for equivalent settings.
fn digest(settings: &Map<String, Value>) -> String {
    let mut hasher = Sha256::new();
    let mut add = |text: &str| hasher.update(text.as_bytes());
    write_object(settings, &mut add);
    let hex: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..DIGITS].to_owned()
}

/// Writes a value as JSON whose keys are sorted and whose numbers don't depend on how they were spelled.
fn write_value(value: &Value, add: &mut impl FnMut(&str)) {
    match value {
        Value::Number(number) => match number.as_f64() {
            // Larger integers are written as they are.
            Some(v) if v.fract() != 0.0 || v.abs() < (1u64 << 53) as f64 => add(&v.to_string()),
            _ => add(&number.to_string()),
        },
        Value::Array(items) => {
            add("[");
            for item in items {
                write_value(item, add);
                add(",");
            }
            add("]");
        }
        Value::Object(entries) => write_object(entries, add),
        other => add(&other.to_string()),
    }
}

fn write_object(entries: &Map<String, Value>, add: &mut impl FnMut(&str)) {
    let mut keys: Vec<&String> = entries.keys().collect();
    keys.sort();
    add("{");
    for key in keys {
        add(&Value::from(key.as_str()).to_string());
        add(":");
        write_value(&entries[key], add);
        add(",");
    }
    add("}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn version(settings: &Value) -> PluginVersion {
        PluginVersion::new("0123456789abcdef", settings.as_object().unwrap())
    }

    #[test]
    fn settings_make_a_version_of_the_same_bytes_however_they_are_spelled() {
        let one = version(&json!({"target": 20, "deep": {"a": [1, 2.5], "b": null}}));
        let same = version(&json!({"deep": {"b": null, "a": [1.0, 2.5]}, "target": 20.0}));
        assert_eq!(one, same);
        let others = [json!({"target": 3, "deep": {"a": [1, 2.5], "b": null}}), json!({}), json!({"target": "20"})];
        assert!(others.iter().all(|other| version(other) != one && !version(other).is_same(&one)));
        // Numbers that a float can't distinguish.
        assert_ne!(version(&json!({"n": 9_007_199_254_740_993u64})), version(&json!({"n": 9_007_199_254_740_992u64})));
        assert_eq!(one.short(), format!("0123456789ab+{}", one.settings().unwrap()));
        assert_eq!(one.settings().unwrap().len(), DIGITS);
    }

    #[test]
    fn what_is_written_is_read_and_older_runs_have_hashes_alone() {
        let one = version(&json!({"target": 20}));
        let line = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<PluginVersion>(&line).unwrap(), one);
        assert!(one.is_same(&PluginVersion::parse(&one.short())));
        let older: PluginVersion = serde_json::from_str("\"0123456789ab\"").unwrap();
        assert_eq!((older.hash(), older.settings(), older.to_string().as_str()), ("0123456789ab", None, "0123456789ab"));
        assert!(older.is_same(&one) && !older.is_same(&PluginVersion::parse("99")));
        assert!(!PluginVersion::default().is_same(&one) && PluginVersion::default().is_same(&PluginVersion::default()));
    }

    #[test]
    fn people_name_versions_by_their_first_digits() {
        let one = PluginVersion::parse("0123456789abcdef+a1b2c3");
        assert!(["", "01", "0123456789ab+a1b2c3", "0123+a", "+a1"].iter().all(|given| one.matches_prefix(given)));
        assert!(["1", "0123+b", "+b"].iter().all(|given| !one.matches_prefix(given)));
    }
}
