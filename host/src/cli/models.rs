//! `rlhost models`: lists the families of models.

use crate::model::FAMILIES;

/// Width of a line of features.
const WIDTH: usize = 96;

/// Arguments of `models`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Print the guide's table, in Markdown
    #[arg(long)]
    markdown: bool,
}

pub(super) fn run(args: &Args) {
    if args.markdown {
        say!("| model_type | family | differences from Llama |\n|---|---|---|");
    }
    for family in FAMILIES {
        if args.markdown {
            say!("| `{}` | {} | {} |", family.model_type, family.name, family.features);
            continue;
        }
        say!("{:<16} {}", family.model_type, family.name);
        wrapped(family.features).iter().for_each(|line| say!("                 {line}"));
    }
    if !args.markdown {
        say!(
            "\nEach family is tested against transformers: logits, token-by-token decoding, all gradients, three steps of SFT,\n\
             greedy text, and loading our checkpoints. RoPE scalings: linear, dynamic, llama3, yarn, and longrope up to the\n\
             original context. All of them run on the CPU, and most on NVIDIA devices."
        );
    }
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
