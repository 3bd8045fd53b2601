//! Grants from the command line, and grants from a run's folder.
//!
//! A run's folder may come from somebody else. Its servers would then receive whatever the folder requests, with the secrets of the person
//! who resumes the run; its ports would be open, and its plugins would get the grants that it sets. So a grant in a folder is valid only if
//! it has this user's mark ([`run::RunGrants`]), or is given again.

use super::failure::CommandFailure;
use crate::config::{Grant, Grants, HttpLimits, PluginEntry, PluginLimits, RunConfig};
use crate::plugin::{Folders, PluginEngine, PluginHttpClient, RequestPolicy};
use crate::run;
use anyhow::anyhow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What a plugin is granted by flags.
#[derive(clap::Args, Default)]
pub(super) struct GrantArgs {
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

/// A plugin's entry in the folder of a run.
pub(super) struct RecordedPluginEntry<'a> {
    pub run: &'a Path,
    pub table: &'static str,
    pub entry: &'a PluginEntry,
}

impl GrantArgs {
    /// Merges the grants of the flags with those of a run, which are valid only if this user gave them. `asks` says whether servers may be
    /// contacted.
    pub(super) fn merged_with(&self, recorded: Option<&RecordedPluginEntry<'_>>, asks: bool) -> anyhow::Result<Grants> {
        let mut grants = match recorded {
            None => Grants::default(),
            Some(recorded) if recorded.is_granted(asks) => recorded.entry.grants(),
            Some(recorded) => self.without_folder(recorded, asks)?,
        };
        if !self.host.is_empty() {
            grants.hosts.clone_from(&self.host);
        }
        if !self.secret.is_empty() {
            grants.secrets = pairs(&self.secret, "--secret", "NAME=env:VARIABLE or NAME=file:PATH")?;
        }
        self.give_folders(&mut grants)?;
        grants.check().map_err(|detail| anyhow!("{detail}"))?;
        Ok(grants)
    }

    /// Returns the parts of an untrusted entry that need no grant. Refuses the entry if it has other parts that the flags don't give.
    fn without_folder(&self, RecordedPluginEntry { entry, .. }: &RecordedPluginEntry<'_>, asks: bool) -> anyhow::Result<Grants> {
        let missing = |is: bool, flags: &[String]| is && flags.is_empty();
        let unasked = asks && (missing(!entry.hosts.is_empty(), &self.host) || missing(!entry.secrets.is_empty(), &self.secret));
        if unasked || missing(!entry.folders.is_empty(), &self.folder) {
            let (name, grants) = (entry.name(), entry.grants());
            let advice = "give it again with --host and --secret, and --folder";
            return Err(anyhow!("the run's folder grants {name} {grants}, but {NOT_GRANTED}; {advice}"));
        }
        if entry.http != HttpLimits::default() {
            tracing::warn!("the run's own limits on the requests of {} are not used: {NOT_GRANTED}", entry.name());
        }
        // Recorded answers are looked up without contacting servers.
        Ok(Grants { hosts: if asks { Vec::new() } else { entry.hosts.clone() }, ..Grants::default() })
    }

    /// Replaces the folders with those of the flags, if there are any.
    fn give_folders(&self, grants: &mut Grants) -> anyhow::Result<()> {
        if !self.folder.is_empty() {
            grants.folders = pairs(&self.folder, "--folder", "NAME=FOLDER")?;
        }
        Ok(())
    }

    /// Returns the names under which the plugin sees its folders.
    pub(super) fn folder_names(&self) -> Vec<String> {
        self.folder.iter().filter_map(|given| given.split_once('=')).map(|(name, _)| name.to_owned()).collect()
    }

