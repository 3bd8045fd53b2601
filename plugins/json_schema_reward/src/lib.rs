//! Scores whether a completion is JSON that matches a schema: one for all prompts, or one per prompt from a dataset column.

use jsonschema::Validator;
use rlhost_plugin_sdk::prelude::*;
use serde_json::{Map, Value};

/// How fenced blocks (between lines of three backticks) are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// Ignored: the complete text must be JSON.
    Never,
    /// The last block counts if there is one, else the complete text.
    Allowed,
    /// The last block counts; a completion without one is wrong.
    Required,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JsonSchemaRewardSettings {
    /// The JSON Schema; without any keyword in it, all JSON matches.
    pub schema: Map<String, Value>,
    /// Dataset column with the prompt's own schema, as an object or JSON text, used instead of `schema`; rows without one have no
    /// score.
    pub column: Option<String>,
    /// Whether the JSON may or must be in a fenced block, after a line of three backticks, optionally with `json`.
    pub fence: Fence,
    /// Score of JSON that does not match the schema; matching JSON has 1, other text 0.
    pub misfit_score: f64,
}

impl Default for JsonSchemaRewardSettings {
    fn default() -> Self {
        Self { schema: Map::new(), column: None, fence: Fence::Never, misfit_score: 0.0 }
    }
}

/// The settings with their schema compiled.
pub struct CompiledSchema {
    settings: JsonSchemaRewardSettings,
    validator: Validator,
}

impl CompiledSchema {
    /// Compiles the settings' schema.
    ///
    /// # Errors
    /// If it is not a JSON Schema.
    pub fn new(settings: JsonSchemaRewardSettings) -> Result<Self, Error> {
        let validator = compiled(&Value::Object(settings.schema.clone())).map_err(|e| Error::Config(format!("schema {e}")))?;
        Ok(Self { settings, validator })
    }

    fn score(&self, sample: &Sample<'_>) -> Result<Option<f32>, Error> {
        let own = match &self.settings.column {
            None => None,
            Some(column) => match sample.column_as(column)? {
                None => return Ok(None),
                Some(schema) => Some(from_column(column, schema)?),
            },
        };
        let Some(value) = json_part(sample.completion, self.settings.fence).and_then(|text| serde_json::from_str(text).ok())
        else {
            return Ok(Some(0.0));
        };
        let fits = own.as_ref().unwrap_or(&self.validator).is_valid(&value);
        Ok(Some(if fits { 1.0 } else { self.settings.misfit_score as f32 }))
    }
}

/// Compiles a schema. The error is the end of a sentence that starts with the schema's place.
fn compiled(schema: &Value) -> Result<Validator, String> {
    jsonschema::validator_for(schema).map_err(|e| {
        let at = e.instance_path().to_string();
        let at = if at.is_empty() { String::new() } else { format!(" at {at}") };
        format!("is not a JSON Schema{at}: {e}")
    })
}

fn from_column(column: &str, schema: Value) -> Result<Validator, Error> {
    let failed = |e: String| Error::Input(format!("a schema in the dataset's column {column:?} {e}"));
    let schema = match schema {
        // Many datasets store nested values as text.
        Value::String(text) => serde_json::from_str(&text).map_err(|e| failed(format!("is not JSON: {e}")))?,
        other => other,
    };
    compiled(&schema).map_err(failed)
}

/// Returns the part of a completion that must be JSON, or `None` if a required fence is missing.
fn json_part(completion: &str, fence: Fence) -> Option<&str> {
    match fence {
        Fence::Never => Some(completion),
        Fence::Allowed => Some(last_block(completion).unwrap_or(completion)),
        Fence::Required => last_block(completion),
    }
}

/// Returns the content of the last closed block whose opening line is three backticks, alone or with `json`.
fn last_block(completion: &str) -> Option<&str> {
    let mut last = None;
    // Start of the open block, and whether it is a JSON block.
    let mut open: Option<(usize, bool)> = None;
    let mut position = 0;
    for line in completion.split_inclusive('\n') {
        let start = position;
        position += line.len();
        let Some(language) = line.trim().strip_prefix("```") else { continue };
        open = match open {
            None => Some((position, language.is_empty() || language.trim().eq_ignore_ascii_case("json"))),
            Some((from, json)) if language.is_empty() => {
                if json {
                    last = completion.get(from..start);
                }
                None
            }
            inside => inside,
        };
    }
    last
}

