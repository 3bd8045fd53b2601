//! The plan of a run: its configuration, resolved for its algorithm, model and processes. Each part of a run gets the sections that it
//! needs, and none changes them.

use super::Error;
use super::flow::{Flow, MetricsPlan};
use super::pass_metrics::PassMetrics;
use super::periods::Periods;
use super::phase::Phase;
use crate::config::{
    AgentEntry, BatchSizes, LrShape, OldLogpSource, PlateauArgs, ReduceDtype, RolloutDtype, RolloutLogMode, RolloutSync,
    RunConfig,
};
use crate::rollout::Sampler;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// All sections of a run's plan.
#[derive(Clone)]
pub(super) struct RunPlan {
    pub batching: Rc<Batching>,
    pub rollout: Rc<RolloutPlan>,
    pub learner: LearnerPlan,
    pub reference: ReferencePlan,
    pub evaluation: EvaluationPlan,
    /// Number of the last step.
    pub max_steps: u64,
    pub periods: Periods,
    /// Whether the first step is logged, regardless of the period.
    pub logs_first_step: bool,
    /// Whether the policy equals the reference model until the first update.
    pub begins_as_reference: bool,
}

/// The steps of a run, and the periods of its regular actions.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPlan {
    /// Number of the last step.
    pub max_steps: u64,
    pub periods: Periods,
}

impl RunPlan {
    /// Resolves a complete configuration, for a run with this `flow` and these metrics, and a model with this context length.
    pub(super) fn new(
        config: &RunConfig,
        (flow, metrics): (Flow, &MetricsPlan),
        batching: Batching,
        steps: StepPlan,
        context: usize,
    ) -> Self {
        let temperature = flow.temperature(config);
        Self {
            rollout: Rc::new(RolloutPlan::new(config, temperature)),
            learner: LearnerPlan::new(config, &batching, temperature, metrics.of_pass),
            reference: ReferencePlan::new(config),
            evaluation: EvaluationPlan::new(config, metrics, context),
            max_steps: steps.max_steps,
            periods: steps.periods,
            logs_first_step: config.logging_first_step,
            begins_as_reference: config.begins_as_reference(),
            batching: Rc::new(batching),
        }
    }
}

/// How rows of a dataset, and completions of its prompts, become micro-batches and steps.
#[derive(Clone, Debug)]
pub(super) struct Batching {
    /// Sizes over all processes.
    pub sizes: BatchSizes,
    /// Whether an item of a batch is a pair of sequences.
    pub items_are_pairs: bool,
    /// Number of rows that pass through a model together in one process.
    pub rows: usize,
    /// Maximum number of tokens that pass through a model together in one process, if limited.
    pub max_tokens: Option<usize>,
    /// Number of micro-batches per update.
    pub accumulation: usize,
    pub passes: Passes,
    /// Completions that the policy generates per prompt; none if the dataset has the completions.
    pub groups: Option<GroupSizes>,
    pub epoch: EpochPlan,
    pub evaluated: EvaluatedRows,
    /// Filter that replaces prompts whose completions all have the same reward.
    pub filter: Option<GroupFilter>,
    /// Seed for the order of prompts.
    pub seed: u64,
}

/// How often a generation, or what is collected at once from a dataset, is trained on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passes {
    /// Number of passes over a generation.
    pub iterations: usize,
    /// Number of micro-batches per pass.
    pub micro_batches: usize,
    /// Whether each pass splits a generation differently.
    pub reshuffles: bool,
}

/// Number of completions per prompt, and their length.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupSizes {
    pub train: usize,
    pub eval: usize,
    /// Maximum number of tokens of a completion.
    pub length: usize,
}

/// The order of rows in an epoch, and the treatment of rows that don't fill a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochPlan {
    /// Whether rows are in random order.
    pub shuffles: bool,
    /// Whether rows at the end of an epoch are dropped if they don't fill a batch. As in TRL, generations of single completions are always
    /// complete; Online DPO uses a partial one, unless several passes or filters need complete generations.
    pub drops_rest: bool,
    /// Whether an epoch's number of steps depends on which prompts are filtered out.
    pub filters_prompts: bool,
}

