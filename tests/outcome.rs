//! Outcome of a run of the binary: its output, and its page.

use crate::TestFolder;
use serde_json::Value;
use std::process::Output;

/// Outcome of a run of the binary.
#[derive(Debug)]
pub struct CommandOutcome {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CommandOutcome {
    /// Creates the outcome of a process that has ended.
    #[must_use]
    pub fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts that the process succeeded.
    ///
    /// # Panics
    /// If it did not.
    pub fn succeeded(&self) -> &Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// Returns the lines of standard error that are not informational: warnings, errors, and any other output.
    #[must_use]
    pub fn complaints(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| !line.starts_with(" INFO ")).collect()
    }

    /// Returns the only line of standard error that begins with `error:`.
    ///
    /// # Panics
    /// If there is none, or more than one, or a panic.
    #[must_use]
    pub fn error(&self) -> &str {
        assert!(!self.stderr.lines().any(|l| l.starts_with("thread ")), "the host panicked: {}", self.stderr);
        let errors: Vec<&str> = self.stderr.lines().filter(|l| l.starts_with("error:")).collect();
        assert_eq!(errors.len(), 1, "{}", self.stderr);
        errors[0]
    }
}

/// Returns the data embedded in a page.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn answers(page: &str) -> Value {
    let inside = page.split_once("id=\"frozen\">").and_then(|(_, rest)| rest.split_once("</script>"));
    let (block, _) = inside.expect("a block of answers");
    serde_json::from_str(block).expect("answers in JSON")
}

impl TestFolder {
    /// Returns the data embedded in a run's report.
    ///
    /// # Panics
    /// If the run has no report.
    #[must_use]
    pub fn report(&self, run: &str) -> Value {
        answers(&std::fs::read_to_string(self.path(run).join("report.html")).expect("the run has a report"))
    }
}
