//! `rlhost serve`: an OpenAI-compatible server.

use super::failure::CommandFailure;
use super::output;
use crate::config::{self, Overrides, RolloutDtype};
use crate::data::{Tokenizer, TokenizerOverrides};
use crate::model::{FrozenModel, ModelFolder, ValueHeadInit, WeightStorage, builtin};
use crate::ops::quantized::QuantizationScheme;
use crate::run::CheckpointFiles;
use crate::train;
use anyhow::{anyhow, ensure};
use rlhost_serve::engine::{EngineOptions, InferenceEngine};
use rlhost_serve::{
    App, ConnectionLimits, InferenceServer, InferenceServerSettings, ModelCard, RewardModelScorer, ServedWeights, WeightLoader,
    read_keys,
};
use serde_json::{Map, Value};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Polling interval for signals.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Name of the built-in model.
const BUILT_IN: &str = "rlhost";

/// Arguments of `serve`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Hugging Face model folder, name on the hub, or run folder, which means its newest checkpoint [default: the built-in model]
    #[arg(long, short)]
    model: Option<String>,
    /// Name of the model in requests and responses; may be repeated [default: as --model has it, "rlhost" for the built-in model]
    #[arg(long, alias = "served_model_name", value_name = "NAME")]
    served_model_name: Vec<String>,
    #[command(flatten)]
    listening: ListenArgs,
    #[command(flatten)]
    weights: WeightArgs,
    #[command(flatten)]
    size: CapacityArgs,
    /// Chat template: a file, or the folder of a model with one [default: the model's own]
    #[arg(long, alias = "chat_template", value_name = "PATH")]
    chat_template: Option<PathBuf>,
    /// Variables of the chat template for all requests, as in '{"enable_thinking": false}' [default: those of the run, for a checkpoint]
    #[arg(long, alias = "chat_template_kwargs", value_name = "JSON", value_parser = super::generate::object)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Number of CPU threads [default: one per processor available to the process]
    #[arg(long, alias = "num_threads")]
    num_threads: Option<usize>,
}

/// Where the server listens, and whom it answers.
#[derive(clap::Args)]
struct ListenArgs {
    /// Address to listen on; any other than this machine's own needs --api-key-file
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// File with API keys, one in a line; requests then need one of them
    #[arg(long, alias = "api_key_file", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Seconds that an answer may take
    #[arg(long, alias = "request_timeout", value_name = "SECONDS", default_value_t = 3600)]
    request_timeout: u64,
    /// Seconds that requests under way have to end when the server is stopped
    #[arg(long, alias = "drain_timeout", value_name = "SECONDS", default_value_t = 30)]
    drain_timeout: u64,
}

