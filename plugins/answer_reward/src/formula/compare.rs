//! Decides whether an answer agrees with the reference, by the rules of math_verify.

use super::modular;
use super::sets::{IntervalSet, has_variable};
use super::tree::{FormulaNode, NamedSet, Relation, Term};
use super::value::{ComplexValue, VariablePoint};

/// Returns whether an answer agrees with the reference. The relation is not symmetric: `x = 5` and `5` agree with each other, but the
/// reference `x > 2` is also matched by the set of its solutions, while the set as reference is not matched by the condition.
#[must_use]
pub fn same(reference: &FormulaNode, answer: &FormulaNode) -> bool {
    let (reference, answer) = (shortened(reference), shortened(answer));
    let (reference, answer): (&FormulaNode, &FormulaNode) = (&reference, &answer);
    let (reference, answer) = match (reference, answer) {
        (one, FormulaNode::Chain(sides, _)) if is_equation(answer) && !is_equation(one) => (one, last(sides, answer)),
        (FormulaNode::Chain(sides, _), other) if is_assignment(reference) && !is_equation(other) => {
            (last(sides, reference), other)
        }
        both => both,
    };
    if reference == answer {
        return true;
    }
    match (reference, answer) {
        (FormulaNode::Chain(sides, relations), FormulaNode::Chain(others, given)) => {
            same_relations((sides, relations), (others, given))
        }
        (FormulaNode::Chain(sides, relations), set) if set.is_set() => {
            IntervalSet::solutions(sides, relations).zip(IntervalSet::from_node(set)).is_some_and(|(a, b)| a.agree_with(&b))
        }
        (FormulaNode::Term(reference), FormulaNode::Term(answer)) => same_terms(reference, answer),
        (one, other) if is_collection(one) || is_collection(other) => same_sets(one, other),
        _ => false,
    }
}

fn is_collection(node: &FormulaNode) -> bool {
    node.is_set() || matches!(node, FormulaNode::Tuple(_))
}

fn last<'a>(sides: &'a [FormulaNode], whole: &'a FormulaNode) -> &'a FormulaNode {
    sides.last().unwrap_or(whole)
}

fn is_equation(node: &FormulaNode) -> bool {
    matches!(node, FormulaNode::Chain(_, relations) if relations.iter().all(|relation| *relation == Relation::Equal))
}

fn is_assignment(node: &FormulaNode) -> bool {
    is_equation(node) && matches!(node, FormulaNode::Chain(sides, _) if sides.first().is_some_and(FormulaNode::is_of_symbols))
}

/// Removes the intermediate steps of `x = ... = 5`.
fn shortened(node: &FormulaNode) -> std::borrow::Cow<'_, FormulaNode> {
    match node {
        FormulaNode::Chain(sides, _) if sides.len() > 2 && is_assignment(node) => {
            let ends = sides.first().into_iter().chain(sides.last()).cloned().collect();
            std::borrow::Cow::Owned(FormulaNode::Chain(ends, vec![Relation::Equal]))
        }
        other => std::borrow::Cow::Borrowed(other),
    }
}

/// Sides, and the relations between adjacent ones.
type RelationChain<'a> = (&'a [FormulaNode], &'a [Relation]);

fn same_relations(reference: RelationChain<'_>, answer: RelationChain<'_>) -> bool {
    let pairs = |(sides, relations): RelationChain<'_>| -> Vec<(FormulaNode, Relation, FormulaNode)> {
        let pairs = sides.windows(2).zip(relations);
        pairs.filter_map(|(pair, relation)| Some((pair.first()?.clone(), *relation, pair.last()?.clone()))).collect()
    };
    in_any_order(&pairs(reference), &pairs(answer), same_relation)
}

fn same_relation(reference: &(FormulaNode, Relation, FormulaNode), answer: &(FormulaNode, Relation, FormulaNode)) -> bool {
    let ((left, relation, right), (other_left, other_relation, other_right)) = (reference, answer);
    let (FormulaNode::Term(a), FormulaNode::Term(b), FormulaNode::Term(c), FormulaNode::Term(d)) =
        (left, right, other_left, other_right)
    else {
        return relation == other_relation && same(left, other_left) && same(right, other_right);
    };
    let difference = |a: &Term, b: &Term| a.clone().plus(b.clone().negated());
    let (left, right) = (difference(a, b), difference(c, d));
    relation == other_relation && same_terms(&left, &right)
        || relation.flipped() == *other_relation && same_terms(&left, &difference(d, c))
        || *relation == Relation::Equal && relation == other_relation && are_proportional(&left, &right)
}

