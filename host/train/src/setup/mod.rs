//! Builds a run from a configuration in stages, each using the results of the earlier ones: plugins, model, data, learner, and the run's
//! folder. Everything is read, checked and loaded before the folder is created, so that a mistake leaves nothing behind.

mod best_metric;
mod compatibility;
mod data;
mod defaults;
mod episodes;
mod frozen_precision;
mod initial_plugin;
mod memory;
mod model;
mod models;
mod named_model;
mod opened_model;
mod overview;
mod plugins;
mod reference;
mod requirements;
mod schedule;
mod scripts;
mod servers;
mod teacher;
mod value_model;
mod value_source;

use super::collector::{Collector, PromptLoader, RunHome, TurnGenerator};
use super::dataset::PromptSet;
use super::evaluation::Evaluation;
use super::journal::{Journal, Parent, ResumePoint};
use super::learner::{Critic, Learner, LearningRates, POLICY_PREFIX};
use super::origin::{CheckpointOrigin, StartMode};
use super::periods::Periods;
use super::plan::{Batching, RunPlan, StepPlan};
use super::plugins::Opener;
use super::ranks::{compare_datasets, compare_settings, compare_weights};
use super::rehearsal::check_can_make;
use super::sharding::Sharding;
use super::shared_model::SharedModel;
use super::snapshot::{InputHashes, RestoredState};
use super::step_metrics::StepClock;
use super::trainer::{Trainer, TrainerState};
use super::{Error, Result, RunFolder};
use crate::config::{self, OptimizerRule, RunConfig, ZeroStage, printable_path};
use crate::dist::World;
use crate::metrics::Prometheus;
use crate::model::{BackendChoice, ComputeBackend, ModelFolder, PolicyModel};
use crate::ops::{self, Capability};
use crate::optim::OptimizerSettings;
use crate::plugin::PluginInfo;
use crate::plugin::columns::{REF_LOGP, SEQUENCE_VALUE};
use crate::run::{RunEvent, RunFiles, RunStart};
use candle_core::DType;
use data::Datasets;
use memory::in_use;
use models::{aux_loss_coef, check_precisions, check_stage, dropout, noise, old_logp, policy_and_reference};
use opened_model::OpenedModel;
use plugins::LoadedPlugins;
use reference::NamedModel;
pub use requirements::{Requirements, requirements};
use serde_json::{Map, Value};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use teacher::FoundTeacher;
use value_source::StateValueSource;

/// Loads everything that `config` names, on each rank of the `world`.
///
/// # Errors
/// If the configuration is invalid, or its parts don't fit each other.
pub fn set_up(config: RunConfig, beginning: &StartMode, world: Rc<World>) -> Result<Trainer> {
    set_up_for(config, beginning, world, Purpose::Training)
}

/// The purpose of setting up a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Training.
    Training,
    /// A look at the run before it begins: it writes into this folder instead of its own, which is only checked.
    Rehearsal(PathBuf),
    /// Evaluation of the model, without messages about training.
    Evaluation,
}

impl Purpose {
    /// Returns the folder that replaces the run's own.
    fn folder(self) -> Option<PathBuf> {
        match self {
            Self::Rehearsal(folder) => Some(folder),
            Self::Training | Self::Evaluation => None,
        }
    }
}

