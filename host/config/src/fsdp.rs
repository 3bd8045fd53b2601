//! Reads transformers' options of FSDP. The parts that FSDP divides among the processes determine a stage of ZeRO.

use super::sharding_settings::{NOT_OFFLOADED, ShardingSettings, is_on, read, shown, text, unknown};
use toml::{Table, Value};

/// The stage at which everything is divided, FSDP's default.
pub(super) const FULL: u8 = 3;

/// The stage at which parameters are not divided, so that they stay complete between the passes.
const KEPT: u8 = 2;

/// Settings of FSDP that concern only speed, memory and the files of checkpoints.
const UNUSED: [&str; 20] = [
    "auto_wrap_policy",
    "backward_prefetch",
    "backward_prefetch_policy",
    "cpu_ram_efficient_loading",
    "enable_cpu_affinity",
    "forward_prefetch",
    "ignored_modules",
    "ignored_parameters",
    "limit_all_gathers",
    "min_num_params",
    "state_dict_type",
    "sync_module_states",
    "transformer_cls_names_to_wrap",
    "transformer_layer_cls_to_wrap",
    "use_orig_params",
    "version",
    "xla_fsdp_grad_ckpt",
    "xla_fsdp_settings",
    "xla_fsdp_v2",
    "wrap_policy",
];

/// PyTorch's sharding strategies by their numbers in PyTorch, which accelerate's older files use.
const NUMBERED: [&str; 5] = ["full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"];

/// Returns the stage equivalent to a strategy of PyTorch.
fn stage(strategy: &str) -> Result<u8, String> {
    match strategy.to_lowercase().as_str() {
        "full_shard" => Ok(FULL),
        "shard_grad_op" => Ok(KEPT),
        "no_shard" => Ok(0),
        "hybrid_shard" | "hybrid_shard_zero2" => {
            Err("a model is divided among all processes, not within each machine; use full_shard, or shard_grad_op".to_owned())
        }
        _ => Err("it can be full_shard, shard_grad_op or no_shard".to_owned()),
    }
}

/// Returns the name of a strategy, which may be given by its number.
fn strategy(value: &Value) -> String {
    let given = text(value);
    let number = given.parse::<usize>().ok().and_then(|number| NUMBERED.get(number.checked_sub(1)?));
    number.map_or(given, |name| (*name).to_owned())
}

/// Reads the option `fsdp`: a switch, or words.
///
/// # Errors
/// If the option can't be used; says what is valid.
pub(super) fn parse(value: &Value) -> Result<ShardingSettings, String> {
    let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let texts: Vec<String> = items.iter().map(text).collect();
    let mut settings = ShardingSettings { is_on: Some(false), ..ShardingSettings::default() };
    for word in texts.iter().flat_map(|text| text.split([' ', ','])).filter(|word| !word.is_empty()) {
        settings.is_on = Some(true);
        let given = match word.to_lowercase().as_str() {
            "true" => continue,
            "auto_wrap" => {
                settings.unused.push("auto_wrap".to_owned());
                continue;
            }
            "offload" => return Err(format!("has offload: {NOT_OFFLOADED}")),
            lower => stage(lower).map_err(|why| format!("has {}: {why}", shown(&Value::String(word.to_owned()))))?,
        };
        if settings.stage.is_some_and(|other| other != given) {
            return Err(format!("is {}; it can have only one of full_shard, shard_grad_op and no_shard", shown(value)));
        }
        settings.stage = Some(given);
    }
    Ok(settings)
}

/// Reads the option `fsdp_config`: a table, or the path of a JSON file.
///
/// # Errors
/// If a setting can't be used; names the file and the setting, and the valid values.
pub(super) fn parse_config(value: &Value) -> Result<ShardingSettings, String> {
    read(value, of_settings)
}

fn of_settings(found: &Table) -> Result<ShardingSettings, String> {
    let mut settings = ShardingSettings::default();
    // transformers also needs its option `fsdp`; accelerate's files have only these settings.
    if ["fsdp_sharding_strategy", "fsdp_version"].iter().any(|name| found.contains_key(*name)) {
        settings.is_on = Some(true);
    }
    for (name, value) in found {
        setting(&mut settings, name, value)?;
    }
    Ok(settings)
}

