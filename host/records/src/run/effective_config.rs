//! The configuration that is in effect in a run. `config.toml` may have been edited: an edit that the run rejected, or that no process has
//! applied yet, is in that file but is not in effect.

use super::{CheckpointFiles, RunFiles, ensure_own_file};
use crate::config::{LARGEST, files};
use std::io;
use std::path::{Path, PathBuf};

/// The configuration in effect in a run, for everything that reads its folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveConfig {
    /// Text of the configuration.
    pub text: String,
    /// Note that config.toml differs, if it does.
    pub note: Option<String>,
}

impl EffectiveConfig {
    /// Reads the configuration of a run.
    ///
    /// # Errors
    /// If config.toml can't be read or is a link, or the run has no configuration at all.
    pub fn read(run: &Path) -> io::Result<Self> {
        let edited = match read(run, &RunFiles(run).config()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            text => Some(text?),
        };
        let path = Self::path(run);
        let text = match &edited {
            Some(edited) if path == RunFiles(run).config() => edited.clone(),
            _ => read(run, &path)?,
        };
        let differs = edited.as_ref().is_some_and(|edited| match (edited.parse::<toml::Table>(), text.parse::<toml::Table>()) {
            (Ok(edited), Ok(own)) => edited != own,
            _ => *edited != text,
        });
        let note = differs.then(|| {
            let file = RunFiles::CONFIG;
            format!(
                "{file} was edited, and the run has not taken the edit up; the settings shown are the run's own, from {}",
                place(run, &path)
            )
        });
        Ok(Self { text, note })
    }

    /// Returns the path of the configuration's file like [`EffectiveConfig::path`], for programs that show other people's runs.
    ///
    /// # Errors
    /// If that file is a link, or is reached through one in the run's folder.
    pub fn own_path(run: &Path) -> io::Result<PathBuf> {
        let path = Self::path(run);
        ensure_own_file(run, &path).map(|()| path)
    }

    /// Returns the path of the configuration's file: the run's own copy; after the run has removed its copy at its end, that of the newest
    /// checkpoint; or config.toml. Copies that are links don't count.
    pub fn path(run: &Path) -> PathBuf {
        let files = RunFiles(run);
        let steps = files.steps().unwrap_or_default().into_iter().rev();
        let of_checkpoints = steps.map(|step| CheckpointFiles::find(&files.checkpoint(step)).config());
        std::iter::once(files.written_config())
            .chain(of_checkpoints)
            .find(|path| is_whole(run, path))
            .unwrap_or_else(|| files.config())
    }
}

fn read(run: &Path, path: &Path) -> io::Result<String> {
    ensure_own_file(run, path)?;
    files::read(path, LARGEST).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns whether a file has a complete configuration as a run writes it. A truncated file, as after a power failure, may still parse, but
/// its last line has no newline.
fn is_whole(run: &Path, path: &Path) -> bool {
    read(run, path).is_ok_and(|text| text.ends_with('\n') && text.parse::<toml::Table>().is_ok())
}

/// Returns the path of a run's file relative to its folder.
fn place(run: &Path, path: &Path) -> String {
    path.strip_prefix(run).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_a_person_wrote_is_not_what_the_run_has() {
        let place = tempfile::tempdir().unwrap();
        let (run, files) = (place.path(), RunFiles(place.path()));
        assert_eq!(EffectiveConfig::read(run).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(files.config(), "seed = 3\n").unwrap();
        let read = || EffectiveConfig::read(run).unwrap();
        assert_eq!(read(), EffectiveConfig { text: "seed = 3\n".into(), note: None });
        // A run that has ended.
        for (step, seed) in [(2, 1), (10, 2)] {
            fs::create_dir_all(CheckpointFiles::new(&files.checkpoint(step)).folder()).unwrap();
            fs::write(CheckpointFiles::new(&files.checkpoint(step)).config(), format!("seed = {seed}\n")).unwrap();
        }
        assert_eq!(read().text, "seed = 2\n");
        assert!(read().note.unwrap().ends_with("; the settings shown are the run's own, from checkpoint-10/trainer/config.toml"));
        // A run that is working or was interrupted; a truncated copy does not count.
        fs::write(files.written_config(), "seed = 4").unwrap();
        assert_eq!(read().text, "seed = 2\n");
        fs::write(files.written_config(), "seed = 4\n").unwrap();
        assert_eq!((read().text.as_str(), EffectiveConfig::path(run)), ("seed = 4\n", files.written_config()));
        // Another spelling is not an edit, but invalid TOML is.
        fs::write(files.config(), "# mine\nseed=4").unwrap();
        assert_eq!(read().note, None);
        fs::write(files.config(), "seed = ").unwrap();
        assert!(read().note.is_some_and(|note| note.starts_with("config.toml was edited")) && read().text == "seed = 4\n");
    }

    #[cfg(unix)]
    #[test]
    fn a_configuration_is_not_read_through_a_link() {
        use std::os::unix::fs::symlink;
        let place = tempfile::tempdir().unwrap();
        let (run, secret) = (place.path().join("run"), place.path().join("secret"));
        fs::create_dir_all(secret.join("trainer")).unwrap();
        fs::create_dir(&run).unwrap();
        fs::write(secret.join("config.toml"), "key = \"secret\"\n").unwrap();
        let files = RunFiles(&run);
        symlink(secret.join("config.toml"), files.config()).unwrap();
        let refused = |error: io::Error| assert!(error.to_string().contains("it is a link"), "{error}");
        refused(EffectiveConfig::read(&run).unwrap_err());
        refused(EffectiveConfig::own_path(&run).unwrap_err());
        // Neither the run's copy nor that of a checkpoint.
        symlink(secret.join("config.toml"), files.written_config()).unwrap();
        fs::create_dir(files.checkpoint(3)).unwrap();
        symlink(&secret, CheckpointFiles::new(&files.checkpoint(3)).folder()).unwrap();
        refused(EffectiveConfig::own_path(&run).unwrap_err());
        fs::remove_file(files.config()).unwrap();
        fs::write(files.config(), "seed = 3\n").unwrap();
        assert_eq!(EffectiveConfig::read(&run).unwrap(), EffectiveConfig { text: "seed = 3\n".into(), note: None });
    }
}
