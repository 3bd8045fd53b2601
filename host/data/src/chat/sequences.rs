//! Iterating over, slicing and unpacking values as Python does.

use super::arguments::{TemplateArguments, error, whole};
use super::pieces::TagToken;
use super::views::Range;
use minijinja::value::{Kwargs, Tuple, ValueIter, ValueKind};
use minijinja::{Error, State, Value, filters};

/// Name of the filter for slices.
pub(super) const SLICED: &str = "sliced";

/// Name of the filter for what a loop iterates over.
pub(super) const ITERATED: &str = "iterated";

/// Name of the filter for a value that several names take apart.
pub(super) const UNPACKED: &str = "unpacked";

/// Name of the filter for what a loop with several names iterates over.
pub(super) const EACH_UNPACKED: &str = "each_unpacked";

/// Returns the items of a value.
///
/// # Errors
/// If it has none; unlike undefined, `none` can't be iterated over.
pub(super) fn iterate(value: &Value) -> Result<ValueIter, Error> {
    if value.is_none() { Err(error("none has no items")) } else { value.try_iter() }
}

/// Returns the items of a value as a vector.
pub(super) fn collected(value: &Value) -> Result<Vec<Value>, Error> {
    iterate(value)?.checked().collect()
}

/// Filter for what a loop iterates over. Only of lists does the engine's loop know the length.
pub(super) fn iterated(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() { list(value) } else { iterate(value).map(|_| value.clone()) }
}

/// Returns the shape of the names that take a value apart, as a literal: a list for a tuple, and 0 for a name. `None` for a single name.
pub(super) fn shape(names: &[TagToken<'_>]) -> Option<String> {
    let names = match names {
        [first, inner @ .., last] if first.text == "(" && last.text == ")" && closes_at_end(inner) => inner,
        _ => names,
    };
    if !names.iter().any(|name| name.text == ",") {
        return None;
    }
    let (mut shape, mut at) = (String::from("["), 0);
    while let Some(name) = names.get(at) {
        match name.text {
            "(" => shape.push('['),
            ")" => shape.push(']'),
            "," => shape.push(','),
            _ => {
                shape.push('0');
                // An attribute of a namespace.
                at += if names.get(at + 1).is_some_and(|next| next.text == ".") { 2 } else { 0 };
            }
        }
        at += 1;
    }
    Some(shape + "]")
}

/// Returns whether an opened bracket before these tokens is closed after them.
fn closes_at_end(tokens: &[TagToken<'_>]) -> bool {
    let mut depth = 1_usize;
    tokens.iter().all(|token| {
        match token.text {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        depth > 0
    }) && depth == 1
}

/// Filter for a value that several names take apart: strings become lists, which the engine can unpack.
pub(super) fn unpacked(value: &Value, shape: &Value) -> Result<Value, Error> {
    if shape.kind() != ValueKind::Seq {
        return Ok(value.clone());
    }
    let shape: Vec<Value> = shape.try_iter()?.collect();
    let is_flat = shape.iter().all(Value::is_number);
    if value.as_str().is_none() && (is_flat || value.as_object().is_none()) {
        return Ok(value.clone());
    }
    let items = collected(value)?;
    if items.len() != shape.len() {
        return Ok(items.into());
    }
    items.iter().zip(&shape).map(|(item, shape)| unpacked(item, shape)).collect()
}

/// Filter for what a loop with several names iterates over.
pub(super) fn each_unpacked(value: &Value, shape: &Value) -> Result<Value, Error> {
    iterate(value)?.checked().map(|item| unpacked(&item?, shape)).collect()
}

/// Filter for slices.
pub(super) fn sliced(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let [start, stop, step] = [bound(start)?, bound(stop)?, bound(step)?];
    let span = |length: usize| span(length, start, stop, step.unwrap_or(1));
    if let Some(text) = value.as_str() {
        if step.is_none_or(|step| step == 1) {
            let chosen = span(text.chars().count())?;
            return Ok(text.chars().skip(chosen.start()).take(chosen.count).collect::<String>().into());
        }
        let chars: Vec<char> = text.chars().collect();
        return Ok(span(chars.len())?.places().map(|place| chars[place]).collect::<String>().into());
    }
    if let Some(range) = value.downcast_object_ref::<Range>() {
        let SliceSpan { first, end, .. } = span(value.len().unwrap_or(0))?;
        return range.slice(first, end, step.unwrap_or(1)).map(Value::from_object);
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(error(format!("{} can't be sliced", value.kind())));
    }
    let items = collected(value)?;
    let chosen: Vec<Value> = span(items.len())?.places().map(|place| items[place].clone()).collect();
    Ok(if value.is_tuple() { Tuple::from(chosen).into() } else { chosen.into() })
}

/// Returns a bound or the step of a slice.
fn bound(value: &Value) -> Result<Option<i64>, Error> {
    if value.is_none() {
        return Ok(None);
    }
    let number = whole(value).ok_or_else(|| error(format!("a slice needs integers, not {}", value.kind())))?;
    Ok(Some(i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })))
}

/// Places that a slice selects.
struct SliceSpan {
    first: i64,
    /// Place before which, in steps, the slice ends.
    end: i64,
    step: i64,
    count: usize,
}

impl SliceSpan {
    fn start(&self) -> usize {
        usize::try_from(self.first).unwrap_or(0)
    }

    fn places(self) -> impl Iterator<Item = usize> {
        (0..self.count as i64).map(move |i| usize::try_from(self.first + i * self.step).unwrap_or(0))
    }
}

/// Returns the places that a slice of a sequence of this length selects, by Python's rules.
fn span(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Result<SliceSpan, Error> {
    if step == 0 {
        return Err(error("the step of a slice can't be 0"));
    }
    // A larger step selects the same.
    let length = length as i64;
    let step = step.clamp(-length - 1, length + 1);
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |bound: i64| if bound < 0 { bound.saturating_add(length).max(lowest) } else { bound.min(highest) };
    let (first, end) = match step > 0 {
        true => (start.map_or(lowest, place), stop.map_or(highest, place)),
        false => (start.map_or(highest, place), stop.map_or(lowest, place)),
    };
    let distance = if step > 0 { end - first } else { first - end };
    let count = (distance.max(0) + step.abs() - 1) / step.abs();
    Ok(SliceSpan { first, end, step, count: usize::try_from(count).unwrap_or(0) })
}

/// Filter `first`.
pub(super) fn first(value: &Value) -> Result<Value, Error> {
    Ok(iterate(value)?.checked().next().transpose()?.unwrap_or_default())
}

/// Filter `last`.
pub(super) fn last(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable => filters::last(value.clone()),
        _ => Ok(collected(value)?.pop().unwrap_or_default()),
    }
}

/// Filter `list`.
pub(super) fn list(value: &Value) -> Result<Value, Error> {
    collected(value).map(Value::from)
}

/// Filter `items`.
pub(super) fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::from(Vec::<Value>::new())) } else { filters::items(value) }
}

