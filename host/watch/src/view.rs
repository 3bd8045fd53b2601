//! What is shown of the run.

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
    /// The metric whose curve is the first; none for the one that matters most.
    pub metric: Option<String>,
    /// The panel that is shown alone, if one is.
    pub only: Option<Panel>,
    pub browsing: CompletionBrowser,
    /// How many of the newest events are below the last one that is shown.
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

/// What is in front of the panels.
pub(crate) enum Dialog {
    None,
    Help,
    Completion(CompletionPager),
    Swap(SwapDialog),
}

/// What follows a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyEffect {
    Stay,
    Quit,
}

impl View {
    /// Creates the view of a run, of which nothing is read yet.
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

    /// Reads what is new, for about as long as `patience`. Returns whether anything that is shown may have changed.
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

    /// Returns the place of the first curve among the metrics.
    pub fn curve(&self, metrics: &[&str]) -> usize {
        let chosen = self.metric.as_ref().and_then(|chosen| metrics.iter().position(|name| name == chosen));
        chosen.unwrap_or(0)
    }

    /// Chooses another metric.
    pub fn turn(&mut self, by: i64) {
        let metrics = self.watched.metrics();
        if metrics.is_empty() {
            return;
        }
        let to = (self.curve(&metrics) as i64 + by).rem_euclid(metrics.len() as i64);
        self.metric = Some(metrics[to as usize].to_owned());
    }

    /// Opens the chosen completion.
    pub fn open(&mut self) {
        if let Some(number) = self.browsing.chosen(self.completions())
            && let Some(opened) = CompletionPager::read(&self.watched.live.completions, number)
        {
            self.dialog = Dialog::Completion(opened);
        }
    }

    /// Shows older events, or newer ones if `by` is negative.
    pub fn scroll_events(&mut self, by: i64) {
        let most = self.watched.live.events.all.len().saturating_sub(1) as i64;
        self.events_below = (self.events_below as i64).saturating_add(by).clamp(0, most) as usize;
    }

    /// Begins a swap.
    pub fn begin_swap(&mut self) {
        let names = self.watched.live.events.loaded().into_iter().map(|loaded| loaded.name);
        self.dialog = Dialog::Swap(SwapDialog::begin(names.collect(), self.watched.is_at_work()));
    }

    /// Goes on with a swap.
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