/// Loads everything that `config` names, for this purpose.
///
/// # Errors
/// As [`set_up`].
pub fn set_up_for(config: RunConfig, beginning: &StartMode, world: Rc<World>, purpose: Purpose) -> Result<Trainer> {
    let (trains, connects) = (purpose != Purpose::Evaluation, purpose == Purpose::Training);
    let instead = purpose.folder();
    world.set_patience(config.dist_timeout_s);
    let names_folder = instead.is_none() && config.output_dir.is_none() && !matches!(beginning, StartMode::Resume { .. });
    let ResolvedConfig { mut config, backend, batching, mut plugins, opened, datasets, folder, warnings: others } =
        resolve(config, beginning, &world)?;
    let Datasets { data, evaluated, mut warnings, .. } = datasets;
    let opener = Opener { backend: backend.clone(), tokenizer: opened.tokenizer.clone() };
    let trial = plugins.run_trial((&data, &batching), &config, beginning, &world)?;
    best_metric::check(&config, &plugins)?;
    episodes::check_rows(&config, std::iter::once(data.prompts()).chain(&evaluated))?;
    episodes::check(&config, (&plugins, data.prompts()), &opened)?;
    episodes::check_agent(&config, &opened, &backend, world.size())?;
    if connects {
        servers::check(&config, &opened, &world)?;
    }
    let of_model = only_here(&plugins, &opened).filter(|_| trains);
    warnings.extend(others.into_iter().chain(of_model).chain(too_long(&batching, &data, &opened)));
    world.connect_devices(backend.device())?;
    let (epoch, steps) = steps(&config, &data, &batching);
    if trains {
        check_goes_on(beginning, steps.max_steps)?;
        overview::of_steps(&batching, &world, (steps.max_steps, epoch));
        log_machine(&config, &opened, in_use(&config, &plugins, &opened, (&data, &batching), &backend), &backend, &folder);
    } else {
        overview::of_evaluation(&batching, evaluated.as_ref().unwrap_or(data.prompts()).len());
        overview::of_device(&backend);
    }
    if instead.is_some() && world.is_first() {
        check_can_make(&folder)?;
    }
    let folder = instead.unwrap_or(folder);
    let values = resolve_training(&mut config, &plugins, &opened, beginning, &backend, &world)?;
    let plan = RunPlan::new(&config, (plugins.flow, &plugins.metrics), batching, steps, opened.context());
    let models = models(&config, &plan, (&plugins, &opened), values, beginning, &backend, &world)?;
    let RunModels { learner, reference, teacher, usual_rate, rates } = models;
    (config.learning_rate, config.critic_learning_rate) = rates;
    let evaluation = evaluated.map(|prompts| Evaluation::new(prompts, &config, steps));
    let device = backend.describe();
    let mut run =
        RunSetup { settings: Rc::new(config), world, beginning, names_folder, max_steps: steps.max_steps, device, usual_rate };
    let restored = run.restored(&data, &learner)?;
    // Only one rank does this: the one that also rewrites config.toml.
    let changed = if run.world.is_first() { beginning.changes(&run.settings, run.world.size())? } else { Map::new() };
    let inputs = run.input_hashes(&learner, reference.as_ref(), evaluation.as_ref(), restored.as_ref())?;
    let longest = run.settings.max_text_length(opened.context());
    let goes_on = resume_point(beginning, restored.as_ref(), evaluation.as_ref());
    let teacher = teacher::scoring(teacher, &run.settings, &plugins)?;
    let (journal, source, turns) = run.begin((folder, goes_on), &plugins, &plan, opened, changed, warnings)?;

    let RunSetup { settings, world, .. } = run;
    let (model, folder) = (source.clone(), journal.path().to_owned());
    let home = RunHome { model, folder, first_step: beginning.step(), keeps_log: connects };
    let collector = Collector::new(world.clone(), &plan, data, turns, &home, reference, longest)?.with_teacher(teacher, &home)?;
    let (plugins, engine) = plugins.into_slots(&settings, world.clone(), trial)?;
    let (state, clock) = (TrainerState { inputs, ..TrainerState::default() }, StepClock::default());
    let mut trainer = Trainer { settings, plan, world, plugins, collector, learner, journal, evaluation, source, state, clock };
    trainer.begin_as(beginning, restored)?;
    trainer.plugins.watch((engine, opener), &trainer.journal, beginning)?;
    Ok(trainer)
}

/// A configuration that names everything that a run reads, with what was opened to resolve it.
struct ResolvedConfig {
    config: RunConfig,
    backend: ComputeBackend,
    batching: Batching,
    plugins: LoadedPlugins,
    opened: OpenedModel,
    datasets: Datasets,
    folder: PathBuf,
    warnings: Vec<String>,
}

