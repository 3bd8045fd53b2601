//! Parses LaTeX as sets, tuples, relations and expressions, by the grammar of latex2sympy2.

use super::expression::Parser;
use super::lex::{Bracket, FormulaToken, tokens};
use super::tree::{FormulaNode, Relation, Term};

/// Maximum number of elements of a set or tuple.
const MOST_ELEMENTS: usize = 100;

/// Parses a formula, or returns `None` if any part of it can't be parsed.
#[must_use]
pub fn parse(text: &str) -> Option<FormulaNode> {
    if let Some(number) = thousands(text) {
        return Term::number(&number).map(FormulaNode::Term);
    }
    let tokens = tokens(text)?;
    let mut parser = Parser::new(&tokens)?;
    let node = top(&mut parser)?;
    parser.is_done().then_some(node)
}

/// Returns a text that is a single number with thousands separators, without them.
fn thousands(text: &str) -> Option<String> {
    let text = text.trim();
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (whole, places) = unsigned.split_once('.').map_or((unsigned, None), |(whole, places)| (whole, Some(places)));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut groups = whole.split(',');
    let first = groups.next().is_some_and(|group| digits(group) && group.len() <= 3);
    let others = groups.all(|group| digits(group) && group.len() == 3);
    let grouped = first && others && whole.contains(',') && places.is_none_or(digits);
    // 0,111 is a decimal.
    grouped.then(|| if whole.starts_with('0') { text.replacen(',', ".", 1) } else { text.replace(',', "") })
}

fn top(parser: &mut Parser<'_>) -> Option<FormulaNode> {
    if let Some(left) = assigned(parser) {
        let right = match parser.has_set_operator() {
            true => difference(parser)?,
            false => one_or_set(elements(parser, false)?),
        };
        return Some(FormulaNode::Chain(vec![left, right], vec![Relation::Equal]));
    }
    if parser.has_set_operator() {
        return difference(parser);
    }
    Some(one_or_set(elements(parser, true)?))
}

/// Parses `x =`, `x \in` or `(x, y) =` at the start, if no relation follows; otherwise leaves the position unchanged.
fn assigned(parser: &mut Parser<'_>) -> Option<FormulaNode> {
    let start = parser.at;
    let left = variables(parser).filter(|_| {
        matches!(parser.peek(), Some(FormulaToken::Relation(Relation::Equal) | FormulaToken::In))
            && !parser.has_relation(parser.at + 1)
    });
    match left {
        Some(_) => parser.at += 1,
        None => parser.at = start,
    }
    left
}

fn variables(parser: &mut Parser<'_>) -> Option<FormulaNode> {
    if !matches!(parser.peek(), Some(FormulaToken::Open(Bracket::Round))) {
        return parser.variable().map(FormulaNode::Term);
    }
    let mut list = Vec::new();
    loop {
        parser.at += 1;
        list.push(FormulaNode::Term(parser.variable()?));
        match parser.peek()? {
            FormulaToken::Comma => {}
            FormulaToken::Close(Bracket::Round) => break,
            _ => return None,
        }
    }
    parser.at += 1;
    match list.len() {
        1 => list.pop(),
        _ => Some(FormulaNode::Tuple(list)),
    }
}

/// Returns the only element, a set of elements, or a set of tuples.
fn one_or_set(mut groups: Vec<Vec<FormulaNode>>) -> FormulaNode {
    if groups.len() == 1 {
        let mut group = groups.pop().unwrap_or_default();
        return match group.len() {
            1 => group.remove(0),
            _ => FormulaNode::finite(group),
        };
    }
    if groups.iter().all(|group| group.len() == 1) {
        return FormulaNode::finite(groups.into_iter().flatten().collect());
    }
    FormulaNode::finite(groups.into_iter().map(FormulaNode::Tuple).collect())
}

