//! Parts of a checkpoint that the ranks of a run write in parallel. The ranks share the run's folder and exchange no messages, so training
//! continues meanwhile, and a failure can be saved too.

use super::error::Error;
use super::folder::{discard, mark};
use crate::run::RunFiles;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Prefix of the names of parts' folders; see [`super::folder::sweep`].
const PART: &str = ".checkpoint-part-";

/// Suffix of the name of an unfinished part.
const WRITING: &str = ".writing";

/// The only file of a part that could not be written. It has the reason.
const FAILED: &str = "failed";

/// Interval at which a rank checks for the other ranks' parts.
const LOOKS: Duration = Duration::from_millis(20);

/// A checkpoint of which every rank writes a part.
#[derive(Clone, Copy, Debug)]
pub struct JointSave {
    /// Step that is saved.
    pub step: u64,
    /// Number of earlier joint saves in this process: identical on all ranks.
    pub number: u64,
}

impl JointSave {
    /// Returns the folder of a rank's part.
    fn part(self, run: &Path, rank: usize) -> PathBuf {
        run.join(format!("{PART}{rank}-{}-{}", self.step, self.number))
    }
}

/// Writes a rank's part. `fill` creates its files in a folder, at the paths that they will have in the checkpoint. If it fails, the part
/// reports that to the collecting rank.
///
/// # Errors
/// If the part can't be written, not even as a failed one.
pub fn write_part(
    run: &Path,
    save: JointSave,
    rank: usize,
    fill: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, Error> {
    let path = RunFiles(run).checkpoint(save.step);
    let io = |e: io::Error| Error::Write { path: path.clone(), detail: format!("the part of rank {rank}: {e}") };
    let finished = save.part(run, rank);
    let writing = finished.with_file_name(format!("{}{WRITING}", finished.file_name().unwrap_or_default().to_string_lossy()));
    let inside = writing.join(save.step.to_string());
    fs::create_dir(&writing).and_then(|()| mark(&writing)).and_then(|()| fs::create_dir(&inside)).map_err(io)?;
    if let Err(reason) = fill(&inside) {
        fs::remove_dir_all(&inside).and_then(|()| fs::create_dir(&inside)).map_err(io)?;
        fs::write(inside.join(FAILED), reason).map_err(io)?;
    }
    fs::rename(&writing, &finished).map_err(io)?;
    Ok(finished)
}

/// The time limit of the rank that collects parts.
#[derive(Clone, Debug)]
pub struct PartsTimeout {
    /// Maximum wait for each part.
    pub longest: Duration,
    /// Why a part will not arrive, once that is known.
    pub failure: Arc<Mutex<Option<String>>>,
}

impl PartsTimeout {
    /// Creates a limit that waits at most this long for each part.
    pub fn new(longest: Duration) -> Self {
        Self { longest, failure: Arc::default() }
    }

    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Moves the parts of these ranks into the folder `to` of a checkpoint being written, as soon as they are finished.
///
/// # Errors
/// Names the rank whose part could not be written, did not appear in time, or can't be moved.
pub fn collect_parts(run: &Path, save: JointSave, ranks: Range<usize>, to: &Path, timeout: &PartsTimeout) -> Result<(), String> {
    let begun = Instant::now();
    for rank in ranks {
        let part = save.part(run, rank);
        let inside = part.join(save.step.to_string());
        while !inside.is_dir() {
            if let Some(reason) = timeout.failure() {
                return Err(reason);
            }
            if !to.is_dir() {
                return Err(format!("{} is no longer there", to.display()));
            }
            if begun.elapsed() > timeout.longest {
                return Err(format!(
                    "the part of rank {rank} has not appeared in {} within {:.0} s (dist_timeout_s); all ranks must see the same folder",
                    run.display(),
                    timeout.longest.as_secs_f64()
                ));
            }
            std::thread::sleep(LOOKS);
        }
        let failed = inside.join(FAILED);
        if failed.is_file() {
            let reason = fs::read_to_string(&failed).unwrap_or_default();
            return Err(format!("rank {rank} could not write its part: {reason}"));
        }
        let moved = move_all(&inside, to).and_then(|()| discard(&part));
        moved.map_err(|e| format!("the part of rank {rank} can't be moved: {e}"))?;
    }
    Ok(())
}

/// Moves files to the same relative paths in another folder.
fn move_all(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&place)?;
            move_all(&entry.path(), &place)?;
        } else {
            fs::rename(entry.path(), place)?;
        }
    }
    Ok(())
}

