//! Options of TRL that are not keys of rlhost, and the treatment of each. `host/docs/trl.md` has the table.

use super::PluginEntry;
use super::sharding_settings::DIVIDED;
use super::values::scalar;
use std::path::Path;
use toml::{Table, Value};

/// Treatment of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionTreatment {
    /// The option is accepted and has no effect.
    NotNeeded,
    /// The value is appended to the value of a key, after this character.
    AppendedTo(&'static str, char),
    /// The value sets this key, and overrides what files and flags set.
    Sets(&'static str),
    /// Each value sets this key to the one beside it.
    Selects(&'static str, &'static [(&'static str, &'static str)]),
    /// The values are the weights of the rewards.
    RewardWeights,
    /// The members of the value, by name, set these keys.
    Members(&'static [(&'static str, &'static str)]),
    /// The values are TRL's own rewards, for which rlhost has plugins.
    RewardFuncs,
    /// The value is a reward model.
    RewardModel,
    /// The value is a part of a rollout server's URL, or says that there is a server.
    Server,
    /// The option divides a model among the processes, as `zero_stage` does.
    Shards,
    /// The option is accepted only with one of these values, or with one that turns it off.
    Only(&'static [&'static str]),
}

/// An option of TRL that is not a key of rlhost.
#[derive(Clone, Copy, Debug)]
pub struct ForeignOption {
    /// Name of the option.
    pub name: &'static str,
    /// Treatment of the option.
    pub treatment: OptionTreatment,
    /// Reason for the treatment, in one line.
    pub why: &'static str,
}

/// Values that turn an option off, as command lines and TRL's files spell them.
const OFF: [&str; 6] = ["false", "no", "none", "null", "0", ""];

use OptionTreatment::{
    AppendedTo, Members, NotNeeded, Only, RewardFuncs, RewardModel, RewardWeights, Selects, Server, Sets, Shards,
};

const NONE: OptionTreatment = Only(&[]);

/// A plugin that replaces one of TRL's own rewards.
pub(super) struct RewardSubstitute {
    /// Name of the reward in TRL.
    pub name: &'static str,
    /// Name of the reward in TRL's metrics.
    logged: &'static str,
    pub plugin: &'static str,
    /// Settings of the plugin, with the values of TRL's scripts.
    settings: &'static [(&'static str, &'static str)],
    pub difference: &'static str,
}

pub(super) static REWARDS: [RewardSubstitute; 4] = [
    RewardSubstitute {
        name: "accuracy_reward",
        logged: "accuracy_reward",
        plugin: "answer_reward.wasm",
        settings: &[("column", "solution"), ("mode", "formula")],
        difference: "it gives the same scores for nearly all answers; sums, integrals, limits and determinants are not computed, \
                     and a reference such as 2\\sqrt{3} without dollar signs is read whole (TRL takes a number from it)",
    },
    RewardSubstitute {
        name: "reasoning_accuracy_reward",
        logged: "reasoning_accuracy_reward",
        plugin: "answer_reward.wasm",
        settings: &[("column", "solution"), ("mode", "formula"), ("after", "</think>")],
        difference: "it gives the same scores for nearly all answers; sums, integrals, limits and determinants are not computed, \
                     and a reference such as 2\\sqrt{3} without dollar signs is read whole (TRL takes a number from it)",
    },
    RewardSubstitute {
        name: "think_format_reward",
        logged: "think_format_reward",
        plugin: "format_reward.wasm",
        settings: &[],
        difference: "it gives the same scores",
    },
    RewardSubstitute {
        name: "get_soft_overlong_punishment",
        logged: "soft_overlong_punishment_reward",
        plugin: "overlong_reward.wasm",
        settings: &[("max_completion_len", "1280"), ("soft_punish_cache", "256")],
        difference: "it gives the same scores",
    },
];

/// Returns the plugin that replaces TRL's reward with this name.
pub(super) fn stand_in(reward: &str) -> Option<&'static RewardSubstitute> {
    REWARDS.iter().find(|known| known.name == reward)
}

