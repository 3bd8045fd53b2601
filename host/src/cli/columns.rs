//! Tables of text.

use crate::config::words::number;
use crate::report::SeedSpread;
use console::{Term, measure_text_width};

/// Aligns the cells of rows, which all have as many as the first.
pub(super) fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.first().map_or(0, Vec::len);
    let width = |i: usize| rows.iter().map(|row| measure_text_width(&row[i])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell}{}", " ".repeat(width - measure_text_width(cell))));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Prints rows as columns or, on a terminal that is narrower, each row as a block.
pub(super) fn print_columns(rows: &[Vec<String>]) {
    let lines = aligned(rows);
    let width = Term::stdout().size_checked().map_or(usize::MAX, |(_, columns)| usize::from(columns));
    if lines.iter().all(|line| measure_text_width(line) <= width) {
        return lines.iter().for_each(|line| say!("{line}"));
    }
    let Some((heading, rows)) = rows.split_first() else { return };
    for row in rows {
        let cells: Vec<Vec<String>> = heading.iter().zip(row).map(|(name, cell)| vec![name.clone(), cell.clone()]).collect();
        aligned(&cells).iter().enumerate().for_each(|(i, line)| say!("{}{line}", if i == 0 { "" } else { "  " }));
    }
}

/// Formats a mean with its standard deviation.
pub(super) fn spread(spread: Option<SeedSpread>) -> String {
    match spread {
        None => "-".to_owned(),
        Some(SeedSpread { mean, deviation: None }) => number(mean),
        Some(SeedSpread { mean, deviation: Some(deviation) }) => format!("{} \u{b1} {}", number(mean), number(deviation)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_seeds_have_a_mean_and_a_spread() {
        let shown = |values: &[f64]| spread(SeedSpread::from_values(values));
        assert_eq!((shown(&[]), shown(&[1.5]), shown(&[1.0, 2.0, 3.0])), ("-".into(), "1.5".into(), "2 \u{b1} 1".into()));
        let rows = [vec!["lr".to_owned(), "reward".to_owned()], vec!["1e-5".to_owned(), "2 \u{b1} 1".to_owned()]];
        assert_eq!(aligned(&rows), ["lr    reward", "1e-5  2 \u{b1} 1"]);
    }
}
