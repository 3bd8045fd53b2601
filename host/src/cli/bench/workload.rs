//! Creates the workload if no model or dataset is given: random weights, a tokenizer trained on the built-in posts, and rows built from
//! those posts.

use crate::cli::new_model::LARGEST_CONFIG;
use crate::config::files;
use crate::data::{TextOrChat, Tokenizer, parse_prompts, train_tokenizer};
use crate::model::{self, copy_companions, write_random};
use crate::train::{BUILT_IN_PROMPTS, RowKind};
use anyhow::anyhow;
use serde_json::{Value, json};
use std::path::Path;

/// Maximum vocabulary of a trained tokenizer, since the built-in posts don't have more. A model may have more rows than its tokenizer has
/// tokens.
const MOST_TOKENS: usize = 8192;

/// Returns the texts of the built-in posts.
fn posts() -> anyhow::Result<Vec<String>> {
    let rows = parse_prompts(Path::new("built-in prompts"), BUILT_IN_PROMPTS.as_bytes())?.into_iter();
    Ok(rows.filter_map(|row| if let TextOrChat::Text(text) = row.prompt { Some(text) } else { None }).collect())
}

/// Creates a model folder with the sizes from a `config.json` and random weights, with a copy of `tokenizer` or a trained one.
pub(super) fn random_model(config: &Path, tokenizer: Option<&Path>, folder: &Path, seed: u64) -> anyhow::Result<()> {
    let place = || config.display().to_string();
    let text = files::read_text(config, LARGEST_CONFIG).map_err(|e| anyhow!("can't read {}: {e}", place()))?;
    let mut sizes: Value = serde_json::from_str(&text).map_err(|e| anyhow!("{}: {e}", place()))?;
    std::fs::create_dir(folder).map_err(|e| anyhow!("can't write {}: {e}", folder.display()))?;
    match tokenizer {
        Some(from) => {
            Tokenizer::open(from)?;
            copy_companions(from, folder)?;
        }
        None => {
            let tokens = sizes["vocab_size"].as_u64().map_or(MOST_TOKENS, |n| MOST_TOKENS.min(n as usize));
            let corpus = tempfile::Builder::new().suffix(".jsonl").tempfile()?;
            let lines: String = posts()?.iter().map(|text| format!("{}\n", json!({ "text": text }))).collect();
            std::fs::write(corpus.path(), lines)?;
            let learned = train_tokenizer(&[corpus.path().to_owned()], tokens);
            let learned = learned.map_err(|e| anyhow!("{}: {e}", place()))?;
            sizes["eos_token_id"] = learned.eos_id().into();
            learned.write(folder)?;
        }
    }
    write_random(&sizes, folder, seed).map_err(|e| match e {
        // The error names a temporary copy, which no longer exists when it is printed.
        model::Error::Config { detail, .. } => anyhow!("{}: {detail}", place()),
        other => other.into(),
    })?;
    Ok(())
}

/// Returns this many JSON rows, all different, with prompts and answers of about the given numbers of tokens.
pub(super) fn rows(kind: RowKind, tokenizer: &Tokenizer, count: usize, prompt: usize, answer: usize) -> anyhow::Result<String> {
    let tokens = tokenizer.encode(&posts()?.join("\n\n"), false)?;
    let text = |start: usize, length: usize| {
        let some: Vec<u32> = tokens.iter().copied().cycle().skip(start % tokens.len().max(1)).take(length).collect();
        tokenizer.decode(&some)
    };
    let row = |i: usize| -> anyhow::Result<String> {
        // Rows start far apart, and answers start where no prompt ends.
        let at = i * tokens.len() / count;
        let asked = text(at, prompt)?;
        let answers = [text(at + prompt + 1, answer)?, text(at + prompt + answer + 2, answer)?];
        let row = match kind {
            RowKind::Prompts => json!({ "prompt": asked }),
            RowKind::Completions(_) | RowKind::AnsweredPrompts => json!({ "prompt": asked, "completion": answers[0] }),
            RowKind::Labelled => json!({ "prompt": asked, "completion": answers[0], "label": i.is_multiple_of(2) }),
            RowKind::Pairs | RowKind::ValuedPairs => json!({ "prompt": asked, "chosen": answers[0], "rejected": answers[1] }),
        };
        Ok(format!("{row}\n"))
    };
    (0..count).map(row).collect()
}
