//! TRL's options of DeepSpeed and FSDP: they set `zero_stage`, and their settings repeat the values of other keys.

use super::foreign_options::{ForeignOption, OptionTreatment, is_off};
use super::sharding_settings::{LONGEST_SHOWN, RepeatedKey, ShardingSettings, shown};
use super::{Error, Result, RunConfig, deepspeed, fsdp, printable};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// The key that the options set.
const KEY: &str = "zero_stage";

/// Reads the value of an option.
fn settings_of(option: &str, value: &Value) -> std::result::Result<ShardingSettings, String> {
    match option {
        "deepspeed" => deepspeed::parse(value),
        "deepspeed_config" => deepspeed::parse_accelerate(value),
        "fsdp" => fsdp::parse(value),
        _ => fsdp::parse_config(value),
    }
}

/// Checks the value of an option that divides a model, and logs which of its settings have no effect.
///
/// # Errors
/// If the value is invalid; says what is valid.
pub(super) fn check(option: &str, value: &Value) -> std::result::Result<(), String> {
    let unused = settings_of(option, value)?.unused;
    if !unused.is_empty() {
        let all: Vec<String> = unused.iter().map(|setting| printable(setting, LONGEST_SHOWN)).collect();
        tracing::info!("{option}: not needed here: {}", all.join(", "));
    }
    Ok(())
}

/// Requests of files and the command line; each layer overrides those before it.
#[derive(Debug, Default)]
pub(super) struct ShardingRequests {
    last: usize,
    key: Option<(usize, u8)>,
    /// The last value of each option, with its layer.
    options: BTreeMap<&'static str, (usize, ShardingSettings)>,
}

impl ShardingRequests {
    /// Adds a layer: its value of the key, and its options.
    ///
    /// # Errors
    /// If an option can't be used.
    pub(super) fn add(&mut self, stage: Option<&Value>, options: &[(ForeignOption, Value)]) -> Result<()> {
        self.last += 1;
        let stage = stage.and_then(|value| value.as_integer().or_else(|| value.as_str()?.parse().ok()));
        // An invalid stage is refused together with the key.
        if let Some(stage) = stage.and_then(|stage| u8::try_from(stage).ok()) {
            self.key = Some((self.last, stage));
        }
        for (option, value) in options.iter().filter(|(option, _)| option.treatment == OptionTreatment::Shards) {
            let asked = if is_off(value) {
                ShardingSettings { is_on: Some(false), ..ShardingSettings::default() }
            } else {
                settings_of(option.name, value).map_err(|detail| invalid(option.name, detail))?
            };
            self.options.insert(option.name, (self.last, asked));
        }
        Ok(())
    }

    /// Returns an option's settings with their layer, if it is given.
    fn option(&self, name: &str) -> Option<&(usize, ShardingSettings)> {
        self.options.get(name)
    }

    /// Returns whether FSDP is on. Without the option `fsdp`, only accelerate's settings turn it on, as in accelerate.
    fn has_fsdp(&self) -> bool {
        let says = |name| self.option(name).and_then(|(_, asked)| asked.is_on);
        says("fsdp").or_else(|| says("fsdp_config")) == Some(true)
    }

    /// Returns the requested stages, each with its layer and the name of the key or option.
    fn stages(&self) -> Vec<(usize, &'static str, u8)> {
        let stage = |name: &'static str| self.option(name).and_then(|(layer, asked)| Some((*layer, name, asked.stage?)));
        let mut all: Vec<_> = self.key.iter().map(|(layer, stage)| (*layer, KEY, *stage)).collect();
        all.extend(["deepspeed", "deepspeed_config"].into_iter().filter_map(stage));
        if self.has_fsdp() {
            let layer = |name| self.option(name).map_or(0, |(layer, _)| *layer);
            match (stage("fsdp"), stage("fsdp_config")) {
                (None, None) => {
                    let by = if self.options.contains_key("fsdp") { "fsdp" } else { "fsdp_config" };
                    all.push((layer(by), by, fsdp::FULL));
                }
                // The settings determine what the option divides.
                (None, Some((own, name, stage))) => all.push((own.max(layer("fsdp")), name, stage)),
                (option, settings) => all.extend(option.into_iter().chain(settings)),
            }
        }
        all
    }

