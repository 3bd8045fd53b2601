//! Reports findings about a run's metrics when they begin to hold.

use super::RunFolder;
use crate::diagnosis::{self, DiagnosisMonitor, DiagnosisSettings, ReportedFinding};
use crate::run::{MetricsRow, RunEvent};
use serde_json::{Map, Value};

/// Watches a run's metrics, on the process that writes them.
pub(super) struct MetricsWatch {
    watch: Option<DiagnosisMonitor>,
    usual_rate: f64,
    /// Whether plugins or their weights have changed since the last line of metrics.
    changed: bool,
}

impl MetricsWatch {
    /// Begins watching a run. A resumed run reads earlier metrics from its folder.
    pub(super) fn new(folder: &RunFolder, usual_rate: f64) -> Self {
        let watch = (!folder.config().is_empty()).then(|| {
            let settings = DiagnosisSettings::from_config(folder.config(), Some(usual_rate));
            diagnosis::resume(folder.path(), settings)
        });
        Self { watch, usual_rate, changed: false }
    }

    /// Notes an event that makes later metrics incomparable with earlier ones.
    pub(super) fn note_event(&mut self, event: &RunEvent<'_>) {
        self.changed |= event.kind().changes_plugins();
    }

    /// Adds a line of metrics under this configuration. Returns findings that begin to hold.
    pub(super) fn add_row(&mut self, line: &Map<String, Value>, config: &str) -> Vec<ReportedFinding> {
        let Some(watch) = &mut self.watch else { return Vec::new() };
        if std::mem::take(&mut self.changed) {
            watch.restart_with(DiagnosisSettings::from_config(config, Some(self.usual_rate)));
        }
        MetricsRow::from_line(line).map(|row| watch.observe(&row)).unwrap_or_default()
    }
}
