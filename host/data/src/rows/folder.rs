//! Folders of shards: the files of one split of a dataset, sorted by name.

use super::row::{DatasetFile, listed};
use crate::config::{files, printable_path};
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Extensions of data files; each may be followed by `.gz` or `.zst`.
const KINDS: [&str; 7] = ["jsonl", "ndjson", "json", "parquet", "csv", "tsv", "txt"];

/// Words in a file's name that denote its split, by the hub's conventions.
const SPLITS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Returns the kind of data that a file's extension denotes.
pub(super) fn kind(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?.to_lowercase();
    let name = [".gz", ".zst"].iter().find_map(|packed| name.strip_suffix(packed)).unwrap_or(&name);
    KINDS.into_iter().find(|kind| name.strip_suffix(kind).is_some_and(|rest| rest.ends_with('.')))
}

/// Returns the split that a file's name denotes.
fn split(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?.to_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_alphabetic()).collect();
    SPLITS.iter().find(|(_, spellings)| spellings.iter().any(|s| words.contains(s))).map(|(split, _)| *split)
}

/// Returns the data files in a folder, sorted by name.
///
/// # Errors
/// If there are none, if they belong to several splits, or if the folder is a model's.
pub(super) fn shards(folder: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { path: folder.to_owned(), source };
    let wrong = |detail: String| Err(DatasetFile::new(folder).file_error(detail));
    let entries = folder.read_dir().map_err(io)?.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
    let mut names: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    names.sort_unstable();
    let is = |path: &Path, name: &str| path.file_name().is_some_and(|n| n == name);
    if names.iter().any(|path| is(path, "config.json")) {
        return wrong(
            "is the folder of a model; a dataset is a file, or a folder of .jsonl, .json, .parquet, .csv, .tsv or .txt files"
                .into(),
        );
    }
    names.retain(|path| !path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b".")));
    let about = |path: &Path| files::is_about_data(&path.file_name().unwrap_or_default().to_string_lossy());
    let (shards, others): (Vec<PathBuf>, Vec<PathBuf>) =
        names.into_iter().filter(|path| !about(path)).partition(|path| kind(path).is_some() && !path.is_dir());
    let found: Vec<_> = others.iter().filter_map(|path| path.file_name()).map(|n| n.to_string_lossy()).collect();
    let found = || listed(found.iter().map(|name| &**name));
    if shards.is_empty() {
        if others.iter().any(|path| path.extension().is_some_and(|e| e == "arrow")) {
            return wrong(
                "is a folder of Arrow files, as save_to_disk writes; write it with to_parquet or to_json instead".into(),
            );
        }
        let found = if others.is_empty() { "nothing else".into() } else { found() };
        return wrong(format!("is a folder without .jsonl, .json, .parquet, .csv, .tsv or .txt files; it holds {found}"));
    }
    if !others.is_empty() {
        tracing::warn!(
            "{}: skipped files that are not .jsonl, .json, .parquet, .csv, .tsv or .txt: {}",
            printable_path(folder),
            found()
        );
    }
    let splits: BTreeSet<&str> = shards.iter().filter_map(|path| split(path)).collect();
    if splits.len() > 1 {
        let splits = splits.into_iter().collect::<Vec<_>>().join(", ");
        return wrong(format!("is a folder with files of several splits ({splits}); pass the file or folder of one split"));
    }
    Ok(shards)
}
