//! `rlhost bench`: measures how fast a model generates and trains on this machine, where the time goes, and how close that is to the
//! machine's limits.

mod summary;
mod workload;

use super::algorithm::EarlyConfig;
use super::config_sources::ConfigSources;
use super::failure::CommandFailure;
use super::flags;
use super::unfinished_output::UnfinishedOutput;
use crate::config::{PluginEntry, ReportTarget, RunConfig};
use crate::data::Tokenizer;
use crate::dist::World;
use crate::model::{ModelFolder, builtin};
use crate::plugin::{AlgorithmPlugin, PluginEngine, PluginSource};
use crate::train::{self, Flow, LearnedParts, RowKind, StartMode, set_up};
use anyhow::{anyhow, bail, ensure};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use summary::BenchSummary;

/// Defaults of `bench`, overridden by flags and files: quick steps of TRL's shape.
const OWN_DEFAULTS: [(&str, &str); 2] = [("per_device_train_batch_size", "16"), ("max_completion_length", "64")];

/// Flags of `train` that don't apply here, with what to use instead.
const FOREIGN: [(&str, &str); 4] = [
    ("max_steps", "use --steps"),
    ("output_dir", "a benchmark keeps no files"),
    ("resume_from_checkpoint", "pass the checkpoint as --model"),
    ("eval_dataset", "evaluations are not measured"),
];

/// Default upper limit on the length of synthetic prompts, in tokens.
const PROMPT_LENGTH: usize = 512;

/// What the command does, for the list of commands.
pub(super) const ABOUT: &str = "Measure generation and training speed against the machine's limits";

/// Returns the command with `train`'s flags and its own.
pub(super) fn command() -> Command {
    let path = |name: &'static str, value: &'static str| {
        Arg::new(name).long(name).value_name(value).value_parser(value_parser!(PathBuf))
    };
    let number = |name: &'static str| Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u32).range(1..));
    let switch = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    flags::command("bench")
        .about(ABOUT)
        .after_long_help(
            "Runs steps of `rlhost train` with the same flags in a temporary folder. Prints the time of each part of a step, tokens \
             per second, peak memory, and two limits measured in the same process: memory bandwidth for generation and large \
             matrix products for training. Without --dataset, prompts are synthetic, and so are the answers for algorithms that \
             learn from a dataset. Without --plugin, the reward is tldr_length_reward.wasm. A batch has 16 completions of 64 \
             tokens unless --config or a flag changes that. The first step, or all steps of the first generation, is a warm-up \
             and is not counted. To compare thread counts, run it again with another --num-threads.",
        )
        .arg(
            path("model-config", "FILE")
                .alias("model_config")
                .conflicts_with("model")
                .help("Measure a model with random weights and the sizes in this config.json (see `rlhost models`)"),
        )
        .arg(switch("random-weights").alias("random_weights").help("Measure --model with random weights; its folder needs no weights"))
        .arg(path("tokenizer", "FOLDER").help("Folder of the tokenizer for random weights [default: train one]"))
        .arg(number("steps").default_value("5").help("Number of optimizer steps to measure, rounded up to whole generations"))
        .arg(number("prompt-length").alias("prompt_length").conflicts_with("dataset").help(
            "Length of synthetic prompts, in tokens [default: 512, or less if the model's context is shorter]",
        ))
        .arg(switch("json").help("Print the result as one line of JSON"))
}

pub(super) fn run(matches: &ArgMatches, known: &EarlyConfig) -> Result<(), CommandFailure> {
    super::rank::on_this_rank(|world| measure(matches, known, world))
}

fn measure(matches: &ArgMatches, known: &EarlyConfig, world: &Rc<World>) -> Result<(), CommandFailure> {
    let foreign = FOREIGN.iter().find(|(flag, _)| matches.value_source(flag) == Some(ValueSource::CommandLine));
    if let Some((flag, advice)) = foreign {
        return Err(CommandFailure::mistake(anyhow!("--{} does not apply to bench; {advice}", flag.replace('_', "-"))));
    }
    let temporary = tempfile::tempdir().map_err(CommandFailure::from_error)?;
    let _unfinished = UnfinishedOutput::new(temporary.path(), "stopped before anything was measured".into())
        .map_err(CommandFailure::from_error)?;
    let made = temporary.path().join("model");
    let mut first: Vec<(&str, String)> = Vec::new();
    if matches.get_one::<PathBuf>("config").is_none() {
        first.extend(OWN_DEFAULTS.map(|(key, value)| (key, value.to_owned())));
    }
    if matches.contains_id("model-config") {
        first.push(("model", made.display().to_string()));
    }
    let first: Vec<(&str, &str)> = first.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let given = ConfigSources::from_matches(matches, &first, known)?;
    let mut config = given.resolve(&StartMode::New, world)?;
    prepare(matches, &mut config, temporary.path(), &made, world.size()).map_err(CommandFailure::from_error)?;
    let trainer = set_up(config, &StartMode::New, world.clone()).map_err(CommandFailure::from_error)?;
    let steps = matches.get_one::<u32>("steps").copied().unwrap_or(1);
    let measurement = trainer.measure(steps as usize).map_err(CommandFailure::from_error)?;
    if !world.is_first() {
        return Ok(());
    }
    let summary = BenchSummary::from_measurement(&measurement, world.size());
    if matches.get_flag("json") {
        say!("{}", serde_json::to_string(&summary).map_err(CommandFailure::from_error)?);
    } else {
        summary.print();
    }
    Ok(())
}

