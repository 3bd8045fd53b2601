//! Options of TRL that are no keys of rlhost: what becomes of each. `host/docs/trl.md` has the table.

use std::path::Path;
use toml::{Table, Value};

/// What becomes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It is accepted and has no effect.
    NotNeeded,
    /// It is appended to the value of a key, after this character.
    AppendedTo(&'static str, char),
    /// Its values turn a key on and off: the former, the latter.
    Switches(&'static str, [&'static str; 2]),
    /// Its values are the weights of the rewards.
    RewardWeights,
    /// It is accepted only with one of these values, or with one that turns it off.
    Only(&'static [&'static str]),
}

/// An option of TRL that is not a key of rlhost.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// Its name.
    pub name: &'static str,
    /// What becomes of it.
    pub treatment: Treatment,
    /// Why, in one line.
    pub why: &'static str,
}

/// Values that turn an option off, as command lines and TRL's files spell them.
const OFF: [&str; 6] = ["false", "no", "none", "null", "0", ""];

use Treatment::{AppendedTo, NotNeeded, Only, RewardWeights, Switches};

const NONE: Treatment = Only(&[]);

/// Options with the same treatment for the same reason.
const OPTIONS: &[(Treatment, &str, &[&str])] = &[
    (AppendedTo("dataset", '/'), "the dataset is named OWNER/NAME/SUBSET", &["dataset_config"]),
    (AppendedTo("model", '@'), "the model is named OWNER/NAME@REVISION", &["model_revision"]),
    (NotNeeded, "attention is rlhost's own: packed, exact and without padding", &["attn_implementation"]),
    (NotNeeded, "the CPU computes in float32; --bf16 says what an NVIDIA device computes in", &["tf32"]),
    (NotNeeded, "models are read by rlhost itself and never run code of their own", &["trust_remote_code"]),
    (
        NotNeeded,
        "there is no padding",
        &["pad_to_multiple_of", "padding_free", "pad_token", "padding_value", "group_by_length", "length_column_name"],
    ),
    (NotNeeded, "the models have no dropout in training", &["disable_dropout"]),
    (
        NotNeeded,
        "rows are read and tokenized by rlhost's own threads (--num-threads)",
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
        "processes are started by mpirun and need no such settings",
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
        ],
    ),
    (
        NotNeeded,
        "generation is part of rlhost: it shares the policy's weights and needs no server",
        &[
            "use_vllm",
            "vllm_mode",
            "vllm_model_impl",
            "vllm_enable_sleep_mode",
            "vllm_gpu_memory_utilization",
            "vllm_group_port",
            "vllm_max_model_length",
            "vllm_server_base_url",
            "vllm_server_host",
            "vllm_server_port",
            "vllm_server_timeout",
            "vllm_tensor_parallel_size",
            "use_transformers_paged",
            "use_transformers_continuous_batching",
            "transformers_continuous_batching_config",
            "cache_implementation",
            "use_cache",
        ],
    ),
    (
        NotNeeded,
        "there is no PyTorch that it could be passed to",
        &[
            "torch_compile",
            "torch_compile_backend",
            "torch_compile_mode",
            "torch_empty_cache_steps",
            "use_liger_kernel",
            "liger_kernel_config",
            "gradient_checkpointing_kwargs",
            "model_init_kwargs",
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
            "dataset_kwargs",
            "debug",
            "lora_task_type",
            "precompute_ref_batch_size",
        ],
    ),
    (NotNeeded, "losses and gradients that are not finite end the run", &["logging_nan_inf_filter"]),
    (NotNeeded, "every run gives the same bits again", &["full_determinism"]),
    (NotNeeded, "num_tokens is always logged", &["include_num_input_tokens_seen"]),
    (NotNeeded, "progress is shown on a terminal only; --quiet turns it off", &["disable_tqdm", "log_level"]),
    (
        NotNeeded,
        "a resumed run continues exactly where it stopped",
        &["ignore_data_skip", "restore_callback_states_from_checkpoint"],
    ),
    (NotNeeded, "the command decides what is done: train or eval", &["do_train", "do_eval", "do_predict"]),
    (NotNeeded, "completions are in completions.jsonl and in the report", &["num_completions_to_print", "log_unique_prompts"]),
    (NotNeeded, "report.html has the run's name from --output-dir", &["run_name", "project"]),
    (Only(&["steps"]), "evaluations follow --eval-steps and take place if --eval-dataset is given", &["eval_strategy"]),
    (Only(&["steps"]), "checkpoints follow --save-steps, and one is saved at the end", &["save_strategy"]),
    (Only(&["steps"]), "metrics are logged every --logging-steps", &["logging_strategy"]),
    (Only(&["text"]), "rename the column with --columns text=COLUMN", &["dataset_text_field"]),
    (Only(&["bfd"]), "texts are packed best-fit-decreasing, without being split", &["packing_strategy"]),
    (Only(&["keep_start"]), "texts are truncated at the end", &["truncation_mode"]),
    (
        Switches("shuffle_dataset", ["random", "sequential"]),
        "rows are shuffled (random) or in order (sequential) by --shuffle-dataset",
        &["train_sampling_strategy"],
    ),
    (
        NONE,
        "an epoch's last batch is smaller where answers are given, and left out where they are generated",
        &["dataloader_drop_last"],
    ),
    (NONE, "use --device cpu", &["use_cpu"]),
    (NONE, "use --gradient-checkpointing", &["activation_checkpointing", "activation_offloading"]),
    (NONE, "use --per-device-train-batch-size with --steps-per-generation", &["generation_batch_size"]),
    (NONE, "use --top-p, --top-k, --min-p, --repetition-penalty and --temperature", &["generation_kwargs"]),
    (RewardWeights, "the weights of the rewards: the plugins in their order, then the reward models", &["reward_weights"]),
    (NONE, "score the rejection in the reward plugin, or use a stop string with --stop", &["vllm_structured_outputs_regex"]),
    (NONE, "evaluations begin with the first --eval-steps; --eval-on-start adds one before", &["eval_delay"]),
    (
        NotNeeded,
        "evaluation computes as training does, in the same precision",
        &["eval_packing", "bf16_full_eval", "fp16_full_eval"],
    ),
    (NONE, "f16 is not supported in training; --bf16 is", &["fp16"]),
    (NONE, "the dataset is read from a folder or from the hub's cache", &["dataset_streaming"]),
    (NONE, "the order of rows follows from --seed", &["data_seed"]),
    (
        NONE,
        "nothing is uploaded; checkpoints are in Hugging Face's layout and can be uploaded as they are",
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
        NONE,
        "weights are not sharded over processes; each process holds the model",
        &["deepspeed", "fsdp", "fsdp_config", "parallelism_config"],
    ),
    (Only(&["nf4"]), "weights in 4 bits are NF4", &["bnb_4bit_quant_type"]),
    (NotNeeded, "weights in 4 bits are held as bytes", &["bnb_4bit_quant_storage"]),
    (NONE, "the scales of weights in 4 bits stay in float32", &["use_bnb_nested_quant"]),
    (
        NONE,
        "adapters are LoRA on linear layers; what is beside them is not trained",
        &["use_dora", "lora_modules_to_save", "lora_target_parameters"],
    ),
    (NONE, "it is for low-rank optimizers (GaLore, APOLLO); use LoRA", &["optim_target_modules"]),
    (NONE, "not supported yet", &["neftune_noise_alpha", "label_smoothing_factor", "use_weighting"]),
    (NONE, "mixtures of experts are not supported yet", &["router_aux_loss_coef"]),
    (NONE, "use --reward-model for models, and --plugin for functions", &["reward_model_path", "reward_funcs"]),
    (NONE, "episodes have one turn", &["max_tool_calling_iterations"]),
    (NONE, "models are text decoders", &["is_encoder_decoder", "log_multimodal"]),
    (NONE, "completions of evaluations are not written", &["generate_during_eval"]),
    (
        NotNeeded,
        "sampling and training compute the same function here, so that there is nothing to correct",
        &[
            "vllm_importance_sampling_correction",
            "vllm_importance_sampling_cap",
            "vllm_importance_sampling_clip_max",
            "vllm_importance_sampling_clip_min",
            "vllm_importance_sampling_mode",
        ],
    ),
];