/// Returns whether one expression of several variables is a constant multiple of the other. For one variable, math_verify requires the
/// equation's solution.
fn are_proportional(a: &Term, b: &Term) -> bool {
    let mut names = Vec::new();
    collect_names(a, &mut names);
    if names.len() < 2 {
        return false;
    }
    let values = |seed| Some((VariablePoint(seed).value(a)?, VariablePoint(seed).value(b)?)).filter(|(a, b)| is_apart(*a, *b));
    let values: Vec<(ComplexValue, ComplexValue)> = (0..8).filter_map(values).collect();
    let Some((first_a, first_b)) = values.first() else { return false };
    let agree = |(a, b): &(ComplexValue, ComplexValue)| a.times(*first_b)?.agrees_with(b.times(*first_a)?);
    values.len() > 1 && values.iter().all(|pair| agree(pair) == Some(true))
}

fn collect_names<'a>(term: &'a Term, names: &mut Vec<&'a str>) {
    if let Term::Symbol(name) = term
        && !names.contains(&name.as_str())
    {
        names.push(name);
    }
    term.children().for_each(|child| collect_names(child, names));
}

fn is_apart(a: ComplexValue, b: ComplexValue) -> bool {
    a.size() > 1e3 * a.error && b.size() > 1e3 * b.error
}

fn same_sets(reference: &FormulaNode, answer: &FormulaNode) -> bool {
    let whole = |node: &FormulaNode| if is_collection(node) { node.clone() } else { FormulaNode::Finite(vec![node.clone()]) };
    let (reference, answer) = (whole(reference), whole(answer));
    match (&reference, &answer) {
        (
            FormulaNode::Interval { start, end, left_open, right_open },
            FormulaNode::Interval { start: from, end: to, left_open: without_from, right_open: without_to },
        ) => left_open == without_from && right_open == without_to && same_terms(start, from) && same_terms(end, to),
        (a, b) if a.is_set() && b.is_set() && same_pieces(a, b) => true,
        (FormulaNode::Finite(elements), FormulaNode::Finite(others) | FormulaNode::Tuple(others)) => {
            same_in_any_order(elements, others)
        }
        (FormulaNode::Tuple(parts), FormulaNode::Finite(others) | FormulaNode::Tuple(others)) => same_in_order(parts, others),
        // (1,2) may be a pair or an interval.
        (FormulaNode::Interval { .. }, FormulaNode::Finite(others) | FormulaNode::Tuple(others)) => {
            pair(&reference).is_some_and(|pair| same_in_order(&pair, others))
        }
        (FormulaNode::Finite(elements), FormulaNode::Interval { .. }) => {
            pair(&answer).is_some_and(|pair| same_in_any_order(elements, &pair))
        }
        (FormulaNode::Tuple(parts), FormulaNode::Interval { .. }) => {
            pair(&answer).is_some_and(|pair| same_in_order(parts, &pair))
        }
        (FormulaNode::Union(a, b), FormulaNode::Union(c, d))
        | (FormulaNode::Intersection(a, b), FormulaNode::Intersection(c, d)) => {
            same(a, c) && same(b, d) || same(a, d) && same(b, c)
        }
        (FormulaNode::Difference(a, b), FormulaNode::Difference(c, d)) => same(a, c) && same(b, d),
        (a, b) => is_empty(a) && is_empty(b),
    }
}

fn is_empty(node: &FormulaNode) -> bool {
    matches!(node, FormulaNode::Named(NamedSet::Empty))
}

fn same_pieces(a: &FormulaNode, b: &FormulaNode) -> bool {
    IntervalSet::from_node(a).zip(IntervalSet::from_node(b)).is_some_and(|(a, b)| a.agree_with(&b))
}

/// Returns the ends of an open interval.
fn pair(node: &FormulaNode) -> Option<[FormulaNode; 2]> {
    match node {
        FormulaNode::Interval { start, end, left_open: true, right_open: true } => {
            Some([FormulaNode::Term((**start).clone()), FormulaNode::Term((**end).clone())])
        }
        _ => None,
    }
}

fn same_in_order(parts: &[FormulaNode], others: &[FormulaNode]) -> bool {
    parts.len() == others.len() && parts.iter().zip(others).all(|(part, other)| same(part, other))
}

