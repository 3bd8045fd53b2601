//! Compares sets of real numbers as unions of intervals.

use super::tree::{FormulaNode, NamedSet, Relation, Term};
use super::value::VariablePoint;

/// An interval from one number to another, open at infinite ends.
#[derive(Clone, Copy, Debug)]
struct RealInterval {
    start: f64,
    left_open: bool,
    end: f64,
    right_open: bool,
}

/// A set of real numbers: sorted intervals that don't touch.
#[derive(Clone, Debug)]
pub struct IntervalSet(Vec<RealInterval>);

const ALL: RealInterval = RealInterval { start: f64::NEG_INFINITY, left_open: true, end: f64::INFINITY, right_open: true };

/// Returns the value of an expression without variables, which may be infinite.
#[must_use]
pub fn endpoint_value(term: &Term) -> Option<f64> {
    match term {
        Term::Infinity => Some(f64::INFINITY),
        Term::Product(factors) if *factors == [Term::whole(-1), Term::Infinity] => Some(f64::NEG_INFINITY),
        term if has_variable(term) => None,
        term => VariablePoint(0).value(term)?.as_real(),
    }
}

/// Returns whether an expression has variables or unknown functions.
#[must_use]
pub fn has_variable(term: &Term) -> bool {
    matches!(term, Term::Symbol(_) | Term::Applied(..)) || term.children().any(has_variable)
}

fn near(a: f64, b: f64) -> bool {
    a == b || a.is_finite() && b.is_finite() && (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

impl IntervalSet {
    fn from_intervals(mut pieces: Vec<RealInterval>) -> Self {
        pieces.retain(|p| p.start < p.end && !near(p.start, p.end) || !p.left_open && !p.right_open && near(p.start, p.end));
        pieces.sort_by(|a, b| a.start.total_cmp(&b.start).then(a.left_open.cmp(&b.left_open)));
        let mut merged: Vec<RealInterval> = Vec::new();
        for piece in pieces {
            match merged.last_mut() {
                Some(last)
                    if piece.start < last.end && !near(piece.start, last.end)
                        || near(piece.start, last.end) && !(piece.left_open && last.right_open) =>
                {
                    if near(piece.end, last.end) {
                        last.right_open &= piece.right_open;
                    } else if piece.end > last.end {
                        (last.end, last.right_open) = (piece.end, piece.right_open);
                    }
                }
                _ => merged.push(piece),
            }
        }
        Self(merged)
    }

    /// Returns a set as intervals, or `None` if it isn't a set of known real numbers.
    #[must_use]
    pub fn from_node(node: &FormulaNode) -> Option<Self> {
        let pieces = match node {
            FormulaNode::Interval { start, end, left_open, right_open } => {
                vec![RealInterval {
                    start: endpoint_value(start)?,
                    left_open: *left_open,
                    end: endpoint_value(end)?,
                    right_open: *right_open,
                }]
            }
            FormulaNode::Finite(elements) => elements.iter().map(point).collect::<Option<_>>()?,
            FormulaNode::Named(NamedSet::Empty) => Vec::new(),
            FormulaNode::Named(NamedSet::Reals) => vec![ALL],
            FormulaNode::Union(a, b) => Self::from_node(a)?.0.into_iter().chain(Self::from_node(b)?.0).collect(),
            FormulaNode::Intersection(a, b) => Self::from_node(a)?.intersection(&Self::from_node(b)?).0,
            FormulaNode::Difference(a, b) => Self::from_node(a)?.intersection(&Self::from_node(b)?.complement()).0,
            _ => return None,
        };
        Some(Self::from_intervals(pieces))
    }

    fn intersection(&self, other: &Self) -> Self {
        let mut both = Vec::new();
        for a in &self.0 {
            for b in &other.0 {
                let (start, left_open) = match near(a.start, b.start) {
                    true => (a.start, a.left_open || b.left_open),
                    false if a.start > b.start => (a.start, a.left_open),
                    false => (b.start, b.left_open),
                };
                let (end, right_open) = match near(a.end, b.end) {
                    true => (a.end, a.right_open || b.right_open),
                    false if a.end < b.end => (a.end, a.right_open),
                    false => (b.end, b.right_open),
                };
                both.push(RealInterval { start, left_open, end, right_open });
            }
        }
        Self::from_intervals(both)
    }

    fn complement(&self) -> Self {
        let (mut start, mut left_open) = (f64::NEG_INFINITY, true);
        let mut rest = Vec::new();
        for piece in &self.0 {
            rest.push(RealInterval { start, left_open, end: piece.start, right_open: !piece.left_open });
            (start, left_open) = (piece.end, !piece.right_open);
        }
        if start < f64::INFINITY {
            rest.push(RealInterval { start, left_open, end: f64::INFINITY, right_open: true });
        }
        Self::from_intervals(rest)
    }

    /// Returns whether two sets have the same elements.
    #[must_use]
    pub fn agree_with(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(a, b)| {
                near(a.start, b.start) && near(a.end, b.end) && a.left_open == b.left_open && a.right_open == b.right_open
            })
    }

    /// Returns the solutions of a relation such as `1 < x \le 2` in one variable, or `None` if it isn't of such a simple form.
    #[must_use]
    pub fn solutions(sides: &[FormulaNode], relations: &[Relation]) -> Option<Self> {
        let mut name = None;
        let mut solutions = Self(vec![ALL]);
        for (pair, relation) in sides.windows(2).zip(relations) {
            let [FormulaNode::Term(left), FormulaNode::Term(right)] = pair else { return None };
            let (symbol, relation, bound) = match (multiple(left), multiple(right)) {
                (Some((factor, symbol)), None) => (symbol, directed(*relation, factor), endpoint_value(right)? / factor),
                (None, Some((factor, symbol))) => (symbol, directed(relation.flipped(), factor), endpoint_value(left)? / factor),
                _ => return None,
            };
            if *name.get_or_insert(symbol) != symbol {
                return None;
            }
            solutions = solutions.intersection(&on_one_side(relation, bound));
        }
        name.map(|_| solutions)
    }
}

/// Returns a variable and its coefficient.
fn multiple(term: &Term) -> Option<(f64, &str)> {
    match term {
        Term::Symbol(name) => Some((1.0, name)),
        Term::Product(factors) => match factors.as_slice() {
            [factor, Term::Symbol(name)] => Some((endpoint_value(factor).filter(|f| f.is_finite() && *f != 0.0)?, name)),
            _ => None,
        },
        _ => None,
    }
}

fn directed(relation: Relation, factor: f64) -> Relation {
    if factor < 0.0 { relation.flipped() } else { relation }
}

fn on_one_side(relation: Relation, bound: f64) -> IntervalSet {
    let at = RealInterval { start: bound, left_open: false, end: bound, right_open: false };
    let below = |right_open| RealInterval { end: bound, right_open: right_open || bound.is_infinite(), ..ALL };
    let above = |left_open| RealInterval { start: bound, left_open: left_open || bound.is_infinite(), ..ALL };
    IntervalSet::from_intervals(match relation {
        Relation::Equal => vec![at],
        Relation::NotEqual => vec![below(true), above(true)],
        Relation::Less => vec![below(true)],
        Relation::AtMost => vec![below(false)],
        Relation::Greater => vec![above(true)],
        Relation::AtLeast => vec![above(false)],
    })
}

fn point(element: &FormulaNode) -> Option<RealInterval> {
    let FormulaNode::Term(term) = element else { return None };
    let at = endpoint_value(term).filter(|at| at.is_finite())?;
    Some(RealInterval { start: at, left_open: false, end: at, right_open: false })
}
