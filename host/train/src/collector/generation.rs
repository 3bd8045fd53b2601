//! Makes one generation: rollouts, their rewards, and the algorithm's advantages or pairs.

use super::episodes;
use super::source::{PolicyVersion, RolloutBatch, RolloutRequest};
use super::{CollectionContext, Collector};
use crate::activity::{Activity, ProgressTask};
use crate::config::RolloutDtype;
use crate::dataset::Prompt;
use crate::diagnosis::{self, RewardContributions, WeightedScores};
use crate::episode::EpisodeOutcome;
use crate::experience::{Experience, RewardScoreColumn};
use crate::learner::Learner;
use crate::metrics::{Metric, MetricReduction};
use crate::ops::dropout::mixed_bits;
use crate::packed_completions::PackedCompletions;
use crate::phase::Phase;
use crate::plan::RolloutPlan;
use crate::plugin::columns::{FINISHED, OLD_LOGP, OLD_VALUE, REF_LOGP, TURN_REWARD};
use crate::plugin::{
    self, Assessment, Batch, Column, NeededInputs, RewardBatch, Scale, ScoredGeneration, TextColumn, Unit, WeightedReward,
};
use crate::plugins::{BatchScores, Partner, RunEnvironments, ScoringBatch, ScoringEpisode, batch, from_plugin};
use crate::policy_progress::PolicyProgress;
use crate::reward_failure::RewardFailure;
use crate::rollout::Rollout;
use crate::run::RunEvent;
use crate::step_metrics::{StepMetrics, StepWork};
use crate::{Error, Result};
use candle_core::DType;
use serde_json::json;
use std::ops::Range;
use std::sync::Arc;

/// Number of consecutive generations without a score and without errors after which a run ends.
const MOST_UNSCORED: u64 = 16;

/// Maximum number of consecutive generations in which all episodes of programs failed, once a step has been taken.
const MOST_FAILED: u64 = 3;

/// Why nothing has a score where agents play and none has failed.
const UNREPORTED: &str = "no agent reported a reward, which the last line that it prints is, as in {\"reward\": 0.5}";

/// Distinguishes the seeds of estimates from those of losses and dropout.
const ESTIMATE_SEEDS: u64 = 0x6573_7469;

/// Columns with an episode's conversation and with the rewards of its turns.
const EPISODE_COLUMNS: [&str; 2] = ["messages", "turn_rewards"];

/// Completions of prompts, in the order of the prompts.
struct GeneratedCompletions {
    rollouts: Vec<Rollout>,
    texts: Vec<String>,
    /// Outcomes of the episodes; empty without an environment.
    episodes: Vec<EpisodeOutcome>,
    /// Whether another process, or an earlier run, computed them.
    elsewhere: bool,
}

impl Collector {
    /// Generates completions and scores them.
    pub(crate) fn roll_out_and_score(
        &mut self,
        prompts: Vec<Arc<Prompt>>,
        generation: u64,
        with: &mut CollectionContext<'_>,
    ) -> Result<(Experience, StepMetrics)> {
        let mut figures = StepMetrics::start();
        let own = self.world.share(prompts.len());
        let GeneratedCompletions { rollouts, texts, episodes, elsewhere } =
            self.roll_out(with, &prompts, own.clone(), generation, &mut figures)?;
        figures.lap("rollout");
        figures.add_work(if elsewhere { written(&rollouts) } else { self.work(with, &prompts, own, &rollouts) });

        let mut experience = Experience::new(prompts, rollouts);
        (experience.texts, experience.episodes) = (texts, episodes);
        figures.merge(self.score(&mut experience, with)?);
        if with.phase == Phase::Train {
            self.data.note_rewards(&experience);
        }
        figures.add(self.world.once(length_metrics(&experience.rollouts, &experience.episodes)));
        figures.add(self.world.once(episodes::metrics(&experience.episodes, &experience.rollouts)));
        Ok((experience, figures))
    }

