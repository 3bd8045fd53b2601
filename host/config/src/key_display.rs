//! Display of keys: the heading in `--help`, and the values that a shell completes.

use super::RunConfig;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Display of a key: its heading in `--help`, and the values that a shell completes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyDisplay {
    /// Heading under which `--help` lists the key.
    pub heading: String,
    /// All values of the key, or some of them.
    pub examples: Vec<String>,
    /// Whether the key's value may be a path.
    pub is_path: bool,
}

/// Returns the display of the key with this name.
pub fn shown(key: &str) -> Option<&'static KeyDisplay> {
    static SHOWN: LazyLock<BTreeMap<String, KeyDisplay>> = LazyLock::new(|| {
        let schema = schemars::schema_for!(RunConfig).to_value();
        let none = Map::new();
        let (mut all, mut heading) = (BTreeMap::new(), String::new());
        for (name, property) in schema["properties"].as_object().unwrap_or(&none) {
            // A heading also applies to the keys after it.
            if let Some(own) = property["heading"].as_str() {
                own.clone_into(&mut heading);
            }
            all.insert(
                name.clone(),
                KeyDisplay { heading: heading.clone(), ..KeyDisplay::from_schema(property, &schema["$defs"]) },
            );
        }
        all
    });
    SHOWN.get(key)
}

impl KeyDisplay {
    fn from_schema(property: &Value, definitions: &Value) -> Self {
        let has = |wanted: &str| match &property["type"] {
            Value::String(kind) => kind == wanted,
            Value::Array(kinds) => kinds.iter().any(|kind| kind == wanted),
            _ => false,
        };
        let given = property["examples"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        let examples = if has("boolean") {
            ["true", "false"].map(str::to_owned).into()
        } else {
            values_of(property, definitions).into_iter().chain(given).collect()
        };
        let is_path = has("string") && matches!(property["reach"].as_str(), Some("read" | "written"));
        Self { heading: String::new(), examples, is_path }
    }
}

/// Returns the words that a schema allows; the schema may refer to one of the `definitions`.
fn values_of(schema: &Value, definitions: &Value) -> Vec<String> {
    let referred = schema["$ref"].as_str().and_then(|to| to.rsplit('/').next()).map(|name| &definitions[name]);
    let schema = referred.unwrap_or(schema);
    let own = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
    let mut values: Vec<String> = own.filter_map(Value::as_str).map(str::to_owned).collect();
    let below = ["oneOf", "anyOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten().chain(schema.get("items"));
    values.extend(below.flat_map(|part| values_of(part, definitions)));
    values
}

#[cfg(test)]
mod tests {
    use super::super::keys;
    use super::*;

    #[test]
    fn a_key_has_a_heading_and_examples_of_its_values() {
        let of = |name: &str| shown(name).unwrap();
        assert_eq!(
            (&*of("value_model").heading, &*of("max_length").heading, &*of("stop").heading),
            ("Model", "Data", "Generation")
        );
        assert!(keys().iter().all(|key| shown(&key.name).is_some_and(|shown| !shown.heading.is_empty())));
        assert_eq!(of("learn_from").examples, ["generation", "dataset"]);
        assert_eq!(of("eval_strategy").examples, ["no", "steps", "epoch"]);
        assert_eq!(of("report_to").examples, ["none", "tensorboard", "wandb", "mlflow", "trackio"]);
        assert_eq!(of("bf16").examples, ["true", "false"]);
        assert_eq!(of("device").examples, ["auto", "cpu", "cuda"]);
        assert!(of("seed").examples.is_empty() && of("plugin").examples.is_empty());
        assert!(of("model").is_path && of("output_dir").is_path && !of("report_to").is_path && !of("eos_token").is_path);
        assert_eq!(shown("nothing"), None);
    }
}
