//! A limit that can be turned off: a number, or `none`. TOML has no null, and an omitted key has its default.

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;

const NONE: &str = "none";

pub(super) fn serialize<S: Serializer>(limit: &Option<usize>, serializer: S) -> Result<S::Ok, S::Error> {
    match limit {
        Some(limit) => serializer.serialize_u64(*limit as u64),
        None => serializer.serialize_str(NONE),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    deserializer.deserialize_any(LimitVisitor)
}

struct LimitVisitor;

impl Visitor<'_> for LimitVisitor {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a positive number or `none`")
    }

    fn visit_u64<E: Error>(self, limit: u64) -> Result<Self::Value, E> {
        usize::try_from(limit).map(Some).map_err(|_| E::invalid_value(Unexpected::Unsigned(limit), &self))
    }

    fn visit_i64<E: Error>(self, limit: i64) -> Result<Self::Value, E> {
        let positive = u64::try_from(limit).map_err(|_| E::invalid_value(Unexpected::Signed(limit), &self));
        positive.and_then(|limit| self.visit_u64(limit))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        if text.eq_ignore_ascii_case(NONE) { Ok(None) } else { Err(E::invalid_value(Unexpected::Str(text), &self)) }
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use crate::{KeyAssignment, Overrides, RunConfig, read};

    #[test]
    fn a_limit_is_switched_off_by_file_flag_and_set_and_stays_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let length = |text: &str, flags: &[&str], sets: &[&str]| {
            std::fs::write(file.path(), text).unwrap();
            let flags = flags.iter().map(|text| ("max_length".to_owned(), (*text).to_owned())).collect();
            let sets = sets.iter().map(|text| KeyAssignment::parse(&format!("max_length={text}")).unwrap()).collect();
            read([file.path()], &Overrides { flags, sets, ..Overrides::default() })
                .map(|config| config.max_length)
                .map_err(|e| e.to_string())
        };
        assert_eq!(length("", &[], &[]), Ok(Some(1024)));
        assert_eq!(length("max_length = 7", &[], &[]), Ok(Some(7)));
        assert_eq!(length("max_length = 'none'", &[], &[]), Ok(None));
        assert_eq!(length("max_length = 7", &["none"], &[]), Ok(None));
        assert_eq!(length("", &["None"], &["9"]), Ok(Some(9)));
        assert_eq!(length("", &["9"], &["none"]), Ok(None));
        for wrong in ["some", "-1", "1.5", "true"] {
            let refused = length("", &[wrong], &[]).unwrap_err();
            assert!(refused.contains("max_length"), "{refused}");
        }
        assert!(length("max_length = 'long'", &[], &[]).unwrap_err().contains("`none`"));
        let negative = "integer `-1`, expected a positive number or `none`";
        for refused in [length("", &["-1"], &[]), length("max_length = -1", &[], &[]), length("", &[], &["-1"])] {
            assert!(refused.as_ref().unwrap_err().contains(negative), "{refused:?}");
        }
        let written = toml::to_string(&RunConfig { max_length: None, ..RunConfig::default() }).unwrap();
        assert_eq!(length(&written, &[], &[]), Ok(None));
    }
}
