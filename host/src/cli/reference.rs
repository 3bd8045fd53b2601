//! The reference pages of the book, generated from the parser's definitions.

use super::grant_args::GrantArgs;
use super::{CommandFailure, flags, takes_keys, training};
use crate::config::{self, ConfigKey, InheritanceRule, PluginLimits, ResumeRule, TableKey, entry_tables};
use crate::plugin::{EMBEDDED, PluginEngine, PluginSource, Setting, settings_of};
use clap::{Arg, Command};
use std::fmt::Write;

/// First line of a page, which says that it is generated.
const GENERATED: &str = "<!-- Generated from the sources; `just reference` writes it. -->";

/// A page: its file name and its text.
pub(super) type ReferencePage = (&'static str, String);

/// Returns all pages; `root` is the root command, and `order` lists the names of its commands in the order of the page.
///
/// # Errors
/// If a built-in plugin can't be loaded.
pub(super) fn pages(root: &Command, order: &[String]) -> Result<[ReferencePage; 3], CommandFailure> {
    Ok([("configuration.md", configuration()), ("commands.md", commands(root, order)), ("settings.md", settings()?)])
}

/// Escapes characters of HTML and Markdown, except within code.
fn escaped(text: &str) -> String {
    let part = |(i, part): (usize, &str)| match i % 2 {
        0 => part.replace('<', "&lt;").replace('*', "\\*").replace('#', "\\#"),
        _ => part.to_owned(),
    };
    text.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
}

/// Ends a text with a full stop.
fn sentence(text: &str) -> String {
    let text = escaped(text);
    if text.ends_with(['.', '!', '?']) { text } else { format!("{text}.") }
}

fn configuration() -> String {
    let mut page = format!(
        "{GENERATED}\n\n# Configuration\n\nEvery key is a key of a configuration file (`--config FILE`, TOML or YAML), a flag \
         (`--max-steps 5`, dashes or underscores) and a key of `--set` (`--set max_steps=5`). Flags override the file. A run \
         keeps all of them, resolved, in its `config.toml`. Keys are fixed when a run resumes unless it says otherwise here. \
         [Training](../training.md#configuration) is the guide, and [Settings of plugins](settings.md) has the settings of each \
         algorithm, which are flags and keys too.\n"
    );
    let mut headings: Vec<String> = Vec::new();
    for shown in config::keys().iter().filter_map(|key| config::shown(&key.name)) {
        if !headings.contains(&shown.heading) {
            headings.push(shown.heading.clone());
        }
    }
    for heading in headings {
        let _ = writeln!(page, "\n## {heading}");
        let within = |key: &&ConfigKey| config::shown(&key.name).is_some_and(|shown| shown.heading == heading);
        config::keys().iter().filter(within).for_each(|key| page += &key_section(key));
    }
    for (title, keys) in entry_tables() {
        let _ = writeln!(page, "\n## The table `{title}`\n");
        if title == "plugin" {
            page += "An entry of `plugin` is a reward: a plugin or a reward model. `--set plugin.NAME.KEY=VALUE` sets a key of one. Entries \
                     of `environment` have the same keys, except those of reward models.\n\n";
        }
        keys.iter().for_each(|key| page += &table_key(key));
    }
    page
}

fn key_section(key: &ConfigKey) -> String {
    let flag = key.name.replace('_', "-");
    let value = match key.kind {
        "boolean" => "true or false",
        "integer" => "a whole number",
        "number" => "a number",
        "array" => "a list",
        "object" => "a table",
        _ => "text",
    };
    let mut section = format!("\n### `{}`\n\n{}\n\n", key.name, sentence(&key.help));
    let _ = write!(section, "- Value: {value}");
    let examples = config::shown(&key.name).map_or(&[][..], |shown| &shown.examples[..]);
    if !examples.is_empty() && key.kind != "boolean" {
        let _ = write!(section, ", such as `{}`", examples.join("`, `"));
    }
    section += match key.has_flag {
        true => "\n",
        false => "; no flag\n",
    };
    if key.has_flag {
        let _ = writeln!(section, "- Flag: `--{flag}`");
    }
    if !key.aliases.is_empty() {
        let _ = writeln!(section, "- Also: `{}`", key.aliases.join("`, `"));
    }
    match (key.live, key.on_resume) {
        (true, _) => section += "- May change while a run goes on\n",
        (false, ResumeRule::Free) => section += "- May change when a run resumes\n",
        (false, ResumeRule::Compared | ResumeRule::Fixed) => {}
    }
    match &key.inherited {
        InheritanceRule::Always => {}
        InheritanceRule::WithAlgorithm => section += "- A fork with another algorithm does not inherit it\n",
        InheritanceRule::With(other) => {
            let _ = writeln!(section, "- A fork with another `{other}` does not inherit it");
        }
    }
    section
}

fn table_key(key: &TableKey) -> String {
    let default = key.default.as_ref().map_or_else(String::new, |default| format!(" Default: `{default}`."));
    format!("- `{}`: {}{default}\n", key.name, sentence(&key.help))
}

fn commands(root: &Command, order: &[String]) -> String {
    let mut root = root.clone();
    // Only a built command knows how many values its arguments take.
    root.build();
    let mut page = format!(
        "{GENERATED}\n\n# Commands\n\nWithout a command, `rlhost` runs `rlhost train`. `rlhost COMMAND --help` prints the same, and \
         `rlhost man COMMAND` a manual page.\n\n## Options of every command\n\n"
    );
    root.get_arguments().filter(|arg| !arg.is_hide_set()).for_each(|arg| page += &argument(arg));
    for command in order.iter().filter_map(|name| root.find_subcommand(name)) {
        command_section(&mut page, command, 2);
    }
    page
}

fn command_section(page: &mut String, command: &Command, level: usize) {
    let usage = command.clone().render_usage().to_string();
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(page, "\n{} `{name}`\n\n{}\n", "#".repeat(level), sentence(&about));
    let _ = writeln!(page, "```text\n{}\n```\n", usage.trim_start_matches("Usage: ").trim_end());
    let own = command.get_name();
    let with_keys = takes_keys(own);
    if with_keys {
        let settings = training(own).is_some_and(|training| !training.sets.is_empty());
        let settings = if settings { ", each [setting](settings.md) of its algorithm" } else { "" };
        let others = if own == "train" { "" } else { " and each flag of `rlhost train`" };
        let _ = writeln!(page, "It has a flag for each [key](configuration.md){settings}{others}.\n");
    }
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_global_set() && arg.get_id() != "help");
    shown.filter(|arg| !with_keys || is_own(own, arg)).for_each(|arg| *page += &argument(arg));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        command_section(page, below, level + 1);
    }
}

