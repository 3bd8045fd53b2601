//! Checkpoint folders of a run. Only this room writes them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be written.
#[derive(Debug, thiserror::Error)]
#[error("can't write checkpoint {}: {detail}", path.display())]
pub struct Error {
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// What went wrong.
    pub detail: String,
}

/// Name of the checkpoint of a step.
fn folder_name(step: u64) -> String {
    format!("checkpoint-{step}")
}

/// Steps of the checkpoints in a run's folder, oldest first.
pub fn steps(run: &Path) -> io::Result<Vec<u64>> {
    let mut steps: Vec<u64> = fs::read_dir(run)?
        .filter_map(Result::ok)
        .filter_map(|e| e.file_name().to_str()?.strip_prefix("checkpoint-")?.parse().ok())
        .collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Writes the checkpoint of `step`: `fill` puts its files into a temporary folder beside the
/// final place, which it then takes by renaming. Gives the final path.
pub fn save(run: &Path, step: u64, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, Error> {
    let path = run.join(folder_name(step));
    let fail = |detail: String| Error { path: path.clone(), detail };
    let temporary = tempfile::Builder::new().prefix(".checkpoint-").tempdir_in(run).map_err(|e| fail(e.to_string()))?;
    fill(temporary.path()).map_err(fail)?;
    fs::rename(temporary.path(), &path).map_err(|e| fail(e.to_string()))?;
    // The folder has moved; there is nothing left to clean up.
    let _ = temporary.keep();
    Ok(path)
}

/// Removes the oldest checkpoints beyond the newest `limit`.
pub fn retain(run: &Path, limit: usize) -> io::Result<Vec<u64>> {
    let steps = steps(run)?;
    let old = &steps[..steps.len().saturating_sub(limit.max(1))];
    for step in old {
        fs::remove_dir_all(run.join(folder_name(*step)))?;
    }
    Ok(old.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_save_leaves_nothing_and_retention_keeps_the_newest() {
        let run = tempfile::tempdir().unwrap();
        for step in [5, 10, 100] {
            save(run.path(), step, |to| fs::write(to.join("x"), "x").map_err(|e| e.to_string())).unwrap();
        }
        assert!(save(run.path(), 7, |_| Err("no".into())).unwrap_err().to_string().contains("checkpoint-7: no"));
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 3);
        assert_eq!(retain(run.path(), 2).unwrap(), [5]);
        assert_eq!(steps(run.path()).unwrap(), [10, 100]);
    }
}
