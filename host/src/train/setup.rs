//! From a configuration to a run: everything is read, checked and loaded before the run's
//! folder is made, so that a mistake leaves nothing behind.

use super::dataset::Learned;
use super::evaluation::Evaluation;
use super::models::{policy_and_reference, settle_adapter};
use super::origin::{Beginning, Origin};
use super::packing::is_separable;
use super::phases::Phases;
use super::ranks::{after_the_first, same_source};
use super::run_folder::{MADE_MODEL, put};
use super::saving::Saves;
use super::scoring::Reward;
use super::snapshot::Restored;
use super::swap::{self, Slot, Swaps, Trial};
use super::trainer::{State, Trainer, generates, shares_per_batch};
use super::{Error, Result, RunFolder, dataset, named};
use crate::config::{self, Config, LooseKey, PluginEntry, files};
use crate::data::{Dataset, Loader, StopStrings, Tokenizer, pack};
use crate::dist::World;
use crate::metrics::{Prometheus, Window};
use crate::model::{ModelFolder, Place, builtin};
use crate::optim::{AdamW, Schedule, Settings};
use crate::plugin::{AnyPlugin, Engine, Outline, RewardPlugin, Role, Source};
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

/// Parameters from which TRL's learning rate serves.
const FULL_SIZE: f64 = 1e8;
const FULL_SIZE_RATE: f64 = 1e-6;

