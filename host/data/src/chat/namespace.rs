//! `namespace(...)`, whose attributes a template can assign.
//!
//! A namespace is the only mutable value, so only it could come to contain itself. Assigned values are therefore copied and may not contain
//! a namespace; so no value contains itself, and none is nested deeply.

use super::arguments::{all, error, pairs, parts};
use super::text::repr;
use super::views::MappingView;
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, ValueKind};
use minijinja::{Error, Value};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the function that assigns an attribute.
pub(super) const ASSIGN: &str = "assign_to_namespace";

/// Maximum depth of an assigned value.
const DEEPEST: usize = 100;

/// Maximum number of values within an assigned value.
const MOST: usize = 1 << 20;

/// Namespace: attributes in insertion order.
#[derive(Debug, Default)]
struct Namespace(Mutex<Vec<(String, Value)>>);

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let name = key.as_str()?;
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all = values.into_iter().map(|(name, value)| (Value::from(name), value)).collect::<Vec<_>>();
        write!(f, "<Namespace {}>", repr(&Value::from_pairs(all)).map_err(|_| fmt::Error)?)
    }
}

impl Namespace {
    fn set(&self, name: &str, value: &Value) -> Result<(), Error> {
        if name.starts_with('_') {
            return Err(error(format!("a namespace can't have an attribute that begins with an underscore: {name:?}")));
        }
        let value = copied(value, DEEPEST, &mut MOST.clone())?;
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match values.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => values.push((name.to_owned(), value)),
        }
        Ok(())
    }
}

/// Creates a namespace from mappings and keyword arguments.
pub(super) fn namespace(args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let all = all(args, named);
    let (positional, named) = parts(&all);
    let made = Namespace::default();
    for (name, value) in positional.iter().flat_map(pairs).chain(named) {
        made.set(&name, &value)?;
    }
    Ok(Value::from_object(made))
}

/// Returns whether a value is a namespace.
pub(super) fn is_namespace(value: &Value) -> bool {
    value.downcast_object_ref::<Namespace>().is_some()
}

/// Assigns an attribute of a namespace.
pub(super) fn assign(to: &Value, name: &str, value: &Value) -> Result<(), Error> {
    let to = to.downcast_object_ref::<Namespace>();
    to.ok_or_else(|| error(format!("can't assign to attribute {name:?} of a value that is not a namespace")))?.set(name, value)
}

/// Copies a value; `deepest` limits its depth and `left` the number of values.
fn copied(value: &Value, deepest: usize, left: &mut usize) -> Result<Value, Error> {
    *left = left.checked_sub(1).ok_or_else(|| error(format!("a namespace can't hold more than {MOST} values at once")))?;
    let deeper =
        || deepest.checked_sub(1).ok_or_else(|| error(format!("a namespace can't hold more than {DEEPEST} levels of values")));
    Ok(match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let deeper = deeper()?;
            let items = value.try_iter()?.checked().map(|item| copied(&item?, deeper, left));
            let items: Vec<Value> = items.collect::<Result<_, Error>>()?;
            if value.is_tuple() { Tuple::from(items).into() } else { items.into() }
        }
        ValueKind::Map => {
            let deeper = deeper()?;
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
            let pairs = pairs.map(|(key, value)| Ok((copied(&key, deeper, left)?, value)));
            let pairs: Vec<(Value, Value)> = pairs.collect::<Result<_, Error>>()?;
            let pairs = pairs.into_iter().map(|(key, value)| Ok((key, copied(&value, deeper, left)?)));
            Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?)
        }
        ValueKind::Plain if let Some(MappingView { mapping, kind }) = value.downcast_object_ref::<MappingView>() => {
            let mapping = copied(mapping, deeper()?, left)?;
            Value::from_object(MappingView { mapping, kind: *kind })
        }
        ValueKind::Plain if value.downcast_object_ref::<Namespace>().is_some() => {
            return Err(error("a namespace can't hold a namespace"));
        }
        ValueKind::Invalid => return Err(error(value.to_string())),
        _ => value.clone(),
    })
}