/// Rows that an evaluation uses, and how many at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvaluatedRows {
    /// Whether rows that don't fill a batch are dropped.
    drops_rest: bool,
    /// Whether those rows are still collected and dropped afterwards, since mismatched completions come from all rows.
    pub collects_rest: bool,
    /// Number of items that are collected together.
    items_together: usize,
}

/// Filter of groups: some are replaced by those of other prompts.
#[derive(Clone, Debug)]
pub(super) struct GroupFilter {
    /// Reward whose scores must differ; by default, the weighted sum.
    pub reward: Option<String>,
    /// Maximum number of generations for one batch.
    pub most: u64,
}

impl Batching {
    /// Resolves the batches of a run with this many processes.
    pub(super) fn new(config: &RunConfig, flow: Flow, ranks: usize) -> Self {
        let Flow { generates, has_pairs, has_labels, .. } = flow;
        let sizes = config.batches(ranks);
        let several = config.num_iterations > 1 || config.num_mini_batches.is_some() || config.filters_prompts();
        let filter = GroupFilter { reward: config.filter_groups_metric.clone(), most: config.max_num_gen_batches };
        let groups =
            GroupSizes { train: config.group_size(), eval: config.eval_group_size(), length: config.max_completion_length };
        // Labelled rows are used in the dataset's order, and evaluated in batches of training's size, as in TRL.
        let of_evaluations = if has_labels { sizes.micro_batch } else { sizes.eval_micro_batch };
        let in_generations = generates && config.per_device_eval_batch_size.is_none();
        Self {
            sizes,
            items_are_pairs: has_pairs,
            rows: config.per_device_train_batch_size,
            max_tokens: config.max_tokens_per_microbatch,
            accumulation: config.gradient_accumulation_steps,
            passes: Passes {
                iterations: if generates { config.num_iterations } else { 1 },
                micro_batches: if generates { sizes.micro_batches_per_pass } else { 1 },
                reshuffles: config.num_mini_batches.is_some(),
            },
            groups: generates.then_some(groups),
            epoch: EpochPlan {
                shuffles: config.shuffle_dataset.unwrap_or(!has_labels),
                drops_rest: config.dataloader_drop_last || generates && (!has_pairs || several),
                filters_prompts: config.filters_prompts(),
            },
            evaluated: EvaluatedRows {
                drops_rest: config.dataloader_drop_last,
                collects_rest: !generates,
                items_together: if in_generations { sizes.completions_per_generation() } else { of_evaluations },
            },
            filter: config.filter_groups.then_some(filter),
            seed: config.shuffle_seed(),
        }
    }

    /// Returns the number of completions per prompt; 1 if the dataset has them.
    pub(super) fn group(&self, phase: Phase) -> usize {
        self.groups.map_or(1, |groups| if phase == Phase::Eval { groups.eval } else { groups.train })
    }

    /// Returns the number of prompts of this many items: completions or, if items are pairs, one per prompt.
    fn prompts_of(&self, items: usize, phase: Phase) -> usize {
        if self.items_are_pairs { items } else { items / self.group(phase) }
    }

    /// Returns the number of rows that are drawn from the dataset at a time: for a generation, or for a micro-batch.
    pub(super) fn rows_drawn(&self) -> usize {
        match self.groups {
            Some(_) => self.prompts_of(self.sizes.completions_per_generation(), Phase::Train),
            None => self.sizes.micro_batch,
        }
    }

    /// Returns the error for a dataset with fewer usable rows than are drawn at a time.
    pub(super) fn too_few(&self, usable: usize) -> Error {
        let drawn = self.rows_drawn();
        match self.groups {
            Some(_) => Error::TooFewPrompts { prompts: usable, generation: drawn },
            None => {
                let detail = format!("leaves nothing: the dataset has {usable} rows, but a batch takes {drawn}");
                Error::setting("dataloader_drop_last", detail)
            }
        }
    }

    /// Returns the number of micro-batches that train on one generation, over all passes.
    pub(super) fn micro_batches_per_generation(&self) -> usize {
        self.passes.micro_batches * self.passes.iterations
    }

