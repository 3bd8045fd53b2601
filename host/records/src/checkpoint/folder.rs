//! Checkpoint folders of a run: creates, finds, renames and removes them.

use super::error::Error;
use super::manifest::{Manifest, difference, seal, sync_folder, verify};
use crate::run::{RunFiles, is_running};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Prefix of the name of a folder in which a checkpoint is written or removed.
const TEMPORARY: &str = ".checkpoint-";

/// Marker file in such a folder, under a name that nobody else uses.
const MARK: &str = ".rlhost";

/// Prefix of the name of a superseded checkpoint.
const ASIDE: &str = "superseded-";

/// Writes the checkpoint of `step`. `fill` creates its files in a temporary folder, which is then renamed to its final path, or exchanged
/// with the run's earlier checkpoint of that step. Returns the final path.
pub fn save(run: &Path, step: u64, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, Error> {
    let path = RunFiles(run).checkpoint(step);
    let fail = |detail: String| Error::Write { path: path.clone(), detail };
    let io = |e: io::Error| fail(e.to_string());
    let temporary = temporary_in(run).map_err(io)?;
    let inside = temporary.join(step.to_string());
    let written = fs::create_dir(&inside).map_err(io).and_then(|()| fill(&inside).map_err(fail));
    let written = written.and_then(|()| seal(&inside, step).and_then(|()| put_in_place(&inside, &path)).map_err(io));
    if let Err(e) = discard(&temporary) {
        tracing::warn!("{} is left over from a checkpoint: {e}", temporary.display());
    }
    written?;
    sync_folder(run).map_err(io)?;
    Ok(path)
}

/// Replaces an intact checkpoint by a new folder, which `fill` writes, given the old manifest. An interruption leaves one of the two in
/// place.
///
/// # Errors
/// If the checkpoint was changed since it was written, or can't be replaced.
pub fn replace(checkpoint: &Path, fill: impl FnOnce(&Manifest, &Path) -> Result<(), String>) -> Result<(), Error> {
    let fail = |detail: String| Error::Write { path: checkpoint.to_owned(), detail };
    let io = |e: io::Error| fail(e.to_string());
    let manifest = verify(checkpoint)?;
    if let Some(detail) = difference(checkpoint) {
        return Err(Error::Damaged { path: checkpoint.to_owned(), detail });
    }
    let path = std::path::absolute(checkpoint).map_err(io)?;
    let run = path.parent().unwrap_or(&path);
    let temporary = temporary_in(run).map_err(io)?;
    let inside = temporary.join(manifest.step.to_string());
    let written = fs::create_dir(&inside).map_err(io).and_then(|()| fill(&manifest, &inside).map_err(fail));
    let written = written.and_then(|()| seal(&inside, manifest.step).and_then(|()| exchange(&inside, &path)).map_err(io));
    if let Err(e) = discard(&temporary) {
        tracing::warn!("{} is left over from a checkpoint: {e}", temporary.display());
    }
    written?;
    sync_folder(run).map_err(io)
}

/// Renames a complete checkpoint to its final path. Replaces the run's own, unchanged checkpoint of that step: a stop during an evaluation
/// saves one, which is saved again after the evaluation. An intact checkpoint with other people's files stays.
fn put_in_place(complete: &Path, path: &Path) -> io::Result<()> {
    let Err(e) = fs::rename(complete, path) else { return Ok(()) };
    if !path.is_dir() {
        return Err(e);
    }
    // The existing checkpoint can also be resumed, and evaluates again.
    match difference(path) {
        None => {
            if let Err(unsupported) = exchange(complete, path) {
                tracing::debug!("{} is left as it was: {e}; {unsupported}", path.display());
            }
            Ok(())
        }
        Some(difference) if verify(path).is_ok() => {
            tracing::warn!("{} is left as it was instead of being saved again: {difference}", path.display());
            Ok(())
        }
        Some(difference) => Err(io::Error::new(e.kind(), format!("{e}: {difference}"))),
    }
}

/// Exchanges two folders atomically, so that after an interruption each path has one of them.
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (one, other);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Creates a folder in which a checkpoint is written or removed. The marker file distinguishes it from other people's folders.
pub(super) fn temporary_in(run: &Path) -> io::Result<PathBuf> {
    let temporary = tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(run)?;
    mark(temporary.path())?;
    Ok(temporary.keep())
}

/// Marks a folder in which a checkpoint, or a part of one, is written or removed.
pub(super) fn mark(temporary: &Path) -> io::Result<()> {
    fs::write(temporary.join(MARK), "A checkpoint is written or removed here. Left over, it goes when the run resumes.\n")
}

/// Removes such a folder, its marker last, so that the remains of an interrupted removal are recognized.
pub(super) fn discard(temporary: &Path) -> io::Result<()> {
    for entry in fs::read_dir(temporary)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    fs::remove_dir_all(temporary)
}

/// Finds the newest intact checkpoint of a run. Also returns the errors of the newer ones that were skipped.
pub fn newest(run: &Path) -> Result<(u64, PathBuf, Vec<Error>), Error> {
    let none = |detail: String| Error::None { run: run.to_owned(), detail };
    let steps = RunFiles(run).steps().map_err(|e| none(e.to_string()))?;
    let mut passed_over = Vec::new();
    for step in steps.into_iter().rev() {
        let path = RunFiles(run).checkpoint(step);
        match verify(&path) {
            Ok(_) => return Ok((step, path, passed_over)),
            Err(error) => passed_over.push(error),
        }
    }
    if passed_over.is_empty() && is_running(run) == Some(true) {
        return Err(Error::Unsaved { run: run.to_owned() });
    }
    let reasons: Vec<String> = passed_over.iter().map(ToString::to_string).collect();
    Err(none(if reasons.is_empty() {
        "has no checkpoint".to_owned()
    } else {
        format!("has no intact checkpoint: {}", reasons.join("; "))
    }))
}

/// Renames the checkpoints after `step`, to which the run goes back: damaged ones, and those of steps that will be repeated. Returns their
/// steps and new paths.
pub fn set_aside(run: &Path, step: u64) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut moved = Vec::new();
    for later in RunFiles(run).steps()?.into_iter().filter(|s| *s > step) {
        let name =
            |n: usize| run.join(format!("{ASIDE}checkpoint-{later}{}", if n == 0 { String::new() } else { format!("-{n}") }));
        let Some(free) = (0..).map(name).find(|path| !path.exists()) else { continue };
        fs::rename(RunFiles(run).checkpoint(later), &free)?;
        moved.push((later, free));
    }
    Ok(moved)
}