/// Returns every option, group by group.
pub fn options() -> impl Iterator<Item = Foreign> {
    let group = |&(treatment, why, names): &(Treatment, &'static str, &'static [&'static str])| {
        names.iter().map(move |name| Foreign { name, treatment, why })
    };
    OPTIONS.iter().flat_map(group)
}

/// Returns the option of this name.
pub fn option(name: &str) -> Option<Foreign> {
    options().find(|option| option.name == name)
}

impl Foreign {
    /// Accepts a value, and logs it if the option has no effect here.
    ///
    /// # Errors
    /// Says why the value can't be used.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned).to_lowercase();
        let is_empty = value.as_array().is_some_and(Vec::is_empty) || value.as_table().is_some_and(Table::is_empty);
        let is_off = is_empty || OFF.contains(&text.as_str()) || value.as_float() == Some(0.0);
        match self.treatment {
            NotNeeded if is_off => Ok(()),
            NotNeeded => {
                tracing::info!("{} is not needed: {}", self.name, self.why);
                Ok(())
            }
            AppendedTo(..) | RewardWeights => Ok(()),
            Switches(_, values) if values.contains(&text.as_str()) => Ok(()),
            Switches(_, values) => Err(format!("is {text}; it can only be {} here: {}", values.join(" or "), self.why)),
            Only(values) if values.contains(&text.as_str()) => Ok(()),
            Only(values) if is_off => {
                // Something else is done then than is asked for.
                if !values.is_empty() {
                    tracing::warn!("{} {text}: {}", self.name, self.why);
                }
                Ok(())
            }
            Only([]) => Err(format!("rlhost does not have this option of TRL: {}", self.why)),
            Only(values) => Err(format!("is {text}; it can only be {} here: {}", values.join(", "), self.why)),
        }
    }

    /// Returns whether the value asks for evaluations, which a dataset must be named for.
    pub(super) fn asks_for_evaluation(&self, value: &Value) -> bool {
        self.name == "eval_strategy" && value.as_str() == Some("steps")
    }

    /// Returns the weights of the rewards, if the value has them.
    ///
    /// # Errors
    /// If there are not as many numbers as rewards.
    pub(super) fn weights(&self, value: &Value, rewards: usize) -> Result<Option<Vec<f64>>, String> {
        if self.treatment != RewardWeights {
            return Ok(None);
        }
        let number = |value: &Value| value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64));
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        match items.iter().map(number).collect::<Option<Vec<f64>>>() {
            Some(weights) if weights.len() == rewards => Ok(Some(weights)),
            _ if rewards == 0 => Err("there is no reward".to_owned()),
            _ => Err(format!("is {value}; it must be {rewards} numbers, one for each reward")),
        }
    }

    /// Puts the value into the key that has it here.
    pub(super) fn put(&self, value: &Value, table: &mut Table) {
        if let (Switches(key, [on, _]), Some(text)) = (self.treatment, value.as_str()) {
            table.entry(key).or_insert(Value::Boolean(text == on));
        }
        let AppendedTo(key, sign) = self.treatment else { return };
        let part = value.as_str().filter(|part| !["main", "default", ""].contains(part));
        if let (Some(Value::String(name)), Some(part)) = (table.get_mut(key), part)
            && !Path::new(name).exists()
        {
            name.push(sign);
            name.push_str(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys;
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
            assert_eq!(said("push_to_hub", off), Ok(()));
        }
        assert!(said("push_to_hub", Value::Boolean(true)).unwrap_err().contains("nothing is uploaded"));
        assert_eq!(said("eval_strategy", Value::String("steps".into())), Ok(()));
        assert!(said("eval_strategy", Value::String("epoch".into())).unwrap_err().contains("is epoch; it can only be steps"));
        assert_eq!(said("attn_implementation", Value::String("sdpa".into())), Ok(()));
    }
}
