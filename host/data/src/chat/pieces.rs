//! Splits a template into text, comments and tags, and a tag into tokens, each in one pass.

/// Maximum number of tags; real templates have some hundreds.
const MOST_TAGS: usize = 8192;

/// Maximum number of tokens per tag.
const MOST_TOKENS: usize = 8192;

/// Maximum nesting of brackets in a tag.
pub(super) const DEEPEST_BRACKETS: usize = 64;

/// Piece of a template.
#[derive(Debug)]
pub(super) enum TemplatePiece<'a> {
    /// Text, comment or raw block, unchanged.
    Verbatim(&'a str),
    Tag(Tag<'a>),
}

/// Tag: `{{ ... }}` or `{% ... %}`.
#[derive(Debug)]
pub(super) struct Tag<'a> {
    /// Opening delimiter with its whitespace control, as in `{%-`.
    pub open: &'a str,
    pub tokens: Vec<TagToken<'a>>,
    /// Whitespace after the last token.
    pub space: &'a str,
    /// Closing delimiter with its whitespace control.
    pub close: &'a str,
}

/// Token, and the whitespace before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TagToken<'a> {
    pub space: &'a str,
    pub text: &'a str,
}

/// Splits a template. Syntax errors are left for the engine to report.
///
/// # Errors
/// If it has too many tags or tokens, or brackets are nested too deeply.
pub(super) fn split(source: &str) -> Result<Vec<TemplatePiece<'_>>, String> {
    let (mut pieces, mut rest, mut tags) = (Vec::new(), source, 0);
    while let Some(at) = opening(rest) {
        let (text, from) = rest.split_at(at);
        pieces.push(TemplatePiece::Verbatim(text));
        if from.starts_with("{#") {
            let length = from.find("#}").map_or(from.len(), |end| end + 2);
            pieces.push(TemplatePiece::Verbatim(&from[..length]));
            rest = &from[length..];
            continue;
        }
        let Some((tag, after)) = tag(from)? else {
            rest = from;
            break;
        };
        tags += 1;
        if tags > MOST_TAGS {
            return Err(format!("it has more than {MOST_TAGS} tags"));
        }
        rest = after;
        if tag.tokens.len() == 1 && tag.open.starts_with("{%") && tag.tokens[0].text == "raw" {
            let length = end_of_raw(rest);
            let whole = from.len() - rest.len() + length;
            pieces.push(TemplatePiece::Verbatim(&from[..whole]));
            rest = &rest[length..];
        } else {
            pieces.push(TemplatePiece::Tag(tag));
        }
    }
    pieces.push(TemplatePiece::Verbatim(rest));
    Ok(pieces)
}

/// Returns where the next tag or comment begins.
fn opening(text: &str) -> Option<usize> {
    let is_opening = |(at, _): &(usize, &str)| matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
    text.match_indices('{').find(is_opening).map(|(at, _)| at)
}

/// Returns the length of the text up to the end of the tag `endraw`.
fn end_of_raw(text: &str) -> usize {
    let mut at = 0;
    while let Some(found) = text[at..].find("{%") {
        let begin = at + found + 2;
        let inside = text[begin..].trim_start_matches(['-', '+']).trim_start();
        if let Some(after) = inside.strip_prefix("endraw") {
            let close = after.find("%}").map_or(after.len(), |end| end + 2);
            return text.len() - after.len() + close;
        }
        at = begin;
    }
    text.len()
}

