//! The state of the view.

use crate::backend::WatchBackend;
use crate::browser::CompletionBrowser;
use crate::pager::CompletionPager;
use crate::swap_dialog::SwapDialog;
use crate::theme::TerminalTheme;
use crate::watched_run::WatchedRun;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The view of a run.
pub(crate) struct View {
    pub watched: WatchedRun,
    pub theme: TerminalTheme,
    /// Metric of the first curve; `None` for the most important one.
    pub metric: Option<String>,
    /// Panel that is shown alone, if any.
    pub only: Option<Panel>,
    pub browsing: CompletionBrowser,
    /// Number of newest events below the last one shown.
    pub events_below: usize,
    pub dialog: Dialog,
    backend: Arc<dyn WatchBackend>,
}

/// A part of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Panel {
    Curves,
    Completions,
    Plugins,
    Events,
}

/// A dialog in front of the panels.
pub(crate) enum Dialog {
    None,
    Help,
    Completion(CompletionPager),
    Swap(SwapDialog),
}

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyEffect {
    Stay,
    Quit,
}

impl View {
    /// Creates the view of a run. Nothing is read yet.
    pub fn new(run: &Path, look: TerminalTheme, backend: impl WatchBackend) -> Self {
        Self {
            watched: WatchedRun::new(run),
            theme: look,
            metric: None,
            only: None,
            browsing: CompletionBrowser::default(),
            events_below: 0,
            dialog: Dialog::None,
            backend: Arc::new(backend),
        }
    }

    /// Reads new lines for at most about `patience`. Returns whether anything shown may have changed.
    pub fn refresh(&mut self, patience: Duration) -> bool {
        let is_answered = if let Dialog::Swap(swapping) = &mut self.dialog { swapping.poll() } else { false };
        let is_new = self.watched.refresh(patience);
        self.browsing.follow(&self.watched.live.completions);
        is_answered | is_new
    }

    /// Returns the number of completions.
    pub fn completions(&self) -> usize {
        self.watched.live.completions.entries.len()
    }

    /// Returns the index of the first curve's metric.
    pub fn curve(&self, metrics: &[&str]) -> usize {
        let chosen = self.metric.as_ref().and_then(|chosen| metrics.iter().position(|name| name == chosen));
        chosen.unwrap_or(0)
    }

    /// Selects another metric.
    pub fn turn(&mut self, by: i64) {
        let metrics = self.watched.metrics();
        if metrics.is_empty() {
            return;
        }
        let to = (self.curve(&metrics) as i64 + by).rem_euclid(metrics.len() as i64);
        self.metric = Some(metrics[to as usize].to_owned());
    }

    /// Opens the selected completion.
    pub fn open(&mut self) {
        if let Some(number) = self.browsing.chosen(self.completions())
            && let Some(opened) = CompletionPager::read(&self.watched.live.completions, number)
        {
            self.dialog = Dialog::Completion(opened);
        }
    }

    /// Scrolls to older events, or to newer ones if `by` is negative.
    pub fn scroll_events(&mut self, by: i64) {
        let most = self.watched.live.events.all.len().saturating_sub(1) as i64;
        self.events_below = (self.events_below as i64).saturating_add(by).clamp(0, most) as usize;
    }

    /// Begins a swap.
    pub fn begin_swap(&mut self) {
        let names = self.watched.live.events.loaded().into_iter().map(|loaded| loaded.name);
        self.dialog = Dialog::Swap(SwapDialog::begin(names.collect(), self.watched.is_at_work()));
    }

    /// Continues a swap.
    pub fn go_on_with_swap(&mut self) {
        match std::mem::replace(&mut self.dialog, Dialog::None) {
            Dialog::Swap(swapping) => {
                let next = swapping.next(&self.watched.live.path, &self.backend);
                self.dialog = next.map_or(Dialog::None, Dialog::Swap);
            }
            other => self.dialog = other,
        }
    }
}
