//! Versions of the rewards that scored a run's completions. Scores of different versions are not averaged.

use crate::metrics::ScoreComparison;
use crate::run::{PluginVersion, RecordedCompletion};
use anyhow::anyhow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Headings of the columns of [`VersionedReward::row`].
pub(super) const HEADING: [&str; 7] = ["compared with", "n", "its mean", "new mean", "mean |diff|", "max |diff|", "ranks"];

/// Score differences that are not shown: they result from rounding, when a model's completions are batched differently.
const ROUNDING: f32 = 1e-5;

/// The version of completions that record none.
static UNKNOWN: LazyLock<PluginVersion> = LazyLock::new(PluginVersion::default);

/// A reward of the run, or one of its versions.
#[derive(Debug, PartialEq)]
pub(super) struct VersionedReward<'a> {
    name: &'a str,
    /// The reward's version; `None` if one version scored all completions.
    version: Option<&'a PluginVersion>,
}

/// Returns the version of the reward that scored a completion; [`UNKNOWN`] in runs that did not record it.
fn version_of<'a>(recorded: &'a RecordedCompletion, name: &str) -> &'a PluginVersion {
    recorded.plugins.get(name).unwrap_or(&UNKNOWN)
}

impl VersionedReward<'_> {
    fn is_own(&self, recorded: &RecordedCompletion) -> bool {
        self.version.is_none_or(|version| version_of(recorded, self.name) == version)
    }

    /// Returns the score of a completion; `None` if another version scored it.
    pub(super) fn score(&self, recorded: &RecordedCompletion) -> Option<f32> {
        recorded.rewards.get(self.name).copied().flatten().filter(|_| self.is_own(recorded))
    }

    /// Returns the reward's name, and the version if there are several.
    pub(super) fn title(&self) -> String {
        let Some(version) = self.version else { return self.name.to_owned() };
        format!("{}@{}", self.name, if version.is_unknown() { "unknown".to_owned() } else { version.short() })
    }

    /// Compares new scores with the reward's own. Returns cells below [`HEADING`], and the number of completions that only one of the two
    /// scored.
    pub(super) fn row(&self, recorded: &[RecordedCompletion], scores: &[Option<f32>]) -> (Vec<String>, usize) {
        let both = recorded.iter().zip(scores).filter(|(r, _)| self.is_own(r)).map(|(r, new)| (self.score(r), *new));
        let (old, new): (Vec<Option<f32>>, Vec<Option<f32>>) = both.unzip();
        let c = ScoreComparison::new(&old, &new);
        let ranks = c.rank_correlation.map_or_else(|| "-".to_owned(), |r| format!("{r:.3}"));
        let figures = [c.old_mean, c.new_mean, c.mean_difference, c.max_difference].map(|figure| format!("{figure:.4}"));
        let cells = [self.title(), c.rows.to_string()].into_iter().chain(figures).chain([ranks]).collect();
        (cells, c.one_sided)
    }
}

/// Returns the rewards to compare with: all of the run, or the one that `--with` names. A reward that was swapped is listed by version, in
/// chronological order.
///
/// # Errors
/// If there is no such reward or version.
pub(super) fn compared<'a>(with: Option<&str>, recorded: &'a [RecordedCompletion]) -> anyhow::Result<Vec<VersionedReward<'a>>> {
    let names: BTreeSet<&str> = recorded.iter().flat_map(|r| r.rewards.keys().map(String::as_str)).collect();
    let names: Vec<&str> = names.into_iter().collect();
    // A name may contain an @.
    let (name, version) = match with {
        Some(with) if !names.contains(&with) => {
            with.rsplit_once('@').map_or((Some(with), None), |(name, hash)| (Some(name), Some(hash)))
        }
        with => (with, None),
    };
    let mut all = Vec::new();
    for own in names.iter().filter(|own| name.is_none_or(|name| name == **own)) {
        let mut seen = BTreeSet::new();
        let scored = recorded.iter().filter(|r| r.rewards.contains_key(*own)).map(|r| version_of(r, own));
        let versions: Vec<&PluginVersion> = scored.filter(|version| seen.insert(*version)).collect();
        let several = versions.len() > 1 || version.is_some();
        let is_meant = |own: &&&PluginVersion| version.is_none_or(|given| own.matches_prefix(given));
        let matching: Vec<&PluginVersion> = versions.iter().filter(is_meant).copied().collect();
        if let (Some(version), true) = (version, matching.is_empty()) {
            let known: Vec<String> = versions.iter().map(|version| version.short()).collect();
            return Err(anyhow!("{own} had no version {version:?}; its versions are {}", known.join(", ")));
        }
        match several {
            true => all.extend(matching.into_iter().map(|version| VersionedReward { name: own, version: Some(version) })),
            false => all.push(VersionedReward { name: own, version: None }),
        }
    }
    if all.is_empty() {
        return Err(anyhow!("the run has no reward with that name; it has {}", names.join(", ")));
    }
    Ok(all)
}

/// A completion with its score by a version, and its new score.
pub(super) struct ScoreChange<'a> {
    pub recorded: &'a RecordedCompletion,
    pub old: f32,
    pub new: f32,
}

impl ScoreChange<'_> {
    fn distance(&self) -> f32 {
        (self.old - self.new).abs()
    }
}

