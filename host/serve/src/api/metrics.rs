//! `/metrics`: the engine's counters in Prometheus' text format.

use super::app::App;
use crate::engine::{CounterKind, EngineCounters};
use crate::scorer::RewardModelScorer;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// Returns the metrics of a server.
pub(super) fn text(app: &App) -> String {
    let engine = app.engine().map(|engine| engine_metrics(engine.counters())).unwrap_or_default();
    engine + &app.scorer.as_deref().map(scorer_metrics).unwrap_or_default()
}

fn scorer_metrics(scorer: &RewardModelScorer) -> String {
    let [texts, tokens] = scorer.scored.each_ref().map(|count| count.load(Ordering::SeqCst));
    let mut text = String::new();
    for (name, kind, help, value) in [
        ("rlhost_serve_requests_running", "gauge", "Requests that are computed or wait.", scorer.pending_requests() as u64),
        ("rlhost_serve_scored_texts_total", "counter", "Scored texts.", texts),
        ("rlhost_serve_scored_tokens_total", "counter", "Tokens of scored texts.", tokens),
    ] {
        // Writing to a string can't fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    text
}

fn engine_metrics(counters: &EngineCounters) -> String {
    let mut text = String::new();
    let mut write = |name: &str, kind: &str, help: &str, value: u64| {
        // Writing to a string can't fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    };
    for (name, help, value) in [
        ("rlhost_serve_requests_waiting", "Requests that wait for a place.", counters.waiting() as u64),
        ("rlhost_serve_requests_running", "Requests that are computed.", counters.running() as u64),
        ("rlhost_serve_prefix_cache_bytes", "Keys and values of earlier requests.", counters.cached_bytes() as u64),
        ("rlhost_serve_weight_version", "Version of the weights.", counters.version()),
    ] {
        write(name, "gauge", help, value);
    }
    for (name, help, stage) in [
        ("rlhost_serve_prompt_tokens_total", "Tokens of prompts.", CounterKind::PromptTokens),
        ("rlhost_serve_cached_tokens_total", "Tokens of prompts that were found in the prefix cache.", CounterKind::CachedTokens),
        ("rlhost_serve_sampled_tokens_total", "Sampled tokens of requests that have ended.", CounterKind::SampledTokens),
        ("rlhost_serve_requests_stopped_total", "Requests that ended on their own.", CounterKind::Stopped),
        ("rlhost_serve_requests_at_length_total", "Requests that ended at their maximum length.", CounterKind::AtLength),
        ("rlhost_serve_requests_abandoned_total", "Requests whose client disconnected.", CounterKind::Abandoned),
        ("rlhost_serve_requests_aborted_total", "Requests that a pause ended.", CounterKind::Aborted),
        ("rlhost_serve_requests_failed_total", "Requests that failed.", CounterKind::Failed),
        ("rlhost_serve_rounds_total", "Token rounds.", CounterKind::Rounds),
    ] {
        write(name, "counter", help, counters.total(stage));
    }
    text
}