    /// Returns the number of updates that learn from a generation.
    pub(super) fn updates_per_generation(&self) -> usize {
        (self.micro_batches_per_generation() / self.accumulation).max(1)
    }

    /// Returns the number of evaluated prompts that are collected together. Mismatched completions come from batches of training's size, as
    /// in TRL.
    pub(super) fn prompts_evaluated_together(&self) -> usize {
        self.prompts_of(self.evaluated.items_together, Phase::Eval).max(1)
    }

    /// Returns how many of `rows` an evaluation uses: all or, as in transformers, those that fill batches, if there are any.
    pub(super) fn evaluated(&self, rows: usize) -> usize {
        let batch = self.prompts_of(self.sizes.eval_micro_batch, Phase::Eval).max(1);
        if self.evaluated.drops_rest && rows >= batch { rows - rows % batch } else { rows }
    }
}

/// How completions are generated.
#[derive(Clone, Debug)]
pub(super) struct RolloutPlan {
    pub sampling: SamplingPlan,
    /// Precision of generation in training.
    pub dtype: RolloutDtype,
    pub max_completion_length: usize,
    pub max_num_seqs: usize,
    /// Texts that end a completion.
    pub stop: Vec<String>,
    /// Whether completions are episodes with an environment.
    pub has_environment: bool,
    /// Servers that generate completions instead of this process.
    pub servers: Option<ServerPlan>,
    /// Agents that play the episodes, if any do.
    pub agents: Vec<AgentEntry>,
    /// Logging and replay of rollouts.
    pub logs: LogPlan,
    pub episode_limits: EpisodeLimits,
    pub seed: u64,
    pub off_policy: OffPolicyPlan,
}

/// How far the policy that learns from completions may be from the one that wrote them.
#[derive(Clone, Copy, Debug)]
pub(super) struct OffPolicyPlan {
    /// Share of prompts whose completions the policy writes in training, if the others' are the dataset's.
    pub own_share: Option<f64>,
    /// Maximum number of updates by which the policy may be ahead of a completion.
    pub max_staleness: u64,
    /// Whether log-probabilities for later updates come from a training pass instead of sampling.
    pub recomputes_old_logp: bool,
}

/// Logging and replay of rollouts.
#[derive(Clone, Debug)]
pub(super) struct LogPlan {
    /// Selects the generations that are logged.
    pub logged: RolloutLogMode,
    /// Folder of the run whose logged completions are trained on.
    pub replayed: Option<PathBuf>,
}

/// Limits of an episode.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpisodeLimits {
    pub turns: usize,
    pub tokens: usize,
}

/// The inference servers that generate completions.
#[derive(Clone, Debug)]
pub(super) struct ServerPlan {
    /// Base URLs of the servers.
    pub urls: Vec<String>,
    /// Method by which servers get weights, if configured.
    pub sync: Option<RolloutSync>,
    /// Folder through which servers get weights.
    pub folder: SyncFolder,
    /// Time limit for an answer, and for waiting for a server.
    pub timeout: Duration,
}

/// A folder through which servers get weights.
#[derive(Clone, Debug)]
pub(super) struct SyncFolder {
    pub path: PathBuf,
    /// Whether it is inside the run's folder, so that no other run uses it.
    pub is_own: bool,
}

impl SyncFolder {
    fn new(config: &RunConfig) -> Self {
        match &config.rollout_sync_dir {
            Some(given) => Self { path: PathBuf::from(given), is_own: false },
            None => {
                let run = Path::new(config.output_dir.as_deref().unwrap_or("."));
                Self { path: run.join("rollout_sync"), is_own: true }
            }
        }
    }
}

impl ServerPlan {
    fn new(config: &RunConfig) -> Option<Self> {
        (!config.rollout_server.is_empty() && config.replay_rollouts.is_none()).then(|| Self {
            urls: config.rollout_server.clone(),
            sync: config.rollout_sync,
            folder: SyncFolder::new(config),
            timeout: config.rollout_timeout(),
        })
    }
}

