//! The versions of rewards that a run's completions were scored by: scores of one are not averaged with those of another.

use crate::metrics::Comparison;
use crate::run::Recorded;
use anyhow::anyhow;
use std::collections::BTreeSet;

/// Digits of a hash that are shown.
const DIGITS: usize = 12;

/// A reward of the run, or one of the versions that it had.
#[derive(Debug, PartialEq)]
pub(super) struct OfVersion<'a> {
    name: &'a str,
    /// Its hash; none if all completions were scored by the same one.
    hash: Option<&'a str>,
}

/// Returns the hash of the reward that scored a completion; empty in runs that did not record it.
fn hash_of<'a>(recorded: &'a Recorded, name: &str) -> &'a str {
    recorded.plugins.get(name).map_or("", String::as_str)
}

impl OfVersion<'_> {
    /// Returns the score of a completion; none if another version scored it.
    pub(super) fn score(&self, recorded: &Recorded) -> Option<f32> {
        let is_own = self.hash.is_none_or(|hash| hash_of(recorded, self.name) == hash);
        recorded.rewards.get(self.name).copied().flatten().filter(|_| is_own)
    }

    /// Returns its name, and the first digits of its hash if there are several versions.
    pub(super) fn title(&self) -> String {
        let Some(hash) = self.hash else { return self.name.to_owned() };
        format!("{}@{}", self.name, if hash.is_empty() { "unknown" } else { hash.get(..DIGITS).unwrap_or(hash) })
    }

    /// Prints how new scores differ from its own.
    pub(super) fn show(&self, recorded: &[Recorded], scores: &[Option<f32>]) {
        let is_own = |r: &Recorded| self.hash.is_none_or(|hash| hash_of(r, self.name) == hash);
        let both = recorded.iter().zip(scores).filter(|(r, _)| is_own(r)).map(|(r, new)| (self.score(r), *new));
        let (old, new): (Vec<Option<f32>>, Vec<Option<f32>>) = both.unzip();
        let c = Comparison::of(&old, &new);
        let ranks = c.rank_correlation.map_or_else(|| "-".to_owned(), |r| format!("{r:.3}"));
        say!(
            "{:<28} {:>10.4} {:>10.4} {:>10.4} {:>10.4} {ranks:>8}",
            self.title(),
            c.old_mean,
            c.new_mean,
            c.mean_difference,
            c.max_difference
        );
        if c.one_sided > 0 {
            say!("{:<28} {} completions are scored by only one of the two", "", c.one_sided);
        }
    }
}

/// Returns what the scores of recorded completions are compared with: every reward of the run, or what `--with` names; one that was
/// swapped by version, in the order in which they came.
///
/// # Errors
/// If there is no such reward or version.
pub(super) fn compared<'a>(with: Option<&str>, recorded: &'a [Recorded]) -> anyhow::Result<Vec<OfVersion<'a>>> {
    let names: BTreeSet<&str> = recorded.iter().flat_map(|r| r.rewards.keys().map(String::as_str)).collect();
    let names: Vec<&str> = names.into_iter().collect();
    // A name may have an @ of its own.
    let (name, version) = match with {
        Some(with) if !names.contains(&with) => {
            with.rsplit_once('@').map_or((Some(with), None), |(name, hash)| (Some(name), Some(hash)))
        }
        with => (with, None),
    };
    let mut all = Vec::new();
    for own in names.iter().filter(|own| name.is_none_or(|name| name == **own)) {
        let mut seen = BTreeSet::new();
        let scored = recorded.iter().filter(|r| r.rewards.contains_key(*own)).map(|r| hash_of(r, own));
        let hashes: Vec<&str> = scored.filter(|hash| seen.insert(*hash)).collect();
        let several = hashes.len() > 1 || version.is_some();
        let matching: Vec<&str> = hashes.iter().filter(|hash| version.is_none_or(|v| hash.starts_with(v))).copied().collect();
        if let (Some(version), true) = (version, matching.is_empty()) {
            let known: Vec<&str> = hashes.iter().map(|hash| hash.get(..DIGITS).unwrap_or(hash)).collect();
            return Err(anyhow!("{own} had no version {version:?}; its versions are {}", known.join(", ")));
        }
        match several {
            true => all.extend(matching.into_iter().map(|hash| OfVersion { name: own, hash: Some(hash) })),
            false => all.push(OfVersion { name: own, hash: None }),
        }
    }
    if all.is_empty() {
        return Err(anyhow!("the run has no reward with that name; it has {}", names.join(", ")));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn completion(score: f64, hash: &str) -> Recorded {
        let plugins = if hash.is_empty() { json!({}) } else { json!({ "a": hash, "b": "beef" }) };
        let line = json!({
            "step": 0, "row": 0, "prompt": "p", "completion": "c", "completion_ids": [1], "finished": true,
            "rewards": { "a": score, "b": 1.0 }, "plugins": plugins,
        });
        Recorded::read(line.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn scores_of_two_versions_are_told_apart() {
        let recorded = [completion(1.0, "0123"), completion(5.0, "4567"), completion(2.0, "0123")];
        let titles =
            |with: Option<&str>| compared(with, &recorded).map(|all| all.iter().map(OfVersion::title).collect::<Vec<_>>());
        assert_eq!(titles(None).unwrap(), ["a@0123", "a@4567", "b"]);
        assert_eq!(titles(Some("a")).unwrap(), ["a@0123", "a@4567"]);
        assert_eq!(titles(Some("a@4")).unwrap(), ["a@4567"]);
        assert_eq!(titles(Some("a@9")).unwrap_err().to_string(), "a had no version \"9\"; its versions are 0123, 4567");
        assert_eq!(titles(Some("c")).unwrap_err().to_string(), "the run has no reward with that name; it has a, b");
        let first = &compared(Some("a@0"), &recorded).unwrap()[0];
        assert_eq!(recorded.iter().map(|r| first.score(r)).collect::<Vec<_>>(), [Some(1.0), None, Some(2.0)]);
        // Runs that did not record versions have one.
        let old = [completion(1.0, ""), completion(5.0, "")];
        assert_eq!(compared(None, &old).unwrap()[0].title(), "a");
    }
}
