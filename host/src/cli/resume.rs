//! `rlhost resume`: go on from a run's newest whole checkpoint.

use super::Failure;
use crate::checkpoint;
use crate::config::{self, Config, Overrides};
use crate::train::{self, Resume};
use anyhow::anyhow;
use std::path::PathBuf;

/// Keys that may change when a run goes on, since they change nothing of what was computed.
const FREE: [&str; 9] = [
    "max_steps",
    "num_train_epochs",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "log_completions",
    "num_threads",
    "max_num_seqs",
    "output_dir",
];

/// Arguments of `resume`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    run: PathBuf,
    /// Step of the checkpoint; the newest whole one if not given
    #[arg(long)]
    step: Option<u64>,
    /// New length of the run, in optimizer steps
    #[arg(long, alias = "max_steps")]
    max_steps: Option<i64>,
    /// Change a key, as in --set save_steps=100
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Accept changes that make the run another than it was
    #[arg(long, alias = "allow_changed")]
    allow_changed: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (step, path) = find(args).map_err(Failure::mistake)?;
    let file = path.join("config.toml");
    let (old, _) = config::read(Some(&file), &Overrides::default()).map_err(Failure::mistake)?;
    let mut sets = args.set.clone();
    sets.extend(args.max_steps.map(|steps| format!("max_steps={steps}")));
    let (new, _) = config::read(Some(&file), &Overrides { sets, ..Overrides::default() }).map_err(Failure::mistake)?;
    let changed = changed(&old, &new).map_err(Failure::mistake)?;
    if !changed.is_empty() && !args.allow_changed {
        let keys = changed.join(", ");
        return Err(Failure::mistake(anyhow!("{keys} would make this another run than it was; --allow-changed accepts that")));
    }
    if let Some(threads) = new.num_threads {
        super::set_threads(threads).map_err(Failure::mistake)?;
    }
    let resume = Resume { run: args.run.clone(), checkpoint: path, step };
    let trainer = train::set_up(new, Vec::new(), Some(&resume)).map_err(Failure::mistake)?;
    println!("resuming {} from step {step}", args.run.display());
    super::train::finish(trainer)
}

/// The checkpoint to go on from; damaged ones are named.
fn find(args: &Args) -> Result<(u64, PathBuf), checkpoint::Error> {
    if let Some(step) = args.step {
        let path = checkpoint::folder(&args.run, step);
        return checkpoint::verify(&path).map(|()| (step, path));
    }
    let (step, path, passed_over) = checkpoint::newest(&args.run)?;
    for damaged in passed_over {
        tracing::warn!("{damaged}; passed over");
    }
    Ok((step, path))
}

/// Top-level keys that differ and may not.
fn changed(old: &Config, new: &Config) -> anyhow::Result<Vec<String>> {
    let (old, new) = (serde_json::to_value(old)?, serde_json::to_value(new)?);
    let keys = new.as_object().into_iter().flatten();
    Ok(keys
        .filter(|(key, value)| old.get(key) != Some(value) && !FREE.contains(&key.as_str()))
        .map(|(key, _)| key.clone())
        .collect())
}
