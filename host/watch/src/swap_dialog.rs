//! The dialog of a swap, from choosing a plugin to the run's answer.

use crate::backend::{SwapReply, WatchBackend};
use crate::config::STACK;
use crate::text;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

/// Maximum length of a path that can be typed, and of an answer shown, in bytes.
const LONGEST_PATH: usize = 4096;
const LONGEST_ANSWER: usize = 20_000;

/// The stage of a swap.
pub(crate) enum SwapDialog {
    /// The user is choosing a plugin.
    Choosing { names: Vec<String>, at: usize },
    /// The user is typing the path of the file that replaces the plugin.
    Typing { name: String, file: String },
    /// The file was sent.
    Waiting { name: String, file: String, answer: Receiver<Result<SwapReply, String>> },
    /// The run has answered, or the swap can't be sent.
    Notice(SwapNotice),
}

/// The outcome of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwapNotice {
    /// Outcome in one sentence.
    pub title: String,
    pub is_good: bool,
    pub lines: Vec<String>,
    /// First line shown.
    pub from: usize,
}

impl SwapDialog {
    /// Begins a swap of one of these plugins, or explains why none is possible.
    pub fn begin(names: Vec<String>, is_running: bool) -> Self {
        let refused = |title: &str, line: &str| Self::Notice(SwapNotice::new(title, false, line));
        match (is_running, names.is_empty()) {
            (false, _) => refused("Nothing can be swapped.", "No process is running this run."),
            (true, true) => refused("Nothing can be swapped yet.", "The run has loaded no plugin yet."),
            (true, false) => Self::Choosing { names, at: 0 },
        }
    }

    /// Chooses another plugin, or scrolls.
    pub fn go(&mut self, by: i64) {
        let moved = |at: usize, length: usize| (at as i64).saturating_add(by).clamp(0, length as i64 - 1) as usize;
        match self {
            Self::Choosing { names, at } => *at = moved(*at, names.len()),
            Self::Notice(answer) => answer.from = moved(answer.from, answer.lines.len().max(1)),
            Self::Typing { .. } | Self::Waiting { .. } => {}
        }
    }

    /// Types a character of the path.
    pub fn write(&mut self, c: char) {
        if let Self::Typing { file, .. } = self
            && file.len() + c.len_utf8() <= LONGEST_PATH
        {
            file.push(c);
        }
    }

    /// Removes the last character of the path, or all characters.
    pub fn erase(&mut self, is_all: bool) {
        if let Self::Typing { file, .. } = self {
            file.truncate(if is_all { 0 } else { file.char_indices().next_back().map_or(0, |(at, _)| at) });
        }
    }

    /// Moves to the next stage. Returns `None` after the last one.
    pub fn next(self, run: &Path, backend: &Arc<dyn WatchBackend>) -> Option<Self> {
        match self {
            Self::Choosing { mut names, at } => Some(Self::Typing { name: names.swap_remove(at), file: String::new() }),
            Self::Typing { name, file } if file.trim().is_empty() => Some(Self::Typing { name, file: String::new() }),
            Self::Typing { name, file } => Some(Self::send(run, name, file, Arc::clone(backend))),
            Self::Waiting { .. } => Some(self),
            Self::Notice(_) => None,
        }
    }

    /// Sends a file to the run, and waits for the answer on another thread.
    fn send(run: &Path, name: String, file: String, backend: Arc<dyn WatchBackend>) -> Self {
        let (sender, answer) = channel();
        let asked = (run.to_owned(), name.clone(), file.trim().to_owned());
        let ask = move || {
            let (run, name, file) = asked;
            // Nobody is listening if the user has cancelled.
            let _ = sender.send(backend.swap(&run, &name, &file));
        };
        match thread::Builder::new().name("swap".into()).stack_size(STACK).spawn(ask) {
            Ok(_) => Self::Waiting { name, file, answer },
            Err(error) => Self::Notice(SwapNotice::new("The swap failed.", false, &error.to_string())),
        }
    }

    /// Checks for the answer. Returns whether it has arrived.
    pub fn poll(&mut self) -> bool {
        let Self::Waiting { name, answer, .. } = self else { return false };
        let outcome = match answer.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => Err("it ended without an answer, which is a defect of rlhost".to_owned()),
        };
        let name = text::line(name, LONGEST_PATH);
        *self = Self::Notice(match outcome {
            Ok(SwapReply::Swapped(said)) => SwapNotice::new(&format!("{name} was swapped in."), true, &said),
            Ok(SwapReply::Refused(reason)) => SwapNotice::new(&format!("The run refused the new {name}."), false, &reason),
            Err(error) => SwapNotice::new(&format!("{name} was not swapped."), false, &error),
        });
        true
    }
}

impl SwapNotice {
    fn new(title: &str, is_good: bool, said: &str) -> Self {
        Self { title: title.to_owned(), is_good, lines: text::lines(said.trim_end(), LONGEST_ANSWER), from: 0 }
    }
}
