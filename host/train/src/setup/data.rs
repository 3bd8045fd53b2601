//! Reads the datasets of a run and sets their order.

use super::opened_model::OpenedModel;
use super::plugins::LoadedPlugins;
use crate::collector::PromptLoader;
use crate::config::{IntervalStrategy, PackingStrategy, RunConfig, TeacherModelKind};
use crate::data::{self, Dataset, Loader, PromptForm, TeacherPrompts, TokenCountBounds, pack};
use crate::dataset::{self, DatasetReader, LearnedParts, PromptSet};
use crate::dist::World;
use crate::origin::StartMode;
use crate::plan::Batching;
use crate::ranks::after_the_first;
use crate::{Error, Result, name_resolution};
use std::sync::Arc;

/// Size of a dataset, in bytes, above which a new run draws from all rows; smaller ones are judged in less than a second.
const LARGE: u64 = 4 << 20;

/// The training and evaluation data of a run.
pub(super) struct Datasets {
    /// Names of both datasets that stay valid wherever the run resumes.
    pub names: (Option<String>, Option<String>),
    pub data: PromptLoader,
    pub evaluated: Option<PromptSet>,
    /// Warnings about skipped rows in both datasets.
    pub warnings: Vec<String>,
}

/// Reads the training and evaluation datasets of the configuration, for the opened model.
pub(super) fn read(
    config: &RunConfig,
    (batching, plugins): (&Batching, &LoadedPlugins),
    opened: &OpenedModel,
    beginning: &StartMode,
    world: &World,
) -> Result<Datasets> {
    let (given, name) = after_the_first(world, || name_resolution::dataset_of(config))?.unzip();
    let (held_out, name_of_held_out) = after_the_first(world, || name_resolution::eval_dataset_of(config))?.unzip();
    let names = (name, name_of_held_out);

    let (tokenizer, context) = (&opened.tokenizer, opened.context());
    let longest = config.max_text_length(context);
    let (longest_prompt, strict) = (config.max_prompt_length, config.strict_data);
    let messages = config.has_episodes() || plugins.read_messages() || plugins.writes_teacher_prompts();
    let [packing, of_evaluations] = [config.packing, config.packs_evaluations()].map(|on| Packing::new(config, on, longest));
    let (packing, of_evaluations) = (packing?, of_evaluations?);
    let lengths = TokenCountBounds::from_tokenizer(tokenizer).map(Arc::new);
    let form = PromptForm::from_config(config, tokenizer.has_chat()).map(Arc::new);
    let taught = TeacherPrompts::from_config(config).map(Arc::new);
    let (tokenizer, completion) = (tokenizer.clone(), batching.groups.map_or(0, |groups| groups.length));
    let framed = plugins.info().hints.framed;
    let reader = DatasetReader {
        tokenizer,
        lengths,
        context,
        longest,
        longest_prompt,
        completion,
        strict,
        framed,
        messages,
        form,
        taught,
        likely_tokens: config.teacher_model_kind == TeacherModelKind::Dataset,
    };
    let what = LearnedParts { includes_prompts: !config.completion_only_loss, turns: config.assistant_only_loss };
    let kind = plugins.flow.rows(what);
    let read = |path: Option<&Dataset>, packing: &Packing| {
        let reader = DatasetReader { longest: packing.longest, ..reader.clone() };
        let (prompts, left_out) = reader.read(path, kind, world)?;
        Ok::<_, Error>((packing.cut(prompts, world)?, Vec::from_iter(left_out)))
    };
    let drawn = given.as_ref().filter(|_| packing.strategy.is_none() && is_drawn(config));
    let drawn = drawn.map(|dataset| Ok::<_, Error>((dataset, has_order_of_all(dataset, beginning, world)?))).transpose()?;
    let (prompts, left_out): (PromptSet, _) = match drawn {
        Some((dataset, true)) => reader.read_drawn(dataset, kind, counts_epochs(config), world)?,
        _ => read(given.as_ref(), &packing)?,
    };
    let (evaluated, also) = held_out.as_ref().map(|dataset| read(Some(dataset), &of_evaluations)).transpose()?.unzip();
    if config.precompute_ref_log_probs {
        // The log-probabilities are stored with each prompt.
        prompts.all()?;
    }
    let warnings = left_out.into_iter().chain(also.into_iter().flatten()).collect();
    let packs = packing.packs(&prompts, world)?;
    let rows = packs.as_ref().map_or(prompts.len(), Vec::len);
    // Until all rows are judged, all may be usable.
    let usable = if packs.is_none() && prompts.are_judged() { prompts.usable_so_far()? } else { rows };
    let loader = loader(batching, (rows, usable))?;
    let data = PromptLoader::new(prompts, evaluated.as_ref(), loader, packs)?.with_skipping(config);
    Ok(Datasets { names, data, evaluated, warnings })
}

