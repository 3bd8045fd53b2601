//! Shows the run's progress: a table of key metrics, with a progress bar below it on a terminal.

use crate::train::Listener;
use console::style;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

/// Metrics with a column, and their short names.
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

/// Width of a column, without its gap.
const WIDTH: usize = 9;

/// Shows a run's progress; nothing with --quiet, or if another process shows it.
pub(super) struct Progress {
    steps: u64,
    bar: Option<ProgressBar>,
    quiet: bool,
    columns: Vec<&'static str>,
    lines: usize,
}

impl Progress {
    pub(super) fn new(steps: u64, shown: bool) -> Self {
        let quiet = !shown || !tracing::enabled!(tracing::Level::INFO);
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            let template = "{bar:30} {pos}/{len}  {elapsed} elapsed, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        Self { steps, bar, quiet, columns: Vec::new(), lines: 0 }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            _ if self.quiet => {}
            Some(bar) => bar.println(text),
            // A closed pipe must not end a run.
            None => drop(writeln!(std::io::stdout(), "{text}")),
        }
    }
}

impl Listener for Progress {
    fn stepped(&mut self, step: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(step);
        }
    }

    fn logged(&mut self, step: u64, figures: &BTreeMap<String, f64>) {
        let shown: Vec<(&str, f64)> =
            KEY_FIGURES.iter().filter_map(|(name, short)| Some((*short, *figures.get(*name)?))).collect();
        let columns: Vec<&str> = shown.iter().map(|(short, _)| *short).collect();
        let first = self.steps.to_string().len() * 2 + 1;
        if columns != self.columns || self.lines == LINES_BETWEEN_NAMES {
            let names: String = columns.iter().map(|name| format!("  {name:>width$}", width = width(name))).collect();
            self.line(&style(format!("{:>first$}{names}", "step")).dim().to_string());
            (self.columns, self.lines) = (columns, 0);
        }
        self.lines += 1;
        let values: String = shown.iter().map(|(name, v)| format!("  {:>width$}", rounded(*v), width = width(name))).collect();
        self.line(&format!("{:>first$}{values}", format!("{step}/{}", self.steps)));
    }

    fn evaluated(&mut self, step: u64, figures: &BTreeMap<String, f64>) {
        let value = |name: &str| figures.get(&format!("eval_{name}"));
        let shown = KEY_FIGURES.iter().filter_map(|(name, short)| Some(format!("{short} {}", rounded(*value(name)?))));
        self.line(&format!("evaluation at step {step}:  {}", shown.collect::<Vec<_>>().join("  ")));
    }

    fn ended(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn width(name: &str) -> usize {
    name.len().max(WIDTH)
}

fn rounded(v: f64) -> String {
    if v != 0.0 && v.abs() < 1e-3 { format!("{v:.1e}") } else { format!("{v:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::{Role, is_reserved};
    use crate::{diagnosis, report};

    #[test]
    fn no_reward_reports_a_metric_that_the_host_reads() {
        let columns = KEY_FIGURES.iter().map(|(name, _)| *name);
        let read: Vec<&str> = columns.chain(diagnosis::metrics_read()).chain(report::metrics_read()).collect();
        assert!(read.len() > 60 && ["kl", "objective/kl", "val/clipfrac_avg"].iter().all(|name| read.contains(name)), "{read:?}");
        for name in read {
            assert!(is_reserved(name, Role::Reward) && is_reserved(name, Role::Environment), "{name}");
        }
    }
}
