//! Reads completions.jsonl for browsing and searching: in bounded memory regardless of its size, without lines that a later resume undid,
//! and only completions that match a filter.

use super::{PluginVersion, is_completion_undone};
use crate::config::json_lines::{BoundedLine, JsonLinesReader, LONGEST_COMPLETION, UnreadLines};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Maximum number of restarts. The file of a resumed run has none, since a resume removes the lines that it undoes.
const MOST_RESTARTS: usize = 1 << 20;

/// Maximum number of rewards' names, and of plugins' versions, that are kept for a message.
const MOST_NAMES: usize = 1024;

/// Prefix of lines as a run writes them.
const STEP: &[u8] = b"{\"step\":";

/// A completion, as read for showing it. Missing fields are left empty.
#[derive(Debug, Default, Deserialize)]
pub struct LoggedRollout {
    /// Number of steps taken before the completion was generated.
    pub step: u64,
    /// Row of the dataset.
    #[serde(default)]
    pub row: Value,
    /// Text of the prompt.
    #[serde(default)]
    pub prompt: String,
    /// Text of the completion.
    #[serde(default)]
    pub completion: String,
    /// Tokens of the completion, which are only counted.
    #[serde(default)]
    pub completion_ids: Option<Vec<IgnoredAny>>,
    /// Whether the completion ended on its own rather than at a limit.
    #[serde(default)]
    pub finished: Option<bool>,
    /// Scores by reward name.
    #[serde(default)]
    pub rewards: Map<String, Value>,
    /// Values that rewards logged for the completion.
    #[serde(default)]
    pub extra: Map<String, Value>,
    /// Advantage of the completion.
    #[serde(default)]
    pub advantage: Value,
    /// Versions of the plugins in use, by name.
    #[serde(default)]
    pub plugins: Map<String, Value>,
    /// Conversation of an episode.
    #[serde(default)]
    pub messages: Vec<Value>,
    /// Reward of each turn, null if it has none.
    #[serde(default)]
    pub turn_rewards: Vec<Value>,
    /// Why the episode failed, if it did.
    #[serde(default)]
    pub failed: Option<String>,
}

impl LoggedRollout {
    /// Returns whether another completion answers the same prompt in the same step.
    #[must_use]
    pub fn is_of_group(&self, other: &Self) -> bool {
        (self.step, &self.row, &self.prompt) == (other.step, &other.row, &other.prompt)
    }

    /// Returns a value by its name: a reward's score, `advantage`, `tokens`, or `reward`, which is the sum of the scores times `weights`. A
    /// reward without a weight has weight 1. Returns `None` if there is no such value.
    #[must_use]
    pub fn value(&self, name: &str, weights: &BTreeMap<String, f64>) -> Option<f64> {
        let score = self.rewards.get(name).map(Value::as_f64);
        score.unwrap_or_else(|| match name {
            "advantage" => self.advantage.as_f64(),
            "tokens" => self.completion_ids.as_ref().map(|ids| ids.len() as f64),
            "reward" => {
                let parts = self.rewards.iter().filter_map(|(name, score)| Some((name, score.as_f64()?)));
                let parts: Vec<f64> = parts.map(|(name, score)| score * weights.get(name).unwrap_or(&1.0)).collect();
                (!parts.is_empty()).then(|| parts.iter().sum())
            }
            _ => None,
        })
    }
}

/// Names of values that [`LoggedRollout::value`] knows, other than those of rewards.
pub const VALUES: [&str; 3] = ["reward", "advantage", "tokens"];

/// A condition on a value.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueBound {
    /// Name of the value.
    pub name: String,
    /// Minimum value that matches.
    pub low: f64,
    /// Maximum value that matches.
    pub high: f64,
}

/// The steps whose completions are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepSelection {
    /// The newest step with completions.
    Last,
    /// The steps from the first to the second, inclusive.
    Between(u64, u64),
}

/// A filter for completions. The default selects all.
#[derive(Clone, Debug, Default)]
pub struct RolloutFilter {
    /// Steps of the completions.
    pub steps: StepSelection,
    /// Row of the dataset.
    pub row: Option<u64>,
    /// Text that the prompt contains, in lower case.
    pub prompt: Option<String>,
    /// Text that the completion or episode contains, in lower case.
    pub text: Option<String>,
    /// Conditions on values, all of which must hold.
    pub bounds: Vec<ValueBound>,
    /// Name of a plugin, if only that plugin's version counts, and prefix of the version.
    pub version: Option<(Option<String>, String)>,
    /// Whether only completions that were cut off by a limit match.
    pub cut_off: bool,
    /// Weights of rewards, for the value `reward`.
    pub weights: BTreeMap<String, f64>,
}