impl RewardSubstitute {
    /// Returns the plugin's entry in the configuration.
    fn entry(&self) -> Value {
        let config: Table = self.settings.iter().map(|(key, value)| ((*key).to_owned(), scalar(value))).collect();
        let [path, name] = [self.plugin, self.logged].map(|text| Value::String(text.to_owned()));
        let members = [("path", path), ("name", name), ("config", Value::Table(config))];
        Value::Table(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }
}

/// Returns the script that a Python path names. As TRL imports it, `rewards.length` is `length` in `rewards.py` of the working folder.
pub(super) fn script_of(reward: &str) -> Option<String> {
    let (module, function) = reward.rsplit_once('.')?;
    let is_path = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    if !is_path(module) || !is_path(function) {
        return None;
    }
    let folder = module.replace('.', "/");
    let files = [format!("{folder}.py"), format!("{folder}/__init__.py")];
    files.iter().find(|file| Path::new(file).is_file()).map(|file| format!("{file}:{function}"))
}

/// Returns the entry of a reward that TRL's option names: its replacement, or the script that defines it.
fn reward_entry(reward: &str) -> Option<Value> {
    let of_path = |path: String| Value::Table(Table::from_iter([("path".to_owned(), Value::String(path))]));
    stand_in(reward).map(RewardSubstitute::entry).or_else(|| script_of(reward).map(of_path))
}

/// Returns the items of a list, or a single value as the only item.
fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

/// Returns the texts in a list, or a single text.
pub(super) fn texts(value: &Value) -> impl Iterator<Item = &str> {
    items(value).iter().filter_map(Value::as_str)
}

/// Returns a value as text in lower case.
pub(super) fn lowercase(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned).to_lowercase()
}

/// Returns whether a value turns an option off.
pub(super) fn is_off(value: &Value) -> bool {
    let is_empty = value.as_array().is_some_and(Vec::is_empty) || value.as_table().is_some_and(Table::is_empty);
    is_empty || OFF.contains(&lowercase(value).as_str()) || value.as_float() == Some(0.0)
}

