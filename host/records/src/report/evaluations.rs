//! The metrics of evaluations, with confidence intervals if their standard errors are logged.

use super::eras::Eras;
use super::series::ReportMetrics;
use super::words;
use serde::Serialize;

/// Number of standard errors on each side of the mean that cover 95% of a normal distribution.
const WIDTH: f64 = 1.96;
/// Maximum number of rows of the table.
const MOST: usize = 200;

/// A row of the table.
#[derive(Debug, PartialEq, Serialize)]
pub struct EvaluationRow {
    /// Name of the metric.
    pub name: String,
    /// First value, with its interval if there is one.
    pub first: String,
    /// Last value, with its interval if there is one.
    pub last: String,
    /// Steps of the first and the last evaluation.
    pub steps: String,
}

/// Evaluation metrics that are shown without an interval if their standard errors are not logged.
const PLAIN: [&str; 3] = ["eval_reward", "eval_objective/scores", "eval_loss"];

/// Returns the evaluation metrics that are means over prompts, with their intervals, and the metrics that evaluations are compared by.
pub(super) fn rows(figures: &ReportMetrics, eras: &Eras<'_>) -> Vec<EvaluationRow> {
    let mut rows: Vec<EvaluationRow> = figures.series.iter().filter_map(|series| row(figures, eras, &series.name)).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let plain: Vec<EvaluationRow> = PLAIN
        .into_iter()
        .filter(|name| rows.iter().all(|row| row.name != *name))
        .filter_map(|name| plain(figures, eras, name))
        .collect();
    rows.splice(0..0, plain);
    rows.truncate(MOST);
    rows
}

/// Returns the row of a metric without an interval.
fn plain(figures: &ReportMetrics, eras: &Eras<'_>, name: &str) -> Option<EvaluationRow> {
    let values = figures.values(name).iter().zip(&figures.steps).skip(eras.newest(name));
    let values: Vec<(f64, u64)> = values.filter_map(|(value, step)| Some(((*value)?, *step))).collect();
    let (first, last) = (values.first()?, values.last()?);
    Some(EvaluationRow {
        name: name.to_owned(),
        first: words::number(first.0),
        last: words::number(last.0),
        steps: format!("{} to {}", words::count(first.1), words::count(last.1)),
    })
}

/// Returns the row of a metric: the first and the last evaluation since the last swap that changed its meaning.
fn row(figures: &ReportMetrics, eras: &Eras<'_>, name: &str) -> Option<EvaluationRow> {
    let of = name.strip_suffix("/stderr").filter(|of| of.starts_with("eval_"))?;
    let means = [of.to_owned(), format!("{of}/mean")].into_iter().map(|name| figures.values(&name)).find(|v| !v.is_empty())?;
    let both = means.iter().zip(figures.values(name)).zip(&figures.steps).skip(eras.newest(name));
    let both: Vec<(f64, f64, u64)> = both.filter_map(|((mean, error), step)| Some(((*mean)?, (*error)?, *step))).collect();
    let (first, last) = (both.first()?, both.last()?);
    let text = |(mean, error, _): &(f64, f64, u64)| format!("{} \u{b1} {}", words::number(*mean), words::number(WIDTH * error));
    Some(EvaluationRow {
        name: of.to_owned(),
        first: text(first),
        last: text(last),
        steps: format!("{} to {}", words::count(first.2), words::count(last.2)),
    })
}
