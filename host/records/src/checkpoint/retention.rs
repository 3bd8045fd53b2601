//! Removes checkpoints when a run has more than it should keep: only unchanged ones that it wrote.

use super::folder::{discard, temporary_in};
use super::manifest::difference;
use crate::run::RunFiles;
use std::fs;
use std::io;
use std::path::Path;

/// The result of applying the retention limit.
#[derive(Debug, Default)]
pub struct RetentionOutcome {
    /// Steps of the removed checkpoints.
    pub removed: Vec<u64>,
    /// Steps of the checkpoints that stayed because they were modified, and why. They don't count towards the limit.
    pub left_alone: Vec<(u64, String)>,
}

/// Removes the oldest checkpoints beyond `limit`, but neither the newest nor the `best`. The best counts towards `limit`, unless
/// that leaves no room for the newest, as in transformers' `rotate_checkpoints`. Checkpoints that are damaged or contain other
/// files are neither removed nor counted.
///
/// # Errors
/// If the run's folder can't be read.
pub fn retain(run: &Path, limit: usize, best: Option<u64>) -> io::Result<RetentionOutcome> {
    let mut retained = RetentionOutcome::default();
    let mut as_written = Vec::new();
    for step in RunFiles(run).steps()? {
        match difference(&RunFiles(run).checkpoint(step)) {
            None => as_written.push(step),
            Some(reason) => retained.left_alone.push((step, reason)),
        }
    }
    let mut excess = as_written.len().saturating_sub(limit.max(1));
    let newest = as_written.last().copied();
    for step in as_written {
        if excess == 0 {
            break;
        }
        if Some(step) == best || Some(step) == newest {
            continue;
        }
        match remove(run, step) {
            Ok(()) => retained.removed.push(step),
            Err(e) => retained.left_alone.push((step, format!("it can't be removed: {e}"))),
        }
        excess -= 1;
    }
    Ok(retained)
}

/// Removes a checkpoint. Renames it first, so that a half-removed checkpoint is never found. Anything that can't be removed stays under the
/// temporary name.
fn remove(run: &Path, step: u64) -> io::Result<()> {
    let temporary = temporary_in(run)?;
    if let Err(e) = fs::rename(RunFiles(run).checkpoint(step), temporary.join(step.to_string())) {
        let _ = discard(&temporary);
        return Err(e);
    }
    if let Err(e) = discard(&temporary) {
        tracing::warn!("{}: part of the removed checkpoint {step} is left: {e}", temporary.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::save;
    use super::*;
    use std::path::PathBuf;

    fn run_with(steps: &[u64]) -> tempfile::TempDir {
        let run = tempfile::tempdir().unwrap();
        for step in steps {
            let fill = |to: &Path| {
                fs::create_dir(to.join("plugins")).unwrap();
                fs::write(to.join("plugins/p.wasm"), "abc").unwrap();
                fs::write(to.join("x"), "some bytes").map_err(|e| e.to_string())
            };
            save(run.path(), *step, fill).unwrap();
        }
        run
    }

    #[test]
    fn retention_removes_neither_the_newest_nor_the_best() {
        for (limit, best, left) in [
            (2, None, vec![10, 100]),
            (2, Some(5), vec![5, 100]),
            (1, Some(5), vec![5, 100]),
            (1, Some(100), vec![100]),
            (0, None, vec![100]),
            (9, None, vec![5, 7, 10, 100]),
        ] {
            let run = run_with(&[5, 7, 10, 100]);
            retain(run.path(), limit, best).unwrap();
            assert_eq!(RunFiles(run.path()).steps().unwrap(), left, "limit {limit}, best {best:?}");
            assert_eq!(fs::read_dir(run.path()).unwrap().count(), left.len(), "nothing else is left");
        }
    }

    #[test]
    fn what_the_run_did_not_write_or_does_not_find_as_it_wrote_it_stays_and_makes_nothing_go() {
        type Change = fn(PathBuf);
        let changes: &[(&str, Change)] = &[
            ("notes.txt", |c| fs::write(c.join("notes.txt"), "mine").unwrap()),
            ("run", |c| fs::create_dir(c.join("run")).unwrap()),
            ("plugins/mine", |c| fs::write(c.join("plugins/mine"), "").unwrap()),
            ("x has 4 bytes", |c| fs::write(c.join("x"), "less").unwrap()),
            ("x has changed", |c| fs::write(c.join("x"), "same bytes").unwrap()),
            ("plugins/p.wasm", |c| fs::remove_file(c.join("plugins/p.wasm")).unwrap()),
            ("manifest", |c| fs::remove_file(c.join("trainer/manifest.json")).unwrap()),
            ("trainer/notes", |c| fs::write(c.join("trainer/notes"), "mine").unwrap()),
            #[cfg(unix)]
            ("link", |c| std::os::unix::fs::symlink("/", c.join("link")).unwrap()),
        ];
        for (reason, change) in changes {
            let run = run_with(&[1, 2, 3]);
            change(RunFiles(run.path()).checkpoint(1));
            let first = retain(run.path(), 2, None).unwrap();
            assert!(first.removed.is_empty(), "{reason}");
            let [(1, said)] = &first.left_alone[..] else { panic!("{reason}: {first:?}") };
            assert!(said.contains(reason), "{said}");
            save(run.path(), 4, |to| fs::write(to.join("x"), "").map_err(|e| e.to_string())).unwrap();
            assert_eq!(retain(run.path(), 2, None).unwrap().removed, [2], "{reason}");
            assert_eq!(RunFiles(run.path()).steps().unwrap(), [1, 3, 4]);
        }
        // The newest is damaged: the last good one stays.
        let run = run_with(&[1, 2]);
        fs::write(RunFiles(run.path()).checkpoint(2).join("x"), "").unwrap();
        assert!(retain(run.path(), 1, None).unwrap().removed.is_empty());
    }
}
