//! The page in a single file with precomputed answers: the report of a run, or a comparison of several.
//!
//! The answers come from the same [`PageApi`](crate::api::PageApi) as those of the live page, so the two can't differ. The file loads
//! nothing, and runs only the page's own scripts.

mod answers;
mod completions;
mod document;
mod queries;
mod script;
#[cfg(test)]
mod tests;

use crate::api::PageApi;
use crate::backend::PageBackend;
use crate::folder::{NamedRun, RunListing};
use crate::report::{self, Error, RunComparison};
use crate::run::RunFiles;
use rlhost_live::folder_name;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Page about one or more runs, in one file.
#[derive(Debug)]
pub struct FrozenPage {
    title: String,
    answers: Value,
}

impl FrozenPage {
    /// Reads a run, which may still be in progress.
    ///
    /// # Errors
    /// If the folder is not a run, or one of its files can't be read.
    pub fn from_run(run: &Path, backend: impl PageBackend) -> Result<Self, Error> {
        report::check(run)?;
        let name = folder_name(run);
        let runs = vec![NamedRun { name: name.clone(), path: run.to_owned() }];
        let api = PageApi::with_listing(RunListing::from_runs(runs.clone()), Box::new(backend), false);
        Ok(Self { answers: answers::read(&api, &runs)?, title: name })
    }

    /// Reads the runs of a comparison.
    ///
    /// # Errors
    /// If a file of a run can't be read.
    pub fn from_comparison(comparison: &RunComparison, backend: impl PageBackend) -> Result<Self, Error> {
        let found = |run: &report::ComparedRun| NamedRun { name: run.name.clone(), path: run.path.clone() };
        let runs: Vec<NamedRun> = comparison.runs.iter().map(found).collect();
        let api = PageApi::with_listing(RunListing::from_runs(runs.clone()), Box::new(backend), false);
        Ok(Self { answers: answers::read(&api, &runs)?, title: format!("Comparison of {} runs", runs.len()) })
    }

    /// Returns the HTML of the file.
    #[must_use]
    pub fn to_html(&self) -> String {
        document::html(&self.title, &self.answers)
    }

    /// Writes a run's report atomically into its folder. Returns the path.
    ///
    /// # Errors
    /// In the cases of [`FrozenPage::from_run`], and if the file can't be written.
    pub fn write_report(run: &Path, backend: impl PageBackend) -> Result<PathBuf, Error> {
        let page = Self::from_run(run, backend)?;
        let path = RunFiles(run).report();
        page.write(&path)?;
        Ok(path)
    }

    /// Writes the file atomically, so that an existing link is replaced rather than followed.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let fail = |source| Error::Write { path: path.to_owned(), source };
        if path.is_dir() {
            return Err(fail(std::io::Error::new(std::io::ErrorKind::IsADirectory, "it is a folder")));
        }
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        #[cfg_attr(not(unix), allow(unused_mut))]
        let mut builder = tempfile::Builder::new();
        // Unlike most temporary files, this one is meant to be shared.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut temporary = builder.prefix(".report-").suffix(".tmp").tempfile_in(folder).map_err(fail)?;
        temporary.write_all(self.to_html().as_bytes()).map_err(fail)?;
        temporary.persist(path).map_err(|error| fail(error.error))?;
        Ok(())
    }
}
