//! Parses expressions.

use super::lex::{Bracket, Lexed, Token};
use super::tree::{Function, Literal, Term};

/// How deep formulas may be nested.
const DEEPEST: u32 = 40;
/// How many operators that nest without brackets, such as unions, a formula may have.
const MOST_CHAINED: u32 = 60;
/// How many `!` and `^` may follow an operand.
const MOST_POSTFIXES: u32 = 5;

impl Term {
    /// Parses a number.
    #[must_use]
    pub fn number(text: &str) -> Option<Self> {
        Literal::parse(text).map(Self::Number)
    }
}

/// A position in a formula's tokens.
pub struct Parser<'a> {
    pub(super) tokens: &'a [Lexed<'a>],
    /// For each opening bracket, where it closes.
    closing: Vec<usize>,
    /// The next token.
    pub at: usize,
    depth: u32,
    chained: u32,
    /// Whether a `|` is open.
    bar: bool,
}

impl<'a> Parser<'a> {
    /// Starts at the first token; returns `None` if brackets don't match.
    #[must_use]
    pub fn new(tokens: &'a [Lexed<'a>]) -> Option<Self> {
        let mut closing = vec![0; tokens.len()];
        let mut open = Vec::new();
        for (at, lexed) in tokens.iter().enumerate() {
            match lexed.token {
                Token::Open(bracket) => open.push((at, bracket)),
                Token::Close(bracket) => {
                    let (start, opened) = open.pop()?;
                    let ends = |one| matches!(one, Bracket::Round | Bracket::Square);
                    if opened != bracket && !(ends(opened) && ends(bracket)) {
                        return None;
                    }
                    *closing.get_mut(start)? = at;
                }
                _ => {}
            }
        }
        open.is_empty().then_some(Self { tokens, closing, at: 0, depth: 0, chained: 0, bar: false })
    }

    /// Returns the next token.
    #[must_use]
    pub fn peek(&self) -> Option<&'a Token> {
        self.token(self.at)
    }

    /// Returns the token at a position.
    #[must_use]
    pub fn token(&self, at: usize) -> Option<&'a Token> {
        self.tokens.get(at).map(|lexed| &lexed.token)
    }

    /// Returns whether all tokens were read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.at == self.tokens.len()
    }

    /// Returns where the bracket that opens at a position closes.
    #[must_use]
    pub fn closing(&self, at: usize) -> Option<usize> {
        matches!(self.token(at)?, Token::Open(_)).then(|| self.closing.get(at).copied())?
    }

    /// Returns the kind of a bracket.
    #[must_use]
    pub fn bracket(&self, at: usize) -> Option<Bracket> {
        match self.token(at)? {
            Token::Open(bracket) | Token::Close(bracket) => Some(*bracket),
            _ => None,
        }
    }

    /// Returns whether a position and those after it have a relation outside of brackets.
    #[must_use]
    pub fn has_relation(&self, from: usize) -> bool {
        self.outside(from, self.tokens.len(), |token| matches!(token, Token::Relation(_) | Token::Approx | Token::In))
    }

    /// Returns whether the rest has a union or the like outside of brackets.
    #[must_use]
    pub fn has_set_operator(&self) -> bool {
        self.has_set_operator_between(self.at, self.tokens.len())
    }

    /// Returns whether a union or the like is in a range, outside of brackets.
    #[must_use]
    pub fn has_set_operator_between(&self, from: usize, to: usize) -> bool {
        self.outside(from, to, |token| matches!(token, Token::Union | Token::Intersection | Token::SetMinus))
    }

    /// Returns whether the bracket that opens here and closes there has `\choose` in it.
    #[must_use]
    pub fn has_choice(&self, close: usize) -> bool {
        self.outside(self.at + 1, close, |token| *token == Token::Choose)
    }

    fn outside(&self, mut from: usize, to: usize, wanted: impl Fn(&Token) -> bool) -> bool {
        while from < to {
            match self.token(from) {
                Some(token) if wanted(token) => return true,
                Some(Token::Open(_)) => from = self.closing.get(from).copied().unwrap_or(to).max(from),
                _ => {}
            }
            from += 1;
        }
        false
    }

    /// Parses something one level deeper.
    pub fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        let parsed = inner(self);
        self.depth -= 1;
        parsed
    }

    /// Counts an operator that nests without brackets.
    pub fn chained(&mut self) -> Option<()> {
        self.chained += 1;
        (self.chained <= MOST_CHAINED).then_some(())
    }

    pub(super) fn take(&mut self, token: &Token) -> bool {
        let taken = self.peek() == Some(token);
        self.at += usize::from(taken);
        taken
    }

    /// Parses what is up to the end of the bracket that opens here.
    pub(super) fn inside(&mut self, bracket: Bracket) -> Option<Term> {
        if self.bracket(self.at)? != bracket {
            return None;
        }
        let close = self.closing(self.at)?;
        if self.bracket(close)? != bracket {
            return None;
        }
        self.at += 1;
        let bar = std::mem::replace(&mut self.bar, false);
        let term = self.sum()?;
        self.bar = bar;
        (self.at == close).then(|| {
            self.at += 1;
            term
        })
    }

    /// Parses a sum.
    pub fn sum(&mut self) -> Option<Term> {
        self.deeper(|parser| {
            let mut sum = parser.product(false)?;
            loop {
                if parser.take(&Token::Plus) {
                    sum = sum.plus(parser.product(false)?);
                } else if parser.take(&Token::Minus) {
                    sum = sum.plus(parser.product(false)?.negated());
                } else {
                    return Some(sum);
                }
            }
        })
    }

    /// Parses a product. An argument without parentheses ends before the next function.
    pub(super) fn product(&mut self, argument: bool) -> Option<Term> {
        let mut product = self.signed(argument)?;
        loop {
            match self.peek() {
                Some(Token::Times) => {
                    self.at += 1;
                    product = product.times(self.signed(argument)?);
                }
                Some(Token::Divide) => {
                    self.at += 1;
                    product = product.over(self.signed(argument)?);
                }
                Some(Token::Mod) => {
                    self.at += 1;
                    self.chained()?;
                    product = Term::Call(Function::Mod, vec![product, self.signed(argument)?]);
                }
                _ => return Some(product),
            }
        }
    }

    fn signed(&mut self, argument: bool) -> Option<Term> {
        let mut negative = false;
        loop {
            if self.take(&Token::Minus) {
                negative = !negative;
            } else if !self.take(&Token::Plus) {
                break;
            }
        }
        let term = self.juxtaposed(argument)?;
        Some(if negative { term.negated() } else { term })
    }

    fn begins_factor(&self, argument: bool) -> bool {
        match self.peek() {
            Some(Token::Open(_) | Token::Frac | Token::Binom | Token::Boxed | Token::MatrixStart | Token::Infinity) => true,
            Some(Token::Letter(_) | Token::Differential(_) | Token::Number(_) | Token::Percentage(_)) => true,
            Some(Token::Bar) => !self.bar,
            Some(Token::Sqrt | Token::Function(_) | Token::Several(_) | Token::Log { .. }) => !argument,
            Some(Token::Operator | Token::Exponential) => !argument,
            _ => false,
        }
    }

    fn juxtaposed(&mut self, argument: bool) -> Option<Term> {
        let mut factors: Vec<(Term, bool)> = Vec::new();
        loop {
            let (start, token) = (self.at, self.peek());
            let allow_function = !argument || factors.is_empty();
            let factor = self.postfix(allow_function)?;
            let bare = matches!(token, Some(Token::Number(_))) && self.at == start + 1 && factor.is_natural();
            let fraction = matches!(token, Some(Token::Frac | Token::Open(Bracket::Group))) && is_ratio(&factor);
            match factors.last() {
                Some((_, true)) if bare => return None,
                Some((_, true)) if fraction && !self.begins_factor(argument) => {
                    // A mixed fraction.
                    let (whole, _) = factors.pop()?;
                    factors.push((whole.plus(factor), false));
                }
                _ => factors.push((factor, bare)),
            }
            if !self.begins_factor(argument) {
                return factors.into_iter().map(|(factor, _)| factor).reduce(Term::times);
            }
        }
    }

    fn postfix(&mut self, functions: bool) -> Option<Term> {
        let mut term = self.atom(functions)?;
        for _ in 0..=MOST_POSTFIXES {
            match self.peek() {
                Some(Token::Caret) => {
                    self.at += 1;
                    term = term.to_the(self.exponent()?);
                }
                Some(Token::Bang) => {
                    self.at += 1;
                    term = Term::Call(Function::Factorial, vec![term]);
                }
                Some(Token::Degree) => self.at += 1,
                _ => return Some(term),
            }
        }
        None
    }

    /// Parses what follows a `^`.
    pub(super) fn exponent(&mut self) -> Option<Term> {
        match self.peek()? {
            Token::Open(Bracket::Group) => self.inside(Bracket::Group),
            Token::Letter(_) | Token::Differential(_) | Token::Number(_) | Token::Percentage(_) | Token::Infinity => {
                self.deeper(|parser| parser.simple(false))
            }
            _ => None,
        }
    }

    fn atom(&mut self, functions: bool) -> Option<Term> {
        match self.peek()? {
            Token::Open(bracket @ (Bracket::Round | Bracket::Square | Bracket::Group | Bracket::Curly)) => {
                self.chosen().or_else(|| self.inside(*bracket))
            }
            Token::Open(Bracket::Vertical) => Some(Term::Call(Function::Abs, vec![self.inside(Bracket::Vertical)?])),
            Token::Open(Bracket::Floor) => Some(Term::Call(Function::Floor, vec![self.inside(Bracket::Floor)?])),
            Token::Open(Bracket::Ceil) => Some(Term::Call(Function::Ceil, vec![self.inside(Bracket::Ceil)?])),
            Token::Bar if !self.bar => {
                self.at += 1;
                self.bar = true;
                let inside = self.sum()?;
                self.bar = false;
                self.take(&Token::Bar).then(|| Term::Call(Function::Abs, vec![inside]))
            }
            Token::Frac => {
                self.at += 1;
                let above = self.inside(Bracket::Group)?;
                Some(above.over(self.inside(Bracket::Group)?))
            }
            Token::Binom => {
                self.at += 1;
                let above = self.inside(Bracket::Group)?;
                Some(Term::Call(Function::Binomial, vec![above, self.inside(Bracket::Group)?]))
            }
            Token::Boxed => {
                self.at += 1;
                self.inside(Bracket::Group)
            }
            Token::MatrixStart => self.matrix(),
            Token::Sqrt | Token::Function(_) | Token::Several(_) | Token::Log { .. } | Token::Operator | Token::Exponential
                if functions =>
            {
                self.deeper(super::functions::function)
            }
            _ => self.simple(functions),
        }
    }

    /// Parses `{n \choose k}`.
    fn chosen(&mut self) -> Option<Term> {
        let close = self.closing(self.at)?;
        if !self.has_choice(close) {
            return None;
        }
        self.at += 1;
        let above = self.sum()?;
        let below = if self.take(&Token::Choose) { self.sum() } else { None }?;
        (self.at == close).then(|| {
            self.at += 1;
            Term::Call(Function::Binomial, vec![above, below])
        })
    }

    /// Parses a number or a variable, with its subscript and its own exponent.
    fn simple(&mut self, applied: bool) -> Option<Term> {
        let token = self.peek()?;
        match token {
            Token::Number(text) => {
                self.at += 1;
                self.subscript()?;
                Term::number(text)
            }
            Token::Percentage(text) => {
                self.at += 1;
                Some(Term::Percent(Box::new(Term::number(text)?)))
            }
            Token::Infinity => {
                self.at += 1;
                Some(Term::Infinity)
            }
            Token::Differential(name) => {
                self.at += 1;
                Some(Term::Symbol(name.clone()))
            }
            Token::Letter(_) => {
                let name = self.name()?;
                if applied && let Some(arguments) = self.arguments() {
                    return Some(Term::Applied(name, arguments?));
                }
                self.powered(variable(&name))
            }
            _ => None,
        }
    }

    /// Parses a variable with its scripts.
    pub fn variable(&mut self) -> Option<Term> {
        matches!(self.peek()?, Token::Letter(_)).then(|| self.simple(false))?
    }

    /// Parses a name and the subscript directly after it.
    fn name(&mut self) -> Option<String> {
        let Token::Letter(name) = self.peek()? else { return None };
        self.at += 1;
        Some(format!("{name}{}", self.subscript()?))
    }

    /// Parses the exponent of a variable, and the subscript after that.
    fn powered(&mut self, symbol: Term) -> Option<Term> {
        if !self.take(&Token::Caret) {
            return Some(symbol);
        }
        let exponent = self.exponent()?;
        match (self.subscript()?, symbol) {
            (none, symbol) if none.is_empty() => Some(symbol.to_the(exponent)),
            (subscript, Term::Symbol(name)) => Some(variable(&format!("{name}{subscript}")).to_the(exponent)),
            _ => None,
        }
    }

    /// Returns the text of a subscript, or nothing if there is none.
    fn subscript(&mut self) -> Option<String> {
        if !self.take(&Token::Underscore) {
            return Some(String::new());
        }
        let start = self.at;
        let text = |range: std::ops::Range<usize>| -> Option<String> {
            Some(self.tokens.get(range)?.iter().map(|lexed| lexed.text.trim()).collect())
        };
        let inner = match self.peek()? {
            Token::Open(Bracket::Group) => {
                let close = self.closing(start)?;
                self.at = close + 1;
                text(start + 1..close)?
            }
            Token::Letter(_) | Token::Number(_) | Token::Infinity => {
                self.at += 1;
                text(start..start + 1)?
            }
            _ => return None,
        };
        if inner.is_empty() {
            return None;
        }
        Some(if inner.chars().count() > 1 { format!("_{{{inner}}}") } else { format!("_{inner}") })
    }

    /// Parses the arguments of an unknown function: one number or variable, or several of anything. Returns `None` if what
    /// follows is a factor, and `Some(None)` if it can't be parsed.
    fn arguments(&mut self) -> Option<Option<Vec<Term>>> {
        let start = self.at;
        if !matches!(self.bracket(start)?, Bracket::Round | Bracket::Square) {
            return None;
        }
        let close = self.closing(start)?;
        let several = self.outside(start + 1, close, |token| *token == Token::Comma);
        if !several && !self.is_simple(start + 1, close) {
            return None;
        }
        self.at += 1;
        Some(self.several(close))
    }

    /// Returns whether a range is one number or variable with its scripts.
    fn is_simple(&self, mut from: usize, to: usize) -> bool {
        if !matches!(self.token(from), Some(Token::Letter(_) | Token::Number(_) | Token::Percentage(_) | Token::Infinity)) {
            return false;
        }
        from += 1;
        while from < to && matches!(self.token(from), Some(Token::Underscore | Token::Caret)) {
            from = 1 + self.closing(from + 1).unwrap_or(from + 1);
        }
        from == to
    }

    /// Parses terms between commas up to a closing bracket.
    pub(super) fn several(&mut self, close: usize) -> Option<Vec<Term>> {
        let mut terms = vec![self.sum()?];
        while self.take(&Token::Comma) {
            terms.push(self.sum()?);
        }
        (self.at == close).then(|| {
            self.at += 1;
            terms
        })
    }
}

/// Returns whether a term is one whole number over another, without signs.
fn is_ratio(term: &Term) -> bool {
    let Term::Product(factors) = term else { return false };
    let [above, Term::Power(below, _)] = factors.as_slice() else { return false };
    above.is_natural() && below.is_natural() && *above != Term::whole(0)
}

/// Returns what a name stands for. Upper and lower case are the same, except for the imaginary unit `I`.
fn variable(name: &str) -> Term {
    match name {
        "I" => return Term::ImaginaryUnit,
        "gamma" | "Gamma" => return Term::Gamma,
        _ => {}
    }
    match name.to_lowercase().as_str() {
        "pi" => Term::Pi,
        lower => Term::Symbol(lower.to_owned()),
    }
}