/// Options, grouped by treatment and reason.
const OPTIONS: &[(OptionTreatment, &str, &[&str])] = &[
    (AppendedTo("dataset", '/'), "name the dataset OWNER/NAME/SUBSET", &["dataset_config"]),
    (AppendedTo("model", '@'), "name the model OWNER/NAME@REVISION", &["model_revision"]),
    (AppendedTo("teacher_model", '@'), "name the teacher OWNER/NAME@REVISION", &["teacher_model_revision"]),
    (Sets("model"), "the model that training starts with; --model_name_or_path is then not read", &["sft_model_path"]),
    (NotNeeded, "attention is rlhost's own: packed, exact and without padding", &["attn_implementation"]),
    (NotNeeded, "computation is in float32, or in bfloat16 with --bf16", &["tf32"]),
    (NotNeeded, "rlhost loads models itself; they never run code of their own", &["trust_remote_code"]),
    (
        NotNeeded,
        "there is no padding",
        &["pad_to_multiple_of", "padding_free", "padding_value", "group_by_length", "length_column_name"],
    ),
    (NotNeeded, "a model's own dropout is never applied", &["disable_dropout"]),
    (
        NotNeeded,
        "rlhost's own threads read and tokenize rows (--num-threads)",
        &[
            "dataloader_num_workers",
            "dataloader_pin_memory",
            "dataloader_persistent_workers",
            "dataloader_prefetch_factor",
            "dataloader_multiprocessing_context",
            "dataloader_in_order",
            "dataset_num_proc",
        ],
    ),
    (
        NotNeeded,
        "mpirun starts the processes; they need no such settings",
        &[
            "local_rank",
            "ddp_backend",
            "ddp_broadcast_buffers",
            "ddp_bucket_cap_mb",
            "ddp_find_unused_parameters",
            "ddp_static_graph",
            "ignore_bias_buffers",
            "accelerator_config",
            "save_on_each_node",
            "log_on_each_node",
            "log_level_replica",
            "ds3_gather_for_generation",
            "eval_use_gather_object",
            "average_tokens_across_devices",
            "world_size",
        ],
    ),
    (
        NONE,
        "use --per-device-train-batch-size, --gradient-accumulation-steps and --num-mini-batches, from which TRL computes it",
        &["batch_size", "local_batch_size", "local_mini_batch_size", "micro_batch_size", "mini_batch_size"],
    ),
    (NONE, "use --max-steps or --num-train-epochs, from which TRL computes it", &["num_total_batches"]),
    (
        NotNeeded,
        "rollouts come from the servers that vllm_mode server or --rollout-server names, and otherwise from the decoder that is built in",
        &[
            "use_vllm",
            "vllm_model_impl",
            "vllm_enable_sleep_mode",
            "vllm_gpu_memory_utilization",
            "vllm_group_port",
            "vllm_max_model_length",
            "vllm_tensor_parallel_size",
            "use_transformers_paged",
            "use_transformers_continuous_batching",
            "transformers_continuous_batching_config",
            "cache_implementation",
            "use_cache",
        ],
    ),
    (
        Server,
        "with vllm_mode server, it sets --rollout-server; colocate needs no server, since generation is built in",
        &["vllm_mode", "vllm_server_host", "vllm_server_port"],
    ),
    (
        NotNeeded,
        "there is no PyTorch to pass it to",
        &[
            "torch_compile",
            "torch_compile_backend",
            "torch_compile_mode",
            "torch_empty_cache_steps",
            "use_liger_kernel",
            "liger_kernel_config",
            "gradient_checkpointing_kwargs",
            "cast_lm_head_to_fp32",
            "activation_checkpointing_kwargs",
            "skip_memory_metrics",
            "remove_unused_columns",
            "label_names",
            "include_for_metrics",
            "eval_do_concat_batches",
            "batch_eval_metrics",
            "prediction_loss_only",
            "eval_accumulation_steps",
            "enable_jit_checkpoint",
            "debug",
            "lora_task_type",
            "precompute_ref_batch_size",
        ],
    ),
    (NotNeeded, "a generation is scored in packs, whatever its size", &["local_rollout_forward_batch_size"]),
    (
        NONE,
        "use --max-steps or --num-train-epochs: an update learns from per_device_train_batch_size * gradient_accumulation_steps \
         completions",
        &["total_episodes"],
    ),
    (NotNeeded, "a loss or gradient that is not finite ends the run", &["logging_nan_inf_filter"]),
    (NotNeeded, "runs are always bit-identical", &["full_determinism"]),
    (NotNeeded, "num_tokens is always logged", &["include_num_input_tokens_seen"]),
    (NotNeeded, "progress is shown only on a terminal; --quiet turns it off", &["disable_tqdm", "log_level"]),
    (
        NotNeeded,
        "a resumed run continues exactly where it stopped",
        &["ignore_data_skip", "restore_callback_states_from_checkpoint"],
    ),
    (NotNeeded, "the command decides: train or eval", &["do_train", "do_eval", "do_predict"]),
    (
        NotNeeded,
        "completions are in completions.jsonl and in the report",
        &["num_completions_to_print", "log_unique_prompts", "num_sample_generations"],
    ),
    (NotNeeded, "report.html has the run's name from --output-dir", &["project", "exp_name"]),
    (Only(&["text"]), "rename the column with --columns text=COLUMN", &["dataset_text_field"]),
    (Only(&["keep_start"]), "texts are truncated at the end", &["truncation_mode"]),
    (
        Selects("shuffle_dataset", &[("random", "true"), ("sequential", "false")]),
        "it sets --shuffle-dataset: random shuffles the rows, sequential keeps their order",
        &["train_sampling_strategy"],
    ),
    (NONE, "use flags, such as --dtype, or --model OWNER/NAME@REVISION", &["model_init_kwargs"]),
    (
        NONE,
        "the teacher's weights stay in the precision of its files; --teacher-load-in-8bit or --teacher-load-in-4bit hold them in less",
        &["teacher_model_init_kwargs"],
    ),
    (
        Only(&["false"]),
        "write the teacher's completions first, with rlhost generate, and learn from them with --learn-from dataset",
        &["seq_kd", "generate_from_teacher"],
    ),
    (
        NONE,
        "a teacher must have the policy's tokenizer; losses across tokenizers (ULD, GOLD) are not supported",
        &[
            "teacher_tokenizer_name_or_path",
            "use_uld_loss",
            "use_extended_uld",
            "uld_use_hybrid_loss",
            "uld_token_merge_strategy",
            "uld_hybrid_matched_weight",
            "uld_hybrid_unmatched_weight",
            "uld_crossentropy_weight",
            "uld_distillation_weight",
            "uld_student_temperature",
            "uld_teacher_temperature",
            "uld_skip_student_eos",
            "uld_skip_teacher_eos",
        ],
    ),
    (Only(&["sampled"]), "with --loss-type policy_gradient the sampled tokens are compared", &["reverse_kl_top_1_mode"]),
    (NONE, "datasets are always prepared; use flags, such as --max-length or --packing", &["dataset_kwargs"]),
    (NONE, "use --device cpu", &["use_cpu"]),
    (NONE, "use --gradient-checkpointing", &["activation_checkpointing", "activation_offloading"]),
    (
        Members(&[
            ("temperature", "temperature"),
            ("top_p", "top_p"),
            ("top_k", "top_k"),
            ("min_p", "min_p"),
            ("repetition_penalty", "repetition_penalty"),
            ("max_new_tokens", "max_completion_length"),
            ("stop_strings", "stop"),
        ]),
        "its members set the generation keys: --top-p, --top-k and so on",
        &["generation_kwargs"],
    ),
    (
        RewardWeights,
        "one weight per reward in the order of config.toml: --plugin, then --reward-model; of TRL's options, the reward model, then \
         reward_funcs",
        &["reward_weights"],
    ),
    (NONE, "score the rejection in the reward plugin, or use a stop string with --stop", &["vllm_structured_outputs_regex"]),
    (NotNeeded, "evaluation computes like training, in the same precision", &["bf16_full_eval", "fp16_full_eval"]),
    (NONE, "training in f16 is not supported; use --bf16", &["fp16"]),
    (NONE, "the dataset is read from a folder or from the hub's cache", &["dataset_streaming", "streaming"]),
    (
        NotNeeded,
        "nothing is uploaded; checkpoints have Hugging Face's layout and can be uploaded as they are",
        &["push_to_hub", "log_completions_hub_repo"],
    ),
    (
        NotNeeded,
        "nothing is uploaded",
        &[
            "hub_always_push",
            "hub_model_id",
            "hub_private_repo",
            "hub_revision",
            "hub_strategy",
            "hub_token",
            "trackio_bucket_id",
            "trackio_space_id",
            "trackio_static_space_id",
        ],
    ),
    (NONE, "lower --per-device-train-batch-size, or set --max-tokens-per-microbatch", &["auto_find_batch_size"]),
    (
        Shards,
        "zero_optimization.stage sets --zero-stage; offloading, f16 and schedules of DeepSpeed's own are refused",
        &["deepspeed"],
    ),
    (Shards, "zero_stage sets --zero-stage; offloading is refused", &["deepspeed_config"]),
    (
        Shards,
        "full_shard or true sets --zero-stage 3, shard_grad_op 2 and no_shard 0; offload and hybrid_shard are refused",
        &["fsdp"],
    ),
    (
        Shards,
        "with fsdp, reshard_after_forward false sets --zero-stage 2; how layers are wrapped has no effect, and offloading is \
         refused",
        &["fsdp_config"],
    ),
    (NONE, DIVIDED, &["parallelism_config"]),
    (Only(&["nf4"]), "4-bit weights are NF4", &["bnb_4bit_quant_type"]),
    (NotNeeded, "4-bit weights are stored as bytes", &["bnb_4bit_quant_storage"]),
    (NONE, "the scales of 4-bit weights stay in float32", &["use_bnb_nested_quant"]),
    (
        NONE,
        "a model has one adapter, whose folder --model takes; --ref-model names another reference model",
        &["model_adapter_name", "ref_adapter_name"],
    ),
    (NONE, "low-rank optimizers (GaLore, APOLLO) are not supported; use LoRA", &["optim_target_modules"]),
    (
        Only(&["eos"]),
        "completions end with the tokenizer's end token; --eos-token names another, and --stop a text",
        &["stop_token"],
    ),
    (NONE, "name the token that ends completions with --eos-token", &["stop_token_id"]),
    (RewardModel, "another name of --reward-model", &["reward_model_path", "reward_model_name_or_path"]),
    (Only(&["1"]), "start processes with mpirun -n NUMBER rlhost", &["num_processes"]),
    (
        NONE,
        "start processes with mpirun -n NUMBER rlhost; --zero-stage N divides a model as its zeroN does, and 3 as its fsdp1 and fsdp2",
        &["accelerate_config"],
    ),
    (NONE, "a run reads one dataset; put the files into a folder", &["datasets"]),
    (NONE, "name the rows to evaluate on with --eval-dataset", &["test_split_size"]),
    (
        RewardFuncs,
        "functions of Python files are run as scripts; TRL's own rewards become the equivalent plugins",
        &["reward_funcs"],
    ),
    (NONE, "tools come from an --environment; --max-turns limits the turns", &["max_tool_calling_iterations"]),
    (NONE, "models are text decoders", &["is_encoder_decoder", "log_multimodal"]),
    (NONE, "completions of evaluations are not saved", &["generate_during_eval"]),
];

