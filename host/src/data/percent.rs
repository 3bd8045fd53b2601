//! Python's `'...' % values` in templates. The engine's `%` only takes numbers; its filter `format` works like Python's operator.

/// Rewrites formats with a literal: `'%s' % x` becomes `'%s' | format(x)`.
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

/// Rewrites one tag.
fn expression(tag: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(tag.len()), tag);
    while !rest.is_empty() {
        let (own, after) = rest.split_at(piece(rest));
        text += own;
        rest = after;
        let operator = after.trim_start().strip_prefix('%').filter(|right| own.len() > 1 && !right.starts_with('}'));
        if let Some(right) = operator.map(str::trim_start)
            && let Some(length) = operand(right)
        {
            let values = &right[..length];
            let tuple = group(values).filter(|&all| all == length).map(|all| &values[1..all - 1]);
            let values = expression(tuple.map_or(values, |inner| inner.trim_end().trim_end_matches(',')));
            text += &format!(" | format({values})");
            rest = &right[length..];
        }
    }
    text
}

/// Returns the length of the operand that the text begins with: a name, a number, a string or a group in parentheses, with calls,
/// attributes, subscripts and filters after it.
fn operand(text: &str) -> Option<usize> {
    let word = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
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
        }
    }
}
