//! Logging windows: they end where a plugin, its settings or its weight change, so that no row of metrics.jsonl mixes two rewards.

use super::Journal;
use crate::run::PluginVersion;
use crate::train::Result;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Versions of plugins and reward models, by their names.
pub(in crate::train) type Versions = BTreeMap<String, PluginVersion>;

/// Returns versions as a row of metrics has them.
pub(super) fn shown(versions: &Versions) -> Value {
    Value::Object(versions.iter().map(|(name, version)| (name.clone(), version.short().into())).collect::<Map<_, _>>())
}

/// Returns whether two sets of versions may be the same: older checkpoints did not keep digests of settings.
pub(super) fn are_same(a: &Versions, b: &Versions) -> bool {
    let mut pairs = a.iter().zip(b);
    a.len() == b.len() && pairs.all(|((name, version), (other, of_other))| name == other && version.is_same(of_other))
}

/// The journal at a step, for parts that record changes there, and what shows a row of metrics to the user.
pub(in crate::train) struct Recorder<'a> {
    pub journal: &'a mut Journal,
    /// Number of steps done.
    pub step: u64,
    /// Number of epochs trained.
    pub epoch: f64,
    /// Shows the metrics that were logged at a step.
    pub show: &'a mut dyn FnMut(u64, &BTreeMap<String, f64>),
}

impl Journal {
    /// Sets the versions that the run begins with.
    pub(in crate::train) fn begin_with(&mut self, versions: Versions) {
        self.versions = versions;
    }
}

impl Recorder<'_> {
    /// Logs the metrics of the steps since the last row, if there were any: what follows is another row's. There are none if a change
    /// after the last step has ended its window.
    pub(in crate::train) fn end_window(&mut self) -> Result<()> {
        if !self.journal.window.has_steps() {
            return Ok(());
        }
        let figures = self.journal.take();
        self.journal.log(self.step, self.epoch, &figures)?;
        (self.show)(self.step, &figures);
        Ok(())
    }

    /// Records which versions are in use from now on. At the beginning of a run, first ends a window whose steps had others.
    pub(in crate::train) fn use_versions(&mut self, versions: Versions) -> Result<()> {
        if std::mem::take(&mut self.journal.is_of_others) {
            self.end_window()?;
        }
        self.journal.versions = versions;
        Ok(())
    }
}
