//! Python's ranges and the views `keys()`, `values()` and `items()` of a mapping.
//!
//! To the engine they are plain objects that can be iterated over, so it neither takes them for lists nor writes them as such.

use super::arguments::{TemplateArguments, error, whole};
use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple};
use minijinja::{Error, Value};
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// Maximum length of a range, as in Jinja's sandbox.
const LONGEST_RANGE: i64 = 100_000;

/// What a view shows of a mapping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ViewKind {
    Keys,
    Values,
    Items,
}

/// View of a mapping.
pub(super) struct MappingView {
    pub mapping: Value,
    pub kind: ViewKind,
}

impl fmt::Debug for MappingView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl MappingView {
    /// Returns the value for a method of a mapping.
    pub(super) fn for_method(mapping: &Value, name: &str) -> Option<Value> {
        let kind = match name {
            "keys" => ViewKind::Keys,
            "values" => ViewKind::Values,
            "items" => ViewKind::Items,
            _ => return None,
        };
        Some(Value::from_object(Self { mapping: mapping.clone(), kind }))
    }

    /// Returns the name of the type.
    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            ViewKind::Keys => "dict_keys",
            ViewKind::Values => "dict_values",
            ViewKind::Items => "dict_items",
        }
    }

    /// Returns the items of the view.
    pub(super) fn items(&self) -> Vec<Value> {
        let pairs = self.mapping.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
        let kind = self.kind;
        let item = move |(key, value)| match kind {
            ViewKind::Keys => key,
            ViewKind::Values => value,
            ViewKind::Items => Tuple::from([key, value]).into(),
        };
        pairs.map(item).collect()
    }

    fn get(&self, key: &Value) -> Option<Value> {
        self.mapping.as_object().and_then(|object| object.get_value(key))
    }

    /// Returns whether the view has an item.
    pub(super) fn contains(&self, item: &Value) -> bool {
        match self.kind {
            ViewKind::Keys => self.get(item).is_some(),
            ViewKind::Values => self.items().contains(item),
            ViewKind::Items => {
                let pair: Vec<Value> = item.try_iter().into_iter().flatten().collect();
                item.is_tuple() && pair.len() == 2 && self.get(&pair[0]).is_some_and(|value| value == pair[1])
            }
        }
    }
}

impl Object for MappingView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.mapping.len()
    }

    fn custom_cmp(self: &Arc<Self>, other: &minijinja::value::DynObject) -> Option<Ordering> {
        let other = other.downcast_ref::<Self>()?;
        let same_kind = self.kind == other.kind && self.kind != ViewKind::Values;
        let same_length = same_kind && self.mapping.len() == other.mapping.len();
        let equal = same_length && self.items().iter().all(|item| other.contains(item));
        Some(if equal { Ordering::Equal } else { Ordering::Less })
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Range of integers.
#[derive(Debug)]
pub(super) struct Range {
    start: i64,
    stop: i64,
    step: i64,
    length: i64,
}

impl Range {
    /// Creates a range with the maximum length of Jinja's sandbox.
    ///
    /// # Errors
    /// If it has more numbers, or a step of zero.
    pub(super) fn new(start: i64, stop: i64, step: i64) -> Result<Self, Error> {
        if step == 0 {
            return Err(error("range: the step can't be 0"));
        }
        let distance = if step > 0 { i128::from(stop) - i128::from(start) } else { i128::from(start) - i128::from(stop) };
        let size = i128::from(step.unsigned_abs());
        let length = i64::try_from((distance.max(0) + size - 1) / size).ok().filter(|length| *length <= LONGEST_RANGE);
        let length = length.ok_or_else(|| error(format!("range: it has more than {LONGEST_RANGE} numbers")))?;
        Ok(Self { start, stop, step, length })
    }

    /// Python's `range`.
    pub(super) fn from_arguments(args: &[Value]) -> Result<Value, Error> {
        if args.last().is_some_and(Value::is_kwargs) {
            return Err(error("range: takes no arguments by name"));
        }
        let args = TemplateArguments::bind(args, &["start", "stop", "step"])?;
        let integer = |at: usize| args.given(at).map(|_| args.integer(at)?.ok_or_else(|| error("range: wants an integer")));
        let first = integer(0).ok_or_else(|| error("range: wants an integer"))??;
        let (start, stop) = match integer(1) {
            Some(stop) => (first, stop?),
            None => (0, first),
        };
        Ok(Value::from_object(Self::new(start, stop, integer(2).transpose()?.unwrap_or(1))?))
    }

    fn at(&self, place: i64) -> i64 {
        self.start.saturating_add(place.saturating_mul(self.step))
    }

    /// Returns where a number is in the range.
    pub(super) fn position(&self, item: &Value) -> Option<i64> {
        let number = match whole(item) {
            Some(number) => number,
            None => {
                let float = f64::try_from(item.clone()).ok().filter(|float| item.is_number() && float.fract() == 0.0)?;
                float as i128
            }
        };
        let (distance, step) = (number - i128::from(self.start), i128::from(self.step));
        let place = (distance % step == 0).then_some(distance / step)?;
        i64::try_from(place).ok().filter(|place| (0..self.length).contains(place))
    }

    /// Returns a slice, given the places of its first item and of the end, and its step.
    pub(super) fn slice(&self, start: i64, stop: i64, step: i64) -> Result<Self, Error> {
        Self::new(self.at(start), self.at(stop), self.step.saturating_mul(step))
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str() {
            Some("start") => Some(self.start.into()),
            Some("stop") => Some(self.stop.into()),
            Some("step") => Some(self.step.into()),
            Some(_) => None,
            None => {
                let place = i64::try_from(whole(key)?).ok()?;
                let place = if place < 0 { place + self.length } else { place };
                (0..self.length).contains(&place).then(|| self.at(place).into())
            }
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let (start, step) = (self.start, self.step);
        let length = usize::try_from(self.length).unwrap_or(0);
        Enumerator::RevIter(Box::new((0..length).map(move |place| Value::from(start + place as i64 * step))))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        usize::try_from(self.length).ok()
    }

    fn custom_cmp(self: &Arc<Self>, other: &minijinja::value::DynObject) -> Option<Ordering> {
        let other = other.downcast_ref::<Self>()?;
        let same = self.length == other.length
            && (self.length == 0 || self.start == other.start && (self.length == 1 || self.step == other.step));
        Some(if same { Ordering::Equal } else { Ordering::Less })
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(f, "range({}, {})", self.start, self.stop),
            step => write!(f, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}
