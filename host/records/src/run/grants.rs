//! The grants that a user gave a run, in the run's folder, with marks that only this user can create.
//!
//! A run's folder may come from somebody else, who may have written anything into it. Access beyond computing
//! ([`RunConfig::grants`](crate::config::RunConfig::grants)) is valid only with a mark: an HMAC of the grant under a key in the user's
//! state folder, which only that user can read and which is never in a run's folder.

use super::RunFiles;
use crate::config::files::{self, is_open_to_others, owner, state_folder};
use crate::config::{Grant, hex};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Length of the key, in bytes.
const KEY: usize = 32;

/// Maximum size of a run's grants file, in bytes.
const LARGEST: u64 = 4 << 20;

/// Prefix of the signed bytes, so that a mark can't be used for anything else.
const MEANING: &[u8] = b"rlhost grant 1\n";

/// A line of the file.
#[derive(Deserialize, Serialize)]
struct SignedGrant {
    grant: Grant,
    mark: String,
}

/// The grants in a run's folder that have this user's mark.
#[derive(Debug, Default)]
pub struct RunGrants {
    grants: Vec<Grant>,
    problem: Option<String>,
}

impl RunGrants {
    /// Reads the grants of a run. Lines that can't be read or have no valid mark grant nothing.
    #[must_use]
    pub fn load(run: &Path) -> Self {
        Self::load_with(run, key_file().as_deref())
    }

    fn load_with(run: &Path, key_file: Option<&Path>) -> Self {
        let file = RunFiles(run).grants();
        let text = match read_own(&file) {
            Ok(Some(text)) => text,
            Ok(None) => return Self::default(),
            Err(e) => return Self::unusable(format!("{} can't be used: {e}", file.display())),
        };
        let Some(key_file) = key_file else { return Self::unusable(no_folder()) };
        match read_key(key_file) {
            Ok(Some(key)) => {
                let lines = text.lines().filter_map(|line| serde_json::from_str::<SignedGrant>(line).ok());
                Self { grants: lines.filter(|line| line.is_by(&key)).map(|line| line.grant).collect(), problem: None }
            }
            Ok(None) => Self::unusable(format!("there is no key for the marks of your runs in {}", key_file.display())),
            Err(e) => Self::unusable(format!("the key for the marks of your runs, {}, is not used: {e}", key_file.display())),
        }
    }

    fn unusable(trouble: String) -> Self {
        Self { grants: Vec::new(), problem: Some(trouble) }
    }

    /// Returns whether the user gave this grant.
    #[must_use]
    pub fn covers(&self, grant: &Grant) -> bool {
        self.grants.iter().any(|given| given.covers(grant))
    }

    /// Returns why marks in the folder could not be checked, if they couldn't.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

impl SignedGrant {
    fn new(grant: Grant, key: &hmac::Key) -> Self {
        let mark = hex(hmac::sign(key, &signed(&grant)).as_ref());
        Self { grant, mark }
    }

