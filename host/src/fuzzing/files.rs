//! Files that a run reads: datasets, checkpoints, and the run's own folder.

use super::{choice, parts, put, refused, scratch};
use crate::data::{
    Dataset, DatasetTable, LabelledRow, Location, PreferenceRow, RowColumns, SingleRank, UnusableRows, read_completions,
    read_prompts,
};
use crate::{checkpoint, cli, diagnosis, train};

/// Fuzzes a dataset's file. The first byte selects its format, the second its name.
pub fn dataset(input: &[u8]) {
    let Some((learned, input)) = choice(input, 4) else { return };
    let Some((called, input)) = choice(input, 4) else { return };
    let file = put(["rows.jsonl", "rows.txt", "rows.csv", "rows.tsv"][usize::from(called)], input);
    let mut dataset = Dataset::from(file.as_path());
    let refused = &mut UnusableRows::default();
    match learned {
        0 => drop(read_prompts(&dataset, refused)),
        1 => {
            let judge = |row, place: &Location, columns: RowColumns| {
                drop((PreferenceRow::from_columns(row, place, columns.clone()), LabelledRow::from_columns(row, place, columns)));
            };
            drop(DatasetTable::read(&dataset, &SingleRank, judge, |_, ()| {}));
            let located = DatasetTable::locate(&dataset, &SingleRank, |_| {});
            located.iter().for_each(|table| (0..table.count()).for_each(|row| drop(table.row(row))));
        }
        2 => drop(read_completions(&dataset, refused)),
        _ => {
            dataset.columns = vec![("prompt".into(), "question".into()), ("question".into(), "prompt".into())];
            drop(read_prompts(&dataset, refused));
        }
    }
}

/// Fuzzes a checkpoint's manifest, or the state in the checkpoint of a run that learns from completions or from pairs.
pub fn checkpoint(input: &[u8]) {
    let Some((which, input)) = choice(input, 3) else { return };
    if which == 0 {
        put("run/checkpoint-7/x", b"some bytes");
        put("run/checkpoint-7/trainer/manifest.json", input);
        let run = scratch().join("run");
        let _ = checkpoint::newest(&run).map(|(step, path, _)| (step, checkpoint::Manifest::read(&path).map(|m| m.bytes())));
    } else {
        // An empty safetensors file: eight bytes of length, and an empty header.
        let no_moments = b"\x02\0\0\0\0\0\0\0{}";
        put("checkpoint-3/trainer/optimizer.safetensors", no_moments);
        put("checkpoint-3/trainer/snapshot.json", input);
        let _ = train::read_snapshot(&scratch().join("checkpoint-3"), which == 2);
    }
}

/// Fuzzes a run's completions, as `rlhost replay` reads them.
pub fn completions(input: &[u8]) {
    if let Err(error) = cli::read_recorded(&put("run/completions.jsonl", input)) {
        refused(&error);
    }
}

/// Fuzzes a run's folder, as the report reads it: metrics, events, completions, configuration.
pub fn report(input: &[u8]) {
    let mut parts = parts(input);
    for file in ["metrics.jsonl", "events.jsonl", "completions.jsonl", "config.toml"] {
        put(&format!("report/{file}"), parts.next().unwrap_or_default());
    }
    let _ = diagnosis::read(&scratch().join("report"));
    let _ = cli::report_text(&scratch().join("report"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(path: &str) -> Vec<u8> {
        std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/seeds").join(path)).unwrap()
    }

    #[test]
    fn states_and_completions_that_are_right_are_taken() {
        put("checkpoint-3/trainer/optimizer.safetensors", b"\x02\0\0\0\0\0\0\0{}");
        for (name, pairs) in [("rollouts", false), ("pairs", true)] {
            put("checkpoint-3/trainer/snapshot.json", &seed(&format!("checkpoint/{name}"))[1..]);
            train::read_snapshot(&scratch().join("checkpoint-3"), pairs).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        for (name, lines) in [("rows", 2), ("episode", 1)] {
            let file = put("run/completions.jsonl", &seed(&format!("completions/{name}")));
            assert_eq!(cli::read_recorded(&file).unwrap(), lines, "{name}");
        }
    }
}