/// Opens what the configuration names, and fills in derived settings: the plugins' own defaults, and names that stay valid wherever the run
/// resumes. Settings that depend on the model and the device are filled in by [`resolve_training`].
fn resolve(mut config: RunConfig, beginning: &StartMode, world: &World) -> Result<ResolvedConfig> {
    let BackendChoice { backend, mut warnings } = ComputeBackend::choose(config.device, config.bf16, world.local_rank())?;
    let mut plugins = plugins::load(&mut config, beginning, world, &backend)?;
    compatibility::check(&config, &plugins, world.size())?;
    overview::of_plugins(&plugins, &config);
    let batching = Batching::new(&config, plugins.flow, world.size());
    config.metric_for_best_model = best_metric::named(&config, &plugins.metrics, beginning)?;
    let folder = choose_folder(&config, &plugins, beginning, world)?;
    config.output_dir = Some(folder.display().to_string());
    config.replay_rollouts = config.replay_rollouts.map(servers::replayed_from_anywhere);
    let mut opened = model::open(&mut config, &folder, beginning, (&backend, world))?;
    if let Some(NamedModel { folder, name, warning }) =
        reference::find(&config, &plugins, &batching, &opened, (beginning, world))?
    {
        config.ref_model = Some(name);
        opened.reference = Some(folder);
        warnings.extend(warning);
    }
    let teacher = teacher::find(&config, &plugins, &opened, &backend, (beginning, world))?;
    if let Some(FoundTeacher { folder, name, warning }) = teacher {
        config.name_teacher(name);
        opened.teacher = Some(folder);
        warnings.extend(warning);
    }
    plugins.set_policy_tokenizer(&opened.tokenizer)?;
    overview::of_model(&opened, &config);
    // Before the ranks read data together.
    compare_settings(world, &config, backend.is_bf16())?;
    let datasets = data::read(&config, (&batching, &plugins), &opened, beginning, world)?;
    (config.dataset, config.eval_dataset) = datasets.names.clone();
    overview::of_data(datasets.data.prompts().len(), datasets.evaluated.as_ref().map(PromptSet::len), &config);
    Ok(ResolvedConfig { config, backend, batching, plugins, opened, datasets, folder, warnings })
}

/// Fills in the settings of training that depend on the algorithm, the model and the device, except learning rates, which depend on the
/// number of trained parameters. Returns the source of state values.
fn resolve_training(
    config: &mut RunConfig,
    plugins: &LoadedPlugins,
    opened: &OpenedModel,
    beginning: &StartMode,
    backend: &ComputeBackend,
    world: &World,
) -> Result<StateValueSource> {
    let PluginInfo { needs, hints, .. } = plugins.info();
    let (values, name) = value_model::choose(config, needs, opened, beginning, world)?;
    config.value_model = name;
    if plugins.flow.learns_samples() {
        // Which tokens could be sampled is not recorded over HTTP, and a teacher's server scores among all.
        let is_recorded = config.agent.is_empty() && config.rollout_server.is_empty() && config.teacher_server.is_empty();
        config.score_sampling_support.get_or_insert(is_recorded && needs.divergence().is_none());
        config.old_logp = Some(old_logp(config, backend));
    }
    config.router_aux_loss_coef = aux_loss_coef(config, &hints.defaults, &opened.source);
    config.lora_dropout = dropout(config, &opened.source, backend)?;
    Ok(values)
}

/// Returns the position at which a run with this restored state continues.
fn resume_point(beginning: &StartMode, restored: Option<&RestoredState>, evaluation: Option<&Evaluation>) -> ResumePoint {
    restored.map_or(ResumePoint::default(), |restored| ResumePoint {
        step: beginning.step(),
        owes_evaluation: restored.owes_evaluation(evaluation),
        has_open_window: restored.has_open_window(),
    })
}

/// Chooses the run's folder.
fn choose_folder(config: &RunConfig, plugins: &LoadedPlugins, beginning: &StartMode, world: &World) -> Result<PathBuf> {
    world.broadcast("the run's folder", || match (beginning, config.output_dir.as_deref()) {
        (StartMode::Resume { origin, .. }, _) => Ok(origin.run.clone()),
        (StartMode::Restart, Some(given)) => Ok(PathBuf::from(given)),
        _ => RunFolder::choose(config, plugins.algorithm_source.name()),
    })
}

