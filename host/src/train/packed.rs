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
        let mut current: Option<(usize, usize, &[u32])> = None;
        for row in rows {
            let (rollout, asked) = (&experience.rollouts[row], experience.prompt_of(row));
            let prompt = match current {
                // Episodes of a prompt may begin differently.
                Some((index, segment, tokens)) if index == rollout.prompt && tokens == asked => segment,
                _ => forest.push(asked, None),
            };
            current = Some((rollout.prompt, prompt, asked));
            let completion = forest.push(&rollout.tokens, Some(prompt));
            selected.push_segment(&forest, completion);
        }
        Self { forest, selected }
    }
}
