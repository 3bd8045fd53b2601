//! Checks of an algorithm's answers. Errors are ends of sentences about the plugin: "returned ...".

use super::super::error::LONGEST_TEXT;
use super::{Batch, Column, Data, Pair, Shape, Unit};
use crate::columns::{self, HOST_COLUMNS, HostColumn};
use crate::config::printable;
use crate::contract::algorithm::Source;
use crate::metrics::LARGEST;
use crate::needs::NeededInputs;
use std::collections::BTreeSet;

/// Maximum length of an estimated column's name, in bytes.
const LONGEST_NAME: usize = 128;

/// Maximum number of columns that an algorithm estimates.
const MOST_ESTIMATES: usize = 64;

/// Rejects a loss that is not finite or is too large to be summed.
pub(crate) fn loss(loss: f64) -> Result<(), String> {
    match () {
        () if loss.abs() <= LARGEST => Ok(()),
        () if loss.is_finite() => Err(format!("returned a loss of {loss:?}; the limit is {LARGEST:?} either way")),
        () => Err(format!("returned a loss of {loss}")),
    }
}

/// Rejects values whose number is not `count`, or that are not finite.
pub(crate) fn values(what: &str, item: &str, values: &[f32], count: usize) -> Result<(), String> {
    if values.len() != count {
        return Err(format!("returned {} {what} for {count} {item}s", values.len()));
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(format!("returned {} in {what} at {item} {at}", values[at])),
        None => Ok(()),
    }
}

/// Rejects non-zero derivatives of tokens that don't count.
pub(crate) fn masked(what: &str, derivatives: &[f32], mask: &[u8]) -> Result<(), String> {
    match derivatives.iter().zip(mask).position(|(&d, &counts)| counts == 0 && d != 0.0) {
        Some(at) => Err(format!("returned {} in {what} at token {at}, whose mask is 0", derivatives[at])),
        None => Ok(()),
    }
}

/// Checks the indices of entries without a value: they must be ascending and in range, and their values 0.
fn missing(column: &Column) -> Result<(), String> {
    let (name, item) = (shown(&column.name), column.unit.noun());
    if let Some(pair) = column.missing.windows(2).find(|pair| pair[0] >= pair[1]) {
        let [first, second] = [pair[0], pair[1]];
        return Err(format!("returned values of {name} with the missing entries {first} and {second}; they must be ascending"));
    }
    for &entry in &column.missing {
        match column.values.get(entry as usize) {
            Some(0.0) => {}
            Some(value) => return Err(format!("returned {value} of {name} at {item} {entry}, which is missing: its value is 0")),
            None => {
                let count = column.values.len();
                return Err(format!("returned values of {name} with the missing entry {entry}, but there are {count} {item}s"));
            }
        }
    }
    Ok(())
}

fn shown(name: &str) -> String {
    printable(name, LONGEST_NAME)
}

/// Rejects columns with a repeated name.
fn repeated(columns: &[Column]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match columns.iter().find(|column| !seen.insert(&column.name)) {
        Some(twice) => Err(format!("returned {} twice", shown(&twice.name))),
        None => Ok(()),
    }
}

/// Checks the data that an algorithm says it learns from, given whether it exports an estimator and a pairing.
pub(super) fn data(data: &Data, (estimates, pairs): (bool, bool)) -> Result<(), String> {
    let Data { source, shape, estimates: names } = data;
    let generated = *source != Source::Dataset;
    let completions = *shape == Shape::Completions;
    let (exports, wanted) = if completions { (estimates, "estimator") } else { (pairs, "pairing") };
    // An algorithm without an estimator learns from the generated tokens alone, as distillation does.
    if generated && !exports && !(completions && names.is_empty()) {
        let what = if completions { "estimates of completions" } else { "pairs of completions" };
        return Err(format!("it learns from {what} that the policy generates, but does not export {wanted}"));
    }
    if !(names.is_empty() || generated && completions) {
        let names = printable(&names.join(", "), LONGEST_TEXT);
        return Err(format!("it lists estimates ({names}), which only completions that the policy generates have"));
    }
    if names.len() > MOST_ESTIMATES {
        return Err(format!("it lists {} estimates; the limit is {MOST_ESTIMATES}", names.len()));
    }
    let mut seen = BTreeSet::new();
    for name in names {
        let own = shown(name);
        if !crate::config::is_shown(name, LONGEST_NAME) {
            return Err(format!("it estimates {own:?}; a column's name has 1 to {LONGEST_NAME} printable bytes"));
        }
        let prefixes = ["reward", columns::TURN_REWARD, columns::TEACHER_DIVERGENCE];
        if HostColumn::find(name).is_some() || name.split_once('/').is_some_and(|(first, _)| prefixes.contains(&first)) {
            return Err(format!("it estimates {own:?}, a column of the host's; choose another name, such as \"own_{own}\""));
        }
        if !seen.insert(name) {
            return Err(format!("it lists the estimate {own:?} twice"));
        }
    }
    Ok(())
}