    /// Returns whether the grant was marked with this key.
    fn is_by(&self, key: &hmac::Key) -> bool {
        let bytes = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let mark: Option<Vec<u8>> = self.mark.as_bytes().chunks(2).map(bytes).collect();
        mark.is_some_and(|mark| hmac::verify(key, &signed(&self.grant), &mark).is_ok())
    }
}

/// Returns the bytes that a mark signs.
fn signed(grant: &Grant) -> Vec<u8> {
    let mut bytes = MEANING.to_vec();
    bytes.extend(serde_json::to_vec(grant).unwrap_or_default());
    bytes
}

/// Marks grants in the folder of a run that this process runs, in addition to existing ones. Creates the user's key if there is none.
///
/// # Errors
/// If the key or the file can't be read or written; says what the consequence is.
pub fn record_grants(run: &Path, grants: &[Grant]) -> Result<(), String> {
    accept_with(run, grants, key_file().as_deref())
}

fn accept_with(run: &Path, grants: &[Grant], key_file: Option<&Path>) -> Result<(), String> {
    let before = RunGrants::load_with(run, key_file);
    if grants.iter().all(|grant| before.covers(grant)) {
        return Ok(());
    }
    let key_file = key_file.ok_or_else(no_folder)?;
    let unusable = |e: io::Error| format!("{}: {e}", key_file.display());
    let key = ensure_key(key_file).map_err(unusable)?;
    let file = RunFiles(run).grants();
    let failed = |e: io::Error| format!("{}: {e}", file.display());
    // Grants of other users, and from other machines on which the run was before, are preserved. A link has no grants.
    let text = if file.is_symlink() { None } else { read_own(&file).map_err(failed)? }.unwrap_or_default();
    let kept = text.lines().filter_map(|line| serde_json::from_str::<SignedGrant>(line).ok());
    let new = grants.iter().filter(|grant| !before.covers(grant)).map(|grant| SignedGrant::new(grant.clone(), &key));
    let lines = kept.chain(new).map(|line| serde_json::to_string(&line));
    let lines = lines.collect::<Result<Vec<String>, _>>().map_err(|e| e.to_string())?;
    let text = format!("{}\n", lines.join("\n"));
    if text.len() as u64 > LARGEST {
        return Err(failed(io::Error::other(format!("it would be larger than the limit of {} MiB", LARGEST >> 20))));
    }
    // A link in the file's place is replaced, not followed.
    let write = || {
        let mut new = files::temporary_in(run)?;
        new.write_all(text.as_bytes())?;
        new.persist(&file).map_err(|e| e.error)
    };
    write().map(drop).map_err(failed)
}

/// Reads a run's grants file; `None` if there is none. Does not follow a link, which may lead to the file of the user's own run.
fn read_own(file: &Path) -> io::Result<Option<String>> {
    if files::exists_as_file(file)? { files::read_text(file, LARGEST).map(Some) } else { Ok(None) }
}

/// Returns the path of the user's key.
fn key_file() -> Option<PathBuf> {
    Some(state_folder()?.join("key"))
}

fn no_folder() -> String {
    "there is no folder for the key of your runs' marks; set XDG_STATE_HOME or RLHOST_STATE_DIR".to_owned()
}

/// Reads a key; `None` if there is no file.
///
/// # Errors
/// If others could have read or written the file, or it is not a key.
fn read_key(file: &Path) -> io::Result<Option<hmac::Key>> {
    if !files::exists_as_file(file)? {
        return Ok(None);
    }
    let opened = files::open(file)?;
    let found = opened.metadata()?;
    if is_open_to_others(&found) {
        return Err(io::Error::other("other users may read it, so they could have made marks; remove it, and a new one is made"));
    }
    // A new file belongs to the user of this process.
    if owner(&found) != owner(&tempfile::tempfile()?.metadata()?) {
        return Err(io::Error::other("it belongs to another user"));
    }
    let bytes = files::read_limited(opened, KEY as u64)?;
    if bytes.len() != KEY {
        let detail = format!("it has {} bytes instead of {KEY}; remove it, and a new one is made", bytes.len());
        return Err(io::Error::other(detail));
    }
    Ok(Some(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
}

/// Reads the key, and creates it first if there is none. If several processes do this at once, one creates it.
fn ensure_key(file: &Path) -> io::Result<hmac::Key> {
    if let Some(key) = read_key(file)? {
        return Ok(key);
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)?;
    let mut bytes = [0; KEY];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("the system gives no random numbers"))?;
    // Private to the user from the beginning, and complete when it gets its name.
    let mut new = NamedTempFile::new_in(folder)?;
    new.write_all(&bytes)?;
    new.as_file().sync_all()?;
    match new.persist_noclobber(file) {
        Err(e) if e.error.kind() != io::ErrorKind::AlreadyExists => return Err(e.error),
        _ => {}
    }
    read_key(file)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PluginLimits, RunConfig};

    fn limit(memory_mb: u64) -> Grant {
        Grant::from_limits("loss_limits", &PluginLimits { memory_mb, ..PluginLimits::default() }).remove(0)
    }

    struct GrantFolder {
        folder: tempfile::TempDir,
    }

    impl GrantFolder {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn run(&self) -> &Path {
            self.folder.path()
        }

        fn key(&self, user: &str) -> PathBuf {
            self.folder.path().join(user).join("key")
        }

        fn accept(&self, grants: &[Grant], user: &str) -> Result<(), String> {
            accept_with(self.run(), grants, Some(&self.key(user)))
        }

        fn granted(&self, user: &str) -> RunGrants {
            RunGrants::load_with(self.run(), Some(&self.key(user)))
        }
    }

    #[test]
    fn only_the_user_who_marked_a_grant_has_given_it() {
        let place = GrantFolder::new();
        assert!(!place.granted("me").covers(&limit(4000)) && place.granted("me").problem().is_none());
        place.accept(&[limit(4000)], "me").unwrap();
        assert!(place.granted("me").covers(&limit(4000)) && place.granted("me").covers(&limit(600)));
        assert!(!place.granted("me").covers(&limit(4001)));
        let trouble = place.granted("them").problem().unwrap().to_owned();
        assert!(!place.granted("them").covers(&limit(4000)) && trouble.contains("there is no key"), "{trouble}");
        place.accept(&[limit(700)], "them").unwrap();
        assert!(place.granted("them").covers(&limit(700)) && !place.granted("them").covers(&limit(4000)));
        // Users who share a run keep their own grants.
        assert!(place.granted("me").covers(&limit(4000)));
    }

    #[test]
    fn an_edited_line_is_no_grant_and_those_beside_it_stay() {
        let place = GrantFolder::new();
        let serves = RunConfig { metrics_port: Some(9000), ..RunConfig::default() }.grants();
        place.accept(&[limit(4000)], "me").unwrap();
        place.accept(&serves, "me").unwrap();
        let file = RunFiles(place.run()).grants();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.lines().count() == 2 && text.contains("4000"), "{text}");
        for (from, to) in [("4000", "9999"), ("loss_limits.memory_mb", "loss_limits.call_timeout_s"), ("\"limit\"", "\"port\"")] {
            fs::write(&file, text.replace(from, to)).unwrap();
            let granted = place.granted("me");
            assert!(!granted.covers(&limit(4000)) && granted.covers(&serves[0]), "{from}");
        }
        let mark = text.lines().next().unwrap().rsplit('"').nth(1).unwrap().to_owned();
        for other in ["", "0", "zz", &mark[1..], &format!("{mark}00"), &"0".repeat(64), "\u{e9}\u{e9}"] {
            fs::write(&file, text.replace(&mark, other)).unwrap();
            assert!(!place.granted("me").covers(&limit(4000)), "{other}");
        }
        fs::write(&file, format!("garbage\n{text}{{\"grant\":")).unwrap();
        assert!(place.granted("me").covers(&limit(4000)));
        fs::write(&file, [0xff; 9]).unwrap();
        assert!(place.granted("me").problem().unwrap().contains("UTF-8"));
        // An unreadable file is not replaced.
        let error = place.accept(&[limit(4000)], "me").unwrap_err();
        assert!(error.contains("UTF-8") && error.contains(&file.display().to_string()), "{error}");
        assert_eq!(fs::read(&file).unwrap(), [0xff; 9]);
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_others_could_read_or_that_is_none_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let place = GrantFolder::new();
        place.accept(&[limit(4000)], "me").unwrap();
        let key = place.key("me");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&key), mode(key.parent().unwrap())), (0o600, 0o700));
        let refused = |part: &str| {
            let granted = place.granted("me");
            assert!(!granted.covers(&limit(4000)) && granted.problem().unwrap().contains(part), "{granted:?}");
            assert!(place.accept(&[limit(4000)], "me").unwrap_err().contains(part));
        };
        for wrong in [0o644, 0o660, 0o602, 0o777] {
            fs::set_permissions(&key, fs::Permissions::from_mode(wrong)).unwrap();
            refused("other users may read it");
        }
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let bytes = fs::read(&key).unwrap();
        for wrong in [&b""[..], &bytes[1..]] {
            fs::write(&key, wrong).unwrap();
            refused("instead of 32");
        }
        fs::write(&key, [&bytes[..], b"\n"].concat()).unwrap();
        refused("larger than the limit");
        fs::write(&key, &bytes).unwrap();
        fs::rename(&key, key.with_extension("own")).unwrap();
        symlink(key.with_extension("own"), &key).unwrap();
        refused("it is a link");
        fs::remove_file(&key).unwrap();
        fs::create_dir(&key).unwrap();
        refused("a folder");
        fs::remove_dir(&key).unwrap();
        fs::rename(key.with_extension("own"), &key).unwrap();
        assert!(place.granted("me").covers(&limit(4000)));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_the_grants_of_an_own_run_grants_nothing() {
        let place = GrantFolder::new();
        let own = place.run().join("own");
        fs::create_dir(&own).unwrap();
        accept_with(&own, &[limit(4000)], Some(&place.key("me"))).unwrap();
        std::os::unix::fs::symlink(RunFiles(&own).grants(), RunFiles(place.run()).grants()).unwrap();
        let granted = place.granted("me");
        assert!(!granted.covers(&limit(4000)) && granted.problem().unwrap().contains("a link"), "{granted:?}");
        assert!(RunGrants::load_with(&own, Some(&place.key("me"))).covers(&limit(4000)));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_the_place_of_the_grants_is_replaced() {
        let place = GrantFolder::new();
        let elsewhere = place.run().join("elsewhere");
        fs::write(&elsewhere, "kept").unwrap();
        std::os::unix::fs::symlink(&elsewhere, RunFiles(place.run()).grants()).unwrap();
        place.accept(&[limit(4000)], "me").unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
        // Whoever may read the run's other files may read this one.
        let mode = |file: &Path| std::os::unix::fs::PermissionsExt::mode(&fs::metadata(file).unwrap().permissions());
        assert_eq!(mode(&RunFiles(place.run()).grants()), mode(&elsewhere));
        assert!(place.granted("me").covers(&limit(4000)));
    }

    #[test]
    fn first_runs_that_begin_together_share_a_key() {
        let place = GrantFolder::new();
        let runs: Vec<PathBuf> = (0..8).map(|i| place.run().join(i.to_string())).collect();
        runs.iter().for_each(|run| fs::create_dir(run).unwrap());
        std::thread::scope(|scope| {
            for run in &runs {
                scope.spawn(|| accept_with(run, &[limit(4000)], Some(&place.key("me"))).unwrap());
            }
        });
        assert!(runs.iter().all(|run| RunGrants::load_with(run, Some(&place.key("me"))).covers(&limit(4000))));
        assert_eq!(fs::read_dir(place.key("me").parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn without_a_place_for_the_key_nothing_is_marked_and_it_says_so() {
        let place = GrantFolder::new();
        assert!(accept_with(place.run(), &[limit(4000)], None).unwrap_err().contains("XDG_STATE_HOME"));
        fs::write(place.run().join("me"), "a file").unwrap();
        let error = place.accept(&[limit(4000)], "me").unwrap_err();
        assert!(error.contains("key: "), "{error}");
        // Nothing is granted, so no key is needed.
        accept_with(place.run(), &[], None).unwrap();
    }
}