/// Returns all options, group by group.
pub fn options() -> impl Iterator<Item = ForeignOption> {
    let group = |&(treatment, why, names): &(OptionTreatment, &'static str, &'static [&'static str])| {
        names.iter().map(move |name| ForeignOption { name, treatment, why })
    };
    OPTIONS.iter().flat_map(group)
}

/// Returns the option with this name.
pub fn option(name: &str) -> Option<ForeignOption> {
    options().find(|option| option.name == name)
}

impl ForeignOption {
    /// Returns the weights of the rewards, if that is what the option sets.
    ///
    /// # Errors
    /// If the value is not one number for each of the rewards.
    pub(super) fn weights(&self, value: &Value, rewards: usize) -> Result<Option<Vec<f64>>, String> {
        if self.treatment != RewardWeights {
            return Ok(None);
        }
        let number = |value: &Value| value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64));
        match items(value).iter().map(number).collect::<Option<Vec<f64>>>() {
            Some(weights) if weights.len() == rewards => Ok(Some(weights)),
            _ if rewards == 0 => Err("there is no reward".to_owned()),
            _ if rewards == 1 => Err(format!("is {value}; it must be one number, since there is one reward")),
            _ => Err(format!("is {value}; it must be {rewards} numbers, one for each reward")),
        }
    }

    /// Returns the rewards in the value.
    pub(super) fn rewards(&self, value: &Value) -> Vec<Value> {
        match self.treatment {
            RewardFuncs => texts(value).filter_map(reward_entry).collect(),
            RewardModel => texts(value)
                .filter(|given| !OFF.contains(&given.to_lowercase().as_str()))
                .map(|given| PluginEntry::from_model_argument(given.to_owned()))
                .filter_map(|e| Value::try_from(e).ok())
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Sets the corresponding key to the value.
    pub(super) fn put(&self, value: &Value, table: &mut Table) {
        if let (Members(known), Some(members)) = (self.treatment, value.as_table()) {
            let key = |name: &str| known.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| (*ours).to_owned());
            table.extend(members.iter().filter_map(|(name, value)| Some((key(name)?, value.clone()))));
        }
        if self.treatment == Server {
            super::servers::put_part(self.name, value, table);
        }
        if let Sets(key) = self.treatment {
            table.insert(key.to_owned(), value.clone());
        }
        if let Selects(key, values) = self.treatment
            && let Some((_, own)) = values.iter().find(|(theirs, _)| *theirs == lowercase(value))
        {
            let own = own.parse().map_or_else(|_| Value::String((*own).to_owned()), Value::Boolean);
            table.entry(key).or_insert(own);
        }
        let rewards = self.rewards(value);
        if !rewards.is_empty()
            && let Value::Array(plugins) = table.entry("plugin").or_insert_with(|| Value::Array(Vec::new()))
        {
            plugins.extend(rewards);
        }
        let AppendedTo(key, sign) = self.treatment else { return };
        let part = value.as_str().filter(|part| !["main", "default", ""].contains(part));
        let (Some(Value::String(name)), Some(part)) = (table.get_mut(key), part) else { return };
        // A subset may be a folder of a local dataset, or listed by its card.
        let folder = Path::new(name);
        let has_subset = || folder.join(part).is_dir() || folder.join("README.md").is_file();
        if !folder.exists() || sign == '/' && has_subset() {
            name.push(sign);
            name.push_str(part);
        } else {
            tracing::warn!("{} has no effect: {key} is {name}, which is on this machine", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;
    use std::collections::BTreeSet;

    #[test]
    fn an_option_is_listed_once_and_is_no_key() {
        let names: Vec<&str> = options().map(|option| option.name).collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len());
        let taken =
            keys().iter().find(|key| names.contains(&key.name.as_str()) || key.aliases.iter().any(|a| names.contains(&&a[..])));
        assert!(taken.is_none(), "{taken:?}");
    }

    #[test]
    fn what_turns_an_option_off_is_accepted_and_what_it_would_do_is_refused_with_the_reason() {
        let said = |name: &str, value: Value| option(name).unwrap().check(&value);
        for off in [Value::Boolean(false), Value::String("None".into()), Value::Float(0.0), Value::Integer(0)] {
            assert_eq!(said("use_cpu", off), Ok(()));
        }
        assert!(said("use_cpu", Value::Boolean(true)).unwrap_err().contains("use --device cpu"));
        assert_eq!(said("push_to_hub", Value::Boolean(true)), Ok(()));
        assert_eq!(said("truncation_mode", Value::String("keep_start".into())), Ok(()));
        assert!(said("truncation_mode", Value::String("keep_end".into())).unwrap_err().contains("it can only be keep_start"));
        let members = |text: &str| said("generation_kwargs", toml::from_str::<Table>(text).unwrap().into());
        assert_eq!(members("top_p = 0.9\nmax_new_tokens = 3\ndo_sample = true"), Ok(()));
        assert!(
            members("num_beams = 4").unwrap_err().starts_with("has num_beams = 4; the members supported here are temperature")
        );
        assert_eq!(said("attn_implementation", Value::String("sdpa".into())), Ok(()));
    }

    #[test]
    fn rewards_of_trl_are_plugins_and_others_are_refused() {
        let funcs = option("reward_funcs").unwrap();
        let given = |names: &[&str]| Value::Array(names.iter().map(|name| Value::String((*name).into())).collect());
        let mut table = Table::new();
        let value = given(&["accuracy_reward", "get_soft_overlong_punishment"]);
        assert_eq!(funcs.check(&value), Ok(()));
        funcs.put(&value, &mut table);
        let plugins = table["plugin"].as_array().unwrap();
        assert_eq!(plugins[0]["path"].as_str(), Some("answer_reward.wasm"));
        assert_eq!(plugins[0]["config"]["column"].as_str(), Some("solution"));
        assert_eq!(plugins[1]["config"]["max_completion_len"].as_integer(), Some(1280));
        // TRL's names distinguish rewards that use the same plugin.
        let mut table = Table::new();
        funcs.put(&given(&["accuracy_reward", "reasoning_accuracy_reward", "get_soft_overlong_punishment"]), &mut table);
        let names = table["plugin"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["accuracy_reward", "reasoning_accuracy_reward", "soft_overlong_punishment_reward"]
        );
        assert!(funcs.check(&given(&["my_lib.rewards.mine"])).unwrap_err().contains("accuracy_reward"));
    }
}
