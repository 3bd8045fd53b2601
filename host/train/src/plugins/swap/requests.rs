//! What `rlhost swap` has put into a run's inbox: files named `<plugin>@<request>`, of which only the newest of each plugin matters.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Ending of the files that name the folder of a reward model.
const MODEL: &str = "model";

/// A file in the inbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    /// When it was made, as its name says; later requests have larger numbers.
    number: u128,
    /// Its name without its ending, by which its sender knows the answer.
    pub id: String,
    /// The plugin or reward model.
    pub name: String,
    pub path: PathBuf,
}

impl Request {
    fn from_path(path: PathBuf) -> Option<Self> {
        let ending = path.extension()?;
        let id = path.file_stem()?.to_str()?.to_owned();
        let (name, number) = id.rsplit_once('@')?;
        let (name, number) = (name.to_owned(), number.parse().unwrap_or_default());
        (ending == "wasm" || ending == MODEL).then_some(Self { number, id, name, path })
    }

    /// Returns whether it names the folder of a reward model.
    pub(super) fn is_of_model(&self) -> bool {
        self.path.extension().is_some_and(|ending| ending == MODEL)
    }
}

/// The requests in the inbox.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// The newest of each plugin, oldest first.
    pub newest: Vec<Request>,
    /// For each plugin with older ones, the newest of those and their number. Their files are removed.
    pub dropped: Vec<(Request, usize)>,
}

impl Inbox {
    /// Reads the inbox. Leaves the files of the newest requests, and those that are no requests.
    pub(super) fn read(folder: &Path) -> Self {
        let mut by_name: BTreeMap<String, Vec<Request>> = BTreeMap::new();
        for request in fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|e| Request::from_path(e.path())) {
            by_name.entry(request.name.clone()).or_default().push(request);
        }
        let mut this = Self::default();
        for mut requests in by_name.into_values() {
            requests.sort();
            this.newest.extend(requests.pop());
            requests.iter().for_each(|older| drop(fs::remove_file(&older.path)));
            let number = requests.len();
            this.dropped.extend(requests.pop().map(|last| (last, number)));
        }
        this.newest.sort();
        this
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_requests_the_newest_of_each_plugin_is_left() {
        let inbox = tempfile::tempdir().unwrap();
        let names = ["a@9.wasm", "a@10.wasm", "b@2.wasm", "b@1.model", "c@d@7.model", "notes.txt", "plain.wasm", "a@8.txt"];
        for name in names {
            fs::write(inbox.path().join(name), "").unwrap();
        }
        let read = Inbox::read(inbox.path());
        let ids = |requests: &[Request]| requests.iter().map(|request| request.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&read.newest), ["b@2", "c@d@7", "a@10"]);
        assert_eq!((read.newest[1].name.as_str(), read.newest[1].is_of_model()), ("c@d", true));
        let dropped: Vec<(&str, usize)> = read.dropped.iter().map(|(last, number)| (last.id.as_str(), *number)).collect();
        assert_eq!(dropped, [("a@9", 1), ("b@1", 1)]);
        let mut left: Vec<String> =
            fs::read_dir(inbox.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["a@10.wasm", "a@8.txt", "b@2.wasm", "c@d@7.model", "notes.txt", "plain.wasm"]);
    }
}
