//! `rlhost man`: manual pages, generated from the command definitions.

use super::algorithm::settings_of_embedded;
use super::failure::CommandFailure;
use super::{TRAINING, flags, output, reference};
use crate::config::DEFAULT_ALGORITHM;
use anyhow::anyhow;
use clap::Command;
use clap_mangen::Man;
use std::path::{Path, PathBuf};

/// Arguments of `man`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Command whose page to print, as in `rlhost man plugin check` [default: rlhost itself]
    command: Vec<String>,
    /// Write the pages of all commands to this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    dir: Option<PathBuf>,
    /// Write the reference of keys, commands and settings to this folder instead, as Markdown
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["command", "dir"])]
    markdown: Option<PathBuf>,
}

/// Prints or writes the pages of a program with these commands.
pub(super) fn run(args: &Args, root: Command) -> Result<(), CommandFailure> {
    // The order of `--help`, because replacing a command changes it.
    let order: Vec<String> = root.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let root = with_all_settings(root)?;
    if let Some(folder) = &args.markdown {
        return write_reference(root, &order, folder);
    }
    match &args.dir {
        Some(folder) => write_pages(root, folder).map_err(CommandFailure::from_error),
        None => {
            output::bytes(&page(root, &args.command).map_err(CommandFailure::from_error)?);
            Ok(())
        }
    }
}

/// Builds the commands, with the settings of every built-in algorithm.
fn with_all_settings(root: Command) -> Result<Command, CommandFailure> {
    TRAINING.iter().try_fold(root, |root, training| {
        let named = training.sets.iter().find(|(key, _)| *key == "algorithm");
        let settings = settings_of_embedded(named.map_or(DEFAULT_ALGORITHM, |(_, name)| name))?;
        Ok(root.mut_subcommand(training.name, |command| flags::with_settings(command, &settings)))
    })
}

/// Returns a command's page; `path` is the command's name, preceded by those of its parents.
fn page(root: Command, path: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut found = named(root);
    for name in path {
        let Some(next) = found.find_subcommand(name) else {
            let known: Vec<&str> = found.get_subcommands().map(Command::get_name).collect();
            return Err(anyhow!("{} has no command {name:?}; it has {}", found.get_name(), known.join(", ")));
        };
        found = next.clone();
    }
    let mut page = Vec::new();
    Man::new(found).render(&mut page)?;
    Ok(page)
}

fn write_pages(root: Command, folder: &Path) -> anyhow::Result<()> {
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(named(root), folder));
    written.map_err(|e| anyhow!("can't write to {}: {e}", folder.display()))
}

fn write_reference(root: Command, order: &[String], folder: &Path) -> Result<(), CommandFailure> {
    for (file, text) in reference::pages(&named(root), order)? {
        let path = folder.join(file);
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
        written.map_err(|e| CommandFailure::from_error(anyhow!("can't write {}: {e}", path.display())))?;
    }
    Ok(())
}

/// Renames commands to the names of their pages, such as `rlhost-plugin-check`.
fn named(root: Command) -> Command {
    fn below(command: Command, path: &[&str]) -> Command {
        let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
        let command = names.iter().fold(command, |command, own| {
            // Without a version, a page would end with an empty version section.
            let own_page = |c: Command| c.version(env!("CARGO_PKG_VERSION")).disable_version_flag(true);
            command.mut_subcommand(own, |c| below(own_page(c), &[path, &[own.as_str()]].concat()))
        });
        command.display_name(path.join("-")).bin_name(path.join(" "))
    }
    below(root.disable_help_subcommand(true), &["rlhost"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    #[test]
    fn a_page_names_the_flags_of_its_command() {
        let text = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(|p| (*p).to_owned()).collect();
            page(command(), &path).map(|page| String::from_utf8(page).unwrap().replace('\\', ""))
        };
        assert!(text(&[]).unwrap().contains("rlhost-train(1)"));
        assert!(text(&["train"]).unwrap().contains("--max-completion-length"));
        let verify = text(&["checkpoint", "verify"]).unwrap();
        assert!(verify.contains(".TH rlhost-checkpoint-verify") && verify.contains("fBrlhost checkpoint verifyfR"), "{verify}");
        let error = text(&["checkpoint", "burn"]).unwrap_err().to_string();
        assert!(error.contains("\"burn\"") && error.contains("list, verify"), "{error}");
    }

    #[test]
    fn all_pages_are_written() {
        let folder = tempfile::tempdir().unwrap();
        write_pages(command(), folder.path()).unwrap();
        for name in ["rlhost.1", "rlhost-train.1", "rlhost-checkpoint-verify.1"] {
            assert!(folder.path().join(name).is_file(), "{name}");
        }
    }
}