/// Refuses to start from a checkpoint after which no step would be taken: a fork, which would have no steps, and a resumption from an older
/// checkpoint, which would undo later steps for nothing.
fn check_goes_on(beginning: &StartMode, max_steps: u64) -> Result<()> {
    if let (StartMode::Fork { origin, .. }, true) = (beginning, beginning.step() >= max_steps) {
        let checkpoint = printable_path(&origin.checkpoint);
        let detail =
            format!("is {max_steps}, so no step would follow {checkpoint}; the steps before it count, so set a larger one");
        return Err(Error::setting("max_steps", detail));
    }
    let (StartMode::Resume { origin, .. }, step) = (beginning, beginning.step()) else { return Ok(()) };
    let later = RunFiles(&origin.run).steps().ok().and_then(|steps| steps.last().copied()).filter(|last| *last > step);
    match later.filter(|_| step >= max_steps) {
        Some(last) => {
            let detail = format!(
                "is {max_steps}, so no step would follow checkpoint-{step}, and the run's steps up to {last} would be undone; set a larger \
                 one, or resume from the newest checkpoint"
            );
            Err(Error::setting("max_steps", detail))
        }
        None => Ok(()),
    }
}

/// Returns a warning about a reward model that transformers can't open.
fn only_here(plugins: &LoadedPlugins, opened: &OpenedModel) -> Option<String> {
    let family = opened.source.architecture().family;
    (plugins.info().needs.has(SEQUENCE_VALUE) && !family.is_classified()).then(|| {
        let name = family.description().name;
        format!("transformers has no sequence classification class for {name}, so only rlhost will open this reward model")
    })
}

/// Logs where a run computes and writes, and warns if it may need more memory than is available.
fn log_machine(config: &RunConfig, opened: &OpenedModel, how: memory::ModelUse, backend: &ComputeBackend, folder: &Path) {
    overview::of_machine(config, opened, how, backend);
    overview::of_folder(folder);
    warn_of_room(config, opened, how, backend);
}

/// Warns if a run may need more memory than is available.
fn warn_of_room(config: &RunConfig, opened: &OpenedModel, how: memory::ModelUse, backend: &ComputeBackend) {
    if backend.device().is_cpu() {
        let short = memory::shortage(config, &opened.source, how, ops::available_memory());
        short.iter().for_each(|short| tracing::warn!("{short}"));
    }
}

/// Returns a warning about completions that will be truncated at the model's context.
fn too_long(batching: &Batching, data: &PromptLoader, opened: &OpenedModel) -> Option<String> {
    let (longest, context) = (data.prompts().longest(), opened.context());
    let most = batching.groups?.length;
    (longest + most > context).then(|| {
        format!(
            "completions of the longest prompt ({longest} tokens) end at the model's context of {context} tokens, before \
             max_completion_length {most}"
        )
    })
}

/// Returns the number of optimizer steps per epoch, and the steps of the run.
fn steps(config: &RunConfig, data: &PromptLoader, batching: &Batching) -> (u64, StepPlan) {
    let epoch = updates_per_epoch(data, batching);
    let max_steps = max_steps(config, epoch);
    (epoch, StepPlan { max_steps, periods: Periods::new(config, max_steps, epoch) })
}

/// Returns the number of optimizer steps per epoch.
fn updates_per_epoch(data: &PromptLoader, batching: &Batching) -> u64 {
    data.micro_batches_per_epoch(batching).div_ceil(batching.accumulation) as u64
}

/// Returns the number of optimizer steps of a run with `epoch` steps per epoch.
fn max_steps(config: &RunConfig, epoch: u64) -> u64 {
    u64::try_from(config.max_steps).unwrap_or_else(|_| ((config.num_train_epochs * epoch as f64).ceil() as u64).max(1))
}

/// The models that a run trains and compares with.
struct RunModels {
    learner: Learner,
    reference: Option<SharedModel>,
    teacher: Option<Rc<SharedModel>>,
    /// Default learning rate.
    usual_rate: f64,
    /// Learning rates of the policy and of a critic.
    rates: (Option<f64>, Option<f64>),
}

