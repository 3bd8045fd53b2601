//! The record of what a teacher on a server said: a line of JSON for each text. A resumed run and a replay learn from the same numbers,
//! although a server may compute others when it is asked again.

use crate::config::{files, hex};
use crate::ops::top_divergence::LikelyToken;
use crate::run::RunFiles;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Maximum length of a line, and maximum size of a record, in bytes.
const LONGEST_LINE: u64 = 64 << 20;
const LARGEST: u64 = 8 << 30;

/// Answers of a teacher, in a file of the run's folder.
pub(super) struct TeacherRecord {
    path: PathBuf,
    file: File,
    index: RecordIndex,
    /// Whether the record is full, which was said.
    is_full: bool,
}

/// Where the answers to texts are in a file.
#[derive(Default)]
struct RecordIndex {
    /// The line of each text.
    places: HashMap<String, LinePlace>,
    /// Length of the complete lines.
    length: u64,
}

/// Place of a line in a file, in bytes.
#[derive(Clone, Copy)]
struct LinePlace {
    at: u64,
    length: u64,
}

/// What a teacher says of a completion.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(super) struct CompletionScores {
    /// Log-probabilities of its tokens.
    pub logp: Vec<f32>,
    /// The likeliest tokens in place of each; empty if they were not requested.
    pub likely: Vec<Vec<LikelyToken>>,
}

/// A line of the record. Log-probabilities are bits.
#[derive(Deserialize, Serialize)]
struct TeacherAnswer {
    /// Digest of the request, as from [`ScoredText::key`].
    text: String,
    logp: Vec<u32>,
    /// Ids and log-probabilities of the likeliest tokens in place of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    likely: Vec<Vec<(u32, u32)>>,
}

impl TeacherAnswer {
    fn new(text: String, scored: &CompletionScores) -> Self {
        let likely = scored.likely.iter().map(|tokens| tokens.iter().map(|token| (token.id, token.logp.to_bits())).collect());
        Self { text, logp: scored.logp.iter().map(|logp| logp.to_bits()).collect(), likely: likely.collect() }
    }

    fn scored(self) -> CompletionScores {
        let token = |(id, bits)| LikelyToken { id, logp: f32::from_bits(bits) };
        CompletionScores {
            logp: self.logp.into_iter().map(f32::from_bits).collect(),
            likely: self.likely.into_iter().map(|tokens| tokens.into_iter().map(token).collect()).collect(),
        }
    }
}

/// A text that a teacher scores from token `first`, with this number of likeliest tokens.
pub(super) struct ScoredText<'a> {
    pub teacher: &'a str,
    pub tokens: &'a [u32],
    pub first: usize,
    pub likely: usize,
}

impl ScoredText<'_> {
    /// Returns the digest by which the answer is found again.
    pub(super) fn key(&self) -> String {
        let mut hash = Sha256::new();
        hash.update((self.teacher.len() as u64).to_le_bytes());
        hash.update(self.teacher.as_bytes());
        hash.update((self.first as u64).to_le_bytes());
        self.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        if self.likely > 0 {
            hash.update(b"likely");
            hash.update((self.likely as u64).to_le_bytes());
        }
        hex(&hash.finalize())
    }
}

impl TeacherRecord {
    /// Opens the record of this rank's texts in a run's folder, or creates it.
    ///
    /// # Errors
    /// If it can't be read or written.
    pub(super) fn open(run: &Path, rank: usize) -> Result<Self> {
        let folder = RunFiles(run).teacher_answers();
        let path = folder.join(format!("{rank}.jsonl"));
        let fail = |source: io::Error| Error::Write { path: path.clone(), source };
        for folder in [RunFiles(run).answers(), folder] {
            files::create_folder(&folder).map_err(fail)?;
        }
        let file = files::open_for_writing(&path, File::options().read(true).write(true)).map_err(fail)?;
        let index = RecordIndex::read(&file).map_err(|e| Error::unusable(&path, e))?;
        // The last line may have been cut off.
        file.set_len(index.length).map_err(fail)?;
        Ok(Self { path, file, index, is_full: false })
    }