    /// Computes the other columns that the algorithm needs for scored completions.
    pub(super) fn compute_columns(&self, experience: &mut Experience, with: &mut CollectionContext<'_>) -> Result<StepMetrics> {
        let mut figures = self.write_teacher_prompts(experience, with)?;
        if let Some(reference) = self.reference_logp(experience)? {
            experience.columns.set_per_token(REF_LOGP, Some(reference));
            figures.lap("reference");
        }
        if self.add_teacher_scores(experience, with)? {
            figures.lap("teacher");
        }
        figures.merge(self.recompute(experience, with)?);
        if let Some(values) = self.values(with.learner, experience)? {
            experience.columns.set_per_token(OLD_VALUE, Some(values));
            figures.lap("values");
        }
        Ok(figures)
    }

    /// Lets the algorithm estimate advantages of generated completions, or choose pairs among them.
    pub(super) fn estimate_advantages(
        &self,
        experience: &mut Experience,
        with: &mut CollectionContext<'_>,
    ) -> Result<StepMetrics> {
        let mut figures = StepMetrics::start();
        let columns = experience.rewards.iter().chain(&experience.eval_rewards);
        figures.add(self.world.once(columns.flat_map(reward_metrics)));
        let needs = with.plugins.needs();
        let mut seen = generation_seen(experience, needs, with.at, &self.rollout);
        if needs.has(TURN_REWARD) {
            episodes::add_turns(&mut seen, experience, &with.plugins.partners());
        }
        let (assessment, metrics) = with.plugins.assess(seen)?;
        match assessment {
            Assessment::Pairs(pairs) => {
                let rows = pairs.iter().map(|pair| (pair.chosen as usize, pair.rejected as usize));
                experience.pairs = Some(rows.collect());
            }
            Assessment::Columns { columns, mask } => {
                experience.mask = mask;
                columns.into_iter().for_each(|column| experience.columns.set(column));
            }
        }
        figures.add(self.world.once(metrics));
        if with.phase == Phase::Train {
            figures.add(self.world.once(group_metrics(experience)));
        }
        figures.lap("advantage");
        Ok(figures)
    }

