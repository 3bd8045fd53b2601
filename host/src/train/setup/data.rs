//! Reads the datasets of a run and sets their order.

use crate::config::Config;
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
    /// What was left out of either.
    pub warnings: Vec<String>,
}

/// Reads the training and evaluation datasets of the configuration, for a model with this `context`. Pairs are `framed` if the
/// algorithm asks for it. Returns the configuration
/// with names that stay valid wherever the run resumes.
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

    let longest = config.max_length.unwrap_or(context).min(context);
    let (longest_prompt, strict) = (config.max_prompt_length, config.strict_data);
    let messages = config.environment.is_some() || config.plugin.iter().any(|entry| entry.model);
    let reader = Reader { tokenizer, context, longest, longest_prompt, strict, framed, messages };
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
    let (prompts, left_out) = read(given.as_ref())?;
    let (evaluated, also) = held_out.as_ref().map(|dataset| read(Some(dataset))).transpose()?.unzip();
    let warnings = left_out.into_iter().chain(also.flatten()).collect();
    let packs = packs(&config, flow, &prompts, longest)?;
    let loader = loader(&config, flow, packs.as_ref().map_or(prompts.len(), Vec::len))?;
    let fingerprint = dataset::fingerprint(&prompts)?;
    let data = Data::new(prompts, evaluated.as_deref(), fingerprint, loader, packs);
    Ok((config, Datasets { data, evaluated, warnings }))
}

/// Returns the groups of rows that are packed together, if packing is on.
fn packs(config: &Config, flow: Flow, prompts: &[Arc<Prompt>], longest: usize) -> Result<Option<Vec<Vec<usize>>>> {
    if !config.packing {
        return Ok(None);
    }
    if flow != Flow::Given {
        return Err(Error::Unfit("packing: only for algorithms that learn from given completions".into()));
    }
    let lengths: Vec<usize> = prompts.iter().map(|p| p.length()).collect();
    Ok(Some(pack(&lengths, longest)))
}

/// Creates the loader that orders this many rows.
fn loader(config: &Config, flow: Flow, rows: usize) -> Result<Loader> {
    let generates = flow.generates();
    let batch = if generates { flow.prompts(config.generation_batch_size(), config) } else { config.batch_size() };
    if generates && rows < batch {
        let detail = format!("the dataset has {rows} prompts, but one generation takes {batch}");
        return Err(Error::Unfit(format!("{detail}; lower per_device_train_batch_size or steps_per_generation")));
    }
    // Labelled rows go in the dataset's order, as in TRL.
    let shuffled = config.shuffle_dataset.unwrap_or(flow != Flow::Labelled);
    // As in TRL, so that prompts which are neighbours in the dataset don't share an update; groups stay whole.
    let in_parts = generates && config.steps_per_generation() > config.gradient_accumulation_steps;
    Ok(Loader::new(rows, batch, config.seed, shuffled, !generates).mixing(in_parts))
}
