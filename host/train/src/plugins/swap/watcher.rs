//! The watching thread: detects changed files, reads them once they are complete, loads and tries them, and proposes swaps.

use super::requests::{Inbox, RequestSender, SwapRequest};
use super::slots::{Board, ChosenSettings, PluginSlot};
use super::version::LoadedVersion;
use crate::config::{self, Overrides, PluginEntry, RewardErrorAction, RunConfig, STACK, files, printable, printable_path};
use crate::flow::Flow;
use crate::journal::keep_bytes;
use crate::origin::cant_change;
use crate::plugin::columns::{OLD_VALUE, REF_LOGP, TEACHER_LOGP, VALUE};
use crate::plugin::{self, AnyPlugin, FileWatcher, PluginEngine, PluginFile, PluginSource, Role, read_file};
use crate::plugins::{Opener, is_separable};
use crate::run::RunFiles;
use crate::run::short_hash;
use rayon::ThreadPool;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Time without changes after which a file counts as complete.
const SETTLED: Duration = Duration::from_millis(15);

/// Time during which a file that is not a valid component may still be growing.
const GROWING: Duration = Duration::from_millis(400);

/// Interval at which files are polled; some file systems never report changes.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Number of training threads per thread that tries plugins.
const SHARE: usize = 4;

/// Origin of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The plugin's file changed.
    File,
    /// The run's config.toml changed.
    Settings,
    /// `rlhost swap` or the page sent a request.
    Request(RequestSender),
}

impl Trigger {
    pub(super) fn request(&self) -> Option<&str> {
        match self {
            Self::Request(sender) => Some(&sender.request),
            Self::File | Self::Settings => None,
        }
    }

    /// Returns the sender of a request, if known.
    pub(super) fn by(&self) -> Option<&str> {
        match self {
            Self::Request(sender) => sender.by.as_deref(),
            Self::File | Self::Settings => None,
        }
    }

    /// Returns whether the trigger defines the plugin's settings; otherwise the plugin keeps those that the user chose.
    fn sets(&self) -> bool {
        match self {
            Self::Request(sender) => sender.sets,
            Self::Settings => true,
            Self::File => false,
        }
    }
}

/// A plugin or a reward model that passed its trial.
pub(super) struct SwapCandidate {
    pub version: LoadedVersion,
    /// Difference from the results of the current version.
    pub report: Value,
    pub trigger: Trigger,
    /// Step during which the change was noticed.
    pub noticed: u64,
}

/// An action for the training thread between steps.
pub(super) enum Proposal {
    Swap(Box<SwapCandidate>),
    Settings { name: String, weight: f64, on_error: RewardErrorAction, trigger: Trigger },
    Refused { name: String, hash: Option<String>, trigger: Trigger, reason: String },
}

pub(super) struct SwapWatcher {
    engine: PluginEngine,
    pub(super) opener: Opener,
    /// Thread pool for trials, separate from the training threads.
    pool: ThreadPool,
    board: Arc<Mutex<Board>>,
    proposals: Sender<Proposal>,
    /// Hash of each file that was proposed or failed its trial.
    noticed: BTreeMap<String, String>,
    /// Reported read errors, by the name of the plugin or file.
    unreadable: BTreeMap<String, String>,
    /// Text of the configuration when it was last handled.
    config: Vec<u8>,
    stamps: BTreeMap<PathBuf, Option<(SystemTime, u64)>>,
}

