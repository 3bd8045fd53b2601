//! Compares the derivatives that a loss returns with finite differences.

use crate::plugin::Result;
use crate::plugin::algorithm::{AlgorithmPlugin, Batch, Column, DataSource};
use crate::plugin::columns;

/// Step of the central difference to each side.
const STEP: f32 = 1.0 / 512.0;

/// Tolerance between derivative and finite difference, relative to the largest derivative in the column.
const TOLERANCE: f64 = 5e-3;

/// Number of tested entries of a column.
const TRIED: usize = 48;

/// The result for a column of derivatives.
pub(super) struct GradientVerdict {
    /// The column that the derivatives are with respect to.
    pub column: String,
    /// Name of the column's unit.
    pub item: &'static str,
    /// Largest difference, relative to the largest derivative.
    pub distance: f64,
    /// Entry with the largest difference.
    pub at: usize,
    /// Number of entries skipped because the loss has a kink there.
    pub kinks: usize,
    /// Whether the loss treats ratios as constants.
    pub detached: bool,
}

impl GradientVerdict {
    pub(super) fn good(&self) -> bool {
        self.distance <= TOLERANCE
    }
}

/// Compares a column of derivatives with finite differences of `loss`, a function of an entry and a step.
fn compare(given: &Column, mut loss: impl FnMut(usize, f32) -> Result<f64>) -> Result<GradientVerdict> {
    let (column, item) = (given.name.clone(), given.unit.noun());
    let mut verdict = GradientVerdict { column, item, distance: 0.0, at: 0, kinks: 0, detached: false };
    let given = &given.values;
    let greatest = given.iter().map(|d| f64::from(d.abs())).fold(0.0, f64::max);
    let stride = given.len().div_ceil(TRIED).max(1);
    for at in (0..given.len()).step_by(stride) {
        let (low, middle, high) = (loss(at, -STEP)?, loss(at, 0.0)?, loss(at, STEP)?);
        let h = f64::from(STEP);
        let (left, right) = ((middle - low) / h, (high - middle) / h);
        let central = (high - low) / (2.0 * h);
        let scale = greatest.max(central.abs()).max(1e-9);
        // At a kink, the two one-sided slopes differ by more than curvature explains.
        if (left - right).abs() > 0.05 * scale {
            verdict.kinks += 1;
            continue;
        }
        let distance = (f64::from(given[at]) - central).abs() / scale;
        if distance > verdict.distance {
            (verdict.distance, verdict.at) = (distance, at);
        }
    }
    Ok(verdict)
}

/// Returns the loss of a batch after adding a step to an entry of those of these columns that it has.
fn moved(algorithm: &mut AlgorithmPlugin, batch: &mut Batch, names: &[&str], at: usize, by: f32) -> Result<f64> {
    let own = |batch: &mut Batch, set: &mut dyn FnMut(&mut f32)| {
        let columns = batch.columns.iter_mut().filter(|column| names.contains(&column.name.as_str()));
        columns.filter_map(|column| column.values.get_mut(at)).for_each(set);
    };
    let mut before = Vec::new();
    own(batch, &mut |value| {
        before.push(*value);
        *value += by;
    });
    let loss = algorithm.loss(batch).map(|gradient| gradient.loss);
    let mut before = before.into_iter();
    own(batch, &mut |value| *value = before.next().unwrap_or(*value));
    loss
}

/// Compares all derivatives that an algorithm returns.
///
/// A loss may treat a ratio as constant (stop-gradient). Its derivative with respect to the log-probability is then the one in which the
/// old log-probability changes too, and the better of the two verdicts counts. A weight computed from the sum of squared probabilities is
/// constant in the derivatives, so the finite difference moves that sum together with the log-probability that it is compared with.
pub(super) fn verdicts(algorithm: &mut AlgorithmPlugin, batch: &Batch) -> Result<Vec<GradientVerdict>> {
    let given = algorithm.loss(batch)?;
    let sampled = algorithm.data().source != DataSource::Dataset;
    let mut batch = batch.clone();
    let mut verdicts = Vec::new();
    for derivatives in &given.derivatives {
        let mut by = |names: &[&str]| compare(derivatives, |at, step| moved(algorithm, &mut batch, names, at, step));
        if derivatives.name != columns::LOGP {
            verdicts.push(by(&[&derivatives.name])?);
            continue;
        }
        let plain = by(&[columns::LOGP, columns::LOG_SUM_SQUARES])?;
        let held = match sampled && !plain.good() {
            true => Some(by(&[columns::LOGP, columns::OLD_LOGP, columns::SAMPLING_LOGP])?).filter(GradientVerdict::good),
            false => None,
        };
        verdicts.push(held.map_or(plain, |held| GradientVerdict { detached: true, ..held }));
    }
    Ok(verdicts)
}
