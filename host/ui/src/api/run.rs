//! One run: its state, settings and diagnosis.

use super::app::PageApi;
use super::query::Query;
use super::refusal::Result;
use crate::config::shell_word;
use crate::diagnosis;
use crate::run::{EffectiveConfig, RunFiles};
use crate::store::{ExpiringValue, PATIENCE, locked};
use rlhost_live::{LiveRun, config_of};
use serde_json::{Value, json};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Maximum number of events sent at once; the newest are kept.
const MOST_EVENTS: usize = 2000;

/// Cache lifetime of a diagnosis: a fixed time, plus this multiple of the time that it took.
const FRESH: Duration = Duration::from_secs(3);
const REST: u32 = 20;

/// Returns the state of a run for the table and for the run's own view.
pub(super) fn status(run: &LiveRun) -> Value {
    let state = run.state();
    json!({
        "state": state.name(),
        "step": run.last_step(),
        // The last step with metrics, which tells whether curves have grown.
        "logged": run.metrics.steps.last(),
        "max_steps": run.events.max_steps,
        "started": run.events.started,
        "ended": run.events.all.last().and_then(|event| event.time),
        "seconds": run.seconds(state),
        "rate": run.metrics.rate(),
        "left": run.remaining_seconds(state),
        "reward": run.metrics.last("reward"),
        "eval_reward": run.metrics.last("eval_reward"),
        "loss": run.metrics.last("loss"),
        "length": run.metrics.last("completions/mean_length"),
        "kl": run.metrics.last("kl"),
        "memory_mb": run.metrics.last("perf/peak_memory_mb"),
        "tokens": run.metrics.last("num_tokens"),
        "plugins": run.events.plugins(),
    })
}

impl PageApi {
    pub(super) fn run(&self, query: &Query) -> Result<Value> {
        let run = self.followed(query)?;
        let mut run = locked(&run);
        let complete = run.advance(Instant::now() + PATIENCE)?;
        let config = config_of(&run.path);
        let events = &run.events.all[run.events.all.len().saturating_sub(MOST_EVENTS)..];
        let has_completions = RunFiles(&run.path).completions().is_file();
        let plugins = config.as_ref().map(|config| {
            let of = |entry: &crate::config::PluginEntry| json!({ "name": entry.name(), "weight": entry.weight });
            config.plugin.iter().map(of).collect::<Vec<_>>()
        });
        Ok(json!({
            "status": status(&run),
            "complete": complete,
            "share": run.metrics.share(),
            "events": events,
            "left_out": run.events.left_out,
            "metrics": run.metrics.names().collect::<Vec<_>>(),
            "algorithm": config.as_ref().map(|config| &config.algorithm),
            "model": config.as_ref().and_then(|config| config.model.as_ref()),
            "hot_reload": config.as_ref().map(|config| config.hot_reload),
            "rewards": plugins,
            "has_completions": has_completions,
            "path": shell_word(&run.path),
        }))
    }

    /// Answers with the run's settings, the keys that the user set, and the lines of config.toml.
    pub(super) fn config(&self, query: &Query) -> Result<Value> {
        let report = self.report(&self.path_of(query)?)?;
        let run = self.followed(query)?;
        let mut run = locked(&run);
        let note = EffectiveConfig::read(&run.path).ok().and_then(|config| config.note);
        let text = &report["configuration"];
        Ok(json!({
            "settings": *run.settings(), "set": text["keys"], "note": note, "lines": text["lines"], "own": text["own"],
        }))
    }

    pub(super) fn diagnosis(&self, query: &Query) -> Result<Value> {
        let path = self.path_of(query)?;
        let signs = self.store.signs(&path);
        // A diagnosis reads all metrics, so only one runs at a time, and its result is cached.
        let mut signs = signs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = signs.as_ref().is_some_and(|signs| signs.expires_at > Instant::now());
        if !is_fresh {
            let begun = Instant::now();
            let diagnosis = diagnosis::read(&path);
            let value = json!({
                "findings": diagnosis.findings,
                "enough": diagnosis.enough,
                "notes": diagnosis.notes,
                "rows": diagnosis.rows,
                "last_step": diagnosis.last_step,
            });
            *signs = Some(ExpiringValue { value, expires_at: Instant::now() + begun.elapsed() * REST + FRESH });
        }
        Ok(signs.as_ref().map(|signs| signs.value.clone()).unwrap_or_default())
    }
}
