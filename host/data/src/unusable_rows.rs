//! Unusable rows: either skipped and counted, with the first ones named; or an error.

use super::{Error, Result};
use std::collections::BTreeMap;

/// Number of rows that a message names.
const NAMED: usize = 3;

/// Unusable rows of a dataset.
#[derive(Debug, Default)]
pub struct UnusableRows {
    strict: bool,
    count: usize,
    /// Errors of the first unusable rows, by row.
    first: BTreeMap<usize, Error>,
}

impl UnusableRows {
    /// Creates an empty collection. Unusable rows are skipped or, if `strict`, the first one becomes an error once all rows have been read:
    /// a later pass may find an earlier row.
    pub fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// Returns whether no further rows need to be read after this error.
    pub fn is_final(&self, error: &Error) -> bool {
        self.strict || !matches!(error, Error::Row { .. })
    }

    /// Counts further unusable rows, all of which come after the named ones.
    pub fn count_more(&mut self, rows: usize) {
        self.count += rows;
    }

    /// Returns the usable ones among rows with their indices.
    ///
    /// # Errors
    /// The first error that is not about a single row.
    pub fn collect_usable<T>(&mut self, rows: impl IntoIterator<Item = (usize, Result<T>)>) -> Result<Vec<T>> {
        rows.into_iter().filter_map(|(row, outcome)| self.usable(row, outcome).transpose()).collect()
    }

    /// Returns the row with this index if it is usable.
    ///
    /// # Errors
    /// An error that is not about a single row.
    pub fn usable<T>(&mut self, row: usize, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error) if !matches!(error, Error::Row { .. }) => Err(error),
            Err(error) => {
                self.count += 1;
                self.first.insert(row, error);
                if self.first.len() > NAMED {
                    self.first.pop_last();
                }
                Ok(None)
            }
        }
    }

    /// Returns the number of rows skipped so far.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Describes the rows skipped so far; `usable` rows remain.
    pub fn describe_skipped(&self, usable: usize) -> String {
        let mut named = named(self.first.values());
        if self.count > self.first.len() {
            named.push(format!("{} more", self.count - self.first.len()));
        }
        let (count, all) = (self.count, self.count + usable);
        format!("skipped {count} of {all} rows (strict_data refuses them): {}", named.join("; "))
    }

    /// Returns a warning that names the first rows, if any were skipped; `remaining` rows are usable.
    ///
    /// # Errors
    /// If no rows remain or, if strict, the reason why the first row is unusable.
    pub fn warning(mut self, remaining: usize) -> Result<Option<String>> {
        let first = if self.strict { self.first.pop_first() } else { None };
        if let Some((_, error)) = first {
            return Err(error);
        }
        if remaining > 0 {
            return Ok((!self.first.is_empty()).then(|| self.describe_skipped(remaining)));
        }
        match (self.first.pop_first(), self.count) {
            (None, _) => Ok(None),
            (Some((_, first)), 0 | 1) => Err(first),
            (Some((_, first)), rows) => Err(Error::NoUsableRow { rows, first: Box::new(first) }),
        }
    }
}

/// Describes the errors of rows; errors with the same cause in one file are merged.
fn named<'a>(errors: impl Iterator<Item = &'a Error>) -> Vec<String> {
    let mut alike: Vec<(&Error, Vec<String>)> = Vec::new();
    for error in errors {
        let Error::Row { path, line, detail } = error else {
            alike.push((error, Vec::new()));
            continue;
        };
        let is_same =
            |other: &Error| matches!(other, Error::Row { path: own, detail: said, .. } if own == path && said == detail);
        match alike.iter_mut().find(|(other, _)| is_same(other)) {
            Some((_, lines)) => lines.push(line.to_string()),
            None => alike.push((error, Vec::new())),
        }
    }
    let text = |(error, lines): (&Error, Vec<String>)| match lines[..] {
        [] => error.to_string(),
        _ => format!("{error}, as in {}", lines.join(" and ")),
    };
    alike.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Location;
    use super::*;

    fn rows(wrong: usize, right: usize) -> Vec<(usize, Result<usize>)> {
        let row = |i| (i, if i < wrong { Err(Location::first().row_error(format!("odd {i}"))) } else { Ok(i) });
        (0..wrong + right).rev().map(row).collect()
    }

    #[test]
    fn the_first_rows_are_named_and_all_are_counted() {
        let mut refused = UnusableRows::default();
        assert_eq!(refused.collect_usable(rows(5, 2)).unwrap(), [6, 5]);
        let warning = refused.warning(2).unwrap().unwrap();
        assert!(warning.starts_with("skipped 5 of 7 rows"), "{warning}");
        assert!(warning.ends_with("test:1: odd 0; test:1: odd 1; test:1: odd 2; 2 more"), "{warning}");
        assert!(UnusableRows::default().warning(0).unwrap().is_none());
    }

    #[test]
    fn what_is_wrong_with_several_rows_is_said_once() {
        let wrong = |line: usize, detail: &str| Error::Row { path: "a.jsonl".into(), line, detail: detail.into() };
        let said = named([wrong(1, "odd"), wrong(3, "odd"), wrong(4, "bad"), wrong(7, "odd")].iter());
        assert_eq!(said, ["a.jsonl:1: odd, as in 3 and 7", "a.jsonl:4: bad"]);
    }

    #[test]
    fn a_dataset_of_odd_rows_and_strictness_are_errors() {
        let mut refused = UnusableRows::default();
        assert!(refused.collect_usable(rows(2, 0)).unwrap().is_empty());
        let error = refused.warning(0).unwrap_err().to_string();
        assert_eq!(error, "none of the 2 rows can be used; the first: test:1: odd 0");
        let mut alone = UnusableRows::default();
        assert!(alone.collect_usable(rows(1, 0)).unwrap().is_empty());
        assert_eq!(alone.warning(0).unwrap_err().to_string(), "test:1: odd 0");
        // Two passes over the rows; the second finds the earlier row.
        let mut strict = UnusableRows::new(true);
        strict.collect_usable(rows(4, 1).into_iter().filter(|(row, _)| *row > 0)).unwrap();
        strict.collect_usable(rows(1, 1)).unwrap();
        assert_eq!(strict.warning(2).unwrap_err().to_string(), "test:1: odd 0");
        let unbounded = Err::<(), _>(Error::Unbounded { place: "x".into(), detail: "y".into() });
        assert!(UnusableRows::default().collect_usable([(0, unbounded)]).is_err());
    }
}
