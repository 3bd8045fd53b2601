//! The folder of a run and its log files.

use super::PluginVersions;
use super::completion_lines::{line_of, token_values};
use crate::checkpoint;
use crate::config::json_lines::{self, JsonLinesReader};
use crate::config::{
    self, CompletionLogging, Grant, Grants, ReportTarget, RunConfig, SaveErrorAction, files, local_now, printable_path,
    shell_word,
};
use crate::data::Tokenizer;
use crate::experience::Experience;
use crate::metrics::{JsonLinesWriter, LogLine, TensorBoard, code_block};
use crate::plugin::{Plugin, PluginSource};
use crate::run::{
    self, CheckpointFiles, CompletionLine, PluginVersion, RunEvent, RunFiles, RunLock, Whereabouts, is_completion_undone,
    is_undone, lock,
};
use crate::{Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::{self, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Maximum number of completions that a process writes to failed.jsonl.
const MOST_FAILED: usize = 256;

/// Maximum length of a log line, in bytes.
const LONGEST_LINE: u64 = 64 << 20;

/// An open run folder.
pub struct RunFolder {
    path: PathBuf,
    /// The configuration as in config.toml.
    config: String,
    /// Log files; none if another process writes them.
    files: Option<RunLogs>,
    /// Whether the run continues if a line can't be written.
    lenient: bool,
    /// Number of completions in failed.jsonl that this process has written.
    failed: usize,
    /// The plugins in use.
    plugins: Vec<PluginSource>,
    /// Grants of the configuration.
    grants: Vec<Grant>,
}

struct RunLogs {
    /// Held while this process works in the folder.
    lock: RunLock,
    metrics: JsonLinesWriter,
    events: JsonLinesWriter,
    completions: Option<JsonLinesWriter>,
    tensorboard: Option<TensorBoard>,
}

fn write_error(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    |source| Error::Write { path: path.to_owned(), source }
}

fn now() -> String {
    crate::config::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The position at which a resumed run continues.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResumePoint {
    /// The last completed step.
    pub step: u64,
    /// Whether the run begins with the evaluation after that step.
    pub owes_evaluation: bool,
    /// Whether steps up to that one are not logged yet. If a row of that step ended their window, the run writes it again.
    pub has_open_window: bool,
}

/// Fields of a log line that decide whether it is kept.
#[derive(Deserialize)]
struct LogLineStep {
    #[serde(default)]
    step: Option<u64>,
    /// Duration of an evaluation; only lines of evaluations have it.
    #[serde(default)]
    eval_runtime: Option<f64>,
}

impl ResumePoint {
    /// Returns whether a line of metrics is kept. Lines of repeated steps, of a repeated evaluation and of a reopened window are not; a run
    /// that starts over also repeats its first evaluation.
    fn keeps(self, line: &LogLineStep) -> bool {
        let is_made_again = if line.eval_runtime.is_some() { self.owes_evaluation } else { self.has_open_window };
        let is_repeated = |step| step == self.step && is_made_again;
        line.step.is_some_and(|step| self.step > 0 && !is_undone(step, self.step) && !is_repeated(step))
    }
}

/// Truncates a file, if it exists, to the lines that `keep` accepts; deletes a partial line at the end.
fn cut(file: &Path, keep: impl Fn(&LogLineStep) -> bool) -> Result<()> {
    let fail = || write_error(file);
    if !files::exists_as_file(file).map_err(fail())? {
        return Ok(());
    }
    // The file is read line by line, since it may be larger than memory or endless.
    let mut lines = JsonLinesReader::open(file, LONGEST_LINE).map_err(fail())?.with_limit(u64::MAX);
    let mut kept = BufWriter::new(files::temporary_in(file.parent().unwrap_or(Path::new("."))).map_err(fail())?);
    while let Some(line) = lines.next_line().map_err(fail())? {
        let json_lines::BoundedLine::Whole(text) = line else {
            let detail = format!("line {} is longer than {} MiB", lines.number(), LONGEST_LINE >> 20);
            return Err(fail()(io::Error::new(io::ErrorKind::InvalidData, detail)));
        };
        if serde_json::from_slice::<LogLineStep>(text).is_ok_and(|line| keep(&line)) {
            kept.write_all(text).map_err(fail())?;
        }
    }
    let kept = kept.into_inner().map_err(|e| fail()(e.into_error()))?;
    kept.persist(file).map_err(|e| fail()(e.error))?;
    Ok(())
}

/// Replaces a file, or a link, atomically.
pub(crate) fn put(file: &Path, bytes: &[u8]) -> Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut temporary = files::temporary_in(folder).map_err(write_error(file))?;
    temporary.write_all(bytes).map_err(write_error(file))?;
    temporary.persist(file).map_err(|e| write_error(file)(e.error))?;
    Ok(())
}

/// Returns whether a name is that of a temporary file, of this version or an older one.
fn is_temporary(name: &str) -> bool {
    name.starts_with(".tmp") || files::is_temporary(name)
}

/// Deletes temporary files that interrupted writes have left in a folder. Those of older versions stay, since other programs may use such
/// names.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let left = entry.file_name().to_str().is_some_and(files::is_temporary);
        if left && entry.file_type().is_ok_and(|of| of.is_file()) {
            // A file that can't be removed is harmless.
            if let Err(e) = fs::remove_file(entry.path()) {
                tracing::warn!("{} is left over from an interrupted write and can't be removed: {e}", entry.path().display());
            }
        }
    }
}

