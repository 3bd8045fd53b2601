//! The log of a run's rollouts: each generation's completions in a file named by its SHA-256, and an index with a line per generation.
//!
//! Completions of an agent or an inference server can't be recomputed. With its log, a resumed run trains on the same completions as
//! before, and a replay trains on all of them without the agent or server.

mod generation;

pub(super) use generation::{LoggedGeneration, LoggedMetric};

use super::journal::put;
use super::{Error, Result};
use crate::config::words::counted;
use crate::config::{files, hex, json_lines, printable_path};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Name of the index, which has a line per generation.
const INDEX: &str = "log.jsonl";

/// Extension of generations' files.
const EXTENSION: &str = ".safetensors";

/// Maximum size of a generation's file, in bytes.
const LARGEST: u64 = 4 << 30;

/// Maximum length of a line, and maximum size of the part of the index that is read, in bytes. A line takes about 300.
const LONGEST_LINE: u64 = 4096;
const LARGEST_INDEX: u64 = 512 << 20;

/// Key of a generation in the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(tag = "phase", rename_all = "lowercase")]
pub(super) enum GenerationKey {
    /// A generation for training.
    Train {
        /// Number of the generation.
        generation: u64,
    },
    /// Completions of some prompts in an evaluation, or samples that are shown.
    Eval {
        /// Number that distinguishes evaluations from samples.
        generation: u64,
        /// Number of updates before the evaluation.
        step: u64,
        /// Digest of the prompts.
        of: String,
    },
    /// An episode of an unfinished generation.
    Episode {
        /// Number of the generation.
        generation: u64,
        /// Row of the prompt.
        row: u64,
        /// Index among the row's completions.
        sample: u64,
    },
}

impl fmt::Display for GenerationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Train { generation } => write!(f, "generation {generation}"),
            Self::Episode { generation, row, sample } => write!(f, "episode {sample} of row {row} in generation {generation}"),
            Self::Eval { step, .. } => write!(f, "an evaluation of step {step}"),
        }
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct RolloutLogEntry {
    /// Key of the generation.
    #[serde(flatten)]
    pub key: GenerationKey,
    /// Number of updates of the policy when the completions were begun.
    pub version: u64,
    /// Checksum of that policy's trained weights.
    pub weights: String,
    /// Digest of the prompts' rows and tokens.
    pub prompts: String,
    /// Digest of everything else that determines the completions: sampling parameters and limits.
    pub sampling: String,
    /// Number of completions.
    pub completions: usize,
    /// SHA-256 of the file.
    pub sha256: String,
}

/// The log of a run's rollouts.
pub(super) struct RolloutLog {
    folder: PathBuf,
    /// Whether it is inside another log's folder.
    is_inner: bool,
    entries: HashMap<GenerationKey, RolloutLogEntry>,
}

impl RolloutLog {
    /// Opens the log in this folder, which is created with the first generation.
    ///
    /// # Errors
    /// If the log can't be read, or the folder is a link, through which files elsewhere would be deleted.
    pub(super) fn open(folder: PathBuf) -> Result<Self> {
        Self::open_at(folder, false)
    }

    /// Opens a log in a folder inside another log's.
    ///
    /// # Errors
    /// As [`RolloutLog::open`].
    pub(super) fn open_inner(folder: PathBuf) -> Result<Self> {
        Self::open_at(folder, true)
    }

    fn open_at(folder: PathBuf, is_inner: bool) -> Result<Self> {
        let mut this = Self { folder, is_inner, entries: HashMap::new() };
        this.check_folders()?;
        let index = this.folder.join(INDEX);
        let unread = |e| Error::unusable(&index, e);
        let mut lines = match json_lines::JsonLinesReader::open(&index, LONGEST_LINE) {
            Ok(lines) => lines.with_limit(LARGEST_INDEX),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(this),
            Err(e) => return Err(unread(e)),
        };
        let mut unknown = 0;
        while let Some(line) = lines.next_object().map_err(unread)? {
            match serde_json::from_value::<RolloutLogEntry>(Value::Object(line)) {
                Ok(entry) if is_digest(&entry.sha256) => drop(this.entries.insert(entry.key.clone(), entry)),
                _ => unknown += 1,
            }
        }
        let folder = printable_path(&this.folder);
        lines.unread().notes(INDEX).iter().for_each(|note| tracing::warn!("{folder}: {note}"));
        if unknown > 0 {
            tracing::warn!("{}: {} can't be read", printable_path(&index), counted(unknown, "line"));
        }
        Ok(this)
    }

