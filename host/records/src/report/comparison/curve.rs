//! The mean curve of runs that differ only in their seed.

use super::ComparedRun;
use serde::Serialize;
use std::collections::BTreeMap;

/// The curve of a group. It has a gap where a plugin or setting that determines the metric changes.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct GroupCurve {
    /// Step of each point.
    pub x: Vec<f64>,
    /// Mean of each point.
    pub y: Vec<Option<f64>>,
    /// Minimum over the runs, or over the values that a point combines; empty if it equals the mean everywhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lo: Vec<Option<f64>>,
    /// Maximum over the runs, or over the values that a point combines; empty if it equals the mean everywhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hi: Vec<Option<f64>>,
}

/// Values of a group's runs at one step, or at several.
#[derive(Clone, Copy)]
struct GroupPoint {
    step: u64,
    /// Number of earlier changes of what determines the metric.
    part: usize,
    sum: f64,
    count: usize,
    least: f64,
    greatest: f64,
}

impl GroupPoint {
    fn merge(self, other: Self) -> Self {
        Self {
            step: other.step,
            part: other.part,
            sum: self.sum + other.sum,
            count: self.count + other.count,
            least: self.least.min(other.least),
            greatest: self.greatest.max(other.greatest),
        }
    }
}

impl GroupCurve {
    /// Returns the mean of runs over the steps, with about `most` points at most.
    pub(super) fn new(runs: &[&ComparedRun], metric: &str, most: usize) -> Self {
        let mut points: BTreeMap<u64, GroupPoint> = BTreeMap::new();
        let breaks: Vec<u64> = runs.iter().flat_map(|run| run.breaks(metric)).collect();
        for run in runs {
            for &(step, value) in run.series.get(metric).into_iter().flatten() {
                let part = breaks.iter().filter(|change| **change < step).count();
                let own = GroupPoint { step, part, sum: value, count: 1, least: value, greatest: value };
                points.entry(step).and_modify(|point| *point = point.merge(own)).or_insert(own);
            }
        }
        let per_point = points.len().div_ceil(most).max(1);
        let points: Vec<GroupPoint> = points.into_values().collect();
        let mut line = Self::default();
        let mut before = None::<u64>;
        for part in points.chunk_by(|a, b| a.part == b.part) {
            for (i, bucket) in part.chunks(per_point).enumerate() {
                let Some(point) = bucket.iter().copied().reduce(GroupPoint::merge) else { continue };
                if let Some(before) = before.filter(|_| i == 0) {
                    // The gap is between the last step of one version and the first of the next.
                    line.push(f64::midpoint(before as f64, bucket[0].step as f64), None);
                }
                line.push(point.step as f64, Some(point));
                before = Some(point.step);
            }
        }
        // Without a band, its edges would repeat the curve.
        if line.lo == line.y && line.hi == line.y {
            (line.lo, line.hi) = (Vec::new(), Vec::new());
        }
        line
    }

    fn push(&mut self, x: f64, point: Option<GroupPoint>) {
        self.x.push(x);
        self.y.push(point.map(|point| rounded(point.sum / point.count as f64)));
        self.lo.push(point.map(|point| rounded(point.least)));
        self.hi.push(point.map(|point| rounded(point.greatest)));
    }
}

/// Rounds to the precision that a chart can show.
fn rounded(v: f64) -> f64 {
    format!("{v:.6e}").parse().unwrap_or(v)
}
