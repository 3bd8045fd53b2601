//! The first look at a dataset: decides which of its rows can be used, on several threads.

use super::bar::bar;
use super::judging::{ReadRow, Verdict};
use super::usable::{Sums, Usable, Used};
use super::{BUILT_IN_PROMPTS, Kind, Reader};
use crate::data::{self, Columns, Dataset, Location, Refused, Table};
use crate::train::Result;
use indicatif::ProgressBar;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// Number of unusable rows whose errors are kept. More than are judged at once, so the first ones are among them.
pub(super) const NAMED: usize = 1 << 14;

/// What the first look at a row found. Errors are rare and large.
pub(super) enum Seen {
    /// It is unusable, like many before it.
    Unnamed,
    /// It is no such row.
    Unreadable(Box<data::Error>),
    /// An earlier row ends the run anyway.
    Passed,
    Judged(std::result::Result<Verdict, Box<data::Error>>),
}

/// What is known of a dataset after the first look.
pub(super) struct Looked {
    pub(super) table: Table,
    /// The rows that can be used, in the order in which they are learned.
    pub(super) used: Vec<Used>,
    pub(super) sums: Sums,
    /// The hash of all that determines their tokens and columns.
    pub(super) hash: String,
    /// Names of their other columns.
    pub(super) columns: BTreeSet<String>,
    /// Names skipped rows, and says what else is wrong.
    pub(super) warning: Option<String>,
}

/// The first look at a dataset's rows, on several threads.
struct Look<'a> {
    reader: &'a Reader,
    kind: Kind,
    refused: &'a Refused,
    /// The first row whose failure is final.
    last: AtomicUsize,
    /// Number of unusable rows so far.
    unusable: AtomicUsize,
    /// Names of the usable rows' other columns.
    columns: RwLock<BTreeSet<String>>,
    /// Number of undesirable and of desirable completions.
    labels: [AtomicUsize; 2],
    bar: ProgressBar,
}

impl<'a> Look<'a> {
    fn new(reader: &'a Reader, kind: Kind, refused: &'a Refused) -> Self {
        let (last, unusable, columns) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0), RwLock::default());
        let labels = [const { AtomicUsize::new(0) }; 2];
        Self { reader, kind, refused, last, unusable, columns, labels, bar: bar("reading the dataset", None) }
    }

    /// Looks at a row; returns what was found of each of its parts.
    fn row(&self, number: usize, place: &Location, row: Columns) -> Vec<Seen> {
        self.bar.inc(1);
        match self.kind.read(number, place, row) {
            Ok(parts) => parts.into_iter().map(|part| self.part(number, part)).collect(),
            Err(error) if self.is_unnamed(&error) => vec![Seen::Unnamed],
            Err(error) => vec![Seen::Unreadable(Box::new(error))],
        }
    }

    fn part(&self, number: usize, row: ReadRow) -> Seen {
        if let Some(label) = row.label() {
            self.labels[usize::from(label)].fetch_add(1, Ordering::Relaxed);
        }
        // Each row after the first whose failure is final may leave a thread behind.
        if number > self.last.load(Ordering::Relaxed) {
            return Seen::Passed;
        }
        let names: Vec<String> = unseen(&self.columns, &row);
        let judged = self.reader.judge(self.kind, number, row);
        match &judged {
            Err(error) if self.is_unnamed(error) => return Seen::Unnamed,
            Err(error) if self.refused.is_final(error) => drop(self.last.fetch_min(number, Ordering::Relaxed)),
            Ok(_) if !names.is_empty() => self.columns.write().unwrap_or_else(PoisonError::into_inner).extend(names),
            _ => {}
        }
        Seen::Judged(judged.map_err(Box::new))
    }

    fn is_unnamed(&self, error: &data::Error) -> bool {
        !self.refused.is_final(error) && self.unusable.fetch_add(1, Ordering::Relaxed) >= NAMED
    }
}

impl Reader {
    /// Looks at the rows of a dataset of this kind, or at the built-in prompts.
    pub(super) fn look(&self, given: Option<&Dataset>, kind: Kind) -> Result<Looked> {
        let refused = Refused::new(self.strict);
        let look = Look::new(self, kind, &refused);
        let row = |number: usize, place: &Location, row: Columns| look.row(number, place, row);
        let mut usable = Usable::new(self, kind);
        let take = |number: usize, seen: Vec<Seen>| usable.take(number, seen);
        let table = match given {
            Some(dataset) => Table::read(dataset, row, take)?,
            None => Table::parse(Path::new("built-in prompts"), BUILT_IN_PROMPTS.as_bytes(), row, take)?,
        };
        let Look { columns, labels, .. } = look;
        let (used, sums, hash, left_out) = usable.done()?;
        let warnings = left_out.into_iter().chain(one_sided(labels.map(AtomicUsize::into_inner)));
        let columns = columns.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Looked { table, used, sums, hash, columns, warning: warnings.reduce(|a, b| format!("{a}; {b}")) })
    }
}

/// Returns the names of a row's columns that are not known yet.
fn unseen(known: &RwLock<BTreeSet<String>>, row: &ReadRow) -> Vec<String> {
    let known = known.read().unwrap_or_else(PoisonError::into_inner);
    row.columns().keys().filter(|name| !known.contains(name.as_str())).cloned().collect()
}

