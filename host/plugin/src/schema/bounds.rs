//! Bounds a schema before it is used: the validator follows `$ref`s, and so do our error messages.

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Maximum number of settings of a plugin.
const MOST_PROPERTIES: usize = 200;

/// Maximum nesting of values, with references followed.
const DEEPEST: usize = 32;

/// Maximum number of values in total, with references followed at each use.
const MOST_VALUES: usize = 20_000;

/// Maximum length of a regular expression for strings, in bytes.
const LONGEST_PATTERN: usize = 1024;

/// Maximum number of regular expressions, with references followed.
const MOST_PATTERNS: usize = 64;

/// Keywords whose schemas apply to the same value, so a cycle of them never ends. A cycle through other keywords, such as `items`, ends
/// where the value does.
pub(super) const IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];

/// Keywords like [`IN_PLACE`] whose members are names, each with a schema.
pub(super) const NAMED_IN_PLACE: [&str; 2] = ["dependentSchemas", "dependencies"];

/// Keywords whose members are names, each with a schema.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Keywords that hold values, not schemas.
pub(super) const DATA: [&str; 4] = ["default", "examples", "const", "enum"];

/// Keywords that refer to other documents, or whose target is known only when a value is checked.
const ELSEWHERE: [&str; 5] = ["$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor", "$id"];

/// Rejects a schema that is infinite or expensive to follow with its references. The error is the end of a sentence.
pub(crate) fn check(schema: &Value) -> Result<(), String> {
    let properties = schema.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    if properties > MOST_PROPERTIES {
        return Err(format!("has {properties} properties; the limit is {MOST_PROPERTIES}"));
    }
    let mut walk = SchemaWalk { schema, values: 0, references: BTreeMap::new() };
    let patterns = walk.measure(schema, 0)?.patterns;
    if patterns > MOST_PATTERNS {
        return Err(format!("has {patterns} patterns with its references followed; the limit is {MOST_PATTERNS}"));
    }
    let mut circles = ReferenceCycles { schema, looked_at: BTreeMap::new() };
    walk.references.keys().try_for_each(|to| circles.look(to, 0))
}

/// Returns the target of a `$ref` within the schema.
pub(crate) fn target<'a>(schema: &'a Value, reference: &str) -> Option<&'a Value> {
    schema.pointer(&percent_decode_str(reference.strip_prefix('#')?).decode_utf8().ok()?)
}

/// Size of a part of a schema, with references followed.
#[derive(Clone, Copy, Default)]
struct SchemaSize {
    values: usize,
    levels: usize,
    patterns: usize,
}

impl SchemaSize {
    fn add(&mut self, inner: Self) {
        self.values += inner.values;
        self.levels = self.levels.max(inner.levels + 1);
        self.patterns += inner.patterns;
    }
}

struct SchemaWalk<'a> {
    schema: &'a Value,
    /// Values visited so far.
    values: usize,
    /// Targets of references with their sizes; `None` for a target that the walk is currently inside.
    references: BTreeMap<&'a str, Option<SchemaSize>>,
}

impl<'a> SchemaWalk<'a> {
    /// Walks a schema, a list of them, or any other value.
    fn measure(&mut self, value: &'a Value, depth: usize) -> Result<SchemaSize, String> {
        self.inside(value, depth, Self::member)
    }

    /// Walks names that each have a schema.
    fn named(&mut self, value: &'a Value, depth: usize) -> Result<SchemaSize, String> {
        self.inside(value, depth, |walk, _, member, depth| walk.measure(member, depth + 1))
    }

    fn inside(
        &mut self,
        value: &'a Value,
        depth: usize,
        member: impl Fn(&mut Self, &'a str, &'a Value, usize) -> Result<SchemaSize, String>,
    ) -> Result<SchemaSize, String> {
        if depth > DEEPEST {
            return Err(format!("has more than {DEEPEST} levels"));
        }
        self.values += 1;
        let mut size = SchemaSize { values: 1, ..SchemaSize::default() };
        match value {
            Value::Array(items) => {
                for item in items {
                    size.add(self.measure(item, depth + 1)?);
                }
            }
            Value::Object(members) => {
                for (key, inner) in members {
                    size.add(member(self, key, inner, depth)?);
                }
            }
            _ => {}
        }
        if size.values > MOST_VALUES || self.values > MOST_VALUES {
            return Err(format!("has more than {MOST_VALUES} values with its references followed"));
        }
        if depth + size.levels > DEEPEST {
            return Err(format!("has more than {DEEPEST} levels with its references followed"));
        }
        Ok(size)
    }

