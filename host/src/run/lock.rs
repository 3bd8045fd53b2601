//! The lock of a run's folder, which the process that runs the run holds.

use super::RunFiles;
use crate::config::{files, printable_path};
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// Locks a run's folder for as long as the file stays open. Where files can't be locked, warns and returns it unlocked.
///
/// # Errors
/// `WouldBlock` if another process runs the run.
pub fn lock(run: &Path) -> Result<File, TryLockError> {
    let file = files::own(&RunFiles(run).lock(), File::options().write(true)).map_err(TryLockError::Error)?;
    match file.try_lock() {
        Err(TryLockError::Error(error)) if lacks_locks(&error) => {
            let folder = printable_path(run);
            tracing::warn!("{folder}: its filesystem has no file locks, so another run in this folder would not be noticed");
        }
        tried => tried?,
    }
    Ok(file)
}

/// Returns whether an error says that a filesystem has no locks, rather than that locking failed.
fn lacks_locks(error: &io::Error) -> bool {
    // Network filesystems whose server keeps no locks say ENOLCK.
    #[cfg(unix)]
    const NUMBERS: [i32; 3] = [libc::ENOSYS, libc::EOPNOTSUPP, libc::ENOLCK];
    #[cfg(not(unix))]
    const NUMBERS: [i32; 0] = [];
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error().is_some_and(|number| NUMBERS.contains(&number))
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

    #[cfg(unix)]
    #[test]
    fn a_filesystem_without_locks_is_told_from_one_that_fails() {
        for number in [libc::ENOSYS, libc::EOPNOTSUPP, libc::ENOLCK] {
            assert!(lacks_locks(&io::Error::from_raw_os_error(number)), "{number}");
        }
        assert!(lacks_locks(&io::ErrorKind::Unsupported.into()));
        for number in [libc::EIO, libc::EACCES, libc::EWOULDBLOCK] {
            assert!(!lacks_locks(&io::Error::from_raw_os_error(number)), "{number}");
        }
    }
}