reward! {
    /// 1 for JSON that matches the schema, 0 for text that is not JSON, `misfit_score` for other JSON.
    config: JsonSchemaRewardSettings,
    prepared: CompiledSchema = CompiledSchema::new,
    needs: COMPLETION_TEXT | DATASET_COLUMNS,
    |check, sample| check.score(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;
    use serde_json::json;

    fn person() -> Map<String, Value> {
        let schema = json!({
            "type": "object",
            "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0}},
            "required": ["name", "age"],
        });
        schema.as_object().cloned().unwrap()
    }

    fn score_of(completion: &str, settings: JsonSchemaRewardSettings) -> Option<f32> {
        let check = CompiledSchema::new(settings).unwrap();
        Case { completion: completion.into(), ..Case::default() }.run(|sample| score(&check, sample)).unwrap()
    }

    #[test]
    fn tells_fitting_json_from_json_from_other_text() {
        let settings =
            || JsonSchemaRewardSettings { schema: person(), misfit_score: 0.25, ..JsonSchemaRewardSettings::default() };
        assert_eq!(score_of(r#" {"name": "Ada", "age": 36} "#, settings()), Some(1.0));
        assert_eq!(score_of(r#"{"name": "Ada"}"#, settings()), Some(0.25));
        assert_eq!(score_of(r#"{"name": "ada", "age": 36}"#, settings()), Some(0.25));
        assert_eq!(score_of(r#"{"name": "Ada", "age": -1}"#, settings()), Some(0.25));
        assert_eq!(score_of(r#"{"name": "Ada", "age": 36"#, settings()), Some(0.0));
        assert_eq!(score_of(r#"Sure! {"name": "Ada", "age": 36}"#, settings()), Some(0.0));
        assert_eq!(score_of("", settings()), Some(0.0));
    }

    #[test]
    fn without_a_schema_all_json_fits() {
        assert_eq!(score_of("[1, 2]", JsonSchemaRewardSettings::default()), Some(1.0));
        assert_eq!(score_of("[1, 2", JsonSchemaRewardSettings::default()), Some(0.0));
    }

    #[test]
    fn finds_the_last_fenced_block_where_it_may() {
        let fenced = "First try:\n```json\n[1\n```\nBetter:\n```json\n[1]\n```\nDone.";
        let with = |fence| JsonSchemaRewardSettings { fence, ..JsonSchemaRewardSettings::default() };
        assert_eq!(score_of(fenced, with(Fence::Never)), Some(0.0));
        assert_eq!(score_of(fenced, with(Fence::Allowed)), Some(1.0));
        assert_eq!(score_of(fenced, with(Fence::Required)), Some(1.0));
        assert_eq!(score_of("[1]", with(Fence::Allowed)), Some(1.0));
        assert_eq!(score_of("[1]", with(Fence::Required)), Some(0.0));
        assert_eq!(score_of("```\n{}\n```", with(Fence::Required)), Some(1.0));
        assert_eq!(score_of("```python\n{}\n```", with(Fence::Required)), Some(0.0));
        assert_eq!(score_of("```json\n{}", with(Fence::Required)), Some(0.0));
    }

    #[test]
    fn a_prompt_may_have_a_schema_of_its_own() {
        let check = CompiledSchema::new(JsonSchemaRewardSettings {
            column: Some("shape".into()),
            schema: person(),
            ..JsonSchemaRewardSettings::default()
        })
        .unwrap();
        let with = |value: Value| {
            let columns = vec![("shape".into(), value.to_string())];
            Case { completion: "7".into(), columns, ..Case::default() }.run(|sample| score(&check, sample))
        };
        assert_eq!(with(json!({"type": "integer"})).unwrap(), Some(1.0));
        assert_eq!(with(json!({"type": "string"})).unwrap(), Some(0.0));
        assert_eq!(with(json!(r#"{"type": "integer"}"#)).unwrap(), Some(1.0));
        assert_eq!(with(Value::Null).unwrap(), None);
        let wrong = with(json!({"type": "whole"})).unwrap_err().to_string();
        assert!(wrong.contains("shape") && wrong.contains("whole"), "{wrong}");
    }

    #[test]
    fn a_wrong_schema_is_refused_when_configured() {
        let schema = json!({"properties": {"age": {"type": "whole"}}}).as_object().cloned().unwrap();
        let error = CompiledSchema::new(JsonSchemaRewardSettings { schema, ..JsonSchemaRewardSettings::default() })
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("/properties/age/type") && error.contains("whole"), "{error}");
    }

    #[test]
    fn deeply_nested_text_is_no_json_and_no_crash() {
        assert_eq!(score_of(&"[".repeat(100_000), JsonSchemaRewardSettings::default()), Some(0.0));
    }
}
