//! Grants from the command line, and grants from a run's folder.
//!
//! A run's folder may come from somebody else. Its servers would then receive whatever the folder requests, with the secrets of
//! the person who resumes it. So a grant in a folder is valid only if the same user gave it before, on this machine, or gives it
//! again.

use super::Failure;
use crate::config::files::cache_folder;
use crate::config::{Config, Grants, PluginEntry, hex};
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
        if !self.secret.is_empty() {
            grants.secrets = pairs(&self.secret, "--secret", "NAME=env:VARIABLE or NAME=file:PATH")?;
        }
        self.give_folders(&mut grants)?;
        grants.check().map_err(|detail| anyhow!("{detail}"))?;
        let given = |is: bool, flags: &[String]| !is || !flags.is_empty();
        let own = self.host == grants.hosts
            && given(!grants.secrets.is_empty(), &self.secret)
            && given(!grants.folders.is_empty(), &self.folder);
        match entry {
            Some(entry) if !own && !is_known(entry.name(), &grants) => {
                Err(anyhow!("{}; give them again with --host and --secret, and --folder", foreign(entry.name(), &grants)))
            }
            _ => Ok(grants),
        }
    }

    /// Does the same where no server is asked: only folders have to be known.
    pub(super) fn over_unasked(&self, entry: Option<&PluginEntry>) -> anyhow::Result<Grants> {
        let mut grants = entry.map(PluginEntry::grants).unwrap_or_default();
        let known = entry.is_none_or(|entry| grants.folders.is_empty() || is_known(entry.name(), &grants));
        self.give_folders(&mut grants)?;
        if let Some(entry) = entry.filter(|_| !known && self.folder.is_empty()) {
            return Err(anyhow!("{}; give the folders again with --folder", foreign(entry.name(), &grants)));
        }
        grants.check().map_err(|detail| anyhow!("{detail}"))?;
        Ok(grants)
    }

    /// Replaces the folders by those of the flags, if there are any.
    fn give_folders(&self, grants: &mut Grants) -> anyhow::Result<()> {
        if !self.folder.is_empty() {
            grants.folders = pairs(&self.folder, "--folder", "NAME=FOLDER")?;
        }
        Ok(())
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

/// Reads what a flag gives several times, each time with another name.
fn pairs(all: &[String], flag: &str, expected: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut read = BTreeMap::new();
    for text in all {
        let (name, from) = text.split_once('=').ok_or_else(|| anyhow!("{flag}: expected {expected}"))?;
        if read.insert(name.to_owned(), from.to_owned()).is_some() {
            return Err(anyhow!("{flag}: {name} is given twice"));
        }
    }
    Ok(read)
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

/// Refuses unknown grants from a run's folder. `again` says of an entry of a table whether its grants were given again.
pub(super) fn check(config: &Config, again: impl Fn(&str, &PluginEntry) -> bool) -> Result<(), Failure> {
    for (table, entry) in granted_entries(config) {
        let (name, grants) = (entry.name(), entry.grants());
        // Without a server to ask, only reading is left to allow.
        let asks = !grants.hosts.is_empty() && !config.replay_only;
        if again(table, entry) {
            remember(name, &grants);
        } else if !is_known(name, &grants) && (asks || !grants.folders.is_empty()) {
            let listed = |of: &BTreeMap<String, String>| {
                let pairs: Vec<String> = of.iter().map(|(name, from)| format!("{name} = {from:?}")).collect();
                (!of.is_empty()).then(|| format!("{{ {} }}", pairs.join(", ")))
            };
            let hosts: Vec<String> = grants.hosts.iter().map(|host| format!("{host:?}")).collect();
            let hosts = (!hosts.is_empty()).then(|| format!("[{}]", hosts.join(", ")));
            let given = [("hosts", hosts), ("secrets", listed(&grants.secrets)), ("folders", listed(&grants.folders))];
            let flag = |(key, value): (&str, Option<String>)| Some(format!("--set '{table}.{name}.{key}={}'", value?));
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
    granted_entries(config).for_each(|(_, entry)| remember(entry.name(), &entry.grants()));
}

/// Returns the entries that are granted something, each with the table that it stands in.
fn granted_entries(config: &Config) -> impl Iterator<Item = (&'static str, &PluginEntry)> {
    let plugins = config.plugin.iter().map(|entry| ("plugin", entry));
    let environments = config.environment.iter().map(|entry| ("environment", entry));
    plugins.chain(environments).filter(|(_, entry)| !entry.grants().is_empty())
}

/// Returns the file that records a grant.
fn mark(name: &str, grants: &Grants) -> Option<PathBuf> {
    let requests = (name, &grants.hosts, &grants.secrets, &grants.http.ca_file);
    // A run's configuration has whole paths.
    let whole = |(name, path): (&String, &String)| Some((name.clone(), std::path::absolute(path).ok()?));
    let folders = grants.folders.iter().map(whole).collect::<Option<Vec<_>>>()?;
    let text = if folders.is_empty() { serde_json::to_vec(&requests) } else { serde_json::to_vec(&(requests, folders)) }.ok()?;
    Some(cache_folder()?.join("granted").join(hex(&Sha256::digest(text))))
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
