//! The report of `rlhost plugin check`.

use super::super::output;
use crate::config::words::followed_by;
use crate::plugin;

/// Prints the report and counts failures.
pub(super) struct CheckReport {
    pub(super) failures: usize,
    /// Whether the plugin reads a dataset's columns, but no dataset is given.
    pub(super) lacks_dataset: bool,
    /// Names of the folders that are granted to the plugin.
    pub(super) folders: Vec<String>,
    /// Whether the algorithm's derivatives may differ from the loss's.
    pub(super) stop_gradient: bool,
}

impl CheckReport {
    pub(super) fn line(&mut self, good: bool, what: &str, detail: &str) {
        self.failures += usize::from(!good);
        output::row(&format!("{} {what:<24} {detail}", if good { "ok  " } else { "FAIL" }), 30);
    }

    /// Returns a call's value, or prints its error.
    pub(super) fn call<T>(&mut self, what: &str, outcome: plugin::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let error = without_step(error).to_string();
                let detail = match self.advice(&error) {
                    Some(advice) => followed_by(&error, &advice),
                    None => error,
                };
                self.line(false, what, &detail);
                None
            }
        }
    }

    /// Returns how the plugin gets what it lacks.
    fn advice(&self, error: &str) -> Option<String> {
        if self.lacks_dataset && error.contains("column") {
            return Some("give a dataset: --dataset FILE".to_owned());
        }
        if let Some(folder) = missing_folder(error).filter(|folder| !self.folders.iter().any(|granted| granted == folder)) {
            return Some(format!("no folder {folder} is granted to it: --folder {folder}=FOLDER"));
        }
        let connects = ["urllib/", "http/client.py", "socket.py"].iter().any(|module| error.contains(module));
        let advice = "a script has no network; ask a server with a plugin that may (the judge reward)";
        (connects && error.contains("Permission denied")).then(|| advice.to_owned())
    }
}

/// Returns a call's error without the step: a check has no steps.
fn without_step(error: plugin::Error) -> plugin::Error {
    match error {
        plugin::Error::Call { name, function, detail, .. } => plugin::Error::Call { name, function, step: None, detail },
        other => other,
    }
}

/// Returns the folder whose file a script has not found, as in `No such file or directory: '/words/k'`.
fn missing_folder(error: &str) -> Option<&str> {
    let (_, path) = error.split_once("No such file or directory: '/")?;
    let folder = path.split(['/', '\'']).next()?;
    let is_name = !folder.is_empty() && folder.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    is_name.then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_lacks_is_named_with_its_flag() {
        let report = |folders: &[&str]| {
            let folders = folders.iter().map(|name| (*name).to_owned()).collect();
            CheckReport { failures: 0, lacks_dataset: true, folders, stop_gradient: false }
        };
        let missing = "line 2, in fi\nFileNotFoundError: [Errno 44] No such file or directory: '/words/k'";
        let folder = "no folder words is granted to it: --folder words=FOLDER";
        assert_eq!(report(&[]).advice(missing).as_deref(), Some(folder));
        assert_eq!(report(&["lists"]).advice(missing).as_deref(), Some(folder));
        assert_eq!(report(&["words"]).advice(missing), None, "the folder is there, without this file");
        let connected = "File \"http/client.py\", line 1003, in connect\nPermissionError: [Errno 2] Permission denied";
        assert!(report(&[]).advice(connected).is_some_and(|advice| advice.starts_with("a script has no network")));
        let column = report(&[]).advice("fo takes answer, which is no column of the dataset");
        assert_eq!(column.as_deref(), Some("give a dataset: --dataset FILE"));
        assert_eq!(report(&[]).advice("ValueError: no"), None);
    }

    #[test]
    fn a_failed_check_names_no_step() {
        let (name, detail) = ("fi".to_owned(), "trapped".to_owned());
        let error = plugin::Error::Call { name, function: "score", step: Some(3), detail };
        assert_eq!(without_step(error).to_string(), "plugin fi, score: trapped");
    }
}