/// Creates the learner and the reference model.
fn models(
    config: &RunConfig,
    plan: &RunPlan,
    (plugins, opened): (&LoadedPlugins, &OpenedModel),
    values: StateValueSource,
    beginning: &StartMode,
    backend: &ComputeBackend,
    world: &Rc<World>,
) -> Result<RunModels> {
    let (needs, rate) = (&plugins.info().needs, plugins.info().hints.learning_rate);
    check_precisions(config, needs, backend)?;
    check_stage(config, opened.lora, backend, world.size())?;
    let dropout = config.lora_dropout.unwrap_or(0.0);
    let mut sharding = Sharding::new(ZeroStage::new(config.zero_stage), config.shards_frozen(), world);
    // A named reference model is read separately.
    let own = needs.has(REF_LOGP) && opened.reference.is_none();
    let (policy, reference) =
        policy_and_reference(&opened.source, opened.lora, config, (own, &values), &mut sharding, beginning, backend)?;
    sharding.read(POLICY_PREFIX, policy.weights());
    let named =
        opened.reference.as_ref().map(|folder| reference::open(folder, config, beginning, backend, &policy, &mut sharding));
    let mut reference = named.transpose()?.or(reference);
    // If the policy generates, completions are scored while the model under the adapter is gathered.
    if own && opened.lora.is_some() && plan.batching.groups.is_none() {
        reference = reference.map(|reference| reference.divided(reference::REFERENCE, &mut sharding)).transpose()?;
    }
    let teacher = opened.teacher.as_ref().map(|folder| teacher::open(folder, backend, &mut sharding)).transpose()?.map(Rc::new);
    let moving_teacher = teacher::moving(config, plugins, &policy, beginning)?;
    let policy = policy.with_dropout(dropout).with_noise(noise(config, backend)?);
    backend.suggest_bf16(config.bf16, policy.weights().parameters());
    let (adapter, learns_samples) = (opened.lora.is_some(), plugins.flow.learns_samples());
    let size = |model: &PolicyModel| schedule::TrainedSize { parameters: model.weights().parameters(), adapter, learns_samples };
    let usual_rate = schedule::usual(rate, size(&policy));
    let schedule = schedule::of_policy(config, config.learning_rate.unwrap_or(usual_rate), plan.max_steps)?;
    let shared = config.critic_learning_rate.filter(|_| matches!(values, StateValueSource::Shared));
    let of_head = shared.map(|peak| schedule::with_peak(config, peak, plan.max_steps)).transpose()?;
    let mut of_critic = config.critic_learning_rate;
    let optimizer = OptimizerSettings {
        rule: rule(config, backend)?,
        beta1: config.adam_beta1,
        beta2: config.adam_beta2,
        eps: config.adam_epsilon,
        weight_decay: config.weight_decay,
        max_grad_norm: config.max_grad_norm,
    };
    let mut critic = None;
    if let StateValueSource::Model(own) = values {
        let mut begun = value_model::open(own, opened, config, beginning, backend, &policy, &mut sharding)?;
        begun.model = begun.model.with_dropout(dropout);
        let peak = of_critic.unwrap_or_else(|| schedule::usual(schedule::CRITIC_LEARNING_RATE, size(&begun.model)));
        of_critic = Some(peak);
        critic = Some(Critic::new(begun, optimizer, schedule::with_peak(config, peak, plan.max_steps)?, &mut sharding)?);
    }
    let rates = (Some(schedule.peak), of_critic);
    let schedules = LearningRates { schedule, of_head };
    let (batching, optimizer) = (plan.batching.clone(), (optimizer, schedules));
    let learner = Learner::new(world.clone(), batching, plan.learner, policy, optimizer, critic, &mut sharding)?;
    let learner = learner.with_teacher(teacher.clone(), moving_teacher);
    Ok(RunModels { learner, reference, teacher, usual_rate, rates })
}

/// Returns the optimizer.
///
/// # Errors
/// If the backend has no kernel for it.
fn rule(config: &RunConfig, backend: &ComputeBackend) -> Result<OptimizerRule> {
    let invalid = |place: &str, detail: String| config::Error::Invalid { place: place.to_owned(), detail };
    let rule = config.rule().map_err(|(key, detail)| invalid(key, detail))?;
    match backend.refusal(Capability::OtherOptimizers).filter(|_| rule != OptimizerRule::AdamW) {
        Some(detail) => Err(invalid("optim", detail).into()),
        None => Ok(rule),
    }
}

/// A run with all settings resolved.
struct RunSetup<'a> {
    settings: Rc<RunConfig>,
    world: Rc<World>,
    beginning: &'a StartMode,
    /// Whether rlhost chose the name of the run's folder.
    names_folder: bool,
    max_steps: u64,
    /// Name of the device.
    device: String,
    /// Default learning rate.
    usual_rate: f64,
}

