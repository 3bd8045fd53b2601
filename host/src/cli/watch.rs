//! `rlhost watch`: shows a run in the terminal.

use super::failure::CommandFailure;
use super::swap::{SwapAnswer, SwapSubmission};
use super::{display, output};
use crate::report;
use anyhow::anyhow;
use rlhost_watch::{SwapReply, TerminalTheme, WatchBackend};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Arguments of `watch`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    run: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    report::check(&args.run).map_err(CommandFailure::mistake)?;
    let kind = std::env::var("TERM").unwrap_or_default();
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() || kind == "dumb" {
        let advice = "rlhost report writes a page of the run, and rlhost ui shows it in the browser";
        return Err(CommandFailure::mistake(anyhow!("rlhost watch needs a terminal that it can draw on; {advice}")));
    }
    let stopped = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM] {
        // A second signal ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stopped))
            .map_err(CommandFailure::failed)?;
        signal_hook::flag::register(signal, Arc::clone(&stopped)).map_err(CommandFailure::failed)?;
    }
    // From now on, the view owns the screen.
    display::end();
    let held = output::hold_log();
    // The font of Linux's console has no Braille patterns.
    let look = TerminalTheme { color: !output::is_plain(), braille: kind != "linux" };
    let watched = rlhost_watch::watch(&args.run, look, WatchPlugins, &stopped);
    drop(held);
    watched.map_err(|error| CommandFailure::failed(anyhow!("the terminal can't be used: {error}")))
}

/// The view's access to plugins.
struct WatchPlugins;

impl WatchBackend for WatchPlugins {
    fn swap(&self, run: &Path, name: &str, file: &str) -> Result<SwapReply, String> {
        let answer = SwapSubmission::send(run, name, file).and_then(|sent| sent.wait(|| ()));
        match answer {
            Ok(SwapAnswer::Swapped(said)) => Ok(SwapReply::Swapped(said)),
            Ok(SwapAnswer::Refused(reason)) => Ok(SwapReply::Refused(reason)),
            Err(error) => Err(format!("{error:#}")),
        }
    }
}
