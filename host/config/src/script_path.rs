//! Paths of scripts in a configuration: `FILE`, or `FILE:FUNCTION`.

/// A script's file, and the function in it that is the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptPath<'a> {
    /// Path of the file.
    pub file: &'a str,
    /// The function, if one is named.
    pub function: Option<&'a str>,
}

impl<'a> ScriptPath<'a> {
    /// Extensions of files that are scripts.
    pub const EXTENSIONS: [&'static str; 5] = ["py", "js", "mjs", "ts", "mts"];

    /// Parses a plugin's location. Returns `None` if its extension is not that of a script.
    #[must_use]
    pub fn parse(location: &'a str) -> Option<Self> {
        if Self::is_script(location) {
            return Some(Self { file: location, function: None });
        }
        let (file, function) = location.rsplit_once(':')?;
        (Self::is_function(function) && Self::is_script(file)).then_some(Self { file, function: Some(function) })
    }

    /// Returns whether a text could be the name of a function.
    #[must_use]
    pub fn is_function(text: &str) -> bool {
        !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_$".contains(c))
    }

    /// Returns whether a file is a script, by its extension.
    fn is_script(file: &str) -> bool {
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
        name.rsplit_once('.').is_some_and(|(stem, extension)| {
            !stem.is_empty() && Self::EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
        })
    }

    /// Returns the name of the plugin: the function's, or that of the file without its extension.
    #[must_use]
    pub fn name(&self) -> &'a str {
        let file = self.file.rsplit(['/', '\\']).next().unwrap_or(self.file);
        self.function.or_else(|| file.rsplit_once('.').map(|(stem, _)| stem)).unwrap_or(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_known_by_its_extension_and_may_name_a_function() {
        let parsed = |text| ScriptPath::parse(text).map(|path| (path.file, path.function, path.name()));
        assert_eq!(parsed("a/words.py"), Some(("a/words.py", None, "words")));
        assert_eq!(parsed("words.py:long"), Some(("words.py", Some("long"), "long")));
        assert_eq!(parsed(r"C:\a\words.TS:long"), Some((r"C:\a\words.TS", Some("long"), "long")));
        assert_eq!(parsed("a.b.mjs"), Some(("a.b.mjs", None, "a.b")));
        for other in ["words.wasm", "words", "words.py:", "words.py:a b", ".py", "dir.py/words", "x.wasm:f", "https://host:80"] {
            assert_eq!(parsed(other), None, "{other}");
        }
    }
}