    /// Adds all answers in the records of another run, of all its ranks.
    ///
    /// # Errors
    /// If they can't be read, or not written.
    pub(super) fn adopt(&mut self, run: &Path) -> Result<()> {
        let folder = RunFiles(run).teacher_answers();
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::unusable(&folder, e)),
        };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "jsonl")) {
            let file = files::open(&path).map_err(|e| Error::unusable(&path, e))?;
            for (key, place) in RecordIndex::read(&file).map_err(|e| Error::unusable(&path, e))?.places {
                if let Some(scored) = answer_at(&file, place).map_err(|e| Error::unusable(&path, e))? {
                    self.append([(key, scored)].into_iter())?;
                }
            }
        }
        Ok(())
    }

    /// Returns what was recorded of a text's completion, if anything was.
    ///
    /// # Errors
    /// If the record can't be read.
    pub(super) fn find(&self, key: &str) -> Result<Option<CompletionScores>> {
        let Some(place) = self.index.places.get(key) else { return Ok(None) };
        answer_at(&self.file, *place).map_err(|e| Error::unusable(&self.path, e))
    }

    /// Records answers, syncing them to disk. The first answer to a text stays. If the record is full, a warning says so.
    ///
    /// # Errors
    /// If they can't be written.
    pub(super) fn append(&mut self, answers: impl Iterator<Item = (String, CompletionScores)>) -> Result<()> {
        let fail = |source: io::Error| Error::Write { path: self.path.clone(), source };
        let (mut lines, mut places) = (Vec::new(), Vec::new());
        for (text, scored) in answers.filter(|(key, _)| !self.index.places.contains_key(key)) {
            let begin = lines.len();
            serde_json::to_writer(&mut lines, &TeacherAnswer::new(text.clone(), &scored)).map_err(|e| fail(e.into()))?;
            lines.push(b'\n');
            let (at, length) = (self.index.length + begin as u64, (lines.len() - begin) as u64);
            places.push((text, LinePlace { at, length }));
        }
        if self.index.length + lines.len() as u64 > LARGEST {
            if !std::mem::replace(&mut self.is_full, true) {
                let shown = self.path.display();
                tracing::warn!("{shown} is full ({} GiB): a run that resumes asks the teacher again", LARGEST >> 30);
            }
            return Ok(());
        }
        self.file.seek(SeekFrom::Start(self.index.length)).map_err(fail)?;
        self.file.write_all(&lines).and_then(|()| self.file.sync_data()).map_err(fail)?;
        self.index.length += lines.len() as u64;
        self.index.places.extend(places);
        Ok(())
    }
}

impl RecordIndex {
    /// Finds the answers in a file. Unreadable lines are left out.
    fn read(file: &File) -> io::Result<Self> {
        let (mut index, mut bytes) = (Self::default(), Vec::new());
        let mut reader = BufReader::new(file);
        while index.length < LARGEST {
            bytes.clear();
            let length = (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut bytes)? as u64;
            if bytes.last() != Some(&b'\n') {
                break;
            }
            if let Ok(answer) = serde_json::from_slice::<TeacherAnswer>(&bytes) {
                index.places.entry(answer.text).or_insert(LinePlace { at: index.length, length });
            }
            index.length += length;
        }
        Ok(index)
    }
}

/// Reads the answer in the line at this place; `None` if the line has changed.
fn answer_at(mut file: &File, LinePlace { at, length }: LinePlace) -> io::Result<Option<CompletionScores>> {
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice::<TeacherAnswer>(&bytes).ok().map(TeacherAnswer::scored))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_is_found_again_to_the_bit() {
        let (run, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let likely = vec![vec![LikelyToken { id: 7, logp: -1e-38 }, LikelyToken { id: 2, logp: -3.25 }], Vec::new()];
        let scored = CompletionScores { logp: vec![f32::MIN_POSITIVE / 2.0, -1e30], likely };
        let of = |logp: f32| CompletionScores { logp: vec![logp], likely: Vec::new() };
        let key = |teacher, tokens: &[u32], first, likely| ScoredText { teacher, tokens, first, likely }.key();
        let [a, b, c] = [key("t", &[1, 2, 3], 1, 2), key("t", &[1, 2, 3], 2, 2), key("t", &[1, 2], 1, 2)];
        assert!(a != b && a != c && a != key("u", &[1, 2, 3], 1, 2) && a != key("t", &[1, 2, 3], 1, 0));
        let mut record = TeacherRecord::open(run.path(), 0).unwrap();
        record.append([(a.clone(), scored.clone()), (b.clone(), of(-2.0))].into_iter()).unwrap();
        // The first answer stays.
        record.append([(a.clone(), of(-3.0))].into_iter()).unwrap();
        let found = |record: &TeacherRecord, key: &str| record.find(key).unwrap();
        assert_eq!(found(&record, &a), Some(scored.clone()));
        // A line that was cut off is left out, and the next one is whole.
        let file = RunFiles(run.path()).teacher_answers().join("0.jsonl");
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 3]).unwrap();
        let mut again = TeacherRecord::open(run.path(), 0).unwrap();
        assert_eq!((found(&again, &a), found(&again, &b)), (Some(scored.clone()), None));
        again.append([(c.clone(), of(-4.0))].into_iter()).unwrap();
        let mut adopted = TeacherRecord::open(other.path(), 1).unwrap();
        adopted.adopt(run.path()).unwrap();
        assert_eq!((found(&adopted, &a), found(&adopted, &c)), (Some(scored), Some(of(-4.0))));
    }
}