    /// Returns the request for completions of prompts, without environments.
    pub(super) fn request<'a>(&self, prompts: &'a [Arc<Prompt>], generation: u64, phase: Phase) -> RolloutRequest<'a> {
        RolloutRequest {
            prompts,
            samples: self.batching.group(phase),
            sampling: self.turns.sampling(phase),
            logp_temperature: self.temperature(),
            generation,
            phase,
            environments: RunEnvironments::default(),
            keeps_prompt_pass: false,
            ended: None,
        }
    }

    /// Generates completions of all prompts; this rank generates those of its `own`.
    fn roll_out(
        &mut self,
        with: &mut CollectionContext<'_>,
        prompts: &[Arc<Prompt>],
        own: Range<usize>,
        generation: u64,
        figures: &mut StepMetrics,
    ) -> Result<GeneratedCompletions> {
        let request = RolloutRequest {
            environments: with.plugins.environments(),
            keeps_prompt_pass: self.trains_at_once(prompts.len(), with.phase),
            ..self.request(&prompts[own.clone()], generation, with.phase)
        };
        let policy = PolicyVersion { policy: with.learner.policy(), version: with.at.step };
        let RolloutBatch { mut rollouts, episodes, metrics, warnings, elsewhere } = self.source.roll_out(&request, policy)?;
        for text in &warnings {
            with.journal.event(&RunEvent::Warning { text })?;
        }
        figures.add(from_plugin(metrics));
        rollouts.iter_mut().for_each(|rollout| rollout.prompt += own.start);
        let texts = rollouts.iter().map(|rollout| self.turns.text(rollout)).collect::<Result<Vec<String>>>()?;
        let completions = rollouts.into_iter().zip(texts).collect();
        let (rollouts, texts) = self.world.concat("completions", completions)?.into_iter().unzip();
        if !self.rollout.has_episodes() {
            return Ok(GeneratedCompletions { rollouts, texts, episodes, elsewhere });
        }
        let all = self.world.concat("episodes", episodes)?;
        let rolled_out = GeneratedCompletions { rollouts, texts, episodes: all, elsewhere };
        episodes::fatal(&rolled_out.episodes, &with.plugins.partners()).map_or(Ok(rolled_out), Err)
    }

    /// Scores all completions and reports errors.
    fn score(&mut self, e: &mut Experience, with: &mut CollectionContext<'_>) -> Result<StepMetrics> {
        let step = with.at.step;
        let mut batch = batch(step, &e.prompts, &self.data.columns_with(&e.prompts), &e.rollouts, &e.texts);
        by_episode(&mut batch, &e.episodes);
        let scored = with.plugins.score(judged(batch, e, with.plugins.has_models()), with.phase);
        let scored = scored.or_else(|error| {
            if let Some(name) = error.plugin_at_fault() {
                with.journal.keep_failed(e, with.plugins.failed_rows(name), &error.to_string(), step)?;
            }
            Err(error)
        })?;
        let BatchScores { mut columns, for_evaluation, extra, mut failures, mut figures } = scored;
        for (place, Partner { name, weight, .. }) in with.plugins.partners().into_iter().enumerate() {
            let reward = |episode: &EpisodeOutcome| episode.reward().filter(|_| episode.environment == place);
            let values = e.episodes.iter().map(reward).collect();
            failures.extend(failures_of(&e.episodes, place, &name));
            columns.push(RewardScoreColumn { name, weight, values });
        }
        // The row of a failed episode gets no score, even from other rewards.
        for (row, _) in e.episodes.iter().enumerate().filter(|(_, episode)| episode.failed.is_some()) {
            columns.iter_mut().for_each(|column| column.values[row] = None);
        }
        for failure in &failures {
            with.journal.reward_failed(step, failure)?;
            let rows: Vec<usize> = failure.failed.iter().map(|(row, _)| *row).filter(|row| *row < e.rollouts.len()).collect();
            if !rows.is_empty() {
                with.journal.keep_failed(e, &rows, &failure.error, step)?;
            }
        }
        let has_rewards = !(columns.is_empty() && for_evaluation.is_empty());
        let scorable = !has_rewards || (0..e.rollouts.len()).any(|row| columns.iter().any(|r| r.values[row].is_some()));
        self.count_unscored(with, scorable, &failures)?;
        (e.rewards, e.eval_rewards, e.extra) = (columns, for_evaluation, extra);
        figures.lap("reward");
        Ok(figures)
    }

    /// Returns how many generations in a row may have failures and nothing else. Programs of agents fail for a row's sake, so some may;
    /// where nothing has ever been scored, or no driver is there, and where rewards fail, the next generation would fail, too.
    fn most_failed(&self, with: &CollectionContext<'_>) -> u64 {
        let has_programs = !self.rollout.agents.is_empty() && !self.rollout.is_played_elsewhere();
        match with.phase {
            Phase::Eval if has_programs => u64::MAX,
            _ if has_programs && with.at.step > 0 => MOST_FAILED,
            _ => 1,
        }
    }

    /// Counts consecutive generations in which nothing could be scored.
    ///
    /// # Errors
    /// If there are too many, or rewards failed.
    fn count_unscored(&mut self, with: &CollectionContext<'_>, scorable: bool, failures: &[RewardFailure]) -> Result<()> {
        let step = with.at.step;
        // A small generation may have only rows that no reward scores, and the next one others; many in a row are a mistake. Evaluations
        // in between don't count.
        let is_training = with.phase != Phase::Eval;
        let in_a_row = if scorable { 0 } else { 1 + if is_training { self.counters.unscored } else { 0 } };
        if is_training {
            self.counters.unscored = in_a_row;
        }
        if scorable {
            return Ok(());
        }
        let most = if failures.is_empty() { MOST_UNSCORED } else { self.most_failed(with) };
        let unreported = Some(UNREPORTED).filter(|_| failures.is_empty() && !self.rollout.agents.is_empty());
        if in_a_row >= most {
            let reason = failures.iter().find_map(|failure| failure.failed.first()).map(|(_, error)| error.clone());
            return Err(Error::Unscored { step, generations: most, reason: reason.or(unreported.map(str::to_owned)) });
        }
        if in_a_row == 1 && is_training {
            let why = unreported.map(|why| format!(": {why}")).unwrap_or_default();
            tracing::warn!(
                "no reward could score any completion of the generation of step {}{why}; {most} in a row end the run",
                step + 1
            );
        }
        Ok(())
    }

    /// Computes the policy's log-probabilities with a training forward pass, if they are needed and useful: in later updates, or for a
    /// divergence from the reference model.
    fn recompute(&self, e: &mut Experience, with: &CollectionContext<'_>) -> Result<StepMetrics> {
        let mut figures = StepMetrics::start();
        let is_stale = e.rollouts.iter().any(|rollout| rollout.policy_version != with.at.step);
        let is_used = self.batching.sizes.trains_later || is_stale || e.columns.get(REF_LOGP).is_some();
        if !self.rollout.off_policy.recomputes_old_logp || !is_used || with.phase == Phase::Eval {
            return Ok(figures);
        }
        let policy = with.learner.policy().frozen();
        let score = |packed: &PackedCompletions| Ok(policy.score(&packed.forest, &packed.selected, self.temperature())?.logp);
        let recomputed = self.column(e, score)?;
        e.columns.set_per_token(OLD_LOGP, Some(recomputed));
        figures.lap("old_logp");
        Ok(figures)
    }

    /// Computes the critic's values of the states in which the tokens were chosen, if there is a critic.
    fn values(&self, learner: &Learner, experience: &Experience) -> Result<Option<Vec<f32>>> {
        if !learner.has_critic() {
            return Ok(None);
        }
        let _task = ProgressTask::new(Activity::ComputingValues);
        let own = learner.values(experience, self.own_parts(experience))?;
        Ok(Some(self.world.concat("values", own)?))
    }

    /// Returns the work of a generation; this process handled its `own` prompts.
    fn work(&self, with: &CollectionContext<'_>, prompts: &[Arc<Prompt>], own: Range<usize>, rollouts: &[Rollout]) -> StepWork {
        let mut asked: Vec<(&[u32], Vec<usize>)> =
            prompts[own.clone()].iter().map(|prompt| (&prompt.tokens[..], Vec::new())).collect();
        for rollout in rollouts {
            if let Some((_, lengths)) = rollout.prompt.checked_sub(own.start).and_then(|i| asked.get_mut(i)) {
                lengths.push(rollout.tokens.len());
            }
        }
        let policy = with.learner.policy();
        let (model, a, most) = (policy.compute_weights(), policy.architecture(), self.rollout.max_num_seqs);
        let bits = match (self.rollout.dtype, policy.computes_in()) {
            (RolloutDtype::Int8, _) if with.phase == Phase::Train => 8,
            (RolloutDtype::Bfloat16, _) if with.phase == Phase::Train => 16,
            (_, DType::BF16) => 16,
            _ => 32,
        };
        let (generation, caches) =
            (model.generation_cost(a, &asked, most, bits), model.peak_cache_bytes(a, &asked, most, bits) as usize);
        StepWork { generation, caches, ..written(rollouts) }
    }
}

