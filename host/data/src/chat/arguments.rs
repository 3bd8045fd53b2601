//! Arguments of filters, functions and methods, bound to parameter names as in Python.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Creates the error of a template.
pub(super) fn error(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

/// Returns an integer; a boolean is one in Python.
pub(super) fn whole(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// Bound arguments, in the order of the parameter names.
pub(super) struct TemplateArguments(Vec<Option<Value>>);

impl TemplateArguments {
    /// Binds arguments to names; the last of `args` may hold the keyword arguments.
    ///
    /// # Errors
    /// If there are too many arguments, or one has an unknown name or is given twice.
    pub(super) fn bind(args: &[Value], names: &[&str]) -> Result<Self, Error> {
        let (positional, named) = parts(args);
        if positional.len() > names.len() {
            return Err(error(format!("takes at most {} arguments, not {}", names.len(), positional.len())));
        }
        let mut bound: Vec<Option<Value>> = positional.iter().cloned().map(Some).collect();
        bound.resize(names.len(), None);
        for (name, value) in named {
            let place = names.iter().position(|known| *known == name).and_then(|at| bound.get_mut(at));
            let place = place.ok_or_else(|| error(format!("has no argument {name:?}; it has {}", names.join(", "))))?;
            if place.replace(value).is_some() {
                return Err(error(format!("argument {name:?} is given twice")));
            }
        }
        Ok(Self(bound))
    }

    /// Returns an argument; none and missing arguments are both `None`.
    pub(super) fn value(&self, at: usize) -> Option<&Value> {
        self.given(at).filter(|value| !value.is_none())
    }

    /// Returns an argument, which may be none, if it is given.
    pub(super) fn given(&self, at: usize) -> Option<&Value> {
        self.0.get(at).and_then(Option::as_ref)
    }

    /// Returns a required argument.
    pub(super) fn required(&self, at: usize) -> Result<&Value, Error> {
        self.given(at).ok_or_else(|| error(format!("argument {} is missing", at + 1)))
    }

    /// Returns a string argument.
    pub(super) fn text(&self, at: usize) -> Result<Option<&str>, Error> {
        let text = |value: &Value| error(format!("argument {} must be a string, not {}", at + 1, value.kind()));
        self.value(at).map(|value| value.as_str().ok_or_else(|| text(value))).transpose()
    }

    /// Returns an integer argument.
    pub(super) fn integer(&self, at: usize) -> Result<Option<i64>, Error> {
        let integer = |value: &Value| error(format!("argument {} must be an integer, not {}", at + 1, value.kind()));
        let own = |value: &Value| {
            whole(value).map(|number| i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX }))
        };
        self.value(at).map(|value| own(value).ok_or_else(|| integer(value))).transpose()
    }

    /// Returns an argument that is a path of attributes, or a number.
    pub(super) fn path(&self, at: usize) -> Result<Option<String>, Error> {
        match self.value(at).and_then(whole) {
            Some(place) => Ok(Some(place.to_string())),
            None => self.text(at).map(|path| path.map(str::to_owned)),
        }
    }

    /// Returns whether an argument is given and truthy.
    pub(super) fn is_true(&self, at: usize) -> bool {
        self.value(at).is_some_and(Value::is_true)
    }
}

/// Returns all arguments of a call, with the keyword arguments last.
pub(super) fn all(args: Rest<Value>, named: Kwargs) -> Vec<Value> {
    let mut all = args.0;
    if named.args().next().is_some() {
        all.push(named.into());
    }
    all
}

/// Returns the positional and the keyword arguments.
pub(super) fn parts(args: &[Value]) -> (&[Value], Vec<(String, Value)>) {
    match args.split_last() {
        Some((last, positional)) if last.is_kwargs() => (positional, pairs(last).collect()),
        _ => (args, Vec::new()),
    }
}

/// Returns the entries of a mapping, with keys as text.
pub(super) fn pairs(map: &Value) -> impl Iterator<Item = (String, Value)> {
    let pairs = map.as_object().and_then(|object| object.try_iter_pairs());
    pairs.into_iter().flatten().map(|(key, value)| (key.to_string(), value))
}
