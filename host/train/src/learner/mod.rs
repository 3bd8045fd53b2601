//! Computes gradients from micro-batches, and updates from gradients, for the policy and a separate critic.

mod collectives;
mod columns;
mod combined_collectives;
mod critic;
mod forward;
mod moving_teacher;
mod packing;
mod teaching;
mod training_state;

pub(crate) use columns::SAMPLING_DIFFERENCE;
pub(super) use critic::{CRITIC_PREFIX, Critic, InitialCritic};
/// Prefix of the policy's errors and metrics, which is empty.
pub(super) const POLICY_PREFIX: &str = "";
pub(super) use moving_teacher::{MovingTeacher, PolicyAverage};
pub(super) use packing::batches_of;
pub(super) use training_state::LearningRates;

use super::columns::NamedColumns;
use super::experience::{Experience, MicroBatch, scale};
use super::packed_completions::PackedCompletions;
use super::plan::{Batching, LearnerPlan};
use super::plugins::RunPlugins;
use super::policy_progress::PolicyProgress;
use super::sharding::{LocalParameter, ModelShards, Sharding};
use super::shared_model::SharedModel;
use super::step_metrics::{StepMetrics, StepWork};
use super::{Error, Result};
use crate::activity::{self, Activity, ProgressTask};
use crate::dist::World;
use crate::metrics::Metric;
use crate::model::{
    self, Architecture, LearningOptions, ModelFolder, PassCost, PassDirection, PassObserver, PolicyModel, PromptPass, Weights,
    is_critic_parameter,
};
use crate::ops;
use crate::ops::dropout::mixed_bits;
use crate::optim::OptimizerSettings;
use crate::plugin::columns::{
    LOGP, MICRO_BATCH_LABEL, MISMATCHED_LOGP, MISMATCHED_REF_LOGP, PROMPT_LOGP, REF_LOGP, SAMPLING_LOGP, SEQUENCE_VALUE,
    TEACHER_LOGP,
};
use crate::plugin::{Column, MicroBatchLoss, NeededInputs, Unit};
use candle_core::{DType, Tensor};
use columns::LossInputs;
use combined_collectives::CombinedCollectives;
use forward::{ForwardPass, TokenPass};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use training_state::{FinishedUpdate, TrainingState};

/// Distinguishes the seeds of losses from those of dropout.
const LOSS_SEEDS: u64 = 0x6c6f_7373;

/// What to do with a micro-batch's gradients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GradientAction {
    /// Compute no gradients.
    Nothing,
    /// Add them to the previous ones.
    Add,
    /// Add them, then sum over the ranks.
    AddAndSum,
}

/// Updates of a step.
pub(super) struct Updates {
    policy: FinishedUpdate,
    critic: Option<FinishedUpdate>,
}

impl Updates {
    /// Returns whether the update changed the policy.
    pub(super) fn moves_policy(&self) -> bool {
        self.policy.moves()
    }

    /// Returns the metrics of the updates.
    pub(super) fn metrics(self) -> impl Iterator<Item = Metric> {
        self.policy.metrics().chain(self.critic.into_iter().flat_map(FinishedUpdate::metrics))
    }
}

/// The state of the optimizers.
pub(super) struct Optimizers {
    /// Number of updates of the policy.
    pub updates: u64,
    /// Number of updates of a separate critic.
    pub critic_updates: Option<u64>,
    pub moments: HashMap<String, Tensor>,
}

/// The parts of the trained models and of the optimizers' moments that a rank owns, as a copy that later updates don't change.
pub(super) struct RankShard {
    /// Weights of the policy, as stored in files; empty for a model with an adapter.
    pub model: Vec<(String, Tensor)>,
    /// Weights of a value model.
    pub value_model: Vec<(String, Tensor)>,
    /// Moments; none if only models are saved.
    pub moments: Option<HashMap<String, Tensor>>,
}

/// Returns the coefficient of the auxiliary loss of a model's experts; 0 without experts.
pub(super) fn aux_coefficient(given: Option<f64>, model: &Architecture) -> f64 {
    model.mixture.as_ref().map_or(0.0, |mixture| given.unwrap_or(mixture.coefficient))
}

