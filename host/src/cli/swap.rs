//! `rlhost swap`: replaces a plugin or reward model of a running run and reports the outcome.

use super::failure::CommandFailure;
use crate::config::{Overrides, PluginEntry, did_you_mean, files, now, printable, read};
use crate::metrics::ScoreComparison;
use crate::plugin::PluginSource;
use crate::run::{EffectiveConfig, EventKind, EventLine, PluginRequest, RunFiles, is_running};
use crate::train;
use anyhow::{Context, anyhow};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Arguments of `swap`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    run: PathBuf,
    /// Name of the plugin in the run, and the file or built-in plugin that replaces it; or of a reward model, and its new folder
    #[arg(value_name = "NAME=FILE")]
    swap: String,
    /// Don't wait for the outcome
    #[arg(long, alias = "no_wait")]
    no_wait: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let (name, file) = args.swap.split_once('=').ok_or_else(|| {
        CommandFailure::mistake(anyhow!("{:?}: expected NAME=FILE, as in tldr_length_reward=better.wasm", args.swap))
    })?;
    let sent = SwapSubmission::send(&args.run, name, file).map_err(CommandFailure::from_error)?;
    if args.no_wait {
        say!("sent");
        return Ok(());
    }
    match sent.wait(log_wait).map_err(CommandFailure::from_error)? {
        SwapAnswer::Swapped(said) => say!("{name} was swapped {said}"),
        SwapAnswer::Refused(reason) => return Err(CommandFailure::failed(anyhow!("{name} was not swapped: {reason}"))),
    }
    Ok(())
}

/// A run's answer to a swap request.
pub(super) enum SwapAnswer {
    /// The run swapped the plugin in, at this step and with this comparison of scores.
    Swapped(String),
    /// The run refused the plugin, for this reason.
    Refused(String),
}

/// A swap request that was sent to a run.
pub(super) struct SwapSubmission {
    run: PathBuf,
    name: String,
    /// Length of the run's events file before the request, in bytes.
    from: u64,
}

impl SwapSubmission {
    /// Sends a file, built-in plugin or folder of a reward model to a running run, to replace the plugin or reward model of this name.
    pub(super) fn send(run: &Path, name: &str, file: &str) -> anyhow::Result<Self> {
        let (bytes, kind) = match check(run, name)? {
            SwapTargetKind::Plugin => (PluginSource::open(file)?.bytes().to_vec(), "wasm"),
            // The run reads the folder's contents itself, while it continues.
            SwapTargetKind::Model => (folder(file)?.into_bytes(), "model"),
        };
        let from = RunFiles(run).events().metadata().map_or(0, |m| m.len());
        let failed = |source| train::Error::Write { path: RunFiles(run).inbox(), source };
        let about = PluginRequest { by: user(), ..PluginRequest::default() };
        let name = send(run, name, Some((&bytes, kind)), &about).map_err(failed)?;
        Ok(Self { run: run.to_owned(), name, from })
    }

    /// Waits for the run's answer. Calls `late` once if the answer is delayed.
    pub(super) fn wait(&self, late: impl Fn()) -> anyhow::Result<SwapAnswer> {
        let answer = wait(&self.run, self.from, &self.name, late)?;
        if answer.kind == Some(EventKind::PluginRefused) {
            return Ok(SwapAnswer::Refused(answer.text("reason").to_owned()));
        }
        let short = |key: &str| answer.text(key).chars().take(12).collect::<String>();
        let swapped = format!("at step {}: {} -> {}", answer.step.unwrap_or_default(), short("from"), short("to"));
        let shadow = answer.fields.get("shadow").filter(|shadow| shadow.is_object());
        let compared = shadow.and_then(|shadow| serde_json::from_value::<ScoreComparison>(shadow.clone()).ok());
        Ok(SwapAnswer::Swapped(compared.map_or_else(|| swapped.clone(), |compared| format!("{swapped}\n{compared}"))))
    }
}

/// Sends a plugin's bytes to a running run, or settings for its current plugin, without waiting for the outcome. Returns the request's
/// name.
pub(super) fn request(run: &Path, name: &str, bytes: Option<&[u8]>, about: &PluginRequest) -> anyhow::Result<String> {
    match check(run, name)? {
        SwapTargetKind::Model if bytes.is_some() => {
            Err(anyhow!("{name} is a reward model: replace it with rlhost swap, which takes a folder"))
        }
        SwapTargetKind::Plugin | SwapTargetKind::Model => {
            let plugin = bytes.map(|bytes| (bytes, "wasm"));
            send(run, name, plugin, about).with_context(|| RunFiles(run).inbox().display().to_string())
        }
    }
}

/// The kind of the replaced item.
enum SwapTargetKind {
    Plugin,
    Model,
}

/// Returns the path of a reward model's folder for the run.
fn folder(given: &str) -> anyhow::Result<String> {
    let (folder, name) = train::model_of(given)?;
    if folder.is_dir() {
        Ok(name)
    } else {
        Err(anyhow!("{given}: a reward model can only be replaced with the folder of another"))
    }
}