/// Filter `reverse`.
pub(super) fn reverse(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None => Err(error("none can't be reversed")),
        ValueKind::Plain => Ok(collected(value)?.into_iter().rev().collect()),
        _ => filters::reverse(value),
    }
}

/// Filter `sum`.
pub(super) fn sum(
    state: &State<'_, '_>,
    value: Value,
    attribute: Option<String>,
    start: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    iterate(&value)?;
    filters::sum(state, value, attribute.as_deref(), start, named)
}

/// Filter `batch`.
pub(super) fn batch(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    iterate(&value)?;
    filters::batch(state, value, count, fill)
}

/// Filter `slice`.
pub(super) fn slice(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    iterate(&value)?;
    filters::slice(state, value, count, fill)
}

/// Methods of ranges.
pub(super) fn method_of_range(value: &Value, range: &Range, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let place = || Ok::<_, Error>(range.position(TemplateArguments::bind(args, &["value"])?.required(0)?));
    Ok(match name {
        "index" => Some(place()?.ok_or_else(|| error(format!("index: the number is not in {value}")))?.into()),
        "count" => Some(i64::from(place()?.is_some()).into()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slices_select_places_of_the_sequence(
            length in 0..6_usize,
            start in proptest::option::of(-9..9_i64),
            stop in proptest::option::of(-9..9_i64),
            step in proptest::option::of(prop_oneof![-9..0_i64, 1..9_i64, Just(i64::MIN), Just(i64::MAX)]),
        ) {
            let step = step.unwrap_or(1);
            let places: Vec<usize> = span(length, start, stop, step).unwrap().places().collect();
            // By the definition: from the first place on, in steps, what is before the end.
            let all = length as i64;
            let resolved = |bound: i64| if bound < 0 { bound + all } else { bound };
            let mut expected = Vec::new();
            let mut at = match start.map(resolved) {
                None => if step > 0 { 0 } else { all - 1 },
                Some(start) => if step > 0 { start.max(0) } else { start.min(all - 1) },
            };
            let stop = stop.map(resolved);
            while (0..all).contains(&at) && stop.is_none_or(|stop| if step > 0 { at < stop } else { at > stop }) {
                expected.push(at as usize);
                at = at.saturating_add(step);
            }
            prop_assert_eq!(places, expected);
        }
    }
}