/// Loads everything that `config` names, on each rank of the `world`. `loose` are keys that only the
/// algorithm can know.
pub fn set_up(mut config: Config, loose: Vec<LooseKey>, beginning: &Beginning, world: Rc<World>) -> Result<Trainer> {
    config.ranks = world.size();
    world.set_patience(config.dist_timeout_s);
    let engine = Engine::new()?;
    let algorithm_source = same_source(&world, || beginning.plugin(&config.algorithm))?;
    settle_loose_keys(&mut config, loose, &engine, &algorithm_source)?;
    let role = match Outline::of(&engine, &algorithm_source, &config.loss_limits)?.role(&algorithm_source)? {
        // Refused when it is loaded, in words.
        Role::Reward => Role::Policy,
        role => role,
    };
    let mut algorithm = AnyPlugin::load(&engine, &algorithm_source, role, &config.loss, &config.loss_limits, config.seed)?;
    config.loss = algorithm.plugin().config();
    let about = algorithm.plugin().info().clone();
    let online = generates(role, &config);
    if online {
        config.num_generations.get_or_insert(if role == Role::OnlinePreference { 2 } else { 8 });
        config.check_generation()?;
    }
    let source = |entry: &PluginEntry| same_source(&world, || beginning.plugin(&entry.path));
    let reward_sources = config.plugin.iter().map(source).collect::<Result<Vec<_>>>()?;
    let mut rewards = Vec::with_capacity(reward_sources.len());
    for (entry, source) in config.plugin.iter_mut().zip(&reward_sources) {
        let plugin = RewardPlugin::load(&engine, source, &entry.config, &entry.limits, config.seed)?;
        entry.config = plugin.config();
        rewards.push(Reward::new(plugin, entry));
    }

    let folder_path = world.broadcast("the run's folder", || match (beginning, config.output_dir.as_deref()) {
        (Beginning::Resume { origin, .. }, _) => Ok(origin.run.clone()),
        (Beginning::Over, Some(given)) => Ok(PathBuf::from(given)),
        _ => RunFolder::choose(&config, algorithm_source.name()),
    })?;
    config.output_dir = Some(folder_path.display().to_string());
    if config.precompute_ref_log_probs && online {
        let detail = "precompute_ref_log_probs: this algorithm generates its completions; they are not known before training";
        return Err(Error::Unfit(detail.into()));
    }
    let named_model = || config.model.as_deref().map(named::model_of).transpose();
    let (model, name) = after_the_first(&world, named_model)?.unzip();
    config.model = name;
    let (source, made) = open_model(model, beginning, folder_path.join(MADE_MODEL))?;
    let lora = settle_adapter(&mut config, &source)?;
    let tokenizer = Tokenizer::open(source.tokenizer())?;
    let context = source.architecture().max_positions;
    if tokenizer.vocab_size() > source.architecture().vocab_size {
        let (tokens, rows) = (tokenizer.vocab_size(), source.architecture().vocab_size);
        return Err(Error::Unfit(format!(
            "{}: the tokenizer has {tokens} tokens and the model only {rows}",
            source.path().display()
        )));
    }
    let (given, name) = after_the_first(&world, || named::dataset_of(&config))?.unzip();
    config.dataset = name;
    let (held_out, name) = after_the_first(&world, || named::held_out(&config))?.unzip();
    config.eval_dataset = name;
    let read = |path: Option<&Dataset>| {
        let longest = config.max_length.unwrap_or(context).min(context);
        match role {
            _ if online => dataset::prompts(path, &tokenizer, context),
            Role::Preference => dataset::pairs(path, &tokenizer, longest),
            _ => {
                let (whole, turns) = (!config.completion_only_loss, config.assistant_only_loss);
                dataset::completions(path, &tokenizer, longest, Learned { whole, turns })
            }
        }
    };
    let prompts = read(given.as_ref())?;
    let evaluated = held_out.as_ref().map(|dataset| read(Some(dataset))).transpose()?;
    let packs = (config.packing && role == Role::Policy && !online).then(|| {
        let lengths: Vec<usize> = prompts.iter().map(|p| p.length()).collect();
        pack(&lengths, config.max_length.unwrap_or(context).min(context))
    });
    if config.packing && packs.is_none() {
        return Err(Error::Unfit("packing: only for algorithms that learn from given completions".into()));
    }
    let rows = packs.as_ref().map_or(prompts.len(), Vec::len);
    let batch = if online { config.prompts_per_generation() } else { config.batch_size() };
    if online && prompts.len() < batch {
        let detail = format!("the dataset has {} prompts and one generation takes {batch}", prompts.len());
        return Err(Error::Unfit(format!("{detail}; lower per_device_train_batch_size or steps_per_generation")));
    }
    let dataset = dataset::fingerprint(&prompts)?;
    let all = prompts.iter().chain(evaluated.iter().flatten());
    let columns: BTreeSet<String> = all.flat_map(|p| p.columns.keys().cloned()).collect();
    let columns: Vec<String> = columns.into_iter().collect();
    let trial = Trial::made_up(&prompts, &columns, about.needs.ref_logp, about.needs.values);
    swap::dry_run(&trial, &mut algorithm, rewards.iter_mut().map(|r| &mut r.plugin))?;
    let cut = config.max_tokens_per_microbatch.is_some();
    let mut warnings = Vec::new();
    if (cut || world.size() > 1) && !is_separable(&mut algorithm, &about.needs)? {
        let name = algorithm_source.name();
        let detail = format!("the loss of {name}, with its settings, compares the rows of a micro-batch with one another");
        if cut {
            return Err(Error::Unfit(format!("max_tokens_per_microbatch: {detail}; it can't be cut by tokens")));
        }
        warnings.push(format!("{detail}: each process compares its own, and one process alone would learn something else"));
    }
    let place = Place::choose(config.device, config.bf16)?;
    world.meet_on(place.device())?;
    let (policy, reference) = policy_and_reference(&source, lora, &config, &about.needs, beginning, &place)?;
    let loader = Loader::new(rows, batch, config.seed, config.shuffle_dataset, !online);
    let max_steps = max_steps(&config, loader.batches_per_epoch() * shares_per_batch(role, &config));
    let evaluation = evaluated.map(|prompts| Evaluation::new(prompts, &config, max_steps));
    let parameters = policy.weights().parameters();
    let schedule = schedule(&mut config, role == Role::Policy && online, parameters, lora.is_some(), max_steps);
    let settings = Settings {
        beta1: config.adam_beta1,
        beta2: config.adam_beta2,
        eps: config.adam_epsilon,
        weight_decay: config.weight_decay,
        max_grad_norm: config.max_grad_norm,
    };
    let optimizer = AdamW::new(settings, &policy.weights().trained())?;
    let gradients = policy.zero_gradients()?;

    // By one rank: it is also the one that then writes config.toml anew.
    let changes = if world.is_first() { beginning.changes(&config)? } else { Map::new() };
    let read = |origin: &Origin| Restored::read(origin, &dataset, beginning.may_change());
    let restored = beginning.origin().map(read).transpose()?;
    let go_on_from = match beginning {
        Beginning::New | Beginning::Fork { .. } => None,
        Beginning::Over | Beginning::Resume { .. } => Some(beginning.step()),
    };
    let serve = |port: u16| {
        let run = folder_path.file_name().unwrap_or_default().to_string_lossy();
        Prometheus::serve(&config.metrics_address, port, &run, max_steps)
    };
    let port = config.metrics_port.filter(|_| world.is_first());
    let scraped = port.map(serve).transpose().map_err(|e| Error::Unfit(format!("metrics_port: {e}")))?;
    let mut folder = match world.is_first() {
        true => RunFolder::open(folder_path, &config, go_on_from)?,
        false => RunFolder::elsewhere(folder_path),
    };
    let source = match made {
        Some(made) if world.is_first() => keep_model(made.path(), &folder.path().join(MADE_MODEL))?,
        _ => source,
    };
    folder.event(
        match beginning {
            Beginning::New | Beginning::Over => "started",
            Beginning::Resume { .. } => "resumed",
            Beginning::Fork { .. } => "forked",
        },
        json!({
            "step": beginning.step(),
            "checkpoint": beginning.origin().map(|o| o.checkpoint.display().to_string()),
            "changed": changes,
            "version": env!("CARGO_PKG_VERSION"),
            "model": source.path().display().to_string(),
            "max_steps": max_steps,
            "device": place.describe(),
        }),
    )?;
    folder.keep_plugin(&algorithm_source, "algorithm", &about.version, &Value::Object(config.loss.clone()))?;
    for (Reward { plugin, .. }, source) in rewards.iter().zip(&reward_sources) {
        folder.keep_plugin(source, "reward", &plugin.info().version, &Value::Object(plugin.config()))?;
    }
    let longest = prompts.iter().map(|p| p.tokens.len()).max().unwrap_or(0);
    if online && longest + config.max_completion_length > context {
        let text = format!(
            "completions of the longest prompt ({longest} tokens) end at the model's context of {context} tokens, before max_completion_length {}",
            config.max_completion_length
        );
        warnings.push(text);
    }
    for text in warnings {
        tracing::warn!("{text}");
        folder.event("warning", json!({ "text": text }))?;
    }
    let saves = Saves::new(folder.path().to_owned());
    let mut slots = vec![Slot::algorithm(&config, algorithm_source, role, algorithm.plugin())];
    let places = config.plugin.iter().zip(reward_sources).zip(&rewards);
    slots.extend(places.map(|((entry, source), reward)| Slot::reward(entry, source, &reward.plugin)));
    let mut trainer = Trainer {
        world,
        ends: tokenizer.eos_ids(&source.architecture().eos_token_ids),
        stops: StopStrings::new(config.stop.clone()),
        config,
        folder,
        source,
        tokenizer,
        prompts,
        dataset,
        columns,
        loader,
        packs,
        evaluation,
        role,
        policy,
        reference,
        rewards,
        algorithm,
        optimizer,
        schedule,
        gradients,
        pending: VecDeque::new(),
        state: State::default(),
        parents: Vec::new(),
        figures: Window::default(),
        window: Window::default(),
        scraped,
        saves,
        swaps: Swaps::new(slots, trial),
        phases: Phases::new(),
        max_steps,
        begun: Instant::now(),
    };
    if let (Some(origin), Some(restored)) = (beginning.origin(), restored) {
        trainer.restore(&origin.checkpoint, restored, beginning.may_change())?;
    }
    if let Beginning::Fork { origin, .. } = beginning {
        trainer.become_fork(origin);
    }
    trainer.compare_set_ups()?;
    trainer.precompute_reference()?;
    trainer.watch(engine)?;
    Ok(trainer)
}

