//! `rlhost plugin check`: tests a plugin the way a run uses it.

use super::gradient::{self, Verdict};
use super::{PluginArgs, bench, episodes, samples};
use crate::cli::{Failure, output};
use crate::config::Limits;
use crate::plugin::old::{Choice, Generation, LabelledPlugin, PolicyPlugin, PreferencePlugin, RewardModelPlugin};
use crate::plugin::{AnyPlugin, Outline, RewardBatch, RewardPlugin, columns};
use anyhow::anyhow;

/// Number of completions for testing a reward.
const ROWS: usize = 40;

/// Number of episodes for testing an environment.
const EPISODES: usize = 24;

/// Prints the report and counts failures.
pub(super) struct Report {
    failures: usize,
    /// Whether no dataset is given, whose columns the plugin reads.
    lacks_dataset: bool,
    /// Whether derivatives may differ from the loss's.
    stop_gradient: bool,
}

impl Report {
    pub(super) fn line(&mut self, good: bool, what: &str, detail: &str) {
        self.failures += usize::from(!good);
        output::row(&format!("{} {what:<24} {detail}", if good { "ok  " } else { "FAIL" }), 30);
    }

    /// Returns a call's value, or prints how it failed.
    pub(super) fn call<T>(&mut self, what: &str, outcome: crate::plugin::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let error = error.to_string();
                let advice = if self.lacks_dataset && error.contains("column") { "; give a dataset: --dataset FILE" } else { "" };
                self.line(false, what, &format!("{error}{advice}"));
                None
            }
        }
    }
}

pub(super) fn run(given: &PluginArgs, stop_gradient: bool) -> Result<(), Failure> {
    let (engine, source) = given.open().map_err(Failure::of)?;
    let outline = Outline::of(&engine, &source, &Limits::default()).map_err(Failure::of)?;
    let role = outline.role(&source).map_err(Failure::of)?;
    let load = || given.load(&engine, &source, role).map_err(Failure::of);
    let (mut any, mut other) = (load()?, load()?);
    let info = any.plugin().info();
    let lacks_dataset = info.needs.has(columns::DATASET_COLUMNS) && given.dataset.is_none();
    let mut report = Report { failures: 0, lacks_dataset, stop_gradient };
    report.line(true, "contract", &format!("{} {}, {}", info.name, info.version, role.name()));
    match (&mut any, &mut other) {
        (AnyPlugin::Reward(plugin), AnyPlugin::Reward(other)) => {
            let batch = samples::rewards(given.prompts().map_err(Failure::of)?.as_deref(), ROWS);
            check_reward(&mut report, plugin, other, &batch);
        }
        (AnyPlugin::Policy(plugin), AnyPlugin::Policy(other)) => check_policy(&mut report, plugin, other),
        (AnyPlugin::Preference(plugin), AnyPlugin::Preference(other)) => check_preference(&mut report, plugin, other),
        (AnyPlugin::Environment(plugin), AnyPlugin::Environment(other)) => {
            let starts = episodes::starts(&given.prompts().map_err(Failure::of)?.unwrap_or_default(), EPISODES);
            episodes::check(&mut report, plugin, other, &starts);
        }
        (AnyPlugin::Labelled(plugin), AnyPlugin::Labelled(other)) => check_labelled(&mut report, plugin, other),
        (AnyPlugin::RewardModel(plugin), AnyPlugin::RewardModel(other)) => check_reward_model(&mut report, plugin, other),
        _ => {}
    }
    let memory = any.plugin().memory_used();
    report.line(true, "memory", &format!("{} of {} MiB", indicatif::HumanBytes(memory as u64), any.plugin().limits().memory_mb));
    if any.plugin().forgets() {
        report.line(true, "state", "it keeps state that it can't export; a resumed run will differ");
    }
    if report.failures == 0 {
        bench::times(&mut any, given).map_err(Failure::of)?;
        return Ok(());
    }
    Err(Failure::failed(anyhow!("{} checks failed", report.failures)))
}

