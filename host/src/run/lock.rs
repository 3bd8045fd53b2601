//! The lock of a run's folder, which the process that runs the run holds.

use super::RunFiles;
use crate::config::files;
use std::fs::{File, TryLockError};
use std::path::Path;

/// Locks a run's folder for as long as the file stays open.
///
/// # Errors
/// `WouldBlock` if another process runs the run.
pub fn lock(run: &Path) -> Result<File, TryLockError> {
    let file = files::own(&RunFiles(run).lock(), File::options().write(true)).map_err(TryLockError::Error)?;
    file.try_lock()?;
    Ok(file)
}

/// Returns whether a process runs the run in this folder; none if that can't be known.
pub fn is_running(run: &Path) -> Option<bool> {
    // A shared lock, so that two that ask don't take each other for the run.
    match files::open(&RunFiles(run).lock()).ok()?.try_lock_shared() {
        Ok(()) => Some(false),
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_running_while_its_lock_is_held() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(is_running(run.path()), None);
        let held = lock(run.path()).unwrap();
        assert_eq!(is_running(run.path()), Some(true));
        assert!(matches!(lock(run.path()), Err(TryLockError::WouldBlock)));
        drop(held);
        assert_eq!(is_running(run.path()), Some(false));
    }
}
