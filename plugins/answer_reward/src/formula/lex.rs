//! Splits LaTeX into tokens.

use super::letters::{LETTERS, greek};
use super::tree::{Function, Named, Relation};

/// Kinds of brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bracket {
    /// `(`, `\(`, `\lgroup`.
    Round,
    /// `[`, `\lbrack`.
    Square,
    /// `{`, which only groups, except around a whole element.
    Group,
    /// `\{`, `\lbrace`.
    Curly,
    /// `\lvert`.
    Vertical,
    /// `\lfloor`, `\llcorner`.
    Floor,
    /// `\lceil`, `\ulcorner`.
    Ceil,
}

/// The kinds of tokens.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Token {
    Plus,
    Minus,
    Times,
    Divide,
    Mod,
    Open(Bracket),
    Close(Bracket),
    Bar,
    Frac,
    Binom,
    Choose,
    Sqrt,
    Boxed,
    Operator,
    Function(Function),
    /// `\log` (to base ten) or `\ln`.
    Log {
        natural: bool,
    },
    /// `\gcd`, `\max` and others that take several arguments.
    Several(Function),
    MatrixStart,
    MatrixEnd,
    Column,
    Row,
    Underscore,
    Caret,
    Semicolon,
    Comma,
    /// The `e` of the exponential function.
    Exponential,
    /// A variable.
    Letter(String),
    /// A differential such as `dx`.
    Differential(String),
    Number(String),
    Percentage(String),
    Relation(Relation),
    Approx,
    In,
    Bang,
    Infinity,
    Named(Named),
    Union,
    Intersection,
    SetMinus,
    PlusMinus,
    Degree,
}

/// A token and where it was.
#[derive(Clone, Debug)]
pub struct Lexed<'a> {
    /// The token.
    pub token: Token,
    /// Its text.
    pub text: &'a str,
}

/// Formulas with more bytes than this are not read.
pub const LONGEST: usize = 4000;

/// Returns the tokens of a formula, or `None` if it has something that isn't one, or is too long.
#[must_use]
pub fn tokens(text: &str) -> Option<Vec<Lexed<'_>>> {
    if text.len() > LONGEST {
        return None;
    }
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            rest = rest.get(first.len_utf8()..)?;
            continue;
        }
        let (token, length) = if first == '\\' { command(rest)? } else { plain(rest, first)? };
        if let Some(token) = token {
            tokens.push(Lexed { token, text: rest.get(..length)? });
        }
        rest = rest.get(length..)?;
    }
    Some(tokens)
}

/// A token, or nothing for what is skipped, and its length.
type Found = (Option<Token>, usize);

fn number(text: &str) -> Option<Found> {
    let digits = |from: usize| text.bytes().skip(from).take_while(u8::is_ascii_digit).count();
    let whole = digits(0);
    let mut length = whole;
    if text.as_bytes().get(whole) == Some(&b'.') && digits(whole + 1) > 0 {
        length += 1 + digits(whole + 1);
    }
    if length == 0 {
        return None;
    }
    let written = text.get(..length)?;
    let after = text.get(length..)?;
    if let Some(exponent) = after.strip_prefix('E') {
        let sign = usize::from(exponent.starts_with(['-', '+']));
        let places = digits(length + 1 + sign);
        if places > 0 {
            let end = length + 1 + sign + places;
            return Some((Some(Token::Number(text.get(..end)?.to_owned())), end));
        }
    }
    let spaced = after.strip_prefix(' ').unwrap_or(after);
    for sign in ["\\%", "%"] {
        if spaced.starts_with(sign) {
            let end = length + (after.len() - spaced.len()) + sign.len();
            return Some((Some(Token::Percentage(written.to_owned())), end));
        }
    }
    Some((Some(Token::Number(written.to_owned())), length))
}

