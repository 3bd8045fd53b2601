//! Macros with defaults, `varargs` or `kwargs`, which the engine lacks or implements differently: a default may refer to the parameters
//! before it, and a parameter that is given as undefined keeps this value.
//!
//! Such a macro becomes one of the engine's with plain parameters, and a [`MacroCaller`] takes its name and binds the arguments.

use super::arguments::{error, parts};
use super::expression::expression;
use super::pieces::{TagToken, TemplatePiece};
use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Tuple};
use minijinja::{Error, State, Value};
use std::fmt;
use std::sync::Arc;

/// Name of the function that wraps a macro.
pub(super) const CALLER: &str = "macro_caller";

/// Name of the test whether an argument is missing.
pub(super) const MISSING: &str = "missing_argument";

/// Name and parameters of a macro.
pub(super) struct MacroSignature {
    name: String,
    parameters: Vec<MacroParameter>,
    varargs: bool,
    kwargs: bool,
}

struct MacroParameter {
    name: String,
    /// Default, in the engine's language.
    default: Option<String>,
}

impl MacroSignature {
    /// Parses the tag of a macro, given what follows it. `None` if the engine's macros suffice, or the tag is malformed.
    pub(super) fn parse(tokens: &[TagToken<'_>], rest: &[TemplatePiece<'_>]) -> Option<Self> {
        let words: Vec<&str> = tokens.iter().map(|token| token.text).collect();
        let ["macro", name, "(", .., ")"] = words.as_slice() else { return None };
        let mut parameters: Vec<MacroParameter> = Vec::new();
        for part in split_at_commas(&tokens[3..tokens.len() - 1])? {
            let (name, default) = match part {
                [name] => (name, None),
                [name, equals, default @ ..] if equals.text == "=" && !default.is_empty() => (name, Some(expression(default))),
                _ => return None,
            };
            if !name.text.starts_with(|c: char| c.is_alphabetic() || c == '_') {
                return None;
            }
            parameters.push(MacroParameter { name: name.text.to_owned(), default });
        }
        let uses = |word: &str| parameters.iter().all(|parameter| parameter.name != word) && body_contains(rest, word);
        let (varargs, kwargs) = (uses("varargs"), uses("kwargs"));
        let has_default = parameters.iter().any(|parameter| parameter.default.is_some());
        (has_default || varargs || kwargs).then(|| Self { name: (*name).to_owned(), parameters, varargs, kwargs })
    }

    /// Writes the engine's macro, without delimiters: its tag, and statements that set what is missing.
    pub(super) fn declaration(&self) -> String {
        let names = self.parameters.iter().map(|parameter| parameter.name.as_str());
        let further = [(self.varargs, "varargs"), (self.kwargs, "kwargs")].into_iter().filter(|(used, _)| *used);
        let names: Vec<&str> = names.chain(further.map(|(_, name)| name)).collect();
        let mut text = format!(" macro {}({})", self.name, names.join(", "));
        for MacroParameter { name, default } in &self.parameters {
            if let Some(default) = default {
                text += &format!(" %}}{{% set {name} = (({default}) if {name} is {MISSING} else {name})");
            }
        }
        text
    }

    /// Writes the statement after the macro, without delimiters.
    pub(super) fn replacement(&self) -> String {
        let spelled = |parameters: &mut dyn Iterator<Item = &MacroParameter>| {
            let names: Vec<String> = parameters.map(|parameter| format!("'{}'", parameter.name)).collect();
            format!("[{}]", names.join(", "))
        };
        let all = spelled(&mut self.parameters.iter());
        let optional = spelled(&mut self.parameters.iter().filter(|parameter| parameter.default.is_some()));
        format!("set {0} = {CALLER}({0}, {all}, {optional}, {1}, {2})", self.name, self.varargs, self.kwargs)
    }
}

/// Splits tokens at the commas outside brackets. `None` if brackets don't match.
fn split_at_commas<'a, 't>(tokens: &'a [TagToken<'t>]) -> Option<Vec<&'a [TagToken<'t>]>> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (i, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.checked_sub(1)?,
            "," if depth == 0 => {
                parts.push(&tokens[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if start < tokens.len() {
        parts.push(&tokens[start..]);
    }
    (depth == 0).then_some(parts)
}

/// Returns whether a word occurs in the body of the macro that begins before these pieces.
fn body_contains(pieces: &[TemplatePiece<'_>], word: &str) -> bool {
    let mut depth = 1_usize;
    for piece in pieces {
        let TemplatePiece::Tag(tag) = piece else { continue };
        match tag.tokens.first().map(|token| token.text).filter(|_| tag.open.starts_with("{%")) {
            Some("macro") => depth += 1,
            Some("endmacro") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return false;
        }
        if tag.tokens.iter().any(|token| token.text == word) {
            return true;
        }
    }
    false
}

/// Stands for an argument that a call lacks.
#[derive(Debug)]
struct MissingArgument;

impl Object for MissingArgument {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// Test whether an argument is missing.
pub(super) fn is_missing(value: &Value) -> bool {
    value.downcast_object_ref::<MissingArgument>().is_some()
}

/// Binds the arguments of a call, and calls the engine's macro.
struct MacroCaller {
    inner: Value,
    parameters: Vec<String>,
    /// Parameters that have a default.
    optional: Vec<String>,
    varargs: bool,
    kwargs: bool,
}

impl fmt::Debug for MacroCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacroCaller({:?})", self.parameters)
    }
}

/// Wraps a macro.
pub(super) fn caller(
    inner: Value,
    parameters: Vec<String>,
    optional: Vec<String>,
    varargs: bool,
    kwargs: bool,
) -> Result<Value, Error> {
    Ok(Value::from_object(MacroCaller { inner, parameters, optional, varargs, kwargs }))
}

impl Object for MacroCaller {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "arguments" => Some(Tuple::from(self.parameters.iter().map(Value::from).collect::<Vec<_>>()).into()),
            "name" => self.inner.get_attr("name").ok(),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::NonEnumerable
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let bound = self.bound(args)?;
        self.inner.call(state, &bound)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner)
    }
}

impl MacroCaller {
    /// Returns the engine's arguments for these.
    fn bound(&self, args: &[Value]) -> Result<Vec<Value>, Error> {
        let (positional, mut named) = parts(args);
        let mut bound = Vec::new();
        for (i, name) in self.parameters.iter().enumerate() {
            let by_name = named.iter().position(|(other, _)| other == name).filter(|_| i >= positional.len());
            bound.push(match (positional.get(i), by_name) {
                (Some(value), _) => value.clone(),
                (None, Some(at)) => named.remove(at).1,
                (None, None) if self.optional.contains(name) => Value::from_object(MissingArgument),
                (None, None) => Value::UNDEFINED,
            });
        }
        let further = positional.get(self.parameters.len()..).unwrap_or_default();
        if self.varargs {
            bound.push(Tuple::from(further.to_vec()).into());
        } else if !further.is_empty() {
            return Err(error(format!("a macro takes at most {} arguments, not {}", self.parameters.len(), positional.len())));
        }
        let caller = named.iter().position(|(name, _)| name == "caller").map(|at| named.remove(at));
        if self.kwargs {
            bound.push(Value::from_pairs(named.into_iter().map(|(name, value)| (Value::from(name), value))));
        } else if let Some((name, _)) = named.first() {
            return Err(error(format!("a macro has no argument {name:?}, or it is given twice")));
        }
        if let Some(caller) = caller {
            bound.push(Kwargs::from_iter([caller]).into());
        }
        Ok(bound)
    }
}
