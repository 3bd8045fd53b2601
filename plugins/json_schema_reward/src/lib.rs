//! A completion is to be JSON that fits a schema: one fixed schema, or one for each prompt from a
//! column of the dataset.

use jsonschema::Validator;
use rlhost_plugin_sdk::prelude::*;
use serde_json::{Map, Value};

/// What becomes of a block between lines of three backticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// Nothing special: the whole completion has to be JSON.
    Never,
    /// The last block counts if there is one, else the whole completion.
    Allowed,
    /// The last block counts; a completion without one is wrong.
    Required,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The JSON Schema to fit; without any keyword in it, all JSON fits.
    pub schema: Map<String, Value>,
    /// A column of the dataset that holds a prompt's own schema, as an object or as JSON text; it
    /// stands in place of `schema`. Rows without one have no score.
    pub column: Option<String>,
    /// Whether the JSON may or must stand in a fenced block, after a line of three backticks with
    /// or without `json` behind them.
    pub fence: Fence,
    /// Score of JSON that does not fit the schema; JSON that fits has 1, other text 0.
    pub misfit_score: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { schema: Map::new(), column: None, fence: Fence::Never, misfit_score: 0.0 }
    }
}

/// The settings with their schema compiled.
pub struct Check {
    settings: Settings,
    validator: Validator,
}

impl Check {
    /// Compiles the settings' schema.
    ///
    /// # Errors
    /// If it is not a JSON Schema.
    pub fn new(settings: Settings) -> Result<Self, Error> {
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

/// Compiles a schema; the error is the end of a sentence that begins with where it was.
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
        // Many datasets keep nested values as text.
        Value::String(text) => serde_json::from_str(&text).map_err(|e| failed(format!("is not JSON: {e}")))?,
        other => other,
    };
    compiled(&schema).map_err(failed)
}

/// The part of a completion that has to be JSON, or none where a fence is missing.
fn json_part(completion: &str, fence: Fence) -> Option<&str> {
    match fence {
        Fence::Never => Some(completion),
        Fence::Allowed => Some(last_block(completion).unwrap_or(completion)),
        Fence::Required => last_block(completion),
    }
}

/// The inside of the last closed block whose opening line is three backticks, alone or with
/// `json`.
fn last_block(completion: &str) -> Option<&str> {
    let mut last = None;
    // Where the block that is open begins, and whether it is one of JSON.
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
    /// 1 for JSON that fits the schema, 0 for text that is no JSON, the misfit score between.
    config: Settings,
    prepared: Check = Check::new,
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

    fn score_of(completion: &str, settings: Settings) -> Option<f32> {
        let check = Check::new(settings).unwrap();
        Case { completion: completion.into(), ..Case::default() }.run(|sample| score(&check, sample)).unwrap()
    }

    #[test]
    fn tells_fitting_json_from_json_from_other_text() {
        let settings = || Settings { schema: person(), misfit_score: 0.25, ..Settings::default() };
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
        assert_eq!(score_of("[1, 2]", Settings::default()), Some(1.0));
        assert_eq!(score_of("[1, 2", Settings::default()), Some(0.0));
    }

    #[test]
    fn finds_the_last_fenced_block_where_it_may() {
        let fenced = "First try:\n```json\n[1\n```\nBetter:\n```json\n[1]\n```\nDone.";
        let with = |fence| Settings { fence, ..Settings::default() };
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
        let check = Check::new(Settings { column: Some("shape".into()), schema: person(), ..Settings::default() }).unwrap();
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
        let error = Check::new(Settings { schema, ..Settings::default() }).err().unwrap().to_string();
        assert!(error.contains("/properties/age/type") && error.contains("whole"), "{error}");
    }

    #[test]
    fn deeply_nested_text_is_no_json_and_no_crash() {
        assert_eq!(score_of(&"[".repeat(100_000), Settings::default()), Some(0.0));
    }
}
