//! Requests of `rlhost swap` and the page in a run's inbox: files named `<plugin>@<request>`, of which only the newest per plugin counts.

use crate::run::PluginRequest;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Extension of files that name a reward model's folder.
const MODEL: &str = "model";

/// Maximum length of a sender's name, in characters.
const LONGEST_NAME: usize = 100;

/// A request in the inbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SwapRequest {
    /// Time of the request, from its name; later requests have larger numbers.
    number: u128,
    /// File name without extension, by which the sender identifies the answer.
    pub id: String,
    /// Name of the plugin or reward model.
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

    /// Returns whether the request names a reward model's folder.
    pub(super) fn is_of_model(&self) -> bool {
        self.path.extension().is_some_and(|ending| ending == MODEL)
    }

    /// Returns whether the request changes only settings, without a new plugin or model.
    pub(super) fn is_of_settings(&self) -> bool {
        self.path.extension().is_some_and(|ending| ending == PluginRequest::SETTINGS_ENDING)
    }

    /// Reads the sender and the settings. Older versions of `rlhost swap` don't write them.
    pub(super) fn read_body(&self) -> io::Result<PluginRequest> {
        let file = if self.is_of_settings() { self.path.clone() } else { self.body_path() };
        match PluginRequest::load(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PluginRequest::default()),
            read => read,
        }
    }

    /// Returns the sender of the request.
    pub(super) fn sender(&self, about: &PluginRequest) -> RequestSender {
        let by = Some(about.by.chars().take(LONGEST_NAME).collect::<String>()).filter(|by| !by.is_empty());
        RequestSender { request: self.id.clone(), by, sets: about.settings.is_some() }
    }

    /// Deletes the request's files.
    pub(super) fn remove(&self) {
        drop(fs::remove_file(&self.path));
        drop(fs::remove_file(self.body_path()));
    }

    fn body_path(&self) -> PathBuf {
        self.path.with_extension(PluginRequest::COMPANION_ENDING)
    }
}

/// Sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestSender {
    /// Name of the request.
    pub request: String,
    pub by: Option<String>,
    /// Whether the request has all settings of the plugin.
    pub sets: bool,
}

/// The requests in the inbox.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// The newest request of each plugin, oldest first.
    pub newest: Vec<SwapRequest>,
    /// For each plugin with older requests, the newest of those and their number. Their files have been deleted.
    pub dropped: Vec<(SwapRequest, usize)>,
}

impl Inbox {
    /// Reads the inbox and deletes outdated requests. Other files are left alone.
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