/// Removes what is left of this rank's earlier parts. The rank that collects them must not be about to.
///
/// # Errors
/// If the run's folder can't be read, or a part can't be removed.
pub fn discard_parts(run: &Path, rank: usize) -> io::Result<()> {
    let own = format!("{PART}{rank}-");
    for entry in fs::read_dir(run)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&own)) {
            discard(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::sweep;
    use super::*;

    const SAVE: JointSave = JointSave { step: 7, number: 2 };

    fn fill(file: &'static str) -> impl FnOnce(&Path) -> Result<(), String> {
        move |to| {
            let text = |e: io::Error| e.to_string();
            fs::create_dir(to.join("trainer")).map_err(text)?;
            fs::write(to.join("trainer").join(file), file).map_err(text)?;
            fs::write(to.join(file), file).map_err(text)
        }
    }

    #[test]
    fn parts_are_joined_and_nothing_else_is_left() {
        let run = tempfile::tempdir().unwrap();
        let to = tempfile::tempdir_in(run.path()).unwrap();
        fill("zero")(to.path()).unwrap();
        let collect = || collect_parts(run.path(), SAVE, 1..3, to.path(), &PartsTimeout::new(Duration::from_secs(20)));
        std::thread::scope(|scope| {
            let collected = scope.spawn(collect);
            write_part(run.path(), SAVE, 2, fill("two")).unwrap();
            write_part(run.path(), SAVE, 1, fill("one")).unwrap();
            collected.join().unwrap().unwrap();
        });
        for file in ["zero", "one", "two"] {
            assert_eq!(fs::read_to_string(to.path().join(file)).unwrap(), file);
            assert_eq!(fs::read_to_string(to.path().join("trainer").join(file)).unwrap(), file);
        }
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_part_that_fails_says_so_and_one_that_does_not_come_is_named() {
        let run = tempfile::tempdir().unwrap();
        let to = tempfile::tempdir_in(run.path()).unwrap();
        let collect =
            |ranks| collect_parts(run.path(), SAVE, ranks, to.path(), &PartsTimeout::new(Duration::from_millis(50))).unwrap_err();
        write_part(run.path(), SAVE, 1, |_| Err("no space".into())).unwrap();
        assert_eq!(collect(1..2), "rank 1 could not write its part: no space");
        assert!(collect(2..3).contains("the part of rank 2 has not appeared"));
        // Nothing is taken from another save.
        let next = JointSave { number: 3, ..SAVE };
        let at_once = PartsTimeout::new(Duration::ZERO);
        assert!(collect_parts(run.path(), next, 1..2, to.path(), &at_once).unwrap_err().contains("not appeared"));
        // A part that will not arrive is not waited for.
        let told = PartsTimeout::new(Duration::from_secs(1000));
        *told.failure.lock().unwrap() = Some("rank 1 has no room".into());
        assert_eq!(collect_parts(run.path(), next, 1..2, to.path(), &told).unwrap_err(), "rank 1 has no room");
        let gone = run.path().join("gone");
        let patient = PartsTimeout::new(Duration::from_secs(1000));
        assert!(collect_parts(run.path(), next, 1..2, &gone, &patient).unwrap_err().contains("no longer there"));
        // A newer part leaves the older one, which may be being collected; each rank removes its own afterwards.
        write_part(run.path(), next, 1, fill("one")).unwrap();
        write_part(run.path(), next, 2, fill("two")).unwrap();
        let left = || fs::read_dir(run.path()).unwrap().count();
        assert_eq!(left(), 4);
        discard_parts(run.path(), 1).unwrap();
        assert_eq!(left(), 2);
        sweep(run.path()).unwrap();
        assert_eq!(left(), 1);
    }
}