/// Parameters of sampling.
#[derive(Clone, Copy, Debug)]
pub(super) struct SamplingPlan {
    pub train: Sampler,
    pub eval: Sampler,
    /// Divisor of logits in recorded log-probabilities: that of training.
    pub logp_temperature: f32,
    /// Whether log-probabilities are normalised over the tokens that could be sampled.
    pub scores_support: bool,
}

impl SamplingPlan {
    fn new(config: &RunConfig, logp_temperature: f32) -> Self {
        let train = Sampler {
            temperature: config.temperature as f32,
            top_p: config.top_p as f32,
            top_k: config.top_k,
            min_p: config.min_p.unwrap_or(0.0) as f32,
            repetition_penalty: config.repetition_penalty as f32,
        };
        let eval = Sampler {
            temperature: config.eval_temperature.unwrap_or(config.temperature) as f32,
            top_p: config.eval_top_p.unwrap_or(config.top_p) as f32,
            top_k: config.eval_top_k.unwrap_or(config.top_k),
            min_p: config.eval_min_p.or(config.min_p).unwrap_or(0.0) as f32,
            ..train
        };
        let scores_support = config.score_sampling_support == Some(true);
        Self { train, eval, logp_temperature, scores_support }
    }
}

impl RolloutPlan {
    /// Returns whether completions are episodes.
    pub(super) fn has_episodes(&self) -> bool {
        self.has_environment || !self.agents.is_empty()
    }

    /// Returns whether inference servers sample from the distribution that training computes, with the weights that are trained.
    pub(super) fn compares_with_servers(&self) -> bool {
        let Sampler { top_p, top_k, min_p, repetition_penalty, .. } = self.sampling.train;
        let samples_all = top_p == 1.0 && top_k == 0 && min_p == 0.0 && repetition_penalty == 1.0;
        self.servers.is_some() && samples_all && self.off_policy.max_staleness == 0
    }

    /// Returns whether external drivers play the episodes.
    pub(super) fn is_played_elsewhere(&self) -> bool {
        self.agents.iter().any(|agent| agent.listen.is_some())
    }

    fn new(config: &RunConfig, logp_temperature: f32) -> Self {
        Self {
            sampling: SamplingPlan::new(config, logp_temperature),
            dtype: config.rollout_dtype,
            max_completion_length: config.max_completion_length,
            max_num_seqs: config.max_num_seqs,
            stop: config.stop.clone(),
            has_environment: !config.environment.is_empty(),
            servers: ServerPlan::new(config),
            agents: config.agent.clone(),
            logs: LogPlan { logged: config.rollout_log(), replayed: config.replay_rollouts.as_ref().map(PathBuf::from) },
            episode_limits: EpisodeLimits { turns: config.max_turns, tokens: config.max_episode_tokens.unwrap_or(usize::MAX) },
            seed: config.seed,
            off_policy: OffPolicyPlan {
                own_share: config.mixes_completions().then_some(config.lmbda),
                // A replay writes nothing.
                max_staleness: if config.replay_rollouts.is_none() { config.max_staleness } else { 0 },
                recomputes_old_logp: config.old_logp == Some(OldLogpSource::Recompute),
            },
        }
    }
}

/// How the learner computes a micro-batch's loss and exchanges gradients.
#[derive(Clone, Copy, Debug)]
pub(super) struct LearnerPlan {
    /// Divisor of logits.
    pub temperature: f32,
    /// Metrics of a pass that the host computes.
    pub metrics: PassMetrics,
    pub label_smoothing: f64,
    /// Coefficient of the auxiliary loss of experts' routers; by default, the model's own.
    pub router_aux_loss_coef: Option<f64>,
    /// Maximum length of a generated completion.
    pub max_completion_length: usize,
    /// Whether training's log-probabilities can differ from those of sampling.
    pub differs_from_sampling: bool,
    /// Precision in which ranks exchange gradients.
    pub reduce_dtype: ReduceDtype,
    /// Whether ranks exchange gradients during the backward pass.
    pub overlaps_reduction: bool,
    pub seed: u64,
}

