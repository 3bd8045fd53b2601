//! The keys of a run. Doc comments are what `rlhost train --help` prints.

use super::{Device, Period};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// How the learning rate goes on after the warmup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// Falls in a straight line to zero at the end of the run.
    Linear,
    /// Falls along half a cosine to zero at the end of the run.
    Cosine,
    /// Stays, without warmup.
    Constant,
    /// Stays, after the warmup.
    ConstantWithWarmup,
}

/// What an algorithm that learns from completions learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LearnFrom {
    /// The policy's own, generated and rewarded.
    Generation,
    /// The dataset's.
    Dataset,
}

/// Which completions go to completions.jsonl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogCompletions {
    /// None.
    #[serde(alias = "false")]
    None,
    /// The first prompt's of each generation.
    Sample,
    /// All.
    #[serde(alias = "true")]
    All,
}

/// Where figures go beside metrics.jsonl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportTo {
    /// Nowhere.
    None,
    /// Event files in the run's folder, for TensorBoard.
    Tensorboard,
}

/// What gradients are sent to the other processes as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReduceDtype {
    /// As they are.
    #[serde(alias = "fp32", alias = "f32")]
    Float32,
    /// Rounded, in half the bytes, and summed in f32.
    #[serde(alias = "bf16")]
    Bfloat16,
}

/// What happens when a checkpoint can't be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnSaveError {
    /// The run ends.
    Fail,
    /// The run goes on to the next save; only the last one must succeed.
    Continue,
}

/// What happens when a reward fails, also on a fresh instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The run ends, after a checkpoint.
    #[default]
    Fail,
    /// The rows that fail by themselves have no score.
    Unscorable,
}

/// What a plugin may use.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory of an instance as a whole, in MiB.
    pub memory_mb: u64,
    /// Longest time of one call, in seconds.
    pub call_timeout_s: f64,
    /// Elements of each table.
    pub table_elements: u32,
    /// How much of what it prints is kept for error messages, in KiB.
    pub output_kb: u32,
    /// Memory of all its instances together, in MiB.
    pub total_memory_mb: u64,
    /// Address space of the process that compiles it, in MiB.
    pub compile_memory_mb: u64,
    /// Longest processor time of compiling it, in seconds; by the clock on the wall it may take four times that.
    pub compile_timeout_s: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mb: 512,
            call_timeout_s: 60.0,
            table_elements: 100_000,
            output_kb: 16,
            total_memory_mb: 4096,
            compile_memory_mb: 4096,
            compile_timeout_s: 300,
        }
    }
}

impl Limits {
    /// A number of MiB in bytes.
    fn bytes(mebibytes: u64) -> usize {
        usize::try_from(mebibytes).unwrap_or(usize::MAX).saturating_mul(1 << 20)
    }

    /// Bytes of memory that an instance may have.
    pub fn memory(&self) -> usize {
        Self::bytes(self.memory_mb)
    }

    /// Bytes of memory that all instances together may have.
    pub fn total_memory(&self) -> usize {
        Self::bytes(self.total_memory_mb)
    }

    /// Bytes of address space that compiling it may take.
    pub fn compile_memory(&self) -> usize {
        Self::bytes(self.compile_memory_mb)
    }

    /// Longest time of a call.
    pub fn call_timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.call_timeout_s).unwrap_or(Duration::MAX).min(LONGEST_CALL)
    }

    /// What is no limit, by its key.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.call_timeout_s.is_nan() || self.call_timeout_s <= 0.0 {
            return Err("limits.call_timeout_s must be greater than 0");
        }
        if self.compile_timeout_s == 0 {
            return Err("limits.compile_timeout_s must be greater than 0");
        }
        Ok(())
    }
}

/// What a longer limit on a call's time counts as.
const LONGEST_CALL: Duration = Duration::from_secs(1 << 32);

/// A reward plugin of the run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginEntry {
    /// A path, or the file name of an embedded plugin.
    pub path: String,
    /// Factor on its rewards.
    #[serde(default = "one")]
    pub weight: f64,
    /// Its own settings.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// When it fails: fail, or unscorable.
    #[serde(default)]
    pub on_error: OnError,
    /// What it may use.
    #[serde(default)]
    pub limits: Limits,
}

fn one() -> f64 {
    1.0
}

impl PluginEntry {
    /// An entry with defaults.
    pub fn new(path: String) -> Self {
        Self { path, weight: 1.0, config: Map::new(), on_error: OnError::Fail, limits: Limits::default() }
    }

