//! Checks that inference servers can generate a run's completions.

use super::opened_model::OpenedModel;
use crate::collector::servers::client;
use crate::config::{RolloutSync, RunConfig};
use crate::dist::World;
use crate::{Error, Result};
use rlhost_web::inference::{InferenceClient, InferenceFailure, ServerDescription};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval between attempts to reach a server.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Refuses servers that can't generate for the run. Only the first rank contacts them; it waits for servers that are not up yet.
pub(super) fn check(config: &RunConfig, opened: &OpenedModel, world: &World) -> Result<()> {
    if config.rollout_server.is_empty() || config.replay_rollouts.is_some() {
        return Ok(());
    }
    if config.rollout_sync == Some(RolloutSync::Lora) && opened.lora.is_none() {
        let detail = "is lora, but the run trains all weights; use disk, or train an adapter with --use-peft or --lora-r";
        return Err(Error::setting("rollout_sync", detail));
    }
    world.broadcast("rollout servers", || wait_for(config))
}

/// Returns the path of the replayed run in a form that stays valid wherever the run resumes.
pub(super) fn replayed_from_anywhere(run: String) -> String {
    std::path::absolute(&run).map_or(run, |absolute| absolute.display().to_string())
}

/// Queries the servers until one answers or the time is up.
fn wait_for(config: &RunConfig) -> Result<()> {
    let clients = config.rollout_server.iter().map(|url| client(url)).collect::<Result<Vec<InferenceClient>>>()?;
    let (begun, mut waits) = (Instant::now(), false);
    loop {
        let answers: Vec<_> = clients.iter().map(InferenceClient::describe).collect();
        let is_pending =
            |answer: &std::result::Result<_, InferenceFailure>| answer.as_ref().is_err_and(InferenceFailure::is_temporary);
        if answers.iter().all(is_pending) && begun.elapsed() < config.rollout_timeout() {
            if !std::mem::replace(&mut waits, true) {
                tracing::info!("waiting for {}: no rollout server answers yet", config.rollout_server.join(", "));
            }
            sleep(RETRY_INTERVAL);
            continue;
        }
        return report(&clients, answers, config.rollout_timeout_s);
    }
}

/// Logs the servers.
fn report(
    clients: &[InferenceClient],
    answers: Vec<std::result::Result<ServerDescription, InferenceFailure>>,
    waited: f64,
) -> Result<()> {
    let mut found = 0;
    for (client, answer) in clients.iter().zip(answers) {
        match answer {
            Ok(server) => {
                found += 1;
                let length = server.max_model_len.map(|length| format!(", at most {length} tokens")).unwrap_or_default();
                tracing::info!("rollouts come from {}: {} with {}{length}", client.server(), server.kind.name(), server.model);
            }
            Err(failure) if clients.len() > 1 && failure.is_temporary() => {
                tracing::warn!("rollout server {failure}; it is used once it answers");
            }
            Err(failure) => return Err(Error::setting("rollout_server", failure)),
        }
    }
    match found {
        0 => Err(Error::setting("rollout_server", format!("no server has answered within {waited} s (rollout_timeout_s)"))),
        _ => Ok(()),
    }
}
