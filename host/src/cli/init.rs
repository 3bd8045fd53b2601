//! `rlhost init`: writes a configuration to start from.

use super::columns::aligned;
use super::failure::CommandFailure;
use crate::config::{printable_path, shell_word};
use anyhow::anyhow;
use clap::ValueEnum;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use toml::Value;

/// Arguments of `init`.
#[derive(clap::Args)]
#[command(
    after_help = "The file runs as it is, with the built-in model and, beside it, a few rows of data. Its comments say what to \
                        change: the model, the dataset, the steps."
)]
pub(super) struct Args {
    /// What to start from
    kind: Option<InitTemplate>,
    /// File to write [default: KIND.toml]
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum InitTemplate {
    /// GRPO on arithmetic problems, rewarded for the right answer
    Gsm8k,
    /// GRPO on summaries of forum posts, rewarded for their length
    Tldr,
    /// Fine-tuning on given answers
    Sft,
    /// Learning from pairs of answers
    Dpo,
    /// GRPO on episodes with a tool
    Agent,
}

impl InitTemplate {
    /// Returns the template's name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Gsm8k => "gsm8k",
            Self::Tldr => "tldr",
            Self::Sft => "sft",
            Self::Dpo => "dpo",
            Self::Agent => "agent",
        }
    }

    /// Returns the configuration, and its example rows unless they are built in.
    fn files(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Gsm8k => (include_str!("init/gsm8k.toml"), Some(include_str!("init/gsm8k.jsonl"))),
            Self::Tldr => (include_str!("init/tldr.toml"), None),
            Self::Sft => (include_str!("init/sft.toml"), Some(include_str!("init/sft.jsonl"))),
            Self::Dpo => (include_str!("init/dpo.toml"), Some(include_str!("init/dpo.jsonl"))),
            Self::Agent => (include_str!("init/agent.toml"), Some(include_str!("init/agent.jsonl"))),
        }
    }
}

/// Placeholder of the dataset's path in a configuration.
const DATASET: &str = "\"DATASET\"";

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let Some(kind) = args.kind else {
        list();
        return Err(CommandFailure::mistake(anyhow!(
            "name what to start from, as in: rlhost init {}",
            InitTemplate::Gsm8k.name()
        )));
    };
    let file = args.file.clone().unwrap_or_else(|| PathBuf::from(kind.name()).with_extension("toml"));
    write(kind, &file).map_err(CommandFailure::from_error)?;
    let command = shell_word(&file);
    say!("next: rlhost --config {command} --dry-run   shows what it would do");
    say!("      rlhost --config {command}");
    Ok(())
}

/// Lists the templates.
fn list() {
    let help = |kind: &InitTemplate| kind.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
    let rows = InitTemplate::value_variants().iter().map(|kind| vec![kind.name().to_owned(), help(kind).unwrap_or_default()]);
    aligned(&rows.collect::<Vec<_>>()).iter().for_each(|line| say!("{line}"));
}

/// Writes the files of a template, and prints their names.
fn write(kind: InitTemplate, file: &Path) -> anyhow::Result<()> {
    let (config, rows) = kind.files();
    let beside = file.with_extension("jsonl");
    let dataset = beside.to_str().ok_or_else(|| anyhow!("{}: its name is not UTF-8 text", file.display()))?;
    let mut files = vec![(file, config.replace(DATASET, &Value::from(dataset).to_string()))];
    files.extend(rows.map(|rows| (beside.as_path(), rows.to_owned())));
    if files.len() == 2 && beside == file {
        return Err(anyhow!("{}: the file of the rows would have this name; end it with .toml", printable_path(file)));
    }
    if let Some((there, _)) = files.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        return Err(anyhow!("{} already exists; name another file: rlhost init {} FILE", printable_path(there), kind.name()));
    }
    for (path, text) in files {
        create(path, &text)?;
        let rows = if path == file { String::new() } else { format!(", {} sample rows", text.lines().count()) };
        say!("wrote {}{rows}", printable_path(path));
    }
    Ok(())
}

/// Creates a file, which must not exist.
fn create(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = OpenOptions::new().write(true).create_new(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| match source.kind() {
        ErrorKind::NotFound => anyhow!("can't write {}: its folder does not exist", printable_path(path)),
        _ => crate::train::Error::Write { path: path.to_owned(), source }.into(),
    })
}
