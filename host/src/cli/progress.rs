//! Shows a run's progress: a table of key metrics. Its steps and phases are in the status line of `display`.

use super::display::{self, RunTimer};
use super::output;
use crate::config::printable;
use crate::config::words::in_column;
use crate::train::{Calendar, Listener};
use console::{Term, measure_text_width, style};
use std::collections::BTreeMap;

/// Metrics with a column, and their short names. A narrow terminal shows only the first ones.
const KEY_FIGURES: [(&str, &str); 10] = [
    ("reward", "reward"),
    ("reward_std", "std"),
    ("completions/mean_length", "length"),
    ("loss", "loss"),
    ("rewards/accuracies", "accuracy"),
    ("rewards/margins", "margin"),
    ("kl", "kl"),
    ("mean_token_accuracy", "tokens right"),
    ("grad_norm", "grad_norm"),
    ("step_time", "s/step"),
];

/// Lines after which the column names are repeated.
const LINES_BETWEEN_NAMES: usize = 25;

/// Spaces before a value.
const GAP: usize = 2;

/// Width of a column, without its gap.
const WIDTH: usize = 9;

/// Maximum width of a column with a reward's name.
const WIDEST: usize = 20;

/// Prints a run's metrics, and shows its steps; prints nothing with --quiet, or if another process prints.
pub(super) struct ProgressPrinter {
    steps: u64,
    quiet: bool,
    columns: Vec<String>,
    lines: usize,
}

impl ProgressPrinter {
    pub(super) fn new(calendar: Calendar, shown: bool) -> Self {
        let quiet = !shown || !tracing::enabled!(tracing::Level::INFO);
        if !quiet {
            display::set_run(Some(RunTimer::new(calendar)));
        }
        Self { steps: calendar.last, quiet, columns: Vec::new(), lines: 0 }
    }

    /// Returns the width of the step column.
    fn first(&self) -> usize {
        self.steps.to_string().len() * 2 + 1
    }

    /// Returns the columns that fit the terminal.
    fn fitting(&self, mut columns: Vec<(String, f64)>) -> Vec<(String, f64)> {
        let term = Term::stdout();
        if term.is_term() {
            let room = usize::from(term.size().1);
            let mut taken = self.first();
            let fits = columns.iter().take_while(|(name, _)| {
                taken += 2 + width(name);
                taken < room
            });
            let fits = fits.count().max(1);
            columns.truncate(fits);
        }
        columns
    }
}

impl Listener for ProgressPrinter {
    fn stepped(&mut self, step: u64) {
        display::stepped(step);
    }

    fn logged(&mut self, step: u64, figures: &BTreeMap<String, f64>) {
        if self.quiet {
            return;
        }
        let first = self.first();
        let (columns, values): (Vec<String>, Vec<f64>) = self.fitting(shown(figures, "")).into_iter().unzip();
        if columns != self.columns || self.lines == LINES_BETWEEN_NAMES {
            let names: String = columns.iter().map(|name| format!("  {name:>width$}", width = width(name))).collect();
            output::bytes(format!("{}\n", style(format!("{:>first$}{names}", "step")).dim()).as_bytes());
            (self.columns, self.lines) = (columns, 0);
        }
        self.lines += 1;
        let cells = self.columns.iter().zip(values);
        let cells: String = cells.map(|(name, v)| format!("  {:>width$}", in_column(v), width = width(name))).collect();
        say!("{:>first$}{cells}", format!("{step}/{}", self.steps));
    }

    fn evaluated(&mut self, step: u64, figures: &BTreeMap<String, f64>) {
        if !self.quiet {
            let shown = shown(figures, "eval_").into_iter().map(|(name, v)| format!("{name} {}", in_column(v)));
            let term = Term::stdout();
            let width = if term.is_term() { usize::from(term.size().1) } else { usize::MAX };
            say!("{}", in_lines(format!("evaluation at step {step}:"), shown, width));
        }
    }

    fn ended(&mut self) {
        display::set_run(None);
    }
}

