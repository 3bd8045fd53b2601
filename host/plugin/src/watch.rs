//! Watches files for changes during a run.

use notify::{EventKind, PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Changes closer together than this count as one.
const QUIET: Duration = Duration::from_millis(10);

/// Maximum wait for a quiet moment if files keep changing.
const LONGEST: Duration = Duration::from_millis(250);

/// Polling interval if the system does not report changes.
const POLL: Duration = Duration::from_secs(1);

/// Watches files through their folders, since a replaced file is a different file, and folders for new files.
pub struct FileWatcher {
    changes: Receiver<()>,
    _watcher: Box<dyn Watcher + Send>,
}

impl FileWatcher {
    /// Starts watching.
    ///
    /// # Errors
    /// If none of the folders can be watched.
    pub fn new(files: &[PathBuf], folders: &[PathBuf]) -> notify::Result<Self> {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let files: BTreeSet<PathBuf> = files.iter().map(|f| absolute(f)).collect();
        let inside: BTreeSet<PathBuf> = folders.iter().map(|f| absolute(f)).collect();
        let watched: BTreeSet<PathBuf> =
            files.iter().filter_map(|f| f.parent()).map(Path::to_owned).chain(inside.iter().cloned()).collect();
        let (sender, changes) = channel();
        let told = move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else { return };
            if matches!(event.kind, EventKind::Access(notify::event::AccessKind::Open(_) | notify::event::AccessKind::Read)) {
                return;
            }
            let ours = |path: &PathBuf| files.contains(path) || path.parent().is_some_and(|p| inside.contains(p));
            if event.paths.is_empty() || event.paths.iter().any(ours) {
                // Nobody is listening after the run has ended.
                let _ = sender.send(());
            }
        };
        let mut watcher: Box<dyn Watcher + Send> = match RecommendedWatcher::new(told.clone(), notify::Config::default()) {
            Ok(watcher) => Box::new(watcher),
            Err(_) => Box::new(PollWatcher::new(told, notify::Config::default().with_poll_interval(POLL))?),
        };
        for folder in &watched {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
        }
        Ok(Self { changes, _watcher: watcher })
    }

    /// Returns whether something changed within `longest`, after waiting for a quiet moment.
    pub fn wait_for_change(&self, longest: Duration) -> bool {
        if self.changes.recv_timeout(longest).is_err() {
            return false;
        }
        let first = Instant::now();
        while first.elapsed() < LONGEST {
            match self.changes.recv_timeout(QUIET) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn tells_of_a_file_that_is_written_replaced_or_deleted_and_of_no_neighbour() {
        let folder = tempfile::tempdir().unwrap();
        let (file, inbox) = (folder.path().join("plugin.wasm"), folder.path().join("inbox"));
        fs::write(&file, "1").unwrap();
        fs::create_dir(&inbox).unwrap();
        let watch = FileWatcher::new(std::slice::from_ref(&file), std::slice::from_ref(&inbox)).unwrap();
        let long = Duration::from_secs(20);
        fs::write(folder.path().join("other"), "x").unwrap();
        assert!(!watch.wait_for_change(Duration::from_millis(100)));
        fs::write(&file, "2").unwrap();
        assert!(watch.wait_for_change(long));
        fs::write(folder.path().join("new"), "3").unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
        assert!(watch.wait_for_change(long));
        fs::remove_file(&file).unwrap();
        assert!(watch.wait_for_change(long));
        fs::write(inbox.join("anything"), "4").unwrap();
        assert!(watch.wait_for_change(long));
    }
}