/// Returns whether a run can begin before all of its rows have been read.
fn is_drawn(config: &RunConfig) -> bool {
    !config.precompute_ref_log_probs && !config.chooses_by_row()
}

/// Returns whether the number of usable rows must be known before the first step.
fn counts_epochs(config: &RunConfig) -> bool {
    let strategies = [config.save_strategy, config.logging_strategy, config.evaluation_strategy()];
    config.max_steps < 0 || strategies.contains(&IntervalStrategy::Epoch)
}

/// Returns whether a dataset is drawn in the order of all its rows: as in the checkpoint that the run starts from or, for a new run, if the
/// dataset is large. Other datasets are drawn in the order of their usable rows.
fn has_order_of_all(dataset: &Dataset, beginning: &StartMode, world: &World) -> Result<bool> {
    world.broadcast("the order of the dataset", || match beginning.origin() {
        Some(origin) => Ok(origin.has_order_of_all()),
        // Faults of a file are reported when it is read.
        None => Ok(data::size_on_disk(dataset).is_ok_and(|size| size > LARGE)),
    })
}

/// How texts are packed into sequences.
struct Packing {
    /// Strategy; none if each row is a sequence.
    strategy: Option<PackingStrategy>,
    /// Length of a sequence.
    length: usize,
    /// Length to which rows are truncated on reading.
    longest: usize,
    /// Whether prompts are learned.
    whole: bool,
    /// Seed for shuffling rows before they are concatenated.
    shuffled: Option<u64>,
}

impl Packing {
    /// Returns the packing of rows, if packing is `on`.
    fn new(config: &RunConfig, on: bool, length: usize) -> Result<Self> {
        if on && length < 2 {
            let detail =
                format!("is {length}; with packing it must be at least 2, since nothing predicts a sequence's first token");
            return Err(Error::setting("max_length", detail));
        }
        let strategy = on.then_some(config.packing_strategy);
        let longest = if matches!(strategy, None | Some(PackingStrategy::Bfd)) { length } else { usize::MAX };
        let shuffled = (config.shuffle_dataset == Some(true)).then_some(config.shuffle_seed());
        Ok(Self { strategy, length, longest, whole: !config.completion_only_loss, shuffled })
    }

    /// Cuts rows according to the strategy.
    fn cut(&self, prompts: PromptSet, world: &World) -> Result<PromptSet> {
        Ok(match self.strategy {
            None | Some(PackingStrategy::Bfd) => prompts,
            Some(PackingStrategy::BfdSplit) => dataset::split(prompts, self.length, self.whole, world)?,
            Some(PackingStrategy::Wrapped) => {
                let order = |seed| Loader::new(prompts.len(), prompts.len(), seed, true, false).next_batch();
                let order = self.shuffled.map_or_else(|| (0..prompts.len()).collect(), order);
                dataset::wrap(prompts, order, self.length, self.whole, world)?
            }
        })
    }

    /// Returns the groups of rows that are packed together; none if each row is a sequence.
    fn packs(&self, prompts: &PromptSet, world: &World) -> Result<Option<Vec<Vec<usize>>>> {
        if !matches!(self.strategy, Some(PackingStrategy::Bfd | PackingStrategy::BfdSplit)) {
            return Ok(None);
        }
        Ok(Some(pack(&prompts.lengths(world)?, self.length)))
    }
}

/// Creates a loader for the order of this many rows, `usable` of which can be used.
fn loader(batching: &Batching, (rows, usable): (usize, usize)) -> Result<Loader> {
    let (batch, epoch) = (batching.rows_drawn(), batching.epoch);
    if epoch.drops_rest && usable < batch {
        return Err(batching.too_few(usable));
    }
    // As in TRL, so that neighbouring prompts of the dataset don't share an update; groups stay whole.
    let in_parts = batching.passes.micro_batches > batching.accumulation;
    let loader = Loader::new(rows, batch, batching.seed, epoch.shuffles, !epoch.drops_rest);
    Ok(loader.with_usable(usable).with_mixing(in_parts))
}
