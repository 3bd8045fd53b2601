//! Packs completions with their prompts for a pass through a model, each prompt once.

use super::experience::{Experience, MicroBatch};
use crate::model::SelectedPredictions;
use crate::ops::Forest;
use crate::ops::top_divergence::LikelyToken;
use crate::plugin::NeededInputs;
use crate::plugin::columns::{PROMPT_LOGP, SEQUENCE_VALUE};
use crate::rollout::{RowSegment, pieces};

/// Completions of an experience as one forest, and the positions whose states are used.
#[derive(Default)]
pub(super) struct PackedCompletions {
    pub forest: Forest,
    pub selected: SelectedPredictions,
    /// Number of predictions of completions' tokens; those of prompts' tokens follow them.
    pub of_completions: usize,
    /// These predictions after the prompts that a teacher reads, if those differ.
    pub taught: Option<Box<Self>>,
    /// A teacher's likeliest tokens at these predictions, if they are known.
    pub likely_tokens: Option<Vec<Vec<LikelyToken>>>,
}

/// Whose prompts completions follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptReader {
    Policy,
    /// A teacher, whose prompts may differ from the policy's.
    Teacher,
}

impl PackedCompletions {
    /// Selects the predictions of all tokens of completions, in the order of the experience's flat token columns.
    pub(super) fn new(experience: &Experience, rows: impl IntoIterator<Item = usize>) -> Self {
        Self::build(experience, rows, PromptReader::Policy).0
    }

    /// Selects the same predictions as [`PackedCompletions::new`] after the prompts that this model reads.
    pub(super) fn read_by(reader: PromptReader, experience: &Experience, rows: impl IntoIterator<Item = usize>) -> Self {
        Self::build(experience, rows, reader).0
    }

    /// Selects the states that an algorithm with these needs learns from, and the tokens or prompts of a teacher that it compares.
    pub(super) fn for_loss(micro_batch: &MicroBatch, needs: &NeededInputs) -> Self {
        let pack = match (needs.has(SEQUENCE_VALUE), needs.has(PROMPT_LOGP)) {
            (true, _) => Self::with_values,
            (false, true) => Self::with_prompts,
            (false, false) => Self::new,
        };
        let packed = pack(&micro_batch.experience, micro_batch.rows());
        if needs.divergence().is_none() {
            return packed;
        }
        let read_by_teacher = || Self::read_by(PromptReader::Teacher, &micro_batch.experience, micro_batch.rows());
        let taught = micro_batch.experience.has_teacher_prompts().then(|| Box::new(read_by_teacher()));
        Self { taught, likely_tokens: micro_batch.likely_tokens(), ..packed }
    }

    /// Selects the predictions of all tokens of pairs' completions, chosen and rejected alternating, followed by those of each pair's
    /// prompt after its first token.
    pub(super) fn with_prompts(experience: &Experience, rows: impl IntoIterator<Item = usize>) -> Self {
        let (mut this, prompts) = Self::build(experience, rows, PromptReader::Policy);
        for segment in prompts.into_iter().step_by(2).flatten() {
            this.selected.push_segment(&this.forest, segment);
        }
        this
    }

    /// Packs completions. Also returns the segments of each completion's prompt.
    fn build(experience: &Experience, rows: impl IntoIterator<Item = usize>, reader: PromptReader) -> (Self, Vec<Vec<usize>>) {
        let (mut this, mut prompts) = (Self::default(), Vec::new());
        for PlacedCompletion { row, prompt, own } in placed(&mut this.forest, experience, rows, reader) {
            let rollout = &experience.rollouts[row];
            if let Some(support) = &rollout.support {
                let restriction = &mut this.selected.restriction;
                restriction.push(this.selected.rows.len(), support, experience.prompt_of(row), &rollout.tokens);
            }
            for (place, &segment) in own.iter().enumerate() {
                let segment_of = this.forest.segments()[segment];
                if segment_of.prefix.is_none() && place > 0 {
                    // Nothing predicts the first token of a text that shares no prefix with the others. It was not sampled, so its place in
                    // the columns is ignored.
                    this.selected.rows.push(segment_of.start);
                    this.selected.targets.push(this.forest.tokens()[segment_of.start]);
                }
                this.selected.push_segment(&this.forest, segment);
            }
            prompts.push(prompt);
        }
        this.of_completions = this.selected.len();
        (this, prompts)
    }

