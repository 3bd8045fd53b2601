//! TRL's configuration files, which are YAML.

use super::values::from_json;
use serde_yaml_ng::Value as Yaml;
use toml::{Table, Value};

/// Parses the keys of a file; the error has the line. Null values are left out.
pub(super) fn table(text: &str) -> Result<Table, (usize, String)> {
    let wrong = |e: serde_yaml_ng::Error| (e.location().map_or(1, |at| at.line()), e.to_string());
    let parsed: Yaml = serde_yaml_ng::from_str(text).map_err(wrong)?;
    if parsed.is_null() {
        return Ok(Table::new());
    }
    let json = serde_json::to_value(&parsed).map_err(|e| (1, e.to_string()))?;
    match from_json(json) {
        Some(Value::Table(table)) => Ok(table),
        _ => Err((1, "expected keys with their values, as in `seed: 42`".to_owned())),
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
        assert!(line >= 2, "{line}: {said}");
        assert!(table("seed: 1\nseed: 2\n").unwrap_err().1.contains("duplicate"));
        assert_eq!(table("- seed\n").unwrap_err().0, 1);
        // References that multiply.
        let bomb =
            (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, i| format!("{text}a{i}: &a{i} [*a{}, *a{}]\n", i - 1, i - 1));
        assert!(table(&bomb).is_err());
    }
}