fn same_in_any_order(elements: &[FormulaNode], others: &[FormulaNode]) -> bool {
    in_any_order(elements, others, same)
}

fn in_any_order<T>(elements: &[T], others: &[T], same: impl Fn(&T, &T) -> bool) -> bool {
    let mut left: Vec<&T> = others.iter().collect();
    elements.len() == others.len()
        && elements.iter().all(|element| {
            let found = left.iter().position(|other| same(element, other));
            found.map(|at| left.remove(at)).is_some()
        })
}

/// Returns whether two expressions are equal.
#[must_use]
pub fn same_terms(reference: &Term, answer: &Term) -> bool {
    if reference == answer {
        return true;
    }
    match (reference, answer) {
        (Term::Symbol(name), other) | (other, Term::Symbol(name)) => return is_named(other, name),
        (Term::Matrix(rows), Term::Matrix(others)) => {
            return rows.len() == others.len()
                && rows
                    .iter()
                    .zip(others)
                    .all(|(row, other)| row.len() == other.len() && row.iter().zip(other).all(|(a, b)| same_terms(a, b)));
        }
        _ => {}
    }
    if let (Some(a), Some(b)) = (whole_or_percent(reference), whole_or_percent(answer))
        && a == b
    {
        return true;
    }
    let decimal = is_decimal(reference) || is_decimal(answer);
    if decimal && same_rounded(reference, answer) {
        return true;
    }
    same_exactly(reference, answer).unwrap_or_else(|| same_value(reference, answer))
}

/// Returns whether a term is written as a name: the product of its letters, or a number, as in `\text{13}`.
fn is_named(term: &Term, name: &str) -> bool {
    if *term == Term::E {
        return name == "e";
    }
    let letter = |factor: &Term| match factor {
        Term::Symbol(letter) => Some(letter.clone()),
        Term::E => Some("e".to_owned()),
        _ => None,
    };
    let word = match term {
        Term::Product(factors) => factors.iter().map(letter).collect::<Option<String>>(),
        _ => None,
    };
    word.or_else(|| super::plain_text::written(term)).is_some_and(|word| word == name)
}

/// Returns the sign and digits of an integer, without its percent sign, because 20% matches 20.
fn whole_or_percent(term: &Term) -> Option<(bool, &str)> {
    match term {
        Term::Percent(term) => whole_or_percent(term),
        Term::Number(literal) if !literal.decimal => Some((literal.negative, &literal.digits)),
        _ => None,
    }
}

fn is_decimal(term: &Term) -> bool {
    match term {
        Term::Percent(term) => is_decimal(term),
        Term::Number(literal) => literal.decimal,
        _ => false,
    }
}

/// Returns whether two numbers, one of them a decimal, are equal to six decimal places. A decimal is not rounded to an integer.
fn same_rounded(a: &Term, b: &Term) -> bool {
    if has_variable(a) || has_variable(b) {
        return false;
    }
    let Some((a_value, b_value)) = VariablePoint(0).value(a).zip(VariablePoint(0).value(b)) else { return false };
    let is_whole = |term, value: ComplexValue| !is_decimal(term) && value.whole().is_some();
    let Some((x, y)) = a_value.as_real().zip(b_value.as_real()) else { return false };
    if is_whole(a, a_value) || is_whole(b, b_value) {
        return false;
    }
    let rounded = |x: f64| (x * 1e6).round_ties_even();
    // Larger floats have fewer digits after the point.
    if x.abs().max(y.abs()) < 1e8 { rounded(x) == rounded(y) } else { (x - y).abs() <= 1e-15 * x.abs() }
}

/// Compares rational expressions; returns `None` for others.
fn same_exactly(a: &Term, b: &Term) -> Option<bool> {
    for point in modular::POINTS {
        if point.value(a)? != point.value(b)? {
            return Some(false);
        }
    }
    Some(true)
}

/// Compares values at several points, or at one without variables. They may differ at none, and with variables they must agree at two or
/// more.
fn same_value(a: &Term, b: &Term) -> bool {
    let (points, needed) = if has_variable(a) || has_variable(b) { (12, 2) } else { (1, 1) };
    let mut agreed = 0;
    for seed in 0..points {
        let point = VariablePoint(seed);
        let Some((a, b)) = point.value(a).zip(point.value(b)) else { continue };
        match a.agrees_with(b) {
            Some(true) => agreed += 1,
            Some(false) => return false,
            None => {}
        }
    }
    agreed >= needed
}