    /// Selects the states at which whole texts get their values, one per completion. These predict nothing.
    pub(super) fn with_values(experience: &Experience, rows: impl IntoIterator<Item = usize>) -> Self {
        let mut this = Self::default();
        for PlacedCompletion { row, prompt, own } in placed(&mut this.forest, experience, rows, PromptReader::Policy) {
            let (rollout, asked) = (&experience.rollouts[row], experience.prompt_of(row).len());
            let answers = experience.prompts[rollout.prompt].answers.as_ref();
            let at = answers.map_or(asked + rollout.tokens.len() - 1, |answers| answers.value_positions[rollout.sample]);
            let start = |segments: &[usize]| this.forest.segments()[segments[0]].start;
            this.selected.rows.push(if at < asked { start(&prompt) + at } else { start(&own) + at - asked });
        }
        this
    }
}

/// A completion in a forest. Segments of a prompt, and those of a completion, are consecutive.
struct PlacedCompletion {
    row: usize,
    /// Segments of the prompt; none if it is empty, and one unless branches split it.
    prompt: Vec<usize>,
    /// Segments of the completion; one unless it has branches.
    own: Vec<usize>,
}

/// Adds completions to a forest; consecutive completions share their prompt.
fn placed(
    forest: &mut Forest,
    experience: &Experience,
    rows: impl IntoIterator<Item = usize>,
    reader: PromptReader,
) -> Vec<PlacedCompletion> {
    let rows: Vec<usize> = rows.into_iter().collect();
    let read = |row: usize| match reader {
        PromptReader::Policy => experience.prompt_of(row),
        PromptReader::Teacher => experience.teacher_prompt_of(row),
    };
    let prompt_of = |row: usize| (experience.rollouts[row].prompt, read(row));
    let mut all = Vec::with_capacity(rows.len());
    // Episodes of one prompt may have different openings.
    for group in rows.chunk_by(|a, b| prompt_of(*a) == prompt_of(*b)) {
        let asked = read(group[0]);
        let branches = |row: usize| experience.rollouts[row].branches.iter();
        let cuts: Vec<usize> = group.iter().flat_map(|row| branches(*row)).map(|branch| branch.after).collect();
        let cuts = || cuts.iter().copied().filter(|cut| *cut < asked.len());
        let mut ends = Vec::new();
        let prompt = push(forest, &pieces(asked.len(), 0, &[], cuts()), asked, 0, &mut ends);
        for &row in group {
            let rollout = &experience.rollouts[row];
            let mut own = pieces(asked.len(), rollout.tokens.len(), &rollout.branches, cuts());
            own.retain(|piece| piece.start >= asked.len());
            let own = push(forest, &own, &rollout.tokens, asked.len(), &mut ends.clone());
            all.push(PlacedCompletion { row, prompt: prompt.clone(), own });
        }
    }
    all
}

