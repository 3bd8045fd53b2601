//! Output of a command, which is complete or absent, even if a signal ends the command.

use super::output;
use crate::train;
use anyhow::anyhow;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Polling interval for signals.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Attempts to remove a folder that other threads are still writing into.
const TRIES: usize = 50;

#[cfg(unix)]
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, signal_hook::consts::SIGHUP];
#[cfg(not(unix))]
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// Removes a file or folder if a signal ends the process before this is dropped.
pub(super) struct UnfinishedOutput {
    /// Whether signals have their default action again.
    is_over: Arc<AtomicBool>,
}

impl UnfinishedOutput {
    /// Starts to listen for signals. A signal removes `path`, and ends the process with `line` as its error message.
    pub(super) fn new(path: &Path, line: String) -> io::Result<Self> {
        let is_over = Arc::<AtomicBool>::default();
        let mut came = Vec::new();
        for signal in SIGNALS {
            let flag = Arc::<AtomicBool>::default();
            signal_hook::flag::register_conditional_default(signal, is_over.clone())?;
            signal_hook::flag::register(signal, flag.clone())?;
            came.push((signal, flag));
        }
        let (path, over) = (path.to_owned(), is_over.clone());
        let watch = std::thread::Builder::new().name("signals".into()).stack_size(256 << 10);
        watch.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                if let Some((signal, _)) = came.iter().find(|(_, flag)| flag.load(Ordering::SeqCst)) {
                    // A second signal ends the process without waiting for the removal.
                    over.store(true, Ordering::SeqCst);
                    remove(&path);
                    output::complain(&anyhow!("{line}"));
                    signal_hook::low_level::exit(128 + signal);
                }
                std::thread::sleep(SIGNAL_POLL_INTERVAL);
            }
        })?;
        Ok(Self { is_over })
    }
}

impl Drop for UnfinishedOutput {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// Removes a file, or a folder in which new files may still appear.
fn remove(path: &Path) {
    for _ in 0..TRIES {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        match removed {
            Ok(()) => return,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Creates a new folder. It is filled under a temporary name in the same parent and renamed once it is complete. A failure or a signal
/// leaves nothing behind.
///
/// # Errors
/// If it already exists or can't be filled.
pub(super) fn make_folder<T>(folder: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let unwritten = |source| train::Error::Write { path: folder.to_owned(), source };
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(unwritten)?;
    if folder.symlink_metadata().is_ok() {
        return Err(unwritten(io::ErrorKind::AlreadyExists.into()).into());
    }
    let made = temporary_folder(folder, parent).map_err(unwritten)?;
    let unfinished = UnfinishedOutput::new(made.path(), nothing_written(folder)).map_err(unwritten)?;
    // Errors name the requested folder instead of the temporary one.
    let (hidden, shown) = (made.path().display().to_string(), folder.display().to_string());
    let filled = fill(made.path()).map_err(|error| {
        let text = error.to_string().replace(&hidden, &shown);
        error.context(text)
    })?;
    fs::rename(made.path(), folder).map_err(unwritten)?;
    drop(unfinished);
    let _: PathBuf = made.keep();
    Ok(filled)
}

/// Returns the message of a command that was stopped before it had written this file or folder.
pub(super) fn nothing_written(to: &Path) -> String {
    format!("stopped; nothing was written to {}", to.display())
}

/// Creates a temporary folder with the usual permissions, because it will be renamed.
fn temporary_folder(folder: &Path, parent: &Path) -> io::Result<tempfile::TempDir> {
    let prefix = format!(".{}-", folder.file_name().unwrap_or_default().to_string_lossy());
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder.prefix(&prefix).suffix(".tmp").tempdir_in(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_complete_or_not_there() {
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("a/b");
        let names = || fs::read_dir(place.path().join("a")).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
        let failed = make_folder(&to, |folder| {
            fs::write(folder.join("half"), "x")?;
            Err::<(), _>(anyhow!("can't write {}", folder.join("rest").display()))
        });
        assert_eq!(failed.unwrap_err().to_string(), format!("can't write {}", to.join("rest").display()));
        assert!(names().is_empty());
        let made = make_folder(&to, |folder| {
            assert!(folder != to && !to.exists());
            Ok(fs::write(folder.join("whole"), "x")?)
        });
        made.unwrap();
        assert_eq!(names(), ["b"]);
        assert!(to.join("whole").is_file());
        assert!(make_folder(&to, |_| Ok(())).is_err());
        assert!(to.join("whole").is_file() && names() == ["b"]);
    }
}
