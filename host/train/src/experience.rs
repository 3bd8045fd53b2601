//! Experience: completions with everything that training needs, and the micro-batches that they are split into.

use super::columns::NamedColumns;
use super::dataset::Prompt;
use super::episode::EpisodeOutcome;
use crate::dist::World;
use crate::ops::top_divergence::LikelyToken;
use crate::plugin::columns::{ADVANTAGE, OLD_LOGP, SAMPLING_LOGP};
use crate::plugin::{Column, CompletionExtra, Scale, Unit, append_extra};
use crate::rollout::Rollout;
use std::ops::Range;
use std::sync::Arc;

/// Rows of the chosen and the rejected completion.
pub(super) type Pair = (usize, usize);

/// The scores that one reward gave to completions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RewardScoreColumn {
    pub name: String,
    pub weight: f32,
    /// One entry per row; none if the reward could not score it.
    pub values: Vec<Option<f32>>,
}

/// Properties common to all experiences of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExperienceForm {
    /// Whether the policy sampled the completions; these have texts and log-probabilities.
    pub is_sampled: bool,
    /// Whether items are pairs.
    pub has_pairs: bool,
}

/// Completions of prompts, in the order of the prompts. Ragged data is flat; the tokens of row `i` are at
/// `offsets[i]..offsets[i + 1]`. Training uses items: pairs if there are any, otherwise completions.
#[derive(Default)]
pub(super) struct Experience {
    pub prompts: Vec<Arc<Prompt>>,
    pub rollouts: Vec<Rollout>,
    pub texts: Vec<String>,
    /// Outcomes of the episodes, until they have been scored; empty without an environment.
    pub episodes: Vec<EpisodeOutcome>,
    pub rewards: Vec<RewardScoreColumn>,
    /// In an evaluation, the columns of rewards with `eval_only`.
    pub eval_rewards: Vec<RewardScoreColumn>,
    /// Values that rewards logged for completions, until they are written; empty if there are none.
    pub extra: Vec<CompletionExtra>,
    pub offsets: Vec<u32>,
    /// Mask of the tokens: 1 if a token is learned; empty if all are.
    pub mask: Vec<u8>,
    /// Columns that were computed during collection, and those of the algorithm's estimator.
    pub columns: NamedColumns,
    /// Pairs, for algorithms that learn from them.
    pub pairs: Option<Vec<Pair>>,
    /// Each prompt with another row's completion, for algorithms that need it.
    pub mismatched: Option<Box<Experience>>,
}

impl Experience {
    /// Creates an experience from completions, with their log-probabilities at sampling if they were sampled.
    pub(super) fn new(prompts: Vec<Arc<Prompt>>, rollouts: Vec<Rollout>) -> Self {
        let mut columns = NamedColumns::default();
        let offsets = offsets(&rollouts);
        let logp: Vec<f32> = rollouts.iter().flat_map(|r| r.logp.iter().copied()).collect();
        if offsets.last().is_some_and(|end| *end as usize == logp.len()) {
            columns.set(Column::new(SAMPLING_LOGP, Unit::Token, logp));
        }
        Self { prompts, offsets, rollouts, columns, ..Self::default() }
    }

    /// Joins experiences that were collected one after another and are not scored yet.
    pub(super) fn from_parts(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or_default();
        for mut part in parts {
            if let (Some(mismatched), Some(more)) = (all.mismatched.take(), part.mismatched.take()) {
                all.mismatched = Some(Box::new(Self::from_parts([*mismatched, *more])));
            }
            let (before, rows, more) = (all.prompts.len(), all.rollouts.len(), part.rollouts.len());
            all.prompts.extend(part.prompts);
            all.rollouts.extend(part.rollouts.into_iter().map(|rollout| Rollout { prompt: before + rollout.prompt, ..rollout }));
            all.texts.extend(part.texts);
            append_extra(&mut all.extra, rows, part.extra, more);
            all.episodes.extend(part.episodes);
            let rewards = all.rewards.iter_mut().zip(part.rewards);
            for (column, more) in rewards.chain(all.eval_rewards.iter_mut().zip(part.eval_rewards)) {
                column.values.extend(more.values);
            }
            all.columns.append(part.columns);
        }
        all.offsets = offsets(&all.rollouts);
        all
    }

