//! Reads a run's folder for a diagnosis. The folder may be damaged, still growing, larger than memory or from somebody else. Lines and
//! files are read up to a limit, unreadable parts are counted and named, and nothing blocks.

use super::backfill::ContributionBackfill;
use super::{DiagnosisMonitor, DiagnosisSettings, ReportedFinding};
use crate::config::json_lines::UnreadLines;
use crate::config::printable;
use crate::run::{EffectiveConfig, EventLine, RowKind, RunFiles, each_metrics_row, each_own_line, is_undone};
use std::io;
use std::path::Path;

/// Maximum number of events that signs use.
const MOST_CHANGES: usize = 100_000;
/// Maximum length of an error, in bytes.
const LONGEST_NOTE: usize = 400;

/// The diagnosis of a run's folder.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// All findings; current ones come first.
    pub findings: Vec<ReportedFinding>,
    /// Number of training rows in metrics.jsonl.
    pub rows: u64,
    /// Step of the last training row.
    pub last_step: u64,
    /// Whether there were enough steps for any finding.
    pub enough: bool,
    /// Whether some or all of metrics.jsonl could not be read.
    pub lacks_metrics: bool,
    /// Parts that could not be read.
    pub notes: Vec<String>,
}

/// Looks for signs in a run's folder. Notes what can't be read.
#[must_use]
pub fn read(run: &Path) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    let config = EffectiveConfig::read(run).unwrap_or_else(|error| {
        diagnosis.note(RunFiles::CONFIG, &error);
        EffectiveConfig::default()
    });
    diagnosis.notes.extend(config.note);
    let config = config.text;
    let watch = diagnosis.follow(run, |usual| DiagnosisSettings::from_config(&config, usual), true);
    (diagnosis.findings, diagnosis.enough) = (watch.findings(), watch.has_enough());
    diagnosis
}

/// Returns a monitor with these settings that continues from the metrics in a run's folder.
#[must_use]
pub fn resume(run: &Path, settings: DiagnosisSettings) -> DiagnosisMonitor {
    Diagnosis::default().follow(run, |_| settings, false)
}

impl Diagnosis {
    /// Adds the run's metrics to a monitor with the settings for the run's default learning rate. If `completes`, computes metrics that an
    /// older version did not log from the completions.
    fn follow(
        &mut self,
        run: &Path,
        settings: impl FnOnce(Option<f64>) -> DiagnosisSettings,
        completes: bool,
    ) -> DiagnosisMonitor {
        let (mut usual, mut changes) = (None, Vec::new());
        let outcome = each_own_line(run, &RunFiles(run).events(), |line| {
            let event = EventLine::from_fields(line);
            usual = event.number("usual_learning_rate").or(usual);
            let Some(step) = event.step else { return };
            match event.kind {
                Some(kind) if kind.begins() => changes.retain(|change| !is_undone(*change, step)),
                Some(kind) if kind.changes_plugins() && changes.len() < MOST_CHANGES => changes.push(step),
                _ => {}
            }
        });
        self.take(RunFiles::EVENTS, outcome);
        changes.sort_unstable();
        let settings = settings(usual);
        let mut watch = DiagnosisMonitor::new(settings.clone());
        let mut changes = changes.into_iter().peekable();
        let mut older = completes.then(|| ContributionBackfill::new(run, &settings));
        let outcome = each_metrics_row(run, |mut row| {
            let step = row.step;
            let mut changed = false;
            while changes.next_if(|change| *change < step).is_some() {
                changed = true;
            }
            if changed {
                watch.restart_with(settings.clone());
            }
            self.rows += u64::from(row.kind == RowKind::Train);
            self.last_step = step;
            older.iter_mut().for_each(|older| older.complete(&mut row));
            watch.observe(&row);
        });
        let noted = self.notes.len();
        match outcome {
            Err(error) => self.note(RunFiles::METRICS, &error),
            Ok(notes) => self.notes.extend(notes),
        }
        self.lacks_metrics = self.notes.len() > noted;
        watch
    }

    fn note(&mut self, file: &str, error: &io::Error) {
        self.notes.push(printable(&format!("{file} can't be read: {error}"), LONGEST_NOTE));
    }

    fn take(&mut self, file: &str, outcome: io::Result<UnreadLines>) {
        match outcome {
            Err(error) => self.note(file, &error),
            Ok(unread) => self.notes.extend(unread.notes(file)),
        }
    }
}