/// Keys that the host does not know go to the algorithm if its schema has them.
fn settle_loose_keys(config: &mut Config, loose: Vec<LooseKey>, engine: &Engine, algorithm: &Source) -> Result<()> {
    if loose.is_empty() {
        return Ok(());
    }
    let role = Outline::of(engine, algorithm, &config.loss_limits)?.role(algorithm)?;
    let plain = AnyPlugin::load(engine, algorithm, role, &Map::new(), &config.loss_limits, config.seed)?;
    let schema: Value = serde_json::from_str(&plain.plugin().info().config_schema).unwrap_or_default();
    let known: Vec<String> = schema["properties"].as_object().map(|p| p.keys().cloned().collect()).unwrap_or_default();
    for LooseKey { key, value, place } in loose {
        if !known.contains(&key) {
            let host = config::keys();
            let names = host.iter().map(|(name, ..)| name.as_str()).chain(known.iter().map(String::as_str));
            let detail = match config::nearest(&key, names) {
                Some(near) => format!("unknown key `{key}`; did you mean `{near}`?"),
                None => {
                    format!("unknown key `{key}`, neither rlhost's nor {}'s; `rlhost train --help` lists all", algorithm.name())
                }
            };
            return Err(config::Error::Invalid { place, detail }.into());
        }
        let value = serde_json::to_value(&value).map_err(|e| Error::Unfit(format!("{place}: {e}")))?;
        config.loss.insert(key, value);
    }
    Ok(())
}

