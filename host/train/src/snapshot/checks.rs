//! Checks that the waiting rollouts in a checkpoint can be trained on, since their numbers are used as indices.

use super::fault::SnapshotFault;
use super::waiting_rollouts::{ExperienceManifest, WaitingRollouts};
use super::{ExperienceConstraints, RunCounts, SnapshotState};
use crate::config::printable;
use crate::metrics::MetricsWindow;
use crate::plugin::{Column, Unit};
use crate::stored_rollouts::{RolloutFault, fault_of};

/// Maximum of any counter of a run (steps, tokens, epochs), such that additions never overflow.
const MOST: u64 = 1 << 52;

/// Maximum number of entries in a list of swaps, plugins or checkpoints.
const MOST_ENTRIES: usize = 100_000;

/// Maximum length of a plugin's name in an error, in bytes.
const LONGEST_NAME: usize = 128;

impl SnapshotState {
    /// Returns the fault of the state's counters in the checkpoint of this step, if any.
    pub(super) fn fault(&self, step: u64) -> Option<String> {
        let RunCounts { global_step, generation, num_tokens, unscored, passes_left, plateau, .. } = self.state;
        if global_step != step {
            return Some(format!("it is from step {global_step}, but the checkpoint is from step {step}"));
        }
        if u64::from(plateau.plateaus) > step {
            return Some(format!("evaluations stopped improving {} times in {step} steps", plateau.plateaus));
        }
        if let Some(fault) = [&self.window, &self.since_save].into_iter().find_map(MetricsWindow::fault) {
            return Some(format!("a window of metrics {fault}"));
        }
        if let Some(fault) = self.fault_of_swaps(step) {
            return Some(fault);
        }
        let versions = self.experiences.iter().filter_map(ExperienceManifest::newest_version);
        if let Some(version) = versions.max().filter(|version| *version > step) {
            return Some(format!("a completion was written by the policy of version {version}, after step {step}"));
        }
        let counts = [
            ("generation", generation),
            ("num_tokens", num_tokens),
            ("unscored", unscored),
            ("passes_left", passes_left),
            ("optimizer_updates", self.optimizer_updates),
            ("critic_updates", self.critic_updates.unwrap_or_default()),
            ("epoch", self.cursor.epoch),
        ];
        counts.into_iter().find(|(_, count)| *count > MOST).map(|(name, count)| format!("{name} is {count}"))
    }
}

impl SnapshotState {
    /// Returns the fault of the entries about swaps, if any.
    fn fault_of_swaps(&self, step: u64) -> Option<String> {
        let lists = [
            ("swaps", self.swaps.len()),
            ("parents", self.parents.len()),
            ("versions", self.versions.len()),
            ("seen", self.seen.len()),
            ("chosen", self.chosen.len()),
            ("memories", self.plugin_states.len()),
            ("replaced", self.replaced.len()),
        ];
        if let Some((name, entries)) = lists.into_iter().find(|(_, entries)| *entries > MOST_ENTRIES) {
            return Some(format!("{name} has {entries} entries; the limit is {MOST_ENTRIES}"));
        }
        if let Some((name, _)) = self.versions.iter().find(|(_, version)| !version.is_hexadecimal()) {
            return Some(format!("versions.{} is no hash", printable(name, LONGEST_NAME)));
        }
        self.replaced.iter().find_map(|(name, replaced)| {
            let name = printable(name, LONGEST_NAME);
            replaced.fault(step).map(|fault| format!("replaced.{name}: {fault}"))
        })
    }
}

impl WaitingRollouts {
    /// Returns the fault of the rollouts, if any.
    pub(super) fn fault(&self, run: &ExperienceConstraints<'_>) -> Option<SnapshotFault> {
        let rows = self.rollouts.len();
        if let Some(row) = self.prompts.iter().find(|row| **row >= run.prompts.0) {
            return Some(SnapshotFault::in_rest(format!("a prompt refers to row {row} of a dataset of {}", run.prompts.0)));
        }
        if let Some(fault) = self.fault_of_rollouts(run) {
            return Some(fault);
        }
        let tokens: usize = self.rollouts.iter().map(|r| r.tokens.len()).sum();
        if u32::try_from(tokens).is_err() {
            return Some(self.in_numbers(format!("there are too many tokens: {tokens}")));
        }
        let mut listed = vec![("texts", self.texts.len(), if run.form.is_sampled { rows } else { 0 })];
        listed.extend(self.rewards.iter().map(|reward| ("rewards", reward.values.len(), rows)));
        let wanted = |column: &Column| if column.unit == Unit::Token { tokens } else { rows };
        let columns = self.columns.iter().map(|column| (column.name.as_str(), column.values.len(), wanted(column)));
        let mut columns: Vec<(&str, usize, usize)> = columns.collect();
        if !run.form.has_pairs {
            columns.push(("mask", self.mask.len(), tokens));
        }
        let other_length = |columns: &[(&str, usize, usize)]| {
            let (name, found, wanted) = columns.iter().find(|(_, found, wanted)| found != wanted)?;
            Some(format!("{} has {found} values instead of {wanted}", printable(name, LONGEST_NAME)))
        };
        if let Some(detail) = other_length(&listed) {
            return Some(SnapshotFault::in_rest(detail));
        }
        if let Some(detail) = other_length(&columns) {
            return Some(self.in_numbers(detail));
        }
        if self.mask.iter().any(|m| *m > 1) {
            return Some(self.in_numbers("mask holds values other than 0 and 1".to_owned()));
        }
        let outside = self.pairs.iter().find(|(chosen, rejected)| *chosen >= rows || *rejected >= rows);
        outside.map(|pair| SnapshotFault::in_rest(format!("the pair {pair:?} is out of range for {rows} completions")))
    }

    fn fault_of_rollouts(&self, run: &ExperienceConstraints<'_>) -> Option<SnapshotFault> {
        let architecture = run.architecture;
        let mut before = 0;
        for (row, rollout) in self.rollouts.iter().enumerate() {
            let listed = |detail: String| Some(SnapshotFault::in_rest(format!("completion {row} {detail}")));
            let wrong = |detail: String| Some(self.in_numbers(format!("completion {row} {detail}")));
            let Some(prompt) = self.prompts.get(rollout.prompt).and_then(|row| run.prompts.1.get(row)) else {
                return listed(format!("belongs to prompt {} of {}", rollout.prompt, self.prompts.len()));
            };
            if rollout.prompt < before {
                return listed("is out of order".to_owned());
            }
            before = rollout.prompt;
            match fault_of(rollout, &prompt.tokens, architecture) {
                Some(RolloutFault::Listed(detail)) => return listed(detail),
                Some(RolloutFault::Numbers(detail)) => return wrong(detail),
                None => {}
            }
            let sampled = if run.form.is_sampled { rollout.tokens.len() } else { 0 };
            if rollout.logp.len() != sampled {
                return wrong(format!("has {} log-probabilities instead of {sampled}", rollout.logp.len()));
            }
        }
        None
    }

    /// Creates a fault of the rollouts' numbers, which older checkpoints store with everything else.
    fn in_numbers(&self, detail: String) -> SnapshotFault {
        if self.has_tensors { SnapshotFault::in_rollouts(detail) } else { SnapshotFault::in_rest(detail) }
    }
}
