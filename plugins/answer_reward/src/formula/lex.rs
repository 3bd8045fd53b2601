//! Splits LaTeX into tokens.

use super::letters::{LETTERS, greek};
use super::tree::{FormulaFunction, NamedSet, Relation};

/// Kinds of brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bracket {
    /// `(`, `\(`, `\lgroup`.
    Round,
    /// `[`, `\lbrack`.
    Square,
    /// `{`, which only groups, except around a complete element.
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
pub enum FormulaToken {
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
    Function(FormulaFunction),
    /// `\log` (to base ten) or `\ln`.
    Log {
        natural: bool,
    },
    /// `\gcd`, `\max` and others that take several arguments.
    Several(FormulaFunction),
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
    Named(NamedSet),
    Union,
    Intersection,
    SetMinus,
    PlusMinus,
    Degree,
}

/// A token with its text.
#[derive(Clone, Debug)]
pub struct LexedToken<'a> {
    /// The token.
    pub token: FormulaToken,
    /// Text of the token.
    pub text: &'a str,
}

/// Maximum length of a formula, in bytes.
pub const LONGEST: usize = 4000;

/// Returns the tokens of a formula, or `None` if a part of it is not a token, or it is too long.
#[must_use]
pub fn tokens(text: &str) -> Option<Vec<LexedToken<'_>>> {
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
            tokens.push(LexedToken { token, text: rest.get(..length)? });
        }
        rest = rest.get(length..)?;
    }
    Some(tokens)
}

/// A token, or `None` for skipped text, and its length.
type LexMatch = (Option<FormulaToken>, usize);

fn number(text: &str) -> Option<LexMatch> {
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
            return Some((Some(FormulaToken::Number(text.get(..end)?.to_owned())), end));
        }
    }
    let spaced = after.strip_prefix(' ').unwrap_or(after);
    for sign in ["\\%", "%"] {
        if spaced.starts_with(sign) {
            let end = length + (after.len() - spaced.len()) + sign.len();
            return Some((Some(FormulaToken::Percentage(written.to_owned())), end));
        }
    }
    Some((Some(FormulaToken::Number(written.to_owned())), length))
}

/// Reads `dx`, `d x` or `d\theta`.
fn differential(text: &str) -> Option<LexMatch> {
    let after = text.strip_prefix('d')?;
    let spaced = after.trim_start();
    let name = match spaced.strip_prefix('\\') {
        Some(command) => command.bytes().take_while(u8::is_ascii_alphabetic).count() + 1,
        None => 1,
    };
    let written = spaced.get(..name)?;
    let named = written.strip_prefix('\\').unwrap_or(written);
    let valid = !named.is_empty() && named.bytes().all(|b| b.is_ascii_alphabetic());
    valid.then(|| (Some(FormulaToken::Differential(format!("d{named}"))), text.len() - spaced.len() + name))
}

