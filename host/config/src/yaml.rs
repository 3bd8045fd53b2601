//! Parses untrusted YAML: TRL's configuration files, and the front matter of dataset cards.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{MergeKeyPolicy, NonFiniteFloatPolicy, Options, UserMessageFormatter};
use std::fmt;
use toml::{Table, Value};

/// Maximum nesting of lists and keys. A level takes some 25 KB of the stack in an unoptimised build, and a thread has 2 MB.
const DEEPEST: usize = 48;

/// Maximum number of values, including those repeated by aliases: more than a front matter of the largest size reasonably has.
const MOST: usize = 250_000;

/// Parses a file's keys; an error includes the line. Null values are omitted.
pub(super) fn table(text: &str) -> Result<Table, (usize, String)> {
    match converted(Yaml::parse(text)?) {
        None => Ok(Table::new()),
        Some(Value::Table(table)) => Ok(table),
        Some(_) => Err((1, "expected keys with their values, as in `seed: 42`".to_owned())),
    }
}

/// Maximum size of a front matter in bytes.
const LARGEST_FRONT: usize = 1 << 20;

/// Returns the values of a Markdown text's front matter, YAML between lines of three dashes; `None` if it has no front matter. Keys that
/// are not texts are converted to text.
///
/// # Errors
/// If it is not YAML, or too large. The error includes the line.
pub fn front_matter(text: &str) -> Result<Option<Json>, (usize, String)> {
    let text = text.trim_start_matches('\u{feff}');
    let own = text.trim_start();
    let before = text[..text.len() - own.len()].matches('\n').count();
    let mut at = 0;
    for (i, line) in own.split_inclusive('\n').enumerate() {
        let is_mark = line.trim_end() == "---";
        match (i, is_mark) {
            (0, false) => return Ok(None),
            (0, true) => at = line.len(),
            (_, true) => {
                let begin = own.find('\n').map_or(own.len(), |end| end + 1);
                return json(&own[begin..at]).map(Some).map_err(|(line, said)| (before + 1 + line, said));
            }
            (_, false) => at += line.len(),
        }
    }
    Ok(None)
}

/// Returns the values of a YAML document. Keys that are not texts are converted to text.
///
/// # Errors
/// If it is not YAML, or too large. The error includes the line.
pub fn yaml_document(text: &str) -> Result<Json, (usize, String)> {
    json(text.trim_start_matches('\u{feff}'))
}

/// Parses a document as JSON.
fn json(text: &str) -> Result<Json, (usize, String)> {
    if text.len() > LARGEST_FRONT {
        return Err((1, format!("has a front matter of {} bytes; the maximum is {LARGEST_FRONT}", text.len())));
    }
    Ok(as_json(Yaml::parse(text)?))
}

fn as_json(value: Yaml) -> Json {
    match value {
        Yaml::Null => Json::Null,
        Yaml::Bool(on) => Json::Bool(on),
        Yaml::Integer(integer) => integer.into(),
        Yaml::Natural(integer) => integer.into(),
        Yaml::Float(number) => number.into(),
        Yaml::Text(text) => Json::String(text),
        Yaml::List(items) => items.into_iter().map(as_json).collect(),
        Yaml::Keys(members) => members.into_iter().map(|(key, value)| (key, as_json(value))).collect(),
    }
}

/// Converts a value. TOML has no null: in lists and tables, null is omitted, except where it removes a limit.
fn converted(value: Yaml) -> Option<Value> {
    Some(match value {
        Yaml::Null => return None,
        Yaml::Bool(on) => Value::Boolean(on),
        Yaml::Integer(integer) => Value::Integer(integer),
        Yaml::Natural(integer) => Value::Float(integer as f64),
        Yaml::Float(number) => Value::Float(number),
        Yaml::Text(text) => Value::String(text),
        Yaml::List(items) => Value::Array(items.into_iter().filter_map(converted).collect()),
        Yaml::Keys(members) => Value::Table(members.into_iter().filter_map(member).collect()),
    })
}

fn member((key, value): (String, Yaml)) -> Option<(String, Value)> {
    // In TRL, null means no limit rather than the default.
    let is_limit = ["max_length", "max_completion_length"].contains(&key.as_str());
    let lifted = is_limit && matches!(value, Yaml::Null);
    let value = if lifted { Some(Value::String("none".to_owned())) } else { converted(value) };
    Some((key, value?))
}

/// A value of a document, without its tag. Keys that were not texts are converted to text.
#[derive(Debug, PartialEq)]
enum Yaml {
    Null,
    Bool(bool),
    Integer(i64),
    /// An integer that exceeds [`Self::Integer`].
    Natural(u64),
    Float(f64),
    Text(String),
    List(Vec<Yaml>),
    Keys(Vec<(String, Yaml)>),
}

