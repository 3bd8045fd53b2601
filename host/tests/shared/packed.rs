//! A forest of prompts with their completions.

use rlhost::model::SelectedPredictions;
use rlhost::ops::Forest;

/// Packs prompts, each with its completions, and selects all of the completions' tokens.
pub fn packed(texts: &[(Vec<u32>, Vec<Vec<u32>>)]) -> (Forest, SelectedPredictions) {
    let (mut forest, mut selected) = (Forest::new(), SelectedPredictions::default());
    for (prompt, completions) in texts {
        let prompt = forest.push(prompt, None);
        for completion in completions {
            let segment = forest.push(completion, Some(prompt));
            selected.push_segment(&forest, segment);
        }
    }
    (forest, selected)
}
