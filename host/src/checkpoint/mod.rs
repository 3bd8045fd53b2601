//! Checkpoint folders of a run: written aside, summed, then renamed into place, so that a folder
//! with a checkpoint's name is whole or tells that it is not. Only this room writes them.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const MANIFEST: &str = "manifest.json";

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be written.
    #[error("can't write checkpoint {}: {detail}", path.display())]
    Write {
        /// The checkpoint's folder.
        path: PathBuf,
        /// What went wrong.
        detail: String,
    },
    /// It is damaged or foreign.
    #[error("checkpoint {} can't be used: {detail}", path.display())]
    Damaged {
        /// The checkpoint's folder.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A run has none that is whole.
    #[error("{}: {detail}", run.display())]
    None {
        /// The run's folder.
        run: PathBuf,
        /// What was found.
        detail: String,
    },
}

/// SHA-256 of every file of a checkpoint, by its path inside.
#[derive(Debug, Deserialize, Serialize)]
struct Manifest {
    step: u64,
    files: BTreeMap<String, String>,
}

/// Where the checkpoint of a step lies.
pub fn folder(run: &Path, step: u64) -> PathBuf {
    run.join(format!("checkpoint-{step}"))
}

/// Steps of the checkpoints in a run's folder, oldest first.
pub fn steps(run: &Path) -> io::Result<Vec<u64>> {
    let mut steps: Vec<u64> = fs::read_dir(run)?
        .filter_map(Result::ok)
        .filter_map(|e| e.file_name().to_str()?.strip_prefix("checkpoint-")?.parse().ok())
        .collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Files below `folder` by their path inside, with `/` between names.
fn files(folder: &Path, prefix: &str, into: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            files(&entry.path(), &format!("{name}/"), into)?;
        } else {
            into.insert(name, entry.path());
        }
    }
    Ok(())
}

fn sum(path: &Path) -> io::Result<String> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Sums all files, writes the manifest, and has everything on the disk before it returns.
fn seal(folder: &Path, step: u64) -> io::Result<()> {
    let mut all = BTreeMap::new();
    files(folder, "", &mut all)?;
    let mut manifest = Manifest { step, files: BTreeMap::new() };
    for (name, path) in &all {
        manifest.files.insert(name.clone(), sum(path)?);
        File::open(path)?.sync_all()?;
    }
    let path = folder.join(MANIFEST);
    fs::write(&path, serde_json::to_vec_pretty(&manifest)?)?;
    File::open(&path)?.sync_all()?;
    File::open(folder)?.sync_all()
}

/// Writes the checkpoint of `step`: `fill` puts its files into a temporary folder beside the
/// final place, which it then takes by renaming. Gives the final path.
pub fn save(run: &Path, step: u64, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, Error> {
    let path = folder(run, step);
    let fail = |detail: String| Error::Write { path: path.clone(), detail };
    let io = |e: io::Error| fail(e.to_string());
    let temporary = tempfile::Builder::new().prefix(".checkpoint-").tempdir_in(run).map_err(io)?;
    fill(temporary.path()).map_err(fail)?;
    seal(temporary.path(), step).map_err(io)?;
    if path.exists() {
        // A damaged one that a resumed run has come to again.
        fs::remove_dir_all(&path).map_err(io)?;
    }
    fs::rename(temporary.path(), &path).map_err(io)?;
    // The folder has moved; there is nothing left to clean up.
    let _ = temporary.keep();
    File::open(run).and_then(|f| f.sync_all()).map_err(io)?;
    Ok(path)
}

/// Checks a checkpoint against its manifest.
pub fn verify(path: &Path) -> Result<(), Error> {
    let damaged = |detail: String| Error::Damaged { path: path.to_owned(), detail };
    let text = fs::read(path.join(MANIFEST)).map_err(|e| damaged(format!("{MANIFEST}: {e}")))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| damaged(format!("{MANIFEST}: {e}")))?;
    if !path.ends_with(format!("checkpoint-{}", manifest.step)) {
        return Err(damaged(format!("its manifest is of step {}", manifest.step)));
    }
    for (name, wanted) in &manifest.files {
        match sum(&path.join(name)) {
            Ok(found) if found == *wanted => {}
            Ok(_) => return Err(damaged(format!("{name} has changed since it was written"))),
            Err(e) => return Err(damaged(format!("{name}: {e}"))),
        }
    }
    Ok(())
}

/// The newest whole checkpoint of a run, and what is wrong with newer ones that were passed over.
pub fn newest(run: &Path) -> Result<(u64, PathBuf, Vec<Error>), Error> {
    let none = |detail: String| Error::None { run: run.to_owned(), detail };
    let steps = steps(run).map_err(|e| none(e.to_string()))?;
    let mut passed_over = Vec::new();
    for step in steps.into_iter().rev() {
        let path = folder(run, step);
        match verify(&path) {
            Ok(()) => return Ok((step, path, passed_over)),
            Err(error) => passed_over.push(error),
        }
    }
    let reasons: Vec<String> = passed_over.iter().map(ToString::to_string).collect();
    Err(none(if reasons.is_empty() {
        "holds no checkpoint".to_owned()
    } else {
        format!("holds no whole checkpoint: {}", reasons.join("; "))
    }))
}

/// Removes the oldest checkpoints beyond the newest `limit`.
pub fn retain(run: &Path, limit: usize) -> io::Result<Vec<u64>> {
    let steps = steps(run)?;
    let old = &steps[..steps.len().saturating_sub(limit.max(1))];
    for step in old {
        fs::remove_dir_all(folder(run, *step))?;
    }
    Ok(old.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fill(to: &Path) -> Result<(), String> {
        fs::create_dir(to.join("plugins"))
            .and_then(|()| fs::write(to.join("plugins/p.wasm"), "abc"))
            .map_err(|e| e.to_string())?;
        fs::write(to.join("x"), "some bytes").map_err(|e| e.to_string())
    }

    #[test]
    fn a_failed_save_leaves_nothing_and_retention_keeps_the_newest() {
        let run = tempfile::tempdir().unwrap();
        for step in [5, 10, 100] {
            save(run.path(), step, fill).unwrap();
        }
        assert!(save(run.path(), 7, |_| Err("no".into())).unwrap_err().to_string().contains("checkpoint-7: no"));
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 3);
        assert_eq!(retain(run.path(), 2).unwrap(), [5]);
        assert_eq!(steps(run.path()).unwrap(), [10, 100]);
    }

    proptest! {
        #[test]
        fn any_flipped_or_cut_byte_is_found_and_the_one_before_is_taken(file in 0usize..3, at: prop::sample::Index, cut: bool) {
            let run = tempfile::tempdir().unwrap();
            for step in [1, 2] {
                save(run.path(), step, fill).unwrap();
            }
            let path = folder(run.path(), 2).join(["x", "plugins/p.wasm", MANIFEST][file]);
            let mut bytes = fs::read(&path).unwrap();
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 0x11;
            }
            fs::write(&path, bytes).unwrap();
            let (step, _, passed_over) = newest(run.path()).unwrap();
            prop_assert_eq!((step, passed_over.len()), (1, 1));
        }
    }
}
