//! Templates of prompts, which are built from a dataset's columns.

/// A text with placeholders for columns, such as `Question: {question}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptTemplate {
    parts: Vec<PromptTemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PromptTemplatePart {
    Text(String),
    /// Name of a column, or of a part of it, as in `choices.0`.
    Column(String),
}

impl PromptTemplate {
    /// Parses a template: `{name}` inserts a column, `{{` and `}}` are literal braces.
    ///
    /// # Errors
    /// If a brace has no partner, or no column is named; the message says where.
    pub fn parse(template: &str) -> Result<Self, String> {
        let (mut parts, mut text) = (Vec::new(), String::new());
        let mut rest = template.chars().enumerate().peekable();
        while let Some((at, c)) = rest.next() {
            let is_double = |next: Option<&(usize, char)>| next.is_some_and(|(_, next)| *next == c);
            match c {
                '{' | '}' if is_double(rest.peek()) => {
                    rest.next();
                    text.push(c);
                }
                '{' => {
                    let mut name = String::new();
                    loop {
                        match rest.next() {
                            Some((_, '}')) => break,
                            Some((_, c)) if c != '{' => name.push(c),
                            _ => return Err(unpaired('{', at)),
                        }
                    }
                    if name.trim().is_empty() {
                        return Err(format!("the braces at character {} name no column; {{{{}}}} is written as {{}}", at + 1));
                    }
                    parts.extend((!text.is_empty()).then(|| PromptTemplatePart::Text(std::mem::take(&mut text))));
                    parts.push(PromptTemplatePart::Column(name.trim().to_owned()));
                }
                '}' => return Err(unpaired('}', at)),
                c => text.push(c),
            }
        }
        parts.extend((!text.is_empty()).then_some(PromptTemplatePart::Text(text)));
        let template = Self { parts };
        if template.columns().next().is_none() {
            return Err("names no column, so that all prompts would be the same; name one, as in '{question}'".into());
        }
        Ok(template)
    }

    /// Returns the names of the columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| if let PromptTemplatePart::Column(name) = part { Some(name.as_str()) } else { None })
    }

    /// Returns the text with each placeholder replaced by its value.
    ///
    /// # Errors
    /// The first error of `value`.
    pub fn fill<E>(&self, mut value: impl FnMut(&str) -> Result<String, E>) -> Result<String, E> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                PromptTemplatePart::Text(text) => filled.push_str(text),
                PromptTemplatePart::Column(name) => filled.push_str(&value(name)?),
            }
        }
        Ok(filled)
    }
}

fn unpaired(brace: char, at: usize) -> String {
    let what = if brace == '{' { "is not closed" } else { "closes nothing" };
    format!("the {brace:?} at character {} {what}; write {brace}{brace} for a brace", at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str) -> Result<String, String> {
        PromptTemplate::parse(template)?.fill(|name| Ok(format!("<{name}>")))
    }

    #[test]
    fn names_are_replaced_and_double_braces_are_braces() {
        assert_eq!(filled("{question}").unwrap(), "<question>");
        assert_eq!(filled("Q: { question }\nA ({choices.0}):").unwrap(), "Q: <question>\nA (<choices.0>):");
        assert_eq!(filled("{{\"a\": {x}}}").unwrap(), "{\"a\": <x>}");
        assert_eq!(filled("\\boxed{{}} {größe}").unwrap(), "\\boxed{} <größe>");
    }

    #[test]
    fn a_brace_without_its_partner_is_named() {
        for (template, words) in [
            ("{question", "'{' at character 1 is not closed; write {{"),
            ("a {b {c}", "'{' at character 3"),
            ("ä} {b}", "'}' at character 2 closes nothing; write }}"),
            ("{} {b}", "at character 1 name no column"),
            ("question", "name one, as in '{question}'"),
            ("{{question}}", "names no column"),
            ("", "names no column"),
        ] {
            let said = PromptTemplate::parse(template).unwrap_err();
            assert!(said.contains(words), "{template}: {said}");
        }
    }
}
