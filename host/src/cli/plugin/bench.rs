//! `rlhost plugin bench`: measures how long a plugin's calls take.

use super::batches::{self, TestBatchSize, TestBatches};
use super::plugin_args::PluginArgs;
use super::{episodes, samples};
use crate::cli::output;
use crate::config::PluginLimits;
use crate::plugin::algorithm::{AlgorithmPlugin, DataSource, Shape};
use crate::plugin::{AnyPlugin, PluginOutline};
use std::time::{Duration, Instant};

/// Time spent on each measurement.
const PATIENCE: Duration = Duration::from_millis(400);

/// Returns the median time of a call, after one warm-up call.
fn median(mut call: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    call()?;
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < PATIENCE || times.len() < 3 {
        let at = Instant::now();
        call()?;
        times.push(at.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn line(what: &str, units: usize, unit: &str, time: Duration) {
    let each = time.as_secs_f64() * 1e9 / units.max(1) as f64;
    output::row(&format!("{what:<24} {:>10.1} us {each:>10.1} ns a {unit}", time.as_secs_f64() * 1e6), 25);
}

pub(super) fn run(given: &PluginArgs) -> anyhow::Result<()> {
    let (engine, source) = given.open()?;
    let role = PluginOutline::read(&engine, &source, &PluginLimits::default())?.role(&source)?;
    let begun = Instant::now();
    let mut any = given.load(&engine, &source, role)?;
    say!("{:<24} {:>10.1} us", "load", begun.elapsed().as_secs_f64() * 1e6);
    times(&mut any, given)
}

/// Prints a table of times for a plugin of any role.
pub(super) fn times(any: &mut AnyPlugin, given: &PluginArgs) -> anyhow::Result<()> {
    match any {
        AnyPlugin::Reward(plugin) => {
            for rows in [8, 64, 512] {
                let batch = samples::rewards(given.prompts()?.as_deref(), rows);
                let time = median(|| Ok(plugin.score(&batch).map(drop)?))?;
                line(&format!("score, {rows} completions"), rows, "completion", time);
            }
        }
        AnyPlugin::Algorithm(plugin) => of_algorithm(plugin)?,
        AnyPlugin::Environment(plugin) => {
            for count in [1, 64] {
                let starts = episodes::starts(&given.prompts()?.unwrap_or_default(), count);
                let turns: usize = episodes::play(plugin, &starts)?.iter().map(|played| played.replies.len()).sum();
                let time = median(|| Ok(episodes::play(plugin, &starts).map(drop)?))?;
                line(&format!("{count} episodes, {turns} turns"), turns, "turn", time);
            }
        }
    }
    Ok(())
}

/// Prints the times of an algorithm's calls.
fn of_algorithm(plugin: &mut AlgorithmPlugin) -> anyhow::Result<()> {
    let mut batches = TestBatches::new(plugin.data(), &plugin.info().needs, TestBatchSize { sequences: 64, longest: 1024 });
    let (generation, n) = (batches.generation(), batches.tokens());
    let estimates = batches::estimated(plugin, &generation)?;
    if estimates.is_some() {
        let time = median(|| Ok(plugin.estimate(&generation).map(drop)?))?;
        line(&format!("estimate, {n} tokens"), n, "token", time);
    }
    if plugin.data().shape == Shape::Pairs && plugin.data().source != DataSource::Dataset {
        let time = median(|| Ok(plugin.choose(&generation).map(drop)?))?;
        line(&format!("choose, {n} tokens"), n, "token", time);
    }
    let batch = batches.micro_batch(&estimates.unwrap_or_default());
    let time = median(|| Ok(plugin.loss(&batch).map(drop)?))?;
    line(&format!("loss, {n} tokens"), n, "token", time);
    Ok(())
}