    /// Refuses a folder that is a link, since files elsewhere would be deleted.
    fn check_folders(&self) -> Result<()> {
        let outer = self.folder.parent().filter(|_| self.is_inner);
        for folder in outer.into_iter().chain([self.folder.as_path()]) {
            match fs::symlink_metadata(folder) {
                Ok(found) if !found.is_dir() => {
                    return Err(Error::unusable(folder, "it is not a folder of the run's own, but a link or a file"));
                }
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::unusable(folder, e)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Deletes files that no line names, which a killed process has left. Only the run that the log belongs to may do so.
    pub(super) fn remove_leftovers(&self) {
        let named: HashSet<&str> = self.entries.values().map(|entry| entry.sha256.as_str()).collect();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|_| entry.file_type().is_ok_and(|of| of.is_file())) else { continue };
            let is_unnamed = |digest: &str| is_digest(digest) && !named.contains(digest);
            if files::is_temporary(name) || name.strip_suffix(EXTENSION).is_some_and(is_unnamed) {
                self.delete(&entry.path());
            }
        }
    }

    /// Returns the log's folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Follows the folder to a new path.
    pub(super) fn relocate(&mut self, folder: PathBuf) {
        self.folder = folder;
    }

    /// Returns the entry of a generation.
    pub(super) fn find(&self, key: &GenerationKey) -> Option<&RolloutLogEntry> {
        self.entries.get(key)
    }

    /// Returns the number of consecutive training generations, from the first one.
    pub(super) fn generations(&self) -> u64 {
        (0..).find(|&generation| !self.entries.contains_key(&GenerationKey::Train { generation })).unwrap_or_default()
    }

    /// Reads the completions of a generation.
    ///
    /// # Errors
    /// If the file is missing or was changed.
    pub(super) fn read(&self, entry: &RolloutLogEntry) -> Result<LoggedGeneration> {
        let file = self.file(&entry.sha256);
        let bytes = files::read(&file, LARGEST).map_err(|e| Error::unusable(&file, e))?;
        if hex(&Sha256::digest(&bytes)) != entry.sha256 {
            return Err(Error::unusable(&file, "its SHA-256 is not the one in its name: it was damaged or changed"));
        }
        LoggedGeneration::parse(&bytes).map_err(|detail| Error::unusable(&file, detail))
    }

    /// Writes the completions of a generation and then its line, syncing both to disk. An existing generation with the same key is
    /// replaced.
    ///
    /// # Errors
    /// If they can't be written.
    pub(super) fn append(&mut self, generation: &LoggedGeneration, entry: impl FnOnce(String) -> RolloutLogEntry) -> Result<()> {
        let fail = |path: &Path| {
            let path = path.to_owned();
            |source| Error::Write { path, source }
        };
        let outer = self.folder.parent().filter(|_| self.is_inner);
        for folder in outer.into_iter().chain([self.folder.as_path()]) {
            files::create_folder(folder).map_err(fail(folder))?;
        }
        let bytes = generation.to_bytes().map_err(|detail| fail(&self.folder)(std::io::Error::other(detail)))?;
        let entry = entry(hex(&Sha256::digest(&bytes)));
        let file = self.file(&entry.sha256);
        let mut temporary = files::temporary_in(&self.folder).map_err(fail(&file))?;
        temporary.write_all(&bytes).and_then(|()| temporary.as_file().sync_data()).map_err(fail(&file))?;
        temporary.persist(&file).map_err(|e| fail(&file)(e.error))?;
        let index = self.folder.join(INDEX);
        let mut line = line_of(&entry)?;
        line.push('\n');
        let mut lines = files::open_for_writing(&index, fs::File::options().read(true).append(true)).map_err(fail(&index))?;
        if is_cut_off(&mut lines).map_err(fail(&index))? {
            line.insert(0, '\n');
        }
        lines.write_all(line.as_bytes()).and_then(|()| lines.sync_data()).map_err(fail(&index))?;
        if let Some(before) = self.entries.insert(entry.key.clone(), entry) {
            self.remove(&before);
        }
        Ok(())
    }

    /// Drops the generations before number `generation`, and evaluations of policy versions before `version`.
    ///
    /// # Errors
    /// If the index can't be rewritten.
    pub(super) fn forget_before(&mut self, generation: u64, version: u64) -> Result<()> {
        self.retain(|entry| match &entry.key {
            GenerationKey::Train { generation: own } => *own >= generation,
            GenerationKey::Eval { step, .. } => *step >= version,
            GenerationKey::Episode { generation: own, .. } => *own >= generation,
        })
    }

    /// Drops everything written by this version of the policy and later ones.
    ///
    /// # Errors
    /// If the index can't be rewritten.
    pub(super) fn forget_since(&mut self, version: u64) -> Result<()> {
        self.retain(|entry| entry.version < version)
    }

    /// Drops everything.
    ///
    /// # Errors
    /// If the index can't be rewritten.
    pub(super) fn clear(&mut self) -> Result<()> {
        self.retain(|_| false)
    }

    fn retain(&mut self, stays: impl Fn(&RolloutLogEntry) -> bool) -> Result<()> {
        let (left, gone): (HashMap<_, _>, Vec<_>) = {
            let (left, gone): (Vec<_>, Vec<_>) = self.entries.drain().partition(|(_, entry)| stays(entry));
            (left.into_iter().collect(), gone.into_iter().map(|(_, entry)| entry).collect())
        };
        self.entries = left;
        if gone.is_empty() {
            return Ok(());
        }
        self.check_folders()?;
        let mut entries: Vec<&RolloutLogEntry> = self.entries.values().collect();
        entries.sort_by_key(|entry| entry.version);
        let lines = entries.into_iter().map(|entry| Ok(line_of(entry)? + "\n")).collect::<Result<String>>()?;
        put(&self.folder.join(INDEX), lines.as_bytes())?;
        gone.iter().for_each(|entry| self.remove(entry));
        Ok(())
    }

    fn file(&self, sha256: &str) -> PathBuf {
        self.folder.join(format!("{sha256}{EXTENSION}"))
    }

    /// Deletes the file of a dropped entry, unless another entry has the same completions.
    fn remove(&self, entry: &RolloutLogEntry) {
        if self.entries.values().any(|other| other.sha256 == entry.sha256) {
            return;
        }
        self.delete(&self.file(&entry.sha256));
    }

    fn delete(&self, file: &Path) {
        if let Err(e) = fs::remove_file(file)
            && e.kind() != ErrorKind::NotFound
        {
            tracing::warn!("{} is no longer needed and can't be removed: {e}", printable_path(file));
        }
    }
}

fn line_of(entry: &RolloutLogEntry) -> Result<String> {
    serde_json::to_string(entry).map_err(|e| Error::encoding("a line of the rollout log", &e))
}

/// Returns whether the last line of a file is incomplete, as after a power failure.
fn is_cut_off(lines: &mut fs::File) -> io::Result<bool> {
    if lines.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    lines.seek(SeekFrom::End(-1))?;
    lines.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Returns whether a text can be a SHA-256, and so the name of a file in the log's folder.
fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::EpisodeOutcome;
    use crate::plugin::{Metric, Reduction};
    use crate::rollout::Rollout;

    fn generation(token: u32) -> LoggedGeneration {
        let rollout = Rollout { tokens: vec![token, 2], logp: vec![-0.1, f32::MIN_POSITIVE], ..Rollout::default() };
        LoggedGeneration { rollouts: vec![rollout], episodes: vec![EpisodeOutcome::default()], metrics: Vec::new() }
    }

    fn append(log: &mut RolloutLog, key: GenerationKey, version: u64, token: u32) {
        let entry = |sha256| RolloutLogEntry {
            key,
            version,
            weights: "w".into(),
            prompts: "p".into(),
            sampling: "s".into(),
            completions: 1,
            sha256,
        };
        log.append(&generation(token), entry).unwrap();
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().filter(|f| f.as_ref().unwrap().file_name().to_str().unwrap().ends_with(EXTENSION)).count()
    }

    #[test]
    fn a_log_is_read_as_it_was_written_and_a_key_has_one_generation() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("rollouts");
        let mut log = RolloutLog::open(folder.clone()).unwrap();
        append(&mut log, GenerationKey::Train { generation: 0 }, 0, 5);
        append(&mut log, GenerationKey::Train { generation: 1 }, 1, 6);
        append(&mut log, GenerationKey::Train { generation: 1 }, 1, 7);
        // Equal completions under another key share a file.
        append(&mut log, GenerationKey::Eval { generation: u64::MAX, step: 1, of: "p".into() }, 1, 7);
        let again = RolloutLog::open(folder.clone()).unwrap();
        assert_eq!((again.generations(), files(&folder)), (2, 2));
        let entry = again.find(&GenerationKey::Train { generation: 1 }).unwrap();
        assert_eq!(again.read(entry).unwrap(), generation(7));
        assert_eq!(again.entries, log.entries);
    }

