//! The help of the training commands: `-h` is a page of the flags that most runs need, `--help` lists all of them, both grouped by heading.

use clap::{Arg, Command};

/// Headings in the order in which they are shown.
const HEADINGS: [&str; 13] = [
    "Configuration",
    "Model",
    "Data",
    "Plugins",
    "Generation",
    "Algorithm",
    "Training",
    "Adapter",
    "Optimizer",
    "Evaluation",
    "Saving",
    "Logging",
    "Machine",
];

/// Heading of the flags that are neither keys nor about plugins.
pub(super) const CONFIGURATION: &str = "Configuration";

/// Heading of the keys about plugins.
pub(super) const PLUGINS: &str = "Plugins";

/// Heading of the algorithm's settings.
pub(super) const SETTINGS: &str = "Settings of the algorithm";

/// The flags of the `-h` page, with their short help.
pub(super) const COMMON: [(&str, &str); 30] = [
    ("config", "File with keys, in TOML or YAML"),
    ("set", "Set any key"),
    ("dry_run", "Show what the run would do"),
    ("ui", "Show the run in the browser"),
    ("resume_from_checkpoint", "Resume a run, or start from its state"),
    ("model", "Folder or hub name [default: built-in]"),
    ("teacher_model", "Teacher of distillation [default: none]"),
    ("dataset", "File, folder or hub name [default: built-in]"),
    ("eval_dataset", "Evaluate on this dataset [default: none]"),
    ("columns", "Rename columns, as in prompt=question"),
    ("max_length", "Tokens of a given text [default: 1024]"),
    ("plugin", "Reward plugins: paths or built-in names"),
    ("reward_model", "Reward models: folders or hub names"),
    ("environment", "Environment for episodes [default: none]"),
    ("num_generations", "Completions per prompt [default: 8]"),
    ("max_completion_length", "Tokens of a completion [default: 512]"),
    ("temperature", "Sampling temperature [default: 1]"),
    ("algorithm", "Built-in name or path [default: grpo]"),
    ("max_steps", "Steps [default: -1, by epochs]"),
    ("num_train_epochs", "Epochs [default: 3]"),
    ("per_device_train_batch_size", "Rows per micro-batch [default: 8]"),
    ("gradient_accumulation_steps", "Micro-batches per step [default: 1]"),
    ("seed", "Random seed [default: 42]"),
    ("lora_r", "Train an adapter of this rank [default: none]"),
    ("learning_rate", "Peak rate [default: by algorithm and size]"),
    ("output_dir", "Folder of the run [default: runs/TIME]"),
    ("save_steps", "Steps between checkpoints [default: 500]"),
    ("logging_steps", "Steps between log lines [default: 10]"),
    ("device", "auto, cpu, cuda or cuda:N [default: auto]"),
    ("num_threads", "CPU threads [default: one per processor]"),
];

/// Adds arguments to a command in the order of their headings, with the help of each for `-h`.
pub(super) fn arranged(command: Command, arguments: impl IntoIterator<Item = Arg>) -> Command {
    let mut arguments: Vec<Arg> = arguments.into_iter().collect();
    let place = |arg: &Arg| HEADINGS.iter().position(|heading| arg.get_help_heading() == Some(heading));
    arguments.sort_by_key(|arg| place(arg).unwrap_or(HEADINGS.len()));
    command.args(arguments.into_iter().map(on_page))
}

/// Shortens an argument's help for `-h`, or hides it if it is not on that page.
pub(super) fn on_page(arg: Arg) -> Arg {
    let common = COMMON.iter().find(|(id, _)| arg.get_id() == id);
    let long = arg.get_help().cloned();
    match (common, long) {
        (Some((_, short)), Some(long)) => arg.help(*short).long_help(long),
        _ => arg.hide_short_help(true),
    }
}

/// Ends the `-h` page of a command with the names of the algorithm's settings, and a reference to `--help`.
pub(super) fn with_names(command: Command, settings: &[&str]) -> Command {
    let all = "`--help` explains all flags. They can be written with dashes or underscores.";
    let names: Vec<String> = settings.iter().map(|name| format!("--{}", name.replace('_', "-"))).collect();
    match names[..] {
        [] => command.after_help(all),
        _ => command.after_help(format!("{SETTINGS}: {}\n\n{all}", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::flags;
    use super::*;
    use crate::config::{RunConfig, keys, same, shown};
    use serde_json::Value;

    #[test]
    fn every_key_has_a_heading_of_the_list() {
        assert!(keys().iter().all(|key| shown(&key.name).is_some_and(|shown| HEADINGS.contains(&&*shown.heading))));
        for arg in flags::command("train").get_arguments().filter(|arg| !arg.is_hide_set()) {
            assert!(arg.get_help_heading().is_some_and(|heading| HEADINGS.contains(&heading)), "{}", arg.get_id());
        }
    }

    #[test]
    fn the_page_fits_a_terminal_and_states_defaults_as_they_are() {
        let defaults = serde_json::to_value(RunConfig::default()).unwrap();
        let command = super::super::training_commands::TRAINING[0].command();
        for (id, short) in COMMON {
            let arg = command.get_arguments().find(|arg| arg.get_id() == id).unwrap_or_else(|| panic!("{id}"));
            let (name, value) = (arg.get_long().unwrap(), arg.get_value_names().unwrap_or_default().join(" "));
            assert!(name.len() + value.len() + short.len() < 90, "{id}: {short}");
            let default = &defaults[id];
            if default.is_null() || default.is_array() {
                continue;
            }
            let (_, rest) = short.split_once("[default: ").unwrap_or_else(|| panic!("{id}: {short}"));
            let text = rest.split([']', ',']).next().unwrap();
            let stated = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
            assert!(same(&stated, default), "{id}: {short}");
        }
    }
}