    /// Returns the options that have an effect.
    fn used(&self) -> impl Iterator<Item = (&'static str, &ShardingSettings)> {
        let has_fsdp = self.has_fsdp();
        self.options.iter().map(|(name, (_, asked))| (*name, asked)).filter(move |(name, _)| *name != "fsdp_config" || has_fsdp)
    }

    /// Sets the keys to the requests of the last layers. Keys that are set explicitly keep their values.
    ///
    /// # Errors
    /// If one layer requests two different stages.
    pub(super) fn put(&self, table: &mut Table) -> Result<()> {
        let stages = self.stages();
        let last = stages.iter().map(|(layer, ..)| *layer).max();
        let mut of_last = stages.iter().filter(|(layer, ..)| Some(*layer) == last);
        if let Some((_, first, stage)) = of_last.next() {
            if let Some((_, second, other)) = of_last.find(|(.., other)| other != stage) {
                let verb = if *first == KEY { "is" } else { "asks for" };
                let detail = format!("asks for zero_stage {other}, but {first} {verb} {stage}; leave one of them out");
                return Err(invalid(second, detail));
            }
            table.insert(KEY.to_owned(), Value::Integer((*stage).into()));
        }
        for RepeatedKey { key, value, .. } in self.used().flat_map(|(_, asked)| &asked.repeated) {
            table.entry(*key).or_insert_with(|| value.clone());
        }
        Ok(())
    }

    /// Checks that the configuration agrees with the values that the options repeat, as transformers does.
    ///
    /// # Errors
    /// If a value differs; names the option, its setting and the key.
    pub(super) fn check(&self, config: &RunConfig) -> Result<()> {
        for (option, asked) in self.used() {
            for RepeatedKey { setting, key, value } in &asked.repeated {
                let own = Table::try_from(config).ok().and_then(|mut table| table.remove(*key));
                let same = Table::from_iter([((*key).to_owned(), value.clone())]).try_into::<RunConfig>();
                let same = same.ok().and_then(|config| Table::try_from(config).ok()).and_then(|mut table| table.remove(*key));
                if own != same {
                    let own = own.map_or_else(|| "none".to_owned(), |own| shown(&own));
                    let detail =
                        format!("{setting} is {}, but {key} is {own}; give both the same value, or leave one out", shown(value));
                    return Err(invalid(option, detail));
                }
            }
            let each = config.per_device_train_batch_size.saturating_mul(config.gradient_accumulation_steps);
            if let Some(whole) = asked.train_batch_size
                && (whole <= 0 || !usize::try_from(whole).is_ok_and(|whole| whole.is_multiple_of(each)))
            {
                let detail = format!(
                    "train_batch_size is {whole}; it must be \"auto\", or the number of processes times \
                     per_device_train_batch_size {} times gradient_accumulation_steps {}",
                    config.per_device_train_batch_size, config.gradient_accumulation_steps
                );
                return Err(invalid(option, detail));
            }
        }
        Ok(())
    }
}

