//! Formats numbers for findings.

use crate::run::Figure;

/// Formats a number with four significant digits.
pub(super) fn number(v: f64) -> String {
    let size = v.abs();
    if v == 0.0 {
        return "0".to_owned();
    }
    if !(1e-3..1e6).contains(&size) {
        return format!("{v:.2e}");
    }
    let decimals = (3.0 - size.log10().floor()).max(0.0) as usize;
    let text = format!("{v:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

/// Creates a figure.
pub(super) fn figure(name: impl Into<String>, value: impl Into<String>) -> Figure {
    Figure { name: name.into(), value: value.into() }
}

/// Creates a figure for a change.
pub(super) fn change(name: impl Into<String>, from: f64, to: f64) -> Figure {
    figure(name, format!("{}, from {}", number(to), number(from)))
}