impl SwapWatcher {
    pub(super) fn new(
        (engine, opener): (PluginEngine, Opener),
        board: Arc<Mutex<Board>>,
        proposals: Sender<Proposal>,
    ) -> Result<Self, String> {
        let (noticed, run) = {
            let board = board.lock().unwrap_or_else(PoisonError::into_inner);
            (board.seen.clone(), board.run.clone())
        };
        let config = files::read(&RunFiles(&run).config(), config::LARGEST).unwrap_or_default();
        let threads = (rayon::current_num_threads() / SHARE).max(1);
        let engine = engine.for_background(threads);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("plugin-trial-{i}"));
        let pool = pool.stack_size(STACK).build().map_err(|e| e.to_string())?;
        let (unreadable, stamps) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { engine, opener, pool, board, proposals, noticed, unreadable, config, stamps })
    }

    /// Starts the thread, which ends when the receiver of its proposals is dropped. With `looks_first`, returns once all existing changes
    /// are proposed.
    pub(super) fn begin(mut self, looks_first: bool) -> Result<(), String> {
        let (files, inbox) = self.watched();
        let watch = FileWatcher::new(&files, std::slice::from_ref(&inbox)).map_err(|e| e.to_string())?;
        if looks_first {
            self.poll();
        }
        let work = move || {
            let mut told = true;
            loop {
                // The inbox may have been deleted and created again; and after a folder is renamed, its changes are not reported.
                let (files, inbox) = self.watched();
                let moved = self.have_changed(&[&files[..], &[inbox]].concat());
                if (told || moved) && !self.poll() {
                    return;
                }
                told = watch.wait_for_change(POLL_INTERVAL);
            }
        };
        std::thread::Builder::new().name("plugin-watch".into()).stack_size(STACK).spawn(work).map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Returns the files that are watched, and the folder of requests.
    fn watched(&self) -> (Vec<PathBuf>, PathBuf) {
        self.with(|board| {
            let run = RunFiles(&board.run);
            (
                board
                    .slots
                    .iter()
                    .filter_map(|slot| slot.file.as_ref())
                    .flat_map(PluginFile::files)
                    .chain([run.config()])
                    .collect(),
                run.inbox(),
            )
        })
    }

    /// Returns the run's folder.
    fn run(&self) -> PathBuf {
        self.with(|board| board.run.clone())
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Board) -> R) -> R {
        f(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether a file has changed since the last call.
    fn have_changed(&mut self, files: &[PathBuf]) -> bool {
        let mut moved = false;
        for file in files {
            let stamp = fs::metadata(file).and_then(|m| Ok((m.modified()?, m.len()))).ok();
            moved |= self.stamps.insert(file.clone(), stamp) != Some(stamp);
        }
        moved
    }

    /// Handles all changes; returns false if the run has ended.
    fn poll(&mut self) -> bool {
        self.requests() && self.files() && self.settings()
    }

    fn propose(&self, proposal: Proposal) -> bool {
        self.proposals.send(proposal).is_ok()
    }

    /// Handles the inbox of `rlhost swap`: the newest request of each plugin or reward model.
    fn requests(&mut self) -> bool {
        let Inbox { newest, dropped } = Inbox::read(&RunFiles(&self.run()).inbox());
        let dropped = dropped.into_iter().map(|(last, number)| {
            let what = if number == 1 { "an older request was".to_owned() } else { format!("{number} older requests were") };
            refused(&last, format!("{what} dropped, since a newer one came"))
        });
        let (known, unknown): (Vec<SwapRequest>, Vec<SwapRequest>) =
            newest.into_iter().partition(|request| self.knows(&request.name));
        let unknown = self.unknown(&unknown);
        dropped.chain(unknown).all(|refusal| self.propose(refusal)) && known.into_iter().all(|request| self.request(&request))
    }

    /// Returns whether the run has a plugin or a reward model of this name.
    fn knows(&self, name: &str) -> bool {
        self.with(|board| {
            board.slots.iter().any(|slot| slot.name == name) || board.config.plugin.iter().any(|entry| entry.name() == name)
        })
    }

    /// Deletes requests for plugins that the run does not have. Returns one refusal for all of them.
    fn unknown(&self, requests: &[SwapRequest]) -> Option<Proposal> {
        requests.iter().for_each(SwapRequest::remove);
        let last = requests.last()?;
        let names = self.with(|board| board.slots.iter().map(|s| s.name.clone()).collect::<Vec<_>>().join(", "));
        let more = match requests.len() - 1 {
            0 => String::new(),
            more => format!(" or of {more} other names that were requested"),
        };
        Some(refused(last, format!("this run has no plugin of that name{more}; it has {names}")))
    }

    /// Handles a request; returns false if the run has ended.
    fn request(&mut self, request: &SwapRequest) -> bool {
        let (name, about) = (request.name.as_str(), request.read_body());
        let read = read_file(&request.path);
        request.remove();
        let about = match about {
            Ok(about) => about,
            Err(e) => return self.propose(refused(request, format!("what it says of its settings can't be read: {e}"))),
        };
        let trigger = Trigger::Request(request.sender(&about));
        if request.is_of_settings() {
            return self.settings_requested(name, &about, &trigger).into_iter().all(|proposal| self.propose(proposal));
        }
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) => return self.propose(refused(request, e.to_string())),
        };
        let slot = self.with(|board| board.slots.iter().find(|slot| slot.name == name).cloned());
        let proposal = match slot {
            Some(slot) if !request.is_of_model() => {
                let source = PluginSource::new(name.to_owned(), Cow::Owned(bytes));
                tracing::info!("{name}: rlhost swap sent version {}; compiling and trying it", short_hash(source.hash()));
                let config = about.settings.unwrap_or_else(|| slot.config.clone());
                self.candidate(PluginSlot { source, config, ..slot }, trigger)
            }
            None if !request.is_of_model() => refused(request, "it is a reward model, and the file a plugin".to_owned()),
            _ => self.model_candidate(name, &String::from_utf8_lossy(&bytes), trigger),
        };
        self.propose(proposal)
    }

    /// Handles plugin files with new content.
    fn files(&mut self) -> bool {
        for slot in self.with(|board| board.slots.clone()) {
            let Some(file) = &slot.file else { continue };
            let Some(proposal) = self.changed_file(&slot, file) else { continue };
            if !self.propose(proposal) {
                return false;
            }
        }
        true
    }

    /// Returns the proposal for a file that has new content and has stopped changing.
    fn changed_file(&mut self, slot: &PluginSlot, file: &PluginFile) -> Option<Proposal> {
        let bytes = match file.read() {
            Ok(bytes) => bytes,
            Err(error) => return self.not_read(&slot.name, Trigger::File, &error),
        };
        self.unreadable.remove(&slot.name);
        let mut given = Some(PluginSource::new(slot.name.clone(), Cow::Owned(bytes)));
        let read = || Some(PluginSource::new(slot.name.clone(), Cow::Owned(file.read().ok()?)));
        let mut last_try = false;
        // A file that keeps changing is handled when the next change is reported.
        for _ in 0..20 {
            let first = given.take().or_else(read)?;
            if self.noticed.get(&slot.name).is_some_and(|hash| hash == first.hash()) {
                return None;
            }
            std::thread::sleep(SETTLED);
            let source = read()?;
            if first.hash() != source.hash() {
                continue;
            }
            let hash = source.hash().to_owned();
            if source.is_complete() {
                let (name, hash) = (&slot.name, short_hash(&hash));
                let what = if file.is_script() { "trying it" } else { "compiling and trying it" };
                tracing::info!("{name}: new version {hash} in {}; {what}", printable_path(file.file()));
            }
            let (proposal, whole) = self.tried(PluginSlot { source, ..slot.clone() }, Trigger::File);
            if !whole && !last_try {
                // The file may still be being copied.
                std::thread::sleep(GROWING);
                last_try = read()?.hash() == hash;
                continue;
            }
            self.noticed.insert(slot.name.clone(), hash);
            return Some(proposal);
        }
        None
    }

    /// Handles an unreadable file of a plugin or of the configuration: if it exists, the change is rejected once.
    fn not_read(&mut self, name: &str, trigger: Trigger, error: &io::Error) -> Option<Proposal> {
        // The file is being replaced.
        if error.kind() == io::ErrorKind::NotFound {
            return None;
        }
        let reason = format!("its file can't be read: {error}");
        let known = self.unreadable.insert(name.to_owned(), reason.clone());
        (known.as_ref() != Some(&reason)).then(|| Proposal::Refused { name: name.to_owned(), hash: None, trigger, reason })
    }

    fn candidate(&self, slot: PluginSlot, trigger: Trigger) -> Proposal {
        self.tried(slot, trigger).0
    }

    /// Loads and tries a candidate for a slot. Also returns whether the file is a complete component.
    fn tried(&self, slot: PluginSlot, trigger: Trigger) -> (Proposal, bool) {
        let (noticed, seed, trial) = self.with(|board| (board.step, board.config.seed, board.trial.clone()));
        let config = self.with(|board| board.config.clone());
        let given = if trigger.sets() { &slot.config } else { &slot.chosen };
        let (mut whole, begun) = (true, Instant::now());
        let attempt = || {
            let load = |given| AnyPlugin::load(&self.engine, &slot.source, slot.role, given, &slot.limits, seed);
            let loaded = match load(given) {
                // The new version may lack a setting that was explicitly set to its default.
                Err(plugin::Error::Config { .. }) if !trigger.sets() => load(&slot.beyond_defaults),
                loaded => loaded,
            };
            whole = !matches!(loaded, Err(plugin::Error::NotComponent { .. }));
            let mut loaded = loaded.map_err(|e| e.to_string())?;
            fits(&mut loaded, &trial, &config)?;
            let report = trial.run(&mut loaded).map_err(|e| e.to_string())?;
            // Every version is stored in the run's folder before it is used.
            keep_bytes(&self.run(), &slot.source).map_err(|e| e.to_string())?;
            Ok((loaded, report))
        };
        let proposal = match self.tried_apart(attempt) {
            Ok((loaded, report)) => {
                let chosen = ChosenSettings::from([(slot.name.clone(), slot.chosen.keys().cloned().collect())]);
                let (config, beyond_defaults) = (loaded.plugin().config(), loaded.plugin().non_default_settings());
                let slot = Box::new(PluginSlot { config, beyond_defaults, ..slot }.chosen_among(&chosen));
                let took = begun.elapsed().as_secs_f64();
                tracing::info!("{}: it passed its trial in {took:.1} s and is swapped in before the next step", slot.name);
                Proposal::Swap(Box::new(SwapCandidate {
                    version: LoadedVersion::Plugin { loaded, slot },
                    report,
                    trigger,
                    noticed,
                }))
            }
            Err(reason) => {
                Proposal::Refused { name: slot.name.clone(), hash: Some(slot.source.hash().to_owned()), trigger, reason }
            }
        };
        (proposal, whole)
    }

    /// Runs an attempt on the trial threads; a panic counts as a refusal.
    pub(super) fn tried_apart<T: Send>(&self, attempt: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
        let tried = catch_unwind(AssertUnwindSafe(|| self.pool.install(attempt)));
        tried.unwrap_or_else(|_| Err("trying it panicked; this is a bug in rlhost".to_owned()))
    }

    /// Handles changes of the run's config.toml.
    fn settings(&mut self) -> bool {
        let file = RunFiles(&self.run()).config();
        let mut edits = Ok(Vec::new());
        let mut senseless = None;
        for _ in 0..20 {
            let text = match files::read(&file, config::LARGEST) {
                Ok(text) => text,
                Err(error) => {
                    let refused = self.not_read(RunFiles::CONFIG, Trigger::Settings, &error);
                    return refused.is_none_or(|refused| self.propose(refused));
                }
            };
            self.unreadable.remove(RunFiles::CONFIG);
            if text == self.config {
                return true;
            }
            std::thread::sleep(SETTLED);
            // The run changes its configuration and the file while it has the lock.
            let compared = self.with(|board| {
                let is_settled = files::read(&file, config::LARGEST).is_ok_and(|now| now == text);
                let read = || config::read([file.as_path()], &Overrides::default()).map_err(|e| e.to_string());
                is_settled.then(|| read().and_then(|new| edits_between(&board.config, &new)))
            });
            let Some(compared) = compared else { continue };
            edits = compared;
            if edits.is_ok() || senseless.as_ref() == Some(&text) {
                self.config = text;
                break;
            }
            // An invalid text may be incomplete.
            senseless = Some(text);
            std::thread::sleep(GROWING);
        }
        let edits = match edits {
            Ok(edits) => edits,
            Err(reason) => {
                let (name, trigger) = (RunFiles::CONFIG.to_owned(), Trigger::Settings);
                return self.propose(Proposal::Refused { name, hash: None, trigger, reason });
            }
        };
        edits.into_iter().filter_map(|edit| self.edited(edit, &Trigger::Settings)).all(|proposal| self.propose(proposal))
    }

    /// Returns the proposal for an edit of the configuration; none if the run lacks the plugin.
    pub(super) fn edited(&self, edit: ConfigEdit, trigger: &Trigger) -> Option<Proposal> {
        Some(match edit {
            ConfigEdit::Settings { name, weight, on_error } => {
                Proposal::Settings { name, weight, on_error, trigger: trigger.clone() }
            }
            ConfigEdit::Plugin { name, config, limits } => {
                let slot = self.with(|board| {
                    let of_algorithm = |s: &&PluginSlot| s.role == Role::Algorithm;
                    let slots = &board.slots;
                    name.map_or_else(|| slots.iter().find(of_algorithm), |n| slots.iter().find(|s| s.name == n)).cloned()
                })?;
                let source =
                    trigger.by().map_or_else(|| RunFiles::CONFIG.to_owned(), |by| format!("a request of {}", printable(by, 200)));
                tracing::info!("{}: new settings in {source}; trying them", slot.name);
                self.candidate(PluginSlot { config, limits, ..slot }, trigger.clone())
            }
        })
    }
}