/// Parses the tag at the beginning of a text. Also returns the text after it. `None` if the tag is not closed.
fn tag(text: &str) -> Result<Option<(Tag<'_>, &str)>, String> {
    let end = if text.starts_with("{{") { "}}" } else { "%}" };
    let open = &text[..2 + usize::from(text[2..].starts_with(['-', '+']))];
    let (mut rest, mut depth, mut tokens) = (&text[open.len()..], 0_usize, Vec::new());
    loop {
        let inside = rest.trim_start();
        let space = &rest[..rest.len() - inside.len()];
        let unsigned = inside.strip_prefix(['-', '+']).unwrap_or(inside);
        if depth == 0 && unsigned.starts_with(end) {
            let (close, after) = inside.split_at(inside.len() - unsigned.len() + 2);
            return Ok(Some((Tag { open, tokens, space, close }, after)));
        }
        let length = token(inside);
        if length == 0 {
            return Ok(None);
        }
        let (own, after) = inside.split_at(length);
        match own {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST_BRACKETS {
            return Err(format!("it has more than {DEEPEST_BRACKETS} brackets within each other"));
        }
        if tokens.len() == MOST_TOKENS {
            return Err(format!("it has a tag of more than {MOST_TOKENS} words and signs"));
        }
        tokens.push(TagToken { space, text: own });
        rest = after;
    }
}

/// Returns the length of the token at the beginning of a text.
fn token(text: &str) -> usize {
    let Some(first) = text.chars().next() else { return 0 };
    match first {
        '\'' | '"' => string(text, first),
        '0'..='9' => number(text),
        _ if is_word(first) => text.find(|c| !is_word(c)).unwrap_or(text.len()),
        _ => match text.as_bytes() {
            [b'*', b'*', ..] | [b'/', b'/', ..] | [b'=' | b'!' | b'<' | b'>', b'=', ..] => 2,
            _ => first.len_utf8(),
        },
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of a string literal; the whole text if the literal is not closed.
fn string(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if !escaped && c == quote {
            return at + 1;
        }
        escaped = !escaped && c == '\\';
    }
    text.len()
}

/// Returns the length of a number.
fn number(text: &str) -> usize {
    let digits = |text: &str| text.find(|c| !is_word(c)).unwrap_or(text.len());
    let mut length = digits(text);
    if text[length..].starts_with('.') && text[length + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        length += 1 + digits(&text[length + 1..]);
    }
    let plain = !text.starts_with("0x") && !text.starts_with("0X");
    if plain && text[..length].ends_with(['e', 'E']) && text[length..].starts_with(['+', '-']) {
        length += 1 + digits(&text[length + 1..]);
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(source: &str) -> Vec<&str> {
        let pieces = split(source).unwrap();
        let tags = pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Tag(tag) => Some(tag.tokens.iter().map(|token| token.text)),
            TemplatePiece::Verbatim(_) => None,
        });
        tags.flatten().collect()
    }

    #[test]
    fn tags_are_split_into_words_and_signs() {
        assert_eq!(tokens("a{{- x.y[1:-2] -}}b"), ["x", ".", "y", "[", "1", ":", "-", "2", "]"]);
        assert_eq!(tokens("{{ 1.5e-3 ** 2 // 'it\\'s }}' }}"), ["1.5e-3", "**", "2", "//", "'it\\'s }}'"]);
        assert_eq!(tokens("{{ {'a': {}} }}"), ["{", "'a'", ":", "{", "}", "}"]);
        assert_eq!(tokens("{# {{ x }} #}{% raw %}{{ y }}{%- endraw %}{% if z -%}{"), ["if", "z"]);
    }

    #[test]
    fn what_would_cost_too_much_is_refused_at_once() {
        assert!(split(&"{{ x }}".repeat(MOST_TAGS + 1)).unwrap_err().contains("tags"));
        assert!(split(&format!("{{{{ {}", "[".repeat(100_000))).unwrap_err().contains("brackets"));
        assert!(split(&format!("{{{{ 1{} }}}}", " + 1".repeat(100_000))).unwrap_err().contains("words and signs"));
        assert!(split(&"{".repeat(1 << 20)).is_err() && split(&"{#".repeat(1 << 19)).is_ok());
    }

    #[test]
    fn nothing_is_lost() {
        for source in ["", "{", "{{", "{% raw %}{{", "a {{- b  +}} c", "{{ 'a", "{% x %}}{#", "é{{ é }}é"] {
            let whole: String = split(source).unwrap().iter().map(written).collect();
            assert_eq!(whole, source);
        }
    }

    fn written(piece: &TemplatePiece<'_>) -> String {
        match piece {
            TemplatePiece::Verbatim(text) => (*text).to_owned(),
            TemplatePiece::Tag(tag) => {
                let inside: String = tag.tokens.iter().flat_map(|token| [token.space, token.text]).collect();
                [tag.open, &inside, tag.space, tag.close].concat()
            }
        }
    }
}