/// Adds pieces of `tokens` to a forest; `first` is the place of the first token in its row. `ends` has the ends of the row's earlier
/// pieces, with their segments. Returns the new segments.
fn push(forest: &mut Forest, pieces: &[RowSegment], tokens: &[u32], first: usize, ends: &mut Vec<(usize, usize)>) -> Vec<usize> {
    let mut own = Vec::with_capacity(pieces.len());
    for &RowSegment { start, end, after } in pieces {
        let prefix = ends.iter().find(|(end, _)| *end == after).map(|(_, segment)| *segment);
        let segment = forest.push(&tokens[start - first..end - first], prefix);
        ends.push((end, segment));
        own.push(segment);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Prompt;
    use crate::model::{FrozenModel, ModelFolder, WeightStorage, builtin};
    use crate::rollout::{Branch, Rollout};
    use std::sync::Arc;

    fn prompt(tokens: &[u32]) -> Arc<Prompt> {
        Arc::new(Prompt { tokens: tokens.to_vec(), ..Prompt::default() })
    }

    fn rollout(tokens: &[u32], branches: &[(usize, usize)]) -> Rollout {
        let branches = branches.iter().map(|&(start, after)| Branch { start, after }).collect();
        Rollout { tokens: tokens.to_vec(), logp: vec![0.0; tokens.len()], branches, ..Rollout::default() }
    }

    /// Returns each token of a row with the text before it.
    fn texts(prompt: &[u32], rollout: &Rollout) -> Vec<Vec<u32>> {
        let all: Vec<u32> = prompt.iter().chain(&rollout.tokens).copied().collect();
        let text = |index: usize| {
            let (mut text, mut place) = (Vec::new(), index + 1);
            while place > 0 {
                text.insert(0, all[place - 1]);
                let branch = rollout.branches.iter().find(|branch| prompt.len() + branch.start == place - 1);
                place = branch.map_or(place - 1, |branch| branch.after);
            }
            text
        };
        (prompt.len()..all.len()).map(text).collect()
    }

    #[test]
    fn tokens_of_a_tree_are_scored_after_their_own_texts_and_shared_ones_are_there_once() {
        let folder = tempfile::tempdir().unwrap();
        builtin::write(folder.path()).unwrap();
        let model = FrozenModel::new(
            ModelFolder::open(folder.path()).unwrap().with_weight_storage(WeightStorage::AS_STORED).decoder().unwrap(),
        );
        let asked = [11, 12, 13, 14];
        // A row without branches, and two rows with branches: from its own tokens, from within the prompt, and with a separate text.
        let rows = [
            rollout(&[21, 22, 23], &[]),
            rollout(&[21, 24, 25, 26, 27, 28], &[(2, 5), (4, 2)]),
            rollout(&[31, 32, 33, 34, 35], &[(1, 3), (3, 0)]),
        ];
        let e = Experience::new(vec![prompt(&asked)], rows.to_vec());
        let packed = PackedCompletions::new(&e, 0..3);
        assert_eq!(packed.forest.len(), asked.len() + rows.iter().map(|row| row.tokens.len()).sum::<usize>());
        assert_eq!(packed.selected.len(), e.tokens(&(0..3)).len());
        let got = model.score(&packed.forest, &packed.selected, 0.7).unwrap().logp;
        let mut place = 0;
        for row in &rows {
            for text in texts(&asked, row) {
                let (before, last) = text.split_at(text.len() - 1);
                if !before.is_empty() {
                    let alone = Experience::new(vec![prompt(before)], vec![rollout(last, &[])]);
                    let alone = PackedCompletions::new(&alone, 0..1);
                    let want = model.score(&alone.forest, &alone.selected, 0.7).unwrap().logp[0];
                    assert!((got[place] - want).abs() < 1e-5, "{text:?}: {} instead of {want}", got[place]);
                }
                place += 1;
            }
        }
        assert_eq!(place, got.len());
        let values = PackedCompletions::with_values(&e, 0..3);
        assert_eq!(values.selected.rows, [6, 12, 17]);
    }

    #[test]
    fn a_teacher_may_read_other_prompts_before_the_same_tokens() {
        let told = Prompt { tokens: vec![11, 12], teacher_tokens: Some(vec![11, 12, 13, 14, 15]), ..Prompt::default() };
        let e = Experience::new(
            vec![Arc::new(told), prompt(&[16])],
            vec![
                Rollout { prompt: 0, ..rollout(&[21, 22], &[]) },
                Rollout { prompt: 0, sample: 1, ..rollout(&[23], &[]) },
                Rollout { prompt: 1, ..rollout(&[24, 25], &[]) },
            ],
        );
        let [policy, teacher] =
            [PromptReader::Policy, PromptReader::Teacher].map(|reader| PackedCompletions::read_by(reader, &e, 0..3));
        assert_eq!((policy.forest.tokens().len(), teacher.forest.tokens().len()), (8, 11));
        assert_eq!(policy.selected.targets, [21, 22, 23, 24, 25]);
        assert_eq!(teacher.selected.targets, policy.selected.targets);
        assert_eq!((policy.selected.rows, teacher.selected.rows), (vec![1, 2, 1, 5, 6], vec![4, 5, 4, 8, 9]));
        assert!(e.has_teacher_prompts() && !Experience::new(vec![prompt(&[1])], vec![rollout(&[2], &[])]).has_teacher_prompts());
    }
}
