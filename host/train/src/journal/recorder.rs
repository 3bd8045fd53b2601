//! Logging windows. They end when a plugin, its settings or its weight changes, so that no row of metrics.jsonl mixes two rewards.

use super::Journal;
use super::versions::PluginVersions;
use crate::Result;
use std::collections::BTreeMap;

/// The journal at a step, for parts that record changes, with a callback that shows metrics to the user.
pub(crate) struct StepRecorder<'a> {
    pub journal: &'a mut Journal,
    /// Number of steps done.
    pub step: u64,
    /// Number of epochs trained.
    pub epoch: f64,
    /// Shows the metrics that were logged at a step.
    pub show: &'a mut dyn FnMut(u64, &BTreeMap<String, f64>),
}

impl Journal {
    /// Sets the versions at the start of the run.
    pub(crate) fn begin_with(&mut self, versions: PluginVersions) {
        self.versions = versions;
    }
}

impl StepRecorder<'_> {
    /// Logs the metrics of the steps since the last row, if there are any: a change after the last step may already have ended its window.
    pub(crate) fn end_window(&mut self) -> Result<()> {
        if !self.journal.window.has_steps() {
            return Ok(());
        }
        let figures = self.journal.take();
        self.journal.log(self.step, self.epoch, &figures)?;
        (self.show)(self.step, &figures);
        Ok(())
    }

    /// Sets the versions in use from now on. At the beginning of a run, first ends a window whose steps had other versions.
    pub(crate) fn use_versions(&mut self, versions: PluginVersions) -> Result<()> {
        if std::mem::take(&mut self.journal.is_of_others) {
            self.end_window()?;
        }
        self.journal.versions = versions;
        Ok(())
    }
}
