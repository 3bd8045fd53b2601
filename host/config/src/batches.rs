//! Division of completions into micro-batches, mini-batches and generations.

use super::RunConfig;

/// Sizes of a run's batches, over all its processes. Runs that generate pairs count prompts instead of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSizes {
    /// Number of completions or pairs in a micro-batch.
    pub micro_batch: usize,
    /// Number of completions or pairs in a micro-batch of an evaluation.
    pub eval_micro_batch: usize,
    /// Number of micro-batches per generation.
    pub steps_per_generation: usize,
    /// Number of micro-batches of each pass over a generation.
    pub micro_batches_per_pass: usize,
    /// Whether some updates train on a generation after other updates changed the weights.
    pub trains_later: bool,
}

impl BatchSizes {
    /// Returns the number of completions in one generation.
    pub fn completions_per_generation(&self) -> usize {
        self.micro_batch * self.steps_per_generation
    }
}

impl RunConfig {
    /// Returns the batch sizes of a run with this many processes.
    pub fn batches(&self, ranks: usize) -> BatchSizes {
        let micro_batch = self.per_device_train_batch_size * ranks;
        let given = self.generation_batch_size.map(|size| size.checked_div(micro_batch).unwrap_or(1).max(1));
        let steps_per_generation = self.steps_per_generation.or(given).unwrap_or(self.gradient_accumulation_steps);
        let of_parts = self.num_mini_batches.map(|parts| parts * self.gradient_accumulation_steps);
        let micro_batches_per_pass = of_parts.unwrap_or(steps_per_generation);
        BatchSizes {
            micro_batch,
            eval_micro_batch: self.per_device_eval_batch_size.unwrap_or(self.per_device_train_batch_size) * ranks,
            steps_per_generation,
            micro_batches_per_pass,
            trains_later: !self.gradient_accumulation_steps.is_multiple_of(micro_batches_per_pass * self.num_iterations),
        }
    }

    /// Returns the seed for the order of rows.
    pub fn shuffle_seed(&self) -> u64 {
        self.data_seed.unwrap_or(self.seed)
    }

    /// Returns the number of completions per prompt.
    pub fn group_size(&self) -> usize {
        self.num_generations.unwrap_or(8)
    }
}
