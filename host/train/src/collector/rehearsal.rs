//! What a rehearsal needs from the collector: short completions, and texts as tokens.

use super::source::RunHome;
use super::{Collector, source_of};
use crate::Result;
use crate::data::TurnEnd;
use std::rc::Rc;

impl Collector {
    /// Limits generations to `samples` completions per prompt and `tokens` tokens each. `home` is that of the run.
    ///
    /// # Errors
    /// If the log of a run that is to be replayed can't be read.
    pub(crate) fn shorten(&mut self, (samples, tokens): (usize, usize), home: &RunHome) -> Result<()> {
        let mut batching = (*self.batching).clone();
        batching.groups.iter_mut().for_each(|groups| groups.train = groups.train.min(samples));
        let mut rollout = (*self.rollout).clone();
        rollout.max_completion_length = rollout.max_completion_length.min(tokens);
        // A rehearsal must not contact servers or other runs.
        (rollout.servers, rollout.logs.replayed) = (None, None);
        (self.batching, self.rollout) = (Rc::new(batching), Rc::new(rollout));
        self.turns = Rc::new(self.turns.with_plan(self.rollout.clone()));
        self.source = source_of(&self.rollout, &self.turns, home, &self.world)?;
        Ok(())
    }

    /// Returns the tokens of a text as a completion.
    pub(crate) fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.turns.tokenizer().encode(text, false)?)
    }

    /// Decodes tokens.
    pub(crate) fn written(&self, tokens: &[u32]) -> Result<String> {
        Ok(self.turns.tokenizer().decode(tokens)?)
    }

    /// Returns the chat template's end of a turn, if there is one, and the tokens that end a completion.
    pub(crate) fn ends(&self) -> Result<(Option<TurnEnd>, Vec<String>)> {
        let (tokenizer, ends) = (self.turns.tokenizer(), self.turns.ends());
        Ok((tokenizer.turn_end(ends)?, tokenizer.token_texts(ends)?))
    }
}
