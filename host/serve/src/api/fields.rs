//! Parses the fields of a request. Each field is removed when it is read; the first that is left over is rejected by name.

use super::error::{ApiError, Result};
use crate::config::json;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// Maximum number of JSON values in a body.
const MOST_VALUES: u64 = 1 << 20;

/// Fields of a request that have not been read yet.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Name of the object that contains the fields, with a dot; empty for the request itself.
    within: &'static str,
}

impl Fields {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// If the body is not a JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(body).map_err(|_| ApiError::invalid("the body is not UTF-8"))?;
        let read = json::sized(text, MOST_VALUES);
        let (value, _) = read.map_err(|e| ApiError::invalid(format!("the body is not a JSON object: {e}")))?;
        match value {
            Value::Object(map) => Ok(Self { map, within: "" }),
            _ => Err(ApiError::invalid("the body is not a JSON object")),
        }
    }

    /// Creates the fields of a nested object.
    pub(crate) fn from_object(map: Map<String, Value>, within: &'static str) -> Self {
        Self { map, within }
    }

    fn wrong(&self, name: &str, message: impl AsRef<str>) -> ApiError {
        ApiError::field(&format!("{}{name}", self.within), message)
    }

    /// Removes and returns a field; null counts as missing.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Returns a field without removing it; null counts as missing.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Removes and returns a string.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "must be a string")),
        }
    }

    /// Removes and returns a boolean, false by default.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool> {
        self.flag_or(name, false)
    }

    /// Removes and returns a boolean.
    pub(crate) fn flag_or(&mut self, name: &str, default: bool) -> Result<bool> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(self.wrong(name, "must be true or false")),
        }
    }

    /// Removes and returns a number in a range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| range.contains(number));
        let wrong = || self.wrong(name, format!("must be a number from {} to {}", range.start(), range.end()));
        number.map(Some).ok_or_else(wrong)
    }

    /// Removes and returns an integer in a range.
    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        // Some clients write integers as 1.0.
        let whole = value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 2f64.powi(53)).map(|x| x as i64);
        let number = value.as_i64().or(whole).filter(|number| range.contains(number));
        let wrong = || self.wrong(name, format!("must be an integer from {} to {}", range.start(), range.end()));
        number.map(Some).ok_or_else(wrong)
    }

    /// Removes and returns an integer from 0 to `most`.
    pub(crate) fn count(&mut self, name: &str, most: usize) -> Result<Option<usize>> {
        Ok(self.integer(name, 0..=i64::try_from(most).unwrap_or(i64::MAX))?.map(|count| count as usize))
    }

    /// Removes and returns an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(self.wrong(name, "must be an object")),
        }
    }

    /// Removes and returns a string or a list of strings.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Vec<String>> {
        let all = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(all)) => all,
            Some(one) => vec![one],
        };
        let read = all.iter().map(|value| value.as_str().map(str::to_owned)).collect::<Option<_>>();
        read.ok_or_else(|| self.wrong(name, "must be a string or a list of strings"))
    }

    /// Removes and returns a list of token ids.
    pub(crate) fn ids(&mut self, name: &str) -> Result<Option<Vec<u32>>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        ids(&value).map(Some).ok_or_else(|| self.wrong(name, "must be a list of token ids"))
    }

    /// Sets a field if it is missing.
    pub(crate) fn set_default(&mut self, name: &str, value: Value) {
        self.map.entry(name).or_insert(value);
    }

    /// Removes fields that have no effect.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.map.shift_remove(*name);
        }
    }

    /// Removes a field that is supported with neutral values only.
    ///
    /// # Errors
    /// If the field has another value.
    pub(crate) fn only(&mut self, name: &str, neutral: &[Value]) -> Result<()> {
        let same = |value: &Value, neutral: &Value| match (value.as_f64(), neutral.as_f64()) {
            (Some(a), Some(b)) => a == b,
            _ => value == neutral,
        };
        match self.take(name) {
            Some(value) if !neutral.iter().any(|neutral| same(&value, neutral)) => {
                let shown = neutral.iter().map(Value::to_string).collect::<Vec<_>>().join(" or ");
                Err(self.wrong(name, format!("not supported; leave it out, or set it to {shown}")))
            }
            _ => Ok(()),
        }
    }

    /// Rejects fields that are left over.
    ///
    /// # Errors
    /// Names the first of them.
    pub(crate) fn finish(self) -> Result<()> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            Some((name, _)) => Err(self.wrong(name, "unknown or not supported; leave it out")),
            None => Ok(()),
        }
    }
}

/// Parses a list of token ids.
pub(crate) fn ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}
