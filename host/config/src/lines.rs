//! Finds a key's line in a configuration file, for error messages.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Tables whose keys are not defined by rlhost.
const FREE: [&str; 3] = ["config", "folders", "secrets"];

/// Returns the line of a top-level key, or of the key `inner` within its value; 1 if it is not found.
pub(super) fn line_of(text: &str, key: &str, inner: Option<&str>) -> usize {
    let line = match DeTable::parse(text) {
        Ok(table) => in_toml(table.get_ref(), key, inner).map(|at| text[..at.min(text.len())].matches('\n').count()),
        Err(_) => in_yaml(text, key, inner),
    };
    line.map_or(1, |line| line + 1)
}

/// Returns the offset of a key, in bytes.
fn in_toml(table: &DeTable<'_>, key: &str, inner: Option<&str>) -> Option<usize> {
    let (name, value) = table.iter().find(|(name, _)| name.get_ref() == key)?;
    let within = inner.and_then(|inner| below(value, inner));
    Some(within.unwrap_or_else(|| name.span().start))
}

/// Returns the offset of a key that is nested in a value.
fn below(value: &Spanned<DeValue<'_>>, key: &str) -> Option<usize> {
    match value.get_ref() {
        DeValue::Array(items) => items.iter().find_map(|item| below(item, key)),
        DeValue::Table(table) => {
            let own = table.iter().find(|(name, _)| name.get_ref() == key).map(|(name, _)| name.span().start);
            // A plugin's own settings may have the same names as keys of other tables.
            let fixed = || table.iter().filter(|(name, _)| !FREE.contains(&name.get_ref().as_ref()));
            own.or_else(|| fixed().find_map(|(_, value)| below(value, key)))
        }
        _ => None,
    }
}

/// Returns the index of a key's line, judging by the beginnings of lines.
fn in_yaml(text: &str, key: &str, inner: Option<&str>) -> Option<usize> {
    let quotes: &[char] = &['"', '\''];
    let begins = |line: &str, key: &str| {
        let rest = line.trim_start_matches(quotes).strip_prefix(key);
        rest.is_some_and(|rest| rest.trim_start_matches(quotes).trim_start().starts_with([':', '=']))
    };
    let lines: Vec<&str> = text.lines().collect();
    let outer = lines.iter().position(|line| begins(line, key))?;
    let within = |line: &&str| inner.is_some_and(|inner| begins(line.trim_start_matches([' ', '-']), inner));
    Some(lines[outer + 1..].iter().position(within).map_or(outer, |below| outer + 1 + below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_tables_and_lists() {
        let text = "seed = 1\n# plugin = 2\n[[plugin]]\npath = 'a'\n\n[[plugin]]\npath = 'b'\n[plugin.limits]\n  memry = 3\n\n[los]\nx = 1\n";
        let cases = [
            ("seed", None, 1),
            ("plugin", None, 3),
            ("plugin", Some("memry"), 9),
            ("plugin", Some("nowhere"), 3),
            ("los", None, 11),
            ("nowhere", None, 1),
        ];
        for (key, inner, line) in cases {
            assert_eq!(line_of(text, key, inner), line, "{key} {inner:?}");
        }
        let settings = "[[plugin]]\npath = 'a'\nconfig = { wieght = 1 }\n[[plugin]]\npath = 'b'\nwieght = 2\n";
        assert_eq!(line_of(settings, "plugin", Some("wieght")), 6);
        let yaml = "seed: 1\n'plugin':\n  - path: a\n    wieght: 2\n";
        assert_eq!((line_of(yaml, "plugin", None), line_of(yaml, "plugin", Some("wieght"))), (2, 4));
        assert_eq!(line_of(yaml, "plugin", Some("path")), 3);
    }
}