    /// Returns the experience with reordered prompts; completions stay with their prompts.
    pub(super) fn reordered(&self, order: &[usize]) -> Self {
        let rows: Vec<usize> = order.iter().flat_map(|&prompt| self.rows(prompt..prompt + 1)).collect();
        let (mut place_of, mut row_of) = (vec![0; self.prompts.len()], vec![0; self.rollouts.len()]);
        order.iter().enumerate().for_each(|(place, &prompt)| place_of[prompt] = place);
        rows.iter().enumerate().for_each(|(place, &row)| row_of[row] = place);
        let rollout = |row: &usize| {
            let rollout = &self.rollouts[*row];
            Rollout { prompt: place_of[rollout.prompt], ..rollout.clone() }
        };
        let tokens: Vec<usize> = rows.iter().flat_map(|&row| self.tokens(&(row..row + 1))).collect();
        let pairs = self.pairs.as_ref().map(|pairs| {
            let mut pairs: Vec<Pair> = pairs.iter().map(|&(chosen, rejected)| (row_of[chosen], row_of[rejected])).collect();
            pairs.sort_by_key(|&(chosen, _)| place_of[self.rollouts[rows[chosen]].prompt]);
            pairs
        });
        let reward = |column: &RewardScoreColumn| RewardScoreColumn { values: select(&column.values, &rows), ..column.clone() };
        let prompts = order.iter().map(|&prompt| self.prompts[prompt].clone()).collect();
        Self {
            texts: select(&self.texts, &rows),
            episodes: select(&self.episodes, &rows),
            extra: select(&self.extra, &rows),
            rewards: self.rewards.iter().map(reward).collect(),
            eval_rewards: self.eval_rewards.iter().map(reward).collect(),
            mask: select(&self.mask, &tokens),
            columns: self.columns.selected(|unit| if unit == Unit::Token { tokens.clone() } else { rows.clone() }),
            pairs,
            ..Self::new(prompts, rows.iter().map(rollout).collect())
        }
    }

    /// Returns the rows of some prompts' completions.
    pub(super) fn rows(&self, prompts: Range<usize>) -> Range<usize> {
        let first = |prompt: usize| self.rollouts.partition_point(|rollout| rollout.prompt < prompt);
        first(prompts.start)..first(prompts.end)
    }

    /// Returns the range of the rows' flat tokens.
    pub(super) fn tokens(&self, rows: &Range<usize>) -> Range<usize> {
        self.offsets[rows.start] as usize..self.offsets[rows.end] as usize
    }

    /// Returns the number of items.
    pub(super) fn items(&self) -> usize {
        self.pairs.as_ref().map_or(self.rollouts.len(), Vec::len)
    }

    /// Returns the rows of an item's completions.
    fn item(&self, item: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = match &self.pairs {
            None => (item, None),
            Some(pairs) => (pairs[item].0, Some(pairs[item].1)),
        };
        std::iter::once(first).chain(second)
    }

    /// Returns, for each of these items, its prompt and the number of tokens of its completions.
    pub(super) fn lengths(&self, items: Range<usize>) -> Vec<(usize, usize)> {
        let length = |row: usize| self.rollouts[row].tokens.len();
        let prompt = |item: usize| self.item(item).next().map_or(0, |row| self.rollouts[row].prompt);
        items.map(|item| (prompt(item), self.item(item).map(length).sum())).collect()
    }

    /// Returns the sum of a flat column over each of these rows' tokens.
    pub(super) fn sums(&self, column: &[f32], rows: Range<usize>) -> Vec<f32> {
        let first = self.offsets[rows.start] as usize;
        let of = |row: usize| self.tokens(&(row..row + 1)).map(|at| f64::from(column[at - first])).sum::<f64>() as f32;
        rows.map(of).collect()
    }

    /// Counts the tokens of these completions, each with its prompt.
    pub(super) fn num_tokens(&self, rows: impl IntoIterator<Item = usize>) -> u64 {
        let length = |row: usize| self.prompt_of(row).len() + self.rollouts[row].tokens.len();
        rows.into_iter().map(|row| length(row) as u64).sum()
    }

    /// Returns the policy's log-probabilities at generation, the denominators of ratios, recomputed or as sampled. Empty if nothing was
    /// sampled.
    pub(super) fn old_logp(&self) -> &[f32] {
        self.columns.values(OLD_LOGP).or(self.columns.values(SAMPLING_LOGP)).unwrap_or_default()
    }

    /// Returns the advantage of a completion's token, if the algorithm estimates advantages.
    pub(super) fn advantage(&self, row: usize, token: usize) -> Option<f32> {
        let column = self.columns.get(ADVANTAGE)?;
        let entry = if column.unit == Unit::Token { self.offsets[row] as usize + token } else { row };
        column.values.get(entry).copied()
    }

