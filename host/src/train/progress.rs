//! The run on a terminal: a bar with the key figures; plain lines elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

/// Figures worth a place on a line, with their short names.
const KEY_FIGURES: [(&str, &str); 9] = [
    ("reward", "reward"),
    ("reward_std", "std"),
    ("completions/mean_length", "length"),
    ("loss", "loss"),
    ("rewards/accuracies", "accuracy"),
    ("rewards/margins", "margin"),
    ("kl", "kl"),
    ("grad_norm", "grad_norm"),
    ("step_time", "s/step"),
];

pub(super) struct Progress {
    steps: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(super) fn new(steps: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed_precise} < {eta_precise}] {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { steps, bar }
    }

    /// Shows a logged step's figures.
    pub(super) fn log(&self, step: u64, figures: &BTreeMap<String, f64>) {
        let shown = key_figures("", figures);
        if let Some(bar) = &self.bar {
            bar.set_message(shown.iter().take(3).cloned().collect::<Vec<_>>().join("  "));
        }
        self.line("step", step, &shown);
    }

    /// Shows an evaluation's figures.
    pub(super) fn log_evaluation(&self, step: u64, figures: &BTreeMap<String, f64>) {
        self.line("eval", step, &key_figures("eval_", figures));
    }

    fn line(&self, what: &str, step: u64, shown: &[String]) {
        let text = shown.join("  ");
        match &self.bar {
            Some(bar) => bar.println(format!("{what} {step:>5}  {text}")),
            // A closed pipe is no reason to end a run.
            None => drop(writeln!(std::io::stdout(), "{what} {step}/{}  {text}", self.steps)),
        }
    }

    pub(super) fn advance(&self, step: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(step);
        }
    }

    pub(super) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// The key figures that are there, under a prefix, with their short names.
fn key_figures(prefix: &str, figures: &BTreeMap<String, f64>) -> Vec<String> {
    let value = |name: &str| figures.get(&format!("{prefix}{name}"));
    let shown = KEY_FIGURES.iter().filter_map(|(name, short)| value(name).map(|v| format!("{short} {}", rounded(*v))));
    shown.collect()
}

fn rounded(v: f64) -> String {
    if v != 0.0 && v.abs() < 1e-3 { format!("{v:.1e}") } else { format!("{v:.3}") }
}
