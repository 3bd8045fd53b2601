//! Scans a dataset with several threads, to decide which of its rows are usable.

use super::row_outcome::{NAMED, PartOutcomes, RowOutcome};
use super::row_verdict::ParsedRow;
use super::usable_rows::{UsableRows, UsableSummary};
use super::{BUILT_IN_PROMPTS, DatasetKind, DatasetReader};
use crate::Result;
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::data::{self, Dataset, DatasetTable, Location, RowColumns, UnusableRows};
use crate::dist::World;
use crate::ranks::RunRanks;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// Scan of a dataset's rows with several threads.
struct DatasetScan<'a> {
    reader: &'a DatasetReader,
    kind: DatasetKind,
    refused: &'a UnusableRows,
    /// The first row whose error ends the run.
    last: AtomicUsize,
    /// Number of unusable rows so far.
    unusable: AtomicUsize,
    /// Names of the usable rows' other columns so far.
    columns: RwLock<BTreeSet<String>>,
}

impl<'a> DatasetScan<'a> {
    fn new(reader: &'a DatasetReader, kind: DatasetKind, refused: &'a UnusableRows) -> Self {
        let (last, unusable, columns) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0), RwLock::default());
        Self { reader, kind, refused, last, unusable, columns }
    }

    /// Scans a row; returns the outcomes of its parts.
    fn row(&self, number: usize, place: &Location, row: RowColumns) -> PartOutcomes {
        PartOutcomes(match self.reader.rows_of(self.kind, number, place, row) {
            Ok(parts) => parts.into_iter().map(|part| self.part(number, part)).collect(),
            Err(error) if self.is_unnamed(&error) => vec![RowOutcome::Unnamed],
            Err(error) => vec![RowOutcome::Unreadable(Box::new(error))],
        })
    }

    fn part(&self, number: usize, row: ParsedRow) -> RowOutcome {
        // Every row after the first that ends the run may leave a thread behind.
        if number > self.last.load(Ordering::Relaxed) {
            return RowOutcome::Passed;
        }
        let names: Vec<String> = unseen(&self.columns, &row);
        match self.reader.judge(self.kind, number, row) {
            Ok(verdict) => {
                if !names.is_empty() {
                    self.columns.write().unwrap_or_else(PoisonError::into_inner).extend(names.iter().cloned());
                }
                RowOutcome::Usable(verdict, names)
            }
            Err(error) if self.is_unnamed(&error) => RowOutcome::Unnamed,
            Err(error) => {
                if self.refused.is_final(&error) {
                    self.last.fetch_min(number, Ordering::Relaxed);
                }
                RowOutcome::Refused(Box::new(error))
            }
        }
    }

    fn is_unnamed(&self, error: &data::Error) -> bool {
        !self.refused.is_final(error) && self.unusable.fetch_add(1, Ordering::Relaxed) >= NAMED
    }
}

impl DatasetReader {
    /// Scans the rows of a dataset of this kind, or the built-in prompts, on all ranks together.
    pub(super) fn look(
        &self,
        given: Option<&Dataset>,
        kind: DatasetKind,
        world: &World,
    ) -> Result<(DatasetTable, UsableSummary)> {
        let refused = UnusableRows::new(self.strict);
        let look = DatasetScan::new(self, kind, &refused);
        let row = |number: usize, place: &Location, row: RowColumns| look.row(number, place, row);
        let (mut usable, task) =
            (UsableRows::new(self, kind), ProgressTask::new(Activity::ReadingDataset).with_total(None, ProgressUnit::Rows));
        let take = |number: usize, parts: PartOutcomes| {
            task.add(1);
            usable.take(number, parts);
        };
        let table = match given {
            Some(dataset) => DatasetTable::read(dataset, &RunRanks(world), row, take)?,
            None => DatasetTable::parse(Path::new("built-in prompts"), BUILT_IN_PROMPTS.as_bytes(), row, take)?,
        };
        Ok((table, usable.done()?))
    }
}

/// Returns the names of a row's columns that were not seen before.
fn unseen(known: &RwLock<BTreeSet<String>>, row: &ParsedRow) -> Vec<String> {
    let known = known.read().unwrap_or_else(PoisonError::into_inner);
    row.columns().keys().filter(|name| !known.contains(name.as_str())).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{TokenCountBounds, Tokenizer, TokenizerOverrides};
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// Reads rows with the built-in model's tokenizer and a chat template that refuses system messages.
    fn read(rows: &[Value], look: impl FnOnce(&DatasetReader, &Dataset) -> Result<()>) -> Result<()> {
        let template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
                        {{ m.content }}{{ eos_token }}{% endfor %}";
        let wording = TokenizerOverrides { template: Some(("t".into(), template.into())), ..TokenizerOverrides::default() };
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/builtin-model/model");
        let tokenizer = Tokenizer::open_with(&model, &wording).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        std::fs::write(&path, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
        let (lengths, context) = (TokenCountBounds::from_tokenizer(&tokenizer).map(Arc::new), 512);
        let (longest_prompt, framed, messages) = (None, false, false);
        let reader = DatasetReader {
            tokenizer,
            lengths,
            context,
            longest: 256,
            longest_prompt,
            completion: 0,
            strict: false,
            framed,
            messages,
            form: None,
            taught: None,
            likely_tokens: false,
        };
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
        for (rows, kind, parts) in [
            (&pairs, DatasetKind::ValuedPairs, 200),
            (&pairs, DatasetKind::Labelled, 400),
            (&completions, DatasetKind::Labelled, 200),
        ] {
            let look = |reader: &DatasetReader, dataset: &Dataset| {
                let (_, UsableSummary { used, sums, warning, .. }) =
                    reader.look(Some(dataset), kind, &World::single_process())?;
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
        let look = |reader: &DatasetReader, dataset: &Dataset| {
            let (_, UsableSummary { used, warning, .. }) =
                reader.look(Some(dataset), DatasetKind::Labelled, &World::single_process())?;
            // Row 4 is not a pair, so the first thousand pairs end with row 1000.
            let half = |part: usize, without: [usize; 3], rows: std::ops::Range<usize>| {
                rows.filter(move |row| !without.contains(row)).map(move |row| (row, part)).collect::<Vec<_>>()
            };
            let want = [half(0, [1, 3, 4], 0..1001), half(1, [2, 3, 4], 0..1001), vec![(1002, 0), (1001, 0), (1001, 1)]];
            let got: Vec<_> = used.iter().map(|used| (used.row, used.part)).collect();
            assert_eq!(got, want.concat());
            let warning = warning.unwrap();
            assert!(warning.starts_with("skipped 5 of 2004 rows"), "{warning}");
            assert!(warning.contains("jsonl:2: ") && warning.ends_with(", as in 3 and 4; 2 more"), "{warning}");
            Ok(())
        };
        read(&rows, look).unwrap();
    }

    #[test]
    fn labels_of_one_kind_and_margins_of_some_pairs_are_noticed() {
        let pair = |margin: Value| json!({"prompt": "p", "chosen": "a", "rejected": "b", "margin": margin});
        let valued = |rows: &[Value]| {
            read(rows, |reader, dataset| reader.look(Some(dataset), DatasetKind::ValuedPairs, &World::single_process()).map(drop))
        };
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
            let look = |reader: &DatasetReader, dataset: &Dataset| {
                let warning = reader.look(Some(dataset), DatasetKind::Labelled, &World::single_process())?.1.warning;
                assert_eq!(warning.is_some(), want.is_some());
                assert!(warning.is_none_or(|warning| want.is_some_and(|want| warning.contains(want))));
                Ok(())
            };
            read(&rows, look).unwrap();
        }
    }
}