/// Removes what an interrupted save has left, but nothing that somebody else created. No other process may be saving in this folder.
pub fn sweep(run: &Path) -> io::Result<()> {
    for entry in fs::read_dir(run)?.filter_map(Result::ok) {
        let left = entry.file_name().to_str().is_some_and(|name| name.starts_with(TEMPORARY));
        if !left || !entry.file_type()?.is_dir() {
            continue;
        }
        let path = entry.path();
        // An interruption may have come before the marker was created.
        let removed = if is_ours(&path)? { discard(&path) } else { fs::remove_dir(&path) };
        match removed {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                tracing::warn!(
                    "{} is kept: it is called like the remains of a checkpoint, but rlhost did not make it",
                    path.display()
                );
            }
            // Remains that can't be removed don't prevent the run from continuing.
            Err(e) => tracing::warn!("{} is left over from a checkpoint and can't be removed: {e}", path.display()),
        }
    }
    Ok(())
}

/// Returns whether a folder has the marker and otherwise only folders of steps.
fn is_ours(temporary: &Path) -> io::Result<bool> {
    let mut marked = false;
    for entry in fs::read_dir(temporary)? {
        let entry = entry?;
        let (name, of) = (entry.file_name(), entry.file_type()?);
        let is_mark = name == MARK && of.is_file();
        marked |= is_mark;
        let is_step = of.is_dir() && name.to_str().is_some_and(|name| name.parse::<u64>().is_ok());
        if !is_mark && !is_step {
            return Ok(false);
        }
    }
    Ok(marked)
}

#[cfg(test)]
mod tests {
    use super::super::required_files::write_least;
    use super::*;
    use proptest::prelude::*;

    fn fill(to: &Path) -> Result<(), String> {
        write_least(to);
        fs::create_dir(to.join("plugins"))
            .and_then(|()| fs::write(to.join("plugins/p.wasm"), "abc"))
            .map_err(|e| e.to_string())?;
        fs::write(to.join("x"), "some bytes").map_err(|e| e.to_string())
    }

    fn run_with(steps: &[u64]) -> tempfile::TempDir {
        let run = tempfile::tempdir().unwrap();
        for step in steps {
            save(run.path(), *step, fill).unwrap();
        }
        run
    }

