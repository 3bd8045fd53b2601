//! Diagnoses why a run does not learn: finds signs in its metrics, with evidence and remedies.
//!
//! [`signs`] are pure functions over the history of the metrics. A [`DiagnosisMonitor`] gets the rows of metrics.jsonl one by one and
//! reports new findings. A live run, `rlhost diagnose` and the report all use it, the latter two through [`read`], so they agree. A finding
//! must hold over a window of steps, and in several consecutive rows, before it is reported.

mod backfill;
mod folder;
mod groups;
mod history;
mod settings;
mod signs;
#[cfg(test)]
mod tests;
mod words;

pub use folder::{Diagnosis, read, resume};
pub use groups::{RewardContributions, WeightedScores, reward_contributions};
pub use history::metrics_read;
pub use settings::DiagnosisSettings;

use crate::run::{FindingFigure, MetricsRow};
use history::DiagnosisHistory;
use serde::Serialize;
use signs::SIGNS;

/// Relative deviation of scores that differ only by rounding.
const ROUNDING: f64 = 1e-6;

/// Number of consecutive rows in which a sign must be seen before it counts as a finding.
const ROWS_IN_A_ROW: usize = 3;

/// The result of a sign.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Stable name of the finding.
    pub name: &'static str,
    /// Description of the problem, in one sentence.
    pub sentence: String,
    /// Evidence for the finding.
    pub figures: Vec<FindingFigure>,
    /// Suggested remedies.
    pub advice: Vec<String>,
}

/// A finding, and the steps at which it held.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportedFinding {
    /// Finding as last seen.
    #[serde(flatten)]
    pub finding: Finding,
    /// Step at which the finding began to hold.
    pub since: u64,
    /// Step at which the finding stopped holding, if it did.
    pub until: Option<u64>,
}

/// The state of one sign.
#[derive(Clone, Debug, Default)]
struct SignState {
    rows: usize,
    reported: Option<ReportedFinding>,
}

/// Monitors a run's metrics as they are logged.
#[derive(Clone, Debug)]
pub struct DiagnosisMonitor {
    settings: DiagnosisSettings,
    history: DiagnosisHistory,
    seen: Vec<SignState>,
    /// Number of rows at which there were enough steps for a sign.
    rows: usize,
}

impl DiagnosisMonitor {
    /// Creates the monitor of a run with these settings.
    #[must_use]
    pub fn new(settings: DiagnosisSettings) -> Self {
        Self { settings, history: DiagnosisHistory::default(), seen: vec![SignState::default(); SIGNS.len()], rows: 0 }
    }

    /// Continues with other settings. Drops the metrics recorded under the old settings, which are not comparable.
    pub fn restart_with(&mut self, settings: DiagnosisSettings) {
        self.settings = settings;
        self.history = DiagnosisHistory::default();
    }

    /// Adds a row of metrics.jsonl. Returns the findings that begin to hold with it; each is returned only once.
    pub fn observe(&mut self, row: &MetricsRow) -> Vec<ReportedFinding> {
        let step = row.step;
        if !self.history.add(row, &self.settings) {
            return Vec::new();
        }
        self.rows += usize::from(self.history.has_enough());
        let mut begun = Vec::new();
        for (sign, seen) in SIGNS.iter().zip(&mut self.seen) {
            let Some(finding) = sign(&self.history, &self.settings) else {
                seen.rows = 0;
                if let Some(held) = &mut seen.reported {
                    held.until.get_or_insert(step);
                }
                continue;
            };
            seen.rows += 1;
            match &mut seen.reported {
                Some(held) => (held.finding, held.until) = (finding, None),
                None if seen.rows >= ROWS_IN_A_ROW => {
                    let held = ReportedFinding { finding, since: step, until: None };
                    begun.push(held.clone());
                    seen.reported = Some(held);
                }
                None => {}
            }
        }
        begun
    }

    /// Returns all findings; current ones come first.
    #[must_use]
    pub fn findings(&self) -> Vec<ReportedFinding> {
        let mut all: Vec<ReportedFinding> = self.seen.iter().filter_map(|seen| seen.reported.clone()).collect();
        all.sort_by_key(|held| (held.until.is_some(), held.since));
        all
    }

    /// Returns whether there were enough steps for any finding.
    #[must_use]
    pub fn has_enough(&self) -> bool {
        self.rows >= ROWS_IN_A_ROW
    }
}
