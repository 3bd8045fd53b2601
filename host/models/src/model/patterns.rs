//! Patterns of module names, matched as in `peft`: the keys of `rank_pattern` and `alpha_pattern` in an adapter's settings.

use super::json::ConfigObject;
use super::lora::LoraSettings;
use crate::config::printable;
use fancy_regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

/// Maximum number of patterns of one kind, and of those that are regular expressions.
const MOST: usize = 1 << 16;
const MOST_EXPRESSIONS: usize = 1000;

/// Maximum length of a regular expression, in bytes.
const LONGEST: usize = 4096;

/// Maximum number of steps to match one name, for expressions that need more than one pass.
const MOST_STEPS: usize = 100_000;

/// A pattern for the end of a module's name.
enum Pattern {
    /// Names separated by dots.
    Name(String),
    /// A regular expression.
    Expression(Regex),
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        if text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.') && !text.starts_with('.') {
            return Ok(Self::Name(text.to_owned()));
        }
        let shown = printable(text, 80);
        if text.len() > LONGEST {
            return Err(format!("{shown:?} is longer than {LONGEST} bytes"));
        }
        let whole = format!(r"^(?:.*\.)?(?:{text})$");
        let built = RegexBuilder::new(&whole).backtrack_limit(MOST_STEPS).delegate_size_limit(1 << 20).build();
        built.map(Self::Expression).map_err(|e| format!("{shown:?} is no regular expression of module names: {e}"))
    }

    fn matches(&self, module: &str) -> Result<bool, String> {
        match self {
            Self::Name(name) => Ok(module.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))),
            Self::Expression(regex) => {
                regex.is_match(module).map_err(|e| format!("{:?} takes too long to match: {e}", printable(regex.as_str(), 80)))
            }
        }
    }
}

/// The modules whose rank or `alpha` differs from the adapter's. The first pattern that matches a module applies.
#[derive(Default)]
pub(super) struct Patterns {
    ranks: Vec<(Pattern, usize)>,
    alphas: Vec<(Pattern, f64)>,
}

impl Patterns {
    /// Reads `rank_pattern` and `alpha_pattern`.
    ///
    /// # Errors
    /// If a key is not a valid expression, a rank is invalid or exceeds `most_rank`, or an `alpha` is not finite.
    pub(super) fn parse(config: &ConfigObject, most_rank: usize) -> Result<Self, String> {
        let rank = |value: &Value| value.as_u64().and_then(|r| usize::try_from(r).ok()).filter(|r| (1..=most_rank).contains(r));
        let alpha = |value: &Value| value.as_f64().filter(|alpha| alpha.is_finite());
        Ok(Self {
            ranks: read(config, "rank_pattern", &format!("a whole number from 1 to {most_rank}"), rank)?,
            alphas: read(config, "alpha_pattern", "a number", alpha)?,
        })
    }

    /// Returns an adapter's settings with the rank and `alpha` of a module.
    ///
    /// # Errors
    /// If a pattern takes too long to match, or the scale would not be finite.
    pub(super) fn module_settings(&self, lora: LoraSettings, module: &str) -> Result<LoraSettings, String> {
        let of_module = LoraSettings {
            r: first(&self.ranks, module).map_err(|detail| format!("rank_pattern: {detail}"))?.unwrap_or(lora.r),
            alpha: first(&self.alphas, module).map_err(|detail| format!("alpha_pattern: {detail}"))?.unwrap_or(lora.alpha),
            ..lora
        };
        match of_module.scale().is_finite() {
            true => Ok(of_module),
            false => Err(format!("alpha_pattern: {module} gets a scale that is not finite")),
        }
    }
}

