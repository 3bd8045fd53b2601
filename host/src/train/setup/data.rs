//! Reads the datasets of a run and sets their order.

use crate::config::{Config, PackingStrategy};
use crate::data::{Dataset, Loader, Tokenizer, pack};
use crate::dist::World;
use crate::train::collector::Data;
use crate::train::dataset::{self, Learned, Prompt, Reader};
use crate::train::flow::Flow;
use crate::train::ranks::after_the_first;
use crate::train::{Error, Result, named};
use std::sync::Arc;

/// The training and evaluation data of a run.
pub(super) struct Datasets {
    pub data: Data,
    pub evaluated: Option<Vec<Arc<Prompt>>>,
    /// Warnings about rows skipped in either.
    pub warnings: Vec<String>,
}

/// Reads the training and evaluation datasets of the configuration, for a model with this `context`. Pairs are `framed` if the
/// algorithm requests it. Returns the configuration with names that stay valid wherever the run resumes.
pub(super) fn read(
    mut config: Config,
    (flow, framed): (Flow, bool),
    tokenizer: &Tokenizer,
    context: usize,
    world: &World,
) -> Result<(Config, Datasets)> {
    let (given, name) = after_the_first(world, || named::dataset_of(&config))?.unzip();
    config.dataset = name;
    let (held_out, name) = after_the_first(world, || named::held_out(&config))?.unzip();
    config.eval_dataset = name;

    let longest = config.longest(context);
    let (longest_prompt, strict) = (config.max_prompt_length, config.strict_data);
    let messages = !config.environment.is_empty() || config.plugin.iter().any(|entry| entry.model);
    let packing = Packing::of(&config, flow, longest)?;
    let reader = Reader { tokenizer, context, longest: packing.longest, longest_prompt, strict, framed, messages };
    let read = |path: Option<&Dataset>| match flow {
        Flow::Generated | Flow::GeneratedPairs => reader.prompts(path),
        Flow::GivenPairs => reader.pairs(path),
        Flow::Labelled => reader.labelled(path),
        Flow::ValuedPairs => reader.valued_pairs(path),
        Flow::Given => {
            let (whole, turns) = (!config.completion_only_loss, config.assistant_only_loss);
            reader.completions(path, Learned { whole, turns })
        }
    };
    let read = |path: Option<&Dataset>| read(path).map(|(prompts, left_out)| (packing.cut(prompts), left_out));
    let (prompts, left_out) = read(given.as_ref())?;
    let (evaluated, also) = held_out.as_ref().map(|dataset| read(Some(dataset))).transpose()?.unzip();
    let warnings = left_out.into_iter().chain(also.flatten()).collect();
    let packs = packing.packs(&prompts);
    let loader = loader(&config, flow, packs.as_ref().map_or(prompts.len(), Vec::len))?;
    let fingerprint = dataset::fingerprint(&prompts)?;
    let data = Data::new(prompts, evaluated.as_deref(), fingerprint, loader, packs);
    Ok((config, Datasets { data, evaluated, warnings }))
}

/// How texts become sequences.
struct Packing {
    /// None if each row is a sequence.
    strategy: Option<PackingStrategy>,
    /// Length of a sequence.
    length: usize,
    /// Length to which rows are truncated when they are read.
    longest: usize,
    /// Whether prompts are learned.
    whole: bool,
    /// Seed for shuffling rows before they are concatenated.
    shuffled: Option<u64>,
}

impl Packing {
    fn of(config: &Config, flow: Flow, length: usize) -> Result<Self> {
        if config.packing && flow != Flow::Given {
            return Err(Error::setting("packing", "only for algorithms that learn from given completions"));
        }
        let strategy = config.packing.then_some(config.packing_strategy);
        let longest = if matches!(strategy, None | Some(PackingStrategy::Bfd)) { length } else { usize::MAX };
        let shuffled = (config.shuffle_dataset == Some(true)).then_some(config.data_seed.unwrap_or(config.seed));
        Ok(Self { strategy, length, longest, whole: !config.completion_only_loss, shuffled })
    }

    /// Cuts rows according to the strategy.
    fn cut(&self, mut prompts: Vec<Arc<Prompt>>) -> Vec<Arc<Prompt>> {
        match self.strategy {
            None | Some(PackingStrategy::Bfd) => prompts,
            Some(PackingStrategy::BfdSplit) => dataset::split(prompts, self.length, self.whole),
            Some(PackingStrategy::Wrapped) => {
                if let Some(seed) = self.shuffled {
                    let order = Loader::new(prompts.len(), prompts.len(), seed, true, false).next_batch();
                    prompts = order.into_iter().map(|row| prompts[row].clone()).collect();
                }
                dataset::wrap(&prompts, self.length, self.whole)
            }
        }
    }

    /// Returns the groups of rows that are packed together; none if a row is a sequence.
    fn packs(&self, prompts: &[Arc<Prompt>]) -> Option<Vec<Vec<usize>>> {
        let packed = matches!(self.strategy, Some(PackingStrategy::Bfd | PackingStrategy::BfdSplit));
        let lengths = || prompts.iter().map(|p| p.length()).collect::<Vec<_>>();
        packed.then(|| pack(&lengths(), self.length))
    }
}

/// Creates the loader that orders this many rows.
fn loader(config: &Config, flow: Flow, rows: usize) -> Result<Loader> {
    let generates = flow.generates();
    let batch = if generates { flow.prompts(config.generation_batch_size(), config) } else { config.batch_size() };
    if generates && rows < batch {
        return Err(Error::TooFewPrompts { prompts: rows, generation: batch });
    }
    if config.dataloader_drop_last && rows < batch {
        let detail = format!("leaves nothing: the dataset has {rows} rows, but a batch takes {batch}");
        return Err(Error::setting("dataloader_drop_last", detail));
    }
    // Labelled rows go in the dataset's order, as in TRL.
    let shuffled = config.shuffle_dataset.unwrap_or(flow != Flow::Labelled);
    let drops = generates || config.dataloader_drop_last;
    // As in TRL, so that prompts which are neighbours in the dataset don't share an update; groups stay whole.
    let in_parts = generates && config.steps_per_generation() > config.gradient_accumulation_steps;
    Ok(Loader::new(rows, batch, config.data_seed.unwrap_or(config.seed), shuffled, !drops).mixing(in_parts))
}
