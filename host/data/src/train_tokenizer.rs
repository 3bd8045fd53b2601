//! Trains a byte-level BPE tokenizer for models that are trained from scratch.

use super::{Error, Result, TextOrChat, UnusableRows, read_completions};
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::config::printable;
use serde_json::json;
use std::path::{Path, PathBuf};
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    TokenizerImpl,
};

/// End token.
const END: &str = "<|endoftext|>";

/// Pattern by which Qwen2 splits text into words. transformers uses it for all models of that family, whatever the tokenizer's file says.
const WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

type TrainableTokenizer = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Maximum size of a trained vocabulary; memory for it is allocated before training.
const MOST_TOKENS: usize = 1 << 20;

/// Number of bytes of text that are split into words at once. Each byte needs hundreds of bytes of memory, and a word, which may be
/// arbitrarily long, needs a pass over its full length per token.
const PIECE: usize = 64 << 10;

/// Maximum length of a printed file name, in bytes.
const SHOWN: usize = 200;

/// Trains a tokenizer with at most `vocab_size` tokens on the texts of datasets (columns `text`, or `prompt` and `completion`, or
/// `messages`). Token 0 is the end token.
///
/// # Errors
/// If a dataset can't be read, or `vocab_size` is absurd or too small for the 256 bytes and the end token.
pub fn train_tokenizer(datasets: &[PathBuf], vocab_size: usize) -> Result<TrainedTokenizer> {
    let fail = |detail: String| Error::Tokenizer { path: PathBuf::from("tokenizer"), detail };
    if !(257..=MOST_TOKENS).contains(&vocab_size) {
        return Err(fail(format!("vocab_size is {vocab_size}; a byte-level vocabulary must have 257 to {MOST_TOKENS} tokens")));
    }
    let _task = ProgressTask::new(Activity::TrainingTokenizer);
    let mut texts = Vec::new();
    for path in datasets {
        let name = path.file_name().map(|name| printable(&name.to_string_lossy(), SHOWN)).unwrap_or_default();
        let _reading = ProgressTask::new(Activity::ReadingDataset).with_subject(name);
        let mut refused = UnusableRows::default();
        let rows = read_completions(&path.as_path().into(), &mut refused)?;
        if let Some(text) = refused.warning(rows.len())? {
            tracing::warn!("{text}");
        }
        for row in rows {
            texts.extend([row.prompt, Some(row.completion)].into_iter().flatten().flat_map(contents));
        }
    }
    let mut trainer = BpeTrainerBuilder::new()
        .vocab_size(vocab_size)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from(END, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let bytes = ByteLevel::new(false, true, false);
    let words = Split::new(SplitPattern::Regex(WORDS.into()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| fail(e.to_string()))?;
    let steps = vec![PreTokenizerWrapper::Split(words), PreTokenizerWrapper::ByteLevel(bytes)];
    let mut tokenizer = TrainableTokenizer::new(BPE::default());
    tokenizer.with_normalizer(Some(NormalizerWrapper::NFC(NFC))).map_err(|e| fail(e.to_string()))?;
    tokenizer.with_pre_tokenizer(Some(PreTokenizerWrapper::Sequence(Sequence::new(steps))));
    tokenizer.with_decoder(Some(DecoderWrapper::ByteLevel(bytes)));
    tokenizer.train(&mut trainer, counted(&texts)).map_err(|e| fail(e.to_string()))?;
    Ok(TrainedTokenizer(tokenizer.into()))
}

/// Returns the pieces of texts, and reports progress as they are consumed.
fn counted(texts: &[String]) -> impl Iterator<Item = &str> + Send {
    let bytes: usize = texts.iter().map(String::len).sum();
    let task = ProgressTask::new(Activity::CountingWords).with_total(bytes as u64, ProgressUnit::Bytes);
    // The task ends with the iterator, before words are merged.
    texts.iter().flat_map(|text| TextPieces(text)).inspect(move |piece| task.add(piece.len() as u64))
}

fn contents(prompt: TextOrChat) -> Vec<String> {
    match prompt {
        TextOrChat::Text(text) => vec![text],
        TextOrChat::Chat(messages) => messages.into_iter().map(|m| m.content.to_string()).collect(),
    }
}

/// Splits a text into pieces at word boundaries: after a line break or before a space, if there is one.
struct TextPieces<'a>(&'a str);

impl<'a> Iterator for TextPieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0;
        if text.is_empty() {
            return None;
        }
        let mut most = PIECE.min(text.len());
        while !text.is_char_boundary(most) {
            most -= 1;
        }
        let words = |at: &usize| {
            let (before, after) = text.split_at(*at);
            let plain = |c: Option<char>| c.is_some_and(|c| !c.is_whitespace());
            let mut after = after.chars();
            match after.next() {
                Some(' ') => plain(before.chars().next_back()) && plain(after.next()),
                next => before.ends_with('\n') && plain(next),
            }
        };
        let at = if most == text.len() {
            most
        } else {
            (1..=most).rev().filter(|at| text.is_char_boundary(*at)).find(words).unwrap_or(most)
        };
        let (piece, rest) = text.split_at(at);
        self.0 = rest;
        Some(piece)
    }
}

