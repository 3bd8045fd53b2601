//! Standard output and error. A closed pipe is not an error, because the reader has left; a full disk is one.

use super::failure::CommandFailure;
use crate::config::{is_hidden, printable, printable_lines};
use anyhow::anyhow;
use console::{Term, measure_text_width};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::str::Utf8Chunk;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Error of writing to standard output, if writing failed.
static FAILED: OnceLock<String> = OnceLock::new();

/// Maximum length of a printed error, in bytes.
const LONGEST_ERROR: usize = 64 << 10;

/// Columns before the text of a log line and of an error.
const LOG_INDENT: usize = 6;
const ERROR_INDENT: usize = 7;

/// Minimum width of a last column for its continuation lines to be aligned with it, and their indentation otherwise.
const LEAST_COLUMN: usize = 24;
const LEAST_INDENT: usize = 4;

/// Maximum length of a printed argument that can't be parsed, in bytes.
const LONGEST_ARGUMENT: usize = 4096;

/// Describes arguments that are not UTF-8, with the flags before them.
pub(super) fn unreadable(arguments: &[OsString]) -> String {
    let shown = |argument: &OsString| {
        let chunks = argument.as_encoded_bytes().utf8_chunks();
        let text = |chunk: Utf8Chunk<'_>| {
            let bytes = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
            format!("{}{bytes}", printable(chunk.valid(), LONGEST_ARGUMENT))
        };
        chunks.map(text).collect::<String>()
    };
    let odd = arguments.iter().enumerate().filter(|(_, argument)| argument.to_str().is_none()).map(|(at, argument)| {
        let flag = at.checked_sub(1).and_then(|before| arguments[before].to_str()).filter(|flag| flag.starts_with("--"));
        flag.map_or_else(|| shown(argument), |flag| format!("{flag} {}", shown(argument)))
    });
    format!("{}: is not UTF-8 text", odd.collect::<Vec<_>>().join(", "))
}

/// Returns whether NO_COLOR asks for plain text. By its standard, an empty value does not.
pub(super) fn is_plain() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Records whether writing to standard output succeeded.
pub(super) fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        FAILED.get_or_init(|| error.to_string());
    }
}

/// Prints lines, with hidden characters made visible.
pub(super) fn lines(text: fmt::Arguments<'_>) {
    let mut shown = visible(&text.to_string());
    shown.push('\n');
    bytes(shown.as_bytes());
}

/// Prints a line of a table. Text that exceeds the terminal's width continues below the last column, which begins at `indent`.
pub(super) fn row(line: &str, indent: usize) {
    lines(format_args!("{}", broken(&visible(line), indent, width_of(&Term::stdout()))));
}

/// Returns the width of a terminal; other outputs have unlimited width.
fn width_of(term: &Term) -> usize {
    if term.is_term() { usize::from(term.size().1) } else { usize::MAX }
}

/// Breaks a line between words to fit `width`; continuation lines are indented.
fn broken(line: &str, indent: usize, width: usize) -> String {
    if measure_text_width(line) <= width {
        return line.to_owned();
    }
    let indent = if indent + LEAST_COLUMN > width { LEAST_INDENT } else { indent };
    let (mut text, mut taken, mut rest) = (String::new(), 0, line);
    while !rest.is_empty() {
        // The spaces before a word may pad a column, so they are kept unless the line is broken there.
        let word = rest.trim_start_matches(' ');
        let spaces = rest.len() - word.len();
        let end = word.find(' ').unwrap_or(word.len());
        let wide = measure_text_width(&word[..end]);
        if taken > indent && taken + spaces + wide > width {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            taken = indent;
        } else {
            text.push_str(&rest[..spaces]);
            taken += spaces;
        }
        text.push_str(&word[..end]);
        (taken, rest) = (taken + wide, &word[end..]);
    }
    text
}

/// Prints bytes unchanged.
pub(super) fn bytes(bytes: &[u8]) {
    note(super::display::above(|| io::stdout().write_all(bytes)));
}

/// Flushes standard output.
///
/// # Errors
/// If anything printed could not be written.
pub(super) fn finish() -> Result<(), CommandFailure> {
    note(io::stdout().flush());
    match FAILED.get() {
        Some(reason) => Err(CommandFailure::failed(anyhow!("can't write to standard output: {reason}"))),
        None => Ok(()),
    }
}

/// Whether this process has printed an error.
static COMPLAINED: AtomicBool = AtomicBool::new(false);

/// Returns whether an error was printed.
pub(super) fn has_complained() -> bool {
    COMPLAINED.load(Ordering::SeqCst)
}

/// Prefix of continuation lines of an error or log line, so that none can be taken for a separate line.
const CONTINUATION: &str = "      | ";

/// Prints an error. Lines after the first, such as those of a script's traceback, get a prefix. If printing fails, the error can't be
/// reported.
pub(super) fn complain(error: &anyhow::Error) {
    COMPLAINED.store(true, Ordering::SeqCst);
    let error = format!("error: {}", printable_lines(&error.to_string(), LONGEST_ERROR));
    let error = set_off(&error, ERROR_INDENT, Some(&Term::stderr()));
    let _ = super::display::above(|| writeln!(io::stderr(), "{error}"));
}

