//! Functions of SQLite whose time is the product of two lengths, made to count it: a call is limited in steps, and each of these would
//! be a single one, however long it takes.

use crate::text::real;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, Result, ffi};
use std::ffi::{CString, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Comparisons of characters that take as long as a step.
const PER_STEP: i64 = 64;

/// Comparisons for each character of a search that takes one pass.
const SEARCH: usize = 16;

/// SQLite's own limit is on its own functions alone.
const LONGEST_PATTERN: usize = 100;

/// The error of a call that has used up its steps.
pub fn out_of_steps() -> Error {
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_INTERRUPT), None)
}

/// Returns an argument as SQLite reads texts; `None` if it is null.
fn text_of(context: &Context<'_>, place: usize) -> Option<String> {
    match context.get_raw(place) {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(real(number)),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

fn spend(steps: &AtomicI64, length: usize, times: usize) -> Result<()> {
    let taken = i64::try_from(length.saturating_mul(times)).unwrap_or(i64::MAX) / PER_STEP;
    match steps.fetch_sub(taken, Relaxed) <= taken {
        true => Err(out_of_steps()),
        false => Ok(()),
    }
}

/// Returns whether a text has a pattern: of `like` if there is an `escape`, which may be 0 for none, else of `glob`.
fn matches(context: &Context<'_>, steps: &AtomicI64, escape: Option<c_uint>) -> Result<Option<bool>> {
    let (Some(pattern), Some(text)) = (text_of(context, 0), text_of(context, 1)) else { return Ok(None) };
    if pattern.len() > LONGEST_PATTERN {
        return Err(Error::UserFunctionError("LIKE or GLOB pattern too complex".into()));
    }
    spend(steps, pattern.len(), text.len())?;
    let (pattern, text) = (c_text(&pattern), c_text(&text));
    #[allow(unsafe_code, reason = "they are C's")]
    // SAFETY: both texts end with a zero and live until it returns.
    let differs = unsafe {
        match escape {
            Some(escape) => ffi::sqlite3_strlike(pattern.as_ptr(), text.as_ptr(), escape),
            None => ffi::sqlite3_strglob(pattern.as_ptr(), text.as_ptr()),
        }
    };
    Ok(Some(differs == 0))
}

fn escaped(context: &Context<'_>, steps: &AtomicI64) -> Result<Option<bool>> {
    let Some(escape) = text_of(context, 2) else { return Ok(None) };
    let mut characters = escape.chars();
    match (characters.next(), characters.next()) {
        (Some(escape), None) => matches(context, steps, Some(escape.into())),
        _ => Err(Error::UserFunctionError("ESCAPE expression must be a single character".into())),
    }
}

fn instr(context: &Context<'_>, steps: &AtomicI64) -> Result<Option<i64>> {
    if let (ValueRef::Blob(hay), ValueRef::Blob(needle)) = (context.get_raw(0), context.get_raw(1)) {
        spend(steps, hay.len(), needle.len())?;
        let found = if needle.is_empty() { Some(0) } else { hay.windows(needle.len()).position(|part| part == needle) };
        return Ok(Some(found.map_or(0, |at| at as i64 + 1)));
    }
    let (Some(hay), Some(needle)) = (text_of(context, 0), text_of(context, 1)) else { return Ok(None) };
    spend(steps, hay.len(), SEARCH)?;
    Ok(Some(hay.find(&needle).map_or(0, |at| hay[..at].chars().count() as i64 + 1)))
}

fn replace(context: &Context<'_>, longest: usize) -> Result<Option<String>> {
    let texts = (text_of(context, 0), text_of(context, 1), text_of(context, 2));
    let (Some(text), Some(old), Some(new)) = texts else { return Ok(None) };
    if old.is_empty() {
        return Ok(Some(text));
    }
    let grown = text.matches(&old).count().saturating_mul(new.len().saturating_sub(old.len()));
    match text.len().saturating_add(grown) > longest {
        true => Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_TOOBIG), None)),
        false => Ok(Some(text.replace(&old, &new))),
    }
}

fn trim(context: &Context<'_>, steps: &AtomicI64, left: bool, right: bool) -> Result<Option<String>> {
    let (Some(text), Some(set)) = (text_of(context, 0), text_of(context, 1)) else { return Ok(None) };
    spend(steps, text.len(), SEARCH)?;
    let mut set: Vec<char> = set.chars().collect();
    set.sort_unstable();
    let inside = |c: char| set.binary_search(&c).is_ok();
    let text = if left { text.trim_start_matches(inside) } else { &text };
    Ok(Some(if right { text.trim_end_matches(inside) } else { text }.to_owned()))
}

/// Replaces the functions.
pub fn replace_all(connection: &Connection, steps: &Arc<AtomicI64>, longest: usize) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    let of = |work: fn(&Context<'_>, &AtomicI64) -> Result<Option<bool>>| {
        let steps = Arc::clone(steps);
        move |context: &mut Context<'_>| work(context, &steps)
    };
    connection.create_scalar_function("like", 2, flags, of(|context, steps| matches(context, steps, Some(0))))?;
    connection.create_scalar_function("like", 3, flags, of(escaped))?;
    connection.create_scalar_function("glob", 2, flags, of(|context, steps| matches(context, steps, None)))?;
    let counted = Arc::clone(steps);
    connection.create_scalar_function("instr", 2, flags, move |context| instr(context, &counted))?;
    connection.create_scalar_function("replace", 3, flags, move |context| replace(context, longest))?;
    let counted = Arc::clone(steps);
    connection.create_scalar_function("trim", 2, flags, move |context| trim(context, &counted, true, true))?;
    let counted = Arc::clone(steps);
    connection.create_scalar_function("ltrim", 2, flags, move |context| trim(context, &counted, true, false))?;
    let counted = Arc::clone(steps);
    connection.create_scalar_function("rtrim", 2, flags, move |context| trim(context, &counted, false, true))
}