/// Computes gradients from micro-batches, and updates from gradients, for the policy and a separate critic.
pub(super) struct Learner {
    world: Rc<World>,
    batching: Rc<Batching>,
    plan: LearnerPlan,
    policy: PolicyModel,
    trained: TrainingState,
    critic: Option<Critic>,
    /// A teacher that stays as it is.
    teacher: Option<Rc<SharedModel>>,
    moving_teacher: Option<MovingTeacher>,
}

impl Learner {
    /// Creates a learner that trains a policy, and a separate critic if there is one, with these learning rates.
    pub(super) fn new(
        world: Rc<World>,
        batching: Rc<Batching>,
        plan: LearnerPlan,
        policy: PolicyModel,
        optimizer: (OptimizerSettings, LearningRates),
        critic: Option<Critic>,
        sharding: &mut Sharding,
    ) -> Result<Self> {
        let trained = TrainingState::new(POLICY_PREFIX, &policy, optimizer, sharding)?;
        Ok(Self { world, batching, plan, policy, trained, critic, teacher: None, moving_teacher: None })
    }

    /// Adds a teacher that the policy's predictions are compared with, if there is one.
    pub(super) fn with_teacher(self, teacher: Option<Rc<SharedModel>>, moving_teacher: Option<MovingTeacher>) -> Self {
        Self { teacher, moving_teacher, ..self }
    }

    /// Returns the teacher that stays as it is, if there is one.
    pub(super) fn teacher(&self) -> Option<&SharedModel> {
        self.teacher.as_deref()
    }

    /// Computes the loss of a step's micro-batches and leaves its gradient in `gradients`. The ranks' gradients are summed during the
    /// backward pass of this rank's last micro-batch, or during every one if gradients are sharded. The first micro-batch continues the
    /// pass over its prompts, if that is `known`.
    pub(super) fn learn(
        &mut self,
        micro_batches: &[MicroBatch],
        mut known: Option<PromptPass>,
        plugins: &mut RunPlugins,
        at: PolicyProgress,
    ) -> Result<(f64, StepMetrics)> {
        let mut figures = StepMetrics::start();
        self.trained.zero()?;
        self.critic.as_ref().map_or(Ok(()), Critic::zero)?;
        figures.lap("optimizer");
        let inputs = self.inputs(micro_batches, plugins, at)?;
        let own = self.own(micro_batches, plugins);
        let passes = self.passes(own.len())?;
        let mut loss = 0.0;
        let task = ProgressTask::new(Activity::Training).with_total(passes as u64, activity::ProgressUnit::Things);
        for number in 0..passes {
            let learn = if number + 1 == passes { GradientAction::AddAndSum } else { GradientAction::Add };
            let Some((place, micro_batch)) = own.get(number) else {
                figures.merge(self.idle_pass(learn)?);
                continue;
            };
            let (part, of_pass) = self.pass(micro_batch, learn, &inputs[*place], plugins, known.take())?;
            loss += part;
            figures.merge(of_pass);
            task.add(1);
        }
        if self.world.size() > 1 {
            // This waits until every rank has completed its last backward pass.
            loss = self.world.sum("losses", loss)?;
            figures.lap("reduce");
        }
        Ok((loss, figures))
    }

    /// Computes this rank's part of the loss of micro-batches, without gradients.
    pub(super) fn evaluate(
        &self,
        micro_batches: &[MicroBatch],
        plugins: &mut RunPlugins,
        at: PolicyProgress,
    ) -> Result<(f64, StepMetrics)> {
        let (mut figures, mut loss) = (StepMetrics::start(), 0.0);
        let inputs = self.inputs(micro_batches, plugins, at)?;
        let own = self.own(micro_batches, plugins);
        for number in 0..self.passes(own.len())? {
            let Some((place, micro_batch)) = own.get(number) else {
                figures.merge(self.idle_pass(GradientAction::Nothing)?);
                continue;
            };
            let (part, of_pass) = self.pass(micro_batch, GradientAction::Nothing, &inputs[*place], plugins, None)?;
            loss += part;
            figures.merge(of_pass);
        }
        Ok((loss, figures))
    }

