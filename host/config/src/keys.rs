//! Metadata of each configuration key, read from its declaration.

use super::RunConfig;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// Whether a key may change when a run resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeRule {
    /// The key may not change, because the results would.
    Fixed,
    /// The key may change, because the results do not depend on it.
    Free,
    /// The object that the key names is compared separately.
    Compared,
}

/// A top-level key.
#[derive(Clone, Debug)]
pub struct ConfigKey {
    /// Name of the key.
    pub name: String,
    /// Help text of the key.
    pub help: String,
    /// JSON type of the value.
    pub kind: &'static str,
    /// Whether the value is a list of numbers.
    pub of_numbers: bool,
    /// Whether the key may change when a run resumes.
    pub on_resume: ResumeRule,
    /// Whether each process of a run may have its own value.
    pub is_per_rank: bool,
    /// Names of the key in other programs.
    pub aliases: Vec<String>,
    /// Value of the flag if it is given without one.
    pub bare: Option<String>,
    /// Whether the key has a flag.
    pub has_flag: bool,
    /// For a table, or a list of tables: how `--set` sets a key in it.
    pub table: Option<TableShape>,
    /// Whether the key may change during a run.
    pub live: bool,
    /// Whether a run that starts from another run's checkpoint inherits the value.
    pub inherited: InheritanceRule,
}

/// When a run that starts from another run's checkpoint inherits a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InheritanceRule {
    /// Always.
    Always,
    /// Only with the same algorithm, which defines the key, sets its default, or is the only one to use it.
    WithAlgorithm,
    /// Only with the same value of this other key, which determines the default.
    With(String),
}

/// Structure of a table in which `--set` sets keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableShape {
    /// A single table.
    Single,
    /// A list of named tables.
    ByName,
    /// A list of a single table.
    SingletonList,
}

impl ConfigKey {
    fn from_schema(name: &str, property: &Value, definitions: &Value) -> Self {
        let text = |what: &str| property.get(what).and_then(Value::as_str);
        let words = |what: &str| {
            let words = property.get(what).and_then(Value::as_array).into_iter().flatten();
            words.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let has = |wanted: &str| match property.get("type") {
            Some(Value::String(kind)) => kind == wanted,
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
            _ => false,
        };
        Self {
            name: name.to_owned(),
            help: text("description").unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "),
            kind: ["boolean", "integer", "number", "array", "object"].into_iter().find(|k| has(k)).unwrap_or("string"),
            of_numbers: property
                .pointer("/items/type")
                .and_then(Value::as_str)
                .is_some_and(|of| ["integer", "number"].contains(&of)),
            on_resume: match text("on_resume") {
                Some("free") => ResumeRule::Free,
                Some("compared") => ResumeRule::Compared,
                _ => ResumeRule::Fixed,
            },
            is_per_rank: text("rank") == Some("own"),
            aliases: words("aliases"),
            bare: text("bare").map(str::to_owned),
            has_flag: property.get("flag") != Some(&Value::Bool(false)),
            table: match property.get("items") {
                _ if is_object(property, definitions) => Some(TableShape::Single),
                Some(items) if is_object(items, definitions) => match property.get("single") == Some(&Value::Bool(true)) {
                    true => Some(TableShape::SingletonList),
                    false => Some(TableShape::ByName),
                },
                _ => None,
            },
            live: property.get("live") == Some(&Value::Bool(true)),
            inherited: match text("inherited_with") {
                None => InheritanceRule::Always,
                Some("algorithm") => InheritanceRule::WithAlgorithm,
                Some(key) => InheritanceRule::With(key.to_owned()),
            },
        }
    }
}

/// Returns whether a schema describes an object; the schema may refer to one of the `definitions`.
fn is_object(schema: &Value, definitions: &Value) -> bool {
    let referred = schema["$ref"].as_str().and_then(|to| to.rsplit('/').next()).map(|name| &definitions[name]);
    referred.unwrap_or(schema)["type"] == "object"
}

/// Returns every top-level key, in order of declaration.
pub fn keys() -> &'static [ConfigKey] {
    static KEYS: LazyLock<Vec<ConfigKey>> = LazyLock::new(|| {
        let schema = schemars::schema_for!(RunConfig).to_value();
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        properties.iter().map(|(name, property)| ConfigKey::from_schema(name, property, &schema["$defs"])).collect()
    });
    &KEYS
}

/// Returns the key with this name.
pub fn key(name: &str) -> Option<&'static ConfigKey> {
    keys().iter().find(|key| key.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_states_the_default_of_every_scalar_key() {
        let defaults = serde_json::to_value(RunConfig::default()).unwrap();
        for ConfigKey { name, help, .. } in keys() {
            let default = &defaults[name.as_str()];
            if default.is_null() || default.is_array() || default.is_object() {
                continue;
            }
            let (_, rest) = help.split_once("[default: ").unwrap_or_else(|| panic!("{name}: {help}"));
            let text = rest.split([']', ',']).next().unwrap();
            let stated = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
            assert!(super::super::same(&stated, default), "{name}: {help}");
        }
    }

    #[test]
    fn a_key_knows_what_stands_beside_its_declaration() {
        let limit = key("save_total_limit").unwrap();
        assert_eq!(
            (limit.kind, limit.on_resume, &limit.aliases[..]),
            ("integer", ResumeRule::Free, &["max_ckpt_num".to_owned()][..])
        );
        let device = key("device").unwrap();
        assert_eq!((device.on_resume, device.is_per_rank), (ResumeRule::Free, true));
        let seed = key("seed").unwrap();
        assert_eq!((seed.on_resume, seed.is_per_rank, seed.aliases.len()), (ResumeRule::Fixed, false, 0));
        assert_eq!(key("plugin").unwrap().on_resume, ResumeRule::Compared);
        // The key has its own type, whose schema is a separate definition.
        assert_eq!(key("report_to").unwrap().on_resume, ResumeRule::Free);
        let set =
            |of: TableShape| keys().iter().filter(|key| key.table == Some(of)).map(|key| key.name.as_str()).collect::<Vec<_>>();
        assert_eq!((set(TableShape::ByName), set(TableShape::SingletonList)), (vec!["environment", "plugin"], vec!["agent"]));
        assert_eq!(set(TableShape::Single), ["lr_scheduler_kwargs", "optim_args", "chat_template_kwargs", "loss", "loss_limits"]);
        let of_loss = key("loss").unwrap();
        assert_eq!((of_loss.live, &of_loss.inherited, of_loss.has_flag), (true, &InheritanceRule::WithAlgorithm, false));
        assert_eq!((device.live, &device.inherited, device.has_flag), (false, &InheritanceRule::Always, true));
        assert_eq!(key("old_logp").unwrap().inherited, InheritanceRule::With("rollout_dtype".to_owned()));
        let followed =
            keys().iter().filter_map(|key| if let InheritanceRule::With(other) = &key.inherited { Some(other) } else { None });
        assert!(followed.into_iter().all(|other| key(other).is_some()));
        assert!(keys().iter().all(|key| !key.help.is_empty()), "{:?}", keys());
    }
}
