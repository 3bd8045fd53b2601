//! How completions are divided into micro-batches, mini-batches and generations.

use super::Config;

impl Config {
    /// Returns the number of micro-batches per generation.
    pub fn steps_per_generation(&self) -> usize {
        let given = self.generation_batch_size.map(|size| (size / self.batch_size()).max(1));
        self.steps_per_generation.or(given).unwrap_or(self.gradient_accumulation_steps)
    }

    /// Returns the number of micro-batches that each pass over a generation has.
    pub fn micro_batches_per_generation(&self) -> usize {
        self.num_mini_batches.map_or(self.steps_per_generation(), |parts| parts * self.gradient_accumulation_steps)
    }

    /// Returns the number of completions or pairs in a micro-batch of all processes together; where pairs are generated, the
    /// number of their prompts.
    pub fn batch_size(&self) -> usize {
        self.per_device_train_batch_size * self.ranks
    }

    /// Returns the same number for evaluation.
    pub fn eval_batch_size(&self) -> usize {
        self.per_device_eval_batch_size.unwrap_or(self.per_device_train_batch_size) * self.ranks
    }

    /// Returns whether some updates train on a generation after others have changed the weights.
    pub fn trains_later(&self) -> bool {
        !self.gradient_accumulation_steps.is_multiple_of(self.micro_batches_per_generation() * self.num_iterations)
    }

    /// Returns the number of completions in one generation; where pairs are generated, the number of their prompts.
    pub fn generation_batch_size(&self) -> usize {
        self.batch_size() * self.steps_per_generation()
    }

    /// Returns the number of completions per prompt.
    pub fn group(&self) -> usize {
        self.num_generations.unwrap_or(8)
    }
}
