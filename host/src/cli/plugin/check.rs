//! `rlhost plugin check`: tests a plugin the way a run uses it.

use super::super::failure::CommandFailure;
use super::batches::{self, TestBatchSize, TestBatches};
use super::check_report::CheckReport;
use super::gradient::{self, GradientVerdict};
use super::plugin_args::PluginArgs;
use super::{bench, episodes, samples};
use crate::config::PluginLimits;
use crate::config::words::counted;
use crate::plugin::algorithm::{AlgorithmPlugin, DataSource, Estimates, ScoredGeneration, Shape, Unit};
use crate::plugin::{AnyPlugin, PluginOutline, RewardBatch, RewardPlugin, columns};
use anyhow::anyhow;

/// Number of completions for testing a reward.
const ROWS: usize = 40;

/// Number of sequences for testing an algorithm.
const SEQUENCES: usize = 20;

/// Number of episodes for testing an environment.
const EPISODES: usize = 24;

pub(super) fn run(given: &PluginArgs, stop_gradient: bool) -> Result<(), CommandFailure> {
    let (engine, source) = given.open().map_err(CommandFailure::from_error)?;
    let outline = PluginOutline::read(&engine, &source, &PluginLimits::default()).map_err(CommandFailure::from_error)?;
    let role = outline.role(&source).map_err(CommandFailure::from_error)?;
    let load = || given.load(&engine, &source, role).map_err(CommandFailure::from_error);
    let (mut any, mut other) = (load()?, load()?);
    let info = any.plugin().info();
    let lacks_dataset = info.needs.has(columns::DATASET_COLUMNS) && given.dataset.is_none();
    let mut report = CheckReport { failures: 0, lacks_dataset, folders: given.granted_folders(), stop_gradient };
    report.line(true, "contract", &format!("{} {}, {}", info.name, info.version, role.name()));
    match (&mut any, &mut other) {
        (AnyPlugin::Reward(plugin), AnyPlugin::Reward(other)) => {
            let batch = samples::rewards(given.prompts().map_err(CommandFailure::from_error)?.as_deref(), ROWS);
            check_reward(&mut report, plugin, other, &batch);
        }
        (AnyPlugin::Algorithm(plugin), AnyPlugin::Algorithm(other)) => check_algorithm(&mut report, plugin, other),
        (AnyPlugin::Environment(plugin), AnyPlugin::Environment(other)) => {
            let starts = episodes::starts(&given.prompts().map_err(CommandFailure::from_error)?.unwrap_or_default(), EPISODES);
            episodes::check(&mut report, plugin, other, &starts);
        }
        _ => {}
    }
    let memory = any.plugin().memory_used();
    report.line(true, "memory", &format!("{} of {} MiB", indicatif::HumanBytes(memory as u64), any.plugin().limits().memory_mb));
    if any.plugin().loses_state() {
        report.line(true, "state", "it keeps state that it can't export; a resumed run will differ");
    }
    if report.failures == 0 {
        bench::times(&mut any, given).map_err(CommandFailure::from_error)?;
        return Ok(());
    }
    Err(CommandFailure::failed(anyhow!("{} failed", counted(report.failures as u64, "check"))))
}

fn check_reward(report: &mut CheckReport, plugin: &mut RewardPlugin, other: &mut RewardPlugin, batch: &RewardBatch) {
    let Some(first) = report.call("score", plugin.score(batch)) else { return };
    let scored = first.rewards.iter().flatten().count();
    report.line(true, "score", &format!("{scored} of {ROWS} sample completions have a score"));
    let Some(again) = report.call("determinism", other.score(batch)) else { return };
    let same = first.rewards == again.rewards;
    report.line(
        same,
        "determinism",
        if same { "a second instance gives the same scores" } else { "a second instance gives different scores" },
    );
    if !plugin.info().stateless {
        return;
    }
    let Some(twice) = report.call("statelessness", plugin.score(batch)) else { return };
    let same = twice.rewards == first.rewards;
    report.line(
        same,
        "statelessness",
        if same {
            "a second call gives the same scores"
        } else {
            "it declares stateless: true, but a second call gives different scores"
        },
    );
    let turned: Vec<usize> = (0..ROWS).rev().collect();
    for row in turned {
        let Some(alone) = report.call("row independence", plugin.score(&only(batch, row))) else { return };
        if alone.rewards[0] != first.rewards[row] {
            let (together, alone) = (first.rewards[row], alone.rewards[0]);
            let detail =
                format!("it declares stateless: true, but row {row} scores {together:?} with other rows and {alone:?} alone");
            return report.line(false, "row independence", &detail);
        }
    }
    report.line(true, "row independence", "each row scores the same alone as with other rows");
}

