//! `rlhost ui`: serves a page for the browser with the runs of a folder.

use super::failure::CommandFailure;
use super::{control, output, replay, swap};
use crate::config::PluginLimits;
use crate::plugin::{self, PluginEngine, PluginSource};
use crate::report;
use crate::run::{PluginRequest, RunAction};
use anyhow::anyhow;
use rlhost_ui::{PageBackend, PageServer, PageServerSettings, PluginChanges, RescoredCompletion, RescoringRequest};
use serde_json::{Map, Value};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Polling interval for signals.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `ui`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of a run, or of runs
    #[arg(value_name = "RUN|FOLDER", default_value = ".")]
    folder: PathBuf,
    /// Address to listen on; the page's address has a token, but is not encrypted
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Let the page try, swap and roll back plugins, and edit their settings
    #[arg(long)]
    control: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    check(&args.folder).map_err(CommandFailure::mistake)?;
    let stopped = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stopped))
            .map_err(CommandFailure::failed)?;
        signal_hook::flag::register(signal, Arc::clone(&stopped)).map_err(CommandFailure::failed)?;
    }
    super::threads::start_threads().map_err(CommandFailure::from_error)?;
    let settings =
        PageServerSettings { root: args.folder.clone(), host: args.host.clone(), port: args.port, control: args.control };
    let page = PageServer::start(settings, PagePlugins).map_err(CommandFailure::mistake)?;
    if !page.address().ip().is_loopback() {
        tracing::warn!("anyone who learns the page's address can open it, and it is sent unencrypted; prefer an SSH tunnel");
    }
    let may = if args.control { "shows and controls" } else { "shows" };
    say!("{}  {may} {}; Ctrl-C stops", page.url(), args.folder.display());
    output::finish()?;
    while !stopped.load(Ordering::SeqCst) {
        std::thread::sleep(SIGNAL_POLL_INTERVAL);
    }
    Ok(())
}

/// Serves the page of a run in the same process, read-only, until the result is dropped. Trying plugins would take the run's threads.
pub(super) fn serve_run_page(run: &Path) -> Option<PageServer> {
    let settings = PageServerSettings { root: run.to_owned(), host: "127.0.0.1".into(), port: 0, control: false };
    match PageServer::start(settings, PagePlugins) {
        Ok(page) => {
            say!("page: {}", page.url());
            Some(page)
        }
        Err(error) => {
            tracing::warn!("--ui: {error}; the run goes on without its page");
            None
        }
    }
}

/// Refuses paths that can't have runs. An empty folder is fine, because a run may begin there.
fn check(folder: &Path) -> anyhow::Result<()> {
    if folder.is_dir() && !crate::run::is_checkpoint(folder) {
        return Ok(());
    }
    let detail = report::check(folder).err();
    Err(detail.map_or_else(|| anyhow!("{}: give the folder of a run, or of runs", folder.display()), anyhow::Error::from))
}

/// The page's access to plugins.
pub(super) struct PagePlugins;

/// Returns an error followed by those of its causes that it does not already contain.
fn message(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .reduce(|all, cause| if all.contains(&cause) { all } else { format!("{all}: {cause}") })
        .unwrap_or_default()
}

/// Returns the name of the user who acts on the page, which is the one who started it.
fn in_the_browser() -> String {
    format!("{}, in the browser", swap::user())
}

impl PageBackend for PagePlugins {
    fn plugin(&self, file: &Path) -> Result<Vec<u8>, String> {
        let source = PluginSource::open(&file.display().to_string()).map_err(|error| error.to_string())?;
        Ok(source.bytes().to_vec())
    }

    fn source(&self, bytes: &[u8]) -> Option<String> {
        let source = PluginSource::new(String::new(), Cow::Owned(bytes.to_vec()));
        source.script().map(|script| script.source.clone())
    }

    fn form(&self, plugin: &Path) -> Result<Value, String> {
        let fields = || {
            let source = PluginSource::open(&plugin.display().to_string())?;
            let fields = plugin::fields_of(&PluginEngine::new()?, &source, &PluginLimits::default())?;
            Ok::<_, anyhow::Error>(serde_json::to_value(fields)?)
        };
        fields().map_err(|error| message(&error))
    }

    fn swap(&self, run: &Path, name: &str, bytes: &[u8], settings: Option<&Map<String, Value>>) -> Result<String, String> {
        let about = PluginRequest { by: in_the_browser(), settings: settings.cloned(), weight: None };
        swap::request(run, name, Some(bytes), &about).map_err(|error| message(&error))
    }

    fn configure(&self, run: &Path, name: &str, changes: &PluginChanges) -> Result<String, String> {
        let PluginChanges { settings, weight } = changes.clone();
        let about = PluginRequest { by: in_the_browser(), settings, weight };
        swap::request(run, name, None, &about).map_err(|error| message(&error))
    }

    fn request(&self, run: &Path, action: RunAction) -> Result<String, String> {
        control::request(run, action, &in_the_browser()).map_err(|error| message(&error))
    }

    fn rescore(&self, question: &RescoringRequest<'_>) -> Result<Vec<RescoredCompletion>, String> {
        replay::what_if(question).map_err(|error| message(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_each_cause_once() {
        let cause = || anyhow!("it is too large");
        assert_eq!(message(&cause().context("can't read a.py")), "can't read a.py: it is too large");
        assert_eq!(message(&cause().context("a.py: it is too large")), "a.py: it is too large");
    }
}
