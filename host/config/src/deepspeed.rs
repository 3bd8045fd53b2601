//! Reads DeepSpeed's configuration, as TRL accepts it: the stage of ZeRO, and the values of keys that it repeats. Settings that would
//! change results are refused; settings that only concern speed or memory in DeepSpeed have no effect.

use super::ZeroStage;
use super::sharding_settings::{DIVIDED, NOT_OFFLOADED, ShardingSettings, is_auto, is_on, read, shown, text, unknown};
use toml::{Table, Value};

/// Settings that repeat a key.
const KEYS: [(&str, &str); 3] = [
    ("gradient_clipping", "max_grad_norm"),
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
];

/// Settings of AdamW that repeat a key.
const OF_ADAM: [(&str, &str); 3] = [("lr", "learning_rate"), ("eps", "adam_epsilon"), ("weight_decay", "weight_decay")];

/// Top-level settings that concern only speed, memory and logs.
const UNUSED: [&str; 29] = [
    "activation_checkpointing",
    "aio",
    "autotuning",
    "checkpoint",
    "comms_logger",
    "communication_data_type",
    "comet",
    "compile",
    "csv_monitor",
    "data_types",
    "dataloader_drop_last",
    "disable_allgather",
    "dump_state",
    "flops_profiler",
    "fp32_allreduce",
    "gradient_predivide_factor",
    "graph_harvesting",
    "memory_breakdown",
    "nebula",
    "prescale_gradients",
    "seq_parallel_communication_data_type",
    "sparse_gradients",
    "steps_per_print",
    "tensorboard",
    "timers",
    "wandb",
    "wall_clock_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
];

/// Sections that change what is learned, unless they are off.
const REFUSED: [(&str, &str); 10] = [
    ("fp16", "training in f16 is not supported; use bf16"),
    ("amp", "training in f16 is not supported; use bf16"),
    ("curriculum_learning", "rows are drawn as TRL's trainers draw them; leave it out"),
    ("data_efficiency", "rows are drawn as TRL's trainers draw them; leave it out"),
    ("progressive_layer_drop", "every layer is trained in each step; leave it out"),
    ("eigenvalue", "weights are not compressed in training; leave it out"),
    ("quantize_training", "weights are not compressed in training; leave it out"),
    ("compression_training", "weights are not compressed in training; leave it out"),
    ("elasticity", "the number of processes is that of mpirun; leave it out"),
    ("sparse_attention", "attention is exact; leave it out"),
];

/// Sections that divide a model or its inputs in ways other than ZeRO.
const OTHER_PARALLELISM: [&str; 4] = ["tensor_parallel", "sequence_parallel_size", "pipeline", "expert_parallel_size"];

/// Settings of ZeRO that concern only speed and memory. Those of stage 3 are also accepted without their prefix.
const OF_ZERO: [&str; 34] = [
    "allgather_sequential",
    "allgather_bucket_size",
    "allgather_partitions",
    "contiguous_gradients",
    "cpu_offload_use_pin_memory",
    "elastic_checkpoint",
    "enable_sanity_checks",
    "gather_16bit_weights_on_model_save",
    "gather_fp16_weights_on_model_save",
    "ignore_unused_parameters",
    "leaf_module",
    "legacy_stage1",
    "load_from_fp32_weights",
    "log_trace_cache_warnings",
    "max_live_parameters",
    "max_reuse_distance",
    "memory_efficient_linear",
    "mics_hierarchical_params_gather",
    "mics_shard_size",
    "model_persistence_threshold",
    "module_granularity_threshold",
    "overlap_comm",
    "override_module_apply",
    "param_persistence_threshold",
    "pipeline_loading_checkpoint",
    "prefetch_bucket_size",
    "reduce_bucket_size",
    "reduce_scatter",
    "round_robin_gradients",
    "save_muon_momentum_buffer_in_memory",
    "sub_group_size",
    "use_all_reduce_for_fetch_params",
    "use_multi_rank_bucket_allreduce",
    "zero_hpz_partition_size",
];

/// Settings of ZeRO that round the data exchanged between processes.
const ROUNDED: [&str; 4] =
    ["zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients", "zeropp_loco_param"];

/// Reads the configuration: a table, or the path of a JSON file.
///
/// # Errors
/// If a setting can't be used; the message names the file and the setting, and the valid values.
pub(super) fn parse(value: &Value) -> Result<ShardingSettings, String> {
    read(value, whole)
}

