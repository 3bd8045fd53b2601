//! Hints to the host in a plugin's configuration schema: the members of its keyword `x-rlhost`. Plugins older than a member lack it.

use crate::config::{PromptTemplate, TeacherModelKind, is_shown};
use serde::Deserialize;
use serde_json::{Value, json};

const KEYWORD: &str = "x-rlhost";

/// Maximum learning rate that an algorithm may propose.
const GREATEST_RATE: f64 = 1.0;

/// Maximum sampling temperature that an algorithm may propose.
const GREATEST_TEMPERATURE: f64 = 100.0;

/// Maximum coefficient of a router's auxiliary loss that an algorithm may propose.
const GREATEST_COEFFICIENT: f64 = 1e6;

/// Maximum number of completions per prompt, and maximum completion length, that an algorithm may propose.
const GREATEST_COUNT: u64 = 1 << 20;

/// An algorithm's own defaults for keys of a run; `None` leaves the host's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HintedDefaults {
    /// Number of completions per prompt.
    pub num_generations: Option<usize>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Maximum completion length, in tokens.
    pub max_completion_length: Option<usize>,
    /// Coefficient of the router's auxiliary loss in a mixture-of-experts model.
    pub router_aux_loss_coef: Option<f64>,
    /// Which model the teacher is, if the run names none.
    pub teacher_model_kind: Option<TeacherModelKind>,
    /// Prompt that the teacher reads.
    pub teacher_prompt_template: Option<String>,
}

impl HintedDefaults {
    /// Parses the keyword's member `defaults`. The error is the end of a sentence.
    fn from_json(given: &Value) -> Result<Self, String> {
        let members = given.as_object().ok_or_else(|| format!("has {KEYWORD}.defaults {given}; it must be an object"))?;
        let count = |name: &str| {
            let fits = |count: &u64| (1..=GREATEST_COUNT).contains(count);
            let read = |given: &Value| {
                let count = given.as_u64().filter(fits).ok_or_else(|| {
                    format!("has {KEYWORD}.defaults.{name} {given}; it must be a whole number from 1 to {GREATEST_COUNT}")
                })?;
                Ok::<_, String>(count as usize)
            };
            members.get(name).map(read).transpose()
        };
        let coefficient = |given: &Value| {
            let fits = |value: &f64| (0.0..=GREATEST_COEFFICIENT).contains(value);
            given.as_f64().filter(fits).ok_or_else(|| {
                format!(
                    "has {KEYWORD}.defaults.router_aux_loss_coef {given}; it must be a number from 0 to {GREATEST_COEFFICIENT}"
                )
            })
        };
        let temperature = |given: &Value| {
            let fits = |value: &f64| *value > 0.0 && *value <= GREATEST_TEMPERATURE;
            given.as_f64().filter(fits).ok_or_else(|| {
                format!(
                    "has {KEYWORD}.defaults.temperature {given}; it must be a number above 0 and at most {GREATEST_TEMPERATURE}"
                )
            })
        };
        let kind = |given: &Value| {
            let kind = TeacherModelKind::deserialize(given).ok().filter(|kind| *kind != TeacherModelKind::Named);
            kind.ok_or_else(|| format!("has {KEYWORD}.defaults.teacher_model_kind {given}; it must be base, live or ema"))
        };
        let template = |given: &Value| {
            let parsed = given.as_str().ok_or_else(|| "it must be a text".to_owned()).and_then(|text| {
                PromptTemplate::parse(text)?;
                Ok(text.to_owned())
            });
            parsed.map_err(|detail| format!("has {KEYWORD}.defaults.teacher_prompt_template {given}: it must be valid; {detail}"))
        };
        Ok(Self {
            teacher_model_kind: members.get("teacher_model_kind").map(kind).transpose()?,
            teacher_prompt_template: members.get("teacher_prompt_template").map(template).transpose()?,
            num_generations: count("num_generations")?,
            temperature: members.get("temperature").map(temperature).transpose()?,
            max_completion_length: count("max_completion_length")?,
            router_aux_loss_coef: members.get("router_aux_loss_coef").map(coefficient).transpose()?,
        })
    }