/// Checks that the run is running and has a plugin or reward model with this name. Returns which of the two it is.
fn check(run: &Path, name: &str) -> anyhow::Result<SwapTargetKind> {
    match is_running(run) {
        Some(true) => {}
        None if RunFiles(run).lock().is_file() => {}
        Some(false) => return Err(anyhow!("{}: no rlhost process is running this run", run.display())),
        None => return Err(anyhow!("{} is not the folder of a run", run.display())),
    }
    let path = EffectiveConfig::own_path(run).with_context(|| RunFiles(run).config().display().to_string())?;
    let config = read([path.as_path()], &Overrides::default())?;
    if !config.hot_reload {
        return Err(anyhow!("{}: this run was started with hot_reload = false", run.display()));
    }
    let algorithm = PluginEntry::new(config.algorithm.clone()).name().to_owned();
    if config.plugin.iter().any(|entry| entry.model && entry.name() == name) {
        return Ok(SwapTargetKind::Model);
    }
    let entries = config.plugin.iter().chain(&config.environment);
    let names: Vec<&str> = entries.map(PluginEntry::name).chain([algorithm.as_str()]).collect();
    if !names.contains(&name) {
        let meant = did_you_mean(name, names.iter().copied());
        return Err(anyhow!("this run has no plugin {name:?}; it has {}{meant}", names.join(", ")));
    }
    Ok(SwapTargetKind::Plugin)
}

/// Writes a request into the run's inbox, each file atomically: its bytes, if any, with the extension of their file, and the data that
/// accompany them. Returns the request's name.
fn send(run: &Path, name: &str, bytes: Option<(&[u8], &str)>, about: &PluginRequest) -> std::io::Result<String> {
    let inbox = RunFiles(run).inbox();
    // The inbox may have been removed since the run began.
    files::create_folder(&inbox)?;
    // Names of later requests sort later.
    let request = format!("{name}@{}", now().as_nanosecond());
    let put = |bytes: &[u8], ending: &str| {
        let mut temporary = tempfile::Builder::new().prefix(".swap-").tempfile_in(run)?;
        temporary.write_all(bytes)?;
        temporary.persist(inbox.join(format!("{request}.{ending}"))).map(drop).map_err(|e| e.error)
    };
    let about = serde_json::to_vec(about)?;
    match bytes {
        // The run reads the request once the bytes exist.
        Some((bytes, ending)) => put(&about, PluginRequest::COMPANION_ENDING).and_then(|()| put(bytes, ending))?,
        None => put(&about, PluginRequest::SETTINGS_ENDING)?,
    }
    Ok(request)
}

/// Returns whether a request is newer than another for the same plugin.
fn is_later(one: &str, other: &str) -> bool {
    let parts = |id: &str| id.rsplit_once('@').and_then(|(name, number)| Some((name.to_owned(), number.parse::<u128>().ok()?)));
    parts(one).zip(parts(other)).is_some_and(|(one, other)| one.0 == other.0 && one.1 > other.1)
}

/// Logs that the answer comes after the current step.
pub(super) fn log_wait() {
    tracing::info!("waiting for the current step to end");
}

/// Reads the run's events from a byte offset on until one answers the request. Calls `late` once if the answer is delayed.
pub(super) fn wait(run: &Path, from: u64, request: &str, late: impl Fn()) -> anyhow::Result<EventLine> {
    let (begun, events) = (Instant::now(), RunFiles(run).events());
    let mut told = false;
    loop {
        let mut text = String::new();
        let mut file = files::open(&events).with_context(|| events.display().to_string())?;
        file.seek(SeekFrom::Start(from))?;
        file.read_to_string(&mut text)?;
        let mut lines: Vec<EventLine> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).map(EventLine::from_fields).collect();
        if let Some(answer) = lines.iter().position(|event| event.text("request") == request) {
            return Ok(lines.swap_remove(answer));
        }
        if let Some(later) = lines.iter().find(|event| is_later(event.text("request"), request)) {
            let name = printable(later.text("request"), 256);
            return Err(anyhow!("{}: the newer request {name} was handled instead, so this one was dropped", run.display()));
        }
        if is_running(run) == Some(false) {
            return Err(anyhow!("{}: the run ended before it answered", run.display()));
        }
        if !told && begun.elapsed() > Duration::from_secs(2) {
            late();
            told = true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the user's name, or the user's id if the environment has no name, as in a container.
pub(super) fn user() -> String {
    let named =
        ["USER", "LOGNAME", "USERNAME"].into_iter().filter_map(|key| std::env::var(key).ok()).find(|name| !name.is_empty());
    named.or_else(number).unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the user's id, from the owner of a new file.
fn number() -> Option<String> {
    let made = tempfile::tempfile().and_then(|file| file.metadata()).ok()?;
    files::owner(&made).map(|number| format!("uid {number}"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_has_a_number() {
        let number = number().unwrap();
        assert!(number.strip_prefix("uid ").is_some_and(|digits| digits.parse::<u32>().is_ok()), "{number}");
    }
}
