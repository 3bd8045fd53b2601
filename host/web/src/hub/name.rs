//! Names of models and datasets on the hub.

use super::{Error, Result};
use std::path::Path;

/// File extensions; a text with one of them is meant as a path.
const FILES: [&str; 13] =
    ["jinja", "json", "jsonl", "ndjson", "parquet", "txt", "csv", "tsv", "arrow", "gz", "zst", "safetensors", "toml"];

/// Kind of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepoKind {
    Model,
    Dataset,
}

/// Repository at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repo {
    pub(super) kind: RepoKind,
    /// `OWNER/NAME`, or only `NAME` for the oldest repositories.
    pub(super) id: String,
    /// Subset of a dataset.
    pub(super) subset: Option<String>,
    /// Branch, tag or commit.
    pub(super) revision: String,
}

/// Returns whether the hub allows a text as part of a name. Each part becomes part of a path.
fn is_part(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let edge = |c: char| matches!(c, '.' | '-');
    !part.is_empty()
        && part.len() <= 96
        && part.chars().all(allowed)
        && !part.starts_with(edge)
        && !part.ends_with(edge)
        && !part.contains("--")
        && !part.contains("..")
}

fn is_revision(revision: &str) -> bool {
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with('.');
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '+');
    revision.len() <= 200 && revision.chars().all(allowed) && revision.split('/').all(part) && !revision.contains("..")
}

/// Returns whether a text is a name on the hub rather than a path: it has the form of a name, and the path does not exist.
pub fn looks_like_name(text: &str) -> bool {
    let ending = |id: &str| id.rsplit_once('.').is_some_and(|(_, ending)| FILES.contains(&ending.to_lowercase().as_str()));
    Repo::split(RepoKind::Dataset, text).is_some_and(|repo| !ending(&repo.id) && !repo.subset.as_deref().is_some_and(ending))
        && !Path::new(text).exists()
}

impl Repo {
    fn split(kind: RepoKind, text: &str) -> Option<Self> {
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let parts: Vec<&str> = name.split('/').collect();
        let (id, subset) = match parts.as_slice() {
            [one] => ((*one).to_owned(), None),
            [owner, name] => (format!("{owner}/{name}"), None),
            [owner, name, subset] => (format!("{owner}/{name}"), Some((*subset).to_owned())),
            _ => return None,
        };
        let good = parts.iter().all(|part| is_part(part)) && is_revision(revision);
        good.then(|| Self { kind, id, subset, revision: revision.to_owned() })
    }

    /// Parses a name such as `OWNER/NAME@REVISION`.
    ///
    /// # Errors
    /// If the text does not have the form of a name.
    pub(super) fn parse(kind: RepoKind, text: &str) -> Result<Self> {
        let form = match kind {
            RepoKind::Model => "OWNER/NAME or OWNER/NAME@REVISION",
            RepoKind::Dataset => "OWNER/NAME, OWNER/NAME/SUBSET or OWNER/NAME@REVISION",
        };
        let fits = |repo: &Self| kind == RepoKind::Dataset || repo.subset.is_none();
        Self::split(kind, text).filter(fits).ok_or_else(|| Error::Missing {
            name: text.to_owned(),
            detail: format!("there is no such path, and a name on the hub is {form}"),
        })
    }

    /// Returns the name with a commit as its revision.
    pub(super) fn pinned(&self, commit: &str) -> String {
        let subset = self.subset.as_ref().map(|s| format!("/{s}")).unwrap_or_default();
        format!("{}{subset}@{commit}", self.id)
    }

    /// Returns the noun for the repository's kind.
    pub(super) fn noun(&self) -> &'static str {
        match self.kind {
            RepoKind::Model => "model",
            RepoKind::Dataset => "dataset",
        }
    }

    /// Returns the folder of the repository in the cache.
    pub(super) fn folder(&self) -> String {
        format!("{}s--{}", self.noun(), self.id.replace('/', "--"))
    }

    /// Returns the address of the repository's page, which is the prefix of its files' addresses.
    pub(super) fn page(&self, endpoint: &str) -> String {
        match self.kind {
            RepoKind::Model => format!("{endpoint}/{}", self.id),
            RepoKind::Dataset => format!("{endpoint}/datasets/{}", self.id),
        }
    }

    /// Returns the API's address for the repository at its revision.
    pub(super) fn api(&self, endpoint: &str) -> String {
        format!("{endpoint}/api/{}s/{}/revision/{}", self.noun(), self.id, self.revision.replace('/', "%2F"))
    }

    /// Returns the address of one of the repository's files at a commit.
    pub(super) fn file(&self, endpoint: &str, commit: &str, file: &str) -> String {
        let mut url = format!("{}/resolve/{commit}/", self.page(endpoint));
        for byte in file.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => url.push(char::from(byte)),
                _ => url.push_str(&format!("%{byte:02X}")),
            }
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        for name in ["gpt2", "Qwen/Qwen2-0.5B-Instruct", "trl-lib/tldr@main", "a/b@refs/pr/1", "openai/gsm8k/main"] {
            assert!(looks_like_name(name), "{name}");
        }
        let paths = [
            "",
            "/tmp/x",
            "./x",
            "../x",
            "~/x",
            "a/b/c/d",
            "a b",
            "data/train.jsonl",
            "x.json",
            "a//b",
            "a/",
            "a/..",
            "a--b",
            "a/b@",
            "a/b@../x",
            "a/b@/x",
            "prompts.jsonl.gz",
            "data/prompts.tsv",
            "C:\\x",
        ];
        for path in paths {
            assert!(!looks_like_name(path), "{path}");
        }
        let here = tempfile::tempdir_in(".").unwrap();
        let named = tempfile::Builder::new().prefix("model").tempdir_in(&here).unwrap();
        let relative = Path::new(here.path().file_name().unwrap()).join(named.path().file_name().unwrap());
        assert!(!looks_like_name(relative.to_str().unwrap()), "{}", relative.display());
    }

    #[test]
    fn a_name_says_where_everything_is() {
        let repo = Repo::parse(RepoKind::Dataset, "openai/gsm8k/main@refs/convert/parquet").unwrap();
        assert_eq!(repo.folder(), "datasets--openai--gsm8k");
        assert_eq!(repo.api("https://h"), "https://h/api/datasets/openai/gsm8k/revision/refs%2Fconvert%2Fparquet");
        assert_eq!(repo.file("https://h", "c", "a/b #1.json"), "https://h/datasets/openai/gsm8k/resolve/c/a/b%20%231.json");
        assert_eq!(repo.pinned("c"), "openai/gsm8k/main@c");
        assert!(Repo::parse(RepoKind::Model, "openai/gsm8k/main").unwrap_err().to_string().contains("OWNER/NAME@REVISION"));
    }
}