/// How the weights are held.
#[derive(clap::Args)]
struct WeightArgs {
    /// Precision of the weights that are computed with: as stored, bf16 or 8 bits
    #[arg(long, value_enum, default_value = "auto")]
    dtype: ServeDtype,
    /// Hold the model's linear maps in 8 bits
    #[arg(long, alias = "load_in_8bit", conflicts_with = "load_in_4bit")]
    load_in_8bit: bool,
    /// Hold the model's linear maps in 4 bits (NF4)
    #[arg(long, alias = "load_in_4bit")]
    load_in_4bit: bool,
    /// Serve an adapter of the model under a name of its own: a folder, or a run folder, which means its newest checkpoint; may be
    /// repeated
    #[arg(long, value_name = "NAME=FOLDER")]
    adapter: Vec<String>,
    /// Let requests pause the server, replace its weights and load adapters, from any folder that it can read
    #[arg(long, alias = "allow_weight_updates")]
    allow_weight_updates: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ServeDtype {
    Auto,
    #[value(alias = "bf16")]
    Bfloat16,
    Int8,
}

/// How much is computed and kept.
#[derive(clap::Args)]
struct CapacityArgs {
    /// Maximum number of tokens of a prompt and its completion [default: the model's context]
    #[arg(long, alias = "max_model_len", value_name = "N")]
    max_model_len: Option<usize>,
    /// Maximum number of sequences that are computed together
    #[arg(long, alias = "max_num_seqs", value_name = "N", default_value_t = 64)]
    max_num_seqs: usize,
    /// Maximum number of requests that wait for a place; more are refused
    #[arg(long, alias = "max_waiting", value_name = "N", default_value_t = 1024)]
    max_waiting: usize,
    /// Memory for keys and values, of requests and of the prefix cache, in bytes [default: a quarter of the memory that is available]
    #[arg(long, alias = "kv_cache_memory_bytes", value_name = "BYTES")]
    kv_cache_memory_bytes: Option<u64>,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let stopped = listen_for_signals().map_err(CommandFailure::failed)?;
    args.num_threads
        .map_or_else(super::threads::start_threads, super::threads::set_threads)
        .map_err(CommandFailure::from_error)?;
    let (app, settings) = (args.app().map_err(CommandFailure::from_error)?, args.settings().map_err(CommandFailure::from_error)?);
    let (name, has_keys) = (args.names().remove(0), !settings.keys.is_empty());
    let server = InferenceServer::start(app, settings).map_err(CommandFailure::mistake)?;
    let keys = if has_keys { " to clients with an API key" } else { "" };
    say!("serving {name} on http://{}/v1{keys}; Ctrl-C stops", server.address());
    output::finish()?;
    while !stopped.load(Ordering::SeqCst) {
        std::thread::sleep(SIGNAL_POLL_INTERVAL);
    }
    let limit = Duration::from_secs(args.listening.drain_timeout);
    tracing::info!("stopping when all requests have ended, at the latest in {} s; Ctrl-C again stops at once", limit.as_secs());
    if !server.drain(limit) {
        tracing::warn!("stopped with requests under way: they took more than {} s (--drain-timeout)", limit.as_secs());
    }
    Ok(())
}

/// Listens for signals: the first stops the server, the second ends the process.
fn listen_for_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stopped = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stopped))?;
        signal_hook::flag::register(signal, Arc::clone(&stopped))?;
    }
    Ok(stopped)
}

impl WeightArgs {
    /// Returns the precision that products have, unless the weights are changed for it.
    fn computed_in(&self) -> Option<&'static str> {
        match self.dtype {
            ServeDtype::Auto => (!self.load_in_8bit && !self.load_in_4bit).then_some("float32"),
            ServeDtype::Bfloat16 => Some("bfloat16"),
            ServeDtype::Int8 => Some("int8"),
        }
    }

    fn held(&self) -> WeightStorage {
        let scheme = match (self.load_in_8bit, self.load_in_4bit) {
            (true, _) => Some(QuantizationScheme::Int8),
            (_, true) => Some(QuantizationScheme::Nf4),
            _ => None,
        };
        WeightStorage { scheme, ..WeightStorage::AS_STORED }
    }
}

impl Args {
    fn names(&self) -> Vec<String> {
        let own = || vec![self.model.clone().unwrap_or_else(|| BUILT_IN.to_owned())];
        if self.served_model_name.is_empty() { own() } else { self.served_model_name.clone() }
    }

    fn settings(&self) -> anyhow::Result<InferenceServerSettings> {
        let ListenArgs { host, port, api_key_file, request_timeout, .. } = &self.listening;
        ensure!(*request_timeout > 0, "--request-timeout must be at least 1");
        let keys = api_key_file.as_deref().map(read_keys).transpose().map_err(|e| anyhow!("--api-key-file: {e}"))?;
        let limits = ConnectionLimits { answer_time: Duration::from_secs(*request_timeout), ..ConnectionLimits::default() };
        Ok(InferenceServerSettings { host: host.clone(), port: *port, keys: keys.unwrap_or_default(), limits })
    }

    fn options(&self, context: usize) -> anyhow::Result<EngineOptions> {
        let CapacityArgs { max_model_len, max_num_seqs, max_waiting, kv_cache_memory_bytes } = self.size;
        let max_model_len = max_model_len.unwrap_or(context);
        ensure!(
            (1..=context).contains(&max_model_len),
            "--max-model-len {max_model_len} must be from 1 to the context, {context}"
        );
        ensure!(max_num_seqs > 0, "--max-num-seqs must be at least 1");
        ensure!(max_waiting > 0, "--max-waiting must be at least 1");
        let bytes = kv_cache_memory_bytes.unwrap_or_else(EngineOptions::default_cache_bytes);
        let cache_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(EngineOptions { max_model_len, max_num_seqs, max_waiting, cache_bytes, favours_throughput: false })
    }