/// Returns the number of sampled tokens as work, without what computing them cost.
fn written(rollouts: &[Rollout]) -> StepWork {
    StepWork { generated: rollouts.iter().map(|rollout| rollout.sampled() as u64).sum(), ..StepWork::default() }
}

/// Adds the inputs of reward models, if there are any, to a batch.
fn judged(batch: RewardBatch, e: &Experience, has_models: bool) -> ScoringBatch {
    let told = |(row, episode): (usize, &EpisodeOutcome)| {
        Arc::new(ScoringEpisode { episode: episode.clone(), opening: e.prompt_of(row).to_vec() })
    };
    let prompts = match e.episodes.is_empty() {
        true => e.prompts.clone(),
        false => e.rollouts.iter().map(|rollout| e.prompts[rollout.prompt].clone()).collect(),
    };
    // Conversations are long; plugins read them from a column.
    let episodes = if has_models { e.episodes.iter().enumerate().map(told).collect() } else { Vec::new() };
    ScoringBatch { batch, prompts, episodes }
}

/// Gives each episode its own prompt in a batch, with columns of the conversation and of the turns' rewards.
fn by_episode(batch: &mut RewardBatch, episodes: &[EpisodeOutcome]) {
    if episodes.is_empty() {
        return;
    }
    for column in &mut batch.columns {
        column.values = batch.prompt_of.iter().map(|&prompt| column.values[prompt as usize].clone()).collect();
    }
    batch.columns.retain(|column| !EPISODE_COLUMNS.contains(&column.name.as_str()));
    let messages = episodes.iter().map(|episode| episode.messages.clone()).collect();
    let rewards = episodes.iter().map(|episode| json!(episode.rewards).to_string()).collect();
    for (name, values) in EPISODE_COLUMNS.into_iter().zip([messages, rewards]) {
        batch.columns.push(TextColumn { name: name.to_owned(), values });
    }
    batch.prompts = episodes.iter().map(|episode| episode.prompt.clone()).collect();
    batch.prompt_of = (0..episodes.len() as u32).collect();
}