/// Trained tokenizer that has not been saved.
pub struct TrainedTokenizer(tokenizers::Tokenizer);

impl TrainedTokenizer {
    /// Returns the size of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    /// Returns the id of the end token.
    pub fn eos_id(&self) -> Option<u32> {
        self.0.token_to_id(END)
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json` in the form of transformers.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join("tokenizer.json");
        let fail = |e: tokenizers::Error| Error::Tokenizer { path: path.clone(), detail: format!("can't be written: {e}") };
        self.0.save(&path, false).map_err(fail)?;
        let path = folder.join("tokenizer_config.json");
        let config = json!({ "tokenizer_class": "Qwen2Tokenizer", "eos_token": END, "pad_token": END });
        std::fs::write(&path, format!("{config:#}\n")).map_err(|source| Error::Io { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tokenizer, activity};

    #[test]
    fn a_learned_tokenizer_gives_back_any_text_and_joins_what_is_frequent() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = folder.path().join("corpus.jsonl");
        let rows = vec![json!({"text": "the cat and the dog and the bird"}).to_string(); 20].join("\n");
        std::fs::write(&corpus, rows).unwrap();
        let trained = train_tokenizer(std::slice::from_ref(&corpus), 270).unwrap();
        assert_eq!((trained.vocab_size(), trained.eos_id()), (270, Some(0)));
        trained.write(folder.path()).unwrap();
        let before = activity::spent(Activity::ReadingTokenizer).times;
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        assert!(activity::spent(Activity::ReadingTokenizer).times > before);
        let text = "the cat, the zebra: über 1,000 ☃ and\n\tthe  end";
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        assert_eq!(tokenizer.encode(" the and", true).unwrap().len(), 2);
        assert_eq!(tokenizer.eos_text().as_deref(), Some(END));
        assert!(train_tokenizer(std::slice::from_ref(&corpus), 256).is_err());
        // Allocating memory for so many tokens would abort the process.
        assert!(train_tokenizer(&[corpus], usize::MAX).is_err());
    }

    #[test]
    fn the_bytes_of_texts_are_counted_while_their_words_are() {
        let texts = [String::from("some words"), "x ".repeat(PIECE)];
        let whole = (10 + 2 * PIECE) as u64;
        let shown = || {
            let of_these =
                |status: &activity::ProgressStatus| status.activity == Activity::CountingWords && status.total == Some(whole);
            activity::current().into_iter().filter(of_these).map(|status| status.done).collect::<Vec<_>>()
        };
        let mut pieces = counted(&texts);
        assert_eq!((pieces.next(), shown()), (Some("some words"), vec![10]));
        assert!(pieces.by_ref().count() > 1);
        assert_eq!(shown(), [whole]);
        drop(pieces);
        assert!(shown().is_empty());
    }

    #[test]
    fn a_text_of_any_length_is_learned_from_in_pieces() {
        for unit in ["word and word\n", "x", "\u{e9}", " ", "\n\n  "] {
            let text = unit.repeat(3 * PIECE / unit.len());
            let pieces: Vec<&str> = TextPieces(&text).collect();
            assert_eq!(pieces.concat(), text);
            assert!(pieces.len() >= 3 && pieces.iter().all(|piece| piece.len() <= PIECE));
            assert!(unit.len() < 9 || pieces[1..].iter().all(|piece| piece.starts_with(" ") || piece.starts_with("word")));
        }
        assert_eq!(TextPieces("").count(), 0);
    }
}