    fn app(&self) -> anyhow::Result<App> {
        let temporary = tempfile::tempdir()?;
        let folder = match &self.model {
            Some(named) => ModelFolder::open(train::model_of(named)?.0)?,
            None => {
                builtin::write(temporary.path())?;
                ModelFolder::open(temporary.path())?
            }
        };
        let tokenizer = Tokenizer::open_with(folder.tokenizer(), &self.wording(folder.path())?);
        let tokenizer = tokenizer.map_err(|error| error.without_built_in_folder(temporary.path()))?;
        if folder.values_texts()? {
            return self.scoring_app(folder, tokenizer);
        }
        let architecture = folder.architecture();
        let options = self.options(architecture.max_positions)?;
        let card = ModelCard {
            names: self.names(),
            ends: tokenizer.eos_ids(&architecture.eos_token_ids),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            dtype: self.weights.computed_in(),
        };
        let dtype = match self.weights.dtype {
            ServeDtype::Auto => RolloutDtype::Auto,
            ServeDtype::Bfloat16 => RolloutDtype::Bfloat16,
            ServeDtype::Int8 => RolloutDtype::Int8,
        };
        let (loader, decoding) = WeightLoader::open(folder.with_weight_storage(self.weights.held()), dtype)?;
        let weights = ServedWeights::new(loader, self.weights.allow_weight_updates);
        for named in &self.weights.adapter {
            let pair = named.split_once('=').filter(|(name, folder)| !name.is_empty() && !folder.is_empty());
            let (name, folder) = pair.ok_or_else(|| anyhow!("--adapter {named} must be NAME=FOLDER"))?;
            ensure!(!self.names().iter().any(|own| own == name), "--adapter {named}: {name} is the name of the model itself");
            let read = weights.load_adapter(name, &train::model_of(folder)?.0);
            read.map_err(|detail| anyhow!("--adapter {named}: {detail}"))?;
        }
        Ok(App::new(InferenceEngine::start(decoding, 0, options)?, tokenizer, card).with_weights(weights))
    }

    /// Creates the server of a reward model.
    fn scoring_app(&self, folder: ModelFolder, tokenizer: Tokenizer) -> anyhow::Result<App> {
        let path = folder.path().display();
        ensure!(
            !folder.judges_steps()?,
            "{path}: rlhost serve can't serve a process reward model; rlhost score scores steps with it"
        );
        let generates = self.weights.allow_weight_updates || !self.weights.adapter.is_empty();
        ensure!(!generates, "{path} is a reward model: --adapter and --allow-weight-updates are for models that generate");
        let as_stored = matches!(self.weights.dtype, ServeDtype::Auto);
        ensure!(as_stored, "{path} is a reward model, whose weights stay as they are stored: leave --dtype out");
        // An adapter's base is not a reward model, and may name another padding token than the one that the adapter was trained with.
        let pad = if folder.lora().is_some() { tokenizer.pad_id() } else { folder.pad_token()? };
        let options = self.options(folder.architecture().max_positions)?;
        let folder = folder.with_weight_storage(self.weights.held());
        let model = FrozenModel::new(folder.value_model_over(folder.trunk()?, ValueHeadInit::Zero)?);
        let card =
            ModelCard { names: self.names(), ends: Vec::new(), version: env!("CARGO_PKG_VERSION").to_owned(), dtype: None };
        Ok(App::from_scorer(RewardModelScorer::new(model, pad, options.max_model_len, options.max_waiting), tokenizer, card))
    }

    /// Returns the chat template, and its variables and date: those of the run, if the folder is a run's checkpoint.
    fn wording(&self, folder: &Path) -> anyhow::Result<TokenizerOverrides> {
        let file = CheckpointFiles::find(folder).config();
        let mut wording = TokenizerOverrides::default();
        if CheckpointFiles::find(folder).summary().is_file() && file.is_file() {
            let config = config::read([file.as_path()], &Overrides::default())?;
            let now = config.strftime_now.as_deref().map(TokenizerOverrides::read_time).transpose();
            wording.now = now.map_err(|detail| anyhow!("{}: strftime_now: {detail}", file.display()))?;
            wording.kwargs = config.chat_template_kwargs;
        }
        wording.kwargs.extend(self.chat_template_kwargs.clone().unwrap_or_default());
        wording.template = self.chat_template.as_deref().map(TokenizerOverrides::read_template).transpose()?;
        Ok(wording)
    }
}