impl RunSetup<'_> {
    /// Reads the checkpoint that the run starts from.
    fn restored(&self, data: &PromptLoader, learner: &Learner) -> Result<Option<RestoredState>> {
        let own = learner.moments();
        let read = |origin: &CheckpointOrigin| {
            let written = origin.written()?;
            let restored = RestoredState::read(
                origin,
                data.fingerprint(),
                || data.prompts().fingerprint_of_tokens(),
                self.beginning.may_change(),
                // Moments that other ranks own are not read.
                |name| !learner.is_divided() || own.contains(name),
            )?;
            Ok(restored.adapted(&written, &self.settings))
        };
        self.beginning.origin().map(read).transpose()
    }

    /// Returns the hashes of everything that a resumed run reads again, and checks that it is unchanged.
    fn input_hashes(
        &self,
        learner: &Learner,
        reference: Option<&SharedModel>,
        evaluation: Option<&Evaluation>,
        restored: Option<&RestoredState>,
    ) -> Result<InputHashes> {
        let settings = &self.settings;
        let keeps_reference = reference::keeps_reference(settings, self.beginning)?;
        // Without `ref_model`, the reference is the model under the adapter.
        let is_base = learner.policy().weights().lora.is_some() && settings.ref_model.is_none();
        let reference = reference.filter(|_| !keeps_reference && !is_base);
        let weights = [
            learner.untrained_here(),
            reference.map(SharedModel::named_here).unwrap_or_default(),
            learner.teacher().map(SharedModel::named_here).unwrap_or_default(),
        ];
        let mut inputs = InputHashes::new(weights, evaluation.map(Evaluation::prompts), &self.world)?;
        inputs.keeps_reference = keeps_reference;
        if let (StartMode::Resume { origin, .. }, Some(restored), false) = (self.beginning, restored, self.beginning.may_change())
        {
            let written = origin.written()?;
            let rows = |config: &RunConfig| (config.eval_dataset.clone(), config.dataset_test_split.clone());
            let was = restored.inputs();
            inputs.check(if rows(&written) == rows(settings) { was } else { was.with_other_rows() })?;
        }
        Ok(inputs)
    }

    /// Creates the run's folder, or opens it at the run's resume point, and records how the run starts.
    fn begin(
        &mut self,
        (path, goes_on): (PathBuf, ResumePoint),
        plugins: &LoadedPlugins,
        plan: &RunPlan,
        opened: OpenedModel,
        changed: Map<String, Value>,
        warnings: Vec<String>,
    ) -> Result<(Journal, ModelFolder, TurnGenerator)> {
        let path = self.claim(path, plugins.algorithm_source.name())?;
        let scraped = self.serve(&path).inspect_err(|_| self.unclaim(&path))?;
        let go_on_from = match self.beginning {
            StartMode::New | StartMode::Fork { .. } => None,
            StartMode::Restart | StartMode::Resume { .. } => Some(goes_on),
        };
        let mut folder = match self.world.is_first() {
            true => RunFolder::open(path, &self.settings, go_on_from)?,
            false => RunFolder::from_other_process(path),
        };
        let turns =
            TurnGenerator::new(plan.rollout.clone(), opened.tokenizer.clone(), &opened.source.architecture().eos_token_ids);
        let pad = opened.tokenizer.pad_id().filter(|_| plugins.info().needs.has(SEQUENCE_VALUE));
        let source = opened.keep(folder.path(), self.world.is_first())?.with_pad_token(pad);
        folder.event(&self.event(&source, changed))?;
        plugins.store(&self.settings, &mut folder)?;
        for text in warnings {
            tracing::warn!("{text}");
            folder.event(&RunEvent::Warning { text: &text })?;
        }
        Ok((Journal::new(self.settings.clone(), folder, scraped, self.usual_rate), source, turns))
    }

    /// Creates the folder if rlhost chose its name: if another run has chosen the same one, this run gets another. Returns its path, on all
    /// ranks, and sets it in the configuration.
    fn claim(&mut self, chosen: PathBuf, algorithm: &str) -> Result<PathBuf> {
        let folder = self.world.broadcast("the run's own folder", || match self.names_folder {
            true => RunFolder::claim(chosen, algorithm),
            false => Ok(chosen),
        })?;
        Rc::make_mut(&mut self.settings).output_dir = Some(folder.display().to_string());
        Ok(folder)
    }

    /// Deletes a claimed folder if it is empty, and then its parent if that is empty too.
    fn unclaim(&self, folder: &Path) {
        if self.names_folder && self.world.is_first() {
            drop(folder.ancestors().take(2).try_for_each(fs::remove_dir));
        }
    }

    /// Returns the run's first event.
    fn event(&self, source: &ModelFolder, changed: Map<String, Value>) -> RunEvent<'_> {
        let begun = RunStart {
            step: self.beginning.step(),
            checkpoint: self.beginning.origin().map(|o| o.checkpoint.display().to_string()),
            changed,
            set: self.settings.named.iter().map(String::as_str).collect(),
            version: env!("CARGO_PKG_VERSION"),
            model: source.path().display().to_string(),
            max_steps: self.max_steps,
            device: &self.device,
            usual_learning_rate: self.usual_rate,
        };
        match self.beginning {
            StartMode::New | StartMode::Restart => RunEvent::Started(begun),
            StartMode::Resume { .. } => RunEvent::Resumed(begun),
            StartMode::Fork { .. } => RunEvent::Forked(begun),
        }
    }

    /// Starts the metrics endpoint, if requested.
    fn serve(&self, folder: &Path) -> Result<Option<Prometheus>> {
        let serve = |port: u16| {
            let run = folder.file_name().unwrap_or_default().to_string_lossy();
            Prometheus::serve(&self.settings.metrics_address, port, &run, self.max_steps)
        };
        let Some(port) = self.settings.metrics_port.filter(|_| self.world.is_first()) else { return Ok(None) };
        match serve(port) {
            Ok(endpoint) => Ok(Some(endpoint)),
            // The parent run may still be running.
            Err(error) if error.kind() == ErrorKind::AddrInUse && self.has_parents_port()? => {
                tracing::warn!("metrics_port {port} is the parent's and in use, so this fork serves no metrics; choose another");
                Ok(None)
            }
            Err(error) => Err(Error::setting("metrics_port", error)),
        }
    }
}