/// Returns the refusal of a request.
fn refused(request: &SwapRequest, reason: String) -> Proposal {
    let about = request.read_body().unwrap_or_default();
    let trigger = Trigger::Request(request.sender(&about));
    Proposal::Refused { name: request.name.clone(), hash: None, trigger, reason }
}

const COMPARES: &str = "its loss, with these settings, compares the rows of a micro-batch with each other, and this run splits \
                        micro-batches by tokens (max_tokens_per_microbatch)";

/// Checks that a plugin fits the run: the run must have the columns that it needs, and an algorithm must learn from the run's data and
/// support its targets and its splitting of micro-batches.
fn fits(loaded: &mut AnyPlugin, trial: &super::PluginTrial, config: &RunConfig) -> Result<(), String> {
    let AnyPlugin::Algorithm(algorithm) = loaded else { return Ok(()) };
    let (flow, extras) = (trial.flow(), trial.extras());
    let own = Flow::new(algorithm, config);
    if own != flow {
        return Err(format!("it learns from {own}, and this run from {flow}"));
    }
    flow.check_needs(&algorithm.info().needs)?;
    if config.max_tokens_per_microbatch.is_some() && !is_separable(algorithm).map_err(|e| e.to_string())? {
        return Err(COMPARES.to_owned());
    }
    let (needs, hints) = (&algorithm.info().needs, &algorithm.info().hints);
    let reason = if (needs.has(VALUE) || needs.has(OLD_VALUE)) && !extras.critic {
        "it needs a critic's values, but this run was started without a critic"
    } else if needs.has(REF_LOGP) && !extras.reference {
        "it needs log-probabilities of the reference model, but this run was started without one"
    } else if needs.has(TEACHER_LOGP) && !extras.teacher_logp
        || needs.divergence().is_some_and(|(_, column)| !extras.divergence.has(column))
    {
        "it needs a teacher's predictions that this run does not have: it was started without them"
    } else if hints.compares && config.group_size() < 2 {
        "it compares completions of a prompt with each other, and this run generates one of each (num_generations)"
    } else if config.label_smoothing_factor > 0.0 && !hints.smoothed {
        "it does not take the run's smoothed targets (label_smoothing_factor) with these settings"
    } else {
        return Ok(());
    };
    Err(reason.to_owned())
}