    #[test]
    fn what_is_forgotten_leaves_no_file_and_what_stays_is_read() {
        let place = tempfile::tempdir().unwrap();
        let mut log = RolloutLog::open(place.path().to_owned()).unwrap();
        for generation in 0..4 {
            append(&mut log, GenerationKey::Train { generation }, generation, 5 + generation as u32);
            append(
                &mut log,
                GenerationKey::Eval { generation: 9, step: generation, of: "p".into() },
                generation,
                50 + generation as u32,
            );
        }
        log.forget_before(3, 2).unwrap();
        assert_eq!(files(place.path()), 3);
        let again = RolloutLog::open(place.path().to_owned()).unwrap();
        assert_eq!(again.entries, log.entries);
        assert!(again.entries.values().all(|entry| again.read(entry).is_ok()));
        assert!(again.find(&GenerationKey::Train { generation: 2 }).is_none());
    }

    #[test]
    fn a_damaged_log_says_so_and_reads_nothing_outside_its_folder() {
        let place = tempfile::tempdir().unwrap();
        let mut log = RolloutLog::open(place.path().to_owned()).unwrap();
        append(&mut log, GenerationKey::Train { generation: 0 }, 0, 5);
        let entry = log.find(&GenerationKey::Train { generation: 0 }).unwrap().clone();
        let file = log.file(&entry.sha256);
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert!(log.read(&entry).unwrap_err().to_string().contains("damaged or changed"));
        fs::remove_file(&file).unwrap();
        assert!(log.read(&entry).is_err());
        let outside = RolloutLogEntry { sha256: "../secret".into(), ..entry };
        let half = r#"{"phase":"train","generation":0,"version""#;
        fs::write(place.path().join(INDEX), format!("{}\n{half}", line_of(&outside).unwrap())).unwrap();
        let mut log = RolloutLog::open(place.path().to_owned()).unwrap();
        assert!(log.entries.is_empty());
        // After a partial line, the next line starts on its own.
        append(&mut log, GenerationKey::Train { generation: 4 }, 4, 5);
        assert_eq!(RolloutLog::open(place.path().to_owned()).unwrap().entries, log.entries);
    }

