//! How a run starts: new, or from a checkpoint of its own or of another run, and what may differ from the run that wrote it.

use super::{Error, Result};
use crate::checkpoint;
use crate::config::{self, Overrides, PluginEntry, ResumeRule, RunConfig, files, same, shell_word};
use crate::plugin::{PluginSource, Role};
use crate::run::{CheckpointFiles, RunFiles, is_checkpoint};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum plausible number of processes of an earlier run.
const MOST_RANKS: u64 = 1 << 20;

/// Value of `dataset_order` in the trainer_state.json of a run that draws from all rows of its dataset.
pub(super) const ORDER_OF_ALL: &str = "all rows";

/// A verified checkpoint and its run.
#[derive(Clone, Debug)]
pub struct CheckpointOrigin {
    /// The run's folder.
    pub run: PathBuf,
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
    /// Step of the checkpoint.
    pub step: u64,
}

/// Options for resuming a run.
#[derive(Clone, Debug, Default)]
pub struct ResumeTerms {
    /// Whether settings that change results may differ.
    pub allow_changed: bool,
    /// Whether edits of config.toml that the run has not applied are discarded.
    pub discard_edits: bool,
    /// Plugin files that the user named: the run resumes with these or fails.
    pub named: Vec<String>,
}

/// How a run starts.
#[derive(Clone, Debug)]
pub enum StartMode {
    /// Start a new run in its own folder.
    New,
    /// Start a new run in the folder of a run that ended before its first checkpoint.
    Restart,
    /// Resume a run from its checkpoint.
    Resume {
        /// Checkpoint of the run.
        origin: CheckpointOrigin,
        /// Options for resuming.
        terms: ResumeTerms,
    },
    /// Start a new run from another run's state.
    Fork {
        /// Checkpoint of the other run.
        origin: CheckpointOrigin,
        /// Plugins, as the user named them, whose bytes are not taken from the checkpoint.
        fresh: Vec<String>,
    },
}

impl CheckpointOrigin {
    /// Opens a checkpoint's folder, or the newest intact checkpoint in a run's folder, with a warning about newer damaged ones.
    pub fn find(path: &Path) -> std::result::Result<Self, checkpoint::Error> {
        if is_checkpoint(path) {
            let step = checkpoint::verify(path)?.step;
            let run = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return Ok(Self { run: run.to_owned(), checkpoint: path.to_owned(), step });
        }
        let (step, checkpoint, passed_over) = checkpoint::newest(path)?;
        for damaged in passed_over {
            tracing::warn!("{damaged}; skipping it");
        }
        Ok(Self { run: path.to_owned(), checkpoint, step })
    }

    /// Returns the path of the configuration that the checkpoint was written with.
    pub fn config_file(&self) -> PathBuf {
        CheckpointFiles::find(&self.checkpoint).config()
    }

    /// Reads the configuration that the checkpoint was written with.
    ///
    /// # Errors
    /// If it can't be read.
    pub(super) fn written(&self) -> Result<RunConfig> {
        Ok(config::read([self.config_file().as_path()], &Overrides::default())?)
    }

