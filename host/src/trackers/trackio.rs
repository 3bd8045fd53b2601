//! A table of all metrics, as `trackio.import_csv` reads it.

use super::run::{Error, Run, put};
use jiff::Timestamp;
use std::path::{Path, PathBuf};

/// Writes a run's table to `to/NAME-trackio.csv`. Returns its path.
pub(super) fn write(run: &Run, to: &Path) -> Result<PathBuf, Error> {
    let name: String = run.name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    let path = to.join(format!("{name}-trackio.csv"));
    // Names are quoted, and begin as no formula of a spreadsheet does.
    let names = run.names(|c| c.is_ascii_alphanumeric() || "_-.@/".contains(c));
    put(&path, |file| {
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
    Ok(path)
}
