//! Grants from the command line, and grants from a run's folder.
//!
//! A run's folder may come from somebody else. Its servers would then receive whatever the folder requests, with the secrets of
//! the person who resumes it. So a grant in a folder is valid only if the same user gave it before, on this machine, or gives it
//! again.

use super::Failure;
use crate::config::files::cache_folder;
use crate::config::{Config, Grants, PluginEntry};
use crate::plugin::{Asker, Asking, Engine};
use anyhow::anyhow;
use sha2::{Digest, Sha256};
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
}

impl Granted {
    /// Merges the grants of the flags with those of a run, whose folder may only contain known grants.
    pub(super) fn over(&self, entry: Option<&PluginEntry>) -> anyhow::Result<Grants> {
        let mut grants = entry.map(PluginEntry::grants).unwrap_or_default();
        if !self.host.is_empty() {
            grants.hosts.clone_from(&self.host);
        }
        let pair = |text: &String| match text.split_once('=') {
            Some((name, from)) => Ok((name.to_owned(), from.to_owned())),
            None => Err(anyhow!("--secret: expected NAME=env:VARIABLE or NAME=file:PATH")),
        };
        if !self.secret.is_empty() {
            grants.secrets = self.secret.iter().map(pair).collect::<anyhow::Result<_>>()?;
        }
        grants.check().map_err(|detail| anyhow!("{detail}"))?;
        let own = self.host == grants.hosts && (grants.secrets.is_empty() || !self.secret.is_empty());
        match entry {
            Some(entry) if !own && !is_known(entry.name(), &grants) => {
                Err(anyhow!("{}; give them again with --host and --secret", foreign(entry.name(), &grants)))
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
        let asker = Asker::new(grants, asking).map_err(|detail| anyhow!("{name}: {detail}"))?;
        engine.grant(name, Arc::new(asker));
        Ok(())
    }
}

fn foreign(name: &str, grants: &Grants) -> String {
    format!("the run's folder grants {name} {grants}, but you have not granted that on this machine")
}

/// Refuses unknown grants from a run's folder. `again` says which plugins' grants were given again.
pub(super) fn check(config: &Config, again: impl Fn(&PluginEntry) -> bool) -> Result<(), Failure> {
    for entry in config.plugin.iter().filter(|entry| !entry.hosts.is_empty()) {
        let (name, grants) = (entry.name(), entry.grants());
        if again(entry) {
            remember(name, &grants);
        } else if !is_known(name, &grants) && !config.replay_only {
            let quoted = |items: Vec<String>| items.join(", ");
            let hosts = quoted(grants.hosts.iter().map(|host| format!("{host:?}")).collect());
            let secrets = quoted(grants.secrets.iter().map(|(name, from)| format!("{name} = {from:?}")).collect());
            let mut flags = format!("--set 'plugin.{name}.hosts=[{hosts}]'");
            if !secrets.is_empty() {
                flags.push_str(&format!(" --set 'plugin.{name}.secrets={{ {secrets} }}'"));
            }
            let detail = foreign(name, &grants);
            return Err(Failure::mistake(anyhow!(
                "{detail}; to allow it, add {flags}, or contact no server with --set replay_only=true"
            )));
        }
    }
    Ok(())
}

/// Records the grants that a command line or the user's own file gives.
pub(super) fn remember_all(config: &Config) {
    for entry in config.plugin.iter().filter(|entry| !entry.hosts.is_empty()) {
        remember(entry.name(), &entry.grants());
    }
}

/// Returns the file that records a grant.
fn mark(name: &str, grants: &Grants) -> Option<PathBuf> {
    let text = serde_json::to_vec(&(name, &grants.hosts, &grants.secrets, &grants.http.ca_file)).ok()?;
    let hash: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    Some(cache_folder()?.join("granted").join(hash))
}

fn is_known(name: &str, grants: &Grants) -> bool {
    grants.hosts.is_empty() || mark(name, grants).is_some_and(|mark| mark.is_file())
}

fn remember(name: &str, grants: &Grants) {
    let Some(mark) = mark(name, grants) else { return };
    let folder = mark.parent().map(std::fs::create_dir_all).unwrap_or(Ok(()));
    if let Err(error) = folder.and_then(|()| std::fs::write(&mark, b"")) {
        tracing::debug!("can't note a grant in {}: {error}", mark.display());
    }
}