/// Returns the failures of an environment's or agent's episodes, one report per reason.
fn failures_of(episodes: &[EpisodeOutcome], environment: usize, name: &str) -> Vec<RewardFailure> {
    let mut all: Vec<RewardFailure> = Vec::new();
    for (row, episode) in episodes.iter().enumerate().filter(|(_, episode)| episode.environment == environment) {
        let Some(error) = episode.failed.clone() else { continue };
        match all.iter_mut().find(|failure| failure.error == error) {
            Some(failure) => failure.failed.push((row, error)),
            None => all.push(RewardFailure { name: name.to_owned(), error: error.clone(), failed: vec![(row, error)] }),
        }
    }
    all
}

/// Returns a generation as algorithms see it, with the columns that they need. While the policy still equals the reference, both get
/// bit-identical log-probabilities: generation and the reference's forward pass differ by rounding, which a divergence in the reward would
/// turn into advantages.
fn generation_seen(e: &Experience, needs: &NeededInputs, at: PolicyProgress, plan: &RolloutPlan) -> ScoredGeneration {
    let rows = e.rollouts.len();
    let column = |name: &str| match name {
        OLD_LOGP => Some(Column::new(name, Unit::Token, e.old_logp().to_vec())),
        REF_LOGP if at.is_reference => e.columns.get(name).map(|_| Column::new(name, Unit::Token, e.old_logp().to_vec())),
        FINISHED => {
            let finished = e.rollouts.iter().map(|rollout| f32::from(u8::from(rollout.finished)));
            Some(Column::new(name, Unit::Sequence, finished.collect()))
        }
        _ => e.columns.get(name).cloned(),
    };
    let mut columns: Vec<Column> = needs.names().filter_map(column).collect();
    let scores = |reward: &RewardScoreColumn| {
        Column::sparse(plugin::columns::reward(&reward.name), Unit::Sequence, reward.values.iter().copied())
    };
    columns.extend(e.rewards.iter().map(scores));
    let first_of_prompt = |row: &usize| *row == 0 || *row == rows || e.rollouts[*row].prompt != e.rollouts[row - 1].prompt;
    let mask: Vec<u8> = e.rollouts.iter().flat_map(Rollout::mask).collect();
    let scale = Scale {
        items: rows as u32,
        tokens: mask.iter().filter(|counts| **counts == 1).count() as u64,
        prompt_tokens: 0,
        max_completion_length: plan.max_completion_length as u32,
    };
    let batch = Batch {
        step: at.step,
        seed: mixed_bits(plan.seed ^ mixed_bits(at.step ^ ESTIMATE_SEEDS)),
        groups: (0..=rows).filter(first_of_prompt).map(|row| row as u32).collect(),
        tokens: e.offsets.clone(),
        prompt_tokens: Vec::new(),
        turns: Vec::new(),
        mask,
        columns,
        scale,
    };
    let weighted = |reward: &RewardScoreColumn| WeightedReward { name: reward.name.clone(), weight: reward.weight };
    ScoredGeneration { batch, rewards: e.rewards.iter().map(weighted).collect() }
}