impl Default for StepSelection {
    fn default() -> Self {
        Self::Between(0, u64::MAX)
    }
}

impl RolloutFilter {
    /// Returns whether a completion meets all conditions except that on its step.
    fn matches(&self, rollout: &LoggedRollout) -> bool {
        let is_in = |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|wanted| contains(text, wanted));
        let within = |bound: &ValueBound| {
            let value = rollout.value(&bound.name, &self.weights);
            value.is_some_and(|value| (bound.low..=bound.high).contains(&value))
        };
        let is_version = |(name, given): &(Option<String>, String)| {
            let mut plugins = rollout.plugins.iter().filter(|(plugin, _)| name.as_ref().is_none_or(|name| name == *plugin));
            plugins.any(|(_, own)| own.as_str().is_some_and(|own| PluginVersion::parse(own).matches_prefix(given)))
        };
        let said =
            || rollout.messages.iter().any(|message| message["content"].as_str().is_some_and(|text| is_in(&self.text, text)));
        self.row.is_none_or(|row| rollout.row.as_u64() == Some(row))
            && (!self.cut_off || rollout.finished == Some(false))
            && self.bounds.iter().all(within)
            && self.version.as_ref().is_none_or(is_version)
            && is_in(&self.prompt, &rollout.prompt)
            && (is_in(&self.text, &rollout.completion) || said())
    }
}

/// Returns whether a text contains `wanted`, which is in lower case, ignoring case.
fn contains(text: &str, wanted: &str) -> bool {
    text.contains(wanted) || text.to_lowercase().contains(wanted)
}

/// The newest step, with the offset and number of its first line.
#[derive(Clone, Copy)]
struct NewestStep {
    step: u64,
    place: u64,
    number: u64,
}

/// An offset in the file at which the run began to repeat steps, and the first of these steps.
struct Restart {
    place: u64,
    step: u64,
}

/// The completions of a run.
pub struct RolloutReader {
    reader: JsonLinesReader,
    /// Restarts in the order of the file, each with the minimum of its step and all later ones.
    restarts: Vec<Restart>,
    newest: Option<NewestStep>,
    /// Offset at which the first pass ended; lines that a live run appends later are not read.
    end: u64,
    /// Names and versions in the completions that were read, for messages.
    inventory: RolloutInventory,
    /// Number of completions with values of the wrong type, and the number of the first such line.
    misfits: u64,
    first_misfit: u64,
}

/// The names and versions in the completions that were read.
#[derive(Debug, Default)]
pub struct RolloutInventory {
    /// Names of rewards.
    pub rewards: BTreeSet<String>,
    /// Versions of plugins, by name, with the first and the last step of each.
    pub versions: BTreeMap<(String, PluginVersion), (u64, u64)>,
    /// Number of completions.
    pub completions: u64,
}

impl RolloutInventory {
    fn add(&mut self, rollout: &LoggedRollout) {
        self.completions += 1;
        for name in rollout.rewards.keys() {
            if self.rewards.len() < MOST_NAMES && !self.rewards.contains(name) {
                self.rewards.insert(name.clone());
            }
        }
        for (name, version) in &rollout.plugins {
            let key = (name.clone(), PluginVersion::parse(version.as_str().unwrap_or_default()));
            if self.versions.len() < MOST_NAMES || self.versions.contains_key(&key) {
                let (from, to) = self.versions.entry(key).or_insert((rollout.step, rollout.step));
                (*from, *to) = ((*from).min(rollout.step), (*to).max(rollout.step));
            }
        }
    }
}

/// Parses only the step of a line.
#[derive(Deserialize)]
struct RolloutStep {
    step: u64,
}

