//! Dynamic sampling (DAPO, arXiv 2503.14476; verl's `filter_groups`): a prompt whose completions all have the same reward teaches nothing,
//! so another prompt replaces it.

use super::totals::{RewardTotal, differ, totals};
use super::{CollectionContext, Collector};
use crate::experience::{Experience, RewardScoreColumn};
use crate::metrics::{Metric, MetricReduction};
use crate::plan::GroupFilter;
use crate::rollout::Rollout;
use crate::step_metrics::StepMetrics;
use crate::{Error, Result};

impl Collector {
    /// Generates for further prompts until enough of them have differing rewards for a generation. Each attempt counts as a generation, so
    /// it has its own random numbers.
    ///
    /// # Errors
    /// If `max_num_gen_batches` generations have too few such prompts.
    pub(super) fn generated_with_spread(
        &mut self,
        filter: &GroupFilter,
        with: &mut CollectionContext<'_>,
    ) -> Result<(Experience, StepMetrics)> {
        let (mut figures, mut parts) = (StepMetrics::start(), Vec::new());
        let (mut wanted, mut found) = (0, 0);
        let GroupFilter { reward, most } = filter;
        for attempt in 1..=*most {
            let prompts = self.draw(&mut figures, with)?;
            wanted = wanted.max(prompts.len());
            let (part, made) = self.roll_out_and_score(prompts, self.counters.generation, with)?;
            figures.merge(made);
            let rewards = totals(&part.rewards, reward.as_deref());
            let groups = part.prompts.len();
            let mut kept: Vec<usize> = (0..groups).filter(|&group| differ(&rewards[part.rows(group..group + 1)])).collect();
            figures.add(self.world.once(measured(&rewards, kept.len(), groups)));
            kept.truncate(wanted - found);
            found += kept.len();
            parts.push(part.only(&kept));
            if found == wanted {
                let batches = Metric::mean("filter_groups/num_gen_batches", attempt as f64, 1.0);
                figures.add(self.world.once([batches]));
                let mut experience = Experience::from_parts(parts);
                figures.merge(self.compute_columns(&mut experience, with)?);
                return Ok((experience, figures));
            }
            self.counters.generation += 1;
        }
        Err(Error::NoSpread { generations: *most, found, wanted })
    }
}

/// Returns the metrics of one attempt.
fn measured(rewards: &[Option<RewardTotal>], kept: usize, groups: usize) -> Vec<Metric> {
    let scored: Vec<f64> = rewards.iter().flatten().map(|total| total.sum).collect();
    let n = scored.len() as f64;
    let mut metrics = vec![Metric::mean("filter_groups/kept_ratio", kept as f64 / groups as f64, groups as f64)];
    if n > 0.0 {
        metrics.push(Metric::mean("filter_groups/reward", scored.iter().sum::<f64>() / n, n));
    }
    metrics.push(Metric::new("filter_groups/num_filtered", (groups - kept) as f64, MetricReduction::Sum));
    metrics
}

impl Experience {
    /// Returns only the completions of these prompts, in order, without what was computed after the rewards.
    fn only(self, kept: &[usize]) -> Self {
        let rows: Vec<usize> = kept.iter().flat_map(|&prompt| self.rows(prompt..prompt + 1)).collect();
        let place = |prompt: usize| kept.partition_point(|&other| other < prompt);
        let rollouts = select(self.rollouts, &rows).map(|rollout| Rollout { prompt: place(rollout.prompt), ..rollout });
        let mut some = Self::new(select(self.prompts, kept).collect(), rollouts.collect());
        some.texts = select(self.texts, &rows).collect();
        some.episodes = select(self.episodes, &rows).collect();
        some.extra = select(self.extra, &rows).collect();
        let column = |column: RewardScoreColumn| RewardScoreColumn { values: select(column.values, &rows).collect(), ..column };
        some.rewards = self.rewards.into_iter().map(column).collect();
        some
    }
}

/// Returns the items at these ascending positions.
fn select<T>(things: Vec<T>, places: &[usize]) -> impl Iterator<Item = T> {
    let mut places = places.iter().peekable();
    things.into_iter().enumerate().filter_map(move |(at, thing)| places.next_if(|place| **place == at).map(|_| thing))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, weight: f32, values: &[Option<f32>]) -> RewardScoreColumn {
        RewardScoreColumn { name: name.into(), weight, values: values.to_vec() }
    }

    fn spread(values: &[f32]) -> bool {
        let values: Vec<Option<f32>> = values.iter().copied().map(Some).collect();
        differ(&totals(&[column("a", 1.0, &values)], None))
    }

    #[test]
    fn one_that_is_better_is_a_spread_and_rounding_is_none() {
        assert!(spread(&[1.0, 0.0, 0.0, 0.0]));
        assert!(spread(&[0.5, 0.5, 0.5, 0.500_01]));
        assert!(spread(&[1000.0, 1000.01]));
        assert!(!spread(&[0.3; 4]) && !spread(&[0.0; 4]) && !spread(&[1.0]) && !spread(&[]));
        let third = 1.0f32 / 3.0;
        assert!(!spread(&[third, 1.0 - 2.0 * third, third + f32::EPSILON / 4.0]));
        assert!(!spread(&[12345.678, 12345.679]), "neighbours among f32");
        assert!(!spread(&[0.1 + 0.2 - 0.3, 0.0]), "{}", 0.1f32 + 0.2 - 0.3);
    }

    #[test]
    fn rewards_are_summed_by_their_weights_or_taken_by_name() {
        let (a, b) = ([Some(1.0), Some(0.0), None], [Some(0.0), Some(0.5), None]);
        let columns = [column("a", 1.0, &a), column("b", 2.0, &b)];
        let sums = |only| totals(&columns, only).iter().map(|total| total.map(|t| t.sum)).collect::<Vec<_>>();
        assert_eq!(sums(None), [Some(1.0), Some(1.0), None]);
        assert_eq!(sums(Some("b")), [Some(0.0), Some(0.5), None]);
        assert!(!differ(&totals(&columns, None)) && differ(&totals(&columns, Some("a"))));
        // The sum of ten million and minus ten million has the rounding error of ten million.
        let (up, down) = ([Some(1e7), Some(1e7)], [Some(-1e7), Some(-1e7 + 1.0)]);
        assert!(!differ(&totals(&[column("up", 1.0, &up), column("down", 1.0, &down)], None)));
    }
}