/// Reads `dx`, `d x` or `d\theta`.
fn differential(text: &str) -> Option<Found> {
    let after = text.strip_prefix('d')?;
    let spaced = after.trim_start();
    let name = match spaced.strip_prefix('\\') {
        Some(command) => command.bytes().take_while(u8::is_ascii_alphabetic).count() + 1,
        None => 1,
    };
    let written = spaced.get(..name)?;
    let named = written.strip_prefix('\\').unwrap_or(written);
    let valid = !named.is_empty() && named.bytes().all(|b| b.is_ascii_alphabetic());
    valid.then(|| (Some(Token::Differential(format!("d{named}"))), text.len() - spaced.len() + name))
}

fn plain(text: &str, first: char) -> Option<Found> {
    if first.is_ascii_digit() || first == '.' {
        return number(text);
    }
    for (written, token) in [
        ("^{\\circ}", Token::Degree),
        ("^{\\degree}", Token::Degree),
        ("^{°}", Token::Degree),
        ("^\\circ", Token::Degree),
        ("^\\degree", Token::Degree),
        ("^°", Token::Degree),
        ("!==", Token::Relation(Relation::NotEqual)),
        ("!=", Token::Relation(Relation::NotEqual)),
        ("==", Token::Relation(Relation::Equal)),
        ("<=", Token::Relation(Relation::AtMost)),
        (">=", Token::Relation(Relation::AtLeast)),
        ("~=", Token::Approx),
    ] {
        if text.starts_with(written) {
            return Some((Some(token), written.len()));
        }
    }
    if text.starts_with("^T") || text.starts_with("^{T}") || text.starts_with("<=>") {
        return None;
    }
    if let Some(found) = differential(text) {
        return Some(found);
    }
    Some((Some(character(first)?), first.len_utf8()))
}

fn character(first: char) -> Option<Token> {
    Some(match first {
        '+' => Token::Plus,
        '-' | '−' => Token::Minus,
        '*' | '×' | '⋅' | '∙' => Token::Times,
        '/' | '÷' | '∕' | ':' => Token::Divide,
        '(' => Token::Open(Bracket::Round),
        ')' => Token::Close(Bracket::Round),
        '[' => Token::Open(Bracket::Square),
        ']' => Token::Close(Bracket::Square),
        '{' => Token::Open(Bracket::Group),
        '}' => Token::Close(Bracket::Group),
        '|' => Token::Bar,
        '&' => Token::Column,
        '_' => Token::Underscore,
        '^' => Token::Caret,
        ';' => Token::Semicolon,
        ',' => Token::Comma,
        'e' => Token::Exponential,
        '=' | '≡' => Token::Relation(Relation::Equal),
        '<' => Token::Relation(Relation::Less),
        '>' => Token::Relation(Relation::Greater),
        '≤' | '≦' => Token::Relation(Relation::AtMost),
        '≥' | '≧' => Token::Relation(Relation::AtLeast),
        '≠' => Token::Relation(Relation::NotEqual),
        '≈' | '≃' | '≅' => Token::Approx,
        '!' => Token::Bang,
        '∪' => Token::Union,
        '∩' => Token::Intersection,
        '∖' => Token::SetMinus,
        '±' | '∓' => Token::PlusMinus,
        '∅' => Token::Named(Named::Empty),
        'ℕ' => Token::Named(Named::Naturals),
        'ℤ' => Token::Named(Named::Integers),
        'ℚ' => Token::Named(Named::Rationals),
        'ℝ' => Token::Named(Named::Reals),
        'ℂ' => Token::Named(Named::Complexes),
        letter if letter.is_ascii_alphabetic() => Token::Letter(letter.to_string()),
        letter => Token::Letter(greek(letter)?.to_owned()),
    })
}

/// Commands around a text that stands for a variable: plain text, and decorations, which make it another variable.
const TEXTS: [&str; 6] = ["text", "textit", "textbf", "textnormal", "mbox", "textrm"];
const DECORATIONS: [(&str, &str); 17] = [
    ("bar", "bar"),
    ("overline", "bar"),
    ("vec", "vec"),
    ("overrightarrow", "vec"),
    ("tilde", "tilde"),
    ("widetilde", "tilde"),
    ("hat", "hat"),
    ("dot", "dot"),
    ("ddot", "ddot"),
    ("bm", "bm"),
    ("boldsymbol", "boldsymbol"),
    ("mathbb", "math"),
    ("mathcal", "math"),
    ("mathfrak", "math"),
    ("mathscr", "math"),
    ("mathsf", "math"),
    ("mathtt", "math"),
];

