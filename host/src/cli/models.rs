//! `rlhost models`: lists the families of models, or says whether a model is supported.

use super::failure::CommandFailure;
use crate::config::files;
use crate::hub;
use crate::model::{Architecture, FAMILIES, FamilyDescription};
use crate::train;
use anyhow::anyhow;
use std::path::PathBuf;

/// Width of a line of features.
const WIDTH: usize = 96;

/// Arguments of `models`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A model to judge by its config.json: a folder, a run, a config.json, a name on the hub, or a model_type. All families are listed
    /// without it
    model: Option<String>,
    /// Print the guide's table, in Markdown
    #[arg(long, conflicts_with = "model")]
    markdown: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    match &args.model {
        Some(named) => judge(named)?,
        None => list(args.markdown),
    }
    Ok(())
}

fn list(markdown: bool) {
    if markdown {
        say!("| model_type | family | differences from Llama |\n|---|---|---|");
    }
    for family in FAMILIES {
        if markdown {
            say!("| `{}` | {} | {} |", family.model_type, family.name, family.features);
            continue;
        }
        describe(family);
    }
    if !markdown {
        say!(
            "\nEach family is tested against transformers: logits, token-by-token decoding, all gradients, three steps of SFT,\n\
             greedy text, and loading our checkpoints. RoPE scalings: linear, dynamic, llama3, yarn, and longrope up to the\n\
             original context. All of them run on the CPU, and most on NVIDIA devices. `rlhost models MODEL` judges one model."
        );
    }
}

fn describe(family: &FamilyDescription) {
    say!("{:<16} {}", family.model_type, family.name);
    wrapped(family.features).iter().for_each(|line| say!("                 {line}"));
}

/// Prints whether a model is supported.
///
/// # Errors
/// If it is not, with everything that is not supported.
fn judge(named: &str) -> Result<(), CommandFailure> {
    let is_path = PathBuf::from(named).exists();
    if let Some(family) = FAMILIES.iter().find(|family| family.model_type == named && !is_path) {
        describe(family);
        return Ok(());
    }
    let file = config_file(named)?;
    let shown = file.display();
    let text = files::read_text(&file, crate::config::LARGEST).map_err(|e| CommandFailure::mistake(anyhow!("{shown}: {e}")))?;
    let a = Architecture::parse_all(&text).map_err(|problems| {
        CommandFailure::mistake(anyhow!("{shown}: this model is not supported\n  {}", problems.join("\n  ")))
    })?;
    let family = a.family.description();
    say!("{shown}: {}, which is supported", family.name);
    let layers = match a.recurring() {
        0 => format!("{} layers", a.layers),
        recurrent => format!("{} layers, {recurrent} of them recurrent", a.layers),
    };
    let millions = a.values_of_matrices() as f64 / 1e6;
    say!("  {millions:.1}M parameters in matrices, {layers}, texts of up to {} tokens", a.max_positions);
    if a.text_part {
        say!("  the text part of a multimodal model, which is trained without its vision part");
    }
    match a.needs().first() {
        None => say!("  on CPUs and NVIDIA devices"),
        Some(needed) => say!("  on CPUs; devices have no kernels for {} yet", needed.name()),
    }
    wrapped(family.features).iter().for_each(|line| say!("  {line}"));
    Ok(())
}

/// Returns the `config.json` of a model that is a folder, a run, the file itself, or a name on the hub.
fn config_file(named: &str) -> Result<PathBuf, CommandFailure> {
    let path = PathBuf::from(named);
    if path.is_file() {
        return Ok(path);
    }
    let folder = match hub::looks_like_name(named) {
        true => hub::model_config(named).map_err(CommandFailure::from_error)?.folder,
        false => train::model_of(named).map_err(CommandFailure::from_error)?.0,
    };
    Ok(folder.join("config.json"))
}

/// Breaks a text into lines.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < WIDTH => *line = format!("{line} {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