/// Returns the columns of these metrics, whose names begin with `prefix`. Each of several rewards has its own column.
fn shown(figures: &BTreeMap<String, f64>, prefix: &str) -> Vec<(String, f64)> {
    let of_reward = |name: &str| {
        let name = name.strip_prefix(prefix)?.strip_prefix("rewards/")?.strip_suffix("/mean")?;
        // Names of a plugin's own metrics have one more part.
        (!name.contains('/')).then(|| console::truncate_str(&printable(name, WIDEST), WIDEST, "\u{2026}").into_owned())
    };
    let mut rewards: Vec<(String, f64)> = figures.iter().filter_map(|(name, v)| Some((of_reward(name)?, *v))).collect();
    let mut columns = Vec::new();
    for (name, short) in KEY_FIGURES {
        columns.extend(figures.get(&format!("{prefix}{name}")).map(|v| (short.to_owned(), *v)));
        if name == "reward" && rewards.len() > 1 {
            columns.append(&mut rewards);
        }
    }
    columns
}

/// Returns a heading followed by values, broken between values to fit `width`.
fn in_lines(heading: String, values: impl Iterator<Item = String>, width: usize) -> String {
    let (mut text, mut taken) = (String::new(), 0);
    for (i, part) in std::iter::once(heading).chain(values).enumerate() {
        let wide = measure_text_width(&part);
        let gap = if i == 0 { 0 } else { GAP };
        if i > 0 && taken + gap + wide > width {
            text.push('\n');
            taken = 0;
        }
        text.extend(std::iter::repeat_n(' ', gap));
        text.push_str(&part);
        taken += gap + wide;
    }
    text
}

fn width(name: &str) -> usize {
    name.chars().count().max(WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::{MetricOrigin, is_reserved};
    use crate::{diagnosis, report};

    #[test]
    fn no_reward_reports_a_metric_that_the_host_reads() {
        let columns = KEY_FIGURES.iter().map(|(name, _)| *name);
        let read: Vec<&str> = columns.chain(diagnosis::metrics_read()).chain(report::metrics_read()).collect();
        assert!(read.len() > 60 && ["kl", "objective/kl", "val/clipfrac_avg"].iter().all(|name| read.contains(name)), "{read:?}");
        for name in read {
            assert!(is_reserved(name, MetricOrigin::Scores), "{name}");
        }
    }

    #[test]
    fn an_evaluation_is_broken_between_its_values() {
        let values = || ["reward 0.412", "repetition_reward -0.001", "length 31.5"].map(str::to_owned).into_iter();
        let lines = |width| in_lines("evaluation at step 20:".to_owned(), values(), width);
        let whole = "evaluation at step 20:  reward 0.412  repetition_reward -0.001  length 31.5";
        assert_eq!((lines(usize::MAX).as_str(), lines(75).as_str()), (whole, whole));
        assert_eq!(lines(60), "evaluation at step 20:  reward 0.412\n  repetition_reward -0.001  length 31.5");
        assert_eq!(
            lines(24).lines().collect::<Vec<_>>(),
            ["evaluation at step 20:", "  reward 0.412", "  repetition_reward -0.001", "  length 31.5"]
        );
        assert_eq!(whole.len(), 75);
    }

    #[test]
    fn several_rewards_have_a_column_each_and_one_has_none() {
        let of = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 1.0)).collect::<BTreeMap<_, _>>();
        let names = |figures: &BTreeMap<String, f64>, prefix: &str| {
            shown(figures, prefix).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let one = of(&["loss", "reward", "reward_std", "rewards/answer/mean", "rewards/answer/std"]);
        assert_eq!(names(&one, ""), ["reward", "std", "loss"]);
        let two = of(&["reward", "reward_std", "rewards/answer/mean", "rewards/answer/parsed/mean", "rewards/form/mean", "loss"]);
        assert_eq!(names(&two, ""), ["reward", "answer", "form", "std", "loss"]);
        let evaluated = of(&["eval_reward", "eval_rewards/answer/mean", "eval_rewards/form/mean"]);
        assert_eq!(names(&evaluated, "eval_"), ["reward", "answer", "form"]);
        let long = of(&["reward", "rewards/a/mean", "rewards/a_name_that_is_longer_than_a_column/mean"]);
        assert_eq!(names(&long, "")[2].chars().count(), WIDEST);
    }
}
