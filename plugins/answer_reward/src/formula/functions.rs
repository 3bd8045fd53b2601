//! Parses functions, roots and matrices.

use super::expression::Parser;
use super::lex::{Bracket, FormulaToken};
use super::tree::{FormulaFunction, Term};

/// Parses a function and its arguments.
pub fn function(parser: &mut Parser<'_>) -> Option<Term> {
    parser.function()
}

impl Parser<'_> {
    fn function(&mut self) -> Option<Term> {
        let token = self.peek()?;
        self.at += 1;
        match token {
            FormulaToken::Sqrt => self.root(),
            FormulaToken::Exponential => {
                Some(if self.take(&FormulaToken::Caret) { Term::E.to_the(self.exponent()?) } else { Term::E })
            }
            FormulaToken::Function(function) => self.called(*function, None),
            FormulaToken::Log { natural } => {
                self.called(FormulaFunction::Log, Some(if *natural { Term::E } else { Term::whole(10) }))
            }
            FormulaToken::Several(function) => self.called_with_several(*function),
            FormulaToken::Operator => {
                let close = self.closing(self.at)?;
                let letters = self.tokens.get(self.at + 1..close)?;
                let name: String = letters.iter().map(|lexed| lexed.text).collect();
                self.at = close + 1;
                match name.as_str() {
                    "arsinh" | "arcsinh" => self.called(FormulaFunction::Asinh, None),
                    "arcosh" | "arccosh" => self.called(FormulaFunction::Acosh, None),
                    "artanh" | "arctanh" => self.called(FormulaFunction::Atanh, None),
                    "floor" => self.called(FormulaFunction::Floor, None),
                    "ceil" => self.called(FormulaFunction::Ceil, None),
                    "gcd" => self.called_with_several(FormulaFunction::Gcd),
                    "lcm" => self.called_with_several(FormulaFunction::Lcm),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn root(&mut self) -> Option<Term> {
        let index = match self.peek()? {
            FormulaToken::Open(Bracket::Square) => self.bracketed_term(Bracket::Square)?,
            _ => Term::whole(2),
        };
        Some(self.bracketed_term(Bracket::Group)?.to_the(Term::whole(1).over(index)))
    }

    fn called(&mut self, mut function: FormulaFunction, mut base: Option<Term>) -> Option<Term> {
        let mut power = None;
        for _ in 0..2 {
            if self.take(&FormulaToken::Underscore) {
                let given = self.exponent()?;
                base = base.map(|_| given);
            } else if self.take(&FormulaToken::Caret) {
                power = Some(self.exponent()?);
            }
        }
        let term = match self.bracket(self.at) {
            Some(Bracket::Round) => self.bracketed_term(Bracket::Round)?,
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

    fn called_with_several(&mut self, function: FormulaFunction) -> Option<Term> {
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
                FormulaToken::Column => {
                    self.at += 1;
                    let term = self.sum()?;
                    rows.last_mut()?.push(term);
                }
                FormulaToken::Row => {
                    self.at += 1;
                    if !matches!(self.peek()?, FormulaToken::MatrixEnd) {
                        rows.push(vec![self.sum()?]);
                    }
                }
                FormulaToken::MatrixEnd => {
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
fn inverse(function: FormulaFunction) -> Option<FormulaFunction> {
    Some(match function {
        FormulaFunction::Sin => FormulaFunction::Asin,
        FormulaFunction::Cos => FormulaFunction::Acos,
        FormulaFunction::Tan => FormulaFunction::Atan,
        FormulaFunction::Csc => FormulaFunction::Acsc,
        FormulaFunction::Sec => FormulaFunction::Asec,
        FormulaFunction::Cot => FormulaFunction::Acot,
        FormulaFunction::Sinh => FormulaFunction::Asinh,
        FormulaFunction::Cosh => FormulaFunction::Acosh,
        FormulaFunction::Tanh => FormulaFunction::Atanh,
        _ => return None,
    })
}
