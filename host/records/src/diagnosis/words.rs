//! Formats the figures of findings.

pub(super) use crate::config::words::number;
use crate::run::FindingFigure;

/// Formats a share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

/// Creates a figure.
pub(super) fn figure(name: impl Into<String>, value: impl Into<String>) -> FindingFigure {
    FindingFigure { name: name.into(), value: value.into() }
}

/// Creates a figure for a change.
pub(super) fn change(name: impl Into<String>, from: f64, to: f64) -> FindingFigure {
    figure(name, format!("{}, from {}", number(to), number(from)))
}