impl Yaml {
    /// Parses a document of YAML 1.2, in which `yes` and `on` are texts. An error includes the line.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
            let line = error.location().and_then(|at| usize::try_from(at.line()).ok());
            (line.unwrap_or(1), said(&error))
        })
    }

    /// Converts the value to a key.
    fn into_key(self) -> String {
        match self {
            Self::Text(key) => key,
            Self::Null => "null".to_owned(),
            Self::Float(number) if number.is_nan() => ".nan".to_owned(),
            Self::Float(number) if number.is_infinite() => if number > 0.0 { ".inf" } else { "-.inf" }.to_owned(),
            // With a decimal point, unlike large numbers in JSON.
            Self::Float(number) => format!("{number:?}"),
            other => as_json(other).to_string(),
        }
    }
}

/// Returns the parser's options: scalars as in YAML 1.2, `1_000` and `007` are texts, and `<<` is an ordinary key.
fn options() -> Options {
    serde_saphyr::options! {
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        bom_inside_document_as_content: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: DEEPEST,
            // [`DEEPEST`] is checked first.
            flow_nesting_limit: DEEPEST + 1,
            max_documents: 1,
            max_nodes: MOST,
            // Many keys may refer to one value.
            enforce_alias_anchor_ratio: false,
        },
    }
}

/// Describes an error.
fn said(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    let too_deep = || format!("keys, lists or brackets are nested more than {DEEPEST} deep");
    match error.without_snippet() {
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => too_deep(),
        // An error of the scanner, which runs ahead of the parser that counts the depth.
        Error::ExternalMessage { msg, .. } if msg.starts_with("recursion limit") => too_deep(),
        Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            "there is more than one document; the first ends here".to_owned()
        }
        Error::Budget { .. }
        | Error::AliasError { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => format!("there are more than {MOST} values, or references to too many"),
        _ => error.render_with_formatter(&UserMessageFormatter),
    }
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(YamlVisitor)
    }
}

/// Builds a [`Yaml`] value.
struct YamlVisitor;

