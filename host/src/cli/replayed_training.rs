//! `rlhost replay RUN --train`: trains again on the completions that a run logged.

use super::failure::Failure;
use super::given::Given;
use super::replay::Args;
use super::stopping::Stopping;
use super::train::start;
use crate::config::{Set, printable_path};
use crate::run::RunFiles;
use crate::train::Beginning;
use anyhow::anyhow;
use std::path::{Path, PathBuf};

/// Trains on the completions of a run, with these changes of its configuration.
pub(super) fn run(Args { run, training, set, .. }: &Args) -> Result<(), Failure> {
    // Without `..`, since the new run's folder is named after it.
    let run = run.canonicalize().map_err(|e| Failure::mistake(anyhow!("{}: {e}", printable_path(run))))?;
    let name = printable_path(&run);
    if !RunFiles(&run).events().is_file() {
        return Err(Failure::mistake(anyhow!("{name} is not a run's folder")));
    }
    let folder = training.output_dir.clone().unwrap_or_else(|| beside(&run));
    let mut sets = Set::read_all(set).map_err(Failure::of)?;
    if sets.iter().any(|set| set.sets("output_dir")) {
        return Err(Failure::mistake(anyhow!("--output-dir names the folder of the new run, rather than --set output_dir")));
    }
    if let Some(key) = ["replay_rollouts", "rollout_log"].into_iter().find(|key| sets.iter().any(|set| set.sets(key))) {
        return Err(Failure::mistake(anyhow!("--set {key}: replay --train sets it")));
    }
    let own = [
        format!("replay_rollouts={}", toml::Value::from(run.display().to_string())),
        format!("output_dir={}", toml::Value::from(folder.display().to_string())),
        "rollout_log=none".to_owned(),
    ];
    sets.extend(Set::read_all(own.iter()).map_err(Failure::of)?);
    let given = Given::of_replay(run, sets, training.accept_grants);
    let stopping = Stopping::listen()?;
    super::rank::on_this_rank(|world| start(&given, &Beginning::New, &stopping, world))
}

/// Returns the path of a run's folder with `-replay` after its name.
fn beside(run: &Path) -> PathBuf {
    let mut name = run.file_name().unwrap_or_default().to_owned();
    name.push("-replay");
    run.with_file_name(name)
}