fn first<T: Copy>(patterns: &[(Pattern, T)], module: &str) -> Result<Option<T>, String> {
    for (pattern, value) in patterns {
        if pattern.matches(module)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

fn read<T>(
    config: &ConfigObject,
    key: &str,
    right: &str,
    take: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(Pattern, T)>, String> {
    let none = Map::new();
    let all = match config.get(key) {
        None => &none,
        Some(Value::Object(all)) => all,
        Some(other) => return Err(format!("{key} is {}; it must be an object of patterns", printable(&other.to_string(), 80))),
    };
    if all.len() > MOST {
        return Err(format!("{key} has {} patterns; at most {MOST} are supported", all.len()));
    }
    let (mut patterns, mut expressions) = (Vec::with_capacity(all.len()), 0);
    for (text, value) in all {
        let pattern = Pattern::parse(text).map_err(|detail| format!("{key}: {detail}"))?;
        expressions += usize::from(matches!(pattern, Pattern::Expression(_)));
        if expressions > MOST_EXPRESSIONS {
            return Err(format!("{key} has more than {MOST_EXPRESSIONS} expressions"));
        }
        let (shown, given) = (printable(text, 80), printable(&value.to_string(), 80));
        patterns.push((pattern, take(value).ok_or_else(|| format!("{key}: {shown:?} has {given}; it must be {right}"))?));
    }
    Ok(patterns)
}

/// Returns the patterns for the modules whose value is not `usual`: a module's short name if all modules of that name have the same value,
/// else its full name.
pub(super) fn written<T: Copy + PartialEq>(values: &[(String, T)], usual: T) -> Vec<(String, T)> {
    let short = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let mut patterns: Vec<(String, T)> = Vec::new();
    for (name, value) in values.iter().filter(|(_, value)| *value != usual) {
        let end = short(name);
        let alike = values.iter().filter(|(other, _)| short(other) == end).all(|(_, other)| other == value);
        let pattern = if alike { end } else { name.clone() };
        if !patterns.iter().any(|(known, _)| *known == pattern) {
            patterns.push((pattern, *value));
        }
    }
    patterns
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const Q: &str = "model.layers.0.self_attn.q_proj";

    fn parsed(config: &Value) -> Result<Patterns, String> {
        Patterns::parse(&ConfigObject::parse(&config.to_string()).unwrap(), 64)
    }

    fn rank(patterns: &Value, module: &str) -> Result<usize, String> {
        Ok(parsed(&json!({ "rank_pattern": patterns }))?.module_settings(LoraSettings::new(8, 16.0), module)?.r)
    }

    /// Matches as `re.match(rf"(.*\.)?({key})$", name)`.
    #[test]
    fn patterns_match_the_end_of_a_name_as_in_peft() {
        for (pattern, matches) in [
            ("q_proj", true),
            ("self_attn.q_proj", true),
            (Q, true),
            ("proj", false),
            ("q_pro", false),
            ("0.self_attn", false),
            (r".*\.q_proj", true),
            (r"layers\.\d+\.self_attn\.[qk]_proj", true),
            (r"layers\.[1-9]\.self_attn\.q_proj", false),
            ("q_proj|v_proj", true),
            ("^model.layers.0.self_attn.q_proj", true),
            ("^layers.0.self_attn.q_proj", false),
            (r"(?<!cross_)self_attn\.q_proj", true),
            (r"(?!v_)\w+_proj", true),
            (".", false),
        ] {
            assert_eq!(rank(&json!({ pattern: 2 }), Q), Ok(if matches { 2 } else { 8 }), "{pattern}");
        }
        assert_eq!(rank(&json!({ r".*\.gate_up_proj": 4 }), "model.layers.0.mlp.experts.gate_up_proj"), Ok(4));
        assert_eq!(rank(&json!({ "v_proj": 1, "q_proj": 2, "self_attn.q_proj": 3 }), Q), Ok(2), "the first counts");
        let both = parsed(&json!({ "rank_pattern": { "q_proj": 2 }, "alpha_pattern": { "q_proj": 5 } })).unwrap();
        assert_eq!(both.module_settings(LoraSettings::new(8, 16.0), Q).unwrap().scale(), 2.5);
        assert_eq!(both.module_settings(LoraSettings::new(8, 16.0), "model.layers.0.self_attn.k_proj").unwrap().scale(), 2.0);
    }

    #[test]
    fn what_is_no_pattern_is_refused_by_name() {
        for (config, said) in [
            (json!({ "rank_pattern": { "q_(proj": 2 } }), "q_(proj"),
            (json!({ "rank_pattern": { "q_proj": 0 } }), "from 1 to 64"),
            (json!({ "rank_pattern": { "q_proj": 2.5 } }), "q_proj"),
            (json!({ "rank_pattern": { "q_proj": 65 } }), "65"),
            (json!({ "rank_pattern": ["q_proj"] }), "object"),
            (json!({ "alpha_pattern": { "q_proj": "2" } }), "a number"),
            (json!({ "alpha_pattern": { "x".repeat(5000) + "*": 2 } }), "longer"),
            (json!({ "alpha_pattern": { "(\\w{1000}){1000}": 2 } }), "alpha_pattern"),
        ] {
            let refusal = parsed(&config).err().unwrap();
            assert!(refusal.contains(said), "{refusal}");
        }
        let slow = parsed(&json!({ "rank_pattern": { r"(?=(a+)+$)(a|aa)+\1b": 2 } })).unwrap();
        assert!(slow.module_settings(LoraSettings::new(8, 16.0), &"a".repeat(200)).unwrap_err().contains("rank_pattern"));
        let wide = parsed(&json!({ "alpha_pattern": { "q_proj": 1e300 } })).unwrap();
        assert!(wide.module_settings(LoraSettings::new(8, 16.0), Q).unwrap_err().contains("not finite"));
    }

    #[test]
    fn patterns_are_written_as_they_are_read() {
        let values: Vec<(String, usize)> =
            [("a.0.q", 2), ("a.0.k", 8), ("a.1.q", 2), ("a.1.k", 3)].map(|(name, r)| (name.to_owned(), r)).into();
        let written = written(&values, 8);
        assert_eq!(written, [("q".to_owned(), 2), ("a.1.k".to_owned(), 3)]);
        let written = Value::Object(written.into_iter().map(|(name, r)| (name, json!(r))).collect());
        for (name, r) in &values {
            assert_eq!(rank(&written, name), Ok(*r), "{name}");
        }
    }
}
