//! The configuration keys of a run. `rlhost train --help` prints their doc comments.

use super::named_keys::NamedKeys;
use super::{
    AgentEntry, CompletionLogging, CompletionSource, Device, IntervalStrategy, LrSchedule, ModelDtype, OldLogpSource,
    OptimizerName, PackingStrategy, Period, PluginEntry, PluginLimits, ReduceDtype, ReportTarget, RolloutDtype, RolloutLogMode,
    RolloutSync, SaveErrorAction, TeacherModelKind, ZeroStage,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The default algorithm.
pub const DEFAULT_ALGORITHM: &str = "grpo";

/// The configuration of a training run. Attributes hold what else is known about a key, by [`super::keys`] and [`super::shown`]. `on_resume = "free"`: the
/// key may change when the run resumes, since it does not change results; `"compared"`: what it names is compared separately.
/// `rank = "own"`: each process has its own value. `aliases`: its names in other programs. `live`: it may change while a run goes
/// on. `flag = false`: it has no flag. `inherited_with`: a run that starts from another's checkpoint inherits it only with the same
/// algorithm, or the same value of the key that this names. `reach`: what it reaches outside the run; `"granted"` if a run's folder can't
/// set it by itself, `"read"` if it names something to read, `"written"` if it is about where the run writes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Hugging Face model folder of a family that `rlhost models` lists, or its name on the hub, OWNER/NAME or
    /// OWNER/NAME@REVISION; a run's folder means its newest checkpoint [default: a small built-in model]
    #[schemars(extend("heading" = "Model", "rank" = "own", "aliases" = ["model_name_or_path"], "reach" = "read"))]
    pub model: Option<String>,
    /// Value model of algorithms with a critic, such as ppo: a model folder or a name on the hub, such as a reward model's, whose
    /// score.weight becomes the value head; policy for a copy of the policy's initial model; or shared for a head on the policy
    /// itself, whose loss then also trains the policy [default: the first reward model with the policy's tokenizer, or else
    /// policy]
    #[schemars(extend("rank" = "own", "aliases" = ["critic_pretrain"], "inherited_with" = "algorithm", "reach" = "read"))]
    pub value_model: Option<String>,
    /// Reference model of algorithms that compare the policy with one, such as dpo and kto: a model folder or a name on the hub,
    /// with the policy's tokenizer. It is not trained [default: the model that the run starts with]
    #[schemars(extend("rank" = "own", "aliases" = ["ref_model_name_or_path", "ref_pretrain"], "inherited_with" = "algorithm", "reach" = "read"))]
    pub ref_model: Option<String>,
    /// Teacher of algorithms that learn from another model's predictions, such as distillation: a model folder or a name on the hub,
    /// with the policy's tokenizer. It is not trained [default: none]
    #[schemars(extend("rank" = "own", "aliases" = ["teacher_model_name_or_path"], "inherited_with" = "algorithm", "reach" = "read"))]
    pub teacher_model: Option<String>,
    /// Which model the teacher is: named for teacher_model; base for the one that the run starts with; live for the policy itself, which
    /// learns what it would write if it read the prompt that teacher_prompt_template builds; ema for an exponential moving average of the
    /// policy, which starts as base; or dataset for another model, whose likeliest tokens are in the dataset's columns teacher_token_ids and
    /// teacher_logprobs [default: named]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub teacher_model_kind: TeacherModelKind,
    /// With teacher_model_kind = "ema": weight of the policy in each update of the average [default: 0.05]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub teacher_update_rate: f64,
    /// With teacher_model_kind = "ema": steps between updates of the average [default: 1]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub teacher_sync_steps: u64,
    /// Prompt that the teacher reads in place of the policy's: {prompt} is the policy's prompt, or its last question, and {privileged_context}
    /// or another name a column of the row, as in "{prompt}\n\n{privileged_context}" [default: the policy's]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub teacher_prompt_template: Option<String>,
    /// Inference server of the teacher, in place of teacher_model: vLLM, SGLang or rlhost serve, as in "http://node1:8000". It says the
    /// log-probabilities of completions' tokens, from which teacher_kl_coef and loss_type = "policy_gradient" learn, and those of the likeliest
    /// tokens in their place, over which loss_top_k computes divergences. Several have names, as in "maths=http://node1:8000", and the
    /// dataset's column `teacher` names each row's [default: none]
    #[schemars(extend("aliases" = ["teacher_model_server_url"], "inherited_with" = "algorithm", "reach" = "granted"))]
    pub teacher_server: Vec<String>,
    /// Hold the teacher's linear layers in 8 bits, like bitsandbytes; CPU only [default: false]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub teacher_load_in_8bit: bool,
    /// Hold the teacher's linear layers in 4 bits (NF4); CPU only [default: false]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub teacher_load_in_4bit: bool,
    /// Training dataset with a column "prompt": a JSON Lines, Parquet, CSV or text file, optionally compressed, a folder of
    /// shards, or a name on the hub, OWNER/NAME or OWNER/NAME/SUBSET [default: built-in forum posts to summarise]
    #[schemars(extend("heading" = "Data", "on_resume" = "free", "rank" = "own", "aliases" = ["dataset_name"], "reach" = "read"))]
    pub dataset: Option<String>,
    /// Split of a hub dataset or folder to train on, or parts of splits, as in train[:10%]+validation[:50] [default: train]
    #[schemars(extend("on_resume" = "free"))]
    pub dataset_train_split: String,
    /// Dataset to evaluate on, in the same formats as the training dataset [default: none, no evaluation]
    #[schemars(extend("on_resume" = "free", "rank" = "own", "reach" = "read"))]
    pub eval_dataset: Option<String>,
    /// Split of a hub dataset or folder to evaluate on, in the same form [default: test]
    #[schemars(extend("on_resume" = "free"))]
    pub dataset_test_split: String,
    /// Rename dataset columns, as in prompt=question; separate several with commas or repeat the flag
    #[schemars(extend("on_resume" = "free"))]
    pub columns: Vec<String>,
    /// System message of each prompt; a conversation that has its own keeps it. Plain prompts become conversations if the model has a
    /// chat template; without one, the text comes before the prompt [default: none]
    pub system_prompt: Option<String>,
    /// Build each prompt from columns, as in '{question}' or '{question} Reply in {lang}.'; {{ and }} mean braces. It becomes a user
    /// message if the model has a chat template [default: none, the column "prompt"]
    pub prompt_template: Option<String>,
    /// Refuse a dataset with unusable rows instead of skipping them with a warning [default: false]
    #[schemars(extend("on_resume" = "free"))]
    pub strict_data: bool,
    /// Chat template to use instead of the model's: a Jinja file, a folder with a tokenizer's files, or a model's name on the hub.
    /// Checkpoints contain it, and a folder's end token goes with it [default: the model's]
    #[schemars(extend("rank" = "own", "reach" = "read"))]
    pub chat_template_path: Option<String>,
    /// Token that ends texts and completions; must be in the tokenizer [default: the tokenizer's]
    pub eos_token: Option<String>,
    /// For reward models: the padding token; a text's value is that of its last other token [default: the tokenizer's]
    pub pad_token: Option<String>,
    /// Date that strftime_now gives in chat templates, as in 2024-07-26 or 2024-07-26T12:00:00 [default: none; templates then use
    /// their built-in date, so that results don't depend on the day]
    pub strftime_now: Option<String>,
    /// Output directory of the run [default: runs/TIME]
    #[schemars(extend("heading" = "Saving", "on_resume" = "compared", "reach" = "written"))]
    pub output_dir: Option<String>,
    /// Algorithm: the name of a built-in plugin, or the path of one [default: grpo]
    #[schemars(extend("heading" = "Algorithm", "on_resume" = "compared", "reach" = "read"))]
    pub algorithm: String,
    /// Completions to train on: the policy's own (generation) or the dataset's (dataset) [default: generation]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub learn_from: CompletionSource,
    /// For distillation: share of rows whose completions the policy writes; of the others, those of the dataset are learned. 0 is
    /// learn_from = dataset [default: 1]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub lmbda: f64,
    /// Random seed [default: 42]
    #[schemars(extend("heading" = "Training"))]
    pub seed: u64,
    /// Seed for the order of the dataset's rows [default: seed]
    pub data_seed: Option<u64>,
    /// Compute device: cuda or cuda:N (NVIDIA, needs a build with the feature cuda), cpu, or auto for the first of these that is
    /// available [default: auto]
    #[schemars(extend("heading" = "Machine", "on_resume" = "free", "rank" = "own", "examples" = ["auto", "cpu", "cuda"]))]
    pub device: Device,
    /// Compute in bf16, with f32 weights and moments for the updates; false for f32 throughout. On the CPU, this needs AMX or
    /// AVX-512 BF16 and applies to the inputs of matrix products and to what layers keep for the backward pass; everything else
    /// and all sums are f32 [default: true on an NVIDIA device, false on the CPU]
    #[schemars(extend("on_resume" = "free"))]
    pub bf16: Option<bool>,
    /// Precision of the weights on the CPU: auto (as stored), float32, bfloat16 or float16. Frozen weights, such as an adapter's
    /// base model or a reference model, keep it in memory; trained weights become float32. bf16 sets the precision of the
    /// computation [default: auto]
    #[schemars(extend("heading" = "Model", "aliases" = ["torch_dtype"]))]
    pub dtype: ModelDtype,
    /// Hold the linear layers of an adapter's base model in 8 bits, like bitsandbytes; CPU only [default: false]
    pub load_in_8bit: bool,
    /// Hold the linear layers of an adapter's base model in 4 bits (NF4), for QLoRA; CPU only [default: false]
    pub load_in_4bit: bool,
    /// Number of CPU threads; to compare, run `rlhost bench --num-threads N` [default: one per processor available to the
    /// process]
    #[schemars(extend("heading" = "Machine", "on_resume" = "free", "rank" = "own"))]
    pub num_threads: Option<usize>,
    /// Seconds to wait for the other processes of the run before ending it [default: 1800]
    #[schemars(extend("on_resume" = "free", "rank" = "own", "aliases" = ["ddp_timeout"]))]
    pub dist_timeout_s: f64,
    /// Precision of gradients sent between processes: float32, or bfloat16, which halves the bytes and rounds each process's
    /// values and their sum to 8 bits of precision [default: float32]
    pub reduce_dtype: ReduceDtype,
    /// Sum the gradients of finished layers over the processes while the backward pass continues; results are bit-identical
    /// [default: true]
    #[schemars(extend("on_resume" = "free"))]
    pub overlap_comm: bool,
    /// Divide what training holds of a model among the processes (ZeRO): 1 the optimizer's moments, 2 also the gradients, 3 also the
    /// parameters, which are gathered layer by layer where a pass needs them; 0 leaves all to each process. Only rounding
    /// differs; CPU only from 1 on [default: 0]
    #[schemars(extend("on_resume" = "free"))]
    pub zero_stage: u8,
    /// Divide models that are not trained among the processes: the one under an adapter, a reference model, a teacher. Passes gather
    /// them layer by layer [default: true with zero_stage 3]
    #[schemars(extend("on_resume" = "free"))]
    pub shard_frozen: Option<bool>,
    /// Keys that a file, a flag or --set names. An algorithm's own defaults apply to the others.
    #[serde(skip)]
    pub named: NamedKeys,

    /// Number of completions to sample per prompt; ppo and reinforce_pp don't compare them, so 1 works there too [default: 8, or
    /// 2 for rloo and algorithms that learn from pairs]
    #[schemars(extend("heading" = "Generation", "inherited_with" = "algorithm"))]
    pub num_generations: Option<usize>,
    /// Maximum length of a prompt, in tokens; longer prompts keep their last tokens [default: none; prompts as long as the
    /// model's context are skipped]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub max_prompt_length: Option<usize>,
    /// Maximum length of a completion, in tokens [default: 512, or 64 for online_dpo]
    #[schemars(extend("aliases" = ["max_new_tokens", "response_length"]))]
    pub max_completion_length: usize,
    /// Sampling temperature [default: 1, or 0.9 for online_dpo]
    pub temperature: f64,
    /// Cumulative probability of the most likely tokens to sample from [default: 1]
    pub top_p: f64,
    /// Number of most likely tokens to sample from; 0 for all [default: 0]
    pub top_k: usize,
    /// Minimum probability of a token, relative to the most likely token's [default: none]
    pub min_p: Option<f64>,
    /// Penalty on tokens that already occurred: divides their logits if positive, multiplies them if negative; 1 for none
    /// [default: 1]
    pub repetition_penalty: f64,
    /// Score each token among the tokens that top_p, top_k, min_p and repetition_penalty allow, as in sampling; false scores over
    /// the whole vocabulary, as in TRL [default: true]
    pub score_sampling_support: Option<bool>,
    /// Log-probabilities that ratios are relative to: those of sampling (sampling), or those of a training forward pass right
    /// after the generation (recompute) [default: sampling; recompute in bf16 or with a rollout_dtype, where the two differ]
    #[schemars(extend("inherited_with" = "rollout_dtype"))]
    pub old_logp: Option<OldLogpSource>,
    /// Precision of the weights that completions are generated with: that of training (auto), bfloat16 or int8, which are read
    /// faster; with int8, their inputs are rounded too. Log-probabilities are then recomputed for training;
    /// vllm_importance_sampling_correction corrects for what sampling rounds. Evaluations use auto. For the CPU [default: auto]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub rollout_dtype: RolloutDtype,
    /// String that ends a completion; may be repeated
    pub stop: Vec<String>,
    /// Maximum number of sequences generated at once [default: 256]
    #[schemars(extend("on_resume" = "free"))]
    pub max_num_seqs: usize,
    /// Inference server that generates completions: the base URL of vLLM, SGLang or rlhost serve; several as a list, or the flag repeated
    /// [default: none; the run generates them itself]
    #[schemars(extend("on_resume" = "free", "aliases" = ["vllm_server_base_url"], "reach" = "granted"))]
    pub rollout_server: Vec<String>,
    /// How rollout servers get the policy's weights: its adapter (lora) or all weights (disk), both as files [default: lora if an
    /// adapter is trained, or else disk]
    #[schemars(extend("on_resume" = "free"))]
    pub rollout_sync: Option<RolloutSync>,
    /// Folder for these files, which the servers see under the same path [default: rollout_sync in the run's folder]
    #[schemars(extend("on_resume" = "free", "reach" = "granted"))]
    pub rollout_sync_dir: Option<String>,
    /// Seconds that a rollout server has to answer a request, and that the run waits for a server if there is none [default: 600]
    #[schemars(extend("on_resume" = "free", "aliases" = ["vllm_server_timeout"]))]
    pub rollout_timeout_s: f64,
    /// With rollout servers or an agent: number of updates that the policy may be ahead of the one that wrote a completion when training
    /// on it begins, at most 64; generations that this leaves room for are made while training goes on [default: 0]
    pub max_staleness: u64,
    /// Generations whose completions the run keeps in the folder rollouts: those that no checkpoint has (unsaved), so that a resumed run
    /// trains on them, or all, so that rlhost replay --train can repeat the run; or none [default: auto, which is unsaved if an agent or
    /// rollout servers write completions and none otherwise]
    #[schemars(extend("on_resume" = "free"))]
    pub rollout_log: RolloutLogMode,
    /// Run whose logged completions are trained on, in place of completions of the policy; it was made with rollout_log = "all"
    #[schemars(extend("reach" = "read"))]
    pub replay_rollouts: Option<String>,

    /// Train only on prompts whose completions' rewards differ, and generate for more prompts until there are enough (dynamic
    /// sampling, DAPO, arXiv 2503.14476) [default: false]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub filter_groups: bool,
    /// With filter_groups or skip_groups: name of the reward that must differ [default: the weighted sum of all]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub filter_groups_metric: Option<String>,
    /// With filter_groups: maximum number of generations per step; the run ends if they don't give enough prompts [default: 10]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub max_num_gen_batches: u64,
    /// Probability of skipping a prompt whose completions' rewards did not differ the last times, because it is always or never
    /// solved [default: 0]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub skip_groups: f64,
    /// With skip_groups: number of these times [default: 2]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub skip_groups_after: u32,

    /// Synchronize the reference model with the policy during training (TR-DPO, arXiv 2404.09656) [default: false]
    #[schemars(extend("heading" = "Algorithm"))]
    pub sync_ref_model: bool,
    /// With sync_ref_model: weight of the policy in the mix; the rest is the reference model's [default: 0.6]
    pub ref_model_mixup_alpha: f64,
    /// With sync_ref_model: steps between synchronizations [default: 512]
    pub ref_model_sync_steps: u64,
    /// Compute the reference model's log-probabilities of the dataset once, before training, then free the model [default: false]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub precompute_ref_log_probs: bool,

    /// Maximum length of a text, or of a prompt with its given completion, in tokens; longer ones are truncated at the end. none
    /// for the model's context [default: 1024]
    #[schemars(extend("heading" = "Data"))]
    #[serde(with = "super::limit")]
    #[schemars(with = "Option<usize>")]
    pub max_length: Option<usize>,
    /// Compute the loss only on the completion, if the dataset has prompts and completions [default: true]
    pub completion_only_loss: bool,
    /// Compute the loss only on the assistant's turns of a conversation: what the chat template marks with {% generation %}, or
    /// without marks, each turn with its end token [default: false]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub assistant_only_loss: bool,
    /// Pack texts of the dataset into sequences of max_length tokens. Texts do not attend to each other, except with wrapped;
    /// per_device_train_batch_size counts packs [default: false]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub packing: bool,
    /// With packing: bfd (best-fit decreasing) truncates texts longer than max_length, bfd_split splits them, and wrapped
    /// concatenates all texts and cuts them into sequences of max_length [default: bfd]
    pub packing_strategy: PackingStrategy,
    /// Pack the texts of the evaluation dataset, by packing_strategy [default: packing]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub eval_packing: Option<bool>,

    /// Batch size per process for training: completions or pairs per micro-batch, or for online_dpo prompts, each with a pair of
    /// completions, as in TRL [default: 8]
    #[schemars(extend("heading" = "Training"))]
    pub per_device_train_batch_size: usize,
    /// Batch size per process for evaluation [default: per_device_train_batch_size]
    #[schemars(extend("heading" = "Evaluation", "on_resume" = "free"))]
    pub per_device_eval_batch_size: Option<usize>,
    /// Number of micro-batches to accumulate gradients over before an update [default: 1]
    #[schemars(extend("heading" = "Training"))]
    pub gradient_accumulation_steps: usize,
    /// Number of micro-batches per generation [default: gradient_accumulation_steps]
    pub steps_per_generation: Option<usize>,
    /// Number of completions in a generation, over all processes; replaces steps_per_generation [default: none]
    pub generation_batch_size: Option<usize>,
    /// Number of times to train on each generation [default: 1]
    #[schemars(extend("aliases" = ["num_ppo_epochs"]))]
    pub num_iterations: usize,
    /// Number of mini-batches to split each generation into, with an update each. If num_iterations is more than 1, prompts go
    /// into other mini-batches each time [default: none; one update per gradient_accumulation_steps micro-batches, the same each
    /// time]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub num_mini_batches: Option<usize>,
    /// Maximum number of tokens in a micro-batch; a step's rows are then split by tokens instead of by count. A prompt counts
    /// once for all its completions; a longer row gets a micro-batch of its own [default: none]
    #[schemars(extend("on_resume" = "free"))]
    pub max_tokens_per_microbatch: Option<usize>,
    /// NEFTune noise alpha (arXiv 2310.05914): adds uniform noise of at most alpha / sqrt(tokens * width) to the embeddings of
    /// the dataset's texts in training; none in generation and evaluation [default: none]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub neftune_noise_alpha: Option<f64>,
    /// Label smoothing factor: share of each target spread evenly over the vocabulary; for sft with loss_type nll [default: 0]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub label_smoothing_factor: f64,
    /// Save memory by recomputing each layer in the backward pass: same results, about a fifth slower. It saves little here,
    /// because there is no padding and each prompt is stored once [default: false]
    #[schemars(extend("on_resume" = "free"))]
    pub gradient_checkpointing: bool,
    /// Coefficient of the auxiliary loss that balances the experts of a mixture, added to the training loss; 0 to disable it
    /// [default: from the model's config.json]
    pub router_aux_loss_coef: Option<f64>,
    /// Total number of optimizer steps; -1 to use num_train_epochs [default: -1]
    #[schemars(extend("on_resume" = "free"))]
    pub max_steps: i64,
    /// Number of epochs to train, if max_steps is not set [default: 3]
    #[schemars(extend("on_resume" = "free"))]
    pub num_train_epochs: f64,
    /// Shuffle the training dataset [default: true; labelled rows keep the dataset's order]
    pub shuffle_dataset: Option<bool>,
    /// Drop the last incomplete batch of an epoch; always the case when single completions are generated [default: false]
    pub dataloader_drop_last: bool,

    /// Train a LoRA adapter (arXiv 2106.09685) and leave the model's weights unchanged; implied by lora_r. If the model is an
    /// adapter's folder, continue with that adapter [default: false]
    #[schemars(extend("heading" = "Adapter"))]
    pub use_peft: bool,
    /// Rank of a new adapter [default: 16]
    pub lora_r: Option<usize>,
    /// LoRA alpha: the adapter's output is scaled by lora_alpha / lora_r [default: 32]
    pub lora_alpha: Option<f64>,
    /// Scale by lora_alpha / sqrt(lora_r) instead (rsLoRA, arXiv 2312.03732) [default: false]
    pub use_rslora: Option<bool>,
    /// Give each output of an adapted layer a trained magnitude beside its direction (DoRA, arXiv 2402.09353); CPU only
    /// [default: false]
    pub use_dora: Option<bool>,
    /// Linear layers to adapt, by the model's own names: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj in most
    /// families, or all-linear for all of them [default: all-linear]
    pub lora_target_modules: Option<Vec<String>>,
    /// Modules to train whole beside an adapter: embed_tokens, lm_head, norms by the model's own names. As in peft, a name means
    /// all modules whose names end with it, and an output matrix that was the embedding becomes one by itself [default: none]
    pub lora_modules_to_save: Option<Vec<String>>,
    /// Matrices of experts to adapt: mlp.experts.gate_up_proj and mlp.experts.down_proj in most mixtures of experts. As in peft,
    /// without dropout and magnitudes [default: none]
    pub lora_target_parameters: Option<Vec<String>>,
    /// Dropout probability of the adapter's input in training; none in generation and evaluation [default: 0.05 as in TRL, or the
    /// adapter folder's value; 0 on an NVIDIA device, which has no kernel for it yet]
    pub lora_dropout: Option<f64>,

    /// Peak learning rate [default: as in TRL, 1e-4 for reward_model, 2e-5 for sft, 3e-6 for ppo, 5e-7 for online_dpo and 1e-6
    /// for the other algorithms, from 100 million parameters upward; for smaller models multiplied by 100 million / parameters,
    /// or by the square root of that for algorithms that learn from pairs or given completions; ten times that for an adapter]
    #[schemars(extend("heading" = "Optimizer", "inherited_with" = "algorithm"))]
    pub learning_rate: Option<f64>,
    /// Peak learning rate of the critic [default: as in OpenRLHF, 9e-6 from 100 million parameters upward, scaled like
    /// learning_rate for smaller models and for adapters; with value_model = "shared", learning_rate]
    #[schemars(extend("inherited_with" = "algorithm"))]
    pub critic_learning_rate: Option<f64>,
    /// Learning rate schedule, by transformers' name: linear, cosine, constant, constant_with_warmup, cosine_with_restarts,
    /// cosine_with_min_lr, cosine_warmup_with_min_lr, polynomial, inverse_sqrt, warmup_stable_decay, or reduce_lr_on_plateau,
    /// which follows metric_for_best_model at each evaluation [default: linear]
    pub lr_scheduler_type: LrSchedule,
    /// Settings of the schedule, by transformers' names: as in --set lr_scheduler_kwargs.min_lr_rate=0.1 or, as a flag, in JSON.
    /// warmup_stable_decay needs num_decay_steps; cosine_with_min_lr needs min_lr or min_lr_rate
    pub lr_scheduler_kwargs: Map<String, Value>,
    /// Number of steps of linear warmup from 0; below 1, a fraction of the run [default: 0]
    pub warmup_steps: f64,
    /// Warmup as a fraction of the run, used if warmup_steps is 0 [default: 0]
    pub warmup_ratio: f64,
    /// Optimizer, by transformers' name: adamw_torch, adamw_8bit (with moments in 8 bits, like bitsandbytes), sgd, rmsprop,
    /// lion_32bit, adafactor, or muon for the layers' matrices with AdamW for everything else. NVIDIA devices support only
    /// adamw_torch [default: adamw_torch]
    pub optim: OptimizerName,
    /// Settings of the optimizer, as in momentum=0.9,nesterov=true for sgd
    #[schemars(extend("inherited_with" = "optim"))]
    pub optim_args: Map<String, Value>,
    /// Weight decay, decoupled from the gradient except for sgd and rmsprop; not applied to norms and biases [default: 0]
    pub weight_decay: f64,
    /// beta1 of AdamW (including Muon's) and Lion [default: 0.9]
    pub adam_beta1: f64,
    /// beta2 of AdamW (including Muon's) and Lion [default: 0.999]
    pub adam_beta2: f64,
    /// Epsilon of AdamW (including Muon's) [default: 1e-8]
    pub adam_epsilon: f64,
    /// Clip the gradient norm to this value; 0 for no limit [default: 1]
    pub max_grad_norm: f64,

    /// When to log: by steps (logging_steps), after each epoch (epoch), or only at the end (no) [default: steps]
    #[schemars(extend("heading" = "Logging", "on_resume" = "free"))]
    pub logging_strategy: IntervalStrategy,
    /// Log every N steps; below 1, a fraction of the run [default: 10]
    #[schemars(extend("on_resume" = "free"))]
    pub logging_steps: Period,
    /// Also log the first step [default: false]
    #[schemars(extend("on_resume" = "free"))]
    pub logging_first_step: bool,
    /// When to evaluate on eval_dataset: by steps (eval_steps) and at the end, after each epoch (epoch), or never (no) [default:
    /// steps if there is an eval_dataset]
    #[schemars(extend("heading" = "Evaluation", "on_resume" = "free"))]
    pub eval_strategy: Option<IntervalStrategy>,
    /// Evaluate every N steps and at the end; below 1, a fraction of the run [default: logging_steps with --eval-strategy steps, as
    /// in transformers; otherwise save_steps]
    #[schemars(extend("on_resume" = "free"))]
    pub eval_steps: Option<Period>,
    /// Also evaluate before the first step [default: false]
    #[schemars(extend("on_resume" = "free"))]
    pub eval_on_start: bool,
    /// No evaluation before this many steps; with eval_strategy epoch, epochs [default: 0]
    #[schemars(extend("on_resume" = "free"))]
    pub eval_delay: f64,
    /// Number of completions to sample per prompt in evaluations [default: num_generations]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub num_generations_eval: Option<usize>,
    /// Sampling temperature of evaluations; 0 for greedy decoding [default: temperature]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub eval_temperature: Option<f64>,
    /// top_p of evaluations [default: top_p]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub eval_top_p: Option<f64>,
    /// top_k of evaluations [default: top_k]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub eval_top_k: Option<usize>,
    /// min_p of evaluations [default: min_p]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub eval_min_p: Option<f64>,
    /// Log pass@k and maj@k in evaluations: a completion solves its prompt if its reward is at least this [default: none, neither
    /// is logged]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub eval_pass_threshold: Option<f64>,
    /// With eval_pass_threshold: the reward that decides whether a prompt is solved [default: the first]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub eval_pass_reward: Option<String>,
    /// With eval_pass_threshold: the values of k [default: powers of two up to num_generations_eval, and itself]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub eval_pass_k: Vec<usize>,
    /// With eval_pass_threshold: text after which a completion's answer begins, as in "####" or "\boxed{"; it ends with the line
    /// or the closing brace. maj@k counts equal answers [default: none, the whole completion is the answer]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub eval_answer_after: Option<String>,
    /// When to save a checkpoint: by steps (save_steps), after each epoch (epoch), or only at the end (no) [default: steps]
    #[schemars(extend("heading" = "Saving", "on_resume" = "free"))]
    pub save_strategy: IntervalStrategy,
    /// Save a checkpoint every N steps and at the end; below 1, a fraction of the run [default: 500]
    #[schemars(extend("on_resume" = "free"))]
    pub save_steps: Period,
    /// Maximum number of checkpoints to keep; the newest and the best are always kept. 0 or less for all [default: all]
    #[schemars(extend("on_resume" = "free", "aliases" = ["max_ckpt_num"]))]
    pub save_total_limit: Option<i64>,
    /// Save only the model: checkpoints are smaller but can't be resumed [default: false]
    #[schemars(extend("on_resume" = "free"))]
    pub save_only_model: bool,
    /// If a checkpoint can't be written: fail, or continue to the next save [default: fail]
    #[schemars(extend("on_resume" = "free"))]
    pub on_save_error: SaveErrorAction,
    /// End with the best checkpoint by metric_for_best_model instead of the last [default: false]
    #[schemars(extend("on_resume" = "free"))]
    pub load_best_model_at_end: bool,
    /// Metric to compare checkpoints by: the last evaluation's, with or without eval_ as in transformers; in a run without
    /// evaluations, the average over the steps since the previous checkpoint. The best checkpoint is never removed [default with
    /// load_best_model_at_end: reward; of algorithms that learn from given answers, loss]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub metric_for_best_model: Option<String>,
    /// Whether a greater metric_for_best_model is better [default: true, unless its name ends in "loss"]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub greater_is_better: Option<bool>,
    /// End the run after this many consecutive evaluations without improvement of metric_for_best_model [default: none]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub early_stopping_patience: Option<u64>,
    /// With early_stopping_patience: minimum change of the best value so far that counts as an improvement [default: 0]
    #[schemars(extend("on_resume" = "free", "inherited_with" = "algorithm"))]
    pub early_stopping_threshold: f64,
    /// Completions to write to completions.jsonl: none, sample (those of each generation's first prompt) or all [default: sample]
    #[schemars(extend("heading" = "Logging", "on_resume" = "free", "bare" = "true"))]
    pub log_completions: CompletionLogging,

    /// Where to report metrics besides metrics.jsonl: none, all, or some of tensorboard, wandb, mlflow and trackio. For the last
    /// three, the run ends by writing files for their own clients to its folder; nothing is uploaded [default: tensorboard]
    #[schemars(extend("on_resume" = "free", "reach" = "written"))]
    pub report_to: Vec<ReportTarget>,
    /// Name of the run in trackers [default: its folder's]
    #[schemars(extend("on_resume" = "free"))]
    pub run_name: Option<String>,
    /// Port on which to serve the latest metrics to Prometheus, at /metrics [default: none]
    #[schemars(extend("on_resume" = "free", "reach" = "granted"))]
    pub metrics_port: Option<u16>,
    /// Address on which to serve them [default: 127.0.0.1]
    #[schemars(extend("on_resume" = "free", "reach" = "granted"))]
    pub metrics_address: String,

    /// More variables for the chat template, as in --set chat_template_kwargs.enable_thinking=false or, as a flag, in JSON; a
    /// dataset column of this name sets them for a row and takes precedence
    #[schemars(extend("heading" = "Data"))]
    pub chat_template_kwargs: Map<String, Value>,
    /// Answer plugins' requests only from the run's record; contact no server [default: false]
    #[schemars(extend("heading" = "Plugins", "on_resume" = "free"))]
    pub replay_only: bool,
    /// Reload plugin files and the run's config.toml when they change during training [default: true]
    pub hot_reload: bool,
    /// Settings of the algorithm's plugin
    #[schemars(extend("on_resume" = "compared", "inherited_with" = "algorithm", "live" = true, "flag" = false))]
    pub loss: Map<String, Value>,
    /// Resource limits of the algorithm's plugin
    #[schemars(extend("on_resume" = "free", "live" = true, "flag" = false, "reach" = "granted"))]
    pub loss_limits: PluginLimits,
    /// Environment that the model acts in: the name of a built-in plugin, or the path of one; a table sets its settings, limits
    /// and weight. With several, the dataset's column `environment` names each row's [default: none; completions have one turn]
    #[schemars(extend("heading" = "Plugins", "on_resume" = "compared", "live" = true, "reach" = "granted"))]
    pub environment: Vec<PluginEntry>,
    /// Agent that the model acts for: a program that asks it over HTTP, as in "python agent.py"; a table sets its limits and weight.
    /// With several tables, the dataset's column `agent` names each row's [default: none; completions have one turn]
    #[schemars(extend("on_resume" = "free", "aliases" = ["agent_command"], "single" = true, "reach" = "granted"))]
    pub agent: Vec<AgentEntry>,
    /// Maximum number of turns of an episode [default: 10]
    pub max_turns: usize,
    /// Maximum length of an episode in tokens, including replies but not the prompt [default: the model's context]
    pub max_episode_tokens: Option<usize>,
    /// Folder with Python modules that scripts may import; several as a list, or the flag repeated [default: a script's own folder]
    #[schemars(extend("on_resume" = "free", "reach" = "read"))]
    pub python_path: Vec<String>,
    /// Reward plugins
    #[schemars(extend("on_resume" = "compared", "live" = true, "flag" = false, "reach" = "granted"))]
    pub plugin: Vec<PluginEntry>,
}