fn plain(text: &str, first: char) -> Option<LexMatch> {
    if first.is_ascii_digit() || first == '.' {
        return number(text);
    }
    for (written, token) in [
        ("^{\\circ}", FormulaToken::Degree),
        ("^{\\degree}", FormulaToken::Degree),
        ("^{°}", FormulaToken::Degree),
        ("^\\circ", FormulaToken::Degree),
        ("^\\degree", FormulaToken::Degree),
        ("^°", FormulaToken::Degree),
        ("!==", FormulaToken::Relation(Relation::NotEqual)),
        ("!=", FormulaToken::Relation(Relation::NotEqual)),
        ("==", FormulaToken::Relation(Relation::Equal)),
        ("<=", FormulaToken::Relation(Relation::AtMost)),
        (">=", FormulaToken::Relation(Relation::AtLeast)),
        ("~=", FormulaToken::Approx),
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

fn character(first: char) -> Option<FormulaToken> {
    Some(match first {
        '+' => FormulaToken::Plus,
        '-' | '−' => FormulaToken::Minus,
        '*' | '×' | '⋅' | '∙' => FormulaToken::Times,
        '/' | '÷' | '∕' | ':' => FormulaToken::Divide,
        '(' => FormulaToken::Open(Bracket::Round),
        ')' => FormulaToken::Close(Bracket::Round),
        '[' => FormulaToken::Open(Bracket::Square),
        ']' => FormulaToken::Close(Bracket::Square),
        '{' => FormulaToken::Open(Bracket::Group),
        '}' => FormulaToken::Close(Bracket::Group),
        '|' => FormulaToken::Bar,
        '&' => FormulaToken::Column,
        '_' => FormulaToken::Underscore,
        '^' => FormulaToken::Caret,
        ';' => FormulaToken::Semicolon,
        ',' => FormulaToken::Comma,
        'e' => FormulaToken::Exponential,
        '=' | '≡' => FormulaToken::Relation(Relation::Equal),
        '<' => FormulaToken::Relation(Relation::Less),
        '>' => FormulaToken::Relation(Relation::Greater),
        '≤' | '≦' => FormulaToken::Relation(Relation::AtMost),
        '≥' | '≧' => FormulaToken::Relation(Relation::AtLeast),
        '≠' => FormulaToken::Relation(Relation::NotEqual),
        '≈' | '≃' | '≅' => FormulaToken::Approx,
        '!' => FormulaToken::Bang,
        '∪' => FormulaToken::Union,
        '∩' => FormulaToken::Intersection,
        '∖' => FormulaToken::SetMinus,
        '±' | '∓' => FormulaToken::PlusMinus,
        '∅' => FormulaToken::Named(NamedSet::Empty),
        'ℕ' => FormulaToken::Named(NamedSet::Naturals),
        'ℤ' => FormulaToken::Named(NamedSet::Integers),
        'ℚ' => FormulaToken::Named(NamedSet::Rationals),
        'ℝ' => FormulaToken::Named(NamedSet::Reals),
        'ℂ' => FormulaToken::Named(NamedSet::Complexes),
        letter if letter.is_ascii_alphabetic() => FormulaToken::Letter(letter.to_string()),
        letter => FormulaToken::Letter(greek(letter)?.to_owned()),
    })
}

/// Commands whose text is a variable: plain text, and decorations, which make it another variable.
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

fn command(text: &str) -> Option<LexMatch> {
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
        return Some((Some(FormulaToken::Letter(name.to_owned())), length));
    }
    let token = function(name).or_else(|| operator(name))?;
    Some((Some(token), length))
}

/// Reads a backslash before something that isn't a letter.
fn symbol(text: &str) -> Option<LexMatch> {
    let token = match text.as_bytes().get(1)? {
        b',' | b':' | b';' | b'!' | b'$' => None,
        b'{' if text.starts_with("\\{\\}") => return Some((Some(FormulaToken::Named(NamedSet::Empty)), 4)),
        b'{' => Some(FormulaToken::Open(Bracket::Curly)),
        b'}' => Some(FormulaToken::Close(Bracket::Curly)),
        b'(' => Some(FormulaToken::Open(Bracket::Round)),
        b')' => Some(FormulaToken::Close(Bracket::Round)),
        b'\\' => Some(FormulaToken::Row),
        _ => return None,
    };
    Some((token, 2))
}

fn environment(text: &str) -> Option<LexMatch> {
    const KINDS: [&str; 3] = ["{matrix}", "{pmatrix}", "{bmatrix}"];
    for (word, token) in [("\\begin", FormulaToken::MatrixStart), ("\\end", FormulaToken::MatrixEnd)] {
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

fn accent(text: &str, name: &str) -> Option<LexMatch> {
    let set = [
        ("\\mathbb{N}", NamedSet::Naturals),
        ("\\mathbb{Z}", NamedSet::Integers),
        ("\\mathbb{Q}", NamedSet::Rationals),
        ("\\mathbb{R}", NamedSet::Reals),
        ("\\mathbb{C}", NamedSet::Complexes),
    ];
    if let Some((written, set)) = set.iter().find(|(written, _)| text.starts_with(written)) {
        return Some((Some(FormulaToken::Named(*set)), written.len()));
    }
    let after = text.get(1 + name.len()..)?;
    let spaced = after.strip_prefix(' ').unwrap_or(after);
    let (inside, _) = spaced.strip_prefix('{')?.split_once('}')?;
    let length = text.len() - spaced.len() + inside.len() + 2;
    let inner: String = inside.chars().filter(|c| *c != ' ').collect();
    if TEXTS.contains(&name) {
        let inner: String = inner.chars().filter(|c| !matches!(c, '(' | ')')).collect();
        return Some((Some(FormulaToken::Letter(letter_named(inner))), length));
    }
    let (_, decoration) = DECORATIONS.iter().find(|(known, _)| *known == name)?;
    Some((Some(FormulaToken::Letter(format!("{decoration}{{{inner}}}"))), length))
}

/// Returns the name of a text that is a single Greek letter or command, such as `π` and `\pi`; other texts are their own names.
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

fn function(name: &str) -> Option<FormulaToken> {
    use FormulaFunction as F;
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
        "log" => return Some(FormulaToken::Log { natural: false }),
        "ln" => return Some(FormulaToken::Log { natural: true }),
        "gcd" => return Some(FormulaToken::Several(F::Gcd)),
        "lcm" => return Some(FormulaToken::Several(F::Lcm)),
        "max" => return Some(FormulaToken::Several(F::Max)),
        "min" => return Some(FormulaToken::Several(F::Min)),
        _ => return None,
    };
    Some(FormulaToken::Function(function))
}

fn operator(name: &str) -> Option<FormulaToken> {
    Some(match name {
        "times" | "cdot" => FormulaToken::Times,
        "div" | "over" => FormulaToken::Divide,
        "mod" => FormulaToken::Mod,
        "lgroup" => FormulaToken::Open(Bracket::Round),
        "rgroup" => FormulaToken::Close(Bracket::Round),
        "lbrack" => FormulaToken::Open(Bracket::Square),
        "rbrack" => FormulaToken::Close(Bracket::Square),
        "lbrace" => FormulaToken::Open(Bracket::Curly),
        "rbrace" => FormulaToken::Close(Bracket::Curly),
        "lvert" => FormulaToken::Open(Bracket::Vertical),
        "rvert" => FormulaToken::Close(Bracket::Vertical),
        "lfloor" | "llcorner" => FormulaToken::Open(Bracket::Floor),
        "rfloor" | "lrcorner" => FormulaToken::Close(Bracket::Floor),
        "lceil" | "ulcorner" => FormulaToken::Open(Bracket::Ceil),
        "rceil" | "urcorner" => FormulaToken::Close(Bracket::Ceil),
        "vert" => FormulaToken::Bar,
        "frac" | "dfrac" | "tfrac" | "cfrac" => FormulaToken::Frac,
        "binom" | "tbinom" | "dbinom" => FormulaToken::Binom,
        "choose" => FormulaToken::Choose,
        "sqrt" => FormulaToken::Sqrt,
        "boxed" => FormulaToken::Boxed,
        "operatorname" => FormulaToken::Operator,
        "exponentialE" => FormulaToken::Exponential,
        "equiv" => FormulaToken::Relation(Relation::Equal),
        "ne" | "neq" => FormulaToken::Relation(Relation::NotEqual),
        "lt" => FormulaToken::Relation(Relation::Less),
        "gt" => FormulaToken::Relation(Relation::Greater),
        "le" | "leq" | "leqslant" => FormulaToken::Relation(Relation::AtMost),
        "ge" | "geq" | "geqslant" => FormulaToken::Relation(Relation::AtLeast),
        "approx" => FormulaToken::Approx,
        "in" => FormulaToken::In,
        "infty" => FormulaToken::Infinity,
        "cup" => FormulaToken::Union,
        "cap" => FormulaToken::Intersection,
        "setminus" => FormulaToken::SetMinus,
        "pm" | "mp" => FormulaToken::PlusMinus,
        "emptyset" => FormulaToken::Named(NamedSet::Empty),
        _ => return None,
    })
}