impl LearnerPlan {
    fn new(config: &RunConfig, batching: &Batching, temperature: f32, metrics: PassMetrics) -> Self {
        let recomputes = config.old_logp == Some(OldLogpSource::Recompute);
        Self {
            temperature,
            metrics,
            label_smoothing: config.label_smoothing_factor,
            router_aux_loss_coef: config.router_aux_loss_coef,
            max_completion_length: config.max_completion_length,
            differs_from_sampling: recomputes || batching.sizes.trains_later || config.rollout_dtype != RolloutDtype::Auto,
            reduce_dtype: config.reduce_dtype,
            overlaps_reduction: config.overlap_comm,
            seed: config.seed,
        }
    }
}

/// Plan of the reference model.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReferencePlan {
    /// Whether the reference model's log-probabilities are precomputed.
    pub precomputes: bool,
    pub sync: Option<ReferenceSync>,
}

/// How the reference model follows the policy (TRL's `SyncRefModelCallback`).
#[derive(Clone, Copy, Debug)]
pub(super) struct ReferenceSync {
    /// Number of steps between updates.
    pub steps: u64,
    /// Weight of the policy in an update of the reference model.
    pub alpha: f64,
}

impl ReferencePlan {
    fn new(config: &RunConfig) -> Self {
        let sync = ReferenceSync { steps: config.ref_model_sync_steps, alpha: config.ref_model_mixup_alpha };
        Self { precomputes: config.precompute_ref_log_probs, sync: config.sync_ref_model.then_some(sync) }
    }
}

/// What evaluations compute, and how the run uses the results.
#[derive(Clone, Debug)]
pub(super) struct EvaluationPlan {
    /// Whether there is an evaluation before the first step.
    pub on_start: bool,
    /// Whether comparing evaluations requires scores of a reward.
    pub needs_scores: bool,
    /// Length of the sequences that rows are packed into, if they are packed.
    pub packs_into: Option<usize>,
    /// Criterion by which completions solve their prompts.
    pub solved: Option<SolvedPlan>,
    /// Metric that schedules and early stopping follow, without its prefix, and whether a greater value is better.
    pub metric: (String, bool),
    /// Settings of a schedule that reduces the learning rate by evaluations.
    pub plateau: Option<PlateauArgs>,
    pub early_stopping: Option<EarlyStopping>,
}

/// Criterion by which a completion of an evaluation solves its prompt.
#[derive(Clone, Debug)]
pub(super) struct SolvedPlan {
    /// Minimum reward of a completion that counts as solved.
    pub threshold: f64,
    /// Name of that reward; by default, the first.
    pub reward: Option<String>,
    /// Text after which the answer begins.
    pub answer_after: Option<String>,
    /// Numbers of completions for which pass@k is computed.
    pub k: Vec<usize>,
}

/// When a run ends because its evaluations have stopped improving.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyStopping {
    /// Number of consecutive evaluations without an improvement.
    pub patience: u64,
    /// Minimum improvement over the best value.
    pub threshold: f64,
}

impl EvaluationPlan {
    pub(super) fn new(config: &RunConfig, metrics: &MetricsPlan, context: usize) -> Self {
        let (metric, greater) = config.best_model_metric().unwrap_or(metrics.usual);
        let solved = config.eval_pass_threshold.map(|threshold| SolvedPlan {
            threshold,
            reward: config.eval_pass_reward.clone(),
            answer_after: config.eval_answer_after.clone(),
            k: config.pass_k(),
        });
        let threshold = config.early_stopping_threshold;
        Self {
            on_start: config.eval_on_start,
            needs_scores: metrics.of_scores,
            packs_into: config.packs_evaluations().then(|| config.max_text_length(context)),
            solved,
            metric: (metric.trim_start_matches("eval_").to_owned(), greater),
            plateau: match config.lr_shape() {
                Ok(LrShape::ReduceLrOnPlateau(settings)) => Some(settings),
                _ => None,
            },
            early_stopping: config.early_stopping_patience.map(|patience| EarlyStopping { patience, threshold }),
        }
    }
}
