//! Grants from the command line, and grants from a run's folder.
//!
//! A run's folder may come from somebody else. Its servers would then receive whatever the folder requests, with the secrets of
//! the person who resumes it. So a grant in a folder is valid only if the same user gave it before, on this machine, or gives it
//! again.

use super::Failure;
use crate::config::files::cache_folder;
use crate::config::{Config, Grants, PluginEntry};
use crate::plugin::{Asker, Asking, Engine, Folders};
use anyhow::anyhow;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// What a plugin is granted by flags.
#[derive(clap::Args, Default)]
pub(super) struct Granted {
    /// Server that the plugin may send requests to, as in judge.internal:8000; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    host: Vec<String>,
    /// Secret for its requests, as in JUDGE_KEY=env:JUDGE_KEY; may be repeated
    #[arg(long, value_name = "NAME=env:VARIABLE")]
    secret: Vec<String>,
    /// Folder that the plugin may read, as in words=lists/words, which it sees as /words; may be repeated
    #[arg(long, value_name = "NAME=FOLDER")]
    folder: Vec<String>,
}

impl Granted {
    /// Merges the grants of the flags with those of a run, whose folder may only contain known grants.
    pub(super) fn over(&self, entry: Option<&PluginEntry>) -> anyhow::Result<Grants> {
        let mut grants = entry.map(PluginEntry::grants).unwrap_or_default();
        if !self.host.is_empty() {
            grants.hosts.clone_from(&self.host);
        }
        let pairs = |all: &[String], expected: &str| {
            let pair = |text: &String| match text.split_once('=') {
                Some((name, from)) => Ok((name.to_owned(), from.to_owned())),
                None => Err(anyhow!("{expected}")),
            };
            all.iter().map(pair).collect::<anyhow::Result<_>>()
        };
        if !self.secret.is_empty() {
            grants.secrets = pairs(&self.secret, "--secret: expected NAME=env:VARIABLE or NAME=file:PATH")?;
        }
        if !self.folder.is_empty() {
            grants.folders = pairs(&self.folder, "--folder: expected NAME=FOLDER")?;
        }
        grants.check().map_err(|detail| anyhow!("{detail}"))?;
        let given = |is: bool, flags: &[String]| !is || !flags.is_empty();
        let own = self.host == grants.hosts
            && given(!grants.secrets.is_empty(), &self.secret)
            && given(!grants.folders.is_empty(), &self.folder);
        match entry {
            Some(entry) if !own && !is_known(entry.name(), &grants) => {
                Err(anyhow!("{}; give them again with --host, --secret and --folder", foreign(entry.name(), &grants)))
            }
            _ => Ok(grants),
        }
    }

    /// Lets a plugin send requests as granted; without a grant, it can only be inspected.
    pub(super) fn apply(&self, engine: &mut Engine, name: &str) -> anyhow::Result<()> {
        let grants = self.over(None)?;
        let asking = match grants.hosts.is_empty() {
            true => Asking::Never("no server is granted to it; name one with --host HOST:PORT"),
            false => Asking::Freely,
        };
        grant_folders(engine, name, &grants)?;
        let asker = Asker::new(grants, asking).map_err(|detail| anyhow!("{name}: {detail}"))?;
        engine.grant(name, Arc::new(asker));
        Ok(())
    }
}

/// Lets a plugin read the folders that it is granted.
pub(super) fn grant_folders(engine: &mut Engine, name: &str, grants: &Grants) -> anyhow::Result<()> {
    if !grants.folders.is_empty() {
        let folders = Folders::read(&grants.folders).map_err(|detail| anyhow!("{name}: {detail}"))?;
        engine.grant_folders(name, folders);
    }
    Ok(())
}

fn foreign(name: &str, grants: &Grants) -> String {
    format!("the run's folder grants {name} {grants}, but you have not granted that on this machine")
}

/// Refuses unknown grants from a run's folder. `again` says which plugins' grants were given again.
pub(super) fn check(config: &Config, again: impl Fn(&PluginEntry) -> bool) -> Result<(), Failure> {
    for entry in granted_entries(config) {
        let (name, grants) = (entry.name(), entry.grants());
        // Without a server to ask, only reading is left to allow.
        let asks = !grants.hosts.is_empty() && !config.replay_only;
        if again(entry) {
            remember(name, &grants);
        } else if !is_known(name, &grants) && (asks || !grants.folders.is_empty()) {
            let table = |of: &BTreeMap<String, String>| {
                let pairs: Vec<String> = of.iter().map(|(name, from)| format!("{name} = {from:?}")).collect();
                (!of.is_empty()).then(|| format!("{{ {} }}", pairs.join(", ")))
            };
            let hosts: Vec<String> = grants.hosts.iter().map(|host| format!("{host:?}")).collect();
            let hosts = (!hosts.is_empty()).then(|| format!("[{}]", hosts.join(", ")));
            let given = [("hosts", hosts), ("secrets", table(&grants.secrets)), ("folders", table(&grants.folders))];
            let flag = |(key, value): (&str, Option<String>)| Some(format!("--set 'plugin.{name}.{key}={}'", value?));
            let flags: Vec<String> = given.into_iter().filter_map(flag).collect();
            let or = if asks { ", or contact no server with --set replay_only=true" } else { "" };
            let detail = foreign(name, &grants);
            return Err(Failure::mistake(anyhow!("{detail}; to allow it, add {}{or}", flags.join(" "))));
        }
    }
    Ok(())
}

/// Records the grants that a command line or the user's own file gives.
pub(super) fn remember_all(config: &Config) {
    granted_entries(config).for_each(|entry| remember(entry.name(), &entry.grants()));
}

fn granted_entries(config: &Config) -> impl Iterator<Item = &PluginEntry> {
    config.plugin.iter().chain(&config.environment).filter(|entry| !entry.grants().is_empty())
}

/// Returns the file that records a grant.
fn mark(name: &str, grants: &Grants) -> Option<PathBuf> {
    let requests = (name, &grants.hosts, &grants.secrets, &grants.http.ca_file);
    // A run's configuration has whole paths.
    let whole = |(name, path): (&String, &String)| Some((name.clone(), std::path::absolute(path).ok()?));
    let folders = grants.folders.iter().map(whole).collect::<Option<Vec<_>>>()?;
    let text = if folders.is_empty() { serde_json::to_vec(&requests) } else { serde_json::to_vec(&(requests, folders)) }.ok()?;
    let hash: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    Some(cache_folder()?.join("granted").join(hash))
}

fn is_known(name: &str, grants: &Grants) -> bool {
    grants.is_empty() || mark(name, grants).is_some_and(|mark| mark.is_file())
}

fn remember(name: &str, grants: &Grants) {
    let Some(mark) = mark(name, grants) else { return };
    let folder = mark.parent().map(std::fs::create_dir_all).unwrap_or(Ok(()));
    if let Err(error) = folder.and_then(|()| std::fs::write(&mark, b"")) {
        tracing::debug!("can't note a grant in {}: {error}", mark.display());
    }
}
