//! `rlhost rollouts`: shows a run's completions.

mod layout;
mod selecting;

use super::Failure;
use super::pager::Pager;
use crate::config::words::counted;
use crate::config::{Overrides, PluginEntry, is_hidden, read};
use crate::report;
use crate::run::{ConfigInForce, Rollout, Rollouts, RunFiles, Selection, Steps};
use anyhow::anyhow;
use layout::Layout;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::path::{Path, PathBuf};

/// Most completions, and bytes of their texts, that are laid out together.
const MOST_TOGETHER: usize = 256;
const MOST_BYTES: usize = 8 << 20;

/// Most completions that --top and --bottom show.
const MOST_CHOSEN: usize = 100_000;

/// Arguments of `rollouts`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
                        rlhost rollouts run                              the newest step\n  \
                        rlhost rollouts run --step 100..120 --row 7      what a prompt's completions became\n  \
                        rlhost rollouts run --top 5 --by length_reward   the best of the whole run by a reward\n  \
                        rlhost rollouts run --reward 'answer>=1' --search sorry\n  \
                        rlhost rollouts run --version answer=3fa9 --json | jq .completion\n\n\
                        A step is the number of steps taken before its completions were generated. Conditions are met together. On a \
                        terminal, long texts are shortened, and output longer than the screen goes through $PAGER or less.")]
pub(super) struct Args {
    /// Folder of the run, which may still be running
    run: PathBuf,
    #[command(flatten)]
    conditions: Conditions,
    /// Show the N completions with the greatest values, greatest first
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Show the N completions with the least values, least first
    #[arg(long, value_name = "N")]
    bottom: Option<usize>,
    /// Value that --top and --bottom go by [default: reward, the weighted sum]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Show at most N completions
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Show long texts as a whole
    #[arg(long)]
    full: bool,
    /// Print completions as they are in completions.jsonl, one per line
    #[arg(long)]
    json: bool,
    /// Don't start a pager
    #[arg(long, alias = "no_pager")]
    no_pager: bool,
}

/// Which completions are shown.
#[derive(clap::Args)]
struct Conditions {
    /// Steps to show: 120, 100..120, 100.., ..120, `..` for all, or last [default: last; all if there is another condition]
    #[arg(long, alias = "steps", value_name = "STEPS", allow_hyphen_values = true)]
    step: Option<String>,
    /// Show completions of this row of the dataset
    #[arg(long)]
    row: Option<u64>,
    /// Show completions of prompts that contain this text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Show completions that contain this text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    search: Option<String>,
    /// Show completions by a value, as in 'NAME>=0.5', 'NAME<0', NAME=1 or NAME=0.2..0.8; NAME is a reward, advantage, tokens, or
    /// reward for the weighted sum, which needs no name: '>0.5'; may be repeated
    #[arg(long, value_name = "CONDITION", allow_hyphen_values = true)]
    reward: Vec<String>,
    /// Show completions that this version of a plugin scored: the beginning of its hash, HASH+DIGEST with that of its settings, or NAME=HASH
    #[arg(long, value_name = "HASH")]
    version: Option<String>,
    /// Show completions that a limit cut off
    #[arg(long, alias = "cut_off")]
    cut_off: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    report::check(&args.run).map_err(Failure::of)?;
    show(args).map_err(Failure::of)
}