    /// Returns this rank's part of micro-batches as they pass through the model, each with the index of its micro-batch. None is empty,
    /// unless the ranks compute the loss together.
    fn own(&self, micro_batches: &[MicroBatch], plugins: &RunPlugins) -> Vec<(usize, MicroBatch)> {
        let mut own = packing::packed(micro_batches, &self.world, self.batching.max_tokens);
        own.retain(|(_, part)| plugins.shares_losses() || !part.items.is_empty());
        own
    }

    /// Returns the inputs of each micro-batch's loss, apart from its pass.
    fn inputs(&self, micro_batches: &[MicroBatch], plugins: &RunPlugins, at: PolicyProgress) -> Result<Vec<LossInputs>> {
        let needs = Rc::new(plugins.needs().clone());
        let scale = scale(micro_batches, self.plan.max_completion_length, needs.has(PROMPT_LOGP));
        let differs = self.plan.differs_from_sampling || self.policy.computes_in() == DType::BF16;
        let compares_sampling = differs || needs.has(SAMPLING_LOGP);
        let seed = mixed_bits(self.plan.seed ^ mixed_bits(at.step ^ LOSS_SEEDS));
        let inputs = |micro_batch: &MicroBatch| {
            let mut of_micro_batch = self.mismatched(micro_batch, at)?;
            if needs.has(MICRO_BATCH_LABEL) {
                of_micro_batch.push(columns::labels(micro_batch));
            }
            let shared = plugins.shares_losses().then(|| micro_batch.clone());
            let (needs, metrics) = (needs.clone(), self.plan.metrics);
            Ok(LossInputs { needs, metrics, at, seed, scale, shared, of_micro_batch, compares_sampling })
        };
        micro_batches.iter().map(inputs).collect()
    }

    /// Computes the log-probabilities of a micro-batch's mismatched completions, if it has any. Each rank computes its part.
    fn mismatched(&self, micro_batch: &MicroBatch, at: PolicyProgress) -> Result<Vec<Column>> {
        let Some(e) = micro_batch.experience.mismatched.as_deref() else { return Ok(Vec::new()) };
        let (rows, frozen) = (micro_batch.items.clone(), self.policy.frozen());
        let (size, most) = (self.batching.rows, self.batching.max_tokens);
        let parts = batches_of(e, micro_batch.rank_share(&self.world).items, size, most);
        let own = self.trained.shards().passes(&self.world, parts, |watch, part| {
            let PackedCompletions { forest, selected, .. } = &PackedCompletions::new(e, part.clone());
            Ok(e.sums(&frozen.score_watched(forest, selected, self.plan.temperature, watch)?.logp, part))
        })?;
        let logp = self.world.concat("mismatched completions", own.concat())?;
        let of_reference = |column: &[f32]| e.sums(&column[e.tokens(&rows)], rows.clone());
        // While both are one model, they differ only by rounding.
        let ref_logp = if at.is_reference { Some(logp.clone()) } else { e.columns.values(REF_LOGP).map(of_reference) };
        let column = |name: &str, values: Vec<f32>| Column::new(name, Unit::MicroBatch, values);
        let of_reference = ref_logp.map(|values| column(MISMATCHED_REF_LOGP, values));
        Ok(std::iter::once(column(MISMATCHED_LOGP, logp)).chain(of_reference).collect())
    }

    /// Runs a micro-batch forward and through the algorithm's loss. Returns its part of the loss. Unless `learn` is `Nothing`, also runs
    /// the backward pass, which accumulates gradients.
    fn pass(
        &self,
        micro_batch: &MicroBatch,
        learn: GradientAction,
        inputs: &LossInputs,
        plugins: &mut RunPlugins,
        known: Option<PromptPass>,
    ) -> Result<(f64, StepMetrics)> {
        let known = known.filter(|_| !self.trained.shards().gathers());
        let pass = |watching: &CombinedCollectives<'_>| self.watched_pass(micro_batch, learn, inputs, plugins, (known, watching));
        let (loss, mut figures) = self.communicating(learn, pass)?;
        figures.lap("reduce");
        Ok((loss, figures))
    }

