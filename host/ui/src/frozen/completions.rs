//! Completions that a file contains: complete groups, of all steps or of steps spread over the run.

use super::queries::query;
use crate::api::{PageApi, PageRoute};
use crate::folder::NamedRun;
use crate::store::locked;
use rlhost_live::CompletionEntry;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Number of steps spread evenly over the run, and their maximum number together with the steps at which a plugin changed.
const STEPS: usize = 16;
const MOST_STEPS: usize = 40;

/// Maximum size in bytes of all completions in a file, and of one text.
const MOST_BYTES: usize = 4 << 20;
const LONGEST_TEXT: usize = 20_000;

/// Returns groups of a run's completions: all if they fit, else those of the first step, the last, and some between.
pub(super) fn read(api: &PageApi, run: &NamedRun, runs: usize) -> Value {
    let (entries, changes): (Vec<CompletionEntry>, Vec<u64>) = {
        let run = api.store.run(&run.path);
        let run = locked(&run);
        (run.completions.entries.clone(), run.breaks())
    };
    let room = MOST_BYTES / runs;
    let mut steps: Vec<u64> = entries.iter().map(|entry| entry.step).collect();
    steps.dedup();
    let has_room_for_all = locked(&api.store.run(&run.path)).completions.place() <= room as u64;
    let chosen = if has_room_for_all { steps.into_iter().collect() } else { chosen(&steps, &changes) };
    let mut there = FrozenRun { run, entries: &entries, groups: Vec::new(), histories: Map::new() };
    let mut used = 0;
    for (i, step) in chosen.iter().enumerate() {
        // Later steps may use the space that a step leaves.
        used += there.add(api, *step, (room - used) / (chosen.len() - i));
    }
    let shown: usize = there.groups.iter().filter_map(|group| group["items"].as_array()).map(Vec::len).sum();
    json!({
        "groups": there.groups,
        "histories": there.histories,
        "shown": shown,
        "all": entries.len(),
        "newest": entries.last().map(|entry| entry.step),
    })
}

/// Completions of a run in a file.
struct FrozenRun<'a> {
    run: &'a NamedRun,
    entries: &'a [CompletionEntry],
    groups: Vec<Value>,
    /// Results of each prompt in all steps, by row; the groups of a prompt share them.
    histories: Map<String, Value>,
}

/// Selects the first step, the last, some between, and the first at or after each change.
fn chosen(steps: &[u64], changes: &[u64]) -> BTreeSet<u64> {
    let Some(last) = steps.len().checked_sub(1) else { return BTreeSet::new() };
    let spread = STEPS.min(steps.len());
    let mut chosen: BTreeSet<u64> = (0..spread).map(|i| steps[i * last / (spread - 1).max(1)]).collect();
    for change in changes {
        if chosen.len() < MOST_STEPS {
            chosen.extend(steps.iter().find(|step| *step >= change));
        }
    }
    chosen
}

impl FrozenRun<'_> {
    /// Adds as many groups of a step as fit. Returns their size in bytes.
    fn add(&mut self, api: &PageApi, step: u64, room: usize) -> usize {
        let first = self.entries.partition_point(|entry| entry.step < step);
        let of_step = self.entries.iter().enumerate().skip(first).take_while(|(_, entry)| entry.step == step);
        let (mut seen, mut used) = (BTreeSet::new(), 0);
        for (id, entry) in of_step {
            if !seen.insert(entry.row) {
                continue;
            }
            let asked = query([("run", self.run.name.as_str()), ("id", &id.to_string())]);
            let Ok(mut group) = api.answer(PageRoute::Group, &asked, b"") else { continue };
            let (row, history) = (entry.row.to_string(), group["history"].take());
            shorten(&mut group);
            let is_known = self.histories.contains_key(&row);
            let size = group.to_string().len() + if is_known { 0 } else { history.to_string().len() };
            if used + size > room {
                break;
            }
            used += size;
            self.groups.push(group);
            self.histories.entry(row).or_insert(history);
        }
        used
    }
}

/// Truncates long texts.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > LONGEST_TEXT => {
            let mut end = LONGEST_TEXT;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            let more = text.len() - end;
            text.truncate(end);
            text.push_str(&format!("\u{2026} ({more} bytes more)"));
        }
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Object(entries) => entries.values_mut().for_each(shorten),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_spread_over_the_run_with_those_of_changes() {
        let steps: Vec<u64> = (0..100).collect();
        let spread = chosen(&steps, &[]);
        assert_eq!((spread.len(), spread.first(), spread.last()), (STEPS, Some(&0), Some(&99)));
        let with_changes = chosen(&steps, &[50, 51, 500]);
        assert!(with_changes.contains(&50) && with_changes.contains(&51) && with_changes.len() <= STEPS + 2);
        let many: Vec<u64> = (0..100).collect();
        assert_eq!(chosen(&steps, &many).len(), MOST_STEPS);
        assert_eq!((chosen(&[], &[3]).len(), chosen(&[7], &[3]).len()), (0, 1));
    }

    #[test]
    fn long_texts_are_cut_off_and_say_so() {
        let mut value = json!({ "a": ["\u{e9}".repeat(LONGEST_TEXT)], "b": 1 });
        shorten(&mut value);
        let text = value["a"][0].as_str().unwrap();
        assert!(text.len() < LONGEST_TEXT + 50 && text.ends_with(&format!("({LONGEST_TEXT} bytes more)")), "{}", text.len());
    }
}