impl RunSetup<'_> {
    /// Returns whether the run is a fork with the same metrics port as its parent.
    fn has_parents_port(&self) -> Result<bool> {
        let StartMode::Fork { origin, .. } = self.beginning else { return Ok(false) };
        Ok(origin.written()?.metrics_port == self.settings.metrics_port)
    }
}

impl Trainer {
    /// Moves the run to its starting position, and checks that all ranks are there.
    fn begin_as(&mut self, beginning: &StartMode, restored: Option<RestoredState>) -> Result<()> {
        self.journal.derive(self.plugins.derived_metrics());
        self.journal.begin_with(self.plugins.versions());
        if let (Some(origin), Some(restored)) = (beginning.origin(), restored) {
            self.restore(beginning, origin, restored)?;
        }
        if let StartMode::Fork { origin, .. } = beginning {
            let checkpoint = std::path::absolute(&origin.checkpoint).unwrap_or_else(|_| origin.checkpoint.clone());
            self.journal.become_fork(Parent { checkpoint, step: origin.step });
            // The model in the configuration is the reference model.
            self.state.moved |= origin.written()?.model != self.settings.model;
        }
        let is_bf16 = self.learner.policy().computes_in() == DType::BF16;
        compare_settings(&self.world, &self.settings, is_bf16)?;
        compare_datasets(&self.world, self.collector.data().fingerprint())?;
        // Including the weights that an adapter leaves unchanged.
        let reference = self.collector.reference().filter(|_| self.settings.ref_model.is_some());
        let reference = reference.map(SharedModel::named_everywhere).unwrap_or_default();
        let teacher = self.learner.teacher().map(SharedModel::named_everywhere).unwrap_or_default();
        let weights = [self.learner.named_everywhere(), reference, teacher].concat();
        compare_weights(&self.world, &weights, self.state.global_step)?;
        let evaluated = self.evaluation.as_ref().filter(|_| self.settings.precompute_ref_log_probs).map(Evaluation::prompts);
        let evaluated = evaluated.map(PromptSet::all).transpose()?.unwrap_or_default();
        let _whole = self.collector.reads_policy().then(|| self.learner.gather_policy()).transpose()?;
        self.collector.precompute_reference(evaluated, self.moment(), self.plugins.needs_mismatched())
    }
}
