//! Parses functions, roots and matrices.

use super::expression::Parser;
use super::lex::{Bracket, Token};
use super::tree::{Function, Term};

/// Parses a function and its arguments.
pub fn function(parser: &mut Parser<'_>) -> Option<Term> {
    parser.function()
}

impl Parser<'_> {
    fn function(&mut self) -> Option<Term> {
        let token = self.peek()?;
        self.at += 1;
        match token {
            Token::Sqrt => self.root(),
            Token::Exponential => Some(if self.take(&Token::Caret) { Term::E.to_the(self.exponent()?) } else { Term::E }),
            Token::Function(function) => self.called(*function, None),
            Token::Log { natural } => self.called(Function::Log, Some(if *natural { Term::E } else { Term::whole(10) })),
            Token::Several(function) => self.called_with_several(*function),
            Token::Operator => {
                let close = self.closing(self.at)?;
                let letters = self.tokens.get(self.at + 1..close)?;
                let name: String = letters.iter().map(|lexed| lexed.text).collect();
                self.at = close + 1;
                match name.as_str() {
                    "arsinh" | "arcsinh" => self.called(Function::Asinh, None),
                    "arcosh" | "arccosh" => self.called(Function::Acosh, None),
                    "artanh" | "arctanh" => self.called(Function::Atanh, None),
                    "floor" => self.called(Function::Floor, None),
                    "ceil" => self.called(Function::Ceil, None),
                    "gcd" => self.called_with_several(Function::Gcd),
                    "lcm" => self.called_with_several(Function::Lcm),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn root(&mut self) -> Option<Term> {
        let index = match self.peek()? {
            Token::Open(Bracket::Square) => self.inside(Bracket::Square)?,
            _ => Term::whole(2),
        };
        Some(self.inside(Bracket::Group)?.to_the(Term::whole(1).over(index)))
    }

    fn called(&mut self, mut function: Function, mut base: Option<Term>) -> Option<Term> {
        let mut power = None;
        for _ in 0..2 {
            if self.take(&Token::Underscore) {
                let given = self.exponent()?;
                base = base.map(|_| given);
            } else if self.take(&Token::Caret) {
                power = Some(self.exponent()?);
            }
        }
        let term = match self.bracket(self.at) {
            Some(Bracket::Round) => self.inside(Bracket::Round)?,
            _ => self.deeper(|parser| parser.product(true))?,
        };
        if power == Some(Term::whole(-1))
            && let Some(inverse) = inverse(function)
        {
            (function, power) = (inverse, None);
        }
        let called = Term::Call(function, std::iter::once(term).chain(base).collect());
        Some(power.into_iter().fold(called, Term::to_the))
    }

    fn called_with_several(&mut self, function: Function) -> Option<Term> {
        let close = self.closing(self.at).filter(|_| self.bracket(self.at) == Some(Bracket::Round))?;
        self.at += 1;
        Some(Term::Call(function, self.several(close)?))
    }

    /// Parses a matrix.
    pub(super) fn matrix(&mut self) -> Option<Term> {
        self.at += 1;
        let mut rows = vec![vec![self.sum()?]];
        loop {
            match self.peek()? {
                Token::Column => {
                    self.at += 1;
                    let term = self.sum()?;
                    rows.last_mut()?.push(term);
                }
                Token::Row => {
                    self.at += 1;
                    if !matches!(self.peek()?, Token::MatrixEnd) {
                        rows.push(vec![self.sum()?]);
                    }
                }
                Token::MatrixEnd => {
                    self.at += 1;
                    let width = rows.first()?.len();
                    return rows.iter().all(|row| row.len() == width).then_some(Term::Matrix(rows));
                }
                _ => return None,
            }
        }
    }
}

/// Returns the inverse of a function that is written with the exponent -1.
fn inverse(function: Function) -> Option<Function> {
    Some(match function {
        Function::Sin => Function::Asin,
        Function::Cos => Function::Acos,
        Function::Tan => Function::Atan,
        Function::Csc => Function::Acsc,
        Function::Sec => Function::Asec,
        Function::Cot => Function::Acot,
        Function::Sinh => Function::Asinh,
        Function::Cosh => Function::Acosh,
        Function::Tanh => Function::Atanh,
        _ => return None,
    })
}
