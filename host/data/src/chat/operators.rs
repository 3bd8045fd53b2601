//! Operators of Python that the engine implements differently: comparisons of order, `in`, `*`, and signs.

use super::arguments::{error, whole};
use super::depth::{DEEPEST_VALUE, too_deep};
use super::views::{MappingView, Range};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};
use std::cmp::Ordering;

/// Name of the filter for a chain of comparisons.
pub(super) const COMPARED: &str = "compared";

/// Name of the filter for the operator `*`.
pub(super) const MULTIPLIED: &str = "multiplied";

/// Name of the filter for the sign `-`.
pub(super) const NEGATIVE: &str = "negative";

/// Name of the filter for the sign `+`.
pub(super) const POSITIVE: &str = "positive";

/// Maximum length of a repeated string or list.
const LONGEST: usize = 100_000_000;

/// Evaluates a chain of comparisons: a list of the first operand, and each operator and its operand.
pub(super) fn compared(chain: &Value) -> Result<bool, Error> {
    let chain: Vec<Value> = chain.try_iter()?.collect();
    let mut left = chain.first().ok_or_else(|| error("a comparison lacks an operand"))?;
    for pair in chain[1..].chunks(2) {
        let [operator, right] = pair else { return Err(error("a comparison lacks an operand")) };
        if !compare(left, operator.as_str().unwrap_or_default(), right)? {
            return Ok(false);
        }
        left = right;
    }
    Ok(true)
}

/// Evaluates a comparison.
pub(super) fn compare(left: &Value, operator: &str, right: &Value) -> Result<bool, Error> {
    let is = |fits: fn(Ordering) -> bool| Ok(order(left, right)?.is_some_and(fits));
    match operator {
        "==" => Ok(left == right),
        "!=" => Ok(left != right),
        "<" => is(Ordering::is_lt),
        "<=" => is(Ordering::is_le),
        ">" => is(Ordering::is_gt),
        ">=" => is(Ordering::is_ge),
        "in" => contains(right, left),
        "not in" => contains(right, left).map(|found| !found),
        _ => Err(error(format!("unknown comparison {operator:?}"))),
    }
}

/// Returns the order of two values; `None` if one is not a number.
///
/// # Errors
/// If the values have no order in Python.
pub(super) fn order(left: &Value, right: &Value) -> Result<Option<Ordering>, Error> {
    order_within(left, right, DEEPEST_VALUE)
}

fn order_within(left: &Value, right: &Value, deepest: usize) -> Result<Option<Ordering>, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        return Ok(Some(left.cmp(right)));
    }
    if is_number(left) && is_number(right) {
        let is_nan = |value: &Value| !value.is_integer() && f64::try_from(value.clone()).is_ok_and(f64::is_nan);
        let number =
            |value: &Value| if value.kind() == ValueKind::Bool { i64::from(value.is_true()).into() } else { value.clone() };
        return Ok((!is_nan(left) && !is_nan(right)).then(|| number(left).cmp(&number(right))));
    }
    if is_list(left) && is_list(right) && left.is_tuple() == right.is_tuple() {
        let deeper = deepest.checked_sub(1).ok_or_else(too_deep)?;
        let (mut others, mut items) = (right.try_iter()?.checked(), left.try_iter()?.checked());
        loop {
            match (items.next().transpose()?, others.next().transpose()?) {
                (None, None) => return Ok(Some(Ordering::Equal)),
                (None, Some(_)) => return Ok(Some(Ordering::Less)),
                (Some(_), None) => return Ok(Some(Ordering::Greater)),
                (Some(item), Some(other)) if item != other => return order_within(&item, &other, deeper),
                _ => {}
            }
        }
    }
    Err(error(format!("{} and {} have no order", described(left), described(right))))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// Names the type of a value.
fn described(value: &Value) -> String {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable if value.is_tuple() => "a tuple".to_owned(),
        ValueKind::Seq | ValueKind::Iterable => "a list".to_owned(),
        ValueKind::Map => "a mapping".to_owned(),
        kind => kind.to_string(),
    }
}

/// Returns whether a container has an item, a string has a part, or a mapping has a key.
pub(super) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        let part = item.as_str().ok_or_else(|| error(format!("{} can't be in a string", described(item))))?;
        return Ok(text.contains(part));
    }
    if let Some(range) = container.downcast_object_ref::<Range>() {
        return Ok(range.position(item).is_some());
    }
    if let Some(view) = container.downcast_object_ref::<MappingView>() {
        return Ok(view.contains(item));
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map if item.kind() == ValueKind::Map || is_list(item) && !item.is_tuple() => {
            Err(error(format!("{} can't be a key", described(item))))
        }
        ValueKind::Map => Ok(container.as_object().is_some_and(|object| object.get_value(item).is_some())),
        ValueKind::Seq | ValueKind::Iterable => {
            for other in container.try_iter()?.checked() {
                if other? == *item {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(error(format!("{} has no items to look for one in", described(container)))),
    }
}

/// Operator `*`.
pub(super) fn multiplied(left: &Value, right: &Value) -> Result<Value, Error> {
    let unfit = || error(format!("can't take {} * {}", described(left), described(right)));
    let repeatable = |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable);
    for (value, count) in [(left, right), (right, left)] {
        if repeatable(value) {
            let count = whole(count).ok_or_else(unfit)?;
            return repeated(value, usize::try_from(count).unwrap_or(if count < 0 { 0 } else { usize::MAX }));
        }
    }
    if let (Some(left), Some(right)) = (whole(left), whole(right)) {
        let product = left.checked_mul(right).ok_or_else(|| error("a product is too large"))?;
        return Ok(integer(product));
    }
    let [left, right] = [left, right].map(|value| match whole(value) {
        Some(number) => Some(number as f64),
        None => f64::try_from(value.clone()).ok().filter(|_| value.kind() == ValueKind::Number),
    });
    Ok(Value::from(left.ok_or_else(unfit)? * right.ok_or_else(unfit)?))
}

/// Repeats a string or list.
fn repeated(value: &Value, count: usize) -> Result<Value, Error> {
    let too_long = || error(format!("a repeated value has more than {LONGEST} items"));
    let fits = |length: usize| length.checked_mul(count).is_some_and(|all| all <= LONGEST);
    if let Some(text) = value.as_str() {
        return if fits(text.len()) { Ok(text.repeat(count).into()) } else { Err(too_long()) };
    }
    let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, Error>>()?;
    if !fits(items.len()) {
        return Err(too_long());
    }
    let all = std::iter::repeat_n(&items, count).flatten().cloned().collect::<Vec<_>>();
    Ok(if value.is_tuple() { Tuple::from(all).into() } else { all.into() })
}

/// Sign `-`.
pub(super) fn negative(value: &Value) -> Result<Value, Error> {
    if let Some(number) = whole(value) {
        return number.checked_neg().map(integer).ok_or_else(|| error("a number is too large"));
    }
    let float = f64::try_from(value.clone()).ok().filter(|_| value.kind() == ValueKind::Number);
    float.map(|float| Value::from(-float)).ok_or_else(|| error(format!("{} has no sign", described(value))))
}

/// Sign `+`.
pub(super) fn positive(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Number => Ok(value.clone()),
        ValueKind::Bool => Ok(i64::from(value.is_true()).into()),
        _ => Err(error(format!("{} has no sign", described(value)))),
    }
}

/// Returns an integer as a value.
pub(super) fn integer(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}