    /// Returns the content of trainer_state.json.
    fn summary(&self) -> Value {
        let text = files::read(&CheckpointFiles::find(&self.checkpoint).summary(), config::LARGEST).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Returns whether the dataset is drawn in the order of all its rows, skipping unusable ones. In older checkpoints, and for small
    /// datasets, it is drawn in the order of the usable rows.
    pub(super) fn has_order_of_all(&self) -> bool {
        self.summary()["dataset_order"] == ORDER_OF_ALL
    }

    /// Returns the number of processes that wrote the checkpoint.
    fn ranks(&self) -> usize {
        let state = self.summary();
        // Checkpoints from before runs of several processes lack the number.
        let ranks = state["world_size"].as_u64().filter(|ranks| (1..=MOST_RANKS).contains(ranks));
        ranks.map_or(1, |ranks| ranks as usize)
    }

    /// Returns the path of config.toml as the run last wrote it. If that copy is damaged or missing, as after the end of a run, it is the
    /// newest checkpoint's.
    fn written_config(&self) -> PathBuf {
        let copy = RunFiles(&self.run).written_config();
        // A truncated copy, as after a power failure, may still parse; its last line has no newline.
        let ended = files::read(&copy, config::LARGEST).is_ok_and(|text| text.ends_with(b"\n"));
        let whole = ended && config::read([copy.as_path()], &Overrides::default()).is_ok();
        if whole { copy } else { self.newest_config() }
    }

    /// Returns the path of the configuration in the newest checkpoint of the run in which it is unchanged since it was written.
    fn newest_config(&self) -> PathBuf {
        let steps = RunFiles(&self.run).steps().unwrap_or_default().into_iter().rev();
        let unchanged = |checkpoint: &PathBuf| {
            let name = CheckpointFiles::find(checkpoint).name_of_config();
            checkpoint::Manifest::read(checkpoint).is_ok_and(|manifest| manifest.has_unchanged(checkpoint, &name))
        };
        let newest = steps.map(|step| RunFiles(&self.run).checkpoint(step)).find(unchanged);
        newest.map_or_else(|| self.config_file(), |checkpoint| CheckpointFiles::find(&checkpoint).config())
    }

    /// Returns the path of the run's config.toml, if it was edited after the run wrote it.
    fn edited_config(&self) -> Result<Option<PathBuf>> {
        let file = RunFiles(&self.run).config();
        match files::read(&file, config::LARGEST) {
            Ok(text) if files::read(&self.written_config(), config::LARGEST).is_ok_and(|written| written == text) => Ok(None),
            Ok(_) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(config::Error::Io { path: file, source }.into()),
        }
    }

    /// Rejects edits that are not allowed during a run.
    fn check_edits(&self, file: &Path) -> Result<()> {
        let refuse = |detail: String| Error::unusable(file, detail);
        let written = config::read([self.written_config().as_path()], &Overrides::default())?;
        let edited = config::read([file], &Overrides::default())?;
        // A model may have moved: its files are compared by hash.
        let moved =
            |is: &&PluginEntry| !is.model && written.plugin.iter().any(|was| was.name() == is.name() && was.path != is.path);
        if let Some(entry) = edited.plugin.iter().find(moved) {
            return Err(refuse(cant_change(&format!("plugin.{}.path", entry.name()))));
        }
        if written.algorithm != edited.algorithm {
            return Err(refuse(cant_change("algorithm")));
        }
        let ranks = self.ranks();
        let (_, other) = changes(RankedConfig { config: &written, ranks }, RankedConfig { config: &edited, ranks })?;
        let fixed = PluginEntry::new(String::new()).fixed();
        let is_fixed = |key: &str| fixed.iter().any(|(name, _)| key.rsplit_once('.').is_some_and(|(_, last)| last == *name));
        let of_entries = |key: &str| ["plugin.", "environment."].iter().any(|table| key.starts_with(table));
        let is_live = |key: &str| {
            let live = key.split_once('.').and_then(|(table, _)| config::key(table)).is_some_and(|known| known.live);
            live && !(of_entries(key) && is_fixed(key))
        };
        match other.iter().find(|(key, _)| !is_live(key)) {
            Some((key, change)) => {
                let advice = format!("it was {}: restore it, or accept the change with --allow-changed", change[0]);
                Err(refuse(format!("{}; {advice}", cant_change(key))))
            }
            None => Ok(()),
        }
    }

    fn plugin_file(&self, name: &str) -> PathBuf {
        CheckpointFiles::find(&self.checkpoint).plugin(name)
    }
}

impl StartMode {
    /// Returns the checkpoint that the run starts from.
    pub fn origin(&self) -> Option<&CheckpointOrigin> {
        match self {
            Self::New | Self::Restart => None,
            Self::Resume { origin, .. } | Self::Fork { origin, .. } => Some(origin),
        }
    }

    /// Returns the step that the run starts from.
    pub(super) fn step(&self) -> u64 {
        self.origin().map_or(0, |origin| origin.step)
    }