    /// Walks a keyword of a schema.
    fn member(&mut self, key: &'a str, member: &'a Value, depth: usize) -> Result<SchemaSize, String> {
        let names_the_whole = key == "$id" && depth == 0;
        if ELSEWHERE.contains(&key) && member.is_string() && !names_the_whole {
            return Err(format!("has {key}; a reference must be a $ref into the same schema (#/$defs/NAME)"));
        }
        if DATA.contains(&key) {
            return Ok(SchemaSize { values: count(member), ..SchemaSize::default() });
        }
        let (pattern, patterns) = match (key, member) {
            ("pattern", Value::String(pattern)) => (pattern.len(), 1),
            ("patternProperties", Value::Object(named)) => (longest_key(named), named.len()),
            _ => (0, 0),
        };
        if pattern > LONGEST_PATTERN {
            return Err(format!("has a pattern of {pattern} bytes; the limit is {LONGEST_PATTERN}"));
        }
        let mut size = match (key, member) {
            ("$ref", Value::String(to)) => self.follow(to, depth + 1),
            (key, _) if NAMED.contains(&key) || NAMED_IN_PLACE.contains(&key) => self.named(member, depth + 1),
            _ => self.measure(member, depth + 1),
        }?;
        size.patterns += patterns;
        Ok(size)
    }

    fn follow(&mut self, to: &'a str, depth: usize) -> Result<SchemaSize, String> {
        match self.references.get(to) {
            Some(Some(size)) => return Ok(*size),
            // `ReferenceCycles` decides whether the recursion ends.
            Some(None) => return Ok(SchemaSize { values: 1, ..SchemaSize::default() }),
            None => {}
        }
        let target = target(self.schema, to);
        let target = target.ok_or_else(|| format!("has a $ref to {to:?}, which is not in the schema (#/$defs/NAME)"))?;
        self.references.insert(to, None);
        let size = self.measure(target, depth)?;
        self.references.insert(to, Some(size));
        Ok(size)
    }
}

/// Finds cycles of references that apply to the same value at every step.
struct ReferenceCycles<'a> {
    schema: &'a Value,
    /// Targets of references, and whether everything inside them has been checked.
    looked_at: BTreeMap<&'a str, bool>,
}

impl<'a> ReferenceCycles<'a> {
    fn look(&mut self, to: &'a str, depth: usize) -> Result<(), String> {
        match self.looked_at.get(to) {
            Some(true) => return Ok(()),
            Some(false) => return Err(format!("refers to itself through $ref {to:?}")),
            None if depth > DEEPEST => return Err(format!("has more than {DEEPEST} references that lead to each other")),
            None => {}
        }
        self.looked_at.insert(to, false);
        let mut next = Vec::new();
        target(self.schema, to).into_iter().for_each(|target| in_place(target, &mut next));
        next.into_iter().try_for_each(|to| self.look(to, depth + 1))?;
        self.looked_at.insert(to, true);
        Ok(())
    }
}

/// Collects the references inside a schema, or a list of them, that apply to the schema's own value.
fn in_place<'a>(schema: &'a Value, into: &mut Vec<&'a str>) {
    match schema {
        Value::Array(schemas) => schemas.iter().for_each(|schema| in_place(schema, into)),
        Value::Object(members) => {
            for (key, member) in members {
                match (key.as_str(), member) {
                    ("$ref", Value::String(to)) => into.push(to),
                    (key, _) if IN_PLACE.contains(&key) => in_place(member, into),
                    (key, Value::Object(named)) if NAMED_IN_PLACE.contains(&key) => {
                        named.values().for_each(|schema| in_place(schema, into));
                    }
                    _ => {}
                }
            }
        }
        _ => {}
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

fn longest_key(members: &Map<String, Value>) -> usize {
    members.keys().map(String::len).max().unwrap_or(0)
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
            json!({"properties": {"a": {"dependentSchemas": {"x": {"$ref": "#/properties/a"}}}, "b": {"$ref": "#/properties/a"}}}),
            // Settings that are called like keywords for values.
            json!({"properties": {"default": {"$ref": "#/properties/default"}}}),
            json!({"$defs": {"enum": {"$ref": "#/$defs/enum"}}, "properties": {"a": {"$ref": "#/$defs/enum"}}}),
            // From X to P and back with a step into the value, and then without.
            json!({"properties": {"a": {"$ref": "#/$defs/X"}}, "$defs": {"P": {"$ref": "#/$defs/X"},
                "X": {"items": {"$ref": "#/$defs/P"}, "allOf": [{"$ref": "#/$defs/P"}]}}}),
        ] {
            assert!(check(&schema).unwrap_err().contains("refers to itself"), "{schema}");
        }
        for away in ["https://example.org/schema", "other.json", "#anchor", "#/$defs/none"] {
            assert!(check(&json!({"properties": {"a": {"$ref": away}}})).unwrap_err().contains("not in the schema"), "{away}");
        }
        assert!(check(&json!({"$dynamicRef": "#x"})).is_err());
        assert!(check(&json!({"properties": {"default": {"$ref": "other.json"}}})).is_err());
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
        let patterned = |n: usize| (0..n).map(|i| (i.to_string(), json!({"pattern": i.to_string()}))).collect::<Map<_, _>>();
        assert!(check(&json!({"properties": patterned(65)})).unwrap_err().contains("65 patterns"));
        assert!(check(&json!({"patternProperties": patterned(33)})).unwrap_err().contains("66 patterns"));
        assert_eq!(check(&json!({"properties": patterned(64)})), Ok(()));
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
