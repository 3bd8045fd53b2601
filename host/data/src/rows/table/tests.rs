use super::*;
use crate::SingleRank;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::Write;
use std::sync::{Arc, Barrier, Mutex};

/// Row's index, location and columns.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct JudgedRow(usize, String, String);

impl JudgedRow {
    fn new(number: usize, place: &Location, columns: RowColumns) -> Self {
        Self(number, place.row_error("").to_string(), Value::Object(columns).to_string())
    }
}

/// Reads a dataset as one rank; returns the table and the judgements, or the error.
fn read_as<P: DatasetRanks<Error = Error>>(
    dataset: &Dataset,
    peers: &P,
    (small, block): (u64, u64),
) -> Result<(DatasetTable, Vec<JudgedRow>)> {
    let mut seen = Vec::new();
    let take = |row, judged| {
        // Rows that lack a column are not delivered.
        assert!(row >= seen.len());
        seen.push(judged);
    };
    let cache = tempfile::tempdir().unwrap();
    let sizes = || TableStorageOptions { small, block, spill: Spill::in_folder(cache.path().into()) };
    let table = DatasetTable::read_with(dataset, peers, JudgedRow::new, take, sizes())?;
    // Locating finds the same rows.
    let mut found = Vec::new();
    let located = DatasetTable::locate_with(dataset, peers, |row| found.push(row), sizes())?;
    assert_eq!(found, (0..table.count()).collect::<Vec<_>>());
    // The texts of a table's rows are stored as JSON or as records.
    let are_json = located.segments.iter().all(|shelf| shelf.header.is_none());
    assert!(!are_json || located.hash() == table.hash() && located.bytes() == table.bytes());
    assert_eq!(located.count(), table.count());
    assert_eq!(seen.len(), table.count());
    for (row, judged) in seen.iter().enumerate() {
        assert_eq!(located.row(row).ok(), table.row(row).ok());
        // Another rank's file may have another path.
        assert!(peers.ranks().1 > 1 || located.place(row).unwrap().row_error("").to_string() == judged.1);
    }
    Ok((table, seen))
}

fn all(dataset: &Dataset, small: u64) -> (DatasetTable, Vec<JudgedRow>) {
    read_as(dataset, &SingleRank, (small, BLOCK.0)).unwrap()
}

fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn rows_of_any_format_are_read_again_as_they_were() {
    let lines = "\u{feff}\n {\"a\": 1.0, \"b\": [-0.0, null]}\r\n\n\n{\"a\": \"\u{e9}\\n\", \"b\": {}}\n{\"a\": 18446744073709551615, \"b\": 3}";
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(lines.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let array = b" [ {\"a\": 1, \"b\": \"],\"} , {\"a\": [], \"b\": 2}\n]\n";
    let files: [(&str, &[u8]); 5] = [
        ("x.jsonl", lines.as_bytes()),
        ("x.jsonl.gz", &packed),
        ("x.json", array),
        ("x.csv", b"a,b\n1,\"two\nlines\"\n\"\",3\n"),
        ("x.txt", b"one\n<|endoftext|>two"),
    ];
    for (name, bytes) in files {
        let (_folder, path) = written(name, bytes);
        let (from, to) = if name == "x.txt" { ("text", "b") } else { ("b", "c") };
        let dataset = Dataset { columns: vec![(to.into(), from.into())], ..path.as_path().into() };
        let want = crate::rows::read(&dataset).unwrap();
        for small in [0, SMALL] {
            let (table, seen) = all(&dataset, small);
            let held = |held: &RowTextStorage| match held {
                RowTextStorage::InFile => small == 0 && ["x.jsonl", "x.json"].contains(&name),
                RowTextStorage::InMemory(_) => small == SMALL,
                RowTextStorage::Spilled(_) => small == 0,
            };
            assert!(table.segments.iter().all(|shelf| held(&shelf.storage)), "{name} {small}: {:?}", table.segments);
            assert_eq!(seen.len(), want.len(), "{name}");
            for (row, (place, columns)) in want.iter().enumerate() {
                assert_eq!(seen[row], JudgedRow::new(row, place, columns.clone()), "{name}");
                assert_eq!(table.row(row).unwrap(), (place.clone(), columns.clone()), "{name}");
            }
            assert!(table.row(want.len()).is_err());
        }
    }
}

#[test]
fn a_row_that_has_changed_is_named() {
    let (_folder, path) = written("x.jsonl", b"{\"a\": 1}\n{\"a\": 2}\n");
    let dataset = Dataset::from(path.as_path());
    let ((large, _), (small, _)) = (all(&dataset, 0), all(&dataset, SMALL));
    std::fs::write(&path, b"{\"a\": 1}\n{\"a\": 3}\n{\"a\": 4}\n").unwrap();
    assert_eq!(large.row(0).unwrap().1["a"], 1);
    let said = large.row(1).unwrap_err();
    assert!(said.to_string().contains("x.jsonl:2: has changed since the run read it first") && said.is_mistake(), "{said}");
    assert_eq!(small.row(1).unwrap().1["a"], 2);
    for gone in [true, false] {
        if gone {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::write(&path, b"{").unwrap();
        }
        assert!(large.row(0).unwrap_err().to_string().contains("x.jsonl:1: has changed"));
    }
}

#[test]
fn errors_are_those_of_reading_all_rows() {
    let cases: [(&str, &str); 7] = [
        ("x.jsonl", "{\"a\": 1}\n{\"a\": \n{\"b\": 1}"),
        ("x.jsonl", "{\"b\": 1}\n{\"a\": 1}\n[]"),
        ("x.jsonl", "{\"b\": 1}\n{\"a\": 1}"),
        ("x.json", "[{\"a\": 1}, {\"a\": 1}"),
        ("x.json", "[{\"a\": 1}}"),
        ("x.json", "[{\"a\": 1}] 2"),
        ("x.jsonl", "\n\n"),
    ];
    for (name, text) in cases {
        let (_folder, path) = written(name, text.as_bytes());
        let dataset = Dataset { columns: vec![("p".into(), "a".into())], ..path.as_path().into() };
        let want = crate::rows::read(&dataset).map(drop).unwrap_err().to_string();
        let got = read_as(&dataset, &SingleRank, (SMALL, BLOCK.0)).map(drop).unwrap_err().to_string();
        assert_eq!(got, want, "{text}");
    }
}

#[test]
fn what_is_wrong_with_a_located_row_is_said_when_it_is_read() {
    let text = "{\"a\": 1}\n  {\"a\": \n{\"b\": 1}\n[]\n\u{e9}\n{\"a\": 2}\n";
    for (name, text) in [("x.jsonl", text), ("x.json", "[{\"a\": 1}, {\"a\": }, {\"b\": 1}, 2, nul, {\"a\": 2}]")] {
        let (_folder, path) = written(name, text.as_bytes());
        let dataset = Dataset { columns: vec![("p".into(), "a".into())], ..path.as_path().into() };
        for small in [0, SMALL] {
            let spill = Spill::in_folder(path.with_file_name("cache"));
            let table =
                DatasetTable::locate_with(&dataset, &SingleRank, |_| {}, TableStorageOptions { small, block: BLOCK.0, spill })
                    .unwrap();
            let said: Vec<Option<String>> = (0..6).map(|row| table.row(row).err().map(|error| error.to_string())).collect();
            // Reading all rows reports the first of the errors.
            let whole: Vec<&str> = text.split_inclusive('\n').collect();
            let after = |text: &str| text.split_once(name).map(|(_, rest)| rest.to_owned()).unwrap();
            for (row, said) in said.iter().enumerate() {
                let Some(said) = said.as_ref().map(|said| after(said)) else {
                    assert!([0, 5].contains(&row));
                    continue;
                };
                assert!(said.starts_with(&format!(":{}: ", row + 1)), "{said}");
                let alone = match name {
                    "x.jsonl" => [whole[0], &"\n".repeat(row - 1), whole[row]].concat(),
                    _ if row == 1 => text.to_owned(),
                    _ => continue,
                };
                let (_folder, path) = written(name, alone.as_bytes());
                let want = all_of(&Dataset { columns: dataset.columns.clone(), ..path.as_path().into() });
                assert_eq!(said, after(&want), "row {row}");
            }
        }
    }
}

/// Returns the error of a dataset that is read completely.
fn all_of(dataset: &Dataset) -> String {
    crate::rows::read(dataset).map(drop).unwrap_err().to_string()
}

/// One of several ranks, each of which is a thread.
struct TestRank {
    rank: usize,
    told: Arc<(Barrier, Mutex<Vec<RankReply>>)>,
}

/// Message of a rank to the others, or its error.
type RankReply = std::result::Result<Vec<u8>, String>;

impl TestRank {
    /// Returns the messages of all ranks.
    fn meet(&self, own: RankReply) -> Result<Vec<Vec<u8>>> {
        let (barrier, told) = &*self.told;
        told.lock().unwrap()[self.rank] = own;
        barrier.wait();
        let all: std::result::Result<Vec<_>, String> = told.lock().unwrap().iter().cloned().collect();
        barrier.wait();
        all.map_err(|text| Error::OfRank { text })
    }
}

impl DatasetRanks for TestRank {
    type Error = Error;

    fn ranks(&self) -> (usize, usize) {
        (self.rank, self.told.1.lock().unwrap().len())
    }

    fn gather<T: Serialize + serde::de::DeserializeOwned>(&self, _what: &'static str, own: T) -> Result<Vec<T>> {
        let all = self.meet(Ok(postcard::to_allocvec(&own).unwrap()))?;
        Ok(all.iter().map(|bytes| postcard::from_bytes(bytes).unwrap()).collect())
    }
}

/// Reads a dataset on several ranks, each with its own copy; returns what each found, or the error that all report.
fn together(datasets: &[Dataset], block: u64) -> std::result::Result<Vec<(DatasetTable, Vec<JudgedRow>)>, String> {
    let told = Arc::new((Barrier::new(datasets.len()), Mutex::new(vec![Ok(Vec::new()); datasets.len()])));
    let read = |rank: usize, dataset: &Dataset| {
        let rank = TestRank { rank, told: told.clone() };
        match read_as(dataset, &rank, (0, block)) {
            Err(Error::OfRank { text }) => Err(text),
            Err(error) => match rank.meet(Err(error.to_string())) {
                Err(Error::OfRank { text }) => Err(text),
                _ => panic!("a failure was not heard"),
            },
            // Another rank may have failed after the last round.
            Ok(read) => rank.meet(Ok(Vec::new())).map(|_| read).map_err(|error| error.to_string()),
        }
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = datasets.iter().enumerate().map(|(rank, dataset)| scope.spawn(move || read(rank, dataset))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Compares the result of several ranks with that of one.
fn compare(text: &[u8], columns: &[(String, String)], ranks: usize, block: u64) -> std::result::Result<(), TestCaseError> {
    let (_folder, path) = written("x.jsonl", text);
    let dataset = Dataset { columns: columns.to_vec(), ..path.as_path().into() };
    let want = read_as(&dataset, &SingleRank, (0, BLOCK.0)).map_err(|error| error.to_string());
    match (together(&vec![dataset; ranks], block), want) {
        (Ok(got), Ok((table, seen))) => {
            for (own, of_rank) in got {
                prop_assert_eq!(&of_rank, &seen);
                for row in 0..seen.len() {
                    prop_assert_eq!(own.row(row).unwrap(), table.row(row).unwrap());
                }
                prop_assert!(own.row(seen.len()).is_err());
            }
        }
        (got, want) => prop_assert_eq!(got.map(|_| ()), want.map(|_| ())),
    }
    Ok(())
}

const LINES: &str = "[ \t]{0,3}(\\{\"a\": [0-9]{1,12}\\}|\\{\"a\": \"[\u{e9}\u{20ac}a-z ]{0,40}\"\\})?(\n|\r\n|\n\n)";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn ranks_read_the_same_rows_together(
        lines in prop::collection::vec(LINES, 0..30),
        mark in any::<bool>(),
        last in "(\\{\"a\": [0-9]{1,40}\\})?",
        broken in prop::option::weighted(
            0.2,
            (any::<prop::sample::Index>(), prop::sample::select(vec!["{\n", "[]\n", "{\"b\": 1}\n"])),
        ),
        ranks in 2usize..5,
        block in 1u64..90,
    ) {
        let mut lines = lines;
        if let Some((place, line)) = broken {
            lines.insert(place.index(lines.len() + 1), line.into());
        }
        let text = format!("{}{}{last}", if mark { "\u{feff}" } else { "" }, lines.concat());
        compare(text.as_bytes(), &[("p".into(), "a".into())], ranks, block)?;
    }
}

#[test]
fn ranks_with_different_files_read_them_alone_or_find_out_later() {
    let other = |text: &[u8]| {
        let (folder, path) = written("x.jsonl", text);
        (folder, Dataset::from(path.as_path()))
    };
    let (_folders, datasets): (Vec<_>, Vec<_>) =
        [&b"{\"a\": 1}\n{\"a\": 2}\n"[..], b"{\"a\": 1}\n"].into_iter().map(other).unzip();
    let read = together(&datasets, 4).unwrap();
    assert_eq!(read.iter().map(|(_, seen)| seen.len()).collect::<Vec<_>>(), [2, 1]);
    // The first rank reads the first row, and the second the others.
    std::fs::write(&datasets[1].files[0], b"{\"a\": 1}\n{\"a\": 3}\n").unwrap();
    let said = together(&datasets, 9).map(drop).unwrap_err();
    assert!(said.contains("x.jsonl:2: has changed since a rank read it first, or is another file"), "{said}");
    // The second rank reads the last two rows.
    for (of, last) in [4, 5].into_iter().enumerate() {
        let rows: String = [0, 1, 2, 3, last].iter().map(|a| format!("{{\"a\": {a}}}\n")).collect();
        std::fs::write(&datasets[of].files[0], rows).unwrap();
    }
    let read = together(&datasets, 20).unwrap();
    assert!(read.iter().all(|(_, seen)| seen.len() == 5 && seen[4].2 == "{\"a\":5}"));
    assert!(read[0].0.row(3).is_ok() && read[1].0.row(4).is_ok());
    let said = read[0].0.row(4).unwrap_err().to_string();
    assert!(said.contains("x.jsonl:5: has changed since a rank read it first, or is another file"), "{said}");
}

#[test]
fn a_line_that_never_ends_is_refused_by_ranks_too() {
    let short = b"{\"a\": 1}\n";
    let long = [&b"{\"a\": \""[..], &b"x".repeat(17 << 20), b"\"}\n"].concat();
    let (blank, some) = (b" ".repeat(20 << 20), b" ".repeat(10 << 20));
    let large = [&b"{\"a\": \""[..], &b"x".repeat(12 << 20), b"\"}\n"].concat();
    for (text, want) in [
        ([&short[..], &long, short].concat(), "x.jsonl:2: is longer than 16.00 MiB"),
        ([&short[..], &some, &large].concat(), "x.jsonl: has a line that is longer than 16.00 MiB"),
        ([&short[..], &blank, short].concat(), "x.jsonl: has a line that is longer than 16.00 MiB"),
    ] {
        let (_folder, path) = written("x.jsonl", &text);
        let said = together(&vec![Dataset::from(path.as_path()); 3], 1 << 20).map(drop).unwrap_err();
        assert!(said.contains(want), "{said}");
    }
}
