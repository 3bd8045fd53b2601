//! `rlhost score`: scores texts with a reward model.

use super::failure::CommandFailure;
use crate::config::words::counted;
use crate::config::{self, Device, Overrides, PluginEntry, RunConfig};
use crate::model::ComputeBackend;
use crate::train::{self, FrozenRewardModel};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `score`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Reward model: a folder, a run folder, which means its newest checkpoint, or a name on the hub
    model: String,
    /// Dataset to score, with columns "prompt" and "completion", "text", "messages", or "prompt", "chosen" and "rejected"
    #[arg(long)]
    dataset: String,
    /// Split of a hub dataset
    #[arg(long, default_value = "train")]
    split: String,
    /// Rename dataset columns, as in prompt=question; separate several with commas or repeat the flag
    #[arg(long)]
    columns: Vec<String>,
    /// System message of each prompt, as in training
    #[arg(long, alias = "system_prompt", value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Build each prompt from columns, as in '{question}', as in training
    #[arg(long, alias = "prompt_template", value_name = "TEXT")]
    prompt_template: Option<String>,
    /// Compute device: cuda, cuda:N, cpu or auto
    #[arg(long, default_value = "auto")]
    device: String,
    /// Text that ends a step, for a process reward model [default: a line break]
    #[arg(long, alias = "step_separator", value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    step_separator: Option<String>,
    /// Hold the model's linear maps in 8 bits
    #[arg(long, alias = "load_in_8bit", conflicts_with = "load_in_4bit")]
    load_in_8bit: bool,
    /// Hold the model's linear maps in 4 bits (NF4)
    #[arg(long, alias = "load_in_4bit")]
    load_in_4bit: bool,
    /// Number of CPU threads [default: one per processor available to the process]
    #[arg(long, alias = "num_threads")]
    num_threads: Option<usize>,
    /// Print one line of JSON per row: {"row", "score"}, {"row", "chosen", "rejected"}, or {"row", "steps"} for a process reward
    /// model
    #[arg(long)]
    json: bool,
}

impl Args {
    fn config(&self) -> config::Result<RunConfig> {
        let mut flags = vec![("dataset", self.dataset.clone()), ("dataset_train_split", self.split.clone())];
        flags.push(("device", self.device.clone()));
        flags.extend(self.columns.iter().map(|columns| ("columns", columns.clone())));
        flags.extend(self.system_prompt.iter().map(|text| ("system_prompt", text.clone())));
        flags.extend(self.prompt_template.iter().map(|text| ("prompt_template", text.clone())));
        flags.extend(self.num_threads.map(|threads| ("num_threads", threads.to_string())));
        let flags = flags.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        config::read(std::iter::empty::<&std::path::Path>(), &Overrides { flags, ..Overrides::default() })
    }
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let config = args.config().map_err(CommandFailure::from_error)?;
    config
        .num_threads
        .map_or_else(super::threads::start_threads, super::threads::set_threads)
        .map_err(CommandFailure::from_error)?;
    let opened = open(args, config.device).map_err(CommandFailure::from_error)?;
    let dataset = train::dataset_of(&config).map_err(CommandFailure::from_error)?;
    let Some((dataset, _)) = dataset else { return Ok(()) };
    let steps = opened.judges_steps();
    let scored = if steps { opened.score_steps(&dataset, &config) } else { opened.score_dataset(&dataset, &config) };
    let (rows, warning) = scored.map_err(CommandFailure::from_error)?;
    if let Some(text) = warning {
        tracing::warn!("{text}");
    }
    for (row, scores) in &rows {
        match (&scores[..], args.json) {
            (values, true) if steps => say!("{}", json!({ "row": row, "steps": values })),
            ([score], true) => say!("{}", json!({ "row": row, "score": score })),
            ([chosen, rejected], true) => say!("{}", json!({ "row": row, "chosen": chosen, "rejected": rejected })),
            (scores, _) => {
                let shown: Vec<String> = scores.iter().map(|score| format!("{score:>12.6}")).collect();
                say!("{row:>8} {}", shown.join(" "));
            }
        }
    }
    if !args.json && !steps {
        summary(&rows);
    }
    Ok(())
}

fn open(args: &Args, device: Device) -> train::Result<FrozenRewardModel> {
    let (folder, name): (PathBuf, String) = train::model_of(&args.model)?;
    let entry = PluginEntry {
        step_separator: args.step_separator.clone(),
        load_in_8bit: args.load_in_8bit,
        load_in_4bit: args.load_in_4bit,
        ..PluginEntry::from_model_argument(name)
    };
    FrozenRewardModel::open(&entry, &folder, &ComputeBackend::choose(device, None, 0)?.with_warnings_logged())
}

/// Prints the distribution of the scores, and how often the chosen answer has the higher one.
fn summary(rows: &[(usize, Vec<f32>)]) {
    let all: Vec<f64> = rows.iter().flat_map(|(_, scores)| scores).map(|&score| f64::from(score)).collect();
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    let (least, most) = all.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(*x), b.max(*x)));
    say!("{}: mean {mean:.4}, from {least:.4} to {most:.4}", counted(all.len() as u64, "text"));
    let pairs: Vec<(f32, f32)> = rows.iter().filter_map(|(_, s)| if let [c, r] = s[..] { Some((c, r)) } else { None }).collect();
    if !pairs.is_empty() {
        let count = pairs.len() as f64;
        let right = pairs.iter().filter(|(chosen, rejected)| chosen > rejected).count() as f64;
        let margin = pairs.iter().map(|(chosen, rejected)| f64::from(chosen - rejected)).sum::<f64>() / count;
        say!("{}: accuracy {:.4}, mean margin {margin:.4}", counted(pairs.len() as u64, "pair"), right / count);
    }
}
