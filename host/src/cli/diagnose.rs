//! `rlhost diagnose`: looks for reasons why a run does not learn.

use super::failure::CommandFailure;
use crate::config::printable;
use crate::diagnosis::{self, Diagnosis, ReportedFinding};
use crate::report;
use crate::run::RunFiles;
use anyhow::anyhow;
use serde_json::json;
use std::path::PathBuf;

/// Maximum length of a printed name or value.
const SHOWN: usize = 300;

/// Arguments of `diagnose`.
#[derive(clap::Args)]
#[command(
    after_help = "Looks for known problems in the run's metrics: a learning rate that is too high or too low, completions that \
                        are cut off, rewards that are constant or equal within groups, one reward that dominates, a diverging \
                        policy, answers that are never found, a collapse of entropy, lengths that are exploited, and ratios that \
                        are clipped. Lists the evidence for each finding. A live run also logs each finding when it first holds, \
                        and the report lists all of them."
)]
pub(super) struct Args {
    /// Folder of the run, which may still be running
    run: PathBuf,
    /// Print the findings as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    report::check(&args.run).map_err(CommandFailure::from_error)?;
    let found = diagnosis::read(&args.run);
    if args.json {
        let line = json!({
            "findings": found.findings, "rows": found.rows, "last_step": found.last_step, "enough": found.enough, "notes": found.notes,
        });
        say!("{line}");
        return Ok(());
    }
    for note in &found.notes {
        tracing::warn!("{note}");
    }
    if found.rows == 0 {
        let why = match found.lacks_metrics && RunFiles(&args.run).metrics().exists() {
            true => "none of its metrics can be read",
            false => "no metrics have been logged yet",
        };
        return Err(CommandFailure::mistake(anyhow!("{}: {why}", args.run.display())));
    }
    show(&found);
    Ok(())
}

fn show(found: &Diagnosis) {
    for ReportedFinding { finding, since, until } in &found.findings {
        let when = until.map_or_else(|| format!("since step {since}"), |until| format!("from step {since} to step {until}"));
        say!("{} ({}, {when})", printable(&finding.sentence, SHOWN), finding.name);
        let width = finding.figures.iter().map(|figure| figure.name.chars().count()).max().unwrap_or(0);
        for figure in &finding.figures {
            say!("    {:width$}  {}", printable(&figure.name, SHOWN), printable(&figure.value, SHOWN));
        }
        for (i, advice) in finding.advice.iter().enumerate() {
            say!("    {}  {}", if i == 0 { "try" } else { " or" }, printable(advice, SHOWN));
        }
        say!("");
    }
    let steps = format!("{} logged rows up to step {}", found.rows, found.last_step);
    if !found.enough {
        say!("{steps} are too few to tell; findings need 15 steps and 4 rows");
    } else if found.findings.is_empty() {
        say!("no sign of trouble in {steps}");
    }
}