fn command(text: &str) -> Option<Found> {
    let after = text.get(1..)?;
    let name = after.get(..after.bytes().take_while(u8::is_ascii_alphabetic).count())?;
    if name.is_empty() {
        return symbol(text);
    }
    let length = 1 + name.len();
    if let Some(found) = environment(text).or_else(|| accent(text, name)) {
        return Some(found);
    }
    if matches!(
        name,
        "thinspace" | "medspace" | "thickspace" | "quad" | "qquad" | "negthinspace" | "negmedspace" | "negthickspace"
    ) {
        return Some((None, length));
    }
    if LETTERS.contains(&name) {
        return Some((Some(Token::Letter(name.to_owned())), length));
    }
    let token = function(name).or_else(|| operator(name))?;
    Some((Some(token), length))
}

/// Reads a backslash before something that isn't a letter.
fn symbol(text: &str) -> Option<Found> {
    let token = match text.as_bytes().get(1)? {
        b',' | b':' | b';' | b'!' | b'$' => None,
        b'{' if text.starts_with("\\{\\}") => return Some((Some(Token::Named(Named::Empty)), 4)),
        b'{' => Some(Token::Open(Bracket::Curly)),
        b'}' => Some(Token::Close(Bracket::Curly)),
        b'(' => Some(Token::Open(Bracket::Round)),
        b')' => Some(Token::Close(Bracket::Round)),
        b'\\' => Some(Token::Row),
        _ => return None,
    };
    Some((token, 2))
}

fn environment(text: &str) -> Option<Found> {
    const KINDS: [&str; 3] = ["{matrix}", "{pmatrix}", "{bmatrix}"];
    for (word, token) in [("\\begin", Token::MatrixStart), ("\\end", Token::MatrixEnd)] {
        let Some(kind) = text.strip_prefix(word) else { continue };
        if let Some(known) = KINDS.iter().find(|known| kind.starts_with(**known)) {
            return Some((Some(token), word.len() + known.len()));
        }
        let columns = kind.strip_prefix("{array}")?;
        if word == "\\end" {
            return Some((Some(token), word.len() + 7));
        }
        let (inside, _) = columns.strip_prefix('{')?.split_once('}')?;
        let plain = inside.bytes().all(|b| matches!(b, b'c' | b'l' | b'r'));
        return plain.then_some((Some(token), word.len() + 7 + inside.len() + 2));
    }
    None
}

fn accent(text: &str, name: &str) -> Option<Found> {
    let set = [
        ("\\mathbb{N}", Named::Naturals),
        ("\\mathbb{Z}", Named::Integers),
        ("\\mathbb{Q}", Named::Rationals),
        ("\\mathbb{R}", Named::Reals),
        ("\\mathbb{C}", Named::Complexes),
    ];
    if let Some((written, set)) = set.iter().find(|(written, _)| text.starts_with(written)) {
        return Some((Some(Token::Named(*set)), written.len()));
    }
    let after = text.get(1 + name.len()..)?;
    let spaced = after.strip_prefix(' ').unwrap_or(after);
    let (inside, _) = spaced.strip_prefix('{')?.split_once('}')?;
    let length = text.len() - spaced.len() + inside.len() + 2;
    let inner: String = inside.chars().filter(|c| *c != ' ').collect();
    if TEXTS.contains(&name) {
        let inner: String = inner.chars().filter(|c| !matches!(c, '(' | ')')).collect();
        return Some((Some(Token::Letter(letter_named(inner))), length));
    }
    let (_, decoration) = DECORATIONS.iter().find(|(known, _)| *known == name)?;
    Some((Some(Token::Letter(format!("{decoration}{{{inner}}}"))), length))
}