/// Creates the model and the dataset in the `temporary` folder unless they are given, and turns off features that only runs have.
fn prepare(matches: &ArgMatches, config: &mut RunConfig, temporary: &Path, made: &Path, ranks: usize) -> anyhow::Result<()> {
    let folder = model(matches, config, made)?;
    config.model = Some(folder.display().to_string());
    config.output_dir = Some(temporary.join("run").display().to_string());
    (config.max_steps, config.eval_dataset, config.metrics_port) = (i64::from(u32::MAX), None, None);
    (config.hot_reload, config.report_to) = (false, vec![ReportTarget::None]);
    (config.load_best_model_at_end, config.metric_for_best_model) = (false, None);

    let algorithm = PluginSource::open(&config.algorithm)?;
    let algorithm = AlgorithmPlugin::load(&PluginEngine::new()?, &algorithm, &config.loss, &config.loss_limits, config.seed)?;
    let kind = Flow::new(&algorithm, config).rows(LearnedParts::default());
    if matches!(kind, RowKind::Prompts) && config.plugin.is_empty() {
        config.plugin.push(PluginEntry::new("tldr_length_reward.wasm".into()));
    }
    if config.dataset.is_some() {
        return Ok(());
    }
    let folder = ModelFolder::open(folder)?;
    let (context, completion) = (folder.architecture().max_positions, config.max_completion_length);
    let asked = matches.get_one::<u32>("prompt-length").map(|n| *n as usize);
    // Text decoded from tokens may have one or two more tokens when it is tokenized again.
    let room = context.saturating_sub(completion + context / 32);
    let length = asked.unwrap_or(PROMPT_LENGTH.min(room));
    if length == 0 || length > room {
        let asked = asked.map(|n| format!("--prompt-length {n} and ")).unwrap_or_default();
        bail!("{asked}max_completion_length {completion} don't fit into the model's context of {context} tokens");
    }
    let rows = config.batches(ranks).completions_per_generation().max(64);
    let text = workload::rows(kind, &Tokenizer::open(folder.tokenizer())?, rows, length, completion)?;
    let path = temporary.join("rows.jsonl");
    std::fs::write(&path, text).map_err(|e| anyhow!("can't write {}: {e}", path.display()))?;
    config.dataset = Some(path.display().to_string());
    Ok(())
}

/// Returns the folder of the measured model, which is `made` if its weights are random, or the built-in model's.
fn model(matches: &ArgMatches, config: &RunConfig, made: &Path) -> anyhow::Result<PathBuf> {
    let sizes = matches.get_one::<PathBuf>("model-config").cloned();
    let random = matches.get_flag("random-weights") || sizes.is_some();
    let tokenizer = matches.get_one::<PathBuf>("tokenizer").map(PathBuf::as_path);
    ensure!(random || tokenizer.is_none(), "--tokenizer needs --model-config or --random-weights; a model has its own tokenizer");
    let named = config.model.as_deref().filter(|_| sizes.is_none());
    match (random, named) {
        (false, Some(named)) => Ok(train::model_of(named)?.0),
        (false, None) => {
            std::fs::create_dir(made).map_err(|e| anyhow!("can't write {}: {e}", made.display()))?;
            builtin::write(made)?;
            Ok(made.to_owned())
        }
        (true, named) => {
            let folder = named.map(|named| Ok::<_, train::Error>(train::model_of(named)?.0)).transpose()?;
            let Some(file) = sizes.or_else(|| Some(folder.as_ref()?.join("config.json"))) else {
                bail!(
                    "--random-weights needs the sizes of a model: pass --model-config FILE, or --model with a folder that has a \
                     config.json"
                );
            };
            let own = folder.as_deref().filter(|folder| folder.join("tokenizer.json").exists());
            workload::random_model(&file, tokenizer.or(own), made, config.seed)?;
            Ok(made.to_owned())
        }
    }
}