fn show(args: &Args) -> anyhow::Result<()> {
    let file = RunFiles(&args.run).completions();
    let selection = selecting::selection(args, weights(&args.run))?;
    let unread = |source: io::Error| anyhow::Error::from(report::Error::Read { path: file.clone(), source });
    let none = || {
        anyhow!(
            "{}: no completions (SFT and preference training generate none, and log_completions = none keeps none)",
            file.display()
        )
    };
    let mut rollouts = Rollouts::open(&file).map_err(|e| if e.kind() == io::ErrorKind::NotFound { none() } else { unread(e) })?;
    let newest = rollouts.newest_step().ok_or_else(none)?;
    let mut out = Out::new(args, &selection);
    match args.top.is_some() || args.bottom.is_some() {
        true => chosen(args, &mut rollouts, &selection, &mut out).map_err(unread)?,
        false => rollouts.each(&selection, |rollout, _, line| out.take(rollout, line)).map_err(unread)?,
    }
    let (shown, is_whole, is_limited) = (out.shown, out.is_whole(), out.has_reader && out.shown == out.limit);
    out.finish();
    if shown == 0 && is_whole {
        selecting::check_names(args, &selection, rollouts.seen(), newest)?;
    }
    let said = match (shown, selection.steps) {
        (0, _) if is_whole => Some(nothing(&selection, &rollouts, newest)),
        (_, Steps::Last) if args.conditions.step.is_none() && newest > 0 => {
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

/// Says why nothing was shown.
fn nothing(selection: &Selection, rollouts: &Rollouts, newest: u64) -> String {
    let read = rollouts.seen().completions;
    match selection.steps {
        Steps::Between(from, to) if read == 0 => {
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

/// Returns the weights of the run's rewards, as far as its configuration can be read.
fn weights(run: &Path) -> BTreeMap<String, f64> {
    let config = read([ConfigInForce::path(run).as_path()], &Overrides::default());
    let weight = |entry: &PluginEntry| (entry.name().to_owned(), entry.weight);
    config.map_or_else(
        |error| {
            tracing::warn!("the rewards' weights are unknown, so each counts once in the sum: {error}");
            BTreeMap::new()
        },
        |config| config.plugin.iter().chain(&config.environment).map(weight).collect(),
    )
}

/// A completion that may be among those with the greatest values.
#[derive(PartialEq)]
struct Candidate {
    value: f64,
    place: u64,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Of equal ones, the first in the file counts more.
        self.value.total_cmp(&other.value).then(other.place.cmp(&self.place))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Shows the selected completions with the greatest and the least values.
fn chosen(args: &Args, rollouts: &mut Rollouts, selection: &Selection, out: &mut Out) -> io::Result<()> {
    let by = args.by.as_deref().unwrap_or("reward");
    // The least of the best can be taken out first.
    let mut ends = [args.top, args.bottom].map(|count| (count.unwrap_or(0).min(MOST_CHOSEN), BinaryHeap::new()));
    rollouts.each(selection, |rollout, place, _| {
        let Some(value) = rollout.value(by, &selection.weights) else { return true };
        for ((count, heap), value) in ends.iter_mut().zip([value, -value]) {
            heap.push(Reverse(Candidate { value, place }));
            if heap.len() > *count {
                heap.pop();
            }
        }
        true
    })?;
    for (_, heap) in ends {
        // In ascending order of what is reversed, so the greatest come first.
        for Reverse(candidate) in heap.into_sorted_vec() {
            let (rollout, line) = rollouts.at(candidate.place)?;
            if !out.take(rollout, line) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Where completions are shown.
struct Out {
    pager: Pager,
    /// None for lines of JSON.
    layout: Option<Layout>,
    /// Completions of a prompt that are not shown yet, and the bytes of their texts.
    group: Vec<Rollout>,
    bytes: usize,
    shown: usize,
    limit: usize,
    has_reader: bool,
}

impl Out {
    fn new(args: &Args, selection: &Selection) -> Self {
        let layout = (!args.json).then(|| Layout::new(args.full, selection.weights.clone()));
        let pager = Pager::start(!args.json && !args.no_pager);
        let limit = args.limit.unwrap_or(usize::MAX);
        Self { pager, layout, group: Vec::new(), bytes: 0, shown: 0, limit, has_reader: true }
    }

    /// Shows a completion, at the latest when its group is complete. Returns whether there is a reader for more.
    fn take(&mut self, rollout: Rollout, line: &[u8]) -> bool {
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

    /// Returns whether nothing was left out for the limit, or for want of a reader.
    fn is_whole(&self) -> bool {
        self.has_reader && self.shown < self.limit
    }

    fn finish(mut self) {
        self.show_group();
        self.pager.finish();
    }
}

/// Returns a line of JSON whose hidden characters are escaped, without its end.
fn safe_json(line: &[u8]) -> Vec<u8> {
    let line = line.trim_ascii_end();
    if line.is_ascii() {
        return line.to_vec();
    }
    let mut shown = String::with_capacity(line.len());
    for c in String::from_utf8_lossy(line).chars() {
        if is_hidden(c) {
            // Outside of texts, JSON has no such characters.
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
