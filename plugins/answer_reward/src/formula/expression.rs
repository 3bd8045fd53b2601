//! Parses expressions.

use super::lex::{Bracket, FormulaToken, LexedToken};
use super::tree::{FormulaFunction, Literal, Term};

/// Maximum nesting of formulas.
const DEEPEST: u32 = 40;
/// Maximum number of operators in a formula that nest without brackets, such as unions.
const MOST_CHAINED: u32 = 60;
/// Maximum number of `!` and `^` after an operand.
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
    pub(super) tokens: &'a [LexedToken<'a>],
    /// For each opening bracket, the position of its closing one.
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
    pub fn new(tokens: &'a [LexedToken<'a>]) -> Option<Self> {
        let mut closing = vec![0; tokens.len()];
        let mut open = Vec::new();
        for (at, lexed) in tokens.iter().enumerate() {
            match lexed.token {
                FormulaToken::Open(bracket) => open.push((at, bracket)),
                FormulaToken::Close(bracket) => {
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
    pub fn peek(&self) -> Option<&'a FormulaToken> {
        self.token(self.at)
    }

    /// Returns the token at a position.
    #[must_use]
    pub fn token(&self, at: usize) -> Option<&'a FormulaToken> {
        self.tokens.get(at).map(|lexed| &lexed.token)
    }

    /// Returns whether all tokens were read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.at == self.tokens.len()
    }

    /// Returns the position of the bracket that closes the one at a position.
    #[must_use]
    pub fn closing(&self, at: usize) -> Option<usize> {
        matches!(self.token(at)?, FormulaToken::Open(_)).then(|| self.closing.get(at).copied())?
    }

    /// Returns the kind of a bracket.
    #[must_use]
    pub fn bracket(&self, at: usize) -> Option<Bracket> {
        match self.token(at)? {
            FormulaToken::Open(bracket) | FormulaToken::Close(bracket) => Some(*bracket),
            _ => None,
        }
    }

    /// Returns whether there is a relation at or after a position, outside of brackets.
    #[must_use]
    pub fn has_relation(&self, from: usize) -> bool {
        self.any_outside_brackets(from, self.tokens.len(), |token| {
            matches!(token, FormulaToken::Relation(_) | FormulaToken::Approx | FormulaToken::In)
        })
    }

    /// Returns whether the remaining tokens have a set operator, such as a union, outside of brackets.
    #[must_use]
    pub fn has_set_operator(&self) -> bool {
        self.has_set_operator_between(self.at, self.tokens.len())
    }

    /// Returns whether a range has a set operator, such as a union, outside of brackets.
    #[must_use]
    pub fn has_set_operator_between(&self, from: usize, to: usize) -> bool {
        self.any_outside_brackets(from, to, |token| {
            matches!(token, FormulaToken::Union | FormulaToken::Intersection | FormulaToken::SetMinus)
        })
    }

    /// Returns whether there is a `\choose` between the next bracket and the one that closes it.
    #[must_use]
    pub fn has_choice(&self, close: usize) -> bool {
        self.any_outside_brackets(self.at + 1, close, |token| *token == FormulaToken::Choose)
    }

    fn any_outside_brackets(&self, mut from: usize, to: usize, wanted: impl Fn(&FormulaToken) -> bool) -> bool {
        while from < to {
            match self.token(from) {
                Some(token) if wanted(token) => return true,
                Some(FormulaToken::Open(_)) => from = self.closing.get(from).copied().unwrap_or(to).max(from),
                _ => {}
            }
            from += 1;
        }
        false
    }

    /// Parses with `inner` at one more level of nesting.
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

    pub(super) fn take(&mut self, token: &FormulaToken) -> bool {
        let taken = self.peek() == Some(token);
        self.at += usize::from(taken);
        taken
    }

    /// Parses up to the end of the bracket that opens next.
    pub(super) fn bracketed_term(&mut self, bracket: Bracket) -> Option<Term> {
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
                if parser.take(&FormulaToken::Plus) {
                    sum = sum.plus(parser.product(false)?);
                } else if parser.take(&FormulaToken::Minus) {
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
                Some(FormulaToken::Times) => {
                    self.at += 1;
                    product = product.times(self.signed(argument)?);
                }
                Some(FormulaToken::Divide) => {
                    self.at += 1;
                    product = product.over(self.signed(argument)?);
                }
                Some(FormulaToken::Mod) => {
                    self.at += 1;
                    self.chained()?;
                    product = Term::Call(FormulaFunction::Mod, vec![product, self.signed(argument)?]);
                }
                _ => return Some(product),
            }
        }
    }

    fn signed(&mut self, argument: bool) -> Option<Term> {
        let mut negative = false;
        loop {
            if self.take(&FormulaToken::Minus) {
                negative = !negative;
            } else if !self.take(&FormulaToken::Plus) {
                break;
            }
        }
        let term = self.juxtaposed(argument)?;
        Some(if negative { term.negated() } else { term })
    }

    fn begins_factor(&self, argument: bool) -> bool {
        match self.peek() {
            Some(
                FormulaToken::Open(_)
                | FormulaToken::Frac
                | FormulaToken::Binom
                | FormulaToken::Boxed
                | FormulaToken::MatrixStart
                | FormulaToken::Infinity,
            ) => true,
            Some(
                FormulaToken::Letter(_) | FormulaToken::Differential(_) | FormulaToken::Number(_) | FormulaToken::Percentage(_),
            ) => true,
            Some(FormulaToken::Bar) => !self.bar,
            Some(FormulaToken::Sqrt | FormulaToken::Function(_) | FormulaToken::Several(_) | FormulaToken::Log { .. }) => {
                !argument
            }
            Some(FormulaToken::Operator | FormulaToken::Exponential) => !argument,
            _ => false,
        }
    }

    fn juxtaposed(&mut self, argument: bool) -> Option<Term> {
        let mut factors: Vec<(Term, bool)> = Vec::new();
        loop {
            let (start, token) = (self.at, self.peek());
            let allow_function = !argument || factors.is_empty();
            let factor = self.postfix(allow_function)?;
            let bare = matches!(token, Some(FormulaToken::Number(_))) && self.at == start + 1 && factor.is_natural();
            let fraction = matches!(token, Some(FormulaToken::Frac | FormulaToken::Open(Bracket::Group))) && is_ratio(&factor);
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
                Some(FormulaToken::Caret) => {
                    self.at += 1;
                    term = term.to_the(self.exponent()?);
                }
                Some(FormulaToken::Bang) => {
                    self.at += 1;
                    term = Term::Call(FormulaFunction::Factorial, vec![term]);
                }
                Some(FormulaToken::Degree) => self.at += 1,
                _ => return Some(term),
            }
        }
        None
    }

    /// Parses the exponent after a `^`.
    pub(super) fn exponent(&mut self) -> Option<Term> {
        match self.peek()? {
            FormulaToken::Open(Bracket::Group) => self.bracketed_term(Bracket::Group),
            FormulaToken::Letter(_)
            | FormulaToken::Differential(_)
            | FormulaToken::Number(_)
            | FormulaToken::Percentage(_)
            | FormulaToken::Infinity => self.deeper(|parser| parser.simple(false)),
            _ => None,
        }
    }

    fn atom(&mut self, functions: bool) -> Option<Term> {
        match self.peek()? {
            FormulaToken::Open(bracket @ (Bracket::Round | Bracket::Square | Bracket::Group | Bracket::Curly)) => {
                self.chosen().or_else(|| self.bracketed_term(*bracket))
            }
            FormulaToken::Open(Bracket::Vertical) => {
                Some(Term::Call(FormulaFunction::Abs, vec![self.bracketed_term(Bracket::Vertical)?]))
            }
            FormulaToken::Open(Bracket::Floor) => {
                Some(Term::Call(FormulaFunction::Floor, vec![self.bracketed_term(Bracket::Floor)?]))
            }
            FormulaToken::Open(Bracket::Ceil) => {
                Some(Term::Call(FormulaFunction::Ceil, vec![self.bracketed_term(Bracket::Ceil)?]))
            }
            FormulaToken::Bar if !self.bar => {
                self.at += 1;
                self.bar = true;
                let inside = self.sum()?;
                self.bar = false;
                self.take(&FormulaToken::Bar).then(|| Term::Call(FormulaFunction::Abs, vec![inside]))
            }
            FormulaToken::Frac => {
                self.at += 1;
                let above = self.bracketed_term(Bracket::Group)?;
                Some(above.over(self.bracketed_term(Bracket::Group)?))
            }
            FormulaToken::Binom => {
                self.at += 1;
                let above = self.bracketed_term(Bracket::Group)?;
                Some(Term::Call(FormulaFunction::Binomial, vec![above, self.bracketed_term(Bracket::Group)?]))
            }
            FormulaToken::Boxed => {
                self.at += 1;
                self.bracketed_term(Bracket::Group)
            }
            FormulaToken::MatrixStart => self.matrix(),
            FormulaToken::Sqrt
            | FormulaToken::Function(_)
            | FormulaToken::Several(_)
            | FormulaToken::Log { .. }
            | FormulaToken::Operator
            | FormulaToken::Exponential
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
        let below = if self.take(&FormulaToken::Choose) { self.sum() } else { None }?;
        (self.at == close).then(|| {
            self.at += 1;
            Term::Call(FormulaFunction::Binomial, vec![above, below])
        })
    }

    /// Parses a number or a variable, with its subscript and its own exponent.
    fn simple(&mut self, applied: bool) -> Option<Term> {
        let token = self.peek()?;
        match token {
            FormulaToken::Number(text) => {
                self.at += 1;
                self.subscript()?;
                Term::number(text)
            }
            FormulaToken::Percentage(text) => {
                self.at += 1;
                Some(Term::Percent(Box::new(Term::number(text)?)))
            }
            FormulaToken::Infinity => {
                self.at += 1;
                Some(Term::Infinity)
            }
            FormulaToken::Differential(name) => {
                self.at += 1;
                Some(Term::Symbol(name.clone()))
            }
            FormulaToken::Letter(_) => {
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
        matches!(self.peek()?, FormulaToken::Letter(_)).then(|| self.simple(false))?
    }

    /// Parses a name and the subscript directly after it.
    fn name(&mut self) -> Option<String> {
        let FormulaToken::Letter(name) = self.peek()? else { return None };
        self.at += 1;
        Some(format!("{name}{}", self.subscript()?))
    }

    /// Parses the exponent of a variable, and the subscript after that.
    fn powered(&mut self, symbol: Term) -> Option<Term> {
        if !self.take(&FormulaToken::Caret) {
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
        if !self.take(&FormulaToken::Underscore) {
            return Some(String::new());
        }
        let start = self.at;
        let text = |range: std::ops::Range<usize>| -> Option<String> {
            Some(self.tokens.get(range)?.iter().map(|lexed| lexed.text.trim()).collect())
        };
        let inner = match self.peek()? {
            FormulaToken::Open(Bracket::Group) => {
                let close = self.closing(start)?;
                self.at = close + 1;
                text(start + 1..close)?
            }
            FormulaToken::Letter(_) | FormulaToken::Number(_) | FormulaToken::Infinity => {
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
        let several = self.any_outside_brackets(start + 1, close, |token| *token == FormulaToken::Comma);
        if !several && !self.is_simple(start + 1, close) {
            return None;
        }
        self.at += 1;
        Some(self.several(close))
    }

    /// Returns whether a range is one number or variable with its scripts.
    fn is_simple(&self, mut from: usize, to: usize) -> bool {
        if !matches!(
            self.token(from),
            Some(FormulaToken::Letter(_) | FormulaToken::Number(_) | FormulaToken::Percentage(_) | FormulaToken::Infinity)
        ) {
            return false;
        }
        from += 1;
        while from < to && matches!(self.token(from), Some(FormulaToken::Underscore | FormulaToken::Caret)) {
            from = 1 + self.closing(from + 1).unwrap_or(from + 1);
        }
        from == to
    }

    /// Parses terms between commas up to a closing bracket.
    pub(super) fn several(&mut self, close: usize) -> Option<Vec<Term>> {
        let mut terms = vec![self.sum()?];
        while self.take(&FormulaToken::Comma) {
            terms.push(self.sum()?);
        }
        (self.at == close).then(|| {
            self.at += 1;
            terms
        })
    }
}

/// Returns whether a term is a quotient of two integers without signs.
fn is_ratio(term: &Term) -> bool {
    let Term::Product(factors) = term else { return false };
    let [above, Term::Power(below, _)] = factors.as_slice() else { return false };
    above.is_natural() && below.is_natural() && *above != Term::whole(0)
}

/// Returns the meaning of a name. Case is ignored, except for the imaginary unit `I`.
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