    /// Takes part in a pass of other ranks without rows of its own.
    fn idle_pass(&self, learn: GradientAction) -> Result<StepMetrics> {
        let mut figures = self.communicating(learn, |watching| {
            let mut figures = StepMetrics::start();
            watching.finish(PassDirection::Forward)?;
            self.backward(learn, &mut figures, watching, || Ok(()))?;
            Ok(figures)
        })?;
        figures.lap("reduce");
        Ok(figures)
    }

    /// Runs the pass of [`Learner::pass`] with its collective operations.
    fn watched_pass(
        &self,
        micro_batch: &MicroBatch,
        learn: GradientAction,
        inputs: &LossInputs,
        plugins: &mut RunPlugins,
        (known, watching): (Option<PromptPass>, &CombinedCollectives<'_>),
    ) -> Result<(f64, StepMetrics)> {
        let mut figures = StepMetrics::start();
        let packed = PackedCompletions::for_loss(micro_batch, &inputs.needs);
        let (key, aux_weight) = (self.dropout_seed(learn, inputs.at), self.aux_weight(micro_batch, inputs));
        let forward = self.forward(&packed, &inputs.needs, key, (known, watching), aux_weight);
        watching.finish(PassDirection::Forward)?;
        let forward = forward?;
        figures.add_work(self.work(&packed));
        let not_repeated = PassCost { forward: -forward.known_work(), backward: 0.0 };
        figures.add_work(StepWork { activations: forward.kept_bytes(), passes: not_repeated, ..StepWork::default() });
        let mut observed = forward.columns(&inputs.needs)?;
        figures.lap("forward");
        if let Some(logp) = self.moved_teacher_logp(micro_batch, &inputs.needs)? {
            observed.set_per_token(TEACHER_LOGP, Some(logp));
            figures.lap("teacher");
        }

        let (gradient, of_algorithm) = self.loss(micro_batch, observed, inputs, plugins)?;
        let mut own = columns::metrics(micro_batch, &forward, inputs);
        // An algorithm that corrects by the ratios logs its own metrics of them.
        own.retain(|figure| of_algorithm.iter().all(|other| other.name != figure.name));
        let aux_loss = forward.aux_loss();
        figures.add(of_algorithm.into_iter().filter(|_| self.reports(inputs)));
        figures.add(own);
        figures.add(aux_loss.map(|loss| Metric::mean("aux_loss", loss, micro_batch.items.len() as f64)));
        figures.lap("loss");

        self.backward(learn, &mut figures, watching, || forward.backward(&gradient, self.trained.gradients()))?;
        Ok((gradient.loss + aux_weight * aux_loss.unwrap_or_default(), figures))
    }

    /// Runs packed completions through the policy and the critic, for the columns that the algorithm needs, with dropout seeded by `key`.
    /// If the pass over all prompts is `known`, it is continued.
    fn forward<'a>(
        &'a self,
        packed: &'a PackedCompletions,
        needs: &NeededInputs,
        key: Option<u64>,
        (known, watching): (Option<PromptPass>, &'a CombinedCollectives<'_>),
        aux_weight: f64,
    ) -> Result<ForwardPass<'a>> {
        let (forest, selected) = (&packed.forest, &packed.selected);
        if forest.is_empty() {
            return Ok(ForwardPass::Nothing);
        }
        let watch = Some(&watching.policy as &dyn PassObserver);
        if needs.has(SEQUENCE_VALUE) {
            return Ok(ForwardPass::Values(Box::new(self.policy.forward_values(forest, &selected.rows, key, watch)?)));
        }
        let temperature = self.plan.temperature;
        let by_logp = key.is_some() && (needs.has(LOGP) || needs.has(PROMPT_LOGP));
        let learning = LearningOptions { key, by_logp, watch };
        let pass = self.policy.forward_learning(forest, selected, temperature, learning, known)?;
        let pass = pass.with_aux_loss_weight(aux_weight).with_smoothed_targets(self.plan.label_smoothing)?;
        let pass = match self.teaching(packed, needs, watching)? {
            Some(teaching) => pass.with_teacher(teaching)?,
            None => pass,
        };
        let watch = watching.critic.as_ref().map(|critic| critic as &dyn PassObserver);
        let critic =
            self.critic.as_ref().map(|critic| Ok::<_, Error>((critic, critic.forward(packed, key, watch)?))).transpose()?;
        Ok(ForwardPass::Tokens(Box::new(TokenPass { pass, critic, tokens: packed.of_completions })))
    }

    /// Returns this rank's part of a micro-batch's loss, with its derivatives with respect to what this rank's pass `observed`, and the
    /// algorithm's metrics. A loss that compares rows gets the columns of all ranks, and then only the first rank reports.
    fn loss(
        &self,
        micro_batch: &MicroBatch,
        observed: NamedColumns,
        inputs: &LossInputs,
        plugins: &mut RunPlugins,
    ) -> Result<(MicroBatchLoss, Vec<Metric>)> {
        let Some(whole) = &inputs.shared else { return plugins.loss(columns::batch(micro_batch, &observed, inputs)) };
        let all = columns::joined(self.world.gather("the columns of a loss", observed)?);
        let (gradient, metrics) = plugins.loss(columns::batch(whole, &all, inputs))?;
        let own = columns::cut(gradient, whole, &micro_batch.items);
        let loss = if self.reports(inputs) { own.loss } else { 0.0 };
        Ok((MicroBatchLoss { loss, ..own }, metrics))
    }

    /// Returns whether this rank reports the algorithm's loss and metrics for these inputs.
    fn reports(&self, inputs: &LossInputs) -> bool {
        inputs.shared.is_none() || self.world.is_first()
    }

    /// Returns the weight of a micro-batch's auxiliary loss of experts. All rows of a step weigh the same, so that a step's loss is the
    /// mean over equally large micro-batches, as in TRL.
    fn aux_weight(&self, micro_batch: &MicroBatch, inputs: &LossInputs) -> f64 {
        let part = micro_batch.items.len() as f64 / f64::from(inputs.scale.items.max(1));
        aux_coefficient(self.plan.router_aux_loss_coef, self.policy.architecture()) * part
    }

    /// Returns the seed of the adapter's dropout and the embeddings' noise in a step's passes; none in evaluations, which have neither.
    fn dropout_seed(&self, learn: GradientAction, at: PolicyProgress) -> Option<u64> {
        (learn != GradientAction::Nothing).then(|| mixed_bits(self.plan.seed ^ mixed_bits(at.step)))
    }

    /// Runs a backward `pass` with the collective operations that other ranks wait for. A rank that failed earlier reports it at the
    /// barrier.
    fn backward(
        &self,
        learn: GradientAction,
        figures: &mut StepMetrics,
        watching: &CombinedCollectives<'_>,
        pass: impl FnOnce() -> model::Result<()>,
    ) -> Result<()> {
        if learn == GradientAction::Nothing {
            return Ok(());
        }
        if self.sums(learn) {
            self.world.barrier("the last backward pass")?;
            figures.lap("reduce");
        }
        let passed = pass();
        figures.lap("backward");
        watching.finish(PassDirection::Backward)?;
        Ok(passed?)
    }

    /// Updates the weights with the accumulated gradients; `step` is the number of steps after this update.
    ///
    /// # Errors
    /// If a gradient or a weight would not be finite. No weights are changed then.
    pub(super) fn update(&mut self, step: u64) -> Result<(Updates, StepMetrics)> {
        let _task = ProgressTask::new(Activity::UpdatingWeights);
        let mut figures = StepMetrics::start();
        let prepared = self.trained.prepare_update(&self.policy, step - 1, &self.world)?;
        let of_critic = self.critic.as_ref().map(|critic| critic.prepare_update(step - 1, &self.world)).transpose()?;
        let policy = self.trained.update(&self.policy, prepared)?;
        let critic = self.critic.as_mut().zip(of_critic).map(|(critic, prepared)| critic.update(prepared)).transpose()?;
        self.publish()?;
        figures.lap("optimizer");
        Ok((Updates { policy, critic }, figures))
    }

    /// Sets the number of times that evaluations have stopped improving, for schedules that follow them.
    pub(super) fn reduce_rates(&mut self, plateaus: u32) {
        self.trained.reduce_rates(plateaus);
        self.critic.iter_mut().for_each(|critic| critic.reduce_rates(plateaus));
    }

    /// Returns the cost of a forward and backward pass.
    fn work(&self, packed: &PackedCompletions) -> StepWork {
        let models = [Some(&self.policy), self.critic.as_ref().map(Critic::model)];
        let passed = |model: &PolicyModel| model.pass_cost(&packed.forest, packed.selected.rows.len());
        let mut passes = PassCost::default();
        models.into_iter().flatten().for_each(|model| passes += passed(model));
        StepWork { packed: packed.forest.len() as u64, passes, ..StepWork::default() }
    }

    /// Returns whether there is a critic.
    pub(super) fn has_critic(&self) -> bool {
        self.critic.is_some() || self.policy.weights().value_head.is_some()
    }

    /// Computes the critic's values of the states in which the tokens of these `parts` of an experience were chosen; empty without a
    /// critic. The policy must be [gathered](Learner::gather_policy), and all ranks must call this.
    pub(super) fn values(&self, e: &Experience, parts: Vec<Range<usize>>) -> Result<Vec<f32>> {
        let model = self.critic.as_ref().map_or(&self.policy, Critic::model).frozen();
        let pass = |watch: Option<&dyn PassObserver>, rows: Range<usize>| {
            let packed = PackedCompletions::new(e, rows);
            Ok(model.values_watched(&packed.forest, &packed.selected.rows, watch)?.unwrap_or_default())
        };
        // A critic on top of the policy's model is gathered with it.
        let own = self.critic.as_ref().map(Critic::shards).filter(|shards| !self.trained.shards().gathers_of(shards));
        let values = match own {
            Some(shards) => shards.passes(&self.world, parts, pass)?,
            None => parts.into_iter().map(|rows| pass(None, rows)).collect::<Result<_>>()?,
        };
        Ok(values.concat())
    }

    /// Returns the trained models.
    pub(super) fn models(&self) -> impl Iterator<Item = &PolicyModel> {
        std::iter::once(&self.policy).chain(self.critic.as_ref().map(Critic::model))
    }

    /// Returns the policy.
    pub(super) fn policy(&self) -> &PolicyModel {
        &self.policy
    }

    /// Returns all parameters by name, trained or not.
    pub(super) fn named(&self) -> Vec<(String, &Tensor)> {
        let critic = self.critic.iter().flat_map(Critic::named);
        self.policy.weights().named().into_iter().chain(critic).collect()
    }

    /// Returns the trained parameters by name.
    pub(super) fn trained(&self) -> Vec<(String, &Tensor)> {
        let critic = self.critic.iter().flat_map(|critic| critic.model().weights().trained());
        self.policy.weights().trained().into_iter().chain(critic).collect()
    }

    /// Returns whether this rank currently has the values of a parameter.
    pub(super) fn has(&self, t: &Tensor) -> bool {
        self.is_everywhere(t) || ops::has_values(t)
    }

    fn is_everywhere(&self, t: &Tensor) -> bool {
        self.models_with_shards().all(|(_, shards)| shards.is_everywhere(t))
    }

    /// Returns the parameters that every rank has, by name, trained or not.
    pub(super) fn named_everywhere(&self) -> Vec<(String, &Tensor)> {
        let mut all = self.named();
        all.retain(|(_, t)| self.is_everywhere(t));
        all
    }

    /// Returns the trained parameters that every rank has, by name.
    pub(super) fn trained_everywhere(&self) -> Vec<(String, &Tensor)> {
        let mut all = self.trained();
        all.retain(|(_, t)| self.is_everywhere(t));
        all
    }

    /// Returns the frozen parameters by name; the tensors are those that this rank has.
    pub(super) fn untrained_here(&self) -> Vec<LocalParameter<'_>> {
        let mut all = Vec::new();
        for (model, shards) in self.models_with_shards() {
            all.extend(model.weights().untrained().into_iter().map(|(name, t)| shards.here(name, t)));
        }
        all
    }

    /// Checks that the trained parameters on this rank are finite. Otherwise a checkpoint would be useless, and older ones would be deleted
    /// for it.
    pub(super) fn check_weights(&self) -> Result<()> {
        let own = self.models_with_shards().flat_map(|(model, shards)| {
            let all = model.weights().trained().into_iter();
            all.filter(|(name, t)| shards.owns(name) || shards.is_everywhere(t)).map(|(_, t)| t)
        });
        let squares = ops::sum_of_squares(own)?;
        if squares.is_finite() { Ok(()) } else { Err(Error::WeightsNotFinite) }
    }

    /// Returns a copy of a value model's weights, as [`Learner::copied_weights`] makes it, and the folder that it started from, unless that
    /// is the policy's.
    pub(super) fn value_model(&self) -> Result<Option<(Weights, Option<ModelFolder>)>> {
        let copied = |critic: &Critic| Ok((self.copied(critic.model())?, critic.source()));
        self.critic.as_ref().map(copied).transpose()
    }

    /// Returns a copy of the policy's weights. Weights that ranks write as parts of a checkpoint are not copied.
    pub(super) fn copied_weights(&self) -> Result<Weights> {
        self.copied(&self.policy)
    }

    fn copied(&self, model: &PolicyModel) -> Result<Weights> {
        let is_written = |name: &str| !self.is_divided() || model.weights().lora.is_some() || is_critic_parameter(name);
        Ok(model.weights_copied_where(is_written)?)
    }

    /// Returns whether the trained models are sharded, so that each rank writes a part of a checkpoint.
    pub(super) fn is_divided(&self) -> bool {
        self.trained.shards().is_divided()
    }

    /// Copies the parts of the trained models that this rank owns and, if requested, their moments.
    pub(super) fn shard(&self, with_moments: bool) -> Result<RankShard> {
        let shard = |model: &PolicyModel, shards: &ModelShards| {
            if model.weights().lora.is_some() {
                return Ok(Vec::new());
            }
            let owns = |name: &str| shards.owns(name);
            Ok::<_, Error>(model.weights_copied_where(owns)?.shard(owns)?)
        };
        let moments = with_moments.then(|| self.optimizers()).transpose()?.map(|state| state.moments);
        Ok(RankShard {
            model: shard(&self.policy, self.trained.shards())?,
            value_model: self.critic.as_ref().map_or(Ok(Vec::new()), |critic| shard(critic.model(), critic.shards()))?,
            moments,
        })
    }

    /// Returns the optimizers' state without moments.
    pub(super) fn updates(&self) -> Optimizers {
        let critic_updates = self.critic.as_ref().map(Critic::updates);
        Optimizers { updates: self.trained.updates(), critic_updates, moments: HashMap::new() }
    }

    /// Returns the names of this rank's moments.
    pub(super) fn moments(&self) -> HashSet<String> {
        self.trained.names_of_moments().chain(self.critic.iter().flat_map(Critic::names_of_moments)).collect()
    }

    /// Returns a copy of the optimizers' state.
    pub(super) fn optimizers(&self) -> Result<Optimizers> {
        let (updates, mut moments) = self.trained.moments()?;
        let (critic_updates, more) = self.critic.as_ref().map(Critic::moments).transpose()?.unzip();
        moments.extend(more.into_iter().flatten());
        Ok(Optimizers { updates, critic_updates, moments })
    }

    /// Returns this rank's gradients.
    pub(super) fn gradients_here(&self) -> impl Iterator<Item = &Tensor> {
        let critic = self.critic.iter().map(Critic::gradients);
        let all = std::iter::once(self.trained.gradients()).chain(critic);
        all.flat_map(|gradients| gradients.named()).map(|(_, t)| t).filter(|t| !t.device().is_cpu() || ops::has_values(t))
    }

    /// Restores the optimizers' state. Returns what does not fit; the optimizer in question is left unchanged.
    pub(super) fn restore(&mut self, state: Optimizers) -> Vec<String> {
        let Optimizers { updates, critic_updates, mut moments } = state;
        let restore = |critic: &mut Critic| critic.restore(critic_updates.unwrap_or_default(), &mut moments).err();
        let of_critic = self.critic.as_mut().and_then(restore);
        of_critic.into_iter().chain(self.trained.restore(updates, moments).err()).collect()
    }
}
