//! Decides whether an answer is the reference, by the rules of math_verify.

use super::modular;
use super::sets::{Pieces, has_variable};
use super::tree::{Named, Node, Relation, Term};
use super::value::{Point, Value};

/// Returns whether an answer is what the reference is. The two aren't alike: `x = 5` and `5` are each right for the other, but a
/// condition such as `x > 2` is right only for conditions, while the set of its solutions is right for it.
#[must_use]
pub fn same(reference: &Node, answer: &Node) -> bool {
    let (reference, answer) = (shortened(reference), shortened(answer));
    let (reference, answer): (&Node, &Node) = (&reference, &answer);
    let (reference, answer) = match (reference, answer) {
        (one, Node::Chain(sides, _)) if is_equation(answer) && !is_equation(one) => (one, last(sides, answer)),
        (Node::Chain(sides, _), other) if is_assignment(reference) && !is_equation(other) => (last(sides, reference), other),
        both => both,
    };
    if reference == answer {
        return true;
    }
    match (reference, answer) {
        (Node::Chain(sides, relations), Node::Chain(others, given)) => same_relations((sides, relations), (others, given)),
        (Node::Chain(sides, relations), set) if set.is_set() => {
            Pieces::solutions(sides, relations).zip(Pieces::of(set)).is_some_and(|(a, b)| a.agree_with(&b))
        }
        (Node::Term(reference), Node::Term(answer)) => same_terms(reference, answer),
        (one, other) if is_collection(one) || is_collection(other) => same_sets(one, other),
        _ => false,
    }
}

fn is_collection(node: &Node) -> bool {
    node.is_set() || matches!(node, Node::Tuple(_))
}

fn last<'a>(sides: &'a [Node], whole: &'a Node) -> &'a Node {
    sides.last().unwrap_or(whole)
}

fn is_equation(node: &Node) -> bool {
    matches!(node, Node::Chain(_, relations) if relations.iter().all(|relation| *relation == Relation::Equal))
}

fn is_assignment(node: &Node) -> bool {
    is_equation(node) && matches!(node, Node::Chain(sides, _) if sides.first().is_some_and(Node::is_of_symbols))
}

/// Leaves the steps out of `x = ... = 5`.
fn shortened(node: &Node) -> std::borrow::Cow<'_, Node> {
    match node {
        Node::Chain(sides, _) if sides.len() > 2 && is_assignment(node) => {
            let ends = sides.first().into_iter().chain(sides.last()).cloned().collect();
            std::borrow::Cow::Owned(Node::Chain(ends, vec![Relation::Equal]))
        }
        other => std::borrow::Cow::Borrowed(other),
    }
}

/// Sides and the relations between neighbours.
type Sides<'a> = (&'a [Node], &'a [Relation]);

fn same_relations(reference: Sides<'_>, answer: Sides<'_>) -> bool {
    let pairs = |(sides, relations): Sides<'_>| -> Vec<(Node, Relation, Node)> {
        let pairs = sides.windows(2).zip(relations);
        pairs.filter_map(|(pair, relation)| Some((pair.first()?.clone(), *relation, pair.last()?.clone()))).collect()
    };
    in_any_order(&pairs(reference), &pairs(answer), same_relation)
}

fn same_relation(reference: &(Node, Relation, Node), answer: &(Node, Relation, Node)) -> bool {
    let ((left, relation, right), (other_left, other_relation, other_right)) = (reference, answer);
    let (Node::Term(a), Node::Term(b), Node::Term(c), Node::Term(d)) = (left, right, other_left, other_right) else {
        return relation == other_relation && same(left, other_left) && same(right, other_right);
    };
    let difference = |a: &Term, b: &Term| a.clone().plus(b.clone().negated());
    let (left, right) = (difference(a, b), difference(c, d));
    relation == other_relation && same_terms(&left, &right)
        || relation.flipped() == *other_relation && same_terms(&left, &difference(d, c))
        || *relation == Relation::Equal && relation == other_relation && are_proportional(&left, &right)
}