    /// The name in metrics and in `--set plugin.NAME...`: the file's, without extension.
    pub fn name(&self) -> &str {
        let file = self.path.rsplit(['/', '\\']).next().unwrap_or(&self.path);
        file.strip_suffix(".wasm").unwrap_or(file)
    }
}

/// A training run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Folder of a Hugging Face model (Llama, Qwen2 or Qwen3), or its name on the hub, as in
    /// OWNER/NAME or OWNER/NAME@REVISION; a small built-in one if not given.
    pub model: Option<String>,
    /// JSON lines, Parquet, CSV or text, packed or not, or a folder of shards, with a column "prompt";
    /// or a name on the hub, OWNER/NAME or OWNER/NAME/SUBSET. Built-in forum posts to summarise if
    /// not given.
    pub dataset: Option<String>,
    /// The split of a dataset on the hub.
    pub dataset_train_split: String,
    /// Dataset to evaluate on, of the same kind as the training one; no evaluation if not given.
    pub eval_dataset: Option<String>,
    /// The split of an eval_dataset on the hub.
    pub dataset_test_split: String,
    /// Columns of the dataset that are read under other names, as in prompt=question; several with
    /// commas between them, or the flag more than once.
    pub columns: Vec<String>,
    /// Folder of the run; runs/<time> if not given.
    pub output_dir: Option<String>,
    /// The algorithm: a policy plugin's path, or the name of an embedded one.
    pub algorithm: String,
    /// What completions an algorithm learns from: the policy's own (generation), or the dataset's.
    pub learn_from: LearnFrom,
    /// Seed of everything random.
    pub seed: u64,
    /// Where to compute: cuda or cuda:N, which is an NVIDIA device and needs a build with the feature
    /// cuda; cpu; or auto, which is the first of these that there is.
    pub device: Device,
    /// On an NVIDIA device: compute in bf16, with weights and moments in f32 beside that for the updates;
    /// true if not given, and false for f32 throughout. On the CPU everything is f32.
    pub bf16: Option<bool>,
    /// Threads for arithmetic; if not given, one for each processor that the process may run on. What
    /// another number brings, `rlhost bench --num-threads N` measures.
    pub num_threads: Option<usize>,
    /// How long a process waits for the others of its run, in seconds, before it ends the run.
    pub dist_timeout_s: f64,
    /// What gradients are sent to the other processes of a run as: float32, or bfloat16, which takes
    /// half the bytes, and rounds what a process sends and what comes of all to eight binary digits.
    pub reduce_dtype: ReduceDtype,
    /// Sum the gradients of layers that are done with over the processes while the backward pass
    /// goes on with the others: the same sums, to the bit.
    pub overlap_comm: bool,
    /// Processes of the run; the launcher says how many, and no file does.
    #[serde(skip)]
    pub ranks: usize,

    /// Completions of each prompt; 8 if not given, and 2 for algorithms that pair them.
    pub num_generations: Option<usize>,
    /// Longest completion, in tokens.
    pub max_completion_length: usize,
    /// Sampling temperature.
    pub temperature: f64,
    /// Sample from the most likely tokens that together have this probability.
    pub top_p: f64,
    /// Sample from this many most likely tokens; 0 for all.
    pub top_k: usize,
    /// Drop tokens less likely than this fraction of the likeliest.
    pub min_p: Option<f64>,
    /// Divides the logits of tokens that occurred already.
    pub repetition_penalty: f64,
    /// Strings that end a completion; may be given more than once.
    pub stop: Vec<String>,
    /// Most sequences generated side by side.
    pub max_num_seqs: usize,

    /// Let the reference model follow the policy (TR-DPO, arXiv 2404.09656).
    pub sync_ref_model: bool,
    /// Then: the policy's part when the two are mixed; the reference keeps the rest.
    pub ref_model_mixup_alpha: f64,
    /// Then: steps between mixings.
    pub ref_model_sync_steps: u64,
    /// Ask the reference model once for a dataset's answers, before training, and let it go.
    pub precompute_ref_log_probs: bool,

    /// Longest prompt with a given answer, or text, in tokens; longer ones lose their end.
    pub max_length: Option<usize>,
    /// Learn from completions alone, and not from their prompts, where both are given.
    pub completion_only_loss: bool,
    /// Learn from the assistant's turns alone, where a whole conversation is given.
    pub assistant_only_loss: bool,
    /// Put given texts together until they fill max_length; per_device_train_batch_size then counts
    /// such packs. Texts don't see each other.
    pub packing: bool,

    /// Completions, or pairs, in a micro-batch of each process.
    pub per_device_train_batch_size: usize,
    /// The same in an evaluation; as in training if not given.
    pub per_device_eval_batch_size: Option<usize>,
    /// Micro-batches in an optimizer step.
    pub gradient_accumulation_steps: usize,
    /// Micro-batches that one generation supplies; gradient_accumulation_steps if not given.
    pub steps_per_generation: Option<usize>,
    /// How often each generation is trained on.
    pub num_iterations: usize,
    /// Most tokens in a micro-batch, a prompt counted once for all its completions: a step's rows
    /// are parted by that rather than by their number. A row that is longer goes alone.
    pub max_tokens_per_microbatch: Option<usize>,
    /// Keep only the layers' inputs for the backward pass, and run each layer again in it: the same
    /// result in less memory. Off if not given, since it takes about a fifth more time, and what is
    /// kept is small here, without padding and with each prompt once.
    pub gradient_checkpointing: bool,
    /// Optimizer steps of the run; -1 for as many as num_train_epochs takes.
    pub max_steps: i64,
    /// Passes over the dataset, where max_steps is not given.
    pub num_train_epochs: f64,
    /// Draw prompts in random order.
    pub shuffle_dataset: bool,

    /// Train a low-rank adapter (LoRA, arXiv 2106.09685) and leave the model's own weights as they
    /// are; so does lora_r. If the model is an adapter's folder, training goes on with that one.
    pub use_peft: bool,
    /// Rank of a new adapter; 16 if not given.
    pub lora_r: Option<usize>,
    /// What the adapter adds is multiplied by this over its rank; 32 if not given.
    pub lora_alpha: Option<f64>,
    /// Multiply by lora_alpha over the root of the rank (rsLoRA, arXiv 2312.03732).
    pub use_rslora: Option<bool>,
    /// Linear layers that have a part in a new adapter, of q_proj, k_proj, v_proj, o_proj, gate_proj,
    /// up_proj and down_proj; all-linear, which is all of them, if not given.
    pub lora_target_modules: Option<Vec<String>>,
    /// Dropout before the adapter; there is none here, so that only 0 will do.
    pub lora_dropout: f64,

    /// Peak learning rate. If not given: 1e-6, as in TRL, from 100 million parameters upward,
    /// and for smaller models 1e-6 times 100 million over their number of parameters, or times
    /// the root of that for algorithms that learn from pairs; ten times that for an adapter.
    pub learning_rate: Option<f64>,
    /// How the learning rate goes on after the warmup.
    pub lr_scheduler_type: LrSchedule,
    /// Steps in which the learning rate rises from zero, or, below 1, a fraction of the run.
    pub warmup_steps: f64,
    /// The same as a fraction of the run, where warmup_steps is 0.
    pub warmup_ratio: f64,
    /// Decoupled weight decay of AdamW.
    pub weight_decay: f64,
    /// AdamW's decay of the first moment.
    pub adam_beta1: f64,
    /// AdamW's decay of the second moment.
    pub adam_beta2: f64,
    /// AdamW's epsilon.
    pub adam_epsilon: f64,
    /// Longest gradient; longer ones are scaled down to it. 0 for no limit.
    pub max_grad_norm: f64,

    /// Steps between logged figures, or a fraction of the run.
    pub logging_steps: Period,
    /// Steps between evaluations, or a fraction of the run; save_steps if not given. There is one
    /// more at the end.
    pub eval_steps: Option<Period>,
    /// Evaluate before the first step too.
    pub eval_on_start: bool,
    /// Steps between checkpoints, or a fraction of the run; one more is saved at the end.
    pub save_steps: Period,
    /// Most checkpoints kept; all if not given. The newest and the best always are.
    #[serde(alias = "max_ckpt_num")]
    pub save_total_limit: Option<usize>,
    /// Save the model alone: smaller checkpoints, from which no run can go on.
    pub save_only_model: bool,
    /// When a checkpoint can't be written: fail, or continue to the next save.
    pub on_save_error: OnSaveError,
    /// End with the best checkpoint by metric_for_best_model rather than with the last.
    pub load_best_model_at_end: bool,
    /// The figure by which checkpoints are compared: of the last evaluation (eval_...), or averaged
    /// over the steps since the checkpoint before; "reward" if load_best_model_at_end is set. The
    /// best is never removed.
    pub metric_for_best_model: Option<String>,
    /// Whether more of it is better; if not given, unless its name ends in "loss".
    pub greater_is_better: Option<bool>,
    /// Which completions go to completions.jsonl.
    pub log_completions: LogCompletions,

    /// Where figures go beside metrics.jsonl.
    pub report_to: ReportTo,
    /// Serve the newest figures over HTTP on this port, under /metrics, for Prometheus.
    pub metrics_port: Option<u16>,
    /// Address on which they are served.
    pub metrics_address: String,

    /// Take up changes of plugin files and of the run's config.toml while the run goes on.
    pub hot_reload: bool,
    /// Settings of the algorithm's plugin.
    pub loss: Map<String, Value>,
    /// What the algorithm's plugin may use.
    pub loss_limits: Limits,
    /// Reward plugins.
    pub plugin: Vec<PluginEntry>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            model: None,
            dataset: None,
            dataset_train_split: "train".into(),
            eval_dataset: None,
            dataset_test_split: "test".into(),
            columns: Vec::new(),
            output_dir: None,
            algorithm: "grpo".into(),
            learn_from: LearnFrom::Generation,
            seed: 42,
            device: Device::Auto,
            bf16: None,
            num_threads: None,
            dist_timeout_s: 1800.0,
            reduce_dtype: ReduceDtype::Float32,
            overlap_comm: true,
            ranks: 1,
            num_generations: None,
            max_completion_length: 512,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: None,
            repetition_penalty: 1.0,
            stop: Vec::new(),
            max_num_seqs: 256,
            sync_ref_model: false,
            ref_model_mixup_alpha: 0.6,
            ref_model_sync_steps: 512,
            precompute_ref_log_probs: false,
            max_length: Some(1024),
            completion_only_loss: true,
            assistant_only_loss: false,
            packing: false,
            per_device_train_batch_size: 8,
            per_device_eval_batch_size: None,
            gradient_accumulation_steps: 1,
            steps_per_generation: None,
            num_iterations: 1,
            max_tokens_per_microbatch: None,
            gradient_checkpointing: false,
            max_steps: -1,
            num_train_epochs: 3.0,
            shuffle_dataset: true,
            use_peft: false,
            lora_r: None,
            lora_alpha: None,
            use_rslora: None,
            lora_target_modules: None,
            lora_dropout: 0.0,
            learning_rate: None,
            lr_scheduler_type: LrSchedule::Linear,
            warmup_steps: 0.0,
            warmup_ratio: 0.0,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            max_grad_norm: 1.0,
            logging_steps: Period::steps(10),
            eval_steps: None,
            eval_on_start: false,
            save_steps: Period::steps(500),
            save_total_limit: None,
            save_only_model: false,
            on_save_error: OnSaveError::Fail,
            load_best_model_at_end: false,
            metric_for_best_model: None,
            greater_is_better: None,
            log_completions: LogCompletions::Sample,
            report_to: ReportTo::Tensorboard,
            metrics_port: None,
            metrics_address: "127.0.0.1".into(),
            hot_reload: true,
            loss: Map::new(),
            loss_limits: Limits::default(),
            plugin: Vec::new(),
        }
    }
}

