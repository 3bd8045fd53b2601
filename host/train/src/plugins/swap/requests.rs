//! What `rlhost swap` and the page have put into a run's inbox: files named `<plugin>@<request>`, of which only the newest of each plugin
//! matters.

use crate::run::PluginRequest;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Ending of the files that name the folder of a reward model.
const MODEL: &str = "model";

/// Longest name of who sent a request, in characters.
const LONGEST_NAME: usize = 100;

/// A file in the inbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SwapRequest {
    /// When it was made, as its name says; later requests have larger numbers.
    number: u128,
    /// Its name without its ending, by which its sender knows the answer.
    pub id: String,
    /// The plugin or reward model.
    pub name: String,
    pub path: PathBuf,
}

impl SwapRequest {
    fn from_path(path: PathBuf) -> Option<Self> {
        let ending = path.extension()?;
        let id = path.file_stem()?.to_str()?.to_owned();
        let (name, number) = id.rsplit_once('@')?;
        let (name, number) = (name.to_owned(), number.parse().unwrap_or_default());
        ["wasm", MODEL, PluginRequest::SETTINGS_ENDING].iter().any(|own| ending == *own).then_some(Self {
            number,
            id,
            name,
            path,
        })
    }

    /// Returns whether it names the folder of a reward model.
    pub(super) fn is_of_model(&self) -> bool {
        self.path.extension().is_some_and(|ending| ending == MODEL)
    }

    /// Returns whether it sends no plugin or model: it changes the settings of the one that the run has.
    pub(super) fn is_of_settings(&self) -> bool {
        self.path.extension().is_some_and(|ending| ending == PluginRequest::SETTINGS_ENDING)
    }

    /// Reads who sent it and what it sets. Older versions of `rlhost swap` don't say.
    pub(super) fn read_body(&self) -> io::Result<PluginRequest> {
        let file = if self.is_of_settings() { self.path.clone() } else { self.body_path() };
        match PluginRequest::load(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PluginRequest::default()),
            read => read,
        }
    }

    /// Returns who sent it.
    pub(super) fn sender(&self, about: &PluginRequest) -> RequestSender {
        let by = Some(about.by.chars().take(LONGEST_NAME).collect::<String>()).filter(|by| !by.is_empty());
        RequestSender { request: self.id.clone(), by, sets: about.settings.is_some() }
    }

    /// Removes its files.
    pub(super) fn remove(&self) {
        drop(fs::remove_file(&self.path));
        drop(fs::remove_file(self.body_path()));
    }

    fn body_path(&self) -> PathBuf {
        self.path.with_extension(PluginRequest::COMPANION_ENDING)
    }
}

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestSender {
    /// The request's name.
    pub request: String,
    pub by: Option<String>,
    /// Whether the request has all settings of the plugin.
    pub sets: bool,
}

/// The requests in the inbox.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// The newest of each plugin, oldest first.
    pub newest: Vec<SwapRequest>,
    /// For each plugin with older ones, the newest of those and their number. Their files are removed.
    pub dropped: Vec<(SwapRequest, usize)>,
}

impl Inbox {
    /// Reads the inbox. Leaves the files of the newest requests, and those that are no requests.
    pub(super) fn read(folder: &Path) -> Self {
        let mut by_name: BTreeMap<String, Vec<SwapRequest>> = BTreeMap::new();
        for request in fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|e| SwapRequest::from_path(e.path())) {
            by_name.entry(request.name.clone()).or_default().push(request);
        }
        let mut this = Self::default();
        for mut requests in by_name.into_values() {
            requests.sort();
            this.newest.extend(requests.pop());
            requests.iter().for_each(SwapRequest::remove);
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
        let names = [
            "a@9.wasm",
            "a@9.about",
            "a@10.about",
            "d@3.settings",
            "a@10.wasm",
            "b@2.wasm",
            "b@1.model",
            "c@d@7.model",
            "notes.txt",
            "plain.wasm",
            "a@8.txt",
        ];
        for name in names {
            fs::write(inbox.path().join(name), "").unwrap();
        }
        let read = Inbox::read(inbox.path());
        let ids = |requests: &[SwapRequest]| requests.iter().map(|request| request.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&read.newest), ["b@2", "d@3", "c@d@7", "a@10"]);
        assert_eq!((read.newest[2].name.as_str(), read.newest[2].is_of_model()), ("c@d", true));
        assert!(read.newest[1].is_of_settings());
        let dropped: Vec<(&str, usize)> = read.dropped.iter().map(|(last, number)| (last.id.as_str(), *number)).collect();
        assert_eq!(dropped, [("a@9", 1), ("b@1", 1)]);
        let mut left: Vec<String> =
            fs::read_dir(inbox.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let wanted = ["a@10.about", "a@10.wasm", "a@8.txt", "b@2.wasm", "c@d@7.model", "d@3.settings", "notes.txt", "plain.wasm"];
        assert_eq!(left, wanted);
    }

    #[test]
    fn a_request_says_who_sent_it_and_an_older_one_does_not() {
        let inbox = tempfile::tempdir().unwrap();
        let request = |name: &str| SwapRequest::from_path(inbox.path().join(name)).unwrap();
        let read = |name: &str| request(name).read_body();
        assert_eq!(read("a@1.wasm").unwrap(), PluginRequest::default());
        fs::write(inbox.path().join("a@1.about"), r#"{"by":"me","settings":{"x":1}}"#).unwrap();
        let about = read("a@1.wasm").unwrap();
        let sender = request("a@1.wasm").sender(&about);
        assert_eq!((sender.request.as_str(), sender.by.as_deref(), sender.sets), ("a@1", Some("me"), true));
        fs::write(inbox.path().join("b@2.settings"), r#"{"by":"","weight":2}"#).unwrap();
        let about = read("b@2.settings").unwrap();
        assert_eq!((about.weight, request("b@2.settings").sender(&about).by), (Some(2.0), None));
        fs::write(inbox.path().join("a@1.about"), r#"{"by":"me","other":1}"#).unwrap();
        assert!(read("a@1.wasm").unwrap_err().to_string().contains("other"));
        request("a@1.wasm").remove();
        assert!(!inbox.path().join("a@1.about").exists());
    }
}