    #[test]
    fn a_run_that_goes_on_can_be_told_to_save_its_first_checkpoint() {
        let run = tempfile::tempdir().unwrap();
        let said = || newest(run.path()).unwrap_err().to_string();
        let path = run.path().display();
        assert_eq!(said(), format!("{path}: has no checkpoint"));
        let held = crate::run::lock(run.path()).unwrap();
        assert_eq!(said(), format!("{path} has no checkpoint yet; `rlhost control {path} save` makes one"));
        drop(held);
        assert_eq!(said(), format!("{path}: has no checkpoint"));
    }

    #[test]
    fn a_failed_save_leaves_nothing() {
        let run = run_with(&[5]);
        assert!(save(run.path(), 7, |_| Err("no".into())).unwrap_err().to_string().contains("checkpoint-7: no"));
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_checkpoint_of_the_run_is_replaced_and_nothing_else_is() {
        let run = run_with(&[5]);
        let other = |to: &Path| fill(to).and_then(|()| fs::write(to.join("x"), "other bytes").map_err(|e| e.to_string()));
        let path = save(run.path(), 5, other).unwrap();
        assert_eq!(fs::read(path.join("x")).unwrap(), b"other bytes");
        assert_eq!(newest(run.path()).unwrap().0, 5);
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1);
        fs::write(path.join("notes"), "mine").unwrap();
        save(run.path(), 5, fill).unwrap();
        assert_eq!(fs::read(path.join("x")).unwrap(), b"other bytes");
        assert_eq!(fs::read(path.join("notes")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1);
        // A checkpoint that can't be resumed does not count as saved.
        fs::write(path.join("x"), "broken").unwrap();
        let error = save(run.path(), 5, fill).unwrap_err().to_string();
        assert!(error.contains("checkpoint-5"), "{error}");
        assert_eq!(fs::read(path.join("x")).unwrap(), b"broken");
    }

    #[test]
    fn names_that_only_look_like_a_checkpoints_are_none() {
        let run = run_with(&[7]);
        for name in ["checkpoint-007", "checkpoint-+8", "checkpoint-9x", "checkpoint-", "superseded-checkpoint-3"] {
            fs::create_dir(run.path().join(name)).unwrap();
        }
        fs::write(run.path().join(".checkpoint-x"), "of somebody else").unwrap();
        sweep(run.path()).unwrap();
        assert!(run.path().join(".checkpoint-x").exists());
        assert_eq!(RunFiles(run.path()).steps().unwrap(), [7]);
    }

    #[test]
    fn a_run_that_goes_back_keeps_its_later_checkpoints_out_of_the_way() {
        let run = run_with(&[1, 2, 3]);
        fs::create_dir(run.path().join(".checkpoint-half")).unwrap();
        sweep(run.path()).unwrap();
        set_aside(run.path(), 1).unwrap();
        save(run.path(), 2, fill).unwrap();
        assert_eq!(set_aside(run.path(), 1).unwrap()[0].1, run.path().join("superseded-checkpoint-2-1"));
        assert_eq!(RunFiles(run.path()).steps().unwrap(), [1]);
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 4);
    }

    #[test]
    fn remains_of_a_save_go_and_what_somebody_else_called_so_stays() {
        let run = tempfile::tempdir().unwrap();
        let at = |name: &str| run.path().join(name);
        let half = temporary_in(run.path()).unwrap();
        fs::create_dir(half.join("7")).unwrap();
        fill(&half.join("7")).unwrap();
        let added = temporary_in(run.path()).unwrap();
        fs::create_dir(added.join("notes")).unwrap();
        fs::create_dir(at(".checkpoint-notes")).unwrap();
        fs::write(at(".checkpoint-notes/mine.txt"), "mine").unwrap();
        fs::create_dir(at(".checkpoint-empty")).unwrap();
        sweep(run.path()).unwrap();
        assert!(!half.exists() && !at(".checkpoint-empty").exists());
        assert!(at(".checkpoint-notes/mine.txt").exists() && added.join("notes").exists());
    }

    proptest! {
        #[test]
        fn any_flipped_or_cut_byte_is_found_and_the_one_before_is_taken(
            file in 0usize..3, at: prop::sample::Index, flip in 1u8..=255, cut: bool
        ) {
            let run = run_with(&[1, 2]);
            let path = RunFiles(run.path()).checkpoint(2).join(["x", "plugins/p.wasm", "trainer/manifest.json"][file]);
            let mut bytes = fs::read(&path).unwrap();
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= flip;
            }
            fs::write(&path, bytes).unwrap();
            let (step, _, passed_over) = newest(run.path()).unwrap();
            prop_assert_eq!((step, passed_over.len()), (1, 1));
        }
    }
}