/// Returns a text whose first line is broken between words and whose further lines get [`CONTINUATION`] as prefix.
fn set_off(text: &str, indent: usize, term: Option<&Term>) -> String {
    let mut lines = text.split('\n');
    let first = lines.next().unwrap_or_default();
    let mut shown = term.map_or_else(|| first.to_owned(), |term| broken(first, indent, width_of(term)));
    for line in lines {
        shown.push('\n');
        shown.push_str(CONTINUATION);
        shown.push_str(line);
    }
    shown
}

/// Returns a text with all hidden characters except line ends made visible.
fn visible(text: &str) -> String {
    let lines = text.split('\n').map(|line| printable(line, usize::MAX));
    lines.collect::<Vec<_>>().join("\n")
}

/// A log in which each write is one entry, whatever it contains; its further lines get a prefix.
pub(super) struct LineLog<W> {
    pub to: W,
    /// Whether the log itself writes escape sequences.
    pub colored: bool,
    /// The terminal, whose lines are broken between words.
    pub term: Option<Term>,
}

/// Buffered log lines; `None` if the log is not held back.
static HELD: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Size of the buffer, in bytes; lines beyond it are dropped.
const MOST_HELD: usize = 64 << 10;

/// Holds the log back while a full-screen view is open. Dropping it writes the buffered lines.
pub(super) struct LogHold(());

/// Starts to hold the log back.
pub(super) fn hold_log() -> LogHold {
    *lock_held_log() = Some(Vec::new());
    LogHold(())
}

fn lock_held_log() -> MutexGuard<'static, Option<Vec<u8>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for LogHold {
    fn drop(&mut self) {
        // Without a reader, a failed write loses nothing.
        let _ = io::stderr().write_all(&lock_held_log().take().unwrap_or_default());
    }
}

impl<W: Write> Write for LineLog<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = text.strip_suffix(b"\n").unwrap_or(text);
        let mut shown = String::with_capacity(text.len());
        for c in String::from_utf8_lossy(line).chars() {
            match c {
                '\n' => shown.push(c),
                '\u{1b}' if self.colored => shown.push(c),
                c if is_hidden(c) => shown.extend(c.escape_unicode()),
                c => shown.push(c),
            }
        }
        shown = set_off(&shown, LOG_INDENT, self.term.as_ref());
        shown.push('\n');
        if let Some(held) = lock_held_log().as_mut() {
            if held.len() < MOST_HELD {
                held.extend_from_slice(shown.as_bytes());
            }
            return Ok(text.len());
        }
        super::display::above(|| self.to.write_all(shown.as_bytes()))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_table_goes_on_below_its_last_column() {
        let line = "ok   score    40 of 40 sample completions have a score";
        assert_eq!(broken(line, 14, 80), line);
        let lines = "ok   score    40 of 40 sample completions\n              have a score";
        assert_eq!(broken(line, 14, 44), lines);
        assert_eq!(broken(line, 14, 30), "ok   score    40 of 40 sample\n    completions have a score");
        assert_eq!(broken("    mode = 1  How answers are compared", 8, 36), "    mode = 1  How answers are\n        compared");
        assert!(broken("name  a_word_that_is_longer_than_all", 6, 10).ends_with("a_word_that_is_longer_than_all"));
        assert_eq!(broken("short", 9, 3), "short");
        // As a line of the log, with its level coloured.
        let line = "\u{1b}[32m INFO\u{1b}[0m resume with: rlhost resume run";
        assert_eq!(broken(line, LOG_INDENT, 30), "\u{1b}[32m INFO\u{1b}[0m resume with: rlhost\n      resume run");
    }

    #[test]
    fn nothing_forges_a_line_of_the_log_or_moves_the_cursor() {
        let mut log = LineLog { to: Vec::new(), colored: false, term: None };
        log.write_all(b" WARN a\nERROR forged \x1b[2J\r\n").unwrap();
        log.write_all(b" INFO b\n").unwrap();
        assert_eq!(String::from_utf8(log.to).unwrap(), " WARN a\n      | ERROR forged \\u{1b}[2J\\u{d}\n INFO b\n");
        assert_eq!(visible("a\x1b[1m\nb\u{202e}"), "a\\u{1b}[1m\nb\\u{202e}");
        let mut log = LineLog { to: Vec::new(), colored: false, term: None };
        let holding = hold_log();
        log.write_all(b" INFO waits\x1b\n").unwrap();
        assert_eq!((lock_held_log().as_deref(), log.to.len()), (Some(&b" INFO waits\\u{1b}\n"[..]), 0));
        drop(holding);
        log.write_all(b" INFO after\n").unwrap();
        assert_eq!((lock_held_log().as_deref(), log.to.as_slice()), (None, &b" INFO after\n"[..]));
    }
}