    /// Returns the keys, each with its value.
    pub fn keys(&self) -> Vec<(&'static str, Value)> {
        let all = [
            ("num_generations", self.num_generations.map(Value::from)),
            ("temperature", self.temperature.map(Value::from)),
            ("max_completion_length", self.max_completion_length.map(Value::from)),
            ("router_aux_loss_coef", self.router_aux_loss_coef.map(Value::from)),
            ("teacher_model_kind", self.teacher_model_kind.map(|kind| json!(kind))),
            ("teacher_prompt_template", self.teacher_prompt_template.clone().map(Value::from)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }
}

/// A metric that the host derives from another, under a name that the algorithm's users know.
#[derive(Clone, Debug, PartialEq)]
pub struct DerivedMetricHint {
    /// Name of the derived metric.
    pub name: String,
    /// Rule by which it is derived.
    pub rule: DerivationRule,
    /// Metric that it is derived from, whose rows it is logged in.
    pub from: String,
}

/// A rule that derives a metric from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DerivationRule {
    /// Copies the other metric.
    Copy,
    /// Growth of the other metric per second, rounded down.
    PerSecond,
}

/// Maximum number of an algorithm's derived metrics, and maximum length of their names, in bytes.
const MOST_DERIVED: usize = 16;
const LONGEST_NAME: usize = 128;

impl DerivedMetricHint {
    /// Parses the keyword's member `derived_metrics`. The error is the end of a sentence.
    fn parse_all(given: &Value) -> Result<Vec<Self>, String> {
        let shape = || {
            format!(
                "has {KEYWORD}.derived_metrics {given}; it must be an object of at most {MOST_DERIVED} members such as \
                 {{\"lr\": {{\"copy\": \"learning_rate\"}}, \"eps\": {{\"per_second\": \"episode\"}}}}"
            )
        };
        let members = given.as_object().filter(|members| members.len() <= MOST_DERIVED).ok_or_else(shape)?;
        let read = |(name, given): (&String, &Value)| {
            let mut rules = given.as_object().ok_or_else(shape)?.iter();
            let (Some((rule, from)), None) = (rules.next(), rules.next()) else { return Err(shape()) };
            let rule = match rule.as_str() {
                "copy" => DerivationRule::Copy,
                "per_second" => DerivationRule::PerSecond,
                _ => return Err(shape()),
            };
            let from = from.as_str().filter(|from| is_shown(from, LONGEST_NAME) && is_shown(name, LONGEST_NAME));
            Ok(Self { name: name.clone(), rule, from: from.ok_or_else(shape)?.to_owned() })
        };
        members.iter().map(read).collect()
    }
}

/// A plugin's hints to the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Hints {
    /// Peak learning rate of a run that sets none, for a full-size model.
    pub learning_rate: f64,
    /// Own defaults of the algorithm for other keys.
    pub defaults: HintedDefaults,
    /// Metrics that the host derives from the algorithm's.
    pub derived_metrics: Vec<DerivedMetricHint>,
    /// Whether a dataset's pairs begin and end with the tokenizer's begin and end tokens, whatever a chat template writes.
    pub framed: bool,
    /// Whether dataset tokens may be scored as smoothed targets, with a share of the probability spread evenly over the vocabulary.
    pub smoothed: bool,
    /// Whether a prompt's completions are compared with each other, so that training needs at least two.
    pub compares: bool,
    /// Whether each row of a reward, and each turn of an environment, is a separate call with its own time limit.
    pub isolated_rows: bool,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            learning_rate: 1e-6,
            defaults: HintedDefaults::default(),
            derived_metrics: Vec::new(),
            framed: false,
            smoothed: false,
            compares: false,
            isolated_rows: false,
        }
    }
}

