//! Parses untrusted JSON. Duplicate keys of an object are refused at every level, as in pyarrow and therefore in `datasets`: it is unclear
//! which value was meant, and programs differ in the one that they take.

use super::printable;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::fmt;

/// Maximum length of a key in an error message, in bytes.
const SHOWN: usize = 80;

/// Size of a value.
pub struct JsonSize {
    /// Number of values, including nested ones.
    pub values: u64,
    /// Bytes of text.
    pub text: u64,
}

/// Parses the text of a file. A byte order mark, which some editors write, may precede the value.
///
/// # Errors
/// If it is not JSON, or has a duplicate key.
pub fn value(text: &str) -> serde_json::Result<Value> {
    sized(text.strip_prefix('\u{feff}').unwrap_or(text), u64::MAX).map(|(value, _)| value)
}

/// Parses the text of an object.
///
/// # Errors
/// Those of [`value`], and if the text is another kind of value.
pub fn object(text: &str) -> serde_json::Result<Map<String, Value>> {
    match value(text)? {
        Value::Object(object) => Ok(object),
        _ => Err(de::Error::custom("is not a JSON object")),
    }
}

/// Parses a text, and returns the value with its size.
///
/// # Errors
/// Those of [`value`], and if it has more than `most` values.
pub fn sized(text: &str, most: u64) -> serde_json::Result<(Value, JsonSize)> {
    let taken = JsonSizeVisitor { most, values: Cell::default(), text: Cell::default() };
    let mut json = serde_json::Deserializer::from_str(text);
    let value = (&taken).deserialize(&mut json)?;
    json.end()?;
    Ok((value, JsonSize { values: taken.values.get(), text: taken.text.get() }))
}

/// Builds a value as serde_json does, and counts its size.
struct JsonSizeVisitor {
    most: u64,
    values: Cell<u64>,
    text: Cell<u64>,
}

impl JsonSizeVisitor {
    fn value<E: de::Error>(&self, text: usize) -> std::result::Result<(), E> {
        self.text.set(self.text.get() + text as u64);
        self.values.set(self.values.get() + 1);
        if self.values.get() > self.most {
            return Err(E::custom(format_args!("has more than {} values, the maximum for a row", self.most)));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &JsonSizeVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &JsonSizeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> std::result::Result<Value, E> {
        self.value(0).map(|()| Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> std::result::Result<Value, E> {
        self.value(0).map(|()| value.into())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> std::result::Result<Value, E> {
        self.value(0).map(|()| value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> std::result::Result<Value, E> {
        self.value(0).map(|()| value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> std::result::Result<Value, E> {
        self.value(0).map(|()| value.into())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> std::result::Result<Value, E> {
        self.value(value.len()).map(|()| value.into())
    }

    fn visit_string<E: de::Error>(self, value: String) -> std::result::Result<Value, E> {
        self.value(value.len()).map(|()| value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Value, A::Error> {
        self.value(0)?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        values.shrink_to_fit();
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Value, A::Error> {
        self.value(0)?;
        let mut values = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.text.set(self.text.get() + key.len() as u64);
            match values.entry(key) {
                Entry::Occupied(twice) => {
                    let key = printable(twice.key(), SHOWN);
                    return Err(de::Error::custom(format_args!("has the key \"{key}\" twice in one object")));
                }
                Entry::Vacant(place) => {
                    place.insert(entries.next_value_seed(self)?);
                }
            }
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_comes_twice_is_refused_at_every_level() {
        let says = |text: &str| value(text).unwrap_err().to_string();
        assert!(says("{\"a\": 1, \"a\": 1}").starts_with("has the key \"a\" twice in one object"));
        assert!(says("[{\"x\": {\"k\\u001b\": 1, \"k\\u001b\": 2}}]").starts_with("has the key \"k\\u{1b}\" twice"));
        assert_eq!(value("{\"a\": {\"a\": [1, -2, 0.5, null, true, \"a\"]}}").unwrap()["a"]["a"][1], -2);
        assert_eq!(value("\u{feff}[1]").unwrap()[0], 1);
        assert!(value("\u{feff}\u{feff}1").is_err() && sized("\u{feff}1", 9).is_err());
        assert!(object("[]").unwrap_err().to_string().contains("not a JSON object") && object("{}{}").is_err());
    }

    #[test]
    fn values_are_counted() {
        let (_, size) = sized("{\"ab\": [1, \"cde\"]}", 4).unwrap();
        assert_eq!((size.values, size.text), (4, 5));
        assert!(sized("[1, 2, 3, 4]", 4).is_err_and(|e| e.to_string().contains("more than 4 values")));
    }
}