    #[test]
    fn metrics_whose_names_hide_characters_are_refused() {
        let metric = |name: &str| Metric { name: name.into(), value: 1.0, weight: 1.0, reduction: Reduction::Mean };
        let read = |name: &str| {
            let metrics = vec![LoggedMetric::new(&metric(name)).unwrap()];
            LoggedGeneration::parse(&LoggedGeneration { metrics, ..generation(5) }.to_bytes().unwrap())
        };
        assert_eq!(read("agent/calls").unwrap().metrics.len(), 1);
        assert!(read("agent\u{200b}/calls").unwrap_err().contains("a metric is named"));
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let mut log = RolloutLog::open(place.path().to_owned()).unwrap();
        append(&mut log, GenerationKey::Train { generation: 0 }, 0, 5);
        // A file whose line was not written any more, one that was not renamed any more, and others' files.
        let orphan = format!("{}{EXTENSION}", "0123456789abcdef".repeat(4));
        let names = [orphan.as_str(), ".rlhost-abc123.tmp", "notes.txt", "mine.safetensors", ".hidden.tmp"];
        names.iter().for_each(|name| fs::write(place.path().join(name), "x").unwrap());
        fs::create_dir(place.path().join("unfinished-0")).unwrap();
        let again = RolloutLog::open(place.path().to_owned()).unwrap();
        again.remove_leftovers();
        let there = names.map(|name| place.path().join(name).exists());
        assert_eq!(there, [false, false, true, true, true]);
        assert_eq!(again.read(&again.entries[&GenerationKey::Train { generation: 0 }]).unwrap(), generation(5));
        assert!(place.path().join("unfinished-0").exists());
    }

    #[cfg(unix)]
    #[test]
    fn nothing_is_removed_through_a_link() {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut log = RolloutLog::open(other.path().to_owned()).unwrap();
        append(&mut log, GenerationKey::Train { generation: 0 }, 0, 5);
        let (outer, inner) = (place.path().join("rollouts"), place.path().join("rollouts/inner"));
        std::os::unix::fs::symlink(other.path(), &outer).unwrap();
        let said = |log: Result<RolloutLog>| log.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(said(RolloutLog::open(outer.clone())).contains("a link or a file"));
        assert!(said(RolloutLog::open_inner(inner.clone())).contains("a link or a file"));
        fs::remove_file(&outer).unwrap();
        fs::create_dir(&outer).unwrap();
        std::os::unix::fs::symlink(other.path(), &inner).unwrap();
        assert!(said(RolloutLog::open_inner(inner)).contains("a link or a file"));
        // The link is created later.
        let mut open = RolloutLog { folder: outer.clone(), is_inner: false, entries: log.entries.clone() };
        fs::remove_dir_all(&outer).unwrap();
        std::os::unix::fs::symlink(other.path(), &outer).unwrap();
        assert!(open.clear().is_err());
        assert_eq!(files(other.path()), 1);
    }
}