/// Returns `rewards/<name>/mean` and `/std` (n - 1) over the scorable completions.
fn reward_metrics(RewardScoreColumn { name, values, .. }: &RewardScoreColumn) -> Vec<Metric> {
    let scored: Vec<f64> = values.iter().flatten().map(|&r| f64::from(r)).collect();
    let n = scored.len() as f64;
    if scored.is_empty() {
        return Vec::new();
    }
    let mean = scored.iter().sum::<f64>() / n;
    let mut metrics = vec![Metric::mean(format!("rewards/{name}/mean"), mean, n)];
    if n > 1.0 {
        let squares: f64 = scored.iter().map(|r| (r - mean) * (r - mean)).sum();
        metrics.push(Metric::mean(format!("rewards/{name}/std"), (squares / (n - 1.0)).sqrt(), n));
    }
    metrics
}

/// Returns, for each of several rewards: the fraction of groups in which its scores differ (`rewards/<name>/varies`), the fraction of
/// informative groups in which only its scores differ (`/alone`), and its share of the advantages (`/share`).
fn group_metrics(e: &Experience) -> Vec<Metric> {
    let rewards: Vec<&RewardScoreColumn> = e.rewards.iter().filter(|reward| reward.weight != 0.0).collect();
    if rewards.len() < 2 {
        return Vec::new();
    }
    let scores = rewards.iter().map(|reward| WeightedScores { weight: f64::from(reward.weight), values: &reward.values });
    let scores: Vec<WeightedScores<'_>> = scores.collect();
    let group_of: Vec<usize> = e.rollouts.iter().map(|rollout| rollout.prompt).collect();
    let advantages: Option<Vec<f32>> = (0..e.rollouts.len()).map(|row| e.advantage(row, 0)).collect();
    let RewardContributions { informative_groups: teaching, size, rewards: parts } =
        diagnosis::reward_contributions(&scores, &group_of, advantages.as_deref());
    let mut metrics = Vec::new();
    for (RewardScoreColumn { name, .. }, part) in rewards.into_iter().zip(parts) {
        if part.scored > 0.0 {
            metrics.push(Metric::mean(format!("rewards/{name}/varies"), part.varying / part.scored, part.scored));
        }
        if teaching > 0.0 {
            metrics.push(Metric::mean(format!("rewards/{name}/alone"), part.alone / teaching, teaching));
        }
        if size > 0.0 {
            metrics.push(Metric::mean(format!("rewards/{name}/share"), part.size / size, size));
        }
    }
    metrics
}

/// Returns the length metrics of completions, and of those that ended by themselves; an episode counts as ended if all of its turns did.
fn length_metrics(rollouts: &[Rollout], episodes: &[EpisodeOutcome]) -> Vec<Metric> {
    let of_turns = |row: usize| Some(episodes.get(row)?.turns.iter().all(|turn| turn.finished));
    let ended = |row: usize| of_turns(row).unwrap_or(rollouts[row].finished);
    let ended: Vec<bool> = (0..rollouts.len()).map(ended).collect();
    let (n, of_ended) = (rollouts.len() as f64, ended.iter().filter(|ended| **ended).count() as f64);
    let mut metrics = vec![Metric::mean("completions/clipped_ratio", 1.0 - of_ended / n, n)];
    for (suffix, all) in [("length", true), ("terminated_length", false)] {
        let counted = rollouts.iter().zip(&ended).filter(|(_, ended)| all || **ended);
        let lengths: Vec<f64> = counted.map(|(r, _)| r.sampled() as f64).collect();
        if lengths.is_empty() {
            continue;
        }
        let (count, sum) = (lengths.len() as f64, lengths.iter().sum::<f64>());
        metrics.extend([
            Metric::mean(format!("completions/mean_{suffix}"), sum / count, count),
            Metric::new(
                format!("completions/min_{suffix}"),
                lengths.iter().copied().fold(f64::INFINITY, f64::min),
                MetricReduction::Min,
            ),
            Metric::new(format!("completions/max_{suffix}"), lengths.iter().copied().fold(0.0, f64::max), MetricReduction::Max),
        ]);
    }
    metrics
}