/// Returns whether a flag of a training command is neither a key's, nor a setting's, nor one that all such commands have.
fn is_own(command: &str, arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    let is_key = config::key(id).is_some_and(|key| key.has_flag) || id.starts_with("loss.");
    let of_train = || flags::command("train").get_arguments().any(|other| other.get_id() == id) || id == "dry_run";
    !is_key && (command == "train" || !of_train())
}

fn argument(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    if arg.get_action().takes_values() {
        let list = |values: Vec<String>| values.join(", ");
        let values = list(arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect());
        let default = list(arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect());
        for (what, text) in [("values", values), ("default", default)].into_iter().filter(|(_, text)| !text.is_empty()) {
            help += &format!(" [{what}: {text}]");
        }
    }
    format!("- `{short}{arg}`: {}\n", sentence(&help))
}

fn settings() -> Result<String, CommandFailure> {
    let mut page = format!(
        "{GENERATED}\n\n# Settings of plugins\n\nThe settings of the built-in plugins. Those of the algorithm are keys of the table `[loss]`, and \
         flags: `--beta 0.04`. Those of rewards and environments are keys of their `config`: \
         `--set plugin.answer_reward.config.tolerance=0.01`. `rlhost plugin inspect NAME.wasm` shows those of any plugin.\n"
    );
    let mut names: Vec<&str> = EMBEDDED.iter().map(|(file, _)| file.strip_suffix(".wasm").unwrap_or(file)).collect();
    names.sort_unstable();
    for name in names {
        let _ = writeln!(page, "\n## `{name}`\n");
        let settings = settings_of_builtin(name)?;
        if settings.is_empty() {
            page += "It has no settings.\n";
        }
        settings.iter().for_each(|setting| page += &setting_line(setting));
    }
    Ok(page)
}

/// Returns the settings of a built-in plugin. Some plugins can be loaded only with a grant, so they get an empty one.
fn settings_of_builtin(name: &str) -> Result<Vec<Setting>, CommandFailure> {
    let (mut engine, source) =
        (PluginEngine::new().map_err(CommandFailure::from_error)?, PluginSource::open(name).map_err(CommandFailure::from_error)?);
    GrantArgs::default().apply(&mut engine, source.name()).map_err(CommandFailure::from_error)?;
    settings_of(&engine, &source, &PluginLimits::default()).map_err(CommandFailure::from_error)
}

fn setting_line(setting: &Setting) -> String {
    let also = match &setting.aliases[..] {
        [] => String::new(),
        aliases => format!(" Also: `{}`.", aliases.join("`, `")),
    };
    format!("- `{}`: {}{also}\n", setting.name, sentence(&setting.help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_outside_of_code_only() {
        assert_eq!(escaped("<a> `<b> *` *"), "&lt;a> `<b> *` \\*");
        assert_eq!((sentence("A [default: 1]"), sentence("A.")), ("A [default: 1].".to_owned(), "A.".to_owned()));
    }

    #[test]
    fn every_key_and_command_has_a_section() {
        let page = configuration();
        let missing: Vec<_> = config::keys().iter().filter(|key| !page.contains(&format!("\n### `{}`\n", key.name))).collect();
        assert!(missing.is_empty() && page.contains("- `memory_mb`: "), "{missing:?}");
        let root = crate::cli::command();
        let order: Vec<String> = root.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        let page = commands(&root, &order);
        assert!(root.get_subcommands().all(|command| page.contains(&format!("{}`\n", command.get_name()))), "{page}");
        assert!(!page.contains("--learning-rate") && page.contains("`--dry-run`"), "{page}");
    }
}