    /// Returns the path of the starting configuration. For a resumed run, that is its own config.toml if it was edited after the run wrote
    /// it, otherwise the checkpoint's.
    ///
    /// # Errors
    /// If config.toml can't be read, or an edit changes something that must not change.
    pub fn config_file(&self) -> Result<Option<PathBuf>> {
        let edited = self.edited_config()?;
        if let (Some(origin), Some(edited), false) = (self.origin(), &edited, self.may_change()) {
            origin.check_edits(edited)?;
        }
        Ok(edited.or_else(|| self.origin().map(CheckpointOrigin::config_file)))
    }

    /// Returns advice on resuming without the edits of config.toml, if there are any that the run has not applied.
    pub fn without_edits(&self) -> Option<String> {
        let (Some(origin), Ok(Some(_))) = (self.origin(), self.edited_config()) else { return None };
        let resume = format!("rlhost resume {} --discard-edits", shell_word(&origin.run));
        Some(format!("{} was edited, and the run has not taken the edit up; to go on without it: {resume}", RunFiles::CONFIG))
    }

    fn edited_config(&self) -> Result<Option<PathBuf>> {
        match self {
            Self::Resume { origin, terms } if !terms.discard_edits => origin.edited_config(),
            _ => Ok(None),
        }
    }

    /// Returns whether settings that change results may differ.
    pub(super) fn may_change(&self) -> bool {
        matches!(self, Self::Fork { .. } | Self::Resume { terms: ResumeTerms { allow_changed: true, .. }, .. })
    }

    /// Returns whether the user named the file of this plugin, so that its current content counts, not that of the checkpoint.
    pub(super) fn opens_anew(&self, name: &str, config: &RunConfig) -> bool {
        self.named(config).contains_key(name)
    }

    /// Returns the plugin files that the user named for a resumed run or a fork, by plugin.
    pub(super) fn named(&self, config: &RunConfig) -> BTreeMap<String, String> {
        let algorithm = PluginEntry::new(config.algorithm.clone());
        let entries = config.plugin.iter().chain(&config.environment).chain(std::iter::once(&algorithm));
        let named = entries.filter(|entry| !entry.model && self.names(&entry.path));
        named.map(|entry| (entry.name().to_owned(), entry.path.clone())).collect()
    }

    /// Returns whether the user named this plugin file for a resumed run or a fork.
    pub(super) fn names(&self, path: &String) -> bool {
        match self {
            Self::New | Self::Restart => false,
            Self::Resume { terms: ResumeTerms { named, .. }, .. } | Self::Fork { fresh: named, .. } => named.contains(path),
        }
    }

    /// Opens an algorithm. A resumed run keeps the bytes of its checkpoint.
    ///
    /// # Errors
    /// If there is no such plugin, or its file can't be read.
    pub fn algorithm(&self, location: &str) -> Result<PluginSource> {
        self.plugin(&PluginEntry::new(location.to_owned()), Role::Algorithm)
    }

    /// Opens an entry's plugin of this role under its name. A resumed run keeps the bytes of its checkpoint.
    ///
    /// # Errors
    /// If there is no such plugin, or its file can't be read.
    pub fn plugin(&self, entry: &PluginEntry, role: Role) -> Result<PluginSource> {
        let kept = self.origin().map(|origin| origin.plugin_file(entry.name())).filter(|kept| kept.exists());
        let source = match kept {
            Some(kept) if !self.names(&entry.path) => PluginSource::open(&kept.display().to_string())?,
            Some(kept) if matches!(self, Self::Resume { .. }) => {
                // The file replaces the checkpoint's version, and takes its state, in a swap, so it must exist.
                PluginSource::open_as(&entry.path, Some(role))?;
                PluginSource::open(&kept.display().to_string())?
            }
            _ => PluginSource::open_as(&entry.path, Some(role))?,
        };
        Ok(match &entry.name {
            Some(name) => source.with_name(name),
            None => source,
        })
    }

    /// Returns the checkpoint's copy of a chat template, if the checkpoint was written with the template at this path.
    ///
    /// # Errors
    /// If the checkpoint's configuration can't be read.
    pub(super) fn kept_template(&self, path: &str) -> Result<Option<PathBuf>> {
        let Some(origin) = self.origin() else { return Ok(None) };
        let written = origin.written()?;
        let kept = origin.checkpoint.join("chat_template.jinja");
        Ok((written.chat_template_path.as_deref() == Some(path) && kept.is_file()).then_some(kept))
    }