impl<'de> Visitor<'de> for YamlVisitor {
    type Value = Yaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }

    fn visit_bool<E>(self, on: bool) -> Result<Yaml, E> {
        Ok(Yaml::Bool(on))
    }

    fn visit_i64<E>(self, integer: i64) -> Result<Yaml, E> {
        Ok(Yaml::Integer(integer))
    }

    fn visit_u64<E>(self, integer: u64) -> Result<Yaml, E> {
        Ok(i64::try_from(integer).map_or(Yaml::Natural(integer), Yaml::Integer))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Yaml, E> {
        Ok(Yaml::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Yaml, E> {
        Ok(Yaml::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Yaml, E> {
        Ok(Yaml::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Yaml, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Yaml::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Yaml, A::Error> {
        let mut keys = Vec::new();
        while let Some((key, value)) = members.next_entry::<Yaml, Yaml>()? {
            keys.push((key.into_key(), value));
        }
        Ok(Yaml::Keys(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_file_are_what_toml_would_have() {
        let read = table("model_name_or_path: a/b\nlearning_rate: 1e-5\nstop: [x, 'y']\nbf16: true\nrun_name: null\n").unwrap();
        let same: Table =
            toml::from_str("model_name_or_path = 'a/b'\nlearning_rate = 1e-5\nstop = ['x', 'y']\nbf16 = true").unwrap();
        assert_eq!(read, same);
        assert!(table("").unwrap().is_empty());
    }

    #[test]
    fn mistakes_have_their_line() {
        let (line, said) = table("seed: 1\nmodel: [\n").unwrap_err();
        assert_eq!(line, 2, "{said}");
        let (line, said) = table("seed: 1\nseed: 2\n").unwrap_err();
        assert!(line == 2 && said.contains("duplicate") && said.contains("`seed`"), "{line}: {said}");
        for (text, on, word) in [
            ("seed: 1\n---\nseed: 2\n", 2, "more than one document"),
            ("seed: 1\nstop: 'x\n", 2, "quote"),
            ("seed: 1\nstop:\n\t- x\n", 3, "tab"),
            ("seed: 1\nstop: *end\n", 2, "unknown"),
            ("stop: &end [*end]\n", 1, "ecursive"),
            ("seed: !!int x\n", 1, "invalid"),
        ] {
            let (line, said) = table(text).unwrap_err();
            assert!(line == on && said.contains(word), "{text:?}: {line}: {said}");
        }
        assert_eq!(table("- seed\n").unwrap_err().0, 1);
        // Aliases that multiply.
        let bomb =
            (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, i| format!("{text}a{i}: &a{i} [*a{}, *a{}]\n", i - 1, i - 1));
        let (_, said) = table(&bomb).unwrap_err();
        assert!(said.contains("references"), "{said}");
        let many = format!("a: &a [{}]\nb: [{}]\n", "x, ".repeat(1000), "*a, ".repeat(1000));
        assert!(table(&many).unwrap_err().1.contains("references"));
        assert!(table(&format!("seed: 1\nstop: {}", "[".repeat(100_000))).unwrap_err().1.contains("brackets"));
    }

    #[test]
    fn what_toml_does_not_have_is_not_lost() {
        let read = table("max_length: null\nlearning_rate: .nan\nseed: null\n").unwrap();
        assert_eq!((read.len(), read["max_length"].as_str()), (2, Some("none")));
        assert!(read["learning_rate"].as_float().unwrap().is_nan());
    }

    #[test]
    fn a_front_matter_is_between_dashes() {
        let read = |text: &str| front_matter(text).unwrap();
        assert_eq!(read("---\na: [1, x]\n2: true\n---\n# Title\n").unwrap(), serde_json::json!({"a": [1, "x"], "2": true}));
        assert_eq!(read("\u{feff}\n---\r\na: 1\r\n---").unwrap()["a"], 1);
        for none in ["", "# Title", "text\n---\na: 1\n---\n", "---\na: 1\n", "---", "--- \n"] {
            assert_eq!(read(none), None, "{none:?}");
        }
        assert_eq!(front_matter("---\na: 1\nb: [\n---\n").unwrap_err().0, 3);
        assert!(front_matter(&format!("---\n{}\n---\n", "#".repeat(LARGEST_FRONT))).unwrap_err().1.contains("maximum"));
    }

    #[test]
    fn words_and_numbers_are_those_of_yaml_1_2() {
        let read = |text: &str| Yaml::parse(text).unwrap();
        for text in
            ["yes", "on", "No", "y", "1_000", "007", "1:30", "2024-01-01", "0X1F", "nan", "'1'", "\"true\"", "!!str 1", "<<"]
        {
            let plain = text.trim_start_matches("!!str ").trim_matches(['\'', '"']);
            assert_eq!(read(text), Yaml::Text(plain.to_owned()), "{text}");
        }
        for (text, number) in
            [("1e-5", 1e-5), ("1E5", 1e5), ("-.5", -0.5), ("1.", 1.0), (".inf", f64::INFINITY), ("!!float 1", 1.0)]
        {
            assert_eq!(read(text), Yaml::Float(number), "{text}");
        }
        for (text, integer) in [("-1", -1), ("+1", 1), ("0x1F", 31), ("0o17", 15), ("0b101", 5), ("!!int '1'", 1)] {
            assert_eq!(read(text), Yaml::Integer(integer), "{text}");
        }
        assert_eq!(read("18446744073709551615"), Yaml::Natural(u64::MAX));
        for text in ["", "~", "null", "Null", "# nothing", "---\n"] {
            assert_eq!(read(text), Yaml::Null, "{text:?}");
        }
        assert_eq!((read("true"), read("False"), read("!own true")), (Yaml::Bool(true), Yaml::Bool(false), Yaml::Bool(true)));
    }

    #[test]
    fn keys_become_texts_and_references_are_followed() {
        let read = yaml_document("1: a\ntrue: b\n1.5: c\n~: d\n? [1, x]\n: e\n<<: &f {g: [1]}\nh: *f\n").unwrap();
        let same = serde_json::json!({
            "1": "a", "true": "b", "1.5": "c", "null": "d", "[1,\"x\"]": "e", "<<": {"g": [1]}, "h": {"g": [1]}
        });
        assert_eq!(read, same);
        // One value for many keys.
        let many = (0..500).fold("a: &a 1\n".to_owned(), |text, i| format!("{text}k{i}: *a\n"));
        assert_eq!(table(&many).unwrap().len(), 501);
    }

    #[test]
    fn what_is_nested_as_deeply_as_allowed_fits_a_thread_and_what_is_deeper_is_refused() {
        let brackets = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        let braces = |n: usize| format!("{}x{}", "{a: ".repeat(n), "}".repeat(n));
        let lists = |n: usize| format!("{}x", "- ".repeat(n));
        let keys = |n: usize| (0..n).fold(String::new(), |text, i| format!("{text}{}a:\n", " ".repeat(i)));
        let as_keys = |n: usize| format!("{}x{}", "? {".repeat(n), "}".repeat(n));
        let nested: [&dyn Fn(usize) -> String; 5] = [&brackets, &braces, &lists, &keys, &as_keys];
        for (i, nested) in nested.into_iter().enumerate() {
            let deepest = nested(DEEPEST);
            assert!(Yaml::parse(&deepest).is_ok() || i == 4, "{deepest}: {:?}", Yaml::parse(&deepest));
            for deeper in [DEEPEST + 1, 10 * DEEPEST, 1000] {
                let (line, said) = Yaml::parse(&nested(deeper)).unwrap_err();
                assert!(line >= 1 && (said.contains("brackets") || i > 2), "{i}, {deeper}: {said}");
            }
        }
        // Brackets in a text don't count.
        assert!(table(&format!("stop: '{}'", "[".repeat(1000))).is_ok());
    }
}
