//! Exports a table of all metrics, and a script that logs it with Trackio's own functions. Trackio's `import_csv` would truncate names to
//! ten characters, and its `log` would give all rows the time of the export.

use super::run::{Error, ExportedRun, write_file};
use jiff::Timestamp;
use std::path::{Path, PathBuf};

/// The script; `{NAME}` and `{CONFIG}` are replaced by JSON texts, which are also valid in Python.
const SCRIPT: &str = r#"import csv
import json
import pathlib
import sys

import trackio

project, name = sys.argv[1] if len(sys.argv) > 1 else "rlhost", {NAME}
with pathlib.Path(__file__).with_suffix(".csv").open(newline="") as table:
    rows = list(csv.DictReader(table))
steps, timestamps = [int(row.pop("step")) for row in rows], [row.pop("timestamp") for row in rows]
metrics = [{name: float(value) for name, value in row.items() if value} for row in rows]
# It replaces what an earlier export logged.
store = trackio.SQLiteStorage
if name in store.get_runs(project):
    store.delete_run(project, name)
store.bulk_log(project, name, metrics, steps, timestamps, json.loads({CONFIG}))
"#;

/// Writes a run's table to `to/NAME-trackio.csv`, and the script next to it. Returns the script's path.
pub(super) fn write(run: &ExportedRun, to: &Path) -> Result<PathBuf, Error> {
    let name: String = run.name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    let path = to.join(format!("{name}-trackio.csv"));
    // Names are quoted, and don't begin like a spreadsheet's formula.
    let names = run.names(|c| c.is_ascii_alphanumeric() || "_-.@/".contains(c));
    write_file(&path, |file| {
        write!(file, "step,timestamp")?;
        names.iter().try_for_each(|name| write!(file, ",\"{}\"", name.trim_start_matches(['-', '@'])))?;
        writeln!(file)?;
        let mut values = vec![None; names.len()];
        for row in &run.rows {
            values.fill(None);
            row.values.iter().for_each(|(metric, value)| values[*metric] = Some(*value));
            let time = Timestamp::from_millisecond(row.time).unwrap_or_default();
            write!(file, "{},{}", row.step, time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"))?;
            for value in &values {
                match value {
                    Some(value) => write!(file, ",{value:?}")?,
                    None => write!(file, ",")?,
                }
            }
            writeln!(file)?;
        }
        Ok(())
    })?;
    let literal = |text: &str| serde_json::Value::from(text).to_string();
    let config = serde_json::json!(run.settings).to_string();
    let script = SCRIPT.replacen("{NAME}", &literal(&run.title), 1).replacen("{CONFIG}", &literal(&config), 1);
    let path = path.with_extension("py");
    write_file(&path, |file| file.write_all(script.as_bytes()))?;
    Ok(path)
}