fn check_reward(report: &mut Report, plugin: &mut RewardPlugin, other: &mut RewardPlugin, batch: &RewardBatch) {
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

/// Returns a batch of one row.
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

fn check_policy(report: &mut Report, plugin: &mut PolicyPlugin, other: &mut PolicyPlugin) {
    let (generation, tokens) = samples::policy(12, 24);
    let Some(advantages) = report.call("estimate", plugin.estimate(&generation)) else { return };
    let by_turn = if plugin.info().needs.has(columns::TURN_REWARD) { ", by turn" } else { "" };
    report.line(true, "estimate", &format!("advantages for {} tokens{by_turn}", advantages.advantages.len()));
    if let Some(again) = report.call("determinism", other.estimate(&generation)) {
        let (Ok(one), Ok(two)) = (plugin.loss(&tokens), other.loss(&tokens)) else {
            return report.line(false, "loss", "it fails on random tokens");
        };
        let same = advantages.advantages == again.advantages && one.loss == two.loss && one.d_logp == two.d_logp;
        deterministic(report, same);
    }
    if let Some((verdicts, detached)) = report.call("gradient", gradient::policy(plugin, &tokens)) {
        gradients(report, &verdicts);
        if detached {
            report.line(true, "stop-gradient", "its derivative treats ratios as constant");
        }
    }
}

fn check_preference(report: &mut Report, plugin: &mut PreferencePlugin, other: &mut PreferencePlugin) {
    if plugin.is_online() {
        let (Generation { mut rollouts, .. }, _) = samples::policy(12, 24);
        // As many completions of a prompt as a run of pairs has by default.
        rollouts.prompt_of = (0..12).map(|row| row / 2).collect();
        let Some(choice) = report.call("choose", plugin.choose(&rollouts)) else { return };
        report.line(true, "choose", &format!("{} pairs of {} completions", choice.pairs.len(), rollouts.prompt_of.len()));
        let Some(again) = report.call("determinism", other.choose(&rollouts)) else { return };
        let rows = |choice: &Choice| choice.pairs.iter().map(|pair| (pair.chosen, pair.rejected)).collect::<Vec<_>>();
        if rows(&choice) != rows(&again) {
            return report.line(false, "determinism", "a second instance chooses other pairs");
        }
    }
    let pairs = samples::pairs(10, 20);
    let Some(first) = report.call("loss", plugin.loss(&pairs)) else { return };
    report.line(true, "loss", &format!("{:.6} for random pairs", first.loss));
    if let Some(again) = report.call("determinism", other.loss(&pairs)) {
        let same = first.loss == again.loss && first.d_chosen == again.d_chosen && first.d_rejected == again.d_rejected;
        deterministic(report, same);
    }
    if let Some(verdicts) = report.call("gradient", gradient::preference(plugin, &pairs)) {
        gradients(report, &verdicts);
    }
}

fn check_labelled(report: &mut Report, plugin: &mut LabelledPlugin, other: &mut LabelledPlugin) {
    let examples = samples::examples(10, 20);
    let Some(first) = report.call("loss", plugin.loss(&examples)) else { return };
    report.line(true, "loss", &format!("{:.6} for random completions", first.loss));
    if let Some(again) = report.call("determinism", other.loss(&examples)) {
        let same = first.loss == again.loss && first.d_logp == again.d_logp;
        deterministic(report, same);
    }
    if let Some(verdict) = report.call("gradient", gradient::labelled(plugin, &examples)) {
        gradients(report, &[verdict]);
    }
}

fn check_reward_model(report: &mut Report, plugin: &mut RewardModelPlugin, other: &mut RewardModelPlugin) {
    let pairs = samples::valued_pairs(10);
    let Some(first) = report.call("loss", plugin.loss(&pairs)) else { return };
    report.line(true, "loss", &format!("{:.6} for random pairs", first.loss));
    if let Some(again) = report.call("determinism", other.loss(&pairs)) {
        let same = first.loss == again.loss && first.d_chosen == again.d_chosen && first.d_rejected == again.d_rejected;
        deterministic(report, same);
    }
    if let Some(verdicts) = report.call("gradient", gradient::reward_model(plugin, &pairs)) {
        gradients(report, &verdicts);
    }
}

/// Reports whether two instances agree.
fn deterministic(report: &mut Report, same: bool) {
    let result = if same { "the same result" } else { "a different result" };
    report.line(same, "determinism", &format!("a second instance gives {result}"));
}

fn gradients(report: &mut Report, verdicts: &[Verdict]) {
    for Verdict { column, distance, at, kinks } in verdicts {
        let good = verdicts.iter().any(|v| v.column == *column && v.good());
        let place = if good { String::new() } else { format!(" at token {at}") };
        let left = if *kinks > 0 { format!(", {kinks} tokens at a kink skipped") } else { String::new() };
        let hint = match (good, report.stop_gradient) {
            (true, _) => "",
            (false, true) => ", as --stop-gradient expects",
            (false, false) => "; if the loss has a stop-gradient on purpose, pass --stop-gradient",
        };
        let detail = format!("within {distance:.1e} of finite differences{place}{left}{hint}");
        report.line(good || report.stop_gradient, column, &detail);
    }
}
