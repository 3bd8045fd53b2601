//! Limits what a schema may be before it is used: the validator follows `$ref`s, and so do our error messages.

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Most settings of a plugin.
const MOST_PROPERTIES: usize = 200;

/// Deepest nesting of values, with references followed.
const DEEPEST: usize = 32;

/// Most values in total, with references followed at each use.
const MOST_VALUES: usize = 20_000;

/// Longest regular expression for strings, in bytes.
const LONGEST_PATTERN: usize = 1024;

/// Keywords whose schemas apply to the same value, so a cycle of them never ends. A cycle through others, such as `items`, ends
/// where the value does.
const IN_PLACE: [&str; 9] = ["$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$defs"];

/// Keywords that hold values, not schemas.
const DATA: [&str; 4] = ["default", "examples", "const", "enum"];

/// Keywords whose schemas are elsewhere, or are known only when a value is checked.
const ELSEWHERE: [&str; 5] = ["$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor", "$id"];

/// Rejects a schema that is infinite, or takes long to follow with its references. The error is the end of a sentence.
pub(in crate::plugin) fn check(schema: &Value) -> Result<(), String> {
    let properties = schema.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    if properties > MOST_PROPERTIES {
        return Err(format!("has {properties} properties; the limit is {MOST_PROPERTIES}"));
    }
    let mut walk = Walk { schema, values: 0, references: BTreeMap::new(), parts: 0 };
    walk.measure(schema, 0).map(drop)
}

/// Returns the target of a `$ref` within the schema.
pub(in crate::plugin) fn target<'a>(schema: &'a Value, reference: &str) -> Option<&'a Value> {
    schema.pointer(&percent_decode_str(reference.strip_prefix('#')?).decode_utf8().ok()?)
}

/// What is known about the target of a reference.
#[derive(Clone, Copy)]
enum Known {
    /// The walk is inside it, and entered it below this many keywords for parts of a value.
    Open(usize),
    /// Values and levels in it.
    Measured(usize, usize),
}

struct Walk<'a> {
    schema: &'a Value,
    /// Values visited so far.
    values: usize,
    references: BTreeMap<&'a str, Known>,
    /// Keywords for parts of a value above the current place.
    parts: usize,
}

impl<'a> Walk<'a> {
    /// Walks a value. Returns the number of values and levels in it, with references followed.
    fn measure(&mut self, value: &'a Value, depth: usize) -> Result<(usize, usize), String> {
        if depth > DEEPEST {
            return Err(format!("has more than {DEEPEST} levels"));
        }
        self.values += 1;
        let (mut size, mut levels) = (1, 0);
        let mut add = |(more, below): (usize, usize)| {
            size += more;
            levels = levels.max(below + 1);
        };
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.measure(item, depth + 1).map(&mut add))?,
            Value::Object(members) => {
                for (key, member) in members {
                    add(self.member(key, member, depth)?);
                }
            }
            _ => {}
        }
        if size > MOST_VALUES || self.values > MOST_VALUES {
            return Err(format!("has more than {MOST_VALUES} values with its references followed"));
        }
        if depth + levels > DEEPEST {
            return Err(format!("has more than {DEEPEST} levels with its references followed"));
        }
        Ok((size, levels))
    }

    /// Walks a keyword of a schema, or a property with that name.
    fn member(&mut self, key: &'a str, member: &'a Value, depth: usize) -> Result<(usize, usize), String> {
        let names_the_whole = key == "$id" && depth == 0;
        if ELSEWHERE.contains(&key) && member.is_string() && !names_the_whole {
            return Err(format!("has {key}; a reference must be a $ref into the same schema (#/$defs/NAME)"));
        }
        if DATA.contains(&key) {
            return Ok((count(member), 0));
        }
        let pattern = if key == "pattern" { member.as_str() } else { None };
        let longest = pattern.map_or(0, str::len).max(if key == "patternProperties" { longest_key(member) } else { 0 });
        if longest > LONGEST_PATTERN {
            return Err(format!("has a pattern of {longest} bytes; the limit is {LONGEST_PATTERN}"));
        }
        let part = usize::from(!IN_PLACE.contains(&key));
        self.parts += part;
        let size = match (key, member) {
            ("$ref", Value::String(to)) => self.follow(to, depth + 1),
            _ => self.measure(member, depth + 1),
        };
        self.parts -= part;
        size
    }

    fn follow(&mut self, to: &'a str, depth: usize) -> Result<(usize, usize), String> {
        match self.references.get(to) {
            Some(Known::Measured(values, levels)) => return Ok((*values, *levels)),
            Some(Known::Open(parts)) if *parts < self.parts => return Ok((1, 0)),
            Some(Known::Open(_)) => return Err(format!("refers to itself through $ref {to:?}")),
            None => {}
        }
        let target = target(self.schema, to);
        let target = target.ok_or_else(|| format!("has a $ref to {to:?}, which is not in the schema (#/$defs/NAME)"))?;
        self.references.insert(to, Known::Open(self.parts));
        let (values, levels) = self.measure(target, depth)?;
        self.references.insert(to, Known::Measured(values, levels));
        Ok((values, levels))
    }
}