/// Records the user's grants to a run. Without that, the run continues, but can't resume without the user's consent.
fn record_grants(run: &Path, grants: &[Grant]) {
    if let Err(detail) = run::record_grants(run, grants) {
        tracing::warn!("can't record your grants for this run: {detail}; resume it with --accept-grants");
    }
}

/// Stores a plugin's bytes in a run's folder, named by their hash.
pub(crate) fn keep_bytes(run: &Path, source: &PluginSource) -> Result<()> {
    let file = RunFiles(run).plugin(source.name(), source.hash());
    let there = files::exists_as_file(&file).is_ok_and(|there| there);
    // An interrupted write may have truncated it.
    let kept = there && files::read(&file, source.bytes().len() as u64).is_ok_and(|bytes| bytes == source.bytes());
    if kept { Ok(()) } else { put(&file, source.bytes()) }
}

/// Returns the parent of this folder that belongs to something else, and what that is. `named` are the paths in the configuration, with
/// their keys.
fn within(path: &Path, named: &[(&'static str, Option<&str>)]) -> Option<(PathBuf, &'static str)> {
    let absolute = std::path::absolute(path).ok()?;
    // Resolves links, as far as the path exists.
    let (missing, there) = absolute.ancestors().enumerate().find_map(|(i, folder)| Some((i, folder.canonicalize().ok()?)))?;
    for (what, given) in named {
        let Some(folder) = given.and_then(|given| Path::new(given).canonicalize().ok()) else { continue };
        if folder.is_dir() && there.starts_with(&folder) {
            return Some((folder, what));
        }
    }
    let above = there.ancestors().skip(usize::from(missing == 0));
    above.into_iter().find_map(|folder| {
        let has = |name: &str| folder.join(name).exists();
        let own = CheckpointFiles::find(folder);
        let what = if own.manifest().exists() && own.config().exists() {
            "a checkpoint"
        } else if has(RunFiles::METRICS) && has(RunFiles::CONFIG) {
            "another run's folder"
        } else if has("config.json") && (has("model.safetensors") || has("model.safetensors.index.json")) {
            "a model"
        } else if has("adapter_config.json") {
            "an adapter"
        } else {
            return None;
        };
        Some((folder.to_path_buf(), what))
    })
}

/// Returns whether a folder holds only the remains of a run that ended before its first step.
fn holds_only_remains(path: &Path) -> bool {
    let left = |name: &str| RunFiles::INITIAL.contains(&name) || is_temporary(name);
    let mut names = fs::read_dir(path).into_iter().flatten().map(|entry| entry.map(|e| e.file_name()));
    let nothing_else = names.all(|name| name.is_ok_and(|name| name.to_str().is_some_and(left)));
    let empty = |file: PathBuf| match fs::symlink_metadata(file) {
        Ok(found) => found.is_file() && found.len() == 0,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    };
    let files = RunFiles(path);
    files.lock().exists() && nothing_else && empty(files.metrics()) && empty(files.completions())
}

/// Returns whether a run can use this folder.
fn is_free(path: &Path) -> bool {
    let occupied =
        path.is_file() || is_dangling_link(path) || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    !occupied || holds_only_remains(path)
}

/// Returns whether a path is a dangling link.
fn is_dangling_link(path: &Path) -> bool {
    path.is_symlink() && !path.exists()
}

fn occupied(path: &Path) -> Error {
    if is_dangling_link(path) {
        let to = fs::read_link(path).unwrap_or_default();
        let detail =
            format!("is a link to {}, which does not exist; create that folder or name another one", printable_path(&to));
        return Error::OutputDir { path: path.to_owned(), detail };
    }
    if path.is_file() {
        return Error::OutputDir { path: path.to_owned(), detail: "is a file; name a new folder".into() };
    }
    let advice = match RunFiles(path).lock().exists() {
        true => "; --resume-from-checkpoint resumes the run in it",
        false => "",
    };
    Error::OutputDir { path: path.to_owned(), detail: format!("is not empty; choose another folder or remove it{advice}") }
}

/// Returns an unused path in `runs`.
fn unused(runs: &Path, algorithm: &str) -> PathBuf {
    let stamp = local_now().strftime("%Y%m%d-%H%M%S").to_string();
    let name = |suffix: String| runs.join(format!("{algorithm}-{stamp}{suffix}"));
    let free = (1..).map(|i| name(if i == 1 { String::new() } else { format!("-{i}") })).find(|p| !p.exists());
    free.unwrap_or_else(|| name(String::new()))
}

impl RunFolder {
    /// Returns the folder for a run. It must be empty, except for the remains of a failed start, and must not be inside a model,
    /// a checkpoint, another run, or the folder of a dataset.
    ///
    /// # Errors
    /// If the folder is not empty or is inside something else.
    pub fn choose(config: &RunConfig, algorithm: &str) -> Result<PathBuf> {
        let path = config.output_dir.as_deref().map_or_else(|| unused(Path::new("runs"), algorithm), PathBuf::from);
        if !is_free(&path) {
            return Err(occupied(&path));
        }
        let named = [("the dataset", &config.dataset), ("the eval_dataset", &config.eval_dataset), ("the model", &config.model)];
        if let Some((owner, what)) = within(&path, &named.map(|(what, path)| (what, path.as_deref()))) {
            let owner = owner.display();
            let detail =
                format!("is inside {owner}, which is {what} and may be removed or read as a whole; choose a folder elsewhere");
            return Err(Error::OutputDir { path, detail });
        }
        Ok(path)
    }

    /// Creates a folder whose name rlhost has chosen, under another name if a run that was started in the same second has created it.
    ///
    /// # Errors
    /// If it can't be created.
    pub fn claim(mut path: PathBuf, algorithm: &str) -> Result<PathBuf> {
        let runs = path.parent().unwrap_or(Path::new("")).to_owned();
        fs::create_dir_all(&runs).map_err(write_error(&runs))?;
        loop {
            match fs::create_dir(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => path = unused(&runs, algorithm),
                made => {
                    made.map_err(write_error(&path))?;
                    return Ok(path);
                }
            }
        }
    }

    /// Creates the folder and its files, or opens those of a run that resumes from a step. Log lines of later steps, which will be
    /// repeated, are removed, and their checkpoints are set aside.
    ///
    /// # Errors
    /// If another process uses the folder, or something can't be written.
    pub fn open(path: PathBuf, config: &RunConfig, goes_on: Option<ResumePoint>) -> Result<Self> {
        fs::create_dir_all(&path).map_err(write_error(&path))?;
        let files = RunFiles(&path);
        let begun = files.lock().exists();
        let lock = lock(&path).map_err(|error| match error {
            TryLockError::WouldBlock => Error::unusable(&path, "another rlhost process is running this run"),
            TryLockError::Error(source) => Error::Write { path: files.lock(), source },
        })?;
        // The folder may have been used since it was chosen.
        if goes_on.is_none() && !is_free(&path) {
            return Err(occupied(&path));
        }
        let goes_on = goes_on.or(begun.then_some(ResumePoint { step: 0, owes_evaluation: false, has_open_window: false }));
        for folder in [files.plugins(), files.inbox(), files.tensorboard(), files.made_model(), files.answers()] {
            if fs::symlink_metadata(&folder).is_ok() {
                files::create_folder(&folder).map_err(write_error(&folder))?;
            }
        }
        let plugins = files.plugins();
        files::create_folder(&plugins).map_err(write_error(&plugins))?;
        let mut aside = Vec::new();
        if let Some(at) = goes_on {
            checkpoint::sweep(&path).map_err(write_error(&path))?;
            [path.clone(), plugins, files.made_model()].iter().for_each(|folder| sweep(folder));
            aside = checkpoint::set_aside(&path, at.step).map_err(write_error(&path))?;
            cut(&files.metrics(), |line| at.keeps(line))?;
            let is_kept = |line: &LogLineStep| line.step.is_some_and(|step| !is_completion_undone(step, at.step));
            cut(&files.completions(), is_kept)?;
            cut(&files.failed(), is_kept)?;
            if files.failed().metadata().is_ok_and(|file| file.len() == 0) {
                fs::remove_file(files.failed()).map_err(write_error(&path))?;
            }
            cut(&files.events(), |_| true)?;
        }
        let open = |file: PathBuf| JsonLinesWriter::open(file.clone()).map_err(write_error(&file));
        let completions = (config.log_completions != CompletionLogging::None).then(|| open(files.completions())).transpose()?;
        let (metrics, events) = (open(files.metrics())?, open(files.events())?);
        let lenient = config.on_save_error == SaveErrorAction::Continue;
        let wanted = config.report_to.contains(&ReportTarget::Tensorboard);
        let go_on_from = goes_on.map(|at| at.step);
        let tensorboard = wanted.then(|| TensorBoard::create(&path, go_on_from)).transpose().map_err(write_error(&path))?;
        let files = Some(RunLogs { lock, metrics, events, completions, tensorboard });
        let mut this = Self { path, config: String::new(), files, lenient, failed: 0, plugins: Vec::new(), grants: Vec::new() };
        this.set_config(config)?;
        if let Some(tensorboard) = this.files.as_mut().and_then(|files| files.tensorboard.as_mut()) {
            let text = code_block(&this.config);
            tensorboard.text(go_on_from.unwrap_or(0), "config", &text).map_err(write_error(tensorboard.path()))?;
        }
        for (step, path) in aside {
            tracing::warn!("the run resumes from before step {step}; its checkpoint of that step is now {}", path.display());
            this.event(&RunEvent::CheckpointSuperseded { step, path: path.display().to_string() })?;
        }
        Ok(this)
    }

    /// Returns the folder as other processes of a run see it: read-only.
    pub fn from_other_process(path: PathBuf) -> Self {
        Self { path, config: String::new(), files: None, lenient: true, failed: 0, plugins: Vec::new(), grants: Vec::new() }
    }

    /// Returns whether another process writes the folder.
    pub fn is_of_other_process(&self) -> bool {
        self.files.is_none()
    }

    /// Returns the configuration as in config.toml.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// Returns the plugins in use.
    pub fn plugins(&self) -> &[PluginSource] {
        &self.plugins
    }

    /// Records that the plugin of this name now has these bytes, which are already stored.
    pub fn use_plugin(&mut self, source: &PluginSource) {
        if let Some(plugin) = self.plugins.iter_mut().find(|plugin| plugin.name() == source.name()) {
            plugin.clone_from(source);
        }
    }

    /// Writes a configuration to config.toml, if it has changed.
    pub fn set_config(&mut self, config: &RunConfig) -> Result<()> {
        let text = toml::to_string(config).map_err(|e| Error::encoding("the configuration", &e))?;
        if text != self.config && self.files.is_some() {
            let files = RunFiles(&self.path);
            // All of this was granted before anything was loaded. It is written first, so that a run that is killed here can resume.
            self.grants = config.grants();
            record_grants(&self.path, &self.grants);
            put(&files.config(), text.as_bytes())?;
            put(&files.written_config(), text.as_bytes())?;
            self.config = text;
        }
        Ok(())
    }

    /// Detects whether the folder was renamed, and returns its new path. If the folder is gone, a run that `saves` gets a new one, so that
    /// nothing learned is lost.
    ///
    /// # Errors
    /// If no new folder can be created.
    pub fn follow(&mut self, saves: bool) -> Result<Option<PathBuf>> {
        let Some(files) = &self.files else { return Ok(None) };
        let (now, text) = match files.lock.whereabouts(&self.path) {
            Whereabouts::Moved(now) => {
                let text = format!("the run's folder was renamed to {}; the run goes on there", printable_path(&now));
                (now, text)
            }
            Whereabouts::Gone if saves => {
                let was = printable_path(&self.path);
                let now = self.begin_anew()?;
                let text = format!("the run's folder {was} is gone; its checkpoints go to {}", printable_path(&now));
                (now, text)
            }
            Whereabouts::Gone | Whereabouts::Unchanged => return Ok(None),
        };
        tracing::warn!("{text}");
        self.path.clone_from(&now);
        self.event(&RunEvent::Warning { text: &text })?;
        Ok(Some(now))
    }

    /// Creates a new folder in place of one that is gone, with the plugins, the configuration and its grants, and new logs. Returns its
    /// path.
    fn begin_anew(&mut self) -> Result<PathBuf> {
        let name = |n: usize| PathBuf::from(format!("{}-{n}", self.path.display()));
        let free = std::iter::once(self.path.clone()).chain((1..).map(name)).find(|path| !path.exists());
        let now = free.unwrap_or_else(|| self.path.clone());
        fs::create_dir_all(&now).map_err(write_error(&now))?;
        let lock = lock(&now).map_err(|e| write_error(&now)(e.into()))?;
        let of_run = RunFiles(&now);
        let plugins = of_run.plugins();
        files::create_folder(&plugins).map_err(write_error(&plugins))?;
        self.plugins.iter().try_for_each(|source| keep_bytes(&now, source))?;
        record_grants(&now, &self.grants);
        put(&of_run.config(), self.config.as_bytes())?;
        put(&of_run.written_config(), self.config.as_bytes())?;
        let open = |file: PathBuf| JsonLinesWriter::open(file.clone()).map_err(write_error(&file));
        let (metrics, events) = (open(of_run.metrics())?, open(of_run.events())?);
        if let Some(old) = self.files.take() {
            let completions = old.completions.map(|_| open(of_run.completions())).transpose()?;
            let tensorboard = old.tensorboard.map(|_| TensorBoard::create(&now, None)).transpose().map_err(write_error(&now))?;
            self.files = Some(RunLogs { lock, metrics, events, completions, tensorboard });
        }
        Ok(now)
    }

    /// Returns whether the folder is known or assumed to be still at this path.
    pub fn is_at(&self, path: &Path) -> bool {
        self.files.as_ref().is_none_or(|files| files.lock.whereabouts(path) == Whereabouts::Unchanged)
    }

    /// Deletes the copy of the configuration that is used to detect edits, if the checkpoint of this step has the same: a finished run
    /// leaves only what users need.
    pub fn tidy(&self, step: u64) {
        let (copy, checkpoint) = (RunFiles(&self.path).written_config(), RunFiles(&self.path).checkpoint(step));
        let own = CheckpointFiles::find(&checkpoint).config();
        if self.files.is_some() && files::read(&own, config::LARGEST).is_ok_and(|text| text == self.config.as_bytes()) {
            // The copy is harmless.
            drop(fs::remove_file(copy));
        }
    }

    /// Creates the empty folder into which `rlhost swap` puts plugins.
    pub fn open_inbox(&self) -> Result<PathBuf> {
        let inbox = RunFiles(&self.path).inbox();
        if inbox.exists() {
            // The target of a link must not be touched.
            files::create_folder(&inbox).map_err(write_error(&inbox))?;
            fs::remove_dir_all(&inbox).map_err(write_error(&inbox))?;
        }
        fs::create_dir(&inbox).map_err(write_error(&inbox))?;
        Ok(inbox)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn line(lines: &mut JsonLinesWriter, lenient: bool, line: LogLine) -> Result<()> {
        match lines.write(line) {
            Err(e) if lenient => {
                tracing::warn!("can't write {}: {e}; skipping a line", lines.path().display());
                Ok(())
            }
            written => written.map_err(|source| Error::Write { path: lines.path().to_owned(), source }),
        }
    }

    /// Appends a step's metrics to metrics.jsonl and to the TensorBoard file.
    pub fn metrics(&mut self, line: LogLine) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        if let (Some(tensorboard), Some(step)) = (&mut files.tensorboard, line["step"].as_u64()) {
            match tensorboard.scalars(step, &line) {
                Err(e) if self.lenient => tracing::warn!("can't write {}: {e}", tensorboard.path().display()),
                written => written.map_err(write_error(tensorboard.path()))?,
            }
        }
        Self::line(&mut files.metrics, self.lenient, line)
    }

    /// Appends an event to events.jsonl: time, name and details.
    pub(crate) fn event(&mut self, event: &RunEvent<'_>) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let mut line = LogLine::new();
        line.insert("time".into(), now().into());
        line.insert("event".into(), json!(event.kind()));
        if let Value::Object(details) = json!(event) {
            line.extend(details);
        }
        Self::line(&mut files.events, self.lenient, line)
    }

    /// Stores a plugin's bytes by their hash, and records that the plugin was loaded.
    pub fn keep_plugin(&mut self, source: &PluginSource, role: &str, plugin: &Plugin, grants: &Grants) -> Result<()> {
        let name = source.name();
        if self.files.is_some() {
            keep_bytes(&self.path, source)?;
            if let Some(asker) = plugin.http_client() {
                let files = RunFiles(&self.path);
                let (folder, file) = (files.answers(), files.answers_of(name));
                files::create_folder(&folder).map_err(write_error(&folder))?;
                asker.persist_to(&file).map_err(|e| write_error(&file)(io::Error::other(e)))?;
            }
        }
        self.plugins.push(source.clone());
        let own = PluginVersion::new(source.hash(), &plugin.config());
        let (version, hash, config) = (plugin.info().version.as_str(), own.hash(), &Value::Object(plugin.config()));
        let granted = Some(grants.to_string()).filter(|_| !grants.is_empty());
        granted.iter().for_each(|granted| tracing::info!("{name} is granted {granted}"));
        self.event(&RunEvent::PluginLoaded { role, plugin: name, version, hash, settings: own.settings(), config, granted })
    }

    /// Appends the completions of this step's generation, with the texts of their tokens.
    pub(super) fn log_completions(
        &mut self,
        which: CompletionLogging,
        e: &Experience,
        step: u64,
        plugins: &PluginVersions,
        tokenizer: &Tokenizer,
    ) -> Result<()> {
        let Some(lines) = self.files.as_mut().and_then(|files| files.completions.as_mut()) else { return Ok(()) };
        for (row, rollout) in e.rollouts.iter().enumerate() {
            if which == CompletionLogging::Sample && rollout.prompt > 0 {
                break;
            }
            let per_token = Some(token_values(e, row, tokenizer)?);
            if let Value::Object(line) = json!(CompletionLine { per_token, ..line_of(e, row, step, plugins) }) {
                Self::line(lines, self.lenient, line)?;
            }
        }
        Ok(())
    }

    /// Appends completions that a reward failed on to failed.jsonl, and logs where they are: these rows, or all if none are known.
    pub(super) fn keep_failed(
        &mut self,
        e: &Experience,
        rows: &[usize],
        error: &str,
        step: u64,
        plugins: &PluginVersions,
    ) -> Result<()> {
        let file = RunFiles(&self.path).failed();
        let room = MOST_FAILED.saturating_sub(self.failed);
        if self.files.is_none() || room == 0 {
            return Ok(());
        }
        let all: Vec<usize> = if rows.is_empty() { (0..e.rollouts.len()).collect() } else { rows.to_vec() };
        let mut lines = JsonLinesWriter::open(file.clone()).map_err(write_error(&file))?;
        for row in all.iter().take(room) {
            if let Value::Object(line) = json!(CompletionLine { error: Some(error), ..line_of(e, *row, step, plugins) }) {
                Self::line(&mut lines, self.lenient, line)?;
                self.failed += 1;
            }
        }
        // Log it only once.
        if room == MOST_FAILED {
            let what = match rows.len() {
                0 => "the completions of the generation that failed are".to_owned(),
                1 => "the completion that failed is".to_owned(),
                n => format!("the {n} completions that failed are"),
            };
            let (file, run) = (printable_path(&file), shell_word(&self.path));
            let replay = format!("; to try another version on them: rlhost replay {run} --failed --plugin FILE");
            tracing::warn!("{what} in {file}{}", if e.episodes.is_empty() { &replay } else { "" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_chose_the_same_name_get_a_folder_each() {
        let place = tempfile::tempdir().unwrap();
        let chosen = unused(&place.path().join("runs"), "sft");
        let claimed = [(); 3].map(|()| RunFolder::claim(chosen.clone(), "sft").unwrap());
        assert_eq!(claimed[0], chosen);
        assert!(claimed.iter().all(|folder| folder.is_dir()));
        assert!(claimed[0] != claimed[1] && claimed[0] != claimed[2] && claimed[1] != claimed[2]);
        assert_eq!(fs::read_dir(place.path().join("runs")).unwrap().count(), 3);
    }
}
