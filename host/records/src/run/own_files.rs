//! Checks which files in a run's folder are its own. The folder may be from anybody, and a link in it may lead to a file that only its
//! reader may see: a report or a page would show that file to others.

use crate::config::json_lines::{self, UnreadLines};
use serde_json::{Map, Value};
use std::fs;
use std::io;
use std::path::Path;

/// Rejects a file of a run's folder that is a link, or that is reached through one below that folder. Accepts a missing file.
///
/// # Errors
/// If the file is such a link, or this can't be determined.
pub fn ensure_own_file(run: &Path, file: &Path) -> io::Result<()> {
    let below = file.strip_prefix(run).map_err(|_| invalid("it is not in the run's folder"))?;
    let mut place = run.to_owned();
    for part in below {
        place.push(part);
        let found = match fs::symlink_metadata(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        if found.is_symlink() {
            return Err(invalid("it is a link, which is not followed in a run's folder: put the file itself there"));
        }
    }
    Ok(())
}

/// Calls `take` with each object in a JSON Lines file of a run's folder, unless the file is a link.
///
/// # Errors
/// If the file is missing, is not a regular file, is a link or can't be read.
pub fn each_own_line(run: &Path, file: &Path, take: impl FnMut(Map<String, Value>)) -> io::Result<UnreadLines> {
    ensure_own_file(run, file)?;
    json_lines::for_each_object(file, take)
}

fn invalid(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, detail)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_below_a_runs_folder_lead_nowhere() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir_all(at("elsewhere")).unwrap();
        fs::create_dir_all(at("run/folder")).unwrap();
        for name in ["elsewhere/file", "run/file", "run/folder/file"] {
            fs::write(at(name), "x").unwrap();
        }
        symlink(at("elsewhere/file"), at("run/link")).unwrap();
        symlink(at("elsewhere"), at("run/linked")).unwrap();
        symlink(at("nowhere"), at("run/dangling")).unwrap();
        // The path of the folder itself may contain a link.
        symlink(at("run"), at("other-run")).unwrap();
        for name in ["file", "folder/file", "missing", "missing/file"] {
            assert!(ensure_own_file(&at("run"), &at("run").join(name)).is_ok(), "{name}");
            assert!(ensure_own_file(&at("other-run"), &at("other-run").join(name)).is_ok(), "{name}");
        }
        for name in ["link", "linked/file", "dangling"] {
            let error = ensure_own_file(&at("run"), &at("run").join(name)).unwrap_err();
            assert!(error.to_string().contains("it is a link"), "{name}: {error}");
        }
        assert!(ensure_own_file(&at("run"), &at("elsewhere/file")).is_err());
    }
}
