//! Finds runs: the given folder is a run, or runs are in folders below it.

use crate::config::printable;
use crate::run::{RunFiles, is_checkpoint};
use rlhost_live::folder_name;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum depth of the search for runs, and maximum number of runs.
const DEEPEST: usize = 3;
const MOST_RUNS: usize = 2000;

/// Maximum number of folders that are searched.
const MOST_FOLDERS: usize = 20_000;

/// Maximum length of a folder's name, in bytes.
const LONGEST_NAME: usize = 500;

/// Folder of a run, and its name on the page: its path below the given folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedRun {
    pub name: String,
    pub path: PathBuf,
}

/// Returns the runs in a folder, sorted by name. Symbolic links are not followed, since they may lead anywhere.
fn runs(root: &Path) -> Vec<NamedRun> {
    if RunFiles(root).exist() {
        return vec![NamedRun { name: folder_name(root), path: root.to_owned() }];
    }
    let (mut found, mut left) = (Vec::new(), MOST_FOLDERS);
    look(root, "", DEEPEST, &mut left, &mut found);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.truncate(MOST_RUNS);
    found
}

/// Cache lifetime of the list of runs.
const FRESH: Duration = Duration::from_secs(2);

/// List of the runs in a folder.
pub(crate) struct RunListing {
    root: PathBuf,
    listed: Mutex<(Instant, Arc<Vec<NamedRun>>)>,
    /// Whether the list is fixed rather than read from the folder.
    is_fixed: bool,
}

impl RunListing {
    pub fn new(root: PathBuf) -> Self {
        let listed = Mutex::new((Instant::now(), Arc::new(runs(&root))));
        Self { root, listed, is_fixed: false }
    }

    /// Creates a list of exactly these runs.
    pub fn from_runs(runs: Vec<NamedRun>) -> Self {
        Self { root: PathBuf::new(), listed: Mutex::new((Instant::now(), Arc::new(runs))), is_fixed: true }
    }

    /// Returns the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the runs; lists them again if the cached list has expired.
    pub fn runs(&self) -> Arc<Vec<NamedRun>> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_fixed && (listed.0.elapsed() > FRESH || listed.1.is_empty()) {
            *listed = (Instant::now(), Arc::new(runs(&self.root)));
        }
        Arc::clone(&listed.1)
    }

    /// Returns the folder of the run of this name, which must be in the list.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.runs().iter().find(|found| found.name == name).map(|found| found.path.clone())
    }
}

fn look(folder: &Path, prefix: &str, depth: usize, left: &mut usize, found: &mut Vec<NamedRun>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if *left == 0 || found.len() > MOST_RUNS {
            return;
        }
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_folder || name.starts_with('.') || is_checkpoint(&path) {
            continue;
        }
        *left -= 1;
        let name = format!("{prefix}{}", printable(&name, LONGEST_NAME));
        if RunFiles(&path).exist() {
            found.push(NamedRun { name, path });
        } else if depth > 1 {
            look(&path, &format!("{name}/"), depth - 1, left, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(root: &Path, name: &str) {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(RunFiles(&root.join(name)).events(), "").unwrap();
    }

    #[test]
    fn runs_are_found_by_names_that_lead_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        run(other.path(), "secret");
        for name in ["a", "sweep/b", "sweep/c", ".hidden", "checkpoint-3", "d/e/f/too-deep", "a/checkpoint-1"] {
            run(root.path(), name);
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(other.path().join("secret"), root.path().join("link")).unwrap();
        let names: Vec<String> = runs(root.path()).into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["a", "sweep/b", "sweep/c"]);
        let listing = RunListing::new(root.path().to_owned());
        assert_eq!(listing.find("sweep/b"), Some(root.path().join("sweep/b")));
        let outside = format!("../{}/secret", other.path().file_name().unwrap().to_string_lossy());
        for name in [&outside, "..", ".", "", "a/../a", "/etc", "a/", "./a", ".hidden", "link", "a\0"] {
            assert_eq!(listing.find(name), None, "{name:?}");
        }
        let own = runs(&root.path().join("a"));
        assert_eq!((own.len(), own[0].name.as_str()), (1, "a"));
        assert_eq!(runs(&root.path().join("missing")), []);
    }
}