/// Checks an estimator's columns for a generation. Returns the mask separately from the others.
pub(super) fn estimates(given: &[Column], data: &Data, batch: &Batch) -> Result<(Vec<Column>, Vec<u8>), String> {
    repeated(given)?;
    let mut mask = batch.mask.clone();
    let mut columns = Vec::with_capacity(given.len());
    for column in given {
        let name = shown(&column.name);
        if !data.estimates.contains(&column.name) {
            let own = if data.estimates.is_empty() { "none".to_owned() } else { data.estimates.join(", ") };
            return Err(format!("returned {name}, which is none of the estimates that it lists: {own}"));
        }
        if column.name == columns::MASK {
            mask = narrowed(column, &batch.mask)?;
            continue;
        }
        if !matches!(column.unit, Unit::Token | Unit::Sequence) {
            let item = column.unit.noun();
            return Err(format!("returned {name} with an entry per {item}; estimates have one per token or per sequence"));
        }
        values(&format!("values of {name}"), column.unit.noun(), &column.values, batch.entries(column.unit))?;
        missing(column)?;
        columns.push(column.clone());
    }
    Ok((columns, mask))
}

/// Returns an estimator's mask.
fn narrowed(column: &Column, own: &[u8]) -> Result<Vec<u8>, String> {
    let fits = column.unit == Unit::Token && column.missing.is_empty() && column.values.len() == own.len();
    if !fits || column.values.iter().any(|&value| value != 0.0 && value != 1.0) {
        return Err(format!(
            "returned a mask of {} entries for {} tokens, or with entries other than 0 and 1",
            column.values.len(),
            own.len()
        ));
    }
    let mask: Vec<u8> = column.values.iter().map(|&value| u8::from(value == 1.0)).collect();
    match mask.iter().zip(own).position(|(given, own)| given > own) {
        Some(at) => Err(format!("returned mask 1 for token {at}, whose mask is 0: it was not sampled")),
        None => Ok(mask),
    }
}

/// Checks pairs of a generation's completions.
pub(super) fn pairs(given: &[Pair], batch: &Batch) -> Result<(), String> {
    let sequences = batch.entries(Unit::Sequence);
    // Groups are in order, so a sequence's group is the last that begins at or before it.
    let group =
        |sequence: u32| ((sequence as usize) < sequences).then(|| batch.groups.partition_point(|first| *first <= sequence));
    let mut seen = BTreeSet::new();
    for Pair { chosen, rejected } in given {
        if !seen.insert((chosen, rejected)) {
            return Err(format!("returned the pair of rows {chosen} and {rejected} twice"));
        }
        if seen.len() > sequences {
            return Err(format!("returned more pairs than there are completions ({sequences})"));
        }
        if group(*chosen).is_none() || group(*chosen) != group(*rejected) || chosen == rejected {
            return Err(format!(
                "returned a pair of rows {chosen} and {rejected}, which must be two of the {sequences} completions and have the same \
                 prompt"
            ));
        }
    }
    Ok(())
}

/// Checks a loss's derivatives. If the algorithm knows the mask, derivatives by token must be 0 where the mask is 0.
pub(super) fn derivatives(given: &[Column], needs: &NeededInputs, batch: &Batch, knows_mask: bool) -> Result<(), String> {
    repeated(given)?;
    for column in given {
        let name = shown(&column.name);
        let Some(known) = HostColumn::find(&column.name).filter(|known| known.has_derivative) else {
            let all = HOST_COLUMNS.iter().filter(|known| known.has_derivative).map(|known| known.name);
            let all = all.collect::<Vec<_>>().join(", ");
            return Err(format!("returned derivatives of {name}; a loss has derivatives of {all}"));
        };
        if !needs.has(&column.name) {
            return Err(format!("returned derivatives of {name}, which it does not need: its needs are {}", listed(needs)));
        }
        let (what, item) = (format!("d_{name}"), known.unit.noun());
        if column.unit != known.unit {
            return Err(format!("returned {what} with an entry per {}; there is one per {item}", column.unit.noun()));
        }
        if let Some(entry) = column.missing.first() {
            return Err(format!(
                "returned {what} without a value at {item} {entry}; it is 0 where the loss does not depend on it"
            ));
        }
        values(&what, item, &column.values, batch.entries(known.unit))?;
        if knows_mask && known.unit == Unit::Token {
            masked(&what, &column.values, &batch.mask)?;
        }
    }
    Ok(())
}

fn listed(needs: &NeededInputs) -> String {
    let names: Vec<&str> = needs.names().collect();
    if names.is_empty() { "none".to_owned() } else { printable(&names.join(", "), LONGEST_TEXT) }
}

#[cfg(test)]
mod tests;