impl Config {
    /// Micro-batches that one generation supplies.
    pub fn steps_per_generation(&self) -> usize {
        self.steps_per_generation.unwrap_or(self.gradient_accumulation_steps)
    }

    /// Completions, or pairs, in a micro-batch of all processes together.
    pub fn batch_size(&self) -> usize {
        self.per_device_train_batch_size * self.ranks
    }

    /// The same in an evaluation.
    pub fn eval_batch_size(&self) -> usize {
        self.per_device_eval_batch_size.unwrap_or(self.per_device_train_batch_size) * self.ranks
    }

    /// Columns of the dataset that are read under other names: the name that is wanted, and the
    /// dataset's own.
    pub fn columns(&self) -> Vec<(String, String)> {
        let parts = self.columns.iter().flat_map(|given| given.split(','));
        let pair = |(name, own): (&str, &str)| (name.trim().to_owned(), own.trim().to_owned());
        parts.filter_map(|part| part.split_once('=').map(pair)).collect()
    }

    /// Completions in one generation.
    pub fn generation_batch_size(&self) -> usize {
        self.batch_size() * self.steps_per_generation()
    }

    /// Completions of each prompt.
    pub fn group(&self) -> usize {
        self.num_generations.unwrap_or(8)
    }

    /// The figure by which checkpoints are compared, and whether more of it is better.
    pub fn best_by(&self) -> Option<(&str, bool)> {
        let name = self.metric_for_best_model.as_deref().or_else(|| self.load_best_model_at_end.then_some("reward"))?;
        Some((name, self.greater_is_better.unwrap_or(!name.ends_with("loss"))))
    }

    /// Prompts in one generation.
    pub fn prompts_per_generation(&self) -> usize {
        self.generation_batch_size() / self.group()
    }
}
