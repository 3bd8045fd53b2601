//! `rlhost rollouts`: shows a run's completions.

mod args;
mod layout;
mod selection;

use super::failure::CommandFailure;
use super::pager::Pager;
use crate::config::words::counted;
use crate::config::{Overrides, PluginEntry, is_hidden, read};
use crate::report;
use crate::run::{EffectiveConfig, LoggedRollout, RolloutFilter, RolloutReader, RunFiles, StepSelection};
use anyhow::anyhow;
pub(super) use args::Args;
use layout::RolloutLayout;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::path::Path;

/// Maximum number of completions, and of bytes of their texts, that are formatted together.
const MOST_TOGETHER: usize = 256;
const MOST_BYTES: usize = 8 << 20;

/// Maximum number of completions that --top and --bottom show.
const MOST_CHOSEN: usize = 100_000;

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    report::check(&args.run).map_err(CommandFailure::from_error)?;
    show(args).map_err(CommandFailure::from_error)
}

fn show(args: &Args) -> anyhow::Result<()> {
    let file = RunFiles(&args.run).completions();
    let selection = selection::selection(args, weights(&args.run))?;
    let unread = |source: io::Error| anyhow::Error::from(report::Error::Read { path: file.clone(), source });
    let none = || {
        anyhow!(
            "{}: no completions (SFT and preference training generate none, and log_completions = none keeps none)",
            file.display()
        )
    };
    let mut rollouts =
        RolloutReader::open(&file).map_err(|e| if e.kind() == io::ErrorKind::NotFound { none() } else { unread(e) })?;
    let newest = rollouts.newest_step().ok_or_else(none)?;
    let mut out = RolloutPrinter::new(args, &selection);
    match args.top.is_some() || args.bottom.is_some() {
        true => chosen(args, &mut rollouts, &selection, &mut out).map_err(unread)?,
        false => rollouts.for_each(&selection, |rollout, _, line| out.take(rollout, line)).map_err(unread)?,
    }
    let (shown, is_whole, is_limited) = (out.shown, out.is_whole(), out.has_reader && out.shown == out.limit);
    out.finish();
    if shown == 0 && is_whole {
        selection::check_names(args, &selection, rollouts.inventory(), newest)?;
    }
    let said = match (shown, selection.steps) {
        (0, _) if is_whole => Some(empty_notice(&selection, &rollouts, newest)),
        (_, StepSelection::Last) if args.conditions.step.is_none() && newest > 0 => {
            Some(format!("this is step {newest}, the newest with completions; --step .. shows all"))
        }
        _ if is_limited => {
            Some(format!("only the first {}; there may be more, see --limit", counted(shown as u64, "completion")))
        }
        _ => None,
    };
    rollouts.notes(&output_name(&file)).iter().for_each(|note| tracing::warn!("{note}"));
    said.iter().for_each(|said| tracing::info!("{said}"));
    Ok(())
}

/// Returns the reason why nothing was shown.
fn empty_notice(selection: &RolloutFilter, rollouts: &RolloutReader, newest: u64) -> String {
    let read = rollouts.inventory().completions;
    match selection.steps {
        StepSelection::Between(from, to) if read == 0 => {
            let steps = if from == to { format!("step {from}") } else { format!("steps {from} to {to}") };
            format!("there are no completions of {steps}; the newest are of step {newest}")
        }
        _ => format!("none of {} meets these conditions", counted(read, "completion")),
    }
}

/// Returns the name of the file of completions.
fn output_name(file: &Path) -> String {
    file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the weights of the run's rewards, if its configuration can be read.
fn weights(run: &Path) -> BTreeMap<String, f64> {
    let config = read([EffectiveConfig::path(run).as_path()], &Overrides::default());
    let weight = |entry: &PluginEntry| (entry.name().to_owned(), entry.weight);
    config.map_or_else(
        |error| {
            tracing::warn!("the rewards' weights are unknown, so each counts once in the sum: {error}");
            BTreeMap::new()
        },
        |config| config.plugin.iter().chain(&config.environment).map(weight).collect(),
    )
}

/// A candidate for the completions with the greatest values.
#[derive(PartialEq)]
struct RankedCompletion {
    value: f64,
    place: u64,
}

impl Eq for RankedCompletion {}

impl Ord for RankedCompletion {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Of equal values, the one that is first in the file ranks higher.
        self.value.total_cmp(&other.value).then(other.place.cmp(&self.place))
    }
}