/// A configuration change that is allowed during a run.
#[derive(Debug, PartialEq)]
pub(super) enum ConfigEdit {
    Settings {
        name: String,
        weight: f64,
        on_error: RewardErrorAction,
    },
    /// New settings of the reward of this name or, without a name, of the algorithm.
    Plugin {
        name: Option<String>,
        config: Map<String, Value>,
        limits: config::PluginLimits,
    },
}

/// Returns the differences between two configurations.
///
/// # Errors
/// Names a key that can't change during a run.
pub(super) fn edits_between(now: &RunConfig, new: &RunConfig) -> Result<Vec<ConfigEdit>, String> {
    let changes = config::changes(now, new).map_err(|e| e.to_string())?;
    if let Some(key) = changes.keys().find(|key| config::key(key).is_none_or(|known| !known.live)) {
        return Err(cant_change(key));
    }
    let entries = |config: &RunConfig| config.plugin.iter().chain(&config.environment).cloned().collect::<Vec<_>>();
    let paths = |config: &RunConfig| {
        let of = |entries: &[PluginEntry]| entries.iter().map(|e| e.path.clone()).collect::<Vec<_>>();
        (of(&config.plugin), of(&config.environment))
    };
    if paths(now) != paths(new) {
        return Err(cant_change("the list of plugins"));
    }
    if let Some((is, _)) = entries(new).iter().zip(&entries(now)).find(|(is, was)| is.grants() != was.grants()) {
        return Err(cant_change(&format!("what {} is granted", is.name())));
    }
    let granted = now.grants();
    if let Some(more) = new.grants().iter().find(|grant| !granted.iter().any(|own| own.covers(grant))) {
        return Err(format!("{more} is more than the run was granted; stop it, and resume it with {}", more.flags()));
    }
    let mut edits = Vec::new();
    if now.loss != new.loss || now.loss_limits != new.loss_limits {
        edits.push(ConfigEdit::Plugin { name: None, config: new.loss.clone(), limits: new.loss_limits.clone() });
    }
    for (was, is) in entries(now).iter().zip(&entries(new)) {
        let name = is.name().to_owned();
        if let Some(((key, _), _)) = was.fixed().into_iter().zip(is.fixed()).find(|(was, is)| was != is) {
            return Err(cant_change(&format!("plugin.{name}.{key}")));
        }
        if was.config != is.config || was.limits != is.limits {
            edits.push(ConfigEdit::Plugin { name: Some(name.clone()), config: is.config.clone(), limits: is.limits.clone() });
        }
        if was.weight != is.weight || was.on_error != is.on_error {
            edits.push(ConfigEdit::Settings { name, weight: is.weight, on_error: is.on_error });
        }
    }
    Ok(edits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PluginEntry, PluginLimits};

    #[test]
    fn weights_and_settings_may_change_and_nothing_else() {
        let now = RunConfig { plugin: vec![PluginEntry::new("a.wasm".into())], ..RunConfig::default() };
        let mut new = now.clone();
        assert_eq!(edits_between(&now, &new), Ok(Vec::new()));
        new.plugin[0].weight = 2.0;
        new.loss.insert("beta".into(), 0.5.into());
        let made = edits_between(&now, &new).unwrap();
        assert_eq!(made.len(), 2);
        assert_eq!(made[1], ConfigEdit::Settings { name: "a".into(), weight: 2.0, on_error: RewardErrorAction::Fail });
        let granted = PluginEntry { hosts: vec!["a".into()], ..new.plugin[0].clone() };
        let granted = RunConfig { plugin: vec![granted], ..new.clone() };
        assert!(edits_between(&now, &granted).unwrap_err().starts_with("what a is granted can't change"));
        let limited = |memory_mb| {
            let limits = PluginLimits { memory_mb, ..PluginLimits::default() };
            RunConfig {
                loss_limits: limits.clone(),
                plugin: vec![PluginEntry { limits, ..now.plugin[0].clone() }],
                ..now.clone()
            }
        };
        assert_eq!(edits_between(&now, &limited(100)).unwrap().len(), 2);
        assert_eq!(edits_between(&limited(4000), &limited(2000)).unwrap().len(), 2);
        for (was, is) in [(512, 513), (4000, 4001)] {
            let refused = edits_between(&limited(was), &limited(is)).unwrap_err();
            assert!(
                refused.contains("more than the run was granted") && refused.contains("--set 'loss_limits.memory_mb="),
                "{refused}"
            );
        }
        new.temperature = 0.5;
        assert!(edits_between(&now, &new).unwrap_err().starts_with("temperature can't change"));
        let mut evaluating = now.clone();
        evaluating.plugin[0].eval_only = true;
        assert!(edits_between(&now, &evaluating).unwrap_err().starts_with("plugin.a.eval_only can't change"));
        let other = RunConfig { plugin: vec![PluginEntry::new("b.wasm".into())], ..RunConfig::default() };
        assert!(edits_between(&now, &other).unwrap_err().contains("list of plugins"));
    }
}
