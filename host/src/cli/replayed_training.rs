//! `rlhost replay RUN --train`: trains again on the completions that a run logged.

use super::config_sources::ConfigSources;
use super::failure::CommandFailure;
use super::replay::Args;
use super::stop_signals::StopSignals;
use super::train::start;
use crate::config::{KeyAssignment, printable_path};
use crate::run::RunFiles;
use crate::train::StartMode;
use anyhow::anyhow;
use std::path::{Path, PathBuf};

/// Trains on the completions of a run, with these changes of its configuration.
pub(super) fn run(Args { run, training, set, .. }: &Args) -> Result<(), CommandFailure> {
    // The path must be free of `..`, because the new run's folder is named after it.
    let run = run.canonicalize().map_err(|e| CommandFailure::mistake(anyhow!("{}: {e}", printable_path(run))))?;
    let name = printable_path(&run);
    if !RunFiles(&run).events().is_file() {
        return Err(CommandFailure::mistake(anyhow!("{name} is not a run's folder")));
    }
    let folder = training.output_dir.clone().unwrap_or_else(|| replay_folder(&run));
    let mut sets = KeyAssignment::parse_all(set).map_err(CommandFailure::from_error)?;
    if sets.iter().any(|set| set.sets("output_dir")) {
        return Err(CommandFailure::mistake(anyhow!(
            "--output-dir names the folder of the new run, rather than --set output_dir"
        )));
    }
    if let Some(key) = ["replay_rollouts", "rollout_log"].into_iter().find(|key| sets.iter().any(|set| set.sets(key))) {
        return Err(CommandFailure::mistake(anyhow!("--set {key}: replay --train sets it")));
    }
    let own = [
        format!("replay_rollouts={}", toml::Value::from(run.display().to_string())),
        format!("output_dir={}", toml::Value::from(folder.display().to_string())),
        "rollout_log=none".to_owned(),
    ];
    sets.extend(KeyAssignment::parse_all(own.iter()).map_err(CommandFailure::from_error)?);
    let given = ConfigSources::from_replayed_run(run, sets, training.accept_grants);
    let stopping = StopSignals::listen()?;
    super::rank::on_this_rank(|world| start(&given, &StartMode::New, &stopping, world))
}

/// Returns the path of a run's folder with `-replay` after its name.
fn replay_folder(run: &Path) -> PathBuf {
    let mut name = run.file_name().unwrap_or_default().to_owned();
    name.push("-replay");
    run.with_file_name(name)
}
