//! Bounds the cost of validating a configuration before validating it: how often the validator visits a schema, and how deeply its calls
//! nest.
//!
//! Inside a part of the value, a reference may lead back to an enclosing schema, so a small schema and a small value can take 2^100 visits.

use super::bounds::{DATA, IN_PLACE, NAMED_IN_PLACE, target};
use serde_json::Value;

/// Maximum number of visits of schemas for one configuration.
const MOST_VISITS: usize = 200_000;

/// Maximum nesting of these visits.
const DEEPEST: usize = 128;

/// Rejects a configuration whose validation takes too long or too much stack. The schema has passed [`super::check`]. The error is the end
/// of a sentence.
pub(super) fn check(schema: &Value, configuration: &Value) -> Result<(), String> {
    ValidationBudget { schema, left: MOST_VISITS }.visit(schema, configuration, 0)
}

struct ValidationBudget<'a> {
    schema: &'a Value,
    left: usize,
}

impl ValidationBudget<'_> {
    fn take(&mut self, visits: usize) -> Result<(), String> {
        self.left = self
            .left
            .checked_sub(visits)
            .ok_or_else(|| format!("takes more than {MOST_VISITS} steps to check this configuration against"))?;
        Ok(())
    }

    /// Counts the visits of a schema, and of the schemas inside it, for a value.
    fn visit(&mut self, schema: &Value, value: &Value, depth: usize) -> Result<(), String> {
        if depth > DEEPEST {
            return Err(format!("applies more than {DEEPEST} levels of schemas to this configuration"));
        }
        self.take(1)?;
        let Value::Object(members) = schema else { return Ok(()) };
        // These keywords evaluate each schema of the same value for each of its parts.
        let asks = members.contains_key("unevaluatedProperties") || members.contains_key("unevaluatedItems");
        let times = 1 + if asks { parts(value).count() } else { 0 };
        for (key, member) in members {
            match (key.as_str(), member) {
                ("$ref", Value::String(to)) => {
                    let Some(target) = target(self.schema, to) else { continue };
                    (0..times).try_for_each(|_| self.visit(target, value, depth + 1))?;
                }
                ("enum", Value::Array(values)) => self.take(values.len())?,
                ("$defs" | "definitions", _) => {}
                (key, _) if DATA.contains(&key) => {}
                (key, _) if IN_PLACE.contains(&key) => {
                    (0..times).try_for_each(|_| schemas(member).try_for_each(|own| self.visit(own, value, depth + 1)))?;
                }
                (key, _) if NAMED_IN_PLACE.contains(&key) => {
                    (0..times).try_for_each(|_| parts(member).try_for_each(|own| self.visit(own, value, depth + 1)))?;
                }
                ("properties", Value::Object(named)) => {
                    let found = named.iter().filter_map(|(name, own)| Some((own, value.get(name)?)));
                    found.into_iter().try_for_each(|(own, part)| self.visit(own, part, depth + 1))?;
                }
                ("patternProperties", _) => self.visit_parts(parts(member), value, depth + 1)?,
                ("propertyNames", _) => parts(value).try_for_each(|_| self.visit(member, &Value::Null, depth + 1))?,
                _ => self.visit_parts(schemas(member), value, depth + 1)?,
            }
        }
        Ok(())
    }

    fn visit_parts<'s>(
        &mut self,
        mut schemas: impl Iterator<Item = &'s Value>,
        value: &Value,
        depth: usize,
    ) -> Result<(), String> {
        schemas.try_for_each(|own| parts(value).try_for_each(|part| self.visit(own, part, depth)))
    }
}

/// Returns the schemas of a keyword: one, or a list.
fn schemas(member: &Value) -> impl Iterator<Item = &Value> {
    let (list, one) = match member {
        Value::Array(list) => (list.as_slice(), None),
        Value::Object(_) => (&[][..], Some(member)),
        _ => (&[][..], None),
    };
    list.iter().chain(one)
}

/// Returns the parts of a value.
fn parts(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(members) => Box::new(members.values()),
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns lists nested this deep.
    fn nested(depth: usize) -> Value {
        (0..depth).fold(json!(0), |inner, _| json!([inner]))
    }

    #[test]
    fn schemas_that_multiply_with_the_depth_of_a_value_are_refused() {
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let rule = json!({"items": {keyword: [{"$ref": "#/$defs/R"}, {"$ref": "#/$defs/R"}]}});
            let schema = json!({"properties": {"a": {"$ref": "#/$defs/R"}}, "$defs": {"R": rule}});
            assert!(check(&schema, &json!({"a": nested(30)})).unwrap_err().contains("steps to check"), "{keyword}");
            assert_eq!(check(&schema, &json!({"a": nested(10)})), Ok(()), "{keyword}");
        }
    }

    #[test]
    fn schemas_that_multiply_with_the_length_of_a_value_are_refused() {
        let rules: Vec<Value> = (0..1000).map(|least| json!({"minimum": least})).collect();
        let schema = json!({"properties": {"a": {"items": {"allOf": rules}}}});
        assert!(check(&schema, &json!({"a": vec![0; 1000]})).unwrap_err().contains("steps to check"));
        assert_eq!(check(&schema, &json!({"a": vec![0; 10]})), Ok(()));
        // Each level evaluates the next one for every part, in addition to evaluating it itself.
        let deep = (0..25).fold(json!({}), |inner, _| json!({"allOf": [inner], "unevaluatedProperties": false}));
        assert!(check(&deep, &json!({"a": 1})).unwrap_err().contains("steps to check"));
    }

    #[test]
    fn schemas_that_nest_deeply_with_a_value_are_refused() {
        let chain = (0..20).fold(json!({"$ref": "#/$defs/R"}), |inner, _| json!({"allOf": [inner]}));
        let schema = json!({"properties": {"a": {"$ref": "#/$defs/R"}}, "$defs": {"R": {"items": chain}}});
        assert!(check(&schema, &json!({"a": nested(100)})).unwrap_err().contains("levels of schemas"));
        assert_eq!(check(&schema, &json!({"a": nested(3)})), Ok(()));
    }
}