impl RunConfig {
    /// Returns whether some prompts are not trained on, so that an epoch has no fixed number of steps.
    pub fn filters_prompts(&self) -> bool {
        self.filter_groups || self.skip_groups > 0.0
    }

    /// Returns whether the texts of evaluations are packed.
    pub fn packs_evaluations(&self) -> bool {
        self.eval_packing.unwrap_or(self.packing)
    }

    /// Returns the renamed columns of the dataset: the new name and the dataset's own.
    pub fn columns(&self) -> Vec<(String, String)> {
        let parts = self.columns.iter().flat_map(|given| given.split(','));
        let pair = |(name, own): (&str, &str)| (name.trim().to_owned(), own.trim().to_owned());
        parts.filter_map(|part| part.split_once('=').map(pair)).collect()
    }

    /// Returns whether a policy that has not been trained yet gives texts the probabilities that the reference model gives them.
    pub fn begins_as_reference(&self) -> bool {
        self.ref_model.is_none() && self.neftune_alpha() <= 0.0
    }

    /// Returns whether processes share models that are not trained.
    pub fn shards_frozen(&self) -> bool {
        self.shard_frozen.unwrap_or(ZeroStage::new(self.zero_stage).shards_parameters())
    }

    /// Returns `alpha` of the noise on embeddings; 0 for none.
    pub fn neftune_alpha(&self) -> f64 {
        self.neftune_noise_alpha.unwrap_or(0.0)
    }

    /// Returns the maximum length of a given text, of a model with this context.
    pub fn max_text_length(&self, context: usize) -> usize {
        self.max_length.unwrap_or(context).min(context)
    }

    /// Returns the metric by which checkpoints are compared, and whether a greater value is better.
    pub fn best_model_metric(&self) -> Option<(&str, bool)> {
        let name = self.metric_for_best_model.as_deref()?;
        Some((name, self.greater_is_better.unwrap_or(!name.ends_with("loss"))))
    }
}