/// Parses elements between commas, in groups between semicolons.
fn elements(parser: &mut Parser<'_>, relations: bool) -> Option<Vec<Vec<FormulaNode>>> {
    let mut groups = vec![Vec::new()];
    let mut count = 0;
    loop {
        let found = parser.deeper(|parser| element(parser, relations))?;
        count += found.len();
        if count > MOST_ELEMENTS {
            return None;
        }
        groups.last_mut()?.extend(found);
        match parser.peek() {
            Some(FormulaToken::Comma) => {}
            Some(FormulaToken::Semicolon) => groups.push(Vec::new()),
            _ => return Some(groups),
        }
        parser.at += 1;
    }
}

/// Returns whether the token at a position ends an element.
fn ends(parser: &Parser<'_>, at: usize) -> bool {
    matches!(parser.token(at), None | Some(FormulaToken::Comma | FormulaToken::Semicolon | FormulaToken::Close(_)))
}

fn element(parser: &mut Parser<'_>, relations: bool) -> Option<Vec<FormulaNode>> {
    match parser.peek()? {
        FormulaToken::Named(named) => {
            let node = FormulaNode::Named(*named);
            parser.at += 1;
            return ends(parser, parser.at).then(|| vec![node]);
        }
        FormulaToken::Open(Bracket::Round | Bracket::Square | Bracket::Group | Bracket::Curly) => {
            let close = parser.closing(parser.at)?;
            if ends(parser, close + 1) && !parser.has_choice(close) {
                return Some(vec![bracketed(parser)?]);
            }
        }
        FormulaToken::PlusMinus => {
            parser.at += 1;
            let term = parser.sum()?;
            return Some(vec![FormulaNode::Term(term.clone().negated()), FormulaNode::Term(term)]);
        }
        _ => {}
    }
    let first = parser.sum()?;
    if matches!(parser.peek(), Some(FormulaToken::PlusMinus)) {
        parser.at += 1;
        let second = parser.sum()?;
        let less = first.clone().plus(second.clone().negated());
        return Some(vec![FormulaNode::Term(first.plus(second)), FormulaNode::Term(less)]);
    }
    if relations { chain(parser, first).map(|node| vec![node]) } else { Some(vec![FormulaNode::Term(first)]) }
}

/// Parses the relations after the first side.
fn chain(parser: &mut Parser<'_>, first: Term) -> Option<FormulaNode> {
    let (mut sides, mut relations) = (vec![FormulaNode::Term(first)], Vec::new());
    loop {
        let relation = match parser.peek() {
            Some(FormulaToken::Relation(relation)) => Some(*relation),
            Some(FormulaToken::Approx) => None,
            Some(FormulaToken::In) => return None,
            _ => break,
        };
        parser.at += 1;
        let side = FormulaNode::Term(parser.sum()?);
        match relation {
            Some(relation) => {
                relations.push(relation);
                sides.push(side);
            }
            // An approximation counts only after a name.
            None if relations.is_empty() && sides.iter().all(FormulaNode::is_of_symbols) => sides = vec![side],
            None => {}
        }
    }
    if relations.is_empty() { sides.pop() } else { Some(FormulaNode::Chain(sides, relations)) }
}

/// Parses a complete element in brackets: an interval, a tuple, a set, or an expression in parentheses.
fn bracketed(parser: &mut Parser<'_>) -> Option<FormulaNode> {
    let open = parser.bracket(parser.at)?;
    let close = parser.bracket(parser.closing(parser.at)?)?;
    parser.at += 1;
    let mut groups = elements(parser, true)?;
    if !matches!(parser.peek(), Some(FormulaToken::Close(_))) {
        return None;
    }
    parser.at += 1;
    if matches!(open, Bracket::Curly | Bracket::Group) {
        return match (open, groups.as_slice()) {
            // The braces only group.
            (Bracket::Group, [group]) if group.len() == 1 && !parser.is_done() => groups.pop()?.pop(),
            _ => Some(FormulaNode::finite(groups.into_iter().flatten().collect())),
        };
    }
    if let [group] = groups.as_slice()
        && let [FormulaNode::Term(start), FormulaNode::Term(end)] = group.as_slice()
    {
        return interval(start, end, open == Bracket::Round, close == Bracket::Round);
    }
    if open != close {
        return None;
    }
    match groups.as_slice() {
        [group] if group.len() == 1 => groups.pop()?.pop(),
        _ => Some(FormulaNode::Tuple(groups.into_iter().flatten().collect())),
    }
}