fn invalid(place: &str, detail: String) -> Error {
    Error::Invalid { place: place.to_owned(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigFile, KeyAssignment, Overrides, foreign_option, read_files, scalar};
    use std::io::Write;
    use tempfile::NamedTempFile;

    fn file(ending: &str, text: &str) -> NamedTempFile {
        let mut file = tempfile::Builder::new().suffix(ending).tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    /// Returns the configuration from files and a command line: flags of keys, and options of TRL.
    fn configured(files: &[&str], flags: &[(&str, &str)], options: &[(&str, &str)]) -> std::result::Result<RunConfig, String> {
        let files: Vec<NamedTempFile> = files.iter().map(|text| file(".yaml", text)).collect();
        let files: Vec<ConfigFile> = files.iter().map(|file| ConfigFile::read(file.path()).unwrap()).collect();
        let overrides = Overrides {
            flags: flags.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect(),
            foreign: options.iter().map(|(name, text)| (foreign_option(name).unwrap(), scalar(text))).collect(),
            ..Overrides::default()
        };
        read_files(&files, &overrides, &[]).map_err(|e| e.to_string())
    }

    fn stage(files: &[&str], flags: &[(&str, &str)], options: &[(&str, &str)]) -> u8 {
        configured(files, flags, options).unwrap_or_else(|e| panic!("{files:?} {flags:?} {options:?}: {e}")).zero_stage
    }

    #[test]
    fn a_file_of_deepspeed_sets_the_stage_and_the_keys_that_it_repeats() {
        let text = r#"{
            "fp16": {"enabled": false, "loss_scale": 0}, "bf16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0}},
            "zero_optimization": {"stage": 3, "overlap_comm": true, "stage3_max_live_parameters": 1e9,
                "reduce_bucket_size": "auto", "offload_param": {"device": "none", "pin_memory": true}, "sub_group_size": null},
            "gradient_clipping": 0.5, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4,
            "train_batch_size": 64, "steps_per_print": 2000, "wall_clock_breakdown": false}"#;
        let json = file(".json", text);
        let path = json.path().to_str().unwrap();
        let in_file = format!("deepspeed: {path}\n");
        for config in
            [configured(&[&in_file], &[], &[]), configured(&[], &[], &[("deepspeed", path)])].map(std::result::Result::unwrap)
        {
            assert_eq!((config.zero_stage, config.max_grad_norm, config.gradient_accumulation_steps), (3, 0.5, 4));
            assert_eq!((config.adam_beta2, config.bf16), (0.95, None));
            assert!(config.named.contains("zero_stage") && config.named.contains("max_grad_norm"));
        }
        let wrong = configured(&[&in_file], &[("max_grad_norm", "1")], &[]).unwrap_err();
        assert_eq!(
            wrong,
            "deepspeed: gradient_clipping is 0.5, but max_grad_norm is 1.0; give both the same value, or leave one out"
        );
        assert_eq!(stage(&[&in_file, "max_grad_norm: 0.5\n"], &[], &[]), 3);
        let sizes = |whole: &str| {
            let text = format!(
                "deepspeed: {{train_batch_size: {whole}}}\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\n"
            );
            configured(&[&text], &[], &[]).map(drop)
        };
        assert_eq!((sizes("auto"), sizes("16"), sizes("64")), (Ok(()), Ok(()), Ok(())));
        for whole in ["0", "-16", "24"] {
            let wrong = sizes(whole).unwrap_err();
            assert!(wrong.contains(&format!("train_batch_size is {whole}; it must be \"auto\"")), "{wrong}");
            assert!(wrong.ends_with("per_device_train_batch_size 8 times gradient_accumulation_steps 2"), "{wrong}");
        }
    }

    #[test]
    fn the_last_layer_that_says_a_stage_decides() {
        let zero = |stage: u8| format!("deepspeed: {{zero_optimization: {{stage: {stage}}}}}\n");
        let inline = |stage: u8| format!("{{\"zero_optimization\": {{\"stage\": {stage}}}}}");
        for one in 0..=3 {
            assert_eq!(stage(&[&zero(one)], &[], &[]), one);
            assert_eq!(stage(&["zero_stage: 1\n"], &[], &[("deepspeed", &inline(one))]), one);
        }
        assert_eq!(stage(&[&zero(3)], &[("zero_stage", "1")], &[]), 1);
        assert_eq!(stage(&[&zero(3), "zero_stage: 2\n"], &[], &[]), 2);
        assert_eq!(stage(&["zero_stage: 2\n", &zero(3)], &[], &[]), 3);
        assert_eq!(stage(&[&zero(3)], &[], &[("fsdp", "shard_grad_op")]), 2);
        // An option that is off requests nothing, and cancels its own earlier requests.
        assert_eq!(stage(&["zero_stage: 2\ndeepspeed: null\nfsdp: []\nfsdp_config: {}\n"], &[], &[]), 2);
        assert_eq!(stage(&[&zero(3)], &[], &[("deepspeed", "false")]), 0);
        assert_eq!(stage(&[&zero(3), "deepspeed: ''\n"], &[], &[]), 0);
        let sets = vec![KeyAssignment::parse("zero_stage=1").unwrap()];
        let foreign = vec![(foreign_option("deepspeed").unwrap(), scalar(&inline(3)))];
        let config = read_files([], &Overrides { sets, foreign, ..Overrides::default() }, &[]).unwrap();
        assert_eq!(config.zero_stage, 1);
    }

    #[test]
    fn two_stages_in_one_layer_are_refused_unless_they_are_the_same() {
        let both = "zero_stage: 1\nfsdp: full_shard\n";
        let wrong = configured(&[both], &[], &[]).unwrap_err();
        assert_eq!(wrong, "fsdp: asks for zero_stage 3, but zero_stage is 1; leave one of them out");
        assert_eq!(stage(&[both], &[("zero_stage", "2")], &[]), 2);
        assert_eq!(stage(&["zero_stage: 3\nfsdp: full_shard\n"], &[], &[]), 3);
        let deepspeed = "{zero_optimization = {stage = 2}}";
        let wrong = configured(&[], &[], &[("deepspeed", deepspeed), ("fsdp", "true")]).unwrap_err();
        assert_eq!(wrong, "fsdp: asks for zero_stage 3, but deepspeed asks for 2; leave one of them out");
        let wrong = configured(&[], &[("zero_stage", "1")], &[("deepspeed", deepspeed)]).unwrap_err();
        assert_eq!(wrong, "deepspeed: asks for zero_stage 2, but zero_stage is 1; leave one of them out");
        let wrong = configured(&[], &[("zero_stage", "7")], &[]).unwrap_err();
        assert!(wrong.contains("zero_stage: must be between 0 and 3"), "{wrong}");
    }

    #[test]
    fn the_settings_of_fsdp_count_where_it_is_on() {
        let kept = "fsdp_config: {version: 2, reshard_after_forward: false, activation_checkpointing: true}\n";
        let config = configured(&[kept], &[], &[]).unwrap();
        assert_eq!((config.zero_stage, config.gradient_checkpointing), (0, false));
        let on = format!("fsdp: true\n{kept}");
        let config = configured(&[&on], &[], &[]).unwrap();
        assert_eq!((config.zero_stage, config.gradient_checkpointing), (2, true));
        assert_eq!(stage(&[kept], &[], &[("fsdp", "true")]), 2);
        assert_eq!(stage(&[kept], &[], &[("fsdp", "auto_wrap")]), 2);
        assert_eq!(stage(&[kept], &[], &[("fsdp", "full_shard")]), 3);
        assert_eq!(stage(&["fsdp: full_shard\n"], &[], &[("fsdp_config", "{reshard_after_forward = false}")]), 2);
        assert_eq!(stage(&[&on], &[], &[("fsdp", "false")]), 0);
        assert_eq!(stage(&["fsdp: true\n"], &[("zero_stage", "1")], &[("fsdp_config", "{min_num_params = 9}")]), 1);
        assert_eq!(stage(&[&on], &[], &[("fsdp_config", "{min_num_params = 9}")]), 3);
        let wrong = configured(&[&format!("fsdp: full_shard\n{kept}")], &[], &[]).unwrap_err();
        assert_eq!(wrong, "fsdp_config: asks for zero_stage 2, but fsdp asks for 3; leave one of them out");
        let wrong = configured(&[&on], &[("gradient_checkpointing", "false")], &[]).unwrap_err();
        assert!(
            wrong.starts_with("fsdp_config: activation_checkpointing is true, but gradient_checkpointing is false"),
            "{wrong}"
        );
        // accelerate's own files turn it on with these settings.
        assert_eq!(stage(&["fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_offload_params: false}\n"], &[], &[]), 2);
        assert_eq!(stage(&["fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}\n"], &[], &[]), 3);
        assert_eq!(stage(&["fsdp_config: {fsdp_version: 2}\n"], &[], &[]), 3);
        let accelerate =
            "deepspeed_config: {zero_stage: 2, offload_param_device: none, zero3_init_flag: false, gradient_clipping: 0.3}\n";
        let config = configured(&[accelerate], &[], &[]).unwrap();
        assert_eq!((config.zero_stage, config.max_grad_norm), (2, 0.3));
    }

    #[test]
    fn what_is_off_within_settings_is_left_out_and_errors_name_the_line() {
        assert_eq!(stage(&["deepspeed: {zero_optimization: {stage: 3, offload_param: null}}\n"], &[], &[]), 3);
        let wrong = configured(&["seed: 1\ndeepspeed: {zero_optimization: {stage: 4}}\n"], &[], &[]).unwrap_err();
        assert!(wrong.contains(".yaml:2: deepspeed: zero_optimization.stage is 4; it must be between 0 and 3"), "{wrong}");
    }
}