/// Reads one of the settings.
fn setting(settings: &mut ShardingSettings, name: &str, value: &Value) -> Result<(), String> {
    let refused = |why: &str| Err(format!("{name} is {}: {why}", shown(value)));
    let given = match name.strip_prefix("fsdp_").unwrap_or(name) {
        "reshard_after_forward" if is_on(value).is_some() => Some(if is_on(value) == Some(true) { FULL } else { KEPT }),
        "reshard_after_forward" | "sharding_strategy" => match stage(&strategy(value)) {
            Ok(stage) => Some(stage),
            Err(why) => return refused(&why),
        },
        "cpu_offload" | "offload_params" if is_on(value) == Some(false) => None,
        "cpu_offload" | "offload_params" => return refused(NOT_OFFLOADED),
        "xla" if is_on(value) == Some(false) => None,
        "xla" => return refused("there is no XLA; leave it out"),
        "activation_checkpointing" if is_on(value) == Some(false) => None,
        "activation_checkpointing" => {
            settings.repeats(name, "gradient_checkpointing", value)?;
            None
        }
        plain if UNUSED.contains(&plain) => {
            settings.unused.push(name.to_owned());
            None
        }
        plain => {
            let others = ["reshard_after_forward", "sharding_strategy", "cpu_offload", "activation_checkpointing"];
            return Err(unknown(plain, UNUSED.into_iter().chain(others)));
        }
    };
    if let (Some(stage), Some(other)) = (given, settings.stage)
        && stage != other
    {
        return refused("reshard_after_forward and sharding_strategy ask for different stages; leave one of them out");
    }
    settings.stage = given.or(settings.stage);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar;

    #[test]
    fn words_of_fsdp_are_stages() {
        let found = |text: &str| parse(&scalar(text)).map(|settings| (settings.is_on, settings.stage));
        for (text, stage) in [
            ("full_shard", Some(3)),
            ("full_shard auto_wrap", Some(3)),
            ("[\"FULL_SHARD\", \"auto_wrap\"]", Some(3)),
            ("shard_grad_op,auto_wrap", Some(2)),
            ("no_shard", Some(0)),
            ("true", None),
            ("True", None),
            ("auto_wrap", None),
        ] {
            assert_eq!(found(text), Ok((Some(true), stage)), "{text}");
        }
        assert_eq!(found("[\"\"]"), Ok((Some(false), None)));
        for (text, words) in [
            ("full_shard offload", "has offload: nothing is offloaded"),
            ("hybrid_shard auto_wrap", "among all processes, not within each machine"),
            ("hybrid_shard_zero2", "use full_shard"),
            ("full_shard shard_grad_op", "only one of full_shard, shard_grad_op and no_shard"),
            ("2", "has \"2\": it can be full_shard"),
            ("fulll_shard", "has \"fulll_shard\": it can be full_shard, shard_grad_op or no_shard"),
        ] {
            assert!(found(text).unwrap_err().contains(words), "{text}: {:?}", found(text));
        }
    }

    #[test]
    fn settings_of_fsdp_are_known_with_and_without_its_name_before_them() {
        let found = |text: &str| parse_config(&scalar(text));
        for (text, stage) in [
            ("{reshard_after_forward = true}", Some(3)),
            ("{fsdp_reshard_after_forward = 'false'}", Some(2)),
            ("{reshard_after_forward = 'SHARD_GRAD_OP'}", Some(2)),
            ("{sharding_strategy = 1}", Some(3)),
            ("{fsdp_sharding_strategy = '2'}", Some(2)),
            ("{fsdp_min_num_params = 0, xla = false, cpu_offload = false, activation_checkpointing = false}", None),
        ] {
            assert_eq!(found(text).unwrap().stage, stage, "{text}");
        }
        let named = found("{fsdp_auto_wrap_policy = 'TRANSFORMER_BASED_WRAP', state_dict_type = 'FULL_STATE_DICT'}").unwrap();
        assert_eq!(named.unused, ["fsdp_auto_wrap_policy", "state_dict_type"]);
        for (text, words) in [
            ("{cpu_offload = true}", "cpu_offload is true: nothing is offloaded"),
            ("{fsdp_offload_params = true}", "fsdp_offload_params is true"),
            ("{fsdp_sharding_strategy = 'HYBRID_SHARD'}", "not within each machine"),
            ("{sharding_strategy = 4}", "not within each machine"),
            ("{sharding_strategy = 6}", "sharding_strategy is 6: it can be full_shard"),
            ("{xla = true}", "there is no XLA"),
            ("{reshard_after_forward = true, sharding_strategy = 'SHARD_GRAD_OP'}", "ask for different stages"),
            ("{activation_checkpointing = 'some'}", "activation_checkpointing is \"some\""),
            ("{reshard_after_forwards = true}", "did you mean \"reshard_after_forward\"?"),
        ] {
            let said = found(text).unwrap_err();
            assert!(said.contains(words), "{text}: {said}");
        }
    }
}