/// Returns a batch of a single row.
fn only(batch: &RewardBatch, row: usize) -> RewardBatch {
    let tokens = batch.offsets[row] as usize..batch.offsets[row + 1] as usize;
    RewardBatch {
        prompt_of: vec![batch.prompt_of[row]],
        completions: vec![batch.completions[row].clone()],
        finished: vec![batch.finished[row]],
        offsets: vec![0, tokens.len() as u32],
        token_ids: batch.token_ids[tokens].to_vec(),
        ..batch.clone()
    }
}

fn check_algorithm(report: &mut CheckReport, plugin: &mut AlgorithmPlugin, other: &mut AlgorithmPlugin) {
    let mut batches = TestBatches::new(plugin.data(), &plugin.info().needs, TestBatchSize { sequences: SEQUENCES, longest: 24 });
    let generation = batches.generation();
    let Some(estimates) = check_estimates(report, plugin, other, &generation) else { return };
    if plugin.data().source == DataSource::Policy
        && plugin.data().shape == Shape::Pairs
        && !check_pairs(report, plugin, other, &generation)
    {
        return;
    }
    let batch = batches.micro_batch(&estimates);
    let Some(first) = report.call("loss", plugin.loss(&batch)) else { return };
    let of = first.derivatives.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
    report.line(true, "loss", &format!("{:.6} for random sequences, with derivatives of {of}", first.loss));
    if let Some(again) = report.call("determinism", other.loss(&batch)) {
        deterministic(report, first.loss == again.loss && first.derivatives == again.derivatives);
    }
    if let Some(verdicts) = report.call("gradient", gradient::verdicts(plugin, &batch)) {
        gradients(report, &verdicts);
        if verdicts.iter().any(|verdict| verdict.detached) {
            report.line(true, "stop-gradient", "its derivative treats ratios as constant");
        }
    }
}

/// Checks an estimator's results for a generation; does nothing for an algorithm without one. Returns `None` on failure.
fn check_estimates(
    report: &mut CheckReport,
    plugin: &mut AlgorithmPlugin,
    other: &mut AlgorithmPlugin,
    generation: &ScoredGeneration,
) -> Option<Estimates> {
    let Some(estimates) = report.call("estimate", batches::estimated(plugin, generation))? else {
        return Some(Estimates::default());
    };
    let by_turn = if plugin.info().needs.has(columns::TURN_REWARD) { ", by turn" } else { "" };
    let names = estimates.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
    report.line(true, "estimate", &format!("{names} for {} tokens{by_turn}", generation.batch.mask.len()));
    let again = report.call("determinism", batches::estimated(other, generation))?.unwrap_or_default();
    if again.columns != estimates.columns || again.mask != estimates.mask {
        report.line(false, "determinism", "a second instance estimates something else");
    }
    Some(estimates)
}

/// Checks the pairs chosen from a generation. Returns whether that succeeded.
fn check_pairs(
    report: &mut CheckReport,
    plugin: &mut AlgorithmPlugin,
    other: &mut AlgorithmPlugin,
    generation: &ScoredGeneration,
) -> bool {
    let Some(choice) = report.call("choose", plugin.choose(generation)) else { return false };
    let completions = generation.batch.entries(Unit::Sequence);
    report.line(true, "choose", &format!("{} pairs of {completions} completions", choice.pairs.len()));
    let Some(again) = report.call("determinism", other.choose(generation)) else { return false };
    if choice.pairs != again.pairs {
        report.line(false, "determinism", "a second instance chooses other pairs");
    }
    choice.pairs == again.pairs
}

/// Reports whether two instances return the same results.
fn deterministic(report: &mut CheckReport, same: bool) {
    let result = if same { "the same result" } else { "a different result" };
    report.line(same, "determinism", &format!("a second instance gives {result}"));
}

fn gradients(report: &mut CheckReport, verdicts: &[GradientVerdict]) {
    for verdict in verdicts {
        let GradientVerdict { column, item, distance, at, kinks, .. } = verdict;
        let good = verdict.good();
        let place = if good { String::new() } else { format!(" at {item} {at}") };
        let left = if *kinks > 0 { format!(", {kinks} {item}s at a kink skipped") } else { String::new() };
        let hint = match (good, report.stop_gradient) {
            (true, _) => "",
            (false, true) => ", as --stop-gradient expects",
            (false, false) => "; if the loss has a stop-gradient on purpose, pass --stop-gradient",
        };
        let detail = format!("within {distance:.1e} of finite differences{place}{left}{hint}");
        report.line(good || report.stop_gradient, &format!("d_{column}"), &detail);
    }
}
