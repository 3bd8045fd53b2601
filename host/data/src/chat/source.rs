//! Rewrites a template where the engine's language differs from Jinja as transformers configures it:
//!
//! - `{% generation %}` becomes a call block ([`marks`]).
//! - An assignment to a namespace becomes a call of [`namespace::ASSIGN`].
//! - `x.items` that is not called becomes the filter [`methods::UNCALLED`]: in Python it is a method, even if `x` has such a key.
//! - String literals are written with the engine's escapes.
//! - `a % b` becomes the filter [`text::MODULO`], which also formats strings, and `a ~ b` the filter [`text::CONCAT`], which formats
//!   numbers as Python does. A unary plus is dropped.

use super::super::marks;
use super::pieces::{DEEPEST_BRACKETS, Tag, TagToken, TemplatePiece, split};
use super::{methods, namespace, text};

/// Maximum nesting of blocks; each `elif` counts as a level.
const DEEPEST_BLOCKS: usize = 128;

/// Variable for a value that is assigned to a namespace in several steps.
const ASSIGNED: &str = "assigned_in_passing";

/// Template in the engine's language.
pub(super) struct RewrittenTemplate {
    pub source: String,
    /// Whether the template marks the assistant's text.
    pub marked: bool,
}

/// Rewrites a template.
///
/// # Errors
/// If the template is too large or nested too deeply, or loads other templates.
pub(super) fn rewritten(source: &str) -> Result<RewrittenTemplate, String> {
    let mut writer = TemplateRewriter::default();
    for piece in split(source)? {
        match piece {
            TemplatePiece::Verbatim(text) => writer.source += text,
            TemplatePiece::Tag(tag) => writer.tag(&tag)?,
        }
    }
    Ok(RewrittenTemplate { source: writer.source, marked: writer.marked })
}

#[derive(Default)]
struct TemplateRewriter {
    source: String,
    marked: bool,
    /// Open blocks: the depth that each adds and, for a block that assigns a namespace's attribute, the two names.
    blocks: Vec<(usize, Option<(String, String)>)>,
    depth: usize,
}

impl TemplateRewriter {
    fn tag(&mut self, tag: &Tag<'_>) -> Result<(), String> {
        let Tag { open, tokens, space, close } = tag;
        let words: Vec<&str> = tokens.iter().map(|token| token.text).collect();
        let is_statement = open.starts_with("{%");
        let inside = match words.as_slice() {
            ["generation"] if is_statement => {
                self.marked = true;
                self.begin_block(None)?;
                tokens[0].space.to_owned() + &marks::call()
            }
            ["endgeneration"] if is_statement => {
                self.end_block();
                format!("{}endcall", tokens[0].space)
            }
            ["set", ..] if is_statement => self.set(tokens)?,
            ["endset", ..] if is_statement => {
                let target = self.end_block();
                let assignment = target.map(|(name, attribute)| assignment(&name, &attribute, ASSIGNED));
                format!("{}endset", tokens[0].space) + &assignment.map(|text| format!(" %}}{{% {text}")).unwrap_or_default()
            }
            [name, ..] if is_statement => {
                self.count(name, &words)?;
                expression(tokens)
            }
            _ => expression(tokens),
        };
        self.source.extend([open, inside.as_str(), space, close]);
        Ok(())
    }