/// Reads the DeepSpeed settings of accelerate's own files.
///
/// # Errors
/// As [`parse`].
pub(super) fn parse_accelerate(value: &Value) -> Result<ShardingSettings, String> {
    read(value, of_accelerate)
}

fn of_accelerate(found: &Table) -> Result<ShardingSettings, String> {
    if let Some(file) = found.get("deepspeed_config_file").filter(|file| text(file) != "none") {
        return parse(file);
    }
    let mut settings = ShardingSettings::default();
    for (name, value) in found {
        match name.as_str() {
            "zero_stage" => settings.stage = Some(stage(name, value)?),
            "offload_optimizer_device" | "offload_param_device" => check_device(name, value)?,
            "gradient_clipping" | "gradient_accumulation_steps" => repeats(&mut settings, "", &KEYS, name, value)?,
            "deepspeed_config_file" => {}
            "sequence_parallel_size" => check_size(name, value)?,
            name if name.starts_with("deepspeed_") || name.starts_with("zero3_") || name.ends_with("_nvme_path") => {
                settings.unused.push(name.to_owned());
            }
            name => return Err(unknown(name, ["zero_stage", "gradient_clipping", "gradient_accumulation_steps"])),
        }
    }
    Ok(settings)
}

/// Reads a complete configuration.
fn whole(found: &Table) -> Result<ShardingSettings, String> {
    let mut settings = ShardingSettings::default();
    for (name, value) in found {
        let name = name.as_str();
        if KEYS.iter().any(|(setting, _)| *setting == name) {
            repeats(&mut settings, "", &KEYS, name, value)?;
        } else if let Some((_, why)) = REFUSED.iter().find(|(part, _)| *part == name) {
            if is_enabled(value) {
                return Err(format!("{name} is {}: {why}", shown(value)));
            }
        } else if OTHER_PARALLELISM.contains(&name) {
            check_size(name, value)?;
        } else if UNUSED.contains(&name) || name.starts_with("monitor") {
            settings.unused.push(name.to_owned());
        } else {
            match name {
                "zero_optimization" => zero(&mut settings, value)?,
                "bf16" | "bfloat16" => bf16(&mut settings, name, value)?,
                "train_batch_size" if is_auto(value) => {}
                "train_batch_size" => match value.as_integer() {
                    Some(size) => settings.train_batch_size = Some(size),
                    None => return Err(format!("{name} is {}; it must be a whole number or \"auto\"", shown(value))),
                },
                "optimizer" => optimizer(&mut settings, value)?,
                "scheduler" => scheduler(value)?,
                name => {
                    let known = KEYS.iter().map(|(known, _)| *known).chain(REFUSED.iter().map(|(known, _)| *known));
                    let parts = ["zero_optimization", "bf16", "train_batch_size", "optimizer", "scheduler"];
                    return Err(unknown(name, known.chain(UNUSED).chain(parts)));
                }
            }
        }
    }
    Ok(settings)
}

/// Reads the section about ZeRO.
fn zero(settings: &mut ShardingSettings, value: &Value) -> Result<(), String> {
    let Some(found) = value.as_table() else {
        return Err(format!("zero_optimization is {}; it must be an object with a stage", shown(value)));
    };
    for (name, value) in found {
        let path = format!("zero_optimization.{name}");
        let name = name.as_str();
        match name {
            "stage" => settings.stage = Some(stage(&path, value)?),
            "offload_optimizer" | "offload_param" => match value.get("device") {
                Some(device) => check_device(&format!("{path}.device"), device)?,
                None if value.is_table() => {}
                None => check_device(&path, value)?,
            },
            "cpu_offload" | "cpu_offload_params" | "cpu_offload_param" if is_on(value) == Some(false) => {}
            "cpu_offload" | "cpu_offload_params" | "cpu_offload_param" => return Err(offloaded(&path, value)),
            _ if ROUNDED.contains(&name) => {
                if is_on(value) != Some(false) {
                    let why =
                        "weights and gradients are exchanged as they are; reduce_dtype bfloat16 halves the bytes of gradients";
                    return Err(format!("{path} is {}: {why}", shown(value)));
                }
            }
            _ if OF_ZERO.contains(&name.strip_prefix("stage3_").unwrap_or(name)) => {
                settings.unused.push(name.to_owned());
            }
            _ => return Err(unknown(&path, OF_ZERO.into_iter().chain(["stage", "offload_optimizer", "offload_param"]))),
        }
    }
    Ok(())
}

