//! Reads the JSON objects of a model's folder key by key. Errors name the key.

use super::{Error, Result};
use crate::config::{files, json, printable};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

/// Maximum size of a JSON file that describes a model or an adapter, in bytes.
const LARGEST: u64 = 4 << 20;

/// Maximum number of bytes of a value that an error quotes.
const SHOWN: usize = 80;

/// A JSON object that records which of its keys were read.
#[derive(Default)]
pub(super) struct ConfigObject {
    values: Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
}

impl From<Map<String, Value>> for ConfigObject {
    fn from(values: Map<String, Value>) -> Self {
        Self { values, read: RefCell::default() }
    }
}

impl ConfigObject {
    /// Parses a text.
    ///
    /// # Errors
    /// If it is not a JSON object or has a key twice.
    pub(super) fn parse(text: &str) -> std::result::Result<Self, String> {
        json::object(text).map(Self::from).map_err(|e| e.to_string())
    }

    /// Reads a file; returns `None` if it does not exist.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let Some(text) = read_text(path)? else { return Ok(None) };
        Self::parse(&text).map(Some).map_err(|detail| Error::Config { path: path.to_owned(), detail })
    }

    /// Returns the value of a key; null counts as missing.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(key.to_owned());
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// Returns whether a key is present, even if it is null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Returns all keys and their values.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the keys that have not been read, and their values, except nulls.
    pub(super) fn unread(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.all().filter(|(key, value)| !value.is_null() && !self.read.borrow().contains(*key))
    }

    /// Returns the value of a key, if present, converted by `read`; `right` describes valid values for the error.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        right: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> std::result::Result<Option<T>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || format!("{key} is {}; it must be {right}", printable(&value.to_string(), SHOWN));
        read(value).ok_or_else(wrong).map(Some)
    }

    /// Reads a size from 1 to `most`.
    pub(super) fn size(&self, key: &str, most: usize) -> std::result::Result<Option<usize>, String> {
        let right = format!("a whole number from 1 to {most}");
        self.typed(key, &right, |value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=most).contains(n)))
    }

    /// Reads a count from 0 to `most`.
    pub(super) fn count(&self, key: &str, most: usize) -> std::result::Result<Option<usize>, String> {
        let right = format!("a whole number from 0 to {most}");
        self.typed(key, &right, |value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= most))
    }

    /// Reads a list of `count` words, each one of `known`.
    pub(super) fn words<'a>(
        &'a self,
        key: &str,
        known: &[&str],
        count: usize,
    ) -> std::result::Result<Option<Vec<&'a str>>, String> {
        let right = format!("a list of {count} words, each {}", known.join(" or "));
        let word = |value: &'a Value| value.as_str().filter(|word| known.contains(word));
        let words = |value: &'a Value| value.as_array()?.iter().map(word).collect::<Option<Vec<_>>>();
        self.typed(key, &right, |value| words(value).filter(|words| words.len() == count))
    }

    /// Reads a list of `count` numbers, each 0 or 1.
    pub(super) fn bits(&self, key: &str, count: usize) -> std::result::Result<Option<Vec<bool>>, String> {
        let bit = |value: &Value| value.as_u64().filter(|bit| *bit <= 1).map(|bit| bit == 1);
        let bits = |value: &Value| value.as_array()?.iter().map(bit).collect::<Option<Vec<_>>>();
        self.typed(key, &format!("a list of {count} numbers, each 0 or 1"), |value| {
            bits(value).filter(|bits| bits.len() == count)
        })
    }

    /// Reads a list of indices below `count`.
    pub(super) fn indices(&self, key: &str, count: usize) -> std::result::Result<Option<Vec<usize>>, String> {
        let index = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|index| *index < count);
        let right = format!("a list of whole numbers below {count}");
        self.typed(key, &right, |value| value.as_array()?.iter().map(index).collect())
    }

    /// Reads a required size.
    pub(super) fn needed_size(&self, key: &str, most: usize) -> std::result::Result<usize, String> {
        self.size(key, most)?.ok_or_else(|| format!("{key} is missing; it must be a whole number from 1 to {most}"))
    }

    /// Reads a number.
    pub(super) fn number(&self, key: &str) -> std::result::Result<Option<f64>, String> {
        self.typed(key, "a number", |value| value.as_f64().filter(|n| n.is_finite()))
    }

    /// Reads true or false.
    pub(super) fn flag(&self, key: &str) -> std::result::Result<Option<bool>, String> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// Reads a string.
    pub(super) fn text(&self, key: &str) -> std::result::Result<Option<&str>, String> {
        self.typed(key, "a string", Value::as_str)
    }

    /// Reads a nested object.
    pub(super) fn object(&self, key: &str) -> std::result::Result<Option<Self>, String> {
        self.typed(key, "an object", |value| value.as_object().cloned().map(Self::from))
    }

    /// Reads a list of positive numbers.
    pub(super) fn numbers(&self, key: &str, count: usize) -> std::result::Result<Option<Vec<f64>>, String> {
        let number = |value: &Value| value.as_f64().filter(|n| n.is_finite() && *n > 0.0);
        let numbers = |value: &Value| value.as_array()?.iter().map(number).collect::<Option<Vec<_>>>();
        self.typed(key, &format!("a list of {count} numbers, each above 0"), |value| {
            numbers(value).filter(|numbers| numbers.len() == count)
        })
    }

    /// Reads a token id or a list of them.
    pub(super) fn tokens(&self, key: &str) -> std::result::Result<Option<Vec<u32>>, String> {
        let token = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        self.typed(key, "a token id or a list of token ids", |value| match value {
            Value::Array(ids) => ids.iter().map(token).collect(),
            one => token(one).map(|id| vec![id]),
        })
    }
}

/// Reads the text of a JSON file that describes a model or an adapter; returns `None` if it does not exist.
pub(super) fn read_text(path: &Path) -> Result<Option<String>> {
    match files::read_text(path, LARGEST) {
        Ok(text) => Ok(Some(text)),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(Error::Io { path: path.to_owned(), source }),
    }
}