    /// Applies a plugin's grants; without them, it can only be inspected.
    pub(super) fn apply(&self, engine: &mut PluginEngine, name: &str) -> anyhow::Result<()> {
        let grants = self.merged_with(None, true)?;
        let asking = match grants.hosts.is_empty() {
            true => RequestPolicy::Disabled("no server is granted to it; name one with --host HOST:PORT"),
            false => RequestPolicy::Allowed,
        };
        grant_folders(engine, name, &grants)?;
        let asker = PluginHttpClient::new(grants, asking).map_err(|detail| anyhow!("{name}: {detail}"))?;
        engine.grant(name, Arc::new(asker));
        Ok(())
    }
}

/// Parses the values of a flag that is repeated with different names.
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

/// Grants a plugin read access to its folders.
pub(super) fn grant_folders(engine: &mut PluginEngine, name: &str, grants: &Grants) -> anyhow::Result<()> {
    if !grants.folders.is_empty() {
        let folders = Folders::read(&grants.folders).map_err(|detail| anyhow!("{name}: {detail}"))?;
        engine.grant_folders(name, folders);
    }
    Ok(())
}

/// Why a grant in a run's folder does not count.
const NOT_GRANTED: &str = "you have not granted that on this machine";

impl RecordedPluginEntry<'_> {
    /// Returns whether this user granted the plugin the grants in its entry.
    fn is_granted(&self, asks: bool) -> bool {
        // Scoring does not use the entry's limits.
        let entry = PluginEntry { limits: PluginLimits::default(), ..self.entry.clone() };
        let granted = run::RunGrants::load(self.run);
        Grant::from_entry(self.table, &entry, asks).iter().all(|grant| granted.covers(grant))
    }
}

/// Returns the grants of a configuration that is based on a run's. Refuses grants that are neither marked by this user nor `given` again.
pub(super) fn accepted(config: &RunConfig, run: &Path, given: impl Fn(&Grant) -> bool) -> anyhow::Result<Vec<Grant>> {
    let (all, granted) = (config.grants(), run::RunGrants::load(run));
    let missing: Vec<&Grant> = all.iter().filter(|grant| !granted.covers(grant) && !given(grant)).collect();
    if missing.is_empty() {
        return Ok(all);
    }
    let list =
        |of: &dyn Fn(&Grant) -> String, between: &str| missing.iter().map(|grant| of(grant)).collect::<Vec<_>>().join(between);
    let (what, flags) = (list(&Grant::to_string, "; "), list(&Grant::flags, " "));
    let asks = missing.iter().any(|grant| grant.keys().any(|key| key.ends_with(".hosts")));
    let or = if asks { ", or contact no server with --set replay_only=true" } else { "" };
    let trouble = granted.problem().map(|trouble| format!(" ({trouble})")).unwrap_or_default();
    let advice = format!("to allow all of it, add --accept-grants; to allow it by name, add {flags}{or}");
    Err(anyhow!("the run's folder sets {what}, but {NOT_GRANTED}{trouble}; {advice}"))
}

/// Refuses grants of this process's configuration that the first process did not accept.
pub(super) fn check_accepted(config: &RunConfig, accepted: &[Grant], rank: usize) -> Result<(), CommandFailure> {
    match config.grants().iter().find(|grant| !accepted.iter().any(|accepted| accepted.covers(grant))) {
        None => Ok(()),
        Some(grant) => Err(CommandFailure::mistake(anyhow!(
            "rank {rank}: the configuration sets {grant}, which the first process did not accept"
        ))),
    }
}

/// Logs the grants of a run. Those of plugins are logged when the plugins are loaded.
pub(super) fn show(config: &RunConfig) {
    for grant in config.grants().iter().filter(|grant| !grant.is_of_a_plugin()) {
        tracing::info!("granted: {grant}");
    }
}

/// Returns the limits of the algorithm in a run's folder if this user granted them, otherwise the defaults.
pub(super) fn granted_limits(limits: PluginLimits, run: &Path) -> PluginLimits {
    let granted = run::RunGrants::load(run);
    let all = Grant::from_limits("loss_limits", &limits).iter().all(|grant| granted.covers(grant));
    if all { limits } else { PluginLimits::default() }
}
