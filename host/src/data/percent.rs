//! Python's `'...' % values` in templates. The engine's `%` only takes numbers; its filter `format` works like Python's operator.

/// Rewrites formats: `'%s' % x` becomes `'%s' | format(x)`, and `a % b` asks whether `a` is a string.
pub(super) fn rewritten(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() {
        let (before, tag) = rest.split_at(at);
        text += before;
        let length = if tag.starts_with("{#") { tag.find("#}").map_or(tag.len(), |end| end + 2) } else { length_of(tag) };
        text += &if tag.starts_with("{#") { tag[..length].to_owned() } else { expression(&tag[..length]) };
        rest = &tag[length..];
    }
    text + rest
}

/// Returns the length of a tag with its ends, which strings in it may contain.
fn length_of(tag: &str) -> usize {
    let end = if tag.starts_with("{{") { "}}" } else { "%}" };
    let mut at = 2;
    let mut open = 0;
    while at < tag.len() {
        let left = &tag[at..];
        // A dict's own braces may stand before the end.
        if open == 0 && left.starts_with(end) {
            return at + 2;
        }
        match left.as_bytes()[0] {
            b'{' => open += 1,
            b'}' => open = usize::saturating_sub(open, 1),
            _ => {}
        }
        at += piece(left);
    }
    tag.len()
}

/// Returns the length of a string literal, if the text begins with one, or of its first character.
fn piece(text: &str) -> usize {
    literal(text).unwrap_or_else(|| text.chars().next().map_or(1, char::len_utf8))
}

/// Returns the length of the string literal that the text begins with.
fn literal(text: &str) -> Option<usize> {
    let quote = text.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// What precedes an operator at one depth of parentheses.
#[derive(Clone, Copy, Default)]
struct Left {
    /// Where its left operand begins in the rewritten text, if one has ended.
    operand: Option<usize>,
    /// The last character that is not a space.
    last: char,
    /// Whether what stands before the operand binds as tightly as the operator, or tighter.
    bound: bool,
}

impl Left {
    /// Notes a token that is part of an operand, or begins one.
    fn operand(&mut self, token: &str, at: usize) {
        let continues = self.operand.is_some() && (['.', '|'].contains(&self.last) || token.starts_with(['(', '[']));
        if !continues {
            (self.operand, self.bound) = (Some(at), ['*', '/', '%', '-'].contains(&self.last));
        }
        self.last = 'a';
    }

    /// Notes an operator or a keyword.
    fn operator(&mut self, last: char) {
        (self.operand, self.last) = (None, last);
    }
}

/// Words that end an operand.
const KEYWORDS: [&str; 10] = ["and", "call", "elif", "else", "for", "if", "in", "is", "not", "or"];

/// Rewrites one tag.
fn expression(tag: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(tag.len()), tag);
    let mut depths = vec![Left::default()];
    while !rest.is_empty() {
        let (own, after) = rest.split_at(token(rest));
        rest = after;
        let inside = depths.len() > 1;
        let Some(left) = depths.last_mut() else { break };
        if let Some((begin, right)) = left.operand.zip(operator(own, after)).filter(|_| !left.bound)
            && let Some((length, written)) = formatted(&text[begin..], right)
        {
            text.replace_range(begin.., &written);
            rest = &right[length..];
            left.operator('%');
            continue;
        }
        match own.chars().next() {
            Some(c) if c.is_whitespace() => {}
            Some('(' | '[' | '{') => {
                left.operand(own, text.len());
                depths.push(Left::default());
            }
            Some(')' | ']' | '}') if inside => drop(depths.pop()),
            Some(c @ ('.' | '|')) => left.last = c,
            Some(_) if KEYWORDS.contains(&own) && left.last != '|' => left.operator(' '),
            Some(c) if own.len() > 1 || c.is_alphanumeric() || c == '_' => left.operand(own, text.len()),
            Some(c) => left.operator(c),
            None => {}
        }
        text += own;
    }
    text
}

/// Returns the length of the string literal, the word or the character that the text begins with.
fn token(text: &str) -> usize {
    literal(text).unwrap_or_else(|| word(text).max(text.chars().next().map_or(1, char::len_utf8)))
}

/// Returns the length of the word that the text begins with.
fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Returns what follows the operator, if this is it and not the end of a tag.
fn operator<'a>(own: &str, after: &'a str) -> Option<&'a str> {
    (own == "%" && !after.starts_with('}')).then(|| after.trim_start())
}

/// Maximum length of the operands of an operator that is rewritten for a left one that may be a string, since it repeats them.
const LONGEST: usize = 256;