impl PartialOrd for RankedCompletion {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Shows the selected completions with the greatest and the least values.
fn chosen(args: &Args, rollouts: &mut RolloutReader, selection: &RolloutFilter, out: &mut RolloutPrinter) -> io::Result<()> {
    let by = args.by.as_deref().unwrap_or("reward");
    // Min-heaps, whose least element can be removed first.
    let mut ends = [args.top, args.bottom].map(|count| (count.unwrap_or(0).min(MOST_CHOSEN), BinaryHeap::new()));
    rollouts.for_each(selection, |rollout, place, _| {
        let Some(value) = rollout.value(by, &selection.weights) else { return true };
        for ((count, heap), value) in ends.iter_mut().zip([value, -value]) {
            heap.push(Reverse(RankedCompletion { value, place }));
            if heap.len() > *count {
                heap.pop();
            }
        }
        true
    })?;
    for (_, heap) in ends {
        // Ascending order of reversed values lists the greatest first.
        for Reverse(candidate) in heap.into_sorted_vec() {
            let (rollout, line) = rollouts.read_at(candidate.place)?;
            if !out.take(rollout, line) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Prints completions.
struct RolloutPrinter {
    pager: Pager,
    /// `None` for JSON lines.
    layout: Option<RolloutLayout>,
    /// Completions of a prompt that are not shown yet, and the size of their texts in bytes.
    group: Vec<LoggedRollout>,
    bytes: usize,
    shown: usize,
    limit: usize,
    has_reader: bool,
}

impl RolloutPrinter {
    fn new(args: &Args, selection: &RolloutFilter) -> Self {
        let layout = (!args.json).then(|| RolloutLayout::new(args.full, selection.weights.clone()));
        let pager = Pager::start(!args.json && !args.no_pager);
        let limit = args.limit.unwrap_or(usize::MAX);
        Self { pager, layout, group: Vec::new(), bytes: 0, shown: 0, limit, has_reader: true }
    }

    /// Shows a completion, at the latest when its group is complete. Returns whether the reader wants more.
    fn take(&mut self, rollout: LoggedRollout, line: &[u8]) -> bool {
        if self.shown == self.limit {
            return false;
        }
        self.shown += 1;
        if self.layout.is_none() {
            self.has_reader = self.pager.line(&safe_json(line));
        } else {
            let is_other = self.group.last().is_some_and(|last| !last.is_of_group(&rollout));
            if is_other || self.group.len() == MOST_TOGETHER || self.bytes > MOST_BYTES {
                self.show_group();
            }
            self.bytes += line.len();
            self.group.push(rollout);
        }
        self.has_reader && self.shown < self.limit
    }

    fn show_group(&mut self) {
        let group = std::mem::take(&mut self.group);
        self.bytes = 0;
        if let Some(layout) = &mut self.layout {
            for line in layout.group(&group) {
                self.has_reader = self.has_reader && self.pager.line(line.as_bytes());
            }
        }
    }

    /// Returns whether nothing was omitted because of the limit or because the reader left.
    fn is_whole(&self) -> bool {
        self.has_reader && self.shown < self.limit
    }

    fn finish(mut self) {
        self.show_group();
        self.pager.finish();
    }
}

/// Returns a JSON line with hidden characters escaped, without its line end.
fn safe_json(line: &[u8]) -> Vec<u8> {
    let line = line.trim_ascii_end();
    if line.is_ascii() {
        return line.to_vec();
    }
    let mut shown = String::with_capacity(line.len());
    for c in String::from_utf8_lossy(line).chars() {
        if is_hidden(c) {
            // Outside of strings, JSON has no such characters.
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown.push_str(&format!("\\u{unit:04x}")));
        } else {
            shown.push(c);
        }
    }
    shown.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_stays_the_same_value_and_hides_nothing() {
        let line = "{\"a\": \"\u{e9}\u{202e}\u{e0101}\"}\n";
        let shown = safe_json(line.as_bytes());
        assert_eq!(String::from_utf8_lossy(&shown), "{\"a\": \"\u{e9}\\u202e\\udb40\\udd01\"}");
        let value = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        assert_eq!(value(&shown), value(line.as_bytes()));
    }
}
