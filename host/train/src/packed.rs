//! Packs completions with their prompts for a pass through a model, each prompt once.

use super::experience::Experience;
use crate::model::Selected;
use crate::ops::Forest;

/// Completions of an experience as one forest, and the positions whose states are used.
#[derive(Default)]
pub(super) struct Packed {
    pub forest: Forest,
    pub selected: Selected,
    /// Number of predictions of completions' tokens; those of prompts' tokens come after them.
    pub of_completions: usize,
}

impl Packed {
    /// Selects the predictions of all tokens of completions, in the order of the experience's flat token columns.
    pub(super) fn new(experience: &Experience, rows: impl IntoIterator<Item = usize>) -> Self {
        Self::of(experience, rows).0
    }

    /// Selects the same of pairs, chosen and rejected in turn, and then the predictions of each pair's prompt after its first token.
    pub(super) fn with_prompts(experience: &Experience, rows: impl IntoIterator<Item = usize>) -> Self {
        let (mut this, prompts) = Self::of(experience, rows);
        for prompt in prompts.into_iter().step_by(2).flatten() {
            this.selected.push_segment(&this.forest, prompt);
        }
        this
    }

    /// Also returns the segment of each completion's prompt, unless that is empty.
    fn of(experience: &Experience, rows: impl IntoIterator<Item = usize>) -> (Self, Vec<Option<usize>>) {
        let (mut this, mut prompts) = (Self::default(), Vec::new());
        for (row, prompt, completion) in placed(&mut this.forest, experience, rows) {
            prompts.push(prompt);
            let rollout = &experience.rollouts[row];
            if let Some(support) = &rollout.support {
                let restriction = &mut this.selected.restriction;
                restriction.push(this.selected.rows.len(), support, experience.prompt_of(row), &rollout.tokens);
            }
            this.selected.push_segment(&this.forest, completion);
        }
        this.of_completions = this.selected.len();
        (this, prompts)
    }

    /// Selects the states that give whole texts their values, one per completion; they predict nothing.
    pub(super) fn valued(experience: &Experience, rows: impl IntoIterator<Item = usize>) -> Self {
        let mut this = Self::default();
        for (row, prompt, completion) in placed(&mut this.forest, experience, rows) {
            let rollout = &experience.rollouts[row];
            let prompt = prompt.map(|segment| this.forest.segments()[segment].range());
            let asked = prompt.as_ref().map_or(0, ExactSizeIterator::len);
            let answers = experience.prompts[rollout.prompt].answers.as_ref();
            let at = answers.map_or(asked + rollout.tokens.len() - 1, |answers| answers.valued[rollout.sample]);
            let start = this.forest.segments()[completion].start;
            this.selected.rows.push(match prompt {
                Some(prompt) if at < asked => prompt.start + at,
                _ => start + at - asked,
            });
        }
        this
    }
}

/// Adds completions to a forest. Returns each one's row, and the segments of its prompt, unless that is empty, and its own.
fn placed(
    forest: &mut Forest,
    experience: &Experience,
    rows: impl IntoIterator<Item = usize>,
) -> Vec<(usize, Option<usize>, usize)> {
    let mut current: Option<(usize, &[u32], Option<usize>)> = None;
    let place = |row: usize| {
        let (rollout, asked) = (&experience.rollouts[row], experience.prompt_of(row));
        let prompt = match current {
            // Episodes of a prompt may begin differently.
            Some((index, tokens, segment)) if index == rollout.prompt && tokens == asked => segment,
            _ => (!asked.is_empty()).then(|| forest.push(asked, None)),
        };
        current = Some((rollout.prompt, asked, prompt));
        (row, prompt, forest.push(&rollout.tokens, prompt))
    };
    rows.into_iter().map(place).collect()
}