/// Returns the name of a text that is one Greek letter or one command, such as `π` and `\pi`; other texts are their own names.
fn letter_named(text: String) -> String {
    let mut characters = text.chars();
    if let (Some(only), None) = (characters.next(), characters.next())
        && let Some(name) = greek(only)
    {
        return name.to_owned();
    }
    match text.strip_prefix('\\') {
        Some(command) if !command.is_empty() && command.bytes().all(|b| b.is_ascii_alphabetic()) => command.to_owned(),
        _ => text,
    }
}

fn function(name: &str) -> Option<Token> {
    use Function as F;
    let function = match name {
        "sin" => F::Sin,
        "cos" => F::Cos,
        "tan" => F::Tan,
        "csc" => F::Csc,
        "sec" => F::Sec,
        "cot" => F::Cot,
        "arcsin" => F::Asin,
        "arccos" => F::Acos,
        "arctan" => F::Atan,
        "arccsc" => F::Acsc,
        "arcsec" => F::Asec,
        "arccot" => F::Acot,
        "sinh" => F::Sinh,
        "cosh" => F::Cosh,
        "tanh" => F::Tanh,
        "arsinh" | "arcsinh" => F::Asinh,
        "arcosh" | "arccosh" => F::Acosh,
        "artanh" | "arctanh" => F::Atanh,
        "exp" => F::Exp,
        "floor" => F::Floor,
        "ceil" => F::Ceil,
        "log" => return Some(Token::Log { natural: false }),
        "ln" => return Some(Token::Log { natural: true }),
        "gcd" => return Some(Token::Several(F::Gcd)),
        "lcm" => return Some(Token::Several(F::Lcm)),
        "max" => return Some(Token::Several(F::Max)),
        "min" => return Some(Token::Several(F::Min)),
        _ => return None,
    };
    Some(Token::Function(function))
}

fn operator(name: &str) -> Option<Token> {
    Some(match name {
        "times" | "cdot" => Token::Times,
        "div" | "over" => Token::Divide,
        "mod" => Token::Mod,
        "lgroup" => Token::Open(Bracket::Round),
        "rgroup" => Token::Close(Bracket::Round),
        "lbrack" => Token::Open(Bracket::Square),
        "rbrack" => Token::Close(Bracket::Square),
        "lbrace" => Token::Open(Bracket::Curly),
        "rbrace" => Token::Close(Bracket::Curly),
        "lvert" => Token::Open(Bracket::Vertical),
        "rvert" => Token::Close(Bracket::Vertical),
        "lfloor" | "llcorner" => Token::Open(Bracket::Floor),
        "rfloor" | "lrcorner" => Token::Close(Bracket::Floor),
        "lceil" | "ulcorner" => Token::Open(Bracket::Ceil),
        "rceil" | "urcorner" => Token::Close(Bracket::Ceil),
        "vert" => Token::Bar,
        "frac" | "dfrac" | "tfrac" | "cfrac" => Token::Frac,
        "binom" | "tbinom" | "dbinom" => Token::Binom,
        "choose" => Token::Choose,
        "sqrt" => Token::Sqrt,
        "boxed" => Token::Boxed,
        "operatorname" => Token::Operator,
        "exponentialE" => Token::Exponential,
        "equiv" => Token::Relation(Relation::Equal),
        "ne" | "neq" => Token::Relation(Relation::NotEqual),
        "lt" => Token::Relation(Relation::Less),
        "gt" => Token::Relation(Relation::Greater),
        "le" | "leq" | "leqslant" => Token::Relation(Relation::AtMost),
        "ge" | "geq" | "geqslant" => Token::Relation(Relation::AtLeast),
        "approx" => Token::Approx,
        "in" => Token::In,
        "infty" => Token::Infinity,
        "cup" => Token::Union,
        "cap" => Token::Intersection,
        "setminus" => Token::SetMinus,
        "pm" | "mp" => Token::PlusMinus,
        "emptyset" => Token::Named(Named::Empty),
        _ => return None,
    })
}