    /// Returns whether the policy still has the version that wrote this completion.
    pub(super) fn is_on_policy(&self, row: usize, version: u64) -> bool {
        self.rollouts[row].policy_version == version
    }

    /// Returns the tokens of the prompt that a completion continues.
    pub(super) fn prompt_of(&self, row: usize) -> &[u32] {
        let rollout = &self.rollouts[row];
        rollout.opening.as_ref().unwrap_or(&self.prompts[rollout.prompt].tokens)
    }

    /// Returns the prompt of a rollout as a teacher reads it.
    pub(super) fn teacher_prompt_of(&self, row: usize) -> &[u32] {
        let rollout = &self.rollouts[row];
        let own = rollout.teacher_prompt.as_ref().or(self.prompts[rollout.prompt].teacher_tokens.as_ref());
        own.map_or_else(|| self.prompt_of(row), Vec::as_slice)
    }

    /// Returns whether a teacher reads other prompts than the policy.
    pub(super) fn has_teacher_prompts(&self) -> bool {
        let of_rows = self.rollouts.iter().any(|rollout| rollout.teacher_prompt.is_some());
        of_rows || self.prompts.iter().any(|prompt| prompt.teacher_tokens.is_some())
    }
}

/// Returns the items at these places; none if the column is empty.
fn select<T: Clone>(column: &[T], places: &[usize]) -> Vec<T> {
    places.iter().filter_map(|&place| column.get(place).cloned()).collect()
}

/// Returns the offset of each completion's tokens, and the end of the last one.
pub(super) fn offsets(rollouts: &[Rollout]) -> Vec<u32> {
    let mut at = 0;
    std::iter::once(0)
        .chain(rollouts.iter().map(|r| {
            at += r.tokens.len() as u32;
            at
        }))
        .collect()
}

/// Items of an experience that are trained on together.
#[derive(Clone)]
pub(super) struct MicroBatch {
    pub experience: Arc<Experience>,
    pub items: Range<usize>,
}

impl MicroBatch {
    /// Splits an experience into this many parts of nearly equal size.
    pub(super) fn split_evenly(experience: &Arc<Experience>, parts: usize) -> impl Iterator<Item = Self> + use<> {
        let (experience, size) = (experience.clone(), experience.items());
        (0..parts).map(move |i| Self { experience: experience.clone(), items: size * i / parts..size * (i + 1) / parts })
    }

    /// Splits an experience into parts of these sizes.
    pub(super) fn split_by_sizes(experience: &Arc<Experience>, sizes: Vec<usize>) -> impl Iterator<Item = Self> + use<> {
        let (experience, mut first) = (experience.clone(), 0);
        sizes.into_iter().map(move |size| {
            first += size;
            Self { experience: experience.clone(), items: first - size..first }
        })
    }

    /// Returns this rank's part of the micro-batch.
    pub(super) fn rank_share(&self, world: &World) -> Self {
        let part = world.share(self.items.len());
        let first = self.items.start;
        self.part(first + part.start..first + part.end)
    }

    /// Returns other items of the same experience.
    pub(super) fn part(&self, items: Range<usize>) -> Self {
        Self { experience: self.experience.clone(), items }
    }

    /// Returns the rows of the micro-batch's completions; for pairs, chosen and rejected alternate.
    pub(super) fn rows(&self) -> Vec<usize> {
        self.items.clone().flat_map(|item| self.experience.item(item)).collect()
    }

    /// Returns a teacher's likeliest tokens in place of each token of these completions, if they are known.
    pub(super) fn likely_tokens(&self) -> Option<Vec<Vec<LikelyToken>>> {
        let of_rows = self.rows().into_iter().map(|row| self.experience.rollouts[row].likely_tokens.clone());
        of_rows.collect::<Option<Vec<_>>>().map(|rows| rows.concat())
    }

    /// Returns, for each pair, the number of the prompt's tokens that are predicted: all but the first.
    pub(super) fn prompt_tokens(&self) -> Vec<usize> {
        let length = |item: usize| self.experience.item(item).next().map_or(0, |row| self.experience.prompt_of(row).len());
        self.items.clone().map(|item| length(item).saturating_sub(1)).collect()
    }