/// Returns an interval, or a pair if the interval would be empty.
fn interval(start: &Term, end: &Term, left_open: bool, right_open: bool) -> Option<FormulaNode> {
    let pair = || FormulaNode::Tuple(vec![FormulaNode::Term(start.clone()), FormulaNode::Term(end.clone())]);
    let infinite = |term: &Term| {
        matches!(term, Term::Infinity) || matches!(term, Term::Product(factors) if factors.contains(&Term::Infinity))
    };
    let order = super::sets::endpoint_value(start).zip(super::sets::endpoint_value(end)).and_then(|(a, b)| a.partial_cmp(&b));
    match order {
        Some(order) if order.is_ge() && left_open && right_open => return Some(pair()),
        Some(std::cmp::Ordering::Greater) if !left_open && !right_open => return Some(pair()),
        Some(std::cmp::Ordering::Equal) if !left_open && !right_open => {
            return Some(FormulaNode::Finite(vec![FormulaNode::Term(start.clone())]));
        }
        Some(order) if order.is_ge() => return Some(FormulaNode::finite(Vec::new())),
        _ => {}
    }
    Some(FormulaNode::Interval {
        left_open: left_open || infinite(start),
        right_open: right_open || infinite(end),
        start: Box::new(start.clone()),
        end: Box::new(end.clone()),
    })
}

/// Parses operands joined by an operator, from left to right.
fn joined(
    parser: &mut Parser<'_>,
    part: fn(&mut Parser<'_>) -> Option<FormulaNode>,
    operator: &FormulaToken,
    join: fn(FormulaNode, FormulaNode) -> FormulaNode,
) -> Option<FormulaNode> {
    let mut left = part(parser)?;
    while parser.peek() == Some(operator) {
        parser.at += 1;
        left = join(left, part(parser)?);
        parser.chained()?;
    }
    Some(left)
}

fn difference(parser: &mut Parser<'_>) -> Option<FormulaNode> {
    joined(parser, union, &FormulaToken::SetMinus, |left, right| FormulaNode::Difference(Box::new(left), Box::new(right)))
}

fn union(parser: &mut Parser<'_>) -> Option<FormulaNode> {
    joined(parser, intersection, &FormulaToken::Union, |left, right| {
        FormulaNode::Union(Box::new(as_set(left)), Box::new(as_set(right)))
    })
}

fn intersection(parser: &mut Parser<'_>) -> Option<FormulaNode> {
    joined(parser, operand, &FormulaToken::Intersection, |left, right| {
        FormulaNode::Intersection(Box::new(as_set(left)), Box::new(as_set(right)))
    })
}

fn as_set(node: FormulaNode) -> FormulaNode {
    match node {
        FormulaNode::Tuple(parts) => FormulaNode::finite(parts),
        other => other,
    }
}

fn operand(parser: &mut Parser<'_>) -> Option<FormulaNode> {
    if let FormulaToken::Named(named) = parser.peek()? {
        let node = FormulaNode::Named(*named);
        parser.at += 1;
        return Some(node);
    }
    let close = parser.closing(parser.at)?;
    if parser.bracket(parser.at)? == Bracket::Round && parser.has_set_operator_between(parser.at + 1, close) {
        parser.at += 1;
        let inner = parser.deeper(difference)?;
        parser.at += 1;
        return (parser.at == close + 1).then_some(inner);
    }
    parser.deeper(bracketed)
}