/// Returns the length of the right operand and what to write for both: a literal is a format; anything else is one if it turns out
/// to be a string. A number on the right is taken for arithmetic.
fn formatted(left: &str, right: &str) -> Option<(usize, String)> {
    let left = left.trim_end();
    let is_literal = literal(left) == Some(left.len());
    // A long one is not looked through for each of the operators in it.
    let near = if is_literal { right.len() } else { right.floor_char_boundary(LONGEST) };
    let length = operand(&right[..near]).filter(|length| is_literal || *length < near || near == right.len())?;
    let values = &right[..length];
    let tuple = group(values).filter(|&all| all == length && values.starts_with('(')).map(|all| &values[1..all - 1]);
    let inner = tuple.map_or(values, |inner| inner.trim_end().trim_end_matches(','));
    if is_literal {
        return Some((length, format!("{left} | format({})", expression(inner))));
    }
    let is_number = values.chars().all(|c| c.is_ascii_digit());
    let is_word = left.starts_with(|c: char| c.is_alphabetic() || ['_', '('].contains(&c));
    // What is repeated has nothing that was repeated before.
    let rewritten = is_word && !is_number && left.len() + length <= LONGEST && !left.contains(" is string else ");
    rewritten.then(|| (length, format!("({left} | format({inner}) if {left} is string else {left} % {values})")))
}

/// Returns the length of the operand that the text begins with: a name, a number, a string or a group in parentheses, with calls,
/// attributes, subscripts and filters after it.
fn operand(text: &str) -> Option<usize> {
    let first = group(text).or_else(|| literal(text)).unwrap_or_else(|| word(text));
    let mut at = (first > 0).then_some(first)?;
    loop {
        let left = &text[at..];
        let spaced = left.trim_start();
        let space = left.len() - spaced.len();
        if let Some(length) = group(left) {
            at += length;
        } else if let Some(name) = left.strip_prefix('.') {
            at += 1 + word(name);
        } else if let Some(filter) = spaced.strip_prefix('|') {
            let name = filter.trim_start();
            at += space + 1 + (filter.len() - name.len()) + word(name);
        } else {
            return Some(at);
        }
    }
}

/// Returns the length of the parentheses or brackets that the text begins with.
fn group(text: &str) -> Option<usize> {
    let (mut open, mut at) = (0_usize, 0);
    text.starts_with(['(', '[']).then_some(())?;
    while at < text.len() {
        match text.as_bytes()[at] {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        at += piece(&text[at..]);
        if open == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn formats_that_are_literals_become_filters() {
        for (source, expected) in [
            ("{{ '%s' % x }}", "{{ '%s' | format(x) }}"),
            ("{{ '%s: %d' % (m.role, n|length) + 'a' }}", "{{ '%s: %d' | format(m.role, n|length) + 'a' }}"),
            ("{%- set x = \"%s\" % m['a'].f(1) | trim -%}", "{%- set x = \"%s\" | format(m['a'].f(1) | trim) -%}"),
            ("{{ '%s' % ('%s' % x,) }}", "{{ '%s' | format('%s' | format(x)) }}"),
            ("{{ '%s' % (a or b).c }}", "{{ '%s' | format((a or b).c) }}"),
            // What is no format of a string stays.
            ("{% if x == 'a' %}'b' % c{% endif %}", "{% if x == 'a' %}'b' % c{% endif %}"),
            ("{% if loop.index0 % 2 == 0 %}{{ x['a'] % 2 }}", "{% if loop.index0 % 2 == 0 %}{{ x['a'] % 2 }}"),
            // A variable may hold one.
            ("{{ a.b % x }}", "{{ (a.b | format(x) if a.b is string else a.b % x) }}"),
            ("{{- 'c' + f[0] % (x, y) -}}", "{{- 'c' + (f[0] | format(x, y) if f[0] is string else f[0] % (x, y)) -}}"),
            ("{% set z = a | trim % x %}", "{% set z = (a | trim | format(x) if a | trim is string else a | trim % x) %}"),
            ("{{ f(a % b) }}", "{{ f((a | format(b) if a is string else a % b)) }}"),
            // One beside another operator of its kind is arithmetic.
            ("{{ a * b % c }}{{ -a % b }}{{ a % 2 % b }}", "{{ a * b % c }}{{ -a % b }}{{ a % 2 % b }}"),
            ("{# '%s' % x #}{{ 'it\\'s %} }}' }}%", "{# '%s' % x #}{{ 'it\\'s %} }}' }}%"),
            ("{{ '%(a)s' % {'a': 1} }}", "{{ '%(a)s' % {'a': 1} }}"),
        ] {
            assert_eq!(rewritten(source), expected);
        }
    }

    proptest! {
        #[test]
        fn nothing_else_is_changed_and_nothing_panics(source in "[{}%#'\"\\\\a(). |é\\[\\],-]{0,40}") {
            let written = rewritten(&source);
            prop_assert!(written == source || written.contains("| format("));
            prop_assert!(written.len() <= 12 * source.len() + 64);
        }
    }
}