/// Returns the step of a line, judging by its prefix.
fn step_at_a_glance(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(STEP)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

impl RolloutReader {
    /// Opens the file, and reads it once to determine which lines count.
    ///
    /// # Errors
    /// If it is not a regular file or can't be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut reader = JsonLinesReader::open(path, LONGEST_COMPLETION)?.with_limit(u64::MAX);
        let (mut restarts, mut before, mut newest): (Vec<Restart>, Option<u64>, Option<NewestStep>) = (Vec::new(), None, None);
        while let Some(line) = reader.next_line()? {
            let BoundedLine::Whole(text) = line else { continue };
            let glanced = step_at_a_glance(text).filter(|step| before.is_none_or(|before| before <= *step));
            // A line with an unexpected prefix is parsed completely: a damaged line must not undo others.
            let Some(step) = glanced.or_else(|| Some(serde_json::from_slice::<RolloutStep>(text).ok()?.step)) else { continue };
            let place = reader.offset();
            if before.is_some_and(|before| step < before) && restarts.len() < MOST_RESTARTS {
                restarts.push(Restart { place, step });
            }
            if before != Some(step) {
                newest = Some(NewestStep { step, place, number: reader.number() });
            }
            before = Some(step);
        }
        let end = reader.offset();
        let mut least = u64::MAX;
        for restart in restarts.iter_mut().rev() {
            least = least.min(restart.step);
            restart.step = least;
        }
        Ok(Self { reader, restarts, newest, end, inventory: RolloutInventory::default(), misfits: 0, first_misfit: 0 })
    }

    /// Returns the newest step with completions.
    #[must_use]
    pub fn newest_step(&self) -> Option<u64> {
        self.newest.map(|newest| newest.step)
    }

    /// Returns the names and versions in the completions that were read.
    #[must_use]
    pub fn inventory(&self) -> &RolloutInventory {
        &self.inventory
    }

    /// Returns whether a resume undid a step's line at this offset.
    fn is_undone(&self, place: u64, step: u64) -> bool {
        let next = self.restarts.partition_point(|restart| restart.place <= place);
        self.restarts.get(next).is_some_and(|restart| is_completion_undone(step, restart.step))
    }

    /// Calls `take` with each selected completion, its offset and its line, until it returns false.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn for_each(
        &mut self,
        selection: &RolloutFilter,
        mut take: impl FnMut(LoggedRollout, u64, &[u8]) -> bool,
    ) -> io::Result<()> {
        let Some(newest) = self.newest else { return Ok(()) };
        let (from, to) = match selection.steps {
            StepSelection::Last => (newest.step, newest.step),
            StepSelection::Between(from, to) => (from, to),
        };
        // Lines before the newest step's can't belong to it, unless they were undone.
        let (place, number) = if from == newest.step { (newest.place, newest.number) } else { (0, 1) };
        self.reader.seek_line(place, number)?;
        loop {
            match self.reader.next_line()? {
                None => break,
                Some(BoundedLine::TooLong) => {
                    self.reader.count_unread();
                    continue;
                }
                Some(BoundedLine::Whole(_)) => {}
            }
            let place = self.reader.offset();
            if place >= self.end {
                break;
            }
            let text = self.reader.text();
            // Lines with an unexpected prefix are parsed to see whether they are damaged.
            let is_other = |step: u64| !(from..=to).contains(&step) || self.is_undone(place, step);
            if step_at_a_glance(text).is_some_and(is_other) {
                continue;
            }
            let Ok(rollout) = serde_json::from_slice::<LoggedRollout>(text) else {
                if serde_json::from_slice::<Map<String, Value>>(text).is_ok() {
                    if self.misfits == 0 {
                        self.first_misfit = self.reader.number();
                    }
                    self.misfits += 1;
                } else {
                    self.reader.count_unread();
                }
                continue;
            };
            if !(from..=to).contains(&rollout.step) || self.is_undone(place, rollout.step) {
                continue;
            }
            self.inventory.add(&rollout);
            if selection.matches(&rollout) && !take(rollout, place, self.reader.text()) {
                break;
            }
        }
        Ok(())
    }

    /// Reads the completion at an offset from [`Self::for_each`]. Returns it and its line.
    ///
    /// # Errors
    /// If the file can't be read, or has changed.
    pub fn read_at(&mut self, place: u64) -> io::Result<(LoggedRollout, &[u8])> {
        self.reader.seek(place)?;
        let changed = || io::Error::new(io::ErrorKind::InvalidData, "it changed while it was read");
        match self.reader.next_line()? {
            Some(BoundedLine::Whole(_)) => {}
            _ => return Err(changed()),
        }
        let rollout = serde_json::from_slice(self.reader.text()).map_err(|_| changed())?;
        Ok((rollout, self.reader.text()))
    }

    /// Describes what could not be read from the file of this name.
    #[must_use]
    pub fn notes(self, file: &str) -> Vec<String> {
        let unread: UnreadLines = self.reader.unread();
        let mut notes = unread.notes(file);
        let first = self.first_misfit;
        match self.misfits {
            0 => {}
            1 => notes.push(format!("{file}: line {first} is not a completion as a run writes it and is ignored")),
            n => notes.push(format!("{file}: {n} lines are not completions as a run writes them; the first is line {first}")),
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    fn line(step: u64, row: u64, completion: &str, score: f64, hash: &str) -> String {
        let plugins = format!("{{\"r\":\"{hash}\"}}");
        format!(
            "{{\"step\":{step},\"row\":{row},\"prompt\":\"Q{row}\",\"completion\":\"{completion}\",\"completion_ids\":[1,2],\
             \"finished\":{},\"rewards\":{{\"r\":{score},\"s\":null}},\"plugins\":{plugins}}}\n",
            score > 0.0
        )
    }

    fn selected(text: &str, selection: &RolloutFilter) -> (Vec<(u64, String)>, Vec<String>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut rollouts = RolloutReader::open(file.path()).unwrap();
        let mut found = Vec::new();
        rollouts
            .for_each(selection, |rollout, _, _| {
                found.push((rollout.step, rollout.completion));
                true
            })
            .unwrap();
        (found, rollouts.notes("c"))
    }

    fn names(found: &[(u64, String)]) -> String {
        found.iter().map(|(step, name)| format!("{step}{name} ")).collect()
    }

    #[test]
    fn lines_that_a_resume_undid_are_passed_over_and_damaged_ones_undo_nothing() {
        let mut text = String::new();
        for (step, name) in [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (1, "e"), (2, "f"), (2, "g")] {
            text.push_str(&line(step, 0, name, 1.0, "aa"));
        }
        let all = RolloutFilter::default();
        assert_eq!(names(&selected(&text, &all).0), "0a 1e 2f 2g ");
        let last = RolloutFilter { steps: StepSelection::Last, ..RolloutFilter::default() };
        assert_eq!(names(&selected(&text, &last).0), "2f 2g ");
        // Torn lines, one that a live run is still writing, and an object that is not a completion.
        let torn = format!("{text}{{\"step\":0,\"row\":garb\n[]\n{{\"step\":\"x\"}}\n{{\"step\":2,\"row\":0}}\n{{\"step\":0,");
        let (found, notes) = selected(&torn, &all);
        assert_eq!(names(&found), "0a 1e 2f 2g 2 ");
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("2 lines are not JSON objects") && notes[0].ends_with("line 8"), "{notes:?}");
        assert!(notes[1].contains("line 10 is not a completion"), "{notes:?}");
    }

    #[test]
    fn conditions_are_met_together() {
        let mut text = String::new();
        for step in 0..6 {
            let _ = write!(text, "{}{}", line(step, 1, "Hello there", step as f64, "aabb"), line(step, 2, "bye", -1.0, "ccdd"));
        }
        let pick = |change: &dyn Fn(&mut RolloutFilter)| {
            let mut selection = RolloutFilter::default();
            change(&mut selection);
            let found = selected(&text, &selection).0;
            (found.len(), found.first().map(|(step, _)| *step))
        };
        assert_eq!(pick(&|s| s.steps = StepSelection::Between(2, 3)), (4, Some(2)));
        assert_eq!(pick(&|s| s.text = Some("hello".into())), (6, Some(0)));
        assert_eq!(pick(&|s| s.prompt = Some("q2".into())), (6, Some(0)));
        assert_eq!(pick(&|s| s.row = Some(2)), (6, Some(0)));
        let bound = |name: &str, low, high| vec![ValueBound { name: name.into(), low, high }];
        assert_eq!(pick(&|s| s.bounds = bound("r", 4.0, f64::INFINITY)), (2, Some(4)));
        assert_eq!(pick(&|s| s.bounds = bound("s", 0.0, 1.0)), (0, None));
        assert_eq!(pick(&|s| s.bounds = bound("tokens", 2.0, 2.0)), (12, Some(0)));
        let doubled = |s: &mut RolloutFilter| {
            s.weights = BTreeMap::from([("r".into(), 2.0)]);
            s.bounds = bound("reward", 10.0, 10.0);
        };
        assert_eq!(pick(&doubled), (1, Some(5)));
        assert_eq!(pick(&|s| s.version = Some((None, "cc".into()))), (6, Some(0)));
        assert_eq!(pick(&|s| s.version = Some((Some("other".into()), "cc".into()))), (0, None));
        assert_eq!(pick(&|s| s.cut_off = true), (7, Some(0)));
    }
}
