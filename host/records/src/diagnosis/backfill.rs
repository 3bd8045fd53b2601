//! Computes the rewards' contributions to groups from completions.jsonl, for runs that did not log them as metrics.

use super::groups::{RewardContributions, WeightedScores, reward_contributions};
use super::settings::{DiagnosedReward, DiagnosisSettings, metric_of};
use crate::config::json_lines::{JsonLinesReader, LONGEST_COMPLETION};
use crate::run::{MetricsRow, RowKind, RunFiles, ScoredCompletion, ensure_own_file};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Maximum number of bytes read from completions.jsonl, and maximum number of completions of a generation.
const MOST_BYTES: u64 = 1 << 30;
const MOST_COMPLETIONS: usize = 1 << 16;

/// Contributions in the generations that no row of metrics covers yet. Reads completions.jsonl when the first row lacks them.
pub(super) struct ContributionBackfill<'a> {
    run: &'a Path,
    rewards: Vec<DiagnosedReward>,
    parts: Option<BTreeMap<u64, RewardContributions>>,
}

impl<'a> ContributionBackfill<'a> {
    /// Creates the backfill for a run with these settings.
    pub(super) fn new(run: &'a Path, settings: &DiagnosisSettings) -> Self {
        let rewards: Vec<DiagnosedReward> = settings.rewards.iter().filter(|reward| reward.weight != 0.0).cloned().collect();
        Self { run, rewards, parts: None }
    }

    /// Adds the contributions that a row of an older version lacks: those in the generations since the previous row.
    pub(super) fn complete(&mut self, row: &mut MetricsRow) {
        let has = |what| self.rewards.iter().any(|reward| row.value(&metric_of(&reward.name, what)).is_some());
        if self.rewards.len() < 2 || row.kind != RowKind::Train || !has("mean") || has("varies") {
            return;
        }
        // The diagnosis is still valid without them.
        let all = self.parts.get_or_insert_with(|| read(self.run, &self.rewards).unwrap_or_default());
        let later = all.split_off(&row.step);
        let parts = std::mem::replace(all, later).into_values().reduce(RewardContributions::merge).unwrap_or_default();
        for (DiagnosedReward { name, .. }, part) in self.rewards.iter().zip(&parts.rewards) {
            let share = |what, value: f64, of: f64| (of > 0.0).then(|| (metric_of(name, what), Some(value / of)));
            row.values.extend(share("varies", part.varying, part.scored));
            row.values.extend(share("alone", part.alone, parts.informative_groups));
            row.values.extend(share("share", part.size, parts.size));
        }
    }
}

/// Returns the contributions in each generation, by its step.
fn read(run: &Path, rewards: &[DiagnosedReward]) -> io::Result<BTreeMap<u64, RewardContributions>> {
    let file = RunFiles(run).completions();
    ensure_own_file(run, &file)?;
    let mut reader = JsonLinesReader::open(&file, LONGEST_COMPLETION)?.with_limit(MOST_BYTES);
    let mut found = BTreeMap::new();
    let mut generation: Vec<ScoredCompletion> = Vec::new();
    while let Some(completion) = reader.next_object::<ScoredCompletion>()? {
        if generation.first().is_some_and(|first| first.step != completion.step) {
            // A resumed run writes a generation again; the newer one counts.
            found.insert(generation[0].step, of_generation(&generation, rewards));
            generation.clear();
        }
        if generation.len() < MOST_COMPLETIONS {
            generation.push(completion);
        }
    }
    if let Some(last) = generation.first() {
        found.insert(last.step, of_generation(&generation, rewards));
    }
    Ok(found)
}

fn of_generation(completions: &[ScoredCompletion], rewards: &[DiagnosedReward]) -> RewardContributions {
    let column = |reward: &DiagnosedReward| completions.iter().map(|c| c.rewards.get(&reward.name).copied().flatten()).collect();
    let columns: Vec<Vec<Option<f32>>> = rewards.iter().map(column).collect();
    let scores = rewards.iter().zip(&columns).map(|(reward, values)| WeightedScores { weight: reward.weight, values });
    let group_of: Vec<usize> = completions.iter().map(|c| c.row).collect();
    let advantages: Option<Vec<f32>> = completions.iter().map(|c| c.advantage).collect();
    reward_contributions(&scores.collect::<Vec<_>>(), &group_of, advantages.as_deref())
}
