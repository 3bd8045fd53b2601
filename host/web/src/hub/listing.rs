//! Files in a repository, as listed by the hub or by the cache.

/// The files of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepoListing {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
    /// Whether the list comes from the hub, and so is complete.
    pub(super) fresh: bool,
}

impl RepoListing {
    pub(super) fn has(&self, file: &str) -> bool {
        self.files.iter().any(|f| f == file)
    }

    /// Returns some of the files' names, for errors.
    pub(super) fn names(&self) -> String {
        let mut names = self.files.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        if self.files.len() > 8 {
            names.push_str(", ...");
        }
        if names.is_empty() { "nothing".to_owned() } else { names }
    }
}
