//! Rewrites the expressions in a tag by the precedence of Jinja's operators; [`super::source`] lists what is rewritten.

use super::operators::{COMPARED, MULTIPLIED, NEGATIVE, POSITIVE};
use super::pieces::{DEEPEST_BRACKETS, TagToken};
use super::sequences::SLICED;
use super::{methods, text};

/// Rewrites the expressions in a tag.
pub(super) fn expression(tokens: &[TagToken<'_>]) -> String {
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
        self.ahead(0)
    }

    /// Returns the token that follows after this many others.
    fn ahead(&self, count: usize) -> &str {
        self.tokens.get(self.at + count).map_or("", |token| token.text)
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
            text += &self.sequence(false);
            text += &self.next();
        }
        text
    }

    /// Rewrites the inside of brackets: expressions and their separators. In a subscript it ends at a colon.
    fn sequence(&mut self, ends_at_colon: bool) -> String {
        let mut text = String::new();
        let is_end = |word: &str| matches!(word, "" | ")" | "]" | "}") || ends_at_colon && word == ":";
        while !is_end(self.peek()) {
            text += &if self.begins_operand() { self.comparison() } else { self.next() };
        }
        text
    }

    fn begins_operand(&self) -> bool {
        let word = self.peek();
        let first = |c: char| c.is_alphanumeric() || matches!(c, '_' | '\'' | '"' | '(' | '[' | '{' | '+' | '-');
        word.starts_with(first) && !KEYWORDS.contains(&word)
    }

    /// Rewrites a chain of comparisons, unless it only tests equality.
    fn comparison(&mut self) -> String {
        let (first, mut rest) = (self.sum(), Vec::new());
        loop {
            let written = match self.peek() {
                "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" => self.next(),
                "not" if self.ahead(1) == "in" => self.next() + &self.next(),
                _ => break,
            };
            rest.push((written, self.sum()));
        }
        if rest.iter().all(|(operator, _)| matches!(operator.trim(), "==" | "!=")) {
            return rest.into_iter().fold(first, |text, (operator, operand)| text + &operator + &operand);
        }
        let rest = rest.iter().map(|(operator, operand)| {
            let operator = operator.split_whitespace().collect::<Vec<_>>().join(" ");
            format!(", '{operator}', {operand}")
        });
        format!(" ([{first}{}] | {COMPARED})", rest.collect::<String>())
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
        loop {
            let filter = match self.peek() {
                "*" => MULTIPLIED,
                "%" => text::MODULO,
                "/" | "//" => {
                    text += &self.next();
                    text += &self.power();
                    continue;
                }
                _ => return text,
            };
            self.at += 1;
            let right = self.power();
            text = format!(" (({text}) | {filter}({right}))");
        }
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
        let (mut signs, space) = (Vec::new(), self.tokens.get(self.at).map_or("", |token| token.space));
        while matches!(self.peek(), "+" | "-") {
            signs.push(if self.peek() == "-" { NEGATIVE } else { POSITIVE });
            self.at += 1;
        }
        let primary = self.primary();
        let mut text = self.postfix(primary);
        let is_number = text.trim_start().chars().all(|c| c.is_ascii_digit() || c == '.') && !text.is_empty();
        match signs.as_slice() {
            [] => {}
            [NEGATIVE] if is_number => text = format!("{space}-{}", text.trim_start()),
            _ => {
                let filters = signs.iter().rev().map(|sign| format!(" | {sign}"));
                text = format!(" (({text}){})", filters.collect::<String>());
            }
        }
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
        let text = self.next() + &self.sequence(false);
        self.depth -= 1;
        text + &self.next()
    }

    /// Rewrites a subscript of an expression; a slice becomes a filter.
    fn subscript(&mut self, text: &str) -> String {
        if self.depth > DEEPEST_BRACKETS {
            return text.to_owned() + &self.next();
        }
        self.depth += 1;
        let (open, mut bounds) = (self.next(), vec![self.sequence(true)]);
        while self.peek() == ":" {
            self.at += 1;
            bounds.push(self.sequence(true));
        }
        self.depth -= 1;
        let close = self.next();
        match bounds.as_slice() {
            [key] => [text, &open, key, &close].concat(),
            _ => {
                bounds.resize(bounds.len().max(3), String::new());
                let bounds = bounds.iter().map(|bound| if bound.trim().is_empty() { "none" } else { bound.as_str() });
                format!(" (({text}) | {SLICED}({}))", bounds.collect::<Vec<_>>().join(", "))
            }
        }
    }

    fn postfix(&mut self, mut text: String) -> String {
        loop {
            match self.peek() {
                "." if self.is_uncalled_method() => {
                    self.at += 1;
                    text = format!(" (({text}) | {}({:?}))", methods::UNCALLED, self.next().trim());
                }
                "." => text.extend([self.next(), self.next()]),
                "(" => text += &self.group(),
                "[" => text = self.subscript(&text),
                _ => return text,
            }
        }
    }

    /// Returns whether an attribute follows that is named like a mapping's method and is not called.
    fn is_uncalled_method(&self) -> bool {
        methods::OF_MAPPINGS.contains(&self.ahead(1)) && self.ahead(2) != "("
    }

    /// Writes filters and tests.
    fn filters(&mut self) -> String {
        let mut text = String::new();
        loop {
            let is_test = self.peek() == "is";
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
            } else if is_test && self.begins_argument() {
                let primary = self.primary();
                text += &self.postfix(primary);
            }
        }
    }

    /// Returns whether the argument of a test follows, which may lack parentheses.
    fn begins_argument(&self) -> bool {
        self.begins_operand() && !matches!(self.peek(), "+" | "-" | "recursive")
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
    use super::super::source::rewritten;
    use super::*;

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
            ("{{ 2 * y % z + 1 }}", "{{((((2)|multiplied(y)))|modulo(z))+1}}"),
            ("{{ a ~ b + 1 ~ c | upper ~ 'd' }}", "{{([a,b]|concat)+([1,c|upper,'d']|concat)}}"),
            ("{{ -x % +y }}", "{{((((x)|negative))|modulo(((y)|positive)))}}"),
            ("{% if a ~ b == '12' and not c % 2 %}", "{%if([a,b]|concat)=='12'andnot((c)|modulo(2))%}"),
            ("{{ f(a % b, k=c ~ d)[e ~ f].g }}", "{{f(((a)|modulo(b)),k=([c,d]|concat))[([e,f]|concat)].g}}"),
            ("{{ a[1:-2][b:][c] }}", "{{((((a)|sliced(1,-2,none)))|sliced(b,none,none))[c]}}"),
            ("{{ a < b }}{{ a in b not in c == d }}", "{{([a,'<',b]|compared)}}{{([a,'in',b,'notin',c,'==',d]|compared)}}"),
            ("{{ a + 1 > b ~ c and not d <= e }}", "{{([a+1,'>',([b,c]|concat)]|compared)andnot([d,'<=',e]|compared)}}"),
            ("{{ - - x | abs - -5 }}{{ -x.y }}", "{{((x)|negative|negative)|abs--5}}{{((x.y)|negative)}}"),
            ("{{ x is divisibleby 3 < y is in [1] }}", "{{([xisdivisibleby3,'<',yisin[1]]|compared)}}"),
            ("{{ 'a' 'b' ~ {'x': 1 ~ 2} }}", "{{(['a''b',{'x':([1,2]|concat)}]|concat)}}"),
            ("{{ a.items.type ~ b.items() }}", "{{([((a)|attribute_or_method(\"items\")).type,b.items()]|concat)}}"),
            (r"{{ '\n\x41\101\/\'\u00e9\\' }}", "{{'\nAA\\\\/\\'é\\\\'}}"),
            ("{{ x is not divisibleby(3 % 2) ~ 'y' }}", "{{([xisnotdivisibleby(((3)|modulo(2))),'y']|concat)}}"),
        ] {
            let after = after.replace("modulo", text::MODULO).replace("concat", text::CONCAT);
            assert_eq!(tight(&source(before)), after, "{before}");
        }
        for same in [
            "{{ a.b(c)[-2] | d('e', f=g) == h != i }}",
            "{# a % b #}{{ '%} ~' }}~{% raw %}{{ a ~ b }}{% endraw %}",
            "{{ a - 1 }}",
        ] {
            assert_eq!(source(same), same);
        }
    }
}