impl Hints {
    /// Parses the hints in a schema. The error is the end of a sentence.
    pub(super) fn from_schema(schema: &str) -> Result<Self, String> {
        let mut hints = Self::default();
        // A schema that is not JSON is rejected with the settings.
        let schema: Value = serde_json::from_str(schema).unwrap_or_default();
        let Some(given) = schema.get(KEYWORD) else { return Ok(hints) };
        let members = given.as_object().ok_or_else(|| format!("has {KEYWORD}, which must be an object, not {given}"))?;
        if let Some(rate) = members.get("learning_rate") {
            let fits = |rate: &f64| *rate > 0.0 && *rate <= GREATEST_RATE;
            hints.learning_rate = rate.as_f64().filter(fits).ok_or_else(|| {
                format!("has {KEYWORD}.learning_rate {rate}; it must be a number above 0 and at most {GREATEST_RATE}")
            })?;
        }
        hints.defaults = members.get("defaults").map_or(Ok(HintedDefaults::default()), HintedDefaults::from_json)?;
        hints.derived_metrics = members.get("derived_metrics").map_or(Ok(Vec::new()), DerivedMetricHint::parse_all)?;
        let switches = [
            ("framed", &mut hints.framed),
            ("smoothed", &mut hints.smoothed),
            ("compares", &mut hints.compares),
            ("isolated_rows", &mut hints.isolated_rows),
        ];
        for (name, hint) in switches {
            let Some(given) = members.get(name) else { continue };
            *hint = given.as_bool().ok_or_else(|| format!("has {KEYWORD}.{name} {given}; it must be true or false"))?;
        }
        Ok(hints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_may_propose_a_learning_rate_within_bounds() {
        let rate = |schema: &str| Hints::from_schema(schema).map(|hints| hints.learning_rate);
        for silent in ["{}", "not json", r#"{"x-rlhost": {}}"#, r#"{"x-rlhost": {"later": [1]}}"#, r#"{"properties": {}}"#] {
            assert_eq!(rate(silent), Ok(1e-6), "{silent}");
        }
        assert_eq!(rate(r#"{"x-rlhost": {"learning_rate": 2e-5}}"#), Ok(2e-5));
        assert_eq!(rate(r#"{"x-rlhost": {"learning_rate": 1}}"#), Ok(1.0));
        for wrong in ["0", "-1e-6", "1.5", "1e300", "null", "\"2e-5\"", "[1e-6]", "true"] {
            let refused = rate(&format!("{{\"x-rlhost\": {{\"learning_rate\": {wrong}}}}}")).unwrap_err();
            assert!(refused.contains("x-rlhost.learning_rate") && refused.contains("above 0"), "{refused}");
        }
        assert!(rate(r#"{"x-rlhost": 2e-5}"#).unwrap_err().contains("must be an object"));
    }

    #[test]
    fn an_algorithm_may_have_metrics_derived_from_its_own() {
        let derived = |given: &str| {
            Hints::from_schema(&format!("{{\"x-rlhost\": {{\"derived_metrics\": {given}}}}}")).map(|hints| hints.derived_metrics)
        };
        let of = |name: &str, rule: DerivationRule, from: &str| DerivedMetricHint { name: name.into(), rule, from: from.into() };
        assert_eq!(derived("{}"), Ok(Vec::new()));
        assert_eq!(
            derived(r#"{"eps": {"per_second": "episode"}, "lr": {"copy": "learning_rate"}}"#),
            Ok(vec![of("eps", DerivationRule::PerSecond, "episode"), of("lr", DerivationRule::Copy, "learning_rate")])
        );
        let many: Vec<String> = (0..=MOST_DERIVED).map(|i| format!("\"{i}\": {{\"copy\": \"x\"}}")).collect();
        for wrong in [
            "7",
            r#"{"a": "b"}"#,
            r#"{"a": {}}"#,
            r#"{"a": {"copy": "b", "per_second": "c"}}"#,
            r#"{"a": {"twice": "b"}}"#,
            r#"{"a": {"copy": 3}}"#,
            r#"{"a\u001b": {"copy": "b"}}"#,
            r#"{"": {"copy": "b"}}"#,
            &format!("{{{}}}", many.join(", ")),
        ] {
            assert!(derived(wrong).unwrap_err().contains("x-rlhost.derived_metrics"), "{wrong}");
        }
    }

    #[test]
    fn an_algorithm_may_have_its_own_defaults_within_bounds() {
        let defaults =
            |given: &str| Hints::from_schema(&format!("{{\"x-rlhost\": {{\"defaults\": {given}}}}}")).map(|h| h.defaults);
        assert_eq!(defaults("{}"), Ok(HintedDefaults::default()));
        let all = defaults(
            r#"{"num_generations": 2, "temperature": 0.9, "max_completion_length": 64, "router_aux_loss_coef": 0, "later": 1,
                "teacher_model_kind": "ema", "teacher_prompt_template": "{prompt} {hint}"}"#,
        )
        .unwrap();
        let want = HintedDefaults {
            num_generations: Some(2),
            temperature: Some(0.9),
            max_completion_length: Some(64),
            router_aux_loss_coef: Some(0.0),
            teacher_model_kind: Some(TeacherModelKind::Ema),
            teacher_prompt_template: Some("{prompt} {hint}".into()),
        };
        assert_eq!(all, want);
        for (wrong, key) in [
            (r#"{"num_generations": 0}"#, "defaults.num_generations"),
            (r#"{"num_generations": 2.5}"#, "defaults.num_generations"),
            (r#"{"max_completion_length": 4294967296}"#, "defaults.max_completion_length"),
            (r#"{"temperature": 0}"#, "defaults.temperature"),
            (r#"{"temperature": "hot"}"#, "defaults.temperature"),
            (r#"{"router_aux_loss_coef": -0.1}"#, "defaults.router_aux_loss_coef"),
            (r#"{"teacher_model_kind": "named"}"#, "defaults.teacher_model_kind"),
            (r#"{"teacher_prompt_template": "{prompt"}"#, "defaults.teacher_prompt_template"),
            (r#"{"teacher_prompt_template": 3}"#, "defaults.teacher_prompt_template"),
            ("7", "defaults 7"),
        ] {
            let refused = defaults(wrong).unwrap_err();
            assert!(refused.contains(key) && refused.contains("must be"), "{refused}");
        }
    }

    #[test]
    fn a_plugin_may_ask_for_framed_pairs_or_isolated_rows_and_take_smoothed_targets() {
        let framed = |schema: &str| Hints::from_schema(schema).map(|hints| hints.framed);
        assert_eq!(framed("{}"), Ok(false));
        assert_eq!(framed(r#"{"x-rlhost": {"framed": true}}"#), Ok(true));
        assert!(framed(r#"{"x-rlhost": {"framed": 1}}"#).unwrap_err().contains("true or false"));
        let smoothed = |schema: &str| Hints::from_schema(schema).map(|hints| hints.smoothed);
        let compares = |schema: &str| Hints::from_schema(schema).map(|hints| hints.compares);
        assert_eq!((compares("{}"), compares(r#"{"x-rlhost": {"compares": true}}"#)), (Ok(false), Ok(true)));
        assert_eq!((smoothed("{}"), smoothed(r#"{"x-rlhost": {"smoothed": true}}"#)), (Ok(false), Ok(true)));
        let apart = |schema: &str| Hints::from_schema(schema).map(|hints| hints.isolated_rows);
        assert_eq!((apart("{}"), apart(r#"{"x-rlhost": {"isolated_rows": true}}"#)), (Ok(false), Ok(true)));
        assert!(apart(r#"{"x-rlhost": {"isolated_rows": "yes"}}"#).unwrap_err().contains("isolated_rows"));
    }
}