/// Reads a stage of ZeRO.
fn stage(setting: &str, value: &Value) -> Result<u8, String> {
    let stage = value.as_integer().and_then(|stage| u8::try_from(stage).ok()).filter(|stage| *stage <= ZeroStage::LAST);
    stage.ok_or_else(|| format!("{setting} is {}; it must be between 0 and {}", shown(value), ZeroStage::LAST))
}

/// Adds a setting that repeats a key.
fn repeats(
    settings: &mut ShardingSettings,
    within: &str,
    keys: &[(&str, &'static str)],
    name: &str,
    value: &Value,
) -> Result<(), String> {
    match keys.iter().find(|(setting, _)| *setting == name) {
        Some((_, key)) => settings.repeats(&format!("{within}{name}"), key, value),
        None => Err(unknown(&format!("{within}{name}"), keys.iter().map(|(known, _)| *known))),
    }
}

fn bf16(settings: &mut ShardingSettings, name: &str, value: &Value) -> Result<(), String> {
    match value.get("enabled").or_else(|| (!value.is_table()).then_some(value)) {
        Some(enabled) => settings.repeats(&format!("{name}.enabled"), "bf16", enabled),
        None => Ok(()),
    }
}

/// Reads the optimizer, which must be AdamW; the settings of other optimizers have their own keys.
fn optimizer(settings: &mut ShardingSettings, value: &Value) -> Result<(), String> {
    if is_auto(value) {
        return Ok(());
    }
    let kind = value.get("type").map_or_else(|| "none".to_owned(), text);
    if !["adamw", "adam", "auto"].contains(&kind.to_lowercase().as_str()) {
        return Err(format!("optimizer is {}; leave it out, and name the optimizer with optim", shown(value)));
    }
    if kind != "auto" {
        settings.repeats("optimizer.type", "optim", &Value::String("adamw_torch".to_owned()))?;
    }
    for (name, value) in value.get("params").and_then(Value::as_table).into_iter().flatten() {
        match (name.as_str(), value) {
            (_, value) if is_auto(value) => {}
            ("betas", Value::Array(betas)) if betas.len() == 2 => {
                settings.repeats("optimizer.params.betas", "adam_beta1", &betas[0])?;
                settings.repeats("optimizer.params.betas", "adam_beta2", &betas[1])?;
            }
            ("torch_adam", _) => settings.unused.push("optimizer.params.torch_adam".to_owned()),
            ("adam_w_mode", value) if is_on(value) == Some(true) => {}
            (name, value) => repeats(settings, "optimizer.params.", &OF_ADAM, name, value)?,
        }
    }
    Ok(())
}

/// Refuses a schedule, because DeepSpeed's schedules replace that of `lr_scheduler_type`, and warm up by the logarithm of the step.
fn scheduler(value: &Value) -> Result<(), String> {
    let kind = value.get("type").unwrap_or(value);
    if is_auto(kind) {
        return Ok(());
    }
    let own = match text(kind).as_str() {
        "WarmupLR" => "lr_scheduler_type constant_with_warmup",
        "WarmupDecayLR" => "lr_scheduler_type linear",
        "WarmupCosineLR" => "lr_scheduler_type cosine",
        _ => "lr_scheduler_type",
    };
    Err(format!(
        "scheduler is {}: schedules of DeepSpeed are not supported; leave it out, and use {own} with warmup_steps",
        shown(kind)
    ))
}

/// Accepts a device only if nothing is offloaded to it.
fn check_device(setting: &str, device: &Value) -> Result<(), String> {
    let is_none = ["none", "auto", "null", ""].contains(&text(device).to_lowercase().as_str());
    if is_none { Ok(()) } else { Err(offloaded(setting, device)) }
}

fn offloaded(setting: &str, value: &Value) -> String {
    format!("{setting} is {}: {NOT_OFFLOADED}", shown(value))
}

/// Accepts a number of parts only if it is 1, or left to the trainer.
fn check_size(setting: &str, value: &Value) -> Result<(), String> {
    let mut sizes = value.as_table().into_iter().flatten().filter(|(name, _)| name.ends_with("size")).map(|(_, size)| size);
    let is_one = |size: &Value| is_auto(size) || size.as_integer().is_some_and(|size| size <= 1) || is_on(size) == Some(false);
    let alone = if value.is_table() { sizes.all(is_one) } else { is_one(value) };
    if alone { Ok(()) } else { Err(format!("{setting} is {}: {DIVIDED}", shown(value))) }
}

/// Returns whether a section is enabled. Without its own switch, a section is enabled if a subsection is.
fn is_enabled(part: &Value) -> bool {
    match part {
        Value::Table(all) => match all.get("enabled") {
            Some(enabled) => is_on(enabled) == Some(true),
            None => all.values().any(|within| within.is_table() && is_enabled(within)),
        },
        _ => is_on(part) == Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_json(json: &str) -> Result<ShardingSettings, String> {
        parse(&crate::scalar(json))
    }

    #[test]
    fn what_only_concerns_speed_is_named_and_what_is_auto_asks_for_nothing() {
        let found = parsed_json(
            r#"{
            "zero_optimization": {"stage": 2, "allgather_bucket_size": 2e8, "overlap_comm": "auto",
                "stage3_gather_16bit_weights_on_model_save": true, "offload_optimizer": {"device": "none"}},
            "fp16": {"enabled": "auto", "loss_scale_window": 1000}, "bf16": {"enabled": "auto"}, "optimizer": "auto",
            "scheduler": "auto", "gradient_clipping": "auto", "train_batch_size": "auto", "steps_per_print": 10,
            "data_efficiency": {"enabled": false, "data_sampling": {"enabled": true}},
            "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": false}}}}"#,
        )
        .unwrap();
        assert_eq!((found.stage, found.train_batch_size, found.repeated), (Some(2), None, Vec::new()));
        let unused = ["allgather_bucket_size", "overlap_comm", "stage3_gather_16bit_weights_on_model_save", "steps_per_print"];
        assert!(unused.iter().all(|name| found.unused.iter().any(|one| one == name)), "{:?}", found.unused);
        assert_eq!(parsed_json("{\"gradient_clipping\": 1}").unwrap().stage, None);
    }

    #[test]
    fn what_would_change_results_is_refused_with_what_would_be_right() {
        for (json, words) in [
            (
                r#"{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}"#,
                "offload_optimizer.device is \"cpu\": nothing",
            ),
            (
                r#"{"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/x"}}}"#,
                "zero_stage 3 divides everything",
            ),
            (r#"{"zero_optimization": {"cpu_offload": true}}"#, "zero_optimization.cpu_offload is true: nothing is offloaded"),
            (r#"{"zero_optimization": {"stage": "auto"}}"#, "zero_optimization.stage is \"auto\"; it must be between 0 and 3"),
            (r#"{"zero_optimization": true}"#, "an object with a stage"),
            (r#"{"zero_optimization": {"zero_quantized_gradients": true}}"#, "reduce_dtype bfloat16"),
            (
                r#"{"zero_optimization": {"overlap_com": true}}"#,
                "has zero_optimization.overlap_com, which is not known here; did you mean \"overlap_comm\"?",
            ),
            (r#"{"fp16": {"enabled": true}}"#, "training in f16 is not supported; use bf16"),
            (r#"{"amp": {"enabled": "true"}}"#, "training in f16"),
            (r#"{"optimizer": {"type": "Lamb", "params": {}}}"#, "name the optimizer with optim"),
            (r#"{"optimizer": {"type": "AdamW", "params": {"amsgrad": true}}}"#, "has optimizer.params.amsgrad"),
            (
                r#"{"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}}"#,
                "use lr_scheduler_type constant_with_warmup",
            ),
            (r#"{"data_efficiency": {"enabled": true}}"#, "rows are drawn"),
            (r#"{"compression_training": {"weight_quantization": {"enabled": true}}}"#, "weights are not compressed"),
            (r#"{"tensor_parallel": {"autotp_size": 2}}"#, "no tensor or context parallelism"),
            (r#"{"gradient_clipping": "much"}"#, "gradient_clipping is \"much\": "),
            (r#"{"train_batch_size": "many"}"#, "a whole number or \"auto\""),
            (r#"{"gradient_cliping": 1}"#, "did you mean \"gradient_clipping\"?"),
            ("{\"\\u001b[2J\": 1}", "has \\u{1b}[2J, which is not known here; leave it out"),
        ] {
            let said = parsed_json(json).expect_err(json);
            assert!(said.contains(words), "{json}: {said}");
        }
        let of_accelerate = |text: &str| parse_accelerate(&crate::scalar(text));
        assert!(of_accelerate("{offload_param_device = 'cpu'}").unwrap_err().contains("offload_param_device is \"cpu\""));
        assert!(of_accelerate("{zero_stag = 1}").unwrap_err().contains("did you mean \"zero_stage\"?"));
        assert!(of_accelerate("{deepspeed_config_file = 'none.json'}").unwrap_err().starts_with("none.json: it can't be read"));
    }
}