/// Returns the version from which a new score differs most, with the completions whose scores differ, the largest difference first; `None`
/// if there are none.
pub(super) fn furthest<'a, 'b>(
    recorded: &'a [RecordedCompletion],
    versions: &'b [VersionedReward<'b>],
    scores: &[Option<f32>],
) -> Option<(&'b VersionedReward<'b>, Vec<ScoreChange<'a>>)> {
    let greatest = |all: &[ScoreChange<'_>]| all.first().map_or(0.0, ScoreChange::distance);
    let all = versions.iter().map(|version| (version, differing(recorded, version, scores)));
    all.filter(|(_, all)| !all.is_empty()).max_by(|(_, a), (_, b)| greatest(a).total_cmp(&greatest(b)))
}

/// Returns the completions whose score by a version differs from the new one, the largest difference first.
fn differing<'a>(
    recorded: &'a [RecordedCompletion],
    version: &VersionedReward<'_>,
    scores: &[Option<f32>],
) -> Vec<ScoreChange<'a>> {
    let both = |(recorded, new): (&'a RecordedCompletion, &Option<f32>)| {
        Some(ScoreChange { recorded, old: version.score(recorded)?, new: (*new)? })
    };
    let mut all: Vec<ScoreChange<'_>> = recorded.iter().zip(scores).filter_map(both).collect();
    all.retain(|rescored| rescored.distance() > ROUNDING);
    all.sort_by(|a, b| b.distance().total_cmp(&a.distance()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn completion(score: f64, hash: &str) -> RecordedCompletion {
        let plugins = if hash.is_empty() { json!({}) } else { json!({ "a": hash, "b": "beef" }) };
        let line = json!({
            "step": 0, "row": 0, "prompt": "p", "completion": "c", "completion_ids": [1], "finished": true,
            "rewards": { "a": score, "b": 1.0 }, "plugins": plugins,
        });
        RecordedCompletion::read(line.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_largest_differences_are_looked_for_in_all_versions() {
        let recorded = [completion(1.0, "0123"), completion(5.0, "4567"), completion(2.0, "0123"), completion(4.0, "4567")];
        let versions = compared(Some("a"), &recorded).unwrap();
        let of = |scores: [f32; 4]| {
            let scores = scores.map(Some);
            furthest(&recorded, &versions, &scores).map(|(version, all)| {
                (version.title(), all.iter().map(|rescored| (rescored.old, rescored.new)).collect::<Vec<_>>())
            })
        };
        assert_eq!(of([1.0, 6.0, 2.0, 1.0]), Some(("a@4567".to_owned(), vec![(4.0, 1.0), (5.0, 6.0)])));
        assert_eq!(of([3.0, 6.0, 2.0, 4.0]), Some(("a@0123".to_owned(), vec![(1.0, 3.0)])));
        assert_eq!(of([1.0, 5.0, 2.0, 4.0]), None);
    }

    #[test]
    fn scores_of_two_versions_are_told_apart() {
        let recorded = [completion(1.0, "0123"), completion(5.0, "4567"), completion(2.0, "0123")];
        let titles =
            |with: Option<&str>| compared(with, &recorded).map(|all| all.iter().map(VersionedReward::title).collect::<Vec<_>>());
        assert_eq!(titles(None).unwrap(), ["a@0123", "a@4567", "b"]);
        assert_eq!(titles(Some("a")).unwrap(), ["a@0123", "a@4567"]);
        assert_eq!(titles(Some("a@4")).unwrap(), ["a@4567"]);
        assert_eq!(titles(Some("a@9")).unwrap_err().to_string(), "a had no version \"9\"; its versions are 0123, 4567");
        assert_eq!(titles(Some("c")).unwrap_err().to_string(), "the run has no reward with that name; it has a, b");
        let first = &compared(Some("a@0"), &recorded).unwrap()[0];
        assert_eq!(recorded.iter().map(|r| first.score(r)).collect::<Vec<_>>(), [Some(1.0), None, Some(2.0)]);
        assert_eq!(first.row(&recorded, &[Some(3.0); 3]).0[..4], ["a@0123", "2", "1.5000", "3.0000"].map(str::to_owned));
        // Differences of opposite signs don't cancel out.
        let cells = compared(Some("b"), &recorded).unwrap()[0].row(&recorded, &[Some(3.0), Some(-1.0), Some(1.0)]).0;
        let absolute = HEADING.into_iter().zip(&cells).filter(|(title, _)| title.contains("|diff|")).map(|(_, cell)| cell);
        assert_eq!(absolute.collect::<Vec<_>>(), ["1.3333", "2.0000"]);
        // A change of settings makes a new version.
        let settings = [completion(1.0, "0123+aa"), completion(5.0, "0123+bb")];
        let all = compared(None, &settings).unwrap();
        assert_eq!(all.iter().map(VersionedReward::title).collect::<Vec<_>>(), ["a@0123+aa", "a@0123+bb", "b"]);
        assert_eq!(compared(Some("a@0123+b"), &settings).unwrap()[0].title(), "a@0123+bb");
        // Runs that did not record versions have a single one.
        let old = [completion(1.0, ""), completion(5.0, "")];
        assert_eq!(compared(None, &old).unwrap()[0].title(), "a");
    }
}
