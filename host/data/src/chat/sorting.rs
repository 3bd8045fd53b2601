//! Jinja's filters that put items in order: `sort`, `unique`, `min`, `max`, `dictsort` and `groupby`.

use super::arguments::{TemplateArguments, all, error};
use super::item_group::ItemGroup;
use super::operators::order;
use super::sequences::{collected, iterate};
use super::text::{at_path, repr};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind};
use minijinja::{Error, Value};
use std::cmp::Ordering;

/// What items are ordered by.
struct SortKey<'a> {
    /// Paths of attributes; none for the item itself.
    paths: Vec<String>,
    case_sensitive: bool,
    /// Value for missing attributes.
    default: Option<&'a Value>,
}

impl<'a> SortKey<'a> {
    /// Creates a key from the arguments for case and attribute.
    fn new(args: &'a TemplateArguments, case_sensitive: usize, attribute: usize) -> Result<Self, Error> {
        Ok(Self {
            paths: args.path(attribute)?.into_iter().collect(),
            case_sensitive: args.is_true(case_sensitive),
            default: None,
        })
    }

    /// Returns the values of an item to compare.
    fn values_of(&self, item: &Value) -> Result<Vec<Value>, Error> {
        let values = match self.paths.as_slice() {
            [] => vec![item.clone()],
            paths => paths.iter().map(|path| at_path(item.clone(), path, self.default)).collect::<Result<_, Error>>()?,
        };
        Ok(values.into_iter().map(|value| self.folded(value)).collect())
    }

    fn folded(&self, value: Value) -> Value {
        match value.as_str().filter(|_| !self.case_sensitive) {
            Some(text) => text.to_lowercase().into(),
            None => value,
        }
    }
}

/// Item with what it is ordered by.
type KeyedItem = (Vec<Value>, Value);

/// Function that returns the order of two keys, if they have one.
type KeyOrder = fn(&[Value], &[Value]) -> Result<Option<Ordering>, Error>;

/// Returns the order of two keys, as Python compares lists: by the first values that are not equal.
fn order_of_lists(left: &[Value], right: &[Value]) -> Result<Option<Ordering>, Error> {
    let unequal = left.iter().zip(right).find(|(left, right)| left != right);
    unequal.map_or(Ok(Some(Ordering::Equal)), |(left, right)| order(left, right))
}

/// Returns the order of two single keys, which must have one even if they are equal.
fn order_of_values(left: &[Value], right: &[Value]) -> Result<Option<Ordering>, Error> {
    match (left, right) {
        ([left], [right]) => order(left, right),
        _ => order_of_lists(left, right),
    }
}

/// Sorts items by their keys; equal ones keep their order. Unlike the sort of the standard library, this one can fail, and does not
/// need an order of all values.
fn sorted(mut items: Vec<KeyedItem>, reverse: bool, order: KeyOrder) -> Result<Vec<KeyedItem>, Error> {
    if items.len() < 2 {
        return Ok(items);
    }
    let second = items.split_off(items.len() / 2);
    let [first, second] = [sorted(items, reverse, order)?, sorted(second, reverse, order)?];
    let mut merged = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    let before = if reverse { Ordering::Greater } else { Ordering::Less };
    while let (Some((left, _)), Some((right, _))) = (first.peek(), second.peek()) {
        let next = if order(right, left)? == Some(before) { second.next() } else { first.next() };
        merged.extend(next);
    }
    merged.extend(first.chain(second));
    Ok(merged)
}

/// Sorts the entries of a mapping.
///
/// # Errors
/// If two keys have no order.
pub(super) fn sorted_by_key(pairs: Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>, Error> {
    let items = pairs.into_iter().map(|(key, value)| (vec![key], value)).collect();
    let items = sorted(items, false, order_of_values)?.into_iter();
    Ok(items.map(|(mut key, value)| (key.pop().unwrap_or_default(), value)).collect())
}

/// Filter `sort`.
pub(super) fn sort(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["reverse", "case_sensitive", "attribute"])?;
    let mut key = SortKey::new(&args, 1, 2)?;
    key.paths = key.paths.iter().flat_map(|paths| paths.split(',')).map(str::to_owned).collect();
    let items = collected(value)?.into_iter().map(|item| Ok((key.values_of(&item)?, item)));
    let items = sorted(items.collect::<Result<_, Error>>()?, args.is_true(0), order_of_lists)?;
    Ok(items.into_iter().map(|(_, item)| item).collect())
}