/// A model that a run keeps in its own folder, before it is there.
enum Made {
    BuiltIn(tempfile::TempDir),
    /// A fork's, in the folder of its parent.
    Parents(PathBuf),
}

impl Made {
    fn path(&self) -> &Path {
        match self {
            Self::BuiltIn(temporary) => temporary.path(),
            Self::Parents(path) => path,
        }
    }
}

/// The model that a run begins with, or began with: the one that was named, or the one that the
/// binary brings, which the run keeps.
fn open_model(named: Option<PathBuf>, beginning: &Beginning, kept: PathBuf) -> Result<(ModelFolder, Option<Made>)> {
    if let Some(path) = named {
        return Ok((ModelFolder::open(path)?, None));
    }
    if let Beginning::Resume { .. } = beginning {
        return Ok((ModelFolder::open(kept)?, None));
    }
    if let Beginning::Fork { origin, .. } = beginning {
        let parents = origin.run.join(MADE_MODEL);
        return Ok((ModelFolder::open(&parents)?, Some(Made::Parents(parents))));
    }
    let temporary = tempfile::tempdir().map_err(|source| Error::Write { path: std::env::temp_dir(), source })?;
    builtin::write(temporary.path())?;
    Ok((ModelFolder::open(temporary.path())?, Some(Made::BuiltIn(temporary))))
}

fn keep_model(from: &Path, to: &Path) -> Result<ModelFolder> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        |source| Error::Write { path, source }
    };
    files::own_folder(to).map_err(fail(to))?;
    for entry in std::fs::read_dir(from).map_err(fail(from))?.filter_map(std::result::Result::ok) {
        let bytes = files::read(&entry.path(), u64::MAX).map_err(fail(&entry.path()))?;
        put(&to.join(entry.file_name()), &bytes)?;
    }
    Ok(ModelFolder::open(to)?)
}

/// Optimizer steps of the run, whose pass over the data has so many micro-batches.
fn max_steps(config: &Config, micro_batches: usize) -> u64 {
    if let Ok(steps) = u64::try_from(config.max_steps) {
        return steps;
    }
    let updates = micro_batches.div_ceil(config.gradient_accumulation_steps);
    ((config.num_train_epochs * updates as f64).ceil() as u64).max(1)
}

/// The learning rate's course. Where it is not given it is TRL's 1e-6 for models of full size, and
/// more for smaller ones: in proportion where an algorithm learns from its own completions, by the
/// root of that from pairs, which say more of each token. An adapter takes ten times as much, as TRL's
/// guide to LoRA has it.
fn schedule(config: &mut Config, explores: bool, parameters: usize, adapter: bool, total: u64) -> Schedule {
    let smaller = (FULL_SIZE / parameters as f64).max(1.0);
    let factor = if explores { smaller } else { smaller.sqrt() };
    let factor = if adapter { 10.0 * factor } else { factor };
    let peak = *config.learning_rate.get_or_insert(FULL_SIZE_RATE * factor);
    let warmup = if config.warmup_steps >= 1.0 {
        config.warmup_steps as u64
    } else {
        let fraction = if config.warmup_steps > 0.0 { config.warmup_steps } else { config.warmup_ratio };
        (fraction * total as f64).ceil() as u64
    };
    Schedule { kind: config.lr_scheduler_type, peak, warmup, total }
}