    /// Returns the differences between the checkpoint's configuration and that of a run with this many processes, by key. Edits of the
    /// run's config.toml may change what can be edited during a run.
    ///
    /// # Errors
    /// If something differs that must not.
    pub(super) fn changes(&self, new: &RunConfig, ranks: usize) -> Result<Map<String, Value>> {
        let Some(origin) = self.origin() else { return Ok(Map::new()) };
        let old = origin.written()?;
        let (was, now) = (RankedConfig { config: &old, ranks: origin.ranks() }, RankedConfig { config: new, ranks });
        let (free, other) = changes(was, now)?;
        let all: Map<String, Value> = free.iter().chain(&other).map(|(key, change)| (key.clone(), change.clone())).collect();
        let edited = self.edited_config()?;
        let other = match &edited {
            Some(edited) if !self.may_change() => {
                let mut base = config::read([edited.as_path()], &Overrides::default())?;
                fill_in(&mut base, new);
                changes(RankedConfig { config: &base, ..was }, now)?.1
            }
            _ => other,
        };
        if !self.may_change() && was.ranks != now.ranks && was.batch() != now.batch() {
            return Err(Error::Changed(other_batch(was, now)));
        }
        if !self.may_change() && !other.is_empty() {
            // Another algorithm has other settings anyway.
            let follows = |key: &str| other.contains_key("algorithm") && key.starts_with("loss.");
            let keys = other.keys().filter(|key| !follows(key)).cloned().collect::<Vec<_>>().join(", ");
            let advice = "accept that with --allow-changed, or start a new run with another --output-dir";
            return Err(Error::Changed(format!("changing {keys} would change the run's results; {advice}")));
        }
        if let Some(edited) = edited {
            let keys = if all.is_empty() { "nothing".to_owned() } else { all.keys().cloned().collect::<Vec<_>>().join(", ") };
            tracing::info!("{} was edited; changed since the checkpoint: {keys}", edited.display());
        }
        Ok(all)
    }
}

/// Fills in omitted settings of the algorithm and of rewards from the resolved configuration.
fn fill_in(config: &mut RunConfig, whole: &RunConfig) {
    let fill = |into: &mut Map<String, Value>, from: &Map<String, Value>| {
        for (key, value) in from {
            into.entry(key.clone()).or_insert_with(|| value.clone());
        }
    };
    fill(&mut config.loss, &whole.loss);
    for entry in &mut config.plugin {
        if let Some(of_whole) = whole.plugin.iter().find(|other| other.name() == entry.name()) {
            fill(&mut entry.config, &of_whole.config);
        }
    }
}

/// Returns the error message for a number of processes that would change the batch size.
fn other_batch(old: RankedConfig<'_>, new: RankedConfig<'_>) -> String {
    let batch = |c: RankedConfig<'_>| {
        let processes = if c.ranks == 1 { "1 process".to_owned() } else { format!("{} processes", c.ranks) };
        format!("{processes} x per_device_train_batch_size {} = {}", c.config.per_device_train_batch_size, c.batch())
    };
    let advice = match old.batch() {
        size if size.is_multiple_of(new.ranks) => format!("per_device_train_batch_size={} keeps it", size / new.ranks),
        size => format!("{size} can't be divided equally among {} processes", new.ranks),
    };
    format!("the run's batch was {} and would become {}; {advice}", batch(old), batch(new))
}

/// A configuration with its number of processes.
#[derive(Clone, Copy)]
struct RankedConfig<'a> {
    config: &'a RunConfig,
    ranks: usize,
}

impl RankedConfig<'_> {
    /// Returns the size of a micro-batch over all processes.
    fn batch(&self) -> usize {
        self.config.batches(self.ranks).micro_batch
    }
}