/// Filter `unique`.
pub(super) fn unique(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["case_sensitive", "attribute"])?;
    let key = SortKey::new(&args, 0, 1)?;
    let (mut seen, mut kept) = (std::collections::HashSet::new(), Vec::new());
    for item in iterate(value)?.checked() {
        let item = item?;
        let own = key.values_of(&item)?;
        if own.iter().any(|value| matches!(value.kind(), ValueKind::Map) || value.kind() == ValueKind::Seq && !value.is_tuple()) {
            return Err(error("unique: lists and mappings can't be told apart"));
        }
        let own = own.iter().map(hashable).collect::<Result<Vec<_>, Error>>()?;
        if seen.insert(own) {
            kept.push(item);
        }
    }
    Ok(kept.into())
}

/// Returns text that is the same for values that are equal in Python.
fn hashable(value: &Value) -> Result<String, Error> {
    match (value.kind(), f64::try_from(value.clone())) {
        (ValueKind::Bool, _) => Ok(u8::from(value.is_true()).to_string()),
        (ValueKind::Number, Ok(float)) if !value.is_integer() && float.fract() == 0.0 => Ok(format!("{float:.0}")),
        _ => repr(value),
    }
}

/// Filter `min`.
pub(super) fn min(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    extreme(value, &TemplateArguments::bind(&all(args, named), &["case_sensitive", "attribute"])?, Ordering::Less)
}

/// Filter `max`.
pub(super) fn max(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    extreme(value, &TemplateArguments::bind(&all(args, named), &["case_sensitive", "attribute"])?, Ordering::Greater)
}

/// Returns the first of the items that are ordered before, or after, all others.
fn extreme(value: &Value, args: &TemplateArguments, wanted: Ordering) -> Result<Value, Error> {
    let key = SortKey::new(args, 0, 1)?;
    let mut best: Option<(Vec<Value>, Value)> = None;
    for item in iterate(value)?.checked() {
        let item = item?;
        let own = key.values_of(&item)?;
        let is_better = match &best {
            Some((other, _)) => order_of_values(&own, other)? == Some(wanted),
            None => true,
        };
        if is_better {
            best = Some((own, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

/// Filter `dictsort`.
pub(super) fn dictsort(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["case_sensitive", "by", "reverse"])?;
    let place = match args.text(1)?.unwrap_or("key") {
        "key" => 0,
        "value" => 1,
        other => return Err(error(format!("dictsort: sorts by \"key\" or \"value\", not {other:?}"))),
    };
    if value.kind() != ValueKind::Map {
        return Err(error(format!("dictsort: wants a mapping, not {}", value.kind())));
    }
    let key = SortKey { paths: Vec::new(), case_sensitive: args.is_true(0), default: None };
    let pairs = value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
    let pairs = pairs.map(|(name, value)| {
        let pair = [name, value];
        Ok((key.values_of(&pair[place])?, Tuple::from(pair).into()))
    });
    let pairs = sorted(pairs.collect::<Result<_, Error>>()?, args.is_true(2), order_of_values)?;
    Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
}

/// Filter `groupby`.
pub(super) fn groupby(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["attribute", "default", "case_sensitive"])?;
    let key = SortKey { default: args.given(1), ..SortKey::new(&args, 2, 0)? };
    if key.paths.is_empty() {
        return Err(error("groupby: argument 1 is missing"));
    }
    let items = collected(value)?.into_iter().map(|item| Ok((key.values_of(&item)?, item)));
    let mut groups: Vec<(Vec<Value>, Vec<Value>)> = Vec::new();
    for (own, item) in sorted(items.collect::<Result<_, Error>>()?, false, order_of_values)? {
        match groups.last_mut() {
            Some((last, items)) if *last == own => items.push(item),
            _ => groups.push((own, vec![item])),
        }
    }
    // Without regard to case, a group is named as its first item spells it.
    let named = SortKey { case_sensitive: true, ..key };
    let groups = groups.into_iter().map(|(_, items)| {
        let grouper = named.values_of(&items[0])?.pop().unwrap_or_default();
        Ok(Value::from_object(ItemGroup { grouper, list: items.into() }))
    });
    groups.collect()
}
