//! Packs completions with their prompts for a pass through the model, each prompt once.

use super::experience::Experience;
use crate::model::Selected;
use crate::ops::Forest;

/// Completions of an experience as one forest. The selected predictions are in the order of the experience's flat token columns.
pub(super) struct Packed {
    pub forest: Forest,
    pub selected: Selected,
}

impl Packed {
    pub(super) fn new(experience: &Experience, rows: impl IntoIterator<Item = usize>) -> Self {
        let (mut forest, mut selected) = (Forest::new(), Selected::default());
        let mut current: Option<(usize, usize)> = None;
        for rollout in rows.into_iter().map(|row| &experience.rollouts[row]) {
            let prompt = match current {
                Some((index, segment)) if index == rollout.prompt => segment,
                _ => forest.push(&experience.prompts[rollout.prompt].tokens, None),
            };
            current = Some((rollout.prompt, prompt));
            let completion = forest.push(&rollout.tokens, Some(prompt));
            selected.push_segment(&forest, completion);
        }
        Self { forest, selected }
    }
}