/// Returns the changed keys with their old and new values: all of them, and those that must not change.
fn changes(was: RankedConfig<'_>, now: RankedConfig<'_>) -> Result<(Map<String, Value>, Map<String, Value>)> {
    let (old, new) = (was.config, now.config);
    let all = config::changes(old, new).map_err(|e| Error::encoding("the configuration", &e))?;
    let (mut free, mut other) = (Map::new(), Map::new());
    for (key, change) in all {
        if !["output_dir", "plugin", "loss"].contains(&key.as_str()) {
            // The batch size over all processes counts.
            let same_batch = key == "per_device_train_batch_size" && was.batch() == now.batch();
            let fixed = config::key(&key).is_none_or(|known| known.on_resume == ResumeRule::Fixed);
            let into = if fixed && !same_batch { &mut other } else { &mut free };
            into.insert(key, change);
        }
    }
    if PluginEntry::new(old.algorithm.clone()).name() != PluginEntry::new(new.algorithm.clone()).name() {
        other.extend(free.remove("algorithm").map(|change| ("algorithm".to_owned(), change)));
    }
    for key in old.loss.keys().chain(new.loss.keys().filter(|key| !old.loss.contains_key(*key))) {
        let [was, now] = [old, new].map(|config| config.loss.get(key).unwrap_or(&Value::Null));
        if !same(was, now) {
            other.insert(format!("loss.{key}"), json!([was, now]));
        }
    }
    compare_entries("plugin", &old.plugin, &new.plugin, &mut other);
    free.remove("environment");
    compare_entries("environment", &old.environment, &new.environment, &mut other);
    Ok((free, other))
}

/// Adds forbidden differences in the entries of a key.
fn compare_entries(of: &str, old: &[PluginEntry], new: &[PluginEntry], other: &mut Map<String, Value>) {
    let names = |entries: &[PluginEntry]| entries.iter().map(|e| e.name().to_owned()).collect::<Vec<_>>();
    if names(old) != names(new) {
        other.insert(of.into(), json!([names(old), names(new)]));
    }
    for entry in new {
        let Some(was) = old.iter().find(|e| e.name() == entry.name()) else { continue };
        let key = |what: &str| format!("{of}.{}.{what}", entry.name());
        if was.weight != entry.weight {
            other.insert(key("weight"), json!([was.weight, entry.weight]));
        }
        for ((what, before), (_, now)) in was.fixed().into_iter().zip(entry.fixed()) {
            if before != now {
                other.insert(key(what), json!([before, now]));
            }
        }
        if entry.model && (was.hash != entry.hash || was.path != entry.path && was.hash.is_none()) {
            other.insert(key("hash"), json!([was.hash, entry.hash]));
        }
        let (config, now) = (Value::Object(was.config.clone()), Value::Object(entry.config.clone()));
        if !same(&config, &now) {
            other.insert(key("config"), json!([config, now]));
        }
    }
}

/// Returns the reason why an edit of config.toml is rejected.
pub(crate) fn cant_change(what: &str) -> String {
    format!("{what} can't change during a run; weights, on_error, settings and limits of plugins, and [loss], can")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_damaged_copy_of_the_configuration_is_as_good_as_none() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().to_owned();
        let origin = CheckpointOrigin { checkpoint: RunFiles(&run).checkpoint(2), run: run.clone(), step: 2 };
        fs::create_dir(&origin.checkpoint).unwrap();
        fs::write(origin.config_file(), "max_steps = 30\n").unwrap();
        fs::write(RunFiles(&run).config(), "max_steps = 30\n").unwrap();
        let copy = RunFiles(&run).written_config();
        assert_eq!(origin.written_config(), origin.config_file());
        for damaged in [&b""[..], b"max_st", b"max_steps = 3", b"max_steps =\n", b"\xff\n"] {
            fs::write(&copy, damaged).unwrap();
            assert_eq!(origin.written_config(), origin.config_file(), "{damaged:?}");
            assert_eq!(origin.edited_config().unwrap(), None);
        }
        fs::write(&copy, "max_steps = 20\n").unwrap();
        assert_eq!(origin.written_config(), copy);
        assert_eq!(origin.edited_config().unwrap(), Some(RunFiles(&run).config()));
    }
}