    /// Rewrites an assignment, or the start of a block assignment.
    fn set(&mut self, tokens: &[TagToken<'_>]) -> Result<String, String> {
        let equals = tokens.iter().position(|token| token.text == "=");
        let end = equals.or_else(|| tokens.iter().position(|token| token.text == "|")).unwrap_or(tokens.len());
        let (targets, rest) = tokens.split_at(end);
        let dotted = |at: usize| match targets.get(at..at + 3)?.iter().map(|token| token.text).collect::<Vec<_>>()[..] {
            [name, ".", attribute] if is_name(name) && is_name(attribute) => Some((name.to_owned(), attribute.to_owned())),
            _ => None,
        };
        if equals.is_none() {
            let target = dotted(1).filter(|_| targets.len() == 4);
            let written = if target.is_some() { format!(" set {ASSIGNED}") } else { raw(targets) };
            self.begin_block(target)?;
            return Ok(written + &expression(rest));
        }
        let value = expression(&rest[1..]);
        if let Some((name, attribute)) = dotted(1).filter(|_| targets.len() == 4) {
            return Ok(format!(" {}", assignment(&name, &attribute, &value)));
        }
        // There are several targets; some may be attributes.
        let (mut written, mut later, mut at) = (String::new(), String::new(), 0);
        while at < targets.len() {
            if let Some((name, attribute)) = dotted(at) {
                let variable = format!("{ASSIGNED}_{at}");
                written += &format!("{}{variable}", targets[at].space);
                later += &format!(" %}}{{% {}", assignment(&name, &attribute, &variable));
                at += 3;
            } else {
                written += &raw(&targets[at..=at]);
                at += 1;
            }
        }
        Ok(format!("{written}{}={value}{later}", rest[0].space))
    }

    /// Counts open blocks.
    fn count(&mut self, name: &str, words: &[&str]) -> Result<(), String> {
        match name {
            "if" | "for" | "macro" | "call" | "filter" | "with" | "block" | "autoescape" => self.begin_block(None),
            "elif" => {
                if let Some((depth, _)) = self.blocks.last_mut() {
                    *depth += 1;
                    self.deepen()?;
                }
                Ok(())
            }
            "include" | "import" | "extends" => Err(format!("{{% {name} %}}: a chat template can't load other templates")),
            "from" if words.contains(&"import") => Err("{% from %}: a chat template can't load other templates".into()),
            _ if name.starts_with("end") => {
                self.end_block();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin_block(&mut self, target: Option<(String, String)>) -> Result<(), String> {
        self.blocks.push((1, target));
        self.deepen()
    }

    fn deepen(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > DEEPEST_BLOCKS {
            return Err(format!("it has more than {DEEPEST_BLOCKS} blocks within each other"));
        }
        Ok(())
    }

    fn end_block(&mut self) -> Option<(String, String)> {
        let (depth, target) = self.blocks.pop()?;
        self.depth -= depth;
        target
    }
}

fn assignment(name: &str, attribute: &str, value: &str) -> String {
    format!("do {}({name}, {attribute:?}, ({value}))", namespace::ASSIGN)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Writes tokens unchanged.
fn raw(tokens: &[TagToken<'_>]) -> String {
    tokens.iter().flat_map(|token| [token.space, token.text]).collect()
}

/// Rewrites the expressions in a tag.
fn expression(tokens: &[TagToken<'_>]) -> String {
    ExpressionRewriter { tokens, at: 0, depth: 0 }.all()
}

/// Keywords between expressions.
const KEYWORDS: [&str; 8] = ["if", "elif", "else", "and", "or", "not", "in", "is"];

/// Parses a tag's expressions by the precedence of Jinja's operators, and rewrites them.
struct ExpressionRewriter<'a> {
    tokens: &'a [TagToken<'a>],
    at: usize,
    depth: usize,
}

impl ExpressionRewriter<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", |token| token.text)
    }

    /// Writes the next token unchanged.
    fn next(&mut self) -> String {
        let token = self.tokens.get(self.at).copied().unwrap_or(TagToken { space: "", text: "" });
        self.at += 1;
        match token.text.chars().next() {
            Some(quote @ ('\'' | '"')) if token.text.contains('\\') => token.space.to_owned() + &literal(token.text, quote),
            _ => [token.space, token.text].concat(),
        }
    }

    /// Rewrites all remaining tokens.
    fn all(mut self) -> String {
        let mut text = String::new();
        while self.at < self.tokens.len() {
            text += &self.sequence();
            text += &self.next();
        }
        text
    }

    /// Rewrites the inside of brackets: expressions and their separators.
    fn sequence(&mut self) -> String {
        let mut text = String::new();
        while !matches!(self.peek(), "" | ")" | "]" | "}") {
            text += &if self.begins_operand() { self.sum() } else { self.next() };
        }
        text
    }

    fn begins_operand(&self) -> bool {
        let word = self.peek();
        let first = |c: char| c.is_alphanumeric() || matches!(c, '_' | '\'' | '"' | '(' | '[' | '{' | '+' | '-');
        word.starts_with(first) && !KEYWORDS.contains(&word)
    }

    fn sum(&mut self) -> String {
        let mut text = self.concatenation();
        while matches!(self.peek(), "+" | "-") {
            text += &self.next();
            text += &self.concatenation();
        }
        text
    }

    fn concatenation(&mut self) -> String {
        let mut parts = vec![self.product()];
        while self.peek() == "~" {
            self.at += 1;
            parts.push(self.product());
        }
        if parts.len() == 1 { parts.swap_remove(0) } else { format!(" ([{}] | {})", parts.join(", "), text::CONCAT) }
    }

    fn product(&mut self) -> String {
        let mut text = self.power();
        while matches!(self.peek(), "*" | "/" | "//" | "%") {
            if self.peek() == "%" {
                self.at += 1;
                let right = self.power();
                text = format!(" (({text}) | {}({right}))", text::MODULO);
            } else {
                text += &self.next();
                text += &self.power();
            }
        }
        text
    }

    fn power(&mut self) -> String {
        let mut text = self.unary(true);
        while self.peek() == "**" {
            text += &self.next();
            text += &self.unary(true);
        }
        text
    }

    fn unary(&mut self, filtered: bool) -> String {
        let mut text = String::new();
        while matches!(self.peek(), "+" | "-") {
            if self.peek() == "-" {
                text += &self.next();
            } else {
                text.push(' ');
                self.at += 1;
            }
        }
        let primary = self.primary();
        text += &self.postfix(primary);
        if filtered {
            text += &self.filters();
        }
        text
    }

    fn primary(&mut self) -> String {
        match self.peek() {
            "(" | "[" | "{" => self.group(),
            "" | ")" | "]" | "}" | "," => String::new(),
            _ => {
                let mut text = self.next();
                // Adjacent literals are concatenated.
                while text.ends_with(['\'', '"']) && self.peek().starts_with(['\'', '"']) {
                    text += &self.next();
                }
                text
            }
        }
    }

    /// Rewrites brackets and their contents.
    fn group(&mut self) -> String {
        if self.depth > DEEPEST_BRACKETS {
            return self.next();
        }
        self.depth += 1;
        let text = self.next() + &self.sequence();
        self.depth -= 1;
        text + &self.next()
    }

    fn postfix(&mut self, mut text: String) -> String {
        loop {
            match self.peek() {
                "." if self.is_uncalled_method() => {
                    self.at += 1;
                    text = format!(" (({text}) | {}({:?}))", methods::UNCALLED, self.next().trim());
                }
                "." => text.extend([self.next(), self.next()]),
                "(" | "[" => text += &self.group(),
                _ => return text,
            }
        }
    }

    /// Returns whether an attribute follows that is named like a mapping's method and is not called.
    fn is_uncalled_method(&self) -> bool {
        let word = |ahead: usize| self.tokens.get(self.at + ahead).map_or("", |token| token.text);
        methods::OF_MAPPINGS.contains(&word(1)) && word(2) != "("
    }

    /// Writes filters and tests.
    fn filters(&mut self) -> String {
        let mut text = String::new();
        loop {
            match self.peek() {
                "|" => text += &self.next(),
                "is" => {
                    text += &self.next();
                    if self.peek() == "not" {
                        text += &self.next();
                    }
                }
                _ => return text,
            }
            text += &self.next();
            while self.peek() == "." {
                text.extend([self.next(), self.next()]);
            }
            if self.peek() == "(" {
                text += &self.group();
            }
        }
    }
}

/// Translates a string literal with Python's escapes into the engine's. Sequences that are not escapes in Python are kept.
fn literal(text: &str, quote: char) -> String {
    let mut written = String::from(quote);
    let mut rest = text.strip_prefix(quote).unwrap_or(text);
    while let Some((before, after)) = rest.split_once('\\') {
        written += before;
        let (c, length) = escaped(after);
        match c {
            Some('\\') => written += "\\\\",
            Some(c) if c == quote => written.extend(['\\', quote]),
            Some(c) => written.push(c),
            None if length > 0 => {
                written.push('\\');
                written += &after[..length];
            }
            None => written += "\\\\",
        }
        rest = &after[length..];
    }
    written + rest
}

/// Returns the character for an escape sequence, and the length of the sequence after the backslash. The character is `None` for a line
/// break, for half of a surrogate pair, and for a sequence that is not an escape, whose length is zero.
fn escaped(text: &str) -> (Option<char>, usize) {
    let Some(kind) = text.chars().next() else { return (None, 0) };
    let number = |from: usize, digits: usize, radix: u32| {
        let digits = text.get(from..from + digits)?;
        let number = if digits.contains(['+', '-']) { None } else { u32::from_str_radix(digits, radix).ok() };
        number.map(|number| (char::from_u32(number), from + digits.len()))
    };
    let octal = text.chars().take(3).take_while(|c| c.is_digit(8)).count();
    match kind {
        '\\' | '\'' | '"' => (Some(kind), 1),
        'n' => (Some('\n'), 1),
        'r' => (Some('\r'), 1),
        't' => (Some('\t'), 1),
        'a' => (Some('\u{7}'), 1),
        'b' => (Some('\u{8}'), 1),
        'v' => (Some('\u{b}'), 1),
        'f' => (Some('\u{c}'), 1),
        'x' => number(1, 2, 16).unwrap_or((None, 0)),
        'u' => number(1, 4, 16).unwrap_or((None, 0)),
        'U' => number(1, 8, 16).unwrap_or((None, 0)),
        _ if octal > 0 => number(0, octal, 8).unwrap_or((None, 0)),
        _ => (None, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(text: &str) -> String {
        rewritten(text).unwrap().source
    }

    /// Removes whitespace, which is insignificant in a tag.
    fn tight(text: &str) -> String {
        text.replace(' ', "")
    }

    #[test]
    fn operators_become_filters_by_their_precedence() {
        for (before, after) in [
            ("{{ '%s' % x }}", "{{(('%s')|modulo(x))}}"),
            ("{{ 2 * y % z + 1 }}", "{{((2*y)|modulo(z))+1}}"),
            ("{{ a ~ b + 1 ~ c | upper ~ 'd' }}", "{{([a,b]|concat)+([1,c|upper,'d']|concat)}}"),
            ("{{ -x % +y }}", "{{((-x)|modulo(y))}}"),
            ("{% if a ~ b == '12' and not c % 2 %}", "{%if([a,b]|concat)=='12'andnot((c)|modulo(2))%}"),
            ("{{ f(a % b, k=c ~ d)[e ~ f].g }}", "{{f(((a)|modulo(b)),k=([c,d]|concat))[([e,f]|concat)].g}}"),
            ("{% for m in a ~ b recursive %}", "{%formin([a,b]|concat)recursive%}"),
            ("{{ 'a' 'b' ~ {'x': 1 ~ 2} }}", "{{(['a''b',{'x':([1,2]|concat)}]|concat)}}"),
            ("{{ a.items.type ~ b.items() }}", "{{([((a)|attribute_or_method(\"items\")).type,b.items()]|concat)}}"),
            (r"{{ '\n\x41\101\/\'\u00e9\\' }}", "{{'\nAA\\\\/\\'é\\\\'}}"),
            ("{{ x is not divisibleby(3 % 2) ~ 'y' }}", "{{([xisnotdivisibleby(((3)|modulo(2))),'y']|concat)}}"),
        ] {
            let after = after.replace("modulo", text::MODULO).replace("concat", text::CONCAT);
            assert_eq!(tight(&source(before)), after, "{before}");
        }
        for same in
            ["{{ a.b(c)[1:-2] | d('e', f=g) }}", "{# a % b #}{{ '%} ~' }}~{% raw %}{{ a ~ b }}{% endraw %}", "{{ a - 1 }}"]
        {
            assert_eq!(source(same), same);
        }
    }

    #[test]
    fn assignments_to_namespaces_become_calls() {
        for (before, after) in [
            ("{%- set ns.x = a ~ 1 -%}", "{%-doassign(ns,\"x\",(([a,1]|concat)))-%}"),
            ("{% set x = 1 %}", "{%setx=1%}"),
            ("{% set a, ns.x = 1, 2 -%}", "{%seta,named_3=1,2%}{%doassign(ns,\"x\",(named_3))-%}"),
            ("{% set ns.x %}a{% endset -%}", "{%setnamed%}a{%endset%}{%doassign(ns,\"x\",(named))-%}"),
            ("{% set ns.x | upper %}a{% endset %}", "{%setnamed|upper%}a{%endset%}{%doassign(ns,\"x\",(named))%}"),
            ("{% set x %}a{% endset %}", "{%setx%}a{%endset%}"),
        ] {
            let after = after.replace("assign", namespace::ASSIGN).replace("named", ASSIGNED).replace("concat", text::CONCAT);
            assert_eq!(tight(&source(before)), after, "{before}");
        }
    }

    #[test]
    fn what_marks_the_assistants_text_becomes_a_call_block_outside_comments() {
        let RewrittenTemplate { source, marked } =
            rewritten("{# {% generation %} #}a{%- generation -%}b{%+ endgeneration %}{% if x %}{{ y }}{% endif %}{%").unwrap();
        assert!(marked);
        let call = marks::call();
        let expected =
            format!("{{# {{% generation %}} #}}a{{%- {call} -%}}b{{%+ endcall %}}{{% if x %}}{{{{ y }}}}{{% endif %}}{{%");
        assert_eq!(source, expected);
        assert!(!rewritten("{#- {% generation %} -#}{% set generation = 1 %}").unwrap().marked);
    }

    #[test]
    fn depth_and_other_templates_are_refused() {
        let error = |source: &str| rewritten(source).err().unwrap();
        for source in [
            "{% if true %}".repeat(20_000),
            "{% for x in y %}".repeat(200),
            format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(1000)),
        ] {
            assert!(error(&source).contains("blocks within each other") || error(&source).contains("tags"), "{}", error(&source));
        }
        assert!(rewritten(&"{% if x %}{% elif y %}{% endif %}".repeat(500)).is_ok());
        for source in ["{% include 'chat' %}", "{% import 'chat' as c %}", "{% extends 'a' %}", "{% from 'a' import b %}"] {
            assert!(error(source).contains("can't load other templates"), "{source}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_little_is_added(source in "[{}%#'\"\\\\a~(). |é\\[\\],+set-]{0,60}") {
            if let Ok(RewrittenTemplate { source: written, .. }) = rewritten(&source) {
                prop_assert!(written.len() <= 64 * source.len() + 64);
            }
        }
    }
}