/// Returns whether one expression of several variables is a constant times the other. For one variable, math_verify wants the
/// equation that it solves to.
fn are_proportional(a: &Term, b: &Term) -> bool {
    let mut names = Vec::new();
    collect_names(a, &mut names);
    if names.len() < 2 {
        return false;
    }
    let values = |seed| Some((Point(seed).value(a)?, Point(seed).value(b)?)).filter(|(a, b)| is_apart(*a, *b));
    let values: Vec<(Value, Value)> = (0..8).filter_map(values).collect();
    let Some((first_a, first_b)) = values.first() else { return false };
    let agree = |(a, b): &(Value, Value)| a.times(*first_b)?.agrees_with(b.times(*first_a)?);
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

fn is_apart(a: Value, b: Value) -> bool {
    a.size() > 1e3 * a.error && b.size() > 1e3 * b.error
}

fn same_sets(reference: &Node, answer: &Node) -> bool {
    let whole = |node: &Node| if is_collection(node) { node.clone() } else { Node::Finite(vec![node.clone()]) };
    let (reference, answer) = (whole(reference), whole(answer));
    match (&reference, &answer) {
        (
            Node::Interval { start, end, left_open, right_open },
            Node::Interval { start: from, end: to, left_open: without_from, right_open: without_to },
        ) => left_open == without_from && right_open == without_to && same_terms(start, from) && same_terms(end, to),
        (a, b) if a.is_set() && b.is_set() && same_pieces(a, b) => true,
        (Node::Finite(elements), Node::Finite(others) | Node::Tuple(others)) => same_in_any_order(elements, others),
        (Node::Tuple(parts), Node::Finite(others) | Node::Tuple(others)) => same_in_order(parts, others),
        // (1,2) may be a pair as well as an interval.
        (Node::Interval { .. }, Node::Finite(others) | Node::Tuple(others)) => {
            pair(&reference).is_some_and(|pair| same_in_order(&pair, others))
        }
        (Node::Finite(elements), Node::Interval { .. }) => pair(&answer).is_some_and(|pair| same_in_any_order(elements, &pair)),
        (Node::Tuple(parts), Node::Interval { .. }) => pair(&answer).is_some_and(|pair| same_in_order(parts, &pair)),
        (Node::Union(a, b), Node::Union(c, d)) | (Node::Intersection(a, b), Node::Intersection(c, d)) => {
            same(a, c) && same(b, d) || same(a, d) && same(b, c)
        }
        (Node::Difference(a, b), Node::Difference(c, d)) => same(a, c) && same(b, d),
        (a, b) => is_empty(a) && is_empty(b),
    }
}

fn is_empty(node: &Node) -> bool {
    matches!(node, Node::Named(Named::Empty))
}

fn same_pieces(a: &Node, b: &Node) -> bool {
    Pieces::of(a).zip(Pieces::of(b)).is_some_and(|(a, b)| a.agree_with(&b))
}

/// Returns the ends of an open interval.
fn pair(node: &Node) -> Option<[Node; 2]> {
    match node {
        Node::Interval { start, end, left_open: true, right_open: true } => {
            Some([Node::Term((**start).clone()), Node::Term((**end).clone())])
        }
        _ => None,
    }
}

fn same_in_order(parts: &[Node], others: &[Node]) -> bool {
    parts.len() == others.len() && parts.iter().zip(others).all(|(part, other)| same(part, other))
}

fn same_in_any_order(elements: &[Node], others: &[Node]) -> bool {
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

/// Returns whether a term is what a name says: the product of its letters, or a number that is written so, as in `\text{13}`.
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
    word.or_else(|| super::written::written(term)).is_some_and(|word| word == name)
}

/// Returns the digits of a whole number, without its percent sign: 20% is right for 20.
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

/// Returns whether two numbers, of which one is a decimal, are the same to six decimal places. Whole numbers aren't rounded to.
fn same_rounded(a: &Term, b: &Term) -> bool {
    if has_variable(a) || has_variable(b) {
        return false;
    }
    let Some((a_value, b_value)) = Point(0).value(a).zip(Point(0).value(b)) else { return false };
    let is_whole = |term, value: Value| !is_decimal(term) && value.whole().is_some();
    let Some((x, y)) = a_value.as_real().zip(b_value.as_real()) else { return false };
    if is_whole(a, a_value) || is_whole(b, b_value) {
        return false;
    }
    let rounded = |x: f64| (x * 1e6).round_ties_even();
    // Larger numbers have fewer digits after the point.
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

/// Compares values at several points; what has no value at two of them isn't equal to anything else.
fn same_value(a: &Term, b: &Term) -> bool {
    let (points, needed) = if has_variable(a) || has_variable(b) { (12, 2) } else { (1, 1) };
    let mut agreed = 0;
    for seed in 0..points {
        let point = Point(seed);
        let Some((a, b)) = point.value(a).zip(point.value(b)) else { continue };
        match a.agrees_with(b) {
            Some(true) => agreed += 1,
            Some(false) => return false,
            None => {}
        }
    }
    agreed >= needed
}