/// Returns the number of values in a value, including itself.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum(),
        _ => 0,
    }
}

fn longest_key(value: &Value) -> usize {
    value.as_object().map_or(0, |members| members.keys().map(String::len).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_without_an_end_are_refused() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"properties": {"a": {"$ref": "#/properties/a"}}}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "properties": {"a": {"$ref": "#/$defs/a"}}}),
            json!({"properties": {"a": {"not": {"$ref": "#/properties/b"}}, "b": {"oneOf": [{"$ref": "#/properties/a"}]}}}),
        ] {
            assert!(check(&schema).unwrap_err().contains("refers to itself"), "{schema}");
        }
        for away in ["https://example.org/schema", "other.json", "#anchor", "#/$defs/none"] {
            assert!(check(&json!({"properties": {"a": {"$ref": away}}})).unwrap_err().contains("not in the schema"), "{away}");
        }
        assert!(check(&json!({"$dynamicRef": "#x"})).is_err());
    }

    #[test]
    fn schemas_that_multiply_are_refused_and_quickly() {
        // Each definition uses the previous one twice: 2^40 values, 40 levels.
        let mut definitions = Map::from_iter([("d0".to_owned(), json!({"type": "integer"}))]);
        for i in 1..40 {
            let before = json!({"$ref": format!("#/$defs/d{}", i - 1)});
            definitions.insert(format!("d{i}"), json!({"anyOf": [before, before]}));
        }
        assert!(check(&json!({"properties": {"a": {"$ref": "#/$defs/d39"}}, "$defs": definitions})).is_err());
        let mut deep = json!({});
        for _ in 0..60 {
            deep = json!({"items": deep});
        }
        assert!(check(&deep).unwrap_err().contains("levels"));
        let many: Map<String, Value> = (0..201).map(|i| (i.to_string(), json!({}))).collect();
        assert!(check(&json!({"properties": many})).unwrap_err().contains("201 properties"));
        assert!(check(&json!({"properties": {"a": {"pattern": "a".repeat(2000)}}})).unwrap_err().contains("2000 bytes"));
    }

    #[test]
    fn a_definition_may_be_used_again_and_again() {
        let unit = json!({"$ref": "#/$defs/Unit"});
        let schema =
            json!({"properties": {"a": unit, "b": {"anyOf": [unit, {"type": "null"}]}}, "$defs": {"Unit": {"enum": ["x"]}}});
        assert_eq!(check(&schema), Ok(()));
    }

    #[test]
    fn a_schema_of_nested_values_may_have_itself_inside() {
        let rule = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/Rule"}}]});
        assert_eq!(check(&json!({"properties": {"a": {"$ref": "#/$defs/Rule"}}, "$defs": {"Rule": rule}})), Ok(()));
        assert_eq!(check(&json!({"properties": {"a": {"allOf": [{"$ref": "#"}]}}})), Ok(()));
        // A default that is a schema is data, and names need not be letters only.
        assert_eq!(check(&json!({"properties": {"a": {"default": {"$ref": "#/nowhere", "$id": "x"}}}})), Ok(()));
        assert_eq!(check(&json!({"properties": {"a": {"$ref": "#/$defs/P%3CQ%3E"}}, "$defs": {"P<Q>": {}}})), Ok(()));
    }
}