/// Returns a warning if labelled completions, of which so many are undesirable and desirable, are all of one kind.
fn one_sided([undesirable, desirable]: [usize; 2]) -> Option<String> {
    let kind = match (undesirable, desirable) {
        (1.., 0) => "undesirable",
        (0, 1..) => "desirable",
        _ => return None,
    };
    let all = undesirable + desirable;
    Some(format!(
        "dataset: all of its {all} completions are {kind}; the algorithm needs both kinds to learn from their difference"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Lengths, Tokenizer, Wording};
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// Reads rows with the built-in model's tokenizer and a chat template that refuses system messages.
    fn read(rows: &[Value], look: impl FnOnce(&Reader, &Dataset) -> Result<()>) -> Result<()> {
        let template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
                        {{ m.content }}{{ eos_token }}{% endfor %}";
        let wording = Wording { template: Some(("t".into(), template.into())), ..Wording::default() };
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/builtin-model/model");
        let tokenizer = Tokenizer::open_as(&model, &wording).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        std::fs::write(&path, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
        let (lengths, context) = (Lengths::of(&tokenizer).map(Arc::new), 512);
        let (longest_prompt, framed, messages) = (None, false, false);
        let reader =
            Reader { tokenizer, lengths, context, longest: 256, longest_prompt, completion: 0, strict: false, framed, messages };
        look(&reader, &path.as_path().into())
    }

    fn said(role: &str) -> Value {
        json!([{"role": role, "content": "word"}])
    }

    #[test]
    fn rows_that_are_certainly_short_enough_are_not_tokenized() {
        let text = "some words of an ordinary text ".repeat(6);
        let pair =
            |i: usize| json!({"prompt": format!("{text}{i}"), "chosen": format!(" {text}{i}"), "rejected": " no", "margin": i});
        let one = |i: usize| json!({"prompt": format!("{text}{i}"), "completion": format!(" {text}"), "label": i % 2});
        let (pairs, completions) = ((0..200).map(pair).collect::<Vec<_>>(), (0..200).map(one).collect::<Vec<_>>());
        for (rows, kind, parts) in
            [(&pairs, Kind::ValuedPairs, 200), (&pairs, Kind::Labelled, 400), (&completions, Kind::Labelled, 200)]
        {
            let look = |reader: &Reader, dataset: &Dataset| {
                let Looked { used, sums, warning, .. } = reader.look(Some(dataset), kind)?;
                // The number of a prompt's tokens is known only if it was tokenized.
                assert_eq!((used.len(), warning, sums.longest), (parts, None, 0));
                Ok(())
            };
            read(rows, look).unwrap();
        }
    }

    #[test]
    fn the_halves_of_pairs_stay_in_order_where_some_are_left_out() {
        let mut rows: Vec<Value> = (0..1002)
            .map(|i| match i {
                1 => json!({"prompt": said("user"), "chosen": said("system"), "rejected": said("assistant")}),
                2 => json!({"prompt": said("user"), "chosen": said("assistant"), "rejected": said("system")}),
                3 => json!({"prompt": said("system"), "chosen": said("assistant"), "rejected": said("assistant")}),
                4 => json!({"prompt": 7, "chosen": "a", "rejected": "b"}),
                _ => json!({"prompt": "p", "chosen": "a", "rejected": "b"}),
            })
            .collect();
        rows.push(json!({"prompt": "p", "completion": "c", "label": false}));
        let look = |reader: &Reader, dataset: &Dataset| {
            let Looked { used, warning, .. } = reader.look(Some(dataset), Kind::Labelled)?;
            // Row 4 is no pair, so the first thousand end with row 1000.
            let half = |part: usize, without: [usize; 3], rows: std::ops::Range<usize>| {
                rows.filter(move |row| !without.contains(row)).map(move |row| (row, part)).collect::<Vec<_>>()
            };
            let want = [half(0, [1, 3, 4], 0..1001), half(1, [2, 3, 4], 0..1001), vec![(1002, 0), (1001, 0), (1001, 1)]];
            let got: Vec<_> = used.iter().map(|used| (used.row, used.part)).collect();
            assert_eq!(got, want.concat());
            let warning = warning.unwrap();
            assert!(warning.starts_with("skipped 5 of 2004 rows"), "{warning}");
            assert!(warning.contains("jsonl:2: ") && warning.contains("jsonl:4: ") && warning.ends_with("; 2 more"), "{warning}");
            Ok(())
        };
        read(&rows, look).unwrap();
    }

    #[test]
    fn labels_of_one_kind_and_margins_of_some_pairs_are_noticed() {
        let pair = |margin: Value| json!({"prompt": "p", "chosen": "a", "rejected": "b", "margin": margin});
        let valued = |rows: &[Value]| read(rows, |reader, dataset| reader.look(Some(dataset), Kind::ValuedPairs).map(drop));
        let said = valued(&[pair(json!(1)), pair(json!(null)), pair(json!("much"))]).unwrap_err().to_string();
        assert!(said.contains("1 of its 2 pairs have no \"margin\""), "{said}");
        valued(&[pair(json!(1)), pair(json!(0.5)), pair(json!("much"))]).unwrap();
        let row = |label: bool| json!({"prompt": "p", "completion": "c", "label": label});
        for (rows, want) in [
            (vec![row(true), row(true)], Some("all of its 2 completions are desirable")),
            (vec![row(false)], Some("all of its 1 completions are undesirable")),
            (vec![row(false), row(true)], None),
            (vec![pair(json!(1))], None),
        ] {
            let look = |reader: &Reader, dataset: &Dataset| {
                let warning = reader.look(Some(dataset), Kind::Labelled)?.warning;
                assert_eq!(warning.is_some(), want.is_some());
                assert!(warning.is_none_or(|warning| want.is_some_and(|want| warning.contains(want))));
                Ok(())
            };
            read(&rows, look).unwrap();
        }
    }
}
