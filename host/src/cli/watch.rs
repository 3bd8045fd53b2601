//! `rlhost watch`: a run in the terminal.

use super::failure::Failure;
use super::swap::{Answer, Sent};
use super::{display, output};
use crate::report;
use anyhow::anyhow;
use rlhost_watch::{Backend, Look, Outcome};
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

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    report::check(&args.run).map_err(Failure::mistake)?;
    let kind = std::env::var("TERM").unwrap_or_default();
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() || kind == "dumb" {
        let advice = "rlhost report writes a page of the run, and rlhost ui shows it in the browser";
        return Err(Failure::mistake(anyhow!("rlhost watch needs a terminal that it can draw on; {advice}")));
    }
    let stopped = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM] {
        // A second one ends it at once.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stopped)).map_err(Failure::failed)?;
        signal_hook::flag::register(signal, Arc::clone(&stopped)).map_err(Failure::failed)?;
    }
    // The screen is the view's from here on.
    display::end();
    let held = output::hold_log();
    // The console of Linux has a font without the patterns of Braille.
    let look = Look { color: !output::is_plain(), braille: kind != "linux" };
    let watched = rlhost_watch::watch(&args.run, look, Plugins, &stopped);
    drop(held);
    watched.map_err(|error| Failure::failed(anyhow!("the terminal can't be used: {error}")))
}

/// What the view needs of plugins.
struct Plugins;

impl Backend for Plugins {
    fn swap(&self, run: &Path, name: &str, file: &str) -> Result<Outcome, String> {
        let answer = Sent::send(run, name, file).and_then(|sent| sent.wait(|| ()));
        match answer {
            Ok(Answer::Swapped(said)) => Ok(Outcome::Swapped(said)),
            Ok(Answer::Refused(reason)) => Ok(Outcome::Refused(reason)),
            Err(error) => Err(format!("{error:#}")),
        }
    }
}
