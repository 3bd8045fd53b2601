//! Suggestions for unknown flags.

use crate::config;
use clap::Command;

/// Flags as other programs or people call them, with their names in rlhost.
const FLAG_SYNONYMS: [(&str, &str); 16] = [
    ("lr", "learning_rate"),
    ("critic_lr", "critic_learning_rate"),
    ("lr_scheduler", "lr_scheduler_type"),
    ("batch_size", "per_device_train_batch_size"),
    ("micro_batch_size", "per_device_train_batch_size"),
    ("eval_batch_size", "per_device_eval_batch_size"),
    ("grad_accum", "gradient_accumulation_steps"),
    ("epochs", "num_train_epochs"),
    ("num_epochs", "num_train_epochs"),
    ("steps", "max_steps"),
    ("num_steps", "max_steps"),
    ("warmup", "warmup_steps"),
    ("kl_coef", "beta"),
    ("rewards", "plugin"),
    ("reward", "plugin"),
    ("output", "output_dir"),
];

/// Returns a command's flag that is nearest to an unknown one.
pub(super) fn nearest_flag(command: &Command, given: &str) -> Option<String> {
    let name = given.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_");
    let names: Vec<String> =
        command.get_arguments().filter_map(|arg| arg.get_long()).map(|long| long.replace('-', "_")).collect();
    let has = |name: &str| names.iter().any(|known| known == name);
    let otherwise = FLAG_SYNONYMS.iter().find(|(theirs, ours)| *theirs == name && has(ours)).map(|(_, ours)| *ours);
    let near = otherwise.or_else(|| config::nearest(&name, names.iter().map(String::as_str)));
    near.map(|near| format!("--{}", near.replace('_', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn another_name_is_known_and_a_far_one_is_not_taken_for_a_misspelling() {
        let flags = ["learning-rate", "lora-r", "batch-eval-metrics", "per-device-train-batch-size", "beta"];
        let command = Command::new("x").args(flags.map(|name| Arg::new(name).long(name)));
        let of = |given: &str| nearest_flag(&command, given);
        assert_eq!(of("--lr").as_deref(), Some("--learning-rate"));
        assert_eq!(of("--batch_size=4").as_deref(), Some("--per-device-train-batch-size"));
        assert_eq!(of("--lerning-rate").as_deref(), Some("--learning-rate"));
        assert_eq!((of("--nonsense"), of("--epochs"), of("--lora_x")), (None, None, Some("--lora-r".to_owned())));
    }
}