    /// Counts the tokens that a loss uses: those in the mask or, for pairs, those of the chosen completions.
    fn counted(&self) -> usize {
        let e = &self.experience;
        match &e.pairs {
            None if e.mask.is_empty() => e.tokens(&self.items).len(),
            None => e.mask[e.tokens(&self.items)].iter().filter(|&&m| m == 1).count(),
            Some(pairs) => pairs[self.items.clone()].iter().map(|&(chosen, _)| e.rollouts[chosen].tokens.len()).sum(),
        }
    }
}

/// Returns the size of a whole step, by which a loss is normalised. The tokens of prompts are counted if the loss sees them.
pub(super) fn scale(micro_batches: &[MicroBatch], max_completion_length: usize, sees_prompts: bool) -> Scale {
    let prompt_tokens = || micro_batches.iter().flat_map(MicroBatch::prompt_tokens).sum::<usize>() as u64;
    Scale {
        items: micro_batches.iter().map(|m| m.items.len() as u32).sum(),
        tokens: micro_batches.iter().map(|m| m.counted() as u64).sum(),
        prompt_tokens: if sees_prompts { prompt_tokens() } else { 0 },
        max_completion_length: max_completion_length as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(index: usize) -> Arc<Prompt> {
        Arc::new(Prompt { row: index, index, tokens: vec![index as u32], ..Prompt::default() })
    }

    /// Returns three prompts with two completions each. All columns hold the completions' tokens: 100, 101, 102 for the first, and so on.
    fn experience() -> Experience {
        let rollout = |row: usize| {
            let tokens: Vec<u32> = (0..=row as u32 % 4).map(|i| 100 * (row as u32 + 1) + i).collect();
            let logp = tokens.iter().map(|token| *token as f32).collect();
            Rollout {
                prompt: row / 2,
                sample: row % 2,
                tokens,
                logp,
                finished: true,
                policy_version: row as u64,
                ..Rollout::default()
            }
        };
        let mut e = Experience::new((0..3).map(prompt).collect(), (0..6).map(rollout).collect());
        e.texts = (0..6).map(|row| row.to_string()).collect();
        let logp = e.columns.values(SAMPLING_LOGP).unwrap().to_vec();
        e.mask = logp.iter().map(|token| (*token as usize % 2) as u8).collect();
        [OLD_LOGP, ADVANTAGE, "of the plugin"].iter().for_each(|name| e.columns.set_per_token(name, Some(logp.clone())));
        e.columns.set(Column::sparse("per row", Unit::Sequence, (0..6).map(|row| (row != 3).then_some(row as f32))));
        e.rewards =
            vec![RewardScoreColumn { name: "r".into(), weight: 1.0, values: (0..6).map(|row| Some(row as f32)).collect() }];
        e
    }

    #[test]
    fn in_another_order_every_column_follows_its_completion() {
        let e = experience().reordered(&[2, 0, 1]);
        assert_eq!(e.prompts.iter().map(|prompt| prompt.index).collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(
            e.rollouts.iter().map(|r| (r.prompt, r.sample)).collect::<Vec<_>>(),
            [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
        );
        assert_eq!(e.texts.concat(), "450123");
        assert!(e.rollouts.iter().enumerate().all(|(row, rollout)| rollout.policy_version == [4, 5, 0, 1, 2, 3][row]));
        assert_eq!(e.rewards[0].values, [4.0, 5.0, 0.0, 1.0, 2.0, 3.0].map(Some));
        let tokens: Vec<f32> = e.rollouts.iter().flat_map(|r| &r.tokens).map(|token| *token as f32).collect();
        assert_eq!(tokens[..3], [500.0, 600.0, 601.0]);
        for column in e.columns.iter().filter(|column| column.unit == Unit::Token) {
            assert_eq!(column.values, tokens, "{}", column.name);
        }
        let by_row: Vec<Option<f32>> = e.columns.get("per row").unwrap().entries().collect();
        assert_eq!(by_row, [Some(4.0), Some(5.0), Some(0.0), Some(1.0), Some(2.0), None]);
        assert_eq!((e.advantage(0, 0), e.advantage(1, 1)), (Some(500.0), Some(601.0)));
        assert!(e.mask.iter().zip(&tokens).all(|(mask, token)| usize::from(*mask) == *token as usize % 2));
        assert_eq!(e.offsets, [0, 1, 3, 4, 6, 9, 13]);
    }

    #[test]
    fn in_another_order_pairs_follow_their_prompts() {
        let mut e = experience();
        e.pairs = Some(vec![(1, 0), (2, 3), (5, 4)]);
        let e = e.reordered(&[2, 0, 1]);
        assert_eq!(e.pairs, Some(vec![(1, 0), (3, 2), (4, 5)]));
    }
}
